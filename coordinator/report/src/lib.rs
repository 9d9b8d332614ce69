//! Reads, measures and exports runs.
//!
//! Everything here takes a run through the port [`Trajectories`], which a store's
//! [`longhaul_store::Reader`] implements, so that a live coordinator serves as well.

mod export;
mod findings;
mod measured;
mod picture;
pub mod render;
mod side;
mod summary;
mod view;

pub use export::{Attempts, ExportError, Exported, Format, export};
pub use findings::{Findings, SideFound, findings};
pub use measured::{MeasureError, Measured, MeasuredRun, Part, Provenance, measured, provenance};
pub use picture::{Thumbnail, thumbnail};
pub use side::{Difference, Side, chosen_failures, differences};
pub use summary::{AgentSummary, Counts, LayerSummary, Summary, summarize};
pub use view::{EpisodeView, RunView, Trajectories};
