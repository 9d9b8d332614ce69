//! Responses as OpenAI documents them, and as it does not.

use longhaul_core::agent::Harness as Kind;
use longhaul_core::step::ActionOutcome;
use serde_json::{Value, json};

use crate::agents::harness::testing::{Rig, hostile};

const PREVIEW: &str = "computer-use-preview";
const NEW: &str = "gpt-5.4";

fn rig(model: &str) -> Rig {
    Rig::new(Kind::OpenaiComputer, model, json!({"reasoning": {"effort": "low"}}))
}

fn reasoning() -> Value {
    json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2VjcmV0"})
}

/// A call with one action, as the preview's are.
fn one(action: Value) -> Value {
    json!({"id": "resp_1", "status": "completed", "output": [
        reasoning(),
        {"type": "computer_call", "id": "cu_1", "call_id": "call_1", "action": action,
         "pending_safety_checks": [], "status": "completed"},
    ], "usage": {"input_tokens": 100, "output_tokens": 20}})
}

/// A call with several.
fn several(actions: Value) -> Value {
    json!({"id": "resp_1", "status": "completed", "output": [
        {"type": "computer_call", "id": "cu_1", "call_id": "call_1", "actions": actions,
         "pending_safety_checks": [], "status": "completed"},
    ]})
}

#[test]
fn both_forms_of_the_tool_are_asked_for_without_state_at_the_vendor() {
    let body = rig(PREVIEW).body();
    assert_eq!(
        body["tools"],
        json!([{"type": "computer_use_preview", "display_width": 1280, "display_height": 720, "environment": "linux"}])
    );
    assert_eq!(body["truncation"], "auto");
    let body = rig(NEW).body();
    assert_eq!(body["tools"], json!([{"type": "computer"}]));
    assert_eq!(body.get("truncation"), None);
    assert_eq!((body["store"].clone(), body.get("previous_response_id")), (json!(false), None));
    assert_eq!(body["include"], json!(["reasoning.encrypted_content"]));
    assert_eq!(body["reasoning"], json!({"effort": "low"}));
    assert_eq!(body["input"][0]["content"][0], json!({"type": "input_text", "text": "Make the list."}));
    assert_eq!(body["input"][0]["content"][1]["image_url"], "data:image/png;base64,first");
}

#[test]
fn every_action_becomes_actions_of_the_benchmark() {
    let cases = [
        (
            json!({"type": "click", "button": "left", "x": 640, "y": 360}),
            json!([{"mouse": {"left_click": [960, 540]}}]),
        ),
        (
            json!({"type": "click", "button": "right", "x": 640, "y": 360}),
            json!([{"mouse": {"right_click": [960, 540]}}]),
        ),
        (
            json!({"type": "click", "button": "wheel", "x": 640, "y": 360}),
            json!([{"mouse": {"middle_click": [960, 540]}}]),
        ),
        (json!({"type": "click", "button": "back", "x": 1, "y": 1}), json!([{"keyboard": {"keys": ["alt", "Left"]}}])),
        (
            json!({"type": "click", "button": "left", "x": 640, "y": 360, "keys": ["CTRL"]}),
            json!([
                {"keyboard": {"keys_down": ["CTRL"]}},
                {"mouse": {"left_click": [960, 540]}},
                {"keyboard": {"keys_up": ["CTRL"]}},
            ]),
        ),
        (json!({"type": "double_click", "x": 640, "y": 360}), json!([{"mouse": {"double_click": [960, 540]}}])),
        (json!({"type": "move", "x": 640, "y": 360}), json!([{"mouse": {"move": [960, 540]}}])),
        (
            json!({"type": "drag", "path": [{"x": 0, "y": 0}, {"x": 640, "y": 360}]}),
            json!([{"mouse": {"left_click_drag": [[0, 0], [960, 540]]}}]),
        ),
        (
            json!({"type": "drag", "path": [[0, 0], [10, 10], [640, 360]]}),
            json!([
                {"mouse": {"move": [0, 0]}},
                {"mouse": {"buttons": {"left_down": true}}},
                {"mouse": {"move": [15, 15]}},
                {"mouse": {"move": [960, 540]}},
                {"mouse": {"buttons": {"left_up": true}}},
            ]),
        ),
        (
            json!({"type": "scroll", "x": 640, "y": 360, "scroll_x": 0, "scroll_y": 300}),
            json!([{"mouse": {"move": [960, 540]}}, {"mouse": {"scroll": 3}}]),
        ),
        (json!({"type": "keypress", "keys": ["CTRL", "S"]}), json!([{"keyboard": {"keys": ["CTRL", "S"]}}])),
        (json!({"type": "type", "text": "hello"}), json!([{"keyboard": {"text": "hello"}}])),
        (json!({"type": "wait"}), json!([{"action": "wait", "time": 2.0}])),
        (json!({"type": "screenshot"}), json!([{"action": "screenshot"}])),
    ];
    for (action, expected) in cases {
        let turn = rig(PREVIEW).take(&one(action.clone()));
        assert_eq!(turn.unreadable, Vec::<String>::new(), "{action}");
        assert_eq!(Value::Array(turn.answer.actions), expected, "{action}");
    }
    let actions = json!([{"type": "click", "button": "left", "x": 1, "y": 1}, {"type": "type", "text": "a"}]);
    assert_eq!(rig(NEW).take(&several(actions)).answer.actions.len(), 2);
}

#[test]
fn calls_are_answered_with_the_screen_and_reasoning_goes_back_as_it_came() {
    let mut rig = rig(PREVIEW);
    rig.take(&one(json!({"type": "click", "button": "left", "x": 1, "y": 1})));
    rig.see_after("second", &[ActionOutcome::Error("beyond the screen".to_owned())], None);
    let input = rig.body()["input"].as_array().unwrap().clone();
    assert_eq!(input[1], reasoning());
    assert_eq!(input[2]["type"], "computer_call");
    assert_eq!(
        input[3],
        json!({"type": "computer_call_output", "call_id": "call_1",
               "output": {"type": "computer_screenshot", "image_url": "data:image/png;base64,second"}})
    );
    assert!(input[4].to_string().contains("beyond the screen"), "an output has no place for words");
}

#[test]
fn safety_checks_are_acknowledged_and_said() {
    let check = json!({"id": "sc_1", "code": "malicious_instructions", "message": "Careful."});
    let mut response = one(json!({"type": "screenshot"}));
    response["output"][1]["pending_safety_checks"] = json!([check]);
    let mut rig = rig(PREVIEW);
    rig.take(&response);
    assert_eq!(
        rig.conversation.acknowledged().as_deref(),
        Some("acknowledged safety checks: malicious_instructions: Careful.")
    );
    rig.see("second", None);
    assert_eq!(rig.body()["input"][3]["acknowledged_safety_checks"], json!([check]));
    assert_eq!(rig.conversation.acknowledged(), None);
}

#[test]
fn exchanges_whose_screenshot_was_left_out_go_back_as_words() {
    let mut rig = rig(NEW);
    for step in 0..5 {
        rig.step(&several(json!([{"type": "type", "text": format!("text-{step}")}])), &format!("screen-{step}"));
    }
    let input = rig.body()["input"].as_array().unwrap().clone();
    let calls: Vec<&Value> = input.iter().filter(|item| item["type"] == "computer_call").collect();
    let outputs: Vec<&Value> = input.iter().filter(|item| item["type"] == "computer_call_output").collect();
    assert_eq!((calls.len(), outputs.len()), (3, 3), "each call has its answer, and each answer its call");
    let text = Value::Array(input).to_string();
    assert!(text.contains("text-0") && text.contains("[done here:") && !text.contains("screen-1\""));
}

#[test]
fn the_ends_of_an_answer_are_told_apart() {
    let message = |part: Value| json!({"output": [{"type": "message", "role": "assistant", "content": [part]}]});
    let turn = rig(NEW).take(&message(json!({"type": "output_text", "text": "Done."})));
    assert!(turn.answer.done && turn.answer.text.as_deref() == Some("Done."));
    let turn = rig(NEW).take(&message(json!({"type": "refusal", "refusal": "I will not."})));
    assert!(turn.answer.done && turn.unreadable[0].contains("I will not."));
    let cut = json!({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"},
                     "output": [reasoning()]});
    let turn = rig(NEW).take(&cut);
    assert!(!turn.answer.done && turn.unreadable[0].contains("cut off"));
}

#[test]
fn hostile_bodies_and_actions_do_nothing() {
    for body in hostile() {
        assert!(rig(NEW).take(&body).answer.actions.is_empty(), "{body}");
    }
    let actions = [
        json!({"type": "click", "button": "left", "x": 99999, "y": 1}),
        json!({"type": "click", "button": "left", "x": 1}),
        json!({"type": "click", "button": "laser", "x": 1, "y": 1}),
        json!({"type": "drag", "path": [{"x": 1, "y": 1}]}),
        json!({"type": "drag", "path": [{"x": "NaN", "y": 1}, {"x": 1, "y": 1}]}),
        json!({"type": "keypress", "keys": []}),
        json!({"type": "keypress", "keys": [5]}),
        json!({"type": "fly"}),
        json!("click"),
        json!({}),
    ];
    for action in actions {
        let turn = rig(PREVIEW).take(&one(action.clone()));
        assert!(turn.answer.actions.is_empty() && turn.unreadable.len() == 1, "{action}");
    }
    let mut rig = rig(NEW);
    let function = json!({"output": [{"type": "function_call", "call_id": "f", "name": "rm", "arguments": "{}"}]});
    assert_eq!(rig.step(&function, "second").unreadable.len(), 1);
    let body = rig.body();
    assert_eq!(body["input"][2]["type"], "function_call_output");
    assert!(body["input"][3].to_string().contains("second"));
}

#[test]
fn a_summary_is_asked_for_without_a_call() {
    let mut agent = crate::agents::harness::testing::agent(Kind::OpenaiComputer, NEW, Value::Null);
    agent.summarize_above = Some(100);
    let mut rig = Rig::of(&agent);
    rig.step(&one(json!({"type": "screenshot"})), "second");
    let call = rig.conversation.summary_call().expect("120 tokens are above 100");
    assert_eq!(call.body["tool_choice"], "none");
    let summary = json!({"output": [{"type": "message", "content": [{"type": "output_text", "text": "Notes."}]}]});
    rig.conversation.summarized(&summary);
    let input = rig.body()["input"].as_array().unwrap().clone();
    assert_eq!(input.len(), 1);
    assert!(input[0].to_string().contains("Notes."));
}
