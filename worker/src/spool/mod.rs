//! The spool: what an attempt recorded and the coordinator has not acknowledged yet, on disk.
//!
//! One folder per attempt, with one append-only file of records ([`frames`]) and the blobs that they
//! name. A record that a killed worker wrote half is cut off when the file is read again; one that
//! the disk has changed is [`Damage`], with all that comes after it: what stands before it is
//! delivered, the rest is kept aside and reported, and the money that it may have said something of
//! counts as spent. A model call has two records: one before it is made, and one when it is
//! settled; the first without the second is a call whose fate nobody knows. The file is not synced:
//! it has to survive the worker's death, which the page cache does, while the death of a node loses
//! the step in flight and what was not acknowledged.

mod calls;
mod frames;
mod outbox;
mod room;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

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

use self::frames::{Parsed, Rest, frame, parse};
pub use calls::{OpenCall, SettledCall};
pub use outbox::{Outbox, Outgoing};
pub use room::Meter;
pub(crate) use room::Room;

const RECORDS: &str = "records";

/// The records as they were before something of them was found to be damaged.
const DAMAGED: &str = "records.damaged";

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
    /// A blob is not what was written.
    #[error("{} is not what was written to it", path.display())]
    Changed {
        /// Its file.
        path: PathBuf,
    },
    /// Something of the attempt's spool was found to be damaged; nothing is recorded after it.
    #[error("the spool of the attempt was damaged on the node's disk: {0}")]
    Broken(String),
    /// A record of a later program.
    #[error("{} has a record that this program does not know: {why}", path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: String,
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

    /// Whether the disk is full, or failed.
    #[must_use]
    pub const fn is_disk(&self) -> bool {
        matches!(self, Self::File { .. } | Self::Changed { .. } | Self::Broken(_))
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

/// What of a spool was damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// How many bytes of its records are as they were written.
    pub whole: u64,
    /// How many bytes of records there were.
    pub of: u64,
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "of {} bytes of records the first {} are as they were written", self.of, self.whole)
    }
}

/// A spool that was read again.
#[derive(Debug)]
pub struct Recovered {
    /// The spool, which goes on after its records.
    pub spool: AttemptSpool,
    /// The records.
    pub records: Vec<Record>,
    /// What was damaged, if anything was, now or when it was read before.
    pub damage: Option<Damage>,
}

/// The spool of one attempt, on disk. [`Outbox`] says what of it is sent when.
#[derive(Debug)]
pub struct AttemptSpool {
    lease: LeaseRef,
    folder: PathBuf,
    file: File,
    /// Where each record begins, and where the last one ends.
    offsets: Vec<u64>,
    end: u64,
    /// What was written after that has to be cut off first.
    torn: bool,
    /// The bytes of records that wait.
    waiting: u64,
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
        let (offsets, blobs) = (Vec::new(), BTreeMap::new());
        Ok(Self { lease, folder, file, offsets, end: 0, torn: false, waiting: 0, blobs, meter })
    }

    /// Reads what an earlier worker left in `folder`. A torn end is cut off; what is damaged is kept
    /// aside with all that comes after it, and said to be so each time.
    ///
    /// # Errors
    ///
    /// The folder is not one of a spool, cannot be read, or holds what only a later program knows.
    pub fn recover(folder: &Path, meter: Meter) -> Result<Recovered, SpoolError> {
        let foreign = || SpoolError::Foreign { path: folder.to_owned() };
        let name = folder.file_name().and_then(|name| name.to_str()).ok_or_else(foreign)?;
        let lease = lease_of(name).ok_or_else(foreign)?;
        let path = folder.join(RECORDS);
        let mut bytes = Vec::new();
        // Whoever made the folder may have been killed before it made the file.
        let open = OpenOptions::new().read(true).append(true).create(true).open(&path);
        let mut file = open.map_err(SpoolError::file("open", &path))?;
        file.read_to_end(&mut bytes).map_err(SpoolError::file("read", &path))?;
        let Parsed { records, whole, rest } = parse(&bytes);
        match rest {
            Rest::Nothing => {}
            Rest::Torn => {
                tracing::warn!(path = %path.display(), cut = bytes.len() - whole, "the end of a spool was torn");
            }
            Rest::Damaged => set_aside(folder)?,
            Rest::Unknown(why) => return Err(SpoolError::Unknown { path, why }),
        }
        if whole < bytes.len() {
            file.set_len(whole as u64).map_err(SpoolError::file("truncate", &path))?;
        }
        // Said again to whoever reads it after a further kill.
        let aside = fs::metadata(folder.join(DAMAGED)).ok();
        let damage = aside.map(|aside| Damage { whole: whole as u64, of: aside.len() });
        let mut blobs = BTreeMap::new();
        let blob_folder = folder.join(BLOBS);
        fs::create_dir_all(&blob_folder).map_err(SpoolError::file("create", &blob_folder))?;
        for entry in fs::read_dir(&blob_folder).map_err(SpoolError::file("list", &blob_folder))? {
            let entry = entry.map_err(SpoolError::file("list", &blob_folder))?;
            if let Some(digest) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
                blobs.insert(digest, entry.metadata().map_or(0, |meta| meta.len()));
            }
        }
        meter.add(blobs.values().sum::<u64>() + whole as u64);
        let (offsets, records) = records.into_iter().map(|(at, record)| (at as u64, record)).unzip();
        let (folder, end) = (folder.to_owned(), whole as u64);
        let spool = Self { lease, folder, file, offsets, end, torn: false, waiting: end, blobs, meter };
        Ok(Recovered { spool, records, damage })
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
            if let Err(error) = fs::write(&beside, bytes) {
                // What there is of it would keep a full disk full, and the end has to be recorded yet.
                let _ = fs::remove_file(&beside);
                return Err(SpoolError::file("write", &beside)(error));
            }
            fs::rename(&beside, &path).map_err(SpoolError::file("rename into place", &path))?;
            self.blobs.insert(*digest, bytes.len() as u64);
            self.meter.add(bytes.len() as u64);
        }
        let json = serde_json::to_vec(record).map_err(SpoolError::Json)?;
        let framed = frame(&json);
        let path = self.folder.join(RECORDS);
        if self.torn {
            self.file.set_len(self.end).map_err(SpoolError::file("truncate", &path))?;
            self.torn = false;
        }
        if let Err(error) = self.file.write_all(&framed) {
            // What was written of it would hide every later record.
            self.torn = self.file.set_len(self.end).is_err();
            return Err(SpoolError::file("append to", &path)(error));
        }
        self.offsets.push(self.end);
        let length = framed.len() as u64;
        self.end += length;
        self.waiting += length;
        self.meter.add(length);
        Ok(())
    }

    /// How many records there are.
    fn count(&self) -> usize {
        self.offsets.len()
    }

    /// Records from this one on wait; the earlier ones were delivered.
    fn wait_from(&mut self, index: usize) {
        let waiting = self.end - self.offsets.get(index).copied().unwrap_or(self.end);
        self.meter.add(waiting);
        self.meter.take(std::mem::replace(&mut self.waiting, waiting));
    }

    /// Keeps the records aside as they are, and cuts them off from this one on.
    fn cut(&mut self, index: usize) -> Result<(), SpoolError> {
        let Some(at) = self.offsets.get(index).copied() else { return Ok(()) };
        set_aside(&self.folder)?;
        let path = self.folder.join(RECORDS);
        self.file.set_len(at).map_err(SpoolError::file("truncate", &path))?;
        self.offsets.truncate(index);
        let gone = (self.end - at).min(self.waiting);
        self.end = at;
        self.waiting -= gone;
        self.meter.take(gone);
        Ok(())
    }

    /// A blob that waits, if it does.
    ///
    /// # Errors
    ///
    /// It cannot be read, or is not what was written.
    pub fn blob(&self, digest: &Digest) -> Result<Option<Vec<u8>>, SpoolError> {
        if !self.blobs.contains_key(digest) {
            return Ok(None);
        }
        let path = self.blob_path(digest);
        match fs::read(&path) {
            Ok(bytes) if Digest::of(&bytes) == *digest => Ok(Some(bytes)),
            Ok(_) => Err(SpoolError::Changed { path }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(SpoolError::Changed { path }),
            // What the disk does not give back any more would be tried for ever.
            Err(error) if error.raw_os_error() == Some(nix::libc::EIO) => Err(SpoolError::Changed { path }),
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

    /// Leaves it where it is: nobody takes it. It waits no more.
    pub fn leave(&mut self) -> &Path {
        self.meter.take(std::mem::take(&mut self.blobs).into_values().sum());
        self.meter.take(std::mem::take(&mut self.waiting));
        &self.folder
    }

    /// Removes it all: everything was delivered, or nobody wants it.
    ///
    /// # Errors
    ///
    /// The folder cannot be removed.
    pub fn remove(&mut self) -> Result<(), SpoolError> {
        self.leave();
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

/// Keeps a copy of the records as they are, unless there is one from before.
fn set_aside(folder: &Path) -> Result<(), SpoolError> {
    let (path, aside) = (folder.join(RECORDS), folder.join(DAMAGED));
    if aside.exists() {
        return Ok(());
    }
    let fresh = folder.join("records.copy");
    fs::copy(&path, &fresh).map_err(SpoolError::file("copy", &path))?;
    fs::rename(&fresh, &aside).map_err(SpoolError::file("rename into place", &aside))
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
pub(crate) mod tests;
