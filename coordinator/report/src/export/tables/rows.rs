//! The tables: what each column says, and where it comes from.

use std::rc::Rc;

use longhaul_core::agent::ModelAgent;
use longhaul_core::call::{CallRecord, PurseKind};
use longhaul_core::ids::AttemptId;
use longhaul_core::measure::State;
use longhaul_core::notes::AttemptNotes;
use longhaul_core::outcome::AttemptEnd;
use longhaul_core::price::Usage;
use longhaul_core::step::{ActionOutcome, StepRecord};
use longhaul_store::{AttemptFinish, AttemptRecord};
use serde::Serialize;

use super::super::source::{first_own, looped, taken_by};
use super::table::{Cell, Field, Kind};
use crate::measured::Measured;
use crate::view::{EpisodeView, RunView};

/// A row of `runs`.
pub(super) struct RunRow {
    pub(super) run: RunView,
    pub(super) episodes: u64,
}

/// A row of `episodes`.
pub(super) struct EpisodeRow {
    pub(super) episode: Rc<EpisodeView>,
    pub(super) measured: Measured,
}

/// A row of `attempts`.
pub(super) struct AttemptRow {
    pub(super) episode: Rc<EpisodeView>,
    pub(super) attempt: AttemptRecord,
}

/// A row of `steps`.
pub(super) struct StepRow {
    pub(super) episode: Rc<EpisodeView>,
    pub(super) attempt: AttemptId,
    pub(super) step: StepRecord,
}

/// A row of `calls`.
pub(super) struct CallRow {
    pub(super) episode: Rc<EpisodeView>,
    pub(super) attempt: AttemptId,
    pub(super) call: CallRecord,
    pub(super) late: bool,
}

/// A column that is always known.
const fn known<R>(name: &'static str, kind: Kind, about: &'static str, get: fn(&R) -> Cell) -> Field<R> {
    Field { name, kind, optional: false, about, get }
}

/// A column that may be null.
const fn maybe<R>(name: &'static str, kind: Kind, about: &'static str, get: fn(&R) -> Cell) -> Field<R> {
    Field { name, kind, optional: true, about, get }
}

/// A value as JSON in a column of text.
fn json<V: Serialize>(value: &V) -> Cell {
    serde_json::to_string(value).map_or(Cell::Null, Cell::Text)
}

/// The word that a value is stored as.
fn word<V: Serialize>(value: &V) -> Cell {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => Cell::Text(word),
        _ => Cell::Null,
    }
}

pub(super) fn runs() -> Vec<Field<RunRow>> {
    vec![
        known("run", Kind::Text, "id of the run", |row| row.run.id.to_string().into()),
        known("name", Kind::Text, "its name, for people", |row| row.run.name.as_str().into()),
        known("benchmark", Kind::Text, "where its benchmark was", |row| row.run.benchmark.as_str().into()),
        known("submitted_at", Kind::Time, "when it was submitted", |row| row.run.submitted_at.into()),
        maybe("settled_at", Kind::Time, "when its last episode settled; null while it goes on", |row| {
            row.run.settled_at.into()
        }),
        known("episodes", Kind::Whole, "how many of its episodes are in this export", |row| row.episodes.into()),
    ]
}

pub(super) fn episodes() -> Vec<Field<EpisodeRow>> {
    let mut fields = vec![
        known("run", Kind::Text, "id of the run", |row: &EpisodeRow| row.episode.id.run.to_string().into()),
        known("episode", Kind::Text, "id of the episode: RUN/INDEX", |row| row.episode.id.to_string().into()),
        known("env", Kind::Text, "folder of the env", |row| row.episode.task.env.as_str().into()),
        known("task", Kind::Text, "folder of the task; unique together with env", |row| {
            row.episode.task.task.as_str().into()
        }),
        maybe("difficulty", Kind::Text, "as the benchmark says", |row| row.measured.row.difficulty.clone().into()),
        maybe("family", Kind::Text, "as the task says", |row| row.measured.row.family.clone().into()),
        known("splits", Kind::Text, "splits that list the task: JSON, a list of names", |row| {
            json(&row.measured.row.splits)
        }),
        known("agent", Kind::Text, "the agent's name", |row| row.episode.agent.as_str().into()),
        maybe("model", Kind::Text, "its model, if it is a loop of ours around one", |row| {
            agent(row).map(|agent| agent.model.as_str()).into()
        }),
        maybe("harness", Kind::Text, "that loop", |row| agent(row).map(|agent| agent.harness.name()).into()),
        known("sample", Kind::Whole, "which repetition, from 0", |row| row.episode.sample.into()),
        maybe("seed", Kind::Unsigned, "for whatever is random in the episode", |row| {
            row.measured.provenance.seed.into()
        }),
        known(
            "state",
            Kind::Text,
            "passed, failed, unverified, cancelled, faulted, not started; queued or active while it goes on",
            |row| row.episode.state().into(),
        ),
        maybe("passed", Kind::Truth, "whether it counts as solved; null without a verdict", |row| {
            row.measured.row.passed().into()
        }),
        maybe("score", Kind::Real, "as the verifier or judge gave it, 0 to 100 by convention", |row| {
            row.measured.row.state.score().into()
        }),
        maybe("ended_by", Kind::Text, "what ended the agent's part: agent, steps, time, budget, ...", |row| {
            row.measured.row.state.ended_by().map_or(Cell::Null, |by| word(&by))
        }),
        maybe("fault", Kind::Text, "class of the last fault, if it faulted", |row| match row.measured.row.state {
            State::Faulted { class } => class.name().into(),
            _ => Cell::Null,
        }),
        known("why", Kind::Text, "what the verifier says, or why there is no verdict", |row| {
            row.measured.why.as_str().into()
        }),
        maybe("settled_at", Kind::Time, "when it settled", |row| row.episode.settled_at.into()),
        known("attempts", Kind::Whole, "how many attempts it took", |row| row.measured.row.attempts.into()),
        maybe("attempt", Kind::Whole, "number of the attempt whose trajectory counts", |row| {
            row.episode.attempt.map(|attempt| attempt.number).into()
        }),
        known("steps", Kind::Whole, "answers of the agent in that trajectory", |row| row.measured.row.steps.into()),
        known("actions", Kind::Whole, "actions asked for in it", |row| row.measured.row.actions.into()),
        maybe("stalls", Kind::Whole, "steps with actions that left the screen as it was", |row| {
            row.measured.row.stalls.into()
        }),
        known("resumed", Kind::Truth, "whether it went on after an interruption", |row| {
            row.measured.row.resumed.into()
        }),
        known("ways", Kind::Text, "how it went on each time, replay or restore: JSON, a list", |row| {
            json(&row.episode.attempt.map(|attempt| row.episode.ways(attempt)).unwrap_or_default())
        }),
        known(
            "rounds",
            Kind::Text,
            "rounds and what was checked in each, a checklist as one round: JSON, a list",
            |row| json(&row.measured.row.rounds),
        ),
        maybe("max_steps", Kind::Whole, "its budget of steps", |row| {
            row.measured.row.caps.map(|caps| caps.max_steps).into()
        }),
        maybe("acting_millis", Kind::Whole, "from the first observation to the last answer, milliseconds", |row| {
            row.measured.row.time.into()
        }),
        maybe(
            "node_millis",
            Kind::Whole,
            "time of a node over all attempts, by their share of its processors, milliseconds",
            |row| row.measured.row.node_time.into(),
        ),
    ];
    fields.extend(tokens());
    fields.extend([
        maybe(
            "cost_nanos",
            Kind::Whole,
            "billionths of a dollar, all attempts, the judge aside",
            |row: &EpisodeRow| row.measured.row.dollars.into(),
        ),
        maybe("cost_dollars", Kind::Dollars, "the same in dollars", |row| row.measured.row.dollars.into()),
        known("unconfirmed_nanos", Kind::Whole, "of that, what no vendor has confirmed", |row| {
            row.measured.row.unconfirmed.into()
        }),
        maybe("judge_nanos", Kind::Whole, "billionths of a dollar that judging cost", |row| {
            row.measured.row.judge_dollars.into()
        }),
        maybe("judge_dollars", Kind::Dollars, "the same in dollars", |row| row.measured.row.judge_dollars.into()),
    ]);
    fields
}

fn agent(row: &EpisodeRow) -> Option<&ModelAgent> {
    looped(row.measured.provenance.agent.as_ref()?)
}

/// What the tokens of a row are counted from.
trait Used {
    fn usage(&self) -> Option<Usage>;
}

impl Used for EpisodeRow {
    /// Of all attempts, the judge's aside.
    fn usage(&self) -> Option<Usage> {
        self.measured.row.tokens
    }
}

impl Used for CallRow {
    fn usage(&self) -> Option<Usage> {
        self.call.usage
    }
}

/// The columns of tokens: each token is in exactly one of them.
fn tokens<R: Used>() -> [Field<R>; 5] {
    let of = |name, about, get| maybe(name, Kind::Whole, about, get);
    [
        of("input_tokens", "tokens of input that were read anew; null where no usage was reported", |row: &R| {
            row.usage().map(|usage| usage.input).into()
        }),
        of("cache_write_tokens", "tokens of input written into a cache of the shorter kind", |row| {
            row.usage().map(|usage| usage.cache_write).into()
        }),
        of("cache_write_long_tokens", "tokens of input written into a cache of the longer kind", |row| {
            row.usage().map(|usage| usage.cache_write_long).into()
        }),
        of("cache_read_tokens", "tokens of input read from a cache", |row| {
            row.usage().map(|usage| usage.cache_read).into()
        }),
        of("output_tokens", "tokens of output, thinking included", |row| row.usage().map(|usage| usage.output).into()),
    ]
}

fn finish(row: &AttemptRow) -> Option<&AttemptFinish> {
    row.attempt.finish.as_ref()
}

fn notes(row: &AttemptRow) -> Option<&AttemptNotes> {
    finish(row).map(|finish| &finish.notes).filter(|notes| notes.is_noted())
}

/// How an attempt ended, in one word, and in more.
fn end(row: &AttemptRow) -> Option<(&'static str, String)> {
    Some(match &finish(row)?.end {
        AttemptEnd::Verdict(verdict) => ("verdict", verdict.feedback.clone()),
        AttemptEnd::Unverified { reason, .. } => ("unverified", reason.clone()),
        AttemptEnd::Cancelled => ("cancelled", String::new()),
        AttemptEnd::Fault(fault) => ("fault", fault.message.clone()),
    })
}

pub(super) fn attempts() -> Vec<Field<AttemptRow>> {
    vec![
        known("run", Kind::Text, "id of the run", |row| row.episode.id.run.to_string().into()),
        known("episode", Kind::Text, "id of the episode", |row| row.episode.id.to_string().into()),
        known("attempt", Kind::Whole, "number of the attempt in its episode, from 1", |row| {
            row.attempt.id.number.into()
        }),
        known("counts", Kind::Truth, "whether its trajectory is the episode's", |row| {
            (row.episode.attempt == Some(row.attempt.id)).into()
        }),
        maybe("goes_on_from", Kind::Whole, "number of the attempt whose steps it keeps and goes on from", |row| {
            row.episode.lines.get(&row.attempt.id).map(|line| line.kept.parent).into()
        }),
        known("kept_steps", Kind::Whole, "how many steps it keeps of those before it", |row| {
            first_own(&row.episode, row.attempt.id).into()
        }),
        known("worker", Kind::Text, "id of the worker", |row| row.attempt.worker.to_string().into()),
        known("node", Kind::Text, "name of its node", |row| row.attempt.hostname.as_str().into()),
        maybe("version", Kind::Text, "version of the program that ran it", |row| {
            notes(row).map(|notes| notes.version.as_str()).filter(|version| !version.is_empty()).into()
        }),
        known("started_at", Kind::Time, "when its lease was granted", |row| row.attempt.started.into()),
        maybe("finished_at", Kind::Time, "when its end was accepted; null while it goes on", |row| {
            finish(row).map(|finish| finish.at).into()
        }),
        maybe("end", Kind::Text, "verdict, unverified, cancelled or fault", |row| end(row).map(|(end, _)| end).into()),
        maybe("fault", Kind::Text, "class of the fault", |row| match finish(row).map(|finish| &finish.end) {
            Some(AttemptEnd::Fault(fault)) => fault.class.name().into(),
            Some(AttemptEnd::Unverified { fault, .. }) => fault.map(|class| class.name()).into(),
            _ => Cell::Null,
        }),
        maybe("why", Kind::Text, "what the verifier says, or the fault", |row| end(row).map(|(_, why)| why).into()),
        maybe("late", Kind::Truth, "whether its end came after another attempt had its place", |row| {
            finish(row).map(|finish| finish.late).into()
        }),
        maybe("steps", Kind::Whole, "steps of its trajectory, the first observation and kept ones included", |row| {
            finish(row).map(|finish| finish.steps).into()
        }),
        maybe("layers_millis", Kind::Whole, "until its layers were ready, milliseconds", |row| {
            notes(row).map(|notes| notes.layers_time).into()
        }),
        maybe("start_millis", Kind::Whole, "until sandbox and display were up, milliseconds", |row| {
            notes(row).map(|notes| notes.start_time).into()
        }),
        maybe("setup_millis", Kind::Whole, "in the hooks before the first observation, milliseconds", |row| {
            notes(row).map(|notes| notes.setup_time).into()
        }),
        maybe("acting_millis", Kind::Whole, "from the first observation to the last answer, milliseconds", |row| {
            notes(row).map(|notes| notes.acting_time).into()
        }),
        maybe("verify_millis", Kind::Whole, "in the export hook and the verifier, milliseconds", |row| {
            notes(row).map(|notes| notes.verify_time).into()
        }),
        maybe("peak_memory_mib", Kind::Whole, "most memory of its sandbox, MiB", |row| {
            notes(row).map(|notes| notes.peak_memory_mib).into()
        }),
        maybe("warnings", Kind::Text, "what a person should know of it: JSON, a list of texts", |row| {
            finish(row).map_or(Cell::Null, |finish| json(&finish.notes.warnings))
        }),
    ]
}

fn errors(step: &StepRecord) -> usize {
    step.outcomes.iter().filter(|outcome| matches!(outcome, ActionOutcome::Error(_))).count()
}

pub(super) fn steps() -> Vec<Field<StepRow>> {
    vec![
        known("run", Kind::Text, "id of the run", |row| row.episode.id.run.to_string().into()),
        known("episode", Kind::Text, "id of the episode", |row| row.episode.id.to_string().into()),
        known("attempt", Kind::Whole, "number of the attempt that took it", |row| row.attempt.number.into()),
        known("counts", Kind::Truth, "whether it is of the episode's trajectory", |row| {
            (taken_by(&row.episode, row.step.number) == Some(row.attempt)).into()
        }),
        known("step", Kind::Whole, "number, 0 for the first observation", |row| row.step.number.into()),
        maybe("round", Kind::Whole, "the round that it belongs to, if the task has rounds", |row| {
            row.step.round.into()
        }),
        known("at", Kind::Time, "when the step was complete", |row| row.step.at.into()),
        maybe("text", Kind::Text, "what the agent said", |row| {
            row.step.answer.as_ref().and_then(|answer| answer.text.clone()).into()
        }),
        maybe(
            "actions",
            Kind::Text,
            "what it asked for: JSON, a list of actions; null where there is only an observation",
            |row| row.step.answer.as_ref().map_or(Cell::Null, |answer| json(&answer.actions)),
        ),
        known("action_count", Kind::Whole, "how many actions", |row| {
            row.step.answer.as_ref().map_or(0, |answer| answer.actions.len()).into()
        }),
        known("outcomes", Kind::Text, "what became of each: JSON, a list of `done` or an error", |row| {
            json(&row.step.outcomes)
        }),
        known("error_count", Kind::Whole, "actions that were not carried out", |row| errors(&row.step).into()),
        known("unreadable_count", Kind::Whole, "things asked for that could not be read", |row| {
            row.step.unreadable.len().into()
        }),
        maybe("done", Kind::Truth, "whether the agent said that it was done", |row| {
            row.step.answer.as_ref().map(|answer| answer.done).into()
        }),
        maybe("told", Kind::Text, "what somebody else said to it before this step", |row| row.step.told.clone().into()),
        known("screenshot", Kind::Text, "BLAKE3 digest of the PNG after the actions: screenshots/DIGEST.png", |row| {
            row.step.screen.png.into()
        }),
        known("width", Kind::Whole, "of the screen, pixels", |row| row.step.screen.width.into()),
        known("height", Kind::Whole, "of the screen, pixels", |row| row.step.screen.height.into()),
        known("rested", Kind::Truth, "whether the screen came to rest in time", |row| row.step.rested.into()),
        known("agent_millis", Kind::Whole, "the agent's thinking, milliseconds", |row| row.step.timing.agent.into()),
        known("inject_millis", Kind::Whole, "carrying out the actions, milliseconds", |row| {
            row.step.timing.inject.into()
        }),
        known("rest_millis", Kind::Whole, "until the screen was at rest, milliseconds", |row| {
            row.step.timing.rest.into()
        }),
        known("capture_millis", Kind::Whole, "capturing and encoding, milliseconds", |row| {
            row.step.timing.capture.into()
        }),
    ]
}

pub(super) fn calls() -> Vec<Field<CallRow>> {
    let mut fields = vec![
        known("run", Kind::Text, "id of the run", |row: &CallRow| row.episode.id.run.to_string().into()),
        known("episode", Kind::Text, "id of the episode", |row| row.episode.id.to_string().into()),
        known("attempt", Kind::Whole, "number of the attempt", |row| row.attempt.number.into()),
        known("call", Kind::Whole, "number of the call in its attempt, from 0", |row| row.call.number.into()),
        known("step", Kind::Whole, "the step that it is part of", |row| row.call.step.into()),
        known("at", Kind::Time, "when it was reserved", |row| row.call.at.into()),
        known("took_millis", Kind::Whole, "how long it took, milliseconds", |row| row.call.took.into()),
        known("purpose", Kind::Text, "agent, audit or judge", |row| word(&row.call.purpose)),
        known("of_judge", Kind::Truth, "whether the budget for judging paid it", |row| {
            (row.call.purpose.purse() == PurseKind::Judge).into()
        }),
        known("endpoint", Kind::Text, "as the run names it", |row| row.call.endpoint.as_str().into()),
        known("model", Kind::Text, "the model that was asked for", |row| row.call.model.as_str().into()),
        maybe("model_reported", Kind::Text, "the model that the vendor says answered", |row| {
            row.call.model_reported.clone().into()
        }),
        maybe("request_id", Kind::Text, "the vendor's id of the call", |row| row.call.request_id.clone().into()),
        maybe("retry_of", Kind::Whole, "the call that it tries again", |row| row.call.retry_of.into()),
        maybe("status", Kind::Whole, "of the HTTP answer; null if none came", |row| row.call.status.into()),
        maybe("error", Kind::Text, "what went wrong", |row| row.call.error.clone().into()),
        known("reserved_nanos", Kind::Whole, "the most that it could cost, billionths of a dollar", |row| {
            row.call.reserved.into()
        }),
        known("settled_nanos", Kind::Whole, "what it cost, billionths of a dollar", |row| row.call.settled.into()),
        known("settled_dollars", Kind::Dollars, "the same in dollars", |row| row.call.settled.into()),
        known("certainty", Kind::Text, "reported, unconfirmed (settled whole) or released (nothing)", |row| {
            word(&row.call.certainty)
        }),
    ];
    fields.extend(tokens());
    fields.extend([
        maybe("shortened_to", Kind::Whole, "limit of output that it was cut to, tokens", |row: &CallRow| {
            row.call.shortened_to.into()
        }),
        known("request", Kind::Text, "BLAKE3 digest of the stored request", |row| row.call.request.into()),
        maybe("response", Kind::Text, "BLAKE3 digest of the stored response", |row| row.call.response.into()),
        known("late", Kind::Truth, "whether it came after another attempt had its place", |row| row.late.into()),
    ]);
    fields
}
