//! What is wrong with rows, or keeps them from being compared: each by its name.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::TaskName;
use crate::outcome::SettlementKind;
use crate::text::named;

/// How many episodes or tasks a message names before it counts the rest.
const NAMED: usize = 5;

/// Something about the rows that a reader of a measure has to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "code")]
pub enum Finding {
    /// Verdicts without a score: not in averages.
    ScoreMissing {
        /// The episodes.
        episodes: Vec<String>,
    },
    /// Scores that are no finite number: not in averages.
    ScoreNotANumber {
        /// The episodes.
        episodes: Vec<String>,
    },
    /// Scores below 0 or above 100: not in averages.
    ScoreOutOfRange {
        /// The episodes.
        episodes: Vec<String>,
    },
    /// Scores between 0 and 1 where 0 to 100 is meant: their average would mean nothing, and is
    /// not given.
    ScoresLikeFractions {
        /// The agent.
        agent: String,
        /// The episodes that show it.
        episodes: Vec<String>,
    },
    /// Passed, and yet with no point.
    PassedWithoutPoints {
        /// The episodes.
        episodes: Vec<String>,
    },
    /// The same sample of the same task by the same agent of one run, more than once. Counted
    /// once if all say the same; not counted at all if they differ.
    Duplicate {
        /// The agent.
        agent: String,
        /// The task.
        task: TaskName,
        /// The sample.
        sample: u32,
        /// The episodes.
        episodes: Vec<String>,
        /// Whether they differ in anything but their name.
        differ: bool,
    },
    /// Episodes without a verdict: not in rates, and bounded where it was we who did not find out.
    WithoutVerdict {
        /// The agent.
        agent: String,
        /// How they were settled.
        kind: SettlementKind,
        /// The episodes.
        episodes: Vec<String>,
    },
    /// Episodes of a run that goes on: what is said now may change.
    Unsettled {
        /// The agent.
        agent: String,
        /// The episodes.
        episodes: Vec<String>,
    },
    /// The verdict and the rounds do not say the same: the measures of rounds go by the rounds,
    /// the pass rate by the verdict.
    RoundsDisagree {
        /// The episodes.
        episodes: Vec<String>,
    },
    /// Checks of a round that broke are said to hold: they count as failed.
    BrokenRoundWithPasses {
        /// The episodes.
        episodes: Vec<String>,
    },
    /// Rounds that cannot be counted: a check twice in a round, or no checks at all. Not in the
    /// measures of rounds.
    RoundsUnusable {
        /// The episodes.
        episodes: Vec<String>,
    },
    /// What the course of an episode used falls from one step to a later one: its course is not
    /// used.
    ProgressFalls {
        /// The episodes.
        episodes: Vec<String>,
    },
    /// Dollars are not known, for want of a price: nothing per dollar is said of them.
    NoDollars {
        /// The agent.
        agent: String,
        /// The episodes.
        episodes: Vec<String>,
    },
    /// Rows of several agents where one was meant.
    SeveralAgents {
        /// The side.
        side: String,
        /// The agents.
        agents: Vec<String>,
    },
    /// Tasks that one side alone has: not compared.
    OneSided {
        /// The side that has them.
        side: String,
        /// The tasks.
        tasks: Vec<TaskName>,
    },
    /// Samples of common tasks without a counterpart: not compared.
    Unpaired {
        /// The side that has them.
        side: String,
        /// The episodes.
        episodes: Vec<String>,
    },
    /// The sides have no task in common: nothing can be compared.
    NoCommonTask,
    /// There is no pair in which both sides have a verdict.
    NoCommonVerdict,
    /// There are too few envs to resample them: intervals resample tasks, and hold for these
    /// envs alone.
    FewEnvs {
        /// How many.
        envs: usize,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ScoreMissing { episodes } => {
                write!(f, "verdicts without a score, left out of averages: {}", named(episodes, NAMED))
            }
            Self::ScoreNotANumber { episodes } => {
                write!(f, "scores that are no number, left out of averages: {}", named(episodes, NAMED))
            }
            Self::ScoreOutOfRange { episodes } => {
                write!(f, "scores outside 0 to 100, left out of averages: {}", named(episodes, NAMED))
            }
            Self::ScoresLikeFractions { agent, episodes } => write!(
                f,
                "scores of {agent} look like 0 to 1 where 0 to 100 is meant, so that no average is given: {}",
                named(episodes, NAMED)
            ),
            Self::PassedWithoutPoints { episodes } => {
                write!(f, "passed with a score of 0: {}", named(episodes, NAMED))
            }
            Self::Duplicate { agent, task, sample, episodes, differ } => {
                let counted = if *differ { "they differ, and none is counted" } else { "counted once" };
                write!(
                    f,
                    "sample {sample} of {task} by {agent} is there more than once, {counted}: {}",
                    named(episodes, NAMED)
                )
            }
            Self::WithoutVerdict { agent, kind, episodes } => {
                write!(f, "{kind} episodes of {agent}, left out of rates: {}", named(episodes, NAMED))
            }
            Self::Unsettled { agent, episodes } => {
                write!(f, "episodes of {agent} that are not settled yet: {}", named(episodes, NAMED))
            }
            Self::RoundsDisagree { episodes } => {
                write!(f, "the verdict says another thing than the rounds: {}", named(episodes, NAMED))
            }
            Self::BrokenRoundWithPasses { episodes } => {
                write!(f, "checks of a broken round are said to hold, counted as failed: {}", named(episodes, NAMED))
            }
            Self::RoundsUnusable { episodes } => write!(
                f,
                "rounds with a check twice, or without any, left out of the measures of rounds: {}",
                named(episodes, NAMED)
            ),
            Self::ProgressFalls { episodes } => {
                write!(f, "steps or dollars fall on the way, the course is not used: {}", named(episodes, NAMED))
            }
            Self::NoDollars { agent, episodes } => {
                write!(
                    f,
                    "dollars of {agent} are not known (no price, or a network beside the gateway): {}",
                    named(episodes, NAMED)
                )
            }
            Self::SeveralAgents { side, agents } => {
                write!(f, "{side} holds rows of several agents: {}", named(agents, NAMED))
            }
            Self::OneSided { side, tasks } => write!(f, "only {side} has these tasks: {}", named(tasks, NAMED)),
            Self::Unpaired { side, episodes } => {
                write!(f, "samples of {side} without a counterpart: {}", named(episodes, NAMED))
            }
            Self::NoCommonTask => f.write_str("there is no common task"),
            Self::NoCommonVerdict => f.write_str("there is no task on which both have a verdict"),
            Self::FewEnvs { envs } => {
                let (envs, these) =
                    if *envs == 1 { ("1 env".to_owned(), "this env") } else { (format!("{envs} envs"), "these envs") };
                write!(f, "only {envs}: intervals resample tasks, and hold for {these} alone")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_a_few_and_counts_the_rest() {
        let episodes = |count: usize| (1..=count).map(|number| format!("r/{number}")).collect();
        let five = Finding::ScoreMissing { episodes: episodes(5) }.to_string();
        assert_eq!(five, "verdicts without a score, left out of averages: r/1, r/2, r/3, r/4, r/5");
        assert!(Finding::ScoreMissing { episodes: episodes(7) }.to_string().ends_with("r/5 and 2 more"));
    }
}
