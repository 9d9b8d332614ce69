//! The screen against a real X server: Xvfb, with a window of our own and with xterm.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod failing;
mod pointing;
mod seeing;
mod server;
mod typing;
mod window;
