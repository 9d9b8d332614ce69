//! Files in and out of the sandbox.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::OFlag;

/// Opens a regular file to be sent; its size at this moment comes with it.
pub(crate) fn open(path: &Path) -> io::Result<(File, u64)> {
    // Opening a pipe that nobody writes to would wait for ever.
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok((file, metadata.len()))
}

/// Writes what `data` brings to `path`, with mode 0644 if it is new.
pub(crate) fn write(path: &Path, data: &mut impl Read) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut file = OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o644)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)?;
    io::copy(data, &mut file)?;
    Ok(())
}

/// Packs `path` and what is below it as a tar stream. Entries are named from the path's
/// last part on. What is neither file, folder nor link is left out, and so is what
/// vanishes meanwhile: programs are running.
pub(crate) fn pack(path: &Path, out: &mut impl Write) -> io::Result<()> {
    let mut archive = tar::Builder::new(out);
    archive.follow_symlinks(false);
    let name = path.file_name().map_or_else(|| Path::new("root"), Path::new);
    // A link given as the path itself is followed, as a caller of a copy expects.
    let start = fs::canonicalize(path)?;
    let mut waiting = vec![(start, name.to_path_buf())];
    while let Some((from, name)) = waiting.pop() {
        let Some(metadata) = unless_gone(fs::symlink_metadata(&from))? else { continue };
        let mut header = tar::Header::new_gnu();
        header.set_metadata_in_mode(&metadata, tar::HeaderMode::Complete);
        if metadata.is_dir() {
            archive.append_data(&mut header, &name, io::empty())?;
            let Some(entries) = unless_gone(fs::read_dir(&from))? else { continue };
            for entry in entries {
                let entry = entry?;
                waiting.push((entry.path(), name.join(entry.file_name())));
            }
        } else if metadata.is_symlink() {
            let Some(target) = unless_gone(fs::read_link(&from))? else { continue };
            header.set_size(0);
            archive.append_link(&mut header, &name, target)?;
        } else if metadata.is_file() {
            let Some((file, size)) = unless_gone(open(&from))? else { continue };
            header.set_size(size);
            // Exactly as much as the header says, whatever a writer does to it now.
            archive.append_data(&mut header, &name, file.chain(io::repeat(0)).take(size))?;
        }
    }
    archive.finish()
}

fn unless_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_comes_out_as_it_is() {
        let folder = tempfile::tempdir().expect("folder");
        let root = folder.path().join("top");
        write(&root.join("a/b.txt"), &mut b"hello".as_slice()).expect("writes");
        std::os::unix::fs::symlink("a/b.txt", root.join("link")).expect("links");
        let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).expect("binds");
        let mut packed = Vec::new();
        pack(&root, &mut packed).expect("packs");
        let mut archive = tar::Archive::new(packed.as_slice());
        let mut names: Vec<_> = archive
            .entries()
            .expect("reads")
            .map(|entry| entry.expect("entry").path().expect("path").display().to_string())
            .collect();
        names.sort();
        assert_eq!(names, ["top", "top/a", "top/a/b.txt", "top/link"]);
    }

    #[test]
    fn pipes_and_folders_are_not_files() {
        let folder = tempfile::tempdir().expect("folder");
        let pipe = folder.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("makes");
        assert_eq!(open(&pipe).expect_err("no file").kind(), io::ErrorKind::InvalidInput);
        assert!(open(folder.path()).is_err());
        assert!(write(&pipe, &mut b"x".as_slice()).is_err(), "and nobody waits for a reader");
    }
}
