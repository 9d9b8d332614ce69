//! Running the program, and what came of it.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// One call of the program.
#[derive(Debug)]
pub struct Longhaul {
    command: Command,
    shown: String,
}

impl Longhaul {
    pub(crate) fn new(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let arguments: Vec<_> = command.get_args().map(|argument| argument.to_string_lossy().into_owned()).collect();
        let shown = format!("longhaul {}", arguments.join(" "));
        Self { command, shown }
    }

    /// Sets a variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Has it write to the end of a file, and not to us.
    ///
    /// # Errors
    ///
    /// The file cannot be opened.
    pub fn log_to(mut self, file: &Path) -> Result<Self> {
        let opened = File::options().create(true).append(true).open(file);
        let opened = opened.with_context(|| format!("cannot open {}", file.display()))?;
        self.command.stdout(opened.try_clone()?).stderr(opened);
        Ok(self)
    }

    /// Runs it to its end.
    ///
    /// # Errors
    ///
    /// It cannot be started.
    pub fn end(mut self) -> Result<Ended> {
        let output = self.command.output().with_context(|| format!("cannot start `{}`", self.shown))?;
        Ok(Ended { shown: self.shown, output })
    }

    /// Runs it to its end, which has to be exit code 0, and reads its stdout as JSON.
    ///
    /// # Errors
    ///
    /// Another code, or no JSON.
    pub fn json(self) -> Result<Value> {
        self.end()?.expect_code(0)?.json()
    }

    /// Starts it. It stays in the test's process group, so that it ends with a test that is ended.
    ///
    /// # Errors
    ///
    /// It cannot be started.
    pub fn start(mut self) -> Result<Running> {
        let child = self.command.spawn().with_context(|| format!("cannot start `{}`", self.shown))?;
        Ok(Running { shown: self.shown, child: Some(child) })
    }
}

/// A call that has ended.
#[derive(Debug)]
pub struct Ended {
    shown: String,
    output: Output,
}

impl Ended {
    /// The exit code; none if a signal ended it.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        self.output.status.code()
    }

    /// How it ended.
    #[must_use]
    pub fn status(&self) -> ExitStatus {
        self.output.status
    }

    /// What it wrote to stdout.
    #[must_use]
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }

    /// What it wrote to stderr.
    #[must_use]
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    /// Fails, with all that was written, if the code is another one.
    ///
    /// # Errors
    ///
    /// The code is another one.
    pub fn expect_code(self, code: i32) -> Result<Self> {
        ensure!(
            self.code() == Some(code),
            "`{}` ended with {}, not {code}\nstdout:\n{}\nstderr:\n{}",
            self.shown,
            self.output.status,
            self.stdout(),
            self.stderr()
        );
        Ok(self)
    }

    /// Its stdout as JSON.
    ///
    /// # Errors
    ///
    /// It is not JSON.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_slice(&self.output.stdout)
            .with_context(|| format!("`{}` wrote no JSON:\n{}\n{}", self.shown, self.stdout(), self.stderr()))
    }
}

/// A call that runs. Dropped while it runs, it is killed.
#[derive(Debug)]
pub struct Running {
    shown: String,
    child: Option<Child>,
}

impl Running {
    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.as_ref().map_or(0, |child| i32::try_from(child.id()).unwrap_or_default()))
    }

    /// Sends it a signal, and to nothing else.
    ///
    /// # Errors
    ///
    /// It is gone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill(self.pid(), signal).with_context(|| format!("cannot signal `{}`", self.shown))
    }

    /// Whether it runs still.
    ///
    /// # Errors
    ///
    /// The system does not say.
    pub fn runs(&mut self) -> Result<bool> {
        Ok(match self.child.as_mut() {
            Some(child) => child.try_wait()?.is_none(),
            None => false,
        })
    }

    /// Fails, with all that was written, if it has ended.
    ///
    /// # Errors
    ///
    /// It has.
    pub fn expect_runs(&mut self) -> Result<()> {
        if self.runs()? {
            return Ok(());
        }
        let child = self.child.take().context("it ended before")?;
        let ended = Ended { shown: self.shown.clone(), output: child.wait_with_output()? };
        bail!("`{}` ended too early: {}\n{}\n{}", ended.shown, ended.status(), ended.stdout(), ended.stderr())
    }

    /// Tells it to stop, and waits for its end in order.
    ///
    /// # Errors
    ///
    /// It is gone, or ends with another code than 0.
    pub fn stop(self) -> Result<()> {
        self.signal(Signal::SIGTERM)?;
        self.end()?.expect_code(0)?;
        Ok(())
    }

    /// Waits for its end.
    ///
    /// # Errors
    ///
    /// Its output cannot be read.
    pub fn end(mut self) -> Result<Ended> {
        let child = self.child.take().context("it was waited for already")?;
        let output = child.wait_with_output()?;
        Ok(Ended { shown: self.shown.clone(), output })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Looks again and again until `look` finds something; gives up after `limit`, which is there
/// to end what hangs, not to judge how fast something was.
///
/// # Errors
///
/// Nothing was found, or `look` failed.
pub fn wait_for<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let end = Instant::now() + limit;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if Instant::now() >= end {
            bail!("waited {} s in vain for {what}", limit.as_secs());
        }
        thread::sleep(Duration::from_millis(100));
    }
}
