//! A batch of events on its way, with what has to be known of it before it is applied.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_core::call::PurseKind;
use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, EpisodeId, RunId, WorkerId};
use longhaul_core::outcome::{AttemptEnd, Fault, Settlement};
use longhaul_core::purse::PurseState;
use longhaul_core::time::{Millis, Timestamp};

use super::retry::{self, Ending, Next, Over};
use crate::allocation::{AllocationId, PoolId};
use crate::command::Rejection;
use crate::engine::Engine;
use crate::event::Event;
use crate::lease::LeaseRef;
use crate::state::{EpisodeState, Layer, LayerState, PastEnd, State};

/// A batch of events on its way.
pub(super) struct Draft<'a> {
    pub(super) engine: &'a Engine,
    pub(super) at: Timestamp,
    events: Vec<Event>,
    /// How many episodes of each run the batch settles.
    settled: BTreeMap<RunId, u32>,
    /// The attempts that the batch ends.
    ended: BTreeSet<AttemptId>,
    /// The workers that lost attempts in the batch, or everything.
    touched: BTreeSet<WorkerId>,
    /// The workers that the batch gives up.
    departed: BTreeSet<WorkerId>,
    /// The allocations that the batch ends.
    pub(super) over: BTreeSet<AllocationId>,
    /// How many failures of each pool the batch counts.
    pub(super) failed: BTreeMap<PoolId, u32>,
}

impl<'a> Draft<'a> {
    pub(super) fn new(engine: &'a Engine, now: Timestamp) -> Self {
        Self {
            engine,
            at: engine.volatile.reading(now, engine.settings.skew),
            events: Vec::new(),
            settled: BTreeMap::new(),
            ended: BTreeSet::new(),
            touched: BTreeSet::new(),
            departed: BTreeSet::new(),
            over: BTreeSet::new(),
            failed: BTreeMap::new(),
        }
    }

    pub(super) fn push(&mut self, event: Event) {
        self.events.push(event);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    pub(super) fn state(&self) -> &'a State {
        &self.engine.state
    }

    /// How much time since then was seen to pass.
    pub(super) fn waited(&self, since: Timestamp) -> Millis {
        self.engine.volatile.waited(since, self.at)
    }

    /// How much of that time had passed when something was asked whose answer is here now.
    pub(super) fn waited_before(&self, since: Timestamp, asked_at: Timestamp) -> Millis {
        if since <= self.at && asked_at < since {
            return Millis(0);
        }
        self.engine.volatile.waited(since, asked_at).min(self.waited(since))
    }

    /// The live attempts that a worker has left after this batch.
    pub(super) fn left_to(&self, worker: WorkerId) -> impl Iterator<Item = AttemptId> {
        let record = self.state().workers.get(&worker).filter(|_| !self.departed.contains(&worker));
        let live = record.into_iter().flat_map(|record| record.leases.keys().copied());
        live.filter(|attempt| !self.ended.contains(attempt))
    }

    /// The end of an attempt as its worker reports it.
    pub(super) fn end_of_attempt(
        &mut self,
        lease: LeaseRef,
        end: AttemptEnd,
        steps: u32,
        purses: Vec<(PurseKind, PurseState)>,
    ) -> Result<(), Rejection> {
        let episode_id = lease.attempt.episode;
        if self.state().forgotten.contains_key(&episode_id.run) {
            return Err(Rejection::StaleEpoch { attempt: lease.attempt, epoch: lease.epoch, current: None });
        }
        let episode = self.state().episode(episode_id).ok_or(Rejection::UnknownAttempt { attempt: lease.attempt })?;
        if let Some(worker) = self.state().holder(lease) {
            let at = self.at;
            let end = retry::recordable(end);
            let cut_off = self.engine.cut_off(worker, lease.attempt, PastEnd::of(&end), at);
            self.push(Event::AttemptEnded { at, lease, worker, end: end.clone(), steps, cut_off, purses });
            let (ending, (resumes, stopped)) = (Ending::Reported(end), self.held(worker, lease.attempt));
            self.after(lease.attempt, &Over { worker, ending: &ending, steps, resumes, cut_off, stopped });
            return Ok(());
        }
        let past = lease.attempt.number.checked_sub(1).and_then(|index| episode.past.get(usize::try_from(index).ok()?));
        if past.is_some_and(|past| past.epoch == lease.epoch && past.end.was_reported()) {
            // Said before: the worker did not hear that it was accepted.
            return Ok(());
        }
        let current = match episode.state {
            EpisodeState::Active { number, epoch, .. } if number == lease.attempt.number => Some(epoch),
            EpisodeState::Queued { .. } | EpisodeState::Active { .. } | EpisodeState::Settled { .. } => None,
        };
        if past.is_none() && current.is_none() {
            return Err(Rejection::UnknownAttempt { attempt: lease.attempt });
        }
        Err(Rejection::StaleEpoch { attempt: lease.attempt, epoch: lease.epoch, current })
    }

    /// The end of an attempt that no worker reports.
    pub(super) fn lose(&mut self, worker: WorkerId, lease: LeaseRef, fault: Fault) {
        if self.ended.contains(&lease.attempt) {
            return;
        }
        let at = self.at;
        let cut_off = self.engine.cut_off(worker, lease.attempt, PastEnd::Lost(fault.class), at);
        let steps = self.engine.volatile.steps.get(&lease.attempt).copied().unwrap_or_default();
        self.push(Event::AttemptLost { at, lease, worker, fault: fault.clone(), cut_off, steps });
        let (ending, (resumes, stopped)) = (Ending::Lost(fault), self.held(worker, lease.attempt));
        self.after(lease.attempt, &Over { worker, ending: &ending, steps, resumes, cut_off, stopped });
    }

    /// Whether a live attempt is to go on where the one before it was cut off, and whether a person
    /// asked for its end.
    fn held(&self, worker: WorkerId, attempt: AttemptId) -> (bool, bool) {
        let lease = self.state().workers.get(&worker).and_then(|worker| worker.leases.get(&attempt));
        lease.map_or((false, false), |lease| (lease.resumes, lease.stopped))
    }

    /// What becomes of an episode after its attempt.
    fn after(&mut self, attempt: AttemptId, over: &Over<'_>) {
        self.ended.insert(attempt);
        self.touched.insert(over.worker);
        let id = attempt.episode;
        match retry::next(self.engine, id, over) {
            Next::Settle(settlement) => self.settle(id, settlement),
            Next::Requeue(delay) => {
                let at = self.at;
                self.push(Event::EpisodeRequeued { at, episode: id, delay });
            }
        }
    }

    /// Counts a worker out: what it builds is passed on when the batch is finished.
    pub(super) fn forsake(&mut self, worker: WorkerId) {
        self.touched.insert(worker);
        self.departed.insert(worker);
    }

    pub(super) fn settle(&mut self, episode: EpisodeId, settlement: Settlement) {
        let at = self.at;
        self.push(Event::EpisodeSettled { at, episode, settlement });
        *self.settled.entry(episode.run).or_default() += 1;
    }

    /// The batch, with what follows from all of it together.
    pub(super) fn finish(mut self) -> Vec<Event> {
        let at = self.at;
        self.pass_on_claims();
        for (run, settled) in std::mem::take(&mut self.settled) {
            if self.state().runs.get(&run).is_some_and(|record| record.open == settled) {
                self.push(Event::RunSettled { at, run });
            }
        }
        self.events
    }

    /// Layers whose builder is gone, or has no attempt any more that would want them, are
    /// given to the next who waits: it was told to build and did not report, or its report
    /// was lost.
    fn pass_on_claims(&mut self) {
        let state = self.state();
        let orphaned = |(_, layer): &(&Digest, &Layer)| match &layer.state {
            LayerState::Building { worker, .. } => {
                self.touched.contains(worker) && self.is_done_with(*worker, &layer.env)
            }
            LayerState::Ready { .. } | LayerState::Failed { .. } => false,
        };
        let keys: Vec<_> = state.layers.iter().filter(orphaned).map(|(key, _)| *key).collect();
        keys.into_iter().for_each(|key| self.pass_on(key));
    }

    /// Whether this batch leaves a worker without an attempt on an env, or without any.
    fn is_done_with(&self, worker: WorkerId, env: &str) -> bool {
        let on_env = |attempt: &AttemptId| self.state().env_of(attempt.episode).is_some_and(|entry| entry.name == env);
        let record = self.state().workers.get(&worker).into_iter();
        let had = record
            .flat_map(|record| record.leases.keys())
            .any(|attempt| self.ended.contains(attempt) && on_env(attempt));
        let mut left = self.left_to(worker).peekable();
        left.peek().is_none() || (had && !left.any(|attempt| on_env(&attempt)))
    }
}
