//! Stalls: steps that repeat the action before them and leave the screen as it was.

use longhaul_core::action::{self, Input};
use longhaul_core::budget::StallPolicy;
use longhaul_core::digest::Digest;
use longhaul_core::notes::StallNotes;
use serde_json::Value;

/// What is done about a stall.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Measure {
    /// Nothing.
    None,
    /// The agent is told.
    Tell(String),
    /// The episode ends.
    Stop,
}

/// One action, so that two spellings of the same are equal.
#[derive(Clone, Debug, PartialEq)]
enum Canonical {
    Inputs(Vec<Input>),
    /// What nobody can carry out is compared as it is written.
    Raw(Value),
}

/// What is known of an episode's steps so far.
#[derive(Clone, Debug)]
pub(crate) struct Stalls {
    policy: StallPolicy,
    last: Option<Vec<Canonical>>,
    screen: Digest,
    row: u32,
    notes: StallNotes,
}

impl Stalls {
    /// After the first observation.
    pub(crate) const fn new(policy: StallPolicy, screen: Digest) -> Self {
        Self { policy, last: None, screen, row: 0, notes: StallNotes { steps: 0, longest: 0 } }
    }

    /// Counts anew from another screen; what was counted stays.
    pub(crate) fn begin_again(&mut self, screen: Digest) {
        self.last = None;
        self.screen = screen;
        self.row = 0;
    }

    /// Counts a step: its actions, and the screen after it.
    pub(crate) fn step(&mut self, actions: &[Value], screen: Digest) -> Measure {
        let actions: Vec<Canonical> = actions
            .iter()
            .map(|action| action::parse(action).map_or_else(|_| Canonical::Raw(action.clone()), Canonical::Inputs))
            .collect();
        let repeats = self.last.as_ref() == Some(&actions) && self.screen == screen;
        self.last = Some(actions);
        self.screen = screen;
        if !repeats {
            self.row = 0;
            return Measure::None;
        }
        self.row = self.row.saturating_add(1);
        self.notes.steps = self.notes.steps.saturating_add(1);
        self.notes.longest = self.notes.longest.max(self.row);
        match self.policy {
            StallPolicy::Nudge { after } if self.row.is_multiple_of(after.max(1)) => Measure::Tell(format!(
                "Your last {} steps repeated the same action, and the screen did not change. Try something else.",
                self.row
            )),
            StallPolicy::Stop { after } if self.row >= after.max(1) => Measure::Stop,
            _ => Measure::None,
        }
    }

    /// The counts so far.
    pub(crate) const fn notes(&self) -> StallNotes {
        self.notes
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn digest(name: &str) -> Digest {
        Digest::of(name.as_bytes())
    }

    /// Steps as (key, screen).
    fn run(policy: StallPolicy, steps: &[(&str, &str)]) -> (Vec<Measure>, StallNotes) {
        let mut stalls = Stalls::new(policy, digest("first"));
        let measures =
            steps.iter().map(|(key, screen)| stalls.step(&[json!({"keyboard": {"keys": key}})], digest(screen)));
        (measures.collect(), stalls.notes())
    }

    #[test]
    fn only_the_same_action_on_the_same_screen_counts() {
        let steps = [("a", "1"), ("a", "1"), ("a", "1"), ("a", "2"), ("b", "2"), ("b", "2"), ("a", "2")];
        let (measures, notes) = run(StallPolicy::Report, &steps);
        assert_eq!(notes, StallNotes { steps: 3, longest: 2 });
        assert!(measures.iter().all(|measure| *measure == Measure::None));
    }

    #[test]
    fn two_spellings_of_one_action_are_the_same_and_nonsense_is_compared_as_it_is() {
        let mut stalls = Stalls::new(StallPolicy::Report, digest("s"));
        stalls.step(&[json!({"keyboard": {"keys": "ctrl+s"}})], digest("s"));
        stalls.step(&[json!({"keyboard": {"keys": ["ctrl", "s"]}})], digest("s"));
        assert_eq!(stalls.notes().steps, 1);
        stalls.step(&[json!({"jump": 1})], digest("s"));
        stalls.step(&[json!({"jump": 2})], digest("s"));
        stalls.step(&[json!({"jump": 2})], digest("s"));
        assert_eq!(stalls.notes().steps, 2);
    }

    #[test]
    fn policies_tell_each_time_anew_or_stop() {
        let steps = [("a", "1"); 6];
        let (measures, _) = run(StallPolicy::Nudge { after: 2 }, &steps);
        let told: Vec<bool> = measures.iter().map(|measure| matches!(measure, Measure::Tell(_))).collect();
        assert_eq!(told, [false, false, true, false, true, false]);
        let (measures, _) = run(StallPolicy::Stop { after: 3 }, &steps);
        assert_eq!(measures.iter().position(|measure| *measure == Measure::Stop), Some(3));
        // What repeats where something else is asked for is no stall.
        let mut stalls = Stalls::new(StallPolicy::Stop { after: 2 }, digest("1"));
        let mut press = || stalls.step(&[json!({"keyboard": {"keys": "a"}})], digest("1"));
        press();
        press();
        stalls.begin_again(digest("1"));
        let mut press = || stalls.step(&[json!({"keyboard": {"keys": "a"}})], digest("1"));
        assert_eq!((press(), press()), (Measure::None, Measure::None));
        assert_eq!(stalls.notes(), StallNotes { steps: 2, longest: 1 });
        // A policy that would stop at once is one that stops at the first.
        let (measures, _) = run(StallPolicy::Stop { after: 0 }, &steps);
        assert_eq!(measures[..2], [Measure::None, Measure::Stop]);
    }
}
