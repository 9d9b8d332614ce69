//! Putting a backup in the place of a store that was lost.

use std::fs;
use std::io;
use std::path::Path;

use crate::error::OpenError;
use crate::lock::SharedLock;
use crate::open::{self, DATABASE, RESTORED, failed};
use crate::place;

/// RocksDB never changes these once they are written: they may be shared with the backup.
const WRITTEN_ONCE: [&str; 2] = ["sst", "blob"];

/// Copies a backup into the folder `target`, which is not there yet, to be used in the place of the
/// store that it was made of. The backup stays as it is, and may be used again. Who opens the copy
/// finds a new incarnation.
///
/// # Errors
///
/// The backup is no store, or a process has it open; the target is there already, or cannot be
/// written. A copy that was cut short is no store.
pub fn restore(backup: &Path, target: &Path) -> Result<(), OpenError> {
    open::check_format(backup)?;
    let _lock = SharedLock::take(backup)?;
    if target.try_exists().map_err(failed("look at", target))? {
        return Err(failed("make", target)(io::ErrorKind::AlreadyExists.into()));
    }
    place::make_private_folder(target).map_err(failed("make", target))?;
    // Marked as a copy first, and without a format to the end: half of it is no store.
    open::write_private(target, RESTORED, b"")?;
    let (from, to) = (backup.join(DATABASE), target.join(DATABASE));
    place::make_private_folder(&to).map_err(failed("make", &to))?;
    for entry in fs::read_dir(&from).map_err(failed("read", &from))? {
        let entry = entry.map_err(failed("read", &from))?;
        if entry.file_type().map_err(failed("look at", &entry.path()))?.is_file() {
            let copy = to.join(entry.file_name());
            take_over(&entry.path(), &copy).map_err(failed("copy to", &copy))?;
        }
    }
    place::make_files_private(&to).map_err(failed("set the mode of the files in", &to))?;
    place::sync_folder(&to).map_err(failed("sync", &to))?;
    open::write_format(target)?;
    place::sync_folder(target).map_err(failed("sync", target))?;
    place::sync_parent(target).map_err(failed("sync the parent of", target))
}

/// Links or copies one file; it is on the disk when this returns.
fn take_over(from: &Path, to: &Path) -> io::Result<()> {
    let once = from.extension().is_some_and(|extension| WRITTEN_ONCE.iter().any(|known| extension == *known));
    if once && fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    fs::copy(from, to)?;
    fs::File::open(to)?.sync_all()
}
