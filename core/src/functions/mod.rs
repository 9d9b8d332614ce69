//! The functions of the generic loop: what a model is told of them, and actions written as calls
//! of them.
//!
//! The loop around models behind chat completions declares them, and training sets are written in
//! them whichever agent's the trajectory is, so that what is learned is what is asked for later.

mod call;
mod marks;

use serde_json::{Value, json};

pub use call::{FunctionCall, Grid, Inexpressible, calls};
pub use marks::harmless;

/// What is said before the task.
pub const OWN_WORDS: &str = "You operate a Linux desktop to do a task. With each of your answers call one function, \
     or several that need no look at the screen in between; after it you see the screen as it is then. Go on until the \
     task is done and check the result on the screen; then call `done`. Nobody answers questions.";

/// What stands in the place of a screenshot that was left out.
pub const LEFT_OUT: &str = "[an older screenshot was left out]";

const IN_TEXT: &str = "Write each call as a JSON object between <tool_call> and </tool_call>: \
     {\"name\": ..., \"arguments\": {...}}. The functions are:";

/// The words before the task, with the functions for a model that writes its calls as text.
#[must_use]
pub fn in_text(words: &str, functions: &[Value]) -> String {
    let lines: Vec<String> = functions.iter().map(Value::to_string).collect();
    format!("{words}\n\n{IN_TEXT}\n{}", lines.join("\n"))
}

/// The functions as they are declared, for coordinates of so many columns and rows.
#[must_use]
pub fn declared(columns: u32, rows: u32) -> Vec<Value> {
    let x = json!({"type": "number", "description": format!("From the left edge, 0 to {columns}.")});
    let y = json!({"type": "number", "description": format!("From the upper edge, 0 to {rows}.")});
    let keys = json!({"type": "array", "items": {"type": "string"}});
    let function = |name: &str, description: &str, properties: Value, required: &[&str]| {
        json!({
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": properties, "required": required},
        })
    };
    vec![
        function(
            "click",
            "Clicks at a place.",
            json!({
                "x": x, "y": y,
                "button": {"type": "string", "enum": ["left", "middle", "right"]},
                "count": {"type": "integer", "enum": [1, 2, 3], "description": "2 is a double click."},
                "modifiers": keys,
            }),
            &["x", "y"],
        ),
        function("move", "Moves the pointer to a place.", json!({"x": x, "y": y}), &["x", "y"]),
        function(
            "drag",
            "Drags from one place to another with the left button.",
            json!({"x": x, "y": y, "to_x": x, "to_y": y}),
            &["x", "y", "to_x", "to_y"],
        ),
        function(
            "scroll",
            "Turns the wheel at a place.",
            json!({
                "x": x, "y": y,
                "direction": {"type": "string", "enum": ["up", "down", "left", "right"]},
                "clicks": {"type": "integer", "description": "Clicks of the wheel."},
            }),
            &["x", "y", "direction", "clicks"],
        ),
        function(
            "type",
            "Types text where the focus is.",
            json!({"text": {"type": "string"}, "press_enter": {"type": "boolean"}}),
            &["text"],
        ),
        function(
            "key",
            "Presses keys together, such as [\"ctrl\", \"s\"] or [\"Return\"].",
            json!({"keys": keys}),
            &["keys"],
        ),
        function("wait", "Waits.", json!({"seconds": {"type": "number"}}), &["seconds"]),
        function("screenshot", "Only looks at the screen again.", json!({}), &[]),
        function(
            "done",
            "Says that the task is done, or that it cannot be done.",
            json!({"text": {"type": "string", "description": "What was done."}}),
            &[],
        ),
    ]
}
