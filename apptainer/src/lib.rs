//! Rootless Apptainer: base images, layers and sandboxes.
//!
//! A *sandbox* is one `apptainer exec` over a base image, read-only layers and a
//! writable top on node-local disk, with the helper as its first process; everything
//! that happens inside goes through the helper ([`client`]). *Layers* are what env hooks
//! leave behind, packed once and shared ([`layers`]). Building command lines is pure
//! ([`command`]); running them is not.
//!
//! What was started is known by identity ([`identity`]) and is ended whole: by
//! [`Sandbox::stop`], by the helper when the worker's lifeline breaks, and by the
//! [`janitor`] for what a killed worker left.

pub mod accounts;
pub mod base;
pub mod client;
pub mod command;
pub mod filesystem;
pub mod gpus;
pub mod identity;
pub mod janitor;
pub mod layers;
mod network;
mod program;
pub mod sandbox;
mod scratch;
mod session;

pub use base::{BaseDefinition, BaseImage, BaseSource, Certificates};
pub use gpus::{ClaimError, Gpus, Maker};
pub use network::NetworkError;
pub use program::{Apptainer, DetectError, Limits, OLDEST, ToolError, Version};
pub use sandbox::{Bind, Network, Sandbox, SandboxError, SandboxSpec};
pub use scratch::ScratchError;
