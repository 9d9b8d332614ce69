//! What befalls an episode without being its own fault uses up no attempt, and is bounded all
//! the same: the end of its allocation, full disks.

use longhaul_core::outcome::{FaultClass, Settlement, SettlementKind};
use longhaul_core::time::Millis;
use longhaul_engine::state::RunTerms;
use longhaul_engine::{Away, Command, Engine, Event, JobEnd, JobPhase, Pool, Token, WaitReason};

use crate::bench::{
    Bench, capacity, episode, fault, from, pool, pool_id, run_id, running, seen, settings, small, verdict, worker_id,
};

const HOUR: u64 = 3_600_000;

/// A worker in a new allocation, which lasts so long; it gets what waits.
fn allocated(bench: &mut Bench, worker: u32, lasts: u64) -> Token {
    let token = bench.runs_as(&worker.to_string());
    let until = bench.now.plus(Millis(lasts));
    bench.queue(vec![running(&token, &worker.to_string(), 0, 0, until)]);
    bench.connect_in(worker, from(&token, &worker.to_string(), 0, 0));
    token
}

/// The allocation of a worker comes to its end in so long: what runs is given back.
fn warned(bench: &mut Bench, worker: u32, token: &Token, after: u64) -> Vec<Event> {
    bench.pass_with(after, &[worker]);
    let events = bench.step(Command::WorkerLeaving { worker: worker_id(worker), reason: "told to stop".to_owned() });
    bench.queue(vec![seen(token, &worker.to_string(), 0, 0, JobPhase::Ended(JobEnd::Completed))]);
    events
}

fn waiting() -> Bench {
    let mut bench = Bench::new();
    bench.set_pool(Pool { idle: Millis(9 * HOUR), ..pool() });
    bench.submit(1, small(1));
    bench
}

#[test]
fn an_episode_that_is_longer_than_every_walltime_is_set_aside_and_named() {
    let mut bench = waiting();
    for worker in 1..=3 {
        assert_eq!(bench.settlement(1, 0), None, "{} cut-offs", worker - 1);
        let token = allocated(&mut bench, worker, HOUR);
        assert!(bench.is_active(1, 0), "worker {worker} gets it");
        let events = warned(&mut bench, worker, &token, HOUR - 60_000);
        let had = events.iter().find_map(|event| match event {
            Event::AttemptLost { cut_off, .. } => Some(*cut_off),
            _ => None,
        });
        assert_eq!(had, Some(Some(Millis(HOUR))), "the journal says that it was cut off, and after how long");
    }
    let fault = bench.faulted(1, 0).clone();
    assert_eq!(fault.class, FaultClass::Preempted);
    for said in ["3 of its attempts were cut off", "longer `time`", "[slurm.pools.NAME]", &Millis(HOUR).to_string()] {
        assert!(fault.message.contains(said), "{}", fault.message);
    }
    let known = bench.engine.episode(episode(1, 0)).expect("it is there");
    assert_eq!((known.counted_attempts(), known.cut_offs(Some(Millis(HOUR)))), (0, 3), "a number of its own");
    // Its run is forgotten, and what was set aside is still named.
    bench.step(Command::ForgetRun { run: run_id(1) });
    let aside = &bench.engine.state().set_aside[..];
    assert_eq!(aside.len(), 1);
    assert_eq!((aside[0].episode, &aside[0].reason), (episode(1, 0), &fault.message));
}

#[test]
fn a_run_says_how_often_its_episodes_may_be_cut_off() {
    for often in [1, 5] {
        let mut bench = Bench::new();
        bench.set_pool(Pool { idle: Millis(9 * HOUR), ..pool() });
        let mut plan = small(1);
        plan.retry.max_cut_offs = often;
        bench.submit(1, plan);
        for worker in 1..=often {
            assert_eq!(bench.settlement(1, 0), None, "{} cut-offs of {often}", worker - 1);
            let token = allocated(&mut bench, worker, HOUR);
            warned(&mut bench, worker, &token, HOUR - 60_000);
        }
        let said = format!("{often} of its attempts were cut off");
        assert!(bench.faulted(1, 0).message.contains(&said), "{}", bench.faulted(1, 0).message);
    }
}

#[test]
fn what_began_late_in_its_allocation_says_nothing_of_how_long_it_takes() {
    let mut bench = waiting();
    let mut passed_over = Vec::new();
    for worker in 1..=6 {
        // Most of its hour is over when it says hello.
        let token = allocated(&mut bench, worker, 600_000);
        if !bench.is_active(1, 0) {
            passed_over.push(worker);
        }
        warned(&mut bench, worker, &token, 550_000);
    }
    assert_eq!(bench.settlement(1, 0), None, "ten minutes of an hour are no proof");
    assert_eq!(passed_over, [2, 3, 4, 5, 6], "after ten minutes it wants twice as much");
    allocated(&mut bench, 7, HOUR);
    bench.end(bench.lease(1, 0), verdict(true));
    assert_eq!(bench.settlement(1, 0).map(Settlement::kind), Some(SettlementKind::Passed));
}

#[test]
fn a_limit_of_the_run_bounds_what_is_wanted_after_a_cut_off() {
    let mut bench = Bench::new();
    bench.set_pool(Pool { idle: Millis(9 * HOUR), ..pool() });
    let terms = RunTerms { limits: vec![Millis(300_000)], ..RunTerms::default() };
    let digest = longhaul_core::digest::Digest::of(b"plan");
    bench.step(Command::SubmitRun { run: run_id(1), plan: small(1), digest, terms });
    let token = allocated(&mut bench, 1, 600_000);
    warned(&mut bench, 1, &token, 550_000);
    allocated(&mut bench, 2, 600_000);
    assert!(bench.is_active(1, 0), "it takes five minutes at most, whatever cut it off");
}

#[test]
fn preemption_in_the_middle_of_an_allocation_is_no_cut_off() {
    let mut bench = waiting();
    for worker in 1..=5 {
        let token = allocated(&mut bench, worker, HOUR);
        assert!(bench.is_active(1, 0), "worker {worker} gets it");
        warned(&mut bench, worker, &token, HOUR / 2);
    }
    assert_eq!(bench.settlement(1, 0), None);
}

#[test]
fn a_worker_that_is_killed_at_its_end_without_a_warning_cuts_its_episodes_off_too() {
    let mut bench = waiting();
    for worker in 1..=3 {
        let token = allocated(&mut bench, worker, HOUR);
        bench.pass_with(HOUR, &[worker]);
        bench.disconnect(worker);
        // The leases run out before the queue says why: that is known at the next end only.
        bench.pass(60_000);
        let ended = JobPhase::Ended(JobEnd::TimedOut);
        bench.queue(vec![seen(&token, &worker.to_string(), 0, 0, ended)]);
    }
    let token = allocated(&mut bench, 4, HOUR);
    warned(&mut bench, 4, &token, HOUR - 60_000);
    assert_eq!(bench.faulted(1, 0).class, FaultClass::Preempted);
}

#[test]
fn a_full_disk_uses_up_no_attempt_and_its_node_is_left_out_for_a_while() {
    let mut bench = Bench::new();
    let mut plan = small(1);
    plan.retry.max_attempts = 1;
    bench.submit(1, plan);
    bench.connect(1, capacity(4_000, 8_000, 0));
    bench.connect(2, capacity(4_000, 8_000, 0));
    let first = bench.lease(1, 0);
    let node = bench.engine.holder(first).expect("it is held");
    bench.end(first, fault(FaultClass::NodeDisk));
    assert_eq!(bench.settlement(1, 0), None);
    let second = bench.lease(1, 0);
    assert_ne!(bench.engine.holder(second), Some(node), "it goes elsewhere, at once");
    bench.end(second, fault(FaultClass::NodeDisk));
    assert!(!bench.is_active(1, 0), "no node is left");
    let waits = bench.engine.why_waiting(episode(1, 0));
    assert_eq!(waits, Some(WaitReason::NoWorker(Away { unfit: 2, ..Away::default() })));
    bench.pass_with(settings().disk_rest.0 - 1, &[1, 2]);
    assert!(!bench.is_active(1, 0));
    bench.pass_with(5_000, &[1, 2]);
    assert!(bench.is_active(1, 0), "somebody may have made room");
    // What is left out is in the journal: a restart does not forget it.
    bench.end(bench.lease(1, 0), fault(FaultClass::NodeDisk));
    bench.end(bench.lease(1, 0), fault(FaultClass::NodeDisk));
    bench.engine = Engine::from_snapshot(settings(), bench.engine.snapshot()).expect("the format is known");
    bench.step(Command::CoordinatorRestarted);
    bench.connect(1, capacity(4_000, 8_000, 0));
    assert!(!bench.is_active(1, 0));
}

#[test]
fn an_episode_for_which_every_disk_is_full_is_set_aside_at_last() {
    let mut bench = Bench::new();
    bench.submit(1, small(1));
    bench.connect(1, capacity(4_000, 8_000, 0));
    for time in 1..=settings().max_full_disks {
        assert!(bench.is_active(1, 0), "attempt {time}");
        bench.end(bench.lease(1, 0), fault(FaultClass::NodeDisk));
        bench.pass_with(settings().disk_rest.0 + 5_000, &[1]);
    }
    let fault = bench.faulted(1, 0).clone();
    assert_eq!(fault.class, FaultClass::NodeDisk);
    assert!(fault.message.contains("on node1") && fault.message.contains("paths.scratch"), "{}", fault.message);
    assert_eq!(bench.engine.state().set_aside.len(), 1);
    assert!(bench.engine.why(bench.now, &pool_id()).is_none());
}
