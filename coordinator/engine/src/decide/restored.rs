//! What a store that was restored from a backup does not know, and what workers say of it.

use longhaul_core::ids::{Epoch, WorkerId};
use longhaul_core::outcome::{Fault, FaultClass};

use super::draft::Draft;
use crate::command::Rejection;
use crate::event::Event;
use crate::lease::LeaseRef;

/// So many attempts of one episode may have been begun after the backup: a worker that speaks of
/// more is not believed.
const MOST_AFTER: u32 = 1_000;

impl Draft<'_> {
    pub(super) fn store_restored(&mut self, incarnation: u64) {
        if self.state().restored.as_ref().is_some_and(|known| known.incarnation == incarnation) {
            return;
        }
        let at = self.at;
        self.push(Event::StoreRestored { at, incarnation });
        // What was live may be over, and has steps that nobody can deliver again: it is gone on with
        // from what the backup knows.
        let message = "the store was restored from a backup".to_owned();
        let fault = Fault { class: FaultClass::Preempted, message, log_tail: None };
        for (worker, lease, _) in self.state().leases() {
            self.lose(worker, lease, fault.clone());
        }
    }

    pub(super) fn accept_restore(&mut self, by: String) -> Result<(), Rejection> {
        let restored = self.state().restored.as_ref().ok_or(Rejection::NotRestored)?;
        if restored.accepted.is_none() {
            let at = self.at;
            self.push(Event::RestoreAccepted { at, by });
        }
        Ok(())
    }

    /// Takes in an attempt that was begun after the backup, as a worker says: what it spent counts.
    /// It is over: what was known of its episode before is gone on with once the store is open.
    pub(super) fn adopt(&mut self, lease: LeaseRef, worker: WorkerId, hostname: &str) {
        if self.is_from_after_the_backup(lease) {
            let (at, hostname) = (self.at, hostname.to_owned());
            self.push(Event::AttemptAdopted { at, lease, worker, hostname });
        }
    }

    fn is_from_after_the_backup(&self, LeaseRef { attempt, epoch }: LeaseRef) -> bool {
        if !self.state().is_closed() || epoch == Epoch::default() {
            return false;
        }
        let Some(episode) = self.state().episode(attempt.episode) else { return false };
        let Some(before) = attempt.number.checked_sub(1) else { return false };
        let known = usize::try_from(before).ok().and_then(|index| episode.past.get(index));
        // One that was only counted, since a later one was heard of first.
        let counted = known.is_some_and(|past| past.epoch == Epoch::default());
        let further = attempt.number.saturating_sub(episode.attempts());
        counted || (further > 0 && further <= MOST_AFTER)
    }
}
