//! Chat completions as OpenAI documents them, as Qwen and Kimi answer, and as nobody should.

use longhaul_core::action;
use longhaul_core::agent::Harness as Kind;
use longhaul_core::functions;
use longhaul_core::step::ActionOutcome;
use serde_json::{Value, json};

use crate::agents::harness::testing::{Rig, hostile};

fn rig(model: &str, parameters: Value) -> Rig {
    Rig::new(Kind::Tools, model, parameters)
}

fn plain() -> Rig {
    rig("some-model", Value::Null)
}

fn called(name: &str, arguments: &str) -> Value {
    json!({"choices": [{"finish_reason": "tool_calls", "message": {"role": "assistant", "content": null, "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}},
    ]}}], "usage": {"prompt_tokens": 90, "completion_tokens": 20}})
}

fn said(text: &str) -> Value {
    json!({"choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": text}}]})
}

#[test]
fn functions_are_declared_with_the_grid_of_the_models_coordinates() {
    let body = plain().body();
    let names: Vec<&str> =
        body["tools"].as_array().unwrap().iter().map(|tool| tool["function"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["click", "move", "drag", "scroll", "type", "key", "wait", "screenshot", "done"]);
    let x = |body: &Value| body["tools"][0]["function"]["parameters"]["properties"]["x"]["description"].clone();
    assert_eq!(x(&body), "From the left edge, 0 to 1280.");
    for model in ["Qwen/Qwen3-VL-235B", "kimi-k2.5"] {
        assert_eq!(x(&rig(model, Value::Null).body()), "From the left edge, 0 to 1000.", "{model}");
    }
    assert_eq!(x(&rig("Qwen/Qwen2.5-VL-7B", Value::Null).body()), "From the left edge, 0 to 1280.");
    let set = json!({"loop": {"coordinates": "thousandths", "calls": "text"}});
    let body = rig("some-model", set).body();
    assert_eq!(body.get("tools"), None);
    assert!(body["messages"][0]["content"].as_str().unwrap().contains("0 to 1000"));
    assert_eq!(body["messages"][1]["content"][1]["image_url"]["url"], "data:image/png;base64,first");
}

#[test]
fn our_functions_become_actions_of_the_benchmark() {
    let place = [960, 540];
    for (name, arguments, expected) in [
        ("click", json!({"x": 640, "y": 360}), json!([{"mouse": {"left_click": place}}])),
        ("click", json!({"x": 640, "y": "360", "count": 2}), json!([{"mouse": {"double_click": place}}])),
        ("click", json!({"x": 640, "y": 360, "button": "right"}), json!([{"mouse": {"right_click": place}}])),
        ("move", json!({"x": 640, "y": 360}), json!([{"mouse": {"move": place}}])),
        (
            "drag",
            json!({"x": 0, "y": 0, "to_x": 640, "to_y": 360}),
            json!([{"mouse": {"left_click_drag": [[0, 0], place]}}]),
        ),
        (
            "scroll",
            json!({"x": 640, "y": 360, "direction": "up", "clicks": 4}),
            json!([{"mouse": {"move": place}}, {"mouse": {"scroll": -4}}]),
        ),
        ("type", json!({"text": "a"}), json!([{"keyboard": {"text": "a"}}])),
        ("key", json!({"keys": ["ctrl", "s"]}), json!([{"keyboard": {"keys": ["ctrl", "s"]}}])),
        ("wait", json!({"seconds": 2}), json!([{"action": "wait", "time": 2.0}])),
        ("screenshot", json!({}), json!([{"action": "screenshot"}])),
    ] {
        let turn = plain().take(&called(name, &arguments.to_string()));
        assert_eq!(turn.unreadable, Vec::<String>::new(), "{name}");
        assert_eq!(Value::Array(turn.answer.actions), expected, "{name}");
    }
    let turn = plain().take(&called("done", "{\"text\": \"It is saved.\"}"));
    assert_eq!((turn.answer.done, turn.answer.text.as_deref()), (true, Some("It is saved.")));
}

#[test]
fn qwens_and_kimis_own_form_is_understood() {
    let call = |arguments: Value| {
        let call = json!({"name": "computer_use", "arguments": arguments});
        said(&format!("<think>{{\"action\": \"click\"}}</think>\nAction: do it.\n<tool_call>\n{call}\n</tool_call>"))
    };
    let place = [960, 540];
    for (arguments, expected) in [
        (json!({"action": "left_click", "coordinate": [500, 500]}), json!([{"mouse": {"left_click": place}}])),
        (json!({"action": "mouse_move", "coordinate": [500, 500]}), json!([{"mouse": {"move": place}}])),
        (json!({"action": "key", "keys": ["ctrl", "c"]}), json!([{"keyboard": {"keys": ["ctrl", "c"]}}])),
        (json!({"action": "type", "text": "x"}), json!([{"keyboard": {"text": "x"}}])),
        (json!({"action": "scroll", "pixels": -500}), json!([{"mouse": {"scroll": 5}}])),
        (json!({"action": "scroll", "pixels": 5}), json!([{"mouse": {"scroll": -5}}])),
        (
            json!({"action": "drag", "coordinate": [0, 0], "coordinate2": [500, 500]}),
            json!([{"mouse": {"left_click_drag": [[0, 0], place]}}]),
        ),
        (json!({"action": "wait", "time": 3}), json!([{"action": "wait", "time": 3.0}])),
    ] {
        let mut rig = rig("Qwen/Qwen3-VL-8B", Value::Null);
        let turn = rig.take(&call(arguments.clone()));
        assert_eq!(turn.unreadable, Vec::<String>::new(), "{arguments}");
        assert_eq!(Value::Array(turn.answer.actions), expected, "{arguments}");
        assert_eq!(turn.answer.text.as_deref(), Some("Action: do it."));
    }
    let turn = rig("Qwen/Qwen3-VL-8B", Value::Null).take(&call(json!({"action": "terminate", "status": "success"})));
    assert!(turn.answer.done);
}

#[test]
fn results_and_reasoning_go_back_in_the_protocols_places() {
    let mut rig = plain();
    let mut response = called("click", "{\"x\": 1, \"y\": 1}");
    response["choices"][0]["message"]["reasoning_content"] = json!("hm");
    rig.take(&response);
    rig.see_after("second", &[ActionOutcome::Error("refused".to_owned())], Some("Look."));
    let messages = rig.body()["messages"].as_array().unwrap().clone();
    assert_eq!(messages[2]["reasoning_content"], "hm");
    assert_eq!(messages[2]["tool_calls"][0]["function"]["arguments"], "{\"x\": 1, \"y\": 1}");
    assert_eq!(messages[3], json!({"role": "tool", "tool_call_id": "call_1", "content": "error: refused"}));
    assert_eq!(messages[4]["content"][0]["text"], "Look.");
    assert_eq!(messages[4]["content"][1]["image_url"]["url"], "data:image/png;base64,second");
}

#[test]
fn arguments_that_are_no_json_are_told_and_not_sent_back() {
    let mut rig = plain();
    let turn = rig.step(&called("click", "{\"x\": 1, "), "second");
    assert!(turn.answer.actions.is_empty() && turn.unreadable[0].contains("JSON"));
    let messages = rig.body()["messages"].as_array().unwrap().clone();
    assert_eq!(messages[2]["tool_calls"][0]["function"]["arguments"], "{}");
    assert!(messages[3]["content"].as_str().unwrap().contains("no JSON object"));
    let turn = plain().take(&said("<tool_call>{\"name\": \"click\", </tool_call>"));
    assert!(turn.unreadable[0].contains("not JSON"));
}

#[test]
fn words_alone_are_not_done_and_it_comes_to_an_end() {
    let mut rig = plain();
    let turns: Vec<bool> = (0..5).map(|_| rig.step(&said("I am thinking."), "same").answer.done).collect();
    assert_eq!(turns, [false, false, false, false, true]);
    assert!(rig.body().to_string().contains("had no call that could be read"));
    let cut = json!({"choices": [{"finish_reason": "length", "message": {"content": "I"}}]});
    assert!(plain().take(&cut).unreadable[0].contains("cut off"));
    let refused = json!({"choices": [{"finish_reason": "content_filter", "message": {"content": ""}}]});
    assert!(plain().take(&refused).answer.done);
}

#[test]
fn hostile_bodies_and_arguments_do_nothing() {
    for body in hostile() {
        assert!(plain().take(&body).answer.actions.is_empty(), "{body}");
    }
    for (name, arguments) in [
        ("click", json!({"x": 5000, "y": 1})),
        ("click", json!({"x": "NaN", "y": 1})),
        ("click", json!({"x": 1, "y": 1, "count": 1e9})),
        ("click", json!({"x": 1})),
        ("scroll", json!({"x": 1, "y": 1})),
        ("key", json!({})),
        ("wait", json!({"seconds": -1})),
        ("computer_use", json!({})),
        ("rm", json!({})),
        ("", json!({})),
    ] {
        let turn = plain().take(&called(name, &arguments.to_string()));
        assert!(turn.answer.actions.is_empty() && turn.unreadable.len() == 1, "{name} {arguments}");
    }
    for arguments in ["[]", "5", "\"x\"", "null"] {
        assert_eq!(plain().take(&called("screenshot", arguments)).answer.actions.len(), 0, "{arguments}");
    }
}

#[test]
fn the_limit_of_output_is_named_as_the_parameters_name_it() {
    assert_eq!(plain().body()["max_tokens"], 1000);
    let body = rig("o5", json!({"max_completion_tokens": 500})).body();
    assert_eq!((body.get("max_tokens"), body["max_completion_tokens"].clone()), (None, json!(500)));
}

#[test]
fn actions_written_as_calls_for_training_are_read_back_as_the_same_actions() {
    let [near, far] = [[96, 54], [960, 540]];
    let held = |down: bool| json!({"keyboard": {if down { "keys_down" } else { "keys_up" }: ["ctrl", "shift"]}});
    for actions in [
        json!([{"mouse": {"left_click": far}}]),
        json!([{"mouse": {"double_click": near}}, {"mouse": {"triple_click": far}}]),
        json!([{"mouse": {"right_click": near}}, {"mouse": {"middle_click": far}}]),
        json!([held(true), {"mouse": {"left_click": far}}, held(false)]),
        json!([{"mouse": {"move": near}}, {"mouse": {"left_click_drag": [near, far]}}]),
        json!([{"mouse": {"move": far}}, {"mouse": {"scroll": -4}}]),
        json!([{"mouse": {"scroll": 3}}]),
        json!([{"keyboard": {"text": "<tool_call>{\"a\": 1}</tool_call></think>\n\u{1b}"}}, {"keyboard": {"keys": ["Return"]}}]),
        json!([{"action": "wait", "time": 2.5}, {"action": "screenshot"}]),
    ] {
        let inputs = |actions: &Value| -> Vec<action::Input> {
            actions.as_array().unwrap().iter().flat_map(|action| action::parse(action).unwrap()).collect()
        };
        let grid = functions::Grid::thousandths(1920, 1080);
        let calls = functions::calls(&inputs(&actions), &mut None, &grid).unwrap();
        let text: Vec<String> = calls.iter().map(functions::FunctionCall::as_text).collect();
        let mut rig = rig("some-model", json!({"loop": {"coordinates": "thousandths", "calls": "text"}}));
        let turn = rig.take(&said(&format!("I go on.\n{}", text.join("\n"))));
        assert_eq!(turn.unreadable, Vec::<String>::new(), "{actions}");
        assert_eq!(inputs(&Value::Array(turn.answer.actions)), inputs(&actions), "{text:?}");
        assert_eq!(turn.answer.text.as_deref(), Some("I go on."));
    }
}
