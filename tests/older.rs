//! A root of an older distribution, from `tests/older-root`, which says how it is made. It takes root.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::command::Longhaul;
use crate::place::Place;

/// The name of its host, as programs in it see it.
pub const HOSTNAME: &str = "older";

/// A root of an older distribution, used by one test after the other.
#[derive(Debug)]
pub struct OlderRoot(PathBuf);

impl OlderRoot {
    /// Makes it, if nobody did before.
    ///
    /// # Errors
    ///
    /// Its packages cannot be had, or we are not root.
    pub fn ready() -> Result<Self> {
        let home = PathBuf::from(std::env::var_os("HOME").context("no HOME")?);
        let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(|| home.join(".cache"), PathBuf::from);
        let root = cache.join("longhaul/older-root/debian-11");
        let made = script().arg("make").arg(&root).output().context("cannot run tests/older-root")?;
        ensure!(made.status.success(), "no root was made:\n{}", String::from_utf8_lossy(&made.stderr));
        Ok(Self(root))
    }

    /// A program with arguments in it, as the account of a place, whose files are there too.
    #[must_use]
    pub fn run<I: AsRef<OsStr>>(
        &self,
        place: &Place,
        program: &Path,
        arguments: impl IntoIterator<Item = I>,
    ) -> Longhaul {
        let mut command = script();
        command.arg("run").arg(&self.0).arg(place.account().home()).arg(program).args(arguments);
        Longhaul::new(command)
    }
}

fn script() -> Command {
    Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("older-root"))
}
