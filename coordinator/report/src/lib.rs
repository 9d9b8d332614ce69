//! Reads, measures and exports runs.
//!
//! Everything here takes a run through the port [`Trajectories`], which a store's
//! [`longhaul_store::Reader`] implements, so that a live coordinator serves as well.

mod export;
mod findings;
mod judges;
mod measured;
mod picture;
mod rejudged;
pub mod render;
mod side;
mod summary;
mod view;

pub use export::{
    Attempts, ChatOptions, Chosen, ColumnInfo, Coordinates, ExportError, Exported, Format, Rows, columns, export,
};
pub use findings::{Findings, Imported, SideFound, Together, findings};
pub use judges::{Judges, WithProgram};
pub use measured::{MeasureError, Measured, MeasuredRun, Part, Provenance, measured, provenance};
pub use picture::{Thumbnail, thumbnail};
pub use rejudged::{Opinion, Rejudgement};
pub use side::{Difference, Side, chosen_failures, differences};
pub use summary::{AgentSummary, Counts, LayerSummary, Summary, summarize};
pub use view::{EpisodeView, RunView, Trajectories};
