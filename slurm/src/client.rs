//! The questions that Longhaul asks of Slurm, each of them one program.

use std::time::Duration;

use crate::accounting::{self, Accounting};
use crate::cluster::{ClusterConfig, Version};
use crate::commands::{Commands, Invocation, Output, RunError};
use crate::failure::Failure;
use crate::ids::{JobId, JobRef, job_id};
use crate::nodes::{self, DrainedNode};
use crate::partitions::{self, Partition};
use crate::queue::{self, JobView, Queue};
use crate::records::{self, Malformed};
use crate::time;
use crate::token::Token;

/// How long Slurm's programs may take. They give up by themselves when the controller does not
/// answer: after some multiple of the site's `MessageTimeout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A question.
    pub query: Duration,
    /// A submission or a cancellation.
    pub change: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { query: Duration::from_secs(60), change: Duration::from_secs(120) }
    }
}

/// Which jobs of a submission are cancelled.
#[derive(Clone, Copy, Debug)]
pub enum Which<'a> {
    /// Those that wait and those that run.
    All,
    /// Those that wait.
    Waiting,
    /// These, as [`JobView::reference`] names them.
    These(&'a [JobRef]),
}

/// The scheduler's guess for a submission that was not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// When it would begin, in seconds since the Unix epoch.
    pub start: Option<u64>,
    /// What Slurm said.
    pub message: String,
}

/// A submission without an id.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// No such job waits or runs: Slurm refused, or was never asked. A refused one may have
    /// left a record, as a job that failed.
    #[error(transparent)]
    No(Failure),
    /// There may be such a job. [`Client::find`] looks for its token.
    #[error("it is not known whether the submission was accepted")]
    Unsure(#[source] Failure),
}

/// Asks one cluster.
#[derive(Debug)]
pub struct Client<C> {
    commands: C,
    version: Version,
    separator: String,
    limits: Limits,
}

impl<C: Commands> Client<C> {
    /// Finds out which version of Slurm is there; the controller is not asked. The `nonce` is
    /// random: with it fields are told apart, whatever names and comments say.
    ///
    /// # Errors
    ///
    /// Slurm's programs are not there, find no cluster, or do not say their version.
    pub async fn connect(commands: C, nonce: u64, limits: Limits) -> Result<Self, Failure> {
        const PROGRAM: &str = "sinfo";
        let args = vec!["--version".to_owned()];
        let output =
            commands.run(Invocation { program: PROGRAM, args, stdin: Vec::new(), limit: limits.query }).await?;
        let answer = succeeded(PROGRAM, output)?;
        let version = Version::parse(PROGRAM, &answer)?;
        Ok(Self { commands, version, separator: records::separator(nonce), limits })
    }

    /// The version of Slurm.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Submits a script of [`crate::script`].
    ///
    /// # Errors
    ///
    /// [`SubmitError::No`] if no such job came to be; [`SubmitError::Unsure`] if there may be.
    pub async fn submit(&self, script: &str) -> Result<JobId, SubmitError> {
        let output = match self.sbatch("--parsable", script).await {
            Ok(output) => output,
            // What could not be read may have been asked all the same.
            Err(error @ RunError::NotFound { .. }) => return Err(SubmitError::No(Failure::Run(error))),
            Err(error) => return Err(SubmitError::Unsure(Failure::Run(error))),
        };
        let answer = succeeded(SBATCH, output).map_err(|failure| match failure {
            // What was asked may have arrived, and the answer been lost.
            Failure::Unreachable { .. } | Failure::Killed { .. } => SubmitError::Unsure(failure),
            _ => SubmitError::No(failure),
        })?;
        // `ID` or `ID;CLUSTER`, after what a site's plugins like to say.
        let line = answer.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
        job_id(line.split(';').next().unwrap_or_default().trim()).ok_or_else(|| {
            let reason = format!("{line:?} is no job id");
            SubmitError::Unsure(Failure::Malformed(Malformed { program: SBATCH, reason }))
        })
    }

    /// Asks whether a script would be accepted; nothing is submitted.
    ///
    /// # Errors
    ///
    /// It would not be, or that cannot be found out.
    pub async fn test_only(&self, script: &str) -> Result<Estimate, Failure> {
        let output = self.sbatch("--test-only", script).await?;
        let message = output.stderr.trim().to_owned();
        succeeded(SBATCH, output)?;
        let start = message.split_once(" to start at ").and_then(|(_, rest)| time::instant(rest.split(' ').next()?));
        Ok(Estimate { start, message })
    }

    /// All jobs of this user that Slurm knows, with one question.
    ///
    /// # Errors
    ///
    /// There is no answer, or it cannot be read whole.
    pub async fn queue(&self) -> Result<Queue, Failure> {
        self.squeue(None).await
    }

    /// What Slurm knows of one submission: nothing, if it never came to be, or was forgotten.
    /// One that was lost on its way may still arrive within the site's message timeout.
    ///
    /// # Errors
    ///
    /// There is no answer, or it cannot be read whole.
    pub async fn find(&self, token: &Token) -> Result<Vec<JobView>, Failure> {
        let found = self.squeue(Some(token)).await?;
        Ok(found.jobs.into_iter().filter(|job| job.token.as_ref() == Some(token)).collect())
    }

    /// Cancels jobs of a submission. Those that have ended, or whose id belongs to another
    /// submission now, are left alone; that is no error.
    ///
    /// # Errors
    ///
    /// It is not known whether they are cancelled.
    pub async fn cancel(&self, token: &Token, which: Which<'_>) -> Result<(), Failure> {
        const PROGRAM: &str = "scancel";
        /// A command line has room for some thousands.
        const AT_ONCE: usize = 500;
        let named = format!("--name={token}");
        let calls = match which {
            Which::All => vec![vec![named]],
            Which::Waiting => vec![vec![named, "--state=PENDING".to_owned()]],
            Which::These(jobs) => jobs
                .chunks(AT_ONCE)
                .map(|jobs| std::iter::once(named.clone()).chain(jobs.iter().map(ToString::to_string)).collect())
                .collect(),
        };
        for args in calls {
            let output = self.run(PROGRAM, args, self.limits.change).await?;
            // With a name, an id that is not there is a failure without a word.
            if output.code.is_some_and(|code| code != 0) && output.stderr.trim().is_empty() {
                continue;
            }
            match succeeded(PROGRAM, output) {
                Err(Failure::Rejected { rejection: crate::Rejection::UnknownJob, .. }) => {}
                result => drop(result?),
            }
        }
        Ok(())
    }

    /// What accounting remembers of jobs.
    ///
    /// # Errors
    ///
    /// There is no answer, or it cannot be read whole. That there is no accounting is none.
    pub async fn accounting(&self, jobs: &[JobRef]) -> Result<Accounting, Failure> {
        const PROGRAM: &str = "sacct";
        /// A command line has room for some thousands.
        const AT_ONCE: usize = 500;
        let mut lives = Vec::new();
        for jobs in jobs.chunks(AT_ONCE) {
            let args = accounting::arguments(jobs, &self.separator);
            let output = self.run(PROGRAM, args, self.limits.query).await?;
            if accounting::is_off(&output) {
                return Ok(Accounting::Off);
            }
            lives.extend(accounting::parse(&succeeded(PROGRAM, output)?, &self.separator)?);
        }
        Ok(Accounting::Lives(lives))
    }

    /// What the partitions offer.
    ///
    /// # Errors
    ///
    /// There is no answer, or it cannot be read whole.
    pub async fn partitions(&self) -> Result<Vec<Partition>, Failure> {
        const PROGRAM: &str = "sinfo";
        let output = self.run(PROGRAM, partitions::arguments(&self.separator), self.limits.query).await?;
        Ok(partitions::parse(&succeeded(PROGRAM, output)?, &self.separator)?)
    }

    /// The nodes that were drained, with one question for all of them.
    ///
    /// # Errors
    ///
    /// There is no answer, or it cannot be read whole.
    pub async fn drained(&self) -> Result<Vec<DrainedNode>, Failure> {
        const PROGRAM: &str = "sinfo";
        let output = self.run(PROGRAM, nodes::arguments(&self.separator), self.limits.query).await?;
        Ok(nodes::parse(&succeeded(PROGRAM, output)?, &self.separator)?)
    }

    /// The settings of the cluster.
    ///
    /// # Errors
    ///
    /// There is no answer.
    pub async fn config(&self) -> Result<ClusterConfig, Failure> {
        const PROGRAM: &str = "scontrol";
        let args = vec!["show".to_owned(), "config".to_owned()];
        let output = self.run(PROGRAM, args, self.limits.query).await?;
        Ok(ClusterConfig::parse(&succeeded(PROGRAM, output)?))
    }

    async fn squeue(&self, token: Option<&Token>) -> Result<Queue, Failure> {
        const PROGRAM: &str = "squeue";
        let json = self.version.has_good_json();
        let mut args = if json { queue::json_arguments() } else { queue::fixed_arguments(&self.separator) };
        // Ended ones too: how a job ended is otherwise known to accounting alone. And those in partitions
        // that the site hides, which are ours all the same.
        args.extend(["--all", "--me", "--states=all"].map(str::to_owned));
        args.extend(token.map(|token| format!("--name={token}")));
        let output = self.run(PROGRAM, args, self.limits.query).await?;
        let answer = succeeded(PROGRAM, output)?;
        let jobs = if json { queue::parse_json(&answer)? } else { queue::parse_fixed(&answer, &self.separator)? };
        Ok(Queue { jobs })
    }

    async fn sbatch(&self, mode: &str, script: &str) -> Result<Output, RunError> {
        let (args, stdin) = (vec![mode.to_owned()], script.as_bytes().to_vec());
        self.commands.run(Invocation { program: SBATCH, args, stdin, limit: self.limits.change }).await
    }

    async fn run(&self, program: &'static str, args: Vec<String>, limit: Duration) -> Result<Output, RunError> {
        self.commands.run(Invocation { program, args, stdin: Vec::new(), limit }).await
    }
}

const SBATCH: &str = "sbatch";

/// The answer of a program that succeeded.
fn succeeded(program: &'static str, output: Output) -> Result<String, Failure> {
    if output.code == Some(0) { Ok(output.stdout) } else { Err(Failure::read(program, &output)) }
}

#[cfg(test)]
mod tests;
