//! Effects: what the shell must do once the events behind them are durable.
//!
//! Every effect may be carried out twice, and late: a worker ignores a lease that it
//! knows, a revoke of what it does not hold, an answer that it did not wait for. An
//! effect for a worker without a session is dropped; what is still owed then is sent
//! when that worker says hello.

use longhaul_core::call::PurseKind;
use longhaul_core::digest::Digest;
use longhaul_core::ids::{EpisodeId, RunId, WorkerId};
use longhaul_core::money::Money;
use longhaul_core::outcome::{EndedBy, Fault, Settlement};
use longhaul_core::time::Millis;
use serde::{Deserialize, Serialize};

use crate::allocation::{JobId, PoolId, Token};
use crate::lease::LeaseRef;
use crate::ledger::ScopeName;
use crate::state::LayerInfo;

/// One instruction to the shell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Answer a hello: always the first thing sent on a session.
    Welcome {
        /// The worker.
        worker: WorkerId,
        /// The session that it is for.
        session: u64,
        /// Of the attempts that it named, those that are not its own (any more).
        stale: Vec<LeaseRef>,
    },
    /// Give a worker a lease.
    SendLease {
        /// The worker.
        worker: WorkerId,
        /// The attempt and its epoch.
        lease: LeaseRef,
        /// The blob of the episode's plan.
        plan: Digest,
        /// Whether the attempt is to go on where the one before it was cut off.
        resumes: bool,
        /// What ended the agent's part, if the episode is only to be verified again.
        verifies: Option<EndedBy>,
    },
    /// Tell a worker to stop an attempt.
    SendRevoke {
        /// The worker.
        worker: WorkerId,
        /// The attempt and its epoch.
        lease: LeaseRef,
        /// Why.
        reason: RevokeReason,
    },
    /// Tell a worker to finish what it has and to take nothing new.
    SendDrain {
        /// The worker.
        worker: WorkerId,
        /// Why, for people.
        reason: String,
    },
    /// Answer a claim of a layer.
    SendLayerAnswer {
        /// The worker.
        worker: WorkerId,
        /// The layer's key.
        key: Digest,
        /// The answer.
        answer: LayerAnswer,
    },
    /// Answer a request for money; unasked when more is granted to one that waited.
    AnswerEscrow {
        /// The worker.
        worker: WorkerId,
        /// The attempt and its epoch.
        lease: LeaseRef,
        /// Which of its purses.
        purse: PurseKind,
        /// The sum of grants, durable.
        granted: Money,
        /// Whether that is enough.
        rest: EscrowRest,
    },
    /// Tell a worker that others wait for money: what is free in a purse is to be given back at
    /// once, and what calls in flight leave over when they are settled.
    RecallEscrow {
        /// The worker.
        worker: WorkerId,
        /// The attempt and its epoch.
        lease: LeaseRef,
        /// Which of its purses.
        purse: PurseKind,
    },
    /// End a worker's session, if it has one: it was given up, and has to say hello again.
    CloseSession {
        /// The worker.
        worker: WorkerId,
    },
    /// Ask Slurm for allocations, once, with the token as the job's name, and say what came
    /// of it: [`Command::SubmissionAccepted`](crate::Command::SubmissionAccepted), `Refused`
    /// or `Unknown`. An effect that is there twice for a token that is being submitted is
    /// one.
    SubmitAllocations {
        /// The pool.
        pool: PoolId,
        /// The submission.
        token: Token,
        /// How many: an array `0..count`, or one job if the pool asks for single ones.
        count: u32,
        /// For how long each.
        walltime: Millis,
    },
    /// Ask the queue at once, and give its answer as
    /// [`Command::QueueSeen`](crate::Command::QueueSeen); the accounting too, where there is one.
    FindAllocations {
        /// The pool.
        pool: PoolId,
        /// The submission that is looked for.
        token: Token,
    },
    /// End allocations. By id *and* name, which is the token: the id alone may be another
    /// job's by now. One that is over already is no failure.
    CancelAllocations {
        /// The submission.
        token: Token,
        /// Its id.
        job: JobId,
        /// Which of its tasks; none means the whole job.
        tasks: Vec<u32>,
        /// Why, for people.
        reason: String,
    },
    /// Tell whoever follows.
    Publish(Notice),
}

/// Whether what was granted is enough for the call that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EscrowRest {
    /// It is.
    Enough,
    /// Not yet: money in flight may come back, and another answer follows.
    Wait,
    /// The call will never fit.
    Refused {
        /// In which scope, in words.
        reason: String,
    },
}

/// Why an attempt is to be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RevokeReason {
    /// A person cancelled the run; the worker reports the attempt's end.
    Cancelled,
    /// The lease is over; nothing that the worker says about it counts.
    Stale,
}

/// What a worker that asked for a layer is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerAnswer {
    /// Build it (after looking in the layer folder once more), and report, whatever happens.
    Build,
    /// Another worker builds it; a further answer follows.
    Wait,
    /// It is there. A worker that cannot find it asks again, and is told to build it.
    Ready(LayerInfo),
    /// Its hook failed; it is not tried again in this run.
    Failed(Fault),
}

/// Something that people who follow want to hear of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Notice {
    /// Counts or live attempts of a run changed.
    RunChanged(RunId),
    /// An episode was settled.
    EpisodeSettled {
        /// The episode.
        episode: EpisodeId,
        /// How.
        settlement: Settlement,
    },
    /// The last episode of a run was settled.
    RunSettled(RunId),
    /// A worker came, went or changed.
    WorkerChanged(WorkerId),
    /// A layer is being built, is ready, or failed.
    LayerChanged(Digest),
    /// A pool or one of its allocations changed.
    PoolChanged(PoolId),
    /// So much of a cap is spent; said once for each cap and percentage.
    BudgetNearlySpent {
        /// The run.
        run: RunId,
        /// Which of its caps.
        scope: ScopeName,
        /// How many hundredths.
        percent: u8,
    },
    /// An endpoint does not answer any more, or does again.
    EndpointChanged {
        /// The endpoint, as runs name it.
        endpoint: String,
        /// Why it is down, if it is.
        down: Option<String>,
    },
}
