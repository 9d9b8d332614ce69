//! Checking a store, on stores that were damaged.

#![expect(clippy::unwrap_used, reason = "what cannot go on fails the test")]

mod common;

use std::path::Path;

use common::*;
use longhaul_core::digest::Digest;
use longhaul_core::ids::Epoch;
use longhaul_store::{Blob, Change, EpisodeState, OpenError, Reader, Store, backup, verify};

/// A store with one of everything, its run named rightly throughout.
fn whole_store(path: &Path) {
    let store = open(path);
    let plan = Blob::new(b"a plan".to_vec());
    let digest = *plan.digest();
    store.put_blobs(vec![plan, Blob::new(vec![1; 20_000])]).wait().unwrap();
    let mut changes =
        vec![Change::Run(Box::new(run_record(digest))), Change::Episode(Box::new(episode_record(digest, 1)))];
    changes.extend(lease(1, 1));
    store.append(vec![b"event".to_vec(); 3], changes).wait().unwrap();
    for number in 0..3 {
        put_step(&store, attempt_id(1), 1, number, &vec![number as u8; 9000]).unwrap();
    }
    for number in 0..2 {
        put_call(&store, attempt_id(1), 1, number, 40).unwrap();
    }
    store.put_log(attempt_id(1), Epoch(1), "pre_task".to_owned(), digest).wait().unwrap();
}

#[test]
fn a_whole_store_has_no_findings_with_a_writer_and_without() {
    let folder = tempfile::tempdir().unwrap();
    whole_store(folder.path());
    let store = open(folder.path());
    let found = store.verify();
    assert_eq!(found.findings, []);
    assert_eq!(found.records["journal"], 3);
    assert_eq!(found.records["steps"], 4, "three steps and how far they are whole");
    assert_eq!(found.records["ledger"], 3, "two calls and their sums");
    assert_eq!(found.blob_bytes, 6 + 20_000 + 3 * 9000 + 2 * (9 + 10 + 6));
    assert!(Reader::open(folder.path()).unwrap().verify().is_sound());
    drop(store);
    assert!(Reader::open(folder.path()).unwrap().verify().is_sound());
}

#[test]
fn a_store_that_is_written_to_is_neither_checked_as_a_whole_nor_copied() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("store"), folder.path().join("copy"));
    assert!(matches!(verify(&path), Err(OpenError::NotAStore { .. })));
    assert!(matches!(backup(&path, &copy, &options()), Err(OpenError::NotAStore { .. })));
    assert!(!path.exists() && !copy.exists(), "a store was made of nothing");

    whole_store(&path);
    let store = open(&path);
    let is_held = |error: OpenError| matches!(error, OpenError::Locked { holder: Some(holder), .. } if holder.pid == std::process::id());
    assert!(is_held(verify(&path).unwrap_err()));
    assert!(is_held(backup(&path, &copy, &options()).unwrap_err()));
    drop(store);
    assert!(verify(&path).unwrap().is_sound());
    backup(&path, &copy, &options()).unwrap();
    assert!(verify(&copy).unwrap().is_sound());
    assert!(everything(&copy).is_some() && everything(&copy) == everything(&path));
    assert!(matches!(backup(&path, &copy, &options()), Err(OpenError::File { .. })), "a copy over a copy");
}

/// Changes rows behind the store's back.
fn meddle(path: &Path, change: impl Fn(&rocksdb::DB)) {
    let database = path.join("db");
    let options = rocksdb::Options::default();
    let families = rocksdb::DB::list_cf(&options, &database).unwrap();
    change(&rocksdb::DB::open_cf(&options, &database, families).unwrap());
}

#[test]
fn what_a_record_names_and_is_not_there_is_found() {
    let folder = tempfile::tempdir().unwrap();
    whole_store(folder.path());
    let store = open(folder.path());
    let mut episode = episode_record(Digest::of(b"another plan"), 1);
    episode.state = EpisodeState::Active { attempt: attempt_id(9) };
    store.append(vec![], vec![Change::Episode(Box::new(episode.clone()))]).wait().unwrap();
    let found = store.verify();
    assert_eq!(found.findings.len(), 1);
    assert!(found.findings[0].to_string().contains(&format!("attempt {} is not there", attempt_id(9))));
    episode.state = EpisodeState::Queued;
    store.append(vec![], vec![Change::Episode(Box::new(episode))]).wait().unwrap();
    let found = store.verify();
    assert!(found.findings[0].problem.contains(&Digest::of(b"another plan").to_string()), "{:?}", found.findings);
}

#[test]
fn a_blob_with_other_bytes_and_a_record_of_another_format_are_found() {
    let folder = tempfile::tempdir().unwrap();
    whole_store(folder.path());
    let digest = Digest::of(b"a plan");
    meddle(folder.path(), |db| {
        let key = [b"b".as_slice(), digest.as_bytes()].concat();
        db.put_cf(db.cf_handle("blobs").unwrap(), key, b"\x02b plan").unwrap();
        let run = [b"r".as_slice(), &run_id().as_u64().to_be_bytes()].concat();
        db.put_cf(db.cf_handle("runs").unwrap(), run, b"\x09{}").unwrap();
        db.delete_cf(db.cf_handle("journal").unwrap(), [b"e".as_slice(), &2_u64.to_be_bytes()].concat()).unwrap();
        db.put_cf(db.cf_handle("ledger").unwrap(), b"x", b"y").unwrap();
    });
    let reader = Reader::open(folder.path()).unwrap();
    let found: Vec<String> = reader.verify().findings.iter().map(ToString::to_string).collect();
    for expected in [
        &format!("its bytes have digest {}", Digest::of(b"b plan")),
        "it has format 9, not 1",
        "events are missing",
        "ledger",
    ] {
        assert!(found.iter().any(|line| line.contains(expected)), "{expected} is not in {found:#?}");
    }
    assert!(reader.blob(&digest).is_err(), "a blob with other bytes was given out");
}

/// All that can be read of the store, or none if something cannot.
fn everything(path: &Path) -> Option<Vec<String>> {
    let reader = Reader::open(path).ok()?;
    let mut all = vec![
        format!("{:?}", reader.runs().ok()?),
        format!("{:?}", reader.episodes(run_id()).ok()?),
        format!("{:?}", reader.attempts(episode_id()).ok()?),
        format!("{:?}", reader.logs(attempt_id(1)).ok()?),
        format!("{:?}", reader.progress(attempt_id(1)).ok()?),
        format!("{:?}", reader.journal(0).ok()?),
    ];
    for step in reader.steps(attempt_id(1), 0) {
        let step = step.ok()?;
        let screen = step.record().ok()?.screen.png;
        all.push(format!("{step:?} {:?}", reader.blob(&screen).ok()?));
    }
    Some(all)
}

/// Flips bytes of every file of a store that was closed and of one that was flushed: it
/// is reported, by opening or by the check, or every read is the same as before.
#[test]
fn a_flipped_byte_anywhere_is_reported_or_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    whole_store(&path);
    // The records are in tables and blob files, and further ones in a log.
    meddle(&path, |db| {
        for family in ["journal", "runs", "episodes", "attempts", "steps", "blobs", "meta"] {
            db.flush_cf(db.cf_handle(family).unwrap()).unwrap();
        }
    });
    let store = open(&path);
    store.append(vec![b"in the log".to_vec()], vec![]).wait().unwrap();
    drop(store);
    let before = everything(&path).unwrap();

    let files: Vec<_> = ["", "db"]
        .iter()
        .flat_map(|part| std::fs::read_dir(path.join(part)).unwrap())
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_type().unwrap().is_file())
        .map(|entry| entry.path())
        .collect();
    let (mut tried, mut reported) = (0, 0);
    for file in &files {
        let bytes = std::fs::read(file).unwrap();
        // About 25 places of each file, at odd distances.
        for at in (0..bytes.len()).step_by((bytes.len() / 25) | 1) {
            let mut broken = bytes.clone();
            broken[at] ^= 0x10;
            std::fs::write(file, &broken).unwrap();
            tried += 1;
            let sound = Reader::open(&path).is_ok_and(|reader| reader.verify().is_sound());
            if sound {
                assert!(
                    everything(&path).as_ref() == Some(&before),
                    "byte {at} of {} is not noticed and changes what is read",
                    file.display()
                );
            } else {
                reported += 1;
            }
        }
        std::fs::write(file, &bytes).unwrap();
    }
    assert!(reported * 2 > tried, "{reported} of {tried} reported: the files of records were not hit");
    assert!(everything(&path) == Some(before), "a file was not put back");
    assert!(!matches!(Store::open(&path, &options()), Err(OpenError::BrokenLog { .. })));
}
