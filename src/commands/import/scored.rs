//! What a verifier's report of Gym-Anything comes to.
//!
//! There, a verifier that raised and a judge that could not be asked are failures of the agent with
//! a score of 0. Where the report says that it was so, it is no verdict here.

use longhaul_core::outcome::{AttemptEnd, EndedBy, FaultClass, Settlement, Verdict};
use serde_json::Value;

use super::files::text;

/// How an episode ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Outcome {
    /// It was scored.
    Verdict(Verdict),
    /// It was not.
    Unverified {
        /// What ended the agent's part.
        ended_by: EndedBy,
        /// Why there is no verdict.
        reason: String,
        /// Which failure it was, if it was one.
        fault: Option<FaultClass>,
    },
}

impl Outcome {
    /// It as an episode is settled.
    pub(super) fn settlement(&self) -> Settlement {
        match self.clone() {
            Self::Verdict(verdict) => Settlement::Verdict(verdict),
            Self::Unverified { ended_by, reason, fault } => {
                Settlement::Unverified { ended_by, reason, fault, parts: None }
            }
        }
    }

    /// It as an attempt ends.
    pub(super) fn end(&self) -> AttemptEnd {
        match self.clone() {
            Self::Verdict(verdict) => AttemptEnd::Verdict(verdict),
            Self::Unverified { ended_by, reason, fault } => {
                AttemptEnd::Unverified { ended_by, reason, fault, parts: None }
            }
        }
    }

    /// No verdict, for this reason.
    pub(super) fn none(ended_by: EndedBy, reason: &str) -> Self {
        Self::Unverified { ended_by, reason: reason.to_owned(), fault: None }
    }

    /// What ended the agent's part.
    pub(super) const fn ended_by(&self) -> EndedBy {
        match self {
            Self::Verdict(verdict) => verdict.ended_by,
            Self::Unverified { ended_by, .. } => *ended_by,
        }
    }
}

/// What scored it, as the report says.
pub(super) fn scored_by(report: &Value) -> Option<String> {
    report["mode"].as_str().map(str::to_owned)
}

/// Reads a verifier's report.
///
/// # Errors
///
/// It is none: a verdict that is no yes or no, or a score that is no number.
pub(super) fn outcome(report: &Value, ended_by: EndedBy) -> Result<Outcome, String> {
    if report.is_null() {
        return Ok(Outcome::none(ended_by, "no verifier's report is recorded"));
    }
    let Value::Object(fields) = report else { return Err("the verifier's report is no object".to_owned()) };
    let ended_by = match fields.get("ended_by").cloned().map(serde_json::from_value) {
        Some(Ok(said)) => said,
        Some(Err(_)) | None => ended_by,
    };
    let says = |key: &str| fields.get(key).and_then(text);
    if let Some(error) = says("error") {
        let fault = match scored_by(report).as_deref() {
            Some("vlm_checklist") => FaultClass::Judge,
            _ => FaultClass::Verifier,
        };
        return Ok(Outcome::Unverified { ended_by, reason: error, fault: Some(fault) });
    }
    if fields.get("decided") == Some(&Value::Bool(false)) {
        let reason = says("feedback").or_else(|| says("reason"));
        let reason = reason.unwrap_or_else(|| "nothing decided".to_owned());
        return Ok(Outcome::Unverified { ended_by, reason, fault: None });
    }
    let passed = match fields.get("passed") {
        Some(Value::Bool(passed)) => *passed,
        other => return Err(format!("the verifier's `passed` is {}", shown(other))),
    };
    let score = match fields.get("score").and_then(Value::as_f64) {
        Some(score) if score.is_finite() => score,
        _ => return Err(format!("the verifier's `score` is {}", shown(fields.get("score")))),
    };
    let feedback = says("feedback").unwrap_or_default();
    Ok(Outcome::Verdict(Verdict { passed, score, feedback, details: report.clone(), ended_by, parts: None }))
}

fn shown(value: Option<&Value>) -> String {
    value.map_or_else(|| "absent".to_owned(), |value| format!("`{value}`"))
}

/// What ended an agent's part, in Gym-Anything's words.
pub(super) fn ended_by(reason: Option<&str>) -> EndedBy {
    match reason {
        Some("max_steps") => EndedBy::Steps,
        Some("timeout") => EndedBy::Time,
        Some("Agent Completed") => EndedBy::Agent,
        _ => EndedBy::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_failure_to_find_out_is_no_failure_of_the_agent() {
        let broke = json!({"mode": "program", "error": "KeyError", "passed": false, "score": 0, "decided": true});
        let found = outcome(&broke, EndedBy::Agent).unwrap();
        assert!(
            matches!(&found, Outcome::Unverified { fault: Some(FaultClass::Verifier), reason, .. } if reason == "KeyError")
        );
        let judge = json!({"mode": "vlm_checklist", "error": "refused", "passed": false, "score": 0.0});
        let found = outcome(&judge, EndedBy::Steps).unwrap();
        assert!(matches!(found, Outcome::Unverified { fault: Some(FaultClass::Judge), ended_by: EndedBy::Steps, .. }));
        let undecided = json!({"decided": false, "passed": false, "score": 0, "feedback": "no program"});
        assert!(matches!(outcome(&undecided, EndedBy::Agent), Ok(Outcome::Unverified { fault: None, .. })));
        assert!(matches!(outcome(&Value::Null, EndedBy::Unknown), Ok(Outcome::Unverified { .. })));
    }

    #[test]
    fn a_verdict_keeps_all_that_was_said_and_what_is_none_is_refused() {
        let report = json!({"mode": "program", "passed": true, "score": 0.5, "feedback": "ok", "extra": [1]});
        let Outcome::Verdict(verdict) = outcome(&report, EndedBy::Unknown).unwrap() else { panic!("no verdict") };
        assert_eq!((verdict.passed, verdict.score, verdict.ended_by), (true, 0.5, EndedBy::Unknown));
        assert_eq!(verdict.details, report);
        for (bad, reason) in [
            (json!({"passed": true}), "the verifier's `score` is absent"),
            (json!({"passed": true, "score": "high"}), "the verifier's `score` is `\"high\"`"),
            (json!({"passed": "true", "score": 1}), "the verifier's `passed` is `\"true\"`"),
            (json!([]), "the verifier's report is no object"),
        ] {
            assert_eq!(outcome(&bad, EndedBy::Agent), Err(reason.to_owned()));
        }
    }
}
