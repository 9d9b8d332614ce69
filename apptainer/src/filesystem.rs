//! What kind of filesystem a folder is on, and how much room is left on it.
//!
//! The writable top of a sandbox needs a filesystem of this node alone: on one that other
//! machines see too, marks for deleted files, locks and the ids of a sandbox's accounts are
//! refused, or silently lost.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use nix::sys::statfs::statfs;
use nix::sys::statvfs::statvfs;

/// Filesystems by the number that the kernel gives them, where the table of mounts says nothing.
const NUMBERS: [(i64, &str); 22] = [
    (0xef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0x2fc1_2fc1, "zfs"),
    (0xf2f5_2010, "f2fs"),
    (0x0102_1994, "tmpfs"),
    (0x8584_58f6, "ramfs"),
    (0x794c_7630, "overlay"),
    (0x6969, "nfs"),
    (0x0bd0_0bd0, "lustre"),
    (0x4750_4653, "gpfs"),
    (0x1983_0326, "beegfs"),
    (0x00c3_6400, "ceph"),
    (0xff53_4d42, "cifs"),
    (0xfe53_4d42, "smb3"),
    (0x0102_1997, "9p"),
    (0x5346_414f, "afs"),
    (0x2003_0528, "orangefs"),
    (0xaad7_aaea, "panfs"),
    (0x6573_5546, "fuse"),
    (0x7371_7368, "squashfs"),
    (0xca45_1a4e, "bcachefs"),
];

/// Filesystems that are seen from other machines, by the start of their names.
const SHARED: [&str; 16] = [
    "nfs",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "cifs",
    "smb",
    "9p",
    "afs",
    "orangefs",
    "pvfs",
    "panfs",
    "wekafs",
    "glusterfs",
    "virtiofs",
    "gfs2",
];

/// What is known to be on a disk of this node although a program serves it.
const LOCAL_FUSE: [&str; 4] = ["fuseblk", "fuse.fuse-overlayfs", "fuse.fuse2fs", "fuse.bcachefs"];

/// How a filesystem may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// On a disk of this node.
    Local,
    /// In the memory of this node.
    Memory,
    /// Seen from other machines too, or served by a program that is not known to be local.
    Shared,
}

/// A filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// Its type, as the kernel names it: `ext4`, `nfs4`, `fuse.sshfs`, ...
    pub name: String,
    /// How it may be used.
    pub kind: Kind,
    /// Where it is mounted, if the table of mounts says so.
    pub mounted_at: Option<PathBuf>,
}

/// A folder that no writable top of a sandbox may be in.
#[derive(Debug, thiserror::Error)]
pub enum UnfitForTops {
    /// It is on a filesystem of more than this node.
    #[error(
        "{path} is on {name}{}: the writable part of a sandbox cannot lie on a network file system; name a folder on \
         this node's own disk with --scratch, the setting paths.scratch or TMPDIR",
        at(mounted_at.as_deref())
    )]
    Shared {
        /// The folder.
        path: PathBuf,
        /// The filesystem's type.
        name: String,
        /// Where it is mounted.
        mounted_at: Option<PathBuf>,
    },
    /// It cannot be said what it is on.
    #[error("it cannot be told which file system {path} is on")]
    Unknown {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

fn at(mounted_at: Option<&Path>) -> String {
    mounted_at.map(|place| format!(" (mounted at {})", place.display())).unwrap_or_default()
}

/// The room on a filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes that the caller may still write; a quota that the filesystem does not show may be
    /// less.
    pub bytes: u64,
    /// Files that may still be made; none where the filesystem has no such bound.
    pub files: Option<u64>,
}

impl FileSystem {
    /// A filesystem of this type.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), kind: kind(name), mounted_at: None }
    }

    /// The filesystem that a folder which is there is on.
    ///
    /// # Errors
    ///
    /// The folder is not there or cannot be examined.
    pub fn of(folder: &Path) -> io::Result<Self> {
        let folder = fs::canonicalize(folder)?;
        let number = statfs(&folder)?.filesystem_type().0;
        let by_number = NUMBERS.iter().find(|(known, _)| *known == number).map(|(_, name)| *name);
        let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
        let Some((name, mounted_at)) = mount_of(&mounts, &folder) else {
            return Ok(by_number.map_or_else(|| Self::named(&format!("file system {number:#x}")), Self::named));
        };
        let mut found = Self { mounted_at: Some(mounted_at), ..Self::named(&name) };
        // Two sources, and the worse answer counts; but only a name tells one FUSE from another.
        if by_number.is_some_and(|name| name != "fuse" && kind(name) == Kind::Shared) {
            found.kind = Kind::Shared;
        }
        Ok(found)
    }
}

/// Whether writable tops of sandboxes may be in a folder that is there.
///
/// # Errors
///
/// They may not.
pub fn fit_for_tops(folder: &Path) -> Result<FileSystem, UnfitForTops> {
    let found = FileSystem::of(folder).map_err(|source| UnfitForTops::Unknown { path: folder.to_owned(), source })?;
    match found.kind {
        Kind::Local | Kind::Memory => Ok(found),
        Kind::Shared => {
            Err(UnfitForTops::Shared { path: folder.to_owned(), name: found.name, mounted_at: found.mounted_at })
        }
    }
}

/// The room on the filesystem of a folder that is there.
///
/// # Errors
///
/// The folder cannot be examined.
pub fn space(folder: &Path) -> io::Result<Space> {
    let stat = statvfs(folder)?;
    Ok(Space {
        bytes: stat.blocks_available().saturating_mul(stat.fragment_size()),
        files: (stat.files() > 0).then(|| stat.files_available()),
    })
}

/// Whether a failure says that a disk or a quota is used up.
#[must_use]
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// How a filesystem of this type may be used: pure.
fn kind(name: &str) -> Kind {
    if matches!(name, "tmpfs" | "ramfs") {
        return Kind::Memory;
    }
    let fuse = name.starts_with("fuse") && !LOCAL_FUSE.contains(&name);
    if fuse || SHARED.iter().any(|shared| name.starts_with(shared)) { Kind::Shared } else { Kind::Local }
}

/// The type and the place of the mount that a resolved path is on, by the text of
/// `/proc/self/mountinfo`: pure.
fn mount_of(mounts: &[u8], path: &Path) -> Option<(String, PathBuf)> {
    let mut found: Option<(String, PathBuf)> = None;
    for line in mounts.split(|byte| *byte == b'\n') {
        let mut fields = line.split(|byte| *byte == b' ');
        let Some(place) = fields.nth(4).map(unescape) else { continue };
        let Some(name) = fields.skip_while(|field| *field != b"-").nth(1) else { continue };
        // The deepest mount counts, and of those on one place the last.
        let deeper = found.as_ref().is_none_or(|(_, best)| place.as_os_str().len() >= best.as_os_str().len());
        if path.starts_with(&place) && deeper {
            found = Some((String::from_utf8_lossy(name).into_owned(), place));
        }
    }
    found
}

/// A path as the table of mounts writes it: blanks and the like as `\040`.
fn unescape(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    std::ffi::OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    // What was mounted before the root was moved to its place stands before it.
    const MOUNTS: &[u8] = b"\
21 20 0:39 / /dev/shm rw - tmpfs tmpfs rw
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:40 / /home rw,relatime shared:3 master:1 - nfs4 server:/home rw,vers=4.2
31 30 254:1 / /home/local\\040disk rw - xfs /dev/vdb rw
32 22 0:41 / /scratch rw - lustre mds@o2ib:/scratch rw
33 22 0:42 / /mnt/far rw - fuse.sshfs far:/ rw
34 22 0:43 / /auto rw - autofs systemd-1 rw
35 22 0:44 / /auto rw - nfs server:/auto rw
";

    fn on(path: &str) -> (String, Kind) {
        let (name, _) = mount_of(MOUNTS, Path::new(path)).expect("is on something");
        let kind = kind(&name);
        (name, kind)
    }

    #[test]
    fn the_deepest_and_last_mount_says_what_a_folder_is_on() {
        assert_eq!(on("/var/tmp"), ("ext4".to_owned(), Kind::Local));
        assert_eq!(on("/home/mary/tmp"), ("nfs4".to_owned(), Kind::Shared));
        assert_eq!(on("/home/local disk/tmp"), ("xfs".to_owned(), Kind::Local));
        assert_eq!(on("/dev/shm/x"), ("tmpfs".to_owned(), Kind::Memory));
        assert_eq!(on("/homes"), ("ext4".to_owned(), Kind::Local), "names are compared in whole parts");
        assert_eq!(on("/scratch/x"), ("lustre".to_owned(), Kind::Shared));
        assert_eq!(on("/mnt/far"), ("fuse.sshfs".to_owned(), Kind::Shared));
        assert_eq!(on("/auto/x"), ("nfs".to_owned(), Kind::Shared));
        assert_eq!(mount_of(b"nonsense\n\n1 2 3", Path::new("/x")), None);
    }

    #[test]
    fn filesystems_of_more_than_this_node_are_known_by_name() {
        for name in
            ["nfs", "nfs4", "gpfs", "beegfs_nodev", "ceph", "fuse.ceph-fuse", "fuse", "fuse.juicefs", "wekafs", "9p"]
        {
            assert_eq!(kind(name), Kind::Shared, "{name}");
        }
        for name in ["ext4", "xfs", "btrfs", "zfs", "overlay", "fuseblk", "fuse.fuse-overlayfs"] {
            assert_eq!(kind(name), Kind::Local, "{name}");
        }
        assert_eq!(kind("tmpfs"), Kind::Memory);
    }

    #[test]
    fn this_machines_own_folders_are_told() {
        let folder = tempfile::tempdir().expect("folder");
        let found = FileSystem::of(folder.path()).expect("is told");
        assert!(found.mounted_at.is_some_and(|place| folder.path().starts_with(place)));
        assert_eq!(FileSystem::of(Path::new("/dev/shm")).expect("is told").kind, Kind::Memory);
        assert!(FileSystem::of(&folder.path().join("none")).is_err());
        assert!(space(folder.path()).expect("is told").bytes > 0);
    }

    #[test]
    fn what_is_refused_says_where_and_what_to_do() {
        let refused = UnfitForTops::Shared {
            path: "/home/mary/tmp".into(),
            name: "nfs4".into(),
            mounted_at: Some("/home".into()),
        };
        let text = refused.to_string();
        assert!(text.starts_with("/home/mary/tmp is on nfs4 (mounted at /home): "), "{text}");
        assert!(text.contains("--scratch") && text.contains("TMPDIR"), "{text}");
    }
}
