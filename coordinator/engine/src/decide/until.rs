//! Samples that are enough: of a task by one agent only so many are run as have to pass.
//!
//! A sample is begun only while those that passed and those that are live together are fewer than
//! have to pass: no sample is paid for that may turn out not to be needed. Those that are left
//! when enough have passed are settled without a beginning.

use std::collections::BTreeMap;

use longhaul_core::ids::{EpisodeId, TaskName};
use longhaul_core::outcome::Settlement;
use longhaul_core::plan::EpisodeEntry;

use super::draft::Draft;
use crate::state::{Episode, EpisodeState, Run};

/// How far the samples of each task are, by agent.
pub(crate) struct Samples<'a> {
    wanted: u32,
    groups: BTreeMap<(&'a TaskName, u32), Group>,
}

#[derive(Clone, Copy, Default)]
struct Group {
    passed: u32,
    live: u32,
}

impl<'a> Samples<'a> {
    /// Of a run that says how many are enough.
    pub(crate) fn of(run: &'a Run) -> Option<Self> {
        let wanted = run.plan.until?.successes;
        let mut groups: BTreeMap<_, Group> = BTreeMap::new();
        for (episode, entry) in run.episodes.iter().zip(&run.plan.episodes) {
            let group = groups.entry((&entry.task, entry.agent)).or_default();
            group.passed = group.passed.saturating_add(u32::from(has_passed(episode)));
            let live = matches!(episode.state, EpisodeState::Active { .. });
            group.live = group.live.saturating_add(u32::from(live));
        }
        Some(Self { wanted, groups })
    }

    /// Whether a sample may be begun beside those that are live; if so, it is live from then on.
    pub(crate) fn admit(&mut self, entry: &'a EpisodeEntry) -> bool {
        let group = self.groups.entry((&entry.task, entry.agent)).or_default();
        let admitted = group.passed.saturating_add(group.live) < self.wanted;
        group.live = group.live.saturating_add(u32::from(admitted));
        admitted
    }

    /// How many have passed, if that is enough.
    fn enough(&self, entry: &'a EpisodeEntry) -> Option<u32> {
        let passed = self.groups.get(&(&entry.task, entry.agent))?.passed;
        (passed >= self.wanted).then_some(passed)
    }
}

const fn has_passed(episode: &Episode) -> bool {
    match &episode.state {
        EpisodeState::Settled { settlement: Settlement::Verdict(verdict), .. } => verdict.passed,
        EpisodeState::Settled { .. } | EpisodeState::Queued { .. } | EpisodeState::Active { .. } => false,
    }
}

impl Draft<'_> {
    /// Settles samples that wait and are not needed any more.
    pub(super) fn settle_samples(&mut self) {
        for (id, run) in self.state().runs.iter().filter(|(_, run)| run.open > 0 && run.cancelled.is_none()) {
            let Some(samples) = Samples::of(run) else { continue };
            for (index, (episode, entry)) in (0_u32..).zip(run.episodes.iter().zip(&run.plan.episodes)) {
                let waits = matches!(episode.state, EpisodeState::Queued { .. });
                let Some(passed) = samples.enough(entry).filter(|_| waits) else { continue };
                // One that a fault sent back has begun, and is stopped.
                let settlement = if episode.past.is_empty() {
                    let reason = format!("{passed} samples of the task have passed, which is enough");
                    Settlement::NotStarted { reason }
                } else {
                    episode.stopped()
                };
                self.settle(EpisodeId { run: *id, index }, settlement);
            }
        }
    }
}
