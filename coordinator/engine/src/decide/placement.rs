//! Placement: which episode starts next, and where.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, EpisodeId, Epoch, RunId, WorkerId};
use longhaul_core::plan::{EnvEntry, LayerKind, Resources};
use longhaul_core::time::{Millis, Timestamp};

use super::Samples;
use super::draft::Draft;
use super::resume;
use crate::engine::Engine;
use crate::event::Event;
use crate::lease::LeaseRef;
use crate::state::{Capacity, EpisodeState, LayerState, State, Worker};

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
        let mut room = Self::empty(worker.profile.capacity);
        worker.leases.values().for_each(|lease| room.take(lease.reserved));
        room
    }

    /// All of a worker that has nothing to do.
    pub(crate) const fn empty(capacity: Capacity) -> Self {
        Self {
            capacity,
            cpu_millis: capacity.cpu_millis,
            memory_mib: capacity.memory_mib,
            gpus: capacity.gpus,
            slots: if capacity.max_slots == 0 { u32::MAX } else { capacity.max_slots },
            live: 0,
        }
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
            .filter(|(id, worker)| worker.session.is_some() && self.takes_leases(**id) && !self.is_silent(**id))
            .map(|(id, worker)| (*id, Room::of(worker)))
            .collect()
    }

    /// Grants what can be granted now.
    pub(super) fn place(&self, draft: &mut Draft<'_>) {
        let mut placement = Placement::new(self);
        if placement.is_full() {
            return;
        }
        let longest = self.longest_offer();
        let mut lines: Vec<_> =
            self.state.order.iter().filter_map(|id| Line::new(self, *id, &placement, draft.at, longest)).collect();
        for pass in [Pass::Preferred, Pass::Rest] {
            place_in(pass, &mut lines, &mut placement, draft);
        }
    }
}

/// Grants leases one by one: each to the run that comes first now.
fn place_in<'a>(pass: Pass, lines: &mut [Line<'a>], placement: &mut Placement<'a>, draft: &mut Draft<'_>) {
    lines.iter_mut().for_each(|line| line.next = 0);
    while !placement.is_full()
        && let Some(line) =
            lines.iter_mut().filter(|line| line.next < line.waiting.len()).min_by_key(|line| line.rank())
    {
        let Some(candidate) = line.advance(pass, placement) else { continue };
        let Some((worker, reserved)) = placement.find(candidate) else { continue };
        line.live = line.live.saturating_add(1);
        let lease = placement.grant(candidate, worker, reserved);
        let resumes = candidate.resumes;
        draft.push(Event::LeaseGranted { at: draft.at, lease, worker, reserved, resumes });
    }
}

/// An episode that is due.
#[derive(Clone, Copy, Debug)]
struct Candidate<'a> {
    id: EpisodeId,
    number: u32,
    env: &'a EnvEntry,
    /// The endpoints without which it cannot act.
    endpoints: &'a [String],
    /// How long it will take, if that is known, and how much time its worker must have left.
    expected: Option<Millis>,
    wanted: Millis,
    /// Whether it goes on where it was cut off.
    resumes: bool,
}

/// The episodes of a run that are due, in the order in which they start.
struct Line<'a> {
    priority: i32,
    /// How many attempts of the run are live: those with fewer come first.
    live: u32,
    /// Its place in the order of submission.
    place: usize,
    waiting: Vec<Candidate<'a>>,
    next: usize,
}

impl<'a> Line<'a> {
    fn new(
        engine: &'a Engine,
        id: RunId,
        placement: &Placement<'_>,
        at: Timestamp,
        longest: Option<Millis>,
    ) -> Option<Self> {
        let state = &engine.state;
        let run = state.runs.get(&id).filter(|run| run.open > 0 && run.cancelled.is_none())?;
        let may_fit: Vec<_> = run.plan.envs.iter().map(|env| placement.may_fit(env)).collect();
        if !may_fit.contains(&true) {
            return None;
        }
        let times = engine.times(run);
        let mut waiting = Vec::new();
        let mut live = 0_u32;
        let mut samples = Samples::of(run);
        for (index, (episode, entry)) in run.episodes.iter().zip(&run.plan.episodes).enumerate() {
            live = live.saturating_add(u32::from(matches!(episode.state, EpisodeState::Active { .. })));
            let fits = usize::try_from(entry.env).ok().and_then(|env| may_fit.get(env)) == Some(&true);
            let Some(env) = run.env(entry).filter(|_| fits && episode.is_due(at)) else { continue };
            let Ok(number) = u32::try_from(index) else { continue };
            if samples.as_mut().is_some_and(|samples| !samples.admit(entry)) {
                continue;
            }
            waiting.push(Candidate {
                id: EpisodeId { run: id, index: number },
                number: episode.attempts().saturating_add(1),
                env,
                endpoints: run.endpoints(entry),
                expected: times.expected(index, episode),
                wanted: times.wanted(index, episode, longest),
                resumes: resume::resumes(&engine.settings, run, episode),
            });
        }
        if times.differ() {
            // Long ones first, or one of them is left running alone at the end; and before
            // those the ones of which nothing is known, since they may be long.
            waiting.sort_by_key(|candidate| Reverse(candidate.expected.unwrap_or(Millis(u64::MAX))));
        }
        let place = state.order.iter().position(|known| *known == id)?;
        (!waiting.is_empty()).then_some(Self { priority: run.terms.priority, live, place, waiting, next: 0 })
    }

    /// Higher priorities first, then fair shares, then the order of submission.
    const fn rank(&self) -> (Reverse<i32>, u32, usize) {
        (Reverse(self.priority), self.live, self.place)
    }

    /// The next candidate that this pass may start.
    fn advance(&mut self, pass: Pass, placement: &Placement<'_>) -> Option<Candidate<'a>> {
        while let Some(candidate) = self.waiting.get(self.next).copied() {
            self.next += 1;
            let preferred = pass == Pass::Rest || placement.is_preferred(candidate.env);
            let free = placement.may_fit(candidate.env) && !placement.granted.contains(&candidate.id);
            if preferred && free && !placement.is_held(candidate.endpoints) {
                return Some(candidate);
            }
        }
        None
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    /// Episodes that will not wait for a layer which another attempt waits for already.
    Preferred,
    /// All others.
    Rest,
}

/// A holder of a layer is worth a wait behind so many other attempts of the same env: beyond
/// that, getting the layer elsewhere is cheaper than one crowded disk.
const LAYER_IS_WORTH: u32 = 2;

/// A placement on its way.
struct Placement<'a> {
    state: &'a State,
    rooms: BTreeMap<WorkerId, Room>,
    nodes: BTreeMap<WorkerId, &'a str>,
    /// How long each worker still lasts, if that is known.
    remaining: BTreeMap<WorkerId, Millis>,
    /// How many attempts are starting on each node, and how many may.
    starting: BTreeMap<&'a str, u32>,
    max_starting: u32,
    last_epoch: Epoch,
    granted: BTreeSet<EpisodeId>,
    /// Envs, by their plan, with live attempts: how many, on each worker.
    live: BTreeMap<Digest, BTreeMap<WorkerId, u32>>,
    /// Envs, by name, whose configure layer is there, with the workers that have it.
    configured: BTreeMap<&'a str, &'a BTreeSet<WorkerId>>,
    /// Envs that fit nowhere any more: room only shrinks while leases are granted.
    unfit: BTreeSet<Digest>,
    /// Endpoints that are down, and that live attempts wait for already.
    watched: BTreeSet<&'a str>,
}

impl<'a> Placement<'a> {
    fn new(engine: &'a Engine) -> Self {
        let state = &engine.state;
        let mut live: BTreeMap<Digest, BTreeMap<WorkerId, u32>> = BTreeMap::new();
        let mut starting: BTreeMap<&str, u32> = BTreeMap::new();
        for (worker, lease, held) in state.leases() {
            if let Some(env) = state.env_of(lease.attempt.episode) {
                *live.entry(env.plan).or_default().entry(worker).or_default() += 1;
            }
            if engine.is_starting(lease.attempt, held)
                && let Some(record) = state.workers.get(&worker)
            {
                *starting.entry(record.profile.hostname.as_str()).or_default() += 1;
            }
        }
        let configured = state.layers.values().filter_map(|layer| match &layer.state {
            LayerState::Ready { told, .. } if layer.kind == LayerKind::Configure => Some((layer.env.as_str(), told)),
            _ => None,
        });
        let rooms = engine.rooms();
        let now = engine.volatile.clock;
        let remaining = rooms.keys().filter_map(|id| Some((*id, engine.remaining(*id, now)?))).collect();
        let nodes = rooms.keys().filter_map(|id| Some((*id, state.workers.get(id)?.profile.hostname.as_str())));
        Self {
            state,
            nodes: nodes.collect(),
            remaining,
            starting,
            max_starting: engine.settings.max_starting.max(1),
            last_epoch: state.last_epoch,
            granted: BTreeSet::new(),
            live,
            configured: configured.collect(),
            unfit: BTreeSet::new(),
            watched: engine.watched_endpoints(),
            rooms,
        }
    }

    fn is_full(&self) -> bool {
        self.rooms.iter().all(|(id, room)| room.slots == 0 || self.is_paced(*id))
    }

    /// Whether as many attempts are starting on a worker's node as may.
    fn is_paced(&self, worker: WorkerId) -> bool {
        let starting = self.nodes.get(&worker).and_then(|node| self.starting.get(node));
        starting.is_some_and(|starting| *starting >= self.max_starting)
    }

    /// Whether an episode would only wait for an endpoint, as others do.
    fn is_held(&self, endpoints: &[String]) -> bool {
        endpoints.iter().any(|endpoint| self.watched.contains(endpoint.as_str()))
    }

    fn may_fit(&self, env: &EnvEntry) -> bool {
        !self.unfit.contains(&env.plan)
    }

    fn is_preferred(&self, env: &EnvEntry) -> bool {
        self.state.proven.contains(&env.plan)
            || self.configured.contains_key(env.name.as_str())
            || !self.live.contains_key(&env.plan)
    }

    /// The best worker for an episode, of those that have room.
    fn find(&mut self, candidate: Candidate<'_>) -> Option<(WorkerId, Resources)> {
        let env = candidate.env;
        let demand = Demand::new(env.resources, self.rooms.values().map(|room| room.capacity));
        let mut fits_anywhere = false;
        let mut best: Option<(Cost, WorkerId, Resources)> = None;
        for (id, room) in self.rooms.iter().filter(|(id, _)| !self.is_paced(**id)) {
            let Some(reserved) = room.fit(demand) else { continue };
            fits_anywhere = true;
            if self.remaining.get(id).is_some_and(|left| *left < candidate.wanted) {
                continue;
            }
            let cost = self.cost(*id, room, candidate);
            if best.as_ref().is_none_or(|(least, _, _)| cost < *least) {
                best = Some((cost, *id, reserved));
            }
        }
        if !fits_anywhere {
            self.unfit.insert(env.plan);
        }
        best.map(|(_, id, reserved)| (id, reserved))
    }

    /// What speaks against a worker, the weightiest first: a graphics processor would stand
    /// idle; others of the env are there already, but a layer that is there too makes up
    /// for some of them; it may not last long enough; it has much to do.
    fn cost(&self, id: WorkerId, room: &Room, candidate: Candidate<'_>) -> Cost {
        let env = candidate.env;
        let wastes_gpus = room.capacity.gpus > 0 && env.resources.gpus == 0;
        let alike = self.live.get(&env.plan).and_then(|live| live.get(&id)).copied().unwrap_or(0);
        let holds = self.configured.get(env.name.as_str()).is_some_and(|told| told.contains(&id));
        let crowded = if holds { alike } else { alike.saturating_add(LAYER_IS_WORTH) };
        let safe = candidate.expected.map_or(0, |expected| expected.0.saturating_mul(2));
        let is_short = self.remaining.get(&id).is_some_and(|left| left.0 < safe);
        (wastes_gpus, crowded, is_short, room.live)
    }

    fn grant(&mut self, candidate: Candidate<'a>, worker: WorkerId, reserved: Resources) -> LeaseRef {
        let Candidate { id: episode, number, env, .. } = candidate;
        self.last_epoch = Epoch(self.last_epoch.0 + 1);
        self.granted.insert(episode);
        let down = candidate.endpoints.iter().filter(|name| self.state.endpoints_down.contains_key(*name));
        self.watched.extend(down.map(String::as_str));
        *self.live.entry(env.plan).or_default().entry(worker).or_default() += 1;
        if let Some(node) = self.nodes.get(&worker) {
            *self.starting.entry(node).or_default() += 1;
        }
        if let Some(room) = self.rooms.get_mut(&worker) {
            room.take(reserved);
        }
        LeaseRef { attempt: AttemptId { episode, number }, epoch: self.last_epoch }
    }
}

/// What speaks against a worker: see [`Placement::cost`].
type Cost = (bool, u32, bool, u32);
