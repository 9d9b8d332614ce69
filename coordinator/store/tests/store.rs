//! What the coordinator relies on, on a real RocksDB.

#![expect(clippy::unwrap_used, reason = "what cannot go on fails the test")]

mod common;

use common::*;
use longhaul_core::digest::Digest;
use longhaul_core::ids::Epoch;
use longhaul_core::notes::AttemptNotes;
use longhaul_core::outcome::AttemptEnd;
use longhaul_core::time::Timestamp;
use longhaul_store::{
    AppendError, AttemptFinish, Blob, BlobError, Change, LogError, OpenError, OpenOptions, PruneError, ReadError,
    Reader, Receipt, ReportError, ReportKind, Store, Warning, WriteError,
};

const IN_TIME: Receipt = Receipt { repeated: false, late: false };
const LATE: Receipt = Receipt { repeated: false, late: true };

#[test]
fn events_are_numbered_without_gaps_and_read_back_after_reopening() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    assert_eq!(store.append(vec![b"one".to_vec(), b"two".to_vec()], vec![]).wait(), Ok(1..3));
    assert_eq!(store.append(vec![], vec![]).wait(), Ok(3..3));
    drop(store);
    let store = open(folder.path());
    assert_eq!(store.append(vec![b"three".to_vec()], vec![]).wait(), Ok(3..4));
    let events: Vec<_> = store.journal(1).unwrap().into_iter().map(|entry| (entry.sequence, entry.event)).collect();
    assert_eq!(events, [(2, b"two".to_vec()), (3, b"three".to_vec())]);
    assert_eq!(store.incarnation(), 7);
}

#[test]
fn projections_are_written_with_their_events_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let plan = Digest::of(b"plan");
    let changes = vec![
        Change::Run(Box::new(run_record(plan))),
        Change::Episode(Box::new(episode_record(plan, 0))),
        Change::Lease { attempt: attempt_id(1), epoch: Epoch(1), resumes: false },
    ];
    assert_eq!(
        store.append(vec![b"submitted".to_vec()], changes.clone()).wait(),
        Err(AppendError::UnknownAttempt { attempt: attempt_id(1) })
    );
    assert_eq!(store.journal(0).unwrap(), [], "an event of a refused batch");
    assert_eq!(store.run(run_id()).unwrap(), None, "a projection of a refused batch");

    store.append(vec![b"submitted".to_vec()], changes[..2].to_vec()).wait().unwrap();
    store.append(vec![], lease(1, 4)).wait().unwrap();
    assert_eq!(store.runs().unwrap(), [run_record(plan)]);
    assert_eq!(store.episodes(run_id()).unwrap(), [episode_record(plan, 0)]);
    assert_eq!(store.attempts(episode_id()).unwrap(), [attempt_record(1, 4)]);
    assert_eq!(
        store.append(vec![], lease(2, 4)).wait(),
        Err(AppendError::StaleEpoch { episode: episode_id(), epoch: Epoch(4), current: Epoch(4) })
    );
    assert_eq!(store.attempt(attempt_id(2)).unwrap(), None);
}

#[test]
fn a_blob_is_stored_once_and_only_under_its_own_digest() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    // One that lives in a blob file, one that does not, and an empty one.
    let blobs: Vec<Blob> = [vec![9; 300_000], b"small".to_vec(), Vec::new()].map(Blob::new).into();
    let digests: Vec<Digest> = blobs.iter().map(|blob| *blob.digest()).collect();
    assert_eq!(store.missing_blobs(&digests).unwrap(), digests);
    assert_eq!(store.put_blobs(blobs.clone()).wait(), Ok(3));
    assert_eq!(store.put_blobs([blobs.clone(), blobs.clone()].concat()).wait(), Ok(0));
    assert_eq!(store.missing_blobs(&digests).unwrap(), []);
    for blob in &blobs {
        assert_eq!(store.blob(blob.digest()).unwrap().as_deref(), Some(blob.bytes()));
        assert_eq!(store.blob_len(blob.digest()).unwrap(), Some(blob.bytes().len() as u64));
    }
    assert!(matches!(Blob::checked(digests[0], b"other".to_vec()), Err(BlobError::WrongDigest { len: 5, .. })));
    assert_eq!(store.blob(&Digest::of(b"none")).unwrap(), None);
}

#[test]
fn a_step_is_stored_once_and_another_under_its_number_is_a_conflict() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.append(vec![], lease(1, 1)).wait().unwrap();
    assert_eq!(put_step(&store, attempt_id(1), 1, 0, b"first"), Ok(IN_TIME));
    assert_eq!(put_step(&store, attempt_id(1), 1, 0, b"first"), Ok(Receipt { repeated: true, late: false }));
    let conflict = put_step(&store, attempt_id(1), 1, 0, b"second").unwrap_err();
    assert!(matches!(conflict, ReportError::Conflict { number: 0, .. }), "{conflict}");
    let steps: Vec<_> = store.steps(attempt_id(1), 0).map(Result::unwrap).collect();
    assert_eq!(steps.len(), 1);
    assert_eq!(steps[0].record_json, step(0, b"first").0);
    assert_eq!(steps[0].digest, steps[0].record().unwrap().digest().unwrap());
}

#[test]
fn a_step_that_is_none_or_lacks_its_screenshot_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.append(vec![], lease(1, 1)).wait().unwrap();
    let (json, blob) = step(3, b"screen");
    let refused = |number, json: Vec<u8>| store.put_step(attempt_id(1), Epoch(1), number, json).wait().unwrap_err();
    assert!(matches!(refused(3, b"{}".to_vec()), ReportError::Invalid { .. }));
    assert!(matches!(refused(4, json.clone()), ReportError::Invalid { .. }), "a number that is not the record's");
    assert_eq!(
        refused(3, json),
        ReportError::MissingBlob { what: ReportKind::Step, attempt: attempt_id(1), number: 3, digest: *blob.digest() }
    );
}

#[test]
fn what_an_attempt_lacks_is_known_by_the_first_gap() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.append(vec![], lease(1, 1)).wait().unwrap();
    let id = attempt_id(1);
    assert_eq!(store.progress(id).unwrap().next, 0);
    for (number, next) in [(0, 1), (2, 1), (3, 1), (1, 4)] {
        assert_eq!(put_step(&store, id, 1, number, &[number as u8]), Ok(IN_TIME));
        assert_eq!(store.progress(id).unwrap().next, next, "after step {number}");
    }
    let last = store.steps(id, 3).next().unwrap().unwrap();
    assert_eq!(store.progress(id).unwrap().last, Some(last.digest));
}

#[test]
fn steps_of_a_superseded_attempt_are_kept_under_it_and_flagged() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.append(vec![], lease(1, 1)).wait().unwrap();
    assert_eq!(put_step(&store, attempt_id(1), 1, 0, b"a"), Ok(IN_TIME));
    store.append(vec![], lease(2, 2)).wait().unwrap();
    assert_eq!(put_step(&store, attempt_id(1), 1, 1, b"b"), Ok(LATE));
    assert_eq!(put_step(&store, attempt_id(1), 1, 1, b"b"), Ok(Receipt { repeated: true, late: true }));
    assert_eq!(put_step(&store, attempt_id(2), 2, 0, b"c"), Ok(IN_TIME));
    let late: Vec<bool> = store.steps(attempt_id(1), 0).map(|step| step.unwrap().late).collect();
    assert_eq!(late, [false, true]);
    assert_eq!(store.steps(attempt_id(2), 0).count(), 1, "a late step became the next attempt's");

    // Nobody has the lease any more: what still comes is late too.
    store.append(vec![], vec![Change::LeaseOver { episode: episode_id() }]).wait().unwrap();
    assert_eq!(put_step(&store, attempt_id(2), 2, 1, b"d"), Ok(LATE));
}

#[test]
fn a_step_of_an_epoch_that_the_attempt_never_had_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.append(vec![], lease(1, 5)).wait().unwrap();
    for (epoch, number) in [(4, 1), (6, 1)] {
        assert_eq!(
            put_step(&store, attempt_id(number), epoch, 0, b"a"),
            Err(ReportError::WrongEpoch { attempt: attempt_id(1), epoch: Epoch(epoch), expected: Epoch(5) })
        );
    }
    assert_eq!(
        put_step(&store, attempt_id(2), 5, 0, b"a"),
        Err(ReportError::UnknownAttempt { attempt: attempt_id(2) })
    );
}

/// Steps and the change of a lease are queued together, so that they share a batch: the
/// order in which they were queued still decides what is late.
#[test]
fn the_epoch_is_checked_in_commit_order_within_a_batch() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.append(vec![], lease(1, 1)).wait().unwrap();
    let steps: Vec<_> = (0..40).map(|number| step(number, &number.to_be_bytes())).collect();
    store.put_blobs(steps.iter().map(|(_, blob)| blob.clone()).collect()).wait().unwrap();
    let mut tickets = Vec::new();
    let mut handover = None;
    for (number, (json, _)) in (0..).zip(steps) {
        if number == 20 {
            handover = Some(store.append(vec![b"lease".to_vec()], lease(2, 2)));
        }
        tickets.push(store.put_step(attempt_id(1), Epoch(1), number, json));
    }
    handover.unwrap().wait().unwrap();
    let late: Vec<bool> = tickets.into_iter().map(|ticket| ticket.wait().unwrap().late).collect();
    assert_eq!(late, [vec![false; 20], vec![true; 20]].concat());
}

#[test]
fn logs_are_kept_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.append(vec![], lease(1, 1)).wait().unwrap();
    let log = Blob::new(b"+ echo\n".to_vec());
    let put = |attempt, epoch, name: &str| store.put_log(attempt, Epoch(epoch), name.to_owned(), *log.digest()).wait();
    assert!(matches!(put(attempt_id(1), 1, "pre_task"), Err(LogError::MissingBlob { .. })));
    store.put_blobs(vec![log.clone()]).wait().unwrap();
    put(attempt_id(1), 1, "pre_task").unwrap();
    put(attempt_id(1), 1, "verifier").unwrap();
    assert!(matches!(put(attempt_id(1), 2, "x"), Err(LogError::UnknownAttempt { .. })));
    for bad in ["", "../x", ".hidden", "a/b", "a\nb"] {
        assert!(matches!(put(attempt_id(1), 1, bad), Err(LogError::BadName { .. })), "{bad:?}");
    }
    let logs = store.logs(attempt_id(1)).unwrap();
    assert_eq!(logs.keys().collect::<Vec<_>>(), ["pre_task", "verifier"]);
    // An attempt's record and its logs share a family and do not meet.
    assert_eq!(store.attempts(episode_id()).unwrap().len(), 1);
}

#[test]
fn recovery_is_the_newest_snapshot_and_what_follows() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let events = |from: u8, to: u8| (from..to).map(|event| vec![event]).collect::<Vec<_>>();
    store.append(events(1, 6), vec![]).wait().unwrap();
    assert_eq!(store.snapshot().unwrap(), None);
    assert_eq!(store.put_snapshot(6, b"state".to_vec()).wait(), Err(PruneError::BeyondJournal { through: 6, last: 5 }));
    assert_eq!(store.prune_journal(1).wait(), Err(PruneError::NoSnapshot { through: 1, snapshot: 0 }));
    store.put_snapshot(2, b"older".to_vec()).wait().unwrap();
    store.put_snapshot(4, b"state".to_vec()).wait().unwrap();
    store.prune_journal(4).wait().unwrap();
    let snapshot = store.snapshot().unwrap().unwrap();
    assert_eq!((snapshot.through, snapshot.state.as_slice()), (4, b"state".as_slice()));
    assert_eq!(store.journal(4).unwrap().iter().map(|entry| entry.sequence).collect::<Vec<_>>(), [5]);
    assert!(matches!(store.journal(1), Err(ReadError::Gap { expected: 2, found: 5 })));

    // A journal that was pruned to its end goes on with the numbers that follow.
    store.put_snapshot(5, b"all".to_vec()).wait().unwrap();
    store.prune_journal(5).wait().unwrap();
    drop(store);
    let store = open(folder.path());
    assert_eq!(store.append(vec![b"next".to_vec()], vec![]).wait(), Ok(6..7));
}

#[test]
fn a_second_writer_is_told_who_has_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let error = Store::open(folder.path(), &options()).unwrap_err();
    assert!(matches!(&error, OpenError::Locked { holder: Some(holder), .. } if holder.pid == std::process::id()));
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let message = error.to_string();
    assert!(message.contains(&format!("process {} on {host}", std::process::id())), "{message}");
    drop(store);
    open(folder.path());
}

#[test]
fn a_format_that_is_not_known_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    store.append(vec![b"event".to_vec()], vec![]).wait().unwrap();
    drop(store);
    let format = folder.path().join("format");
    let before = std::fs::read(&format).unwrap();
    std::fs::write(&format, "longhaul-store 3\n").unwrap();
    for error in
        [Store::open(folder.path(), &options()).unwrap_err(), Reader::open(folder.path()).map(|_| ()).unwrap_err()]
    {
        assert!(matches!(&error, OpenError::UnknownFormat { found, known: 2, .. } if found == "3"), "{error}");
    }
    std::fs::write(&format, before).unwrap();
    assert_eq!(open(folder.path()).journal(0).unwrap().len(), 1);
}

#[test]
fn a_folder_of_something_else_is_not_made_a_store() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("thesis.tex"), "").unwrap();
    assert!(matches!(Store::open(folder.path(), &options()), Err(OpenError::NotEmpty { .. })));
    assert!(matches!(Reader::open(folder.path()), Err(OpenError::NotAStore { .. })));
    assert!(matches!(Reader::open(&folder.path().join("none")), Err(OpenError::NotAStore { .. })));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "it was touched");
}

#[test]
fn the_files_are_their_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    drop(open(&path));
    drop(open(&path));
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o700);
    assert_eq!(mode(&path.join("db")), 0o700);
    for file in ["lock", "format", "db/CURRENT"] {
        assert_eq!(mode(&path.join(file)), 0o600, "{file}");
    }
}

#[test]
fn a_reader_beside_the_writer_sees_what_is_durable() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let blob = Blob::new(vec![3; 100_000]);
    store.put_blobs(vec![blob.clone()]).wait().unwrap();
    store.append(vec![b"one".to_vec()], lease(1, 1)).wait().unwrap();
    let reader = Reader::open(folder.path()).unwrap();
    assert_eq!(reader.blob(blob.digest()).unwrap().as_deref(), Some(blob.bytes()));
    assert_eq!(reader.attempts(episode_id()).unwrap().len(), 1);
    assert_eq!(reader.incarnation(), 7);

    store.append(vec![b"two".to_vec()], lease(2, 2)).wait().unwrap();
    assert_eq!(put_step(&store, attempt_id(2), 2, 0, b"a"), Ok(IN_TIME));
    assert_eq!(reader.attempts(episode_id()).unwrap().len(), 1, "a reader sees one state");
    let reader = Reader::open(folder.path()).unwrap();
    assert_eq!(reader.attempts(episode_id()).unwrap().len(), 2);
    assert_eq!(reader.steps(attempt_id(2), 0).count(), 1);
    drop(store);
    // And without one, after it has gone.
    assert_eq!(Reader::open(folder.path()).unwrap().journal(0).unwrap().len(), 2);
}

#[test]
fn writes_are_refused_before_the_disk_is_full_and_the_journal_last() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = OpenOptions::new(7);
    options.floor.bulk = u64::MAX;
    options.floor.journal = 0;
    let store = Store::open(folder.path(), &options).unwrap();
    store.append(vec![b"event".to_vec()], lease(1, 1)).wait().unwrap();
    let error = store.put_blobs(vec![Blob::new(vec![1])]).wait().unwrap_err();
    assert!(
        matches!(&error, BlobError::Write(WriteError::DiskFull { floor: u64::MAX, path, .. }) if path == folder.path()),
        "{error}"
    );
    // It is no failure of the store: what still fits is written.
    assert_eq!(store.failure(), None);
    store.append(vec![b"event".to_vec()], vec![]).wait().unwrap();
    drop(store);
    options.floor.journal = u64::MAX;
    let store = Store::open(folder.path(), &options).unwrap();
    let error = store.append(vec![b"event".to_vec()], vec![]).wait().unwrap_err();
    assert!(matches!(error, AppendError::Write(WriteError::DiskFull { .. })), "{error}");
    assert_eq!(store.journal(0).unwrap().len(), 2);
}

#[test]
fn a_checkpoint_of_a_store_in_use_is_a_store_of_another_incarnation() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("store"), folder.path().join("copy"));
    let store = open(&path);
    let blob = Blob::new(vec![5; 50_000]);
    store.put_blobs(vec![blob.clone()]).wait().unwrap();
    store.append(vec![b"before".to_vec()], vec![]).wait().unwrap();
    store.checkpoint(&copy).unwrap();
    store.append(vec![b"after".to_vec()], vec![]).wait().unwrap();
    assert!(matches!(store.checkpoint(&copy), Err(OpenError::File { .. })), "a checkpoint over a checkpoint");

    let mut options = options();
    options.incarnation = 8;
    let restored = Store::open(&copy, &options).unwrap();
    assert_eq!(restored.warnings(), [Warning::Restored]);
    assert_eq!(restored.incarnation(), 8);
    assert_eq!(restored.journal(0).unwrap().len(), 1);
    assert_eq!(restored.blob(blob.digest()).unwrap().as_deref(), Some(blob.bytes()));
    drop(restored);
    options.incarnation = 9;
    let again = Store::open(&copy, &options).unwrap();
    assert_eq!((again.warnings().len(), again.incarnation()), (0, 8), "it is restored once");
    assert_eq!(store.incarnation(), 7);
}

#[test]
fn the_end_of_an_attempt_reads_back_whole() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path());
    let mut record = attempt_record(1, 1);
    record.finish = Some(AttemptFinish {
        at: Timestamp(5),
        end: AttemptEnd::Cancelled,
        steps: 3,
        last_step: Some(Digest::of(b"last")),
        notes: AttemptNotes::default(),
        late: true,
    });
    store.append(vec![], vec![Change::Attempt(Box::new(record.clone()))]).wait().unwrap();
    assert_eq!(store.attempt(attempt_id(1)).unwrap(), Some(record));
}
