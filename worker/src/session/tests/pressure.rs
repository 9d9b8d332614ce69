//! What holds an agent back before a disk is full, and what becomes of what a disk has changed.

use std::path::PathBuf;
use std::process::Command;

use super::*;

/// Where a filesystem of its own is mounted for the test that needs a small one.
const SMALL: &str = "LONGHAUL_TEST_SMALL_DISK";

/// The spools of the worker, with all that is in them.
fn spools(scene: &Scene) -> Vec<PathBuf> {
    let workers = std::fs::read_dir(scene.folder.path().join("scratch/workers")).unwrap();
    let homes = workers.map(|entry| entry.unwrap().path().join("spool")).filter(|spool| spool.is_dir());
    homes.flat_map(|spool| std::fs::read_dir(spool).unwrap().map(|entry| entry.unwrap().path())).collect()
}

fn size(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { size(&path) } else { path.metadata().unwrap().len() }).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_cut_off_waits_when_as_much_waits_as_may_and_goes_on_when_it_was_delivered() {
    const MOST: u64 = 40_000;
    let scene = Scene::with(LONG, |config| config.limits.spool_bytes = MOST);
    scene.world.step_millis.store(3, Ordering::SeqCst);
    scene.lease(lease(0, 1), scene.plan(10_000)).await;
    scene.lease(lease(1, 1), scene.plan(10_000)).await;
    scene.coordinator.until("some steps", |desk| desk.steps.lock().unwrap().len() > 5).await;
    scene.coordinator.cut();
    let at = stood_still(&scene.world).await;
    assert!(at < 10_000 && scene.world.live.load(Ordering::SeqCst) == 2, "both wait, with their sandboxes");
    let waiting: u64 = spools(&scene).iter().map(|spool| size(spool)).sum();
    // Each may have had one more step under way; and what was acknowledged before takes some, too.
    assert!(waiting > MOST / 2 && waiting < 2 * MOST, "{waiting} bytes wait");
    scene.coordinator.desk.open.store(true, Ordering::SeqCst);
    scene.coordinator.until("they go on", |_| scene.world.steps.load(Ordering::SeqCst) > at + 50).await;
    for index in 0..2 {
        let steps = scene.steps(lease(index, 1));
        assert!(is_unbroken(&steps), "{steps:?}");
    }
    scene.leave().await;
}

#[test]
fn a_worker_that_is_cut_off_waits_before_its_disk_is_full() {
    let Some(folder) = std::env::var_os(SMALL) else {
        let folder = tempfile::tempdir().unwrap();
        let script = r#"mount -t tmpfs -o size=48m,mode=0700 none "$1" && shift && exec "$@""#;
        let status = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "--", "sh", "-c", script, "sh"])
            .arg(folder.path())
            .arg(std::env::current_exe().unwrap())
            .args(["session::tests::pressure::a_worker_that_is_cut_off_waits_before_its_disk_is_full"])
            .args(["--exact", "--nocapture"])
            .env(SMALL, folder.path())
            .status()
            .unwrap();
        assert!(status.success(), "it failed on the small disk: {status}");
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(on_a_small_disk(Path::new(&folder)));
}

/// 48 MiB of which 24 are kept free, and each step takes two: one for the coordinator, one for the
/// verifier.
async fn on_a_small_disk(folder: &Path) {
    let scratch = folder.join("scratch");
    let scene = Scene::with(LONG, |config| {
        config.scratch.clone_from(&scratch);
        config.limits.disk_floor_mib = 24;
    });
    scene.world.picture_bytes.store(1 << 20, Ordering::SeqCst);
    scene.world.step_millis.store(20, Ordering::SeqCst);
    scene.lease(lease(0, 1), scene.plan(14)).await;
    scene.coordinator.until("a step", |desk| !desk.steps.lock().unwrap().is_empty()).await;
    scene.coordinator.cut();
    let at = stood_still(&scene.world).await;
    assert!((3..15).contains(&at) && scene.world.live.load(Ordering::SeqCst) == 1, "it waits after {at} steps");
    let free = longhaul_apptainer::filesystem::space(&scratch).unwrap().bytes >> 20;
    assert!((12..24).contains(&free), "{free} MiB are free, and with less than 12 it had been ended");
    scene.coordinator.desk.open.store(true, Ordering::SeqCst);
    let (end, steps) = scene.ended(lease(0, 1)).await;
    assert!(matches!(end, AttemptEnd::Verdict(_)) && steps == 15, "{end:?}");
    scene.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_picture_that_the_disk_has_changed_ends_its_own_attempt_with_a_fault_and_no_other() {
    let scene = Scene::start(LONG);
    scene.world.step_millis.store(10, Ordering::SeqCst);
    let plan = scene.plan(200);
    scene.lease(lease(0, 1), plan).await;
    scene.coordinator.until("some steps", |desk| desk.steps.lock().unwrap().len() > 3).await;
    scene.coordinator.cut();
    let at = scene.world.steps.load(Ordering::SeqCst);
    scene.coordinator.until("steps ahead", |_| scene.world.steps.load(Ordering::SeqCst) > at + 5).await;
    let spools = spools(&scene);
    let pictures = std::fs::read_dir(spools[0].join("blobs")).unwrap().map(|entry| entry.unwrap().path());
    for picture in pictures {
        let mut bytes = std::fs::read(&picture).unwrap();
        bytes[0] ^= 1;
        std::fs::write(&picture, bytes).unwrap();
    }
    scene.coordinator.desk.open.store(true, Ordering::SeqCst);
    let (end, count) = scene.ended(lease(0, 1)).await;
    let AttemptEnd::Fault(fault) = &end else { panic!("{end:?}") };
    assert!(fault.class == FaultClass::NodeDisk && fault.message.contains("is not what was written"), "{fault:?}");
    let steps = scene.steps(lease(0, 1));
    assert!(is_unbroken(&steps) && steps.iter().max().is_some_and(|last| last + 1 == count), "{count}: {steps:?}");
    scene.lease(lease(1, 2), scene.plan(3)).await;
    assert!(matches!(scene.ended(lease(1, 2)).await.0, AttemptEnd::Verdict(_)));
    scene.leave().await;
}
