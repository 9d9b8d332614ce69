//! What can be set.

use std::collections::BTreeMap;
use std::path::PathBuf;

use longhaul_core::plan::HookPolicy;
use longhaul_core::time::Millis;
use serde::{Deserialize, Deserializer};

use super::slurm::SlurmSettings;
use crate::units;

/// All settings.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Where things are kept.
    pub paths: PathSettings,
    /// What every env stands on.
    pub base: BaseSettings,
    /// The layer folder.
    pub layers: LayerSettings,
    /// What a worker may use.
    pub worker: WorkerSettings,
    /// Proxies for hooks.
    pub proxy: ProxySettings,
    /// What a run is given where the command line does not say.
    pub run: RunSettings,
    /// Leases.
    pub coordinator: CoordinatorSettings,
    /// How Slurm is asked for workers.
    pub slurm: SlurmSettings,
}

/// Where things are kept; `None` is `auto`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathSettings {
    /// The store.
    #[serde(deserialize_with = "auto_path")]
    pub store: Option<PathBuf>,
    /// The layers.
    #[serde(deserialize_with = "auto_path")]
    pub layers: Option<PathBuf>,
    /// The worker's own files.
    #[serde(deserialize_with = "auto_path")]
    pub scratch: Option<PathBuf>,
}

/// What every env stands on.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BaseSettings {
    /// `debian`, the path of a .sif file, or `docker://...`.
    pub image: String,
}

/// The layer folder.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerSettings {
    /// The most bytes that it may take; 0 is no limit.
    #[serde(deserialize_with = "size")]
    pub size_limit: u64,
}

/// What a worker may use.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerSettings {
    /// Processors; 0 is what there is.
    pub cpus: u32,
    /// Memory in bytes; 0 is what there is.
    #[serde(deserialize_with = "size")]
    pub memory: u64,
    /// The most attempts at once; 0 is no such limit.
    pub slots: u32,
    /// Graphics processors.
    pub gpus: u32,
    /// The least free disk, in bytes.
    #[serde(deserialize_with = "size")]
    pub disk_floor: u64,
    /// The most bytes of the cache.
    #[serde(deserialize_with = "size")]
    pub cache_size: u64,
    /// The most bytes of the spool.
    #[serde(deserialize_with = "size")]
    pub spool_size: u64,
    /// The most steps of one attempt in the spool.
    pub spool_steps: u32,
    /// From the first signal to the end.
    #[serde(deserialize_with = "duration")]
    pub grace: Millis,
    /// How long an episode is kept parked.
    #[serde(deserialize_with = "duration")]
    pub park_limit: Millis,
    /// How long a verifier may run.
    #[serde(deserialize_with = "duration")]
    pub verify_limit: Millis,
}

/// Proxies for hooks: `inherit`, an address, or nothing.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProxySettings {
    /// For http.
    pub http: String,
    /// For https.
    pub https: String,
    /// What is reached without one.
    pub no_proxy: String,
}

/// What a run is given where the command line does not say.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSettings {
    /// The step budget of an episode whose task does not say.
    pub steps: u32,
    /// The time budget of an episode.
    #[serde(deserialize_with = "duration")]
    pub time: Millis,
    /// The most attempts of an episode that end in a fault of its own.
    pub max_attempts: u32,
    /// The wait before the second one.
    #[serde(deserialize_with = "duration")]
    pub backoff: Millis,
    /// What becomes of a failing env hook.
    pub hook_policy: HookPolicy,
}

/// Leases.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoordinatorSettings {
    /// How long a lease lasts.
    #[serde(deserialize_with = "duration")]
    pub lease_ttl: Millis,
    /// What is waited beyond that.
    #[serde(deserialize_with = "duration")]
    pub lease_skew: Millis,
    /// How often a worker is heard of.
    #[serde(deserialize_with = "duration")]
    pub heartbeat: Millis,
}

impl ProxySettings {
    /// The variables that hooks see, in both cases since programs differ in which they read.
    /// `var` reads this process's environment.
    #[must_use]
    pub fn variables(&self, var: impl Fn(&str) -> Option<String>) -> BTreeMap<String, String> {
        let mut variables = BTreeMap::new();
        for (name, setting) in [("http_proxy", &self.http), ("https_proxy", &self.https), ("no_proxy", &self.no_proxy)]
        {
            let upper = name.to_uppercase();
            let value = if setting == "inherit" { var(name).or_else(|| var(&upper)) } else { Some(setting.clone()) };
            if let Some(value) = value.filter(|value| !value.is_empty()) {
                variables.insert(name.to_owned(), value.clone());
                variables.insert(upper, value);
            }
        }
        variables
    }
}

impl Settings {
    /// What is wrong with values that are fine each by itself.
    ///
    /// # Errors
    ///
    /// The key, and what is wrong.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        let coordinator = &self.coordinator;
        if coordinator.heartbeat.0 == 0 || coordinator.heartbeat.0 * 3 > coordinator.lease_ttl.0 {
            let reason = "a lease must last for at least three heartbeats, or one lost message ends it".to_owned();
            return Err(("coordinator.heartbeat", reason));
        }
        if self.run.steps == 0 {
            return Err(("run.steps", "an episode needs at least one step".to_owned()));
        }
        if self.run.max_attempts == 0 {
            return Err(("run.max_attempts", "an episode needs at least one attempt".to_owned()));
        }
        if self.worker.spool_steps == 0 {
            return Err(("worker.spool_steps", "no step could be taken".to_owned()));
        }
        self.slurm.check()
    }
}

fn text<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    read: impl FnOnce(String) -> Result<T, units::UnitError>,
) -> Result<T, D::Error> {
    read(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

pub(super) fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Millis, D::Error> {
    text(deserializer, |text| units::duration(&text))
}

pub(super) fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    text(deserializer, |text| units::size(&text))
}

pub(super) fn auto_path<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    text(deserializer, |text| Ok(Some(text).filter(|text| text != "auto").map(PathBuf::from)))
}

pub(super) fn auto_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    text(deserializer, |text| Ok(Some(text).filter(|text| text != "auto")))
}

/// An empty text is none.
pub(super) fn optional<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    text(deserializer, |text| Ok(Some(text).filter(|text| !text.is_empty())))
}
