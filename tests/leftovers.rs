//! What a run leaves behind: processes, mounts, scratch.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

/// The processes that name a path in their arguments, environment or open mounts.
///
/// # Errors
///
/// `/proc` cannot be read.
pub fn processes_that_name(path: &Path) -> Result<Vec<(i32, String)>> {
    let needle = path.as_os_str().as_encoded_bytes();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        if pid == i32::try_from(std::process::id())? {
            continue;
        }
        // A process may end while it is looked at: what cannot be read names nothing.
        let arguments = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let named = ["environ", "mountinfo"].iter().any(|file| {
            // The mounts of a process outside any sandbox are the machine's own.
            let bytes = std::fs::read(entry.path().join(file)).unwrap_or_default();
            contains(&bytes, needle)
        });
        if contains(&arguments, needle) || named {
            let shown = String::from_utf8_lossy(&arguments).replace('\0', " ");
            found.push((pid, shown.trim().to_owned()));
        }
    }
    Ok(found)
}

/// The mounts of this machine below a path.
///
/// # Errors
///
/// They cannot be read.
pub fn mounts_below(path: &Path) -> Result<Vec<String>> {
    let needle = path.display().to_string();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    Ok(mounts.lines().filter(|line| line.contains(&needle)).map(str::to_owned).collect())
}

/// The scratch of attempts below a scratch folder; the caches beside it are meant to stay.
///
/// # Errors
///
/// The folder cannot be read.
pub fn attempts_below(scratch: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for worker in entries(&scratch.join("workers"))? {
        found.extend(entries(&worker.join("attempts"))?);
    }
    Ok(found)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
}

/// Fails, naming it, if a place's runs left a process, a mount or an attempt's scratch.
///
/// # Errors
///
/// Something is left.
pub fn expect_nothing(root: &Path, scratch: &Path) -> Result<()> {
    let processes = processes_that_name(root)?;
    ensure!(processes.is_empty(), "processes are left: {processes:#?}");
    let mounts = mounts_below(root)?;
    ensure!(mounts.is_empty(), "mounts are left: {mounts:#?}");
    let attempts = attempts_below(scratch)?;
    ensure!(attempts.is_empty(), "scratch is left: {attempts:#?}");
    let folders: Vec<PathBuf> = entries(scratch)?.into_iter().filter(|path| !is_meant_to_stay(path)).collect();
    ensure!(folders.is_empty(), "folders are left, with their sockets: {folders:#?}");
    Ok(())
}

/// Whether something of a scratch folder is a cache, a worker's own place for what it has to deliver, or
/// the log of an image that could not be made.
fn is_meant_to_stay(path: &Path) -> bool {
    ["cache", "programs", "workers"].iter().any(|name| path.ends_with(name))
        || path.extension().is_some_and(|ending| ending == "log")
}

fn contains(bytes: &[u8], needle: &[u8]) -> bool {
    !needle.is_empty() && bytes.windows(needle.len()).any(|window| window == needle)
}
