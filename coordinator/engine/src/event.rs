//! Events: what was decided. The journal is the sequence of them, and the state is
//! what [`Engine::apply`](crate::Engine::apply) makes of that sequence.
//!
//! They are stored: a variant or field is never given another meaning. New fields come
//! with a `serde(default)`, and [`crate::snapshot::FORMAT`] is bumped when an old reader
//! would misread what a new writer wrote.

use longhaul_core::call::PurseKind;
use longhaul_core::digest::Digest;
use longhaul_core::ids::{EpisodeId, RunId, WorkerId};
use longhaul_core::money::Money;
use longhaul_core::outcome::{AttemptEnd, Fault, Settlement};
use longhaul_core::plan::{LayerKind, Resources, RunPlan};
use longhaul_core::purse::PurseState;
use longhaul_core::time::{Millis, Timestamp};
use serde::{Deserialize, Serialize};

use crate::allocation::{AllocationEnd, JobId, JobPhase, PartitionOffer, Pool, PoolId, Token};
use crate::lease::LeaseRef;
use crate::ledger::ScopeName;
use crate::state::{LayerInfo, Readiness, Revived, RunTerms, WorkerProfile};

/// A fact, as the journal has it. Heartbeats and progress are none: they are not stored.
///
/// Events come in batches, one for each command, which are stored whole or not at all;
/// between the events of a batch the state may be on its way (an attempt that ended,
/// its episode not settled yet).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A coordinator started on this journal; no worker is connected to it yet.
    CoordinatorRestarted {
        /// When.
        at: Timestamp,
    },
    /// A run was accepted.
    RunSubmitted {
        /// When.
        at: Timestamp,
        /// The run.
        run: RunId,
        /// The blob that the plan was read from.
        digest: Digest,
        /// What is asked for.
        plan: RunPlan,
        /// How it stands beside other runs, and how long its episodes may take.
        #[serde(default, skip_serializing_if = "RunTerms::is_default")]
        terms: RunTerms,
    },
    /// A person cancelled a run: nothing of it is started any more.
    RunCancelled {
        /// When.
        at: Timestamp,
        /// The run.
        run: RunId,
        /// Who asked.
        by: String,
    },
    /// A person wants a run to go on: it is cancelled no more, and these of its episodes, which
    /// were settled without a verdict, are due again.
    RunResumed {
        /// When.
        at: Timestamp,
        /// The run.
        run: RunId,
        /// Who asked.
        by: String,
        /// The indices of the episodes.
        episodes: Vec<u32>,
        /// What the store knows of the run, if the engine had forgotten it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        revived: Option<Box<Revived>>,
    },
    /// The last episode of a run was settled.
    RunSettled {
        /// When.
        at: Timestamp,
        /// The run.
        run: RunId,
    },
    /// A settled run was reduced to its summary.
    RunForgotten {
        /// When.
        at: Timestamp,
        /// The run.
        run: RunId,
    },
    /// A worker opened a session.
    WorkerConnected {
        /// When.
        at: Timestamp,
        /// The worker.
        worker: WorkerId,
        /// Which session.
        session: u64,
        /// What it has and where it is.
        profile: WorkerProfile,
        /// The attempts that it said it holds.
        live: Vec<LeaseRef>,
        /// Whether it takes leases.
        #[serde(default, skip_serializing_if = "Readiness::is_fit")]
        readiness: Readiness,
    },
    /// A worker's session ended.
    WorkerDisconnected {
        /// When.
        at: Timestamp,
        /// The worker.
        worker: WorkerId,
    },
    /// A worker takes no more leases.
    WorkerDraining {
        /// When.
        at: Timestamp,
        /// The worker.
        worker: WorkerId,
        /// Why.
        reason: String,
    },
    /// A worker left, or was not heard of for too long. It holds nothing any more.
    WorkerGone {
        /// When.
        at: Timestamp,
        /// The worker.
        worker: WorkerId,
        /// What happened to it.
        departure: Departure,
    },
    /// A worker got the exclusive right to an attempt.
    LeaseGranted {
        /// When.
        at: Timestamp,
        /// The attempt and its epoch.
        lease: LeaseRef,
        /// The worker.
        worker: WorkerId,
        /// What of the worker it takes up.
        reserved: Resources,
        /// Whether the attempt is to go on where the one before it was cut off.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        resumes: bool,
    },
    /// A worker reported the end of an attempt that it held.
    AttemptEnded {
        /// When.
        at: Timestamp,
        /// The attempt and its epoch.
        lease: LeaseRef,
        /// The worker.
        worker: WorkerId,
        /// How it ended.
        end: AttemptEnd,
        /// How many steps it has.
        steps: u32,
        /// How much time its worker had left when it began, if the end of that time cut it off.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cut_off: Option<Millis>,
        /// What its purses came to.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        purses: Vec<(PurseKind, PurseState)>,
    },
    /// A lease ran out, or was given back: the attempt ended without a report.
    AttemptLost {
        /// When.
        at: Timestamp,
        /// The attempt and its epoch.
        lease: LeaseRef,
        /// The worker.
        worker: WorkerId,
        /// Why: of the class `WorkerLost` or `Preempted`.
        fault: Fault,
        /// How much time its worker had left when it began, if the end of that time cut it off.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cut_off: Option<Millis>,
        /// How many steps its trajectory had, as far as its worker said; 0 if it never lived.
        #[serde(default)]
        steps: u32,
    },
    /// An episode waits for its next attempt.
    EpisodeRequeued {
        /// When.
        at: Timestamp,
        /// The episode.
        episode: EpisodeId,
        /// How long it is left alone.
        delay: Millis,
    },
    /// An episode is settled, once and for good.
    EpisodeSettled {
        /// When.
        at: Timestamp,
        /// The episode.
        episode: EpisodeId,
        /// How.
        settlement: Settlement,
    },
    /// A worker was told to build a layer.
    LayerClaimed {
        /// When.
        at: Timestamp,
        /// The layer's key.
        key: Digest,
        /// Which of the env's layers.
        kind: LayerKind,
        /// The env's folder name.
        env: String,
        /// The worker that builds it; in the place of the one before, if there was one.
        worker: WorkerId,
    },
    /// A worker waits for a layer that another one builds.
    LayerAwaited {
        /// When.
        at: Timestamp,
        /// The layer's key.
        key: Digest,
        /// The worker that waits.
        worker: WorkerId,
    },
    /// A worker was told what is known of a layer.
    LayerAnswered {
        /// When.
        at: Timestamp,
        /// The layer's key.
        key: Digest,
        /// The worker that asked.
        worker: WorkerId,
    },
    /// Nobody builds the layer any more, and nobody waits for it.
    LayerReleased {
        /// When.
        at: Timestamp,
        /// The layer's key.
        key: Digest,
    },
    /// A layer is there.
    LayerReady {
        /// When.
        at: Timestamp,
        /// The layer's key.
        key: Digest,
        /// Which of the env's layers.
        kind: LayerKind,
        /// The env's folder name.
        env: String,
        /// Its content.
        info: LayerInfo,
        /// The worker that reported it.
        worker: WorkerId,
        /// Whether that worker built it, or found it.
        built: bool,
        /// How long building took.
        took: Millis,
        /// The workers that waited for it.
        waiters: Vec<WorkerId>,
    },
    /// A layer's hook failed: the layer is not tried again for the runs that wanted it.
    LayerFailed {
        /// When.
        at: Timestamp,
        /// The layer's key.
        key: Digest,
        /// Which of the env's layers.
        kind: LayerKind,
        /// The env's folder name.
        env: String,
        /// Why.
        fault: Fault,
        /// The worker that reported it.
        worker: WorkerId,
        /// The workers that waited for it.
        waiters: Vec<WorkerId>,
        /// The runs that wanted it.
        runs: Vec<RunId>,
    },
    /// A worker can take no leases, or can again.
    WorkerUnfit {
        /// When.
        at: Timestamp,
        /// The worker.
        worker: WorkerId,
        /// Why it can take none.
        reason: Option<String>,
    },
    /// A purse holds too little for a call: it waits its turn.
    EscrowRequested {
        /// When.
        at: Timestamp,
        /// The attempt and its epoch.
        lease: LeaseRef,
        /// Which of its purses.
        purse: PurseKind,
        /// What has become of it, as its worker says.
        state: PurseState,
        /// What the sum of grants has to reach for the call.
        wanted: Money,
        /// The most that the call can cost.
        bound: Money,
    },
    /// The sum of a purse's grants, from now on or once more. Its request is answered.
    EscrowGranted {
        /// When.
        at: Timestamp,
        /// The attempt and its epoch.
        lease: LeaseRef,
        /// Which of its purses.
        purse: PurseKind,
        /// The sum.
        granted: Money,
    },
    /// A call will never fit: its request is answered.
    EscrowRefused {
        /// When.
        at: Timestamp,
        /// The attempt and its epoch.
        lease: LeaseRef,
        /// Which of its purses.
        purse: PurseKind,
        /// In which scope, in words.
        reason: String,
    },
    /// Others wait for money: what is free in these purses is asked back.
    EscrowRecalled {
        /// When.
        at: Timestamp,
        /// The attempts and their epochs, and which of their purses.
        purses: Vec<(LeaseRef, PurseKind)>,
    },
    /// A worker said something new of a purse.
    EscrowReported {
        /// When.
        at: Timestamp,
        /// The attempt and its epoch.
        lease: LeaseRef,
        /// Which of its purses.
        purse: PurseKind,
        /// What it said.
        state: PurseState,
    },
    /// No call is made from these purses any more: what they came to.
    PursesClosed {
        /// When.
        at: Timestamp,
        /// The attempt and its epoch.
        lease: LeaseRef,
        /// Its purses.
        purses: Vec<(PurseKind, PurseState)>,
    },
    /// A person raised a cap.
    BudgetRaised {
        /// When.
        at: Timestamp,
        /// The run.
        run: RunId,
        /// Which of its caps.
        scope: ScopeName,
        /// The cap from now on.
        cap: Money,
        /// Who asked.
        by: String,
    },
    /// So much of a cap is spent.
    BudgetNearlySpent {
        /// When.
        at: Timestamp,
        /// The run.
        run: RunId,
        /// Which of its caps.
        scope: ScopeName,
        /// How many hundredths.
        percent: u8,
    },
    /// An endpoint does not answer any more, or does again.
    EndpointSeen {
        /// When.
        at: Timestamp,
        /// The endpoint.
        endpoint: String,
        /// Why it is down, if it is.
        down: Option<String>,
    },
    /// A pool is as given from now on.
    PoolSet {
        /// When.
        at: Timestamp,
        /// The pool.
        pool: Pool,
    },
    /// A pool is not asked with any more.
    PoolRemoved {
        /// When.
        at: Timestamp,
        /// The pool.
        pool: PoolId,
    },
    /// The partition behind a pool has something else than before.
    PartitionSeen {
        /// When.
        at: Timestamp,
        /// The pool.
        pool: PoolId,
        /// What it has.
        offer: PartitionOffer,
    },
    /// Something of a pool came to nothing: it is left alone for a while.
    PoolFailed {
        /// When.
        at: Timestamp,
        /// The pool.
        pool: PoolId,
        /// What.
        reason: String,
        /// For how long.
        delay: Millis,
    },
    /// A pool failed too often in a row.
    PoolPaused {
        /// When.
        at: Timestamp,
        /// The pool.
        pool: PoolId,
        /// Why.
        reason: String,
    },
    /// A person says that what made a pool fail is mended.
    PoolResumed {
        /// When.
        at: Timestamp,
        /// The pool.
        pool: PoolId,
    },
    /// Allocations are to be asked for.
    AllocationsRequested {
        /// When.
        at: Timestamp,
        /// The pool.
        pool: PoolId,
        /// The submission.
        token: Token,
        /// How many.
        count: u32,
        /// For how long each.
        walltime: Millis,
    },
    /// Slurm has a submission.
    SubmissionAccepted {
        /// When.
        at: Timestamp,
        /// The submission.
        token: Token,
        /// Its id.
        job: JobId,
    },
    /// Slurm said no: the submission is over, no job came of it.
    SubmissionRefused {
        /// When.
        at: Timestamp,
        /// The submission.
        token: Token,
        /// What Slurm said.
        reason: String,
        /// Whether another try may heal it.
        transient: bool,
        /// How long the pool is left alone.
        delay: Millis,
    },
    /// Nobody knows whether Slurm has a submission.
    SubmissionDoubted {
        /// When.
        at: Timestamp,
        /// The submission.
        token: Token,
        /// What happened.
        reason: String,
    },
    /// A submission was looked for and not found: it is asked again, under the same token.
    SubmissionRetried {
        /// When.
        at: Timestamp,
        /// The submission.
        token: Token,
    },
    /// A submission was looked for and not found, and is not wanted any more.
    SubmissionDropped {
        /// When.
        at: Timestamp,
        /// The submission.
        token: Token,
        /// Why it is not wanted.
        reason: String,
    },
    /// All of a submission was over for long.
    SubmissionForgotten {
        /// When.
        at: Timestamp,
        /// The submission.
        token: Token,
    },
    /// The queue answers (again).
    QueueAnswered {
        /// When.
        at: Timestamp,
    },
    /// The queue does not answer.
    QueueUnreachable {
        /// When.
        at: Timestamp,
        /// What came instead of an answer.
        reason: String,
    },
    /// The queue shows allocations in another state than before.
    AllocationsSeen {
        /// When.
        at: Timestamp,
        /// The submission.
        token: Token,
        /// Its id.
        job: JobId,
        /// Which of its tasks.
        tasks: Vec<u32>,
        /// How often they were started anew.
        restarts: u32,
        /// Where they are.
        phase: JobPhase,
    },
    /// An answer of the queue lacks an allocation for the first time.
    AllocationMissing {
        /// When.
        at: Timestamp,
        /// The submission.
        token: Token,
        /// Which of its tasks.
        task: u32,
    },
    /// An allocation is over.
    AllocationEnded {
        /// When.
        at: Timestamp,
        /// The submission.
        token: Token,
        /// Which of its tasks.
        task: u32,
        /// Why.
        why: AllocationEnd,
    },
    /// Allocations are to be ended: nothing is there for them to do.
    AllocationReleased {
        /// When.
        at: Timestamp,
        /// The submission.
        token: Token,
        /// Which of its tasks.
        tasks: Vec<u32>,
        /// Why.
        reason: String,
    },
    /// A second job carries the token of a submission: it is to be ended.
    StrayFound {
        /// When.
        at: Timestamp,
        /// The submission.
        token: Token,
        /// The job that is too much.
        job: JobId,
    },
    /// The store was restored from a backup: nothing is begun and no money is granted until that is
    /// accepted. The events after it end what was live.
    StoreRestored {
        /// When.
        at: Timestamp,
        /// The incarnation that began with it.
        incarnation: u64,
    },
    /// An attempt that was begun after the backup was heard of. It is over, and its money counts.
    AttemptAdopted {
        /// When.
        at: Timestamp,
        /// The attempt and its epoch.
        lease: LeaseRef,
        /// The worker that spoke of it.
        worker: WorkerId,
        /// That worker's node.
        hostname: String,
    },
    /// A person accepted what the restored store does not know.
    RestoreAccepted {
        /// When.
        at: Timestamp,
        /// Who.
        by: String,
    },
}

/// What happened to a worker that is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Departure {
    /// It said that it stops.
    Left {
        /// Why.
        reason: String,
    },
    /// It was not heard of for a lease's time and the allowed skew.
    Lost,
    /// Slurm says that its allocation ended on its node: no process of it is left.
    Ended {
        /// Why.
        why: AllocationEnd,
    },
}

impl Event {
    /// When it was decided.
    #[must_use]
    pub const fn at(&self) -> Timestamp {
        match self {
            Self::CoordinatorRestarted { at }
            | Self::RunSubmitted { at, .. }
            | Self::RunCancelled { at, .. }
            | Self::RunResumed { at, .. }
            | Self::RunSettled { at, .. }
            | Self::RunForgotten { at, .. }
            | Self::WorkerConnected { at, .. }
            | Self::WorkerDisconnected { at, .. }
            | Self::WorkerDraining { at, .. }
            | Self::WorkerGone { at, .. }
            | Self::LeaseGranted { at, .. }
            | Self::AttemptEnded { at, .. }
            | Self::AttemptLost { at, .. }
            | Self::EpisodeRequeued { at, .. }
            | Self::EpisodeSettled { at, .. }
            | Self::LayerClaimed { at, .. }
            | Self::LayerAwaited { at, .. }
            | Self::LayerAnswered { at, .. }
            | Self::LayerReleased { at, .. }
            | Self::LayerReady { at, .. }
            | Self::LayerFailed { at, .. }
            | Self::WorkerUnfit { at, .. }
            | Self::EscrowRequested { at, .. }
            | Self::EscrowGranted { at, .. }
            | Self::EscrowRefused { at, .. }
            | Self::EscrowRecalled { at, .. }
            | Self::EscrowReported { at, .. }
            | Self::PursesClosed { at, .. }
            | Self::BudgetRaised { at, .. }
            | Self::BudgetNearlySpent { at, .. }
            | Self::EndpointSeen { at, .. }
            | Self::PoolSet { at, .. }
            | Self::PoolRemoved { at, .. }
            | Self::PartitionSeen { at, .. }
            | Self::PoolFailed { at, .. }
            | Self::PoolPaused { at, .. }
            | Self::PoolResumed { at, .. }
            | Self::AllocationsRequested { at, .. }
            | Self::SubmissionAccepted { at, .. }
            | Self::SubmissionRefused { at, .. }
            | Self::SubmissionDoubted { at, .. }
            | Self::SubmissionRetried { at, .. }
            | Self::SubmissionDropped { at, .. }
            | Self::SubmissionForgotten { at, .. }
            | Self::QueueAnswered { at }
            | Self::QueueUnreachable { at, .. }
            | Self::AllocationsSeen { at, .. }
            | Self::AllocationMissing { at, .. }
            | Self::AllocationEnded { at, .. }
            | Self::AllocationReleased { at, .. }
            | Self::StrayFound { at, .. }
            | Self::StoreRestored { at, .. }
            | Self::AttemptAdopted { at, .. }
            | Self::RestoreAccepted { at, .. } => *at,
        }
    }
}
