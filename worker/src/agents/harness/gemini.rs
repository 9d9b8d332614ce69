//! Gemini's computer use, over `generateContent`.
//!
//! Function calls with coordinates in a grid of 1000 by 1000. Two vocabularies: that of the
//! desktop (`click`, `type`, `hotkey`, ..., from Gemini 3.5 on) and the older one of a browser
//! (`click_at`, `type_text_at`, ...); both are understood whatever the model. Contents go back
//! word by word, thought signatures with them.

use longhaul_gateway::Surface;
use serde_json::{Map, Value, json};

use super::{Ask, Asked, Call, Harness, Reading, Setting, Stop, UNATTENDED, joined, result_text, tokens, words};
use crate::agents::gesture::{self, Args, Button};
use crate::agents::history::{Exchange, History, LEFT_OUT};
use crate::agents::picture::PNG;
use crate::agents::place::Grid;

const DESKTOP: &str = "ENVIRONMENT_DESKTOP";
const BROWSER: &str = "ENVIRONMENT_BROWSER";

/// Calls of the older vocabulary that mean nothing on a desktop.
const NOT_HERE: [&str; 3] = ["open_web_browser", "search", "navigate"];

/// Pixels of a scroll that names none.
const SCROLL_PIXELS: f64 = 300.0;

/// The form.
#[derive(Debug)]
pub(super) struct Gemini {
    setting: Setting,
    environment: String,
    grid: Grid,
}

impl Gemini {
    pub(super) fn new(setting: Setting) -> Self {
        let older = ["gemini-2", "gemini-3-", "gemini-3.0"].iter().any(|name| setting.model.contains(name));
        let usual = if older { BROWSER } else { DESKTOP };
        let environment = setting.options.environment.clone().unwrap_or_else(|| usual.to_owned());
        let grid = Grid::thousandths(setting.screen);
        Self { setting, environment, grid }
    }

    fn tool(&self) -> Value {
        let mut tool = json!({"environment": self.environment});
        if self.environment == BROWSER {
            tool["excludedPredefinedFunctions"] = json!(NOT_HERE);
        }
        json!({"computerUse": tool})
    }

    fn given(&self, history: &History, exchange: &Exchange, is_first: bool, words: Vec<String>) -> Vec<Value> {
        let mut parts = Vec::new();
        if is_first {
            parts.push(text(&self.setting.opening(history)));
        }
        let last = exchange.results.len().saturating_sub(1);
        for (index, result) in exchange.results.iter().enumerate() {
            let mut answer = Map::new();
            let name = if result.error.is_some() { "error" } else { "output" };
            answer.insert(name.to_owned(), json!(result.error.clone().unwrap_or_else(|| result_text(result))));
            if self.environment == BROWSER {
                // That form of the tool expects an address; a desktop has none.
                answer.insert("url".to_owned(), json!("about:blank"));
            }
            if !result.safety.is_empty() {
                answer.insert("safety_acknowledgement".to_owned(), json!("true"));
            }
            if index == last && exchange.picture.is_none() {
                answer.insert("screenshot".to_owned(), json!(LEFT_OUT));
            }
            let mut response = json!({"name": result.name, "response": answer});
            if let Some(id) = &result.id {
                response["id"] = json!(id);
            }
            if index == last
                && let Some(picture) = &exchange.picture
            {
                response["parts"] = json!([image(PNG, picture)]);
            }
            parts.push(json!({"functionResponse": response}));
        }
        parts.extend(words.iter().map(|words| text(words)));
        if exchange.results.is_empty() {
            parts.push(exchange.picture.as_ref().map_or_else(|| text(LEFT_OUT), |picture| image(PNG, picture)));
        }
        parts
    }

    fn action(&self, name: &str, args: Args<'_>) -> Result<Asked, String> {
        let at = || args.apart("x", "y", &self.grid);
        let needed = || at()?.ok_or_else(|| "`x` and `y` are missing".to_owned());
        let click = |button, count| Ok::<_, String>(gesture::click(button, count, Some(needed()?))?.into());
        let keys = |names: &[&str]| match args.keys(names)? {
            keys if keys.is_empty() => Err(format!("`{}` is missing", names[0])),
            keys => Ok(keys),
        };
        match name {
            "click" | "click_at" => click(Button::Left, 1),
            "double_click" => click(Button::Left, 2),
            "triple_click" => click(Button::Left, 3),
            "middle_click" => click(Button::Middle, 1),
            "right_click" => click(Button::Right, 1),
            "move" | "hover_at" => Ok(gesture::go(needed()?).into()),
            "mouse_down" => Ok(vec![gesture::go(needed()?), gesture::left_button(true)].into()),
            "mouse_up" => Ok(vec![gesture::go(needed()?), gesture::left_button(false)].into()),
            "long_press" => {
                let wait = gesture::wait(args.number(&["seconds"])?.unwrap_or(2.0))?;
                Ok(vec![gesture::go(needed()?), gesture::left_button(true), wait, gesture::left_button(false)].into())
            }
            "type" => self.typed(args, None, false, false),
            "type_text_at" => self.typed(args, Some(needed()?), true, true),
            "drag_and_drop" => {
                let from = args.apart("start_x", "start_y", &self.grid)?.map_or_else(needed, Ok)?;
                let to = args
                    .apart("end_x", "end_y", &self.grid)?
                    .map_or_else(|| args.apart("destination_x", "destination_y", &self.grid), |to| Ok(Some(to)))?
                    .ok_or("`end_x` and `end_y` are missing")?;
                Ok(gesture::drag(Some(from), to).into())
            }
            "wait" => Ok(gesture::wait(args.number(&["seconds"])?.unwrap_or(1.0))?.into()),
            "wait_5_seconds" => Ok(gesture::wait(5.0)?.into()),
            "press_key" => Ok(gesture::press(&keys(&["key"])?).into()),
            "key_down" => Ok(gesture::hold(&keys(&["key"])?, true).into()),
            "key_up" => Ok(gesture::hold(&keys(&["key"])?, false).into()),
            "hotkey" | "key_combination" => Ok(gesture::press(&keys(&["keys"])?).into()),
            "take_screenshot" | "screenshot" => Ok(gesture::screenshot().into()),
            "scroll" | "scroll_at" => {
                let pixels = args.number(&["magnitude_in_pixels", "magnitude"])?.unwrap_or(SCROLL_PIXELS);
                let clicks = gesture::clicks_of_pixels(pixels);
                Ok(gesture::scroll_towards(Some(needed()?), args.needed_text(&["direction"])?, clicks)?.into())
            }
            "scroll_document" => {
                let middle = self.grid.point(500.0, 500.0)?;
                let clicks = gesture::clicks_of_pixels(f64::from(self.setting.screen.height) * 0.8);
                Ok(gesture::scroll_towards(Some(middle), args.needed_text(&["direction"])?, clicks)?.into())
            }
            "go_back" => Ok(gesture::press(&["alt".to_owned(), "Left".to_owned()]).into()),
            "go_forward" => Ok(gesture::press(&["alt".to_owned(), "Right".to_owned()]).into()),
            other => Err(format!("there is no {} on this desktop", gesture::excerpt(&json!(other)))),
        }
    }

    /// Typing, at a place or where the focus is, with what the older form does beside it.
    fn typed(&self, args: Args<'_>, at: Option<[i32; 2]>, enter: bool, clear: bool) -> Result<Asked, String> {
        let text = args.needed_text(&["text"])?;
        let mut actions = match at {
            Some(at) => gesture::click(Button::Left, 1, Some(at))?,
            None => Vec::new(),
        };
        if args.flag(&["clear_before_typing"])?.unwrap_or(clear) {
            actions.push(gesture::press(&["ctrl".to_owned(), "a".to_owned()]));
            actions.push(gesture::press(&["BackSpace".to_owned()]));
        }
        actions.push(gesture::text(text));
        if args.flag(&["press_enter"])?.unwrap_or(enter) {
            actions.push(gesture::press(&["Return".to_owned()]));
        }
        Ok(actions.into())
    }
}

impl Harness for Gemini {
    fn surface(&self) -> Surface {
        Surface::GenerateContent
    }

    fn grid(&self) -> Grid {
        self.grid
    }

    fn body(&self, history: &History, ask: Ask) -> Value {
        let mut contents: Vec<Value> = Vec::new();
        let last = history.exchanges.len().saturating_sub(1);
        for (index, exchange) in history.exchanges.iter().enumerate() {
            let parts = self.given(history, exchange, index == 0, words(exchange, ask, index == last));
            contents.push(json!({"role": "user", "parts": parts}));
            if let Some(reply) = &exchange.reply
                && reply.kept.get("parts").and_then(Value::as_array).is_some_and(|parts| !parts.is_empty())
            {
                contents.push(reply.kept.clone());
            }
        }
        self.setting.with_parameters(json!({
            "systemInstruction": {"parts": [{"text": self.setting.system(UNATTENDED)}]},
            "contents": contents,
            "tools": [self.tool()],
            "generationConfig": {"maxOutputTokens": self.setting.max_output},
        }))
    }

    fn read(&self, body: &Value) -> Reading {
        let candidate = body.pointer("/candidates/0").unwrap_or(&Value::Null);
        let empty = Vec::new();
        let parts = candidate.pointer("/content/parts").and_then(Value::as_array).unwrap_or(&empty);
        let (mut texts, mut calls) = (Vec::new(), Vec::new());
        for part in parts {
            let thought = part.get("thought").and_then(Value::as_bool).unwrap_or(false);
            texts.extend(part.get("text").and_then(Value::as_str).filter(|_| !thought));
            let Some(call) = part.get("functionCall") else { continue };
            let name = call.get("name").and_then(Value::as_str).unwrap_or_default();
            let none = Map::new();
            let args = call.get("args").and_then(Value::as_object).unwrap_or(&none);
            calls.push(Call {
                id: call.get("id").and_then(Value::as_str).map(str::to_owned),
                name: name.to_owned(),
                asked: self.action(name, Args(args)),
                safety: args.get("safety_decision").into_iter().cloned().collect(),
            });
        }
        let kept = if parts.is_empty() { Value::Null } else { json!({"role": "model", "parts": parts}) };
        let blocked = body.pointer("/promptFeedback/blockReason").and_then(Value::as_str);
        let stop = match (candidate.get("finishReason").and_then(Value::as_str), blocked) {
            (_, Some(reason)) => Stop::Refused(format!("the vendor blocked the request: {reason}")),
            (Some("MAX_TOKENS"), None) => Stop::Cut,
            (Some(reason @ ("SAFETY" | "PROHIBITED_CONTENT" | "BLOCKLIST" | "SPII" | "RECITATION")), None) => {
                Stop::Refused(format!("the vendor stopped the answer: {reason}"))
            }
            (Some("MALFORMED_FUNCTION_CALL" | "UNEXPECTED_TOOL_CALL"), None) => Stop::Paused,
            _ => Stop::Whole,
        };
        let counted = ["promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount", "toolUsePromptTokenCount"];
        let tokens = tokens(body.get("usageMetadata").unwrap_or(&Value::Null), &counted);
        Reading { kept, text: joined(texts), calls, tokens, stop }
    }
}

pub(super) fn text(text: &str) -> Value {
    json!({"text": text})
}

pub(super) fn image(media: &str, data: &str) -> Value {
    json!({"inlineData": {"mimeType": media, "data": data}})
}

#[cfg(test)]
mod tests;
