//! Runs: submitted, cancelled, settled, forgotten, and stored.

use longhaul_core::digest::Digest;
use longhaul_core::outcome::{AttemptEnd, FaultClass, Settlement, SettlementKind};
use longhaul_engine::state::RunTerms;
use longhaul_engine::{
    Command, Effect, Engine, Event, Notice, PlanProblem, Rejection, RevokeReason, Snapshot, SnapshotError,
};

use crate::bench::{Bench, capacity, env, fault, plan, run_id, settings, small, verdict, worker_id};

fn kind(bench: &Bench, index: u32) -> Option<SettlementKind> {
    bench.settlement(1, index).map(Settlement::kind)
}

fn cancel(bench: &mut Bench) -> Vec<Event> {
    bench.step(Command::CancelRun { run: run_id(1), by: "me".to_owned() })
}

#[test]
fn the_same_run_twice_is_one_run_and_another_plan_under_its_id_is_refused() {
    let mut bench = Bench::new();
    bench.submit(1, small(2));
    assert!(bench.submit(1, small(2)).is_empty());
    let other =
        Command::SubmitRun { run: run_id(1), plan: small(3), digest: Digest::of(b"other"), terms: RunTerms::default() };
    assert!(matches!(bench.try_step(other), Err(Rejection::RunIdTaken { .. })));
    assert_eq!(bench.engine.summaries().len(), 1);
}

#[test]
fn a_plan_that_contradicts_itself_is_refused() {
    let mut bench = Bench::new();
    let mut try_plan = |plan| {
        bench.try_step(Command::SubmitRun {
            run: run_id(1),
            plan,
            digest: Digest::of(b"plan"),
            terms: RunTerms::default(),
        })
    };
    let problem = |problem| Err(Rejection::BadPlan { run: run_id(1), problem });
    assert_eq!(try_plan(small(0)), problem(PlanProblem::NoEpisodes));
    let no_env = plan(vec![env("calc", 1, 1)], &[0, 1]);
    assert_eq!(try_plan(no_env), problem(PlanProblem::NoSuchEnv { episode: 1, env: 1, envs: 1 }));
    let mut no_agent = small(1);
    no_agent.episodes[0].agent = 3;
    assert_eq!(try_plan(no_agent), problem(PlanProblem::NoSuchAgent { episode: 0, agent: 3, agents: 1 }));
}

#[test]
fn a_cancel_settles_what_waits_and_stops_what_runs() {
    let mut bench = Bench::new();
    bench.submit(1, small(3));
    bench.connect(1, capacity(2_000, 8_000, 0));
    let leases = [bench.lease(1, 0), bench.lease(1, 1)];
    let events = cancel(&mut bench);
    assert_eq!(kind(&bench, 2), Some(SettlementKind::Cancelled));
    let revoked: Vec<_> = bench
        .orders(&events)
        .into_iter()
        .filter_map(|effect| match effect {
            Effect::SendRevoke { lease, reason: RevokeReason::Cancelled, .. } => Some(lease),
            _ => None,
        })
        .collect();
    assert_eq!(revoked, leases);
    assert!(cancel(&mut bench).is_empty(), "once is enough");
    bench.end(leases[0], AttemptEnd::Cancelled);
    assert_eq!(kind(&bench, 0), Some(SettlementKind::Cancelled));
    assert_eq!(bench.engine.run(run_id(1)).and_then(|run| run.settled_at), None);
    let events = bench.step(Command::WorkerLeaving { worker: worker_id(1), reason: "done".to_owned() });
    assert_eq!(kind(&bench, 1), Some(SettlementKind::Cancelled), "its lease ended");
    assert!(bench.engine.effects(&events).contains(&Effect::Publish(Notice::RunSettled(run_id(1)))));
}

#[test]
fn a_verdict_that_arrives_after_the_cancel_counts_and_a_fault_is_not_tried_again() {
    let mut bench = Bench::new();
    bench.submit(1, small(2));
    bench.connect(1, capacity(2_000, 8_000, 0));
    cancel(&mut bench);
    bench.end(bench.lease(1, 0), verdict(true));
    assert_eq!(kind(&bench, 0), Some(SettlementKind::Passed));
    bench.end(bench.lease(1, 1), fault(FaultClass::Display));
    assert_eq!(kind(&bench, 1), Some(SettlementKind::Cancelled));
}

#[test]
fn a_settled_run_can_be_forgotten_but_not_repeated() {
    let mut bench = Bench::new();
    bench.submit(1, small(1));
    let forget = Command::ForgetRun { run: run_id(1) };
    assert_eq!(bench.try_step(forget.clone()), Err(Rejection::RunNotSettled { run: run_id(1), open: 1 }));
    bench.connect(1, capacity(2_000, 8_000, 0));
    let lease = bench.lease(1, 0);
    bench.end(lease, verdict(true));
    bench.step(forget);
    assert!(bench.engine.run(run_id(1)).is_none());
    assert_eq!(bench.engine.summary(run_id(1)).map(|summary| summary.counts.passed), Some(1));
    assert!(bench.submit(1, small(1)).is_empty(), "a repeated submit is still known");
    let late = Command::AttemptEnded { lease, end: verdict(true), steps: 1, purses: Vec::new() };
    assert!(matches!(bench.try_step(late), Err(Rejection::StaleEpoch { .. })));
}

#[test]
fn what_is_not_there_is_refused_by_name() {
    let mut bench = Bench::new();
    let unknown = Rejection::UnknownRun { run: run_id(5) };
    assert_eq!(bench.try_step(Command::CancelRun { run: run_id(5), by: "me".to_owned() }), Err(unknown.clone()));
    assert_eq!(bench.try_step(Command::ForgetRun { run: run_id(5) }), Err(unknown.clone()));
    assert_eq!(unknown.to_string(), format!("run {} is not known", run_id(5)));
}

#[test]
fn a_snapshot_of_another_format_is_refused() {
    let mut snapshot: Snapshot = Bench::new().engine.snapshot();
    snapshot.format = 99;
    let refused = Engine::from_snapshot(settings(), snapshot).err();
    assert_eq!(refused, Some(SnapshotError::UnknownFormat { found: 99 }));
}

/// Journals outlive programs: what is written here is read by every later version.
#[test]
fn events_are_stored_in_this_form() {
    let mut bench = Bench::new();
    let mut events = bench.submit(1, small(1));
    events.extend(bench.connect(1, capacity(2_000, 8_000, 0)));
    events.extend(bench.end(bench.lease(1, 0), fault(FaultClass::Preempted)));
    let stored: Vec<_> = events.iter().map(|event| serde_json::to_string(event).expect("events are JSON")).collect();
    let run = run_id(1);
    let worker = worker_id(1);
    let expected = [
        format!(
            r#"{{"run_submitted":{{"at":1000000,"run":"{run}","digest":"{}","plan":{}}}}}"#,
            Digest::of(b"plan"),
            serde_json::to_string(&small(1)).expect("plans are JSON"),
        ),
        format!(
            r#"{{"worker_connected":{{"at":1000000,"worker":"{worker}","session":1,"profile":{{"hostname":"node1","slurm_job_id":null,"capacity":{{"cpu_millis":2000,"memory_mib":8000,"gpus":0,"max_slots":0}}}},"live":[]}}}}"#
        ),
        format!(
            r#"{{"lease_granted":{{"at":1000000,"lease":{{"attempt":"{run}/0/1","epoch":1}},"worker":"{worker}","reserved":{{"cpu_millis":1000,"memory_mib":1000,"gpus":0}}}}}}"#
        ),
        format!(
            r#"{{"attempt_ended":{{"at":1000000,"lease":{{"attempt":"{run}/0/1","epoch":1}},"worker":"{worker}","end":{{"fault":{{"class":"preempted","message":"it broke"}}}},"steps":1}}}}"#
        ),
        format!(r#"{{"episode_requeued":{{"at":1000000,"episode":"{run}/0","delay":0}}}}"#),
        format!(
            r#"{{"lease_granted":{{"at":1000000,"lease":{{"attempt":"{run}/0/2","epoch":2}},"worker":"{worker}","reserved":{{"cpu_millis":1000,"memory_mib":1000,"gpus":0}}}}}}"#
        ),
    ];
    assert_eq!(stored, expected);
}
