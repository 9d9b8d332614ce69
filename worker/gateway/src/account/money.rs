//! An attempt's money: a purse, and the bank that fills it; and what a round of its task may use of
//! it, if that is bounded.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use longhaul_core::call::{Certainty, PurseKind};
use longhaul_core::money::Money;
use longhaul_core::purse::{Purse, PurseState, Short};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

use crate::ports::{Bank, Refused};

/// How often the coordinator is told what was settled, if anything was.
const REPORT_EVERY: Duration = Duration::from_secs(5);

/// The pause after money was given back for others.
const AFTER_RECALL: Duration = Duration::from_millis(200);

/// A purse with its bank.
#[derive(Debug)]
pub(crate) struct Till {
    kind: PurseKind,
    bank: Arc<dyn Bank>,
    state: Mutex<State>,
    /// Money has become free.
    freed: Notify,
    /// Who asks the bank: one call at a time, in their order.
    asking: Semaphore,
}

#[derive(Debug)]
struct State {
    purse: Purse,
    allowance: Allowance,
    tickets: u32,
    /// Calls that wait for money.
    waiting: u32,
    last_bound: Money,
    last_use: Instant,
    reported: PurseState,
}

impl Till {
    pub(crate) fn new(kind: PurseKind, bank: Arc<dyn Bank>) -> Self {
        let state = State {
            purse: Purse::default(),
            allowance: Allowance::default(),
            tickets: 0,
            waiting: 0,
            last_bound: Money::ZERO,
            last_use: Instant::now(),
            reported: PurseState::default(),
        };
        Self { kind, bank, state: Mutex::new(state), freed: Notify::new(), asking: Semaphore::new(1) }
    }

    pub(crate) const fn kind(&self) -> PurseKind {
        self.kind
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A round begins, whose calls may cost no more than this, if anything is said. What is in flight
    /// is of the round before, and counts there.
    pub(crate) fn begin_round(&self, most: Option<Money>) {
        let mut state = self.state();
        let number = state.allowance.number.wrapping_add(1);
        state.allowance = Allowance { number, most, ..Allowance::default() };
        drop(state);
        // Who waited for money of the round before is measured by this one's.
        self.freed.notify_waiters();
    }

    /// Takes note of a call of this round that an earlier attempt has paid.
    pub(crate) fn was_spent(&self, cost: Money) {
        let mut state = self.state();
        state.allowance.settled = state.allowance.settled.saturating_add(cost);
    }

    /// Reserves what is there. None if it does not fit, or others wait already.
    pub(crate) fn reserve_now(self: &Arc<Self>, bound: Money) -> Option<Hold> {
        let mut state = self.state();
        if state.waiting > 0 {
            return None;
        }
        self.try_reserve(&mut state, bound).ok()
    }

    fn try_reserve(self: &Arc<Self>, state: &mut State, bound: Money) -> Result<Hold, Lack> {
        state.allowance.fits(bound)?;
        let ticket = state.tickets;
        state.purse.reserve(ticket, bound).map_err(Lack::Purse)?;
        state.tickets = state.tickets.wrapping_add(1);
        state.last_bound = bound;
        state.last_use = Instant::now();
        state.allowance.reserved = state.allowance.reserved.saturating_add(bound);
        Ok(Hold { till: Arc::clone(self), ticket, bound, round: state.allowance.number, settled: false })
    }

    /// Reserves, and asks the bank as long as that takes.
    pub(crate) async fn reserve(self: &Arc<Self>, bound: Money) -> Result<Hold, NoMoney> {
        let _waiting = Waiting::new(self);
        // The semaphore is never closed.
        let _turn = self.asking.acquire().await;
        loop {
            let freed = self.freed.notified();
            let (short, purse) = {
                let mut state = self.state();
                match self.try_reserve(&mut state, bound) {
                    Ok(hold) => return Ok(hold),
                    Err(Lack::Spent(scope)) => return Err(NoMoney::Round { scope }),
                    Err(Lack::InFlight) => (None, state.purse.state()),
                    Err(Lack::Purse(short)) => (Some(short), state.purse.state()),
                }
            };
            let Some(short) = short else {
                freed.await;
                continue;
            };
            tokio::select! {
                answer = self.bank.more(self.kind, purse, short.wanted, bound) => match answer {
                    Ok(granted) => self.state().purse.grant(granted),
                    // What was freed meanwhile may do.
                    Err(refused) => {
                        return self.try_reserve(&mut self.state(), bound).map_err(|_| NoMoney::Refused(refused));
                    }
                },
                () = freed => {}
            }
        }
    }

    /// Gives back what is free beyond `keep`, and says so.
    fn give_back(&self, keep: Money) {
        let mut state = self.state();
        if !state.purse.give_back(keep).is_zero() {
            self.report(&mut state);
        }
    }

    fn report(&self, state: &mut State) {
        let now = state.purse.state();
        if now != state.reported {
            state.reported = now;
            self.bank.report(self.kind, now);
        }
    }

    /// Gives back what is idle or recalled, and reports now and then; until it is dropped.
    pub(crate) async fn keep(&self, idle_after: Duration) {
        loop {
            let next = REPORT_EVERY.min(idle_after);
            tokio::select! {
                () = self.bank.recalled(self.kind) => {
                    self.give_back(Money::ZERO);
                    // What becomes free next is asked for again; but not in a circle.
                    tokio::select! {
                        () = self.freed.notified() => tokio::time::sleep(AFTER_RECALL / 10).await,
                        () = tokio::time::sleep(AFTER_RECALL) => {}
                    }
                }
                () = tokio::time::sleep(next) => {
                    let (idle, keep) = {
                        let mut state = self.state();
                        self.report(&mut state);
                        let idle = if state.purse.reserved().is_zero() { state.last_use.elapsed() } else { Duration::ZERO };
                        (idle, state.last_bound)
                    };
                    if idle >= idle_after {
                        // One more call of that size needs no question; a long pause gives all back.
                        self.give_back(if idle >= 4 * idle_after { Money::ZERO } else { keep });
                    }
                }
            }
        }
    }

    /// The end: what is still reserved is settled whole, the rest given back.
    pub(crate) fn close(&self) -> PurseState {
        let mut state = self.state();
        state.purse.settle_all();
        state.purse.give_back(Money::ZERO);
        self.report(&mut state);
        state.purse.state()
    }
}

/// What the calls of a round may cost together: those that are begun in it.
#[derive(Debug, Default)]
struct Allowance {
    /// Tells rounds apart.
    number: u32,
    /// No bound if absent.
    most: Option<Money>,
    settled: Money,
    reserved: Money,
}

impl Allowance {
    /// Whether a call with this bound may begin now: what is settled and reserved and the bound
    /// together are to be no more than the most, whatever becomes of the calls.
    fn fits(&self, bound: Money) -> Result<(), Lack> {
        let Some(most) = self.most else { return Ok(()) };
        let at_least = self.settled.saturating_add(bound);
        if at_least > most {
            let scope =
                format!("of the round: {} of {most} are spent, and the next call may cost {bound}", self.settled);
            return Err(Lack::Spent(scope));
        }
        if at_least.saturating_add(self.reserved) > most { Err(Lack::InFlight) } else { Ok(()) }
    }
}

/// Why nothing can be reserved now.
#[derive(Debug)]
enum Lack {
    /// The round's money is spent.
    Spent(String),
    /// It may suffice when calls of the round that are in flight cost less than they may.
    InFlight,
    /// The purse holds too little.
    Purse(Short),
}

/// Why nothing is reserved.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoMoney {
    /// The bank gives none.
    Refused(Refused),
    /// The round has spent what it may.
    Round {
        /// What that is, with its figures.
        scope: String,
    },
}

/// Counts a call that waits for money.
struct Waiting<'a>(&'a Till);

impl<'a> Waiting<'a> {
    fn new(till: &'a Till) -> Self {
        till.state().waiting += 1;
        Self(till)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state().waiting -= 1;
    }
}

/// What is reserved for one call. Dropped without a settlement, it is free again: the call was
/// never made.
#[derive(Debug)]
pub(crate) struct Hold {
    till: Arc<Till>,
    ticket: u32,
    bound: Money,
    /// The round that it is of.
    round: u32,
    settled: bool,
}

impl Hold {
    /// What is reserved.
    pub(crate) const fn bound(&self) -> Money {
        self.bound
    }

    /// Settles it.
    pub(crate) fn settle(mut self, cost: Money, certainty: Certainty) {
        self.end(cost, certainty);
    }

    fn end(&mut self, cost: Money, certainty: Certainty) {
        if std::mem::replace(&mut self.settled, true) {
            return;
        }
        let mut state = self.till.state();
        state.purse.settle(self.ticket, cost, certainty);
        state.last_use = Instant::now();
        if state.allowance.number == self.round {
            let allowance = &mut state.allowance;
            allowance.reserved = allowance.reserved.saturating_sub(self.bound);
            allowance.settled = allowance.settled.saturating_add(cost);
        }
        if cost > self.bound {
            // The scope has to know at once.
            self.till.report(&mut state);
        }
        drop(state);
        self.till.freed.notify_waiters();
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.end(Money::ZERO, Certainty::Released);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::Later;

    /// A bank with a cap, which waits while money is in flight and refuses when it never fits.
    #[derive(Debug, Default)]
    struct Capped {
        cap: u64,
        chunk: u64,
        recalls: Notify,
        asked: Mutex<Vec<(PurseState, Money)>>,
        reports: Mutex<Vec<PurseState>>,
    }

    impl Bank for Capped {
        fn more(
            &self,
            _: PurseKind,
            state: PurseState,
            wanted: Money,
            bound: Money,
        ) -> Later<'_, Result<Money, Refused>> {
            self.asked.lock().unwrap().push((state, wanted));
            Box::pin(async move {
                if state.settled.saturating_add(bound).nanos() > self.cap {
                    return Err(Refused { scope: "run: spent".to_owned() });
                }
                // Returned money may be granted again.
                let most = Money::from_nanos(self.cap).saturating_add(state.returned);
                let grant = wanted.saturating_add(Money::from_nanos(self.chunk)).min(most);
                if grant > state.granted { Ok(grant) } else { std::future::pending().await }
            })
        }

        fn report(&self, _: PurseKind, state: PurseState) {
            self.reports.lock().unwrap().push(state);
        }

        fn recalled(&self, _: PurseKind) -> Later<'_, ()> {
            Box::pin(self.recalls.notified())
        }
    }

    fn till(cap: u64, chunk: u64) -> (Arc<Till>, Arc<Capped>) {
        let bank = Arc::new(Capped { cap, chunk, ..Capped::default() });
        (Arc::new(Till::new(PurseKind::Episode, Arc::<Capped>::clone(&bank))), bank)
    }

    const fn nanos(amount: u64) -> Money {
        Money::from_nanos(amount)
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_fits_asks_nobody() {
        let (till, bank) = till(1000, 100);
        assert!(till.reserve_now(nanos(10)).is_none(), "nothing is there before the first grant");
        till.reserve(nanos(10)).await.unwrap().settle(nanos(4), Certainty::Reported);
        for _ in 0..9 {
            till.reserve_now(nanos(10)).unwrap().settle(nanos(4), Certainty::Reported);
        }
        assert_eq!(bank.asked.lock().unwrap().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_waits_for_money_in_flight_and_is_refused_when_it_never_fits() {
        let (till, _bank) = till(100, 0);
        let first = till.reserve(nanos(80)).await.unwrap();
        let second = tokio::spawn({
            let till = Arc::clone(&till);
            async move { till.reserve(nanos(80)).await.map(|hold| hold.settle(nanos(80), Certainty::Reported)) }
        });
        tokio::time::sleep(Duration::from_secs(9)).await;
        assert!(!second.is_finished(), "80 are in flight and may come back");
        assert!(till.reserve_now(nanos(1)).is_none(), "nobody overtakes");
        first.settle(nanos(10), Certainty::Reported);
        second.await.unwrap().unwrap();
        let refused = till.reserve(nanos(80)).await.unwrap_err();
        assert_eq!(refused, NoMoney::Refused(Refused { scope: "run: spent".to_owned() }));
        assert_eq!(till.close().held(), Money::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_money_is_given_back_and_recalled_money_at_once() {
        let (till, bank) = till(1000, 500);
        let keeper = tokio::spawn({
            let till = Arc::clone(&till);
            async move { till.keep(Duration::from_secs(10)).await }
        });
        till.reserve(nanos(100)).await.unwrap().settle(nanos(30), Certainty::Reported);
        tokio::time::sleep(Duration::from_secs(21)).await;
        let held = |till: &Till| till.state().purse.free();
        assert_eq!(held(&till), nanos(100), "one more call of the last size");
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert_eq!(held(&till), Money::ZERO);
        let hold = till.reserve(nanos(100)).await.unwrap();
        assert_eq!(held(&till), nanos(500));
        bank.recalls.notify_one();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(held(&till), Money::ZERO, "what is reserved stays");
        hold.settle(nanos(120), Certainty::Reported);
        let last = *bank.reports.lock().unwrap().last().unwrap();
        assert_eq!((last.settled, last.overspent()), (nanos(150), nanos(20)), "an overshoot is told at once");
        keeper.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_round_spends_no_more_than_it_may_and_the_next_one_anew() {
        let (till, _bank) = till(10_000, 1_000);
        let spawn = |bound| {
            let till = Arc::clone(&till);
            tokio::spawn(async move { till.reserve(nanos(bound)).await })
        };
        till.begin_round(Some(nanos(100)));
        till.was_spent(nanos(20));
        let first = till.reserve(nanos(60)).await.unwrap();
        // 20 are spent and 60 in flight: 40 do not fit now, and may when the answer is cheap.
        let second = spawn(40);
        tokio::time::sleep(Duration::from_secs(9)).await;
        assert!(!second.is_finished() && till.reserve_now(nanos(1)).is_none());
        first.settle(nanos(30), Certainty::Reported);
        let second = second.await.unwrap().unwrap();
        // 50 are spent and 40 in flight: 51 never fit.
        let NoMoney::Round { scope } = till.reserve(nanos(51)).await.unwrap_err() else { panic!() };
        assert_eq!(scope, "of the round: $0.00000005 of $0.0000001 are spent, and the next call may cost $0.000000051");
        let third = spawn(20);
        tokio::time::sleep(Duration::from_secs(9)).await;
        assert!(!third.is_finished());
        // The next round may spend as much again, and what lands now is none of its calls'.
        till.begin_round(Some(nanos(100)));
        let third = third.await.unwrap().unwrap();
        second.settle(nanos(40), Certainty::Reported);
        let rest = till.reserve_now(nanos(80)).unwrap();
        assert!(till.reserve_now(nanos(1)).is_none(), "20 and 80 are reserved");
        drop(third);
        drop(rest);
        till.begin_round(None);
        assert!(till.reserve_now(nanos(100)).is_some(), "without a bound the purse alone counts");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_was_never_made_costs_nothing() {
        let (till, _bank) = till(1000, 0);
        drop(till.reserve(nanos(100)).await.unwrap());
        assert!(till.reserve_now(nanos(100)).is_some());
        let held = till.reserve(nanos(200)).await.unwrap();
        assert_eq!(till.close().unconfirmed, nanos(200), "what is open at the end is settled whole");
        drop(held);
        assert_eq!(till.state().purse.state().settled, nanos(200));
    }
}
