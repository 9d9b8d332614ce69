//! What all loops share; the vendors' forms are tested beside them.

use longhaul_core::agent::Harness as Kind;
use longhaul_core::step::ActionOutcome;
use serde_json::{Value, json};

use super::*;
use crate::agents::harness::testing::{Rig, agent};

/// What a run of responses makes of each vendor's conversation.
fn replay(kind: Kind, responses: &[Value]) -> (Vec<Turn>, String) {
    let mut rig = Rig::new(kind, "m", Value::Null);
    let turns = responses.iter().enumerate().map(|(index, body)| rig.step(body, &format!("s{index}"))).collect();
    (turns, rig.body().to_string())
}

#[test]
fn a_conversation_is_a_function_of_what_was_recorded() {
    let responses = [
        json!({"content": [{"type": "tool_use", "id": "a", "name": "left_click", "input": {"coordinate": [5, 5]}}],
               "output": [{"type": "computer_call", "call_id": "a", "action": {"type": "wait"}}],
               "candidates": [{"content": {"parts": [{"functionCall": {"name": "wait", "args": {}}}]}}],
               "choices": [{"message": {"content": "{\"action\": \"wait\"}"}}]}),
        json!({"content": [], "output": [], "candidates": [], "choices": []}),
        json!({"content": [{"type": "text", "text": "ok"}], "output": []}),
    ];
    for kind in Kind::ALL {
        assert_eq!(replay(kind, &responses), replay(kind, &responses), "{}", kind.name());
        // The request after each prefix is that of the whole up to there.
        let (turns, _) = replay(kind, &responses[..1]);
        assert_eq!(turns[0].answer.actions.len(), 1, "{}", kind.name());
    }
}

#[test]
fn answers_are_told_what_became_of_each_of_their_calls() {
    let mut rig = Rig::new(Kind::AnthropicComputer, "m", Value::Null);
    let call = |id: &str, key: &str| json!({"type": "tool_use", "id": id, "name": "key", "input": {"text": key}});
    rig.take(&json!({"content": [call("a", "Tab Tab"), call("b", "Return")]}));
    // The second key of the first call failed.
    let outcomes = [ActionOutcome::Done, ActionOutcome::Error("E".to_owned()), ActionOutcome::Done];
    rig.see_after("second", &outcomes, None);
    let given = rig.body()["messages"][2]["content"].as_array().unwrap().clone();
    assert_eq!(given.iter().map(|block| block["is_error"] == json!(true)).collect::<Vec<_>>(), [true, false]);
}

#[test]
fn what_is_asked_for_on_the_way_is_said_once_and_outlives_a_summary() {
    for kind in Kind::ALL {
        let mut rig = Rig::new(kind, "m", Value::Null);
        // Empty answers of the goal before are none of the next one's.
        for name in ["one", "two"] {
            rig.step(&json!({"content": [], "output": [], "candidates": [], "choices": []}), name);
        }
        rig.conversation.ask_for("Sort the list.");
        rig.see("third", None);
        let said = |rig: &Rig| rig.body().to_string().matches("Sort the list.").count();
        assert_eq!(said(&rig), 1, "{}", kind.name());
        let turn = rig.step(&json!({"content": [], "output": [], "candidates": [], "choices": []}), "fourth");
        assert!(!turn.answer.done && !turn.given_up, "{}", kind.name());
        assert_eq!(said(&rig), 1);
        rig.conversation.history.go_on_from("I opened it.".to_owned());
        let body = rig.body().to_string();
        let at = |text: &str| body.find(text).unwrap_or_else(|| panic!("{text} is not in {body}"));
        assert!(at("Make the list.") < at("Sort the list.") && at("Sort the list.") < at("I opened it."));
        // A refusal of the first answer to it is one of nothing else.
        let refused = json!({"content": [], "stop_reason": "refusal", "output": [{"type": "message", "content": [
            {"type": "refusal", "refusal": "no"}]}], "candidates": [{"finishReason": "SAFETY"}],
            "choices": [{"message": {"refusal": "no"}, "finish_reason": "content_filter"}]});
        assert!(rig.take(&refused).given_up, "{}", kind.name());
    }
}

#[test]
fn a_picture_is_as_large_as_the_agent_says_and_no_larger_than_the_screen() {
    let wish = |image| {
        let mut agent = agent(Kind::Tools, "m", Value::Null);
        agent.image = image;
        Conversation::new(&agent, "t", ImageSize { width: 1920, height: 1080 }).unwrap().wish().size
    };
    assert_eq!(wish(None), None);
    assert_eq!(wish(Some(ImageSize { width: 4000, height: 4000 })), None);
    assert_eq!(wish(Some(ImageSize { width: 960, height: 960 })), Some(ImageSize { width: 960, height: 540 }));
}

#[test]
fn a_call_is_of_the_agents_endpoint_and_purpose() {
    for kind in Kind::ALL {
        let call = Rig::new(kind, "m", Value::Null).call();
        assert_eq!((call.endpoint.as_str(), call.model.as_str(), call.purpose), ("endpoint", "m", Purpose::Agent));
        assert!(!call.body.to_string().contains("previous_response_id"));
    }
}
