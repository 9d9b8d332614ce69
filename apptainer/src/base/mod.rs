//! Base images: what every env stands on.
//!
//! The built-in definitions are Debian 12 and Ubuntu 22.04 with a desktop (`apptainer/base/`),
//! made without root and without a container registry: mmdebstrap in a user namespace, then
//! `apptainer build`. An image is named by the digest of its definition, made once however many
//! processes ask for it, and published whole or not at all. Certificates that are to be trusted
//! are added to an image of whatever origin, which makes another one.

mod build;
mod certificates;
mod definition;
mod files;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use longhaul_core::digest::Digest;
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

pub use certificates::{CertificateError, Certificates};
pub use definition::{BaseDefinition, BaseSource, UBUNTU_ARCHIVE};
pub(crate) use files::{CopyError, blocking, copy_stream, copy_synced, digest_file};

use crate::janitor;
use crate::program::Apptainer;
use crate::scratch::{BASE_PREFIX, Scratch, ScratchError};

/// The architecture of this program, as layers and images name it.
pub const ARCH: &str = std::env::consts::ARCH;

/// A base image that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseImage {
    /// Its file.
    pub path: PathBuf,
    /// The digest of its file: the parent of every layer over it.
    pub content: Digest,
    /// Whether this call built it.
    pub built: bool,
}

/// What is kept beside an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ImageManifest {
    content: Digest,
    bytes: u64,
    /// The file's modification time when it was digested, in nanoseconds.
    modified: i128,
}

/// Why there is no base image.
#[derive(Debug, thiserror::Error)]
pub enum BaseError {
    /// The file system refused.
    #[error("{path}")]
    Io {
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The image that was named is not there.
    #[error("the base image {0} is not there: an image is `debian-12`, `ubuntu-22.04`, a .sif file, or `docker://...`")]
    Missing(PathBuf),
    /// A program that builds it is not there.
    #[error(
        "`{0}` is not on the PATH: the built-in base image cannot be built here; install it, or name a ready image"
    )]
    NoProgram(&'static str),
    /// Where its packages come from cannot be reached, or is no such archive.
    #[error("{archive} cannot be reached from here, or has no such release; the end of {log} says: {tail}")]
    Unreachable {
        /// The archive, as a person would call it.
        archive: String,
        /// The whole log.
        log: PathBuf,
        /// The end of it.
        tail: String,
    },
    /// The folder that it is built in cannot be used.
    #[error(transparent)]
    Scratch(#[from] Box<ScratchError>),
    /// A program that builds it did not come to an end.
    #[error("`{program}` took longer than {} s and was ended; its log is {log}", limit.as_secs())]
    TimeLimit {
        /// The program.
        program: &'static str,
        /// How long it may take.
        limit: Duration,
        /// Its whole log.
        log: PathBuf,
    },
    /// A program that builds it failed.
    #[error("`{program}` failed ({how}); the end of {log} says: {tail}")]
    Failed {
        /// The program.
        program: &'static str,
        /// How it ended.
        how: String,
        /// Its whole log.
        log: PathBuf,
        /// The end of it.
        tail: String,
    },
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> BaseError + use<> {
    let path = path.to_owned();
    move |source| BaseError::Io { path, source }
}

/// What an image is made of.
enum Recipe<'a> {
    /// What its source says.
    Source(&'a BaseSource),
    /// Another image, and certificates that are to be trusted in it.
    Trusting(&'a Path, &'a Certificates),
}

/// Returns the image of `definition`, and builds it first if it is not in `images` yet.
/// Of several that ask at once, one builds; `work` is a folder on local disk with some
/// gigabytes of room.
///
/// # Errors
///
/// It is not there and cannot be made.
pub async fn ensure(
    apptainer: &Apptainer,
    definition: &BaseDefinition,
    images: &Path,
    work: &Path,
) -> Result<BaseImage, BaseError> {
    fs::create_dir_all(images).map_err(io_error(images))?;
    let BaseDefinition { source, certificates } = definition;
    let image = match (source, source.key()) {
        (BaseSource::Sif(path), _) => ready_file(path, images).await?,
        (source, Some(key)) => made(apptainer, Recipe::Source(source), key, images, work).await?,
        (_, None) => return Err(BaseError::Missing(images.to_owned())),
    };
    if certificates.is_empty() {
        return Ok(image);
    }
    let key = definition::trusting_key(&image.content, certificates);
    made(apptainer, Recipe::Trusting(&image.path, certificates), key, images, work).await
}

/// The image of this name; made if it is not in `images`.
async fn made(
    apptainer: &Apptainer,
    recipe: Recipe<'_>,
    key: Digest,
    images: &Path,
    work: &Path,
) -> Result<BaseImage, BaseError> {
    let path = images.join(format!("{key}.sif"));
    let manifest_path = images.join(format!("{key}.json"));
    if let Some(manifest) = read_manifest(&manifest_path, &path)? {
        return Ok(BaseImage { path, content: manifest.content, built: false });
    }
    let _lock = lock(images.join(format!("{key}.lock"))).await?;
    if let Some(manifest) = read_manifest(&manifest_path, &path)? {
        return Ok(BaseImage { path, content: manifest.content, built: false });
    }
    clear_unfinished(images, &key);
    fs::create_dir_all(work).map_err(io_error(work))?;
    // mmdebstrap's root is another id than ours outside, and has to pass through.
    let passable = fs::Permissions::from_mode(0o711);
    clear_abandoned(apptainer, work).await;
    let make = || tempfile::Builder::new().prefix(BASE_PREFIX).permissions(passable).tempdir_in(work);
    let (folder, mut scratch) = Scratch::hold(work, make).map_err(Box::new)?;
    let image = match recipe {
        Recipe::Source(source) => build::source(apptainer, source, &mut scratch).await?,
        Recipe::Trusting(image, certificates) => build::trusting(apptainer, image, certificates, &mut scratch).await?,
    };
    // Beside its place first, whole and synced; the manifest last: what is found is right.
    let fresh = images.join(format!("{key}.{}.new", std::process::id()));
    let content = copy_synced(image, fresh.clone()).await?;
    fs::rename(&fresh, &path).map_err(io_error(&path))?;
    write_manifest(&manifest_path, &path, content)?;
    // It said nothing that is of use to anybody any more.
    let log = build::log_of(folder.path());
    fs::remove_file(&log).map_err(io_error(&log))?;
    Ok(BaseImage { path, content, built: true })
}

/// Removes what was to become this image when its builder was killed: whoever has its lock is the only
/// one who makes it.
fn clear_unfinished(images: &Path, key: &Digest) {
    for entry in fs::read_dir(images).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let of_pid = name.strip_prefix(&format!("{key}.")).and_then(|name| name.strip_suffix(".new"));
        if of_pid.is_some_and(|pid| pid.parse::<u32>().is_ok()) {
            // It takes room, and is no reason not to build.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Removes what builders that were killed left: gigabytes, in folders whose lock is free.
async fn clear_abandoned(apptainer: &Apptainer, work: &Path) {
    // What cannot be removed is no reason not to build.
    match janitor::clean(apptainer, None, work).await {
        Ok(cleared) => {
            for (folder, reason) in cleared.failed {
                tracing::warn!(folder = %folder.display(), reason, "an abandoned folder was not removed");
            }
        }
        Err(error) => tracing::warn!(work = %work.display(), %error, "abandoned builds were not looked for"),
    }
}

/// A file that is there: only its digest is wanted, kept for as long as it is unchanged.
async fn ready_file(path: &Path, images: &Path) -> Result<BaseImage, BaseError> {
    let path = fs::canonicalize(path).map_err(|_| BaseError::Missing(path.to_owned()))?;
    let name = Digest::of(path.as_os_str().as_encoded_bytes()).short();
    let manifest_path = images.join(format!("file-{name}.json"));
    if let Some(manifest) = read_manifest(&manifest_path, &path)? {
        return Ok(BaseImage { path, content: manifest.content, built: false });
    }
    let content = digest_file(path.clone()).await?;
    write_manifest(&manifest_path, &path, content)?;
    Ok(BaseImage { path, content, built: false })
}

/// The image in a folder of images that has this content, with its definition's key if it is
/// named by one; none if there is none.
///
/// # Errors
///
/// The folder cannot be read.
pub fn find(images: &Path, content: &Digest) -> Result<Option<(PathBuf, Option<Digest>)>, BaseError> {
    let entries = match fs::read_dir(images) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_error(images)(error)),
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let key = name.to_str().and_then(|name| name.strip_suffix(".json")?.parse::<Digest>().ok());
        let Some(key) = key else { continue };
        let image = images.join(format!("{key}.sif"));
        if read_manifest(&entry.path(), &image)?.is_some_and(|known| known.content == *content) {
            return Ok(Some((image, Some(key).filter(|key| key != content))));
        }
    }
    Ok(None)
}

/// The content of the image that a folder of images has under a name, if it has one.
pub(crate) fn content_of(images: &Path, name: &Digest) -> Result<Option<Digest>, BaseError> {
    let known = read_manifest(&images.join(format!("{name}.json")), &images.join(format!("{name}.sif")))?;
    Ok(known.map(|known| known.content))
}

/// Gives an image that was made elsewhere, is whole and lies beside its place as `fresh` its
/// name in a folder of images, its manifest last. One that has the name already stays.
pub(crate) fn adopt(images: &Path, name: &Digest, content: Digest, fresh: &Path) -> Result<PathBuf, BaseError> {
    let path = images.join(format!("{name}.sif"));
    let lock_path = images.join(format!("{name}.lock"));
    let lock = || -> io::Result<Flock<File>> {
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o644).open(&lock_path)?;
        Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error.into())
    };
    let _lock = lock().map_err(io_error(&lock_path))?;
    if content_of(images, name)?.is_some() {
        fs::remove_file(fresh).map_err(io_error(fresh))?;
        return Ok(path);
    }
    fs::rename(fresh, &path).map_err(io_error(&path))?;
    write_manifest(&images.join(format!("{name}.json")), &path, content)?;
    Ok(path)
}

fn modified(metadata: &fs::Metadata) -> i128 {
    i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec())
}

/// The manifest of an image, if it is there and the image is as it was then.
fn read_manifest(manifest: &Path, image: &Path) -> Result<Option<ImageManifest>, BaseError> {
    let bytes = match fs::read(manifest) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_error(manifest)(error)),
    };
    let metadata = match fs::metadata(image) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_error(image)(error)),
    };
    let known: Option<ImageManifest> = serde_json::from_slice(&bytes).ok();
    Ok(known.filter(|known| known.bytes == metadata.len() && known.modified == modified(&metadata)))
}

fn write_manifest(manifest: &Path, image: &Path, content: Digest) -> Result<(), BaseError> {
    let metadata = fs::metadata(image).map_err(io_error(image))?;
    let record = ImageManifest { content, bytes: metadata.len(), modified: modified(&metadata) };
    let write = || -> io::Result<()> {
        let fresh = manifest.with_extension(format!("{}.new", std::process::id()));
        let mut file = File::create(&fresh)?;
        file.write_all(&serde_json::to_vec_pretty(&record)?)?;
        file.sync_all()?;
        fs::rename(&fresh, manifest)?;
        // The names themselves are durable only when their folder is.
        manifest.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    };
    write().map_err(io_error(manifest))
}

/// Waits for the lock of one image's builder.
async fn lock(path: PathBuf) -> Result<Flock<File>, BaseError> {
    let fail = io_error(&path);
    let wait = move || -> io::Result<Flock<File>> {
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o644).open(&path)?;
        Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error.into())
    };
    blocking(wait).await.map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_killed_builder_left_goes_and_a_living_ones_stays() {
        let work = tempfile::tempdir().expect("folder");
        let make = |name: &str| {
            let path = work.path().join(format!("{BASE_PREFIX}{name}"));
            let made = Scratch::hold(work.path(), || fs::create_dir(&path).map(|()| path.clone())).expect("makes");
            fs::write(path.join("root.tar"), "big").expect("writes");
            made
        };
        let ((dead, left), (alive, _held)) = (make("dead"), make("alive"));
        drop(left);
        let notes = work.path().join("base-notes");
        fs::create_dir(&notes).expect("makes");
        fs::write(notes.join("mine"), "").expect("writes");
        clear_abandoned(&Apptainer::at("/none".into(), crate::OLDEST), work.path()).await;
        assert!(!dead.exists() && alive.exists() && notes.exists());
    }

    #[test]
    fn what_was_to_become_an_image_goes_and_nothing_else() {
        let images = tempfile::tempdir().expect("folder");
        let (key, other) = (Digest::of(b"key"), Digest::of(b"other"));
        let half =
            [format!("{key}.42.new"), format!("{key}.import.new"), format!("{other}.42.new"), format!("{key}.sif")];
        for name in &half {
            fs::write(images.path().join(name), "half").expect("writes");
        }
        clear_unfinished(images.path(), &key);
        let left: Vec<bool> = half.iter().map(|name| images.path().join(name).exists()).collect();
        assert_eq!(left, [false, true, true, true]);
    }

    #[test]
    fn a_changed_image_is_digested_again() {
        let folder = tempfile::tempdir().expect("folder");
        let (image, manifest) = (folder.path().join("a.sif"), folder.path().join("a.json"));
        fs::write(&image, "one").expect("writes");
        write_manifest(&manifest, &image, Digest::of(b"one")).expect("writes");
        let known = read_manifest(&manifest, &image).expect("reads").expect("is there");
        assert_eq!(known.content, Digest::of(b"one"));
        fs::write(&image, "other").expect("writes");
        assert_eq!(read_manifest(&manifest, &image).expect("reads"), None);
        fs::remove_file(&image).expect("removes");
        assert_eq!(read_manifest(&manifest, &image).expect("reads"), None);
    }
}
