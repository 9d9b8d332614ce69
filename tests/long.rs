//! The whole demo, twice: every task by every example agent. Part of `make test-all`.

use anyhow::{Context as _, Result, ensure};
use longhaul_tests::leftovers;
use longhaul_tests::place::Place;

#[test]
fn the_whole_demo_gives_the_verdicts_that_it_is_made_for_and_then_builds_nothing() -> Result<()> {
    let place = Place::new("demo")?;
    let agents = [place.agent("solver"), place.agent("careless"), "--agent=idle".to_owned()];
    let envs = ["--env=gnumeric_env", "--env=mtpaint_env", "--env=mousepad_env"];
    for round in 0..2 {
        let asked = agents.iter().map(String::as_str).chain(envs).chain(["--fail-on-fault"]);
        place.run(asked).end()?.expect_code(0)?;
        let shown = place.show("latest")?;
        let episodes = shown["episodes"].as_array().context("no episodes")?;
        ensure!(episodes.len() == 30, "{} episodes", episodes.len());
        for episode in episodes {
            let expected = if episode["agent"] == "solver" { "passed" } else { "failed" };
            ensure!(episode["state"] == expected, "round {round}: {episode:#}");
            if episode["agent"] == "solver" && episode["task"] == "gnumeric_env/transcribe_ledger" {
                ensure!(episode["steps"].as_u64().is_some_and(|steps| steps > 100), "{episode:#}");
            }
        }
        let hooks = place.hooks_of_latest()?;
        ensure!(round == 0 || hooks.is_empty(), "env hooks ran in the second round: {hooks:#?}");
        leftovers::expect_nothing(place.root(), &place.scratch())?;
    }
    Ok(())
}
