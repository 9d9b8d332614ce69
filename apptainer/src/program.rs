//! Finding Apptainer, and what every call of it has in common.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::str::FromStr;
use std::sync::Arc;

use tokio::process::Command;
use tokio::sync::{OnceCell, Semaphore};

use crate::command::{self, ExecPlan, PlanError};

/// Names that Apptainer goes by.
const NAMES: [&str; 2] = ["apptainer", "singularity"];

/// The oldest version whose command line and fakeroot modes are the ones used here.
pub const OLDEST: Version = Version { major: 1, minor: 1, patch: 0 };

/// How many sandboxes start at the same time at most, however many processors there are:
/// dozens at once fail at random.
const MOST_STARTS: usize = 8;

/// Variables of Apptainer's own that a person may have set for good reasons. All others of
/// its variables (binds, overlays, environment) would leak into every sandbox.
const KEPT: [&str; 6] = [
    "APPTAINER_CACHEDIR",
    "APPTAINER_TMPDIR",
    "APPTAINER_CONFIGDIR",
    "APPTAINER_DOCKER_USERNAME",
    "APPTAINER_DOCKER_PASSWORD",
    "APPTAINER_DISABLE_CACHE",
];

/// A version of Apptainer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Raised by what breaks.
    pub major: u32,
    /// Raised by what is new.
    pub minor: u32,
    /// Raised by what is repaired.
    pub patch: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl FromStr for Version {
    type Err = ();

    /// Reads `apptainer --version`: `apptainer version 1.4.5` or `1.4.5-2.el9`.
    fn from_str(text: &str) -> Result<Self, ()> {
        let word = text.split_whitespace().last().ok_or(())?;
        let mut numbers = word.split(|letter: char| !letter.is_ascii_digit());
        let mut next = || numbers.next().and_then(|digits| digits.parse().ok());
        let (major, minor) = (next().ok_or(())?, next().ok_or(())?);
        Ok(Self { major, minor, patch: next().unwrap_or(0) })
    }
}

/// Why Apptainer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DetectError {
    /// It is not there.
    #[error("apptainer is not on the PATH; install it, or load its module, and see `longhaul doctor`")]
    NotFound,
    /// It does not run.
    #[error("`{program} --version` failed: {message}")]
    Broken {
        /// The program.
        program: PathBuf,
        /// What it said.
        message: String,
    },
    /// It is too old.
    #[error("{program} is version {version}; at least {OLDEST} is needed")]
    TooOld {
        /// The program.
        program: PathBuf,
        /// Its version.
        version: Version,
    },
}

/// Why a short-lived container did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// It cannot be described.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// It could not be started.
    #[error("{program} could not be started")]
    Start {
        /// The program.
        program: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It failed.
    #[error("`{what}` failed ({status}): {message}")]
    Failed {
        /// What was run inside.
        what: String,
        /// How it ended.
        status: std::process::ExitStatus,
        /// The end of what it said.
        message: String,
    },
}

/// Apptainer as it was found on this machine; cheap to clone.
#[derive(Clone, Debug)]
pub struct Apptainer {
    program: PathBuf,
    version: Version,
    userns: bool,
    starts: Arc<Semaphore>,
    driver: Arc<OnceCell<String>>,
}

impl Apptainer {
    /// Looks for Apptainer on the PATH and asks for its version.
    pub async fn detect() -> Result<Self, DetectError> {
        let program = NAMES.into_iter().find_map(on_path).ok_or(DetectError::NotFound)?;
        let broken = |message: String| DetectError::Broken { program: program.clone(), message };
        let output = Command::new(&program)
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .await
            .map_err(|error| broken(error.to_string()))?;
        let said = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            return Err(broken(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        let version: Version = said.parse().map_err(|()| broken(format!("it says `{}`", said.trim())))?;
        if version < OLDEST {
            return Err(DetectError::TooOld { program, version });
        }
        let cpus = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        Ok(Self {
            program,
            version,
            userns: nix::unistd::geteuid().is_root(),
            starts: Arc::new(Semaphore::new(cpus.clamp(2, MOST_STARTS))),
            driver: Arc::default(),
        })
    }

    /// Lets at most `count` sandboxes start at the same time.
    #[must_use]
    pub fn with_parallel_starts(mut self, count: usize) -> Self {
        self.starts = Arc::new(Semaphore::new(count.max(1)));
        self
    }

    /// The program's path.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The program's version.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// Whether containers ask for a user namespace in so many words.
    pub(crate) const fn userns(&self) -> bool {
        self.userns
    }

    /// What paces the starts.
    pub(crate) fn starts(&self) -> &Arc<Semaphore> {
        &self.starts
    }

    /// A call of Apptainer that knows nothing of the caller's own container settings.
    pub(crate) fn command(&self, args: &[OsString]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            let own = text.starts_with("APPTAINER") || text.starts_with("SINGULARITY");
            if own && !KEPT.contains(&text.as_ref()) {
                command.env_remove(&name);
            }
        }
        // Out of reach of signals to the caller's process group.
        command.process_group(0);
        command
    }

    /// Runs a short-lived container to its end and returns what it wrote.
    pub(crate) async fn tool(&self, mut plan: ExecPlan) -> Result<String, ToolError> {
        plan.userns = self.userns;
        let args = command::exec(&plan)?;
        let mut command = self.command(&args);
        command.kill_on_drop(true).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output =
            command.output().await.map_err(|source| ToolError::Start { program: self.program.clone(), source })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(ToolError::Failed {
            what: plan.argv.first().cloned().unwrap_or_default(),
            status: output.status,
            message: last_lines(&[output.stdout, output.stderr].concat(), 8),
        })
    }

    /// The filesystem that stacks layers on this machine (`fuse-overlayfs`, `overlay`),
    /// found out once by looking into a container. Layers of one are no good for another:
    /// they write deletions differently.
    pub async fn overlay_driver(&self, image: &Path, scratch: &Path) -> Result<String, ToolError> {
        let probe = || async {
            let start = |source| ToolError::Start { program: self.program.clone(), source };
            let folder = tempfile::Builder::new().prefix("probe-").tempdir_in(scratch).map_err(start)?;
            for part in ["upper", "work"] {
                std::fs::create_dir_all(folder.path().join(part)).map_err(start)?;
            }
            let mounts = self
                .tool(ExecPlan {
                    image: image.to_owned(),
                    top: Some(folder.path().to_owned()),
                    argv: ["cat", "/proc/self/mountinfo"].map(str::to_owned).into(),
                    ..ExecPlan::default()
                })
                .await?;
            Ok(root_filesystem(&mounts).to_owned())
        };
        self.driver.get_or_try_init(probe).await.cloned()
    }
}

/// The type of filesystem that `/` is, out of a mountinfo text.
fn root_filesystem(mounts: &str) -> &str {
    mounts
        .lines()
        .filter_map(|line| line.split_once(" - "))
        .filter(|(head, _)| head.split(' ').nth(4) == Some("/"))
        .filter_map(|(_, tail)| tail.split(' ').next())
        .next_back()
        .map_or("unknown", |kind| kind.strip_prefix("fuse.").unwrap_or(kind))
}

/// A program of this name on the PATH.
#[must_use]
pub(crate) fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::metadata(file).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
    })
}

/// The last lines of a text, for people.
#[must_use]
pub(crate) fn last_lines(text: &[u8], count: usize) -> String {
    let text = String::from_utf8_lossy(text);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines.get(lines.len().saturating_sub(count)..).unwrap_or_default().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_compared() {
        let version = |text: &str| text.parse::<Version>();
        assert_eq!(version("apptainer version 1.4.5\n"), Ok(Version { major: 1, minor: 4, patch: 5 }));
        assert_eq!(version("apptainer version 1.3.0-rc.1"), Ok(Version { major: 1, minor: 3, patch: 0 }));
        assert_eq!(version("apptainer version 1.2"), Ok(Version { major: 1, minor: 2, patch: 0 }));
        assert!(version("no idea").is_err());
        assert!(version("apptainer version 1.0.3").expect("reads") < OLDEST);
    }

    #[test]
    fn the_roots_filesystem_is_the_last_one_mounted_there() {
        let mounts = "1 2 0:1 / / rw - ext4 /dev/vda rw\n\
                      3 1 0:2 / /proc rw - proc proc rw\n\
                      4 1 0:3 / / rw,nodev unbindable - fuse.fuse-overlayfs fuse-overlayfs rw\n";
        assert_eq!(root_filesystem(mounts), "fuse-overlayfs");
        assert_eq!(root_filesystem(""), "unknown");
    }

    #[test]
    fn the_end_of_a_text_is_kept() {
        assert_eq!(last_lines(b"a\n\nb\nc\n", 2), "b\nc");
        assert_eq!(last_lines(b"", 2), "");
    }
}
