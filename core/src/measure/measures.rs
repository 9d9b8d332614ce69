//! Everything that is measured of a set of episodes.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::amounts::{Amounts, Endings};
use super::clean::like_fraction;
use super::options::Options;
use super::rate::{Mean, Rate};
use super::row::{Row, State};
use super::workflow::{Workflow, workflow};
use crate::ids::TaskName;
use crate::outcome::SettlementKind;
use crate::stats::{Interval, bounds, pass_at, pass_hat};

/// How episodes were settled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Solved.
    pub passed: u64,
    /// Not solved.
    pub failed: u64,
    /// Ran, and nothing trustworthy scored them.
    pub unverified: u64,
    /// Stopped by a person.
    pub cancelled: u64,
    /// Out of attempts.
    pub faulted: u64,
    /// Never begun.
    pub not_started: u64,
    /// Not settled yet.
    pub unsettled: u64,
}

impl Tally {
    pub(super) fn of(rows: &[&Row]) -> Self {
        let mut tally = Self::default();
        for row in rows {
            let count = match row.state.kind() {
                Some(SettlementKind::Passed) => &mut tally.passed,
                Some(SettlementKind::Failed) => &mut tally.failed,
                Some(SettlementKind::Unverified) => &mut tally.unverified,
                Some(SettlementKind::Cancelled) => &mut tally.cancelled,
                Some(SettlementKind::Faulted) => &mut tally.faulted,
                Some(SettlementKind::NotStarted) => &mut tally.not_started,
                None => &mut tally.unsettled,
            };
            *count += 1;
        }
        tally
    }

    /// Episodes with a verdict.
    #[must_use]
    pub const fn verdicts(&self) -> u64 {
        self.passed + self.failed
    }

    /// Episodes of which it was we who did not find out.
    #[must_use]
    pub const fn unknown(&self) -> u64 {
        self.faulted + self.unverified
    }
}

/// What k samples of a task would do.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PassK {
    /// How many samples.
    pub k: u32,
    /// pass@k: at least one of them passes; the mean over tasks.
    pub any: f64,
    /// pass^k: all of them pass; the mean over tasks.
    pub all: f64,
    /// Over how many tasks (of one agent each): those with that many samples.
    pub tasks: u64,
    /// How many tasks have verdicts, but not that many.
    pub too_few: u64,
}

/// The measures of a set of episodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measures {
    /// How many envs, tasks and agents they are of.
    pub envs: u64,
    /// How many tasks.
    pub tasks: u64,
    /// How many agents.
    pub agents: u64,
    /// How they were settled.
    pub tally: Tally,
    /// Of the verdicts, those that passed. None without a verdict.
    pub pass_rate: Option<Rate>,
    /// What the pass rate would be if all that faulted or stayed unverified had failed, and if
    /// all had passed.
    pub pass_bounds: Option<Interval>,
    /// The mean score of the verdicts. None where there is no score, or where scores look like
    /// fractions.
    pub score: Option<Mean>,
    /// pass@k and pass^k, for each k for which a task has samples enough.
    pub samples: Vec<PassK>,
    /// The measures of rounds. None where no episode has any.
    pub workflow: Option<Workflow>,
    /// What they used.
    pub amounts: Amounts,
    /// How they ended.
    pub endings: Endings,
}

/// Measures rows, which [`clean`](super::clean) has checked.
#[must_use]
pub fn measure(rows: &[&Row], options: &Options) -> Measures {
    let verdicts: Vec<(&TaskName, bool)> = rows.iter().filter_map(|row| Some((&row.task, row.passed()?))).collect();
    let distinct = |names: &mut dyn Iterator<Item = &str>| names.collect::<BTreeSet<_>>().len() as u64;
    let tally = Tally::of(rows);
    Measures {
        envs: distinct(&mut rows.iter().map(|row| row.task.env.as_str())),
        tasks: rows.iter().map(|row| &row.task).collect::<BTreeSet<_>>().len() as u64,
        agents: distinct(&mut rows.iter().map(|row| row.agent.as_str())),
        pass_rate: Rate::of(&verdicts, options),
        pass_bounds: bounds(tally.passed, tally.verdicts(), tally.unknown()),
        tally,
        score: mean_score(rows, options),
        samples: samples(rows, options),
        workflow: workflow(rows, options),
        amounts: Amounts::of(rows),
        endings: Endings::of(rows),
    }
}

/// The mean of the scores that count; none if one of them shows that it is on another scale.
pub(super) fn mean_score(rows: &[&Row], options: &Options) -> Option<Mean> {
    if rows.iter().any(|row| like_fraction(row)) {
        return None;
    }
    let scores: Vec<_> = rows
        .iter()
        .filter(|row| matches!(row.state, State::Verdict { .. }))
        .map(|row| (&row.task, row.score()))
        .collect();
    Mean::of(&scores, options)
}

fn samples(rows: &[&Row], options: &Options) -> Vec<PassK> {
    let mut tasks: BTreeMap<(&str, &TaskName), (u32, u32)> = BTreeMap::new();
    for row in rows {
        if let Some(passed) = row.passed() {
            let counts = tasks.entry((&row.agent, &row.task)).or_default();
            counts.0 += 1;
            counts.1 += u32::from(passed);
        }
    }
    let wanted: BTreeSet<u32> = options.samples.iter().copied().filter(|k| *k > 0).collect();
    let each = wanted.into_iter().filter_map(|k| {
        let enough: Vec<_> = tasks
            .values()
            .filter_map(|(samples, passed)| Some((pass_at(*samples, *passed, k)?, pass_hat(*samples, *passed, k)?)))
            .collect();
        let n = enough.len();
        (n > 0).then(|| PassK {
            k,
            any: enough.iter().map(|one| one.0).sum::<f64>() / n as f64,
            all: enough.iter().map(|one| one.1).sum::<f64>() / n as f64,
            tasks: n as u64,
            too_few: (tasks.len() - n) as u64,
        })
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{failed, faulted, passed, row, scored};
    use super::*;

    fn measured(rows: &[Row]) -> Measures {
        measure(&rows.iter().collect::<Vec<_>>(), &Options::default())
    }

    #[test]
    fn faults_are_no_failures_and_are_bounded() {
        // 2 of 4 verdicts passed; one faulted and one unverified: 2/6 to 4/6. What was
        // cancelled, never begun or is not settled counts for nothing.
        let with = |task: &str, state: State| Row { state, ..row("a", task) };
        let rows = [
            passed("a", "e/1"),
            passed("a", "e/2"),
            failed("a", "e/3"),
            failed("a", "f/4"),
            faulted("a", "e/5"),
            with("e/6", State::Unverified { ended_by: crate::outcome::EndedBy::Agent }),
            with("e/7", State::Cancelled),
            with("e/8", State::NotStarted),
            with("e/9", State::Unsettled),
        ];
        let found = measured(&rows);
        let rate = found.pass_rate.unwrap();
        assert_eq!((rate.hits, rate.of, rate.value), (2, 4, 0.5));
        assert_eq!(found.pass_bounds, Some(Interval { low: 2.0 / 6.0, high: 4.0 / 6.0 }));
        assert_eq!((found.envs, found.tasks, found.agents), (2, 9, 1));
        let score = found.score.unwrap();
        assert_eq!((score.value, score.of, score.left_out), (50.0, 4, 0));
        // Without a verdict there is no rate, and all that is known are the bounds.
        let nothing = measured(&[faulted("a", "e/1")]);
        assert_eq!((nothing.pass_rate, nothing.score), (None, None));
        assert_eq!(nothing.pass_bounds, Some(Interval { low: 0.0, high: 1.0 }));
    }

    #[test]
    fn bad_scores_are_left_out_and_fractions_withheld() {
        // 40 and 60 average 50; NaN and 400 are left out of it.
        let rows = [
            scored("a", "e/1", 40.0),
            scored("a", "e/2", 60.0),
            scored("a", "e/3", f64::NAN),
            scored("a", "e/4", 400.0),
        ];
        let score = measured(&rows).score.unwrap();
        assert_eq!((score.value, score.of, score.left_out), (50.0, 2, 2));
        // One score of 0.9 among them, and no average can be trusted.
        let mut mixed = rows.to_vec();
        mixed.push(scored("a", "e/5", 0.9));
        assert_eq!(measured(&mixed).score, None);
    }

    #[test]
    fn samples_by_hand() {
        // Task 1: 1 of 3 samples passes; task 2: 2 of 2; task 3: one sample, failed.
        // k = 1: (1/3 + 1 + 0) / 3. k = 2 over the first two: any (1 - C(2,2)/C(3,2) + 1) / 2
        // = (2/3 + 1) / 2, all (0 + 1) / 2. No task has 4.
        let sample = |row: Row, sample: u32| Row { sample, ..row };
        let rows = [
            sample(passed("a", "e/1"), 0),
            sample(failed("a", "e/1"), 1),
            sample(failed("a", "e/1"), 2),
            sample(passed("a", "e/2"), 0),
            sample(passed("a", "e/2"), 1),
            sample(failed("a", "e/3"), 0),
        ];
        let found = measured(&rows).samples;
        assert_eq!(found.iter().map(|one| (one.k, one.tasks, one.too_few)).collect::<Vec<_>>(), [(1, 3, 0), (2, 2, 1)]);
        assert!((found[0].any - 4.0 / 9.0).abs() < 1e-12 && (found[0].all - 4.0 / 9.0).abs() < 1e-12);
        assert!((found[1].any - 5.0 / 6.0).abs() < 1e-12 && (found[1].all - 0.5).abs() < 1e-12);
    }
}
