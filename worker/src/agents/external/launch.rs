//! Starting a program in a sandbox of its own, and what is watched while it answers.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use longhaul_core::agent::ExternalAgent;
use longhaul_core::endpoint::{EndpointPlan, Protocol};
use longhaul_core::helper::{CommandSpec, HELPER_PROGRAM};
use longhaul_core::outcome::{EndedBy, Fault, FaultClass};
use serde_json::{Value, json};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::PYTHON;
use super::talk::{Shown, Talk, Task};
use crate::agents::caller::Caller;
use crate::agents::conversation::Turn;
use crate::agents::{AgentEnd, crashed};
use crate::blobs::{BlobClient, BlobError, link_view};
use crate::episode::{Sight, blob_fault};
use crate::guard::watch_memory;
use crate::sandbox::{Driver, Sandbox, SandboxRequest, View};
use crate::screen::Frame;
use crate::shortpath::ShortFolder;

/// Where the program sees what.
const FILES: &str = "/agent";
const TALK: &str = "/longhaul/talk";
const SCREENS: &str = "/longhaul/screens";
const PYTHON_FOLDER: &str = "/longhaul/python";

/// The sockets in the folder that is seen as [`TALK`].
const STDIO: &str = "stdio";
const GATEWAY: &str = "gateway";

/// The port on which the gateway is found inside.
pub(super) const PORT: u16 = 8377;

/// The account that the program runs as.
const USER: &str = "ga";

/// How long it may take until it is connected.
const START_LIMIT: Duration = Duration::from_secs(60);

/// How long it gets to end by itself when its episode is over.
const END_LIMIT: Duration = Duration::from_secs(5);

/// How long the end of its output is waited for.
const OUTPUT_WAIT: Duration = Duration::from_secs(3);

/// The most of its standard error that is kept: the end.
const OUTPUT_LIMIT: usize = 256 * 1024;

/// How many screenshots stay in its sight.
const SCREENS_KEPT: usize = 20;

/// How often it is looked whether the gateway listens.
const LISTEN_LOOK: Duration = Duration::from_millis(5);

/// How often it is looked at what else may have ended it.
const LOOK: Duration = Duration::from_millis(200);

/// What a program is started with.
pub(crate) struct Launch<'a> {
    pub(crate) agent: &'a ExternalAgent,
    /// A name for its sandbox.
    pub(crate) id: String,
    /// A folder of its own.
    pub(crate) scratch: PathBuf,
    pub(crate) driver: &'a dyn Driver,
    /// The places among sandboxes that are on their way up.
    pub(crate) starts: &'a Semaphore,
    /// What it finds in its environment if it has a network.
    pub(crate) network: &'a BTreeMap<String, String>,
    pub(crate) blobs: &'a BlobClient,
    pub(crate) account: Option<Arc<dyn Caller>>,
    /// What it shows the gateway as its key.
    pub(crate) token: String,
    /// The endpoints that it may call.
    pub(crate) endpoints: Vec<EndpointPlan>,
    pub(crate) task: Task,
    /// The processors that it shares with its task's sandbox: those are what was reserved for the
    /// attempt, and no more.
    pub(crate) cpus: &'a [usize],
    /// Keeps its sandbox for whoever ends the attempt.
    pub(crate) keep: &'a Mutex<Option<Arc<dyn Sandbox>>>,
}

/// A program that answers.
#[derive(Debug)]
pub(crate) struct External {
    talk: Talk<UnixStream>,
    ended: watch::Receiver<Option<Ended>>,
    trouble: watch::Receiver<Option<Fault>>,
    /// Dropped, they end.
    _tasks: JoinSet<()>,
    sandbox: Running,
    screens: PathBuf,
    shown: VecDeque<PathBuf>,
    silence: Duration,
    account: Option<Arc<dyn Caller>>,
}

/// The sandbox that the program runs in.
struct Running(Arc<dyn Sandbox>);

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Running(..)")
    }
}

/// How the program ended.
#[derive(Clone, Debug)]
struct Ended {
    how: String,
    output: String,
}

/// Starts a program, and tells it its task.
pub(crate) async fn launch(launch: Launch<'_>) -> Result<External, Fault> {
    let folders = Folders::make(&launch).await?;
    let short = ShortFolder::open(&folders.talk).map_err(|error| disk(&folders.talk, &error))?;
    let listener = UnixListener::bind(short.path(STDIO)).map_err(|error| disk(&folders.talk, &error))?;
    open_to_all(&folders.talk.join(STDIO), 0o666)?;
    let request = SandboxRequest {
        id: launch.id.clone(),
        env: launch.agent.image.clone(),
        layers: Vec::new(),
        tops: Vec::new(),
        views: folders.views(),
        accounts: Vec::new(),
        net: launch.agent.net,
        gpus: None,
    };
    // Closed never: who waits here starts in turn, or is stopped.
    let starting = launch.starts.acquire().await.ok();
    let started = launch.driver.start(request).await;
    drop(starting);
    let sandbox = started.map_err(|error| crashed(format!("the agent's sandbox did not start: {error}")))?;
    *launch.keep.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&sandbox));
    sandbox.bind_cpus(launch.cpus);

    let mut tasks = JoinSet::new();
    let account = launch.account.clone().filter(|_| !launch.endpoints.is_empty());
    let calls = account.is_some();
    if let Some(account) = account {
        serve_gateway(&mut tasks, account, short, Arc::clone(&sandbox));
    }
    let trouble = watch_over(&mut tasks, Arc::clone(&sandbox), launch.agent.memory_mib);
    let mut ended = run(&mut tasks, Arc::clone(&sandbox), command(&launch, calls));
    let stream = tokio::select! {
        accepted = listener.accept() => accepted.map_err(|error| disk(&folders.talk, &error))?.0,
        () = until_ended(&mut ended) => return Err(ended_early(&ended)),
        () = tokio::time::sleep(START_LIMIT) => {
            return Err(crashed(format!("the agent was not started within {} s", START_LIMIT.as_secs())));
        }
    };
    let silence = launch.agent.answer_limit.to_std();
    let mut external = External {
        talk: Talk::new(stream),
        ended,
        trouble,
        _tasks: tasks,
        sandbox: Running(sandbox),
        screens: folders.screens,
        shown: VecDeque::new(),
        silence,
        account: launch.account,
    };
    if let Err(fault) = external.talk.reset(&launch.task).await {
        return Err(external.explained(fault).await);
    }
    Ok(external)
}

impl External {
    /// Shows it the screen, and waits for its answer.
    pub(crate) async fn turn(&mut self, sight: Sight<'_>) -> Result<Turn, AgentEnd> {
        let step = sight.step;
        let path = self.show(step, sight.frame)?;
        let shown = Shown { path: &path, sight };
        if let Err(fault) = self.talk.observe(shown).await {
            return Err(self.explained(fault).await.into());
        }
        let watched = Watched { account: self.account.as_deref(), silence: self.silence, trouble: &self.trouble };
        let answered = tokio::select! {
            // What it said before anything else ended it counts.
            biased;
            answered = self.talk.answer(step) => answered.map_err(AgentEnd::Fault),
            end = watched.end() => Err(end),
        };
        match answered {
            Err(AgentEnd::Fault(fault)) => Err(self.explained(fault).await.into()),
            other => other,
        }
    }

    /// Tells it that the episode is over, and gives it a moment. The end of its standard error.
    pub(crate) async fn finish(mut self, ended_by: Option<EndedBy>) -> String {
        self.talk.done(ended_by).await;
        let by_itself = tokio::time::timeout(END_LIMIT, until_ended(&mut self.ended)).await.is_ok();
        if !by_itself {
            self.end().await;
        }
        let output = self.ended.borrow().clone().map(|ended| ended.output).unwrap_or_default();
        if by_itself {
            return output;
        }
        let line = if output.is_empty() { "" } else { "\n" };
        format!("{output}{line}the agent went on after the end of its episode, and was ended")
    }

    /// Ends the program, so that what it wrote can be read.
    async fn end(&mut self) {
        let Running(sandbox) = &self.sandbox;
        let processes = sandbox.processes().await.unwrap_or_default();
        // What is root's is ours.
        let theirs = processes.iter().filter(|process| process.uid != 0).map(|process| process.pid.to_string());
        let mut argv = ["sh", "-c", "kill -KILL \"$@\"", "kill"].map(str::to_owned).to_vec();
        let ours = argv.len();
        argv.extend(theirs);
        if argv.len() == ours {
            return;
        }
        let killed = sandbox.run(CommandSpec { argv, user: "root".to_owned(), ..CommandSpec::default() });
        let ended = async {
            if let Err(error) = killed.await {
                tracing::debug!(%error, "an agent's program was not ended before its sandbox");
            }
            until_ended(&mut self.ended).await;
        };
        // Its sandbox ends in any case.
        drop(tokio::time::timeout(OUTPUT_WAIT, ended).await);
    }

    /// Puts a screenshot where it can be seen.
    fn show(&mut self, step: u32, frame: &Frame) -> Result<String, Fault> {
        let name = format!("frame_{step:05}.png");
        let path = self.screens.join(&name);
        fs::write(&path, &frame.png).map_err(|error| disk(&path, &error))?;
        open_to_all(&path, 0o644)?;
        self.shown.push_back(path);
        if self.shown.len() > SCREENS_KEPT
            && let Some(old) = self.shown.pop_front()
            && let Err(error) = fs::remove_file(&old)
        {
            tracing::debug!(path = %old.display(), %error, "a screenshot stays in an agent's sight");
        }
        Ok(format!("{SCREENS}/{name}"))
    }

    /// A fault with what is known of its cause: the guard's word, or how the program ended and
    /// what it wrote last.
    async fn explained(&mut self, fault: Fault) -> Fault {
        // The pipe breaks before its end is known.
        let by_itself = tokio::time::timeout(OUTPUT_WAIT, until_ended(&mut self.ended)).await.is_ok();
        if let Some(trouble) = self.trouble.borrow().clone() {
            return trouble;
        }
        if fault.class != FaultClass::AgentCrashed {
            return fault;
        }
        if !by_itself {
            self.end().await;
        }
        let Some(ended) = self.ended.borrow().clone() else { return fault };
        let tail = crate::tail(&ended.output, 30);
        let message = if by_itself { format!("{} ({})", fault.message, ended.how) } else { fault.message };
        Fault { message, log_tail: (!tail.trim().is_empty()).then_some(tail), ..fault }
    }
}

/// What may end a program's turn beside its answer.
struct Watched<'a> {
    account: Option<&'a dyn Caller>,
    silence: Duration,
    trouble: &'a watch::Receiver<Option<Fault>>,
}

impl Watched<'_> {
    async fn end(&self) -> AgentEnd {
        let paused = || self.account.map(Caller::paused).unwrap_or_default();
        let (start, paused_before) = (tokio::time::Instant::now(), paused());
        loop {
            tokio::time::sleep(LOOK).await;
            if let Some(fault) = self.trouble.borrow().clone() {
                return AgentEnd::Fault(fault);
            }
            if self.account.and_then(Caller::spent).is_some() {
                return AgentEnd::By(EndedBy::Budget);
            }
            // What its calls wait for is not its silence.
            let waited = paused().saturating_sub(paused_before);
            if start.elapsed().saturating_sub(waited) >= self.silence {
                let limit = self.silence.as_secs_f64();
                return AgentEnd::Fault(crashed(format!("the agent was silent for {limit} s when an answer was due")));
            }
        }
    }
}

/// Serves the gateway's socket, and its port inside. The port is there only once something listens
/// behind it, and the program is started only once the port is there.
fn serve_gateway(tasks: &mut JoinSet<()>, account: Arc<dyn Caller>, short: ShortFolder, sandbox: Arc<dyn Sandbox>) {
    let short = Arc::new(short);
    let folder = Arc::clone(&short);
    tasks.spawn(async move {
        if let Err(error) = account.listen(&folder.path(GATEWAY)).await {
            tracing::warn!(error = %crate::chain(&error), "an agent cannot reach the gateway");
        }
    });
    tasks.spawn(async move {
        while UnixStream::connect(short.path(GATEWAY)).await.is_err() {
            tokio::time::sleep(LISTEN_LOOK).await;
        }
        let argv = [HELPER_PROGRAM, "forward", &PORT.to_string(), &format!("{TALK}/{GATEWAY}")].map(str::to_owned);
        // Root inside, since the socket is its owner's alone.
        let spec = CommandSpec {
            argv: argv.into(),
            user: "root".to_owned(),
            output_limit: OUTPUT_LIMIT,
            ..CommandSpec::default()
        };
        match sandbox.run(spec).await {
            Ok(ended) => tracing::warn!(output = crate::tail(&ended.output, 3), "an agent's way to the gateway ended"),
            Err(error) => tracing::debug!(%error, "an agent's way to the gateway ended with its sandbox"),
        }
    });
}

/// Watches the sandbox's memory and its end.
fn watch_over(tasks: &mut JoinSet<()>, sandbox: Arc<dyn Sandbox>, memory_mib: u32) -> watch::Receiver<Option<Fault>> {
    let (tell, trouble) = watch::channel(None);
    tasks.spawn(async move {
        let fault = tokio::select! {
            message = watch_memory(sandbox.as_ref(), memory_mib, |_| {}) => {
                let message = format!("of the agent: {message}");
                Fault { class: FaultClass::Memory, message, log_tail: None }
            }
            how = sandbox.exited() => crashed(format!("the agent's sandbox died: {how}")),
        };
        tell.send_replace(Some(fault));
        sandbox.kill().await;
    });
    trouble
}

fn run(tasks: &mut JoinSet<()>, sandbox: Arc<dyn Sandbox>, spec: CommandSpec) -> watch::Receiver<Option<Ended>> {
    let (tell, ended) = watch::channel(None);
    tasks.spawn(async move {
        let end = match sandbox.run(spec).await {
            Ok(result) => Ended { how: format!("exit code {}", result.code), output: result.output },
            Err(error) => Ended { how: crate::chain(&error), output: String::new() },
        };
        tell.send_replace(Some(end));
    });
    ended
}

async fn until_ended(ended: &mut watch::Receiver<Option<Ended>>) {
    // Without a sender nobody waits for it any more: it is as good as ended.
    drop(ended.wait_for(Option::is_some).await);
}

fn ended_early(ended: &watch::Receiver<Option<Ended>>) -> Fault {
    let ended = ended.borrow().clone();
    let (how, output) = ended.map_or_else(Default::default, |ended| (ended.how, ended.output));
    let tail = crate::tail(&output, 30);
    Fault {
        class: FaultClass::AgentCrashed,
        message: format!("the agent ended before it was spoken to ({how})"),
        log_tail: (!tail.trim().is_empty()).then_some(tail),
    }
}

/// The program as the helper starts it: where it may call models, after their port is there.
fn command(launch: &Launch<'_>, calls: bool) -> CommandSpec {
    let mut argv = [HELPER_PROGRAM, "attach"].map(str::to_owned).to_vec();
    if calls {
        argv.extend(["--after".to_owned(), PORT.to_string()]);
    }
    argv.push(format!("{TALK}/{STDIO}"));
    argv.extend(launch.agent.command.iter().cloned());
    CommandSpec {
        argv,
        user: USER.to_owned(),
        env: environment(launch.agent, &launch.endpoints, &launch.token, launch.network),
        cwd: Some(FILES.to_owned()),
        output_limit: OUTPUT_LIMIT,
        ..CommandSpec::default()
    }
}

/// What the program finds in its environment; its own variables come last.
fn environment(
    agent: &ExternalAgent,
    endpoints: &[EndpointPlan],
    token: &str,
    network: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut env = if agent.net { beside_the_gateway(network) } else { BTreeMap::new() };
    env.extend([
        ("PYTHONPATH".to_owned(), format!("{PYTHON_FOLDER}:{FILES}")),
        ("PYTHONUNBUFFERED".to_owned(), "1".to_owned()),
    ]);
    let first = |protocol| endpoints.iter().find(|endpoint| endpoint.protocol == protocol);
    let mut set = |name: &str, value: String| env.insert(name.to_owned(), value);
    if let Some(endpoint) = first(Protocol::OpenAi) {
        set("OPENAI_BASE_URL", base_url(endpoint));
        set("OPENAI_API_KEY", token.to_owned());
    }
    if let Some(endpoint) = first(Protocol::Anthropic) {
        set("ANTHROPIC_BASE_URL", base_url(endpoint));
        set("ANTHROPIC_API_KEY", token.to_owned());
    }
    if let Some(endpoint) = first(Protocol::Gemini) {
        set("GOOGLE_GEMINI_BASE_URL", base_url(endpoint));
        set("GEMINI_API_KEY", token.to_owned());
        set("GOOGLE_API_KEY", token.to_owned());
    }
    if !endpoints.is_empty() {
        set("LONGHAUL_TOKEN", token.to_owned());
    }
    env.extend(agent.variables.clone());
    env
}

/// The variables of a network, without a proxy before the gateway: that is on the loopback.
fn beside_the_gateway(network: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    const LOOPBACK: &str = "127.0.0.1,localhost";
    let mut env = network.clone();
    for (name, other) in [("NO_PROXY", "no_proxy"), ("no_proxy", "NO_PROXY")] {
        // Programs read one of them, and which of them differs.
        let direct = network.get(name).or_else(|| network.get(other)).filter(|direct| !direct.is_empty());
        let direct = direct.map_or_else(|| LOOPBACK.to_owned(), |direct| format!("{direct},{LOOPBACK}"));
        env.insert(name.to_owned(), direct);
    }
    env
}

/// The address of an endpoint inside, as its vendor's SDK expects it.
fn base_url(endpoint: &EndpointPlan) -> String {
    let version = if endpoint.protocol == Protocol::OpenAi { "/v1" } else { "" };
    format!("http://127.0.0.1:{PORT}/{}{version}", endpoint.name)
}

/// The endpoints as a program is told of them.
pub(crate) fn told_endpoints(endpoints: &[EndpointPlan]) -> BTreeMap<String, Value> {
    let told = |endpoint: &EndpointPlan| json!({"protocol": endpoint.protocol.name(), "base_url": base_url(endpoint)});
    endpoints.iter().map(|endpoint| (endpoint.name.clone(), told(endpoint))).collect()
}

/// The folders of the node that its sandbox sees.
struct Folders {
    files: PathBuf,
    talk: PathBuf,
    screens: PathBuf,
    python: PathBuf,
}

impl Folders {
    async fn make(launch: &Launch<'_>) -> Result<Self, Fault> {
        let root = &launch.scratch;
        let this = Self {
            files: root.join("files"),
            talk: root.join("talk"),
            screens: root.join("screens"),
            python: root.join("python"),
        };
        for folder in [&this.files, &this.talk, &this.screens, &this.python] {
            fs::create_dir_all(folder).map_err(|error| disk(folder, &error))?;
            open_to_all(folder, 0o755)?;
        }
        open_to_all(&this.files, 0o777)?;
        for (name, text) in PYTHON {
            let path = this.python.join(name);
            fs::write(&path, text).map_err(|error| disk(&path, &error))?;
            open_to_all(&path, 0o644)?;
        }
        if let Some(tree) = launch.agent.files {
            let held = launch.blobs.folder(tree).await.map_err(|error| blob_fault(&error))?;
            let (from, to) = (held.path().to_owned(), this.files.clone());
            let copied = tokio::task::spawn_blocking(move || link_view(&from, &to, true, &[])).await;
            copied.unwrap_or(Err(BlobError::GivenUp)).map_err(|error| blob_fault(&error))?;
        }
        Ok(this)
    }

    fn views(&self) -> Vec<View> {
        let view = |source: &Path, target: &str, writable| View {
            source: source.to_owned(),
            target: target.to_owned(),
            writable,
        };
        vec![
            view(&self.files, FILES, true),
            view(&self.talk, TALK, false),
            view(&self.screens, SCREENS, false),
            view(&self.python, PYTHON_FOLDER, false),
        ]
    }
}

fn open_to_all(path: &Path, mode: u32) -> Result<(), Fault> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(|error| disk(path, &error))
}

fn disk(path: &Path, error: &std::io::Error) -> Fault {
    let message = format!("cannot use {} for an agent: {error}", path.display());
    Fault { class: FaultClass::NodeDisk, message, log_tail: None }
}

#[cfg(test)]
mod tests;
