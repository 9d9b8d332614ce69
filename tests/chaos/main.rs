//! `make chaos SEED=1 EPISODES=200`: episodes run while everything that they rest on is killed, stopped,
//! cut, slowed and filled, in an order that the seed says; then all that must be true is looked for.
//!
//! ```text
//! longhaul-chaos [--seed N] [--episodes N] [--contained N] [--schedule FILE] [--output FOLDER]
//! ```
//!
//! All of it is real but for two things: the provider of models, which counts by itself what it bills,
//! and most sandboxes, each of which is one process that does nothing (`tests/noop`). `--contained` of
//! the episodes come after the others, and run in real containers. Disks are filled where this program
//! is root. The schedule is written down before anything starts; `--schedule` does one again.
//!
//! The exit code is 1 if anything is not as it must be; everything is kept then.

mod audit;
mod disks;
mod lanes;
mod link;
mod program;
mod provider;
mod schedule;
mod stage;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use longhaul_tests::{leftovers, tree};

use crate::audit::{Acknowledged, Audit};
use crate::lanes::Lanes;
use crate::program::{ORDERLY, Program};
use crate::schedule::{Deed, Lane, Part, Schedule, WORKERS};
use crate::stage::Stage;

/// The longest that anything is waited for; only what hangs takes so long.
const PATIENCE: Duration = Duration::from_secs(180);

/// A part that makes no call and settles nothing for so long does not come to an end.
const SILENCE: Duration = Duration::from_secs(180);

struct Asked {
    seed: u64,
    episodes: u32,
    contained: u32,
    schedule: Option<PathBuf>,
    output: PathBuf,
}

fn asked() -> Result<Asked> {
    let output = std::env::temp_dir();
    let mut asked = Asked { seed: 1, episodes: 40, contained: 0, schedule: None, output };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} takes a value"));
        match argument.as_str() {
            "--seed" => asked.seed = value()?.parse()?,
            "--episodes" => asked.episodes = value()?.parse()?,
            "--contained" => asked.contained = value()?.parse()?,
            "--schedule" => asked.schedule = Some(value()?.into()),
            "--output" => asked.output = value()?.into(),
            _ => bail!("what is `{argument}`?"),
        }
    }
    ensure!(asked.contained <= asked.episodes, "no more episodes can be contained than there are");
    Ok(asked)
}

fn main() -> Result<ExitCode> {
    let asked = asked()?;
    let schedule = match &asked.schedule {
        Some(file) => Schedule::read(file)?,
        None => Schedule::of(asked.seed, asked.episodes - asked.contained, asked.contained),
    };
    let file = asked.output.join(format!("chaos-{}-{}.json", schedule.seed, std::process::id()));
    schedule.write(&file)?;
    say(&format!("schedule: {}", file.display()))?;
    // Before there are threads.
    let own = disks::own_mounts();
    if let Err(error) = &own {
        say(&format!("no disk is filled: {error:#}"))?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let holds = runtime.block_on(run(&schedule, own.is_ok(), &file))?;
    runtime.shutdown_background();
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Whether everything was as it must be.
async fn run(schedule: &Schedule, has_disks: bool, file: &Path) -> Result<bool> {
    let began = Instant::now();
    let stage = Arc::new(Stage::new(schedule.seed, has_disks).await?);
    say(&format!("everything is below {}", stage.place.root().display()))?;
    if let Err(error) = play_all(&stage, schedule).await {
        stage.wrong(format!("it did not come to its end: {error:#}"));
    }
    let leaked = leaked(&stage);
    let lost = [&schedule.plain, &schedule.contained].iter().flat_map(|part| &part.events).any(|it| is_loss(it.deed));
    let (acknowledged, panics) = logs(&stage)?;
    panics.into_iter().for_each(|panic| stage.wrong(panic));
    match Audit::of(&stage.place.store(), &acknowledged, &stage.provider.billed(), lost) {
        Ok(audit) => {
            audit.wrong.iter().for_each(|wrong| stage.wrong(wrong.clone()));
            report(&audit, leaked)?;
        }
        Err(error) => stage.wrong(format!("the store cannot be read: {error:#}")),
    }
    say(&format!("took                   {} s", began.elapsed().as_secs()))?;
    say(&format!("schedule               {}", file.display()))?;
    let wrong = stage.all_wrong();
    for wrong in &wrong {
        say(&format!("WRONG: {wrong}"))?;
    }
    if !wrong.is_empty() {
        say(&format!("all of it is kept in {}", keep(&stage)?.display()))?;
    }
    stage.unmount()?;
    Ok(wrong.is_empty())
}

/// Both parts, and the coordinator's end.
async fn play_all(stage: &Arc<Stage>, schedule: &Schedule) -> Result<()> {
    stage.install()?;
    let benchmark = stage.place.path("bodies");
    tree::copy(&tree::repository().join("tests/chaos/benchmark"), &benchmark, stage.place.account())?;
    let making = Arc::clone(stage);
    let mut coordinator = Program::start(true, Box::new(move || making.coordinator()))?;
    wait(stage, "the coordinator's address", || Ok(stage.access().is_file())).await;
    stage.connect().await?;
    let (plain, contained) = (&schedule.plain, &schedule.contained);
    if plain.episodes > 0 {
        // The second one wants more than it may have.
        let arguments = terms(plain.episodes, &[("alpha", 50), ("beta", 25)], "body_env/keep_it");
        coordinator = part(stage, plain, coordinator, false, &benchmark, &arguments).await?;
    }
    if contained.episodes > 0 {
        let arguments = terms(contained.episodes, &[("gamma", 50)], "mtpaint_env/flip_sign");
        coordinator = part(stage, contained, coordinator, true, &stage.place.benchmark(), &arguments).await?;
    }
    let how = coordinator.leave().await?;
    ensure!(how == ORDERLY, "the coordinator ended so in the end: {how}");
    Ok(())
}

const fn is_loss(deed: Deed) -> bool {
    matches!(deed, Deed::Node { .. })
}

/// The arguments of a run: agents, each with its share of the episodes, and how much it may spend for each
/// of those, in thousandths of a dollar. An answer costs about two.
fn terms(episodes: u32, agents: &[(&str, u32)], task: &str) -> Vec<String> {
    let samples = episodes.div_ceil(u32::try_from(agents.len()).unwrap_or(1)).max(1);
    let dollars = |mills: u32| format!("{}.{:03}", mills / 1000, mills % 1000);
    let mut terms = vec!["--task".to_owned(), task.to_owned(), "--samples".to_owned(), samples.to_string()];
    let mut all = 0;
    for (name, mills) in agents {
        let mills = samples * mills;
        all += mills;
        terms.extend([
            format!("--agent={name}=tools@standin:model-{name}?max_output=200&keep_images=1"),
            "--agent-budget".to_owned(),
            format!("{name}={}", dollars(mills)),
        ]);
    }
    terms.extend(["--run-budget".to_owned(), dollars(all)]);
    terms
}

/// Plays a part to its end; the coordinator goes on.
async fn part(
    stage: &Arc<Stage>,
    part: &Part,
    coordinator: Program,
    contained: bool,
    benchmark: &Path,
    arguments: &[String],
) -> Result<Program> {
    stage.tell(&format!("{} episodes, contained: {contained}", part.episodes));
    wait(stage, "the coordinator", || stage.answers()).await;
    stage.submit(benchmark, arguments)?;
    stage.set_over(false);
    let mut lanes = Lanes::new(stage, contained);
    lanes.keep(Lane::Coordinator, coordinator);
    for worker in 0..if contained { 1 } else { WORKERS } {
        let making = Arc::clone(stage);
        lanes.keep(Lane::Worker(worker), Program::start(false, Box::new(move || making.worker(worker, contained)))?);
    }
    let undone = play(stage, part, &mut lanes).await;
    stage.set_over(true);
    stage.tell(&format!("settled; {undone} deeds were not done any more"));
    let mut programs = lanes.end().await?;
    let coordinator = programs.remove(&Lane::Coordinator).context("the coordinator is gone")?;
    // The next ones on their nodes, so that what dead ones left is found.
    for program in programs.values_mut() {
        program.leave().await?;
        program.again()?;
    }
    wait(stage, "everything to be delivered", || {
        let left: usize = (0..WORKERS).map(|worker| spools(&stage.scratch(worker, contained))).sum();
        let escrow: u64 = stage.escrow()?.values().sum();
        Ok(left == 0 && escrow == 0)
    })
    .await;
    for (lane, mut program) in programs {
        let how = program.leave().await?;
        if how != ORDERLY {
            stage.wrong(format!("{lane:?} ended so in the end: {how}"));
        }
    }
    Ok(coordinator)
}

/// Does what is to be done until the run is settled; how much was left.
async fn play(stage: &Stage, part: &Part, lanes: &mut Lanes) -> usize {
    let before = stage.provider.calls();
    let mut events = part.events.iter().peekable();
    let (mut heard, mut last) = (Instant::now(), before);
    let mut looked = Instant::now();
    loop {
        let calls = stage.provider.calls();
        while let Some(event) = events.next_if(|event| event.after_calls <= calls - before) {
            lanes.send(*event);
        }
        if calls > last {
            (heard, last) = (Instant::now(), calls);
        }
        if looked.elapsed() > Duration::from_secs(1) {
            looked = Instant::now();
            if stage.is_settled() {
                return events.count();
            }
        }
        if heard.elapsed() > SILENCE {
            stage.wrong(format!("no call for {} s, and the run is not settled", SILENCE.as_secs()));
            return events.count();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until something holds; that it never does must not be.
async fn wait(stage: &Stage, what: &str, mut holds: impl FnMut() -> Result<bool>) {
    let began = Instant::now();
    loop {
        let last = match holds() {
            Ok(true) => return,
            Ok(false) => "it is not so".to_owned(),
            Err(error) => format!("{error:#}"),
        };
        if began.elapsed() > PATIENCE {
            return stage.wrong(format!("waited in vain for {what}: {last}"));
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

/// How many spools wait to be delivered on a node.
fn spools(scratch: &Path) -> usize {
    let workers = std::fs::read_dir(scratch.join("workers")).into_iter().flatten().flatten();
    let spools = workers.map(|worker| std::fs::read_dir(worker.path().join("spool")).into_iter().flatten().count());
    spools.sum()
}

/// What workers were told, and what panicked.
fn logs(stage: &Stage) -> Result<(Acknowledged, Vec<String>)> {
    let (mut acknowledged, mut panics) = (Acknowledged::new(), Vec::new());
    for entry in std::fs::read_dir(stage.place.path("logs"))? {
        let path = entry?.path();
        acknowledged.extend(audit::acknowledged(&path)?);
        let text = std::fs::read(&path)?;
        let text = String::from_utf8_lossy(&text);
        panics.extend(text.lines().filter(|line| line.contains("panicked at")).map(str::to_owned));
    }
    Ok((acknowledged, panics))
}

/// How many processes, mounts and scratch folders are left.
fn leaked(stage: &Stage) -> usize {
    let processes = leftovers::processes_that_name(stage.place.root()).unwrap_or_default();
    let mut left: Vec<String> =
        processes.iter().map(|(pid, command)| format!("process {pid} is left: {command}")).collect();
    for (worker, contained) in (0..WORKERS).map(|worker| (worker, false)).chain([(0, true)]) {
        let scratch = stage.scratch(worker, contained);
        let attempts = leftovers::attempts_below(&scratch).unwrap_or_default();
        left.extend(attempts.iter().map(|folder| format!("scratch is left: {}", folder.display())));
        let mounts = leftovers::mounts_below(&scratch).unwrap_or_default();
        left.extend(mounts.iter().map(|mount| format!("a mount is left: {mount}")));
    }
    let count = left.len();
    left.into_iter().for_each(|left| stage.wrong(left));
    count
}

fn report(audit: &Audit, leaked: usize) -> Result<()> {
    let open = ["queued", "active"];
    let settled: u64 = audit.states.iter().filter(|(state, _)| !open.contains(*state)).map(|(_, count)| count).sum();
    let states: Vec<String> = audit.states.iter().map(|(state, count)| format!("{count} {state}")).collect();
    say(&format!("episodes settled       {settled} of {} ({})", audit.episodes, states.join(", ")))?;
    say(&format!("attempts               {}, {} of them resumed", audit.attempts, audit.resumed))?;
    let Audit { acknowledged, steps, late, .. } = audit;
    say(&format!("steps acknowledged     {acknowledged} (stored {steps}, {late} of them late)"))?;
    say(&format!("steps lost             {}", audit.lost))?;
    say(&format!("duplicates             {}", audit.duplicates))?;
    let Audit { spent, calls, unconfirmed, gone, .. } = audit;
    say(&format!(
        "dollars settled        {spent} in {calls} calls, {unconfirmed} of it unconfirmed, {gone} on lost disks"
    ))?;
    say(&format!("dollars counted        {} by the provider", audit.billed))?;
    say(&format!("leaked                 {leaked} processes, mounts and folders"))
}

/// Copies all of it beside where it is: what is on disks of ours is gone with this process.
fn keep(stage: &Stage) -> Result<PathBuf> {
    let root = stage.place.root();
    let kept = root.with_extension("kept");
    let copied = std::process::Command::new("cp").arg("-a").arg(root).arg(&kept).status()?;
    ensure!(copied.success(), "cannot copy {}", root.display());
    Ok(kept)
}

fn say(line: &str) -> Result<()> {
    use std::io::Write as _;
    writeln!(std::io::stdout(), "{line}").context("stdout is closed")
}
