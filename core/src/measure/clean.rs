//! Rows as they can be measured, and what is wrong with the others.

use std::collections::BTreeMap;

use super::finding::Finding;
use super::row::{Row, State};
use crate::outcome::SettlementKind;

/// Rows without duplicates, in an order of their own, and what was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Clean<'a> {
    /// The rows that count: ordered by agent, task, run and sample, so that sums of floats do
    /// not depend on how the rows came.
    pub rows: Vec<&'a Row>,
    /// What is wrong with the rows.
    pub findings: Vec<Finding>,
}

/// Checks rows: takes duplicates out, and names what measures leave out.
#[must_use]
pub fn clean<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Clean<'a> {
    let mut samples: BTreeMap<_, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        samples.entry((&row.agent, &row.task, &row.run, row.sample)).or_default().push(row);
    }
    let mut clean = Clean { rows: Vec::with_capacity(samples.len()), findings: Vec::new() };
    for mut same in samples.into_values() {
        same.sort_by(|left, right| left.episode.cmp(&right.episode));
        match *same {
            [row] => clean.rows.push(row),
            [first, ..] => {
                let differ = same.iter().any(|row| !alike(first, row));
                clean.findings.push(Finding::Duplicate {
                    agent: first.agent.clone(),
                    task: first.task.clone(),
                    sample: first.sample,
                    episodes: same.iter().map(|row| row.episode.clone()).collect(),
                    differ,
                });
                if !differ {
                    clean.rows.push(first);
                }
            }
            [] => {}
        }
    }
    let found = look(&clean.rows);
    clean.findings.extend(found);
    clean
}

/// Whether two rows differ in their name at most. NaN is no difference.
fn alike(one: &Row, other: &Row) -> bool {
    let unnamed = |row: &Row| {
        let row = Row { episode: String::new(), ..row.clone() };
        // Through JSON, where every score that is no number is the same.
        serde_json::to_value(row).ok()
    };
    unnamed(one) == unnamed(other)
}

/// What each row shows by itself.
fn look(rows: &[&Row]) -> Vec<Finding> {
    let named = |wanted: &dyn Fn(&Row) -> bool| -> Vec<String> {
        rows.iter().filter(|row| wanted(row)).map(|row| row.episode.clone()).collect()
    };
    let by_agent = |wanted: &dyn Fn(&Row) -> bool| -> BTreeMap<String, Vec<String>> {
        let mut agents: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for row in rows.iter().filter(|row| wanted(row)) {
            agents.entry(row.agent.clone()).or_default().push(row.episode.clone());
        }
        agents
    };
    let mut found = Vec::new();
    for (make, wanted) in NAMED {
        let episodes = named(wanted);
        if !episodes.is_empty() {
            found.push(make(episodes));
        }
    }
    for (agent, episodes) in by_agent(&like_fraction) {
        found.push(Finding::ScoresLikeFractions { agent, episodes });
    }
    for kind in
        [SettlementKind::Faulted, SettlementKind::Unverified, SettlementKind::Cancelled, SettlementKind::NotStarted]
    {
        for (agent, episodes) in by_agent(&|row: &Row| row.state.kind() == Some(kind)) {
            found.push(Finding::WithoutVerdict { agent, kind, episodes });
        }
    }
    for (agent, episodes) in by_agent(&|row: &Row| row.state == State::Unsettled) {
        found.push(Finding::Unsettled { agent, episodes });
    }
    for (agent, episodes) in by_agent(&|row: &Row| row.passed().is_some() && row.dollars.is_none()) {
        found.push(Finding::NoDollars { agent, episodes });
    }
    found
}

/// How a finding of episodes is made.
type Make = fn(Vec<String>) -> Finding;

/// Whether a row belongs to a finding.
type Wanted = &'static dyn Fn(&Row) -> bool;

/// Findings that name nothing but episodes.
const NAMED: [(Make, Wanted); 8] = [
    (|episodes| Finding::ScoreMissing { episodes }, &|row| row.passed().is_some() && row.state.score().is_none()),
    (|episodes| Finding::ScoreNotANumber { episodes }, &|row| {
        row.state.score().is_some_and(|score| !score.is_finite())
    }),
    (|episodes| Finding::ScoreOutOfRange { episodes }, &|row| {
        row.state.score().is_some_and(|score| score.is_finite() && !(0.0..=100.0).contains(&score))
    }),
    (|episodes| Finding::PassedWithoutPoints { episodes }, &|row| {
        row.passed() == Some(true) && row.state.score() == Some(0.0)
    }),
    (|episodes| Finding::RoundsDisagree { episodes }, &|row| {
        row.passed().is_some_and(|passed| row.has_ordered_rounds() && passed != row.rounds_hold())
    }),
    (|episodes| Finding::BrokenRoundWithPasses { episodes }, &|row| {
        row.rounds.iter().any(|round| round.error.is_some() && round.assertions.iter().any(|check| check.passed))
    }),
    (|episodes| Finding::RoundsUnusable { episodes }, &|row| !row.rounds.is_empty() && !row.rounds_usable()),
    (|episodes| Finding::ProgressFalls { episodes }, &|row| !row.progress_rises()),
];

/// Whether a score shows that it was meant as 0 to 1: a fraction of one point of a hundred, or a
/// pass for one point. A 0 is right on either scale, and a failure may have one point.
pub(super) fn like_fraction(row: &Row) -> bool {
    let State::Verdict { passed, score: Some(score), .. } = row.state else { return false };
    score > 0.0 && (score < 1.0 || (passed && score == 1.0))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{broken, failed, passed, round, row, scored, with_rounds};
    use super::super::{Aspect, Progress, RoundError, RoundKind};
    use super::*;

    fn codes(rows: &[Row]) -> Vec<String> {
        let found = clean(rows).findings;
        found.iter().map(|one| serde_json::to_value(one).unwrap()["code"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn each_bad_score_is_named() {
        let rows = [
            scored("a", "e/nan", f64::NAN),
            scored("a", "e/inf", f64::INFINITY),
            scored("a", "e/over", 100.5),
            scored("a", "e/under", -0.1),
            scored("a", "e/good", 100.0),
        ];
        assert_eq!(codes(&rows), ["score_not_a_number", "score_out_of_range"]);
        assert!(rows[..4].iter().all(|row| row.score().is_none()));
        assert_eq!(rows[4].score(), Some(100.0));
        let mut none = passed("a", "e/none");
        none.state = State::Verdict { passed: false, score: None, ended_by: crate::outcome::EndedBy::Agent };
        assert_eq!(codes(&[none]), ["score_missing"]);
    }

    #[test]
    fn fractions_are_told_from_low_scores() {
        // A failure with one point, and one with none, are no fractions; a pass for one point is.
        assert_eq!(codes(&[scored("a", "e/1", 1.0), scored("a", "e/0", 0.0)]), Vec::<String>::new());
        assert_eq!(codes(&[scored("a", "e/1", 0.5)]), ["scores_like_fractions"]);
        let mut pass = passed("a", "e/1");
        pass.state = State::Verdict { passed: true, score: Some(1.0), ended_by: crate::outcome::EndedBy::Agent };
        assert_eq!(codes(&[pass.clone()]), ["scores_like_fractions"]);
        pass.state = State::Verdict { passed: true, score: Some(0.0), ended_by: crate::outcome::EndedBy::Agent };
        assert_eq!(codes(&[pass]), ["passed_without_points"]);
    }

    #[test]
    fn duplicates_count_once_if_they_agree_and_never_if_not() {
        let one = passed("a", "e/1");
        let again = Row { episode: "r/again".to_owned(), ..one.clone() };
        let same = [one.clone(), again];
        assert_eq!(clean(&same).rows, [&same[0]]);
        assert_eq!(codes(&same), ["duplicate"]);
        let other = Row { episode: "r/other".to_owned(), ..failed("a", "e/1") };
        let differ = [one.clone(), other];
        assert!(clean(&differ).rows.is_empty());
        // The same sample of another run is another sample.
        let elsewhere = Row { run: "other".to_owned(), ..one.clone() };
        assert_eq!(clean(&[one, elsewhere]).rows.len(), 2);
        // What is no number is the same as itself.
        let (first, second) = (scored("a", "e/1", f64::NAN), scored("a", "e/1", f64::NAN));
        assert_eq!(clean(&[first, second]).rows.len(), 1);
    }

    #[test]
    fn what_has_no_verdict_is_named_by_how_it_was_settled() {
        let with = |state: State| Row { state, ..row("a", "e/1") };
        let faulted = with(State::Faulted { class: crate::outcome::FaultClass::Display });
        assert_eq!(codes(&[faulted]), ["without_verdict"]);
        assert_eq!(codes(&[with(State::Unsettled)]), ["unsettled"]);
        let unpriced = Row { dollars: None, ..passed("a", "e/1") };
        assert_eq!(codes(&[unpriced]), ["no_dollars"]);
    }

    #[test]
    fn rounds_that_contradict_themselves_are_named() {
        let held = with_rounds("a", "e/1", vec![round(RoundKind::Open, &[(Aspect::Visible, true)])]);
        assert!(codes(std::slice::from_ref(&held)).is_empty());
        // Every round holds, and the verdict says failed. A checklist may have its own thresholds.
        let mut other = Row { state: failed("a", "e/1").state, ..held.clone() };
        assert_eq!(codes(&[other.clone()]), ["rounds_disagree"]);
        other.rounds[0].kind = RoundKind::Other;
        assert!(codes(&[other]).is_empty());
        let mut broke = with_rounds("a", "e/1", vec![broken(RoundKind::Open, RoundError::Round, &[Aspect::Visible])]);
        broke.rounds[0].assertions[0].passed = true;
        assert_eq!(codes(&[broke]), ["broken_round_with_passes"]);
        let mut twice = held;
        let again = twice.rounds[0].assertions[0].clone();
        twice.rounds[0].assertions.push(again);
        assert_eq!(codes(&[twice]), ["rounds_unusable"]);
        let at = |step: u32| Progress { step, dollars: None, passed: None };
        let falls = Row { progress: vec![at(2), at(1)], ..failed("a", "e/1") };
        assert_eq!(codes(&[falls]), ["progress_falls"]);
    }
}
