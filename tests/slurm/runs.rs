//! Whole runs over a real Slurm of four nodes, with real sandboxes, and what goes wrong there.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use longhaul_tests::command::{Longhaul, Running, wait_for};
use longhaul_tests::leftovers;
use longhaul_tests::place::Place;
use longhaul_tests::slurm::{Cluster, Options};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Everything soon, so that a test waits for seconds.
const SOON: &str = "\
[coordinator]
lease_ttl = \"10s\"
lease_skew = \"2s\"
heartbeat = \"2s\"

[worker]
disk_floor = \"100MiB\"
grace = \"5s\"

[run]
backoff = \"1s\"
";

/// The task of those tests in which something happens meanwhile, for an agent that only waits.
const TASK: &str = "mtpaint_env/flip_sign";

/// What that agent does, a second a step.
const WAITS: usize = 25;

/// A cluster, and a place whose runs ask it for workers.
struct World {
    place: Place,
    cluster: Cluster,
    settings: String,
}

impl World {
    fn new(test: &str, pool: &str) -> Result<Self> {
        let place = Place::new(test)?;
        let cluster = Cluster::up(&Options::default())?;
        // On each node a folder of its own, as a node's disk is.
        let scratch = cluster.local().join("longhaul");
        let settings = place.settings(&format!(
            "{SOON}\n[paths]\nscratch = \"{}\"\n\n[slurm]\npoll = \"1s\"\nhost = \"127.0.0.1\"\n\n\
             [slurm.pools.test]\npartition = \"batch\"\ncpus = 2\nmemory = \"4GiB\"\ntime = \"1h\"\nexclusive = true\nslots = 2\n\
             warning = \"1m\"\nidle = \"30s\"\n{pool}",
            scratch.display()
        ))?;
        Ok(Self { place, cluster, settings })
    }

    /// The program, where Slurm's programs find the cluster.
    fn longhaul<T: AsRef<str>>(&self, arguments: impl IntoIterator<Item = T>) -> Longhaul {
        let mut all: Vec<String> = arguments.into_iter().map(|argument| argument.as_ref().to_owned()).collect();
        all.extend(["--settings".to_owned(), self.settings.clone()]);
        self.place.longhaul(all).env("SLURM_CONF", &self.cluster.conf().display().to_string())
    }

    fn run<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Longhaul {
        let (benchmark, store) = (self.place.benchmark(), self.place.store());
        let (benchmark, store) = (benchmark.display().to_string(), store.display().to_string());
        let fixed = ["run", &benchmark, "--slurm", "--store", &store, "--format", "json"];
        self.longhaul(fixed.map(str::to_owned).into_iter().chain(arguments.into_iter().map(str::to_owned)))
    }

    /// An agent that waits, and is done.
    fn waits(&self) -> Result<String> {
        let file = self.place.path("waits.jsonl");
        let script = "{\"action\": \"wait\", \"time\": 1}\n".repeat(WAITS) + "{\"text\": \"done\", \"done\": true}\n";
        std::fs::write(&file, script)?;
        Ok(format!("--agent=waits=scripted:{}", file.display()))
    }

    /// What `longhaul slurm why` says of the one pool.
    fn pool(&self) -> Result<Option<Value>> {
        let store = self.place.store().display().to_string();
        let answer = self.longhaul(["slurm", "why", "--store", &store, "--format", "json"]).end()?;
        if answer.code() != Some(0) {
            return Ok(None);
        }
        Ok(answer.json()?["pools"].get(0).cloned())
    }

    /// The nodes on which something acts, with the most steps that an attempt there has.
    fn acting(&self) -> Result<Vec<(String, u64)>> {
        let store = self.place.store().display().to_string();
        let status = self.longhaul(["status", "--store", &store, "--format", "json"]).end()?;
        if status.code() != Some(0) {
            return Ok(Vec::new());
        }
        let mut acting = Vec::new();
        for worker in status.json()?["workers"].as_array().into_iter().flatten() {
            let attempts = worker["attempts"].as_array().cloned().unwrap_or_default();
            let steps =
                attempts.iter().filter(|it| it["phase"] == "acting").filter_map(|it| it["steps"].as_u64()).max();
            if let (Some(steps), Some(node)) = (steps, worker["node"].as_str()) {
                acting.push((node.to_owned(), steps));
            }
        }
        Ok(acting)
    }

    /// Waits until an attempt has so many steps; the node's number.
    fn node_at(&self, running: &mut Running, steps: u64) -> Result<u32> {
        let node = wait_for("steps of the long task", Duration::from_secs(300), || {
            ensure!(running.runs()?, "the run ended too early");
            Ok(self.acting()?.into_iter().find(|(_, done)| *done >= steps).map(|(node, _)| node))
        })?;
        node.strip_prefix("node").and_then(|number| number.parse().ok()).with_context(|| format!("{node} is no node"))
    }

    /// The nodes on which attempts of the latest run were, by episode.
    fn nodes(&self, episodes: usize) -> Result<Vec<Vec<String>>> {
        let of = |index| {
            let shown = self.place.show(&format!("latest/{index}"))?;
            let attempts = shown["attempts"].as_array().context("no attempts")?;
            let node = |attempt: &Value| attempt["finish"]["notes"]["hostname"].as_str().unwrap_or("?").to_owned();
            Ok(attempts.iter().map(node).collect())
        };
        (0..episodes).map(of).collect()
    }

    /// The jobs that wait or run.
    fn jobs(&self) -> Result<Vec<String>> {
        let listed = self.cluster.admin(["squeue", "--noheader", "--format=%i %j %T"])?;
        Ok(listed.lines().map(str::to_owned).collect())
    }

    /// No job waits or runs, and nothing of the test is left on any node.
    fn expect_nothing(&self) -> Result<()> {
        wait_for("the end of all jobs", Duration::from_secs(60), || Ok(self.jobs()?.is_empty().then_some(())))?;
        let local = self.cluster.local();
        wait_for("the end of all sandboxes", Duration::from_secs(60), || {
            Ok(leftovers::processes_that_name(&local.join("longhaul"))?.is_empty().then_some(()))
        })?;
        for node in 1..=4 {
            let scratch = self.cluster.local_of(node).join("longhaul");
            if scratch.is_dir() {
                leftovers::expect_nothing(self.place.root(), &scratch)?;
            }
        }
        Ok(())
    }
}

/// The settled states of all episodes.
fn states(shown: &Value) -> BTreeSet<String> {
    let text = |episode: &Value, key: &str| episode[key].as_str().unwrap_or("?").to_owned();
    let episodes = shown["episodes"].as_array().into_iter().flatten();
    episodes.map(|episode| format!("{} {}", text(episode, "agent"), text(episode, "state"))).collect()
}

#[test]
fn a_run_over_four_nodes_settles_every_episode_and_holds_no_node_afterwards() -> Result<()> {
    let world = World::new("four-nodes", "max_workers = 4\nmax_queued = 4\n")?;
    let solver = world.place.agent("solver");
    let tasks = ["mousepad_env/change_setting", "mtpaint_env/flip_sign", "gnumeric_env/total_expenses"];
    let mut arguments: Vec<&str> = tasks.iter().flat_map(|task| ["--task", task]).collect();
    arguments.extend([&*solver, "--agent=idle", "--samples", "3", "--fail-on-fault"]);
    let ended = world.run(arguments).end()?.expect_code(0)?;
    let shown = ended.json()?;
    ensure!(shown["run"]["passed"] == 9 && shown["run"]["failed"] == 9, "{shown:#}");
    ensure!(states(&shown) == ["idle failed", "solver passed"].map(str::to_owned).into(), "{shown:#}");
    let nodes: BTreeSet<String> = world.nodes(18)?.into_iter().flatten().collect();
    ensure!(nodes.len() > 1, "all of it ran on {nodes:?}");
    world.expect_nothing()
}

#[test]
fn a_node_that_loses_power_costs_an_attempt_and_no_retry() -> Result<()> {
    // One attempt in all: the loss of a node is no fault of the episode.
    let world = World::new("power-loss", "max_workers = 1\n")?;
    let waits = world.waits()?;
    let mut running = world.run(["--task", TASK, &*waits, "--max-attempts", "1"]).start()?;
    let node = world.node_at(&mut running, 5)?;
    world.cluster.node("node-off", node)?;
    let shown = running.end()?.expect_code(0)?.json()?;
    ensure!(states(&shown) == ["waits failed".to_owned()].into(), "{shown:#}");
    let nodes = world.nodes(1)?;
    ensure!(nodes[0].len() == 2 && nodes[0][1] != format!("node{node}"), "{nodes:?}");
    world.cluster.node("node-on", node)?;
    wait_for("the end of all jobs", Duration::from_secs(120), || Ok(world.jobs()?.is_empty().then_some(())))
}

#[test]
fn a_cancelled_allocation_gives_its_episodes_back_and_they_run_elsewhere() -> Result<()> {
    let world = World::new("scancel", "max_workers = 1\n")?;
    let waits = world.waits()?;
    let mut running = world.run(["--task", TASK, &*waits, "--max-attempts", "1"]).start()?;
    world.node_at(&mut running, 5)?;
    let jobs = world.jobs()?;
    let job = jobs.first().and_then(|line| line.split(' ').next()).context("no job runs")?;
    world.cluster.admin(["scancel", job])?;
    let shown = running.end()?.expect_code(0)?.json()?;
    ensure!(states(&shown) == ["waits failed".to_owned()].into(), "{shown:#}");
    let episode = world.place.show("latest/0")?;
    ensure!(episode["attempts"][0]["finish"]["end"]["fault"]["class"] == "preempted", "{episode:#}");
    world.expect_nothing()
}

#[test]
fn a_controller_that_is_away_neither_stops_episodes_nor_makes_anything_be_asked_twice() -> Result<()> {
    let world = World::new("controller-away", "max_workers = 1\n")?;
    let waits = world.waits()?;
    let mut running = world.run(["--task", TASK, &*waits]).start()?;
    world.node_at(&mut running, 5)?;
    let before = world.jobs()?;
    world.cluster.controller("ctld-stop")?;
    let (_, steps) = world.acting()?.into_iter().next().context("nothing acts")?;
    world.node_at(&mut running, steps + 8)?;
    world.cluster.controller("ctld-start")?;
    let after = wait_for("the controller", Duration::from_secs(60), || Ok(world.jobs().ok()))?;
    ensure!(before == after, "{before:?} became {after:?}");
    let shown = running.end()?.expect_code(0)?.json()?;
    ensure!(states(&shown) == ["waits failed".to_owned()].into(), "{shown:#}");
    ensure!(world.nodes(1)?[0].len() == 1, "it took more than one attempt");
    world.expect_nothing()
}

#[test]
fn a_coordinator_that_is_killed_and_started_at_another_port_keeps_its_workers() -> Result<()> {
    let world = World::new("coordinator-killed", "max_workers = 1\n")?;
    let store = world.place.store().display().to_string();
    let access = world.place.access().display().to_string();
    let serve = || world.longhaul(["serve", "--slurm", "--store", &store]).start();
    let mut serving = serve()?;
    wait_for("the coordinator", Duration::from_secs(60), || Ok(world.pool()?.map(drop)))?;
    let (benchmark, waits) = (world.place.benchmark().display().to_string(), world.waits()?);
    let submit = ["run", &*benchmark, "--coordinator", &*access, "--detach", "--task", TASK];
    world.longhaul(submit.into_iter().chain([&*waits])).end()?.expect_code(0)?;
    world.node_at(&mut serving, 5)?;
    let before = world.jobs()?;
    serving.signal(Signal::SIGKILL)?;
    serving.end()?;
    let serving = serve()?;
    wait_for("the coordinator", Duration::from_secs(60), || Ok(world.pool()?.map(drop)))?;
    ensure!(world.jobs()? == before, "something else was asked for");
    world.longhaul(["watch", "latest", "--coordinator", &access]).end()?.expect_code(0)?;
    let shown = world.place.show("latest")?;
    ensure!(states(&shown) == ["waits failed".to_owned()].into(), "{shown:#}");
    ensure!(world.nodes(1)?[0].len() == 1, "it took more than one attempt");
    // With nothing to do, the worker's allocation is ended.
    wait_for("the end of the idle worker", Duration::from_secs(120), || Ok(world.jobs()?.is_empty().then_some(())))?;
    serving.signal(Signal::SIGTERM)?;
    serving.end()?.expect_code(0)?;
    world.expect_nothing()
}

#[test]
fn a_pool_that_slurm_refuses_is_paused_and_says_why() -> Result<()> {
    let world = World::new("refused", "constraint = \"nowhere\"\nmax_failures = 1\n")?;
    let mut running = world.run(["--task", "mtpaint_env/flip_sign", "--agent=idle"]).start()?;
    let pool = wait_for("the pause", Duration::from_secs(120), || {
        ensure!(running.runs()?, "the run ended");
        Ok(world.pool()?.filter(|pool| pool["paused"] == true))
    })?;
    let holds = pool["holds"].to_string();
    ensure!(holds.contains("feature"), "{holds}");
    running.signal(Signal::SIGINT)?;
    running.end()?;
    world.expect_nothing()
}
