//! Benchmarks on disk: reading, checking, picking tasks, and freezing what a run needs.
//!
//! This is a thin layer over files; what the files say, and what is odd in them, is
//! decided in `longhaul_core::spec` and `longhaul_core::lint`.

mod agents;
mod check;
mod layout;
mod plan;
mod policy;
mod read;
mod scripts;
mod select;
mod tree;

pub use agents::{Agent, AgentError};
pub use layout::{Layout, LayoutError, MountSource};
pub use plan::{EnvPreview, Limits, OnRefusal, PassedOver, PlanError, Planned, Request, plan, preview};
pub use policy::{HookPolicies, PolicyError};
pub use read::{Benchmark, Depth, Env, ReadError, Task, TaskInfo};
pub use scripts::{ScriptsError, check_scripts};
pub use select::{SelectError, Selected, Selection, select};
pub use tree::{BlobError, Blobs, MemoryBlobs, TreeError};

#[cfg(test)]
mod tests;
