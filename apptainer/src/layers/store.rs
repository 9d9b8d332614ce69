//! The layer folder: `KEY.sqsh` and `KEY.json`, which many workers and coordinators may
//! share.
//!
//! A layer is written beside its place, synced and renamed, its manifest last: what has a
//! manifest is whole. Of two that publish the same key the first one stays. Whoever uses
//! a layer holds a shared lock on its file, and nothing that is locked is ever removed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use longhaul_core::digest::Digest;
use longhaul_core::plan::{LAYER_FORMAT, LayerKind};
use nix::fcntl::{Flock, FlockArg};

use super::manifest::{LayerContent, LayerInput, LayerManifest};
use crate::base::{BaseError, blocking, copy_synced, digest_file};

/// How old a half-written file is when its writer is taken for dead.
const UNFINISHED: Duration = Duration::from_secs(24 * 3600);

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
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> StoreError + use<> {
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

    fn file(folder: &Path, key: &Digest) -> PathBuf {
        folder.join(format!("{key}.sqsh"))
    }

    fn manifest_path(folder: &Path, key: &Digest) -> PathBuf {
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
            _ => {
                let fresh = fresh_name(local, key);
                let found = copy_synced(shared, fresh.clone()).await?;
                if found != digest {
                    fs::remove_file(&fresh).map_err(io_error(&fresh))?;
                    return Err(StoreError::Damaged { key: *key, expected: digest, found });
                }
                fs::rename(&fresh, &copy).map_err(io_error(&copy))?;
                write_manifest(local, &manifest)?;
                lock_in_use(&copy)?.ok_or(StoreError::Missing(*key))?
            }
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

    /// Removes what was least recently used until `bound` holds; never what is in use.
    pub fn prune(&self, bound: Bound) -> Result<Pruned, StoreError> {
        prune(&self.folder, bound)
    }

    /// The same for the copies on local disk, where there are some.
    pub fn prune_copies(&self, bound: Bound) -> Result<Pruned, StoreError> {
        self.local.as_deref().map_or_else(|| Ok(Pruned::default()), |local| prune(local, bound))
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

/// A name beside a layer's own that no other writer uses, in this process or another.
fn fresh_name(folder: &Path, key: &Digest) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let host = nix::unistd::gethostname().unwrap_or_default();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    folder.join(format!("{key}.{}.{}.{count}.new", host.to_string_lossy(), std::process::id()))
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

/// Opens a layer's file, marks it as used now and locks it against removal; nothing if it
/// is not there.
fn lock_in_use(path: &Path) -> Result<Option<Flock<File>>, StoreError> {
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

fn lock_exclusive(path: &Path) -> io::Result<Flock<File>> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error.into())
}

fn read_manifest(folder: &Path, key: &Digest) -> Result<Option<LayerManifest>, StoreError> {
    let path = LayerStore::manifest_path(folder, key);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_error(&path)(error)),
    };
    let bad = |message: String| StoreError::Manifest { path: path.clone(), message };
    let manifest: LayerManifest = serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
    if manifest.format != LAYER_FORMAT {
        return Err(bad(format!("its format is `{}`, this program's is `{LAYER_FORMAT}`", manifest.format)));
    }
    if manifest.key != *key {
        return Err(bad(format!("it speaks of layer {}", manifest.key)));
    }
    Ok(Some(manifest))
}

fn write_manifest(folder: &Path, manifest: &LayerManifest) -> Result<(), StoreError> {
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

fn list(folder: &Path) -> Result<Vec<(LayerManifest, SystemTime)>, StoreError> {
    let mut layers = Vec::new();
    for entry in fs::read_dir(folder).map_err(io_error(folder))? {
        let name = entry.map_err(io_error(folder))?.file_name();
        let key = name.to_str().and_then(|name| name.strip_suffix(".json")).and_then(|key| key.parse::<Digest>().ok());
        let Some(key) = key else { continue };
        let Some(manifest) = read_manifest(folder, &key)? else { continue };
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

fn prune(folder: &Path, bound: Bound) -> Result<Pruned, StoreError> {
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
        if remove(folder, &manifest.key)? {
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
fn remove(folder: &Path, key: &Digest) -> Result<bool, StoreError> {
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

#[cfg(test)]
mod tests {
    use longhaul_core::time::Timestamp;

    use super::*;

    fn manifest(name: &str, content: &[u8]) -> LayerManifest {
        LayerManifest {
            format: LAYER_FORMAT.to_owned(),
            key: Digest::of(name.as_bytes()),
            kind: LayerKind::Install,
            env: "thing_env".to_owned(),
            content: LayerContent::File {
                digest: Digest::of(content),
                bytes: u64::try_from(content.len()).expect("small"),
            },
            parents: Vec::new(),
            arch: "x86_64".to_owned(),
            overlay_driver: "fuse-overlayfs".to_owned(),
            tolerated: None,
            units: Vec::new(),
            inputs: vec![LayerInput { label: "hook".into(), value: name.into() }],
            hook_millis: 0,
            created: Timestamp(0),
        }
    }

    /// A store with the layers `names`, each of 100 bytes, the first one least recently used.
    async fn store(root: &Path, names: &[&str]) -> LayerStore {
        let store = LayerStore::open(&root.join("layers"), None).expect("opens");
        for (age, name) in (0_u64..).zip(names.iter().rev()) {
            let file = root.join("made");
            fs::write(&file, [b'x'; 100]).expect("writes");
            store.publish(&manifest(name, &[b'x'; 100]), Some(&file)).await.expect("publishes");
            let path = LayerStore::file(store.folder(), &Digest::of(name.as_bytes()));
            let then = SystemTime::now() - Duration::from_secs(3600 * (age + 1));
            File::open(path).and_then(|file| file.set_modified(then)).expect("sets");
        }
        store
    }

    fn key(name: &str) -> Digest {
        Digest::of(name.as_bytes())
    }

    #[tokio::test]
    async fn of_two_builders_the_first_one_stays() {
        let root = tempfile::tempdir().expect("folder");
        let store = store(root.path(), &["a"]).await;
        let file = root.path().join("later");
        fs::write(&file, "other bytes").expect("writes");
        let kept = store.publish(&manifest("a", b"other bytes"), Some(&file)).await.expect("publishes");
        assert_eq!(kept, manifest("a", &[b'x'; 100]));
        assert!(store.verify(&[]).await.expect("reads").iter().all(|finding| finding.trouble.is_none()));
    }

    #[tokio::test]
    async fn a_layer_that_is_not_what_it_says_is_not_published() {
        let root = tempfile::tempdir().expect("folder");
        let store = LayerStore::open(&root.path().join("layers"), None).expect("opens");
        let file = root.path().join("made");
        fs::write(&file, "torn").expect("writes");
        let refused = store.publish(&manifest("a", b"whole"), Some(&file)).await;
        assert!(matches!(refused, Err(StoreError::Damaged { .. })));
        assert_eq!(store.find(&key("a")).expect("looks"), None);
        assert_eq!(fs::read_dir(store.folder()).expect("lists").count(), 0, "nothing is left behind");
    }

    #[tokio::test]
    async fn damage_is_found() {
        let root = tempfile::tempdir().expect("folder");
        let store = store(root.path(), &["a", "b"]).await;
        let mut bytes = [b'x'; 100];
        bytes[57] ^= 1;
        fs::write(LayerStore::file(store.folder(), &key("b")), bytes).expect("writes");
        let findings = store.verify(&[]).await.expect("reads");
        let bad: Vec<_> =
            findings.iter().filter(|finding| finding.trouble.is_some()).map(|finding| finding.key).collect();
        assert_eq!(bad, [key("b")]);
        let missing = store.verify(&[key("c")]).await.expect("reads");
        assert!(matches!(missing.first().and_then(|finding| finding.trouble.as_ref()), Some(StoreError::Missing(_))));
    }

    #[tokio::test]
    async fn the_least_recently_used_goes_but_never_what_is_in_use() {
        let root = tempfile::tempdir().expect("folder");
        let store = store(root.path(), &["a", "b", "c"]).await;
        let guard = store.use_layer(&key("a")).await.expect("reads").expect("is there");
        // Using it made it the most recent; age it again to see the lock alone protect it.
        let file = LayerStore::file(store.folder(), &key("a"));
        File::open(&file).and_then(|file| file.set_modified(SystemTime::UNIX_EPOCH)).expect("sets");
        let pruned = store.prune(Bound::Bytes(150)).expect("prunes");
        assert_eq!((pruned.removed, pruned.in_use, pruned.freed), (vec![key("b"), key("c")], vec![key("a")], 200));
        assert!(guard.path().is_some_and(Path::exists));
        drop(guard);
        assert_eq!(store.prune(Bound::UsedSince(SystemTime::now())).expect("prunes").removed, [key("a")]);
        assert_eq!(
            fs::read_dir(store.folder())
                .expect("lists")
                .filter(|entry| {
                    entry.as_ref().is_ok_and(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
                })
                .count(),
            0
        );
    }

    #[tokio::test]
    async fn a_copy_is_made_on_local_disk_once_and_checked() {
        let root = tempfile::tempdir().expect("folder");
        let shared = store(root.path(), &["a", "b"]).await;
        let local = root.path().join("local");
        let store = LayerStore::open(shared.folder(), Some(&local)).expect("opens");
        let guard = store.use_layer(&key("a")).await.expect("reads").expect("is there");
        assert_eq!(guard.path(), Some(LayerStore::file(&local, &key("a")).as_path()));
        fs::write(LayerStore::file(shared.folder(), &key("b")), [b'y'; 100]).expect("writes");
        assert!(matches!(store.use_layer(&key("b")).await, Err(StoreError::Damaged { .. })));
        assert!(!LayerStore::file(&local, &key("b")).exists());
        assert!(store.use_layer(&key("c")).await.expect("reads").is_none());
        assert!(!shared.remove(&key("a")).expect("looks"), "the shared one is in use too");
    }

    #[tokio::test]
    async fn what_differs_is_named() {
        let root = tempfile::tempdir().expect("folder");
        let store = store(root.path(), &["a"]).await;
        let want = [
            LayerInput { label: "hook".into(), value: "z".into() },
            LayerInput { label: "net".into(), value: "yes".into() },
        ];
        let (nearest, differing) = store.why(LayerKind::Install, "thing_env", &want).expect("reads").expect("is one");
        assert_eq!(nearest.key, key("a"));
        assert_eq!(differing, ["hook: a -> z", "net: new"]);
        assert!(store.why(LayerKind::Configure, "thing_env", &want).expect("reads").is_none());
    }

    #[test]
    fn what_a_killed_writer_left_goes_in_the_end() {
        let root = tempfile::tempdir().expect("folder");
        let (old, young) = (fresh_name(root.path(), &key("a")), fresh_name(root.path(), &key("a")));
        assert_ne!(old, young);
        for path in [&old, &young] {
            fs::write(path, "half").expect("writes");
        }
        File::open(&old).and_then(|file| file.set_modified(SystemTime::UNIX_EPOCH)).expect("sets");
        prune(root.path(), Bound::Bytes(0)).expect("prunes");
        assert!(!old.exists() && young.exists());
    }

    #[test]
    fn a_manifest_of_another_format_is_refused() {
        let root = tempfile::tempdir().expect("folder");
        let store = LayerStore::open(root.path(), None).expect("opens");
        let other = LayerManifest { format: "longhaul-layer-0".into(), ..manifest("a", b"x") };
        write_manifest(root.path(), &other).expect("writes");
        assert!(matches!(store.find(&key("a")), Err(StoreError::Manifest { .. })));
    }
}
