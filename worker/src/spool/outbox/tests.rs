//! The outbox over real spools: what is sent when, what is dropped, and what becomes of damage.

use std::collections::BTreeSet;

use longhaul_core::outcome::FaultClass;
use longhaul_core::resume::{Kept, Way};
use longhaul_core::step::{Screenshot, StepTiming};
use longhaul_core::time::{Millis, Timestamp};
use proptest::prelude::*;

use super::super::tests::lease;
use super::super::{Meter, Recovered};
use super::*;

struct World {
    _root: tempfile::TempDir,
    outbox: Outbox,
    meter: Meter,
    folder: std::path::PathBuf,
}

fn world() -> World {
    let root = tempfile::tempdir().unwrap();
    let meter = Meter::default();
    let spool = AttemptSpool::create(root.path(), lease(), meter.clone()).unwrap();
    let folder = spool.folder.clone();
    World { outbox: Outbox::new(spool, Vec::new()), _root: root, meter, folder }
}

impl World {
    /// The bytes of the blobs that are on the disk.
    fn blobs(&self) -> u64 {
        let blobs = std::fs::read_dir(self.folder.join("blobs")).unwrap();
        blobs.map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
    }

    /// As the next worker finds it.
    fn recover(&mut self) -> Option<Damage> {
        let Recovered { spool, records, damage } = AttemptSpool::recover(&self.folder, Meter::default()).unwrap();
        self.outbox = Outbox::new(spool, records);
        damage
    }

    /// What a disk does to a picture.
    fn damage(&self, png: &[u8]) {
        let path = self.folder.join("blobs").join(Digest::of(png).to_string());
        std::fs::write(path, "something else").unwrap();
    }
}

fn step(number: u32, png: &[u8]) -> StepRecord {
    StepRecord {
        number,
        at: Timestamp(0),
        answer: None,
        outcomes: Vec::new(),
        screen: Screenshot { png: Digest::of(png), width: 1, height: 1 },
        rested: true,
        timing: StepTiming::default(),
        calls: Vec::new(),
        told: None,
        unreadable: Vec::new(),
        round: None,
        stirred: Vec::new(),
    }
}

fn names(outgoing: Option<Outgoing>) -> Vec<String> {
    outgoing.map_or_else(Vec::new, |outgoing| {
        outgoing
            .records
            .iter()
            .map(|record| match record {
                Record::Step { number, .. } => number.to_string(),
                Record::Log { name, .. } => name.clone(),
                Record::Call(call) => format!("call {}", call.number),
                Record::Reserved(_) | Record::Granted { .. } => panic!("{record:?} is not delivered"),
                Record::Resumed { .. } => "resumed".to_owned(),
                Record::End { .. } => "end".to_owned(),
            })
            .collect()
    })
}

fn send(outbox: &Outbox) -> Vec<String> {
    let outgoing = outbox.next().unwrap();
    if let Some(outgoing) = &outgoing {
        outbox.sent(outgoing);
    }
    names(outgoing)
}

#[test]
fn records_go_once_in_order_and_again_only_after_a_lost_session() {
    let world = world();
    world.outbox.log("setup", b"log").unwrap();
    world.outbox.step(&step(0, b"a"), b"a").unwrap();
    world.outbox.step(&step(1, b"b"), b"b").unwrap();
    assert_eq!(send(&world.outbox), ["setup", "0", "1"]);
    assert!(send(&world.outbox).is_empty());
    world.outbox.step_acknowledged(0);
    world.outbox.rewind();
    assert_eq!(send(&world.outbox), ["1"]);
    world.outbox.log("export", b"log").unwrap();
    assert_eq!(send(&world.outbox), ["export"]);
    world.outbox.rewind();
    assert_eq!(send(&world.outbox), ["1", "export"], "a log is settled by what follows it only");
}

#[test]
fn nothing_goes_after_what_an_attempt_goes_on_from_until_that_is_known() {
    let world = world();
    let kept = Kept { parent: 1, steps: 5, last: Digest::of(b"last") };
    let record = Resumed {
        way: Way::Replay,
        kept,
        at: Timestamp(1),
        took: Millis(1),
        answered: 0,
        differing: 0,
        remarks: Vec::new(),
    };
    world.outbox.log("setup", b"log").unwrap();
    world.outbox.resumed(&record).unwrap();
    assert_eq!(world.outbox.steps(), 5, "its own steps are numbered from there");
    world.outbox.step(&step(5, b"a"), b"a").unwrap();
    assert_eq!(send(&world.outbox), ["setup", "resumed"]);
    assert!(send(&world.outbox).is_empty() && !world.outbox.has_resumed());
    world.outbox.rewind();
    assert_eq!(send(&world.outbox), ["setup", "resumed"], "again in a new session");
    world.outbox.resumed_acknowledged();
    assert!(world.outbox.has_resumed());
    assert_eq!(send(&world.outbox), ["5"]);
    world.outbox.step_acknowledged(5);
    world.outbox.rewind();
    assert!(send(&world.outbox).is_empty());
    world.outbox.close();
    assert!(world.outbox.is_finished());
}

#[test]
fn an_acknowledged_screenshot_leaves_the_disk_unless_a_later_step_shows_it_too() {
    let world = world();
    world.outbox.step(&step(0, b"aaaa"), b"aaaa").unwrap();
    world.outbox.step(&step(1, b"aaaa"), b"aaaa").unwrap();
    world.outbox.step(&step(2, b"bb"), b"bb").unwrap();
    assert_eq!(world.blobs(), 6);
    let all = world.meter.bytes();
    world.outbox.step_acknowledged(0);
    assert_eq!(world.blobs(), 6);
    world.outbox.step_acknowledged(1);
    assert_eq!(world.blobs(), 2);
    assert!(world.meter.bytes() < all - 4, "the records of what was acknowledged wait no more");
}

#[test]
fn the_end_stays_until_it_is_accepted_and_steps_are_sent_again_on_demand() {
    let world = world();
    world.outbox.step(&step(0, b"a"), b"a").unwrap();
    world.outbox.step(&step(1, b"b"), b"b").unwrap();
    world.outbox.end(AttemptEnd::Cancelled, AttemptNotes::default(), Vec::new()).unwrap();
    assert_eq!(send(&world.outbox), ["0", "1", "end"]);
    world.outbox.step_acknowledged(0);
    world.outbox.resend_from(1, 0);
    assert_eq!(send(&world.outbox), ["1", "end"]);
    assert!(!world.outbox.is_finished());
    world.outbox.end_accepted();
    assert!(world.outbox.is_finished());
    assert!(!world.folder.exists());
    assert_eq!(world.meter.bytes(), 0);
    assert!(send(&world.outbox).is_empty());
}

#[test]
fn a_closed_spool_is_finished_when_its_steps_are_delivered() {
    let world = world();
    world.outbox.step(&step(0, b"a"), b"a").unwrap();
    world.outbox.log("tail", b"log").unwrap();
    world.outbox.close();
    assert!(!world.outbox.is_finished());
    world.outbox.step_acknowledged(0);
    assert!(world.outbox.is_finished());
}

#[test]
fn what_was_offered_and_not_sent_is_offered_again() {
    let world = world();
    world.outbox.step(&step(0, b"a"), b"a").unwrap();
    let offered = world.outbox.next().unwrap();
    assert_eq!(names(offered), ["0"]);
    assert_eq!(send(&world.outbox), ["0"]);
}

#[test]
fn a_delivery_that_crosses_a_new_session_does_not_skip_anything() {
    let world = world();
    world.outbox.step(&step(0, b"a"), b"a").unwrap();
    send(&world.outbox);
    world.outbox.step(&step(1, b"b"), b"b").unwrap();
    let crossing = world.outbox.next().unwrap().unwrap();
    world.outbox.rewind();
    world.outbox.sent(&crossing);
    assert_eq!(send(&world.outbox), ["0", "1"]);
}

fn class(end: &AttemptEnd) -> FaultClass {
    let AttemptEnd::Fault(fault) = end else { panic!("{end:?}") };
    fault.class
}

fn end_of(outgoing: &Outgoing) -> (AttemptEnd, u32, Option<Digest>) {
    let Some(Record::End { end, steps, last_step, .. }) = outgoing.records.last() else { panic!("{outgoing:?}") };
    (end.clone(), *steps, *last_step)
}

#[test]
fn a_damaged_picture_ends_a_live_attempt_after_the_step_before_it() {
    let world = world();
    for (number, png) in [b"a", b"b", b"c"].iter().enumerate() {
        world.outbox.step(&step(u32::try_from(number).unwrap(), *png), *png).unwrap();
    }
    world.outbox.whole().unwrap();
    world.damage(b"b");
    assert_eq!(send(&world.outbox), ["0"], "what stands before it");
    assert_eq!(send(&world.outbox), ["spool"], "what is said of it");
    assert!(send(&world.outbox).is_empty());
    let broken = world.outbox.step(&step(3, b"d"), b"d").unwrap_err();
    assert!(broken.is_disk() && broken.to_string().contains("2 records"), "{broken}");
    assert!(world.outbox.whole().is_err());
    // Whoever had not heard of it says what it came to: that does not count.
    let verdict = AttemptEnd::Cancelled;
    world.outbox.end(verdict, AttemptNotes::default(), Vec::new()).unwrap();
    let outgoing = world.outbox.next().unwrap().unwrap();
    let (end, steps, last) = end_of(&outgoing);
    assert_eq!((class(&end), steps), (FaultClass::NodeDisk, 1));
    let kept = serde_json::to_string(&step(0, b"a")).unwrap();
    assert_eq!(last, Some(Digest::of(kept.as_bytes())));
}

#[test]
fn an_attempt_that_had_ended_has_another_end_when_its_last_picture_is_damaged() {
    let mut world = world();
    world.outbox.step(&step(0, b"a"), b"a").unwrap();
    world.outbox.step(&step(1, b"b"), b"b").unwrap();
    world.outbox.end(AttemptEnd::Cancelled, AttemptNotes::default(), Vec::new()).unwrap();
    world.damage(b"b");
    assert_eq!(send(&world.outbox), ["0"]);
    let outgoing = world.outbox.next().unwrap().unwrap();
    let (end, steps, _) = end_of(&outgoing);
    assert_eq!((class(&end), steps, outgoing.records.len()), (FaultClass::NodeDisk, 1, 1));
    // The next worker comes to the same.
    assert!(world.recover().is_some());
    assert_eq!(send(&world.outbox), ["0", "end"]);
}

#[test]
fn a_damaged_log_goes_alone_and_what_a_dead_worker_left_is_said_to_be_damaged_first() {
    let mut world = world();
    world.outbox.log("setup", b"text").unwrap();
    world.outbox.step(&step(0, b"a"), b"a").unwrap();
    world.damage(b"text");
    assert_eq!(send(&world.outbox), ["0"]);
    world.outbox.step(&step(1, b"b"), b"b").unwrap();
    let path = world.folder.join("records");
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.len() - 20;
    bytes[last] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let damage = world.recover().expect("it was damaged");
    world.outbox.tell_damage(damage).unwrap();
    world.outbox.close();
    let sent = [send(&world.outbox), send(&world.outbox)].concat();
    assert_eq!(sent, ["spool", "0"], "the damaged log is dropped once more");
    world.outbox.step_acknowledged(0);
    assert!(world.outbox.is_finished());
}

/// What may happen between an outbox and a coordinator.
#[derive(Clone, Copy, Debug)]
enum Happening {
    Recorded,
    Sent,
    SentInVain,
    Acknowledged,
    AcknowledgedInVain,
    NewSession,
    Killed,
}

fn happenings() -> impl Strategy<Value = Vec<Happening>> {
    use Happening::{Acknowledged, AcknowledgedInVain, Killed, NewSession, Recorded, Sent, SentInVain};
    let each = prop_oneof![
        4 => Just(Recorded), 3 => Just(Sent), 1 => Just(SentInVain), 3 => Just(Acknowledged),
        1 => Just(AcknowledgedInVain), 1 => Just(NewSession), 1 => Just(Killed)
    ];
    proptest::collection::vec(each, 0..60)
}

/// A coordinator that takes steps in order, each once.
#[derive(Default)]
struct Taker {
    steps: u32,
    blobs: BTreeSet<Digest>,
    answers: std::collections::VecDeque<u32>,
}

impl Taker {
    fn take(&mut self, outgoing: &Outgoing) {
        self.blobs.extend(outgoing.blobs.keys());
        for record in &outgoing.records {
            let Record::Step { number, png, .. } = record else { continue };
            assert!(self.blobs.contains(png), "step {number} came before its picture");
            assert!(*number <= self.steps, "step {number} came before step {}", self.steps);
            self.steps = self.steps.max(number + 1);
            self.answers.push_back(*number);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Whatever is lost on the way, and however often the worker is killed: each step arrives, in
    /// order, and is taken once.
    #[test]
    fn every_step_arrives_in_order_and_once_in_effect(happenings in happenings()) {
        let (mut world, mut taker, mut recorded) = (world(), Taker::default(), 0);
        for happening in happenings {
            match happening {
                Happening::Recorded => {
                    let png = recorded.to_string().into_bytes();
                    world.outbox.step(&step(recorded, &png), &png).unwrap();
                    recorded += 1;
                }
                Happening::Sent => {
                    if let Some(outgoing) = world.outbox.next().unwrap() {
                        taker.take(&outgoing);
                        world.outbox.sent(&outgoing);
                    }
                }
                Happening::SentInVain => {
                    send(&world.outbox);
                    taker.answers.clear();
                    world.outbox.rewind();
                }
                Happening::Acknowledged => {
                    if let Some(number) = taker.answers.pop_front() {
                        world.outbox.step_acknowledged(number);
                    }
                }
                Happening::AcknowledgedInVain => drop(taker.answers.pop_front()),
                Happening::NewSession => {
                    taker.answers.clear();
                    world.outbox.rewind();
                }
                Happening::Killed => {
                    taker.answers.clear();
                    prop_assert_eq!(world.recover(), None);
                    prop_assert_eq!(world.outbox.steps(), recorded);
                }
            }
        }
        taker.answers.clear();
        world.outbox.rewind();
        while let Some(outgoing) = world.outbox.next().unwrap() {
            taker.take(&outgoing);
            world.outbox.sent(&outgoing);
        }
        prop_assert_eq!(taker.steps, recorded);
        for number in taker.answers.drain(..) {
            world.outbox.step_acknowledged(number);
        }
        world.outbox.close();
        prop_assert!(world.outbox.is_finished() && !world.folder.exists());
    }
}

#[test]
fn what_was_refused_stays_on_the_disk_whatever_is_answered_to_its_end() {
    let world = world();
    world.outbox.step(&step(0, b"a"), b"a").unwrap();
    let purses = vec![(PurseKind::Episode, PurseState::default())];
    world.outbox.end(AttemptEnd::Cancelled, AttemptNotes::default(), purses.clone()).unwrap();
    assert_eq!(world.outbox.ended_purses(), purses);
    world.outbox.refused();
    assert!(world.outbox.is_finished() && send(&world.outbox).is_empty());
    world.outbox.end_accepted();
    assert!(world.folder.exists());
}
