//! The outbox over real spools: what is sent when, and what is dropped.

use longhaul_core::resume::{Kept, Way};
use longhaul_core::step::{Screenshot, StepTiming};
use longhaul_core::time::{Millis, Timestamp};

use super::super::Meter;
use super::super::tests::lease;
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
    assert_eq!(world.meter.bytes(), 6);
    world.outbox.step_acknowledged(0);
    assert_eq!(world.meter.bytes(), 6);
    world.outbox.step_acknowledged(1);
    assert_eq!(world.meter.bytes(), 2);
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
