//! The worker: runs episodes in sandboxes.
//!
//! It dials a coordinator and keeps one session open; takes leases of attempts as its slots
//! allow; and runs each from its layers to its verdict. What an attempt records goes to a
//! spool on disk first, and is delivered in order whenever there is a session, so that
//! neither a lost connection nor a killed worker loses an acknowledged step.
//!
//! * [`session`]: the session, the lease clock's enforcement, delivery.
//! * [`episode`]: the phases of one attempt.
//! * [`agents`]: what answers: loops around models, and programs of others.
//! * [`sandbox`]: what an attempt runs in, behind an interface.
//! * [`screen`]: the display of a sandbox, through the X protocol.
//! * [`verify`]: the task's verifier, in a sandbox of its own; [`judge`]: models that look at the
//!   trajectory.
//! * `model`: the gateway to models, its money and its records; `relay`: its way out where the
//!   node has none.
//! * [`round_files`]: what hooks of rounds are brought in with.
//! * [`blobs`], [`spool`], [`lease`], [`guard`]: what these stand on.

mod agents;
mod backoff;
pub mod blobs;
pub mod carry;
mod config;
mod episode;
mod error;
pub mod guard;
mod home;
pub mod judge;
pub mod lease;
mod model;
mod moment;
mod oneshot;
mod relay;
pub mod round_files;
pub mod sandbox;
pub mod screen;
pub mod session;
mod shortpath;
mod shutdown;
pub mod spool;
#[cfg(test)]
mod testing;
pub mod verify;

use std::sync::Arc;

pub use config::{Endpoint, NodeLimits, WorkerConfig};
pub use error::WorkerError;
pub use home::DeadHomes;
pub(crate) use longhaul_core::text::chain;
pub use session::prepare::{Prepared, prepare};
pub use shutdown::{Shutdown, ShutdownTrigger, Urgency};

use crate::sandbox::Driver;
use crate::sandbox::container::ContainerDriver;

/// Runs a worker with rootless containers until it is told to stop, or the coordinator has
/// drained it.
///
/// # Errors
///
/// The machine cannot run sandboxes, a folder cannot be used, or the coordinator refuses
/// this worker.
pub async fn run(config: WorkerConfig, endpoint: Endpoint, shutdown: Shutdown) -> Result<(), WorkerError> {
    let driver = ContainerDriver::open(&config).await.map_err(WorkerError::Sandbox)?;
    run_with(config, endpoint, shutdown, Arc::new(driver)).await
}

/// As [`run`], with another driver of sandboxes.
///
/// # Errors
///
/// As [`run`].
pub async fn run_with(
    config: WorkerConfig,
    endpoint: Endpoint,
    shutdown: Shutdown,
    driver: Arc<dyn Driver>,
) -> Result<(), WorkerError> {
    session::actor::run(config, endpoint, shutdown, driver).await
}

/// The last lines of a text, and no more than a few thousand characters of them.
pub(crate) fn tail(text: &str, lines: usize) -> String {
    const MOST: usize = 8000;
    let all: Vec<&str> = text.lines().collect();
    let last = all[all.len().saturating_sub(lines)..].join("\n");
    let skip = last.chars().count().saturating_sub(MOST);
    last.chars().skip(skip).collect()
}
