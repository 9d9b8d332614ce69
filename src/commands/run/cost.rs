//! What a run will cost at most, and what it will likely cost by earlier runs in the same store.

use std::collections::{BTreeMap, HashMap};

use longhaul_core::agent::{AgentPlan, ModelAgent};
use longhaul_core::ids::RunId;
use longhaul_core::money::Money;
use longhaul_core::plan::EpisodePlan;
use longhaul_proto::{convert, v1};

use super::pick::Wanted;
use crate::benchmark::Agent;
use crate::cli::{SourceArgs, VenueArgs};
use crate::client::Source;
use crate::error::CliError;
use crate::settings::Settings;

/// How many of the last runs are looked at.
const RUNS: usize = 50;

/// The most that an agent can spend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Most {
    /// Nothing: it calls no model.
    Nothing,
    /// So much, whatever happens.
    Capped(Money),
    /// There is no cap; so much if each step is one call, and each of the largest size.
    Steps(Money),
    /// There is no cap, and nothing bounds it.
    Unbounded,
}

/// What an agent of the run may spend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AgentCost {
    /// Its name.
    pub(super) agent: String,
    /// The most that it can.
    pub(super) most: Most,
    /// What it likely will, by earlier episodes, and how many those were.
    pub(super) likely: Option<Likely>,
}

/// What earlier episodes lead to expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Likely {
    /// For all of its episodes.
    pub(super) total: Money,
    /// From how many episodes.
    pub(super) episodes: u32,
}

/// What the run may spend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cost {
    /// Agent by agent.
    pub(super) agents: Vec<AgentCost>,
    /// The most that all can.
    pub(super) most: Most,
    /// What all likely will, where something is known of each that calls a model.
    pub(super) likely: Option<Likely>,
}

impl Cost {
    /// Works it out.
    pub(super) fn of(wanted: &Wanted, earlier: &Earlier) -> Self {
        let agents: Vec<AgentCost> = (0_u32..)
            .zip(&wanted.agents)
            .map(|(index, agent)| AgentCost {
                agent: agent.name().to_owned(),
                most: most(wanted, index, agent),
                likely: earlier.likely(wanted, agent),
            })
            .collect();
        let all = agents.iter().fold(Most::Nothing, |sum, agent| plus(sum, agent.most));
        let most = within(all, wanted.models.budgets.run);
        let spenders = || agents.iter().filter(|agent| agent.most != Most::Nothing);
        let known: Option<Vec<Likely>> = spenders().map(|agent| agent.likely).collect();
        let likely = known.filter(|known| !known.is_empty()).map(|known| Likely {
            total: capped(known.iter().map(|likely| likely.total).sum(), most),
            episodes: known.iter().map(|likely| likely.episodes).sum(),
        });
        Self { agents, most, likely }
    }
}

/// No more than what is possible is likely.
fn capped(likely: Money, most: Most) -> Money {
    if let Most::Capped(cap) = most { likely.min(cap) } else { likely }
}

/// The more uncertain of two, and both together.
fn plus(one: Most, other: Most) -> Most {
    match (one, other) {
        (Most::Unbounded, _) | (_, Most::Unbounded) => Most::Unbounded,
        (Most::Nothing, most) | (most, Most::Nothing) => most,
        (Most::Capped(one), Most::Capped(other)) => Most::Capped(one.saturating_add(other)),
        (Most::Steps(one) | Most::Capped(one), Most::Steps(other) | Most::Capped(other)) => {
            Most::Steps(one.saturating_add(other))
        }
    }
}

/// What is left possible under a cap.
fn within(most: Most, cap: Option<Money>) -> Most {
    match (most, cap) {
        (most, None) | (most @ Most::Nothing, Some(_)) => most,
        (Most::Capped(money), Some(cap)) => Most::Capped(money.min(cap)),
        // A cap holds; one that steps cannot reach says less than they do, but is sure.
        (Most::Steps(_) | Most::Unbounded, Some(cap)) => Most::Capped(cap),
    }
}

/// The most that an agent can spend.
fn most(wanted: &Wanted, index: u32, agent: &Agent) -> Most {
    let models = &wanted.models;
    let Some(gateway) = &models.gateway else { return Most::Nothing };
    let audit = models.audit.as_ref().map(|audit| {
        gateway
            .dearest(&audit.endpoint, &audit.model, audit.max_output)
            .map(|bound| bound.saturating_mul(u64::from(audit.most)))
    });
    let step = match agent {
        Agent::Idle | Agent::Scripted { .. } if audit.is_none() => return Most::Nothing,
        Agent::Idle | Agent::Scripted { .. } => Some(Money::ZERO),
        Agent::Model { agent, .. } => {
            gateway.dearest_as(agent.service(), &agent.endpoint, &agent.model, agent.max_output)
        }
        Agent::External { external, .. } if external.endpoints.is_empty() && audit.is_none() => return Most::Nothing,
        // It may call no model; who audits it does.
        Agent::External { external, .. } if external.endpoints.is_empty() => Some(Money::ZERO),
        Agent::External { .. } => None,
    };
    let audits = audit.unwrap_or(Some(Money::ZERO));
    let episode = |steps: u32| {
        let steps = step.zip(audits).map_or(Most::Unbounded, |(step, audits)| {
            Most::Steps(step.saturating_mul(u64::from(steps)).saturating_add(audits))
        });
        within(steps, wanted.limits.cost)
    };
    let benchmark = &wanted.picked.benchmark;
    let per_sample = wanted.picked.tasks.iter().fold(Most::Nothing, |sum, task| {
        let steps = benchmark.task(task).and_then(|(_, task)| task.state.as_ref().ok()?.max_steps);
        plus(sum, episode(wanted.limits.steps(steps)))
    });
    let all = match per_sample {
        Most::Capped(money) => Most::Capped(money.saturating_mul(u64::from(wanted.samples))),
        Most::Steps(money) => Most::Steps(money.saturating_mul(u64::from(wanted.samples))),
        other => other,
    };
    within(all, models.budgets.agent(index))
}

/// What earlier episodes spent.
#[derive(Debug, Default)]
pub(super) struct Earlier {
    /// By what called the model, and env: how many episodes, and all that they spent.
    spent: HashMap<(Caller, String), (u32, Money)>,
}

/// What calls a model: the same loop at the same model, whatever it is called.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Caller {
    harness: &'static str,
    model: String,
}

impl Caller {
    fn of(agent: &ModelAgent) -> Self {
        Self { harness: agent.harness.name(), model: agent.model.clone() }
    }
}

impl Earlier {
    /// Reads the last runs of the store that the run would be in; nothing if it is not there, or
    /// cannot be read: what is only likely is no reason to fail. Nor is anything read for agents
    /// of which nothing is likely.
    pub(super) async fn read(agents: &[Agent], venue: &VenueArgs, settings: &Settings) -> Self {
        let mut earlier = Self::default();
        if !agents.iter().any(|agent| matches!(agent, Agent::Model { .. })) {
            return earlier;
        }
        let args = SourceArgs { coordinator: venue.coordinator.clone(), store: venue.store.clone() };
        let read = async {
            let source = Source::open(&args, settings).await?;
            for run in source.runs().await?.iter().rev().take(RUNS) {
                earlier.add(&source, run).await?;
            }
            Ok::<(), CliError>(())
        };
        if let Err(error) = read.await {
            tracing::debug!(%error, "earlier runs cannot be read");
        }
        earlier
    }

    async fn add(&mut self, source: &Source, run: &v1::RunSummary) -> Result<(), CliError> {
        let id: RunId = convert::parsed("run_id", &run.run_id).map_err(CliError::Answer)?;
        if run.spent_nanos == 0 {
            return Ok(());
        }
        // Which model an agent of a run is, by its name.
        let mut callers: BTreeMap<String, Option<Caller>> = BTreeMap::new();
        for row in source.episodes(id).await? {
            if !matches!(row.state.as_str(), "passed" | "failed" | "unverified") {
                continue;
            }
            let caller = match callers.get(&row.agent) {
                Some(caller) => caller.clone(),
                None => {
                    let caller = caller(source, &row).await?;
                    callers.insert(row.agent.clone(), caller.clone());
                    caller
                }
            };
            let Some(caller) = caller else { continue };
            let env = row.task.split('/').next().unwrap_or_default().to_owned();
            let (episodes, spent) = self.spent.entry((caller, env)).or_default();
            *episodes = episodes.saturating_add(1);
            *spent = spent.saturating_add(Money::from_nanos(row.spent_nanos));
        }
        Ok(())
    }

    /// What an agent will likely spend: for each task the mean of its env, else of all envs.
    fn likely(&self, wanted: &Wanted, agent: &Agent) -> Option<Likely> {
        let Agent::Model { agent, .. } = agent else { return None };
        let caller = Caller::of(agent);
        let of_caller = || self.spent.iter().filter(|((known, _), _)| *known == caller);
        let (episodes, spent) = of_caller().fold((0_u32, Money::ZERO), |(count, sum), (_, (episodes, spent))| {
            (count.saturating_add(*episodes), sum.saturating_add(*spent))
        });
        if episodes == 0 {
            return None;
        }
        let mean = |(episodes, spent): (u32, Money)| spent.scaled_up(1, u64::from(episodes)).unwrap_or(Money::MAX);
        let per_sample: Money = wanted
            .picked
            .tasks
            .iter()
            .map(|task| {
                let here = of_caller().find(|((_, env), _)| *env == task.env).map(|(_, sums)| *sums);
                mean(here.unwrap_or((episodes, spent)))
            })
            .sum();
        Some(Likely { total: per_sample.saturating_mul(u64::from(wanted.samples)), episodes })
    }
}

/// What called the model in an episode, if it was one of our loops.
async fn caller(source: &Source, row: &v1::EpisodeRow) -> Result<Option<Caller>, CliError> {
    let digest = convert::digest("plan", &row.plan).map_err(CliError::Answer)?;
    let Some(bytes) = source.blob(&digest).await? else { return Ok(None) };
    let plan: EpisodePlan = serde_json::from_slice(&bytes)
        .map_err(|source| CliError::Record { what: format!("episode {}", row.episode_id), source })?;
    Ok(match &plan.agent {
        AgentPlan::Model(agent) => Some(Caller::of(agent)),
        AgentPlan::Scripted { .. } | AgentPlan::Idle | AgentPlan::External(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn dollars(amount: u64) -> Money {
        Money::from_dollars(amount)
    }

    #[test]
    fn caps_bound_what_steps_do_not() {
        let (steps, capped) = (Most::Steps(dollars(900)), Most::Capped(dollars(5)));
        assert_eq!(within(steps, Some(dollars(5))), capped);
        assert_eq!(within(Most::Unbounded, Some(dollars(5))), capped);
        assert_eq!(within(Most::Nothing, Some(dollars(5))), Most::Nothing);
        assert_eq!(within(capped, Some(dollars(9))), capped);
        assert_eq!(within(steps, None), steps);
    }

    #[test]
    fn a_sum_is_as_sure_as_its_least_sure_part() {
        let capped = Most::Capped(dollars(5));
        assert_eq!(plus(capped, capped), Most::Capped(dollars(10)));
        assert_eq!(plus(capped, Most::Steps(dollars(1))), Most::Steps(dollars(6)));
        assert_eq!(plus(Most::Nothing, capped), capped);
        assert_eq!(plus(capped, Most::Unbounded), Most::Unbounded);
    }
}
