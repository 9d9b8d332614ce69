//! `longhaul store`: checking, copying, restoring and merging stores.

mod restored;

use std::path::{Path, PathBuf};

use longhaul_core::ids::RunId;
use longhaul_core::time::{Millis, Timestamp};
use longhaul_node::error::NodeError;
use longhaul_proto::access::AccessError;
use longhaul_proto::v1;
use longhaul_store::{
    Merge, MergeError, Merged, OpenError, OpenOptions, Pruning, PruningError, SpaceFloor, Verification,
};
use rand::TryRngCore;
use serde_json::json;

use crate::cli::{StoreArgs, StoreCommand};
use crate::client::{Client, local_access};
use crate::commands::{generations, slurm};
use crate::error::CliError;
use crate::output::{self, Format, Table, Tone, cut};
use crate::settings::Settings;
use crate::{places, show, units};

/// Does what is asked with a store.
///
/// # Errors
///
/// A process has it open, it is no store, it is damaged, or the copy cannot be made.
pub async fn store(args: StoreArgs, settings: &Settings) -> Result<(), CliError> {
    match args.command {
        StoreCommand::Verify { store, format } => verify(&places::store(store.as_deref(), settings)?, format),
        StoreCommand::Backup { store, copy, format } => backup(&store, &copy, format, settings).await,
        StoreCommand::Restore { backup, store, format } => restored::restore(&backup, &store, format),
        StoreCommand::Accept { store, yes, without_spools, format } => {
            let ask = restored::Acceptance { yes, without_spools, format };
            restored::accept(store, ask, settings).await
        }
        StoreCommand::Prune { store, runs, older_than, dry_run, format } => {
            generations::refuse_served(&store, slurm::limits(settings)).await?;
            prune(&store, &runs, older_than, dry_run, format)
        }
        StoreCommand::Merge { from, into, runs, format } => merge(&from, &into, &runs, format),
    }
}

fn verify(store: &Path, format: Format) -> Result<(), CliError> {
    let found = longhaul_store::verify(store).map_err(failed)?;
    match format {
        Format::Json => output::json(&json!({
            "store": store,
            "sound": found.is_sound(),
            "records": found.records,
            "blob_bytes": found.blob_bytes,
            "findings": found.findings.iter().map(|finding| {
                json!({ "place": finding.place, "problem": finding.problem })
            }).collect::<Vec<_>>(),
            "more": found.more,
        })),
        Format::Human => output::data(&report(&found)),
    }
    .map_err(CliError::Output)?;
    if found.is_sound() {
        return Ok(());
    }
    Err(CliError::StoreUnsound { path: store.to_owned(), count: count(&found) })
}

fn report(found: &Verification) -> String {
    let mut text = String::new();
    for finding in &found.findings {
        text.extend([&output::escape_line(&finding.to_string()), "\n"]);
    }
    if found.more > 0 {
        text.extend(["and ", &found.more.to_string(), " more\n"]);
    }
    let records: u64 = found.records.values().sum();
    let by_family: Vec<_> = found.records.iter().map(|(family, count)| format!("{family} {count}")).collect();
    let (blobs, count) = (units::show_size(found.blob_bytes), count(found));
    text + &format!("{records} records read ({}), {blobs} of blobs, {count} findings\n", by_family.join(", "))
}

fn count(found: &Verification) -> u64 {
    u64::try_from(found.findings.len()).unwrap_or(u64::MAX).saturating_add(found.more)
}

fn options() -> Result<OpenOptions, CliError> {
    let incarnation = rand::rngs::OsRng.try_next_u64().map_err(|error| CliError::Machine(Box::new(error)))?;
    Ok(OpenOptions::new(incarnation))
}

fn merge(from: &[PathBuf], into: &Path, runs: &[RunId], format: Format) -> Result<(), CliError> {
    let merged = merged(from, into, runs)?;
    match format {
        Format::Json => output::json(&json!({
            "into": into,
            "runs": merged.iter().map(|one| json!({
                "run": one.run,
                "name": one.name,
                "from": one.from,
                "existed": one.existed,
                "episodes": one.tally.episodes,
                "attempts": one.tally.attempts,
                "steps": one.tally.steps,
                "calls": one.tally.calls,
                "spent_dollars": show::dollars(one.tally.settled),
            })).collect::<Vec<_>>(),
        })),
        Format::Human => {
            let mut table = Table::new(&["run", "name", "from", "episodes", "steps", "calls", "spent", ""]);
            for one in &merged {
                let (word, tone) = if one.existed { ("was there", Tone::Dim) } else { ("copied", Tone::Good) };
                table.row([
                    (one.run.to_string(), Tone::Plain),
                    (cut(&one.name, 40), Tone::Plain),
                    (cut(&one.from.display().to_string(), 60), Tone::Dim),
                    (one.tally.episodes.to_string(), Tone::Plain),
                    (one.tally.steps.to_string(), Tone::Plain),
                    (one.tally.calls.to_string(), Tone::Plain),
                    // What an imported run cost is not known.
                    (if one.tally.calls > 0 { show::cents(one.tally.settled) } else { String::new() }, Tone::Plain),
                    (word.to_owned(), tone),
                ]);
            }
            output::data(&table.render(output::stdout_colours()))
        }
    }
    .map_err(CliError::Output)
}

/// Copies runs that are over into another store.
///
/// # Errors
///
/// A store is in use, or something is refused; what is said then names it.
pub(crate) fn merged(from: &[PathBuf], into: &Path, runs: &[RunId]) -> Result<Vec<Merged>, CliError> {
    let merge = Merge { from, runs, into, options: &options()?, at: now() };
    merge.run(|run| tracing::debug!(%run, "a part of a run was copied")).map_err(|error| match error {
        MergeError::Open(error) => failed(error),
        other => CliError::Merge(Box::new(other)),
    })
}

fn prune(
    store: &Path,
    runs: &[RunId],
    older_than: Option<Millis>,
    dry_run: bool,
    format: Format,
) -> Result<(), CliError> {
    let at = now();
    let before = older_than.map(|age| Timestamp(at.0.saturating_sub(age.0)));
    // On a disk that is nearly full too: it makes room.
    let options = OpenOptions { floor: SpaceFloor { bulk: 0, journal: 0 }, ..options()? };
    let pruning = Pruning { path: store, runs, before, dry_run, options: &options, at };
    let pruned = pruning.run().map_err(|error| match error {
        PruningError::Open(error) => failed(error),
        other => CliError::Prune(Box::new(other)),
    })?;
    match format {
        Format::Json => output::json(&json!({
            "store": store,
            "dry_run": dry_run,
            "runs": pruned.iter().map(|one| json!({
                "run": one.run,
                "name": one.name,
                "blobs": one.blobs,
                "bytes": one.bytes,
            })).collect::<Vec<_>>(),
        })),
        Format::Human => {
            let mut table = Table::new(&["run", "name", "pictures", "size"]);
            for one in &pruned {
                table.row([
                    (one.run.to_string(), Tone::Plain),
                    (cut(&one.name, 40), Tone::Plain),
                    (one.blobs.to_string(), Tone::Plain),
                    (units::show_size(one.bytes), Tone::Plain),
                ]);
            }
            let bytes: u64 = pruned.iter().map(|one| one.bytes).sum();
            let verb = if dry_run { "would be" } else { "were" };
            output::note(&format!("{} of {} runs {verb} dropped", units::show_size(bytes), pruned.len()));
            output::data(&table.render(output::stdout_colours()))
        }
    }
    .map_err(CliError::Output)
}

fn now() -> Timestamp {
    Timestamp(u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default())
}

async fn backup(store: &Path, copy: &Path, format: Format, settings: &Settings) -> Result<(), CliError> {
    match live(store).await? {
        Some(client) => {
            let whole = places::absolute(copy)?;
            let nameless = || CliError::Usage(format!("the name of {} is no text", whole.display()));
            let path = whole.to_str().ok_or_else(nameless)?.to_owned();
            let answer = client.control.clone().backup(v1::BackupRequest { path }).await;
            answer.map_err(client.refused("copy its store"))?;
        }
        None => {
            generations::refuse_served(store, slurm::limits(settings)).await?;
            longhaul_store::backup(store, copy, &options()?).map_err(failed)?;
        }
    }
    match format {
        Format::Json => output::json(&json!({ "store": store, "copy": copy })).map_err(CliError::Output),
        Format::Human => {
            output::note(&format!("copied; check it with: longhaul store verify {}", copy.display()));
            Ok(())
        }
    }
}

/// The coordinator that has a store open, if one answers.
async fn live(store: &Path) -> Result<Option<Client>, CliError> {
    if !local_access(store).exists() {
        return Ok(None);
    }
    match Client::of_store(store).await {
        Ok(client) => Ok(Some(client)),
        Err(CliError::Node(NodeError::Access(AccessError::Unreachable { .. }))) => Ok(None),
        Err(error) => Err(error),
    }
}

fn failed(error: OpenError) -> CliError {
    match error {
        OpenError::Locked { .. } => CliError::StoreInUse(error),
        other => CliError::Store(other),
    }
}

#[cfg(test)]
mod tests {
    use longhaul_store::Finding;

    use super::*;

    #[test]
    fn a_report_names_every_finding_on_a_line_of_its_own_and_escapes_it() {
        let mut found = Verification::default();
        found.records.extend([("blobs", 2), ("steps", 3)]);
        assert_eq!(report(&found), "5 records read (blobs 2, steps 3), 0 B of blobs, 0 findings\n");
        found.findings.push(Finding { place: "steps".to_owned(), problem: "a\u{1b}[2J\nb".to_owned() });
        found.more = 7;
        let text = report(&found);
        assert!(text.starts_with("steps: a\\u{1b}[2J b\nand 7 more\n"), "{text}");
        assert!(text.ends_with(" 8 findings\n"), "{text}");
    }
}
