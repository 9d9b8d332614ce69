//! Placement: which episode starts next, and where.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, EpisodeId, Epoch, WorkerId};
use longhaul_core::plan::{EnvEntry, LayerKind, Resources};

use super::draft::Draft;
use crate::engine::Engine;
use crate::event::Event;
use crate::lease::LeaseRef;
use crate::state::{Capacity, LayerState, State, Worker};

/// What a worker has left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) capacity: Capacity,
    pub(crate) cpu_millis: u32,
    pub(crate) memory_mib: u64,
    pub(crate) gpus: u32,
    pub(crate) slots: u32,
    pub(crate) live: u32,
}

impl Room {
    /// What is left of a worker beside its live leases.
    pub(crate) fn of(worker: &Worker) -> Self {
        let capacity = worker.profile.capacity;
        let mut room = Self {
            capacity,
            cpu_millis: capacity.cpu_millis,
            memory_mib: capacity.memory_mib,
            gpus: capacity.gpus,
            slots: if capacity.max_slots == 0 { u32::MAX } else { capacity.max_slots },
            live: 0,
        };
        worker.leases.values().for_each(|lease| room.take(lease.reserved));
        room
    }

    pub(crate) fn take(&mut self, reserved: Resources) {
        self.cpu_millis = self.cpu_millis.saturating_sub(reserved.cpu_millis);
        self.memory_mib = self.memory_mib.saturating_sub(u64::from(reserved.memory_mib));
        self.gpus = self.gpus.saturating_sub(reserved.gpus);
        self.slots = self.slots.saturating_sub(1);
        self.live = self.live.saturating_add(1);
    }

    /// What an env would take up here, if there is room for it.
    pub(crate) fn fit(&self, demand: Demand) -> Option<Resources> {
        let reserved = demand.on(self.capacity)?;
        // Cut processors mean that the whole worker is wanted, not only all that it has.
        let shared = demand.is_cut_on(self.capacity) && self.live > 0;
        let fits = !shared
            && self.slots > 0
            && reserved.cpu_millis <= self.cpu_millis
            && u64::from(reserved.memory_mib) <= self.memory_mib
            && reserved.gpus <= self.gpus;
        fits.then_some(reserved)
    }
}

/// What an env asks for, and whether its processors may be cut to what a worker has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    pub(crate) resources: Resources,
    pub(crate) may_cut_cpu: bool,
}

impl Demand {
    /// Processors may be cut only if no worker that could take the env has as many.
    pub(crate) fn new(resources: Resources, capacities: impl IntoIterator<Item = Capacity>) -> Self {
        let whole = Self { resources, may_cut_cpu: false };
        let may_cut_cpu = !capacities.into_iter().any(|capacity| whole.on(capacity).is_some());
        Self { resources, may_cut_cpu }
    }

    /// What it takes up of an empty worker, if that has enough.
    pub(crate) fn on(self, capacity: Capacity) -> Option<Resources> {
        let Resources { cpu_millis, memory_mib, gpus } = self.resources;
        let enough = (self.may_cut_cpu || cpu_millis <= capacity.cpu_millis)
            && u64::from(memory_mib) <= capacity.memory_mib
            && gpus <= capacity.gpus;
        enough.then_some(Resources { cpu_millis: cpu_millis.min(capacity.cpu_millis), memory_mib, gpus })
    }

    const fn is_cut_on(self, capacity: Capacity) -> bool {
        self.resources.cpu_millis > capacity.cpu_millis
    }
}

impl Engine {
    /// The workers that may get leases now, with what they have left.
    pub(crate) fn rooms(&self) -> BTreeMap<WorkerId, Room> {
        let workers = self.state.workers.iter();
        workers
            .filter(|(id, worker)| worker.session.is_some() && worker.draining.is_none() && !self.is_silent(**id))
            .map(|(id, worker)| (*id, Room::of(worker)))
            .collect()
    }

    /// Grants what can be granted now.
    pub(super) fn place(&self, draft: &mut Draft<'_>) {
        let mut placement = Placement::new(self);
        if placement.is_full() {
            return;
        }
        for pass in [Pass::Preferred, Pass::Rest] {
            self.place_in(pass, &mut placement, draft);
        }
    }

    fn place_in(&self, pass: Pass, placement: &mut Placement<'_>, draft: &mut Draft<'_>) {
        for id in &self.state.order {
            let Some(run) = self.state.runs.get(id).filter(|run| run.open > 0 && run.cancelled.is_none()) else {
                continue;
            };
            // By index into the run's envs: asked for each of perhaps ten thousand episodes.
            let mut may_fit: Vec<_> = run.plan.envs.iter().map(|env| !placement.unfit.contains(&env.plan)).collect();
            for ((index, episode), entry) in (0..).zip(&run.episodes).zip(&run.plan.episodes) {
                let Some(may_fit) = usize::try_from(entry.env).ok().and_then(|env| may_fit.get_mut(env)) else {
                    continue;
                };
                if !*may_fit {
                    continue;
                }
                let episode_id = EpisodeId { run: *id, index };
                if !episode.is_due(draft.at) || placement.granted.contains(&episode_id) {
                    continue;
                }
                let Some(env) = run.env(entry) else { continue };
                if pass == Pass::Preferred && !placement.is_preferred(env) {
                    continue;
                }
                let Some((worker, reserved)) = placement.find(env) else {
                    *may_fit = false;
                    continue;
                };
                let number = episode.attempts().saturating_add(1);
                let lease = placement.grant(episode_id, number, env, worker, reserved);
                draft.push(Event::LeaseGranted { at: draft.at, lease, worker, reserved });
                if placement.is_full() {
                    return;
                }
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    /// Episodes that will not wait for a layer which another attempt waits for already.
    Preferred,
    /// All others.
    Rest,
}

/// A placement on its way.
struct Placement<'a> {
    state: &'a State,
    rooms: BTreeMap<WorkerId, Room>,
    last_epoch: Epoch,
    granted: BTreeSet<EpisodeId>,
    /// Envs, by their plan, with a live attempt.
    live: BTreeSet<Digest>,
    /// Envs, by name, whose configure layer is there.
    configured: BTreeSet<&'a str>,
    /// Envs that fit nowhere any more: room only shrinks while leases are granted.
    unfit: BTreeSet<Digest>,
}

impl<'a> Placement<'a> {
    fn new(engine: &'a Engine) -> Self {
        let state = &engine.state;
        let live = state.leases().filter_map(|(_, lease, _)| Some(state.env_of(lease.attempt.episode)?.plan)).collect();
        let ready = |state: &LayerState| matches!(state, LayerState::Ready { .. });
        let configured = state
            .layers
            .values()
            .filter(|layer| layer.kind == LayerKind::Configure && ready(&layer.state))
            .map(|layer| layer.env.as_str())
            .collect();
        Self {
            state,
            rooms: engine.rooms(),
            last_epoch: state.last_epoch,
            granted: BTreeSet::new(),
            live,
            configured,
            unfit: BTreeSet::new(),
        }
    }

    fn is_full(&self) -> bool {
        self.rooms.values().all(|room| room.slots == 0)
    }

    fn is_preferred(&self, env: &EnvEntry) -> bool {
        self.state.proven.contains(&env.plan)
            || self.configured.contains(env.name.as_str())
            || !self.live.contains(&env.plan)
    }

    /// The worker with the fewest live attempts that has room.
    fn find(&mut self, env: &EnvEntry) -> Option<(WorkerId, Resources)> {
        if self.unfit.contains(&env.plan) {
            return None;
        }
        let demand = Demand::new(env.resources, self.rooms.values().map(|room| room.capacity));
        let fitting = self.rooms.iter().filter_map(|(id, room)| Some((room.live, *id, room.fit(demand)?)));
        let best = fitting.min_by_key(|(live, id, _)| (*live, *id));
        if best.is_none() {
            self.unfit.insert(env.plan);
        }
        best.map(|(_, id, reserved)| (id, reserved))
    }

    fn grant(
        &mut self,
        episode: EpisodeId,
        number: u32,
        env: &EnvEntry,
        worker: WorkerId,
        reserved: Resources,
    ) -> LeaseRef {
        self.last_epoch = Epoch(self.last_epoch.0 + 1);
        self.granted.insert(episode);
        self.live.insert(env.plan);
        if let Some(room) = self.rooms.get_mut(&worker) {
            room.take(reserved);
        }
        LeaseRef { attempt: AttemptId { episode, number }, epoch: self.last_epoch }
    }
}
