//! Digesting and copying files as large as images and layers.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use longhaul_core::digest::Digest;

use super::{BaseError, io_error};

/// Runs file work that takes long outside of the runtime's own threads.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// The digest of a file.
pub(crate) async fn digest_file(path: PathBuf) -> Result<Digest, BaseError> {
    let fail = io_error(&path);
    blocking(move || {
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(File::open(&path)?)?;
        Ok(Digest::from_bytes(*hasher.finalize().as_bytes()))
    })
    .await
    .map_err(fail)
}

/// Copies a file and syncs the copy; returns the digest of what was written. A copy that
/// cannot be finished is removed: on a full disk it would hold what room is left.
pub(crate) async fn copy_synced(from: PathBuf, to: PathBuf) -> Result<Digest, BaseError> {
    let (source_failed, target_failed) = (io_error(&from), io_error(&to));
    let copied = blocking(move || {
        let mut source = match File::open(&from) {
            Ok(source) => source,
            Err(error) => return Ok(Err(CopyError::Read(error))),
        };
        Ok(copy_stream(&mut source, &to))
    })
    .await;
    match copied {
        Ok(Ok((digest, _))) => Ok(digest),
        Ok(Err(CopyError::Read(error))) => Err(source_failed(error)),
        Ok(Err(CopyError::Write(error))) | Err(error) => Err(target_failed(error)),
    }
}

/// On which side a copy failed.
#[derive(Debug)]
pub(crate) enum CopyError {
    /// Where it comes from.
    Read(io::Error),
    /// Where it goes to.
    Write(io::Error),
}

/// Copies a stream into a file and syncs it; returns the digest and the size of what was
/// written. What cannot be finished is removed.
pub(crate) fn copy_stream(source: &mut dyn io::Read, to: &Path) -> Result<(Digest, u64), CopyError> {
    let copied = write_stream(source, to);
    if copied.is_err() {
        // It may not even have been made.
        let _ = fs::remove_file(to);
    }
    copied
}

fn write_stream(source: &mut dyn io::Read, to: &Path) -> Result<(Digest, u64), CopyError> {
    let mut target =
        OpenOptions::new().create(true).write(true).truncate(true).mode(0o644).open(to).map_err(CopyError::Write)?;
    let mut hasher = blake3::Hasher::new();
    let mut size = 0;
    let mut piece = vec![0; 1024 * 1024];
    loop {
        let count = match source.read(&mut piece) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(CopyError::Read(error)),
        };
        if count == 0 {
            break;
        }
        let bytes = piece.get(..count).unwrap_or_default();
        hasher.update(bytes);
        size += u64::try_from(count).unwrap_or(u64::MAX);
        target.write_all(bytes).map_err(CopyError::Write)?;
    }
    target.sync_all().map_err(CopyError::Write)?;
    Ok((Digest::from_bytes(*hasher.finalize().as_bytes()), size))
}
