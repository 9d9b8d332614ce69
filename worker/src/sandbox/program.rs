//! The program that is bound into sandboxes, kept for as long as the driver lives.
//!
//! A worker lives for days, and the file that it was started from may be replaced under it: a
//! path to it then names another build, or nothing. So the driver keeps a copy on the node's
//! disk, read through `/proc/self/exe`, which stays what it was whatever becomes of the path.
//! The copy is named by its content, so that a node's workers of one build share it; each holds
//! its lock, and what nobody holds is an earlier build's and is removed.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::sys::statvfs::{FsFlags, statvfs};

/// What the names of copies begin with, and of those that are being made: who makes one holds its lock.
const PREFIX: &str = "helper-";
const FRESH_PREFIX: &str = ".new-";

/// A program that stays what it is.
#[derive(Debug)]
pub(super) struct Program {
    path: PathBuf,
    /// Held shared, so that nobody takes the copy for one that was left.
    _lock: Option<File>,
}

impl Program {
    /// Keeps a copy of `program` in `folder`.
    pub(super) fn keep(program: &Path, folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        if statvfs(folder).is_ok_and(|facts| facts.flags().contains(FsFlags::ST_NOEXEC)) {
            tracing::warn!(
                folder = %folder.display(),
                "programs cannot be run from here: this one is bound from where it is, and must not be replaced"
            );
            return Ok(Self { path: fs::canonicalize(program)?, _lock: None });
        }
        loop {
            let path = copy(program, folder)?;
            let lock = File::open(&path)?;
            lock.lock_shared()?;
            // Between the two, another build's worker may have found that nobody holds it.
            if lock.metadata()?.nlink() > 0 {
                remove_others(folder, &path);
                return Ok(Self { path, _lock: Some(lock) });
            }
        }
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// The copy of a program, made if it is not there; whole, whenever it has its name.
fn copy(program: &Path, folder: &Path) -> io::Result<PathBuf> {
    let mut source = File::open(program)?;
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(&mut source)?;
    let path = folder.join(format!("{PREFIX}{}", hasher.finalize().to_hex()));
    if !path.exists() {
        source.seek(SeekFrom::Start(0))?;
        let fresh = {
            let _turn = turn(folder)?;
            let fresh = tempfile::Builder::new().prefix(FRESH_PREFIX).tempfile_in(folder)?;
            fresh.as_file().lock()?;
            fresh
        };
        io::copy(&mut source, &mut fresh.as_file())?;
        fresh.as_file().set_permissions(fs::Permissions::from_mode(0o755))?;
        fresh.as_file().sync_all()?;
        fresh.persist(&path)?;
    }
    Ok(path)
}

/// The turn to begin a copy, or to look whose one is: it is held for a moment only.
fn turn(folder: &Path) -> io::Result<File> {
    let turn = File::open(folder)?;
    turn.lock()?;
    Ok(turn)
}

/// Removes the copies that nobody holds, and what was to become one when its worker was killed. One that
/// stays takes room, and nothing else.
fn remove_others(folder: &Path, own: &Path) {
    let Ok(_turn) = turn(folder) else { return };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let is_copy = [PREFIX, FRESH_PREFIX].iter().any(|prefix| name.to_string_lossy().starts_with(prefix));
        if path == own || !is_copy {
            continue;
        }
        let removed = File::open(&path).and_then(|file| match file.try_lock() {
            Ok(()) => fs::remove_file(&path),
            Err(fs::TryLockError::WouldBlock) => Ok(()),
            Err(fs::TryLockError::Error(error)) => Err(error),
        });
        if let Err(error) = removed {
            tracing::debug!(path = %path.display(), %error, "an earlier build's copy stays");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copies(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn a_program_outlives_its_file_and_an_earlier_builds_copy_goes() {
        let folder = tempfile::tempdir().unwrap();
        let (program, kept) = (folder.path().join("longhaul"), folder.path().join("cache"));
        fs::write(&program, "first").unwrap();
        let first = Program::keep(&program, &kept).unwrap();
        let again = Program::keep(&program, &kept).unwrap();
        assert_eq!((first.path(), copies(&kept)), (again.path(), 1));
        assert_eq!(fs::metadata(first.path()).unwrap().mode() & 0o777, 0o755);

        fs::remove_file(&program).unwrap();
        fs::write(&program, "second").unwrap();
        let second = Program::keep(&program, &kept).unwrap();
        assert_eq!(fs::read_to_string(first.path()).unwrap(), "first");
        assert_eq!(fs::read_to_string(second.path()).unwrap(), "second");
        assert_eq!(copies(&kept), 2, "both are in use");
        let left = first.path().to_owned();
        drop((first, again));
        fs::write(kept.join(".new-half"), "sec").unwrap();
        let third = Program::keep(&program, &kept).unwrap();
        assert!(!left.exists() && third.path() == second.path());
        assert_eq!(copies(&kept), 1, "what a killed worker had begun is gone, too");
    }
}
