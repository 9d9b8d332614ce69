//! Sockets below long folders: a socket's path holds 108 bytes, a batch system's scratch
//! folder may be longer, so the folder is opened and named by its descriptor.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// An open folder with a short name.
#[derive(Debug)]
pub(crate) struct ShortFolder(File);

impl ShortFolder {
    /// Opens a folder.
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        File::open(folder).map(Self)
    }

    /// A short path of a name in it, good for as long as this lives.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.0.as_raw_fd()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn a_socket_below_a_very_long_folder_can_be_used() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("x".repeat(120));
        std::fs::create_dir(&folder).unwrap();
        assert!(UnixListener::bind(folder.join("s")).is_err());
        let short = ShortFolder::open(&folder).unwrap();
        let _listener = UnixListener::bind(short.path("s")).unwrap();
        UnixStream::connect(short.path("s")).unwrap();
    }
}
