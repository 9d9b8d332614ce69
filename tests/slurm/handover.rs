//! The coordinator in allocations of its own, one after the other, on a real Slurm. Sandboxes do
//! nothing: what is tried is who serves when.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use longhaul_tests::command::wait_for;
use longhaul_tests::slurm::Options;
use longhaul_tests::slurm::figures::say;
use longhaul_tests::slurm::world::{World, number};
use serde_json::Value;

/// The next coordinator begins a minute after each one, as soon as Slurm can count.
const SETTINGS: &str = "cpus = 8\nmemory = \"8GiB\"\nslots = 8\nmax_workers = 2\nmax_queued = 2\n
[slurm.coordinator]
cpus = 1
memory = \"1GiB\"
time = \"4m\"
overlap = \"3m\"
warning = \"1m\"
idle = \"20s\"
";

/// The longest that anything is waited for.
const LIMIT: Duration = Duration::from_secs(900);

/// The steps of an episode, a second each: what it takes until sixteen act at one time over two allocations, and
/// more.
const LONG: usize = 120;

fn world(test: &str) -> Result<World> {
    let worker = Some(PathBuf::from(env!("CARGO_BIN_EXE_longhaul-noop-worker")));
    World::new(test, &Options { worker, ..Options::default() }, SETTINGS)
}

/// Asks for a coordinator, and waits until it answers.
fn serve(world: &World) -> Result<()> {
    let (store, scratch) = (world.place().store().display().to_string(), world.scratch().display().to_string());
    let serve = ["serve", "--slurm", "--as-allocation", "--store", &store, "--scratch", &scratch];
    world.longhaul(serve).end()?.expect_code(0)?;
    Ok(())
}

/// Gives it a run of clocks, and leaves it alone.
fn submit(world: &World, episodes: usize, waits: usize) -> Result<()> {
    let access = world.place().store().join("access/access.json").display().to_string();
    let benchmark = world.place().path("clocks").display().to_string();
    let clocks = world.clocks(episodes, waits)?;
    let run = ["run", &benchmark, "--coordinator", &access, "--detach"];
    world.longhaul(run.into_iter().chain(clocks.iter().map(String::as_str))).end()?.expect_code(0)?;
    Ok(())
}

/// Who serves, or did last.
fn record(world: &World) -> Result<Value> {
    Ok(serde_json::from_slice(&std::fs::read(world.place().store().join("coordinator.json"))?)?)
}

/// How many episodes of the run are settled; nothing while nobody answers.
fn settled(world: &World) -> Result<Option<u64>> {
    let store = world.place().store().display().to_string();
    let shown = world.longhaul(["show", "latest", "--store", &store, "--format", "json"]).end()?;
    if shown.code() != Some(0) {
        return Ok(None);
    }
    let shown = shown.json()?;
    let is_settled = |episode: &&Value| !matches!(episode["state"].as_str(), Some("queued" | "active"));
    let settled = shown["episodes"].as_array().into_iter().flatten().filter(is_settled).count();
    Ok(Some(u64::try_from(settled)?))
}

fn wait_settled(world: &World, episodes: u64, mut also: impl FnMut() -> Result<()>) -> Result<()> {
    wait_for("the end of the run", LIMIT, || {
        also()?;
        Ok((settled(world)? == Some(episodes)).then_some(()))
    })
}

fn wait_acting(world: &World, episodes: usize) -> Result<()> {
    wait_for("episodes that act", LIMIT, || {
        let acting = world.live()?.iter().filter(|live| live.phase == "acting").count();
        Ok((acting >= episodes).then_some(()))
    })
}

fn expect_no_job(world: &World) -> Result<()> {
    wait_for("the end of all jobs", LIMIT, || Ok(world.jobs()?.is_empty().then_some(())))
}

#[test]
fn coordinators_follow_one_another_and_no_episode_notices() -> Result<()> {
    const EPISODES: usize = 32;
    let world = world("handover")?;
    serve(&world)?;
    // Two turns of the slots, so long that the third coordinator begins before the end of the second.
    submit(&world, EPISODES, 180)?;
    let store = world.place().store().display().to_string();
    let watching = world.longhaul(["watch", "latest", "--store", &store]).start()?;
    let mut generations = BTreeSet::new();
    wait_settled(&world, u64::try_from(EPISODES)?, || {
        let record = record(&world)?;
        generations.insert(record["generation"].as_u64().context("no generation")?);
        // One that serves, and one that is to follow: never two of either.
        let jobs = world.jobs()?;
        let own =
            |state: &str| jobs.iter().filter(|job| job.contains("longhaul.serve-") && job.ends_with(state)).count();
        ensure!(own("PENDING") <= 1 && own("RUNNING") <= 2, "{jobs:?}");
        Ok(())
    })?;
    say(&format!("{EPISODES} episodes over generations {generations:?}"))?;
    ensure!(generations.len() >= 3, "only {generations:?} served");
    // Whoever watches is told the end by another one than it began with.
    watching.end()?.expect_code(0)?;
    expect_no_job(&world)?;
    let last = record(&world)?;
    ensure!(last["ended"] == true && last["closed"] == true, "{last}");
    world.expect_whole(EPISODES, &[], &[])?;
    world.expect_nothing(&[])
}

#[test]
fn a_coordinator_that_is_cancelled_ends_everything_in_order_and_goes_on_when_asked_again() -> Result<()> {
    const EPISODES: usize = 16;
    let world = world("cancelled")?;
    serve(&world)?;
    submit(&world, EPISODES, LONG)?;
    wait_acting(&world, EPISODES)?;
    let jobs = world.jobs()?;
    let running = jobs.iter().find(|job| job.contains("longhaul.serve-") && job.ends_with("RUNNING"));
    let job = running.and_then(|job| job.split(' ').next()).with_context(|| format!("nobody serves: {jobs:?}"))?;
    world.cluster().admin(["scancel", job])?;
    wait_for("the coordinator to hear of it", LIMIT, || Ok((record(&world)?["closed"] == true).then_some(())))?;
    // At once, while the cancelled one still ends what it had: that one is not taken for one that serves.
    serve(&world)?;
    let again = record(&world)?;
    ensure!(again["closed"] == false && again["job"] != job, "{again}");
    wait_settled(&world, u64::try_from(EPISODES)?, || Ok(()))?;
    expect_no_job(&world)?;
    world.expect_whole(EPISODES, &[], &["preempted"])?;
    world.expect_nothing(&[])
}

#[test]
fn a_coordinator_whose_node_loses_power_is_followed_by_the_next_one() -> Result<()> {
    const EPISODES: usize = 16;
    let world = world("power")?;
    serve(&world)?;
    let first = record(&world)?;
    let job = first["job"].as_str().context("no job")?;
    let node = world.cluster().admin(["squeue", "--noheader", "--format=%N", "--jobs", job])?;
    let node = number(node.trim())?;
    submit(&world, EPISODES, LONG)?;
    wait_acting(&world, EPISODES)?;
    world.cluster().node("node-off", node)?;
    wait_settled(&world, u64::try_from(EPISODES)?, || Ok(()))?;
    expect_no_job(&world)?;
    ensure!(record(&world)?["generation"].as_u64() > first["generation"].as_u64(), "nobody followed");
    world.expect_whole(EPISODES, &[], &["worker_lost", "preempted"])
}
