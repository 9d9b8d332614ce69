//! The engine as a value: its clock, its deadlines, and the order of a step.

use longhaul_core::ids::{AttemptId, WorkerId};
use longhaul_core::time::{Millis, Timestamp};

use crate::command::{Command, Rejection};
use crate::effect::Effect;
use crate::event::Event;
use crate::lease::LeaseRef;
use crate::ledger::Ledger;
use crate::settings::Settings;
use crate::state::{EpisodeState, Lease, State, Worker};
use crate::volatile::Volatile;

/// The coordinator's state machine.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(crate) settings: Settings,
    pub(crate) state: State,
    pub(crate) volatile: Volatile,
}

/// What a heartbeat is answered with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeartbeatReply {
    /// Whether the worker is known. If not, it was given up: its session is to be ended,
    /// so that it says hello again.
    pub known: bool,
    /// The leases that hold for another `lease_ttl` from when the heartbeat was sent.
    pub renewed: Vec<LeaseRef>,
    /// What it named and does not hold (any more): to be revoked as stale.
    pub stale: Vec<LeaseRef>,
    /// How long the worker's allocation still lasts, if that is known.
    pub remaining: Option<Millis>,
}

impl Engine {
    /// An engine that knows nothing yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self::with_state(settings, State::default())
    }

    pub(crate) fn with_state(settings: Settings, mut state: State) -> Self {
        // A state from before there were ledgers: nothing was spent in it.
        for (id, run) in &state.runs {
            state.ledgers.entry(*id).or_insert_with(|| Ledger::new(&run.plan));
        }
        let mut volatile = Volatile::default();
        volatile.renewed.extend(state.leases().map(|(_, lease, _)| (lease.attempt, Timestamp::default())));
        volatile.seen.extend(state.workers.keys().map(|worker| (*worker, Timestamp::default())));
        Self { settings, state, volatile }
    }

    /// The durable state.
    #[must_use]
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// The settings.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Tells the engine the time. [`Self::step`] does this itself.
    ///
    /// Small steps back are ignored. A step either way that is larger than the allowed
    /// skew means that the clock was set, or that the coordinator was away: no lease
    /// runs out for that, all get their full time again.
    pub fn advance(&mut self, now: Timestamp) {
        self.volatile.advance(now, self.settings.skew);
    }

    /// Decides a command and applies what was decided, and all that follows from it:
    /// leases that ran out, episodes that are due, workers that are free.
    ///
    /// The events are one batch: append it whole and sync it before anything is done
    /// about it.
    ///
    /// # Errors
    ///
    /// The command is refused; nothing changed but the engine's clock.
    pub fn step(&mut self, now: Timestamp, command: Command) -> Result<Vec<Event>, Rejection> {
        self.advance(now);
        let mut batch = self.decide(now, command)?;
        batch.iter().for_each(|event| self.apply(event));
        // Each tick ends leases or grants some, and what it ends waits for nothing: this ends.
        loop {
            let more = self.decide(now, Command::Tick)?;
            if more.is_empty() {
                return Ok(batch);
            }
            more.iter().for_each(|event| self.apply(event));
            batch.extend(more);
        }
    }

    /// Takes note of a heartbeat: renews the leases that it names and that are the
    /// worker's own. Nothing of this is stored.
    pub fn observe_heartbeat(&mut self, now: Timestamp, worker: WorkerId, live: &[LeaseRef]) -> HeartbeatReply {
        self.advance(now);
        let (renewed, stale) = live.iter().partition(|lease| self.state.holder(**lease) == Some(worker));
        let known = self.state.workers.contains_key(&worker);
        let remaining = self.remaining(worker, self.volatile.clock);
        let reply = HeartbeatReply { known, renewed, stale, remaining };
        if reply.known {
            self.volatile.seen.insert(worker, self.volatile.clock);
        }
        for lease in &reply.renewed {
            self.volatile.renewed.insert(lease.attempt, self.volatile.clock);
        }
        reply
    }

    /// Takes note that an attempt is past its start: its sandbox is up and its setup done.
    /// It makes room for another start on that node. Nothing of this is stored; whoever
    /// never says it holds a place until [`Settings::start_limit`].
    pub fn observe_started(&mut self, lease: LeaseRef) {
        if self.state.holder(lease).is_some() {
            self.volatile.started.insert(lease.attempt);
        }
    }

    /// Takes note of how many steps an attempt's trajectory has, once it lives: while it is on its
    /// way to where an earlier one was cut off, nothing is said. Of an attempt that is lost that is
    /// all that is known. It is stored with the loss, if one comes.
    pub fn observe_steps(&mut self, lease: LeaseRef, steps: u32) {
        if self.state.holder(lease).is_some() {
            self.volatile.steps.insert(lease.attempt, steps);
        }
    }

    /// What to read before the queue is asked, and to give with its answer: an answer that
    /// was asked for before a submission says nothing about it.
    #[must_use]
    pub const fn queue_mark(&self) -> u64 {
        self.state.queue_mark
    }

    /// When the next [`Command::Tick`] is due, if nothing else happens before.
    ///
    /// While any worker or pool is known this is never far away: an engine that is not told the
    /// time cannot tell a coordinator that was away from a worker that was lost.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let clock = self.volatile.clock;
        if self.state.is_closed() {
            return Some(clock.plus(Millis(self.settings.skew.0 / 2)));
        }
        let leases = self.volatile.renewed.keys().filter_map(|attempt| self.lease_end(*attempt));
        let workers = self.state.workers.iter().filter_map(|(id, worker)| self.worker_end(*id, worker));
        let waiting = self
            .state
            .runs
            .values()
            .filter(|run| run.open > 0)
            .flat_map(|run| &run.episodes)
            .filter_map(|episode| match episode.state {
                EpisodeState::Queued { since, delay } => Some(since.plus(delay)),
                EpisodeState::Active { .. } | EpisodeState::Settled { .. } => None,
            })
            .filter(|due| *due > clock);
        let watch =
            (!self.state.workers.is_empty() || !self.state.submissions.is_empty() || !self.state.pools.is_empty())
                .then(|| clock.plus(Millis(self.settings.skew.0 / 2)));
        leases.chain(workers).chain(waiting).chain(watch).min()
    }

    /// After replay: everything that is owed to anybody. Workers that are not connected
    /// yet get theirs with their hello. A step with [`Command::CoordinatorRestarted`] gives
    /// what is owed to Slurm as well.
    #[must_use]
    pub fn resume(&self) -> Vec<Effect> {
        let workers = self.state.workers.iter().flat_map(|(id, worker)| self.owed_to(*id, worker, &[]));
        workers.chain(self.owed_to_slurm()).collect()
    }

    /// When a live lease is over unless it is renewed.
    pub(crate) fn lease_end(&self, attempt: AttemptId) -> Option<Timestamp> {
        Some(self.volatile.renewed.get(&attempt)?.plus(self.settings.grace()))
    }

    /// When a worker is given up unless it is heard from. Never before its leases are
    /// over: it may act on them until then.
    pub(crate) fn worker_end(&self, id: WorkerId, worker: &Worker) -> Option<Timestamp> {
        let seen = self.volatile.seen.get(&id)?.plus(self.settings.grace());
        worker.leases.keys().filter_map(|attempt| self.lease_end(*attempt)).chain([seen]).max()
    }

    /// Whether an attempt is still on its way to its first observation, as far as is known.
    pub(crate) fn is_starting(&self, attempt: AttemptId, lease: &Lease) -> bool {
        let waited = self.volatile.clock.since(lease.since);
        !self.volatile.started.contains(&attempt) && waited < self.settings.start_limit
    }

    /// Whether a worker with an open session has missed so many heartbeats that it gets
    /// nothing new.
    pub(crate) fn is_silent(&self, id: WorkerId) -> bool {
        let limit = self.settings.lease_ttl.0 / 2;
        self.volatile.seen.get(&id).is_none_or(|seen| self.volatile.clock.since(*seen).0 > limit)
    }
}
