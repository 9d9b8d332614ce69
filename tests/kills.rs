//! What is killed in the middle: a worker, a whole run; and a store that is lost with its disk.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use longhaul_tests::command::{Running, wait_for};
use longhaul_tests::leftovers;
use longhaul_tests::place::{Place, SHORT_LEASES};
use nix::sys::signal::Signal;

/// The steps that a live attempt of the store has, if one is acting.
fn acting(place: &Place) -> Result<Option<u64>> {
    let store = place.store().display().to_string();
    let status = place.longhaul(["status", "--store", &store, "--format", "json"]).end()?;
    if status.code() != Some(0) {
        return Ok(None);
    }
    let status = status.json()?;
    let attempts = status["workers"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|worker| worker["attempts"].as_array().cloned().unwrap_or_default());
    Ok(attempts.filter(|attempt| attempt["phase"] == "acting").filter_map(|attempt| attempt["steps"].as_u64()).max())
}

fn wait_for_steps(place: &Place, running: &mut Running, steps: u64) -> Result<u64> {
    wait_for("steps of the long task", Duration::from_secs(300), || {
        ensure!(running.runs()?, "it ended too early");
        Ok(acting(place)?.filter(|done| *done >= steps))
    })
}

#[test]
fn a_worker_that_is_killed_costs_an_attempt_and_leaves_nothing() -> Result<()> {
    let place = Place::new("worker-killed")?;
    let settings = place.settings(SHORT_LEASES)?;
    let serving = place.serve(&["--settings", &settings])?;
    let access = place.access().display().to_string();
    let scratch = place.scratch().display().to_string();
    let worker = ["worker", "--coordinator", &access, "--scratch", &scratch, "--slots", "1", "--settings", &settings];
    let mut first = place.longhaul(worker).start()?;
    let benchmark = place.benchmark().display().to_string();
    let solver = place.agent("solver");
    let submit = ["run", &benchmark, "--coordinator", &access, "--detach", "--settings", &settings];
    place
        .longhaul(submit.iter().copied().chain(["--task", "gnumeric_env/transcribe_ledger", &*solver]))
        .end()?
        .expect_code(0)?;
    let before = wait_for_steps(&place, &mut first, 10)?;
    first.signal(Signal::SIGKILL)?;
    first.end()?;
    let second = place.longhaul(worker).start()?;
    place.longhaul(["watch", "latest", "--coordinator", &access]).end()?.expect_code(0)?;

    let episode = place.show("latest/0")?;
    ensure!(episode["episode"]["state"] == "passed", "{episode:#}");
    ensure!(episode["episode"]["attempts"] == 2, "{episode:#}");
    // What the killed attempt had acknowledged is kept under it.
    let kept = place
        .longhaul(["show", "latest/0", "--attempt", "1", "--steps", "--coordinator", &access, "--format", "json"])
        .json()?;
    let kept = kept.as_array().or_else(|| kept["steps"].as_array()).context("no steps")?.len();
    ensure!(u64::try_from(kept)? >= before, "{before} steps were acknowledged, {kept} are kept");

    second.stop()?;
    serving.stop()?;
    leftovers::expect_nothing(place.root(), &place.scratch())
}

#[test]
fn a_run_that_is_killed_leaves_a_store_that_is_read_and_nothing_that_runs() -> Result<()> {
    let place = Place::new("run-killed")?;
    let solver = place.agent("solver");
    let mut running = place.run(["--task", "gnumeric_env/transcribe_ledger", &*solver]).start()?;
    let before = wait_for_steps(&place, &mut running, 10)?;
    running.signal(Signal::SIGKILL)?;
    running.end()?;

    let shown = place.show("latest")?;
    ensure!(shown["run"]["episodes"] == 1, "{shown:#}");
    let steps = place.steps("latest/0")?.len();
    ensure!(u64::try_from(steps)? >= before, "{before} steps were acknowledged, {steps} are stored");

    // Its worker ends by itself; what it could not remove, the janitor does.
    wait_for("the sandbox's end", Duration::from_secs(120), || {
        let left = leftovers::processes_that_name(place.root())?;
        Ok(left.is_empty().then_some(()))
    })?;
    let scratch = place.scratch().display().to_string();
    place.longhaul(["worker", "clean", "--scratch", &scratch]).end()?.expect_code(0)?;
    leftovers::expect_nothing(place.root(), &place.scratch())?;

    // The folder is a store like any other: the next run goes into it.
    place.run(["--task", "mtpaint_env/flip_sign", "--agent=idle"]).end()?.expect_code(0)?;
    Ok(())
}

/// The phases that live attempts of the store are in.
fn phases(place: &Place) -> Result<Vec<String>> {
    let store = place.store().display().to_string();
    let status = place.longhaul(["status", "--store", &store, "--format", "json"]).json()?;
    let workers = status["workers"].as_array().cloned().unwrap_or_default();
    let attempts = workers.iter().flat_map(|worker| worker["attempts"].as_array().cloned().unwrap_or_default());
    Ok(attempts.filter_map(|attempt| attempt["phase"].as_str().map(str::to_owned)).collect())
}

#[test]
fn a_worker_that_is_killed_in_any_phase_leaves_nothing_once_it_was_cleaned_up_after() -> Result<()> {
    let place = Place::new("phases-killed")?;
    let settings = place.settings(SHORT_LEASES)?;
    let serving = place.serve(&["--settings", &settings])?;
    let access = place.access().display().to_string();
    let scratch = place.scratch().display().to_string();
    let worker = ["worker", "--coordinator", &access, "--scratch", &scratch, "--slots", "1", "--settings", &settings];
    let (benchmark, solver) = (place.benchmark().display().to_string(), place.agent("solver"));
    for phase in ["starting", "setup", "acting", "verifying"] {
        let mut first = place.longhaul(worker).start()?;
        let submit = ["run", &benchmark, "--coordinator", &access, "--detach", "--settings", &settings];
        let submitted = place
            .longhaul(submit.iter().copied().chain(["--task", "mousepad_env/change_setting", &*solver]))
            .end()?
            .expect_code(0)?;
        wait_for(phase, Duration::from_secs(300), || {
            ensure!(first.runs()?, "{phase}: the worker ended; {}", submitted.stderr());
            Ok(phases(&place)?.iter().any(|now| now == phase).then_some(()))
        })?;
        first.signal(Signal::SIGKILL)?;
        first.end()?;
        place.longhaul(["worker", "clean", "--scratch", &scratch]).end()?.expect_code(0)?;
        // All but the coordinator and who asks it, which name the place as well.
        let left: Vec<_> = leftovers::processes_that_name(&place.scratch())?;
        ensure!(left.is_empty(), "{phase}: processes are left: {left:#?}");
        ensure!(leftovers::attempts_below(&place.scratch())?.is_empty(), "{phase}: scratch is left");
        place.longhaul(["cancel", "latest", "--coordinator", &access]).end()?.expect_code(0)?;
    }
    serving.stop()?;
    leftovers::expect_nothing(place.root(), &place.scratch())
}

#[test]
fn a_backup_of_a_live_run_takes_the_place_of_its_store_and_the_run_goes_on() -> Result<()> {
    let place = Place::new("store-lost")?;
    let settings = place.settings(SHORT_LEASES)?;
    let serving = place.serve(&["--settings", &settings])?;
    let access = place.access().display().to_string();
    let (scratch, store) = (place.scratch().display().to_string(), place.store().display().to_string());
    let worker = ["worker", "--coordinator", &access, "--scratch", &scratch, "--slots", "1", "--settings", &settings];
    let mut working = place.longhaul(worker).start()?;
    let (benchmark, solver) = (place.benchmark().display().to_string(), place.agent("solver"));
    let submit = ["run", &benchmark, "--coordinator", &access, "--detach", "--settings", &settings];
    let task = ["--task", "gnumeric_env/transcribe_ledger", &*solver];
    place.longhaul(submit.iter().copied().chain(task)).end()?.expect_code(0)?;
    let known = wait_for_steps(&place, &mut working, 8)?;
    let copy = place.path("copy").display().to_string();
    place.longhaul(["store", "backup", &store, &copy]).end()?.expect_code(0)?;
    place.longhaul(["store", "verify", &copy]).end()?.expect_code(0)?;
    wait_for_steps(&place, &mut working, known + 4)?;

    // The disk is gone with its coordinator; the worker lives.
    serving.signal(Signal::SIGKILL)?;
    serving.end()?;
    std::fs::rename(place.store(), place.path("lost"))?;
    place.longhaul(["store", "restore", &copy, &store]).end()?.expect_code(0)?;
    let serving = place.serve(&["--settings", &settings])?;
    let accept =
        |more: &[&str]| place.longhaul(["store", "accept", &store, "--format", "json"].iter().chain(more)).end();
    wait_for("the worker's spool", Duration::from_secs(120), || {
        let shown = accept(&[])?;
        ensure!(shown.code() == Some(5), "it is closed: {}", shown.stderr());
        let stands = shown.json()?;
        ensure!(stands["runs"][0]["open"] == 1, "{stands:#}");
        Ok((stands["workers"][0]["spool"] == "heard").then_some(()))
    })?;
    ensure!(acting(&place)?.is_none(), "nothing is begun before it is accepted");
    accept(&["--yes"])?.expect_code(0)?;
    place.longhaul(["watch", "latest", "--coordinator", &access]).end()?.expect_code(0)?;

    let episode = place.show("latest/0")?;
    ensure!(episode["episode"]["state"] == "passed", "{episode:#}");
    ensure!(episode["episode"]["attempts"] == 2, "{episode:#}");
    let steps = place.steps("latest/0")?;
    let numbers: Vec<u64> = steps.iter().filter_map(|step| step["number"].as_u64()).collect();
    ensure!(numbers.iter().copied().eq(0..numbers.len() as u64), "a gap or a double: {numbers:?}");
    working.stop()?;
    serving.stop()?;
    place.expect_sound()?;
    leftovers::expect_nothing(place.root(), &place.scratch())
}
