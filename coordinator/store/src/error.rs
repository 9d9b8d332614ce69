//! What can go wrong, by operation.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, EpisodeId, Epoch};

use crate::lock::Holder;

/// Why a store cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("the store {} is in use by {}", path.display(), holder.as_ref().map_or_else(|| "another process".to_owned(), ToString::to_string))]
    Locked {
        /// The store's folder.
        path: PathBuf,
        /// Who has it, as it wrote itself down.
        holder: Option<Holder>,
    },
    /// It was written in a format that this program does not know.
    #[error("the store {} has format {found}; this program knows format {known}: use the program that wrote it", path.display())]
    UnknownFormat {
        /// The store's folder.
        path: PathBuf,
        /// What was found; hostile until escaped.
        found: String,
        /// What is known.
        known: u32,
    },
    /// There is no store.
    #[error("there is no store in {}", path.display())]
    NotAStore {
        /// The folder.
        path: PathBuf,
    },
    /// The folder holds something else.
    #[error("{} is not empty and holds no store: name an empty or a new folder", path.display())]
    NotEmpty {
        /// The folder.
        path: PathBuf,
    },
    /// A file operation failed.
    #[error("cannot {action} {}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// RocksDB cannot open it: damage, most often.
    #[error("cannot open the store {}: {reason}", path.display())]
    Rocks {
        /// The store's folder.
        path: PathBuf,
        /// What RocksDB says.
        reason: String,
    },
    /// What it holds about itself cannot be read.
    #[error("the store {} is damaged", path.display())]
    Damaged {
        /// The store's folder.
        path: PathBuf,
        /// What cannot be read.
        #[source]
        source: ReadError,
    },
    /// Its log of writes has valid records after a broken one: not a write that was cut
    /// short by a crash, but damage that would lose acknowledged records.
    #[error("the log {} is broken at byte {offset}, before records that are whole: restore a checkpoint, or keep a copy and move the file away to lose what follows", file.display())]
    BrokenLog {
        /// The log.
        file: PathBuf,
        /// Where the broken record starts.
        offset: u64,
    },
}

/// Why something cannot be read.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    /// RocksDB cannot read it: an I/O error or damage.
    #[error("cannot read from {family}: {reason}")]
    Rocks {
        /// The column family.
        family: &'static str,
        /// What RocksDB says.
        reason: String,
    },
    /// A key or value is not what it should be.
    #[error("{family} holds a damaged record {key}: {reason}")]
    Damaged {
        /// The column family.
        family: &'static str,
        /// The key, readable.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// An event of the journal is missing.
    #[error("the journal goes from {expected} to {found}: events are missing")]
    Gap {
        /// The sequence number that should have followed.
        expected: u64,
        /// The one that did.
        found: u64,
    },
}

/// Why a write did not become durable, whatever it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The disk is nearly full. Nothing was written; the store goes on once there is space.
    #[error("the disk under {} has {free} bytes left; the store writes only above {floor}: make space and try again", path.display())]
    DiskFull {
        /// The store's folder.
        path: PathBuf,
        /// What is left.
        free: u64,
        /// What must be left.
        floor: u64,
    },
    /// The write failed: it may be durable or not. The store takes no more writes.
    #[error("a write to the store failed, and may be there or not after a restart: {reason}")]
    Unknown {
        /// What RocksDB says.
        reason: Arc<str>,
    },
    /// An earlier write failed; nothing is written any more.
    #[error("the store takes no more writes since one failed: {reason}")]
    Disabled {
        /// What RocksDB said then.
        reason: Arc<str>,
    },
    /// The store needs to read for this write, and cannot.
    #[error("a write to the store needs something that cannot be read: {reason}")]
    Read {
        /// The error.
        reason: Arc<str>,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

/// Why events and their projections were not appended. Nothing of the batch was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// A lease is given to an attempt that has no record.
    #[error("attempt {attempt} has no record to lease")]
    UnknownAttempt {
        /// The attempt.
        attempt: AttemptId,
    },
    /// A lease has an epoch that is not larger than the one before.
    #[error("the lease of episode {episode} has epoch {epoch}, not above {current}")]
    StaleEpoch {
        /// The episode.
        episode: EpisodeId,
        /// The new lease's epoch.
        epoch: Epoch,
        /// The epoch of the lease before.
        current: Epoch,
    },
    /// A record cannot be expressed.
    #[error("a record cannot be written: {reason}")]
    Unwritable {
        /// Why.
        reason: String,
    },
    /// It did not become durable.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Why blobs were not stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlobError {
    /// The bytes are not those that the digest names. None of the blobs was written.
    #[error("a blob of {len} bytes has digest {found}, not {expected}")]
    WrongDigest {
        /// The digest it came with.
        expected: Digest,
        /// The digest of its bytes.
        found: Digest,
        /// Its size.
        len: usize,
    },
    /// A blob is larger than one may be. None of the blobs was written.
    #[error("blob {digest} has {len} bytes; the limit is {limit}")]
    TooLarge {
        /// Its digest.
        digest: Digest,
        /// Its size.
        len: usize,
        /// The largest allowed.
        limit: usize,
    },
    /// It did not become durable.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// What an attempt reports for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportKind {
    /// A step.
    Step,
    /// A model call.
    Call,
}

impl ReportKind {
    /// What a blob is to it.
    const fn blob(self) -> &'static str {
        match self {
            Self::Step => "screenshot",
            Self::Call => "blob",
        }
    }
}

impl fmt::Display for ReportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Step => "step",
            Self::Call => "call",
        })
    }
}

/// Why a step or a model call was not stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// It is not the record of such a step or call.
    #[error("{what} {number} of attempt {attempt} cannot be read: {reason}")]
    Invalid {
        /// Which of the two it is.
        what: ReportKind,
        /// The attempt.
        attempt: AttemptId,
        /// The number under which it was reported.
        number: u32,
        /// What is wrong.
        reason: String,
    },
    /// Another record is there under the same number.
    #[error("{what} {number} of attempt {attempt} is there with digest {stored}, and came again with {reported}")]
    Conflict {
        /// Which of the two it is.
        what: ReportKind,
        /// The attempt.
        attempt: AttemptId,
        /// The number.
        number: u32,
        /// The digest of what is stored.
        stored: Digest,
        /// The digest of what came.
        reported: Digest,
    },
    /// The attempt was never started here.
    #[error("attempt {attempt} is not known")]
    UnknownAttempt {
        /// The attempt.
        attempt: AttemptId,
    },
    /// The attempt never had a lease of this epoch.
    #[error("attempt {attempt} has epoch {expected}, not {epoch}")]
    WrongEpoch {
        /// The attempt.
        attempt: AttemptId,
        /// The epoch that came.
        epoch: Epoch,
        /// The attempt's own.
        expected: Epoch,
    },
    /// It is not in line with what the attempt keeps of those before it.
    #[error("attempt {attempt} cannot go on so: {reason}")]
    NotKept {
        /// The attempt.
        attempt: AttemptId,
        /// Why not.
        reason: &'static str,
    },
    /// The screenshot of a step, or a part of a call's request or response, was not put before it.
    #[error("{what} {number} of attempt {attempt} names {} {digest}, which is not there", what.blob())]
    MissingBlob {
        /// Which of the two it is.
        what: ReportKind,
        /// The attempt.
        attempt: AttemptId,
        /// The number.
        number: u32,
        /// The blob.
        digest: Digest,
    },
    /// It did not become durable.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Why a log was not noted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// The attempt was never started here, or not with this epoch.
    #[error("attempt {attempt} with epoch {epoch} is not known")]
    UnknownAttempt {
        /// The attempt.
        attempt: AttemptId,
        /// The epoch that came.
        epoch: Epoch,
    },
    /// Its name is empty, too long, or holds control characters or slashes.
    #[error("a log of attempt {attempt} has a name that cannot be one")]
    BadName {
        /// The attempt.
        attempt: AttemptId,
    },
    /// Its bytes were not put before.
    #[error("log {name} of attempt {attempt} names blob {digest}, which is not there")]
    MissingBlob {
        /// The attempt.
        attempt: AttemptId,
        /// The log's name.
        name: String,
        /// The blob.
        digest: Digest,
    },
    /// It did not become durable.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Why a snapshot was not written, or the journal not pruned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PruneError {
    /// A snapshot is said to contain events that do not exist.
    #[error("a snapshot through event {through} cannot be: the journal ends at {last}")]
    BeyondJournal {
        /// The last event that the snapshot is said to contain.
        through: u64,
        /// The last event there is.
        last: u64,
    },
    /// Events would be deleted that no snapshot contains.
    #[error("events through {through} cannot be deleted: the newest snapshot contains those through {snapshot}")]
    NoSnapshot {
        /// The last event to be deleted.
        through: u64,
        /// The last event in the newest snapshot; 0 if there is none.
        snapshot: u64,
    },
    /// It did not become durable.
    #[error(transparent)]
    Write(#[from] WriteError),
}
