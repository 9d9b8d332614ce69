//! A worker's own folders on the node's disk, and what dead workers left there.
//!
//! Below the scratch folder: `cache` (shared by the node's workers) and `workers/ID`, which
//! is one worker's own and locked by it for as long as it lives. A folder whose lock can be
//! taken is a dead worker's: its undelivered spool is adopted, however old it is, the rest is
//! removed. A folder that was just made has no lock yet: it is made and locked, and others are asked
//! for theirs, in turn.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use longhaul_core::ids::WorkerId;

use crate::error::WorkerError;
use crate::sandbox::Driver;

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
        let taken = {
            let _turn = turn(&workers)?;
            make(&root, 0o700)?;
            lock(&root)?
        };
        let lock = taken.ok_or_else(|| WorkerError::File {
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
            let taken = {
                let _turn = turn(workers)?;
                lock(&dead)
            };
            let _lock = match taken {
                Ok(Some(lock)) => lock,
                Ok(None) => continue,
                // Another worker has cleaned it up since it was listed.
                Err(_) if !dead.exists() => continue,
                Err(error) => return Err(error),
            };
            tracing::info!(folder = %dead.display(), "cleaning up after a dead worker");
            for spool in list(&dead.join("spool"))? {
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

/// The folders of dead workers, held, so that no worker adopts them meanwhile.
#[derive(Debug, Default)]
pub struct DeadHomes {
    removable: Vec<PathBuf>,
    undelivered: Vec<PathBuf>,
    locks: Vec<File>,
}

impl DeadHomes {
    /// Looks for them below a scratch folder; `all` is what was recorded and not delivered, too.
    ///
    /// # Errors
    ///
    /// A folder cannot be read or locked.
    pub fn look(scratch: &Path, all: bool) -> Result<Self, WorkerError> {
        let workers = scratch.join("workers");
        let mut found = Self::default();
        let mut folders = list(&workers)?;
        folders.sort();
        for dead in folders {
            if !dead.is_dir() {
                continue;
            }
            let taken = {
                let _turn = turn(&workers)?;
                lock(&dead)
            };
            let lock = match taken {
                Ok(Some(lock)) => lock,
                Ok(None) => continue,
                // A worker has cleaned it up since it was listed.
                Err(_) if !dead.exists() => continue,
                Err(error) => return Err(error),
            };
            let spools = list(&dead.join("spool"))?;
            if all || spools.is_empty() {
                found.removable.push(dead);
            } else {
                let parts = ["attempts", "staging"].map(|part| dead.join(part));
                found.removable.extend(parts.into_iter().filter(|part| part.exists()));
                found.undelivered.extend(spools);
            }
            found.locks.push(lock);
        }
        Ok(found)
    }

    /// What nobody needs any more.
    pub fn removable(&self) -> impl Iterator<Item = &Path> {
        self.removable.iter().map(PathBuf::as_path)
    }

    /// What was recorded and not delivered, which the next worker adopts.
    pub fn undelivered(&self) -> impl Iterator<Item = &Path> {
        self.undelivered.iter().map(PathBuf::as_path)
    }
}

fn make(folder: &Path, mode: u32) -> Result<(), WorkerError> {
    fs::DirBuilder::new().recursive(true).mode(mode).create(folder).map_err(WorkerError::file("create", folder))
}

/// The turn to make a worker's folder or to take another's lock, waited for: it is held for a
/// moment only.
fn turn(workers: &Path) -> Result<File, WorkerError> {
    // The folder itself: a file for it would be something that is left.
    let folder = File::open(workers).map_err(WorkerError::file("open", workers))?;
    folder.lock().map_err(WorkerError::file("lock", workers))?;
    Ok(folder)
}

fn open_lock(path: &Path) -> Result<File, WorkerError> {
    let opened = OpenOptions::new().create(true).truncate(false).write(true).open(path);
    opened.map_err(WorkerError::file("open", path))
}

/// The lock of a worker's folder, if no live worker holds it.
fn lock(root: &Path) -> Result<Option<File>, WorkerError> {
    let path = root.join("lock");
    let file = open_lock(&path)?;
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use longhaul_core::time::Timestamp;

    use super::*;
    use crate::testing::sandbox::{FolderDriver, World};

    /// Workers that start on a node at one time: none takes the folder of another one for that of a
    /// dead worker, between its being made and its being locked.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn workers_that_start_together_leave_each_other_alone() {
        let folder = tempfile::tempdir().unwrap();
        for round in 0..20 {
            let scratch = folder.path().join(round.to_string());
            let start = |number: u32| {
                let scratch = scratch.clone();
                tokio::spawn(async move {
                    let driver = FolderDriver(Arc::new(World::default()));
                    Home::open(&scratch, WorkerId::new(Timestamp(1), number), &driver).await.unwrap()
                })
            };
            let mut homes = Vec::new();
            for started in (0..6).map(start).collect::<Vec<_>>() {
                homes.push(started.await.unwrap());
            }
            for home in homes {
                for folder in [&home.spool, &home.attempts, &home.staging] {
                    assert!(folder.is_dir(), "{} is gone", folder.display());
                }
            }
        }
    }

    #[tokio::test]
    async fn what_a_dead_worker_has_not_delivered_is_adopted_and_the_rest_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let driver = FolderDriver(Arc::new(World::default()));
        let dead = Home::open(folder.path(), WorkerId::new(Timestamp(1), 1), &driver).await.unwrap();
        fs::create_dir(dead.spool.join("some")).unwrap();
        let root = dead.root.clone();
        let first = Home::open(folder.path(), WorkerId::new(Timestamp(1), 2), &driver).await.unwrap();
        assert!(root.is_dir() && first.left_spools().unwrap().is_empty(), "it lives");
        drop(dead);
        let second = Home::open(folder.path(), WorkerId::new(Timestamp(1), 3), &driver).await.unwrap();
        assert_eq!(second.left_spools().unwrap(), [second.spool.join("some")]);
        assert!(!root.exists() && first.spool.is_dir());
    }

    #[tokio::test]
    async fn cleaning_up_keeps_what_was_not_delivered_unless_that_is_to_go_and_leaves_the_living_alone() {
        let folder = tempfile::tempdir().unwrap();
        let driver = FolderDriver(Arc::new(World::default()));
        let open =
            async |number| Home::open(folder.path(), WorkerId::new(Timestamp(1), number), &driver).await.unwrap();
        let (owes, owes_nothing, lives) = (open(1).await, open(2).await, open(3).await);
        fs::create_dir(owes.spool.join("some")).unwrap();
        fs::create_dir(owes.attempts.join("one")).unwrap();
        let (owing, cleared) = (owes.root.clone(), owes_nothing.root.clone());
        drop((owes, owes_nothing));
        let found = DeadHomes::look(folder.path(), false).unwrap();
        let removable: Vec<_> = found.removable().map(Path::to_owned).collect();
        assert_eq!(removable, [owing.join("attempts"), owing.join("staging"), cleared.clone()]);
        assert_eq!(found.undelivered().collect::<Vec<_>>(), [owing.join("spool/some")]);
        assert!(lock(&owing).unwrap().is_none(), "no worker adopts it meanwhile");
        drop(found);
        let all = DeadHomes::look(folder.path(), true).unwrap();
        assert_eq!(all.removable().collect::<Vec<_>>(), [owing, cleared]);
        assert!(lives.root.is_dir());
    }
}
