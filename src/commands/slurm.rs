//! `longhaul slurm`, and how `--slurm` of `run` and `serve` asks for workers.

mod advice;

use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use longhaul_coordinator::allocator::{PoolConfig, SlurmConfig, batch_script, token_prefix};
use longhaul_coordinator::{ACCESS_FOLDER, Listen, PASSES_FOLDER, StartError};
use longhaul_core::time::Millis;
use longhaul_engine::state::Capacity;
use longhaul_engine::{Pool, PoolId};
use longhaul_node::error::NodeError;
use longhaul_proto::v1;
use longhaul_slurm::{Failure, Limits, Memory, Template, WarningSignal, WorkerCommand};
use serde_json::json;

use crate::bases;
use crate::cli::LayerPlaceArgs;
use crate::client::Client;
use crate::commands::generations;
use crate::error::CliError;
use crate::machine::{THIS_PROGRAM, hostname, machine};
use crate::output::{self, Format, Table, Tone};
use crate::places::absolute;
use crate::settings::{PoolSettings, Settings};
use crate::{places, units};

const MIB: u64 = 1 << 20;

/// `longhaul slurm`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  longhaul slurm script
  longhaul slurm script short | sbatch --test-only
  longhaul slurm plan --store results
  longhaul slurm why --store results
  longhaul slurm resume short --store results

The pools are `[slurm.pools.NAME]` in the settings; see docs/slurm.md.")]
pub struct SlurmArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: SlurmCommand,
}

/// What can be done about allocations.
#[derive(Debug, Subcommand)]
pub enum SlurmCommand {
    /// Print the batch script that allocations of a pool are asked with.
    #[command(after_help = "\
Example:
  longhaul slurm script short | sbatch --test-only
  longhaul slurm script --coordinator")]
    Script {
        /// The pool; may be left out if there is one only.
        pool: Option<String>,
        /// That of the coordinator itself, for `longhaul serve --slurm --as-allocation`.
        #[arg(long, conflicts_with = "pool")]
        coordinator: bool,
        /// The folder of the store that the coordinator will have.
        #[arg(long, value_name = "DIR")]
        store: Option<PathBuf>,
        /// Where layers and scratch of workers are.
        #[command(flatten)]
        place: LayerPlaceArgs,
    },
    /// Say what a coordinator would ask Slurm for now, and what holds it back.
    #[command(after_help = "\
Example:
  longhaul slurm plan --store results")]
    Plan(PoolsArgs),
    /// Say why nothing starts: pending reasons, limits, paused pools, every allocation.
    #[command(after_help = "\
Example:
  longhaul slurm why --store results")]
    Why(PoolsArgs),
    /// Let a pool that was paused ask again.
    #[command(after_help = "\
Example:
  longhaul slurm resume short --store results")]
    Resume {
        /// The pool.
        pool: String,
        /// Which coordinator.
        #[command(flatten)]
        which: PoolsArgs,
    },
}

/// A coordinator that runs.
#[derive(Debug, Args)]
pub struct PoolsArgs {
    /// The access file of the coordinator.
    #[arg(long, value_name = "ACCESS", conflicts_with = "store")]
    pub coordinator: Option<PathBuf>,
    /// The folder of its store.
    #[arg(long, value_name = "DIR")]
    pub store: Option<PathBuf>,
    /// The form of the answer.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// Does what is asked about allocations.
///
/// # Errors
///
/// The settings give no script, or the coordinator cannot be asked or refuses.
pub async fn slurm(args: SlurmArgs, settings: &Settings, file: Option<&Path>) -> Result<(), CliError> {
    match args.command {
        SlurmCommand::Script { pool, coordinator, store, place } => {
            let store = places::store(store.as_deref(), settings)?;
            if coordinator {
                let text = generations::script(&absolute(&store)?, &place, settings, file)?;
                return output::data(&text).map_err(CliError::Output);
            }
            print_script(pool.as_deref(), &store, &place, settings, file)
        }
        SlurmCommand::Plan(which) => plan(&which, settings).await,
        SlurmCommand::Why(which) => why(&which, settings).await,
        SlurmCommand::Resume { pool, which } => {
            let client = client(&which, settings).await?;
            let request = v1::ResumePoolRequest { pool: pool.clone() };
            client.control.clone().resume_pool(request).await.map_err(client.refused("resume the pool"))?;
            output::note(&format!("pool {} asks again", output::escape_line(&pool)));
            Ok(())
        }
    }
}

/// Where a coordinator listens for workers in allocations.
#[must_use]
pub fn listen(settings: &Settings) -> Listen {
    let slurm = &settings.slurm;
    Listen { address: slurm.listen, host: slurm.host.clone().unwrap_or_else(hostname) }
}

/// How a coordinator over `store` asks Slurm for workers.
///
/// # Errors
///
/// A folder that is needed cannot be named.
pub fn config(
    store: &Path,
    place: &LayerPlaceArgs,
    settings: &Settings,
    file: Option<&Path>,
) -> Result<SlurmConfig, CliError> {
    let slurm = &settings.slurm;
    let logs = logs(store, settings)?;
    let pools = slurm.pools.iter().map(|(name, pool)| pool_config(name, pool, &logs, place, settings, file));
    let pools: Vec<PoolConfig> = pools.collect::<Result<_, _>>()?;
    for pool in &pools {
        // What cannot be a script is said now, and is no reason for a pool to pause later.
        batch_script(pool, &passes(store)?, &example_token(), 1, pool.pool.walltime)
            .map_err(|source| CliError::Pool { pool: pool.pool.id.0.clone(), source })?;
    }
    Ok(SlurmConfig { pools, poll: slurm.poll.to_std(), limits: limits(settings) })
}

/// How long Slurm's programs may take.
pub(crate) fn limits(settings: &Settings) -> Limits {
    Limits { query: settings.slurm.query_limit.to_std(), change: settings.slurm.change_limit.to_std() }
}

fn pool_config(
    name: &str,
    pool: &PoolSettings,
    logs: &Path,
    place: &LayerPlaceArgs,
    settings: &Settings,
    file: Option<&Path>,
) -> Result<PoolConfig, CliError> {
    let memory_mib = pool.memory / MIB;
    let offer =
        Capacity { cpu_millis: pool.cpus.saturating_mul(1000), memory_mib, gpus: pool.gpus, max_slots: pool.slots };
    let minutes = u32::try_from(pool.time.0.div_ceil(60_000)).unwrap_or(u32::MAX);
    Ok(PoolConfig {
        pool: Pool {
            id: PoolId(name.to_owned()),
            // Set when the coordinator starts.
            token_prefix: String::new(),
            offer,
            walltime: pool.time,
            array: pool.array,
            max_workers: pool.max_workers,
            max_queued: pool.max_queued,
            max_node_time: Some(pool.max_node_time).filter(|limit| limit.0 > 0),
            idle: pool.idle,
            max_failures: pool.max_failures,
        },
        template: Template {
            partition: pool.partition.clone(),
            account: pool.account.clone(),
            qos: pool.qos.clone(),
            constraint: pool.constraint.clone(),
            gres: pool.gres.clone(),
            cpus: NonZeroU32::new(pool.cpus),
            memory: Some(Memory::Mib(memory_mib)),
            exclusive: pool.exclusive,
            time_limit_minutes: minutes,
            warning_seconds: u16::try_from(pool.warning.0.div_ceil(1000)).unwrap_or(u16::MAX),
            warning_signal: WarningSignal::Term,
            requeue: pool.requeue,
            output_folder: logs.to_owned(),
            options: pool.options.clone(),
            prologue: pool.prologue.clone(),
        },
        worker: worker_command(pool, place, settings, file)?,
    })
}

/// The worker of an allocation; the coordinator adds the file by which it is found.
fn worker_command(
    pool: &PoolSettings,
    place: &LayerPlaceArgs,
    settings: &Settings,
    file: Option<&Path>,
) -> Result<WorkerCommand, CliError> {
    let program = match &settings.slurm.program {
        Some(program) => program.clone(),
        None => node_program()?,
    };
    let mut args = arguments(&["worker"], place, settings, file)?;
    let mut option = |name: &str, value: String| args.extend([name.to_owned(), value]);
    if pool.slots > 0 {
        option("--slots", pool.slots.to_string());
    }
    if pool.gpus > 0 {
        option("--gpus", pool.gpus.to_string());
    }
    args.push("--coordinator".to_owned());
    Ok(WorkerCommand { program, args })
}

/// What starts a command in an allocation, with the settings and layers of this one.
///
/// # Errors
///
/// A folder cannot be named.
pub(crate) fn arguments(
    command: &[&str],
    place: &LayerPlaceArgs,
    settings: &Settings,
    file: Option<&Path>,
) -> Result<Vec<String>, CliError> {
    let mut args = vec!["-v".to_owned()];
    if let Some(file) = file {
        args.extend(["--settings".to_owned(), absolute(file)?.display().to_string()]);
    }
    args.extend(command.iter().map(|word| (*word).to_owned()));
    let mut option = |name: &str, value: String| args.extend([name.to_owned(), value]);
    option("--layers", absolute(&places::layers(place.layers.as_deref(), settings)?)?.display().to_string());
    for base in &place.bases {
        // A script starts in another folder.
        option("--base", bases::anywhere(base)?);
    }
    if let Some(scratch) = &place.scratch {
        option("--scratch", absolute(scratch)?.display().to_string());
    }
    Ok(args)
}

/// This program, by its path.
///
/// # Errors
///
/// The system does not say where it is.
pub(crate) fn this_program() -> Result<PathBuf, CliError> {
    std::env::current_exe().map_err(|source| CliError::File { path: THIS_PROGRAM.into(), doing: "found", source })
}

/// What allocations start: the node's program where it lies beside this one, which works as well.
fn node_program() -> Result<PathBuf, CliError> {
    let this = this_program()?;
    let beside = this.with_file_name(longhaul_node::PROGRAM);
    Ok(if beside.is_file() { beside } else { this })
}

/// The token of no submission.
fn example_token() -> String {
    format!("{}{:016x}", token_prefix(0), 0)
}

/// The engine's settings for a coordinator that asks Slurm: a worker gets no episode that its
/// warning would soon cut off. Slurm may be a minute early with it.
#[must_use]
pub fn engine_settings(engine: longhaul_engine::Settings, settings: &Settings) -> longhaul_engine::Settings {
    const EARLY: u64 = 60_000;
    let warning = settings.slurm.pools.values().map(|pool| pool.warning.0).max().unwrap_or(0);
    let least = Millis(warning.saturating_add(2 * EARLY));
    longhaul_engine::Settings { min_remaining: engine.min_remaining.max(least), ..engine }
}

/// Finds out whether Slurm can be asked at all, which is said before anything takes long. Then the
/// base image is made here, if this machine can: on a fresh layer folder every worker would
/// wait for the first one to make it, and nodes often have no way out.
///
/// # Errors
///
/// Slurm's programs are not there or see no cluster, or the image cannot be made.
pub async fn prepare(place: &LayerPlaceArgs, settings: &Settings) -> Result<(), CliError> {
    let failed = |failure| CliError::Start(StartError::Slurm(failure));
    let random = u64::from(std::process::id());
    let client = longhaul_slurm::Client::connect(longhaul_slurm::System::default(), random, limits(settings));
    let client = client.await.map_err(failed)?;
    let seen = async { Ok::<_, Failure>((client.config().await?, client.partitions().await?)) };
    match seen.await {
        Ok((cluster, partitions)) => {
            for said in advice::advice(&cluster, &partitions, settings) {
                output::note(&output::escape(&said));
            }
        }
        Err(failure @ Failure::NoCluster { .. }) => return Err(failed(failure)),
        // It may be away for a while, and is asked again and again.
        Err(failure) => {
            let why = output::escape(&failure.to_string());
            output::note(&format!("what Slurm has is not known, and nothing is asked for until it is: {why}"));
        }
    }
    match machine(place, settings).await {
        Ok(machine) => Ok(machine.images().await?),
        Err(error) => {
            output::note(&format!(
                "the base image cannot be made here ({error}); if it is not in the layer folder yet, the first worker \
                 makes it, and the others wait for it: see `longhaul base --help`"
            ));
            Ok(())
        }
    }
}

/// Where the access files of allocations are.
fn passes(store: &Path) -> Result<PathBuf, NodeError> {
    absolute(&store.join(ACCESS_FOLDER).join(PASSES_FOLDER))
}

/// Where allocations write what they print.
///
/// # Errors
///
/// The folder cannot be named.
pub(crate) fn logs(store: &Path, settings: &Settings) -> Result<PathBuf, NodeError> {
    absolute(&settings.slurm.logs.clone().unwrap_or_else(|| store.join("logs")))
}

fn print_script(
    name: Option<&str>,
    store: &Path,
    place: &LayerPlaceArgs,
    settings: &Settings,
    file: Option<&Path>,
) -> Result<(), CliError> {
    let pools = &settings.slurm.pools;
    let known = || pools.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    let (name, pool) = match name {
        Some(name) => pools
            .get_key_value(name)
            .ok_or_else(|| CliError::Usage(format!("there is no pool {name}; there are: {}", known())))?,
        None => match pools.first_key_value() {
            Some(first) if pools.len() == 1 => first,
            _ => return Err(CliError::Usage(format!("name one of the pools: {}", known()))),
        },
    };
    let config = pool_config(name, pool, &logs(store, settings)?, place, settings, file)?;
    let count = pool.max_queued.min(pool.max_workers);
    let text = batch_script(&config, &passes(store)?, &example_token(), count, pool.time)
        .map_err(|source| CliError::Pool { pool: name.clone(), source })?;
    output::data(&text).map_err(CliError::Output)
}

async fn client(which: &PoolsArgs, settings: &Settings) -> Result<Client, CliError> {
    match &which.coordinator {
        Some(access) => Client::open(access).await,
        None => Client::of_store(&places::store(which.store.as_deref(), settings)?).await,
    }
}

async fn pools(which: &PoolsArgs, settings: &Settings) -> Result<v1::ListPoolsResponse, CliError> {
    let client = client(which, settings).await?;
    let answer = client.control.clone().list_pools(v1::ListPoolsRequest {}).await;
    Ok(answer.map_err(client.refused("list its pools"))?.into_inner())
}

async fn plan(which: &PoolsArgs, settings: &Settings) -> Result<(), CliError> {
    let answer = pools(which, settings).await?;
    if which.format == Format::Json {
        return output::json(&json!(answer.pools.iter().map(pool_json).collect::<Vec<_>>())).map_err(CliError::Output);
    }
    let mut table =
        Table::new(&["pool", "waiting", "wanted", "asks for", "each for", "has", "in queue", "held back by"]);
    for pool in &answer.pools {
        table.row([
            (pool.pool.clone(), Tone::Plain),
            (pool.episodes.to_string(), Tone::Plain),
            (pool.wanted.to_string(), Tone::Plain),
            (pool.count.to_string(), Tone::Plain),
            (units::show_duration(Millis(pool.walltime_millis)), Tone::Plain),
            (pool.live.to_string(), Tone::Plain),
            (pool.queued.to_string(), Tone::Plain),
            (pool.holds.join("; "), Tone::Plain),
        ]);
    }
    output::data(&(nothing(&answer) + &table.render(output::stdout_colours()))).map_err(CliError::Output)
}

async fn why(which: &PoolsArgs, settings: &Settings) -> Result<(), CliError> {
    let answer = pools(which, settings).await?;
    if which.format == Format::Json {
        return output::json(&json!({
            "slurm": answer.slurm,
            "queue_problem": Some(&answer.queue_problem).filter(|text| !text.is_empty()),
            "pools": answer.pools.iter().map(pool_json).collect::<Vec<_>>(),
            "set_aside": answer.set_aside.iter().map(|row| json!({
                "episode": row.episode_id,
                "task": row.task,
                "reason": row.reason,
                "at_millis": row.at_millis,
            })).collect::<Vec<_>>(),
        }))
        .map_err(CliError::Output);
    }
    let place = match (&which.coordinator, &which.store) {
        (Some(access), _) => format!(" --coordinator {}", access.display()),
        (None, Some(store)) => format!(" --store {}", store.display()),
        (None, None) => String::new(),
    };
    output::data(&why_text(&answer, &place, output::stdout_colours())).map_err(CliError::Output)
}

/// What there is to say when there are no pools.
fn nothing(answer: &v1::ListPoolsResponse) -> String {
    match (answer.slurm, answer.pools.is_empty()) {
        (false, _) => "this coordinator was not started with --slurm, and asks for nothing\n".to_owned(),
        (true, true) => "there are no pools\n".to_owned(),
        (true, false) => String::new(),
    }
}

/// Appends what is formatted.
fn push(text: &mut String, what: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = text.write_fmt(what);
}

fn why_text(answer: &v1::ListPoolsResponse, place: &str, colours: bool) -> String {
    let mut text = nothing(answer);
    if answer.slurm && !answer.queue_problem.is_empty() {
        text.extend(["the queue: ", &output::escape_line(&answer.queue_problem), "\n"]);
    }
    for pool in &answer.pools {
        let used = units::show_duration(Millis(pool.used_millis));
        push(
            &mut text,
            format_args!(
                "\npool {}: {} workers or on their way, {} of them in the queue; {used} of nodes used so far\n",
                output::escape_line(&pool.pool),
                pool.live,
                pool.queued
            ),
        );
        if pool.wanted == 0 {
            text.push_str("  nothing more is wanted: no due episode waits for a worker of it\n");
        } else {
            push(
                &mut text,
                format_args!(
                    "  {} episodes wait, which {} workers more would hold; {} are asked for now\n",
                    pool.episodes, pool.wanted, pool.count
                ),
            );
        }
        for hold in &pool.holds {
            text.extend(["  - ", &output::escape_line(hold), "\n"]);
        }
        if pool.paused {
            push(
                &mut text,
                format_args!(
                    "  when that is mended: longhaul slurm resume {}{place}\n",
                    output::escape_line(&pool.pool)
                ),
            );
        }
        if !pool.allocations.is_empty() {
            let mut table = Table::new(&["  allocation", "job", "state", "node", "why"]);
            for row in &pool.allocations {
                let tone = if row.state == "running" { Tone::Good } else { Tone::Plain };
                table.row([
                    (format!("  {}", row.allocation), Tone::Plain),
                    (row.job.clone(), Tone::Plain),
                    (row.state.clone(), tone),
                    (row.node.clone(), Tone::Plain),
                    (row.reason.clone(), Tone::Plain),
                ]);
            }
            text.push_str(&table.render(colours));
        }
    }
    if !answer.set_aside.is_empty() {
        text.push_str("\nset aside, for what is not their own fault:\n");
    }
    for row in &answer.set_aside {
        let (task, reason) = (output::escape_line(&row.task), output::escape_line(&row.reason));
        push(&mut text, format_args!("  - {} ({task}): {reason}\n", row.episode_id));
    }
    text
}

fn pool_json(pool: &v1::PoolRow) -> serde_json::Value {
    json!({
        "pool": pool.pool,
        "episodes": pool.episodes,
        "wanted": pool.wanted,
        "count": pool.count,
        "walltime_millis": pool.walltime_millis,
        "live": pool.live,
        "queued": pool.queued,
        "used_millis": pool.used_millis,
        "committed_millis": pool.committed_millis,
        "paused": pool.paused,
        "holds": pool.holds,
        "allocations": pool.allocations.iter().map(|row| json!({
            "allocation": row.allocation,
            "job": Some(&row.job).filter(|job| !job.is_empty()),
            "state": row.state,
            "node": Some(&row.node).filter(|node| !node.is_empty()),
            "ends_at_millis": Some(row.ends_at_millis).filter(|at| *at > 0),
            "restarts": row.restarts,
            "reason": row.reason,
        })).collect::<Vec<_>>(),
    })
}
