//! Opening, making and copying a store's folder.
//!
//! ```text
//! FOLDER/        0700
//!   lock         who writes to it; locked while somebody does
//!   format       `longhaul-store 2`: read before RocksDB touches anything
//!   db/          RocksDB's files
//!   restored     only in a checkpoint, until it is opened
//! ```

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, OnceLock, mpsc};

use rocksdb::WriteBatch;

use crate::commit::JournalEnd;
use crate::error::{OpenError, ReadError};
use crate::family::Family;
use crate::keys::{self, Kind};
use crate::lock::StoreLock;
use crate::place;
use crate::reader::{Reader, decode};
use crate::rocks::Rocks;
use crate::store::Store;
use crate::writer::{Failure, Writer};
use crate::{format, logfile, verify};

/// The folder of RocksDB's files.
pub(crate) const DATABASE: &str = "db";

/// The file that names the format.
const FORMAT: &str = "format";

/// What precedes the number in it.
const FORMAT_PREFIX: &str = "longhaul-store ";

/// The file that says that the folder is a copy.
pub(crate) const RESTORED: &str = "restored";

/// What a folder without a store may hold: what an opening that was cut short leaves.
const LEFTOVERS: [&str; 2] = ["lock", "format.new"];

/// How much must be left on the disk for a write to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceFloor {
    /// For blobs, steps and logs.
    pub bulk: u64,
    /// For the journal and its projections: less, so that it can still be written down
    /// what became of what could not be stored.
    pub journal: u64,
}

impl Default for SpaceFloor {
    /// What is in RocksDB's buffers has to be flushed, whatever happens, into files
    /// beside its logs: 64 MiB of blobs and a few times 16 MiB, doubled while a flush
    /// runs, and a compaction writes new files before it deletes old ones.
    fn default() -> Self {
        Self { bulk: 1024 * 1024 * 1024, journal: 512 * 1024 * 1024 }
    }
}

/// How a store is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// A random number: the incarnation of a store that is made or restored by this.
    pub incarnation: u64,
    /// How much must be left on the disk.
    pub floor: SpaceFloor,
}

impl OpenOptions {
    /// The usual options; `incarnation` is a random number.
    #[must_use]
    pub fn new(incarnation: u64) -> Self {
        Self { incarnation, floor: SpaceFloor::default() }
    }
}

/// What a person should know about a store that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warning {
    /// It lies on a network filesystem.
    NetworkFilesystem(&'static str),
    /// It was opened from a checkpoint for the first time: its epochs went back, and it
    /// has a new incarnation.
    Restored,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NetworkFilesystem(name) => write!(
                f,
                "the store lies on {name}: its lock may not hold against other hosts, and a power loss may take \
                 records that were acknowledged; a local disk is safe and faster"
            ),
            Self::Restored => f.write_str(
                "the store was restored from a checkpoint: what happened after the checkpoint is not known to it",
            ),
        }
    }
}

pub(crate) fn failed<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> OpenError + 'a {
    move |source| OpenError::File { action, path: path.to_owned(), source }
}

pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<Store, OpenError> {
    // What is not a store is left as it is: its mode too, and no lock in it.
    let is_store = || match check_format(path) {
        Ok(_) => Ok(true),
        Err(OpenError::NotAStore { .. }) => check_empty(path).map(|()| false),
        Err(other) => Err(other),
    };
    is_store()?;
    place::make_private_folder(path).map_err(failed("make", path))?;
    let lock = StoreLock::take(path)?;
    if !is_store()? {
        begin(path)?;
    }
    let mut warnings = Vec::new();
    if let Some(name) = place::network_filesystem(path).map_err(failed("look at", path))? {
        warnings.push(Warning::NetworkFilesystem(name));
    }
    let database = path.join(DATABASE);
    check_logs(&database)?;
    let rocks =
        Rocks::open(&database).map_err(|reason| OpenError::Rocks { path: path.to_owned(), reason }).map(Arc::new)?;
    if settle_incarnation(&rocks, path, options.incarnation)? {
        warnings.push(Warning::Restored);
    }
    // The records of an earlier format are those of this one; an earlier program is kept out.
    if check_format(path)? != known() {
        write_format(path)?;
        place::sync_folder(path).map_err(failed("sync", path))?;
    }
    place::make_files_private(&database).map_err(failed("set the mode of the files in", &database))?;

    let reader = Reader::new(Arc::clone(&rocks), path)?;
    let damaged = |source| OpenError::Damaged { path: path.to_owned(), source };
    let journal = JournalEnd {
        last: reader.last_sequence().map_err(damaged)?,
        snapshot: reader.snapshot().map_err(damaged)?.map_or(0, |snapshot| snapshot.through),
    };
    let (sender, commands) = mpsc::channel();
    let failure: Failure = Arc::new(OnceLock::new());
    let writer = Writer {
        rocks,
        commands,
        journal,
        folder: path.to_owned(),
        floor: options.floor,
        failure: Arc::clone(&failure),
    };
    let thread = std::thread::Builder::new()
        .name("store-writer".to_owned())
        .spawn(move || writer.run())
        .map_err(failed("start the writer thread of", path))?;
    Ok(Store::assemble(reader, sender, thread, failure, warnings, lock))
}

/// That no log has damage that RocksDB would take for a record that a crash cut off.
pub(crate) fn check_logs(database: &Path) -> Result<(), OpenError> {
    for (file, _) in verify::log_files(database).map_err(failed("read", database))? {
        match logfile::scan(&file) {
            Ok(found) => match found.broken {
                Some(broken) if broken.damage => return Err(OpenError::BrokenLog { file, offset: broken.offset }),
                Some(_) | None => {}
            },
            // A process that writes deletes a log once what is in it is elsewhere.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("read", &file)(error)),
        }
    }
    Ok(())
}

/// The format of the store that the folder holds, which is known.
pub(crate) fn check_format(path: &Path) -> Result<u32, OpenError> {
    let file = path.join(FORMAT);
    let content = match fs::read(&file) {
        Ok(content) => content,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Err(OpenError::NotAStore { path: path.to_owned() });
        }
        Err(error) => return Err(failed("read", &file)(error)),
    };
    let text = String::from_utf8_lossy(&content);
    let version = text.trim_end().strip_prefix(FORMAT_PREFIX);
    if let Some(version) = version.and_then(|version| version.parse().ok()).filter(|version| format::is_known(*version))
    {
        return Ok(version);
    }
    let found = version.unwrap_or_else(|| text.trim_end()).chars().take(40).collect::<String>();
    Err(unknown_format(path, found.escape_debug().to_string()))
}

const fn known() -> u32 {
    format::STORE_FORMAT
}

fn unknown_format(path: &Path, found: String) -> OpenError {
    OpenError::UnknownFormat { path: path.to_owned(), found, known: known() }
}

/// That the folder is not there or may become a store.
fn check_empty(path: &Path) -> Result<(), OpenError> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(failed("read", path))?,
    };
    for entry in entries {
        let name = entry.map_err(failed("read", path))?.file_name();
        if !LEFTOVERS.iter().any(|leftover| name == *leftover) {
            return Err(OpenError::NotEmpty { path: path.to_owned() });
        }
    }
    Ok(())
}

/// Turns an empty folder into a store's: the format is there before RocksDB is.
fn begin(path: &Path) -> Result<(), OpenError> {
    write_format(path)?;
    place::make_private_folder(&path.join(DATABASE)).map_err(failed("make", path))?;
    place::sync_folder(path).map_err(failed("sync", path))?;
    place::sync_parent(path).map_err(failed("sync the parent of", path))
}

pub(crate) fn write_format(path: &Path) -> Result<(), OpenError> {
    write_private(path, "format.new", format!("{FORMAT_PREFIX}{}\n", known()).as_bytes())?;
    fs::rename(path.join("format.new"), path.join(FORMAT)).map_err(failed("write the format of", path))
}

pub(crate) fn write_private(folder: &Path, name: &str, content: &[u8]) -> Result<(), OpenError> {
    let path = folder.join(name);
    let write = || {
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        file.write_all(content)?;
        file.sync_all()
    };
    write().map_err(failed("write", &path))
}

/// Gives a new store its format and incarnation, and a restored one a new incarnation.
/// Answers whether it was restored.
fn settle_incarnation(rocks: &Rocks, path: &Path, incarnation: u64) -> Result<bool, OpenError> {
    let damaged = |source| OpenError::Damaged { path: path.to_owned(), source };
    let marker = path.join(RESTORED);
    let restored = marker.try_exists().map_err(failed("look at", &marker))?;
    let known_format = read_meta::<u32>(rocks, Kind::Format).map_err(damaged)?;
    match known_format {
        Some(format) if !format::is_known(format) => return Err(unknown_format(path, format.to_string())),
        Some(format) if format == known() && !restored => return Ok(false),
        Some(_) | None => {}
    }
    let mut batch = WriteBatch::default();
    // One that is only raised to this format stays itself.
    let own = (restored || known_format.is_none()).then(|| format::encode_json(&incarnation));
    let began = restored.then(|| format::encode_json(&incarnation));
    let values =
        [(Kind::Format, Some(format::encode_json(&known()))), (Kind::Incarnation, own), (Kind::Restored, began)];
    for (kind, value) in values.into_iter().filter_map(|(kind, value)| Some((kind, value?))) {
        let value = value.map_err(|error| OpenError::Rocks { path: path.to_owned(), reason: error.to_string() })?;
        rocks.put(&mut batch, Family::Meta, &keys::meta(kind), &value);
    }
    rocks.write_synced(batch).map_err(|reason| OpenError::Rocks { path: path.to_owned(), reason })?;
    if restored {
        fs::remove_file(&marker).map_err(failed("remove", &marker))?;
    }
    Ok(restored)
}

fn read_meta<T: serde::de::DeserializeOwned>(rocks: &Rocks, kind: Kind) -> Result<Option<T>, ReadError> {
    let key = keys::meta(kind);
    rocks.get(Family::Meta, &key)?.map(|value| decode(Family::Meta, &key, &value)).transpose()
}

/// The incarnation of a store that has one, whose format is known.
pub(crate) fn read_incarnation(rocks: &Rocks, path: &Path) -> Result<u64, OpenError> {
    let damaged = |source| OpenError::Damaged { path: path.to_owned(), source };
    match read_meta::<u32>(rocks, Kind::Format).map_err(damaged)? {
        Some(format) if format::is_known(format) => {}
        Some(format) => return Err(unknown_format(path, format.to_string())),
        // Its making was cut short, or is under way.
        None => return Err(OpenError::NotAStore { path: path.to_owned() }),
    }
    read_meta(rocks, Kind::Incarnation).map_err(damaged)?.ok_or_else(|| {
        damaged(crate::reader::damaged(Family::Meta, &keys::meta(Kind::Incarnation), "it is missing".to_owned()))
    })
}

/// Whether the incarnation of a store began with a backup.
pub(crate) fn is_restored(rocks: &Rocks, incarnation: u64) -> Result<bool, ReadError> {
    Ok(read_meta::<u64>(rocks, Kind::Restored)? == Some(incarnation))
}

/// Copies the store in the folder `path`, which no process has open, into the folder
/// `copy`, which is not there yet.
///
/// # Errors
///
/// A process has the store open, it is no store or cannot be opened, or the copy failed. A
/// copy that was cut short is no store.
pub fn backup(path: &Path, copy: &Path, options: &OpenOptions) -> Result<(), OpenError> {
    // Opening makes a store where there is none; a copy of nothing is nobody's wish.
    check_format(path)?;
    open(path, options)?.checkpoint(copy)
}

/// Copies an open store into a new folder.
pub(crate) fn checkpoint(rocks: &Rocks, path: &Path) -> Result<(), OpenError> {
    if path.try_exists().map_err(failed("look at", path))? {
        return Err(failed("make", path)(io::ErrorKind::AlreadyExists.into()));
    }
    place::make_private_folder(path).map_err(failed("make", path))?;
    // Marked as a copy first: a copy that is cut short has no format and is no store.
    write_private(path, RESTORED, b"")?;
    let database = path.join(DATABASE);
    rocks.checkpoint(&database).map_err(|reason| OpenError::Rocks { path: path.to_owned(), reason })?;
    place::make_files_private(&database).map_err(failed("set the mode of the files in", &database))?;
    write_format(path)?;
    place::sync_folder(path).map_err(failed("sync", path))?;
    place::sync_parent(path).map_err(failed("sync the parent of", path))
}
