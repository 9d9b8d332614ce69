//! The same measures for each env, split, difficulty, family or agent, or for each pair of these
//! (a heat map of env and agent).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::measures::{Measures, measure};
use super::options::Options;
use super::row::Row;

/// What rows are grouped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// The agent.
    Agent,
    /// The env.
    Env,
    /// The split; a task may be in several, and counts in each.
    Split,
    /// How hard the benchmark says that a task is.
    Difficulty,
    /// The family of tasks.
    Family,
}

/// The rows of one group, measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// The group's name in each of the things asked for; absent for rows that have none.
    pub key: Vec<Option<String>>,
    /// Its measures.
    pub measures: Measures,
}

/// Measures rows by groups, in the order of their names; groups without rows are not there.
#[must_use]
pub fn group(rows: &[&Row], by: &[By], options: &Options) -> Vec<Group> {
    let mut groups: BTreeMap<Vec<Option<String>>, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        let mut keys = vec![Vec::new()];
        for one in by {
            let names = names(row, *one);
            keys = keys
                .into_iter()
                .flat_map(|key: Vec<Option<String>>| {
                    names.iter().map(move |name| key.iter().cloned().chain([name.clone()]).collect())
                })
                .collect();
        }
        for key in keys {
            groups.entry(key).or_default().push(row);
        }
    }
    groups.into_iter().map(|(key, rows)| Group { key, measures: measure(&rows, options) }).collect()
}

/// The names of the groups that a row is in.
pub(super) fn names(row: &Row, by: By) -> Vec<Option<String>> {
    match by {
        By::Agent => vec![Some(row.agent.clone())],
        By::Env => vec![Some(row.task.env.clone())],
        By::Split if row.splits.is_empty() => vec![None],
        By::Split => row.splits.iter().cloned().map(Some).collect(),
        By::Difficulty => vec![row.difficulty.clone()],
        By::Family => vec![row.family.clone()],
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{failed, passed};
    use super::*;

    #[test]
    fn a_task_of_two_splits_counts_in_both() {
        let mut both = passed("a", "e/1");
        both.splits = ["test", "verified"].map(str::to_owned).into();
        let mut one = failed("b", "f/2");
        one.splits = ["test"].map(str::to_owned).into();
        let none = failed("a", "f/3");
        let rows = [&both, &one, &none];
        let rates = |by: &[By]| -> Vec<(Vec<Option<String>>, u64, u64)> {
            let groups = group(&rows, by, &Options::default());
            groups
                .into_iter()
                .map(|group| {
                    let rate = group.measures.pass_rate.unwrap();
                    (group.key, rate.hits, rate.of)
                })
                .collect()
        };
        let name = |text: &str| Some(text.to_owned());
        assert_eq!(
            rates(&[By::Split]),
            [(vec![None], 0, 1), (vec![name("test")], 1, 2), (vec![name("verified")], 1, 1)]
        );
        assert_eq!(
            rates(&[By::Env, By::Agent]),
            [
                (vec![name("e"), name("a")], 1, 1),
                (vec![name("f"), name("a")], 0, 1),
                (vec![name("f"), name("b")], 0, 1)
            ]
        );
        assert_eq!(rates(&[]), [(vec![], 1, 3)]);
    }
}
