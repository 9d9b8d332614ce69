//! `longhaul show`: a run, an episode, its steps, model calls, logs and screenshots.

mod calls;
mod parts;
mod provenance;
mod steps;

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::Path;

use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, EpisodeId, RunId};
use longhaul_core::money::Money;
use longhaul_core::outcome::{AttemptEnd, Settlement, Verdict};
use longhaul_core::time::Millis;
use longhaul_proto::{convert, v1};
use longhaul_store::{AttemptRecord, Line};
use serde_json::json;

use crate::cli::ShowArgs;
use crate::client::Source;
use crate::error::CliError;
use crate::output::{self, Format, escape};
use crate::settings::Settings;
use crate::{reading, show, units};
use calls::Half;

/// The most attempts of an episode that are shown to a person.
const ATTEMPTS_SHOWN: usize = 10;

/// Shows what is meant.
///
/// # Errors
///
/// It is not there, or cannot be read.
pub async fn show(args: ShowArgs, settings: &Settings) -> Result<(), CliError> {
    let source = Source::open(&args.source, settings).await?;
    let (run, index) = match args.what.split_once('/') {
        None => (args.what.as_str(), None),
        Some((run, index)) => {
            let index = index.parse().map_err(|_| {
                CliError::Usage(format!("`{}` is not RUN/INDEX: the index is a number, from 0", args.what))
            })?;
            (run, Some(index))
        }
    };
    let summary = source.run(run).await?;
    let run: RunId = convert::parsed("run_id", &summary.run_id).map_err(CliError::Answer)?;
    let Some(index) = index else {
        let numbered = [args.request, args.response, args.screenshot].iter().any(Option::is_some);
        if args.steps || args.calls || args.provenance || args.log.is_some() || numbered {
            let message =
                "steps, calls, logs, screenshots and provenance are an episode's: say which, as in `latest/0`";
            return Err(CliError::Usage(message.to_owned()));
        }
        return show_run(&source, &summary, run, args.format).await;
    };
    let episode = source.episode(EpisodeId { run, index }).await?;
    let attempts = attempts(&episode)?;
    if let Some(name) = &args.log {
        let attempt = chosen(&episode, &attempts, args.attempt)?;
        return show_log(&source, &episode, attempt.id, name, args.output.as_deref()).await;
    }
    if let Some(number) = args.screenshot {
        let attempt = chosen(&episode, &attempts, args.attempt)?;
        return show_screenshot(&source, attempt.id, number, args.output.as_deref()).await;
    }
    if args.steps {
        let attempt = chosen(&episode, &attempts, args.attempt)?;
        return steps::show(&source, attempt.id, args.attempt.is_some(), args.format).await;
    }
    if args.calls {
        let attempt = chosen(&episode, &attempts, args.attempt)?;
        return calls::show(&source, attempt.id, args.format).await;
    }
    let half = args.request.map(|number| (number, Half::Request));
    if let Some((number, half)) = half.or_else(|| args.response.map(|number| (number, Half::Response))) {
        let attempt = chosen(&episode, &attempts, args.attempt)?;
        let body = calls::body(source, attempt.id, number, half).await?;
        return text(&body, args.output.as_deref());
    }
    if args.provenance {
        return provenance::show(source, EpisodeId { run, index }, episode, args.format).await;
    }
    show_episode(EpisodeId { run, index }, &episode, &attempts, args.format)
}

async fn show_run(source: &Source, summary: &v1::RunSummary, run: RunId, format: Format) -> Result<(), CliError> {
    let rows = source.episodes(run).await?;
    let layers = source.layers(Some(run)).await?;
    let imported = reading::imported(source, rows.first()).await?;
    match format {
        Format::Json => {
            let episodes = rows.iter().map(show::episode_json).collect::<Result<Vec<_>, _>>()?;
            let layers: Vec<_> = layers.iter().map(show::layer_json).collect();
            let run = show::run_json(summary);
            output::json(&json!({ "run": run, "episodes": episodes, "layers": layers, "imported": imported }))
        }
        Format::Human => {
            let colours = output::stdout_colours();
            let mut text = show::runs_table(std::slice::from_ref(summary), colours);
            if let Some(form) = imported {
                let from = output::escape_line(&summary.benchmark);
                text.extend(["imported from ", form.name(), " in ", &from, "\n"]);
            }
            if let Some(said) = show::dropped(summary) {
                text.extend([&*said, "\n"]);
            }
            text.push('\n');
            text.push_str(&show::episodes_table(&rows, colours)?);
            if !layers.is_empty() {
                text.push('\n');
                text.push_str(&show::layers_table(&layers, colours));
            }
            output::data(&text)
        }
    }
    .map_err(CliError::Output)
}

fn attempts(episode: &v1::GetEpisodeResponse) -> Result<Vec<AttemptRecord>, CliError> {
    episode
        .attempts_json
        .iter()
        .map(|json| serde_json::from_slice(json))
        .collect::<Result<_, _>>()
        .map_err(|source| CliError::Record { what: "an attempt".to_owned(), source })
}

/// The attempt that is asked for, else the last one: the one that settled the episode,
/// if it is settled.
fn chosen<'a>(
    episode: &v1::GetEpisodeResponse,
    attempts: &'a [AttemptRecord],
    number: Option<u32>,
) -> Result<&'a AttemptRecord, CliError> {
    let found = match number {
        Some(number) => attempts.iter().find(|attempt| attempt.id.number == number),
        None => attempts.last(),
    };
    found.ok_or_else(|| CliError::NoSuchPart {
        whole: format!("episode {}", row(episode).episode_id),
        part: number.map_or_else(|| "attempt yet".to_owned(), |number| format!("attempt {number}")),
        have: attempts.iter().map(|attempt| format!("attempt {}", attempt.id.number)).collect(),
    })
}

fn row(episode: &v1::GetEpisodeResponse) -> v1::EpisodeRow {
    episode.row.clone().unwrap_or_default()
}

fn show_episode(
    id: EpisodeId,
    episode: &v1::GetEpisodeResponse,
    attempts: &[AttemptRecord],
    format: Format,
) -> Result<(), CliError> {
    let row = row(episode);
    let kept = reading::lines(id, episode)?;
    match format {
        Format::Json => {
            let logs: Vec<_> = episode
                .logs
                .iter()
                .map(|log| {
                    let blob = convert::digest("blob", &log.blob).ok();
                    json!({ "attempt": log.attempt, "name": log.name, "blob": blob })
                })
                .collect();
            let kept: BTreeMap<String, &Line> =
                kept.iter().map(|(attempt, line)| (attempt.to_string(), line)).collect();
            let episode = show::episode_json(&row)?;
            output::json(&json!({ "episode": episode, "attempts": attempts, "logs": logs, "kept": kept }))
        }
        Format::Human => output::data(&episode_text(&row, attempts, &episode.logs, &kept)?),
    }
    .map_err(CliError::Output)
}

fn episode_text(
    row: &v1::EpisodeRow,
    attempts: &[AttemptRecord],
    logs: &[v1::LogRow],
    kept: &BTreeMap<AttemptId, Line>,
) -> Result<String, CliError> {
    let colours = output::stdout_colours();
    let mut lines = vec![
        format!("episode   {}", row.episode_id),
        format!("task      {}", output::escape_line(&row.task)),
        format!("agent     {}, sample {}", output::escape_line(&row.agent), row.sample),
        format!("state     {}", output::paint(&row.state, show::tone(&row.state), colours)),
    ];
    lines.extend(
        show::waits(&row.waiting, row.waiting_since_millis).map(|waits| format!("because   {}", indent(&waits))),
    );
    if row.spent_nanos > 0 {
        lines.push(format!("spent     {}", Money::from_nanos(row.spent_nanos)));
    }
    match show::settlement(row)? {
        Some(Settlement::Verdict(verdict)) => {
            lines.push(format!("score     {}", verdict.score));
            lines.push(format!("ended by  {}", verdict.ended_by));
            lines.push(format!("feedback  {}", indent(&verdict.feedback)));
            lines.extend(verdict.parts.iter().flat_map(|parts| parts::lines(parts)));
        }
        Some(Settlement::Unverified { ended_by, reason, fault, parts }) => {
            lines.push(format!("ended by  {ended_by}"));
            lines.extend(fault.map(|class| format!("fault     {class}")));
            lines.push(format!("because   {}", indent(&reason)));
            lines.extend(parts.iter().flat_map(|parts| parts::lines(parts)));
        }
        Some(Settlement::Faulted(fault)) => {
            lines.push(format!("fault     {}: {}", fault.class, indent(&fault.message)));
            lines.extend(fault.log_tail.map(|tail| format!("log tail\n  {}", indent_by(&tail, 2))));
        }
        Some(Settlement::NotStarted { reason }) => lines.push(format!("because   {}", indent(&reason))),
        Some(Settlement::Cancelled) | None => {}
    }
    let hidden = attempts.len().saturating_sub(ATTEMPTS_SHOWN);
    if hidden > 0 {
        lines.push(format!("\n{hidden} earlier attempts are not shown (--format json has all)"));
    }
    for attempt in attempts.iter().skip(hidden) {
        lines.push(String::new());
        lines.extend(attempt_lines(attempt, kept.get(&attempt.id)));
        let named: Vec<String> = logs
            .iter()
            .filter(|log| log.attempt == attempt.id.to_string())
            .map(|log| output::escape_line(&log.name))
            .collect();
        if !named.is_empty() {
            lines.push(format!("  logs      {}", named.join(", ")));
        }
    }
    lines.push(String::new());
    Ok(lines.join("\n"))
}

fn attempt_lines(attempt: &AttemptRecord, kept: Option<&Line>) -> Vec<String> {
    // An imported one was nobody's of ours.
    let imported = attempt.worker.as_u64() == 0;
    let mut lines = vec![if imported {
        format!("attempt {}, imported", attempt.id.number)
    } else {
        format!(
            "attempt {} on {} (worker {}, epoch {}), from {}",
            attempt.id.number,
            output::escape_line(&attempt.hostname),
            attempt.worker,
            attempt.epoch,
            show::time(attempt.started.0)
        )
    }];
    lines.extend(kept.into_iter().flat_map(steps::kept_lines));
    let Some(finish) = &attempt.finish else {
        lines.push("  it is live".to_owned());
        return lines;
    };
    let end = match &finish.end {
        AttemptEnd::Verdict(verdict) if verdict.passed => "passed".to_owned(),
        AttemptEnd::Verdict(_) => "failed".to_owned(),
        AttemptEnd::Unverified { reason, .. } => format!("unverified: {}", indent(reason)),
        AttemptEnd::Cancelled => "cancelled".to_owned(),
        AttemptEnd::Fault(fault) => format!("{}: {}", fault.class, indent(&fault.message)),
    };
    let warnings = || finish.notes.warnings.iter().map(|warning| format!("  warning   {}", indent(warning)));
    if imported {
        // All else of it is not known, and nothing of what is noted.
        lines.push(format!("  end       {end}"));
        lines.extend(warnings());
        return lines;
    }
    let late = if finish.late { ", too late to count" } else { "" };
    lines.push(format!("  end       {end}{late}, {}", show::time(finish.at.0)));
    let parts = match &finish.end {
        AttemptEnd::Verdict(Verdict { parts, .. }) | AttemptEnd::Unverified { parts, .. } => parts.as_deref(),
        AttemptEnd::Cancelled | AttemptEnd::Fault(_) => None,
    };
    let notes = &finish.notes;
    if !notes.is_noted() {
        let steps = show::steps(finish.steps.saturating_sub(1), parts);
        lines.push(format!("  time      not known, since its worker could not say; {steps} steps"));
        return lines;
    }
    let spent = |length: Millis| units::show_duration(length);
    lines.push(format!(
        "  time      layers {}, start {}, setup {}, acting {}, verify {}; {} steps; {} MiB at most",
        spent(notes.layers_time),
        spent(notes.start_time),
        spent(notes.setup_time),
        spent(notes.acting_time),
        spent(notes.verify_time),
        show::steps(finish.steps.saturating_sub(1), parts),
        notes.peak_memory_mib
    ));
    lines.extend(calls::line(&notes.calls));
    for layer in &notes.layers {
        let made = if layer.built { "built" } else { "reused" };
        let tolerated = layer.tolerated_exit.map(|code| format!(", its hook exited with {code}")).unwrap_or_default();
        lines.push(format!("  layer     {} {} {made}{tolerated}", layer.kind.name(), layer.key.short()));
    }
    lines.extend(notes.configure_ran.iter().map(|why| format!("  configure ran for this attempt: {}", indent(why))));
    lines.extend(warnings());
    lines
}

fn indent(text: &str) -> String {
    indent_by(text, 10)
}

fn indent_by(text: &str, by: usize) -> String {
    escape(text.trim_end()).replace('\n', &format!("\n{}", " ".repeat(by)))
}

async fn show_log(
    source: &Source,
    episode: &v1::GetEpisodeResponse,
    attempt: AttemptId,
    name: &str,
    to: Option<&Path>,
) -> Result<(), CliError> {
    let of_attempt = || episode.logs.iter().filter(|log| log.attempt == attempt.to_string());
    let log = of_attempt().find(|log| log.name == name).ok_or_else(|| CliError::NoSuchPart {
        whole: format!("attempt {attempt}"),
        part: format!("log `{name}`"),
        have: of_attempt().map(|log| log.name.clone()).collect(),
    })?;
    let digest = convert::digest("blob", &log.blob).map_err(CliError::Answer)?;
    let bytes = blob(source, &digest, attempt.episode.run, &format!("attempt {attempt}")).await?;
    text(&bytes, to)
}

/// Text of unknown origin: to a file or a program as it is, to a person escaped.
fn text(bytes: &[u8], to: Option<&Path>) -> Result<(), CliError> {
    match to {
        Some(path) => write(path, bytes),
        None if std::io::stdout().is_terminal() => {
            output::data(&escape(&String::from_utf8_lossy(bytes))).map_err(CliError::Output)
        }
        None => raw(bytes),
    }
}

async fn show_screenshot(source: &Source, attempt: AttemptId, number: u32, to: Option<&Path>) -> Result<(), CliError> {
    if to.is_none() && std::io::stdout().is_terminal() {
        return Err(CliError::Usage("a screenshot is no text: name a file with -o, or redirect stdout".to_owned()));
    }
    let records = reading::steps(source, attempt).await?;
    let record = records.iter().find(|record| record.number == number).ok_or_else(|| CliError::NoSuchPart {
        whole: format!("attempt {attempt}"),
        part: format!("step {number}"),
        have: records.last().map(|last| format!("steps 0 to {}", last.number)).into_iter().collect(),
    })?;
    let whole = format!("step {number} of attempt {attempt}");
    let bytes = blob(source, &record.screen.png, attempt.episode.run, &whole).await?;
    match to {
        Some(path) => write(path, &bytes),
        None => raw(&bytes),
    }
}

async fn blob(source: &Source, digest: &Digest, run: RunId, whole: &str) -> Result<Vec<u8>, CliError> {
    if let Some(bytes) = source.blob(digest).await? {
        return Ok(bytes);
    }
    let dropped = show::dropped(&source.run(&run.to_string()).await?);
    let why = dropped.map(|said| format!(": {said}")).unwrap_or_default();
    let part = format!("blob {} any more{why}", digest.short());
    Err(CliError::NoSuchPart { whole: whole.to_owned(), part, have: Vec::new() })
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), CliError> {
    std::fs::write(path, bytes).map_err(|source| CliError::File { path: path.to_owned(), doing: "written", source })
}

fn raw(bytes: &[u8]) -> Result<(), CliError> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(CliError::Output)
}
