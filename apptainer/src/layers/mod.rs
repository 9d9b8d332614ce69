//! Layers: what an env's hooks leave, packed once and used by every sandbox of that env.

pub mod build;
mod manifest;
mod store;

pub use manifest::{LayerContent, LayerInput, LayerManifest, Tolerated};
pub use store::{Bound, Finding, LayerGuard, LayerStore, Pruned, StoreError, why};
