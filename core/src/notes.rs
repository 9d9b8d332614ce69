//! What is noted of an attempt beside its end: what it rested on, and where its time went.

use serde::{Deserialize, Serialize};

use crate::call::CallTotals;
use crate::digest::Digest;
use crate::plan::LayerKind;
use crate::time::Millis;

/// One layer as an attempt used it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerUse {
    /// Which of the env's layers.
    pub kind: LayerKind,
    /// Its key.
    pub key: Digest,
    /// The digest of its file.
    pub content: Digest,
    /// Whether this attempt's worker built it, or it was there.
    pub built: bool,
    /// The exit code of its hook, if the policy let a failing one pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tolerated_exit: Option<i32>,
}

/// Steps that repeated the action before them and left the screen as it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StallNotes {
    /// How many.
    pub steps: u32,
    /// The longest row of them.
    pub longest: u32,
}

/// What is noted of an attempt. All of it is for people and provenance; nothing is decided by it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptNotes {
    /// The node.
    pub hostname: String,
    /// The version of the program that ran it; empty in records of before it was noted.
    #[serde(default)]
    pub version: String,
    /// What the worker offers of its node, in thousandths of a processor: by it an attempt's share
    /// of the node's time is known. 0 if it was not noted.
    #[serde(default)]
    pub node_cpu_millis: u32,
    /// The layers, base first.
    pub layers: Vec<LayerUse>,
    /// Why the configure hook ran for this attempt in place of its layer, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configure_ran: Option<String>,
    /// Getting the layers ready, builds and waiting for others' builds included.
    pub layers_time: Millis,
    /// From the sandbox's start to a helper that answers and a display that is up.
    pub start_time: Millis,
    /// The hooks before the first observation.
    pub setup_time: Millis,
    /// From the first observation to the last answer.
    pub acting_time: Millis,
    /// The export hook and the verifier.
    pub verify_time: Millis,
    /// The most memory that the sandbox used, in MiB.
    pub peak_memory_mib: u64,
    /// The model calls of the attempt's agent and its audits.
    #[serde(default)]
    pub calls: CallTotals,
    /// Those of its judge, which are not among them.
    #[serde(default)]
    pub judging: CallTotals,
    /// The longest row of steps that repeated an action without effect, and all such steps.
    #[serde(default)]
    pub stalls: StallNotes,
    /// How often the agent's word that it was done was audited.
    #[serde(default)]
    pub audits: u32,
    /// Things that a person should know when reading the verdict.
    #[serde(default)]
    pub warnings: Vec<String>,
}

impl AttemptNotes {
    /// Whether a worker of ours said any of it: one that is lost could not, nor do results that were
    /// imported. Then its times and amounts are not known, and not zero.
    #[must_use]
    pub fn is_noted(&self) -> bool {
        !self.hostname.is_empty()
    }
}
