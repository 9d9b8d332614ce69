//! Reads, measures and exports runs.
//!
//! Everything here takes a run through the port [`Trajectories`], which a store's
//! [`longhaul_store::Reader`] implements, so that a live coordinator serves as well.

mod export;
mod summary;
mod view;

pub use export::{Attempts, ExportError, Exported, Format, export};
pub use summary::{AgentSummary, Counts, LayerSummary, Summary, summarize};
pub use view::{EpisodeView, RunView, Trajectories};
