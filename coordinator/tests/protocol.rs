//! The coordinator with a real store and real sockets, and a worker that is played by the
//! test: what it says goes over the wire as a real one's would.

mod common;

use std::collections::BTreeSet;

use common::{FakeWorker, World, episode_id, png_blob};
use longhaul_core::outcome::{EndedBy, Fault, FaultClass, SettlementKind};
use longhaul_proto::access::{Access, AccessError, Address, Secret};
use longhaul_proto::v1;
use longhaul_proto::v1::to_worker::Message as Down;
use longhaul_store::EpisodeState;
use tonic::Streaming;

#[tokio::test(flavor = "multi_thread")]
async fn a_run_goes_to_its_verdicts() {
    let world = World::start().await;
    let run = world.submit(2).await;
    let mut worker = FakeWorker::connect(&world.access(), &[]).await;
    let mut follow = world.follow(run).await;
    for _ in 0..2 {
        let lease = worker.lease().await;
        worker.put_blob(&png_blob()).await;
        for number in 0..3 {
            worker.step(&lease, number).await;
            assert_eq!(worker.step_ack().await, number);
        }
        worker.log(&lease, "post_start.log", b"all is well").await;
        worker.end_passed(&lease, 3).await;
        assert!(worker.end_ack().await.accepted);
    }
    let mut settled = Vec::new();
    let last = loop {
        let update = follow.message().await.expect("an update").expect("not the end");
        settled.extend(update.settled.iter().map(|row| (row.task.clone(), row.state.clone(), row.steps)));
        if update.done {
            break update;
        }
    };
    settled.sort();
    // The first observation is no step of the agent.
    let expected = |task: &str| (task.to_owned(), "passed".to_owned(), 2);
    assert_eq!(settled, [expected("calc_env/task0"), expected("calc_env/task1")]);
    let summary = last.summary.expect("a summary");
    assert_eq!((summary.passed, summary.benchmark.as_str()), (2, "/nowhere"));
    let listed = common::status(&world.access()).await.expect("a status").runs;
    assert_eq!(listed.iter().map(|run| run.benchmark.as_str()).collect::<Vec<_>>(), ["/nowhere"]);

    let answer = world.control().await.get_episode(v1::GetEpisodeRequest { episode_id: episode_id(run, 0) }).await;
    let episode = answer.expect("an episode").into_inner();
    assert_eq!(episode.attempts_json.len(), 1);
    assert_eq!(episode.logs.len(), 1);
    assert_eq!(episode.logs[0].name, "post_start.log");
    world.stop().await;
}

/// Follows until the run has settled; how many rows each update had.
async fn followed(follow: &mut Streaming<v1::RunUpdate>) -> Vec<usize> {
    let (mut rows, mut seen) = (Vec::new(), BTreeSet::new());
    loop {
        let update = follow.message().await.expect("an update").expect("not the end");
        rows.push(update.settled.len());
        assert!(update.settled.iter().all(|row| row.settlement_json.is_empty() && row.state == "cancelled"));
        seen.extend(update.settled.into_iter().map(|row| row.episode_id));
        if update.done {
            assert_eq!(seen.len(), rows.iter().sum::<usize>(), "each of them once");
            return rows;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_of_a_large_run_hear_of_all_of_it_in_messages_of_a_bounded_size() {
    let world = World::start().await;
    let run = world.submit_many(2_500).await;
    let cancel = v1::CancelRequest { run_id: run.to_string(), by: "me".to_owned() };
    let live = async {
        // Followed before anything settles, and as all of it does.
        let mut follow = world.follow(run).await;
        follow.message().await.expect("an update").expect("the run as it is");
        world.control().await.cancel(cancel).await.expect("cancelled");
        followed(&mut follow).await
    };
    for rows in [live.await, followed(&mut world.follow(run).await).await] {
        assert_eq!(rows.iter().sum::<usize>(), 2_500);
        assert!(rows.iter().all(|rows| *rows <= 1_000), "{rows:?}");
    }
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_counts_only_once_all_its_steps_are_stored() {
    let world = World::start().await;
    let run = world.submit(1).await;
    let (mut worker, lease) = FakeWorker::with_first_step(&world.access()).await;
    worker.end_passed(&lease, 2).await;
    let ack = worker.end_ack().await;
    assert!(!ack.accepted, "a step is missing");
    assert_eq!(ack.resend_from, 1);
    worker.step(&lease, 1).await;
    assert_eq!(worker.step_ack().await, 1);
    worker.end_passed(&lease, 2).await;
    assert!(worker.end_ack().await.accepted);
    // The acknowledgement may get lost: the same end comes again, and changes nothing.
    worker.end_passed(&lease, 2).await;
    assert!(worker.end_ack().await.accepted);
    let record = world.coordinator.reader().attempt(lease.attempt).expect("readable").expect("there");
    assert!(!record.finish.expect("finished").late);
    assert_eq!(world.settlement(run, 0), Some(SettlementKind::Passed));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_goes_on_over_a_restart_of_the_coordinator() {
    let world = World::start().await;
    let run = world.submit(1).await;
    let (worker, lease) = FakeWorker::with_first_step(&world.access()).await;
    let incarnation = worker.welcome.incarnation.clone();
    let id = worker.id;
    drop(worker);

    let world = world.restart().await;
    let mut worker = FakeWorker::connect_as(id, &world.access(), &[lease]).await;
    assert_eq!(worker.welcome.incarnation, incarnation);
    assert_eq!(worker.welcome.stale, [], "the lease outlives the coordinator");
    worker.heartbeat(1, &[lease]).await;
    assert_eq!(worker.renewed().await.len(), 1);
    // It cannot know whether the step had arrived: it sends it again, and goes on.
    for number in 0..2 {
        worker.step(&lease, number).await;
        assert_eq!(worker.step_ack().await, number);
    }
    worker.end_passed(&lease, 2).await;
    assert!(worker.end_ack().await.accepted);
    let record = world.coordinator.reader().episode(lease.attempt.episode).expect("readable").expect("there");
    assert_eq!(record.attempts, 1);
    assert_eq!(world.settlement(run, 0), Some(SettlementKind::Passed));

    // What was settled stays so over the next restart, and the run is known by its id.
    let world = world.restart().await;
    assert_eq!(world.settlement(run, 0), Some(SettlementKind::Passed));
    assert!(world.submit_as(run, 1).await.expect("accepted").existed);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_late_is_kept_and_decides_nothing() {
    let world = World::start_with_short_leases().await;
    let run = world.submit(1).await;
    let (first, stale) = FakeWorker::with_first_step(&world.access()).await;
    let id = first.id;
    drop(first);

    // Nobody renews: the episode goes to another worker, under a larger epoch.
    let mut second = FakeWorker::connect(&world.access(), &[]).await;
    let lease = second.lease_while_beating().await;
    assert_eq!(lease.attempt.episode, stale.attempt.episode);
    assert!(lease.epoch > stale.epoch);

    let mut first = FakeWorker::connect_as(id, &world.access(), &[stale]).await;
    assert_eq!(first.welcome.stale.len(), 1, "it is told at once");
    first.step(&stale, 1).await;
    assert_eq!(first.step_ack().await, 1, "kept, so that the worker may let it go");
    first.end_passed(&stale, 2).await;
    assert!(first.end_ack().await.accepted);
    assert_eq!(world.settlement(run, 0), None);
    let record = world.coordinator.reader().attempt(stale.attempt).expect("readable").expect("there");
    assert!(record.finish.expect("finished").late);
    let late: Vec<bool> =
        world.coordinator.reader().steps(stale.attempt, 0).map(|step| step.expect("readable").late).collect();
    assert_eq!(late, [false, true]);

    second.end_fault(&lease, Fault { class: FaultClass::Display, message: "gone".to_owned(), log_tail: None }).await;
    assert!(second.end_ack().await.accepted);
    let record = world.coordinator.reader().episode(lease.attempt.episode).expect("readable").expect("there");
    assert!(!matches!(record.state, EpisodeState::Settled { .. }), "a fault is tried again");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_run_is_revoked_and_settles() {
    let world = World::start().await;
    let run = world.submit(3).await;
    let mut worker = FakeWorker::connect_with_slots(&world.access(), 1).await;
    let lease = worker.lease().await;
    let request = v1::CancelRequest { run_id: run.to_string(), by: "a test".to_owned() };
    let answer = world.control().await.cancel(request.clone()).await.expect("cancelled");
    assert_eq!(answer.into_inner().cancelled, 3);
    let Down::Revoke(revoke) = worker.next().await else { panic!("a revoke is expected") };
    assert_eq!(revoke.reason(), v1::RevokeReason::Cancelled);
    worker.end_cancelled(&lease).await;
    assert!(worker.end_ack().await.accepted);
    for index in 0..3 {
        assert_eq!(world.settlement(run, index), Some(SettlementKind::Cancelled), "{index}");
    }
    let again = world.control().await.cancel(request).await.expect("idempotent");
    assert_eq!(again.into_inner().cancelled, 0);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_gives_a_lease_back_gets_no_other() {
    let world = World::start().await;
    let run = world.submit(1).await;
    let mut stopping = FakeWorker::connect_with_slots(&world.access(), 1).await;
    let lease = stopping.lease().await;
    let fault = Fault { class: FaultClass::Preempted, message: "told to stop".to_owned(), log_tail: None };
    stopping.end_fault(&lease, fault.clone()).await;
    let Down::Drain(_) = stopping.next().await else { panic!("no lease, and a drain, are expected") };
    assert!(stopping.end_ack().await.accepted);
    assert_eq!(stopping.leases(), 0);
    // Another one gets it at once.
    let mut other = FakeWorker::connect_with_slots(&world.access(), 1).await;
    assert_eq!(other.lease().await.attempt.episode, lease.attempt.episode);
    assert_eq!(world.settlement(run, 0), None);
    // What a dead worker had left on its node says nothing about the one that delivers it.
    other.end_fault(&lease, fault).await;
    let Down::EndAck(ack) = other.next().await else { panic!("no drain is expected") };
    assert!(ack.accepted);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_worker_builds_a_layer_and_the_others_wait() {
    let world = World::start().await;
    world.submit(2).await;
    let mut one = FakeWorker::connect_with_slots(&world.access(), 1).await;
    one.lease().await;
    let mut other = FakeWorker::connect_with_slots(&world.access(), 1).await;
    other.lease().await;
    use v1::layer_answer::Answer;
    one.claim_layer().await;
    assert!(matches!(one.layer_answer().await, Answer::Build(_)));
    other.claim_layer().await;
    assert!(matches!(other.layer_answer().await, Answer::Wait(_)));
    one.layer_ready().await;
    assert!(matches!(other.layer_answer().await, Answer::Ready(_)));
    let layers = world.control().await.list_layers(v1::ListLayersRequest::default()).await.expect("layers");
    let layers = layers.into_inner().layers;
    assert_eq!(layers.len(), 1);
    assert_eq!((layers[0].state.as_str(), layers[0].builds), ("ready", 1));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_is_taken_only_with_all_that_it_names() {
    let world = World::start().await;
    let run = world.new_run();
    let refused = world.submit_without_blobs(run).await.expect_err("blobs are missing");
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
    assert!(!world.submit_as(run, 1).await.expect("accepted").existed);
    assert!(world.submit_as(run, 1).await.expect("accepted").existed, "the same once more");
    let taken = world.submit_as(run, 2).await.expect_err("another plan under this id");
    assert_eq!(taken.code(), tonic::Code::AlreadyExists);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blobs_are_checked_and_come_back_whole() {
    let world = World::start().await;
    let large: Vec<u8> = (0..5_000_000_u32).flat_map(u32::to_le_bytes).take(5_000_000).collect();
    let digest = world.put_blob(&large).await;
    assert_eq!(world.get_blob(&digest).await.expect("there"), large);
    let empty = world.put_blob(&[]).await;
    assert_eq!(world.get_blob(&empty).await.expect("there"), b"");
    let wrong = world.put_blob_as(&digest, b"something else").await.expect_err("other bytes");
    assert_eq!(wrong.code(), tonic::Code::InvalidArgument);
    let absent = longhaul_core::digest::Digest::of(b"never put");
    assert_eq!(world.get_blob(&absent).await.expect_err("not there").code(), tonic::Code::NotFound);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_talks_nonsense_loses_its_session_alone() {
    let world = World::start().await;
    world.submit(1).await;
    let old = FakeWorker::try_connect_with_version(&world.access(), 999).await.expect_err("another protocol");
    assert_eq!(old.code(), tonic::Code::FailedPrecondition);
    let mut worker = FakeWorker::connect_with_slots(&world.access(), 1).await;
    let lease = worker.lease().await;
    worker.say(v1::from_worker::Message::Step(v1::StepReport { attempt: None, ..v1::StepReport::default() })).await;
    assert_eq!(worker.closed().await.expect("a reason").code(), tonic::Code::InvalidArgument);
    // The lease is still its own when it comes back.
    let mut worker = FakeWorker::connect_as(worker.id, &world.access(), &[lease]).await;
    assert_eq!(worker.welcome.stale, []);
    worker.put_blob(&png_blob()).await;
    worker.step(&lease, 0).await;
    assert_eq!(worker.step_ack().await, 0);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn from_other_machines_only_certificate_and_token_together_let_in() {
    let world = World::start_with_tls().await;
    let path = world.coordinator.remote_access().expect("it listens").to_owned();
    let access = Access::read(&path).expect("an access file");
    let Address::Tls { host, port, ca_pem, .. } = access.address.clone() else { panic!("a TLS address") };
    let status = common::status(&access).await.expect("the right token");
    assert_eq!(status.runs.len(), 0);

    let wrong = Secret::new("0".repeat(64));
    let address = Address::Tls { host: host.clone(), port, ca_pem, token: wrong };
    let refused = common::status(&Access::new(address)).await.expect_err("the wrong token");
    assert_eq!(refused.code(), tonic::Code::Unauthenticated);

    let other = World::start_with_tls().await;
    let other_access = Access::read(other.coordinator.remote_access().expect("it listens")).expect("an access file");
    let Address::Tls { ca_pem, token, .. } = other_access.address else { panic!("a TLS address") };
    let address = Address::Tls { host, port, ca_pem, token };
    let error = Access::new(address).connect().await.expect_err("another authority");
    assert!(matches!(error, AccessError::Unreachable { .. }), "{error:?}");
    other.stop().await;
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_socket_and_all_secrets_are_the_users_alone() {
    use std::os::unix::fs::PermissionsExt;
    let world = World::start_with_tls().await;
    let mode = |path: &std::path::Path| std::fs::metadata(path).expect("there").permissions().mode() & 0o777;
    let access = Access::read(world.coordinator.local_access()).expect("an access file");
    let Address::Unix { path } = access.address else { panic!("a unix socket") };
    assert_eq!(mode(&path), 0o600);
    assert_eq!(mode(path.parent().expect("a folder")), 0o700);
    assert_eq!(mode(world.coordinator.local_access()), 0o600);
    assert_eq!(mode(world.coordinator.remote_access().expect("it listens")), 0o600);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_has_one_coordinator() {
    let world = World::start().await;
    let second = world.start_second().await.expect_err("the store is in use");
    assert!(matches!(second, longhaul_coordinator::StartError::Open(longhaul_store::OpenError::Locked { .. })));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_journal_that_cannot_be_written_stops_the_coordinator_and_answers_nobody() {
    let world = World::start_on_a_full_disk().await;
    let limit = std::time::Duration::from_secs(60);
    tokio::time::timeout(limit, world.coordinator.failed()).await.expect("it stops");
    let access = world.access();
    // Whether a client is refused or finds nobody, it is told nothing that is not durable.
    if let Ok(connection) = access.connect().await {
        let mut control = v1::control_service_client::ControlServiceClient::new(connection);
        let refused = control.status(v1::StatusRequest {}).await.expect_err("no answer");
        assert_eq!(refused.code(), tonic::Code::Unavailable);
    }
    let error = world.coordinator.stop().await.expect_err("it failed");
    assert!(matches!(error, longhaul_coordinator::ActorError::Append(_)), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_ends_when_nothing_is_live() {
    let world = World::start().await;
    let run = world.submit(2).await;
    let mut worker = FakeWorker::connect_with_slots(&world.access(), 1).await;
    let lease = worker.lease().await;
    let drained = async {
        world.coordinator.drain("a test").await;
    };
    let finished = async {
        let Down::Drain(_) = worker.next().await else { panic!("a drain is expected") };
        worker.end_unverified(&lease, EndedBy::Agent).await;
        assert!(worker.end_ack().await.accepted);
    };
    tokio::join!(drained, finished);
    assert_eq!(world.settlement(run, 0), Some(SettlementKind::Unverified));
    assert_eq!(world.settlement(run, 1), None, "nothing new was started");
    world.stop().await;
}
