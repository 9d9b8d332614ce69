//! The Agent Trajectory Interchange Format (ATIF), which Harbor and others read.
//!
//! Version 1.7: later ones add nothing that a screen and a pointer need, and more programs read it.
//! An episode is a user's step with the task and the first screen, and then a step of the agent for
//! each of its own; an action is a call of the tool `computer`, in Gym-Anything's form, as it was
//! carried out, and the screen after all of them is the last result. What somebody else said to
//! the agent is a user's step of its own.
//!
//! ```text
//! RUN/ENV/TASK/AGENT/SAMPLE/trajectory.json
//!                           images/DIGEST.png
//! ```

use std::path::Path;

use longhaul_core::agent::{AgentPlan, Answer};
use longhaul_core::call::{CallRecord, Certainty, Purpose, PurseKind};
use longhaul_core::money::Money;
use longhaul_core::price::Usage;
use longhaul_core::step::{ActionOutcome, StepRecord};
use serde_json::{Map, Value, json};

use super::files::{Pictures, Staging, agent_folder, iso, make_folder, write_json};
use super::source::{Played, Source};
use super::{ExportError, Exported};
use crate::measured::{Measured, Plans};
use crate::view::{EpisodeView, Trajectories};

/// The version that is written.
const VERSION: &str = "ATIF-v1.7";

/// The folder of the pictures, beside the trajectory.
const IMAGES: &str = "images";

pub(super) fn write<T: Trajectories>(sources: &[Source<'_, T>], staging: &Staging) -> Result<Exported, ExportError> {
    let mut exported = Exported::default();
    for source in sources {
        let mut plans = Plans::new(source.from());
        source.each(|episode| {
            let Some(played) = source.played(episode)? else {
                exported.leave_out("never begun");
                return Ok(());
            };
            let of = &played.episode;
            let run = staging.folder().join(source.run().to_string());
            let folder = agent_folder(&run, of).join(of.sample.to_string());
            let measured = source.measured(&mut plans, of)?;
            write_trajectory(source, &played, &measured, &folder, &mut exported)?;
            exported.episodes += 1;
            Ok(())
        })?;
    }
    Ok(exported)
}

/// Writes a trajectory and its pictures into a folder.
pub(super) fn write_trajectory<T: Trajectories>(
    source: &Source<'_, T>,
    played: &Played,
    measured: &Measured,
    folder: &Path,
    exported: &mut Exported,
) -> Result<(), ExportError> {
    make_folder(folder)?;
    let mut pictures = Pictures::new(folder.join(IMAGES));
    for step in &played.steps {
        pictures.add(&step.screen.png, || source.screen(played.attempt, step))?;
        exported.steps += 1;
    }
    exported.screenshots += pictures.count();
    let calls = source.calls_of(played)?;
    // Whether what the calls cost is known, and not merely nothing.
    let priced = measured.row.dollars.is_some();
    write_json(&folder.join("trajectory.json"), &document(played, &Called { calls, priced }))
}

/// The model calls of a trajectory.
struct Called {
    calls: Vec<CallRecord>,
    priced: bool,
}

/// The sums of some calls.
struct Sums {
    calls: u64,
    usage: Option<Usage>,
    cost: Option<Money>,
}

impl Called {
    fn sums(&self, of: impl Fn(&CallRecord) -> bool) -> Sums {
        // What the vendor refused was no inference.
        let made = || self.calls.iter().filter(|call| of(call) && call.certainty != Certainty::Released);
        let usage = made().filter_map(|call| call.usage).reduce(|sum, usage| sum.plus(&usage));
        let cost = (self.priced && made().next().is_some()).then(|| made().map(|call| call.settled).sum());
        Sums { calls: u64::try_from(made().count()).unwrap_or(u64::MAX), usage, cost }
    }
}

/// The trajectory as a document.
fn document(played: &Played, called: &Called) -> Value {
    let mut steps = vec![opening(played)];
    for (index, step) in played.steps.iter().enumerate() {
        let Some(answer) = &step.answer else {
            // The first one is the opening; another one opens a round, with its goal.
            if index > 0 {
                let mut message: Vec<Value> = step.told.iter().map(|told| text(told)).collect();
                message.push(image(step));
                steps.push(without_nulls(json!({ "source": "user", "timestamp": iso(step.at), "message": message })));
            }
            continue;
        };
        if let Some(told) = &step.told {
            let at = json!({ "longhaul": { "told_before_step": step.number } });
            steps.push(json!({ "source": "user", "message": told, "extra": at }));
        }
        steps.push(agent_step(played, step, answer, called));
    }
    let count = steps.len();
    for (index, step) in steps.iter_mut().enumerate() {
        step["step_id"] = json!(index + 1);
    }
    let total = called.sums(|call| call.purpose.purse() == PurseKind::Episode);
    json!({
        "schema_version": VERSION,
        "session_id": played.episode.id,
        "trajectory_id": played.attempt,
        "agent": agent(played),
        "steps": steps,
        "final_metrics": without_nulls(json!({
            "total_prompt_tokens": total.usage.map(|usage| usage.context()),
            "total_completion_tokens": total.usage.map(|usage| usage.output),
            "total_cached_tokens": total.usage.map(|usage| usage.cache_read),
            "total_cost_usd": total.cost.map(Money::as_dollars),
            "total_steps": count,
            "extra": total.cost.map(|cost| json!({ "cost_nanos": cost })),
        })),
        "extra": { "longhaul": about(&played.episode) },
    })
}

fn about(episode: &EpisodeView) -> Value {
    use longhaul_core::outcome::Settlement;
    let mut about = json!({
        "run": episode.id.run,
        "env": episode.task.env,
        "task": episode.task.task,
        "sample": episode.sample,
        "state": episode.state(),
    });
    if let Some(Settlement::Verdict(verdict)) = &episode.settlement {
        about["passed"] = json!(verdict.passed);
        about["score"] = json!(verdict.score);
        about["ended_by"] = json!(verdict.ended_by);
    }
    about
}

fn agent(played: &Played) -> Value {
    let looped = played.looped();
    without_nulls(json!({
        "name": played.episode.agent,
        "version": played.version(),
        "model_name": looped.map(|agent| agent.model.as_str()),
        "extra": looped.map(|agent| json!({ "harness": agent.harness.name() })),
    }))
}

/// What the agent is asked, and the first screen that it sees.
fn opening(played: &Played) -> Value {
    let mut message = vec![text(&played.description())];
    let first = played.steps.first().filter(|step| step.answer.is_none());
    message.extend(first.map(image));
    without_nulls(json!({
        "source": "user",
        "timestamp": first.and_then(|step| iso(step.at)),
        "message": message,
    }))
}

fn text(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

fn image(step: &StepRecord) -> Value {
    let path = format!("{IMAGES}/{}.png", step.screen.png);
    json!({ "type": "image", "source": { "media_type": "image/png", "path": path } })
}

fn agent_step(played: &Played, step: &StepRecord, answer: &Answer, called: &Called) -> Value {
    let id = |index: usize| format!("step-{}-action-{}", step.number, index + 1);
    let call = |(index, action): (usize, &Value)| {
        // An agent's own nonsense is no object; it is kept as what it was.
        let arguments = if action.is_object() { action.clone() } else { json!({ "value": action }) };
        json!({ "tool_call_id": id(index), "function_name": "computer", "arguments": arguments })
    };
    let calls: Vec<Value> = answer.actions.iter().enumerate().map(call).collect();
    let mut results: Vec<Value> = step
        .outcomes
        .iter()
        .take(calls.len())
        .enumerate()
        .map(|(index, outcome)| {
            let content = match outcome {
                ActionOutcome::Done => "done".to_owned(),
                ActionOutcome::Error(error) => format!("error: {error}"),
            };
            json!({ "source_call_id": id(index), "content": content })
        })
        .collect();
    results.push(json!({ "content": [image(step)] }));
    // What was cut off before its answer came had no part in the step, though it was paid for.
    let answered = |call: &CallRecord| call.response.is_some() && call.error.is_none();
    let of = called.sums(|call| call.step == step.number && call.purpose == Purpose::Agent && answered(call));
    let counted = match played.plan.as_ref().map(|plan| &plan.agent) {
        Some(AgentPlan::Scripted { .. } | AgentPlan::Idle) => Some(0),
        _ => Some(of.calls).filter(|calls| *calls > 0),
    };
    let metrics = without_nulls(json!({
        "prompt_tokens": of.usage.map(|usage| usage.context()),
        "completion_tokens": of.usage.map(|usage| usage.output),
        "cached_tokens": of.usage.map(|usage| usage.cache_read),
        "cost_usd": of.cost.map(Money::as_dollars),
        "extra": of.cost.map(|cost| json!({ "cost_nanos": cost })),
    }));
    let has_metrics = counted != Some(0) && metrics.as_object().is_some_and(|metrics| !metrics.is_empty());
    without_nulls(json!({
        "source": "agent",
        "timestamp": iso(step.at),
        "message": answer.text.as_deref().unwrap_or_default(),
        "tool_calls": (!calls.is_empty()).then_some(calls),
        "observation": { "results": results },
        "metrics": has_metrics.then_some(metrics),
        "llm_call_count": counted,
        "extra": { "longhaul": {
            "step": step.number,
            "done": answer.done,
            "rested": step.rested,
            "unreadable": step.unreadable,
        } },
    }))
}

/// An object without the keys that say nothing.
pub(super) fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            Value::Object(fields.into_iter().filter(|(_, value)| !value.is_null()).collect::<Map<_, _>>())
        }
        other => other,
    }
}
