//! The bootstrap over clusters: how far an estimate would vary had other envs been drawn.

use serde::{Deserialize, Serialize};

use super::interval::Interval;
use super::random::Random;

/// How an interval is resampled.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resampling {
    /// How much of the resamples the interval holds.
    pub confidence: f64,
    /// How many resamples are drawn.
    pub resamples: u32,
    /// What the draws are seeded with.
    pub seed: u64,
}

/// The percentile interval (Efron 1979) of a statistic over clusters: as many clusters as there
/// are, drawn with replacement, each whole. `statistic` gets the indexes that were drawn; a
/// resample on which it is not defined (a rate of nothing) is drawn no further part of.
///
/// None with fewer than two clusters, where there is nothing to draw from, and where more than
/// half of the resamples leave the statistic undefined.
pub fn resample(
    clusters: usize,
    how: &Resampling,
    mut statistic: impl FnMut(&[usize]) -> Option<f64>,
) -> Option<Interval> {
    if clusters < 2 || how.resamples == 0 {
        return None;
    }
    let mut random = Random::new(how.seed);
    let mut drawn = vec![0_usize; clusters];
    let mut values = Vec::with_capacity(how.resamples as usize);
    for _ in 0..how.resamples {
        drawn.fill_with(|| random.below(clusters as u64) as usize);
        values.extend(statistic(&drawn));
    }
    if values.len() * 2 <= how.resamples as usize {
        return None;
    }
    values.sort_unstable_by(f64::total_cmp);
    let outside = (1.0 - how.confidence) / 2.0;
    Some(Interval { low: quantile(&values, outside)?, high: quantile(&values, 1.0 - outside)? })
}

/// The quantile of sorted values, interpolated linearly between neighbours (type 7 of Hyndman
/// and Fan 1996); none of nothing.
#[must_use]
pub fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = share.clamp(0.0, 1.0) * last as f64;
    let below = (place as usize).min(last);
    let above = (below + 1).min(last);
    Some(sorted[below] + (sorted[above] - sorted[below]) * (place - below as f64))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOW: Resampling = Resampling { confidence: 0.95, resamples: 4_000, seed: 1 };

    fn mean_of(values: &[f64]) -> impl FnMut(&[usize]) -> Option<f64> + '_ {
        |drawn| Some(drawn.iter().map(|index| values[*index]).sum::<f64>() / drawn.len() as f64)
    }

    #[test]
    fn quantiles_by_hand() {
        // Between the places 0, 1, 2, 3: the 0.5 quantile is at place 1.5, halfway from 2 to 4.
        let values = [1.0, 2.0, 4.0, 8.0];
        assert_eq!(quantile(&values, 0.5), Some(3.0));
        assert_eq!(quantile(&values, 0.0), Some(1.0));
        assert_eq!(quantile(&values, 1.0), Some(8.0));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn two_clusters_by_hand() {
        // 0 and 1: the means 0, 1/2 and 1 come with 1/4, 1/2 and 1/4, so that 95 % reach from
        // 0 to 1, and the middle 40 % are all at 1/2.
        assert_eq!(resample(2, &HOW, mean_of(&[0.0, 1.0])), Some(Interval { low: 0.0, high: 1.0 }));
        // 60 % leave 1/5 out at each end, still less than what lies at 0 and at 1.
        let middle = Resampling { confidence: 0.6, ..HOW };
        assert_eq!(resample(2, &middle, mean_of(&[0.0, 1.0])), Some(Interval { low: 0.0, high: 1.0 }));
        let narrow = Resampling { confidence: 0.4, ..HOW };
        assert_eq!(resample(2, &narrow, mean_of(&[0.0, 1.0])), Some(Interval { low: 0.5, high: 0.5 }));
    }

    #[test]
    fn nothing_is_said_where_there_is_nothing_to_draw_from() {
        assert_eq!(resample(1, &HOW, |_| Some(1.0)), None);
        assert_eq!(resample(0, &HOW, |_| Some(1.0)), None);
        assert_eq!(resample(3, &HOW, |_| None), None);
    }

    #[test]
    fn it_covers_the_truth_about_as_often_as_it_says() {
        // 300 samples of 40 fair coins each: 95 % intervals hold 1/2 in 285 of them on the
        // average, with a standard deviation of 3.8; the percentile interval is a little short.
        let mut random = Random::new(99);
        let held = (0..300_u64)
            .filter(|seed| {
                let coins: Vec<f64> = (0..40).map(|_| random.below(2) as f64).collect();
                let how = Resampling { confidence: 0.95, resamples: 500, seed: *seed };
                resample(coins.len(), &how, mean_of(&coins)).unwrap().contains(0.5)
            })
            .count();
        assert!((265..=298).contains(&held), "{held}");
    }

    proptest! {
        #[test]
        fn an_interval_of_means_lies_among_the_values(
            values in prop::collection::vec(-100.0..100.0_f64, 2..40),
            seed in any::<u64>(),
        ) {
            let how = Resampling { confidence: 0.9, resamples: 200, seed };
            let found = resample(values.len(), &how, mean_of(&values)).unwrap();
            let (least, most) = values.iter().fold((f64::MAX, f64::MIN), |(l, m), v| (l.min(*v), m.max(*v)));
            prop_assert!(found.low <= found.high);
            prop_assert!(least - 1e-9 <= found.low && found.high <= most + 1e-9);
            prop_assert_eq!(Some(found), resample(values.len(), &how, mean_of(&values)));
        }
    }
}
