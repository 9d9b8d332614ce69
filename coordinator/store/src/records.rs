//! The records that the store keeps, and the changes that a batch of events makes to them.

use longhaul_core::call::{CallRecord, CallTotals};
use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, EpisodeId, Epoch, RunId, TaskName, WorkerId};
use longhaul_core::money::Money;
use longhaul_core::notes::AttemptNotes;
use longhaul_core::outcome::{AttemptEnd, Earlier, Fault, Settlement};
use longhaul_core::plan::LayerKind;
use longhaul_core::step::StepRecord;
use longhaul_core::time::{Millis, Timestamp};
use serde::{Deserialize, Serialize};

/// A run as it stands. Its plan, which may be large and never changes, is a blob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRecord {
    /// Its id.
    pub id: RunId,
    /// A name for people; hostile until escaped.
    pub name: String,
    /// Where the benchmark was, for people.
    pub benchmark: String,
    /// The blob of the run's plan.
    pub plan: Digest,
    /// How many episodes it has.
    pub episodes: u32,
    /// When it was submitted.
    pub submitted_at: Timestamp,
    /// Who stopped it and when, if anybody did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancelled: Option<Cancellation>,
    /// When its last episode settled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settled_at: Option<Timestamp>,
    /// What it may spend and has spent, by scope; the run's own first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<ScopeRecord>,
    /// The run file that it was submitted from, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// What a scope of a run may spend and has spent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScopeRecord {
    /// `run`, `agent NAME`, `judge`, `episode RUN/INDEX`.
    pub name: String,
    /// The most that it may spend; no cap if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cap: Option<Money>,
    /// What calls have cost.
    pub settled: Money,
    /// Granted to attempts, and neither settled nor given back.
    pub escrow: Money,
    /// Of what is settled, what no vendor has confirmed.
    pub unconfirmed: Money,
    /// The most that was ever granted and not settled at one time.
    pub largest_exposure: Money,
    /// By how much vendors' bills went beyond what was reserved for them.
    pub overshoot: Money,
    /// Requests that wait for money that may come back.
    pub waiting: u32,
    /// The highest percentage of its cap that people were warned of: 0, 80 or 95.
    pub warned: u8,
    /// Why nothing more is granted, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped: Option<String>,
}

/// A person's order to stop a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancellation {
    /// When.
    pub at: Timestamp,
    /// Who.
    pub by: String,
}

/// An episode as it stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpisodeRecord {
    /// Its id.
    pub id: EpisodeId,
    /// The task.
    pub task: TaskName,
    /// The agent's name.
    pub agent: String,
    /// Which repetition this is, from 0.
    pub sample: u32,
    /// The blob of the episode's plan.
    pub plan: Digest,
    /// How many attempts were made so far.
    pub attempts: u32,
    /// Where it is.
    pub state: EpisodeState,
    /// How it was settled before a person wanted it to be done again, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<Earlier>,
}

/// Where an episode is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EpisodeState {
    /// It waits for a worker.
    Queued,
    /// An attempt is live.
    Active {
        /// Which.
        attempt: AttemptId,
    },
    /// It is settled, once and for good.
    Settled {
        /// How.
        settlement: Settlement,
        /// When.
        at: Timestamp,
        /// The attempt that settled it; none if it never had one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempt: Option<AttemptId>,
    },
}

impl EpisodeState {
    /// The state in one word, for tables and filters.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Active { .. } => "active",
            Self::Settled { settlement, .. } => settlement.kind().name(),
        }
    }
}

/// An attempt as it stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// Its id.
    pub id: AttemptId,
    /// The fencing number of its lease.
    pub epoch: Epoch,
    /// The worker that has it.
    pub worker: WorkerId,
    /// That worker's node.
    pub hostname: String,
    /// When its lease was granted.
    pub started: Timestamp,
    /// How it ended, once it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish: Option<AttemptFinish>,
}

/// The end of an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttemptFinish {
    /// When it was accepted.
    pub at: Timestamp,
    /// How it ended.
    pub end: AttemptEnd,
    /// How many steps it has, the first observation included.
    pub steps: u32,
    /// The digest of its last step's record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_step: Option<Digest>,
    /// What it rested on, and where its time went.
    pub notes: AttemptNotes,
    /// Whether it came after the attempt was superseded: it settled nothing.
    pub late: bool,
}

/// A layer as the coordinator knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerRecord {
    /// Its key.
    pub key: Digest,
    /// Which of the env's layers.
    pub kind: LayerKind,
    /// The env's folder name.
    pub env: String,
    /// Where it is.
    pub state: LayerState,
    /// How long the last build took; zero if it was found.
    pub build_millis: Millis,
    /// How often it was built.
    pub builds: u32,
    /// How many attempts used it.
    pub uses: u32,
}

/// Where a layer is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerState {
    /// A worker builds it.
    Building {
        /// Which.
        worker: WorkerId,
        /// Since when.
        since: Timestamp,
    },
    /// It is there.
    Ready {
        /// The digest of its file.
        content: Digest,
        /// The size of its file.
        bytes: u64,
    },
    /// It could not be built.
    Failed {
        /// Why.
        fault: Fault,
    },
}

impl LayerState {
    /// The state in one word.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Building { .. } => "building",
            Self::Ready { .. } => "ready",
            Self::Failed { .. } => "failed",
        }
    }
}

/// A change to the projections, written in the same batch as the events that cause it.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A run is new or has changed.
    Run(Box<RunRecord>),
    /// An episode is new or has changed.
    Episode(Box<EpisodeRecord>),
    /// An attempt is new or has changed.
    Attempt(Box<AttemptRecord>),
    /// A layer is new or has changed.
    Layer(Box<LayerRecord>),
    /// The attempt, whose record is written before or in this batch, has its episode's
    /// lease from now on. Steps of an earlier attempt that are committed after this are
    /// late. Its epoch must be larger than that of the lease before.
    Lease {
        /// The attempt.
        attempt: AttemptId,
        /// The fencing number of its lease.
        epoch: Epoch,
        /// Whether it is to go on where the attempt before it was cut off.
        resumes: bool,
    },
    /// Nobody has the episode's lease any more: steps committed after this are late.
    LeaseOver {
        /// The episode.
        episode: EpisodeId,
    },
}

/// An event of the engine with its place in the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalEntry {
    /// Its sequence number, from 1, without gaps.
    pub sequence: u64,
    /// The event as it was given.
    pub event: Vec<u8>,
}

/// A saved state of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The sequence number of the last event that it contains; 0 for none.
    pub through: u64,
    /// The state as it was given.
    pub state: Vec<u8>,
}

/// What became of a step or a model call that was accepted. It is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The same was there before; nothing was written.
    pub repeated: bool,
    /// The attempt does not hold its episode's lease: what it reports is kept under the attempt,
    /// and a step of it never becomes the episode's. The money of a call counts all the same.
    pub late: bool,
}

/// How far the steps of an attempt are stored without a gap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepProgress {
    /// The smallest number that is not there: all below it are.
    pub next: u32,
    /// The digest of the step before `next`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Digest>,
}

/// A step as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredStep {
    /// Its number.
    pub number: u32,
    /// The epoch under which it was reported.
    pub epoch: Epoch,
    /// Whether it came when its attempt did not hold the episode's lease.
    pub late: bool,
    /// The digest of its record.
    pub digest: Digest,
    /// The core `StepRecord` as JSON, byte for byte as it was reported.
    pub record_json: Vec<u8>,
}

impl StoredStep {
    /// The record.
    ///
    /// # Errors
    ///
    /// It cannot be read; steps are checked before they are stored, so that this is
    /// damage or a newer program's field.
    pub fn record(&self) -> Result<StepRecord, serde_json::Error> {
        serde_json::from_slice(&self.record_json)
    }
}

/// How far the model calls of an attempt are stored without a gap, and what all of them that
/// are stored come to, late ones too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallProgress {
    /// The smallest number that is not there: all below it are.
    pub next: u32,
    /// The sums.
    pub totals: CallTotals,
}

/// A model call as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCall {
    /// Its number.
    pub number: u32,
    /// The epoch under which it was reported.
    pub epoch: Epoch,
    /// Whether it came when its attempt did not hold the episode's lease.
    pub late: bool,
    /// The digest of its record.
    pub digest: Digest,
    /// The core `CallRecord` as JSON, byte for byte as it was reported.
    pub record_json: Vec<u8>,
}

impl StoredCall {
    /// The record.
    ///
    /// # Errors
    ///
    /// It cannot be read; calls are checked before they are stored, so that this is
    /// damage or a newer program's field.
    pub fn record(&self) -> Result<CallRecord, serde_json::Error> {
        serde_json::from_slice(&self.record_json)
    }
}
