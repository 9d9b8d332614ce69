//! A sandbox's folder on node-local disk: its top, its sockets, its log, and a record of
//! who made it, written before anything is started.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use crate::command::{BindPlan, ExecPlan};
use crate::identity::ProcessIdentity;
use crate::program::{Apptainer, ToolError};

/// What sandboxes' folders are called in a scratch root; nothing else there is touched.
pub(crate) const PREFIX: &str = "sandbox-";

/// The variable that every process started for a sandbox carries, outside of it. Those that
/// Apptainer starts in turn carry it too or, if they empty their environment, have the
/// sandbox's top mounted, whose name ends with the same text.
pub(crate) const MARK: &str = "LONGHAUL_SANDBOX";

/// Where a scratch folder is seen inside a container that works on it.
pub(crate) const SEEN_AT: &str = "/mnt";

/// Removes all tops of the scratch folder that is seen there.
const EMPTY: &str = "rm -rf --one-file-system -- /mnt/top-*";

/// Why a scratch folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ScratchError {
    /// The file system refused.
    #[error("{path}")]
    Io {
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another sandbox holds it.
    #[error("{0} is in use by another sandbox")]
    InUse(PathBuf),
    /// It could not be removed.
    #[error("{path} could not be removed")]
    Remove {
        /// The path.
        path: PathBuf,
        /// Why.
        source: ToolError,
    },
}

/// Who made a scratch folder, for the janitor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// What [`MARK`] is for this sandbox: unique for ever.
    pub(crate) mark: String,
    /// The worker.
    pub(crate) owner: ProcessIdentity,
    /// The `apptainer` process, once it was started.
    pub(crate) started: Option<ProcessIdentity>,
}

/// A scratch folder that is held.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    record: Record,
    _lock: Flock<File>,
}

/// A scratch folder whose holder is gone, held while it is cleared away.
#[derive(Debug)]
pub(crate) struct Orphan {
    /// Who made it, if it came so far.
    pub(crate) record: Option<Record>,
    _lock: Flock<File>,
}

impl Scratch {
    /// Makes the folder of the sandbox `id` in `root`, and holds it.
    pub(crate) fn create(root: &Path, id: &str) -> Result<Self, ScratchError> {
        let path = root.join(format!("{PREFIX}{id}"));
        let fail = |source| ScratchError::Io { path: path.clone(), source };
        let mut folder = fs::DirBuilder::new();
        // Others on the node have no business with what an agent works on.
        folder.mode(0o700).recursive(true).create(&path).map_err(fail)?;
        let Some(lock) = lock(&path).map_err(fail)? else { return Err(ScratchError::InUse(path)) };
        let record =
            Record { mark: format!("{id}-{}", nonce()), owner: ProcessIdentity::own().map_err(fail)?, started: None };
        let scratch = Self { path: path.clone(), record, _lock: lock };
        scratch.write_record()?;
        let top = scratch.top();
        for part in [top.join("upper"), top.join("work"), scratch.sockets(), scratch.x_sockets()] {
            fs::DirBuilder::new().recursive(true).create(part).map_err(fail)?;
        }
        Ok(scratch)
    }

    /// Takes over the folder of a sandbox whose owner is gone; nothing while it is held.
    pub(crate) fn take_over(path: &Path) -> Result<Option<Orphan>, ScratchError> {
        let fail = |source| ScratchError::Io { path: path.to_owned(), source };
        let Some(lock) = lock(path).map_err(fail)? else { return Ok(None) };
        // A worker that was killed before it wrote the record had not started anything.
        let record = match fs::read(path.join("record.json")) {
            Ok(bytes) => serde_json::from_slice(&bytes).ok(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(fail(error)),
        };
        Ok(Some(Orphan { record, _lock: lock }))
    }

    /// Notes the process that was started.
    pub(crate) fn started(&mut self, identity: ProcessIdentity) -> Result<(), ScratchError> {
        self.record.started = Some(identity);
        self.write_record()
    }

    fn write_record(&self) -> Result<(), ScratchError> {
        let fail = |source| ScratchError::Io { path: self.path.join("record.json"), source };
        let bytes = serde_json::to_vec(&self.record).map_err(|error| fail(error.into()))?;
        let fresh = self.path.join("record.new");
        fs::write(&fresh, bytes).and_then(|()| fs::rename(&fresh, self.path.join("record.json"))).map_err(fail)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn mark(&self) -> &str {
        &self.record.mark
    }

    /// The writable top.
    pub(crate) fn top(&self) -> PathBuf {
        self.path.join(top_name(&self.record.mark))
    }

    pub(crate) fn sockets(&self) -> PathBuf {
        self.path.join("run")
    }

    pub(crate) fn x_sockets(&self) -> PathBuf {
        self.path.join("x11")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.path.join("apptainer.log")
    }

    /// Removes the folder and all that is in it, and lets it go.
    pub(crate) async fn remove(self, apptainer: &Apptainer, image: &Path) -> Result<(), ScratchError> {
        remove(apptainer, image, &self.path).await
    }
}

/// The name of a sandbox's top: as unique as its mark.
pub(crate) fn top_name(mark: &str) -> String {
    format!("top-{mark}")
}

/// Removes a scratch folder. Files of the sandbox's other accounts belong to ids that
/// only a container with the same mapping may touch, so it is emptied in one.
pub(crate) async fn remove(apptainer: &Apptainer, image: &Path, path: &Path) -> Result<(), ScratchError> {
    if fs::remove_dir_all(path).is_ok() {
        return Ok(());
    }
    let emptied = apptainer
        .tool(ExecPlan {
            image: image.to_owned(),
            binds: vec![BindPlan { source: path.to_owned(), target: SEEN_AT.into(), writable: true }],
            argv: ["sh", "-c", EMPTY].map(str::to_owned).into(),
            ..ExecPlan::default()
        })
        .await;
    match fs::remove_dir_all(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(match emptied {
            Err(source) => ScratchError::Remove { path: path.to_owned(), source },
            Ok(_) => ScratchError::Io { path: path.to_owned(), source: error },
        }),
    }
}

/// Locks a sandbox's folder; nothing if someone holds it. The lock is the kernel's, so it
/// goes with its holder, however that ends.
fn lock(path: &Path) -> io::Result<Option<Flock<File>>> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path.join("lock"))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, error)) => Err(error.into()),
    }
}

/// A text that no other sandbox has had: the kernel's own random ids.
fn nonce() -> String {
    fs::read_to_string("/proc/sys/kernel/random/uuid")
        .map_or_else(|_| format!("{:?}", std::time::SystemTime::now()), |text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_holder() {
        let root = tempfile::tempdir().expect("folder");
        let scratch = Scratch::create(root.path(), "a").expect("makes");
        assert!(matches!(Scratch::create(root.path(), "a"), Err(ScratchError::InUse(_))));
        let path = scratch.path().to_owned();
        assert!(Scratch::take_over(&path).expect("looks").is_none(), "its holder lives");
        let mark = scratch.mark().to_owned();
        drop(scratch);
        let orphan = Scratch::take_over(&path).expect("looks").expect("is free");
        let record = orphan.record.expect("was written before anything started");
        assert_eq!(record.mark, mark);
        assert!(record.owner.is_alive().expect("reads"), "it is this process");
    }

    #[test]
    fn a_folder_without_a_record_is_taken_over_all_the_same() {
        let root = tempfile::tempdir().expect("folder");
        let orphan = Scratch::take_over(root.path()).expect("looks").expect("is free");
        assert_eq!(orphan.record, None);
        assert_ne!(nonce(), nonce());
    }
}
