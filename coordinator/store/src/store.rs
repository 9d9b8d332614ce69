//! The store, open for writing.

use std::fmt;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

use longhaul_core::call::CallRecord;
use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, Epoch};
use longhaul_core::resume::Resumed;
use longhaul_core::step::StepRecord;

use crate::error::{AppendError, BlobError, LogError, OpenError, PruneError, ReportError, ReportKind, WriteError};
use crate::lock::StoreLock;
use crate::merge::RawRow;
use crate::open::{self, OpenOptions, Warning};
use crate::reader::Reader;
use crate::records::{Change, Receipt};
use crate::ticket::{Completer, Ticket, answered, ticket};
use crate::writer::{Command, Failure};

/// The largest blob: files of bundles come in pieces of 2 MiB, and a screenshot of a
/// large screen that packs badly has a few times that.
pub const MAX_BLOB_BYTES: usize = 64 * 1024 * 1024;

/// The longest name of a log.
const MAX_LOG_NAME: usize = 200;

/// Bytes whose digest is known to be theirs.
#[derive(Clone, PartialEq, Eq)]
pub struct Blob {
    digest: Digest,
    bytes: Vec<u8>,
}

impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blob({}, {} bytes)", self.digest.short(), self.bytes.len())
    }
}

impl Blob {
    /// A blob of our own making.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { digest: Digest::of(&bytes), bytes }
    }

    /// A blob that came with the digest that it claims to have.
    ///
    /// # Errors
    ///
    /// The bytes have another digest, or are too many.
    pub fn checked(digest: Digest, bytes: Vec<u8>) -> Result<Self, BlobError> {
        if bytes.len() > MAX_BLOB_BYTES {
            return Err(BlobError::TooLarge { digest, len: bytes.len(), limit: MAX_BLOB_BYTES });
        }
        let blob = Self::new(bytes);
        if blob.digest != digest {
            return Err(BlobError::WrongDigest { expected: digest, found: blob.digest, len: blob.bytes.len() });
        }
        Ok(blob)
    }

    /// Its digest.
    #[must_use]
    pub const fn digest(&self) -> &Digest {
        &self.digest
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// A step whose record was read and found to be one.
pub(crate) struct StepWrite {
    pub(crate) attempt: AttemptId,
    pub(crate) epoch: Epoch,
    pub(crate) number: u32,
    pub(crate) digest: Digest,
    pub(crate) screenshot: Digest,
    pub(crate) record_json: Vec<u8>,
}

/// A model call whose record was read and found to be one.
pub(crate) struct CallWrite {
    pub(crate) attempt: AttemptId,
    pub(crate) epoch: Epoch,
    pub(crate) record: CallRecord,
    pub(crate) digest: Digest,
    pub(crate) record_json: Vec<u8>,
}

/// A store that this process, and no other, writes to. Reads go through its [`Reader`],
/// to which it dereferences. Dropping it waits for the writes that it has taken.
#[derive(Debug)]
pub struct Store {
    reader: Reader,
    commands: Option<Sender<Command>>,
    thread: Option<JoinHandle<()>>,
    failure: Failure,
    warnings: Vec<Warning>,
    /// Given back last: fields are dropped in order.
    _lock: StoreLock,
}

impl Deref for Store {
    type Target = Reader;

    fn deref(&self) -> &Reader {
        &self.reader
    }
}

impl Store {
    /// Opens the store in the folder `path` for writing, and makes it if it is not there.
    ///
    /// # Errors
    ///
    /// Another process has it, its format is not known, the folder holds something else,
    /// it is damaged, or a file operation failed.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Self, OpenError> {
        open::open(path, options)
    }

    pub(crate) const fn assemble(
        reader: Reader,
        commands: Sender<Command>,
        thread: JoinHandle<()>,
        failure: Failure,
        warnings: Vec<Warning>,
        lock: StoreLock,
    ) -> Self {
        Self { reader, commands: Some(commands), thread: Some(thread), failure, warnings, _lock: lock }
    }

    /// A reader that sees every write once it is durable.
    #[must_use]
    pub const fn reader(&self) -> &Reader {
        &self.reader
    }

    /// What a person should know about where the store lies and how it was opened.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Why the store takes no more writes; none while it does.
    #[must_use]
    pub fn failure(&self) -> Option<Arc<str>> {
        self.failure.get().map(Arc::clone)
    }

    /// Appends events to the journal, with the changes that they make to the projections,
    /// in one batch: all of it becomes durable, or none. Answers with the events'
    /// sequence numbers, which are contiguous. With no events only the changes are made.
    pub fn append(&self, events: Vec<Vec<u8>>, changes: Vec<Change>) -> Ticket<Range<u64>, AppendError> {
        self.send(|done| Command::Append { events, changes, done })
    }

    /// Stores blobs that are not there yet, all in one batch; answers with how many were new.
    pub fn put_blobs(&self, blobs: Vec<Blob>) -> Ticket<u32, BlobError> {
        self.send(|done| Command::Blobs { blobs, done })
    }

    /// Stores a step of an attempt: its number, and the core `StepRecord` as JSON, whose
    /// digest tells a repeated step from a different one under the same number. The
    /// step's screenshot was put before.
    pub fn put_step(
        &self,
        attempt: AttemptId,
        epoch: Epoch,
        number: u32,
        record_json: Vec<u8>,
    ) -> Ticket<Receipt, ReportError> {
        let invalid = |reason| answered(Err(ReportError::Invalid { what: ReportKind::Step, attempt, number, reason }));
        let record: StepRecord = match serde_json::from_slice(&record_json) {
            Ok(record) => record,
            Err(error) => return invalid(error.to_string()),
        };
        if record.number != number {
            return invalid(format!("its record has number {}", record.number));
        }
        let digest = Digest::of(&record_json);
        let screenshot = record.screen.png;
        let step = StepWrite { attempt, epoch, number, digest, screenshot, record_json };
        self.send(|done| Command::Step { step, done })
    }

    /// Stores a settled model call of an attempt: its number, and the core `CallRecord` as
    /// JSON, whose digest tells a repeated call from a different one under the same number. The
    /// blobs that it names were put before. It is stored whoever has the lease: it was paid for.
    pub fn put_call(
        &self,
        attempt: AttemptId,
        epoch: Epoch,
        number: u32,
        record_json: Vec<u8>,
    ) -> Ticket<Receipt, ReportError> {
        let invalid = |reason| answered(Err(ReportError::Invalid { what: ReportKind::Call, attempt, number, reason }));
        let record: CallRecord = match serde_json::from_slice(&record_json) {
            Ok(record) => record,
            Err(error) => return invalid(error.to_string()),
        };
        if record.number != number {
            return invalid(format!("its record has number {}", record.number));
        }
        let digest = Digest::of(&record_json);
        let call = Box::new(CallWrite { attempt, epoch, record, digest, record_json });
        self.send(|done| Command::Call { call, done })
    }

    /// Notes that an attempt, which was to go on where an earlier one was cut off, stands there.
    /// Its own steps are taken from then on, and none before.
    pub fn put_resumed(&self, attempt: AttemptId, epoch: Epoch, resumed: Resumed) -> Ticket<Receipt, ReportError> {
        let resumed = Box::new(resumed);
        self.send(|done| Command::Resumed { attempt, epoch, resumed, done })
    }

    /// Notes that a blob, which was put before, is a log of an attempt. A log that comes
    /// again under its name takes the place of the earlier one.
    pub fn put_log(&self, attempt: AttemptId, epoch: Epoch, name: String, blob: Digest) -> Ticket<(), LogError> {
        let usable = !name.is_empty()
            && name.len() <= MAX_LOG_NAME
            && !name.starts_with('.')
            && !name.contains(|c: char| c.is_control() || c == '/');
        if !usable {
            return answered(Err(LogError::BadName { attempt }));
        }
        self.send(|done| Command::Log { attempt, epoch, name, digest: blob, done })
    }

    /// Writes rows of a run of another store, as they are there.
    pub(crate) fn put_rows(&self, rows: Vec<RawRow>) -> Ticket<(), WriteError> {
        self.send(|done| Command::Rows { rows, done })
    }

    /// Drops blobs, whatever names them: that nothing does which needs them, its caller has found.
    pub(crate) fn drop_blobs(&self, blobs: Vec<Digest>) -> Ticket<(), WriteError> {
        self.send(|done| Command::DropBlobs { blobs, done })
    }

    /// Stores the engine's state as it was after event `through`. Recovery is the newest
    /// snapshot and the events after it.
    pub fn put_snapshot(&self, through: u64, state: Vec<u8>) -> Ticket<(), PruneError> {
        self.send(|done| Command::Snapshot { through, state, done })
    }

    /// Deletes the events through `through`, which the newest snapshot contains, and the
    /// older snapshots.
    pub fn prune_journal(&self, through: u64) -> Ticket<(), PruneError> {
        self.send(|done| Command::Prune { through, done })
    }

    /// Makes a copy of the store in the folder `path`, which is not there yet, while the
    /// store is in use. A store that is opened from the copy has a new incarnation.
    ///
    /// # Errors
    ///
    /// The folder is there already or cannot be made, or the copy failed.
    pub fn checkpoint(&self, path: &Path) -> Result<(), OpenError> {
        open::checkpoint(&self.reader.rocks, path)
    }

    fn send<T, E: From<WriteError>>(&self, command: impl FnOnce(Completer<T, E>) -> Command) -> Ticket<T, E> {
        let (done, ticket) = ticket();
        if let Some(commands) = &self.commands {
            // Without a bound: whoever sends waits for the ticket, so that no more is queued
            // than there are callers, and async code must not block here.
            // A thread that is gone drops the command, whose completer then says so.
            let _ = commands.send(command(done));
        }
        ticket
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // The thread ends once it has answered what it took.
        self.commands = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the writer thread of the store had panicked");
        }
    }
}
