//! Taking what a file brings into a layer folder.
//!
//! Every part is written beside its place, checked, synced and renamed, a layer's manifest last;
//! so an import that is stopped or killed leaves whole layers, and what it was writing is
//! removed: by itself, or by the next import.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use longhaul_core::digest::Digest;
use longhaul_core::plan::LAYER_FORMAT;
use nix::fcntl::{Flock, FlockArg};
use tar::{Archive, Entries, Entry, EntryType};

use super::{CarriedBase, CarryError, FORMAT, Index, MAX_INDEX, Part, Stop, Stoppable, part};
use crate::base::{self, ARCH, CopyError, copy_stream};
use crate::filesystem;
use crate::layers::store::{self, write_manifest};
use crate::layers::{LayerContent, LayerManifest, LayerStore};

/// How the names of what an import writes end: only imports make such files, one at a time.
const UNFINISHED: &str = ".import.new";

/// What became of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerOutcome {
    /// It was taken.
    Taken,
    /// It was there, with the same content.
    Kept,
    /// One of the same key was there, with other content; that one stays.
    KeptOther,
}

/// A layer of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedLayer {
    /// What is known of it.
    pub manifest: LayerManifest,
    /// What became of it.
    pub outcome: LayerOutcome,
}

/// What became of the base image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaseOutcome {
    /// It was taken.
    Taken,
    /// It was there, with the same content.
    Kept,
}

/// The base image of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedBase {
    /// Where it is now.
    pub path: PathBuf,
    /// The digest of its file.
    pub content: Digest,
    /// Its size.
    pub bytes: u64,
    /// The key of its definition, if it lies under that name: whoever asks for that definition
    /// finds it. Else it has to be named by its path.
    pub key: Option<Digest>,
    /// What became of it.
    pub outcome: BaseOutcome,
}

/// What an import did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The base image, if the file has one.
    pub base: Option<ImportedBase>,
    /// The layers.
    pub layers: Vec<ImportedLayer>,
}

/// Takes what `file` brings into a layer folder; what is there already is kept.
///
/// # Errors
///
/// The file is not whole or holds what no such file holds, there is no room, or the folder
/// cannot be written. What was checked before stays.
pub async fn import(store: &LayerStore, file: &Path, stop: Stop) -> Result<Imported, CarryError> {
    let (folder, file) = (store.folder().to_owned(), file.to_owned());
    let failed = io_error(&file);
    tokio::task::spawn_blocking(move || Import { folder, file, stop }.run())
        .await
        .map_err(|error| failed(io::Error::other(error)))?
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> CarryError + use<> {
    let path = path.to_owned();
    move |source| CarryError::Io { path, source }
}

struct Import {
    folder: PathBuf,
    file: PathBuf,
    stop: Stop,
}

type Source = BufReader<Stoppable<File>>;

impl Import {
    fn run(&self) -> Result<Imported, CarryError> {
        let opened = File::open(&self.file).map_err(|error| self.broken(&error))?;
        let images = self.images();
        fs::create_dir_all(&images).map_err(io_error(&images))?;
        let _alone = self.alone()?;
        for folder in [&self.folder, &images] {
            clear(folder)?;
        }
        let stoppable = Stoppable { inner: opened, stop: self.stop.clone() };
        let mut archive = Archive::new(BufReader::with_capacity(1024 * 1024, stoppable));
        // Raw: entries that change the name or the size of those after them are none to us.
        let mut entries = archive.entries().map_err(|error| self.broken(&error))?.raw(true);
        let index = self.index(&mut entries)?;
        self.room(&index)?;
        let base = index.base.map(|base| self.base(&base, &index, &mut entries)).transpose()?;
        let mut layers = Vec::new();
        for manifest in index.layers {
            let outcome = self.layer(&manifest, &mut entries)?;
            layers.push(ImportedLayer { manifest, outcome });
        }
        match entries.next() {
            None => Ok(Imported { base, layers }),
            Some(Ok(entry)) => {
                let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
                Err(self.refused(format!("it holds `{name}`, which its index does not name")))
            }
            Some(Err(error)) => Err(self.broken(&error)),
        }
    }

    fn images(&self) -> PathBuf {
        self.folder.join("images")
    }

    /// One import into a folder at a time, so that what another one left can be told and cleared.
    fn alone(&self) -> Result<Flock<File>, CarryError> {
        let path = self.folder.join(".import.lock");
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(io_error(&path))?;
        Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| match error {
            nix::errno::Errno::EWOULDBLOCK => CarryError::Busy(self.folder.clone()),
            error => io_error(&path)(error.into()),
        })
    }

    fn refused(&self, reason: String) -> CarryError {
        CarryError::Refused { path: self.file.clone(), reason }
    }

    /// What a failure to read the file is.
    fn broken(&self, error: &io::Error) -> CarryError {
        if self.stop.is_set() { CarryError::Stopped } else { self.refused(format!("it cannot be read: {error}")) }
    }

    /// The next entry, if it is a plain file.
    fn entry<'a>(&self, entries: &mut Entries<'a, Source>) -> Result<Option<Entry<'a, Source>>, CarryError> {
        let Some(entry) = entries.next() else { return Ok(None) };
        let entry = entry.map_err(|error| self.broken(&error))?;
        let kind = entry.header().entry_type();
        if kind != EntryType::Regular {
            let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            return Err(self.refused(format!("`{name}` in it is no plain file ({kind:?})")));
        }
        Ok(Some(entry))
    }

    fn index(&self, entries: &mut Entries<'_, Source>) -> Result<Index, CarryError> {
        let none = || self.refused("it is no file of `longhaul layers export`".to_owned());
        let mut entry = match self.entry(entries) {
            Ok(Some(entry)) => entry,
            Ok(None) => return Err(none()),
            Err(CarryError::Refused { reason, .. }) => {
                return Err(self.refused(format!("it is no file of `longhaul layers export`: {reason}")));
            }
            Err(error) => return Err(error),
        };
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        if !name.starts_with(&format!("{FORMAT}/index-")) {
            return Err(none());
        }
        if entry.size() > MAX_INDEX {
            return Err(self.refused(format!("its index of {} bytes is too long", entry.size())));
        }
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).map_err(|error| self.broken(&error))?;
        if u64::try_from(bytes.len()) != Ok(entry.size()) || Index::name(&bytes) != name {
            return Err(self.refused("its index is damaged".to_owned()));
        }
        let index: Index = serde_json::from_slice(&bytes)
            .map_err(|error| self.refused(format!("its index cannot be understood: {error}")))?;
        self.check(&index)?;
        Ok(index)
    }

    fn check(&self, index: &Index) -> Result<(), CarryError> {
        let wrong = |what: &str, found: &str, ours: &str| {
            Err(self.refused(format!("its {what} is `{found}`, this program's is `{ours}`")))
        };
        if index.format != FORMAT {
            return wrong("format", &index.format, FORMAT);
        }
        if index.arch != ARCH {
            return wrong("architecture", &index.arch, ARCH);
        }
        let mut seen = BTreeSet::new();
        for layer in &index.layers {
            if layer.format != LAYER_FORMAT {
                return wrong("format of layers", &layer.format, LAYER_FORMAT);
            }
            if layer.arch != ARCH {
                return wrong("architecture", &layer.arch, ARCH);
            }
            if !seen.insert(layer.key) {
                return Err(self.refused(format!("it names layer {} twice", layer.key)));
            }
        }
        Ok(())
    }

    /// Said before anything is written, where the filesystem tells.
    fn room(&self, index: &Index) -> Result<(), CarryError> {
        let mut needed = 0_u64;
        if let Some(base) = &index.base
            && base::find(&self.images(), &base.content)?.is_none()
        {
            needed = needed.saturating_add(base.bytes);
        }
        for layer in &index.layers {
            if self.present(layer)?.is_none() {
                needed = needed.saturating_add(layer.bytes());
            }
        }
        let free = filesystem::space(&self.folder).map_err(io_error(&self.folder))?.bytes;
        if free >= needed { Ok(()) } else { Err(CarryError::NoRoom { path: self.folder.clone(), needed, free }) }
    }

    /// What is there under a layer's key, if that is whole as far as names tell.
    fn present(&self, layer: &LayerManifest) -> Result<Option<LayerContent>, CarryError> {
        let found = store::read_manifest(&self.folder, &layer.key)?;
        let there = |manifest: &LayerManifest| match manifest.content {
            LayerContent::File { .. } => LayerStore::file(&self.folder, &layer.key).exists(),
            LayerContent::Rerun { .. } => true,
        };
        Ok(found.filter(there).map(|manifest| manifest.content))
    }

    fn base(
        &self,
        base: &CarriedBase,
        index: &Index,
        entries: &mut Entries<'_, Source>,
    ) -> Result<ImportedBase, CarryError> {
        let parts = index.parts();
        let part = parts.first().ok_or_else(|| self.refused("its base image has no part".to_owned()))?;
        let images = self.images();
        let done = |path, key, outcome| ImportedBase { path, content: base.content, bytes: base.bytes, key, outcome };
        if let Some((path, key)) = base::find(&images, &base.content)? {
            self.take(part, entries, None)?;
            return Ok(done(path, key, BaseOutcome::Kept));
        }
        // Another image of the same definition stays: layers stand on it. This one is named by
        // its content then.
        let free = match base.key {
            Some(key) => base::content_of(&images, &key)?.is_none().then_some(key),
            None => None,
        };
        let name = free.unwrap_or(base.content);
        let fresh = images.join(format!("{name}{UNFINISHED}"));
        self.take(part, entries, Some(&fresh))?;
        let path = base::adopt(&images, &name, base.content, &fresh)?;
        Ok(done(path, free, BaseOutcome::Taken))
    }

    fn layer(&self, manifest: &LayerManifest, entries: &mut Entries<'_, Source>) -> Result<LayerOutcome, CarryError> {
        let part = part(manifest);
        if let Some(content) = self.present(manifest)? {
            if let Some(part) = &part {
                self.take(part, entries, None)?;
            }
            return Ok(if content == manifest.content { LayerOutcome::Kept } else { LayerOutcome::KeptOther });
        }
        let Some(part) = part else {
            write_manifest(&self.folder, manifest)?;
            return Ok(LayerOutcome::Taken);
        };
        let fresh = self.folder.join(format!("{}{UNFINISHED}", manifest.key));
        self.take(&part, entries, Some(&fresh))?;
        let lock_path = self.folder.join(".publish.lock");
        let _lock = store::lock_exclusive(&lock_path).map_err(io_error(&lock_path))?;
        // A builder may have been faster.
        if let Some(content) = self.present(manifest)? {
            fs::remove_file(&fresh).map_err(io_error(&fresh))?;
            return Ok(if content == manifest.content { LayerOutcome::Kept } else { LayerOutcome::KeptOther });
        }
        let path = LayerStore::file(&self.folder, &manifest.key);
        fs::rename(&fresh, &path).map_err(io_error(&path))?;
        write_manifest(&self.folder, manifest)?;
        Ok(LayerOutcome::Taken)
    }

    /// Reads a part, which has to be the next entry, and checks it; into `to`, if given.
    fn take(&self, part: &Part, entries: &mut Entries<'_, Source>, to: Option<&Path>) -> Result<(), CarryError> {
        let Some(mut entry) = self.entry(entries)? else {
            return Err(self.refused(format!("it is cut off: `{}` is missing", part.name)));
        };
        let name = entry.path_bytes().into_owned();
        if name != part.name.as_bytes() {
            let name = String::from_utf8_lossy(&name).into_owned();
            return Err(self.refused(format!("`{name}` is where `{}` has to be", part.name)));
        }
        if entry.size() != part.bytes {
            let (size, bytes) = (entry.size(), part.bytes);
            return Err(self.refused(format!("`{}` has {size} bytes, {bytes} are expected", part.name)));
        }
        let (found, size) = match to {
            None => digest(&mut entry).map_err(|error| self.broken(&error))?,
            Some(to) => copy_stream(&mut entry, to).map_err(|error| match error {
                CopyError::Read(error) => self.broken(&error),
                CopyError::Write(error) => io_error(to)(error),
            })?,
        };
        if size == part.bytes && found == part.digest {
            return Ok(());
        }
        if let Some(to) = to {
            fs::remove_file(to).map_err(io_error(to))?;
        }
        Err(self.refused(if size < part.bytes {
            format!("it is cut off: `{}` has {size} of {} bytes", part.name, part.bytes)
        } else {
            format!("`{}` is damaged: its digest is {found}, {} is expected", part.name, part.digest)
        }))
    }
}

fn digest(source: &mut dyn Read) -> io::Result<(Digest, u64)> {
    let mut hasher = blake3::Hasher::new();
    let size = io::copy(source, &mut hasher)?;
    Ok((Digest::from_bytes(*hasher.finalize().as_bytes()), size))
}

/// Removes what imports that were killed left: no other import runs.
fn clear(folder: &Path) -> Result<(), CarryError> {
    for entry in fs::read_dir(folder).map_err(io_error(folder))? {
        let entry = entry.map_err(io_error(folder))?;
        if entry.file_name().to_string_lossy().ends_with(UNFINISHED) {
            fs::remove_file(entry.path()).map_err(io_error(&entry.path()))?;
        }
    }
    Ok(())
}
