//! Clearing away what a killed worker left on a node: its sandboxes' processes and
//! folders, and nobody else's.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;

use crate::program::Apptainer;
use crate::sandbox::{end_marked, signal_tree};
use crate::scratch::{self, PREFIX, Record, Scratch, ScratchError};

/// What was cleared away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cleared {
    /// Folders that were removed.
    pub removed: Vec<PathBuf>,
    /// Folders whose sandbox is held by a living worker.
    pub held: Vec<PathBuf>,
    /// Folders that could not be removed, and why.
    pub failed: Vec<(PathBuf, String)>,
}

/// Looks through a scratch root. A folder whose lock is held belongs to a living worker
/// and is left alone; of any other, the recorded processes are ended, if they are still
/// the same ones, with those that carry the sandbox's mark, and the folder is removed.
pub async fn clean(apptainer: &Apptainer, image: &Path, scratch_root: &Path) -> Result<Cleared, ScratchError> {
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
        if entry.file_name().to_string_lossy().starts_with(PREFIX) {
            folders.push(entry.path());
        }
    }
    folders.sort();
    for folder in folders {
        match clear(apptainer, image, &folder).await {
            Ok(true) => cleared.removed.push(folder),
            Ok(false) => cleared.held.push(folder),
            Err(message) => cleared.failed.push((folder, message)),
        }
    }
    Ok(cleared)
}

/// Clears one folder away; false if it is held.
async fn clear(apptainer: &Apptainer, image: &Path, folder: &Path) -> Result<bool, String> {
    let Some(orphan) = Scratch::take_over(folder).map_err(|error| error.to_string())? else {
        return Ok(false);
    };
    if let Some(record) = &orphan.record {
        end_processes(record).await?;
    }
    scratch::remove(apptainer, image, folder).await.map_err(|error| error.to_string())?;
    Ok(true)
}

async fn end_processes(record: &Record) -> Result<(), String> {
    // Written in another boot or another pid namespace: there is nothing to be seen here.
    if !record.owner.is_visible().map_err(|error| error.to_string())? {
        return Ok(());
    }
    if let Some(started) = &record.started {
        signal_tree(started, Signal::SIGKILL);
    }
    match end_marked(&record.mark).await.as_slice() {
        [] => Ok(()),
        left => Err(format!("processes could not be ended: {left:?}")),
    }
}
