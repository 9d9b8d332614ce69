//! Scopes: over what a cap on dollars holds, by name, and as people see it.

use std::fmt;
use std::str::FromStr;

use longhaul_core::ids::EpisodeId;
use longhaul_core::money::Money;
use serde::{Deserialize, Serialize};

/// A scope of a run, as people name it: `run`, `agent NAME`, `judge`, `episode RUN/INDEX`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScopeName {
    /// All episodes of the run, the judge aside.
    Run,
    /// All episodes of the agents of that name.
    Agent(String),
    /// Judging, which no agent's money pays.
    Judge,
    /// All attempts of one episode.
    Episode(EpisodeId),
}

impl fmt::Display for ScopeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run => f.pad("run"),
            Self::Agent(name) => f.pad(&format!("agent {name}")),
            Self::Judge => f.pad("judge"),
            Self::Episode(episode) => f.pad(&format!("episode {episode}")),
        }
    }
}

/// Text that names no scope.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no scope of a budget: write `run`, `agent NAME`, `judge` or `episode RUN/INDEX`")]
pub struct ScopeNameError {
    /// The text.
    pub text: String,
}

impl FromStr for ScopeName {
    type Err = ScopeNameError;

    fn from_str(text: &str) -> Result<Self, ScopeNameError> {
        let bad = || ScopeNameError { text: text.to_owned() };
        match text.trim() {
            "run" => Ok(Self::Run),
            "judge" => Ok(Self::Judge),
            other => match other.split_once(' ') {
                Some(("agent", name)) if !name.trim().is_empty() => Ok(Self::Agent(name.trim().to_owned())),
                Some(("episode", id)) => Ok(Self::Episode(id.trim().parse().map_err(|_| bad())?)),
                _ => Err(bad()),
            },
        }
    }
}

/// A scope as people want to see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeView {
    /// The scope.
    pub scope: ScopeName,
    /// Its cap, if it has one.
    pub cap: Option<Money>,
    /// What calls have cost. Attempts that were lost count with all that they were granted,
    /// until somebody says what became of it.
    pub settled: Money,
    /// What attempts were granted and have neither spent nor given back.
    pub escrow: Money,
    /// Of what is settled, what no vendor has confirmed (answers that never came, lost workers).
    pub unconfirmed: Money,
    /// The most that was ever in escrow at one time.
    pub largest_exposure: Money,
    /// By how much vendors billed more than was reserved.
    pub overshoot: Money,
    /// How many requests wait for money that may come back.
    pub waiting: u32,
    /// The highest percentage of the cap that people were warned of: 0 if none yet.
    pub warned: u8,
    /// Why nothing more is granted, if so.
    pub stopped: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for text in ["run", "judge", "agent claude with spaces", "agent run"] {
            let scope: ScopeName = text.parse().unwrap();
            assert_eq!(scope.to_string(), text);
        }
        for text in ["", "agent", "agent ", "episode", "episode 7", "runs", "Run"] {
            assert!(text.parse::<ScopeName>().is_err(), "{text}");
        }
    }
}
