//! How a worker stands with its allocation: how long it lasts, whether the worker is the one
//! that counts, and what explains its loss. And how long an episode will want.

use std::collections::BTreeSet;

use longhaul_core::ids::{AttemptId, WorkerId};
use longhaul_core::outcome::{Fault, FaultClass};
use longhaul_core::time::{Millis, Timestamp};

use crate::allocation::{AllocationEnd, AllocationState, JobEnd};
use crate::engine::Engine;
use crate::state::{Episode, PastEnd, Run, Worker};

/// What is known of the times of a run's episodes.
pub(crate) struct Times<'a> {
    run: &'a Run,
    /// What scored attempts took, by the run's envs.
    known: Vec<Option<Millis>>,
}

impl Times<'_> {
    /// How long an episode will take, as far as that was seen: what others of its env took,
    /// but no less than what it was cut off after, unless it goes on from there, and no more than
    /// its limit.
    fn seen(&self, index: usize, episode: &Episode) -> Option<Millis> {
        let env = usize::try_from(self.run.plan.episodes.get(index)?.env).ok()?;
        let cut_off = episode.past.iter().filter(|past| past.end.was_preempted() && !past.gained);
        let cut_off = cut_off.map(|past| past.ended_at.since(past.granted_at)).max();
        let seen = self.known.get(env).copied().flatten().into_iter().chain(cut_off).max()?;
        Some(self.limit(index).map_or(seen, |limit| seen.min(limit)))
    }

    /// Twice what its attempts had that were cut off, but no more than its limit: so an
    /// episode of which nothing is known gets to the longest allocations soon.
    fn after_cut_offs(&self, index: usize, episode: &Episode) -> Millis {
        let had =
            episode.past.iter().filter(|past| !past.gained).filter_map(|past| past.cut_off).max().unwrap_or_default();
        let twice = Millis(had.0.saturating_mul(2));
        self.limit(index).map_or(twice, |limit| twice.min(limit))
    }

    fn limit(&self, index: usize) -> Option<Millis> {
        self.run.terms.limits.get(index).copied()
    }

    /// How long an episode will take, or may at most where nothing like it was seen.
    pub(crate) fn expected(&self, index: usize, episode: &Episode) -> Option<Millis> {
        self.seen(index, episode).or_else(|| self.limit(index))
    }

    /// How much time a worker has to have left for an episode: what it was seen to take. A
    /// limit alone asks for nothing, since most episodes end well before theirs; and no
    /// more is asked than a fresh allocation has, or it would wait for ever.
    pub(crate) fn wanted(&self, index: usize, episode: &Episode, longest: Option<Millis>) -> Millis {
        let seen = self.seen(index, episode).unwrap_or_default().max(self.after_cut_offs(index, episode));
        longest.map_or(seen, |longest| seen.min(Millis(longest.0 / 4 * 3)))
    }

    /// Whether any two episodes differ in what is known of them.
    pub(crate) fn differ(&self) -> bool {
        !self.run.terms.limits.is_empty() || self.known.iter().any(|known| *known != self.known[0])
    }
}

impl Engine {
    /// How long a worker's allocation still lasts; nothing if it is in none, or that is not
    /// known. What the queue says counts before what the worker was told at its start.
    pub(crate) fn remaining(&self, worker: WorkerId, now: Timestamp) -> Option<Millis> {
        let told = self.state.workers.get(&worker)?.profile.allocation.as_ref()?;
        let seen = self.allocation_of(worker).and_then(|(_, _, allocation)| allocation.ends_at());
        seen.or(told.ends_at).map(|end| end.since(now))
    }

    /// Whether a worker's allocation is over, being ended, or spoken for by another worker:
    /// then it keeps what it has for as long as its leases last, and gets nothing new.
    pub(crate) fn is_superseded(&self, worker: WorkerId) -> bool {
        let Some(from) = self.state.workers.get(&worker).and_then(|worker| worker.profile.allocation.as_ref()) else {
            return false;
        };
        let Some((_, submission, allocation)) = self.allocation_of(worker) else { return false };
        let over = matches!(allocation.state, AllocationState::Ended { .. });
        let stray = submission.job().is_some_and(|job| *job != from.job);
        let anew = from.restarts < allocation.restarts;
        over || stray || anew || allocation.release.is_some() || allocation.worker != Some(worker)
    }

    /// Whether a worker takes leases, as far as it itself and its allocation are concerned.
    pub(crate) fn takes_leases(&self, id: WorkerId) -> bool {
        let enough = self.remaining(id, self.volatile.clock).is_none_or(|left| left >= self.settings.min_remaining);
        self.state.workers.get(&id).is_some_and(|worker| worker.draining.is_none() && !self.is_unfit(worker))
            && enough
            && !self.is_superseded(id)
    }

    /// Whether a worker says that it can take no leases, or an attempt has just ended on a full
    /// disk of its node.
    pub(crate) fn is_unfit(&self, worker: &Worker) -> bool {
        let rests = |since: &Timestamp| self.volatile.waited(*since, self.volatile.clock) < self.settings.disk_rest;
        worker.unfit.is_some() || self.state.full_disks.get(&worker.profile.hostname).is_some_and(rests)
    }

    /// Whether a worker is on its way to take leases, and not held up by anything else.
    pub(crate) fn is_preparing(&self, id: WorkerId) -> bool {
        let preparing = self.state.workers.get(&id).is_some_and(|worker| worker.preparing && worker.draining.is_none());
        preparing && !self.is_superseded(id)
    }

    /// How much time a worker had left when an attempt began that ended so, if the end of that
    /// time cut the attempt off: its worker had to stop, and Slurm says that the time is over, or
    /// nearly so.
    pub(crate) fn cut_off(&self, id: WorkerId, attempt: AttemptId, end: PastEnd, at: Timestamp) -> Option<Millis> {
        let worker = self.state.workers.get(&id).filter(|_| end.was_preempted())?;
        let lease = worker.leases.get(&attempt)?;
        worker.profile.allocation.as_ref()?;
        let is_over = self.allocation_of(id).is_some_and(|(_, _, allocation)| {
            matches!(allocation.state, AllocationState::Ended { why: AllocationEnd::Job(JobEnd::TimedOut), .. })
        });
        let left = match self.remaining(id, at) {
            Some(left) if is_over || left < self.settings.min_remaining => left,
            None if is_over => Millis(0),
            _ => return None,
        };
        Some(Millis(at.since(lease.since).0.saturating_add(left.0)))
    }

    /// What explains the loss of a worker without any guilt of its episodes: what became of
    /// its allocation, as Slurm says.
    pub(crate) fn explained_loss(&self, worker: WorkerId) -> Option<(FaultClass, String)> {
        let from = self.state.workers.get(&worker)?.profile.allocation.as_ref()?;
        let (id, _, allocation) = self.allocation_of(worker)?;
        if from.restarts < allocation.restarts {
            return Some((FaultClass::Preempted, format!("Slurm started its allocation {id} anew")));
        }
        match allocation.state {
            AllocationState::Ended { why: AllocationEnd::Job(end), .. } if end.explains_a_loss() => {
                let class = if end == JobEnd::NodeFailed { FaultClass::WorkerLost } else { FaultClass::Preempted };
                Some((class, format!("its allocation {id} is over: {end}")))
            }
            _ => None,
        }
    }

    /// The fault of attempts whose worker is lost, with what explains that, if anything does.
    pub(crate) fn fault_of_loss(&self, worker: WorkerId, message: &str) -> Fault {
        match self.explained_loss(worker) {
            Some((class, why)) => Fault { class, message: format!("{message}: {why}"), log_tail: None },
            None => Fault { class: FaultClass::WorkerLost, message: message.to_owned(), log_tail: None },
        }
    }

    /// The endpoints that are down and that a live attempt needs, which will notice when they
    /// answer again. Where none does, one episode is started all the same, or nobody would ever
    /// know.
    pub(crate) fn watched_endpoints(&self) -> BTreeSet<&str> {
        if self.state.endpoints_down.is_empty() {
            return BTreeSet::new();
        }
        let needed = self.state.leases().flat_map(|(_, lease, _)| {
            let id = lease.attempt.episode;
            let run = self.state.runs.get(&id.run);
            run.and_then(|run| Some(run.endpoints(run.episode(id.index)?.1))).unwrap_or_default()
        });
        needed.map(String::as_str).filter(|name| self.state.endpoints_down.contains_key(*name)).collect()
    }

    /// What is known of the times of a run's episodes.
    pub(crate) fn times<'a>(&'a self, run: &'a Run) -> Times<'a> {
        let known = run.plan.envs.iter().map(|env| self.state.durations.get(&env.plan)?.mean());
        Times { run, known: known.collect() }
    }

    /// The longest that any worker could last: nothing if one lasts without an end.
    pub(crate) fn longest_offer(&self) -> Option<Millis> {
        let now = self.volatile.clock;
        let workers = self.state.workers.keys().map(|worker| self.remaining(*worker, now));
        let pools = self.state.pools.values().filter(|record| !record.removed);
        let pools = pools.map(|record| Some(record.walltime()));
        let mut longest = Millis(0);
        for offered in workers.chain(pools) {
            longest = longest.max(offered?);
        }
        Some(longest)
    }
}
