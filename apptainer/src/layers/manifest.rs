//! What is known of a layer beside its bytes.

use longhaul_core::digest::Digest;
use longhaul_core::plan::LayerKind;
use longhaul_core::time::Timestamp;
use serde::{Deserialize, Serialize};

/// One input of a layer's key, as text, so that `longhaul layers why` can name what
/// differs between two keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerInput {
    /// What it is: `hook`, `mount /workspace/scripts`, `parent`, ...
    pub label: String,
    /// Its value, or the digest of it.
    pub value: String,
}

/// What a layer consists of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "content")]
pub enum LayerContent {
    /// A packed filesystem.
    File {
        /// The digest of the file.
        digest: Digest,
        /// Its size.
        bytes: u64,
    },
    /// Nothing: the hook leaves processes that no filesystem can hold, so it is run again
    /// for every attempt, over the layer below.
    Rerun {
        /// Why, with the processes.
        reason: String,
    },
}

/// A hook that failed and was let pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tolerated {
    /// Its exit code.
    pub exit: i32,
    /// The end of its log; hostile until escaped.
    pub log_tail: String,
}

/// The manifest of a layer, kept beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerManifest {
    /// The format of manifest and layer ([`longhaul_core::plan::LAYER_FORMAT`]).
    pub format: String,
    /// The layer's key.
    pub key: Digest,
    /// Which of the env's layers it is.
    pub kind: LayerKind,
    /// The env's folder name when it was built, for people.
    pub env: String,
    /// What it consists of.
    #[serde(flatten)]
    pub content: LayerContent,
    /// What it was built over, lowest first: the base image's content, then layers' keys.
    pub parents: Vec<Digest>,
    /// The architecture.
    pub arch: String,
    /// The filesystem that stacked it, and has to stack it again.
    pub overlay_driver: String,
    /// The hook's failure, if there was one and the policy let it pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tolerated: Option<Tolerated>,
    /// The units that were running; they are started again in every sandbox over this layer.
    #[serde(default)]
    pub units: Vec<String>,
    /// The inputs of its key.
    pub inputs: Vec<LayerInput>,
    /// How long its hook ran, in milliseconds.
    pub hook_millis: u64,
    /// When it was built.
    pub created: Timestamp,
}

impl LayerManifest {
    /// The layer's size; none for one without content.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        match &self.content {
            LayerContent::File { bytes, .. } => *bytes,
            LayerContent::Rerun { .. } => 0,
        }
    }
}
