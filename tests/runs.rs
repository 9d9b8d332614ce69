//! Whole runs through the real program, in real containers with real desktop programs.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use longhaul_tests::command::wait_for;
use longhaul_tests::leftovers;
use longhaul_tests::place::Place;
use serde_json::Value;

/// The states of a run's episodes, as `agent task: state`.
fn states(shown: &Value) -> Result<Vec<String>> {
    let episodes = shown["episodes"].as_array().context("no episodes")?;
    let text = |episode: &Value, key: &str| episode[key].as_str().unwrap_or("?").to_owned();
    let mut states: Vec<_> = episodes
        .iter()
        .map(|episode| format!("{} {}: {}", text(episode, "agent"), text(episode, "task"), text(episode, "state")))
        .collect();
    states.sort();
    Ok(states)
}

#[test]
fn the_solver_passes_the_careless_and_the_idle_fail_and_a_second_run_builds_nothing() -> Result<()> {
    let place = Place::new("three-agents")?;
    let (solver, careless) = (place.agent("solver"), place.agent("careless"));
    let task = ["--task", "mousepad_env/change_setting", "--fail-on-fault"];
    let first = place.run(task.iter().copied().chain([&*solver, &*careless, "--agent=idle"])).end()?.expect_code(0)?;
    ensure!(first.json()?.is_object(), "stdout is one object");
    let shown = place.show("latest")?;
    let expected = [
        "careless mousepad_env/change_setting: failed",
        "idle mousepad_env/change_setting: failed",
        "solver mousepad_env/change_setting: passed",
    ];
    ensure!(states(&shown)? == expected, "{shown:#}");

    // Every observation is there, the first too, as a picture of the env's own size.
    let solved = shown["episodes"]
        .as_array()
        .and_then(|episodes| episodes.iter().position(|episode| episode["agent"] == "solver"))
        .context("no solver")?;
    let episode = place.show(&format!("latest/{solved}"))?;
    ensure!(episode["episode"]["settlement"]["verdict"]["score"] == 100.0, "{episode:#}");
    let store = place.store().display().to_string();
    for step in ["0", "6"] {
        let picture = place.path("picture.png");
        let output = picture.display().to_string();
        let what = format!("latest/{solved}");
        place
            .longhaul(["show", &what, "--screenshot", step, "-o", &output, "--store", &store])
            .end()?
            .expect_code(0)?;
        let png = std::fs::read(&picture)?;
        ensure!(png.starts_with(b"\x89PNG\r\n\x1a\n"), "no PNG");
        ensure!(png[16..24] == [0, 0, 5, 0, 0, 0, 2, 208], "not 1280x720: {:?}", &png[16..24]);
        std::fs::remove_file(&picture)?;
    }
    leftovers::expect_nothing(place.root(), &place.scratch())?;

    // One more agent for it, when the benchmark is gone: its tasks are what they were.
    let first = shown["run"]["run"].as_str().context("no id")?.to_owned();
    std::fs::rename(place.benchmark(), place.path("examples/elsewhere"))?;
    let more = format!("--agent=more=scripted:{}", place.path("examples/agents/solver").display());
    place.run_like(&first, ["--fail-on-fault", &*more]).end()?.expect_code(0)?;
    let hooks = place.hooks_of_latest()?;
    ensure!(hooks.is_empty(), "a second run ran env hooks: {hooks:#?}");
    let shown = place.show("latest")?;
    ensure!(states(&shown)? == ["more mousepad_env/change_setting: passed"], "{shown:#}");
    let provenance = |episode: &str| {
        let asked = ["show", episode, "--provenance", "--format", "json", "--store", &store];
        place.longhaul(asked).end()?.expect_code(0)?.json()
    };
    let (old, new) = (provenance(&format!("{first}/{solved}"))?, provenance("latest/0")?);
    for part in ["task", "scripts", "verifier", "env", "env_files", "layers", "budget", "version", "scoring"] {
        let content = |found: &Value| match &found[part] {
            Value::Array(layers) => layers.iter().map(|layer| layer["content"].clone()).collect(),
            other => other.clone(),
        };
        ensure!(!old[part].is_null() && content(&old) == content(&new), "{part}: {old:#} {new:#}");
    }
    for known in ["seed", "node", "worker", "started", "finished", "attempt", "agent", "agent_settings"] {
        ensure!(!new[known].is_null(), "{known}: {new:#}");
    }
    let compared = ["compare", &format!("{first}:solver"), "latest", "--json", "--store", &store];
    let compared = place.longhaul(compared).end()?.expect_code(0)?.json()?;
    ensure!(compared["differences"] == serde_json::json!([]), "{compared:#}");
    ensure!(compared["comparisons"]["pairs"][0]["pass"]["table"]["both"] == 1, "{compared:#}");
    Ok(())
}

#[test]
fn a_benchmark_that_is_edited_after_submission_changes_nothing() -> Result<()> {
    let place = Place::new("edited")?;
    let settings = place.settings("[worker]\nslots = 1\n")?;
    let tasks = ["--task", "mousepad_env/change_setting", "--task", "mtpaint_env/flip_sign"];
    let running = place.run(tasks.iter().copied().chain(["--settings", &settings, "--agent=idle"])).start()?;
    let store = place.store().display().to_string();
    wait_for("the first episode", Duration::from_secs(300), || {
        let status = place.longhaul(["status", "--store", &store, "--format", "json"]).end()?;
        Ok((status.code() == Some(0) && status.json()?["runs"][0]["active"] == 1).then_some(()))
    })?;
    // From here on every task would be passed by anybody, and none could be set up.
    for task in ["mousepad_env/tasks/change_setting", "mtpaint_env/tasks/flip_sign"] {
        let folder = place.benchmark().join("environments").join(task);
        let name = task.rsplit('/').next().unwrap_or_default();
        let verifier = format!("def verify_{name}(t, e, i):\n    x = 100\n    return {{'passed': True, 'score': x}}\n");
        std::fs::write(folder.join("verifier.py"), verifier)?;
        std::fs::write(folder.join("setup_task.sh"), "#!/bin/bash\nexit 9\n")?;
    }
    running.end()?.expect_code(0)?;
    let shown = place.show("latest")?;
    let expected = ["idle mousepad_env/change_setting: failed", "idle mtpaint_env/flip_sign: failed"];
    ensure!(states(&shown)? == expected, "{shown:#}");
    Ok(())
}

#[test]
fn a_stub_a_missing_and_a_raising_verifier_are_never_a_pass() -> Result<()> {
    let place = Place::new("unverified")?;
    let tasks = place.benchmark().join("environments/mtpaint_env/tasks");
    std::fs::write(
        tasks.join("flip_sign/verifier.py"),
        "def verify_flip_sign(t, e, i):\n    \"\"\"Judged elsewhere.\"\"\"\n    return {\"passed\": True, \"score\": 100}\n",
    )?;
    std::fs::remove_file(tasks.join("invert_plate/verifier.py"))?;
    std::fs::write(
        tasks.join("fill_panel/verifier.py"),
        "def verify_fill_panel(t, e, i):\n    return {\"passed\": e[\"no such thing\"]}\n",
    )?;
    place.run(["--task", "mtpaint_env/*", "--agent=idle"]).end()?.expect_code(0)?;
    let shown = place.show("latest")?;
    let expected = [
        "idle mtpaint_env/fill_panel: unverified",
        "idle mtpaint_env/flip_sign: unverified",
        "idle mtpaint_env/invert_plate: unverified",
    ];
    ensure!(states(&shown)? == expected, "{shown:#}");
    Ok(())
}

#[test]
fn a_step_limit_ends_the_episode_and_the_verifier_still_runs() -> Result<()> {
    let place = Place::new("step-limit")?;
    let solver = place.agent("solver");
    place.run(["--task", "gnumeric_env/transcribe_ledger", "--steps", "12", &*solver]).end()?.expect_code(0)?;
    let episode = place.show("latest/0")?;
    let verdict = &episode["episode"]["settlement"]["verdict"];
    ensure!(verdict["ended_by"] == "steps" && verdict["passed"] == false, "{episode:#}");
    ensure!(verdict["feedback"].as_str().is_some_and(|text| text.contains("not saved")), "{episode:#}");
    // Twelve answers; the observation before the first of them is no step of the agent.
    ensure!(episode["episode"]["steps"] == 12, "{episode:#}");
    Ok(())
}

#[test]
fn a_setup_hook_that_never_ends_is_our_fault_and_never_the_agents() -> Result<()> {
    let place = Place::new("setup-hangs")?;
    let settings = place.settings("[run]\nmax_attempts = 2\nbackoff = \"1s\"\n")?;
    let env = place.benchmark().join("environments/mtpaint_env");
    std::fs::write(env.join("tasks/flip_sign/setup_task.sh"), "#!/bin/bash\necho the paint has dried up\nsleep 600\n")?;
    let spec = env.join("tasks/flip_sign/task.json");
    let text = std::fs::read_to_string(&spec)?;
    ensure!(text.contains("\"pre_task_timeout\": 120"), "the example has another time limit");
    std::fs::write(&spec, text.replace("\"pre_task_timeout\": 120", "\"pre_task_timeout\": 3"))?;
    let run = ["--task", "mtpaint_env/flip_sign", "--agent=idle", "--fail-on-fault", "--settings", &settings];
    place.run(run).end()?.expect_code(7)?;
    let episode = place.show("latest/0")?;
    let fault = &episode["episode"]["settlement"]["faulted"];
    ensure!(fault["class"] == "setup_hook", "{episode:#}");
    ensure!(fault["log_tail"].as_str().is_some_and(|tail| tail.contains("the paint has dried up")), "{episode:#}");
    ensure!(episode["episode"]["attempts"] == 2, "{episode:#}");
    leftovers::expect_nothing(place.root(), &place.scratch())
}

#[test]
fn a_setup_hook_that_fails_is_noted_with_the_verdict_that_rests_on_it() -> Result<()> {
    let place = Place::new("setup-fails")?;
    let hook = place.benchmark().join("environments/mtpaint_env/tasks/flip_sign/setup_task.sh");
    let text = std::fs::read_to_string(&hook)?;
    std::fs::write(&hook, format!("{text}exit 3\n"))?;
    let solver = place.agent("solver");
    place.run(["--task", "mtpaint_env/flip_sign", &*solver]).end()?.expect_code(0)?;
    let episode = place.show("latest/0")?;
    ensure!(episode["episode"]["state"] == "passed", "{episode:#}");
    let warnings = episode["attempts"][0]["finish"]["notes"]["warnings"].to_string();
    ensure!(warnings.contains("pre_task") && warnings.contains('3'), "the notes do not say it: {warnings}");
    Ok(())
}

#[test]
fn a_worker_whose_program_is_replaced_goes_on_with_what_it_was_started_from() -> Result<()> {
    let place = Place::new("program-replaced")?;
    let program = place.own_program()?;
    let serving = place.serve(&["--settings", &place.settings("")?])?;
    let access = place.access().display().to_string();
    let scratch = place.scratch().display().to_string();
    let settings = place.settings("")?;
    let worker = ["worker", "--coordinator", &access, "--scratch", &scratch, "--slots", "1", "--settings", &settings];
    let working = place.longhaul_at(&program, worker).start()?;
    let benchmark = place.benchmark().display().to_string();
    let run = ["run", &benchmark, "--coordinator", &access, "--settings", &settings, "--agent=idle", "--fail-on-fault"];
    let run = || place.longhaul(run.iter().copied().chain(["--task", "mtpaint_env/flip_sign"])).end()?.expect_code(0);
    run()?;

    // As an upgrade does it: another file takes the name.
    let other = place.path("other");
    std::fs::write(&other, "#!/bin/sh\nexit 1\n")?;
    std::fs::rename(&other, &program)?;
    run()?;
    let episode = place.show("latest/0")?;
    ensure!(episode["episode"]["state"] == "failed" && episode["episode"]["attempts"] == 1, "{episode:#}");

    working.stop()?;
    serving.stop()?;
    leftovers::expect_nothing(place.root(), &place.scratch())
}
