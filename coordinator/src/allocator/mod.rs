//! The allocator's hands: they carry out what the engine decides about allocations, and
//! bring back what Slurm says. What is decided, and by which rules, is the engine's
//! (`longhaul-engine`, "Allocations"); what is said to Slurm is `longhaul-slurm`'s.
//!
//! One task asks Slurm, one question at a time: its answers reach the engine in the order in
//! which they were asked for, and a slow controller is never asked twice at once.

mod translate;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use longhaul_core::text::chain;
use longhaul_core::time::Millis;
use longhaul_engine::{Command, JobId, Pool, PoolId, Token};
use longhaul_slurm::{
    Accounting, AllocationRequest, Client, Commands, Failure, JobRef, Limits, ScriptError, Shape, SubmitError,
    Template, Which, WorkerCommand, script,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::message::{Message, now};
use crate::passes::Passes;

/// How often what the partitions offer is looked at.
const PARTITIONS_EVERY: Duration = Duration::from_secs(300);

/// With every so many looks at the queue it is asked which nodes were drained.
const NODES_EVERY: u32 = 6;

/// After something was submitted or cancelled, the queue is looked at this soon.
const SOON: Duration = Duration::from_secs(2);

/// The longest time between two looks at a queue that does not answer.
const LONGEST_POLL: Duration = Duration::from_secs(120);

/// How a coordinator asks Slurm for workers.
#[derive(Clone, Debug)]
pub struct SlurmConfig {
    /// The patterns that allocations are asked with.
    pub pools: Vec<PoolConfig>,
    /// How often the queue is looked at, with one question for everything.
    pub poll: Duration,
    /// How long Slurm's programs may take.
    pub limits: Limits,
}

/// One pattern, and the batch script that belongs to it.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// What the engine decides by. Its prefix of tokens is set at each start.
    pub pool: Pool,
    /// What the script says.
    pub template: Template,
    /// The program that its workers are, and its first arguments; the folder of the files by
    /// which those of a submission find this coordinator is added.
    pub worker: WorkerCommand,
}

/// The batch script of a submission of a pool, as it is given to `sbatch`; `passes` is the folder
/// of the access files of allocations.
///
/// # Errors
///
/// A setting cannot be written into a script, or the token is none.
pub fn batch_script(
    pool: &PoolConfig,
    passes: &Path,
    token: &str,
    count: u32,
    walltime: Millis,
) -> Result<String, BatchScriptError> {
    let mut worker = pool.worker.clone();
    worker.args.push(passes.join(token).display().to_string());
    let token = token.parse().map_err(BatchScriptError::Token)?;
    let tasks = NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN);
    let shape = if pool.pool.array { Shape::Array { tasks, at_once: None } } else { Shape::Single };
    // Slurm counts in minutes, and rounds up.
    let minutes = u32::try_from(walltime.0.div_ceil(60_000)).unwrap_or(u32::MAX).max(1);
    let template = Template { time_limit_minutes: minutes, ..pool.template.clone() };
    script(&template, &AllocationRequest { token, shape, worker }).map_err(BatchScriptError::Script)
}

/// What the tokens of one incarnation of a coordinator begin with: in Slurm's form of a token
/// (`longhaul.OWNER.NUMBER`) all but the number.
#[must_use]
pub fn token_prefix(incarnation: u64) -> String {
    format!("longhaul.{incarnation:016x}.")
}

/// Why there is no batch script.
#[derive(Debug, thiserror::Error)]
pub enum BatchScriptError {
    /// A setting cannot be written into it.
    #[error(transparent)]
    Script(ScriptError),
    /// The submission's token is none.
    #[error(transparent)]
    Token(longhaul_slurm::TokenError),
}

/// What the engine wants of Slurm.
#[derive(Debug)]
pub(crate) enum Order {
    Submit {
        pool: PoolId,
        token: Token,
        count: u32,
        walltime: Millis,
    },
    Find {
        token: Token,
    },
    /// No tasks are all of them.
    Cancel {
        token: Token,
        job: JobId,
        tasks: Vec<u32>,
    },
    /// The passes of a submission are over, but for these tasks.
    Revoke {
        token: Token,
        keep: BTreeSet<u32>,
    },
    /// Whatever of these submissions waits or runs; answered when it was said.
    CancelAll {
        tokens: Vec<Token>,
        done: oneshot::Sender<()>,
    },
}

/// What of the engine's state a look at the queue needs.
#[derive(Debug)]
pub(crate) struct Brief {
    /// The engine's mark, read before the question.
    pub(crate) mark: u64,
    /// The submissions that are known and not over.
    pub(crate) submissions: BTreeMap<String, Known>,
}

/// A submission that is not over.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    /// Its id, if Slurm gave one.
    pub(crate) job: Option<JobId>,
    /// How many tasks it has. One task is the same as the whole job, array or not.
    pub(crate) count: u32,
    /// Its tasks that are not over, and how often each was started anew.
    pub(crate) live: BTreeMap<u32, u32>,
}

impl Known {
    /// The largest count of restarts of these tasks.
    fn restarts(&self, tasks: &[u32]) -> u32 {
        tasks.iter().filter_map(|task| self.live.get(task)).copied().max().unwrap_or(0)
    }
}

/// The task that asks Slurm.
pub(crate) struct Allocator<C> {
    client: Client<C>,
    config: SlurmConfig,
    orders: mpsc::UnboundedReceiver<Order>,
    mailbox: mpsc::Sender<Message>,
    passes: Passes,
    /// Submissions that Slurm took in this process: an order that comes twice is one.
    taken: BTreeMap<String, JobId>,
    /// Looks in a row that came to nothing.
    silent: u32,
    /// Looks at the queue while something of ours was in it.
    looks: u32,
    accounting: bool,
}

/// The coordinator stops: nobody listens any more.
struct Stopped;

impl<C: Commands> Allocator<C> {
    pub(crate) fn new(
        client: Client<C>,
        config: SlurmConfig,
        orders: mpsc::UnboundedReceiver<Order>,
        mailbox: mpsc::Sender<Message>,
        passes: Passes,
    ) -> Self {
        Self { client, config, orders, mailbox, passes, taken: BTreeMap::new(), silent: 0, looks: 0, accounting: true }
    }

    /// Works until the coordinator stops. What is under way at that moment is a submission
    /// of unknown fate for the next coordinator, which looks for it.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            Stopped = self.work() => {}
        }
    }

    async fn work(&mut self) -> Stopped {
        let mut partitions_at = Instant::now();
        let mut poll_at = Instant::now();
        loop {
            let outcome = tokio::select! {
                biased;
                order = self.orders.recv() => match order {
                    Some(order) => {
                        // What is said to files alone is nothing new at the queue.
                        if !matches!(order, Order::Revoke { .. }) {
                            poll_at = poll_at.min(Instant::now() + SOON.min(self.config.poll));
                        }
                        self.carry_out(order).await
                    }
                    None => return Stopped,
                },
                () = tokio::time::sleep_until(poll_at) => {
                    let outcome = self.look().await;
                    poll_at = Instant::now() + self.pause();
                    outcome
                }
                () = tokio::time::sleep_until(partitions_at) => {
                    partitions_at = Instant::now() + PARTITIONS_EVERY;
                    self.look_at_partitions().await
                }
            };
            if outcome.is_err() {
                return Stopped;
            }
        }
    }

    /// The time to the next look: longer after each that came to nothing, so that a busy
    /// controller is not kept busy.
    fn pause(&self) -> Duration {
        let factor = 1_u32.checked_shl(self.silent).unwrap_or(u32::MAX);
        self.config.poll.saturating_mul(factor).min(LONGEST_POLL.max(self.config.poll))
    }

    async fn carry_out(&mut self, order: Order) -> Result<(), Stopped> {
        match order {
            Order::Submit { pool, token, count, walltime } => {
                let answer = self.submit(&pool, &token, count, walltime).await;
                self.tell(answer).await
            }
            Order::Find { token } => {
                tracing::info!(%token, "looking for a submission of unknown fate");
                self.look().await
            }
            Order::Cancel { token, job, tasks } => {
                if let Err(failure) = self.cancel(&token, &job, &tasks).await {
                    // The engine says so again when it is still there after a while.
                    tracing::warn!(%token, %job, error = chain(&failure), "allocations were not cancelled");
                }
                Ok(())
            }
            Order::Revoke { token, keep } => {
                let (passes, of) = (self.passes.clone(), token.clone());
                // On a shared disk, which may hang.
                let revoked = tokio::task::spawn_blocking(move || passes.revoke(&of, &keep)).await;
                if let Ok(Err(error)) = revoked {
                    tracing::warn!(%token, error = chain(&error), "access files of allocations were not removed");
                }
                Ok(())
            }
            Order::CancelAll { tokens, done } => {
                for token in tokens {
                    let Ok(parsed) = token.0.parse() else { continue };
                    if let Err(failure) = self.client.cancel(&parsed, Which::All).await {
                        tracing::warn!(%token, error = chain(&failure), "allocations were not cancelled");
                    }
                }
                // Whoever waited may have given up.
                let _ = done.send(());
                Ok(())
            }
        }
    }

    async fn submit(&mut self, pool: &PoolId, token: &Token, count: u32, walltime: Millis) -> Command {
        let token = token.clone();
        if let Some(job) = self.taken.get(&token.0) {
            return Command::SubmissionAccepted { token, job: job.clone() };
        }
        let refused = |token, reason| Command::SubmissionRefused { token, reason, transient: false };
        let Some(config) = self.config.pools.iter().find(|config| config.pool.id == *pool) else {
            return refused(token, format!("the settings have no pool {pool} any more"));
        };
        let text = match batch_script(config, self.passes.folder(), &token.0, count, walltime) {
            Ok(text) => text,
            Err(error) => return refused(token, chain(&error)),
        };
        // Before Slurm has it: its workers may start at once.
        let (passes, of) = (self.passes.clone(), token.clone());
        match tokio::task::spawn_blocking(move || passes.issue(&of, count)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%pool, %token, error = chain(&error), "no access files for allocations");
                return Command::SubmissionRefused { token, reason: chain(&error), transient: true };
            }
            Err(error) => return Command::SubmissionRefused { token, reason: error.to_string(), transient: true },
        }
        match self.client.submit(&text).await {
            Ok(job) => {
                let job = JobId(job.to_string());
                tracing::info!(%pool, %token, %job, count, "asked for allocations");
                self.taken.insert(token.0.clone(), job.clone());
                Command::SubmissionAccepted { token, job }
            }
            Err(SubmitError::No(failure)) => {
                tracing::warn!(%pool, %token, error = chain(&failure), "Slurm gives no allocations");
                Command::SubmissionRefused { token, reason: chain(&failure), transient: failure.is_transient() }
            }
            Err(error @ SubmitError::Unsure(_)) => {
                tracing::warn!(%pool, %token, error = chain(&error), "it is to be looked for");
                Command::SubmissionUnknown { token, reason: chain(&error) }
            }
        }
    }

    async fn cancel(&self, token: &Token, job: &JobId, tasks: &[u32]) -> Result<(), Failure> {
        let (Ok(token), Some(id)) = (token.0.parse(), translate::slurm_id(job)) else {
            return Ok(());
        };
        if tasks.is_empty() {
            return self.client.cancel(&token, Which::These(&[JobRef::whole(id)])).await;
        }
        let jobs: Vec<JobRef> = tasks.iter().map(|task| JobRef::element(id, *task)).collect();
        self.client.cancel(&token, Which::These(&jobs)).await
    }

    /// One look at the queue, and at the accounting for what the queue lacks.
    async fn look(&mut self) -> Result<(), Stopped> {
        let (brief, asked_at) = (self.brief().await?, now());
        let queue = match self.client.queue().await {
            Ok(queue) => queue,
            Err(failure) => {
                self.silent = self.silent.saturating_add(1);
                return self.tell(Command::QueueUnreachable { reason: chain(&failure) }).await;
            }
        };
        self.silent = 0;
        let jobs: Vec<_> = queue.jobs.iter().flat_map(|job| translate::job(job, &brief)).collect();
        let missing = translate::missing(&brief, &jobs);
        self.tell(Command::QueueSeen { mark: brief.mark, asked_at, jobs }).await?;
        if brief.submissions.values().any(|known| !known.live.is_empty()) {
            self.looks = self.looks.wrapping_add(1);
            if self.looks.is_multiple_of(NODES_EVERY) {
                self.look_at_nodes().await?;
            }
        }
        if missing.is_empty() || !self.accounting {
            return Ok(());
        }
        match self.client.accounting(&missing).await {
            Ok(Accounting::Off) => self.accounting = false,
            Ok(Accounting::Lives(lives)) => {
                let jobs = translate::lives(&lives, &brief);
                if !jobs.is_empty() {
                    return self.tell(Command::AccountingSeen { jobs }).await;
                }
            }
            Err(failure) => tracing::debug!(error = chain(&failure), "the accounting does not answer"),
        }
        Ok(())
    }

    /// Whoever drains a node wants it empty: its workers are to take nothing new.
    async fn look_at_nodes(&mut self) -> Result<(), Stopped> {
        match self.client.drained().await {
            Ok(nodes) if nodes.is_empty() => Ok(()),
            Ok(nodes) => self.mailbox.send(Message::NodesDrained { nodes }).await.map_err(|_| Stopped),
            Err(failure) => {
                tracing::debug!(error = chain(&failure), "which nodes were drained is not known");
                Ok(())
            }
        }
    }

    async fn look_at_partitions(&mut self) -> Result<(), Stopped> {
        let (partitions, cluster) = match (self.client.partitions().await, self.client.config().await) {
            (Ok(partitions), Ok(cluster)) => (partitions, cluster),
            (Err(failure), _) | (_, Err(failure)) => {
                tracing::debug!(error = chain(&failure), "what the partitions offer is not known");
                return Ok(());
            }
        };
        for config in self.config.pools.clone() {
            let offer = translate::offer(&config, &partitions, &cluster);
            self.tell(Command::PartitionSeen { pool: config.pool.id, offer }).await?;
        }
        Ok(())
    }

    async fn brief(&self) -> Result<Brief, Stopped> {
        let (reply, answer) = oneshot::channel();
        self.mailbox.send(Message::Brief { reply }).await.map_err(|_| Stopped)?;
        answer.await.map_err(|_| Stopped)
    }

    async fn tell(&self, command: Command) -> Result<(), Stopped> {
        self.mailbox.send(Message::Slurm(Box::new(command))).await.map_err(|_| Stopped)
    }
}
