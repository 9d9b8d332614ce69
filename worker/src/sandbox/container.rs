//! The rootless container: the sandbox interface over the `apptainer` crate.
//!
//! What is enforced here, and what not: memory by the watching guard; processors by a set
//! that the sandbox's processes inherit; the kernel's choice of victim by `oom_score_adj`. A
//! process inside that asks for other processors gets them: there is no cgroup.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use longhaul_apptainer::client::ClientError;
use longhaul_apptainer::identity::{self, ProcessIdentity};
use longhaul_apptainer::layers::build::{self, BuildError, BuildRequest};
use longhaul_apptainer::layers::{LayerContent, LayerGuard, LayerInput, LayerManifest, LayerStore, StoreError};
use longhaul_apptainer::sandbox::snapshot::SnapshotError;
use longhaul_apptainer::sandbox::{signal_tree, survivors};
use longhaul_apptainer::{Apptainer, Bind, Network, accounts, filesystem, janitor};
use longhaul_apptainer::{Sandbox as Container, SandboxError as ContainerError, SandboxSpec};
use longhaul_core::digest::Digest;
use longhaul_core::helper::{CommandSpec, DisplayState, HelperFailure, ProcessInfo};
use longhaul_core::plan::{EnvPlan, LAYER_FORMAT, LayerKind};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::Value;
use tokio::sync::{RwLock, watch};

use super::bases::Bases;
use super::program::Program;
use super::{
    CommandResult, Display, Driver, LayerBasis, LayerRequest, Pending, ReadyLayer, Sandbox, SandboxError,
    SandboxRequest, View,
};
use crate::carry::CarriedLayer;
use crate::config::WorkerConfig;
use crate::episode::ENV_HOOK_LIMIT;
use crate::moment;
use crate::screen::{RestRule, ScreenError, ScreenHandle, Stepped, Works};

/// Of all processes of a node, those of sandboxes are the kernel's first choice when memory
/// runs out: never the worker, never a neighbour that is not ours.
const OOM_SCORE: &str = "500";

/// Sandboxes as rootless Apptainer containers.
#[derive(Debug)]
pub struct ContainerDriver {
    apptainer: Apptainer,
    bases: Bases,
    layers: LayerStore,
    helper: Program,
    scratch: PathBuf,
}

impl ContainerDriver {
    /// Looks at what the machine has.
    ///
    /// # Errors
    ///
    /// Apptainer, the image or the layer folder cannot be used.
    pub async fn open(config: &WorkerConfig) -> Result<Self, SandboxError> {
        let unfit = |error: &(dyn std::error::Error + 'static)| SandboxError::Unfit(crate::chain(error));
        fs::create_dir_all(&config.scratch).map_err(|error| unfit(&error))?;
        filesystem::fit_for_tops(&config.scratch).map_err(|error| unfit(&error))?;
        let apptainer = Apptainer::detect().await.map_err(|error| unfit(&error))?.with_limits(config.limits.calls);
        let bases = Bases::open(&apptainer, config).await.map_err(|error| unfit(&error))?;
        let copies = config.scratch.join("cache").join("layers");
        let local = (!same_device(&config.layers, &config.scratch)).then_some(copies.as_path());
        let layers = LayerStore::open(&config.layers, local).map_err(|error| unfit(&error))?;
        let (program, programs) = (config.helper_program.clone(), config.scratch.join("programs"));
        let helper = tokio::task::spawn_blocking(move || Program::keep(&program, &programs))
            .await
            .map_err(|error| unfit(&error))?
            .map_err(|error| SandboxError::Unfit(format!("this program cannot be kept on the node's disk: {error}")))?;
        Ok(Self { apptainer, bases, layers, helper, scratch: config.scratch.clone() })
    }

    fn spec(&self, image: &Path, id: String, layers: &[ReadyLayer], views: &[View], net: bool) -> SandboxSpec {
        SandboxSpec {
            id,
            image: image.to_owned(),
            layers: layers.iter().filter_map(layer_file).collect(),
            scratch: self.scratch.clone(),
            binds: views.iter().map(bind).collect(),
            network: if net { Network::Open } else { Network::None },
            helper_program: self.helper.path().to_owned(),
            ..SandboxSpec::default()
        }
    }

    async fn find(&self, kind: LayerKind, key: Digest) -> Result<Option<ReadyLayer>, SandboxError> {
        match self.layers.use_layer(&key).await {
            Ok(guard) => Ok(guard.map(ready)),
            Err(error @ StoreError::Damaged { .. }) => {
                tracing::warn!(%key, %error, "a damaged layer is removed and built again");
                self.layers.remove(&key).map_err(|error| store_error(kind, &key, &error))?;
                Ok(None)
            }
            Err(error) => Err(store_error(kind, &key, &error)),
        }
    }

    /// Takes a layer of another node, if it is one that fits here.
    async fn take(&self, kind: LayerKind, layer: CarriedLayer) -> Result<(), SandboxError> {
        let unfit = |message: String| SandboxError::Layer {
            kind,
            of: layer.key.short(),
            message: format!("what the coordinator carried does not fit: {message}"),
            log_tail: None,
        };
        let manifest: LayerManifest =
            serde_json::from_slice(&layer.manifest_json).map_err(|error| unfit(error.to_string()))?;
        let basis = &self.bases.usual().basis;
        let fits = manifest.key == layer.key
            && manifest.kind == kind
            && manifest.format == LAYER_FORMAT
            && manifest.arch == basis.arch
            && manifest.overlay_driver == basis.overlay_driver;
        if !fits {
            return Err(unfit(format!("its manifest is of {} in format {}", manifest.key, manifest.format)));
        }
        let file = layer.file.as_ref().map(|(path, _)| path.as_path());
        self.layers.publish(&manifest, file).await.map_err(|error| store_error(kind, &layer.key, &error))?;
        Ok(())
    }

    async fn build(&self, request: LayerRequest) -> Result<ReadyLayer, SandboxError> {
        let LayerRequest { kind, key, env, views, parents, hook_env, .. } = request;
        let hook = match kind {
            LayerKind::Base => None,
            LayerKind::Install => env.pre_start.clone(),
            LayerKind::Configure => env.post_start.clone(),
        };
        let failed = |message: String, log_tail: Option<String>| SandboxError::Layer {
            kind,
            of: env.name.clone(),
            message,
            log_tail,
        };
        let hook = hook.ok_or_else(|| failed("the env has no hook for it".to_owned(), None))?;
        let id = format!("layer-{}-{}", key.short(), std::process::id());
        let base = self.bases.of(&env.name).await?;
        let basis = &base.basis;
        let mut sandbox = self.spec(&base.image, id, &parents, &views, env.net);
        if env.net {
            sandbox.env = hook_env;
        }
        let parent = parents.last().map_or(basis.base, |layer| layer.key);
        let build = BuildRequest {
            key,
            env: env.name.clone(),
            hook,
            limit: ENV_HOOK_LIMIT,
            policy: env.hook_policy,
            accounts: env.accounts.clone(),
            parents: std::iter::once(basis.base).chain(parents.iter().map(|layer| layer.key)).collect(),
            overlay_driver: basis.overlay_driver.clone(),
            inputs: layer_inputs(kind, &parent, basis, &env),
            units: parents.iter().flat_map(|layer| layer.units.clone()).collect(),
            screen: (env.width, env.height),
            sandbox,
            created: moment::wall(),
        };
        let built = match kind {
            LayerKind::Configure => build::configure(&self.apptainer, &self.layers, &build).await,
            LayerKind::Base | LayerKind::Install => build::install(&self.apptainer, &self.layers, &build).await,
        };
        if let Err(error) = &built {
            return Err(match error {
                BuildError::Sandbox(ContainerError::Scratch(_))
                | BuildError::Pack(_)
                | BuildError::Read(_)
                | BuildError::Io { .. }
                    if is_full(&crate::chain(error)) =>
                {
                    SandboxError::Disk(crate::chain(error))
                }
                BuildError::Publish(store) if store.is_of_the_disk() => SandboxError::Disk(crate::chain(error)),
                _ => failed(crate::chain(error), error.log_tail().map(str::to_owned)),
            });
        }
        self.find(kind, key)
            .await?
            .ok_or_else(|| failed("it was built and is not in the layer folder".to_owned(), None))
    }

    /// Removes a folder in which accounts of a sandbox may own files: those are only removed in a
    /// container with the same mapping.
    async fn remove_folder(&self, folder: &Path) -> Result<(), SandboxError> {
        let image = &self.bases.usual().image;
        let removed = self.apptainer.remove_folder(image, &self.scratch, folder).await;
        removed.map_err(|error| SandboxError::Disk(crate::chain(&error)))
    }

    async fn start_container(&self, request: SandboxRequest) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let base = match &request.env {
            Some(env) => self.bases.of(env).await?,
            None => self.bases.usual(),
        };
        let mut spec = self.spec(&base.image, request.id, &request.layers, &request.views, request.net);
        spec.gpus = request.gpus;
        // What is laid over them has the accounts too.
        let bare = request.layers.is_empty() && request.tops.is_empty();
        spec.layers.extend(request.tops);
        let container = Container::start(&self.apptainer, spec).await.map_err(|error| container_error(&error, ""))?;
        let (process, mark) = (container.identity().clone(), container.mark().to_owned());
        prefer_for_oom(process.pid);
        if bare && let Err(error) = accounts::make(&container, &request.accounts).await {
            // The first error says more than what may follow from it.
            if let Err(later) = container.stop().await {
                tracing::warn!(error = %later, "a sandbox without its accounts was not cleared away");
            }
            return Err(container_error(&error, ""));
        }
        let (container, gone) = (RwLock::new(Some(container)), watch::Sender::new(false));
        let sandbox = Rootless { process, mark, layers: request.layers, container, gone };
        Ok(Arc::new(sandbox))
    }
}

impl Driver for ContainerDriver {
    fn basis<'a>(&'a self, env: &'a str) -> Pending<'a, Result<LayerBasis, SandboxError>> {
        Box::pin(async move { Ok(self.bases.of(env).await?.basis.clone()) })
    }

    fn find_layer(&self, kind: LayerKind, key: Digest) -> Pending<'_, Result<Option<ReadyLayer>, SandboxError>> {
        Box::pin(self.find(kind, key))
    }

    fn carry_layer(&self, layer: &ReadyLayer) -> Pending<'_, Result<Option<CarriedLayer>, SandboxError>> {
        let carried = carried(layer);
        Box::pin(async { carried })
    }

    fn take_layer(&self, kind: LayerKind, layer: CarriedLayer) -> Pending<'_, Result<(), SandboxError>> {
        Box::pin(self.take(kind, layer))
    }

    fn build_layer(&self, request: LayerRequest) -> Pending<'_, Result<ReadyLayer, SandboxError>> {
        Box::pin(self.build(request))
    }

    fn start(&self, request: SandboxRequest) -> Pending<'_, Result<Arc<dyn Sandbox>, SandboxError>> {
        Box::pin(self.start_container(request))
    }

    fn remove<'a>(&'a self, folder: &'a Path) -> Pending<'a, Result<(), SandboxError>> {
        Box::pin(self.remove_folder(folder))
    }

    fn clean(&self) -> Pending<'_, Result<(), SandboxError>> {
        Box::pin(async {
            let cleared = janitor::clean(&self.apptainer, Some(&self.bases.usual().image), &self.scratch)
                .await
                .map_err(|error| SandboxError::Failed(crate::chain(&error)))?;
            for folder in &cleared.removed {
                tracing::info!(folder = %folder.display(), "removed what a dead worker left");
            }
            for folder in &cleared.foreign {
                tracing::warn!(folder = %folder.display(), "this is called like a sandbox's folder, and left alone");
            }
            for (folder, reason) in &cleared.failed {
                tracing::warn!(folder = %folder.display(), reason, "what a dead worker left cannot be removed");
            }
            Ok(())
        })
    }
}

/// What of a layer is carried to other nodes.
fn carried(layer: &ReadyLayer) -> Result<Option<CarriedLayer>, SandboxError> {
    let Some(guard) = layer.handle.downcast_ref::<LayerGuard>() else { return Ok(None) };
    let manifest_json = serde_json::to_vec(&guard.manifest)
        .map_err(|error| SandboxError::Failed(format!("the manifest of layer {}: {error}", layer.key)))?;
    let file = guard.path().map(|path| (path.to_owned(), guard.manifest.bytes()));
    Ok(Some(CarriedLayer { key: layer.key, content: layer.content, manifest_json, file }))
}

/// A container as a sandbox.
struct Rootless {
    /// Its first process out here: its id may be another one's once it is over.
    process: ProcessIdentity,
    /// What else of it may live is known by this.
    mark: String,
    /// Held, so that no layer is evicted under it.
    layers: Vec<ReadyLayer>,
    /// None once its stop has begun.
    container: RwLock<Option<Container>>,
    /// Whether that has ended.
    gone: watch::Sender<bool>,
}

impl Rootless {
    /// Does something with the container, while it is there.
    async fn with<T>(
        &self,
        path: &str,
        act: impl AsyncFnOnce(&Container) -> Result<T, ContainerError>,
    ) -> Result<T, SandboxError> {
        let container = self.container.read().await;
        let container = container.as_ref().ok_or_else(|| SandboxError::Gone("it was stopped".to_owned()))?;
        act(container).await.map_err(|error| container_error(&error, path))
    }
}

impl Sandbox for Rootless {
    fn run(&self, command: CommandSpec) -> Pending<'_, Result<CommandResult, SandboxError>> {
        Box::pin(async move {
            let ended = self.with("", async |container| container.run(command).await).await?;
            Ok(CommandResult { code: ended.code, timed_out: ended.timed_out, output: ended.output })
        })
    }

    fn start_display(&self, width: u16, height: u16) -> Pending<'_, Result<Arc<dyn Display>, SandboxError>> {
        Box::pin(async move {
            let socket = self
                .with("", async |container| {
                    container.start_display(width, height).await?;
                    Ok(container.x_socket())
                })
                .await?;
            let pid = self.process.pid;
            let works: Works = Box::new(move || identity::works(pid));
            match ScreenHandle::connect(&socket, width, height, Some(works)).await {
                Ok(screen) => {
                    let display: Arc<dyn Display> = Arc::new(XDisplay(screen));
                    Ok(display)
                }
                Err(error) => Err(self.display_error(&error).await),
            }
        })
    }

    fn copy_out<'a>(&'a self, path: &'a str, to: &'a Path) -> Pending<'a, Result<(), SandboxError>> {
        Box::pin(async move {
            let mut file = tokio::fs::File::create(to).await.map_err(|error| disk_error(to, &error))?;
            self.with(path, async |container| container.read_file(path, &mut file).await).await?;
            Ok(())
        })
    }

    fn copy_end<'a>(&'a self, path: &'a str, most: usize, to: &'a Path) -> Pending<'a, Result<(), SandboxError>> {
        Box::pin(async move {
            let mut file = tokio::fs::File::create(to).await.map_err(|error| disk_error(to, &error))?;
            let most = u64::try_from(most).unwrap_or(u64::MAX);
            self.with(path, async |container| container.read_end(path, most, &mut file).await).await?;
            Ok(())
        })
    }

    fn pack_out<'a>(&'a self, path: &'a str, to: &'a Path) -> Pending<'a, Result<(), SandboxError>> {
        Box::pin(async move {
            let mut file = tokio::fs::File::create(to).await.map_err(|error| disk_error(to, &error))?;
            self.with(path, async |container| container.read_tree(path, &mut file).await).await?;
            Ok(())
        })
    }

    fn copy_in<'a>(&'a self, from: &'a Path, path: &'a str) -> Pending<'a, Result<(), SandboxError>> {
        Box::pin(async move {
            let mut file = tokio::fs::File::open(from).await.map_err(|error| disk_error(from, &error))?;
            self.with(path, async |container| container.write_file(path, &mut file).await).await
        })
    }

    fn start_units(&self, units: Vec<String>) -> Pending<'_, Result<(), SandboxError>> {
        Box::pin(async move { self.with("", async |container| container.start_units(units).await).await })
    }

    fn save_top<'a>(&'a self, to: &'a Path, most: u64) -> Pending<'a, Result<Duration, SandboxError>> {
        Box::pin(async move {
            let mut container = self.container.write().await;
            let container = container.as_mut().ok_or_else(|| SandboxError::Gone("it was stopped".to_owned()))?;
            container.save_top(to, most).await.map_err(|error| snapshot_error(&error))
        })
    }

    fn processes(&self) -> Pending<'_, Result<Vec<ProcessInfo>, SandboxError>> {
        Box::pin(async move { self.with("", Container::processes).await })
    }

    fn bind_cpus(&self, cpus: &[usize]) {
        let mut set = CpuSet::new();
        for cpu in cpus {
            if set.set(*cpu).is_err() {
                return;
            }
        }
        if cpus.is_empty() {
            return;
        }
        if !self.process.is_alive().unwrap_or(false) {
            return;
        }
        for task in identity::tree(self.process.pid).into_iter().flat_map(threads) {
            if let Err(error) = sched_setaffinity(Pid::from_raw(task), &set) {
                tracing::debug!(task, %error, "a process of a sandbox is not bound to its processors");
            }
        }
    }

    fn memory_mib(&self) -> Pending<'_, Result<u64, SandboxError>> {
        let process = self.process.clone();
        let used = move || match process.is_alive() {
            Ok(true) => identity::memory_mib(&identity::descendants(process.pid)),
            _ => 0,
        };
        Box::pin(async move {
            tokio::task::spawn_blocking(used).await.map_err(|error| SandboxError::Failed(error.to_string()))
        })
    }

    fn exited(&self) -> Pending<'_, String> {
        Box::pin(async move {
            let ended = match self.container.read().await.as_ref() {
                Some(container) => container.exited(),
                None => return "it was stopped".to_owned(),
            };
            ended.await.how
        })
    }

    fn kill(&self) -> Pending<'_, ()> {
        Box::pin(async move {
            // The first of its pid namespace takes all others with it.
            signal_tree(&self.process, Signal::SIGKILL);
        })
    }

    fn stop(&self) -> Pending<'_, Result<(), SandboxError>> {
        Box::pin(async move {
            let Some(container) = self.container.write().await.take() else {
                // It is being stopped, whoever began that. The sender is ours, and does not go away.
                let _ = self.gone.subscribe().wait_for(|gone| *gone).await;
                let left = || SandboxError::Failed("processes of it could not be ended".to_owned());
                return if self.is_gone().await { Ok(()) } else { Err(left()) };
            };
            let (layers, gone) = (self.layers.clone(), self.gone.clone());
            // A task of its own: whoever waits for it may be gone before its end.
            let stopping = tokio::spawn(async move {
                let stopped = container.stop().await;
                gone.send_replace(true);
                tracing::debug!(layers = layers.len(), "a sandbox was stopped");
                stopped
            });
            let stopped = stopping.await.map_err(|error| SandboxError::Failed(error.to_string()))?;
            stopped.map_err(|error| container_error(&error, ""))
        })
    }

    fn is_gone(&self) -> Pending<'_, bool> {
        let mark = self.mark.clone();
        Box::pin(async move {
            // What cannot be looked at is not known to be gone.
            tokio::task::spawn_blocking(move || survivors(&mark).is_empty()).await.unwrap_or(false)
        })
    }
}

impl Rootless {
    /// What the display's own log says goes with it.
    async fn display_error(&self, error: &ScreenError) -> SandboxError {
        let mut message = crate::chain(error);
        if let Ok(DisplayState::Died { log }) = self.with("", Container::display).await {
            message = format!("{message}; its log: {}", crate::tail(&log, 5));
        }
        SandboxError::Display(message)
    }
}

struct XDisplay(ScreenHandle);

impl Display for XDisplay {
    fn step(&self, actions: Vec<Value>, rest: RestRule) -> Pending<'_, Result<Stepped, SandboxError>> {
        Box::pin(async move {
            self.0.step(actions, rest).await.map_err(|error| SandboxError::Display(crate::chain(&error)))
        })
    }
}

/// The inputs of a layer's key, named, for `longhaul layers why`.
#[must_use]
pub fn layer_inputs(kind: LayerKind, parent: &Digest, basis: &LayerBasis, env: &EnvPlan) -> Vec<LayerInput> {
    let hook = match kind {
        LayerKind::Base => None,
        LayerKind::Install => env.pre_start.as_deref(),
        LayerKind::Configure => env.post_start.as_deref(),
    };
    let input = |label: &str, value: String| LayerInput { label: label.to_owned(), value };
    let mut inputs = vec![
        input("parent", parent.to_string()),
        input("arch", basis.arch.clone()),
        input("overlay", basis.overlay_driver.clone()),
        input("hook", hook.unwrap_or_default().to_owned()),
        input("screen", format!("{}x{}", env.width, env.height)),
        input("net", env.net.to_string()),
        input("policy", format!("{:?}", env.hook_policy)),
    ];
    inputs.extend(env.mounts.iter().map(|mount| {
        let mode = if mount.writable { " (writable)" } else { "" };
        input(&format!("mount {}{mode}", mount.target), mount.tree.to_string())
    }));
    inputs.extend(env.accounts.iter().map(|account| {
        let text = serde_json::to_string(account).unwrap_or_default();
        input(&format!("account {}", account.name), text)
    }));
    inputs
}

fn ready(guard: LayerGuard) -> ReadyLayer {
    let manifest = &guard.manifest;
    let (content, rerun) = match &manifest.content {
        LayerContent::File { digest, .. } => (*digest, None),
        // There is no file; its key stands for it.
        LayerContent::Rerun { reason } => (manifest.key, Some(reason.clone())),
    };
    ReadyLayer {
        kind: manifest.kind,
        key: manifest.key,
        content,
        bytes: manifest.bytes(),
        tolerated_exit: manifest.tolerated.as_ref().map(|tolerated| tolerated.exit),
        rerun,
        units: manifest.units.clone(),
        handle: Arc::new(guard),
    }
}

fn layer_file(layer: &ReadyLayer) -> Option<PathBuf> {
    layer.handle.downcast_ref::<LayerGuard>().and_then(LayerGuard::path).map(Path::to_owned)
}

fn bind(view: &View) -> Bind {
    Bind { source: view.source.clone(), target: PathBuf::from(&view.target), writable: view.writable }
}

fn same_device(one: &Path, other: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (one.metadata(), other.metadata()) {
        (Ok(one), Ok(other)) => one.dev() == other.dev(),
        _ => false,
    }
}

/// The threads of a process.
fn threads(pid: i32) -> Vec<i32> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// What runs now passes it on to all that it starts.
fn prefer_for_oom(pid: i32) {
    for pid in identity::tree(pid) {
        let path = format!("/proc/{pid}/oom_score_adj");
        if let Err(error) = fs::write(&path, OOM_SCORE) {
            tracing::debug!(path, %error, "a sandbox is not preferred when memory runs out");
        }
    }
}

fn disk_error(path: &Path, error: &std::io::Error) -> SandboxError {
    SandboxError::Disk(format!("{}: {error}", path.display()))
}

pub(super) fn is_full(message: &str) -> bool {
    message.contains("No space left") || message.contains("quota exceeded")
}

fn store_error(kind: LayerKind, key: &Digest, error: &StoreError) -> SandboxError {
    if error.is_of_the_disk() {
        return SandboxError::Disk(crate::chain(error));
    }
    SandboxError::Layer { kind, of: format!("key {}", key.short()), message: crate::chain(error), log_tail: None }
}

/// A sandbox whose processes stay stopped is of no use; all else costs a snapshot.
fn snapshot_error(error: &SnapshotError) -> SandboxError {
    let message = crate::chain(error);
    match error {
        SnapshotError::Stopped(_) => SandboxError::Gone(message),
        _ => SandboxError::Failed(message),
    }
}

fn container_error(error: &ContainerError, path: &str) -> SandboxError {
    let message = crate::chain(error);
    match error {
        ContainerError::Client(ClientError::Refused { kind, .. }) => match kind {
            HelperFailure::NotFound => SandboxError::NotFound { path: path.to_owned() },
            HelperFailure::Display => SandboxError::Display(message),
            HelperFailure::NoSuchUser | HelperFailure::BadRequest | HelperFailure::Other => {
                SandboxError::Failed(message)
            }
        },
        ContainerError::Client(ClientError::Caller(_)) => SandboxError::Disk(message),
        ContainerError::Scratch(_) if is_full(&message) => SandboxError::Disk(message),
        _ => SandboxError::Gone(message),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use longhaul_core::outcome::FaultClass;

    use super::*;

    fn class(error: &StoreError) -> FaultClass {
        store_error(LayerKind::Install, &Digest::of(b"key"), error).fault().class
    }

    #[test]
    fn a_disk_that_takes_no_copy_of_a_layer_is_the_nodes_fault_and_a_damaged_layer_is_not() {
        let key = Digest::of(b"key");
        let (node, quota) = (io::Error::from_raw_os_error(28), io::Error::from_raw_os_error(122));
        assert_eq!(class(&StoreError::Node { path: "/s".into(), source: node }), FaultClass::NodeDisk);
        assert_eq!(class(&StoreError::Io { path: "/s".into(), source: quota }), FaultClass::NodeDisk);
        assert_eq!(class(&StoreError::NoRoom { path: "/s".into(), key, needed: 2, free: 1 }), FaultClass::NodeDisk);
        let away = io::Error::from_raw_os_error(116);
        assert_eq!(class(&StoreError::Io { path: "/shared".into(), source: away }), FaultClass::LayerBuild);
        assert_eq!(class(&StoreError::Damaged { key, expected: key, found: key }), FaultClass::LayerBuild);
    }
}
