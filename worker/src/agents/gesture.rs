//! Gestures: what models ask for, as actions of the benchmark's form.

use serde_json::{Map, Value, json};

use super::place::Grid;

/// How many pixels of scrolling one click of the wheel is: what browsers make of it.
const PIXELS_A_CLICK: f64 = 100.0;

/// The arguments of a call, read with patience: models send numbers as text too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Args<'a>(pub(crate) &'a Map<String, Value>);

impl<'a> Args<'a> {
    /// What stands under the first of the names that is there and not null.
    pub(crate) fn any(self, names: &[&str]) -> Option<&'a Value> {
        names.iter().find_map(|name| self.0.get(*name)).filter(|value| !value.is_null())
    }

    /// A text.
    pub(crate) fn text(self, names: &[&str]) -> Result<Option<&'a str>, String> {
        self.any(names).map(|value| value.as_str().ok_or_else(|| wrong(names, "a string", value))).transpose()
    }

    /// A text that has to be there.
    pub(crate) fn needed_text(self, names: &[&str]) -> Result<&'a str, String> {
        self.text(names)?.ok_or_else(|| format!("`{}` is missing", names[0]))
    }

    /// A number.
    pub(crate) fn number(self, names: &[&str]) -> Result<Option<f64>, String> {
        self.any(names).map(|value| number(value).ok_or_else(|| wrong(names, "a number", value))).transpose()
    }

    /// A switch.
    pub(crate) fn flag(self, names: &[&str]) -> Result<Option<bool>, String> {
        self.any(names).map(|value| value.as_bool().ok_or_else(|| wrong(names, "true or false", value))).transpose()
    }

    /// A place on the screen: `[x, y]` or `{"x": .., "y": ..}` under one of the names.
    pub(crate) fn place(self, names: &[&str], grid: &Grid) -> Result<Option<[i32; 2]>, String> {
        let Some(value) = self.any(names) else { return Ok(None) };
        let (x, y) = pair(value).ok_or_else(|| wrong(names, "a place [x, y]", value))?;
        grid.point(x, y).map(Some)
    }

    /// A place under two names of its own.
    pub(crate) fn apart(self, x: &str, y: &str, grid: &Grid) -> Result<Option<[i32; 2]>, String> {
        match (self.number(&[x])?, self.number(&[y])?) {
            (Some(x), Some(y)) => grid.point(x, y).map(Some),
            (None, None) => Ok(None),
            _ => Err(format!("of `{x}` and `{y}` one is missing")),
        }
    }

    /// Names of keys: a list, or one text such as `ctrl+s`.
    pub(crate) fn keys(self, names: &[&str]) -> Result<Vec<String>, String> {
        let Some(value) = self.any(names) else { return Ok(Vec::new()) };
        let expected = "key names: a list, or one string such as `ctrl+s`";
        match value {
            Value::String(text) => chord(text),
            Value::Array(items) => {
                let mut keys = Vec::new();
                for item in items {
                    keys.extend(chord(item.as_str().ok_or_else(|| wrong(names, expected, value))?)?);
                }
                Ok(keys)
            }
            _ => Err(wrong(names, expected, value)),
        }
    }
}

/// A number, also as text; never one that is not finite.
pub(crate) fn number(value: &Value) -> Option<f64> {
    let found = match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    found.filter(|number: &f64| number.is_finite() && number.abs() < 1e9)
}

/// Two numbers: `[x, y]` or `{"x": .., "y": ..}`.
pub(crate) fn pair(value: &Value) -> Option<(f64, f64)> {
    match value {
        Value::Array(items) => match items.as_slice() {
            [x, y] => Some((number(x)?, number(y)?)),
            _ => None,
        },
        Value::Object(object) => Some((number(object.get("x")?)?, number(object.get("y")?)?)),
        _ => None,
    }
}

/// What of a value fits into a message to its model.
pub(crate) fn excerpt(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 80 { text } else { text.chars().take(77).chain("...".chars()).collect() }
}

fn wrong(names: &[&str], expected: &str, found: &Value) -> String {
    format!("`{}` takes {expected}, not {}", names[0], excerpt(found))
}

/// The keys of one chord: `ctrl+shift+s`, `plus`, `ctrl++`.
pub(crate) fn chord(text: &str) -> Result<Vec<String>, String> {
    let trimmed = text.trim();
    // One character stands for itself, a space too.
    if text.chars().count() == 1 || trimmed == "+" {
        return Ok(vec![if trimmed == "+" { "plus".to_owned() } else { text.to_owned() }]);
    }
    let (text, plus) = trimmed.strip_suffix("++").map_or((trimmed, false), |rest| (rest, true));
    let mut keys: Vec<String> = text.split('+').map(|key| key.trim().to_owned()).collect();
    keys.extend(plus.then(|| "plus".to_owned()));
    if keys.len() > 8 || keys.iter().any(|key| key.is_empty() || key.len() > 40) {
        return Err(format!("{} names no keys", excerpt(&json!(trimmed))));
    }
    Ok(keys)
}

/// A button of the pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Button {
    Left,
    Middle,
    Right,
}

impl Button {
    /// A button by the words that models use.
    pub(crate) fn named(name: &str) -> Result<Self, String> {
        match name {
            "left" => Ok(Self::Left),
            "middle" | "wheel" => Ok(Self::Middle),
            "right" => Ok(Self::Right),
            other => Err(format!("there is no button {} here", excerpt(&json!(other)))),
        }
    }
}

/// Clicks at a place, or where the pointer is.
pub(crate) fn click(button: Button, count: u32, at: Option<[i32; 2]>) -> Result<Vec<Value>, String> {
    if !(1..=3).contains(&count) {
        return Err(format!("{count} clicks are not one, two or three"));
    }
    let Some(at) = at else { return click_here(button, count) };
    let mouse = |name: &str| json!({"mouse": {name: at}});
    Ok(match (button, count) {
        (Button::Left, 2) => vec![mouse("double_click")],
        (Button::Left, 3) => vec![mouse("triple_click")],
        (button, count) => {
            let name = match button {
                Button::Left => "left_click",
                Button::Middle => "middle_click",
                Button::Right => "right_click",
            };
            vec![mouse(name); count as usize]
        }
    })
}

/// The pointer is where it is: only its buttons move.
fn click_here(button: Button, count: u32) -> Result<Vec<Value>, String> {
    let (down, up) = match button {
        Button::Left => (left_button(true), left_button(false)),
        Button::Right => {
            (json!({"mouse": {"buttons": {"right_down": true}}}), json!({"mouse": {"buttons": {"right_up": true}}}))
        }
        Button::Middle => return Err("a middle click needs a place".to_owned()),
    };
    Ok((0..count).flat_map(|_| [down.clone(), up.clone()]).collect())
}

/// Presses or releases the left button where the pointer is.
pub(crate) fn left_button(down: bool) -> Value {
    let name = if down { "left_down" } else { "left_up" };
    json!({"mouse": {"buttons": {name: true}}})
}

/// Moves the pointer.
pub(crate) fn go(to: [i32; 2]) -> Value {
    json!({"mouse": {"move": to}})
}

/// Drags with the left button, from the pointer's place if no other is named.
pub(crate) fn drag(from: Option<[i32; 2]>, to: [i32; 2]) -> Vec<Value> {
    match from {
        Some(from) => vec![json!({"mouse": {"left_click_drag": [from, to]}})],
        None => vec![left_button(true), go(to), left_button(false)],
    }
}

/// Drags along a path.
pub(crate) fn path(places: &[[i32; 2]]) -> Result<Vec<Value>, String> {
    match places {
        [] | [_] => Err("a drag needs two places at least".to_owned()),
        [from, to] => Ok(drag(Some(*from), *to)),
        [from, rest @ ..] => {
            let mut actions = vec![go(*from), left_button(true)];
            actions.extend(rest.iter().map(|place| go(*place)));
            actions.push(left_button(false));
            Ok(actions)
        }
    }
}

/// Turns the wheel at a place: positive is down and to the right.
pub(crate) fn scroll(at: Option<[i32; 2]>, right: i64, down: i64) -> Vec<Value> {
    let mut actions: Vec<Value> = at.map(go).into_iter().collect();
    if down != 0 {
        actions.push(json!({"mouse": {"scroll": down}}));
    }
    if right != 0 {
        actions.push(json!({"mouse": {"hscroll": right}}));
    }
    if actions.is_empty() { vec![screenshot()] } else { actions }
}

/// The same, by a direction's name.
pub(crate) fn scroll_towards(at: Option<[i32; 2]>, direction: &str, clicks: i64) -> Result<Vec<Value>, String> {
    match direction {
        "up" => Ok(scroll(at, 0, -clicks)),
        "down" => Ok(scroll(at, 0, clicks)),
        "left" => Ok(scroll(at, -clicks, 0)),
        "right" => Ok(scroll(at, clicks, 0)),
        other => Err(format!("{} is not up, down, left or right", excerpt(&json!(other)))),
    }
}

/// Pixels of scrolling as clicks of the wheel: at least one, if it is not zero.
pub(crate) fn clicks_of_pixels(pixels: f64) -> i64 {
    let clicks = whole(pixels / PIXELS_A_CLICK);
    if clicks == 0 && pixels != 0.0 { whole(pixels.signum()) } else { clicks }
}

/// The nearest whole number.
pub(crate) fn whole(number: f64) -> i64 {
    #[expect(clippy::cast_possible_truncation, reason = "numbers of calls are below a thousand million")]
    let whole = number.round() as i64;
    whole
}

/// Types text.
pub(crate) fn text(text: &str) -> Value {
    json!({"keyboard": {"text": text}})
}

/// Presses keys together.
pub(crate) fn press(keys: &[String]) -> Value {
    json!({"keyboard": {"keys": keys}})
}

/// Holds keys, or releases them.
pub(crate) fn hold(keys: &[String], down: bool) -> Value {
    let name = if down { "keys_down" } else { "keys_up" };
    json!({"keyboard": {name: keys}})
}

/// The actions with keys held around them.
pub(crate) fn with_keys(keys: &[String], actions: Vec<Value>) -> Vec<Value> {
    if keys.is_empty() {
        return actions;
    }
    let mut all = vec![hold(keys, true)];
    all.extend(actions);
    all.push(hold(keys, false));
    all
}

/// Waits; how long at most is the display's to say.
pub(crate) fn wait(seconds: f64) -> Result<Value, String> {
    if seconds < 0.0 {
        return Err("a wait is zero seconds or more".to_owned());
    }
    Ok(json!({"action": "wait", "time": seconds}))
}

/// Asks for nothing but the next picture.
pub(crate) fn screenshot() -> Value {
    json!({"action": "screenshot"})
}

#[cfg(test)]
mod tests {
    use longhaul_core::action;

    use super::*;

    #[test]
    fn chords_of_all_spellings_are_read() {
        let keys = |text: &str| chord(text).map(|keys| keys.join(" "));
        for (text, expected) in [
            ("ctrl+s", "ctrl s"),
            ("Return", "Return"),
            ("+", "plus"),
            ("ctrl++", "ctrl plus"),
            ("ctrl + shift + Tab", "ctrl shift Tab"),
            ("-", "-"),
        ] {
            assert_eq!(keys(text), Ok(expected.to_owned()), "{text}");
        }
        assert_eq!(chord(" "), Ok(vec![" ".to_owned()]));
        for bad in ["", "ctrl+", "+s", "a+b+c+d+e+f+g+h+i", &"x".repeat(50)] {
            assert!(chord(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_gesture_is_an_action_of_the_benchmarks_form() {
        let at = Some([3, 4]);
        let keys = ["ctrl".to_owned()];
        let mut all = Vec::new();
        for button in [Button::Left, Button::Middle, Button::Right] {
            for count in 1..=3 {
                all.extend(click(button, count, at).unwrap());
                all.extend(click(button, count, None).unwrap_or_default());
            }
        }
        all.extend(drag(None, [1, 2]));
        all.extend(path(&[[1, 2], [3, 4], [5, 6]]).unwrap());
        all.extend(scroll(at, 2, -3));
        all.extend(scroll(None, 0, 0));
        all.extend(with_keys(&keys, vec![press(&keys), text("x"), wait(0.5).unwrap()]));
        for action in &all {
            assert!(action::parse(action).is_ok(), "{action}");
        }
    }

    #[test]
    fn numbers_are_read_with_patience_and_none_is_not_finite() {
        for (value, expected) in [(json!(5), Some(5.0)), (json!("7.5"), Some(7.5)), (json!(" 3 "), Some(3.0))] {
            assert_eq!(number(&value), expected);
        }
        for value in [json!("NaN"), json!("inf"), json!(1e300), json!(null), json!([1]), json!("ten")] {
            assert_eq!(number(&value), None, "{value}");
        }
        assert_eq!((clicks_of_pixels(250.0), clicks_of_pixels(-20.0), clicks_of_pixels(0.0)), (3, -1, 0));
    }
}
