//! The sandbox interface: all that the rest of the worker knows of what an attempt runs in.
//!
//! A [`Driver`] finds and builds layers and starts sandboxes from them; a [`Sandbox`] runs
//! commands, copies files and has a [`Display`]. The rootless container
//! ([`container::ContainerDriver`]) is the first driver; nothing above this module knows
//! which one it has, so the traits are object-safe and their futures are boxed.

mod bases;
pub mod container;
mod program;

use std::any::Any;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use longhaul_apptainer::Gpus;
use longhaul_core::digest::Digest;
use longhaul_core::helper::{CommandSpec, ProcessInfo};
use longhaul_core::outcome::{Fault, FaultClass};
use longhaul_core::plan::{AccountPlan, EnvPlan, LayerKind};
use serde_json::Value;

use crate::carry::CarriedLayer;
use crate::screen::{RestRule, Stepped};

/// A boxed future of the traits below.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A failure of a sandbox or of its driver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SandboxError {
    /// The machine lacks something that the driver needs.
    #[error("{0}")]
    Unfit(String),
    /// The path is not there inside the sandbox.
    #[error("{path} is not there in the sandbox")]
    NotFound {
        /// The path inside.
        path: String,
    },
    /// The sandbox did not start, or is not there any more.
    #[error("the sandbox is gone: {0}")]
    Gone(String),
    /// The display did not come up or went away.
    #[error("the display failed: {0}")]
    Display(String),
    /// A layer could not be built or read.
    #[error("the {kind} layer of {of} failed: {message}", kind = kind.name())]
    Layer {
        /// Which of the env's layers.
        kind: LayerKind,
        /// The env, or the key.
        of: String,
        /// What happened.
        message: String,
        /// The end of the hook's log.
        log_tail: Option<String>,
    },
    /// The node's disk is full or failed.
    #[error("the node's disk failed: {0}")]
    Disk(String),
    /// One operation failed; the sandbox lives.
    #[error("{0}")]
    Failed(String),
}

impl SandboxError {
    /// The failure as the fault that an attempt ends with.
    #[must_use]
    pub fn fault(&self) -> Fault {
        let (class, log_tail) = match self {
            Self::Display(_) => (FaultClass::Display, None),
            Self::Layer { log_tail, .. } => (FaultClass::LayerBuild, log_tail.clone()),
            Self::Disk(_) => (FaultClass::NodeDisk, None),
            Self::Unfit(_) | Self::Gone(_) | Self::NotFound { .. } | Self::Failed(_) => {
                (FaultClass::SandboxStart, None)
            }
        };
        Fault { class, message: self.to_string(), log_tail }
    }
}

/// What the keys of layers depend on beside the env: [`longhaul_core::plan::layer_key`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerBasis {
    /// The content digest of the base image.
    pub base: Digest,
    /// The machine's architecture.
    pub arch: String,
    /// What stacks the layers; layers of one do not fit another.
    pub overlay_driver: String,
}

/// A layer that is there, kept from eviction for as long as this lives.
#[derive(Clone)]
pub struct ReadyLayer {
    /// Which of the env's layers.
    pub kind: LayerKind,
    /// Its key.
    pub key: Digest,
    /// The digest of its file.
    pub content: Digest,
    /// The size of its file.
    pub bytes: u64,
    /// The exit code of its hook, if the policy let a failing one pass.
    pub tolerated_exit: Option<i32>,
    /// Why its hook has to run again for each attempt, in place of the layer.
    pub rerun: Option<String>,
    /// Services to be started with each sandbox, as a boot would, in order.
    pub units: Vec<String>,
    /// The driver's own view of it.
    pub handle: Arc<dyn Any + Send + Sync>,
}

impl std::fmt::Debug for ReadyLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadyLayer")
            .field("kind", &self.kind)
            .field("key", &self.key)
            .field("content", &self.content)
            .finish_non_exhaustive()
    }
}

/// A folder of the node that is seen inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The folder.
    pub source: PathBuf,
    /// The absolute path inside.
    pub target: String,
    /// Whether it may be written to from inside.
    pub writable: bool,
}

/// A layer to be built.
#[derive(Clone, Debug)]
pub struct LayerRequest {
    /// Which of the env's layers.
    pub kind: LayerKind,
    /// Its key.
    pub key: Digest,
    /// The env.
    pub env: EnvPlan,
    /// The env's mounts; tasks are hidden.
    pub views: Vec<View>,
    /// The layers below it, lowest first.
    pub parents: Vec<ReadyLayer>,
    /// Variables that the hook sees (proxy settings).
    pub hook_env: BTreeMap<String, String>,
}

/// A sandbox to be started.
#[derive(Clone, Debug)]
pub struct SandboxRequest {
    /// A name that no other live sandbox of the node has.
    pub id: String,
    /// The env whose base image it stands on; the usual one if it is none's.
    pub env: Option<String>,
    /// The layers over the base, lowest first.
    pub layers: Vec<ReadyLayer>,
    /// What is laid over them, lowest first: saved tops ([`Sandbox::save_top`]) of earlier sandboxes.
    pub tops: Vec<PathBuf>,
    /// The folders that are seen inside.
    pub views: Vec<View>,
    /// Accounts of the env: made here where there are no layers, which hold them otherwise.
    pub accounts: Vec<AccountPlan>,
    /// Whether it has a way out to the network.
    pub net: bool,
    /// The graphics processors that are its own, if it has any.
    pub gpus: Option<Gpus>,
}

/// What a command left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandResult {
    /// Its exit code, or 128 and the signal's number.
    pub code: i32,
    /// Whether its time limit ended it.
    pub timed_out: bool,
    /// The end of its output, unless that went to a file.
    pub output: String,
}

/// The screen of a sandbox, with its keyboard and pointer. After a failure it is of no use.
pub trait Display: Send + Sync {
    /// Carries out the actions (none, to only look), waits until the screen is at rest, and
    /// takes its picture.
    fn step(&self, actions: Vec<Value>, rest: RestRule) -> Pending<'_, Result<Stepped, SandboxError>>;
}

/// A live sandbox. What is dropped without [`Sandbox::stop`] is ended all the same.
pub trait Sandbox: Send + Sync {
    /// Runs a command to its end. Dropping the future does not end the command.
    fn run(&self, command: CommandSpec) -> Pending<'_, Result<CommandResult, SandboxError>>;
    /// Brings the display up.
    fn start_display(&self, width: u16, height: u16) -> Pending<'_, Result<Arc<dyn Display>, SandboxError>>;
    /// Copies a file from inside to a file of the node.
    fn copy_out<'a>(&'a self, path: &'a str, to: &'a Path) -> Pending<'a, Result<(), SandboxError>>;
    /// Copies no more than so many bytes of the end of a file from inside to a file of the node.
    fn copy_end<'a>(&'a self, path: &'a str, most: usize, to: &'a Path) -> Pending<'a, Result<(), SandboxError>>;
    /// Packs a file or folder from inside as a tar file of the node.
    fn pack_out<'a>(&'a self, path: &'a str, to: &'a Path) -> Pending<'a, Result<(), SandboxError>>;
    /// Copies a file of the node to the inside.
    fn copy_in<'a>(&'a self, from: &'a Path, path: &'a str) -> Pending<'a, Result<(), SandboxError>>;
    /// Starts services in order, as a boot would.
    fn start_units(&self, units: Vec<String>) -> Pending<'_, Result<(), SandboxError>>;
    /// Packs all that was written inside as a file of the node, of at most so many bytes, while what runs
    /// inside is stopped. Says for how long it was.
    fn save_top<'a>(&'a self, to: &'a Path, most: u64) -> Pending<'a, Result<Duration, SandboxError>> {
        let _ = (to, most);
        Box::pin(async { Err(SandboxError::Failed("this kind of sandbox saves no top".to_owned())) })
    }
    /// What runs inside.
    fn processes(&self) -> Pending<'_, Result<Vec<ProcessInfo>, SandboxError>>;
    /// Binds its processes, and those that they start, to these processors of the node.
    fn bind_cpus(&self, cpus: &[usize]);
    /// The memory that it uses, in MiB: each process's own, and its share of what is shared.
    fn memory_mib(&self) -> Pending<'_, Result<u64, SandboxError>>;
    /// Resolves when it is gone, with what is known of why.
    fn exited(&self) -> Pending<'_, String>;
    /// Ends it at once, whatever it does.
    fn kill(&self) -> Pending<'_, ()>;
    /// Ends it and removes what it had written.
    fn stop(&self) -> Pending<'_, Result<(), SandboxError>>;
    /// Whether nothing of it lives: asked when its stop has failed.
    fn is_gone(&self) -> Pending<'_, bool> {
        Box::pin(async { true })
    }
}

/// What finds and builds layers, and starts sandboxes.
pub trait Driver: Send + Sync {
    /// What the keys of an env's layers depend on; the base image that it stands on is made
    /// if it is not there.
    fn basis<'a>(&'a self, env: &'a str) -> Pending<'a, Result<LayerBasis, SandboxError>>;
    /// The layer of this key, verified and held, if it is there.
    fn find_layer(&self, kind: LayerKind, key: Digest) -> Pending<'_, Result<Option<ReadyLayer>, SandboxError>>;
    /// A layer's manifest and file, so that another node can be given them; none if this
    /// driver's layers stay where they are.
    fn carry_layer(&self, layer: &ReadyLayer) -> Pending<'_, Result<Option<CarriedLayer>, SandboxError>> {
        let _ = layer;
        Box::pin(async { Ok(None) })
    }
    /// Takes a layer that another node has built; its file is moved.
    fn take_layer(&self, kind: LayerKind, layer: CarriedLayer) -> Pending<'_, Result<(), SandboxError>> {
        let _ = (kind, layer);
        Box::pin(async { Ok(()) })
    }
    /// Builds and publishes a layer.
    fn build_layer(&self, request: LayerRequest) -> Pending<'_, Result<ReadyLayer, SandboxError>>;
    /// Starts a sandbox.
    fn start(&self, request: SandboxRequest) -> Pending<'_, Result<Arc<dyn Sandbox>, SandboxError>>;
    /// Removes a folder of this worker that sandboxes may have written to, under whatever accounts.
    fn remove<'a>(&'a self, folder: &'a Path) -> Pending<'a, Result<(), SandboxError>>;
    /// Ends and removes the sandboxes that dead workers of this node left, and nothing else.
    fn clean(&self) -> Pending<'_, Result<(), SandboxError>>;
}
