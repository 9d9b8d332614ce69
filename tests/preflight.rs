//! A preflight of real tasks in real containers, and the run that leaves out what it named.

use anyhow::{Context as _, Result, ensure};
use longhaul_tests::leftovers;
use longhaul_tests::place::Place;
use serde_json::{Value, json};

/// The tasks of a run, in order.
fn tasks(shown: &Value) -> Vec<&str> {
    shown["episodes"].as_array().into_iter().flatten().filter_map(|episode| episode["task"].as_str()).collect()
}

#[test]
fn a_task_whose_setup_fails_is_named_and_a_run_that_leaves_it_out_has_no_fault() -> Result<()> {
    let place = Place::new("preflight")?;
    let env = place.benchmark().join("environments/mtpaint_env");
    std::fs::write(env.join("tasks/flip_sign/setup_task.sh"), "#!/bin/bash\necho no paint\nsleep 600\n")?;
    let spec = env.join("tasks/flip_sign/task.json");
    let text = std::fs::read_to_string(&spec)?;
    ensure!(text.contains("\"pre_task_timeout\": 120"), "the example has another time limit");
    std::fs::write(&spec, text.replace("\"pre_task_timeout\": 120", "\"pre_task_timeout\": 3"))?;

    let picks = ["--task", "mtpaint_env/flip_sign", "--task", "mtpaint_env/invert_plate"];
    let found =
        place.preflight(picks.iter().chain(&["--max-attempts", "1", "--fail-on-fault"])).end()?.expect_code(7)?;
    let found = found.json()?;
    let mtpaint = &found["envs"][0];
    ensure!(mtpaint["env"] == "mtpaint_env" && mtpaint["started"] == 1 && mtpaint["tasks"] == 2, "{found:#}");
    ensure!(mtpaint["setup"]["longest_millis"].as_u64().is_some_and(|millis| millis > 0), "{found:#}");
    let (bad, good) = (&found["tasks"][0], &found["tasks"][1]);
    ensure!(bad["task"] == "mtpaint_env/flip_sign" && bad["quarantined"] == true, "{found:#}");
    ensure!(bad["starts"][0]["fault"]["class"] == "setup_hook", "{found:#}");
    ensure!(
        good["started"] == 1 && good["remarks"] == json!([]) && good["starts"][0]["frame"].is_string(),
        "{found:#}"
    );

    // What it wrote: the list, the picture, and the same for programs.
    let list = place.path("preflight/quarantine.txt");
    let text = std::fs::read_to_string(&list)?;
    let listed: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let [line] = listed.as_slice() else { anyhow::bail!("{text}") };
    ensure!(line.starts_with("mtpaint_env/flip_sign  # setup_hook: the pre_task hook ran over its time"), "{line}");
    let sheet = std::fs::read(place.path("preflight/sheet-1.png"))?;
    ensure!(sheet.starts_with(b"\x89PNG\r\n\x1a\n"), "no PNG");
    let written: Value = serde_json::from_slice(&std::fs::read(place.path("preflight/preflight.json"))?)?;
    ensure!(written == found, "{written:#}");

    // Nothing but the start was tried.
    let episode = place.show("latest/1")?;
    ensure!(episode["episode"]["state"] == "unverified", "{episode:#}");
    let logs: Vec<_> = episode["logs"].as_array().into_iter().flatten().map(|log| &log["name"]).collect();
    ensure!(logs.iter().any(|name| *name == "pre_task"), "{logs:?}");
    ensure!(logs.iter().all(|name| *name != "post_task" && *name != "verifier"), "{logs:?}");

    // A second one does not write over what the first found.
    let again = place.preflight(picks).end()?.expect_code(3)?;
    ensure!(again.stderr().contains("name another one with --output"), "{}", again.stderr());

    let list = list.display().to_string();
    let run = picks.iter().copied().chain(["--agent=idle", "--fail-on-fault", "--quarantine", &list]);
    let ran = place.run(run).end()?.expect_code(0)?;
    ensure!(ran.stderr().contains("in quarantine (1): mtpaint_env/flip_sign"), "{}", ran.stderr());
    let shown = place.show("latest")?;
    ensure!(tasks(&shown) == ["mtpaint_env/invert_plate"], "{shown:#}");
    ensure!(shown["episodes"][0]["state"].as_str().context("no state")? == "failed", "{shown:#}");
    leftovers::expect_nothing(place.root(), &place.scratch())
}
