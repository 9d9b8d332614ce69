//! Stored runs as rows: what measures and comparisons are made from.
//!
//! Every episode is a row, those that faulted, wait or were never begun, too: what is left out of
//! a measure is left out there, and said.

mod plans;
mod provenance;
mod row;

use longhaul_core::digest::Digest;
use longhaul_core::ids::{EpisodeId, RunId};
use longhaul_core::judge::VerdictParts;
use longhaul_core::measure::Row;

pub use provenance::{Part, Provenance};

use crate::view::{EpisodeView, RunView, Trajectories};
pub(crate) use plans::Plans;
pub(crate) use row::{checklist_round, measure};

/// A run as it is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredRun {
    /// The run.
    pub run: RunView,
    /// Its episodes, in order.
    pub episodes: Vec<Measured>,
}

/// An episode as it is measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Its id.
    pub id: EpisodeId,
    /// What is measured of it.
    pub row: Row,
    /// What the verifier says, or why there is no verdict; hostile until escaped.
    pub why: String,
    /// The last screen of its trajectory: the blob of a PNG.
    pub last_screen: Option<Digest>,
    /// What it rests on.
    pub provenance: Provenance,
    /// What its verdict was made of, where more than one had a part in it.
    pub parts: Option<Box<VerdictParts>>,
}

/// Why a run cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// It is not there.
    #[error("there is no run {run}")]
    NoRun {
        /// The run.
        run: RunId,
    },
    /// It cannot be read.
    #[error("cannot read run {run}")]
    Read {
        /// The run.
        run: RunId,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Reads a run as rows; `label` is what tables call it.
///
/// # Errors
///
/// It is not there, or cannot be read.
pub fn measured<T: Trajectories>(from: &T, run: RunId, label: &str) -> Result<MeasuredRun, MeasureError> {
    let unreadable = |error: T::Error| MeasureError::Read { run, source: Box::new(error) };
    let view = from.run(run).map_err(unreadable)?.ok_or(MeasureError::NoRun { run })?;
    let mut plans = Plans::new(from);
    let episodes = from.episodes(run).map_err(unreadable)?;
    let episodes = episodes.iter().map(|episode| row::measure(from, &mut plans, episode, label));
    Ok(MeasuredRun { run: view, episodes: episodes.collect::<Result<_, _>>().map_err(unreadable)? })
}

/// What an episode's verdict rests on: that of the attempt that settled it, else of the last one.
///
/// # Errors
///
/// It cannot be read.
pub fn provenance<T: Trajectories>(from: &T, episode: &EpisodeView) -> Result<Provenance, T::Error> {
    let frozen = Plans::new(from).of(&episode.plan)?;
    let mut calls = Vec::new();
    for attempt in row::answering(episode) {
        calls.extend(from.calls(attempt)?.into_iter().map(|(call, _)| call));
    }
    Ok(Provenance::of(&frozen, row::settling(episode), &calls))
}
