//! The layer folder: `KEY.sqsh` and `KEY.json`, which many workers and coordinators may
//! share.
//!
//! A layer is written beside its place, synced and renamed, its manifest last: what has a
//! manifest is whole. Of two that publish the same key the first one stays. Whoever uses
//! a layer holds a shared lock on its file, and nothing that is locked is ever removed.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use longhaul_core::digest::Digest;
use longhaul_core::plan::{LAYER_FORMAT, LayerKind};
use nix::fcntl::{Flock, FlockArg};

use super::manifest::{LayerContent, LayerInput, LayerManifest};
use super::prune::{Bound, Pruned, list, prune, remove};
use crate::base::{BaseError, blocking, copy_synced, digest_file};
use crate::filesystem;

/// Why the layer folder did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system refused.
    #[error("{path}")]
    Io {
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file could not be read or copied.
    #[error(transparent)]
    Copy(#[from] BaseError),
    /// A manifest cannot be understood.
    #[error("{path} is not a manifest of a layer: {message}")]
    Manifest {
        /// The path.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// A layer's bytes are not those that its manifest names.
    #[error("layer {key} is damaged: its file's digest is {found}, {expected} is expected")]
    Damaged {
        /// The layer.
        key: Digest,
        /// What its manifest says.
        expected: Digest,
        /// What its file has.
        found: Digest,
    },
    /// A layer is not there.
    #[error("layer {0} is not in this folder")]
    Missing(Digest),
    /// The node's own disk does not take a copy of a layer.
    #[error("the node's disk takes no copy of a layer: {path}")]
    Node {
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is no room for a layer on the node's own disk.
    #[error("{path} has no room for a copy of layer {key}: {needed} bytes are needed, {free} are free")]
    NoRoom {
        /// The folder.
        path: PathBuf,
        /// The layer.
        key: Digest,
        /// Its size.
        needed: u64,
        /// What is free.
        free: u64,
    },
}

impl StoreError {
    /// Whether the machine's disks are at fault, and not the layer: they are full, a quota is
    /// used up, or the node's own takes nothing.
    #[must_use]
    pub fn is_of_the_disk(&self) -> bool {
        match self {
            Self::Node { .. } | Self::NoRoom { .. } => true,
            Self::Io { source, .. } | Self::Copy(BaseError::Io { source, .. }) => filesystem::is_full(source),
            Self::Copy(_) | Self::Manifest { .. } | Self::Damaged { .. } | Self::Missing(_) => false,
        }
    }
}

pub(super) fn io_error(path: &Path) -> impl FnOnce(io::Error) -> StoreError + use<> {
    let path = path.to_owned();
    move |source| StoreError::Io { path, source }
}

/// A layer folder.
#[derive(Clone, Debug)]
pub struct LayerStore {
    folder: PathBuf,
    /// Where copies are kept, if the folder itself is not on local disk.
    local: Option<PathBuf>,
}

/// A layer that is in use: while this lives, nobody removes it.
#[derive(Debug)]
pub struct LayerGuard {
    /// What is known of it.
    pub manifest: LayerManifest,
    path: Option<PathBuf>,
    _locks: Vec<Flock<File>>,
}

impl LayerGuard {
    /// The layer's file, to be mounted; none for a layer without content.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }
}

/// What `verify` found.
#[derive(Debug)]
pub struct Finding {
    /// The layer.
    pub key: Digest,
    /// What is wrong with it; nothing if it is right.
    pub trouble: Option<StoreError>,
}

impl LayerStore {
    /// Opens a folder, and makes it if it is not there. `local` is a folder on local disk
    /// for copies; none where `folder` is local itself.
    pub fn open(folder: &Path, local: Option<&Path>) -> Result<Self, StoreError> {
        for made in [Some(folder), local].into_iter().flatten() {
            fs::create_dir_all(made).map_err(io_error(made))?;
        }
        Ok(Self { folder: folder.to_owned(), local: local.map(Path::to_owned) })
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn file(folder: &Path, key: &Digest) -> PathBuf {
        folder.join(format!("{key}.sqsh"))
    }

    pub(super) fn manifest_path(folder: &Path, key: &Digest) -> PathBuf {
        folder.join(format!("{key}.json"))
    }

    /// The manifest of a layer, if it is there.
    pub fn find(&self, key: &Digest) -> Result<Option<LayerManifest>, StoreError> {
        read_manifest(&self.folder, key)
    }

    /// Takes a layer into use, if it is there: locked against removal, marked as used now,
    /// and on local disk, checked when it was copied there.
    pub async fn use_layer(&self, key: &Digest) -> Result<Option<LayerGuard>, StoreError> {
        let Some(manifest) = self.find(key)? else { return Ok(None) };
        let LayerContent::File { digest, .. } = manifest.content else {
            return Ok(Some(LayerGuard { manifest, path: None, _locks: Vec::new() }));
        };
        let shared = Self::file(&self.folder, key);
        let Some(lock) = lock_in_use(&shared)? else { return Ok(None) };
        let Some(local) = &self.local else {
            return Ok(Some(LayerGuard { manifest, path: Some(shared), _locks: vec![lock] }));
        };
        let copy = Self::file(local, key);
        let fetched = match (read_manifest(local, key)?, lock_in_use(&copy)?) {
            (Some(known), Some(lock)) if known.content == manifest.content => lock,
            _ => fetch(shared, local, &manifest, digest).await?,
        };
        Ok(Some(LayerGuard { manifest, path: Some(copy), _locks: vec![lock, fetched] }))
    }

    /// Publishes a layer whose content is `file` (removed afterwards), or one without
    /// content. Returns the manifest that is in the folder now: if someone else was
    /// first, it is theirs.
    pub async fn publish(&self, manifest: &LayerManifest, file: Option<&Path>) -> Result<LayerManifest, StoreError> {
        if let Some(first) = self.find(&manifest.key)? {
            return Ok(first);
        }
        let path = Self::file(&self.folder, &manifest.key);
        if let (LayerContent::File { digest, .. }, Some(file)) = (&manifest.content, file) {
            let fresh = fresh_name(&self.folder, &manifest.key);
            let found = copy_synced(file.to_owned(), fresh.clone()).await?;
            if found != *digest {
                fs::remove_file(&fresh).map_err(io_error(&fresh))?;
                return Err(StoreError::Damaged { key: manifest.key, expected: *digest, found });
            }
            // One builder at a time between here and the manifest: bytes and manifest that
            // are found together belong together.
            let lock_path = self.folder.join(".publish.lock");
            let _lock = blocking(move || lock_exclusive(&lock_path)).await.map_err(io_error(&self.folder))?;
            if let Some(first) = self.find(&manifest.key)? {
                fs::remove_file(&fresh).map_err(io_error(&fresh))?;
                return Ok(first);
            }
            fs::rename(&fresh, &path).map_err(io_error(&path))?;
            write_manifest(&self.folder, manifest)?;
            fs::remove_file(file).map_err(io_error(file))?;
        } else {
            write_manifest(&self.folder, manifest)?;
        }
        Ok(manifest.clone())
    }

    /// Every layer, most recently used first.
    pub fn list(&self) -> Result<Vec<(LayerManifest, SystemTime)>, StoreError> {
        list(&self.folder)
    }

    /// Reads every layer's bytes, or those of `keys` alone, and compares them with their manifests.
    pub async fn verify(&self, keys: &[Digest]) -> Result<Vec<Finding>, StoreError> {
        let mut findings = Vec::new();
        for (manifest, _) in self.list()? {
            if keys.is_empty() || keys.contains(&manifest.key) {
                findings.push(Finding { key: manifest.key, trouble: self.check(&manifest).await.err() });
            }
        }
        for key in keys {
            if !findings.iter().any(|finding| finding.key == *key) {
                findings.push(Finding { key: *key, trouble: Some(StoreError::Missing(*key)) });
            }
        }
        Ok(findings)
    }

    async fn check(&self, manifest: &LayerManifest) -> Result<(), StoreError> {
        let LayerContent::File { digest, .. } = manifest.content else { return Ok(()) };
        let found = digest_file(Self::file(&self.folder, &manifest.key)).await?;
        if found == digest { Ok(()) } else { Err(StoreError::Damaged { key: manifest.key, expected: digest, found }) }
    }

    /// Removes a damaged layer, so that it is built again; false if it is in use.
    pub fn remove(&self, key: &Digest) -> Result<bool, StoreError> {
        remove(&self.folder, key)
    }

    /// Removes what was least recently used until `bound` holds; never what is in use, and
    /// nothing that is in `cited`.
    pub fn prune(&self, bound: Bound, cited: &BTreeSet<Digest>) -> Result<Pruned, StoreError> {
        prune(&self.folder, bound, cited)
    }

    /// Which inputs of a wanted layer differ from those of the nearest layer of its env and
    /// kind that is there; nothing if there is none.
    pub fn why(
        &self,
        kind: LayerKind,
        env: &str,
        inputs: &[LayerInput],
    ) -> Result<Option<(LayerManifest, Vec<String>)>, StoreError> {
        Ok(self
            .list()?
            .into_iter()
            .map(|(manifest, _)| manifest)
            .filter(|manifest| manifest.kind == kind && manifest.env == env)
            .map(|manifest| {
                let differing = why(&manifest.inputs, inputs);
                (manifest, differing)
            })
            .min_by_key(|(_, differing)| differing.len()))
    }
}

/// What differs between two lists of inputs, in words: pure.
#[must_use]
pub fn why(have: &[LayerInput], want: &[LayerInput]) -> Vec<String> {
    let find = |list: &[LayerInput], label: &str| {
        list.iter().find(|input| input.label == label).map(|input| input.value.clone())
    };
    let mut differing = Vec::new();
    for input in want {
        match find(have, &input.label) {
            Some(value) if value == input.value => {}
            Some(value) => differing.push(format!("{}: {value} -> {}", input.label, input.value)),
            None => differing.push(format!("{}: new", input.label)),
        }
    }
    for input in have.iter().filter(|input| find(want, &input.label).is_none()) {
        differing.push(format!("{}: gone", input.label));
    }
    differing
}

/// Copies a layer to the node's own disk, checked, in place of copies that are in nobody's use
/// if there is no room beside them.
async fn fetch(
    shared: PathBuf,
    local: &Path,
    manifest: &LayerManifest,
    digest: Digest,
) -> Result<Flock<File>, StoreError> {
    let key = manifest.key;
    let copy = LayerStore::file(local, &key);
    let of_the_node = |path: &Path| {
        let path = path.to_owned();
        move |source| StoreError::Node { path, source }
    };
    make_room(local, &key, manifest.bytes())?;
    let fresh = fresh_name(local, &key);
    let found = copy_synced(shared, fresh.clone()).await.map_err(|error| match error {
        BaseError::Io { path, source } if path == fresh => StoreError::Node { path, source },
        error => error.into(),
    })?;
    if found != digest {
        fs::remove_file(&fresh).map_err(of_the_node(&fresh))?;
        return Err(StoreError::Damaged { key, expected: digest, found });
    }
    fs::rename(&fresh, &copy).map_err(of_the_node(&copy))?;
    write_manifest(local, manifest).map_err(|error| match error {
        StoreError::Io { path, source } => StoreError::Node { path, source },
        error => error,
    })?;
    lock_in_use(&copy)?.ok_or(StoreError::Missing(key))
}

/// Sees to it that a copy of this size has room on the node's disk.
fn make_room(local: &Path, key: &Digest, needed: u64) -> Result<(), StoreError> {
    let free = || filesystem::space(local).map(|space| space.bytes).map_err(io_error(local));
    let missing = needed.saturating_sub(free()?);
    if missing > 0 {
        let total: u64 = list(local)?.iter().map(|(manifest, _)| manifest.bytes()).sum();
        // A copy can be made again; what is cited is kept in the folder that it came from.
        let pruned = prune(local, Bound::Bytes(total.saturating_sub(missing)), &BTreeSet::new())?;
        tracing::info!(removed = pruned.removed.len(), freed = pruned.freed, "copies of layers made room for another");
    }
    let free = free()?;
    if free < needed {
        return Err(StoreError::NoRoom { path: local.to_owned(), key: *key, needed, free });
    }
    Ok(())
}

/// A name beside a layer's own that no other writer uses, in this process or another.
pub(super) fn fresh_name(folder: &Path, key: &Digest) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let host = nix::unistd::gethostname().unwrap_or_default();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    folder.join(format!("{key}.{}.{}.{count}.new", host.to_string_lossy(), std::process::id()))
}

/// Opens a layer's file, marks it as used now and locks it against removal; nothing if it
/// is not there.
pub(super) fn lock_in_use(path: &Path) -> Result<Option<Flock<File>>, StoreError> {
    loop {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_error(path)(error)),
        };
        // A folder that may only be read has no order of use, which is no reason to fail.
        let _ = file.set_modified(SystemTime::now());
        let lock = Flock::lock(file, FlockArg::LockShared).map_err(|(_, error)| io_error(path)(error.into()))?;
        // Removed or replaced between the opening and the lock: another look.
        match (lock.metadata(), fs::metadata(path)) {
            (Ok(held), Ok(named)) if (held.dev(), held.ino()) == (named.dev(), named.ino()) => return Ok(Some(lock)),
            (Err(error), _) => return Err(io_error(path)(error)),
            _ => {}
        }
    }
}

pub(super) fn lock_exclusive(path: &Path) -> io::Result<Flock<File>> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error.into())
}

/// The manifest of a layer that this program can use.
pub(super) fn read_manifest(folder: &Path, key: &Digest) -> Result<Option<LayerManifest>, StoreError> {
    let Some(manifest) = read_any_manifest(folder, key)? else { return Ok(None) };
    if manifest.format != LAYER_FORMAT {
        let message = format!("its format is `{}`, this program's is `{LAYER_FORMAT}`", manifest.format);
        return Err(StoreError::Manifest { path: LayerStore::manifest_path(folder, key), message });
    }
    Ok(Some(manifest))
}

/// The manifest of a layer of any format: what an earlier program left is listed and removed
/// like any other, and never used.
pub(super) fn read_any_manifest(folder: &Path, key: &Digest) -> Result<Option<LayerManifest>, StoreError> {
    let path = LayerStore::manifest_path(folder, key);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_error(&path)(error)),
    };
    let bad = |message: String| StoreError::Manifest { path: path.clone(), message };
    let manifest: LayerManifest = serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
    if manifest.key != *key {
        return Err(bad(format!("it speaks of layer {}", manifest.key)));
    }
    Ok(Some(manifest))
}

pub(super) fn write_manifest(folder: &Path, manifest: &LayerManifest) -> Result<(), StoreError> {
    let path = LayerStore::manifest_path(folder, &manifest.key);
    let write = || -> io::Result<()> {
        let fresh = fresh_name(folder, &manifest.key);
        let mut file = File::create(&fresh)?;
        file.write_all(&serde_json::to_vec_pretty(manifest)?)?;
        file.sync_all()?;
        fs::rename(&fresh, &path)?;
        // The names themselves are durable only when their folder is.
        File::open(folder)?.sync_all()
    };
    write().map_err(io_error(&path))
}

#[cfg(test)]
mod tests;
