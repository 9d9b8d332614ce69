//! The coordinator's state machine: commands, events, effects. Pure and sans-io.
//!
//! The engine decides which worker has which attempt, and how episodes are settled. It
//! opens nothing, waits for nothing and asks no clock; what that costs its caller, the
//! shell, is this order, for every command:
//!
//! 1. [`Engine::step`] with the time and the command: refused, or a batch of events that
//!    is already applied in memory. (It is [`Engine::advance`], [`Engine::decide`] and
//!    [`Engine::apply`], and then [`Command::Tick`] until nothing more is to be decided.)
//! 2. Append the batch to the journal, whole, and sync it. If that fails, stop the
//!    process: the memory is ahead of the disk.
//! 3. Only now carry out [`Engine::effects`] of the batch, and answer whoever asked.
//! 4. Sleep until [`Engine::next_deadline`] or the next command, and step with
//!    [`Command::Tick`] if the deadline came first.
//!
//! Heartbeats are no commands and are not stored: [`Engine::observe_heartbeat`].
//!
//! Recovery is [`Engine::from_snapshot`] (or [`Engine::new`]), [`Engine::apply`] of every
//! event after it, and a step with [`Command::CoordinatorRestarted`].
//!
//! # What a worker must do for this to be safe
//!
//! * It counts a lease's time from when it *sent* the last heartbeat that was
//!   acknowledged: for a renewal the one that renewed it, for a new lease the last one
//!   before the lease arrived. When `lease_ttl` has passed, it stops spending.
//! * It ignores a lease whose attempt and epoch it has seen before: leases are sent
//!   again after a reconnect.
//! * Its hello and its heartbeats name every attempt that it holds: running, parked, or
//!   ended without an acknowledgement of that end.
//! * It stops its agents before it says that it leaves.
//! * Told to build a layer, it looks in the layer folder once more, and reports, whatever
//!   happens, before it reports the end of the attempt that wanted the layer. After every
//!   hello it repeats its open claims, and its reports of layers that it was told to build.
//!
//! # Placement
//!
//! Episodes start in the order of their runs and plans, with one preference: those whose
//! env is warm, or has no live attempt yet, come first, so that slots do not all wait
//! for one layer to be built. Memory and graphics processors are never given out twice
//! and never cut. Processors are time-shared anyway: an env that asks for more of them
//! than any connected worker has gets a whole worker that runs nothing else. What fits
//! nowhere waits, and [`Engine::why_waiting`] says why.

mod apply;
mod command;
mod decide;
mod effect;
mod effects;
mod engine;
mod event;
mod invariants;
mod lease;
mod query;
mod settings;
pub mod snapshot;
pub mod state;
mod volatile;

pub use command::{Command, LayerOutcome, PlanProblem, Rejection};
pub use effect::{Effect, LayerAnswer, Notice, RevokeReason};
pub use engine::{Engine, HeartbeatReply};
pub use event::{Departure, Event};
pub use invariants::{Invariant, Violation};
pub use lease::LeaseRef;
pub use query::{LiveAttempt, WaitReason, WorkerView};
pub use settings::Settings;
pub use snapshot::{Snapshot, SnapshotError};
