//! The coordinator under load: who does not read, and a journal that grows.

mod common;

use common::{FakeWorker, World, episode_id, png_blob};
use longhaul_core::outcome::SettlementKind;
use longhaul_proto::v1;
use longhaul_store::ReadError;

/// So many heartbeats are not answered to a worker that reads no answer: each has a hundred of
/// them, of which some ten thousand fit into its connection's window, and a thousand wait behind it.
const MOST_UNREAD: u64 = 20_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_never_reads_loses_its_session_and_stalls_nobody() {
    let world = World::start().await;
    // All there is to do is leased before the other one is there.
    let mut worker = FakeWorker::connect_with_slots(&world.access(), 3).await;
    let run = world.submit(3).await;
    let mut leases = Vec::new();
    for _ in 0..3 {
        leases.push(worker.lease().await);
    }
    let deaf = FakeWorker::connect(&world.access(), &[]).await;
    let deaf_id = deaf.id.to_string();
    let served = async {
        worker.put_blob(&png_blob()).await;
        for lease in &leases {
            for number in 0..20 {
                worker.step(lease, number).await;
                assert_eq!(worker.step_ack().await, number);
            }
            worker.end_passed(lease, 20).await;
            assert!(worker.end_ack().await.accepted);
        }
    };
    let (said, ()) = tokio::join!(deaf.flood(MOST_UNREAD), served);
    assert!(said.is_some(), "the answers to {MOST_UNREAD} heartbeats are kept for a worker that reads none");
    for index in 0..3 {
        assert_eq!(world.settlement(run, index), Some(SettlementKind::Passed));
    }
    let gone = || async {
        let status = common::status(&world.access()).await.expect("it answers");
        status.workers.iter().all(|row| row.worker_id != deaf_id || !row.connected)
    };
    while !gone().await {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_journal_is_cut_under_load_and_what_it_said_is_still_so() {
    let world = World::start().await;
    let live = world.submit(1).await;
    let (mut worker, lease) = FakeWorker::with_first_step(&world.access()).await;
    // Runs of thousands of episodes come and go; the attempt goes on beside them.
    let mut cancelled = Vec::new();
    let mut number = 1;
    // The first events are gone once a snapshot has them.
    while !matches!(world.coordinator.reader().journal(0), Err(ReadError::Gap { expected: 1, .. })) {
        assert!(cancelled.len() < 10, "the journal is not cut after {} runs", cancelled.len());
        let run = world.submit_many(1500).await;
        let request = v1::CancelRequest { run_id: run.to_string(), by: "a test".to_owned() };
        let cancel = async { world.control().await.cancel(request).await.expect("cancelled").into_inner().cancelled };
        let step = async {
            for _ in 0..5 {
                worker.step(&lease, number).await;
                assert_eq!(worker.step_ack().await, number);
                number += 1;
            }
        };
        let (count, ()) = tokio::join!(cancel, step);
        assert_eq!(count, 1500);
        cancelled.push(run);
    }
    assert!(world.coordinator.reader().snapshot().expect("readable").is_some());
    assert!(world.coordinator.reader().verify().is_sound());
    let id = worker.id;
    drop(worker);

    let world = world.restart().await;
    let mut worker = FakeWorker::connect_as(id, &world.access(), &[lease]).await;
    assert_eq!(worker.welcome.stale, [], "the lease is in the snapshot");
    worker.step(&lease, number).await;
    assert_eq!(worker.step_ack().await, number);
    worker.end_passed(&lease, number + 1).await;
    assert!(worker.end_ack().await.accepted);
    assert_eq!(world.settlement(live, 0), Some(SettlementKind::Passed));
    let runs = common::status(&world.access()).await.expect("a status").runs;
    for run in &cancelled {
        let row = runs.iter().find(|row| row.run_id == run.to_string()).expect("a run that was forgotten is listed");
        assert_eq!((row.cancelled, row.episodes), (1500, 1500));
        let last = v1::GetEpisodeRequest { episode_id: episode_id(*run, 1499) };
        let row = world.control().await.get_episode(last).await.expect("an episode").into_inner().row.expect("a row");
        assert_eq!(row.state, "cancelled");
    }
    world.stop().await;
}
