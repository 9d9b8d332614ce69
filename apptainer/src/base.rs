//! Base images: what every env stands on.
//!
//! The built-in definition is Debian 12 with a desktop (`apptainer/base/`), made without
//! root and without a container registry: mmdebstrap in a user namespace, then `apptainer
//! build`. An image is named by the digest of its definition, made once however many
//! processes ask for it, and published whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use longhaul_core::digest::{Digest, DigestBuilder};
use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use crate::command;
use crate::program::{Apptainer, last_lines, on_path};

/// The files of the built-in definition: path, content, whether it may be executed.
const DEFINITION: [(&str, &str, bool); 12] = [
    ("packages", include_str!("../base/packages"), false),
    ("customize", include_str!("../base/customize"), true),
    ("inside", include_str!("../base/inside"), false),
    ("sif.def", include_str!("../base/sif.def"), false),
    ("files/etc/apt/apt.conf.d/90longhaul", include_str!("../base/files/etc/apt/apt.conf.d/90longhaul"), false),
    ("files/etc/profile.d/longhaul.sh", include_str!("../base/files/etc/profile.d/longhaul.sh"), false),
    ("files/etc/xdg/openbox/rc.xml", include_str!("../base/files/etc/xdg/openbox/rc.xml"), false),
    ("files/opt/longhaul/standin/systemctl", include_str!("../base/files/opt/longhaul/standin/systemctl"), true),
    ("files/opt/longhaul/standin/service", include_str!("../base/files/opt/longhaul/standin/service"), true),
    ("files/opt/longhaul/standin/invoke-rc.d", include_str!("../base/files/opt/longhaul/standin/invoke-rc.d"), true),
    ("files/opt/longhaul/standin/journalctl", include_str!("../base/files/opt/longhaul/standin/journalctl"), true),
    ("files/opt/longhaul/standin/loginctl", include_str!("../base/files/opt/longhaul/standin/loginctl"), true),
];

/// The release of Debian that the built-in definition is made of.
const SUITE: &str = "bookworm";

/// The architecture of this program, as layers and images name it.
pub const ARCH: &str = std::env::consts::ARCH;

/// What folders of builds are called, and the file in them that a builder holds locked.
const BUILD_PREFIX: &str = "base-";
const BUILD_LOCK: &str = "lock";

/// Where a base image comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BaseDefinition {
    /// The definition that comes with this program.
    BuiltIn,
    /// An image of a registry: `docker://...`. It is taken as it is.
    Registry(String),
    /// A file that is there.
    Sif(PathBuf),
}

impl BaseDefinition {
    /// Reads what a person wrote: `debian` for the built-in one, a registry's address, or
    /// a path.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        if matches!(text, "" | "debian" | "built-in") {
            Self::BuiltIn
        } else if text.contains("://") {
            Self::Registry(text.to_owned())
        } else {
            Self::Sif(PathBuf::from(text))
        }
    }

    /// The digest of the definition: the name of the image that is made of it. A file
    /// that is there has none.
    #[must_use]
    pub fn key(&self) -> Option<Digest> {
        let builder = DigestBuilder::new("longhaul-base-1").field("arch", ARCH);
        match self {
            Self::BuiltIn => {
                let builder = builder.field("suite", SUITE);
                let files = DEFINITION.iter().fold(builder, |builder, (path, content, executable)| {
                    builder
                        .field("path", path)
                        .field("content", content)
                        .field("mode", if *executable { "x" } else { "-" })
                });
                Some(files.finish())
            }
            Self::Registry(address) => Some(builder.field("registry", address).finish()),
            Self::Sif(_) => None,
        }
    }
}

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
    #[error("the base image {0} is not there")]
    Missing(PathBuf),
    /// A program that builds it is not there.
    #[error(
        "`{0}` is not on the PATH: the built-in base image cannot be built here; install it, or name a ready image"
    )]
    NoProgram(&'static str),
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

/// Returns the image of `definition`, and builds it first if it is not in `images` yet.
/// Of several that ask at once, one builds; `work` is a folder on local disk with some
/// gigabytes of room.
pub async fn ensure(
    apptainer: &Apptainer,
    definition: &BaseDefinition,
    images: &Path,
    work: &Path,
) -> Result<BaseImage, BaseError> {
    fs::create_dir_all(images).map_err(io_error(images))?;
    let Some(key) = definition.key() else {
        let BaseDefinition::Sif(path) = definition else { return Err(BaseError::Missing(images.to_owned())) };
        return ready_file(path, images).await;
    };
    let path = images.join(format!("{key}.sif"));
    let manifest_path = images.join(format!("{key}.json"));
    if let Some(manifest) = read_manifest(&manifest_path, &path)? {
        return Ok(BaseImage { path, content: manifest.content, built: false });
    }
    let _lock = lock(images.join(format!("{key}.lock"))).await?;
    if let Some(manifest) = read_manifest(&manifest_path, &path)? {
        return Ok(BaseImage { path, content: manifest.content, built: false });
    }
    fs::create_dir_all(work).map_err(io_error(work))?;
    // mmdebstrap's root is another id than ours outside, and has to pass through.
    let passable = fs::Permissions::from_mode(0o711);
    clear_abandoned(work);
    let folder =
        tempfile::Builder::new().prefix(BUILD_PREFIX).permissions(passable).tempdir_in(work).map_err(io_error(work))?;
    let _building = lock(folder.path().join(BUILD_LOCK)).await?;
    let image = match definition {
        BaseDefinition::Registry(address) => pull(apptainer, address, folder.path()).await?,
        BaseDefinition::BuiltIn | BaseDefinition::Sif(_) => build(apptainer, folder.path()).await?,
    };
    // Beside its place first, whole and synced; the manifest last: what is found is right.
    let fresh = images.join(format!("{key}.{}.new", std::process::id()));
    let content = copy_synced(image, fresh.clone()).await?;
    fs::rename(&fresh, &path).map_err(io_error(&path))?;
    write_manifest(&manifest_path, &path, content)?;
    // It said nothing that is of use to anybody any more.
    let log = log_of(folder.path());
    fs::remove_file(&log).map_err(io_error(&log))?;
    Ok(BaseImage { path, content, built: true })
}

/// Removes what builders that were killed left: gigabytes, in folders whose lock is free.
fn clear_abandoned(work: &Path) {
    for entry in fs::read_dir(work).into_iter().flatten().flatten() {
        let abandoned = || -> io::Result<bool> {
            let file = OpenOptions::new().write(true).open(entry.path().join(BUILD_LOCK))?;
            Ok(Flock::lock(file, FlockArg::LockExclusiveNonblock).is_ok())
        };
        if entry.file_name().to_string_lossy().starts_with(BUILD_PREFIX) && abandoned().unwrap_or(false) {
            // What cannot be removed is no reason not to build.
            if let Err(error) = fs::remove_dir_all(entry.path()) {
                tracing::warn!(folder = %entry.path().display(), %error, "an abandoned build was not removed");
            }
        }
    }
}

/// The log of what builds an image in `folder`. Kept beside the folder, which goes: a person
/// who reads of a failure can read all of it.
fn log_of(folder: &Path) -> PathBuf {
    folder.with_extension("log")
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

/// Makes the built-in image in `folder`.
async fn build(apptainer: &Apptainer, folder: &Path) -> Result<PathBuf, BaseError> {
    let bootstrap = on_path("mmdebstrap").ok_or(BaseError::NoProgram("mmdebstrap"))?;
    for (path, content, executable) in DEFINITION {
        let file = folder.join("definition").join(path);
        let write = || -> io::Result<()> {
            if let Some(parent) = file.parent() {
                fs::create_dir_all(parent)?;
            }
            let mode = if executable { 0o755 } else { 0o644 };
            OpenOptions::new().create(true).write(true).mode(mode).open(&file)?.write_all(content.as_bytes())
        };
        write().map_err(io_error(&file))?;
    }
    let root = folder.join("root.tar");
    let mut call = Command::new(bootstrap);
    call.args(["--mode=unshare", "--variant=minbase", "--format=tar"])
        .arg(format!("--include={}", packages()))
        .arg(format!("--customize-hook={}", folder.join("definition/customize").display()))
        .arg(SUITE)
        .arg(&root)
        .env("TMPDIR", folder);
    run("mmdebstrap", call, folder).await?;
    let definition = folder.join("image.def");
    let template = include_str!("../base/sif.def");
    fs::write(&definition, template.replace("@ROOTFS@", &root.display().to_string())).map_err(io_error(&definition))?;
    let image = folder.join("image.sif");
    let mut call = apptainer.command(&command::build(&image, &definition));
    call.env("APPTAINER_TMPDIR", folder);
    run("apptainer build", call, folder).await?;
    fs::remove_file(&root).map_err(io_error(&root))?;
    Ok(image)
}

/// Makes an image of a registry's in `folder`.
async fn pull(apptainer: &Apptainer, address: &str, folder: &Path) -> Result<PathBuf, BaseError> {
    let image = folder.join("image.sif");
    let mut call = apptainer.command(&command::build(&image, Path::new(address)));
    call.env("APPTAINER_TMPDIR", folder);
    run("apptainer build", call, folder).await?;
    Ok(image)
}

async fn run(program: &'static str, mut call: Command, folder: &Path) -> Result<(), BaseError> {
    let log = log_of(folder);
    let file = OpenOptions::new().create(true).append(true).open(&log).map_err(io_error(&log))?;
    let too = file.try_clone().map_err(io_error(&log))?;
    let status = call
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(too)
        .kill_on_drop(true)
        .status()
        .await
        .map_err(io_error(Path::new(program)))?;
    if status.success() {
        return Ok(());
    }
    let tail = last_lines(&fs::read(&log).unwrap_or_default(), 12);
    Err(BaseError::Failed { program, how: status.to_string(), log, tail })
}

/// The packages of the built-in definition, as mmdebstrap takes them.
fn packages() -> String {
    include_str!("../base/packages")
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_told_apart() {
        assert_eq!(BaseDefinition::parse("debian"), BaseDefinition::BuiltIn);
        assert_eq!(BaseDefinition::parse("docker://x/y:1"), BaseDefinition::Registry("docker://x/y:1".into()));
        assert_eq!(BaseDefinition::parse("/a/b.sif"), BaseDefinition::Sif("/a/b.sif".into()));
        assert!(BaseDefinition::BuiltIn.key().is_some());
        assert_ne!(BaseDefinition::BuiltIn.key(), BaseDefinition::parse("docker://x").key());
    }

    #[test]
    fn the_package_list_is_clean() {
        let list = packages();
        assert!(list.split(',').count() > 50);
        assert!(list.chars().all(|letter| letter.is_ascii_alphanumeric() || ",-+.".contains(letter)), "{list}");
        for wanted in ["xvfb", "openbox", "xdotool", "squashfs-tools", "python3"] {
            assert!(list.split(',').any(|package| package == wanted), "{wanted}");
        }
    }

    #[tokio::test]
    async fn what_a_killed_builder_left_goes_and_a_living_ones_stays() {
        let work = tempfile::tempdir().expect("folder");
        let (dead, alive) = (work.path().join("base-dead"), work.path().join("base-alive"));
        for folder in [&dead, &alive] {
            fs::create_dir(folder).expect("makes");
            fs::write(folder.join("root.tar"), "big").expect("writes");
        }
        drop(lock(dead.join(BUILD_LOCK)).await.expect("locks"));
        let _held = lock(alive.join(BUILD_LOCK)).await.expect("locks");
        clear_abandoned(work.path());
        assert!(!dead.exists() && alive.exists());
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
