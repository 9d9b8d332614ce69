//! Who comes first: priorities, fair shares, long episodes, paced starts; and where to.

use longhaul_core::digest::Digest;
use longhaul_core::plan::{LayerKind, RunPlan};
use longhaul_core::time::Millis;
use longhaul_engine::state::{Capacity, LayerInfo, RunTerms};
use longhaul_engine::{Command, LayerOutcome};

use crate::bench::{Bench, capacity, env, plan, run_id, settings, small, verdict, worker_id};

fn submit(bench: &mut Bench, run: u32, plan: RunPlan, terms: RunTerms) {
    bench.step(Command::SubmitRun { run: run_id(run), plan, digest: Digest::of(b"plan"), terms });
}

fn active(bench: &Bench, run: u32, count: u32) -> Vec<u32> {
    (0..count).filter(|index| bench.is_active(run, *index)).collect()
}

#[test]
fn a_run_of_a_higher_priority_comes_first() {
    let mut bench = Bench::new();
    submit(&mut bench, 1, small(4), RunTerms::default());
    submit(&mut bench, 2, small(4), RunTerms { priority: 5, ..RunTerms::default() });
    bench.connect(1, capacity(4_000, 8_000, 0));
    assert_eq!((active(&bench, 1, 4).len(), active(&bench, 2, 4).len()), (0, 4));
}

#[test]
fn runs_of_one_priority_share_fairly_whoever_came_first() {
    let mut bench = Bench::new();
    bench.submit(1, small(40));
    bench.connect(1, capacity(4_000, 16_000, 0));
    bench.submit(2, small(40));
    bench.connect(2, capacity(8_000, 16_000, 0));
    assert_eq!((active(&bench, 1, 40).len(), active(&bench, 2, 40).len()), (6, 6));
}

#[test]
fn long_episodes_start_first_and_unknown_ones_before_them() {
    let mut bench = Bench::new();
    let limits = [10, 500, 20, 400].map(Millis::from_secs).to_vec();
    submit(&mut bench, 1, small(4), RunTerms { limits, ..RunTerms::default() });
    bench.connect(1, capacity(2_000, 8_000, 0));
    assert_eq!(active(&bench, 1, 4), [1, 3]);

    let mut bench = Bench::new();
    bench.connect(1, capacity(1_000, 8_000, 0));
    bench.submit(1, plan(vec![env("calc", 1_000, 1_000), env("draw", 1_000, 1_000)], &[0, 0, 1]));
    bench.pass_with(60_000, &[1]);
    bench.end(bench.lease(1, 0), verdict(true));
    assert_eq!(active(&bench, 1, 3), [2], "how long a draw takes is to be found out");
}

#[test]
fn starts_on_one_node_are_paced() {
    let mut bench = Bench::new();
    bench.submit(1, small(40));
    bench.connect(1, capacity(32_000, 64_000, 0));
    let most = usize::try_from(settings().max_starting).expect("it is small");
    assert_eq!(active(&bench, 1, 40).len(), most);
    let started = bench.held_by(1)[0];
    bench.engine.observe_started(started);
    bench.step(Command::Tick);
    assert_eq!(active(&bench, 1, 40).len(), most + 1, "one is up, one more may start");
    bench.pass_with(settings().start_limit.0 + 5_000, &[1]);
    assert_eq!(active(&bench, 1, 40).len(), 32, "who says nothing does not hold a place for ever");
}

#[test]
fn a_worker_that_has_the_layer_comes_first_until_it_is_crowded() {
    let mut bench = Bench::new();
    bench.connect(1, capacity(8_000, 16_000, 0));
    bench.connect(2, capacity(8_000, 16_000, 0));
    bench.submit(1, small(1));
    let info = LayerInfo { content: Digest::of(b"content"), bytes: 7 };
    bench.step(Command::ReportLayer {
        worker: worker_id(2),
        key: Digest::of(b"configure of calc"),
        kind: LayerKind::Configure,
        env: "calc".to_owned(),
        outcome: LayerOutcome::Ready { info, built: true, took: Millis(1) },
    });
    bench.submit(2, small(2));
    assert_eq!((bench.held_by(1).len(), bench.held_by(2).len()), (1, 2));
    bench.submit(3, small(3));
    assert_eq!((bench.held_by(1).len(), bench.held_by(2).len()), (2, 4), "spread all the same");
}

#[test]
fn graphics_processors_are_left_to_those_that_ask_for_them() {
    let mut bench = Bench::new();
    bench.connect(1, Capacity { gpus: 1, ..capacity(4_000, 8_000, 0) });
    bench.connect(2, capacity(4_000, 8_000, 0));
    bench.submit(1, small(4));
    assert_eq!((bench.held_by(1).len(), bench.held_by(2).len()), (0, 4));
    let mut draws = env("draw", 4_000, 1_000);
    draws.resources.gpus = 1;
    bench.submit(2, plan(vec![draws], &[0]));
    assert_eq!(bench.held_by(1).len(), 1);
}
