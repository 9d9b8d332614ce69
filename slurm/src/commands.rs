//! The port to Slurm's programs: one of them is run, and answers within a time limit.

use std::time::Duration;

/// A program to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invocation {
    /// Its name: `squeue`, `sbatch`, ...
    pub program: &'static str,
    /// Its arguments; no shell sees them.
    pub args: Vec<String>,
    /// What it reads.
    pub stdin: Vec<u8>,
    /// How long it may take.
    pub limit: Duration,
}

/// What a program that ended left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Its exit code; none if a signal ended it.
    pub code: Option<i32>,
    /// What it answered. Bytes that are no UTF-8 are replaced.
    pub stdout: String,
    /// What it said beside that; the same.
    pub stderr: String,
}

/// A program that gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It took too long, and was killed.
    #[error("{program} did not answer within {} s", limit.as_secs())]
    TimedOut {
        /// What was run.
        program: &'static str,
        /// How long it was given.
        limit: Duration,
    },
    /// There is no such program.
    #[error("there is no program {program}")]
    NotFound {
        /// What was to run.
        program: &'static str,
    },
    /// Its answer is longer than any cluster's.
    #[error("the answer of {program} has more than {limit} bytes")]
    TooLong {
        /// What was run.
        program: &'static str,
        /// The most that is read.
        limit: u64,
    },
    /// It could not be started, or not be read.
    #[error("cannot run {program}")]
    Io {
        /// What was to run.
        program: &'static str,
        /// Why.
        source: std::io::Error,
    },
}

/// Runs Slurm's programs. [`crate::System`] is the real one.
pub trait Commands: Send + Sync {
    /// Runs one to its end, or kills it at its time limit.
    fn run(&self, invocation: Invocation) -> impl Future<Output = Result<Output, RunError>> + Send;
}
