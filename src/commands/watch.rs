//! `longhaul watch`: follows a run until it has settled.

use crate::cli::WatchArgs;
use crate::client::Source;
use crate::commands::generations;
use crate::error::CliError;
use crate::settings::Settings;
use crate::signals::Signals;
use crate::{output, show};

/// Follows the run that is meant.
///
/// # Errors
///
/// It cannot be followed, or a signal came.
pub async fn watch(args: WatchArgs, settings: &Settings) -> Result<(), CliError> {
    let source = Source::open(&args.source, settings).await?;
    let run = source.run(&args.run).await?;
    let client = match source {
        Source::Live(client) => client,
        Source::Stored(_) => {
            output::note("no coordinator has the store open; this is what it holds");
            return output::data(&show::runs_table(&[run], output::stdout_colours())).map_err(CliError::Output);
        }
    };
    let mut signals = Signals::new().map_err(|error| CliError::Machine(Box::new(error)))?;
    let run = tokio::select! {
        followed = generations::follow(*client, &run.run_id, &args.source, settings) => followed?.1,
        () = signals.next() => return Err(CliError::Interrupted),
    };
    output::data(&show::runs_table(&[run], output::stdout_colours())).map_err(CliError::Output)
}
