//! Measures of ordered rounds: full workflow rate, assertion pass rate, open coverage, the first
//! failing round and why, and the joint table of business and visible checks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::options::Options;
use super::rate::Rate;
use super::round::{Aspect, RoundError, RoundKind, RoundRow};
use super::row::Row;

/// Why the first failing round failed: the first of these that holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureClass {
    /// The agent gave no answer that could be used.
    GenerationError,
    /// The round did not come to its checks.
    RoundError,
    /// Business and visible checks failed.
    BusinessAndVisible,
    /// A business check failed, and every visible one held.
    BusinessOnly,
    /// A visible check failed, and every business one held.
    VisibleOnly,
    /// Only other checks failed, retention among them.
    Rest,
}

/// Where an episode first failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstFailure {
    /// The round's number in its task.
    pub number: u32,
    /// What is done in it.
    pub kind: RoundKind,
    /// Why.
    pub class: FailureClass,
}

/// The first round that does not hold, in recorded order; none if all hold.
#[must_use]
pub fn first_failure(rounds: &[RoundRow]) -> Option<FirstFailure> {
    let round = rounds.iter().find(|round| !round.passed())?;
    let failed = |aspect| round.aspect(aspect) == Some(false);
    let class = match (round.error, failed(Aspect::Business), failed(Aspect::Visible)) {
        (Some(RoundError::Generation), ..) => FailureClass::GenerationError,
        (Some(RoundError::Round), ..) => FailureClass::RoundError,
        (None, true, true) => FailureClass::BusinessAndVisible,
        (None, true, false) => FailureClass::BusinessOnly,
        (None, false, true) => FailureClass::VisibleOnly,
        (None, false, false) => FailureClass::Rest,
    };
    Some(FirstFailure { number: round.number, kind: round.kind, class })
}

/// Rounds that have both business and visible checks, by which of them hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joint {
    /// Both.
    pub both: u64,
    /// Business alone: right, and not shown.
    pub business_only: u64,
    /// Visible alone: shown, and not right.
    pub visible_only: u64,
    /// Neither.
    pub neither: u64,
    /// The round broke, so that neither was looked at.
    pub broken: u64,
}

impl Joint {
    fn add(&mut self, round: &RoundRow) {
        let (Some(business), Some(visible)) = (round.aspect(Aspect::Business), round.aspect(Aspect::Visible)) else {
            return;
        };
        let count = match (round.error, business, visible) {
            (Some(_), ..) => &mut self.broken,
            (None, true, true) => &mut self.both,
            (None, true, false) => &mut self.business_only,
            (None, false, true) => &mut self.visible_only,
            (None, false, false) => &mut self.neither,
        };
        *count += 1;
    }
}

/// The measures of episodes that have rounds and a verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workflow {
    /// Full workflow rate: of the episodes, those in which every check of every round holds.
    pub full: Rate,
    /// Assertion pass rate: of all checks of all episodes, those that hold. None if no round
    /// has any.
    pub assertions: Option<Rate>,
    /// Open coverage: of the episodes with an open round, those in which every check of every
    /// open round holds, wherever in the sequence it stands.
    pub open: Option<Rate>,
    /// The episodes that did not hold, by why their first failing round failed. Together with
    /// the hits of `full` they are all episodes.
    pub classes: BTreeMap<FailureClass, u64>,
    /// The same episodes, by what is done in that round.
    pub stages: BTreeMap<RoundKind, u64>,
    /// The same episodes, by the number of that round.
    pub numbers: BTreeMap<u32, u64>,
    /// Business and visible checks of all rounds that have both.
    pub joint: Joint,
}

/// Measures the rows that have a verdict and rounds that can be counted; none without any.
#[must_use]
pub fn workflow(rows: &[&Row], options: &Options) -> Option<Workflow> {
    let mut full = Vec::new();
    let mut assertions = Vec::new();
    let mut open = Vec::new();
    let mut classes: BTreeMap<FailureClass, u64> = BTreeMap::new();
    let mut stages: BTreeMap<RoundKind, u64> = BTreeMap::new();
    let mut numbers: BTreeMap<u32, u64> = BTreeMap::new();
    let mut joint = Joint::default();
    for row in rows.iter().filter(|row| row.passed().is_some() && row.rounds_usable()) {
        let failure = first_failure(&row.rounds);
        full.push((&row.task, failure.is_none()));
        if let Some(failure) = failure {
            *classes.entry(failure.class).or_default() += 1;
            *stages.entry(failure.kind).or_default() += 1;
            *numbers.entry(failure.number).or_default() += 1;
        }
        let (hits, of) = counted(&row.rounds);
        assertions.push((&row.task, hits, of));
        let mut opens = row.rounds.iter().filter(|round| round.kind == RoundKind::Open).peekable();
        if opens.peek().is_some() {
            open.push((&row.task, opens.all(RoundRow::passed)));
        }
        row.rounds.iter().for_each(|round| joint.add(round));
    }
    Some(Workflow {
        full: Rate::of(&full, options)?,
        assertions: Rate::of_counts(&assertions, options),
        open: Rate::of(&open, options),
        classes,
        stages,
        numbers,
        joint,
    })
}

/// How many checks hold, of how many.
pub(super) fn counted(rounds: &[RoundRow]) -> (u64, u64) {
    let checks = rounds.iter().flat_map(|round| round.assertions.iter().map(|check| round.holds(check)));
    checks.fold((0, 0), |(hits, of), holds| (hits + u64::from(holds), of + 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{broken, round, with_rounds};
    use super::*;

    use Aspect::{Business, Operations, Retention, Visible};
    use RoundKind::{FollowUp, Open, Return, Revise, Submit};

    fn measured(rows: &[Row]) -> Workflow {
        workflow(&rows.iter().collect::<Vec<_>>(), &Options::default()).unwrap()
    }

    #[test]
    fn the_priority_example() {
        // Medium was asked for; the screen says Normal; the record is low, before the return and
        // after it. The visible check and the retention check hold, the business check fails,
        // and so does the task.
        let rows = [with_rounds(
            "a",
            "e/priority",
            vec![
                round(Open, &[(Visible, true)]),
                round(Submit, &[(Visible, true), (Business, false)]),
                round(Return, &[(Retention, true)]),
            ],
        )];
        let found = measured(&rows);
        assert_eq!((found.full.hits, found.full.of), (0, 1));
        let assertions = found.assertions.unwrap();
        assert_eq!((assertions.hits, assertions.of), (3, 4));
        assert_eq!(found.open.unwrap().hits, 1);
        assert_eq!(found.classes, BTreeMap::from([(FailureClass::BusinessOnly, 1)]));
        assert_eq!(found.stages, BTreeMap::from([(Submit, 1)]));
        assert_eq!(found.joint, Joint { visible_only: 1, ..Joint::default() });
    }

    #[test]
    fn an_open_that_fails_late_in_a_shared_world_is_not_covered() {
        // The second app is opened in round 3, and is not there: the first open held, but open
        // coverage asks for every open round.
        let rows = [with_rounds(
            "a",
            "e/shared",
            vec![
                round(Open, &[(Visible, true)]),
                round(Submit, &[(Business, true)]),
                round(Open, &[(Visible, true), (Visible, false)]),
            ],
        )];
        let found = measured(&rows);
        assert_eq!(found.open.unwrap().hits, 0);
        assert_eq!(found.stages, BTreeMap::from([(Open, 1)]));
        assert_eq!(found.numbers, BTreeMap::from([(3, 1)]));
        assert_eq!(found.classes, BTreeMap::from([(FailureClass::VisibleOnly, 1)]));
    }

    #[test]
    fn an_error_after_passed_rounds_keeps_what_had_passed() {
        // Two rounds hold (3 checks), the third breaks with 2 checks assigned, the fourth is
        // never reached with 1: APR 3/6, and the stage is the third round.
        let rows = [with_rounds(
            "a",
            "e/1",
            vec![
                round(Open, &[(Visible, true)]),
                round(Submit, &[(Visible, true), (Business, true)]),
                broken(Revise, RoundError::Generation, &[Visible, Business]),
                broken(Return, RoundError::Round, &[Retention]),
            ],
        )];
        let found = measured(&rows);
        let assertions = found.assertions.unwrap();
        assert_eq!((assertions.hits, assertions.of), (3, 6));
        assert_eq!(found.classes, BTreeMap::from([(FailureClass::GenerationError, 1)]));
        assert_eq!(found.stages, BTreeMap::from([(Revise, 1)]));
        assert_eq!(found.open.unwrap().hits, 1);
        assert_eq!(found.joint, Joint { both: 1, broken: 1, ..Joint::default() });
        // Whatever its checks say, a round that broke does not hold, nor does any of them.
        let mut lying = rows[0].clone();
        lying.rounds.iter_mut().flat_map(|round| &mut round.assertions).for_each(|check| check.passed = true);
        let found = measured(&[lying]);
        assert_eq!((found.full.hits, found.assertions.unwrap().hits), (0, 3));
        assert_eq!(found.classes, BTreeMap::from([(FailureClass::GenerationError, 1)]));
    }

    #[test]
    fn more_checks_and_fewer_tasks() {
        // A misses one of ten checks in each of two tasks: FWR 0/2, APR 18/20.
        // B does one task and nothing of the other: FWR 1/2, APR 10/20.
        let ten = |held: usize| {
            let checks: Vec<_> = (0..10).map(|index| (Operations, index < held)).collect();
            vec![round(FollowUp, &checks)]
        };
        let a = measured(&[with_rounds("a", "e/1", ten(9)), with_rounds("a", "e/2", ten(9))]);
        let b = measured(&[with_rounds("b", "e/1", ten(10)), with_rounds("b", "e/2", ten(0))]);
        assert!(a.assertions.unwrap().value > b.assertions.unwrap().value);
        assert!(a.full.value < b.full.value);
        assert_eq!(a.classes, BTreeMap::from([(FailureClass::Rest, 2)]));
    }

    #[test]
    fn the_published_totals_divide() {
        // 17 agents and 500 tasks: 575 pass and 7,925 fail, in five kinds of failure by turns.
        // 7,925 = 5 * 1,585.
        let failures = |index: usize| match index % 5 {
            0 => vec![broken(Open, RoundError::Generation, &[Visible])],
            1 => vec![round(Open, &[(Visible, true)]), broken(Submit, RoundError::Round, &[Business])],
            2 => vec![round(Submit, &[(Visible, false), (Business, false)])],
            3 => vec![round(Submit, &[(Visible, true), (Business, false)])],
            _ => vec![round(Return, &[(Retention, false)])],
        };
        let mut rows = Vec::new();
        for index in 0..17 * 500 {
            let (agent, task) = (format!("agent{}", index / 500), format!("env{}/t{}", index % 7, index % 500));
            let rounds = if index < 575 { vec![round(Open, &[(Visible, true)])] } else { failures(index - 575) };
            rows.push(with_rounds(&agent, &task, rounds));
        }
        let options = Options { resamples: 100, ..Options::default() };
        let found = workflow(&rows.iter().collect::<Vec<_>>(), &options).unwrap();
        assert_eq!((found.full.hits, found.full.of), (575, 8_500));
        assert_eq!(found.classes.len(), 5);
        assert!(found.classes.values().all(|count| *count == 1_585));
        assert_eq!(found.classes.values().sum::<u64>(), 7_925);
        assert_eq!(found.full.hits + found.stages.values().sum::<u64>(), 17 * 500);
    }

    #[test]
    fn what_cannot_be_counted_is_not() {
        let nothing = with_rounds("a", "e/1", vec![round(Open, &[])]);
        let mut twice = with_rounds("a", "e/2", vec![round(Open, &[(Visible, true), (Visible, true)])]);
        twice.rounds[0].assertions[1].id = "c0".to_owned();
        assert_eq!(workflow(&[&nothing, &twice], &Options::default()), None);
    }

    fn any_round() -> impl Strategy<Value = RoundRow> {
        let kind = prop::sample::select(vec![Open, Submit, Revise, Return, FollowUp]);
        let aspect = prop::sample::select(vec![Visible, Business, Retention, Operations]);
        let error = prop::option::weighted(0.2, prop::sample::select(vec![RoundError::Generation, RoundError::Round]));
        let checks = prop::collection::vec((aspect, prop::bool::weighted(0.8)), 1..4);
        (kind, error, checks).prop_map(|(kind, error, checks)| RoundRow { error, ..round(kind, &checks) })
    }

    proptest! {
        #[test]
        fn the_classes_divide_the_episodes(
            tasks in prop::collection::vec(prop::collection::vec(any_round(), 1..5), 1..20),
        ) {
            let named = tasks.into_iter().enumerate();
            let rows: Vec<Row> =
                named.map(|(index, rounds)| with_rounds("a", &format!("e/{index}"), rounds)).collect();
            let options = Options { resamples: 10, ..Options::default() };
            let found = workflow(&rows.iter().collect::<Vec<_>>(), &options).unwrap();
            let classes: u64 = found.classes.values().sum();
            for parts in [classes, found.stages.values().sum(), found.numbers.values().sum()] {
                prop_assert_eq!(found.full.hits + parts, rows.len() as u64);
            }
            let held = rows.iter().filter(|row| row.passed() == Some(true)).count() as u64;
            prop_assert_eq!(found.full.hits, held);
            let turned: Vec<&Row> = rows.iter().rev().collect();
            let again = workflow(&turned, &options).unwrap();
            prop_assert_eq!(again.full.hits, found.full.hits);
            prop_assert_eq!((again.classes, again.joint), (found.classes, found.joint));
        }
    }
}
