//! A purse as the coordinator knows it.

use longhaul_core::call::PurseKind;
use longhaul_core::ids::Epoch;
use longhaul_core::money::Money;
use longhaul_core::purse::PurseState;
use serde::{Deserialize, Serialize};

use super::{Charge, MOST};

/// The purses of one attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Purses {
    /// The epoch of its lease.
    pub epoch: Epoch,
    /// The agent that it is of: an index into the plan.
    pub agent: u32,
    /// What it may spend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub episode: Option<Purse>,
    /// What judging it may spend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judge: Option<Purse>,
}

/// A purse as the coordinator knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Purse {
    /// What was granted, durably; and what its worker said last of the rest.
    pub state: PurseState,
    /// Where it stands.
    pub stage: Stage,
}

/// Where a purse stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Its attempt is live.
    Live {
        /// What it waits for, if it does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        waiting: Option<Waiting>,
        /// The sums of grants and of calls when what is free was asked back last: until one of
        /// them grows there is nothing more to be had.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        recalled: Option<(Money, Money)>,
    },
    /// Its attempt is over, and nobody has said what became of the money.
    Lost,
    /// Its attempt is over, and what it cost is known.
    Closed,
}

/// A call that waits for money.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// Its place in the queue.
    pub turn: u64,
    /// What the sum of grants has to reach for it.
    pub wanted: Money,
    /// The most that it can cost.
    pub bound: Money,
    /// What the purse had given back when it asked.
    pub returned: Money,
    /// What the purse had spent when it asked.
    pub settled: Money,
}

impl Purses {
    /// Every kind.
    pub(crate) const KINDS: [PurseKind; 2] = [PurseKind::Episode, PurseKind::Judge];

    pub(crate) const fn new(epoch: Epoch, agent: u32) -> Self {
        Self { epoch, agent, episode: None, judge: None }
    }

    /// One of them.
    #[must_use]
    pub const fn get(&self, kind: PurseKind) -> Option<&Purse> {
        match kind {
            PurseKind::Episode => self.episode.as_ref(),
            PurseKind::Judge => self.judge.as_ref(),
        }
    }

    const fn slot(&mut self, kind: PurseKind) -> &mut Option<Purse> {
        match kind {
            PurseKind::Episode => &mut self.episode,
            PurseKind::Judge => &mut self.judge,
        }
    }

    pub(crate) const fn get_mut(&mut self, kind: PurseKind) -> Option<&mut Purse> {
        self.slot(kind).as_mut()
    }

    pub(crate) fn insert(&mut self, kind: PurseKind, purse: Purse) -> &Purse {
        self.slot(kind).insert(purse)
    }

    /// Those that there are.
    pub fn all(&self) -> impl Iterator<Item = (PurseKind, &Purse)> {
        Self::KINDS.into_iter().filter_map(|kind| Some((kind, self.get(kind)?)))
    }

    /// Drops what can change no more; whether anything is left.
    pub(crate) fn keep_open(&mut self) -> bool {
        for kind in Self::KINDS {
            let slot = self.slot(kind);
            *slot = slot.filter(|purse| purse.stage == Stage::Lost && !purse.state.held().is_zero());
        }
        self.episode.is_some() || self.judge.is_some()
    }
}

impl Purse {
    pub(crate) fn new(live: bool) -> Self {
        let stage = if live { Stage::Live { waiting: None, recalled: None } } else { Stage::Lost };
        Self { state: PurseState::default(), stage }
    }

    /// What waits for money, if anything does.
    #[must_use]
    pub const fn waiting(&self) -> Option<&Waiting> {
        match &self.stage {
            Stage::Live { waiting, .. } => waiting.as_ref(),
            Stage::Lost | Stage::Closed => None,
        }
    }

    /// What its accounts are charged with. A lost one with all that it was granted and is not
    /// known to have given back: the worker may have spent it.
    pub(crate) const fn charge(&self) -> Charge {
        let PurseState { settled, unconfirmed, .. } = self.state;
        let held = self.state.held();
        match self.stage {
            Stage::Live { .. } => Charge { settled, escrow: held, unconfirmed, live: true },
            Stage::Lost => Charge {
                settled: settled.saturating_add(held),
                escrow: Money::ZERO,
                unconfirmed: unconfirmed.saturating_add(held),
                live: false,
            },
            Stage::Closed => Charge { settled, escrow: Money::ZERO, unconfirmed, live: false },
        }
    }

    /// The purse as it is after a report: sum by sum the larger one, so that a report which is
    /// late, repeated or out of order changes nothing. What was granted is not the worker's to
    /// say, and no more than that can be given back.
    #[must_use]
    pub fn merged(&self, report: PurseState) -> PurseState {
        let granted = self.state.granted;
        let report = PurseState {
            granted,
            settled: report.settled.min(MOST),
            returned: report.returned.min(granted),
            unconfirmed: report.unconfirmed.min(MOST),
            overshoot: report.overshoot.min(MOST),
        };
        let merged = self.state.max(&report);
        let (unconfirmed, overshoot) = (merged.unconfirmed.min(merged.settled), merged.overshoot.min(merged.settled));
        PurseState { unconfirmed, overshoot, ..merged }
    }

    /// By how much vendors billed more than the bounds of its calls: what its worker says, and no less
    /// than what it cost beyond its grants.
    pub(crate) fn overshoot(&self) -> Money {
        self.state.overshoot.max(self.state.overspent())
    }

    pub(crate) fn merge(&mut self, report: PurseState) {
        self.state = self.merged(report);
    }

    /// What the sum of grants has to reach for the call that waits, as far as is known now. What
    /// it gave back since it asked has to be granted again. If it has spent since, calls of it
    /// have come back that had money reserved, nobody knows how much: then the least that makes
    /// the call possible, and it asks again if that was too little.
    pub(crate) fn wanted(&self, waiting: &Waiting) -> Money {
        let PurseState { returned, settled, .. } = self.state;
        if settled > waiting.settled {
            return returned.saturating_add(settled).saturating_add(waiting.bound);
        }
        waiting.wanted.saturating_add(returned.saturating_sub(waiting.returned))
    }

    /// Whether asking back what is free may bring anything.
    pub(crate) fn may_be_recalled(&self) -> bool {
        match self.stage {
            Stage::Live { recalled, .. } => {
                !self.state.held().is_zero() && recalled != Some((self.state.granted, self.state.settled))
            }
            Stage::Lost | Stage::Closed => false,
        }
    }

    /// Whether what is free was asked back, and nothing has happened since.
    pub(crate) fn is_recalled(&self) -> bool {
        matches!(self.stage, Stage::Live { .. }) && !self.state.held().is_zero() && !self.may_be_recalled()
    }

    /// A call waits. If its worker has heard of all that was granted, that was not enough for it,
    /// and what of it is free may be asked back: or two that wait would wait for each other.
    pub(crate) fn wait(&mut self, request: Waiting, heard: Money) {
        let knows = heard >= self.state.granted;
        if let Stage::Live { waiting, recalled } = &mut self.stage {
            *waiting = Some(request);
            if knows {
                *recalled = None;
            }
        }
    }

    /// The sum of grants grows, or is said again. A grant of little more than the call needs is
    /// not asked back before the call was made: it would have to be asked for at once again.
    pub(crate) fn grant(&mut self, granted: Money) {
        let spare = self.waiting().map(|waiting| (waiting.bound, granted.saturating_sub(self.wanted(waiting))));
        self.state.granted = self.state.granted.max(granted);
        if spare.is_some_and(|(bound, spare)| spare < bound) {
            self.recall();
        }
        self.answered();
    }

    pub(crate) const fn answered(&mut self) {
        if let Stage::Live { waiting, .. } = &mut self.stage {
            *waiting = None;
        }
    }

    pub(crate) const fn recall(&mut self) {
        if let Stage::Live { recalled, .. } = &mut self.stage {
            *recalled = Some((self.state.granted, self.state.settled));
        }
    }

    /// Whether its end is still to be told.
    pub(crate) fn is_open(&self) -> bool {
        self.stage != Stage::Closed
    }

    pub(crate) fn close(&mut self) {
        self.stage = Stage::Closed;
        let spent = self.state.settled;
        // What its worker never heard of cannot be spent any more either.
        self.state.returned = self.state.returned.max(self.state.granted.saturating_sub(spent));
    }

    pub(crate) const fn lose(&mut self) {
        if matches!(self.stage, Stage::Live { .. }) {
            self.stage = Stage::Lost;
        }
    }
}
