//! OpenAI's computer use, over responses.
//!
//! Two forms of the tool: `computer_use_preview` (of the model of that name; one action a call)
//! and `computer` (several actions a call). No state is kept at the vendor: `store` is false,
//! `previous_response_id` is never sent, and reasoning goes back encrypted, as it came.
//!
//! A `computer_call` can only be answered with a screenshot. So an exchange whose screenshot
//! was left out goes back as words: what was asked for, without its call and its reasoning.

use longhaul_gateway::Surface;
use serde_json::{Value, json};

use super::{Ask, Asked, Call, Harness, Reading, Setting, Stop, UNATTENDED, joined, result_text, tokens, words};
use crate::agents::gesture::{self, Args, Button};
use crate::agents::history::{CallResult, Exchange, History, LEFT_OUT};
use crate::agents::picture::Picture;
use crate::agents::place::Grid;

/// How long a wait is that names no time.
const WAIT_SECONDS: f64 = 2.0;

/// The form.
#[derive(Debug)]
pub(super) struct OpenAi {
    setting: Setting,
    preview: bool,
    grid: Grid,
}

impl OpenAi {
    pub(super) fn new(setting: Setting) -> Result<Self, String> {
        let preview = match setting.options.tool.as_deref() {
            None => setting.model.starts_with("computer-use-preview"),
            Some("computer_use_preview") => true,
            Some("computer") => false,
            Some(other) => return Err(format!("no computer tool is called `{}`", other.escape_debug())),
        };
        let grid = Grid::of_image(setting.image, setting.screen);
        Ok(Self { setting, preview, grid })
    }

    fn tool(&self) -> Value {
        if !self.preview {
            return json!({"type": "computer"});
        }
        json!({
            "type": "computer_use_preview",
            "display_width": self.setting.image.width,
            "display_height": self.setting.image.height,
            "environment": "linux",
        })
    }

    fn actions(&self, action: &Value) -> Result<Vec<Value>, String> {
        let Value::Object(object) = action else {
            return Err(format!("an action is an object, not {}", gesture::excerpt(action)));
        };
        let args = Args(object);
        let at = || args.apart("x", "y", &self.grid);
        let needed = || at()?.ok_or_else(|| "`x` and `y` are missing".to_owned());
        let actions = match args.needed_text(&["type"])? {
            "click" => match args.text(&["button"])?.unwrap_or("left") {
                "back" => return Ok(vec![gesture::press(&["alt".to_owned(), "Left".to_owned()])]),
                "forward" => return Ok(vec![gesture::press(&["alt".to_owned(), "Right".to_owned()])]),
                button => gesture::click(Button::named(button)?, 1, Some(needed()?))?,
            },
            "double_click" => gesture::click(Button::Left, 2, Some(needed()?))?,
            "triple_click" => gesture::click(Button::Left, 3, Some(needed()?))?,
            "move" => vec![gesture::go(needed()?)],
            "drag" => {
                let path = args.any(&["path"]).and_then(Value::as_array).ok_or("`path` takes a list of places")?;
                let place = |value: &Value| match gesture::pair(value) {
                    Some((x, y)) => self.grid.point(x, y),
                    None => Err(format!("{} is no place", gesture::excerpt(value))),
                };
                gesture::path(&path.iter().map(place).collect::<Result<Vec<_>, _>>()?)?
            }
            "scroll" => {
                let pixels = |names: &[&str]| Ok::<_, String>(args.number(names)?.unwrap_or(0.0));
                let (right, down) = (pixels(&["scroll_x", "scrollX"])?, pixels(&["scroll_y", "scrollY"])?);
                gesture::scroll(at()?, gesture::clicks_of_pixels(right), gesture::clicks_of_pixels(down))
            }
            "keypress" => {
                let keys = args.keys(&["keys"])?;
                if keys.is_empty() {
                    return Err("`keys` is missing".to_owned());
                }
                return Ok(vec![gesture::press(&keys)]);
            }
            "type" => vec![gesture::text(args.needed_text(&["text"])?)],
            "wait" => {
                let seconds = match args.number(&["ms"])? {
                    Some(millis) => millis / 1000.0,
                    None => WAIT_SECONDS,
                };
                vec![gesture::wait(seconds)?]
            }
            "screenshot" => vec![gesture::screenshot()],
            other => return Err(format!("there is no action {} here", gesture::excerpt(&json!(other)))),
        };
        Ok(gesture::with_keys(&args.keys(&["keys"])?, actions))
    }

    fn asked(&self, item: &Value) -> Result<Asked, String> {
        let several = item.get("actions").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let one = item.get("action").filter(|action| !action.is_null());
        let mut actions = Vec::new();
        for action in several.iter().chain(one) {
            actions.extend(self.actions(action)?);
        }
        if actions.is_empty() { Err("the call has no action".to_owned()) } else { Ok(actions.into()) }
    }

    /// The items of what the model is given; in words alone where its screenshot was left out.
    fn given(&self, history: &History, exchange: &Exchange, is_first: bool, words: Vec<String>) -> Vec<Value> {
        let mut items = Vec::new();
        let mut content = Vec::new();
        if is_first {
            content.push(text(&self.setting.opening(history)));
        }
        let Some(picture) = &exchange.picture else {
            content.push(text(LEFT_OUT));
            content.extend(exchange.results.iter().filter(|result| result.error.is_some()).map(failed));
            content.extend(words.iter().map(|words| text(words)));
            return vec![json!({"role": "user", "content": content})];
        };
        for result in &exchange.results {
            let id = result.id.as_deref().unwrap_or_default();
            if result.name != "computer_call" {
                let output = result_text(result);
                items.push(json!({"type": "function_call_output", "call_id": id, "output": output}));
                continue;
            }
            let mut item = json!({
                "type": "computer_call_output",
                "call_id": id,
                "output": {"type": "computer_screenshot", "image_url": url(picture)},
            });
            if !result.safety.is_empty() {
                item["acknowledged_safety_checks"] = json!(result.safety);
            }
            items.push(item);
            // Its output has no place for words.
            if result.error.is_some() {
                content.push(failed(result));
            }
        }
        content.extend(words.iter().map(|words| text(words)));
        if !exchange.results.iter().any(|result| result.name == "computer_call") {
            content.push(json!({"type": "input_image", "image_url": url(picture)}));
        }
        if !content.is_empty() {
            items.push(json!({"role": "user", "content": content}));
        }
        items
    }
}

impl Harness for OpenAi {
    fn surface(&self) -> Surface {
        Surface::Responses
    }

    fn grid(&self) -> Grid {
        self.grid
    }

    fn body(&self, history: &History, ask: Ask) -> Value {
        let mut input: Vec<Value> = Vec::new();
        let last = history.exchanges.len().saturating_sub(1);
        for (index, exchange) in history.exchanges.iter().enumerate() {
            input.extend(self.given(history, exchange, index == 0, words(exchange, ask, index == last)));
            let Some(reply) = &exchange.reply else { continue };
            // A call goes back as one only if the screenshot that answers it does.
            let answered = history.exchanges.get(index + 1).is_none_or(|next| next.picture.is_some());
            if answered {
                input.extend(reply.kept.as_array().into_iter().flatten().cloned());
            } else {
                let content = json!([{"type": "output_text", "text": reply.gist}]);
                input.push(json!({"role": "assistant", "content": content}));
            }
        }
        let mut body = json!({
            "model": self.setting.model,
            "instructions": self.setting.system(UNATTENDED),
            "input": input,
            "tools": [self.tool()],
            "max_output_tokens": self.setting.max_output,
            "store": false,
            "include": ["reasoning.encrypted_content"],
        });
        if self.preview {
            // The model of that name is not served without.
            body["truncation"] = json!("auto");
        }
        if ask == Ask::Summary {
            body["tool_choice"] = json!("none");
        }
        self.setting.with_parameters(body)
    }

    fn read(&self, body: &Value) -> Reading {
        let empty = Vec::new();
        let output = body.get("output").and_then(Value::as_array).unwrap_or(&empty);
        let (mut kept, mut texts, mut calls, mut refusal) = (Vec::new(), Vec::new(), Vec::new(), None);
        for item in output {
            let Some(kind) = item.get("type").and_then(Value::as_str) else { continue };
            let call_id = item.get("call_id").and_then(Value::as_str).map(str::to_owned);
            match kind {
                "message" => {
                    for part in item.get("content").and_then(Value::as_array).into_iter().flatten() {
                        texts.extend(part.get("text").and_then(Value::as_str));
                        if let Some(reason) = part.get("refusal").and_then(Value::as_str) {
                            refusal = Some(reason.to_owned());
                        }
                    }
                }
                "computer_call" | "function_call" => {
                    // Without an id it could never be answered.
                    let Some(id) = call_id else { continue };
                    let checks = item.get("pending_safety_checks").and_then(Value::as_array);
                    let asked = if kind == "computer_call" {
                        self.asked(item)
                    } else {
                        Err("there are no functions here, only the computer".to_owned())
                    };
                    let safety = checks.cloned().unwrap_or_default();
                    calls.push(Call { id: Some(id), name: kind.to_owned(), asked, safety });
                }
                _ => {}
            }
            kept.push(item.clone());
        }
        let reason = body.pointer("/incomplete_details/reason").and_then(Value::as_str);
        let stop = match (refusal, reason) {
            (Some(refusal), _) => Stop::Refused(refusal),
            (None, Some("content_filter")) => Stop::Refused("the vendor's filter stopped the answer".to_owned()),
            (None, Some(_)) => Stop::Cut,
            (None, None) => Stop::Whole,
        };
        let tokens = tokens(body.get("usage").unwrap_or(&Value::Null), &["input_tokens", "output_tokens"]);
        Reading { kept: Value::Array(kept), text: joined(texts), calls, tokens, stop }
    }
}

fn text(text: &str) -> Value {
    json!({"type": "input_text", "text": text})
}

fn failed(result: &CallResult) -> Value {
    text(&format!("{}: {}", result.name, result_text(result)))
}

fn url(picture: &Picture) -> String {
    format!("data:image/png;base64,{picture}")
}

#[cfg(test)]
mod tests;
