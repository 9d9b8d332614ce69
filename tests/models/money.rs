//! Dollars: an agent's cap ends its episode in order, and more money lets the next ones go on.

use anyhow::{Context as _, Result, ensure};
use longhaul_tests::leftovers;
use longhaul_tests::place::Place;

use crate::forms::{Do, FLIP, Form, Model};
use crate::vendor::{Vendor, dollars, endpoint, ends, run, said, settings};

/// What the wasteful agent may spend: some more calls than the task needs.
const CAP: u64 = 80_000_000;

#[test]
fn a_spent_budget_ends_an_episode_in_order_and_more_money_lets_others_go_on() -> Result<()> {
    let place = Place::new("money")?;
    let model = Model { form: Form::Tools, picture: (1280, 720) };
    // One does the task and then looks at it for ever.
    let looks = model.does("Is it right?", &[Do::Look]);
    let wasteful = Vendor::with(model.script(&FLIP).into_iter().take(3).chain([looks]).collect())?;
    // The other one is done when it is done, and has two samples to do.
    let thrifty = Vendor::with([model.script(&FLIP), model.script(&FLIP)].concat())?;
    thrifty.hold(true)?;
    let endpoints = [endpoint("wasteful", "openai", &wasteful), endpoint("thrifty", "openai", &thrifty)];
    let settings = settings(&place, &endpoints)?;
    let mut running = run(
        &place,
        &settings,
        &[
            "--task",
            "mtpaint_env/flip_sign",
            "--samples",
            "2",
            "--slots",
            "2",
            "--agent=wasteful=wasteful:model-a?max_output=300&keep_images=1",
            "--agent=thrifty=thrifty:model-a?max_output=300&keep_images=1",
            "--agent-budget",
            &format!("wasteful={}", dollars(CAP)),
            "--agent-budget",
            "thrifty=0.05",
            "--run-budget",
            "2",
        ],
    )
    .start()?;

    // While the thrifty one waits for its first answer, somebody finds that it has too little.
    thrifty.wait_for_calls(1, &mut running)?;
    let raised = said(&place, &["budget", "raise", "latest", "--agent", "thrifty", "--to", "0.5"])?;
    ensure!(raised.lines().any(|line| line.contains("agent thrifty") && line.contains("$0.50")), "{raised}");
    thrifty.hold(false)?;
    running.end()?.expect_code(0)?;

    // The task was done before the money was spent; export hook and verifier have found that out.
    let found = ends(&place)?;
    let expected = ["thrifty 0: passed by agent", "thrifty 1: passed by agent", "wasteful 0: passed by budget"];
    ensure!(found[..3] == expected, "{found:#?}");
    // What is left may be enough for a call of the second sample, and never for all of them.
    ensure!(["wasteful 1: failed by budget", "wasteful 1: not started by nothing"].contains(&&*found[3]), "{found:#?}");
    ensure!(wasteful.billed() <= CAP, "{} were billed", wasteful.billed());

    let shown = said(&place, &["budget", "show", "latest"])?;
    let last = shown.lines().last().context("nothing is shown")?;
    let all = dollars(wasteful.billed() + thrifty.billed());
    ensure!(last.starts_with(&format!("cap $2.00, spent {all}, largest exposure in flight $")), "{shown}");
    ensure!(last.ends_with(", overshoot $0.00"), "{shown}");
    leftovers::expect_nothing(place.root(), &place.scratch())
}
