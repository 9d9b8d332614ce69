//! What can be set.

use std::collections::BTreeMap;
use std::path::PathBuf;

use longhaul_core::judge::Verify;
use longhaul_core::plan::HookPolicy;
use longhaul_core::resume::ResumePolicy;
use longhaul_core::snapshot::SnapshotPolicy;
use longhaul_core::time::Millis;
use serde::{Deserialize, Deserializer};
use toml::de::{DeTable, DeValue};

use super::endpoints::{self, EndpointSettings, PriceSettings};
use super::slurm::SlurmSettings;
use crate::units;

/// All settings.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Where things are kept.
    pub paths: PathSettings,
    /// What envs stand on.
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
    /// What models cost.
    pub prices: PriceSettings,
    /// Where models are served, by name.
    pub endpoint: BTreeMap<String, EndpointSettings>,
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

/// What envs stand on.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BaseSettings {
    /// `debian-12`, `ubuntu-22.04`, the path of a .sif file, or `docker://...`.
    pub image: String,
    /// Where Ubuntu's packages come from.
    pub ubuntu_mirror: String,
    /// Files with certificates of authorities that images trust beside their own.
    pub certificates: Vec<PathBuf>,
    /// How long each program may take that makes an image.
    #[serde(deserialize_with = "duration")]
    pub build_limit: Millis,
    /// Envs that stand on another image.
    pub envs: BTreeMap<String, String>,
}

/// The layer folder.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerSettings {
    /// The most bytes that it may take; 0 is no limit.
    #[serde(deserialize_with = "size")]
    pub size_limit: u64,
    /// Whether workers give each other layers through the coordinator.
    pub carry: Carry,
}

/// Whether workers give each other layers through the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Carry {
    /// Where a worker of an allocation has its layer folder on the node's own disk.
    Auto,
    /// Every worker.
    Always,
    /// No worker: the layer folder is shared, or each node builds its own.
    Never,
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
    /// The most sandboxes on their way up at once.
    pub starts: usize,
    /// How long a sandbox may take to come up.
    #[serde(deserialize_with = "duration")]
    pub start_limit: Millis,
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
    /// How often an episode may be cut off by the end of an allocation.
    pub max_cut_offs: u32,
    /// What is done about an attempt that was cut off.
    pub resume: ResumePolicy,
    /// When the top of a sandbox is saved for that.
    #[serde(deserialize_with = "snapshots")]
    pub snapshots: SnapshotPolicy,
    /// The wait before the second one.
    #[serde(deserialize_with = "duration")]
    pub backoff: Millis,
    /// What becomes of a failing env hook.
    pub hook_policy: HookPolicy,
    /// Which verifier decides.
    #[serde(deserialize_with = "verify")]
    pub verify: Verify,
    /// Who judges, as `--judge` has it; nobody if absent.
    #[serde(deserialize_with = "optional")]
    pub judge: Option<String>,
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

impl BaseSettings {
    /// Makes known the envs that a file names.
    pub(super) fn name_envs(known: &mut toml::Table, given: &DeTable<'_>) {
        let Some(toml::Value::Table(base)) = known.get_mut("base") else { return };
        let Some(toml::Value::Table(envs)) = base.get_mut("envs") else { return };
        let Some(DeValue::Table(given)) = given.get("base").map(|value| value.get_ref()) else { return };
        let Some(DeValue::Table(given)) = given.get("envs").map(|value| value.get_ref()) else { return };
        for name in given.keys() {
            envs.insert(name.get_ref().to_string(), toml::Value::String(String::new()));
        }
    }

    fn check(&self) -> Result<(), (&'static str, String)> {
        let mirror = &self.ubuntu_mirror;
        // It becomes part of apt's sources, which end a word at a blank.
        if !mirror.contains("://") || mirror.contains(char::is_whitespace) {
            return Err(("base.ubuntu_mirror", format!("`{mirror}` is no address, such as http://mirror/ubuntu")));
        }
        match self.envs.iter().find(|(_, image)| image.is_empty()) {
            Some((env, _)) => Err(("base.envs", format!("{env}: an image has to be named"))),
            None => Ok(()),
        }
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
        if self.run.max_cut_offs == 0 {
            return Err(("run.max_cut_offs", "an episode is cut off once before anything is known of it".to_owned()));
        }
        if self.worker.spool_steps == 0 {
            return Err(("worker.spool_steps", "no step could be taken".to_owned()));
        }
        self.base.check()?;
        endpoints::check(&self.endpoint)?;
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

fn verify<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Verify, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

fn snapshots<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SnapshotPolicy, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

/// An empty text is none.
pub(super) fn optional<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    text(deserializer, |text| Ok(Some(text).filter(|text| !text.is_empty())))
}
