//! What needs the operating system directly: dropping privileges between fork and exec,
//! file descriptors that come over a socket, and the two standard streams.

#![expect(unsafe_code, reason = "code between fork and exec, and adopting received descriptors")]

use std::io::Write;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, sigprocmask};
use nix::unistd::{Gid, Uid, setgid, setgroups, setsid, setuid};

/// Who a child becomes, and whether it starts a session of its own.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    pub(crate) own_session: bool,
}

/// Signals that a parent may have ignored or blocked and that a child must not inherit so.
const RESET: [Signal; 6] =
    [Signal::SIGPIPE, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGCHLD, Signal::SIGQUIT];

/// Makes the child of `command` take on `identity` before it runs its program.
pub(crate) fn become_identity(command: &mut Command, identity: Identity) {
    let Identity { uid, gid, groups, own_session } = identity;
    let groups: Vec<Gid> = groups.into_iter().map(Gid::from_raw).collect();
    let prepare = move || {
        for signal in RESET {
            // SAFETY: installs the default action, which runs no code of ours.
            let _ = unsafe { nix::sys::signal::signal(signal, SigHandler::SigDfl) };
        }
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
        if own_session {
            setsid()?;
        }
        setgroups(&groups)?;
        setgid(Gid::from_raw(gid))?;
        setuid(Uid::from_raw(uid))?;
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe system calls are made, on data
    // that was allocated before; nothing is allocated, locked or freed.
    unsafe { command.pre_exec(prepare) };
}

/// Takes ownership of descriptors that a socket's message brought.
pub(crate) fn adopt(descriptors: &[RawFd]) -> Vec<OwnedFd> {
    descriptors
        .iter()
        // SAFETY: the kernel installed each of them for this process when the message was
        // received, and nothing else knows of them.
        .map(|&fd| unsafe { OwnedFd::from_raw_fd(fd) })
        .collect()
}

/// Writes to standard output; a reader that went away is no error.
pub(crate) fn say(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Writes a line to standard error; a reader that went away is no error.
pub(crate) fn complain(text: &str) {
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}
