//! Episodes that a budget stopped, seen in three ways: as failed, as unknown, and left out.

use serde::{Deserialize, Serialize};

use super::compare::{Bounded, Pair, table};
use super::options::Options;
use super::row::Row;
use crate::outcome::EndedBy;
use crate::stats::{Interval, PairedTable, PairedTest, newcombe};

/// Pairs, counted in one of the ways.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Treatment {
    /// What became of the pairs that are counted.
    pub table: PairedTable,
    /// The pass rate of A; none without pairs, as what follows.
    pub a: Option<f64>,
    /// The pass rate of B.
    pub b: Option<f64>,
    /// Newcombe's interval of their difference.
    pub interval: Option<Interval>,
    /// The exact test.
    pub test: PairedTest,
}

/// The three ways, side by side. An episode is stopped if a budget of steps, time, dollars or
/// tokens ended it and it had not passed; one that had passed by then is a pass in each of them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stopped {
    /// How many episodes of A were.
    pub a: u64,
    /// How many of B.
    pub b: u64,
    /// Stopped is failed: the task was not done within the budget. What every other number of a
    /// comparison goes by.
    pub as_failed: Treatment,
    /// Pairs with a stopped episode do not count: what is left is easier, and says nothing of
    /// long tasks.
    pub left_out: Treatment,
    /// Stopped is unknown: the pass rate of A, at least and at most.
    pub censored_a: Interval,
    /// The pass rate of B, at least and at most.
    pub censored_b: Interval,
    /// Their difference, at least and at most.
    pub censored_difference: Interval,
}

/// Whether a budget ended it before it had passed.
pub(super) fn stopped(row: &Row) -> bool {
    let by_budget =
        matches!(row.state.ended_by(), Some(EndedBy::Steps | EndedBy::Time | EndedBy::Budget | EndedBy::Tokens));
    by_budget && row.passed() == Some(false)
}

/// The three ways over pairs of verdicts; none without pairs.
pub(super) fn three_ways(pairs: &[Pair<'_>], options: &Options) -> Option<Stopped> {
    let censored = Bounded::of(pairs, stopped);
    let finished: Vec<Pair<'_>> = pairs.iter().copied().filter(|pair| !stopped(pair.a) && !stopped(pair.b)).collect();
    Some(Stopped {
        a: censored.unknown_a,
        b: censored.unknown_b,
        as_failed: Treatment::of(pairs, options),
        left_out: Treatment::of(&finished, options),
        censored_a: censored.of_a()?,
        censored_b: censored.of_b()?,
        censored_difference: censored.difference(),
    })
}

impl Treatment {
    fn of(pairs: &[Pair<'_>], options: &Options) -> Self {
        let (table, test) = table(pairs);
        let rate = |passed: u64| (table.pairs() > 0).then(|| passed as f64 / table.pairs() as f64);
        Self {
            a: rate(table.both + table.a_only),
            b: rate(table.both + table.b_only),
            interval: newcombe(&table, options.confidence),
            table,
            test,
        }
    }
}
