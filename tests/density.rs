//! Many small sandboxes on one node: what they consist of, and what they take of what a node
//! has a limit of.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::command::wait_for;
use crate::place::Place;
use crate::{leftovers, tree};

/// The longest that is waited; only what hangs takes so long.
const LIMIT: Duration = Duration::from_secs(1500);

/// How long one step of the agent waits, in seconds.
const WAIT: u64 = 30;

/// The processes of one program.
#[derive(Clone, Copy, Debug, Default)]
pub struct Share {
    /// How many there are.
    pub processes: usize,
    /// Their memory, each page of it divided among those that share it.
    pub kib: u64,
}

/// What live sandboxes take, all of them together.
#[derive(Clone, Debug, Default)]
pub struct Census {
    /// By the name of the program.
    pub programs: BTreeMap<String, Share>,
    /// Open descriptors.
    pub descriptors: usize,
    /// Those of the worker alone.
    pub of_worker: usize,
    /// Instances of inotify.
    pub inotify: usize,
    /// Keys of the account that the worker runs as, and how many it may have.
    pub keys: (u64, u64),
    /// Segments of shared memory in the machine's own IPC namespace.
    pub segments: usize,
}

/// What came of trying so many.
#[derive(Clone, Debug)]
pub struct Tried {
    /// How many.
    pub sandboxes: usize,
    /// How many acted at one time.
    pub acted: usize,
    /// From the submission until then.
    pub took: Duration,
    /// What they took then.
    pub census: Census,
    /// Why others did not, with how many of each.
    pub faults: BTreeMap<String, usize>,
    /// The states in which the episodes were settled.
    pub states: BTreeMap<String, usize>,
}

/// Starts so many sandboxes in one worker, looks at them when all of them act (or those that came
/// so far, when the others are settled), and lets their episodes go to their ends: `waits` steps of
/// half a minute, which have to be enough for all to start.
///
/// # Errors
///
/// The program fails, or leaves something behind.
pub fn hold(place: &Place, sandboxes: usize, waits: usize) -> Result<Tried> {
    let benchmark = place.path("clocks");
    if !benchmark.is_dir() {
        tree::copy(&tree::repository().join("tests/slurm/benchmark"), &benchmark, place.account())?;
    }
    let script = place.path("holds.jsonl");
    let wait = format!("{{\"action\": \"wait\", \"time\": {WAIT}}}\n");
    std::fs::write(&script, wait.repeat(waits) + "{\"text\": \"done\", \"done\": true}\n")?;
    let room = format!("[worker]\ncpus = {sandboxes}\nmemory = \"{sandboxes}GiB\"\ndisk_floor = \"100MiB\"\n");
    let settings = place.settings(&room)?;
    let serving = place.serve(&["--settings", &settings])?;
    let (access, scratch) = (place.access().display().to_string(), place.scratch().display().to_string());
    let worker = ["worker", "--coordinator", &access, "--scratch", &scratch, "--settings", &settings];
    let mut working = place.longhaul(worker).start()?;
    let (benchmark, samples) = (benchmark.display().to_string(), sandboxes.to_string());
    let agent = format!("--agent=holds=scripted:{}", script.display());
    let run = ["run", &benchmark, "--coordinator", &access, "--detach", "--task", "clock_env/keep_time", &agent];
    let began = Instant::now();
    place.longhaul(run.into_iter().chain(["--samples", &samples, "--max-attempts", "1"])).end()?.expect_code(0)?;

    let store = place.store().display().to_string();
    let acted = wait_for("sandboxes in which something acts", LIMIT, || {
        ensure!(working.runs()?, "the worker ended");
        let status = place.longhaul(["status", "--store", &store, "--format", "json"]).json()?;
        let attempts = status["workers"][0]["attempts"].as_array().cloned().unwrap_or_default();
        let acting = attempts.iter().filter(|attempt| attempt["phase"] == "acting").count();
        let run = &status["runs"][0];
        let settled = ["passed", "failed", "unverified", "faulted"].map(|state| run[state].as_u64().unwrap_or(0));
        Ok((acting + usize::try_from(settled.iter().sum::<u64>())? >= sandboxes).then_some(acting))
    })?;
    let took = began.elapsed();
    let census = Census::take(place, working.pid().as_raw())?;
    place.longhaul(["watch", "latest", "--coordinator", &access]).end()?;
    let (mut faults, mut states) = (BTreeMap::new(), BTreeMap::new());
    let shown = place.show("latest")?;
    for (index, episode) in shown["episodes"].as_array().context("no episodes")?.iter().enumerate() {
        let state = episode["state"].as_str().unwrap_or("?");
        *states.entry(state.to_owned()).or_default() += 1;
        if state != "passed" {
            let shown = place.show(&format!("latest/{index}"))?;
            let fault = &shown["episode"]["settlement"]["faulted"];
            let why = format!("{}: {}", fault["class"].as_str().unwrap_or(state), fault["message"]);
            *faults.entry(why).or_default() += 1;
        }
    }
    working.stop()?;
    serving.stop()?;
    leftovers::expect_nothing(place.root(), &place.scratch())?;
    Ok(Tried { sandboxes, acted, took, census, faults, states })
}

impl Census {
    /// Everything that names the place's folder, as every process of a sandbox does by its mounts.
    fn take(place: &Place, worker: i32) -> Result<Self> {
        let mut census = Self::default();
        for (pid, _) in leftovers::processes_that_name(place.root())? {
            let process = format!("/proc/{pid}");
            // It may have ended meanwhile.
            let Ok(name) = std::fs::read_to_string(format!("{process}/comm")) else { continue };
            let memory = std::fs::read_to_string(format!("{process}/smaps_rollup")).unwrap_or_default();
            let share = census.programs.entry(name.trim().to_owned()).or_default();
            share.processes += 1;
            share.kib += memory.lines().find_map(|line| number_after(line, "Pss:")).unwrap_or(0);
            for descriptor in std::fs::read_dir(format!("{process}/fd")).into_iter().flatten().flatten() {
                census.descriptors += 1;
                census.of_worker += usize::from(pid == worker);
                let target = std::fs::read_link(descriptor.path()).unwrap_or_default();
                census.inotify += usize::from(target.as_os_str() == "anon_inode:inotify");
            }
        }
        let users = std::fs::read_to_string("/proc/key-users").unwrap_or_default();
        let own = format!("{}:", place.account().uid());
        // `uid: usage keys/instantiated counted/most bytes/most`
        let counted = users.lines().find_map(|line| line.trim().strip_prefix(&own)?.split_whitespace().nth(2));
        let (keys, most) = counted.and_then(|text| text.split_once('/')).unwrap_or(("0", "0"));
        census.keys = (keys.parse()?, most.parse()?);
        let segments = std::fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
        census.segments = segments.lines().count().saturating_sub(1);
        Ok(census)
    }

    /// The processes of all programs together.
    #[must_use]
    pub fn total(&self) -> Share {
        let sum = |of: fn(&Share) -> u64| self.programs.values().map(of).sum();
        Share { processes: self.programs.values().map(|share| share.processes).sum(), kib: sum(|share| share.kib) }
    }
}

fn number_after(line: &str, name: &str) -> Option<u64> {
    line.strip_prefix(name)?.split_whitespace().next()?.parse().ok()
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Census { programs, descriptors, of_worker, inotify, keys, segments } = &self.census;
        let total = self.census.total();
        write!(
            f,
            "{} of {} sandboxes acted at one time, {} s after the submission: {} processes, {} MiB, {descriptors} \
             descriptors ({of_worker} of the worker), {inotify} inotify instances, {} of {} keys, {segments} segments \
             of shared memory;",
            self.acted,
            self.sandboxes,
            self.took.as_secs(),
            total.processes,
            total.kib / 1024,
            keys.0,
            keys.1,
        )?;
        for (name, share) in programs {
            write!(f, " {name} {} ({} MiB),", share.processes, share.kib / 1024)?;
        }
        write!(f, " settled as {:?}", self.states)?;
        if !self.faults.is_empty() {
            write!(f, "; faults: {:?}", self.faults)?;
        }
        Ok(())
    }
}
