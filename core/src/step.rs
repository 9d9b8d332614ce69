//! Steps: the records that a trajectory is made of.

use serde::{Deserialize, Serialize};

use crate::agent::Answer;
use crate::digest::Digest;
use crate::screen::Area;
use crate::time::{Millis, Timestamp};

/// A screenshot: where its PNG is, and how large the screen is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Screenshot {
    /// The blob with the PNG.
    pub png: Digest,
    /// Pixels across.
    pub width: u16,
    /// Pixels down.
    pub height: u16,
}

/// What became of one action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActionOutcome {
    /// It was injected whole.
    Done,
    /// It was refused (unknown key, bad value, unknown key name) or the display failed.
    Error(String),
}

/// One step: an answer of the agent, what became of its actions, and the screen after
/// them. Step 0 has no answer: it is the first observation; nor has the first one of each further
/// round of a task that has rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// The number, from 0 for the first observation.
    pub number: u32,
    /// When the step was complete.
    pub at: Timestamp,
    /// The agent's answer; absent where there is only an observation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
    /// One outcome for each action of the answer.
    #[serde(default)]
    pub outcomes: Vec<ActionOutcome>,
    /// The screen at rest after the actions.
    pub screen: Screenshot,
    /// Whether the screen came to rest before the limit of the rest rule.
    pub rested: bool,
    /// Where the step's time went.
    pub timing: StepTiming,
    /// The numbers of the model calls that the answer came from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<u32>,
    /// What somebody else than the agent said to it before this step (an audit, a nudge).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told: Option<String>,
    /// How many actions the agent asked for that its own loop could not read, and what it was
    /// told about them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<String>,
    /// The round that it belongs to, if its task has rounds. A step without an answer opens one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round: Option<u32>,
    /// Where the screen had changed by itself while the answer was waited for: since the
    /// observation before, and before the first action. A caret that blinks, a clock, a page that
    /// was still loading.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stirred: Vec<Area>,
}

/// Where the time of a step went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepTiming {
    /// The agent's thinking.
    pub agent: Millis,
    /// Injecting the actions, waits that were asked for included.
    pub inject: Millis,
    /// Until the screen was at rest.
    pub rest: Millis,
    /// Capturing and encoding.
    pub capture: Millis,
    /// What of `agent` was none of the agent's time: its calls waited for money, for a rate limit,
    /// for an endpoint that was down.
    #[serde(default, skip_serializing_if = "Millis::is_zero")]
    pub paused: Millis,
}

impl StepRecord {
    /// The digest by which a repeated step is known to be the same.
    ///
    /// # Errors
    ///
    /// The record holds something that JSON cannot express; none of its fields can.
    pub fn digest(&self) -> Result<Digest, serde_json::Error> {
        serde_json::to_vec(self).map(|bytes| Digest::of(&bytes))
    }
}
