//! The worker's session with its coordinator: dialled, kept, lost and dialled again, while
//! episodes go on.

pub(crate) mod actor;
pub(crate) mod delivery;
pub(crate) mod desk;
pub(crate) mod dial;
pub(crate) mod escrow;
mod hearing;
pub(crate) mod prepare;

use std::io;
use std::path::Path;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use longhaul_proto::access::{Access, Address};
use longhaul_proto::{PROTOCOL_VERSION, v1};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{mpsc, watch};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Uri};
use tonic::{Request, Status};
use tower::service_fn;

use crate::backoff::Backoff;
use crate::config::{Endpoint, WorkerConfig};
use crate::error::WorkerError;
use crate::guard::NodeCapacity;

/// How long a connection may take to come about.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Until the coordinator says otherwise.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(5);

/// The waits before the coordinator is dialled again.
pub(crate) const REDIAL: Backoff = Backoff::between(Duration::from_millis(300), Duration::from_secs(10));

/// How long the coordinator gets to hear the goodbye.
pub(crate) const GOODBYE_LIMIT: Duration = Duration::from_secs(3);

/// What a worker says when it says hello.
pub(crate) struct Introduction<'a> {
    pub(crate) config: &'a WorkerConfig,
    pub(crate) capacity: NodeCapacity,
    /// The attempts that it holds.
    pub(crate) live: Vec<v1::AttemptRef>,
    /// Why it takes no leases now; empty if it does.
    pub(crate) unfit: String,
    /// Whether it says hello again when that is over.
    pub(crate) preparing: bool,
}

impl Introduction<'_> {
    pub(crate) fn hello(self) -> v1::Hello {
        let Self { config, capacity, live, unfit, preparing } = self;
        v1::Hello {
            protocol_version: PROTOCOL_VERSION,
            worker_id: config.id.to_string(),
            hostname: config.hostname.clone(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            cpu_millis: capacity.cpu_millis,
            memory_mib: capacity.memory_mib,
            gpus: capacity.gpus,
            max_slots: capacity.max_slots,
            live,
            slurm_job_id: config.slurm_job_id.clone().unwrap_or_default(),
            allocation: config.allocation.clone(),
            unfit,
            preparing,
        }
    }
}

/// A connection that dials itself when it is used, and adds the token.
pub type Transport = InterceptedService<Channel, Bearer>;

/// Adds the bearer token to each call.
#[derive(Clone)]
pub struct Bearer(Option<MetadataValue<Ascii>>);

// By hand, so that a token is never printed.
impl std::fmt::Debug for Bearer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bearer")
    }
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = &self.0 {
            request.metadata_mut().insert("authorization", value.clone());
        }
        Ok(request)
    }
}

/// A transport to the coordinator; nothing is dialled yet.
///
/// # Errors
///
/// The endpoint is not one, or its certificate cannot be used.
pub fn transport(endpoint: &Endpoint) -> Result<Transport, WorkerError> {
    let wrong = |reason: String| WorkerError::Endpoint { endpoint: endpoint.to_string(), reason };
    let prepared = |target: tonic::transport::Endpoint| {
        target
            .connect_timeout(CONNECT_LIMIT)
            .http2_keep_alive_interval(Duration::from_secs(10))
            .keep_alive_timeout(Duration::from_secs(20))
            .keep_alive_while_idle(true)
    };
    let (channel, token) = match endpoint {
        Endpoint::Unix { path, token } => {
            let target = prepared(tonic::transport::Endpoint::from_static("http://longhaul.invalid"));
            let path = path.clone();
            let channel = target.connect_with_connector_lazy(service_fn(move |_: Uri| {
                let path = path.clone();
                async move { UnixStream::connect(path).await.map(TokioIo::new) }
            }));
            (channel, token.as_deref())
        }
        Endpoint::Tls { url, ca_pem, server_name, token, access } => {
            let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca_pem));
            if let Some(name) = server_name {
                tls = tls.domain_name(name);
            }
            let target =
                tonic::transport::Endpoint::from_shared(url.clone()).map_err(|error| wrong(error.to_string()))?;
            if target.uri().scheme_str() != Some("https") {
                return Err(wrong("over TCP it must be https://HOST:PORT".to_owned()));
            }
            let target = prepared(target).tls_config(tls).map_err(|error| wrong(crate::chain(&error)))?;
            let channel = match access.clone() {
                None => target.connect_lazy(),
                Some(access) => target.connect_with_connector_lazy(service_fn(move |last: Uri| {
                    let access = access.clone();
                    async move { connect(&access, &last).await.map(TokioIo::new) }
                })),
            };
            (channel, Some(token.as_str()))
        }
    };
    let bearer = token
        .map(|token| format!("Bearer {token}").parse())
        .transpose()
        .map_err(|_| wrong("the token holds bytes that a header cannot".to_owned()))?;
    Ok(InterceptedService::new(channel, Bearer(bearer)))
}

/// Connects to where the access file says that the coordinator is now, or was last.
async fn connect(access: &Path, last: &Uri) -> io::Result<TcpStream> {
    let known = (last.host().unwrap_or_default().trim_matches(['[', ']']).to_owned(), last.port_u16().unwrap_or(443));
    let file = access.to_owned();
    // On a shared disk that hangs, reading may take for ever: on a thread that may wait, and
    // not for long.
    let reading = tokio::task::spawn_blocking(move || Access::read(&file).map(|access| access.address));
    let (host, port) = match tokio::time::timeout(CONNECT_LIMIT, reading).await {
        Ok(Ok(Ok(Address::Tls { host, port, .. }))) => (host, port),
        Ok(Ok(Err(error))) => {
            // It is being written anew.
            tracing::debug!(error = %crate::chain(&error), "the access file cannot be read");
            known
        }
        Ok(Ok(Ok(Address::Unix { .. })) | Err(_)) | Err(_) => known,
    };
    let connecting = TcpStream::connect((host, port));
    let stream = tokio::time::timeout(CONNECT_LIMIT, connecting).await.map_err(|_| io::ErrorKind::TimedOut)??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The session as those see it who send over it.
#[derive(Clone, Debug)]
pub(crate) struct Uplink {
    /// Counts sessions.
    pub(crate) generation: u64,
    /// Steps, logs, ends, claims: everything but heartbeats, which have a way of their own.
    pub(crate) bulk: mpsc::Sender<v1::FromWorker>,
}

impl Uplink {
    /// Whether all that was handed to it is on its way.
    pub(crate) fn is_drained(&self) -> bool {
        self.bulk.capacity() == self.bulk.max_capacity()
    }
}

/// The session there is now, if there is one.
pub(crate) type Link = watch::Receiver<Option<Uplink>>;

/// Wraps what goes up.
pub(crate) fn up(message: v1::from_worker::Message) -> v1::FromWorker {
    v1::FromWorker { message: Some(message) }
}

/// Waits for a session.
pub(crate) async fn connected(link: &mut Link) -> Uplink {
    loop {
        if let Some(uplink) = link.borrow_and_update().clone() {
            return uplink;
        }
        if link.changed().await.is_err() {
            // The worker is ending; whoever waits is dropped with it.
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
