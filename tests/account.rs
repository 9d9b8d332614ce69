//! The account that the program runs as.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use nix::unistd::{Gid, Uid, User, chown};

/// The account that the program runs as, and its home.
#[derive(Clone, Debug)]
pub struct Account {
    name: String,
    uid: Uid,
    gid: Gid,
    home: PathBuf,
    /// Whether we are root, and so have to change to it.
    change: bool,
}

impl Account {
    /// The caller, or if that is root, the unprivileged account made for this.
    ///
    /// # Errors
    ///
    /// There is no such account.
    pub fn find() -> Result<Self> {
        let root = Uid::effective().is_root();
        let user = if root {
            let name = std::env::var("LONGHAUL_USER").unwrap_or_else(|_| "longhaul".to_owned());
            User::from_name(&name)?.with_context(|| format!("no account `{name}`: run scripts/deps"))?
        } else {
            User::from_uid(Uid::effective())?.context("the caller has no account")?
        };
        Ok(Self { name: user.name, uid: user.uid, gid: user.gid, home: user.dir, change: root })
    }

    /// Its home.
    #[must_use]
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Its user id.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.uid.as_raw()
    }

    /// A command that runs as it, with nothing of our environment but proxies and the log filter.
    #[must_use]
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        self.environment(&mut command);
        if self.change {
            command.uid(self.uid.as_raw()).gid(self.gid.as_raw());
        }
        command
    }

    /// Gives a command the account's environment and home, but not the account itself: for a
    /// program that changes to it.
    pub fn environment(&self, command: &mut Command) {
        command.env_clear().current_dir(&self.home);
        for name in ["http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "RUST_LOG"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command
            .env("HOME", &self.home)
            .env("USER", &self.name)
            .env("LOGNAME", &self.name)
            .env("PATH", "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("LANG", "C.UTF-8");
    }

    /// Makes a folder, its parents too, and gives what it made to the account.
    ///
    /// # Errors
    ///
    /// It cannot be made.
    pub fn make_dir(&self, path: &Path) -> Result<()> {
        if path.is_dir() {
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            self.make_dir(parent)?;
        }
        match std::fs::create_dir(path) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                Err(error).with_context(|| format!("cannot make {}", path.display()))
            }
            _ => self.give(path),
        }
    }

    /// Gives a file or folder to the account.
    ///
    /// # Errors
    ///
    /// It is not there, or not ours to give.
    pub fn give(&self, path: &Path) -> Result<()> {
        if self.change {
            chown(path, Some(self.uid), Some(self.gid))
                .with_context(|| format!("cannot give {} to {}", path.display(), self.name))?;
        }
        Ok(())
    }
}
