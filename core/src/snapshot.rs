//! Snapshots: the writable top of a sandbox, saved at a step, so that another attempt can begin
//! there without carrying out the steps before it.
//!
//! Files alone come back: what ran is started again, by the task's own `restart` hook. So a snapshot
//! is only taken where a task has one, and only used where the screen then shows what was recorded.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::money::Money;
use crate::time::Millis;

/// When tops are saved, and when they are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotPolicy {
    /// After so many steps since the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u32>,
    /// After so many dollars of model calls since the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spent: Option<Money>,
    /// Whether an attempt that goes on tries its snapshot before it replays from the start. Else it
    /// does so where a replay got nowhere.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub first: bool,
}

impl SnapshotPolicy {
    /// None are taken. What held for every run before it could be said.
    pub const OFF: Self = Self { steps: None, spent: None, first: false };

    /// Whether none are taken.
    #[must_use]
    pub const fn is_off(&self) -> bool {
        self.steps.is_none() && self.spent.is_none()
    }

    /// Whether one is due, so many steps and dollars after the last one.
    #[must_use]
    pub fn is_due(&self, steps: u32, spent: Money) -> bool {
        self.steps.is_some_and(|every| steps >= every) || self.spent.is_some_and(|every| steps > 0 && spent >= every)
    }
}

impl fmt::Display for SnapshotPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_off() {
            return f.write_str("off");
        }
        let steps = self.steps.map(|steps| format!("{steps} steps"));
        let spent = self.spent.map(|spent| spent.to_string());
        let first = self.first.then(|| "first".to_owned());
        let parts: Vec<String> = [steps, spent, first].into_iter().flatten().collect();
        f.write_str(&parts.join(", "))
    }
}

/// A text that is no policy of snapshots.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither `off` nor like `50 steps`, `$2`, `50 steps, $2, first`")]
pub struct ParseSnapshotsError(String);

impl FromStr for SnapshotPolicy {
    type Err = ParseSnapshotsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let refused = || ParseSnapshotsError(text.chars().take(80).collect());
        let mut policy = Self::OFF;
        if text.trim() == "off" {
            return Ok(policy);
        }
        for part in text.split(',').map(str::trim) {
            if part == "first" {
                policy.first = true;
            } else if let Some(count) = part.strip_suffix("steps").or_else(|| part.strip_suffix("step")) {
                let count = count.trim().parse().ok().filter(|count| *count > 0);
                policy.steps = Some(count.ok_or_else(refused)?);
            } else if let Some(dollars) = part.strip_prefix('$') {
                let dollars: Option<Money> = dollars.trim().parse().ok();
                policy.spent = Some(dollars.filter(|dollars| *dollars > Money::ZERO).ok_or_else(refused)?);
            } else {
                return Err(refused());
            }
        }
        if policy.is_off() { Err(refused()) } else { Ok(policy) }
    }
}

/// A snapshot, as the attempt that took it wrote it down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The step after which it was taken, with the screen at rest.
    pub step: u32,
    /// The contents of what the sandbox stood on, lowest first: over anything else it is worth nothing.
    pub layers: Vec<Digest>,
    /// The tops, lowest first, each the blob of a packed filesystem: those of an earlier snapshot that
    /// the sandbox had begun with, and its own.
    pub tops: Vec<Digest>,
    /// The size of its own, packed.
    pub bytes: u64,
    /// For how long the sandbox's processes were stopped.
    pub stopped: Millis,
}

/// What the logs that hold snapshots are called, up to the number of their step.
const SNAPSHOT: &str = "snapshot-step-";

/// The log that describes the snapshot of a step: it is written last.
#[must_use]
pub fn snapshot_log(step: u32) -> String {
    format!("{SNAPSHOT}{step:05}.json")
}

/// The log that holds the packed top of a step.
#[must_use]
pub fn top_log(step: u32) -> String {
    format!("{SNAPSHOT}{step:05}.sqsh")
}

/// The step of a snapshot, by the name of the log that describes it.
#[must_use]
pub fn snapshot_step(log: &str) -> Option<u32> {
    log.strip_prefix(SNAPSHOT)?.strip_suffix(".json")?.parse().ok()
}

/// Whether the attempt of this number tries a snapshot first, after the chain's last step was taken by
/// attempt `parent`: attempts between them that got no further take turns.
#[must_use]
pub const fn restores(policy: SnapshotPolicy, parent: u32, attempt: u32) -> bool {
    let between = attempt.saturating_sub(parent).saturating_sub(1);
    between.is_multiple_of(2) == policy.first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_read_as_it_is_shown() {
        for text in ["off", "50 steps", "$2.50", "10 steps, $1.00, first"] {
            let policy: SnapshotPolicy = text.parse().unwrap();
            assert_eq!(policy.to_string().parse(), Ok(policy), "{text}");
        }
        let policy: SnapshotPolicy = " 5 steps ,$0.10, first".parse().unwrap();
        let spent = Some("0.10".parse().unwrap());
        assert_eq!(policy, SnapshotPolicy { steps: Some(5), spent, first: true });
        for text in ["", "first", "0 steps", "$0", "$-1", "often", "5 steps; $2", "50", "steps"] {
            assert!(text.parse::<SnapshotPolicy>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn one_is_due_by_whichever_comes_first() {
        let policy: SnapshotPolicy = "10 steps, $1".parse().unwrap();
        let cents = |cents: u64| Money::from_nanos(cents * 10_000_000);
        assert!(!policy.is_due(9, cents(99)) && policy.is_due(10, cents(0)) && policy.is_due(1, cents(100)));
        assert!(!policy.is_due(0, cents(500)), "nothing was done since");
        assert!(!SnapshotPolicy::OFF.is_due(1_000_000, cents(1_000_000)));
    }

    #[test]
    fn the_two_ways_take_turns_until_one_gets_further() {
        let first = SnapshotPolicy { first: true, ..SnapshotPolicy::OFF };
        assert_eq!([2, 3, 4].map(|attempt| restores(first, 1, attempt)), [true, false, true]);
        assert_eq!([5, 6].map(|attempt| restores(SnapshotPolicy::OFF, 4, attempt)), [false, true]);
    }

    #[test]
    fn a_snapshot_is_found_by_its_name() {
        assert_eq!(snapshot_step(&snapshot_log(42)), Some(42));
        for other in [top_log(42), "snapshot-step-x.json".to_owned(), "round-1-reading.json".to_owned()] {
            assert_eq!(snapshot_step(&other), None, "{other}");
        }
    }
}
