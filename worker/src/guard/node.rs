//! The node: what it has, and what is left of it.

use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;
use sysinfo::{MemoryRefreshKind, RefreshKind, System};

use crate::config::NodeLimits;
use crate::error::WorkerError;

/// What a worker offers of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeCapacity {
    /// Processors in thousandths.
    pub cpu_millis: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Graphics processors.
    pub gpus: u32,
    /// The most attempts at once; 0 is no such limit.
    pub max_slots: u32,
}

/// The node as the worker sees it.
#[derive(Clone, Debug)]
pub struct Node {
    capacity: NodeCapacity,
    scratch: PathBuf,
    disk_floor_mib: u64,
}

impl Node {
    /// Looks at the node; limits that were given go before what is found.
    ///
    /// # Errors
    ///
    /// No limit was given and the node does not say what it has.
    pub fn look(limits: &NodeLimits, scratch: &Path) -> Result<Self, WorkerError> {
        let cpu_millis = match limits.cpu_millis {
            Some(millis) => millis,
            None => {
                let cpus =
                    std::thread::available_parallelism().map_err(|_| WorkerError::Node { what: "processors" })?;
                u32::try_from(cpus.get()).unwrap_or(u32::MAX).saturating_mul(1000)
            }
        };
        let memory_mib = match limits.memory_mib {
            Some(mib) => mib,
            None => usable_memory_mib().ok_or(WorkerError::Node { what: "memory" })?,
        };
        let capacity = NodeCapacity { cpu_millis, memory_mib, gpus: limits.gpus, max_slots: limits.max_slots };
        Ok(Self { capacity, scratch: scratch.to_owned(), disk_floor_mib: limits.disk_floor_mib })
    }

    /// What the worker offers.
    #[must_use]
    pub const fn capacity(&self) -> NodeCapacity {
        self.capacity
    }

    /// Free disk below the scratch folder, in MiB; none if it cannot be said.
    #[must_use]
    pub fn disk_free_mib(&self) -> Option<u64> {
        let stat = statvfs(&self.scratch).ok()?;
        Some(stat.blocks_available().saturating_mul(stat.fragment_size()) / (1024 * 1024))
    }

    /// Why nothing more may be started here, if so.
    #[must_use]
    pub fn disk_trouble(&self) -> Option<String> {
        let free = self.disk_free_mib()?;
        (free < self.disk_floor_mib).then(|| {
            format!("{} has {free} MiB free, and {} MiB are kept free", self.scratch.display(), self.disk_floor_mib)
        })
    }

    /// Why nothing that runs may go on here, if so: less than half of what is kept free is left.
    #[must_use]
    pub fn disk_emergency(&self) -> Option<String> {
        let free = self.disk_free_mib()?;
        (free < self.disk_floor_mib / 2).then(|| format!("{} has {free} MiB free", self.scratch.display()))
    }

    /// Free memory in MiB.
    #[must_use]
    pub fn memory_free_mib(&self) -> u64 {
        memory().map_or(0, |system| system.available_memory()) / (1024 * 1024)
    }

    /// The load of the last minute, in hundredths.
    #[must_use]
    pub fn load_hundredths(&self) -> u32 {
        let load = (System::load_average().map_or(0.0, |load| load.one) * 100.0).clamp(0.0, 1e6);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to a million")]
        let hundredths = load as u32;
        hundredths
    }
}

fn memory() -> Option<System> {
    System::new_with_specifics(RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram())).ok()
}

/// Nine tenths of the memory, or of what a cgroup leaves of it: the worker, its page cache and
/// the node's own services need some.
fn usable_memory_mib() -> Option<u64> {
    let system = memory()?;
    let total = system.cgroup_limits().map_or_else(|| system.total_memory(), |limits| limits.total_memory);
    (total > 0).then_some(total / (1024 * 1024) / 10 * 9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_go_before_what_the_node_has_and_the_floor_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let limits = NodeLimits { cpu_millis: Some(1500), memory_mib: Some(64), ..NodeLimits::default() };
        let node = Node::look(&limits, folder.path()).unwrap();
        assert_eq!((node.capacity().cpu_millis, node.capacity().memory_mib), (1500, 64));
        let found = Node::look(&NodeLimits::default(), folder.path()).unwrap().capacity();
        assert!(found.cpu_millis >= 1000 && found.memory_mib > 0);
        let full = NodeLimits { disk_floor_mib: u64::MAX, ..limits };
        assert!(Node::look(&full, folder.path()).unwrap().disk_trouble().is_some());
        let empty = NodeLimits { disk_floor_mib: 0, ..limits };
        assert_eq!(Node::look(&empty, folder.path()).unwrap().disk_trouble(), None);
    }
}
