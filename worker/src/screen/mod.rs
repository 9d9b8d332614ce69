//! The screen of a sandbox: seen and used through the X protocol, from outside.
//!
//! * [`Screen`] is one blocking connection; [`ScreenHandle`] runs it on a thread of its own
//!   and bounds every call. A failure of the display is a [`ScreenError`]; what an agent
//!   asks for wrongly is an outcome of its action.
//! * Captures show the pointer, as the benchmark's own runner does. The rest rule does not
//!   see it.
//! * A point beyond the screen, an unknown key, a control character in a text, and more
//!   than the stated number of wheel clicks or characters are refused: nothing of that
//!   input is injected, and no later input of the same action.
//! * Keys and buttons that an agent holds stay held from step to step, until it releases
//!   them, [`Screen::release_all`] is called, or the screen is closed.
//! * Clicks of two actions are never joined to a double click; `double_click` asks for one.

mod capture;
mod client;
mod display;
mod error;
mod handle;
mod keyboard;
mod keymap;
mod keysym;
mod link;
mod mouse;
mod names;
mod pixels;
mod rest;
mod watch;

pub use client::{Frame, Performed, Screen, Stepped};
pub use display::Works;
pub use error::{InputError, ScreenError};
pub use handle::ScreenHandle;
pub(crate) use pixels::write_png;
pub use rest::{Rest, RestRule};
