//! `longhaul store restore` and `longhaul store accept`: a backup in the place of a lost store.

use std::path::{Path, PathBuf};

use longhaul_core::money::Money;
use longhaul_proto::v1;
use serde_json::{Value, json};

use super::failed;
use crate::cli::SourceArgs;
use crate::client::{Client, Source};
use crate::commands::{cancel, serve};
use crate::error::CliError;
use crate::output::{self, Format, Table, Tone, cut};
use crate::settings::Settings;
use crate::show;

/// What is asked of a restored store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acceptance {
    /// It is accepted, and not only looked at.
    pub(super) yes: bool,
    /// Also where workers of the backup were not heard.
    pub(super) without_spools: bool,
    /// The form of the answer.
    pub(super) format: Format,
}

/// Copies a backup to where a store was.
///
/// # Errors
///
/// It is no backup, the folder is there already, or it cannot be written.
pub(super) fn restore(backup: &Path, store: &Path, format: Format) -> Result<(), CliError> {
    longhaul_store::restore(backup, store).map_err(failed)?;
    match format {
        Format::Json => output::json(&json!({ "backup": backup, "store": store })).map_err(CliError::Output),
        Format::Human => {
            let store = store.display();
            output::note(&format!(
                "restored; workers that live deliver to: longhaul serve --store {store}\n\
                 nothing is spent before: longhaul store accept {store}"
            ));
            Ok(())
        }
    }
}

/// Shows how a restored store stands, and accepts that if it is asked for.
///
/// # Errors
///
/// It was not restored, workers are still to be heard, or it is not accepted yet.
pub(super) async fn accept(store: Option<PathBuf>, ask: Acceptance, settings: &Settings) -> Result<(), CliError> {
    let args = SourceArgs { coordinator: None, store };
    let source = Source::open(&args, settings).await?;
    let place = source.store_path().await?;
    let stands = serve::ordered(source, settings, async |client: &Client| ordered(client, ask).await).await?;
    if !stands.restored {
        return Err(CliError::Usage(format!("the store {place} was not restored from a backup")));
    }
    match ask.format {
        Format::Json => output::json(&as_json(&place, &stands)),
        Format::Human => output::data(&text(&stands, output::stdout_colours())),
    }
    .map_err(CliError::Output)?;
    if stands.accepted_at_millis == 0 {
        return Err(CliError::RestoreNotAccepted { store: place });
    }
    Ok(())
}

async fn ordered(client: &Client, ask: Acceptance) -> Result<v1::ShowRestoreResponse, CliError> {
    let mut control = client.control.clone();
    let shown = control.show_restore(v1::ShowRestoreRequest {}).await;
    let shown = shown.map_err(client.refused("say how its store was restored"))?.into_inner();
    if !ask.yes || !shown.restored {
        return Ok(shown);
    }
    let request = v1::AcceptRestoreRequest { by: cancel::who(), unheard: ask.without_spools };
    let accepted = control.accept_restore(request).await;
    Ok(accepted.map_err(client.refused("open its store"))?.into_inner())
}

const fn money(nanos: u64) -> Money {
    Money::from_nanos(nanos)
}

/// What the backup knew, and what was heard since.
fn text(stands: &v1::ShowRestoreResponse, colours: bool) -> String {
    let mut runs = Table::new(&["run", "name", "open", "spent by the backup", "in flight then", "counts as spent now"]);
    for run in &stands.runs {
        let more = run.counted_nanos > run.known_nanos;
        runs.row([
            (run.run_id.clone(), Tone::Plain),
            (cut(&run.name, 40), Tone::Plain),
            (run.open.to_string(), Tone::Plain),
            (money(run.known_nanos).to_string(), Tone::Plain),
            (money(run.in_flight_nanos).to_string(), Tone::Plain),
            (money(run.counted_nanos).to_string(), if more { Tone::Warn } else { Tone::Plain }),
        ]);
    }
    let mut workers = Table::new(&["worker", "node", "its spool", "to come"]);
    for worker in &stands.workers {
        let tone = if worker.state == "heard" { Tone::Good } else { Tone::Warn };
        workers.row([
            (worker.worker_id.clone(), Tone::Plain),
            (cut(&worker.hostname, 40), Tone::Plain),
            (worker.state.clone(), tone),
            (worker.undelivered.to_string(), Tone::Plain),
        ]);
    }
    let opened = show::time(stands.at_millis);
    let mut text = format!("restored from a backup, first opened {opened}\n\n{}", runs.render(colours));
    if !stands.workers.is_empty() {
        text.push('\n');
        text.push_str(&workers.render(colours));
    }
    let (after, known) = (stands.after.len().to_string(), stands.runs.len().to_string());
    text.extend(["\n", &known, " runs were open; ", &after, " attempts that began after the backup were heard of\n"]);
    text.push_str(
        "what both began and ended between the backup and the loss is not known here: see the vendors' bills\n",
    );
    if stands.accepted_at_millis > 0 {
        let (by, at) = (output::escape_line(&stands.accepted_by), show::time(stands.accepted_at_millis));
        text.extend(["accepted by ", &by, ", ", &at, ": the store is open\n"]);
    }
    text
}

/// The same for programs; amounts are exact, as texts.
fn as_json(store: &str, stands: &v1::ShowRestoreResponse) -> Value {
    let dollars = |nanos: u64| show::dollars(money(nanos));
    json!({
        "store": store,
        "opened_at_millis": stands.at_millis,
        "accepted_by": Some(&stands.accepted_by).filter(|by| !by.is_empty()),
        "accepted_at_millis": Some(stands.accepted_at_millis).filter(|at| *at > 0),
        "runs": stands.runs.iter().map(|run| json!({
            "run": run.run_id,
            "name": run.name,
            "open": run.open,
            "spent_by_the_backup_dollars": dollars(run.known_nanos),
            "in_flight_then_dollars": dollars(run.in_flight_nanos),
            "counted_now_dollars": dollars(run.counted_nanos),
        })).collect::<Vec<_>>(),
        "workers": stands.workers.iter().map(|worker| json!({
            "worker": worker.worker_id,
            "node": worker.hostname,
            "spool": worker.state,
            "undelivered": worker.undelivered,
        })).collect::<Vec<_>>(),
        "after": stands.after,
    })
}
