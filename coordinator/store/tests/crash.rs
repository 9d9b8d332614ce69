//! Crashes: the writing process is killed, or the filesystem fails under it.
//!
//! A test that needs a process to kill starts its own program again, for the same test,
//! with [`CHILD`] set to the store's folder.

#![expect(clippy::unwrap_used, reason = "what cannot go on fails the test")]

mod common;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::*;
use longhaul_core::ids::Epoch;
use longhaul_store::{AppendError, OpenError, Store, WriteError};

const CHILD: &str = "LONGHAUL_TEST_STORE";

/// The folder, if this process is the one that is to write.
fn child_folder() -> Option<PathBuf> {
    std::env::var_os(CHILD).map(PathBuf::from)
}

/// This program again, for one test.
fn child(test: &str, folder: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Says on stdout what was acknowledged; flushed, so that it is out before the kill.
fn acknowledge(what: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "ACK {what}").unwrap();
    out.flush().unwrap();
}

/// What a line of the child acknowledges. The test harness begins the first line.
fn acknowledgement(line: &str) -> Option<&str> {
    line.split_once("ACK ").map(|(_, what)| what)
}

#[test]
fn what_was_acknowledged_survives_a_kill() {
    if let Some(folder) = child_folder() {
        let store = open(&folder);
        store.append(vec![], lease(1, 1)).wait().unwrap();
        for number in 0.. {
            // Large enough that buffers are flushed to blob files while it runs.
            let screen = vec![(number % 251) as u8; 400_000 + number as usize];
            put_step(&store, attempt_id(1), 1, number, &screen).unwrap();
            acknowledge(&format!("step {number}"));
            let sequence = store.append(vec![number.to_be_bytes().to_vec()], vec![]).wait().unwrap().start;
            acknowledge(&format!("event {sequence}"));
        }
    }
    let folder = tempfile::tempdir().unwrap();
    for (round, kill_after) in [120, 331, 30].into_iter().enumerate() {
        let path = folder.path().join(round.to_string());
        let mut child = child("what_was_acknowledged_survives_a_kill", &path);
        let mut acknowledged = BTreeSet::new();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        for line in lines.by_ref() {
            acknowledged.extend(acknowledgement(&line).map(str::to_owned));
            if acknowledged.len() == kill_after {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(acknowledged.len() >= kill_after, "the child ended by itself");

        let store = open(&path);
        let mut there = BTreeSet::new();
        for stored in store.steps(attempt_id(1), 0) {
            let stored = stored.unwrap();
            let record = stored.record().unwrap();
            assert!(store.blob(&record.screen.png).unwrap().is_some(), "step {} has no screenshot", stored.number);
            there.insert(format!("step {}", stored.number));
        }
        there.extend(store.journal(0).unwrap().iter().map(|entry| format!("event {}", entry.sequence)));
        let lost: Vec<_> = acknowledged.difference(&there).collect();
        assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
        // At most the write in flight was there beside them.
        assert!(there.len() <= acknowledged.len() + 2, "{} of {}", acknowledged.len(), there.len());
        assert_eq!(store.progress(attempt_id(1)).unwrap().next as usize, store.steps(attempt_id(1), 0).count());
    }
}

/// The log of writes that RocksDB appends to: the newest.
fn newest_log(store: &Path) -> PathBuf {
    std::fs::read_dir(store.join("db"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .max()
        .unwrap()
}

/// A store whose process was killed after `events` events, so that they are in its log.
fn killed_store(test: &str, path: &Path, events: usize) {
    let mut child = child(test, path);
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.filter(|line| acknowledgement(line).is_some()).take(events).count(), events);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// What the killed process does.
fn append_events(folder: &Path) {
    let store = open(folder);
    for event in 0_u32..10 {
        store.append(vec![event.to_string().repeat(50).into_bytes()], vec![]).wait().unwrap();
        acknowledge("event");
    }
    // Waits for the kill; a test that failed closes the pipe.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

#[test]
fn a_last_record_that_was_cut_off_is_dropped_and_the_others_are_there() {
    const TEST: &str = "a_last_record_that_was_cut_off_is_dropped_and_the_others_are_there";
    if let Some(folder) = child_folder() {
        return append_events(&folder);
    }
    let folder = tempfile::tempdir().unwrap();
    killed_store(TEST, folder.path(), 10);
    let log = newest_log(folder.path());
    let len = std::fs::metadata(&log).unwrap().len();
    std::fs::OpenOptions::new().write(true).open(&log).unwrap().set_len(len - 20).unwrap();
    let store = open(folder.path());
    assert_eq!(store.journal(0).unwrap().len(), 9);
    assert_eq!(store.append(vec![b"on".to_vec()], vec![]).wait(), Ok(10..11));
}

#[test]
fn a_flipped_byte_in_the_log_is_never_taken_for_a_cut_off_record() {
    const TEST: &str = "a_flipped_byte_in_the_log_is_never_taken_for_a_cut_off_record";
    if let Some(folder) = child_folder() {
        return append_events(&folder);
    }
    let folder = tempfile::tempdir().unwrap();
    let original = folder.path().join("store");
    killed_store(TEST, &original, 10);
    let log = newest_log(&original);
    let bytes = std::fs::read(&log).unwrap();
    for at in (0..bytes.len()).step_by(7) {
        let mut broken = bytes.clone();
        broken[at] ^= 0x40;
        std::fs::write(&log, &broken).unwrap();
        let copy = folder.path().join("copy");
        copy_store(&original, &copy);
        match Store::open(&copy, &options()) {
            Err(OpenError::Rocks { .. } | OpenError::BrokenLog { .. }) => {}
            Err(other) => panic!("byte {at}: {other}"),
            Ok(store) => assert_eq!(
                store.journal(0).map(|entries| entries.len()).unwrap_or_default(),
                10,
                "byte {at}: events were lost in silence"
            ),
        }
        std::fs::remove_dir_all(&copy).unwrap();
    }
}

fn copy_store(from: &Path, to: &Path) {
    std::fs::create_dir_all(to.join("db")).unwrap();
    for part in ["", "db"] {
        for entry in std::fs::read_dir(from.join(part)).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                std::fs::copy(entry.path(), to.join(part).join(entry.file_name())).unwrap();
            }
        }
    }
}

/// A limit on the size of files stands in for a disk that fails: the write to the log
/// fails, as it would on a full or a broken disk.
#[test]
fn after_a_failed_write_nothing_is_written_and_everyone_can_read_why() {
    const TEST: &str = "after_a_failed_write_nothing_is_written_and_everyone_can_read_why";
    if let Some(folder) = child_folder() {
        let store = open(&folder);
        store.append(vec![b"before".to_vec()], vec![]).wait().unwrap();
        let error = store.append(vec![vec![1; 4_000_000]], vec![]).wait().unwrap_err();
        assert!(matches!(error, AppendError::Write(WriteError::Unknown { .. })), "{error}");
        let reason = store.failure().unwrap();
        let error = store.append(vec![b"small".to_vec()], vec![]).wait().unwrap_err();
        assert_eq!(error, AppendError::Write(WriteError::Disabled { reason }));
        assert_eq!(put_step_fails(&store), "disabled");
        assert_eq!(store.journal(0).unwrap().len(), 1);
        acknowledge("all");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // `ulimit -f` counts blocks of 512 bytes; a signal that is ignored makes it an error.
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 4000; exec \"$0\" --exact \"$1\" --nocapture"])
        .arg(std::env::current_exe().unwrap())
        .arg(TEST)
        .env(CHILD, folder.path())
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(out.contains("ACK all"), "{out}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(open(folder.path()).journal(0).unwrap().len(), 1, "what was acknowledged before");
}

fn put_step_fails(store: &Store) -> &'static str {
    let (json, _) = step(0, b"screen");
    match store.put_step(attempt_id(1), Epoch(1), 0, json).wait() {
        Err(longhaul_store::ReportError::Write(WriteError::Disabled { .. })) => "disabled",
        other => panic!("{other:?}"),
    }
}
