//! What is exported, read an episode at a time.

use longhaul_core::agent::{AgentPlan, Answer, ModelAgent};
use longhaul_core::call::CallRecord;
use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, EpisodeId, RunId};
use longhaul_core::plan::{EpisodePlan, TaskPlan};
use longhaul_core::rounds::opening;
use longhaul_core::step::StepRecord;
use longhaul_store::AttemptFinish;

use super::{Attempts, ExportError};
use crate::measured::{Measured, Plans, measure};
use crate::view::{EpisodeView, RunView, Trajectories};

/// How many tasks' plans are held at once.
const PLANS: usize = 256;

/// A run to be exported, or the episodes of some agents of it.
#[derive(Debug)]
pub struct Chosen<'a, T> {
    /// Where it is read.
    pub from: &'a T,
    /// The run.
    pub run: RunId,
    /// The agents; all of the run if none is named.
    pub agents: Vec<String>,
}

/// A run that is there.
pub(super) struct Source<'a, T> {
    chosen: &'a Chosen<'a, T>,
    view: RunView,
}

impl<'a, T: Trajectories> Source<'a, T> {
    pub(super) fn open(chosen: &'a Chosen<'a, T>) -> Result<Self, ExportError> {
        let run = chosen.run;
        let read = chosen.from.run(run).map_err(|error| unreadable(run, error))?;
        Ok(Self { chosen, view: read.ok_or(ExportError::NoRun { run })? })
    }

    pub(super) fn from(&self) -> &'a T {
        self.chosen.from
    }

    pub(super) fn run(&self) -> RunId {
        self.chosen.run
    }

    pub(super) fn view(&self) -> &RunView {
        &self.view
    }

    pub(super) fn unreadable(&self, error: T::Error) -> ExportError {
        unreadable(self.chosen.run, error)
    }

    /// Does something with each episode that was chosen, in order.
    pub(super) fn each(&self, mut act: impl FnMut(EpisodeView) -> Result<(), ExportError>) -> Result<(), ExportError> {
        let run = self.chosen.run;
        let ids: Vec<EpisodeId> = self.from().episode_ids(run).map_err(|error| self.unreadable(error))?;
        let agents = &self.chosen.agents;
        let mut missing: Vec<&String> = agents.iter().collect();
        for id in ids {
            // A run that is going on only grows.
            let Some(episode) = self.from().episode(id).map_err(|error| self.unreadable(error))? else { continue };
            if agents.is_empty() || agents.contains(&episode.agent) {
                missing.retain(|agent| **agent != episode.agent);
                act(episode)?;
            }
        }
        match missing.first() {
            Some(agent) => Err(ExportError::NoAgent { run, agent: (*agent).clone() }),
            None => Ok(()),
        }
    }

    pub(super) fn steps(&self, attempt: AttemptId) -> Result<Vec<StepRecord>, ExportError> {
        self.from().steps(attempt).map_err(|error| self.unreadable(error))
    }

    pub(super) fn calls(&self, attempt: AttemptId) -> Result<Vec<(CallRecord, bool)>, ExportError> {
        self.from().calls(attempt).map_err(|error| self.unreadable(error))
    }

    /// Steps of an episode, each once, with the attempt that took it: of its trajectory, or of every
    /// attempt.
    pub(super) fn taken(
        &self,
        episode: &EpisodeView,
        attempts: Attempts,
    ) -> Result<Vec<(AttemptId, StepRecord)>, ExportError> {
        let mut taken = Vec::new();
        for attempt in chosen(episode, attempts) {
            for step in self.steps(attempt)? {
                match attempts {
                    Attempts::Settling => {
                        taken.push((taken_by(episode, step.number).unwrap_or(attempt), step));
                    }
                    // What it keeps of others is theirs.
                    Attempts::All if step.number >= first_own(episode, attempt) => taken.push((attempt, step)),
                    Attempts::All => {}
                }
            }
        }
        Ok(taken)
    }

    /// The model calls of an episode's trajectory.
    pub(super) fn calls_of(&self, played: &Played) -> Result<Vec<CallRecord>, ExportError> {
        let mut calls = Vec::new();
        for attempt in played.episode.chain(played.attempt) {
            calls.extend(self.calls(attempt)?.into_iter().map(|(call, _)| call));
        }
        Ok(calls)
    }

    /// The screen after a step; nothing if the pictures of the run were dropped, and it with them.
    pub(super) fn screen(&self, attempt: AttemptId, step: &StepRecord) -> Result<Option<Vec<u8>>, ExportError> {
        self.kept(&step.screen.png, || format!("step {} of attempt {attempt}", step.number))
    }

    /// A blob that may have been dropped with the pictures of the run.
    pub(super) fn kept(&self, digest: &Digest, what: impl FnOnce() -> String) -> Result<Option<Vec<u8>>, ExportError> {
        match self.from().blob(digest).map_err(|error| self.unreadable(error))? {
            None if self.view.pictures_dropped_at.is_none() => {
                Err(ExportError::MissingBlob { what: what(), digest: *digest })
            }
            bytes => Ok(bytes),
        }
    }

    /// What was played in an episode's trajectory; none before there is one.
    pub(super) fn played(&self, episode: EpisodeView) -> Result<Option<Played>, ExportError> {
        let Some(attempt) = episode.attempt else { return Ok(None) };
        let (plan, task) = self.plans(&episode);
        let steps = self.steps(attempt)?;
        Ok(Some(Played { episode, attempt, plan, task, steps }))
    }

    /// An episode as it is measured; `plans` are those of the run.
    pub(super) fn measured(&self, plans: &mut Plans<'_, T>, episode: &EpisodeView) -> Result<Measured, ExportError> {
        let measured = measure(self.from(), plans, episode, "").map_err(|error| self.unreadable(error))?;
        plans.forget_beyond(PLANS);
        Ok(measured)
    }

    /// The plans of an episode and of its task, as far as they are there.
    pub(super) fn plans(&self, episode: &EpisodeView) -> (Option<EpisodePlan>, Option<TaskPlan>) {
        let plan: Option<EpisodePlan> = self.plan(&episode.plan);
        let task = plan.as_ref().and_then(|plan| self.plan(&plan.task));
        (plan, task)
    }

    /// A plan, if it is there and can be read: an export does without what it adds.
    pub(super) fn plan<P: serde::de::DeserializeOwned>(&self, digest: &Digest) -> Option<P> {
        let bytes = self.from().blob(digest).ok()??;
        serde_json::from_slice(&bytes).ok()
    }
}

/// An episode with its trajectory.
pub(super) struct Played {
    pub(super) episode: EpisodeView,
    pub(super) attempt: AttemptId,
    pub(super) plan: Option<EpisodePlan>,
    pub(super) task: Option<TaskPlan>,
    pub(super) steps: Vec<StepRecord>,
}

impl Played {
    /// What the agent was asked to do at the start, as far as it is known.
    pub(super) fn description(&self) -> String {
        let Some(task) = &self.task else { return String::new() };
        task.rounds.as_ref().map_or_else(|| task.description.clone(), |plan| opening(&task.description, plan))
    }

    /// The loop of ours around a model that played it, if it was one.
    pub(super) fn looped(&self) -> Option<&ModelAgent> {
        looped(&self.plan.as_ref()?.agent)
    }

    /// How its attempt ended; none before it did.
    pub(super) fn finish(&self) -> Option<&AttemptFinish> {
        self.episode.record(self.attempt)?.finish.as_ref()
    }

    /// The version of the program that ran it.
    pub(super) fn version(&self) -> &str {
        let noted = self.finish().map(|finish| finish.notes.version.as_str());
        noted.filter(|version| !version.is_empty()).unwrap_or("unknown")
    }

    /// The steps of the agent: all but the first observation, and those that open further rounds.
    pub(super) fn answered(&self) -> impl Iterator<Item = (&StepRecord, &Answer)> {
        self.steps.iter().filter_map(|step| Some((step, step.answer.as_ref()?)))
    }
}

/// The loop of ours around a model, if an agent is one.
pub(super) fn looped(agent: &AgentPlan) -> Option<&ModelAgent> {
    match agent {
        AgentPlan::Model(agent) => Some(agent),
        _ => None,
    }
}

fn unreadable<E: std::error::Error + Send + Sync + 'static>(run: RunId, error: E) -> ExportError {
    ExportError::Read { run, source: Box::new(error) }
}

/// The number of the first step that an attempt took itself: it keeps those before.
pub(super) fn first_own(episode: &EpisodeView, attempt: AttemptId) -> u32 {
    episode.lines.get(&attempt).map_or(0, |line| line.kept.steps)
}

/// The attempt that took a step of the episode's trajectory.
pub(super) fn taken_by(episode: &EpisodeView, step: u32) -> Option<AttemptId> {
    episode.chain(episode.attempt?).into_iter().rfind(|attempt| first_own(episode, *attempt) <= step)
}

/// The attempts of an episode whose steps are exported.
pub(super) fn chosen(episode: &EpisodeView, attempts: Attempts) -> Vec<AttemptId> {
    match attempts {
        Attempts::Settling => episode.attempt.into_iter().collect(),
        Attempts::All => episode.attempts.iter().map(|attempt| attempt.id).collect(),
    }
}

pub(super) fn encode_error(episode: &EpisodeView) -> impl FnOnce(serde_json::Error) -> ExportError + use<> {
    let episode = episode.id.to_string();
    move |source| ExportError::Encode { episode, source }
}
