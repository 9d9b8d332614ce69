//! A node's disk that is full, for real: a small filesystem in memory, in a mount namespace of its
//! own, stands for it.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use longhaul_apptainer::layers::{LayerContent, LayerManifest, LayerStore, StoreError};
use longhaul_core::digest::Digest;
use longhaul_core::plan::{LAYER_FORMAT, LayerKind};
use longhaul_core::time::Timestamp;

const SMALL: &str = "LONGHAUL_TEST_SMALL_DISK";

/// Runs `body` with a folder on a filesystem with these options; `name` is the test's own name.
fn on_small_disk<F: Future<Output = Result<()>>>(
    name: &str,
    options: &str,
    body: impl FnOnce(std::path::PathBuf) -> F,
) -> Result<()> {
    if let Some(folder) = std::env::var_os(SMALL) {
        return tokio::runtime::Runtime::new()?.block_on(body(folder.into()));
    }
    let folder = tempfile::tempdir()?;
    let script = r#"mount -t tmpfs -o "$1" none "$2" && shift 2 && exec "$@""#;
    let status = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "--", "sh", "-c", script, "sh", options])
        .arg(folder.path())
        .arg(std::env::current_exe()?)
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(SMALL, folder.path())
        .status()
        .context("unshare does not start")?;
    ensure!(status.success(), "the test failed on the small disk: {status}");
    Ok(())
}

fn key(name: &str) -> Digest {
    Digest::of(name.as_bytes())
}

/// Publishes a layer of so many KiB, last used some hours ago.
async fn publish(folder: &Path, name: &str, kib: usize, hours: u64) -> Result<()> {
    let store = LayerStore::open(folder, None)?;
    let bytes = name.bytes().cycle().take(kib * 1024).collect::<Vec<_>>();
    let made = folder.join("made");
    fs::write(&made, &bytes)?;
    let manifest = LayerManifest {
        format: LAYER_FORMAT.to_owned(),
        key: key(name),
        kind: LayerKind::Install,
        env: format!("{name}_env"),
        content: LayerContent::File { digest: Digest::of(&bytes), bytes: u64::try_from(bytes.len())? },
        parents: Vec::new(),
        arch: "x86_64".to_owned(),
        overlay_driver: "fuse-overlayfs".to_owned(),
        tolerated: None,
        units: Vec::new(),
        inputs: Vec::new(),
        hook_millis: 0,
        created: Timestamp(hours),
    };
    store.publish(&manifest, Some(&made)).await?;
    Ok(())
}

fn files(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

#[test]
fn copies_in_nobodys_use_make_room_and_what_has_none_is_the_disks_fault_and_leaves_nothing() -> Result<()> {
    let name = "copies_in_nobodys_use_make_room_and_what_has_none_is_the_disks_fault_and_leaves_nothing";
    on_small_disk(name, "size=1m,mode=0700", async |node| {
        let shared = tempfile::tempdir()?;
        for (name, kib, hours) in [("old", 400, 3), ("held", 300, 2), ("new", 600, 1), ("huge", 2000, 0)] {
            publish(shared.path(), name, kib, hours).await?;
        }
        let store = LayerStore::open(shared.path(), Some(&node))?;
        drop(store.use_layer(&key("old")).await?.context("is there")?);
        let old = node.join(format!("{}.sqsh", key("old")));
        fs::File::open(&old)?.set_modified(SystemTime::now() - Duration::from_secs(3600))?;
        let held = store.use_layer(&key("held")).await?.context("is there")?;
        let new = store.use_layer(&key("new")).await?.context("is there")?;
        ensure!(!old.exists(), "the copy that nobody uses has gone");
        ensure!(held.path().is_some_and(Path::exists) && new.path().is_some_and(Path::exists));
        let before = files(&node)?;
        match store.use_layer(&key("huge")).await {
            Err(error @ StoreError::NoRoom { .. }) if error.is_of_the_disk() => {}
            other => bail!("{other:?}"),
        }
        ensure!(files(&node)? == before, "nothing is left of it");
        drop((held, new));
        ensure!(store.find(&key("huge"))?.is_some(), "the layer itself is as it was");
        Ok(())
    })
}

#[test]
fn a_disk_without_room_for_files_or_that_fills_up_in_the_middle_is_at_fault_itself() -> Result<()> {
    let name = "a_disk_without_room_for_files_or_that_fills_up_in_the_middle_is_at_fault_itself";
    on_small_disk(name, "size=4m,nr_inodes=3,mode=0700", async |node| {
        let shared = tempfile::tempdir()?;
        publish(shared.path(), "layer", 100, 0).await?;
        let local = node.join("layers");
        let store = LayerStore::open(shared.path(), Some(&local))?;
        // The third file is the last that there may be.
        fs::write(node.join("last"), "x")?;
        match store.use_layer(&key("layer")).await {
            Err(error @ StoreError::Node { .. }) if error.is_of_the_disk() => {}
            other => bail!("{other:?}"),
        }
        ensure!(files(&local)?.is_empty(), "nothing is left of it");
        fs::remove_file(node.join("last"))?;
        // Where the layer folder itself is full, a layer fails to be published, half written.
        let made = shared.path().join("made");
        fs::write(&made, vec![7; 8 << 20])?;
        let digest = Digest::of(&vec![7; 8 << 20]);
        let manifest = store.find(&key("layer"))?.context("is there")?;
        let content = LayerContent::File { digest, bytes: 8 << 20 };
        let manifest = LayerManifest { key: key("big"), content, ..manifest };
        match LayerStore::open(&local, None)?.publish(&manifest, Some(&made)).await {
            Err(error) if error.is_of_the_disk() => {}
            other => bail!("{other:?}"),
        }
        ensure!(files(&local)?.is_empty(), "nothing is left of what was begun: {:?}", files(&local)?);
        Ok(())
    })
}
