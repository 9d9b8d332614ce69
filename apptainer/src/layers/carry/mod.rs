//! Carrying a base image and layers to a cluster without a network: one tar file, every part of
//! it checked where it arrives.
//!
//! The first entry is the index; its name holds the digest of its own bytes. It names the parts
//! that follow, in this order, with the size and the digest of each: the base image, then the
//! layers, lowest first. A file that holds anything else, or anything in another order, is
//! refused: nothing in it decides where something is written but digests.

mod export;
mod import;

use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use longhaul_core::digest::Digest;
use longhaul_core::plan::LayerKind;
use serde::{Deserialize, Serialize};

use super::manifest::{LayerContent, LayerManifest};
use super::store::StoreError;
use crate::base::BaseError;

pub use export::{BaseToCarry, Exported, export};
pub use import::{BaseOutcome, Imported, ImportedBase, ImportedLayer, LayerOutcome, import};

/// The format of the file; the folder that its entries are in.
pub const FORMAT: &str = "longhaul-layers-1";

/// The most bytes of an index.
const MAX_INDEX: u64 = 64 * 1024 * 1024;

/// What a file carries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Index {
    /// [`FORMAT`].
    pub format: String,
    /// The architecture.
    pub arch: String,
    /// The base image; none if the layers alone are carried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<CarriedBase>,
    /// The layers, lowest first.
    pub layers: Vec<LayerManifest>,
}

/// A base image that is carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CarriedBase {
    /// The digest of its file.
    pub content: Digest,
    /// Its size.
    pub bytes: u64,
    /// The key of the definition that it was made of, if that has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Digest>,
}

/// Why layers were not carried.
#[derive(Debug, thiserror::Error)]
pub enum CarryError {
    /// The filesystem refused.
    #[error("{path}")]
    Io {
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The layer folder does not do what was asked.
    #[error("the layer folder cannot be used")]
    Store(#[from] StoreError),
    /// A base image cannot be read or kept.
    #[error("the base image cannot be used")]
    Base(#[from] BaseError),
    /// A layer that is to be carried is not there.
    #[error("the {} layer of {env} ({key}) is not in this folder", kind.name())]
    Missing {
        /// Which layer.
        kind: LayerKind,
        /// The env.
        env: String,
        /// Its key.
        key: Digest,
    },
    /// Something that is to be carried is not what it says.
    #[error("{part} is damaged: its digest is {found}, {expected} is expected")]
    Damaged {
        /// The part.
        part: String,
        /// What is known of it.
        expected: Digest,
        /// What it has.
        found: Digest,
    },
    /// The file is no file of layers, or is not whole.
    #[error("{path} is not taken: {reason}")]
    Refused {
        /// The file.
        path: PathBuf,
        /// What is wrong with it; hostile until escaped.
        reason: String,
    },
    /// There is no room for what the file brings.
    #[error("{path} has no room for what is brought: {needed} bytes are needed, {free} are free")]
    NoRoom {
        /// The folder.
        path: PathBuf,
        /// What is needed.
        needed: u64,
        /// What is free.
        free: u64,
    },
    /// Another import into the same folder runs.
    #[error("another import into {0} runs")]
    Busy(PathBuf),
    /// It was told to stop.
    #[error("stopped")]
    Stopped,
}

/// Tells what works on a thread of its own to stop.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Ends the work soon, in order.
    pub fn stop(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Reads until it is told to stop.
struct Stoppable<R> {
    inner: R,
    stop: Stop,
}

impl<R: Read> Read for Stoppable<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // Not `Interrupted`: that one is tried again by whoever reads.
        if self.stop.is_set() { Err(io::Error::other("stopped")) } else { self.inner.read(buffer) }
    }
}

/// A part of the file after its index.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    name: String,
    digest: Digest,
    bytes: u64,
}

impl Index {
    /// The name of the entry that the index with these bytes is in.
    fn name(bytes: &[u8]) -> String {
        format!("{FORMAT}/index-{}.json", Digest::of(bytes))
    }

    /// What follows the index, in order: pure.
    fn parts(&self) -> Vec<Part> {
        let base = self.base.iter().map(|base| Part {
            name: format!("{FORMAT}/base-{}.sif", base.content),
            digest: base.content,
            bytes: base.bytes,
        });
        base.chain(self.layers.iter().filter_map(part)).collect()
    }
}

/// The part that a layer's content is; none for one without.
fn part(layer: &LayerManifest) -> Option<Part> {
    match layer.content {
        LayerContent::File { digest, bytes } => {
            Some(Part { name: format!("{FORMAT}/layer-{}.sqsh", layer.key), digest, bytes })
        }
        LayerContent::Rerun { .. } => None,
    }
}

#[cfg(test)]
mod tests;
