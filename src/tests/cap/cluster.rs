//! The processes: a coordinator, which is the real program, and workers, which are this test's
//! own program in another role, with sandboxes that are empty.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use longhaul::client::{Client, Source, local_access};
use longhaul_core::call::CallRecord;
use longhaul_core::ids::{RunId, WorkerId};
use longhaul_core::money::Money;
use longhaul_core::time::Timestamp;
use longhaul_proto::v1;
use longhaul_store::Reader;
use longhaul_worker::{Endpoint, NodeLimits, Shutdown, WorkerConfig};
use tokio::process::{Child, Command};

use crate::provider::KEY;
use crate::sandbox::EmptyDriver;

/// The variable with the provider's key, in the coordinator's environment alone.
pub(crate) const KEY_VARIABLE: &str = "LONGHAUL_CAP_KEY";

/// Tells this program that it is a worker, and where its coordinator listens.
const ROLE: &str = "LONGHAUL_CAP_SOCKET";
const SCRATCH: &str = "LONGHAUL_CAP_SCRATCH";
const SLOTS: &str = "LONGHAUL_CAP_SLOTS";

const SETTINGS: &str = "\
[coordinator]
lease_ttl = \"6s\"
lease_skew = \"1s\"
heartbeat = \"500ms\"

[endpoint.stand-in]
protocol = \"openai\"
urls = [\"http://127.0.0.1:9\"]
key_env = \"LONGHAUL_CAP_KEY\"
";

/// The budget of the run, when all is over.
#[derive(Clone, Debug, Default)]
pub(crate) struct Budget {
    pub(crate) settled: Money,
    pub(crate) unconfirmed: Money,
    pub(crate) largest_exposure: Money,
    pub(crate) overshoot: Money,
    pub(crate) stopped: String,
}

pub(crate) struct Cluster {
    folder: tempfile::TempDir,
    coordinator: Child,
    workers: Vec<Child>,
    slots: u32,
}

/// Runs a worker for as long as it lives, if this process is one.
pub(crate) fn worker_role() {
    let Some(socket) = std::env::var_os(ROLE) else { return };
    let variable = |name: &str| std::env::var(name).unwrap();
    let scratch = PathBuf::from(variable(SCRATCH));
    let config = WorkerConfig {
        id: WorkerId::new(now(), std::process::id()),
        hostname: "node".to_owned(),
        layers: scratch.join("layers"),
        carry_layers: false,
        image: scratch.join("base.sif"),
        bases: BTreeMap::new(),
        helper_program: scratch.join("helper"),
        limits: NodeLimits {
            cpu_millis: Some(64_000),
            memory_mib: Some(64_000),
            max_slots: variable(SLOTS).parse().unwrap(),
            disk_floor_mib: 0,
            ..NodeLimits::default()
        },
        gpus: None,
        scratch,
        certificates: Vec::new(),
        hook_env: BTreeMap::new(),
        slurm_job_id: None,
        allocation: None,
        grace: Duration::from_secs(10),
        verify_limit: Duration::from_secs(10),
        park_limit: Duration::from_secs(60),
        replay_patience: Duration::from_secs(15),
    };
    let endpoint = Endpoint::Unix { path: socket.into(), token: None };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async move {
        let shutdown = Shutdown::on_signals().unwrap();
        longhaul_worker::run_with(config, endpoint, shutdown, Arc::new(EmptyDriver)).await.unwrap();
    });
}

fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Timestamp(u64::try_from(since.as_millis()).unwrap())
}

fn log(folder: &Path, name: &str) -> Stdio {
    let file = std::fs::OpenOptions::new().create(true).append(true).open(folder.join(name)).unwrap();
    file.into()
}

impl Cluster {
    pub(crate) async fn start(slots: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("settings.toml"), SETTINGS).unwrap();
        let coordinator = serve(folder.path());
        let cluster = Self { folder, coordinator, workers: Vec::new(), slots };
        cluster.client().await;
        cluster
    }

    fn store(&self) -> PathBuf {
        self.folder.path().join("store")
    }

    /// A connection to the coordinator, once it answers.
    pub(crate) async fn client(&self) -> Client {
        let access = local_access(&self.store());
        for _ in 0..600 {
            if let Ok(client) = Client::open(&access).await
                && client.control.clone().list_runs(v1::ListRunsRequest {}).await.is_ok()
            {
                return client;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the coordinator does not answer: {}", self.logs());
    }

    /// The coordinator as commands read it.
    async fn source(&self) -> Source {
        Source::Live(Box::new(self.client().await))
    }

    fn logs(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("coordinator.log")).unwrap_or_default()
    }

    fn socket(&self) -> PathBuf {
        let access = std::fs::read_to_string(local_access(&self.store())).unwrap();
        let access: serde_json::Value = serde_json::from_str(&access).unwrap();
        access["address"]["path"].as_str().unwrap().into()
    }

    pub(crate) fn start_worker(&mut self) {
        let worker = self.worker();
        self.workers.push(worker);
    }

    fn worker(&self) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["worker_role", "--exact", "--nocapture"])
            .env(ROLE, self.socket())
            .env(SCRATCH, self.folder.path().join("scratch"))
            .env(SLOTS, self.slots.to_string())
            .stdout(log(self.folder.path(), "workers.log"))
            .stderr(log(self.folder.path(), "workers.log"))
            .kill_on_drop(true)
            .spawn()
            .unwrap()
    }

    /// Kills a worker where it is, and starts another one on the same node.
    pub(crate) fn kill_worker(&mut self, index: usize) {
        self.workers[index].start_kill().unwrap();
        let next = self.worker();
        let before = std::mem::replace(&mut self.workers[index], next);
        drop(before);
    }

    /// Kills the coordinator where it is, and starts it again.
    pub(crate) async fn kill_coordinator(&mut self) {
        self.coordinator.kill().await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        self.coordinator = serve(self.folder.path());
        self.client().await;
    }

    pub(crate) async fn is_settled(&self, run: &str) -> bool {
        let runs = self.source().await.runs().await.unwrap();
        runs.iter().any(|known| known.run_id == run && known.settled_at_millis > 0)
    }

    /// The run's budget, once every attempt has said what became of its money.
    pub(crate) async fn until_nothing_is_in_flight(&self, run: &str) -> Budget {
        let mut last = None;
        for _ in 0..120 {
            let budget = self.source().await.budget(run).await.unwrap();
            let whole = budget.scopes.into_iter().find(|row| row.scope == "run").unwrap();
            // Late spools may lower it yet: it has to stand still.
            let spools = self.spools();
            if whole.escrow_nanos == 0 && spools == 0 && last.as_ref() == Some(&whole) {
                return Budget {
                    settled: Money::from_nanos(whole.settled_nanos),
                    unconfirmed: Money::from_nanos(whole.unconfirmed_nanos),
                    largest_exposure: Money::from_nanos(whole.largest_exposure_nanos),
                    overshoot: Money::from_nanos(whole.overshoot_nanos),
                    stopped: whole.stopped,
                };
            }
            last = Some(whole);
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        panic!("money stays in flight: {last:?}, {} spools", self.spools());
    }

    /// The last line of what the command says of the run's budget.
    pub(crate) async fn shown_budget(&self, run: &str) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
        command.args(["budget", "show", run, "--store"]).arg(self.store());
        let output = command.output().await.unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().last().unwrap_or_default().to_owned()
    }

    /// How many spools wait to be delivered.
    fn spools(&self) -> usize {
        let workers = std::fs::read_dir(self.folder.path().join("scratch").join("workers"));
        let spools =
            workers.into_iter().flatten().flatten().map(|worker| {
                std::fs::read_dir(worker.path().join("spool")).map_or(0, |spools| spools.flatten().count())
            });
        spools.sum()
    }

    /// What the calls of all attempts in the store come to.
    pub(crate) async fn stored_calls(&self, run: &str, episodes: u32) -> Money {
        let source = self.source().await;
        let mut sum = Money::ZERO;
        for index in 0..episodes {
            let episode = source.episode(format!("{run}/{index}").parse().unwrap()).await.unwrap();
            for number in 1..=episode.row.unwrap().attempts {
                let attempt = format!("{run}/{index}/{number}").parse().unwrap();
                for call in source.calls(attempt).await.unwrap() {
                    let call: CallRecord = serde_json::from_slice(&call.record_json).unwrap();
                    sum = sum.checked_add(call.settled).unwrap();
                }
            }
        }
        sum
    }

    /// Ends everything in order, and looks whether the store is sound; how many answers about money
    /// its journal still has.
    pub(crate) async fn stop(mut self) -> u64 {
        for worker in &mut self.workers {
            terminate(worker);
        }
        for worker in &mut self.workers {
            let status = worker.wait().await.unwrap();
            assert!(status.success(), "a worker ended with {status}");
        }
        terminate(&self.coordinator);
        let ended = tokio::time::timeout(Duration::from_secs(30), self.coordinator.wait()).await;
        let status = ended.expect("the coordinator ends when it is told to").unwrap();
        assert!(status.success(), "the coordinator ended with {status}: {}", self.logs());
        let reader = Reader::open(&self.store()).unwrap();
        let found = reader.verify();
        assert!(found.is_sound(), "{:?}", found.findings);
        let run: RunId = reader.runs().unwrap()[0].id;
        assert!(reader.run(run).unwrap().unwrap().scopes.iter().any(|scope| scope.name == "run"));
        let saved = reader.snapshot().unwrap().map_or(0, |saved| saved.through);
        let is_answer = |event: &[u8]| {
            let event = String::from_utf8_lossy(event);
            event.contains("\"escrow_granted\"") || event.contains("\"escrow_refused\"")
        };
        reader.journal(saved).unwrap().iter().filter(|entry| is_answer(&entry.event)).count() as u64
    }
}

fn terminate(child: &Child) {
    if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
        // It may have ended meanwhile.
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM);
    }
}

fn serve(folder: &Path) -> Child {
    Command::new(env!("CARGO_BIN_EXE_longhaul"))
        .args(["serve", "--store"])
        .arg(folder.join("store"))
        .arg("--settings")
        .arg(folder.join("settings.toml"))
        .env(KEY_VARIABLE, KEY)
        .stdout(log(folder, "coordinator.log"))
        .stderr(log(folder, "coordinator.log"))
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}
