//! Actions as calls of the loop's functions: the way back from what was carried out.

use serde_json::{Map, Value, json};

use super::marks::escaped;
use crate::action::{Button, Input, Point};

/// A call of one of the [functions](super::declared).
#[derive(Clone, Debug, PartialEq)]
pub struct FunctionCall {
    /// The function.
    pub name: &'static str,
    /// Its arguments.
    pub arguments: Map<String, Value>,
}

impl FunctionCall {
    /// The call as a model writes it in text, whatever its arguments hold.
    #[must_use]
    pub fn as_text(&self) -> String {
        let arguments = escaped(&Value::Object(self.arguments.clone()).to_string());
        format!("<tool_call>\n{{\"name\": \"{}\", \"arguments\": {arguments}}}\n</tool_call>", self.name)
    }
}

/// An action that no declared function does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no function does this: {what}")]
pub struct Inexpressible {
    /// What it is.
    pub what: &'static str,
}

/// The grid that coordinates of calls are in, over a screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// How many columns.
    pub columns: u32,
    /// How many rows.
    pub rows: u32,
    /// The screen's width in pixels.
    pub width: u16,
    /// Its height.
    pub height: u16,
}

impl Grid {
    /// Coordinates are pixels of the screen.
    #[must_use]
    pub fn pixels(width: u16, height: u16) -> Self {
        Self { columns: u32::from(width.max(1)), rows: u32::from(height.max(1)), width, height }
    }

    /// Coordinates are thousandths of the screen.
    #[must_use]
    pub const fn thousandths(width: u16, height: u16) -> Self {
        Self { columns: 1000, rows: 1000, width, height }
    }

    fn place(&self, point: Point) -> (i64, i64) {
        (nearest(point.x, self.columns, self.width), nearest(point.y, self.rows, self.height))
    }
}

/// The cell whose middle is nearest to the middle of a pixel.
fn nearest(pixel: i32, cells: u32, pixels: u16) -> i64 {
    let (pixel, cells, pixels) = (i64::from(pixel.max(0)), i64::from(cells), i64::from(pixels.max(1)));
    ((2 * pixel + 1) * cells / (2 * pixels)).min(cells - 1)
}

/// The calls that do what `inputs` did, in order. `pointer` is where the pointer was put last, and
/// is moved along.
///
/// # Errors
///
/// No declared function does one of them.
pub fn calls(inputs: &[Input], pointer: &mut Option<Point>, grid: &Grid) -> Result<Vec<FunctionCall>, Inexpressible> {
    let mut writer = Writer { grid, pointer, calls: Vec::new() };
    let mut rest = inputs;
    while !rest.is_empty() {
        rest = writer.take(rest)?;
    }
    Ok(writer.calls)
}

struct Writer<'a> {
    grid: &'a Grid,
    pointer: &'a mut Option<Point>,
    calls: Vec<FunctionCall>,
}

impl Writer<'_> {
    /// Writes the first of the inputs, with those after it that belong to it; the rest is left.
    fn take<'i>(&mut self, inputs: &'i [Input]) -> Result<&'i [Input], Inexpressible> {
        let Some((first, rest)) = inputs.split_first() else { return Ok(inputs) };
        match first {
            Input::Move(at) => {
                // A wheel that is turned at a place is a move and a turn; alone, a move is a call.
                if !matches!(rest.first(), Some(Input::Scroll { .. })) {
                    self.at("move", *at, []);
                }
                *self.pointer = Some(*at);
            }
            Input::Click { button, at, count } => self.click(*button, *at, *count, &[]),
            Input::Drag { button: Button::Left, from, to } => self.drag(*from, *to),
            Input::Drag { .. } => return Err(Inexpressible { what: "a drag with another button than the left" }),
            Input::ButtonDown(button) => return self.held_button(*button, rest),
            Input::ButtonUp(_) => return Err(Inexpressible { what: "a button released that was not pressed" }),
            Input::Scroll { vertical, horizontal } => {
                self.scroll(*vertical, ["up", "down"]);
                self.scroll(*horizontal, ["left", "right"]);
            }
            Input::Text(text) => self.call("type", [("text", json!(text))]),
            Input::Chord(keys) => self.call("key", [("keys", json!(keys))]),
            Input::KeysDown(keys) => return self.held_keys(keys, rest),
            Input::KeysUp(_) => return Err(Inexpressible { what: "keys released that were not held" }),
            Input::Wait(millis) => {
                #[expect(clippy::cast_precision_loss, reason = "a minute at most")]
                let seconds = *millis as f64 / 1000.0;
                self.call("wait", [("seconds", json!(seconds))]);
            }
            Input::Screenshot => self.call("screenshot", []),
        }
        Ok(rest)
    }

    fn call<const N: usize>(&mut self, name: &'static str, arguments: [(&str, Value); N]) {
        let arguments = arguments.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        self.calls.push(FunctionCall { name, arguments });
    }

    fn at<const N: usize>(&mut self, name: &'static str, at: Point, more: [(&str, Value); N]) {
        let (x, y) = self.grid.place(at);
        self.call(name, [("x", json!(x)), ("y", json!(y))]);
        if let Some(call) = self.calls.last_mut() {
            call.arguments.extend(more.into_iter().map(|(key, value)| (key.to_owned(), value)));
        }
    }

    fn click(&mut self, button: Button, at: Point, count: u8, modifiers: &[String]) {
        self.at("click", at, []);
        *self.pointer = Some(at);
        let Some(call) = self.calls.last_mut() else { return };
        let button = match button {
            Button::Left => None,
            Button::Middle => Some("middle"),
            Button::Right => Some("right"),
        };
        let button = button.map(|button| ("button".to_owned(), json!(button)));
        let count = (count > 1).then(|| ("count".to_owned(), json!(count)));
        let modifiers = (!modifiers.is_empty()).then(|| ("modifiers".to_owned(), json!(modifiers)));
        call.arguments.extend([button, count, modifiers].into_iter().flatten());
    }

    fn drag(&mut self, from: Point, to: Point) {
        let (to_x, to_y) = self.grid.place(to);
        self.at("drag", from, [("to_x", json!(to_x)), ("to_y", json!(to_y))]);
        *self.pointer = Some(to);
    }

    fn scroll(&mut self, clicks: i32, [backward, forward]: [&str; 2]) {
        if clicks == 0 {
            return;
        }
        let direction = if clicks < 0 { backward } else { forward };
        let turn = [("direction", json!(direction)), ("clicks", json!(clicks.unsigned_abs()))];
        match *self.pointer {
            Some(at) => self.at("scroll", at, turn),
            // Where the pointer is, wherever that is.
            None => self.call("scroll", turn),
        }
    }

    /// A button that is pressed where the pointer is: clicks, or a drag, until it is released.
    fn held_button<'i>(&mut self, button: Button, rest: &'i [Input]) -> Result<&'i [Input], Inexpressible> {
        let from = self.pointer.ok_or(Inexpressible { what: "a button pressed at a place that is not known" })?;
        match rest {
            [Input::ButtonUp(up), rest @ ..] if *up == button => {
                // Two or three in a row are one double or triple click.
                let pair = |inputs: &[Input]| {
                    matches!(inputs, [Input::ButtonDown(down), Input::ButtonUp(up), ..]
                        if *down == button && *up == button)
                };
                let (mut count, mut rest) = (1, rest);
                while count < 3 && pair(rest) {
                    count += 1;
                    rest = &rest[2..];
                }
                self.click(button, from, count, &[]);
                Ok(rest)
            }
            [Input::Move(to), Input::ButtonUp(Button::Left), rest @ ..] if button == Button::Left => {
                self.drag(from, *to);
                Ok(rest)
            }
            _ => Err(Inexpressible { what: "a button held through something else than a straight drag" }),
        }
    }

    /// Keys that are held: around clicks they are modifiers.
    fn held_keys<'i>(&mut self, keys: &[String], mut rest: &'i [Input]) -> Result<&'i [Input], Inexpressible> {
        let mut clicked = false;
        loop {
            match rest {
                [Input::Click { button, at, count }, more @ ..] => {
                    self.click(*button, *at, *count, keys);
                    clicked = true;
                    rest = more;
                }
                [Input::KeysUp(up), more @ ..] if up == keys && clicked => return Ok(more),
                _ => return Err(Inexpressible { what: "keys held around something else than clicks" }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::parse;

    const GRID: Grid = Grid { columns: 1920, rows: 1080, width: 1920, height: 1080 };

    fn written(actions: Value, grid: &Grid) -> Result<Value, Inexpressible> {
        let inputs: Vec<Input> = actions.as_array().unwrap().iter().flat_map(|action| parse(action).unwrap()).collect();
        let calls = calls(&inputs, &mut None, grid)?;
        let call = |call: FunctionCall| json!([call.name, call.arguments]);
        Ok(Value::Array(calls.into_iter().map(call).collect()))
    }

    #[test]
    fn what_was_done_is_written_as_calls() {
        for (actions, expected) in [
            (json!([{"mouse": {"left_click": [3, 4]}}]), json!([["click", {"x": 3, "y": 4}]])),
            (json!([{"mouse": {"double_click": [3, 4]}}]), json!([["click", {"x": 3, "y": 4, "count": 2}]])),
            (json!([{"mouse": {"right_click": [3, 4]}}]), json!([["click", {"x": 3, "y": 4, "button": "right"}]])),
            (
                json!([
                    {"keyboard": {"keys_down": ["ctrl"]}},
                    {"mouse": {"left_click": [3, 4]}},
                    {"keyboard": {"keys_up": ["ctrl"]}},
                ]),
                json!([["click", {"x": 3, "y": 4, "modifiers": ["ctrl"]}]]),
            ),
            (json!([{"mouse": {"move": [3, 4]}}]), json!([["move", {"x": 3, "y": 4}]])),
            (
                json!([{"mouse": {"move": [3, 4]}}, {"mouse": {"scroll": -5}}]),
                json!([["scroll", {"x": 3, "y": 4, "direction": "up", "clicks": 5}]]),
            ),
            (
                json!([{"mouse": {"left_click": [3, 4]}}, {"mouse": {"hscroll": 2}}]),
                json!([["click", {"x": 3, "y": 4}], ["scroll", {"x": 3, "y": 4, "direction": "right", "clicks": 2}]]),
            ),
            (json!([{"mouse": {"scroll": 1}}]), json!([["scroll", {"direction": "down", "clicks": 1}]])),
            (
                json!([{"mouse": {"left_click_drag": [[1, 2], [3, 4]]}}]),
                json!([["drag", {"x": 1, "y": 2, "to_x": 3, "to_y": 4}]]),
            ),
            (
                json!([
                    {"mouse": {"move": [1, 2]}},
                    {"mouse": {"buttons": {"left_down": true}}},
                    {"mouse": {"move": [3, 4]}},
                    {"mouse": {"buttons": {"left_up": true}}},
                ]),
                json!([["move", {"x": 1, "y": 2}], ["drag", {"x": 1, "y": 2, "to_x": 3, "to_y": 4}]]),
            ),
            (
                json!([
                    {"mouse": {"move": [1, 2]}},
                    {"mouse": {"buttons": {"left_down": true}}}, {"mouse": {"buttons": {"left_up": true}}},
                    {"mouse": {"buttons": {"left_down": true}}}, {"mouse": {"buttons": {"left_up": true}}},
                ]),
                json!([["move", {"x": 1, "y": 2}], ["click", {"x": 1, "y": 2, "count": 2}]]),
            ),
            (json!([{"keyboard": {"text": "a\u{1b}"}}]), json!([["type", {"text": "a\u{1b}"}]])),
            (json!([{"keyboard": {"keys": ["ctrl", "s"]}}]), json!([["key", {"keys": ["ctrl", "s"]}]])),
            (json!([{"action": "wait", "time": 1.5}]), json!([["wait", {"seconds": 1.5}]])),
            (json!([{"action": "screenshot"}]), json!([["screenshot", {}]])),
        ] {
            assert_eq!(written(actions.clone(), &GRID), Ok(expected), "{actions}");
        }
    }

    #[test]
    fn what_no_function_does_is_said_and_not_bent() {
        for actions in [
            json!([{"mouse": {"right_click_drag": [[1, 2], [3, 4]]}}]),
            json!([{"mouse": {"buttons": {"left_down": true}}}]),
            json!([{"mouse": {"move": [1, 2]}}, {"mouse": {"buttons": {"left_down": true}}}]),
            json!([{"mouse": {"buttons": {"left_up": true}}}]),
            json!([{"keyboard": {"keys_down": ["c"]}}, {"mouse": {"scroll": 1}}, {"keyboard": {"keys_up": ["c"]}}]),
            json!([{"keyboard": {"keys_down": ["ctrl"]}}, {"keyboard": {"keys_up": ["ctrl"]}}]),
            json!([{"keyboard": {"keys_up": ["ctrl"]}}]),
        ] {
            assert!(written(actions.clone(), &GRID).is_err(), "{actions}");
        }
    }

    #[test]
    fn coordinates_are_scaled_to_the_nearest_cell_and_stay_within_the_grid() {
        let grid = Grid::thousandths(1920, 1080);
        let click = |x, y| written(json!([{"mouse": {"left_click": [x, y]}}]), &grid).unwrap()[0][1].clone();
        assert_eq!(click(960, 540), json!({"x": 500, "y": 500}));
        assert_eq!(click(0, 0), json!({"x": 0, "y": 0}));
        assert_eq!(click(1919, 1079), json!({"x": 999, "y": 999}));
    }
}
