//! Freezes folders into trees: manifests of content-addressed pieces.

use std::collections::{BTreeSet, HashMap};
use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use longhaul_core::digest::Digest;
use longhaul_core::hidden::HIDDEN;
use longhaul_core::plan::{CHUNK_BYTES, Tree, TreeEntry, TreeNode};
use longhaul_core::rounds::ROUNDS_FOLDER;

use super::layout::Layout;

/// Why a blob was not taken.
pub type BlobError = Box<dyn Error + Send + Sync>;

/// Takes blobs as they are made; the same one may come again.
pub trait Blobs {
    /// Takes the bytes with this digest.
    ///
    /// # Errors
    ///
    /// They could not be kept; planning stops.
    fn put(&mut self, digest: Digest, bytes: &[u8]) -> Result<(), BlobError>;
}

impl<F: FnMut(Digest, &[u8]) -> Result<(), BlobError>> Blobs for F {
    fn put(&mut self, digest: Digest, bytes: &[u8]) -> Result<(), BlobError> {
        self(digest, bytes)
    }
}

/// Blobs in memory.
#[derive(Debug, Default)]
pub struct MemoryBlobs(pub HashMap<Digest, Vec<u8>>);

impl Blobs for MemoryBlobs {
    fn put(&mut self, digest: Digest, bytes: &[u8]) -> Result<(), BlobError> {
        self.0.entry(digest).or_insert_with(|| bytes.to_vec());
        Ok(())
    }
}

/// A folder that cannot be frozen.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// A file or folder cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A blob was not taken.
    #[error("cannot keep the content of {}", path.display())]
    Keep {
        /// The file that it is part of.
        path: PathBuf,
        /// Why.
        #[source]
        source: BlobError,
    },
    /// A manifest cannot be written as JSON.
    #[error("cannot write the manifest of {}", path.display())]
    Manifest {
        /// The folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

/// What of a folder is left out; Python's caches and version control always are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Hide {
    /// Nothing else.
    Nothing,
    /// At the top: the tasks, and what earlier runs of other programs left.
    Tasks,
    /// As [`Self::Tasks`], but for the files that lie loose among the tasks: modules that
    /// several verifiers import.
    TaskFolders,
    /// Files that would tell an agent how it is scored, wherever they are.
    Secrets,
}

/// How deep folders may be nested; links are followed, and could run in a circle.
const MAX_DEPTH: usize = 64;

/// Freezes folders, each only once.
pub(super) struct TreeBuilder<'a> {
    layout: &'a Layout,
    blobs: &'a mut dyn Blobs,
    done: HashMap<(PathBuf, Hide), Digest>,
    left_out: Vec<PathBuf>,
    /// Files and folders that are secrets beside those that are by their names.
    secrets: BTreeSet<PathBuf>,
}

impl<'a> TreeBuilder<'a> {
    pub(super) fn new(layout: &'a Layout, blobs: &'a mut dyn Blobs) -> Self {
        Self { layout, blobs, done: HashMap::new(), left_out: Vec::new(), secrets: BTreeSet::new() }
    }

    /// Leaves these out, too, where secrets are; a link with what it leads to.
    pub(super) fn hide(&mut self, secrets: impl IntoIterator<Item = PathBuf>) {
        for secret in secrets {
            self.secrets.extend(secret.canonicalize());
            self.secrets.insert(secret);
        }
    }

    /// The tree of a folder (or of one file, which is then all that is in it).
    pub(super) fn tree(&mut self, path: &Path, hide: Hide) -> Result<Digest, TreeError> {
        let key = (path.to_owned(), hide);
        if let Some(digest) = self.done.get(&key) {
            return Ok(*digest);
        }
        let mut tree = Tree::default();
        if path.is_dir() {
            self.folder(&Root { path, hide }, path, "", 0, &mut tree)?;
        } else {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let node = self.file(path)?;
            tree.entries.push(TreeEntry { path: name, node });
        }
        if hide == Hide::TaskFolders && !tree.entries.iter().any(|entry| entry.path.starts_with("tasks/")) {
            tree.entries.retain(|entry| entry.path != "tasks");
        }
        tree.entries.sort_by(|one, other| one.path.cmp(&other.path));
        let digest = self.put_json(path, &tree)?;
        self.done.insert(key, digest);
        Ok(digest)
    }

    /// The tree with nothing in it.
    pub(super) fn empty(&mut self) -> Result<Digest, TreeError> {
        self.put_json(Path::new("an empty folder"), &Tree::default())
    }

    /// Keeps a value as JSON.
    pub(super) fn put_json<T: serde::Serialize>(&mut self, path: &Path, value: &T) -> Result<Digest, TreeError> {
        let bytes =
            serde_json::to_vec(value).map_err(|source| TreeError::Manifest { path: path.to_owned(), source })?;
        self.put(path, &bytes)
    }

    /// Keeps some bytes.
    pub(super) fn put(&mut self, path: &Path, bytes: &[u8]) -> Result<Digest, TreeError> {
        let digest = Digest::of(bytes);
        self.blobs.put(digest, bytes).map_err(|source| TreeError::Keep { path: path.to_owned(), source })?;
        Ok(digest)
    }

    /// What could not be part of a tree: links that lead out of the clone or nowhere,
    /// devices, names that are no text.
    pub(super) fn into_left_out(mut self) -> Vec<PathBuf> {
        self.left_out.sort();
        self.left_out.dedup();
        self.left_out
    }

    fn folder(
        &mut self,
        root: &Root<'_>,
        dir: &Path,
        prefix: &str,
        depth: usize,
        tree: &mut Tree,
    ) -> Result<(), TreeError> {
        let read = |source| TreeError::Read { path: dir.to_owned(), source };
        for entry in fs::read_dir(dir).map_err(read)? {
            let entry = entry.map_err(read)?;
            let path = entry.path();
            let Ok(name) = entry.file_name().into_string() else {
                self.left_out.push(path);
                continue;
            };
            if root.hides(&name, depth) || self.is_secret(root, &path) {
                continue;
            }
            let inside = format!("{prefix}{name}");
            let kind = entry.file_type().map_err(read)?;
            let (path, kind) = if kind.is_symlink() {
                match self.link(root, dir, &path)? {
                    Link::Kept(target) => {
                        tree.entries.push(TreeEntry { path: inside, node: TreeNode::Link { target } });
                        continue;
                    }
                    Link::Followed(target) if self.is_secret(root, &target) => continue,
                    Link::Followed(target) => {
                        let kind = fs::metadata(&target).map_err(read)?.file_type();
                        (target, kind)
                    }
                    Link::LeftOut => {
                        self.left_out.push(path);
                        continue;
                    }
                }
            } else {
                (path, kind)
            };
            if kind.is_dir() {
                if root.hide == Hide::TaskFolders && prefix == "tasks/" {
                    continue;
                }
                if depth >= MAX_DEPTH {
                    self.left_out.push(path);
                    continue;
                }
                tree.entries.push(TreeEntry { path: inside.clone(), node: TreeNode::Dir });
                self.folder(root, &path, &format!("{inside}/"), depth + 1, tree)?;
            } else if kind.is_file() {
                let node = self.file(&path)?;
                tree.entries.push(TreeEntry { path: inside, node });
            } else {
                self.left_out.push(path);
            }
        }
        Ok(())
    }

    /// A link within the tree is kept as it is; one to elsewhere in the clone is
    /// replaced by what it points to; any other is left out.
    fn link(&self, root: &Root<'_>, dir: &Path, path: &Path) -> Result<Link, TreeError> {
        let target = fs::read_link(path).map_err(|source| TreeError::Read { path: path.to_owned(), source })?;
        if target.is_relative()
            && dir.starts_with(root.path)
            && stays_below(root.path, dir, &target)
            && let Some(text) = target.to_str()
        {
            return Ok(Link::Kept(text.to_owned()));
        }
        let contained = path.canonicalize().ok().filter(|resolved| self.layout.contains(resolved));
        // A link to a folder above would hold itself.
        let contained = contained.filter(|resolved| !dir.starts_with(resolved));
        Ok(contained.map_or(Link::LeftOut, Link::Followed))
    }

    /// Whether that is a secret, by its name too, or is in a folder that is one: a link may lead there.
    fn is_secret(&self, root: &Root<'_>, path: &Path) -> bool {
        let by_name = || path.file_name().is_some_and(|name| HIDDEN.iter().any(|hidden| name == *hidden));
        root.hide == Hide::Secrets && (by_name() || path.ancestors().any(|at| self.secrets.contains(at)))
    }

    fn file(&mut self, path: &Path) -> Result<TreeNode, TreeError> {
        let read = |source| TreeError::Read { path: path.to_owned(), source };
        let mut file = File::open(path).map_err(read)?;
        let executable = file.metadata().map_err(read)?.permissions().mode() & 0o111 != 0;
        let (mut size, mut chunks) = (0_u64, Vec::new());
        let mut piece = Vec::new();
        loop {
            piece.clear();
            let length = file.by_ref().take(CHUNK_BYTES as u64).read_to_end(&mut piece).map_err(read)?;
            if length == 0 {
                return Ok(TreeNode::File { executable, size, chunks });
            }
            size += length as u64;
            chunks.push(self.put(path, &piece)?);
        }
    }
}

struct Root<'a> {
    path: &'a Path,
    hide: Hide,
}

impl Root<'_> {
    fn hides(&self, name: &str, depth: usize) -> bool {
        let always = matches!(name, "__pycache__" | ".git") || name.ends_with(".pyc");
        let here = match self.hide {
            Hide::Nothing => false,
            Hide::Tasks => depth == 0 && matches!(name, "tasks" | "artifacts"),
            Hide::TaskFolders => depth == 0 && name == "artifacts",
            Hide::Secrets => HIDDEN.contains(&name) || name == ROUNDS_FOLDER,
        };
        always || here
    }
}

enum Link {
    Kept(String),
    Followed(PathBuf),
    LeftOut,
}

/// Whether a relative target, seen from a folder of the tree, is below the tree's root.
fn stays_below(root: &Path, dir: &Path, target: &Path) -> bool {
    let Ok(inside) = dir.strip_prefix(root) else { return false };
    let mut depth = inside.components().count();
    for component in target.components() {
        match component {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir => match depth.checked_sub(1) {
                Some(above) => depth = above,
                None => return false,
            },
            Component::RootDir | Component::Prefix(_) => return false,
        }
    }
    true
}
