//! `longhaul cancel`: stops a run.

use longhaul_proto::v1;

use crate::cli::CancelArgs;
use crate::client::Source;
use crate::error::CliError;
use crate::output;
use crate::settings::Settings;

/// Cancels the run that is meant.
///
/// # Errors
///
/// There is no coordinator, no such run, or the coordinator refuses.
pub async fn cancel(args: CancelArgs, settings: &Settings) -> Result<(), CliError> {
    let source = Source::open(&args.source, settings).await?;
    let run = source.run(&args.run).await?;
    let client = source.live("cancel a run")?;
    let request = v1::CancelRequest { run_id: run.run_id.clone(), by: who() };
    let answer = client.control.clone().cancel(request).await.map_err(client.refused("cancel the run"))?;
    match answer.into_inner().cancelled {
        0 => output::note(&format!("run {} had settled already", run.run_id)),
        open => output::note(&format!(
            "run {} is cancelled: {open} open episodes end; `longhaul watch {}` follows them",
            run.run_id, run.run_id
        )),
    }
    Ok(())
}

/// Who asks, for people: a login name is a claim, not a proof.
fn who() -> String {
    std::env::var("USER")
        .or_else(|_| std::env::var("LOGNAME"))
        .unwrap_or_else(|_| format!("uid {}", nix::unistd::getuid()))
}
