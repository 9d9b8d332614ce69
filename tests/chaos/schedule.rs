//! What is done to whom, and when: derived from a seed alone, written down, and read again.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};
use serde::{Deserialize, Serialize};

/// Workers whose sandboxes do nothing.
pub(crate) const WORKERS: usize = 4;

/// About how many calls of its model an episode makes.
const CALLS_OF_AN_EPISODE: u64 = 16;

/// What is done to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Harm {
    /// Killed, and started again after that time.
    Kill,
    /// Told to end, and started again that time after it did.
    Leave,
    /// Stopped for that time.
    Stop,
    /// Stopped and continued again and again for that time.
    Slow,
}

/// What is done to a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Blow {
    /// One of its processes is killed.
    Kill,
    /// One of its processes is stopped for that time.
    Stop,
}

/// What is done to a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Cut {
    /// Connections are broken, and none is made.
    Refused,
    /// Nothing passes, and nobody is told.
    Silent,
    /// Nothing passes to the coordinator; the other way it does.
    OneWay,
    /// Everything passes late.
    Slow,
}

/// What is the matter with the provider of models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mood {
    /// 503 to everybody, unbilled.
    Overloaded,
    /// Bills, and never answers.
    Hangs,
    /// Bills, and breaks off in the middle of its answer.
    Breaks,
    /// Answers late.
    Slow,
    /// Takes no connection.
    Away,
}

/// How full a disk is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fill {
    /// Less is left than is to be kept free.
    Scarce,
    /// Nothing is left that may be written to.
    Full,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "to")]
pub(crate) enum Deed {
    /// To a worker.
    Worker {
        /// Which.
        worker: usize,
        /// What.
        harm: Harm,
    },
    /// A worker is killed, and its node's disk is lost.
    Node {
        /// Which.
        worker: usize,
    },
    /// To the coordinator.
    Coordinator {
        /// What.
        harm: Harm,
    },
    /// To a sandbox of a worker.
    Sandbox {
        /// Whose.
        worker: usize,
        /// Which of its processes, counted around.
        nth: usize,
        /// What.
        blow: Blow,
    },
    /// To the network between a worker and the coordinator.
    Link {
        /// Whose.
        worker: usize,
        /// What.
        cut: Cut,
    },
    /// To the provider.
    Provider {
        /// What.
        mood: Mood,
    },
    /// To the disk of a worker.
    Disk {
        /// Whose.
        worker: usize,
        /// How full.
        fill: Fill,
    },
    /// To the disk of the store.
    Store {
        /// How full.
        fill: Fill,
    },
}

/// Whom it is done to: one deed after the other, and to each of them at the same time as to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    /// A worker's process.
    Worker(usize),
    /// The coordinator's.
    Coordinator,
    /// Sandboxes of a worker.
    Sandbox(usize),
    /// The network of a worker.
    Link(usize),
    /// The provider.
    Provider,
    /// A worker's disk.
    Disk(usize),
    /// The store's.
    Store,
}

impl Deed {
    /// Whom it is done to.
    pub(crate) const fn lane(self) -> Lane {
        match self {
            Self::Worker { worker, .. } | Self::Node { worker } => Lane::Worker(worker),
            Self::Coordinator { .. } => Lane::Coordinator,
            Self::Sandbox { worker, .. } => Lane::Sandbox(worker),
            Self::Link { worker, .. } => Lane::Link(worker),
            Self::Provider { .. } => Lane::Provider,
            Self::Disk { worker, .. } => Lane::Disk(worker),
            Self::Store { .. } => Lane::Store,
        }
    }
}

/// One deed, at its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Event {
    /// When so many calls have come to the provider in this part.
    pub(crate) after_calls: u64,
    /// For so long.
    pub(crate) millis: u64,
    /// What.
    pub(crate) deed: Deed,
}

impl Event {
    /// For how long.
    pub(crate) const fn time(&self) -> Duration {
        Duration::from_millis(self.millis)
    }
}

/// Episodes of one kind of sandbox, and what is done while they run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    /// How many.
    pub(crate) episodes: u32,
    /// What is done, in order.
    pub(crate) events: Vec<Event>,
}

/// All that is done for a seed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Schedule {
    /// The seed.
    pub(crate) seed: u64,
    /// Episodes in sandboxes that do nothing.
    pub(crate) plain: Part,
    /// Episodes in real containers.
    pub(crate) contained: Part,
}

/// A deed, and how long it lasts at least and at most, in milliseconds. Longer than a lease (6 s, and
/// 1 s more) now and then.
type Kind = (fn(usize, usize) -> Deed, u64, u64);

const KINDS: &[Kind] = &[
    (|worker, _| Deed::Worker { worker, harm: Harm::Kill }, 100, 1500),
    (|worker, _| Deed::Worker { worker, harm: Harm::Kill }, 100, 1500),
    (|worker, _| Deed::Worker { worker, harm: Harm::Leave }, 100, 1000),
    (|worker, _| Deed::Worker { worker, harm: Harm::Stop }, 500, 5000),
    (|worker, _| Deed::Worker { worker, harm: Harm::Stop }, 8000, 10_000),
    (|worker, _| Deed::Worker { worker, harm: Harm::Slow }, 2000, 5000),
    (|worker, _| Deed::Node { worker }, 100, 1000),
    (|_, _| Deed::Coordinator { harm: Harm::Kill }, 100, 1500),
    (|_, _| Deed::Coordinator { harm: Harm::Kill }, 7000, 9000),
    (|_, _| Deed::Coordinator { harm: Harm::Leave }, 100, 1000),
    (|_, _| Deed::Coordinator { harm: Harm::Stop }, 500, 4000),
    (|_, _| Deed::Coordinator { harm: Harm::Slow }, 1000, 4000),
    (|worker, nth| Deed::Sandbox { worker, nth, blow: Blow::Kill }, 0, 0),
    (|worker, nth| Deed::Sandbox { worker, nth, blow: Blow::Kill }, 0, 0),
    (|worker, nth| Deed::Sandbox { worker, nth, blow: Blow::Stop }, 1000, 5000),
    (|worker, _| Deed::Link { worker, cut: Cut::Refused }, 500, 5000),
    (|worker, _| Deed::Link { worker, cut: Cut::Silent }, 1000, 5000),
    (|worker, _| Deed::Link { worker, cut: Cut::Silent }, 8000, 11_000),
    (|worker, _| Deed::Link { worker, cut: Cut::OneWay }, 1000, 8000),
    (|worker, _| Deed::Link { worker, cut: Cut::Slow }, 1000, 5000),
    (|_, _| Deed::Provider { mood: Mood::Overloaded }, 1000, 4000),
    (|_, _| Deed::Provider { mood: Mood::Hangs }, 200, 500),
    (|_, _| Deed::Provider { mood: Mood::Breaks }, 200, 500),
    (|_, _| Deed::Provider { mood: Mood::Slow }, 1000, 3000),
    (|_, _| Deed::Provider { mood: Mood::Away }, 1000, 4000),
    (|worker, _| Deed::Disk { worker, fill: Fill::Scarce }, 1000, 4000),
    (|worker, _| Deed::Disk { worker, fill: Fill::Full }, 1000, 4000),
    (|_, _| Deed::Store { fill: Fill::Scarce }, 1000, 4000),
    (|_, _| Deed::Store { fill: Fill::Full }, 500, 2000),
];

/// Those for real containers, on one worker, whose disk is the machine's own.
const CONTAINED_KINDS: &[Kind] = &[
    (|worker, _| Deed::Worker { worker, harm: Harm::Kill }, 100, 1500),
    (|worker, nth| Deed::Sandbox { worker, nth, blow: Blow::Kill }, 0, 0),
    (|_, _| Deed::Coordinator { harm: Harm::Kill }, 100, 1500),
    (|worker, _| Deed::Link { worker, cut: Cut::Silent }, 8000, 11_000),
    (|worker, nth| Deed::Sandbox { worker, nth, blow: Blow::Stop }, 1000, 4000),
    (|worker, _| Deed::Worker { worker, harm: Harm::Stop }, 8000, 10_000),
];

impl Schedule {
    /// The schedule of a seed.
    pub(crate) fn of(seed: u64, episodes: u32, contained: u32) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        // Each kind at least once, however few episodes there are.
        let count = KINDS.len().max(usize::try_from(episodes).unwrap_or(usize::MAX) / 3);
        let plain = Part { episodes, events: events(&mut rng, KINDS, WORKERS, count, episodes) };
        let count = usize::try_from(contained).unwrap_or(usize::MAX);
        let contained = Part { episodes: contained, events: events(&mut rng, CONTAINED_KINDS, 1, count, contained) };
        Self { seed, plain, contained }
    }

    /// Writes it down.
    pub(crate) fn write(&self, file: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(file, text + "\n").with_context(|| format!("cannot write {}", file.display()))
    }

    /// Reads one that was written.
    pub(crate) fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} is no schedule", file.display()))
    }
}

/// So many deeds, every kind once before any comes again, spread over the calls that are to be expected.
fn events(rng: &mut StdRng, kinds: &[Kind], workers: usize, count: usize, episodes: u32) -> Vec<Event> {
    let mut order = Vec::new();
    while order.len() < count {
        let mut round: Vec<&Kind> = kinds.iter().collect();
        round.shuffle(rng);
        order.extend(round);
    }
    let calls = u64::from(episodes) * CALLS_OF_AN_EPISODE;
    // The last tenth is left alone.
    let share = calls * 9 / 10 / u64::try_from(count.max(1)).unwrap_or(u64::MAX);
    let place = |(index, (deed, least, most)): (u64, &Kind)| Event {
        after_calls: index * share + rng.random_range(0..=share),
        millis: rng.random_range(*least..=*most),
        deed: deed(rng.random_range(0..workers), rng.random_range(0..64)),
    };
    (0..).zip(order.into_iter().take(count)).map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_one_schedule_whose_deeds_are_in_order_and_of_every_kind() {
        let schedule = Schedule::of(1, 40, 4);
        assert_eq!(schedule, Schedule::of(1, 40, 4));
        assert_ne!(schedule, Schedule::of(2, 40, 4));
        assert!(schedule.plain.events.is_sorted_by_key(|event| event.after_calls));
        assert_eq!(schedule.plain.events.len(), KINDS.len());
        assert!(Schedule::of(1, 200, 0).plain.events.len() > KINDS.len());
        let lanes: std::collections::BTreeSet<String> =
            schedule.plain.events.iter().map(|event| format!("{:?}", event.deed.lane())).collect();
        for lane in ["Coordinator", "Provider", "Store"] {
            assert!(lanes.contains(lane), "{lanes:?}");
        }
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("schedule.json");
        schedule.write(&file).unwrap();
        assert_eq!(Schedule::read(&file).unwrap(), schedule);
    }
}
