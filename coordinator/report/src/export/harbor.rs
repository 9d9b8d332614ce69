//! Harbor's own folders: a job for each run, a trial for each episode, as Harbor's viewer and its
//! tools read them.
//!
//! ```text
//! RUN/config.json  result.json                the job
//! RUN/TRIAL/config.json  result.json          the trial
//!           agent/trajectory.json  images/    the trajectory, in ATIF
//!           verifier/reward.json              1 or 0, and the score
//!           verifier/test-stdout.txt          what the verifier says
//!           exception.txt                     our fault, if it was one
//! ```
//!
//! The reward is 1 for a task that counts as solved and 0 for one that does not. An episode
//! without a verdict has no reward, and an exception that says why: neither our faults nor a
//! missing verifier are the agent's failure.

use longhaul_core::digest::Digest;
use longhaul_core::measure::{Row, State};
use longhaul_core::money::Money;
use longhaul_core::outcome::Settlement;
use longhaul_core::time::Timestamp;
use serde_json::{Map, Value, json};

use super::atif::{without_nulls, write_trajectory};
use super::files::{Staging, component, iso, make_folder, write as write_file, write_json};
use super::source::{Played, Source};
use super::{ExportError, Exported};
use crate::measured::{Measured, Plans};
use crate::view::Trajectories;

/// The longest part of a trial's name that is the task's.
const MOST_TASK_NAME: usize = 32;

pub(super) fn write<T: Trajectories>(sources: &[Source<'_, T>], staging: &Staging) -> Result<Exported, ExportError> {
    let mut exported = Exported::default();
    for source in sources {
        write_job(source, staging, &mut exported)?;
    }
    Ok(exported)
}

fn write_job<T: Trajectories>(
    source: &Source<'_, T>,
    staging: &Staging,
    exported: &mut Exported,
) -> Result<(), ExportError> {
    let name = source.run().to_string();
    let folder = staging.folder().join(&name);
    make_folder(&folder)?;
    let job = uuid(&name);
    let dataset = dataset(&source.view().benchmark);
    let mut tally = Tally::default();
    let mut plans = Plans::new(source.from());
    source.each(|episode| {
        let Some(played) = source.played(episode)? else {
            exported.leave_out("never begun");
            return Ok(());
        };
        let measured = source.measured(&mut plans, &played.episode)?;
        let trial = Trial { name: trial_name(&played), job: &job, dataset: &dataset, played: &played, measured };
        let folder = folder.join(&trial.name);
        write_trajectory(source, &played, &trial.measured, &folder.join("agent"), exported)?;
        write_json(&folder.join("config.json"), &trial.config())?;
        exported.episodes += 1;
        if trial.played.episode.settlement.is_none() {
            // Harbor knows a trial that goes on by its configuration alone.
            tally.running += 1;
            return Ok(());
        }
        write_json(&folder.join("result.json"), &trial.result())?;
        if let Some(rewards) = trial.rewards() {
            let verifier = folder.join("verifier");
            make_folder(&verifier)?;
            write_json(&verifier.join("reward.json"), &rewards)?;
            write_file(&verifier.join("test-stdout.txt"), trial.measured.why.as_bytes())?;
        }
        if let Some((kind, message)) = trial.exception() {
            write_file(&folder.join("exception.txt"), format!("{kind}: {message}\n").as_bytes())?;
        }
        tally.add(&trial);
        Ok(())
    })?;
    let agents: Vec<Value> =
        tally.agents.iter().map(|(name, model)| without_nulls(json!({ "name": name, "model_name": model }))).collect();
    let config = json!({ "job_name": name, "jobs_dir": ".", "agents": agents });
    write_json(&folder.join("config.json"), &config)?;
    let view = source.view();
    let result = json!({
        "id": job,
        "started_at": iso(view.submitted_at),
        "updated_at": view.settled_at.and_then(iso),
        "finished_at": view.settled_at.and_then(iso),
        "n_total_trials": tally.trials + tally.running,
        "stats": tally.stats(),
    });
    write_json(&folder.join("result.json"), &result)
}

/// The benchmark's name: the last part of where it was.
fn dataset(benchmark: &str) -> String {
    let name = benchmark.rsplit(['/', '\\']).find(|part| !part.is_empty());
    name.unwrap_or("benchmark").to_owned()
}

/// Unique in its run by the episode's index.
fn trial_name(played: &Played) -> String {
    let task: String = component(&played.episode.task.task).chars().take(MOST_TASK_NAME).collect();
    format!("{task}__{:05}", played.episode.id.index)
}

/// An id in the form of a UUID that is the same at every export.
fn uuid(of: &str) -> String {
    let hex = Digest::of(of.as_bytes()).to_string();
    let part = |from: usize, count: usize| hex.chars().skip(from).take(count).collect::<String>();
    // Version 8 (of our own making), and the variant of RFC 9562.
    format!("{}-{}-8{}-8{}-{}", part(0, 8), part(8, 4), part(12, 3), part(15, 3), part(18, 12))
}

/// An episode as a trial.
struct Trial<'a> {
    name: String,
    job: &'a str,
    dataset: &'a str,
    played: &'a Played,
    measured: Measured,
}

impl Trial<'_> {
    fn row(&self) -> &Row {
        &self.measured.row
    }

    fn model(&self) -> Option<&str> {
        self.played.looped().map(|agent| agent.model.as_str())
    }

    /// The task, as a path within the benchmark.
    fn task(&self) -> String {
        self.played.episode.task.to_string()
    }

    fn config(&self) -> Value {
        without_nulls(json!({
            "task": { "path": self.task(), "source": self.dataset },
            "trial_name": self.name,
            "trials_dir": ".",
            "agent": without_nulls(json!({ "name": self.played.episode.agent, "model_name": self.model() })),
            // Harbor would take it for one of its own kinds.
            "environment": { "import_path": "longhaul" },
            "job_id": self.job,
        }))
    }

    fn rewards(&self) -> Option<Value> {
        let State::Verdict { passed, score, .. } = self.row().state else { return None };
        Some(without_nulls(json!({ "reward": if passed { 1.0 } else { 0.0 }, "score": score })))
    }

    /// Why there is no verdict: a kind, as Harbor names exceptions, and a message.
    fn exception(&self) -> Option<(String, String)> {
        let why = self.measured.why.clone();
        Some(match &self.played.episode.settlement {
            Some(Settlement::Verdict(_)) | None => return None,
            Some(Settlement::Unverified { .. }) => ("Unverified".to_owned(), why),
            Some(Settlement::Cancelled) => ("CancelledError".to_owned(), "cancelled by a person".to_owned()),
            Some(Settlement::NotStarted { .. }) => ("NotStarted".to_owned(), why),
            Some(Settlement::Faulted(fault)) => (format!("Fault.{}", fault.class), why),
        })
    }

    fn result(&self) -> Value {
        let played = self.played;
        let finish = played.finish();
        let started = played.episode.record(played.attempt).map(|record| record.started);
        let finished = finish.map(|finish| finish.at);
        let acted = played.steps.first().map(|step| step.at).zip(played.steps.last().map(|step| step.at));
        let verified =
            finish.map(|finish| (Timestamp(finish.at.0.saturating_sub(finish.notes.verify_time.0)), finish.at));
        let exception = self.exception().map(|(kind, message)| {
            json!({
                "exception_type": kind,
                "exception_message": message,
                "exception_traceback": "",
                "occurred_at": finished.or(started).and_then(iso),
                // What cannot be known is neither graded nor a reward, whatever Harbor thinks of
                // a kind that it does not know.
                "policy_override": { "should_retry": false, "should_grade": false, "has_valid_reward": false },
            })
        });
        let (usage, cost) = (self.row().tokens, self.row().dollars);
        without_nulls(json!({
            "id": uuid(&played.attempt.to_string()),
            "task_name": self.task(),
            "trial_name": self.name,
            "trial_uri": format!("longhaul:{}", played.episode.id),
            "task_id": { "path": self.task() },
            "source": self.dataset,
            "task_checksum": played.plan.as_ref().map_or_else(String::new, |plan| plan.task.to_string()),
            "config": self.config(),
            "agent_info": without_nulls(json!({
                "name": played.episode.agent,
                "version": played.version(),
                "model_info": self.model().map(|model| json!({ "name": model })),
            })),
            "agent_result": without_nulls(json!({
                "n_input_tokens": usage.map(|usage| usage.context()),
                "n_cache_tokens": usage.map(|usage| usage.cache_read),
                "n_output_tokens": usage.map(|usage| usage.output),
                "cost_usd": cost.map(Money::as_dollars),
                "metadata": { "longhaul": {
                    "episode": played.episode.id,
                    "sample": played.episode.sample,
                    "state": played.episode.state(),
                    "ended_by": self.row().state.ended_by(),
                    "steps": self.row().steps,
                    "attempts": self.row().attempts,
                    "cost_nanos": cost,
                } },
            })),
            "verifier_result": self.rewards().map(|rewards| json!({ "rewards": rewards })),
            "exception_info": exception,
            "started_at": started.and_then(iso),
            "finished_at": finished.and_then(iso),
            "environment_setup": span(started, acted.map(|(first, _)| first)),
            "agent_execution": acted.and_then(|(first, last)| span(Some(first), Some(last))),
            "verifier": verified.and_then(|(start, end)| span(Some(start), Some(end))),
        }))
    }
}

fn span(start: Option<Timestamp>, end: Option<Timestamp>) -> Option<Value> {
    Some(json!({ "started_at": iso(start?)?, "finished_at": iso(end?)? }))
}

/// What a job counts over its trials, as Harbor does.
#[derive(Default)]
struct Tally {
    trials: u64,
    running: u64,
    errored: u64,
    cancelled: u64,
    agents: Vec<(String, Option<String>)>,
    evals: Map<String, Value>,
    input: Option<u64>,
    cached: Option<u64>,
    output: Option<u64>,
    cost: Option<Money>,
}

impl Tally {
    fn add(&mut self, trial: &Trial<'_>) {
        self.trials += 1;
        let agent = (trial.played.episode.agent.clone(), trial.model().map(str::to_owned));
        let model = agent.1.as_ref().map_or_else(String::new, |model| format!("{model}__"));
        let key = format!("{}__{model}{}", agent.0, trial.dataset);
        if !self.agents.contains(&agent) {
            self.agents.push(agent);
        }
        let name = json!(trial.name);
        let eval = self
            .evals
            .entry(key)
            .or_insert_with(|| json!({ "n_trials": 0, "n_errors": 0, "reward_stats": {}, "exception_stats": {} }));
        let count = |value: &mut Value| *value = json!(value.as_u64().unwrap_or(0) + 1);
        if let Some(Value::Object(rewards)) = trial.rewards() {
            count(&mut eval["n_trials"]);
            for (kind, value) in rewards {
                listed(&mut eval["reward_stats"][kind], &value.to_string(), &name);
            }
        }
        if let Some((kind, _)) = trial.exception() {
            count(&mut eval["n_errors"]);
            listed(&mut eval["exception_stats"], &kind, &name);
            self.errored += 1;
            self.cancelled += u64::from(kind == "CancelledError");
        }
        if let Some(usage) = trial.row().tokens {
            let add = |sum: &mut Option<u64>, more: u64| *sum = Some(sum.unwrap_or(0).saturating_add(more));
            add(&mut self.input, usage.context());
            add(&mut self.cached, usage.cache_read);
            add(&mut self.output, usage.output);
        }
        if let Some(cost) = trial.row().dollars {
            self.cost = Some(self.cost.unwrap_or_default().saturating_add(cost));
        }
    }

    fn stats(&self) -> Value {
        without_nulls(json!({
            "n_completed_trials": self.trials,
            "n_errored_trials": self.errored,
            "n_running_trials": self.running,
            "n_pending_trials": 0,
            "n_cancelled_trials": self.cancelled,
            "n_retries": 0,
            "evals": self.evals,
            "n_input_tokens": self.input,
            "n_cache_tokens": self.cached,
            "n_output_tokens": self.output,
            "cost_usd": self.cost.map(Money::as_dollars),
        }))
    }
}

/// Adds a name to a list under a key; both are made if they are not there.
fn listed(lists: &mut Value, key: &str, name: &Value) {
    if !lists[key].is_array() {
        lists[key] = json!([]);
    }
    if let Some(list) = lists[key].as_array_mut() {
        list.push(name.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_the_form_of_uuids_and_stay_the_same() {
        let id = uuid("a run");
        assert_eq!(id, uuid("a run"));
        assert_ne!(id, uuid("another"));
        assert_eq!(id.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        assert_eq!((&id[14..15], &id[19..20]), ("8", "8"));
    }

    #[test]
    fn a_benchmark_is_named_by_the_last_part_of_its_place() {
        assert_eq!(dataset("/data/cua_world/"), "cua_world");
        assert_eq!(dataset("examples"), "examples");
        assert_eq!(dataset("//"), "benchmark");
    }
}
