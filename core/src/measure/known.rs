//! What recorded trajectories had reached within a smaller budget: only where it can be known.
//!
//! A verifier looks at the end. Of an episode that went on beyond a budget nobody looked when it
//! passed that point, so that it is unknown whether it would have passed there: unless a round
//! had failed by then, which nothing later mends, or its state was found out there and then. And
//! what a budget cut off is unknown beyond that budget. Unknown is a number of its own, and the
//! rates are given as what they are at least and at most.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::clean::like_fraction;
use super::compare::{Pair, ScoreComparison, tested};
use super::row::{Row, State};
use crate::money::Money;
use crate::outcome::EndedBy;
use crate::stats::{Interval, PairedTable, PairedTest};

/// A budget of one episode, other caps being as they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "by", content = "at")]
pub enum At {
    /// Dollars.
    Dollars(Money),
    /// Steps.
    Steps(u32),
}

/// Whether an episode would have passed within a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Known {
    /// It would have.
    Passed,
    /// It would not.
    Failed,
    /// The record does not say.
    Unknown,
}

impl Known {
    /// As a verdict; none if unknown.
    #[must_use]
    pub const fn verdict(self) -> Option<bool> {
        match self {
            Self::Passed => Some(true),
            Self::Failed => Some(false),
            Self::Unknown => None,
        }
    }

    const fn of(passed: bool) -> Self {
        if passed { Self::Passed } else { Self::Failed }
    }
}

/// What is known of an episode within a budget.
#[must_use]
pub fn known_at(row: &Row, at: At) -> Known {
    let Some(passed) = row.passed() else { return Known::Unknown };
    if verdict_stands(row, at) {
        return Known::of(passed);
    }
    match used(row, at) {
        Some(used) if used > amount(at) => {}
        // It had ended by then, cut off by a smaller budget of the same kind, or nobody knows.
        _ => return Known::Unknown,
    }
    if !passed && round_failed_by(row, at) {
        return Known::Failed;
    }
    // The state at the last step that the budget allows, if somebody looked.
    let last = course(row).iter().rev().find(|point| within(point.step, point.dollars, at));
    last.and_then(|point| point.passed).map_or(Known::Unknown, Known::of)
}

/// Whether the episode would have gone as it did: it used no more than the budget, and was not
/// cut off by one that was smaller.
pub(super) fn verdict_stands(row: &Row, at: At) -> bool {
    let State::Verdict { ended_by, .. } = row.state else { return false };
    let Some(used) = used(row, at) else { return false };
    let cap = match (at, ended_by) {
        (At::Dollars(_), EndedBy::Budget) => Some(row.caps.and_then(|caps| caps.max_cost).map_or(used, Money::nanos)),
        (At::Steps(_), EndedBy::Steps) => Some(row.caps.map_or(used, |caps| u64::from(caps.max_steps))),
        // It may have been this budget that ended it.
        (_, EndedBy::Unknown) => Some(used),
        _ => None,
    };
    used <= amount(at) && cap.is_none_or(|cap| amount(at) <= cap.max(used))
}

/// What the trajectory used of the thing that is capped.
fn used(row: &Row, at: At) -> Option<u64> {
    match at {
        At::Steps(_) => Some(u64::from(row.steps)),
        At::Dollars(_) => course(row).last().and_then(|point| point.dollars).or(row.dollars).map(Money::nanos),
    }
}

fn amount(at: At) -> u64 {
    match at {
        At::Dollars(dollars) => dollars.nanos(),
        At::Steps(steps) => u64::from(steps),
    }
}

/// The episode's course, if it makes sense.
fn course(row: &Row) -> &[super::row::Progress] {
    if row.progress_rises() { &row.progress } else { &[] }
}

fn within(step: u32, dollars: Option<Money>, at: At) -> bool {
    match at {
        At::Steps(steps) => step <= steps,
        At::Dollars(cap) => dollars.is_some_and(|dollars| dollars <= cap),
    }
}

/// Whether a round had failed within the budget.
fn round_failed_by(row: &Row, at: At) -> bool {
    row.rounds.iter().filter(|round| !round.passed()).filter_map(|round| round.last_step).any(|last| {
        let reached = course(row).iter().find(|point| point.step >= last);
        within(last, reached.and_then(|point| point.dollars), at)
    })
}

/// What is known of episodes within one budget.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// The budget of each.
    pub at: At,
    /// How many passed within it.
    pub passed: u64,
    /// How many failed within it.
    pub failed: u64,
    /// Of how many it is not known.
    pub unknown: u64,
    /// The pass rate if all of those failed.
    pub low: f64,
    /// The pass rate if all of those passed.
    pub high: f64,
    /// Of how many the score is known: those whose verdicts stand within the budget.
    pub scored: u64,
    /// The mean score if all others had 0, and if all had 100. None where a score looks like a
    /// fraction.
    pub score: Option<Interval>,
}

/// A point for each budget; none without episodes that have a verdict.
pub type Curve = Vec<CurvePoint>;

pub(super) fn curve(rows: &[&Row], budgets: &[At]) -> Curve {
    budgets.iter().filter_map(|at| point(rows, *at)).collect()
}

pub(super) fn point(rows: &[&Row], at: At) -> Option<CurvePoint> {
    let decided: Vec<&Row> = rows.iter().copied().filter(|row| row.passed().is_some()).collect();
    let (mut passed, mut failed, mut unknown) = (0_u64, 0_u64, 0_u64);
    for row in &decided {
        match known_at(row, at) {
            Known::Passed => passed += 1,
            Known::Failed => failed += 1,
            Known::Unknown => unknown += 1,
        }
    }
    let scores: Vec<f64> = decided.iter().filter(|row| verdict_stands(row, at)).filter_map(|row| row.score()).collect();
    let all = decided.len() as f64;
    let points: f64 = scores.iter().sum();
    let unscored = all - scores.len() as f64;
    let fractions = decided.iter().any(|row| like_fraction(row));
    (!decided.is_empty()).then(|| CurvePoint {
        at,
        passed,
        failed,
        unknown,
        low: passed as f64 / all,
        high: (passed + unknown) as f64 / all,
        scored: scores.len() as u64,
        score: (!fractions).then(|| Interval { low: points / all, high: (points + 100.0 * unscored) / all }),
    })
}

/// Two sides within the same budget.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EqualBudget {
    /// The episodes of A.
    pub a: CurvePoint,
    /// Those of B.
    pub b: CurvePoint,
    /// The difference of pass rates, at least and at most.
    pub difference: Interval,
    /// The pairs of which both are known: those of short episodes rather than of long ones.
    pub table: PairedTable,
    /// The exact test over them.
    pub test: PairedTest,
    /// The scores of the pairs whose verdicts both stand within the budget. At equal dollars
    /// alone: at each point of a curve it would be resampled anew.
    pub score: Option<ScoreComparison>,
}

pub(super) fn equal_budget(pairs: &[Pair<'_>], at: At) -> Option<EqualBudget> {
    let of_a: Vec<&Row> = pairs.iter().map(|pair| pair.a).collect();
    let of_b: Vec<&Row> = pairs.iter().map(|pair| pair.b).collect();
    let (a, b) = (point(&of_a, at)?, point(&of_b, at)?);
    let (table, test) = tested(
        pairs
            .iter()
            .filter_map(|pair| Some((&pair.a.task, known_at(pair.a, at).verdict()?, known_at(pair.b, at).verdict()?))),
    );
    Some(EqualBudget {
        difference: Interval { low: a.low - b.high, high: a.high - b.low },
        a,
        b,
        table,
        test,
        score: None,
    })
}

/// How many points a curve has that nobody chose.
const POINTS: usize = 20;

/// Budgets that fit: what the episodes used, at evenly spaced ranks.
pub(super) fn grid(rows: &[&Row], unit: At) -> Vec<At> {
    let amounts: BTreeSet<u64> =
        rows.iter().filter(|row| row.passed().is_some()).filter_map(|row| used(row, unit)).collect();
    let amounts: Vec<u64> = amounts.into_iter().collect();
    let Some(last) = amounts.len().checked_sub(1) else { return Vec::new() };
    let ranks: BTreeSet<usize> = (0..POINTS).map(|index| index * last / (POINTS - 1)).collect();
    let made = |amount: u64| match unit {
        At::Dollars(_) => At::Dollars(Money::from_nanos(amount)),
        At::Steps(_) => At::Steps(u32::try_from(amount).unwrap_or(u32::MAX)),
    };
    ranks.into_iter().map(|rank| made(amounts[rank])).collect()
}

#[cfg(test)]
mod tests {
    use super::super::row::Progress;
    use super::super::testing::{failed, faulted, passed, round, verdict, with_rounds};
    use super::super::{Aspect, RoundKind};
    use super::*;
    use crate::budget::EpisodeBudget;
    use crate::time::Millis;

    fn dollars(amount: u64) -> At {
        At::Dollars(Money::from_dollars(amount))
    }

    /// A course of `steps` steps at a dollar each.
    fn course(steps: u32) -> Vec<Progress> {
        let at = |step: u32| Progress { step, dollars: Some(Money::from_dollars(u64::from(step))), passed: None };
        (1..=steps).map(at).collect()
    }

    #[test]
    fn a_finished_episode_stands_at_its_end_and_beyond_and_says_nothing_before() {
        // Ten steps, ten dollars, done by itself, whatever came of it.
        for (mut row, known) in [(passed("a", "e/1"), Known::Passed), (failed("a", "e/1"), Known::Failed)] {
            row.dollars = Some(Money::from_dollars(10));
            for (at, expected) in [
                (At::Steps(9), Known::Unknown),
                (At::Steps(10), known),
                (At::Steps(500), known),
                (dollars(9), Known::Unknown),
                (dollars(10), known),
                (dollars(90), known),
            ] {
                assert_eq!(known_at(&row, at), expected, "{at:?}");
            }
        }
        assert_eq!(known_at(&faulted("a", "e/1"), At::Steps(500)), Known::Unknown);
    }

    #[test]
    fn what_a_budget_cut_off_is_unknown_beyond_it() {
        // Cut off at 10 steps: known for a budget of 10 steps and of any dollars from 10 on.
        let cut = Row { dollars: Some(Money::from_dollars(10)), ..verdict("a", "e/1", false, 0.0, EndedBy::Steps) };
        assert_eq!(known_at(&cut, At::Steps(10)), Known::Failed);
        assert_eq!(known_at(&cut, At::Steps(11)), Known::Unknown);
        assert_eq!(known_at(&cut, dollars(10)), Known::Failed);
        assert_eq!(known_at(&cut, dollars(11)), Known::Failed);
        // Cut off at 4 dollars by a cap of 5: the next call fitted into none of 4 to 5.
        let caps = EpisodeBudget { max_cost: Some(Money::from_dollars(5)), ..EpisodeBudget::of(500, Millis(1)) };
        let poor = Row {
            caps: Some(caps),
            dollars: Some(Money::from_dollars(4)),
            ..verdict("a", "e/1", false, 0.0, EndedBy::Budget)
        };
        let expected = [Known::Unknown, Known::Failed, Known::Failed, Known::Unknown];
        assert_eq!([3, 4, 5, 6].map(|at| known_at(&poor, dollars(at))), expected);
        assert_eq!(known_at(&poor, At::Steps(400)), Known::Failed);
        // Without the cap, nothing is said beyond what was spent.
        let uncapped = Row { caps: None, ..poor };
        assert_eq!([4, 5].map(|at| known_at(&uncapped, dollars(at))), [Known::Failed, Known::Unknown]);
    }

    #[test]
    fn a_round_that_failed_stays_failed_and_one_that_held_says_nothing() {
        let mut row = with_rounds(
            "a",
            "e/1",
            vec![
                round(RoundKind::Open, &[(Aspect::Visible, true)]),
                round(RoundKind::Submit, &[(Aspect::Business, false)]),
                round(RoundKind::Return, &[(Aspect::Retention, true)]),
            ],
        );
        for (round, last) in row.rounds.iter_mut().zip([3, 6, 10]) {
            round.last_step = Some(last);
        }
        row.progress = course(10);
        row.dollars = Some(Money::from_dollars(10));
        let expected = [Known::Unknown, Known::Failed, Known::Failed];
        assert_eq!([5, 6, 9].map(|at| known_at(&row, At::Steps(at))), expected);
        assert_eq!([5, 6, 9].map(|at| known_at(&row, dollars(at))), expected);
        // Without its course, dollars say nothing before the end; nor does a course that falls.
        row.progress[4].dollars = Some(Money::ZERO);
        assert_eq!([9, 10].map(|at| known_at(&row, dollars(at))), [Known::Unknown, Known::Failed]);
    }

    #[test]
    fn a_state_that_was_looked_at_holds_at_its_step_alone() {
        let mut row = failed("a", "e/1");
        row.progress = course(10);
        row.progress[4].passed = Some(true);
        let expected = [Known::Unknown, Known::Passed, Known::Unknown, Known::Failed];
        assert_eq!([4, 5, 6, 10].map(|at| known_at(&row, At::Steps(at))), expected);
        assert_eq!(known_at(&row, dollars(5)), Known::Passed);
    }

    #[test]
    fn an_end_that_is_not_recorded_may_have_been_the_budget() {
        let row = Row { steps: 6, ..verdict("a", "e/1", false, 0.0, EndedBy::Unknown) };
        let expected = [Known::Unknown, Known::Failed, Known::Unknown];
        assert_eq!([5, 6, 7].map(|at| known_at(&row, At::Steps(at))), expected);
    }

    #[test]
    fn a_curve_by_hand() {
        // Passed after 2 steps, failed after 4, cut off at 6: at 3 steps 1 of 3 passed and 2 are
        // unknown; at 6 one passed and two failed; at 8 the third is unknown again.
        let rows = [
            Row { steps: 2, ..passed("a", "e/1") },
            Row { steps: 4, ..failed("a", "e/2") },
            Row { steps: 6, ..verdict("a", "e/3", false, 0.0, EndedBy::Steps) },
            faulted("a", "e/4"),
        ];
        let rows: Vec<&Row> = rows.iter().collect();
        let found = curve(&rows, &[At::Steps(3), At::Steps(6), At::Steps(8)]);
        let counts: Vec<_> = found.iter().map(|point| (point.passed, point.failed, point.unknown)).collect();
        assert_eq!(counts, [(1, 0, 2), (1, 2, 0), (1, 1, 1)]);
        assert_eq!((found[0].low, found[0].high), (1.0 / 3.0, 1.0));
        // Scores: 100, and two of 0 to 100; 100, 0 and 0; 100, 0, and one of 0 to 100.
        let scores: Vec<_> = found.iter().map(|point| (point.scored, point.score.unwrap())).collect();
        let between = |low: f64, high: f64| Interval { low: low / 3.0, high: high / 3.0 };
        assert_eq!(scores, [(1, between(100.0, 300.0)), (3, between(100.0, 100.0)), (2, between(100.0, 200.0))]);
        assert_eq!(grid(&rows, At::Steps(0)), [2, 4, 6].map(At::Steps));
        assert!(curve(&[], &[At::Steps(1)]).is_empty() && grid(&[], At::Steps(0)).is_empty());
    }
}
