//! Attempts that go on where one was cut off, and runs that go on after anything.

use longhaul_core::call::PurseKind;
use longhaul_core::ids::AttemptId;
use longhaul_core::money::Money;
use longhaul_core::outcome::{AttemptEnd, EndedBy, Fault, FaultClass, Settlement, SettlementKind};
use longhaul_core::purse::PurseState;
use longhaul_core::resume::ResumePolicy;
use longhaul_engine::state::Revived;
use longhaul_engine::{Command, Effect, Event, LeaseRef, Rejection};

use crate::bench::{Bench, capacity, episode, fault, run_id, small, verdict, worker_id};

fn started(resume: ResumePolicy) -> Bench {
    let mut bench = Bench::new();
    let mut plan = small(1);
    plan.retry.resume = resume;
    bench.submit(1, plan);
    bench.connect(1, capacity(4_000, 8_000, 0));
    bench
}

/// Whether the live attempt of the episode is to go on from an earlier one.
fn resumes(bench: &Bench) -> bool {
    let lease = bench.lease(1, 0);
    let held = bench.engine.state().leases().find(|(_, live, _)| *live == lease);
    held.is_some_and(|(_, _, held)| held.resumes)
}

fn ends(bench: &mut Bench, class: FaultClass) {
    let lease = bench.lease(1, 0);
    bench.end(lease, fault(class));
    bench.pass_with(60_000, &[1]);
}

#[test]
fn an_attempt_that_was_cut_off_is_gone_on_with_where_the_run_lets_it() {
    for (policy, expected) in [(ResumePolicy::Auto, true), (ResumePolicy::Replay, true), (ResumePolicy::Restart, false)]
    {
        let mut bench = started(policy);
        assert!(!resumes(&bench), "the first attempt has nothing before it");
        bench.step(Command::WorkerLeaving { worker: worker_id(1), reason: "the end of its time".to_owned() });
        let events = bench.connect(2, capacity(4_000, 8_000, 0));
        assert_eq!(resumes(&bench), expected, "{policy}");
        let sent = bench.engine.effects(&events).into_iter().find_map(|effect| match effect {
            Effect::SendLease { resumes, verifies, .. } => Some((resumes, verifies)),
            _ => None,
        });
        assert_eq!(sent, Some((expected, None)), "its worker is told");
    }
}

#[test]
fn after_two_replays_in_a_row_that_diverged_it_starts_again() {
    let mut bench = started(ResumePolicy::Auto);
    ends(&mut bench, FaultClass::Display);
    for _ in 0..2 {
        assert!(resumes(&bench));
        ends(&mut bench, FaultClass::ReplayDiverged);
    }
    assert!(!resumes(&bench), "it was tried twice");
    let used = bench.engine.episode(episode(1, 0)).expect("it is there").counted_attempts();
    assert_eq!(used, 1, "a replay that diverged uses up no attempt");
    bench.end(bench.lease(1, 0), verdict(true));
    assert_eq!(bench.settlement(1, 0).map(Settlement::kind), Some(SettlementKind::Passed));
}

#[test]
fn a_replay_that_came_through_ends_the_row_of_those_that_diverged() {
    let mut bench = started(ResumePolicy::Auto);
    ends(&mut bench, FaultClass::Display);
    ends(&mut bench, FaultClass::ReplayDiverged);
    let lease = bench.lease(1, 0);
    bench.step(Command::AttemptEnded { lease, end: fault(FaultClass::NodeDisk), steps: 9, purses: Vec::new() });
    bench.pass_with(200_000, &[1]);
    ends(&mut bench, FaultClass::ReplayDiverged);
    assert!(resumes(&bench), "it got there in between");
    ends(&mut bench, FaultClass::ReplayDiverged);
    assert!(!resumes(&bench), "two in a row");
}

#[test]
fn where_it_may_not_start_again_it_is_settled_as_faulted() {
    let mut bench = started(ResumePolicy::Replay);
    ends(&mut bench, FaultClass::Preempted);
    // The worker gave its lease back, and takes no more.
    bench.connect(1, capacity(4_000, 8_000, 0));
    bench.pass_with(1_000, &[1]);
    ends(&mut bench, FaultClass::ReplayDiverged);
    assert!(resumes(&bench));
    ends(&mut bench, FaultClass::ReplayDiverged);
    assert_eq!(bench.faulted(1, 0).class, FaultClass::ReplayDiverged);
}

#[test]
fn an_agent_that_crashes_again_where_it_was_gone_on_with_starts_again() {
    let mut bench = started(ResumePolicy::Auto);
    let mut plan = small(1);
    plan.retry.resume = ResumePolicy::Auto;
    plan.retry.max_attempts = 5;
    bench.submit(2, plan);
    bench.pass_with(1_000, &[1]);
    let crash = |bench: &mut Bench| {
        let lease = bench.lease(2, 0);
        bench.end(lease, fault(FaultClass::AgentCrashed));
        bench.pass_with(120_000, &[1]);
        let lease = bench.lease(2, 0);
        let held = bench.engine.state().leases().find(|(_, live, _)| *live == lease);
        held.is_some_and(|(_, _, held)| held.resumes)
    };
    assert!(crash(&mut bench), "it may have been bad luck");
    assert!(!crash(&mut bench), "what it does again ends the same way");
}

#[test]
fn an_attempt_that_got_further_is_known() {
    let mut bench = started(ResumePolicy::Auto);
    for steps in [5, 5, 9] {
        let lease = bench.lease(1, 0);
        let end = fault(FaultClass::NodeDisk);
        bench.step(Command::AttemptEnded { lease, end, steps, purses: Vec::new() });
        bench.pass_with(200_000, &[1]);
    }
    let past = &bench.engine.episode(episode(1, 0)).expect("it is there").past;
    assert_eq!(past.iter().map(|past| past.gained).collect::<Vec<_>>(), [true, false, true]);
}

#[test]
fn a_lost_attempt_got_as_far_as_its_worker_last_said() {
    let mut bench = started(ResumePolicy::Auto);
    for (worker, steps) in [(1, None), (2, Some(7)), (3, Some(7)), (4, Some(8))] {
        if worker > 1 {
            bench.connect(worker, capacity(4_000, 8_000, 0));
        }
        if let Some(steps) = steps {
            let lease = bench.lease(1, 0);
            bench.engine.observe_steps(lease, steps);
        }
        bench.step(Command::WorkerLeaving { worker: worker_id(worker), reason: "the end of its time".to_owned() });
    }
    let past = &bench.engine.episode(episode(1, 0)).expect("it is there").past;
    assert_eq!(
        past.iter().map(|past| (past.steps, past.gained)).collect::<Vec<_>>(),
        [(0, false), (7, true), (7, false), (8, true)]
    );
}

fn go_on(bench: &mut Bench, kinds: &[SettlementKind], revived: Option<Revived>) -> Result<Vec<Event>, Rejection> {
    let (by, kinds) = ("somebody".to_owned(), kinds.to_vec());
    bench.try_step(Command::ResumeRun { run: run_id(1), by, kinds, revived: revived.map(Box::new) })
}

/// What the store has of the run.
fn stored(bench: &Bench) -> Revived {
    let run = bench.engine.state().runs.get(&run_id(1)).expect("it is there");
    Revived { plan: run.plan.clone(), submitted_at: run.submitted_at, episodes: run.episodes.clone() }
}

#[test]
fn a_cancelled_run_goes_on_with_what_has_no_verdict_also_once_it_was_forgotten() {
    let mut bench = Bench::new();
    let mut plan = small(3);
    plan.retry.resume = ResumePolicy::Auto;
    bench.submit(1, plan);
    bench.connect(1, capacity(2_000, 8_000, 2));
    bench.end(bench.lease(1, 0), verdict(true));
    let live: Vec<LeaseRef> = bench.held_by(1);
    bench.step(Command::CancelRun { run: run_id(1), by: "somebody".to_owned() });
    for lease in live {
        bench.end(lease, AttemptEnd::Cancelled);
    }
    let run = stored(&bench);
    bench.step(Command::ForgetRun { run: run_id(1) });
    assert_eq!(go_on(&mut bench, &[SettlementKind::Cancelled], None), Err(Rejection::NotRevived { run: run_id(1) }));

    let events = go_on(&mut bench, &[SettlementKind::Cancelled], Some(run)).expect("it goes on");
    assert!(matches!(&events[0], Event::RunResumed { episodes, .. } if episodes == &[1, 2]), "{events:?}");
    bench.engine.check_invariants().expect("the invariants hold");
    bench.pass_with(2_000, &[1]);
    assert_eq!(bench.settlement(1, 0).map(Settlement::kind), Some(SettlementKind::Passed), "a verdict stays");
    let again = bench.lease(1, 1);
    assert_eq!(again.attempt, AttemptId { episode: episode(1, 1), number: 2 });
    let held = bench.engine.state().leases().find(|(_, live, _)| *live == again).expect("it is held").2;
    assert!(held.resumes, "what was cancelled goes on where it was");
    assert_eq!(go_on(&mut bench, &[SettlementKind::Cancelled], None), Ok(Vec::new()), "once more changes nothing");
    for index in [1, 2] {
        bench.end(bench.lease(1, index), verdict(false));
    }
    assert!(bench.engine.state().runs[&run_id(1)].settled_at.is_some());
}

#[test]
fn a_run_that_goes_on_at_once_after_a_cancel_has_used_up_no_attempt() {
    let mut bench = Bench::new();
    let mut plan = small(1);
    plan.retry.max_attempts = 1;
    bench.submit(1, plan);
    bench.connect(1, capacity(2_000, 8_000, 1));
    let first = bench.lease(1, 0);
    bench.step(Command::CancelRun { run: run_id(1), by: "somebody".to_owned() });
    // Its worker was told to stop it, and has not yet.
    go_on(&mut bench, &[SettlementKind::Cancelled], None).expect("it goes on");
    bench.end(first, AttemptEnd::Cancelled);
    bench.pass_with(2_000, &[1]);
    assert_eq!(bench.lease(1, 0).attempt.number, 2, "it is stopped, and begun again");
    let used = bench.engine.episode(episode(1, 0)).expect("it is there").counted_attempts();
    assert_eq!(used, 0);
    // What nobody had asked for counts: a worker that stops everything is stopped in the end.
    bench.end(bench.lease(1, 0), AttemptEnd::Cancelled);
    assert_eq!(bench.settlement(1, 0).map(Settlement::kind), Some(SettlementKind::Faulted));
}

#[test]
fn what_was_used_up_before_a_person_asked_again_does_not_count() {
    let mut bench = started(ResumePolicy::Restart);
    for _ in 0..2 {
        ends(&mut bench, FaultClass::Display);
    }
    assert_eq!(bench.faulted(1, 0).class, FaultClass::Display);
    assert_eq!(go_on(&mut bench, &[SettlementKind::Cancelled], None), Ok(Vec::new()), "it was not cancelled");
    go_on(&mut bench, &[SettlementKind::Faulted], None).expect("it goes on");
    bench.pass_with(1_000, &[1]);
    assert_eq!(bench.lease(1, 0).attempt.number, 3);
    ends(&mut bench, FaultClass::Display);
    assert_eq!(bench.settlement(1, 0), None, "it has all of its attempts again");
    let earlier = &bench.engine.episode(episode(1, 0)).expect("it is there").earlier;
    assert_eq!((earlier.len(), earlier[0].attempts, earlier[0].by.as_str()), (1, 2, "somebody"));
}

#[test]
fn what_ran_to_its_end_is_verified_again_and_never_run_again() {
    let mut bench = started(ResumePolicy::Restart);
    let reason = "the verifier crashed".to_owned();
    let unverified =
        AttemptEnd::Unverified { ended_by: EndedBy::Steps, reason, fault: Some(FaultClass::Verifier), parts: None };
    bench.end(bench.lease(1, 0), unverified);
    go_on(&mut bench, &[SettlementKind::Unverified], None).expect("it goes on");
    let events = bench.pass_with(1_000, &[1]);
    let sent = bench.engine.effects(&events).into_iter().find_map(|effect| match effect {
        Effect::SendLease { resumes, verifies, .. } => Some((resumes, verifies)),
        _ => None,
    });
    assert_eq!(sent.or_else(|| Some((resumes(&bench), Some(EndedBy::Steps)))), Some((true, Some(EndedBy::Steps))));
    ends(&mut bench, FaultClass::ReplayDiverged);
    assert!(resumes(&bench), "not even where a run may only start again");
    let lease = bench.lease(1, 0);
    let message = "step 3 came out otherwise".to_owned();
    let diverged = Fault { class: FaultClass::ReplayDiverged, message, log_tail: None };
    bench.end(lease, AttemptEnd::Fault(diverged));
    let Some(Settlement::Unverified { ended_by: EndedBy::Steps, reason, fault: Some(FaultClass::Verifier), .. }) =
        bench.settlement(1, 0)
    else {
        panic!("it is settled as it was: {:?}", bench.settlement(1, 0));
    };
    assert_eq!(
        reason,
        "the verifier crashed; it could not be verified again: replay_diverged: step 3 came out otherwise"
    );
}

#[test]
fn money_of_before_counts_once_when_a_run_goes_on() {
    let mut bench = Bench::new();
    let mut plan = small(2);
    plan.budgets.run = Some(Money::from_nanos(1_000));
    bench.submit(1, plan);
    bench.connect(1, capacity(4_000, 8_000, 0));
    let lease = bench.lease(1, 0);
    let purse = PurseKind::Episode;
    let (wanted, bound) = (Money::from_nanos(300), Money::from_nanos(300));
    bench.step(Command::EscrowRequested { lease, purse, state: PurseState::default(), wanted, bound });
    bench.pass_with(1_000, &[1]);
    let granted = bench.engine.state().purse(lease.attempt, purse).expect("a purse").state.granted;
    assert!(granted >= wanted, "{granted}");
    let settled = Money::from_nanos(300);
    let state = PurseState { granted, settled, returned: granted.saturating_sub(settled), ..PurseState::default() };
    let other = bench.lease(1, 1);
    bench.step(Command::CancelRun { run: run_id(1), by: "somebody".to_owned() });
    let purses = vec![(purse, state)];
    bench.step(Command::AttemptEnded { lease, end: AttemptEnd::Cancelled, steps: 1, purses: purses.clone() });
    bench.end(other, AttemptEnd::Cancelled);
    let run = stored(&bench);
    bench.step(Command::ForgetRun { run: run_id(1) });
    go_on(&mut bench, &[SettlementKind::Cancelled], Some(run)).expect("it goes on");
    let spent = |bench: &Bench| bench.engine.state().ledgers[&run_id(1)].run.settled;
    assert_eq!(spent(&bench), settled, "what was spent is spent");
    // The worker did not hear that its report had arrived.
    bench.step(Command::PursesClosed { lease, purses });
    assert_eq!(spent(&bench), settled, "and counts once");
    bench.engine.check_invariants().expect("the invariants hold");
}
