//! Questions: what runs, where, and why something waits.

use std::fmt;

use longhaul_core::digest::Digest;
use longhaul_core::ids::{EpisodeId, RunId, WorkerId};
use longhaul_core::plan::{LayerKind, Resources};
use longhaul_core::time::{Millis, Timestamp};

use crate::decide::{Demand, Samples};
use crate::engine::Engine;
use crate::lease::LeaseRef;
use crate::state::{Episode, EpisodeState, Layer, LayerState, Run, RunSummary, WorkerProfile};

/// A worker as people want to see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerView {
    /// The worker.
    pub worker: WorkerId,
    /// What it has and where it is.
    pub profile: WorkerProfile,
    /// Whether it has a session.
    pub connected: bool,
    /// Why it takes no more leases, if it does not.
    pub draining: Option<String>,
    /// Why it can take no leases for now, if it cannot.
    pub unfit: Option<String>,
    /// How long its allocation still lasts, if that is known.
    pub remaining: Option<Millis>,
    /// How long ago it was last heard from.
    pub silent_for: Millis,
    /// The attempts that it holds.
    pub live: Vec<LiveAttempt>,
}

/// A live attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveAttempt {
    /// The attempt and its epoch.
    pub lease: LeaseRef,
    /// The worker that holds it.
    pub worker: WorkerId,
    /// When the lease was granted.
    pub since: Timestamp,
    /// What it takes up.
    pub reserved: Resources,
}

/// How many connected workers take no leases, each counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Away {
    /// They are told to take no more.
    pub draining: usize,
    /// They say that they can take none, or their disk was found full.
    pub unfit: usize,
    /// They have missed their heartbeats.
    pub silent: usize,
    /// Their allocation is nearly over, or another worker speaks from it.
    pub ending: usize,
}

/// Why an episode that is queued is not started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// It is left alone for a while after a fault.
    Backoff {
        /// Until when.
        until: Timestamp,
    },
    /// An endpoint that its agent needs does not answer; others watch for it already.
    EndpointDown {
        /// The endpoint.
        endpoint: String,
        /// What it answered in place of an answer; hostile until escaped.
        reason: String,
    },
    /// As many other samples of its task have passed or are live as have to pass.
    OtherSamples,
    /// No worker is connected that takes leases.
    NoWorker(Away),
    /// No connected worker has as much as its env asks for, even when empty.
    TooLarge {
        /// The env's folder name.
        env: String,
        /// What it asks for.
        asked: Resources,
        /// The most memory that one connected worker has, in MiB.
        most_memory_mib: u64,
        /// The most graphics processors that one connected worker has.
        most_gpus: u32,
    },
    /// Workers that could take it have too much else to do.
    Busy {
        /// How many could take it when empty.
        workers: usize,
    },
    /// Nothing is in its way.
    Next,
    /// The store was restored from a backup, and nobody has accepted that yet.
    NotAccepted,
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Backoff { .. } => f.write_str("it is left alone for a while after a fault"),
            Self::NotAccepted => f.write_str(
                "the store was restored from a backup, and nothing is begun before `longhaul store accept` says so",
            ),
            Self::EndpointDown { endpoint, reason } => write!(f, "the endpoint {endpoint} is down: {reason}"),
            Self::OtherSamples => f.write_str("it may not be needed: other samples of its task are live"),
            Self::NoWorker(away) if *away == Away::default() => f.write_str("no worker is connected"),
            Self::NoWorker(Away { draining, unfit, silent, ending }) => {
                let kinds = [(draining, "draining"), (unfit, "unfit"), (silent, "silent"), (ending, "at their end")];
                let kinds = kinds.into_iter().filter(|(count, _)| **count > 0);
                let kinds: Vec<_> = kinds.map(|(count, kind)| format!("{count} {kind}")).collect();
                write!(f, "no connected worker takes episodes ({})", kinds.join(", "))
            }
            Self::TooLarge { env, asked, most_memory_mib, most_gpus } => write!(
                f,
                "{env} asks for {} MiB and {} gpus; no connected worker has both (at most {most_memory_mib} MiB, \
                 {most_gpus} gpus)",
                asked.memory_mib, asked.gpus
            ),
            Self::Busy { workers } => write!(f, "the {workers} workers that could take it are busy"),
            Self::Next => f.write_str("it is about to start"),
        }
    }
}

impl Engine {
    /// A run that is not forgotten.
    #[must_use]
    pub fn run(&self, run: RunId) -> Option<&Run> {
        self.state.runs.get(&run)
    }

    /// A run in one row, forgotten ones too.
    #[must_use]
    pub fn summary(&self, run: RunId) -> Option<RunSummary> {
        match self.state.runs.get(&run) {
            Some(record) => Some(record.summary(run)),
            None => self.state.forgotten.get(&run).map(|kept| kept.summary.clone()),
        }
    }

    /// All runs, the oldest first.
    #[must_use]
    pub fn summaries(&self) -> Vec<RunSummary> {
        let forgotten = self.state.forgotten.values().map(|kept| kept.summary.clone());
        let mut all: Vec<_> = forgotten.chain(self.state.order.iter().filter_map(|run| self.summary(*run))).collect();
        all.sort_by_key(|summary| (summary.submitted_at, summary.run));
        all
    }

    /// An episode of a run that is not forgotten.
    #[must_use]
    pub fn episode(&self, episode: EpisodeId) -> Option<&Episode> {
        self.state.episode(episode)
    }

    /// The worker that holds a lease, if it is current: the check that whatever is said
    /// under a lease has to pass.
    #[must_use]
    pub fn holder(&self, lease: LeaseRef) -> Option<WorkerId> {
        self.state.holder(lease)
    }

    /// The workers.
    pub fn workers(&self) -> impl Iterator<Item = WorkerView> {
        self.state.workers.iter().map(|(id, worker)| {
            let live = worker.leases.iter().map(|(attempt, lease)| LiveAttempt {
                lease: LeaseRef { attempt: *attempt, epoch: lease.epoch },
                worker: *id,
                since: lease.since,
                reserved: lease.reserved,
            });
            WorkerView {
                worker: *id,
                profile: worker.profile.clone(),
                connected: worker.session.is_some(),
                draining: worker.draining.clone(),
                unfit: worker.unfit.clone(),
                remaining: self.remaining(*id, self.volatile.clock),
                silent_for: self.volatile.clock.since(self.volatile.seen.get(id).copied().unwrap_or_default()),
                live: live.collect(),
            }
        })
    }

    /// The live attempts of a run.
    pub fn live_attempts(&self, run: RunId) -> impl Iterator<Item = LiveAttempt> {
        self.state.leases().filter(move |(_, lease, _)| lease.attempt.episode.run == run).map(
            |(worker, lease, record)| LiveAttempt { lease, worker, since: record.since, reserved: record.reserved },
        )
    }

    /// The layers, by key.
    pub fn layers(&self) -> impl Iterator<Item = (Digest, &Layer)> {
        self.state.layers.iter().map(|(key, layer)| (*key, layer))
    }

    /// The layers that are being built for envs of a run: kind, env, and the worker.
    pub fn building(&self, run: RunId) -> impl Iterator<Item = (LayerKind, &str, WorkerId)> {
        let envs = self.state.runs.get(&run).map(|run| run.plan.envs.as_slice()).unwrap_or_default();
        self.state.layers.values().filter_map(|layer| match &layer.state {
            LayerState::Building { worker, .. } if envs.iter().any(|env| env.name == layer.env) => {
                Some((layer.kind, layer.env.as_str(), *worker))
            }
            _ => None,
        })
    }

    /// Why a queued episode is not started; nothing if it is not queued.
    #[must_use]
    pub fn why_waiting(&self, episode: EpisodeId) -> Option<WaitReason> {
        let EpisodeState::Queued { since, delay } = self.state.episode(episode)?.state else { return None };
        if self.state.is_closed() {
            return Some(WaitReason::NotAccepted);
        }
        let env = self.state.env_of(episode)?;
        if !self.state.episode(episode)?.is_due(self.volatile.clock) {
            return Some(WaitReason::Backoff { until: since.plus(delay) });
        }
        let run = self.state.runs.get(&episode.run)?;
        let (_, entry) = run.episode(episode.index)?;
        let watched = self.watched_endpoints();
        let held = run.endpoints(entry).iter().find(|name| watched.contains(name.as_str()));
        if let Some((endpoint, reason)) = held.and_then(|name| self.state.endpoints_down.get_key_value(name)) {
            return Some(WaitReason::EndpointDown { endpoint: endpoint.clone(), reason: reason.clone() });
        }
        if Samples::of(run).is_some_and(|mut samples| !samples.admit(entry)) {
            return Some(WaitReason::OtherSamples);
        }
        let rooms = self.rooms();
        if rooms.is_empty() {
            let mut away = Away::default();
            for (id, worker) in self.state.workers.iter().filter(|(_, worker)| worker.session.is_some()) {
                *match () {
                    () if worker.draining.is_some() => &mut away.draining,
                    () if self.is_unfit(worker) => &mut away.unfit,
                    () if self.is_silent(*id) => &mut away.silent,
                    () => &mut away.ending,
                } += 1;
            }
            return Some(WaitReason::NoWorker(away));
        }
        let demand = Demand::new(env.resources, rooms.values().map(|room| room.capacity));
        let able = rooms.values().filter(|room| demand.on(room.capacity).is_some()).count();
        if able == 0 {
            return Some(WaitReason::TooLarge {
                env: env.name.clone(),
                asked: env.resources,
                most_memory_mib: rooms.values().map(|room| room.capacity.memory_mib).max().unwrap_or_default(),
                most_gpus: rooms.values().map(|room| room.capacity.gpus).max().unwrap_or_default(),
            });
        }
        if rooms.values().any(|room| room.fit(demand).is_some()) {
            return Some(WaitReason::Next);
        }
        Some(WaitReason::Busy { workers: able })
    }
}
