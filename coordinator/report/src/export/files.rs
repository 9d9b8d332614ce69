//! Files of an export: names that cannot leave its folder, and all of it or nothing.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use longhaul_core::digest::Digest;
use longhaul_core::time::Timestamp;

use super::ExportError;
use crate::view::EpisodeView;

/// The longest name of a file that every filesystem takes, with room for what is added.
const MAX_NAME: usize = 100;

/// A folder in the making, removed again unless it is finished.
#[derive(Debug)]
pub(super) struct Staging {
    folder: PathBuf,
    out: PathBuf,
    finished: bool,
}

pub(super) fn failed(path: &Path) -> impl FnOnce(io::Error) -> ExportError + use<> {
    let path = path.to_owned();
    move |source| ExportError::Write { path, source }
}

impl Staging {
    /// Starts an export whose place is `out`.
    pub(super) fn begin(out: &Path) -> Result<Self, ExportError> {
        match fs::read_dir(out) {
            Ok(mut entries) => {
                if entries.next().is_some() {
                    return Err(ExportError::NotEmpty { path: out.to_owned() });
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(out)(error)),
        }
        let parent = match out.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        fs::create_dir_all(parent).map_err(failed(parent))?;
        let mut name = std::ffi::OsString::from(".");
        name.push(out.file_name().unwrap_or_default());
        name.push(format!(".partial-{}", std::process::id()));
        let folder = parent.join(name);
        fs::create_dir(&folder).map_err(failed(&folder))?;
        Ok(Self { folder, out: out.to_owned(), finished: false })
    }

    /// The folder to write to.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Moves it to its place, which is still not there or empty.
    pub(super) fn finish(mut self) -> Result<(), ExportError> {
        fs::rename(&self.folder, &self.out).map_err(|error| match error.kind() {
            io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists => {
                ExportError::NotEmpty { path: self.out.clone() }
            }
            _ => failed(&self.out)(error),
        })?;
        self.finished = true;
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.finished {
            // What cannot be removed stays, under a name that says what it is.
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// A name as part of a path. What is not plain is replaced, and then a piece of the
/// name's digest keeps it apart from others that are replaced alike.
pub(super) fn component(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let safe: String = name.chars().take(MAX_NAME).map(|c| if plain(c) { c } else { '_' }).collect();
    if safe == name && !safe.starts_with('.') && !safe.is_empty() {
        return safe;
    }
    let digest: String = Digest::of(name.as_bytes()).to_string().chars().take(8).collect();
    let safe = safe.trim_start_matches('.');
    format!("{}-{digest}", if safe.is_empty() { "_" } else { safe })
}

/// `ENV/TASK/AGENT` of an episode, below a folder.
pub(super) fn agent_folder(below: &Path, episode: &EpisodeView) -> PathBuf {
    below.join(component(&episode.task.env)).join(component(&episode.task.task)).join(component(&episode.agent))
}

/// The name of a log's file. What is kept under the name of an image is one; the names of
/// frames are taken.
pub(super) fn log_file(name: &str) -> String {
    let image = name.ends_with(".png") && name != "final.png" && !name.starts_with("frame_");
    if image { component(name) } else { format!("{}.log", component(name)) }
}

/// Whether a log is what a snapshot saved: it is no text, large, and holds whatever a task keeps from its
/// agents.
pub(super) fn is_top(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|kind| kind == "sqsh")
}

/// Writes a file.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), ExportError> {
    fs::write(path, bytes).map_err(failed(path))
}

/// Makes a folder and those above it.
pub(super) fn make_folder(path: &Path) -> Result<(), ExportError> {
    fs::create_dir_all(path).map_err(failed(path))
}

/// The pictures of a folder, each written once: most screens of an episode differ, and those that
/// do not are one file.
#[derive(Debug)]
pub(super) struct Pictures {
    folder: PathBuf,
    written: HashSet<Digest>,
}

impl Pictures {
    /// Pictures in a folder, which is made with the first.
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder, written: HashSet::new() }
    }

    /// Writes a picture as `DIGEST.png`, if it is not there yet, and was not dropped.
    pub(super) fn add(
        &mut self,
        digest: &Digest,
        read: impl FnOnce() -> Result<Option<Vec<u8>>, ExportError>,
    ) -> Result<(), ExportError> {
        if self.written.contains(digest) {
            return Ok(());
        }
        let Some(bytes) = read()? else { return Ok(()) };
        if self.written.is_empty() {
            make_folder(&self.folder)?;
        }
        write(&self.folder.join(format!("{digest}.png")), &bytes)?;
        self.written.insert(*digest);
        Ok(())
    }

    /// How many files there are.
    pub(super) fn count(&self) -> u64 {
        u64::try_from(self.written.len()).unwrap_or(u64::MAX)
    }
}

/// Writes a value as an indented file of JSON.
pub(super) fn write_json(path: &Path, value: &serde_json::Value) -> Result<(), ExportError> {
    write(path, format!("{value:#}\n").as_bytes())
}

/// A point in time as ISO 8601 has it; none if it is out of the calendar's range.
pub(super) fn iso(at: Timestamp) -> Option<String> {
    let at = jiff::Timestamp::from_millisecond(i64::try_from(at.0).ok()?).ok()?;
    Some(format!("{at:.3}"))
}

/// A file of lines of JSON.
#[derive(Debug)]
pub(super) struct Lines {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Lines {
    pub(super) fn create(path: PathBuf) -> Result<Self, ExportError> {
        let file = File::create(&path).map_err(failed(&path))?;
        Ok(Self { path, file: BufWriter::new(file) })
    }

    /// Writes a line.
    pub(super) fn line(&mut self, value: &serde_json::Value) -> Result<(), ExportError> {
        writeln!(self.file, "{value}").map_err(failed(&self.path))
    }

    pub(super) fn finish(mut self) -> Result<(), ExportError> {
        self.file.flush().map_err(failed(&self.path))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_name_cannot_leave_the_folder_or_meet_another() {
        assert_eq!(component("gpredict_env"), "gpredict_env");
        assert_eq!(component("v1.2-b"), "v1.2-b");
        let long = "x".repeat(300);
        let names = ["..", ".", "", "a/b", "a\\b", "a b", "a_b", "../etc", ".hidden", "über", "\0", "a\nb", &long];
        let made: BTreeSet<String> = names.iter().map(|name| component(name)).collect();
        assert_eq!(made.len(), names.len(), "{made:?}");
        for name in &made {
            assert!(!name.starts_with('.') && !name.is_empty() && name.len() < 120, "{name}");
            assert!(!name.contains(['/', '\\', '\0', '\n']), "{name}");
        }
    }

    #[test]
    fn a_log_does_not_take_the_name_of_a_frame() {
        assert_eq!(log_file("pre_task"), "pre_task.log");
        assert!(is_top(&longhaul_core::snapshot::top_log(7)) && !is_top("pre_task") && !is_top("final.png"));
        assert_eq!(log_file("post_verification.png"), "post_verification.png");
        assert_eq!(log_file("final.png"), "final.png.log");
        assert_eq!(log_file("frame_00000.png"), "frame_00000.png.log");
        assert_eq!(log_file("summary.json"), "summary.json.log");
    }

    #[test]
    fn an_export_that_is_given_up_leaves_nothing_and_one_that_is_finished_all() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("new/out");
        let staging = Staging::begin(&out).unwrap();
        write(&staging.folder().join("file"), b"x").unwrap();
        drop(staging);
        assert_eq!(fs::read_dir(folder.path().join("new")).unwrap().count(), 0);

        fs::create_dir(&out).unwrap();
        let staging = Staging::begin(&out).unwrap();
        write(&staging.folder().join("file"), b"x").unwrap();
        staging.finish().unwrap();
        assert_eq!(fs::read(out.join("file")).unwrap(), b"x");
        assert!(matches!(Staging::begin(&out), Err(ExportError::NotEmpty { .. })));
        assert_eq!(fs::read_dir(folder.path().join("new")).unwrap().count(), 1);
    }
}
