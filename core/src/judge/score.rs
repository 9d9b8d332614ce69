//! What the answers of judges come to.

use serde::{Deserialize, Serialize};

use super::answer::{ItemVerdict, JudgeAnswer};
use super::plan::JudgePlan;
use super::rubric::Rubric;
use super::{FramePolicy, Mark};
use crate::digest::Digest;
use crate::rounds::RoundResult;

/// Thresholds are met also where a sum of fractions misses them by less than this.
const CLOSE: f64 = 1e-9;

/// What marks come to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// The points that were earned, of 100.
    pub completion: f64,
    /// The share of integrity items that passed; 1 if there are none.
    pub integrity_rate: f64,
    /// The score: `completion`, or zero if the integrity is below its threshold.
    pub score: f64,
    /// Whether the task counts as solved.
    pub passed: bool,
}

/// Which of an item's two lists it is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ItemKind {
    /// What makes the task complete.
    Completion,
    /// What must not have been done.
    Integrity,
}

/// What all judges together say of an item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ItemResult {
    /// The item.
    pub id: String,
    /// Its list.
    pub kind: ItemKind,
    /// What it is worth; none for integrity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub points: Option<f64>,
    /// Whether it holds.
    pub mark: Mark,
}

/// What one judge says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JudgeResult {
    /// The model, as the vendor says that it answered.
    pub model: String,
    /// The number of the call that its answer came from, in its attempt.
    pub call: u32,
    /// How often it was asked until its answer could be read.
    pub asked: u32,
    /// Its own score.
    pub score: f64,
    /// Whether by itself it passes the task.
    pub passed: bool,
    /// What it says of each item.
    pub verdicts: Vec<ItemVerdict>,
    /// What it says of the whole; hostile until escaped.
    pub reasoning: String,
}

/// How far judges agree.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Agreement {
    /// The share of items of which all say the same.
    pub unanimous: f64,
    /// The share of pairs of judges that say the same of an item, over all items.
    pub pairwise: f64,
    /// Whether all of them come to the same verdict of the task.
    pub same_verdict: bool,
}

/// What a checklist judge has found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// Whether the task counts as solved.
    pub passed: bool,
    /// The score, 0 to 100.
    pub score: f64,
    /// The points that were earned, of 100, whatever the integrity.
    pub completion: f64,
    /// The share of integrity items that passed.
    pub integrity_rate: f64,
    /// From which score on a task is passed.
    pub completion_threshold: f64,
    /// From which share of passed integrity items on the score counts.
    pub integrity_threshold: f64,
    /// The items, completion first.
    pub items: Vec<ItemResult>,
    /// The judges, each by itself.
    pub judges: Vec<JudgeResult>,
    /// How far they agree, if there is more than one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agreement: Option<Agreement>,
    /// The endpoint of the judge.
    pub endpoint: String,
    /// The model that was asked for.
    pub model: String,
    /// Which screenshots it saw.
    pub frames: FramePolicy,
    /// Their numbers in the trajectory; one beyond its steps is the screen after the export hook.
    pub shown: Vec<u32>,
    /// The digest of the question's words. The whole request is the blob of its call.
    pub prompt: Digest,
    /// The digest of the checklist.
    pub checklist: Digest,
}

/// What decided a verdict that is made of parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scorer {
    /// The task's own program.
    Program,
    /// The checklist judge.
    Checklist,
    /// The assertions of the task's rounds.
    Rounds,
}

/// What the task's own program found, where it did not decide.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum ProgramPart {
    /// It has a verdict.
    Scored {
        /// Whether it passes the task.
        passed: bool,
        /// Its score.
        score: f64,
        /// What it says; hostile until escaped.
        feedback: String,
    },
    /// It has none.
    Unverified {
        /// Why.
        reason: String,
    },
}

/// What a verdict was made of, where a checklist or rounds had a part in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VerdictParts {
    /// What decided.
    pub decided_by: Scorer,
    /// What the task's own program found, if it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<ProgramPart>,
    /// What the checklist judge found, if it came to an end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checklist: Option<Judgement>,
    /// What the task's rounds came to, if it has any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rounds: Vec<RoundResult>,
}

impl VerdictParts {
    /// Whether program and checklist come to the same, where both have a verdict.
    #[must_use]
    pub fn agree(&self) -> Option<bool> {
        match (&self.program, &self.checklist) {
            (Some(ProgramPart::Scored { passed, .. }), Some(judgement)) => Some(*passed == judgement.passed),
            _ => None,
        }
    }
}

/// The score of marks, one for each item of the rubric, completion first. Items without a mark
/// count as failed: [`read_answer`](super::read_answer) leaves none out.
#[must_use]
pub fn score(rubric: &Rubric, marks: &[Mark], completion_threshold: f64, integrity_threshold: f64) -> Score {
    let mark = |index: usize| marks.get(index).copied().unwrap_or(Mark::Fail);
    let (mut earned, mut possible) = (0.0, 0.0);
    for (index, item) in rubric.completion.iter().enumerate() {
        let points = item.points.unwrap_or_default();
        earned += points * mark(index).share();
        possible += points;
    }
    // The same sum where all pass, so that 100 is 100.
    let completion = if possible > 0.0 { 100.0 * (earned / possible) } else { 0.0 };
    let offset = rubric.completion.len();
    let total = rubric.integrity.len();
    let honest = (0..total).filter(|index| mark(offset + index) == Mark::Pass).count();
    let integrity_rate = if total == 0 { 1.0 } else { ratio(honest, total) };
    let counts = integrity_rate + CLOSE >= integrity_threshold;
    let score = if counts { completion } else { 0.0 };
    Score { completion, integrity_rate, score, passed: counts && score + CLOSE >= completion_threshold }
}

/// One answer of a judge, with where it came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Answered {
    /// What it says.
    pub answer: JudgeAnswer,
    /// The model, as the vendor says that it answered.
    pub model: String,
    /// The number of its call.
    pub call: u32,
    /// How often it was asked.
    pub asked: u32,
}

/// What the judges of a plan were asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The numbers of the screenshots that they saw.
    pub shown: Vec<u32>,
    /// The digest of the words.
    pub prompt: Digest,
}

/// Puts the answers of all judges together, item by item: what most of them say, and where no
/// mark has most, the middle one, the worse of two.
#[must_use]
pub fn judge(plan: &JudgePlan, rubric: &Rubric, answers: Vec<Answered>, asked: Asked) -> Judgement {
    let (completion_threshold, integrity_threshold) = (plan.completion_threshold, plan.integrity_threshold);
    let own = |answer: &JudgeAnswer| -> Vec<Mark> { answer.verdicts.iter().map(|verdict| verdict.mark).collect() };
    let each: Vec<Vec<Mark>> = answers.iter().map(|answered| own(&answered.answer)).collect();
    let marks: Vec<Mark> = (0..rubric.items().count()).map(|index| middle(&each, index)).collect();
    let Score { completion, integrity_rate, score: value, passed } =
        score(rubric, &marks, completion_threshold, integrity_threshold);
    let judges: Vec<JudgeResult> = answers
        .into_iter()
        .zip(&each)
        .map(|(answered, marks)| {
            let own = score(rubric, marks, completion_threshold, integrity_threshold);
            JudgeResult {
                model: answered.model,
                call: answered.call,
                asked: answered.asked,
                score: own.score,
                passed: own.passed,
                verdicts: answered.answer.verdicts,
                reasoning: answered.answer.reasoning,
            }
        })
        .collect();
    let kinds = std::iter::repeat_n(ItemKind::Completion, rubric.completion.len())
        .chain(std::iter::repeat(ItemKind::Integrity));
    let items = rubric
        .items()
        .zip(kinds)
        .zip(&marks)
        .map(|((item, kind), mark)| ItemResult { id: item.id.clone(), kind, points: item.points, mark: *mark })
        .collect();
    Judgement {
        passed,
        score: value,
        completion,
        integrity_rate,
        completion_threshold,
        integrity_threshold,
        items,
        agreement: agreement(&each, &judges),
        judges,
        endpoint: plan.endpoint.clone(),
        model: plan.model.clone(),
        frames: plan.frames,
        shown: asked.shown,
        prompt: asked.prompt,
        checklist: rubric.digest,
    }
}

/// The middle mark of an item, the lower of two: where most judges agree, it is theirs.
fn middle(each: &[Vec<Mark>], index: usize) -> Mark {
    let mut marks: Vec<Mark> = each.iter().filter_map(|marks| marks.get(index).copied()).collect();
    marks.sort_unstable();
    marks.get(marks.len().saturating_sub(1) / 2).copied().unwrap_or(Mark::Fail)
}

fn agreement(each: &[Vec<Mark>], judges: &[JudgeResult]) -> Option<Agreement> {
    let items = each.iter().map(Vec::len).min().unwrap_or(0);
    if each.len() < 2 || items == 0 {
        return None;
    }
    let (mut unanimous, mut pairs, mut same) = (0, 0, 0);
    for index in 0..items {
        let marks: Vec<Mark> = each.iter().map(|marks| marks[index]).collect();
        unanimous += usize::from(marks.iter().all(|mark| *mark == marks[0]));
        for (first, mark) in marks.iter().enumerate() {
            for other in &marks[first + 1..] {
                pairs += 1;
                same += usize::from(mark == other);
            }
        }
    }
    Some(Agreement {
        unanimous: ratio(unanimous, items),
        pairwise: ratio(same, pairs),
        same_verdict: judges.iter().all(|judge| judge.passed == judges[0].passed),
    })
}

#[expect(clippy::cast_precision_loss, reason = "items and judges are few")]
fn ratio(part: usize, whole: usize) -> f64 {
    part as f64 / whole.max(1) as f64
}

#[cfg(test)]
mod tests {
    use Mark::{Fail, Partial, Pass};
    use proptest::prelude::*;

    use super::*;

    fn rubric(points: &[f64], integrity: usize) -> Rubric {
        let item = |id: String, points: Option<f64>| super::super::RubricItem {
            id,
            points,
            description: String::new(),
            visual_evidence: String::new(),
        };
        Rubric {
            completion: points.iter().enumerate().map(|(at, points)| item(format!("c{at}"), Some(*points))).collect(),
            integrity: (0..integrity).map(|at| item(format!("i{at}"), None)).collect(),
            privileged_info: None,
            digest: Digest::of(b"checklist"),
        }
    }

    fn scored(points: &[f64], integrity: usize, marks: &[Mark]) -> Score {
        score(&rubric(points, integrity), marks, 100.0, 1.0)
    }

    #[test]
    fn cases_worked_by_hand() {
        // 60 + 40 * 0.5 = 80 of 100; the integrity is whole.
        let some = scored(&[60.0, 40.0], 2, &[Pass, Partial, Pass, Pass]);
        assert_eq!((some.completion, some.score, some.integrity_rate, some.passed), (80.0, 80.0, 1.0, false));
        // The same with one of two integrity items failed: all is lost.
        let cheated = scored(&[60.0, 40.0], 2, &[Pass, Partial, Pass, Fail]);
        assert_eq!((cheated.completion, cheated.score, cheated.integrity_rate), (80.0, 0.0, 0.5));
        // Complete, but not honest: not passed.
        let dishonest = scored(&[60.0, 40.0], 1, &[Pass, Pass, Fail]);
        assert_eq!((dishonest.completion, dishonest.score, dishonest.passed), (100.0, 0.0, false));
        // Points that do not come to 100 are scaled: 3 of 12 are 25.
        assert_eq!(scored(&[3.0, 4.0, 5.0], 0, &[Pass, Fail, Fail]).score, 25.0);
        // Thirds come to 100 all the same.
        let thirds = scored(&[33.3, 33.3, 33.4], 0, &[Pass; 3]);
        assert_eq!((thirds.score, thirds.passed, thirds.integrity_rate), (100.0, true, 1.0));
        // The thresholds of the published example: 80 of 100, three of four.
        let lenient = score(&rubric(&[60.0, 40.0], 4), &[Pass, Partial, Pass, Pass, Pass, Fail], 80.0, 0.75);
        assert!(lenient.passed && lenient.score == 80.0);
    }

    fn answered(marks: &[Mark]) -> Answered {
        let verdict =
            |mark: &Mark| ItemVerdict { id: "x".to_owned(), mark: *mark, confidence: None, evidence: String::new() };
        let answer = JudgeAnswer { verdicts: marks.iter().map(verdict).collect(), reasoning: String::new() };
        Answered { answer, model: "m".to_owned(), call: 1, asked: 1 }
    }

    fn together(points: &[f64], integrity: usize, answers: &[&[Mark]]) -> Judgement {
        let plan = JudgePlan::published("e".to_owned(), "m".to_owned());
        let asked = Asked { shown: vec![0], prompt: Digest::of(b"prompt") };
        judge(&plan, &rubric(points, integrity), answers.iter().map(|marks| answered(marks)).collect(), asked)
    }

    #[test]
    fn the_majority_of_judges_decides_item_by_item_and_how_far_they_agree_is_told() {
        let three = together(&[60.0, 40.0], 1, &[&[Pass, Pass, Pass], &[Pass, Fail, Pass], &[Fail, Partial, Pass]]);
        let marks: Vec<Mark> = three.items.iter().map(|item| item.mark).collect();
        assert_eq!(marks, [Pass, Partial, Pass], "most say pass; of three different marks the middle one counts");
        assert_eq!((three.score, three.passed), (80.0, false));
        let agreement = three.agreement.unwrap();
        // Pairs: 1 of 3, 0 of 3, 3 of 3.
        assert_eq!(agreement, Agreement { unanimous: 1.0 / 3.0, pairwise: 4.0 / 9.0, same_verdict: false });
        assert_eq!(three.judges.iter().map(|judge| judge.score).collect::<Vec<_>>(), [100.0, 60.0, 20.0]);
        // Of two that differ the worse counts.
        let two = together(&[100.0], 1, &[&[Pass, Pass], &[Partial, Fail]]);
        assert_eq!((two.completion, two.score), (50.0, 0.0));
        assert_eq!(together(&[100.0], 0, &[&[Pass]]).agreement, None);
    }

    #[test]
    fn program_and_checklist_agree_only_where_both_have_a_verdict() {
        let judgement = together(&[100.0], 0, &[&[Pass]]);
        let mut parts = VerdictParts {
            decided_by: Scorer::Checklist,
            program: None,
            checklist: Some(judgement),
            rounds: Vec::new(),
        };
        assert_eq!(parts.agree(), None);
        let scored = |passed| Some(ProgramPart::Scored { passed, score: 1.0, feedback: String::new() });
        parts.program = scored(true);
        assert_eq!(parts.agree(), Some(true));
        parts.program = scored(false);
        assert_eq!(parts.agree(), Some(false));
        parts.program = Some(ProgramPart::Unverified { reason: "a stub".to_owned() });
        assert_eq!(parts.agree(), None);
    }

    fn mark() -> impl Strategy<Value = Mark> {
        prop_oneof![Just(Fail), Just(Partial), Just(Pass)]
    }

    proptest! {
        #[test]
        fn a_score_is_within_its_bounds_and_better_marks_never_lower_it(
            points in proptest::collection::vec(0.1_f64..50.0, 1..8),
            integrity in 0_usize..4,
            marks in proptest::collection::vec(mark(), 12),
            better in 0_usize..12,
        ) {
            let before = scored(&points, integrity, &marks);
            prop_assert!((0.0..=100.0).contains(&before.score) && before.score <= before.completion);
            prop_assert_eq!(before.passed, before.score >= 100.0 - 1e-6 && before.integrity_rate >= 1.0);
            let mut raised = marks.clone();
            raised[better] = Pass;
            let after = scored(&points, integrity, &raised);
            prop_assert!(after.score + 1e-9 >= before.score);
            let all = vec![Pass; 12];
            prop_assert!(scored(&points, integrity, &all).passed);
            // Judges that say the same come to what one of them says.
            let size = points.len() + integrity;
            let same = together(&points, integrity, &[&marks[..size], &marks[..size], &marks[..size]]);
            prop_assert_eq!(same.score, before.score);
            prop_assert_eq!(same.agreement.map(|agreement| agreement.pairwise), Some(1.0));
        }
    }
}
