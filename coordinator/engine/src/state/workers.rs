//! Workers: what they have, where they are, what they hold.

use std::collections::BTreeMap;

use longhaul_core::ids::{AttemptId, Epoch};
use longhaul_core::plan::Resources;
use longhaul_core::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::allocation::WorkerAllocation;

/// What a worker has and where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerProfile {
    /// The node's name.
    pub hostname: String,
    /// The Slurm job that it runs in, if any.
    pub slurm_job_id: Option<String>,
    /// What it has for attempts.
    pub capacity: Capacity,
    /// The allocation of ours that it runs in, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<WorkerAllocation>,
}

/// Whether a worker that says hello takes leases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Readiness {
    /// It does.
    #[default]
    Fit,
    /// It does not, for this reason.
    Unfit(String),
    /// It will once it is ready: it makes what it lacks, and says hello again.
    Preparing(String),
}

impl Readiness {
    /// Whether there is nothing to be said.
    #[must_use]
    pub const fn is_fit(&self) -> bool {
        matches!(self, Self::Fit)
    }

    /// Why it takes none, if it does not.
    #[must_use]
    pub const fn reason(&self) -> Option<&String> {
        match self {
            Self::Fit => None,
            Self::Unfit(reason) | Self::Preparing(reason) => Some(reason),
        }
    }
}

/// What a worker has for attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capacity {
    /// Processors, in thousandths.
    pub cpu_millis: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Graphics processors.
    pub gpus: u32,
    /// The most attempts at once, whatever the resources; 0 is no such limit.
    pub max_slots: u32,
}

impl Capacity {
    /// What both have.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        self.with(other, u32::min, u64::min)
    }

    /// What either of them has.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        self.with(other, u32::max, u64::max)
    }

    fn with(self, other: Self, small: fn(u32, u32) -> u32, large: fn(u64, u64) -> u64) -> Self {
        // No limit is the highest one.
        let slots = |slots: u32| if slots == 0 { u32::MAX } else { slots };
        let max_slots = small(slots(self.max_slots), slots(other.max_slots));
        Self {
            cpu_millis: small(self.cpu_millis, other.cpu_millis),
            memory_mib: large(self.memory_mib, other.memory_mib),
            gpus: small(self.gpus, other.gpus),
            max_slots: if max_slots == u32::MAX { 0 } else { max_slots },
        }
    }
}

/// A worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    /// What it has and where it is.
    pub profile: WorkerProfile,
    /// When it was first heard of.
    pub joined_at: Timestamp,
    /// Its open session, if it has one.
    pub session: Option<u64>,
    /// Why it takes no more leases, if it does not.
    pub draining: Option<String>,
    /// Why it can take no leases for now, if it cannot.
    #[serde(default)]
    pub unfit: Option<String>,
    /// Whether it gets itself ready, and never took leases before.
    #[serde(default)]
    pub preparing: bool,
    /// Since when it takes leases, if it did not at first.
    #[serde(default)]
    pub fit_since: Option<Timestamp>,
    /// When its last lease ended.
    #[serde(default)]
    pub idle_since: Option<Timestamp>,
    /// The leases that it holds.
    pub leases: BTreeMap<AttemptId, Lease>,
}

impl Worker {
    /// A worker that was never heard of before.
    #[must_use]
    pub const fn new(profile: WorkerProfile, joined_at: Timestamp) -> Self {
        Self {
            profile,
            joined_at,
            session: None,
            draining: None,
            unfit: None,
            preparing: false,
            fit_since: None,
            idle_since: None,
            leases: BTreeMap::new(),
        }
    }
}

/// A lease: a worker's exclusive, expiring right to an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Its fencing number.
    pub epoch: Epoch,
    /// When it was granted.
    pub since: Timestamp,
    /// What of the worker it takes up.
    pub reserved: Resources,
    /// Whether the attempt is to go on where the one before it was cut off.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resumes: bool,
    /// Whether a person asked for the end of the attempt: its worker was told to stop it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
}
