//! Finding Apptainer, and what every call of it has in common.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::Command;
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::timeout;

use crate::command::{self, BindPlan, ExecPlan, PlanError};
use crate::sandbox::end_session;
use crate::scratch::{MARK, SEEN_AT, Scratch, ScratchError, is_deep};
use crate::session;

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

/// How long it may take to say which version it is.
const VERSION_LIMIT: Duration = Duration::from_secs(30);

/// Empties a folder that is seen there.
const EMPTY: [&str; 6] = ["find", SEEN_AT, "-xdev", "-mindepth", "1", "-delete"];

/// How long what is called may take; what takes longer is ended, and a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A sandbox, until its helper answers. Many that start together on few processors need far
    /// more than one alone.
    pub start: Duration,
    /// A short-lived container: packing a layer, removing what a sandbox left.
    pub tool: Duration,
    /// Each program that makes a base image.
    pub build: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            start: Duration::from_secs(120),
            tool: Duration::from_secs(30 * 60),
            build: Duration::from_secs(2 * 3600),
        }
    }
}

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
    /// It does not answer.
    #[error("`{program} --version` said nothing for {} s", VERSION_LIMIT.as_secs())]
    Silent {
        /// The program.
        program: PathBuf,
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
    /// Its folder cannot be used.
    #[error(transparent)]
    Scratch(#[from] Box<ScratchError>),
    /// It did not come to an end.
    #[error("`{what}` took longer than {} s and was ended", limit.as_secs())]
    TimeLimit {
        /// What was run inside.
        what: String,
        /// How long it may take.
        limit: Duration,
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
    limits: Limits,
    starts: Arc<Semaphore>,
    driver: Arc<OnceCell<String>>,
}

impl Apptainer {
    /// Looks for Apptainer on the PATH and asks for its version.
    pub async fn detect() -> Result<Self, DetectError> {
        let program = NAMES.into_iter().find_map(on_path).ok_or(DetectError::NotFound)?;
        let broken = |message: String| DetectError::Broken { program: program.clone(), message };
        let call = Command::new(&program)
            .arg("--version")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| broken(error.to_string()))?;
        let group = call.id().and_then(|pid| i32::try_from(pid).ok()).map(Pid::from_raw);
        let Ok(output) = timeout(VERSION_LIMIT, call.wait_with_output()).await else {
            // With what it has started, should it be a script of the site's.
            let _ = group.map(|group| killpg(group, Signal::SIGKILL));
            return Err(DetectError::Silent { program });
        };
        let output = output.map_err(|error| broken(error.to_string()))?;
        let said = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            return Err(broken(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        let version: Version = said.parse().map_err(|()| broken(format!("it says `{}`", said.trim())))?;
        if version < OLDEST {
            return Err(DetectError::TooOld { program, version });
        }
        Ok(Self::at(program, version))
    }

    /// A program that is there.
    pub(crate) fn at(program: PathBuf, version: Version) -> Self {
        let cpus = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        Self {
            program,
            version,
            userns: nix::unistd::geteuid().is_root(),
            limits: Limits::default(),
            starts: Arc::new(Semaphore::new(cpus.clamp(2, MOST_STARTS))),
            driver: Arc::default(),
        }
    }

    /// Lets at most `count` sandboxes start at the same time.
    #[must_use]
    pub fn with_parallel_starts(mut self, count: usize) -> Self {
        self.starts = Arc::new(Semaphore::new(count.max(1)));
        self
    }

    /// Lets calls take so long.
    #[must_use]
    pub const fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// How long calls may take.
    pub(crate) const fn limits(&self) -> Limits {
        self.limits
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

    /// A call of Apptainer that knows nothing of the caller's own container settings, is out of reach of
    /// signals to the caller's process group, and waits to be told to begin ([`session`]).
    pub(crate) fn command(&self, args: &[OsString]) -> Command {
        let mut command = session::gated(&self.program);
        command.args(args);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            let own = text.starts_with("APPTAINER") || text.starts_with("SINGULARITY");
            if own && !KEPT.contains(&text.as_ref()) {
                command.env_remove(&name);
            }
        }
        command
    }

    /// Runs a short-lived container to its end and returns what it wrote. It is known by the record of
    /// `scratch`, and ended at its limit.
    pub(crate) async fn tool(&self, scratch: &mut Scratch, mut plan: ExecPlan) -> Result<String, ToolError> {
        plan.userns = self.userns;
        let what = plan.argv.first().cloned().unwrap_or_default();
        let start = |source| ToolError::Start { program: self.program.clone(), source };
        let args = command::exec(&plan)?;
        let mut command = self.command(&args);
        command.env(MARK, scratch.mark()).kill_on_drop(true).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut call = command.spawn().map_err(start)?;
        let identity = session::identity(&call).map_err(start)?;
        if let Some(identity) = identity.clone() {
            scratch.called(identity).map_err(Box::new)?;
        }
        drop(session::begin(&mut call).await.map_err(start)?);
        let limit = self.limits.tool;
        let Ok(output) = timeout(limit, call.wait_with_output()).await else {
            if let Some(identity) = identity {
                end_session(scratch.mark(), &identity).await;
            }
            return Err(ToolError::TimeLimit { what, limit });
        };
        let output = output.map_err(start)?;
        if output.status.success() {
            if let Some(identity) = &identity {
                scratch.over(identity);
            }
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let message = last_lines(&[output.stdout, output.stderr].concat(), 8);
        Err(ToolError::Failed { what, status: output.status, message })
    }

    /// Removes a folder in which accounts of a sandbox may own files: those are only removed in a
    /// container with the same mapping. `scratch_root` is where that is noted.
    ///
    /// # Errors
    ///
    /// Something of it is still there.
    pub async fn remove_folder(&self, image: &Path, scratch_root: &Path, folder: &Path) -> Result<(), ScratchError> {
        let own = folder.to_owned();
        let remove = move || {
            // What an agent may have written is gone through on a stack that has an end.
            if is_deep(&own) { Err(io::Error::other("it is too deep")) } else { std::fs::remove_dir_all(own) }
        };
        let removed = tokio::task::spawn_blocking(remove).await;
        if matches!(&removed, Ok(Ok(()))) || !folder.exists() {
            return Ok(());
        }
        let mut scratch = Scratch::of_tool(scratch_root, "remove")?;
        let plan = ExecPlan {
            image: image.to_owned(),
            binds: vec![BindPlan { source: folder.to_owned(), target: SEEN_AT.into(), writable: true }],
            argv: EMPTY.map(str::to_owned).into(),
            ..ExecPlan::default()
        };
        let emptied = self.tool(&mut scratch, plan).await;
        scratch.remove(self, Some(image)).await?;
        let path = folder.to_owned();
        std::fs::remove_dir_all(folder).map_err(|error| match emptied {
            Err(source) => ScratchError::Remove { path, source },
            Ok(_) => ScratchError::Io { path, source: error },
        })
    }

    /// The filesystem that stacks layers on this machine (`fuse-overlayfs`, `overlay`),
    /// found out once by looking into a container. Layers of one are no good for another:
    /// they write deletions differently.
    pub async fn overlay_driver(&self, image: &Path, scratch: &Path) -> Result<String, ToolError> {
        let probe = || async {
            let mut folder = Scratch::of_tool(scratch, "probe").map_err(Box::new)?;
            let plan = ExecPlan {
                image: image.to_owned(),
                top: Some(folder.top()),
                argv: ["cat", "/proc/self/mountinfo"].map(str::to_owned).into(),
                ..ExecPlan::default()
            };
            let mounts = self.tool(&mut folder, plan).await;
            folder.remove(self, Some(image)).await.map_err(Box::new)?;
            Ok(root_filesystem(&mounts?).to_owned())
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

    /// A stand-in that starts something which it waits for, and says who that is.
    fn hanging(folder: &Path) -> Apptainer {
        use std::os::unix::fs::PermissionsExt;
        let (program, said) = (folder.join("apptainer"), folder.join("child"));
        std::fs::write(&program, format!("#!/bin/sh\nsleep 600 & echo $! >{}\nwait\n", said.display()))
            .expect("writes");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("sets");
        let second = Duration::from_secs(1);
        Apptainer::at(program, OLDEST).with_limits(Limits { start: second, tool: second, build: second })
    }

    fn child_of(folder: &Path) -> Option<i32> {
        std::fs::read_to_string(folder.join("child")).ok()?.trim().parse().ok()
    }

    fn lives(pid: i32) -> bool {
        crate::identity::ProcessIdentity::of(pid).expect("reads").is_some()
    }

    #[tokio::test]
    async fn a_short_lived_container_that_hangs_is_ended_whole_at_its_limit() {
        let folder = tempfile::tempdir().expect("folder");
        let apptainer = hanging(folder.path());
        let mut scratch = Scratch::of_tool(folder.path(), "test").expect("makes");
        let plan = ExecPlan { image: "/x.sif".into(), argv: vec!["true".to_owned()], ..ExecPlan::default() };
        let ran = apptainer.tool(&mut scratch, plan).await;
        assert!(matches!(ran, Err(ToolError::TimeLimit { .. })), "{ran:?}");
        assert!(!lives(child_of(folder.path()).expect("it ran")));
    }

    #[tokio::test]
    async fn a_sandbox_whose_start_hangs_is_ended_whole_at_its_limit_and_leaves_no_folder() {
        let folder = tempfile::tempdir().expect("folder");
        let apptainer = hanging(folder.path());
        let scratch = folder.path().join("scratch");
        let spec = crate::SandboxSpec {
            id: "hangs".to_owned(),
            image: "/x.sif".into(),
            scratch: scratch.clone(),
            helper_program: "/bin/true".into(),
            ..crate::SandboxSpec::default()
        };
        let started = crate::Sandbox::start(&apptainer, spec).await;
        assert!(matches!(started, Err(crate::SandboxError::StartTimeout { .. })), "{started:?}");
        assert!(!lives(child_of(folder.path()).expect("it ran")));
        assert_eq!(std::fs::read_dir(&scratch).expect("is there").count(), 0);
    }

    #[tokio::test]
    async fn a_call_that_was_not_told_to_begin_has_done_nothing_when_its_worker_is_gone() {
        let folder = tempfile::tempdir().expect("folder");
        let mut call = hanging(folder.path()).command(&[]).spawn().expect("starts");
        drop(call.stdin.take());
        assert!(!call.wait().await.expect("ends").success());
        assert_eq!(child_of(folder.path()), None);
    }
}
