//! `longhaul resume`: goes on with a run, whatever had stopped it.

use std::path::Path;

use longhaul_core::ids::RunId;
use longhaul_core::outcome::SettlementKind;
use longhaul_proto::{convert, v1};

use crate::cli::{ResumeArgs, SourceArgs, VenueArgs};
use crate::client::{Source, access_of};
use crate::commands::run::{self, Again, Hosting, Order, Reporting};
use crate::error::CliError;
use crate::exit::Exit;
use crate::output::{self, Format};
use crate::places;
use crate::settings::Settings;
use crate::show;

/// Goes on with the run that is meant.
///
/// # Errors
///
/// There is no such run, an input is wrong, the machine lacks something, the store or the
/// coordinator refuses, or a signal came.
pub async fn resume(args: ResumeArgs, settings: &Settings, file: Option<&Path>) -> Result<Exit, CliError> {
    let from = SourceArgs { coordinator: args.venue.coordinator.clone(), store: args.venue.store.clone() };
    let source = Source::open(&from, settings).await?;
    let summary = source.run(&args.run).await?;
    let kinds = kinds(&args);
    if summary.queued + summary.active == 0 && kinds.iter().all(|kind| count(&summary, *kind) == 0) {
        nothing_to_do(&summary);
        return run::settled(Some(&summary), args.fail_on_fault);
    }
    let ResumeArgs { venue, detach, format, fail_on_fault, .. } = args;
    go_on(source, &summary, kinds, GoOn { venue, detach, format, fail_on_fault }, settings, file).await
}

/// How a run is gone on with.
#[derive(Debug)]
pub(crate) struct GoOn {
    /// Where.
    pub(crate) venue: VenueArgs,
    /// Whether it is left to its coordinator.
    pub(crate) detach: bool,
    /// How the result is written.
    pub(crate) format: Format,
    /// Whether episodes that are faulted make it an error.
    pub(crate) fail_on_fault: bool,
}

/// Goes on with a run of a source.
///
/// # Errors
///
/// As [`resume`].
pub(crate) async fn go_on(
    source: Source,
    summary: &v1::RunSummary,
    kinds: Vec<SettlementKind>,
    how: GoOn,
    settings: &Settings,
    file: Option<&Path>,
) -> Result<Exit, CliError> {
    let GoOn { mut venue, detach, format, fail_on_fault } = how;
    let id: RunId = convert::parsed("run_id", &summary.run_id).map_err(CliError::Answer)?;
    let again = Again::read(&source, id, kinds).await?;
    if matches!(source, Source::Live(_)) && venue.coordinator.is_none() {
        // A coordinator has the store: it goes on with it there.
        venue.coordinator = Some(access_of(&places::store(venue.store.as_deref(), settings)?));
    }
    drop(source);
    run::keys_are_there(&again.missing_keys, &venue)?;
    let reporting = Reporting::Verdicts(format);
    let hosting = Hosting { venue: &venue, detach, reporting, settings, file };
    let summary = Box::pin(run::host(Order::Again(again), &hosting)).await?;
    run::settled(summary.as_ref(), fail_on_fault)
}

/// Which settled episodes are to be done again: those that a person stopped, if nobody says.
fn kinds(args: &ResumeArgs) -> Vec<SettlementKind> {
    if args.only.is_empty() {
        return vec![SettlementKind::Cancelled];
    }
    args.only.clone()
}

/// One that may be named: a verdict is never asked for again.
pub(crate) fn kind(text: &str) -> Result<SettlementKind, String> {
    let kind: SettlementKind =
        text.parse().map_err(|_| format!("`{text}` is none of cancelled, faulted, unverified, not-started"))?;
    match kind {
        SettlementKind::Passed | SettlementKind::Failed => {
            Err(format!("an episode that has {kind} has its verdict, and is not done again: run its task anew"))
        }
        kind => Ok(kind),
    }
}

const fn count(run: &v1::RunSummary, kind: SettlementKind) -> u32 {
    match kind {
        SettlementKind::Passed => run.passed,
        SettlementKind::Failed => run.failed,
        SettlementKind::Unverified => run.unverified,
        SettlementKind::Cancelled => run.cancelled,
        SettlementKind::Faulted => run.faulted,
        SettlementKind::NotStarted => run.not_started,
    }
}

/// Says what there would be.
fn nothing_to_do(summary: &v1::RunSummary) {
    let kinds =
        [SettlementKind::Cancelled, SettlementKind::Faulted, SettlementKind::Unverified, SettlementKind::NotStarted];
    let there: Vec<String> =
        kinds.into_iter().filter(|kind| count(summary, *kind) > 0).map(|kind| kind.name().replace(' ', "-")).collect();
    let id = &summary.run_id;
    let hint = if there.is_empty() { String::new() } else { format!("; done again: --only {}", there.join(",")) };
    output::note(&format!("nothing of run {id} is to be done: {}{hint}", show::counts(summary)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_never_asked_for_again() {
        assert_eq!(kind("not-started"), Ok(SettlementKind::NotStarted));
        assert_eq!(kind("unverified"), Ok(SettlementKind::Unverified));
        for word in ["passed", "failed", "all", ""] {
            assert!(kind(word).is_err(), "{word}");
        }
    }
}
