//! Actions: what an agent asks a screen to do, in Gym-Anything's own form.
//!
//! An action is a JSON object with one or more of the keys below; an unknown key or a
//! value of the wrong shape is an error, which the step's record keeps.
//!
//! ```json
//! {"mouse": {"left_click": [960, 540]}}
//! {"keyboard": {"keys": ["ctrl", "s"]}}
//! {"keyboard": {"text": "Grüße"}}
//! {"action": "wait", "time": 1.5}
//! ```

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A point of the screen, in pixels from the upper left corner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    /// Pixels from the left edge.
    pub x: i32,
    /// Pixels from the upper edge.
    pub y: i32,
}

/// A button of the pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Button {
    /// The main button.
    Left,
    /// The wheel, pressed.
    Middle,
    /// The context button.
    Right,
}

/// One thing that is injected, in the order given. An action is a list of these:
/// Gym-Anything lets one object hold several keys, and executes the mouse first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// Moves the pointer.
    Move(Point),
    /// Moves the pointer and clicks `count` times in a row.
    Click {
        /// Which button.
        button: Button,
        /// Where.
        at: Point,
        /// How often, in one double or triple click.
        count: u8,
    },
    /// Presses a button at one point and releases it at another.
    Drag {
        /// Which button.
        button: Button,
        /// Where it is pressed.
        from: Point,
        /// Where it is released.
        to: Point,
    },
    /// Presses a button where the pointer is.
    ButtonDown(Button),
    /// Releases a button where the pointer is.
    ButtonUp(Button),
    /// Turns the wheel where the pointer is; positive is down (to the right).
    Scroll {
        /// Wheel clicks downwards; negative is upwards.
        vertical: i32,
        /// Wheel clicks to the right; negative is to the left.
        horizontal: i32,
    },
    /// Types text as it is, whatever the keyboard's layout.
    Text(String),
    /// Presses the keys together, in order, and releases them in reverse.
    Chord(Vec<String>),
    /// Presses keys and holds them.
    KeysDown(Vec<String>),
    /// Releases held keys.
    KeysUp(Vec<String>),
    /// Waits, in milliseconds.
    Wait(u64),
    /// Takes no input; the step's observation is the answer.
    Screenshot,
}

/// Why an action cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ActionError {
    /// It is not a JSON object.
    #[error("an action is a JSON object, not {found}")]
    NotAnObject {
        /// What was found instead.
        found: String,
    },
    /// It has a key that means nothing.
    #[error("unknown key `{key}` in {place}")]
    UnknownKey {
        /// The key.
        key: String,
        /// Where it stands: `action`, `mouse`, `keyboard`, ...
        place: &'static str,
    },
    /// A known key has a value of another shape.
    #[error("`{key}` takes {expected}, not {found}")]
    WrongValue {
        /// The key.
        key: String,
        /// What it takes.
        expected: &'static str,
        /// What was found.
        found: String,
    },
    /// The object asks for nothing.
    #[error("the action asks for nothing")]
    Empty,
}

/// The longest wait that one action may ask for, in milliseconds.
pub const MAX_WAIT_MILLIS: u64 = 60_000;

/// Reads one action. All of it is read before any of it is carried out.
///
/// # Errors
///
/// An unknown key, a value of another shape, or an object that asks for nothing.
pub fn parse(value: &Value) -> Result<Vec<Input>, ActionError> {
    let object = value.as_object().ok_or_else(|| ActionError::NotAnObject { found: excerpt(value) })?;
    if let Some(name) = object.get("action").or_else(|| object.get("type")) {
        return control(object, name);
    }
    let mut inputs = Vec::new();
    if let Some(mouse) = object.get("mouse") {
        parse_mouse(mouse, &mut inputs)?;
    }
    if let Some(keyboard) = object.get("keyboard") {
        parse_keyboard(keyboard, &mut inputs)?;
    }
    if let Some(key) = object.keys().find(|key| !matches!(key.as_str(), "mouse" | "keyboard")) {
        return Err(ActionError::UnknownKey { key: key.clone(), place: "action" });
    }
    if inputs.is_empty() { Err(ActionError::Empty) } else { Ok(inputs) }
}

fn control(object: &Map<String, Value>, name: &Value) -> Result<Vec<Input>, ActionError> {
    match name.as_str() {
        Some("screenshot") => Ok(vec![Input::Screenshot]),
        Some("wait") => {
            let time = object.get("time").or_else(|| object.get("seconds"));
            let seconds = match time {
                None => 1.0,
                Some(value) => value
                    .as_f64()
                    .filter(|seconds| seconds.is_finite() && *seconds >= 0.0)
                    .ok_or_else(|| wrong("time", "a number of seconds, zero or more", value))?,
            };
            let millis = std::time::Duration::try_from_secs_f64(seconds)
                .map_or(u128::MAX, |length| length.as_millis())
                .min(u128::from(MAX_WAIT_MILLIS));
            Ok(vec![Input::Wait(u64::try_from(millis).unwrap_or(MAX_WAIT_MILLIS))])
        }
        _ => Err(wrong("action", "`screenshot` or `wait`", name)),
    }
}

fn parse_mouse(value: &Value, inputs: &mut Vec<Input>) -> Result<(), ActionError> {
    let object = value.as_object().ok_or_else(|| wrong("mouse", "an object", value))?;
    for (key, value) in object {
        let click = |button, count| Ok::<_, ActionError>(Input::Click { button, at: point(key, value)?, count });
        let input = match key.as_str() {
            "left_click" => click(Button::Left, 1)?,
            "right_click" => click(Button::Right, 1)?,
            "middle_click" => click(Button::Middle, 1)?,
            "double_click" => click(Button::Left, 2)?,
            "triple_click" => click(Button::Left, 3)?,
            "move" => Input::Move(point(key, value)?),
            "left_click_drag" => drag(Button::Left, key, value)?,
            "right_click_drag" => drag(Button::Right, key, value)?,
            "scroll" => Input::Scroll { vertical: whole(key, value)?, horizontal: 0 },
            // Not in Gym-Anything, whose agents cannot scroll sideways.
            "hscroll" => Input::Scroll { vertical: 0, horizontal: whole(key, value)? },
            "buttons" => {
                parse_buttons(value, inputs)?;
                continue;
            }
            _ => return Err(ActionError::UnknownKey { key: key.clone(), place: "mouse" }),
        };
        inputs.push(input);
    }
    Ok(())
}

fn parse_buttons(value: &Value, inputs: &mut Vec<Input>) -> Result<(), ActionError> {
    let object = value.as_object().ok_or_else(|| wrong("buttons", "an object", value))?;
    for (key, value) in object {
        let input = match key.as_str() {
            "left_down" => Input::ButtonDown(Button::Left),
            "left_up" => Input::ButtonUp(Button::Left),
            "right_down" => Input::ButtonDown(Button::Right),
            "right_up" => Input::ButtonUp(Button::Right),
            _ => return Err(ActionError::UnknownKey { key: key.clone(), place: "buttons" }),
        };
        match value.as_bool() {
            Some(true) => inputs.push(input),
            Some(false) => {}
            None => return Err(wrong(key, "true or false", value)),
        }
    }
    Ok(())
}

fn parse_keyboard(value: &Value, inputs: &mut Vec<Input>) -> Result<(), ActionError> {
    let object = value.as_object().ok_or_else(|| wrong("keyboard", "an object", value))?;
    for (key, value) in object {
        let input = match key.as_str() {
            "text" => Input::Text(value.as_str().ok_or_else(|| wrong(key, "a string", value))?.to_owned()),
            "keys" => Input::Chord(keys(key, value)?),
            "keys_down" => Input::KeysDown(keys(key, value)?),
            "keys_up" => Input::KeysUp(keys(key, value)?),
            _ => return Err(ActionError::UnknownKey { key: key.clone(), place: "keyboard" }),
        };
        inputs.push(input);
    }
    Ok(())
}

/// A list of key names, or one string such as `ctrl+s` (which agents send).
fn keys(key: &str, value: &Value) -> Result<Vec<String>, ActionError> {
    const EXPECTED: &str = "key names: a list, or one string such as `ctrl+s`";
    let names: Vec<String> = match value {
        Value::String(text) if text == "+" => vec!["plus".to_owned()],
        Value::String(text) => text.split('+').map(str::trim).map(str::to_owned).collect(),
        Value::Array(items) => items
            .iter()
            .map(|item| item.as_str().map(str::to_owned).ok_or_else(|| wrong(key, EXPECTED, value)))
            .collect::<Result<_, _>>()?,
        _ => return Err(wrong(key, EXPECTED, value)),
    };
    if names.is_empty() || names.iter().any(String::is_empty) {
        return Err(wrong(key, EXPECTED, value));
    }
    Ok(names)
}

fn drag(button: Button, key: &str, value: &Value) -> Result<Input, ActionError> {
    match value.as_array().map(Vec::as_slice) {
        Some([from, to]) => Ok(Input::Drag { button, from: point(key, from)?, to: point(key, to)? }),
        _ => Err(wrong(key, "two points [[x1, y1], [x2, y2]]", value)),
    }
}

fn point(key: &str, value: &Value) -> Result<Point, ActionError> {
    const EXPECTED: &str = "a point [x, y]";
    match value.as_array().map(Vec::as_slice) {
        Some([x, y]) => Ok(Point { x: coordinate(key, x, EXPECTED)?, y: coordinate(key, y, EXPECTED)? }),
        _ => Err(wrong(key, EXPECTED, value)),
    }
}

fn whole(key: &str, value: &Value) -> Result<i32, ActionError> {
    coordinate(key, value, "a whole number")
}

/// A whole number; models also send `960.0` and fractions of a pixel, which are rounded.
fn coordinate(key: &str, value: &Value, expected: &'static str) -> Result<i32, ActionError> {
    let number = value.as_f64().filter(|number| number.is_finite() && number.abs() < 1e6);
    #[expect(clippy::cast_possible_truncation, reason = "checked to be below a million")]
    number.map(|number| number.round() as i32).ok_or_else(|| wrong(key, expected, value))
}

fn wrong(key: &str, expected: &'static str, found: &Value) -> ActionError {
    ActionError::WrongValue { key: key.to_owned(), expected, found: excerpt(found) }
}

/// A value's text, cut so that an agent's answer cannot flood a record.
fn excerpt(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 80 { text } else { text.chars().take(77).chain("...".chars()).collect() }
}
