//! Starting and stopping: recovery, sockets, services.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use longhaul_core::time::Millis;
use longhaul_engine::{Engine, Event, Settings, SnapshotError};
use longhaul_proto::access::{KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT, MAX_MESSAGE_BYTES, Secret};
use longhaul_proto::v1::blob_service_server::BlobServiceServer;
use longhaul_proto::v1::control_service_server::ControlServiceServer;
use longhaul_proto::v1::layer_service_server::LayerServiceServer;
use longhaul_proto::v1::relay_service_server::RelayServiceServer;
use longhaul_proto::v1::trajectory_service_server::TrajectoryServiceServer;
use longhaul_proto::v1::worker_service_server::WorkerServiceServer;
use longhaul_store::{OpenError, OpenOptions, ReadError, Reader, SpaceFloor, Store};
use rand::TryRngCore;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Server;
use tonic::transport::server::Router;

use crate::access::{AccessFolder, AccessFolderError, socket_path};
use crate::actor::{Actor, ActorError, Allocations, Terms};
use crate::allocator::{Allocator, SlurmConfig, token_prefix};
use crate::auth::Gate;
use crate::blobs::Blobs;
use crate::control::{Control, Succession};
use crate::layers::Layers;
use crate::message::{Ask, MAILBOX_CAPACITY, Message, now};
use crate::passes::Passes;
use crate::project::Projector;
use crate::relay::Relays;
use crate::session::Sessions;
use crate::trajectory::Trajectories;

/// How long streams get to end after the coordinator has said that it stops.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// How much of one stream may be on its way here: a few pieces of a blob, so that a
/// screenshot does not take a round trip for every 64 KiB of it,
const STREAM_WINDOW: u32 = 4 << 20;

/// and how much of all streams of a connection.
const CONNECTION_WINDOW: u32 = 16 << 20;

/// How many streams a connection may have: every relayed tunnel of a worker is one.
const CONNECTION_STREAMS: u32 = 4096;

/// What is said of a store that was restored from a backup.
const CLOSED: &str = "no episode is begun and no money is granted before `longhaul store accept` says that what the \
                      backup does not know is accepted; workers that live deliver meanwhile";

/// How a coordinator is started.
#[derive(Clone, Debug)]
pub struct Config {
    /// The folder of the store; made if it is not there.
    pub store: PathBuf,
    /// Where to listen beside the unix socket.
    pub listen: Option<Listen>,
    /// The user's folder for sockets (`$XDG_RUNTIME_DIR`), for stores with long paths.
    pub runtime_dir: Option<PathBuf>,
    /// Leases and retries.
    pub engine: Settings,
    /// How often workers are to say that they are there.
    pub heartbeat: Millis,
    /// How much must be left on the store's disk for a write to be taken.
    pub floor: SpaceFloor,
    /// How workers are asked of Slurm, if they are.
    pub slurm: Option<SlurmConfig>,
    /// Which of the coordinators that follow one another over this store it is, if they do: it gives
    /// way to later ones.
    pub generation: Option<u64>,
}

/// Where to listen for other machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The address and port; port 0 takes a free one.
    pub address: SocketAddr,
    /// The name or address under which others reach this machine.
    pub host: String,
}

/// Why a coordinator does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The store cannot be read.
    #[error("the journal of {} cannot be read", path.display())]
    Read {
        /// The store.
        path: PathBuf,
        /// Why.
        #[source]
        source: ReadError,
    },
    /// An event is none that this program knows.
    #[error("event {sequence} of the journal of {} cannot be understood", path.display())]
    Event {
        /// The store.
        path: PathBuf,
        /// Its sequence number.
        sequence: u64,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// The saved state is none that this program knows.
    #[error("the saved state in {} cannot be understood", path.display())]
    Snapshot {
        /// The store.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// The saved state has another format.
    #[error("the saved state in {} was written by another version", path.display())]
    SnapshotFormat {
        /// The store.
        path: PathBuf,
        /// Why.
        #[source]
        source: SnapshotError,
    },
    /// Certificate, token or socket folder.
    #[error(transparent)]
    Access(#[from] AccessFolderError),
    /// A socket cannot be opened.
    #[error("cannot listen on {address}")]
    Listen {
        /// The path or address.
        address: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// TLS cannot be set up.
    #[error("TLS cannot be set up")]
    Tls(#[source] tonic::transport::Error),
    /// Slurm's programs cannot be used.
    #[error("Slurm cannot be asked for workers")]
    Slurm(#[source] longhaul_slurm::Failure),
    /// The folder for what allocations print cannot be made.
    #[error("the folder {} for what allocations print cannot be made", path.display())]
    Logs {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The folder for layers that workers carry to each other cannot be made.
    #[error("the folder {} for layers cannot be made", path.display())]
    Layers {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Workers on other machines cannot reach a coordinator that does not listen for them.
    #[error("workers in allocations cannot reach a coordinator that does not listen for other machines")]
    Unreachable,
    /// The system gives no random bytes.
    #[error("the system gives no random bytes")]
    Random(#[source] rand::rand_core::OsError),
}

/// A coordinator that runs.
#[derive(Debug)]
pub struct Coordinator {
    local_access: PathBuf,
    socket: PathBuf,
    remote_access: Option<PathBuf>,
    remote_address: Option<SocketAddr>,
    store: Reader,
    warnings: Vec<String>,
    mailbox: mpsc::Sender<Message>,
    stop: CancellationToken,
    drained: CancellationToken,
    wanted: CancellationToken,
    actor: JoinHandle<Result<(), ActorError>>,
    servers: Vec<JoinHandle<Result<(), tonic::transport::Error>>>,
    tasks: TaskTracker,
}

impl Coordinator {
    /// Opens the store, replays the journal, and listens.
    ///
    /// # Errors
    ///
    /// The store cannot be opened or understood, or a socket cannot be opened.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let incarnation = rand::rngs::OsRng.try_next_u64().map_err(StartError::Random)?;
        let path = config.store.clone();
        let (engine_settings, floor) = (config.engine, config.floor);
        // Opening recovers the database and replays: seconds, on a thread that may wait.
        let recovered =
            tokio::task::spawn_blocking(move || recover(&path, engine_settings, incarnation, floor)).await.map_err(
                |error| StartError::Listen { address: "the store".to_owned(), source: io::Error::other(error) },
            )??;
        let Recovered { store, engine, projector, replayed, restored } = recovered;
        let mut warnings: Vec<String> = store.warnings().iter().map(ToString::to_string).collect();
        if restored.is_some_and(|incarnation| !is_accepted(&engine, incarnation)) {
            warnings.push(CLOSED.to_owned());
        }

        let uid = nix::unistd::getuid();
        // Absolute, since it is written into a file that others read.
        let root = fs::canonicalize(&config.store)
            .map_err(|source| StartError::Listen { address: config.store.display().to_string(), source })?;
        let access = AccessFolder::open(&root)?;
        let carried = root.join("layers");
        let layers = Layers::open(carried.clone()).map_err(|source| StartError::Layers { path: carried, source })?;
        let socket = socket_path(&root, config.runtime_dir.as_deref(), uid.as_raw())?;
        let unix = listen_unix(&socket)?;
        let tcp = match &config.listen {
            Some(listen) => Some((listen_tcp(listen.address).await?, listen.host.clone())),
            None => None,
        };

        // The socket takes connections from now on; they wait until they are served.
        let (remote_access, remote_address, passes) = match &tcp {
            Some(((_, address), host)) => {
                let passes = access.passes(host, address.port())?;
                (Some(access.write_remote(host, address.port())?), Some(*address), Some(passes))
            }
            None => (None, None, None),
        };

        let store = Arc::new(store);
        let (mailbox, receiver) = mpsc::channel(MAILBOX_CAPACITY);
        let stop = CancellationToken::new();
        let terms = Terms {
            lease_ttl: config.engine.lease_ttl,
            heartbeat: config.heartbeat,
            incarnation: format!("{:016x}", store.incarnation()),
            restored,
        };
        let (allocations, allocator) = match config.slurm {
            None => (None, None),
            Some(slurm) => {
                let passes = passes.clone().ok_or(StartError::Unreachable)?;
                let (allocations, allocator) = ask_slurm(slurm, passes, incarnation, mailbox.clone()).await?;
                (Some(allocations), Some(allocator))
            }
        };
        let actor = Actor::new(engine, Arc::clone(&store), projector, terms, receiver, replayed, allocations);
        let (drained, routes, files) = (actor.drained(), actor.routes(), actor.files());
        let actor = tokio::spawn(actor.run(stop.clone()));

        let (tasks, wanted) = (TaskTracker::new(), CancellationToken::new());
        if let Some(allocator) = allocator {
            tasks.spawn(allocator.run(stop.clone()));
        }
        tasks.spawn(files.watch(mailbox.clone(), stop.clone()));
        let services = Services {
            sessions: Sessions {
                mailbox: mailbox.clone(),
                store: Arc::clone(&store),
                next_session: Arc::new(AtomicU64::new(1)),
                stop: stop.clone(),
                tasks: tasks.clone(),
            },
            blobs: Blobs { store: Arc::clone(&store) },
            layers,
            relays: Relays::new(routes, stop.clone(), tasks.clone()),
            trajectories: Trajectories { mailbox: mailbox.clone(), store: Arc::clone(&store), tasks: tasks.clone() },
            control: Control {
                mailbox: mailbox.clone(),
                store: Arc::clone(&store),
                started_at: now(),
                tasks: tasks.clone(),
                succession: config.generation.map(|generation| Succession { generation, wanted: wanted.clone() }),
            },
        };
        let mut servers = Vec::new();
        let router = services.router(builder(), &Gate::Peer { uid: uid.as_raw() });
        let stopped = stop.clone().cancelled_owned();
        servers.push(tokio::spawn(router.serve_with_incoming_shutdown(UnixListenerStream::new(unix), stopped)));
        let local_access = access.write_local(&socket)?;
        if let (Some(((listener, _), _)), Some(passes)) = (tcp, passes) {
            let builder = builder().tls_config(access.server_tls()).map_err(StartError::Tls)?;
            let router = services.router(builder, &Gate::token(access.token(), passes));
            let stopped = stop.clone().cancelled_owned();
            servers.push(tokio::spawn(router.serve_with_incoming_shutdown(TcpListenerStream::new(listener), stopped)));
        }
        let store = store.reader().clone();
        Ok(Self {
            local_access,
            socket,
            remote_access,
            remote_address,
            store,
            warnings,
            mailbox,
            stop,
            drained,
            wanted,
            actor,
            servers,
            tasks,
        })
    }

    /// The access file for programs of this user on this machine.
    #[must_use]
    pub fn local_access(&self) -> &Path {
        &self.local_access
    }

    /// The access file for other machines, if it listens for them.
    #[must_use]
    pub fn remote_access(&self) -> Option<&Path> {
        self.remote_access.as_deref()
    }

    /// Where it listens for other machines.
    #[must_use]
    pub const fn remote_address(&self) -> Option<SocketAddr> {
        self.remote_address
    }

    /// Reads the store; sees every write once it is durable.
    #[must_use]
    pub const fn reader(&self) -> &Reader {
        &self.store
    }

    /// What a person should know about the store.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Takes keys of model vendors, by name, for workers: kept in memory only, beside those that
    /// are known or in their place.
    pub async fn put_secrets(&self, secrets: Vec<(String, Secret)>) {
        let (reply, told) = oneshot::channel();
        if self.mailbox.send(Message::Ask(Ask::PutSecrets { secrets, reply })).await.is_ok() {
            // An actor that stopped tells nobody.
            let _ = told.await;
        }
    }

    /// Gives out no more leases, and waits until nothing is live.
    pub async fn drain(&self, reason: &str) {
        let message = Message::Drain { reason: reason.to_owned() };
        if self.mailbox.send(message).await.is_ok() {
            tokio::select! {
                () = self.drained.cancelled() => {}
                // An actor that stopped drains nothing.
                () = self.mailbox.closed() => {}
            }
        }
    }

    /// Ends every allocation that this store asked Slurm for, those that wait and those that
    /// run; returns when Slurm was told so, or could not be.
    pub async fn end_allocations(&self) {
        let (done, told) = oneshot::channel();
        if self.mailbox.send(Message::EndAllocations { done }).await.is_ok() {
            // An actor that stopped tells nobody.
            let _ = told.await;
        }
    }

    /// Waits until the next coordinator of this store wants it; see [`Config::generation`].
    pub async fn succeeded(&self) {
        self.wanted.cancelled().await;
    }

    /// Waits until the coordinator has stopped by itself, which it does only on failure.
    pub async fn failed(&self) {
        self.mailbox.closed().await;
    }

    /// Stops: sessions end, what was taken is stored, the socket is removed. Whatever is
    /// live stays so, and is found again by the next coordinator on this store.
    ///
    /// # Errors
    ///
    /// The actor had failed.
    pub async fn stop(self) -> Result<(), ActorError> {
        self.stop.cancel();
        let outcome = match self.actor.await {
            Ok(outcome) => outcome,
            Err(error) => Err(ActorError::Panicked(error)),
        };
        for mut server in self.servers {
            // A client that keeps its stream open does not keep the coordinator.
            match tokio::time::timeout(CLOSE_LIMIT, &mut server).await {
                Ok(Ok(Ok(()))) => {}
                Ok(Ok(Err(error))) => tracing::warn!(%error, "a server ended with an error"),
                Ok(Err(error)) => tracing::warn!(%error, "a server panicked"),
                Err(_) => server.abort(),
            }
        }
        // They hold the store: once they have ended, it is free for the next coordinator.
        self.tasks.close();
        if tokio::time::timeout(CLOSE_LIMIT, self.tasks.wait()).await.is_err() {
            tracing::warn!("a session or a reader of the store does not end");
        }
        if let Err(error) = fs::remove_file(&self.socket) {
            tracing::debug!(%error, "the socket was not removed");
        }
        outcome
    }
}

/// Finds Slurm's programs, and gets the task ready that runs them.
async fn ask_slurm(
    mut slurm: SlurmConfig,
    passes: Passes,
    incarnation: u64,
    mailbox: mpsc::Sender<Message>,
) -> Result<(Allocations, Allocator<longhaul_slurm::System>), StartError> {
    let client = longhaul_slurm::Client::connect(longhaul_slurm::System::default(), incarnation, slurm.limits)
        .await
        .map_err(StartError::Slurm)?;
    for config in &mut slurm.pools {
        let folder = &config.template.output_folder;
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|source| StartError::Logs { path: folder.clone(), source })?;
        // Of this incarnation alone: a store that was restored from a backup counts submissions
        // from an old number, and must not take those of its other life for its own.
        config.pool.token_prefix = token_prefix(incarnation);
    }
    let (orders, receiver) = mpsc::unbounded_channel();
    let pools = slurm.pools.iter().map(|config| config.pool.clone()).collect();
    let allocations = Allocations { pools, orders, passes: passes.clone() };
    Ok((allocations, Allocator::new(client, slurm, receiver, mailbox, passes)))
}

struct Services {
    sessions: Sessions,
    blobs: Blobs,
    layers: Layers,
    relays: Relays,
    trajectories: Trajectories,
    control: Control,
}

impl Services {
    fn router(&self, mut builder: Server, gate: &Gate) -> Router {
        let sessions = WorkerServiceServer::new(self.sessions.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let blobs = BlobServiceServer::new(self.blobs.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let layers = LayerServiceServer::new(self.layers.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let relays = RelayServiceServer::new(self.relays.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let trajectories = TrajectoryServiceServer::new(self.trajectories.clone());
        let control = ControlServiceServer::new(self.control.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        builder
            .add_service(InterceptedService::new(sessions, gate.clone()))
            .add_service(InterceptedService::new(blobs, gate.clone()))
            .add_service(InterceptedService::new(layers, gate.clone()))
            .add_service(InterceptedService::new(relays, gate.clone()))
            .add_service(InterceptedService::new(trajectories, gate.clone()))
            .add_service(InterceptedService::new(control, gate.clone()))
    }
}

fn builder() -> Server {
    Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(CONNECTION_STREAMS)
}

struct Recovered {
    store: Store,
    engine: Engine,
    projector: Projector,
    replayed: u64,
    /// The incarnation, if it began with a backup.
    restored: Option<u64>,
}

/// Whether somebody has accepted the backup that an incarnation began with.
fn is_accepted(engine: &Engine, incarnation: u64) -> bool {
    let known = engine.state().restored.as_ref();
    known.is_some_and(|known| known.incarnation == incarnation && known.accepted.is_some())
}

/// The newest snapshot, and every event after it.
fn recover(path: &Path, settings: Settings, incarnation: u64, floor: SpaceFloor) -> Result<Recovered, StartError> {
    let store = Store::open(path, &OpenOptions { floor, ..OpenOptions::new(incarnation) })?;
    let read = |source| StartError::Read { path: path.to_owned(), source };
    let (mut engine, through) = match store.snapshot().map_err(read)? {
        None => (Engine::new(settings), 0),
        Some(saved) => {
            let snapshot = serde_json::from_slice(&saved.state)
                .map_err(|source| StartError::Snapshot { path: path.to_owned(), source })?;
            let engine = Engine::from_snapshot(settings, snapshot)
                .map_err(|source| StartError::SnapshotFormat { path: path.to_owned(), source })?;
            (engine, saved.through)
        }
    };
    let entries = store.journal(through).map_err(read)?;
    let replayed = u64::try_from(entries.len()).unwrap_or(u64::MAX);
    for entry in entries {
        let event: Event = serde_json::from_slice(&entry.event).map_err(|source| StartError::Event {
            path: path.to_owned(),
            sequence: entry.sequence,
            source,
        })?;
        engine.apply(&event);
    }
    let mut live = Vec::new();
    for (_, lease, _) in engine.state().leases() {
        live.extend(store.attempt(lease.attempt).map_err(read)?);
    }
    let projector = Projector::new(live, store.layers().map_err(read)?);
    let restored = store.is_restored().map_err(read)?.then(|| store.incarnation());
    Ok(Recovered { store, engine, projector, replayed, restored })
}

/// A socket that only this user may open: its folder is private, and so is it.
fn listen_unix(path: &Path) -> Result<UnixListener, StartError> {
    let error = |source| StartError::Listen { address: path.display().to_string(), source };
    // The store's lock says that whoever made the old one is gone.
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => return Err(error(source)),
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(error)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(error)?;
    Ok(listener)
}

async fn listen_tcp(address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let error = |source| StartError::Listen { address: address.to_string(), source };
    let listener = TcpListener::bind(address).await.map_err(error)?;
    let bound = listener.local_addr().map_err(error)?;
    Ok((listener, bound))
}
