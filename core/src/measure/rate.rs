//! Rates and means with their intervals.

use serde::{Deserialize, Serialize};

use super::cluster::{Clustered, Clusters};
use super::options::Options;
use crate::ids::TaskName;
use crate::stats::{Interval, wilson};

/// How many of how many.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// How many did.
    pub hits: u64,
    /// Of how many.
    pub of: u64,
    /// The one over the other.
    pub value: f64,
    /// Wilson's interval, for which episodes are independent of each other; absent where they
    /// cannot be, as the checks of one task.
    pub wilson: Option<Interval>,
    /// The resampled interval, for which only envs (or tasks) are.
    pub clustered: Option<Clustered>,
}

impl Rate {
    /// The rate of what holds, each with its task; none of nothing.
    pub(super) fn of(items: &[(&TaskName, bool)], options: &Options) -> Option<Self> {
        let counted: Vec<_> = items.iter().map(|(task, holds)| (*task, u64::from(*holds), 1)).collect();
        let mut rate = Self::of_counts(&counted, options)?;
        rate.wilson = wilson(rate.hits, rate.of, options.confidence);
        Some(rate)
    }

    /// The rate over items that each count `(hits, of)`; none of nothing.
    pub(super) fn of_counts(items: &[(&TaskName, u64, u64)], options: &Options) -> Option<Self> {
        let (hits, of) = items.iter().fold((0, 0), |sum, item| (sum.0 + item.1, sum.1 + item.2));
        if of == 0 {
            return None;
        }
        let clusters = Clusters::of(items.iter().map(|item| item.0), options);
        let parts: Vec<_> = items.iter().map(|item| (item.1 as f64, item.2 as f64)).collect();
        Some(Self {
            hits,
            of,
            value: hits as f64 / of as f64,
            wilson: None,
            clustered: clusters.ratio(&parts, options),
        })
    }
}

/// A mean of scores.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mean {
    /// The mean.
    pub value: f64,
    /// Over how many.
    pub of: u64,
    /// How many episodes with a verdict have no score that counts.
    pub left_out: u64,
    /// The resampled interval.
    pub clustered: Option<Clustered>,
}

impl Mean {
    /// The mean of the values that there are, each with its task; none of nothing.
    pub(super) fn of(items: &[(&TaskName, Option<f64>)], options: &Options) -> Option<Self> {
        let known: Vec<(&TaskName, f64)> = items.iter().filter_map(|(task, value)| Some((*task, (*value)?))).collect();
        if known.is_empty() {
            return None;
        }
        let clusters = Clusters::of(known.iter().map(|item| item.0), options);
        let parts: Vec<_> = known.iter().map(|item| (item.1, 1.0)).collect();
        Some(Self {
            value: known.iter().map(|item| item.1).sum::<f64>() / known.len() as f64,
            of: known.len() as u64,
            left_out: (items.len() - known.len()) as u64,
            clustered: clusters.ratio(&parts, options),
        })
    }
}
