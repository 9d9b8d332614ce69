//! What a worker is told when it starts: where it may write, what it may use, whom it serves.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longhaul_apptainer::{BaseDefinition, Gpus};
use longhaul_core::ids::WorkerId;
use longhaul_proto::access::{Access, Address, TLS_SERVER_NAME};

/// What a worker needs to know. All of it comes from the command line, the settings
/// file and the batch system; the worker reads no environment variable itself.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// The worker's id: the same over all its sessions, a new one for each process.
    pub id: WorkerId,
    /// The node's name, for people.
    pub hostname: String,
    /// A folder on the node's own disk; several workers may share it.
    pub scratch: PathBuf,
    /// The folder that holds layers; it may be shared between nodes.
    pub layers: PathBuf,
    /// Whether layers are carried to other nodes and from them through the coordinator: where
    /// the layer folder is on this node's own disk, and other nodes have their own.
    pub carry_layers: bool,
    /// The image that envs stand on, and verifiers.
    pub image: PathBuf,
    /// Envs that stand on another image, by name; it is made when the first of them needs it.
    pub bases: BTreeMap<String, BaseDefinition>,
    /// The program that is bound into sandboxes as the helper; read once, at the start.
    pub helper_program: PathBuf,
    /// What of the node may be used.
    pub limits: NodeLimits,
    /// The graphics processors that envs may ask for, if there are any.
    pub gpus: Option<Gpus>,
    /// Files with certificate authorities (PEM) that model vendors may have their certificates
    /// from, beside those that the system trusts.
    pub certificates: Vec<PathBuf>,
    /// Variables that hooks of an env with a network see (proxy settings).
    pub hook_env: BTreeMap<String, String>,
    /// The job it runs in, if Slurm started it.
    pub slurm_job_id: Option<String>,
    /// The allocation that the coordinator asked for and this worker runs in, if it is in one.
    pub allocation: Option<longhaul_proto::v1::Allocation>,
    /// How long running attempts get to end in order after the first signal.
    pub grace: Duration,
    /// How long a verifier may run.
    pub verify_limit: Duration,
    /// How long an episode is kept parked before its sandbox is given up.
    pub park_limit: Duration,
    /// How long a screen is given to come out as it was recorded, where an attempt goes on where an
    /// earlier one was cut off; four times as long for the first one.
    pub replay_patience: Duration,
}

/// What of a node a worker may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLimits {
    /// Processors in thousandths; what the node has, if absent.
    pub cpu_millis: Option<u32>,
    /// Memory in MiB; most of what the node has, if absent.
    pub memory_mib: Option<u64>,
    /// The most attempts at once, whatever the resources; 0 is no such limit.
    pub max_slots: u32,
    /// The most sandboxes that are on their way up at once.
    pub starts: usize,
    /// The most bytes that cached blobs and bundles take on the node's disk.
    pub cache_bytes: u64,
    /// No lease is taken, and no attempt goes on, with less free disk than this, in MiB.
    pub disk_floor_mib: u64,
    /// The most bytes of steps and screenshots that wait for the coordinator, over all attempts;
    /// an attempt that would pass it waits.
    pub spool_bytes: u64,
    /// The most steps of one attempt that run ahead of the coordinator's acknowledgement.
    pub spool_steps: u32,
    /// How long what Apptainer is called for may take.
    pub calls: longhaul_apptainer::Limits,
}

impl Default for NodeLimits {
    fn default() -> Self {
        Self {
            cpu_millis: None,
            memory_mib: None,
            max_slots: 0,
            starts: 16,
            cache_bytes: 20 * 1024 * 1024 * 1024,
            disk_floor_mib: 2048,
            spool_bytes: 4 * 1024 * 1024 * 1024,
            spool_steps: 200,
            calls: longhaul_apptainer::Limits::default(),
        }
    }
}

/// How the coordinator is reached.
#[derive(Clone)]
pub enum Endpoint {
    /// A unix socket on this machine; its file mode is the protection.
    Unix {
        /// The socket.
        path: PathBuf,
        /// A token, where the coordinator asks for one even here.
        token: Option<String>,
    },
    /// TCP with TLS and a bearer token.
    Tls {
        /// `https://HOST:PORT`.
        url: String,
        /// The certificate authority that the coordinator's certificate comes from, as PEM.
        ca_pem: String,
        /// The name in its certificate, where it is not the host of the URL.
        server_name: Option<String>,
        /// The token.
        token: String,
        /// The access file that says so, read again at each connection: a coordinator that was
        /// started again may listen at another host or port, with the same authority and token.
        access: Option<PathBuf>,
    },
}

impl Endpoint {
    /// The endpoint that an access file names, which was read from `file`.
    #[must_use]
    pub fn of(access: &Access, file: &Path) -> Self {
        match &access.address {
            Address::Unix { path } => Self::Unix { path: path.clone(), token: None },
            Address::Tls { ca_pem, token, .. } => Self::Tls {
                url: format!("https://{}", access.address),
                ca_pem: ca_pem.clone(),
                server_name: Some(TLS_SERVER_NAME.to_owned()),
                token: token.expose().to_owned(),
                access: Some(file.to_owned()),
            },
        }
    }
}

// By hand, so that a token is never printed.
impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix { path, .. } => write!(f, "unix:{}", path.display()),
            Self::Tls { url, .. } => f.write_str(url),
        }
    }
}
