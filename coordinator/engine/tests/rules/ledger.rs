//! Money: requests, grants, refusals, recalls, caps, and what of it is left after an end.

use longhaul_core::agent::{AgentSpec, Harness};
use longhaul_core::budget::RunBudgets;
use longhaul_core::call::{Certainty, PurseKind};
use longhaul_core::money::Money;
use longhaul_core::plan::RunPlan;
use longhaul_core::purse::{Purse, PurseState};
use longhaul_engine::{Command, Effect, EscrowRest, Event, LeaseRef, Rejection, ScopeName, ScopeView};

use crate::bench::{Bench, SKEW, TTL, capacity, run_id, small, verdict, worker_id};

pub(crate) const EPISODE: PurseKind = PurseKind::Episode;

pub(crate) const fn cents(amount: u64) -> Money {
    Money::from_nanos(amount * 10_000_000)
}

pub(crate) fn model(name: &str) -> AgentSpec {
    AgentSpec::Model {
        name: name.to_owned(),
        harness: Harness::Tools,
        endpoint: format!("{name} endpoint"),
        model: "a model".to_owned(),
    }
}

/// `count` episodes of a model under these caps.
pub(crate) fn priced(count: usize, budgets: RunBudgets) -> RunPlan {
    RunPlan { agents: vec![model("qwen")], budgets, ..small(count) }
}

pub(crate) fn capped(cap: Money) -> RunBudgets {
    RunBudgets { run: Some(cap), ..RunBudgets::default() }
}

/// A run under a cap on a worker that has room for all of it.
pub(crate) fn started(count: usize, budgets: RunBudgets) -> Bench {
    let mut bench = Bench::new();
    bench.submit(1, priced(count, budgets));
    bench.connect(1, capacity(100_000, 100_000, 0));
    bench
}

/// A purse on its worker, with the messages that belong to it.
pub(crate) struct Wallet {
    pub(crate) lease: LeaseRef,
    kind: PurseKind,
    pub(crate) purse: Purse,
    calls: u32,
}

impl Wallet {
    pub(crate) fn of(bench: &Bench, index: u32) -> Self {
        Self::judging(bench, index, EPISODE)
    }

    pub(crate) fn judging(bench: &Bench, index: u32, kind: PurseKind) -> Self {
        Self { lease: bench.lease(1, index), kind, purse: Purse::default(), calls: 0 }
    }

    /// Of an attempt that the engine does not know.
    pub(crate) fn of_lease(lease: LeaseRef) -> Self {
        Self { lease, kind: EPISODE, purse: Purse::default(), calls: 0 }
    }

    /// Asks for the money of a call, and hears the answers to it.
    pub(crate) fn ask(&mut self, bench: &mut Bench, bound: Money) -> Vec<Event> {
        let short = self.purse.reserve(u32::MAX, bound).expect_err("it has to ask");
        let (lease, purse, state) = (self.lease, self.kind, self.purse.state());
        let bound = state.settled.saturating_add(bound);
        let events = bench.step(Command::EscrowRequested { lease, purse, state, wanted: short.wanted, bound });
        self.hear(bench, &events);
        events
    }

    /// Hears what is granted.
    pub(crate) fn hear(&mut self, bench: &Bench, events: &[Event]) -> Option<EscrowRest> {
        let mut last = None;
        for effect in bench.orders(events) {
            if let Effect::AnswerEscrow { lease, purse, granted, rest, .. } = effect
                && (lease, purse) == (self.lease, self.kind)
            {
                self.purse.grant(granted);
                last = Some(rest);
            }
        }
        last
    }

    /// Reserves a call that fits.
    pub(crate) fn reserve(&mut self, bound: Money) -> u32 {
        self.purse.reserve(self.calls, bound).expect("it fits");
        self.calls += 1;
        self.calls - 1
    }

    /// A call from its request to its report.
    pub(crate) fn call(&mut self, bench: &mut Bench, bound: Money, cost: Money) {
        if self.purse.free() < bound {
            let events = self.ask(bench, bound);
            assert_eq!(rest(bench, &events), EscrowRest::Enough);
        }
        let number = self.reserve(bound);
        self.purse.settle(number, cost, Certainty::Reported);
        self.report(bench);
    }

    pub(crate) fn report(&self, bench: &mut Bench) -> Vec<Event> {
        let (lease, purse, state) = (self.lease, self.kind, self.purse.state());
        bench.step(Command::EscrowReported { lease, purse, state })
    }

    /// Gives back all that is free.
    pub(crate) fn give_back(&mut self, bench: &mut Bench) -> Vec<Event> {
        self.purse.give_back(Money::ZERO);
        self.report(bench)
    }

    /// The last word about the purse.
    pub(crate) fn closed(&mut self) -> Vec<(PurseKind, PurseState)> {
        self.purse.settle_all();
        self.purse.give_back(Money::ZERO);
        vec![(self.kind, self.purse.state())]
    }

    pub(crate) fn end(mut self, bench: &mut Bench) -> Vec<Event> {
        let (lease, purses) = (self.lease, self.closed());
        bench.step(Command::AttemptEnded { lease, end: verdict(true), steps: 1, purses })
    }
}

/// The last answer among the effects of these events.
pub(crate) fn rest(bench: &Bench, events: &[Event]) -> EscrowRest {
    let mut answers = bench.orders(events).into_iter().filter_map(|effect| match effect {
        Effect::AnswerEscrow { rest, .. } => Some(rest),
        _ => None,
    });
    answers.next_back().expect("it is answered")
}

pub(crate) fn refusal(bench: &Bench, events: &[Event]) -> String {
    match rest(bench, events) {
        EscrowRest::Refused { reason } => reason,
        other => panic!("it is not refused: {other:?}"),
    }
}

pub(crate) fn recalled(bench: &Bench, events: &[Event]) -> Vec<LeaseRef> {
    let recalls = bench.orders(events).into_iter().filter_map(|effect| match effect {
        Effect::RecallEscrow { lease, .. } => Some(lease),
        _ => None,
    });
    recalls.collect()
}

pub(crate) fn scope(bench: &Bench, scope: &ScopeName) -> ScopeView {
    bench.engine.budget(run_id(1)).into_iter().find(|view| view.scope == *scope).expect("the scope is there")
}

pub(crate) fn of_run(bench: &Bench) -> ScopeView {
    scope(bench, &ScopeName::Run)
}

#[test]
fn a_request_is_granted_with_some_to_spare_and_the_answer_says_the_sum() {
    let mut bench = started(2, capped(cents(1_000)));
    let mut wallet = Wallet::of(&bench, 0);
    let events = wallet.ask(&mut bench, cents(10));
    assert_eq!(wallet.purse.state().granted, cents(20), "one call, and one more");
    assert_eq!(rest(&bench, &events), EscrowRest::Enough);
    let view = of_run(&bench);
    assert_eq!((view.cap, view.settled, view.escrow), (Some(cents(1_000)), Money::ZERO, cents(20)));
    let number = wallet.reserve(cents(10));
    wallet.purse.settle(number, cents(4), Certainty::Reported);
    wallet.report(&mut bench);
    let view = of_run(&bench);
    assert_eq!((view.settled, view.escrow, view.largest_exposure), (cents(4), cents(16), cents(20)));
    wallet.end(&mut bench);
    let view = of_run(&bench);
    assert_eq!((view.settled, view.escrow), (cents(4), Money::ZERO), "what is free is given back at the end");
}

#[test]
fn chunks_grow_with_what_was_spent_and_never_beyond_eight_bounds() {
    let mut bench = started(1, capped(Money::from_dollars(1_000)));
    let mut wallet = Wallet::of(&bench, 0);
    let (mut asked, mut largest) = (0, Money::ZERO);
    for _ in 0..1_000 {
        if wallet.purse.free() < cents(10) {
            wallet.ask(&mut bench, cents(10));
            asked += 1;
        }
        largest = largest.max(wallet.purse.free());
        let number = wallet.reserve(cents(10));
        wallet.purse.settle(number, cents(2), Certainty::Reported);
    }
    assert!(largest <= cents(90), "{largest}");
    assert!(asked <= 40, "asked {asked} times for 1000 calls");
}

#[test]
fn without_a_cap_a_chunk_is_large_and_the_sum_is_still_kept() {
    let mut bench = started(1, RunBudgets::default());
    let mut wallet = Wallet::of(&bench, 0);
    wallet.ask(&mut bench, cents(10));
    assert_eq!(wallet.purse.free(), cents(330));
    wallet.call(&mut bench, cents(10), cents(7));
    let view = of_run(&bench);
    assert_eq!((view.cap, view.settled, view.stopped), (None, cents(7), None));
}

#[test]
fn a_repeated_request_is_answered_with_the_same_sum() {
    let mut bench = started(1, capped(cents(100)));
    let mut wallet = Wallet::of(&bench, 0);
    let before = wallet.purse.clone();
    wallet.ask(&mut bench, cents(10));
    let granted = wallet.purse.state().granted;
    wallet.purse = before;
    let events = wallet.ask(&mut bench, cents(10));
    assert_eq!((wallet.purse.state().granted, rest(&bench, &events)), (granted, EscrowRest::Enough));
    assert_eq!(of_run(&bench).escrow, granted);
}

#[test]
fn a_request_under_a_lease_that_is_over_gets_no_money_but_what_it_says_counts() {
    let mut bench = started(1, capped(cents(100)));
    let mut wallet = Wallet::of(&bench, 0);
    wallet.ask(&mut bench, cents(10));
    let number = wallet.reserve(cents(10));
    bench.disconnect(1);
    bench.pass(TTL + SKEW);
    assert_eq!(of_run(&bench).settled, cents(20), "all that it was granted may be spent");
    wallet.purse.settle(number, cents(3), Certainty::Reported);
    wallet.purse.give_back(Money::ZERO);
    let events = wallet.ask(&mut bench, cents(10));
    assert!(bench.orders(&events).is_empty(), "{events:?}");
    assert_eq!((of_run(&bench).settled, of_run(&bench).escrow), (cents(3), Money::ZERO));
    let never = LeaseRef { epoch: longhaul_core::ids::Epoch(99), ..wallet.lease };
    let report = |lease| Command::EscrowReported { lease, purse: EPISODE, state: PurseState::default() };
    assert!(matches!(bench.try_step(report(never)), Err(Rejection::StaleEpoch { .. })));
    let attempt = longhaul_core::ids::AttemptId { number: 7, ..wallet.lease.attempt };
    assert_eq!(bench.try_step(report(LeaseRef { attempt, ..never })), Err(Rejection::UnknownAttempt { attempt }));
}

#[test]
fn a_call_that_does_not_fit_waits_while_money_may_come_back_and_is_refused_when_it_cannot() {
    let mut bench = started(2, capped(cents(25)));
    let (mut first, mut second) = (Wallet::of(&bench, 0), Wallet::of(&bench, 1));
    first.ask(&mut bench, cents(20));
    let number = first.reserve(cents(20));
    let events = second.ask(&mut bench, cents(10));
    assert_eq!(rest(&bench, &events), EscrowRest::Wait);
    assert_eq!(of_run(&bench).waiting, 1);
    // It cost less than it might have: there is room for the other.
    first.purse.settle(number, cents(12), Certainty::Reported);
    let events = first.report(&mut bench);
    assert_eq!(recalled(&bench, &events), [first.lease]);
    let events = first.give_back(&mut bench);
    assert_eq!(second.hear(&bench, &events), Some(EscrowRest::Enough));
    let number = second.reserve(cents(10));
    second.purse.settle(number, cents(8), Certainty::Reported);
    second.report(&mut bench);
    let events = first.ask(&mut bench, cents(6));
    let reason = refusal(&bench, &events);
    assert_eq!(reason, "the budget of the run, $0.25, has $0.05 left, and the next call may cost $0.06");
    assert_eq!(of_run(&bench).waiting, 0);
}

#[test]
fn a_call_exactly_as_large_as_what_is_left_is_made() {
    let mut bench = started(1, capped(cents(10)));
    let mut wallet = Wallet::of(&bench, 0);
    wallet.call(&mut bench, cents(10), cents(4));
    wallet.call(&mut bench, cents(6), cents(6));
    assert_eq!((of_run(&bench).settled, of_run(&bench).escrow), (cents(10), Money::ZERO));
    let events = wallet.ask(&mut bench, Money::from_nanos(1));
    assert!(refusal(&bench, &events).contains("$0.00 left"));
}

#[test]
fn a_cap_of_nothing_refuses_the_first_call() {
    let mut bench = started(2, capped(Money::ZERO));
    let mut wallet = Wallet::of(&bench, 0);
    let events = wallet.ask(&mut bench, Money::from_nanos(1));
    assert!(refusal(&bench, &events).contains("$0.00"));
    assert_eq!(wallet.purse.state().granted, Money::ZERO);
}

#[test]
fn small_calls_do_not_starve_a_large_one() {
    let mut bench = started(3, capped(cents(100)));
    let [mut first, mut large, mut small] = [0, 1, 2].map(|index| Wallet::of(&bench, index));
    first.ask(&mut bench, cents(60));
    let number = first.reserve(cents(60));
    let events = large.ask(&mut bench, cents(90));
    assert_eq!(rest(&bench, &events), EscrowRest::Wait);
    let events = small.ask(&mut bench, cents(1));
    assert_eq!(rest(&bench, &events), EscrowRest::Wait, "it would fit, but came later");
    first.purse.settle(number, cents(5), Certainty::Reported);
    first.report(&mut bench);
    let events = first.give_back(&mut bench);
    assert_eq!(large.hear(&bench, &events), Some(EscrowRest::Enough));
    assert_eq!(small.hear(&bench, &events), Some(EscrowRest::Enough));
    assert_eq!(of_run(&bench).escrow, cents(91), "nobody gets a spare while others wait");
}

#[test]
fn a_recall_comes_once_and_again_only_when_there_is_something_new() {
    let mut bench = started(2, capped(cents(30)));
    let (mut first, mut second) = (Wallet::of(&bench, 0), Wallet::of(&bench, 1));
    first.ask(&mut bench, cents(10));
    first.call(&mut bench, cents(10), cents(1));
    first.call(&mut bench, cents(10), cents(1));
    let number = first.reserve(cents(10));
    let events = second.ask(&mut bench, cents(20));
    assert_eq!(recalled(&bench, &events), [first.lease]);
    let events = first.give_back(&mut bench);
    assert_eq!(recalled(&bench, &events), [], "the rest is reserved");
    let events = bench.step(Command::Tick);
    assert!(recalled(&bench, &events).is_empty());
    first.purse.settle(number, cents(2), Certainty::Reported);
    let events = first.report(&mut bench);
    assert!(recalled(&bench, &events) == [first.lease] || second.hear(&bench, &events) == Some(EscrowRest::Enough));
}

#[test]
fn a_recall_that_was_not_heard_is_said_again_at_the_next_hello() {
    let mut bench = started(2, capped(cents(30)));
    let (mut first, mut second) = (Wallet::of(&bench, 0), Wallet::of(&bench, 1));
    first.ask(&mut bench, cents(10));
    first.call(&mut bench, cents(10), cents(1));
    second.ask(&mut bench, cents(20));
    let live = bench.held_by(1);
    let events = bench.connect_with(1, capacity(100_000, 100_000, 0), live);
    assert_eq!(recalled(&bench, &events), [first.lease]);
}

#[test]
fn one_that_waits_gives_back_what_it_has_or_two_would_wait_for_each_other() {
    let mut bench = started(2, capped(cents(40)));
    let (mut first, mut second) = (Wallet::of(&bench, 0), Wallet::of(&bench, 1));
    first.call(&mut bench, cents(10), cents(1));
    second.call(&mut bench, cents(8), cents(1));
    assert!(!first.purse.free().is_zero() && !second.purse.free().is_zero());
    let mut events = first.ask(&mut bench, cents(30));
    events.extend(second.ask(&mut bench, cents(35)));
    assert!(recalled(&bench, &events).contains(&second.lease));
    let events = second.give_back(&mut bench);
    assert_eq!(first.hear(&bench, &events), Some(EscrowRest::Enough));
    first.reserve(cents(30));
}

#[test]
fn what_was_granted_for_one_call_is_asked_back_only_once_its_purse_asks_for_more() {
    let mut bench = started(3, capped(cents(30)));
    let [mut first, mut second, mut third] = [0, 1, 2].map(|index| Wallet::of(&bench, index));
    first.ask(&mut bench, cents(20));
    first.reserve(cents(20));
    first.give_back(&mut bench);
    second.ask(&mut bench, cents(8));
    let events = third.ask(&mut bench, cents(18));
    assert_eq!(recalled(&bench, &events), [], "both have what their calls need");
    let events = second.ask(&mut bench, cents(15));
    assert_eq!(recalled(&bench, &events), [second.lease], "or the two would wait for each other");
    second.give_back(&mut bench);
    assert_eq!(of_run(&bench).escrow, cents(20));
}

#[test]
fn a_lost_attempt_counts_whole_until_somebody_says_what_became_of_it_and_then_exactly_once() {
    let mut bench = started(1, capped(cents(200)));
    let mut wallet = Wallet::of(&bench, 0);
    wallet.ask(&mut bench, cents(10));
    wallet.call(&mut bench, cents(10), cents(4));
    wallet.reserve(cents(10));
    let lease = wallet.lease;
    bench.disconnect(1);
    bench.pass(TTL + SKEW);
    let view = of_run(&bench);
    assert_eq!((view.settled, view.escrow, view.unconfirmed), (cents(20), Money::ZERO, cents(16)));
    let purses = wallet.closed();
    let closed = Command::PursesClosed { lease, purses: purses.clone() };
    bench.step(closed.clone());
    let view = of_run(&bench);
    assert_eq!((view.settled, view.unconfirmed), (cents(14), cents(10)), "the call in flight counts whole");
    assert!(bench.step(closed).is_empty());
    assert!(bench.step(Command::EscrowReported { lease, purse: EPISODE, state: purses[0].1 }).is_empty());
    assert_eq!(of_run(&bench).settled, cents(14));
}

#[test]
fn what_a_lost_attempt_never_heard_of_is_free_when_its_end_is_told_and_not_before() {
    let mut bench = started(1, capped(cents(200)));
    let mut wallet = Wallet::of(&bench, 0);
    let deaf = wallet.purse.clone();
    wallet.ask(&mut bench, cents(10));
    wallet.purse = deaf;
    bench.disconnect(1);
    bench.pass(TTL + SKEW);
    wallet.report(&mut bench);
    assert_eq!(of_run(&bench).settled, cents(20));
    let (lease, purses) = (wallet.lease, wallet.closed());
    // The end of an attempt whose lease is over is no end, and no word about its money either.
    let end = Command::AttemptEnded { lease, end: verdict(true), steps: 1, purses: purses.clone() };
    assert!(matches!(bench.try_step(end), Err(Rejection::StaleEpoch { .. })));
    bench.step(Command::PursesClosed { lease, purses });
    assert_eq!(of_run(&bench).settled, Money::ZERO);
}

#[test]
fn an_end_that_is_silent_about_a_purse_leaves_it_whole() {
    let mut bench = started(1, capped(cents(200)));
    let mut wallet = Wallet::of(&bench, 0);
    wallet.ask(&mut bench, cents(10));
    bench.end(wallet.lease, verdict(true));
    assert_eq!((of_run(&bench).settled, of_run(&bench).unconfirmed), (cents(20), cents(20)));
}

#[test]
fn money_of_a_run_that_was_forgotten_is_found_once_and_what_is_known_is_not_asked_again() {
    let mut bench = started(2, RunBudgets { agents: vec![Some(cents(500))], ..capped(cents(500)) });
    let (mut lost, done) = (Wallet::of(&bench, 0), Wallet::of(&bench, 1));
    lost.ask(&mut bench, cents(10));
    let (lost_lease, done_lease) = (lost.lease, done.lease);
    bench.disconnect(1);
    bench.pass(TTL + SKEW);
    bench.step(Command::CancelRun { run: run_id(1), by: "me".to_owned() });
    bench.step(Command::ForgetRun { run: run_id(1) });
    assert_eq!(scope(&bench, &ScopeName::Agent("qwen".to_owned())).settled, cents(20), "it is still shown");
    let purses = lost.closed();
    bench.step(Command::PursesClosed { lease: lost_lease, purses: purses.clone() });
    assert_eq!((of_run(&bench).settled, of_run(&bench).unconfirmed), (Money::ZERO, Money::ZERO));
    assert!(bench.step(Command::PursesClosed { lease: lost_lease, purses: purses.clone() }).is_empty());
    assert!(bench.step(Command::PursesClosed { lease: done_lease, purses }).is_empty());
    let late = PurseState { settled: cents(3), ..PurseState::default() };
    assert!(bench.step(Command::EscrowReported { lease: done_lease, purse: EPISODE, state: late }).is_empty());
    let stale = LeaseRef { epoch: longhaul_core::ids::Epoch(99), ..lost_lease };
    let stale = Command::EscrowReported { lease: stale, purse: EPISODE, state: late };
    assert!(matches!(bench.try_step(stale), Err(Rejection::StaleEpoch { .. })));
}

#[test]
fn a_later_request_takes_the_place_of_an_earlier_one_and_an_old_one_does_not() {
    let mut bench = started(2, capped(cents(50)));
    let (mut first, mut second) = (Wallet::of(&bench, 0), Wallet::of(&bench, 1));
    first.ask(&mut bench, cents(40));
    let number = first.reserve(cents(40));
    first.give_back(&mut bench);
    second.call(&mut bench, cents(5), cents(1));
    let old = second.purse.state();
    let events = second.ask(&mut bench, cents(45));
    assert_eq!(rest(&bench, &events), EscrowRest::Wait);
    second.purse.give_back(Money::ZERO);
    let events = second.ask(&mut bench, cents(8));
    assert_eq!(rest(&bench, &events), EscrowRest::Enough, "eight are there");
    second.call(&mut bench, cents(8), cents(1));
    let events = second.ask(&mut bench, cents(20));
    assert_eq!(rest(&bench, &events), EscrowRest::Wait);
    let (lease, purse) = (second.lease, EPISODE);
    let repeated = Command::EscrowRequested { lease, purse, state: old, wanted: cents(46), bound: cents(46) };
    assert!(bench.step(repeated).is_empty());
    first.purse.settle(number, cents(10), Certainty::Reported);
    first.report(&mut bench);
    let events = first.give_back(&mut bench);
    assert_eq!(second.hear(&bench, &events), Some(EscrowRest::Enough));
    second.reserve(cents(20));
}

#[test]
fn what_a_worker_cannot_have_given_back_is_not_believed() {
    let mut bench = started(1, capped(cents(100)));
    let mut wallet = Wallet::of(&bench, 0);
    wallet.ask(&mut bench, cents(10));
    let lie = PurseState { returned: Money::MAX, granted: Money::MAX, ..PurseState::default() };
    bench.step(Command::EscrowReported { lease: wallet.lease, purse: EPISODE, state: lie });
    assert_eq!(of_run(&bench).escrow, Money::ZERO);
    let request = Command::EscrowRequested {
        lease: wallet.lease,
        purse: EPISODE,
        state: lie,
        wanted: cents(30),
        bound: cents(10),
    };
    bench.step(request);
    assert_eq!(of_run(&bench).escrow, cents(20), "what it was given since is out, and a spare one");
    let lie = PurseState { settled: Money::MAX, unconfirmed: Money::MAX, ..lie };
    bench.step(Command::EscrowReported { lease: wallet.lease, purse: EPISODE, state: lie });
    assert_eq!(of_run(&bench).settled, Money::from_dollars(1_000_000), "no attempt costs more");
    let huge = Command::EscrowRequested {
        lease: wallet.lease,
        purse: PurseKind::Judge,
        state: PurseState::default(),
        wanted: Money::MAX,
        bound: Money::MAX,
    };
    let events = bench.step(huge);
    assert!(refusal(&bench, &events).contains("no call may cost more"));
}

#[test]
fn a_report_that_is_late_or_repeated_changes_nothing() {
    let mut bench = started(1, capped(cents(100)));
    let mut wallet = Wallet::of(&bench, 0);
    wallet.call(&mut bench, cents(10), cents(3));
    let old = wallet.purse.state();
    wallet.call(&mut bench, cents(10), cents(3));
    wallet.give_back(&mut bench);
    let before = of_run(&bench);
    let (lease, purse) = (wallet.lease, EPISODE);
    for state in [old, wallet.purse.state(), PurseState::default()] {
        assert!(bench.step(Command::EscrowReported { lease, purse, state }).is_empty());
    }
    assert_eq!((of_run(&bench), before.settled), (before, cents(6)));
}

#[test]
fn answers_name_the_worker_that_holds_the_lease() {
    let mut bench = started(1, capped(cents(100)));
    let mut wallet = Wallet::of(&bench, 0);
    let events = wallet.ask(&mut bench, cents(10));
    let expected = Effect::AnswerEscrow {
        worker: worker_id(1),
        lease: wallet.lease,
        purse: EPISODE,
        granted: cents(20),
        rest: EscrowRest::Enough,
    };
    assert_eq!(bench.orders(&events), [expected]);
}
