//! Budgets: caps on steps, dollars, tokens and time.

use serde::{Deserialize, Serialize};

use crate::money::Money;
use crate::outcome::EndedBy;
use crate::time::Millis;

/// What one episode may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpisodeBudget {
    /// The most steps (model turns) an episode may take.
    pub max_steps: u32,
    /// The longest that an agent may act: from its first observation to its last answer.
    pub max_time: Millis,
    /// The most dollars that all attempts of the episode may spend together; no cap if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_cost: Option<Money>,
    /// The most tokens of all model calls, input and output; no cap if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
}

impl EpisodeBudget {
    /// A budget of steps and time alone.
    #[must_use]
    pub const fn of(max_steps: u32, max_time: Millis) -> Self {
        Self { max_steps, max_time, max_cost: None, max_tokens: None }
    }

    /// What, if anything, forbids one more step after `steps` steps, `elapsed` time and
    /// `tokens` tokens. Dollars are not asked here: each call reserves its own.
    #[must_use]
    pub const fn exhausted(&self, steps: u32, elapsed: Millis, tokens: u64) -> Option<EndedBy> {
        if steps >= self.max_steps {
            return Some(EndedBy::Steps);
        }
        if elapsed.0 >= self.max_time.0 {
            return Some(EndedBy::Time);
        }
        match self.max_tokens {
            Some(max) if tokens >= max => Some(EndedBy::Tokens),
            _ => None,
        }
    }
}

/// Caps on dollars over more than one episode; no cap where absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunBudgets {
    /// Of all episodes of the run, the judge aside.
    pub run: Option<Money>,
    /// Of all episodes of one agent, by its index; none beyond the end.
    pub agents: Vec<Option<Money>>,
    /// Of the judge, which no agent's money pays.
    pub judge: Option<Money>,
}

impl RunBudgets {
    /// Whether nothing is capped.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The cap of one agent.
    #[must_use]
    pub fn agent(&self, agent: u32) -> Option<Money> {
        self.agents.get(agent as usize).copied().flatten()
    }
}

/// What is done about steps that repeat without effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "do")]
pub enum StallPolicy {
    /// They are counted and shown.
    #[default]
    Report,
    /// After so many in a row the agent is told, each time anew.
    Nudge {
        /// How many in a row.
        after: u32,
    },
    /// After so many in a row the episode ends, or the round that it is in.
    Stop {
        /// How many in a row.
        after: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_step_allowed_is_taken_and_no_other() {
        let budget = EpisodeBudget { max_tokens: Some(10), ..EpisodeBudget::of(2, Millis(100)) };
        assert_eq!(budget.exhausted(1, Millis(99), 9), None);
        assert_eq!(budget.exhausted(2, Millis(0), 0), Some(EndedBy::Steps));
        assert_eq!(budget.exhausted(0, Millis(100), 0), Some(EndedBy::Time));
        assert_eq!(budget.exhausted(0, Millis(0), 10), Some(EndedBy::Tokens));
    }
}
