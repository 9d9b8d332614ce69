//! A simulated Slurm: it loses answers, does late what it was asked for, forgets jobs and
//! gives their ids out again, does not answer at all, preempts, starts anew, cuts nodes off.
//!
//! What it knows is one thing, and what runs on nodes another.

use std::collections::VecDeque;

use longhaul_core::ids::WorkerId;
use longhaul_core::time::{Millis, Timestamp};
use longhaul_engine::state::Capacity;
use longhaul_engine::{Command, Effect, JobEnd, JobId, JobPhase, JobSeen, Pool, PoolId, Token, WorkerAllocation};

use crate::world::{Outcome, World};

/// The walltime of the simulated pool, in milliseconds.
const WALLTIME: u64 = 900_000;

/// The most time of nodes that it may use, before the world heals.
const NODE_TIME: u64 = 6 * WALLTIME;

/// The pool of the simulated coordinator.
pub(crate) fn pool(healed: bool) -> Pool {
    Pool {
        id: PoolId("batch".to_owned()),
        token_prefix: "sim.".to_owned(),
        offer: Capacity { cpu_millis: 4_000, memory_mib: 8_000, gpus: 0, max_slots: 3 },
        walltime: Millis(WALLTIME),
        array: true,
        max_workers: 3,
        max_queued: 2,
        max_node_time: (!healed).then_some(Millis(NODE_TIME)),
        idle: Millis(40_000),
        max_failures: 1,
    }
}

/// What happens at Slurm.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SlurmAction {
    /// The oldest request is dealt with: how.
    Submit(u8),
    /// The queue is asked, and its answer arrives at once or later.
    Ask(bool),
    /// The answer that is on its way arrives.
    Answer,
    /// The accounting is asked.
    Account,
    /// A job that waits gets a node: which, and whether its worker comes up.
    Start(u8, bool),
    /// A job ends: which, and how.
    End(u8, u8),
    /// A job is put back into the queue: which, and whether its node was only cut off.
    Requeue(u8, bool),
    /// A node that was cut off is back.
    Heal(u8),
    /// The controller goes away, or comes back.
    Toggle,
    /// The controller is killed, forgets its last job, and gives the id out again: whether
    /// the copy that runs is killed as well.
    Forget(bool),
    /// A person resumes the pool.
    Resume,
}

#[derive(Debug)]
struct Request {
    token: Token,
    count: u32,
}

#[derive(Clone, Debug)]
struct Task {
    phase: JobPhase,
    restarts: u32,
    worker: Option<WorkerId>,
    /// When it is over, by the true time.
    until: u64,
}

#[derive(Clone, Debug)]
struct Job {
    id: u64,
    token: Token,
    tasks: Vec<Task>,
}

impl Task {
    const fn is_over(&self) -> bool {
        matches!(self.phase, JobPhase::Ended(_))
    }
}

/// The controller.
#[derive(Debug)]
pub(crate) struct Slurm {
    up: bool,
    next: u64,
    highest: u64,
    jobs: Vec<Job>,
    requests: VecDeque<Request>,
    /// Requests that will be dealt with although their client has given up.
    late: Vec<(u64, Request)>,
    answer: Option<(u64, Timestamp, Vec<JobSeen>)>,
    /// Nodes that are cut off, with a worker on them.
    cut: Vec<WorkerId>,
    /// How often each thing happened, so that nobody trusts a Slurm in which nothing does.
    pub(crate) submitted: u32,
    pub(crate) given_twice: u32,
}

impl Slurm {
    pub(crate) const fn new() -> Self {
        Self {
            up: true,
            next: 1,
            highest: 0,
            jobs: Vec::new(),
            requests: VecDeque::new(),
            late: Vec::new(),
            answer: None,
            cut: Vec::new(),
            submitted: 0,
            given_twice: 0,
        }
    }

    /// The client of a coordinator that died is gone; what it asked for may still be done.
    pub(crate) fn client_died(&mut self, time: u64) {
        self.answer = None;
        let requests = std::mem::take(&mut self.requests);
        self.late.extend(
            requests
                .into_iter()
                .enumerate()
                .filter(|(index, _)| index % 2 == 0)
                .map(|(_, request)| (time + 20_000, request)),
        );
    }

    pub(crate) fn is_cut(&self, worker: WorkerId) -> bool {
        self.cut.contains(&worker)
    }

    fn live(&self) -> impl Iterator<Item = (&Job, usize)> {
        self.jobs.iter().flat_map(|job| {
            let live = job.tasks.iter().enumerate().filter(|(_, task)| !task.is_over());
            live.map(move |(index, _)| (job, index))
        })
    }

    fn pick(&self, which: u8, matching: fn(&Task) -> bool) -> Option<(usize, usize)> {
        let all = self.jobs.iter().enumerate().flat_map(|(job, record)| {
            let tasks = record.tasks.iter().enumerate().filter(|(_, task)| matching(task));
            tasks.map(move |(task, _)| (job, task))
        });
        let all: Vec<_> = all.collect();
        all.get(usize::from(which).checked_rem(all.len())?).copied()
    }

    /// Takes a request in.
    fn accept(&mut self, request: &Request) -> Result<JobId, String> {
        if let Some((job, _)) = self.live().find(|(job, _)| job.token == request.token) {
            return Err(format!("no token is submitted while a live job has it: {} is job {}", job.token, job.id));
        }
        let task =
            Task { phase: JobPhase::Pending { reason: "Priority".to_owned() }, restarts: 0, worker: None, until: 0 };
        let tasks = (0..request.count).map(|_| task.clone()).collect();
        let id = self.next;
        self.next += 1;
        self.submitted += 1;
        self.given_twice += u32::from(id <= self.highest);
        self.highest = self.highest.max(id);
        self.jobs.push(Job { id, token: request.token.clone(), tasks });
        let most = usize::try_from(pool(false).max_workers).unwrap_or(usize::MAX);
        let live = self.live().count();
        if live > most {
            return Err(format!("no more allocations live than may: {live} of {most}"));
        }
        Ok(JobId(id.to_string()))
    }

    /// What the queue shows now. Ended jobs are shown for a while by some versions only.
    fn listing(&self, ended: bool) -> Vec<JobSeen> {
        let mut seen = Vec::new();
        for job in &self.jobs {
            let (token, id) = (job.token.clone(), JobId(job.id.to_string()));
            for (index, task) in (0..).zip(&job.tasks) {
                if ended || !task.is_over() {
                    let (token, job) = (token.clone(), id.clone());
                    let (restarts, phase) = (task.restarts, task.phase.clone());
                    seen.push(JobSeen { token, job, tasks: vec![index], restarts, phase });
                }
            }
        }
        seen
    }
}

impl World {
    pub(crate) fn act_at_slurm(&mut self, action: SlurmAction) -> Outcome {
        match action {
            SlurmAction::Submit(how) => self.deal_with_request(how)?,
            SlurmAction::Ask(at_once) => self.ask_queue(at_once)?,
            SlurmAction::Answer => self.answer_queue()?,
            SlurmAction::Account => {
                if self.slurm.up {
                    let ended = self.slurm.listing(true).into_iter();
                    let jobs = ended.filter(|seen| matches!(seen.phase, JobPhase::Ended(_))).collect();
                    self.command(Command::AccountingSeen { jobs }).map(drop)?;
                }
            }
            SlurmAction::Start(which, comes_up) => self.start_job(which, comes_up),
            SlurmAction::End(which, how) => self.end_job(which, how),
            SlurmAction::Requeue(which, cut) => self.requeue(which, cut),
            SlurmAction::Heal(which) => {
                let cut = self.slurm.cut.len();
                if let Some(index) = usize::from(which).checked_rem(cut) {
                    let worker = self.slurm.cut.remove(index);
                    // Its old copy is killed when the node is back, a moment later or at once.
                    if which % 2 == 0 {
                        self.kill(worker);
                    }
                }
            }
            SlurmAction::Toggle => {
                self.slurm.up = !self.slurm.up;
                // What had reached it is done or gone with it.
                self.slurm.late.clear();
            }
            SlurmAction::Forget(killed) => {
                if let Some(job) = self.slurm.jobs.pop() {
                    self.slurm.next = job.id;
                    self.slurm.answer = None;
                    for worker in job.tasks.iter().filter_map(|task| task.worker).filter(|_| killed) {
                        self.kill(worker);
                    }
                }
            }
            SlurmAction::Resume => self.resume_pool()?,
        }
        Ok(())
    }

    /// What the shell does about Slurm.
    pub(crate) fn carry_out_at_slurm(&mut self, effect: Effect) {
        match effect {
            Effect::SubmitAllocations { token, count, .. }
                if !self.slurm.requests.iter().any(|request| request.token == token) =>
            {
                self.slurm.requests.push_back(Request { token, count });
            }
            Effect::CancelAllocations { token, job, tasks, .. } if self.slurm.up => {
                let matching = |known: &Job| known.token == token && known.id.to_string() == job.0;
                let Some(index) = self.slurm.jobs.iter().position(matching) else { return };
                for task in 0..self.slurm.jobs[index].tasks.len() {
                    let meant = tasks.is_empty() || tasks.iter().any(|meant| usize::try_from(*meant) == Ok(task));
                    if meant && !self.slurm.jobs[index].tasks[task].is_over() {
                        self.finish(index, task, JobEnd::Cancelled, true);
                    }
                }
            }
            _ => {}
        }
    }

    /// Lets Slurm's own time pass: what was asked for is done late, and times run out.
    pub(crate) fn pass_at_slurm(&mut self) -> Outcome {
        let time = self.time;
        if !self.slurm.up {
            return Ok(());
        }
        let (due, late) = std::mem::take(&mut self.slurm.late).into_iter().partition(|(at, _)| *at <= time);
        self.slurm.late = late;
        for (_, request) in due {
            self.slurm.accept(&request)?;
        }
        let over = |task: &Task| matches!(task.phase, JobPhase::Running { .. }) && task.until <= time;
        for job in 0..self.slurm.jobs.len() {
            for task in 0..self.slurm.jobs[job].tasks.len() {
                if over(&self.slurm.jobs[job].tasks[task]) {
                    self.finish(job, task, JobEnd::TimedOut, true);
                }
            }
        }
        Ok(())
    }

    /// Nothing goes wrong at Slurm any more.
    pub(crate) fn heal_slurm(&mut self) -> Outcome {
        self.slurm.up = true;
        self.slurm.answer = None;
        for worker in std::mem::take(&mut self.slurm.cut) {
            self.kill(worker);
        }
        if self.has_pool {
            self.command(Command::SetPool { pool: pool(true) }).map(drop)?;
        }
        self.resume_pool()
    }

    /// A healthy Slurm does what it is there for.
    pub(crate) fn run_slurm(&mut self) -> Outcome {
        self.deal_with_request(0)?;
        self.ask_queue(true)?;
        while self.slurm.pick(0, |task| matches!(task.phase, JobPhase::Pending { .. })).is_some() {
            self.start_job(0, true);
        }
        self.resume_pool()
    }

    fn resume_pool(&mut self) -> Outcome {
        if self.has_pool && self.coordinator.is_some() {
            self.command(Command::ResumePool { pool: pool(false).id }).map(drop)?;
        }
        Ok(())
    }

    fn deal_with_request(&mut self, how: u8) -> Outcome {
        if self.coordinator.is_none() {
            return Ok(());
        }
        let Some(request) = self.slurm.requests.pop_front() else { return Ok(()) };
        let token = request.token.clone();
        let unknown = |token| Command::SubmissionUnknown { token, reason: "it timed out".to_owned() };
        let refused =
            |token, transient| Command::SubmissionRefused { token, reason: "it said no".to_owned(), transient };
        let answer = match how % 12 {
            _ if !self.slurm.up && how.is_multiple_of(2) => unknown(token),
            _ if !self.slurm.up => refused(token, true),
            0..=5 => Command::SubmissionAccepted { token, job: self.slurm.accept(&request)? },
            6 | 7 => {
                self.slurm.accept(&request)?;
                unknown(token)
            }
            8 => unknown(token),
            9 => refused(token, true),
            10 => refused(token, false),
            _ => {
                self.slurm.late.push((self.time + 20_000, request));
                unknown(token)
            }
        };
        self.command(answer).map(drop)
    }

    fn ask_queue(&mut self, at_once: bool) -> Outcome {
        let Some(coordinator) = &self.coordinator else { return Ok(()) };
        if !self.slurm.up {
            return self.command(Command::QueueUnreachable { reason: "no answer".to_owned() }).map(drop);
        }
        if self.slurm.answer.is_none() {
            let mark = coordinator.engine.queue_mark();
            self.slurm.answer = Some((mark, self.clock(), self.slurm.listing(self.shared_folder)));
        }
        if at_once { self.answer_queue() } else { Ok(()) }
    }

    fn answer_queue(&mut self) -> Outcome {
        let Some((mark, asked_at, jobs)) = self.slurm.answer.take().filter(|_| self.coordinator.is_some()) else {
            return Ok(());
        };
        self.command(Command::QueueSeen { mark, asked_at, jobs }).map(drop)
    }

    fn start_job(&mut self, which: u8, comes_up: bool) {
        let waits = |task: &Task| matches!(task.phase, JobPhase::Pending { .. });
        let Some((job, task)) = self.slurm.pick(which, waits).filter(|_| self.slurm.up) else { return };
        let now = self.clock();
        let until = self.time + WALLTIME;
        let ends_at = Some(now.plus(Millis(WALLTIME)));
        let record = &mut self.slurm.jobs[job];
        let from = WorkerAllocation {
            token: record.token.clone(),
            job: JobId(record.id.to_string()),
            task: u32::try_from(task).unwrap_or_default(),
            restarts: record.tasks[task].restarts,
            ends_at: comes_up.then_some(now.plus(Millis(WALLTIME))),
        };
        record.tasks[task].phase = JobPhase::Running { node: Some(format!("n{job}")), started_at: Some(now), ends_at };
        record.tasks[task].until = until;
        if comes_up {
            let worker = self.start_worker_in(from);
            self.slurm.jobs[job].tasks[task].worker = Some(worker);
        }
    }

    fn end_job(&mut self, which: u8, how: u8) {
        let live = |task: &Task| !task.is_over();
        let Some((job, task)) = self.slurm.pick(which, live).filter(|_| self.slurm.up) else { return };
        let (end, politely) = match how % 8 {
            0 => (JobEnd::Completed, false),
            1 => (JobEnd::Failed, false),
            2 => (JobEnd::OutOfMemory, false),
            3 => (JobEnd::Preempted, true),
            4 => (JobEnd::Preempted, false),
            5 => (JobEnd::Cancelled, true),
            6 => (JobEnd::NodeFailed, false),
            // The controller gives up a node that is only cut off.
            _ => {
                if let Some(worker) = self.slurm.jobs[job].tasks[task].worker {
                    self.cut_off(worker);
                }
                self.slurm.jobs[job].tasks[task].phase = JobPhase::Ended(JobEnd::NodeFailed);
                return;
            }
        };
        self.finish(job, task, end, politely);
    }

    /// A task ends, and its worker with it: with a last word, or without.
    fn finish(&mut self, job: usize, task: usize, end: JobEnd, politely: bool) {
        let task = &mut self.slurm.jobs[job].tasks[task];
        task.phase = JobPhase::Ended(end);
        let Some(worker) = task.worker.take().filter(|worker| !self.slurm.cut.contains(worker)) else { return };
        if politely {
            self.leave(worker);
        } else {
            self.kill(worker);
        }
    }

    fn requeue(&mut self, which: u8, cut: bool) {
        let runs = |task: &Task| matches!(task.phase, JobPhase::Running { .. });
        let Some((job, task)) = self.slurm.pick(which, runs).filter(|_| self.slurm.up) else { return };
        let task = &mut self.slurm.jobs[job].tasks[task];
        task.phase = JobPhase::Pending { reason: "BeginTime".to_owned() };
        task.restarts += 1;
        match task.worker.take() {
            Some(worker) if cut => self.cut_off(worker),
            Some(worker) => self.kill(worker),
            None => {}
        }
    }

    /// The worker runs on and nobody hears of it.
    fn cut_off(&mut self, worker: WorkerId) {
        self.break_session(worker);
        self.slurm.cut.push(worker);
    }

    fn kill(&mut self, worker: WorkerId) {
        self.break_session(worker);
        self.workers.remove(&worker);
    }
}
