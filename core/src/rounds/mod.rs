//! Ordered rounds: a task as a sequence of goals over one sandbox and one state, each given only
//! when its turn comes, with assertions over what is there when it is over.
//!
//! Here is all of it that needs no sandbox: the rounds as a run freezes them ([`RoundsPlan`]),
//! whether an assertion holds of a reading ([`check`](fn@check)), what readings may be
//! ([`read`]), and what all of it comes to ([`results`], [`score`]). How a task writes its rounds
//! down is read in [`spec`](crate::spec), and told in `docs/rounds.md`.

mod check;
mod plan;
mod reading;
mod result;

pub use check::{Held, check};
pub use plan::{Assertion, Check, RoundBudget, RoundPlan, RoundsPlan, Test};
pub use reading::{MOST_READING, ReadingError, read};
pub use result::{AssertionResult, Played, RoundResult, RoundsScore, feedback, judged_again, results, rubric, score};

/// The folder of a task that holds the hooks of its rounds: the agent never sees it.
pub const ROUNDS_FOLDER: &str = "rounds";

/// What comes before the next goal where the round before was cut off by a budget.
pub const CUT_OFF: &str = "That is over for now; this comes next:";

/// What the agent is told at the start: what the task says of itself, and the first goal.
#[must_use]
pub fn opening(description: &str, plan: &RoundsPlan) -> String {
    match plan.rounds.first() {
        Some(first) => format!("{description}\n\n{}", first.goal),
        None => description.to_owned(),
    }
}

/// The whole of what is asked, with every goal in its order: for whoever judges all of it. No agent
/// is told so.
#[must_use]
pub fn whole(description: &str, plan: &RoundsPlan) -> String {
    let goals = plan.rounds.iter().map(|round| round.goal.as_str());
    std::iter::once(description).chain(goals).collect::<Vec<_>>().join("\n\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_agent_is_told_the_first_goal_and_a_judge_of_all_is_told_each() {
        let round = |goal: &str| json!({"kind": "open", "goal": goal, "assertions": []});
        let plan = serde_json::from_value(json!({"rounds": [round("One."), round("Two.")]})).unwrap();
        assert_eq!(opening("Desk.", &plan), "Desk.\n\nOne.");
        assert_eq!(whole("Desk.", &plan), "Desk.\n\nOne.\n\nTwo.");
    }
}
