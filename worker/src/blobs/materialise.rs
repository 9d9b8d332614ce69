//! Trees made into folders, and folders seen through a filter.
//!
//! A tree comes from a coordinator's store, and in the end from a benchmark: its paths are
//! hostile until checked. Nothing is ever made outside the folder, or through a link.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use longhaul_core::digest::Digest;
use longhaul_core::plan::{TreeEntry, TreeNode};

use super::BlobError;

/// The longest path of an entry, in bytes.
const MAX_PATH: usize = 4000;

/// What is wrong with an entry, if anything; `made` holds the entries before it, and whether
/// each is a folder.
///
/// # Errors
///
/// What is wrong.
pub fn check_entry(entry: &TreeEntry, made: &BTreeMap<String, bool>) -> Result<(), &'static str> {
    let path = entry.path.as_str();
    if path.is_empty() || path.len() > MAX_PATH {
        return Err("its path is empty or too long");
    }
    if path.contains('\0') {
        return Err("its path holds a zero byte");
    }
    if path.split('/').any(|part| part.is_empty() || part == "." || part == "..") {
        return Err("its path is absolute, or has `..`, `.` or an empty part");
    }
    if made.contains_key(path) {
        return Err("it is there twice");
    }
    if let Some((parent, _)) = path.rsplit_once('/')
        && made.get(parent) != Some(&true)
    {
        return Err("it does not lie in a folder of the tree");
    }
    if let TreeNode::Link { target } = &entry.node
        && !stays_inside(path, target)
    {
        return Err("it is a link that leads out of the tree");
    }
    Ok(())
}

/// Whether a link at `path` with this target, read by its letters, stays below the root.
fn stays_inside(path: &str, target: &str) -> bool {
    if target.is_empty() || target.starts_with('/') || target.contains('\0') {
        return false;
    }
    let mut depth = path.split('/').count() - 1;
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => match depth.checked_sub(1) {
                Some(less) => depth = less,
                None => return false,
            },
            _ => depth += 1,
        }
    }
    true
}

/// Makes one entry below `root`; the pieces of a file come from `piece`.
///
/// # Errors
///
/// It must not be made, a piece is not to be had, or the file cannot be written.
pub(super) fn make_entry(
    root: &Path,
    digest: &Digest,
    entry: &TreeEntry,
    made: &mut BTreeMap<String, bool>,
    mut piece: impl FnMut(&Digest) -> Result<Vec<u8>, BlobError>,
) -> Result<u64, BlobError> {
    check_entry(entry, made).map_err(|reason| BlobError::Hostile {
        digest: *digest,
        path: entry.path.escape_debug().take(200).collect(),
        reason,
    })?;
    let path = root.join(&entry.path);
    let mut written = 0;
    match &entry.node {
        TreeNode::Dir => fs::create_dir(&path).map_err(BlobError::file("create", &path))?,
        TreeNode::Link { target } => symlink(target, &path).map_err(BlobError::file("link", &path))?,
        TreeNode::File { executable, size, chunks } => {
            let mode = if *executable { 0o755 } else { 0o644 };
            let mut file = fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(mode)
                .open(&path)
                .map_err(BlobError::file("create", &path))?;
            for chunk in chunks {
                let bytes = piece(chunk)?;
                written += bytes.len() as u64;
                file.write_all(&bytes).map_err(BlobError::file("write", &path))?;
            }
            if written != *size {
                return Err(BlobError::Unreadable {
                    digest: *digest,
                    what: "a tree",
                    reason: format!("`{}` is {written} bytes and should be {size}", entry.path.escape_debug()),
                });
            }
            // The mode at creation is cut by the umask; sandboxes need what the tree says.
            file.set_permissions(fs::Permissions::from_mode(mode))
                .map_err(BlobError::file("set the mode of", &path))?;
        }
    }
    made.insert(entry.path.clone(), matches!(entry.node, TreeNode::Dir));
    Ok(written)
}

/// Makes `to` a view of the folder `from`: the same folders and links, and its files as hard
/// links where `copy` is false (the view must then not be written to), else as copies that
/// everybody may write to, as a sandbox's other accounts are nobody's here. `hidden` are paths
/// below `from` that are left out. Links are not followed.
///
/// # Errors
///
/// A file cannot be read or made.
pub fn link_view(from: &Path, to: &Path, copy: bool, hidden: &[PathBuf]) -> Result<(), BlobError> {
    link_below(from, to, copy, hidden, Path::new(""))
}

fn link_below(from: &Path, to: &Path, copy: bool, hidden: &[PathBuf], at: &Path) -> Result<(), BlobError> {
    let set_mode = |path: &Path, mode: u32| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(BlobError::file("set the mode of", path))
    };
    fs::create_dir_all(to).map_err(BlobError::file("create", to))?;
    set_mode(to, if copy { 0o777 } else { 0o755 })?;
    let entries = fs::read_dir(from).map_err(BlobError::file("list", from))?;
    for entry in entries {
        let entry = entry.map_err(BlobError::file("list", from))?;
        let at = at.join(entry.file_name());
        if hidden.contains(&at) {
            continue;
        }
        let source = entry.path();
        let target = to.join(entry.file_name());
        let kind = entry.file_type().map_err(BlobError::file("look at", &source))?;
        if kind.is_dir() {
            link_below(&source, &target, copy, hidden, &at)?;
        } else if kind.is_symlink() {
            let link: PathBuf = fs::read_link(&source).map_err(BlobError::file("read", &source))?;
            symlink(link, &target).map_err(BlobError::file("link", &target))?;
        } else if copy {
            fs::copy(&source, &target).map_err(BlobError::file("copy", &source))?;
            let mode = source.metadata().map_err(BlobError::file("look at", &source))?.permissions().mode();
            set_mode(&target, 0o666 | (mode & 0o111))?;
        } else {
            fs::hard_link(&source, &target).map_err(BlobError::file("link", &target))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, content: &[u8]) -> TreeEntry {
        let node = TreeNode::File { executable: false, size: content.len() as u64, chunks: vec![Digest::of(content)] };
        TreeEntry { path: path.to_owned(), node }
    }

    fn dir(path: &str) -> TreeEntry {
        TreeEntry { path: path.to_owned(), node: TreeNode::Dir }
    }

    fn link(path: &str, target: &str) -> TreeEntry {
        TreeEntry { path: path.to_owned(), node: TreeNode::Link { target: target.to_owned() } }
    }

    fn make(root: &Path, entries: &[TreeEntry]) -> Result<(), BlobError> {
        let mut made = BTreeMap::new();
        for entry in entries {
            make_entry(root, &Digest::of(b"tree"), entry, &mut made, |_| Ok(b"x".to_vec()))?;
        }
        Ok(())
    }

    #[test]
    fn a_tree_becomes_a_folder_with_its_modes_and_links() {
        let root = tempfile::tempdir().unwrap();
        let mut script = file("scripts/run.sh", b"x");
        if let TreeNode::File { executable, .. } = &mut script.node {
            *executable = true;
        }
        make(root.path(), &[dir("scripts"), script, file("data.txt", b"x"), link("scripts/data", "../data.txt")])
            .unwrap();
        let mode = fs::metadata(root.path().join("scripts/run.sh")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        assert_eq!(fs::read(root.path().join("scripts/data")).unwrap(), b"x");
    }

    #[test]
    fn hostile_entries_are_refused_and_nothing_is_made_outside() {
        let hostile: Vec<Vec<TreeEntry>> = vec![
            vec![file("/etc/passwd", b"x")],
            vec![file("../escaped", b"x")],
            vec![dir("a"), file("a/../../escaped", b"x")],
            vec![file("", b"x")],
            vec![file("a//b", b"x")],
            vec![file("./a", b"x")],
            vec![file("a\0b", b"x")],
            vec![link("out", "/etc"), file("out/passwd", b"x")],
            vec![link("out", "../.."), file("out/escaped", b"x")],
            vec![dir("d"), link("d/in", "../d"), file("d/in/x", b"x")],
            vec![link("out", "d/../../escaped")],
            vec![link("out", "")],
            vec![file("a", b"x"), file("a", b"x")],
            vec![file("a", b"x"), file("a/b", b"x")],
            vec![file("missing/b", b"x")],
            vec![file(&"x/".repeat(3000), b"x")],
        ];
        for entries in hostile {
            let outer = tempfile::tempdir().unwrap();
            let root = outer.path().join("root");
            fs::create_dir(&root).unwrap();
            let result = make(&root, &entries);
            assert!(matches!(result, Err(BlobError::Hostile { .. })), "{entries:?} gave {result:?}");
            assert!(!outer.path().join("escaped").exists());
        }
    }

    #[test]
    fn a_file_of_another_size_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let result = make(root.path(), &[file("a", b"longer")]);
        assert!(matches!(result, Err(BlobError::Unreadable { .. })), "{result:?}");
    }

    #[test]
    fn a_view_hides_what_it_should_and_a_copy_is_its_own_and_everybodys() {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("task");
        fs::create_dir_all(root.join("data")).unwrap();
        for name in ["verifier.py", "setup.sh", "data/verifier.py", "data/secret"] {
            fs::write(root.join(name), name).unwrap();
        }
        symlink("setup.sh", root.join("link")).unwrap();
        let view = outer.path().join("view");
        link_view(&root, &view, false, &["verifier.py".into(), "data/secret".into()]).unwrap();
        assert!(!view.join("verifier.py").exists());
        assert!(view.join("data/verifier.py").exists());
        assert!(!view.join("data/secret").exists());
        assert_eq!(fs::read_link(view.join("link")).unwrap(), Path::new("setup.sh"));
        let copy = outer.path().join("copy");
        link_view(&root, &copy, true, &[]).unwrap();
        fs::write(copy.join("setup.sh"), "changed").unwrap();
        assert_eq!(fs::read_to_string(root.join("setup.sh")).unwrap(), "setup.sh");
        assert_eq!(copy.join("data").metadata().unwrap().permissions().mode() & 0o777, 0o777);
        assert_eq!(copy.join("setup.sh").metadata().unwrap().permissions().mode() & 0o666, 0o666);
    }
}
