//! Walltime: who gets a lease near the end of an allocation, and who does not.

use longhaul_core::outcome::FaultClass;
use longhaul_core::time::Millis;
use longhaul_engine::{Command, Pool};

use crate::bench::{Bench, fault, from, pool, running, settings, small, verdict, worker_id};

/// Two workers in allocations that last so long, in milliseconds.
fn two(short: u64, long: u64) -> Bench {
    let mut bench = Bench::new();
    bench.set_pool(Pool { idle: Millis(9_000_000), ..pool() });
    bench.submit(9, small(8));
    let token = bench.runs_as("1");
    bench.step(Command::CancelRun { run: crate::bench::run_id(9), by: "me".to_owned() });
    let ends = [short, long].map(|left| bench.now.plus(Millis(left)));
    bench.queue(vec![running(&token, "1", 0, 0, ends[0]), running(&token, "1", 1, 0, ends[1])]);
    bench.connect_in(1, from(&token, "1", 0, 0));
    bench.connect_in(2, from(&token, "1", 1, 0));
    bench
}

#[test]
fn a_worker_whose_time_is_nearly_over_gets_nothing_new_and_is_told_what_is_left() {
    let least = settings().min_remaining.0;
    let mut bench = two(least, 3_000_000);
    bench.submit(1, small(1));
    bench.submit(2, small(2));
    assert_eq!(bench.held_by(1).len() + bench.held_by(2).len(), 3);
    assert!(!bench.held_by(1).is_empty());
    let reply = bench.engine.observe_heartbeat(bench.now, worker_id(1), &bench.held_by(1));
    assert_eq!(reply.remaining, Some(Millis(least)));
    bench.pass_with(1, &[1, 2]);
    let before = bench.held_by(1).len();
    bench.submit(3, small(2));
    assert_eq!(bench.held_by(1).len(), before);
}

#[test]
fn an_episode_goes_only_where_there_is_the_time_that_others_of_its_env_took() {
    let mut bench = two(700_000, 3_000_000);
    bench.submit(1, small(1));
    let first = bench.lease(1, 0);
    let worker = bench.engine.holder(first).expect("it is held");
    bench.pass_with(600_000, &[1, 2]);
    assert_eq!(bench.engine.holder(first), Some(worker));
    bench.end(first, verdict(true));
    // The short one has 100 s left, the long one 2,400 s; such an episode takes 600 s.
    bench.submit(2, small(6));
    assert!(bench.held_by(1).is_empty());
    assert_eq!(bench.held_by(2).len(), 4);
}

#[test]
fn an_episode_that_was_cut_off_is_not_started_where_it_would_be_again() {
    let mut bench = two(500_000, 1_500_000);
    bench.submit(1, small(2));
    let on_short = bench.held_by(1)[0];
    bench.pass_with(300_000, &[1, 2]);
    bench.end(on_short, fault(FaultClass::Preempted));
    let again = bench.lease(1, on_short.attempt.episode.index);
    assert_eq!(bench.engine.holder(again), Some(worker_id(2)), "200 s are not enough for what took 300 s");
}

#[test]
fn no_episode_waits_for_more_time_than_any_allocation_has() {
    let mut bench = two(3_600_000, 3_600_000);
    bench.submit(1, small(1));
    let first = bench.lease(1, 0);
    let worker = bench.engine.holder(first).expect("it is held");
    bench.pass_with(3_400_000, &[1, 2]);
    bench.end(first, fault(FaultClass::Preempted));
    assert!(!bench.is_active(1, 0), "{worker} has nothing left");
    // A fresh allocation is asked for, and takes it although it lasts only as long.
    let token = bench.runs_as("2");
    // Its worker takes a while to come up: there is less left than the episode took already.
    bench.pass_with(250_000, &[1, 2]);
    bench.connect_in(7, from(&token, "2", 0, 0));
    assert_eq!(bench.engine.holder(bench.lease(1, 0)), Some(worker_id(7)));
}

#[test]
fn a_worker_that_is_unfit_gets_no_lease_until_it_says_otherwise() {
    let mut bench = two(3_000_000, 3_000_000);
    let full = |worker, reason: Option<&str>| Command::WorkerUnfit { worker, reason: reason.map(str::to_owned) };
    assert_eq!(bench.step(full(worker_id(1), Some("disk is full"))).len(), 1);
    assert!(bench.step(full(worker_id(1), Some("disk is full"))).is_empty(), "no news is not stored");
    bench.submit(1, small(4));
    assert_eq!((bench.held_by(1).len(), bench.held_by(2).len()), (0, 4));
    bench.submit(2, small(1));
    assert!(bench.held_by(1).is_empty());
    bench.step(full(worker_id(1), None));
    assert_eq!(bench.held_by(1).len(), 1);
}
