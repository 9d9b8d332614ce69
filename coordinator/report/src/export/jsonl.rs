//! JSON lines: `episodes.jsonl`, `steps.jsonl` and `calls.jsonl`, screenshots and logs beside them.

use std::collections::HashSet;
use std::path::Path;

use longhaul_core::call::CallRecord;
use longhaul_core::digest::Digest;
use longhaul_core::ids::AttemptId;
use longhaul_core::plan::{EpisodePlan, TaskPlan};
use longhaul_core::step::StepRecord;
use serde_json::{Value, json};

use super::files::{Lines, Staging, log_file, make_folder, write as write_file};
use super::{Attempts, ExportError, Exported, Source, chosen, encode_error, run_json};
use crate::view::{EpisodeView, RunView, Trajectories};

pub(super) fn write<T: Trajectories>(
    source: &Source<'_, T>,
    run: &RunView,
    attempts: Attempts,
    staging: &Staging,
) -> Result<Exported, ExportError> {
    let folder = staging.folder();
    let screenshots = folder.join("screenshots");
    make_folder(&screenshots)?;
    write_file(&folder.join("run.json"), format!("{}\n", run_json(run)).as_bytes())?;
    let mut episode_lines = Lines::create(folder.join("episodes.jsonl"))?;
    let mut step_lines = Lines::create(folder.join("steps.jsonl"))?;
    let mut call_lines = Lines::create(folder.join("calls.jsonl"))?;
    let mut written = HashSet::new();
    let mut exported = Exported::default();
    for episode in source.episodes()? {
        for attempt in chosen(&episode, attempts) {
            for step in source.steps(attempt)? {
                step_lines.line(&step_json(&episode, attempt, &step)?)?;
                exported.steps += 1;
                let png = step.screen.png;
                // Most screens of an episode differ; those that do not are one file.
                if written.insert(png) {
                    let bytes = source.blob(&png, || format!("step {} of attempt {attempt}", step.number))?;
                    write_file(&screenshots.join(png_name(&png)), &bytes)?;
                    exported.screenshots += 1;
                }
            }
        }
        // Of every attempt, whichever steps were asked for: all of them were paid.
        for attempt in &episode.attempts {
            for (call, late) in source.calls(attempt.id)? {
                call_lines.line(&call_json(&episode, attempt.id, &call, late)?)?;
            }
        }
        episode_lines.line(&episode_json(source, &episode, folder)?)?;
        exported.episodes += 1;
    }
    episode_lines.finish()?;
    step_lines.finish()?;
    call_lines.finish()?;
    Ok(exported)
}

fn png_name(digest: &Digest) -> String {
    format!("{digest}.png")
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
        "screenshot": format!("screenshots/{}", png_name(&step.screen.png)),
        "width": step.screen.width,
        "height": step.screen.height,
        "rested": step.rested,
        "calls": step.calls,
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
    let plan: Option<EpisodePlan> = source.plan(&episode.plan);
    let task: Option<TaskPlan> = plan.as_ref().and_then(|plan| source.plan(&plan.task));
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
    for (name, digest) in episode.logs.get(&attempt).into_iter().flatten() {
        let place = format!("logs/{}", attempt.to_string().replace('/', "-"));
        make_folder(&folder.join(&place))?;
        let file = format!("{place}/{}", log_file(name));
        let bytes = source.blob(digest, || format!("log {} of attempt {attempt}", name.escape_debug()))?;
        write_file(&folder.join(&file), &bytes)?;
        files.insert(name.clone(), Value::String(file));
    }
    Ok(Value::Object(files))
}
