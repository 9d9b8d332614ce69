//! What rounds come to, when they were played.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::check::{Held, check};
use super::plan::{Assertion, Check, RoundPlan, RoundsPlan};
use crate::digest::Digest;
use crate::judge::{Judgement, Mark, Rubric, RubricItem};
use crate::measure::{Aspect, AssertionRow, RoundError, RoundKind, RoundRow};
use crate::outcome::EndedBy;

/// How a round was played, before anything is said of its assertions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Played {
    /// What broke it, and how that came about.
    pub broke: Option<(RoundError, String)>,
    /// What ended the agent's part in it.
    pub ended_by: Option<EndedBy>,
    /// How many steps the agent took in it.
    pub steps: u32,
    /// The number of the agent's last step in it; none if it took none.
    pub last_step: Option<u32>,
    /// The number of the step with its last screen: that, or the one that opened it.
    pub last_screen: u32,
    /// What its hook read; none if it has none, or that failed.
    pub reading: Option<Value>,
    /// The digest of that as it was printed.
    pub recorded: Option<Digest>,
}

/// What a round came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundResult {
    /// Its place in the task, from 1.
    pub number: u32,
    /// What is done in it.
    pub kind: RoundKind,
    /// What broke it: then none of its assertions holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RoundError>,
    /// How that came about; hostile until escaped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What ended the agent's part in it; none if it was never reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_by: Option<EndedBy>,
    /// How many steps the agent took in it.
    pub steps: u32,
    /// The number of the agent's last step in it; none if it took none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_step: Option<u32>,
    /// The digest of what its hook printed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reading: Option<Digest>,
    /// Its assertions.
    pub assertions: Vec<AssertionResult>,
    /// What the judge said of its last screenshot, if it was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judged: Option<Judgement>,
}

/// What an assertion came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssertionResult {
    /// Its name, once in its round.
    pub id: String,
    /// What it looks at.
    pub aspect: Aspect,
    /// What it says, in words.
    pub says: String,
    /// Whether it holds; none where a judge was to say and did not.
    pub held: Option<bool>,
    /// Why; hostile until escaped.
    pub why: String,
}

/// What all rounds of a task come to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundsScore {
    /// Whether every assertion of every round holds.
    pub passed: bool,
    /// The share of assertions that hold, of 100.
    pub score: f64,
    /// How many hold.
    pub held: usize,
    /// How many there are.
    pub of: usize,
}

/// The results of all rounds of a plan: those of the first ones as they were played, those of the
/// others, which the episode did not come to, all failed. `judged` is what a judge said of a
/// round, by its number.
#[must_use]
pub fn results(plan: &RoundsPlan, played: &[Played], judged: &BTreeMap<u32, Judgement>) -> Vec<RoundResult> {
    let never = never_reached();
    let rounds = plan.rounds.iter().enumerate().zip(1_u32..);
    rounds
        .map(|((index, round), number)| {
            let own = played.get(index).unwrap_or(&never);
            let judgement = judged.get(&number);
            let assertion = |assertion: &Assertion| {
                let Assertion { id, aspect, says, check: how } = assertion;
                let (held, why) = match &own.broke {
                    Some(_) => (Some(false), "the round broke".to_owned()),
                    None => match asserted(how, id, own, played, judgement) {
                        Some(Held { held, why }) => (Some(held), why),
                        None => (None, "the judge did not say".to_owned()),
                    },
                };
                AssertionResult { id: id.clone(), aspect: *aspect, says: says.clone(), held, why }
            };
            RoundResult {
                number,
                kind: round.kind,
                error: own.broke.as_ref().map(|(error, _)| *error),
                why: own.broke.as_ref().map(|(_, why)| why.clone()),
                ended_by: own.ended_by,
                steps: own.steps,
                last_step: own.last_step,
                reading: own.recorded,
                assertions: round.assertions.iter().map(assertion).collect(),
                judged: judgement.cloned(),
            }
        })
        .collect()
}

fn never_reached() -> Played {
    let why = "the episode was over before it".to_owned();
    Played { broke: Some((RoundError::Round, why)), ..Played::default() }
}

/// Whether an assertion holds; none where a judge was to say and did not.
fn asserted(how: &Check, id: &str, own: &Played, played: &[Played], judgement: Option<&Judgement>) -> Option<Held> {
    match how {
        Check::Reading { at, test } => {
            let earlier = |round: u32| played.get((round as usize).checked_sub(1)?)?.reading.as_ref();
            Some(match &own.reading {
                Some(reading) => check(at, test, reading, earlier),
                None => Held { held: false, why: "there is no reading".to_owned() },
            })
        }
        Check::Judge { .. } => said(id, judgement?),
    }
}

/// What a judge says of one of its questions; none if it says nothing of it.
fn said(id: &str, judgement: &Judgement) -> Option<Held> {
    let mark = judgement.items.iter().find(|item| item.id == id)?.mark;
    let evidence = judgement
        .judges
        .iter()
        .flat_map(|judge| &judge.verdicts)
        .find(|verdict| verdict.id == id && verdict.mark == mark)
        .map(|verdict| verdict.evidence.trim())
        .filter(|evidence| !evidence.is_empty());
    let evidence = evidence.map(|evidence| format!(": {evidence}")).unwrap_or_default();
    Some(Held { held: mark == Mark::Pass, why: format!("the judge says {}{evidence}", mark.name()) })
}

/// Results as another judge sees them, by what it says of rounds, by their numbers: what it was
/// asked is decided anew, and all else stays as it was. What broke was not looked at, and stays
/// broken.
#[must_use]
pub fn judged_again(plan: &RoundsPlan, results: &[RoundResult], judged: &BTreeMap<u32, Judgement>) -> Vec<RoundResult> {
    let mut results = results.to_vec();
    for (result, round) in results.iter_mut().zip(&plan.rounds).filter(|(result, _)| result.error.is_none()) {
        let Some(judgement) = judged.get(&result.number) else { continue };
        let asked = |id: &str| {
            let asks = |assertion: &&Assertion| assertion.id == id && matches!(assertion.check, Check::Judge { .. });
            round.assertions.iter().any(|assertion| asks(&assertion))
        };
        for assertion in result.assertions.iter_mut().filter(|assertion| asked(&assertion.id)) {
            let Some(Held { held, why }) = said(&assertion.id, judgement) else { continue };
            (assertion.held, assertion.why) = (Some(held), why);
        }
        result.judged = Some(judgement.clone());
    }
    results
}

/// What a judge is asked of a round: an item for each of its questions. None if it has none.
#[must_use]
pub fn rubric(round: &RoundPlan) -> Option<Rubric> {
    let asked: Vec<(&str, &str)> = round
        .assertions
        .iter()
        .filter_map(|assertion| match &assertion.check {
            Check::Judge { asks } => Some((assertion.id.as_str(), asks.as_str())),
            Check::Reading { .. } => None,
        })
        .collect();
    #[expect(clippy::cast_precision_loss, reason = "a task has a few hundred assertions")]
    let points = 100.0 / asked.len().max(1) as f64;
    let item = |(id, asks): &(&str, &str)| RubricItem {
        id: (*id).to_owned(),
        points: Some(points),
        description: (*asks).to_owned(),
        visual_evidence: String::new(),
    };
    // Names and texts always have a form in JSON.
    let text = serde_json::to_vec(&asked).unwrap_or_default();
    (!asked.is_empty()).then(|| Rubric {
        completion: asked.iter().map(item).collect(),
        integrity: Vec::new(),
        privileged_info: None,
        digest: Digest::of(&text),
    })
}

/// What results come to.
#[must_use]
pub fn score(results: &[RoundResult]) -> RoundsScore {
    let all = || results.iter().flat_map(|round| &round.assertions);
    let (held, of) = (all().filter(|assertion| assertion.held == Some(true)).count(), all().count());
    #[expect(clippy::cast_precision_loss, reason = "a task has a few hundred assertions")]
    let score = if of == 0 { 0.0 } else { 100.0 * (held as f64 / of as f64) };
    let whole = results.iter().all(|round| round.error.is_none());
    RoundsScore { passed: whole && held == of && of > 0, score, held, of }
}

/// What is said of results in a few words: how many assertions hold, and the first that does not.
#[must_use]
pub fn feedback(results: &[RoundResult]) -> String {
    let RoundsScore { held, of, .. } = score(results);
    let counted = format!("{held} of {of} assertions hold");
    let Some(round) = results.iter().find(|round| !round.row().passed()) else { return counted };
    let reason = match (&round.why, round.assertions.iter().find(|assertion| assertion.held != Some(true))) {
        (Some(why), _) => why.clone(),
        (None, Some(assertion)) => format!("{}: {}", assertion.id, assertion.why),
        (None, None) => String::new(),
    };
    format!("{counted}; round {} ({}) fails first: {reason}", round.number, round.kind)
}

impl RoundResult {
    /// The round as measures take it. A step's number is that of its record.
    #[must_use]
    pub fn row(&self) -> RoundRow {
        let assertion = |assertion: &AssertionResult| AssertionRow {
            id: assertion.id.clone(),
            aspect: assertion.aspect,
            passed: assertion.held == Some(true),
        };
        RoundRow {
            number: self.number,
            kind: self.kind,
            error: self.error,
            last_step: self.last_step,
            assertions: self.assertions.iter().map(assertion).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::measure::FailureClass;
    use crate::rounds::{RoundBudget, Test};

    fn reads(id: &str, aspect: Aspect, at: &str, test: Test) -> Assertion {
        Assertion { id: id.to_owned(), aspect, says: id.to_owned(), check: Check::Reading { at: at.to_owned(), test } }
    }

    fn asks(id: &str) -> Assertion {
        let check = Check::Judge { asks: format!("Is {id} there?") };
        Assertion { id: id.to_owned(), aspect: Aspect::Visible, says: id.to_owned(), check }
    }

    fn round(kind: RoundKind, assertions: Vec<Assertion>) -> RoundPlan {
        RoundPlan {
            kind,
            goal: "go".to_owned(),
            before: None,
            read: Some("rounds/read.sh".to_owned()),
            budget: RoundBudget::default(),
            assertions,
        }
    }

    fn read(value: Value) -> Played {
        Played {
            ended_by: Some(EndedBy::Agent),
            steps: 1,
            last_step: Some(1),
            reading: Some(value),
            ..Played::default()
        }
    }

    /// Medium is asked for, the screen confirms "Normal", and the record says low, before and
    /// after it is opened again.
    #[test]
    fn a_screen_that_confirms_what_the_record_does_not_say_fails_the_business_check_alone() {
        let record = "/records/17/priority";
        let plan = RoundsPlan {
            rounds: vec![
                round(
                    RoundKind::Revise,
                    vec![
                        reads("priority", Aspect::Business, record, Test::Equals(json!("medium"))),
                        reads("told", Aspect::Visible, "/screen", Test::Contains(json!("Normal"))),
                    ],
                ),
                round(
                    RoundKind::Return,
                    vec![reads("kept", Aspect::Retention, record, Test::SameAs { round: 1, at: record.to_owned() })],
                ),
            ],
        };
        let found = json!({"records": {"17": {"priority": "low"}}, "screen": "Saved: Normal"});
        let results = results(&plan, &[read(found.clone()), read(found)], &BTreeMap::new());
        let held: Vec<_> = results.iter().flat_map(|round| &round.assertions).map(|one| one.held).collect();
        assert_eq!(held, [Some(false), Some(true), Some(true)]);
        let RoundsScore { passed, score, held, of } = score(&results);
        assert_eq!((passed, held, of, score.round()), (false, 2, 3, 67.0));
        let said = "2 of 3 assertions hold; round 1 (revise) fails first: priority: it is \"low\", not \"medium\"";
        assert_eq!(feedback(&results), said);
        let rows: Vec<RoundRow> = results.iter().map(RoundResult::row).collect();
        let failure = crate::measure::first_failure(&rows).unwrap();
        assert_eq!((failure.number, failure.class), (1, FailureClass::BusinessOnly));
        assert_eq!(rows[0].aspect(Aspect::Visible), Some(true));
    }

    #[test]
    fn what_was_never_reached_is_broken_and_what_broke_holds_nothing() {
        let there = || vec![reads("there", Aspect::Visible, "/x", Test::Equals(json!(1)))];
        let plan = RoundsPlan {
            rounds: [RoundKind::Open, RoundKind::Submit, RoundKind::Return].map(|kind| round(kind, there())).into(),
        };
        let refused = (RoundError::Generation, "the agent gave no answer".to_owned());
        let broken = Played { broke: Some(refused), ..read(json!({"x": 1})) };
        let results = results(&plan, &[read(json!({"x": 1})), broken], &BTreeMap::new());
        let errors: Vec<_> = results.iter().map(|round| round.error).collect();
        assert_eq!(errors, [None, Some(RoundError::Generation), Some(RoundError::Round)]);
        assert!(results[1..].iter().all(|round| round.assertions[0].held == Some(false)));
        assert_eq!(results[2].why.as_deref(), Some("the episode was over before it"));
        assert_eq!((score(&results).held, score(&results).passed), (1, false));
        assert_eq!(
            feedback(&results),
            "1 of 3 assertions hold; round 2 (submit) fails first: the agent gave no answer"
        );
    }

    #[test]
    fn a_round_without_its_reading_or_its_judge_is_no_pass() {
        let plan = RoundsPlan {
            rounds: vec![round(RoundKind::Open, vec![reads("x", Aspect::Business, "/x", Test::Absent), asks("mark")])],
        };
        let results = results(&plan, &[Played::default()], &BTreeMap::new());
        let held: Vec<_> = results[0].assertions.iter().map(|one| (one.held, one.why.as_str())).collect();
        assert_eq!(held, [(Some(false), "there is no reading"), (None, "the judge did not say")]);
        assert!(!score(&results).passed && !results[0].row().passed());
        let rubric = rubric(&plan.rounds[0]).unwrap();
        let items: Vec<_> = rubric.items().map(|item| (item.id.as_str(), item.description.as_str())).collect();
        assert_eq!(items, [("mark", "Is mark there?")]);
        assert!(super::rubric(&round(RoundKind::Open, Vec::new())).is_none());
    }

    fn says(id: &str, mark: &str) -> Judgement {
        let digest = Digest::of(b"x");
        serde_json::from_value(json!({
            "passed": mark == "pass", "score": 0.0, "completion": 0.0, "integrity_rate": 1.0, "completion_threshold": 100.0,
            "integrity_threshold": 1.0, "items": [{"id": id, "kind": "completion", "points": 100.0, "mark": mark}],
            "judges": [{"model": "m", "call": 0, "asked": 1, "score": 0.0, "passed": true, "reasoning": "",
                "verdicts": [{"id": id, "mark": mark, "evidence": "it is seen"}]}],
            "endpoint": "e", "model": "m", "frames": crate::judge::FramePolicy::Published, "shown": [0],
            "prompt": digest, "checklist": digest,
        }))
        .unwrap()
    }

    #[test]
    fn another_judge_changes_what_it_is_asked_and_nothing_else() {
        let there = || reads("there", Aspect::Business, "/x", Test::Equals(json!(1)));
        let plan = RoundsPlan {
            rounds: [RoundKind::Open, RoundKind::Submit].map(|kind| round(kind, vec![there(), asks("mark")])).into(),
        };
        let broken = Played { broke: Some((RoundError::Round, "no reading".to_owned())), ..Played::default() };
        let judged = |first: &str| BTreeMap::from([(1, says("mark", first)), (2, says("mark", "pass"))]);
        let before = results(&plan, &[read(json!({"x": 1})), broken], &judged("pass"));
        assert_eq!((score(&before).held, before[1].judged.is_some()), (2, true));
        let after = judged_again(&plan, &before, &judged("partial"));
        assert_eq!((after[0].assertions[0].clone(), &after[1]), (before[0].assertions[0].clone(), &before[1]));
        let asked = &after[0].assertions[1];
        assert_eq!((asked.held, asked.why.as_str()), (Some(false), "the judge says partial: it is seen"));
        assert_eq!(after[0].judged.as_ref().map(|judged| judged.passed), Some(false));
        // One that says nothing of it leaves it as it was, and nobody asked changes nothing.
        let silent = BTreeMap::from([(1, says("another", "fail"))]);
        assert_eq!(judged_again(&plan, &before, &silent)[0].assertions, before[0].assertions);
        assert_eq!(judged_again(&plan, &before, &BTreeMap::new()), before);
    }

    fn played() -> impl Strategy<Value = Played> {
        let broke = prop_oneof![
            4 => Just(None),
            1 => Just(Some(RoundError::Round)),
            1 => Just(Some(RoundError::Generation)),
        ];
        let reading = prop::option::weighted(0.9, prop::collection::btree_map("[ab]", 0..3_u8, 0..3));
        (broke, reading).prop_map(|(broke, reading)| Played {
            broke: broke.map(|error| (error, "it broke".to_owned())),
            reading: reading.map(|map| json!(map)),
            ..Played::default()
        })
    }

    fn assertions() -> impl Strategy<Value = Vec<Assertion>> {
        let test = prop_oneof![
            (0..3_u8).prop_map(|value| Test::Equals(json!(value))),
            (0..3_u8).prop_map(|value| Test::AtMost(value.into())),
            Just(Test::Absent),
            (0..4_u32, "/[ab]").prop_map(|(round, at)| Test::SameAs { round, at }),
        ];
        let one = prop_oneof![5 => ("/[ab]", test).prop_map(Some), 1 => Just(None)];
        prop::collection::vec(one, 0..4).prop_map(|all| {
            let named = all.into_iter().enumerate();
            named
                .map(|(index, one)| match one {
                    Some((at, test)) => reads(&index.to_string(), Aspect::Other, &at, test),
                    None => asks(&index.to_string()),
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn a_task_passes_when_and_only_when_every_assertion_of_every_round_holds(
            rounds in prop::collection::vec(assertions(), 1..5),
            played in prop::collection::vec(played(), 0..6),
        ) {
            let plan = RoundsPlan { rounds: rounds.into_iter().map(|all| round(RoundKind::Open, all)).collect() };
            let results = results(&plan, &played, &BTreeMap::new());
            // Every round and every assertion that the task assigns is in the denominators.
            prop_assert_eq!(results.len(), plan.rounds.len());
            let of: Vec<usize> = results.iter().map(|round| round.assertions.len()).collect();
            let assigned: Vec<usize> = plan.rounds.iter().map(|round| round.assertions.len()).collect();
            prop_assert_eq!(&of, &assigned);
            let rows: Vec<RoundRow> = results.iter().map(RoundResult::row).collect();
            let score = score(&results);
            let total: usize = of.iter().sum();
            prop_assert_eq!(score.passed, total > 0 && rows.iter().all(RoundRow::passed));
            let held: usize = rows.iter().map(|row| row.assertions.iter().filter(|one| row.holds(one)).count()).sum();
            prop_assert_eq!((score.held, score.of), (held, total));
            prop_assert!((0.0..=100.0).contains(&score.score) && (!score.passed || score.score == 100.0));
            for (index, row) in rows.iter().enumerate() {
                prop_assert!(row.has_no_check_twice());
                prop_assert!(index < played.len() || row.error == Some(RoundError::Round));
                prop_assert!(row.error.is_none() || row.assertions.iter().all(|one| !one.passed));
            }
            let stored = serde_json::to_vec(&results).unwrap();
            prop_assert_eq!(serde_json::from_slice::<Vec<RoundResult>>(&stored).unwrap(), results);
        }
    }
}
