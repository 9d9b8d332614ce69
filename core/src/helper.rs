//! The protocol between the worker and the helper inside a sandbox.
//!
//! Over a unix socket; one connection carries one request at a time, and several
//! connections may be open. A frame is a 4-byte big-endian length, one kind byte
//! (`J` JSON, `D` data), and that many bytes. A request is one `J` frame; what
//! follows it is said at each request. The length is at most [`MAX_FRAME`]. A stream of
//! data that breaks off inside the sandbox ends with a `J` frame (`Failed`) in place of
//! the empty data frame.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The version of this protocol; helper and worker are of one build and check it.
pub const HELPER_PROTOCOL: u32 = 1;

/// The largest frame, in bytes.
pub const MAX_FRAME: usize = 4 * 1024 * 1024;

/// The kind byte of a JSON frame.
pub const FRAME_JSON: u8 = b'J';

/// The kind byte of a data frame; an empty one ends a stream of data.
pub const FRAME_DATA: u8 = b'D';

/// Where the helper's files are bound inside a sandbox.
pub const HELPER_DIR: &str = "/opt/longhaul";

/// The helper's program inside a sandbox.
pub const HELPER_PROGRAM: &str = "/opt/longhaul/bin/helper";

/// The folder that is shared with the worker: sockets only.
pub const HELPER_SOCKETS: &str = "/opt/longhaul/run";

/// The socket's name in [`HELPER_SOCKETS`] on which the worker speaks to the helper.
/// The sandbox's own accounts cannot open it.
pub const CONTROL_SOCKET: &str = "control.sock";

/// The bytes before a frame's content: its length and kind.
pub const FRAME_HEADER: usize = 5;

/// A frame's header, or nothing if `length` is over [`MAX_FRAME`].
#[must_use]
pub fn frame_header(kind: u8, length: usize) -> Option<[u8; FRAME_HEADER]> {
    let length = u32::try_from(length).ok().filter(|_| length <= MAX_FRAME)?;
    let [a, b, c, d] = length.to_be_bytes();
    Some([a, b, c, d, kind])
}

/// Kind and length of the frame behind `header`, or nothing if it is too long or of no
/// known kind.
#[must_use]
pub fn parse_frame_header(header: [u8; FRAME_HEADER]) -> Option<(u8, usize)> {
    let [a, b, c, d, kind] = header;
    let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).ok()?;
    (length <= MAX_FRAME && matches!(kind, FRAME_JSON | FRAME_DATA)).then_some((kind, length))
}

/// A process as the helper sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// Its id inside the sandbox.
    pub pid: i32,
    /// Its user inside the sandbox.
    pub uid: u32,
    /// Its arguments, or its name in brackets.
    pub command: String,
    /// The unit of the `systemctl` stand-in that it belongs to, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
}

/// A command to run inside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandSpec {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The account it runs as: `root`, `ga`, ...
    pub user: String,
    /// Variables beside the account's own.
    pub env: BTreeMap<String, String>,
    /// Its folder; the account's home if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// A file inside that gets stdout and stderr; else they are sent back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_file: Option<String>,
    /// After this long its process group gets TERM, and KILL two seconds later; 0 is no
    /// limit. A caller that hangs up ends it likewise.
    pub limit_millis: u64,
    /// At most this much output is sent back (the end of it), in bytes.
    pub output_limit: usize,
}

/// What the worker asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "op")]
pub enum HelperRequest {
    /// Are you there? Answer: `Ready`.
    Hello,
    /// Start the display and the window manager. Answer: `Done` when a client can connect.
    StartDisplay {
        /// Pixels across.
        width: u16,
        /// Pixels down.
        height: u16,
    },
    /// How is the display? Answer: `Display`.
    Display,
    /// Run a command to its end (its background children may live on). Answer: `Exited`.
    Run(CommandSpec),
    /// Read a file. Answer: `File`, then data frames, the last one empty.
    ReadFile {
        /// The absolute path inside.
        path: String,
        /// No more than so many bytes of its end; all of it if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        end: Option<u64>,
    },
    /// Write a file, as root, mode 0644, parents made. Data frames follow, the last one
    /// empty. Answer: `Done`.
    WriteFile {
        /// The absolute path inside.
        path: String,
    },
    /// Pack a file or folder as a tar stream, its entries below the path's last part.
    /// Answer: `File` (size 0), then data frames.
    ReadTree {
        /// The absolute path inside.
        path: String,
    },
    /// What runs inside, the helper and its display aside. Answer: `Processes`.
    Processes,
    /// The units that the `systemctl` stand-in started, in order. Answer: `Units`.
    Units,
    /// Start these units, in order, as a boot would. Answer: `Done`.
    StartUnits {
        /// Their names.
        units: Vec<String>,
    },
    /// End everything but the helper itself: TERM, `grace_millis`, KILL. Answer: `Done`.
    KillAll {
        /// How long TERM is given.
        grace_millis: u64,
    },
    /// End everything and the helper, which ends the sandbox. Answer: `Done`.
    Shutdown,
}

/// What the helper answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "answer")]
pub enum HelperAnswer {
    /// It is there.
    Ready {
        /// [`HELPER_PROTOCOL`] of its build.
        protocol: u32,
    },
    /// It was done.
    Done,
    /// The command ended.
    Exited {
        /// Its exit code, or 128 and the signal's number.
        code: i32,
        /// Whether the time limit ended it.
        timed_out: bool,
        /// The end of what it wrote, unless it went to a file; may hold any bytes, made
        /// into text with replacement characters.
        output: String,
        /// Whether some of the output was cut off.
        truncated: bool,
    },
    /// The data follows.
    File {
        /// Its size in bytes.
        size: u64,
    },
    /// The display's state.
    Display(DisplayState),
    /// Processes.
    Processes {
        /// In the order of their ids.
        processes: Vec<ProcessInfo>,
    },
    /// Units.
    Units {
        /// Their names, in the order in which they were started.
        units: Vec<String>,
    },
    /// It could not be done.
    Failed {
        /// Which kind of failure, for the caller to decide by.
        kind: HelperFailure,
        /// What happened, with the path.
        message: String,
    },
}

/// How the display is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum DisplayState {
    /// It was not asked for.
    Off,
    /// It runs.
    Up,
    /// It ended by itself.
    Died {
        /// The end of its log; hostile until escaped.
        log: String,
    },
}

/// The kinds of failure that callers tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HelperFailure {
    /// The path is not there.
    NotFound,
    /// The account is not there.
    NoSuchUser,
    /// The display did not come up.
    Display,
    /// The request could not be understood.
    BadRequest,
    /// Anything else.
    Other,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_bounded_and_of_a_known_kind() {
        let header = frame_header(FRAME_DATA, 70_000).expect("fits");
        assert_eq!(parse_frame_header(header), Some((FRAME_DATA, 70_000)));
        assert_eq!(frame_header(FRAME_JSON, MAX_FRAME + 1), None);
        assert_eq!(parse_frame_header([0xff, 0, 0, 0, FRAME_DATA]), None);
        assert_eq!(parse_frame_header([0, 0, 0, 1, b'X']), None);
    }
}
