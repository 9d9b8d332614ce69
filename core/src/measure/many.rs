//! More than two agents: each pair compared, corrected for looking at several, and all of them
//! as points of score against dollars.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::clean::clean;
use super::compare::{Comparison, Side, chosen, compare};
use super::coverage::{Coverage, coverage};
use super::known::{At, Curve, curve};
use super::measures::mean_score;
use super::options::Options;
use super::rate::{Mean, Rate};
use super::row::Row;
use crate::ids::TaskName;
use crate::money::Money;
use crate::stats::{benjamini_hochberg, holm};

/// A p value among others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adjusted {
    /// Among how many comparisons.
    pub of: u64,
    /// Holm's: what conclusions go by.
    pub holm: f64,
    /// Benjamini's and Hochberg's.
    pub benjamini_hochberg: f64,
}

/// An agent, over the tasks on which every agent has a verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentPoint {
    /// Its name.
    pub name: String,
    /// Its pass rate.
    pub pass_rate: Option<Rate>,
    /// Its mean score.
    pub score: Option<Mean>,
    /// What an episode cost on the average, rounded up; none where one has no price.
    pub dollars: Option<Money>,
    /// Whether no other agent scores as high for less, or higher for as little; none without
    /// score or price.
    pub best_score_for_money: Option<bool>,
    /// Whether no other agent passes as much for less, or more for as little; none without
    /// verdict or price.
    pub best_rate_for_money: Option<bool>,
    /// What its episodes had reached within so many dollars.
    pub by_dollars: Curve,
    /// What they had reached within so many steps.
    pub by_steps: Curve,
}

/// Several agents compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparisons {
    /// On how many tasks every agent has a verdict.
    pub common_tasks: u64,
    /// The agents, as they were given.
    pub agents: Vec<AgentPoint>,
    /// What they solve together. By their names as rows have them.
    pub coverage: Coverage,
    /// Each pair of them, the earlier one as A, corrected for their number.
    pub pairs: Vec<Comparison>,
}

/// Compares each pair of several sides.
#[must_use]
pub fn compare_all(sides: &[Side<'_>], options: &Options) -> Comparisons {
    let mut pairs = Vec::new();
    for (index, a) in sides.iter().enumerate() {
        pairs.extend(sides.iter().skip(index + 1).map(|b| compare(a, b, options)));
    }
    adjust(&mut pairs, options);
    let rows: Vec<Vec<&Row>> = sides.iter().map(|side| clean(side.rows).rows).collect();
    let common = common(&rows);
    let counted: Vec<Vec<&Row>> = rows
        .iter()
        .map(|rows| rows.iter().copied().filter(|row| row.passed().is_some() && common.contains(&row.task)).collect())
        .collect();
    let all: Vec<&Row> = counted.iter().flatten().copied().collect();
    let dollars = chosen(&options.dollars, At::Dollars, &all);
    let steps = chosen(&options.steps, At::Steps, &all);
    let mut agents: Vec<AgentPoint> = sides
        .iter()
        .zip(&counted)
        .map(|(side, rows)| AgentPoint {
            name: side.name.to_owned(),
            pass_rate: Rate::of(
                &rows.iter().map(|row| (&row.task, row.passed() == Some(true))).collect::<Vec<_>>(),
                options,
            ),
            score: mean_score(rows, options),
            dollars: super::amounts::Amounts::of(rows).dollars.per_episode,
            best_score_for_money: None,
            best_rate_for_money: None,
            by_dollars: curve(rows, &dollars),
            by_steps: curve(rows, &steps),
        })
        .collect();
    let scores = front(&agents, |agent| agent.score.map(|score| score.value));
    let rates = front(&agents, |agent| agent.pass_rate.map(|rate| rate.value));
    for ((agent, score), rate) in agents.iter_mut().zip(scores).zip(rates) {
        agent.best_score_for_money = score;
        agent.best_rate_for_money = rate;
    }
    let everything: Vec<&Row> = rows.into_iter().flatten().collect();
    Comparisons { common_tasks: common.len() as u64, agents, coverage: coverage(&everything), pairs }
}

/// The tasks on which every side has a verdict.
fn common<'a>(sides: &[Vec<&'a Row>]) -> BTreeSet<&'a TaskName> {
    let mut tasks = sides.iter().map(|rows| -> BTreeSet<&TaskName> {
        rows.iter().filter(|row| row.passed().is_some()).map(|row| &row.task).collect()
    });
    let first = tasks.next().unwrap_or_default();
    tasks.fold(first, |common, more| common.intersection(&more).copied().collect())
}

/// Corrects the p values for their number, and concludes anew.
fn adjust(pairs: &mut [Comparison], options: &Options) {
    let tested: Vec<usize> = (0..pairs.len()).filter(|index| pairs[*index].pass.is_some()).collect();
    if tested.len() < 2 {
        return;
    }
    let p_values: Vec<f64> =
        tested.iter().filter_map(|index| pairs[*index].pass.as_ref().map(|pass| pass.test.p)).collect();
    let (strict, lenient) = (holm(&p_values), benjamini_hochberg(&p_values));
    for ((index, holm), benjamini_hochberg) in tested.iter().zip(strict).zip(lenient) {
        pairs[*index].adjusted = Some(Adjusted { of: tested.len() as u64, holm, benjamini_hochberg });
        pairs[*index].conclude(options);
    }
}

/// Whether each agent is on the Pareto front of what it achieves against what it costs; none
/// where one of the two is not known.
fn front(agents: &[AgentPoint], achieved: impl Fn(&AgentPoint) -> Option<f64>) -> Vec<Option<bool>> {
    let points: Vec<Option<(f64, Money)>> = agents.iter().map(|agent| achieved(agent).zip(agent.dollars)).collect();
    let beaten = |(value, cost): (f64, Money)| {
        let beats = |(other, price): (f64, Money)| other >= value && price <= cost && (other > value || price < cost);
        points.iter().flatten().any(|point| beats(*point))
    };
    points.iter().map(|point| point.map(|point| !beaten(point))).collect()
}
