//! Budgets in words, and as people see them.

use std::collections::BTreeMap;

use longhaul_core::ids::{EpisodeId, RunId};
use longhaul_core::money::Money;

use super::{Account, AccountKey, Ledger, ScopeName, ScopeView};
use crate::engine::Engine;
use crate::state::EpisodeState;

impl Engine {
    /// The budgets of a run: of the run itself, its agents, its judge; of episodes only those
    /// with a cap of their own and a live attempt. Nothing of runs that are
    /// not known.
    #[must_use]
    pub fn budget(&self, id: RunId) -> Vec<ScopeView> {
        let Some(ledger) = self.state.ledgers.get(&id) else { return Vec::new() };
        let run = self.state.runs.get(&id);
        let is_live = |index: u32| {
            let episode = run.and_then(|run| Some(run.episode(index)?.0));
            episode.is_some_and(|episode| matches!(episode.state, EpisodeState::Active { .. }))
        };
        let shown = ledger.accounts().filter(|(key, _)| match key {
            AccountKey::Episode(index) => is_live(*index),
            AccountKey::Run | AccountKey::Agent(_) | AccountKey::Judge => true,
        });
        views(id, ledger, shown)
    }

    /// The budgets of a run without those of episodes, which come and go: of the run itself, which
    /// is first, its agents, its judge.
    #[must_use]
    pub fn shared_budget(&self, id: RunId) -> Vec<ScopeView> {
        let Some(ledger) = self.state.ledgers.get(&id) else { return Vec::new() };
        views(id, ledger, ledger.shared_accounts())
    }
}

fn views<'a>(id: RunId, ledger: &Ledger, accounts: impl Iterator<Item = (AccountKey, &'a Account)>) -> Vec<ScopeView> {
    let waiting = waiting(ledger);
    accounts.filter_map(|(key, account)| view(id, ledger, key, account, &waiting)).collect()
}

/// How many requests wait for each account.
fn waiting(ledger: &Ledger) -> BTreeMap<AccountKey, u32> {
    let mut waiting: BTreeMap<AccountKey, u32> = BTreeMap::new();
    for (attempt, kind) in ledger.queue.values() {
        let Some(purses) = ledger.purses.get(attempt) else { continue };
        for payer in Ledger::payers(*attempt, purses.agent, *kind) {
            *waiting.entry(payer).or_default() += 1;
        }
    }
    waiting
}

fn view(
    id: RunId,
    ledger: &Ledger,
    key: AccountKey,
    account: &Account,
    waiting: &BTreeMap<AccountKey, u32>,
) -> Option<ScopeView> {
    let whose = in_words(ledger, key)?;
    Some(ScopeView {
        scope: scope_name(ledger, id, key)?,
        cap: account.cap,
        settled: account.settled,
        escrow: account.escrow,
        unconfirmed: account.unconfirmed,
        largest_exposure: account.largest_exposure,
        overshoot: account.overshoot,
        waiting: waiting.get(&key).copied().unwrap_or_default(),
        warned: account.warned,
        stopped: reason_against(&whose, account, account.smallest.unwrap_or_default()),
    })
}

/// Why a call of that bound can never be made out of an account, whose it is being in words.
pub(crate) fn reason_against(whose: &str, account: &Account, bound: Money) -> Option<String> {
    let cap = account.cap?;
    if let Some(overshoot) = account.stopped_by() {
        return Some(format!(
            "the budget of {whose} is stopped: calls cost {overshoot} more than the most that they could cost, so its \
             cap of {cap} cannot be held"
        ));
    }
    let left = cap.saturating_sub(account.settled);
    account
        .is_too_poor_for(bound)
        .then(|| format!("the budget of {whose}, {cap}, has {left} left, and the next call may cost {bound}"))
}

/// Whose an account is.
pub(crate) fn in_words(ledger: &Ledger, key: AccountKey) -> Option<String> {
    Some(match key {
        AccountKey::Run => "the run".to_owned(),
        AccountKey::Agent(agent) => format!("the agent {}", ledger.name_of(agent)?),
        AccountKey::Judge => "judging".to_owned(),
        AccountKey::Episode(_) => "the episode".to_owned(),
    })
}

/// An account as people name it.
pub(crate) fn scope_name(ledger: &Ledger, id: RunId, key: AccountKey) -> Option<ScopeName> {
    Some(match key {
        AccountKey::Run => ScopeName::Run,
        AccountKey::Agent(agent) => ScopeName::Agent(ledger.name_of(agent)?.to_owned()),
        AccountKey::Judge => ScopeName::Judge,
        AccountKey::Episode(index) => ScopeName::Episode(EpisodeId { run: id, index }),
    })
}
