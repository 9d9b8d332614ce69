//! The agents that a worker runs itself.

use longhaul_core::agent::{AgentPlan, Answer, parse_script};
use longhaul_core::outcome::{Fault, FaultClass};

use crate::blobs::BlobClient;

/// An agent in the middle of an episode.
#[derive(Debug)]
pub(crate) enum Agent {
    /// Answers with the lines of a script.
    Scripted(std::vec::IntoIter<Answer>),
    /// Done at once.
    Idle,
}

impl Agent {
    /// Starts the agent of a plan.
    pub(crate) async fn start(plan: &AgentPlan, blobs: &BlobClient) -> Result<Self, Fault> {
        match plan {
            AgentPlan::Idle => Ok(Self::Idle),
            AgentPlan::Scripted { script } => {
                let bytes = blobs.get(*script).await.map_err(|error| super::blob_fault(&error))?;
                let text = String::from_utf8_lossy(&bytes);
                let answers = parse_script(&text).map_err(|error| Fault {
                    class: FaultClass::AgentCrashed,
                    message: format!("the script {}: {error}", script.short()),
                    log_tail: None,
                })?;
                Ok(Self::Scripted(answers.into_iter()))
            }
        }
    }

    /// The next answer; none if the agent has come to its end without saying so.
    pub(crate) fn next(&mut self) -> Option<Answer> {
        match self {
            Self::Scripted(answers) => answers.next(),
            Self::Idle => Some(Answer { done: true, ..Answer::default() }),
        }
    }
}
