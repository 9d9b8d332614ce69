//! Where a store lies: its filesystem, the space left there, and who may look.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::Path;

use nix::sys::statfs::statfs;
use nix::sys::statvfs::statvfs;

/// Network filesystems by the numbers that `statfs` gives: on these a sync may not reach
/// the disk, a lock may not reach other hosts, and a file that is open may vanish.
const NETWORK_FILESYSTEMS: &[(u32, &str)] = &[
    (0x6969, "NFS"),
    (0x0bd0_0bd0, "Lustre"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x4750_4653, "GPFS"),
    (0x1983_0326, "BeeGFS"),
    (0x00c3_6400, "Ceph"),
    (0x0102_1997, "9p"),
];

/// The name of the network filesystem that `path` is on; none if it is a local one.
pub(crate) fn network_filesystem(path: &Path) -> io::Result<Option<&'static str>> {
    let found = statfs(path)?.filesystem_type().0;
    // The magic numbers are 32 bits wide; the kernel's type is wider on some platforms,
    // with the sign extended.
    let number = u32::try_from(found & 0xffff_ffff).ok();
    Ok(NETWORK_FILESYSTEMS.iter().find(|(magic, _)| number == Some(*magic)).map(|(_, name)| *name))
}

/// The bytes that this user may still write to the filesystem of `path`.
///
/// # Errors
///
/// The path is not there, or the filesystem does not answer.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let stat = statvfs(path)?;
    Ok(stat.blocks_available().saturating_mul(stat.fragment_size()))
}

/// Makes a folder that only its owner can enter, and its parents.
pub(crate) fn make_private_folder(path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {
            std::fs::set_permissions(path, Permissions::from_mode(0o700))
        }
        other => other,
    }
}

/// Takes every right of others off the files right below `folder`. RocksDB makes its
/// files with the rights that the umask leaves, and the umask is the whole process's: a
/// worker in the same process needs another one. The folder's own mode keeps others out
/// meanwhile; this is for copies of the files.
pub(crate) fn make_files_private(folder: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let set = || {
            if entry.file_type()?.is_file() {
                std::fs::set_permissions(entry.path(), Permissions::from_mode(0o600))?;
            }
            Ok(())
        };
        match set() {
            // RocksDB deletes files whenever it likes.
            Err(error) if io::Error::kind(&error) == io::ErrorKind::NotFound => {}
            other => other?,
        }
    }
    Ok(())
}

/// Syncs a folder, so that what was made or renamed in it is there after a power loss.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    std::fs::File::open(path)?.sync_all()
}

/// Syncs the folder that a folder is in, so that it is there itself.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    match sync_folder(parent.unwrap_or_else(|| Path::new("."))) {
        // Where others may make folders for us, and we may not read.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_space_is_that_of_the_filesystem() {
        let folder = tempfile::tempdir().unwrap();
        assert!(free_bytes(folder.path()).unwrap() > 0);
        assert_eq!(free_bytes(&folder.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
