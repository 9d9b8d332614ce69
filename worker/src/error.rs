//! Why a worker stops other than in order.

use std::io;
use std::path::{Path, PathBuf};

use crate::blobs::BlobError;
use crate::sandbox::SandboxError;

/// Why [`crate::run`] ended with an error.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// A file or folder of the worker's own.
    #[error("cannot {what} {}", path.display())]
    File {
        /// What was to be done: `create`, `open`, ...
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The endpoint is not one.
    #[error("{endpoint} is no address of a coordinator: {reason}")]
    Endpoint {
        /// The endpoint.
        endpoint: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The coordinator refuses this worker, and will again.
    #[error("the coordinator at {endpoint} refuses this worker: {reason}")]
    Refused {
        /// The endpoint.
        endpoint: String,
        /// What it said.
        reason: String,
    },
    /// The machine cannot run sandboxes.
    #[error("this machine cannot run sandboxes")]
    Sandbox(#[source] SandboxError),
    /// The cache cannot be used.
    #[error("the cache cannot be used")]
    Cache(#[source] BlobError),
    /// The gateway to models cannot be set up.
    #[error("the gateway to models cannot be set up")]
    Gateway(#[source] longhaul_gateway::GatewayError),
    /// What the node has could not be found out, and no limit was given.
    #[error("the node's {what} could not be found out; give a limit")]
    Node {
        /// What: processors, memory.
        what: &'static str,
    },
}

impl WorkerError {
    /// For `map_err` on file operations.
    pub(crate) fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { what, path, source }
    }
}
