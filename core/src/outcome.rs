//! How attempts and episodes end: verdicts, faults, and what is neither.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::judge::VerdictParts;
use crate::time::Timestamp;

/// What ended the agent's part of an episode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndedBy {
    /// The agent said that it was done.
    Agent,
    /// The step budget.
    Steps,
    /// The time budget.
    Time,
    /// The next call did not fit into a budget of dollars.
    Budget,
    /// The token budget.
    Tokens,
    /// The policy on steps without effect.
    Stall,
    /// It is not recorded. Of imported results alone: an attempt of ours knows.
    Unknown,
}

impl fmt::Display for EndedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Agent => "agent",
            Self::Steps => "steps",
            Self::Time => "time",
            Self::Budget => "budget",
            Self::Tokens => "tokens",
            Self::Stall => "stall",
            Self::Unknown => "unknown",
        })
    }
}

/// What the agent achieved, found out by something trustworthy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Whether the task counts as solved.
    pub passed: bool,
    /// The score as the verifier or the judge gave it; 0 to 100 by convention.
    pub score: f64,
    /// What the verifier or the judge says about it; hostile until escaped.
    pub feedback: String,
    /// All that the verifier returned, if one ran.
    pub details: Value,
    /// What ended the agent's part.
    pub ended_by: EndedBy,
    /// What it was made of, where a checklist had a part in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<Box<VerdictParts>>,
}

/// The closed set of our failures. The retry policy goes by class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultClass {
    /// The worker was lost, or its lease ran out.
    WorkerLost,
    /// The worker gave the lease back because it had to stop.
    Preempted,
    /// A base image or an install or configure layer could not be built or read.
    LayerBuild,
    /// The sandbox did not start or died.
    SandboxStart,
    /// A hook of the task failed or ran over its time.
    SetupHook,
    /// The display did not come up or went away.
    Display,
    /// The sandbox used more memory than its env may.
    Memory,
    /// The node's disk was full or failed.
    NodeDisk,
    /// The agent crashed, or went silent.
    AgentCrashed,
    /// A model did not answer, or refused what it should not.
    ModelEndpoint,
    /// What was to be stored could not be.
    Store,
    /// The task's verifier broke, or could not be run. The trajectory is whole: the episode is
    /// unverified.
    Verifier,
    /// A judge did not answer, or not so that it could be read. Likewise.
    Judge,
    /// The attempt was to go on where an earlier one was cut off, and did not get there: a screen
    /// came out otherwise than it was recorded, or the record could not be followed.
    ReplayDiverged,
}

impl FaultClass {
    /// Every class, for tables and tests.
    pub const ALL: [Self; 14] = [
        Self::WorkerLost,
        Self::Preempted,
        Self::LayerBuild,
        Self::SandboxStart,
        Self::SetupHook,
        Self::Display,
        Self::Memory,
        Self::NodeDisk,
        Self::AgentCrashed,
        Self::ModelEndpoint,
        Self::Store,
        Self::Verifier,
        Self::Judge,
        Self::ReplayDiverged,
    ];

    /// The name used in stores, tables and filters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::WorkerLost => "worker_lost",
            Self::Preempted => "preempted",
            Self::LayerBuild => "layer_build",
            Self::SandboxStart => "sandbox_start",
            Self::SetupHook => "setup_hook",
            Self::Display => "display",
            Self::Memory => "memory",
            Self::NodeDisk => "node_disk",
            Self::AgentCrashed => "agent_crashed",
            Self::ModelEndpoint => "model_endpoint",
            Self::Store => "store",
            Self::Verifier => "verifier",
            Self::Judge => "judge",
            Self::ReplayDiverged => "replay_diverged",
        }
    }
}

impl fmt::Display for FaultClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Our failure to find out what an agent achieved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Which kind; decides whether and when it is tried again.
    pub class: FaultClass,
    /// What happened, with the path or id.
    pub message: String,
    /// The last lines of the log that shows it, if there is one; hostile until escaped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_tail: Option<String>,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttemptEnd {
    /// It ran and was scored.
    Verdict(Verdict),
    /// It ran, but nothing trustworthy scored it; only the verification is done again.
    Unverified {
        /// What ended the agent's part.
        ended_by: EndedBy,
        /// Why there is no verdict.
        reason: String,
        /// Which failure of ours it was, if it was one rather than a task without a verifier.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fault: Option<FaultClass>,
        /// What was found all the same, by a verifier or a judge that does not decide alone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parts: Option<Box<VerdictParts>>,
    },
    /// It was stopped on a person's order.
    Cancelled,
    /// We failed.
    Fault(Fault),
}

/// How an episode was settled: once and for good.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Settlement {
    /// It has a verdict.
    Verdict(Verdict),
    /// It ran to its end, but nothing trustworthy scored it.
    Unverified {
        /// What ended the agent's part.
        ended_by: EndedBy,
        /// Why there is no verdict.
        reason: String,
        /// Which failure of ours it was, if it was one rather than a task without a verifier.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fault: Option<FaultClass>,
        /// What was found all the same, by a verifier or a judge that does not decide alone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parts: Option<Box<VerdictParts>>,
    },
    /// It was cancelled before it had a verdict.
    Cancelled,
    /// It is out of attempts; no failure of the agent.
    Faulted(Fault),
    /// The money that it would have needed was spent before it began, or other samples of its
    /// task had passed often enough; no failure of the agent.
    NotStarted {
        /// Which budget was spent, or what was enough.
        reason: String,
    },
}

/// A settlement in one word, for tables and filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SettlementKind {
    /// A verdict: solved.
    Passed,
    /// A verdict: not solved.
    Failed,
    /// No verdict.
    Unverified,
    /// Stopped by a person.
    Cancelled,
    /// Out of attempts.
    Faulted,
    /// No money was left to begin it.
    NotStarted,
}

impl Settlement {
    /// The settlement in one word.
    #[must_use]
    pub const fn kind(&self) -> SettlementKind {
        match self {
            Self::Verdict(verdict) if verdict.passed => SettlementKind::Passed,
            Self::Verdict(_) => SettlementKind::Failed,
            Self::Unverified { .. } => SettlementKind::Unverified,
            Self::Cancelled => SettlementKind::Cancelled,
            Self::Faulted(_) => SettlementKind::Faulted,
            Self::NotStarted { .. } => SettlementKind::NotStarted,
        }
    }
}

/// A settlement that a person took back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Earlier {
    /// How the episode was settled.
    pub settlement: Settlement,
    /// When.
    pub settled_at: Timestamp,
    /// How many attempts it had had by then: they use up nothing of what it may have since.
    pub attempts: u32,
    /// When it was taken back.
    pub reopened_at: Timestamp,
    /// Who did.
    pub by: String,
}

/// A word that names no kind of settlement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no way in which an episode is settled")]
pub struct ParseKindError(String);

impl FromStr for SettlementKind {
    type Err = ParseKindError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [Self::Passed, Self::Failed, Self::Unverified, Self::Cancelled, Self::Faulted, Self::NotStarted];
        let named = |kind: &Self| kind.name() == text || kind.name().replace(' ', "-") == text;
        all.into_iter().find(named).ok_or_else(|| ParseKindError(text.chars().take(80).collect()))
    }
}

impl SettlementKind {
    /// The word used in tables and filters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::Unverified => "unverified",
            Self::Cancelled => "cancelled",
            Self::Faulted => "faulted",
            Self::NotStarted => "not started",
        }
    }
}

impl fmt::Display for SettlementKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_stored_before_there_were_judges_reads_as_it_was_and_looks_the_same() {
        let verdict = r#"{"verdict":{"passed":true,"score":80.0,"feedback":"f","details":{"a":1},"ended_by":"agent"}}"#;
        let unverified = r#"{"unverified":{"ended_by":"steps","reason":"a stub"}}"#;
        for stored in [verdict, unverified] {
            let end: AttemptEnd = serde_json::from_str(stored).unwrap();
            assert_eq!(serde_json::to_string(&end).unwrap(), stored);
            let settlement: Settlement = serde_json::from_str(stored).unwrap();
            assert_eq!(serde_json::to_string(&settlement).unwrap(), stored);
        }
    }

    #[test]
    fn classes_are_named_as_they_are_stored() {
        for class in FaultClass::ALL {
            assert_eq!(serde_json::to_string(&class).unwrap(), format!("\"{class}\""));
        }
    }
}
