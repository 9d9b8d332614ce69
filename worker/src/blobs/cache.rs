//! The node-local cache of blobs and of the folders made of them.
//!
//! Blobs are files named by their digest, and are checked against it at each read: what a
//! disk has spoiled is fetched again. Folders are named by the digest of their tree, made
//! beside and renamed, and never changed after. Several workers of one node share a cache:
//! a folder in use is held by a shared lock on a file beside it, and evicted only under an
//! exclusive one. The least recently used goes first.

use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use longhaul_core::digest::Digest;

use super::BlobError;

/// The cache of one scratch folder.
#[derive(Clone, Debug)]
pub struct BlobCache {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    blobs: PathBuf,
    trees: PathBuf,
    /// Where files are written before they are renamed: this worker's own, same filesystem.
    staging: PathBuf,
    limit: u64,
    /// What blobs and folders take, as far as this worker knows.
    used: AtomicU64,
    serial: AtomicU64,
}

/// A folder made of a tree; it is not evicted while this lives.
#[derive(Clone, Debug)]
pub struct HeldTree {
    path: PathBuf,
    // Held for its shared lock, which ends with the last clone.
    _lock: Arc<File>,
}

impl HeldTree {
    /// The folder; nothing may be written to it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// One evictable thing.
struct Item {
    used_at: SystemTime,
    bytes: u64,
    kind: ItemKind,
}

enum ItemKind {
    Blob(PathBuf),
    Tree(Digest),
}

impl BlobCache {
    /// Opens the cache below `root`, with at most `limit` bytes, staging in `staging`.
    ///
    /// # Errors
    ///
    /// A folder cannot be made or read.
    pub fn open(root: &Path, staging: &Path, limit: u64) -> Result<Self, BlobError> {
        let inner = Inner {
            blobs: root.join("blobs"),
            trees: root.join("trees"),
            staging: staging.to_owned(),
            limit,
            used: AtomicU64::new(0),
            serial: AtomicU64::new(0),
        };
        for folder in [&inner.blobs, &inner.trees, &inner.staging] {
            fs::create_dir_all(folder).map_err(BlobError::file("create", folder))?;
        }
        let cache = Self { inner: Arc::new(inner) };
        let used = cache.items()?.iter().map(|item| item.bytes).sum();
        cache.inner.used.store(used, Ordering::Relaxed);
        Ok(cache)
    }

    /// The blob, if it is here and whole.
    ///
    /// # Errors
    ///
    /// The file is there and cannot be read.
    pub fn read(&self, digest: &Digest) -> Result<Option<Vec<u8>>, BlobError> {
        let path = self.blob_path(digest);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(BlobError::file("read", path)(error)),
        };
        if Digest::of(&bytes) != *digest {
            tracing::warn!(path = %path.display(), "a cached blob was spoiled; it is fetched again");
            remove_if_there(&path)?;
            return Ok(None);
        }
        touch(&path);
        Ok(Some(bytes))
    }

    /// Keeps a blob.
    ///
    /// # Errors
    ///
    /// The bytes are not of that digest, or a file cannot be written.
    pub fn write(&self, digest: &Digest, bytes: &[u8]) -> Result<(), BlobError> {
        if Digest::of(bytes) != *digest {
            return Err(BlobError::Corrupt { digest: *digest });
        }
        let path = self.blob_path(digest);
        if path.exists() {
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(BlobError::file("create", parent))?;
        }
        let staged = self.staged();
        let written = File::create_new(&staged).and_then(|mut file| file.write_all(bytes));
        if let Err(error) = written {
            remove_if_there(&staged)?;
            return Err(BlobError::file("write", staged)(error));
        }
        fs::rename(&staged, &path).map_err(BlobError::file("rename into place", &path))?;
        self.grown(bytes.len() as u64)
    }

    /// The folder of a tree, held, if it is here.
    ///
    /// # Errors
    ///
    /// Its lock cannot be taken.
    pub fn hold_tree(&self, digest: &Digest) -> Result<Option<HeldTree>, BlobError> {
        let lock = self.lock_tree(digest)?;
        let path = self.tree_path(digest);
        if !path.is_dir() {
            return Ok(None);
        }
        touch(&self.tree_lock_path(digest));
        Ok(Some(HeldTree { path, _lock: Arc::new(lock) }))
    }

    /// A fresh folder for a tree that is being made.
    ///
    /// # Errors
    ///
    /// It cannot be made.
    pub fn stage_tree(&self) -> Result<PathBuf, BlobError> {
        let staged = self.staged();
        fs::create_dir(&staged).map_err(BlobError::file("create", &staged))?;
        Ok(staged)
    }

    /// Publishes a folder that was made whole, and holds it. Who comes second keeps the first one's.
    ///
    /// # Errors
    ///
    /// It cannot be renamed, or its lock not be taken.
    pub fn publish_tree(&self, digest: &Digest, staged: &Path, bytes: u64) -> Result<HeldTree, BlobError> {
        let lock = self.lock_tree(digest)?;
        let path = self.tree_path(digest);
        match fs::rename(staged, &path) {
            Ok(()) => self.grown(bytes)?,
            Err(_) if path.is_dir() => {
                fs::remove_dir_all(staged).map_err(BlobError::file("remove", staged))?;
            }
            Err(error) => return Err(BlobError::file("rename into place", path)(error)),
        }
        touch(&self.tree_lock_path(digest));
        Ok(HeldTree { path, _lock: Arc::new(lock) })
    }

    /// Removes the least recently used until at most `limit` bytes are left, or only what is in use.
    ///
    /// # Errors
    ///
    /// A folder cannot be read, or a file not be removed.
    pub fn evict(&self, limit: u64) -> Result<(), BlobError> {
        let mut items = self.items()?;
        let mut used: u64 = items.iter().map(|item| item.bytes).sum();
        items.sort_by_key(|item| item.used_at);
        for item in items {
            if used <= limit {
                break;
            }
            let gone = match item.kind {
                ItemKind::Blob(path) => {
                    remove_if_there(&path)?;
                    true
                }
                ItemKind::Tree(digest) => self.evict_tree(&digest)?,
            };
            if gone {
                used = used.saturating_sub(item.bytes);
            }
        }
        self.inner.used.store(used, Ordering::Relaxed);
        Ok(())
    }

    fn evict_tree(&self, digest: &Digest) -> Result<bool, BlobError> {
        let lock_path = self.tree_lock_path(digest);
        let lock = open_lock(&lock_path)?;
        if lock.try_lock().is_err() {
            return Ok(false);
        }
        // Out of the way in one step, so that nobody ever sees half of it.
        let staged = self.staged();
        match fs::rename(self.tree_path(digest), &staged) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
            Err(error) => return Err(BlobError::file("evict", self.tree_path(digest))(error)),
        }
        drop(lock);
        fs::remove_dir_all(&staged).map_err(BlobError::file("remove", &staged))?;
        Ok(true)
    }

    fn items(&self) -> Result<Vec<Item>, BlobError> {
        let mut items = Vec::new();
        for shard in list(&self.inner.blobs)? {
            for path in list(&shard)? {
                if let Ok(meta) = path.metadata() {
                    let used_at = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                    items.push(Item { used_at, bytes: meta.len(), kind: ItemKind::Blob(path) });
                }
            }
        }
        for path in list(&self.inner.trees)? {
            let Some(digest) = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.parse().ok())
            else {
                continue;
            };
            let lock = self.tree_lock_path(&digest);
            let used_at = lock.metadata().and_then(|meta| meta.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
            items.push(Item { used_at, bytes: folder_bytes(&path), kind: ItemKind::Tree(digest) });
        }
        Ok(items)
    }

    /// Counts what was added; over the limit, a tenth more than needed is evicted, so that
    /// not every further write walks the cache.
    fn grown(&self, bytes: u64) -> Result<(), BlobError> {
        let used = self.inner.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if used > self.inner.limit { self.evict(self.inner.limit / 10 * 9) } else { Ok(()) }
    }

    fn lock_tree(&self, digest: &Digest) -> Result<File, BlobError> {
        let path = self.tree_lock_path(digest);
        let lock = open_lock(&path)?;
        lock.lock_shared().map_err(BlobError::file("lock", path))?;
        Ok(lock)
    }

    fn blob_path(&self, digest: &Digest) -> PathBuf {
        let name = digest.to_string();
        let shard: String = name.chars().take(2).collect();
        self.inner.blobs.join(shard).join(name)
    }

    fn tree_path(&self, digest: &Digest) -> PathBuf {
        self.inner.trees.join(digest.to_string())
    }

    fn tree_lock_path(&self, digest: &Digest) -> PathBuf {
        self.inner.trees.join(format!("{digest}.lock"))
    }

    fn staged(&self) -> PathBuf {
        self.inner.staging.join(self.inner.serial.fetch_add(1, Ordering::Relaxed).to_string())
    }
}

fn open_lock(path: &Path) -> Result<File, BlobError> {
    OpenOptions::new().create(true).truncate(false).write(true).open(path).map_err(BlobError::file("open", path))
}

fn list(folder: &Path) -> Result<Vec<PathBuf>, BlobError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(BlobError::file("list", folder)(error)),
    };
    entries.map(|entry| entry.map(|entry| entry.path()).map_err(BlobError::file("list", folder))).collect()
}

/// What a folder's files take; links are not followed.
fn folder_bytes(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => folder_bytes(&entry.path()),
            Ok(kind) if kind.is_file() => entry.metadata().map_or(0, |meta| meta.len()),
            _ => 0,
        })
        .sum()
}

fn remove_if_there(path: &Path) -> Result<(), BlobError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(BlobError::file("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Notes that the file was used. A failure costs only its place in the order of eviction.
fn touch(path: &Path) {
    let times = FileTimes::new().set_modified(SystemTime::now());
    let touched = OpenOptions::new().write(true).open(path).and_then(|file| file.set_times(times));
    if let Err(error) = touched {
        tracing::debug!(path = %path.display(), %error, "the use of a cached file is not noted");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn cache(limit: u64) -> (tempfile::TempDir, BlobCache) {
        let folder = tempfile::tempdir().unwrap();
        let cache = BlobCache::open(&folder.path().join("cache"), &folder.path().join("staging"), limit).unwrap();
        (folder, cache)
    }

    fn age(path: &Path, secs: u64) {
        let file = OpenOptions::new().write(true).open(path).unwrap();
        file.set_times(FileTimes::new().set_modified(SystemTime::now() - Duration::from_secs(secs))).unwrap();
    }

    #[test]
    fn a_spoiled_blob_is_not_given_out_and_can_be_written_again() {
        let (_folder, cache) = cache(1000);
        let digest = Digest::of(b"one");
        cache.write(&digest, b"one").unwrap();
        assert_eq!(cache.read(&digest).unwrap().as_deref(), Some(&b"one"[..]));
        fs::write(cache.blob_path(&digest), b"0ne").unwrap();
        assert_eq!(cache.read(&digest).unwrap(), None);
        cache.write(&digest, b"one").unwrap();
        assert_eq!(cache.read(&digest).unwrap().as_deref(), Some(&b"one"[..]));
    }

    #[test]
    fn bytes_of_another_digest_are_not_kept() {
        let (_folder, cache) = cache(1000);
        let digest = Digest::of(b"one");
        assert!(matches!(cache.write(&digest, b"two"), Err(BlobError::Corrupt { .. })));
        assert_eq!(cache.read(&digest).unwrap(), None);
    }

    #[test]
    fn the_least_recently_used_goes_first_and_what_was_read_stays() {
        let (_folder, cache) = cache(100);
        let blobs: Vec<(Digest, Vec<u8>)> =
            (0_u8..4).map(|n| vec![n; 30]).map(|bytes| (Digest::of(&bytes), bytes)).collect();
        for (index, (digest, bytes)) in blobs.iter().take(3).enumerate() {
            cache.write(digest, bytes).unwrap();
            age(&cache.blob_path(digest), 100 - index as u64);
        }
        cache.read(&blobs[0].0).unwrap();
        cache.write(&blobs[3].0, &blobs[3].1).unwrap();
        let there: Vec<bool> = blobs.iter().map(|(digest, _)| cache.blob_path(digest).exists()).collect();
        assert_eq!(there, [true, false, true, true]);
    }

    #[test]
    fn a_folder_in_use_is_not_evicted() {
        let (_folder, cache) = cache(u64::MAX);
        let digest = Digest::of(b"tree");
        let staged = cache.stage_tree().unwrap();
        fs::write(staged.join("file"), [0; 50]).unwrap();
        let held = cache.publish_tree(&digest, &staged, 50).unwrap();
        cache.evict(0).unwrap();
        assert!(held.path().join("file").exists());
        drop(held);
        cache.evict(0).unwrap();
        assert!(cache.hold_tree(&digest).unwrap().is_none());
    }

    #[test]
    fn who_publishes_second_gets_the_first_ones_folder() {
        let (_folder, cache) = cache(u64::MAX);
        let digest = Digest::of(b"tree");
        for content in ["first", "second"] {
            let staged = cache.stage_tree().unwrap();
            fs::write(staged.join("file"), content).unwrap();
            let held = cache.publish_tree(&digest, &staged, 5).unwrap();
            assert_eq!(fs::read_to_string(held.path().join("file")).unwrap(), "first");
            assert!(!staged.exists());
        }
    }
}
