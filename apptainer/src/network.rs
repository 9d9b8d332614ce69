//! A way out of a sandbox: slirp4netns, attached to its network namespace.

use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};

use crate::command;
use crate::program::on_path;
use crate::scratch::MARK;

/// The program's name.
pub(crate) const SLIRP: &str = "slirp4netns";

/// How long it may take until the way out is there.
const READY: Duration = Duration::from_secs(30);

/// Why there is no way out.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The program is not there.
    #[error("slirp4netns is not on the PATH: a sandbox whose env needs the network cannot have it")]
    NotFound,
    /// It did not start.
    #[error("slirp4netns could not be started")]
    Start(#[source] io::Error),
    /// It ended, or said nothing in time.
    #[error("slirp4netns gave no way out: {0}")]
    NotReady(String),
}

/// A running slirp4netns; it ends with this value, or with the process that holds it.
#[derive(Debug)]
pub(crate) struct WayOut {
    child: Child,
}

impl WayOut {
    /// Attaches one to the container whose first process is `pid`.
    pub(crate) async fn open(pid: i32, mark: &str, log: &Path) -> Result<Self, NetworkError> {
        let program = on_path(SLIRP).ok_or(NetworkError::NotFound)?;
        let log_file = std::fs::OpenOptions::new().create(true).append(true).open(log).map_err(NetworkError::Start)?;
        let mut child = Command::new(program)
            .args(command::slirp(pid))
            .env(MARK, mark)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log_file)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(NetworkError::Start)?;
        let mut ready = child.stdout.take().ok_or_else(|| NetworkError::NotReady("no pipe".to_owned()))?;
        let mut byte = [0];
        let heard = tokio::time::timeout(READY, ready.read(&mut byte)).await;
        if matches!(heard, Ok(Ok(1))) {
            return Ok(Self { child });
        }
        let said = std::fs::read(log).unwrap_or_default();
        Err(NetworkError::NotReady(crate::program::last_lines(&said, 4)))
    }

    /// Its process.
    pub(crate) fn pid(&self) -> Option<i32> {
        self.child.id().and_then(|pid| i32::try_from(pid).ok())
    }

    /// Ends it.
    pub(crate) async fn close(mut self) {
        // Its input is its lifeline; a kill follows for one that does not notice.
        drop(self.child.stdin.take());
        if tokio::time::timeout(Duration::from_secs(1), self.child.wait()).await.is_err() {
            let _ = self.child.kill().await;
        }
    }
}
