//! Endpoints as all attempts of a worker share them: their gates, their health, their addresses.

mod gate;
mod health;
mod replicas;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use longhaul_core::endpoint::{EndpointPlan, RateLimits};
use tokio::sync::Notify;
use tokio::time::Instant;

pub(crate) use gate::Load;
use gate::{Gate, Next};
use health::Health;
pub(crate) use health::Waits;
use replicas::Replicas;

/// What this worker may use of an endpoint's limits, or of those of some of its models; no limit
/// where absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointShare {
    /// The endpoint.
    pub endpoint: String,
    /// The models, as their limits name them; all of them together if absent.
    pub model: Option<String>,
    /// Calls in flight.
    pub concurrent: Option<u32>,
    /// Calls a minute.
    pub requests_per_minute: Option<u32>,
    /// Tokens a minute.
    pub tokens_per_minute: Option<u64>,
    /// Others saw the endpoint down: one call at a time is tried, the others wait with their clocks
    /// stopped.
    pub down: bool,
}

/// What this worker has seen of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointWord {
    /// The endpoint.
    pub endpoint: String,
    /// Calls that wait or are in flight.
    pub demand: u32,
    /// The same of models with limits of their own, as those name them.
    pub models: BTreeMap<String, u32>,
    /// Whether no call of it is answered.
    pub down: Option<EndpointDown>,
    /// Whether one was answered since the last word.
    pub answered: bool,
}

/// That no call of an endpoint is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointDown {
    /// Why; hostile until escaped.
    pub why: String,
    /// For how long.
    pub lasts: Duration,
}

/// An endpoint.
#[derive(Debug)]
pub(crate) struct Endpoint {
    name: String,
    waits: Waits,
    state: Mutex<State>,
    /// Its health has changed.
    health: Notify,
}

#[derive(Debug)]
struct State {
    gate: Gate,
    health: Health,
    replicas: Replicas,
    answered: bool,
    /// When it last answered.
    last_answer: Option<Instant>,
    /// Calls that wait for it to be up.
    waiting: u32,
    tickets: u64,
    /// Those that wait at the gate, and whether they are through.
    at_gate: HashMap<u64, (Arc<Notify>, bool)>,
}

impl Endpoint {
    pub(crate) fn new(name: String, waits: Waits) -> Self {
        let state = State {
            gate: Gate::new(Instant::now()),
            health: Health::default(),
            replicas: Replicas::default(),
            answered: false,
            last_answer: None,
            waiting: 0,
            tickets: 0,
            at_gate: HashMap::new(),
        };
        Self { name, waits, state: Mutex::new(state), health: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The limits of a plan, which hold until the coordinator has said what this worker's share is.
    pub(crate) fn plan(&self, plan: &EndpointPlan) {
        let models = plan.model_limits.iter().map(|limits| (limits.model.as_str().into(), limits.limits));
        self.state().gate.limit(Instant::now(), plan.limits, models.collect());
    }

    /// Whether no more calls are in flight than its share allows.
    pub(crate) fn is_within(&self) -> bool {
        self.state().gate.is_within()
    }

    /// This worker's shares among those of all endpoints; none where the coordinator knows no limit.
    pub(crate) fn share(&self, shares: &[EndpointShare]) {
        let mut state = self.state();
        let (mut whole, mut models, mut down) = (RateLimits::default(), BTreeMap::new(), false);
        for share in shares.iter().filter(|share| share.endpoint == self.name) {
            let limits = RateLimits {
                concurrent: share.concurrent,
                requests_per_minute: share.requests_per_minute,
                tokens_per_minute: share.tokens_per_minute,
            };
            down |= share.down;
            match &share.model {
                None => whole = limits,
                Some(model) => {
                    models.insert(model.as_str().into(), limits);
                }
            }
        }
        state.gate.limit(Instant::now(), whole, models);
        state.health.heard(Instant::now(), down, self.waits);
        state.pump(Instant::now());
        drop(state);
        self.health.notify_waiters();
    }

    /// What is known of it; `answered` begins anew.
    pub(crate) fn word(&self) -> EndpointWord {
        let mut state = self.state();
        let down = match &state.health {
            Health::Down { why, seen: true, since, .. } => {
                Some(EndpointDown { why: why.clone(), lasts: since.elapsed() })
            }
            _ => None,
        };
        EndpointWord {
            endpoint: self.name.clone(),
            demand: state.gate.demand().saturating_add(state.waiting),
            models: state.gate.demands(),
            down,
            answered: std::mem::take(&mut state.answered),
        }
    }

    /// Whether it is down, and since when.
    pub(crate) fn down(&self) -> Option<(Duration, String)> {
        match &self.state().health {
            Health::Down { since, why, .. } => Some((since.elapsed(), why.clone())),
            Health::Up { .. } => None,
        }
    }

    /// Waits until it is up, or until it is this call's turn to try one that is down; then the
    /// turn is given. Returns at once in the common case.
    pub(crate) async fn ready(self: &Arc<Self>) -> Option<Turn> {
        loop {
            let changed = self.health.notified();
            let again = {
                let mut state = self.state();
                if !state.health.is_down() {
                    return None;
                }
                match state.health.probe(Instant::now()) {
                    Ok(()) => return Some(Turn(Arc::clone(self))),
                    Err(again) => again,
                }
            };
            let counted = WaitsForHealth::new(self);
            tokio::select! {
                () = changed => {}
                () = sleep_until(again) => {}
            }
            drop(counted);
        }
    }

    /// Whether waiting at the gate makes no sense any more.
    async fn goes_down(&self) {
        loop {
            let changed = self.health.notified();
            if self.state().health.is_down() {
                return;
            }
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep(Duration::from_secs(1)) => {}
            }
        }
    }

    /// Waits for a place. None if the endpoint goes down meanwhile, which a probe does not mind.
    pub(crate) async fn enter(self: &Arc<Self>, load: Load) -> Option<Place> {
        let (ticket, notify) = {
            let mut state = self.state();
            state.tickets += 1;
            let ticket = state.tickets;
            state.gate.join(Instant::now(), ticket, load.clone());
            let notify = Arc::new(Notify::new());
            state.at_gate.insert(ticket, (Arc::clone(&notify), false));
            (ticket, notify)
        };
        let probe = load.probe;
        let waiter = AtGate { endpoint: self, ticket, load: &load };
        loop {
            let next = {
                let mut state = self.state();
                let next = state.pump(Instant::now());
                if state.at_gate.get(&ticket).is_some_and(|(_, through)| *through) {
                    state.at_gate.remove(&ticket);
                    drop(state);
                    std::mem::forget(waiter);
                    let used = load.tokens;
                    return Some(Place { endpoint: Arc::clone(self), load, used });
                }
                next
            };
            let until = match next {
                Next::At(at) => Some(at),
                Next::Through(_) | Next::Nobody => None,
            };
            tokio::select! {
                () = notify.notified() => {}
                () = sleep_until(until) => {}
                () = self.goes_down(), if !probe => return None,
            }
        }
    }

    /// Its addresses may be others now: what is down is tried again at once.
    pub(crate) fn moved(&self) {
        self.state().health.moved(Instant::now(), self.waits);
        self.health.notify_waiters();
    }

    /// Takes the address for the next call.
    pub(crate) fn address(self: &Arc<Self>, urls: &[String], last: Option<&str>) -> Option<Address> {
        let url = self.state().replicas.take(urls, last, Instant::now())?;
        Some(Address { endpoint: Arc::clone(self), url, failed: None })
    }

    /// It answered something: it is there.
    pub(crate) fn answered(&self) {
        let mut state = self.state();
        let was_down = state.health.is_down();
        state.health.answered();
        state.answered = true;
        state.last_answer = Some(Instant::now());
        drop(state);
        if was_down {
            self.health.notify_waiters();
        }
    }

    /// A call that began at `began` failed. `last` says that its retries are used up: if nobody
    /// was answered meanwhile, the endpoint is down.
    pub(crate) fn failed(&self, why: &str, last: bool, began: Instant) {
        let mut state = self.state();
        let alone = state.last_answer.is_none_or(|answer| answer < began);
        state.health.failed(Instant::now(), why, last && alone, self.waits);
        let down = state.health.is_down();
        drop(state);
        if down {
            self.health.notify_waiters();
        }
    }

    /// It takes no call of ours until a person has done something.
    pub(crate) fn barred(&self, why: &str) {
        self.state().health.failed(Instant::now(), why, true, self.waits);
        self.health.notify_waiters();
    }

    /// The vendor asks for a wait: of everybody, or where its model has limits of its own, of those
    /// that call it.
    pub(crate) fn hold(&self, wait: Duration, model: Option<&str>) {
        self.state().gate.hold_until(Instant::now() + wait, model);
    }
}

impl State {
    /// Lets through whoever may pass; what the next one waits for.
    fn pump(&mut self, now: Instant) -> Next {
        loop {
            match self.gate.next(now) {
                Next::Through(ticket) => {
                    if let Some((notify, through)) = self.at_gate.get_mut(&ticket) {
                        *through = true;
                        notify.notify_one();
                    }
                }
                next => return next,
            }
        }
    }
}

/// Sleeps, and asks again now and then where no time is known.
async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => tokio::time::sleep(Duration::from_secs(1)).await,
    }
}

/// Counts a call that waits for an endpoint to be up.
struct WaitsForHealth<'a>(&'a Endpoint);

impl<'a> WaitsForHealth<'a> {
    fn new(endpoint: &'a Endpoint) -> Self {
        endpoint.state().waiting += 1;
        Self(endpoint)
    }
}

impl Drop for WaitsForHealth<'_> {
    fn drop(&mut self) {
        self.0.state().waiting -= 1;
    }
}

/// A call in the queue, which leaves it when it is dropped.
struct AtGate<'a> {
    endpoint: &'a Endpoint,
    ticket: u64,
    load: &'a Load,
}

impl Drop for AtGate<'_> {
    fn drop(&mut self) {
        let mut state = self.endpoint.state();
        match state.at_gate.remove(&self.ticket) {
            // It was let through while it was about to leave.
            Some((_, true)) => state.gate.done(self.load, 0),
            _ => state.gate.leave(self.ticket),
        }
        state.pump(Instant::now());
    }
}

/// The turn to try an endpoint that is down; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Turn(Arc<Endpoint>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.state().health.probed();
        self.0.health.notify_waiters();
    }
}

/// A place among the calls in flight; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    endpoint: Arc<Endpoint>,
    load: Load,
    used: u64,
}

impl Place {
    /// What the call used in truth.
    pub(crate) const fn used(&mut self, tokens: u64) {
        self.used = tokens;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.endpoint.state();
        state.gate.done(&self.load, self.used);
        state.pump(Instant::now());
    }
}

/// An address that serves a call; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Address {
    endpoint: Arc<Endpoint>,
    /// The address.
    pub(crate) url: String,
    failed: Option<bool>,
}

impl Address {
    /// Whether the address itself failed.
    pub(crate) const fn failed(&mut self, failed: bool) {
        self.failed = Some(failed);
    }
}

impl Drop for Address {
    fn drop(&mut self) {
        self.endpoint.state().replicas.give_back(&self.url, self.failed, Instant::now());
    }
}
