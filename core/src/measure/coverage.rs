//! What several agents solve together: looked at afterwards, and no ensemble that anybody could
//! run.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::group::{By, names};
use super::row::Row;
use crate::ids::TaskName;

/// Tasks that one agent solves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentCoverage {
    /// The agent.
    pub agent: String,
    /// How many of the tasks it solves.
    pub solved: u64,
    /// How many of those no other agent solves.
    pub alone: u64,
}

/// Tasks that one of two agents solves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairCoverage {
    /// The two, by name.
    pub agents: [String; 2],
    /// How many tasks one of them solves at least.
    pub solved: u64,
}

/// What agents solve, alone and together. A task is solved by an agent if any of its samples
/// passed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    /// On how many tasks every agent has a verdict: only these are counted.
    pub tasks: u64,
    /// Tasks on which an agent has none: not counted as failed.
    pub missing: Vec<TaskName>,
    /// Each agent, the best first.
    pub agents: Vec<AgentCoverage>,
    /// The two agents that solve most together; of several such, the first by name. None with
    /// fewer than two.
    pub best_pair: Option<PairCoverage>,
    /// How many tasks any agent solves.
    pub union: u64,
    /// The tasks that none solves.
    pub nobody: Vec<TaskName>,
}

/// Counts what agents solve, over the tasks on which each of them has a verdict.
#[must_use]
pub fn coverage(rows: &[&Row]) -> Coverage {
    let mut agents: BTreeMap<&str, BTreeMap<&TaskName, bool>> = BTreeMap::new();
    let mut tasks: BTreeSet<&TaskName> = BTreeSet::new();
    for row in rows {
        tasks.insert(&row.task);
        let known = agents.entry(&row.agent).or_default();
        if let Some(passed) = row.passed() {
            *known.entry(&row.task).or_default() |= passed;
        }
    }
    let (common, missing): (BTreeSet<&TaskName>, BTreeSet<&TaskName>) =
        tasks.into_iter().partition(|task| agents.values().all(|known| known.contains_key(task)));
    let solved: BTreeMap<&str, BTreeSet<&TaskName>> = agents
        .iter()
        .map(|(agent, known)| {
            (
                *agent,
                known.iter().filter(|(task, passed)| **passed && common.contains(*task)).map(|(t, _)| *t).collect(),
            )
        })
        .collect();
    let mut by_task: BTreeMap<&TaskName, u64> = BTreeMap::new();
    for task in solved.values().flatten() {
        *by_task.entry(task).or_default() += 1;
    }
    let mut ranked: Vec<AgentCoverage> = solved
        .iter()
        .map(|(agent, tasks)| AgentCoverage {
            agent: (*agent).to_owned(),
            solved: tasks.len() as u64,
            alone: tasks.iter().filter(|task| by_task.get(*task) == Some(&1)).count() as u64,
        })
        .collect();
    // Stable: agents that solve as many stay in the order of their names.
    ranked.sort_by_key(|agent| std::cmp::Reverse(agent.solved));
    Coverage {
        tasks: common.len() as u64,
        missing: missing.into_iter().cloned().collect(),
        agents: ranked,
        best_pair: best_pair(&solved),
        union: by_task.len() as u64,
        nobody: common.into_iter().filter(|task| !by_task.contains_key(task)).cloned().collect(),
    }
}

/// What agents solve of one group of tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupCoverage {
    /// The group's name; absent for tasks that have none.
    pub name: Option<String>,
    /// On how many of its tasks every agent has a verdict: only these are counted.
    pub tasks: u64,
    /// The most that one agent solves.
    pub best: u64,
    /// The two agents that solve most together, as in [`Coverage`].
    pub best_pair: Option<PairCoverage>,
    /// How many any agent solves.
    pub union: u64,
    /// How many none solves.
    pub nobody: u64,
}

/// The same by groups of tasks, in the order of their names; a task of two splits counts in both.
#[must_use]
pub fn coverage_by(rows: &[&Row], by: By) -> Vec<GroupCoverage> {
    let missing: BTreeSet<TaskName> = coverage(rows).missing.into_iter().collect();
    let mut groups: BTreeMap<Option<String>, Vec<&Row>> = BTreeMap::new();
    for row in rows.iter().copied().filter(|row| !missing.contains(&row.task)) {
        for name in names(row, by) {
            groups.entry(name).or_default().push(row);
        }
    }
    let group = |(name, rows): (Option<String>, Vec<&Row>)| {
        let Coverage { tasks, agents, best_pair, union, nobody, .. } = coverage(&rows);
        let best = agents.first().map_or(0, |agent| agent.solved);
        GroupCoverage { name, tasks, best, best_pair, union, nobody: nobody.len() as u64 }
    };
    groups.into_iter().map(group).collect()
}

fn best_pair(solved: &BTreeMap<&str, BTreeSet<&TaskName>>) -> Option<PairCoverage> {
    let mut best: Option<PairCoverage> = None;
    for (index, (one, tasks)) in solved.iter().enumerate() {
        for (other, more) in solved.iter().skip(index + 1) {
            let together = tasks.union(more).count() as u64;
            if best.as_ref().is_none_or(|best| together > best.solved) {
                best = Some(PairCoverage { agents: [(*one).to_owned(), (*other).to_owned()], solved: together });
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::super::testing::{failed, faulted, passed};
    use super::*;

    #[test]
    fn three_agents_by_hand() {
        // Tasks 1 to 5. a solves 1, 2; b solves 2; c solves 3; 4 nobody; on 5 c has no verdict,
        // so that nothing is said of it. The best pair is a and c with 1, 2, 3, which is also
        // the union; a alone solves 1, c alone 3.
        let mut rows = Vec::new();
        for (agent, solves) in [("a", [1, 2, 5].as_slice()), ("b", &[2]), ("c", &[3])] {
            for task in 1..=5 {
                let name = format!("e/{task}");
                rows.push(match (solves.contains(&task), agent, task) {
                    (_, "c", 5) => faulted(agent, &name),
                    (true, ..) => passed(agent, &name),
                    (false, ..) => failed(agent, &name),
                });
            }
        }
        // A second sample that fails takes nothing back.
        rows.push(Row { sample: 1, ..failed("a", "e/1") });
        let found = coverage(&rows.iter().collect::<Vec<_>>());
        assert_eq!((found.tasks, found.union), (4, 3));
        assert_eq!(found.missing, ["e/5".parse().unwrap()]);
        assert_eq!(found.nobody, ["e/4".parse().unwrap()]);
        let agents: Vec<_> = found.agents.iter().map(|one| (one.agent.as_str(), one.solved, one.alone)).collect();
        assert_eq!(agents, [("a", 2, 1), ("b", 1, 0), ("c", 1, 1)]);
        assert_eq!(found.best_pair, Some(PairCoverage { agents: ["a".to_owned(), "c".to_owned()], solved: 3 }));
        // By difficulty, where tasks 1 and 2 are easy: a solves both, and c nothing of them; task 3 is c's, and
        // 4 nobody's.
        for row in &mut rows {
            let easy = matches!(row.task.task.as_str(), "1" | "2");
            row.difficulty = easy.then(|| "easy".to_owned());
        }
        let found = coverage_by(&rows.iter().collect::<Vec<_>>(), By::Difficulty);
        let counts: Vec<_> = found
            .iter()
            .map(|group| (group.name.as_deref(), group.tasks, group.best, group.union, group.nobody))
            .collect();
        assert_eq!(counts, [(None, 2, 1, 1, 1), (Some("easy"), 2, 2, 2, 0)]);
        assert_eq!(found[1].best_pair.as_ref().map(|pair| pair.solved), Some(2));
    }
}
