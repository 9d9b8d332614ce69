//! Runs: submitted, cancelled, forgotten.

use longhaul_core::digest::Digest;
use longhaul_core::ids::{EpisodeId, RunId};
use longhaul_core::outcome::SettlementKind;
use longhaul_core::plan::RunPlan;

use super::draft::Draft;
use crate::command::{PlanProblem, Rejection};
use crate::event::Event;
use crate::state::{Episode, EpisodeState, Revived, RunTerms};

impl Draft<'_> {
    pub(super) fn submit_run(
        &mut self,
        run: RunId,
        plan: RunPlan,
        digest: Digest,
        terms: RunTerms,
    ) -> Result<(), Rejection> {
        let state = self.state();
        let known = state.runs.get(&run).map(|known| known.digest);
        if let Some(known) = known.or_else(|| Some(state.forgotten.get(&run)?.digest)) {
            let repeated = known == digest;
            return if repeated { Ok(()) } else { Err(Rejection::RunIdTaken { run, known, given: digest }) };
        }
        check(&plan).map_err(|problem| Rejection::BadPlan { run, problem })?;
        let at = self.at;
        self.push(Event::RunSubmitted { at, run, digest, plan, terms });
        Ok(())
    }

    pub(super) fn cancel_run(&mut self, id: RunId, by: String) -> Result<(), Rejection> {
        if self.state().forgotten.contains_key(&id) {
            return Ok(());
        }
        let run = self.state().runs.get(&id).ok_or(Rejection::UnknownRun { run: id })?;
        if run.settled_at.is_some() || run.cancelled.is_some() {
            return Ok(());
        }
        let at = self.at;
        self.push(Event::RunCancelled { at, run: id, by });
        for (index, episode) in (0..).zip(&run.episodes) {
            if matches!(episode.state, EpisodeState::Queued { .. }) {
                self.settle(EpisodeId { run: id, index }, episode.stopped());
            }
        }
        Ok(())
    }

    pub(super) fn resume_run(
        &mut self,
        id: RunId,
        by: String,
        kinds: &[SettlementKind],
        revived: Option<Box<Revived>>,
    ) -> Result<(), Rejection> {
        let state = self.state();
        let forgotten = state.forgotten.contains_key(&id);
        let revived = revived.filter(|_| forgotten);
        let (episodes, cancelled) = match (state.runs.get(&id), &revived) {
            (Some(run), _) => (&run.episodes, run.cancelled.is_some()),
            (None, Some(revived)) => {
                check(&revived.plan).map_err(|problem| Rejection::BadPlan { run: id, problem })?;
                (&revived.episodes, false)
            }
            (None, None) if forgotten => return Err(Rejection::NotRevived { run: id }),
            (None, None) => return Err(Rejection::UnknownRun { run: id }),
        };
        let wanted = |episode: &Episode| match &episode.state {
            EpisodeState::Settled { settlement, .. } => episode.may_go_on() && kinds.contains(&settlement.kind()),
            EpisodeState::Queued { .. } | EpisodeState::Active { .. } => false,
        };
        let chosen = (0..).zip(episodes).filter(|(_, episode)| wanted(episode)).map(|(index, _)| index);
        let chosen: Vec<u32> = chosen.collect();
        if !chosen.is_empty() || cancelled {
            let at = self.at;
            self.push(Event::RunResumed { at, run: id, by, episodes: chosen, revived });
        }
        Ok(())
    }

    pub(super) fn forget_run(&mut self, id: RunId) -> Result<(), Rejection> {
        if self.state().forgotten.contains_key(&id) {
            return Ok(());
        }
        let run = self.state().runs.get(&id).ok_or(Rejection::UnknownRun { run: id })?;
        if run.settled_at.is_none() {
            return Err(Rejection::RunNotSettled { run: id, open: run.open });
        }
        let at = self.at;
        self.push(Event::RunForgotten { at, run: id });
        Ok(())
    }
}

/// A plan is data from outside: its indices are checked once, here.
fn check(plan: &RunPlan) -> Result<(), PlanProblem> {
    if plan.episodes.is_empty() {
        return Err(PlanProblem::NoEpisodes);
    }
    if u32::try_from(plan.episodes.len()).is_err() {
        return Err(PlanProblem::TooManyEpisodes);
    }
    let within = |index: u32, length: usize| usize::try_from(index).is_ok_and(|index| index < length);
    for (episode, entry) in (0..).zip(&plan.episodes) {
        if !within(entry.agent, plan.agents.len()) {
            return Err(PlanProblem::NoSuchAgent { episode, agent: entry.agent, agents: plan.agents.len() });
        }
        if !within(entry.env, plan.envs.len()) {
            return Err(PlanProblem::NoSuchEnv { episode, env: entry.env, envs: plan.envs.len() });
        }
    }
    Ok(())
}
