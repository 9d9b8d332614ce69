//! Two agents on the same tasks: only what both settled with a verdict, by exact tests and
//! resampled intervals, with what was left out named and bounded.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::amounts::Amounts;
use super::clean::{clean, like_fraction};
use super::cluster::{ClusterBy, Clustered, Clusters};
use super::finding::Finding;
use super::known::{At, EqualBudget, equal_budget, grid, verdict_stands};
use super::many::Adjusted;
use super::options::Options;
use super::rate::{Mean, Rate};
use super::row::{Row, State};
use super::stopped::{Stopped, three_ways};
use super::workflow::{Workflow, counted, workflow};
use crate::ids::TaskName;
use crate::stats::{
    Interval, OddsRatio, PairedTable, PairedTest, bounds, cohen_h, detectable_difference, newcombe, paired_odds_ratio,
    pairs_needed, sign_flip, smallest_decisive, standardized_mean_difference,
};

/// One side of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// What it is called: an agent, or an agent and a run.
    pub name: &'a str,
    /// Its episodes.
    pub rows: &'a [Row],
}

/// The same sample of the same task on both sides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair<'a> {
    pub(super) a: &'a Row,
    pub(super) b: &'a Row,
}

/// Pass rates compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PassComparison {
    /// Of A, over the pairs.
    pub a: Rate,
    /// Of B, over the pairs.
    pub b: Rate,
    /// What became of the pairs.
    pub table: PairedTable,
    /// The rate of A less that of B.
    pub difference: f64,
    /// Newcombe's interval of it.
    pub newcombe: Interval,
    /// Its resampled interval.
    pub clustered: Option<Clustered>,
    /// McNemar's exact test; with several samples a task, the exact test over the signs of
    /// tasks, which is the same for one.
    pub test: PairedTest,
    /// Of the pairs with one pass, how much more often it was A's.
    pub odds_ratio: OddsRatio,
    /// Cohen's h.
    pub cohen_h: f64,
    /// In how many pairs it was we who did not find out how A or B did.
    pub unknown: u64,
    /// The rate of A if all such episodes of it had failed, and if all had passed.
    pub bounds_a: Interval,
    /// That of B.
    pub bounds_b: Interval,
    /// The difference if all such episodes had gone against A, and if all had gone for it.
    pub bounds: Interval,
}

/// Scores compared, over the pairs in which both have one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScoreComparison {
    /// Of A.
    pub a: Mean,
    /// Of B.
    pub b: Mean,
    /// The mean of A less that of B.
    pub difference: f64,
    /// Its resampled interval: the paired bootstrap.
    pub clustered: Option<Clustered>,
    /// The difference in units of its standard deviation over pairs.
    pub standardized: Option<f64>,
}

/// Measures of rounds compared, over the pairs in which both have rounds that can be counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkflowComparison {
    /// Of A.
    pub a: Workflow,
    /// Of B.
    pub b: Workflow,
    /// The resampled interval of the difference of full workflow rates.
    pub full: Option<Clustered>,
    /// The resampled interval of the difference of assertion pass rates.
    pub assertions: Option<Clustered>,
    /// Whether one side has the higher assertion pass rate and the other the higher full
    /// workflow rate.
    pub order_differs: bool,
}

/// What so many pairs could have shown.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reach {
    /// How many pairs there are.
    pub pairs: u64,
    /// In how many of them one side alone passed.
    pub discordant: u64,
    /// How many such it takes at least for the test to decide anything.
    pub decisive: u64,
    /// The share of such pairs that is reckoned with: one more than there are, of two pairs more,
    /// so that none at all does not promise to see everything.
    pub share: f64,
    /// The smallest difference of pass rates that would have been seen. None if no difference
    /// would.
    pub detectable: Option<f64>,
    /// How many pairs it would take to see the smallest difference that matters.
    pub needed: Option<u64>,
}

/// What is known after all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Conclusion {
    /// A passes more.
    A,
    /// B passes more.
    B,
    /// If there is a difference, it is below the smallest that matters.
    Alike,
    /// Not enough episodes to tell.
    NotEnough,
}

/// Two sides compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The name of A.
    pub a: String,
    /// The name of B.
    pub b: String,
    /// What is wrong, missing or left out.
    pub findings: Vec<Finding>,
    /// How many tasks both have.
    pub common_tasks: u64,
    /// Pass rates. None without a pair of verdicts.
    pub pass: Option<PassComparison>,
    /// Scores. None without a pair of them, or where a score looks like a fraction.
    pub score: Option<ScoreComparison>,
    /// Measures of rounds, where there are some.
    pub workflow: Option<WorkflowComparison>,
    /// Episodes that a budget stopped, in three ways.
    pub stopped: Option<Stopped>,
    /// Both at the same dollars: the mean of the side that spent less.
    pub equal_dollars: Option<EqualBudget>,
    /// Both at each of several budgets of dollars.
    pub dollars: Vec<EqualBudget>,
    /// Both at each of several budgets of steps.
    pub steps: Vec<EqualBudget>,
    /// What A used, over the pairs.
    pub amounts_a: Amounts,
    /// What B used, over the pairs.
    pub amounts_b: Amounts,
    /// What so many pairs could have shown.
    pub reach: Reach,
    /// The p value among those of the other comparisons that were made with it.
    pub adjusted: Option<Adjusted>,
    /// What is known after all; by the adjusted p value where there is one.
    pub conclusion: Conclusion,
    /// Whether the interval over envs says so too; none where the conclusion is no difference, or
    /// there are too few envs.
    pub over_envs: Option<bool>,
}

/// Compares two sides.
#[must_use]
pub fn compare(a: &Side<'_>, b: &Side<'_>, options: &Options) -> Comparison {
    let mut findings = Vec::new();
    let (rows_a, rows_b) = (checked(a, &mut findings), checked(b, &mut findings));
    let (pairs, common_tasks) = paired((a.name, &rows_a), (b.name, &rows_b), &mut findings);
    let decided: Vec<Pair<'_>> =
        pairs.iter().copied().filter(|pair| pair.a.passed().is_some() && pair.b.passed().is_some()).collect();
    if common_tasks > 0 && decided.is_empty() {
        findings.push(Finding::NoCommonVerdict);
    }
    let envs: BTreeSet<&str> = decided.iter().map(|pair| pair.a.task.env.as_str()).collect();
    if !envs.is_empty() && envs.len() < options.least_envs {
        findings.push(Finding::FewEnvs { envs: envs.len() });
    }
    let pass = pass(&pairs, &decided, options);
    let of_a: Vec<&Row> = decided.iter().map(|pair| pair.a).collect();
    let of_b: Vec<&Row> = decided.iter().map(|pair| pair.b).collect();
    let both: Vec<&Row> = of_a.iter().chain(&of_b).copied().collect();
    let (amounts_a, amounts_b) = (Amounts::of(&of_a), Amounts::of(&of_b));
    let at_each = |budgets: Vec<At>| budgets.into_iter().filter_map(|at| equal_budget(&decided, at)).collect();
    let cheaper = amounts_a.dollars.per_episode.zip(amounts_b.dollars.per_episode).map(|(a, b)| At::Dollars(a.min(b)));
    let mut comparison = Comparison {
        a: a.name.to_owned(),
        b: b.name.to_owned(),
        common_tasks,
        score: score(&decided, |_| true, options),
        workflow: workflows(&decided, options),
        stopped: three_ways(&decided, options),
        equal_dollars: cheaper.and_then(|at| equal_dollars(&decided, at, options)),
        dollars: at_each(chosen(&options.dollars, At::Dollars, &both)),
        steps: at_each(chosen(&options.steps, At::Steps, &both)),
        amounts_a,
        amounts_b,
        reach: reach(pass.as_ref().map(|pass| pass.table).unwrap_or_default(), options),
        adjusted: None,
        conclusion: Conclusion::NotEnough,
        over_envs: None,
        pass,
        findings,
    };
    comparison.conclude(options);
    comparison
}

/// The budgets that were asked for, or those that fit.
pub(super) fn chosen<T: Copy + Default>(asked: &[T], made: fn(T) -> At, rows: &[&Row]) -> Vec<At> {
    if asked.is_empty() { grid(rows, made(T::default())) } else { asked.iter().copied().map(made).collect() }
}

impl Comparison {
    /// Draws the conclusion, from the adjusted p value where there is one.
    pub(super) fn conclude(&mut self, options: &Options) {
        self.over_envs = None;
        let Some(pass) = &self.pass else {
            self.conclusion = Conclusion::NotEnough;
            return;
        };
        let p = self.adjusted.map_or(pass.test.p, |adjusted| adjusted.holm);
        let alike = pass.newcombe.within(options.margin)
            && pass.clustered.is_none_or(|clustered| clustered.interval.within(options.margin));
        self.conclusion = if p <= options.level() && pass.difference != 0.0 {
            if pass.difference > 0.0 { Conclusion::A } else { Conclusion::B }
        } else if alike {
            Conclusion::Alike
        } else {
            Conclusion::NotEnough
        };
        if matches!(self.conclusion, Conclusion::A | Conclusion::B) {
            let over_envs = pass.clustered.filter(|clustered| clustered.by == ClusterBy::Env);
            self.over_envs = over_envs.map(|clustered| !clustered.interval.contains(0.0));
        }
    }
}

/// The rows of a side that count, and what is wrong with the others.
fn checked<'a>(side: &Side<'a>, findings: &mut Vec<Finding>) -> Vec<&'a Row> {
    let clean = clean(side.rows);
    findings.extend(clean.findings);
    let agents: BTreeSet<&str> = clean.rows.iter().map(|row| row.agent.as_str()).collect();
    if agents.len() > 1 {
        let agents = agents.into_iter().map(str::to_owned).collect();
        findings.push(Finding::SeveralAgents { side: side.name.to_owned(), agents });
    }
    clean.rows
}

/// Samples by their task and number, and by which of several such it is (of several runs).
type Samples<'a> = BTreeMap<&'a TaskName, BTreeMap<(u32, usize), &'a Row>>;

fn samples<'a>(rows: &[&'a Row]) -> Samples<'a> {
    let mut ordered: Vec<&Row> = rows.to_vec();
    ordered.sort_by(|one, other| (&one.run, &one.episode).cmp(&(&other.run, &other.episode)));
    let mut samples: Samples<'a> = BTreeMap::new();
    for row in ordered {
        let task = samples.entry(&row.task).or_default();
        let before = task.keys().filter(|(sample, _)| *sample == row.sample).count();
        task.insert((row.sample, before), row);
    }
    samples
}

/// Pairs samples by their number; names what has no counterpart. Also how many tasks both have.
fn paired<'a>(a: (&str, &[&'a Row]), b: (&str, &[&'a Row]), findings: &mut Vec<Finding>) -> (Vec<Pair<'a>>, u64) {
    let (of_a, of_b) = (samples(a.1), samples(b.1));
    let mut pairs = Vec::new();
    let mut common = 0;
    for (task, ours) in &of_a {
        let Some(theirs) = of_b.get(task) else { continue };
        common += 1;
        pairs.extend(ours.iter().filter_map(|(number, a)| Some(Pair { a, b: theirs.get(number)? })));
    }
    for ((side, own), other) in [((a.0, &of_a), &of_b), ((b.0, &of_b), &of_a)] {
        let tasks: Vec<TaskName> =
            own.keys().filter(|task| !other.contains_key(*task)).map(|task| (*task).clone()).collect();
        if !tasks.is_empty() {
            findings.push(Finding::OneSided { side: side.to_owned(), tasks });
        }
        let lone = |(task, numbers): (&&TaskName, &BTreeMap<(u32, usize), &Row>)| -> Vec<String> {
            let Some(theirs) = other.get(*task) else { return Vec::new() };
            let lone = numbers.iter().filter(|(number, _)| !theirs.contains_key(*number));
            lone.map(|(_, row)| row.episode.clone()).collect()
        };
        let episodes: Vec<String> = own.iter().flat_map(lone).collect();
        if !episodes.is_empty() {
            findings.push(Finding::Unpaired { side: side.to_owned(), episodes });
        }
    }
    if common == 0 {
        findings.push(Finding::NoCommonTask);
    }
    (pairs, common)
}

/// What became of pairs of verdicts, and the exact test over their tasks.
pub(super) fn table(pairs: &[Pair<'_>]) -> (PairedTable, PairedTest) {
    let verdicts = pairs.iter().filter_map(|pair| Some((&pair.a.task, pair.a.passed()?, pair.b.passed()?)));
    tested(verdicts)
}

/// The table and the test of outcomes, each with its task.
pub(super) fn tested<'a>(outcomes: impl Iterator<Item = (&'a TaskName, bool, bool)>) -> (PairedTable, PairedTest) {
    let mut table = PairedTable::default();
    let mut tasks: BTreeMap<&TaskName, i64> = BTreeMap::new();
    for (task, a, b) in outcomes {
        table.add(a, b);
        *tasks.entry(task).or_default() += i64::from(a) - i64::from(b);
    }
    let differences: Vec<i64> = tasks.into_values().collect();
    (table, sign_flip(&differences))
}

fn pass(pairs: &[Pair<'_>], decided: &[Pair<'_>], options: &Options) -> Option<PassComparison> {
    let (table, test) = table(decided);
    let outcomes = |of: fn(&Pair<'_>) -> Option<bool>| -> Vec<(&TaskName, bool)> {
        decided.iter().map(|pair| (&pair.a.task, of(pair) == Some(true))).collect()
    };
    let (passed_a, passed_b) = (outcomes(|pair| pair.a.passed()), outcomes(|pair| pair.b.passed()));
    let (a, b) = (Rate::of(&passed_a, options)?, Rate::of(&passed_b, options)?);
    let parts = |outcomes: &[(&TaskName, bool)]| -> Vec<(f64, f64)> {
        outcomes.iter().map(|(_, passed)| (f64::from(u8::from(*passed)), 1.0)).collect()
    };
    let clusters = Clusters::of(decided.iter().map(|pair| &pair.a.task), options);
    // Each side has a verdict, or it was we who did not find out.
    let ran = |row: &Row| matches!(row.state, State::Verdict { .. } | State::Faulted { .. } | State::Unverified { .. });
    let bounded = Bounded::of(pairs.iter().filter(|pair| ran(pair.a) && ran(pair.b)), |row| row.passed().is_none());
    Some(PassComparison {
        difference: table.difference()?,
        newcombe: newcombe(&table, options.confidence)?,
        clustered: clusters.difference(&parts(&passed_a), &parts(&passed_b), options),
        test,
        odds_ratio: paired_odds_ratio(table.a_only, table.b_only),
        cohen_h: cohen_h(a.value, b.value),
        unknown: bounded.pairs - table.pairs(),
        bounds_a: bounded.of_a()?,
        bounds_b: bounded.of_b()?,
        bounds: bounded.difference(),
        table,
        a,
        b,
    })
}

/// Pairs of which some outcomes are taken for unknown, so that rates are known within bounds.
#[derive(Default)]
pub(super) struct Bounded {
    pairs: u64,
    passed_a: u64,
    passed_b: u64,
    pub(super) unknown_a: u64,
    pub(super) unknown_b: u64,
}

impl Bounded {
    /// Counts pairs; `unknown` says of which rows, none of them passed, the outcome is not known.
    pub(super) fn of<'p, 'r: 'p>(
        pairs: impl IntoIterator<Item = &'p Pair<'r>>,
        unknown: impl Fn(&Row) -> bool,
    ) -> Self {
        let mut bounded = Self::default();
        for pair in pairs {
            bounded.pairs += 1;
            bounded.passed_a += u64::from(pair.a.passed() == Some(true));
            bounded.passed_b += u64::from(pair.b.passed() == Some(true));
            bounded.unknown_a += u64::from(unknown(pair.a));
            bounded.unknown_b += u64::from(unknown(pair.b));
        }
        bounded
    }

    /// The rate of A, at least and at most; none without pairs.
    pub(super) fn of_a(&self) -> Option<Interval> {
        bounds(self.passed_a, self.pairs - self.unknown_a, self.unknown_a)
    }

    /// The rate of B likewise.
    pub(super) fn of_b(&self) -> Option<Interval> {
        bounds(self.passed_b, self.pairs - self.unknown_b, self.unknown_b)
    }

    /// The rate of A less that of B, at least and at most.
    pub(super) fn difference(&self) -> Interval {
        let [pairs, passed_a, passed_b, unknown_a, unknown_b] =
            [self.pairs, self.passed_a, self.passed_b, self.unknown_a, self.unknown_b].map(|count| count as f64);
        Interval { low: (passed_a - passed_b - unknown_b) / pairs, high: (passed_a + unknown_a - passed_b) / pairs }
    }
}

/// Both sides within the same dollars, with the scores there.
fn equal_dollars(decided: &[Pair<'_>], at: At, options: &Options) -> Option<EqualBudget> {
    let stand = |pair: &Pair<'_>| verdict_stands(pair.a, at) && verdict_stands(pair.b, at);
    Some(EqualBudget { score: score(decided, stand, options), ..equal_budget(decided, at)? })
}

/// Compares the scores of the pairs that count; none where a score looks like a fraction.
fn score(decided: &[Pair<'_>], counts: impl Fn(&Pair<'_>) -> bool, options: &Options) -> Option<ScoreComparison> {
    if decided.iter().any(|pair| like_fraction(pair.a) || like_fraction(pair.b)) {
        return None;
    }
    let scores: Vec<(&TaskName, Option<(f64, f64)>)> = decided
        .iter()
        .map(|pair| (&pair.a.task, pair.a.score().zip(pair.b.score()).filter(|_| counts(pair))))
        .collect();
    let one = |of: fn((f64, f64)) -> f64| -> Vec<(&TaskName, Option<f64>)> {
        scores.iter().map(|(task, both)| (*task, both.map(of))).collect()
    };
    let (a, b) = (Mean::of(&one(|both| both.0), options)?, Mean::of(&one(|both| both.1), options)?);
    let known: Vec<(&TaskName, f64)> =
        scores.iter().filter_map(|(task, both)| both.map(|(a, b)| (*task, a - b))).collect();
    let differences: Vec<f64> = known.iter().map(|(_, difference)| *difference).collect();
    let parts: Vec<_> = differences.iter().map(|difference| (*difference, 1.0)).collect();
    Some(ScoreComparison {
        difference: a.value - b.value,
        clustered: Clusters::of(known.iter().map(|(task, _)| *task), options).ratio(&parts, options),
        standardized: standardized_mean_difference(&differences),
        a,
        b,
    })
}

fn workflows(decided: &[Pair<'_>], options: &Options) -> Option<WorkflowComparison> {
    let counted_pairs: Vec<&Pair<'_>> =
        decided.iter().filter(|pair| pair.a.rounds_usable() && pair.b.rounds_usable()).collect();
    let of_a: Vec<&Row> = counted_pairs.iter().map(|pair| pair.a).collect();
    let of_b: Vec<&Row> = counted_pairs.iter().map(|pair| pair.b).collect();
    let (a, b) = (workflow(&of_a, options)?, workflow(&of_b, options)?);
    let clusters = Clusters::of(counted_pairs.iter().map(|pair| &pair.a.task), options);
    let full = |rows: &[&Row]| -> Vec<(f64, f64)> {
        rows.iter().map(|row| (f64::from(u8::from(row.rounds_hold())), 1.0)).collect()
    };
    let checks = |rows: &[&Row]| -> Vec<(f64, f64)> {
        rows.iter().map(|row| counted(&row.rounds)).map(|(hits, of)| (hits as f64, of as f64)).collect()
    };
    let by_checks = a.assertions.zip(b.assertions).map_or(0.0, |(a, b)| a.value - b.value);
    Some(WorkflowComparison {
        full: clusters.difference(&full(&of_a), &full(&of_b), options),
        assertions: clusters.difference(&checks(&of_a), &checks(&of_b), options),
        order_differs: (a.full.value - b.full.value) * by_checks < 0.0,
        a,
        b,
    })
}

fn reach(table: PairedTable, options: &Options) -> Reach {
    let (pairs, discordant) = (table.pairs(), table.discordant());
    let share = (discordant + 1) as f64 / (pairs + 2) as f64;
    Reach {
        pairs,
        discordant,
        decisive: smallest_decisive(options.level()),
        share,
        detectable: detectable_difference(pairs, share, &options.power()),
        needed: pairs_needed(options.margin, share, &options.power()),
    }
}
