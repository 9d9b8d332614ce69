//! Graphics processors: each is one attempt's at a time. There are none here: what is tried is who gets which.

use longhaul_apptainer::{Gpus, Maker};

use super::*;
use crate::sandbox::SandboxRequest;

/// What the sandboxes were given, by the end of their names: episode, attempt and epoch.
fn given(world: &World) -> BTreeMap<String, String> {
    let requests = world.requests.lock().unwrap();
    let of = |request: &SandboxRequest| {
        let ids = request.gpus.as_ref().map(|gpus| gpus.ids().join(",")).unwrap_or_default();
        (request.id.split_once('-').unwrap().1.to_owned(), ids)
    };
    requests.iter().map(of).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_that_live_together_have_different_ones_and_what_is_given_back_is_given_out_again() {
    let folder = tempfile::tempdir().unwrap();
    let coordinator = Coordinator::start(folder.path(), LONG);
    let world = Arc::new(World::default());
    world.step_millis.store(10, Ordering::SeqCst);
    let gpus = Gpus::new(Maker::Nvidia, ["4", "6"].map(str::to_owned).into());
    let config = WorkerConfig { gpus, ..config(&folder.path().join("scratch")) };
    let endpoint = Endpoint::Unix { path: coordinator.socket.clone(), token: None };
    let (shutdown, heard) = Shutdown::new();
    let worker = tokio::spawn(run_with(config, endpoint, heard, Arc::new(FolderDriver(Arc::clone(&world)))));
    let scene = Scene { folder, coordinator, world, shutdown, worker };

    let coordinator = &scene.coordinator;
    let files = coordinator.put_json(&Tree::default());
    let mut env = plans::env(files);
    env.resources.gpus = 1;
    let task = coordinator.put_json(&plans::task(coordinator.put_json(&env), files));
    let script = "{\"keyboard\": {\"keys\": [\"a\"]}}\n".repeat(10_000);
    let agent = AgentPlan::Scripted { script: coordinator.put(script.as_bytes()) };
    let plan = coordinator.put_json(&plans::episode(task, agent));
    for index in 0..2 {
        scene.lease(lease(index, 1), plan).await;
    }
    coordinator.until("two sandboxes", |_| given(&scene.world).len() == 2).await;
    let both = given(&scene.world);
    assert!(both["0-1-1"] != both["1-1-1"] && both.values().all(|id| id == "4" || id == "6"), "{both:?}");
    assert_eq!(coordinator.desk.hellos.lock().unwrap()[0].gpus, 2);

    coordinator.say(Down::Revoke(revoke(lease(1, 1), v1::RevokeReason::Cancelled))).await;
    scene.ended(lease(1, 1)).await;
    scene.lease(lease(2, 2), plan).await;
    coordinator.until("the third sandbox", |_| given(&scene.world).len() == 3).await;
    let all = given(&scene.world);
    assert_eq!(all["2-1-2"], both["1-1-1"], "{all:?}");

    // What may still be used by a sandbox that could not be ended goes to nobody, and is said.
    scene.world.survives.store(true, Ordering::SeqCst);
    coordinator.say(Down::Revoke(revoke(lease(0, 1), v1::RevokeReason::Cancelled))).await;
    scene.ended(lease(0, 1)).await;
    let unfit = |desk: &crate::testing::coordinator::Desk| desk.unfit.lock().unwrap().clone();
    coordinator.until("a word of it", |desk| unfit(desk).contains("graphics processors")).await;
    let starting = |desk: &crate::testing::coordinator::Desk| {
        desk.phases.lock().unwrap().iter().filter(|phase| **phase == v1::AttemptPhase::Starting).count()
    };
    let before = starting(&coordinator.desk);
    scene.lease(lease(3, 3), plan).await;
    coordinator.until("the fourth attempt", |desk| starting(desk) > before).await;
    assert_eq!(given(&scene.world).len(), 3);
    scene.world.survives.store(false, Ordering::SeqCst);
    coordinator.until("the fourth sandbox", |_| given(&scene.world).len() == 4).await;
    assert_eq!(given(&scene.world)["3-1-3"], both["0-1-1"]);
    coordinator.until("a word of that", |desk| unfit(desk).is_empty()).await;
    scene.leave().await;
}
