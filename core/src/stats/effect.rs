//! Effect sizes: how large a difference is, whatever its p value.

use serde::{Deserialize, Serialize};

/// Of the pairs in which one side alone passed, how many times as often that was A.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "value")]
pub enum OddsRatio {
    /// So many times.
    Times(f64),
    /// Never B alone.
    Infinite,
    /// Neither was ever alone.
    Undefined,
}

/// The odds ratio of pairs: `a_only / b_only`.
#[must_use]
pub fn paired_odds_ratio(a_only: u64, b_only: u64) -> OddsRatio {
    match (a_only, b_only) {
        (0, 0) => OddsRatio::Undefined,
        (_, 0) => OddsRatio::Infinite,
        (a, b) => OddsRatio::Times(a as f64 / b as f64),
    }
}

/// Cohen's h of two rates (1988): the difference of their arcsines, which says of a step from
/// 1 % to 6 % that it is larger than one from 50 % to 55 %.
#[must_use]
pub fn cohen_h(a: f64, b: f64) -> f64 {
    let angle = |rate: f64| 2.0 * rate.clamp(0.0, 1.0).sqrt().asin();
    angle(a) - angle(b)
}

/// The mean of paired differences in units of their standard deviation (Cohen's d of pairs);
/// none for fewer than two, or where all are the same.
#[must_use]
pub fn standardized_mean_difference(differences: &[f64]) -> Option<f64> {
    let n = differences.len();
    if n < 2 {
        return None;
    }
    let mean = differences.iter().sum::<f64>() / n as f64;
    let squares: f64 = differences.iter().map(|difference| (difference - mean).powi(2)).sum();
    let deviation = (squares / (n - 1) as f64).sqrt();
    (deviation > 0.0).then(|| mean / deviation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effect_sizes_by_hand() {
        // 2 asin(1) - 2 asin(0) = pi.
        assert!((cohen_h(1.0, 0.0) - std::f64::consts::PI).abs() < 1e-15);
        // 2 asin(sqrt(0.5)) = pi/2; 2 asin(sqrt(0.25)) = pi/3.
        assert!((cohen_h(0.5, 0.25) - std::f64::consts::PI / 6.0).abs() < 1e-15);
        assert_eq!(paired_odds_ratio(6, 2), OddsRatio::Times(3.0));
        assert_eq!(paired_odds_ratio(6, 0), OddsRatio::Infinite);
        assert_eq!(paired_odds_ratio(0, 6), OddsRatio::Times(0.0));
        assert_eq!(paired_odds_ratio(0, 0), OddsRatio::Undefined);
        // 1, 2, 3: mean 2, deviation 1.
        assert_eq!(standardized_mean_difference(&[1.0, 2.0, 3.0]), Some(2.0));
        assert_eq!(standardized_mean_difference(&[4.0, 4.0]), None);
        assert_eq!(standardized_mean_difference(&[4.0]), None);
    }
}
