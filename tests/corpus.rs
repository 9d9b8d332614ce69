//! `make corpus CLONE=path`: runs envs of a clone of Gym-Anything, unchanged, and writes for
//! each of their tasks how far it came and why it stopped there.
//!
//! ```text
//! longhaul-corpus CLONE [--env NAME]... [--tasks N] [--steps N] [--at-once N]
//!     [--tolerate ENV]... [--base [ENV=]IMAGE]... [--settings FILE] [--output FILE]
//! ```
//!
//! The agents are scripted: one looks at the screen, waits for what the setup left starting,
//! looks again and is done; for the long task of one env, a word processor, another one types
//! line after line, `--steps` of them. What is measured is whether a task comes up and settles,
//! not whether it is solved. The first and the last screenshot of every task are kept beside
//! the store, to be looked at by a person.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;

use anyhow::{Context as _, Result, bail, ensure};
use longhaul_tests::account::Account;
use longhaul_tests::place::Place;
use longhaul_tests::tree;
use serde_json::Value;

/// Envs that install from Debian's packages alone.
const ENVS: &[&str] = &[
    "calligra_words_env",
    "gpredict_env",
    "gnu_octave_env",
    "libreoffice_calc_env",
    "thunderbird_env",
    "gcompris_env",
];

/// Envs whose scripts were written for another distribution than the usual image's, so that their
/// program behaves as they expect.
const BASES: &[(&str, &str)] = &[("gcompris_env", "ubuntu-22.04")];

/// The env in whose long task lines are typed.
const TYPED: &str = "calligra_words_env";

/// Looks, waits, looks again, and is done. Several setups end while their program still shows
/// its splash screen; the last look is to find its window.
const LOOK: &str =
    "{\"action\": \"wait\", \"time\": 9}\n{\"action\": \"screenshot\"}\n{\"text\": \"seen\", \"done\": true}\n";

struct Options {
    clone: PathBuf,
    envs: Vec<String>,
    tasks: usize,
    steps: usize,
    at_once: usize,
    tolerate: Vec<String>,
    bases: Vec<String>,
    settings: Option<PathBuf>,
    output: Option<PathBuf>,
}

fn main() -> Result<()> {
    let options = options()?;
    let account = Account::find()?;
    let folder = account.home().join(".cache/longhaul/corpus");
    account.make_dir(&folder)?;
    let program = Place::program(&account)?;
    let benchmark = copy_envs(&options, &folder, &account)?;
    let long = long_tasks(&benchmark)?;
    let queue = Mutex::new(options.envs.iter().rev().cloned().collect::<Vec<_>>());
    let sections = Mutex::new(BTreeMap::new());
    thread::scope(|scope| {
        for _ in 0..options.at_once {
            scope.spawn(|| {
                // A poisoned lock means that another thread failed; its section is missing then.
                while let Some(env) = queue.lock().ok().and_then(|mut queue| queue.pop()) {
                    let section = run_env(&env, &options, &benchmark, &long, &folder, &account, &program)
                        .unwrap_or_else(|error| format!("The run itself failed: {error:#}\n"));
                    let text = format!("## {env}\n\n{section}\n");
                    let _ = std::io::stdout().write_all(text.as_bytes());
                    if let Ok(mut sections) = sections.lock() {
                        sections.insert(env, text);
                    }
                }
            });
        }
    });
    let sections = sections.into_inner().map_err(|_| anyhow::anyhow!("a thread failed"))?;
    if let Some(output) = &options.output {
        let body: Vec<_> = options.envs.iter().filter_map(|env| sections.get(env).cloned()).collect();
        tree::replace_results(output, &body.join("\n"))?;
    }
    Ok(())
}

fn options() -> Result<Options> {
    let mut options = Options {
        clone: PathBuf::new(),
        envs: Vec::new(),
        tasks: 5,
        steps: 200,
        at_once: 2,
        tolerate: Vec::new(),
        bases: Vec::new(),
        settings: None,
        output: None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} takes a value"));
        match argument.as_str() {
            "--env" => options.envs.push(value()?),
            "--tasks" => options.tasks = value()?.parse()?,
            "--steps" => options.steps = value()?.parse()?,
            "--at-once" => options.at_once = value()?.parse()?,
            "--tolerate" => options.tolerate.push(value()?),
            "--base" => options.bases.push(value()?),
            "--settings" => options.settings = Some(std::path::absolute(value()?)?),
            "--output" => options.output = Some(value()?.into()),
            _ if options.clone.as_os_str().is_empty() && !argument.starts_with('-') => options.clone = argument.into(),
            _ => bail!("what is `{argument}`?"),
        }
    }
    ensure!(
        options.clone.join("benchmarks/cua_world/environments").is_dir(),
        "name a clone of Gym-Anything: make corpus CLONE=path"
    );
    if options.envs.is_empty() {
        options.envs = ENVS.iter().map(|&env| env.to_owned()).collect();
    }
    Ok(options)
}

/// Copies what is needed of the clone to where the account can read it.
fn copy_envs(options: &Options, folder: &Path, account: &Account) -> Result<PathBuf> {
    let from = options.clone.join("benchmarks/cua_world");
    let to = folder.join("clone/benchmarks/cua_world");
    tree::copy(&from.join("splits"), &to.join("splits"), account)?;
    for env in &options.envs {
        let env = Path::new("environments").join(env);
        ensure!(from.join(&env).is_dir(), "the clone has no {}", env.display());
        tree::copy(&from.join(&env), &to.join(&env), account)?;
    }
    Ok(to)
}

/// The task that the long_horizon split names for each env.
fn long_tasks(benchmark: &Path) -> Result<BTreeMap<String, String>> {
    let mut long = BTreeMap::new();
    for entry in std::fs::read_dir(benchmark.join("splits"))? {
        let Ok(split) = serde_json::from_str::<Value>(&std::fs::read_to_string(entry?.path())?) else { continue };
        let env = split["env_folder"].as_str().and_then(|folder| folder.rsplit('/').next());
        let task = split["additional_splits"]["long_horizon"][0].as_str();
        if let (Some(env), Some(task)) = (env, task) {
            long.insert(env.to_owned(), task.to_owned());
        }
    }
    Ok(long)
}

/// The tasks of an env that are run: its long one, then the first others by name.
fn pick(benchmark: &Path, env: &str, long: Option<&String>, count: usize) -> Result<Vec<String>> {
    let folder = benchmark.join("environments").join(env).join("tasks");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(|| format!("no {}", folder.display()))? {
        let entry = entry?;
        if entry.path().join("task.json").is_file() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    names.sort_by_key(|name| Some(name) != long);
    // The long task comes beside the others.
    names.truncate(count + usize::from(long.is_some()));
    Ok(names)
}

fn run_env(
    env: &str,
    options: &Options,
    benchmark: &Path,
    long: &BTreeMap<String, String>,
    folder: &Path,
    account: &Account,
    program: &Path,
) -> Result<String> {
    let place = folder.join(env);
    let agent = place.join("agent");
    account.make_dir(&agent.join(env))?;
    let tasks = pick(benchmark, env, long.get(env), options.tasks)?;
    let mut command = account.command(program);
    if let Some(settings) = &options.settings {
        command.arg("--settings").arg(settings);
    }
    command.arg("run").arg(benchmark).args(["--slots", "1", "--max-attempts", "1", "--name", env]);
    command.arg("--store").arg(place.join("store")).arg("--agent").arg(format!("scripted:{}", agent.display()));
    let base = base_of(env, &options.bases);
    if let Some(base) = &base {
        command.args(["--base", base]);
    }
    for policy in options.tolerate.iter().filter(|name| *name == env) {
        command.arg("--hook-policy").arg(format!("tolerate:{policy}"));
    }
    let stretch = env == TYPED;
    if stretch {
        command.args(["--steps", &(options.steps + 20).to_string()]);
    }
    for task in &tasks {
        command.arg("--task").arg(format!("{env}/{task}"));
        let typed = stretch && long.get(env) == Some(task);
        let script = if typed { typing(options.steps)? } else { LOOK.to_owned() };
        std::fs::write(agent.join(env).join(format!("{task}.jsonl")), script)?;
    }
    let log = std::fs::File::create(place.join("run.log"))?;
    let status = command.stdout(log.try_clone()?).stderr(log).status()?;
    let shown = show(account, program, &place, &["latest", "--format", "json"])
        .with_context(|| format!("the run ended with {status}; see {}", place.join("run.log").display()))?;
    let described = describe(&shown, account, program, &place)?;
    let image = base.map(|base| format!("* base image: {base}\n")).unwrap_or_default();
    Ok(image + &described)
}

/// The image that an env stands on, if it is not the usual one: what is asked for, else what it is
/// known to need.
fn base_of(env: &str, given: &[String]) -> Option<String> {
    let own = given.iter().find_map(|base| base.split_once('=').filter(|(of, _)| *of == env).map(|(_, image)| image));
    let all = || given.iter().find(|base| !base.contains('=')).map(String::as_str);
    let known = || BASES.iter().find(|(of, _)| *of == env).map(|(_, image)| *image);
    own.or_else(all).or_else(known).map(str::to_owned)
}

/// Types numbered lines, one a step.
fn typing(steps: usize) -> Result<String> {
    let mut script = String::new();
    for number in 1..=steps {
        writeln!(
            script,
            "[{{\"keyboard\": {{\"text\": \"line {number}\"}}}}, {{\"keyboard\": {{\"keys\": [\"Return\"]}}}}]"
        )?;
    }
    writeln!(script, "{{\"done\": true}}")?;
    Ok(script)
}

fn show(account: &Account, program: &Path, place: &Path, arguments: &[&str]) -> Result<Value> {
    let output =
        account.command(program).arg("show").args(arguments).arg("--store").arg(place.join("store")).output()?;
    ensure!(output.status.success(), "show: {}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn describe(shown: &Value, account: &Account, program: &Path, place: &Path) -> Result<String> {
    let mut text = String::new();
    for layer in shown["layers"].as_array().into_iter().flatten().filter(|layer| layer["kind"] != "base") {
        let built = match (layer["run_builds"].as_u64(), layer["build_millis"].as_u64()) {
            (Some(0) | None, _) => "was there already".to_owned(),
            (Some(_), millis) => format!("built in {} s", millis.unwrap_or(0) / 1000),
        };
        let kind = layer["kind"].as_str().unwrap_or("?");
        writeln!(text, "* {kind} layer: {} KiB, {built}", layer["bytes"].as_u64().unwrap_or(0) / 1024)?;
    }
    text.push_str("\n| task | came to | steps | setup | settled as | why |\n|---|---|---|---|---|---|\n");
    let mut configured = None;
    for (index, episode) in shown["episodes"].as_array().into_iter().flatten().enumerate() {
        let detail = show(account, program, place, &[&format!("latest/{index}"), "--format", "json"])?;
        let notes = &detail["attempts"][0]["finish"]["notes"];
        configured = configured.or_else(|| notes["configure_ran"].as_str().map(str::to_owned));
        let steps = detail["attempts"][0]["finish"]["steps"].as_u64().unwrap_or(0);
        let task = episode["task"].as_str().unwrap_or("?");
        writeln!(
            text,
            "| {} | {} | {} | {} s | {} | {} |",
            task.rsplit('/').next().unwrap_or(task),
            came_to(&episode["settlement"], steps),
            steps.saturating_sub(1),
            notes["setup_time"].as_u64().unwrap_or(0) / 1000,
            episode["state"].as_str().unwrap_or("?"),
            why(&episode["settlement"]),
        )?;
        if steps > 0 {
            keep_screens(account, program, place, index, task, steps - 1)?;
        }
    }
    if let Some(reason) = configured {
        writeln!(text, "\nThe configure hook ran for every attempt: {}.", one_line(&reason))?;
    }
    Ok(text)
}

/// How far an episode came, from how it was settled.
fn came_to(settlement: &Value, steps: u64) -> &'static str {
    match settlement["faulted"]["class"].as_str() {
        Some("layer_build") => "its layers",
        Some("sandbox_start" | "display") if steps == 0 => "the sandbox",
        Some("setup_hook") => "its setup",
        Some(_) if steps == 0 => "its setup",
        Some(_) => "the screen",
        None if steps > 0 => "its end",
        None => "nothing",
    }
}

fn why(settlement: &Value) -> String {
    let fault = &settlement["faulted"];
    let text = [
        settlement["unverified"]["reason"].as_str(),
        settlement["verdict"]["feedback"].as_str(),
        fault["message"].as_str(),
    ];
    one_line(text.into_iter().flatten().next().unwrap_or_default())
}

/// A text as one cell of a table.
fn one_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default().replace('|', "/");
    if line.chars().count() > 120 { line.chars().take(119).chain(['…']).collect() } else { line }
}

/// Keeps the first and the last screenshot of an episode for people.
fn keep_screens(account: &Account, program: &Path, place: &Path, index: usize, task: &str, last: u64) -> Result<()> {
    let folder = place.join("screens");
    account.make_dir(&folder)?;
    let name = task.rsplit('/').next().unwrap_or(task);
    for (step, which) in [(0, "first"), (last, "last")] {
        let file = folder.join(format!("{name}-{which}.png"));
        let status = account
            .command(program)
            .args(["show", &format!("latest/{index}"), "--screenshot", &step.to_string(), "-o"])
            .arg(&file)
            .arg("--store")
            .arg(place.join("store"))
            .status()?;
        ensure!(status.success(), "the screenshot {step} of {task} cannot be read");
    }
    Ok(())
}
