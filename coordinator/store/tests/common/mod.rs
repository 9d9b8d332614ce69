//! What the tests of the store share: a store in a folder of its own, and small records.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::path::Path;

use longhaul_core::call::{CallRecord, Certainty, Purpose};
use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, EpisodeId, Epoch, RunId, WorkerId};
use longhaul_core::money::Money;
use longhaul_core::step::{Screenshot, StepRecord, StepTiming};
use longhaul_core::time::{Millis, Timestamp};
use longhaul_store::{AttemptRecord, Blob, Change, EpisodeRecord, EpisodeState, OpenOptions, RunRecord, Store};

/// A floor that the disk of a test machine does not reach.
pub(crate) fn options() -> OpenOptions {
    let mut options = OpenOptions::new(7);
    options.floor.bulk = 1024 * 1024;
    options.floor.journal = 1024 * 1024;
    options
}

pub(crate) fn open(path: &Path) -> Store {
    Store::open(path, &options()).unwrap()
}

pub(crate) fn run_id() -> RunId {
    RunId::new(Timestamp(1_700_000_000_000), 1)
}

pub(crate) fn episode_id() -> EpisodeId {
    EpisodeId { run: run_id(), index: 0 }
}

pub(crate) fn attempt_id(number: u32) -> AttemptId {
    AttemptId { episode: episode_id(), number }
}

pub(crate) fn run_record(plan: Digest) -> RunRecord {
    RunRecord {
        id: run_id(),
        name: "a run".to_owned(),
        benchmark: "examples".to_owned(),
        plan,
        episodes: 1,
        submitted_at: Timestamp(1_700_000_000_000),
        cancelled: None,
        settled_at: None,
        scopes: Vec::new(),
        file: None,
    }
}

pub(crate) fn episode_record(plan: Digest, attempts: u32) -> EpisodeRecord {
    EpisodeRecord {
        id: episode_id(),
        task: "draw_env/circle".parse().unwrap(),
        agent: "idle".to_owned(),
        sample: 0,
        plan,
        attempts,
        state: EpisodeState::Queued,
        earlier: Vec::new(),
    }
}

pub(crate) fn attempt_record(number: u32, epoch: u64) -> AttemptRecord {
    AttemptRecord {
        id: attempt_id(number),
        epoch: Epoch(epoch),
        worker: WorkerId::new(Timestamp(1_700_000_000_000), 2),
        hostname: "node1".to_owned(),
        started: Timestamp(1_700_000_001_000),
        finish: None,
    }
}

/// The changes that start an attempt.
pub(crate) fn lease(number: u32, epoch: u64) -> Vec<Change> {
    vec![
        Change::Attempt(Box::new(attempt_record(number, epoch))),
        Change::Lease { attempt: attempt_id(number), epoch: Epoch(epoch), resumes: false },
    ]
}

pub(crate) fn step_record(number: u32, png: Digest) -> StepRecord {
    StepRecord {
        number,
        at: Timestamp(1_700_000_002_000 + u64::from(number)),
        answer: None,
        outcomes: Vec::new(),
        screen: Screenshot { png, width: 640, height: 480 },
        rested: true,
        timing: StepTiming::default(),
        calls: Vec::new(),
        told: None,
        unreadable: Vec::new(),
        round: None,
        stirred: Vec::new(),
    }
}

/// A step's JSON, and the blob of its screenshot.
pub(crate) fn step(number: u32, screen: &[u8]) -> (Vec<u8>, Blob) {
    let blob = Blob::new(screen.to_vec());
    let record = step_record(number, *blob.digest());
    (serde_json::to_vec(&record).unwrap(), blob)
}

/// A settled call, its JSON, and the blobs that it names.
pub(crate) fn call(number: u32, settled: u64) -> (CallRecord, Vec<u8>, Vec<Blob>) {
    let blobs = ["request", "response", "part"].map(|what| Blob::new(format!("{what} {number}").into_bytes()));
    let record = CallRecord {
        number,
        step: 1,
        at: Timestamp(1_700_000_002_000),
        took: Millis(20),
        purpose: Purpose::Agent,
        endpoint: "stand-in".to_owned(),
        model: "some-model".to_owned(),
        model_reported: None,
        fingerprint: None,
        request_id: None,
        retry_of: None,
        status: Some(200),
        error: None,
        reserved: Money::from_nanos(100),
        settled: Money::from_nanos(settled),
        certainty: Certainty::Reported,
        usage: None,
        shortened_to: None,
        request: *blobs[0].digest(),
        response: Some(*blobs[1].digest()),
        parts: vec![*blobs[2].digest()],
        service: None,
    };
    let json = serde_json::to_vec(&record).unwrap();
    (record, json, blobs.into())
}

/// Puts the blobs and the call.
pub(crate) fn put_call(
    store: &Store,
    attempt: AttemptId,
    epoch: u64,
    number: u32,
    settled: u64,
) -> Result<longhaul_store::Receipt, longhaul_store::ReportError> {
    let (_, json, blobs) = call(number, settled);
    store.put_blobs(blobs).wait().unwrap();
    store.put_call(attempt, Epoch(epoch), number, json).wait()
}

/// Puts the screenshot and the step.
pub(crate) fn put_step(
    store: &Store,
    attempt: AttemptId,
    epoch: u64,
    number: u32,
    screen: &[u8],
) -> Result<longhaul_store::Receipt, longhaul_store::ReportError> {
    let (json, blob) = step(number, screen);
    store.put_blobs(vec![blob]).wait().unwrap();
    store.put_step(attempt, Epoch(epoch), number, json).wait()
}
