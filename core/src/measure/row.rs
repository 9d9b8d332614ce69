//! One episode as it is measured: a flat record that owes nothing to where it was stored, so
//! that runs of two stores, and results of another harness, are measured alike.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::round::{RoundKind, RoundRow};
use crate::budget::EpisodeBudget;
use crate::ids::TaskName;
use crate::money::Money;
use crate::outcome::{EndedBy, FaultClass, SettlementKind};
use crate::price::Usage;
use crate::time::Millis;

/// One episode. What is not known is absent, never zero: an episode of a model without a price
/// did not cost nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The run, as tables name it.
    pub run: String,
    /// The episode, as `show` takes it; what findings about this row are called by.
    pub episode: String,
    /// The task, and with it the env.
    pub task: TaskName,
    /// The splits that name the task.
    #[serde(default)]
    pub splits: BTreeSet<String>,
    /// How hard the benchmark says that the task is.
    #[serde(default)]
    pub difficulty: Option<String>,
    /// The family of tasks that it belongs to: single app, several tools, a shared world.
    #[serde(default)]
    pub family: Option<String>,
    /// The agent, as tables name it.
    pub agent: String,
    /// Which repetition this is, from 0.
    pub sample: u32,
    /// How it was settled.
    pub state: State,
    /// What it might use: what says how far a cap that stopped it reached. No dollars in it where
    /// it was the run's or the agent's money that ended: its own cap then says nothing.
    #[serde(default)]
    pub caps: Option<EpisodeBudget>,
    /// Steps of the agent, over the trajectory that counts.
    pub steps: u32,
    /// Actions of those steps.
    #[serde(default)]
    pub actions: u32,
    /// Tokens by kind, of all attempts, the judge's aside.
    #[serde(default)]
    pub tokens: Option<Usage>,
    /// Dollars of all attempts, the judge's aside.
    #[serde(default)]
    pub dollars: Option<Money>,
    /// Of those dollars, what no vendor has confirmed.
    #[serde(default)]
    pub unconfirmed: Money,
    /// Dollars that judging cost.
    #[serde(default)]
    pub judge_dollars: Option<Money>,
    /// From the first observation to the agent's last answer.
    #[serde(default)]
    pub time: Option<Millis>,
    /// The time of a node that all attempts took, weighed by their share of its processors.
    #[serde(default)]
    pub node_time: Option<Millis>,
    /// Steps after which the screen was as before, though actions were asked for.
    #[serde(default)]
    pub stalls: Option<u32>,
    /// Whether it went on after an interruption.
    #[serde(default)]
    pub resumed: bool,
    /// How many attempts it took.
    #[serde(default)]
    pub attempts: u32,
    /// The rounds that the task assigns, in their recorded order, those that broke or were never
    /// reached included; a checklist is one round of its own. None if the task has no such parts.
    #[serde(default)]
    pub rounds: Vec<RoundRow>,
    /// What it had used after each step, by rising step; what is known of its course.
    #[serde(default)]
    pub progress: Vec<Progress>,
}

/// How an episode was settled, with what is known in that case.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum State {
    /// Something trustworthy scored it.
    Verdict {
        /// Whether the task counts as solved.
        passed: bool,
        /// The score, 0 to 100; absent if there is none, or none that is a number.
        score: Option<f64>,
        /// What ended the agent's part.
        ended_by: EndedBy,
    },
    /// It ran to its end, but nothing trustworthy scored it.
    Unverified {
        /// What ended the agent's part.
        ended_by: EndedBy,
    },
    /// A person stopped it.
    Cancelled,
    /// It is out of attempts.
    Faulted {
        /// The class of its last fault.
        class: FaultClass,
    },
    /// No money was left to begin it, or other samples were enough.
    NotStarted,
    /// Its run goes on: nothing is known yet.
    Unsettled,
}

impl State {
    /// Whether the task counts as solved; none without a verdict.
    #[must_use]
    pub const fn passed(&self) -> Option<bool> {
        match self {
            Self::Verdict { passed, .. } => Some(*passed),
            _ => None,
        }
    }

    /// The score of a verdict, if it has one.
    #[must_use]
    pub const fn score(&self) -> Option<f64> {
        match self {
            Self::Verdict { score, .. } => *score,
            _ => None,
        }
    }

    /// What ended the agent's part, if it came to an end.
    #[must_use]
    pub const fn ended_by(&self) -> Option<EndedBy> {
        match self {
            Self::Verdict { ended_by, .. } | Self::Unverified { ended_by } => Some(*ended_by),
            _ => None,
        }
    }

    /// How an episode was settled, in one word; none as long as its run goes on.
    #[must_use]
    pub const fn kind(&self) -> Option<SettlementKind> {
        Some(match self {
            Self::Verdict { passed: true, .. } => SettlementKind::Passed,
            Self::Verdict { passed: false, .. } => SettlementKind::Failed,
            Self::Unverified { .. } => SettlementKind::Unverified,
            Self::Cancelled => SettlementKind::Cancelled,
            Self::Faulted { .. } => SettlementKind::Faulted,
            Self::NotStarted => SettlementKind::NotStarted,
            Self::Unsettled => return None,
        })
    }
}

/// Where an episode was after a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// The step, from 1.
    pub step: u32,
    /// Dollars of its trajectory until then, the last point's being all of it; absent without
    /// prices.
    #[serde(default)]
    pub dollars: Option<Money>,
    /// Whether it would have counted as solved had it ended there, where that was found out
    /// there and then. A round that failed is known from [`RoundRow::last_step`] and need not be
    /// said here.
    #[serde(default)]
    pub passed: Option<bool>,
}

impl Row {
    /// Whether the task counts as solved; none without a verdict.
    #[must_use]
    pub const fn passed(&self) -> Option<bool> {
        self.state.passed()
    }

    /// The score, if it is one: a finite number from 0 to 100.
    #[must_use]
    pub fn score(&self) -> Option<f64> {
        self.state.score().filter(|score| (0.0..=100.0).contains(score))
    }

    /// Whether the task is a sequence of rounds, and not a checklist.
    #[must_use]
    pub fn has_ordered_rounds(&self) -> bool {
        self.rounds.iter().any(|round| round.kind != RoundKind::Other)
    }

    /// Whether every round holds.
    #[must_use]
    pub fn rounds_hold(&self) -> bool {
        self.rounds.iter().all(RoundRow::passed)
    }

    /// Whether its rounds can be counted: there is something to hold, and no check is twice in
    /// a round.
    #[must_use]
    pub fn rounds_usable(&self) -> bool {
        let says_something = |round: &RoundRow| round.error.is_some() || !round.assertions.is_empty();
        self.rounds.iter().any(says_something) && self.rounds.iter().all(RoundRow::has_no_check_twice)
    }

    /// Whether what it had used never falls on the way.
    #[must_use]
    pub fn progress_rises(&self) -> bool {
        self.progress.windows(2).all(|pair| pair[0].step < pair[1].step && pair[0].dollars <= pair[1].dollars)
    }
}
