//! How a client reaches a coordinator: the access file, and the connection made from it.
//!
//! `longhaul serve` (and `run`, for its own worker) writes the file with mode 0600; who
//! can read it may command the coordinator.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Status};

/// The version of the access file's form.
pub const ACCESS_VERSION: u32 = 1;

/// The name in every coordinator's certificate. Clients check it in place of the
/// address, so that a coordinator that moves needs no other certificate.
pub const TLS_SERVER_NAME: &str = "longhaul.coordinator";

/// The most that one gRPC message may hold: a chunk of a blob and what surrounds it.
pub const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// The most that an answer to a person may hold: an episode with all of its attempts, or a record
/// that was imported, which came in no message.
pub const MAX_ANSWER_BYTES: usize = 512 * 1024 * 1024;

/// How long a connection may be silent before it is probed, on both sides.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// How long a probe may stay without an answer before the connection counts as dead.
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The name of the access file of an allocation's task, in the folder of its submission.
#[must_use]
pub fn pass_file(task: u32) -> String {
    format!("{task}.json")
}

/// A secret text: never shown by `Debug`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    #[must_use]
    pub const fn new(text: String) -> Self {
        Self(text)
    }

    /// The secret itself.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(...)")
    }
}

/// Where a coordinator listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum Address {
    /// A unix socket on this machine; the peer's user id is the proof.
    Unix {
        /// The socket's path.
        path: PathBuf,
    },
    /// TCP with TLS; the token is the proof.
    Tls {
        /// Name or number of the host.
        host: String,
        /// The port.
        port: u16,
        /// The certificate of the authority that signed the coordinator's, in PEM.
        ca_pem: String,
        /// The bearer token.
        token: Secret,
    },
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix { path } => write!(f, "{}", path.display()),
            Self::Tls { host, port, .. } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tls { host, port, .. } => write!(f, "{host}:{port}"),
        }
    }
}

/// The content of an access file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Access {
    /// [`ACCESS_VERSION`].
    pub version: u32,
    /// Where the coordinator listens.
    pub address: Address,
}

/// Why an access file cannot be used, or the coordinator that it names not be reached.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The file cannot be read.
    #[error("the access file {} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The file is not an access file.
    #[error("{} is not an access file", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// The file is of another version.
    #[error("the access file {} has version {found}, and this program reads version {ACCESS_VERSION}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The address, certificate or token is malformed.
    #[error("the access data for {address} is malformed: {reason}")]
    Malformed {
        /// The address.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Nobody answers there.
    #[error("no coordinator answers at {address}")]
    Unreachable {
        /// The address.
        address: String,
        /// What the transport said.
        #[source]
        source: tonic::transport::Error,
    },
}

/// A connection to a coordinator that says who it is with every request.
pub type Connection = InterceptedService<Channel, Bearer>;

/// Adds the bearer token, if there is one, to every request.
#[derive(Clone)]
pub struct Bearer(Option<MetadataValue<Ascii>>);

impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bearer(...)")
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

impl Access {
    /// The access data for an address.
    #[must_use]
    pub const fn new(address: Address) -> Self {
        Self { version: ACCESS_VERSION, address }
    }

    /// Reads an access file.
    ///
    /// # Errors
    ///
    /// It cannot be read, or is not an access file of this version.
    pub fn read(path: &Path) -> Result<Self, AccessError> {
        let text = std::fs::read(path).map_err(|source| AccessError::Read { path: path.to_owned(), source })?;
        let access: Self =
            serde_json::from_slice(&text).map_err(|source| AccessError::Parse { path: path.to_owned(), source })?;
        if access.version == ACCESS_VERSION {
            Ok(access)
        } else {
            Err(AccessError::Version { path: path.to_owned(), found: access.version })
        }
    }

    /// Connects, and fails if nobody answers.
    ///
    /// # Errors
    ///
    /// The data are malformed, or nobody answers at the address.
    pub async fn connect(&self) -> Result<Connection, AccessError> {
        let address = self.address.to_string();
        let (endpoint, bearer) = self.endpoint()?;
        let channel = endpoint.connect().await.map_err(|source| AccessError::Unreachable { address, source })?;
        Ok(InterceptedService::new(channel, bearer))
    }

    fn endpoint(&self) -> Result<(Endpoint, Bearer), AccessError> {
        let malformed = |reason: String| AccessError::Malformed { address: self.address.to_string(), reason };
        let (endpoint, bearer) = match &self.address {
            Address::Unix { path } => {
                let path = path.to_str().ok_or_else(|| malformed("the path is not UTF-8".to_owned()))?;
                let endpoint =
                    Endpoint::from_shared(format!("unix://{path}")).map_err(|error| malformed(error.to_string()))?;
                (endpoint, Bearer(None))
            }
            Address::Tls { ca_pem, token, .. } => {
                let tls =
                    ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca_pem)).domain_name(TLS_SERVER_NAME);
                let endpoint = Endpoint::from_shared(format!("https://{}", self.address))
                    .and_then(|endpoint| endpoint.tls_config(tls))
                    .map_err(|error| malformed(error.to_string()))?;
                let mut value: MetadataValue<Ascii> = format!("Bearer {}", token.expose())
                    .parse()
                    .map_err(|_| malformed("the token is not plain text".to_owned()))?;
                value.set_sensitive(true);
                (endpoint, Bearer(Some(value)))
            }
        };
        let endpoint = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(true);
        Ok((endpoint, bearer))
    }
}
