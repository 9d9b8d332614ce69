//! How sure intervals and tests are to be, and where curves are read.

use serde::{Deserialize, Serialize};

use crate::money::Money;
use crate::stats::{Power, Resampling};

/// What measures and comparisons are made with; shown beside them, so that they can be made
/// again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Of intervals; what is left to 1 is the level of tests.
    pub confidence: f64,
    /// How many resamples an interval is read from. With 2,000 an end of a 95 % interval moves by
    /// some 1.5 % of its width from one seed to another.
    pub resamples: u32,
    /// What resampling is seeded with.
    pub seed: u64,
    /// The chance with which a difference that is there is to be seen.
    pub power: f64,
    /// Differences of pass rates below this do not matter.
    pub margin: f64,
    /// With fewer envs than this, tasks are resampled instead of envs.
    pub least_envs: usize,
    /// For which k pass@k and pass^k are given.
    pub samples: Vec<u32>,
    /// Dollars of an episode at which budget curves are read; some twenty that fit if empty.
    pub dollars: Vec<Money>,
    /// Steps at which budget curves are read; some twenty that fit if empty.
    pub steps: Vec<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            confidence: 0.95,
            resamples: 2_000,
            seed: 0,
            power: 0.8,
            margin: 0.05,
            least_envs: 10,
            samples: vec![1, 2, 4, 8],
            dollars: Vec::new(),
            steps: Vec::new(),
        }
    }
}

impl Options {
    pub(super) fn resampling(&self) -> Resampling {
        Resampling { confidence: self.confidence, resamples: self.resamples, seed: self.seed }
    }

    pub(super) fn level(&self) -> f64 {
        1.0 - self.confidence
    }

    pub(super) fn power(&self) -> Power {
        Power { level: self.level(), power: self.power }
    }
}
