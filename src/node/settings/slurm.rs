//! What can be set about Slurm.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use longhaul_core::time::Millis;
use serde::Deserialize;
use toml::de::{DeTable, DeValue};

use super::load::fill;
use super::model::{auto_path, auto_text, duration, optional, size};

/// The name of the pool that is there when none is named.
pub(super) const DEFAULT_POOL: &str = "default";

/// Slurm counts in minutes.
const MINUTE: u64 = 60_000;

/// How Slurm is asked for workers.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlurmSettings {
    /// How often the queue is looked at.
    #[serde(deserialize_with = "duration")]
    pub poll: Millis,
    /// How long a question may take.
    #[serde(deserialize_with = "duration")]
    pub query_limit: Millis,
    /// How long a submission or cancellation may take.
    #[serde(deserialize_with = "duration")]
    pub change_limit: Millis,
    /// Where the coordinator listens for workers.
    pub listen: SocketAddr,
    /// How nodes reach this machine; `None` is its host name.
    #[serde(deserialize_with = "auto_text")]
    pub host: Option<String>,
    /// The program on the nodes; `None` is this one.
    #[serde(deserialize_with = "auto_path")]
    pub program: Option<PathBuf>,
    /// Where allocations write what they print; `None` is in the store.
    #[serde(deserialize_with = "auto_path")]
    pub logs: Option<PathBuf>,
    /// The allocation in which a coordinator runs.
    pub coordinator: CoordinatorAllocation,
    /// What every pool starts with.
    pub pool: PoolSettings,
    /// The pools by name, each whole.
    pub pools: BTreeMap<String, PoolSettings>,
}

/// The allocation in which a coordinator runs, where nothing may run for long on a login node.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoordinatorAllocation {
    /// The partition.
    #[serde(deserialize_with = "optional")]
    pub partition: Option<String>,
    /// The account.
    #[serde(deserialize_with = "optional")]
    pub account: Option<String>,
    /// The quality of service.
    #[serde(deserialize_with = "optional")]
    pub qos: Option<String>,
    /// Features of nodes.
    #[serde(deserialize_with = "optional")]
    pub constraint: Option<String>,
    /// Processors.
    pub cpus: u32,
    /// Memory in bytes.
    #[serde(deserialize_with = "size")]
    pub memory: u64,
    /// The walltime.
    #[serde(deserialize_with = "duration")]
    pub time: Millis,
    /// How long before that end the next one may begin.
    #[serde(deserialize_with = "duration")]
    pub overlap: Millis,
    /// From the warning to the end.
    #[serde(deserialize_with = "duration")]
    pub warning: Millis,
    /// It ends when no run was open for so long.
    #[serde(deserialize_with = "duration")]
    pub idle: Millis,
    /// More options of sbatch.
    pub options: Vec<String>,
    /// Lines of shell before the coordinator.
    pub prologue: Vec<String>,
}

/// A pattern that allocations are asked with.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolSettings {
    /// The partition.
    #[serde(deserialize_with = "optional")]
    pub partition: Option<String>,
    /// The account.
    #[serde(deserialize_with = "optional")]
    pub account: Option<String>,
    /// The quality of service.
    #[serde(deserialize_with = "optional")]
    pub qos: Option<String>,
    /// Features of nodes.
    #[serde(deserialize_with = "optional")]
    pub constraint: Option<String>,
    /// Devices.
    #[serde(deserialize_with = "optional")]
    pub gres: Option<String>,
    /// Processors.
    pub cpus: u32,
    /// Memory in bytes.
    #[serde(deserialize_with = "size")]
    pub memory: u64,
    /// Graphics processors for envs.
    pub gpus: u32,
    /// Whether a node is for one allocation alone.
    pub exclusive: bool,
    /// The walltime.
    #[serde(deserialize_with = "duration")]
    pub time: Millis,
    /// From the warning to the end.
    #[serde(deserialize_with = "duration")]
    pub warning: Millis,
    /// Whether Slurm starts it again.
    pub requeue: bool,
    /// More options of sbatch.
    pub options: Vec<String>,
    /// Lines of shell before the worker.
    pub prologue: Vec<String>,
    /// Whether several are asked for at once.
    pub array: bool,
    /// The most attempts at once in a worker; 0 is no such limit.
    pub slots: u32,
    /// The most allocations.
    pub max_workers: u32,
    /// The most that wait.
    pub max_queued: u32,
    /// The most time of nodes; 0 is no such limit.
    #[serde(deserialize_with = "duration")]
    pub max_node_time: Millis,
    /// The longest that a worker has nothing to do.
    #[serde(deserialize_with = "duration")]
    pub idle: Millis,
    /// Failures in a row before it is paused.
    pub max_failures: u32,
}

/// Makes every pool whole: what its table does not say is as in `[slurm.pool]`.
pub(super) fn complete(settings: &mut toml::Table) {
    let Some(toml::Value::Table(slurm)) = settings.get_mut("slurm") else { return };
    let Some(toml::Value::Table(common)) = slurm.get("pool").cloned() else { return };
    let Some(toml::Value::Table(pools)) = slurm.get_mut("pools") else { return };
    if pools.is_empty() {
        pools.insert(DEFAULT_POOL.to_owned(), toml::Value::Table(common));
        return;
    }
    for (_, pool) in pools.iter_mut() {
        fill(pool, &common);
    }
}

/// Makes known the keys of the pools that a file names.
pub(super) fn name_pools(known: &mut toml::Table, given: &DeTable<'_>) {
    let Some(toml::Value::Table(slurm)) = known.get_mut("slurm") else { return };
    let Some(pool) = slurm.get("pool").cloned() else { return };
    let Some(toml::Value::Table(pools)) = slurm.get_mut("pools") else { return };
    let Some(DeValue::Table(given)) = given.get("slurm").map(|value| value.get_ref()) else { return };
    let Some(DeValue::Table(given)) = given.get("pools").map(|value| value.get_ref()) else { return };
    for name in given.keys() {
        pools.insert(name.get_ref().to_string(), pool.clone());
    }
}

impl SlurmSettings {
    /// What is wrong with values that are fine each by itself.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        if self.poll.0 == 0 {
            return Err(("slurm.poll", "Slurm would be asked without a pause".to_owned()));
        }
        let coordinator = &self.coordinator;
        if coordinator.cpus == 0 || coordinator.memory == 0 {
            return Err(("slurm.coordinator", "cpus and memory cannot be 0".to_owned()));
        }
        if coordinator.warning.0 == 0 || coordinator.idle.0 == 0 {
            let reason = "warning and idle cannot be 0: it would close its store too late, or end at once";
            return Err(("slurm.coordinator", reason.to_owned()));
        }
        if coordinator.warning.0 >= coordinator.overlap.0
            || coordinator.overlap.0.saturating_add(MINUTE) > coordinator.time.0
        {
            let reason = "time is longer than overlap by a minute or more, and overlap longer than warning: the next \
                          coordinator begins between the two";
            return Err(("slurm.coordinator", reason.to_owned()));
        }
        for (name, pool) in &self.pools {
            let wrong = |what: &str| Err(("slurm.pools", format!("pool {name}: {what}")));
            let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            if name.is_empty() || !name.bytes().all(word) {
                return wrong("a name has letters, digits, - and _");
            }
            if pool.cpus == 0 || pool.memory == 0 {
                return wrong("cpus and memory say what a worker has, and cannot be 0");
            }
            if pool.max_workers == 0 || pool.max_queued == 0 || pool.max_failures == 0 {
                return wrong("max_workers, max_queued and max_failures cannot be 0");
            }
            if pool.warning.0 >= pool.time.0 {
                return wrong("the warning comes before the end, so it is shorter than the time");
            }
        }
        Ok(())
    }
}
