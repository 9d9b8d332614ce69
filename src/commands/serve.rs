//! `longhaul serve`: a coordinator by itself.

use longhaul_coordinator::{Coordinator, Listen};

use crate::cli::ServeArgs;
use crate::client::{Client, Source};
use crate::commands::run::secrets;
use crate::commands::{generations, slurm};
use crate::error::CliError;
use crate::machine::hostname;
use crate::output;
use crate::places;
use crate::settings::Settings;
use crate::signals::Signals;

/// How a coordinator over a store is started with these settings.
///
/// # Errors
///
/// Nothing says where the store is.
pub fn config(
    store: Option<&std::path::Path>,
    listen: Option<Listen>,
    settings: &Settings,
) -> Result<longhaul_coordinator::Config, CliError> {
    let leases = &settings.coordinator;
    let engine = longhaul_engine::Settings {
        lease_ttl: leases.lease_ttl,
        skew: leases.lease_skew,
        ..longhaul_engine::Settings::default()
    };
    Ok(longhaul_coordinator::Config {
        // What is said of it holds wherever it is read.
        store: places::absolute(&places::store(store, settings)?)?,
        listen,
        runtime_dir: places::runtime_dir(),
        engine,
        heartbeat: leases.heartbeat,
        floor: longhaul_store::SpaceFloor::default(),
        slurm: None,
        generation: None,
    })
}

/// Serves until a signal: the first one lets what runs end, the second stops.
///
/// # Errors
///
/// The coordinator does not start, or fails.
pub async fn serve(args: ServeArgs, settings: &Settings, file: Option<&std::path::Path>) -> Result<(), CliError> {
    if args.as_allocation {
        return generations::ask(&args, settings, file).await;
    }
    if let Some(generation) = args.generation {
        return generations::serve(generation, &args, settings, file).await;
    }
    let mut signals = Signals::new().map_err(|error| CliError::Machine(Box::new(error)))?;
    let listen = args.listen.map(|address| Listen { address, host: args.host.clone().unwrap_or_else(hostname) });
    let listen = listen.or_else(|| args.slurm.then(|| slurm::listen(settings)));
    let mut config = config(args.store.as_deref(), listen, settings)?;
    generations::refuse_served(&config.store, slurm::limits(settings)).await?;
    if args.slurm {
        config.slurm = Some(slurm::config(&config.store, &args.place, settings, file)?);
        config.engine = slurm::engine_settings(config.engine, settings);
        tokio::select! {
            made = slurm::prepare(&args.place, settings) => made?,
            () = signals.next() => return Err(CliError::Interrupted),
        }
    }
    let coordinator = Coordinator::start(config).await.map_err(CliError::Start)?;
    for warning in coordinator.warnings() {
        tracing::warn!("{warning}");
    }
    // Keys of model vendors in this environment are for the runs that are submitted.
    let client = Client::open(coordinator.local_access()).await?;
    secrets::put(&client, secrets::of_settings(settings)).await?;
    output::note(&format!("serving {}", coordinator.reader().path().display()));
    output::note(&format!("  access on this machine: {}", coordinator.local_access().display()));
    if let (Some(access), Some(address)) = (coordinator.remote_access(), coordinator.remote_address()) {
        output::note(&format!("  access from others:     {} ({address})", access.display()));
    }
    tokio::select! {
        () = coordinator.failed() => {}
        () = signals.next() => {
            output::note("no more episodes are started; those that run are finished (once more to stop at once)");
            tokio::select! {
                () = coordinator.drain("the coordinator stops") => {}
                () = signals.next() => output::note("stopping; what runs goes on when the coordinator is back"),
            }
        }
    }
    coordinator.stop().await.map_err(CliError::Actor)
}

/// Gives an order to the coordinator of a source. A store that no coordinator has open gets one
/// for as long as that takes.
///
/// # Errors
///
/// The coordinator does not start or stop, cannot be reached, or refuses.
pub(crate) async fn ordered<T>(
    source: Source,
    settings: &Settings,
    order: impl AsyncFnOnce(&Client) -> Result<T, CliError>,
) -> Result<T, CliError> {
    match source {
        Source::Live(client) => order(client.as_ref()).await,
        Source::Stored(reader) => {
            let config = config(Some(reader.path()), None, settings)?;
            drop(reader);
            generations::refuse_served(&config.store, slurm::limits(settings)).await?;
            let coordinator = Coordinator::start(config).await.map_err(CliError::Start)?;
            let answer = match Client::open(coordinator.local_access()).await {
                Ok(client) => order(&client).await,
                Err(error) => Err(error),
            };
            coordinator.stop().await.map_err(CliError::Actor)?;
            answer
        }
    }
}
