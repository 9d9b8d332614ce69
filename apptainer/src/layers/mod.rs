//! Layers: what an env's hooks leave, packed once and used by every sandbox of that env.

pub mod build;
pub mod carry;
mod manifest;
mod prune;
mod store;

pub use manifest::{LayerContent, LayerInput, LayerManifest, Tolerated};
pub use prune::{Bound, Pruned};
pub use store::{Finding, LayerGuard, LayerStore, StoreError, why};
