//! The duties of a first process: every child is reaped here and nowhere else, the
//! orphans that the kernel hands over as well as the children that someone waits for.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, Command};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{Pid, pipe2};

/// Reaps children; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reaper(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Children that someone waits for, and the pipe on which they learn of the end.
    watched: Mutex<HashMap<i32, File>>,
    /// Told when there is a new child.
    born: Condvar,
}

/// A child that was started through the [`Reaper`].
#[derive(Debug)]
pub(crate) struct Watched {
    pid: i32,
    exit: File,
    code: Option<i32>,
}

impl Reaper {
    /// Starts the thread that reaps.
    pub(crate) fn start() -> Self {
        let reaper = Self::default();
        let shared = Arc::clone(&reaper.0);
        thread::spawn(move || shared.reap_forever());
        reaper
    }

    /// Starts a child; what it was given of standard streams is in the [`Child`].
    pub(crate) fn spawn(&self, command: &mut Command) -> io::Result<(Watched, Child)> {
        let (exit, told) = pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
        // Held while forking, so that the child cannot be reaped before it is known.
        let mut watched = self.0.lock();
        let child = command.spawn()?;
        let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
        watched.insert(pid, File::from(told));
        drop(watched);
        self.0.born.notify_all();
        Ok((Watched { pid, exit: File::from(exit), code: None }, child))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<i32, File>> {
        // The map is whole after any panic: each change to it is one call.
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reap_forever(&self) {
        loop {
            // Only look at first: the child is reaped under the lock, because a failed
            // start is waited for by the standard library itself.
            match waitid(Id::All, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) {
                Ok(status) => {
                    if let Some(pid) = status.pid() {
                        self.reap(pid);
                    }
                }
                Err(Errno::ECHILD) => {
                    let guard = self.lock();
                    // One that was born since is looked at without waiting.
                    if guard.is_empty() {
                        drop(self.born.wait_timeout(guard, Duration::from_millis(500)));
                    }
                }
                Err(_) => thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    fn reap(&self, pid: Pid) {
        let mut watched = self.lock();
        let code = match waitpid(pid, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(_, code)) => code,
            Ok(WaitStatus::Signaled(_, signal, _)) => 128 + signal as i32,
            _ => return,
        };
        if let Some(mut told) = watched.remove(&pid.as_raw()) {
            let _ = told.write_all(&code.to_le_bytes());
        }
    }
}

impl Watched {
    /// The child's id.
    pub(crate) const fn pid(&self) -> i32 {
        self.pid
    }

    /// What becomes readable when the child has ended.
    pub(crate) fn exit_fd(&self) -> BorrowedFd<'_> {
        self.exit.as_fd()
    }

    /// Waits for the end: the exit code, or 128 and the signal's number.
    pub(crate) fn wait(&mut self) -> i32 {
        if let Some(code) = self.code {
            return code;
        }
        let mut bytes = [0; 4];
        // The reaper writes once and never fails; 255 only if it is gone, as we are then.
        let code = self.exit.read_exact(&mut bytes).map_or(255, |()| i32::from_le_bytes(bytes));
        self.code = Some(code);
        code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Reapers wait for every child of the process, so one test uses one: nextest runs
    // each test in a process of its own.
    #[test]
    fn ends_are_told_to_whom_they_concern() {
        let reaper = Reaper::start();
        let start = |script: &str| reaper.spawn(Command::new("/bin/sh").args(["-c", script])).expect("starts").0;
        let mut codes: Vec<_> = (0..20).map(|code| (code, start(&format!("exit {code}")))).collect();
        for (code, child) in &mut codes {
            assert_eq!(child.wait(), *code);
            assert_eq!(child.wait(), *code, "and again");
        }
        assert_eq!(start("kill -9 $$").wait(), 137);
        assert!(reaper.spawn(&mut Command::new("/does/not/exist")).is_err());
        assert_eq!(start("exit 3").wait(), 3, "still works after a failed start");
    }
}
