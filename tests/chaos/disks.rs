//! Disks that can be filled: filesystems in memory, whose size is changed, in mounts that only this
//! process and what it starts can see; they are gone with it, however it ends.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use longhaul_tests::account::Account;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::statvfs::statvfs;

const MIB: u64 = 1024 * 1024;

/// How often a disk that is being written to is made smaller in vain, at most.
const TRIES: u32 = 100;

/// Gives this process mounts of its own. To be called before it has threads.
///
/// # Errors
///
/// It may not: only root may.
pub(crate) fn own_mounts() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).context("cannot have mounts of our own")?;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>).context("cannot keep our mounts to ourselves")
}

/// A disk.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    at: PathBuf,
    mib: u64,
}

impl Disk {
    /// Mounts one of that size over a folder, for an account.
    pub(crate) fn mount(at: &Path, mib: u64, account: &Account) -> Result<Self> {
        account.make_dir(at)?;
        let options = format!("size={mib}m,mode=0755");
        mount(Some("tmpfs"), at, Some("tmpfs"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, Some(options.as_str()))
            .with_context(|| format!("cannot mount a disk at {}", at.display()))?;
        account.give(at)?;
        Ok(Self { at: at.to_owned(), mib })
    }

    /// Leaves only so many MiB of it free.
    pub(crate) fn leave(&self, mib: u64) -> Result<()> {
        let smaller = || {
            let facts = statvfs(&self.at)?;
            let used = (facts.blocks() - facts.blocks_free()) * facts.fragment_size();
            // A size of nothing would be none at all.
            self.resize((used + mib * MIB).max(MIB))
        };
        // Who writes meanwhile has more there than would be left.
        (0..TRIES).fold(smaller(), |outcome, _| outcome.or_else(|_| smaller()))
    }

    /// Leaves free what was free.
    pub(crate) fn heal(&self) -> Result<()> {
        self.resize(self.mib * MIB)
    }

    fn resize(&self, bytes: u64) -> Result<()> {
        let options = format!("size={bytes}");
        let again = MsFlags::MS_REMOUNT | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(None::<&str>, &self.at, None::<&str>, again, Some(options.as_str()))
            .with_context(|| format!("cannot change the size of {}", self.at.display()))
    }

    /// Takes it away.
    pub(crate) fn unmount(&self) -> Result<()> {
        umount2(&self.at, MntFlags::empty()).with_context(|| format!("{} is in use", self.at.display()))
    }
}
