//! The files that hooks of rounds are brought in with, of a task's folder.

use std::io;
use std::path::{Path, PathBuf};

use longhaul_core::rounds::{ROUNDS_FOLDER, RoundsPlan};

/// The most bytes of all of them: they are brought in for each hook.
pub const MOST_BYTES: u64 = 16 * 1024 * 1024;

/// Files that cannot be brought in.
#[derive(Debug, thiserror::Error)]
pub enum RoundFilesError {
    /// One cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// They are too large.
    #[error("the hooks of rounds have {bytes} bytes, and {MOST_BYTES} are the most")]
    TooLarge {
        /// What they have.
        bytes: u64,
    },
}

/// The files below a task's folder that its rounds name as hooks, and those of the folder that is
/// theirs. A link to a file of the task's is that file; one that leads elsewhere is left out, and
/// so is what is not there.
///
/// # Errors
///
/// They cannot be read, or have more than [`MOST_BYTES`].
pub fn round_files(folder: &Path, rounds: &RoundsPlan) -> Result<Vec<PathBuf>, RoundFilesError> {
    let read = |path: &Path| {
        let path = path.to_owned();
        move |source| RoundFilesError::Read { path, source }
    };
    let root = folder.canonicalize().map_err(read(folder))?;
    let (mut files, mut bytes) = (Vec::new(), 0);
    let mut left: Vec<PathBuf> = rounds.hook_files().into_iter().chain([ROUNDS_FOLDER]).map(PathBuf::from).collect();
    while let Some(path) = left.pop() {
        let whole = root.join(&path);
        let metadata = match whole.symlink_metadata() {
            Ok(metadata) => metadata,
            // Hooks may be elsewhere than in the folder that is theirs.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(read(&path)(error)),
        };
        let leads_to = whole.canonicalize().ok().filter(|target| target.starts_with(&root) && target.is_file());
        if metadata.is_dir() {
            for entry in whole.read_dir().map_err(read(&path))? {
                left.push(path.join(entry.map_err(read(&path))?.file_name()));
            }
        } else if let Some(target) = leads_to
            && !files.contains(&path)
        {
            bytes += target.metadata().map_err(read(&path))?.len();
            files.push(path);
        }
    }
    if bytes > MOST_BYTES {
        return Err(RoundFilesError::TooLarge { bytes });
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hooks_are_what_is_named_and_what_is_in_their_folder_once_and_bounded() {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("task");
        let file = |path: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        };
        for path in ["rounds/read.sh", "rounds/lib/db.py", "hooks/reopen.sh", "setup.sh"] {
            file(path);
        }
        std::fs::write(outer.path().join("outside"), "x").unwrap();
        for (name, target) in [("link", "../setup.sh"), ("out", "../../outside"), ("folder", "lib")] {
            std::os::unix::fs::symlink(target, root.join("rounds").join(name)).unwrap();
        }
        let round = |before: &str| json!({"kind": "open", "goal": "g", "before": before, "read": "rounds/read.sh", "assertions": []});
        let rounds = json!({"rounds": [round("hooks/reopen.sh"), round("none.sh")]});
        let rounds: RoundsPlan = serde_json::from_value(rounds).unwrap();
        let files = round_files(&root, &rounds).unwrap();
        let expected = ["hooks/reopen.sh", "rounds/lib/db.py", "rounds/link", "rounds/read.sh"];
        assert_eq!(files, expected.map(PathBuf::from));
        std::fs::File::create(root.join("rounds/data")).unwrap().set_len(MOST_BYTES).unwrap();
        let error = round_files(&root, &rounds).unwrap_err().to_string();
        assert_eq!(error, "the hooks of rounds have 16777220 bytes, and 16777216 are the most");
    }
}
