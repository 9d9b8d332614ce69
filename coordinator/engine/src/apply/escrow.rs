//! What events about money do to the ledgers.

use longhaul_core::call::PurseKind;
use longhaul_core::ids::AttemptId;
use longhaul_core::money::Money;
use longhaul_core::plan::EpisodeEntry;
use longhaul_core::purse::PurseState;

use crate::engine::Engine;
use crate::event::Event;
use crate::lease::LeaseRef;
use crate::ledger::{Account, Ledger, Purse, ScopeName, Waiting};

impl Engine {
    /// Applies an event about money or endpoints; whether it was one.
    pub(super) fn apply_to_money(&mut self, event: &Event) -> bool {
        match event {
            Event::EscrowRequested { lease, purse, state, wanted, bound, .. } => {
                let Some(agent) = self.take_report(*lease, *purse, *state) else { return true };
                let Some(ledger) = self.state.ledgers.get_mut(&lease.attempt.episode.run) else { return true };
                let (returned, settled) = (state.returned, state.settled);
                let waiting = Waiting { turn: 0, wanted: *wanted, bound: *bound, returned, settled };
                ledger.ask(lease.attempt, agent, *purse, waiting, state.granted);
            }
            Event::EscrowGranted { lease, purse, granted, .. } => {
                self.with_ledger(*lease, |ledger| ledger.grant(lease.attempt, *purse, *granted));
            }
            Event::EscrowRefused { lease, purse, .. } => {
                self.with_ledger(*lease, |ledger| ledger.refuse(lease.attempt, *purse));
            }
            Event::EscrowRecalled { purses, .. } => {
                for (lease, purse) in purses {
                    self.with_ledger(*lease, |ledger| ledger.recall(lease.attempt, *purse));
                }
            }
            Event::EscrowReported { lease, purse, state, .. } => {
                self.take_report(*lease, *purse, *state);
            }
            Event::PursesClosed { lease, purses, .. } => self.close_purses(*lease, purses),
            Event::BudgetRaised { run, scope, cap, .. } => {
                let Some(ledger) = self.state.ledgers.get_mut(run) else { return true };
                match scope {
                    ScopeName::Run => ledger.run.raise(*cap),
                    ScopeName::Judge => ledger.judge.raise(*cap),
                    ScopeName::Agent(name) => {
                        let lower = |account: &&mut Account| account.cap.is_some_and(|known| known < *cap);
                        ledger.named_mut(name).filter(lower).for_each(|account| account.raise(*cap));
                    }
                    ScopeName::Episode(episode) => {
                        ledger.episodes.entry(episode.index).or_insert_with(|| Account::new(Some(*cap))).raise(*cap);
                    }
                }
            }
            Event::BudgetNearlySpent { run, scope, percent, .. } => {
                let Some(ledger) = self.state.ledgers.get_mut(run) else { return true };
                let warn = |account: &mut Account| account.warned = account.warned.max(*percent);
                match scope {
                    ScopeName::Run => warn(&mut ledger.run),
                    ScopeName::Judge => warn(&mut ledger.judge),
                    ScopeName::Agent(name) => {
                        let due = |account: &&mut Account| account.warning() >= Some(*percent);
                        ledger.named_mut(name).filter(due).for_each(warn);
                    }
                    ScopeName::Episode(_) => {}
                }
            }
            Event::EndpointSeen { endpoint, down, .. } => {
                match down {
                    Some(reason) => self.state.endpoints_down.insert(endpoint.clone(), reason.clone()),
                    None => self.state.endpoints_down.remove(endpoint),
                };
            }
            _ => return false,
        }
        true
    }

    /// The end of an attempt as its worker reports it: what it says of its purses is their end,
    /// and those that it does not speak of are lost.
    pub(super) fn settle_purses(&mut self, lease: LeaseRef, purses: &[(PurseKind, PurseState)]) {
        self.close_purses(lease, purses);
        self.lose_purses(lease.attempt);
    }

    /// The end of an attempt that nobody reports.
    pub(super) fn lose_purses(&mut self, attempt: AttemptId) {
        if let Some(ledger) = self.state.ledgers.get_mut(&attempt.episode.run) {
            ledger.lose(attempt);
        }
    }

    fn close_purses(&mut self, lease: LeaseRef, purses: &[(PurseKind, PurseState)]) {
        for (kind, state) in purses {
            if self.take_report(lease, *kind, *state).is_some() {
                self.with_ledger(lease, |ledger| ledger.close(lease.attempt, *kind));
            }
        }
    }

    fn with_ledger(&mut self, lease: LeaseRef, change: impl FnOnce(&mut Ledger)) {
        if let Some(ledger) = self.state.ledgers.get_mut(&lease.attempt.episode.run) {
            change(ledger);
        }
    }

    /// Takes in what a worker says of a purse, and says of which agent it is; nothing if the
    /// attempt is not known.
    fn take_report(&mut self, lease: LeaseRef, kind: PurseKind, state: PurseState) -> Option<u32> {
        let id = lease.attempt.episode;
        let live = self.state.holder(lease).is_some();
        let entry = self.state.runs.get(&id.run).and_then(|run| Some(run.episode(id.index)?.1));
        let (agent, cap) = match entry {
            Some(entry) => (entry.agent, entry_cap(entry, kind)),
            None => (self.state.ledgers.get(&id.run)?.purses.get(&lease.attempt)?.agent, None),
        };
        let ledger = self.state.ledgers.get_mut(&id.run)?;
        if (entry.is_none() && ledger.purse(lease.attempt, kind).is_none()) || ledger.has_dropped(lease, kind) {
            return None;
        }
        ledger.report(lease, agent, (kind, state), cap, live);
        Some(agent)
    }

    /// Whether a report says anything that is not known.
    pub(crate) fn is_news(&self, lease: LeaseRef, kind: PurseKind, state: PurseState) -> bool {
        let ledger = self.state.ledgers.get(&lease.attempt.episode.run);
        match ledger.and_then(|ledger| ledger.purse(lease.attempt, kind)) {
            Some(purse) => purse.merged(state) != purse.state,
            // A purse of a run that was forgotten, and of which nothing could change any more.
            None if !self.state.runs.contains_key(&lease.attempt.episode.run) => false,
            None if ledger.is_some_and(|ledger| ledger.has_dropped(lease, kind)) => false,
            None => Purse::new(false).merged(state) != PurseState::default(),
        }
    }

    /// Whether saying that purses are closed says anything that is not known.
    pub(crate) fn closes_anything(&self, lease: LeaseRef, purses: &[(PurseKind, PurseState)]) -> bool {
        let ledger = self.state.ledgers.get(&lease.attempt.episode.run);
        let is_open =
            |kind: PurseKind| ledger.and_then(|ledger| ledger.purse(lease.attempt, kind)).is_some_and(Purse::is_open);
        purses.iter().any(|(kind, state)| is_open(*kind) || self.is_news(lease, *kind, *state))
    }
}

/// What all attempts of an episode may spend together.
fn entry_cap(entry: &EpisodeEntry, kind: PurseKind) -> Option<Money> {
    match kind {
        PurseKind::Episode => entry.max_cost,
        PurseKind::Judge => None,
    }
}
