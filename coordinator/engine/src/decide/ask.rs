//! How many allocations to ask for: what waits, less what runs and is on its way, within
//! the limits. One computation, for the decision and for people.

use std::collections::BTreeMap;

use longhaul_core::digest::Digest;
use longhaul_core::ids::WorkerId;
use longhaul_core::plan::Resources;
use longhaul_core::time::{Millis, Timestamp};

use super::Samples;
use super::draft::Draft;
use super::placement::{Demand, Room};
use crate::allocation::{Allocation, AllocationState, PoolId, PoolRecord, Queue, Stage, Token};
use crate::engine::Engine;
use crate::event::Event;
use crate::plan::{Hold, PoolPlan};
use crate::state::{Capacity, EpisodeState};

/// Episodes that wait and are alike: of one env, and wanting as much time.
#[derive(Clone, Copy, Debug)]
struct Group {
    resources: Resources,
    wanted: Millis,
    count: u32,
}

/// A worker that is there or on its way, with what it has left.
#[derive(Clone, Copy, Debug)]
struct Berth {
    room: Room,
    remaining: Option<Millis>,
}

impl Berth {
    /// Takes in as many of a group as fit.
    fn fill(&mut self, demand: Demand, group: &mut Group) {
        if self.remaining.is_some_and(|remaining| remaining < group.wanted) {
            return;
        }
        while group.count > 0
            && let Some(reserved) = self.room.fit(demand)
        {
            self.room.take(reserved);
            group.count -= 1;
        }
    }
}

impl Engine {
    /// What every pool would ask for now, and what holds it back.
    pub(crate) fn pool_plans(&self, at: Timestamp) -> Vec<PoolPlan> {
        let mut groups = self.waiting_groups(at);
        let mut berths = self.berths();
        let capacities: Vec<Capacity> = berths
            .iter()
            .map(|berth| berth.room.capacity)
            .chain(self.state.pools.values().filter(|record| !record.removed).map(PoolRecord::offer))
            .collect();
        let demand = |group: &Group| Demand::new(group.resources, capacities.iter().copied());
        for group in groups.values_mut() {
            let demand = demand(group);
            berths.iter_mut().for_each(|berth| berth.fill(demand, group));
        }
        self.state
            .pools
            .iter()
            .map(|(id, record)| {
                let mut fresh = Vec::new();
                let mut left = groups.clone();
                for group in left.values_mut() {
                    fill_fresh(record, demand(group), group, &mut fresh);
                }
                let episodes: u32 = groups.values().zip(left.values()).map(|(all, left)| all.count - left.count).sum();
                let wanted = u32::try_from(fresh.len()).unwrap_or(u32::MAX);
                let plan = self.bounded(at, id, record, episodes, wanted);
                // What this pool cannot take in is left to the next one.
                fresh.truncate(usize::try_from(plan.count).unwrap_or(usize::MAX));
                let mut again: Vec<Berth> = fresh.iter().map(|_| fresh_berth(record)).collect();
                for group in groups.values_mut() {
                    let demand = demand(group);
                    again.iter_mut().for_each(|berth| berth.fill(demand, group));
                }
                plan
            })
            .collect()
    }

    /// Whether an episode waits, now or after a fault, that a worker of a pool could take.
    pub(crate) fn is_wanted(&self, pool: &PoolRecord) -> bool {
        let offer = pool.offer();
        let capacities: Vec<_> = self.capacities().chain([offer]).collect();
        let fits = |resources: Resources| Demand::new(resources, capacities.iter().copied()).on(offer).is_some();
        self.state.runs.values().filter(|run| run.open > 0 && run.cancelled.is_none()).any(|run| {
            let fit: Vec<bool> = run.plan.envs.iter().map(|env| fits(env.resources)).collect();
            let fits = |env: u32| usize::try_from(env).ok().and_then(|env| fit.get(env)) == Some(&true);
            let mut all = run.episodes.iter().zip(&run.plan.episodes);
            all.any(|(episode, entry)| fits(entry.env) && self.will_wait(&episode.state))
        })
    }

    /// Whether an episode waits, or will if nobody speaks from its worker again.
    fn will_wait(&self, state: &EpisodeState) -> bool {
        match state {
            EpisodeState::Queued { .. } => true,
            EpisodeState::Active { worker, .. } => {
                let connected = self.state.workers.get(worker).is_some_and(|worker| worker.session.is_some());
                !connected || self.is_superseded(*worker)
            }
            EpisodeState::Settled { .. } => false,
        }
    }

    fn capacities(&self) -> impl Iterator<Item = Capacity> {
        let workers = self.state.workers.iter().filter(|(id, _)| self.takes_leases(**id));
        let pools = self.state.pools.values().filter(|record| !record.removed);
        workers.map(|(_, worker)| worker.profile.capacity).chain(pools.map(PoolRecord::offer))
    }

    /// The episodes that are due, in groups.
    fn waiting_groups(&self, at: Timestamp) -> BTreeMap<(Digest, Millis), Group> {
        let longest = self.longest_offer();
        let watched = self.watched_endpoints();
        let mut groups: BTreeMap<(Digest, Millis), Group> = BTreeMap::new();
        for run in self.state.runs.values().filter(|run| run.open > 0 && run.cancelled.is_none()) {
            let times = self.times(run);
            let mut samples = Samples::of(run);
            for (index, (episode, entry)) in run.episodes.iter().zip(&run.plan.episodes).enumerate() {
                let held = run.endpoints(entry).iter().any(|endpoint| watched.contains(endpoint.as_str()));
                if held || !episode.is_due(at) {
                    continue;
                }
                if samples.as_mut().is_some_and(|samples| !samples.admit(entry)) {
                    continue;
                }
                let Some(env) = run.env(entry) else { continue };
                let wanted = times.wanted(index, episode, longest);
                let empty = Group { resources: env.resources, wanted, count: 0 };
                groups.entry((env.plan, wanted)).or_insert(empty).count += 1;
            }
        }
        groups
    }

    /// The room of all workers that are there, with or without a session, and of those on
    /// their way. A worker that is only silent is not replaced: it is given up first.
    fn berths(&self) -> Vec<Berth> {
        let now = self.volatile.clock;
        let workers = self.state.workers.iter();
        let workers = workers.filter(|(id, _)| self.takes_leases(**id) || self.is_preparing(**id));
        let workers = workers.map(|(id, worker)| Berth { room: Room::of(worker), remaining: self.remaining(*id, now) });
        let coming = self.state.submissions.values().flat_map(|submission| {
            let record = self.state.pools.get(&submission.pool);
            let coming = submission.tasks.values().filter(|task| {
                // One whose worker was lost is no room on its way: the node may be down, or cut off, long
                // before Slurm notices.
                let starting = matches!(task.state, AllocationState::Running { .. }) && task.worker.is_none();
                task.release.is_none() && (task.is_waiting() || starting)
            });
            coming.filter_map(move |_| {
                let record = record?;
                Some(Berth { remaining: Some(submission.walltime), ..fresh_berth(record) })
            })
        });
        workers.chain(coming).collect()
    }

    /// Whether the worker of an allocation is known.
    pub(crate) fn is_manned(&self, allocation: &Allocation) -> bool {
        allocation.worker.is_some_and(|worker| self.state.workers.contains_key(&worker))
    }

    /// Bounds what a pool wants by what it may have.
    fn bounded(&self, at: Timestamp, id: &PoolId, record: &PoolRecord, episodes: u32, wanted: u32) -> PoolPlan {
        let pool = &record.pool;
        let count = |matching: fn(&Allocation) -> bool| {
            let all = self.state.allocations_of(id).filter(|(_, _, allocation)| matching(allocation)).count();
            u32::try_from(all).unwrap_or(u32::MAX)
        };
        let live = count(|allocation| allocation.is_live());
        let queued = count(|allocation| allocation.is_waiting());
        let committed = self.committed(id, record);
        let mut holds = Vec::new();
        let mut ask = wanted;
        self.hold_all(at, id, record, &mut holds);
        if !holds.is_empty() {
            ask = 0;
        }
        let limit = |bound: u32, hold: Hold, ask: &mut u32, holds: &mut Vec<Hold>| {
            if wanted > bound {
                holds.push(hold);
            }
            *ask = (*ask).min(bound);
        };
        let max = pool.max_workers;
        limit(max.saturating_sub(live), Hold::MaxWorkers { limit: max, live }, &mut ask, &mut holds);
        let max = pool.max_queued;
        limit(max.saturating_sub(queued), Hold::MaxQueued { limit: max, queued }, &mut ask, &mut holds);
        if let Some(max) = record.partition.max_workers {
            limit(max.saturating_sub(live), Hold::Partition { workers: max, live }, &mut ask, &mut holds);
        }
        if let Some(max) = pool.max_node_time {
            let left = max.0.saturating_sub(committed.0).checked_div(record.walltime().0).unwrap_or(0);
            let bound = u32::try_from(left).unwrap_or(u32::MAX);
            limit(bound, Hold::NodeTime { limit: max, committed }, &mut ask, &mut holds);
        }
        // One submission at a time: these only make it smaller, the rest follows.
        if let Some(reported) = record.falls_short() {
            holds.push(Hold::FallsShort { promised: pool.offer, reported });
        }
        let largest = if pool.array { record.partition.max_array.unwrap_or(u32::MAX).max(1) } else { 1 };
        PoolPlan {
            pool: id.clone(),
            episodes,
            wanted,
            count: ask.min(largest),
            walltime: record.walltime(),
            live,
            queued,
            committed,
            holds,
        }
    }

    /// What keeps a pool from asking for anything at all.
    fn hold_all(&self, at: Timestamp, id: &PoolId, record: &PoolRecord, holds: &mut Vec<Hold>) {
        if record.removed {
            holds.push(Hold::Removed);
        }
        if let Some(paused) = &record.paused {
            holds.push(Hold::Paused { at: paused.at, reason: paused.reason.clone() });
        }
        if let Some(wait) = &record.wait {
            let waited = self.volatile.waited(wait.since, at);
            if waited < wait.delay {
                let left = Millis(wait.delay.0 - waited.0);
                holds.push(Hold::Backoff { until: at.plus(left), reason: wait.reason.clone() });
            }
        }
        match &self.state.queue {
            Queue::Unknown => holds.push(Hold::QueueUnknown),
            Queue::Unreachable { since, reason } => {
                holds.push(Hold::QueueUnreachable { since: *since, reason: reason.clone() });
            }
            Queue::Reachable { .. } => {}
        }
        let open = self.state.submissions.iter().filter(|(_, submission)| submission.pool == *id);
        for (token, submission) in open {
            match &submission.stage {
                Stage::Requested => holds.push(Hold::Submitting { token: token.clone() }),
                Stage::Doubtful { reason, .. } => {
                    holds.push(Hold::Doubtful { token: token.clone(), reason: reason.clone() });
                }
                Stage::Accepted { .. } | Stage::Dropped { .. } => {}
            }
        }
        let least = self.settings.min_remaining;
        if record.walltime() <= least {
            holds.push(Hold::TooShort { walltime: record.walltime(), least });
        }
    }

    /// The time of nodes that a pool has used, and may still use with what it has.
    pub(crate) fn committed(&self, id: &PoolId, record: &PoolRecord) -> Millis {
        let live = self.state.allocations_of(id).map(|(_, submission, allocation)| {
            if allocation.is_live() { allocation.committed(submission.walltime).0 } else { 0 }
        });
        Millis(live.fold(record.used.0, u64::saturating_add))
    }
}

impl PoolRecord {
    /// For how long allocations are asked: no longer than the partition grants.
    pub(crate) fn walltime(&self) -> Millis {
        self.partition.max_walltime.map_or(self.pool.walltime, |most| most.min(self.pool.walltime))
    }
}

fn fresh_berth(record: &PoolRecord) -> Berth {
    Berth { room: Room::empty(record.offer()), remaining: Some(record.walltime()) }
}

/// Fills new workers of a pool with what is left of a group.
fn fill_fresh(record: &PoolRecord, demand: Demand, group: &mut Group, fresh: &mut Vec<Berth>) {
    // No more than could ever be asked for, so that a long queue costs no long computation.
    let most = usize::try_from(record.pool.max_workers).unwrap_or(usize::MAX);
    fresh.iter_mut().for_each(|berth| berth.fill(demand, group));
    while group.count > 0 && fresh.len() <= most {
        let before = group.count;
        let mut berth = fresh_berth(record);
        berth.fill(demand, group);
        if group.count == before {
            return;
        }
        fresh.push(berth);
    }
}

impl Draft<'_> {
    /// What is to be done about allocations: those for which there is nothing to do are
    /// ended, those that say nothing too; what is missing is asked for.
    pub(super) fn tend_pools(&mut self) {
        self.forget_what_is_over();
        self.release();
        if !self.is_empty() {
            return;
        }
        let at = self.at;
        // What waits is looked at only if anything may be asked for: this is done after every
        // command.
        let mut holds = Vec::new();
        let may_ask = self.state().pools.iter().any(|(id, record)| {
            holds.clear();
            self.engine.hold_all(at, id, record, &mut holds);
            let live = self.state().allocations_of(id).filter(|(_, _, allocation)| allocation.is_live()).count();
            holds.is_empty() && live < usize::try_from(record.pool.max_workers).unwrap_or(usize::MAX)
        });
        if !may_ask {
            return;
        }
        let mut number = self.state().submitted;
        for plan in self.engine.pool_plans(at) {
            let Some(record) = self.state().pools.get(&plan.pool).filter(|_| plan.count > 0) else { continue };
            number = number.saturating_add(1);
            let token = Token(format!("{}{number:016x}", record.pool.token_prefix));
            let PoolPlan { pool, count, walltime, .. } = plan;
            self.push(Event::AllocationsRequested { at, pool, token, count, walltime });
        }
    }

    fn forget_what_is_over(&mut self) {
        let at = self.at;
        let remember = self.engine.settings.remember;
        for (token, submission) in &self.state().submissions {
            let over_for_long = submission.tasks.values().all(|task| match task.state {
                AllocationState::Ended { at, .. } => self.waited(at) >= remember && !self.engine.is_manned(task),
                _ => false,
            });
            if over_for_long {
                self.push(Event::SubmissionForgotten { at, token: token.clone() });
            }
        }
    }

    /// Ends allocations that hold a node, or a place in the queue, for nothing.
    fn release(&mut self) {
        let at = self.at;
        let settings = &self.engine.settings;
        for (id, record) in &self.state().pools {
            let is_waiting = |(_, _, allocation): (_, _, &Allocation)| allocation.is_waiting();
            let waits =
                !record.removed && self.state().allocations_of(id).any(is_waiting) && self.engine.is_wanted(record);
            let live = self.state().allocations_of(id).filter(|(_, _, allocation)| allocation.is_live()).count();
            let mut surplus = live.saturating_sub(usize::try_from(record.pool.max_workers).unwrap_or(usize::MAX));
            for (allocation_id, submission, allocation) in self.state().allocations_of(id) {
                if !matches!(submission.stage, Stage::Accepted { .. }) || !allocation.is_live() {
                    continue;
                }
                if allocation.release.is_some() {
                    surplus = surplus.saturating_sub(1);
                    continue;
                }
                let reason = match &allocation.state {
                    AllocationState::Submitted | AllocationState::Queued { .. } if !waits => {
                        Some("no episode waits for it any more".to_owned())
                    }
                    AllocationState::Submitted | AllocationState::Queued { .. } if surplus > 0 => {
                        surplus -= 1;
                        Some(format!("the pool has more than {} workers", record.pool.max_workers))
                    }
                    AllocationState::Running { .. } => {
                        let silent =
                            allocation.unmanned_since.is_some_and(|since| self.waited(since) >= settings.hello_limit);
                        if silent && !self.engine.is_manned(allocation) {
                            let reason = format!("it ran for {} without a word from its worker", settings.hello_limit);
                            if !allocation.said_hello {
                                self.fail_pool(id, &format!("allocation {allocation_id}: {reason}"));
                            }
                            Some(reason)
                        } else {
                            self.idle(record, allocation.worker)
                        }
                    }
                    _ => None,
                };
                if let Some(reason) = reason {
                    let (token, tasks) = (allocation_id.token, vec![allocation_id.task]);
                    self.push(Event::AllocationReleased { at, token, tasks, reason: reason.clone() });
                    // Its worker hears it too: a controller that forgot the job cannot end it.
                    if let Some(worker) = allocation.worker {
                        self.drain_known(worker, reason);
                    }
                }
            }
        }
    }

    /// Why a worker's allocation is to be ended, if it has had nothing to do for long: only
    /// of one that is connected, or it may hold results that it could not deliver yet.
    fn idle(&self, record: &PoolRecord, worker: Option<WorkerId>) -> Option<String> {
        let id = worker?;
        let worker = self.state().workers.get(&id)?;
        if worker.session.is_none() || self.engine.is_silent(id) || !worker.leases.is_empty() {
            return None;
        }
        let since = [worker.idle_since, worker.fit_since].into_iter().flatten().fold(worker.joined_at, Timestamp::max);
        let idle = self.waited(since);
        if worker.preparing {
            let limit = self.engine.settings.prepare_limit.max(record.pool.idle);
            let reason = worker.unfit.as_deref().unwrap_or("it says nothing");
            return (idle >= limit).then(|| format!("it was not ready after {idle}: {reason}"));
        }
        let short = self.engine.remaining(id, self.at).is_some_and(|left| left < self.engine.settings.min_remaining);
        if short && worker.idle_since.is_some() {
            return Some("its time is nearly over, and it runs nothing".to_owned());
        }
        (idle >= record.pool.idle).then(|| format!("it had nothing to do for {idle}"))
    }
}
