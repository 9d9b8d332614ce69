//! `longhaul worker`: takes episodes from a coordinator and runs them here.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use longhaul_apptainer::layers::{Bound, LayerStore};
use longhaul_apptainer::{Apptainer, BaseDefinition, BaseImage, base, filesystem, janitor};
use longhaul_core::digest::Digest;
use longhaul_core::ids::WorkerId;
use longhaul_core::time::Timestamp;
use longhaul_proto::access::{Access, Address, TLS_SERVER_NAME};
use longhaul_proto::v1;
use longhaul_slurm::Allocation;
use longhaul_worker::{Endpoint, NodeLimits, Shutdown, ShutdownTrigger, WorkerConfig};
use nix::sys::stat::{Mode, umask};
use rand::TryRngCore;

use crate::cli::{LayerPlaceArgs, WorkerArgs, WorkerCommand};
use crate::client::{Client, Source};
use crate::commands::layers::Cited;
use crate::commands::serve::hostname;
use crate::error::CliError;
use crate::settings::Settings;
use crate::signals::Signals;
use crate::{output, places};

/// This process's own program, whatever became of the path that it was started from.
pub(crate) const THIS_PROGRAM: &str = "/proc/self/exe";

/// What of a machine sandboxes stand on.
#[derive(Debug)]
pub struct Machine {
    /// Apptainer.
    pub apptainer: Apptainer,
    /// The layer folder.
    pub layers: PathBuf,
    /// The folder for sandboxes, caches and spools.
    pub scratch: PathBuf,
    /// The allocation that this process is in, if it is in one.
    pub allocation: Option<Allocation>,
    definition: BaseDefinition,
}

/// Finds out what there is.
///
/// # Errors
///
/// Apptainer is not there, nothing says where layers and scratch are, or scratch is where no
/// sandbox can be.
pub async fn machine(place: &LayerPlaceArgs, settings: &Settings) -> Result<Machine, CliError> {
    let machine = found(place, settings).await?;
    // Workers look again; but who runs something is told before anything is stored.
    filesystem::fit_for_tops(&machine.scratch).map_err(|error| CliError::Machine(Box::new(error)))?;
    Ok(machine)
}

/// As [`machine`], wherever scratch is: to clean up, too, what was left there.
async fn found(place: &LayerPlaceArgs, settings: &Settings) -> Result<Machine, CliError> {
    // What sandboxes see of folders and files must not hang on how private a person is: below
    // an overlay whose top is closed to others, no account inside gets anywhere. What is secret
    // is made with its own mode.
    umask(Mode::S_IWGRP | Mode::S_IWOTH);
    let allocation =
        Allocation::parse(|name| std::env::var(name).ok()).map_err(|error| CliError::Machine(Box::new(error)))?;
    let tmp = allocation.as_ref().and_then(|allocation| allocation.tmp.clone());
    let layers = places::layers(place.layers.as_deref(), settings)?;
    let scratch = places::scratch(place.scratch.as_deref(), settings, tmp.as_deref())?;
    let definition = BaseDefinition::parse(place.base.as_deref().unwrap_or(&settings.base.image));
    let apptainer = Apptainer::detect().await.map_err(|error| CliError::Machine(Box::new(error)))?;
    scratch_folder(&scratch)?;
    Ok(Machine { apptainer, layers, scratch, allocation, definition })
}

impl Machine {
    fn images(&self) -> PathBuf {
        self.layers.join("images")
    }

    /// The built-in base image as it came with this program, if it did.
    fn shipped(&self) -> Option<PathBuf> {
        let BaseDefinition::BuiltIn = self.definition else { return None };
        places::shipped_image(&self.definition.key()?)
    }

    /// The name under which a program finds the built-in base image beside itself; none if
    /// sandboxes stand on another one.
    #[must_use]
    pub fn shipped_name(&self) -> Option<String> {
        let BaseDefinition::BuiltIn = self.definition else { return None };
        self.definition.key().as_ref().map(places::shipped_name)
    }

    /// The key of the base image's definition; none for a file of its own.
    #[must_use]
    pub fn definition_key(&self) -> Option<Digest> {
        self.definition.key()
    }

    /// Whether the base image was made before.
    #[must_use]
    pub fn has_image(&self) -> bool {
        self.shipped().is_some()
            || self.definition.key().is_none_or(|key| self.images().join(format!("{key}.sif")).exists())
    }

    /// The base image; built if it is not there.
    ///
    /// # Errors
    ///
    /// It is not there and cannot be built.
    pub async fn image(&self) -> Result<BaseImage, CliError> {
        let images = self.images();
        if !self.has_image() {
            output::note("making the base image; this takes some minutes, once");
        }
        let definition = self.shipped().map_or_else(|| self.definition.clone(), BaseDefinition::Sif);
        base::ensure(&self.apptainer, &definition, &images, &self.scratch)
            .await
            .map_err(|error| CliError::Machine(Box::new(error)))
    }
}

/// The scratch folder: others may pass through it but not list it. The folders of workers in
/// it are private; the tools that make a base image run as another id of ours and have to pass.
fn scratch_folder(path: &Path) -> Result<(), CliError> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
    let failed = |doing| move |source| CliError::File { path: path.to_owned(), doing, source };
    std::fs::DirBuilder::new().recursive(true).mode(0o711).create(path).map_err(failed("made"))?;
    let owner = std::fs::metadata(path).map_err(failed("examined"))?.uid();
    if owner == nix::unistd::getuid().as_raw() {
        return std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o711)).map_err(failed("opened"));
    }
    let source = std::io::Error::new(std::io::ErrorKind::PermissionDenied, "it belongs to another user");
    Err(failed("used")(source))
}

/// Works until a signal, or does what the subcommand says.
///
/// # Errors
///
/// The machine lacks something, or the coordinator cannot be reached or refuses.
pub async fn worker(args: WorkerArgs, settings: &Settings) -> Result<(), CliError> {
    if let Some(WorkerCommand::Clean { place }) = args.command {
        return clean(&place, settings).await;
    }
    // First of all, so that a signal that comes early is heard.
    let (trigger, shutdown) = Shutdown::new();
    hear(trigger, args.tethered)?;
    let access = args.coordinator.as_deref().ok_or_else(|| CliError::Usage("name a coordinator".to_owned()))?;
    let endpoint = endpoint(&Access::read(access).map_err(CliError::Access)?, access);
    let machine = machine(&args.place, settings).await?;
    let image = machine.image().await?;
    let mut config = config(&machine, &image, args.slots, settings)?;
    config.limits.gpus = args.gpus.unwrap_or(config.limits.gpus);
    let outcome = longhaul_worker::run(config, endpoint, shutdown).await.map_err(CliError::Worker);
    bound_layers(&machine, access, settings).await;
    outcome
}

/// Removes the least recently used layers beyond the limit. Those of other workers are in
/// use, and stay, as do those that runs of the coordinator stand on; a folder that cannot be read
/// or written is the next worker's trouble.
async fn bound_layers(machine: &Machine, access: &Path, settings: &Settings) {
    let limit = settings.layers.size_limit;
    if limit == 0 {
        return;
    }
    let bounded = async {
        let store = LayerStore::open(&machine.layers, None).map_err(failed)?;
        let total: u64 = store.list().map_err(failed)?.iter().map(|(manifest, _)| manifest.bytes()).sum();
        if total <= limit {
            return Ok(None);
        }
        let mut cited = Cited::default();
        cited.add(&Source::Live(Box::new(Client::open(access).await?))).await?;
        store.prune(Bound::Bytes(limit), &cited.keys()).map_err(failed).map(Some)
    };
    let pruned: Result<_, CliError> = bounded.await;
    match pruned {
        Ok(None) => {}
        Ok(Some(pruned)) => tracing::info!(
            removed = pruned.removed.len(),
            freed = pruned.freed,
            cited = pruned.cited.len(),
            "layers were removed"
        ),
        Err(error) => tracing::warn!(%error, "the layer folder was not bounded"),
    }
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> CliError {
    CliError::Layers(Box::new(error))
}

/// TERM and INT, and the end of whoever holds the tether, tell the worker to stop.
fn hear(trigger: ShutdownTrigger, tethered: bool) -> Result<(), CliError> {
    let mut signals = Signals::new().map_err(|error| CliError::Machine(Box::new(error)))?;
    let by_signal = trigger.clone();
    tokio::spawn(async move {
        loop {
            signals.next().await;
            by_signal.signal();
        }
    });
    if tethered {
        // A read that may last as long as the process: on a thread of its own.
        std::thread::spawn(move || {
            let mut nothing = [0; 64];
            // Nobody writes; zero bytes or an error mean that the other end is gone.
            while matches!(std::io::stdin().read(&mut nothing), Ok(read) if read > 0) {}
            tracing::warn!("whoever started this worker is gone");
            trigger.signal();
        });
    }
    Ok(())
}

pub(crate) fn config(
    machine: &Machine,
    image: &BaseImage,
    slots: Option<u32>,
    settings: &Settings,
) -> Result<WorkerConfig, CliError> {
    let random = rand::rngs::OsRng.try_next_u32().map_err(|error| CliError::Machine(Box::new(error)))?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
    let worker = &settings.worker;
    Ok(WorkerConfig {
        id: WorkerId::new(now, random),
        hostname: machine.allocation.as_ref().and_then(|allocation| allocation.node.clone()).unwrap_or_else(hostname),
        scratch: machine.scratch.clone(),
        layers: machine.layers.clone(),
        image: image.path.clone(),
        helper_program: PathBuf::from(THIS_PROGRAM),
        limits: limits(settings, slots, machine.allocation.as_ref()),
        hook_env: settings.proxy.variables(|name| std::env::var(name).ok()),
        slurm_job_id: machine.allocation.as_ref().map(|allocation| allocation.job_id.clone()),
        allocation: machine.allocation.as_ref().and_then(asked_for),
        grace: worker.grace.to_std(),
        verify_limit: worker.verify_limit.to_std(),
        park_limit: worker.park_limit.to_std(),
    })
}

/// The allocation as the coordinator that asked for it knows it; nothing if nobody of ours did.
fn asked_for(allocation: &Allocation) -> Option<v1::Allocation> {
    let token = allocation.token.as_ref()?.to_string();
    let (job, task) = match &allocation.array {
        Some(place) => (place.array_job.clone(), place.index),
        None => (allocation.job_id.clone(), 0),
    };
    let ends_at_millis = allocation.ends_at.map(|seconds| seconds.saturating_mul(1000));
    Some(v1::Allocation { token, job, task, restarts: allocation.restarts, ends_at_millis })
}

/// What the settings say, else what the allocation gives; the worker looks at the node
/// for what neither says.
fn limits(settings: &Settings, slots: Option<u32>, allocation: Option<&Allocation>) -> NodeLimits {
    const MIB: u64 = 1 << 20;
    let worker = &settings.worker;
    let cpus = Some(worker.cpus).filter(|cpus| *cpus > 0).or_else(|| allocation.and_then(|given| given.cpus));
    let memory_mib =
        Some(worker.memory / MIB).filter(|mib| *mib > 0).or_else(|| allocation.and_then(|given| given.memory_mib));
    NodeLimits {
        cpu_millis: cpus.map(|cpus| cpus.saturating_mul(1000)),
        memory_mib,
        gpus: worker.gpus,
        max_slots: slots.unwrap_or(worker.slots),
        cache_bytes: worker.cache_size,
        disk_floor_mib: worker.disk_floor / MIB,
        spool_bytes: worker.spool_size,
        spool_steps: worker.spool_steps,
    }
}

fn endpoint(access: &Access, file: &Path) -> Endpoint {
    match &access.address {
        Address::Unix { path } => Endpoint::Unix { path: path.clone(), token: None },
        Address::Tls { ca_pem, token, .. } => Endpoint::Tls {
            url: format!("https://{}", access.address),
            ca_pem: ca_pem.clone(),
            server_name: Some(TLS_SERVER_NAME.to_owned()),
            token: token.expose().to_owned(),
            access: Some(file.to_owned()),
        },
    }
}

async fn clean(place: &LayerPlaceArgs, settings: &Settings) -> Result<(), CliError> {
    let machine = found(place, settings).await?;
    if !machine.has_image() {
        output::note("there is no base image: nothing was ever started from this layer folder");
        return Ok(());
    }
    let image = machine.image().await?;
    let cleared = janitor::clean(&machine.apptainer, &image.path, &machine.scratch)
        .await
        .map_err(|error| CliError::Machine(Box::new(error)))?;
    for folder in &cleared.removed {
        output::note(&format!("removed {}", folder.display()));
    }
    for folder in &cleared.held {
        output::note(&format!("left alone, since a worker uses it: {}", folder.display()));
    }
    for (folder, reason) in &cleared.failed {
        output::note(&format!("could not be removed: {}: {}", folder.display(), output::escape(reason)));
    }
    if cleared.removed.is_empty() && cleared.failed.is_empty() {
        output::note(&format!("nothing was left in {}", machine.scratch.display()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_bound_an_allocation_and_an_allocation_bounds_the_node() {
        let mut settings = crate::settings::load(None).expect("the defaults");
        let given = Allocation::parse(|name| match name {
            "SLURM_JOB_ID" => Some("7".to_owned()),
            "SLURM_CPUS_ON_NODE" => Some("8".to_owned()),
            "SLURM_MEM_PER_NODE" => Some("16000".to_owned()),
            _ => None,
        })
        .expect("an allocation");
        let limits_of = |settings: &Settings| {
            let limits = limits(settings, None, given.as_ref());
            (limits.cpu_millis, limits.memory_mib)
        };
        assert_eq!(limits_of(&settings), (Some(8000), Some(16_000)));
        settings.worker.cpus = 2;
        settings.worker.memory = 1 << 30;
        assert_eq!(limits_of(&settings), (Some(2000), Some(1024)));
        assert_eq!(limits(&settings, Some(3), None).max_slots, 3);
    }
}
