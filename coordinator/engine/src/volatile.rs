//! What is not stored: the engine's idea of the time, and when it heard from whom.
//!
//! Heartbeats change only this, so they cost the journal nothing. It is kept apart from
//! the durable state and is no part of what a replay must restore: after a restart
//! everybody counts as heard from just now, since a coordinator that was away may let
//! no lease run out for that.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_core::ids::{AttemptId, WorkerId};
use longhaul_core::time::{Millis, Timestamp};

/// Last signs of life.
#[derive(Clone, Debug, Default)]
pub(crate) struct Volatile {
    /// The engine's clock.
    pub(crate) clock: Timestamp,
    /// When each live lease was granted or last renewed.
    pub(crate) renewed: BTreeMap<AttemptId, Timestamp>,
    /// When each known worker was last heard from.
    pub(crate) seen: BTreeMap<WorkerId, Timestamp>,
    /// Live attempts whose worker said that they are past their start.
    pub(crate) started: BTreeSet<AttemptId>,
    /// How many steps the trajectories of live attempts have, as their workers said.
    pub(crate) steps: BTreeMap<AttemptId, u32>,
    /// When the clock jumped last, or the coordinator started: no wait counts from before.
    pub(crate) forgiven: Timestamp,
}

impl Volatile {
    /// The time that `now` is taken for: small steps back stand still, large steps
    /// either way are jumps of the clock and are believed.
    pub(crate) fn reading(&self, now: Timestamp, skew: Millis) -> Timestamp {
        if self.is_jump(now, skew) { now } else { self.clock.max(now) }
    }

    /// Moves the clock. After a jump every lease and worker gets its full time again.
    pub(crate) fn advance(&mut self, now: Timestamp, skew: Millis) {
        let jumped = self.is_jump(now, skew);
        self.clock = self.reading(now, skew);
        if jumped {
            self.forgive(self.clock);
        }
    }

    /// Counts everybody as heard from at `at`.
    pub(crate) fn forgive(&mut self, at: Timestamp) {
        self.forgiven = at;
        self.renewed.values_mut().for_each(|renewed| *renewed = at);
        self.seen.values_mut().for_each(|seen| *seen = at);
    }

    /// How much of the time between `since` and `now` was seen to pass.
    pub(crate) fn waited(&self, since: Timestamp, now: Timestamp) -> Millis {
        now.since(if since > now { self.forgiven } else { since.max(self.forgiven) })
    }

    fn is_jump(&self, now: Timestamp, skew: Millis) -> bool {
        now.since(self.clock) > skew || self.clock.since(now) > skew
    }
}
