//! Caps: of runs, agents, episodes and the judge; raised, overshot, warned of, and spent before an
//! episode begins. And endpoints that are down.

use longhaul_core::agent::AgentSpec;
use longhaul_core::budget::RunBudgets;
use longhaul_core::call::{Certainty, PurseKind};
use longhaul_core::money::Money;
use longhaul_core::outcome::{FaultClass, Settlement, SettlementKind};
use longhaul_engine::state::Revived;
use longhaul_engine::{Command, Effect, Engine, EscrowRest, Event, Notice, Rejection, ScopeName, Snapshot, WaitReason};

use crate::bench::{Bench, capacity, episode, fault, run_id, settings};
use crate::ledger::{Wallet, capped, cents, model, of_run, priced, recalled, refusal, rest, scope, started};

fn kind(bench: &Bench, index: u32) -> Option<SettlementKind> {
    bench.settlement(1, index).map(Settlement::kind)
}

fn raise(bench: &mut Bench, scope: ScopeName, cap: Money) -> Result<Vec<Event>, Rejection> {
    bench.try_step(Command::RaiseBudget { run: run_id(1), scope, cap, by: "me".to_owned() })
}

#[test]
fn all_attempts_of_an_episode_share_its_cap() {
    let mut bench = Bench::new();
    let mut plan = priced(1, RunBudgets::default());
    plan.episodes[0].max_cost = Some(cents(30));
    bench.submit(1, plan);
    bench.connect(1, capacity(100_000, 100_000, 0));
    let mut first = Wallet::of(&bench, 0);
    first.call(&mut bench, cents(10), cents(9));
    first.call(&mut bench, cents(10), cents(9));
    assert_eq!(scope(&bench, &ScopeName::Episode(episode(1, 0))).settled, cents(18));
    let (lease, purses) = (first.lease, first.closed());
    bench.step(Command::AttemptEnded { lease, end: fault(FaultClass::Display), steps: 1, purses });
    bench.pass_with(8_000, &[1]);
    let mut second = Wallet::of(&bench, 0);
    assert_eq!(second.lease.attempt.number, 2);
    second.call(&mut bench, cents(10), cents(5));
    let events = second.ask(&mut bench, cents(10));
    assert!(refusal(&bench, &events).starts_with("the budget of the episode, $0.30, has $0.07 left"));
}

#[test]
fn every_scope_has_to_have_it_and_the_judge_has_its_own() {
    let budgets = RunBudgets { run: Some(cents(1_000)), agents: vec![Some(cents(15)), None], judge: Some(cents(12)) };
    let mut bench = Bench::new();
    let mut plan = priced(2, budgets);
    plan.agents.push(model("kimi"));
    plan.episodes[1].agent = 1;
    bench.submit(1, plan);
    bench.connect(1, capacity(100_000, 100_000, 0));
    let (mut poor, mut rich) = (Wallet::of(&bench, 0), Wallet::of(&bench, 1));
    poor.call(&mut bench, cents(10), cents(10));
    let events = poor.ask(&mut bench, cents(10));
    assert!(refusal(&bench, &events).starts_with("the budget of the agent qwen, $0.15, has $0.05 left"));
    rich.call(&mut bench, cents(10), cents(10));
    let mut judge = Wallet::judging(&bench, 0, PurseKind::Judge);
    judge.call(&mut bench, cents(12), cents(2));
    assert_eq!(of_run(&bench).settled, cents(20), "judging is no agent's to pay");
    assert_eq!(scope(&bench, &ScopeName::Judge).settled, cents(2));
    let events = judge.ask(&mut bench, cents(11));
    assert!(refusal(&bench, &events).starts_with("the budget of judging, $0.12, has $0.10 left"));
}

#[test]
fn one_agents_want_keeps_no_other_agent_waiting() {
    let mut bench = Bench::new();
    let mut plan = priced(3, RunBudgets { agents: vec![Some(cents(10)), None], ..capped(cents(1_000)) });
    plan.agents.push(model("kimi"));
    plan.episodes[2].agent = 1;
    bench.submit(1, plan);
    bench.connect(1, capacity(100_000, 100_000, 0));
    let [mut first, mut second, mut other] = [0, 1, 2].map(|index| Wallet::of(&bench, index));
    first.ask(&mut bench, cents(10));
    let events = second.ask(&mut bench, cents(10));
    assert_eq!(rest(&bench, &events), EscrowRest::Wait);
    other.call(&mut bench, cents(50), cents(50));
}

#[test]
fn raising_a_cap_wakes_those_that_wait_and_it_is_never_lowered() {
    let mut bench = started(2, capped(cents(10)));
    let (mut first, mut second) = (Wallet::of(&bench, 0), Wallet::of(&bench, 1));
    first.ask(&mut bench, cents(10));
    second.ask(&mut bench, cents(10));
    let lowered = raise(&mut bench, ScopeName::Run, cents(9));
    assert!(matches!(lowered, Err(Rejection::BudgetLowered { .. })), "{lowered:?}");
    assert_eq!(raise(&mut bench, ScopeName::Run, cents(10)), Ok(Vec::new()));
    let none = raise(&mut bench, ScopeName::Judge, cents(10));
    assert_eq!(none, Err(Rejection::NoBudget { run: run_id(1), scope: ScopeName::Judge }));
    let events = raise(&mut bench, ScopeName::Run, cents(20)).expect("it is higher");
    assert_eq!(second.hear(&bench, &events), Some(EscrowRest::Enough));
    first.end(&mut bench);
    second.end(&mut bench);
    assert_eq!(raise(&mut bench, ScopeName::Run, cents(50)), Err(Rejection::RunOver { run: run_id(1) }));
}

#[test]
fn a_bill_beyond_the_bound_is_settled_shown_and_stops_the_scope_until_a_person_raises_it() {
    let mut bench = started(2, capped(cents(100)));
    let (mut wallet, mut other) = (Wallet::of(&bench, 0), Wallet::of(&bench, 1));
    wallet.ask(&mut bench, cents(10));
    other.ask(&mut bench, cents(10));
    let number = wallet.reserve(cents(10));
    wallet.purse.settle(number, cents(25), Certainty::Reported);
    wallet.report(&mut bench);
    let view = of_run(&bench);
    assert_eq!((view.settled, view.overshoot), (cents(25), cents(15)), "also what its purse could pay for");
    assert!(view.stopped.is_some_and(|why| why.contains("$0.15 more")));
    other.purse.give_back(Money::ZERO);
    let events = other.ask(&mut bench, cents(10));
    assert!(refusal(&bench, &events).contains("is stopped"));
    raise(&mut bench, ScopeName::Run, cents(110)).expect("it is higher");
    other.call(&mut bench, cents(10), cents(10));
    assert_eq!(of_run(&bench).overshoot, cents(15), "it stays shown");
}

#[test]
fn a_little_beyond_the_bound_is_borne_and_money_is_asked_back_for_it() {
    let mut bench = started(2, capped(cents(40)));
    let (mut wallet, mut other) = (Wallet::of(&bench, 0), Wallet::of(&bench, 1));
    wallet.ask(&mut bench, cents(20));
    other.ask(&mut bench, cents(10));
    other.call(&mut bench, cents(10), cents(1));
    let number = wallet.reserve(wallet.purse.free());
    let spare = cents(40).saturating_sub(of_run(&bench).escrow).saturating_sub(of_run(&bench).settled);
    let beyond = wallet.purse.state().granted.saturating_add(spare).saturating_add(Money::from_nanos(3));
    wallet.purse.settle(number, beyond, Certainty::Reported);
    let events = wallet.report(&mut bench);
    let view = of_run(&bench);
    assert_eq!(view.overshoot, Money::from_nanos(3));
    assert!(view.stopped.is_some_and(|why| !why.contains("is stopped")), "it is only nearly spent");
    assert_eq!(recalled(&bench, &events), [other.lease], "more is out than may be");
    other.give_back(&mut bench);
    let view = of_run(&bench);
    assert!(view.settled.saturating_add(view.escrow) <= cents(40));
}

#[test]
fn what_was_billed_too_much_is_taken_from_what_is_left_once_and_not_twice() {
    let mut bench = started(1, capped(cents(400)));
    let mut wallet = Wallet::of(&bench, 0);
    wallet.ask(&mut bench, cents(10));
    let number = wallet.reserve(cents(20));
    wallet.purse.settle(number, cents(23), Certainty::Reported);
    wallet.report(&mut bench);
    let events = wallet.ask(&mut bench, cents(377));
    assert_eq!(rest(&bench, &events), EscrowRest::Enough, "exactly so much is left");
    wallet.reserve(cents(377));
    assert_eq!(of_run(&bench).escrow, cents(377));
}

#[test]
fn people_are_warned_once_at_each_mark() {
    let mut bench = started(1, capped(cents(100)));
    let mut wallet = Wallet::of(&bench, 0);
    let mut warned = Vec::new();
    for _ in 0..9 {
        if wallet.purse.free() < cents(11) {
            wallet.ask(&mut bench, cents(11));
        }
        let number = wallet.reserve(cents(11));
        wallet.purse.settle(number, cents(11), Certainty::Reported);
        let events = wallet.report(&mut bench);
        warned.extend(bench.engine.effects(&events).into_iter().filter_map(|effect| match effect {
            Effect::Publish(Notice::BudgetNearlySpent { percent, scope: ScopeName::Run, .. }) => Some(percent),
            _ => None,
        }));
    }
    assert_eq!(warned, [80, 95]);
}

#[test]
fn episodes_that_cannot_begin_for_want_of_money_are_not_started_and_those_that_began_go_on() {
    let mut bench = Bench::new();
    bench.submit(1, priced(4, capped(cents(25))));
    bench.connect(1, capacity(2_000, 100_000, 0));
    let (mut first, mut second) = (Wallet::of(&bench, 0), Wallet::of(&bench, 1));
    first.ask(&mut bench, cents(10));
    let number = first.reserve(cents(10));
    second.ask(&mut bench, cents(10));
    let events = first.give_back(&mut bench);
    assert_eq!(second.hear(&bench, &events), Some(EscrowRest::Enough));
    first.purse.settle(number, cents(10), Certainty::Reported);
    first.report(&mut bench);
    assert_eq!(kind(&bench, 2), None, "what the other has reserved may come back");
    let number = second.reserve(cents(10));
    second.purse.settle(number, cents(10), Certainty::Reported);
    second.report(&mut bench);
    assert_eq!(
        (kind(&bench, 2), kind(&bench, 3)),
        (Some(SettlementKind::NotStarted), Some(SettlementKind::NotStarted))
    );
    let Some(Settlement::NotStarted { reason }) = bench.settlement(1, 2) else { panic!("it is not started") };
    assert_eq!(reason, "the budget of the run, $0.25, has $0.05 left, and the next call may cost $0.10");
    // The first is preempted: it has begun, and gets another attempt to end in order.
    let (lease, purses) = (first.lease, first.closed());
    bench.step(Command::AttemptEnded { lease, end: fault(FaultClass::Preempted), steps: 1, purses });
    assert!(bench.is_active(1, 0));
    let mut again = Wallet::of(&bench, 0);
    let events = again.ask(&mut bench, cents(10));
    refusal(&bench, &events);
    second.end(&mut bench);
    again.end(&mut bench);
    let summary = bench.engine.summary(run_id(1)).expect("it is there");
    assert_eq!((summary.counts.not_started, summary.settled_at.is_some()), (2, true));
}

#[test]
fn more_money_for_a_run_that_is_over_lets_what_was_not_started_begin() {
    let mut bench = Bench::new();
    bench.submit(1, priced(3, capped(cents(25))));
    bench.connect(1, capacity(1_000, 100_000, 0));
    let mut wallet = Wallet::of(&bench, 0);
    wallet.call(&mut bench, cents(10), cents(10));
    wallet.call(&mut bench, cents(10), cents(10));
    wallet.end(&mut bench);
    assert_eq!(
        (kind(&bench, 1), kind(&bench, 2)),
        (Some(SettlementKind::NotStarted), Some(SettlementKind::NotStarted))
    );
    let run = &bench.engine.state().runs[&run_id(1)];
    let revived = Revived { plan: run.plan.clone(), submitted_at: run.submitted_at, episodes: run.episodes.clone() };
    bench.step(Command::ForgetRun { run: run_id(1) });
    assert_eq!(raise(&mut bench, ScopeName::Run, cents(100)).expect("it is higher").len(), 1);
    assert_eq!(of_run(&bench).cap, Some(cents(100)));
    let kinds = vec![SettlementKind::NotStarted];
    let (by, revived) = ("me".to_owned(), Some(Box::new(revived)));
    bench.step(Command::ResumeRun { run: run_id(1), by, kinds, revived });
    bench.pass_with(1_000, &[1]);
    assert!(bench.is_active(1, 1), "there is money for it");
    let mut next = Wallet::of(&bench, 1);
    next.call(&mut bench, cents(10), cents(10));
    assert_eq!(of_run(&bench).settled, cents(30), "what was spent before counts");
    bench.engine.check_invariants().expect("the invariants hold");
}

#[test]
fn a_raise_in_time_keeps_episodes_in_the_queue_and_agents_without_models_need_no_money() {
    let mut bench = Bench::new();
    let mut plan = priced(4, capped(cents(25)));
    plan.agents.push(AgentSpec::Idle);
    plan.episodes[3].agent = 1;
    bench.submit(1, plan);
    bench.connect(1, capacity(1_000, 100_000, 0));
    let mut wallet = Wallet::of(&bench, 0);
    wallet.call(&mut bench, cents(10), cents(10));
    raise(&mut bench, ScopeName::Run, cents(40)).expect("it is higher");
    wallet.call(&mut bench, cents(10), cents(10));
    assert_eq!((kind(&bench, 1), kind(&bench, 2)), (None, None));
    wallet.call(&mut bench, cents(10), cents(10));
    wallet.call(&mut bench, cents(5), cents(5));
    assert_eq!(kind(&bench, 1), None, "one of five fits");
    wallet.call(&mut bench, cents(5), cents(4));
    assert_eq!(kind(&bench, 1), Some(SettlementKind::NotStarted));
    wallet.end(&mut bench);
    assert!(bench.is_active(1, 3), "it costs nothing");
}

#[test]
fn an_endpoint_that_is_down_admits_one_that_watches_it_and_no_other() {
    let mut bench = Bench::new();
    let mut plan = priced(3, RunBudgets::default());
    plan.agents.push(AgentSpec::Idle);
    plan.episodes[2].agent = 1;
    let seen = |down: Option<&str>| Command::EndpointSeen {
        endpoint: "qwen endpoint".to_owned(),
        down: down.map(str::to_owned),
    };
    let events = bench.step(seen(Some("503")));
    assert_eq!(events.len(), 1);
    assert!(bench.step(seen(Some("504"))).is_empty(), "down is down");
    bench.submit(1, plan);
    bench.connect(1, capacity(100_000, 100_000, 0));
    assert!(bench.is_active(1, 0) && !bench.is_active(1, 1) && bench.is_active(1, 2));
    let why = bench.engine.why_waiting(episode(1, 1));
    let expected = WaitReason::EndpointDown { endpoint: "qwen endpoint".to_owned(), reason: "503".to_owned() };
    assert_eq!(why, Some(expected));
    bench.end(bench.lease(1, 0), fault(FaultClass::Preempted));
    assert!(bench.is_active(1, 0) != bench.is_active(1, 1), "another one looks");
    bench.step(seen(None));
    assert!(bench.is_active(1, 0) && bench.is_active(1, 1));
}

#[test]
fn a_coordinator_that_restarts_asks_anew_which_endpoints_are_down() {
    let mut bench = Bench::new();
    bench.step(Command::EndpointSeen { endpoint: "qwen endpoint".to_owned(), down: Some("503".to_owned()) });
    bench.step(Command::CoordinatorRestarted);
    bench.submit(1, priced(2, RunBudgets::default()));
    bench.connect(1, capacity(100_000, 100_000, 0));
    assert!(bench.is_active(1, 0) && bench.is_active(1, 1));
    assert_eq!(
        bench.step(Command::EndpointSeen { endpoint: "qwen endpoint".to_owned(), down: Some("503".to_owned()) }).len(),
        1,
        "it is down still, and that is new"
    );
}

#[test]
fn a_cancelled_run_gets_no_more_money() {
    let mut bench = started(2, capped(cents(10)));
    let (mut first, mut second) = (Wallet::of(&bench, 0), Wallet::of(&bench, 1));
    first.ask(&mut bench, cents(10));
    second.ask(&mut bench, cents(10));
    let events = bench.step(Command::CancelRun { run: run_id(1), by: "me".to_owned() });
    assert_eq!(refusal(&bench, &events), "the run was cancelled");
}

#[test]
fn a_snapshot_from_before_there_were_ledgers_is_read_and_spends_from_its_plan() {
    let bench = started(1, capped(cents(10)));
    let mut snapshot = bench.engine.snapshot();
    snapshot.format = 2;
    snapshot.state.ledgers.clear();
    let text = serde_json::to_string(&snapshot).expect("snapshots are JSON");
    let snapshot: Snapshot = serde_json::from_str(&text).expect("it reads back");
    let engine = Engine::from_snapshot(settings(), snapshot).expect("the format is known");
    assert_eq!(engine.budget(run_id(1))[0].cap, Some(cents(10)));
}
