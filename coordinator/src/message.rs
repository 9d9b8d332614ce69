//! What reaches the actor: one closed set, whatever it comes from.

use std::collections::BTreeMap;

use longhaul_core::call::PurseKind;
use longhaul_core::digest::Digest;
use longhaul_core::endpoint::GatewayPlan;
use longhaul_core::ids::{EpisodeId, RunId, WorkerId};
use longhaul_core::money::Money;
use longhaul_core::outcome::{AttemptEnd, SettlementKind};
use longhaul_core::plan::{LayerKind, RunPlan};
use longhaul_core::purse::PurseState;
use longhaul_core::time::Timestamp;
use longhaul_engine::state::{Readiness, RunSummary, RunTerms, WorkerProfile};
use longhaul_engine::{Command, LayerOutcome, LeaseRef, PoolId, Rejection, ScopeName, ScopeView};
use longhaul_proto::access::Secret;
use longhaul_proto::v1;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::allocator::Brief;
use crate::project::EndDetails;
use crate::replicas::Known;
use crate::revive::Back;
use crate::trajectory::Holder;

/// Asks the actor, and waits for what it answers.
pub(crate) async fn ask<T>(
    mailbox: &mpsc::Sender<Message>,
    ask: impl FnOnce(oneshot::Sender<T>) -> Ask,
) -> Result<T, Status> {
    let stopping = || Status::unavailable("the coordinator stops");
    let (reply, answer) = oneshot::channel();
    mailbox.send(Message::Ask(ask(reply))).await.map_err(|_| stopping())?;
    answer.await.map_err(|_| stopping())
}

/// The way to one worker. Bounded: a worker that does not read is cut off, and never
/// makes the actor wait.
pub(crate) type Outgoing = mpsc::Sender<Result<v1::ToWorker, Status>>;

/// How many messages may wait for one worker. A lease, an answer and an acknowledgement
/// are some hundred bytes each; a worker has hundreds of attempts at most.
pub(crate) const OUTGOING_CAPACITY: usize = 1024;

/// How many messages may wait for the actor; senders wait when it is full.
pub(crate) const MAILBOX_CAPACITY: usize = 1024;

/// How many messages are decided before what they changed is synced, at most.
pub(crate) const BATCH_LIMIT: usize = 256;

/// A message to the actor.
#[derive(Debug)]
pub(crate) enum Message {
    /// A worker opens a session.
    Hello {
        /// The worker.
        worker: WorkerId,
        /// This session's number.
        session: u64,
        /// What the worker has.
        profile: WorkerProfile,
        /// Whether it takes leases.
        readiness: Readiness,
        /// What it holds.
        live: Vec<LeaseRef>,
        /// The way to it.
        outgoing: Outgoing,
        /// Ends the session.
        close: CancellationToken,
        /// Answered once the session is open.
        reply: oneshot::Sender<Result<(), Rejection>>,
    },
    /// A session is over.
    Goodbye {
        /// The worker.
        worker: WorkerId,
        /// Which session.
        session: u64,
    },
    /// A worker says something.
    Report {
        /// The worker.
        worker: WorkerId,
        /// In which session.
        session: u64,
        /// What.
        report: Box<Report>,
    },
    /// Somebody asks.
    Ask(Ask),
    /// What Slurm said, as the allocator's task brings it.
    Slurm(Box<Command>),
    /// The allocator's task is about to look at the queue.
    Brief {
        /// The answer.
        reply: oneshot::Sender<Brief>,
    },
    /// Slurm starts nothing on these nodes any more.
    NodesDrained {
        /// All of them, whoever's.
        nodes: Vec<longhaul_slurm::DrainedNode>,
    },
    /// What files of addresses say has changed: all of them, as they are now.
    Replicas(BTreeMap<String, Known>),
    /// Every allocation is to be ended.
    EndAllocations {
        /// Answered when Slurm was told.
        done: oneshot::Sender<()>,
    },
    /// No worker gets a lease any more; what runs is finished or given back.
    Drain {
        /// Why, for people.
        reason: String,
    },
}

/// What a worker says.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "each lives in a channel for a moment; most are heartbeats")]
pub(crate) enum Report {
    /// It is there.
    Heartbeat {
        /// The heartbeat's number.
        sequence: u64,
        /// What it holds.
        live: Vec<LeaseRef>,
        /// Why it takes no leases now; nothing if it does.
        unfit: Option<String>,
        /// The number of the shares of endpoints that it acts by.
        shares: u64,
        /// How much of its spool is not acknowledged.
        undelivered: u64,
    },
    /// Where an attempt is; for people.
    Progress {
        /// The attempt.
        lease: LeaseRef,
        /// Where it is.
        phase: v1::AttemptPhase,
        /// How many steps it has.
        steps: u32,
    },
    /// An attempt ended, and the store has all its steps.
    Ended {
        /// The attempt.
        lease: LeaseRef,
        /// How.
        end: AttemptEnd,
        /// How many steps it has.
        steps: u32,
        /// What its purses came to.
        purses: Vec<(PurseKind, PurseState)>,
        /// What else there is to record.
        details: EndDetails,
    },
    /// A purse holds too little for the next call.
    MoneyWanted {
        /// The attempt.
        lease: LeaseRef,
        /// Which of its purses.
        purse: PurseKind,
        /// What has become of it.
        state: PurseState,
        /// What the sum of grants has to reach.
        wanted: Money,
        /// The least that makes the call possible at all.
        bound: Money,
    },
    /// What has become of a purse.
    Purse {
        /// The attempt.
        lease: LeaseRef,
        /// Which of its purses.
        purse: PurseKind,
        /// What has become of it.
        state: PurseState,
        /// No call is made from it any more.
        closed: bool,
    },
    /// Something of an attempt that the store does not know.
    Unknown {
        /// The attempt.
        lease: LeaseRef,
    },
    /// What it has seen of an endpoint.
    Endpoint(v1::EndpointWord),
    /// It lacks a layer.
    ClaimLayer {
        /// The layer.
        key: Digest,
        /// Which of the env's.
        kind: LayerKind,
        /// The env.
        env: String,
    },
    /// It has, or has not, got a layer ready.
    Layer {
        /// The layer.
        key: Digest,
        /// Which of the env's.
        kind: LayerKind,
        /// The env.
        env: String,
        /// What came of it.
        outcome: LayerOutcome,
    },
    /// It stops.
    Leaving {
        /// Why.
        reason: String,
    },
}

/// What a client asks.
#[derive(Debug)]
pub(crate) enum Ask {
    /// Run this.
    Submit {
        /// The id, made by the client.
        run: RunId,
        /// What.
        plan: Box<RunPlan>,
        /// The blob of the plan.
        digest: Digest,
        /// The models that it may call.
        gateway: Option<Box<GatewayPlan>>,
        /// How it stands beside other runs.
        terms: RunTerms,
        /// Whether it was there before.
        reply: oneshot::Sender<Result<bool, Rejection>>,
    },
    /// Stop a run.
    Cancel {
        /// Which.
        run: RunId,
        /// Who asks.
        by: String,
        /// How many episodes were open.
        reply: oneshot::Sender<Result<u32, Rejection>>,
    },
    /// The runs, in one row each.
    Runs {
        /// The answer.
        reply: oneshot::Sender<Vec<RunSummary>>,
    },
    /// The workers.
    Workers {
        /// The answer.
        reply: oneshot::Sender<Vec<v1::WorkerRow>>,
    },
    /// What is live in a run, if it is one.
    View {
        /// The run.
        run: RunId,
        /// How many of its settlements the asker has seen.
        seen: usize,
        /// The answer.
        reply: oneshot::Sender<Option<RunView>>,
    },
    /// Be woken when a run changes.
    Follow {
        /// The run.
        run: RunId,
        /// The answer.
        reply: oneshot::Sender<Option<watch::Receiver<u64>>>,
    },
    /// What a run may spend and has spent, as far as the engine knows it.
    Budget {
        /// The run.
        run: RunId,
        /// The answer; empty if the engine does not know the run.
        reply: oneshot::Sender<Vec<ScopeView>>,
    },
    /// Raise a cap.
    RaiseBudget {
        /// The run.
        run: RunId,
        /// Which of its caps.
        scope: ScopeName,
        /// The cap from now on.
        cap: Money,
        /// Who asks.
        by: String,
        /// The answer.
        reply: oneshot::Sender<Result<(), Rejection>>,
    },
    /// Keys of model vendors, by name: beside those that are known, or in their place.
    PutSecrets {
        /// The keys.
        secrets: Vec<(String, Secret)>,
        /// Answered once workers were told.
        reply: oneshot::Sender<()>,
    },
    /// The keys of model vendors, for the next coordinator of this store.
    Secrets {
        /// The answer.
        reply: oneshot::Sender<Vec<(String, Secret)>>,
    },
    /// The files of addresses that open runs name.
    Replicas {
        /// The answer.
        reply: oneshot::Sender<Vec<v1::ReplicasRow>>,
    },
    /// The pools of allocations.
    Pools {
        /// The answer.
        reply: oneshot::Sender<v1::ListPoolsResponse>,
    },
    /// What made a pool pause is mended.
    ResumePool {
        /// Which.
        pool: PoolId,
        /// The answer.
        reply: oneshot::Sender<Result<(), Rejection>>,
    },
    /// A run is to go on.
    Resume {
        /// The run.
        run: RunId,
        /// Who asks.
        by: String,
        /// Which of its episodes are to be done again.
        kinds: Vec<SettlementKind>,
        /// The run as the store has it, if it has settled.
        back: Option<Back>,
        /// How many are due again, and how many are open then.
        reply: oneshot::Sender<Result<(u32, u32), Rejection>>,
    },
    /// How a store that was restored from a backup stands.
    Restore {
        /// The answer.
        reply: oneshot::Sender<v1::ShowRestoreResponse>,
    },
    /// What the restored store does not know is accepted.
    AcceptRestore {
        /// By whom.
        by: String,
        /// Also where workers of the backup were not heard.
        unheard: bool,
        /// The answer: how it stands, or why not.
        reply: oneshot::Sender<Result<v1::ShowRestoreResponse, NotAccepted>>,
    },
    /// Who holds a lease, if it is not over.
    Holder {
        /// The lease.
        lease: LeaseRef,
        /// The answer.
        reply: oneshot::Sender<Option<Holder>>,
    },
    /// The newest live attempt's progress of an episode, for people.
    Live {
        /// The episode.
        episode: EpisodeId,
        /// The answer.
        reply: oneshot::Sender<Option<v1::LiveAttempt>>,
    },
}

/// Why a restore is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotAccepted {
    /// The engine refuses.
    #[error(transparent)]
    Refused(#[from] Rejection),
    /// The spools of workers are still to be heard.
    #[error("{} workers that held something in the backup were not heard: {}", .0.len(), .0.join(", "))]
    Unheard(Vec<String>),
}

/// A run as it is now.
#[derive(Clone, Debug)]
pub(crate) struct RunView {
    /// In one row.
    pub(crate) summary: RunSummary,
    /// What is live.
    pub(crate) live: Vec<v1::LiveAttempt>,
    /// What is being built for it.
    pub(crate) building: Vec<String>,
    /// Why nothing of it runs, if nothing does; else what its live attempts wait for.
    pub(crate) waiting: Vec<String>,
    /// Budgets that are nearly spent.
    pub(crate) warnings: Vec<String>,
    /// Episodes settled since the asker looked, in the order in which they were.
    pub(crate) settled: Vec<EpisodeId>,
}

/// The time, for the engine and for ids.
pub(crate) fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
