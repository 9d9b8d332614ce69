//! What everybody is told: where things are, what was done and seen, and what went wrong.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use longhaul_core::ids::RunId;
use longhaul_store::{Reader, RunRecord};
use longhaul_tests::command::Longhaul;
use longhaul_tests::place::Place;

use crate::disks::Disk;
use crate::link::Link;
use crate::provider::{KEY, KEY_NAME, PRICES, Provider};
use crate::schedule::{Lane, WORKERS};

/// Leases that run out soon, and tries that follow soon.
const SETTINGS: &str = "\
[coordinator]
lease_ttl = \"6s\"
lease_skew = \"1s\"
heartbeat = \"500ms\"

[worker]
disk_floor = \"100MiB\"
grace = \"10s\"

[run]
backoff = \"200ms\"
max_attempts = 8
";

/// How long after a disk was filled its process may still end for it.
const AFTERWARDS: Duration = Duration::from_secs(20);

/// The program of workers without sandboxes.
const PLAIN_WORKER: &str = "longhaul-noop-worker";

/// How many episodes such a worker, and one with real containers, has at one time.
const PLAIN_SLOTS: u32 = 8;
const CONTAINED_SLOTS: u32 = 2;

/// All of it.
pub(crate) struct Stage {
    /// Where it all is.
    pub(crate) place: Place,
    /// Its provider of models.
    pub(crate) provider: Provider,
    /// The networks of workers, once there is a coordinator to connect to.
    links: OnceLock<Vec<Link>>,
    /// The disks of workers; none where there may be none.
    pub(crate) disks: Vec<Disk>,
    /// The store's.
    pub(crate) store_disk: Option<Disk>,
    settings: String,
    began: Instant,
    told: Mutex<File>,
    wrong: Mutex<Vec<String>>,
    filled: Mutex<BTreeMap<Lane, Instant>>,
    over: AtomicBool,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stage {
    /// Sets everything up, and starts nothing but the provider.
    pub(crate) async fn new(seed: u64, has_disks: bool) -> Result<Self> {
        let place = Place::new("chaos")?;
        let provider = Provider::start(seed).await?;
        let prices = place.path("prices.toml");
        std::fs::write(&prices, PRICES)?;
        let endpoint = format!(
            "[endpoint.standin]\nprotocol = \"openai\"\nurls = [\"{}\"]\nkey_env = \"{KEY_NAME}\"\nharness = \"tools\"\n\
             call_limit = \"3s\"\nretries = 3\n",
            provider.url
        );
        let settings =
            place.settings(&format!("{SETTINGS}\n[prices]\nfile = \"{}\"\n\n{endpoint}", prices.display()))?;
        for folder in ["logs", "nodes"] {
            place.account().make_dir(&place.path(folder))?;
        }
        let (mut disks, mut store_disk) = (Vec::new(), None);
        if has_disks {
            for worker in 0..WORKERS {
                disks.push(Disk::mount(&node(&place, worker), 512, place.account())?);
            }
            // The store wants a gibibyte free, and takes nothing but what is needed in half of one.
            store_disk = Some(Disk::mount(&place.store(), 4096, place.account())?);
        }
        let told = Mutex::new(File::create(place.path("logs/told.txt"))?);
        Ok(Self {
            place,
            provider,
            links: OnceLock::new(),
            disks,
            store_disk,
            settings,
            began: Instant::now(),
            told,
            wrong: Mutex::default(),
            filled: Mutex::default(),
            over: AtomicBool::new(false),
        })
    }

    /// The access file that the coordinator writes for other machines.
    pub(crate) fn access(&self) -> PathBuf {
        self.place.store().join("access/access.json")
    }

    /// Makes a network for each worker, once there is something to connect to.
    pub(crate) async fn connect(&self) -> Result<()> {
        let mut links = Vec::new();
        for worker in 0..WORKERS {
            let link = Link::start(self.access()).await?;
            let file = self.worker_access(worker);
            link.write_access(&self.access(), &file)?;
            self.place.account().give(&file)?;
            links.push(link);
        }
        ensure!(self.links.set(links).is_ok(), "they are connected");
        Ok(())
    }

    /// The network of a worker.
    pub(crate) fn link(&self, worker: usize) -> Result<&Link> {
        self.links.get().and_then(|links| links.get(worker)).context("no such network")
    }

    fn worker_access(&self, worker: usize) -> PathBuf {
        self.place.path(&format!("access-{worker}.json"))
    }

    /// The disk of a worker's node.
    pub(crate) fn node(&self, worker: usize) -> PathBuf {
        node(&self.place, worker)
    }

    /// How the coordinator is started.
    pub(crate) fn coordinator(&self) -> Result<Longhaul> {
        let store = self.place.store().display().to_string();
        let listen = ["--listen", "127.0.0.1:0", "--host", "127.0.0.1"];
        let serve = ["serve", "--store", &store, "--settings", &self.settings, "-v"];
        let serve = self.place.longhaul(serve.into_iter().chain(listen)).env(KEY_NAME, KEY);
        serve.log_to(&self.place.path("logs/coordinator.txt"))
    }

    /// How a worker is started whose sandboxes do nothing, or one with real ones.
    pub(crate) fn worker(&self, worker: usize, contained: bool) -> Result<Longhaul> {
        let access = self.worker_access(worker).display().to_string();
        let scratch = self.scratch(worker, contained).display().to_string();
        let slots = if contained { CONTAINED_SLOTS } else { PLAIN_SLOTS }.to_string();
        let common = ["worker", "--coordinator", &access, "--scratch", &scratch, "--slots", &slots];
        let (name, command) = if contained {
            let command = self.place.longhaul(common.into_iter().chain(["--settings", &self.settings]));
            ("contained".to_owned(), command)
        } else {
            let name = format!("node{worker}");
            let more = ["--bodies", "--name", &name];
            let command = self.place.longhaul_at(&self.plain_program(), common.into_iter().chain(more));
            (format!("worker-{worker}"), command)
        };
        let filter = "warn,longhaul_worker::session=debug";
        command.env("RUST_LOG", filter).log_to(&self.place.path(&format!("logs/{name}.txt")))
    }

    /// The folder that a worker works in.
    pub(crate) fn scratch(&self, worker: usize, contained: bool) -> PathBuf {
        if contained { self.place.scratch() } else { self.node(worker).join("scratch") }
    }

    fn plain_program(&self) -> PathBuf {
        self.place.path(PLAIN_WORKER)
    }

    /// Copies the program of workers to where the account can run it.
    pub(crate) fn install(&self) -> Result<()> {
        let program = std::env::current_exe()?.with_file_name(PLAIN_WORKER);
        std::fs::copy(&program, self.plain_program()).with_context(|| format!("no {}", program.display()))?;
        self.place.account().give(&self.plain_program())
    }

    /// Whether a process belongs to a worker itself, and to none of its sandboxes.
    pub(crate) fn is_worker(&self, command: &str) -> bool {
        let programs = [self.plain_program(), self.place.its_program().to_owned()];
        programs.iter().any(|program| command.starts_with(&format!("{} worker", program.display())))
    }

    /// Whether the coordinator answers.
    pub(crate) fn answers(&self) -> Result<bool> {
        let access = self.place.access().display().to_string();
        Ok(self.place.longhaul(["status", "--coordinator", &access]).end()?.code() == Some(0))
    }

    /// Submits a run, and leaves it alone.
    pub(crate) fn submit(&self, benchmark: &std::path::Path, arguments: &[String]) -> Result<()> {
        let (benchmark, access) = (benchmark.display().to_string(), self.place.access().display().to_string());
        let usual = ["run", &benchmark, "--coordinator", &access, "--detach", "--settings", &self.settings];
        let usual = usual.into_iter().map(str::to_owned);
        let submit = self.place.longhaul(usual.chain(arguments.iter().cloned())).env(KEY_NAME, KEY);
        submit.end()?.expect_code(0).map(drop)
    }

    /// The runs, as they stand in the store, whoever is alive.
    pub(crate) fn runs(&self) -> Result<Vec<RunRecord>> {
        Ok(Reader::open(&self.place.store())?.runs()?)
    }

    /// Whether the latest run is settled.
    pub(crate) fn is_settled(&self) -> bool {
        // While a coordinator starts there may be nothing to be read.
        let runs = self.runs().unwrap_or_default();
        runs.iter().max_by_key(|run| (run.submitted_at, run.id)).is_some_and(|run| run.settled_at.is_some())
    }

    /// Money of runs that is neither spent nor given back.
    pub(crate) fn escrow(&self) -> Result<BTreeMap<RunId, u64>> {
        let of = |run: RunRecord| (run.id, run.scopes.iter().map(|scope| scope.escrow.nanos()).sum());
        Ok(self.runs()?.into_iter().map(of).collect())
    }

    /// Takes the disks away, so that nothing is left of them.
    pub(crate) fn unmount(&self) -> Result<()> {
        self.disks.iter().chain(&self.store_disk).try_for_each(Disk::unmount)
    }

    /// Writes down what was done or seen.
    pub(crate) fn tell(&self, what: &str) {
        let line = format!("{:8.3} s  {what}\n", self.began.elapsed().as_secs_f64());
        // Told for whoever looks into it: it decides nothing.
        let _ = held(&self.told).write_all(line.as_bytes());
    }

    /// Notes something that must not be.
    pub(crate) fn wrong(&self, what: String) {
        self.tell(&format!("WRONG: {what}"));
        held(&self.wrong).push(what);
    }

    /// What must not be, so far.
    pub(crate) fn all_wrong(&self) -> Vec<String> {
        held(&self.wrong).clone()
    }

    /// Somebody's disk is being filled.
    pub(crate) fn filled(&self, whose: Lane) {
        held(&self.filled).insert(whose, Instant::now());
    }

    /// Whether somebody's disk was full not long ago.
    pub(crate) fn was_full(&self, whose: Lane) -> bool {
        held(&self.filled).get(&whose).is_some_and(|at| at.elapsed() < AFTERWARDS)
    }

    /// From now on nothing more is done to anybody, or again something is.
    pub(crate) fn set_over(&self, over: bool) {
        self.over.store(over, Ordering::SeqCst);
    }

    /// Whether nothing more is done to anybody.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }
}

fn node(place: &Place, worker: usize) -> PathBuf {
    place.path(&format!("nodes/{worker}"))
}
