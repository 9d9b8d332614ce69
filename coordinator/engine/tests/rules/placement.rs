//! Placement: order, room, and why something waits.

use longhaul_core::digest::Digest;
use longhaul_core::plan::LayerKind;
use longhaul_core::time::Millis;
use longhaul_engine::state::LayerInfo;
use longhaul_engine::{Away, Command, Effect, LayerOutcome, WaitReason};

use crate::bench::{Bench, capacity, env, episode, plan, small, verdict, worker_id};

fn active(bench: &Bench, run: u32, count: u32) -> Vec<u32> {
    (0..count).filter(|index| bench.is_active(run, *index)).collect()
}

#[test]
fn episodes_start_in_the_order_of_their_plans_and_runs_take_turns_with_rising_epochs() {
    let mut bench = Bench::new();
    bench.submit(2, small(2));
    bench.submit(1, small(2));
    let events = bench.connect(1, capacity(3_000, 8_000, 0));
    assert_eq!((active(&bench, 2, 2), active(&bench, 1, 2)), (vec![0, 1], vec![0]));
    assert!(bench.lease(2, 0).epoch < bench.lease(2, 1).epoch);
    let sent: Vec<_> = bench
        .orders(&events)
        .into_iter()
        .filter_map(|effect| match effect {
            Effect::SendLease { plan, .. } => Some(plan),
            _ => None,
        })
        .collect();
    let plan_of = |index: u32| Digest::of(&index.to_be_bytes());
    assert_eq!(sent, [plan_of(0), plan_of(0), plan_of(1)], "each lease names its episode's plan");
}

#[test]
fn cpu_memory_and_slots_are_each_a_limit() {
    for (limit, expected) in
        [(capacity(2_000, 8_000, 0), 2), (capacity(8_000, 3_500, 0), 3), (capacity(8_000, 8_000, 1), 1)]
    {
        let mut bench = Bench::new();
        bench.submit(1, small(5));
        bench.connect(1, limit);
        assert_eq!(active(&bench, 1, 5).len(), expected, "{limit:?}");
        assert_eq!(bench.engine.why_waiting(episode(1, 4)), Some(WaitReason::Busy { workers: 1 }));
        bench.end(bench.lease(1, 0), verdict(true));
        assert_eq!(active(&bench, 1, 5).len(), expected, "what is given back is given out again: {limit:?}");
    }
}

#[test]
fn the_worker_with_the_fewest_attempts_comes_first() {
    let mut bench = Bench::new();
    bench.connect(1, capacity(4_000, 8_000, 0));
    bench.connect(2, capacity(4_000, 8_000, 0));
    bench.submit(1, small(4));
    assert_eq!((bench.held_by(1).len(), bench.held_by(2).len()), (2, 2));
}

#[test]
fn an_env_with_more_processors_than_any_worker_gets_one_alone() {
    let mut bench = Bench::new();
    let envs = vec![env("large", 16_000, 1_000), env("calc", 1_000, 1_000)];
    bench.submit(1, plan(envs, &[1, 0, 1]));
    bench.connect(1, capacity(4_000, 8_000, 0));
    assert_eq!(active(&bench, 1, 3), [0, 2], "the worker is not empty");
    bench.end(bench.lease(1, 0), verdict(true));
    assert_eq!(active(&bench, 1, 3), [2]);
    bench.end(bench.lease(1, 2), verdict(true));
    assert_eq!(active(&bench, 1, 3), [1]);
    let reserved: Vec<_> = bench.engine.live_attempts(crate::bench::run_id(1)).map(|live| live.reserved).collect();
    assert_eq!(reserved[0].cpu_millis, 4_000, "all that the worker has");
}

#[test]
fn processors_are_not_cut_while_a_worker_has_enough_of_them() {
    let mut bench = Bench::new();
    bench.connect(1, capacity(4_000, 8_000, 0));
    bench.connect(2, capacity(16_000, 8_000, 0));
    bench.submit(1, plan(vec![env("large", 16_000, 1_000)], &[0, 0]));
    assert_eq!((bench.held_by(1).len(), bench.held_by(2).len()), (0, 1));
    assert_eq!(bench.engine.why_waiting(episode(1, 1)), Some(WaitReason::Busy { workers: 1 }));
}

#[test]
fn memory_is_never_cut_and_the_wait_says_why() {
    let mut bench = Bench::new();
    bench.submit(1, plan(vec![env("huge", 1_000, 64_000)], &[0]));
    assert_eq!(bench.engine.why_waiting(episode(1, 0)), Some(WaitReason::NoWorker(Away::default())));
    bench.connect(1, capacity(4_000, 8_000, 0));
    let reason = bench.engine.why_waiting(episode(1, 0)).expect("it waits");
    assert!(matches!(reason, WaitReason::TooLarge { most_memory_mib: 8_000, .. }));
    assert!(reason.to_string().contains("huge asks for 64000 MiB"), "{reason}");
    bench.connect(2, capacity(4_000, 64_000, 0));
    assert!(bench.is_active(1, 0));
}

#[test]
fn slots_do_not_all_wait_for_one_layer() {
    let mut bench = Bench::new();
    let envs = vec![env("calc", 1_000, 1_000), env("draw", 1_000, 1_000)];
    bench.submit(1, plan(envs, &[0, 0, 0, 1, 1]));
    bench.connect(1, capacity(2_000, 8_000, 0));
    assert_eq!(active(&bench, 1, 5), [0, 3], "one of each env, so that both are built");
    bench.connect(2, capacity(1_000, 8_000, 0));
    assert_eq!(active(&bench, 1, 5), [0, 1, 3], "but no slot stays empty for that");
    bench.end(bench.lease(1, 3), verdict(true));
    assert_eq!(active(&bench, 1, 5), [0, 1, 4], "an env that was ready once is warm");
}

#[test]
fn an_env_whose_configure_layer_is_there_is_warm() {
    let mut bench = Bench::new();
    let envs = vec![env("calc", 1_000, 1_000), env("draw", 1_000, 1_000)];
    bench.submit(1, plan(envs, &[0, 1, 0, 1]));
    bench.connect(1, capacity(2_000, 8_000, 0));
    assert_eq!(active(&bench, 1, 4), [0, 1]);
    let info = LayerInfo { content: Digest::of(b"content"), bytes: 7 };
    bench.step(Command::ReportLayer {
        worker: worker_id(1),
        key: Digest::of(b"configure of draw"),
        kind: LayerKind::Configure,
        env: "draw".to_owned(),
        outcome: LayerOutcome::Ready { info, built: true, took: Millis(1) },
    });
    bench.connect(2, capacity(1_000, 8_000, 0));
    assert_eq!(active(&bench, 1, 4), [0, 1, 3]);
}
