//! A run with a coordinator of its own, in this process, and workers that Slurm gives.

use std::time::Duration;

use longhaul_coordinator::Coordinator;
use longhaul_core::ids::RunId;
use longhaul_proto::v1;

use super::order::Order;
use super::{Hosting, embedded, report};
use crate::client::{Client, Source};
use crate::commands::{generations, serve, slurm};
use crate::error::CliError;
use crate::follow::follow;
use crate::output;
use crate::settings::Settings;
use crate::signals::Signals;

/// How often is looked whether the workers are gone.
const LOOK: Duration = Duration::from_millis(300);

/// How long Slurm is given to be told that its allocations are not needed any more.
const END_LIMIT: Duration = Duration::from_secs(120);

pub(super) async fn run(
    order: Order,
    hosting: &Hosting<'_>,
    signals: &mut Signals,
) -> Result<v1::RunSummary, CliError> {
    let Hosting { venue, settings, .. } = *hosting;
    let mut config = serve::config(venue.store.as_deref(), Some(slurm::listen(settings)), settings)?;
    generations::refuse_served(&config.store, slurm::limits(settings)).await?;
    config.slurm = Some(slurm::config(&config.store, &venue.place, settings, hosting.file)?);
    config.engine = slurm::engine_settings(config.engine, settings);
    tokio::select! {
        made = slurm::prepare(&venue.place, settings) => made?,
        () = signals.next() => return Err(CliError::Interrupted),
    }
    let coordinator = Coordinator::start(config).await.map_err(CliError::Start)?;
    for warning in coordinator.warnings() {
        output::note(&format!("warning: {warning}"));
    }
    let outcome = with_coordinator(&coordinator, order, signals).await;
    // Without this coordinator its workers have nothing to do, and no node is held for a report.
    end_allocations(&coordinator, settings, signals).await;
    let outcome = match outcome {
        Ok((run, summary)) => {
            let place = coordinator.reader().path().display().to_string();
            let source = Source::Stored(coordinator.reader().clone());
            let reported = report(&source, &summary, hosting.reporting, &place).await;
            output::note(&embedded::how_to_look(run, &coordinator));
            reported.map(|()| summary)
        }
        Err(error) => Err(error),
    };
    // A coordinator that failed is the reason for whatever else went wrong.
    coordinator.stop().await.map_err(CliError::Actor)?;
    outcome
}

/// Ends the allocations, and gives their workers the time to deliver what they have.
pub(crate) async fn end_allocations(coordinator: &Coordinator, settings: &Settings, signals: &mut Signals) {
    output::note("ending the allocations");
    let left = async {
        coordinator.end_allocations().await;
        let client = Client::open(coordinator.local_access()).await?;
        let delivered = async {
            loop {
                let status = client.control.clone().status(v1::StatusRequest {}).await;
                let status = status.map_err(client.refused("say its status"))?.into_inner();
                if status.workers.iter().all(|worker| !worker.connected) {
                    return Ok::<(), CliError>(());
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        let limit = settings.worker.grace.to_std() + LOOK * 10;
        // What a worker cannot deliver in its grace is lost with its allocation in any case.
        tokio::time::timeout(limit, delivered).await.unwrap_or(Ok(()))
    };
    tokio::select! {
        left = left => if let Err(error) = left {
            tracing::warn!(%error, "it is not known whether the workers are gone");
        },
        () = tokio::time::sleep(END_LIMIT) => {
            output::note("Slurm does not answer: look for jobs named longhaul.* with squeue --me");
        }
        () = signals.next() => {}
    }
}

async fn with_coordinator(
    coordinator: &Coordinator,
    order: Order,
    signals: &mut Signals,
) -> Result<(RunId, v1::RunSummary), CliError> {
    let client = Client::open(coordinator.local_access()).await?;
    let run = tokio::select! {
        run = order.place(&client) => run?,
        () = signals.next() => return Err(CliError::Interrupted),
    };
    let id = run.to_string();
    let store = coordinator.reader().path().display().to_string();
    output::note(&format!("why nothing starts, should it be so: longhaul slurm why --store {store}"));
    let outcome = tokio::select! {
        summary = follow(&client, &id) => summary,
        () = coordinator.failed() => Err(CliError::Interrupted),
        () = signals.next() => {
            output::note("stopping in order; once more to stop at once");
            Err(CliError::Interrupted)
        }
    };
    match outcome {
        Ok(summary) => Ok((run, summary)),
        Err(error) => {
            output::note(&embedded::how_to_look(run, coordinator));
            output::note(&embedded::how_to_go_on(run, coordinator));
            Err(error)
        }
    }
}
