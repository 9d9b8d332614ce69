//! Specs: what the files of a benchmark say, read from their text.
//!
//! Every function here takes the bytes of one file and gives a spec, or the refusal of
//! that one file, together with diagnostics that name line and column. Nothing in a
//! file makes them panic, and nothing in one file touches another.

mod audit;
mod checklist;
mod diagnostic;
mod env;
mod fields;
mod json;
mod merge;
mod preset;
mod rounds;
mod split;
mod task;
mod yaml;

pub use audit::{AuditSummary, parse_audit};
pub use checklist::{Checklist, ChecklistItem, parse_checklist};
pub use diagnostic::{Code, Diagnostic, Place, Refused, Severity};
pub use env::{EnvHooks, EnvSpec, MountSpec, Os, Screen, parse_env};
pub use json::{At, Document, place_at};
pub use merge::merge_env;
pub use preset::preset;
pub use split::{LONG_SPLIT, SplitFile, VERIFIED_SPLIT, VerifiedSplit, parse_split, parse_verified};
pub use task::{Success, TaskHooks, TaskInit, TaskSpec, parse_task};

/// How the text of a spec is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// JSON, as nearly all of the benchmark is.
    Json,
    /// YAML: a mapping at the top.
    Yaml,
}
