//! Remembers: the store of a coordinator, on RocksDB.
//!
//! A [`Store`] is open for writing by one process at a time and has one writer thread.
//! Every write goes to it as a command and comes back as a [`Ticket`], which resolves
//! once the batch that holds the write has been synced (group commit): what a ticket
//! says is durable. Reads go through a [`Reader`], which is also had alone, beside a
//! live coordinator or without one.
//!
//! | family | what it holds | written by |
//! |---|---|---|
//! | journal | the engine's events and its snapshots | [`Store::append`], [`Store::put_snapshot`] |
//! | runs, episodes, attempts, layers | projections: what the journal's events add up to, for readers | [`Store::append`], in the same batch as the events |
//! | steps | trajectories: they do not go through the engine | [`Store::put_step`] |
//! | blobs | content-addressed bytes | [`Store::put_blobs`] |
//! | ledger | settled model calls: like steps, they do not go through the engine | [`Store::put_call`] |
//! | meta | format, incarnation | [`Store::open`] |
//!
//! Keys are one kind byte and big-endian ids, so that their order is the order of the
//! ids; values are one format byte and a record.

mod chain;
mod commit;
mod crc32c;
mod error;
mod family;
mod format;
mod keys;
mod lock;
mod logfile;
mod merge;
mod open;
mod place;
mod reader;
mod records;
mod restore;
mod retention;
mod rocks;
mod store;
mod ticket;
mod verify;
mod writer;

pub use chain::{Line, Link};
pub use error::{
    AppendError, BlobError, LogError, OpenError, PruneError, ReadError, ReportError, ReportKind, WriteError,
};
pub use lock::Holder;
pub use merge::{Arrival, Merge, MergeError, Merged, Tally};
pub use open::{OpenOptions, SpaceFloor, Warning, backup};
pub use place::free_bytes;
pub use reader::Reader;
pub use records::{
    AttemptFinish, AttemptRecord, CallProgress, Cancellation, Change, EpisodeRecord, EpisodeState, JournalEntry,
    LayerRecord, LayerState, Receipt, RunRecord, ScopeRecord, Snapshot, StepProgress, StoredCall, StoredStep,
};
pub use restore::restore;
pub use retention::{Dropped, Pruned, Pruning, PruningError};
pub use store::{Blob, MAX_BLOB_BYTES, Store};
pub use ticket::Ticket;
pub use verify::{Finding, Verification, verify};
