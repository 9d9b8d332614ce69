//! Layers: built once, waited for by the others, and never waited for in vain.

use longhaul_core::digest::Digest;
use longhaul_core::outcome::{Fault, FaultClass};
use longhaul_core::plan::LayerKind;
use longhaul_core::time::Millis;
use longhaul_engine::state::LayerInfo;
use longhaul_engine::{Command, Effect, Event, LayerAnswer, LayerOutcome, Rejection};

use crate::bench::{Bench, SKEW, TTL, capacity, env, fault, plan, run_id, small, verdict, worker_id};

fn key() -> Digest {
    Digest::of(b"install of calc")
}

fn info() -> LayerInfo {
    LayerInfo { content: Digest::of(b"content"), bytes: 7 }
}

fn hook_failed() -> Fault {
    Fault { class: FaultClass::LayerBuild, message: "the hook exited with 1".to_owned(), log_tail: None }
}

/// Workers with one attempt each.
fn started(workers: u32) -> Bench {
    let mut bench = Bench::new();
    bench.submit(1, small(workers as usize));
    (1..=workers).for_each(|worker| drop(bench.connect(worker, capacity(1_000, 8_000, 0))));
    bench
}

fn claim(bench: &mut Bench, worker: u32) -> Vec<Event> {
    let (kind, env) = (LayerKind::Install, "calc".to_owned());
    bench.step(Command::ClaimLayer { worker: worker_id(worker), key: key(), kind, env })
}

fn report(bench: &mut Bench, worker: u32, outcome: LayerOutcome) -> Vec<Event> {
    let (kind, env) = (LayerKind::Install, "calc".to_owned());
    bench.step(Command::ReportLayer { worker: worker_id(worker), key: key(), kind, env, outcome })
}

fn ready() -> LayerOutcome {
    LayerOutcome::Ready { info: info(), built: true, took: Millis(300_000) }
}

fn answers(bench: &Bench, events: &[Event]) -> Vec<(u32, LayerAnswer)> {
    let effects = bench.orders(events).into_iter();
    let answers = effects.filter_map(|effect| match effect {
        Effect::SendLayerAnswer { worker, answer, .. } => {
            (1..10).find(|number| worker_id(*number) == worker).map(|number| (number, answer))
        }
        _ => None,
    });
    answers.collect()
}

#[test]
fn the_first_builds_the_others_wait_and_hear_of_it() {
    let mut bench = started(3);
    let events = claim(&mut bench, 1);
    assert_eq!(answers(&bench, &events), [(1, LayerAnswer::Build)]);
    for waiter in [2, 3, 2] {
        let events = claim(&mut bench, waiter);
        assert_eq!(answers(&bench, &events), [(waiter, LayerAnswer::Wait)]);
    }
    let events = claim(&mut bench, 1);
    assert_eq!(answers(&bench, &events), [(1, LayerAnswer::Build)], "asked again after a hello");
    let events = report(&mut bench, 1, ready());
    assert_eq!(answers(&bench, &events), [(2, LayerAnswer::Ready(info())), (3, LayerAnswer::Ready(info()))]);
    assert!(report(&mut bench, 1, ready()).is_empty(), "a repeated report is no news");
}

#[test]
fn a_layer_that_is_there_is_not_built_again_unless_a_worker_cannot_find_it() {
    let mut bench = started(2);
    claim(&mut bench, 1);
    report(&mut bench, 1, ready());
    let events = claim(&mut bench, 2);
    assert_eq!(answers(&bench, &events), [(2, LayerAnswer::Ready(info()))]);
    let events = claim(&mut bench, 2);
    assert_eq!(answers(&bench, &events), [(2, LayerAnswer::Build)], "it was told, and lacks it all the same");
}

#[test]
fn the_claim_of_a_worker_that_is_lost_goes_to_the_next_who_waits() {
    let mut bench = started(3);
    claim(&mut bench, 1);
    claim(&mut bench, 2);
    claim(&mut bench, 3);
    bench.disconnect(3);
    let events = bench.step(Command::WorkerLeaving { worker: worker_id(1), reason: "scancel".to_owned() });
    assert_eq!(answers(&bench, &events), [(2, LayerAnswer::Build)]);
    let events = bench.pass_with(TTL + SKEW, &[3]);
    assert_eq!(answers(&bench, &events), [(3, LayerAnswer::Build)], "the second one was lost");
}

#[test]
fn a_claim_that_nobody_waits_for_is_released() {
    let mut bench = started(1);
    claim(&mut bench, 1);
    let lease = bench.lease(1, 0);
    bench.step(Command::CancelRun { run: run_id(1), by: "me".to_owned() });
    let events = bench.end(lease, longhaul_core::outcome::AttemptEnd::Cancelled);
    assert!(events.iter().any(|event| matches!(event, Event::LayerReleased { .. })));
    assert_eq!(bench.engine.layers().count(), 0);
}

#[test]
fn a_report_that_is_lost_keeps_nobody_waiting_beyond_the_attempt_that_built() {
    let mut bench = Bench::new();
    bench.submit(1, plan(vec![env("draw", 1_000, 1_000), env("calc", 1_000, 1_000)], &[0, 1, 1]));
    bench.connect(1, capacity(2_000, 8_000, 0));
    bench.connect(2, capacity(1_000, 8_000, 0));
    assert_eq!((bench.held_by(1).len(), bench.held_by(2).len()), (2, 1));
    let on_calc = bench.lease(1, 1);
    assert_eq!(bench.engine.holder(on_calc), Some(worker_id(1)));
    claim(&mut bench, 1);
    claim(&mut bench, 2);
    let events = bench.end(on_calc, verdict(true));
    assert_eq!(answers(&bench, &events), [(2, LayerAnswer::Build)]);
}

#[test]
fn bad_luck_of_the_builder_is_not_the_layers_fault() {
    let mut bench = started(2);
    claim(&mut bench, 1);
    claim(&mut bench, 2);
    let full = Fault { class: FaultClass::NodeDisk, message: "the disk is full".to_owned(), log_tail: None };
    let events = report(&mut bench, 1, LayerOutcome::Failed(full));
    assert_eq!(answers(&bench, &events), [(2, LayerAnswer::Build)]);
    assert!(report(&mut bench, 1, LayerOutcome::Failed(hook_failed())).is_empty(), "it does not build it any more");
    let events = report(&mut bench, 2, ready());
    assert!(matches!(events[0], Event::LayerReady { .. }));
}

#[test]
fn a_hook_that_fails_fails_its_episodes_in_this_run_and_the_rest_goes_on() {
    let mut bench = started(3);
    claim(&mut bench, 1);
    claim(&mut bench, 2);
    let events = report(&mut bench, 1, LayerOutcome::Failed(hook_failed()));
    assert_eq!(answers(&bench, &events), [(2, LayerAnswer::Failed(hook_failed()))]);
    let events = claim(&mut bench, 3);
    assert_eq!(answers(&bench, &events), [(3, LayerAnswer::Failed(hook_failed()))], "it is not tried again");
    bench.end(bench.lease(1, 0), fault(FaultClass::LayerBuild));
    assert_eq!(bench.faulted(1, 0).class, FaultClass::LayerBuild);
    bench.end(bench.lease(1, 1), verdict(true));
    assert_eq!(bench.settlement(1, 2), None, "an episode that did not say so is not failed for it");
}

#[test]
fn a_new_run_tries_a_failed_layer_once_more() {
    let mut bench = started(1);
    claim(&mut bench, 1);
    report(&mut bench, 1, LayerOutcome::Failed(hook_failed()));
    bench.submit(2, small(1));
    bench.connect(2, capacity(1_000, 8_000, 0));
    let events = claim(&mut bench, 2);
    assert_eq!(answers(&bench, &events), [(2, LayerAnswer::Build)]);
    // And the memory of the failure ends with the last run that saw it.
    report(&mut bench, 2, LayerOutcome::Failed(hook_failed()));
    bench.end(bench.lease(1, 0), fault(FaultClass::LayerBuild));
    bench.end(bench.lease(2, 0), fault(FaultClass::LayerBuild));
    assert!(bench.settlement(2, 0).is_some());
    assert_eq!(bench.engine.layers().count(), 0);
}

#[test]
fn a_layer_that_cannot_be_read_is_tried_again() {
    let mut bench = started(1);
    bench.end(bench.lease(1, 0), fault(FaultClass::LayerBuild));
    assert_eq!(bench.settlement(1, 0), None, "no hook has failed");
}

#[test]
fn a_stranger_builds_nothing() {
    let mut bench = started(1);
    let (kind, env) = (LayerKind::Install, "calc".to_owned());
    let claim = Command::ClaimLayer { worker: worker_id(9), key: key(), kind, env };
    assert_eq!(bench.try_step(claim), Err(Rejection::UnknownWorker { worker: worker_id(9) }));
}
