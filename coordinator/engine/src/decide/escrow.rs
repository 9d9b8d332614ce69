//! Money: requests for it, reports of it, caps; and who gets how much.

use std::collections::BTreeMap;

use longhaul_core::call::PurseKind;
use longhaul_core::ids::{AttemptId, EpisodeId, RunId};
use longhaul_core::money::Money;
use longhaul_core::outcome::Settlement;
use longhaul_core::purse::PurseState;

use super::draft::Draft;
use crate::command::Rejection;
use crate::event::Event;
use crate::lease::LeaseRef;
use crate::ledger::{
    Account, AccountKey, Ledger, MOST, Purse, ScopeName, Stage, Waiting, in_words, reason_against, scope_name,
};
use crate::state::{EpisodeState, Run};

/// Beyond what a call needs, a purse is given no more than so many bounds of it at once.
const CHUNK: u64 = 8;

/// The same where nothing is capped: a chunk costs a journal record and a round trip, and no
/// money is held back from anybody by it.
const UNCAPPED_CHUNK: u64 = 32;

/// Beyond what a call needs, one purse gets no more than its share of what is left: that,
/// divided among the live purses and once more by this, so that some is left for the next.
const SHARE: u64 = 2;

impl Draft<'_> {
    pub(super) fn escrow_requested(
        &mut self,
        lease: LeaseRef,
        purse: PurseKind,
        state: PurseState,
        wanted: Money,
        bound: Money,
    ) -> Result<(), Rejection> {
        self.known(lease)?;
        if self.state().holder(lease).is_none() {
            // What it says is true all the same.
            return self.escrow_reported(lease, purse, state);
        }
        let at = self.at;
        let ledger = self.state().ledgers.get(&lease.attempt.episode.run);
        let before = ledger.and_then(|ledger| ledger.purse(lease.attempt, purse));
        if before.is_some_and(|purse| purse.stage == Stage::Closed) {
            let reason = "the purse was closed before".to_owned();
            self.push(Event::EscrowRefused { at, lease, purse, reason });
            return Ok(());
        }
        let waits = before.and_then(Purse::waiting);
        let bound = bound.saturating_sub(state.settled);
        let mut request = (wanted, bound);
        if let Some(waiting) = waits {
            let (known, said) = ((waiting.settled, waiting.returned), (state.settled, state.returned));
            if said.0 < known.0 || said.1 < known.1 {
                // It is older than the request that waits.
                return Ok(());
            }
            if said == known {
                // Nobody knows which of the two came first: the smaller one, since whoever gets
                // too little asks again.
                request = (wanted.min(waiting.wanted), bound.min(waiting.bound));
            }
        }
        let (wanted, bound) = request;
        self.push(Event::EscrowRequested { at, lease, purse, state, wanted, bound });
        Ok(())
    }

    pub(super) fn escrow_reported(
        &mut self,
        lease: LeaseRef,
        purse: PurseKind,
        state: PurseState,
    ) -> Result<(), Rejection> {
        self.known(lease)?;
        if self.engine.is_news(lease, purse, state) {
            let at = self.at;
            self.push(Event::EscrowReported { at, lease, purse, state });
        }
        Ok(())
    }

    pub(super) fn purses_closed(
        &mut self,
        lease: LeaseRef,
        purses: Vec<(PurseKind, PurseState)>,
    ) -> Result<(), Rejection> {
        self.known(lease)?;
        if self.engine.closes_anything(lease, &purses) {
            let at = self.at;
            self.push(Event::PursesClosed { at, lease, purses });
        }
        Ok(())
    }

    /// Whether there ever was such an attempt, under that epoch.
    fn known(&self, lease: LeaseRef) -> Result<(), Rejection> {
        let LeaseRef { attempt, epoch } = lease;
        let known = match self.state().episode(attempt.episode) {
            Some(episode) => match episode.state {
                EpisodeState::Active { number, epoch, .. } if number == attempt.number => Some(epoch),
                _ => attempt
                    .number
                    .checked_sub(1)
                    .and_then(|index| Some(episode.past.get(usize::try_from(index).ok()?)?.epoch)),
            },
            // Of a forgotten run only those are known whose money may still turn up; what all
            // others cost was known when it was forgotten.
            None => {
                let ledger = self.state().ledgers.get(&attempt.episode.run);
                let kept = ledger.and_then(|ledger| ledger.epoch_of(attempt));
                kept.or_else(|| self.state().forgotten.contains_key(&attempt.episode.run).then_some(epoch))
            }
        };
        match known {
            None => Err(Rejection::UnknownAttempt { attempt }),
            Some(known) if known != epoch => Err(Rejection::StaleEpoch { attempt, epoch, current: Some(known) }),
            Some(_) => Ok(()),
        }
    }

    pub(super) fn raise_budget(
        &mut self,
        run: RunId,
        scope: ScopeName,
        cap: Money,
        by: String,
    ) -> Result<(), Rejection> {
        let state = self.state();
        let record = state.runs.get(&run);
        let counts = match (record, state.forgotten.get(&run)) {
            (Some(record), _) => record.counts(),
            (None, Some(kept)) => kept.summary.counts,
            (None, None) => return Err(Rejection::UnknownRun { run }),
        };
        if counts.passed.saturating_add(counts.failed) == counts.total() {
            return Err(Rejection::RunOver { run });
        }
        let caps = self.caps_of(run, record, &scope);
        let Some(lowest) = caps.iter().min().copied() else { return Err(Rejection::NoBudget { run, scope }) };
        if cap < lowest {
            return Err(Rejection::BudgetLowered { run, scope, cap: lowest, given: cap });
        }
        if cap > lowest {
            let at = self.at;
            self.push(Event::BudgetRaised { at, run, scope, cap, by });
        }
        Ok(())
    }

    /// The caps of a scope; of agents that share a name, each.
    fn caps_of(&self, id: RunId, run: Option<&Run>, scope: &ScopeName) -> Vec<Money> {
        let Some(ledger) = self.state().ledgers.get(&id) else { return Vec::new() };
        match scope {
            ScopeName::Run => ledger.run.cap.into_iter().collect(),
            ScopeName::Judge => ledger.judge.cap.into_iter().collect(),
            ScopeName::Agent(name) => {
                let named = ledger.agents.iter().zip(&ledger.names).filter(|(_, known)| *known == name);
                named.filter_map(|(account, _)| account.cap).collect()
            }
            ScopeName::Episode(episode) if episode.run == id => {
                let known = ledger.episodes.get(&episode.index).and_then(|account| account.cap);
                let planned = || run?.episode(episode.index)?.1.max_cost;
                known.or_else(planned).into_iter().collect()
            }
            ScopeName::Episode(_) => Vec::new(),
        }
    }

    pub(super) fn endpoint_seen(&mut self, endpoint: String, down: Option<String>) {
        if self.state().endpoints_down.contains_key(&endpoint) != down.is_some() {
            let at = self.at;
            self.push(Event::EndpointSeen { at, endpoint, down });
        }
    }

    /// What the state of the money asks for: waiting requests are granted or refused, what is
    /// free elsewhere is asked back for them, people are warned, and episodes that cannot begin
    /// any more are settled.
    pub(super) fn tend_money(&mut self) {
        let state = self.state();
        for id in &state.order {
            let (Some(run), Some(ledger)) = (state.runs.get(id), state.ledgers.get(id)) else { continue };
            if run.settled_at.is_some() {
                continue;
            }
            if !ledger.queue.is_empty() || ledger.accounts().any(|(_, account)| account.is_in_debt()) {
                self.serve(run, ledger);
            }
            let at = self.at;
            for (key, account) in ledger.shared_accounts() {
                if let Some(percent) = account.warning()
                    && let Some(scope) = scope_name(ledger, *id, key)
                {
                    self.push(Event::BudgetNearlySpent { at, run: *id, scope, percent });
                }
            }
            if run.cancelled.is_none() {
                self.settle_unbegun(*id, run, ledger);
            }
        }
    }

    /// Serves those that wait, in the order in which they asked. Whoever is short in a scope
    /// keeps all that come after from that scope: else small calls would starve a large one.
    fn serve(&mut self, run: &Run, ledger: &Ledger) {
        let at = self.at;
        let mut till = Till { ledger, given: BTreeMap::new(), short: BTreeMap::new() };
        for (attempt, kind) in ledger.queue.values() {
            let Some(purses) = ledger.purses.get(attempt) else { continue };
            let Some((purse, waiting)) = purses.get(*kind).and_then(|purse| Some((purse, purse.waiting()?))) else {
                continue;
            };
            let lease = LeaseRef { attempt: *attempt, epoch: purses.epoch };
            let payers = Ledger::payers(*attempt, purses.agent, *kind);
            if payers.iter().any(|payer| till.short.contains_key(payer)) {
                continue;
            }
            if let Some(reason) = refusal(run, ledger, &payers, waiting.bound) {
                self.push(Event::EscrowRefused { at, lease, purse: *kind, reason });
            } else if let Some(amount) = till.pay(&payers, purse, waiting, (*attempt, *kind)) {
                let granted = purse.state.granted.saturating_add(amount);
                self.push(Event::EscrowGranted { at, lease, purse: *kind, granted });
            }
        }
        let recalled: Vec<_> = ledger
            .all_purses()
            .filter(|(lease, agent, kind, purse)| {
                purse.may_be_recalled() && till.needs_back(lease.attempt, *agent, *kind)
            })
            .map(|(lease, _, kind, _)| (lease, kind))
            .collect();
        if !recalled.is_empty() {
            self.push(Event::EscrowRecalled { at, purses: recalled });
        }
    }

    /// Settles episodes that wait, whose agent has to pay for its calls, that were never granted
    /// anything, and that have a scope in which even the smallest call that the agent ever asked
    /// for can never be made. Money in flight does not come into it: what is settled stays so.
    fn settle_unbegun(&mut self, id: RunId, run: &Run, ledger: &Ledger) {
        let spent: Vec<Option<String>> = (0_u32..)
            .zip(&ledger.agents)
            .map(|(agent, account)| {
                let smallest = account.smallest.filter(|_| is_paid_for(run, agent))?;
                [AccountKey::Run, AccountKey::Agent(agent)]
                    .into_iter()
                    .find_map(|key| reason_against(&in_words(ledger, key)?, ledger.account(key)?, smallest))
            })
            .collect();
        if spent.iter().all(Option::is_none) {
            return;
        }
        for (index, (episode, entry)) in (0_u32..).zip(run.episodes.iter().zip(&run.plan.episodes)) {
            let reason = usize::try_from(entry.agent).ok().and_then(|agent| spent.get(agent)?.as_ref());
            let id = EpisodeId { run: id, index };
            // Of a run that was forgotten once, it is not known any more who had been granted something.
            let begun = ledger.has_begun(id) || (ledger.was_forgotten() && !episode.past.is_empty());
            if let Some(reason) = reason
                && matches!(episode.state, EpisodeState::Queued { .. })
                && !begun
                && episode.verifies().is_none()
            {
                self.settle(id, Settlement::NotStarted { reason: reason.clone() });
            }
        }
    }
}

/// What is handed out while a queue is served.
struct Till<'a> {
    ledger: &'a Ledger,
    /// What was given since, by account.
    given: BTreeMap<AccountKey, Money>,
    /// Accounts that have too little, and the purse that waits for it.
    short: BTreeMap<AccountKey, (AttemptId, PurseKind)>,
}

impl Till<'_> {
    /// What an account may still give; nothing if it has no cap.
    fn available(&self, key: AccountKey) -> Option<Money> {
        let left = self.ledger.account(key)?.available()?;
        Some(left.saturating_sub(self.given.get(&key).copied().unwrap_or_default()))
    }

    /// How much a purse is given; nothing if any of its accounts is short, which is noted.
    fn pay(
        &mut self,
        payers: &[AccountKey],
        purse: &Purse,
        waiting: &Waiting,
        owner: (AttemptId, PurseKind),
    ) -> Option<Money> {
        let need = purse.wanted(waiting).saturating_sub(purse.state.granted);
        // What it has spent beyond its grants is settled, and taken from nobody once more.
        let debt = purse.state.overspent();
        let taken = need.saturating_sub(debt);
        let short = payers.iter().filter(|payer| self.available(**payer).is_some_and(|left| left < taken));
        let short: Vec<_> = short.copied().collect();
        if !short.is_empty() {
            self.short.extend(short.into_iter().map(|payer| (payer, owner)));
            return None;
        }
        if need.is_zero() {
            // It has not heard of what it was granted.
            return Some(Money::ZERO);
        }
        let extra = self.extra(payers, purse, waiting, taken);
        for payer in payers {
            let given = self.given.entry(*payer).or_default();
            *given = given.saturating_add(taken).saturating_add(extra);
        }
        Some(need.saturating_add(extra))
    }

    /// What a purse is given beyond its need. As much as half of what its attempt has spent so
    /// far, so that an attempt that goes on asks ever more seldom; at least one bound of a call
    /// and at most [`CHUNK`] of them, while every account that pays has as much for everybody.
    fn extra(&self, payers: &[AccountKey], purse: &Purse, waiting: &Waiting, need: Money) -> Money {
        let shares = payers.iter().filter_map(|payer| {
            let left = self.available(*payer)?.saturating_sub(need);
            let live = self.ledger.account(*payer).map_or(1, |account| account.live.max(1));
            Some(Money::from_nanos(left.nanos() / u64::from(live).saturating_mul(SHARE)))
        });
        match shares.min() {
            None => waiting.bound.saturating_mul(UNCAPPED_CHUNK).min(MOST),
            Some(_) if self.ledger.queue.len() > 1 => Money::ZERO,
            Some(share) => {
                let half = Money::from_nanos(purse.state.settled.nanos() / 2);
                half.clamp(waiting.bound, waiting.bound.saturating_mul(CHUNK)).min(share)
            }
        }
    }

    /// Whether what is free in a purse is needed elsewhere: somebody else waits for one of its
    /// accounts, or one of them has more out than it may.
    fn needs_back(&self, attempt: AttemptId, agent: u32, kind: PurseKind) -> bool {
        Ledger::payers(attempt, agent, kind).into_iter().any(|key| {
            let waits = self.short.get(&key).is_some_and(|owner| *owner != (attempt, kind));
            waits || self.ledger.account(key).is_some_and(Account::is_in_debt)
        })
    }
}

/// Why a call of that bound can never be made: what is settled in a scope leaves no room for it,
/// whatever comes back.
fn refusal(run: &Run, ledger: &Ledger, payers: &[AccountKey], bound: Money) -> Option<String> {
    if run.cancelled.is_some() {
        return Some("the run was cancelled".to_owned());
    }
    if bound > MOST {
        return Some(format!("the call may cost {bound}, and no call may cost more than {MOST}"));
    }
    payers.iter().find_map(|key| reason_against(&in_words(ledger, *key)?, ledger.account(*key)?, bound))
}

/// Whether an agent's episodes have calls to pay for.
fn is_paid_for(run: &Run, agent: u32) -> bool {
    run.agent(agent).is_some_and(|spec| !spec.endpoints().is_empty())
}
