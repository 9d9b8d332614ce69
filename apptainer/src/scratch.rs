//! A folder on node-local disk for what Apptainer is called for: a sandbox with its top, its sockets
//! and its log, or a short-lived container. In it is a record of who made it and what was
//! started, written before anything is, and a lock that is held as long as its maker lives. The
//! janitor finds by them what a killed worker left.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use crate::command::{BindPlan, ExecPlan};
use crate::filesystem::is_full;
use crate::identity::{ProcessIdentity, of_session};
use crate::program::{Apptainer, ToolError};

/// What folders of sandboxes and of short-lived containers are called in a scratch root.
pub(crate) const PREFIX: &str = "sandbox-";

/// What folders are called in which base images are made.
pub(crate) const BASE_PREFIX: &str = "base-";

/// The variable that every process started for a sandbox carries, outside of it. Those that
/// Apptainer starts in turn carry it too or, if they empty their environment, are of the session of
/// what was started, and have the sandbox's top mounted, whose name ends with the same text.
pub(crate) const MARK: &str = "LONGHAUL_SANDBOX";

/// Where a scratch folder is seen inside a container that works on it.
pub(crate) const SEEN_AT: &str = "/mnt";

const LOCK: &str = "lock";
const RECORD: &str = "record.json";
const FRESH_RECORD: &str = "record.new";

/// A file that is given up where there is no room for the record: what fills a disk is removed by a call
/// that has to be recorded.
const RESERVE: &str = "reserve";
const RESERVED: usize = 16 * 1024;

/// Names that a sandbox's folder may hold beside its top. One without a record that holds anything
/// else is somebody's who calls a folder by a name like ours.
const KNOWN: [&str; 9] =
    [LOCK, RECORD, FRESH_RECORD, RESERVE, "run", "x11", "apptainer.log", "slirp.log", "layer.sqsh"];

/// How deep folders may lie in folders that are removed out here: each holds an open file and some of the
/// stack, and how deep they lie is up to an agent.
const DEEPEST: u32 = 100;

/// Empties the folder that is seen there; what says whose it is goes last, with the folder.
const EMPTY: &str = "find /mnt -xdev -mindepth 1 ! -path /mnt/lock ! -path /mnt/record.json ! -path /mnt/record.new \
     ! -path /mnt/reserve -delete";

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
    /// There is no image in which files of other accounts could be removed.
    #[error("{path} holds files of other accounts, which are only removed over a base image, and there is none")]
    NoImage {
        /// The path.
        path: PathBuf,
    },
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
    /// The `apptainer` process of the sandbox, once it was started.
    pub(crate) started: Option<ProcessIdentity>,
    /// The other calls that worked on the folder, each the leader of a session.
    #[serde(default)]
    pub(crate) calls: Vec<ProcessIdentity>,
}

impl Record {
    fn new(mark: String) -> io::Result<Self> {
        Ok(Self { mark, owner: ProcessIdentity::own()?, started: None, calls: Vec::new() })
    }

    /// All that was started.
    pub(crate) fn leaders(&self) -> Vec<ProcessIdentity> {
        self.started.iter().chain(&self.calls).cloned().collect()
    }
}

/// A scratch folder that is held.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    record: Record,
    _lock: Flock<File>,
}

/// What a folder of a scratch root turned out to be.
#[derive(Debug)]
pub(crate) enum Found {
    /// A living worker's.
    Held,
    /// None of ours, whatever its name.
    Foreign,
    /// Nobody's any more, with nothing in it: it was removed.
    Empty,
    /// A dead worker's, held while it is cleared away.
    Orphan(Scratch),
}

impl Scratch {
    /// Makes the folder of the sandbox `id` in `root`, and holds it.
    pub(crate) fn create(root: &Path, id: &str) -> Result<Self, ScratchError> {
        let path = root.join(format!("{PREFIX}{id}"));
        let fail = |source| ScratchError::Io { path: path.clone(), source };
        fs::DirBuilder::new().mode(0o700).recursive(true).create(root).map_err(fail)?;
        let lock = {
            let _turn = turn(root)?;
            let mut folder = fs::DirBuilder::new();
            // Others on the node have no business with what an agent works on.
            folder.mode(0o700).recursive(true).create(&path).map_err(fail)?;
            lock(&path, true).map_err(fail)?
        };
        let Some(lock) = lock else { return Err(ScratchError::InUse(path)) };
        let record = Record::new(format!("{id}-{}", nonce())).map_err(fail)?;
        let scratch = Self { path: path.clone(), record, _lock: lock };
        scratch.write_record()?;
        // Without holes, and nothing that a filesystem would compress away to nothing.
        fs::write(path.join(RESERVE), scratch.mark().repeat(RESERVED / scratch.mark().len() + 1)).map_err(fail)?;
        let top = scratch.top();
        for part in [top.join("upper"), top.join("work"), scratch.sockets(), scratch.x_sockets()] {
            fs::DirBuilder::new().recursive(true).create(part).map_err(fail)?;
        }
        Ok(scratch)
    }

    /// Makes the folder of a short-lived container in `root`, and holds it.
    pub(crate) fn of_tool(root: &Path, what: &str) -> Result<Self, ScratchError> {
        Self::create(root, &format!("{what}-{}", nonce()))
    }

    /// Holds a folder that `make` makes in `root`, where something else than a sandbox is worked on.
    pub(crate) fn hold<T: AsRef<Path>>(
        root: &Path,
        make: impl FnOnce() -> io::Result<T>,
    ) -> Result<(T, Self), ScratchError> {
        let fail = |path: &Path| {
            let path = path.to_owned();
            move |source| ScratchError::Io { path, source }
        };
        let turn = turn(root)?;
        let made = make().map_err(fail(root))?;
        let path = made.as_ref().to_owned();
        let lock = lock(&path, true).map_err(fail(&path))?.ok_or_else(|| ScratchError::InUse(path.clone()))?;
        drop(turn);
        let record = Record::new(nonce()).map_err(fail(&path))?;
        let scratch = Self { path, record, _lock: lock };
        scratch.write_record()?;
        Ok((made, scratch))
    }

    /// Looks at a folder of a scratch root, and takes it over if its owner is gone.
    pub(crate) fn take_over(root: &Path, path: &Path) -> Result<Found, ScratchError> {
        let fail = |source| ScratchError::Io { path: path.to_owned(), source };
        let data = match fs::symlink_metadata(path) {
            Ok(data) => data,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Empty),
            Err(error) => return Err(fail(error)),
        };
        if !data.is_dir() || data.uid() != nix::unistd::geteuid().as_raw() {
            return Ok(Found::Foreign);
        }
        let turn = turn(root)?;
        let lock = match lock(path, false) {
            Ok(Some(lock)) => lock,
            Ok(None) => return Ok(Found::Held),
            // A worker that was killed between making it and locking it leaves an empty one.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(if fs::remove_dir(path).is_ok() { Found::Empty } else { Found::Foreign });
            }
            Err(error) => return Err(fail(error)),
        };
        drop(turn);
        // A worker that was killed before it wrote the record had not started anything.
        let record = match fs::read(path.join(RECORD)) {
            Ok(bytes) => serde_json::from_slice::<Record>(&bytes).ok(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(fail(error)),
        };
        let record = match record {
            Some(record) => record,
            None if names(path).map_err(fail)?.iter().all(|name| is_known(name)) => {
                Record::new(nonce()).map_err(fail)?
            }
            None => return Ok(Found::Foreign),
        };
        Ok(Found::Orphan(Self { path: path.to_owned(), record, _lock: lock }))
    }

    /// Notes the process of the sandbox that was started.
    pub(crate) fn started(&mut self, identity: ProcessIdentity) -> Result<(), ScratchError> {
        self.record.started = Some(identity);
        self.write_record()
    }

    /// Notes another process that was started.
    pub(crate) fn called(&mut self, identity: ProcessIdentity) -> Result<(), ScratchError> {
        self.record.calls.push(identity);
        self.write_record()
    }

    /// A call has succeeded. If nothing of it is left, nobody looks for it any more: a sandbox that is saved
    /// often would have ever more to be looked for at its end.
    pub(crate) fn over(&mut self, call: &ProcessIdentity) {
        if of_session(call).is_empty() {
            self.record.calls.retain(|known| known != call);
        }
    }

    fn write_record(&self) -> Result<(), ScratchError> {
        let fail = |source| ScratchError::Io { path: self.path.join(RECORD), source };
        let bytes = serde_json::to_vec(&self.record).map_err(|error| fail(error.into()))?;
        let fresh = self.path.join(FRESH_RECORD);
        let write = || fs::write(&fresh, &bytes).and_then(|()| fs::rename(&fresh, self.path.join(RECORD)));
        let written = write().or_else(|error| {
            if is_full(&error) && fs::remove_file(self.path.join(RESERVE)).is_ok() { write() } else { Err(error) }
        });
        written.map_err(fail)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn mark(&self) -> &str {
        &self.record.mark
    }

    pub(crate) const fn record(&self) -> &Record {
        &self.record
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

    /// Removes the folder and all that is in it, and lets it go. Files of the sandbox's other accounts
    /// belong to ids that only a container with the same mapping may touch, so it is emptied in one. What
    /// says whose it is goes last: whoever is killed on the way leaves a folder that is known.
    pub(crate) async fn remove(mut self, apptainer: &Apptainer, image: Option<&Path>) -> Result<(), ScratchError> {
        let path = self.path.clone();
        let fail = |source| ScratchError::Io { path: path.clone(), source };
        if emptied_here(&path).await.is_err() {
            let Some(image) = image else { return Err(ScratchError::NoImage { path }) };
            let plan = ExecPlan {
                image: image.to_owned(),
                binds: vec![BindPlan { source: path.clone(), target: SEEN_AT.into(), writable: true }],
                argv: ["sh", "-c", EMPTY].map(str::to_owned).into(),
                ..ExecPlan::default()
            };
            let emptied = apptainer.tool(&mut self, plan).await;
            emptied_here(&path).await.map_err(|error| match emptied {
                Err(source) => ScratchError::Remove { path: path.clone(), source },
                Ok(_) => ScratchError::Io { path: path.clone(), source: error },
            })?;
        }
        for name in [RESERVE, FRESH_RECORD, RECORD, LOCK] {
            match fs::remove_file(path.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fail(error)),
                _ => {}
            }
        }
        match fs::remove_dir(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(fail(error)),
            _ => Ok(()),
        }
    }
}

/// Removes what is in a folder, but for what says whose it is; all that may be removed from here, whatever
/// else may not. Nothing works in it any more that could change what is a folder and what a link.
fn empty(path: &Path) -> io::Result<()> {
    let kept = |name: &std::ffi::OsStr| [LOCK, RECORD, FRESH_RECORD, RESERVE].iter().any(|kept| name == *kept);
    thin_out(path, &kept, DEEPEST)
}

/// As [`empty`], on a thread that may wait: there may be very much of it.
async fn emptied_here(path: &Path) -> io::Result<()> {
    let path = path.to_owned();
    tokio::task::spawn_blocking(move || empty(&path)).await.map_err(io::Error::other)?
}

fn thin_out(path: &Path, kept: &dyn Fn(&std::ffi::OsStr) -> bool, deepest: u32) -> io::Result<()> {
    let Some(deepest) = deepest.checked_sub(1) else {
        return Err(io::Error::other("there are too many folders in folders"));
    };
    let mut first = Ok(());
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if kept(&entry.file_name()) {
            continue;
        }
        let inside = entry.path();
        let removed = if entry.file_type()?.is_dir() {
            thin_out(&inside, &|_| false, deepest).and_then(|()| fs::remove_dir(&inside))
        } else {
            fs::remove_file(&inside)
        };
        first = first.and(removed);
    }
    first
}

/// Whether folders lie deeper in a folder than is removed out here, as far as can be seen.
pub(crate) fn is_deep(path: &Path) -> bool {
    fn is_deeper(path: &Path, deepest: u32) -> bool {
        let Some(deepest) = deepest.checked_sub(1) else { return true };
        let mut entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.any(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()) && is_deeper(&entry.path(), deepest))
    }
    is_deeper(path, DEEPEST)
}

fn names(path: &Path) -> io::Result<BTreeSet<String>> {
    fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

fn is_known(name: &str) -> bool {
    KNOWN.contains(&name) || name.starts_with("top-")
}

/// The name of a sandbox's top: as unique as its mark.
pub(crate) fn top_name(mark: &str) -> String {
    format!("top-{mark}")
}

/// The turn to make a folder in a scratch root and lock it, or to look whose one is: a folder that
/// was just made is never taken for one that was left. Held for a moment only.
fn turn(root: &Path) -> Result<Flock<File>, ScratchError> {
    let fail = |source| ScratchError::Io { path: root.to_owned(), source };
    let folder = File::open(root).map_err(fail)?;
    Flock::lock(folder, FlockArg::LockExclusive).map_err(|(_, error)| fail(error.into()))
}

/// Locks a sandbox's folder; nothing if someone holds it. The lock is the kernel's, so it
/// goes with its holder, however that ends.
fn lock(path: &Path, create: bool) -> io::Result<Option<Flock<File>>> {
    let mut options = OpenOptions::new();
    options.create(create).truncate(false).write(true).mode(0o600).custom_flags(nix::libc::O_NOFOLLOW);
    match Flock::lock(options.open(path.join(LOCK))?, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, error)) => Err(error.into()),
    }
}

/// A text that no other sandbox has had: the kernel's own random ids; without those, one that no
/// other process of this boot comes to.
fn nonce() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let own = || {
        let started = ProcessIdentity::own().map_or(0, |own| own.start_ticks);
        format!("{}-{started}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
    };
    fs::read_to_string("/proc/sys/kernel/random/uuid").map_or_else(|_| own(), |text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn orphan(root: &Path, path: &Path) -> Scratch {
        match Scratch::take_over(root, path).expect("looks") {
            Found::Orphan(scratch) => scratch,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_folder_has_one_holder() {
        let root = tempfile::tempdir().expect("folder");
        let scratch = Scratch::create(root.path(), "a").expect("makes");
        assert!(matches!(Scratch::create(root.path(), "a"), Err(ScratchError::InUse(_))));
        let path = scratch.path().to_owned();
        assert!(matches!(Scratch::take_over(root.path(), &path), Ok(Found::Held)), "its holder lives");
        let mark = scratch.mark().to_owned();
        drop(scratch);
        let record = orphan(root.path(), &path).record;
        assert_eq!(record.mark, mark);
        assert!(record.owner.is_alive().expect("reads"), "it is this process");
        assert_ne!(nonce(), nonce());
    }

    #[test]
    fn what_was_begun_is_taken_over_and_what_is_only_called_like_ours_is_not() {
        let root = tempfile::tempdir().expect("folder");
        let make = |name: &str, files: &[&str]| {
            let path = root.path().join(name);
            fs::create_dir(&path).expect("makes");
            for file in files {
                fs::write(path.join(file), "x").expect("writes");
            }
            path
        };
        let begun = make("sandbox-begun", &[LOCK, FRESH_RECORD]);
        assert_eq!(orphan(root.path(), &begun).record.started, None);
        let half_gone = make("sandbox-half-gone", &[LOCK]);
        fs::create_dir(half_gone.join("top-some")).expect("makes");
        drop(orphan(root.path(), &half_gone));
        let mine = make("sandbox-castle", &["plans.txt"]);
        let locked = make("sandbox-notes", &[LOCK, "notes.txt"]);
        let link = root.path().join("sandbox-link");
        std::os::unix::fs::symlink(&mine, &link).expect("links");
        let file = root.path().join("sandbox-file");
        fs::write(&file, "x").expect("writes");
        for path in [&mine, &locked, &link, &file] {
            assert!(matches!(Scratch::take_over(root.path(), path), Ok(Found::Foreign)), "{}", path.display());
        }
        assert!(!mine.join(LOCK).exists(), "nothing was made there");
        let empty = make("sandbox-empty", &[]);
        assert!(matches!(Scratch::take_over(root.path(), &empty), Ok(Found::Empty)) && !empty.exists());
        assert!(matches!(Scratch::take_over(root.path(), &empty), Ok(Found::Empty)), "another janitor was faster");
    }

    #[test]
    fn folders_that_lie_too_deep_are_not_removed_out_here() {
        let root = tempfile::tempdir().expect("folder");
        let nested = |depth: usize| root.path().join(["d"; 200][..depth].join("/"));
        fs::create_dir_all(nested(90)).expect("makes");
        assert!(!is_deep(root.path()));
        fs::create_dir_all(nested(150)).expect("makes");
        assert!(is_deep(root.path()) && empty(root.path()).is_err());
        assert!(nested(150).is_dir());
    }

    #[test]
    fn a_record_of_an_earlier_program_is_read() {
        let owner = ProcessIdentity::own().expect("reads");
        let record = Record { mark: "m".to_owned(), owner: owner.clone(), started: Some(owner.clone()), calls: vec![] };
        let mut json = serde_json::to_value(&record).expect("writes");
        json.as_object_mut().expect("an object").remove("calls");
        let read: Record = serde_json::from_value(json).expect("reads");
        assert_eq!(read.leaders(), [owner]);
    }
}
