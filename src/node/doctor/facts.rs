//! What was seen of a machine.

use std::path::PathBuf;

use longhaul_apptainer::filesystem::FileSystem;
use longhaul_apptainer::{Gpus, Version};

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The account's name, or its number where it has none.
    pub name: String,
    /// Whether it is root.
    pub root: bool,
}

/// A line of /etc/subuid or /etc/subgid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first id.
    pub first: u64,
    /// How many there are.
    pub count: u64,
}

/// A folder that is going to be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// What for.
    pub what: &'static str,
    /// The folder, as it will be.
    pub path: PathBuf,
    /// The file system, or why it cannot be told.
    pub filesystem: Result<FileSystem, String>,
    /// How much is free for the caller, in bytes.
    pub free: u64,
    /// How many more files may be made; none where that has no bound.
    pub files: Option<u64>,
}

/// All that is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Who asks.
    pub user: User,
    /// Apptainer's path and version, or why it cannot be used.
    pub apptainer: Result<(PathBuf, Version), String>,
    /// Ranges of further user ids.
    pub subuids: Vec<Range>,
    /// Ranges of further group ids.
    pub subgids: Vec<Range>,
    /// Whether `newuidmap` and `newgidmap` are there.
    pub newidmap: bool,
    /// Why unprivileged user namespaces cannot be made, if a setting of the kernel says so.
    pub userns_refused: Option<String>,
    /// Why /dev/fuse cannot be opened.
    pub fuse: Result<(), String>,
    /// Why /dev/net/tun cannot be opened.
    pub tun: Result<(), String>,
    /// The graphics processors that there are for the caller, and what their driver says of itself, if it
    /// is loaded.
    pub gpus: Option<(Gpus, Option<String>)>,
    /// Programs that are not on the PATH, of those looked for.
    pub absent: Vec<&'static str>,
    /// The folders.
    pub disks: Vec<Disk>,
}

impl Facts {
    /// Whether a program was found.
    #[must_use]
    pub fn has(&self, program: &str) -> bool {
        !self.absent.contains(&program)
    }
}
