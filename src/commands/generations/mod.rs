//! A coordinator in allocations of its own, for login nodes that end what runs for long: one
//! generation after the other over one store, each in a job that has the next one in the queue.
//!
//! ```text
//! generation 1 ──────────────┐ closes the store, says so
//!      └ asks for 2          └─▶ generation 2 ──────────────┐
//!        (afterany:1?after:1+M)      └ asks for 3           └─▶ ...
//! ```
//!
//! The next one begins a while before the end of the one before, or when that is gone for whatever
//! reason; it asks for the store over the same authenticated channel that commands use, gets the keys of
//! vendors, which are in memory alone, and waits until the store is closed.

mod job;
mod record;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use longhaul_coordinator::{Config, Coordinator, StartError};
use longhaul_core::text::chain;
use longhaul_proto::access::Secret;
use longhaul_proto::v1;
use longhaul_slurm::Allocation;
use longhaul_store::{OpenError, OpenOptions, Store};
use rand::TryRngCore;
use tokio::signal::unix::{SignalKind, signal};

pub(crate) use self::job::refuse_served;
use self::job::{Jobs, Wanted};
pub(crate) use self::record::is_served;
use self::record::{Next, Record, Turn};
use crate::cli::{LayerPlaceArgs, ServeArgs, SourceArgs};
use crate::client::{Client, remote_access};
use crate::commands::run::{cluster, secrets};
use crate::commands::{serve, slurm};
use crate::error::CliError;
use crate::output;
use crate::places;
use crate::settings::Settings;
use crate::signals::Signals;

/// How often is looked again for what will be there soon.
const LOOK: Duration = Duration::from_secs(1);

/// How often a generation that waits for the store asks Slurm whether it is its turn.
const TURN: Duration = Duration::from_secs(3);

/// How often one that serves looks whether it still should, and whether anybody needs it.
const BEAT: Duration = Duration::from_secs(5);

/// How often Slurm is asked about the job that a command waits for.
const ASK: Duration = Duration::from_secs(20);

/// How often is looked whether the next one is in the queue.
const AGAIN: Duration = Duration::from_secs(60);

/// How long the lock of a store is waited for whose holder is known to be over: servers of shared
/// disks let go of the locks of a dead node after a while.
const LOCK_LIMIT: Duration = Duration::from_secs(600);

/// How often in a row a command follows another coordinator that goes away at once.
const TRIES_IN_VAIN: u32 = 10;

/// How long a command waits for the next one.
const NEXT_LIMIT: Duration = Duration::from_secs(600);

/// Why a generation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The coordinator failed, or its file cannot say that it serves.
    Failed,
    /// The next one has the store, or will have it: its time is over.
    Followed,
    /// Somebody cancelled the job.
    Cancelled,
    /// Nobody needs it.
    Idle,
    /// Another one serves: this one closes the store, and leaves the file about it to that one.
    Superseded,
}

/// The batch script of a first generation.
///
/// # Errors
///
/// A setting cannot be written into it.
pub(crate) fn script(
    store: &Path,
    place: &LayerPlaceArgs,
    settings: &Settings,
    file: Option<&Path>,
) -> Result<String, CliError> {
    Wanted::of(store, place, settings, file)?.script(1, None)
}

/// Asks for the first generation, or finds the one that is there; gives it this process's keys once
/// it answers.
///
/// # Errors
///
/// Slurm refuses, or the job ends before it answers.
pub(crate) async fn ask(args: &ServeArgs, settings: &Settings, file: Option<&Path>) -> Result<(), CliError> {
    let mut signals = Signals::new().map_err(|error| CliError::Machine(Box::new(error)))?;
    let named = places::store(args.store.as_deref(), settings)?;
    let at = |path: &Path, doing| {
        let path = path.to_owned();
        move |source| CliError::File { path, doing, source }
    };
    std::fs::create_dir_all(&named).map_err(at(&named, "made"))?;
    // By the name that every node knows it by.
    let store = std::fs::canonicalize(&named).map_err(at(&named, "found"))?;
    // What a generation would find wrong is said here.
    slurm::config(&store, &args.place, settings, file)?;
    let jobs = Jobs::connect(Wanted::of(&store, &args.place, settings, file)?, slurm::limits(settings)).await?;
    let record = tokio::select! {
        record = settled_record(&store, &jobs) => record?,
        () = signals.next() => return Err(CliError::Interrupted),
    };
    // One that has ended may be seen in the queue for a while.
    let over = record.as_ref().filter(|record| record.ended).map(|record| record.generation);
    let known = jobs.all().await?;
    let last = record.as_ref().map_or(0, |record| record.generation);
    let closed = record.filter(|record| record.closed);
    // A generation gives up where none is to follow: this is undone before its job can begin.
    let open = closed.clone().map(|record| Record { closed: false, ..record });
    let reopen = || open.as_ref().map_or(Ok(()), |record| record.write(&store)).map_err(at(&store, "written"));
    let there =
        known.iter().filter_map(|job| jobs.generation(job)).filter(|there| over.is_none_or(|over| *there > over));
    let generation = match there.min() {
        Some(there) => {
            output::note("its allocation is in the queue already");
            reopen()?;
            there
        }
        None => {
            tokio::select! {
                made = slurm::prepare(&args.place, settings) => made?,
                () = signals.next() => return Err(CliError::Interrupted),
            }
            make_store(store.clone()).await?;
            std::fs::create_dir_all(jobs.wanted().logs()).map_err(at(jobs.wanted().logs(), "made"))?;
            reopen()?;
            if let Err(error) = jobs.ask(last + 1, None).await {
                // Whoever watches would wait for one that does not come. If it came all the same, it has written.
                if let (Some(closed), true) = (closed, Record::read(&store).ok().flatten() == open) {
                    closed.write(&store).map_err(at(&store, "written"))?;
                }
                return Err(error);
            }
            last + 1
        }
    };
    let client = tokio::select! {
        client = answering(&store, generation, &jobs) => client?,
        () = signals.next() => {
            let name = jobs.wanted().token(generation);
            output::note(&format!("it goes on by itself; end it with: scancel --name={name}"));
            return Err(CliError::Interrupted);
        }
    };
    secrets::put(&client, secrets::of_settings(settings)).await?;
    output::note(&format!("serving {} from an allocation ({})", store.display(), client.address));
    output::note(&format!(
        "  submit to it with: longhaul run BENCHMARK ... --coordinator {}",
        remote_access(&store).display()
    ));
    output::note(&format!(
        "  it ends when no run was open for {}",
        crate::units::show_duration(settings.slurm.coordinator.idle)
    ));
    Ok(())
}

/// Who served the store last; one that was cancelled, and still ends what it had, is waited for: it
/// is in the queue, and serves nobody any more.
async fn settled_record(store: &Path, jobs: &Jobs) -> Result<Option<Record>, CliError> {
    let mut said = false;
    loop {
        let read = Record::read(store);
        let record = read.map_err(|source| CliError::File { path: store.to_owned(), doing: "read", source })?;
        match &record {
            Some(last) if last.closed && !last.ended && !jobs.is_over(last.generation).await => {
                if !std::mem::replace(&mut said, true) {
                    output::note(&format!(
                        "the coordinator that was there (job {}) still ends; waiting for it",
                        last.job
                    ));
                }
            }
            _ => return Ok(record),
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Makes a store where none is, before anything else is in its folder; and fails if somebody has it
/// open, whom no generation would follow.
async fn make_store(path: PathBuf) -> Result<(), CliError> {
    let incarnation = rand::rngs::OsRng.try_next_u64().map_err(|error| CliError::Machine(Box::new(error)))?;
    let opening = move || Store::open(&path, &OpenOptions::new(incarnation)).map(drop);
    let opened = tokio::task::spawn_blocking(opening).await;
    opened.map_err(|error| CliError::Machine(Box::new(error)))?.map_err(CliError::Store)
}

/// The coordinator of a generation or a later one, once it answers.
async fn answering(store: &Path, generation: u64, jobs: &Jobs) -> Result<Client, CliError> {
    let (mut said, mut unknown, mut ask_at) = (None, false, Instant::now());
    loop {
        let record = Record::read(store).ok().flatten();
        if record.is_some_and(|record| record.generation >= generation && !record.ended)
            && let Ok(client) = Client::open(&remote_access(store)).await
        {
            return Ok(client);
        }
        if Instant::now() >= ask_at {
            match jobs.all().await {
                Ok(all) => {
                    let Some(job) = all.first() else {
                        return Err(CliError::NotServed { logs: jobs.wanted().logs().to_owned() });
                    };
                    let reason = job.reason.clone().unwrap_or_default();
                    let now = format!("job {}: {} {}", job.id, job.state, output::escape_line(&reason));
                    if said.as_ref() != Some(&now) {
                        output::note(&now);
                        said = Some(now);
                    }
                }
                // The job goes on, and needs its keys when it begins.
                Err(error) if !std::mem::replace(&mut unknown, true) => {
                    let why = chain(std::error::Error::source(&error).unwrap_or(&error));
                    output::note(&format!("Slurm is asked again: {}", output::escape_line(&why)));
                }
                Err(_) => {}
            }
            ask_at = Instant::now() + ASK;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Serves as one generation, from the moment that the store is its own.
///
/// # Errors
///
/// The coordinator does not start, or fails.
pub(crate) async fn serve(
    generation: u64,
    args: &ServeArgs,
    settings: &Settings,
    file: Option<&Path>,
) -> Result<(), CliError> {
    let mut signals = Signals::new().map_err(|error| CliError::Machine(Box::new(error)))?;
    let mut warning = signal(SignalKind::user_defined1()).map_err(|error| CliError::Machine(Box::new(error)))?;
    let allocation = Allocation::parse(|name| std::env::var(name).ok())
        .map_err(|error| CliError::Machine(Box::new(error)))?
        .ok_or_else(|| CliError::Usage("--generation is for allocations of Slurm's alone".to_owned()))?;
    let mut config = serve::config(args.store.as_deref(), Some(slurm::listen(settings)), settings)?;
    config.slurm = Some(slurm::config(&config.store, &args.place, settings, file)?);
    config.engine = slurm::engine_settings(config.engine, settings);
    config.generation = Some(generation);
    let store = config.store.clone();
    let jobs = Jobs::connect(Wanted::of(&store, &args.place, settings, file)?, slurm::limits(settings)).await?;
    let job = allocation.job_id.parse::<u32>().map_err(|error| CliError::Machine(Box::new(error)))?;
    let own = Turn { generation, job, ending: false };
    let started = tokio::select! {
        started = begin(own, &jobs, config) => started?,
        // Not its turn yet, and its time is over: what follows is in nobody's hands but the one before.
        () = signals.next() => return Err(CliError::Interrupted),
        _time = warning.recv() => return Err(CliError::Interrupted),
    };
    let Some(coordinator) = started else {
        tracing::info!(generation, "another one serves, or none is to: nothing is left to do");
        return Ok(());
    };
    let mut record = Record {
        generation,
        token: jobs.wanted().token(generation).to_string(),
        job: allocation.job_id.clone(),
        ended: false,
        closed: false,
    };
    // Whatever cannot be written is said after the store is closed in order.
    let mut written = record.write(&store);
    tracing::info!(generation, job = allocation.job_id, "serving");
    let end = loop {
        if written.is_err() {
            break End::Failed;
        }
        let end = tokio::select! {
            () = coordinator.failed() => End::Failed,
            () = coordinator.succeeded() => End::Followed,
            _time = warning.recv() => End::Followed,
            () = signals.next() => End::Cancelled,
            end = watch(generation, &allocation.job_id, &store, &jobs, &coordinator, settings) => end,
        };
        if matches!(end, End::Cancelled | End::Idle) {
            // First, and at once: Slurm gives a cancelled job little time.
            record.closed = true;
            let now = record.write(&store);
            written = written.and(now);
        }
        // Somebody may have found it just before that.
        if end != End::Idle || !is_needed(&coordinator) {
            break end;
        }
        record.closed = false;
        let now = record.write(&store);
        written = written.and(now);
    };
    tracing::info!(generation, ?end, "the generation ends");
    if matches!(end, End::Cancelled | End::Idle) {
        if let Err(error) = jobs.cancel(generation + 1).await {
            // It finds that nothing is to follow.
            tracing::warn!(%error, "the next allocation of the coordinator is still in the queue");
        }
        cluster::end_allocations(&coordinator, settings, &mut signals).await;
    }
    coordinator.stop().await.map_err(CliError::Actor)?;
    if end != End::Superseded {
        record.ended = true;
        let now = record.write(&store);
        written = written.and(now);
    }
    written.map_err(|source| CliError::File { path: store, doing: "written", source })
}

/// What this job does next to get the store.
async fn turn(own: Turn, store: &Path, jobs: &Jobs) -> Result<Next, CliError> {
    // First the queue, and then the file: a job that is over by then has written what it had to.
    let live = jobs.turns().await;
    let read = Record::read(store);
    let record = read.map_err(|source| CliError::File { path: store.to_owned(), doing: "read", source })?;
    Ok(Next::of(own, record.as_ref(), live.as_deref()))
}

/// Starts the coordinator when it is its turn; nothing if that of another one came.
async fn begin(own: Turn, jobs: &Jobs, config: Config) -> Result<Option<Coordinator>, CliError> {
    let store = config.store.clone();
    let mut keys: Vec<(String, Secret)> = Vec::new();
    loop {
        match turn(own, &store, jobs).await? {
            Next::GiveUp => return Ok(None),
            Next::Begin => break,
            Next::Wait => {}
            Next::Ask => match hand_over(&store, own.generation).await {
                Ok(handed) => keys = handed,
                // It is asked again until it is known to be over: it may be busy, or ending.
                Err(error) => tracing::info!(%error, "the generation before does not hand over yet"),
            },
        }
        tokio::time::sleep(TURN).await;
    }
    let (since, mut said) = (Instant::now(), false);
    let coordinator = loop {
        match Coordinator::start(config.clone()).await {
            Ok(coordinator) => break coordinator,
            Err(StartError::Open(error @ OpenError::Locked { .. })) if since.elapsed() < LOCK_LIMIT => {
                if !std::mem::replace(&mut said, true) {
                    tracing::warn!(%error, "the store is waited for");
                }
                tokio::time::sleep(LOOK).await;
            }
            // What is in the way may go: nobody else would serve this store.
            Err(error) if since.elapsed() < LOCK_LIMIT => {
                tracing::error!(error = output::escape_line(&chain(&error)), "the coordinator does not start yet");
                tokio::time::sleep(10 * LOOK).await;
            }
            Err(error) => return Err(CliError::Start(error)),
        }
        // What was in the way may be another one that serves by now.
        if turn(own, &store, jobs).await? == Next::GiveUp {
            return Ok(None);
        }
    };
    for warning in coordinator.warnings() {
        tracing::warn!("{warning}");
    }
    if !keys.is_empty() {
        coordinator.put_secrets(keys).await;
    }
    Ok(Some(coordinator))
}

/// Asks the generation before for the store; the keys that it had.
async fn hand_over(store: &Path, generation: u64) -> Result<Vec<(String, Secret)>, CliError> {
    let client = Client::open(&remote_access(store)).await?;
    let answer = client.control.clone().hand_over(v1::HandOverRequest { generation }).await;
    let secrets = answer.map_err(client.refused("hand over its store"))?.into_inner().secrets;
    Ok(secrets.into_iter().map(|secret| (secret.name, Secret::new(secret.value))).collect())
}

/// Follows a run to its end, from one generation to the next; answers with the client of the last one.
///
/// # Errors
///
/// The coordinator refuses, or is gone and none follows it.
pub(crate) async fn follow(
    mut client: Client,
    run: &str,
    source: &SourceArgs,
    settings: &Settings,
) -> Result<(Client, v1::RunSummary), CliError> {
    let mut in_vain = 0;
    loop {
        let since = Instant::now();
        match crate::follow::follow(&client, run).await {
            Ok(summary) => return Ok((client, summary)),
            Err(error) if is_away(&error) && in_vain < TRIES_IN_VAIN => {
                in_vain = if since.elapsed() < BEAT { in_vain + 1 } else { 0 };
                client = next(source, settings).await.ok_or(error)?;
                output::note(&format!("another coordinator serves now ({})", client.address));
                tokio::time::sleep(LOOK).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Whether an error says that the coordinator is gone, and not that it refuses.
const fn is_away(error: &CliError) -> bool {
    use tonic::Code;
    // A connection that breaks in the middle of an answer has more than one name.
    matches!(
        error,
        CliError::Refused {
            code: Code::Unavailable | Code::Cancelled | Code::Aborted | Code::Unknown | Code::Internal,
            ..
        }
    )
}

/// The coordinator that follows the one that went away, if one is to follow it.
async fn next(source: &SourceArgs, settings: &Settings) -> Option<Client> {
    let store = match &source.coordinator {
        Some(access) => access.parent()?.parent()?.to_owned(),
        None => places::store(source.store.as_deref(), settings).ok()?,
    };
    let since = Instant::now();
    while since.elapsed() < NEXT_LIMIT {
        if Record::read(&store).ok()??.closed {
            return None;
        }
        if let Ok(client) = Client::of_store(&store).await
            && client.control.clone().list_runs(v1::ListRunsRequest {}).await.is_ok()
        {
            return Some(client);
        }
        tokio::time::sleep(LOOK).await;
    }
    None
}

/// Keeps the next generation in the queue, until there is a reason to end.
async fn watch(
    generation: u64,
    job: &str,
    store: &Path,
    jobs: &Jobs,
    coordinator: &Coordinator,
    settings: &Settings,
) -> End {
    let (mut asked, mut ask_at, mut needed) = (String::new(), Instant::now(), Instant::now());
    loop {
        // A file that cannot be read says nothing: the store's own lock still holds.
        let is_other =
            |record: Record| record.generation > generation || record.generation == generation && record.job != job;
        if Record::read(store).ok().flatten().is_some_and(is_other) {
            return End::Superseded;
        }
        if Instant::now() >= ask_at {
            // One that was cancelled, or lost, is asked for again.
            match jobs.ask(generation + 1, Some(job)).await {
                Ok(next) if next == asked => {}
                Ok(next) => {
                    tracing::info!(generation = generation + 1, job = next, "the next generation is in the queue");
                    asked = next;
                }
                Err(error) => {
                    let error = output::escape_line(&chain(&error));
                    tracing::error!(error, "the next generation cannot be asked for, and is asked for again");
                }
            }
            ask_at = Instant::now() + AGAIN;
        }
        if is_needed(coordinator) {
            needed = Instant::now();
        }
        if needed.elapsed() >= settings.slurm.coordinator.idle.to_std() {
            return End::Idle;
        }
        tokio::time::sleep(BEAT).await;
    }
}

/// Whether a run is open, or that is not known.
fn is_needed(coordinator: &Coordinator) -> bool {
    coordinator.reader().runs().map_or(true, |runs| runs.iter().any(|run| run.settled_at.is_none()))
}
