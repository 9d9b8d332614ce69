//! What is in a layer folder, and what of it goes when it takes too much.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use longhaul_core::digest::Digest;
use nix::fcntl::{Flock, FlockArg};

use super::manifest::{LayerContent, LayerManifest};
use super::store::{LayerStore, StoreError, io_error, read_any_manifest};

/// How old a half-written file is when its writer is taken for dead.
const UNFINISHED: Duration = Duration::from_secs(24 * 3600);

/// What pruning aims at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// At most this many bytes in all.
    Bytes(u64),
    /// Nothing that was last used before this time.
    UsedSince(SystemTime),
}

/// What pruning did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// What was removed.
    pub removed: Vec<Digest>,
    /// How many bytes that freed.
    pub freed: u64,
    /// What would have had to go but is in use.
    pub in_use: Vec<Digest>,
    /// What would have had to go but is cited.
    pub cited: Vec<Digest>,
}

/// Every layer of a folder, most recently used first.
pub(super) fn list(folder: &Path) -> Result<Vec<(LayerManifest, SystemTime)>, StoreError> {
    let mut layers = Vec::new();
    for entry in fs::read_dir(folder).map_err(io_error(folder))? {
        let name = entry.map_err(io_error(folder))?.file_name();
        let key = name.to_str().and_then(|name| name.strip_suffix(".json")).and_then(|key| key.parse::<Digest>().ok());
        let Some(key) = key else { continue };
        let Some(manifest) = read_any_manifest(folder, &key)? else { continue };
        let file = match manifest.content {
            LayerContent::File { .. } => LayerStore::file(folder, &key),
            LayerContent::Rerun { .. } => LayerStore::manifest_path(folder, &key),
        };
        let used = fs::metadata(&file).and_then(|data| data.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
        layers.push((manifest, used));
    }
    layers.sort_by_key(|(manifest, used)| (std::cmp::Reverse(*used), manifest.key));
    Ok(layers)
}

/// Removes what was least recently used until `bound` holds; never what is in use or cited.
pub(super) fn prune(folder: &Path, bound: Bound, cited: &BTreeSet<Digest>) -> Result<Pruned, StoreError> {
    clear_unfinished(folder)?;
    let layers = list(folder)?;
    let mut total: u64 = layers.iter().map(|(manifest, _)| manifest.bytes()).sum();
    let mut pruned = Pruned::default();
    for (manifest, used) in layers.iter().rev() {
        let goes = match bound {
            Bound::Bytes(limit) => total > limit && manifest.bytes() > 0,
            Bound::UsedSince(time) => *used < time,
        };
        if !goes {
            continue;
        }
        if cited.contains(&manifest.key) {
            pruned.cited.push(manifest.key);
        } else if remove(folder, &manifest.key)? {
            total = total.saturating_sub(manifest.bytes());
            pruned.freed += manifest.bytes();
            pruned.removed.push(manifest.key);
        } else {
            pruned.in_use.push(manifest.key);
        }
    }
    Ok(pruned)
}

/// Removes a layer unless someone uses it: its manifest first, so that what is found is whole.
pub(super) fn remove(folder: &Path, key: &Digest) -> Result<bool, StoreError> {
    let path = LayerStore::file(folder, key);
    let lock = match File::open(&path) {
        Ok(file) => match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Some(lock),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => return Ok(false),
            Err((_, error)) => return Err(io_error(&path)(error.into())),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(io_error(&path)(error)),
    };
    for gone in [LayerStore::manifest_path(folder, key), path] {
        match fs::remove_file(&gone) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io_error(&gone)(error)),
            _ => {}
        }
    }
    drop(lock);
    Ok(true)
}

/// Removes what writers that were killed left half written.
fn clear_unfinished(folder: &Path) -> Result<(), StoreError> {
    let now = SystemTime::now();
    for entry in fs::read_dir(folder).map_err(io_error(folder))?.flatten() {
        let old = entry
            .metadata()
            .and_then(|data| data.modified())
            .is_ok_and(|written| now.duration_since(written).is_ok_and(|age| age > UNFINISHED));
        if old && entry.path().extension().is_some_and(|ending| ending == "new") {
            // Someone else may have been faster.
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}
