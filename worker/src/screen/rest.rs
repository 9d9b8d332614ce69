//! The rest rule: when a screen counts as having come to rest after input.
//!
//! Pure: time and changes are arguments. The screen is at rest when no pixel has changed
//! for a while; if none has changed since the input at all, a little longer is waited for
//! the first reaction. A screen that is still because a program has not been given the
//! processor yet is not at rest: as long as something inside works, it is waited for a
//! while longer. A screen that never rests (a film, a game) is taken as it is at the limit,
//! and a program that works on without showing anything at a limit of its own. The
//! pointer's own picture does not count as a change.

use std::time::{Duration, Instant};

/// How long is waited for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestRule {
    /// The screen rests when nothing has changed for this long.
    pub quiet: Duration,
    /// How long a first change is waited for.
    pub first_change: Duration,
    /// How long a screen that shows no change is waited for while something inside works.
    pub working: Duration,
    /// It rests only when nothing was found at work for this long: a program that starts
    /// works in bursts, between which it waits for its files.
    pub idle: Duration,
    /// The longest wait in all.
    pub limit: Duration,
    /// The shortest time between two looks, so that a busy screen costs little.
    pub interval: Duration,
}

impl RestRule {
    /// The rule between the agent's actions and the observation. A button that is pressed by
    /// the keyboard acts a quarter of a second after it was drawn as pressed (GTK), and
    /// submenus open after as long; a caret blinks every half second or slower. The quiet time
    /// lies between.
    pub const STEP: Self = Self {
        quiet: Duration::from_millis(300),
        first_change: Duration::from_millis(350),
        working: Duration::from_millis(1500),
        idle: Duration::from_millis(75),
        limit: Duration::from_millis(2000),
        interval: Duration::from_millis(25),
    };

    /// The rule between two actions of one step, where a dialog must have come up before
    /// the text for it is typed.
    pub const BETWEEN: Self = Self {
        quiet: Duration::from_millis(300),
        first_change: Duration::from_millis(200),
        working: Duration::from_millis(1500),
        idle: Duration::from_millis(75),
        limit: Duration::from_millis(1500),
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
    /// The last look that found something at work although the screen was still.
    last_work: Option<Instant>,
}

impl Waiting {
    /// Starts to wait.
    pub(super) const fn new(rule: RestRule, start: Instant) -> Self {
        Self { rule, start, last_change: None, last_work: None }
    }

    /// A look at the screen found that it had changed since the look before.
    pub(super) const fn changed(&mut self, now: Instant) {
        self.last_change = Some(now);
    }

    /// Something inside was found at work.
    pub(super) const fn worked(&mut self, now: Instant) {
        self.last_work = Some(now);
    }

    /// When the screen has been still for long enough, whatever works inside.
    fn still_at(&self) -> Instant {
        self.last_change.map_or_else(|| self.start + self.rule.first_change, |changed| changed + self.rule.quiet)
    }

    /// Whether it matters now if something works inside: the screen is still and about to
    /// count as at rest, and patience is not over.
    pub(super) fn minds_work(&self, now: Instant) -> bool {
        now + self.rule.idle >= self.still_at() && now < self.last_change.unwrap_or(self.start) + self.rule.working
    }

    /// What to do at `now`.
    pub(super) fn decide(&self, now: Instant) -> Next {
        let still_at = self.still_at();
        let rest_at = self.last_work.map_or(still_at, |worked| still_at.max(worked + self.rule.idle));
        let end = self.start + self.rule.limit;
        let waited = now.saturating_duration_since(self.start);
        if now >= rest_at {
            Next::Over(Rest { rested: true, waited })
        } else if now >= end {
            Next::Over(Rest { rested: false, waited })
        } else {
            // While it matters what works inside, that is looked at as often as the screen.
            let until_it_matters = still_at.saturating_duration_since(now).saturating_sub(self.rule.idle);
            let next = if self.minds_work(now) {
                now + self.rule.interval
            } else if until_it_matters > Duration::ZERO {
                now + until_it_matters
            } else {
                rest_at
            };
            Next::Until(next.min(rest_at).min(end))
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
        assert_eq!(waiting.decide(start), Next::Until(start + millis(275)));
        assert_eq!(waiting.decide(start + millis(275)), Next::Until(start + millis(300)));
        let over = Next::Over(Rest { rested: true, waited: millis(350) });
        assert_eq!(waiting.decide(start + millis(350)), over);
    }

    #[test]
    fn each_change_starts_the_quiet_time_again() {
        let start = Instant::now();
        let mut waiting = Waiting::new(RULE, start);
        waiting.changed(start + millis(20));
        assert_eq!(waiting.decide(start + millis(20)), Next::Until(start + millis(245)));
        waiting.changed(start + millis(310));
        assert_eq!(waiting.decide(start + millis(320)), Next::Until(start + millis(535)));
        let over = Next::Over(Rest { rested: true, waited: millis(610) });
        assert_eq!(waiting.decide(start + millis(610)), over);
    }

    #[test]
    fn a_still_screen_waits_for_what_works_inside_but_not_for_ever() {
        let start = Instant::now();
        let mut waiting = Waiting::new(RULE, start);
        assert!(!waiting.minds_work(start + millis(274)), "it may change yet");
        assert!(waiting.minds_work(start + millis(275)));
        waiting.worked(start + millis(340));
        assert_eq!(waiting.decide(start + millis(350)), Next::Until(start + millis(375)));
        assert_eq!(waiting.decide(start + millis(400)), Next::Until(start + millis(415)), "the last burst was at 340");
        waiting.worked(start + millis(414));
        let over = Next::Over(Rest { rested: true, waited: millis(489) });
        assert_eq!(waiting.decide(start + millis(489)), over);
        // What it showed in the end starts the quiet time again, and the patience with it.
        waiting.changed(start + millis(489));
        assert_eq!(waiting.decide(start + millis(489)), Next::Until(start + millis(714)));
        assert!(waiting.minds_work(start + millis(1988)));
        assert!(!waiting.minds_work(start + millis(1989)));
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
        waiting.changed(start + millis(1700));
        let over = Next::Over(Rest { rested: true, waited: millis(2000) });
        assert_eq!(waiting.decide(start + millis(2000)), over);
    }
}
