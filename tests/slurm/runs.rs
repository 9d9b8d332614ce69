//! Whole runs over a real Slurm of four nodes, with real sandboxes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use longhaul_tests::command::wait_for;
use longhaul_tests::slurm::Options;
use longhaul_tests::slurm::world::World;
use nix::sys::signal::Signal;
use serde_json::Value;

/// Two small sandboxes in each worker.
const POOL: &str = "partition = \"batch\"\ncpus = 2\nmemory = \"4GiB\"\nexclusive = true\nslots = 2\n";

/// The settled states of all episodes.
fn states(shown: &Value) -> BTreeSet<String> {
    let text = |episode: &Value, key: &str| episode[key].as_str().unwrap_or("?").to_owned();
    let episodes = shown["episodes"].as_array().into_iter().flatten();
    episodes.map(|episode| format!("{} {}", text(episode, "agent"), text(episode, "state"))).collect()
}

#[test]
fn a_run_over_four_nodes_settles_every_episode_and_holds_no_node_afterwards() -> Result<()> {
    let world = World::new("four-nodes", &Options::default(), &format!("{POOL}max_workers = 4\nmax_queued = 4\n"))?;
    // The node's program does the work; the whole one coordinates alone.
    let script = world.longhaul(["slurm", "script"]).end()?.expect_code(0)?.stdout();
    let node = world.place().node_program().display().to_string();
    ensure!(script.contains(&node), "allocations do not start {node}:\n{script}");
    let solver = world.place().agent("solver");
    let tasks = ["mousepad_env/change_setting", "mtpaint_env/flip_sign", "gnumeric_env/total_expenses"];
    let mut arguments: Vec<&str> = tasks.iter().flat_map(|task| ["--task", task]).collect();
    arguments.extend([&*solver, "--agent=idle", "--samples", "3", "--fail-on-fault"]);
    let ended = world.run(&world.place().benchmark(), arguments).end()?.expect_code(0)?;
    let shown = ended.json()?;
    ensure!(shown["run"]["passed"] == 9 && shown["run"]["failed"] == 9, "{shown:#}");
    ensure!(states(&shown) == ["idle failed", "solver passed"].map(str::to_owned).into(), "{shown:#}");
    let mut nodes = BTreeSet::new();
    for episode in 0..18 {
        nodes.extend(world.attempts(episode)?.iter().map(|attempt| attempt["hostname"].to_string()));
    }
    ensure!(nodes.len() > 1, "all of it ran on {nodes:?}");
    world.expect_nothing(&[])
}

/// Episodes whose sandboxes do nothing: four times sixteen of them act at one time.
fn four_hundred(array: bool) -> Result<()> {
    const EPISODES: usize = 400;
    let worker = Some(PathBuf::from(env!("CARGO_BIN_EXE_longhaul-noop-worker")));
    let pool = format!("cpus = 16\nmemory = \"16GiB\"\nslots = 16\nmax_workers = 4\nmax_queued = 4\narray = {array}\n");
    let world = World::new("four-hundred", &Options { worker, ..Options::default() }, &pool)?;
    let mut running = world.start_clocks(EPISODES, 5)?;
    let live = world.all_acting(&mut running, 64, 1, &[])?;
    let mut nodes: BTreeMap<&str, usize> = BTreeMap::new();
    for attempt in &live {
        *nodes.entry(&attempt.node).or_default() += 1;
    }
    ensure!(nodes.len() == 4 && nodes.values().all(|slots| *slots == 16), "{nodes:?}");
    let jobs = world.jobs()?;
    ensure!(jobs.len() == 4 && jobs.iter().all(|job| job.contains('_') == array), "{jobs:?}");
    let shown = running.end()?.expect_code(0)?.json()?;
    ensure!(shown["run"]["passed"] == EPISODES && shown["run"]["episodes"] == EPISODES, "{}", shown["run"]);
    for episode in shown["episodes"].as_array().context("no episodes")? {
        ensure!(episode["state"] == "passed" && episode["attempts"] == 1 && episode["steps"] == 6, "{episode:#}");
    }
    world.expect_nothing(&[])?;
    world.place().expect_sound()
}

#[test]
fn four_hundred_episodes_over_four_nodes_of_an_array_settle_once_each() -> Result<()> {
    four_hundred(true)
}

#[test]
fn four_hundred_episodes_over_four_nodes_of_single_jobs_settle_once_each() -> Result<()> {
    four_hundred(false)
}

#[test]
fn a_preflight_over_slurm_sets_every_task_up_on_nodes_and_holds_none_afterwards() -> Result<()> {
    let pool = "cpus = 4\nmemory = \"8GiB\"\nexclusive = true\nslots = 2\nmax_workers = 4\nmax_queued = 4\n";
    let world = World::new("preflight-slurm", &Options::default(), pool)?;
    // A task whose setup fails is found over Slurm as it is on one machine.
    let broken = world.place().benchmark().join("environments/mtpaint_env/tasks/flip_sign/setup_task.sh");
    std::fs::write(&broken, "#!/bin/bash\nsleep 600\n")?;
    let spec = broken.with_file_name("task.json");
    let text = std::fs::read_to_string(&spec)?;
    std::fs::write(&spec, text.replace("\"pre_task_timeout\": 120", "\"pre_task_timeout\": 3"))?;
    let output = world.place().path("before").display().to_string();
    let picks = ["--task", "mtpaint_env/*", "--task", "mousepad_env/*", "--max-attempts", "1", "--output", &output];
    let found = world.over("preflight", &world.place().benchmark(), picks).end()?.expect_code(0)?.json()?;
    let tasks = found["tasks"].as_array().context("no tasks")?;
    let bad: Vec<_> = tasks.iter().filter(|task| task["quarantined"] == true).map(|task| &task["task"]).collect();
    ensure!(bad == ["mtpaint_env/flip_sign"] && tasks.len() == 6, "{found:#}");
    ensure!(world.place().path("before/sheet-1.png").is_file(), "no contact sheet");
    world.expect_nothing(&[])
}

#[test]
fn a_pool_that_slurm_refuses_is_paused_and_says_why() -> Result<()> {
    let world =
        World::new("refused", &Options::default(), &format!("{POOL}constraint = \"nowhere\"\nmax_failures = 1\n"))?;
    let mut running =
        world.run(&world.place().benchmark(), ["--task", "mtpaint_env/flip_sign", "--agent=idle"]).start()?;
    let pool = wait_for("the pause", Duration::from_secs(120), || {
        ensure!(running.runs()?, "the run ended");
        Ok(world.pool()?.filter(|pool| pool["paused"] == true))
    })?;
    let holds = pool["holds"].to_string();
    ensure!(holds.contains("feature"), "{holds}");
    running.signal(Signal::SIGINT)?;
    running.end()?;
    world.expect_nothing(&[])
}
