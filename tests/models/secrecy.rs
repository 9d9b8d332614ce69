//! The vendor's key: in the memory of the coordinator and its worker, and nowhere else. And all
//! that is said of what a model was asked, has answered and has cost.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use longhaul_tests::leftovers;
use longhaul_tests::place::Place;
use serde_json::{Value, json};

use crate::forms::{Do, Form, Model};
use crate::vendor::{KEY, KEY_NAME, Vendor, dollars, endpoint, said, settings, settled};

/// What the model says, and so what has to be found where its answers are kept.
const SAID: &str = "words-that-only-the-model-has-said";

/// A hall has a new name: in the dialog of the editor, as a model would do it.
const RENAME: [&[Do]; 5] = [
    &[Do::Press("ctrl+r")],
    &[Do::Type("Old Hall"), Do::Click(444, 410)],
    &[Do::Click(680, 314), Do::Type("Linden Hall"), Do::Click(444, 468)],
    &[Do::Click(723, 508)],
    &[Do::Press("Escape"), Do::Press("ctrl+s"), Do::Wait],
];

fn contains(bytes: &[u8], word: &str) -> bool {
    bytes.windows(word.len()).any(|window| window == word.as_bytes())
}

/// The files below a folder that hold a word. What goes away meanwhile, and what others may not
/// read, holds none.
fn files_with(word: &str, folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files_with(word, &path, found),
            Ok(kind) if kind.is_file() && fs::read(&path).is_ok_and(|bytes| contains(&bytes, word)) => found.push(path),
            _ => {}
        }
    }
}

/// The processes of this machine in whose arguments or environment a word stands.
fn processes_with(word: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let folder = entry?.path();
        let holds = |file: &str| fs::read(folder.join(file)).is_ok_and(|bytes| contains(&bytes, word));
        if holds("cmdline") || holds("environ") {
            let name = fs::read_to_string(folder.join("comm")).unwrap_or_default();
            found.push(format!("{} {}", folder.display(), name.trim()));
        }
    }
    Ok(found)
}

/// Fails if the key is anywhere where somebody could find it.
fn expect_no_key(place: &Place, when: &str) -> Result<()> {
    let processes = processes_with(KEY)?;
    ensure!(processes.is_empty(), "{when}, the key is in {processes:#?}");
    let mut files = Vec::new();
    files_with(KEY, place.root(), &mut files);
    ensure!(files.is_empty(), "{when}, the key is in {files:#?}");
    Ok(())
}

#[test]
fn the_key_is_nowhere_and_what_a_call_was_and_cost_is_in_the_export() -> Result<()> {
    let place = Place::new("secrecy")?;
    let model = Model { form: Form::Anthropic2025, picture: (640, 360) };
    let mut answers: Vec<Value> = RENAME.iter().map(|step| model.does(SAID, step)).collect();
    // The vendor serves another model under the same name, without a word.
    answers[3]["model"] = json!("model-of-tuesday");
    answers.push(model.ends("The hall has its new name."));
    let vendor = Vendor::with(answers)?;
    let settings = settings(&place, &[endpoint("claude", "anthropic", &vendor)])?;

    let serving = place.serve(&["--settings", &settings])?;
    let access = place.access().display().to_string();
    let scratch = place.scratch().display().to_string();
    let worker = ["worker", "--coordinator", &access, "--scratch", &scratch, "--slots", "1", "--settings", &settings];
    let working = place.longhaul(worker).start()?;
    let benchmark = place.benchmark().display().to_string();
    let agent = "--agent=claude=claude:model-a?max_output=300&image=640x360\
                 &parameters.loop={\"tool\":\"computer_20250124\"}";
    let submit = ["run", &benchmark, "--coordinator", &access, "--settings", &settings, "--fail-on-fault"];
    let submit = || submit.iter().copied().chain(["--task", "mousepad_env/rename_hall", "--budget", "1", agent]);
    // The run itself has no key: the coordinator is given it, by a program that ends.
    let put = place.longhaul(["secrets", "put", KEY_NAME, "--from-env", "--coordinator", &access]);
    put.env(KEY_NAME, KEY).end()?.expect_code(0)?;
    let mut following = place.longhaul(submit()).start()?;

    // In the middle of a call everything is there that there ever is.
    vendor.wait_for_calls(3, &mut following)?;
    vendor.hold(true)?;
    vendor.wait_for_calls(4, &mut following)?;
    expect_no_key(&place, "in the middle of a call")?;
    let mut kept = Vec::new();
    files_with(SAID, place.root(), &mut kept);
    ensure!(kept.iter().any(|path| path.starts_with(place.store())), "files are not looked into: {kept:#?}");
    vendor.hold(false)?;
    following.end()?.expect_code(0)?;
    let shown = place.show("latest/0")?;
    ensure!(shown["episode"]["state"] == "passed", "{shown:#}");
    let steps = said(&place, &["show", "latest/0", "--steps"])?;
    let calls = said(&place, &["show", "latest/0", "--calls"])?;
    let episode = said(&place, &["show", "latest/0"])?;
    for (name, text) in [("steps", &steps), ("calls", &calls), ("episode", &episode)] {
        ensure!(!text.contains(KEY), "the key is in what is shown of the {name}");
    }

    // What it cost, and who answered.
    let spent = dollars(vendor.billed());
    ensure!(episode.lines().any(|line| line.starts_with("spent") && line.ends_with(&spent)), "{spent}: {episode}");
    let warnings: Vec<&str> = episode.lines().filter(|line| line.contains("warning")).collect();
    ensure!(warnings.iter().any(|line| line.contains("model-of-tuesday")), "{episode}");
    ensure!(calls.contains("model-a-2026") && calls.contains("model-of-tuesday"), "{calls}");

    working.stop()?;
    serving.stop()?;
    let folder = place.path("exported");
    said(&place, &["export", "latest", "-o", &folder.display().to_string()])?;
    expect_no_key(&place, "at the end")?;
    let lines = fs::read_to_string(folder.join("calls.jsonl"))?;
    let exported: Vec<Value> = lines.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let settled = settled(&exported);
    ensure!(settled == vendor.billed(), "{settled} are exported, {} were billed", vendor.billed());
    let last = exported.last().context("no call")?;
    ensure!(last["certainty"] == "reported" && last["usage"]["output"].as_u64() > Some(0), "{last:#}");
    place.expect_sound()?;
    leftovers::expect_nothing(place.root(), &place.scratch())
}
