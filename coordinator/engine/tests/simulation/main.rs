//! Property tests of the engine in a simulated world. A few long histories; each ends
//! with everything healed, and then every episode must settle.

mod action;
mod audit;
mod coordinator;
mod plans;
mod worker;
mod world;

use std::cell::RefCell;
use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestCaseError, TestError, TestRunner};

use crate::action::{Action, actions};
use crate::world::{Outcome, World};

/// How many histories, and how many actions each has.
const CASES: u32 = 150;
const LENGTH: usize = 400;

/// Every kind of event, each of which has to happen often.
const EVENTS: &[&str] = &[
    "coordinator_restarted",
    "run_submitted",
    "run_cancelled",
    "run_settled",
    "run_forgotten",
    "worker_connected",
    "worker_disconnected",
    "worker_draining",
    "worker_gone",
    "lease_granted",
    "attempt_ended",
    "attempt_lost",
    "episode_requeued",
    "episode_settled",
    "layer_claimed",
    "layer_awaited",
    "layer_answered",
    "layer_released",
    "layer_ready",
    "layer_failed",
];

fn config(cases: u32) -> ProptestConfig {
    let mut config = ProptestConfig::default();
    // The same histories each time, so that a failure is one for everybody; PROPTEST_RNG_SEED
    // and PROPTEST_CASES look for others.
    if config.rng_seed == RngSeed::Random {
        config.rng_seed = RngSeed::Fixed(20_261_129);
    }
    if config.cases == 256 {
        config.cases = cases;
    }
    config.failure_persistence = None;
    // The actions and the journal are in the message: a little shrinking is enough.
    config.max_shrink_iters = 60;
    config
}

fn live_through(actions: &[Action], shared_folder: bool) -> (Outcome, World) {
    let mut world = World::new(shared_folder);
    (story(&mut world, actions), world)
}

fn story(world: &mut World, actions: &[Action]) -> Outcome {
    world.submit(20)?;
    world.start_worker(1);
    actions.iter().try_for_each(|action| world.act(action))?;
    world.replay_equals_live()?;
    world.heal()?;
    world.take_snapshot()?;
    world.replay_equals_live()
}

/// Runs histories; on a failure its message is what was violated, the actions, and the
/// journal. Counts the events by kind, so that nobody trusts a world in which nothing happens.
fn run(shared_folder: bool) {
    let happened = RefCell::new(BTreeMap::<String, u32>::new());
    let mut runner = TestRunner::new(config(CASES));
    let outcome = runner.run(&actions(LENGTH), |actions| {
        let (outcome, world) = live_through(&actions, shared_folder);
        for line in &world.journal {
            let kind = line.split('"').nth(1).unwrap_or_default();
            *happened.borrow_mut().entry(kind.to_owned()).or_default() += 1;
        }
        outcome.map_err(TestCaseError::fail)
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Abort(reason)) => panic!("the simulation cannot run: {reason}"),
        Err(TestError::Fail(reason, actions)) => {
            let (_, world) = live_through(&actions, shared_folder);
            panic!("{reason}\n\nactions:\n{actions:?}\n\njournal:\n{}", world.journal.join("\n"));
        }
    }
    let happened = happened.into_inner();
    for kind in EVENTS {
        assert!(happened.get(*kind).is_some_and(|count| *count >= CASES / 4), "{kind} hardly happens: {happened:?}");
    }
}

#[test]
fn the_invariants_hold_and_everything_settles_with_a_shared_layer_folder() {
    run(true);
}

#[test]
fn the_invariants_hold_and_everything_settles_with_layers_of_their_own() {
    run(false);
}
