//! `longhaul worker`: takes episodes from a coordinator and runs them here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use longhaul_apptainer::janitor::Cleared;
use longhaul_apptainer::layers::{Bound, LayerStore, Pruned, StoreError};
use longhaul_apptainer::{Gpus, filesystem, janitor};
use longhaul_core::digest::Digest;
use longhaul_core::ids::WorkerId;
use longhaul_core::text::chain;
use longhaul_core::time::Timestamp;
use longhaul_proto::access::{Access, AccessError, MAX_MESSAGE_BYTES, pass_file};
use longhaul_proto::convert::{self, ConvertError};
use longhaul_proto::v1;
use longhaul_proto::v1::control_service_client::ControlServiceClient;
use longhaul_slurm::Allocation;
use longhaul_worker::{DeadHomes, Endpoint, NodeLimits, Prepared, Shutdown, ShutdownTrigger, WorkerConfig};
use rand::TryRngCore;

use crate::bases::certificate_variables;
use crate::cli::{LayerPlaceArgs, WorkerArgs, WorkerCommand};
use crate::error::NodeError;
use crate::files;
use crate::machine::{Machine, THIS_PROGRAM, call_limits, found, hostname, machine, with_shipped};
use crate::output;
use crate::settings::{Carry, Settings};
use crate::signals::Signals;

/// How long a screen is given to come out as it was recorded: a busy node draws later than the one
/// before it, and never by so much.
const REPLAY_PATIENCE: Duration = Duration::from_secs(15);

/// Where a node's devices are.
const DEVICES: &str = "/dev";

/// Where all workers of a node, whosever they are, see each other's locks.
const LOCKS: &str = "/tmp";

/// Works until a signal, or does what the subcommand says.
///
/// # Errors
///
/// The machine lacks something, or the coordinator cannot be reached or refuses.
pub async fn worker(args: WorkerArgs, settings: &Settings) -> Result<(), NodeError> {
    if let Some(WorkerCommand::Clean { place, undelivered }) = args.command {
        return clean(&place, undelivered, settings).await;
    }
    // First of all, so that a signal that comes early is heard.
    let (trigger, shutdown) = Shutdown::new();
    hear(trigger, args.tethered)?;
    let named = args.coordinator.ok_or_else(|| NodeError::Usage("name a coordinator".to_owned()))?;
    let machine = machine(&args.place, settings).await?;
    let access = &own_access(named, machine.allocation.as_ref());
    let endpoint = Endpoint::of(&Access::read(access).map_err(NodeError::Access)?, access);
    let mut config = config(&machine, PathBuf::new(), args.slots, settings)?;
    // The locks say to other workers of this node which are taken, for as long as this one works.
    let (gpus, _locks) = gpus(args.gpus.unwrap_or(settings.worker.gpus), machine.allocation.as_ref())?;
    config.gpus = gpus;
    config.image = if machine.has_image() {
        machine.image().await?.path
    } else {
        // Minutes, for which nobody is to take this worker for dead.
        let made = machine.image();
        let ready = longhaul_worker::prepare(&config, &endpoint, shutdown.clone(), "making the base image", made);
        match ready.await.map_err(NodeError::Worker)? {
            Prepared::Ready(image) => image?.path,
            Prepared::Dismissed => return Ok(()),
        }
    };
    let outcome = longhaul_worker::run(config, endpoint, shutdown).await.map_err(NodeError::Worker);
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

/// Why the layer folder was not bounded.
#[derive(Debug, thiserror::Error)]
enum BoundError {
    /// The folder.
    #[error("the layer folder cannot be used")]
    Folder(#[from] StoreError),
    /// The coordinator, which knows what runs stand on.
    #[error("the coordinator cannot be reached")]
    Access(#[from] AccessError),
    /// It does not say.
    #[error("the coordinator does not say what runs stand on: {}", _0.message())]
    Refused(#[from] tonic::Status),
    /// It says what cannot be understood.
    #[error("the coordinator's answer cannot be understood")]
    Answer(#[from] ConvertError),
}

/// Removes the least recently used layers beyond the limit. Those of other workers are in
/// use, and stay, as do those that runs of the coordinator stand on; a folder that cannot be read
/// or written is the next worker's trouble.
async fn bound_layers(machine: &Machine, access: &Path, settings: &Settings) {
    let limit = settings.layers.size_limit;
    if limit == 0 {
        return;
    }
    match prune(&machine.layers, access, limit).await {
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

/// Removes layers if there are more than the limit allows.
async fn prune(layers: &Path, access: &Path, limit: u64) -> Result<Option<Pruned>, BoundError> {
    let store = LayerStore::open(layers, None)?;
    let total: u64 = store.list()?.iter().map(|(manifest, _)| manifest.bytes()).sum();
    if total <= limit {
        return Ok(None);
    }
    Ok(Some(store.prune(Bound::Bytes(limit), &cited(access).await?)?))
}

/// The layers that runs of the coordinator stand on.
async fn cited(access: &Path) -> Result<BTreeSet<Digest>, BoundError> {
    let connection = Access::read(access)?.connect().await?;
    let mut control = ControlServiceClient::new(connection).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let mut cited = BTreeSet::new();
    for run in control.list_runs(v1::ListRunsRequest {}).await?.into_inner().runs {
        let layers = control.list_layers(v1::ListLayersRequest { run_id: run.run_id }).await?.into_inner().layers;
        for layer in layers {
            cited.insert(convert::digest("key", &layer.key)?);
        }
    }
    Ok(cited)
}

/// TERM and INT, and the end of whoever holds the tether, tell the worker to stop.
fn hear(trigger: ShutdownTrigger, tethered: bool) -> Result<(), NodeError> {
    let mut signals = Signals::new().map_err(|error| NodeError::Machine(Box::new(error)))?;
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

/// How a worker works on a machine, over an image; without graphics processors, as layers are built.
///
/// # Errors
///
/// The system has no random number.
pub fn config(
    machine: &Machine,
    image: PathBuf,
    slots: Option<u32>,
    settings: &Settings,
) -> Result<WorkerConfig, NodeError> {
    let random = rand::rngs::OsRng.try_next_u32().map_err(|error| NodeError::Machine(Box::new(error)))?;
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
        gpus: None,
        certificates: machine.bases.certificate_files.clone(),
        hook_env: hook_env(settings),
        slurm_job_id: machine.allocation.as_ref().map(|allocation| allocation.job_id.clone()),
        allocation: machine.allocation.as_ref().and_then(asked_for),
        grace: worker.grace.to_std(),
        verify_limit: worker.verify_limit.to_std(),
        park_limit: worker.park_limit.to_std(),
        replay_patience: REPLAY_PATIENCE,
    })
}

/// The graphics processors that there are for this process.
pub(crate) fn present_gpus() -> std::io::Result<Option<Gpus>> {
    Gpus::look(Path::new(DEVICES), |name| std::env::var(name).ok())
}

/// So many of them, with the locks that say so; fewer, if there are not as many, or other workers have them.
fn gpus(asked: u32, allocation: Option<&Allocation>) -> Result<(Option<Gpus>, Vec<File>), NodeError> {
    if asked == 0 {
        return Ok((None, Vec::new()));
    }
    let found = present_gpus().map_err(|source| NodeError::File { path: DEVICES.into(), doing: "examined", source })?;
    let most = usize::try_from(asked).unwrap_or(usize::MAX);
    let job = allocation.map(|allocation| allocation.job_id.as_str());
    let (gpus, locks) = match found {
        Some(found) => found.claim(most, job, Path::new(LOCKS)).map_err(|error| NodeError::Machine(Box::new(error)))?,
        None => (None, Vec::new()),
    };
    if u32::try_from(locks.len()) != Ok(asked) {
        let offered = locks.len();
        tracing::warn!(
            asked,
            offered,
            "fewer graphics processors than were asked for are here and not another worker's; see `longhaul doctor`"
        );
    }
    Ok((gpus, locks))
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
#[must_use]
pub fn hook_env(settings: &Settings) -> BTreeMap<String, String> {
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
        max_slots: files::bound(slots.unwrap_or(worker.slots)),
        starts: worker.starts,
        cache_bytes: worker.cache_size,
        disk_floor_mib: worker.disk_floor / MIB,
        spool_bytes: worker.spool_size,
        spool_steps: worker.spool_steps,
        calls: call_limits(settings),
    }
}

/// Clears away what dead workers left: what runs of their sandboxes and builds, their folders, and
/// those of their own. What they had recorded and not delivered is kept for the next worker, unless it is
/// to go as well.
async fn clean(place: &LayerPlaceArgs, undelivered: bool, settings: &Settings) -> Result<(), NodeError> {
    let machine = found(place, settings).await?;
    let image = if machine.has_image() { Some(machine.image().await?.path) } else { None };
    let Machine { apptainer, scratch, .. } = &machine;
    let Cleared { mut removed, held, foreign, mut failed } = janitor::clean(apptainer, image.as_deref(), scratch)
        .await
        .map_err(|error| NodeError::Machine(Box::new(error)))?;
    let homes = DeadHomes::look(scratch, undelivered).map_err(NodeError::Worker)?;
    for folder in homes.removable() {
        let outcome = match &image {
            Some(image) => apptainer.remove_folder(image, scratch, folder).await.map_err(|error| chain(&error)),
            None => std::fs::remove_dir_all(folder).map_err(|error| error.to_string()),
        };
        match outcome {
            Ok(()) => removed.push(folder.to_owned()),
            Err(reason) => failed.push((folder.to_owned(), reason)),
        }
    }
    for folder in &removed {
        output::note(&format!("removed {}", folder.display()));
    }
    for folder in &held {
        output::note(&format!("left alone, since a worker uses it: {}", folder.display()));
    }
    for folder in &foreign {
        output::note(&format!("left alone, since it is only called like ours: {}", folder.display()));
    }
    for folder in homes.undelivered() {
        output::note(&format!("kept for the next worker here, which delivers it: {}", folder.display()));
    }
    for (folder, reason) in &failed {
        output::note(&format!("could not be removed: {}: {}", folder.display(), output::escape(reason)));
    }
    if removed.is_empty() && failed.is_empty() {
        output::note(&format!("nothing was left in {}", scratch.display()));
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
