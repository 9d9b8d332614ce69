//! A store that was restored from a backup, in the actor's hands: who was heard since, and what of.

use std::collections::BTreeSet;

use longhaul_core::ids::{RunId, WorkerId};
use longhaul_engine::{Command, LeaseRef, Restored};
use longhaul_proto::v1;
use longhaul_proto::v1::to_worker::Message as Down;

use super::{Actor, ActorError};
use crate::message::{NotAccepted, Report};
use crate::session::wire;

/// Where a worker of the backup is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spool {
    /// It is here, and nothing of its spool is still to come.
    Heard,
    /// So much is.
    Delivering(u64),
    /// It has not come back.
    NotHeard,
    /// It left, or its allocation is over: nobody will come back with that name.
    Gone,
}

impl Spool {
    const fn name(self) -> &'static str {
        match self {
            Self::Heard => "heard",
            Self::Delivering(_) => "delivering",
            Self::NotHeard => "not heard",
            Self::Gone => "gone",
        }
    }
}

impl Actor {
    /// Tells the engine of a store that was restored: at every start, since only it knows whether
    /// that was accepted.
    pub(super) fn look_for_restore(&mut self) -> Result<(), ActorError> {
        match self.terms.restored {
            Some(incarnation) => self.internal(Command::StoreRestored { incarnation }),
            None => Ok(()),
        }
    }

    /// While the store is closed, whatever a worker says of an attempt may be the first word of it.
    pub(super) fn hear_of(&mut self, worker: WorkerId, report: &Report) -> Result<(), ActorError> {
        if !self.engine.state().is_closed() {
            return Ok(());
        }
        let lease: LeaseRef = match report {
            Report::MoneyWanted { lease, .. }
            | Report::Purse { lease, .. }
            | Report::Ended { lease, .. }
            | Report::Unknown { lease } => *lease,
            _ => return Ok(()),
        };
        let before = self.events.len();
        self.internal(Command::AttemptHeard { worker, lease })?;
        if self.events.len() > before {
            // What of it was refused as unknown is sent again.
            self.end_session(worker);
        }
        Ok(())
    }

    /// Answers what was said of an attempt that the store does not know: nothing of it can be kept, unless it
    /// was taken in just now and is sent again.
    pub(super) fn unknown(&mut self, worker: WorkerId, session: u64, lease: LeaseRef) {
        if self.sessions.get(&worker).is_none_or(|open| open.number != session) {
            return;
        }
        let state = self.engine.state();
        let taken_in = state.restored.as_ref().is_some_and(|restored| restored.after.contains(&lease.attempt));
        if taken_in && state.is_closed() {
            self.end_session(worker);
            return;
        }
        let reason = v1::RevokeReason::Refused.into();
        self.tell(worker, Down::Revoke(v1::Revoke { attempt: Some(wire(lease)), reason }));
    }

    fn spool_of(&self, worker: WorkerId) -> Spool {
        match (self.sessions.contains_key(&worker), self.spooled.get(&worker)) {
            (true, Some(0)) => Spool::Heard,
            (true, Some(left)) => Spool::Delivering(*left),
            (true, None) => Spool::Delivering(0),
            (false, _) if self.engine.state().workers.contains_key(&worker) => Spool::NotHeard,
            (false, _) => Spool::Gone,
        }
    }

    /// How a restored store stands.
    pub(super) fn restore(&self) -> v1::ShowRestoreResponse {
        let Some(restored) = &self.engine.state().restored else { return v1::ShowRestoreResponse::default() };
        let accepted = restored.accepted.as_ref();
        v1::ShowRestoreResponse {
            restored: true,
            at_millis: restored.at.0,
            accepted_by: accepted.map(|order| order.by.clone()).unwrap_or_default(),
            accepted_at_millis: accepted.map_or(0, |order| order.at.0),
            runs: self.restored_runs(restored),
            workers: self.restored_workers(restored),
            after: restored.after.iter().map(ToString::to_string).collect(),
        }
    }

    fn restored_runs(&self, restored: &Restored) -> Vec<v1::RestoredRun> {
        let heard_of = restored.after.iter().map(|attempt| attempt.episode.run);
        let runs: BTreeSet<RunId> = restored.runs.keys().copied().chain(heard_of).collect();
        let row = |run: RunId| {
            let known = restored.runs.get(&run).copied().unwrap_or_default();
            let summary = self.engine.summary(run);
            v1::RestoredRun {
                run_id: run.to_string(),
                open: summary.as_ref().map_or(0, |row| row.counts.queued.saturating_add(row.counts.active)),
                name: summary.map(|row| row.name).unwrap_or_default(),
                known_nanos: known.settled.nanos(),
                in_flight_nanos: known.escrow.nanos(),
                counted_nanos: self.engine.spent(run).settled.nanos(),
            }
        };
        runs.into_iter().map(row).collect()
    }

    fn restored_workers(&self, restored: &Restored) -> Vec<v1::RestoredWorker> {
        let here = self.engine.state().workers.iter().map(|(id, worker)| (id, &worker.profile.hostname));
        let mut rows: Vec<v1::RestoredWorker> = Vec::new();
        for (id, hostname) in restored.workers.iter().chain(here) {
            if rows.iter().any(|row| row.worker_id == id.to_string()) {
                continue;
            }
            let spool = self.spool_of(*id);
            rows.push(v1::RestoredWorker {
                worker_id: id.to_string(),
                hostname: hostname.clone(),
                state: spool.name().to_owned(),
                undelivered: if let Spool::Delivering(left) = spool { left } else { 0 },
            });
        }
        rows
    }

    /// A person accepts what is not known, unless somebody is still to be heard.
    pub(super) fn accept_restore(
        &mut self,
        by: String,
        unheard: bool,
    ) -> Result<Result<v1::ShowRestoreResponse, NotAccepted>, ActorError> {
        let state = self.engine.state();
        if let Some(restored) = state.restored.as_ref().filter(|_| state.is_closed() && !unheard) {
            let waits = |id: &WorkerId| !matches!(self.spool_of(*id), Spool::Heard | Spool::Gone);
            let waiting = restored.workers.iter().filter(|(id, _)| waits(id));
            let here = self.sessions.keys().filter(|id| !restored.workers.contains_key(id) && waits(id));
            let waiting: Vec<String> = waiting
                .map(|(id, hostname)| format!("{id} on {}", hostname.escape_debug()))
                .chain(here.map(ToString::to_string))
                .collect();
            if !waiting.is_empty() {
                return Ok(Err(NotAccepted::Unheard(waiting)));
            }
        }
        let outcome = self.command(Command::AcceptRestore { by })?;
        Ok(outcome.map(|()| self.restore()).map_err(NotAccepted::from))
    }
}
