//! The coordinator: gRPC services around the engine and the store.
//!
//! ```text
//! workers ── sessions ─┐             ┌─ store (one writer thread, group commit)
//! clients ── control ──┼─ mailbox ─ actor ─ engine (pure)
//! signals, timers ─────┘             └─ sessions' outgoing channels, followers
//! ```
//!
//! Invariants: the actor alone touches the engine; no effect and no answer before its
//! event is durable; a failed append stops the process; steps and blobs go to the store
//! without the actor, and are acknowledged only once they are synced.

mod access;
mod actor;
pub mod allocator;
mod auth;
mod blobs;
mod control;
mod layers;
mod message;
mod passes;
mod project;
mod relay;
pub mod replicas;
mod revive;
mod server;
mod session;
mod shares;
mod trajectory;
pub mod view;

pub use access::{ACCESS_FILE, ACCESS_FOLDER, AccessFolder, AccessFolderError, LOCAL_ACCESS_FILE, socket_path};
pub use actor::ActorError;
pub use passes::PASSES_FOLDER;
pub use server::{Config, Coordinator, Listen, StartError};
