//! The durable state: what the journal adds up to.
//!
//! Nothing here depends on when it was last heard from whom; that is
//! `volatile` and is lost with the process, on purpose.

mod workers;

use std::collections::{BTreeMap, BTreeSet};

use longhaul_core::agent::AgentSpec;
use longhaul_core::call::PurseKind;
use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, EpisodeId, Epoch, RunId, TaskName, WorkerId};
use longhaul_core::outcome::{AttemptEnd, Earlier, EndedBy, Fault, FaultClass, Settlement};
use longhaul_core::plan::{EnvEntry, EpisodeEntry, LayerKind, RunPlan};
use longhaul_core::resume::ResumePolicy;
use longhaul_core::time::{Millis, Timestamp};
use serde::{Deserialize, Serialize};

use crate::allocation::{Allocation, AllocationId, PoolId, PoolRecord, Queue, Submission, Token};
use crate::lease::LeaseRef;
use crate::ledger::{Ledger, Purse};
use crate::restored::Restored;

pub use workers::{Capacity, Lease, Readiness, Worker, WorkerProfile};

/// All that is durable.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// The largest epoch ever given out.
    pub last_epoch: Epoch,
    /// Runs in the order in which they were submitted, settled ones included until they
    /// are forgotten.
    pub order: Vec<RunId>,
    /// The runs in `order`.
    pub runs: BTreeMap<RunId, Run>,
    /// What is kept of runs that were forgotten.
    pub forgotten: BTreeMap<RunId, ForgottenRun>,
    /// Workers that were heard of and not given up.
    pub workers: BTreeMap<WorkerId, Worker>,
    /// Layers by key.
    pub layers: BTreeMap<Digest, Layer>,
    /// Plans of envs that an attempt got ready once: their layers are warm.
    pub proven: BTreeSet<Digest>,
    /// How long scored attempts took, by the plan of their env.
    #[serde(default)]
    pub durations: BTreeMap<Digest, Durations>,
    /// The patterns that allocations are asked with.
    #[serde(default)]
    pub pools: BTreeMap<PoolId, PoolRecord>,
    /// What was asked for, until all of it was over for long.
    #[serde(default)]
    pub submissions: BTreeMap<Token, Submission>,
    /// How many submissions there ever were.
    #[serde(default)]
    pub submitted: u64,
    /// What is known of the queue.
    #[serde(default)]
    pub queue: Queue,
    /// Counts what may change what the queue shows: see [`Submission::mark`].
    #[serde(default)]
    pub queue_mark: u64,
    /// The nodes, by name, on which an attempt ended on a full disk, and when the last did.
    #[serde(default)]
    pub full_disks: BTreeMap<String, Timestamp>,
    /// The time of nodes that pools used up which were forgotten since: a pool that is set again
    /// goes on from there.
    #[serde(default)]
    pub node_time: BTreeMap<PoolId, Millis>,
    /// The last episodes that were set aside for what is not their own fault, oldest first:
    /// kept beyond their runs.
    #[serde(default)]
    pub set_aside: Vec<SetAside>,
    /// The money of runs; of those that were forgotten, what may still change.
    #[serde(default)]
    pub ledgers: BTreeMap<RunId, Ledger>,
    /// The endpoints that do not answer, and why.
    #[serde(default)]
    pub endpoints_down: BTreeMap<String, String>,
    /// What is known of the backup that the store was restored from, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored: Option<Restored>,
}

/// An episode that was settled as faulted for what befell it again and again, and that a
/// person can do something about: the end of its allocation, full disks, lost workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAside {
    /// When.
    pub at: Timestamp,
    /// The episode.
    pub episode: EpisodeId,
    /// Its task.
    pub task: TaskName,
    /// Why, and what to do; what workers say in it is hostile until escaped.
    pub reason: String,
}

/// How long attempts took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Durations {
    /// How many.
    pub count: u32,
    /// All of them together.
    pub total: Millis,
}

impl Durations {
    /// How long one takes.
    #[must_use]
    pub const fn mean(&self) -> Option<Millis> {
        match self.total.0.checked_div(self.count as u64) {
            Some(mean) => Some(Millis(mean)),
            None => None,
        }
    }
}

/// How a run stands beside others, and what is known of its episodes beforehand.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunTerms {
    /// Runs of a higher priority get leases first; those of one priority share fairly.
    pub priority: i32,
    /// The longest that each episode may take, in the order of the plan: its time budget
    /// and what comes before and after. Empty if it is not known.
    pub limits: Vec<Millis>,
    /// The run file that it was submitted from, if it was: the same file again means this run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

impl RunTerms {
    /// Whether nothing is said.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// What is asked for.
    pub plan: RunPlan,
    /// The blob that the plan was read from.
    pub digest: Digest,
    /// When it was submitted.
    pub submitted_at: Timestamp,
    /// Whether and by whom it was cancelled.
    pub cancelled: Option<Cancellation>,
    /// When its last episode was settled.
    pub settled_at: Option<Timestamp>,
    /// How many episodes are not settled.
    pub open: u32,
    /// The episodes, as in the plan.
    pub episodes: Vec<Episode>,
    /// How it stands beside other runs.
    #[serde(default)]
    pub terms: RunTerms,
}

/// A person's order to stop a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancellation {
    /// When.
    pub at: Timestamp,
    /// Who.
    pub by: String,
}

/// What is kept of a run whose episodes the engine needs no more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForgottenRun {
    /// The blob that its plan was read from, so that a repeated submit is known.
    pub digest: Digest,
    /// How it ended.
    pub summary: RunSummary,
    /// How it stood beside other runs.
    #[serde(default)]
    pub priority: i32,
    /// The run file that it was submitted from, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// A run in one row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSummary {
    /// The run.
    pub run: RunId,
    /// Its name.
    pub name: String,
    /// When it was submitted.
    pub submitted_at: Timestamp,
    /// Whether it was cancelled.
    pub cancelled: bool,
    /// When its last episode was settled.
    pub settled_at: Option<Timestamp>,
    /// Its episodes by state.
    pub counts: Counts,
}

/// Episodes of a run by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Waiting for an attempt.
    pub queued: u32,
    /// With a live attempt.
    pub active: u32,
    /// Settled: solved.
    pub passed: u32,
    /// Settled: not solved.
    pub failed: u32,
    /// Settled: ran, but not scored.
    pub unverified: u32,
    /// Settled: stopped by a person.
    pub cancelled: u32,
    /// Settled: out of attempts.
    pub faulted: u32,
    /// Settled: no money was left to begin them.
    #[serde(default)]
    pub not_started: u32,
}

impl Counts {
    /// All episodes.
    #[must_use]
    pub const fn total(&self) -> u32 {
        self.queued
            + self.active
            + self.passed
            + self.failed
            + self.unverified
            + self.cancelled
            + self.faulted
            + self.not_started
    }
}

/// An episode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    /// Where it stands.
    pub state: EpisodeState,
    /// The attempts that ended, oldest first: attempt number 1 is the first of them.
    pub past: Vec<PastAttempt>,
    /// How it was settled before a person wanted it to be done again, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<Earlier>,
}

/// A run that the engine had forgotten, as the store knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Revived {
    /// What was asked for.
    pub plan: RunPlan,
    /// When.
    pub submitted_at: Timestamp,
    /// The episodes, as in the plan: all of them settled.
    pub episodes: Vec<Episode>,
}

/// Where an episode stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EpisodeState {
    /// It waits for an attempt.
    Queued {
        /// Since when.
        since: Timestamp,
        /// How long it is left alone first, after a fault.
        delay: Millis,
    },
    /// A worker has it.
    Active {
        /// The attempt's number.
        number: u32,
        /// The epoch of its lease.
        epoch: Epoch,
        /// The worker.
        worker: WorkerId,
        /// When the lease was granted.
        since: Timestamp,
    },
    /// It is settled, once and for good.
    Settled {
        /// When.
        at: Timestamp,
        /// How.
        settlement: Settlement,
    },
}

/// An attempt that is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastAttempt {
    /// The epoch of its lease.
    pub epoch: Epoch,
    /// The worker that had it.
    pub worker: WorkerId,
    /// That worker's node, for people.
    pub hostname: String,
    /// When the lease was granted.
    pub granted_at: Timestamp,
    /// When it ended.
    pub ended_at: Timestamp,
    /// How it ended.
    pub end: PastEnd,
    /// What became of the worker, if it was lost for a reason that is no guilt of the
    /// episode's: its node failed, its allocation was preempted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explained: Option<String>,
    /// How much time its worker had left when it began, if the end of that time cut it off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut_off: Option<Millis>,
    /// Whether it was to go on where the one before it was cut off.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resumes: bool,
    /// How many steps its trajectory has, as its worker said; 0 if it said nothing.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub steps: u32,
    /// Whether the next attempt is spared some of that, since it goes on from there: its
    /// trajectory is longer than that of any attempt before it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gained: bool,
    /// Whether a person had asked for its end, who then had the run go on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl PastAttempt {
    /// Whether it uses up one of the attempts that the retry policy allows: see [`PastEnd::counts_where`].
    #[must_use]
    pub const fn counts(&self) -> bool {
        !self.was_stopped() && self.end.counts_where(self.resumes)
    }

    /// Whether it ended because a person had asked for that: it says nothing of the episode.
    #[must_use]
    pub const fn was_stopped(&self) -> bool {
        self.stopped && matches!(self.end, PastEnd::Cancelled)
    }

    /// Whether the worker was lost while it ran the attempt, and nothing else explains it.
    #[must_use]
    pub const fn took_worker(&self) -> bool {
        self.end.took_worker() && self.explained.is_none()
    }
}

/// How an attempt ended, in short; the whole is in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PastEnd {
    /// Reported with a verdict, or as unverified: never tried again.
    Scored,
    /// Reported as stopped by a person.
    Cancelled,
    /// Reported as a fault.
    Fault(FaultClass),
    /// Not reported: the lease ran out or was given back.
    Lost(FaultClass),
}

impl PastEnd {
    /// The short form of a reported end.
    #[must_use]
    pub const fn of(end: &AttemptEnd) -> Self {
        match end {
            AttemptEnd::Verdict(_) | AttemptEnd::Unverified { .. } => Self::Scored,
            AttemptEnd::Cancelled => Self::Cancelled,
            AttemptEnd::Fault(fault) => Self::Fault(fault.class),
        }
    }

    /// Whether it uses up one of the attempts that the retry policy allows. A lost
    /// worker, a preemption and a full disk do not: they say nothing about the episode. Nor does
    /// an attempt that was to go on from somewhere and did not get there, which has bounds of its own.
    #[must_use]
    pub const fn counts_where(self, resumes: bool) -> bool {
        match self {
            Self::Scored | Self::Cancelled => true,
            Self::Fault(class) | Self::Lost(class) => {
                !(matches!(class, FaultClass::WorkerLost | FaultClass::Preempted | FaultClass::NodeDisk)
                    || resumes && self.diverged())
            }
        }
    }

    /// Whether it did not get where it was to go on from.
    #[must_use]
    pub const fn diverged(self) -> bool {
        matches!(self, Self::Fault(FaultClass::ReplayDiverged) | Self::Lost(FaultClass::ReplayDiverged))
    }

    /// Whether the node's disk was full.
    #[must_use]
    pub const fn met_full_disk(self) -> bool {
        matches!(self, Self::Fault(FaultClass::NodeDisk) | Self::Lost(FaultClass::NodeDisk))
    }

    /// Whether a worker said so, rather than the coordinator for it.
    #[must_use]
    pub const fn was_reported(self) -> bool {
        !matches!(self, Self::Lost(_))
    }

    /// Whether the worker had to stop before the attempt was through.
    #[must_use]
    pub const fn was_preempted(self) -> bool {
        matches!(self, Self::Fault(FaultClass::Preempted) | Self::Lost(FaultClass::Preempted))
    }

    /// Whether the worker was lost while it ran the attempt.
    #[must_use]
    pub const fn took_worker(self) -> bool {
        matches!(self, Self::Fault(FaultClass::WorkerLost) | Self::Lost(FaultClass::WorkerLost))
    }
}

/// The content of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerInfo {
    /// The BLAKE3 of its file.
    pub content: Digest,
    /// Its size.
    pub bytes: u64,
}

/// A layer, as the workers of this coordinator know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// Which of the env's layers.
    pub kind: LayerKind,
    /// The env's folder name.
    pub env: String,
    /// Where it stands.
    pub state: LayerState,
}

/// Where a layer stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerState {
    /// One worker builds it.
    Building {
        /// That worker.
        worker: WorkerId,
        /// Since when.
        since: Timestamp,
        /// Those that wait for it, in the order in which they asked.
        waiters: Vec<WorkerId>,
    },
    /// It is there.
    Ready {
        /// Since when.
        at: Timestamp,
        /// Its content.
        info: LayerInfo,
        /// Who was told so; a worker that asks again could not find it.
        told: BTreeSet<WorkerId>,
    },
    /// Its hook failed.
    Failed {
        /// When.
        at: Timestamp,
        /// Why.
        fault: Fault,
        /// The runs that it is not tried again for.
        runs: BTreeSet<RunId>,
    },
}

impl Run {
    /// The episode at an index, and its entry in the plan.
    #[must_use]
    pub fn episode(&self, index: u32) -> Option<(&Episode, &EpisodeEntry)> {
        let index = usize::try_from(index).ok()?;
        Some((self.episodes.get(index)?, self.plan.episodes.get(index)?))
    }

    /// The env of an episode.
    #[must_use]
    pub fn env(&self, entry: &EpisodeEntry) -> Option<&EnvEntry> {
        self.plan.envs.get(usize::try_from(entry.env).ok()?)
    }

    /// An agent of the plan.
    #[must_use]
    pub fn agent(&self, index: u32) -> Option<&AgentSpec> {
        self.plan.agents.get(usize::try_from(index).ok()?)
    }

    /// The endpoints without which an episode's agent cannot act.
    #[must_use]
    pub fn endpoints(&self, entry: &EpisodeEntry) -> &[String] {
        self.agent(entry.agent).map(AgentSpec::endpoints).unwrap_or_default()
    }

    /// Whether the next attempt of an episode is spared some of what an attempt did whose trajectory
    /// has so many steps: it goes on from there, and none before got as far.
    pub(crate) fn gains(&self, episode: &Episode, steps: u32) -> bool {
        let keeps = self.plan.retry.resume != ResumePolicy::Restart;
        keeps && steps > 0 && episode.past.iter().all(|past| past.steps < steps)
    }

    /// Its episodes by state.
    #[must_use]
    pub fn counts(&self) -> Counts {
        use longhaul_core::outcome::SettlementKind as Kind;
        let mut counts = Counts::default();
        for episode in &self.episodes {
            let count = match &episode.state {
                EpisodeState::Queued { .. } => &mut counts.queued,
                EpisodeState::Active { .. } => &mut counts.active,
                EpisodeState::Settled { settlement, .. } => match settlement.kind() {
                    Kind::Passed => &mut counts.passed,
                    Kind::Failed => &mut counts.failed,
                    Kind::Unverified => &mut counts.unverified,
                    Kind::Cancelled => &mut counts.cancelled,
                    Kind::Faulted => &mut counts.faulted,
                    Kind::NotStarted => &mut counts.not_started,
                },
            };
            *count += 1;
        }
        counts
    }

    /// The run in one row.
    #[must_use]
    pub fn summary(&self, run: RunId) -> RunSummary {
        RunSummary {
            run,
            name: self.plan.name.clone(),
            submitted_at: self.submitted_at,
            cancelled: self.cancelled.is_some(),
            settled_at: self.settled_at,
            counts: self.counts(),
        }
    }
}

/// Whether it says anything of an episode that an attempt with so much time before it was cut
/// off: it had at least half of the longest on offer.
pub(crate) const fn cut_off_counts(had: Millis, longest: Millis) -> bool {
    had.0.saturating_mul(2) >= longest.0
}

impl Episode {
    /// How many attempts were given out, the live one included.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        let live = usize::from(matches!(self.state, EpisodeState::Active { .. }));
        u32::try_from(self.past.len() + live).unwrap_or(u32::MAX)
    }

    /// The attempts since a person last wanted it to be done again.
    #[must_use]
    pub fn recent(&self) -> &[PastAttempt] {
        let before = self.earlier.last().map_or(0, |earlier| earlier.attempts);
        usize::try_from(before).ok().and_then(|before| self.past.get(before..)).unwrap_or_default()
    }

    /// What ended the agent's part, if it is only to be verified again: it ran, and nothing
    /// trustworthy scored it.
    #[must_use]
    pub fn verifies(&self) -> Option<EndedBy> {
        match self.earlier.last()?.settlement {
            Settlement::Unverified { ended_by, .. } => Some(ended_by),
            _ => None,
        }
    }

    /// How it is settled where it is stopped before it has a verdict: one that is only verified
    /// again, as it was.
    #[must_use]
    pub fn stopped(&self) -> Settlement {
        let before = self.earlier.last().filter(|_| self.verifies().is_some());
        before.map_or(Settlement::Cancelled, |earlier| earlier.settlement.clone())
    }

    /// How many of the attempts that the retry policy allows are used up.
    #[must_use]
    pub fn counted_attempts(&self) -> u32 {
        u32::try_from(self.recent().iter().filter(|past| past.counts()).count()).unwrap_or(u32::MAX)
    }

    /// How many of its attempts were cut off by the end of an allocation although they had at
    /// least half of `longest` before them. Where some worker lasts without an end, none tells
    /// anything: the next attempt wants twice the time, until only that worker has it. Nor does
    /// one that got further than those before it, where the next one goes on from there.
    #[must_use]
    pub fn cut_offs(&self, longest: Option<Millis>) -> u32 {
        let counts = |had: Millis| longest.is_some_and(|longest| cut_off_counts(had, longest));
        let cut_offs = self.recent().iter().filter(|past| !past.gained && past.cut_off.is_some_and(counts)).count();
        u32::try_from(cut_offs).unwrap_or(u32::MAX)
    }

    /// Whether it waits and may be started at `now`. A clock that was set back makes no
    /// episode wait for its old future.
    #[must_use]
    pub fn is_due(&self, now: Timestamp) -> bool {
        match self.state {
            EpisodeState::Queued { since, delay } => now < since || now.since(since) >= delay,
            EpisodeState::Active { .. } | EpisodeState::Settled { .. } => false,
        }
    }
}

impl State {
    /// An allocation, and what it was asked with.
    #[must_use]
    pub fn allocation(&self, id: &AllocationId) -> Option<(&Submission, &Allocation)> {
        let submission = self.submissions.get(&id.token)?;
        Some((submission, submission.tasks.get(&id.task)?))
    }

    /// The allocations of a pool.
    pub fn allocations_of<'a>(
        &'a self,
        pool: &'a PoolId,
    ) -> impl Iterator<Item = (AllocationId, &'a Submission, &'a Allocation)> {
        self.submissions.iter().filter(move |(_, submission)| submission.pool == *pool).flat_map(
            |(token, submission)| {
                let id = |task: u32| AllocationId { token: token.clone(), task };
                submission.tasks.iter().map(move |(task, allocation)| (id(*task), submission, allocation))
            },
        )
    }

    /// A run's episode.
    #[must_use]
    pub fn episode(&self, id: EpisodeId) -> Option<&Episode> {
        Some(self.runs.get(&id.run)?.episode(id.index)?.0)
    }

    /// A purse of an attempt, if it asked for money.
    #[must_use]
    pub fn purse(&self, attempt: AttemptId, kind: PurseKind) -> Option<&Purse> {
        self.ledgers.get(&attempt.episode.run)?.purse(attempt, kind)
    }

    /// The worker that holds a lease now, and the lease itself, if it is current.
    #[must_use]
    pub fn holder(&self, lease: LeaseRef) -> Option<WorkerId> {
        match self.episode(lease.attempt.episode)?.state {
            EpisodeState::Active { number, epoch, worker, .. }
                if number == lease.attempt.number && epoch == lease.epoch =>
            {
                Some(worker)
            }
            _ => None,
        }
    }

    /// All live leases with their workers.
    pub fn leases(&self) -> impl Iterator<Item = (WorkerId, LeaseRef, &Lease)> {
        self.workers.iter().flat_map(|(worker, record)| {
            record
                .leases
                .iter()
                .map(move |(attempt, lease)| (*worker, LeaseRef { attempt: *attempt, epoch: lease.epoch }, lease))
        })
    }

    /// The env of an episode.
    #[must_use]
    pub fn env_of(&self, episode: EpisodeId) -> Option<&EnvEntry> {
        let run = self.runs.get(&episode.run)?;
        run.env(run.episode(episode.index)?.1)
    }
}
