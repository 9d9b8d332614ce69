//! `scripts/bench slurm`: measures over a real Slurm of four nodes, and what many sandboxes of
//! one node take. Prints a table of figures, as `make bench` does.
//!
//! ```text
//! longhaul-bench-slurm [--hq PROGRAM] [--units N] [--sandboxes N]... [--output FILE]
//! ```
//!
//! `--hq` names HyperQueue's program: the same number of units that do nothing is given to it on the
//! same cluster, in the same run. `--sandboxes` holds so many at one time on this machine alone.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use longhaul_tests::command::wait_for;
use longhaul_tests::density::{self, Tried};
use longhaul_tests::place::Place;
use longhaul_tests::slurm::figures::say;
use longhaul_tests::slurm::world::{World, now};
use longhaul_tests::slurm::{Cluster, Options};
use longhaul_tests::tree;
use serde_json::Value;

/// Sixteen slots on each of four nodes.
const POOL: &str = "cpus = 16\nmemory = \"16GiB\"\nslots = 16\nmax_workers = 4\nmax_queued = 4\n";

/// The longest that anything is waited for.
const LIMIT: Duration = Duration::from_secs(300);

struct Asked {
    hq: Option<PathBuf>,
    units: usize,
    sandboxes: Vec<usize>,
    output: Option<PathBuf>,
}

fn main() -> Result<()> {
    let asked = asked()?;
    let mut text = String::from("| what | measured | how |\n|---|---|---|\n");
    first_step(&mut text)?;
    units(&asked, &mut text)?;
    for sandboxes in &asked.sandboxes {
        density_row(*sandboxes, &mut text)?;
    }
    use std::io::Write as _;
    std::io::stdout().write_all(text.as_bytes())?;
    if let Some(output) = &asked.output {
        tree::replace_section(output, "results of Slurm", &text)?;
    }
    Ok(())
}

fn asked() -> Result<Asked> {
    let mut asked = Asked { hq: None, units: 1000, sandboxes: Vec::new(), output: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} takes a value"));
        match argument.as_str() {
            "--hq" => asked.hq = Some(value()?.into()),
            "--units" => asked.units = value()?.parse()?,
            "--sandboxes" => asked.sandboxes.push(value()?.parse()?),
            "--output" => asked.output = Some(value()?.into()),
            _ => bail!("what is `{argument}`?"),
        }
    }
    Ok(asked)
}

/// From the command on the login node to the first answer that was carried out, layers warm.
fn first_step(text: &mut String) -> Result<()> {
    const TIMES: usize = 3;
    let (mut looks, mut steps) = (Vec::new(), Vec::new());
    for _ in 0..TIMES {
        let world = World::new("bench-first-step", &Options::default(), POOL)?;
        let began = now();
        world.start_clocks(1, 1)?.end()?.expect_code(0)?;
        let records = world.steps(0, 1)?;
        let after = |number: usize| records[number]["at"].as_u64().unwrap_or(0).saturating_sub(began);
        ensure!(records.len() >= 2, "{records:?}");
        looks.push(after(0));
        steps.push(after(1));
        world.expect_nothing(&[])?;
    }
    let (look, step) = (median(&mut looks), median(&mut steps));
    let how = format!("one `clock_env/keep_time`, an idle cluster, warm layers; median of {TIMES}");
    writeln!(text, "| `longhaul run --slurm` to the first observation | {} | {how} |", seconds(look))?;
    writeln!(
        text,
        "| `longhaul run --slurm` to the first step (a wait of 1 s, and rest) | {} | {how} |",
        seconds(step)
    )?;
    Ok(())
}

/// Units that do nothing, over four nodes of sixteen slots that are there already: the program's, and
/// HyperQueue's.
fn units(asked: &Asked, text: &mut String) -> Result<()> {
    let units = asked.units;
    let worker = std::env::current_exe()?.with_file_name("longhaul-noop-worker");
    let world = World::new("bench-units", &Options { worker: Some(worker), ..Options::default() }, POOL)?;
    let ours = episodes(&world, units)?;
    let rate = |time: Duration| f64::from(u32::try_from(units).unwrap_or(u32::MAX)) / time.as_secs_f64();
    let how = format!("{units} episodes of one step and a verdict without sandboxes, 4 nodes x 16 slots, workers up");
    writeln!(text, "| episodes settled in a second | {:.0} | {how}; from `longhaul run` to its end |", rate(ours))?;
    let Some(hq) = &asked.hq else {
        return say("no --hq PROGRAM was named: nothing is compared");
    };
    let theirs = hyperqueue(&world, hq, units)?;
    let how = format!("{units} times `true`, the same cluster, workers up; from `hq submit --wait` to its end");
    writeln!(text, "| HyperQueue: units in a second | {:.0} | {how} |", rate(theirs))?;
    let ratio = rate(ours) / rate(theirs);
    writeln!(text, "| ratio, Longhaul to HyperQueue | {ratio:.2} | of the two above, one run |")?;
    Ok(())
}

fn episodes(world: &World, units: usize) -> Result<Duration> {
    let mut serving = world.serve()?;
    let access = world.place().access().display().to_string();
    let benchmark = world.place().path("clocks").display().to_string();
    let run = |episodes: usize, waits: usize, detach: bool| {
        let clocks = world.clocks(episodes, waits)?;
        let detach = detach.then_some("--detach");
        let fixed = ["run", &benchmark, "--coordinator", &access, "--format", "json"];
        world.longhaul(fixed.into_iter().chain(clocks.iter().map(String::as_str)).chain(detach)).end()
    };
    // So many that all four workers are asked for.
    run(64, 5, true)?.expect_code(0)?;
    world.all_acting(&mut serving, 64, 1, &[])?;
    world.longhaul(["watch", "latest", "--coordinator", &access]).end()?.expect_code(0)?;
    let began = Instant::now();
    let ended = run(units, 0, false)?.expect_code(0)?;
    let took = began.elapsed();
    let shown = ended.json()?;
    ensure!(shown["run"]["passed"] == units, "{}", shown["run"]);
    serving.stop()?;
    let limit = Duration::from_secs(120);
    wait_for("the end of idle workers", limit, || Ok(world.jobs()?.is_empty().then_some(())))?;
    Ok(took)
}

fn hyperqueue(world: &World, program: &Path, units: usize) -> Result<Duration> {
    let (place, cluster) = (world.place(), world.cluster());
    let hq = place.path("hq");
    std::fs::copy(program, &hq).with_context(|| format!("no {}", program.display()))?;
    place.account().give(&hq)?;
    let folder = place.path("hq-server");
    let command = |arguments: &[&str]| {
        let mut command = place.account().command(&hq);
        command.arg("--server-dir").arg(&folder).args(arguments);
        command
    };
    let mut server =
        command(&["server", "start", "--host", "127.0.0.1"]).stdout(std::process::Stdio::null()).spawn()?;
    let outcome = with_server(cluster, &hq, &folder, units, command);
    let _ = command(&["server", "stop"]).output();
    let _ = server.kill();
    server.wait()?;
    let jobs = world.jobs()?;
    for job in jobs.iter().filter_map(|job| job.split(' ').next()) {
        cluster.admin(["scancel", job])?;
    }
    outcome
}

fn with_server(
    cluster: &Cluster,
    hq: &Path,
    folder: &Path,
    units: usize,
    command: impl Fn(&[&str]) -> std::process::Command,
) -> Result<Duration> {
    wait_for("HyperQueue's server", LIMIT, || {
        Ok(command(&["server", "info"]).output()?.status.success().then_some(()))
    })?;
    let work = format!("{} --server-dir {} worker start --cpus 16", hq.display(), folder.display());
    for _ in 0..4 {
        let mut batch = cluster.command(Path::new("sbatch"));
        batch.args(["--exclusive", "--chdir=/", "--output=/dev/null", "--cpus-per-task=16", "--wrap", &work]);
        let answer = batch.output()?;
        ensure!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
    }
    wait_for("HyperQueue's workers", LIMIT, || {
        let listed = command(&["worker", "list", "--output-mode", "json"]).output()?;
        let workers: Value = serde_json::from_slice(&listed.stdout).unwrap_or_default();
        Ok((workers.as_array().map_or(0, Vec::len) == 4).then_some(()))
    })?;
    let array = format!("--array=1-{units}");
    let began = Instant::now();
    let submitted = command(&["submit", &array, "--wait", "--stdout=none", "--stderr=none", "--", "true"]).output()?;
    let took = began.elapsed();
    ensure!(submitted.status.success(), "{}", String::from_utf8_lossy(&submitted.stderr));
    Ok(took)
}

fn density_row(sandboxes: usize, text: &mut String) -> Result<()> {
    let place = Place::new("bench-density")?;
    // Starts take a second or so each, on two processors.
    let waits = 4 + sandboxes / 12;
    let tried = density::hold(&place, sandboxes, waits)?;
    say(&tried.to_string())?;
    let Tried { acted, took, census, states, faults, .. } = &tried;
    let each = |amount: u64| {
        f64::from(u32::try_from(amount).unwrap_or(u32::MAX)) / f64::from(u32::try_from(*acted).unwrap_or(1))
    };
    let total = census.total();
    let of = |name: &str| {
        let share = census.programs.get(name).copied().unwrap_or_default();
        format!("{:.1} {name} ({:.1} MiB)", each(share.processes as u64), each(share.kib) / 1024.0)
    };
    writeln!(
        text,
        "| {sandboxes} sandboxes on one node | {acted} act at one time, {} s after the submission; settled: {states:?} \
         {faults:?} | of each: {:.1} MiB, {:.1} processes, among them {}, {}; in all {} descriptors ({} of the worker), \
         {} inotify instances, {} of {} keys, {} segments of shared memory |",
        took.as_secs(),
        each(total.kib) / 1024.0,
        each(total.processes as u64),
        of("squashfuse_ll"),
        of("fuse-overlayfs"),
        census.descriptors,
        census.of_worker,
        census.inotify,
        census.keys.0,
        census.keys.1,
        census.segments,
    )?;
    Ok(())
}

fn median(times: &mut [u64]) -> u64 {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn seconds(millis: u64) -> String {
    format!("{}.{:02} s", millis / 1000, millis % 1000 / 10)
}
