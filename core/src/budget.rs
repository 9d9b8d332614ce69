//! Budgets of an episode: caps on steps and time.

use serde::{Deserialize, Serialize};

use crate::outcome::EndedBy;
use crate::time::Millis;

/// What one episode may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpisodeBudget {
    /// The most steps (model turns) an episode may take.
    pub max_steps: u32,
    /// The longest that an agent may act: from its first observation to its last answer.
    pub max_time: Millis,
}

impl EpisodeBudget {
    /// What, if anything, forbids one more step after `steps` steps and `elapsed` time.
    #[must_use]
    pub const fn exhausted(&self, steps: u32, elapsed: Millis) -> Option<EndedBy> {
        if steps >= self.max_steps {
            Some(EndedBy::Steps)
        } else if elapsed.0 >= self.max_time.0 {
            Some(EndedBy::Time)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_step_allowed_is_taken_and_no_other() {
        let budget = EpisodeBudget { max_steps: 2, max_time: Millis(100) };
        assert_eq!(budget.exhausted(1, Millis(99)), None);
        assert_eq!(budget.exhausted(2, Millis(0)), Some(EndedBy::Steps));
        assert_eq!(budget.exhausted(0, Millis(100)), Some(EndedBy::Time));
    }
}
