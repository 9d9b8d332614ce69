//! The rest rule: when a screen counts as having come to rest after input.
//!
//! Pure: time and changes are arguments. The screen is at rest when no pixel has changed
//! for a while; if none has changed since the input at all, a little longer is waited for
//! the first reaction. A screen that never rests (a film, a game) is taken as it is at the
//! limit. The pointer's own picture does not count as a change.

use std::time::{Duration, Instant};

/// How long is waited for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestRule {
    /// The screen rests when nothing has changed for this long.
    pub quiet: Duration,
    /// How long a first change is waited for.
    pub first_change: Duration,
    /// The longest wait in all.
    pub limit: Duration,
    /// The shortest time between two looks, so that a busy screen costs little.
    pub interval: Duration,
}

impl RestRule {
    /// The rule between the agent's actions and the observation.
    pub const STEP: Self = Self {
        quiet: Duration::from_millis(150),
        first_change: Duration::from_millis(300),
        limit: Duration::from_millis(2000),
        interval: Duration::from_millis(25),
    };

    /// The rule between two actions of one step, where a dialog must have come up before
    /// the text for it is typed.
    pub const BETWEEN: Self = Self {
        quiet: Duration::from_millis(100),
        first_change: Duration::from_millis(150),
        limit: Duration::from_millis(1000),
        interval: Duration::from_millis(25),
    };
}

/// What the wait came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rest {
    /// Whether the screen came to rest before the limit.
    pub rested: bool,
    /// How long it was waited for.
    pub waited: Duration,
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Wait until then, or until something is known to have changed.
    Until(Instant),
    /// The wait is over.
    Over(Rest),
}

/// One wait for the screen to rest.
#[derive(Debug)]
pub(super) struct Waiting {
    rule: RestRule,
    start: Instant,
    last_change: Option<Instant>,
}

impl Waiting {
    /// Starts to wait.
    pub(super) const fn new(rule: RestRule, start: Instant) -> Self {
        Self { rule, start, last_change: None }
    }

    /// A look at the screen found that it had changed since the look before.
    pub(super) const fn changed(&mut self, now: Instant) {
        self.last_change = Some(now);
    }

    /// What to do at `now`.
    pub(super) fn decide(&self, now: Instant) -> Next {
        let rest_at =
            self.last_change.map_or_else(|| self.start + self.rule.first_change, |changed| changed + self.rule.quiet);
        let end = self.start + self.rule.limit;
        let waited = now.saturating_duration_since(self.start);
        if now >= rest_at {
            Next::Over(Rest { rested: true, waited })
        } else if now >= end {
            Next::Over(Rest { rested: false, waited })
        } else {
            Next::Until(rest_at.min(end))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: RestRule = RestRule::STEP;

    fn millis(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn a_screen_that_never_changes_rests_after_the_time_for_a_first_change() {
        let start = Instant::now();
        let waiting = Waiting::new(RULE, start);
        assert_eq!(waiting.decide(start), Next::Until(start + millis(300)));
        let over = Next::Over(Rest { rested: true, waited: millis(300) });
        assert_eq!(waiting.decide(start + millis(300)), over);
    }

    #[test]
    fn each_change_starts_the_quiet_time_again() {
        let start = Instant::now();
        let mut waiting = Waiting::new(RULE, start);
        waiting.changed(start + millis(20));
        assert_eq!(waiting.decide(start + millis(20)), Next::Until(start + millis(170)));
        waiting.changed(start + millis(160));
        assert_eq!(waiting.decide(start + millis(170)), Next::Until(start + millis(310)));
        let over = Next::Over(Rest { rested: true, waited: millis(310) });
        assert_eq!(waiting.decide(start + millis(310)), over);
    }

    #[test]
    fn a_film_is_taken_as_it_is_at_the_limit() {
        let start = Instant::now();
        let mut waiting = Waiting::new(RULE, start);
        for at in (0..2000).step_by(50) {
            waiting.changed(start + millis(at));
            assert!(matches!(waiting.decide(start + millis(at)), Next::Until(_)));
        }
        waiting.changed(start + millis(1999));
        assert_eq!(waiting.decide(start + millis(1999)), Next::Until(start + millis(2000)));
        let over = Next::Over(Rest { rested: false, waited: millis(2000) });
        assert_eq!(waiting.decide(start + millis(2000)), over);
    }

    #[test]
    fn rest_that_is_due_at_the_limit_is_rest() {
        let start = Instant::now();
        let mut waiting = Waiting::new(RULE, start);
        waiting.changed(start + millis(1850));
        let over = Next::Over(Rest { rested: true, waited: millis(2000) });
        assert_eq!(waiting.decide(start + millis(2000)), over);
    }
}
