//! The ledger of a run: its accounts, the purses of its attempts, and who waits for money.
//!
//! All that is known of a purse are sums that only grow
//! ([`PurseState`](longhaul_core::purse::PurseState)): what was granted is the coordinator's own
//! word, what was spent and given back is the worker's. An account is the sum of what its purses
//! are charged with, kept as they change. The rules are in the crate's documentation.

mod account;
mod purse;
mod scope;
mod view;

use std::collections::BTreeMap;

use longhaul_core::call::PurseKind;
use longhaul_core::ids::{AttemptId, EpisodeId, Epoch};
use longhaul_core::money::Money;
use longhaul_core::plan::RunPlan;
use longhaul_core::purse::PurseState;
use serde::{Deserialize, Serialize};

use crate::lease::LeaseRef;

pub use account::Account;
pub(crate) use account::{Beyond, Charge};
pub use purse::{Purse, Purses, Stage, Waiting};
pub use scope::{ScopeName, ScopeNameError, ScopeView};
pub(crate) use view::{in_words, reason_against, scope_name};

/// No attempt costs more than this, and no call: what a worker says beyond it is nonsense, and
/// sums of thousands of them stay in range.
pub(crate) const MOST: Money = Money::from_dollars(1_000_000);

/// An account of a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AccountKey {
    Run,
    Agent(u32),
    Judge,
    Episode(u32),
}

/// The money of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ledger {
    /// All episodes, the judge aside.
    pub run: Account,
    /// All episodes of each agent, as in the plan.
    pub agents: Vec<Account>,
    /// The agents' names, which are wanted for longer than the plan.
    pub names: Vec<String>,
    /// Judging.
    pub judge: Account,
    /// Episodes with a cap of their own, by index, once they have asked for money.
    pub episodes: BTreeMap<u32, Account>,
    /// The purses of attempts that have asked for money.
    pub purses: BTreeMap<AttemptId, Purses>,
    /// Who waits, by turn.
    pub queue: BTreeMap<u64, (AttemptId, PurseKind)>,
    /// How many turns were given out.
    pub turns: u64,
    /// The largest epoch when the run was last forgotten. Of attempts from before that, a purse that
    /// is not here was closed: its accounts are charged with it, and nothing about it is news.
    pub forgot: Epoch,
}

impl Ledger {
    /// The ledger of a run that was not begun.
    #[must_use]
    pub fn new(plan: &RunPlan) -> Self {
        let agents = (0_u32..).zip(&plan.agents).map(|(agent, _)| Account::new(plan.budgets.agent(agent)));
        Self {
            run: Account::new(plan.budgets.run),
            agents: agents.collect(),
            names: plan.agents.iter().map(|agent| agent.name().to_owned()).collect(),
            judge: Account::new(plan.budgets.judge),
            ..Self::default()
        }
    }

    /// The purse of an attempt, if it asked for money.
    #[must_use]
    pub fn purse(&self, attempt: AttemptId, kind: PurseKind) -> Option<&Purse> {
        self.purses.get(&attempt)?.get(kind)
    }

    /// Whether an attempt of that episode was ever granted anything.
    #[must_use]
    pub fn has_begun(&self, episode: EpisodeId) -> bool {
        let all = AttemptId { episode, number: 0 }..=AttemptId { episode, number: u32::MAX };
        self.purses.range(all).any(|(_, purses)| purses.all().any(|(_, purse)| !purse.state.granted.is_zero()))
    }

    /// Whether the run was forgotten once, and with it purses that its accounts are charged with.
    pub(crate) fn was_forgotten(&self) -> bool {
        self.forgot > Epoch::default()
    }

    /// Whether a purse was dropped for good: what it came to was known when the run was forgotten.
    pub(crate) fn has_dropped(&self, lease: LeaseRef, kind: PurseKind) -> bool {
        lease.epoch <= self.forgot && self.purse(lease.attempt, kind).is_none()
    }

    /// The name of an agent.
    pub(crate) fn name_of(&self, agent: u32) -> Option<&str> {
        self.names.get(usize::try_from(agent).ok()?).map(String::as_str)
    }

    /// The accounts of the agents of that name.
    pub(crate) fn named_mut<'a>(&'a mut self, name: &'a str) -> impl Iterator<Item = &'a mut Account> {
        let named = self.agents.iter_mut().zip(&self.names).filter(move |(_, known)| *known == name);
        named.map(|(account, _)| account)
    }

    /// An account.
    pub(crate) fn account(&self, key: AccountKey) -> Option<&Account> {
        match key {
            AccountKey::Run => Some(&self.run),
            AccountKey::Agent(agent) => self.agents.get(usize::try_from(agent).ok()?),
            AccountKey::Judge => Some(&self.judge),
            AccountKey::Episode(episode) => self.episodes.get(&episode),
        }
    }

    pub(crate) fn account_mut(&mut self, key: AccountKey) -> Option<&mut Account> {
        match key {
            AccountKey::Run => Some(&mut self.run),
            AccountKey::Agent(agent) => self.agents.get_mut(usize::try_from(agent).ok()?),
            AccountKey::Judge => Some(&mut self.judge),
            AccountKey::Episode(episode) => self.episodes.get_mut(&episode),
        }
    }

    /// The accounts that pay for a purse.
    pub(crate) fn payers(attempt: AttemptId, agent: u32, kind: PurseKind) -> Vec<AccountKey> {
        match kind {
            PurseKind::Episode => {
                vec![AccountKey::Run, AccountKey::Agent(agent), AccountKey::Episode(attempt.episode.index)]
            }
            PurseKind::Judge => vec![AccountKey::Judge],
        }
    }

    /// All accounts that people know: the run, its agents, its judge.
    pub(crate) fn shared_accounts(&self) -> impl Iterator<Item = (AccountKey, &Account)> {
        let agents = (0_u32..).zip(&self.agents).map(|(agent, account)| (AccountKey::Agent(agent), account));
        [(AccountKey::Run, &self.run)].into_iter().chain(agents).chain([(AccountKey::Judge, &self.judge)])
    }

    /// All accounts.
    pub(crate) fn accounts(&self) -> impl Iterator<Item = (AccountKey, &Account)> {
        let episodes = self.episodes.iter().map(|(episode, account)| (AccountKey::Episode(*episode), account));
        self.shared_accounts().chain(episodes)
    }

    /// Every purse.
    pub(crate) fn all_purses(&self) -> impl Iterator<Item = (LeaseRef, u32, PurseKind, &Purse)> {
        self.purses.iter().flat_map(|(attempt, purses)| {
            let lease = LeaseRef { attempt: *attempt, epoch: purses.epoch };
            purses.all().map(move |(kind, purse)| (lease, purses.agent, kind, purse))
        })
    }

    /// Changes a purse, and its accounts with it.
    fn change(&mut self, attempt: AttemptId, kind: PurseKind, change: impl FnOnce(&mut Purse)) {
        let Some(purses) = self.purses.get_mut(&attempt) else { return };
        let agent = purses.agent;
        let Some(purse) = purses.get_mut(kind) else { return };
        let (before, turn) = (purse.charge(), purse.waiting().map(|waiting| waiting.turn));
        let (overshoot, overspent) = (purse.overshoot(), purse.state.overspent());
        change(purse);
        let (after, waits) = (purse.charge(), purse.waiting().map(|waiting| waiting.turn));
        let beyond = Beyond {
            bounds: purse.overshoot().saturating_sub(overshoot),
            grants: purse.state.overspent().saturating_sub(overspent),
        };
        if turn != waits {
            turn.map(|turn| self.queue.remove(&turn));
            waits.map(|turn| self.queue.insert(turn, (attempt, kind)));
        }
        for key in Self::payers(attempt, agent, kind) {
            if let Some(account) = self.account_mut(key) {
                account.replace(before, after, beyond);
            }
        }
    }

    /// Opens a purse of a live attempt, unless it is there.
    fn open(&mut self, lease: LeaseRef, agent: u32, kind: PurseKind, cap: Option<Money>, live: bool) {
        if let Some(cap) = cap {
            self.episodes.entry(lease.attempt.episode.index).or_insert_with(|| Account::new(Some(cap)));
        }
        let purses = self.purses.entry(lease.attempt).or_insert_with(|| Purses::new(lease.epoch, agent));
        if purses.get(kind).is_some() {
            return;
        }
        let purse = purses.insert(kind, Purse::new(live));
        let charge = purse.charge();
        for key in Self::payers(lease.attempt, agent, kind) {
            if let Some(account) = self.account_mut(key) {
                account.replace(Charge::default(), charge, Beyond::default());
            }
        }
    }

    /// A worker says what has become of a purse.
    pub(crate) fn report(
        &mut self,
        lease: LeaseRef,
        agent: u32,
        (kind, state): (PurseKind, PurseState),
        cap: Option<Money>,
        live: bool,
    ) {
        self.open(lease, agent, kind, cap, live);
        self.change(lease.attempt, kind, |purse| purse.merge(state));
    }

    /// A purse wants more than what its worker has heard of: it gets a turn, or keeps the one that
    /// it has.
    pub(crate) fn ask(&mut self, attempt: AttemptId, agent: u32, kind: PurseKind, waiting: Waiting, heard: Money) {
        let turn = match self.purse(attempt, kind).and_then(Purse::waiting) {
            Some(before) => before.turn,
            None => {
                self.turns = self.turns.saturating_add(1);
                self.turns
            }
        };
        self.change(attempt, kind, |purse| purse.wait(Waiting { turn, ..waiting }, heard));
        for key in Self::payers(attempt, agent, kind) {
            if let Some(account) = self.account_mut(key) {
                account.smallest = Some(account.smallest.map_or(waiting.bound, |known| known.min(waiting.bound)));
            }
        }
    }

    /// The sum of a purse's grants grows, or is said again; its request is answered.
    pub(crate) fn grant(&mut self, attempt: AttemptId, kind: PurseKind, granted: Money) {
        self.change(attempt, kind, |purse| {
            purse.grant(granted);
        });
    }

    /// A purse's request is refused.
    pub(crate) fn refuse(&mut self, attempt: AttemptId, kind: PurseKind) {
        self.change(attempt, kind, Purse::answered);
    }

    /// What is free in a purse was asked back.
    pub(crate) fn recall(&mut self, attempt: AttemptId, kind: PurseKind) {
        self.change(attempt, kind, Purse::recall);
    }

    /// No call is made from a purse any more, and what it came to is known.
    pub(crate) fn close(&mut self, attempt: AttemptId, kind: PurseKind) {
        self.change(attempt, kind, Purse::close);
    }

    /// Nobody says what became of the purses that an attempt has still open: they count whole.
    pub(crate) fn lose(&mut self, attempt: AttemptId) {
        for kind in Purses::KINDS {
            self.change(attempt, kind, Purse::lose);
        }
    }

    /// Keeps what may still change once the run is forgotten: the sums that people know, those of
    /// episodes that may go on one day, and lost purses whose money may turn up.
    pub(crate) fn forget(&mut self, last_epoch: Epoch, may_go_on: impl Fn(&u32) -> bool) {
        self.episodes.retain(|episode, _| may_go_on(episode));
        self.forgot = last_epoch;
        self.queue.clear();
        self.purses.retain(|_, purses| purses.keep_open());
    }

    /// The epoch under which an attempt had its purses.
    pub(crate) fn epoch_of(&self, attempt: AttemptId) -> Option<Epoch> {
        Some(self.purses.get(&attempt)?.epoch)
    }
}
