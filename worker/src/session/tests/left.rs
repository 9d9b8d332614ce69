//! What dead workers left on a node, in the hands of the next one.

use longhaul_core::step::{Screenshot, StepRecord, StepTiming};

use super::*;
use crate::spool::{AttemptSpool, Meter, Record};

/// The spool of a dead worker on this node, with one step.
fn left_behind(scratch: &Path) {
    let dead = scratch.join("workers/0000000000000/spool");
    std::fs::create_dir_all(&dead).unwrap();
    let step = StepRecord {
        number: 0,
        at: Timestamp(1),
        answer: None,
        outcomes: Vec::new(),
        screen: Screenshot { png: Digest::of(b"png"), width: 1, height: 1 },
        rested: true,
        timing: StepTiming::default(),
        calls: Vec::new(),
        told: None,
        unreadable: Vec::new(),
        round: None,
        stirred: Vec::new(),
    };
    let json = serde_json::to_string(&step).unwrap();
    let mut spool = AttemptSpool::create(&dead, lease(0, 1), Meter::default()).unwrap();
    spool.append(&Record::Step { number: 0, png: Digest::of(b"png"), json }, &[(Digest::of(b"png"), b"png")]).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_dead_worker_left_is_delivered_by_the_next_one_on_the_node() {
    let folder = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(folder.path(), LONG);
    let scratch = folder.path().join("scratch");
    left_behind(&scratch);
    let (trigger, shutdown) = Shutdown::new();
    let endpoint = Endpoint::Unix { path: coordinator.socket.clone(), token: None };
    let driver = Arc::new(FolderDriver(Arc::new(World::default())));
    let worker = tokio::spawn(run_with(config(&scratch), endpoint, shutdown, driver));
    coordinator.until("the late step", |desk| desk.steps.lock().unwrap().contains(&(lease(0, 1), 0))).await;
    assert!(coordinator.desk.hellos.lock().unwrap()[0].live.is_empty(), "it is not this worker's");
    let gone = || !scratch.join("workers/0000000000000").exists();
    coordinator.until("the dead worker's folder is gone", |_| gone()).await;
    trigger.signal();
    worker.await.unwrap().unwrap();
}

/// A store that cannot keep it will not tomorrow: it is not sent for ever, holds up nobody who wants to
/// leave, and is not thrown away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_store_refuses_of_a_dead_worker_is_left_on_the_disk_and_no_worker_waits_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(folder.path(), LONG);
    coordinator.desk.acknowledges.store(false, Ordering::SeqCst);
    let scratch = folder.path().join("scratch");
    left_behind(&scratch);
    let (_trigger, shutdown) = Shutdown::new();
    let endpoint = Endpoint::Unix { path: coordinator.socket.clone(), token: None };
    let driver = Arc::new(FolderDriver(Arc::new(World::default())));
    let worker = tokio::spawn(run_with(config(&scratch), endpoint, shutdown, driver));
    coordinator.until("the late step", |desk| desk.steps.lock().unwrap().contains(&(lease(0, 1), 0))).await;
    coordinator.say(Down::Revoke(revoke(lease(0, 1), v1::RevokeReason::Refused))).await;
    coordinator.say(Down::Drain(v1::Drain { reason: "enough".to_owned() })).await;
    tokio::time::timeout(LONG, worker).await.expect("it leaves").unwrap().unwrap();
    let left = std::fs::read_dir(scratch.join("workers")).unwrap().flatten();
    let spools: Vec<_> = left
        .filter_map(|worker| std::fs::read_dir(worker.path().join("spool")).ok())
        .flat_map(Iterator::flatten)
        .map(|spool| spool.file_name())
        .collect();
    assert_eq!(spools.len(), 1, "{spools:?}");
}
