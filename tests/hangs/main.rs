//! What hangs: a verifier, a hook, a screen, a display, a disk, Apptainer itself. Each has a limit, and
//! each comes out as what it is, with nothing left of it.
//!
//! The tasks are in `benchmark` beside this file, in an env without layers.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use longhaul_tests::command::{Longhaul, wait_for};
use longhaul_tests::place::Place;
use longhaul_tests::{leftovers, tree};
use nix::sys::signal::Signal;
use serde_json::Value;

/// The settings of these runs: what is tried is over soon, and not tried again.
const SHORT: &str = "[worker]\nverify_limit = \"20s\"\n\n[run]\nmax_attempts = 1\n";

/// A place with the tasks that hang.
fn place(test: &str) -> Result<Place> {
    let place = Place::new(test)?;
    let here = tree::repository().join("tests/hangs");
    for name in ["benchmark", "agents"] {
        tree::copy(&here.join(name), &place.path("hangs").join(name), place.account())?;
    }
    Ok(place)
}

/// The arguments of a run over these tasks.
fn arguments(place: &Place, settings: &str, tasks: &[&str]) -> Vec<String> {
    let text = |path: PathBuf| path.display().to_string();
    let mut arguments = vec!["run".to_owned(), text(place.path("hangs/benchmark")), "--format=json".to_owned()];
    arguments.extend(tasks.iter().flat_map(|task| ["--task".to_owned(), format!("hang_env/{task}")]));
    arguments.push(format!("--agent=patient=scripted:{}", text(place.path("hangs/agents/patient"))));
    for (name, value) in [("--store", text(place.store())), ("--scratch", text(place.scratch()))] {
        arguments.extend([name.to_owned(), value]);
    }
    arguments.extend(["--settings".to_owned(), settings.to_owned()]);
    arguments
}

/// `longhaul run` over these tasks.
fn run(place: &Place, settings: &str, tasks: &[&str]) -> Longhaul {
    place.longhaul(arguments(place, settings, tasks))
}

/// An episode of the latest run, by its task.
fn episode(place: &Place, task: &str) -> Result<(String, Value)> {
    let shown = place.show("latest")?;
    let episodes = shown["episodes"].as_array().context("no episodes")?;
    let wanted = format!("hang_env/{task}");
    let index = episodes.iter().position(|episode| episode["task"] == wanted.as_str()).context("no such task")?;
    let name = format!("latest/{index}");
    let shown = place.show(&name)?;
    Ok((name, shown))
}

/// Fails unless an episode of the latest run is settled by a fault of this class that says this.
fn expect_fault(place: &Place, task: &str, class: &str, says: &str) -> Result<()> {
    let (_, shown) = episode(place, task)?;
    let fault = &shown["episode"]["settlement"]["faulted"];
    let message = fault["message"].as_str().unwrap_or_default();
    ensure!(fault["class"] == class && message.contains(says), "{task}: {shown:#}");
    Ok(())
}

/// An `apptainer` before the real one on the PATH, which hangs where its arguments hold `at`.
fn hanging_apptainer(place: &Place, at: &str) -> Result<String> {
    let folder = place.path("stand-in");
    place.account().make_dir(&folder)?;
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("/usr/local/bin:/usr/bin:/bin:{path}");
    let script = format!(
        "#!/bin/sh\ncase \" $* \" in\n*\"{at}\"*) sleep 3600 & wait ;;\nesac\nPATH={path} exec apptainer \"$@\"\n"
    );
    let program = folder.join("apptainer");
    std::fs::write(&program, script)?;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))?;
    place.account().give(&program)?;
    Ok(format!("{}:{path}", folder.display()))
}

#[test]
fn hooks_verifiers_and_screens_that_hang_end_at_their_limits_as_what_they_are() -> Result<()> {
    let place = place("hangs")?;
    let settings = place.settings(SHORT)?;
    let tasks = ["endless_verifier", "quiet_daemon", "endless_hook", "flood", "dying_display"];
    run(&place, &settings, &tasks).end()?.expect_code(0)?;

    let (_, shown) = episode(&place, "endless_verifier")?;
    let unverified = &shown["episode"]["settlement"]["unverified"];
    let reason = unverified["reason"].as_str().unwrap_or_default();
    ensure!(unverified["fault"] == "verifier" && reason.contains("ran over its time limit"), "{shown:#}");

    // A daemon holds up nobody, and lives as long as its sandbox.
    let (_, shown) = episode(&place, "quiet_daemon")?;
    ensure!(shown["episode"]["state"] == "passed", "{shown:#}");

    expect_fault(&place, "endless_hook", "setup_hook", "pre_task hook ran over its time limit of 3.000 s")?;
    let (_, shown) = episode(&place, "endless_hook")?;
    let tail = shown["episode"]["settlement"]["faulted"]["log_tail"].as_str().unwrap_or_default();
    ensure!(tail.contains("this is the last that is heard"), "{shown:#}");

    // A screen that never rests is taken as it is, at the limit of the rest rule.
    let (name, shown) = episode(&place, "flood")?;
    ensure!(shown["episode"]["state"] == "passed", "{shown:#}");
    let steps = place.steps(&name)?;
    ensure!(steps.len() == 3, "{steps:#?}");
    for step in &steps {
        ensure!(step["rested"] == false, "{step:#}");
    }

    expect_fault(&place, "dying_display", "display", "the display failed")?;
    leftovers::expect_nothing(place.root(), &place.scratch())
}

#[test]
fn a_tmp_that_fills_the_nodes_disk_is_a_fault_of_the_disk_and_what_was_written_goes() -> Result<()> {
    let place = place("full-tmp")?;
    let settings = place.settings(&SHORT.replace("[worker]\n", "[worker]\ndisk_floor = \"300MiB\"\n"))?;
    let asked = arguments(&place, &settings, &["full_tmp"]);
    let mut running = place.longhaul_on_small_disk("800m", asked)?.start()?;
    // Nobody but the run sees that disk; root looks over its shoulder.
    let scratch = PathBuf::from(format!("/proc/{}/root{}", running.pid(), place.scratch().display()));
    wait_for("the fault", Duration::from_secs(300), || {
        ensure!(running.runs()?, "the run ended");
        let shown =
            place.longhaul(["show", "latest/0", "--store", &place.store().display().to_string(), "--format=json"]);
        let Ok(shown) = shown.end()?.json() else { return Ok(None) };
        let end = &shown["attempts"][0]["finish"]["end"];
        ensure!(end.is_null() || end["fault"]["class"] == "node_disk", "{shown:#}");
        Ok((!end.is_null()).then_some(()))
    })?;
    // The node gets no further attempt until its disk has rested: that there is room again is seen here.
    wait_for("room on the disk", Duration::from_secs(120), || {
        let names = std::fs::read_dir(&scratch)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let names: Vec<String> = names.collect::<std::io::Result<_>>()?;
        ensure!(running.runs()?, "the run ended");
        Ok((!names.iter().any(|name| name.starts_with("sandbox-"))).then_some(()))
    })?;
    running.signal(Signal::SIGINT)?;
    running.end()?.expect_code(130)?;
    leftovers::expect_nothing(place.root(), &place.scratch())
}

#[test]
fn an_apptainer_that_blocks_is_ended_at_a_limit_and_named_wherever_it_blocks() -> Result<()> {
    let place = place("apptainer-hangs")?;
    let settings = place.settings(&SHORT.replace("[worker]\n", "[worker]\nstart_limit = \"3s\"\n"))?;
    let image = place.longhaul(["base", "--settings", &settings]).end()?.expect_code(0)?.stdout().trim().to_owned();
    let path = hanging_apptainer(&place, " /opt/longhaul/bin/helper serve ")?;
    run(&place, &settings, &["quiet_daemon"]).env("PATH", &path).end()?.expect_code(0)?;
    expect_fault(&place, "quiet_daemon", "sandbox_start", "was not up within 3 s")?;
    leftovers::expect_nothing(place.root(), &place.scratch())?;

    let scratch = place.scratch().display().to_string();
    let path = hanging_apptainer(&place, " --version ")?;
    let ended = place.longhaul(["worker", "clean", "--scratch", &scratch]).env("PATH", &path).end()?.expect_code(4)?;
    ensure!(ended.stderr().contains("said nothing for"), "{}", ended.stderr());

    // An image with one more certificate is one that has to be built.
    let (certificate, settings) = (place.path("site.pem"), place.path("build.toml"));
    std::fs::write(&certificate, include_str!("site.pem"))?;
    let certificates = format!("certificates = [\"{}\"]", certificate.display());
    std::fs::write(&settings, format!("[base]\nimage = \"{image}\"\nbuild_limit = \"3s\"\n{certificates}\n"))?;
    for file in [&certificate, &settings] {
        place.account().give(file)?;
    }
    let (settings, layers) = (settings.display().to_string(), place.path("layers").display().to_string());
    let path = hanging_apptainer(&place, " build ")?;
    let asked = ["base", "--settings", &settings, "--scratch", &scratch, "--layers", &layers];
    let ended = place.longhaul(asked).env("PATH", &path).end()?.expect_code(4)?;
    ensure!(ended.stderr().contains("`apptainer build` took longer than 3 s"), "{}", ended.stderr());
    leftovers::expect_nothing(place.root(), &place.scratch())
}
