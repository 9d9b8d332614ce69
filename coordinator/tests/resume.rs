//! Episodes that go on in the middle, and runs that go on after anything, over the wire, with workers
//! that are played by the test.

mod common;

use common::{FakeWorker, World};
use longhaul_core::ids::RunId;
use longhaul_core::outcome::{EndedBy, SettlementKind};
use longhaul_core::resume::{Kept, Resumed, Way};
use longhaul_core::time::{Millis, Timestamp};
use longhaul_proto::convert::{self, LeaseRef};
use longhaul_proto::v1;
use longhaul_proto::v1::from_worker::Message as Up;
use longhaul_proto::v1::to_worker::Message as Down;
use longhaul_proto::v1::trajectory_piece::Piece;
use longhaul_proto::v1::trajectory_service_client::TrajectoryServiceClient;
use tonic::{Code, Status};

/// The lease that comes next, with all that it says.
async fn lease(worker: &mut FakeWorker) -> (LeaseRef, v1::Lease) {
    let lease = worker.until(|message| if let Down::Lease(lease) = message { Some(lease) } else { None }).await;
    (convert::lease(lease.attempt.as_ref()).expect("a lease"), lease)
}

/// What an attempt gets of what it keeps.
#[derive(Debug)]
struct Got {
    kept: Option<Kept>,
    /// The numbers of the steps with the attempts that took them.
    steps: Vec<(String, u32)>,
    /// The names of the logs.
    logs: Vec<String>,
}

/// What the attempt keeps.
async fn record(world: &World, lease: &LeaseRef) -> Result<Got, Status> {
    let connection = world.access().connect().await.expect("reachable");
    let request = v1::TrajectoryRequest { attempt: Some((*lease).into()) };
    let mut pieces = TrajectoryServiceClient::new(connection).get(request).await?.into_inner();
    let mut got = Got { kept: None, steps: Vec::new(), logs: Vec::new() };
    while let Some(piece) = pieces.message().await? {
        match piece.piece.expect("a piece") {
            Piece::Head(head) if head.kept_json.is_empty() => {}
            Piece::Head(head) => got.kept = Some(serde_json::from_slice(&head.kept_json).expect("JSON")),
            Piece::Step(step) => got.steps.push((step.attempt, step.number)),
            Piece::Log(log) => got.logs.push(log.name),
            Piece::Call(call) => panic!("there is no call: {call:?}"),
        }
    }
    Ok(got)
}

async fn stands(worker: &mut FakeWorker, lease: &LeaseRef, kept: Kept) {
    let resumed = Resumed {
        way: Way::Replay,
        kept,
        at: Timestamp(1_700_000_100_000),
        took: Millis(50),
        answered: 0,
        differing: 0,
        remarks: Vec::new(),
    };
    let record_json = serde_json::to_vec(&resumed).expect("JSON").into();
    worker.say(Up::Resumed(v1::AttemptResumed { attempt: Some((*lease).into()), record_json })).await;
    let ack = worker.until(|message| if let Down::ResumedAck(ack) = message { Some(ack) } else { None }).await;
    assert_eq!(ack.attempt, Some((*lease).into()));
}

async fn go_on(world: &World, run: RunId, kinds: &[&str]) -> Result<v1::ResumeRunResponse, Status> {
    let kinds = kinds.iter().map(|kind| (*kind).to_owned()).collect();
    let request = v1::ResumeRunRequest { run_id: run.to_string(), kinds, by: "somebody".to_owned() };
    world.control().await.resume_run(request).await.map(tonic::Response::into_inner)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_episode_goes_on_with_the_next_step_on_another_worker() {
    let world = World::start().await;
    let run = world.submit_that_resumes(1).await;
    let (mut first, cut_off) = FakeWorker::with_first_step(&world.access()).await;
    first.step(&cut_off, 1).await;
    assert_eq!(first.step_ack().await, 1);
    // A snapshot of a step that is none of the chain's is of a course that nobody goes on with.
    for name in ["setup", "snapshot-step-00001.json", "snapshot-step-00002.json"] {
        first.log(&cut_off, name, name.as_bytes()).await;
    }
    first.say(Up::Leaving(v1::Leaving { reason: "its time is over".to_owned() })).await;
    first.closed().await;

    // The record is there for who holds the lease, also after a restart of the coordinator.
    let world = world.restart().await;
    let mut second = FakeWorker::connect(&world.access(), &[]).await;
    let (held, told) = lease(&mut second).await;
    assert!(told.resumes && told.verifies.is_empty(), "{told:?}");
    let Got { kept, steps, logs } = record(&world, &held).await.expect("read");
    let kept = kept.expect("something is kept");
    assert_eq!(logs, ["setup", "snapshot-step-00001.json"]);
    assert_eq!((kept.parent, kept.steps), (cut_off.attempt.number, 2));
    let by = cut_off.attempt.to_string();
    assert_eq!(steps, [(by.clone(), 0), (by.clone(), 1)]);
    let over = record(&world, &cut_off).await.expect_err("its lease is over");
    assert_eq!(over.code(), Code::FailedPrecondition);

    // A step before it stands there is refused, and so is the whole attempt then.
    stands(&mut second, &held, kept).await;
    second.step(&held, 2).await;
    assert_eq!(second.step_ack().await, 2);
    second.end_passed(&held, 3).await;
    assert!(second.end_ack().await.accepted, "the chain is whole");
    assert_eq!(world.settlement(run, 0), Some(SettlementKind::Passed));
    let reader = world.coordinator.reader();
    let chain: Vec<_> = reader
        .trajectory(held.attempt)
        .expect("readable")
        .map(|step| step.expect("readable"))
        .map(|(by, step)| (by.number, step.number))
        .collect();
    assert_eq!(chain, [(1, 0), (1, 1), (2, 2)]);
    let request = v1::GetEpisodeRequest { episode_id: held.attempt.episode.to_string() };
    let row = world.control().await.get_episode(request).await.expect("there").into_inner();
    assert_eq!(row.row.expect("a row").steps, 2, "two answers in all");
    assert_eq!(row.lines.len(), 1);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_before_the_attempt_stands_where_it_is_to_go_on_is_refused() {
    let world = World::start().await;
    world.submit_that_resumes(1).await;
    let (first, _) = FakeWorker::with_first_step(&world.access()).await;
    first.say(Up::Leaving(v1::Leaving { reason: "its time is over".to_owned() })).await;
    let mut second = FakeWorker::connect(&world.access(), &[]).await;
    let (held, _) = lease(&mut second).await;
    second.step(&held, 0).await;
    let revoke = second.until(|message| if let Down::Revoke(revoke) = message { Some(revoke) } else { None }).await;
    assert_eq!(revoke.attempt, Some(held.into()));
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_run_that_had_settled_goes_on() {
    let world = World::start().await;
    let run = world.submit_that_resumes(2).await;
    let (mut worker, live) = FakeWorker::with_first_step(&world.access()).await;
    let request = v1::CancelRequest { run_id: run.to_string(), by: "somebody".to_owned() };
    world.control().await.cancel(request).await.expect("cancelled");
    worker.end(&live, &longhaul_core::outcome::AttemptEnd::Cancelled, 1).await;
    // After the order to stop.
    worker.until(|message| if let Down::EndAck(ack) = message { Some(ack) } else { None }).await;
    for index in [0, 1] {
        assert_eq!(world.settlement(run, index), Some(SettlementKind::Cancelled));
    }
    // The engine has forgotten it, and the coordinator knows it from its store alone.
    let world = world.restart().await;
    assert_eq!(
        go_on(&world, run, &["faulted"]).await.expect("nothing to do"),
        v1::ResumeRunResponse { again: 0, open: 0 }
    );
    let nonsense = go_on(&world, run, &["everything"]).await.expect_err("no kind");
    assert_eq!(nonsense.code(), Code::InvalidArgument);
    let answer = go_on(&world, run, &["cancelled"]).await.expect("it goes on");
    assert_eq!(answer, v1::ResumeRunResponse { again: 2, open: 2 });
    let again = go_on(&world, run, &["cancelled"]).await.expect("once more");
    assert_eq!(again, v1::ResumeRunResponse { again: 0, open: 2 });

    let mut worker = FakeWorker::connect_with_slots(&world.access(), 1).await;
    let (held, told) = lease(&mut worker).await;
    assert_eq!((held.attempt.episode, held.attempt.number), (live.attempt.episode, 2));
    assert!(told.resumes, "it goes on where it was");
    let Got { kept, .. } = record(&world, &held).await.expect("read");
    stands(&mut worker, &held, kept.expect("its first observation")).await;
    worker.end_passed(&held, 1).await;
    worker.end_ack().await;
    assert_eq!(world.settlement(run, 0), Some(SettlementKind::Passed));
    let earlier = world.coordinator.reader().episode(held.attempt.episode).expect("readable").expect("there").earlier;
    assert_eq!((earlier.len(), earlier[0].by.as_str()), (1, "somebody"), "how it was settled before is kept");

    // And so it is after the next restart.
    let world = world.restart().await;
    let answer = go_on(&world, run, &[]).await.expect("it is open");
    assert_eq!(answer, v1::ResumeRunResponse { again: 0, open: 1 });
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_could_verify_is_verified_again_alone() {
    let world = World::start().await;
    let run = world.submit(1).await;
    let (mut worker, first) = FakeWorker::with_first_step(&world.access()).await;
    worker.end_unverified(&first, EndedBy::Steps).await;
    worker.end_ack().await;
    assert_eq!(world.settlement(run, 0), Some(SettlementKind::Unverified));
    let answer = go_on(&world, run, &["unverified"]).await.expect("it goes on");
    assert_eq!(answer, v1::ResumeRunResponse { again: 1, open: 1 });
    let (held, told) = lease(&mut worker).await;
    assert!(told.resumes, "also where a run may only start again: {told:?}");
    assert_eq!(told.verifies, "steps", "what had ended the agent's part");
    let Got { kept, .. } = record(&world, &held).await.expect("read");
    stands(&mut worker, &held, kept.expect("its first observation")).await;
    worker.end_passed(&held, 1).await;
    worker.end_ack().await;
    assert_eq!(world.settlement(run, 0), Some(SettlementKind::Passed));
    world.stop().await;
}

/// `format-1` was written by the last program before attempts could resume: a run of one episode,
/// submitted and not begun. (Of RocksDB's files the one with its options is left out.)
#[tokio::test(flavor = "multi_thread")]
async fn a_store_of_format_1_is_read_raised_and_its_runs_go_on() {
    let example = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/format-1");
    assert_eq!(std::fs::read_to_string(example.join("format")).expect("a format"), "longhaul-store 1\n");
    let world = World::start_on("format-1").await;
    let format = std::fs::read_to_string(world.store().join("format")).expect("a format");
    assert_eq!(format, "longhaul-store 2\n", "an earlier program is kept out from now on");
    let run = world.coordinator.reader().runs().expect("readable").pop().expect("a run");
    assert_eq!((run.name.as_str(), run.episodes), ("an earlier run", 1));
    let answer = go_on(&world, run.id, &["cancelled"]).await.expect("it is open");
    assert_eq!(answer, v1::ResumeRunResponse { again: 0, open: 1 });
    let (mut worker, held) = FakeWorker::with_first_step(&world.access()).await;
    worker.end_passed(&held, 1).await;
    worker.end_ack().await;
    assert_eq!(world.settlement(run.id, 0), Some(SettlementKind::Passed));
    let world = world.restart().await;
    assert_eq!(world.settlement(run.id, 0), Some(SettlementKind::Passed));
    assert!(world.coordinator.reader().verify().is_sound());
    world.stop().await;
}
