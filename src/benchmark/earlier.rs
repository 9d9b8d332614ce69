//! Tasks as an earlier run froze them, so that another agent is tried on exactly those, whatever has
//! become of the benchmark since.

use std::collections::BTreeMap;

use longhaul_core::ids::TaskName;
use longhaul_core::plan::{EnvPlan, TaskPlan};

/// An earlier run whose tasks are used again.
#[derive(Clone, Debug, PartialEq)]
pub struct EarlierRun {
    /// Where its benchmark was, for people.
    pub benchmark: String,
    /// Its tasks.
    pub tasks: BTreeMap<TaskName, EarlierTask>,
}

/// A task of an earlier run.
#[derive(Clone, Debug, PartialEq)]
pub struct EarlierTask {
    /// The task as it was frozen.
    pub plan: TaskPlan,
    /// Its env as it was frozen.
    pub env: EnvPlan,
    /// The most steps that its episodes might take.
    pub steps: u32,
}
