//! Exports: a run as files, for programs that know nothing of the store.
//!
//! An export is made in a folder beside its place and moved there at the end: it is
//! there whole, or not at all.

mod files;
mod gym;
mod jsonl;

use std::io;
use std::path::{Path, PathBuf};

use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, RunId};

use crate::view::{EpisodeView, RunView, Trajectories};
use files::Staging;

/// The form of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `episodes.jsonl` and `steps.jsonl`, a line each, with the screenshots and logs
    /// beside them.
    Jsonl,
    /// Gym-Anything's own: a folder for each episode with `traj.jsonl`, frames and
    /// `summary.json`.
    GymAnything,
}

/// Whose steps are exported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attempts {
    /// Those of the attempt that is the episode's trajectory.
    #[default]
    Settling,
    /// Those of every attempt, ones that ended in a fault too.
    All,
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Episodes.
    pub episodes: u64,
    /// Steps, first observations included.
    pub steps: u64,
    /// Files of screenshots.
    pub screenshots: u64,
}

/// Why a run was not exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// It is not there.
    #[error("there is no run {run}")]
    NoRun {
        /// The run.
        run: RunId,
    },
    /// Something is there already.
    #[error("{} is not empty: name a new folder", path.display())]
    NotEmpty {
        /// The folder.
        path: PathBuf,
    },
    /// A file cannot be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A blob that a record names is not there.
    #[error("{what} names blob {digest}, which is not there")]
    MissingBlob {
        /// The step or log.
        what: String,
        /// The blob.
        digest: Digest,
    },
    /// A record cannot be expressed as JSON.
    #[error("a record of episode {episode} cannot be written as JSON")]
    Encode {
        /// The episode.
        episode: String,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// The run cannot be read.
    #[error("cannot read run {run}")]
    Read {
        /// The run.
        run: RunId,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Writes a run into the folder `out`, which is new or empty.
///
/// # Errors
///
/// The run is not there or cannot be read, the folder holds something, or a file cannot
/// be written. Then nothing is left behind.
pub fn export<T: Trajectories>(
    from: &T,
    run: RunId,
    format: Format,
    attempts: Attempts,
    out: &Path,
) -> Result<Exported, ExportError> {
    let source = Source { from, run };
    let view = from.run(run).map_err(|error| source.unreadable(error))?.ok_or(ExportError::NoRun { run })?;
    let staging = Staging::begin(out)?;
    let exported = match format {
        Format::Jsonl => jsonl::write(&source, &view, attempts, &staging)?,
        Format::GymAnything => gym::write(&source, attempts, &staging)?,
    };
    staging.finish()?;
    Ok(exported)
}

/// The run that is exported, and where it is read.
struct Source<'a, T> {
    from: &'a T,
    run: RunId,
}

impl<T: Trajectories> Source<'_, T> {
    fn unreadable(&self, error: T::Error) -> ExportError {
        ExportError::Read { run: self.run, source: Box::new(error) }
    }

    fn episodes(&self) -> Result<Vec<EpisodeView>, ExportError> {
        self.from.episodes(self.run).map_err(|error| self.unreadable(error))
    }

    fn steps(&self, attempt: AttemptId) -> Result<Vec<longhaul_core::step::StepRecord>, ExportError> {
        self.from.steps(attempt).map_err(|error| self.unreadable(error))
    }

    fn calls(&self, attempt: AttemptId) -> Result<Vec<(longhaul_core::call::CallRecord, bool)>, ExportError> {
        self.from.calls(attempt).map_err(|error| self.unreadable(error))
    }

    fn blob(&self, digest: &Digest, what: impl FnOnce() -> String) -> Result<Vec<u8>, ExportError> {
        let bytes = self.from.blob(digest).map_err(|error| self.unreadable(error))?;
        bytes.ok_or_else(|| ExportError::MissingBlob { what: what(), digest: *digest })
    }

    /// A plan, if it is there and can be read: an export does without what it adds.
    fn plan<P: serde::de::DeserializeOwned>(&self, digest: &Digest) -> Option<P> {
        let bytes = self.from.blob(digest).ok()??;
        serde_json::from_slice(&bytes).ok()
    }
}

/// The attempts of an episode whose steps are exported.
fn chosen(episode: &EpisodeView, attempts: Attempts) -> Vec<AttemptId> {
    match attempts {
        Attempts::Settling => episode.attempt.into_iter().collect(),
        Attempts::All => episode.attempts.iter().map(|attempt| attempt.id).collect(),
    }
}

fn encode_error(episode: &EpisodeView) -> impl FnOnce(serde_json::Error) -> ExportError + use<> {
    let episode = episode.id.to_string();
    move |source| ExportError::Encode { episode, source }
}

/// The name of the run, for whoever finds the files.
fn run_json(run: &RunView) -> serde_json::Value {
    serde_json::json!({
        "id": run.id,
        "name": run.name,
        "benchmark": run.benchmark,
        "submitted_at_millis": run.submitted_at,
        "settled_at_millis": run.settled_at,
    })
}
