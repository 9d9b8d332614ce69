//! RocksDB: its options, and the few calls that the store makes of it.

use std::path::Path;

use rocksdb::{
    BlockBasedOptions, BottommostLevelCompaction, ColumnFamilyDescriptor, CompactOptions, DB, DBCompressionType,
    DBRecoveryMode, Direction, InfoLogger, IteratorMode, LogLevel, Options, ReadOptions, WriteBatch, WriteOptions,
};

use crate::error::ReadError;
use crate::family::Family;

/// Values from this size on live in blob files. Below it, a read of its own costs more
/// than carrying the value through compactions does.
const MIN_BLOB_BYTES: u64 = 4 * 1024;

/// A blob file: large enough that a long run has thousands of screenshots in one, small
/// enough that freeing one is not a long compaction.
const BLOB_FILE_BYTES: u64 = 256 * 1024 * 1024;

/// The logs of writes together stay below this: it bounds both the disk that values
/// occupy twice (in a log and in a blob file) and the time that recovery takes.
const MAX_WAL_BYTES: u64 = 256 * 1024 * 1024;

/// What the families but blobs buffer in memory before a flush.
const WRITE_BUFFER_BYTES: usize = 16 * 1024 * 1024;

/// What blobs buffer: a flush writes one blob file, so small buffers make small files.
const BLOB_WRITE_BUFFER_BYTES: usize = 64 * 1024 * 1024;

/// Open files of the writer; a login node often allows a process 1024 in all, and the
/// coordinator's sessions need theirs.
const MAX_OPEN_FILES: i32 = 512;

/// A writer that is busy flushes every few seconds, and opening takes a part of one.
const MAX_OPENS: u32 = 20;

/// An open RocksDB, with all families.
pub(crate) struct Rocks(DB);

impl std::fmt::Debug for Rocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Rocks").field(&self.0.path()).finish()
    }
}

/// A key and its value.
pub(crate) type Row = (Box<[u8]>, Box<[u8]>);

impl Rocks {
    /// Opens for writing; makes what is missing.
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        let mut options = common();
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        options.set_max_open_files(MAX_OPEN_FILES);
        options.set_max_total_wal_size(MAX_WAL_BYTES);
        options.set_max_background_jobs(2);
        DB::open_cf_descriptors(&options, path, descriptors()).map(Self).map_err(rocksdb::Error::into_string)
    }

    /// Opens for reading beside a process that writes, or without one. Nothing in `path`
    /// is written to.
    ///
    /// Not as a secondary of RocksDB, which is made for this: a secondary that cannot
    /// open a table falls back to an older state without a word, so that damage looks
    /// like records that were never there. Opening read-only is strict, and knows nothing
    /// of writers: a flush meanwhile may move records from a log, which is then deleted,
    /// to a table that the manifest read before does not name. So it is opened again
    /// until the manifest did not change meanwhile.
    pub(crate) fn open_read_only(path: &Path) -> Result<Self, String> {
        let mut options = common();
        // Files that the writer deletes stay readable to who has them open.
        options.set_max_open_files(-1);
        let mut tries = 0;
        loop {
            tries += 1;
            let before = manifest(path);
            let opened = DB::open_cf_descriptors_read_only(&options, path, descriptors(), false);
            let settled = before.is_some() && before == manifest(path);
            match opened {
                Ok(db) if settled => return Ok(Self(db)),
                Err(error) if settled || tries == MAX_OPENS => return Err(error.into_string()),
                Ok(_) if tries == MAX_OPENS => {
                    return Err("its manifest changes all the time: try again".to_owned());
                }
                Ok(_) | Err(_) => {}
            }
        }
    }

    fn handle(&self, family: Family) -> &rocksdb::ColumnFamily {
        self.0.cf_handle(family.name()).expect("invariant: every family is opened with the database")
    }

    pub(crate) fn get(&self, family: Family, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        self.0.get_cf(self.handle(family), key).map_err(|error| read_error(family, error))
    }

    pub(crate) fn exists(&self, family: Family, key: &[u8]) -> Result<bool, ReadError> {
        self.0
            .get_pinned_cf(self.handle(family), key)
            .map(|value| value.is_some())
            .map_err(|error| read_error(family, error))
    }

    /// The rows whose keys start with `prefix`, from `from` on, in order.
    pub(crate) fn scan<'a>(
        &'a self,
        family: Family,
        prefix: Vec<u8>,
        from: &[u8],
    ) -> impl Iterator<Item = Result<Row, ReadError>> + use<'a> {
        let mut options = ReadOptions::default();
        // A scan of a whole family must not push out what is read often.
        options.fill_cache(false);
        self.0
            .iterator_cf_opt(self.handle(family), options, IteratorMode::From(from, Direction::Forward))
            .map(move |row| row.map_err(|error| read_error(family, error)))
            .take_while(move |row| row.as_ref().map_or(true, |(key, _)| key.starts_with(&prefix)))
    }

    /// All rows whose keys start with `prefix`, in order.
    pub(crate) fn rows(&self, family: Family, prefix: Vec<u8>) -> impl Iterator<Item = Result<Row, ReadError>> + '_ {
        let from = prefix.clone();
        self.scan(family, prefix, &from)
    }

    /// The last row whose key is at most `until` and starts with `prefix`.
    pub(crate) fn last(&self, family: Family, prefix: &[u8], until: &[u8]) -> Result<Option<Row>, ReadError> {
        self.0
            .iterator_cf(self.handle(family), IteratorMode::From(until, Direction::Reverse))
            .next()
            .transpose()
            .map(|row| row.filter(|(key, _)| key.starts_with(prefix)))
            .map_err(|error| read_error(family, error))
    }

    pub(crate) fn put(&self, batch: &mut WriteBatch, family: Family, key: &[u8], value: &[u8]) {
        batch.put_cf(self.handle(family), key, value);
    }

    pub(crate) fn delete(&self, batch: &mut WriteBatch, family: Family, key: &[u8]) {
        batch.delete_cf(self.handle(family), key);
    }

    /// Gives the space of what was deleted back to the disk: that is done by compactions alone, and
    /// of files of values by those that look at all of them, and not at the older half.
    pub(crate) fn give_space_back(&self, family: Family) -> Result<(), String> {
        let handle = self.handle(family);
        let of_all =
            [("blob_garbage_collection_age_cutoff", "1.0"), ("blob_garbage_collection_force_threshold", "0.0")];
        let flushed = self.0.set_options_cf(handle, &of_all).and_then(|()| self.0.flush_cf(handle));
        flushed.map_err(rocksdb::Error::into_string)?;
        let mut options = CompactOptions::default();
        options.set_bottommost_level_compaction(BottommostLevelCompaction::Force);
        self.0.compact_range_cf_opt(handle, None::<&[u8]>, None::<&[u8]>, &options);
        Ok(())
    }

    /// Deletes from `from` to `to`, `to` not included.
    pub(crate) fn delete_range(&self, batch: &mut WriteBatch, family: Family, from: &[u8], to: &[u8]) {
        batch.delete_range_cf(self.handle(family), from, to);
    }

    /// Writes a batch; it is on the disk when this returns.
    pub(crate) fn write_synced(&self, batch: WriteBatch) -> Result<(), String> {
        let mut options = WriteOptions::default();
        options.set_sync(true);
        self.0.write_opt(batch, &options).map_err(rocksdb::Error::into_string)
    }

    /// Makes a copy of the database in `path`, which is not there yet; files that do not
    /// change any more are linked where both are on one filesystem.
    pub(crate) fn checkpoint(&self, path: &Path) -> Result<(), String> {
        rocksdb::checkpoint::Checkpoint::new(&self.0)
            .and_then(|checkpoint| checkpoint.create_checkpoint(path))
            .map_err(rocksdb::Error::into_string)
    }
}

/// The name and the length of the manifest in use: both change with every flush.
fn manifest(path: &Path) -> Option<(String, u64)> {
    let current = std::fs::read_to_string(path.join("CURRENT")).ok()?;
    let len = std::fs::metadata(path.join(current.trim_end())).ok()?.len();
    Some((current, len))
}

fn read_error(family: Family, error: rocksdb::Error) -> ReadError {
    ReadError::Rocks { family: family.name(), reason: error.into_string() }
}

fn common() -> Options {
    let mut options = Options::default();
    // Of RocksDB's ways to treat a broken record in a log: point-in-time, its default,
    // silently drops every record after a flipped byte, acknowledged ones too; absolute
    // consistency refuses the cut-off last record that any crash may leave. This one
    // takes a cut-off record at the end for what it is and refuses to open on any other
    // damage. What it cannot tell from a cut-off record (a flipped length in the last
    // block) `crate::logfile` finds before RocksDB opens.
    options.set_wal_recovery_mode(DBRecoveryMode::TolerateCorruptedTailRecords);
    options.set_paranoid_checks(true);
    // A log of writes that was lost or cut after it was closed is an error. For readers too: without
    // it, RocksDB wants to strike the logs that the writer noted off the manifest, and crashes where it
    // may not write to that.
    options.set_track_and_verify_wals_in_manifest(true);
    options.set_info_logger(InfoLogger::new_callback_logger(LogLevel::Warn, log));
    options
}

/// RocksDB's own messages, from warnings on.
fn log(level: LogLevel, message: &str) {
    let message = message.trim_end();
    match level {
        LogLevel::Error | LogLevel::Fatal => tracing::error!(target: "rocksdb", "{message}"),
        LogLevel::Warn => tracing::warn!(target: "rocksdb", "{message}"),
        LogLevel::Debug | LogLevel::Info | LogLevel::Header => tracing::debug!(target: "rocksdb", "{message}"),
    }
}

fn descriptors() -> Vec<ColumnFamilyDescriptor> {
    Family::ALL.map(|family| ColumnFamilyDescriptor::new(family.name(), family_options(family))).into()
}

fn family_options(family: Family) -> Options {
    let mut options = Options::default();
    let mut table = BlockBasedOptions::default();
    table.set_bloom_filter(10.0, false);
    options.set_block_based_table_factory(&table);
    options.set_compression_type(DBCompressionType::Lz4);
    options.set_write_buffer_size(WRITE_BUFFER_BYTES);
    if family == Family::Blobs {
        options.set_write_buffer_size(BLOB_WRITE_BUFFER_BYTES);
        options.set_enable_blob_files(true);
        options.set_min_blob_size(MIN_BLOB_BYTES);
        options.set_blob_file_size(BLOB_FILE_BYTES);
        // Screenshots are PNG: packed already.
        options.set_blob_compression_type(DBCompressionType::None);
        // Space of deleted blobs is freed by compactions only, and only with these: look
        // at the older half, and rewrite a file of which a quarter is garbage.
        options.set_enable_blob_gc(true);
        options.set_blob_gc_age_cutoff(0.5);
        options.set_blob_gc_force_threshold(0.25);
    }
    options
}
