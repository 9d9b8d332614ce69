//! Sandboxes that are folders: files are copied from and to them, commands are noted, and
//! python runs on this machine, with the sandbox's views in its paths.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use longhaul_core::digest::Digest;
use longhaul_core::helper::{CommandSpec, HELPER_PROGRAM, ProcessInfo};
use longhaul_core::plan::LayerKind;
use longhaul_core::step::{ActionOutcome, Screenshot};
use serde_json::Value;
use tokio::sync::Notify;

use crate::sandbox::{
    CommandResult, Display, Driver, LayerBasis, LayerRequest, Pending, ReadyLayer, Sandbox, SandboxError,
    SandboxRequest, View,
};
use crate::screen::{Frame, Performed, Rest, RestRule, Stepped};
use crate::shortpath::ShortFolder;

/// What tests see of a driver and its sandboxes, and what they set.
#[derive(Default)]
pub(crate) struct World {
    /// The commands that ran, in order.
    pub(crate) commands: Mutex<Vec<String>>,
    /// Layers that are there.
    pub(crate) layers: Mutex<Vec<Digest>>,
    /// How many layers were built.
    pub(crate) builds: AtomicU32,
    /// How many steps displays have carried out.
    pub(crate) steps: AtomicU32,
    /// How many sandboxes live.
    pub(crate) live: AtomicU32,
    /// How many sandboxes are on their way up, and how many were at one time.
    pub(crate) starting: AtomicU32,
    pub(crate) most_starting: AtomicU32,
    /// How long a sandbox takes to come up, in milliseconds.
    pub(crate) start_millis: AtomicU64,
    /// How long a step takes, in milliseconds.
    pub(crate) step_millis: AtomicU64,
    /// How many bytes a picture takes at least.
    pub(crate) picture_bytes: AtomicU64,
    /// Whether the screen stays as it is, whatever is done.
    pub(crate) still: AtomicBool,
    /// The folders of sandboxes, in order.
    pub(crate) roots: Mutex<Vec<PathBuf>>,
    /// The requests for sandboxes, in order.
    pub(crate) requests: Mutex<Vec<SandboxRequest>>,
    /// The processors that sandboxes were bound to, in order.
    pub(crate) bound: Mutex<Vec<Vec<usize>>>,
    /// How long a stop takes, in milliseconds, and how many came to their end.
    pub(crate) stop_millis: AtomicU64,
    pub(crate) stopped: AtomicU32,
    /// Whether something of each sandbox outlives its stop.
    pub(crate) survives: AtomicBool,
    /// What sandboxes use, in MiB.
    pub(crate) memory_mib: AtomicU64,
    /// The exit code of hooks.
    pub(crate) hook_code: AtomicU32,
    /// Ends every sandbox.
    pub(crate) death: Notify,
    /// Whether layers say that their hook has to run again.
    pub(crate) rerun: AtomicBool,
}

pub(crate) struct FolderDriver(pub(crate) Arc<World>);

pub(crate) struct FolderSandbox {
    pub(crate) root: PathBuf,
    pub(crate) views: Vec<View>,
    pub(crate) world: Arc<World>,
}

struct FolderDisplay(Arc<World>);

impl Driver for FolderDriver {
    fn basis<'a>(&'a self, _env: &'a str) -> Pending<'a, Result<LayerBasis, SandboxError>> {
        let basis =
            LayerBasis { base: Digest::of(b"base"), arch: "test".to_owned(), overlay_driver: "none".to_owned() };
        Box::pin(async move { Ok(basis) })
    }

    fn find_layer(&self, kind: LayerKind, key: Digest) -> Pending<'_, Result<Option<ReadyLayer>, SandboxError>> {
        let there = self.0.layers.lock().unwrap().contains(&key);
        let layer = there.then(|| self.layer(kind, key));
        Box::pin(async move { Ok(layer) })
    }

    fn build_layer(&self, request: LayerRequest) -> Pending<'_, Result<ReadyLayer, SandboxError>> {
        Box::pin(async move {
            self.0.builds.fetch_add(1, Ordering::SeqCst);
            self.0.layers.lock().unwrap().push(request.key);
            Ok(self.layer(request.kind, request.key))
        })
    }

    fn start(&self, request: SandboxRequest) -> Pending<'_, Result<Arc<dyn Sandbox>, SandboxError>> {
        Box::pin(async move {
            self.0.requests.lock().unwrap().push(request.clone());
            let root = tempfile::tempdir().unwrap().keep();
            self.0.roots.lock().unwrap().push(root.clone());
            fs::create_dir_all(root.join("home/ga")).unwrap();
            for top in &request.tops {
                tar(&root, "-xf", top, &[]);
            }
            let starting = self.0.starting.fetch_add(1, Ordering::SeqCst) + 1;
            self.0.most_starting.fetch_max(starting, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(self.0.start_millis.load(Ordering::SeqCst))).await;
            self.0.starting.fetch_sub(1, Ordering::SeqCst);
            self.0.live.fetch_add(1, Ordering::SeqCst);
            let sandbox: Arc<dyn Sandbox> =
                Arc::new(FolderSandbox { root, views: request.views, world: Arc::clone(&self.0) });
            Ok(sandbox)
        })
    }

    fn remove<'a>(&'a self, folder: &'a Path) -> Pending<'a, Result<(), SandboxError>> {
        Box::pin(async move { fs::remove_dir_all(folder).map_err(|error| SandboxError::Disk(error.to_string())) })
    }

    fn clean(&self) -> Pending<'_, Result<(), SandboxError>> {
        Box::pin(async { Ok(()) })
    }
}

impl FolderDriver {
    fn layer(&self, kind: LayerKind, key: Digest) -> ReadyLayer {
        let rerun = self.0.rerun.load(Ordering::SeqCst).then(|| "an application was left running".to_owned());
        ReadyLayer {
            kind,
            key,
            content: key,
            bytes: 1,
            tolerated_exit: None,
            rerun,
            units: Vec::new(),
            handle: Arc::new(()),
        }
    }
}

impl FolderSandbox {
    fn inside(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// A text with the views' targets replaced by their folders.
    fn outside(&self, text: &str) -> String {
        self.views.iter().fold(text.to_owned(), |text, view| text.replace(&view.target, &view.source.to_string_lossy()))
    }

    /// A program on this machine, whose standard streams are a socket, as the helper does it.
    async fn attached(&self, socket: &str, program: &[&str], command: &CommandSpec) -> CommandResult {
        let socket = PathBuf::from(self.outside(socket));
        let short = ShortFolder::open(socket.parent().unwrap()).unwrap();
        let path = short.path(socket.file_name().unwrap().to_str().unwrap());
        let stream = std::os::fd::OwnedFd::from(std::os::unix::net::UnixStream::connect(path).unwrap());
        let child = tokio::process::Command::new(program[0])
            .args(program[1..].iter().map(|argument| self.outside(argument)))
            .envs(command.env.iter().map(|(name, value)| (name, self.outside(value))))
            .current_dir(self.outside(command.cwd.as_deref().unwrap()))
            .stdin(Stdio::from(stream.try_clone().unwrap()))
            .stdout(Stdio::from(stream))
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        left(&child.wait_with_output().await.unwrap())
    }

    /// A script of the worker's own on this machine, in this folder for what is absolute in it.
    async fn script(&self, line: &str, arguments: &[&str], command: &CommandSpec) -> CommandResult {
        const HOOKS: &str = "/var/lib/longhaul-rounds";
        let line = line.replace(HOOKS, &self.inside(HOOKS).to_string_lossy());
        let folder = command.cwd.as_deref().map_or_else(|| self.root.clone(), |folder| self.inside(folder));
        let child = tokio::process::Command::new("bash")
            .args(["-c", &line])
            .args(arguments)
            .envs(&command.env)
            .env("SANDBOX", &self.root)
            .current_dir(folder)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        within(Duration::from_millis(command.limit_millis), child).await
    }

    async fn python(&self, command: &CommandSpec) -> CommandResult {
        let job = self.outside(&fs::read_to_string(self.outside(&command.argv[4])).unwrap());
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("job.json"), job).unwrap();
        let child = tokio::process::Command::new("python3")
            .args(["-I", "-B", &self.outside(&command.argv[3])])
            .arg(folder.path().join("job.json"))
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        within(Duration::from_millis(command.limit_millis), child).await
    }
}

fn tar(folder: &Path, what: &str, file: &Path, more: &[&str]) {
    let mut command = std::process::Command::new("tar");
    command.arg("-C").arg(folder).arg(what).arg(file).args(more);
    assert!(command.status().unwrap().success());
}

/// What a program leaves that may not run longer than that.
async fn within(limit: Duration, child: tokio::process::Child) -> CommandResult {
    match tokio::time::timeout(limit, child.wait_with_output()).await {
        Ok(output) => left(&output.unwrap()),
        Err(_) => CommandResult { code: 143, timed_out: true, output: String::new() },
    }
}

/// What a program left: of its standard streams, one is a pipe at most.
fn left(output: &std::process::Output) -> CommandResult {
    let text = String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned();
    CommandResult { code: output.status.code().unwrap_or(137), timed_out: false, output: text }
}

impl Sandbox for FolderSandbox {
    fn run(&self, command: CommandSpec) -> Pending<'_, Result<CommandResult, SandboxError>> {
        Box::pin(async move {
            let argv: Vec<&str> = command.argv.iter().map(String::as_str).collect();
            let (code, output) = match argv.as_slice() {
                ["python3", ..] => return Ok(self.python(&command).await),
                [HELPER_PROGRAM, "attach", "--after", _, socket, program @ ..]
                | [HELPER_PROGRAM, "attach", socket, program @ ..] => {
                    return Ok(self.attached(socket, program, &command).await);
                }
                [HELPER_PROGRAM, "forward", ..] => std::future::pending().await,
                ["bash", "-c", line, arguments @ ..] => return Ok(self.script(line, arguments, &command).await),
                ["test", "-d", path] => (i32::from(!self.inside(path).is_dir()), String::new()),
                ["bash", "-lc", line] => {
                    self.world.commands.lock().unwrap().push((*line).to_owned());
                    if let Some(log) = &command.log_file {
                        fs::write(self.inside(log), format!("log of {line}")).unwrap();
                    }
                    let code = i32::try_from(self.world.hook_code.load(Ordering::SeqCst)).unwrap();
                    (code, format!("ran {line}"))
                }
                other => panic!("no such command here: {other:?}"),
            };
            Ok(CommandResult { code, timed_out: false, output })
        })
    }

    fn start_display(&self, _: u16, _: u16) -> Pending<'_, Result<Arc<dyn Display>, SandboxError>> {
        let display: Arc<dyn Display> = Arc::new(FolderDisplay(Arc::clone(&self.world)));
        Box::pin(async move { Ok(display) })
    }

    fn copy_out<'a>(&'a self, path: &'a str, to: &'a Path) -> Pending<'a, Result<(), SandboxError>> {
        Box::pin(async move {
            fs::copy(self.inside(path), to).map_err(|_| SandboxError::NotFound { path: path.to_owned() })?;
            Ok(())
        })
    }

    fn copy_end<'a>(&'a self, path: &'a str, most: usize, to: &'a Path) -> Pending<'a, Result<(), SandboxError>> {
        Box::pin(async move {
            let bytes = fs::read(self.inside(path)).map_err(|_| SandboxError::NotFound { path: path.to_owned() })?;
            let start = bytes.len().saturating_sub(most);
            fs::write(to, &bytes[start..]).map_err(|error| SandboxError::Disk(error.to_string()))
        })
    }

    fn pack_out<'a>(&'a self, path: &'a str, to: &'a Path) -> Pending<'a, Result<(), SandboxError>> {
        Box::pin(async move {
            tar(&self.inside(path), "-cf", to, &["."]);
            Ok(())
        })
    }

    fn save_top<'a>(&'a self, to: &'a Path, _: u64) -> Pending<'a, Result<Duration, SandboxError>> {
        Box::pin(async move {
            tar(&self.root, "-cf", to, &["."]);
            Ok(Duration::from_millis(1))
        })
    }

    fn copy_in<'a>(&'a self, from: &'a Path, path: &'a str) -> Pending<'a, Result<(), SandboxError>> {
        Box::pin(async move {
            let target = self.inside(path);
            fs::create_dir_all(target.parent().unwrap()).unwrap();
            fs::copy(from, target).map_err(|error| SandboxError::Disk(error.to_string()))?;
            Ok(())
        })
    }

    fn start_units(&self, _: Vec<String>) -> Pending<'_, Result<(), SandboxError>> {
        Box::pin(async { Ok(()) })
    }

    fn processes(&self) -> Pending<'_, Result<Vec<ProcessInfo>, SandboxError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn bind_cpus(&self, cpus: &[usize]) {
        self.world.bound.lock().unwrap().push(cpus.to_vec());
    }

    fn memory_mib(&self) -> Pending<'_, Result<u64, SandboxError>> {
        let used = self.world.memory_mib.load(Ordering::SeqCst);
        Box::pin(async move { Ok(used) })
    }

    fn exited(&self) -> Pending<'_, String> {
        Box::pin(async {
            self.world.death.notified().await;
            "killed by the test".to_owned()
        })
    }

    fn kill(&self) -> Pending<'_, ()> {
        Box::pin(async {})
    }

    fn stop(&self) -> Pending<'_, Result<(), SandboxError>> {
        Box::pin(async {
            tokio::time::sleep(Duration::from_millis(self.world.stop_millis.load(Ordering::SeqCst))).await;
            if self.world.survives.load(Ordering::SeqCst) {
                return Err(SandboxError::Failed("a process of it could not be ended".to_owned()));
            }
            self.world.stopped.fetch_add(1, Ordering::SeqCst);
            Ok(())
        })
    }

    fn is_gone(&self) -> Pending<'_, bool> {
        Box::pin(async { !self.world.survives.load(Ordering::SeqCst) })
    }
}

impl Drop for FolderSandbox {
    fn drop(&mut self) {
        self.world.live.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Display for FolderDisplay {
    fn step(&self, actions: Vec<Value>, _: RestRule) -> Pending<'_, Result<Stepped, SandboxError>> {
        Box::pin(async move {
            let number = self.0.steps.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(self.0.step_millis.load(Ordering::SeqCst))).await;
            let shown = if self.0.still.load(Ordering::SeqCst) { 0 } else { number };
            let mut png = format!("picture {shown}").into_bytes();
            let least = usize::try_from(self.0.picture_bytes.load(Ordering::SeqCst)).unwrap();
            png.resize(png.len().max(least), 0);
            let png: Arc<[u8]> = png.into();
            let screenshot = Screenshot { png: Digest::of(&png), width: 4, height: 3 };
            let outcomes = actions.iter().map(|_| ActionOutcome::Done).collect();
            Ok(Stepped {
                performed: Performed { outcomes, injected: true, took: Duration::ZERO },
                rest: Rest { rested: true, waited: Duration::ZERO },
                frame: Frame { screenshot, png, unchanged: false },
                capture: Duration::ZERO,
                stirred: Vec::new(),
            })
        })
    }
}
