//! What events about a store that was restored from a backup do.

use longhaul_core::ids::{Epoch, WorkerId};
use longhaul_core::outcome::FaultClass;
use longhaul_core::time::Timestamp;

use crate::engine::Engine;
use crate::event::Event;
use crate::lease::LeaseRef;
use crate::restored::{Restored, epoch_of};
use crate::state::{Cancellation, EpisodeState, PastAttempt, PastEnd};

impl Engine {
    /// Applies an event about a restored store; whether it was one.
    pub(super) fn apply_to_restored(&mut self, event: &Event) -> bool {
        match event {
            Event::StoreRestored { at, incarnation } => self.restored(*at, *incarnation),
            Event::AttemptAdopted { at, lease, worker, hostname } => self.adopted(*at, *lease, *worker, hostname),
            Event::RestoreAccepted { at, by } => {
                if let Some(restored) = &mut self.state.restored {
                    restored.accepted = Some(Cancellation { at: *at, by: by.clone() });
                }
                // As after any outage: every worker gets its full time again.
                self.volatile.forgive(*at);
            }
            _ => return false,
        }
        true
    }

    fn restored(&mut self, at: Timestamp, incarnation: u64) {
        let state = &mut self.state;
        state.last_epoch = epoch_of(incarnation, state.last_epoch);
        let open = state.runs.iter().filter(|(_, run)| run.open > 0).map(|(id, _)| *id);
        let open: Vec<_> = open.collect();
        let holding = state.workers.iter().filter(|(_, worker)| !worker.leases.is_empty());
        let workers = holding.map(|(id, worker)| (*id, worker.profile.hostname.clone())).collect();
        let runs = open.into_iter().map(|run| (run, self.spent(run))).collect();
        let after = std::collections::BTreeSet::new();
        self.state.restored = Some(Restored { incarnation, at, runs, workers, after, accepted: None });
    }

    fn adopted(&mut self, at: Timestamp, lease: LeaseRef, worker: WorkerId, hostname: &str) {
        let LeaseRef { attempt, epoch } = lease;
        let (Some(episode), Some(index)) = (
            self.episode_mut(attempt.episode).filter(|episode| !matches!(episode.state, EpisodeState::Active { .. })),
            attempt.number.checked_sub(1).and_then(|index| usize::try_from(index).ok()),
        ) else {
            return;
        };
        // Of those between nothing is known but that there were so many: they have no epoch.
        while episode.past.len() <= index {
            episode.past.push(PastAttempt {
                epoch: Epoch::default(),
                worker,
                hostname: hostname.to_owned(),
                granted_at: at,
                ended_at: at,
                end: PastEnd::Lost(FaultClass::Preempted),
                explained: None,
                cut_off: None,
                resumes: false,
                steps: 0,
                gained: false,
                stopped: false,
            });
        }
        let Some(past) = episode.past.get_mut(index).filter(|past| past.epoch == Epoch::default()) else { return };
        past.epoch = epoch;
        past.worker = worker;
        hostname.clone_into(&mut past.hostname);
        self.state.last_epoch = self.state.last_epoch.max(epoch);
        if let Some(restored) = &mut self.state.restored {
            restored.after.insert(attempt);
        }
    }
}
