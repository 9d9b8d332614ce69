//! From what the runner reports to what the attempt ends with. Pure.

use longhaul_core::outcome::{AttemptEnd, EndedBy, FaultClass, Verdict};
use serde::Deserialize;
use serde_json::Value;

/// The most bytes of what a verifier returned that are kept.
const MAX_DETAILS: usize = 1024 * 1024;

/// The most bytes of a text of a verifier.
const MAX_TEXT: usize = 64 * 1024;

/// What `runner.py` reports as its last line.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Outcome {
    /// The verdict, or why there is none.
    #[serde(flatten)]
    pub result: Reported,
    /// What the verifier used that is not there.
    #[serde(default)]
    pub used: Used,
}

/// The verdict, or why there is none.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Reported {
    /// The verifier returned a verdict.
    Verdict {
        /// Whether the task counts as solved.
        passed: bool,
        /// The score.
        score: f64,
        /// What it says.
        feedback: String,
        /// All that it returned.
        details: Value,
        /// What a reader should know.
        #[serde(default)]
        notes: Vec<String>,
    },
    /// It returned none.
    Unusable {
        /// Why.
        reason: String,
        /// The end of the traceback.
        #[serde(default)]
        trace: Option<String>,
    },
}

/// What a verifier used that is not there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Used {
    /// It asked a judge, and had no answer.
    #[serde(default)]
    pub judge: bool,
    /// Functions of the framework that nobody provides here.
    #[serde(default)]
    pub unprovided: Vec<String>,
}

/// How the verifier's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessEnd {
    /// Its exit code.
    pub code: i32,
    /// Whether the time limit ended it.
    pub timed_out: bool,
}

/// What is known of a verifier's questions to a judge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Questions {
    /// How many were answered.
    pub answered: u32,
    /// Why the last one that was not answered was not, if there is a judge.
    pub unanswered: Option<String>,
    /// The verifier ended while one was open.
    pub open: bool,
}

/// The end of an attempt whose agent's part went to its end, and what a reader should know.
///
/// * No outcome, one that is no verdict, or a verifier that was ended by its time limit:
///   unverified.
/// * The verifier called something that nobody provides: unverified, whatever it says, since
///   what it made of the answer cannot be known.
/// * It asked a judge, had no answer, and says failed: unverified, since a judge that did not
///   answer is no failure of the agent. If it says passed without the judge, it passed.
#[must_use]
pub fn decide(
    outcome: Option<Outcome>,
    process: ProcessEnd,
    questions: &Questions,
    ended_by: EndedBy,
) -> (AttemptEnd, Vec<String>) {
    let of_class = |class: FaultClass, reason: String| {
        (AttemptEnd::Unverified { ended_by, reason, fault: Some(class), parts: None }, Vec::new())
    };
    let unverified = |reason: String| of_class(FaultClass::Verifier, reason);
    let too_long = || {
        if questions.open {
            let reason = "the verifier ran over its time limit while a judge had not answered it".to_owned();
            return of_class(FaultClass::Judge, reason);
        }
        unverified("the verifier ran over its time limit".to_owned())
    };
    let why = || questions.unanswered.clone().unwrap_or_else(|| "none is configured".to_owned());
    let Some(outcome) = outcome else {
        if process.timed_out {
            return too_long();
        }
        return unverified(format!("the verifier ended with code {} and gave no verdict", process.code));
    };
    let Outcome { result, used } = outcome;
    match result {
        Reported::Unusable { reason, trace } => {
            let reason = first(reason, MAX_TEXT);
            unverified(trace.map_or_else(|| reason.clone(), |trace| format!("{reason}\n{trace}")))
        }
        Reported::Verdict { .. } if process.timed_out => too_long(),
        Reported::Verdict { passed, .. } if !used.unprovided.is_empty() => {
            let mut names = used.unprovided;
            names.sort();
            names.dedup();
            unverified(format!(
                "the verifier says {} but called what is not provided here: {}",
                word(passed),
                names.join(", ")
            ))
        }
        Reported::Verdict { passed: false, score, .. } if used.judge => {
            let why = why();
            let reason =
                format!("the verifier asked a judge, {why}, and it says failed (score {score}) without an answer");
            of_class(FaultClass::Judge, reason)
        }
        Reported::Verdict { passed, score, feedback, details, mut notes } => {
            if used.judge {
                notes.push(format!("the verifier asked a judge, {}, and passed the task without an answer", why()));
            }
            if questions.answered > 0 {
                notes.push(format!("the verifier asked the judge {} times", questions.answered));
            }
            let feedback = first(feedback, MAX_TEXT);
            let details = bounded(details, &mut notes);
            (AttemptEnd::Verdict(Verdict { passed, score, feedback, details, ended_by, parts: None }), notes)
        }
    }
}

/// An end goes out as one message of a session, which holds 4 MB.
fn bounded(details: Value, notes: &mut Vec<String>) -> Value {
    let size = details.to_string().len();
    if size <= MAX_DETAILS {
        return details;
    }
    notes.push(format!("what the verifier returned has {size} bytes and was left out; its log may say more"));
    Value::Null
}

fn first(text: String, most: usize) -> String {
    if text.len() <= most { text } else { text.chars().take(most / 4).chain("...".chars()).collect() }
}

const fn word(passed: bool) -> &'static str {
    if passed { "passed" } else { "failed" }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const FINE: ProcessEnd = ProcessEnd { code: 0, timed_out: false };

    fn decided(outcome: Option<Outcome>, process: ProcessEnd) -> (AttemptEnd, Vec<String>) {
        decide(outcome, process, &Questions::default(), EndedBy::Agent)
    }

    fn reported(value: Value) -> Option<Outcome> {
        Some(serde_json::from_value(value).unwrap())
    }

    fn passed(used: Value) -> Option<Outcome> {
        reported(
            json!({"kind": "verdict", "passed": true, "score": 80.0, "feedback": "f", "details": {}, "used": used}),
        )
    }

    fn failed(used: Value) -> Option<Outcome> {
        reported(
            json!({"kind": "verdict", "passed": false, "score": 20.0, "feedback": "f", "details": {}, "used": used}),
        )
    }

    fn is_unverified(end: &AttemptEnd) -> bool {
        matches!(end, AttemptEnd::Unverified { .. })
    }

    #[test]
    fn without_an_outcome_there_is_never_a_verdict() {
        for process in [FINE, ProcessEnd { code: 1, timed_out: false }, ProcessEnd { code: 143, timed_out: true }] {
            assert!(is_unverified(&decided(None, process).0));
        }
    }

    #[test]
    fn a_verdict_that_came_before_the_time_limit_ended_the_process_does_not_count() {
        let late = ProcessEnd { code: 143, timed_out: true };
        assert!(is_unverified(&decided(passed(json!({})), late).0));
    }

    #[test]
    fn what_a_verifier_returns_cannot_grow_past_a_message() {
        let huge = "x".repeat(5_000_000);
        let value = json!({"kind": "verdict", "passed": true, "score": 1.0, "feedback": huge, "details": {"a": huge}});
        let (end, notes) = decided(reported(value), FINE);
        assert!(serde_json::to_vec(&end).unwrap().len() < 2_000_000);
        assert_eq!(notes.len(), 1);
        let reason = json!({"kind": "unusable", "reason": huge, "trace": "t"});
        let (end, _) = decided(reported(reason), FINE);
        assert!(serde_json::to_vec(&end).unwrap().len() < 2_000_000);
    }

    #[test]
    fn a_missing_judge_is_no_failure_of_the_agent() {
        assert!(is_unverified(&decided(failed(json!({"judge": true})), FINE).0));
        let (end, notes) = decided(passed(json!({"judge": true})), FINE);
        assert!(matches!(end, AttemptEnd::Verdict(Verdict { passed: true, .. })));
        assert_eq!(notes.len(), 1);
        let (end, notes) = decided(failed(json!({})), FINE);
        assert!(matches!(end, AttemptEnd::Verdict(Verdict { passed: false, .. })));
        assert!(notes.is_empty());
    }

    #[test]
    fn what_is_not_provided_spoils_even_a_pass() {
        let (end, _) = decided(passed(json!({"unprovided": ["a.b", "a.b"]})), FINE);
        let AttemptEnd::Unverified { reason, .. } = end else { panic!("{end:?}") };
        assert!(reason.ends_with("a.b"), "{reason}");
    }

    #[test]
    fn our_failures_have_a_class() {
        let class = |end: &AttemptEnd| match end {
            AttemptEnd::Unverified { fault, .. } => *fault,
            other => panic!("{other:?}"),
        };
        assert_eq!(class(&decided(None, FINE).0), Some(FaultClass::Verifier));
        let (end, _) = decided(failed(json!({"judge": true})), FINE);
        assert_eq!(class(&end), Some(FaultClass::Judge));
        let questions = Questions { unanswered: Some("its budget is spent".to_owned()), ..Questions::default() };
        let (end, _) = decide(failed(json!({"judge": true})), FINE, &questions, EndedBy::Agent);
        let AttemptEnd::Unverified { reason, .. } = &end else { panic!("{end:?}") };
        assert!(reason.contains("its budget is spent"), "{reason}");
        // An outage that is longer than the verifier has is the judge's.
        let late = ProcessEnd { code: 143, timed_out: true };
        let open = Questions { open: true, ..Questions::default() };
        assert_eq!(class(&decide(None, late, &open, EndedBy::Agent).0), Some(FaultClass::Judge));
        let answered = Questions { answered: 2, ..Questions::default() };
        let (end, notes) = decide(failed(json!({})), FINE, &answered, EndedBy::Agent);
        assert!(matches!(end, AttemptEnd::Verdict(Verdict { passed: false, .. })));
        assert_eq!(notes, ["the verifier asked the judge 2 times"]);
    }
}
