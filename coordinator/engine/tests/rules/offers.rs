//! What a pool promises and what its workers turn out to be: less than promised, not ready yet,
//! gone and set again.

use longhaul_core::time::Millis;
use longhaul_engine::state::Readiness;
use longhaul_engine::{Command, Event, JobEnd, JobPhase, JobSeen, Pool, Token};

use crate::bench::{Bench, capacity, env, from, plan, pool, pool_id, run_id, running, seen, settings, small};

/// A pool whose one worker has said that it gets itself ready; its submission, its job as it runs for an
/// hour, and what its word led to.
fn preparing(episodes: usize) -> (Bench, Token, JobSeen, Vec<Event>) {
    let mut bench = Bench::new();
    bench.set_pool(pool());
    bench.submit(1, small(episodes));
    let token = bench.runs_as("1");
    let job = running(&token, "1", 0, 0, bench.now.plus(Millis(3_600_000)));
    let readiness = Readiness::Preparing("making the base image".to_owned());
    let events = bench.connect_as(1, from(&token, "1", 0, 0), pool().offer, readiness);
    (bench, token, job, events)
}

/// Why its allocation is ended, if it is.
fn released(bench: &Bench, token: &Token) -> Option<String> {
    let release = bench.engine.state().submissions[token].tasks[&0].release.as_ref();
    release.map(|release| release.reason.clone())
}

#[test]
fn what_fits_only_what_was_promised_is_not_asked_for_again_and_that_is_said() {
    let mut bench = Bench::new();
    bench.set_pool(pool());
    bench.submit(1, plan(vec![env("large", 1_000, 6_000)], &[0, 0]));
    let token = bench.runs_as("1");
    bench.connect_as(1, from(&token, "1", 0, 0), capacity(4_000, 4_000, 0), Readiness::Fit);
    assert!(!bench.is_active(1, 0), "it has 4000 MiB, not 8000");
    let mut asked = Vec::new();
    for _ in 0..40 {
        let events = bench.pass_with(20_000, &[1]);
        asked.extend(bench.asked(&events));
        bench.queue(vec![running(&token, "1", 0, 0, bench.now.plus(Millis(3_600_000)))]);
    }
    assert_eq!(asked, [], "another worker would have as little");
    let why = bench.engine.why(bench.now, &pool_id()).expect("it is there");
    let holds: Vec<String> = why.plan.holds.iter().map(ToString::to_string).collect();
    assert!(holds.iter().any(|hold| hold.contains("4000 MiB") && hold.contains("promises")), "{holds:?}");
    assert_eq!(why.plan.wanted, 0);
    // What fits is asked for by what workers have, not by what was promised.
    let events = bench.submit(2, plan(vec![env("small", 1_000, 3_000)], &[0, 0, 0]));
    assert_eq!(bench.asked(&events).len(), 1);
    let (token, count) = bench.asked(&events).remove(0);
    assert_eq!(count, 3, "one fits beside the other on no worker");
    bench.step(Command::SubmissionRefused { token, reason: "busy".to_owned(), transient: true });
    let plans = bench.engine.plan(bench.now);
    assert_eq!((plans[0].episodes, plans[0].wanted), (3, 3));
    // A pool that is set anew is believed anew.
    bench.step(Command::SetPool { pool: Pool { token_prefix: "zz".to_owned(), ..pool() } });
    assert!(
        bench
            .engine
            .why(bench.now, &pool_id())
            .expect("it is there")
            .plan
            .holds
            .iter()
            .all(|hold| { !hold.to_string().contains("promises") })
    );
}

#[test]
fn a_worker_that_gets_itself_ready_is_neither_silent_nor_idle_nor_replaced() {
    let (mut bench, token, job, events) = preparing(4);
    assert_eq!((bench.asked(&events), bench.held_by(1)), (vec![], vec![]));
    for _ in 0..60 {
        let events = bench.pass_with(20_000, &[1]);
        assert_eq!((bench.asked(&events), bench.orders(&events)), (vec![], vec![]));
        bench.queue(vec![job.clone()]);
    }
    let why = bench.engine.why(bench.now, &pool_id()).expect("it is there");
    assert!(why.allocations[0].reason().contains("making the base image"), "{}", why.allocations[0].reason());
    bench.connect_in(1, from(&token, "1", 0, 0));
    assert_eq!(bench.held_by(1).len(), 4);
}

#[test]
fn a_workers_time_without_work_counts_from_when_it_was_ready() {
    let (mut bench, token, job, _) = preparing(1);
    for _ in 0..10 {
        bench.pass_with(20_000, &[1]);
        bench.queue(vec![job.clone()]);
    }
    // Nothing is left to do when it is ready at last.
    bench.step(Command::CancelRun { run: run_id(1), by: "me".to_owned() });
    bench.connect_in(1, from(&token, "1", 0, 0));
    bench.pass_with(pool().idle.0 - 5_000, &[1]);
    bench.queue(vec![job.clone()]);
    assert_eq!(released(&bench, &token), None);
    bench.pass_with(10_000, &[1]);
    bench.queue(vec![job]);
    assert!(released(&bench, &token).expect("it is ended").contains("nothing to do"));
}

#[test]
fn a_worker_that_is_never_ready_is_ended_and_one_that_dies_of_it_is_a_failure_of_its_pool() {
    let (mut bench, token, job, _) = preparing(1);
    bench.pass_with(settings().prepare_limit.0 - 5_000, &[1]);
    bench.queue(vec![job]);
    assert_eq!(released(&bench, &token), None);
    bench.pass_with(10_000, &[1]);
    let reason = released(&bench, &token).expect("it is ended");
    assert!(reason.contains("making the base image"), "{reason}");

    let (mut bench, token, ..) = preparing(1);
    bench.queue(vec![seen(&token, "1", 0, 0, JobPhase::Ended(JobEnd::Failed))]);
    let record = &bench.engine.state().pools[&pool_id()];
    assert_eq!(record.failures, 1, "a worker that said hello and never took a lease proves nothing");
    let wait = record.wait.clone().expect("it waits");
    assert!(wait.reason.contains("making the base image"), "{}", wait.reason);
}

#[test]
fn the_time_of_nodes_of_a_pool_that_was_forgotten_counts_when_it_is_set_again() {
    let mut bench = Bench::new();
    let bounded = Pool { max_node_time: Some(Millis(4_000_000)), ..pool() };
    bench.set_pool(bounded.clone());
    bench.submit(1, small(1));
    let token = bench.runs_as("1");
    bench.pass(1_000_000);
    bench.queue(vec![seen(&token, "1", 0, 0, JobPhase::Ended(JobEnd::Cancelled))]);
    bench.step(Command::RemovePool { pool: pool_id() });
    bench.pass(2 * settings().remember.0);
    assert!(bench.engine.state().pools.is_empty());
    bench.step(Command::SetPool { pool: bounded });
    let events = bench.queue(Vec::new());
    assert_eq!(bench.engine.state().pools[&pool_id()].used, Millis(1_000_000));
    assert_eq!(bench.asked(&events), [], "3,000 s are left, and it asks for 3,600 s");
    assert!(bench.engine.state().node_time.is_empty());
}
