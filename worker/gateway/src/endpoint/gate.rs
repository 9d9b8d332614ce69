//! Who may call an endpoint now: limits on calls in flight and on rates, fair among attempts. Pure.

use std::collections::HashMap;
use std::time::Duration;

use longhaul_core::endpoint::RateLimits;
use tokio::time::Instant;

/// Rates may be used up in bursts of this much of a minute.
const BURST: f64 = 1.0 / 6.0;

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
        let lacking = amount.min(capacity(per_minute)) - self.level;
        if lacking <= 0.0 {
            return now;
        }
        // A limit of nothing lets nothing through: asked again now and then.
        let wait = Duration::try_from_secs_f64(lacking * 60.0 / per_minute).unwrap_or(Duration::from_secs(60));
        now + wait.max(Duration::from_millis(1))
    }
}

fn capacity(per_minute: f64) -> f64 {
    (per_minute * BURST).max(1.0)
}

/// A call that waits.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    ticket: u64,
    account: u64,
    tokens: u64,
    /// It tries an endpoint that is down: nothing holds it but the limit on calls in flight.
    probe: bool,
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
    limits: RateLimits,
    in_flight: u32,
    /// Calls in flight by attempt.
    by_account: HashMap<u64, u32>,
    requests: Bucket,
    tokens: Bucket,
    hold: Option<Instant>,
    queue: Vec<Waiter>,
}

impl Gate {
    /// An open gate.
    pub(crate) fn new(now: Instant) -> Self {
        // Full at first, whatever the limits are going to be.
        let bucket = Bucket { level: f64::MAX, at: now };
        Self {
            limits: RateLimits::default(),
            in_flight: 0,
            by_account: HashMap::new(),
            requests: bucket,
            tokens: bucket,
            hold: None,
            queue: Vec::new(),
        }
    }

    /// Limits from now on.
    pub(crate) const fn limit(&mut self, limits: RateLimits) {
        self.limits = limits;
    }

    /// Calls that wait or are in flight.
    pub(crate) fn demand(&self) -> u32 {
        self.in_flight.saturating_add(u32::try_from(self.queue.len()).unwrap_or(u32::MAX))
    }

    /// Nobody gets through before that time: the vendor said so.
    pub(crate) fn hold_until(&mut self, until: Instant) {
        self.hold = self.hold.max(Some(until));
    }

    /// Joins the queue.
    pub(crate) fn join(&mut self, ticket: u64, account: u64, tokens: u64, probe: bool) {
        self.queue.push(Waiter { ticket, account, tokens, probe });
    }

    /// Leaves the queue.
    pub(crate) fn leave(&mut self, ticket: u64) {
        self.queue.retain(|waiter| waiter.ticket != ticket);
    }

    /// Who is next: of the attempts that wait, the one with the fewest calls in flight, and of
    /// its calls the oldest.
    pub(crate) fn next(&mut self, now: Instant) -> Next {
        let flying = |waiter: &Waiter| self.by_account.get(&waiter.account).copied().unwrap_or_default();
        let first = self.queue.iter().min_by_key(|waiter| (!waiter.probe, flying(waiter), waiter.ticket));
        let Some(first) = first.copied() else { return Next::Nobody };
        if self.limits.concurrent.is_some_and(|most| self.in_flight >= most.max(1)) {
            return Next::Nobody;
        }
        let rates = [
            (&mut self.requests, self.limits.requests_per_minute.map(f64::from), 1.0),
            #[expect(clippy::cast_precision_loss, reason = "a rate of tokens is no sum of money")]
            (&mut self.tokens, self.limits.tokens_per_minute.map(|rate| rate as f64), first.tokens as f64),
        ];
        let mut ready = self.hold.filter(|_| !first.probe).unwrap_or(now).max(now);
        for (bucket, rate, amount) in rates {
            if let Some(rate) = rate {
                bucket.refill(now, rate);
                ready = ready.max(bucket.enough_at(now, amount, rate));
            }
        }
        if ready > now {
            return Next::At(ready);
        }
        self.leave(first.ticket);
        self.in_flight += 1;
        *self.by_account.entry(first.account).or_default() += 1;
        self.requests.level -= 1.0;
        self.charge(first.tokens, 0);
        Next::Through(first.ticket)
    }

    /// A call is over, that was let through for `guessed` tokens and used `used`.
    pub(crate) fn done(&mut self, account: u64, guessed: u64, used: u64) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if let Some(flying) = self.by_account.get_mut(&account) {
            *flying = flying.saturating_sub(1);
            if *flying == 0 {
                self.by_account.remove(&account);
            }
        }
        self.charge(used, guessed);
    }

    #[expect(clippy::cast_precision_loss, reason = "a rate of tokens is no sum of money")]
    fn charge(&mut self, more: u64, less: u64) {
        self.tokens.level -= more as f64 - less as f64;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn gate(limits: RateLimits) -> (Gate, Instant) {
        let now = Instant::now();
        let mut gate = Gate::new(now);
        gate.limit(limits);
        (gate, now)
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_with_many_calls_does_not_hold_up_one_with_few() {
        let (mut gate, now) = gate(RateLimits { concurrent: Some(2), ..RateLimits::default() });
        for ticket in 0..10 {
            gate.join(ticket, 1, 0, false);
        }
        assert_eq!((gate.next(now), gate.next(now)), (Next::Through(0), Next::Through(1)));
        gate.join(10, 2, 0, false);
        assert_eq!(gate.next(now), Next::Nobody);
        gate.done(1, 0, 0);
        assert_eq!(gate.next(now), Next::Through(10));
        assert_eq!(gate.demand(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn rates_are_kept_over_time_and_corrected_by_what_was_used() {
        let (mut gate, start) = gate(RateLimits { tokens_per_minute: Some(6_000), ..RateLimits::default() });
        gate.join(0, 1, 900, false);
        gate.join(1, 1, 900, false);
        assert_eq!(gate.next(start), Next::Through(0));
        let Next::At(then) = gate.next(start) else { panic!("the bucket holds 1,000 tokens") };
        assert_eq!(then, start + Duration::from_secs(8));
        gate.done(1, 900, 100);
        assert_eq!(gate.next(start), Next::Through(1), "it used 100 of 900");
    }

    #[tokio::test(start_paused = true)]
    async fn a_vendors_word_holds_all_but_a_probe() {
        let (mut gate, now) = gate(RateLimits::default());
        let later = now + Duration::from_secs(5);
        gate.hold_until(later);
        gate.join(0, 1, 0, false);
        assert_eq!(gate.next(now), Next::At(later));
        gate.join(1, 1, 0, true);
        assert_eq!(gate.next(now), Next::Through(1));
        assert_eq!(gate.next(later), Next::Through(0));
    }

    proptest! {
        /// In any minute no more calls get through than the rate and one burst.
        #[test]
        fn no_minute_sees_more_than_its_rate(rate in 1_u32..200, steps in proptest::collection::vec(0_u64..3_000, 1..200)) {
            let start = Instant::now();
            let mut gate = Gate::new(start);
            gate.limit(RateLimits { requests_per_minute: Some(rate), ..RateLimits::default() });
            let (mut now, mut through, mut ticket) = (start, Vec::new(), 0);
            for step in steps {
                now += Duration::from_millis(step);
                for _ in 0..20 {
                    gate.join(ticket, ticket % 3, 0, false);
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
