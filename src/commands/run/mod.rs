//! `longhaul run`: from a benchmark to verdicts.

mod dry;
mod embedded;
mod pick;
mod submit;

use longhaul_proto::v1;
use serde_json::json;

pub(crate) use pick::{Picked, hook_policies, pick};

use crate::cli::RunArgs;
use crate::client::{Client, Source};
use crate::error::CliError;
use crate::exit::Exit;
use crate::follow::follow;
use crate::output::{self, Format};
use crate::settings::Settings;
use crate::show;
use crate::signals::Signals;

/// Runs what is asked for.
///
/// # Errors
///
/// An input is wrong, the machine lacks something, the store or the coordinator refuses,
/// or a signal came.
pub async fn run(args: RunArgs, settings: &Settings, file: Option<&std::path::Path>) -> Result<Exit, CliError> {
    let wanted = pick::Wanted::read(&args, settings)?;
    if args.dry_run {
        dry::show(&wanted, &args, settings)?;
        return Ok(Exit::Success);
    }
    let mut signals = Signals::new().map_err(|error| CliError::Machine(Box::new(error)))?;
    let summary = match &args.coordinator {
        None => embedded::run(wanted, &args, settings, file, &mut signals).await?,
        Some(access) => {
            let client = Client::open(access).await?;
            let run = submit::submit(&client, wanted).await?;
            if args.detach {
                output::data(&format!("{run}\n")).map_err(CliError::Output)?;
                output::note(&format!("follow it with: longhaul watch {run} --coordinator {}", access.display()));
                return Ok(Exit::Success);
            }
            let run = run.to_string();
            let summary = tokio::select! {
                summary = follow(&client, &run) => summary?,
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
            let status = client.control.clone().status(longhaul_proto::v1::StatusRequest {}).await;
            let place = status.map_err(client.refused("say its status"))?.into_inner().store_path;
            report(&Source::Live(Box::new(client)), &summary, args.format, &place).await?;
            summary
        }
    };
    if args.fail_on_fault && summary.faulted > 0 {
        return Err(CliError::Faulted { count: summary.faulted, run: summary.run_id });
    }
    Ok(Exit::Success)
}

/// The result of a run on stdout: verdicts, layers, and where all of it is kept.
async fn report(source: &Source, summary: &v1::RunSummary, format: Format, place: &str) -> Result<(), CliError> {
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
            text.extend(["\nrun ", id, " ", ended, ": ", &show::counts(summary), "\nstore ", place, "\n"]);
            output::data(&text)
        }
    }
    .map_err(CliError::Output)
}
