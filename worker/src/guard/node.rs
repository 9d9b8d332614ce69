//! The node: what it has, and what is left of it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use longhaul_apptainer::Gpus;
use longhaul_apptainer::filesystem::{Space, space};
use sysinfo::{MemoryRefreshKind, RefreshKind, System};

use crate::config::NodeLimits;
use crate::error::WorkerError;

/// With room for fewer files than this, nothing more is started: a sandbox and its views take
/// some thousands, and a filesystem can run out of files long before it runs out of bytes.
const FILE_FLOOR: u64 = 20_000;

/// How often a full disk is looked for.
const DISK_INTERVAL: Duration = Duration::from_secs(2);

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
    pub fn look(limits: &NodeLimits, gpus: Option<&Gpus>, scratch: &Path) -> Result<Self, WorkerError> {
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
        let gpus = gpus.map_or(0, |gpus| u32::try_from(gpus.ids().len()).unwrap_or(u32::MAX));
        let capacity = NodeCapacity { cpu_millis, memory_mib, gpus, max_slots: limits.max_slots };
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
        Some(space(&self.scratch).ok()?.bytes / MIB)
    }

    /// Why nothing more may be started here, if so.
    #[must_use]
    pub fn disk_trouble(&self) -> Option<String> {
        lack(&self.scratch, space(&self.scratch).ok()?, self.disk_floor_mib, FILE_FLOOR)
    }

    /// Why nothing that runs may go on here, if so: less than half of what is kept free is left.
    #[must_use]
    pub fn disk_emergency(&self) -> Option<String> {
        // Without a floor too, a disk without a single MiB is full.
        let floor = (self.disk_floor_mib / 2).max(1);
        lack(&self.scratch, space(&self.scratch).ok()?, floor, FILE_FLOOR / 2)
    }

    /// Resolves when nothing that runs may go on here, with the reason.
    pub async fn until_disk_emergency(&self) -> String {
        loop {
            tokio::time::sleep(DISK_INTERVAL).await;
            if let Some(reason) = self.disk_emergency() {
                return reason;
            }
        }
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

const MIB: u64 = 1024 * 1024;

/// What a folder's filesystem lacks of these floors, if anything: pure.
fn lack(folder: &Path, space: Space, floor_mib: u64, file_floor: u64) -> Option<String> {
    let folder = folder.display();
    let free = space.bytes / MIB;
    if free < floor_mib {
        return Some(format!("{folder} has {free} MiB free, and {floor_mib} MiB are kept free"));
    }
    let files = space.files.filter(|files| *files < file_floor)?;
    Some(format!("{folder} has room for {files} more files (inodes), and room for {file_floor} is kept"))
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
        let node = Node::look(&limits, None, folder.path()).unwrap();
        assert_eq!((node.capacity().cpu_millis, node.capacity().memory_mib), (1500, 64));
        let found = Node::look(&NodeLimits::default(), None, folder.path()).unwrap().capacity();
        assert!(found.cpu_millis >= 1000 && found.memory_mib > 0);
        let full = NodeLimits { disk_floor_mib: u64::MAX, ..limits };
        assert!(Node::look(&full, None, folder.path()).unwrap().disk_trouble().is_some());
        let empty = NodeLimits { disk_floor_mib: 0, ..limits };
        assert_eq!(Node::look(&empty, None, folder.path()).unwrap().disk_trouble(), None);
    }

    #[test]
    fn a_filesystem_without_room_for_files_is_full_however_many_bytes_it_has() {
        let of = |bytes, files| lack(Path::new("/s"), Space { bytes, files }, 100, 50);
        assert_eq!(of(100 * MIB, Some(50)), None);
        assert_eq!(of(100 * MIB, None), None, "not every filesystem counts files");
        let few = of(100 * MIB, Some(49)).unwrap();
        assert!(few.starts_with("/s has room for 49 more files"), "{few}");
        assert_eq!(of(99 * MIB, None).unwrap(), "/s has 99 MiB free, and 100 MiB are kept free");
    }
}
