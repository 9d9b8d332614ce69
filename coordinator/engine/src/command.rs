//! Commands: what the shell asks of the engine, and why it may be refused.

use longhaul_core::call::PurseKind;
use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, Epoch, RunId, WorkerId};
use longhaul_core::money::Money;
use longhaul_core::outcome::{AttemptEnd, Fault, SettlementKind};
use longhaul_core::plan::{LayerKind, RunPlan};
use longhaul_core::purse::PurseState;
use longhaul_core::time::{Millis, Timestamp};
use serde::{Deserialize, Serialize};

use crate::allocation::{JobId, JobSeen, PartitionOffer, Pool, PoolId, Token};
use crate::lease::LeaseRef;
use crate::ledger::ScopeName;
use crate::state::{LayerInfo, Readiness, Revived, RunTerms, WorkerProfile};

/// Something that happened outside, or that a person asked for. The time is an
/// argument of [`Engine::decide`](crate::Engine::decide), beside the command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// The journal was replayed and no session is open: to be given once at every
    /// start, before anything else. Every live lease gets its full time again.
    CoordinatorRestarted,
    /// A person submits a run. The same run twice is accepted and changes nothing.
    SubmitRun {
        /// The id, made by the client.
        run: RunId,
        /// What is asked for.
        plan: RunPlan,
        /// The blob that the plan was read from.
        digest: Digest,
        /// How it stands beside other runs, and how long its episodes may take.
        #[serde(default)]
        terms: RunTerms,
    },
    /// A person cancels a run. Accepted and without effect if it has settled.
    CancelRun {
        /// The run.
        run: RunId,
        /// Who asked, for people.
        by: String,
    },
    /// A person wants a run to go on, and those of its episodes to be done again that were settled
    /// in one of these ways. Accepted and without effect if there is nothing to do again.
    ResumeRun {
        /// The run.
        run: RunId,
        /// Who asked, for people.
        by: String,
        /// Which episodes; a verdict is never asked for again.
        kinds: Vec<SettlementKind>,
        /// What the store knows of the run, if it has settled: the engine may have forgotten it.
        #[serde(default)]
        revived: Option<Box<Revived>>,
    },
    /// The store has all of a settled run; the engine keeps its summary only.
    ForgetRun {
        /// The run.
        run: RunId,
    },
    /// A worker said hello. Also when it was connected already: the new session counts.
    WorkerConnected {
        /// The worker.
        worker: WorkerId,
        /// Tells this session from earlier ones of the same worker; any number that
        /// the shell does not use twice between two restarts.
        session: u64,
        /// What it has and where it is.
        profile: WorkerProfile,
        /// Whether it takes leases.
        #[serde(default)]
        readiness: Readiness,
        /// The attempts that it holds: running, parked, or ended without an
        /// acknowledgement of that end.
        live: Vec<LeaseRef>,
    },
    /// A session is over. Its leases live on until they run out.
    WorkerDisconnected {
        /// The worker.
        worker: WorkerId,
        /// Which session; one that was replaced changes nothing.
        session: u64,
    },
    /// A worker gives back all that it holds; it has stopped its agents before saying so.
    WorkerLeaving {
        /// The worker.
        worker: WorkerId,
        /// Why, for people.
        reason: String,
    },
    /// A worker is to finish what it has and take nothing new.
    DrainWorker {
        /// The worker.
        worker: WorkerId,
        /// Why, for people.
        reason: String,
    },
    /// A worker says that it can take no leases, or that it can again: its disk is full.
    /// Given for every heartbeat; only a change is stored.
    WorkerUnfit {
        /// The worker.
        worker: WorkerId,
        /// Why it can take none; nothing if it can.
        reason: Option<String>,
    },
    /// An attempt ended. The shell has made sure that the store has all its steps.
    AttemptEnded {
        /// The attempt and its epoch.
        lease: LeaseRef,
        /// How it ended.
        end: AttemptEnd,
        /// How many steps it has, the first observation included.
        steps: u32,
        /// What its purses came to: no call is made from them any more. One that was granted
        /// money and is missing here counts whole until [`Self::PursesClosed`]. If the lease is
        /// over, this whole command is refused, and the purses are to be given in that one.
        #[serde(default)]
        purses: Vec<(PurseKind, PurseState)>,
    },
    /// A purse holds too little for the next call. Each purse has one open request at a time: a
    /// later one takes the place of the one before, and whoever waits asks again when calls of
    /// its own have been settled meanwhile. Repeated after every hello for as long as it is open.
    EscrowRequested {
        /// The attempt and its epoch.
        lease: LeaseRef,
        /// Which of its purses.
        purse: PurseKind,
        /// What has become of it.
        state: PurseState,
        /// What the sum of grants has to reach for the call:
        /// [`Short::wanted`](longhaul_core::purse::Short::wanted).
        wanted: Money,
        /// The least that makes the call possible at all, now or later: what the purse has
        /// settled plus the most that the call can cost (`EscrowRequest.bound_nanos`).
        bound: Money,
    },
    /// What has become of a purse. Repeated, late and out of order, of live attempts and of those
    /// that are over: what it says that is new counts.
    EscrowReported {
        /// The attempt and its epoch.
        lease: LeaseRef,
        /// Which of its purses.
        purse: PurseKind,
        /// What has become of it.
        state: PurseState,
    },
    /// No call is made from these purses any more, and this is what they came to: of an attempt
    /// that was lost and turned up (its worker was cut off, or its spool was found). What it was
    /// granted and has not spent is free, even what it never heard of.
    PursesClosed {
        /// The attempt and its epoch.
        lease: LeaseRef,
        /// Its purses.
        purses: Vec<(PurseKind, PurseState)>,
    },
    /// A person raises a cap. Accepted and without effect if it is as high already.
    RaiseBudget {
        /// The run.
        run: RunId,
        /// Which of its caps.
        scope: ScopeName,
        /// The cap from now on.
        cap: Money,
        /// Who asked, for people.
        by: String,
    },
    /// An endpoint answers, or does not. Given as often as one likes; only a change is stored,
    /// and another reason is none.
    EndpointSeen {
        /// The endpoint, as runs name it.
        endpoint: String,
        /// Why it is down, if it is.
        down: Option<String>,
    },
    /// A worker lacks a layer and asks whether it may build it. Repeated after every
    /// hello for as long as the question is open.
    ClaimLayer {
        /// The worker.
        worker: WorkerId,
        /// The layer's key.
        key: Digest,
        /// Which of the env's layers.
        kind: LayerKind,
        /// The env's folder name.
        env: String,
    },
    /// A worker built a layer, found it, or failed to build it.
    ReportLayer {
        /// The worker.
        worker: WorkerId,
        /// The layer's key.
        key: Digest,
        /// Which of the env's layers.
        kind: LayerKind,
        /// The env's folder name.
        env: String,
        /// What came of it.
        outcome: LayerOutcome,
    },
    /// A pool is to be as given: new, changed, or as it is. From settings, at every start.
    SetPool {
        /// The pool.
        pool: Pool,
    },
    /// A pool is not to be asked with any more. What waits is cancelled, what runs is used
    /// until it is idle. Accepted and without effect if there is none.
    RemovePool {
        /// The pool.
        pool: PoolId,
    },
    /// A person says that what made a pool fail is mended.
    ResumePool {
        /// The pool.
        pool: PoolId,
    },
    /// What the partition behind a pool has.
    PartitionSeen {
        /// The pool.
        pool: PoolId,
        /// What it has.
        offer: PartitionOffer,
    },
    /// The answer to [`Effect::SubmitAllocations`](crate::Effect::SubmitAllocations): Slurm
    /// took it.
    SubmissionAccepted {
        /// The submission.
        token: Token,
        /// The id that Slurm gave to it: the array's, where it is one.
        job: JobId,
    },
    /// The same: Slurm said no, so that no job came of it.
    SubmissionRefused {
        /// The submission.
        token: Token,
        /// What Slurm said.
        reason: String,
        /// Whether another try may heal it: a limit on RPCs or jobs, a controller that is
        /// busy. Otherwise it is a failure of the pool.
        transient: bool,
    },
    /// The same: nobody knows (it timed out, was killed, or the answer made no sense).
    SubmissionUnknown {
        /// The submission.
        token: Token,
        /// What happened.
        reason: String,
    },
    /// One whole answer of the queue, with all jobs that carry a token of ours. Given in
    /// the order in which they were asked for.
    QueueSeen {
        /// [`Engine::queue_mark`](crate::Engine::queue_mark), read before the queue was asked.
        mark: u64,
        /// When it was asked, by the coordinator's clock: what the queue lacks it lacked then.
        asked_at: Timestamp,
        /// The jobs. Those that ended too, where the queue still shows them.
        jobs: Vec<JobSeen>,
    },
    /// The queue did not answer. Nothing is concluded from that.
    QueueUnreachable {
        /// What came instead of an answer.
        reason: String,
    },
    /// What the accounting says about jobs that carry a token of ours. What it lacks means
    /// nothing: it is late, or off.
    AccountingSeen {
        /// The jobs.
        jobs: Vec<JobSeen>,
    },
    /// Time passed: leases may have run out, episodes may be due, workers may be free.
    Tick,
    /// The store was restored from a backup, and this is the incarnation that began with it. To be
    /// given at every start over such a store; known already, it changes nothing.
    StoreRestored {
        /// The incarnation.
        incarnation: u64,
    },
    /// A worker speaks of an attempt in a store that was restored: it may have been begun after the
    /// backup. Without effect on any other.
    AttemptHeard {
        /// The worker.
        worker: WorkerId,
        /// The attempt and its epoch.
        lease: LeaseRef,
    },
    /// A person accepts what the restored store does not know. Accepted and without effect if
    /// somebody has before.
    AcceptRestore {
        /// Who, for people.
        by: String,
    },
}

/// What came of a layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerOutcome {
    /// It is there.
    Ready {
        /// Its content.
        info: LayerInfo,
        /// Whether it was built now, or found in the layer folder.
        built: bool,
        /// How long building took.
        took: Millis,
    },
    /// It is not. A fault of the class `LayerBuild` is the hook's own failure and is not
    /// tried again for the runs that wanted it; any other is the worker's bad luck.
    Failed(Fault),
}

/// Why a command is refused. Nothing changes then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// No such run.
    #[error("run {run} is not known")]
    UnknownRun {
        /// The run named.
        run: RunId,
    },
    /// The id names another run.
    #[error("run {run} exists already with another plan ({known}, not {given})")]
    RunIdTaken {
        /// The run named.
        run: RunId,
        /// The plan that it has.
        known: Digest,
        /// The plan that was given.
        given: Digest,
    },
    /// The run has settled, and what the store knows of it was not given.
    #[error("run {run} has settled, and its episodes were not read from the store")]
    NotRevived {
        /// The run named.
        run: RunId,
    },
    /// The plan contradicts itself.
    #[error("the plan of run {run} cannot be used: {problem}")]
    BadPlan {
        /// The run named.
        run: RunId,
        /// What is wrong with it.
        problem: PlanProblem,
    },
    /// A run with open episodes cannot be forgotten.
    #[error("run {run} has {open} episodes that are not settled")]
    RunNotSettled {
        /// The run named.
        run: RunId,
        /// How many are open.
        open: u32,
    },
    /// The worker has not said hello, or was given up; it has to say hello (again).
    #[error("worker {worker} is not known")]
    UnknownWorker {
        /// The worker named.
        worker: WorkerId,
    },
    /// A worker that is another than before under the same id.
    #[error("worker {worker} came back with other resources than it holds leases for")]
    WorkerChanged {
        /// The worker named.
        worker: WorkerId,
    },
    /// No such pool.
    #[error("there is no pool named {pool}")]
    UnknownPool {
        /// The pool named.
        pool: PoolId,
    },
    /// A pool that could never be of use.
    #[error("the pool {pool} cannot be used: {problem}")]
    BadPool {
        /// The pool named.
        pool: PoolId,
        /// What is wrong with it.
        problem: PoolProblem,
    },
    /// There never was such a submission, or it was forgotten.
    #[error("the submission {token} is not known")]
    UnknownSubmission {
        /// The submission named.
        token: Token,
    },
    /// The scope has no cap that could be raised.
    #[error("run {run} has no budget for the scope `{scope}`")]
    NoBudget {
        /// The run named.
        run: RunId,
        /// The scope named.
        scope: ScopeName,
    },
    /// A cap is only ever raised.
    #[error("the budget of {scope} in run {run} is {cap} already; it cannot be lowered to {given}")]
    BudgetLowered {
        /// The run named.
        run: RunId,
        /// The scope named.
        scope: ScopeName,
        /// Its cap.
        cap: Money,
        /// The cap that was given.
        given: Money,
    },
    /// All of the run has verdicts: no money could start anything again.
    #[error("all episodes of run {run} have their verdicts; more money would change nothing")]
    RunOver {
        /// The run named.
        run: RunId,
    },
    /// The store was not restored from a backup.
    #[error("the store was not restored from a backup: there is nothing to accept")]
    NotRestored,
    /// There never was such an attempt.
    #[error("attempt {attempt} is not known")]
    UnknownAttempt {
        /// The attempt named.
        attempt: AttemptId,
    },
    /// The lease is over: the report is kept as data by whoever likes to, and decides nothing.
    #[error("attempt {attempt} is not held under epoch {epoch}")]
    StaleEpoch {
        /// The attempt named.
        attempt: AttemptId,
        /// The epoch given.
        epoch: Epoch,
        /// The epoch under which it is held, if it is.
        current: Option<Epoch>,
    },
}

/// How a plan contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanProblem {
    /// Nothing to do.
    #[error("it has no episodes")]
    NoEpisodes,
    /// More than an index can count.
    #[error("it has more than {} episodes", u32::MAX)]
    TooManyEpisodes,
    /// An episode names an agent that is not there.
    #[error("episode {episode} names agent {agent} of {agents}")]
    NoSuchAgent {
        /// The episode's index.
        episode: u32,
        /// The agent's index.
        agent: u32,
        /// How many there are.
        agents: usize,
    },
    /// An episode names an env that is not there.
    #[error("episode {episode} names env {env} of {envs}")]
    NoSuchEnv {
        /// The episode's index.
        episode: u32,
        /// The env's index.
        env: u32,
        /// How many there are.
        envs: usize,
    },
}

/// Why a pool could never be of use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolProblem {
    /// Its workers would get no lease.
    #[error("its walltime of {walltime} is not above {least}, below which a worker gets no episode")]
    TooShort {
        /// The walltime.
        walltime: Millis,
        /// What it has to be above.
        least: Millis,
    },
    /// Its workers would have room for nothing.
    #[error("its workers have no processor or no memory")]
    OffersNothing,
    /// It may have no worker.
    #[error("it may have no workers, or none in the queue")]
    NoWorkers,
    /// It has no name, or its tokens would have none.
    #[error("its name or its token prefix is empty")]
    Nameless,
}
