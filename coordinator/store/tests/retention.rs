//! Retention: pictures of runs that are over are dropped, the rest stays, and the disk has its space back.

#![expect(clippy::unwrap_used, reason = "what cannot go on fails the test")]

mod common;

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use common::*;
use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, EpisodeId, Epoch, RunId};
use longhaul_core::outcome::Settlement;
use longhaul_core::time::Timestamp;
use longhaul_store::{
    Blob, Change, EpisodeRecord, EpisodeState, Merge, Pruned, Pruning, PruningError, Reader, RunRecord, Store, verify,
};

const SETTLED: Timestamp = Timestamp(1_700_000_900_000);
const NOW: Timestamp = Timestamp(1_700_009_000_000);

fn run(number: u32) -> RunId {
    RunId::new(Timestamp(1_700_000_000_000), number)
}

fn attempt(number: u32) -> AttemptId {
    AttemptId { episode: EpisodeId { run: run(number), index: 0 }, number: 1 }
}

/// A picture that packs badly; the first one is the same in all runs.
fn picture(of: u32, step: u32) -> Vec<u8> {
    let mut state = u64::from(if step == 0 { 0 } else { of * 1_000 + step }) + 7;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..100_000).map(|_| next()).collect()
}

/// A run of so many steps, with a call that has a large part and a small one, and three logs.
fn play(store: &Store, number: u32, steps: u32, settled: Option<Timestamp>) {
    let plan = Blob::new(format!("the plan of {number}").into_bytes());
    let digest = *plan.digest();
    store.put_blobs(vec![plan]).wait().unwrap();
    let id = attempt(number);
    let record = RunRecord { id: run(number), settled_at: settled, ..run_record(digest) };
    let state = match settled {
        Some(at) => EpisodeState::Settled { settlement: Settlement::Cancelled, at, attempt: Some(id) },
        None => EpisodeState::Active { attempt: id },
    };
    let episode = EpisodeRecord { id: id.episode, state, ..episode_record(digest, 1) };
    let changes = vec![
        Change::Run(Box::new(record)),
        Change::Episode(Box::new(episode)),
        Change::Attempt(Box::new(longhaul_store::AttemptRecord { id, ..attempt_record(1, 1) })),
        Change::Lease { attempt: id, epoch: Epoch(1), resumes: false },
    ];
    store.append(vec![], changes).wait().unwrap();
    for step in 0..steps {
        put_step(store, id, 1, step, &picture(number, step)).unwrap();
    }
    let (mut call, _, blobs) = call(0, 40);
    let large = Blob::new(picture(number, 900));
    call.parts.push(*large.digest());
    store.put_blobs(blobs.into_iter().chain([large]).collect()).wait().unwrap();
    store.put_call(id, Epoch(1), 0, serde_json::to_vec(&call).unwrap()).wait().unwrap();
    let logs = [
        ("setup", format!("the log of {number}").into_bytes()),
        ("found.png", picture(number, 901)),
        ("snapshot-step-00001.sqsh", picture(number, 902)),
    ];
    for (name, bytes) in logs {
        let blob = Blob::new(bytes);
        let digest = *blob.digest();
        store.put_blobs(vec![blob]).wait().unwrap();
        store.put_log(id, Epoch(1), name.to_owned(), digest).wait().unwrap();
    }
}

fn prune(path: &Path, runs: &[RunId], before: Option<Timestamp>, dry_run: bool) -> Result<Vec<Pruned>, PruningError> {
    Pruning { path, runs, before, dry_run, options: &options(), at: NOW }.run()
}

/// What the folder takes of the disk.
fn du(path: &Path) -> u64 {
    let entries = std::fs::read_dir(path).unwrap().map(Result::unwrap);
    entries
        .map(|entry| match entry.metadata().unwrap() {
            facts if facts.is_dir() => du(&entry.path()),
            facts => facts.blocks() * 512,
        })
        .sum()
}

fn has(reader: &Reader, bytes: &[u8]) -> bool {
    reader.blob(&Digest::of(bytes)).unwrap().is_some()
}

#[test]
fn the_pictures_of_an_old_run_are_dropped_and_du_shrinks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let store = open(&path);
    play(&store, 1, 100, Some(SETTLED));
    play(&store, 2, 20, Some(NOW));
    play(&store, 3, 3, None);
    drop(store);
    let before = du(&path);
    assert!(before > 12_000_000, "{before}");

    assert!(matches!(prune(&path, &[run(9)], None, false), Err(PruningError::NoRun { .. })));
    assert!(matches!(prune(&path, &[run(3)], None, false), Err(PruningError::NotOver { .. })));
    let would = prune(&path, &[], Some(NOW), true).unwrap();
    assert_eq!(would.len(), 1, "the other one was over later, and the third is not");
    assert_eq!((would[0].run, would[0].blobs), (run(1), 102), "99 screens, a part of a call, a picture and a snapshot");
    assert!(has(&Reader::open(&path).unwrap(), &picture(1, 5)), "nothing was dropped yet");
    assert_eq!(prune(&path, &[], Some(NOW), false).unwrap(), would);

    let after = du(&path);
    assert!(after * 2 < before, "{before} bytes became {after}");
    let reader = Reader::open(&path).unwrap();
    assert_eq!(reader.verify().findings, [], "what is gone is not missed");
    for (of, step) in [(1, 0), (2, 0), (2, 19), (2, 900), (2, 901), (3, 2)] {
        assert!(has(&reader, &picture(of, step)), "picture {step} of run {of}: others name it too, or it stays");
    }
    for step in [1, 50, 99, 900, 901, 902] {
        assert!(!has(&reader, &picture(1, step)), "picture {step}");
    }
    for text in ["the plan of 1", "the log of 1", "request 0", "response 0", "part 0"] {
        assert!(has(&reader, text.as_bytes()), "{text}");
    }
    assert_eq!(reader.steps(attempt(1), 0).count(), 100);
    assert_eq!(reader.call_progress(attempt(1)).unwrap().totals.calls, 1);
    let dropped = reader.dropped(run(1)).unwrap().unwrap();
    assert_eq!((dropped.at, dropped.blobs, dropped.whole), (NOW, 102, true));
    assert_eq!(reader.dropped(run(2)).unwrap(), None);
    drop(reader);

    assert_eq!(prune(&path, &[], Some(NOW), false).unwrap(), [], "it is done");
    let again = prune(&path, &[run(1)], None, false).unwrap();
    assert_eq!(again[0].blobs, 0);
    // The same picture may come again.
    let store = open(&path);
    assert_eq!(store.put_blobs(vec![Blob::new(picture(1, 5))]).wait(), Ok(1));
    drop(store);
    assert!(verify(&path).unwrap().is_sound());
    // What two dropped runs share goes with the second of them.
    prune(&path, &[run(2)], None, false).unwrap();
    assert!(has(&Reader::open(&path).unwrap(), &picture(1, 0)), "the third has it still");
    assert!(verify(&path).unwrap().is_sound());
}

#[test]
fn a_run_without_its_pictures_is_merged_and_stays_without() {
    let folder = tempfile::tempdir().unwrap();
    let (path, into) = (folder.path().join("store"), folder.path().join("into"));
    let store = open(&path);
    play(&store, 1, 4, Some(SETTLED));
    drop(store);
    let whole = folder.path().join("whole");
    let merge_whole =
        Merge { from: std::slice::from_ref(&path), runs: &[], into: &whole, options: &options(), at: NOW };
    assert!(!merge_whole.run(|_| ()).unwrap()[0].existed);
    prune(&path, &[run(1)], None, false).unwrap();
    assert!(merge_whole.run(|_| ()).unwrap()[0].existed, "with its pictures or without them, it is the same run");
    assert!(has(&Reader::open(&whole).unwrap(), &picture(1, 1)), "and keeps those that it has");
    let merge = Merge { from: std::slice::from_ref(&path), runs: &[], into: &into, options: &options(), at: NOW };
    let merged = merge.run(|_| ()).unwrap();
    assert_eq!((merged[0].tally.steps, merged[0].existed), (4, false));
    let reader = Reader::open(&into).unwrap();
    assert!(reader.dropped(run(1)).unwrap().is_some() && !has(&reader, &picture(1, 1)));
    assert_eq!(reader.verify().findings, []);
    assert!(merge.run(|_| ()).unwrap()[0].existed, "it is there");
}
