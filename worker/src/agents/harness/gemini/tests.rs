//! `generateContent` as Google documents it, and as it does not.

use longhaul_core::agent::Harness as Kind;
use longhaul_core::step::ActionOutcome;
use serde_json::{Value, json};

use crate::agents::harness::testing::{Rig, hostile};

const OLD: &str = "gemini-2.5-computer-use-preview-10-2025";
const NEW: &str = "gemini-3.5-flash";

fn rig(model: &str) -> Rig {
    Rig::new(Kind::GeminiComputer, model, json!({"generationConfig": {"temperature": 0.5}}))
}

fn calls(calls: &[(&str, Value)]) -> Value {
    let parts: Vec<Value> = calls
        .iter()
        .map(|(name, args)| json!({"functionCall": {"name": name, "args": args}, "thoughtSignature": "c2ln"}))
        .collect();
    json!({"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}],
           "usageMetadata": {"promptTokenCount": 90, "candidatesTokenCount": 5, "thoughtsTokenCount": 5}})
}

#[test]
fn each_model_gets_its_surroundings() {
    let body = rig(NEW).body();
    assert_eq!(body["tools"], json!([{"computerUse": {"environment": "ENVIRONMENT_DESKTOP"}}]));
    assert_eq!(body["generationConfig"], json!({"maxOutputTokens": 1000, "temperature": 0.5}));
    assert_eq!(body["contents"][0]["parts"][0]["text"], "Make the list.");
    assert_eq!(body["contents"][0]["parts"][1]["inlineData"], json!({"mimeType": "image/png", "data": "first"}));
    let body = rig(OLD).body();
    assert_eq!(body["tools"][0]["computerUse"]["environment"], "ENVIRONMENT_BROWSER");
    assert!(body["tools"][0]["computerUse"]["excludedPredefinedFunctions"].to_string().contains("navigate"));
    let set = json!({"loop": {"environment": "ENVIRONMENT_MOBILE"}});
    let body = Rig::new(Kind::GeminiComputer, NEW, set).body();
    assert_eq!(body["tools"][0]["computerUse"]["environment"], "ENVIRONMENT_MOBILE");
}

#[test]
fn both_vocabularies_become_actions_of_the_benchmark() {
    let at = json!({"x": 500, "y": 500, "intent": "why"});
    let place = [960, 540];
    let cases = [
        ("click", at.clone(), json!([{"mouse": {"left_click": place}}])),
        ("click_at", at.clone(), json!([{"mouse": {"left_click": place}}])),
        ("double_click", at.clone(), json!([{"mouse": {"double_click": place}}])),
        ("triple_click", at.clone(), json!([{"mouse": {"triple_click": place}}])),
        ("middle_click", at.clone(), json!([{"mouse": {"middle_click": place}}])),
        ("right_click", at.clone(), json!([{"mouse": {"right_click": place}}])),
        ("move", at.clone(), json!([{"mouse": {"move": place}}])),
        ("hover_at", at.clone(), json!([{"mouse": {"move": place}}])),
        ("mouse_down", at.clone(), json!([{"mouse": {"move": place}}, {"mouse": {"buttons": {"left_down": true}}}])),
        ("mouse_up", at, json!([{"mouse": {"move": place}}, {"mouse": {"buttons": {"left_up": true}}}])),
        ("type", json!({"text": "a"}), json!([{"keyboard": {"text": "a"}}])),
        (
            "type",
            json!({"text": "a", "press_enter": true}),
            json!([{"keyboard": {"text": "a"}}, {"keyboard": {"keys": ["Return"]}}]),
        ),
        (
            "type_text_at",
            json!({"x": 500, "y": 500, "text": "a", "press_enter": false}),
            json!([
                {"mouse": {"left_click": place}},
                {"keyboard": {"keys": ["ctrl", "a"]}},
                {"keyboard": {"keys": ["BackSpace"]}},
                {"keyboard": {"text": "a"}},
            ]),
        ),
        (
            "drag_and_drop",
            json!({"start_x": 0, "start_y": 0, "end_x": 500, "end_y": 500}),
            json!([{"mouse": {"left_click_drag": [[0, 0], place]}}]),
        ),
        (
            "drag_and_drop",
            json!({"x": 0, "y": 0, "destination_x": 500, "destination_y": 500}),
            json!([{"mouse": {"left_click_drag": [[0, 0], place]}}]),
        ),
        ("press_key", json!({"key": "Enter"}), json!([{"keyboard": {"keys": ["Enter"]}}])),
        ("key_down", json!({"key": "shift"}), json!([{"keyboard": {"keys_down": ["shift"]}}])),
        ("key_up", json!({"key": "shift"}), json!([{"keyboard": {"keys_up": ["shift"]}}])),
        ("hotkey", json!({"keys": ["ctrl", "s"]}), json!([{"keyboard": {"keys": ["ctrl", "s"]}}])),
        ("key_combination", json!({"keys": "Control+A"}), json!([{"keyboard": {"keys": ["Control", "A"]}}])),
        (
            "scroll",
            json!({"x": 500, "y": 500, "direction": "down"}),
            json!([{"mouse": {"move": place}}, {"mouse": {"scroll": 3}}]),
        ),
        (
            "scroll_at",
            json!({"x": 500, "y": 500, "direction": "left", "magnitude": 800}),
            json!([{"mouse": {"move": place}}, {"mouse": {"hscroll": -8}}]),
        ),
        ("wait", json!({"seconds": 3}), json!([{"action": "wait", "time": 3.0}])),
        ("wait_5_seconds", json!({}), json!([{"action": "wait", "time": 5.0}])),
        ("take_screenshot", json!({}), json!([{"action": "screenshot"}])),
        ("go_back", json!({}), json!([{"keyboard": {"keys": ["alt", "Left"]}}])),
    ];
    for (name, args, expected) in cases {
        let turn = rig(NEW).take(&calls(&[(name, args.clone())]));
        assert_eq!(turn.unreadable, Vec::<String>::new(), "{name} {args}");
        assert_eq!(Value::Array(turn.answer.actions), expected, "{name} {args}");
    }
}

#[test]
fn calls_are_answered_by_name_with_one_screenshot_and_contents_go_back_as_they_came() {
    let mut rig = rig(NEW);
    let response = calls(&[("click", json!({"x": 1, "y": 1})), ("type", json!({"text": "a"}))]);
    rig.take(&response);
    rig.see_after("second", &[ActionOutcome::Error("refused".to_owned()), ActionOutcome::Done], Some("Look."));
    let body = rig.body();
    assert_eq!(body["contents"][1], response["candidates"][0]["content"], "thought signatures with them");
    let parts = body["contents"][2]["parts"].as_array().unwrap();
    assert_eq!(parts[0]["functionResponse"], json!({"name": "click", "response": {"error": "refused"}}));
    assert_eq!(parts[1]["functionResponse"]["parts"][0]["inlineData"]["data"], "second");
    assert_eq!(parts[2]["text"], "Look.");
    assert_eq!(body.to_string().matches("second").count(), 1);
}

#[test]
fn a_browsers_form_is_given_an_address_and_safety_is_acknowledged() {
    let decision = json!({"decision": "require_confirmation", "explanation": "A banner."});
    let mut rig = rig(OLD);
    rig.take(&calls(&[("click_at", json!({"x": 1, "y": 1, "safety_decision": decision}))]));
    assert!(rig.conversation.acknowledged().unwrap().contains("A banner."));
    rig.see("second", None);
    let response = rig.body()["contents"][2]["parts"][0]["functionResponse"]["response"].clone();
    assert_eq!(response, json!({"output": "done", "url": "about:blank", "safety_acknowledgement": "true"}));
}

#[test]
fn the_ends_of_an_answer_are_told_apart() {
    let text = |reason: &str| {
        json!({"candidates": [{"content": {"parts": [
        {"text": "thinking", "thought": true}, {"text": "Done."}]}, "finishReason": reason}]})
    };
    let turn = rig(NEW).take(&text("STOP"));
    assert_eq!((turn.answer.done, turn.answer.text.as_deref()), (true, Some("Done.")));
    assert!(!rig(NEW).take(&text("MAX_TOKENS")).answer.done);
    let turn = rig(NEW).take(&json!({"candidates": [{"finishReason": "SAFETY"}]}));
    assert!(turn.answer.done && turn.unreadable[0].contains("SAFETY"));
    let turn = rig(NEW).take(&json!({"promptFeedback": {"blockReason": "OTHER"}}));
    assert!(turn.answer.done && turn.unreadable[0].contains("OTHER"));
    assert!(!rig(NEW).take(&json!({"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL"}]})).answer.done);
}

#[test]
fn hostile_bodies_and_arguments_do_nothing() {
    for body in hostile() {
        assert!(rig(NEW).take(&body).answer.actions.is_empty(), "{body}");
    }
    for (name, args) in [
        ("click", json!({"x": 1001, "y": 0})),
        ("click", json!({"x": -1, "y": 0})),
        ("click", json!({"x": 5})),
        ("click", json!({"x": "NaN", "y": "inf"})),
        ("navigate", json!({"url": "http://x"})),
        ("scroll", json!({"x": 1, "y": 1, "direction": "in"})),
        ("hotkey", json!({"keys": []})),
        ("type", json!({})),
        ("fly", json!({})),
    ] {
        let turn = rig(NEW).take(&calls(&[(name, args.clone())]));
        assert!(turn.answer.actions.is_empty() && turn.unreadable.len() == 1, "{name} {args}");
    }
}
