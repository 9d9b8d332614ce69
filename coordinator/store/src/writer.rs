//! The writer thread: the only one that writes.
//!
//! It takes what has come in since the last commit, up to a limit, stages it into one
//! batch, writes and syncs that once, and then answers everyone who waited. While it
//! syncs, the next batch comes together: the more callers there are, the more of them
//! share a sync.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, OnceLock};

use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, Epoch};
use longhaul_core::resume::Resumed;

use crate::commit::{Commit, JournalEnd};
use crate::error::{AppendError, BlobError, LogError, PruneError, ReportError, WriteError};
use crate::merge::RawRow;
use crate::open::SpaceFloor;
use crate::place;
use crate::records::{Change, Receipt};
use crate::rocks::Rocks;
use crate::store::{Blob, CallWrite, StepWrite};
use crate::ticket::Completer;

/// A batch is closed once it has this many bytes: syncing more than this takes a plain
/// SSD a good part of a second, and would only make the first callers wait for the last.
const MAX_BATCH_BYTES: usize = 16 * 1024 * 1024;

/// A batch is closed once it has this many commands, so that answering them all does not
/// take longer than the sync that it saves.
const MAX_BATCH_COMMANDS: usize = 1024;

/// A write that waits for the writer thread.
pub(crate) enum Command {
    Append { events: Vec<Vec<u8>>, changes: Vec<Change>, done: Completer<Range<u64>, AppendError> },
    Blobs { blobs: Vec<Blob>, done: Completer<u32, BlobError> },
    Step { step: StepWrite, done: Completer<Receipt, ReportError> },
    Call { call: Box<CallWrite>, done: Completer<Receipt, ReportError> },
    Resumed { attempt: AttemptId, epoch: Epoch, resumed: Box<Resumed>, done: Completer<Receipt, ReportError> },
    Log { attempt: AttemptId, epoch: Epoch, name: String, digest: Digest, done: Completer<(), LogError> },
    Snapshot { through: u64, state: Vec<u8>, done: Completer<(), PruneError> },
    Prune { through: u64, done: Completer<(), PruneError> },
    Rows { rows: Vec<RawRow>, done: Completer<(), WriteError> },
    DropBlobs { blobs: Vec<Digest>, done: Completer<(), WriteError> },
}

/// Answers a caller once it is known what became of the batch.
type Answer = Box<dyn FnOnce(Result<(), WriteError>) + Send>;

fn answer<T, E>(done: Completer<T, E>, result: Result<T, E>) -> Answer
where
    T: Send + 'static,
    E: From<WriteError> + Send + 'static,
{
    // A refusal may rest on what the batch was to write: if that failed, so did this.
    Box::new(move |commit| done.complete(commit.map_err(E::from).and(result)))
}

impl Command {
    /// About how many bytes it writes.
    fn bytes(&self) -> usize {
        match self {
            // Changes are small; a submitted run of thousands of episodes is not.
            Self::Append { events, changes, .. } => events.iter().map(Vec::len).sum::<usize>() + changes.len() * 512,
            Self::Blobs { blobs, .. } => blobs.iter().map(|blob| blob.bytes().len()).sum(),
            Self::Step { step, .. } => step.record_json.len(),
            Self::Call { call, .. } => call.record_json.len() + 512,
            Self::Snapshot { state, .. } => state.len(),
            Self::Resumed { .. } | Self::Log { .. } | Self::Prune { .. } => 128,
            Self::DropBlobs { blobs, .. } => blobs.len() * 80,
            Self::Rows { rows, .. } => rows.iter().map(|(_, key, value)| key.len() + value.len()).sum(),
        }
    }

    /// What must be left on the disk for it.
    const fn floor(&self, floor: SpaceFloor) -> u64 {
        match self {
            Self::Blobs { .. } | Self::Step { .. } | Self::Log { .. } | Self::Rows { .. } => floor.bulk,
            // A call is paid for, and small: it is stored for as long as anything is.
            Self::Append { .. }
            | Self::Call { .. }
            | Self::Resumed { .. }
            | Self::Snapshot { .. }
            | Self::Prune { .. } => floor.journal,
            // It makes room.
            Self::DropBlobs { .. } => 0,
        }
    }

    fn refuse(self, error: WriteError) {
        match self {
            Self::Append { done, .. } => done.complete(Err(error.into())),
            Self::Blobs { done, .. } => done.complete(Err(error.into())),
            Self::Step { done, .. } | Self::Call { done, .. } | Self::Resumed { done, .. } => {
                done.complete(Err(error.into()))
            }
            Self::Log { done, .. } => done.complete(Err(error.into())),
            Self::Snapshot { done, .. } | Self::Prune { done, .. } => done.complete(Err(error.into())),
            Self::Rows { done, .. } | Self::DropBlobs { done, .. } => done.complete(Err(error)),
        }
    }

    fn stage(self, commit: &mut Commit<'_>) -> Answer {
        match self {
            Self::Append { events, changes, done } => answer(done, commit.append(&events, &changes)),
            Self::Blobs { blobs, done } => answer(done, commit.blobs(&blobs)),
            Self::Step { step, done } => answer(done, commit.step(&step)),
            Self::Call { call, done } => answer(done, commit.call(&call)),
            Self::Resumed { attempt, epoch, resumed, done } => answer(done, commit.resumed(attempt, epoch, &resumed)),
            Self::Log { attempt, epoch, name, digest, done } => {
                answer(done, commit.log(attempt, epoch, &name, &digest))
            }
            Self::Snapshot { through, state, done } => answer(done, commit.snapshot(through, &state)),
            Self::Prune { through, done } => answer(done, commit.prune(through)),
            Self::Rows { rows, done } => {
                commit.rows(rows);
                answer(done, Ok(()))
            }
            Self::DropBlobs { blobs, done } => {
                commit.drop_blobs(&blobs);
                answer(done, Ok(()))
            }
        }
    }
}

/// Why the store takes no more writes, once it does not.
pub(crate) type Failure = Arc<OnceLock<Arc<str>>>;

/// The writer thread's state.
pub(crate) struct Writer {
    pub(crate) rocks: Arc<Rocks>,
    pub(crate) commands: Receiver<Command>,
    pub(crate) journal: JournalEnd,
    pub(crate) folder: PathBuf,
    pub(crate) floor: SpaceFloor,
    pub(crate) failure: Failure,
}

impl Writer {
    /// Runs until the store is dropped and every write that it took is answered.
    pub(crate) fn run(mut self) {
        while let Ok(first) = self.commands.recv() {
            let batch = self.gather(first);
            self.commit(batch);
        }
    }

    /// The commands of one batch: the first one, and what has come in beside it.
    fn gather(&self, first: Command) -> Vec<Command> {
        let mut bytes = first.bytes();
        let mut batch = vec![first];
        while bytes < MAX_BATCH_BYTES && batch.len() < MAX_BATCH_COMMANDS {
            match self.commands.try_recv() {
                Ok(command) => {
                    bytes += command.bytes();
                    batch.push(command);
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
            }
        }
        batch
    }

    fn commit(&mut self, batch: Vec<Command>) {
        if let Some(reason) = self.failure.get() {
            let error = WriteError::Disabled { reason: Arc::clone(reason) };
            batch.into_iter().for_each(|command| command.refuse(error.clone()));
            return;
        }
        let batch = self.with_space(batch);
        let mut commit = Commit::new(&self.rocks, self.journal);
        let answers: Vec<Answer> = batch.into_iter().map(|command| command.stage(&mut commit)).collect();
        let journal = commit.journal;
        let batch = commit.into_batch();
        let result = if batch.is_empty() { Ok(()) } else { self.rocks.write_synced(batch) };
        let result = result.map_err(|reason| {
            let reason: Arc<str> = reason.into();
            tracing::error!(reason = %reason, "a write to the store failed: it takes no more writes");
            WriteError::Unknown { reason: Arc::clone(self.failure.get_or_init(|| reason)) }
        });
        if result.is_ok() {
            self.journal = journal;
        }
        for answer in answers {
            answer(result.clone());
        }
    }

    /// Refuses what there is no space for. RocksDB that runs into a full disk may be left
    /// with a manifest that it cannot write; the store stops before that, and it stops
    /// the large writes first, so that the journal can still say what happened.
    fn with_space(&self, batch: Vec<Command>) -> Vec<Command> {
        let free = match place::free_bytes(&self.folder) {
            Ok(free) => free,
            Err(error) => {
                // Not knowing is no reason to lose writes: RocksDB will say if it fails.
                tracing::warn!(%error, folder = %self.folder.display(), "cannot see how much space is left");
                return batch;
            }
        };
        let bytes: usize = batch.iter().map(Command::bytes).sum();
        let left = free.saturating_sub(bytes as u64);
        let (fits, full): (Vec<_>, Vec<_>) = batch.into_iter().partition(|command| left >= command.floor(self.floor));
        for command in full {
            let floor = command.floor(self.floor);
            command.refuse(WriteError::DiskFull { path: self.folder.clone(), free, floor });
        }
        fits
    }
}
