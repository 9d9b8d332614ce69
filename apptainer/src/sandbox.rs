//! A sandbox: one container, from its start to the last of its files.

mod end;
pub mod snapshot;
mod start;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longhaul_core::helper::{
    CONTROL_SOCKET, CommandSpec, DisplayState, HELPER_PROTOCOL, HelperAnswer, HelperRequest, ProcessInfo,
};
use nix::sys::signal::Signal;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::process::ChildStdin;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::client::{Client, ClientError, through};
use crate::command::{BindPlan, PlanError};
use crate::gpus::{self, Gpus};
use crate::identity::{self, ProcessIdentity};
use crate::network::{NetworkError, WayOut};
use crate::program::{Apptainer, last_lines};
use crate::scratch::{Scratch, ScratchError};

pub(crate) use self::end::{end_marked, end_session};
pub use self::end::{signal_tree, survivors};

/// What the helper may take for an answer, beyond what was asked for takes by itself.
const ANSWER_TIME: Duration = Duration::from_secs(60);

/// What the helper may take to bring the display up: three programs, each with a limit of its own.
const DISPLAY_TIME: Duration = Duration::from_secs(180);

/// What the helper may take to start a service.
const UNIT_TIME: Duration = Duration::from_secs(100);

/// How long a sandbox may take to end by itself once it was told to.
const END_TIME: Duration = Duration::from_secs(10);

/// What TERM is given before KILL.
const TERM_GRACE: Duration = Duration::from_secs(2);

/// Whether a sandbox has a way out to the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// Loopback only.
    #[default]
    None,
    /// What the node reaches, without the node's own loopback.
    Open,
}

/// A file or folder of the host that is seen inside.
pub type Bind = BindPlan;

/// What a sandbox is made of.
#[derive(Clone, Debug, Default)]
pub struct SandboxSpec {
    /// Its name, unique among the sandboxes of one scratch root: letters, digits, `-`, `_`.
    pub id: String,
    /// The base image.
    pub image: PathBuf,
    /// Read-only layers over it, the lowest first.
    pub layers: Vec<PathBuf>,
    /// The folder on node-local disk that its own folder is made in.
    pub scratch: PathBuf,
    /// What is seen inside beside that.
    pub binds: Vec<Bind>,
    /// Its network.
    pub network: Network,
    /// The graphics processors that are its own, if it has any.
    pub gpus: Option<Gpus>,
    /// The static program that is the helper.
    pub helper_program: PathBuf,
    /// Variables of the helper's: proxy settings reach hooks through it.
    pub env: BTreeMap<String, String>,
}

/// Why a sandbox did not do what was asked of it.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// Its name cannot be one of a folder.
    #[error("`{0}` cannot name a sandbox: letters, digits, `-` and `_` are expected")]
    Name(String),
    /// It cannot be described to Apptainer.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Its folder cannot be used.
    #[error(transparent)]
    Scratch(#[from] ScratchError),
    /// Apptainer could not be started.
    #[error("{program} could not be started")]
    Spawn {
        /// The program.
        program: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The container ended before its helper answered.
    #[error("the container ended before it was up ({how}): {log}")]
    EndedEarly {
        /// How it ended.
        how: String,
        /// The end of Apptainer's log; hostile until escaped.
        log: String,
    },
    /// The helper did not answer in time.
    #[error("the container was not up within {} s: {log}", limit.as_secs())]
    StartTimeout {
        /// How long it may take.
        limit: Duration,
        /// The end of Apptainer's log; hostile until escaped.
        log: String,
    },
    /// There is no way out to the network.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// Its programs could not be told which graphics processors are theirs.
    #[error("graphics processors could not be given to the sandbox (exit code {code}): {output}")]
    Gpus {
        /// How the script ended that tells them.
        code: i32,
        /// What it said; hostile until escaped.
        output: String,
    },
    /// The helper is of another build.
    #[error("the helper speaks protocol {theirs}, this program {HELPER_PROTOCOL}: they are not of one build")]
    OtherBuild {
        /// Its protocol.
        theirs: u32,
    },
    /// The helper did not do it.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The helper did not say whether it did it.
    #[error("the sandbox did not answer within {} s when it was to {what}", limit.as_secs())]
    Silent {
        /// What it was to do.
        what: &'static str,
        /// How long it may take.
        limit: Duration,
    },
    /// Starting it failed in this program.
    #[error("the start of the sandbox broke off")]
    BrokeOff,
    /// Processes of the sandbox outlived it.
    #[error("processes of the sandbox could not be ended: {0:?}")]
    LeftOver(Vec<i32>),
}

/// How a command inside ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandResult {
    /// Its exit code, or 128 and the signal's number.
    pub code: i32,
    /// Whether its time limit ended it.
    pub timed_out: bool,
    /// The end of what it wrote, unless that went to a file; hostile until escaped.
    pub output: String,
    /// Whether some of the output was cut off.
    pub truncated: bool,
}

/// How a sandbox ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxEnd {
    /// The exit status of the container, in words.
    pub how: String,
}

/// A running sandbox.
///
/// It ends with [`Sandbox::stop`]. Dropped without that, its processes end by themselves
/// (their lifeline breaks), and its folder is left to the [`crate::janitor`].
#[derive(Debug)]
pub struct Sandbox {
    apptainer: Apptainer,
    image: PathBuf,
    scratch: Scratch,
    /// The sockets' folder, held open to reach them by a short path.
    sockets: File,
    identity: ProcessIdentity,
    ended: watch::Receiver<Option<SandboxEnd>>,
    way_out: Option<WayOut>,
    lifeline: ChildStdin,
    gpus: Option<Gpus>,
}

impl Sandbox {
    /// Starts a sandbox and returns when its helper answers. One that nobody waits for any more is
    /// stopped when it is up.
    ///
    /// # Errors
    ///
    /// It cannot be started, or is not up in time.
    pub async fn start(apptainer: &Apptainer, spec: SandboxSpec) -> Result<Self, SandboxError> {
        let apptainer = apptainer.clone();
        let (hand, started) = oneshot::channel();
        // A task of its own: a start that is broken off in the middle leaves something.
        tokio::spawn(async move {
            let started = start::begin(&apptainer, spec).await;
            if let Err(Ok(unwanted)) = hand.send(started)
                && let Err(error) = unwanted.stop().await
            {
                tracing::warn!(%error, "a sandbox that nobody waited for was not cleared away");
            }
        });
        started.await.map_err(|_| SandboxError::BrokeOff)?
    }

    /// Waits for the helper, opens the way out, and gives it what is its own of the node.
    async fn come_up(&mut self, network: Network) -> Result<(), SandboxError> {
        let limit = self.apptainer.limits().start;
        let deadline = Instant::now() + limit;
        let socket = through(&self.sockets, CONTROL_SOCKET);
        let mut client = loop {
            if let Ok(client) = Client::connect(&socket).await {
                break client;
            }
            if self.ended.borrow().is_some() {
                return Err(ended_early(self.ended.clone(), &self.scratch.log()).await);
            }
            if Instant::now() >= deadline {
                let log = std::fs::read(self.scratch.log()).unwrap_or_default();
                return Err(SandboxError::StartTimeout { limit, log: last_lines(&log, 8) });
            }
            sleep(Duration::from_millis(5)).await;
        };
        let hello = timeout(ANSWER_TIME, client.ask(&HelperRequest::Hello)).await;
        match hello.map_err(|_| SandboxError::Silent { what: "say hello", limit: ANSWER_TIME })?? {
            HelperAnswer::Ready { protocol: HELPER_PROTOCOL } => {}
            HelperAnswer::Ready { protocol } => return Err(SandboxError::OtherBuild { theirs: protocol }),
            other => return Err(unexpected(&other)),
        }
        if network == Network::Open {
            let pid = identity::first_of_namespace(&identity::tree(self.identity.pid))
                .ok_or_else(|| NetworkError::NotReady("the container's first process was not found".to_owned()))?;
            let way_out = WayOut::open(pid, self.scratch.mark(), &self.scratch.path().join("slirp.log")).await?;
            self.way_out = Some(way_out);
        }
        self.equip().await
    }

    /// Says to the accounts that there are now which graphics processors are theirs, if any are.
    pub(crate) async fn equip(&self) -> Result<(), SandboxError> {
        match &self.gpus {
            Some(gpus) => gpus::equip(self, gpus).await,
            None => Ok(()),
        }
    }

    async fn client(&self) -> Result<Client, SandboxError> {
        Ok(Client::connect(&through(&self.sockets, CONTROL_SOCKET)).await?)
    }

    async fn ask(&self, request: HelperRequest) -> Result<HelperAnswer, SandboxError> {
        let asking = async { Ok(self.client().await?.ask(&request).await?) };
        match patience(&request) {
            (what, Some(limit)) => timeout(limit, asking).await.unwrap_or(Err(SandboxError::Silent { what, limit })),
            (_, None) => asking.await,
        }
    }

    async fn order(&self, request: HelperRequest) -> Result<(), SandboxError> {
        match self.ask(request).await? {
            HelperAnswer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Runs a command to its end. Dropping the future ends the command.
    pub async fn run(&self, spec: CommandSpec) -> Result<CommandResult, SandboxError> {
        match self.ask(HelperRequest::Run(spec)).await? {
            HelperAnswer::Exited { code, timed_out, output, truncated } => {
                Ok(CommandResult { code, timed_out, output, truncated })
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Starts the display, and returns when a client can connect.
    pub async fn start_display(&self, width: u16, height: u16) -> Result<(), SandboxError> {
        self.order(HelperRequest::StartDisplay { width, height }).await
    }

    /// How the display is.
    pub async fn display(&self) -> Result<DisplayState, SandboxError> {
        match self.ask(HelperRequest::Display).await? {
            HelperAnswer::Display(state) => Ok(state),
            other => Err(unexpected(&other)),
        }
    }

    /// The display's socket out here. The path may be too long to connect to directly:
    /// open its folder and go through `/proc/self/fd` ([`through`]).
    #[must_use]
    pub fn x_socket(&self) -> PathBuf {
        self.scratch.x_sockets().join("X1")
    }

    /// Copies a file out. Returns its size.
    pub async fn read_file(&self, path: &str, sink: &mut (impl AsyncWrite + Unpin)) -> Result<u64, SandboxError> {
        let request = HelperRequest::ReadFile { path: path.to_owned(), end: None };
        Ok(self.client().await?.fetch(&request, sink).await?)
    }

    /// Copies no more than so many bytes of a file's end out. Returns how many.
    pub async fn read_end(
        &self,
        path: &str,
        most: u64,
        sink: &mut (impl AsyncWrite + Unpin),
    ) -> Result<u64, SandboxError> {
        let request = HelperRequest::ReadFile { path: path.to_owned(), end: Some(most) };
        Ok(self.client().await?.fetch(&request, sink).await?)
    }

    /// Copies a file in, as root, with mode 0644.
    pub async fn write_file(&self, path: &str, source: &mut (impl AsyncRead + Unpin)) -> Result<(), SandboxError> {
        match self.client().await?.put(&HelperRequest::WriteFile { path: path.to_owned() }, source).await? {
            HelperAnswer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Copies a file or folder out as a tar stream. Returns the stream's size.
    pub async fn read_tree(&self, path: &str, sink: &mut (impl AsyncWrite + Unpin)) -> Result<u64, SandboxError> {
        Ok(self.client().await?.fetch(&HelperRequest::ReadTree { path: path.to_owned() }, sink).await?)
    }

    /// What runs inside, the helper and its display aside.
    pub async fn processes(&self) -> Result<Vec<ProcessInfo>, SandboxError> {
        match self.ask(HelperRequest::Processes).await? {
            HelperAnswer::Processes { processes } => Ok(processes),
            other => Err(unexpected(&other)),
        }
    }

    /// The units that were started or enabled inside, in order.
    pub async fn units(&self) -> Result<Vec<String>, SandboxError> {
        match self.ask(HelperRequest::Units).await? {
            HelperAnswer::Units { units } => Ok(units),
            other => Err(unexpected(&other)),
        }
    }

    /// Starts units, in order, as a boot would.
    pub async fn start_units(&self, units: Vec<String>) -> Result<(), SandboxError> {
        if units.is_empty() {
            return Ok(());
        }
        self.order(HelperRequest::StartUnits { units }).await
    }

    /// Ends everything inside but the helper: TERM, `grace`, KILL.
    pub async fn kill_all(&self, grace: Duration) -> Result<(), SandboxError> {
        let grace_millis = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.order(HelperRequest::KillAll { grace_millis }).await
    }

    /// Resolves when the sandbox has ended, by whatever cause. Holds nothing of it.
    pub fn exited(&self) -> impl Future<Output = SandboxEnd> + Send + use<> {
        let mut ended = self.ended.clone();
        async move { wait_for_end(&mut ended).await }
    }

    /// The proportional memory of all its processes, in MiB.
    #[must_use]
    pub fn memory(&self) -> u64 {
        let mut pids = identity::tree(self.identity.pid);
        pids.extend(self.way_out.as_ref().and_then(WayOut::pid));
        identity::memory_mib(&pids)
    }

    /// What all its processes carry that began outside: see [`survivors`].
    #[must_use]
    pub fn mark(&self) -> &str {
        self.scratch.mark()
    }

    /// The process that it was started as.
    #[must_use]
    pub const fn identity(&self) -> &ProcessIdentity {
        &self.identity
    }

    /// The folder that holds what was written inside.
    #[must_use]
    pub fn upper(&self) -> PathBuf {
        self.scratch.top().join("upper")
    }

    /// Its own folder out here.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.scratch.path()
    }

    /// Ends it and removes what it wrote.
    pub async fn stop(self) -> Result<(), SandboxError> {
        let image = self.image.clone();
        let apptainer = self.apptainer.clone();
        let scratch = self.end().await?;
        Ok(scratch.remove(&apptainer, Some(&image)).await?)
    }

    /// Ends it and keeps its folder, for what it wrote to be packed.
    pub(crate) async fn end(mut self) -> Result<Scratch, SandboxError> {
        // Its helper ends everything inside in order; what is broken is ended below.
        let asked = timeout(END_TIME, self.order(HelperRequest::Shutdown)).await;
        drop(self.lifeline);
        let patience = if matches!(asked, Ok(Ok(()))) { END_TIME } else { TERM_GRACE };
        if timeout(patience, wait_for_end(&mut self.ended)).await.is_err() {
            signal_tree(&self.identity, Signal::SIGTERM);
            if timeout(TERM_GRACE, wait_for_end(&mut self.ended)).await.is_err() {
                signal_tree(&self.identity, Signal::SIGKILL);
                let _ = timeout(END_TIME, wait_for_end(&mut self.ended)).await;
            }
        }
        if let Some(way_out) = self.way_out.take() {
            way_out.close().await;
        }
        let left = end_marked(self.scratch.mark(), &self.scratch.record().leaders()).await;
        if left.is_empty() { Ok(self.scratch) } else { Err(SandboxError::LeftOver(left)) }
    }
}

/// What the helper is asked in words, and how long it may take; none if it takes what it takes.
fn patience(request: &HelperRequest) -> (&'static str, Option<Duration>) {
    let (what, time) = match request {
        HelperRequest::Hello => ("say hello", Duration::ZERO),
        HelperRequest::StartDisplay { .. } => ("start its display", DISPLAY_TIME),
        HelperRequest::Display => ("say how its display is", Duration::ZERO),
        HelperRequest::Run(spec) if spec.limit_millis == 0 => return ("run a command", None),
        HelperRequest::Run(spec) => ("run a command", Duration::from_millis(spec.limit_millis)),
        HelperRequest::ReadFile { .. } | HelperRequest::ReadTree { .. } => ("hand out a file", Duration::ZERO),
        HelperRequest::WriteFile { .. } => ("take a file", Duration::ZERO),
        HelperRequest::Processes => ("list its processes", Duration::ZERO),
        HelperRequest::Units => ("list its services", Duration::ZERO),
        HelperRequest::StartUnits { units } => {
            ("start its services", UNIT_TIME.saturating_mul(u32::try_from(units.len()).unwrap_or(u32::MAX)))
        }
        HelperRequest::KillAll { grace_millis } => ("end its processes", Duration::from_millis(*grace_millis)),
        HelperRequest::Shutdown => ("end", Duration::ZERO),
    };
    (what, Some(time.saturating_add(ANSWER_TIME)))
}

async fn wait_for_end(ended: &mut watch::Receiver<Option<SandboxEnd>>) -> SandboxEnd {
    match ended.wait_for(Option::is_some).await {
        Ok(end) => end.clone().unwrap_or_else(|| SandboxEnd { how: "ended".to_owned() }),
        Err(_) => SandboxEnd { how: "nobody watches it any more".to_owned() },
    }
}

async fn ended_early(mut ended: watch::Receiver<Option<SandboxEnd>>, log: &Path) -> SandboxError {
    let end = wait_for_end(&mut ended).await;
    let log = std::fs::read(log).unwrap_or_default();
    SandboxError::EndedEarly { how: end.how, log: last_lines(&log, 8) }
}

fn unexpected(answer: &HelperAnswer) -> SandboxError {
    SandboxError::Client(ClientError::Protocol(format!("an answer to another question: {answer:?}")))
}
