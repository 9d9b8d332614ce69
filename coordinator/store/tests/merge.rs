//! Merging stores: what is over is copied whole, once, and never over something else.

#![expect(clippy::unwrap_used, reason = "what cannot go on fails the test")]

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use common::*;
use longhaul_core::digest::Digest;
use longhaul_core::ids::{Epoch, RunId};
use longhaul_core::money::Money;
use longhaul_core::outcome::{AttemptEnd, Settlement};
use longhaul_core::time::Timestamp;
use longhaul_store::{
    AttemptFinish, Blob, Change, EpisodeState, Merge, MergeError, Merged, OpenError, Reader, RunRecord, Store, verify,
};

/// A store with one run of one episode: three steps, two calls, a log, and a plan that names
/// another blob, which names a third.
fn write(path: &Path, name: &str, over: bool) {
    let store = open(path);
    let file = Blob::new(b"a file".to_vec());
    let tree = Blob::new(format!(r#"{{"entries": [{{"chunks": ["{}"]}}]}}"#, file.digest()).into_bytes());
    let plan = Blob::new(format!(r#"{{"task": "{}"}}"#, tree.digest()).into_bytes());
    let digest = *plan.digest();
    store.put_blobs(vec![file, tree, plan, Blob::new(b"of another run".to_vec())]).wait().unwrap();
    let run = RunRecord { name: name.to_owned(), ..run_record(digest) };
    let mut changes = vec![Change::Run(Box::new(run.clone())), Change::Episode(Box::new(episode_record(digest, 1)))];
    changes.extend(lease(1, 1));
    store.append(vec![b"event".to_vec()], changes).wait().unwrap();
    for number in 0..3 {
        put_step(&store, attempt_id(1), 1, number, &vec![number as u8; 9000]).unwrap();
    }
    for number in 0..2 {
        put_call(&store, attempt_id(1), 1, number, 40).unwrap();
    }
    store.put_log(attempt_id(1), Epoch(1), "pre_task".to_owned(), digest).wait().unwrap();
    if over {
        let mut attempt = attempt_record(1, 1);
        attempt.finish = Some(AttemptFinish {
            at: Timestamp(1_700_000_009_000),
            end: AttemptEnd::Cancelled,
            steps: 3,
            last_step: None,
            notes: longhaul_core::notes::AttemptNotes::default(),
            late: false,
        });
        let mut episode = episode_record(digest, 1);
        episode.state = EpisodeState::Settled {
            settlement: Settlement::Cancelled,
            at: Timestamp(1_700_000_009_000),
            attempt: Some(attempt.id),
        };
        let run = RunRecord { settled_at: Some(Timestamp(1_700_000_009_000)), ..run };
        let changes = vec![
            Change::Attempt(Box::new(attempt)),
            Change::LeaseOver { episode: episode_id() },
            Change::Episode(Box::new(episode)),
            Change::Run(Box::new(run)),
        ];
        store.append(vec![b"event".to_vec()], changes).wait().unwrap();
    }
}

fn merge(from: &[&Path], runs: &[RunId], into: &Path) -> Result<Vec<Merged>, MergeError> {
    merge_told(from, runs, into, |_| {})
}

fn merge_told(from: &[&Path], runs: &[RunId], into: &Path, told: impl FnMut(RunId)) -> Result<Vec<Merged>, MergeError> {
    let from: Vec<PathBuf> = from.iter().map(|path| (*path).to_owned()).collect();
    Merge { from: &from, runs, into, options: &options(), at: Timestamp(1_700_000_100_000) }.run(told)
}

struct Folders(tempfile::TempDir);

impl Folders {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

#[test]
fn a_run_that_is_over_is_copied_with_all_that_it_names_and_only_once() {
    let folders = Folders::new();
    let (from, into) = (folders.path("from"), folders.path("into"));
    write(&from, "a run", true);
    let merged = merge(&[&from], &[], &into).unwrap();
    let [one] = merged.as_slice() else { panic!("{merged:?}") };
    assert_eq!((one.run, one.existed, one.name.as_str()), (run_id(), false, "a run"));
    let tally = one.tally;
    assert_eq!((tally.episodes, tally.attempts, tally.steps, tally.calls), (1, 1, 3, 2));
    assert_eq!(tally.settled, Money::from_nanos(80));

    let found = verify(&into).unwrap();
    assert_eq!(found.findings, []);
    let (a, b) = (Reader::open(&from).unwrap(), Reader::open(&into).unwrap());
    assert_eq!(a.runs().unwrap(), b.runs().unwrap());
    assert_eq!(a.episodes(run_id()).unwrap(), b.episodes(run_id()).unwrap());
    assert_eq!(a.attempts(episode_id()).unwrap(), b.attempts(episode_id()).unwrap());
    assert_eq!(a.logs(attempt_id(1)).unwrap(), b.logs(attempt_id(1)).unwrap());
    let steps = |reader: &Reader| reader.steps(attempt_id(1), 0).map(Result::unwrap).collect::<Vec<_>>();
    assert_eq!(steps(&a), steps(&b));
    assert_eq!(a.call_progress(attempt_id(1)).unwrap(), b.call_progress(attempt_id(1)).unwrap());
    assert!(b.blob(&Digest::of(b"a file")).unwrap().is_some(), "what a plan's files name is not there");
    assert!(b.blob(&Digest::of(b"of another run")).unwrap().is_none(), "what no record names was copied");
    assert!(b.journal(0).unwrap().is_empty(), "events of another coordinator were copied");
    assert_eq!(b.arrival(run_id()).unwrap().map(|arrival| arrival.whole), Some(true));
    drop((a, b));

    // Again, from there or from a copy of it, and back: it is there already.
    assert!(merge(&[&from], &[], &into).unwrap()[0].existed);
    assert!(merge(&[&into], &[], &from).unwrap()[0].existed);
    assert_eq!(verify(&into).unwrap(), found);
}

#[test]
fn what_cannot_be_merged_is_refused_by_name_before_anything_is_written() {
    let folders = Folders::new();
    let (live, over, other, into) =
        (folders.path("live"), folders.path("over"), folders.path("other"), folders.path("into"));
    write(&live, "a run", false);
    write(&over, "a run", true);
    write(&other, "another run", true);

    let error = merge(&[&live], &[], &into).unwrap_err();
    assert_eq!(error.to_string(), format!("run {} of {} is not over", run_id(), live.display()));
    assert!(!into.exists());
    let unknown = RunId::new(Timestamp(1), 1);
    assert!(matches!(merge(&[&over], &[unknown], &into), Err(MergeError::NoRun { run }) if run == unknown));
    assert!(matches!(merge(&[&over], &[], &over), Err(MergeError::Same { .. })));
    assert!(matches!(merge(&[&over, &other], &[], &into), Err(MergeError::Differs { .. })));
    assert!(!into.exists());

    merge(&[&over], &[], &into).unwrap();
    let before = verify(&into).unwrap();
    let error = merge(&[&other], &[], &into).unwrap_err();
    assert!(matches!(error, MergeError::Differs { .. }), "{error}");
    assert_eq!(verify(&into).unwrap(), before);
    assert_eq!(Reader::open(&into).unwrap().run(run_id()).unwrap().unwrap().name, "a run");
}

#[test]
fn stores_that_somebody_has_open_are_not_merged() {
    let folders = Folders::new();
    let (from, into) = (folders.path("from"), folders.path("into"));
    write(&from, "a run", true);
    let is_locked = |error| matches!(error, MergeError::Open(OpenError::Locked { .. }));
    let held: Store = open(&from);
    assert!(is_locked(merge(&[&from], &[], &into).unwrap_err()));
    drop(held);
    let held: Store = open(&into);
    assert!(is_locked(merge(&[&from], &[], &into).unwrap_err()));
    drop(held);
    merge(&[&from], &[], &into).unwrap();
}

#[test]
fn a_merge_that_is_cut_short_anywhere_shows_nothing_and_is_gone_on_with() {
    let folders = Folders::new();
    let (from, other) = (folders.path("from"), folders.path("other"));
    write(&from, "a run", true);
    write(&other, "another run", true);
    let mut writes = 0;
    merge_told(&[&from], &[], &folders.path("whole"), |_| writes += 1).unwrap();
    assert!(writes > 5, "{writes}");
    let sound = verify(&folders.path("whole")).unwrap();
    // After the last write all is there.
    for stop in 1..writes {
        let into = folders.path(&format!("into-{stop}"));
        let mut count = 0;
        let cut = catch_unwind(AssertUnwindSafe(|| {
            merge_told(&[&from], &[], &into, |_| {
                count += 1;
                assert!(count < stop, "cut short");
            })
        }));
        assert!(cut.is_err());
        assert_eq!(Reader::open(&into).unwrap().runs().unwrap(), []);
        let found = verify(&into).unwrap();
        let said: Vec<String> = found.findings.iter().map(ToString::to_string).collect();
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("was cut short"), "{said:?}");
        // Another run of that id would be mixed with what is there.
        assert!(matches!(merge(&[&other], &[], &into), Err(MergeError::Begun { .. })));

        assert!(!merge(&[&from], &[], &into).unwrap()[0].existed);
        assert_eq!(verify(&into).unwrap(), sound);
    }
}

#[test]
fn a_blob_that_is_missing_is_named_and_the_run_is_not_shown() {
    let folders = Folders::new();
    let (from, into) = (folders.path("from"), folders.path("into"));
    let missing = Digest::of(b"nowhere");
    let store = open(&from);
    let run = RunRecord { settled_at: Some(Timestamp(1_700_000_009_000)), episodes: 0, ..run_record(missing) };
    store.append(vec![], vec![Change::Run(Box::new(run))]).wait().unwrap();
    drop(store);
    let error = merge(&[&from], &[], &into).unwrap_err();
    assert!(matches!(error, MergeError::MissingBlob { digest, .. } if digest == missing), "{error}");
    assert_eq!(Reader::open(&into).unwrap().runs().unwrap(), []);
}

#[test]
fn a_store_is_read_whose_writer_has_closed_a_log() {
    let folders = Folders::new();
    let path = folders.path("store");
    let store = open(&path);
    // More than is buffered: the log is closed, and noted in the manifest.
    for number in 0..90_u32 {
        let bytes = number.to_be_bytes().repeat(256 * 1024);
        store.put_blobs(vec![Blob::new(bytes)]).wait().unwrap();
    }
    let digest = Digest::of(&3_u32.to_be_bytes().repeat(256 * 1024));
    assert!(Reader::open(&path).unwrap().blob(&digest).unwrap().is_some(), "beside the writer");
    drop(store);
    assert!(Reader::open(&path).unwrap().blob(&digest).unwrap().is_some(), "without it");
    assert!(verify(&path).unwrap().is_sound());
}
