//! Slurm: what is said to it, written, and what it says, parsed.
//!
//! Everything but the running of a program is pure: texts go in, types come out, and what is
//! random or depends on the time is an argument. Every text that Slurm passes on (names,
//! comments, reasons, messages) may have been written by anybody and is only data here:
//! nobody's job name can end a record, and whoever shows it escapes it.
//!
//! # Asking for allocations
//!
//! ```
//! use std::num::NonZeroU32;
//! use longhaul_slurm::{AllocationRequest, Owner, Shape, Template, Token, WorkerCommand, script};
//!
//! let owner = Owner::new("c0ffee")?;                 // which coordinator
//! let token = Token::new(owner, 0x1f);               // which submission: random, stored before it is made
//! let template = Template { partition: Some("batch".to_owned()), time_limit_minutes: 240, ..Template::default() };
//! let request = AllocationRequest {
//!     token,
//!     shape: Shape::Array { tasks: NonZeroU32::new(16).ok_or("zero")?, at_once: None },
//!     worker: WorkerCommand {
//!         program: "/home/me/longhaul".into(),
//!         args: vec!["worker".to_owned(), "--coordinator".to_owned(), "/home/me/access.json".to_owned()],
//!     },
//! };
//! let text: String = script(&template, &request)?;   // what `longhaul slurm script` shows
//! assert!(text.contains("#SBATCH --array=0-15\n"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Token`] is the identity of a submission: a job id is not, since a controller that was
//! killed gives ids out again. It is the job's name and its comment, so one `squeue` finds it.
//! Within a submission, an element of an array is known by its index, and its lives by the
//! number of restarts: [`Allocation`] reads all three from a worker's environment.
//!
//! # Asking Slurm
//!
//! [`Client`] asks through a port, [`Commands`]; [`System`] is the real one. Every call ends
//! within its time limit, and every failure says what to do about it: see [`Failure`]. After
//! [`SubmitError::Unsure`] a submission may have been accepted: [`Client::find`] looks for its
//! token, and only when that has found nothing is it made again.
//!
//! | call | runs | answer |
//! |---|---|---|
//! | [`Client::connect`] | `sinfo --version` | the [`Version`], which chooses how `squeue` is read |
//! | [`Client::submit`] | `sbatch --parsable`, script on stdin | [`JobId`] |
//! | [`Client::test_only`] | `sbatch --test-only` | the scheduler's guess, or why it refuses |
//! | [`Client::queue`] | one `squeue` | every job of this user: [`JobView`]s, ended ones too while Slurm knows them |
//! | [`Client::find`] | the same, by name | those of one token |
//! | [`Client::cancel`] | `scancel --name=TOKEN` | an id that was given out again is not hit |
//! | [`Client::accounting`] | `sacct` | [`Accounting`]: lives that ended, or that there is no accounting |
//! | [`Client::partitions`] | `sinfo` | [`Partition`]s: limits, and groups of equal nodes |
//! | [`Client::drained`] | `sinfo --Node` | the nodes that were drained: [`DrainedNode`]s |
//! | [`Client::config`] | `scontrol show config` | [`ClusterConfig`]: KillWait, MinJobAge, MaxArraySize, ... |
//!
//! A job that is missing from one answer is not a failed job: `squeue` forgets ended ones,
//! a controller killed soon after an `sbatch` forgets that one, accounting may be off.

mod accounting;
mod allocation;
mod client;
mod cluster;
mod commands;
mod failure;
mod ids;
mod nodes;
mod partitions;
mod queue;
mod records;
mod script;
mod system;
mod time;
mod token;

pub use accounting::{Accounting, Life};
pub use allocation::{Allocation, ArrayTask, ParseError};
pub use client::{Client, Estimate, Limits, SubmitError, Which};
pub use cluster::{ClusterConfig, Version};
pub use commands::{Commands, Invocation, Output, RunError};
pub use failure::{Failure, Rejection};
pub use ids::{JobId, JobRef};
pub use nodes::DrainedNode;
pub use partitions::{NodeGroup, NodeState, Partition};
pub use queue::{Indices, JobState, JobView, Member, Queue};
pub use records::Malformed;
pub use script::{AllocationRequest, Memory, ScriptError, Shape, Template, WarningSignal, WorkerCommand, script};
pub use system::System;
pub use token::{Owner, Token, TokenError};
