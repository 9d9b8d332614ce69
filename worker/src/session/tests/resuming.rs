//! Attempts that go on where an earlier one was cut off.

use longhaul_core::agent::Answer;
use longhaul_core::resume::{Kept, Resumed};
use longhaul_core::step::StepRecord;
use longhaul_proto::v1::trajectory_piece::Piece;
use serde_json::json;

use super::*;

const LINES: usize = 6;

/// The second attempt at the episode.
fn second(epoch: u64) -> LeaseRef {
    let first = lease(0, epoch);
    LeaseRef { attempt: AttemptId { number: 2, ..first.attempt }, ..first }
}

impl Scene {
    /// Runs an episode to its end, and keeps its first steps for whoever resumes.
    async fn kept(&self, plan: Digest, steps: u32, change: impl Fn(&mut StepRecord)) -> Kept {
        self.lease(lease(0, 1), plan).await;
        self.ended(lease(0, 1)).await;
        let mut records = self.coordinator.desk.records.lock().unwrap().clone();
        records.truncate(steps as usize);
        records.iter_mut().for_each(change);
        let last = records.last().unwrap().digest().unwrap();
        let kept = Kept { parent: 1, steps, last };
        let attempt = lease(0, 1).attempt.to_string();
        let link = v1::TrajectoryLink { attempt: attempt.clone(), first: 0, end: steps };
        let head = v1::TrajectoryHead { kept_json: serde_json::to_vec(&kept).unwrap().into(), links: vec![link] };
        let step = |record: &StepRecord| {
            Piece::Step(v1::RecordedStep {
                attempt: attempt.clone(),
                number: record.number,
                record_json: serde_json::to_vec(record).unwrap().into(),
            })
        };
        let pieces = std::iter::once(Piece::Head(head)).chain(records.iter().map(step));
        *self.coordinator.desk.kept.lock().unwrap() =
            pieces.map(|piece| v1::TrajectoryPiece { piece: Some(piece) }).collect();
        kept
    }

    async fn resume(&self, lease: LeaseRef, plan: Digest) {
        let plan = plan.as_bytes().to_vec().into();
        let lease = v1::Lease { attempt: Some(lease.into()), plan, resumes: true, ..v1::Lease::default() };
        self.coordinator.say(Down::Lease(lease)).await;
    }

    /// A fresh sandbox draws the same pictures again, in their order.
    fn draw_again(&self) {
        self.world.steps.store(0, Ordering::SeqCst);
    }

    fn resumed(&self) -> Vec<Resumed> {
        self.coordinator.desk.resumed.lock().unwrap().iter().map(|(_, resumed)| resumed.clone()).collect()
    }

    async fn diverged(&self, lease: LeaseRef) -> String {
        let (end, steps) = self.ended(lease).await;
        let AttemptEnd::Fault(fault) = end else { panic!("{end:?}") };
        assert_eq!((fault.class, steps), (FaultClass::ReplayDiverged, 0), "{fault:?}");
        assert!(self.steps(lease).is_empty() && self.resumed().is_empty());
        fault.message
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_resumes_replays_what_is_kept_and_goes_on_from_there() {
    let scene = Scene::start(LONG);
    let plan = scene.plan(LINES);
    let kept = scene.kept(plan, 4, |_| {}).await;
    let (first_end, _) = scene.ended(lease(0, 1)).await;
    scene.draw_again();
    scene.resume(second(2), plan).await;
    let (end, steps) = scene.ended(second(2)).await;
    assert_eq!(end, first_end, "its verifier sees the whole trajectory");
    assert_eq!(steps, 7, "those of the whole chain");
    assert_eq!(scene.steps(second(2)), [4, 5, 6]);
    let resumed = scene.resumed();
    assert_eq!(resumed.iter().map(|resumed| resumed.kept).collect::<Vec<_>>(), [kept]);
    assert!(scene.coordinator.desk.phases.lock().unwrap().contains(&v1::AttemptPhase::Replaying));
    // What was recorded is what is shown: its own steps are as they would have been.
    let records = scene.coordinator.desk.records.lock().unwrap().clone();
    let screens = |from: usize| records[from..from + 3].iter().map(|record| record.screen).collect::<Vec<_>>();
    assert_eq!(screens(4), screens(7));
    scene.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_holds_all_steps_goes_straight_to_its_verdict() {
    let scene = Scene::start(LONG);
    let plan = scene.plan(LINES);
    scene.kept(plan, 7, |_| {}).await;
    let (first_end, _) = scene.ended(lease(0, 1)).await;
    scene.draw_again();
    scene.resume(second(2), plan).await;
    assert_eq!(scene.ended(second(2)).await, (first_end, 7));
    assert!(scene.steps(second(2)).is_empty());
    assert_eq!(scene.resumed().len(), 1);
    scene.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_only_verified_again_is_followed_to_its_end_and_the_agent_not_asked() {
    let scene = Scene::start(LONG);
    let plan = scene.plan(LINES);
    let verifies = |lease: LeaseRef| {
        let plan = plan.as_bytes().to_vec().into();
        let verifies = EndedBy::Time.to_string();
        Down::Lease(v1::Lease { attempt: Some(lease.into()), plan, resumes: true, verifies, ..v1::Lease::default() })
    };
    scene.coordinator.say(verifies(second(3))).await;
    let message = scene.diverged(second(3)).await;
    assert!(message.contains("nothing is kept"), "{message}");
    scene.kept(plan, 5, |_| {}).await;
    scene.draw_again();
    scene.coordinator.say(verifies(second(4))).await;
    let (end, steps) = scene.ended(second(4)).await;
    let AttemptEnd::Verdict(verdict) = end else { panic!("{end:?}") };
    assert_eq!((verdict.ended_by, verdict.score, steps), (EndedBy::Time, 5.0, 5));
    assert!(scene.steps(second(4)).is_empty());
    scene.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_anything_kept_it_starts_like_a_first_attempt() {
    let scene = Scene::start(LONG);
    let plan = scene.plan(2);
    scene.resume(second(2), plan).await;
    assert_eq!(scene.ended(second(2)).await.1, 3);
    assert_eq!(scene.steps(second(2)), [0, 1, 2]);
    assert!(scene.resumed().is_empty());
    scene.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_screen_that_differs_ends_it_at_its_step_and_both_screens_are_shown() {
    let scene = Scene::start(LONG);
    let plan = scene.plan(LINES);
    let other = scene.coordinator.put(b"another picture");
    scene
        .kept(plan, 5, |record| {
            if record.number == 3 {
                record.screen.png = other;
            }
        })
        .await;
    scene.draw_again();
    scene.resume(second(2), plan).await;
    let message = scene.diverged(second(2)).await;
    assert!(message.contains("step 3 of 4") && message.contains("the screen differs"), "{message}");
    let logs = scene.coordinator.desk.logs.lock().unwrap().clone();
    let shown: Vec<_> = logs.iter().filter(|(name, _)| name.starts_with("replay")).collect();
    assert_eq!(shown[0], &("replay-step-00003-recorded.png".to_owned(), other));
    assert_eq!(shown[1].0, "replay-step-00003-found.png");
    assert_eq!(shown[2].0, "replay");
    scene.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_asks_for_something_else_ends_it_before_that_is_done() {
    let scene = Scene::start(LONG);
    let plan = scene.plan(LINES);
    let asked = || vec![json!({"keyboard": {"keys": ["b"]}})];
    scene
        .kept(plan, 5, |record| {
            if record.number == 2 {
                record.answer = Some(Answer { actions: asked(), ..Answer::default() });
            }
        })
        .await;
    scene.draw_again();
    scene.resume(second(2), plan).await;
    let message = scene.diverged(second(2)).await;
    assert!(message.contains("step 2 of 4") && message.contains("the agent asked for"), "{message}");
    assert_eq!(scene.world.steps.load(Ordering::SeqCst), 2, "the first observation, and the step before");
    scene.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_with_a_gap_or_without_its_screenshots_is_not_followed() {
    let scene = Scene::start(LONG);
    let plan = scene.plan(LINES);
    scene.kept(plan, 5, |_| {}).await;
    let whole = scene.coordinator.desk.kept.lock().unwrap().clone();
    scene.coordinator.desk.kept.lock().unwrap().remove(3);
    scene.resume(second(2), plan).await;
    let message = scene.diverged(second(2)).await;
    assert!(message.contains("4 steps where 5 are kept"), "{message}");
    *scene.coordinator.desk.kept.lock().unwrap() = whole;
    let missing = Digest::of(b"nowhere");
    scene
        .coordinator
        .desk
        .kept
        .lock()
        .unwrap()
        .iter_mut()
        .filter_map(|piece| match &mut piece.piece {
            Some(Piece::Step(step)) if step.number == 1 => Some(step),
            _ => None,
        })
        .for_each(|step| {
            let mut record: StepRecord = serde_json::from_slice(&step.record_json).unwrap();
            record.screen.png = missing;
            step.record_json = serde_json::to_vec(&record).unwrap().into();
        });
    scene.draw_again();
    scene.resume(second(3), plan).await;
    let message = scene.diverged(second(3)).await;
    assert!(message.contains("step 1 of 4") && message.contains("is gone"), "{message}");
    scene.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_does_not_live_before_the_coordinator_knows_what_it_goes_on_from() {
    let scene = Scene::start(LONG);
    let plan = scene.plan(LINES);
    scene.kept(plan, 4, |_| {}).await;
    scene.draw_again();
    scene.coordinator.desk.acknowledges.store(false, Ordering::SeqCst);
    scene.resume(second(2), plan).await;
    scene.coordinator.until("it says so", |desk| !desk.resumed.lock().unwrap().is_empty()).await;
    let at = scene.world.steps.load(Ordering::SeqCst);
    assert_eq!(at, 4);
    scene.coordinator.cut();
    scene.coordinator.desk.acknowledges.store(true, Ordering::SeqCst);
    assert_eq!(scene.world.steps.load(Ordering::SeqCst), at, "nothing was done meanwhile");
    scene.coordinator.desk.open.store(true, Ordering::SeqCst);
    assert_eq!(scene.ended(second(2)).await.1, 7);
    assert_eq!(scene.resumed().len(), 2, "it was said again");
    assert_eq!(scene.steps(second(2)), [4, 5, 6]);
    scene.leave().await;
}
