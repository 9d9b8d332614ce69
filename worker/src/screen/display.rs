//! One display as the other parts of the screen use it: a connection, the frame, and the
//! means to press, to move, to pause and to wait for rest.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use longhaul_core::screen::Area;
use x11rb::connection::Connection;
use x11rb::protocol::xfixes::{self, ConnectionExt as _};
use x11rb::protocol::xkb::{self, ConnectionExt as _};
use x11rb::protocol::xproto;
use x11rb::protocol::xtest::{self, ConnectionExt as _};

use super::capture::Capture;
use super::error::{ScreenError, during, reply};
use super::keymap::Keycode;
use super::link::Link;
use super::pixels::Pointer;
use super::rest::{Rest, RestRule};
use super::watch::Watch;

const INJECTING: &str = "injecting input";
const OPENING: &str = "opening the display";
const POINTING: &str = "asking for the pointer's picture";

/// Ends every pause of a screen from another thread.
#[derive(Debug, Default)]
pub(super) struct Stop {
    stopped: Mutex<bool>,
    bell: Condvar,
}

impl Stop {
    /// Ends the pauses, now and from now on.
    pub(super) fn ring(&self) {
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.bell.notify_all();
    }

    fn pause(&self, length: Duration) -> Result<(), ScreenError> {
        let stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        let (stopped, _) =
            self.bell.wait_timeout_while(stopped, length, |stopped| !*stopped).unwrap_or_else(PoisonError::into_inner);
        if *stopped { Err(ScreenError::Closed) } else { Ok(()) }
    }
}

/// Whether something is pressed or released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Motion {
    /// It goes down.
    Press,
    /// It comes up.
    Release,
}

/// Says whether something behind the display works just now: runs, waits for a processor
/// or for a disk.
pub type Works = Box<dyn Fn() -> bool + Send>;

/// The display.
pub(super) struct Display {
    pub(super) link: Link,
    pub(super) capture: Capture,
    watch: Watch,
    root: xproto::Window,
    has_pointer: bool,
    stop: Arc<Stop>,
    works: Option<Works>,
}

impl fmt::Debug for Display {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Display").field("link", &self.link).finish_non_exhaustive()
    }
}

impl Display {
    /// Connects, and checks that the server can do what is needed.
    pub(super) fn open(socket: &Path, stop: Arc<Stop>) -> Result<Self, ScreenError> {
        let link = Link::connect(socket)?;
        let client = &link.client;
        if !link.has(xtest::X11_EXTENSION_NAME)? {
            return Err(ScreenError::Lacks { what: "XTEST" });
        }
        client.xtest_get_version(2, 2).map_err(during(OPENING))?.reply().map_err(reply(OPENING))?;
        let has_keyboard = link.has(xkb::X11_EXTENSION_NAME)?
            && client.xkb_use_extension(1, 0).map_err(during(OPENING))?.reply().map_err(reply(OPENING))?.supported;
        if !has_keyboard {
            return Err(ScreenError::Lacks { what: "XKB" });
        }
        let has_pointer = link.has(xfixes::X11_EXTENSION_NAME)?;
        if has_pointer {
            client.xfixes_query_version(5, 0).map_err(during(OPENING))?.reply().map_err(reply(OPENING))?;
        }
        let root = client.setup().roots.first().ok_or(ScreenError::Lacks { what: "a screen" })?.root;
        let watch = Watch::new(&link, root)?;
        let capture = Capture::new(&link)?;
        Ok(Self { link, capture, watch, root, has_pointer, stop, works: None })
    }

    /// From now on the screen is at rest only when `works` says no.
    pub(super) fn watch_work(&mut self, works: Works) {
        self.works = Some(works);
    }

    /// Does nothing for a while.
    pub(super) fn pause(&self, length: Duration) -> Result<(), ScreenError> {
        self.stop.pause(length)
    }

    /// Waits until the screen rests.
    pub(super) fn rest(&mut self, rule: RestRule) -> Result<Rest, ScreenError> {
        let works = || self.works.as_ref().is_some_and(|works| works());
        self.watch.rest(&self.link, &mut self.capture, rule, works)
    }

    /// Where the screen changed since it was looked at last.
    pub(super) fn stirred(&mut self) -> Result<Vec<Area>, ScreenError> {
        self.capture.gather();
        let looked = self.watch.forget(&self.link, &mut self.capture);
        let areas = self.capture.gathered();
        looked.map(|()| areas)
    }

    /// What was drawn up to now is no effect of what is injected next.
    pub(super) fn forget_changes(&mut self) -> Result<(), ScreenError> {
        self.watch.forget(&self.link, &mut self.capture)
    }

    /// Presses or releases a key.
    pub(super) fn key(&self, code: Keycode, motion: Motion) -> Result<(), ScreenError> {
        let kind = match motion {
            Motion::Press => xproto::KEY_PRESS_EVENT,
            Motion::Release => xproto::KEY_RELEASE_EVENT,
        };
        self.fake(kind, code, 0, 0)
    }

    /// Presses or releases a button of the pointer, by its number in the protocol.
    pub(super) fn button(&self, number: u8, motion: Motion) -> Result<(), ScreenError> {
        let kind = match motion {
            Motion::Press => xproto::BUTTON_PRESS_EVENT,
            Motion::Release => xproto::BUTTON_RELEASE_EVENT,
        };
        self.fake(kind, number, 0, 0)
    }

    /// Moves the pointer.
    pub(super) fn motion(&self, x: i16, y: i16) -> Result<(), ScreenError> {
        // Zero: the coordinates are of the screen, not of where the pointer is.
        self.fake(xproto::MOTION_NOTIFY_EVENT, 0, x, y)
    }

    fn fake(&self, kind: u8, detail: u8, x: i16, y: i16) -> Result<(), ScreenError> {
        let client = &self.link.client;
        client.xtest_fake_input(kind, detail, x11rb::CURRENT_TIME, self.root, x, y, 0).map_err(during(INJECTING))?;
        client.flush().map_err(during(INJECTING))
    }

    /// Waits until the server has handled all that was injected.
    pub(super) fn sync(&self) -> Result<(), ScreenError> {
        self.link.sync(INJECTING)
    }

    /// The pointer's picture and its place; `None` where the server does not tell.
    pub(super) fn pointer(&self) -> Result<Option<Pointer>, ScreenError> {
        if !self.has_pointer {
            return Ok(None);
        }
        let image =
            self.link.client.xfixes_get_cursor_image().map_err(during(POINTING))?.reply().map_err(reply(POINTING))?;
        Ok(Some(Pointer {
            left: i32::from(image.x) - i32::from(image.xhot),
            top: i32::from(image.y) - i32::from(image.yhot),
            width: image.width,
            height: image.height,
            argb: image.cursor_image,
        }))
    }

    /// Reads and drops what the server has told meanwhile, so that it does not pile up.
    pub(super) fn drop_events(&self) -> Result<(), ScreenError> {
        let now = Instant::now();
        while self.link.event_before(now, OPENING)?.is_some() {}
        Ok(())
    }
}
