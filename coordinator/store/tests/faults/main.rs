//! Power loss, and disks that fail: the real store over a disk that a test has in its hand.
//!
//! A kill is no power loss: the system's memory of what was written is still there. Here nothing is
//! left but what was synced. Needs `/dev/fuse`.

#![expect(clippy::unwrap_used, reason = "what cannot go on fails the test")]

#[path = "../common/mod.rs"]
mod common;
mod disk;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::*;
use disk::{Disk, Fault, Rule};
use longhaul_store::{AppendError, Blob, Change, ReportError, Store, WriteError};

/// How often the power is lost.
const CUTS: u64 = 25;

/// How much of each was acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Acknowledged {
    events: u64,
    steps: u64,
}

#[derive(Debug, Default)]
struct Acknowledging {
    events: AtomicU64,
    steps: AtomicU64,
}

impl Acknowledging {
    fn now(&self) -> Acknowledged {
        Acknowledged { events: self.events.load(Ordering::SeqCst), steps: self.steps.load(Ordering::SeqCst) }
    }
}

/// What of it is in the store of a folder; nothing where there is none yet.
fn found(path: &Path) -> Result<Acknowledged, String> {
    if !path.join("format").exists() {
        return Ok(Acknowledged::default());
    }
    let store = Store::open(path, &options()).map_err(|error| error.to_string())?;
    let checked = store.verify();
    if !checked.is_sound() {
        return Err(format!("{:?}", checked.findings));
    }
    let events = store.journal(0).map_err(|error| error.to_string())?.len() as u64;
    let steps = u64::from(store.progress(attempt_id(1)).map_err(|error| error.to_string())?.next);
    Ok(Acknowledged { events, steps })
}

/// That nothing is missing which was acknowledged.
fn kept(path: &Path, acknowledged: Acknowledged) -> Result<(), String> {
    let there = found(path)?;
    if there.events < acknowledged.events || there.steps < acknowledged.steps {
        return Err(format!("{acknowledged:?} were acknowledged, {there:?} are there"));
    }
    Ok(())
}

/// A run with an episode, whose first attempt has its lease.
fn begin(store: &Store) {
    let plan = Blob::new(b"a plan".to_vec());
    let digest = *plan.digest();
    store.put_blobs(vec![plan]).wait().unwrap();
    let mut changes = lease(1, 1);
    changes.push(Change::Run(Box::new(run_record(digest))));
    changes.push(Change::Episode(Box::new(episode_record(digest, 1))));
    store.append(vec![], changes).wait().unwrap();
}

/// Writes events, blobs and steps, and counts what was acknowledged. The store is closed and opened
/// again after so many each, until `over` says that it is enough: what was in its log is in tables then.
fn write(path: &Path, each: u32, acknowledged: &Acknowledging, over: impl Fn() -> bool) {
    let mut number = 0;
    loop {
        let store = open(path);
        if number == 0 {
            begin(&store);
        }
        for _ in 0..each {
            store.append(vec![number.to_string().repeat(100).into_bytes()], vec![]).wait().unwrap();
            acknowledged.events.fetch_add(1, Ordering::SeqCst);
            // Every other one is large enough for a file of blobs.
            let screen = vec![(number % 251) as u8; 2_000 + (number as usize % 2) * 20_000 + number as usize];
            put_step(&store, attempt_id(1), 1, number, &screen).unwrap();
            number += 1;
            acknowledged.steps.fetch_add(1, Ordering::SeqCst);
        }
        if over() {
            return;
        }
    }
}

/// Takes the power so often while a store is made, written to, closed and opened again; what was lost
/// that had been acknowledged.
fn losses(disk: &Disk, luck: u64) -> Vec<String> {
    let acknowledged = Acknowledging::default();
    let folder = tempfile::tempdir().unwrap();
    let store = disk.path().join("store");
    let mut lost = Vec::new();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| write(&store, 10, &acknowledged, || over.load(Ordering::SeqCst)));
        for cut in 1..=CUTS {
            let left = folder.path().join(cut.to_string());
            let before = disk.after_power_loss(&left, luck * cut, || acknowledged.now());
            lost.extend(kept(&left.join("store"), before).err().map(|why| format!("cut {cut}: {why}")));
            std::fs::remove_dir_all(&left).unwrap();
            // At odd moments: as it is made first, and then ever later in what it does.
            std::thread::sleep(Duration::from_millis(cut * 7 % 41));
        }
        over.store(true, Ordering::SeqCst);
    });
    let all = acknowledged.now();
    assert!(all.events > 10 && all.events == all.steps, "{all:?}");
    lost
}

#[test]
fn what_was_acknowledged_is_there_after_a_power_loss_at_any_moment() {
    for luck in [0, 1, 77] {
        let folder = tempfile::tempdir().unwrap();
        let disk = Disk::new(&folder.path().join("disk"));
        let lost = losses(&disk, luck);
        assert!(lost.is_empty(), "with luck {luck}: {lost:#?}");
    }
}

/// The same on a disk that says that it has synced and has not: so would a store be that does not.
#[test]
fn the_power_loss_is_one() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::new(&folder.path().join("disk"));
    disk.lies();
    let acknowledged = Acknowledging::default();
    write(&disk.path().join("store"), 3, &acknowledged, || true);
    let left = folder.path().join("left");
    let before = disk.after_power_loss(&left, 0, || acknowledged.now());
    let lost = kept(&left.join("store"), before).unwrap_err();
    assert!(lost.contains("were acknowledged"), "{lost}");
}

const EIO: i32 = nix::libc::EIO;
const ENOSPC: i32 = nix::libc::ENOSPC;

#[test]
fn after_a_write_or_a_sync_that_failed_nothing_more_is_written_and_what_was_acknowledged_is_there() {
    for fault in [Fault::Write(EIO), Fault::Write(ENOSPC), Fault::Sync(EIO)] {
        for after in [0, 1, 5] {
            let folder = tempfile::tempdir().unwrap();
            let disk = Disk::new(&folder.path().join("disk"));
            let path = disk.path().join("store");
            let store = open(&path);
            begin(&store);
            store.append(vec![b"before".to_vec()], vec![]).wait().unwrap();
            put_step(&store, attempt_id(1), 1, 0, &[7; 9_000]).unwrap();
            disk.fails(Some(Rule { fault, after, times: 1 }));
            let mut acknowledged = Acknowledged { events: 1, steps: 1 };
            let error = loop {
                match store.append(vec![vec![1; 3_000]], vec![]).wait() {
                    Ok(_) => acknowledged.events += 1,
                    Err(AppendError::Write(error)) => break error,
                    Err(other) => panic!("{fault:?}: {other}"),
                }
                assert!(acknowledged.events < 100, "{fault:?} never came");
            };
            assert!(matches!(error, WriteError::Unknown { .. }), "it may be there or not: {error}");
            assert_eq!(disk.hit(), 1, "{fault:?}");
            let error = store.append(vec![b"after".to_vec()], vec![]).wait().unwrap_err();
            assert!(matches!(error, AppendError::Write(WriteError::Disabled { .. })), "{error}");
            assert!(store.failure().is_some());
            assert_eq!(store.journal(0).unwrap().len() as u64, acknowledged.events, "it can still be read");
            drop(store);
            let left = folder.path().join("left");
            disk.after_power_loss(&left, 0, || ());
            kept(&left.join("store"), acknowledged).unwrap_or_else(|lost| panic!("{fault:?} after {after}: {lost}"));
            kept(&path, acknowledged).unwrap_or_else(|lost| panic!("{fault:?} after {after}, started again: {lost}"));
            let again = open(&path);
            again.append(vec![b"on".to_vec()], vec![]).wait().unwrap();
        }
    }
}

#[test]
fn short_writes_and_slow_syncs_are_waited_for() {
    for fault in [Fault::Short, Fault::Slow(Duration::from_millis(60))] {
        let folder = tempfile::tempdir().unwrap();
        let disk = Disk::new(&folder.path().join("disk"));
        let path = disk.path().join("store");
        let store = open(&path);
        disk.fails(Some(Rule { fault, after: 0, times: 20 }));
        let mut acknowledged = Acknowledged::default();
        while disk.hit() < 20 {
            store.append(vec![vec![2; 5_000]], vec![]).wait().unwrap();
            acknowledged.events += 1;
            // The moment of the answer is that of the loss.
            if acknowledged.events % 5 == 0 {
                let left = folder.path().join(acknowledged.events.to_string());
                disk.after_power_loss(&left, 0, || ());
                kept(&left.join("store"), acknowledged).unwrap_or_else(|lost| panic!("{fault:?}: {lost}"));
            }
        }
        assert!(store.failure().is_none(), "{fault:?} is no failure");
        drop(store);
        kept(&path, acknowledged).unwrap();
    }
}

#[test]
fn a_disk_that_fills_up_stops_the_store_and_takes_nothing_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::new(&folder.path().join("disk"));
    let path = disk.path().join("store");
    let store = open(&path);
    begin(&store);
    // It says that there is room: the store's own floor is not met.
    disk.holds(Some(3_000_000));
    let mut acknowledged = Acknowledged::default();
    let error = (0..1_000)
        .find_map(|number| match put_or_fail(&store, number) {
            Ok(()) => {
                acknowledged.steps += 1;
                None
            }
            Err(error) => Some(error),
        })
        .unwrap();
    assert!(error.contains("may be there or not") || error.contains("takes no more writes"), "{error}");
    assert!(acknowledged.steps > 10, "{acknowledged:?}");
    drop(store);
    // Room was made.
    disk.holds(None);
    kept(&path, acknowledged).unwrap();
    let store = open(&path);
    assert!(store.append(vec![b"on".to_vec()], vec![]).wait().is_ok());
}

/// Puts a screenshot and its step; what is said if either is not taken.
fn put_or_fail(store: &Store, number: u32) -> Result<(), String> {
    let (json, blob) = step(number, &vec![(number % 251) as u8; 30_000 + number as usize]);
    store.put_blobs(vec![blob]).wait().map_err(|error| error.to_string())?;
    let put = store.put_step(attempt_id(1), longhaul_core::ids::Epoch(1), number, json).wait();
    put.map(drop).map_err(|error: ReportError| error.to_string())
}

#[test]
fn a_read_that_fails_is_said_and_is_no_record_that_is_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::new(&folder.path().join("disk"));
    let path = disk.path().join("store");
    let acknowledged = Acknowledging::default();
    write(&path, 10, &acknowledged, || acknowledged.now().steps >= 20);
    for after in 0..40 {
        disk.fails(Some(Rule { fault: Fault::Read(EIO), after, times: 1 }));
        let read = found(&path);
        let hit = disk.hit();
        disk.fails(None);
        match read {
            Err(said) => assert!(hit > 0, "{said}"),
            Ok(there) => assert_eq!(there, acknowledged.now(), "after {after} reads"),
        }
    }
    kept(&path, acknowledged.now()).unwrap();
}
