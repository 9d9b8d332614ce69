//! Workers and their leases: renewal, loss, return, drain, and the coordinator's own absence.

use longhaul_core::ids::Epoch;
use longhaul_core::outcome::{Settlement, SettlementKind};
use longhaul_core::time::Millis;
use longhaul_engine::state::{Readiness, WorkerProfile};
use longhaul_engine::{
    Away, Command, Departure, Effect, Engine, Event, LeaseRef, Rejection, RevokeReason, Snapshot, WaitReason,
};

use crate::bench::{Bench, SKEW, TTL, capacity, episode, run_id, settings, small, verdict, worker_id};

fn started(episodes: usize) -> Bench {
    let mut bench = Bench::new();
    bench.submit(1, small(episodes));
    bench.connect(1, capacity(4_000, 8_000, 0));
    bench
}

fn lost(events: &[Event]) -> Vec<LeaseRef> {
    let lost = events.iter().filter_map(|event| match event {
        Event::AttemptLost { lease, .. } => Some(*lease),
        _ => None,
    });
    lost.collect()
}

#[test]
fn a_lease_runs_out_after_its_time_and_the_skew_and_not_before() {
    let mut bench = started(1);
    let lease = bench.lease(1, 0);
    assert!(lost(&bench.pass(TTL + SKEW - 1)).is_empty());
    assert_eq!(lost(&bench.pass(1)), [lease]);
    assert!(!bench.is_active(1, 0), "the worker is gone, and there is no other");
}

#[test]
fn a_worker_is_not_given_up_before_its_leases_are_over() {
    let mut bench = Bench::new();
    bench.connect(1, capacity(4_000, 8_000, 0));
    bench.pass(TTL / 3);
    bench.submit(1, small(1));
    assert!(bench.is_active(1, 0));
    // The worker has not been heard of since before the lease, which may still reach it.
    assert!(lost(&bench.pass(TTL + SKEW - 1)).is_empty());
    assert_eq!(lost(&bench.pass(1)).len(), 1);
}

#[test]
fn heartbeats_renew_what_they_name_and_are_not_stored() {
    let mut bench = started(2);
    let (kept, dropped) = (bench.lease(1, 0), bench.lease(1, 1));
    let stored = bench.engine.snapshot();
    for _ in 0..20 {
        bench.now = bench.now.plus(Millis(1_900));
        let reply = bench.engine.observe_heartbeat(bench.now, worker_id(1), &[kept]);
        assert_eq!((reply.known, reply.renewed, reply.stale), (true, vec![kept], vec![]));
    }
    assert_eq!(bench.engine.snapshot(), stored);
    assert_eq!(lost(&bench.pass(2_000)), [dropped], "a lease that is not named is not renewed");
    assert_eq!(bench.engine.holder(kept), Some(worker_id(1)));
}

#[test]
fn a_heartbeat_renews_nothing_that_another_worker_or_nobody_holds() {
    let mut bench = started(1);
    bench.connect(2, capacity(4_000, 8_000, 0));
    let lease = bench.lease(1, 0);
    let reply = bench.engine.observe_heartbeat(bench.now, worker_id(2), &[lease]);
    assert_eq!((reply.renewed, reply.stale), (vec![], vec![lease]));
    let old = LeaseRef { epoch: Epoch(lease.epoch.0 + 1), ..lease };
    assert_eq!(bench.engine.observe_heartbeat(bench.now, worker_id(1), &[old]).stale, [old]);
    let stranger = bench.engine.observe_heartbeat(bench.now, worker_id(7), &[lease]);
    assert_eq!((stranger.known, stranger.renewed), (false, vec![]));
}

#[test]
fn the_attempts_of_a_disconnected_worker_live_on_and_are_taken_up_again() {
    let mut bench = started(2);
    let (running, unknown) = (bench.lease(1, 0), bench.lease(1, 1));
    assert_eq!(bench.disconnect(1).len(), 1);
    bench.pass(TTL);
    assert!(bench.is_active(1, 0) && bench.is_active(1, 1));
    let stale = LeaseRef { epoch: Epoch(0), ..running };
    let events = bench.connect_with(1, capacity(4_000, 8_000, 0), vec![running, stale]);
    let orders = bench.orders(&events);
    assert!(matches!(&orders[0], Effect::Welcome { stale: named, .. } if *named == [stale]));
    assert!(
        matches!(&orders[1..], [Effect::SendLease { lease, .. }] if *lease == unknown),
        "it may never have got the lease that it does not name: {orders:?}"
    );
    // What it named is renewed by its hello.
    let events = bench.pass(SKEW);
    assert_eq!(lost(&events), [unknown]);
    assert_eq!(bench.engine.holder(running), Some(worker_id(1)));
}

#[test]
fn a_lost_worker_is_told_that_its_leases_are_stale_when_it_is_back() {
    let mut bench = started(1);
    let lease = bench.lease(1, 0);
    let events = bench.pass(TTL + SKEW);
    assert!(events.iter().any(|event| matches!(event, Event::WorkerGone { departure: Departure::Lost, .. })));
    assert!(bench.orders(&events).contains(&Effect::CloseSession { worker: worker_id(1) }));
    let events = bench.connect_with(1, capacity(4_000, 8_000, 0), vec![lease]);
    assert!(matches!(&bench.orders(&events)[0], Effect::Welcome { stale, .. } if *stale == [lease]));
    assert!(bench.lease(1, 0).epoch > lease.epoch, "it gets the episode anew");
}

#[test]
fn the_end_of_a_replaced_session_does_not_disconnect_the_worker() {
    let mut bench = started(1);
    bench.connect(1, capacity(4_000, 8_000, 0));
    assert!(bench.step(Command::WorkerDisconnected { worker: worker_id(1), session: 1 }).is_empty());
    assert!(bench.engine.workers().all(|worker| worker.connected));
}

#[test]
fn a_worker_that_leaves_gives_its_attempts_to_others_at_once() {
    let mut bench = started(1);
    bench.connect(2, capacity(4_000, 8_000, 0));
    let before = bench.lease(1, 0);
    let events = bench.step(Command::WorkerLeaving { worker: worker_id(1), reason: "preempted".to_owned() });
    assert_eq!(lost(&events), [before]);
    assert_eq!(bench.engine.holder(bench.lease(1, 0)), Some(worker_id(2)));
    assert!(bench.step(Command::WorkerLeaving { worker: worker_id(1), reason: "again".to_owned() }).is_empty());
}

#[test]
fn a_draining_worker_finishes_what_it_has_and_gets_nothing_new() {
    let mut bench = Bench::new();
    bench.submit(1, small(3));
    bench.connect(1, capacity(1_000, 8_000, 0));
    let first = bench.lease(1, 0);
    let events = bench.step(Command::DrainWorker { worker: worker_id(1), reason: "upgrade".to_owned() });
    assert!(matches!(&bench.orders(&events)[..], [Effect::SendDrain { .. }]));
    bench.end(first, verdict(true));
    assert_eq!(bench.settlement(1, 0).map(Settlement::kind), Some(SettlementKind::Passed));
    assert!(!bench.is_active(1, 1));
    let waits = bench.engine.why_waiting(episode(1, 1));
    assert_eq!(waits, Some(WaitReason::NoWorker(Away { draining: 1, ..Away::default() })));
}

#[test]
fn a_silent_worker_gets_nothing_new() {
    let mut bench = Bench::new();
    bench.connect(1, capacity(4_000, 8_000, 0));
    bench.pass(TTL / 2 + 1);
    bench.submit(1, small(1));
    assert!(!bench.is_active(1, 0));
    let waits = bench.engine.why_waiting(episode(1, 0));
    assert_eq!(waits, Some(WaitReason::NoWorker(Away { silent: 1, ..Away::default() })));
    bench.beat(1);
    bench.step(Command::Tick);
    assert!(bench.is_active(1, 0));
}

#[test]
fn a_worker_does_not_come_back_with_other_resources() {
    let mut bench = started(1);
    let profile = WorkerProfile {
        hostname: "node1".to_owned(),
        slurm_job_id: None,
        capacity: capacity(500, 500, 0),
        allocation: None,
    };
    let again = Command::WorkerConnected {
        worker: worker_id(1),
        session: 9,
        profile,
        readiness: Readiness::Fit,
        live: Vec::new(),
    };
    assert_eq!(bench.try_step(again), Err(Rejection::WorkerChanged { worker: worker_id(1) }));
}

#[test]
fn no_lease_runs_out_because_the_coordinator_was_away() {
    let mut bench = started(1);
    let lease = bench.lease(1, 0);
    bench.now = bench.now.plus(Millis(3_600_000));
    assert!(bench.step(Command::Tick).is_empty(), "it did not run for an hour, or its clock was set");
    assert!(lost(&bench.pass(TTL + SKEW - 1)).is_empty());
    assert_eq!(lost(&bench.pass(1)), [lease]);
}

#[test]
fn a_clock_that_is_set_back_delays_nothing_for_long() {
    let mut bench = started(1);
    // What counted from the old readings would not be reached for ten minutes.
    bench.now.0 -= 600_000;
    assert!(bench.step(Command::Tick).is_empty());
    assert_eq!(lost(&bench.pass(TTL + SKEW)).len(), 1);
}

#[test]
fn small_steps_back_of_the_clock_are_no_time() {
    let mut bench = started(1);
    bench.pass(TTL);
    bench.now.0 -= SKEW / 2;
    assert!(bench.step(Command::Tick).is_empty());
    assert!(lost(&bench.pass(SKEW / 2 + SKEW - 1)).is_empty());
    assert_eq!(lost(&bench.pass(1)).len(), 1);
}

#[test]
fn after_a_restart_every_lease_has_its_full_time_again() {
    let mut bench = started(1);
    let lease = bench.lease(1, 0);
    bench.pass(TTL);
    let stored = serde_json::to_string(&bench.engine.snapshot()).expect("a snapshot is JSON");
    let snapshot: Snapshot = serde_json::from_str(&stored).expect("a snapshot reads back");
    bench.engine = Engine::from_snapshot(settings(), snapshot).expect("the format is known");
    bench.now = bench.now.plus(Millis(5_000));
    assert!(matches!(&bench.step(Command::CoordinatorRestarted)[..], [Event::CoordinatorRestarted { .. }]));
    assert!(bench.engine.workers().all(|worker| !worker.connected));
    assert!(lost(&bench.pass(TTL + SKEW - 1)).is_empty());
    assert_eq!(bench.engine.holder(lease), Some(worker_id(1)));
    assert_eq!(lost(&bench.pass(1)), [lease]);
}

#[test]
fn what_is_owed_after_a_replay_is_the_leases_and_the_orders_to_stop() {
    let mut bench = started(2);
    bench.end(bench.lease(1, 0), verdict(true));
    bench.step(Command::CancelRun { run: run_id(1), by: "me".to_owned() });
    let lease = bench.lease(1, 1);
    let owed = bench.engine.resume();
    assert!(matches!(
        &owed[..],
        [
            Effect::SendLease { lease: sent, .. },
            Effect::SendRevoke { lease: revoked, reason: RevokeReason::Cancelled, .. },
        ] if *sent == lease && *revoked == lease
    ));
}

#[test]
fn while_a_worker_is_known_the_engine_wants_to_be_told_the_time() {
    let mut bench = Bench::new();
    assert_eq!(bench.engine.next_deadline(), None);
    bench.connect(1, capacity(4_000, 8_000, 0));
    let deadline = bench.engine.next_deadline().expect("a worker may be lost");
    assert!(deadline.since(bench.now) < Millis(SKEW), "else passing time would look like a clock that was set");
}
