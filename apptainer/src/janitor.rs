//! Clearing away what a killed worker left on a node: its sandboxes' processes and
//! folders, and nobody else's.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;

use crate::program::Apptainer;
use crate::sandbox::{end_marked, signal_tree};
use crate::scratch::{BASE_PREFIX, Found, PREFIX, Record, Scratch, ScratchError};

/// What was cleared away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleared {
    /// Folders that were removed.
    pub removed: Vec<PathBuf>,
    /// Folders whose sandbox is held by a living worker.
    pub held: Vec<PathBuf>,
    /// Folders that are called like ours, and are not.
    pub foreign: Vec<PathBuf>,
    /// Folders that could not be removed, and why.
    pub failed: Vec<(PathBuf, String)>,
}

/// Looks through a scratch root. A folder whose lock is held belongs to a living worker
/// and is left alone; of any other, the recorded processes are ended, if they are still
/// the same ones, with all of their sessions and those that carry the sandbox's mark, and the
/// folder is removed. Where there is no image, files of a sandbox's other accounts stay.
///
/// # Errors
///
/// The scratch root cannot be read.
pub async fn clean(apptainer: &Apptainer, image: Option<&Path>, scratch_root: &Path) -> Result<Cleared, ScratchError> {
    let fail = |source| ScratchError::Io { path: scratch_root.to_owned(), source };
    let mut cleared = Cleared::default();
    let entries = match fs::read_dir(scratch_root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(cleared),
        Err(error) => return Err(fail(error)),
    };
    let mut folders = Vec::new();
    for entry in entries {
        let entry = entry.map_err(fail)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        // The log of a build that failed is kept beside its folder, for people.
        if [PREFIX, BASE_PREFIX].iter().any(|prefix| name.starts_with(prefix)) && !name.ends_with(".log") {
            folders.push(entry.path());
        }
    }
    folders.sort();
    for folder in folders {
        match Scratch::take_over(scratch_root, &folder) {
            Ok(Found::Held) => cleared.held.push(folder),
            Ok(Found::Foreign) => cleared.foreign.push(folder),
            Ok(Found::Empty) => cleared.removed.push(folder),
            Ok(Found::Orphan(orphan)) => match clear(apptainer, image, orphan).await {
                Ok(()) => cleared.removed.push(folder),
                Err(message) => cleared.failed.push((folder, message)),
            },
            Err(error) => cleared.failed.push((folder, error.to_string())),
        }
    }
    Ok(cleared)
}

/// Clears one folder away.
async fn clear(apptainer: &Apptainer, image: Option<&Path>, orphan: Scratch) -> Result<(), String> {
    end_processes(orphan.record()).await?;
    orphan.remove(apptainer, image).await.map_err(|error| error.to_string())
}

async fn end_processes(record: &Record) -> Result<(), String> {
    // Written in another boot or another pid namespace: there is nothing to be seen here.
    if !record.owner.is_visible().map_err(|error| error.to_string())? {
        return Ok(());
    }
    let leaders = record.leaders();
    for leader in &leaders {
        signal_tree(leader, Signal::SIGKILL);
    }
    match end_marked(&record.mark, &leaders).await.as_slice() {
        [] => Ok(()),
        left => Err(format!("processes could not be ended: {left:?}")),
    }
}
