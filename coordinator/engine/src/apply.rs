//! What events do to the state: the only place that changes it.
//!
//! Total: an event that does not fit the state changes nothing. The engine emits none
//! such, and a journal that holds one is not made worse by reading it.

mod allocations;
mod escrow;
mod reopen;
mod restored;

use std::collections::BTreeSet;

use longhaul_core::ids::{AttemptId, EpisodeId, WorkerId};
use longhaul_core::outcome::{AttemptEnd, FaultClass, Settlement};
use longhaul_core::time::{Millis, Timestamp};

use crate::engine::Engine;
use crate::event::Event;
use crate::lease::LeaseRef;
use crate::ledger::Ledger;
use crate::state::{
    Cancellation, Episode, EpisodeState, ForgottenRun, Layer, LayerState, Lease, PastAttempt, PastEnd, Readiness, Run,
    RunTerms, SetAside, Worker,
};

/// For how long it is known that a node's disk was full; much longer than anything rests for it.
const FULL_DISK_IS_REMEMBERED: Millis = Millis::from_secs(24 * 3600);

/// How many episodes that were set aside are remembered.
const SET_ASIDE_IS_REMEMBERED: usize = 50;

impl Engine {
    /// Applies one event of the journal, new or old.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::CoordinatorRestarted { at } => {
                self.state.workers.values_mut().for_each(|worker| worker.session = None);
                // Who said so is asked anew: nobody would take it back that was down before.
                self.state.endpoints_down.clear();
                self.doubt_everything(*at);
                self.volatile.forgive(*at);
            }
            Event::RunSubmitted { at, run, digest, plan, terms } => {
                let queued = EpisodeState::Queued { since: *at, delay: Millis(0) };
                let episodes = plan
                    .episodes
                    .iter()
                    .map(|_| Episode { state: queued.clone(), past: Vec::new(), earlier: Vec::new() })
                    .collect();
                let record = Run {
                    plan: plan.clone(),
                    digest: *digest,
                    submitted_at: *at,
                    cancelled: None,
                    settled_at: None,
                    open: u32::try_from(plan.episodes.len()).unwrap_or(u32::MAX),
                    episodes,
                    terms: terms.clone(),
                };
                if self.state.runs.insert(*run, record).is_none() {
                    self.state.order.push(*run);
                    self.state.ledgers.insert(*run, Ledger::new(plan));
                }
            }
            Event::RunCancelled { at, run, by } => {
                if let Some(run) = self.state.runs.get_mut(run) {
                    run.cancelled = Some(Cancellation { at: *at, by: by.clone() });
                }
                for worker in self.state.workers.values_mut() {
                    let of_run = worker.leases.iter_mut().filter(|(attempt, _)| attempt.episode.run == *run);
                    of_run.for_each(|(_, lease)| lease.stopped = true);
                }
            }
            Event::RunResumed { at, run, by, episodes, revived } => {
                if let Some(revived) = revived {
                    self.revive(*run, revived);
                }
                self.reopen(*at, *run, by, episodes);
            }
            Event::RunSettled { at, run } => {
                if let Some(run) = self.state.runs.get_mut(run) {
                    run.settled_at = Some(*at);
                }
                self.state.layers.retain(|_, layer| match &mut layer.state {
                    LayerState::Failed { runs, .. } => {
                        runs.remove(run);
                        !runs.is_empty()
                    }
                    LayerState::Building { .. } | LayerState::Ready { .. } => true,
                });
            }
            Event::RunForgotten { run, .. } => {
                if let Some(record) = self.state.runs.remove(run) {
                    let may_go_on =
                        |index: &u32| record.episode(*index).is_some_and(|(episode, _)| episode.may_go_on());
                    let last_epoch = self.state.last_epoch;
                    self.state.ledgers.entry(*run).and_modify(|ledger| ledger.forget(last_epoch, may_go_on));
                    self.state.order.retain(|known| known != run);
                    let (digest, summary) = (record.digest, record.summary(*run));
                    let RunTerms { priority, file, .. } = record.terms;
                    let kept = ForgottenRun { digest, summary, priority, file };
                    self.state.forgotten.insert(*run, kept);
                }
            }
            Event::WorkerConnected { at, worker, session, profile, live, readiness } => {
                let known = self.state.workers.entry(*worker).or_insert_with(|| Worker::new(profile.clone(), *at));
                known.session = Some(*session);
                known.stand(*at, readiness.reason(), matches!(readiness, Readiness::Preparing(_)));
                if let Some(allocation) = &profile.allocation {
                    self.manned(*at, *worker, profile, allocation);
                }
                if readiness.is_fit() {
                    self.shown_to_be_of_use(*worker);
                }
                self.volatile.seen.insert(*worker, *at);
                for lease in live {
                    if self.state.holder(*lease) == Some(*worker) {
                        self.volatile.renewed.insert(lease.attempt, *at);
                    }
                }
            }
            Event::WorkerDisconnected { at, worker } => {
                self.unmanned(*at, *worker, false);
                if let Some(worker) = self.state.workers.get_mut(worker) {
                    worker.session = None;
                }
            }
            Event::WorkerDraining { worker, reason, .. } => {
                if let Some(worker) = self.state.workers.get_mut(worker) {
                    worker.draining = Some(reason.clone());
                }
            }
            Event::WorkerUnfit { at, worker, reason } => {
                if let Some(known) = self.state.workers.get_mut(worker) {
                    let preparing = known.preparing;
                    known.stand(*at, reason.as_ref(), preparing && reason.is_some());
                    if reason.is_none() {
                        self.shown_to_be_of_use(*worker);
                    }
                }
            }
            Event::WorkerGone { at, worker, .. } => {
                self.unmanned(*at, *worker, true);
                self.state.workers.remove(worker);
                self.volatile.seen.remove(worker);
                for layer in self.state.layers.values_mut() {
                    match &mut layer.state {
                        LayerState::Building { waiters, .. } => waiters.retain(|waiter| waiter != worker),
                        LayerState::Ready { told, .. } => {
                            told.remove(worker);
                        }
                        LayerState::Failed { .. } => {}
                    }
                }
            }
            Event::LeaseGranted { at, lease, worker, reserved, resumes } => {
                self.state.last_epoch = self.state.last_epoch.max(lease.epoch);
                let LeaseRef { attempt, epoch } = *lease;
                let active = EpisodeState::Active { number: attempt.number, epoch, worker: *worker, since: *at };
                if let Some(record) = self.state.workers.get_mut(worker) {
                    let (since, reserved, resumes) = (*at, *reserved, *resumes);
                    record.leases.insert(attempt, Lease { epoch, since, reserved, resumes, stopped: false });
                }
                if let Some(episode) = self.episode_mut(attempt.episode) {
                    episode.state = active;
                    self.volatile.renewed.insert(attempt, *at);
                }
            }
            Event::AttemptEnded { at, lease, worker, end, steps, cut_off, purses } => {
                self.settle_purses(*lease, purses);
                self.learn_duration(*at, *lease, *worker, end);
                if is_past_the_layers(end)
                    && let Some(env) = self.state.env_of(lease.attempt.episode).map(|env| env.plan)
                {
                    self.state.proven.insert(env);
                }
                self.end_attempt(*at, lease.attempt, *worker, (PastEnd::of(end), *steps), *cut_off);
            }
            Event::AttemptLost { at, lease, worker, fault, cut_off, steps } => {
                self.lose_purses(lease.attempt);
                self.end_attempt(*at, lease.attempt, *worker, (PastEnd::Lost(fault.class), *steps), *cut_off);
            }
            Event::EpisodeRequeued { at, episode, delay } => {
                if let Some(Episode { state: state @ EpisodeState::Queued { .. }, .. }) = self.episode_mut(*episode) {
                    *state = EpisodeState::Queued { since: *at, delay: *delay };
                }
            }
            Event::EpisodeSettled { at, episode, settlement } => {
                let Some(record) = self.episode_mut(*episode) else { return };
                if !matches!(record.state, EpisodeState::Queued { .. }) {
                    return;
                }
                record.state = EpisodeState::Settled { at: *at, settlement: settlement.clone() };
                if let Some(run) = self.state.runs.get_mut(&episode.run) {
                    run.open = run.open.saturating_sub(1);
                }
                self.note_set_aside(*at, *episode, settlement);
            }
            Event::LayerClaimed { .. }
            | Event::LayerAwaited { .. }
            | Event::LayerAnswered { .. }
            | Event::LayerReleased { .. }
            | Event::LayerReady { .. }
            | Event::LayerFailed { .. } => self.apply_to_layers(event),
            _ => {
                if !self.apply_to_money(event) && !self.apply_to_restored(event) {
                    self.apply_to_pools(event);
                }
            }
        }
    }

    fn apply_to_layers(&mut self, event: &Event) {
        match event {
            Event::LayerClaimed { at, key, kind, env, worker } => {
                let building = |waiters| LayerState::Building { worker: *worker, since: *at, waiters };
                match self.state.layers.get_mut(key).map(|layer| &mut layer.state) {
                    Some(LayerState::Building { worker: builder, .. }) if builder == worker => {}
                    Some(LayerState::Building { worker: builder, since, waiters }) => {
                        *builder = *worker;
                        *since = *at;
                        waiters.retain(|waiter| waiter != worker);
                    }
                    Some(state) => *state = building(Vec::new()),
                    None => {
                        let layer = Layer { kind: *kind, env: env.clone(), state: building(Vec::new()) };
                        self.state.layers.insert(*key, layer);
                    }
                }
            }
            Event::LayerAwaited { key, worker, .. } => {
                if let Some(LayerState::Building { waiters, .. }) =
                    self.state.layers.get_mut(key).map(|layer| &mut layer.state)
                    && !waiters.contains(worker)
                {
                    waiters.push(*worker);
                }
            }
            Event::LayerAnswered { key, worker, .. } => {
                if let Some(LayerState::Ready { told, .. }) =
                    self.state.layers.get_mut(key).map(|layer| &mut layer.state)
                {
                    told.insert(*worker);
                }
            }
            Event::LayerReleased { key, .. } => {
                self.state.layers.remove(key);
            }
            Event::LayerReady { at, key, kind, env, info, worker, waiters, .. } => {
                let known = |worker: &&WorkerId| self.state.workers.contains_key(*worker);
                let told: BTreeSet<_> = waiters.iter().chain([worker]).filter(known).copied().collect();
                let state = LayerState::Ready { at: *at, info: *info, told };
                self.state.layers.insert(*key, Layer { kind: *kind, env: env.clone(), state });
            }
            Event::LayerFailed { at, key, kind, env, fault, runs, .. } => {
                let runs = runs.iter().copied().collect();
                let state = LayerState::Failed { at: *at, fault: fault.clone(), runs };
                self.state.layers.insert(*key, Layer { kind: *kind, env: env.clone(), state });
            }
            _ => {}
        }
    }

    /// What a scored attempt took tells how long the next ones of its env will take. One that
    /// nobody could score may have been a mere trial of the start.
    fn learn_duration(&mut self, at: Timestamp, lease: LeaseRef, worker: WorkerId, end: &AttemptEnd) {
        let held = self.state.workers.get(&worker).and_then(|worker| worker.leases.get(&lease.attempt));
        let env = self.state.env_of(lease.attempt.episode).map(|env| env.plan);
        if let (Some(held), Some(env), AttemptEnd::Verdict(_)) = (held, env, end) {
            let took = at.since(held.since);
            let known = self.state.durations.entry(env).or_default();
            known.count = known.count.saturating_add(1);
            known.total = Millis(known.total.0.saturating_add(took.0));
        }
    }

    fn episode_mut(&mut self, id: EpisodeId) -> Option<&mut Episode> {
        self.state.runs.get_mut(&id.run)?.episodes.get_mut(usize::try_from(id.index).ok()?)
    }

    /// Takes an attempt from its worker. Its episode waits until the next event of the
    /// batch says what becomes of it.
    fn end_attempt(
        &mut self,
        at: Timestamp,
        attempt: AttemptId,
        worker: WorkerId,
        (end, steps): (PastEnd, u32),
        cut_off: Option<Millis>,
    ) {
        let explained = end.took_worker().then(|| self.explanation_of(worker)).flatten();
        let Some(record) = self.state.workers.get_mut(&worker) else { return };
        let Some(lease) = record.leases.remove(&attempt) else { return };
        record.idle_since = Some(at);
        self.volatile.renewed.remove(&attempt);
        self.volatile.started.remove(&attempt);
        self.volatile.steps.remove(&attempt);
        let hostname = record.profile.hostname.clone();
        let (epoch, granted_at) = (lease.epoch, lease.since);
        if end.met_full_disk() {
            self.state.full_disks.retain(|_, since| at.since(*since) < FULL_DISK_IS_REMEMBERED);
            self.state.full_disks.insert(hostname.clone(), at);
        }
        let (resumes, stopped) = (lease.resumes, lease.stopped);
        let run = self.state.runs.get(&attempt.episode.run);
        let gained =
            run.zip(self.state.episode(attempt.episode)).is_some_and(|(run, episode)| run.gains(episode, steps));
        if let Some(episode) = self.episode_mut(attempt.episode) {
            episode.past.push(PastAttempt {
                epoch,
                worker,
                hostname,
                granted_at,
                ended_at: at,
                end,
                explained,
                cut_off,
                resumes,
                steps,
                gained,
                stopped,
            });
            episode.state = EpisodeState::Queued { since: at, delay: Millis(0) };
        }
    }
}

impl Engine {
    /// Keeps in mind what was set aside, beyond its run.
    fn note_set_aside(&mut self, at: Timestamp, id: EpisodeId, settlement: &Settlement) {
        let Settlement::Faulted(fault) = settlement else { return };
        // Of these classes no number of attempts is used up: something is wrong around them.
        if !matches!(fault.class, FaultClass::Preempted | FaultClass::WorkerLost | FaultClass::NodeDisk) {
            return;
        }
        let Some((_, entry)) = self.state.runs.get(&id.run).and_then(|run| run.episode(id.index)) else { return };
        let aside = SetAside { at, episode: id, task: entry.task.clone(), reason: fault.message.clone() };
        let surplus = (self.state.set_aside.len() + 1).saturating_sub(SET_ASIDE_IS_REMEMBERED);
        self.state.set_aside.drain(..surplus);
        self.state.set_aside.push(aside);
    }
}

impl Worker {
    /// Takes in whether it takes leases.
    fn stand(&mut self, at: Timestamp, unfit: Option<&String>, preparing: bool) {
        if self.unfit.is_some() && unfit.is_none() {
            self.fit_since = Some(at);
        }
        self.unfit = unfit.cloned();
        self.preparing = preparing;
    }
}

/// Whether an attempt that ended so had all its layers: then its env is warm.
const fn is_past_the_layers(end: &AttemptEnd) -> bool {
    match end {
        AttemptEnd::Verdict(_) | AttemptEnd::Unverified { .. } => true,
        AttemptEnd::Cancelled => false,
        AttemptEnd::Fault(fault) => matches!(
            fault.class,
            FaultClass::SetupHook | FaultClass::Display | FaultClass::Memory | FaultClass::AgentCrashed
        ),
    }
}
