//! From events that are durable to what must be done about them.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_core::call::PurseKind;
use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, EpisodeId, RunId, WorkerId};
use longhaul_core::money::Money;

use crate::allocation::{Allocation, JobId, Stage, Submission, Token};
use crate::effect::{Effect, EscrowRest, LayerAnswer, Notice, RevokeReason};
use crate::engine::Engine;
use crate::event::Event;
use crate::lease::LeaseRef;
use crate::ledger::Purses;
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
        owed.extend(self.recalls_from(id, worker));
        if let Some(reason) = &worker.draining {
            owed.push(Effect::SendDrain { worker: id, reason: reason.clone() });
        }
        owed
    }

    /// What is still asked back from a worker, which may not have heard of it. What it asked for
    /// itself, it asks again.
    fn recalls_from(&self, id: WorkerId, worker: &Worker) -> Vec<Effect> {
        let leases = worker.leases.iter().map(|(attempt, lease)| LeaseRef { attempt: *attempt, epoch: lease.epoch });
        let recalls = leases.flat_map(|lease| {
            let ledger = self.state.ledgers.get(&lease.attempt.episode.run).filter(|ledger| !ledger.queue.is_empty());
            let purses = ledger.and_then(|ledger| ledger.purses.get(&lease.attempt));
            let recalled = purses.into_iter().flat_map(Purses::all).filter(|(_, purse)| purse.is_recalled());
            recalled.map(move |(purse, _)| Effect::RecallEscrow { worker: id, lease, purse })
        });
        recalls.collect()
    }

    /// What Slurm must hear after a replay: submissions of unknown fate are looked for, and
    /// allocations that were to be ended are told so again. Nothing is submitted.
    pub(crate) fn owed_to_slurm(&self) -> Vec<Effect> {
        let mut owed = Vec::new();
        for (token, submission) in &self.state.submissions {
            owed.extend(self.look_for(token));
            let Some(job) = submission.job() else { continue };
            let mut orders: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
            for (task, allocation) in submission.tasks.iter().filter(|(_, allocation)| allocation.is_live()) {
                if let Some(release) = &allocation.release {
                    orders.entry(&release.reason).or_default().push(*task);
                }
            }
            owed.extend(orders.into_iter().map(|(reason, tasks)| {
                let (token, job, reason) = (token.clone(), job.clone(), reason.to_owned());
                Effect::CancelAllocations { token, job, tasks, reason }
            }));
        }
        owed
    }

    fn look_for(&self, token: &Token) -> Option<Effect> {
        let submission = self.state.submissions.get(token).filter(|submission| submission.is_open())?;
        Some(Effect::FindAllocations { pool: submission.pool.clone(), token: token.clone() })
    }

    fn send_lease(&self, worker: WorkerId, lease: LeaseRef) -> Option<Effect> {
        if self.state.holder(lease) != Some(worker) {
            return None;
        }
        let (episode, entry) = self.state.runs.get(&lease.attempt.episode.run)?.episode(lease.attempt.episode.index)?;
        let verifies = episode.verifies();
        let held = self.state.workers.get(&worker)?.leases.get(&lease.attempt)?;
        Some(Effect::SendLease { worker, lease, plan: entry.plan, resumes: held.resumes, verifies })
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
            Event::CoordinatorRestarted { .. } => {
                let owed = self.engine.owed_to_slurm();
                self.effects.extend(owed);
            }
            Event::RunSubmitted { run, .. } | Event::RunResumed { run, .. } | Event::RunForgotten { run, .. } => {
                self.run_changed(*run);
            }
            Event::RunCancelled { run, .. } => self.run_cancelled(*run),
            Event::RunSettled { run, .. } => {
                self.run_changed(*run);
                self.publish(Notice::RunSettled(*run));
            }
            Event::WorkerConnected { worker, session, live, .. } => self.worker_connected(*worker, *session, live),
            Event::WorkerDisconnected { worker, .. } | Event::WorkerUnfit { worker, .. } => {
                self.publish(Notice::WorkerChanged(*worker))
            }
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
            Event::AttemptAdopted { lease, .. } => self.run_changed(lease.attempt.episode.run),
            _ => {
                if !self.event_of_money(event) {
                    self.event_of_pools(event);
                }
            }
        }
    }

    /// What follows from an event about money or endpoints; whether it was one.
    fn event_of_money(&mut self, event: &Event) -> bool {
        match event {
            Event::EscrowRequested { lease, purse, .. } => {
                // Granted or refused in the same batch, it is answered there.
                if self.engine.state.purse(lease.attempt, *purse).is_some_and(|known| known.waiting().is_some()) {
                    self.answer_escrow(*lease, *purse, EscrowRest::Wait);
                }
                self.run_changed(lease.attempt.episode.run);
            }
            Event::EscrowGranted { lease, purse, .. } => {
                let waits =
                    self.engine.state.purse(lease.attempt, *purse).is_some_and(|known| known.waiting().is_some());
                let rest = if waits { EscrowRest::Wait } else { EscrowRest::Enough };
                self.answer_escrow(*lease, *purse, rest);
                self.run_changed(lease.attempt.episode.run);
            }
            Event::EscrowRefused { lease, purse, reason, .. } => {
                self.answer_escrow(*lease, *purse, EscrowRest::Refused { reason: reason.clone() });
                self.run_changed(lease.attempt.episode.run);
            }
            Event::EscrowRecalled { purses, .. } => {
                for (lease, purse) in purses {
                    if let Some(worker) = self.engine.state.holder(*lease) {
                        self.effects.push(Effect::RecallEscrow { worker, lease: *lease, purse: *purse });
                    }
                }
            }
            Event::EscrowReported { lease, .. } | Event::PursesClosed { lease, .. } => {
                self.run_changed(lease.attempt.episode.run);
            }
            Event::BudgetRaised { run, .. } => self.run_changed(*run),
            Event::BudgetNearlySpent { run, scope, percent, .. } => {
                self.publish(Notice::BudgetNearlySpent { run: *run, scope: scope.clone(), percent: *percent });
            }
            Event::EndpointSeen { endpoint, down, .. } => {
                self.publish(Notice::EndpointChanged { endpoint: endpoint.clone(), down: down.clone() });
            }
            _ => return false,
        }
        true
    }

    fn answer_escrow(&mut self, lease: LeaseRef, purse: PurseKind, rest: EscrowRest) {
        let known = self.engine.state.purse(lease.attempt, purse);
        if let Some(worker) = self.engine.state.holder(lease) {
            let granted = known.map_or(Money::ZERO, |known| known.state.granted);
            self.effects.push(Effect::AnswerEscrow { worker, lease, purse, granted, rest });
        }
    }

    fn event_of_pools(&mut self, event: &Event) {
        match event {
            Event::AllocationsRequested { token, .. } | Event::SubmissionRetried { token, .. } => {
                self.submission_changed(token);
                if let Some(submission) = self.engine.state.submissions.get(token)
                    && matches!(submission.stage, Stage::Requested)
                {
                    let (pool, token) = (submission.pool.clone(), token.clone());
                    let (count, walltime) = (submission.count, submission.walltime);
                    self.effects.push(Effect::SubmitAllocations { pool, token, count, walltime });
                }
            }
            Event::SubmissionDoubted { token, .. } => {
                self.submission_changed(token);
                self.effects.extend(self.engine.look_for(token));
            }
            Event::AllocationReleased { token, tasks, reason, .. } => {
                self.submission_changed(token);
                if let Some(submission) = self.engine.state.submissions.get(token)
                    && let Some(job) = submission.job()
                {
                    let live = |task: &&u32| submission.tasks.get(*task).is_some_and(Allocation::is_live);
                    let tasks: Vec<_> = tasks.iter().filter(live).copied().collect();
                    if !tasks.is_empty() {
                        let (token, job, reason) = (token.clone(), job.clone(), reason.clone());
                        self.cancel(token, job, tasks, reason);
                    }
                }
            }
            Event::StrayFound { token, job, .. } => {
                let own = self.engine.state.submissions.get(token).and_then(Submission::job);
                if own != Some(job) {
                    let reason = "another job has its token".to_owned();
                    self.cancel(token.clone(), job.clone(), Vec::new(), reason);
                }
            }
            Event::PoolSet { pool, .. } => self.publish(Notice::PoolChanged(pool.id.clone())),
            Event::PoolRemoved { pool, .. }
            | Event::PartitionSeen { pool, .. }
            | Event::PoolFailed { pool, .. }
            | Event::PoolPaused { pool, .. }
            | Event::PoolResumed { pool, .. } => self.publish(Notice::PoolChanged(pool.clone())),
            Event::SubmissionAccepted { token, .. }
            | Event::SubmissionDropped { token, .. }
            | Event::AllocationsSeen { token, .. }
            | Event::AllocationMissing { token, .. }
            | Event::AllocationEnded { token, .. } => self.submission_changed(token),
            _ => {}
        }
    }

    /// One order for all tasks of a job that a batch ends for one reason: an array of a
    /// hundred is one call.
    fn cancel(&mut self, token: Token, job: JobId, tasks: Vec<u32>, reason: String) {
        for effect in &mut self.effects {
            if let Effect::CancelAllocations { token: of, job: known, tasks: all, reason: same } = effect
                && (&*of, &*known, &*same) == (&token, &job, &reason)
                && !all.is_empty()
                && !tasks.is_empty()
            {
                all.extend(tasks);
                return;
            }
        }
        self.effects.push(Effect::CancelAllocations { token, job, tasks, reason });
    }

    fn submission_changed(&mut self, token: &Token) {
        if let Some(pool) = self.engine.state.submissions.get(token).map(|submission| submission.pool.clone()) {
            let notice = Effect::Publish(Notice::PoolChanged(pool));
            if !self.effects.contains(&notice) {
                self.effects.push(notice);
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
