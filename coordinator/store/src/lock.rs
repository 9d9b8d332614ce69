//! The exclusive lock of a store: one process writes to it.
//!
//! RocksDB has a lock of its own, which says no more than that it is taken. Ours is a
//! file beside it that says by whom: its content is read by whoever finds it locked.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use crate::error::OpenError;

/// The name of the lock file in a store's folder.
const LOCK_FILE: &str = "lock";

/// Content longer than this was not written by us.
const MAX_CONTENT: u64 = 4096;

/// Who holds a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Its process id, on its host.
    pub pid: u32,
    /// Its host.
    pub host: String,
}

impl Holder {
    /// This process.
    #[must_use]
    pub fn this_process() -> Self {
        let host = nix::unistd::gethostname()
            .map_or_else(|_| "a host without a name".to_owned(), |name| name.to_string_lossy().into_owned());
        Self { pid: std::process::id(), host }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The host comes from a file that others may have written.
        write!(f, "process {} on {}", self.pid, self.host.escape_debug())
    }
}

/// The lock; it is given back when this is dropped or the process ends, however it ends.
#[derive(Debug)]
pub(crate) struct StoreLock {
    _file: Flock<File>,
}

impl StoreLock {
    /// Takes the lock of the store in `folder`, and writes down who has it.
    pub(crate) fn take(folder: &Path) -> Result<Self, OpenError> {
        let path = folder.join(LOCK_FILE);
        let failed = |action| {
            let path = path.clone();
            move |source| OpenError::File { action, path, source }
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed("open"))?;
        let mut file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => file,
            Err((file, Errno::EWOULDBLOCK)) => {
                return Err(OpenError::Locked { path: folder.to_owned(), holder: read_holder(&file) });
            }
            Err((_, errno)) => return Err(failed("lock")(errno.into())),
        };
        let content = serde_json::to_vec(&Holder::this_process()).map_err(|error| failed("write")(error.into()))?;
        file.set_len(0).map_err(failed("write"))?;
        file.rewind().map_err(failed("write"))?;
        file.write_all(&content).map_err(failed("write"))?;
        Ok(Self { _file: file })
    }
}

/// Keeps writers away while a store is read as a whole; nothing is written for it.
#[derive(Debug)]
pub(crate) struct SharedLock {
    // A copy that was never opened has no lock file, and no writer.
    _file: Option<Flock<File>>,
}

impl SharedLock {
    /// Takes it, if no process has the store in `folder` open for writing.
    pub(crate) fn take(folder: &Path) -> Result<Self, OpenError> {
        let path = folder.join(LOCK_FILE);
        let failed = |action| {
            let path = path.clone();
            move |source| OpenError::File { action, path, source }
        };
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self { _file: None }),
            Err(error) => return Err(failed("open")(error)),
        };
        match Flock::lock(file, FlockArg::LockSharedNonblock) {
            Ok(file) => Ok(Self { _file: Some(file) }),
            Err((file, Errno::EWOULDBLOCK)) => {
                Err(OpenError::Locked { path: folder.to_owned(), holder: read_holder(&file) })
            }
            Err((_, errno)) => Err(failed("lock")(errno.into())),
        }
    }
}

fn read_holder(file: &File) -> Option<Holder> {
    let mut content = Vec::new();
    file.take(MAX_CONTENT).read_to_end(&mut content).ok()?;
    serde_json::from_slice(&content).ok()
}
