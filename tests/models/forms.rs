//! What a computer-use model answers, in each vendor's own form.

use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

/// The screen of the examples.
const SCREEN: (u32, u32) = (1280, 720);

/// How a model is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Anthropic's messages, with the toolset whose calls have the action as their name.
    Anthropic,
    /// The same with the tool of 2025, whose action is an argument.
    Anthropic2025,
    /// OpenAI's responses.
    OpenAi,
    /// Gemini's `generateContent`.
    Gemini,
    /// Functions over chat completions.
    Tools,
}

/// One thing that a model asks for, at places of the screen.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Do {
    Click(u32, u32),
    /// Keys together, with plus signs.
    Press(&'static str),
    Type(&'static str),
    Wait,
    Look,
}

/// A model that is shown pictures of a size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Model {
    pub(crate) form: Form,
    pub(crate) picture: (u32, u32),
}

impl Model {
    /// An answer that asks for something, as members of a body.
    pub(crate) fn does(self, said: &str, all: &[Do]) -> Value {
        let id = id();
        match self.form {
            Form::Anthropic | Form::Anthropic2025 => {
                let calls = all.iter().enumerate().map(|(index, one)| {
                    let (action, mut input) = self.anthropic(*one);
                    let name = if self.form == Form::Anthropic { action } else { "computer" };
                    if self.form == Form::Anthropic2025 {
                        input["action"] = json!(action);
                    }
                    json!({"type": "tool_use", "id": format!("toolu_{id}_{index}"), "name": name, "input": input})
                });
                let content: Vec<Value> = std::iter::once(json!({"type": "text", "text": said})).chain(calls).collect();
                json!({"content": content, "stop_reason": "tool_use"})
            }
            Form::OpenAi => {
                let actions: Vec<Value> = all.iter().map(|one| self.openai(*one)).collect();
                let call = json!({"type": "computer_call", "id": format!("cu_{id}"), "call_id": format!("call_{id}"),
                    "status": "completed", "pending_safety_checks": [], "actions": actions});
                json!({"output": [message(said), call]})
            }
            Form::Gemini => {
                let calls = all.iter().map(|one| {
                    let (name, args) = self.gemini(*one);
                    json!({"functionCall": {"name": name, "args": args}})
                });
                let parts: Vec<Value> = std::iter::once(json!({"text": said})).chain(calls).collect();
                candidates(&parts)
            }
            Form::Tools => {
                let calls = all.iter().enumerate().map(|(index, one)| {
                    let (name, arguments) = self.function(*one);
                    json!({"id": format!("call_{id}_{index}"), "type": "function",
                        "function": {"name": name, "arguments": arguments.to_string()}})
                });
                choices(&json!({"role": "assistant", "content": said, "tool_calls": calls.collect::<Vec<_>>()}))
            }
        }
    }

    /// An answer that says that the task is done.
    pub(crate) fn ends(self, said: &str) -> Value {
        match self.form {
            Form::Anthropic | Form::Anthropic2025 => {
                json!({"content": [{"type": "text", "text": said}], "stop_reason": "end_turn"})
            }
            Form::OpenAi => json!({"output": [message(said)]}),
            Form::Gemini => candidates(&[json!({"text": said})]),
            Form::Tools => {
                let arguments = json!({"text": said}).to_string();
                let call = json!({"id": format!("call_{}", id()), "type": "function",
                    "function": {"name": "done", "arguments": arguments}});
                choices(&json!({"role": "assistant", "content": null, "tool_calls": [call]}))
            }
        }
    }

    /// A script of answers, one for each list; the last one ends it.
    pub(crate) fn script(self, steps: &[&[Do]]) -> Vec<Value> {
        let does = steps.iter().map(|step| self.does("I go on.", step));
        does.chain([self.ends("It is done.")]).collect()
    }

    /// A place of the screen, as the model sees it.
    fn at(self, x: u32, y: u32) -> (u32, u32) {
        let (width, height) = if self.form == Form::Gemini { (1000, 1000) } else { self.picture };
        let scaled = |at: u32, to: u32, from: u32| (at * to + from / 2) / from;
        (scaled(x, width, SCREEN.0), scaled(y, height, SCREEN.1))
    }

    fn anthropic(self, one: Do) -> (&'static str, Value) {
        match one {
            Do::Click(x, y) => {
                let (x, y) = self.at(x, y);
                ("left_click", json!({"coordinate": [x, y]}))
            }
            Do::Press(keys) => ("key", json!({"text": keys})),
            Do::Type(text) => ("type", json!({"text": text})),
            Do::Wait => ("wait", json!({"duration": 1})),
            Do::Look => ("screenshot", json!({})),
        }
    }

    fn openai(self, one: Do) -> Value {
        match one {
            Do::Click(x, y) => {
                let (x, y) = self.at(x, y);
                json!({"type": "click", "button": "left", "x": x, "y": y})
            }
            // As these models write keys.
            Do::Press(keys) => {
                json!({"type": "keypress", "keys": keys.to_uppercase().split('+').collect::<Vec<_>>()})
            }
            Do::Type(text) => json!({"type": "type", "text": text}),
            Do::Wait => json!({"type": "wait"}),
            Do::Look => json!({"type": "screenshot"}),
        }
    }

    fn gemini(self, one: Do) -> (&'static str, Value) {
        match one {
            Do::Click(x, y) => {
                let (x, y) = self.at(x, y);
                ("click", json!({"x": x, "y": y}))
            }
            Do::Press(keys) => ("hotkey", json!({"keys": keys.split('+').collect::<Vec<_>>()})),
            Do::Type(text) => ("type", json!({"text": text})),
            Do::Wait => ("wait", json!({"seconds": 1})),
            Do::Look => ("take_screenshot", json!({})),
        }
    }

    fn function(self, one: Do) -> (&'static str, Value) {
        match one {
            Do::Click(x, y) => {
                let (x, y) = self.at(x, y);
                ("click", json!({"x": x, "y": y}))
            }
            Do::Press(keys) => ("key", json!({"keys": keys.split('+').collect::<Vec<_>>()})),
            Do::Type(text) => ("type", json!({"text": text})),
            Do::Wait => ("wait", json!({"seconds": 1})),
            Do::Look => ("screenshot", json!({})),
        }
    }
}

/// A chat completion that says something, as members of a body.
pub(crate) fn says(text: &str) -> Value {
    let message = json!({"role": "assistant", "content": text});
    json!({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
}

fn id() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn message(said: &str) -> Value {
    json!({"type": "message", "id": format!("msg_{}", id()), "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": said, "annotations": []}]})
}

fn candidates(parts: &[Value]) -> Value {
    json!({"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}]})
}

fn choices(message: &Value) -> Value {
    json!({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]})
}

/// The arrow of the sign turned, over the menu, and the picture saved.
pub(crate) const FLIP: [&[Do]; 3] = [&[Do::Click(158, 32)], &[Do::Click(210, 209)], SAVE];

/// What is open is saved.
pub(crate) const SAVE: &[Do] = &[Do::Press("ctrl+s"), Do::Wait];
