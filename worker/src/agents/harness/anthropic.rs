//! Anthropic's computer use, over messages.
//!
//! Three versions of the tool: `computer_20250124` and `computer_20251124`, one tool with an
//! `action` each (with their beta headers), and the toolset `computer_toolset_20260801`, whose
//! calls have the action as their name. `thinking` blocks go back as they came.

use longhaul_gateway::Surface;
use serde_json::{Map, Value, json};

use super::{Ask, Asked, Call, Harness, Reading, Setting, Stop, joined, result_text, tokens, words};
use crate::agents::gesture::{self, Args, Button};
use crate::agents::history::{Exchange, History, LEFT_OUT};
use crate::agents::picture::{PNG, Picture};
use crate::agents::place::Grid;

const OWN_WORDS: &str = "You operate a Linux desktop to do a task. After each of your turns you see the screen as it \
     is then. Go on until the task is done and check the result on the screen; then answer in words, without a call. \
     Nobody answers questions.";

/// The most repeats of one key in a call.
const MOST_REPEATS: i64 = 100;

/// A version of the tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V20250124,
    V20251124,
    Toolset20260801,
}

impl Version {
    const ALL: [Self; 3] = [Self::V20250124, Self::V20251124, Self::Toolset20260801];

    const fn name(self) -> &'static str {
        match self {
            Self::V20250124 => "computer_20250124",
            Self::V20251124 => "computer_20251124",
            Self::Toolset20260801 => "computer_toolset_20260801",
        }
    }

    const fn beta(self) -> Option<&'static str> {
        match self {
            Self::V20250124 => Some("computer-use-2025-01-24"),
            Self::V20251124 => Some("computer-use-2025-11-24"),
            Self::Toolset20260801 => None,
        }
    }

    /// The version that a model takes: each of the older ones is bound to models by name.
    fn of_model(model: &str) -> Self {
        let is = |names: &[&str]| names.iter().any(|name| model.contains(name));
        if is(&["opus-4-5", "opus-4-6", "opus-4-7", "sonnet-4-6"]) {
            Self::V20251124
        } else if is(&["claude-3", "sonnet-4", "opus-4", "haiku-4"]) {
            Self::V20250124
        } else {
            Self::Toolset20260801
        }
    }
}

/// The form.
#[derive(Debug)]
pub(super) struct Anthropic {
    setting: Setting,
    version: Version,
    grid: Grid,
}

impl Anthropic {
    pub(super) fn new(setting: Setting) -> Result<Self, String> {
        let version = match &setting.options.tool {
            None => Version::of_model(&setting.model),
            Some(name) => Version::ALL
                .into_iter()
                .find(|version| version.name() == name)
                .ok_or_else(|| format!("no version of the computer tool is called `{}`", name.escape_debug()))?,
        };
        let grid = Grid::of_image(setting.image, setting.screen);
        Ok(Self { setting, version, grid })
    }

    fn tool(&self) -> Value {
        let mut tool = json!({"type": self.version.name()});
        if self.version != Version::Toolset20260801 {
            tool["name"] = json!("computer");
            tool["display_width_px"] = json!(self.setting.image.width);
            tool["display_height_px"] = json!(self.setting.image.height);
            tool["display_number"] = json!(1);
        }
        if self.version == Version::V20251124 {
            tool["enable_zoom"] = json!(true);
        }
        tool
    }

    /// The blocks of what the model is given.
    fn given(&self, history: &History, exchange: &Exchange, is_first: bool, words: Vec<String>) -> Vec<Value> {
        let mut blocks = Vec::new();
        if is_first {
            blocks.push(text(&self.setting.opening(history)));
        }
        // One of the results shows the screen; without any, it stands by itself.
        let shown = exchange.results.iter().rposition(|result| result.part.is_none());
        for (index, result) in exchange.results.iter().enumerate() {
            let mut content = Vec::new();
            match &result.part {
                Some(Some(part)) if result.error.is_none() => content.push(image(PNG, part)),
                Some(None) if result.error.is_none() => content.push(text(LEFT_OUT)),
                _ => content.push(text(&result_text(result))),
            }
            if shown == Some(index) {
                content.push(screen(exchange.picture.as_ref()));
            }
            let mut block = json!({"type": "tool_result", "tool_use_id": result.id, "content": content});
            if result.error.is_some() {
                block["is_error"] = json!(true);
            }
            blocks.push(block);
        }
        blocks.extend(words.iter().map(|words| text(words)));
        if exchange.results.is_empty() {
            blocks.push(screen(exchange.picture.as_ref()));
        }
        blocks
    }

    fn call(&self, name: &str, input: &Value) -> Result<Asked, String> {
        let empty = Map::new();
        let input = match input {
            Value::Object(input) => input,
            Value::Null => &empty,
            other => return Err(format!("the input is an object, not {}", gesture::excerpt(other))),
        };
        let args = Args(input);
        let action = if name == "computer" { args.needed_text(&["action"])? } else { name };
        self.action(action, args)
    }

    fn action(&self, action: &str, args: Args<'_>) -> Result<Asked, String> {
        let at = || args.place(&["coordinate"], &self.grid);
        let needed = || at()?.ok_or_else(|| "`coordinate` is missing".to_owned());
        let click = |button, count| Ok::<_, String>(held(args, gesture::click(button, count, at()?)?)?.into());
        match action {
            "left_click" => click(Button::Left, 1),
            "right_click" => click(Button::Right, 1),
            "middle_click" => click(Button::Middle, 1),
            "double_click" => click(Button::Left, 2),
            "triple_click" => click(Button::Left, 3),
            "mouse_move" => Ok(gesture::go(needed()?).into()),
            "left_click_drag" => {
                let from = args.place(&["start_coordinate"], &self.grid)?;
                Ok(held(args, gesture::drag(from, needed()?))?.into())
            }
            "left_mouse_down" => Ok(gesture::left_button(true).into()),
            "left_mouse_up" => Ok(gesture::left_button(false).into()),
            "scroll" => {
                let amount = args.number(&["scroll_amount"])?.ok_or("`scroll_amount` is missing")?;
                let direction = args.needed_text(&["scroll_direction"])?;
                Ok(held(args, gesture::scroll_towards(at()?, direction, gesture::whole(amount))?)?.into())
            }
            "key" => {
                let chords = chords(args.needed_text(&["text"])?)?;
                let repeat = gesture::whole(args.number(&["repeat"])?.unwrap_or(1.0));
                if !(1..=MOST_REPEATS).contains(&repeat) {
                    return Err(format!("`repeat` is 1 to {MOST_REPEATS}"));
                }
                let presses: Vec<Value> = chords.iter().map(|keys| gesture::press(keys)).collect();
                let times = usize::try_from(repeat).unwrap_or(1);
                Ok(presses.iter().cycle().take(presses.len() * times).cloned().collect::<Vec<_>>().into())
            }
            "hold_key" => {
                let keys = gesture::chord(args.needed_text(&["text"])?)?;
                let duration = args.number(&["duration"])?.ok_or("`duration` is missing")?;
                Ok(gesture::with_keys(&keys, vec![gesture::wait(duration)?]).into())
            }
            "type" => Ok(gesture::text(args.needed_text(&["text"])?).into()),
            "wait" => Ok(gesture::wait(args.number(&["duration"])?.unwrap_or(1.0))?.into()),
            "screenshot" => Ok(gesture::screenshot().into()),
            "cursor_position" => Ok(Asked { pointer: true, ..gesture::screenshot().into() }),
            "zoom" => {
                let corners = args.any(&["region"]).and_then(Value::as_array).map(Vec::as_slice);
                let corners = match corners {
                    Some([x0, y0, x1, y1]) => [x0, y0, x1, y1].map(gesture::number),
                    _ => [None; 4],
                };
                let [Some(x0), Some(y0), Some(x1), Some(y1)] = corners else {
                    return Err("`region` takes [x0, y0, x1, y1]".to_owned());
                };
                let part = Some(self.grid.region([x0, y0, x1, y1])?);
                Ok(Asked { part, ..gesture::screenshot().into() })
            }
            other => Err(format!("there is no action {} here", gesture::excerpt(&json!(other)))),
        }
    }
}

impl Harness for Anthropic {
    fn surface(&self) -> Surface {
        Surface::Messages
    }

    fn headers(&self) -> Vec<(String, String)> {
        let own = self.version.beta().into_iter().map(str::to_owned);
        let betas: Vec<String> = own.chain(self.setting.options.betas.iter().cloned()).collect();
        if betas.is_empty() { Vec::new() } else { vec![("anthropic-beta".to_owned(), betas.join(","))] }
    }

    fn grid(&self) -> Grid {
        self.grid
    }

    fn body(&self, history: &History, ask: Ask) -> Value {
        let mut messages: Vec<Value> = Vec::new();
        let last = history.exchanges.len().saturating_sub(1);
        for (index, exchange) in history.exchanges.iter().enumerate() {
            let mut blocks = self.given(history, exchange, index == 0, words(exchange, ask, index == last));
            // The newest request and the one before it: what the vendor has cached is found
            // again, and made longer.
            if index + 1 >= last
                && let Some(block) = blocks.last_mut()
            {
                block["cache_control"] = json!({"type": "ephemeral"});
            }
            messages.push(json!({"role": "user", "content": blocks}));
            if let Some(reply) = &exchange.reply
                && reply.kept.as_array().is_some_and(|kept| !kept.is_empty())
            {
                messages.push(json!({"role": "assistant", "content": reply.kept}));
            }
        }
        let system = self.setting.system(OWN_WORDS);
        let mut body = json!({
            "model": self.setting.model,
            "max_tokens": self.setting.max_output,
            "system": [{"type": "text", "text": system, "cache_control": {"type": "ephemeral"}}],
            "tools": [self.tool()],
            "messages": messages,
        });
        if ask == Ask::Summary {
            body["tool_choice"] = json!({"type": "none"});
        }
        self.setting.with_parameters(body)
    }

    fn read(&self, body: &Value) -> Reading {
        let empty = Vec::new();
        let content = body.get("content").and_then(Value::as_array).unwrap_or(&empty);
        let (mut kept, mut texts, mut calls) = (Vec::new(), Vec::new(), Vec::new());
        for block in content {
            match block.get("type").and_then(Value::as_str) {
                Some("text") => {
                    let said = block.get("text").and_then(Value::as_str).unwrap_or_default();
                    // The vendor takes no empty text back.
                    if said.trim().is_empty() {
                        continue;
                    }
                    texts.push(said);
                }
                Some("tool_use") => {
                    // Without an id it could never be answered.
                    let Some(id) = block.get("id").and_then(Value::as_str) else { continue };
                    let name = block.get("name").and_then(Value::as_str).unwrap_or_default();
                    calls.push(Call {
                        id: Some(id.to_owned()),
                        name: name.to_owned(),
                        asked: self.call(name, block.get("input").unwrap_or(&Value::Null)),
                        safety: Vec::new(),
                    });
                }
                Some(_) => {}
                None => continue,
            }
            kept.push(block.clone());
        }
        let stop = match body.get("stop_reason").and_then(Value::as_str) {
            Some("max_tokens" | "model_context_window_exceeded") => Stop::Cut,
            Some("pause_turn") => Stop::Paused,
            Some("refusal") => Stop::Refused("the model refused".to_owned()),
            _ => Stop::Whole,
        };
        let counted = ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens"];
        let tokens = tokens(body.get("usage").unwrap_or(&Value::Null), &counted);
        Reading { kept: Value::Array(kept), text: joined(texts), calls, tokens, stop }
    }
}

/// The chords of a text: the tool takes several, between spaces.
fn chords(text: &str) -> Result<Vec<Vec<String>>, String> {
    if text.trim().is_empty() {
        return gesture::chord(text).map(|keys| vec![keys]);
    }
    let joined = text.replace(" + ", "+");
    joined.split_whitespace().map(gesture::chord).collect()
}

/// Actions with the modifier keys held that `text` names.
fn held(args: Args<'_>, actions: Vec<Value>) -> Result<Vec<Value>, String> {
    Ok(gesture::with_keys(&args.keys(&["text"])?, actions))
}

pub(super) fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

pub(super) fn image(media: &str, data: &str) -> Value {
    json!({"type": "image", "source": {"type": "base64", "media_type": media, "data": data}})
}

fn screen(picture: Option<&Picture>) -> Value {
    picture.map_or_else(|| text(LEFT_OUT), |picture| image(PNG, picture))
}

#[cfg(test)]
mod tests;
