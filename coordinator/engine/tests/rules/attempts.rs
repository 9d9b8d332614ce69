//! Attempts and their ends: what counts, what is tried again, what settles.

use longhaul_core::ids::{AttemptId, Epoch};
use longhaul_core::outcome::{AttemptEnd, EndedBy, FaultClass, Settlement, SettlementKind, Verdict};
use longhaul_core::time::Millis;
use longhaul_engine::state::EpisodeState;
use longhaul_engine::{Command, Event, LeaseRef, Rejection, WaitReason};

use crate::bench::{Bench, SKEW, TTL, capacity, episode, fault, run_id, small, verdict, worker_id};

fn started() -> Bench {
    let mut bench = Bench::new();
    bench.submit(1, small(1));
    bench.connect(1, capacity(4_000, 8_000, 0));
    bench
}

#[test]
fn a_verdict_settles_its_episode_whether_passed_or_failed() {
    for passed in [true, false] {
        let mut bench = started();
        let events = bench.end(bench.lease(1, 0), verdict(passed));
        let kind = if passed { SettlementKind::Passed } else { SettlementKind::Failed };
        assert_eq!(bench.settlement(1, 0).map(Settlement::kind), Some(kind));
        assert!(matches!(events.last(), Some(Event::RunSettled { .. })));
        assert!(bench.pass_with(100_000, &[1]).is_empty(), "nothing is tried again");
    }
}

#[test]
fn an_unverified_attempt_is_not_run_again() {
    let mut bench = started();
    bench.end(
        bench.lease(1, 0),
        AttemptEnd::Unverified { ended_by: EndedBy::Agent, reason: "a stub".to_owned(), fault: None, parts: None },
    );
    assert_eq!(bench.settlement(1, 0).map(Settlement::kind), Some(SettlementKind::Unverified));
}

#[test]
fn a_score_that_is_no_number_is_no_verdict() {
    let mut bench = started();
    let ended_by = EndedBy::Agent;
    let (feedback, details) = (String::new(), serde_json::json!(null));
    let end = AttemptEnd::Verdict(Verdict { passed: true, score: f64::NAN, feedback, details, ended_by, parts: None });
    let events = bench.end(bench.lease(1, 0), end);
    assert_eq!(bench.settlement(1, 0).map(Settlement::kind), Some(SettlementKind::Unverified));
    let stored = serde_json::to_string(&events).expect("events are JSON");
    assert_eq!(serde_json::from_str::<Vec<Event>>(&stored).expect("events read back"), events);
}

#[test]
fn a_repeated_end_is_accepted_and_changes_nothing() {
    let mut bench = started();
    let lease = bench.lease(1, 0);
    bench.end(lease, fault(FaultClass::Display));
    assert_eq!(
        bench.try_step(Command::AttemptEnded { lease, end: verdict(true), steps: 1, purses: Vec::new() }),
        Ok(Vec::new())
    );
    assert_eq!(bench.settlement(1, 0), None, "what it says the second time does not count");
}

#[test]
fn a_report_under_a_stale_epoch_changes_nothing() {
    let mut bench = started();
    let stale = bench.lease(1, 0);
    bench.step(Command::WorkerLeaving { worker: worker_id(1), reason: "scancel".to_owned() });
    let report = |lease| Command::AttemptEnded { lease, end: verdict(true), steps: 1, purses: Vec::new() };
    let refused = Rejection::StaleEpoch { attempt: stale.attempt, epoch: stale.epoch, current: None };
    assert_eq!(bench.try_step(report(stale)), Err(refused.clone()), "while nobody has it");
    bench.connect(2, capacity(4_000, 8_000, 0));
    let current = bench.lease(1, 0);
    assert!(current.epoch > stale.epoch);
    assert_eq!(bench.try_step(report(stale)), Err(refused), "while another worker has it");
    // The right attempt under the wrong epoch, as after a restored backup.
    let forged = LeaseRef { attempt: current.attempt, epoch: stale.epoch };
    let refused = Rejection::StaleEpoch { attempt: forged.attempt, epoch: forged.epoch, current: Some(current.epoch) };
    assert_eq!(bench.try_step(report(forged)), Err(refused));
    assert_eq!(bench.settlement(1, 0), None);
    bench.end(current, verdict(false));
    assert!(bench.try_step(report(stale)).is_err());
    assert_eq!(bench.settlement(1, 0).map(Settlement::kind), Some(SettlementKind::Failed));
    let never = AttemptId { episode: episode(1, 0), number: 9 };
    let unknown = LeaseRef { attempt: never, epoch: Epoch(99) };
    assert_eq!(bench.try_step(report(unknown)), Err(Rejection::UnknownAttempt { attempt: never }));
}

#[test]
fn faults_are_tried_again_after_a_wait_and_only_as_often_as_the_policy_says() {
    let mut bench = started();
    bench.end(bench.lease(1, 0), fault(FaultClass::SetupHook));
    let until = bench.now.plus(Millis(8_000));
    assert_eq!(bench.engine.why_waiting(episode(1, 0)), Some(WaitReason::Backoff { until }));
    bench.pass_with(7_999, &[1]);
    assert!(!bench.is_active(1, 0));
    bench.pass_with(1, &[1]);
    let second = bench.lease(1, 0);
    assert_eq!(second.attempt.number, 2);
    bench.end(second, fault(FaultClass::SetupHook));
    assert_eq!(bench.faulted(1, 0).class, FaultClass::SetupHook);
}

#[test]
fn waits_double_and_stop_at_the_longest() {
    let mut bench = Bench::new();
    let mut plan = small(1);
    plan.retry.max_attempts = 7;
    bench.submit(1, plan);
    bench.connect(1, capacity(4_000, 8_000, 0));
    let mut waits = Vec::new();
    for _ in 0..6 {
        bench.end(bench.lease(1, 0), fault(FaultClass::Display));
        let EpisodeState::Queued { delay, .. } = bench.engine.episode(episode(1, 0)).expect("it is there").state else {
            panic!("it waits");
        };
        waits.push(delay.0);
        bench.pass_with(delay.0, &[1]);
    }
    assert_eq!(waits, [8_000, 16_000, 32_000, 60_000, 60_000, 60_000]);
}

#[test]
fn preemption_uses_up_no_attempt_and_waits_for_nothing() {
    let mut bench = started();
    for _ in 0..10 {
        bench.end(bench.lease(1, 0), fault(FaultClass::Preempted));
    }
    assert_eq!(bench.lease(1, 0).attempt.number, 11);
    bench.end(bench.lease(1, 0), verdict(true));
    assert_eq!(bench.settlement(1, 0).map(Settlement::kind), Some(SettlementKind::Passed));
}

#[test]
fn a_lost_worker_uses_up_no_attempt_but_the_third_one_sets_the_episode_aside_by_name() {
    let mut bench = Bench::new();
    let mut plan = small(1);
    plan.retry.max_attempts = 1;
    bench.submit(1, plan);
    for worker in 1..=3 {
        bench.connect(worker, capacity(4_000, 8_000, 0));
        assert!(bench.is_active(1, 0), "worker {worker} gets it");
        bench.disconnect(worker);
        bench.pass(TTL + SKEW);
    }
    let fault = bench.faulted(1, 0);
    assert_eq!(fault.class, FaultClass::WorkerLost);
    for worker in 1..=3 {
        assert!(fault.message.contains(&format!("node{worker}")), "{}", fault.message);
        assert!(fault.message.contains(&worker_id(worker).to_string()), "{}", fault.message);
    }
}

#[test]
fn a_cancel_that_nobody_asked_for_is_a_fault_and_bounded() {
    let mut bench = started();
    bench.end(bench.lease(1, 0), AttemptEnd::Cancelled);
    assert_eq!(bench.settlement(1, 0), None);
    bench.pass_with(8_000, &[1]);
    bench.end(bench.lease(1, 0), AttemptEnd::Cancelled);
    assert!(bench.faulted(1, 0).message.contains("nobody had asked"));
    assert_eq!(bench.engine.summary(run_id(1)).expect("it is there").counts.faulted, 1);
}
