//! Layers that are carried to another cluster, and used again to the byte, through the real
//! program in real containers.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use longhaul_tests::leftovers;
use longhaul_tests::place::Place;
use serde_json::Value;

const TASK: [&str; 3] = ["--task", "mousepad_env/change_setting", "--agent=idle"];

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// The manifest, in a folder, of the layer of this kind that has a file of its own.
fn manifest(folder: &Path, kind: &str) -> Result<(PathBuf, Value)> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "json") {
            let value: Value = serde_json::from_slice(&fs::read(&path)?)?;
            if value["kind"] == kind && value["content"] == "file" {
                return Ok((path, value));
            }
        }
    }
    anyhow::bail!("no {kind} layer in {}", folder.display())
}

#[test]
fn a_run_stands_on_carried_layers_of_an_earlier_one_to_the_byte_or_does_not_start() -> Result<()> {
    let place = Place::new("carried")?;
    place.run(TASK).end()?.expect_code(0)?;
    let (store, carried, layers) = (text(&place.store()), text(&place.path("carried")), place.path("layers"));
    let there = text(&layers);

    // A base image that is there already, in place of the built-in one.
    let base: Vec<String> =
        std::env::var("LONGHAUL_TEST_BASE").map(|image| vec!["--base".to_owned(), image]).unwrap_or_default();
    let with_base = |args: &[&str]| args.iter().map(|arg| (*arg).to_owned()).chain(base.clone()).collect::<Vec<_>>();

    // To a folder that has nothing, image included.
    let export = ["layers", "export", "--run", "latest", "--store", &store, "-o", &carried, "--format", "json"];
    let exported = place.longhaul(with_base(&export)).json()?;
    ensure!(exported["base"]["bytes"].as_u64() > Some(1 << 20) && !exported["layers"][0].is_null(), "{exported:#}");
    let import = ["layers", "import", &carried, "--layers", &there, "--format", "json"];
    let imported = place.longhaul(import).json()?;
    ensure!(imported["layers"][0]["outcome"] == "taken" && imported["base"]["outcome"] == "taken", "{imported:#}");
    ensure!(place.longhaul(import).json()?["layers"][0]["outcome"] == "kept", "a second time changes nothing");
    let again = |layers: &str| place.run(TASK.iter().copied().chain(["--layers", layers, "--layers-from", "latest"]));
    again(&there).end()?.expect_code(0)?;
    let hooks = place.hooks_of_latest()?;
    ensure!(hooks.iter().all(|hook| !hook.contains("layer built")), "something was built: {hooks:#?}");
    leftovers::expect_nothing(place.root(), &place.scratch())?;

    // What runs stand on is said, and is kept.
    let why = ["layers", "why", &text(&place.benchmark()), "--env", "mousepad_env", "--layers", &there];
    let rest = ["--scratch", &text(&place.scratch()), "--store", &store, "--format", "json"];
    let why = place.longhaul(with_base(&[&why[..], &rest[..]].concat())).json()?;
    ensure!(why[0]["cited_by"].as_array().map(Vec::len) == Some(2) && why[0]["content"].is_string(), "{why:#}");
    let prune = ["layers", "prune", "--to", "1B", "--layers", &there];
    place.longhaul(prune.iter().chain(&["--store", &store])).end()?.expect_code(0)?;
    let (path, mut value) = manifest(&layers, "install")?;

    // A layer of the same key that was built on another day.
    let whole = fs::read(&path)?;
    value["digest"] = Value::String("0".repeat(64));
    fs::write(&path, serde_json::to_vec(&value)?)?;
    let refused = again(&there).end()?.expect_code(3)?.stderr();
    ensure!(refused.contains("install layer of mousepad_env") && refused.contains("has another content"), "{refused}");
    fs::write(&path, &whole)?;

    // None at all, and a hook that is not what it was.
    place.longhaul(prune.iter().chain(&["--cited"])).end()?.expect_code(0)?;
    ensure!(manifest(&layers, "install").is_err(), "what is cited goes if that is asked for");
    let refused = again(&there).end()?.expect_code(3)?.stderr();
    ensure!(refused.contains("install layer of mousepad_env") && refused.contains("is not in"), "{refused}");
    place.longhaul(import).end()?.expect_code(0)?;
    let script = place.benchmark().join("environments/mousepad_env/scripts/install_mousepad.sh");
    let edited = fs::read_to_string(&script)? + "\n# another day\n";
    fs::write(&script, edited)?;
    let refused = again(&there).end()?.expect_code(3)?.stderr();
    ensure!(refused.contains("mousepad_env") && refused.contains("has changed since"), "{refused}");
    Ok(())
}

/// Two nodes that see nothing of each other's disks: what the first has built the second gets
/// from the coordinator.
#[test]
fn nodes_without_a_folder_in_common_build_a_layer_once() -> Result<()> {
    let place = Place::new("apart")?;
    // The image is no layer, and is not what this is about: that of the other tests.
    let image = match std::env::var("LONGHAUL_TEST_BASE") {
        Ok(image) => image,
        Err(_) => place.longhaul(["base"]).end()?.expect_code(0)?.stdout().trim().to_owned(),
    };
    let settings = place.path("carrying.toml");
    fs::write(&settings, format!("[layers]\ncarry = \"always\"\n\n[base]\nimage = \"{image}\"\n"))?;
    let settings = text(&settings);
    let serving = place.serve(&["--settings", &settings])?;
    let access = text(&place.access());
    let benchmark = text(&place.benchmark());
    for (node, builds) in [("one", true), ("two", false)] {
        let (layers, scratch) =
            (text(&place.path(&format!("layers-{node}"))), text(&place.path(&format!("scratch-{node}"))));
        let own = ["--layers", &layers, "--scratch", &scratch, "--settings", &settings];
        let worker = place.longhaul(["worker", "--coordinator", &access].iter().chain(&own)).start()?;
        let run = ["run", &benchmark, "--coordinator", &access, "--settings", &settings];
        place.longhaul(run.iter().chain(&TASK)).end()?.expect_code(0)?;
        let built = place.hooks_of_latest()?;
        ensure!(built.iter().any(|hook| hook.contains("install")) == builds, "node {node} built {built:#?}");
        ensure!(manifest(Path::new(&layers), "install").is_ok(), "node {node} has no install layer of its own");
        worker.stop()?;
    }
    serving.stop()?;
    for node in ["one", "two"] {
        leftovers::expect_nothing(place.root(), &place.path(&format!("scratch-{node}")))?;
    }
    Ok(())
}
