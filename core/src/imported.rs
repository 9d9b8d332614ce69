//! Results of another harness that were imported: what is known of them, and nothing else.
//!
//! An imported run and its episodes are stored like others, and where those have a plan they have
//! one of these: there is no plan to be known. Neither can be read as the other, so that whoever
//! looks for a plan finds that there is none.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::time::Timestamp;

/// The form that the results were in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// Gym-Anything's folders of episodes: `traj.jsonl`, `summary.json`, frames.
    GymEpisodes,
    /// Gym-Anything's folders of agents: `EXPERIMENT/MODEL/TASK/run_N`.
    GymRuns,
}

impl Form {
    /// It in words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::GymEpisodes => "Gym-Anything's episodes",
            Self::GymRuns => "Gym-Anything's runs",
        }
    }
}

/// What a run was imported from: in place of its plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportedRun {
    /// The form of the results.
    pub imported: Form,
    /// The folder that they were in; hostile until escaped.
    pub folder: String,
    /// When they were imported.
    pub at: Timestamp,
    /// The version of the program that did it.
    pub version: String,
    /// A digest of all that was read: the same results are not imported twice.
    pub content: Digest,
    /// What was there and is not among the episodes.
    pub left_out: Vec<LeftOut>,
}

/// Something among results that could not be used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LeftOut {
    /// Where it is, below the folder of the results; hostile until escaped.
    pub place: String,
    /// Why.
    pub reason: String,
}

/// What is known of an imported episode: in place of its plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImportedEpisode {
    /// The form of the results.
    pub imported: Form,
    /// Its folder, below that of the results; hostile until escaped.
    pub folder: String,
    /// The `id` of env.json, where it is recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_id: Option<String>,
    /// The `id` of task.json, where it is recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// The seed that the env was reset with, where it is recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    /// How many steps it took, as that harness counts them.
    pub steps: u32,
    /// When the env was reset, where it is recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
    /// When it ended, where it is recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
    /// What scored it, as that harness names it (`program`, `vlm_checklist`), where it is recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scored_by: Option<String>,
    /// What a person should know of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{EpisodePlan, RunPlan};

    #[test]
    fn an_import_is_no_plan() {
        let episode = ImportedEpisode {
            imported: Form::GymRuns,
            folder: "exp/model/task/run_0".to_owned(),
            env_id: None,
            task_id: None,
            seed: None,
            steps: 3,
            started: None,
            ended: None,
            scored_by: None,
            notes: Vec::new(),
        };
        let text = serde_json::to_string(&episode).unwrap();
        assert_eq!(text, r#"{"imported":"gym_runs","folder":"exp/model/task/run_0","steps":3}"#);
        assert_eq!(serde_json::from_str::<ImportedEpisode>(&text).unwrap(), episode);
        assert!(serde_json::from_str::<EpisodePlan>(&text).is_err() && serde_json::from_str::<RunPlan>(&text).is_err());
    }
}
