//! Slurm's programs as processes.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use crate::commands::{Commands, Invocation, Output, RunError};
use crate::time::TIME_FORMAT;

/// The most that is read of an answer: some 8 KiB of JSON for each of thousands of jobs.
const MOST: u64 = 256 << 20;

/// Settings of Slurm's programs in the environment are a user's own taste (formats, filters),
/// or come from the allocation that this process runs in, and a variable for `sbatch` wins over
/// the line of a script. None may reach the programs, nor a job's environment.
const PREFIXES: [&str; 7] = ["SLURM_", "SBATCH_", "SQUEUE_", "SCANCEL_", "SINFO_", "SACCT_", "SCONTROL_"];

/// Which cluster it is does reach them. A `SLURM_JWT` does not: Slurm would keep it with the
/// environment of each job.
const KEPT: [&str; 2] = ["SLURM_CONF", "SLURM_CONF_SERVER"];

/// Whether a variable of ours must not reach Slurm's programs.
fn is_foreign(name: &str) -> bool {
    PREFIXES.iter().any(|prefix| name.starts_with(prefix)) && !KEPT.contains(&name)
}

/// Runs Slurm's programs here.
#[derive(Clone, Debug, Default)]
pub struct System {
    bin: Option<PathBuf>,
    env: Vec<(OsString, OsString)>,
}

impl System {
    /// The programs that the `PATH` finds.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The programs in one folder, where a site has them outside of the `PATH`.
    #[must_use]
    pub fn in_folder(mut self, bin: impl Into<PathBuf>) -> Self {
        self.bin = Some(bin.into());
        self
    }

    /// With a variable in their environment.
    #[must_use]
    pub fn with_env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    fn command(&self, invocation: &Invocation) -> Command {
        let mut command = match &self.bin {
            Some(bin) => Command::new(bin.join(invocation.program)),
            None => Command::new(invocation.program),
        };
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(is_foreign) {
                command.env_remove(name);
            }
        }
        command
            .args(&invocation.args)
            // `sbatch` fails in a folder that was removed.
            .current_dir("/")
            .env(TIME_FORMAT.0, TIME_FORMAT.1)
            // Else long lists of array elements are cut at 64 characters.
            .env("SLURM_BITSTR_LEN", "0")
            .env("LC_ALL", "C.UTF-8")
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Sites put scripts of their own before these programs: what such a script
            // started is in its group, and ends with it.
            .process_group(0)
            .kill_on_drop(true);
        command
    }
}

impl Commands for System {
    async fn run(&self, invocation: Invocation) -> Result<Output, RunError> {
        let program = invocation.program;
        let mut child = match self.command(&invocation).spawn() {
            Ok(child) => child,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(RunError::NotFound { program }),
            Err(source) => return Err(RunError::Io { program, source }),
        };
        let group = Group::of(&child);
        let answer = tokio::time::timeout(invocation.limit, converse(&mut child, program, &invocation.stdin)).await;
        if !matches!(answer, Ok(Ok(_))) {
            // Not reaped yet, so the id is still its own; then it is, to leave no zombie.
            group.kill();
            if let Err(error) = child.kill().await {
                tracing::warn!(program, %error, "a program that was given up could not be ended");
            }
        }
        group.forget();
        answer.unwrap_or(Err(RunError::TimedOut { program, limit: invocation.limit }))
    }
}

/// The group of a child; killed if the call is dropped in the middle.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw))
    }

    fn kill(&self) {
        if let Some(group) = self.0 {
            // It fails only if all of the group is gone already.
            let _ = killpg(group, Signal::SIGKILL);
        }
    }

    /// From here on the id may be another's.
    fn forget(mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

async fn converse(child: &mut Child, program: &'static str, input: &[u8]) -> Result<Output, RunError> {
    let failed = |source| RunError::Io { program, source };
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let write = async {
        // One that does not read to the end (a refused option) says why on stderr.
        if let Some(mut stdin) = stdin
            && let Err(error) = stdin.write_all(input).await
        {
            tracing::debug!(program, %error, "its input was not read to the end");
        }
    };
    let ((), stdout, stderr) = tokio::join!(write, read(program, stdout), read(program, stderr));
    let status = child.wait().await.map_err(failed)?;
    Ok(Output { code: status.code(), stdout: stdout?, stderr: stderr? })
}

async fn read(program: &'static str, from: Option<impl AsyncRead + Unpin>) -> Result<String, RunError> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        let read = from.take(MOST + 1).read_to_end(&mut bytes).await;
        let read = read.map_err(|source| RunError::Io { program, source })?;
        if u64::try_from(read).is_ok_and(|read| read > MOST) {
            return Err(RunError::TooLong { program, limit: MOST });
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn shell(script: &str, limit: Duration) -> Invocation {
        Invocation { program: "sh", args: vec!["-c".to_owned(), script.to_owned()], stdin: b"input".to_vec(), limit }
    }

    #[test]
    fn settings_of_slurm_in_our_environment_do_not_reach_its_programs() {
        for name in
            ["SBATCH_PARTITION", "SBATCH_EXPORT", "SLURM_JOB_ID", "SLURM_JWT", "SLURM_CLUSTERS", "SQUEUE_FORMAT"]
        {
            assert!(is_foreign(name), "{name}");
        }
        for name in ["SLURM_CONF", "PATH", "HOME", "TZ", "MUNGE_SOCKET"] {
            assert!(!is_foreign(name), "{name}");
        }
    }

    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_program_gets_its_input_and_gives_both_outputs() {
        let output = System::new().run(shell("cat; echo oops >&2; exit 3", LONG)).await.unwrap();
        assert_eq!(output, Output { code: Some(3), stdout: "input".to_owned(), stderr: "oops\n".to_owned() });
    }

    #[tokio::test]
    async fn a_program_that_reads_nothing_is_heard_all_the_same() {
        let mut invocation = shell("exit 1", LONG);
        invocation.stdin = vec![b'x'; 1 << 20];
        assert_eq!(System::new().run(invocation).await.unwrap().code, Some(1));
    }

    #[tokio::test]
    async fn at_the_time_limit_a_program_ends_with_all_that_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("held");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        // Opened for reading and writing, so that opening waits for nobody. The grandchild
        // holds the only writing end once ours is closed.
        let script = format!("sh -c 'exec 9>{0}; sleep 1000' & wait", fifo.display());
        let reader = tokio::net::unix::pipe::OpenOptions::new().open_receiver(&fifo).unwrap();
        let result = System::new().run(shell(&script, Duration::from_millis(700))).await;
        assert!(matches!(result, Err(RunError::TimedOut { program: "sh", .. })), "{result:?}");
        // The end of the file comes when nobody holds the other end.
        let mut reader = reader;
        let mut nothing = Vec::new();
        tokio::time::timeout(LONG, reader.read_to_end(&mut nothing)).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_is_said_so() {
        let invocation = Invocation { program: "squeue", args: Vec::new(), stdin: Vec::new(), limit: LONG };
        let result = System::new().in_folder("/nonexistent").run(invocation).await;
        assert!(matches!(result, Err(RunError::NotFound { program: "squeue" })), "{result:?}");
    }
}
