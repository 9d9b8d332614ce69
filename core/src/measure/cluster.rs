//! What is drawn again when an interval is resampled: envs, whose tasks stand or fall together,
//! or tasks where there are too few envs.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::options::Options;
use crate::ids::TaskName;
use crate::stats::{Interval, resample};

/// What an interval resampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClusterBy {
    /// Envs, each with all of its episodes: the interval speaks of envs like these.
    Env,
    /// Tasks: the interval speaks of these envs alone.
    Task,
}

/// A resampled interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Clustered {
    /// From where to where.
    pub interval: Interval,
    /// What was drawn.
    pub by: ClusterBy,
    /// How many of them there are.
    pub clusters: usize,
}

/// Items divided into what is drawn together.
#[derive(Clone, Debug)]
pub(super) struct Clusters {
    by: ClusterBy,
    /// The items of each cluster, by their place.
    members: Vec<Vec<usize>>,
}

impl Clusters {
    /// Divides items, each with its task.
    pub(super) fn of<'a>(tasks: impl IntoIterator<Item = &'a TaskName> + Clone, options: &Options) -> Self {
        let envs: BTreeSet<&str> = tasks.clone().into_iter().map(|task| task.env.as_str()).collect();
        let by = if envs.len() >= options.least_envs { ClusterBy::Env } else { ClusterBy::Task };
        let mut members: BTreeMap<(&str, &str), Vec<usize>> = BTreeMap::new();
        for (index, task) in tasks.into_iter().enumerate() {
            let name = if by == ClusterBy::Env { "" } else { task.task.as_str() };
            members.entry((&task.env, name)).or_default().push(index);
        }
        Self { by, members: members.into_values().collect() }
    }

    /// The interval of a ratio: the sum of the items' first numbers over that of their second.
    /// A mean is such a ratio, with 1 as every second number.
    pub(super) fn ratio(&self, items: &[(f64, f64)], options: &Options) -> Option<Clustered> {
        let sums = self.sums(items);
        self.interval(options, |drawn| quotient(&sums, drawn))
    }

    /// The interval of the difference of two such ratios over the same items.
    pub(super) fn difference(&self, a: &[(f64, f64)], b: &[(f64, f64)], options: &Options) -> Option<Clustered> {
        let (a, b) = (self.sums(a), self.sums(b));
        self.interval(options, |drawn| Some(quotient(&a, drawn)? - quotient(&b, drawn)?))
    }

    fn interval(&self, options: &Options, statistic: impl FnMut(&[usize]) -> Option<f64>) -> Option<Clustered> {
        let interval = resample(self.members.len(), &options.resampling(), statistic)?;
        Some(Clustered { interval, by: self.by, clusters: self.members.len() })
    }

    /// The sums within each cluster: what a draw of the cluster adds.
    fn sums(&self, items: &[(f64, f64)]) -> Vec<(f64, f64)> {
        let sum = |members: &Vec<usize>| {
            members.iter().map(|member| items[*member]).fold((0.0, 0.0), |sum, item| (sum.0 + item.0, sum.1 + item.1))
        };
        self.members.iter().map(sum).collect()
    }
}

fn quotient(sums: &[(f64, f64)], drawn: &[usize]) -> Option<f64> {
    let (top, bottom) = drawn.iter().fold((0.0, 0.0), |sum, index| (sum.0 + sums[*index].0, sum.1 + sums[*index].1));
    (bottom > 0.0).then(|| top / bottom)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks(names: &[&str]) -> Vec<TaskName> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    #[test]
    fn tasks_of_an_env_are_drawn_together_where_there_are_envs_enough() {
        let names = tasks(&["a/1", "a/2", "b/1", "b/2"]);
        let items = [(1.0, 1.0), (1.0, 1.0), (0.0, 1.0), (0.0, 1.0)];
        // Two envs: the mean of a draw is 0, 1/2 or 1, with 1/4, 1/2 and 1/4.
        let by_env = Options { least_envs: 2, ..Options::default() };
        let found = Clusters::of(&names, &by_env).ratio(&items, &by_env).unwrap();
        assert_eq!((found.by, found.clusters), (ClusterBy::Env, 2));
        assert_eq!(found.interval, Interval { low: 0.0, high: 1.0 });
        // Four tasks: all four of one kind come in 1/16 of the draws, so that the middle 80 %
        // reach from 1/4 to 3/4 (5/16 of the draws have one or none).
        let by_task = Options { confidence: 0.8, ..Options::default() };
        let found = Clusters::of(&names, &by_task).ratio(&items, &by_task).unwrap();
        assert_eq!((found.by, found.clusters), (ClusterBy::Task, 4));
        assert_eq!(found.interval, Interval { low: 0.25, high: 0.75 });
    }

    #[test]
    fn samples_of_a_task_are_drawn_together() {
        let names = tasks(&["a/1", "a/1", "a/1"]);
        let options = Options::default();
        assert_eq!(Clusters::of(&names, &options).ratio(&[(1.0, 1.0); 3], &options), None);
    }

    #[test]
    fn a_difference_uses_the_same_draw_for_both_sides() {
        // B is always a half below A, whatever is drawn: no width at all.
        let names = tasks(&["a/1", "b/1", "c/1"]);
        let options = Options::default();
        let a = [(0.9, 1.0), (0.7, 1.0), (0.5, 1.0)];
        let b = [(0.4, 1.0), (0.2, 1.0), (0.0, 1.0)];
        let found = Clusters::of(&names, &options).difference(&a, &b, &options).unwrap();
        assert!((found.interval.low - 0.5).abs() < 1e-12 && (found.interval.high - 0.5).abs() < 1e-12);
    }
}
