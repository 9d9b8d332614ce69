//! Allocations: what is asked of Slurm, and what is known of it.
//!
//! A [`Pool`] is a pattern that allocations are asked with. One [`Submission`] asks for
//! several of them at once; it has a token of ours, which the job carries, since a job id
//! alone tells nothing: a controller that was killed gives an id out again. An
//! [`Allocation`] is one task of a submission, and holds one worker.

use std::collections::BTreeMap;
use std::fmt;

use longhaul_core::ids::WorkerId;
use longhaul_core::time::{Millis, Timestamp};
use serde::{Deserialize, Serialize};

use crate::state::Capacity;

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub String);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}

text_id!(
    /// The name of a pool.
    PoolId
);
text_id!(
    /// What a submission is known by, for ever: the job carries it as its name.
    Token
);
text_id!(
    /// The id that Slurm gave to a submission: the array's, where it is one. It is given
    /// out again at times, and counts only beside the token.
    JobId
);

/// One task of a submission.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AllocationId {
    /// The submission's token.
    pub token: Token,
    /// The index in the array; 0 if it is none.
    pub task: u32,
}

impl fmt::Display for AllocationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]", self.token, self.task)
    }
}

/// A pattern that allocations are asked with. How a batch script comes of it is the
/// shell's to know; here is what decides how many are asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Its name.
    pub id: PoolId,
    /// What the tokens of its submissions begin with. Unlike that of every other store and
    /// incarnation: a store that was restored from a backup counts from an old number.
    pub token_prefix: String,
    /// What a worker in such an allocation has for attempts.
    pub offer: Capacity,
    /// For how long an allocation is asked.
    pub walltime: Millis,
    /// Whether several are asked for at once, as an array.
    pub array: bool,
    /// The most allocations that live or are asked for at one time.
    pub max_workers: u32,
    /// The most of them that wait in the queue at one time.
    pub max_queued: u32,
    /// The most time of nodes that the pool may use up, over its life. What is asked for
    /// counts whole until it has ended.
    #[serde(default)]
    pub max_node_time: Option<Millis>,
    /// How long a worker may have nothing to do before its allocation is ended.
    pub idle: Millis,
    /// After so many failures in a row the pool is paused.
    pub max_failures: u32,
}

/// What the partition behind a pool has, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionOffer {
    /// The longest walltime that it grants.
    pub max_walltime: Option<Millis>,
    /// How many workers of the pool its nodes could hold at once, were they free.
    pub max_workers: Option<u32>,
    /// The largest array that it takes.
    pub max_array: Option<u32>,
}

/// A pool and how it fares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolRecord {
    /// The pattern.
    pub pool: Pool,
    /// What the partition has.
    #[serde(default)]
    pub partition: PartitionOffer,
    /// Whether it was removed: nothing is asked for any more, what runs is used to its end.
    #[serde(default)]
    pub removed: bool,
    /// Failures in a row: refused for good, or ended before its worker said hello.
    #[serde(default)]
    pub failures: u32,
    /// Refusals in a row that another try may heal.
    #[serde(default)]
    pub refusals: u32,
    /// It is left alone for a while.
    #[serde(default)]
    pub wait: Option<Wait>,
    /// It is left alone until a person says otherwise.
    #[serde(default)]
    pub paused: Option<Paused>,
    /// The time of nodes used up by allocations that ended.
    #[serde(default)]
    pub used: Millis,
    /// The most that workers of it have said they have, since it was set.
    #[serde(default)]
    pub reported: Option<Capacity>,
}

impl PoolRecord {
    /// What a new worker of it will have, as far as that is known: what is promised, but no
    /// more than any of its workers had.
    #[must_use]
    pub fn offer(&self) -> Capacity {
        self.reported.map_or(self.pool.offer, |reported| self.pool.offer.and(reported))
    }

    /// What its workers say they have, if that is less than was promised.
    #[must_use]
    pub fn falls_short(&self) -> Option<Capacity> {
        let (promised, offer) = (self.pool.offer, self.offer());
        let less = offer.cpu_millis < promised.cpu_millis
            || offer.memory_mib < promised.memory_mib
            || offer.gpus < promised.gpus;
        self.reported.filter(|_| less)
    }
}

/// A pool is left alone for a while.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// Since when.
    pub since: Timestamp,
    /// For how long.
    pub delay: Millis,
    /// Why; what Slurm says is hostile until escaped.
    pub reason: String,
}

/// A pool is left alone until a person resumes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paused {
    /// Since when.
    pub at: Timestamp,
    /// Why; what Slurm says is hostile until escaped.
    pub reason: String,
}

/// One request for allocations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Submission {
    /// The pool.
    pub pool: PoolId,
    /// How many allocations.
    pub count: u32,
    /// For how long each.
    pub walltime: Millis,
    /// When it was decided.
    pub requested_at: Timestamp,
    /// How often it was given to Slurm.
    pub tries: u32,
    /// Where it stands.
    pub stage: Stage,
    /// The mark of the queue since which it stands there: an answer that was asked for
    /// earlier says nothing about it.
    pub mark: u64,
    /// Its allocations.
    pub tasks: BTreeMap<u32, Allocation>,
}

/// Where a submission stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// It is (to be) given to Slurm, and the answer is not known yet.
    Requested,
    /// Nobody knows whether Slurm has it: to be looked for before it is asked again.
    Doubtful {
        /// Since when.
        since: Timestamp,
        /// Why.
        reason: String,
    },
    /// Slurm has it.
    Accepted {
        /// Under this id.
        job: JobId,
    },
    /// It was looked for, not found, and not wanted any more.
    Dropped {
        /// Why.
        reason: String,
    },
}

/// One allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// Where it stands.
    pub state: AllocationState,
    /// How often Slurm has started it anew: each time is another incarnation of its worker.
    pub restarts: u32,
    /// The worker that spoke from it last.
    pub worker: Option<WorkerId>,
    /// Whether any worker ever spoke from it that took leases.
    pub said_hello: bool,
    /// The time that earlier incarnations ran.
    pub used: Millis,
    /// Since when an answer of the queue lacks it.
    pub missing_since: Option<Timestamp>,
    /// Since when it runs without a worker.
    pub unmanned_since: Option<Timestamp>,
    /// We ended it ourselves.
    pub release: Option<Release>,
}

/// An order of ours to end an allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// When it was given last.
    pub at: Timestamp,
    /// Why.
    pub reason: String,
}

/// Where an allocation stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AllocationState {
    /// Its submission is not known to be with Slurm.
    Requested,
    /// Slurm took it, and no answer of the queue showed it yet.
    Submitted,
    /// It waits in the queue.
    Queued {
        /// Since when, as far as we saw.
        since: Timestamp,
        /// Why, in Slurm's words; hostile until escaped.
        reason: String,
    },
    /// It has a node.
    Running {
        /// Since when.
        since: Timestamp,
        /// The node.
        node: Option<String>,
        /// When its time is over.
        ends_at: Option<Timestamp>,
    },
    /// It is over.
    Ended {
        /// When.
        at: Timestamp,
        /// Why.
        why: AllocationEnd,
    },
}

/// Why an allocation is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AllocationEnd {
    /// Slurm says so.
    Job(JobEnd),
    /// The queue does not have it, no worker speaks from it, and that for a while.
    Vanished,
    /// Slurm never had it, and it is not wanted any more.
    NeverSubmitted,
}

/// How a job ended, in Slurm's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobEnd {
    /// COMPLETED: the script ended in order.
    Completed,
    /// FAILED: the script ended with a failure.
    Failed,
    /// `OUT_OF_MEMORY`.
    OutOfMemory,
    /// TIMEOUT or DEADLINE.
    TimedOut,
    /// PREEMPTED.
    Preempted,
    /// CANCELLED.
    Cancelled,
    /// `NODE_FAIL` or `BOOT_FAIL`.
    NodeFailed,
}

impl JobEnd {
    /// Whether only the node itself can have said so: then no process of the job is left,
    /// and its episodes are free at once. The other ends are orders of the controller,
    /// which a node that was cut off has not heard of; there the leases have to run out.
    #[must_use]
    pub const fn is_said_by_the_node(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::OutOfMemory)
    }

    /// Whether it explains the loss of a worker without any guilt of its episodes.
    #[must_use]
    pub const fn explains_a_loss(self) -> bool {
        matches!(self, Self::TimedOut | Self::Preempted | Self::Cancelled | Self::NodeFailed)
    }
}

impl fmt::Display for JobEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Completed => "it completed",
            Self::Failed => "it failed",
            Self::OutOfMemory => "it was out of memory",
            Self::TimedOut => "its time was over",
            Self::Preempted => "it was preempted",
            Self::Cancelled => "it was cancelled",
            Self::NodeFailed => "its node failed",
        })
    }
}

impl fmt::Display for AllocationEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Job(end) => end.fmt(f),
            Self::Vanished => f.pad("the queue does not have it any more, and no worker speaks from it"),
            Self::NeverSubmitted => f.pad("Slurm never had it"),
        }
    }
}

/// What one answer of the queue (or of the accounting) says about tasks of a submission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSeen {
    /// The token that the job carries.
    pub token: Token,
    /// Its id: the array's, where it is one.
    pub job: JobId,
    /// The tasks that this is about: one that runs, or all of an array that wait. 0 alone
    /// for a job that is no array.
    pub tasks: Vec<u32>,
    /// How often it was started anew.
    pub restarts: u32,
    /// Where it is.
    pub phase: JobPhase,
}

/// Where a job is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobPhase {
    /// It waits.
    Pending {
        /// Why, in Slurm's words; hostile until escaped.
        reason: String,
    },
    /// It has a node (CONFIGURING and SUSPENDED included).
    Running {
        /// The node.
        node: Option<String>,
        /// When it started.
        started_at: Option<Timestamp>,
        /// When its time is over; by the coordinator's clock.
        ends_at: Option<Timestamp>,
    },
    /// It is being ended, and processes of it may still run.
    Completing,
    /// It is over.
    Ended(JobEnd),
}

/// What is known of the queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Queue {
    /// It was not looked at since the coordinator started. Nothing is asked for.
    #[default]
    Unknown,
    /// It answers.
    Reachable {
        /// Since when.
        since: Timestamp,
    },
    /// It does not answer. Nothing is asked for, and nothing is concluded.
    Unreachable {
        /// Since when.
        since: Timestamp,
        /// What came instead of an answer; hostile until escaped.
        reason: String,
    },
}

/// The allocation that a worker speaks from, as its hello names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerAllocation {
    /// The token of the submission.
    pub token: Token,
    /// The job's id, the array's where it is one.
    pub job: JobId,
    /// The task; 0 if it is no array.
    pub task: u32,
    /// How often Slurm had started it anew when the worker started.
    pub restarts: u32,
    /// When its time is over, if Slurm told the worker; by the coordinator's clock.
    pub ends_at: Option<Timestamp>,
}

impl WorkerAllocation {
    /// The allocation.
    #[must_use]
    pub fn id(&self) -> AllocationId {
        AllocationId { token: self.token.clone(), task: self.task }
    }
}

impl Submission {
    /// The id that Slurm gave to it, if that is known.
    #[must_use]
    pub const fn job(&self) -> Option<&JobId> {
        match &self.stage {
            Stage::Accepted { job } => Some(job),
            Stage::Requested | Stage::Doubtful { .. } | Stage::Dropped { .. } => None,
        }
    }

    /// Whether its answer is still to come, or to be looked for.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Requested | Stage::Doubtful { .. })
    }
}

impl Allocation {
    pub(crate) const fn new() -> Self {
        Self {
            state: AllocationState::Requested,
            restarts: 0,
            worker: None,
            said_hello: false,
            used: Millis(0),
            missing_since: None,
            unmanned_since: None,
            release: None,
        }
    }

    /// Whether it is not over: asked for, waiting or running.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        !matches!(self.state, AllocationState::Ended { .. })
    }

    /// Whether it is asked for or waits, and has no node yet.
    #[must_use]
    pub const fn is_waiting(&self) -> bool {
        matches!(self.state, AllocationState::Requested | AllocationState::Submitted | AllocationState::Queued { .. })
    }

    /// When its time is over, if that is known.
    #[must_use]
    pub const fn ends_at(&self) -> Option<Timestamp> {
        match self.state {
            AllocationState::Running { ends_at, .. } => ends_at,
            _ => None,
        }
    }

    /// The time of a node that it has used or may still use, if `walltime` was asked for.
    #[must_use]
    pub fn committed(&self, walltime: Millis) -> Millis {
        let now = match self.state {
            AllocationState::Ended { .. } => Millis(0),
            AllocationState::Running { since, ends_at: Some(ends_at), .. } => ends_at.since(since).max(walltime),
            _ => walltime,
        };
        Millis(self.used.0.saturating_add(now.0))
    }
}
