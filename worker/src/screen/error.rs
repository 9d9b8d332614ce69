//! What can go wrong between us and a display.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use longhaul_core::outcome::{Fault, FaultClass};
use x11rb::errors::{ConnectError, ConnectionError, ReplyError, ReplyOrIdError};

use super::keymap::PlanError;

/// A failure of the display or of our connection to it. What an agent asks for wrongly
/// is not one of these: it is an [`ActionOutcome::Error`](longhaul_core::step::ActionOutcome).
#[derive(Debug, thiserror::Error)]
pub enum ScreenError {
    /// The socket could not be reached.
    #[error("cannot connect to the display at {}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Something answered, but not as an X server that lets us in.
    #[error("the display at {} refused the connection", path.display())]
    Refused {
        /// The socket.
        path: PathBuf,
        /// What the X client said.
        #[source]
        source: ConnectError,
    },
    /// The server cannot do what is needed.
    #[error("the display lacks {what}")]
    Lacks {
        /// The extension or pixel format.
        what: &'static str,
    },
    /// The screen has another size than the env asks for.
    #[error("the display is {found_width}x{found_height}, not {width}x{height}")]
    Size {
        /// Pixels across that the env asks for.
        width: u16,
        /// Pixels down that the env asks for.
        height: u16,
        /// Pixels across that were found.
        found_width: u16,
        /// Pixels down that were found.
        found_height: u16,
    },
    /// The connection broke: the server has ended.
    #[error("the display was lost while {during}")]
    Lost {
        /// What was going on.
        during: &'static str,
        /// How the connection broke.
        #[source]
        source: ConnectionError,
    },
    /// The server did not answer in time.
    #[error("the display did not answer within {} ms while {during}", limit.as_millis())]
    Silent {
        /// What was going on.
        during: &'static str,
        /// How long it was waited for.
        limit: Duration,
    },
    /// The server refused a request that it should not refuse.
    #[error("the display refused a request while {during}: {reason}")]
    Protocol {
        /// What was going on.
        during: &'static str,
        /// The X error.
        reason: String,
    },
    /// The shared memory or its copy failed.
    #[error("the shared frame could not be used")]
    Memory {
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The PNG could not be made.
    #[error("the frame could not be encoded")]
    Encode {
        /// What the encoder said.
        #[source]
        source: png::EncodingError,
    },
    /// The screen's thread could not be started.
    #[error("the screen's thread could not be started")]
    Thread {
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The screen was closed, by us or by an earlier error.
    #[error("the screen is closed")]
    Closed,
}

/// Why an input was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// It asks for what cannot be done; nothing of it was injected.
    #[error("{0}")]
    Refused(String),
    /// The display failed.
    #[error(transparent)]
    Screen(#[from] ScreenError),
}

impl From<PlanError> for InputError {
    fn from(error: PlanError) -> Self {
        Self::Refused(error.to_string())
    }
}

impl ScreenError {
    /// The fault that this is for an attempt: the class is always the display.
    #[must_use]
    pub fn to_fault(&self) -> Fault {
        Fault { class: FaultClass::Display, message: crate::chain(self), log_tail: None }
    }
}

/// Makes a converter of the X client's errors that names what was going on.
pub(super) fn during<E: Into<ReplyOrIdError>>(what: &'static str) -> impl Fn(E) -> ScreenError {
    move |error| match error.into() {
        ReplyOrIdError::ConnectionError(error) => connection(what, error),
        ReplyOrIdError::X11Error(error) => ScreenError::Protocol { during: what, reason: format!("{error:?}") },
        ReplyOrIdError::IdsExhausted => {
            ScreenError::Protocol { during: what, reason: "no resource ids are left".to_owned() }
        }
    }
}

/// As [`during`], for errors that only a reply can bring.
pub(super) fn reply(what: &'static str) -> impl Fn(ReplyError) -> ScreenError {
    move |error| match error {
        ReplyError::ConnectionError(error) => connection(what, error),
        ReplyError::X11Error(error) => ScreenError::Protocol { during: what, reason: format!("{error:?}") },
    }
}

fn connection(what: &'static str, error: ConnectionError) -> ScreenError {
    match error {
        ConnectionError::IoError(error) if error.kind() == io::ErrorKind::TimedOut => {
            ScreenError::Silent { during: what, limit: super::link::SILENCE_LIMIT }
        }
        source => ScreenError::Lost { during: what, source },
    }
}
