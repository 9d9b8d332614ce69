//! Wrong inputs: each gets a message that says what is wrong, its documented exit code, and
//! takes nothing from what was stored.

use std::net::TcpListener;

use anyhow::{Context as _, Result, ensure};
use longhaul_tests::command::Ended;
use longhaul_tests::place::Place;

/// Fails unless the message holds all of `words`.
fn says(ended: &Ended, words: &[&str]) -> Result<()> {
    let text = ended.stderr();
    for word in words {
        ensure!(text.contains(word), "the message does not say `{word}`:\n{text}");
    }
    ensure!(!text.contains("panicked"), "{text}");
    Ok(())
}

#[test]
fn a_benchmark_that_is_not_there() -> Result<()> {
    let place = Place::new("no-benchmark")?;
    let missing = place.path("nowhere");
    let ended = place.longhaul(["run", &missing.display().to_string(), "--agent", "idle"]).end()?.expect_code(3)?;
    says(&ended, &["nowhere"])
}

#[test]
fn a_folder_that_is_no_benchmark_and_the_one_that_was_meant() -> Result<()> {
    let place = Place::new("wrong-folder")?;
    let inner = place.benchmark().join("environments");
    let ended = place.longhaul(["run", &inner.display().to_string(), "--agent", "idle"]).end()?.expect_code(3)?;
    says(&ended, &["environments", "did you mean"])
}

#[test]
fn a_task_that_is_not_there() -> Result<()> {
    let place = Place::new("no-task")?;
    let ended = place.run(["--task", "mousepad_env/rename_hal", "--agent", "idle"]).end()?.expect_code(3)?;
    says(&ended, &["rename_hal"])
}

#[test]
fn a_broken_task_is_refused_with_its_place_and_the_others_are_not() -> Result<()> {
    let place = Place::new("broken-task")?;
    let spec = place.benchmark().join("environments/mousepad_env/tasks/rename_hall/task.json");
    std::fs::write(&spec, "{\"id\": \"rename_hall@1\",\n \"description\": }")?;
    let ended = place.run(["--task", "mousepad_env/rename_hall", "--agent", "idle"]).end()?.expect_code(3)?;
    says(&ended, &["rename_hall"])?;
    let linted = place.longhaul(["lint", &place.benchmark().display().to_string(), "--format", "json"]).end()?;
    let findings = linted.json()?;
    ensure!(findings["tasks"]["files"] == 13 && findings["tasks"]["loaded"] == 12, "{findings:#}");
    let found = findings["findings"].as_array().context("no findings")?;
    let here = found.iter().any(|finding| {
        finding["file"].as_str().is_some_and(|file| file.ends_with("rename_hall/task.json")) && finding["line"] == 2
    });
    ensure!(here, "no finding names the file and its line: {findings:#}");
    place.run(["--task", "mousepad_env/change_setting", "--agent", "idle", "--dry-run"]).end()?.expect_code(0)?;
    Ok(())
}

#[test]
fn an_agent_that_is_none() -> Result<()> {
    let place = Place::new("no-agent")?;
    let ended = place.run(["--task", "mousepad_env/rename_hall", "--agent", "scriptet:x"]).end()?.expect_code(3)?;
    says(&ended, &["scriptet:x"])?;
    let ended =
        place.run(["--task", "mousepad_env/rename_hall", "--agent", "scripted:nowhere.jsonl"]).end()?.expect_code(3)?;
    says(&ended, &["nowhere.jsonl"])
}

#[test]
fn a_script_with_a_line_that_makes_no_sense() -> Result<()> {
    let place = Place::new("bad-script")?;
    let script = place.path("script.jsonl");
    std::fs::write(&script, "{\"action\": \"screenshot\"}\n{\"mouse\": \n")?;
    let agent = format!("scripted:{}", script.display());
    let ended = place.run(["--task", "mousepad_env/rename_hall", "--agent", &agent]).end()?.expect_code(3)?;
    says(&ended, &["script.jsonl", "line 2"])
}

#[test]
fn a_setting_that_is_none() -> Result<()> {
    let place = Place::new("bad-setting")?;
    let settings = place.path("settings.toml");
    std::fs::write(&settings, "[run]\nstep = 5\n")?;
    let ended = place.longhaul(["--settings", &settings.display().to_string(), "status"]).end()?.expect_code(3)?;
    says(&ended, &["settings.toml:2:1", "run.step", "run.steps"])
}

#[test]
fn an_option_that_is_none() -> Result<()> {
    let place = Place::new("bad-option")?;
    place.run(["--agnet", "idle"]).end()?.expect_code(2)?;
    Ok(())
}

#[test]
fn a_folder_that_is_no_store() -> Result<()> {
    let place = Place::new("no-store")?;
    let ended =
        place.longhaul(["status", "--store", &place.benchmark().display().to_string()]).end()?.expect_code(5)?;
    says(&ended, &["benchmark"])
}

#[test]
fn a_machine_without_apptainer() -> Result<()> {
    let place = Place::new("no-apptainer")?;
    let empty = place.path("empty");
    std::fs::create_dir(&empty)?;
    let ended = place
        .run(["--task", "mousepad_env/rename_hall", "--agent", "idle"])
        .env("PATH", &empty.display().to_string())
        .end()?
        .expect_code(4)?;
    says(&ended, &["pptainer"])
}

#[test]
fn a_port_in_use() -> Result<()> {
    let place = Place::new("port-in-use")?;
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?.to_string();
    let store = place.store().display().to_string();
    let ended = place.longhaul(["serve", "--store", &store, "--listen", &address]).end()?.expect_code(4)?;
    says(&ended, &[&address])
}

#[test]
fn a_store_in_use_and_a_coordinator_that_is_gone() -> Result<()> {
    let place = Place::new("store-in-use")?;
    let store = place.store().display().to_string();
    let serving = place.serve(&[])?;
    let second = place.longhaul(["serve", "--store", &store]).end()?.expect_code(5)?;
    says(&second, &[&store])?;
    let access = place.access();
    serving.stop()?;
    let ended = place.longhaul(["status", "--coordinator", &access.display().to_string()]).end()?.expect_code(6)?;
    says(&ended, &["coordinator"])?;
    // What was stored is read without it.
    let status = place.longhaul(["status", "--store", &store, "--format", "json"]).json()?;
    ensure!(status["live"] == false, "{status:#}");
    Ok(())
}

#[test]
fn a_store_of_another_version_is_refused_and_left_as_it_is() -> Result<()> {
    let place = Place::new("other-version")?;
    let store = place.store().display().to_string();
    let serving = place.serve(&[])?;
    serving.stop()?;
    let marker = place.store().join("format");
    let before = std::fs::read_to_string(&marker).context("a store says its format in a file")?;
    std::fs::write(&marker, before.replace(|c: char| c.is_ascii_digit(), "9"))?;
    let listing = list(&place)?;
    let ended = place.longhaul(["status", "--store", &store]).end()?.expect_code(5)?;
    says(&ended, &["9"])?;
    place.longhaul(["serve", "--store", &store]).end()?.expect_code(5)?;
    ensure!(list(&place)? == listing, "the refused store was changed");
    Ok(())
}

/// The names and sizes of a store's files.
fn list(place: &Place) -> Result<Vec<(String, u64)>> {
    let mut found = Vec::new();
    let mut folders = vec![place.store()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else {
                found.push((entry.path().display().to_string(), entry.metadata()?.len()));
            }
        }
    }
    found.sort();
    Ok(found)
}
