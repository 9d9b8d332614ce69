//! `longhaul run`: from a benchmark to verdicts.

mod asked;
pub(crate) mod cluster;
mod cost;
mod dry;
mod embedded;
mod like;
mod order;
mod pick;
mod same;
pub(crate) mod secrets;
mod submit;

use std::path::Path;

use longhaul_core::outcome::SettlementKind;
use longhaul_proto::v1;
use serde_json::json;

pub(crate) use order::{Again, Order};
pub(crate) use pick::{
    Picked, Wanted, default_name, hook_policies, judge_plan, most_gpus, on_refusal, pick, usual_judge,
};
pub(crate) use submit::new_run;

use self::like::Like;
use self::same::Same;
use self::secrets::MissingKey;
use crate::cli::{RunArgs, SourceArgs, VenueArgs};
use crate::client::{Client, Source};
use crate::commands::preflight::Preflight;
use crate::commands::resume::{self, GoOn};
use crate::commands::{generations, layers};
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::{self, Format};
use crate::runfile;
use crate::settings::Settings;
use crate::show;
use crate::signals::Signals;

/// What is made of a run that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reporting<'a> {
    /// Verdicts, on stdout.
    Verdicts(Format),
    /// Which tasks started, on stdout and as files.
    Starts(&'a Preflight),
}

/// Where a run runs, and what is made of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hosting<'a> {
    /// Where.
    pub(crate) venue: &'a VenueArgs,
    /// Whether it is left to a coordinator once it is submitted.
    pub(crate) detach: bool,
    /// What is made of it.
    pub(crate) reporting: Reporting<'a>,
    /// All settings.
    pub(crate) settings: &'a Settings,
    /// The file that they are from.
    pub(crate) file: Option<&'a Path>,
}

/// Runs what is asked for.
///
/// # Errors
///
/// An input is wrong, the machine lacks something, the store or the coordinator refuses,
/// or a signal came.
pub async fn run(args: RunArgs, settings: &Settings, from: Option<&Path>) -> Result<Exit, CliError> {
    let mut asked = asked::asked(&args)?;
    if args.print_run_file {
        output::data(&runfile::print(&asked)).map_err(CliError::Output)?;
        return Ok(Exit::Success);
    }
    let like = Like::named(&asked, &args.venue, settings).await?;
    if let Some(like) = &like {
        like.fill(&mut asked)?;
    }
    let mut wanted = Wanted::read(&asked, &args.venue, settings)?;
    if let Some(like) = like {
        like.apply(&mut wanted)?;
    }
    // No part of the experiment: it says only when it gets its turn.
    wanted.priority = args.priority;
    if let Some(run) = &args.layers_from {
        wanted.layers_from = Some(layers::layers_from(run, &args.venue, &wanted.picked, settings).await?);
    }
    if args.dry_run {
        secrets::warn(&wanted.missing_keys, "");
        let earlier = cost::Earlier::read(&wanted.agents, &args.venue, settings).await;
        dry::show(&wanted, &args, settings, &earlier)?;
        return Ok(Exit::Success);
    }
    if args.check {
        secrets::warn(&wanted.missing_keys, "");
        dry::checked(&wanted, args.format)?;
        return Ok(Exit::Success);
    }
    if let Some(file) = same::file(&args.pick.benchmark)? {
        wanted.file = Some(file.clone());
        wanted.turn = Some(same::turn(&file).await?);
        if !args.new {
            match same::look(wanted, &file, &args.venue, settings).await? {
                Same::New(new) => wanted = *new,
                Same::Run(source, run) => return Box::pin(again(source, *run, args, settings, from)).await,
            }
        }
    }
    keys_are_there(&wanted.missing_keys, &args.venue)?;
    let reporting = Reporting::Verdicts(args.format);
    let hosting = Hosting { venue: &args.venue, detach: args.detach, reporting, settings, file: from };
    let summary = Box::pin(host(wanted.into(), &hosting)).await?;
    settled(summary.as_ref(), args.fail_on_fault)
}

/// Goes on with the run that was made of the run file, or shows it if it is over.
async fn again(
    source: Source,
    run: v1::RunSummary,
    args: RunArgs,
    settings: &Settings,
    from: Option<&Path>,
) -> Result<Exit, CliError> {
    let RunArgs { venue, detach, format, fail_on_fault, .. } = args;
    output::note(&format!(
        "run {} was made of this file, and nothing has changed since (--new starts another)",
        run.run_id
    ));
    if run.queued + run.active + run.cancelled > 0 {
        let how = GoOn { venue, detach, format, fail_on_fault };
        return resume::go_on(source, &run, vec![SettlementKind::Cancelled], how, settings, from).await;
    }
    if detach {
        output::data(&format!("{}\n", run.run_id)).map_err(CliError::Output)?;
    } else {
        let place = source.store_path().await?;
        verdicts(&source, &run, format, &place).await?;
    }
    settled(Some(&run), fail_on_fault)
}

/// A run with a coordinator of its own needs its keys here; another coordinator may have them.
///
/// # Errors
///
/// One is missing that is needed here.
pub(crate) fn keys_are_there(missing: &[MissingKey], venue: &VenueArgs) -> Result<(), CliError> {
    match missing.first() {
        Some(MissingKey { endpoint, variable }) if venue.coordinator.is_none() => {
            Err(CliError::NoKey { endpoint: endpoint.clone(), variable: variable.clone() })
        }
        _ => {
            secrets::warn(missing, " here: the coordinator has to have it");
            Ok(())
        }
    }
}

/// How the command ends once a run has ended, or was left to its coordinator.
pub(crate) fn settled(summary: Option<&v1::RunSummary>, fail_on_fault: bool) -> Result<Exit, CliError> {
    match summary {
        Some(run) if fail_on_fault && run.faulted > 0 => {
            Err(CliError::Faulted { count: run.faulted, run: run.run_id.clone() })
        }
        _ => Ok(Exit::Success),
    }
}

/// Brings a run to its end and reports it; nothing is known of the end of one that is left
/// to its coordinator.
pub(crate) async fn host(order: Order, hosting: &Hosting<'_>) -> Result<Option<v1::RunSummary>, CliError> {
    let mut signals = Signals::new().map_err(|error| CliError::Machine(Box::new(error)))?;
    match &hosting.venue.coordinator {
        None if hosting.venue.slurm => cluster::run(order, hosting, &mut signals).await.map(Some),
        None => embedded::run(order, hosting, &mut signals).await.map(Some),
        Some(access) => elsewhere(order, hosting, access, &mut signals).await,
    }
}

/// By a coordinator that runs already.
async fn elsewhere(
    order: Order,
    hosting: &Hosting<'_>,
    access: &Path,
    signals: &mut Signals,
) -> Result<Option<v1::RunSummary>, CliError> {
    let client = Client::open(access).await?;
    let run = order.place(&client).await?;
    if hosting.detach {
        output::data(&format!("{run}\n")).map_err(CliError::Output)?;
        output::note(&format!("follow it with: longhaul watch {run} --coordinator {}", access.display()));
        return Ok(None);
    }
    let run = run.to_string();
    let source = SourceArgs { coordinator: Some(access.to_owned()), store: None };
    let (client, summary) = tokio::select! {
        followed = generations::follow(client, &run, &source, hosting.settings) => followed?,
        () = signals.next() => {
            output::note(&format!(
                "the run goes on; follow it with: longhaul watch {run} --coordinator {}\n\
                 stop it with: longhaul cancel {run} --coordinator {}",
                access.display(),
                access.display()
            ));
            return Err(CliError::Interrupted);
        }
    };
    let status = client.control.clone().status(v1::StatusRequest {}).await;
    let place = status.map_err(client.refused("say its status"))?.into_inner().store_path;
    report(&Source::Live(Box::new(client)), &summary, hosting.reporting, &place).await?;
    Ok(Some(summary))
}

/// The result of a run, where its coordinator or its store still is.
async fn report(
    source: &Source,
    summary: &v1::RunSummary,
    reporting: Reporting<'_>,
    place: &str,
) -> Result<(), CliError> {
    match reporting {
        Reporting::Verdicts(format) => verdicts(source, summary, format, place).await,
        Reporting::Starts(preflight) => preflight.report(source, summary, place).await,
    }
}

/// Verdicts and layers on stdout, and where all of it is kept.
async fn verdicts(source: &Source, summary: &v1::RunSummary, format: Format, place: &str) -> Result<(), CliError> {
    let run = longhaul_proto::convert::parsed("run_id", &summary.run_id).map_err(CliError::Answer)?;
    // The store's record has more than what a follower is told.
    let summary = &source.run(&summary.run_id).await?;
    let episodes = source.episodes(run).await?;
    let layers = source.layers(Some(run)).await?;
    match format {
        Format::Json => {
            let episodes = episodes.iter().map(show::episode_json).collect::<Result<Vec<_>, _>>()?;
            let layers: Vec<_> = layers.iter().map(show::layer_json).collect();
            output::json(&json!({
                "run": show::run_json(summary),
                "episodes": episodes,
                "layers": layers,
                "store": place,
            }))
        }
        Format::Human => {
            let colours = output::stdout_colours();
            let mut text = show::episodes_table(&episodes, colours)?;
            if !layers.is_empty() {
                text.push('\n');
                text.push_str(&show::layers_table(&layers, colours));
            }
            let ended = if summary.settled_at_millis > 0 { "settled" } else { "stopped" };
            let id = &summary.run_id;
            text.extend(["\nrun ", id, " ", ended, ": ", &show::counts(summary), "\n"]);
            if let Some(money) = show::money(summary) {
                text.extend(["spent ", &money, "\n"]);
            }
            text.extend(["store ", place, "\n"]);
            output::data(&text)
        }
    }
    .map_err(CliError::Output)
}
