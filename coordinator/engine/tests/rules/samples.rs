//! Samples of a task are begun only while fewer have passed than have to.

use longhaul_core::outcome::{FaultClass, Settlement, SettlementKind};
use longhaul_core::plan::{RunPlan, Until};
use longhaul_engine::WaitReason;

use crate::bench::{Bench, capacity, episode, fault, run_id, small, verdict};

/// So many samples of one task.
fn samples(count: usize, successes: u32) -> RunPlan {
    let mut plan = small(count);
    let task = plan.episodes[0].task.clone();
    for (sample, entry) in (0..).zip(&mut plan.episodes) {
        (entry.task, entry.sample) = (task.clone(), sample);
    }
    plan.until = Some(Until { successes });
    plan
}

fn kind(bench: &Bench, index: u32) -> Option<SettlementKind> {
    bench.settlement(1, index).map(Settlement::kind)
}

#[test]
fn samples_are_begun_one_after_another_until_one_passes() {
    let mut bench = Bench::new();
    bench.submit(1, samples(4, 1));
    bench.connect(1, capacity(8_000, 16_000, 0));
    assert!(bench.is_active(1, 0) && !bench.is_active(1, 1), "there is room for all, and one may be enough");
    assert_eq!(bench.engine.why_waiting(episode(1, 1)), Some(WaitReason::OtherSamples));
    bench.end(bench.lease(1, 0), verdict(false));
    assert!(bench.is_active(1, 1), "the first one failed");
    bench.end(bench.lease(1, 1), verdict(true));
    assert_eq!(
        (kind(&bench, 2), kind(&bench, 3)),
        (Some(SettlementKind::NotStarted), Some(SettlementKind::NotStarted))
    );
    let run = bench.engine.summary(run_id(1)).expect("the run is there");
    assert!(run.settled_at.is_some() && run.counts.not_started == 2, "{run:?}");
}

#[test]
fn as_many_are_live_as_may_be_needed() {
    let mut bench = Bench::new();
    bench.submit(1, samples(4, 2));
    bench.connect(1, capacity(8_000, 16_000, 0));
    assert_eq!(bench.held_by(1).len(), 2);
    bench.end(bench.lease(1, 0), verdict(true));
    assert!(!bench.is_active(1, 2), "one passed, one is live: two may come of it");
    bench.end(bench.lease(1, 1), verdict(false));
    assert!(bench.is_active(1, 2));
}

#[test]
fn each_task_and_each_agent_has_samples_of_its_own() {
    let mut bench = Bench::new();
    let mut plan = samples(4, 1);
    plan.episodes[1].task.task = "another".to_owned();
    plan.agents.push(plan.agents[0].clone());
    plan.episodes[2].agent = 1;
    bench.submit(1, plan);
    bench.connect(1, capacity(8_000, 16_000, 0));
    let live: Vec<bool> = (0..4).map(|index| bench.is_active(1, index)).collect();
    assert_eq!(live, [true, true, true, false]);
}

#[test]
fn a_sample_that_a_fault_sent_back_is_stopped_once_enough_have_passed() {
    let mut bench = Bench::new();
    bench.submit(1, samples(3, 1));
    bench.connect(1, capacity(8_000, 16_000, 0));
    bench.end(bench.lease(1, 0), fault(FaultClass::Display));
    assert!(bench.is_active(1, 1), "while the first is left alone, another one is begun");
    bench.end(bench.lease(1, 1), verdict(true));
    assert_eq!((kind(&bench, 0), kind(&bench, 2)), (Some(SettlementKind::Cancelled), Some(SettlementKind::NotStarted)));
}
