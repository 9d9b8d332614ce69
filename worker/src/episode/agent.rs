//! The agents that a worker runs: scripts, loops around models, and programs of others.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use longhaul_core::agent::{AgentPlan, Answer, ExternalAgent, ImageSize, ModelAgent, parse_script};
use longhaul_core::endpoint::GatewayPlan;
use longhaul_core::outcome::{EndedBy, Fault, FaultClass};
use longhaul_core::plan::{EpisodePlan, TaskPlan};
use longhaul_core::step::{ActionOutcome, Screenshot};
use serde_json::json;

use super::fault;
use crate::agents::caller::{Caller, end_of};
use crate::agents::conversation::{Conversation, Seen, Turn};
use crate::agents::external::{External, Launch, Left, Task, launch, told_endpoints};
use crate::agents::picture::{self, Pictures, Wish};
use crate::agents::{AgentEnd, crashed};
use crate::sandbox::Sandbox;
use crate::screen::Frame;
use crate::session::actor::Shared;

/// An attempt's way to models.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) caller: Arc<dyn Caller>,
    /// What a program shows the gateway as its key.
    pub(crate) token: String,
    pub(crate) plan: Arc<GatewayPlan>,
}

/// What an agent is started with.
pub(crate) struct Starting<'a> {
    pub(crate) episode: &'a EpisodePlan,
    pub(crate) task: &'a TaskPlan,
    /// What it is asked to do at the start.
    pub(crate) asked: &'a str,
    pub(crate) screen: Screenshot,
    pub(crate) access: Option<&'a Access>,
    pub(crate) shared: &'a Shared,
    /// A name for its sandbox, and a folder of its own, if it is somebody else's program.
    pub(crate) id: String,
    pub(crate) scratch: PathBuf,
    /// The processors of the attempt.
    pub(crate) cpus: &'a [usize],
    /// Keeps that sandbox for whoever ends the attempt.
    pub(crate) keep: &'a Mutex<Option<Arc<dyn Sandbox>>>,
}

/// What an agent is shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight<'a> {
    /// The number of the observation: of the step that it ends.
    pub(crate) step: u32,
    pub(crate) frame: &'a Frame,
    /// What became of the last answer's actions.
    pub(crate) outcomes: &'a [ActionOutcome],
    /// What somebody else says to it.
    pub(crate) told: Option<&'a str>,
    pub(crate) left: Left,
    /// The round that it is in, if the task has rounds.
    pub(crate) round: Option<u32>,
    /// What it is asked for from now on, where a further round begins.
    pub(crate) goal: Option<&'a str>,
}

/// An agent in the middle of an episode.
#[derive(Debug)]
pub(crate) enum Agent {
    /// Answers with the lines of a script.
    Scripted(std::vec::IntoIter<Answer>),
    /// Done at once.
    Idle,
    /// A loop around a model.
    Model(Box<Looped>),
    /// Somebody else's program.
    External(Box<External>),
}

/// A conversation and its way to the model.
#[derive(Debug)]
pub(crate) struct Looped {
    conversation: Conversation,
    caller: Arc<dyn Caller>,
}

impl Agent {
    /// Starts the agent of a plan.
    pub(crate) async fn start(starting: Starting<'_>) -> Result<Self, Fault> {
        match &starting.episode.agent {
            AgentPlan::Idle => Ok(Self::Idle),
            AgentPlan::Scripted { script } => {
                let bytes = starting.shared.blobs.get(*script).await.map_err(|error| super::blob_fault(&error))?;
                let text = String::from_utf8_lossy(&bytes);
                let answers =
                    parse_script(&text).map_err(|error| crashed(format!("the script {}: {error}", script.short())))?;
                Ok(Self::Scripted(answers.into_iter()))
            }
            AgentPlan::Model(agent) => Looped::start(agent, &starting).map(|looped| Self::Model(Box::new(looped))),
            AgentPlan::External(agent) => {
                start_external(agent, &starting).await.map(|external| Self::External(Box::new(external)))
            }
        }
    }

    /// Its next turn; none if it has come to its end without saying so.
    pub(crate) async fn turn(&mut self, sight: Sight<'_>) -> Result<Option<Turn>, AgentEnd> {
        let scripted = |answer| Turn { answer, ..Turn::default() };
        match self {
            Self::Scripted(answers) => Ok(answers.next().map(scripted)),
            Self::Idle => Ok(Some(scripted(Answer { done: true, ..Answer::default() }))),
            Self::Model(looped) => looped.turn(sight).await.map(Some),
            Self::External(external) => external.turn(sight).await.map(Some),
        }
    }

    /// Whether it is a script without a further line.
    pub(crate) fn is_at_its_end(&self) -> bool {
        matches!(self, Self::Scripted(answers) if answers.len() == 0)
    }

    /// What its loop tells the vendor beside the screen, in words.
    pub(crate) fn acknowledged(&self) -> Option<String> {
        match self {
            Self::Model(looped) => looped.conversation.acknowledged(),
            Self::Scripted(_) | Self::Idle | Self::External(_) => None,
        }
    }

    /// Ends it; what it leaves to be read, if anything.
    pub(crate) async fn finish(self, ended_by: Option<EndedBy>) -> Option<String> {
        match self {
            Self::External(external) => Some(external.finish(ended_by).await),
            Self::Scripted(_) | Self::Idle | Self::Model(_) => None,
        }
    }
}

impl Looped {
    fn start(agent: &ModelAgent, starting: &Starting<'_>) -> Result<Self, Fault> {
        let Some(access) = starting.access else {
            return Err(crashed("the episode's plan names no models, and its agent needs one".to_owned()));
        };
        let Screenshot { width, height, .. } = starting.screen;
        let conversation = Conversation::new(agent, starting.asked, ImageSize { width, height });
        Ok(Self { conversation: conversation.map_err(crashed)?, caller: Arc::clone(&access.caller) })
    }

    async fn turn(&mut self, sight: Sight<'_>) -> Result<Turn, AgentEnd> {
        let pictures = pictures(sight.frame, self.conversation.wish()).await?;
        if let Some(goal) = sight.goal {
            self.conversation.ask_for(goal);
        }
        self.conversation.observe(Seen { pictures, outcomes: sight.outcomes, told: sight.told });
        if let Some(call) = self.conversation.summary_call() {
            let answer = self.caller.call(call).await.map_err(|error| end_of(&error))?;
            self.conversation.summarized(&answer.body);
        }
        let answer = self.caller.call(self.conversation.turn_call()).await.map_err(|error| end_of(&error))?;
        Ok(self.conversation.take(&answer.body))
    }
}

/// Pictures of a frame, made where nobody waits on the thread.
pub(crate) async fn pictures(frame: &Frame, wish: Wish) -> Result<Pictures, Fault> {
    let png = Arc::clone(&frame.png);
    let made = tokio::task::spawn_blocking(move || picture::prepare(&png, &wish)).await;
    match made {
        Ok(Ok(pictures)) => Ok(pictures),
        Ok(Err(error)) => Err(fault(FaultClass::Display, crate::chain(&error))),
        Err(error) => Err(fault(FaultClass::Display, format!("a screenshot was not scaled: {error}"))),
    }
}

async fn start_external(agent: &ExternalAgent, starting: &Starting<'_>) -> Result<External, Fault> {
    let Starting { episode, task, asked, screen, access, shared, .. } = starting;
    let mut endpoints = Vec::new();
    for name in &agent.endpoints {
        let endpoint = access.and_then(|access| access.plan.endpoint(name));
        let endpoint = endpoint.ok_or_else(|| {
            crashed(format!("the episode's plan has no endpoint `{}`, which its agent may call", name.escape_debug()))
        })?;
        endpoints.push(endpoint.clone());
    }
    if let Some(image) = &agent.image
        && !shared.config.bases.contains_key(image)
    {
        let message = format!("no image is called `{}` in this worker's settings", image.escape_debug());
        return Err(crashed(message));
    }
    launch(Launch {
        agent,
        id: starting.id.clone(),
        scratch: starting.scratch.clone(),
        driver: shared.driver.as_ref(),
        starts: &shared.starts,
        network: &shared.config.hook_env,
        blobs: &shared.blobs,
        account: access.map(|access| Arc::clone(&access.caller)),
        token: access.map(|access| access.token.clone()).unwrap_or_default(),
        task: Task {
            task: task.name.to_string(),
            description: (*asked).to_owned(),
            screen: json!({"width": screen.width, "height": screen.height}),
            seed: episode.seed,
            limits: Task::limits(&episode.budget, agent.answer_limit.to_std()),
            endpoints: told_endpoints(&endpoints),
        },
        endpoints,
        cpus: starting.cpus,
        keep: starting.keep,
    })
    .await
}
