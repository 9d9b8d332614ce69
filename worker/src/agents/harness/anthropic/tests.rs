//! Messages as Anthropic documents them, and as it does not.

use longhaul_core::agent::Harness as Kind;
use longhaul_core::step::ActionOutcome;
use serde_json::{Value, json};

use crate::agents::conversation::MOST_BLANK;
use crate::agents::harness::testing::{Rig, agent, hostile};

const OLD: &str = "claude-opus-4-6";
const NEW: &str = "claude-opus-5-5";

fn rig(model: &str) -> Rig {
    Rig::new(Kind::AnthropicComputer, model, json!({"temperature": 0}))
}

/// A response that uses the tool of before, once for each input.
fn uses(inputs: &[Value]) -> Value {
    let block = |(index, input): (usize, &Value)| json!({"type": "tool_use", "id": format!("toolu_{index}"), "name": "computer", "input": input});
    json!({
        "id": "msg_1", "type": "message", "role": "assistant", "stop_reason": "tool_use",
        "content": inputs.iter().enumerate().map(block).collect::<Vec<_>>(),
        "usage": {"input_tokens": 10, "cache_read_input_tokens": 90, "output_tokens": 5},
    })
}

/// A response that uses a tool of the toolset.
fn member(name: &str, input: Value) -> Value {
    json!({"stop_reason": "tool_use", "content": [
        {"type": "tool_use", "id": "toolu_1", "name": name, "toolset_name": "computer", "input": input},
    ]})
}

fn actions(input: Value) -> Vec<Value> {
    let turn = rig(OLD).take(&uses(std::slice::from_ref(&input)));
    assert_eq!(turn.unreadable, Vec::<String>::new(), "{input}");
    turn.answer.actions
}

#[test]
fn each_model_gets_its_version_of_the_tool() {
    let call = rig(OLD).call();
    let size =
        |body: &Value| (body["tools"][0]["display_width_px"].clone(), body["tools"][0]["display_height_px"].clone());
    assert_eq!(call.body["tools"][0]["type"], "computer_20251124");
    assert_eq!(size(&call.body), (json!(1280), json!(720)));
    assert_eq!(call.headers, [("anthropic-beta".to_owned(), "computer-use-2025-11-24".to_owned())]);
    let call = rig("claude-sonnet-4-5-20250929").call();
    assert_eq!(call.body["tools"][0]["type"], "computer_20250124");
    assert_eq!(call.body["tools"][0].get("enable_zoom"), None);
    let call = rig(NEW).call();
    assert_eq!(call.body["tools"], json!([{"type": "computer_toolset_20260801"}]));
    assert_eq!(call.headers, []);
    let set = json!({"loop": {"tool": "computer_20250124", "betas": ["b"]}});
    let call = Rig::new(Kind::AnthropicComputer, NEW, set).call();
    assert_eq!(call.headers[0].1, "computer-use-2025-01-24,b");
}

#[test]
fn the_first_request_holds_the_task_the_screen_and_the_parameters() {
    let body = rig(OLD).body();
    assert_eq!(body["messages"][0]["content"][0], json!({"type": "text", "text": "Make the list."}));
    assert_eq!(body["messages"][0]["content"][1]["source"]["data"], "first");
    assert_eq!((body["temperature"].clone(), body["max_tokens"].clone()), (json!(0), json!(1000)));
    assert_eq!(body.get("loop"), None);
    assert_eq!(body["system"][0]["cache_control"], json!({"type": "ephemeral"}));
}

#[test]
fn every_action_of_the_tool_becomes_actions_of_the_benchmark() {
    let at = json!([640, 360]);
    let cases = [
        (json!({"action": "left_click", "coordinate": at}), json!([{"mouse": {"left_click": [960, 540]}}])),
        (json!({"action": "right_click", "coordinate": at}), json!([{"mouse": {"right_click": [960, 540]}}])),
        (json!({"action": "middle_click", "coordinate": at}), json!([{"mouse": {"middle_click": [960, 540]}}])),
        (json!({"action": "double_click", "coordinate": at}), json!([{"mouse": {"double_click": [960, 540]}}])),
        (json!({"action": "triple_click", "coordinate": at}), json!([{"mouse": {"triple_click": [960, 540]}}])),
        (json!({"action": "mouse_move", "coordinate": at}), json!([{"mouse": {"move": [960, 540]}}])),
        (
            json!({"action": "left_click", "coordinate": at, "text": "shift"}),
            json!([
                {"keyboard": {"keys_down": ["shift"]}},
                {"mouse": {"left_click": [960, 540]}},
                {"keyboard": {"keys_up": ["shift"]}},
            ]),
        ),
        (
            json!({"action": "left_click"}),
            json!([{"mouse": {"buttons": {"left_down": true}}}, {"mouse": {"buttons": {"left_up": true}}}]),
        ),
        (
            json!({"action": "left_click_drag", "start_coordinate": [0, 0], "coordinate": at}),
            json!([{"mouse": {"left_click_drag": [[0, 0], [960, 540]]}}]),
        ),
        (
            json!({"action": "left_click_drag", "coordinate": at}),
            json!([
                {"mouse": {"buttons": {"left_down": true}}},
                {"mouse": {"move": [960, 540]}},
                {"mouse": {"buttons": {"left_up": true}}},
            ]),
        ),
        (json!({"action": "left_mouse_down"}), json!([{"mouse": {"buttons": {"left_down": true}}}])),
        (json!({"action": "left_mouse_up"}), json!([{"mouse": {"buttons": {"left_up": true}}}])),
        (
            json!({"action": "scroll", "coordinate": at, "scroll_direction": "down", "scroll_amount": 3}),
            json!([{"mouse": {"move": [960, 540]}}, {"mouse": {"scroll": 3}}]),
        ),
        (
            json!({"action": "scroll", "scroll_direction": "left", "scroll_amount": 2}),
            json!([{"mouse": {"hscroll": -2}}]),
        ),
        (json!({"action": "type", "text": "Grüße\n"}), json!([{"keyboard": {"text": "Grüße\n"}}])),
        (json!({"action": "key", "text": "ctrl+shift+s"}), json!([{"keyboard": {"keys": ["ctrl", "shift", "s"]}}])),
        (
            json!({"action": "key", "text": "Tab Tab"}),
            json!([{"keyboard": {"keys": ["Tab"]}}, {"keyboard": {"keys": ["Tab"]}}]),
        ),
        (
            json!({"action": "hold_key", "text": "shift", "duration": 2}),
            json!([
                {"keyboard": {"keys_down": ["shift"]}},
                {"action": "wait", "time": 2.0},
                {"keyboard": {"keys_up": ["shift"]}},
            ]),
        ),
        (json!({"action": "wait", "duration": 1.5}), json!([{"action": "wait", "time": 1.5}])),
        (json!({"action": "screenshot"}), json!([{"action": "screenshot"}])),
        (json!({"action": "zoom", "region": [0, 0, 100, 50]}), json!([{"action": "screenshot"}])),
    ];
    for (input, expected) in cases {
        assert_eq!(Value::Array(actions(input.clone())), expected, "{input}");
    }
}

#[test]
fn the_toolset_has_the_action_as_its_name() {
    let turn = rig(NEW).take(&member("left_click", json!({"coordinate": [640, 360]})));
    assert_eq!(turn.answer.actions, [json!({"mouse": {"left_click": [960, 540]}})]);
    let turn = rig(NEW).take(&member("key", json!({"text": "Down", "repeat": 3})));
    assert_eq!(turn.answer.actions.len(), 3);
    let turn = rig(NEW).take(&member("key", json!({"text": "Down", "repeat": 1_000_000})));
    assert_eq!(turn.answer.actions.len(), 0);
    assert!(turn.unreadable[0].contains("repeat"));
}

#[test]
fn results_carry_the_screen_once_and_errors_where_they_belong() {
    let mut rig = rig(OLD);
    let turn = rig.take(&uses(&[
        json!({"action": "left_click", "coordinate": [1, 1]}),
        json!({"action": "type", "text": "x"}),
        json!({"action": "jump"}),
        json!({"action": "type", "text": "y"}),
    ]));
    assert_eq!(turn.answer.actions.len(), 2, "what follows what cannot be read is not carried out");
    assert_eq!(turn.unreadable, ["computer: there is no action \"jump\" here"]);
    rig.see_after(
        "second",
        &[ActionOutcome::Done, ActionOutcome::Error("no such key".to_owned())],
        Some("Look again."),
    );
    let body = rig.body();
    let given = body["messages"][2]["content"].as_array().unwrap();
    assert_eq!(given.len(), 5);
    let errors: Vec<bool> = given[..4].iter().map(|block| block["is_error"] == json!(true)).collect();
    assert_eq!(errors, [false, true, true, true]);
    assert_eq!(given[1]["content"][0]["text"], "error: no such key");
    assert!(given[3]["content"][0]["text"].as_str().unwrap().contains("not carried out"));
    assert_eq!(body.to_string().matches("\"second\"").count(), 1);
    assert_eq!(given[3]["content"][1]["source"]["data"], "second");
    assert_eq!(given[4]["text"], "Look again.");
    let ids: Vec<&str> = given[..4].iter().map(|block| block["tool_use_id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["toolu_0", "toolu_1", "toolu_2", "toolu_3"]);
}

#[test]
fn a_zoom_is_answered_with_that_part_of_the_screen() {
    let mut rig = rig(OLD);
    rig.take(&uses(&[json!({"action": "zoom", "region": [0, 0, 640, 360]})]));
    let part = rig.conversation.wish().parts[0];
    assert_eq!((part.left, part.top, part.width, part.height), (0, 0, 960, 540));
    rig.see("second", None);
    let body = rig.body();
    assert_eq!(body["messages"][2]["content"][0]["content"][0]["source"]["data"], "second-part");
    for region in [json!([0, 0, 0, 0]), json!([0, 0, 1e9, 5]), json!("all"), json!([1, 2])] {
        let turn = self::rig(OLD).take(&uses(&[json!({"action": "zoom", "region": region})]));
        assert_eq!(turn.unreadable.len(), 1, "{region}");
    }
}

#[test]
fn thinking_goes_back_word_by_word_and_the_prefix_stays_the_same() {
    let mut rig = rig(NEW);
    let thinking = json!({"type": "thinking", "thinking": "hm", "signature": "c2ln"});
    let redacted = json!({"type": "redacted_thinking", "data": "b64"});
    let call = member("screenshot", json!({}))["content"][0].clone();
    rig.step(&json!({"content": [thinking, redacted, call], "stop_reason": "tool_use"}), "second");
    let before = rig.body();
    assert_eq!(before["messages"][1]["content"], json!([thinking, redacted, call]));
    rig.step(&member("wait", json!({"duration": 1})), "third");
    let after = rig.body();
    let strip = |value: &Value| value.to_string().replace(",\"cache_control\":{\"type\":\"ephemeral\"}", "");
    for index in 0..3 {
        let (before, after) = (&before["messages"][index], &after["messages"][index]);
        let plain = |value: &Value| strip(value).replace("\"cache_control\":{\"type\":\"ephemeral\"},", "");
        assert_eq!(plain(before), plain(after));
    }
    // The system, and no more than the two newest requests: the vendor takes four marks.
    assert_eq!(after.to_string().matches("cache_control").count(), 3);
}

#[test]
fn old_screenshots_are_left_out_in_words() {
    let mut rig = rig(NEW);
    for step in 0..5 {
        rig.step(&member("screenshot", json!({})), &format!("screen-{step}"));
    }
    let text = rig.body().to_string();
    let images = text.matches("\"base64\"").count();
    assert_eq!(images, 3);
    assert_eq!(text.matches("an older screenshot was left out").count(), 3);
    assert!(text.contains("screen-4") && !text.contains("screen-1\""));
}

#[test]
fn words_alone_are_done_and_nothing_at_all_is_asked_again_once() {
    let said = json!({"content": [{"type": "text", "text": "All done."}], "stop_reason": "end_turn"});
    let turn = rig(NEW).take(&said);
    assert!(turn.answer.done);
    assert_eq!(turn.answer.text.as_deref(), Some("All done."));
    let nothing = json!({"content": [], "stop_reason": "end_turn"});
    let mut rig = rig(NEW);
    assert!(!rig.step(&nothing, "same").answer.done);
    let body = rig.body();
    assert_eq!(body["messages"].as_array().unwrap().len(), 2, "an empty reply is not sent back");
    assert!(body.to_string().contains("Your answer was empty"));
    assert!(rig.take(&nothing).answer.done);
}

#[test]
fn cuts_pauses_and_refusals_are_told_apart() {
    let cut = json!({"content": [{"type": "text", "text": "I will"}], "stop_reason": "max_tokens"});
    let mut one = rig(NEW);
    let turn = one.step(&cut, "same");
    assert!(!turn.answer.done && turn.unreadable[0].contains("cut off"));
    assert!(one.body().to_string().contains("cut off at the limit"));
    let paused = json!({"content": [{"type": "text", "text": "wait"}], "stop_reason": "pause_turn"});
    assert!(!rig(NEW).take(&paused).answer.done);
    let turn = rig(NEW).take(&json!({"content": [], "stop_reason": "refusal"}));
    assert!(turn.answer.done && turn.unreadable[0].starts_with("refused"));
}

#[test]
fn hostile_bodies_and_arguments_do_nothing_and_come_to_an_end() {
    for body in hostile() {
        let turn = rig(OLD).take(&body);
        assert!(turn.answer.actions.is_empty(), "{body}");
    }
    let inputs = [
        json!({"action": "left_click", "coordinate": [1281, 0]}),
        json!({"action": "left_click", "coordinate": [-1, 0]}),
        json!({"action": "left_click", "coordinate": [1e300, 0]}),
        json!({"action": "left_click", "coordinate": ["NaN", 0]}),
        json!({"action": "left_click", "coordinate": [1, 2, 3]}),
        json!({"action": "scroll", "scroll_direction": "in", "scroll_amount": 1}),
        json!({"action": "scroll", "scroll_direction": "up", "scroll_amount": 1e18}),
        json!({"action": "key", "text": "x".repeat(1000)}),
        json!({"action": "wait", "duration": -1}),
        json!({"action": 5}),
        json!({}),
        json!("click"),
    ];
    for input in inputs {
        let turn = rig(OLD).take(&uses(std::slice::from_ref(&input)));
        assert!(turn.answer.actions.is_empty() && turn.unreadable.len() == 1, "{input}");
        assert!(turn.unreadable[0].len() < 700);
    }
    let many = vec![json!({"action": "screenshot"}); 1000];
    let turn = rig(OLD).take(&uses(&many));
    assert_eq!((turn.answer.actions.len(), turn.unreadable.len()), (100, 1));
    let mut rig = rig(OLD);
    let turns: Vec<bool> =
        (0..MOST_BLANK).map(|_| rig.step(&uses(&[json!({"action": "jump"})]), "same").answer.done).collect();
    assert_eq!(turns.iter().position(|done| *done), Some(MOST_BLANK as usize - 1));
}

#[test]
fn the_pointers_place_is_told_in_the_models_own_coordinates() {
    let mut rig = rig(OLD);
    rig.step(&uses(&[json!({"action": "cursor_position"})]), "second");
    assert!(rig.body().to_string().contains("not moved yet"));
    rig.step(&uses(&[json!({"action": "mouse_move", "coordinate": [200, 100]})]), "third");
    rig.step(&uses(&[json!({"action": "cursor_position"})]), "fourth");
    assert!(rig.body().to_string().contains("X=200,Y=100"));
}

#[test]
fn a_long_conversation_goes_on_from_a_summary() {
    let mut agent = agent(Kind::AnthropicComputer, NEW, Value::Null);
    agent.summarize_above = Some(99);
    let mut rig = Rig::of(&agent);
    assert!(rig.conversation.summary_call().is_none());
    let mut response = member("left_click", json!({"coordinate": [1, 1]}));
    response["usage"] = json!({"input_tokens": 60, "cache_creation_input_tokens": 30, "output_tokens": 10});
    rig.step(&response, "second");
    let call = rig.conversation.summary_call().expect("100 tokens are above 99");
    assert_eq!(call.body["tool_choice"], json!({"type": "none"}));
    assert!(call.body.to_string().contains("Write down what you need"));
    rig.conversation.summarized(&json!({"content": [{"type": "text", "text": "I clicked."}]}));
    assert!(rig.conversation.summary_call().is_none());
    let body = rig.body();
    let messages = body["messages"].as_array().unwrap();
    assert_eq!(messages.len(), 1);
    let text = messages[0].to_string();
    assert!(text.contains("Make the list.") && text.contains("I clicked.") && text.contains("second"));
    assert!(!text.contains("tool_result") && !text.contains("first"));
    // A summary without words changes nothing, and is not asked for at once again.
    rig.step(&response, "third");
    assert!(rig.conversation.summary_call().is_some());
    rig.conversation.summarized(&json!({"content": [], "usage": {"input_tokens": 100}}));
    assert_eq!(rig.body()["messages"].as_array().unwrap().len(), 3);
    rig.step(&response, "fourth");
    assert!(rig.conversation.summary_call().is_none(), "100 tokens are not above 125");
}

#[test]
fn options_that_are_none_are_refused() {
    for options in [json!({"loop": {"tool": "computer_2030"}}), json!({"loop": {"speed": 1}})] {
        let agent = agent(Kind::AnthropicComputer, NEW, options);
        let screen = longhaul_core::agent::ImageSize { width: 10, height: 10 };
        assert!(crate::agents::conversation::Conversation::new(&agent, "t", screen).is_err());
    }
}
