//! What rounds of tasks ask of a run: somebody who judges, prices of models.

use longhaul_core::ids::TaskName;

use super::agents::Agent;
use super::models::ModelTerms;
use super::plan::PlanError;
use super::read::{Benchmark, RoundsInfo};

/// Checks that rounds of the tasks have what they ask for: a judge where an assertion is one's to
/// decide, and a price of every model that is called where a round caps dollars.
///
/// # Errors
///
/// Something is not there.
pub fn ready(
    benchmark: &Benchmark,
    tasks: &[TaskName],
    agents: &[Agent],
    models: &ModelTerms,
) -> Result<(), PlanError> {
    let with = |asks: fn(&RoundsInfo) -> bool| -> Vec<TaskName> {
        let info = |name: &TaskName| benchmark.task(name)?.1.state.as_ref().ok()?.rounds;
        tasks.iter().filter(|name| info(name).as_ref().is_some_and(asks)).cloned().collect()
    };
    let asking = with(|rounds| rounds.asks_judge);
    if models.judge.is_none() && !asking.is_empty() {
        return Err(PlanError::NoJudge(asking));
    }
    let capped = with(|rounds| rounds.caps_dollars);
    match unpriced(agents, models).filter(|_| !capped.is_empty()) {
        Some((user, vendor, model)) => Err(PlanError::NoPrice { user, vendor, model, tasks: capped }),
        None => Ok(()),
    }
}

/// Who calls a model without a price, with its vendor and its name. What a program will ask for and
/// does not say, the gateway refuses by itself.
fn unpriced(agents: &[Agent], models: &ModelTerms) -> Option<(String, String, String)> {
    let gateway = models.gateway.as_ref()?;
    let agents = agents.iter().flat_map(|agent| {
        let calls: Vec<(&str, &str)> = match agent {
            Agent::Idle | Agent::Scripted { .. } => Vec::new(),
            Agent::Model { agent, .. } => vec![(&agent.endpoint, &agent.model)],
            Agent::External { external, .. } => external.models.iter().map(|(of, model)| (&**of, &**model)).collect(),
        };
        calls.into_iter().map(|call| (format!("the agent `{}`", agent.name()), call))
    });
    let audit = models.audit.iter().map(|audit| ("the audit".to_owned(), (&*audit.endpoint, &*audit.model)));
    // The gateway bounds every call of an attempt then, the judge's as well.
    let judge = models.judge.iter().map(|judge| ("the judge".to_owned(), (&*judge.endpoint, &*judge.model)));
    agents.chain(audit).chain(judge).find_map(|(user, (endpoint, model))| {
        let vendor = &gateway.endpoint(endpoint)?.vendor;
        let priced = gateway.price(vendor, model).is_some();
        (!priced).then(|| (user, vendor.clone(), model.to_owned()))
    })
}
