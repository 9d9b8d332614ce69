//! A cluster, and a place whose runs ask it for workers: what tests and measurements over
//! Slurm share.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use longhaul_core::money::Money;
use serde_json::Value;

use super::{Cluster, Options, vendor};
use crate::command::{Longhaul, Running, wait_for};
use crate::place::Place;
use crate::{leftovers, tree};

/// Everything soon, so that a test waits for seconds. Slurm's own patience with what it ends
/// (KillWait) is 30 s unless a site says otherwise; a worker takes much less of it.
const SOON: &str = "\
[worker]
disk_floor = \"100MiB\"
grace = \"10s\"

[run]
backoff = \"1s\"
# The hands of a clock are never where they were: no replay of its episodes comes to the same screen.
resume = \"restart\"
";

/// Leases that are over soon, for the same reason.
const SHORT_LEASES: &str = "\
[coordinator]
lease_ttl = \"10s\"
lease_skew = \"2s\"
heartbeat = \"2s\"
";

/// The least task there is: a clock, in `tests/slurm/benchmark`.
const TASK: &str = "clock_env/keep_time";

/// As many sandboxes as a fault is done to.
pub const SANDBOXES: usize = 16;

/// The steps of each of them before it is.
pub const STEPS: u64 = 3;

/// What an agent waits, in seconds: several times what sixteen sandboxes take to start, so that all of
/// them act at one time.
pub const WAITS: usize = 60;

/// All of them fit into one worker, and another one may be there beside it.
pub const POOL: &str = "cpus = 16\nmemory = \"16GiB\"\nslots = 16\nmax_workers = 2\n";

/// The longest that anything here is waited for; only what hangs takes so long.
const LIMIT: Duration = Duration::from_secs(400);

/// A cluster, and a place whose runs ask it for workers.
#[derive(Debug)]
pub struct World {
    place: Place,
    cluster: Cluster,
    settings: String,
    net: bool,
    nodes: u32,
}

/// An attempt that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live {
    /// Its id: run, episode and number.
    pub attempt: String,
    /// Its node.
    pub node: String,
    /// The Slurm job of its worker.
    pub job: String,
    /// How far it is.
    pub phase: String,
    /// The steps of it that the coordinator has acknowledged.
    pub steps: u64,
}

impl Live {
    /// Its episode, by index, and its number in it, from 1.
    ///
    /// # Errors
    ///
    /// The id is none.
    pub fn place(&self) -> Result<(usize, usize)> {
        let mut parts = self.attempt.split('/').skip(1);
        let mut next = || parts.next().and_then(|part| part.parse().ok());
        next().zip(next()).with_context(|| format!("{} is no attempt", self.attempt))
    }
}

/// The number of a node.
///
/// # Errors
///
/// It is none of the cluster's.
pub fn number(node: &str) -> Result<u32> {
    node.strip_prefix("node").and_then(|number| number.parse().ok()).with_context(|| format!("{node} is no node"))
}

/// What time it is, in milliseconds, as the program says it too.
#[must_use]
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl World {
    /// A cluster with one pool, whose settings `pool` adds to or says otherwise.
    ///
    /// # Errors
    ///
    /// Something that it needs is missing.
    pub fn new(test: &str, options: &Options, pool: &str) -> Result<Self> {
        let place = Place::new(test)?;
        tree::copy(&tree::repository().join("tests/slurm/benchmark"), &place.path("clocks"), place.account())?;
        let cluster = Cluster::up(options)?;
        let host = if options.net { "10.77.0.1" } else { "127.0.0.1" };
        let prices = place.path("prices.toml");
        std::fs::write(&prices, vendor::PRICES)?;
        let leases = if options.usual_leases { "" } else { SHORT_LEASES };
        let mut settings = format!("{leases}\n{SOON}\n[prices]\nfile = \"{}\"\n", prices.display());
        write!(settings, "\n[slurm]\npoll = \"1s\"\nhost = \"{host}\"\n")?;
        // Another worker than the program's own.
        if let Some(program) = &options.worker {
            let copy = place.path("worker");
            std::fs::copy(program, &copy).with_context(|| format!("cannot copy {}", program.display()))?;
            place.account().give(&copy)?;
            writeln!(settings, "program = \"{}\"", copy.display())?;
        }
        write!(settings, "\n[slurm.pools.test]\ntime = \"1h\"\nwarning = \"1m\"\nidle = \"30s\"\n{pool}")?;
        let settings = place.settings(&settings)?;
        Ok(Self { place, cluster, settings, net: options.net, nodes: options.nodes })
    }

    /// The place.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The cluster.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// On each node a folder of its own, as a node's disk is.
    #[must_use]
    pub fn scratch(&self) -> PathBuf {
        self.cluster.local().join("lh")
    }

    /// The program with arguments, where Slurm's programs find the cluster.
    #[must_use]
    pub fn longhaul<T: AsRef<str>>(&self, arguments: impl IntoIterator<Item = T>) -> Longhaul {
        let mut all: Vec<String> = arguments.into_iter().map(|argument| argument.as_ref().to_owned()).collect();
        all.extend(["--settings".to_owned(), self.settings.clone()]);
        // A coordinator of nodes with networks of their own has to be where those are reached.
        if self.net { self.cluster.longhaul(&self.place, all) } else { self.place.longhaul(all) }
            .env("SLURM_CONF", &self.cluster.conf().display().to_string())
    }

    /// `longhaul run --slurm` of a benchmark.
    #[must_use]
    pub fn run<T: AsRef<str>>(&self, benchmark: &Path, arguments: impl IntoIterator<Item = T>) -> Longhaul {
        self.over("run", benchmark, arguments)
    }

    /// What takes a benchmark and asks Slurm for workers: `run`, `preflight`.
    #[must_use]
    pub fn over<T: AsRef<str>>(
        &self,
        what: &str,
        benchmark: &Path,
        arguments: impl IntoIterator<Item = T>,
    ) -> Longhaul {
        let (benchmark, store) = (benchmark.display().to_string(), self.place.store().display().to_string());
        let scratch = self.scratch().display().to_string();
        let fixed = [what, &benchmark, "--slurm", "--store", &store, "--scratch", &scratch, "--format", "json"];
        let arguments = arguments.into_iter().map(|argument| argument.as_ref().to_owned());
        self.longhaul(fixed.map(str::to_owned).into_iter().chain(arguments))
    }

    /// `longhaul serve --slurm`, and waits until it answers.
    ///
    /// # Errors
    ///
    /// It ends, or does not answer.
    pub fn serve(&self) -> Result<Running> {
        let (store, scratch) = (self.place.store().display().to_string(), self.scratch().display().to_string());
        let mut serving = self.longhaul(["serve", "--slurm", "--store", &store, "--scratch", &scratch]).start()?;
        wait_for("the coordinator", LIMIT, || {
            ensure!(serving.runs()?, "the coordinator ended");
            Ok(self.pool()?.map(drop))
        })?;
        Ok(serving)
    }

    /// So many clocks, watched by an agent that waits so many seconds, a second a step, and is done. One
    /// attempt has to do: whatever goes wrong is no fault of the episode.
    ///
    /// # Errors
    ///
    /// The agent's script cannot be written.
    pub fn clocks(&self, episodes: usize, waits: usize) -> Result<Vec<String>> {
        let file = self.place.path("waits.jsonl");
        let script = "{\"action\": \"wait\", \"time\": 1}\n".repeat(waits) + "{\"text\": \"done\", \"done\": true}\n";
        std::fs::write(&file, script)?;
        let agent = format!("--agent=waits=scripted:{}", file.display());
        let samples = episodes.to_string();
        let most = ["--max-attempts", "1"];
        Ok(["--task", TASK, &agent, "--samples", &samples].into_iter().chain(most).map(str::to_owned).collect())
    }

    /// Starts a run of clocks that asks Slurm by itself.
    ///
    /// # Errors
    ///
    /// It cannot be started.
    pub fn start_clocks(&self, episodes: usize, waits: usize) -> Result<Running> {
        let clocks = self.clocks(episodes, waits)?;
        self.run(&self.place.path("clocks"), clocks.iter().map(String::as_str).chain(["--fail-on-fault"])).start()
    }

    /// What `longhaul slurm why` says of the one pool.
    ///
    /// # Errors
    ///
    /// The answer cannot be read.
    pub fn pool(&self) -> Result<Option<Value>> {
        let store = self.place.store().display().to_string();
        let answer = self.longhaul(["slurm", "why", "--store", &store, "--format", "json"]).end()?;
        if answer.code() != Some(0) {
            return Ok(None);
        }
        Ok(answer.json()?["pools"].get(0).cloned())
    }

    /// The attempts that run; nothing if no coordinator answers.
    ///
    /// # Errors
    ///
    /// The answer cannot be read.
    pub fn live(&self) -> Result<Vec<Live>> {
        let store = self.place.store().display().to_string();
        let status = self.longhaul(["status", "--store", &store, "--format", "json"]).end()?;
        if status.code() != Some(0) {
            return Ok(Vec::new());
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut live = Vec::new();
        for worker in status.json()?["workers"].as_array().into_iter().flatten() {
            for attempt in worker["attempts"].as_array().into_iter().flatten() {
                live.push(Live {
                    attempt: text(&attempt["attempt"]),
                    node: text(&worker["node"]),
                    job: text(&worker["slurm_job"]),
                    phase: text(&attempt["phase"]),
                    steps: attempt["steps"].as_u64().unwrap_or(0),
                });
            }
        }
        Ok(live)
    }

    /// How many attempts a node's worker has, if it is connected.
    ///
    /// # Errors
    ///
    /// The answer cannot be read.
    pub fn connected(&self, node: &str) -> Result<Option<usize>> {
        let store = self.place.store().display().to_string();
        let status = self.longhaul(["status", "--store", &store, "--format", "json"]).json()?;
        let workers = status["workers"].as_array().context("no workers")?;
        let worker = workers.iter().find(|worker| worker["node"] == node && worker["connected"] == true);
        Ok(worker.and_then(|worker| worker["attempts"].as_array()).map(Vec::len))
    }

    /// Waits until so many attempts, none of `but`, act and have so many steps each.
    ///
    /// # Errors
    ///
    /// The run ends before that.
    pub fn all_acting(&self, running: &mut Running, episodes: usize, steps: u64, but: &[Live]) -> Result<Vec<Live>> {
        let mut last = Vec::new();
        let found = wait_for("sandboxes in which something acts", LIMIT, || {
            running.expect_runs()?;
            last = self.live()?;
            last.retain(|it| {
                it.phase == "acting" && it.steps >= steps && but.iter().all(|old| old.attempt != it.attempt)
            });
            Ok((last.len() >= episodes).then(|| last.clone()))
        });
        found.with_context(|| format!("{} of {episodes} acted at last", last.len()))
    }

    /// The attempts of an episode of the latest run.
    ///
    /// # Errors
    ///
    /// It is not there.
    pub fn attempts(&self, episode: usize) -> Result<Vec<Value>> {
        let shown = self.place.show(&format!("latest/{episode}"))?;
        Ok(shown["attempts"].as_array().context("no attempts")?.clone())
    }

    /// The records of the steps of an attempt of the latest run.
    ///
    /// # Errors
    ///
    /// It is not there.
    pub fn steps(&self, episode: usize, attempt: usize) -> Result<Vec<Value>> {
        let store = self.place.store().display().to_string();
        let (what, attempt) = (format!("latest/{episode}"), attempt.to_string());
        let shown = ["show", &what, "--attempt", &attempt, "--steps", "--store", &store, "--format", "json"];
        let steps = self.place.longhaul(shown).json()?;
        Ok(steps.as_array().context("no steps")?.clone())
    }

    /// How many model calls of an attempt of the latest run were told too late to count for its episode.
    ///
    /// # Errors
    ///
    /// It is not there.
    pub fn late_calls(&self, episode: usize, attempt: usize) -> Result<usize> {
        let store = self.place.store().display().to_string();
        let (what, attempt) = (format!("latest/{episode}"), attempt.to_string());
        let shown = ["show", &what, "--attempt", &attempt, "--calls", "--store", &store, "--format", "json"];
        let rows = self.place.longhaul(shown).json()?;
        let rows = rows.as_array().context("no calls")?;
        Ok(rows.iter().filter(|row| row["late"] == true).count())
    }

    /// What the latest run has spent.
    ///
    /// # Errors
    ///
    /// It has no budget.
    pub fn spent(&self) -> Result<Money> {
        let store = self.place.store().display().to_string();
        let shown = self.place.longhaul(["budget", "show", "latest", "--store", &store, "--format", "json"]).json()?;
        let rows = shown["scopes"].as_array().context("no scopes")?;
        let whole = rows.iter().find(|row| row["scope"] == "run").context("no budget of the run")?;
        Ok(whole["spent_dollars"].as_str().with_context(|| format!("{shown:#}"))?.parse()?)
    }

    /// The lines of all allocations' logs that say something.
    ///
    /// # Errors
    ///
    /// They cannot be read.
    pub fn logged(&self, what: &str) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        for entry in std::fs::read_dir(self.place.store().join("logs"))? {
            let text = String::from_utf8_lossy(&std::fs::read(entry?.path())?).into_owned();
            lines.extend(text.lines().filter(|line| line.contains(what)).map(str::to_owned));
        }
        Ok(lines)
    }

    /// The jobs that wait or run.
    ///
    /// # Errors
    ///
    /// The controller does not answer.
    pub fn jobs(&self) -> Result<Vec<String>> {
        let listed = self.cluster.admin(["squeue", "--noheader", "--format=%i %j %T"])?;
        Ok(listed.lines().map(str::to_owned).collect())
    }

    /// Every step that was acknowledged at some time is there, in order and without a gap; every
    /// episode of the latest run is settled once, by a verdict of its last attempt, and its earlier
    /// attempts ended as `classes` say; and the store is sound.
    ///
    /// # Errors
    ///
    /// It is not so.
    pub fn expect_whole(&self, episodes: usize, acknowledged: &[Live], classes: &[&str]) -> Result<()> {
        let shown = self.place.show("latest")?;
        ensure!(shown["run"]["episodes"] == episodes && shown["run"]["passed"] == episodes, "{shown:#}");
        let mut least: BTreeMap<(usize, usize), u64> = BTreeMap::new();
        for live in acknowledged {
            let known = least.entry(live.place()?).or_default();
            *known = live.steps.max(*known);
        }
        for episode in 0..episodes {
            let attempts = self.attempts(episode)?;
            let (last, earlier) = attempts.split_last().context("no attempt")?;
            ensure!(last["finish"]["end"]["verdict"]["passed"] == true && last["finish"]["late"] == false, "{last:#}");
            for attempt in earlier {
                let class = attempt["finish"]["end"]["fault"]["class"].as_str().unwrap_or("?");
                ensure!(classes.contains(&class), "episode {episode}: {attempt:#}");
            }
            for number in 1..=attempts.len() {
                let steps = self.steps(episode, number)?;
                let numbers: Vec<u64> = steps.iter().filter_map(|step| step["number"].as_u64()).collect();
                let known = least.get(&(episode, number)).copied().unwrap_or(0);
                let whole = numbers.iter().copied().eq(0..u64::try_from(numbers.len())?);
                let kept = u64::try_from(numbers.len())?;
                ensure!(whole && kept >= known, "latest/{episode}, attempt {number}: {known} steps became {numbers:?}");
            }
        }
        self.place.expect_sound()
    }

    /// No job waits or runs, and nothing of the test is left on any node: no process, no mount, no
    /// scratch. Where a worker was lost, the disk keeps what it held until the next one starts there.
    ///
    /// # Errors
    ///
    /// Something is left.
    pub fn expect_nothing(&self, lost: &[u32]) -> Result<()> {
        wait_for("the end of all jobs", LIMIT, || Ok(self.jobs()?.is_empty().then_some(())))?;
        let scratch = self.scratch();
        let mut left = Vec::new();
        let gone = wait_for("the end of all sandboxes", Duration::from_secs(60), || {
            left = leftovers::processes_that_name(&scratch)?;
            Ok(left.is_empty().then_some(()))
        });
        gone.with_context(|| format!("processes are left: {left:#?}"))?;
        if !lost.is_empty() {
            self.start_the_next_workers(lost)?;
        }
        for node in 1..=self.nodes {
            let scratch = self.cluster.local_of(node).join("lh");
            if scratch.is_dir() {
                leftovers::expect_nothing(self.place.root(), &scratch)?;
            }
        }
        Ok(())
    }

    /// Starts a worker on each of these nodes, waits until it has cleared away and delivered what the
    /// last one left, and ends it.
    fn start_the_next_workers(&self, nodes: &[u32]) -> Result<()> {
        let serving = self.place.serve(&["--settings", &self.settings])?;
        let (access, scratch) = (self.place.access().display().to_string(), self.scratch().display().to_string());
        for node in nodes {
            let mut start = self.cluster.command(Path::new("srun"));
            start.env("SLURM_CONF", self.cluster.conf()).args(["--job-name=next-worker", "--chdir=/", "--quiet"]);
            start.arg(format!("--nodelist=node{node}")).arg(self.place.node_program());
            start.args(["worker", "--coordinator", &access, "--scratch", &scratch, "--settings", &self.settings]);
            let mut worker = start.stderr(Stdio::null()).spawn()?;
            let own = self.cluster.local_of(*node).join("lh");
            let cleared = wait_for("the next worker to clear away what the last one left", LIMIT, || {
                ensure!(worker.try_wait()?.is_none(), "it ended");
                let runs = self.jobs()?.iter().any(|job| job.ends_with("next-worker RUNNING"));
                Ok((runs && leftovers::attempts_below(&own)?.is_empty()).then_some(()))
            });
            self.cluster.admin(["scancel", "--name=next-worker"])?;
            worker.wait()?;
            cleared?;
        }
        serving.stop()?;
        wait_for("the end of all jobs", LIMIT, || Ok(self.jobs()?.is_empty().then_some(())))
    }
}
