//! The tree itself: which crate may see which, what no file may name, whether documents and
//! examples hold together.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use longhaul_tests::tree;
use serde_json::Value;

/// What a crate may not depend on: its own crates beyond `sees`, and outside crates in `never`.
struct Edge {
    name: &'static str,
    sees: &'static [&'static str],
    never: &'static [&'static str],
}

/// The crates' table of docs/architecture.md, as far as `cargo metadata` can tell.
const EDGES: &[Edge] = &[
    Edge { name: "longhaul-core", sees: &[], never: &["tokio", "tonic", "rocksdb", "nix", "rand"] },
    Edge { name: "longhaul-proto", sees: &["longhaul-core"], never: &["tokio", "rocksdb"] },
    Edge { name: "longhaul-engine", sees: &["longhaul-core"], never: &["tokio", "tonic", "rocksdb", "rand", "nix"] },
    Edge { name: "longhaul-store", sees: &["longhaul-core", "longhaul-engine"], never: &["tonic", "tonic-prost"] },
    Edge {
        name: "longhaul-report",
        sees: &["longhaul-core", "longhaul-store", "longhaul-engine"],
        never: &["tonic", "rocksdb"],
    },
    Edge {
        name: "longhaul-coordinator",
        sees: &[
            "longhaul-core",
            "longhaul-proto",
            "longhaul-engine",
            "longhaul-store",
            "longhaul-report",
            "longhaul-slurm",
        ],
        never: &["rocksdb"],
    },
    Edge {
        name: "longhaul-worker",
        sees: &["longhaul-core", "longhaul-proto", "longhaul-apptainer", "longhaul-gateway"],
        never: &["rocksdb"],
    },
    Edge { name: "longhaul-gateway", sees: &["longhaul-core", "longhaul-proto"], never: &["tonic", "rocksdb"] },
    Edge { name: "longhaul-apptainer", sees: &["longhaul-core"], never: &["tonic", "rocksdb"] },
    Edge { name: "longhaul-helper", sees: &["longhaul-core", "longhaul-proto"], never: &["tokio", "tonic", "rocksdb"] },
    Edge { name: "longhaul-slurm", sees: &["longhaul-core"], never: &["tonic", "rocksdb"] },
    Edge {
        name: "longhaul-node",
        sees: &[
            "longhaul-core",
            "longhaul-proto",
            "longhaul-worker",
            "longhaul-apptainer",
            "longhaul-helper",
            "longhaul-slurm",
        ],
        never: &["rocksdb"],
    },
];

#[test]
fn no_crate_sees_what_it_must_not() -> Result<()> {
    let mut wrong = Vec::new();
    let packages = packages()?;
    for edge in EDGES {
        let dependencies = packages.get(edge.name).with_context(|| format!("no crate {}", edge.name))?;
        for dependency in dependencies {
            let own = dependency.starts_with("longhaul-");
            if (own && !edge.sees.contains(&dependency.as_str())) || edge.never.contains(&dependency.as_str()) {
                wrong.push(format!("{} depends on {dependency}", edge.name));
            }
        }
    }
    ensure!(wrong.is_empty(), "forbidden: {wrong:#?}");
    // A crate that nobody thought of has no rule yet.
    let ruled: BTreeSet<_> = EDGES.iter().map(|edge| edge.name).chain(["longhaul", "longhaul-tests"]).collect();
    let unruled: Vec<_> = packages.keys().filter(|name| !ruled.contains(name.as_str())).collect();
    ensure!(unruled.is_empty(), "crates without a rule in this test: {unruled:?}");
    Ok(())
}

/// What a crate is linked with, by whatever way, is more than what it names.
#[test]
fn nothing_of_the_coordinator_is_linked_into_the_nodes_program() -> Result<()> {
    let metadata = metadata(&["--filter-platform", "x86_64-unknown-linux-gnu"])?;
    let nodes = metadata["resolve"]["nodes"].as_array().context("no resolved crates")?;
    let name = |id: &str| {
        let packages = metadata["packages"].as_array().into_iter().flatten();
        packages.filter(|package| package["id"] == id).find_map(|package| package["name"].as_str())
    };
    let mut linked: BTreeMap<&str, &str> = BTreeMap::new();
    let mut open: Vec<&str> = nodes.iter().filter_map(|node| node["id"].as_str()).collect();
    open.retain(|id| name(id) == Some("longhaul-node"));
    while let Some(id) = open.pop() {
        if linked.insert(id, name(id).context("no name")?).is_some() {
            continue;
        }
        let node = nodes.iter().find(|node| node["id"] == id).context("a crate is not resolved")?;
        for dependency in node["deps"].as_array().context("no dependencies")? {
            let kinds = dependency["dep_kinds"].as_array().context("no kinds")?;
            // Neither what builds it nor what tests it is in it.
            if kinds.iter().any(|kind| kind["kind"].is_null()) {
                open.extend(dependency["pkg"].as_str());
            }
        }
    }
    let names: BTreeSet<&str> = linked.into_values().collect();
    ensure!(names.contains("longhaul-worker") && names.contains("tokio"), "what was looked at? {names:?}");
    for never in ["rocksdb", "librocksdb-sys", "longhaul-store", "longhaul-engine", "longhaul-coordinator", "longhaul"]
    {
        ensure!(!names.contains(never), "{never} is linked into longhaul-node");
    }
    Ok(())
}

/// Who looks at the time of day, and what for: never for how long something may take. A clock that is set
/// forward by a day would end everything, and one that is set back nothing.
const TIME_OF_DAY: &[(&str, &str)] = &[
    ("apptainer/src/layers/prune.rs", "the order in which layers were used"),
    ("apptainer/src/layers/store.rs", "the order in which layers were used"),
    ("coordinator/src/message.rs", "the engine's clock: it takes jumps for what they are, and its simulation has them"),
    ("src/commands/rejudge/mod.rs", "written down with verdicts"),
    ("src/commands/run/submit.rs", "ids of runs"),
    ("src/commands/store.rs", "the age of runs, for people"),
    ("src/node/worker.rs", "ids of workers"),
    ("worker/gateway/src/ports.rs", "written down with calls; dates in vendors' answers"),
    ("worker/src/blobs/cache.rs", "the order in which files were used"),
    ("worker/src/moment.rs", "written down with steps"),
];

#[test]
fn no_limit_is_counted_by_the_time_of_day() -> Result<()> {
    let root = tree::repository();
    let asks = ["SystemTime::now", "Timestamp::now", "Zoned::now"];
    let mut found = BTreeSet::new();
    for file in tree::files()? {
        let name = file.strip_prefix(&root)?.to_string_lossy().into_owned();
        let is_test = name.starts_with("tests/") || name.contains("/tests/") || name.ends_with("/tests.rs");
        if !name.ends_with(".rs") || is_test || name.contains("/benches/") || name.contains("/testing/") {
            continue;
        }
        let text = std::fs::read_to_string(&file)?;
        let product = text.split("#[cfg(test)]").next().unwrap_or_default();
        if asks.iter().any(|ask| product.contains(ask)) {
            found.insert(name);
        }
    }
    let known: BTreeSet<String> = TIME_OF_DAY.iter().map(|(name, _)| (*name).to_owned()).collect();
    ensure!(found == known, "the time of day is asked for by {found:#?}, and {known:#?} are known to");
    Ok(())
}

/// What cargo says of the workspace.
fn metadata(arguments: &[&str]) -> Result<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--offline", "--locked"])
        .args(arguments)
        .current_dir(tree::repository())
        .output()?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The workspace's crates, and what each depends on to run or to be built.
fn packages() -> Result<BTreeMap<String, BTreeSet<String>>> {
    let metadata = metadata(&["--no-deps"])?;
    let mut packages = BTreeMap::new();
    for package in metadata["packages"].as_array().context("no packages")? {
        let dependencies = package["dependencies"].as_array().context("no dependencies")?;
        let names = dependencies
            .iter()
            .filter(|dependency| dependency["kind"].as_str() != Some("dev"))
            .filter_map(|dependency| dependency["name"].as_str().map(str::to_owned))
            .collect();
        packages.insert(package["name"].as_str().context("no name")?.to_owned(), names);
    }
    Ok(packages)
}

#[test]
fn no_file_names_one_machine_or_a_registry() -> Result<()> {
    // Put together here, so that this file does not name them either.
    let forbidden = [
        concat!("/wo", "rk/"),
        concat!("/ro", "ot/."),
        concat!("deb.", "debian.org"),
        concat!("static.", "crates.io"),
        concat!("index.", "crates.io"),
        concat!("files.", "pythonhosted.org"),
    ];
    let mut found = Vec::new();
    for path in tree::files()? {
        if path.ends_with("Cargo.lock") {
            continue;
        }
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        for (number, line) in text.lines().enumerate() {
            if let Some(word) = forbidden.iter().find(|word| line.contains(*word)) {
                found.push(format!("{}:{}: {word}", path.display(), number + 1));
            }
        }
    }
    ensure!(found.is_empty(), "{found:#?}");
    Ok(())
}

#[test]
fn every_source_file_says_what_it_is_for() -> Result<()> {
    let silent: Vec<_> = tree::files()?
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .filter(|path| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            !text.lines().find(|line| !line.trim().is_empty()).is_some_and(|line| line.starts_with("//!"))
        })
        .collect();
    ensure!(silent.is_empty(), "no `//!` at the top: {silent:#?}");
    Ok(())
}

#[test]
fn every_script_parses() -> Result<()> {
    let mut wrong = Vec::new();
    for path in tree::files()? {
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let shell = text.lines().next().is_some_and(|line| line.starts_with("#!") && line.ends_with("bash"));
        if shell && !Command::new("bash").arg("-n").arg(&path).status()?.success() {
            wrong.push(path);
        }
    }
    ensure!(wrong.is_empty(), "bash does not parse: {wrong:#?}");
    Ok(())
}

#[test]
fn every_link_of_a_document_leads_somewhere() -> Result<()> {
    let mut broken = Vec::new();
    for path in documents()? {
        let text = std::fs::read_to_string(&path)?;
        let folder = path.parent().context("a file is in a folder")?;
        for target in links(&text) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let leads_to = if file.is_empty() { path.clone() } else { folder.join(file) };
            if !leads_to.exists() {
                broken.push(format!("{}: {target}", path.display()));
            } else if !anchor.is_empty() && !has_heading(&std::fs::read_to_string(&leads_to)?, anchor) {
                broken.push(format!("{}: no such heading: {target}", path.display()));
            }
        }
    }
    ensure!(broken.is_empty(), "{broken:#?}");
    Ok(())
}

#[test]
fn every_target_that_a_document_names_is_in_the_makefile() -> Result<()> {
    let makefile = std::fs::read_to_string(tree::repository().join("Makefile"))?;
    let targets: BTreeSet<&str> =
        makefile.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim()).collect();
    let mut unknown = Vec::new();
    for path in documents()? {
        let text = std::fs::read_to_string(&path)?;
        for (start, _) in text.match_indices("`make ") {
            let rest = &text[start + "`make ".len()..];
            let name: String = rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '-').collect();
            if !name.is_empty() && !targets.contains(name.as_str()) {
                unknown.push(format!("{}: make {name}", path.display()));
            }
        }
    }
    ensure!(unknown.is_empty(), "{unknown:#?}");
    Ok(())
}

#[test]
fn every_dependency_has_its_reason() -> Result<()> {
    let manifest = std::fs::read_to_string(tree::repository().join("Cargo.toml"))?;
    let reasons = std::fs::read_to_string(tree::repository().join("docs/dependencies.md"))?;
    let section = manifest.split("[workspace.dependencies]").nth(1).context("no dependencies")?;
    let missing: Vec<_> = section
        .lines()
        .take_while(|line| !line.starts_with("[workspace.lints"))
        .filter_map(|line| line.split_once(" = "))
        .map(|(name, _)| name)
        .filter(|name| !name.starts_with("longhaul-") && !reasons.contains(&format!("`{name}`")))
        .collect();
    ensure!(missing.is_empty(), "not in docs/dependencies.md: {missing:?}");
    Ok(())
}

#[test]
fn the_examples_hold_together() -> Result<()> {
    let root = tree::repository().join("examples");
    let (mut envs, mut tasks, mut long) = (0, 0, 0);
    for env in folders(&root.join("benchmark/environments"))? {
        envs += 1;
        for task in folders(&env.join("tasks"))? {
            tasks += 1;
            let name = format!("{}/{}", last(&env), last(&task));
            let in_rounds = task.join("rounds").is_dir();
            let scored = ["export_result.sh", "verifier.py", "vlm_checklist.json"];
            let scored = if in_rounds { &["rounds/read.sh"][..] } else { &scored };
            for file in ["task.json", "setup_task.sh"].iter().chain(scored) {
                ensure!(task.join(file).is_file(), "{name} has no {file}");
            }
            if !in_rounds {
                let points = points_of(&task.join("vlm_checklist.json"))?;
                ensure!(points == 100, "the checklist of {name} gives {points} points, not 100");
            }
            for agent in ["solver", "careless"] {
                let script = root.join("agents").join(agent).join(format!("{name}.jsonl"));
                let text = std::fs::read_to_string(&script).with_context(|| format!("no {}", script.display()))?;
                let steps = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).count();
                if agent == "solver" && steps > 100 {
                    long += 1;
                }
            }
        }
    }
    ensure!(envs >= 3 && tasks >= 8 && long >= 1, "{envs} envs, {tasks} tasks, {long} of them long");
    Ok(())
}

/// What a checklist gives at most.
fn points_of(checklist: &Path) -> Result<u64> {
    let checklist: Value = serde_json::from_slice(&std::fs::read(checklist)?)?;
    let items = checklist["task_completion"].as_array().context("a checklist has items")?;
    Ok(items.iter().filter_map(|item| item["points"].as_u64()).sum())
}

/// An env is a folder of its own, so what several of the examples need is in each of them;
/// what is mended in one is mended in all.
#[test]
fn what_the_example_envs_share_is_the_same_in_each() -> Result<()> {
    let root = tree::repository().join("examples/benchmark/environments");
    let mut desktops = BTreeSet::new();
    let mut functions: BTreeMap<String, (String, String)> = BTreeMap::new();
    let mut shared = 0;
    for env in folders(&root)? {
        desktops.insert(std::fs::read(env.join("scripts/desktop.sh"))?);
    }
    let is_module = |path: &Path| path.extension().is_some_and(|extension| extension == "py");
    let modules = tree::files()?.into_iter().filter(|path| path.starts_with(&root) && is_module(path));
    for module in modules.filter(|path| path.parent().is_some_and(|folder| folder.ends_with("utils"))) {
        for (name, text) in functions_of(&std::fs::read_to_string(&module)?) {
            let place = module.display().to_string();
            match functions.get(&name) {
                Some((other, before)) => {
                    ensure!(*before == text, "`{name}` of {place} is another than that of {other}");
                    shared += 1;
                }
                None => drop(functions.insert(name, (place, text))),
            }
        }
    }
    ensure!(desktops.len() == 1, "there are {} different desktop.sh in the examples", desktops.len());
    ensure!(shared > 0, "no function of the examples' utils is in two envs: what does this test look at?");
    Ok(())
}

/// The functions at the top of a Python module, by name, each with its text.
fn functions_of(module: &str) -> Vec<(String, String)> {
    let blocks = module.split("\n\n\n").filter_map(|block| block.trim().strip_prefix("def "));
    blocks.filter_map(|block| Some((block.split_once('(')?.0.to_owned(), block.to_owned()))).collect()
}

fn documents() -> Result<Vec<std::path::PathBuf>> {
    Ok(tree::files()?.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect())
}

/// The targets of `[text](target)`.
fn links(text: &str) -> Vec<&str> {
    text.match_indices("](")
        .filter_map(|(start, _)| text[start + 2..].split_once(')').map(|(target, _)| target.trim()))
        .filter(|target| !target.is_empty() && !target.contains(' ') && !target.contains('\n'))
        .collect()
}

/// Whether a document has the heading that an anchor names.
fn has_heading(text: &str, anchor: &str) -> bool {
    text.lines().filter(|line| line.starts_with('#')).any(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let slug: String = title
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect();
        slug == anchor
    })
}

fn folders(path: &Path) -> Result<Vec<std::path::PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn last(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
