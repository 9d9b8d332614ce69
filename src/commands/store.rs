//! `longhaul store`: checking, copying and merging stores that nobody has open.

use std::path::{Path, PathBuf};

use longhaul_core::ids::RunId;
use longhaul_core::time::Timestamp;
use longhaul_store::{Merge, MergeError, Merged, OpenError, OpenOptions, Verification};
use rand::TryRngCore;
use serde_json::json;

use crate::cli::{StoreArgs, StoreCommand};
use crate::error::CliError;
use crate::output::{self, Format, Table, Tone, cut};
use crate::settings::Settings;
use crate::{places, show, units};

/// Does what is asked with a store.
///
/// # Errors
///
/// A process has it open, it is no store, it is damaged, or the copy cannot be made.
pub fn store(args: StoreArgs, settings: &Settings) -> Result<(), CliError> {
    match args.command {
        StoreCommand::Verify { store, format } => verify(&places::store(store.as_deref(), settings)?, format),
        StoreCommand::Backup { store, copy, format } => backup(&store, &copy, format),
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
    let now = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default();
    let merge = Merge { from, runs, into, options: &options()?, at: Timestamp(now) };
    merge.run(|run| tracing::debug!(%run, "a part of a run was copied")).map_err(|error| match error {
        MergeError::Open(error) => failed(error),
        other => CliError::Merge(Box::new(other)),
    })
}

fn backup(store: &Path, copy: &Path, format: Format) -> Result<(), CliError> {
    longhaul_store::backup(store, copy, &options()?).map_err(failed)?;
    match format {
        Format::Json => output::json(&json!({ "store": store, "copy": copy })).map_err(CliError::Output),
        Format::Human => {
            output::note(&format!("copied; check it with: longhaul store verify {}", copy.display()));
            Ok(())
        }
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
