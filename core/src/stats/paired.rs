//! Tests and intervals for pairs: the same task, done by two agents.

use serde::{Deserialize, Serialize};

use super::interval::{Interval, wilson};

/// What became of pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairedTable {
    /// Both passed.
    pub both: u64,
    /// A alone passed.
    pub a_only: u64,
    /// B alone passed.
    pub b_only: u64,
    /// Neither passed.
    pub neither: u64,
}

impl PairedTable {
    /// Counts a pair.
    pub const fn add(&mut self, a: bool, b: bool) {
        match (a, b) {
            (true, true) => self.both += 1,
            (true, false) => self.a_only += 1,
            (false, true) => self.b_only += 1,
            (false, false) => self.neither += 1,
        }
    }

    /// How many pairs there are.
    #[must_use]
    pub const fn pairs(&self) -> u64 {
        self.both + self.a_only + self.b_only + self.neither
    }

    /// In how many of them one side alone passed.
    #[must_use]
    pub const fn discordant(&self) -> u64 {
        self.a_only + self.b_only
    }

    /// The pass rate of A less that of B; none without pairs.
    #[must_use]
    pub fn difference(&self) -> Option<f64> {
        (self.pairs() > 0).then(|| (self.a_only as f64 - self.b_only as f64) / self.pairs() as f64)
    }
}

/// The p values of a two-sided exact test.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairedTest {
    /// The chance of a difference at least this large if the sides were alike.
    pub p: f64,
    /// The same with half the chance of exactly this one: less cautious, and closer to the level
    /// that is asked for (Fagerland, Lydersen and Laake 2013).
    pub mid_p: f64,
}

/// McNemar's exact test (1947): were A and B alike, each pair in which one side alone passed
/// would be a fair coin.
#[must_use]
pub fn mcnemar(a_only: u64, b_only: u64) -> PairedTest {
    let (tail, point) = half_tail(a_only + b_only, a_only.min(b_only));
    if a_only == b_only {
        return PairedTest { p: 1.0, mid_p: 1.0 - point / 2.0 };
    }
    let p = (2.0 * tail).min(1.0);
    PairedTest { p, mid_p: (p - point).max(0.0) }
}

/// The same test for tasks with several pairs each (Fisher's randomization test): were A and B
/// alike, the sign of each task's difference would be a fair coin. `differences` holds for each
/// task how many more of its pairs A passed than B; with one pair a task it is McNemar's.
///
/// Exact: the distribution of the sum over all signs, not a sample of it.
#[must_use]
pub fn sign_flip(differences: &[i64]) -> PairedTest {
    let sizes: Vec<usize> =
        differences.iter().map(|difference| difference.unsigned_abs() as usize).filter(|size| *size > 0).collect();
    if sizes.iter().all(|size| *size == 1) {
        let ahead = differences.iter().filter(|difference| **difference > 0).count() as u64;
        return mcnemar(ahead, sizes.len() as u64 - ahead);
    }
    // chances[s + total] is the chance that the sum of the tasks so far is s.
    let total: usize = sizes.iter().sum();
    let mut chances = vec![0.0_f64; 2 * total + 1];
    chances[total] = 1.0;
    let mut reach = 0;
    for size in sizes {
        let mut next = vec![0.0_f64; chances.len()];
        for place in total - reach..=total + reach {
            let half = chances[place] / 2.0;
            next[place - size] += half;
            next[place + size] += half;
        }
        chances = next;
        reach += size;
    }
    let observed = differences.iter().sum::<i64>().unsigned_abs() as usize;
    let (mut beyond, mut at) = (0.0, 0.0);
    for (place, chance) in chances.iter().enumerate() {
        match place.abs_diff(total) {
            distance if distance > observed => beyond += chance,
            distance if distance == observed => at += chance,
            _ => {}
        }
    }
    let p: f64 = beyond + at;
    PairedTest { p: p.min(1.0), mid_p: beyond + at / 2.0 }
}

/// For a fair coin thrown `n` times: the chance of at most `k` heads, and of exactly `k`, for
/// `k` no more than half of `n`.
///
/// Only products and sums of doubles, whose result is the same on every machine; the halvings
/// are spread so that nothing overflows on the way.
fn half_tail(n: u64, k: u64) -> (f64, f64) {
    let mut point = 1.0_f64;
    let mut halvings = n;
    for taken in 1..=k {
        point *= (n - k + taken) as f64 / taken as f64;
        while point > 1.0 && halvings > 0 {
            point /= 2.0;
            halvings -= 1;
        }
    }
    while halvings > 0 && point > 0.0 {
        point /= 2.0;
        halvings -= 1;
    }
    // Each term from the one after it: C(n, j-1) / C(n, j) = j / (n - j + 1).
    let mut term = point;
    let mut tail = point;
    for j in (1..=k).rev() {
        term *= j as f64 / (n - j + 1) as f64;
        tail += term;
    }
    (tail, point)
}

/// The fewest pairs in which one side alone passed that can make the exact test decide at this
/// level: all of them on one side give `p = 2^(1-n)`.
#[must_use]
pub fn smallest_decisive(level: f64) -> u64 {
    (1..1_024).find(|n| mcnemar(*n, 0).p <= level).unwrap_or(u64::MAX)
}

/// Newcombe's interval of the difference of two paired rates (1998, method 10): Wilson's
/// intervals of both, joined by their correlation. None without pairs.
#[must_use]
pub fn newcombe(table: &PairedTable, confidence: f64) -> Option<Interval> {
    let n = table.pairs();
    let (passed_a, passed_b) = (table.both + table.a_only, table.both + table.b_only);
    let (a, b) = (wilson(passed_a, n, confidence)?, wilson(passed_b, n, confidence)?);
    let (rate_a, rate_b) = (passed_a as f64 / n as f64, passed_b as f64 / n as f64);
    let correlation = correlation(table);
    let joined = |one: f64, other: f64| (one * one - 2.0 * correlation * one * other + other * other).max(0.0).sqrt();
    let difference = table.difference()?;
    Some(Interval {
        low: (difference - joined(rate_a - a.low, b.high - rate_b)).max(-1.0),
        high: (difference + joined(a.high - rate_a, rate_b - b.low)).min(1.0),
    })
}

/// The correlation of the two sides, moved towards 0 by half a pair; 0 where a side is constant.
fn correlation(table: &PairedTable) -> f64 {
    let [both, a_only, b_only, neither] =
        [table.both, table.a_only, table.b_only, table.neither].map(|count| count as f64);
    let margins = (both + a_only) * (b_only + neither) * (both + b_only) * (a_only + neither);
    if margins <= 0.0 {
        return 0.0;
    }
    let cross = both * neither - a_only * b_only;
    let corrected = if cross > 0.0 { (cross - table.pairs() as f64 / 2.0).max(0.0) } else { cross };
    corrected / margins.sqrt()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn mcnemar_by_hand() {
        // 1 against 7: 2 * (C(8,0) + C(8,1)) / 2^8 = 2 * 9 / 256 = 0.0703125; the chance of
        // exactly one head is 8/256, so that mid-p is 18/256 - 8/256 = 10/256.
        assert_eq!(mcnemar(1, 7), PairedTest { p: 18.0 / 256.0, mid_p: 10.0 / 256.0 });
        // 2 against 2: nothing is less far apart; mid-p 1 - C(4,2)/16/2 = 1 - 3/16.
        assert_eq!(mcnemar(2, 2), PairedTest { p: 1.0, mid_p: 13.0 / 16.0 });
        assert_eq!(mcnemar(0, 0), PairedTest { p: 1.0, mid_p: 0.5 });
        // 5 on one side: 2/32, never below 0.05; 6: 2/64.
        assert_eq!(mcnemar(0, 5).p, 2.0 / 32.0);
        assert_eq!(mcnemar(6, 0).p, 2.0 / 64.0);
        assert_eq!(smallest_decisive(0.05), 6);
        assert_eq!(smallest_decisive(0.01), 8);
    }

    #[test]
    fn large_tables_neither_overflow_nor_vanish() {
        let even = mcnemar(50_000, 50_100);
        assert!((0.7..0.8).contains(&even.p), "{even:?}");
        assert!(mcnemar(10, 3_000).p < 1e-300);
    }

    #[test]
    fn sign_flips_by_hand() {
        // Differences 2 and 1: the sums 3, 1, -1, -3 each with 1/4; as far as 3: 2/4; mid-p 1/4.
        assert_eq!(sign_flip(&[2, 1]), PairedTest { p: 0.5, mid_p: 0.25 });
        // 2 and -1: as far as 1 is everything; mid-p 1/2 + 1/4.
        assert_eq!(sign_flip(&[2, -1]), PairedTest { p: 1.0, mid_p: 0.75 });
        assert_eq!(sign_flip(&[0, 0]), mcnemar(0, 0));
        assert_eq!(sign_flip(&[]), mcnemar(0, 0));
    }

    #[test]
    fn newcombe_by_hand() {
        // Newcombe's own table 36, 12, 2, 0: 0.96 and 0.76, difference 0.2. Wilson's intervals
        // [0.8654, 0.9890] and [0.6259, 0.8570]; 36 * 0 - 12 * 2 = -24 over
        // sqrt(48 * 2 * 38 * 12) = 209.23 is -0.1147.
        // Low: 0.2 - sqrt(0.0946^2 + 2 * 0.1147 * 0.0946 * 0.0970 + 0.0970^2) = 0.2 - 0.1431;
        // high: 0.2 + sqrt(0.0290^2 + 2 * 0.1147 * 0.0290 * 0.1341 + 0.1341^2) = 0.2 + 0.1404.
        let table = PairedTable { both: 36, a_only: 12, b_only: 2, neither: 0 };
        let found = newcombe(&table, 0.95).unwrap();
        assert!((found.low - 0.0569).abs() < 1e-4 && (found.high - 0.3404).abs() < 1e-4, "{found:?}");
        assert_eq!(newcombe(&PairedTable::default(), 0.95), None);
    }

    proptest! {
        #[test]
        fn sides_can_be_exchanged(a in 0_u64..400, b in 0_u64..400) {
            prop_assert_eq!(mcnemar(a, b), mcnemar(b, a));
            let test = mcnemar(a, b);
            prop_assert!(0.0 <= test.mid_p && test.mid_p <= test.p && test.p <= 1.0, "{test:?}");
        }

        #[test]
        fn one_pair_a_task_is_mcnemar(signs in prop::collection::vec(-1_i64..=1, 0..60)) {
            // Through the distribution: a pair of tasks that cancel out adds sizes above 1.
            let (a, b) = (signs.iter().filter(|s| **s > 0).count(), signs.iter().filter(|s| **s < 0).count());
            prop_assert_eq!(sign_flip(&signs), mcnemar(a as u64, b as u64));
            let doubled: Vec<i64> = signs.iter().map(|sign| sign * 2).collect();
            let (found, expected) = (sign_flip(&doubled), mcnemar(a as u64, b as u64));
            prop_assert!((found.p - expected.p).abs() < 1e-12 && (found.mid_p - expected.mid_p).abs() < 1e-12);
        }

        #[test]
        fn an_interval_of_the_difference_holds_it(
            both in 0_u64..60,
            a_only in 0_u64..60,
            b_only in 0_u64..60,
            neither in 0_u64..60,
        ) {
            let table = PairedTable { both, a_only, b_only, neither };
            if let (Some(found), Some(difference)) = (newcombe(&table, 0.95), table.difference()) {
                prop_assert!(found.contains(difference) && -1.0 <= found.low && found.high <= 1.0, "{found:?}");
                let turned = newcombe(&PairedTable { a_only: b_only, b_only: a_only, ..table }, 0.95).unwrap();
                prop_assert!((turned.low + found.high).abs() < 1e-12 && (turned.high + found.low).abs() < 1e-12);
            }
        }
    }
}
