//! Events: what was decided. The journal is the sequence of them, and the state is
//! what [`Engine::apply`](crate::Engine::apply) makes of that sequence.
//!
//! They are stored: a variant or field is never given another meaning. New fields come
//! with a `serde(default)`, and [`crate::snapshot::FORMAT`] is bumped when an old reader
//! would misread what a new writer wrote.

use longhaul_core::digest::Digest;
use longhaul_core::ids::{EpisodeId, RunId, WorkerId};
use longhaul_core::outcome::{AttemptEnd, Fault, Settlement};
use longhaul_core::plan::{LayerKind, Resources, RunPlan};
use longhaul_core::time::{Millis, Timestamp};
use serde::{Deserialize, Serialize};

use crate::lease::LeaseRef;
use crate::state::{LayerInfo, WorkerProfile};

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
}

impl Event {
    /// When it was decided.
    #[must_use]
    pub const fn at(&self) -> Timestamp {
        match self {
            Self::CoordinatorRestarted { at }
            | Self::RunSubmitted { at, .. }
            | Self::RunCancelled { at, .. }
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
            | Self::LayerFailed { at, .. } => *at,
        }
    }
}
