//! Rates that say how far they can be trusted.

use serde::{Deserialize, Serialize};

/// A pass rate over the episodes that have a verdict, and the bounds that it would have
/// if all of those without one had failed, or had passed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// Passed, of those with a verdict.
    pub point: f64,
    /// If every one without a verdict had failed.
    pub low: f64,
    /// If every one without a verdict had passed.
    pub high: f64,
}

impl Rate {
    /// The rate of `passed` to `failed`, with `unknown` more that have no verdict; none
    /// if nothing has a verdict.
    #[must_use]
    pub fn of(passed: u32, failed: u32, unknown: u32) -> Option<Self> {
        let verdicts = f64::from(passed) + f64::from(failed);
        let all = verdicts + f64::from(unknown);
        (verdicts > 0.0).then(|| Self {
            point: f64::from(passed) / verdicts,
            low: f64::from(passed) / all,
            high: (f64::from(passed) + f64::from(unknown)) / all,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unknown_widens_the_bounds_and_leaves_the_rate() {
        assert_eq!(Rate::of(3, 1, 0), Some(Rate { point: 0.75, low: 0.75, high: 0.75 }));
        assert_eq!(Rate::of(3, 1, 4), Some(Rate { point: 0.75, low: 0.375, high: 0.875 }));
        assert_eq!(Rate::of(0, 0, 4), None);
    }
}
