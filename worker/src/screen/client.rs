//! One screen: captures, input and rest over one connection. Blocking; it lives on a
//! thread of its own behind a [`ScreenHandle`](super::ScreenHandle).

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longhaul_core::action::{self, Input};
use longhaul_core::digest::Digest;
use longhaul_core::screen::Area;
use longhaul_core::step::{ActionOutcome, Screenshot};
use serde_json::Value;

use super::display::{Display, Stop, Works};
use super::error::{InputError, ScreenError};
use super::keyboard::Keyboard;
use super::mouse::Mouse;
use super::pixels::{self, Pointer};
use super::rest::{Rest, RestRule};

/// After an input that only gets another one ready (a move, a key that is held).
const SHORT_GAP: Duration = Duration::from_millis(20);

/// A captured and encoded frame, the pointer drawn in.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The digest of the PNG and the size, as a step records them.
    pub screenshot: Screenshot,
    /// The PNG.
    pub png: Arc<[u8]>,
    /// Whether it is the very frame of the capture before, which was not encoded again.
    pub unchanged: bool,
}

/// What became of a step's actions.
#[derive(Clone, Debug)]
pub struct Performed {
    /// One outcome for each action.
    pub outcomes: Vec<ActionOutcome>,
    /// Whether anything was injected, so that the screen may change.
    pub injected: bool,
    /// How long it took, with the waits that were asked for.
    pub took: Duration,
}

/// A whole step: actions, rest, observation.
#[derive(Clone, Debug)]
pub struct Stepped {
    /// What became of the actions.
    pub performed: Performed,
    /// What the wait for rest came to.
    pub rest: Rest,
    /// The screen after it.
    pub frame: Frame,
    /// How long capturing and encoding took.
    pub capture: Duration,
    /// Where the screen had changed by itself since the capture before, when the first action
    /// was about to be carried out.
    pub stirred: Vec<Area>,
}

/// The last frame that was encoded, and of what.
#[derive(Debug)]
struct Encoded {
    generation: u64,
    pointer: Option<Pointer>,
    frame: Frame,
}

/// Ends a screen's waits from another thread.
#[derive(Debug)]
pub(super) struct Ender {
    socket: UnixStream,
    stop: Arc<Stop>,
}

impl Ender {
    /// Ends the screen's pauses; it closes in order after that.
    pub(super) fn stop(&self) {
        self.stop.ring();
    }

    /// Ends the screen's pauses and its connection: for a server that hangs.
    pub(super) fn cut(&self) {
        self.stop.ring();
        // It may be closed already, which is what is wanted.
        drop(self.socket.shutdown(Shutdown::Both));
    }
}

/// What is waited for before the next input of the same step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gap {
    /// Nothing, and the screen was looked at just now.
    Seen,
    None,
    Short,
    Rest,
}

/// The screen of one sandbox.
#[derive(Debug)]
pub struct Screen {
    display: Display,
    keyboard: Keyboard,
    mouse: Mouse,
    encoded: Option<Encoded>,
    /// What the last input of this step asks to be waited for.
    gap: Gap,
    stop: Arc<Stop>,
}

impl Screen {
    /// Connects to the X server behind `socket` (a path of any length), whose screen must
    /// be `width` x `height`.
    ///
    /// # Errors
    ///
    /// The socket cannot be reached, what answers is not a usable X server, or its screen
    /// has another size.
    pub fn connect(socket: &Path, width: u16, height: u16) -> Result<Self, ScreenError> {
        let stop = Arc::new(Stop::default());
        let display = Display::open(socket, Arc::clone(&stop))?;
        let (found_width, found_height) = display.capture.size();
        if (found_width, found_height) != (width, height) {
            return Err(ScreenError::Size { width, height, found_width, found_height });
        }
        Ok(Self {
            display,
            keyboard: Keyboard::default(),
            mouse: Mouse::default(),
            encoded: None,
            gap: Gap::None,
            stop,
        })
    }

    /// What ends this screen from another thread.
    pub(super) fn ender(&self) -> Result<Ender, ScreenError> {
        let socket = self.display.link.socket().map_err(|source| ScreenError::Memory { source })?;
        Ok(Ender { socket, stop: Arc::clone(&self.stop) })
    }

    /// From now on the screen counts as at rest only when `works` says that nothing behind
    /// it works ([`RestRule::working`]).
    pub fn watch_work(&mut self, works: Works) {
        self.display.watch_work(works);
    }

    /// Captures the screen, with the pointer. A frame that is the same as the one before
    /// is known by its pixels and not encoded again.
    ///
    /// # Errors
    ///
    /// The display was lost or did not answer, or the frame could not be encoded.
    pub fn capture(&mut self) -> Result<Frame, ScreenError> {
        self.display.drop_events()?;
        let capture = &mut self.display.capture;
        capture.refresh(&self.display.link.client)?;
        let generation = capture.generation();
        let (width, height) = capture.size();
        let pointer = self.display.pointer()?;
        if let Some(encoded) = &self.encoded
            && encoded.generation == generation
            && encoded.pointer == pointer
        {
            return Ok(Frame { unchanged: true, ..encoded.frame.clone() });
        }
        let png = pixels::encode(self.display.capture.pixels(), width, height, pointer.as_ref())
            .map_err(|source| ScreenError::Encode { source })?;
        let screenshot = Screenshot { png: Digest::of(&png), width, height };
        let frame = Frame { screenshot, png: png.into(), unchanged: false };
        self.encoded = Some(Encoded { generation, pointer, frame: frame.clone() });
        Ok(frame)
    }

    /// Waits until the screen has come to rest by `rule`, or its limit is over.
    ///
    /// # Errors
    ///
    /// The display was lost or did not answer.
    pub fn rest(&mut self, rule: RestRule) -> Result<Rest, ScreenError> {
        self.gap = Gap::None;
        self.display.rest(rule)
    }

    /// Carries out a step's actions, each as far as it can be: an action that is refused
    /// does not stop the next one.
    ///
    /// # Errors
    ///
    /// The display was lost or did not answer.
    pub fn perform(&mut self, actions: &[Value]) -> Result<Performed, ScreenError> {
        let start = Instant::now();
        let mut injected = false;
        let mut outcomes = Vec::with_capacity(actions.len());
        for action in actions {
            outcomes.push(match action::parse(action) {
                Err(error) => ActionOutcome::Error(error.to_string()),
                Ok(inputs) => {
                    injected |= inputs.iter().any(|input| !matches!(input, Input::Wait(_) | Input::Screenshot));
                    match self.act(&inputs) {
                        Ok(()) => ActionOutcome::Done,
                        Err(InputError::Refused(reason)) => ActionOutcome::Error(reason),
                        Err(InputError::Screen(error)) => return Err(error),
                    }
                }
            });
        }
        Ok(Performed { outcomes, injected, took: start.elapsed() })
    }

    /// Carries out the inputs of one action, up to the first that is refused. After the
    /// input before it, the screen is first given time to rest, unless
    /// [`rest`](Self::rest) was called since: a click must have had its effect before the
    /// text for it is typed.
    ///
    /// # Errors
    ///
    /// An input is refused, or the display was lost or did not answer.
    pub fn act(&mut self, inputs: &[Input]) -> Result<(), InputError> {
        for input in inputs {
            match input {
                Input::Screenshot => continue,
                Input::Wait(millis) => {
                    self.display.pause(Duration::from_millis(*millis))?;
                    self.gap = Gap::None;
                    continue;
                }
                _ => {}
            }
            match std::mem::replace(&mut self.gap, Gap::None) {
                Gap::Seen => {}
                Gap::None => self.display.forget_changes()?,
                Gap::Short => self.display.pause(SHORT_GAP)?,
                Gap::Rest => drop(self.display.rest(RestRule::BETWEEN)?),
            }
            self.input(input)?;
            self.gap = match input {
                Input::Move(_) | Input::ButtonDown(_) | Input::ButtonUp(_) | Input::KeysDown(_) | Input::KeysUp(_) => {
                    Gap::Short
                }
                _ => Gap::Rest,
            };
        }
        Ok(())
    }

    /// Carries out actions, waits for rest by `rule` and captures.
    ///
    /// # Errors
    ///
    /// The display was lost or did not answer, or the frame could not be encoded.
    pub fn step(&mut self, actions: &[Value], rule: RestRule) -> Result<Stepped, ScreenError> {
        let mut stirred = Vec::new();
        if !actions.is_empty() {
            stirred = self.display.stirred()?;
            self.gap = Gap::Seen;
        }
        let performed = self.perform(actions)?;
        // Without input there is no first reaction to wait for.
        let first_change = if performed.injected { rule.first_change } else { rule.quiet };
        let rest = self.rest(RestRule { first_change, ..rule })?;
        let start = Instant::now();
        let frame = self.capture()?;
        Ok(Stepped { performed, rest, frame, capture: start.elapsed(), stirred })
    }

    /// Releases all keys and buttons that are held.
    ///
    /// # Errors
    ///
    /// The display was lost or did not answer.
    pub fn release_all(&mut self) -> Result<(), ScreenError> {
        self.mouse.release_all(&self.display)?;
        self.keyboard.release_all(&self.display)
    }

    fn input(&mut self, input: &Input) -> Result<(), InputError> {
        let display = &mut self.display;
        match input {
            Input::Move(to) => self.mouse.go(display, *to),
            Input::Click { button, at, count } => self.mouse.click(display, *button, *at, *count),
            Input::Drag { button, from, to } => self.mouse.drag(display, *button, *from, *to),
            Input::ButtonDown(button) => self.mouse.hold(display, *button),
            Input::ButtonUp(button) => self.mouse.release(display, *button),
            Input::Scroll { vertical, horizontal } => Mouse::scroll(display, *vertical, *horizontal),
            Input::Text(text) => self.keyboard.text(display, text),
            Input::Chord(names) => self.keyboard.chord(display, names),
            Input::KeysDown(names) => self.keyboard.hold(display, names),
            Input::KeysUp(names) => self.keyboard.release(display, names),
            Input::Wait(_) | Input::Screenshot => Ok(()),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // The server may be gone, and then there is nothing to tidy up.
        if self.release_all().is_ok() {
            drop(self.keyboard.give_back(&self.display));
        }
    }
}
