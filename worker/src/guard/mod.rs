//! What keeps one attempt from harming its neighbours, and what of the node is left.

mod cpus;
mod gpus;
mod memory;
mod node;

pub use cpus::{CpuShare, CpuShares};
pub use gpus::{GpuShare, GpuShares, NoGpus};
pub use memory::{MemoryVerdict, judge_memory, watch_memory};
pub use node::{Node, NodeCapacity};
