//! What a gateway is set up with, once per process.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::ports::{Clock, Relay};

/// What a gateway is set up with.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// The time of day, for records.
    pub clock: Arc<dyn Clock>,
    /// Where the chances of backoff begin.
    pub seed: u64,
    /// PEM files with certificate authorities beside the system's own.
    pub extra_roots: Vec<PathBuf>,
    /// The way out, where there is no direct one.
    pub proxies: Proxies,
    /// The way to endpoints that are relayed; without it their calls fail before they are sent.
    pub relay: Option<Arc<dyn Relay>>,
    /// The largest request body that is taken from a client.
    pub max_request: usize,
    /// The largest response that is read.
    pub max_response: usize,
    /// How long a connection attempt may take.
    pub connect_limit: Duration,
    /// How long an attempt's end waits for calls in flight before they are settled whole.
    pub close_limit: Duration,
    /// After how long without an answer an HTTP client gets the head of one, and then a blank line as
    /// often, so that it goes on waiting.
    pub quiet: Duration,
    /// How long calls wait for an endpoint that is down before they fail.
    pub down_limit: Duration,
    /// After how long without a call an attempt gives back what it holds beyond one more call.
    pub idle_after: Duration,
    /// The wait before the first retry; it doubles with each further one.
    pub backoff: Duration,
    /// The longest wait between retries, and between probes of an endpoint that is down.
    pub backoff_most: Duration,
}

impl GatewayConfig {
    /// The usual limits.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, seed: u64) -> Self {
        Self {
            clock,
            seed,
            extra_roots: Vec::new(),
            proxies: Proxies::default(),
            relay: None,
            max_request: 64 << 20,
            max_response: 64 << 20,
            connect_limit: Duration::from_secs(15),
            close_limit: Duration::from_secs(30),
            quiet: Duration::from_secs(60),
            down_limit: Duration::from_secs(12 * 3600),
            idle_after: Duration::from_secs(15),
            backoff: Duration::from_millis(500),
            backoff_most: Duration::from_secs(60),
        }
    }
}

/// Proxies as the environment variables of the same names give them; empty is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proxies {
    /// `HTTPS_PROXY`: for `https` addresses.
    pub https: String,
    /// `HTTP_PROXY`: for `http` addresses.
    pub http: String,
    /// `NO_PROXY`: hosts that are reached directly.
    pub none: String,
}

/// Why a gateway cannot be set up, or cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// A file with certificate authorities cannot be used.
    #[error("certificate authorities of {path}: {message}")]
    Roots {
        /// The file.
        path: String,
        /// What is wrong with it.
        message: String,
    },
    /// TLS cannot be set up.
    #[error("TLS: {message}")]
    Tls {
        /// What is wrong.
        message: String,
    },
    /// The socket cannot be listened on.
    #[error("{path}: {source}")]
    Listen {
        /// The socket.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
}
