//! Writing the file.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use longhaul_core::digest::Digest;
use tar::{Builder, EntryType, Header};

use super::{CarriedBase, CarryError, FORMAT, Index, Part, Stop, Stoppable, part};
use crate::base::ARCH;
use crate::layers::{LayerGuard, LayerManifest, LayerStore};

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// What the file carries.
    pub index: Index,
    /// The size of the file.
    pub bytes: u64,
}

/// A base image that is to be carried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseToCarry {
    /// Its file.
    pub path: PathBuf,
    /// The digest of its file.
    pub content: Digest,
    /// The key of the definition that it was made of, if that has one.
    pub key: Option<Digest>,
}

/// Writes a base image and layers of a folder into `file`, whole or not at all.
///
/// # Errors
///
/// Something is not there or is damaged, or the file cannot be written.
pub async fn export(
    store: &LayerStore,
    base: Option<BaseToCarry>,
    layers: &[LayerManifest],
    file: &Path,
    stop: Stop,
) -> Result<Exported, CarryError> {
    let mut guards = Vec::new();
    for layer in layers {
        let guard = store.use_layer(&layer.key).await?.filter(|guard| guard.manifest.content == layer.content);
        guards.push(guard.ok_or_else(|| CarryError::Missing {
            kind: layer.kind,
            env: layer.env.clone(),
            key: layer.key,
        })?);
    }
    let file = file.to_owned();
    let failed = io_error(&file);
    tokio::task::spawn_blocking(move || write(base.as_ref(), &guards, &file, &stop))
        .await
        .map_err(|error| failed(io::Error::other(error)))?
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> CarryError + use<> {
    let path = path.to_owned();
    move |source| CarryError::Io { path, source }
}

fn write(base: Option<&BaseToCarry>, guards: &[LayerGuard], file: &Path, stop: &Stop) -> Result<Exported, CarryError> {
    let carried = base.map(|base| -> Result<_, CarryError> {
        let bytes = fs::metadata(&base.path).map_err(io_error(&base.path))?.len();
        Ok(CarriedBase { content: base.content, bytes, key: base.key })
    });
    let index = Index {
        format: FORMAT.to_owned(),
        arch: ARCH.to_owned(),
        base: carried.transpose()?,
        layers: guards.iter().map(|guard| guard.manifest.clone()).collect(),
    };
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    // Beside its place, synced and renamed: a file of that name is whole.
    let mut fresh = tempfile::Builder::new().prefix(".layers-").tempfile_in(folder).map_err(io_error(folder))?;
    let mut archive = Builder::new(fresh.as_file_mut());
    let text = serde_json::to_vec_pretty(&index).map_err(|error| io_error(file)(error.into()))?;
    let size = u64::try_from(text.len()).unwrap_or(u64::MAX);
    append(&mut archive, &Index::name(&text), size, &mut text.as_slice()).map_err(io_error(file))?;
    if let (Some(base), Some(part)) = (base, index.parts().first()) {
        copy(&mut archive, part, &base.path, file, stop)?;
    }
    for guard in guards {
        if let (Some(part), Some(path)) = (part(&guard.manifest), guard.path()) {
            copy(&mut archive, &part, path, file, stop)?;
        }
    }
    archive.into_inner().map_err(io_error(file))?;
    fresh.as_file().sync_all().map_err(io_error(file))?;
    let bytes = fresh.as_file().metadata().map_err(io_error(file))?.len();
    let kept = fresh.persist(file).map_err(|error| io_error(file)(error.error))?;
    // A secret it is not: others of a group are to import it too, as their umask says.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    kept.set_permissions(mode).map_err(io_error(file))?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(io_error(folder))?;
    Ok(Exported { index, bytes })
}

/// Appends a part, and says if it is not what is known of it.
fn copy<W: Write>(
    archive: &mut Builder<W>,
    part: &Part,
    path: &Path,
    file: &Path,
    stop: &Stop,
) -> Result<(), CarryError> {
    let source = File::open(path).map_err(io_error(path))?;
    let inner = Stoppable { inner: source, stop: stop.clone() };
    // Never more than is announced, whatever becomes of the file meanwhile.
    let mut reader = Digesting { inner: inner.take(part.bytes), hasher: blake3::Hasher::new(), bytes: 0 };
    let appended = append(archive, &part.name, part.bytes, &mut reader);
    if stop.is_set() {
        return Err(CarryError::Stopped);
    }
    appended.map_err(io_error(file))?;
    let found = Digest::from_bytes(*reader.hasher.finalize().as_bytes());
    if found == part.digest && reader.bytes == part.bytes {
        return Ok(());
    }
    Err(CarryError::Damaged { part: path.display().to_string(), expected: part.digest, found })
}

/// Appends an entry that says nothing of this machine: the same layers make the same file.
fn append<W: Write>(archive: &mut Builder<W>, name: &str, bytes: u64, from: &mut dyn Read) -> io::Result<()> {
    let mut header = Header::new_ustar();
    header.set_entry_type(EntryType::Regular);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(bytes);
    header.set_path(name)?;
    header.set_cksum();
    archive.append(&header, from)
}

struct Digesting<R> {
    inner: R,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl<R: Read> Read for Digesting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.hasher.update(buffer.get(..count).unwrap_or_default());
        self.bytes += u64::try_from(count).unwrap_or(u64::MAX);
        Ok(count)
    }
}
