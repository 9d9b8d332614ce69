//! Allocations: how many are asked for, that nothing is submitted twice, and what is true
//! of them when the witnesses disagree.

use longhaul_core::outcome::FaultClass;
use longhaul_core::time::{Millis, Timestamp};
use longhaul_engine::allocation::AllocationState;
use longhaul_engine::{
    AllocationId, Command, Effect, Engine, Event, Hold, JobEnd, JobId, JobPhase, PartitionOffer, Pool, PoolProblem,
    Rejection, Snapshot, Token,
};

use crate::bench::{
    Bench, SKEW, TTL, capacity, episode, from, pool, pool_id, run_id, running, seen, settings, small, worker_id,
};

/// The pool, with `count` small episodes waiting.
fn waiting(pool: Pool, count: usize) -> (Bench, Vec<Event>) {
    let mut bench = Bench::new();
    bench.set_pool(pool);
    let events = bench.submit(1, small(count));
    (bench, events)
}

fn holds(bench: &Bench) -> Vec<Hold> {
    bench.engine.plan(bench.now).remove(0).holds
}

fn pending() -> JobPhase {
    JobPhase::Pending { reason: "Priority".to_owned() }
}

fn state(bench: &Bench, token: &Token, task: u32) -> AllocationState {
    let id = AllocationId { token: token.clone(), task };
    bench.engine.state().allocation(&id).expect("it is known").1.state.clone()
}

fn cancelled(bench: &Bench, events: &[Event]) -> Vec<(JobId, Vec<u32>)> {
    let orders = bench.orders(events).into_iter();
    let cancelled = orders.filter_map(|effect| match effect {
        Effect::CancelAllocations { job, tasks, .. } => Some((job, tasks)),
        _ => None,
    });
    cancelled.collect()
}

#[test]
fn as_many_workers_are_asked_for_as_what_waits_would_fill_in_one_submission() {
    let (bench, events) = waiting(pool(), 9);
    assert_eq!(bench.asked(&events), [(Token("longhaul.me.0000000000000001".to_owned()), 3)], "four on each");
    let submitted = bench.orders(&events).into_iter().next_back();
    assert!(matches!(submitted, Some(Effect::SubmitAllocations { walltime: Millis(3_600_000), .. })));
}

#[test]
fn room_that_is_there_or_on_its_way_is_not_asked_for_again() {
    let mut bench = Bench::new();
    bench.set_pool(pool());
    bench.connect(9, capacity(4_000, 8_000, 0));
    let events = bench.submit(1, small(8));
    assert_eq!(bench.asked(&events)[0].1, 1, "half of it runs already");
    let token = bench.runs_as("7");
    let events = bench.submit(2, small(3));
    assert_eq!(bench.asked(&events).iter().map(|(_, count)| count).sum::<u32>(), 1, "beyond the worker that starts");
    bench.connect_in(1, from(&token, "7", 0, 0));
    assert_eq!(bench.held_by(1).len(), 4);
}

#[test]
fn limits_bound_what_is_asked_for_and_are_named() {
    let limited = |change: fn(&mut Pool)| {
        let mut pool = pool();
        change(&mut pool);
        let (bench, events) = waiting(pool, 40);
        (bench.asked(&events).iter().map(|(_, count)| *count).sum::<u32>(), holds(&bench))
    };
    let (count, why) = limited(|pool| pool.max_workers = 4);
    assert!(count == 4 && why.contains(&Hold::MaxWorkers { limit: 4, live: 4 }), "{count}, {why:?}");
    let (count, why) = limited(|pool| pool.max_queued = 2);
    assert!(count == 2 && why.contains(&Hold::MaxQueued { limit: 2, queued: 2 }), "{count}, {why:?}");
    let most = Millis(3 * 3_600_000 + 1);
    let (count, why) = limited(|pool| pool.max_node_time = Some(Millis(3 * 3_600_000 + 1)));
    let committed = Millis(3 * 3_600_000);
    assert!(count == 3 && why.contains(&Hold::NodeTime { limit: most, committed }), "{count}, {why:?}");
    let (count, _) = limited(|pool| pool.array = false);
    assert_eq!(count, 1, "one job at a time, where they are single ones");
}

#[test]
fn what_the_partition_has_bounds_what_is_asked_for() {
    let mut bench = Bench::new();
    bench.set_pool(pool());
    let offer = PartitionOffer { max_walltime: Some(Millis(600_000)), max_workers: Some(2), max_array: Some(1) };
    bench.step(Command::PartitionSeen { pool: pool_id(), offer });
    let events = bench.submit(1, small(40));
    assert!(matches!(
        bench.orders(&events).last(),
        Some(Effect::SubmitAllocations { count: 1, walltime: Millis(600_000), .. })
    ));
    bench.runs_as("1");
    let events = bench.step(Command::Tick);
    assert!(events.is_empty(), "the second one was asked for when the first was accepted");
    assert_eq!(bench.engine.plan(bench.now)[0].live, 2);
    assert!(holds(&bench).iter().any(|hold| matches!(hold, Hold::Partition { workers: 2, .. })));
}

#[test]
fn a_pool_that_could_never_be_of_use_is_refused() {
    let mut bench = Bench::new();
    let least = bench.engine.settings().min_remaining;
    let walltime = Millis(60_000);
    let problem = PoolProblem::TooShort { walltime, least };
    let refused = bench.try_step(Command::SetPool { pool: Pool { walltime, ..pool() } });
    assert_eq!(refused, Err(Rejection::BadPool { pool: pool_id(), problem }));
    let refused = bench.try_step(Command::SetPool { pool: Pool { max_workers: 0, ..pool() } });
    assert!(matches!(refused, Err(Rejection::BadPool { problem: PoolProblem::NoWorkers, .. })));
    let unknown = bench.try_step(Command::ResumePool { pool: pool_id() });
    assert_eq!(unknown, Err(Rejection::UnknownPool { pool: pool_id() }));
}

#[test]
fn nothing_is_asked_for_while_the_queue_is_not_seen() {
    let mut bench = Bench::new();
    bench.step(Command::SetPool { pool: pool() });
    let events = bench.submit(1, small(4));
    assert!(bench.asked(&events).is_empty());
    assert_eq!(holds(&bench), [Hold::QueueUnknown]);
    bench.step(Command::QueueUnreachable { reason: "connect failure".to_owned() });
    assert!(matches!(&holds(&bench)[..], [Hold::QueueUnreachable { .. }]));
    let events = bench.queue(Vec::new());
    assert_eq!(bench.asked(&events).len(), 1);
}

#[test]
fn a_submission_of_unknown_fate_is_looked_for_and_asked_again_only_when_it_is_not_found() {
    let (mut bench, events) = waiting(pool(), 1);
    let token = bench.asked(&events).remove(0).0;
    let earlier = bench.engine.queue_mark();
    let events = bench.step(Command::SubmissionUnknown { token: token.clone(), reason: "timed out".to_owned() });
    assert_eq!(bench.orders(&events), [Effect::FindAllocations { pool: pool_id(), token: token.clone() }]);
    assert!(bench.queue(Vec::new()).is_empty(), "the controller may still be busy with it");
    bench.pass(settings().doubt_grace.0);
    let late = |mark, asked_at| Command::QueueSeen { mark, asked_at, jobs: Vec::new() };
    let events = bench.step(late(earlier, bench.now));
    assert!(events.is_empty(), "that answer was asked for before");
    let events = bench.step(late(bench.engine.queue_mark(), Timestamp(bench.now.0 - 1)));
    assert!(events.is_empty(), "that one too early to tell, and was only long on its way");
    let events = bench.queue(Vec::new());
    assert_eq!(bench.asked(&events), [(token.clone(), 1)], "under the same token");
    bench.step(Command::SubmissionUnknown { token: token.clone(), reason: "timed out".to_owned() });
    let events = bench.queue(vec![seen(&token, "5", 0, 0, pending())]);
    assert!(bench.asked(&events).is_empty());
    bench.pass(settings().doubt_grace.0);
    let events = bench.queue(vec![seen(&token, "5", 0, 0, pending())]);
    assert!(events.is_empty(), "it is there: {events:?}");
    assert!(matches!(state(&bench, &token, 0), AllocationState::Queued { .. }));
}

#[test]
fn after_a_restart_nothing_is_submitted_before_it_was_looked_for() {
    let (mut bench, events) = waiting(pool(), 1);
    let token = bench.asked(&events).remove(0).0;
    let stored = serde_json::to_string(&bench.engine.snapshot()).expect("a snapshot is JSON");
    let snapshot: Snapshot = serde_json::from_str(&stored).expect("a snapshot reads back");
    bench.engine = Engine::from_snapshot(settings(), snapshot).expect("the format is known");
    let find = Effect::FindAllocations { pool: pool_id(), token: token.clone() };
    assert_eq!(bench.engine.resume(), std::slice::from_ref(&find));
    let events = bench.step(Command::CoordinatorRestarted);
    assert_eq!(bench.orders(&events), [find]);
    bench.step(Command::SetPool { pool: pool() });
    let events = bench.queue(vec![seen(&token, "3", 0, 0, pending())]);
    assert!(bench.asked(&events).is_empty());
    assert_eq!(bench.engine.state().submissions[&token].job(), Some(&JobId("3".to_owned())));
}

#[test]
fn after_a_restart_a_submission_that_is_not_found_is_made_under_its_old_token() {
    let (mut bench, events) = waiting(pool(), 1);
    let asked = bench.asked(&events);
    bench.step(Command::CoordinatorRestarted);
    bench.queue(Vec::new());
    bench.pass(settings().doubt_grace.0);
    let events = bench.queue(Vec::new());
    assert_eq!(bench.asked(&events), asked);
}

#[test]
fn a_submission_that_is_not_wanted_any_more_is_dropped_and_known_if_it_turns_up() {
    let (mut bench, events) = waiting(pool(), 1);
    let token = bench.asked(&events).remove(0).0;
    bench.step(Command::SubmissionUnknown { token: token.clone(), reason: "timed out".to_owned() });
    bench.step(Command::CancelRun { run: run_id(1), by: "me".to_owned() });
    bench.pass(settings().doubt_grace.0);
    let events = bench.queue(Vec::new());
    assert!(matches!(&events[..], [Event::SubmissionDropped { .. }]), "{events:?}");
    let events = bench.queue(vec![seen(&token, "4", 0, 0, pending())]);
    assert_eq!(cancelled(&bench, &events), [(JobId("4".to_owned()), vec![0])], "nothing waits for it");
}

#[test]
fn an_id_that_is_handed_out_twice_is_told_apart_by_the_token() {
    let (mut bench, _) = waiting(pool(), 1);
    let token = bench.runs_as("2");
    let other = Token("longhaul.other.0000000000000009".to_owned());
    bench.queue(vec![seen(&other, "2", 0, 0, JobPhase::Ended(JobEnd::Failed))]);
    assert!(matches!(state(&bench, &token, 0), AllocationState::Running { .. }), "that is another job");
    // Two jobs with one token: the first known one is kept.
    let until = bench.now.plus(Millis(3_600_000));
    let both = vec![running(&token, "2", 0, 0, until), running(&token, "3", 0, 0, until)];
    let events = bench.queue(both);
    assert_eq!(cancelled(&bench, &events), [(JobId("3".to_owned()), vec![])]);
    bench.connect_in(3, from(&token, "3", 0, 0));
    assert!(!bench.is_active(1, 0), "the other one's worker gets nothing");
    bench.connect_in(2, from(&token, "2", 0, 0));
    assert!(bench.is_active(1, 0));
}

#[test]
fn refusals_that_may_heal_wait_longer_each_time_and_pause_nothing() {
    let (mut bench, events) = waiting(pool(), 1);
    let mut token = bench.asked(&events).remove(0).0;
    let mut waits = Vec::new();
    for _ in 0..8 {
        let reason = "RPC limit".to_owned();
        let events = bench.step(Command::SubmissionRefused { token: token.clone(), reason, transient: true });
        let Some(Event::SubmissionRefused { delay, .. }) = events.first() else { panic!("{events:?}") };
        waits.push(delay.0 / 1000);
        let early = bench.pass(delay.0 - 1);
        assert!(bench.asked(&early).is_empty());
        let again = bench.pass(1);
        let next = bench.asked(&again).remove(0).0;
        assert_ne!(next, token, "no job came of the first");
        token = next;
    }
    assert_eq!(waits, [15, 30, 60, 120, 240, 480, 900, 900]);
    bench.step(Command::SubmissionAccepted { token, job: JobId("1".to_owned()) });
    assert_eq!(bench.engine.state().pools[&pool_id()].refusals, 0);
}

#[test]
fn a_pool_that_fails_again_and_again_is_paused_says_why_and_is_resumed_by_a_person() {
    let (mut bench, events) = waiting(pool(), 1);
    let mut token = bench.asked(&events).remove(0).0;
    for last in [false, false, true] {
        let reason = "invalid account".to_owned();
        bench.step(Command::SubmissionRefused { token: token.clone(), reason, transient: false });
        let again = bench.pass(1_000_000);
        let again = bench.asked(&again);
        assert_eq!(again.is_empty(), last);
        token = again.into_iter().next().map_or(token, |(token, _)| token);
    }
    let why = bench.engine.why(bench.now, &pool_id()).expect("it is there");
    let reason = why.plan.holds[0].to_string();
    assert!(reason.contains("paused") && reason.contains("invalid account"), "{reason}");
    let events = bench.step(Command::ResumePool { pool: pool_id() });
    assert_eq!(bench.asked(&events).len(), 1);
}

#[test]
fn an_allocation_whose_worker_was_told_to_take_nothing_new_says_why() {
    let (mut bench, _) = waiting(pool(), 4);
    let token = bench.runs_as("1");
    bench.connect_in(1, from(&token, "1", 0, 0));
    let reason = |bench: &Bench| bench.engine.why(bench.now, &pool_id()).expect("it is there").allocations[0].reason();
    assert_eq!(reason(&bench), "it runs");
    let drained = "the node n1 was drained: a new disk".to_owned();
    bench.step(Command::DrainWorker { worker: worker_id(1), reason: drained });
    assert_eq!(reason(&bench), "it runs, and its worker takes no episodes: the node n1 was drained: a new disk");
}

#[test]
fn workers_that_die_before_they_say_hello_pause_their_pool() {
    let (mut bench, _) = waiting(pool(), 12);
    let token = bench.runs_as("1");
    bench.connect_in(1, from(&token, "1", 0, 0));
    let ended = |task, end| seen(&token, "1", task, 0, JobPhase::Ended(end));
    bench.queue(vec![ended(1, JobEnd::NodeFailed), ended(2, JobEnd::Failed), ended(0, JobEnd::Failed)]);
    let record = |bench: &Bench| bench.engine.state().pools[&pool_id()].clone();
    assert_eq!((record(&bench).failures, record(&bench).paused), (1, None), "one of the three is its own fault");
    bench.pass(15_000);
    let token = bench.runs_as("2");
    let all = bench.engine.state().submissions[&token].count;
    let ended = (0..all).map(|task| seen(&token, "2", task, 0, JobPhase::Ended(JobEnd::Failed)));
    bench.queue(ended.collect());
    assert!(record(&bench).paused.is_some_and(|paused| paused.reason.contains("before its worker said hello")));
}

#[test]
fn an_allocation_that_the_queue_forgot_lives_as_long_as_its_worker_speaks() {
    let (mut bench, _) = waiting(pool(), 1);
    let token = bench.runs_as("1");
    bench.connect_in(1, from(&token, "1", 0, 0));
    for _ in 0..10 {
        bench.pass_with(20_000, &[1]);
        assert!(bench.queue(Vec::new()).is_empty());
    }
    assert!(bench.is_active(1, 0));
    bench.disconnect(1);
    let events = bench.queue(Vec::new());
    assert!(matches!(&events[..], [Event::AllocationMissing { .. }]));
    bench.pass(settings().vanish_grace.0 - 1);
    bench.queue(Vec::new());
    assert!(matches!(state(&bench, &token, 0), AllocationState::Running { .. }));
    bench.pass(1);
    bench.queue(Vec::new());
    assert!(matches!(state(&bench, &token, 0), AllocationState::Ended { .. }));
}

#[test]
fn while_the_controller_is_away_episodes_go_on_and_nothing_is_concluded() {
    let (mut bench, _) = waiting(pool(), 9);
    let token = bench.runs_as("1");
    bench.connect_in(1, from(&token, "1", 0, 0));
    let held = bench.held_by(1);
    bench.step(Command::QueueUnreachable { reason: "no answer".to_owned() });
    for _ in 0..12 {
        let events = bench.pass_with(20_000, &[1]);
        assert!(bench.asked(&events).is_empty() && cancelled(&bench, &events).is_empty(), "{events:?}");
        bench.step(Command::QueueUnreachable { reason: "no answer".to_owned() });
    }
    assert_eq!(bench.held_by(1), held);
}

#[test]
fn what_only_the_node_can_have_said_frees_its_episodes_at_once() {
    let (mut bench, _) = waiting(pool(), 1);
    let token = bench.runs_as("1");
    bench.connect_in(1, from(&token, "1", 0, 0));
    bench.connect(9, capacity(4_000, 8_000, 0));
    let lease = bench.lease(1, 0);
    let events = bench.queue(vec![seen(&token, "1", 0, 0, JobPhase::Ended(JobEnd::Failed))]);
    assert!(events.iter().any(|event| matches!(event, Event::AttemptLost { lease: lost, .. } if *lost == lease)));
    assert_eq!(bench.engine.holder(bench.lease(1, 0)), Some(worker_id(9)));
}

#[test]
fn an_order_of_the_controller_frees_nothing_before_the_leases_are_over() {
    for end in [JobEnd::Cancelled, JobEnd::TimedOut, JobEnd::Preempted, JobEnd::NodeFailed] {
        let (mut bench, _) = waiting(pool(), 1);
        let token = bench.runs_as("1");
        bench.connect_in(1, from(&token, "1", 0, 0));
        bench.connect(9, capacity(4_000, 8_000, 0));
        let lease = bench.lease(1, 0);
        bench.queue(vec![seen(&token, "1", 0, 0, JobPhase::Ended(end))]);
        bench.pass_with(TTL + SKEW - 1, &[9]);
        assert_eq!(bench.engine.holder(lease), Some(worker_id(1)), "a node that is cut off acts on: {end:?}");
        let events = bench.pass_with(1, &[9]);
        let lost = events.iter().find_map(|event| match event {
            Event::AttemptLost { fault, .. } => Some(fault.clone()),
            _ => None,
        });
        let class = if end == JobEnd::NodeFailed { FaultClass::WorkerLost } else { FaultClass::Preempted };
        let lost = lost.expect("the lease is over");
        assert_eq!(lost.class, class);
        assert!(lost.message.contains(&end.to_string()), "{}", lost.message);
    }
}

#[test]
fn losses_that_slurm_explains_set_no_episode_aside() {
    let (mut bench, _) = waiting(pool(), 1);
    let token = bench.runs_as("1");
    let until = bench.now.plus(Millis(3_600_000));
    for restarts in 0..6 {
        bench.queue(vec![running(&token, "1", 0, restarts, until)]);
        bench.connect_in(10 + restarts, from(&token, "1", 0, restarts));
        assert!(bench.is_active(1, 0), "incarnation {restarts} gets it");
        bench.disconnect(10 + restarts);
        bench.pass(TTL + SKEW);
    }
    assert_eq!(bench.settlement(1, 0), None, "each loss is explained afterwards, by the next start");
}

#[test]
fn an_earlier_incarnation_keeps_its_leases_and_gets_no_new_ones() {
    let (mut bench, _) = waiting(pool(), 1);
    let token = bench.runs_as("1");
    bench.connect_in(1, from(&token, "1", 0, 0));
    let lease = bench.lease(1, 0);
    let until = bench.now.plus(Millis(3_600_000));
    bench.queue(vec![seen(&token, "1", 0, 1, pending())]);
    bench.submit(2, small(1));
    assert!(!bench.is_active(2, 0), "its allocation is in the queue again");
    bench.queue(vec![running(&token, "1", 0, 1, until)]);
    bench.connect_in(2, from(&token, "1", 0, 1));
    assert_eq!(bench.engine.holder(lease), Some(worker_id(1)));
    assert_eq!(bench.engine.holder(bench.lease(2, 0)), Some(worker_id(2)));
    bench.connect_in(1, from(&token, "1", 0, 0));
    bench.submit(3, small(9));
    assert_eq!(bench.held_by(1), [lease], "back from being cut off, and still not the one that counts");
}

#[test]
fn idle_workers_and_allocations_without_a_purpose_are_ended() {
    let (mut bench, _) = waiting(pool(), 8);
    let token = bench.runs_as("1");
    let until = bench.now.plus(Millis(3_600_000));
    bench.queue(vec![running(&token, "1", 0, 0, until), seen(&token, "1", 1, 0, pending())]);
    bench.connect_in(1, from(&token, "1", 0, 0));
    assert_eq!(bench.held_by(1).len(), 4);
    let events = bench.step(Command::CancelRun { run: run_id(1), by: "me".to_owned() });
    let (state, one) = (bench.engine.state(), JobId("1".to_owned()));
    assert_eq!(state.submissions[&token].count, 2);
    // The second one was running for a moment in the eyes of the queue, and is not told apart.
    assert!(cancelled(&bench, &events).iter().all(|(job, _)| *job == one));
    for lease in bench.held_by(1) {
        bench.end(lease, longhaul_core::outcome::AttemptEnd::Cancelled);
    }
    let events = bench.pass_with(59_000, &[1]);
    assert!(cancelled(&bench, &events).is_empty(), "{events:?}");
    let events = bench.pass_with(2_000, &[1]);
    assert_eq!(cancelled(&bench, &events), [(one, vec![0])]);
    assert!(bench.engine.why_waiting(episode(1, 0)).is_none());
}

#[test]
fn an_allocation_without_a_word_from_its_worker_is_ended() {
    let (mut bench, _) = waiting(pool(), 1);
    bench.runs_as("1");
    bench.pass(settings().hello_limit.0 - 1);
    let events = bench.pass(1);
    assert_eq!(cancelled(&bench, &events), [(JobId("1".to_owned()), vec![0])]);
    assert_eq!(bench.engine.state().pools[&pool_id()].failures, 1);
}

#[test]
fn a_worker_that_is_lost_is_replaced_long_before_slurm_notices_it() {
    let (mut bench, _) = waiting(pool(), 1);
    let token = bench.runs_as("1");
    let until = bench.now.plus(Millis(3_600_000));
    bench.connect_in(1, from(&token, "1", 0, 0));
    assert_eq!(bench.held_by(1).len(), 1);
    let mut asked = Vec::new();
    for _ in 0..20 {
        let events = bench.pass(10_000);
        asked.extend(bench.asked(&events));
        let events = bench.queue(vec![running(&token, "1", 0, 0, until)]);
        asked.extend(bench.asked(&events));
    }
    assert_eq!(asked.len(), 1, "its job is said to run all the while: {asked:?}");
}

#[test]
fn an_order_to_end_an_allocation_is_given_again_while_it_is_still_there() {
    let (mut bench, _) = waiting(pool(), 1);
    let token = bench.runs_as("1");
    let until = bench.now.plus(Millis(3_600_000));
    bench.pass(settings().hello_limit.0);
    assert!(bench.queue(vec![running(&token, "1", 0, 0, until)]).is_empty());
    bench.pass(settings().cancel_again.0);
    let events = bench.queue(vec![running(&token, "1", 0, 0, until)]);
    assert_eq!(cancelled(&bench, &events), [(JobId("1".to_owned()), vec![0])]);
}

#[test]
fn what_is_over_for_long_is_forgotten_and_its_node_time_is_not() {
    let (mut bench, _) = waiting(pool(), 1);
    let token = bench.runs_as("1");
    bench.pass(100_000);
    bench.queue(vec![seen(&token, "1", 0, 0, JobPhase::Ended(JobEnd::Cancelled))]);
    bench.step(Command::CancelRun { run: run_id(1), by: "me".to_owned() });
    bench.pass(settings().remember.0);
    assert!(!bench.engine.state().submissions.contains_key(&token));
    assert_eq!(bench.engine.state().pools[&pool_id()].used, Millis(100_000));
    bench.step(Command::RemovePool { pool: pool_id() });
    bench.pass(2 * settings().remember.0);
    assert!(bench.engine.state().pools.is_empty());
}

#[test]
fn what_an_earlier_coordinator_asked_for_is_no_failure_of_the_pool_and_a_changed_pool_starts_afresh() {
    let (mut bench, _) = waiting(pool(), 1);
    let token = bench.runs_as("1");
    // The next coordinator has tokens of its own.
    let again = Pool { token_prefix: "zy".to_owned(), ..pool() };
    bench.step(Command::SetPool { pool: again.clone() });
    bench.queue(vec![seen(&token, "1", 0, 0, JobPhase::Ended(JobEnd::Cancelled))]);
    assert_eq!(bench.engine.state().pools[&pool_id()].failures, 0);

    // Its own count; and what made them fail may be what a person changed.
    let token = bench.runs_as("2");
    bench.queue(vec![seen(&token, "2", 0, 0, JobPhase::Ended(JobEnd::Cancelled))]);
    assert_eq!(bench.engine.state().pools[&pool_id()].failures, 1);
    bench.step(Command::SetPool { pool: Pool { token_prefix: "zz".to_owned(), ..again.clone() } });
    assert_eq!(bench.engine.state().pools[&pool_id()].failures, 1);
    bench.step(Command::SetPool { pool: Pool { max_workers: again.max_workers + 1, ..again } });
    let record = &bench.engine.state().pools[&pool_id()];
    assert_eq!((record.failures, &record.wait), (0, &None));
}
