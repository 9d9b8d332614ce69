//! From events that are durable to what must be done about them.

use std::collections::BTreeSet;

use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, EpisodeId, RunId, WorkerId};

use crate::effect::{Effect, LayerAnswer, Notice, RevokeReason};
use crate::engine::Engine;
use crate::event::Event;
use crate::lease::LeaseRef;
use crate::state::{EpisodeState, LayerState, Worker};

impl Engine {
    /// What the shell must do about events that were applied and are durable.
    ///
    /// The state decides, not the event alone: a lease that is over again is not sent.
    /// So effects may be asked for and carried out more than once.
    #[must_use]
    pub fn effects(&self, events: &[Event]) -> Vec<Effect> {
        let granted = events.iter().filter_map(|event| match event {
            Event::LeaseGranted { lease, .. } => Some(*lease),
            _ => None,
        });
        let granted = granted.collect();
        let mut outbox = Outbox { engine: self, effects: Vec::new(), granted, runs: BTreeSet::new() };
        events.iter().for_each(|event| outbox.event(event));
        outbox.effects
    }

    /// What a worker must hear on a new session, beside the answer to its hello: leases
    /// that it did not name, since it may never have got them, and orders to stop.
    pub(crate) fn owed_to(&self, id: WorkerId, worker: &Worker, named: &[LeaseRef]) -> Vec<Effect> {
        let mut owed = Vec::new();
        for (attempt, lease) in &worker.leases {
            let lease = LeaseRef { attempt: *attempt, epoch: lease.epoch };
            if !named.contains(&lease) {
                owed.extend(self.send_lease(id, lease));
            }
            if self.state.runs.get(&attempt.episode.run).is_some_and(|run| run.cancelled.is_some()) {
                owed.push(Effect::SendRevoke { worker: id, lease, reason: RevokeReason::Cancelled });
            }
        }
        if let Some(reason) = &worker.draining {
            owed.push(Effect::SendDrain { worker: id, reason: reason.clone() });
        }
        owed
    }

    fn send_lease(&self, worker: WorkerId, lease: LeaseRef) -> Option<Effect> {
        if self.state.holder(lease) != Some(worker) {
            return None;
        }
        let (_, entry) = self.state.runs.get(&lease.attempt.episode.run)?.episode(lease.attempt.episode.index)?;
        Some(Effect::SendLease { worker, lease, plan: entry.plan })
    }

    /// What a worker that asks for a layer is told now.
    fn layer_answer(&self, key: &Digest, asking: WorkerId) -> Option<LayerAnswer> {
        Some(match &self.state.layers.get(key)?.state {
            LayerState::Building { worker, .. } if *worker == asking => LayerAnswer::Build,
            LayerState::Building { .. } => LayerAnswer::Wait,
            LayerState::Ready { info, .. } => LayerAnswer::Ready(*info),
            LayerState::Failed { fault, .. } => LayerAnswer::Failed(fault.clone()),
        })
    }
}

/// Effects on their way: what is said twice in a batch is sent once.
struct Outbox<'a> {
    engine: &'a Engine,
    effects: Vec<Effect>,
    /// The leases that the batch grants: they are sent in their order, not with a hello's answer.
    granted: BTreeSet<LeaseRef>,
    runs: BTreeSet<RunId>,
}

impl Outbox<'_> {
    fn event(&mut self, event: &Event) {
        match event {
            Event::CoordinatorRestarted { .. } => {}
            Event::RunSubmitted { run, .. } | Event::RunForgotten { run, .. } => self.run_changed(*run),
            Event::RunCancelled { run, .. } => self.run_cancelled(*run),
            Event::RunSettled { run, .. } => {
                self.run_changed(*run);
                self.publish(Notice::RunSettled(*run));
            }
            Event::WorkerConnected { worker, session, live, .. } => self.worker_connected(*worker, *session, live),
            Event::WorkerDisconnected { worker, .. } => self.publish(Notice::WorkerChanged(*worker)),
            Event::WorkerDraining { worker, reason, .. } => {
                self.effects.push(Effect::SendDrain { worker: *worker, reason: reason.clone() });
                self.publish(Notice::WorkerChanged(*worker));
            }
            Event::WorkerGone { worker, .. } => {
                // It may have said hello again in the same batch or since.
                if !self.engine.state.workers.contains_key(worker) {
                    self.effects.push(Effect::CloseSession { worker: *worker });
                }
                self.publish(Notice::WorkerChanged(*worker));
            }
            Event::LeaseGranted { lease, worker, .. } => {
                self.effects.extend(self.engine.send_lease(*worker, *lease));
                self.run_changed(lease.attempt.episode.run);
            }
            Event::AttemptEnded { lease, .. } => self.run_changed(lease.attempt.episode.run),
            Event::AttemptLost { lease, worker, .. } => {
                if self.engine.state.workers.contains_key(worker) {
                    let reason = RevokeReason::Stale;
                    self.effects.push(Effect::SendRevoke { worker: *worker, lease: *lease, reason });
                }
                self.run_changed(lease.attempt.episode.run);
            }
            Event::EpisodeRequeued { episode, .. } => self.run_changed(episode.run),
            Event::EpisodeSettled { episode, settlement, .. } => {
                self.publish(Notice::EpisodeSettled { episode: *episode, settlement: settlement.clone() });
                self.run_changed(episode.run);
            }
            Event::LayerClaimed { key, worker, .. } => {
                self.answer(key, *worker);
                self.publish(Notice::LayerChanged(*key));
            }
            Event::LayerAwaited { key, worker, .. } | Event::LayerAnswered { key, worker, .. } => {
                self.answer(key, *worker);
            }
            Event::LayerReleased { key, .. } => self.publish(Notice::LayerChanged(*key)),
            Event::LayerReady { key, waiters, .. } | Event::LayerFailed { key, waiters, .. } => {
                waiters.iter().for_each(|waiter| self.answer(key, *waiter));
                self.publish(Notice::LayerChanged(*key));
            }
        }
    }

    fn worker_connected(&mut self, worker: WorkerId, session: u64, live: &[LeaseRef]) {
        let state = &self.engine.state;
        let stale = live.iter().copied().filter(|lease| state.holder(*lease) != Some(worker)).collect();
        self.effects.push(Effect::Welcome { worker, session, stale });
        if let Some(record) = state.workers.get(&worker) {
            for effect in self.engine.owed_to(worker, record, live) {
                match effect {
                    Effect::SendLease { lease, .. } if self.granted.contains(&lease) => {}
                    owed => self.effects.push(owed),
                }
            }
        }
        self.publish(Notice::WorkerChanged(worker));
    }

    fn run_cancelled(&mut self, id: RunId) {
        if let Some(run) = self.engine.state.runs.get(&id) {
            for (index, episode) in (0..).zip(&run.episodes) {
                if let EpisodeState::Active { number, epoch, worker, .. } = episode.state {
                    let episode = EpisodeId { run: id, index };
                    let lease = LeaseRef { attempt: AttemptId { episode, number }, epoch };
                    self.effects.push(Effect::SendRevoke { worker, lease, reason: RevokeReason::Cancelled });
                }
            }
        }
        self.run_changed(id);
    }

    fn answer(&mut self, key: &Digest, worker: WorkerId) {
        if let Some(answer) = self.engine.layer_answer(key, worker) {
            self.effects.push(Effect::SendLayerAnswer { worker, key: *key, answer });
        }
    }

    fn run_changed(&mut self, run: RunId) {
        if self.runs.insert(run) {
            self.publish(Notice::RunChanged(run));
        }
    }

    fn publish(&mut self, notice: Notice) {
        self.effects.push(Effect::Publish(notice));
    }
}
