//! Programs that are known before they do anything.
//!
//! What is started outside of a sandbox, Apptainer above all, starts others in turn, and those empty
//! their environment, leave their process group, and outlive a parent that is killed. Two things
//! keep hold of them: each call is the leader of a session of its own, in which all that it starts
//! outside of the container stays; and it waits for a line on its standard input, which comes when
//! its identity was written down. A worker that is killed before that has started nothing.

#![expect(unsafe_code, reason = "a session begins between fork and exec")]

use std::io;
use std::path::Path;
use std::process::Stdio;

use nix::unistd::setsid;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin, Command};

use crate::identity::ProcessIdentity;

/// Waits for the line, then is the program. The shell reads no byte beyond it.
const GATE: &str = r#"read -r _ && exec "$@""#;

/// A call of `program`, to which arguments are added, that waits to be told to begin.
pub(crate) fn gated(program: &Path) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", GATE, "sh"]).arg(program).stdin(Stdio::piped());
    // SAFETY: `setsid` is async-signal-safe, and nothing is allocated, locked or freed.
    unsafe { command.pre_exec(|| setsid().map(drop).map_err(io::Error::from)) };
    command
}

/// Who a gated call is; nothing if it is gone already.
pub(crate) fn identity(child: &Child) -> io::Result<Option<ProcessIdentity>> {
    match child.id().and_then(|pid| i32::try_from(pid).ok()) {
        Some(pid) => ProcessIdentity::of(pid),
        None => Ok(None),
    }
}

/// Lets a gated call begin; what is left of its standard input is returned.
pub(crate) async fn begin(child: &mut Child) -> io::Result<ChildStdin> {
    let mut stdin = child.stdin.take().ok_or_else(|| io::Error::other("it has no standard input"))?;
    stdin.write_all(b"\n").await?;
    Ok(stdin)
}
