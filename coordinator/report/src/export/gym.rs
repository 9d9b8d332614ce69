//! Gym-Anything's own layout: a folder for each episode.
//!
//! ```text
//! ENV/TASK/AGENT/run_SAMPLE/        with `-attempt_N` where all attempts are exported
//!   traj.jsonl                      reset, session, a line for each step, finalize
//!   frame_00000.png ...             the first observation, then the screen after each step
//!   final.png                       the last of them
//!   summary.json                    steps, times and the verifier's report
//!   NAME.log, NAME.png              the logs of hooks and of the verifier, post_verification.png
//! ```
//!
//! Upstream names folders by the task alone, though task names repeat across envs, and
//! has the screen after the first step overwrite the first observation; here the env is
//! part of the path, and the screen after step `idx` is frame `idx + 1`. There is no
//! password in the session, since there is none to log in with.

use std::fs;
use std::path::Path;

use longhaul_core::ids::AttemptId;
use longhaul_core::outcome::Settlement;
use longhaul_core::plan::{EnvPlan, LayerKind};
use longhaul_core::step::StepRecord;
use longhaul_core::time::Timestamp;
use longhaul_store::AttemptRecord;
use serde_json::{Value, json};

use super::files::{
    Lines, Staging, agent_folder, failed, is_top, log_file, make_folder, write as write_file, write_json,
};
use super::source::{Source, chosen};
use super::{Attempts, ExportError, Exported};
use crate::view::{EpisodeView, Trajectories};

pub(super) fn write<T: Trajectories>(
    source: &Source<'_, T>,
    attempts: Attempts,
    staging: &Staging,
) -> Result<Exported, ExportError> {
    let mut exported = Exported::default();
    source.each(|episode| {
        let plans = Plans::read(source, &episode);
        for attempt in chosen(&episode, attempts) {
            let sample = match attempts {
                Attempts::Settling => format!("run_{}", episode.sample),
                Attempts::All => format!("run_{}-attempt_{}", episode.sample, attempt.number),
            };
            let folder = agent_folder(staging.folder(), &episode).join(sample);
            make_folder(&folder)?;
            write_episode(source, &episode, attempt, &plans, &folder, &mut exported)?;
        }
        exported.episodes += 1;
        Ok(())
    })?;
    Ok(exported)
}

/// What is known of an episode from its plans; ids fall back to the folder names.
struct Plans {
    env_id: String,
    task_id: String,
    seed: Option<u64>,
    network: Option<bool>,
}

impl Plans {
    fn read<T: Trajectories>(source: &Source<'_, T>, episode: &EpisodeView) -> Self {
        let (plan, task) = source.plans(episode);
        let env: Option<EnvPlan> = task.as_ref().and_then(|task| source.plan(&task.env));
        Self {
            network: env.as_ref().map(|env| env.net),
            env_id: env.map_or_else(|| episode.task.env.clone(), |env| env.id),
            task_id: task.map_or_else(|| episode.task.task.clone(), |task| task.id),
            seed: plan.map(|plan| plan.seed),
        }
    }
}

fn write_episode<T: Trajectories>(
    source: &Source<'_, T>,
    episode: &EpisodeView,
    attempt: AttemptId,
    plans: &Plans,
    folder: &Path,
    exported: &mut Exported,
) -> Result<(), ExportError> {
    let record = episode.record(attempt);
    let steps = source.steps(attempt)?;
    let first = steps.first();
    let start = first.map(|step| step.at).or_else(|| record.map(|record| record.started)).unwrap_or_default();
    let end = record
        .and_then(|record| record.finish.as_ref())
        .map(|finish| finish.at)
        .or_else(|| steps.last().map(|step| step.at))
        .unwrap_or(start);

    let mut lines = Lines::create(folder.join("traj.jsonl"))?;
    lines.line(&reset(record, plans, start))?;
    lines.line(&session(plans, first))?;
    let mut last_frame = None;
    for step in &steps {
        let frame = format!("frame_{:05}.png", step.number);
        if let Some(answer) = &step.answer {
            lines.line(&json!({
                "event": "step",
                "ts": seconds(step.at),
                "idx": step.number.saturating_sub(1),
                "action": answer.actions,
                "text": answer.text,
                "outcomes": step.outcomes,
                "frame": frame,
            }))?;
        }
        exported.steps += 1;
        let Some(screen) = source.screen(attempt, step)? else { continue };
        write_file(&folder.join(&frame), &screen)?;
        exported.screenshots += 1;
        last_frame = Some(folder.join(frame));
    }
    lines.line(&json!({ "event": "finalize", "ts": seconds(end) }))?;
    lines.finish()?;
    if let Some(frame) = last_frame {
        let path = folder.join("final.png");
        // The same bytes; where two names of one file cannot be, a copy.
        fs::hard_link(&frame, &path).or_else(|_| fs::copy(&frame, &path).map(|_| ())).map_err(failed(&path))?;
    }
    let logs = episode.logs.get(&attempt).into_iter().flatten();
    for (name, digest) in logs.filter(|(name, _)| !is_top(name)) {
        let what = || format!("log {} of attempt {attempt}", name.escape_debug());
        let Some(bytes) = source.kept(digest, what)? else { continue };
        write_file(&folder.join(log_file(name)), &bytes)?;
    }
    let summary = json!({
        "env": plans.env_id,
        "task": plans.task_id,
        "start_ts": seconds(start),
        "end_ts": seconds(end),
        "steps": steps.iter().filter(|step| step.answer.is_some()).count(),
        "verifier": verifier(episode),
        "longhaul": { "episode": episode.id, "attempt": attempt, "state": episode.state(), "agent": episode.agent },
    });
    write_json(&folder.join("summary.json"), &summary)
}

fn reset(record: Option<&AttemptRecord>, plans: &Plans, start: Timestamp) -> Value {
    let layers = record.and_then(|record| record.finish.as_ref()).map(|finish| finish.notes.layers.as_slice());
    let used = |kind| layers.is_some_and(|layers| layers.iter().any(|layer| layer.kind == kind));
    let level = if used(LayerKind::Configure) {
        Some("post_start")
    } else if used(LayerKind::Install) {
        Some("pre_start")
    } else {
        None
    };
    json!({
        "event": "reset",
        "ts": seconds(start),
        "seed": plans.seed,
        "env": plans.env_id,
        "task": plans.task_id,
        "use_cache": level.is_some(),
        "cache_level": level,
        "use_savevm": false,
        "checkpoint_loaded": layers.is_some_and(|layers| {
            layers.iter().any(|layer| layer.kind != LayerKind::Base) && layers.iter().all(|layer| !layer.built)
        }),
    })
}

fn session(plans: &Plans, first: Option<&StepRecord>) -> Value {
    json!({
        "event": "session",
        "env_id": plans.env_id,
        "task_id": plans.task_id,
        "runner_name": "longhaul",
        "platform_family": "linux",
        "resolution": first.map(|step| [step.screen.width, step.screen.height]),
        "network_enabled": plans.network,
        "systemd_enabled": false,
    })
}

/// The verifier's report. `passed` and `score` are null where nothing trustworthy scored
/// the episode: neither our fault nor a missing verifier is the agent's failure.
fn verifier(episode: &EpisodeView) -> Value {
    match &episode.settlement {
        Some(Settlement::Verdict(verdict)) => json!({
            "mode": if verdict.parts.is_some() { "vlm_checklist" } else { "program" },
            "decided": true,
            "passed": verdict.passed,
            "score": verdict.score,
            "feedback": verdict.feedback,
            "details": verdict.details,
            "parts": verdict.parts,
            "ended_by": verdict.ended_by,
        }),
        Some(Settlement::Unverified { ended_by, reason, .. }) => {
            let mut report = undecided(reason);
            report["ended_by"] = json!(ended_by);
            report
        }
        Some(Settlement::Cancelled) => undecided("cancelled"),
        Some(Settlement::NotStarted { reason }) => undecided(reason),
        Some(Settlement::Faulted(fault)) => undecided(&format!("{}: {}", fault.class, fault.message)),
        None => undecided("not settled yet"),
    }
}

fn undecided(reason: &str) -> Value {
    json!({ "mode": "program", "decided": false, "passed": null, "score": null, "feedback": reason })
}

/// As Python's `time.time()`.
fn seconds(at: Timestamp) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "milliseconds since 1970 are far below 2^53")]
    let millis = at.0 as f64;
    millis / 1000.0
}
