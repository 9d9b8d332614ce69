//! What people are shown of the engine's state.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_core::ids::{AttemptId, EpisodeId, RunId, WorkerId};
use longhaul_core::time::Timestamp;
use longhaul_engine::WaitReason;
use longhaul_engine::state::{Episode, EpisodeState, LayerState, Run};
use longhaul_proto::v1;
use tokio::sync::watch;

use super::{Actor, Followed};
use crate::message::RunView;

/// For how many envs a follower is told why they wait.
const REASONS_SHOWN: usize = 5;

impl Actor {
    pub(super) fn workers(&self) -> Vec<v1::WorkerRow> {
        let state = self.engine.state();
        let row = |(id, worker): (&WorkerId, &longhaul_engine::state::Worker)| {
            let session = self.sessions.get(id);
            let silent = session.map_or(0, |session| session.heard.elapsed().as_millis());
            v1::WorkerRow {
                worker_id: id.to_string(),
                hostname: worker.profile.hostname.clone(),
                connected: session.is_some(),
                live: u32::try_from(worker.leases.len()).unwrap_or(u32::MAX),
                cpu_millis: worker.profile.capacity.cpu_millis,
                memory_mib: worker.profile.capacity.memory_mib,
                last_seen_millis_ago: u64::try_from(silent).unwrap_or(u64::MAX),
                attempts: worker.leases.keys().filter_map(|attempt| self.live(attempt.episode)).collect(),
                slurm_job_id: worker.profile.slurm_job_id.clone().unwrap_or_default(),
            }
        };
        state.workers.iter().map(row).collect()
    }

    pub(super) fn view(&self, id: RunId, seen: usize) -> Option<RunView> {
        let state = self.engine.state();
        let settled = self
            .followed
            .get(&id)
            .and_then(|followed| followed.settled.get(seen..))
            .map(<[EpisodeId]>::to_vec)
            .unwrap_or_default();
        if let Some(forgotten) = state.forgotten.get(&id) {
            let summary = forgotten.summary.clone();
            let (live, building, waiting, warnings) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            return Some(RunView { summary, live, building, waiting, warnings, settled });
        }
        let run = state.runs.get(&id)?;
        let episodes = u32::try_from(run.episodes.len()).unwrap_or(u32::MAX);
        let live: Vec<_> = (0..episodes).filter_map(|index| self.live(EpisodeId { run: id, index })).collect();
        let waiting = if live.is_empty() { self.waiting(id, run) } else { waits_of(&live) };
        let building = state
            .layers
            .values()
            .filter(|layer| matches!(layer.state, LayerState::Building { .. }))
            .filter(|layer| run.plan.envs.iter().any(|env| env.name == layer.env))
            .map(|layer| format!("{} {}", layer.kind.name(), layer.env))
            .collect();
        let warned = self.engine.shared_budget(id).into_iter().filter(|scope| scope.warned > 0);
        let warnings = warned.map(|scope| format!("over {} % of the budget of {} is spent", scope.warned, scope.scope));
        Some(RunView { summary: run.summary(id), live, building, waiting, warnings: warnings.collect(), settled })
    }

    /// Why the queued episodes of a run wait; one answer for each env, since the envs of a
    /// run differ in what they ask for and their episodes do not.
    fn waiting(&self, id: RunId, run: &Run) -> Vec<String> {
        // Samples that follow one another wait for those that are live, and for nothing else.
        let is_live = |episode: &Episode| matches!(episode.state, EpisodeState::Active { .. });
        if run.plan.until.is_some() && run.episodes.iter().any(is_live) {
            return Vec::new();
        }
        let mut reasons: BTreeMap<u32, String> = BTreeMap::new();
        for (index, entry) in (0..).zip(&run.plan.episodes) {
            if reasons.contains_key(&entry.env) {
                continue;
            }
            match self.engine.why_waiting(EpisodeId { run: id, index }) {
                // It is about to start, or may not have to.
                None | Some(WaitReason::Next | WaitReason::OtherSamples) => {}
                // It names the env itself.
                Some(reason @ WaitReason::TooLarge { .. }) => {
                    reasons.insert(entry.env, reason.to_string());
                }
                Some(reason) => {
                    reasons.insert(entry.env, format!("{}: {reason}", entry.task.env));
                }
            }
        }
        let mut reasons: Vec<String> = reasons.into_values().collect();
        reasons.truncate(REASONS_SHOWN);
        reasons
    }

    pub(super) fn live(&self, id: EpisodeId) -> Option<v1::LiveAttempt> {
        let run = self.engine.state().runs.get(&id.run)?;
        let (episode, entry) = run.episode(id.index)?;
        let EpisodeState::Active { number, worker, .. } = episode.state else { return None };
        let attempt = AttemptId { episode: id, number };
        let (phase, steps) = self.progress.get(&attempt).copied().unwrap_or((v1::AttemptPhase::Unspecified, 0));
        let acts = phase == v1::AttemptPhase::Acting;
        let waits = acts.then(|| self.down_for(worker, run.endpoints(entry))).flatten();
        let (waiting, since) = waits.unwrap_or_default();
        Some(v1::LiveAttempt {
            waiting,
            waiting_since_millis: since.0,
            attempt: attempt.to_string(),
            task: entry.task.to_string(),
            phase: Some(v1::AttemptPhaseName { name: phase_name(phase).to_owned() }),
            steps,
        })
    }

    /// Which of these endpoints answers no call of a worker, and why: what the worker says itself,
    /// else what all of them together come to.
    fn down_for(&self, worker: WorkerId, endpoints: &[String]) -> Option<(String, Timestamp)> {
        endpoints.iter().find_map(|endpoint| {
            let (reason, since) = match self.shares.down_at(worker, endpoint) {
                Some(said) => said,
                None => (self.engine.state().endpoints_down.get(endpoint)?.as_str(), Timestamp::default()),
            };
            Some((format!("endpoint {endpoint}: {reason}"), since))
        })
    }

    pub(super) fn follow(&mut self, id: RunId) -> Option<watch::Receiver<u64>> {
        let run = self.engine.state().runs.get(&id)?;
        let followed = self.followed.entry(id).or_insert_with(|| {
            let mut settled: Vec<(Timestamp, EpisodeId)> = (0..)
                .zip(&run.episodes)
                .filter_map(|(index, episode)| match &episode.state {
                    EpisodeState::Settled { at, .. } => Some((*at, EpisodeId { run: id, index })),
                    EpisodeState::Queued { .. } | EpisodeState::Active { .. } => None,
                })
                .collect();
            settled.sort_unstable();
            Followed {
                version: watch::Sender::new(0),
                settled: settled.into_iter().map(|(_, episode)| episode).collect(),
            }
        });
        Some(followed.version.subscribe())
    }
}

/// What live attempts wait for, each reason once.
fn waits_of(live: &[v1::LiveAttempt]) -> Vec<String> {
    let reasons: BTreeSet<&str> = live.iter().map(|attempt| attempt.waiting.as_str()).collect();
    reasons.into_iter().filter(|reason| !reason.is_empty()).take(REASONS_SHOWN).map(str::to_owned).collect()
}

const fn phase_name(phase: v1::AttemptPhase) -> &'static str {
    match phase {
        v1::AttemptPhase::Unspecified => "leased",
        v1::AttemptPhase::Layers => "layers",
        v1::AttemptPhase::Starting => "starting",
        v1::AttemptPhase::Setup => "setup",
        v1::AttemptPhase::Acting => "acting",
        v1::AttemptPhase::Export => "export",
        v1::AttemptPhase::Verifying => "verifying",
        v1::AttemptPhase::Parked => "parked",
        v1::AttemptPhase::Replaying => "replaying",
    }
}
