//! Pools, submissions and allocations: what becomes of what Slurm says.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_core::ids::WorkerId;
use longhaul_core::time::Timestamp;

use super::draft::Draft;
use crate::allocation::{
    Allocation, AllocationEnd, AllocationId, AllocationState, JobEnd, JobId, JobPhase, JobSeen, PartitionOffer, Pool,
    PoolId, PoolRecord, Queue, Stage, Submission, Token,
};
use crate::command::{PoolProblem, Rejection};
use crate::event::{Departure, Event};

impl Draft<'_> {
    pub(super) fn set_pool(&mut self, pool: Pool) -> Result<(), Rejection> {
        let least = self.engine.settings.min_remaining;
        let problem = if pool.id.0.is_empty() || pool.token_prefix.is_empty() {
            Some(PoolProblem::Nameless)
        } else if pool.walltime <= least {
            Some(PoolProblem::TooShort { walltime: pool.walltime, least })
        } else if pool.offer.cpu_millis == 0 || pool.offer.memory_mib == 0 {
            Some(PoolProblem::OffersNothing)
        } else if pool.max_workers == 0 || pool.max_queued == 0 {
            Some(PoolProblem::NoWorkers)
        } else {
            None
        };
        if let Some(problem) = problem {
            return Err(Rejection::BadPool { pool: pool.id, problem });
        }
        if self.state().pools.get(&pool.id).is_none_or(|known| known.removed || known.pool != pool) {
            let at = self.at;
            self.push(Event::PoolSet { at, pool });
        }
        Ok(())
    }

    pub(super) fn remove_pool(&mut self, pool: PoolId) {
        if self.state().pools.get(&pool).is_some_and(|known| !known.removed) {
            let at = self.at;
            self.push(Event::PoolRemoved { at, pool });
        }
    }

    pub(super) fn resume_pool(&mut self, pool: PoolId) -> Result<(), Rejection> {
        let Some(known) = self.state().pools.get(&pool) else { return Err(Rejection::UnknownPool { pool }) };
        if known.paused.is_some() || known.wait.is_some() || known.failures > 0 {
            let at = self.at;
            self.push(Event::PoolResumed { at, pool });
        }
        Ok(())
    }

    pub(super) fn partition_seen(&mut self, pool: PoolId, offer: PartitionOffer) -> Result<(), Rejection> {
        let Some(known) = self.state().pools.get(&pool) else { return Err(Rejection::UnknownPool { pool }) };
        if known.partition != offer {
            let at = self.at;
            self.push(Event::PartitionSeen { at, pool, offer });
        }
        Ok(())
    }

    pub(super) fn submission_accepted(&mut self, token: Token, job: JobId) -> Result<(), Rejection> {
        let Some(known) = self.state().submissions.get(&token) else {
            return Err(Rejection::UnknownSubmission { token });
        };
        let at = self.at;
        match known.job() {
            None => self.push(Event::SubmissionAccepted { at, token, job }),
            // It was asked again, and the first request had come through after all.
            Some(known) if *known != job => self.push(Event::StrayFound { at, token, job }),
            Some(_) => {}
        }
        Ok(())
    }

    pub(super) fn submission_refused(
        &mut self,
        token: Token,
        reason: String,
        transient: bool,
    ) -> Result<(), Rejection> {
        let Some(known) = self.state().submissions.get(&token) else {
            return Err(Rejection::UnknownSubmission { token });
        };
        if !matches!(known.stage, Stage::Requested) {
            return Ok(());
        }
        let at = self.at;
        let Some(record) = self.state().pools.get(&known.pool) else { return Ok(()) };
        let times = if transient { record.refusals } else { record.failures };
        let delay = self.engine.settings.submit_wait(times.saturating_add(1));
        self.push(Event::SubmissionRefused { at, token, reason: reason.clone(), transient, delay });
        if !transient {
            self.count_failure(&known.pool, &format!("Slurm refused it: {reason}"), 1);
        }
        Ok(())
    }

    pub(super) fn submission_unknown(&mut self, token: Token, reason: String) -> Result<(), Rejection> {
        let Some(known) = self.state().submissions.get(&token) else {
            return Err(Rejection::UnknownSubmission { token });
        };
        if matches!(known.stage, Stage::Requested) {
            let at = self.at;
            self.push(Event::SubmissionDoubted { at, token, reason });
        }
        Ok(())
    }

    pub(super) fn queue_unreachable(&mut self, reason: String) {
        if !matches!(self.state().queue, Queue::Unreachable { .. }) {
            let at = self.at;
            self.push(Event::QueueUnreachable { at, reason });
        }
    }

    pub(super) fn queue_seen(&mut self, mark: u64, asked_at: Timestamp, jobs: &[JobSeen]) {
        let at = self.at;
        if !matches!(self.state().queue, Queue::Reachable { .. }) {
            self.push(Event::QueueAnswered { at });
        }
        let shown = self.jobs_seen(jobs);
        for (token, submission) in &self.state().submissions {
            if mark < submission.mark {
                continue;
            }
            let listed = shown.get(token);
            match &submission.stage {
                // The queue has it: that was said above.
                Stage::Requested | Stage::Doubtful { .. } if listed.is_some() => {}
                Stage::Doubtful { since, .. } => {
                    if self.waited_before(*since, asked_at) >= self.engine.settings.doubt_grace {
                        self.ask_again_or_drop(token, submission);
                    }
                }
                Stage::Accepted { .. } => {
                    for (task, allocation) in submission.tasks.iter().filter(|(_, allocation)| allocation.is_live()) {
                        if listed.is_none_or(|tasks| !tasks.contains(task)) {
                            self.not_listed(token, *task, submission, allocation, asked_at);
                        }
                    }
                }
                Stage::Requested | Stage::Dropped { .. } => {}
            }
        }
    }

    /// Takes in what an answer shows, and gives the tasks that it shows by token. Only what
    /// is new makes an event.
    pub(super) fn jobs_seen(&mut self, jobs: &[JobSeen]) -> BTreeMap<Token, BTreeSet<u32>> {
        let at = self.at;
        let mut shown: BTreeMap<Token, BTreeSet<u32>> = BTreeMap::new();
        let mut adopted: BTreeMap<Token, JobId> = BTreeMap::new();
        let mut strays = BTreeSet::new();
        for seen in jobs {
            // Another coordinator's, or one that was over for long.
            let Some(submission) = self.state().submissions.get(&seen.token) else { continue };
            let own = submission.job().or_else(|| adopted.get(&seen.token)).cloned();
            match own {
                Some(own) if own != seen.job => {
                    let lives = matches!(seen.phase, JobPhase::Pending { .. } | JobPhase::Running { .. });
                    if lives && strays.insert((seen.token.clone(), seen.job.clone())) {
                        self.push(Event::StrayFound { at, token: seen.token.clone(), job: seen.job.clone() });
                    }
                    continue;
                }
                Some(_) => {}
                None => {
                    adopted.insert(seen.token.clone(), seen.job.clone());
                    let (token, job) = (seen.token.clone(), seen.job.clone());
                    self.push(Event::SubmissionAccepted { at, token, job });
                }
            }
            shown.entry(seen.token.clone()).or_default().extend(&seen.tasks);
            self.tasks_seen(submission, seen);
        }
        shown
    }

    fn tasks_seen(&mut self, submission: &Submission, seen: &JobSeen) {
        let at = self.at;
        let tasks = seen.tasks.iter().filter_map(|task| Some((*task, submission.tasks.get(task)?)));
        // What an earlier incarnation did is over.
        let tasks = tasks.filter(|(_, allocation)| seen.restarts >= allocation.restarts);
        let (token, job) = (seen.token.clone(), seen.job.clone());
        if let JobPhase::Ended(end) = seen.phase {
            for (task, allocation) in tasks.filter(|(_, allocation)| is_news(allocation, end)) {
                self.end_allocation(&token, task, submission, allocation, AllocationEnd::Job(end), seen.restarts);
            }
            return;
        }
        let changed: Vec<_> =
            tasks.filter(|(_, allocation)| differs(at, allocation, seen)).map(|(task, _)| task).collect();
        if !changed.is_empty() {
            let (restarts, phase) = (seen.restarts, seen.phase.clone());
            self.push(Event::AllocationsSeen { at, token: token.clone(), job, tasks: changed, restarts, phase });
        }
        // An order of ours that did not come through.
        let again = seen.tasks.iter().filter(|task| {
            let release = submission.tasks.get(task).and_then(|allocation| allocation.release.as_ref());
            let lives = matches!(seen.phase, JobPhase::Pending { .. } | JobPhase::Running { .. });
            lives && release.is_some_and(|release| self.waited(release.at) >= self.engine.settings.cancel_again)
        });
        let again: Vec<_> = again.copied().collect();
        if !again.is_empty() {
            let reason = "it was to be ended, and is still there".to_owned();
            self.push(Event::AllocationReleased { at, token, tasks: again, reason });
        }
    }

    /// An allocation that a whole answer of the queue lacks. It may have ended, the
    /// controller may have forgotten it while it runs on, and then its worker knows better.
    fn not_listed(
        &mut self,
        token: &Token,
        task: u32,
        submission: &Submission,
        allocation: &Allocation,
        asked_at: Timestamp,
    ) {
        if self.speaks(allocation) {
            return;
        }
        match allocation.missing_since {
            None => {
                let at = self.at;
                self.push(Event::AllocationMissing { at, token: token.clone(), task });
            }
            Some(since) if self.waited_before(since, asked_at) >= self.engine.settings.vanish_grace => {
                let restarts = allocation.restarts;
                self.end_allocation(token, task, submission, allocation, AllocationEnd::Vanished, restarts);
            }
            Some(_) => {}
        }
    }

    /// Whether the worker of an allocation has a session and is heard of.
    fn speaks(&self, allocation: &Allocation) -> bool {
        allocation.worker.is_some_and(|id| {
            let connected = self.state().workers.get(&id).is_some_and(|worker| worker.session.is_some());
            connected && !self.engine.is_silent(id)
        })
    }

    fn end_allocation(
        &mut self,
        token: &Token,
        task: u32,
        submission: &Submission,
        allocation: &Allocation,
        why: AllocationEnd,
        restarts: u32,
    ) {
        let at = self.at;
        let was_live = allocation.is_live();
        if !self.over.insert(AllocationId { token: token.clone(), task }) {
            return;
        }
        self.push(Event::AllocationEnded { at, token: token.clone(), task, why });
        if !was_live {
            return;
        }
        // What an earlier coordinator asked for may have found nobody to say hello to, or was
        // ended when that one stopped: no fault of the pattern.
        let current = |record: &PoolRecord| token.0.starts_with(&record.pool.token_prefix);
        let innocent = matches!(why, AllocationEnd::Job(JobEnd::Preempted | JobEnd::NodeFailed))
            || !self.state().pools.get(&submission.pool).is_some_and(current);
        if !allocation.said_hello && allocation.release.is_none() && !innocent {
            let last = allocation.worker.and_then(|worker| self.state().workers.get(&worker)?.unfit.as_deref());
            let reason = match last {
                Some(last) => format!("allocation {token}[{task}] ended before its worker was ready ({last}): {why}"),
                None => format!("allocation {token}[{task}] ended before its worker said hello: {why}"),
            };
            self.fail_pool(&submission.pool, &reason);
        }
        if let (AllocationEnd::Job(end), Some(worker)) = (why, allocation.worker)
            && end.is_said_by_the_node()
            && self.is_incarnation(worker, restarts)
        {
            self.depart(worker, Departure::Ended { why });
        }
    }

    /// Whether a known worker is the one that an allocation's incarnation started.
    fn is_incarnation(&self, worker: WorkerId, restarts: u32) -> bool {
        let from = self.state().workers.get(&worker).and_then(|worker| worker.profile.allocation.as_ref());
        from.is_some_and(|from| from.restarts == restarts)
    }

    fn ask_again_or_drop(&mut self, token: &Token, submission: &Submission) {
        let at = self.at;
        let record = self.state().pools.get(&submission.pool);
        let unwanted = match record {
            None => Some("its pool is gone".to_owned()),
            Some(record) if record.removed => Some("its pool was removed".to_owned()),
            Some(record) if record.paused.is_some() => Some("its pool is paused".to_owned()),
            Some(record) if !self.engine.is_wanted(record) => Some("nothing waits for it any more".to_owned()),
            Some(_) => None,
        };
        let token = token.clone();
        self.push(match unwanted {
            Some(reason) => Event::SubmissionDropped { at, token, reason },
            None => Event::SubmissionRetried { at, token },
        });
    }

    /// A failure of a pool: it waits, and after too many in a row it is paused.
    pub(super) fn fail_pool(&mut self, pool: &PoolId, reason: &str) {
        let Some(record) = self.state().pools.get(pool) else { return };
        let at = self.at;
        let times = record.failures.saturating_add(self.failed.get(pool).copied().unwrap_or(0)).saturating_add(1);
        let delay = self.engine.settings.submit_wait(times);
        self.push(Event::PoolFailed { at, pool: pool.clone(), reason: reason.to_owned(), delay });
        self.count_failure(pool, reason, 1);
    }

    fn count_failure(&mut self, pool: &PoolId, reason: &str, failures: u32) {
        let Some(record) = self.state().pools.get(pool) else { return };
        let counted = self.failed.entry(pool.clone()).or_default();
        let before = record.failures.saturating_add(*counted);
        *counted = counted.saturating_add(failures);
        let now = record.failures.saturating_add(*counted);
        let limit = record.pool.max_failures.max(1);
        if before < limit && now >= limit && record.paused.is_none() {
            let at = self.at;
            let reason = format!("{now} failures in a row; the last: {reason}");
            self.push(Event::PoolPaused { at, pool: pool.clone(), reason });
        }
    }
}

/// Whether an end says something new: of an allocation that lives, or had only vanished.
fn is_news(allocation: &Allocation, end: JobEnd) -> bool {
    match allocation.state {
        AllocationState::Ended { why: AllocationEnd::Job(_), .. } => false,
        AllocationState::Ended { why, .. } => why != AllocationEnd::Job(end),
        _ => true,
    }
}

/// Whether what is seen of a task differs from what is known. One that is over stays over,
/// unless it was only missed, or started anew.
fn differs(at: Timestamp, allocation: &Allocation, seen: &JobSeen) -> bool {
    if seen.restarts > allocation.restarts {
        return true;
    }
    match (&allocation.state, &seen.phase) {
        (AllocationState::Ended { why: AllocationEnd::Job(_), .. }, _) | (_, JobPhase::Ended(_)) => false,
        // Its worker is the better witness: it spoke since.
        (AllocationState::Running { .. }, JobPhase::Pending { .. }) if allocation.said_hello => false,
        _ if allocation.missing_since.is_some() => true,
        (AllocationState::Queued { reason: known, .. }, JobPhase::Pending { reason }) => known != reason,
        (AllocationState::Running { node: known, ends_at: until, .. }, JobPhase::Running { node, ends_at, .. }) => {
            known != node || until != ends_at
        }
        (AllocationState::Running { ends_at, .. }, JobPhase::Completing) => ends_at.is_none_or(|end| end > at),
        _ => true,
    }
}
