//! What a run came to: verdicts by agent, and layers built and reused.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_core::digest::Digest;
use longhaul_core::outcome::{Settlement, SettlementKind};
use longhaul_core::plan::LayerKind;
use longhaul_core::rate::Rate;
use serde::Serialize;

use crate::view::EpisodeView;

/// How many episodes are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Waiting or live.
    pub unsettled: u32,
    /// With a verdict: solved.
    pub passed: u32,
    /// With a verdict: not solved.
    pub failed: u32,
    /// Without a verdict.
    pub unverified: u32,
    /// Stopped by a person.
    pub cancelled: u32,
    /// Out of attempts.
    pub faulted: u32,
    /// Not begun, for want of money.
    pub not_started: u32,
}

/// What one agent came to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AgentSummary {
    /// Its name.
    pub agent: String,
    /// Its episodes.
    pub counts: Counts,
    /// Its pass rate; faulted and unverified episodes are no failures, and widen its
    /// bounds. None if nothing has a verdict.
    pub passed: Option<Rate>,
    /// The mean of its verdicts' scores.
    pub mean_score: Option<f64>,
}

/// How one layer served a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LayerSummary {
    /// Which of the env's layers.
    pub kind: LayerKind,
    /// Its key.
    pub key: Digest,
    /// The envs whose attempts used it.
    pub envs: Vec<String>,
    /// How many attempts built it.
    pub built: u32,
    /// How many attempts found it.
    pub reused: u32,
    /// Why the configure hook ran in its place, if it did.
    pub configure_ran: Option<String>,
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Summary {
    /// By agent, sorted by name.
    pub agents: Vec<AgentSummary>,
    /// The layers, base first.
    pub layers: Vec<LayerSummary>,
}

#[derive(Default)]
struct Tally {
    counts: Counts,
    scores: Vec<f64>,
}

#[derive(Default)]
struct Use {
    envs: BTreeSet<String>,
    built: u32,
    reused: u32,
    configure_ran: Option<String>,
}

/// Sums up the episodes of a run.
#[must_use]
pub fn summarize(episodes: &[EpisodeView]) -> Summary {
    let mut agents: BTreeMap<&str, Tally> = BTreeMap::new();
    let mut layers: BTreeMap<(LayerKind, Digest), Use> = BTreeMap::new();
    for episode in episodes {
        let tally = agents.entry(&episode.agent).or_default();
        *match episode.settlement.as_ref().map(Settlement::kind) {
            None => &mut tally.counts.unsettled,
            Some(SettlementKind::Passed) => &mut tally.counts.passed,
            Some(SettlementKind::Failed) => &mut tally.counts.failed,
            Some(SettlementKind::Unverified) => &mut tally.counts.unverified,
            Some(SettlementKind::Cancelled) => &mut tally.counts.cancelled,
            Some(SettlementKind::Faulted) => &mut tally.counts.faulted,
            Some(SettlementKind::NotStarted) => &mut tally.counts.not_started,
        } += 1;
        if let Some(Settlement::Verdict(verdict)) = &episode.settlement {
            tally.scores.push(verdict.score);
        }
        for finish in episode.attempts.iter().filter_map(|attempt| attempt.finish.as_ref()) {
            for used in &finish.notes.layers {
                let layer = layers.entry((used.kind, used.key)).or_default();
                layer.envs.insert(episode.task.env.clone());
                *if used.built { &mut layer.built } else { &mut layer.reused } += 1;
                if used.kind == LayerKind::Configure && finish.notes.configure_ran.is_some() {
                    layer.configure_ran.clone_from(&finish.notes.configure_ran);
                }
            }
        }
    }
    Summary {
        agents: agents.into_iter().map(|(agent, tally)| agent_summary(agent, &tally)).collect(),
        layers: layers
            .into_iter()
            .map(|((kind, key), used)| LayerSummary {
                kind,
                key,
                envs: used.envs.into_iter().collect(),
                built: used.built,
                reused: used.reused,
                configure_ran: used.configure_ran,
            })
            .collect(),
    }
}

fn agent_summary(agent: &str, tally: &Tally) -> AgentSummary {
    let counts = tally.counts;
    let verdicts = counts.passed + counts.failed;
    AgentSummary {
        agent: agent.to_owned(),
        counts,
        passed: Rate::of(counts.passed, counts.failed, counts.unverified + counts.faulted + counts.not_started),
        mean_score: (verdicts > 0).then(|| tally.scores.iter().sum::<f64>() / f64::from(verdicts)),
    }
}
