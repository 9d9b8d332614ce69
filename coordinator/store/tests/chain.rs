//! Chains of attempts: an episode that resumes has the steps of several, without a gap and without
//! a double, and nothing that came late is among them.

#![expect(clippy::unwrap_used, reason = "what cannot go on fails the test")]

mod common;

use std::collections::BTreeMap;

use common::*;
use longhaul_core::ids::{AttemptId, Epoch};
use longhaul_core::resume::{Kept, Resumed, Way};
use longhaul_core::time::{Millis, Timestamp};
use longhaul_store::{Change, Link, Receipt, ReportError, Store};
use proptest::prelude::*;

const IN_TIME: Receipt = Receipt { repeated: false, late: false };
const AGAIN: Receipt = Receipt { repeated: true, late: false };

fn resuming(number: u32, epoch: u64) -> Vec<Change> {
    vec![
        Change::Attempt(Box::new(attempt_record(number, epoch))),
        Change::Lease { attempt: attempt_id(number), epoch: Epoch(epoch), resumes: true },
    ]
}

fn over() -> Change {
    Change::LeaseOver { episode: episode_id() }
}

fn resumed(kept: Kept) -> Resumed {
    Resumed {
        way: Way::Replay,
        kept,
        at: Timestamp(1_700_000_003_000),
        took: Millis(900),
        answered: 0,
        differing: 0,
        remarks: Vec::new(),
    }
}

fn resume(store: &Store, number: u32, epoch: u64) -> Result<Receipt, ReportError> {
    let kept = store.line(attempt_id(number)).unwrap().unwrap().kept;
    store.put_resumed(attempt_id(number), Epoch(epoch), resumed(kept)).wait()
}

/// The trajectory that ends with an attempt's: which attempt took each step, and whether it was late.
fn trajectory(store: &Store, number: u32) -> Vec<(u32, u32, bool)> {
    let steps = store.trajectory(attempt_id(number)).unwrap().map(Result::unwrap);
    steps.map(|(by, step)| (step.number, by.number, step.late)).collect()
}

fn sound(store: &Store) {
    // The common records name a run that nobody stored: that is no matter here.
    let findings = store.verify().findings;
    let broken: Vec<_> = findings.iter().filter(|found| !found.problem.contains("its episode is not there")).collect();
    assert!(broken.is_empty(), "{broken:?}");
}

#[test]
fn an_attempt_that_resumes_goes_on_with_the_next_number_and_late_steps_are_no_part_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.append(vec![], lease(1, 1)).wait().unwrap();
    for number in 0..3 {
        put_step(&store, attempt_id(1), 1, number, &[number as u8]).unwrap();
    }
    store.append(vec![], vec![over()]).wait().unwrap();
    // On its way when the worker was given up.
    assert!(put_step(&store, attempt_id(1), 1, 3, b"late").unwrap().late);
    store.append(vec![], resuming(2, 2)).wait().unwrap();
    assert!(put_step(&store, attempt_id(1), 1, 4, b"later").unwrap().late);

    let kept = store.line(attempt_id(2)).unwrap().unwrap().kept;
    let last = store.steps(attempt_id(1), 2).next().unwrap().unwrap().digest;
    assert_eq!(kept, Kept { parent: 1, steps: 3, last });
    assert_eq!(trajectory(&store, 2), [(0, 1, false), (1, 1, false), (2, 1, false)], "before it stands there");

    // Its own steps are taken only when it stands where the chain ends, and from there on.
    for number in [0, 3] {
        let refused = put_step(&store, attempt_id(2), 2, number, b"x").unwrap_err();
        assert!(matches!(refused, ReportError::NotKept { .. }), "{refused}");
    }
    let other = Kept { steps: 2, ..kept };
    let refused = store.put_resumed(attempt_id(2), Epoch(2), resumed(other)).wait().unwrap_err();
    assert!(matches!(refused, ReportError::NotKept { .. }), "{refused}");
    assert_eq!(resume(&store, 2, 2), Ok(IN_TIME));
    assert_eq!(resume(&store, 2, 2), Ok(AGAIN), "said again after a session broke");
    assert_eq!(store.progress(attempt_id(2)).unwrap().next, 3, "the end of an attempt without a step of its own");
    let refused = put_step(&store, attempt_id(2), 2, 2, b"x").unwrap_err();
    assert!(matches!(refused, ReportError::NotKept { .. }), "{refused}");
    assert_eq!(put_step(&store, attempt_id(2), 2, 3, b"three"), Ok(IN_TIME));
    assert_eq!(put_step(&store, attempt_id(2), 2, 3, b"three"), Ok(AGAIN));
    assert_eq!(
        trajectory(&store, 2),
        [(0, 1, false), (1, 1, false), (2, 1, false), (3, 2, false)],
        "the late steps of the first attempt became the episode's"
    );
    // They are kept under it all the same.
    assert_eq!(trajectory(&store, 1)[3..], [(3, 1, true), (4, 1, true)]);
    sound(&store);

    // Killed once more, before it has a step of its own: the one after it keeps the same.
    store.append(vec![], resuming(3, 3)).wait().unwrap();
    store.append(vec![], resuming(4, 4)).wait().unwrap();
    let kept = store.line(attempt_id(4)).unwrap().unwrap().kept;
    assert_eq!((kept.parent, kept.steps), (2, 4));
    let links: Vec<_> =
        [(1, 0, 3), (2, 3, 4)].map(|(number, first, end)| Link { attempt: attempt_id(number), first, end }).into();
    assert_eq!(store.kept(attempt_id(4)).unwrap(), links);
    // From the spool of a dead worker: kept under its attempt, and changes nothing.
    assert_eq!(resume(&store, 3, 3), Ok(Receipt { repeated: false, late: true }));
    assert!(put_step(&store, attempt_id(3), 3, 4, b"late").unwrap().late);
    drop(store);
    let store = open(folder.path());
    assert_eq!(store.kept(attempt_id(4)).unwrap(), links, "after the store was opened again");
    sound(&store);
}

#[test]
fn an_attempt_that_starts_again_gives_up_what_was_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.append(vec![], resuming(1, 1)).wait().unwrap();
    assert_eq!(store.line(attempt_id(1)).unwrap(), None, "nothing was before the first attempt");
    put_step(&store, attempt_id(1), 1, 0, b"a").unwrap();
    store.append(vec![], vec![over()]).wait().unwrap();
    store.append(vec![], lease(2, 2)).wait().unwrap();
    store.append(vec![], vec![over()]).wait().unwrap();
    // The second one was cut off before it had a step, and it had given up the first one's.
    store.append(vec![], resuming(3, 3)).wait().unwrap();
    assert_eq!(store.line(attempt_id(3)).unwrap(), None);
    put_step(&store, attempt_id(3), 3, 0, b"b").unwrap();
    assert_eq!(trajectory(&store, 3), [(0, 3, false)]);
    sound(&store);
}

#[test]
fn a_step_beyond_a_gap_is_not_kept() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.append(vec![], lease(1, 1)).wait().unwrap();
    for number in [0, 2] {
        put_step(&store, attempt_id(1), 1, number, &[number as u8]).unwrap();
    }
    store.append(vec![], resuming(2, 2)).wait().unwrap();
    assert!(put_step(&store, attempt_id(1), 1, 1, b"the gap").unwrap().late);
    let kept = store.line(attempt_id(2)).unwrap().unwrap().kept;
    assert_eq!((kept.parent, kept.steps), (1, 1));
    assert_eq!(trajectory(&store, 2), [(0, 1, false)]);
}

#[derive(Clone, Debug)]
enum Act {
    /// The lease is over.
    Over,
    /// The next attempt gets the lease.
    Lease { resumes: bool },
    /// The live attempt says that it stands there.
    Resume,
    /// An attempt delivers its next steps: so many attempts before the newest.
    Steps { back: u32, count: u32 },
    /// The same step once more.
    Again,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        1 => Just(Act::Over),
        2 => any::<bool>().prop_map(|resumes| Act::Lease { resumes }),
        2 => Just(Act::Resume),
        5 => (prop_oneof![4 => Just(0_u32), 1 => 1..3_u32], 1..4_u32).prop_map(|(back, count)| Act::Steps { back, count }),
        1 => Just(Act::Again),
    ]
}

/// What an attempt that was told to go on would send next.
fn next_number(store: &Store, id: AttemptId, sent: &BTreeMap<AttemptId, u32>) -> u32 {
    let first = store.line(id).unwrap().map_or(0, |line| line.kept.steps);
    sent.get(&id).map_or(first, |last| last + 1)
}

fn live_through(acts: &[Act]) {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let mut newest = 0;
    let mut sent: BTreeMap<AttemptId, u32> = BTreeMap::new();
    let mut before: Vec<(u32, u32)> = Vec::new();
    for act in acts {
        match act {
            Act::Over => drop(store.append(vec![], vec![over()]).wait().unwrap()),
            Act::Lease { resumes } => {
                newest += 1;
                let changes = if *resumes { resuming(newest, newest.into()) } else { lease(newest, newest.into()) };
                store.append(vec![], changes).wait().unwrap();
            }
            Act::Resume => {
                if newest > 0 && store.line(attempt_id(newest)).unwrap().is_some() {
                    resume(&store, newest, newest.into()).unwrap();
                }
            }
            Act::Steps { back, count } => {
                let Some(number) = newest.checked_sub(*back).filter(|number| *number > 0) else { continue };
                let id = attempt_id(number);
                for _ in 0..*count {
                    let step = next_number(&store, id, &sent);
                    if put_step(&store, id, number.into(), step, format!("{number} {step}").as_bytes()).is_ok() {
                        sent.insert(id, step);
                    }
                }
            }
            Act::Again => {
                if let Some((id, step)) = sent.last_key_value() {
                    let screen = format!("{} {step}", id.number);
                    let again = put_step(&store, *id, id.number.into(), *step, screen.as_bytes()).unwrap();
                    assert!(again.repeated);
                }
            }
        }
        if newest == 0 {
            continue;
        }
        // The trajectory of the newest attempt, but for what it took itself after its lease.
        let steps = trajectory(&store, newest);
        let chain: Vec<_> = steps.iter().filter(|(_, by, late)| !(*late && *by == newest)).collect();
        for (expected, (number, by, late)) in (0..).zip(&chain) {
            assert_eq!(*number, expected, "no gap and no double: {steps:?} after {acts:?}");
            assert!(!late, "a late step of attempt {by} is the episode's: {steps:?} after {acts:?}");
        }
        // What an attempt was told to keep never changes, whatever still comes.
        let kept: Vec<(u32, u32)> =
            chain.iter().filter(|(_, by, _)| *by != newest).map(|(number, by, _)| (*number, *by)).collect();
        if !matches!(act, Act::Lease { .. }) {
            assert_eq!(kept, before, "what is kept changed after {act:?} in {acts:?}");
        }
        before = kept;
    }
    sound(&store);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_a_chain_has_no_gap_no_double_and_nothing_late(acts in prop::collection::vec(act(), 1..40)) {
        live_through(&acts);
    }
}
