//! A worker's own folders on the node's disk, and what dead workers left there.
//!
//! Below the scratch folder: `cache` (shared by the node's workers) and `workers/ID`, which
//! is one worker's own and locked by it for as long as it lives. A folder whose lock can be
//! taken is a dead worker's: its undelivered spool is adopted, the rest is removed.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use longhaul_core::ids::WorkerId;

use crate::error::WorkerError;
use crate::sandbox::Driver;

/// A spool that nobody wanted for this long is removed.
const SPOOL_AGE: Duration = Duration::from_secs(7 * 24 * 3600);

/// The folders of a live worker.
#[derive(Debug)]
pub(crate) struct Home {
    root: PathBuf,
    /// Where spools are.
    pub(crate) spool: PathBuf,
    /// Where attempts have their scratch.
    pub(crate) attempts: PathBuf,
    /// Where files are made before they are renamed into the cache.
    pub(crate) staging: PathBuf,
    /// The node's cache.
    pub(crate) cache: PathBuf,
    // Held for as long as the worker lives.
    _lock: File,
}

impl Home {
    /// Makes the worker's folders, and adopts the spools of dead workers.
    pub(crate) async fn open(scratch: &Path, id: WorkerId, driver: &dyn Driver) -> Result<Self, WorkerError> {
        let workers = scratch.join("workers");
        let root = workers.join(id.to_string());
        let spool = root.join("spool");
        let attempts = root.join("attempts");
        let staging = root.join("staging");
        let cache = scratch.join("cache");
        make(scratch, 0o711)?;
        make(&workers, 0o700)?;
        make(&root, 0o700)?;
        let lock = lock(&root)?.ok_or_else(|| WorkerError::File {
            what: "lock",
            path: root.clone(),
            source: io::Error::new(io::ErrorKind::ResourceBusy, "another worker of this id is alive"),
        })?;
        for folder in [&spool, &attempts, &staging] {
            make(folder, 0o700)?;
        }
        make(&cache, 0o700)?;
        let home = Self { root, spool, attempts, staging, cache, _lock: lock };
        if let Err(error) = driver.clean().await {
            tracing::warn!(error = %crate::chain(&error), "what dead workers left is not all cleaned up");
        }
        home.adopt(&workers, driver).await?;
        Ok(home)
    }

    /// The spools that were adopted, or left by an earlier worker of this id.
    pub(crate) fn left_spools(&self) -> Result<Vec<PathBuf>, WorkerError> {
        list(&self.spool)
    }

    /// Takes over what dead workers left. One that cannot be cleaned is reported and left.
    async fn adopt(&self, workers: &Path, driver: &dyn Driver) -> Result<(), WorkerError> {
        for dead in list(workers)? {
            if dead == self.root || !dead.is_dir() {
                continue;
            }
            let Some(_lock) = lock(&dead)? else { continue };
            tracing::info!(folder = %dead.display(), "cleaning up after a dead worker");
            for spool in list(&dead.join("spool"))? {
                if is_old(&spool) {
                    tracing::warn!(folder = %spool.display(), "a spool that nobody asked for is removed");
                    continue;
                }
                let Some(name) = spool.file_name() else { continue };
                let target = self.spool.join(name);
                fs::rename(&spool, &target).map_err(WorkerError::file("adopt", &spool))?;
            }
            if let Err(error) = driver.remove(&dead).await {
                tracing::warn!(folder = %dead.display(), error = %crate::chain(&error), "a dead worker's folder stays");
            }
        }
        Ok(())
    }

    /// Removes the worker's folders, unless there is something to be delivered; what cannot be
    /// removed is left to the next worker.
    pub(crate) async fn close(self, driver: &dyn Driver) {
        if !matches!(list(&self.spool), Ok(spools) if spools.is_empty()) {
            return;
        }
        if let Err(error) = driver.remove(&self.root).await {
            tracing::warn!(folder = %self.root.display(), error = %crate::chain(&error), "the worker's folder stays");
        }
    }
}

fn make(folder: &Path, mode: u32) -> Result<(), WorkerError> {
    fs::DirBuilder::new().recursive(true).mode(mode).create(folder).map_err(WorkerError::file("create", folder))
}

/// The lock of a worker's folder, if no live worker holds it.
fn lock(root: &Path) -> Result<Option<File>, WorkerError> {
    let path = root.join("lock");
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(WorkerError::file("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(fs::TryLockError::WouldBlock) => Ok(None),
        Err(fs::TryLockError::Error(source)) => Err(WorkerError::File { what: "lock", path, source }),
    }
}

fn list(folder: &Path) -> Result<Vec<PathBuf>, WorkerError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(WorkerError::file("list", folder)(error)),
    };
    entries.map(|entry| entry.map(|entry| entry.path()).map_err(WorkerError::file("list", folder))).collect()
}

fn is_old(folder: &Path) -> bool {
    let modified = folder.metadata().and_then(|meta| meta.modified());
    modified.is_ok_and(|modified| SystemTime::now().duration_since(modified).is_ok_and(|age| age > SPOOL_AGE))
}
