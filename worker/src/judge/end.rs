//! What program and judge together make of an attempt. Pure.

use longhaul_core::judge::{Judgement, ProgramPart, Scorer, VerdictParts};
use longhaul_core::outcome::{AttemptEnd, EndedBy, FaultClass, Verdict};
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
            })),
        }),
        Err(reason) => AttemptEnd::Unverified {
            ended_by,
            reason,
            fault: Some(FaultClass::Judge),
            parts: part.map(|part| {
                Box::new(VerdictParts { decided_by: Scorer::Checklist, program: Some(part), checklist: None })
            }),
        },
    }
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
