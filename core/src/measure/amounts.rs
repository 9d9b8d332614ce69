//! What episodes used, what a success took, and how they ended.

use serde::{Deserialize, Serialize};

use super::row::{Row, State};
use crate::money::Money;
use crate::outcome::EndedBy;

/// Of one thing that episodes with a verdict used.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Amount<T> {
    /// Of all episodes of which it is known.
    pub total: T,
    /// Of how many it is not known; then nothing is said per episode or success.
    pub missing: u64,
    /// For one episode, on the average.
    pub per_episode: Option<T>,
    /// Of all episodes, for one success: the failures are part of its price. None without one.
    pub per_success: Option<T>,
    /// Of the successes alone, for one of them. None without one.
    pub of_success: Option<T>,
}

impl<T: Copy> Amount<T> {
    /// The total, if it is known of every episode.
    #[must_use]
    pub fn known(&self) -> Option<T> {
        (self.missing == 0).then_some(self.total)
    }
}

/// What episodes with a verdict used.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Amounts {
    /// Steps.
    pub steps: Amount<f64>,
    /// Actions.
    pub actions: Amount<f64>,
    /// Tokens of all kinds.
    pub tokens: Amount<f64>,
    /// Dollars, rounded up.
    pub dollars: Amount<Money>,
    /// Of those dollars, what no vendor has confirmed.
    pub unconfirmed: Money,
    /// Dollars that judging cost, as far as they are known.
    pub judge_dollars: Money,
    /// Seconds from the first observation to the last answer.
    pub seconds: Amount<f64>,
    /// Hours of a node.
    pub node_hours: Amount<f64>,
}

/// How the agent's part ended, and what became of steps; over episodes with a verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endings {
    /// The agent said that it was done.
    pub agent: u64,
    /// The step budget.
    pub steps: u64,
    /// The time budget.
    pub time: u64,
    /// A budget of dollars.
    pub budget: u64,
    /// The token budget.
    pub tokens: u64,
    /// The policy on steps without effect.
    pub stall: u64,
    /// It is not recorded.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unknown: u64,
    /// The agent said that it was done, and was not: it left too early.
    pub early: u64,
    /// Episodes that went on after an interruption.
    pub resumed: u64,
    /// Steps of failed episodes whose stalls were counted.
    pub failed_steps: u64,
    /// Of those, the ones without effect.
    pub failed_stalls: u64,
    /// Steps of passed episodes whose stalls were counted.
    pub passed_steps: u64,
    /// Of those, the ones without effect.
    pub passed_stalls: u64,
}

impl Amounts {
    pub(super) fn of(rows: &[&Row]) -> Self {
        let decided: Vec<&Row> = rows.iter().copied().filter(|row| row.passed().is_some()).collect();
        let plain = |get: &dyn Fn(&Row) -> Option<u64>, unit: f64| {
            amount(&decided, get, |total, by| total as f64 / by as f64 / unit)
        };
        Self {
            steps: plain(&|row| Some(u64::from(row.steps)), 1.0),
            actions: plain(&|row| Some(u64::from(row.actions)), 1.0),
            tokens: plain(&|row| row.tokens.map(|usage| usage.tokens()), 1.0),
            dollars: amount(
                &decided,
                |row| row.dollars.map(Money::nanos),
                |total, by| Money::from_nanos(u64::try_from(total.div_ceil(u128::from(by))).unwrap_or(u64::MAX)),
            ),
            unconfirmed: decided.iter().map(|row| row.unconfirmed).sum(),
            judge_dollars: decided.iter().filter_map(|row| row.judge_dollars).sum(),
            seconds: plain(&|row| row.time.map(|time| time.0), 1e3),
            node_hours: plain(&|row| row.node_time.map(|time| time.0), 3.6e6),
        }
    }
}

/// Sums one thing; `made` divides a sum by a count.
fn amount<T>(decided: &[&Row], get: impl Fn(&Row) -> Option<u64>, made: impl Fn(u128, u64) -> T) -> Amount<T> {
    let (mut total, mut of_passed, mut missing, mut passed) = (0_u128, 0_u128, 0_u64, 0_u64);
    for row in decided {
        let success = row.passed() == Some(true);
        passed += u64::from(success);
        match get(row) {
            Some(used) => {
                total += u128::from(used);
                of_passed += if success { u128::from(used) } else { 0 };
            }
            None => missing += 1,
        }
    }
    let per = |sum: u128, by: u64| (missing == 0 && by > 0).then(|| made(sum, by));
    Amount {
        missing,
        per_episode: per(total, decided.len() as u64),
        per_success: per(total, passed),
        of_success: per(of_passed, passed),
        total: made(total, 1),
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Endings {
    pub(super) fn of(rows: &[&Row]) -> Self {
        let mut endings = Self::default();
        for row in rows {
            let State::Verdict { passed, ended_by, .. } = row.state else { continue };
            let count = match ended_by {
                EndedBy::Agent => &mut endings.agent,
                EndedBy::Steps => &mut endings.steps,
                EndedBy::Time => &mut endings.time,
                EndedBy::Budget => &mut endings.budget,
                EndedBy::Tokens => &mut endings.tokens,
                EndedBy::Stall => &mut endings.stall,
                EndedBy::Unknown => &mut endings.unknown,
            };
            *count += 1;
            endings.early += u64::from(ended_by == EndedBy::Agent && !passed);
            endings.resumed += u64::from(row.resumed);
            if let Some(stalls) = row.stalls {
                let (steps, without_effect) = if passed {
                    (&mut endings.passed_steps, &mut endings.passed_stalls)
                } else {
                    (&mut endings.failed_steps, &mut endings.failed_stalls)
                };
                *steps += u64::from(row.steps);
                *without_effect += u64::from(stalls);
            }
        }
        endings
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{failed, faulted, passed, verdict};
    use super::*;

    #[test]
    fn a_success_by_hand() {
        // Two passes of 10 steps and a dollar, one failure of 30 steps and 2.50 dollars, and a
        // fault that counts for nothing: 50 steps and 4.50 dollars for 2 successes.
        let rows = [
            passed("a", "e/1"),
            passed("a", "e/2"),
            Row { steps: 30, dollars: Some("2.5".parse().unwrap()), ..failed("a", "e/3") },
            Row { steps: 99, ..faulted("a", "e/4") },
        ];
        let found = Amounts::of(&rows.iter().collect::<Vec<_>>());
        assert_eq!(
            found.steps,
            Amount {
                total: 50.0,
                missing: 0,
                per_episode: Some(50.0 / 3.0),
                per_success: Some(25.0),
                of_success: Some(10.0)
            }
        );
        assert_eq!(found.dollars.per_success, Some("2.25".parse().unwrap()));
        assert_eq!(found.dollars.of_success, Some(Money::from_dollars(1)));
        // Tokens are not known of any: nothing is said of them.
        assert_eq!((found.tokens.missing, found.tokens.per_episode), (3, None));
        assert_eq!(found.seconds.per_success, Some(90.0));
    }

    #[test]
    fn without_a_success_there_is_no_price_of_one() {
        let rows = [failed("a", "e/1")];
        let found = Amounts::of(&rows.iter().collect::<Vec<_>>());
        assert_eq!((found.dollars.per_success, found.dollars.of_success), (None, None));
        assert_eq!(found.dollars.per_episode, Some(Money::from_dollars(1)));
        // One of unknown price, and nothing is said for any.
        let rows = [passed("a", "e/1"), Row { dollars: None, ..passed("a", "e/2") }];
        let found = Amounts::of(&rows.iter().collect::<Vec<_>>());
        assert_eq!((found.dollars.total, found.dollars.per_success), (Money::from_dollars(1), None));
    }

    #[test]
    fn endings_by_hand() {
        // Two done and one of them wrongly, one out of steps with 3 of 20 without effect.
        let rows = [
            passed("a", "e/1"),
            failed("a", "e/2"),
            Row { steps: 20, stalls: Some(3), resumed: true, ..verdict("a", "e/3", false, 0.0, EndedBy::Steps) },
            Row { stalls: None, ..verdict("a", "e/4", false, 0.0, EndedBy::Stall) },
        ];
        let found = Endings::of(&rows.iter().collect::<Vec<_>>());
        assert_eq!((found.agent, found.steps, found.stall, found.early, found.resumed), (2, 1, 1, 1, 1));
        assert_eq!((found.failed_steps, found.failed_stalls), (30, 5));
        assert_eq!((found.passed_steps, found.passed_stalls), (10, 2));
    }
}
