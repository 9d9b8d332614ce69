//! An attempt's money: a purse, and the bank that fills it.

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

    /// Reserves what is there. None if it does not fit, or others wait already.
    pub(crate) fn reserve_now(self: &Arc<Self>, bound: Money) -> Option<Hold> {
        let mut state = self.state();
        if state.waiting > 0 {
            return None;
        }
        self.try_reserve(&mut state, bound).ok()
    }

    fn try_reserve(self: &Arc<Self>, state: &mut State, bound: Money) -> Result<Hold, Short> {
        let ticket = state.tickets;
        state.purse.reserve(ticket, bound)?;
        state.tickets = state.tickets.wrapping_add(1);
        state.last_bound = bound;
        state.last_use = Instant::now();
        Ok(Hold { till: Arc::clone(self), ticket, bound, settled: false })
    }

    /// Reserves, and asks the bank as long as that takes.
    pub(crate) async fn reserve(self: &Arc<Self>, bound: Money) -> Result<Hold, Refused> {
        let _waiting = Waiting::new(self);
        // The semaphore is never closed.
        let _turn = self.asking.acquire().await;
        loop {
            let freed = self.freed.notified();
            let (short, purse) = {
                let mut state = self.state();
                match self.try_reserve(&mut state, bound) {
                    Ok(hold) => return Ok(hold),
                    Err(short) => (short, state.purse.state()),
                }
            };
            tokio::select! {
                answer = self.bank.more(self.kind, purse, short.wanted, bound) => match answer {
                    Ok(granted) => self.state().purse.grant(granted),
                    // What was freed meanwhile may do.
                    Err(refused) => return self.try_reserve(&mut self.state(), bound).map_err(|_| refused),
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
        assert_eq!(refused.scope, "run: spent");
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
