//! Going on with an episode whose attempt was cut off: what of it is kept, and how the next
//! attempt came to stand where it stood.
//!
//! The steps of an episode are those of a chain of attempts: each attempt that resumes keeps the
//! first so many steps of the chain before it, and its own first step has the next number.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::call::{CallRecord, Purpose};
use crate::digest::Digest;
use crate::step::StepRecord;
use crate::time::{Millis, Timestamp};

/// What is done about an episode whose attempt was cut off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResumePolicy {
    /// It goes on where it was; if that cannot be done, it starts again.
    Auto,
    /// It goes on where it was; if that cannot be done, it is settled as faulted.
    Replay,
    /// It starts again. What held for every run before it could be said.
    #[default]
    Restart,
}

impl ResumePolicy {
    /// Every policy, for texts.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Replay, Self::Restart];

    /// The word in run files and settings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Replay => "replay",
            Self::Restart => "restart",
        }
    }

    /// Whether it is what is not written down.
    #[must_use]
    pub const fn is_default(&self) -> bool {
        matches!(self, Self::Restart)
    }
}

impl fmt::Display for ResumePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A word that names no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is none of auto, replay, restart")]
pub struct ParsePolicyError(String);

impl FromStr for ResumePolicy {
    type Err = ParsePolicyError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = Self::ALL.into_iter().find(|policy| policy.name() == text);
        known.ok_or_else(|| ParsePolicyError(text.chars().take(80).collect()))
    }
}

/// How an attempt came to stand where an earlier one stood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// The recorded actions were injected again into a fresh sandbox, and each screen compared.
    Replay,
    /// A fresh sandbox was laid over a saved top, and the steps after that were replayed.
    Restore,
}

impl Way {
    /// The word in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Replay => "replay",
            Self::Restore => "restore",
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What an attempt goes on from: fixed, with its lease, before any worker hears of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The number of the attempt that took the last step that is kept.
    pub parent: u32,
    /// How many steps of the chain are kept, the first observation included: the first step of
    /// the attempt's own has this number.
    pub steps: u32,
    /// The digest of the last one's record.
    pub last: Digest,
}

/// The log that holds what was read when a round was over, as it was printed: a replay has to read
/// the same again.
#[must_use]
pub fn reading_log(round: u32) -> String {
    format!("round-{round}-reading.json")
}

/// An attempt stands where the chain before it stood, and lives from here on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resumed {
    /// How it got there.
    pub way: Way,
    /// What it goes on from: as it was told.
    pub kept: Kept,
    /// When it was there.
    pub at: Timestamp,
    /// How long getting there took, the sandbox's start not included.
    pub took: Millis,
    /// How many model calls were answered from the record.
    #[serde(default)]
    pub answered: u32,
    /// How many of those had been asked in other words (a date in a prompt).
    #[serde(default)]
    pub differing: u32,
    /// What a person should know of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
}

/// What an episode has used of its budget before an attempt goes on with it. Dollars are not
/// here: the coordinator's ledger sums them over all attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// Steps with an answer of the agent.
    pub steps: u32,
    /// Tokens of the calls that pay out of the episode's budget.
    pub tokens: u64,
    /// The time in which the agent acted.
    pub time: Millis,
}

impl Used {
    /// Counts a step that is kept. One without an answer is an observation, and none of the agent's.
    pub fn add_step(&mut self, step: &StepRecord) {
        if step.answer.is_none() {
            return;
        }
        self.steps = self.steps.saturating_add(1);
        let timing = step.timing;
        let agent = Millis(timing.agent.0.saturating_sub(timing.paused.0));
        let took = [agent, timing.inject, timing.rest, timing.capture];
        self.time = took.into_iter().fold(self.time, |sum, part| Millis(sum.0.saturating_add(part.0)));
    }

    /// Counts a call of the chain.
    pub fn add_call(&mut self, call: &CallRecord) {
        if let (Purpose::Agent | Purpose::Audit, Some(usage)) = (call.purpose, &call.usage) {
            self.tokens = self.tokens.saturating_add(usage.tokens());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_observation_that_opens_a_round_is_no_step_of_the_agent() {
        let step = |number: u32, answer: serde_json::Value| -> StepRecord {
            let png = Digest::of(b"png").to_string();
            let timing = json!({"agent": 5, "inject": 1, "rest": 1, "capture": 1, "paused": 2});
            let mut record = json!({
                "number": number, "at": 1, "screen": {"png": png, "width": 4, "height": 3}, "rested": true, "timing": timing,
            });
            if !answer.is_null() {
                record["answer"] = answer;
            }
            serde_json::from_value(record).unwrap()
        };
        let mut used = Used::default();
        used.add_step(&step(0, json!(null)));
        used.add_step(&step(1, json!({"actions": [], "done": true})));
        used.add_step(&step(2, json!(null)));
        assert_eq!(used, Used { steps: 1, tokens: 0, time: Millis(6) });
    }
}
