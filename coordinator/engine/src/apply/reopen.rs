//! Runs that go on: what was settled without a verdict is due again.

use longhaul_core::ids::RunId;
use longhaul_core::outcome::{Earlier, Settlement};
use longhaul_core::time::{Millis, Timestamp};

use crate::engine::Engine;
use crate::state::{Episode, EpisodeState, Revived, Run, RunTerms};

impl Episode {
    /// Whether it was settled in a way that a person may take back.
    #[must_use]
    pub const fn may_go_on(&self) -> bool {
        match &self.state {
            EpisodeState::Settled { settlement, .. } => !matches!(settlement, Settlement::Verdict(_)),
            EpisodeState::Queued { .. } | EpisodeState::Active { .. } => true,
        }
    }

    fn reopen(&mut self, at: Timestamp, by: &str) -> bool {
        let EpisodeState::Settled { at: settled_at, settlement } = &self.state else { return false };
        if matches!(settlement, Settlement::Verdict(_)) {
            return false;
        }
        self.earlier.push(Earlier {
            settlement: settlement.clone(),
            settled_at: *settled_at,
            attempts: u32::try_from(self.past.len()).unwrap_or(u32::MAX),
            reopened_at: at,
            by: by.to_owned(),
        });
        self.state = EpisodeState::Queued { since: at, delay: Millis(0) };
        true
    }
}

impl Engine {
    /// Takes a run back in that was forgotten. What it has spent was kept all the while.
    pub(super) fn revive(&mut self, id: RunId, revived: &Revived) {
        let Some(kept) = self.state.forgotten.remove(&id) else { return };
        let run = Run {
            plan: revived.plan.clone(),
            digest: kept.digest,
            submitted_at: revived.submitted_at,
            cancelled: None,
            settled_at: kept.summary.settled_at,
            open: 0,
            episodes: revived.episodes.clone(),
            terms: RunTerms { priority: kept.priority, limits: Vec::new(), file: kept.file },
        };
        self.state.runs.insert(id, run);
        self.state.order.push(id);
    }

    /// Makes episodes of a run due again.
    pub(super) fn reopen(&mut self, at: Timestamp, id: RunId, by: &str, episodes: &[u32]) {
        let Some(run) = self.state.runs.get_mut(&id) else { return };
        run.cancelled = None;
        for index in episodes {
            let Some(episode) = usize::try_from(*index).ok().and_then(|index| run.episodes.get_mut(index)) else {
                continue;
            };
            if episode.reopen(at, by) {
                run.open = run.open.saturating_add(1);
                run.settled_at = None;
            }
        }
    }
}
