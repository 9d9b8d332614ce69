//! `make bench ARGS="resume ..."`: how well episodes are gone on with after their worker was killed.
//!
//! ```text
//! longhaul-bench-resume [--programs N] [--seeds N] [--steps N] [--slots N] [--snapshots WHEN] [--output FILE]
//! ```
//!
//! For each program and seed a script of random work is played twice: undisturbed, and with the
//! worker killed (SIGKILL) at a random step, after which another one goes on. What was saved at the
//! end is compared by its digests. Where it differs, the script is played undisturbed once more: what
//! differs then too says nothing of the resumption.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use longhaul_tests::command::{Running, wait_for};
use longhaul_tests::place::{Place, SHORT_LEASES};
use longhaul_tests::programs::{Chance, PROGRAMS, Program};
use longhaul_tests::tree;
use nix::sys::signal::Signal;
use serde_json::Value;

struct Options {
    programs: usize,
    seeds: u64,
    steps: u32,
    slots: u32,
    /// The run's snapshots, as `--snapshots` of `longhaul run` takes them.
    snapshots: String,
    output: Option<PathBuf>,
}

fn main() -> Result<()> {
    let options = options()?;
    let place = Place::new("bench-resume")?;
    let programs: Vec<&Program> = PROGRAMS.iter().take(options.programs).collect();
    for program in &programs {
        program.write(&place.benchmark())?;
    }
    let mut agents = Vec::new();
    for seed in 0..options.seeds {
        let folder = place.path(&format!("seed-{seed}"));
        for program in &programs {
            let file = folder.join(program.env).join(format!("{}.jsonl", program.task));
            std::fs::create_dir_all(file.parent().context("a folder")?)?;
            std::fs::write(file, program.script(seed, options.steps))?;
        }
        agents.push(format!("--agent=seed-{seed}=scripted:{}", folder.display()));
    }
    let settings = place.settings(SHORT_LEASES)?;
    let scene = Scene { place: &place, programs: &programs, agents: &agents, settings: &settings, options: &options };
    scene.say("undisturbed");
    let whole = scene.undisturbed(&[])?;
    scene.say("cut off");
    let cut = scene.cut_off()?;
    let mut rows = Vec::new();
    for (key, broken) in &cut {
        let calm = whole.get(key).with_context(|| format!("{key:?} was not played"))?;
        let mut row = Row { steady: true, same: calm.saved == broken.saved, ..Row::of(key, broken) };
        if !row.same {
            scene.say(&format!("once more: {} {}", key.0, key.1));
            let again = scene.undisturbed(&[&key.0, &key.1])?;
            row.steady = again.get(key).is_some_and(|again| again.saved == calm.saved);
        }
        rows.push(row);
    }
    let text = table(&programs, &rows, &options)?;
    print(&text)?;
    if let Some(output) = &options.output {
        let name = if options.snapshots == "off" { "results of replaying" } else { "results of restoring" };
        tree::replace_section(output, name, &text)?;
    }
    Ok(())
}

fn print(text: &str) -> Result<()> {
    use std::io::Write as _;
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

fn options() -> Result<Options> {
    let mut options =
        Options { programs: PROGRAMS.len(), seeds: 2, steps: 40, slots: 1, snapshots: "off".to_owned(), output: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} takes a value"));
        match argument.as_str() {
            "--programs" => options.programs = value()?.parse()?,
            "--seeds" => options.seeds = value()?.parse()?,
            "--steps" => options.steps = value()?.parse()?,
            "--slots" => options.slots = value()?.parse()?,
            "--snapshots" => options.snapshots = value()?,
            "--output" => options.output = Some(value()?.into()),
            _ => bail!("what is `{argument}`?"),
        }
    }
    ensure!(options.steps > 4, "an episode has a middle with more than four steps");
    Ok(options)
}

/// A task and an agent.
type Key = (String, String);

/// How an attempt came to stand where the one before it was cut off.
#[derive(Clone)]
struct GoneOn {
    way: String,
    /// The number of the last step before it.
    step: u64,
    /// How long getting there took, and how long it had taken at first.
    took: Duration,
    original: Duration,
}

/// How an episode came out.
struct Episode {
    /// What was saved: the verifier's words.
    saved: String,
    state: String,
    /// How it was gone on with.
    resumed: Vec<GoneOn>,
    /// Why replays ended otherwise.
    diverged: Vec<String>,
}

/// What the two plays of a script came to.
struct Row {
    task: String,
    agent: String,
    state: String,
    resumed: Vec<GoneOn>,
    diverged: Vec<String>,
    same: bool,
    /// Whether two undisturbed plays save the same.
    steady: bool,
}

impl Row {
    fn of(key: &Key, episode: &Episode) -> Self {
        let (task, agent) = key.clone();
        Self {
            task,
            agent,
            state: episode.state.clone(),
            resumed: episode.resumed.clone(),
            diverged: episode.diverged.clone(),
            same: false,
            steady: false,
        }
    }
}

struct Scene<'a> {
    place: &'a Place,
    programs: &'a [&'a Program],
    agents: &'a [String],
    settings: &'a str,
    options: &'a Options,
}

impl Scene<'_> {
    fn say(&self, what: &str) {
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), "{what}");
    }

    /// The tasks and agents of a run: all, or those of a key.
    fn asked(&self, only: &[&String]) -> Vec<String> {
        let wanted = |name: &str| only.is_empty() || only.iter().any(|only| *only == name);
        let tasks = self.programs.iter().map(|program| program.name_of_task()).filter(|task| wanted(task));
        let named = |agent: &&String| {
            let name = agent.trim_start_matches("--agent=").split('=').next().unwrap_or_default();
            wanted(name)
        };
        let limit = (self.options.steps + 1).to_string();
        tasks
            .flat_map(|task| ["--task".to_owned(), task])
            .chain(self.agents.iter().filter(named).cloned())
            .chain(["--steps".to_owned(), limit, "--settings".to_owned(), self.settings.to_owned()])
            .chain(["--snapshots".to_owned(), self.options.snapshots.clone()])
            .collect()
    }

    /// Plays scripts to their ends.
    fn undisturbed(&self, only: &[&String]) -> Result<BTreeMap<Key, Episode>> {
        let slots = ["--slots".to_owned(), self.options.slots.to_string()];
        self.place.run(self.asked(only).into_iter().chain(slots)).end()?.expect_code(0)?;
        self.episodes()
    }

    /// Plays all of them, and kills the worker once in the middle of each.
    fn cut_off(&self) -> Result<BTreeMap<Key, Episode>> {
        let serving = self.place.serve(&["--settings", self.settings])?;
        let benchmark = self.place.benchmark().display().to_string();
        let access = self.place.access().display().to_string();
        let submit = ["run", &benchmark, "--coordinator", &access, "--detach"].map(str::to_owned);
        self.place.longhaul(submit.into_iter().chain(self.asked(&[]))).end()?.expect_code(0)?;
        let mut watching = self.place.longhaul(["watch", "latest", "--coordinator", &access]).start()?;
        let mut cuts: BTreeMap<String, u64> = BTreeMap::new();
        let mut chance = Chance(17);
        let mut worker = self.worker(&access)?;
        while watching.runs()? {
            std::thread::sleep(Duration::from_millis(50));
            for (attempt, steps) in self.acting()? {
                // `RUN/EPISODE/ATTEMPT`: each first attempt is cut off once.
                let Some(episode) = attempt.strip_suffix("/1") else { continue };
                let middle = u64::from(self.options.steps - 3);
                let cut = *cuts.entry(episode.to_owned()).or_insert_with(|| 2 + chance.below(middle));
                if steps >= cut {
                    cuts.insert(episode.to_owned(), u64::MAX);
                    worker.signal(Signal::SIGKILL)?;
                    worker.end()?;
                    worker = self.worker(&access)?;
                    break;
                }
            }
        }
        watching.end()?.expect_code(0)?;
        worker.stop()?;
        serving.stop()?;
        self.episodes()
    }

    fn worker(&self, access: &str) -> Result<Running> {
        let scratch = self.place.scratch().display().to_string();
        let worker = ["worker", "--coordinator", access, "--scratch", &scratch, "--slots", "1", "--settings"];
        self.place.longhaul(worker.iter().copied().chain([self.settings])).start()
    }

    /// The attempts that act, with their steps.
    fn acting(&self) -> Result<Vec<(String, u64)>> {
        let store = self.place.store().display().to_string();
        let status = wait_for("the coordinator's answer", Duration::from_secs(120), || {
            let status = self.place.longhaul(["status", "--store", &store, "--format", "json"]).end()?;
            if status.code() == Some(0) { status.json().map(Some) } else { Ok(None) }
        })?;
        let workers = status["workers"].as_array().into_iter().flatten();
        let attempts = workers.flat_map(|worker| worker["attempts"].as_array().into_iter().flatten());
        let acting = attempts.filter(|attempt| attempt["phase"] == "acting");
        Ok(acting
            .filter_map(|attempt| Some((attempt["attempt"].as_str()?.to_owned(), attempt["steps"].as_u64()?)))
            .collect())
    }

    /// The episodes of the latest run.
    fn episodes(&self) -> Result<BTreeMap<Key, Episode>> {
        let count = self.place.show("latest")?["episodes"].as_array().map_or(0, Vec::len);
        (0..count).map(|index| self.episode(&format!("latest/{index}"))).collect()
    }

    fn episode(&self, name: &str) -> Result<(Key, Episode)> {
        let shown = self.place.show(name)?;
        let row = &shown["episode"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let attempts = shown["attempts"].as_array().into_iter().flatten();
        let faults = attempts.map(|attempt| &attempt["finish"]["end"]["fault"]);
        let diverged = faults.filter(|fault| fault["class"] == "replay_diverged").map(|fault| text(&fault["message"]));
        let steps = self.place.steps(name)?;
        let at = |number: u64| {
            let step = steps.iter().find(|step| step["number"].as_u64() == Some(number));
            step.and_then(|step| step["at"].as_u64()).unwrap_or_default()
        };
        let mut resumed = Vec::new();
        for line in shown["kept"].as_object().into_iter().flat_map(serde_json::Map::values) {
            let Some(took) = line["resumed"]["took"].as_u64() else { continue };
            let kept = line["kept"]["steps"].as_u64().unwrap_or_default();
            let original = at(kept.saturating_sub(1)).saturating_sub(at(0));
            resumed.push(GoneOn {
                way: text(&line["resumed"]["way"]),
                step: kept.saturating_sub(1),
                took: Duration::from_millis(took),
                original: Duration::from_millis(original),
            });
        }
        let episode = Episode {
            saved: text(&row["settlement"]["verdict"]["feedback"]),
            state: text(&row["state"]),
            resumed,
            diverged: diverged.collect(),
        };
        Ok(((text(&row["task"]), text(&row["agent"])), episode))
    }
}

/// The table, and what did not come out as it was.
fn table(programs: &[&Program], rows: &[Row], options: &Options) -> Result<String> {
    let (seeds, steps) = (options.seeds, options.steps);
    let mut text = String::from(
        "| program | cut off | gone on with | diverged | saved otherwise than undisturbed (false accepts) | \
         getting there, against the first time |\n|---|---|---|---|---|---|\n",
    );
    let mut odd = String::new();
    for program in programs {
        let task = program.name_of_task();
        let own: Vec<&Row> = rows.iter().filter(|row| row.task == task).collect();
        let gone_on: Vec<&&Row> = own.iter().filter(|row| !row.resumed.is_empty()).collect();
        let diverged = own.iter().map(|row| row.diverged.len()).sum::<usize>();
        let unsteady = gone_on.iter().filter(|row| !row.same && !row.steady).count();
        let false_accepts = gone_on.iter().filter(|row| !row.same && row.steady).count();
        let all: Vec<&GoneOn> = own.iter().flat_map(|row| &row.resumed).collect();
        let took: f64 = all.iter().map(|one| one.took.as_secs_f64()).sum();
        let original: f64 = all.iter().map(|one| one.original.as_secs_f64()).sum();
        let kept: u64 = all.iter().map(|one| one.step).sum();
        let restored = all.iter().filter(|one| one.way == "restore").count();
        let restored = if restored == 0 { String::new() } else { format!(" ({restored} from a snapshot)") };
        let unsteady = if unsteady == 0 { String::new() } else { format!(" ({unsteady} differ undisturbed too)") };
        writeln!(
            text,
            "| {} | {} | {}{restored} | {diverged} | {false_accepts}{unsteady} | {kept} steps in {took:.1} s, {original:.1} s before |",
            program.name,
            own.len(),
            gone_on.len(),
        )?;
        for row in own {
            for why in &row.diverged {
                writeln!(odd, "* {task}, {}: {why}", row.agent)?;
            }
            if row.state != "passed" {
                writeln!(odd, "* {task}, {}: {}", row.agent, row.state)?;
            }
        }
    }
    let snapshots = &options.snapshots;
    writeln!(
        text,
        "\n`scripts/bench resume --programs {} --seeds {seeds} --steps {steps} --snapshots \"{snapshots}\"`; the time of \
         getting there holds the wait for the first observation, and not the sandbox's start.",
        programs.len(),
    )?;
    if !odd.is_empty() {
        writeln!(text, "\n{odd}")?;
    }
    Ok(text)
}
