//! `longhaul worker`: takes episodes from a coordinator and runs them here.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use longhaul_apptainer::layers::{Bound, LayerStore};
use longhaul_apptainer::{Apptainer, BaseDefinition, BaseImage, base, janitor};
use longhaul_core::ids::WorkerId;
use longhaul_core::time::Timestamp;
use longhaul_proto::access::{Access, Address, TLS_SERVER_NAME};
use longhaul_slurm::Allocation;
use longhaul_worker::{Endpoint, NodeLimits, Shutdown, ShutdownTrigger, WorkerConfig};
use rand::TryRngCore;

use crate::cli::{LayerPlaceArgs, WorkerArgs, WorkerCommand};
use crate::commands::serve::hostname;
use crate::error::CliError;
use crate::settings::Settings;
use crate::signals::Signals;
use crate::{output, places};

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
/// Apptainer is not there, or nothing says where layers and scratch are.
pub async fn machine(place: &LayerPlaceArgs, settings: &Settings) -> Result<Machine, CliError> {
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

    /// Whether the base image was made before.
    #[must_use]
    pub fn has_image(&self) -> bool {
        self.definition.key().is_none_or(|key| self.images().join(format!("{key}.sif")).exists())
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
        base::ensure(&self.apptainer, &self.definition, &images, &self.scratch)
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
    let endpoint = endpoint(&Access::read(access).map_err(CliError::Access)?);
    let machine = machine(&args.place, settings).await?;
    let image = machine.image().await?;
    let config = config(&machine, &image, args.slots, settings)?;
    let outcome = longhaul_worker::run(config, endpoint, shutdown).await.map_err(CliError::Worker);
    bound_layers(&machine, settings);
    outcome
}

/// Removes the least recently used layers beyond the limit. Those of other workers are in
/// use, and stay; a folder that cannot be read or written is the next worker's trouble.
fn bound_layers(machine: &Machine, settings: &Settings) {
    let limit = settings.layers.size_limit;
    if limit == 0 {
        return;
    }
    match LayerStore::open(&machine.layers, None).and_then(|store| store.prune(Bound::Bytes(limit))) {
        Ok(pruned) if pruned.removed.is_empty() => {}
        Ok(pruned) => tracing::info!(removed = pruned.removed.len(), freed = pruned.freed, "layers were removed"),
        Err(error) => tracing::warn!(%error, "the layer folder was not bounded"),
    }
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
    let helper_program = std::env::current_exe().map_err(|source| CliError::File {
        path: PathBuf::from("this program"),
        doing: "found",
        source,
    })?;
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
        helper_program,
        limits: limits(settings, slots, machine.allocation.as_ref()),
        hook_env: settings.proxy.variables(|name| std::env::var(name).ok()),
        slurm_job_id: machine.allocation.as_ref().map(|allocation| allocation.job_id.clone()),
        grace: worker.grace.to_std(),
        verify_limit: worker.verify_limit.to_std(),
        park_limit: worker.park_limit.to_std(),
    })
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

fn endpoint(access: &Access) -> Endpoint {
    match &access.address {
        Address::Unix { path } => Endpoint::Unix { path: path.clone(), token: None },
        Address::Tls { ca_pem, token, .. } => Endpoint::Tls {
            url: format!("https://{}", access.address),
            ca_pem: ca_pem.clone(),
            server_name: Some(TLS_SERVER_NAME.to_owned()),
            token: token.expose().to_owned(),
        },
    }
}

async fn clean(place: &LayerPlaceArgs, settings: &Settings) -> Result<(), CliError> {
    let machine = machine(place, settings).await?;
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
