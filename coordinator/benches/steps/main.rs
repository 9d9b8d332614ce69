//! How many steps a coordinator acknowledges, each synced before; how long one waits for that; what they
//! take on the disk; and how long a large store takes to be open again.
//!
//! `cargo bench -p longhaul-coordinator --bench steps --profile dev` prints rows of docs/performance.md;
//! `-- --recovery EPISODES STEPS` makes a store of so many episodes of so many steps each and opens it.
//! Coordinator and played workers share this process, its processors and the disk of `TMPDIR`.

#![expect(clippy::print_stdout, reason = "the rows are what it is for")]

#[path = "../../tests/common/mod.rs"]
mod common;
mod recovery;

use std::path::Path;
use std::time::{Duration, Instant};

use common::{FakeWorker, World};
use longhaul_core::digest::Digest;
use longhaul_proto::access::Access;
use rand::{RngCore as _, SeedableRng as _};
use tokio::sync::{mpsc, watch};

/// Sessions at one time.
const SESSIONS: [u32; 3] = [1, 100, 500];

/// For how long each number of them is measured.
const TIME: Duration = Duration::from_secs(10);

/// A screenshot of a desktop of 1280x720 has some 40 kB, which cannot be packed any further.
const PNG_BYTES: usize = 40_000;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--recovery") {
        let number = |index: usize| arguments.get(at + index).and_then(|text| text.parse().ok()).expect("two numbers");
        return recovery::measure(number(1), number(2)).await;
    }
    for sessions in SESSIONS {
        measure(sessions).await;
    }
}

/// How often a session says that it is there.
const BEAT: Duration = Duration::from_millis(500);

/// One session: its waits from a step to its acknowledgement, one step after the other, once it may start.
async fn session(
    access: Access,
    index: u64,
    ready: mpsc::Sender<()>,
    mut start: watch::Receiver<bool>,
) -> Vec<Duration> {
    let mut worker = FakeWorker::connect(&access, &[]).await;
    let lease = worker.lease_while_beating().await;
    ready.send(()).await.expect("somebody waits for it");
    let mut beats = 1000;
    while !*start.borrow() {
        // Whoever says nothing for long has no session any more.
        let _changed = tokio::time::timeout(BEAT, start.changed()).await;
        beats += 1;
        worker.heartbeat(beats, &[lease]).await;
    }
    let mut noise = rand::rngs::StdRng::seed_from_u64(index);
    let mut png = vec![0; PNG_BYTES];
    let mut waits = Vec::new();
    let (until, mut beaten) = (Instant::now() + TIME, Instant::now());
    let mut number = 0;
    while Instant::now() < until {
        if beaten.elapsed() >= BEAT {
            (beats, beaten) = (beats + 1, Instant::now());
            worker.heartbeat(beats, &[lease]).await;
        }
        noise.fill_bytes(&mut png);
        let began = Instant::now();
        worker.put_blob(&png).await;
        worker.step_showing(&lease, number, Digest::of(&png)).await;
        assert_eq!(worker.step_ack().await, number, "another step was acknowledged");
        waits.push(began.elapsed());
        number += 1;
    }
    waits
}

async fn measure(sessions: u32) {
    let world = World::start_unpaced().await;
    let run = world.submit_many(usize::try_from(sessions).expect("a few")).await;
    let (say_start, start) = watch::channel(false);
    let (ready, mut readies) = mpsc::channel(1000);
    let mut running = Vec::new();
    for index in 0..u64::from(sessions) {
        running.push(tokio::spawn(session(world.access(), index, ready.clone(), start.clone())));
    }
    for _ in 0..sessions {
        readies.recv().await.expect("each is ready at some time");
    }
    say_start.send_replace(true);
    let began = Instant::now();
    let mut waits = Vec::new();
    for task in running {
        waits.extend(task.await.expect("a session"));
    }
    let took = began.elapsed();
    let steps = waits.len();
    waits.sort_unstable();
    let at = |percent: usize| waits.get(steps * percent / 100).copied().unwrap_or_default().as_secs_f64() * 1000.0;
    let how = format!("each with the next one as soon as one is acknowledged, for {} s", TIME.as_secs());
    let rate = f64::from(u32::try_from(steps).unwrap_or(u32::MAX)) / took.as_secs_f64();
    println!("| steps acknowledged in a second, {sessions} sessions | {rate:.0} | {how}; a screenshot of 40 kB each |");
    println!("| from a step to its acknowledgement, {sessions} sessions: p50 | {:.1} ms | the same |", at(50));
    println!("| from a step to its acknowledgement, {sessions} sessions: p99 | {:.1} ms | the same |", at(99));
    assert!(world.settlement(run, 0).is_none(), "it is live");
    // Opened once more: what only logs hold is written to where it stays.
    let kept = world.restart().await.stop_and_keep().await;
    let all = u64::try_from(steps.max(1)).unwrap_or(u64::MAX);
    let (bytes, logs) = (on_disk(kept.path(), ""), on_disk(kept.path(), ".log"));
    println!(
        "| bytes on the disk for each step, {sessions} sessions | {} | by {PNG_BYTES} of its screenshot; {steps} steps, \
         {} MiB of logs beside it |",
        (bytes - logs) / all,
        logs / (1 << 20)
    );
}

/// The bytes that the files of a folder take whose names end so.
pub(crate) fn on_disk(folder: &Path, end: &str) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let entries = std::fs::read_dir(folder).expect("a folder").flatten();
    let sizes = entries.map(|entry| {
        let facts = entry.metadata().expect("a file");
        if facts.is_dir() {
            return on_disk(&entry.path(), end);
        }
        if entry.file_name().to_string_lossy().ends_with(end) { facts.blocks() * 512 } else { 0 }
    });
    sizes.sum()
}

/// Whoever measures recovery asks with it.
pub(crate) async fn answers(access: &Access) -> bool {
    common::status(access).await.is_ok()
}
