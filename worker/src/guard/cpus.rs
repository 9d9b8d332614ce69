//! Shares of the node's processors: each sandbox is bound to as many as its env asks for.
//!
//! This is what is enforced without a delegated cgroup: a set of processors that the
//! sandbox's processes inherit. It is a bound, not a reservation: two sandboxes share a
//! processor when the node was promised more than it has, and a process inside could ask for
//! others again. The least used processors are given first.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

/// The processors of the node, and how many sandboxes each serves.
#[derive(Clone, Debug)]
pub struct CpuShares(Arc<Mutex<BTreeMap<usize, u32>>>);

/// Processors for one sandbox, given back when dropped.
#[derive(Debug)]
pub struct CpuShare {
    cpus: Vec<usize>,
    from: CpuShares,
}

impl CpuShares {
    /// Over these processors: those that the worker itself may use.
    #[must_use]
    pub fn new(cpus: impl IntoIterator<Item = usize>) -> Self {
        Self(Arc::new(Mutex::new(cpus.into_iter().map(|cpu| (cpu, 0)).collect())))
    }

    /// Over the processors that this process may use; if that cannot be said, over none, and
    /// then nothing is bound.
    #[must_use]
    pub fn own() -> Self {
        Self::new(sched_getaffinity(Pid::from_raw(0)).map_or_else(
            |_| Vec::new(),
            |set| (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).collect(),
        ))
    }

    /// The least used processors, as many as `cpu_millis` needs, and at least one.
    #[must_use]
    pub fn take(&self, cpu_millis: u32) -> CpuShare {
        let wanted = cpu_millis.div_ceil(1000).max(1) as usize;
        let mut uses = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut by_use: Vec<(u32, usize)> = uses.iter().map(|(cpu, count)| (*count, *cpu)).collect();
        by_use.sort_unstable();
        let mut cpus: Vec<usize> = by_use.into_iter().take(wanted).map(|(_, cpu)| cpu).collect();
        cpus.sort_unstable();
        for cpu in &cpus {
            *uses.entry(*cpu).or_default() += 1;
        }
        drop(uses);
        CpuShare { cpus, from: self.clone() }
    }
}

impl CpuShare {
    /// The processors, in order.
    #[must_use]
    pub fn cpus(&self) -> &[usize] {
        &self.cpus
    }
}

impl Drop for CpuShare {
    fn drop(&mut self) {
        let mut uses = self.from.0.lock().unwrap_or_else(PoisonError::into_inner);
        for cpu in &self.cpus {
            if let Some(count) = uses.get_mut(cpu) {
                *count = count.saturating_sub(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_get_other_processors_as_long_as_there_are_some() {
        let shares = CpuShares::new([4, 5, 6, 7]);
        let one = shares.take(2000);
        let two = shares.take(1500);
        assert_eq!(one.cpus(), [4, 5]);
        assert_eq!(two.cpus(), [6, 7]);
        let three = shares.take(500);
        assert_eq!(three.cpus(), [4]);
        drop(one);
        assert_eq!(shares.take(1000).cpus(), [5]);
        assert_eq!(shares.take(9000).cpus(), [4, 5, 6, 7]);
    }
}
