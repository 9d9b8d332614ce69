//! The spool: what an attempt recorded and the coordinator has not acknowledged yet, on disk.
//!
//! One folder per attempt, with one append-only file of records and the blobs that they
//! name. A record is its length (4 bytes, big-endian), its JSON, and the first 8 bytes of the
//! JSON's BLAKE3; a record that a killed worker wrote half is cut off when the file is read
//! again. A model call has two records: one before it is made, and one when it is settled; the
//! first without the second is a call whose fate nobody knows. The file is not synced: it has to survive the worker's death, which the page cache
//! does, while the death of a node loses the step in flight and what was not acknowledged.

mod calls;
mod outbox;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use longhaul_core::call::PurseKind;
use longhaul_core::digest::Digest;
use longhaul_core::ids::Epoch;
use longhaul_core::money::Money;
use longhaul_core::notes::AttemptNotes;
use longhaul_core::outcome::AttemptEnd;
use longhaul_core::purse::PurseState;
use longhaul_core::resume::Resumed;
use longhaul_proto::convert::LeaseRef;
use serde::{Deserialize, Serialize};

pub use calls::{OpenCall, SettledCall};
pub use outbox::{Outbox, Outgoing};

/// The largest record; a longer length is a torn or foreign file.
const MAX_RECORD: usize = 64 * 1024 * 1024;

const CHECK_BYTES: usize = 8;

const RECORDS: &str = "records";
const BLOBS: &str = "blobs";

/// A failure of the spool.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// A file of the spool.
    #[error("cannot {what} {}", path.display())]
    File {
        /// What was to be done.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The folder is not one of a spool.
    #[error("{} is not a folder of a spool", path.display())]
    Foreign {
        /// The folder.
        path: PathBuf,
    },
    /// Nothing more is recorded of the attempt.
    #[error("the attempt is over: nothing more is recorded of it")]
    Closed,
    /// A record that cannot be expressed.
    #[error("a record cannot be written as JSON")]
    Json(#[source] serde_json::Error),
}

impl SpoolError {
    fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { what, path, source }
    }

    /// Whether the disk is full.
    #[must_use]
    pub fn is_disk(&self) -> bool {
        matches!(self, Self::File { .. })
    }
}

/// One record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
#[expect(clippy::large_enum_variant, reason = "an attempt has one end, and as many steps and calls as it likes")]
pub enum Record {
    /// A step.
    Step {
        /// Its number.
        number: u32,
        /// Its screenshot.
        png: Digest,
        /// The core StepRecord, as the JSON whose digest is the step's: kept as text, since
        /// a number that is read and written again may come out as another text.
        json: String,
    },
    /// A model call that is about to be made. It stays here: what is delivered is the call once
    /// it is settled.
    Reserved(OpenCall),
    /// A model call, settled.
    Call(SettledCall),
    /// What a purse was granted; it stays here too.
    Granted {
        /// Which purse.
        purse: PurseKind,
        /// The sum of grants.
        granted: Money,
    },
    /// The attempt stands where the ones before it were cut off. Its own steps come after it.
    Resumed {
        /// What it goes on from, and how it got there.
        record: Resumed,
    },
    /// The log of a hook, of the verifier, of the sandbox; its text is a blob.
    Log {
        /// Its name.
        name: String,
        /// Its text.
        blob: Digest,
    },
    /// The end of the attempt: the last record.
    End {
        /// How it ended.
        end: AttemptEnd,
        /// What is noted of it.
        notes: AttemptNotes,
        /// How many steps it has.
        steps: u32,
        /// The digest of the last of them.
        last_step: Option<Digest>,
        /// How many model calls it has.
        #[serde(default)]
        calls: u32,
        /// What its purses have come to.
        #[serde(default)]
        purses: Vec<(PurseKind, PurseState)>,
    },
}

impl Record {
    /// The blobs that have to be at the coordinator before it.
    #[must_use]
    pub fn blobs(&self) -> &[Digest] {
        match self {
            Self::Step { png, .. } => std::slice::from_ref(png),
            Self::Log { blob, .. } => std::slice::from_ref(blob),
            Self::Reserved(call) => &call.blobs,
            Self::Call(call) => &call.blobs,
            Self::Granted { .. } | Self::Resumed { .. } | Self::End { .. } => &[],
        }
    }
}

/// How many bytes wait, over all attempts of a worker.
#[derive(Clone, Debug, Default)]
pub struct Meter(Arc<AtomicU64>);

impl Meter {
    /// The bytes that wait now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    fn take(&self, bytes: u64) {
        // Saturating: an estimate must never wrap to "full for ever".
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| Some(now.saturating_sub(bytes)));
    }
}

/// The spool of one attempt, on disk. [`Outbox`] says what of it is sent when.
#[derive(Debug)]
pub struct AttemptSpool {
    lease: LeaseRef,
    folder: PathBuf,
    file: File,
    /// The blobs that wait, with their sizes.
    blobs: BTreeMap<Digest, u64>,
    meter: Meter,
}

impl AttemptSpool {
    /// A new, empty spool below `root`.
    ///
    /// # Errors
    ///
    /// Its folder is there already, or cannot be made.
    pub fn create(root: &Path, lease: LeaseRef, meter: Meter) -> Result<Self, SpoolError> {
        let folder = root.join(folder_name(&lease));
        fs::create_dir_all(folder.join(BLOBS)).map_err(SpoolError::file("create", &folder))?;
        let path = folder.join(RECORDS);
        let file =
            OpenOptions::new().append(true).create_new(true).open(&path).map_err(SpoolError::file("create", &path))?;
        Ok(Self { lease, folder, file, blobs: BTreeMap::new(), meter })
    }

    /// Reads what an earlier worker left in `folder`; a torn end is cut off.
    ///
    /// # Errors
    ///
    /// The folder is not one of a spool, or cannot be read.
    pub fn recover(folder: &Path, meter: Meter) -> Result<(Self, Vec<Record>), SpoolError> {
        let foreign = || SpoolError::Foreign { path: folder.to_owned() };
        let name = folder.file_name().and_then(|name| name.to_str()).ok_or_else(foreign)?;
        let lease = lease_of(name).ok_or_else(foreign)?;
        let path = folder.join(RECORDS);
        let mut bytes = Vec::new();
        let mut file =
            OpenOptions::new().read(true).append(true).open(&path).map_err(SpoolError::file("open", &path))?;
        file.read_to_end(&mut bytes).map_err(SpoolError::file("read", &path))?;
        let (records, whole) = parse(&bytes);
        if whole < bytes.len() {
            tracing::warn!(path = %path.display(), cut = bytes.len() - whole, "the end of a spool was torn");
            file.set_len(whole as u64).map_err(SpoolError::file("truncate", &path))?;
        }
        let mut blobs = BTreeMap::new();
        let blob_folder = folder.join(BLOBS);
        for entry in fs::read_dir(&blob_folder).map_err(SpoolError::file("list", &blob_folder))? {
            let entry = entry.map_err(SpoolError::file("list", &blob_folder))?;
            if let Some(digest) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
                blobs.insert(digest, entry.metadata().map_or(0, |meta| meta.len()));
            }
        }
        meter.add(blobs.values().sum());
        Ok((Self { lease, folder: folder.to_owned(), file, blobs, meter }, records))
    }

    /// The attempt.
    #[must_use]
    pub const fn lease(&self) -> LeaseRef {
        self.lease
    }

    /// Keeps blobs and appends the record that names them.
    ///
    /// # Errors
    ///
    /// The disk is full or fails; then nothing of the record counts.
    pub fn append(&mut self, record: &Record, blobs: &[(Digest, &[u8])]) -> Result<(), SpoolError> {
        for (digest, bytes) in blobs {
            if self.blobs.contains_key(digest) {
                continue;
            }
            // Beside and renamed: a blob that has its name is whole.
            let path = self.blob_path(digest);
            let beside = path.with_extension("part");
            fs::write(&beside, bytes).map_err(SpoolError::file("write", &beside))?;
            fs::rename(&beside, &path).map_err(SpoolError::file("rename into place", &path))?;
            self.blobs.insert(*digest, bytes.len() as u64);
            self.meter.add(bytes.len() as u64);
        }
        let json = serde_json::to_vec(record).map_err(SpoolError::Json)?;
        let path = self.folder.join(RECORDS);
        let before = self.file.metadata().map_err(SpoolError::file("look at", &path))?.len();
        let written = self.file.write_all(&frame(&json));
        if let Err(error) = written {
            // What was written of it would hide every later record.
            self.file.set_len(before).map_err(SpoolError::file("truncate", &path))?;
            return Err(SpoolError::file("append to", &path)(error));
        }
        Ok(())
    }

    /// A blob that waits, if it does.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    pub fn blob(&self, digest: &Digest) -> Result<Option<Vec<u8>>, SpoolError> {
        let path = self.blob_path(digest);
        match fs::read(&path) {
            Ok(bytes) if Digest::of(&bytes) == *digest => Ok(Some(bytes)),
            Ok(_) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(SpoolError::file("read", &path)(error)),
        }
    }

    /// Drops a blob that is at the coordinator.
    fn drop_blob(&mut self, digest: &Digest) {
        if let Some(bytes) = self.blobs.remove(digest) {
            self.meter.take(bytes);
            let path = self.blob_path(digest);
            if let Err(error) = fs::remove_file(&path) {
                tracing::warn!(path = %path.display(), %error, "a delivered blob stays on disk");
            }
        }
    }

    /// Removes it all: everything was delivered, or nobody wants it.
    ///
    /// # Errors
    ///
    /// The folder cannot be removed.
    pub fn remove(&mut self) -> Result<(), SpoolError> {
        self.meter.take(std::mem::take(&mut self.blobs).into_values().sum());
        match fs::remove_dir_all(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(SpoolError::file("remove", &self.folder)(error))
            }
            _ => Ok(()),
        }
    }

    fn blob_path(&self, digest: &Digest) -> PathBuf {
        self.folder.join(BLOBS).join(digest.to_string())
    }
}

fn frame(json: &[u8]) -> Vec<u8> {
    let length = u32::try_from(json.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(json.len() + 4 + CHECK_BYTES);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(json);
    bytes.extend_from_slice(&Digest::of(json).as_bytes()[..CHECK_BYTES]);
    bytes
}

/// The whole records at the start of `bytes`, and how many bytes they take.
fn parse(bytes: &[u8]) -> (Vec<Record>, usize) {
    let mut records = Vec::new();
    let mut at = 0;
    while let Some((record, next)) = parse_one(bytes, at) {
        records.push(record);
        at = next;
    }
    (records, at)
}

fn parse_one(bytes: &[u8], at: usize) -> Option<(Record, usize)> {
    let length = u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize;
    if length > MAX_RECORD {
        return None;
    }
    let json = bytes.get(at + 4..at + 4 + length)?;
    let next = at + 4 + length + CHECK_BYTES;
    if bytes.get(at + 4 + length..next)? != &Digest::of(json).as_bytes()[..CHECK_BYTES] {
        return None;
    }
    Some((serde_json::from_slice(json).ok()?, next))
}

/// `RUN-INDEX-NUMBER-EPOCH`: an attempt's name without slashes, and its epoch.
fn folder_name(lease: &LeaseRef) -> String {
    format!("{}-{}", lease.attempt.to_string().replace('/', "-"), lease.epoch)
}

fn lease_of(name: &str) -> Option<LeaseRef> {
    let (attempt, epoch) = name.rsplit_once('-')?;
    Some(LeaseRef { attempt: attempt.replace('-', "/").parse().ok()?, epoch: Epoch(epoch.parse().ok()?) })
}

#[cfg(test)]
pub(crate) mod tests {
    use longhaul_core::ids::{AttemptId, EpisodeId, RunId};
    use longhaul_core::time::Timestamp;
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn lease() -> LeaseRef {
        let episode = EpisodeId { run: RunId::new(Timestamp(1), 1), index: 3 };
        LeaseRef { attempt: AttemptId { episode, number: 2 }, epoch: Epoch(7) }
    }

    pub(crate) fn step(number: u32, png: &[u8]) -> Record {
        Record::Step { number, png: Digest::of(png), json: format!("{{\"number\":{number}}}") }
    }

    #[test]
    fn what_was_appended_is_read_back_in_order_with_its_blobs() {
        let root = tempfile::tempdir().unwrap();
        let mut spool = AttemptSpool::create(root.path(), lease(), Meter::default()).unwrap();
        spool.append(&step(0, b"zero"), &[(Digest::of(b"zero"), b"zero")]).unwrap();
        spool.append(&step(1, b"one"), &[(Digest::of(b"one"), b"one")]).unwrap();
        let folder = spool.folder.clone();
        drop(spool);
        let meter = Meter::default();
        let (spool, records) = AttemptSpool::recover(&folder, meter.clone()).unwrap();
        assert_eq!(records, [step(0, b"zero"), step(1, b"one")]);
        assert_eq!(spool.lease(), lease());
        assert_eq!(spool.blob(&Digest::of(b"one")).unwrap().as_deref(), Some(&b"one"[..]));
        assert_eq!(meter.bytes(), 7);
    }

    #[test]
    fn a_torn_record_is_cut_off_and_the_spool_goes_on_after_it() {
        let root = tempfile::tempdir().unwrap();
        let mut spool = AttemptSpool::create(root.path(), lease(), Meter::default()).unwrap();
        spool.append(&step(0, b"x"), &[(Digest::of(b"x"), b"x")]).unwrap();
        spool.append(&step(1, b"x"), &[(Digest::of(b"x"), b"x")]).unwrap();
        let folder = spool.folder.clone();
        drop(spool);
        let path = folder.join(RECORDS);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
        let (mut spool, records) = AttemptSpool::recover(&folder, Meter::default()).unwrap();
        assert_eq!(records, [step(0, b"x")]);
        spool.append(&step(1, b"y"), &[(Digest::of(b"y"), b"y")]).unwrap();
        drop(spool);
        let (_, records) = AttemptSpool::recover(&folder, Meter::default()).unwrap();
        assert_eq!(records, [step(0, b"x"), step(1, b"y")]);
    }

    #[test]
    fn a_folder_of_another_name_is_not_a_spool() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("notes");
        fs::create_dir(&folder).unwrap();
        assert!(matches!(AttemptSpool::recover(&folder, Meter::default()), Err(SpoolError::Foreign { .. })));
    }

    proptest! {
        /// However the file is cut or one of its bytes flipped, what is read is a prefix of what was written.
        #[test]
        fn what_is_read_is_always_a_prefix(cut in 0_usize..2000, flip in proptest::option::of((0_usize..2000, 1_u8..=255))) {
            let written: Vec<Record> = (0..5).map(|number| step(number, b"png")).collect();
            let mut bytes: Vec<u8> = written
                .iter()
                .flat_map(|record| frame(&serde_json::to_vec(record).unwrap()))
                .collect();
            bytes.truncate(cut);
            if let Some((at, with)) = flip && let Some(byte) = bytes.get_mut(at) {
                *byte ^= with;
            }
            let (read, whole) = parse(&bytes);
            prop_assert!(whole <= bytes.len());
            prop_assert_eq!(&written[..read.len()], &read[..]);
        }
    }
}
