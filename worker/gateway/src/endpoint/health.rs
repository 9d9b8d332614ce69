//! Whether an endpoint answers: up, or down and tried by one call at a time. Pure.

use std::time::Duration;

use tokio::time::Instant;

/// So many failures in a row, over so long, make an endpoint down.
const FAILURES: u32 = 3;
const FAILING_FOR: Duration = Duration::from_secs(10);

/// How an endpoint is.
#[derive(Clone, Debug)]
pub(crate) enum Health {
    /// It answers, as far as is known.
    Up {
        /// Failures since it last answered.
        failures: u32,
        /// When the first of them was.
        first: Option<Instant>,
    },
    /// It does not.
    Down {
        /// Since when.
        since: Instant,
        /// Why.
        why: String,
        /// Whether it was seen here, and not only heard of.
        seen: bool,
        /// When it may be tried next.
        next: Instant,
        /// The wait after another failure.
        wait: Duration,
        /// Whether somebody tries it now.
        probing: bool,
    },
}

impl Default for Health {
    fn default() -> Self {
        Self::Up { failures: 0, first: None }
    }
}

/// How long to wait between tries of an endpoint that is down.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waits {
    /// At first.
    pub(crate) first: Duration,
    /// At most.
    pub(crate) most: Duration,
}

impl Health {
    /// Whether it is down.
    pub(crate) const fn is_down(&self) -> bool {
        matches!(self, Self::Down { .. })
    }

    /// It answered.
    pub(crate) fn answered(&mut self) {
        *self = Self::default();
    }

    /// A call of it failed. `last` says that nothing else is to be tried: the call has used up
    /// its retries, and no other call was answered meanwhile.
    pub(crate) fn failed(&mut self, now: Instant, why: &str, last: bool, waits: Waits) {
        match self {
            Self::Up { failures, first } => {
                *failures += 1;
                let first = *first.get_or_insert(now);
                if last || (*failures >= FAILURES && now.saturating_duration_since(first) >= FAILING_FOR) {
                    *self = Self::Down {
                        since: first,
                        why: why.to_owned(),
                        seen: true,
                        next: now + waits.first,
                        wait: next_wait(waits.first, waits),
                        probing: false,
                    };
                }
            }
            Self::Down { why: reason, seen, next, wait, .. } => {
                why.clone_into(reason);
                *seen = true;
                *next = now + *wait;
                *wait = next_wait(*wait, waits);
            }
        }
    }

    /// Others say that it is down, or that it is up again.
    pub(crate) fn heard(&mut self, now: Instant, down: bool, waits: Waits) {
        match (&mut *self, down) {
            (Self::Up { .. }, true) => {
                *self = Self::Down {
                    since: now,
                    why: "other workers get no answer".to_owned(),
                    seen: false,
                    next: now + waits.first,
                    wait: next_wait(waits.first, waits),
                    probing: false,
                };
            }
            (Self::Down { seen: false, .. }, false) => *self = Self::default(),
            // What was seen here is tried here: but now, since somebody got an answer.
            (down, false) => down.moved(now, waits),
            (Self::Down { .. }, true) => {}
        }
    }

    /// It may be somewhere else now: it is tried at once if it is down.
    pub(crate) fn moved(&mut self, now: Instant, waits: Waits) {
        if let Self::Down { next, wait, .. } = self {
            *next = now.min(*next);
            *wait = waits.first;
        }
    }

    /// Takes the turn to try it, if it is down and nobody else has the turn. Otherwise when that
    /// can be asked again.
    pub(crate) fn probe(&mut self, now: Instant) -> Result<(), Option<Instant>> {
        match self {
            Self::Down { next, probing, .. } if !*probing && now >= *next => {
                *probing = true;
                Ok(())
            }
            Self::Down { next, probing: false, .. } => Err(Some(*next)),
            Self::Down { .. } | Self::Up { .. } => Err(None),
        }
    }

    /// The one that had the turn is done, however it went.
    pub(crate) const fn probed(&mut self) {
        if let Self::Down { probing, .. } = self {
            *probing = false;
        }
    }
}

fn next_wait(wait: Duration, waits: Waits) -> Duration {
    wait.saturating_mul(2).min(waits.most.max(waits.first))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAITS: Waits = Waits { first: Duration::from_secs(1), most: Duration::from_secs(4) };

    #[tokio::test(start_paused = true)]
    async fn one_at_a_time_tries_what_is_down_and_ever_more_seldom() {
        let start = Instant::now();
        let at = |secs: u64| start + Duration::from_secs(secs);
        let mut health = Health::default();
        health.failed(at(0), "a", false, WAITS);
        health.failed(at(1), "b", false, WAITS);
        assert!(!health.is_down());
        health.answered();
        for secs in [2, 3, 4] {
            health.failed(at(secs), "c", false, WAITS);
        }
        assert!(!health.is_down(), "three failures within two seconds may be one hiccup");
        health.failed(at(12), "d", false, WAITS);
        assert!(health.is_down());
        assert_eq!(health.probe(at(12)), Err(Some(at(13))));
        assert_eq!(health.probe(at(13)), Ok(()));
        assert_eq!(health.probe(at(14)), Err(None), "another one has the turn");
        health.failed(at(14), "e", false, WAITS);
        health.probed();
        assert_eq!(health.probe(at(15)), Err(Some(at(16))));
        assert_eq!(health.probe(at(16)), Ok(()));
        health.failed(at(16), "f", false, WAITS);
        health.probed();
        assert_eq!(health.probe(at(17)), Err(Some(at(20))));
        health.answered();
        assert!(!health.is_down());
    }

    #[tokio::test(start_paused = true)]
    async fn what_others_say_is_believed_until_they_say_otherwise() {
        let now = Instant::now();
        let mut health = Health::default();
        health.heard(now, true, WAITS);
        assert!(matches!(health, Health::Down { seen: false, .. }));
        health.heard(now, false, WAITS);
        assert!(!health.is_down());
        health.failed(now, "seen here", true, WAITS);
        health.heard(now, false, WAITS);
        assert!(health.is_down(), "what was seen here is tried here");
        assert_eq!(health.probe(now), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_down_is_tried_at_once_when_it_may_be_elsewhere() {
        let now = Instant::now();
        let mut health = Health::default();
        health.moved(now, WAITS);
        assert!(!health.is_down());
        health.failed(now, "nobody there", true, WAITS);
        health.failed(now, "nobody there", true, WAITS);
        assert_eq!(health.probe(now), Err(Some(now + Duration::from_secs(2))));
        health.moved(now, WAITS);
        assert_eq!(health.probe(now), Ok(()));
    }
}
