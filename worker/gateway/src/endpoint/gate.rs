//! Who may call an endpoint now: limits on calls in flight and on rates, of the endpoint and of some
//! of its models, fair among attempts. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use longhaul_core::endpoint::RateLimits;
use tokio::time::Instant;

/// Rates may be used up in bursts of this much of a minute.
const BURST: f64 = 1.0 / 6.0;

/// A rate of nothing is looked at again after this; a change of it is looked at anyway.
const NOTHING: Duration = Duration::from_secs(60);

/// A bucket that fills by the minute.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    level: f64,
    at: Instant,
}

impl Bucket {
    fn refill(&mut self, now: Instant, per_minute: f64) {
        let grown = now.saturating_duration_since(self.at).as_secs_f64() * per_minute / 60.0;
        self.level = (self.level + grown).min(capacity(per_minute));
        self.at = now;
    }

    /// When there is enough for `amount`; what is more than the whole bucket waits for a full one.
    fn enough_at(&self, now: Instant, amount: f64, per_minute: f64) -> Instant {
        if per_minute <= 0.0 {
            return now + NOTHING;
        }
        let lacking = amount.min(capacity(per_minute)) - self.level;
        if lacking <= 0.0 {
            return now;
        }
        let wait = Duration::try_from_secs_f64(lacking * 60.0 / per_minute).unwrap_or(NOTHING);
        now + wait.max(Duration::from_millis(1))
    }
}

fn capacity(per_minute: f64) -> f64 {
    (per_minute * BURST).max(1.0)
}

/// Limits with what is used of them: those of the endpoint, or of some of its models.
#[derive(Clone, Debug)]
struct Bounds {
    limits: RateLimits,
    in_flight: u32,
    requests: Bucket,
    tokens: Bucket,
    hold: Option<Instant>,
}

impl Bounds {
    fn new(now: Instant) -> Self {
        // Full at first, whatever the limits are going to be.
        let bucket = Bucket { level: f64::MAX, at: now };
        Self { limits: RateLimits::default(), in_flight: 0, requests: bucket, tokens: bucket, hold: None }
    }

    /// When the call may pass, as far as these limits are concerned: at once if that is now, and
    /// only after another one came to its end if it is never.
    fn passes(&mut self, now: Instant, load: &Load) -> Option<Instant> {
        if self.limits.concurrent.is_some_and(|most| self.in_flight >= most) {
            return None;
        }
        let rates = [
            (&mut self.requests, self.limits.requests_per_minute.map(f64::from), 1.0),
            #[expect(clippy::cast_precision_loss, reason = "a rate of tokens is no sum of money")]
            (&mut self.tokens, self.limits.tokens_per_minute.map(|rate| rate as f64), load.tokens as f64),
        ];
        let mut ready = self.hold.filter(|_| !load.probe).unwrap_or(now).max(now);
        for (bucket, rate, amount) in rates {
            if let Some(rate) = rate {
                bucket.refill(now, rate);
                ready = ready.max(bucket.enough_at(now, amount, rate));
            }
        }
        Some(ready)
    }

    fn enter(&mut self, load: &Load) {
        self.in_flight += 1;
        self.requests.level -= 1.0;
        self.charge(load.tokens, 0);
    }

    fn leave(&mut self, load: &Load, used: u64) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.charge(used, load.tokens);
    }

    #[expect(clippy::cast_precision_loss, reason = "a rate of tokens is no sum of money")]
    fn charge(&mut self, more: u64, less: u64) {
        self.tokens.level -= more as f64 - less as f64;
    }
}

/// What a call is to the limits.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// Whose it is.
    pub(crate) account: u64,
    /// How many tokens it is guessed to be.
    pub(crate) tokens: u64,
    /// The limits of its model, by their name, if it has any.
    pub(crate) model: Option<Arc<str>>,
    /// It tries an endpoint that is down: no hold and nobody before it holds it up.
    pub(crate) probe: bool,
}

/// A call that waits.
#[derive(Clone, Debug)]
struct Waiter {
    ticket: u64,
    load: Load,
}

/// What the next one in the queue gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The ticket is through.
    Through(u64),
    /// Nobody before that time.
    At(Instant),
    /// Nobody before something changes.
    Nobody,
}

/// The gate of an endpoint.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    whole: Bounds,
    /// Those of models that have limits of their own.
    models: BTreeMap<Arc<str>, Bounds>,
    /// Calls in flight by attempt.
    by_account: HashMap<u64, u32>,
    queue: Vec<Waiter>,
}

impl Gate {
    /// An open gate.
    pub(crate) fn new(now: Instant) -> Self {
        Self { whole: Bounds::new(now), models: BTreeMap::new(), by_account: HashMap::new(), queue: Vec::new() }
    }

    /// Limits from now on, of the endpoint and of models; models that are not named have none.
    pub(crate) fn limit(&mut self, now: Instant, whole: RateLimits, models: BTreeMap<Arc<str>, RateLimits>) {
        self.whole.limits = whole;
        self.models.values_mut().for_each(|bounds| bounds.limits = RateLimits::default());
        for (model, limits) in models {
            self.models.entry(model).or_insert_with(|| Bounds::new(now)).limits = limits;
        }
    }

    /// Whether no more is in flight than may be: where a limit became smaller, what had begun ends first.
    pub(crate) fn is_within(&self) -> bool {
        let within = |bounds: &Bounds| bounds.limits.concurrent.is_none_or(|most| bounds.in_flight <= most);
        within(&self.whole) && self.models.values().all(within)
    }

    /// Calls that wait or are in flight.
    pub(crate) fn demand(&self) -> u32 {
        self.whole.in_flight.saturating_add(u32::try_from(self.queue.len()).unwrap_or(u32::MAX))
    }

    /// The same of models with limits of their own, where there are any.
    pub(crate) fn demands(&self) -> BTreeMap<String, u32> {
        let mut demands: BTreeMap<String, u32> =
            self.models.iter().map(|(model, bounds)| (model.to_string(), bounds.in_flight)).collect();
        for model in self.queue.iter().filter_map(|waiter| waiter.load.model.as_ref()) {
            *demands.entry(model.to_string()).or_default() += 1;
        }
        demands.retain(|_, demand| *demand > 0);
        demands
    }

    /// Nobody gets through before that time: the vendor said so, to a call of a model with limits of
    /// its own, or to any other.
    pub(crate) fn hold_until(&mut self, until: Instant, model: Option<&str>) {
        let held = model.and_then(|model| self.models.get_mut(model)).unwrap_or(&mut self.whole);
        held.hold = held.hold.max(Some(until));
    }

    /// Joins the queue.
    pub(crate) fn join(&mut self, now: Instant, ticket: u64, load: Load) {
        if let Some(model) = &load.model {
            self.models.entry(Arc::clone(model)).or_insert_with(|| Bounds::new(now));
        }
        self.queue.push(Waiter { ticket, load });
    }

    /// Leaves the queue.
    pub(crate) fn leave(&mut self, ticket: u64) {
        self.queue.retain(|waiter| waiter.ticket != ticket);
    }

    /// Who is next: of the attempts that wait, the one with the fewest calls in flight, and of
    /// its calls the oldest. A model that is at its limits holds up its own calls alone.
    pub(crate) fn next(&mut self, now: Instant) -> Next {
        let mut shut: BTreeSet<Arc<str>> = BTreeSet::new();
        let mut earliest: Option<Instant> = None;
        loop {
            let flying = |load: &Load| self.by_account.get(&load.account).copied().unwrap_or_default();
            let may = |waiter: &&Waiter| waiter.load.model.as_ref().is_none_or(|model| !shut.contains(model));
            let order = |waiter: &&Waiter| (!waiter.load.probe, flying(&waiter.load), waiter.ticket);
            let Some(first) = self.queue.iter().filter(may).min_by_key(order) else {
                return earliest.map_or(Next::Nobody, Next::At);
            };
            let Waiter { ticket, load } = first.clone();
            if let Some(model) = &load.model
                && let Some(bounds) = self.models.get_mut(model)
            {
                let ready = bounds.passes(now, &load);
                if ready != Some(now) {
                    earliest = [earliest, ready].into_iter().flatten().min();
                    shut.insert(Arc::clone(model));
                    continue;
                }
            }
            return match self.whole.passes(now, &load) {
                None => Next::Nobody,
                Some(ready) if ready > now => Next::At(ready),
                Some(_) => {
                    self.pass(ticket, &load);
                    Next::Through(ticket)
                }
            };
        }
    }

    fn pass(&mut self, ticket: u64, load: &Load) {
        self.leave(ticket);
        *self.by_account.entry(load.account).or_default() += 1;
        self.whole.enter(load);
        if let Some(bounds) = load.model.as_ref().and_then(|model| self.models.get_mut(model)) {
            bounds.enter(load);
        }
    }

    /// A call is over that was let through, and used so many tokens.
    pub(crate) fn done(&mut self, load: &Load, used: u64) {
        if let Some(flying) = self.by_account.get_mut(&load.account) {
            *flying = flying.saturating_sub(1);
            if *flying == 0 {
                self.by_account.remove(&load.account);
            }
        }
        self.whole.leave(load, used);
        if let Some(bounds) = load.model.as_ref().and_then(|model| self.models.get_mut(model)) {
            bounds.leave(load, used);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn gate(limits: RateLimits) -> (Gate, Instant) {
        let now = Instant::now();
        let mut gate = Gate::new(now);
        gate.limit(now, limits, BTreeMap::new());
        (gate, now)
    }

    const fn load(account: u64, tokens: u64) -> Load {
        Load { account, tokens, model: None, probe: false }
    }

    fn of(model: &str) -> Load {
        Load { model: Some(model.into()), ..load(1, 0) }
    }

    fn at_most(concurrent: u32) -> RateLimits {
        RateLimits { concurrent: Some(concurrent), ..RateLimits::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_with_many_calls_does_not_hold_up_one_with_few() {
        let (mut gate, now) = gate(at_most(2));
        for ticket in 0..10 {
            gate.join(now, ticket, load(1, 0));
        }
        assert_eq!((gate.next(now), gate.next(now)), (Next::Through(0), Next::Through(1)));
        gate.join(now, 10, load(2, 0));
        assert_eq!(gate.next(now), Next::Nobody);
        gate.done(&load(1, 0), 0);
        assert_eq!(gate.next(now), Next::Through(10));
        assert_eq!(gate.demand(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_share_of_nothing_lets_nobody_through_until_it_is_more() {
        let (mut gate, now) = gate(at_most(0));
        gate.join(now, 0, load(1, 0));
        assert_eq!((gate.next(now), gate.demand()), (Next::Nobody, 1));
        gate.limit(now, RateLimits { requests_per_minute: Some(0), ..RateLimits::default() }, BTreeMap::new());
        assert_eq!(gate.next(now), Next::At(now + NOTHING));
        assert_eq!(gate.next(now + NOTHING), Next::At(now + 2 * NOTHING));
        gate.limit(now, at_most(1), BTreeMap::new());
        assert_eq!(gate.next(now), Next::Through(0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_model_at_its_limit_holds_up_its_own_calls_and_the_endpoint_those_of_all() {
        let (mut gate, now) = gate(at_most(3));
        gate.limit(now, at_most(3), BTreeMap::from([("a*".into(), at_most(1))]));
        for ticket in 0..3 {
            gate.join(now, ticket, of("a*"));
        }
        for ticket in 3..6 {
            gate.join(now, ticket, Load { account: 2, ..load(2, 0) });
        }
        assert_eq!(gate.next(now), Next::Through(0));
        assert_eq!((gate.next(now), gate.next(now)), (Next::Through(3), Next::Through(4)));
        assert_eq!(gate.next(now), Next::Nobody, "the endpoint bears three");
        assert_eq!((gate.demand(), gate.demands()), (6, BTreeMap::from([("a*".to_owned(), 3)])));
        gate.done(&load(2, 0), 0);
        assert_eq!(gate.next(now), Next::Through(5));
        gate.done(&of("a*"), 0);
        assert_eq!((gate.next(now), gate.next(now)), (Next::Through(1), Next::Nobody));
        gate.limit(now, RateLimits::default(), BTreeMap::new());
        assert_eq!(gate.next(now), Next::Through(2), "what is named no more has no limit");
    }

    #[tokio::test(start_paused = true)]
    async fn a_smaller_limit_is_kept_only_when_what_had_begun_is_over() {
        let (mut gate, now) = gate(at_most(2));
        gate.join(now, 0, of("a"));
        gate.join(now, 1, of("a"));
        assert_eq!((gate.next(now), gate.next(now)), (Next::Through(0), Next::Through(1)));
        assert!(gate.is_within());
        for (whole, model) in [(1, 2), (2, 1)] {
            gate.limit(now, at_most(whole), BTreeMap::from([("a".into(), at_most(model))]));
            assert!(!gate.is_within(), "{whole} and {model}");
        }
        gate.done(&of("a"), 0);
        assert!(gate.is_within());
    }

    #[tokio::test(start_paused = true)]
    async fn a_vendors_word_to_a_model_with_limits_of_its_own_holds_that_one_alone() {
        let (mut gate, now) = gate(RateLimits::default());
        gate.limit(now, RateLimits::default(), BTreeMap::from([("a".into(), at_most(9))]));
        let later = now + Duration::from_secs(5);
        gate.hold_until(later, Some("a"));
        gate.join(now, 0, of("a"));
        gate.join(now, 1, load(1, 0));
        assert_eq!((gate.next(now), gate.next(now)), (Next::Through(1), Next::At(later)));
        assert_eq!(gate.next(later), Next::Through(0));
    }

    #[tokio::test(start_paused = true)]
    async fn rates_are_kept_over_time_and_corrected_by_what_was_used() {
        let (mut gate, start) = gate(RateLimits { tokens_per_minute: Some(6_000), ..RateLimits::default() });
        gate.join(start, 0, load(1, 900));
        gate.join(start, 1, load(1, 900));
        assert_eq!(gate.next(start), Next::Through(0));
        let Next::At(then) = gate.next(start) else { panic!("the bucket holds 1,000 tokens") };
        assert_eq!(then, start + Duration::from_secs(8));
        gate.done(&load(1, 900), 100);
        assert_eq!(gate.next(start), Next::Through(1), "it used 100 of 900");
    }

    #[tokio::test(start_paused = true)]
    async fn a_vendors_word_holds_all_but_a_probe() {
        let (mut gate, now) = gate(RateLimits::default());
        let later = now + Duration::from_secs(5);
        gate.hold_until(later, None);
        gate.join(now, 0, load(1, 0));
        assert_eq!(gate.next(now), Next::At(later));
        gate.join(now, 1, Load { probe: true, ..load(1, 0) });
        assert_eq!(gate.next(now), Next::Through(1));
        assert_eq!(gate.next(later), Next::Through(0));
    }

    proptest! {
        /// In any minute no more calls get through than the rate and one burst, be it the endpoint's
        /// or that of one of its models.
        #[test]
        fn no_minute_sees_more_than_its_rate(rate in 1_u32..200, of_a_model: bool, steps in proptest::collection::vec(0_u64..3_000, 1..200)) {
            let start = Instant::now();
            let mut gate = Gate::new(start);
            let limits = RateLimits { requests_per_minute: Some(rate), ..RateLimits::default() };
            let model: Option<Arc<str>> = of_a_model.then(|| "a".into());
            match &model {
                Some(model) => gate.limit(start, RateLimits::default(), BTreeMap::from([(Arc::clone(model), limits)])),
                None => gate.limit(start, limits, BTreeMap::new()),
            }
            let (mut now, mut through, mut ticket) = (start, Vec::new(), 0);
            for step in steps {
                now += Duration::from_millis(step);
                for _ in 0..20 {
                    gate.join(now, ticket, Load { model: model.clone(), ..load(ticket % 3, 0) });
                    ticket += 1;
                }
                while let Next::Through(_) = gate.next(now) {
                    through.push(now);
                }
            }
            for first in &through {
                let within = through.iter().filter(|at| **at >= *first && **at < *first + Duration::from_secs(60)).count();
                prop_assert!(within as f64 <= f64::from(rate) * (1.0 + BURST) + 2.0, "{within} of {rate}");
            }
        }
    }
}
