//! Snapshots: taken as the plan says, and where an attempt that goes on begins.

use std::sync::atomic::Ordering;

use longhaul_core::agent::AgentPlan;
use longhaul_core::digest::Digest;
use longhaul_core::plan::{EpisodePlan, TaskPlan};
use longhaul_core::resume::Way;
use longhaul_core::snapshot::{Snapshot, snapshot_log};

use super::scene::{Came, Scene};

/// Runs a script of six steps whose screen stays as it is.
async fn run(scene: &Scene, snapshots: &str) -> Came {
    scene.world.still.store(true, Ordering::SeqCst);
    let lines = "{\"keyboard\": {\"keys\": [\"a\"]}}\n".repeat(6);
    let agent = AgentPlan::Scripted { script: scene.coordinator.put(lines.as_bytes()) };
    let task = |task: &mut TaskPlan| {
        task.pre_task = Some("setup".to_owned());
        task.restart = Some("open again".to_owned());
    };
    let policy = snapshots.parse().unwrap();
    scene.run_task(agent, Vec::new(), task, |episode: &mut EpisodePlan| episode.snapshots = policy).await
}

/// The snapshot of a step, if one was taken.
fn snapshot(scene: &Scene, step: u32) -> Option<Snapshot> {
    let desk = &scene.coordinator.desk;
    let logs = desk.logs.lock().unwrap();
    let digest = logs.iter().rev().find(|(name, _)| *name == snapshot_log(step))?.1;
    Some(serde_json::from_slice(&desk.blobs.lock().unwrap()[&digest]).unwrap())
}

/// How often a hook ran.
fn ran(scene: &Scene, hook: &str) -> usize {
    scene.world.commands.lock().unwrap().iter().filter(|command| *command == hook).count()
}

fn ways(scene: &Scene) -> Vec<Way> {
    scene.coordinator.desk.resumed.lock().unwrap().iter().map(|(_, resumed)| resumed.way).collect()
}

fn numbers(came: &Came) -> Vec<u32> {
    came.steps.iter().map(|step| step.number).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_begins_at_the_last_snapshot_and_does_nothing_before_it_again() {
    let scene = Scene::start();
    let whole = run(&scene, "2 steps, first").await;
    let taken: Vec<u32> = (0..8).filter(|step| snapshot(&scene, *step).is_some()).collect();
    assert_eq!(taken, [2, 4, 6]);
    let before = scene.world.requests.lock().unwrap().len();
    let came = scene.go_on(&whole, 6, |_| ()).await;
    assert_eq!((&came.end, numbers(&came)), (&whole.end, vec![6]));
    assert_eq!((ways(&scene), ran(&scene, "setup"), ran(&scene, "open again")), (vec![Way::Restore], 1, 1));
    // Its files came with the top: nobody made them anew.
    let request = scene.world.requests.lock().unwrap()[before].clone();
    let root = scene.world.roots.lock().unwrap()[before].clone();
    assert_eq!(request.tops.len(), 1);
    assert!(root.join("home/ga/task_pre_task.log").exists());
    // The look before the agent is asked, the one at the snapshot, one step of the record, one of life,
    // and the one after the export hook.
    assert_eq!(scene.world.steps.load(Ordering::SeqCst), 5);
    // What it saves itself stands on what it began with.
    let came = scene.go_on(&whole, 5, |_| ()).await;
    assert_eq!(numbers(&came), [5, 6]);
    let own = snapshot(&scene, 6).unwrap();
    assert_eq!((own.tops.len(), own.tops[0]), (2, snapshot(&scene, 4).unwrap().tops[0]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_is_of_no_use_costs_a_try_and_the_record_is_replayed() {
    let scene = Scene::start();
    let whole = run(&scene, "2 steps, first").await;
    // Programs that do not come up.
    scene.world.hook_code.store(3, Ordering::SeqCst);
    let came = scene.go_on(&whole, 5, |_| ()).await;
    scene.world.hook_code.store(0, Ordering::SeqCst);
    assert_eq!((ways(&scene), numbers(&came)), (vec![Way::Replay], vec![5, 6]));
    let warnings = came.notes.warnings.join("; ");
    assert!(
        warnings.contains("the snapshot of step 4 was of no use") && warnings.contains("restart hook"),
        "{warnings}"
    );
    assert_eq!(scene.world.live.load(Ordering::SeqCst), 0, "both sandboxes are gone");
    // Another screen than the recorded one, and other layers than it was taken over.
    let other = Snapshot { layers: vec![Digest::of(b"other")], ..snapshot(&scene, 4).unwrap() };
    let other = scene.coordinator.put(&serde_json::to_vec(&other).unwrap());
    let name = snapshot_log(4);
    let change = |log: &mut (String, Digest)| {
        if log.0 == name {
            log.1 = other;
        }
    };
    let sandboxes = || scene.world.requests.lock().unwrap().len();
    let before = sandboxes();
    let came = scene.go_on(&whole, 5, change).await;
    assert_eq!((ways(&scene).last(), sandboxes() - before), (Some(&Way::Replay), 1));
    let warnings = came.notes.warnings.join("; ");
    assert!(warnings.contains("it stands on other layers"), "{warnings}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_default_a_record_is_replayed_first_and_none_is_taken_unasked() {
    let scene = Scene::start();
    let whole = run(&scene, "2 steps").await;
    scene.go_on(&whole, 5, |_| ()).await;
    assert_eq!((ways(&scene), ran(&scene, "open again")), (vec![Way::Replay], 0));
    let scene = Scene::start();
    run(&scene, "off").await;
    assert!((0..8).all(|step| snapshot(&scene, step).is_none()));
}
