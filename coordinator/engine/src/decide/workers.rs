//! Workers: they come, go, drain, and are lost.

use longhaul_core::ids::WorkerId;
use longhaul_core::outcome::{Fault, FaultClass};

use super::draft::Draft;
use crate::command::Rejection;
use crate::event::{Departure, Event};
use crate::lease::LeaseRef;
use crate::state::{Readiness, WorkerProfile};

impl Draft<'_> {
    pub(super) fn connect(
        &mut self,
        worker: WorkerId,
        session: u64,
        profile: WorkerProfile,
        readiness: Readiness,
        live: Vec<LeaseRef>,
    ) -> Result<(), Rejection> {
        // What it holds was measured by what it had; a process does not change that.
        if self.state().workers.get(&worker).is_some_and(|known| known.profile.capacity != profile.capacity) {
            return Err(Rejection::WorkerChanged { worker });
        }
        for lease in &live {
            self.adopt(*lease, worker, &profile.hostname);
        }
        let at = self.at;
        self.push(Event::WorkerConnected { at, worker, session, profile, live, readiness });
        Ok(())
    }

    /// The end of a session. Not the end of its leases: the worker may be back in time.
    pub(super) fn disconnect(&mut self, worker: WorkerId, session: u64) {
        if self.state().workers.get(&worker).is_some_and(|known| known.session == Some(session)) {
            let at = self.at;
            self.push(Event::WorkerDisconnected { at, worker });
        }
    }

    /// A worker that says itself that it stops: others may have its episodes at once.
    pub(super) fn leave(&mut self, worker: WorkerId, reason: String) {
        if self.state().workers.contains_key(&worker) {
            self.depart(worker, Departure::Left { reason });
        }
    }

    pub(super) fn drain(&mut self, worker: WorkerId, reason: String) -> Result<(), Rejection> {
        if !self.state().workers.contains_key(&worker) {
            return Err(Rejection::UnknownWorker { worker });
        }
        self.drain_known(worker, reason);
        Ok(())
    }

    /// Tells a worker to take nothing new, if it is known and was not told yet.
    pub(super) fn drain_known(&mut self, worker: WorkerId, reason: String) {
        if self.state().workers.get(&worker).is_some_and(|known| known.draining.is_none()) {
            let at = self.at;
            self.push(Event::WorkerDraining { at, worker, reason });
        }
    }

    pub(super) fn unfit(&mut self, worker: WorkerId, reason: Option<String>) -> Result<(), Rejection> {
        let known = self.state().workers.get(&worker).ok_or(Rejection::UnknownWorker { worker })?;
        if known.unfit != reason {
            let at = self.at;
            self.push(Event::WorkerUnfit { at, worker, reason });
        }
        Ok(())
    }

    /// Ends all that a worker holds, and forgets the worker.
    pub(super) fn depart(&mut self, id: WorkerId, departure: Departure) {
        let Some(worker) = self.state().workers.get(&id) else { return };
        let fault = match &departure {
            Departure::Left { reason } => {
                let message = format!("the worker left: {reason}");
                Fault { class: FaultClass::Preempted, message, log_tail: None }
            }
            Departure::Lost => self.engine.fault_of_loss(id, "the worker was not heard of any more"),
            Departure::Ended { why } => {
                let message = format!("the worker's allocation ended: {why}");
                Fault { class: FaultClass::WorkerLost, message, log_tail: None }
            }
        };
        for (attempt, lease) in &worker.leases {
            let lease = LeaseRef { attempt: *attempt, epoch: lease.epoch };
            self.lose(id, lease, fault.clone());
        }
        self.forsake(id);
        let at = self.at;
        self.push(Event::WorkerGone { at, worker: id, departure });
    }
}
