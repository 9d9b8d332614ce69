//! JSON lines: `episodes.jsonl`, `steps.jsonl` and `calls.jsonl`, screenshots and logs beside them.

use std::path::Path;

use longhaul_core::call::CallRecord;
use longhaul_core::ids::AttemptId;
use longhaul_core::step::StepRecord;
use serde_json::{Value, json};

use super::files::{Lines, Pictures, Staging, is_top, log_file, make_folder, write as write_file};
use super::source::{Source, encode_error};
use super::{Attempts, ExportError, Exported};
use crate::view::{EpisodeView, RunView, Trajectories};

pub(super) fn write<T: Trajectories>(
    source: &Source<'_, T>,
    attempts: Attempts,
    staging: &Staging,
) -> Result<Exported, ExportError> {
    let folder = staging.folder();
    let mut screenshots = Pictures::new(folder.join("screenshots"));
    write_file(&folder.join("run.json"), format!("{}\n", run_json(source.view())).as_bytes())?;
    let mut episode_lines = Lines::create(folder.join("episodes.jsonl"))?;
    let mut step_lines = Lines::create(folder.join("steps.jsonl"))?;
    let mut call_lines = Lines::create(folder.join("calls.jsonl"))?;
    let mut exported = Exported::default();
    source.each(|episode| {
        for (attempt, step) in source.taken(&episode, attempts)? {
            step_lines.line(&step_json(&episode, attempt, &step)?)?;
            exported.steps += 1;
            screenshots.add(&step.screen.png, || source.screen(attempt, &step))?;
        }
        // Of every attempt, whichever steps were asked for: all of them were paid.
        for attempt in &episode.attempts {
            for (call, late) in source.calls(attempt.id)? {
                call_lines.line(&call_json(&episode, attempt.id, &call, late)?)?;
            }
        }
        episode_lines.line(&episode_json(source, &episode, folder)?)?;
        exported.episodes += 1;
        Ok(())
    })?;
    exported.screenshots = screenshots.count();
    episode_lines.finish()?;
    step_lines.finish()?;
    call_lines.finish()?;
    Ok(exported)
}

/// The run, for whoever finds the files.
fn run_json(run: &RunView) -> Value {
    json!({
        "id": run.id,
        "name": run.name,
        "benchmark": run.benchmark,
        "submitted_at_millis": run.submitted_at,
        "settled_at_millis": run.settled_at,
    })
}

fn step_json(episode: &EpisodeView, attempt: AttemptId, step: &StepRecord) -> Result<Value, ExportError> {
    let encode = |value| -> Result<Value, ExportError> { serde_json::to_value(value).map_err(encode_error(episode)) };
    let record = encode(step)?;
    Ok(json!({
        "episode": episode.id,
        "attempt": attempt,
        "task": episode.task,
        "agent": episode.agent,
        "sample": episode.sample,
        "step": step.number,
        "at_millis": step.at,
        "answer": record.get("answer"),
        "outcomes": record.get("outcomes"),
        "screenshot": format!("screenshots/{}.png", step.screen.png),
        "width": step.screen.width,
        "height": step.screen.height,
        "rested": step.rested,
        "calls": step.calls,
        "round": step.round,
        "told": step.told,
        "unreadable": step.unreadable,
        "timing_millis": record.get("timing"),
    }))
}

/// A model call: the record as it is stored, with whose it is. Amounts are billionths of a dollar.
fn call_json(episode: &EpisodeView, attempt: AttemptId, call: &CallRecord, late: bool) -> Result<Value, ExportError> {
    let mut value = serde_json::to_value(call).map_err(encode_error(episode))?;
    if let Value::Object(object) = &mut value {
        for (name, whose) in [("episode", json!(episode.id)), ("attempt", json!(attempt)), ("late", json!(late))] {
            object.insert(name.to_owned(), whose);
        }
    }
    Ok(value)
}

fn episode_json<T: Trajectories>(
    source: &Source<'_, T>,
    episode: &EpisodeView,
    folder: &Path,
) -> Result<Value, ExportError> {
    let mut attempts = Vec::new();
    for attempt in &episode.attempts {
        let mut value = serde_json::to_value(attempt).map_err(encode_error(episode))?;
        let logs = write_logs(source, episode, attempt.id, folder)?;
        if let Value::Object(object) = &mut value {
            object.insert("logs".to_owned(), logs);
        }
        attempts.push(value);
    }
    let (plan, task) = source.plans(episode);
    let settlement = serde_json::to_value(&episode.settlement).map_err(encode_error(episode))?;
    Ok(json!({
        "episode": episode.id,
        "task": episode.task,
        "description": task.map(|task| task.description),
        "agent": episode.agent,
        "sample": episode.sample,
        "seed": plan.map(|plan| plan.seed),
        "state": episode.state(),
        "settlement": settlement,
        "settled_at_millis": episode.settled_at,
        "attempt": episode.attempt,
        "attempts": attempts,
    }))
}

/// Writes the logs of an attempt; the answer maps their names to their files.
fn write_logs<T: Trajectories>(
    source: &Source<'_, T>,
    episode: &EpisodeView,
    attempt: AttemptId,
    folder: &Path,
) -> Result<Value, ExportError> {
    let mut files = serde_json::Map::new();
    let logs = episode.logs.get(&attempt).into_iter().flatten();
    for (name, digest) in logs.filter(|(name, _)| !is_top(name)) {
        let place = format!("logs/{}", attempt.to_string().replace('/', "-"));
        let what = || format!("log {} of attempt {attempt}", name.escape_debug());
        let Some(bytes) = source.kept(digest, what)? else { continue };
        make_folder(&folder.join(&place))?;
        let file = format!("{place}/{}", log_file(name));
        write_file(&folder.join(&file), &bytes)?;
        files.insert(name.clone(), Value::String(file));
    }
    Ok(Value::Object(files))
}
