//! Test-time audits: when the agent says that it is done, another model looks.
//!
//! The auditor gets the task's description and the last screenshots, and nothing else: no word
//! and no action of the agent. It says whether the task is complete, and what is missing.

use longhaul_core::agent::AuditPlan;
use longhaul_core::call::Purpose;
use longhaul_core::endpoint::Protocol;
use longhaul_gateway::ModelCall;
use serde_json::Value;

use super::harness::{image_part, text_part};
use super::picture::{PNG, Picture};
use crate::oneshot::{Question, words};

const AUDITOR: &str = "You check whether a task on a computer is complete. You see the task and the last screenshots \
     of the screen, the oldest first; you do not see who worked on it or how. Judge only by what the screenshots show: \
     what cannot be seen to be done is not done. Answer with one JSON object and nothing else: \
     {\"complete\": true or false, \"missing\": \"what is missing or wrong, in a few sentences; empty if nothing\"}";

/// The most of what an auditor says that the agent is told.
const MOST_MISSING: usize = 4000;

/// What an auditor says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    /// Nothing is missing.
    Complete,
    /// Something is.
    Missing(String),
    /// Its answer cannot be read: the agent's word stands.
    Unreadable(String),
}

/// The call of an audit.
pub(crate) fn call(plan: &AuditPlan, protocol: Protocol, task: &str, pictures: &[Picture]) -> ModelCall {
    let task = text_part(protocol, &format!("The task:\n\n{task}"));
    let images = pictures.iter().map(|picture| image_part(protocol, PNG, picture));
    let parts: Vec<Value> = std::iter::once(task).chain(images).collect();
    let question = Question {
        endpoint: &plan.endpoint,
        protocol,
        model: &plan.model,
        purpose: Purpose::Audit,
        system: Some(AUDITOR),
        parts,
        max_output: plan.max_output,
        temperature: None,
        top_p: None,
    };
    question.call()
}

/// What an auditor's response says.
pub(crate) fn read(protocol: Protocol, body: &Value) -> Finding {
    finding(&words(protocol, body))
}

fn finding(text: &str) -> Finding {
    let text = text.rfind("</think>").map_or(text, |at| &text[at..]);
    let objects = text.match_indices('{').take(50).filter_map(|(at, _)| {
        let first = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Value>().next();
        first.and_then(Result::ok)
    });
    for object in objects {
        let Some(complete) = object.get("complete").and_then(Value::as_bool) else { continue };
        if complete {
            return Finding::Complete;
        }
        let missing = object.get("missing").and_then(Value::as_str).unwrap_or_default().trim();
        let missing = &missing[..missing.floor_char_boundary(MOST_MISSING)];
        return Finding::Missing(if missing.is_empty() {
            "it does not say what".to_owned()
        } else {
            missing.to_owned()
        });
    }
    let excerpt: String = text.chars().take(200).collect();
    Finding::Unreadable(excerpt)
}

/// What the agent is told.
pub(crate) fn told(missing: &str) -> String {
    format!("Somebody who saw only the task and the screen says that the task is not complete: {missing}\nGo on.")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PLAN: fn() -> AuditPlan =
        || AuditPlan { endpoint: "e".to_owned(), model: "auditor".to_owned(), most: 2, max_output: 300, images: 3 };

    fn response(protocol: Protocol, text: &str) -> Value {
        match protocol {
            Protocol::Anthropic => json!({"content": [{"type": "thinking"}, {"type": "text", "text": text}]}),
            Protocol::OpenAi => json!({"choices": [{"message": {"content": text}}]}),
            Protocol::Gemini => json!({"candidates": [{"content": {"parts": [{"text": text}]}}]}),
        }
    }

    #[test]
    fn an_auditor_is_shown_the_task_and_the_screenshots_and_nothing_else() {
        let pictures: Vec<Picture> = vec!["UElDMQ==".into(), "UElDMg==".into()];
        for protocol in Protocol::ALL {
            let call = call(&PLAN(), protocol, "sort the list", &pictures);
            assert_eq!((call.purpose, call.model.as_str(), call.endpoint.as_str()), (Purpose::Audit, "auditor", "e"));
            let mut text = call.body.to_string();
            assert_eq!(text.matches("UElDM").count(), 2, "{protocol}");
            assert_eq!(text.matches("sort the list").count(), 1);
            assert!(text.contains("300") && !text.contains("tool"), "{text}");
            // Of words there are no others than the auditor's own.
            for known in [
                "sort the list",
                "The task:\\n\\n",
                &json!(AUDITOR).to_string()[1..json!(AUDITOR).to_string().len() - 1],
            ] {
                text = text.replace(known, "");
            }
            assert!(text.len() < 400, "{text}");
        }
    }

    #[test]
    fn findings_are_read_in_every_protocol_and_from_any_text() {
        for protocol in Protocol::ALL {
            let read = |text: &str| read(protocol, &response(protocol, text));
            assert_eq!(read("{\"complete\": true, \"missing\": \"\"}"), Finding::Complete);
            let fenced = "Hm.\n```json\n{\"complete\": false, \"missing\": \" the file is not saved \"}\n```";
            assert_eq!(read(fenced), Finding::Missing("the file is not saved".to_owned()));
            assert_eq!(read("{\"complete\": false}"), Finding::Missing("it does not say what".to_owned()));
            for garbage in ["", "yes", "{\"complete\": \"maybe\"}", &"{".repeat(10_000)] {
                assert!(matches!(read(garbage), Finding::Unreadable(_)), "{garbage}");
            }
            assert!(matches!(super::read(protocol, &json!([1])), Finding::Unreadable(_)));
        }
        let long = format!("{{\"complete\": false, \"missing\": \"{}\"}}", "ü".repeat(9000));
        assert!(matches!(finding(&long), Finding::Missing(missing) if missing.len() <= MOST_MISSING));
    }
}
