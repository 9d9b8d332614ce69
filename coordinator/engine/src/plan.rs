//! What pools would ask for and why not for more: for people, and for the decision itself.

use std::fmt;

use longhaul_core::time::{Millis, Timestamp};

use crate::allocation::{Allocation, AllocationId, AllocationState, JobId, PoolId, PoolRecord, Queue, Stage, Token};
use crate::engine::Engine;
use crate::state::{Capacity, WorkerProfile};

/// What a pool would ask for now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolPlan {
    /// The pool.
    pub pool: PoolId,
    /// How many due episodes find no room on workers that are there or on their way, and
    /// would find it on new workers of this pool.
    pub episodes: u32,
    /// How many workers those would fill.
    pub wanted: u32,
    /// How many would be asked for now, in one submission.
    pub count: u32,
    /// For how long each.
    pub walltime: Millis,
    /// How many allocations the pool has: asked for, waiting or running.
    pub live: u32,
    /// How many of those are asked for or wait.
    pub queued: u32,
    /// The time of nodes that it has used, and may still use with what it has.
    pub committed: Millis,
    /// Why `count` is below `wanted`. Those that hold everything come first.
    pub holds: Vec<Hold>,
}

/// What keeps a pool from asking for (all of) what it wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hold {
    /// It was removed.
    Removed,
    /// It failed too often, and waits for a person.
    Paused {
        /// Since when.
        at: Timestamp,
        /// Why; hostile until escaped.
        reason: String,
    },
    /// It is left alone after a refusal or failure.
    Backoff {
        /// Until when.
        until: Timestamp,
        /// Why; hostile until escaped.
        reason: String,
    },
    /// The queue was not looked at since the coordinator started.
    QueueUnknown,
    /// The queue does not answer.
    QueueUnreachable {
        /// Since when.
        since: Timestamp,
        /// What came instead; hostile until escaped.
        reason: String,
    },
    /// A submission is on its way.
    Submitting {
        /// Which.
        token: Token,
    },
    /// Nobody knows what came of a submission; it is looked for.
    Doubtful {
        /// Which.
        token: Token,
        /// Why; hostile until escaped.
        reason: String,
    },
    /// What it may ask for is too short for any episode.
    TooShort {
        /// The walltime.
        walltime: Millis,
        /// What it has to be above.
        least: Millis,
    },
    /// It has as many workers as it may.
    MaxWorkers {
        /// The limit.
        limit: u32,
        /// How many it has.
        live: u32,
    },
    /// As many wait as may.
    MaxQueued {
        /// The limit.
        limit: u32,
        /// How many wait.
        queued: u32,
    },
    /// The partition has no more nodes.
    Partition {
        /// How many workers it could hold.
        workers: u32,
        /// How many the pool has.
        live: u32,
    },
    /// Its workers have less than it promises: what needs more is not asked for.
    FallsShort {
        /// What it promises.
        promised: Capacity,
        /// The most that its workers said they have.
        reported: Capacity,
    },
    /// The time of nodes is used up, or would be if everything ran to its end.
    NodeTime {
        /// The limit.
        limit: Millis,
        /// What is used and may be.
        committed: Millis,
    },
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Removed => f.write_str("the pool was removed"),
            Self::Paused { reason, .. } => write!(f, "the pool is paused: {reason}"),
            Self::Backoff { reason, .. } => write!(f, "the pool waits before it asks again: {reason}"),
            Self::QueueUnknown => f.write_str("the queue was not looked at yet"),
            Self::QueueUnreachable { reason, .. } => write!(f, "the queue does not answer: {reason}"),
            Self::Submitting { token } => write!(f, "the submission {token} is on its way"),
            Self::Doubtful { token, reason } => {
                write!(f, "it is not known whether Slurm has the submission {token}: {reason}")
            }
            Self::TooShort { walltime, least } => {
                write!(f, "a walltime of {walltime} is not above {least}, below which a worker gets no episode")
            }
            Self::MaxWorkers { limit, live } => write!(f, "the pool has {live} of at most {limit} workers"),
            Self::MaxQueued { limit, queued } => write!(f, "{queued} of at most {limit} allocations wait in the queue"),
            Self::Partition { workers, live } => {
                write!(f, "the partition holds at most {workers} workers, and the pool has {live}")
            }
            Self::FallsShort { promised, reported } => write!(
                f,
                "its workers report {} cpus, {} MiB and {} gpus, and the pool promises {} cpus, {} MiB and {} gpus: \
                 what needs more than they report is not asked for",
                reported.cpu_millis / 1000,
                reported.memory_mib,
                reported.gpus,
                promised.cpu_millis / 1000,
                promised.memory_mib,
                promised.gpus
            ),
            Self::NodeTime { limit, committed } => {
                write!(f, "of the {limit} of node time, {committed} are used or held by what runs and waits")
            }
        }
    }
}

/// An allocation as people want to see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocationView {
    /// Which.
    pub id: AllocationId,
    /// The job's id, if it is known.
    pub job: Option<JobId>,
    /// Where its submission stands.
    pub stage: Stage,
    /// What is known of it.
    pub allocation: Allocation,
    /// Its worker, if one is known now.
    pub worker: Option<WorkerProfile>,
    /// Why that takes no leases, if it takes none; hostile until escaped.
    pub unfit: Option<String>,
}

impl AllocationView {
    /// Why it is where it is, in a sentence; what Slurm says in it is hostile until escaped.
    #[must_use]
    pub fn reason(&self) -> String {
        let Allocation { state, release, missing_since, .. } = &self.allocation;
        let mut text = match (state, &self.stage) {
            (AllocationState::Requested, Stage::Doubtful { reason, .. }) => {
                format!("it is not known whether Slurm has it, and it is looked for: {reason}")
            }
            (AllocationState::Requested, _) => "it is being submitted".to_owned(),
            (AllocationState::Submitted, _) => "Slurm took it, and the queue did not show it yet".to_owned(),
            (AllocationState::Queued { reason, .. }, _) => format!("it waits in the queue: {reason}"),
            (AllocationState::Running { .. }, _) if self.worker.is_none() && self.allocation.said_hello => {
                "it runs, and its worker is not heard of".to_owned()
            }
            (AllocationState::Running { .. }, _) if self.worker.is_none() => {
                "it runs, and its worker did not say hello yet".to_owned()
            }
            (AllocationState::Running { .. }, _) => match &self.unfit {
                Some(unfit) => format!("it runs, and its worker takes no episodes: {unfit}"),
                None => "it runs".to_owned(),
            },
            (AllocationState::Ended { why, .. }, _) => format!("it is over: {why}"),
        };
        if missing_since.is_some() && self.allocation.is_live() {
            text.push_str("; the queue does not show it any more");
        }
        if let Some(release) = release {
            text = format!("{text}; we ended it: {}", release.reason);
        }
        text
    }
}

/// Why a pool has what it has, and not more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolWhy {
    /// The pool and how it fares.
    pub record: PoolRecord,
    /// What it would ask for now, and what holds it back.
    pub plan: PoolPlan,
    /// What is known of the queue.
    pub queue: Queue,
    /// Its allocations, those that are over and remembered too.
    pub allocations: Vec<AllocationView>,
}

impl Engine {
    /// What every pool would ask for at `now`, and what holds it back. Changes nothing.
    #[must_use]
    pub fn plan(&self, now: Timestamp) -> Vec<PoolPlan> {
        self.pool_plans(self.volatile.reading(now, self.settings.skew))
    }

    /// Why a pool has what it has at `now`; nothing if there is no such pool.
    #[must_use]
    pub fn why(&self, now: Timestamp, pool: &PoolId) -> Option<PoolWhy> {
        let record = self.state.pools.get(pool)?.clone();
        let plan = self.plan(now).into_iter().find(|plan| plan.pool == *pool)?;
        let allocations = self.state.allocations_of(pool).map(|(id, submission, allocation)| AllocationView {
            id,
            job: submission.job().cloned(),
            stage: submission.stage.clone(),
            allocation: allocation.clone(),
            worker: allocation.worker.and_then(|id| Some(self.state.workers.get(&id)?.profile.clone())),
            unfit: allocation.worker.and_then(|id| {
                let worker = self.state.workers.get(&id)?;
                worker.draining.clone().or_else(|| worker.unfit.clone())
            }),
        });
        Some(PoolWhy { record, plan, queue: self.state.queue.clone(), allocations: allocations.collect() })
    }
}
