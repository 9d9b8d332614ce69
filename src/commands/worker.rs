//! `longhaul worker`: takes episodes from a coordinator and runs them here.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use longhaul_apptainer::layers::{Bound, LayerStore};
use longhaul_apptainer::{Apptainer, BaseDefinition, BaseImage, BaseSource, base, filesystem, janitor};
use longhaul_coordinator::pass_file;
use longhaul_core::digest::Digest;
use longhaul_core::ids::WorkerId;
use longhaul_core::time::Timestamp;
use longhaul_proto::access::Access;
use longhaul_proto::v1;
use longhaul_slurm::Allocation;
use longhaul_worker::{Endpoint, NodeLimits, Prepared, Shutdown, ShutdownTrigger, WorkerConfig};
use nix::sys::stat::{Mode, umask};
use rand::TryRngCore;

use crate::bases::{Bases, certificate_variables};
use crate::cli::{LayerPlaceArgs, WorkerArgs, WorkerCommand};
use crate::client::{Client, Source};
use crate::commands::layers::Cited;
use crate::commands::serve::hostname;
use crate::error::CliError;
use crate::settings::{Carry, Settings};
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
    bases: Bases,
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
    let bases = Bases::new(&place.bases, &settings.base)?;
    let apptainer = Apptainer::detect().await.map_err(|error| CliError::Machine(Box::new(error)))?;
    scratch_folder(&scratch)?;
    Ok(Machine { apptainer, layers, scratch, allocation, bases })
}

impl Machine {
    fn folder(&self) -> PathBuf {
        self.layers.join("images")
    }

    /// What an env stands on; what most do, if none is named.
    fn definition(&self, env: Option<&str>) -> &BaseDefinition {
        env.and_then(|env| self.bases.of_envs.get(env)).unwrap_or(&self.bases.usual)
    }

    /// The name under which a program finds the image of an env beside itself; none if it is
    /// not a built-in one.
    #[must_use]
    pub fn shipped_name(&self, env: Option<&str>) -> Option<String> {
        let definition = self.definition(env);
        definition.source.built_in()?;
        definition.key().as_ref().map(places::shipped_name)
    }

    /// The key of the definition of an env's image; none for a file of its own.
    #[must_use]
    pub fn definition_key(&self, env: Option<&str>) -> Option<Digest> {
        self.definition(env).key()
    }

    /// Whether the usual base image was made before.
    #[must_use]
    pub fn has_image(&self) -> bool {
        self.has(&self.bases.usual)
    }

    fn has(&self, definition: &BaseDefinition) -> bool {
        let made = |key| self.folder().join(format!("{key}.sif")).exists();
        with_shipped(definition).source.key().is_none_or(made)
    }

    /// The image that most envs stand on; built if it is not there.
    ///
    /// # Errors
    ///
    /// It is not there and cannot be built.
    pub async fn image(&self) -> Result<BaseImage, CliError> {
        self.image_of(None).await
    }

    /// The image that an env stands on; built if it is not there.
    ///
    /// # Errors
    ///
    /// It is not there and cannot be built.
    pub async fn image_of(&self, env: Option<&str>) -> Result<BaseImage, CliError> {
        let definition = self.definition(env);
        if !self.has(definition) {
            output::note("making the base image; this takes some minutes, once");
        }
        base::ensure(&self.apptainer, &with_shipped(definition), &self.folder(), &self.scratch)
            .await
            .map_err(|error| CliError::Machine(Box::new(error)))
    }

    /// Every image that an env may stand on; built where it is not there.
    ///
    /// # Errors
    ///
    /// One is not there and cannot be built.
    pub async fn images(&self) -> Result<(), CliError> {
        self.image().await?;
        for env in self.bases.of_envs.keys() {
            self.image_of(Some(env)).await?;
        }
        Ok(())
    }
}

/// A built-in image that came with this program is a file that is there.
fn with_shipped(definition: &BaseDefinition) -> BaseDefinition {
    let key = definition.source.built_in().and_then(|_| definition.source.key());
    match key.as_ref().and_then(places::shipped_image) {
        Some(file) => BaseDefinition { source: BaseSource::Sif(file), certificates: definition.certificates.clone() },
        None => definition.clone(),
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
    let named = args.coordinator.ok_or_else(|| CliError::Usage("name a coordinator".to_owned()))?;
    let machine = machine(&args.place, settings).await?;
    let access = &own_access(named, machine.allocation.as_ref());
    let endpoint = Endpoint::of(&Access::read(access).map_err(CliError::Access)?, access);
    let mut config = config(&machine, PathBuf::new(), args.slots, settings)?;
    config.limits.gpus = args.gpus.unwrap_or(config.limits.gpus);
    config.image = if machine.has_image() {
        machine.image().await?.path
    } else {
        // Minutes, for which nobody is to take this worker for dead.
        let made = machine.image();
        let ready = longhaul_worker::prepare(&config, &endpoint, shutdown.clone(), "making the base image", made);
        match ready.await.map_err(CliError::Worker)? {
            Prepared::Ready(image) => image?.path,
            Prepared::Dismissed => return Ok(()),
        }
    };
    let outcome = longhaul_worker::run(config, endpoint, shutdown).await.map_err(CliError::Worker);
    bound_layers(&machine, access, settings).await;
    outcome
}

/// The access file that is meant: in an allocation, a folder has one for each task of the array.
fn own_access(named: PathBuf, allocation: Option<&Allocation>) -> PathBuf {
    match allocation {
        Some(allocation) if named.is_dir() => named.join(pass_file(task_of(allocation))),
        _ => named,
    }
}

/// The index of an allocation in its array; 0 if it is in none.
fn task_of(allocation: &Allocation) -> u32 {
    allocation.array.as_ref().map_or(0, |place| place.index)
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
    image: PathBuf,
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
        carry_layers: carries(settings.layers.carry, machine),
        image,
        bases: machine.bases.of_envs.iter().map(|(env, base)| (env.clone(), with_shipped(base))).collect(),
        helper_program: PathBuf::from(THIS_PROGRAM),
        limits: limits(settings, slots, machine.allocation.as_ref()),
        hook_env: hook_env(settings),
        slurm_job_id: machine.allocation.as_ref().map(|allocation| allocation.job_id.clone()),
        allocation: machine.allocation.as_ref().and_then(asked_for),
        grace: worker.grace.to_std(),
        verify_limit: worker.verify_limit.to_std(),
        park_limit: worker.park_limit.to_std(),
    })
}

/// Whether layers go to other nodes, and come from them, through the coordinator.
fn carries(carry: Carry, machine: &Machine) -> bool {
    match carry {
        Carry::Always => true,
        Carry::Never => false,
        // In an allocation there are other nodes; and they do not see this one's own disk.
        Carry::Auto => {
            machine.allocation.is_some()
                && filesystem::FileSystem::of(&machine.layers)
                    .is_ok_and(|system| system.kind == filesystem::Kind::Local)
        }
    }
}

/// What hooks of envs with a network see beside their own variables.
pub(crate) fn hook_env(settings: &Settings) -> BTreeMap<String, String> {
    let mut variables = settings.proxy.variables(|name| std::env::var(name).ok());
    variables.extend(certificate_variables(&settings.base));
    variables
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
        starts: worker.starts,
        cache_bytes: worker.cache_size,
        disk_floor_mib: worker.disk_floor / MIB,
        spool_bytes: worker.spool_size,
        spool_steps: worker.spool_steps,
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

    #[test]
    fn a_worker_in_an_array_takes_the_access_file_of_its_own_task() {
        let folder = tempfile::tempdir().expect("a folder");
        let of = |array: bool| {
            Allocation::parse(|name| match name {
                "SLURM_JOB_ID" => Some("9".to_owned()),
                "SLURM_ARRAY_JOB_ID" => array.then(|| "7".to_owned()),
                "SLURM_ARRAY_TASK_ID" => array.then(|| "2".to_owned()),
                _ => None,
            })
            .expect("an allocation")
        };
        let named = folder.path().to_owned();
        assert_eq!(own_access(named.clone(), of(true).as_ref()), named.join("2.json"));
        assert_eq!(own_access(named.clone(), of(false).as_ref()), named.join("0.json"));
        let file = named.join("access.json");
        assert_eq!(own_access(file.clone(), of(true).as_ref()), file);
    }
}
