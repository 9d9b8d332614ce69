//! A whole worker against a coordinator that speaks the real service, with sandboxes that
//! are folders: leases, outages, parking, fencing and the way out.

mod gpus;
mod left;
mod pressure;
mod resuming;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use longhaul_core::agent::AgentPlan;
use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, EpisodeId, Epoch, RunId, WorkerId};
use longhaul_core::outcome::{AttemptEnd, EndedBy, FaultClass};
use longhaul_core::plan::{EnvPlan, LayerKind, LayerPin, Scoring, TaskPlan, Tree, TreeEntry, TreeNode};
use longhaul_core::time::Timestamp;
use longhaul_proto::convert::LeaseRef;
use longhaul_proto::v1;
use longhaul_proto::v1::to_worker::Message as Down;
use tokio::task::JoinHandle;

use crate::testing::coordinator::Coordinator;
use crate::testing::plans;
use crate::testing::sandbox::{FolderDriver, World};
use crate::{Endpoint, NodeLimits, Shutdown, ShutdownTrigger, WorkerConfig, WorkerError, run_with};

const LONG: Duration = Duration::from_secs(600);

struct Scene {
    folder: tempfile::TempDir,
    coordinator: Coordinator,
    world: Arc<World>,
    shutdown: ShutdownTrigger,
    worker: JoinHandle<Result<(), WorkerError>>,
}

pub(crate) fn config(scratch: &Path) -> WorkerConfig {
    WorkerConfig {
        carry_layers: false,
        id: WorkerId::new(Timestamp(1), 7),
        hostname: "node".to_owned(),
        scratch: scratch.to_owned(),
        layers: scratch.join("layers"),
        image: scratch.join("base.sif"),
        bases: BTreeMap::new(),
        helper_program: scratch.join("helper"),
        limits: NodeLimits { disk_floor_mib: 0, ..NodeLimits::default() },
        gpus: None,
        certificates: Vec::new(),
        hook_env: BTreeMap::new(),
        slurm_job_id: None,
        allocation: None,
        grace: Duration::from_secs(20),
        verify_limit: Duration::from_secs(20),
        park_limit: LONG,
        replay_patience: Duration::from_millis(300),
    }
}

impl Scene {
    fn start(ttl: Duration) -> Self {
        Self::with(ttl, |_| {})
    }

    /// With a worker that is told something else.
    fn with(ttl: Duration, change: impl FnOnce(&mut WorkerConfig)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let coordinator = Coordinator::start(folder.path(), ttl);
        let world = Arc::new(World::default());
        let mut config = config(&folder.path().join("scratch"));
        change(&mut config);
        let endpoint = Endpoint::Unix { path: coordinator.socket.clone(), token: None };
        let (shutdown, heard) = Shutdown::new();
        let worker = tokio::spawn(run_with(config, endpoint, heard, Arc::new(FolderDriver(Arc::clone(&world)))));
        Self { folder, coordinator, world, shutdown, worker }
    }

    /// A plan of an episode whose script has this many lines.
    fn plan(&self, lines: usize) -> Digest {
        self.held_to(lines, Vec::new())
    }

    /// The same, where the env has to stand on these layers.
    fn held_to(&self, lines: usize, pins: Vec<LayerPin>) -> Digest {
        let script = (0..lines).map(|_| "{\"keyboard\": {\"keys\": [\"a\"]}}\n").collect::<String>();
        let coordinator = &self.coordinator;
        let verifier = b"def verify(traj, env_info, task_info):\n    n = len(traj['frames'])\n    return {'passed': n > 1, 'score': n}\n";
        let entry = |path: &str, bytes: &[u8]| TreeEntry {
            path: path.to_owned(),
            node: TreeNode::File { executable: false, size: bytes.len() as u64, chunks: vec![coordinator.put(bytes)] },
        };
        let files =
            coordinator.put_json(&Tree { entries: vec![entry("setup.sh", b"x"), entry("verifier.py", verifier)] });
        let env = coordinator.put_json(&EnvPlan {
            tasks_target: Some("/workspace/tasks".to_owned()),
            pre_start: Some("install".to_owned()),
            post_start: Some("configure".to_owned()),
            reset: Some("reset".to_owned()),
            pins,
            ..plans::env(coordinator.put_json(&Tree::default()))
        });
        let task = coordinator.put_json(&TaskPlan {
            pre_task: Some("setup".to_owned()),
            post_task: Some("export".to_owned()),
            scoring: Scoring::Program { file: "verifier.py".to_owned(), function: "verify".to_owned() },
            ..plans::task(env, files)
        });
        let agent = AgentPlan::Scripted { script: coordinator.put(script.as_bytes()) };
        coordinator.put_json(&plans::episode(task, agent))
    }

    async fn lease(&self, lease: LeaseRef, plan: Digest) {
        let plan = plan.as_bytes().to_vec().into();
        self.coordinator
            .say(Down::Lease(v1::Lease { attempt: Some(lease.into()), plan, ..v1::Lease::default() }))
            .await;
    }

    fn steps(&self, lease: LeaseRef) -> Vec<u32> {
        let steps = self.coordinator.desk.steps.lock().unwrap();
        steps.iter().filter(|(seen, _)| *seen == lease).map(|(_, number)| *number).collect()
    }

    async fn ended(&self, lease: LeaseRef) -> (AttemptEnd, u32) {
        self.coordinator
            .until("the end", |desk| desk.ends.lock().unwrap().iter().any(|(seen, ..)| *seen == lease))
            .await;
        let ends = self.coordinator.desk.ends.lock().unwrap();
        ends.iter().find(|(seen, ..)| *seen == lease).map(|(_, end, steps)| (end.clone(), *steps)).unwrap()
    }

    /// Stops the worker in order; what it left is in the folder.
    async fn leave(self) -> tempfile::TempDir {
        self.shutdown.signal();
        self.worker.await.unwrap().unwrap();
        self.folder
    }
}

fn lease(index: u32, epoch: u64) -> LeaseRef {
    let episode = EpisodeId { run: RunId::new(Timestamp(1), 1), index };
    LeaseRef { attempt: AttemptId { episode, number: 1 }, epoch: Epoch(epoch) }
}

fn class(end: &AttemptEnd) -> Option<FaultClass> {
    match end {
        AttemptEnd::Fault(fault) => Some(fault.class),
        _ => None,
    }
}

fn is_unbroken(steps: &[u32]) -> bool {
    let mut sorted = steps.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    sorted.iter().enumerate().all(|(index, number)| index == *number as usize)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_episode_runs_to_its_verdict_with_every_step_log_and_hook_in_order() {
    let scene = Scene::start(LONG);
    let plan = scene.plan(3);
    scene.lease(lease(0, 1), plan).await;
    let (end, steps) = scene.ended(lease(0, 1)).await;
    let AttemptEnd::Verdict(verdict) = &end else { panic!("{end:?}") };
    assert!(verdict.passed);
    assert_eq!((verdict.score, verdict.ended_by), (4.0, EndedBy::Agent));
    assert_eq!(steps, 4);
    assert_eq!(scene.steps(lease(0, 1)), [0, 1, 2, 3]);
    assert_eq!(*scene.world.commands.lock().unwrap(), ["reset", "setup", "export"]);
    let logs: Vec<String> = scene.coordinator.desk.logs.lock().unwrap().iter().map(|log| log.0.clone()).collect();
    assert_eq!(logs, ["reset", "pre_task", "post_task", "post_verification.png"]);
    assert_eq!(scene.world.builds.load(Ordering::SeqCst), 2);

    scene.lease(lease(1, 2), plan).await;
    scene.ended(lease(1, 2)).await;
    assert_eq!(scene.world.builds.load(Ordering::SeqCst), 2, "layers are there now");
    assert_eq!(scene.coordinator.desk.claims.load(Ordering::SeqCst), 2);
    let world = Arc::clone(&scene.world);
    scene.leave().await;
    assert_eq!(world.live.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_attempts_that_lack_one_layer_build_it_once() {
    let scene = Scene::start(LONG);
    let plan = scene.plan(1);
    for index in 0..4 {
        scene.lease(lease(index, 1), plan).await;
    }
    for index in 0..4 {
        scene.ended(lease(index, 1)).await;
    }
    assert_eq!(scene.world.builds.load(Ordering::SeqCst), 2);
    scene.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_off_worker_goes_on_and_delivers_in_order_when_the_session_is_back() {
    let scene = Scene::start(LONG);
    scene.world.step_millis.store(10, Ordering::SeqCst);
    let plan = scene.plan(40);
    scene.lease(lease(0, 1), plan).await;
    scene.coordinator.until("some steps", |desk| desk.steps.lock().unwrap().len() > 5).await;
    scene.coordinator.cut();
    let before = scene.steps(lease(0, 1)).len();
    let steps = Arc::clone(&scene.world);
    scene.coordinator.until("steps while cut off", |_| steps.steps.load(Ordering::SeqCst) > 30).await;
    assert!(scene.steps(lease(0, 1)).len() <= before + 1);
    scene.coordinator.desk.open.store(true, Ordering::SeqCst);
    let (end, count) = scene.ended(lease(0, 1)).await;
    assert!(matches!(end, AttemptEnd::Verdict(_)), "{end:?}");
    assert_eq!(count, 41);
    let steps = scene.steps(lease(0, 1));
    assert!(is_unbroken(&steps), "{steps:?}");
    assert_eq!(steps.iter().max(), Some(&40));
    let hellos = scene.coordinator.desk.hellos.lock().unwrap().clone();
    assert_eq!(hellos.last().unwrap().live.len(), 1, "the attempt is named again");
    scene.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_is_parked_when_its_lease_is_over_and_goes_on_when_it_is_renewed() {
    let scene = Scene::start(Duration::from_millis(1500));
    scene.world.step_millis.store(20, Ordering::SeqCst);
    let plan = scene.plan(200);
    scene.lease(lease(0, 1), plan).await;
    scene.coordinator.until("some steps", |desk| desk.steps.lock().unwrap().len() > 5).await;
    scene.coordinator.cut();
    let world = Arc::clone(&scene.world);
    let parked_at = stood_still(&world).await;
    assert!(parked_at < 200, "it was parked before its end");
    assert_eq!(world.live.load(Ordering::SeqCst), 1, "the sandbox is kept");
    scene.coordinator.desk.open.store(true, Ordering::SeqCst);
    scene.coordinator.until("it goes on", |_| world.steps.load(Ordering::SeqCst) > parked_at + 5).await;
    scene.coordinator.say(Down::Revoke(revoke(lease(0, 1), v1::RevokeReason::Cancelled))).await;
    assert_eq!(scene.ended(lease(0, 1)).await.0, AttemptEnd::Cancelled);
    scene.leave().await;
}

/// How many steps there are once that stands still, for longer than a step takes.
async fn stood_still(world: &World) -> u32 {
    let standing = async {
        let mut before = u32::MAX;
        loop {
            let now = world.steps.load(Ordering::SeqCst);
            if now == before {
                return now;
            }
            before = now;
            tokio::time::sleep(Duration::from_millis(700)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), standing).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_connection_that_fell_silent_steps_run_ahead_until_the_lease_is_over_and_no_longer() {
    let scene = Scene::start(Duration::from_secs(3));
    scene.world.step_millis.store(20, Ordering::SeqCst);
    let plan = scene.plan(10_000);
    scene.lease(lease(0, 1), plan).await;
    scene.coordinator.until("some steps", |desk| desk.steps.lock().unwrap().len() > 5).await;
    // It stands as it stood; nobody answers on it, and nobody takes a new one.
    let desk = &scene.coordinator.desk;
    for answers in [&desk.open, &desk.renews, &desk.acknowledges] {
        answers.store(false, Ordering::SeqCst);
    }
    let (world, at) = (Arc::clone(&scene.world), scene.world.steps.load(Ordering::SeqCst));
    scene.coordinator.until("steps ahead", |_| world.steps.load(Ordering::SeqCst) > at + 5).await;
    let parked_at = stood_still(&world).await;
    assert!(parked_at < 10_000 && world.live.load(Ordering::SeqCst) == 1, "it is parked, with its sandbox");
    for answers in [&desk.open, &desk.renews, &desk.acknowledges] {
        answers.store(true, Ordering::SeqCst);
    }
    scene.coordinator.until("it goes on", |_| world.steps.load(Ordering::SeqCst) > parked_at + 5).await;
    let steps = scene.steps(lease(0, 1));
    assert!(is_unbroken(&steps), "{steps:?}");
    scene.leave().await;
}

fn revoke(lease: LeaseRef, reason: v1::RevokeReason) -> v1::Revoke {
    v1::Revoke { attempt: Some(lease.into()), reason: reason.into() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_attempt_is_given_up_its_steps_are_delivered_and_it_has_no_end() {
    let scene = Scene::start(LONG);
    scene.world.step_millis.store(10, Ordering::SeqCst);
    let plan = scene.plan(10_000);
    scene.lease(lease(0, 1), plan).await;
    scene.coordinator.until("some steps", |desk| desk.steps.lock().unwrap().len() > 3).await;
    scene.coordinator.cut();
    let world = Arc::clone(&scene.world);
    let at = world.steps.load(Ordering::SeqCst);
    scene.coordinator.until("steps while cut off", |_| world.steps.load(Ordering::SeqCst) > at + 5).await;
    scene.coordinator.desk.stale.lock().unwrap().push(lease(0, 1));
    scene.coordinator.desk.open.store(true, Ordering::SeqCst);
    scene.coordinator.until("the sandbox is gone", |_| world.live.load(Ordering::SeqCst) == 0).await;
    let wanted = world.steps.load(Ordering::SeqCst);
    scene
        .coordinator
        .until("late steps", |desk| desk.steps.lock().unwrap().iter().any(|(_, number)| number + 2 >= wanted))
        .await;
    let steps = scene.steps(lease(0, 1));
    assert!(is_unbroken(&steps), "{steps:?}");
    assert!(scene.coordinator.desk.ends.lock().unwrap().is_empty());
    let folder = scene.leave().await;
    let workers = std::fs::read_dir(folder.path().join("scratch/workers")).unwrap();
    assert_eq!(workers.count(), 0, "nothing is left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_that_are_not_acknowledged_are_sent_again_and_the_end_too() {
    let scene = Scene::start(LONG);
    scene.coordinator.desk.acknowledges.store(false, Ordering::SeqCst);
    scene.lease(lease(0, 1), scene.plan(0)).await;
    scene.coordinator.until("the first step", |desk| !desk.steps.lock().unwrap().is_empty()).await;
    scene.coordinator.cut();
    scene.coordinator.desk.acknowledges.store(true, Ordering::SeqCst);
    scene.coordinator.desk.open.store(true, Ordering::SeqCst);
    let (_, count) = scene.ended(lease(0, 1)).await;
    assert_eq!(count, 1);
    assert_eq!(scene.steps(lease(0, 1)), [0, 0]);
    scene.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_signal_delivers_what_was_recorded_then_gives_every_lease_back_at_once() {
    let scene = Scene::start(LONG);
    scene.world.step_millis.store(10, Ordering::SeqCst);
    let plan = scene.plan(10_000);
    scene.lease(lease(0, 1), plan).await;
    scene.coordinator.until("some steps", |desk| desk.steps.lock().unwrap().len() > 3).await;
    scene.shutdown.signal();
    // One that crosses the goodbye is not begun.
    scene.lease(lease(1, 2), plan).await;
    scene.coordinator.until("the goodbye", |desk| desk.leaving.load(Ordering::SeqCst)).await;
    scene.worker.await.unwrap().unwrap();
    let desk = &scene.coordinator.desk;
    assert!(desk.ends.lock().unwrap().is_empty(), "an end of its own would bring the lease back");
    assert_eq!(scene.world.live.load(Ordering::SeqCst), 0);
    assert_eq!(std::fs::read_dir(scene.folder.path().join("scratch/workers")).unwrap().count(), 0);
    assert_eq!(desk.hellos.lock().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_worker_finishes_what_runs_refuses_what_comes_and_leaves() {
    let scene = Scene::start(LONG);
    scene.world.step_millis.store(10, Ordering::SeqCst);
    let plan = scene.plan(30);
    scene.lease(lease(0, 1), plan).await;
    scene.coordinator.until("some steps", |desk| desk.steps.lock().unwrap().len() > 3).await;
    scene.coordinator.say(Down::Drain(v1::Drain { reason: "maintenance".to_owned() })).await;
    scene.lease(lease(1, 2), plan).await;
    assert!(matches!(scene.ended(lease(0, 1)).await.0, AttemptEnd::Verdict(_)));
    assert_eq!(class(&scene.ended(lease(1, 2)).await.0), Some(FaultClass::Preempted));
    scene.worker.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_that_dies_or_leaks_is_a_fault_of_its_own() {
    let scene = Scene::start(LONG);
    scene.world.step_millis.store(10, Ordering::SeqCst);
    let plan = scene.plan(10_000);
    scene.lease(lease(0, 1), plan).await;
    scene.coordinator.until("some steps", |desk| desk.steps.lock().unwrap().len() > 3).await;
    scene.world.death.notify_waiters();
    assert_eq!(class(&scene.ended(lease(0, 1)).await.0), Some(FaultClass::SandboxStart));
    scene.world.memory_mib.store(1257, Ordering::SeqCst);
    scene.lease(lease(1, 2), plan).await;
    assert_eq!(class(&scene.ended(lease(1, 2)).await.0), Some(FaultClass::Memory));
    scene.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_setup_hook_is_noted_and_a_missing_plan_is_a_fault_of_the_store() {
    let scene = Scene::start(LONG);
    scene.world.hook_code.store(3, Ordering::SeqCst);
    scene.lease(lease(0, 1), scene.plan(1)).await;
    assert!(matches!(scene.ended(lease(0, 1)).await.0, AttemptEnd::Verdict(_)));
    scene.lease(lease(1, 2), Digest::of(b"no such plan")).await;
    assert_eq!(class(&scene.ended(lease(1, 2)).await.0), Some(FaultClass::Store));
    scene.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_layer_whose_hook_left_a_program_running_is_not_used_and_its_hook_runs_each_time() {
    let scene = Scene::start(LONG);
    scene.world.rerun.store(true, Ordering::SeqCst);
    scene.lease(lease(0, 1), scene.plan(0)).await;
    scene.ended(lease(0, 1)).await;
    assert_eq!(*scene.world.commands.lock().unwrap(), ["configure", "reset", "setup", "export"]);
    scene.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_report_of_a_layer_that_is_lost_with_its_session_is_sent_again() {
    let scene = Scene::start(LONG);
    scene.coordinator.desk.loses_report.store(true, Ordering::SeqCst);
    scene.lease(lease(0, 1), scene.plan(0)).await;
    scene.ended(lease(0, 1)).await;
    // One for the install layer, one for the configure layer.
    let distinct = |desk: &crate::testing::coordinator::Desk| {
        desk.layers.lock().unwrap().iter().collect::<std::collections::BTreeSet<_>>().len()
    };
    scene.coordinator.until("both reports", |desk| distinct(desk) == 2).await;
    assert!(scene.coordinator.desk.hellos.lock().unwrap().len() > 1, "a session was lost");
    scene.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_without_the_token_is_refused_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(folder.path(), LONG);
    *coordinator.desk.token.lock().unwrap() = Some("right".to_owned());
    let driver = || Arc::new(FolderDriver(Arc::new(World::default())));
    let endpoint = |token: &str| Endpoint::Unix { path: coordinator.socket.clone(), token: Some(token.to_owned()) };
    let (_trigger, shutdown) = Shutdown::new();
    let config = config(&folder.path().join("scratch"));
    let refused = run_with(config.clone(), endpoint("wrong"), shutdown, driver()).await;
    assert!(matches!(refused, Err(WorkerError::Refused { .. })), "{refused:?}");
    assert!(!format!("{:?}", endpoint("wrong")).contains("wrong"));
    let (trigger, shutdown) = Shutdown::new();
    let worker = tokio::spawn(run_with(config, endpoint("right"), shutdown, driver()));
    coordinator.until("hello", |desk| !desk.hellos.lock().unwrap().is_empty()).await;
    trigger.signal();
    worker.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_env_that_is_held_to_an_earlier_runs_layers_gets_those_and_none_is_built() {
    let scene = Scene::start(LONG);
    scene.lease(lease(0, 1), scene.plan(1)).await;
    scene.ended(lease(0, 1)).await;
    let keys = scene.world.layers.lock().unwrap().clone();
    let base = Digest::of(b"base");
    let pin = |kind, key, content| LayerPin { kind, key, content };
    let pins = vec![
        pin(LayerKind::Base, base, base),
        pin(LayerKind::Install, keys[0], keys[0]),
        pin(LayerKind::Configure, keys[1], keys[1]),
    ];
    scene.lease(lease(1, 2), scene.held_to(1, pins.clone())).await;
    assert!(matches!(scene.ended(lease(1, 2)).await.0, AttemptEnd::Verdict(_)));

    // Another content under the key, another base, and a layer that is gone.
    let other = Digest::of(b"other");
    let with = |index: usize, changed: LayerPin| {
        let mut pins = pins.clone();
        pins[index] = changed;
        pins
    };
    let cases = [
        (with(1, pin(LayerKind::Install, keys[0], other)), "it was"),
        (with(0, pin(LayerKind::Base, other, other)), "--base"),
        (pins.clone(), "is not in the layer folder"),
    ];
    for (index, (pins, says)) in (2_u32..).zip(cases) {
        if says.contains("is not in") {
            scene.world.layers.lock().unwrap().clear();
        }
        let lease = lease(index, u64::from(index) + 1);
        scene.lease(lease, scene.held_to(1, pins)).await;
        let (end, _) = scene.ended(lease).await;
        let AttemptEnd::Fault(fault) = &end else { panic!("{end:?}") };
        assert!(fault.class == FaultClass::LayerBuild && fault.message.contains(says), "{fault:?}");
    }
    assert_eq!(scene.world.builds.load(Ordering::SeqCst), 2, "nothing was built but the first two");
    scene.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_sandboxes_start_at_once_than_may() {
    let scene = Scene::start(LONG);
    scene.world.start_millis.store(20, Ordering::SeqCst);
    let plan = scene.plan(0);
    // All of them wait for one layer, and would start together.
    for index in 0..40 {
        scene.lease(lease(index, 1), plan).await;
    }
    for index in 0..40 {
        scene.ended(lease(index, 1)).await;
    }
    let most = usize::try_from(scene.world.most_starting.load(Ordering::SeqCst)).unwrap();
    assert!(most <= NodeLimits::default().starts, "{most} started at once");
    scene.leave().await;
}

#[tokio::test]
async fn the_certificate_authorities_of_the_settings_reach_the_gateway() {
    let folder = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(folder.path(), LONG);
    let file = folder.path().join("site.pem");
    std::fs::write(&file, "no certificate").unwrap();
    let config = WorkerConfig { certificates: vec![file.clone()], ..config(&folder.path().join("scratch")) };
    let endpoint = Endpoint::Unix { path: coordinator.socket.clone(), token: None };
    let (_trigger, heard) = Shutdown::new();
    let running = run_with(config, endpoint, heard, Arc::new(FolderDriver(Arc::default())));
    let error = tokio::time::timeout(Duration::from_secs(30), running).await.expect("it does not start").unwrap_err();
    let WorkerError::Gateway(error) = error else { panic!("{error}") };
    assert!(error.to_string().contains(&file.display().to_string()), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_says_hello_before_it_is_ready_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(folder.path(), LONG);
    let config = config(&folder.path().join("scratch"));
    let endpoint = Endpoint::Unix { path: coordinator.socket.clone(), token: None };
    let (_trigger, heard) = Shutdown::new();
    let made = async {
        coordinator.until("its hello", |desk| !desk.hellos.lock().unwrap().is_empty()).await;
        // It is there again after the session was lost, too.
        coordinator.cut();
        coordinator.desk.open.store(true, Ordering::SeqCst);
        coordinator.until("its second hello", |desk| desk.hellos.lock().unwrap().len() > 1).await;
        7
    };
    let prepared = crate::prepare(&config, &endpoint, heard, "making the base image", made).await.unwrap();
    assert!(matches!(prepared, crate::Prepared::Ready(7)));
    let hellos = coordinator.desk.hellos.lock().unwrap().clone();
    for hello in &hellos {
        assert_eq!((hello.unfit.as_str(), hello.preparing, hello.live.len()), ("making the base image", true, 0));
        assert_eq!(hello.worker_id, config.id.to_string(), "the same worker as it will be");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_told_to_go_before_it_is_ready_says_goodbye() {
    for by_signal in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let coordinator = Coordinator::start(folder.path(), LONG);
        let config = config(&folder.path().join("scratch"));
        let endpoint = Endpoint::Unix { path: coordinator.socket.clone(), token: None };
        let (trigger, heard) = Shutdown::new();
        let order = async {
            coordinator.until("its hello", |desk| !desk.hellos.lock().unwrap().is_empty()).await;
            if by_signal {
                trigger.signal();
            } else {
                coordinator.say(Down::Drain(v1::Drain { reason: "nothing to do".to_owned() })).await;
            }
        };
        let never = std::future::pending::<()>();
        let preparing = crate::prepare(&config, &endpoint, heard, "making the base image", never);
        let (prepared, ()) = tokio::join!(preparing, order);
        assert!(matches!(prepared.unwrap(), crate::Prepared::Dismissed));
        coordinator.until("its goodbye", |desk| desk.leaving.load(Ordering::SeqCst)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_on_a_full_disk_says_so_in_its_hello() {
    let folder = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(folder.path(), LONG);
    let mut config = config(&folder.path().join("scratch"));
    config.limits.disk_floor_mib = u64::MAX;
    let endpoint = Endpoint::Unix { path: coordinator.socket.clone(), token: None };
    let (trigger, heard) = Shutdown::new();
    let driver = Arc::new(FolderDriver(Arc::new(World::default())));
    let worker = tokio::spawn(run_with(config, endpoint, heard, driver));
    coordinator.until("its hello", |desk| !desk.hellos.lock().unwrap().is_empty()).await;
    let hello = coordinator.desk.hellos.lock().unwrap()[0].clone();
    assert!(hello.unfit.contains("MiB free") && !hello.preparing, "{}", hello.unfit);
    trigger.signal();
    worker.await.unwrap().unwrap();
}
