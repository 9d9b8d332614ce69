//! Exports: runs as files, for programs that know nothing of the store.
//!
//! An export is made in a folder beside its place and moved there at the end: it is
//! there whole, or not at all. One episode is held at a time, however long the runs are.

mod atif;
mod chat;
mod files;
mod gym;
mod harbor;
mod jsonl;
mod source;
mod tables;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use longhaul_core::digest::Digest;
use longhaul_core::ids::RunId;

pub use chat::{ChatOptions, Coordinates, Rows};
pub use source::Chosen;
pub use tables::{ColumnInfo, columns};

use crate::view::Trajectories;
use files::Staging;
use source::Source;

/// The form of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// `episodes.jsonl`, `steps.jsonl` and `calls.jsonl`, a line each, with the screenshots and
    /// logs beside them. Of one run.
    Jsonl(Attempts),
    /// Gym-Anything's own: a folder for each episode with `traj.jsonl`, frames and
    /// `summary.json`. Of one run.
    GymAnything(Attempts),
    /// Tables in Parquet.
    Parquet {
        /// Whose steps.
        attempts: Attempts,
        /// Whether the screenshots are written beside the tables.
        screenshots: bool,
    },
    /// A trajectory in the Agent Trajectory Interchange Format for each episode.
    Atif,
    /// Job and trial folders as Harbor writes them, trajectories among them.
    Harbor,
    /// A training set of conversations with pictures.
    Chat(ChatOptions),
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Episodes.
    pub episodes: u64,
    /// Steps, first observations included.
    pub steps: u64,
    /// Files of screenshots.
    pub screenshots: u64,
    /// Rows of a training set.
    pub rows: u64,
    /// Episodes that are not in it, by the reason.
    pub left_out: BTreeMap<String, u64>,
}

impl Exported {
    fn leave_out(&mut self, reason: impl Into<String>) {
        *self.left_out.entry(reason.into()).or_default() += 1;
    }
}

/// Why runs were not exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// A run is not there.
    #[error("there is no run {run}")]
    NoRun {
        /// The run.
        run: RunId,
    },
    /// A run has no episode of that agent.
    #[error("run {run} has no episode of agent `{}`", agent.escape_debug())]
    NoAgent {
        /// The run.
        run: RunId,
        /// The agent.
        agent: String,
    },
    /// The form holds one run alone.
    #[error("this form holds one run, not {runs}: export them apart, or as parquet, atif, harbor or chat")]
    OneRun {
        /// How many were named.
        runs: usize,
    },
    /// A run is named twice.
    #[error("run {run} is named twice")]
    Twice {
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
    /// A table cannot be written.
    #[error("cannot write the table {}", path.display())]
    Table {
        /// Its file.
        path: PathBuf,
        /// Why.
        #[source]
        source: parquet::errors::ParquetError,
    },
    /// A figure is larger than its column holds.
    #[error("{value} is more than column `{column}` holds")]
    Figure {
        /// The column.
        column: &'static str,
        /// The figure.
        value: u64,
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
    /// A run cannot be read.
    #[error("cannot read run {run}")]
    Read {
        /// The run.
        run: RunId,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Writes runs into the folder `out`, which is new or empty.
///
/// # Errors
///
/// A run is not there or cannot be read, the folder holds something, or a file cannot
/// be written. Then nothing is left behind.
pub fn export<T: Trajectories>(runs: &[Chosen<'_, T>], format: &Format, out: &Path) -> Result<Exported, ExportError> {
    let mut sources: Vec<Source<'_, T>> = Vec::new();
    for chosen in runs {
        if sources.iter().any(|source| source.run() == chosen.run) {
            return Err(ExportError::Twice { run: chosen.run });
        }
        sources.push(Source::open(chosen)?);
    }
    let staging = Staging::begin(out)?;
    let exported = match format {
        Format::Jsonl(attempts) => jsonl::write(only(&sources)?, *attempts, &staging)?,
        Format::GymAnything(attempts) => gym::write(only(&sources)?, *attempts, &staging)?,
        Format::Parquet { attempts, screenshots } => tables::write(&sources, *attempts, *screenshots, &staging)?,
        Format::Atif => atif::write(&sources, &staging)?,
        Format::Harbor => harbor::write(&sources, &staging)?,
        Format::Chat(options) => chat::write(&sources, options, &staging)?,
    };
    staging.finish()?;
    Ok(exported)
}

/// The one run of a form that holds no more.
fn only<'a, 'b, T>(sources: &'a [Source<'b, T>]) -> Result<&'a Source<'b, T>, ExportError> {
    match sources {
        [only] => Ok(only),
        sources => Err(ExportError::OneRun { runs: sources.len() }),
    }
}
