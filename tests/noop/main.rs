//! A worker whose sandboxes do nothing: it takes leases, records steps, asks verifiers and gives
//! verdicts as the program's own does, over the same session, and starts no container. What it
//! measures is the rest: placement, leases, journal, store, Slurm.
//!
//! It takes the command line that allocations get, as far as it says something here:
//!
//! ```text
//! longhaul-noop-worker ... worker --scratch DIR --coordinator ACCESS [--slots N]
//! ```
//!
//! Outside of an allocation it also takes `--name NAME` for its node, and `--bodies`: each sandbox is a
//! process then, which may be killed and stopped, and has a screen that changes with every step.

mod body;
mod driver;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use longhaul_core::ids::WorkerId;
use longhaul_core::time::Timestamp;
use longhaul_proto::access::{Access, pass_file};
use longhaul_proto::v1;
use longhaul_slurm::Allocation;
use longhaul_worker::{Endpoint, NodeLimits, Shutdown, WorkerConfig};
use tracing_subscriber::EnvFilter;

use crate::driver::NoDriver;

#[tokio::main]
async fn main() -> Result<()> {
    let shutdown = Shutdown::on_signals()?;
    let named = PathBuf::from(option("--coordinator").context("name a coordinator")?);
    let scratch = PathBuf::from(option("--scratch").context("name a scratch folder")?);
    std::fs::create_dir_all(&scratch)?;
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let allocation = Allocation::parse(|name| std::env::var(name).ok())?;
    // A folder has one access file for each task of the array.
    let array = allocation.as_ref().and_then(|allocation| allocation.array.as_ref());
    let task = array.map_or(0, |place| place.index);
    let file = if named.is_dir() { named.join(pass_file(task)) } else { named };
    let slots = option("--slots").map(|slots| slots.parse()).transpose()?.unwrap_or(0);
    let config = config(allocation.as_ref(), &scratch, slots)?;
    let bodies = std::env::args().any(|argument| argument == "--bodies").then(|| scratch.clone());
    let endpoint = Endpoint::of(&Access::read(&file)?, &file);
    longhaul_worker::run_with(config, endpoint, shutdown, Arc::new(NoDriver { bodies })).await?;
    Ok(())
}

/// The word after an option, wherever that is.
fn option(name: &str) -> Option<String> {
    std::env::args().skip_while(|argument| argument != name).nth(1)
}

fn config(allocation: Option<&Allocation>, scratch: &Path, slots: u32) -> Result<WorkerConfig> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let program = std::env::current_exe()?;
    let asked_for = allocation.and_then(|allocation| {
        let (job, task) = match &allocation.array {
            Some(place) => (place.array_job.clone(), place.index),
            None => (allocation.job_id.clone(), 0),
        };
        let token = allocation.token.as_ref()?.to_string();
        Some(v1::Allocation { token, job, task, restarts: allocation.restarts, ends_at_millis: None })
    });
    let node = allocation.and_then(|allocation| allocation.node.clone()).or_else(|| option("--name"));
    let limits = match allocation {
        Some(allocation) => NodeLimits {
            cpu_millis: allocation.cpus.map(|cpus| cpus.saturating_mul(1000)),
            memory_mib: allocation.memory_mib,
            max_slots: slots,
            disk_floor_mib: 100,
            ..NodeLimits::default()
        },
        // Sandboxes that do nothing take up nothing.
        None => NodeLimits {
            cpu_millis: Some(1_000_000),
            memory_mib: Some(1_000_000),
            max_slots: slots,
            disk_floor_mib: 32,
            ..NodeLimits::default()
        },
    };
    Ok(WorkerConfig {
        carry_layers: false,
        // The process is the chance in it: workers of one node start in one millisecond.
        id: WorkerId::new(Timestamp(u64::try_from(now.as_millis())?), now.subsec_nanos() ^ std::process::id()),
        hostname: node.unwrap_or_else(|| "?".to_owned()),
        scratch: scratch.to_owned(),
        layers: scratch.join("layers"),
        image: program.clone(),
        bases: std::collections::BTreeMap::new(),
        helper_program: program,
        limits,
        gpus: None,
        certificates: Vec::new(),
        hook_env: std::collections::BTreeMap::new(),
        slurm_job_id: allocation.map(|allocation| allocation.job_id.clone()),
        allocation: asked_for,
        grace: Duration::from_secs(10),
        verify_limit: Duration::from_secs(60),
        park_limit: Duration::from_secs(600),
        // A screen here is at once as it is to be, or never.
        replay_patience: if allocation.is_some() { Duration::from_secs(15) } else { Duration::from_secs(1) },
    })
}
