//! The body of a sandbox that does nothing: a process that gives back what it is given. There is
//! something to be killed then, to be stopped, and to be left behind.

use std::io;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{ChildStdin, ChildStdout, Command};
use tokio::sync::{Mutex, Notify, watch};

/// A process that lives as long as its sandbox. It ends by itself when its worker is gone: its stdin
/// is closed then.
pub(crate) struct Body {
    pipes: Mutex<(ChildStdin, ChildStdout)>,
    gone: watch::Receiver<Option<String>>,
    end: Arc<Notify>,
}

impl Body {
    /// Starts one; in its environment it names the folder that it belongs to, so that it is found.
    pub(crate) fn start(folder: &Path) -> io::Result<Self> {
        let mut child = Command::new("/bin/cat")
            .env_clear()
            .env("LONGHAUL_BODY_BELOW", folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let missing = || io::Error::other("a pipe is missing");
        let pipes = (child.stdin.take().ok_or_else(missing)?, child.stdout.take().ok_or_else(missing)?);
        let (say, gone) = watch::channel(None);
        let end = Arc::new(Notify::new());
        let told = Arc::clone(&end);
        tokio::spawn(async move {
            let status = tokio::select! {
                status = child.wait() => status,
                () = told.notified() => {
                    // It may have ended meanwhile.
                    let _ = child.start_kill();
                    child.wait().await
                }
            };
            let how = status.map_or_else(|error| error.to_string(), |status| status.to_string());
            say.send_replace(Some(how));
        });
        Ok(Self { pipes: Mutex::new(pipes), gone, end })
    }

    /// Waits for a sign of life: one that is stopped gives none, and one that is dead fails.
    pub(crate) async fn answers(&self) -> io::Result<()> {
        let mut pipes = self.pipes.lock().await;
        pipes.0.write_all(b".").await?;
        let mut byte = [0];
        pipes.1.read_exact(&mut byte).await.map(drop)
    }

    /// Resolves when it is gone, and says how it ended.
    pub(crate) async fn gone(&self) -> String {
        let mut gone = self.gone.clone();
        let how = gone.wait_for(Option::is_some).await.ok().and_then(|how| how.clone());
        how.unwrap_or_else(|| "nobody waited for it".to_owned())
    }

    /// Ends it.
    pub(crate) async fn end(&self) {
        self.end.notify_one();
        self.gone().await;
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.end.notify_one();
    }
}
