//! Intervals of rates: Wilson's, and the bounds that unknown outcomes leave.

use serde::{Deserialize, Serialize};

use super::normal::normal_quantile;

/// From `low` to `high`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Interval {
    /// Whether a value lies in it.
    #[must_use]
    pub fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// Whether all of it lies closer to 0 than `margin`.
    #[must_use]
    pub fn within(&self, margin: f64) -> bool {
        -margin < self.low && self.high < margin
    }
}

/// Wilson's score interval (1927) of a rate of `hits` in `of`; none where `of` is 0.
///
/// Unlike the textbook interval it stays within 0 and 1 and has a width when nothing, or
/// everything, succeeded.
#[must_use]
pub fn wilson(hits: u64, of: u64, confidence: f64) -> Option<Interval> {
    if of == 0 || hits > of {
        return None;
    }
    let z = normal_quantile(0.5 + confidence / 2.0);
    let (n, rate) = (of as f64, hits as f64 / of as f64);
    let scale = 1.0 + z * z / n;
    let centre = (rate + z * z / (2.0 * n)) / scale;
    let half = z / scale * (rate * (1.0 - rate) / n + z * z / (4.0 * n * n)).sqrt();
    // What rounding leaves beside the ends that are exact.
    let low = if hits == 0 { 0.0 } else { (centre - half).clamp(0.0, rate) };
    let high = if hits == of { 1.0 } else { (centre + half).clamp(rate, 1.0) };
    Some(Interval { low, high })
}

/// What a rate of `hits` in `of` would be if `unknown` more had all failed, and if they had all
/// passed; none where there is nothing at all.
#[must_use]
pub fn bounds(hits: u64, of: u64, unknown: u64) -> Option<Interval> {
    let all = of.checked_add(unknown).filter(|all| *all > 0 && hits <= of)? as f64;
    Some(Interval { low: hits as f64 / all, high: (hits + unknown) as f64 / all })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn wilson_by_hand() {
        // 8 of 10, z = 1.959964, z^2 = 3.841459: scale 1.3841459;
        // centre (0.8 + 0.19207295) / 1.3841459 = 0.7167402;
        // half 1.959964 / 1.3841459 * sqrt(0.016 + 0.0096036) = 1.4160097 * 0.1600114 = 0.2265777.
        let found = wilson(8, 10, 0.95).unwrap();
        assert!((found.low - 0.490_162_5).abs() < 1e-6, "{found:?}");
        assert!((found.high - 0.943_317_9).abs() < 1e-6, "{found:?}");
        // Nothing of 10: 0 to z^2 / (10 + z^2) = 3.841459 / 13.841459 = 0.2775328.
        let none = wilson(0, 10, 0.95).unwrap();
        assert_eq!(none.low, 0.0);
        assert!((none.high - 0.277_532_8).abs() < 1e-6);
        assert_eq!(wilson(0, 0, 0.95), None);
        assert_eq!(wilson(2, 1, 0.95), None);
    }

    #[test]
    fn bounds_by_hand() {
        // 3 of 8 passed, 2 faulted: 3/10 if those failed, 5/10 if they passed.
        assert_eq!(bounds(3, 8, 2), Some(Interval { low: 0.3, high: 0.5 }));
        assert_eq!(bounds(0, 0, 4), Some(Interval { low: 0.0, high: 1.0 }));
        assert_eq!(bounds(0, 0, 0), None);
    }

    proptest! {
        #[test]
        fn intervals_hold_the_rate_and_stay_within_0_and_1(
            of in 1_u64..100_000,
            share in 0.0..=1.0_f64,
            unknown in 0_u64..1000,
            confidence in 0.5..0.9999_f64,
        ) {
            let hits = (of as f64 * share) as u64;
            let rate = hits as f64 / of as f64;
            for interval in [wilson(hits, of, confidence).unwrap(), bounds(hits, of, unknown).unwrap()] {
                prop_assert!(0.0 <= interval.low && interval.high <= 1.0);
                prop_assert!(interval.contains(rate), "{interval:?} {rate}");
            }
            // Failures are successes seen from the other side.
            let (one, other) = (wilson(hits, of, confidence).unwrap(), wilson(of - hits, of, confidence).unwrap());
            prop_assert!((one.low - (1.0 - other.high)).abs() < 1e-12);
            prop_assert!((one.high - (1.0 - other.low)).abs() < 1e-12);
        }
    }
}
