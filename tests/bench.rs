//! `make bench`: measures, and prints the figures of docs/performance.md as a table.
//!
//! ```text
//! longhaul-bench [--corpus FOLDER] [--episodes N] [--steps N] [--output FILE]
//! ```
//!
//! Everything is read from what the program itself records of its attempts and steps, and
//! from the clock around its calls; nothing is asserted.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use longhaul_tests::account::Account;
use longhaul_tests::place::Place;
use longhaul_tests::tree;
use serde_json::Value;

struct Options {
    corpus: Option<PathBuf>,
    episodes: u32,
    steps: u32,
    output: Option<PathBuf>,
}

/// A figure: what was measured, what came out, and how.
struct Figure {
    what: &'static str,
    value: String,
    how: String,
}

fn main() -> Result<()> {
    let options = options()?;
    let mut figures = Vec::new();
    // First, while the only children are its own: the peak is that of all children so far.
    if let Some(corpus) = &options.corpus {
        figures.extend(lint(corpus)?);
    }
    let place = Place::new("bench")?;
    figures.extend(starts(&place, options.episodes)?);
    figures.extend(steps(&place, options.steps)?);
    figures.extend(layers(&place)?);
    let mut text = String::from("| what | measured | how |\n|---|---|---|\n");
    for figure in &figures {
        writeln!(text, "| {} | {} | {} |", figure.what, figure.value, figure.how)?;
    }
    print(&text)?;
    if let Some(output) = &options.output {
        tree::replace_results(output, &text)?;
    }
    Ok(())
}

fn print(text: &str) -> Result<()> {
    use std::io::Write as _;
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

fn options() -> Result<Options> {
    let mut options = Options { corpus: None, episodes: 10, steps: 100, output: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} takes a value"));
        match argument.as_str() {
            "--corpus" => options.corpus = Some(value()?.into()),
            "--episodes" => options.episodes = value()?.parse()?,
            "--steps" => options.steps = value()?.parse()?,
            "--output" => options.output = Some(value()?.into()),
            _ => bail!("what is `{argument}`?"),
        }
    }
    Ok(options)
}

/// Reading a whole benchmark: the median of five times, and the most memory of all.
fn lint(corpus: &PathBuf) -> Result<Vec<Figure>> {
    let program = Place::program(&Account::find()?)?;
    let mut times = Vec::new();
    let mut tasks = 0;
    for _ in 0..5 {
        let began = Instant::now();
        let output = Command::new(&program)
            .arg("lint")
            .arg(corpus)
            .args(["--format", "json"])
            .stderr(Stdio::null())
            .output()
            .context("lint does not start")?;
        times.push(began.elapsed());
        let counts: Value = serde_json::from_slice(&output.stdout).context("lint wrote no JSON")?;
        tasks = counts["tasks"]["files"].as_u64().unwrap_or(0);
    }
    let memory = format!("{} MiB", peak_of_lint(&program, corpus)? / 1024);
    let how = format!("`longhaul lint PATH --format json`, {tasks} task.json");
    Ok(vec![
        Figure { what: "lint: time", value: seconds(median(&mut times)), how: format!("{how}; median of 5") },
        Figure { what: "lint: peak memory", value: memory, how },
    ])
}

/// The most memory that reading a benchmark takes, in KiB: the system's own high-water mark,
/// looked at until the end.
fn peak_of_lint(program: &Path, corpus: &Path) -> Result<u64> {
    let mut child = Command::new(program)
        .arg("lint")
        .arg(corpus)
        .args(["--format", "json"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("lint does not start")?;
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    while child.try_wait()?.is_none() {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let mark = text.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse().ok());
        peak = peak.max(mark.unwrap_or(0));
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(peak)
}

/// Sandbox start to first observation, layers warm, one at a time.
fn starts(place: &Place, episodes: u32) -> Result<Vec<Figure>> {
    let samples = episodes.to_string();
    let run = ["--task", "gnumeric_env/total_expenses", "--agent=idle", "--slots", "1", "--samples", &samples];
    // The layers are built first, so that every episode finds them.
    place.run(run.iter().copied().take(4).chain(["1"])).end()?.expect_code(0)?;
    place.run(run).end()?.expect_code(0)?;
    let (mut start, mut first, mut setup, mut ready) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for index in 0..episodes {
        let episode = format!("latest/{index}");
        let notes = notes(place, &episode)?;
        let steps = place.steps(&episode)?;
        let timing = &steps.first().context("no first observation")?["timing"];
        let frame = millis(&timing["rest"]) + millis(&timing["capture"]);
        first.push(millis(&notes["start_time"]) + frame);
        start.push(millis(&notes["start_time"]));
        setup.push(millis(&notes["setup_time"]));
        ready.push(millis(&notes["layers_time"]));
    }
    let how = format!("`gnumeric_env/total_expenses`, idle, one at a time; median of {episodes}");
    Ok(vec![
        Figure { what: "layers ready, all of them warm", value: seconds(median(&mut ready)), how: how.clone() },
        Figure { what: "sandbox start to a display that is up", value: seconds(median(&mut start)), how: how.clone() },
        Figure {
            what: "sandbox start to the first observation, without the time of hooks",
            value: seconds(median(&mut first)),
            how: format!("{how}; the screen has come to rest and is captured"),
        },
        Figure { what: "its setup hook (starts Gnumeric)", value: seconds(median(&mut setup)), how },
    ])
}

/// What a step costs beside the agent's time and the rest rule's.
fn steps(place: &Place, count: u32) -> Result<Vec<Figure>> {
    let script = place.path("moves.jsonl");
    let mut text = String::new();
    for step in 0..count {
        writeln!(text, "{{\"mouse\": {{\"left_click\": [{}, {}]}}}}", 150 + step % 10 * 80, 240 + step / 10 * 18)?;
    }
    std::fs::write(&script, text)?;
    let agent = format!("--agent=scripted:{}", script.display());
    let limit = (count + 1).to_string();
    place
        .run(["--task", "gnumeric_env/total_expenses", "--slots", "1", "--steps", &limit, &agent])
        .end()?
        .expect_code(0)?;
    let notes = notes(place, "latest/0")?;
    let records = place.steps("latest/0")?;
    ensure!(records.len() > 1, "no steps");
    let taken = u32::try_from(records.len() - 1)?;
    let sum = |name: &str| -> Duration { records.iter().skip(1).map(|record| millis(&record["timing"][name])).sum() };
    let own = millis(&notes["acting_time"]).saturating_sub(sum("agent") + sum("rest"));
    let how = format!("`gnumeric_env/total_expenses`, 1920x1080, {taken} clicks on cells");
    let each = |total: Duration| format!("{:.1} ms", total.as_secs_f64() * 1000.0 / f64::from(taken));
    Ok(vec![
        Figure {
            what: "a step's own overhead",
            value: each(own),
            how: format!("{how}: acting time without agent and rest, by step"),
        },
        Figure { what: "of it, injecting", value: each(sum("inject")), how: how.clone() },
        Figure { what: "of it, capture and PNG", value: each(sum("capture")), how: how.clone() },
        Figure { what: "until the screen rests", value: each(sum("rest")), how },
    ])
}

/// What the env hooks took when the layers that are there were built.
fn layers(place: &Place) -> Result<Vec<Figure>> {
    let listed = place.longhaul(["layers", "ls", "--format", "json"]).json()?;
    let rows = listed.as_array().or_else(|| listed["layers"].as_array()).cloned().unwrap_or_default();
    let mut figures = Vec::new();
    for (kind, what) in
        [("install", "install layer of gnumeric_env, cold"), ("configure", "configure layer of gnumeric_env, cold")]
    {
        let is_it = |manifest: &Value| manifest["kind"] == kind && manifest["env"] == "gnumeric_env";
        let found = rows.iter().find(|row| is_it(&row["manifest"]));
        let row = found.with_context(|| format!("no {kind} layer of gnumeric_env in {listed}"))?;
        let size = row["bytes"].as_u64().context("a layer has a size")? / (1 << 20);
        figures.push(Figure {
            what,
            value: seconds(millis(&row["manifest"]["hook_millis"])),
            how: format!("its hook, when `longhaul layers build` ran it; {size} MiB"),
        });
    }
    Ok(figures)
}

fn notes(place: &Place, episode: &str) -> Result<Value> {
    let shown = place.show(episode)?;
    let attempt = shown["attempts"].as_array().and_then(|attempts| attempts.last()).context("no attempt")?;
    Ok(attempt["finish"]["notes"].clone())
}

fn millis(value: &Value) -> Duration {
    Duration::from_millis(value.as_u64().unwrap_or(0))
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}
