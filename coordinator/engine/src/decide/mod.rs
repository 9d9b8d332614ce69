//! Decisions: from a command and the state to events, without changing anything.

mod allocations;
mod ask;
mod draft;
mod escrow;
mod layers;
mod placement;
mod restored;
mod resume;
mod retry;
mod runs;
mod until;
mod workers;

pub(crate) use placement::Demand;
pub(crate) use until::Samples;

use longhaul_core::time::Timestamp;

use crate::command::{Command, Rejection};
use crate::engine::Engine;
use crate::event::{Departure, Event};
use draft::Draft;

impl Engine {
    /// Decides a command. Pure: the caller applies what comes of it, or uses
    /// [`Self::step`].
    ///
    /// # Errors
    ///
    /// The command is refused, and nothing is to be changed.
    pub fn decide(&self, now: Timestamp, command: Command) -> Result<Vec<Event>, Rejection> {
        let mut draft = Draft::new(self, now);
        match command {
            Command::CoordinatorRestarted => {
                let at = draft.at;
                draft.push(Event::CoordinatorRestarted { at });
            }
            Command::SubmitRun { run, plan, digest, terms } => draft.submit_run(run, plan, digest, terms)?,
            Command::CancelRun { run, by } => draft.cancel_run(run, by)?,
            Command::ResumeRun { run, by, kinds, revived } => draft.resume_run(run, by, &kinds, revived)?,
            Command::ForgetRun { run } => draft.forget_run(run)?,
            Command::WorkerConnected { worker, session, profile, readiness, live } => {
                draft.connect(worker, session, profile, readiness, live)?;
            }
            Command::WorkerDisconnected { worker, session } => draft.disconnect(worker, session),
            Command::WorkerLeaving { worker, reason } => draft.leave(worker, reason),
            Command::DrainWorker { worker, reason } => draft.drain(worker, reason)?,
            Command::WorkerUnfit { worker, reason } => draft.unfit(worker, reason)?,
            Command::AttemptEnded { lease, end, steps, purses } => draft.end_of_attempt(lease, end, steps, purses)?,
            Command::EscrowRequested { lease, purse, state, wanted, bound } => {
                draft.escrow_requested(lease, purse, state, wanted, bound)?;
            }
            Command::EscrowReported { lease, purse, state } => draft.escrow_reported(lease, purse, state)?,
            Command::PursesClosed { lease, purses } => draft.purses_closed(lease, purses)?,
            Command::RaiseBudget { run, scope, cap, by } => draft.raise_budget(run, scope, cap, by)?,
            Command::EndpointSeen { endpoint, down } => draft.endpoint_seen(endpoint, down),
            Command::ClaimLayer { worker, key, kind, env } => draft.claim_layer(worker, key, kind, env)?,
            Command::ReportLayer { worker, key, kind, env, outcome } => {
                draft.report_layer(worker, key, kind, env, outcome);
            }
            Command::SetPool { pool } => draft.set_pool(pool)?,
            Command::RemovePool { pool } => draft.remove_pool(pool),
            Command::ResumePool { pool } => draft.resume_pool(pool)?,
            Command::PartitionSeen { pool, offer } => draft.partition_seen(pool, offer)?,
            Command::SubmissionAccepted { token, job } => draft.submission_accepted(token, job)?,
            Command::SubmissionRefused { token, reason, transient } => {
                draft.submission_refused(token, reason, transient)?;
            }
            Command::SubmissionUnknown { token, reason } => draft.submission_unknown(token, reason)?,
            Command::QueueSeen { mark, asked_at, jobs } => draft.queue_seen(mark, asked_at, &jobs),
            Command::QueueUnreachable { reason } => draft.queue_unreachable(reason),
            Command::AccountingSeen { jobs } => drop(draft.jobs_seen(&jobs)),
            Command::Tick => self.tick(&mut draft),
            Command::StoreRestored { incarnation } => draft.store_restored(incarnation),
            Command::AttemptHeard { worker, lease } => {
                if let Some(known) = self.state.workers.get(&worker) {
                    draft.adopt(lease, worker, &known.profile.hostname);
                }
            }
            Command::AcceptRestore { by } => draft.accept_restore(by)?,
        }
        Ok(draft.finish())
    }

    /// First what is over, and only when nothing is, what can be started: so that what
    /// is placed is placed on the state that the endings leave.
    fn tick(&self, draft: &mut Draft<'_>) {
        if self.state.is_closed() {
            // Nothing runs out, and nothing is begun or paid, before it is accepted.
            return;
        }
        let clock = self.volatile.clock;
        let over = |end: Option<Timestamp>| end.is_some_and(|end| end <= clock);
        for (worker, lease, _) in self.state.leases() {
            if over(self.lease_end(lease.attempt)) {
                let message = format!("the lease was not renewed for {}", self.settings.grace());
                draft.lose(worker, lease, self.fault_of_loss(worker, &message));
            }
        }
        for (id, worker) in &self.state.workers {
            if over(self.worker_end(*id, worker)) {
                draft.depart(*id, Departure::Lost);
            }
        }
        // Then what that leaves of the money, then what can be started.
        if draft.is_empty() {
            draft.tend_money();
        }
        if draft.is_empty() {
            draft.settle_samples();
        }
        if draft.is_empty() {
            self.place(draft);
        }
        // And only when nothing can be started, what is missing for it.
        if draft.is_empty() {
            draft.tend_pools();
        }
    }
}
