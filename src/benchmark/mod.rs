//! Benchmarks on disk: reading, checking, picking tasks, and freezing what a run needs.
//!
//! This is a thin layer over files; what the files say, and what is odd in them, is
//! decided in `longhaul_core::spec` and `longhaul_core::lint`.

mod agents;
mod check;
mod earlier;
mod layout;
mod limits;
mod models;
mod pins;
mod plan;
mod policy;
mod quarantine;
mod read;
mod rounds;
mod scoring;
mod scripts;
mod select;
mod tree;
mod trust;

pub use agents::{Agent, AgentError, AskedAgent, External, Parameters};
pub(crate) use agents::{PARAMETER_KEYS, no_endpoint, read_image};
pub use earlier::{EarlierRun, EarlierTask};
pub use layout::{Layout, LayoutError, MountSource};
pub use limits::{LimitTerms, Limits, Preset};
pub use models::{Caps, ModelError, ModelTerms, calls_models, gateway};
pub use pins::{EnvLayers, LayersFrom, PinError};
pub use plan::{EnvPreview, Extent, OnRefusal, PassedOver, PlanError, Planned, Request, plan, preview};
pub use policy::{HookPolicies, PolicyError};
pub use quarantine::{Quarantine, QuarantineError, parse_quarantine, quarantine_line};
pub use read::{Benchmark, Depth, Env, ReadError, RoundsInfo, Task, TaskInfo};
pub use rounds::ready;
pub use scripts::{ScriptsError, check_scripts};
pub use select::{SelectError, Selected, Selection, select};
pub use tree::{BlobError, Blobs, MemoryBlobs, TreeError};
pub use trust::distrust;

#[cfg(test)]
mod tests;
