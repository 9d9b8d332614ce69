//! The rounds of a task as they are measured: what was checked, and what held.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

/// One round of a task: its checks, and whether it broke before they could be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoundRow {
    /// Its place in the task, from 1.
    pub number: u32,
    /// What is done in it.
    pub kind: RoundKind,
    /// What broke it: then its checks count as failed, whatever they say.
    #[serde(default)]
    pub error: Option<RoundError>,
    /// The last step of the agent in it; none if it has none, or it is not recorded.
    #[serde(default)]
    pub last_step: Option<u32>,
    /// The checks that the task assigns to it.
    pub assertions: Vec<AssertionRow>,
}

/// What is done in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoundKind {
    /// The app and its entries are there.
    Open,
    /// Something is handed in.
    Submit,
    /// It is changed.
    Revise,
    /// The app is opened again: what was saved is still there.
    Return,
    /// What else the task asks for.
    FollowUp,
    /// None of these; the one round of a checklist.
    Other,
}

/// What broke a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoundError {
    /// The agent gave no answer that could be used: a refusal, nothing at all.
    Generation,
    /// The round was begun and did not come to its checks, or was never reached.
    Round,
}

/// One check of a round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AssertionRow {
    /// Its name, once in a round.
    pub id: String,
    /// What it looks at.
    pub aspect: Aspect,
    /// Whether it holds.
    pub passed: bool,
}

/// What a check looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aspect {
    /// What the screen says.
    Visible,
    /// The stored record, read by its id.
    Business,
    /// What remains when the app is opened again.
    Retention,
    /// What was done on the way: how many changes, which operations.
    Operations,
    /// None of these; an item of a checklist.
    Other,
}

impl RoundKind {
    /// The name in tables and stored records.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Submit => "submit",
            Self::Revise => "revise",
            Self::Return => "return",
            Self::FollowUp => "follow_up",
            Self::Other => "other",
        }
    }
}

impl Aspect {
    /// The name in tables and stored records.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Visible => "visible",
            Self::Business => "business",
            Self::Retention => "retention",
            Self::Operations => "operations",
            Self::Other => "other",
        }
    }
}

impl fmt::Display for Aspect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for RoundKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl RoundRow {
    /// Whether an assertion of this round counts as holding: none does in a round that broke.
    #[must_use]
    pub fn holds(&self, assertion: &AssertionRow) -> bool {
        self.error.is_none() && assertion.passed
    }

    /// Whether the round holds: it did not break, and all of its checks hold.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.error.is_none() && self.assertions.iter().all(|assertion| assertion.passed)
    }

    /// Whether all of its checks of this aspect hold; none if it has no such checks.
    #[must_use]
    pub fn aspect(&self, aspect: Aspect) -> Option<bool> {
        let mut checks = self.assertions.iter().filter(|assertion| assertion.aspect == aspect).peekable();
        checks.peek()?;
        Some(checks.all(|assertion| self.holds(assertion)))
    }

    /// Whether each of its checks has a name of its own.
    #[must_use]
    pub fn has_no_check_twice(&self) -> bool {
        let names: BTreeSet<&str> = self.assertions.iter().map(|assertion| assertion.id.as_str()).collect();
        names.len() == self.assertions.len()
    }
}
