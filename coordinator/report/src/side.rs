//! Sides of a comparison: an agent of a run, with its episodes.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_core::ids::TaskName;
use longhaul_core::measure::Row;
use serde::Serialize;

use crate::measured::{Measured, Part};
use crate::view::RunView;

/// An agent of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Side {
    /// What tables call it; no other side is called the same.
    pub label: String,
    /// The agent's name in its run.
    pub agent: String,
    /// The run.
    pub run: RunView,
    /// Its episodes, in order.
    pub episodes: Vec<Measured>,
    /// Whose verdicts its episodes have, if not those that they were settled with.
    pub rejudged: Option<String>,
}

impl Side {
    /// Its rows, under its label.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        let labelled = |episode: &Measured| Row { agent: self.label.clone(), ..episode.row.clone() };
        self.episodes.iter().map(labelled).collect()
    }
}

/// A part of what verdicts rest on that is not the same on two sides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The two sides.
    pub sides: (String, String),
    /// The part.
    pub part: Part,
    /// On which of the common tasks.
    pub tasks: Vec<TaskName>,
    /// How many common tasks there are.
    pub of: usize,
}

/// In what two sides differ on their common tasks, apart from what two agents are to differ in.
#[must_use]
pub fn differences(one: &Side, other: &Side) -> Vec<Difference> {
    let (ones, others) = (by_task(one), by_task(other));
    let mut parts: BTreeMap<Part, Vec<TaskName>> = BTreeMap::new();
    let mut of = 0;
    for (task, episodes) in &ones {
        let Some(counterparts) = others.get(task) else { continue };
        of += 1;
        let differ: BTreeSet<Part> = episodes
            .iter()
            .flat_map(|episode| {
                counterparts.iter().flat_map(|counterpart| episode.provenance.differences(&counterpart.provenance))
            })
            .filter(|part| one.agent == other.agent || !part.is_agents())
            .collect();
        for part in differ {
            parts.entry(part).or_default().push((*task).clone());
        }
    }
    let sides = (one.label.clone(), other.label.clone());
    parts.into_iter().map(|(part, tasks)| Difference { sides: sides.clone(), part, tasks, of }).collect()
}

fn by_task(side: &Side) -> BTreeMap<&TaskName, Vec<&Measured>> {
    let mut tasks: BTreeMap<&TaskName, Vec<&Measured>> = BTreeMap::new();
    for episode in &side.episodes {
        tasks.entry(&episode.row.task).or_default().push(episode);
    }
    tasks
}

/// The failures that a report shows: of each side in turn, the lowest scores first; no more than
/// `most` of all.
#[must_use]
pub fn chosen_failures(sides: &[Side], most: usize) -> Vec<(&Side, &Measured)> {
    let mut lists: Vec<std::vec::IntoIter<(&Side, &Measured)>> = sides
        .iter()
        .map(|side| {
            let mut failed: Vec<(&Side, &Measured)> = side
                .episodes
                .iter()
                .filter(|episode| episode.row.passed() == Some(false))
                .map(|episode| (side, episode))
                .collect();
            let score = |episode: &Measured| episode.row.score().unwrap_or(0.0);
            failed.sort_by(|(_, a), (_, b)| score(a).total_cmp(&score(b)).then_with(|| a.id.cmp(&b.id)));
            failed.into_iter()
        })
        .collect();
    let mut chosen = Vec::new();
    while chosen.len() < most {
        let before = chosen.len();
        for list in &mut lists {
            if chosen.len() < most {
                chosen.extend(list.next());
            }
        }
        if chosen.len() == before {
            break;
        }
    }
    chosen
}
