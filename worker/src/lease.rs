//! The lease clock: when a worker may act on its leases, by its own monotonic clock.
//!
//! Pure. A lease holds until the coordinator's time to live has passed since a message of
//! ours that it is known to have received: for a renewal, the heartbeat that it answers;
//! for a new lease, the last message that it had answered before. Both were *sent* before
//! the coordinator started to count, so the worker's end is never later than the
//! coordinator's, however long a message was under way.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_proto::convert::LeaseRef;

/// A point of the worker's monotonic clock: the time since some fixed moment.
pub type Moment = Duration;

/// Whether an attempt may act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Until this moment, if it is not renewed.
    Held {
        /// When the lease ends.
        until: Moment,
    },
    /// The time is over: the attempt is parked until a renewal, or a newer epoch, is heard of.
    Over,
    /// No such lease.
    Unknown,
}

/// The leases of one worker and when each ends.
#[derive(Debug, Default)]
pub struct LeaseClock {
    ttl: Duration,
    /// When the message was sent that the coordinator answered last.
    heard: Moment,
    leases: BTreeMap<LeaseRef, Moment>,
    /// Heartbeats of this session without an answer yet, by number, with when each was sent.
    sent: BTreeMap<u64, Moment>,
}

/// Only so many heartbeats are remembered: one that is not answered after so many others
/// is worth nothing any more.
const REMEMBERED: usize = 256;

impl LeaseClock {
    /// A clock without leases.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A new session was welcomed: its Hello was sent at `hello_sent`. Heartbeats of earlier
    /// sessions are answered no more. `kept` are the leases that Hello named and the
    /// coordinator did not call stale: the welcome renews them.
    pub fn welcomed(&mut self, hello_sent: Moment, ttl: Duration, kept: &BTreeSet<LeaseRef>) {
        self.ttl = ttl;
        self.sent.clear();
        self.heard = self.heard.max(hello_sent);
        for lease in kept {
            self.extend(*lease, hello_sent);
        }
    }

    /// A heartbeat goes out.
    pub fn heartbeat_sent(&mut self, sequence: u64, now: Moment) {
        self.sent.insert(sequence, now);
        while self.sent.len() > REMEMBERED {
            self.sent.pop_first();
        }
    }

    /// A heartbeat was answered. An answer to a heartbeat that was not sent in this session
    /// renews nothing.
    pub fn heartbeat_answered(&mut self, sequence: u64, renewed: impl IntoIterator<Item = LeaseRef>) {
        let Some(sent) = self.sent.remove(&sequence) else { return };
        self.heard = self.heard.max(sent);
        for lease in renewed {
            self.extend(lease, sent);
        }
    }

    /// A lease came.
    pub fn granted(&mut self, lease: LeaseRef) {
        self.leases.insert(lease, self.heard + self.ttl);
    }

    /// The attempt is over, or not this worker's any more.
    pub fn dropped(&mut self, lease: &LeaseRef) {
        self.leases.remove(lease);
    }

    /// Whether the attempt may act at `now`.
    #[must_use]
    pub fn standing(&self, lease: &LeaseRef, now: Moment) -> Standing {
        match self.leases.get(lease) {
            None => Standing::Unknown,
            Some(until) if now < *until => Standing::Held { until: *until },
            Some(_) => Standing::Over,
        }
    }

    /// The leases, over or not.
    pub fn leases(&self) -> impl Iterator<Item = &LeaseRef> {
        self.leases.keys()
    }

    /// When the next lease that still holds at `now` ends.
    #[must_use]
    pub fn next_end(&self, now: Moment) -> Option<Moment> {
        self.leases.values().copied().filter(|until| *until > now).min()
    }

    fn extend(&mut self, lease: LeaseRef, sent: Moment) {
        if let Some(until) = self.leases.get_mut(&lease) {
            *until = (*until).max(sent + self.ttl);
        }
    }
}

#[cfg(test)]
mod tests {
    use longhaul_core::ids::{AttemptId, EpisodeId, Epoch, RunId};
    use longhaul_core::time::Timestamp;

    use super::*;

    fn lease(index: u32) -> LeaseRef {
        let run = RunId::new(Timestamp(1), 1);
        LeaseRef { attempt: AttemptId { episode: EpisodeId { run, index }, number: 1 }, epoch: Epoch(7) }
    }

    const fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn clock_with_one_lease() -> LeaseClock {
        let mut clock = LeaseClock::new();
        clock.welcomed(secs(10), secs(30), &BTreeSet::new());
        clock.granted(lease(0));
        clock
    }

    #[test]
    fn a_new_lease_counts_from_the_last_message_that_was_answered() {
        let clock = clock_with_one_lease();
        assert_eq!(clock.standing(&lease(0), secs(39)), Standing::Held { until: secs(40) });
        assert_eq!(clock.standing(&lease(0), secs(40)), Standing::Over);
        assert_eq!(clock.standing(&lease(1), secs(11)), Standing::Unknown);
    }

    #[test]
    fn a_renewal_counts_from_when_the_heartbeat_was_sent_not_from_its_answer() {
        let mut clock = clock_with_one_lease();
        clock.heartbeat_sent(1, secs(20));
        assert_eq!(clock.standing(&lease(0), secs(41)), Standing::Over, "sent is not renewed");
        clock.heartbeat_answered(1, [lease(0)]);
        assert_eq!(clock.standing(&lease(0), secs(49)), Standing::Held { until: secs(50) });
        assert_eq!(clock.standing(&lease(0), secs(50)), Standing::Over);
    }

    #[test]
    fn answers_that_are_late_repeated_or_of_another_session_shorten_and_renew_nothing() {
        let mut clock = clock_with_one_lease();
        clock.heartbeat_sent(1, secs(15));
        clock.heartbeat_sent(2, secs(20));
        clock.heartbeat_answered(2, [lease(0)]);
        clock.heartbeat_answered(1, [lease(0)]);
        clock.heartbeat_answered(2, [lease(0)]);
        clock.heartbeat_answered(9, [lease(0)]);
        assert_eq!(clock.next_end(secs(21)), Some(secs(50)));
        clock.heartbeat_sent(3, secs(45));
        clock.welcomed(secs(46), secs(30), &BTreeSet::new());
        clock.heartbeat_answered(3, [lease(0)]);
        assert_eq!(clock.standing(&lease(0), secs(50)), Standing::Over, "that heartbeat went to a lost session");
    }

    #[test]
    fn a_welcome_renews_what_hello_named_and_a_dropped_lease_stays_dropped() {
        let mut clock = clock_with_one_lease();
        clock.granted(lease(1));
        clock.welcomed(secs(60), secs(30), &BTreeSet::from([lease(0)]));
        assert_eq!(clock.standing(&lease(0), secs(89)), Standing::Held { until: secs(90) });
        assert_eq!(clock.standing(&lease(1), secs(61)), Standing::Over);
        clock.dropped(&lease(0));
        clock.heartbeat_sent(1, secs(61));
        clock.heartbeat_answered(1, [lease(0)]);
        assert_eq!(clock.standing(&lease(0), secs(62)), Standing::Unknown);
    }
}
