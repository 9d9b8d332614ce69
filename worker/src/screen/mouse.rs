//! The pointer: moves, clicks, drags and the wheel.

use std::time::{Duration, Instant};

use longhaul_core::action::{Button, Point};

use super::display::{Display, Motion};
use super::error::{InputError, ScreenError};

/// Between the clicks of one double click: far below what any toolkit allows.
const BETWEEN_CLICKS: Duration = Duration::from_millis(40);

/// Two clicks of two actions stay two clicks: none of the common toolkits joins clicks
/// that are further apart than this.
const APART: Duration = Duration::from_millis(550);

/// Within so many pixels clicks can be joined.
const NEAR: u32 = 12;

/// How long a button is down in a click.
const CLICK_HOLD: Duration = Duration::from_millis(2);

/// A drag: the pause before and after its moves, between two moves, and their number.
const DRAG_PAUSE: Duration = Duration::from_millis(60);
const DRAG_MOVE: Duration = Duration::from_millis(8);
const DRAG_MOVES: i32 = 24;

/// Between two clicks of the wheel.
const WHEEL_PAUSE: Duration = Duration::from_millis(2);

/// The most clicks of the wheel that one action may ask for.
pub(super) const MAX_WHEEL: u32 = 1000;

/// What is known of the pointer beyond what the server keeps.
#[derive(Debug, Default)]
pub(super) struct Mouse {
    held: Vec<u8>,
    last_click: Option<(u8, Point, Instant)>,
}

impl Mouse {
    /// Moves the pointer.
    pub(super) fn go(&self, display: &Display, to: Point) -> Result<(), InputError> {
        let (x, y) = on_screen(display, to)?;
        display.motion(x, y)?;
        Ok(display.sync()?)
    }

    /// Clicks `count` times at one place.
    pub(super) fn click(&mut self, display: &Display, button: Button, at: Point, count: u8) -> Result<(), InputError> {
        let number = number(button);
        let (x, y) = on_screen(display, at)?;
        if let Some((last, place, when)) = self.last_click
            && last == number
            && place.x.abs_diff(at.x).max(place.y.abs_diff(at.y)) < NEAR
        {
            display.pause(APART.saturating_sub(when.elapsed()))?;
        }
        display.motion(x, y)?;
        for click in 0..count {
            if click > 0 {
                display.pause(BETWEEN_CLICKS)?;
            }
            display.button(number, Motion::Press)?;
            let held = display.pause(CLICK_HOLD);
            display.button(number, Motion::Release)?;
            held?;
        }
        display.sync()?;
        self.last_click = Some((number, at, Instant::now()));
        Ok(())
    }

    /// Presses at one place and releases at another, with moves between that a toolkit
    /// takes for a drag.
    pub(super) fn drag(&self, display: &Display, button: Button, from: Point, to: Point) -> Result<(), InputError> {
        let number = number(button);
        on_screen(display, to)?;
        self.go(display, from)?;
        display.pause(DRAG_PAUSE)?;
        display.button(number, Motion::Press)?;
        let moved = Self::drag_moves(display, from, to);
        display.button(number, Motion::Release)?;
        moved?;
        Ok(display.sync()?)
    }

    fn drag_moves(display: &Display, from: Point, to: Point) -> Result<(), InputError> {
        display.pause(DRAG_PAUSE)?;
        for step in 1..=DRAG_MOVES {
            let part = |from: i32, to: i32| from + (to - from) * step / DRAG_MOVES;
            let (x, y) = on_screen(display, Point { x: part(from.x, to.x), y: part(from.y, to.y) })?;
            display.motion(x, y)?;
            display.pause(DRAG_MOVE)?;
        }
        display.sync()?;
        Ok(display.pause(DRAG_PAUSE)?)
    }

    /// Presses a button and leaves it down.
    pub(super) fn hold(&mut self, display: &Display, button: Button) -> Result<(), InputError> {
        let number = number(button);
        self.held.push(number);
        display.button(number, Motion::Press)?;
        Ok(display.sync()?)
    }

    /// Releases a button.
    pub(super) fn release(&mut self, display: &Display, button: Button) -> Result<(), InputError> {
        let number = number(button);
        self.held.retain(|held| *held != number);
        display.button(number, Motion::Release)?;
        Ok(display.sync()?)
    }

    /// Releases all buttons that are held.
    pub(super) fn release_all(&mut self, display: &Display) -> Result<(), ScreenError> {
        for number in std::mem::take(&mut self.held).into_iter().rev() {
            display.button(number, Motion::Release)?;
        }
        display.sync()
    }

    /// Turns the wheel: down and to the right where positive.
    pub(super) fn scroll(display: &Display, vertical: i32, horizontal: i32) -> Result<(), InputError> {
        let turns = [(vertical, 5, 4), (horizontal, 7, 6)];
        if turns.iter().any(|(count, ..)| count.unsigned_abs() > MAX_WHEEL) {
            return Err(InputError::Refused(format!("a scroll is at most {MAX_WHEEL} clicks of the wheel")));
        }
        for (count, forward, back) in turns {
            let number = if count > 0 { forward } else { back };
            for _ in 0..count.unsigned_abs() {
                display.button(number, Motion::Press)?;
                display.button(number, Motion::Release)?;
                display.pause(WHEEL_PAUSE)?;
            }
        }
        Ok(display.sync()?)
    }
}

const fn number(button: Button) -> u8 {
    match button {
        Button::Left => 1,
        Button::Middle => 2,
        Button::Right => 3,
    }
}

/// A point in the protocol's form; refused when it is beyond the screen: to click at its
/// edge instead would be something that nobody asked for.
fn on_screen(display: &Display, point: Point) -> Result<(i16, i16), InputError> {
    let (width, height) = display.capture.size();
    let within = |value: i32, limit: u16| i16::try_from(value).ok().filter(|_| (0..i32::from(limit)).contains(&value));
    match (within(point.x, width), within(point.y, height)) {
        (Some(x), Some(y)) => Ok((x, y)),
        _ => Err(InputError::Refused(format!("[{}, {}] is beyond the screen of {width}x{height}", point.x, point.y))),
    }
}
