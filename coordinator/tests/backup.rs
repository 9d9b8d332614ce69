//! Copies of a store in use, and such a copy in the place of a store that was lost, with workers that
//! are played by the test.

mod common;

use std::path::Path;

use common::{FakeWorker, World, png_blob};
use longhaul_core::call::{CallRecord, Certainty, Purpose, PurseKind};
use longhaul_core::digest::Digest;
use longhaul_core::ids::{EpisodeId, Epoch};
use longhaul_core::money::Money;
use longhaul_core::outcome::EndedBy;
use longhaul_core::purse::PurseState;
use longhaul_core::time::{Millis, Timestamp};
use longhaul_proto::convert::{self, LeaseRef};
use longhaul_proto::v1;
use longhaul_proto::v1::from_worker::Message as Up;
use longhaul_proto::v1::to_worker::Message as Down;
use longhaul_store::Reader;
use tonic::{Code, Status};

async fn backup(world: &World, path: &Path) -> Result<(), Status> {
    let request = v1::BackupRequest { path: path.display().to_string() };
    world.control().await.backup(request).await.map(drop)
}

async fn stands(world: &World) -> v1::ShowRestoreResponse {
    world.control().await.show_restore(v1::ShowRestoreRequest {}).await.expect("an answer").into_inner()
}

async fn accept(world: &World, unheard: bool) -> Result<v1::ShowRestoreResponse, Status> {
    let request = v1::AcceptRestoreRequest { by: "somebody".to_owned(), unheard };
    world.control().await.accept_restore(request).await.map(tonic::Response::into_inner)
}

/// The store is gone, and a copy of it is put in its place.
async fn lose(world: World, copy: &Path) -> World {
    let restored = |store: &Path| {
        std::fs::remove_dir_all(store).expect("lost");
        longhaul_store::restore(copy, store).expect("restored");
    };
    world.restart_after(restored).await
}

/// Says what became of the attempt's purse, of which so much was spent; answered with a heartbeat.
async fn spent(worker: &mut FakeWorker, lease: &LeaseRef, settled: u64) {
    let (settled, returned) = (Money::from_nanos(settled), Money::ZERO);
    let state = PurseState { granted: settled, settled, returned, ..PurseState::default() };
    let state = Some(convert::purse(PurseKind::Episode, &state));
    worker.say(Up::EscrowReport(v1::EscrowReport { attempt: Some((*lease).into()), state, closed: true })).await;
    worker.heartbeat(7, &[]).await;
    worker.renewed().await;
}

async fn call(worker: &mut FakeWorker, lease: &LeaseRef, settled: u64) {
    let record = CallRecord {
        number: 0,
        step: 1,
        at: Timestamp(1_700_000_000_000),
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
        reserved: Money::from_nanos(settled),
        settled: Money::from_nanos(settled),
        certainty: Certainty::Reported,
        usage: None,
        shortened_to: None,
        request: Digest::of(&png_blob()),
        response: None,
        parts: Vec::new(),
        service: None,
    };
    let record_json = serde_json::to_vec(&record).expect("JSON").into();
    worker.say(Up::Call(v1::CallReport { attempt: Some((*lease).into()), number: 0, record_json })).await;
    worker
        .until(|message| match message {
            Down::CallAck(ack) => {
                assert_eq!(ack.number, 0);
                Some(())
            }
            _ => None,
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_is_made_of_a_store_that_is_written_to() {
    let world = World::start().await;
    world.submit(1).await;
    let (mut worker, lease) = FakeWorker::with_first_step(&world.access()).await;
    let folder = tempfile::tempdir().expect("a folder");
    for round in 0..5 {
        let copy = folder.path().join(round.to_string());
        let first = 1 + round * 20;
        for number in first..first + 10 {
            worker.step(&lease, number).await;
            assert_eq!(worker.step_ack().await, number);
        }
        // Half of them are on their way while it is copied.
        let copying = backup(&world, &copy);
        let going_on = async {
            for number in first + 10..first + 20 {
                worker.step(&lease, number).await;
                assert_eq!(worker.step_ack().await, number);
            }
        };
        let (copied, ()) = tokio::join!(copying, going_on);
        copied.expect("copied");
        assert!(longhaul_store::verify(&copy).expect("a store").is_sound());
        let steps = Reader::open(&copy).expect("a store").progress(lease.attempt).expect("readable").next;
        assert!((first + 10..=first + 20).contains(&steps), "{steps} steps in copy {round}");
    }
    let taken = backup(&world, &folder.path().join("0")).await.expect_err("it is there");
    assert_eq!(taken.code(), Code::AlreadyExists);
    let relative = backup(&world, Path::new("copy")).await.expect_err("where?");
    assert_eq!(relative.code(), Code::InvalidArgument);
    worker.end_passed(&lease, 101).await;
    assert!(worker.end_ack().await.accepted, "the store goes on");
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restore_nothing_is_spent_before_the_spools_were_heard_and_somebody_accepted() {
    let world = World::start().await;
    let run = world.submit_that_resumes(2).await;
    let (mut first, held) = FakeWorker::with_first_step(&world.access()).await;
    assert!(!stands(&world).await.restored);
    assert_eq!(accept(&world, true).await.expect_err("nothing").code(), Code::FailedPrecondition);
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("copy");
    backup(&world, &copy).await.expect("copied");

    // What the backup does not know.
    first.step(&held, 1).await;
    assert_eq!(first.step_ack().await, 1);
    let mut second = FakeWorker::connect(&world.access(), &[]).await;
    let later = second.lease().await;
    second.put_blob(&png_blob()).await;
    let world = lose(world, &copy).await;
    let warnings = world.coordinator.warnings().join("\n");
    assert!(warnings.contains("longhaul store accept"), "{warnings}");

    // Nobody begins anything, and who held something is told to stop it.
    let mut idle = FakeWorker::connect(&world.access(), &[]).await;
    idle.heartbeat(1, &[]).await;
    assert_eq!((idle.renewed().await, idle.leases()), (Vec::new(), 0));
    let unheard = accept(&world, false).await.expect_err("one is not heard");
    assert!(unheard.message().contains(&first.id.to_string()), "{unheard:?}");
    let mut first = FakeWorker::connect_as(first.id, &world.access(), &[held]).await;
    assert_eq!(first.welcome.stale, [held.into()]);
    first.put_blob(&png_blob()).await;
    first.step(&held, 1).await;
    assert_eq!(first.step_ack().await, 1, "what was acknowledged by the lost store");
    first.heartbeat(1, &[]).await;
    assert_eq!((first.renewed().await, first.leases()), (Vec::new(), 0));

    // What began after the backup is over, and its money counts.
    let mut second = FakeWorker::connect_as(second.id, &world.access(), &[later]).await;
    assert_eq!(second.welcome.stale, [later.into()]);
    second.put_blob(&png_blob()).await;
    call(&mut second, &later, 30).await;
    spent(&mut second, &later, 30).await;
    let known = stands(&world).await;
    assert_eq!((known.after.as_slice(), known.runs.len()), ([later.attempt.to_string()].as_slice(), 1));
    assert_eq!((known.runs[0].open, known.runs[0].known_nanos, known.runs[0].counted_nanos), (2, 0, 30));
    assert!(known.workers.iter().all(|worker| worker.state == "heard"), "{:?}", known.workers);

    // It stays closed over a restart, and opens when somebody says so.
    let world = world.restart().await;
    let unheard = accept(&world, false).await.expect_err("nobody is there");
    assert_eq!(unheard.code(), Code::FailedPrecondition);
    let mut first = FakeWorker::connect_as(first.id, &world.access(), &[]).await;
    first.heartbeat(1, &[]).await;
    assert_eq!((first.renewed().await, first.leases()), (Vec::new(), 0));
    let opened = accept(&world, false).await.expect("it is accepted");
    assert_eq!(opened.accepted_by, "somebody");
    for index in [0, 1] {
        let again = first.lease().await;
        assert_eq!((again.attempt.episode, again.attempt.number), (EpisodeId { run, index }, 2));
        assert!(again.epoch > Epoch(later.epoch.0 + 1_000_000), "no epoch is given twice");
        let kept = world.coordinator.reader().line(again.attempt).expect("readable").map(|line| line.kept.steps);
        assert_eq!(kept, (index == 0).then_some(1), "the step that came late is kept, and is not gone on from");
        first.end_unverified(&again, EndedBy::Steps).await;
        assert!(first.end_ack().await.accepted);
    }
    let spent = world.coordinator.reader().run(run).expect("readable").expect("there").scopes[0].settled;
    assert_eq!(spent, Money::from_nanos(30));
    assert!(world.coordinator.reader().verify().is_sound());
    let world = world.restart().await;
    assert!(world.coordinator.warnings().is_empty(), "{:?}", world.coordinator.warnings());
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_worker_left_of_an_attempt_from_after_the_backup_is_taken_in_from_its_first_step_on() {
    let world = World::start().await;
    world.submit(1).await;
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("copy");
    backup(&world, &copy).await.expect("copied");
    let (_dead, later) = FakeWorker::with_first_step(&world.access()).await;
    let world = lose(world, &copy).await;

    // The next worker on its node delivers it, and has named nothing of it before.
    let mut heir = FakeWorker::connect(&world.access(), &[]).await;
    heir.put_blob(&png_blob()).await;
    heir.step(&later, 0).await;
    heir.closed().await;
    let mut heir = FakeWorker::connect_as(heir.id, &world.access(), &[]).await;
    heir.step(&later, 0).await;
    assert_eq!(heir.step_ack().await, 0, "sent again, it is kept");
    assert_eq!(stands(&world).await.after, [later.attempt.to_string()]);
    world.stop().await;
}
