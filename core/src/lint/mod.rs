//! Lint: what is odd in a benchmark, said with file, line, column and what to do.
//!
//! Pure: it judges texts and facts that a reader hands in.

mod corpus;
mod finding;
mod human;
mod needs;
mod python;
mod shell;
mod verifier;

pub use corpus::{EnvFacts, Splits, TaskFacts, TaskIds, join_splits, judge_corpus};
pub use finding::{Finding, LintReport, TaskCounts, shown};
pub use human::human;
pub use needs::{Evidence, Need, Needs};
pub use verifier::{VerifierVerdict, judge_verifier, leaked_block};

pub use crate::spec::{Code, Diagnostic, Place, Severity};
