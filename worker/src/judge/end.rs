//! What program, judge and rounds make of an attempt. Pure.

use longhaul_core::judge::{Judgement, ProgramPart, Scorer, VerdictParts};
use longhaul_core::outcome::{AttemptEnd, EndedBy, FaultClass, Verdict};
use longhaul_core::rounds::{RoundResult, RoundsScore, feedback as rounds_feedback, score};
use serde_json::Value;

/// What the task's own program has found, where it does not decide.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Program {
    part: ProgramPart,
    /// All that it returned.
    details: Value,
}

impl Program {
    /// What an end that the program alone gives says where it does not decide.
    pub(crate) fn of(end: AttemptEnd) -> Self {
        let unverified = |reason| Self { part: ProgramPart::Unverified { reason }, details: Value::Null };
        match end {
            AttemptEnd::Verdict(Verdict { passed, score, feedback, details, .. }) => {
                Self { part: ProgramPart::Scored { passed, score, feedback }, details }
            }
            AttemptEnd::Unverified { reason, .. } => unverified(reason),
            AttemptEnd::Fault(fault) => unverified(format!("{}: {}", fault.class, fault.message)),
            AttemptEnd::Cancelled => unverified("it was cancelled".to_owned()),
        }
    }
}

/// The end of an attempt that a judge decides. A judge that gave no answer is a fault of ours:
/// the episode is unverified, whatever the program says.
pub(crate) fn end(ended_by: EndedBy, program: Option<Program>, judged: Result<Judgement, String>) -> AttemptEnd {
    let (part, details) = program.map_or((None, Value::Null), |program| (Some(program.part), program.details));
    match judged {
        Ok(judgement) => AttemptEnd::Verdict(Verdict {
            passed: judgement.passed,
            score: judgement.score,
            feedback: feedback(&judgement),
            details,
            ended_by,
            parts: Some(Box::new(VerdictParts {
                decided_by: Scorer::Checklist,
                program: part,
                checklist: Some(judgement),
                rounds: Vec::new(),
            })),
        }),
        Err(reason) => AttemptEnd::Unverified {
            ended_by,
            reason,
            fault: Some(FaultClass::Judge),
            parts: part.map(|part| {
                let parts = VerdictParts {
                    decided_by: Scorer::Checklist,
                    program: Some(part),
                    checklist: None,
                    rounds: Vec::new(),
                };
                Box::new(parts)
            }),
        },
    }
}

/// The end of an attempt that the rounds of its task decide. A judge that was to be asked and gave
/// no answer is a fault of ours.
pub(crate) fn by_rounds(ended_by: EndedBy, rounds: Vec<RoundResult>, unanswered: Option<String>) -> AttemptEnd {
    let RoundsScore { passed, score, .. } = score(&rounds);
    let feedback = rounds_feedback(&rounds);
    let parts = VerdictParts { decided_by: Scorer::Rounds, program: None, checklist: None, rounds };
    let parts = Some(Box::new(parts));
    match unanswered {
        None => AttemptEnd::Verdict(Verdict { passed, score, feedback, details: Value::Null, ended_by, parts }),
        Some(reason) => AttemptEnd::Unverified { ended_by, reason, fault: Some(FaultClass::Judge), parts },
    }
}

/// The same end, with what rounds came to beside what decides.
pub(crate) fn beside(mut end: AttemptEnd, rounds: Vec<RoundResult>) -> AttemptEnd {
    if let AttemptEnd::Verdict(Verdict { parts, .. }) | AttemptEnd::Unverified { parts, .. } = &mut end
        && !rounds.is_empty()
    {
        let none =
            || VerdictParts { decided_by: Scorer::Checklist, program: None, checklist: None, rounds: Vec::new() };
        parts.get_or_insert_with(|| Box::new(none())).rounds = rounds;
    }
    end
}

/// What is said of a verdict in a few words: the first judge's, or what is known of the items.
fn feedback(judgement: &Judgement) -> String {
    let said = judgement.judges.iter().map(|judge| judge.reasoning.trim()).find(|reasoning| !reasoning.is_empty());
    said.map_or_else(
        || {
            let (passed, all) =
                (judgement.items.iter().filter(|item| item.mark.share() >= 1.0).count(), judgement.items.len());
            format!("{passed} of {all} items of the checklist hold")
        },
        str::to_owned,
    )
}
