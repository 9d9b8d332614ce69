//! Rounds as a run freezes them with its task.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};

use crate::measure::{Aspect, RoundKind};
use crate::money::Money;

/// The rounds of a task, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundsPlan {
    /// The rounds; their numbers are their places, from 1.
    pub rounds: Vec<RoundPlan>,
}

/// One round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundPlan {
    /// What is done in it.
    pub kind: RoundKind,
    /// What the agent is told when it begins, and not earlier.
    pub goal: String,
    /// The hook before its first observation: a file of the task's folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// The hook that reads what is there when it is over: likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read: Option<String>,
    /// What it may use, within what the episode may.
    #[serde(default)]
    pub budget: RoundBudget,
    /// What is to hold when it is over.
    pub assertions: Vec<Assertion>,
}

/// What a round may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundBudget {
    /// The most steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u32>,
    /// After so many seconds of acting no turn begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<u32>,
    /// The most dollars of the model calls that are begun in it, the judge's aside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dollars: Option<Money>,
}

/// Something that is to hold when a round is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Assertion {
    /// Its name, once in its round.
    pub id: String,
    /// What it looks at.
    pub aspect: Aspect,
    /// What it says, in words.
    pub says: String,
    /// How it is found out.
    pub check: Check,
}

/// How it is found out whether an assertion holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Check {
    /// By the round's reading.
    Reading {
        /// Where in it: a JSON pointer.
        at: String,
        /// What is to be there.
        test: Test,
    },
    /// By the run's judge, who sees the round's last screenshot.
    Judge {
        /// What it is asked.
        asks: String,
    },
}

/// What is to be found at a place of a reading.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Test {
    /// This value.
    Equals(Value),
    /// Another value than this.
    Differs(Value),
    /// A text with this text in it, or a list with this value.
    Contains(Value),
    /// A number of at least this, or a list of so many items.
    AtLeast(Number),
    /// A number of at most this, or a list of so many items.
    AtMost(Number),
    /// Nothing.
    Absent,
    /// What an earlier round's reading has at a place.
    SameAs {
        /// The round, from 1.
        round: u32,
        /// The place in its reading: a JSON pointer.
        at: String,
    },
}

impl RoundsPlan {
    /// The files that its hooks are in, as the task names them.
    #[must_use]
    pub fn hook_files(&self) -> BTreeSet<&str> {
        self.rounds.iter().flat_map(|round| [&round.before, &round.read]).flatten().map(String::as_str).collect()
    }

    /// Whether nothing can be decided without a judge.
    #[must_use]
    pub fn asks_judge(&self) -> bool {
        self.assertions().any(|assertion| matches!(assertion.check, Check::Judge { .. }))
    }

    /// Whether the dollars of some round are capped.
    #[must_use]
    pub fn caps_dollars(&self) -> bool {
        self.rounds.iter().any(|round| round.budget.dollars.is_some())
    }

    /// The assertions of all rounds.
    pub fn assertions(&self) -> impl Iterator<Item = &Assertion> {
        self.rounds.iter().flat_map(|round| &round.assertions)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_plan_is_stored_in_words_that_stay() {
        let assertion = |check| Assertion { id: "a".to_owned(), aspect: Aspect::Business, says: "s".to_owned(), check };
        let reading = |test| assertion(Check::Reading { at: "/x".to_owned(), test });
        let plan = RoundsPlan {
            rounds: vec![RoundPlan {
                kind: RoundKind::FollowUp,
                goal: "g".to_owned(),
                before: None,
                read: Some("rounds/read.sh".to_owned()),
                budget: RoundBudget { steps: Some(3), seconds: None, dollars: Some(Money::from_dollars(2)) },
                assertions: vec![
                    reading(Test::Equals(json!({"n": 1}))),
                    reading(Test::AtMost(1.into())),
                    reading(Test::Absent),
                    reading(Test::SameAs { round: 1, at: String::new() }),
                    assertion(Check::Judge { asks: "q".to_owned() }),
                ],
            }],
        };
        let stored = json!({"rounds": [{"kind": "follow_up", "goal": "g", "read": "rounds/read.sh",
        "budget": {"steps": 3, "dollars": 2_000_000_000_u64}, "assertions": [
            {"id": "a", "aspect": "business", "says": "s", "check": {"reading": {"at": "/x", "test": {"equals": {"n": 1}}}}},
            {"id": "a", "aspect": "business", "says": "s", "check": {"reading": {"at": "/x", "test": {"at_most": 1}}}},
            {"id": "a", "aspect": "business", "says": "s", "check": {"reading": {"at": "/x", "test": "absent"}}},
            {"id": "a", "aspect": "business", "says": "s",
             "check": {"reading": {"at": "/x", "test": {"same_as": {"round": 1, "at": ""}}}}},
            {"id": "a", "aspect": "business", "says": "s", "check": {"judge": {"asks": "q"}}},
        ]}]});
        assert_eq!(serde_json::to_value(&plan).unwrap(), stored);
        assert_eq!(serde_json::from_value::<RoundsPlan>(stored).unwrap(), plan);
        assert!(plan.asks_judge() && plan.caps_dollars());
        assert_eq!(plan.hook_files().into_iter().collect::<Vec<_>>(), ["rounds/read.sh"]);
    }
}
