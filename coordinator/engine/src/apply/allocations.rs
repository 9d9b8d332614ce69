//! What events about pools, submissions and allocations do to the state.

use longhaul_core::ids::WorkerId;
use longhaul_core::time::{Millis, Timestamp};

use crate::allocation::{
    Allocation, AllocationEnd, AllocationId, AllocationState, JobEnd, JobId, JobPhase, PartitionOffer, Paused, Pool,
    PoolId, PoolRecord, Queue, Release, Stage, Submission, Token, Wait, WorkerAllocation,
};
use crate::engine::Engine;
use crate::event::Event;
use crate::state::{EpisodeState, PastAttempt, WorkerProfile};

impl Engine {
    pub(super) fn apply_to_pools(&mut self, event: &Event) {
        let state = &mut self.state;
        match event {
            Event::PoolSet { pool, .. } => {
                let known = state.pools.entry(pool.id.clone()).or_insert_with(|| PoolRecord {
                    pool: pool.clone(),
                    partition: PartitionOffer::default(),
                    removed: false,
                    failures: 0,
                    refusals: 0,
                    wait: None,
                    paused: None,
                    used: state.node_time.remove(&pool.id).unwrap_or_default(),
                    reported: None,
                });
                let same = Pool { token_prefix: known.pool.token_prefix.clone(), ..pool.clone() } == known.pool;
                if !same {
                    // What made it fail may be what was changed.
                    (known.failures, known.refusals, known.wait, known.paused) = (0, 0, None, None);
                }
                known.pool = pool.clone();
                known.removed = false;
                // Set anew at each start: what workers report may hang on what was changed.
                known.reported = None;
            }
            Event::PoolRemoved { pool, .. } => {
                if let Some(record) = state.pools.get_mut(pool) {
                    record.removed = true;
                }
                self.forget_removed(pool);
            }
            Event::PartitionSeen { pool, offer, .. } => {
                if let Some(record) = state.pools.get_mut(pool) {
                    record.partition = *offer;
                }
            }
            Event::PoolFailed { at, pool, reason, delay } => {
                if let Some(record) = state.pools.get_mut(pool) {
                    record.failures = record.failures.saturating_add(1);
                    record.wait = Some(Wait { since: *at, delay: *delay, reason: reason.clone() });
                }
            }
            Event::PoolPaused { at, pool, reason } => {
                if let Some(record) = state.pools.get_mut(pool) {
                    record.paused = Some(Paused { at: *at, reason: reason.clone() });
                }
            }
            Event::PoolResumed { pool, .. } => {
                if let Some(record) = state.pools.get_mut(pool) {
                    record.paused = None;
                    record.wait = None;
                    record.failures = 0;
                    record.refusals = 0;
                }
            }
            Event::QueueAnswered { at } => state.queue = Queue::Reachable { since: *at },
            Event::QueueUnreachable { at, reason } => {
                state.queue = Queue::Unreachable { since: *at, reason: reason.clone() };
            }
            _ => self.apply_to_submissions(event),
        }
    }

    fn apply_to_submissions(&mut self, event: &Event) {
        match event {
            Event::AllocationsRequested { at, pool, token, count, walltime } => {
                let mark = self.next_mark();
                let submission = Submission {
                    pool: pool.clone(),
                    count: *count,
                    walltime: *walltime,
                    requested_at: *at,
                    tries: 1,
                    stage: Stage::Requested,
                    mark,
                    tasks: (0..*count).map(|task| (task, Allocation::new())).collect(),
                };
                self.state.submitted = self.state.submitted.saturating_add(1);
                self.state.submissions.insert(token.clone(), submission);
            }
            Event::SubmissionAccepted { token, job, .. } => {
                self.accept(token, job.clone());
                let pool = self.state.submissions.get(token).map(|submission| submission.pool.clone());
                if let Some(record) = pool.and_then(|pool| self.state.pools.get_mut(&pool)) {
                    record.refusals = 0;
                }
            }
            Event::SubmissionRefused { at, token, reason, transient, delay } => {
                let Some(submission) = self.state.submissions.remove(token) else { return };
                if let Some(record) = self.state.pools.get_mut(&submission.pool) {
                    if *transient {
                        record.refusals = record.refusals.saturating_add(1);
                    } else {
                        record.failures = record.failures.saturating_add(1);
                    }
                    record.wait = Some(Wait { since: *at, delay: *delay, reason: reason.clone() });
                }
                self.forget_removed(&submission.pool);
            }
            Event::SubmissionDoubted { at, token, reason } => {
                self.stage(token, Stage::Doubtful { since: *at, reason: reason.clone() });
            }
            Event::SubmissionRetried { token, .. } => {
                self.stage(token, Stage::Requested);
                if let Some(submission) = self.state.submissions.get_mut(token) {
                    submission.tries = submission.tries.saturating_add(1);
                }
            }
            Event::SubmissionDropped { at, token, reason } => {
                self.stage(token, Stage::Dropped { reason: reason.clone() });
                if let Some(submission) = self.state.submissions.get_mut(token) {
                    for task in submission.tasks.values_mut() {
                        task.state = AllocationState::Ended { at: *at, why: AllocationEnd::NeverSubmitted };
                    }
                }
            }
            Event::SubmissionForgotten { token, .. } => {
                if let Some(submission) = self.state.submissions.remove(token) {
                    self.forget_removed(&submission.pool);
                }
            }
            Event::AllocationsSeen { at, token, tasks, restarts, phase, .. } => {
                for task in tasks {
                    self.sighted(*at, token, *task, *restarts, phase);
                }
            }
            Event::AllocationMissing { at, token, task } => {
                if let Some(allocation) = self.task_mut(token, *task) {
                    allocation.missing_since = Some(*at);
                }
            }
            Event::AllocationEnded { at, token, task, why } => self.allocation_ended(*at, token, *task, *why),
            Event::AllocationReleased { at, token, tasks, reason } => {
                for task in tasks {
                    if let Some(allocation) = self.task_mut(token, *task) {
                        allocation.release = Some(Release { at: *at, reason: reason.clone() });
                    }
                }
            }
            _ => {}
        }
    }

    /// A coordinator that starts does not know what came of its last request.
    pub(super) fn doubt_everything(&mut self, at: Timestamp) {
        self.state.queue = Queue::Unknown;
        let mark = self.next_mark();
        for submission in self.state.submissions.values_mut() {
            if submission.is_open() {
                let reason = "the coordinator was started anew while it was being asked for".to_owned();
                submission.stage = Stage::Doubtful { since: at, reason };
                submission.mark = mark;
            }
            for task in submission.tasks.values_mut() {
                for since in [&mut task.missing_since, &mut task.unmanned_since].into_iter().flatten() {
                    *since = at;
                }
            }
        }
    }

    /// A worker that says hello from an allocation shows that it runs, whatever the queue says.
    pub(super) fn manned(&mut self, at: Timestamp, worker: WorkerId, profile: &WorkerProfile, from: &WorkerAllocation) {
        let Some(submission) = self.state.submissions.get(&from.token) else { return };
        if submission.job().is_some_and(|job| *job != from.job) || !submission.tasks.contains_key(&from.task) {
            return;
        }
        let pool = submission.pool.clone();
        if submission.job().is_none() {
            self.accept(&from.token, from.job.clone());
        }
        let Some(submission) = self.state.submissions.get_mut(&from.token) else { return };
        let Some(task) = submission.tasks.get_mut(&from.task) else { return };
        let over = matches!(task.state, AllocationState::Ended { why: AllocationEnd::Job(_), .. });
        if from.restarts < task.restarts || (over && from.restarts == task.restarts) {
            return;
        }
        let renewed = from.restarts > task.restarts;
        let before = task.worker;
        if renewed {
            task.requeue(at, from.restarts);
        }
        task.worker = Some(worker);
        task.unmanned_since = None;
        task.missing_since = None;
        match &mut task.state {
            AllocationState::Running { ends_at, .. } => *ends_at = ends_at.or(from.ends_at),
            state => {
                let node = Some(profile.hostname.clone());
                *state = AllocationState::Running { since: at, node, ends_at: from.ends_at };
            }
        }
        if let Some(record) = self.state.pools.get_mut(&pool) {
            let reported = record.reported.map_or(profile.capacity, |known| known.or(profile.capacity));
            record.reported = Some(reported);
        }
        if let Some(before) = before.filter(|before| renewed && *before != worker) {
            self.explain(before, "Slurm started its allocation anew");
        }
    }

    /// A worker in an allocation takes leases: its pool is a pattern that works.
    pub(super) fn shown_to_be_of_use(&mut self, worker: WorkerId) {
        let from = self.state.workers.get(&worker).and_then(|worker| worker.profile.allocation.clone());
        let Some(from) = from else { return };
        let Some(submission) = self.state.submissions.get_mut(&from.token) else { return };
        let pool = submission.pool.clone();
        let Some(task) = submission.tasks.get_mut(&from.task).filter(|task| task.worker == Some(worker)) else {
            return;
        };
        task.said_hello = true;
        if let Some(record) = self.state.pools.get_mut(&pool) {
            record.failures = 0;
            record.wait = None;
        }
    }

    /// A worker is gone, or its session is: its allocation may be too.
    pub(super) fn unmanned(&mut self, at: Timestamp, worker: WorkerId, gone: bool) {
        let from = self.state.workers.get(&worker).and_then(|worker| worker.profile.allocation.clone());
        let Some(from) = from else { return };
        if let Some(task) = self.task_mut(&from.token, from.task)
            && task.worker == Some(worker)
        {
            if let Some(since) = task.missing_since.as_mut().filter(|_| !gone) {
                *since = at;
            }
            if gone && matches!(task.state, AllocationState::Running { .. }) {
                task.unmanned_since = Some(at);
            }
        }
    }

    /// Why a worker that is lost was lost, if its allocation shows it: for its past attempts.
    pub(super) fn explanation_of(&self, worker: WorkerId) -> Option<String> {
        Some(self.explained_loss(worker)?.1)
    }

    fn sighted(&mut self, at: Timestamp, token: &Token, task: u32, restarts: u32, phase: &JobPhase) {
        let Some(allocation) = self.task_mut(token, task) else { return };
        let before = allocation.worker;
        let renewed = restarts > allocation.restarts;
        if renewed {
            allocation.requeue(at, restarts);
        }
        allocation.missing_since = None;
        let ran_since = match allocation.state {
            AllocationState::Running { since, .. } => Some(since),
            _ => None,
        };
        match phase {
            JobPhase::Pending { reason } => {
                let since = match allocation.state {
                    AllocationState::Queued { since, .. } => since,
                    _ => at,
                };
                allocation.state = AllocationState::Queued { since, reason: reason.clone() };
                allocation.unmanned_since = None;
            }
            JobPhase::Running { node, started_at, ends_at } => {
                let since = ran_since.or(*started_at).unwrap_or(at).min(at);
                allocation.state = AllocationState::Running { since, node: node.clone(), ends_at: *ends_at };
                if ran_since.is_none() {
                    allocation.unmanned_since = Some(at);
                }
            }
            JobPhase::Completing => {
                let node = match &mut allocation.state {
                    AllocationState::Running { node, .. } => node.take(),
                    _ => None,
                };
                // Its time is over now: no lease goes there any more.
                let since = ran_since.unwrap_or(at);
                allocation.state = AllocationState::Running { since, node, ends_at: Some(at) };
                if ran_since.is_none() {
                    allocation.unmanned_since = Some(at);
                }
            }
            JobPhase::Ended(_) => {}
        }
        if renewed && let Some(before) = before {
            self.explain(before, "Slurm started its allocation anew");
        }
    }

    fn allocation_ended(&mut self, at: Timestamp, token: &Token, task: u32, why: AllocationEnd) {
        let Some(allocation) = self.task_mut(token, task) else { return };
        if !allocation.is_live() {
            // What had vanished turns out to have ended otherwise: only the reason is news.
            allocation.state = AllocationState::Ended { at, why };
        } else {
            allocation.account(at);
            let used = std::mem::take(&mut allocation.used);
            allocation.state = AllocationState::Ended { at, why };
            let pool = self.state.submissions.get(token).map(|submission| submission.pool.clone());
            if let Some(record) = pool.and_then(|pool| self.state.pools.get_mut(&pool)) {
                record.used = Millis(record.used.0.saturating_add(used.0));
            }
        }
        let Some(allocation) = self.task_mut(token, task) else { return };
        allocation.unmanned_since = None;
        allocation.missing_since = None;
        if let Some(worker) = allocation.worker
            && let AllocationEnd::Job(end) = why
            && end.explains_a_loss()
        {
            self.explain(worker, &end.to_string());
            if end == JobEnd::TimedOut {
                self.note_cut_off(worker);
            }
        }
    }

    /// Notes for attempts that ended with a worker that the end of its time cut them off.
    fn note_cut_off(&mut self, worker: WorkerId) {
        for past in self.past_with(worker).filter(|past| past.cut_off.is_none()) {
            past.cut_off = Some(past.ended_at.since(past.granted_at));
        }
    }

    /// Notes for attempts that ended with a worker what became of it.
    fn explain(&mut self, worker: WorkerId, reason: &str) {
        for past in self.past_with(worker).filter(|past| past.took_worker()) {
            past.explained = Some(reason.to_owned());
        }
    }

    /// The attempts of open episodes that ended with the loss of a worker.
    fn past_with(&mut self, worker: WorkerId) -> impl Iterator<Item = &mut PastAttempt> {
        let open = self.state.runs.values_mut().filter(|run| run.open > 0).flat_map(|run| &mut run.episodes);
        let open = open.filter(|episode| !matches!(episode.state, EpisodeState::Settled { .. }));
        open.flat_map(|episode| &mut episode.past).filter(move |past| past.worker == worker && past.end.took_worker())
    }

    /// Slurm has a submission, also one that was given up as never made.
    fn accept(&mut self, token: &Token, job: JobId) {
        self.stage(token, Stage::Accepted { job });
        let Some(submission) = self.state.submissions.get_mut(token) else { return };
        for task in submission.tasks.values_mut() {
            let unseen = match task.state {
                AllocationState::Requested => true,
                AllocationState::Ended { why, .. } => why == AllocationEnd::NeverSubmitted,
                _ => false,
            };
            if unseen {
                task.state = AllocationState::Submitted;
            }
        }
    }

    fn stage(&mut self, token: &Token, stage: Stage) {
        let mark = self.next_mark();
        if let Some(submission) = self.state.submissions.get_mut(token) {
            submission.stage = stage;
            submission.mark = mark;
        }
    }

    fn next_mark(&mut self) -> u64 {
        self.state.queue_mark = self.state.queue_mark.saturating_add(1);
        self.state.queue_mark
    }

    fn task_mut(&mut self, token: &Token, task: u32) -> Option<&mut Allocation> {
        self.state.submissions.get_mut(token)?.tasks.get_mut(&task)
    }

    /// A removed pool is known for as long as something of it is.
    fn forget_removed(&mut self, pool: &PoolId) {
        let of_pool = |submission: &Submission| submission.pool == *pool;
        if self.state.pools.get(pool).is_some_and(|record| record.removed)
            && !self.state.submissions.values().any(of_pool)
            && let Some(record) = self.state.pools.remove(pool)
            && record.used.0 > 0
        {
            self.state.node_time.insert(pool.clone(), record.used);
        }
    }

    /// The allocation that a worker speaks from, if it is known.
    pub(crate) fn allocation_of(&self, worker: WorkerId) -> Option<(AllocationId, &Submission, &Allocation)> {
        let id = self.state.workers.get(&worker)?.profile.allocation.as_ref()?.id();
        let (submission, allocation) = self.state.allocation(&id)?;
        Some((id, submission, allocation))
    }
}

impl Allocation {
    /// Another incarnation of it begins: in the queue, until something else is seen.
    fn requeue(&mut self, at: Timestamp, restarts: u32) {
        self.account(at);
        self.restarts = restarts;
        self.state = AllocationState::Submitted;
        self.unmanned_since = None;
        // That of the incarnation before is none of this one's.
        self.worker = None;
    }

    /// Adds what it ran to what it used.
    fn account(&mut self, at: Timestamp) {
        if let AllocationState::Running { since, .. } = self.state {
            self.used = Millis(self.used.0.saturating_add(at.since(since).0));
        }
    }
}
