//! Where a benchmark is, and what its mounts mean.
//!
//! Mounts name their sources as seen from wherever their author stood:
//! `benchmarks/cua_world/environments/X/scripts`. A source is looked for, in this order:
//!
//! 1. if it starts with the benchmark's own path as seen from a folder above it: below
//!    the benchmark;
//! 2. below the root of the clone;
//! 3. below the benchmark;
//! 4. below the env's folder;
//! 5. what follows `environments/` in it: below the benchmark's `environments`;
//! 6. what follows the env's folder name in it: below the env's folder.
//!
//! The first that is there is taken. What lies outside of the clone, by `..` or through
//! a link, is refused. The root of the clone is the nearest folder above with a `.git`;
//! else what lies above `benchmarks/NAME`; else the benchmark itself.

use std::io;
use std::path::{Component, Path, PathBuf};

/// A folder that is no benchmark.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// It is not there, or cannot be read.
    #[error("cannot read the benchmark {}", path.display())]
    Unreadable {
        /// The folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It has no `environments` folder.
    #[error("{} is no benchmark: it has no folder `environments`{hint}", path.display())]
    NoEnvironments {
        /// The folder.
        path: PathBuf,
        /// What was probably meant.
        hint: String,
    },
}

/// Where a benchmark is.
#[derive(Clone, Debug)]
pub struct Layout {
    root: PathBuf,
    clone: PathBuf,
}

/// What a mount's source is on this disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountSource {
    /// A folder or file, its links resolved.
    Found(PathBuf),
    /// It is nowhere.
    Missing,
    /// It lies outside of the clone.
    Outside,
}

impl Layout {
    /// The benchmark in a folder.
    ///
    /// # Errors
    ///
    /// The folder is not there, or has no `environments`.
    pub fn find(path: &Path) -> Result<Self, LayoutError> {
        let unreadable = |source| LayoutError::Unreadable { path: path.to_owned(), source };
        let root = path.canonicalize().map_err(unreadable)?;
        if !root.join("environments").is_dir() {
            return Err(LayoutError::NoEnvironments { path: path.to_owned(), hint: hint(&root) });
        }
        let clone = clone_root(&root);
        Ok(Self { root, clone })
    }

    /// The benchmark's folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The clone that it is in; nothing outside of it is ever read.
    #[must_use]
    pub fn clone_root(&self) -> &Path {
        &self.clone
    }

    /// The folder with the envs.
    #[must_use]
    pub fn environments(&self) -> PathBuf {
        self.root.join("environments")
    }

    /// The folder with the splits.
    #[must_use]
    pub fn splits(&self) -> PathBuf {
        self.root.join("splits")
    }

    /// A path as findings name it: relative to the benchmark.
    #[must_use]
    pub fn name(&self, path: &Path) -> String {
        let relative = path.strip_prefix(&self.root).or_else(|_| path.strip_prefix(&self.clone)).unwrap_or(path);
        relative.to_string_lossy().into_owned()
    }

    /// Whether a path, its links resolved, is inside of the clone.
    #[must_use]
    pub fn contains(&self, resolved: &Path) -> bool {
        resolved.starts_with(&self.clone)
    }

    /// What a mount of the env in `env_dir` means by its source.
    #[must_use]
    pub fn mount_source(&self, env_dir: &Path, source: &str) -> MountSource {
        let source = Path::new(source);
        if source.is_absolute() {
            return self.contained(source).unwrap_or(MountSource::Missing);
        }
        // Only plain parts: a source cannot climb.
        let mut parts = Vec::new();
        for component in source.components() {
            match component {
                Component::Normal(part) => parts.push(part),
                Component::CurDir => {}
                Component::ParentDir => match parts.pop() {
                    Some(_) => {}
                    None => return MountSource::Outside,
                },
                Component::RootDir | Component::Prefix(_) => return MountSource::Outside,
            }
        }
        if parts.is_empty() {
            return MountSource::Missing;
        }
        let mut outside = false;
        for candidate in self.candidates(env_dir, &parts) {
            match self.contained(&candidate) {
                Some(MountSource::Outside) => outside = true,
                Some(found) => return found,
                None => {}
            }
        }
        if outside { MountSource::Outside } else { MountSource::Missing }
    }

    /// The places to look, in order.
    fn candidates(&self, env_dir: &Path, parts: &[&std::ffi::OsStr]) -> Vec<PathBuf> {
        let below = |base: &Path, rest: &[&std::ffi::OsStr]| base.join(rest.iter().collect::<PathBuf>());
        let mut candidates = Vec::new();
        let own: Vec<_> = self.root.iter().collect();
        // The longest suffix of the benchmark's path that the source starts with.
        if let Some(length) = (1..=own.len().min(parts.len())).rev().find(|length| own.ends_with(&parts[..*length])) {
            candidates.push(below(&self.root, &parts[length..]));
        }
        candidates.push(below(&self.clone, parts));
        candidates.push(below(&self.root, parts));
        candidates.push(below(env_dir, parts));
        let after =
            |name: &std::ffi::OsStr| parts.iter().position(|part| *part == name).map(|index| &parts[index + 1..]);
        if let Some(rest) = after("environments".as_ref()).filter(|rest| !rest.is_empty()) {
            candidates.push(below(&self.environments(), rest));
        }
        if let Some(rest) = env_dir.file_name().and_then(after) {
            candidates.push(below(env_dir, rest));
        }
        candidates
    }

    /// What is at a path, if anything.
    fn contained(&self, path: &Path) -> Option<MountSource> {
        let resolved = path.canonicalize().ok()?;
        Some(if self.contains(&resolved) { MountSource::Found(resolved) } else { MountSource::Outside })
    }
}

fn clone_root(root: &Path) -> PathBuf {
    if let Some(above) = root.ancestors().find(|folder| folder.join(".git").exists()) {
        return above.to_owned();
    }
    match root.parent() {
        Some(parent) if parent.ends_with("benchmarks") => parent.parent().unwrap_or(parent).to_owned(),
        _ => root.to_owned(),
    }
}

/// What a person probably meant, if the folder is part of a benchmark or holds some.
fn hint(root: &Path) -> String {
    let above = |levels: usize| root.ancestors().nth(levels).map(Path::to_owned);
    let is_benchmark = |path: &Path| path.join("environments").is_dir();
    if root.ends_with("environments")
        && let Some(meant) = above(1)
    {
        return format!("; did you mean {}?", meant.display());
    }
    for (levels, flag) in [(2, "--env"), (4, "--task")] {
        if let (Some(meant), Some(name)) = (above(levels).filter(|path| is_benchmark(path)), root.file_name()) {
            return format!("; did you mean {} with {flag} `{}`?", meant.display(), name.to_string_lossy());
        }
    }
    let benchmarks = root.join("benchmarks");
    let mut within: Vec<_> = std::fs::read_dir(&benchmarks)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| is_benchmark(path))
        .collect();
    within.sort();
    within.first().map(|meant| format!("; did you mean {}?", meant.display())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn benchmark() -> (tempfile::TempDir, Layout, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("clone/benchmarks/small");
        let env = root.join("environments/paint_env");
        fs::create_dir_all(env.join("scripts")).unwrap();
        fs::create_dir_all(root.join("environments/other_env/scripts")).unwrap();
        fs::create_dir_all(folder.path().join("secret")).unwrap();
        let layout = Layout::find(&root).unwrap();
        let env = env.canonicalize().unwrap();
        (folder, layout, env)
    }

    #[test]
    fn a_source_is_found_however_its_author_wrote_it() {
        let (_folder, layout, env) = benchmark();
        let scripts = MountSource::Found(env.join("scripts"));
        for source in [
            "benchmarks/small/environments/paint_env/scripts",
            "small/environments/paint_env/scripts",
            "environments/paint_env/scripts",
            "./scripts/",
            "scripts/../scripts",
            "benchmarks/its_old_name/environments/paint_env/scripts",
            "examples/paint_env/scripts",
        ] {
            assert_eq!(layout.mount_source(&env, source), scripts, "{source}");
        }
        let other = layout.mount_source(&env, "benchmarks/small/environments/other_env/scripts");
        assert_eq!(other, MountSource::Found(layout.environments().join("other_env/scripts")));
        for missing in ["benchmarks/small/environments/paint_env/assets", "", ".", "nowhere"] {
            assert_eq!(layout.mount_source(&env, missing), MountSource::Missing, "{missing}");
        }
    }

    #[test]
    fn nothing_outside_of_the_clone_is_reached() {
        let (folder, layout, env) = benchmark();
        std::os::unix::fs::symlink(folder.path().join("secret"), env.join("link")).unwrap();
        for source in ["../../../../../secret", "/etc", "link", "scripts/../../../../../../secret"] {
            assert_eq!(layout.mount_source(&env, source), MountSource::Outside, "{source}");
        }
        std::os::unix::fs::symlink("../other_env/scripts", env.join("inner")).unwrap();
        let inner = layout.mount_source(&env, "inner");
        assert_eq!(inner, MountSource::Found(layout.environments().join("other_env/scripts")));
    }

    #[test]
    fn a_wrong_folder_is_refused_with_the_one_that_was_meant() {
        let (folder, _layout, env) = benchmark();
        let said = |path: &Path| Layout::find(path).unwrap_err().to_string();
        assert!(said(&env).contains("with --env `paint_env`"), "{}", said(&env));
        assert!(said(&folder.path().join("clone")).contains("benchmarks/small?"));
        assert!(said(&folder.path().join("gone")).starts_with("cannot read the benchmark"));
    }
}
