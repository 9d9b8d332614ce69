//! Saving what was written inside a sandbox while it lives: its processes are stopped, what they
//! have written is flushed to the top, and the top is packed as a layer is.
//!
//! Stopped and continued are all processes of the sandbox but its helper, which is asked to do it:
//! parents are stopped before their children and continued after them, so that no shell takes its
//! program for one that a person has suspended.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use longhaul_core::helper::CommandSpec;

use super::{Sandbox, SandboxError};
use crate::command::{self, BindPlan, ExecPlan};
use crate::program::ToolError;
use crate::scratch::{SEEN_AT, top_name};

/// What the packed top is called in the sandbox's folder.
const PACKED: &str = "layer.sqsh";

/// Stops everything, and flushes what an overlay through FUSE holds back. To `-1` the kernel sends in
/// the order in which processes were made; the shell and the first process are left out.
const STOP: &str = "kill -STOP -1; sync -f /";

/// Continues everything, the youngest first.
const GO_ON: &str = "cd /proc; for pid in $(printf '%s\\n' [0-9]* | sort -rn); do [ \"$pid\" -le 1 ] || kill -CONT \"$pid\" 2>/dev/null; done; true";

/// Packs if there is not too much of it: arguments are the folder, the most KiB, and the command.
/// Holes in files take no room, and yet the time and the memory of whoever packs them: eight times as much.
const PACK: &str = "size=$(du -sk -- \"$0\" | cut -f1); long=$(du -sk --apparent-size -- \"$0\" | cut -f1); \
    [ \"$size\" -le \"$1\" ] && [ \"$long\" -le $(($1 * 8)) ] || \
    { echo \"the top has $size KiB, with holes $long, and $1 are the most\"; exit 3; }; shift; exec \"$@\"";

/// How many times as large as the packed one the top itself may be: packing it takes that long.
const UNPACKED: u64 = 8;

/// The longest that stopping, flushing or continuing may take.
const STEP_LIMIT_MILLIS: u64 = 60_000;

/// Why a top was not saved.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Its processes could not be stopped, or what they wrote not flushed.
    #[error("the sandbox could not be stopped for a snapshot: {0}")]
    NotStopped(String),
    /// It could not be packed: too large, or the disk is full.
    #[error("the sandbox's top could not be packed")]
    Pack(#[from] ToolError),
    /// The packed top is larger than may be.
    #[error("the packed top has {bytes} bytes, and {most} are the most")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The most.
        most: u64,
    },
    /// The packed top cannot be taken away.
    #[error("{path}")]
    Io {
        /// The path.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Its processes are stopped and do not go on.
    #[error("the sandbox does not go on after a snapshot: {0}")]
    Stopped(String),
}

impl Sandbox {
    /// Packs all that was written inside into the file `to`, of the same filesystem as the sandbox's
    /// own folder, if that has at most `most` bytes, and the top itself not many times more. Its processes are stopped meanwhile, for
    /// as long as is answered, and go on whatever comes of it.
    ///
    /// # Errors
    ///
    /// It could not be stopped or packed, is too large, or does not go on.
    pub async fn save_top(&mut self, to: &Path, most: u64) -> Result<Duration, SnapshotError> {
        let began = Instant::now();
        let packed = match self.as_root(STOP).await {
            Ok(()) => self.pack_top(to, most).await,
            Err(why) => Err(SnapshotError::NotStopped(why)),
        };
        self.as_root(GO_ON).await.map_err(SnapshotError::Stopped)?;
        packed.map(|()| began.elapsed())
    }

    async fn pack_top(&mut self, to: &Path, most: u64) -> Result<(), SnapshotError> {
        let upper = format!("{SEEN_AT}/{}/upper", top_name(self.mark()));
        let packed = self.folder().join(PACKED);
        let argv = ["sh", "-c", PACK, &upper, &(most.saturating_mul(UNPACKED) / 1024).to_string()].map(str::to_owned);
        let argv = argv.into_iter().chain(command::pack(&upper, &format!("{SEEN_AT}/{PACKED}")));
        let plan = ExecPlan {
            image: self.image.clone(),
            binds: vec![BindPlan { source: self.folder().to_owned(), target: SEEN_AT.into(), writable: true }],
            argv: argv.collect(),
            ..ExecPlan::default()
        };
        if let Err(error) = self.apptainer.tool(&mut self.scratch, plan).await {
            // On a disk that is full, what was packed of it would keep it so.
            let _ = std::fs::remove_file(&packed);
            return Err(error.into());
        }
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| SnapshotError::Io { path, source }
        };
        let bytes = std::fs::metadata(&packed).map_err(io(&packed))?.len();
        if bytes > most {
            std::fs::remove_file(&packed).map_err(io(&packed))?;
            return Err(SnapshotError::TooLarge { bytes, most });
        }
        std::fs::rename(&packed, to).map_err(io(to))
    }

    /// A line of the helper's shell that has to succeed.
    async fn as_root(&self, line: &str) -> Result<(), String> {
        let ended = self
            .run(CommandSpec {
                argv: ["/bin/bash", "-c", line].map(str::to_owned).into(),
                user: "root".to_owned(),
                limit_millis: STEP_LIMIT_MILLIS,
                output_limit: 1000,
                ..CommandSpec::default()
            })
            .await;
        match ended {
            Ok(ended) if ended.code == 0 && !ended.timed_out => Ok(()),
            Ok(ended) => Err(format!("code {}: {}", ended.code, ended.output.trim())),
            Err(error) => Err(chain(&error)),
        }
    }
}

fn chain(error: &SandboxError) -> String {
    longhaul_core::text::chain(error)
}
