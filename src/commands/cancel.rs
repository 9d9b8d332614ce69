//! `longhaul cancel`: stops a run.

use longhaul_proto::v1;

use crate::cli::CancelArgs;
use crate::client::{Client, Source};
use crate::commands::serve;
use crate::error::CliError;
use crate::output;
use crate::settings::Settings;

/// Cancels the run that is meant.
///
/// # Errors
///
/// The store cannot be opened, there is no such run, or the coordinator refuses.
pub async fn cancel(args: CancelArgs, settings: &Settings) -> Result<(), CliError> {
    let source = Source::open(&args.source, settings).await?;
    let run = source.run(&args.run).await?;
    let id = run.run_id;
    match serve::ordered(source, settings, async |client: &Client| order(client, &id).await).await? {
        0 => output::note(&format!("run {id} had settled already")),
        open => output::note(&format!("run {id} is cancelled: {open} episodes were open")),
    }
    Ok(())
}

/// Orders it; answers with how many episodes were open.
async fn order(client: &Client, run: &str) -> Result<u32, CliError> {
    let request = v1::CancelRequest { run_id: run.to_owned(), by: who() };
    let answer = client.control.clone().cancel(request).await.map_err(client.refused("cancel the run"))?;
    Ok(answer.into_inner().cancelled)
}

/// Who asks, for people: a login name is a claim, not a proof.
pub(crate) fn who() -> String {
    std::env::var("USER")
        .or_else(|_| std::env::var("LOGNAME"))
        .unwrap_or_else(|_| format!("uid {}", nix::unistd::getuid()))
}
