//! Functions of our own, for models behind chat completions: Qwen-VL, Kimi and others, at their
//! vendors or on vLLM.
//!
//! Functions are called in the protocol's own form, or in the text ([`super::text`]) where the
//! server has no parser or the model was trained so. Coordinates are pixels of the picture or
//! thousandths of the screen, as the model was trained; by its name, if the options say nothing.

use longhaul_core::functions;
use longhaul_gateway::Surface;
use serde_json::{Map, Value, json};

use super::text::{self, Found};
use super::{Ask, Asked, Call, Harness, Reading, Setting, Stop, joined, result_text, tokens, words};
use crate::agents::gesture::{self, Args, Button};
use crate::agents::history::{Exchange, History, LEFT_OUT};
use crate::agents::options::{Calls, Coordinates};
use crate::agents::picture::PNG;
use crate::agents::place::Grid;

/// Models whose coordinates are thousandths of the screen.
const IN_THOUSANDTHS: [&str; 4] = ["qwen3", "qwen-3", "kimi", "glm-4"];

/// A scroll of no more than this is meant in clicks of the wheel, whatever its name says.
const CLICKS_AT_MOST: f64 = 30.0;

/// The form.
#[derive(Debug)]
pub(super) struct Tools {
    setting: Setting,
    grid: Grid,
    functions: Vec<Value>,
}

impl Tools {
    pub(super) fn new(setting: Setting) -> Self {
        let model = setting.model.to_lowercase();
        let usual = if IN_THOUSANDTHS.iter().any(|name| model.contains(name)) {
            Coordinates::Thousandths
        } else {
            Coordinates::Pixels
        };
        let grid = match setting.options.coordinates.unwrap_or(usual) {
            Coordinates::Pixels => Grid::of_image(setting.image, setting.screen),
            Coordinates::Thousandths => Grid::thousandths(setting.screen),
        };
        let (columns, rows) = grid.size();
        let functions = functions::declared(columns, rows);
        Self { setting, grid, functions }
    }

    fn in_text(&self) -> bool {
        self.setting.options.calls == Calls::Text
    }

    fn asked(&self, name: &str, args: Args<'_>) -> Result<Asked, String> {
        // Qwen's and Kimi's own form: one function, whose action is an argument.
        let name = match name {
            "computer_use" | "computer" => args.needed_text(&["action", "type"])?,
            name => name,
        };
        let grid = &self.grid;
        let at = || match args.place(&["coordinate", "position", "point"], grid)? {
            Some(place) => Ok::<_, String>(Some(place)),
            None => args.apart("x", "y", grid),
        };
        let needed = || at()?.ok_or_else(|| "`x` and `y` are missing".to_owned());
        let modifiers = || args.keys(&["modifiers", "hold_keys"]);
        let click = |button, count| {
            Ok::<_, String>(gesture::with_keys(&modifiers()?, gesture::click(button, count, at()?)?).into())
        };
        let keys = || match args.keys(&["keys", "key"])? {
            keys if keys.is_empty() => Err("`keys` is missing".to_owned()),
            keys => Ok(keys),
        };
        match name {
            "click" | "left_click" => {
                let button = Button::named(args.text(&["button"])?.unwrap_or("left"))?;
                let count = gesture::whole(args.number(&["count", "clicks", "num_clicks"])?.unwrap_or(1.0));
                click(button, u32::try_from(count).unwrap_or(u32::MAX))
            }
            "double_click" => click(Button::Left, 2),
            "triple_click" => click(Button::Left, 3),
            "right_click" => click(Button::Right, 1),
            "middle_click" => click(Button::Middle, 1),
            "move" | "mouse_move" | "hover" => Ok(gesture::go(needed()?).into()),
            "drag" | "left_click_drag" => {
                let end = match args.place(&["coordinate2", "end_coordinate", "to"], grid)? {
                    Some(end) => Some(end),
                    None => args.apart("to_x", "to_y", grid)?,
                };
                let start = args.place(&["start_coordinate", "from"], grid)?;
                Ok(match (start, end) {
                    (Some(start), end) => gesture::drag(Some(start), end.map_or_else(needed, Ok)?),
                    (None, Some(end)) => gesture::drag(at()?, end),
                    (None, None) => gesture::drag(None, needed()?),
                }
                .into())
            }
            "mouse_down" | "left_mouse_down" | "mouse_up" | "left_mouse_up" => {
                let mut actions: Vec<Value> = at()?.map(gesture::go).into_iter().collect();
                actions.push(gesture::left_button(name.ends_with("down")));
                Ok(actions.into())
            }
            "scroll" => {
                let clicks = args.number(&["clicks", "amount", "scroll_amount"])?;
                if let Some(direction) = args.text(&["direction", "scroll_direction"])? {
                    let clicks = gesture::whole(clicks.unwrap_or(5.0));
                    return Ok(gesture::scroll_towards(at()?, direction, clicks)?.into());
                }
                // Qwen's: positive is up.
                let pixels = args.number(&["pixels"])?.ok_or("`direction` is missing")?;
                Ok(gesture::scroll(at()?, 0, -wheel(pixels)).into())
            }
            "hscroll" => {
                let pixels = args.number(&["pixels"])?.ok_or("`pixels` is missing")?;
                Ok(gesture::scroll(at()?, wheel(pixels), 0).into())
            }
            "type" | "type_text" | "write" => {
                let mut actions = vec![gesture::text(args.needed_text(&["text", "content"])?)];
                if args.flag(&["press_enter", "enter"])?.unwrap_or(false) {
                    actions.push(gesture::press(&["Return".to_owned()]));
                }
                Ok(actions.into())
            }
            "key" | "keys" | "hotkey" | "press" | "press_key" | "keypress" => Ok(gesture::press(&keys()?).into()),
            "key_down" => Ok(gesture::hold(&keys()?, true).into()),
            "key_up" => Ok(gesture::hold(&keys()?, false).into()),
            "wait" => Ok(gesture::wait(args.number(&["seconds", "time", "duration"])?.unwrap_or(1.0))?.into()),
            "screenshot" => Ok(gesture::screenshot().into()),
            "done" | "terminate" | "finished" | "finish" | "answer" => {
                let said = args.text(&["text", "message", "status", "answer"])?.map(str::to_owned);
                Ok(Asked { done: true, said, ..Asked::default() })
            }
            other => Err(format!("there is no function {} here", gesture::excerpt(&json!(other)))),
        }
    }

    fn call(&self, id: Option<String>, (name, arguments): Found) -> Call {
        let asked = self.asked(&name, Args(&arguments));
        Call { id, name, asked, safety: Vec::new() }
    }

    fn given(&self, history: &History, exchange: &Exchange, is_first: bool, words: Vec<String>) -> Vec<Value> {
        let mut messages = Vec::new();
        let mut content = Vec::new();
        if is_first {
            content.push(text_part(&self.setting.opening(history)));
        }
        for result in &exchange.results {
            match &result.id {
                Some(id) => {
                    messages.push(json!({"role": "tool", "tool_call_id": id, "content": result_text(result)}));
                }
                None if result.error.is_some() => {
                    content.push(text_part(&format!("{}: {}", result.name, result_text(result))));
                }
                None => {}
            }
        }
        content.extend(words.iter().map(|words| text_part(words)));
        content.push(match &exchange.picture {
            Some(picture) => image_part(PNG, picture),
            None => text_part(LEFT_OUT),
        });
        messages.push(json!({"role": "user", "content": content}));
        messages
    }
}

impl Harness for Tools {
    fn surface(&self) -> Surface {
        Surface::ChatCompletions
    }

    fn grid(&self) -> Grid {
        self.grid
    }

    fn words_are_done(&self) -> bool {
        false
    }

    fn body(&self, history: &History, ask: Ask) -> Value {
        let mut system = self.setting.system(functions::OWN_WORDS);
        if self.in_text() {
            system = functions::in_text(&system, &self.functions);
        }
        let mut messages = vec![json!({"role": "system", "content": system})];
        let last = history.exchanges.len().saturating_sub(1);
        for (index, exchange) in history.exchanges.iter().enumerate() {
            messages.extend(self.given(history, exchange, index == 0, words(exchange, ask, index == last)));
            if let Some(reply) = &exchange.reply
                && reply.kept.is_object()
            {
                messages.push(reply.kept.clone());
            }
        }
        let mut body = json!({"model": self.setting.model, "messages": messages});
        // Newer models at OpenAI take only the other name.
        if !self.setting.parameters.contains_key("max_completion_tokens") {
            body["max_tokens"] = json!(self.setting.max_output);
        }
        if !self.in_text() {
            let tools: Vec<Value> =
                self.functions.iter().map(|function| json!({"type": "function", "function": function})).collect();
            body["tools"] = json!(tools);
            if ask == Ask::Summary {
                body["tool_choice"] = json!("none");
            }
        }
        self.setting.with_parameters(body)
    }

    fn read(&self, body: &Value) -> Reading {
        let choice = body.pointer("/choices/0").unwrap_or(&Value::Null);
        let message = choice.get("message").unwrap_or(&Value::Null);
        let content = content_text(message.get("content"));
        let (mut calls, mut kept_calls) = (Vec::new(), Vec::new());
        for call in message.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
            // Without an id it could never be answered.
            let Some(id) = call.get("id").and_then(Value::as_str) else { continue };
            let name = call.pointer("/function/name").and_then(Value::as_str).unwrap_or_default();
            let (arguments, kept) = arguments(call.pointer("/function/arguments"));
            kept_calls.push(json!({"id": id, "type": "function", "function": {"name": name, "arguments": kept}}));
            calls.push(match arguments {
                Ok(arguments) => self.call(Some(id.to_owned()), (name.to_owned(), arguments)),
                Err(error) => {
                    Call { id: Some(id.to_owned()), name: name.to_owned(), asked: Err(error), safety: Vec::new() }
                }
            });
        }
        if calls.is_empty() {
            match text::calls(&content) {
                Ok(found) => calls.extend(found.into_iter().map(|found| self.call(None, found))),
                Err(error) => {
                    calls.push(Call { id: None, name: "tool_call".to_owned(), asked: Err(error), safety: Vec::new() })
                }
            }
        }
        let stop = match choice.get("finish_reason").and_then(Value::as_str) {
            Some("length") => Stop::Cut,
            Some("content_filter") => Stop::Refused("the vendor's filter stopped the answer".to_owned()),
            _ => match message.get("refusal").and_then(Value::as_str) {
                Some(refusal) => Stop::Refused(refusal.to_owned()),
                None => Stop::Whole,
            },
        };
        let tokens = tokens(body.get("usage").unwrap_or(&Value::Null), &["prompt_tokens", "completion_tokens"]);
        let text = joined(vec![text::words(&content)]);
        Reading { kept: kept(message, &content, kept_calls), text, calls, tokens, stop }
    }
}

/// The message as it is sent back: what the protocol has for it, reasoning included.
fn kept(message: &Value, content: &str, calls: Vec<Value>) -> Value {
    let reasoning = ["reasoning_content", "reasoning", "reasoning_details"]
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), message.get(name).filter(|value| !value.is_null())?.clone())));
    let mut kept: Map<String, Value> = reasoning.collect();
    if content.is_empty() && calls.is_empty() {
        return Value::Null;
    }
    kept.insert("role".to_owned(), json!("assistant"));
    kept.insert("content".to_owned(), json!(content));
    if !calls.is_empty() {
        kept.insert("tool_calls".to_owned(), json!(calls));
    }
    Value::Object(kept)
}

/// The text of a message's content, which is a text or a list of parts.
fn content_text(content: Option<&Value>) -> String {
    match content {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            parts.iter().filter_map(|part| part.get("text")?.as_str()).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

/// A call's arguments, and as they are sent back: servers fail on text that is no object.
fn arguments(value: Option<&Value>) -> (Result<Map<String, Value>, String>, String) {
    let read = match value {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(object)) => Ok(object.clone()),
        Some(Value::String(text)) if text.trim().is_empty() => Ok(Map::new()),
        Some(Value::String(text)) => {
            serde_json::from_str(text).map_err(|error| format!("the arguments are no JSON object: {error}"))
        }
        Some(other) => Err(format!("the arguments are an object, not {}", gesture::excerpt(other))),
    };
    let kept = match (&read, value) {
        (Ok(_), Some(Value::String(text))) if !text.trim().is_empty() => text.clone(),
        (Ok(object), _) => Value::Object(object.clone()).to_string(),
        (Err(_), _) => "{}".to_owned(),
    };
    (read, kept)
}

/// Clicks of the wheel, of a number that models mean as pixels or as clicks.
fn wheel(amount: f64) -> i64 {
    if amount.abs() <= CLICKS_AT_MOST { gesture::whole(amount) } else { gesture::clicks_of_pixels(amount) }
}

pub(super) fn text_part(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

pub(super) fn image_part(media: &str, data: &str) -> Value {
    json!({"type": "image_url", "image_url": {"url": format!("data:{media};base64,{data}")}})
}

#[cfg(test)]
mod tests;
