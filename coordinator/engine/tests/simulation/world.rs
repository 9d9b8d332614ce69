//! A simulated cluster around the real engine: workers with clocks, spools and layers of
//! their own, sessions that break, messages that are lost, repeated and reordered, a
//! coordinator that crashes and replays its journal, clocks that jump.
//!
//! Everything that happens comes from a list of [`Action`]s, so that a failure is a value
//! that can be looked at: its message holds the actions and the journal.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use longhaul_core::digest::Digest;
use longhaul_core::ids::{EpisodeId, RunId, WorkerId};
use longhaul_core::time::{Millis, Timestamp};
use longhaul_engine::state::Revived;
use longhaul_engine::{Command, Settings};

use crate::action::Action;
use crate::audit::Audit;
use crate::coordinator::Coordinator;
use crate::money::{Provider, Spool};
use crate::plans;
use crate::slurm::Slurm;
use crate::worker::{Down, SimWorker, Up};

/// Why a simulation failed: an invariant by name, and by what it is violated.
pub(crate) type Outcome = Result<(), String>;

/// How often a worker sends heartbeats, in milliseconds.
pub(crate) const HEARTBEAT: u64 = 5_000;

/// The settings of the simulated coordinator.
pub(crate) fn settings() -> Settings {
    Settings {
        lease_ttl: Millis(30_000),
        skew: Millis(10_000),
        max_lost_workers: 3,
        max_backoff: Millis(60_000),
        // Short, so that all of it happens in a history.
        hello_limit: Millis(60_000),
        vanish_grace: Millis(30_000),
        doubt_grace: Millis(30_000),
        max_submit_backoff: Millis(60_000),
        remember: Millis(40_000),
        max_starting: 2,
        ..Settings::default()
    }
}

/// Everything there is.
pub(crate) struct World {
    /// The true time, in milliseconds; it only goes on.
    pub(crate) time: u64,
    /// What the coordinator's clock shows beyond it: jumps, and jitter below the skew.
    pub(crate) offset: i64,
    pub(crate) jitter: i64,
    pub(crate) coordinator: Option<Coordinator>,
    /// What is on the coordinator's disk.
    pub(crate) journal: Vec<String>,
    pub(crate) snapshot: Option<(usize, String)>,
    pub(crate) workers: BTreeMap<WorkerId, SimWorker>,
    /// Sessions that the coordinator's side has open, by worker.
    pub(crate) sessions: BTreeMap<WorkerId, u64>,
    /// Ends of sessions that the coordinator has not noticed yet.
    pub(crate) goodbyes: VecDeque<(WorkerId, u64)>,
    pub(crate) next_session: u64,
    /// Messages that were sent up once, to be repeated at the worst time.
    pub(crate) archive: Vec<(WorkerId, Up)>,
    /// The layer folder, where all workers share one.
    pub(crate) folder: Option<BTreeSet<Digest>>,
    pub(crate) runs: Vec<RunId>,
    pub(crate) submitted: u32,
    pub(crate) audit: Audit,
    /// What the store has of runs that were forgotten.
    pub(crate) stored: BTreeMap<RunId, Revived>,
    /// From now on nothing goes wrong any more.
    pub(crate) healed: bool,
    pub(crate) slurm: Slurm,
    /// Who bills model calls.
    pub(crate) provider: Provider,
    /// What workers left behind that died or left.
    pub(crate) spools: Vec<Spool>,
    /// How many calls each attempt makes before it ends, in a world that is about money.
    pub(crate) thirst: u32,
    /// Whether workers come from allocations, too.
    pub(crate) has_pool: bool,
    pub(crate) shared_folder: bool,
}

impl World {
    pub(crate) fn new(shared_folder: bool, has_pool: bool) -> Self {
        Self {
            time: 1_000_000_000,
            offset: 0,
            jitter: 0,
            coordinator: Some(Coordinator::new(settings())),
            journal: Vec::new(),
            snapshot: None,
            workers: BTreeMap::new(),
            sessions: BTreeMap::new(),
            goodbyes: VecDeque::new(),
            next_session: 1,
            archive: Vec::new(),
            folder: shared_folder.then(BTreeSet::new),
            runs: Vec::new(),
            submitted: 0,
            audit: Audit::default(),
            stored: BTreeMap::new(),
            healed: false,
            slurm: Slurm::new(),
            has_pool,
            shared_folder,
            provider: Provider::default(),
            spools: Vec::new(),
            thirst: 0,
        }
    }

    /// What the coordinator's clock shows.
    pub(crate) fn clock(&self) -> Timestamp {
        Timestamp(self.time.saturating_add_signed(self.offset + self.jitter))
    }

    /// Carries out one action, and checks all that must be true at every instant.
    pub(crate) fn act(&mut self, action: &Action) -> Outcome {
        match action {
            Action::Advance(millis) => self.pass(*millis, true)?,
            Action::Stall(millis) => self.pass(*millis, false)?,
            Action::Deliver(count) => {
                for _ in 0..*count {
                    self.deliver_up()?;
                    self.deliver_down()?;
                }
            }
            Action::Work(who, job, choice) => {
                if let Some(id) = self.pick_worker(*who) {
                    self.go_on(id, *job, *choice)?;
                }
            }
            Action::Build(who, choice) => {
                if let Some(id) = self.pick_worker(*who) {
                    self.build(id, *choice);
                }
            }
            // Where there is a pool, all workers come from it.
            Action::StartWorker(_) if self.has_pool => {}
            Action::StartWorker(size) => self.start_worker(*size),
            Action::CrashWorker(who) => {
                if let Some(id) = self.pick_worker(*who) {
                    self.break_session(id);
                    if let Some(worker) = self.workers.remove(&id)
                        && who % 2 == 0
                    {
                        self.spools.push(worker.wallets);
                    }
                }
            }
            Action::LeaveWorker(who) => {
                if let Some(id) = self.pick_worker(*who) {
                    self.leave(id);
                }
            }
            Action::SuspendWorker(who) => {
                if let Some(worker) = self.pick_worker(*who).and_then(|id| self.workers.get_mut(&id)) {
                    worker.suspended = !worker.suspended;
                }
            }
            Action::BreakSession(who) => {
                if let Some(id) = self.pick_worker(*who) {
                    self.break_session(id);
                }
            }
            Action::LoseUp(who) => self.with_queue(*who, |worker| drop(worker.up.pop_front())),
            Action::LoseDown(who) => self.with_queue(*who, SimWorker::lose_down),
            Action::Reorder(who, from, to) => self.with_queue(*who, |worker| worker.reorder(*from, *to)),
            Action::Repeat(which) => {
                let length = self.archive.len();
                if length > 0 {
                    let (worker, message) = self.archive[usize::from(*which) % length].clone();
                    self.receive(worker, message)?;
                }
            }
            Action::CrashCoordinator(half_done) => self.crash(*half_done)?,
            Action::StartCoordinator => self.recover()?,
            Action::Snapshot => self.take_snapshot()?,
            Action::JumpClock(seconds) => self.offset += i64::from(*seconds) * 1000,
            Action::Jitter(millis) => self.jitter = i64::from(*millis),
            Action::Submit(shape) => self.submit(*shape)?,
            Action::Cancel(which) => self.cancel(*which)?,
            Action::Resume(which, kinds) => self.resume(*which, *kinds)?,
            Action::Drain(who) => {
                if let Some(worker) = self.pick_worker(*who) {
                    self.command(Command::DrainWorker { worker, reason: "maintenance".to_owned() }).map(drop)?;
                }
            }
            Action::Unfit(who, full) => {
                if let Some(worker) = self.pick_worker(*who).filter(|worker| self.sessions.contains_key(worker)) {
                    let reason = full.then(|| "its disk is full".to_owned());
                    self.command(Command::WorkerUnfit { worker, reason }).map(drop)?;
                }
            }
            Action::Call(who, job, size, share) => {
                if let Some(id) = self.pick_worker(*who) {
                    self.call(id, *job, *size, *share)?;
                }
            }
            Action::Land(who, which, how) => {
                if let Some(id) = self.pick_worker(*who) {
                    self.land(id, *which, *how)?;
                }
            }
            Action::FindSpool(which) => self.find_spool(*which)?,
            Action::Raise(which, amount) => self.raise(*which, *amount)?,
            Action::Endpoint(which, down) => {
                let (endpoint, down) = (plans::endpoint(*which), down.then(|| "it answers 503".to_owned()));
                self.command(Command::EndpointSeen { endpoint, down }).map(drop)?;
            }
            Action::Slurm(action) => self.act_at_slurm(*action)?,
            Action::Forget(which) => {
                if let Some(run) = self.pick_run(*which) {
                    self.forget(run)?;
                }
            }
        }
        self.only_one_acts()
    }

    /// Lets time pass, in small steps: workers beat and dial, and the coordinator, if it
    /// is not stalled, wakes at its deadlines.
    pub(crate) fn pass(&mut self, millis: u64, coordinator_wakes: bool) -> Outcome {
        let end = self.time + millis;
        while self.time < end {
            self.time = (self.time + 1_000).min(end);
            let ids: Vec<_> = self.workers.keys().copied().collect();
            for id in ids {
                self.dial(id);
                self.beat(id);
            }
            self.pass_at_slurm()?;
            if coordinator_wakes {
                self.wake()?;
            }
            self.only_one_acts()?;
        }
        Ok(())
    }

    /// Ends the chaos and runs on until every episode is settled.
    pub(crate) fn heal(&mut self) -> Outcome {
        self.healed = true;
        self.jitter = 0;
        match &mut self.coordinator {
            Some(coordinator) => coordinator.dies = None,
            None => self.recover()?,
        }
        for worker in self.workers.values_mut() {
            worker.suspended = false;
        }
        // What was lost within a session is said again after a hello.
        let ids: Vec<_> = self.workers.keys().copied().collect();
        ids.into_iter().for_each(|id| self.break_session(id));
        self.heal_slurm()?;
        for worker in self.state().workers.keys().copied().collect::<Vec<_>>() {
            self.command(Command::WorkerUnfit { worker, reason: None }).map(drop)?;
        }
        // A worker that is large enough for every env that can be placed at all. A pool has
        // to do without.
        if !self.has_pool {
            self.start_worker(u8::MAX);
        }
        for round in 0..1_000_u32 {
            self.pass(2_000, true)?;
            let ids: Vec<_> = self.workers.keys().copied().collect();
            self.run_slurm()?;
            for _ in 0..4 {
                while self.deliver_up()? || self.deliver_down()? {}
                for id in &ids {
                    for job in 0..8 {
                        let size = u8::try_from((round * 7 + u32::from(job) * 3) % 20).unwrap_or_default();
                        // About half of what the calls could cost; and now and then more.
                        let share = (round * 37 + u32::from(job) * 11) % 256;
                        let share = if share < 250 { share % 200 } else { share };
                        self.call(*id, job, size, u8::try_from(share).unwrap_or_default())?;
                        self.land(*id, job, 2)?;
                        if !self.is_thirsty(*id, job) {
                            self.work(*id, job, 0);
                        }
                    }
                    self.build(*id, 0);
                }
            }
            if self.engine().state().runs.values().all(|run| run.settled_at.is_some()) {
                return self.money_is_settled();
            }
        }
        let engine = self.engine();
        let open = engine.state().runs.iter().flat_map(|(id, run)| {
            (0..).zip(&run.episodes).map(move |(index, episode)| (EpisodeId { run: *id, index }, episode))
        });
        let open: Vec<_> = open
            .filter(|(_, episode)| !matches!(episode.state, longhaul_engine::state::EpisodeState::Settled { .. }))
            .map(|(id, episode)| format!("{id}: {episode:?}, waits: {:?}", engine.why_waiting(id)))
            .collect();
        let money = self.who_waits();
        Err(format!("every episode settles after healing: still open: {open:#?}, for money wait {money:#?}"))
    }

    /// No two workers act on one episode at the same time, by their own lease clocks.
    fn only_one_acts(&self) -> Outcome {
        let mut acting: BTreeMap<EpisodeId, WorkerId> = BTreeMap::new();
        for (id, worker) in &self.workers {
            for lease in worker.acting(self.time) {
                if let Some(other) = acting.insert(lease.attempt.episode, *id) {
                    return Err(format!("only one worker acts: {id} and {other} both act on {lease}"));
                }
            }
        }
        Ok(())
    }

    pub(crate) fn pick_worker(&self, which: u8) -> Option<WorkerId> {
        let count = self.workers.len();
        self.workers.keys().nth(usize::from(which).checked_rem(count)?).copied()
    }

    pub(crate) fn pick_run(&self, which: u8) -> Option<RunId> {
        self.runs.get(usize::from(which).checked_rem(self.runs.len())?).copied()
    }

    fn with_queue(&mut self, which: u8, change: impl FnOnce(&mut SimWorker)) {
        if let Some(worker) = self.pick_worker(which).and_then(|id| self.workers.get_mut(&id)) {
            change(worker);
        }
    }

    /// Delivers one message to the coordinator from each worker. Whether any was there.
    pub(crate) fn deliver_up(&mut self) -> Result<bool, String> {
        let mut any = false;
        if self.coordinator.is_none() {
            return Ok(false);
        }
        if let Some((worker, session)) = self.goodbyes.pop_front() {
            any = true;
            if self.sessions.get(&worker) == Some(&session) {
                self.sessions.remove(&worker);
            }
            self.command(Command::WorkerDisconnected { worker, session }).map(drop)?;
        }
        let ids: Vec<_> = self.workers.keys().copied().collect();
        for id in ids {
            let Some(message) = self.workers.get_mut(&id).and_then(|worker| worker.up.pop_front()) else { continue };
            any = true;
            if !self.healed {
                self.archive.push((id, message.clone()));
            }
            self.receive(id, message)?;
        }
        Ok(any)
    }

    /// Delivers one message to each worker. Whether any was there.
    pub(crate) fn deliver_down(&mut self) -> Result<bool, String> {
        let mut any = false;
        let time = self.time;
        for worker in self.workers.values_mut().filter(|worker| !worker.suspended) {
            if let Some(message) = worker.down.pop_front() {
                any = true;
                if matches!(message, Down::Escrow { .. } | Down::Recall { .. }) {
                    worker.hear_of_money(time, message, &mut self.provider)?;
                } else {
                    worker.hear(time, message, self.folder.as_mut());
                }
            }
        }
        Ok(any)
    }

    pub(crate) fn send_down(&mut self, worker: WorkerId, message: Down) {
        let open = self.sessions.get(&worker).copied();
        if let Some(worker) = self.workers.get_mut(&worker)
            && open.is_some()
            && worker.session == open
        {
            worker.down.push_back(message);
        }
    }
}
