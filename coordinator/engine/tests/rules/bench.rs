//! A bench for the engine: a clock that is set by hand, and short words for commands.

use longhaul_core::agent::AgentSpec;
use longhaul_core::budget::RunBudgets;
use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, EpisodeId, RunId, TaskName, WorkerId};
use longhaul_core::outcome::{AttemptEnd, EndedBy, Fault, FaultClass, Settlement, Verdict};
use longhaul_core::plan::{EnvEntry, EpisodeEntry, Resources, RetryPolicy, RunPlan};
use longhaul_core::time::{Millis, Timestamp};
use longhaul_engine::state::{Capacity, EpisodeState, Readiness, RunTerms, WorkerProfile};
use longhaul_engine::{
    Command, Effect, Engine, Event, JobId, JobPhase, JobSeen, LeaseRef, Pool, PoolId, Rejection, Settings, Token,
    WorkerAllocation,
};

/// An hour in the life of a coordinator.
pub(crate) struct Bench {
    pub(crate) engine: Engine,
    pub(crate) now: Timestamp,
    sessions: u64,
}

/// A lease lasts for 30 s on the worker, and 10 s longer here.
pub(crate) const TTL: u64 = 30_000;
pub(crate) const SKEW: u64 = 10_000;

pub(crate) fn settings() -> Settings {
    Settings {
        lease_ttl: Millis(TTL),
        skew: Millis(SKEW),
        max_lost_workers: 3,
        max_backoff: Millis(60_000),
        ..Settings::default()
    }
}

pub(crate) fn pool_id() -> PoolId {
    PoolId("batch".to_owned())
}

/// A pool of workers with four processors each.
pub(crate) fn pool() -> Pool {
    Pool {
        id: pool_id(),
        token_prefix: "longhaul.me.".to_owned(),
        offer: capacity(4_000, 8_000, 0),
        walltime: Millis(3_600_000),
        array: true,
        max_workers: 10,
        max_queued: 10,
        max_node_time: None,
        idle: Millis(60_000),
        max_failures: 3,
    }
}

/// A job in the queue.
pub(crate) fn seen(token: &Token, job: &str, task: u32, restarts: u32, phase: JobPhase) -> JobSeen {
    JobSeen { token: token.clone(), job: JobId(job.to_owned()), tasks: vec![task], restarts, phase }
}

pub(crate) fn running(token: &Token, job: &str, task: u32, restarts: u32, until: Timestamp) -> JobSeen {
    let phase = JobPhase::Running { node: Some("n1".to_owned()), started_at: None, ends_at: Some(until) };
    seen(token, job, task, restarts, phase)
}

/// What a worker in an allocation says of it.
pub(crate) fn from(token: &Token, job: &str, task: u32, restarts: u32) -> WorkerAllocation {
    WorkerAllocation { token: token.clone(), job: JobId(job.to_owned()), task, restarts, ends_at: None }
}

pub(crate) fn run_id(number: u32) -> RunId {
    RunId::new(Timestamp(1), number)
}

pub(crate) fn worker_id(number: u32) -> WorkerId {
    WorkerId::new(Timestamp(2), number)
}

pub(crate) fn episode(run: u32, index: u32) -> EpisodeId {
    EpisodeId { run: run_id(run), index }
}

pub(crate) fn env(name: &str, cpu_millis: u32, memory_mib: u32) -> EnvEntry {
    let resources = Resources { cpu_millis, memory_mib, gpus: 0 };
    EnvEntry { name: name.to_owned(), plan: Digest::of(name.as_bytes()), resources }
}

/// A run of these envs with an episode for each index given.
pub(crate) fn plan(envs: Vec<EnvEntry>, episodes: &[u32]) -> RunPlan {
    let entry = |(index, env): (u32, &u32)| EpisodeEntry {
        task: TaskName { env: "env".to_owned(), task: format!("task_{index}") },
        agent: 0,
        sample: 0,
        plan: Digest::of(&index.to_be_bytes()),
        env: *env,
        max_cost: None,
    };
    RunPlan {
        name: "a run".to_owned(),
        benchmark: "somewhere".to_owned(),
        agents: vec![AgentSpec::Idle],
        envs,
        episodes: (0..).zip(episodes).map(entry).collect(),
        retry: RetryPolicy {
            max_attempts: 2,
            max_cut_offs: 3,
            backoff: Millis(8_000),
            resume: longhaul_core::resume::ResumePolicy::Restart,
            snapshots: longhaul_core::snapshot::SnapshotPolicy::OFF,
        },
        budgets: RunBudgets::default(),
        gateway: None,
        until: None,
    }
}

/// `count` episodes of one small env.
pub(crate) fn small(count: usize) -> RunPlan {
    plan(vec![env("calc", 1_000, 1_000)], &vec![0; count])
}

pub(crate) fn capacity(cpu_millis: u32, memory_mib: u64, max_slots: u32) -> Capacity {
    Capacity { cpu_millis, memory_mib, gpus: 0, max_slots }
}

pub(crate) fn verdict(passed: bool) -> AttemptEnd {
    let details = serde_json::json!({});
    let feedback = String::new();
    AttemptEnd::Verdict(Verdict { passed, score: 50.0, feedback, details, ended_by: EndedBy::Agent, parts: None })
}

pub(crate) fn fault(class: FaultClass) -> AttemptEnd {
    AttemptEnd::Fault(Fault { class, message: "it broke".to_owned(), log_tail: None })
}

impl Bench {
    pub(crate) fn new() -> Self {
        let mut bench = Self { engine: Engine::new(settings()), now: Timestamp(1_000_000), sessions: 0 };
        bench.step(Command::CoordinatorRestarted);
        bench
    }

    /// A step that is accepted, after which all invariants hold.
    pub(crate) fn step(&mut self, command: Command) -> Vec<Event> {
        let events = self.try_step(command).expect("the command is accepted");
        self.engine.check_invariants().expect("the invariants hold");
        events
    }

    pub(crate) fn try_step(&mut self, command: Command) -> Result<Vec<Event>, Rejection> {
        self.engine.step(self.now, command)
    }

    /// Lets time pass, with the engine awake all the while.
    pub(crate) fn pass(&mut self, millis: u64) -> Vec<Event> {
        let end = self.now.plus(Millis(millis));
        let mut events = Vec::new();
        while self.now < end {
            let next = self.engine.next_deadline().unwrap_or(end).max(self.now.plus(Millis(1)));
            self.now = next.min(end);
            events.extend(self.step(Command::Tick));
        }
        events
    }

    pub(crate) fn submit(&mut self, run: u32, plan: RunPlan) -> Vec<Event> {
        self.step(Command::SubmitRun {
            run: run_id(run),
            plan,
            digest: Digest::of(b"plan"),
            terms: RunTerms::default(),
        })
    }

    pub(crate) fn connect(&mut self, worker: u32, capacity: Capacity) -> Vec<Event> {
        self.connect_with(worker, capacity, Vec::new())
    }

    pub(crate) fn connect_with(&mut self, worker: u32, capacity: Capacity, live: Vec<LeaseRef>) -> Vec<Event> {
        self.sessions += 1;
        let profile =
            WorkerProfile { hostname: format!("node{worker}"), slurm_job_id: None, capacity, allocation: None };
        let (worker, session) = (worker_id(worker), self.sessions);
        self.step(Command::WorkerConnected { worker, session, profile, readiness: Readiness::Fit, live })
    }

    /// A worker in an allocation says hello.
    pub(crate) fn connect_in(&mut self, worker: u32, allocation: WorkerAllocation) -> Vec<Event> {
        self.connect_as(worker, allocation, pool().offer, Readiness::Fit)
    }

    /// The same, of a worker that has so much, and says that it is ready or is not.
    pub(crate) fn connect_as(
        &mut self,
        worker: u32,
        allocation: WorkerAllocation,
        capacity: Capacity,
        readiness: Readiness,
    ) -> Vec<Event> {
        self.sessions += 1;
        let hostname = format!("node{worker}");
        let profile = WorkerProfile { hostname, slurm_job_id: None, capacity, allocation: Some(allocation) };
        let live = self.held_by(worker);
        let (worker, session) = (worker_id(worker), self.sessions);
        self.step(Command::WorkerConnected { worker, session, profile, readiness, live })
    }

    /// Sets a pool, and looks at an empty queue once.
    pub(crate) fn set_pool(&mut self, pool: Pool) {
        self.step(Command::SetPool { pool });
        self.queue(Vec::new());
    }

    /// The queue is asked and answers at once.
    pub(crate) fn queue(&mut self, jobs: Vec<JobSeen>) -> Vec<Event> {
        let mark = self.engine.queue_mark();
        self.step(Command::QueueSeen { mark, asked_at: self.now, jobs })
    }

    /// What Slurm is asked for by these events.
    pub(crate) fn asked(&self, events: &[Event]) -> Vec<(Token, u32)> {
        let orders = self.orders(events).into_iter();
        let asked = orders.filter_map(|effect| match effect {
            Effect::SubmitAllocations { token, count, .. } => Some((token, count)),
            _ => None,
        });
        asked.collect()
    }

    /// Slurm takes the newest submission as `job`, and it runs, all of it, for an hour.
    pub(crate) fn runs_as(&mut self, job: &str) -> Token {
        let token = self.engine.state().submissions.keys().next_back().expect("something was asked for").clone();
        let job = JobId(job.to_owned());
        self.step(Command::SubmissionAccepted { token: token.clone(), job: job.clone() });
        let tasks: Vec<u32> = self.engine.state().submissions[&token].tasks.keys().copied().collect();
        let jobs = tasks.iter().map(|task| running(&token, &job.0, *task, 0, self.now.plus(Millis(3_600_000))));
        self.queue(jobs.collect());
        token
    }

    pub(crate) fn disconnect(&mut self, worker: u32) -> Vec<Event> {
        self.step(Command::WorkerDisconnected { worker: worker_id(worker), session: self.sessions })
    }

    /// A heartbeat that names everything that the worker holds.
    pub(crate) fn beat(&mut self, worker: u32) {
        let live = self.held_by(worker);
        self.engine.observe_heartbeat(self.now, worker_id(worker), &live);
    }

    /// Lets time pass while these workers beat.
    pub(crate) fn pass_with(&mut self, millis: u64, workers: &[u32]) -> Vec<Event> {
        let end = self.now.plus(Millis(millis));
        let mut events = Vec::new();
        while self.now < end {
            workers.iter().for_each(|worker| self.beat(*worker));
            events.extend(self.pass(end.since(self.now).0.min(5_000)));
        }
        events
    }

    pub(crate) fn end(&mut self, lease: LeaseRef, end: AttemptEnd) -> Vec<Event> {
        self.step(Command::AttemptEnded { lease, end, steps: 1, purses: Vec::new() })
    }

    pub(crate) fn held_by(&self, worker: u32) -> Vec<LeaseRef> {
        let leases = self.engine.state().leases();
        leases.filter(|(holder, _, _)| *holder == worker_id(worker)).map(|(_, lease, _)| lease).collect()
    }

    /// The live lease of an episode.
    pub(crate) fn lease(&self, run: u32, index: u32) -> LeaseRef {
        match self.engine.episode(episode(run, index)).expect("the episode is there").state {
            EpisodeState::Active { number, epoch, .. } => {
                LeaseRef { attempt: AttemptId { episode: episode(run, index), number }, epoch }
            }
            ref other => panic!("{index} is not active: {other:?}"),
        }
    }

    pub(crate) fn is_active(&self, run: u32, index: u32) -> bool {
        let state = &self.engine.episode(episode(run, index)).expect("the episode is there").state;
        matches!(state, EpisodeState::Active { .. })
    }

    pub(crate) fn settlement(&self, run: u32, index: u32) -> Option<&Settlement> {
        match &self.engine.episode(episode(run, index)).expect("the episode is there").state {
            EpisodeState::Settled { settlement, .. } => Some(settlement),
            EpisodeState::Queued { .. } | EpisodeState::Active { .. } => None,
        }
    }

    pub(crate) fn faulted(&self, run: u32, index: u32) -> &Fault {
        match self.settlement(run, index) {
            Some(Settlement::Faulted(fault)) => fault,
            other => panic!("{index} is not faulted: {other:?}"),
        }
    }

    /// Effects without the notices for people.
    pub(crate) fn orders(&self, events: &[Event]) -> Vec<Effect> {
        let effects = self.engine.effects(events).into_iter();
        effects.filter(|effect| !matches!(effect, Effect::Publish(_))).collect()
    }
}
