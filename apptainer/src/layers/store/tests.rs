//! The layer folder, with files in place of packed filesystems.

use std::time::Duration;

use longhaul_core::time::Timestamp;

use super::*;

fn manifest(name: &str, content: &[u8]) -> LayerManifest {
    LayerManifest {
        format: LAYER_FORMAT.to_owned(),
        key: Digest::of(name.as_bytes()),
        kind: LayerKind::Install,
        env: "thing_env".to_owned(),
        content: LayerContent::File {
            digest: Digest::of(content),
            bytes: u64::try_from(content.len()).expect("small"),
        },
        parents: Vec::new(),
        arch: "x86_64".to_owned(),
        overlay_driver: "fuse-overlayfs".to_owned(),
        tolerated: None,
        units: Vec::new(),
        inputs: vec![LayerInput { label: "hook".into(), value: name.into() }],
        hook_millis: 0,
        created: Timestamp(0),
    }
}

/// A store with the layers `names`, each of 100 bytes, the first one least recently used.
async fn store(root: &Path, names: &[&str]) -> LayerStore {
    let store = LayerStore::open(&root.join("layers"), None).expect("opens");
    for (age, name) in (0_u64..).zip(names.iter().rev()) {
        let file = root.join("made");
        fs::write(&file, [b'x'; 100]).expect("writes");
        store.publish(&manifest(name, &[b'x'; 100]), Some(&file)).await.expect("publishes");
        let path = LayerStore::file(store.folder(), &Digest::of(name.as_bytes()));
        let then = SystemTime::now() - Duration::from_secs(3600 * (age + 1));
        File::open(path).and_then(|file| file.set_modified(then)).expect("sets");
    }
    store
}

fn key(name: &str) -> Digest {
    Digest::of(name.as_bytes())
}

#[tokio::test]
async fn of_two_builders_the_first_one_stays() {
    let root = tempfile::tempdir().expect("folder");
    let store = store(root.path(), &["a"]).await;
    let file = root.path().join("later");
    fs::write(&file, "other bytes").expect("writes");
    let kept = store.publish(&manifest("a", b"other bytes"), Some(&file)).await.expect("publishes");
    assert_eq!(kept, manifest("a", &[b'x'; 100]));
    assert!(store.verify(&[]).await.expect("reads").iter().all(|finding| finding.trouble.is_none()));
}

#[tokio::test]
async fn a_layer_that_is_not_what_it_says_is_not_published() {
    let root = tempfile::tempdir().expect("folder");
    let store = LayerStore::open(&root.path().join("layers"), None).expect("opens");
    let file = root.path().join("made");
    fs::write(&file, "torn").expect("writes");
    let refused = store.publish(&manifest("a", b"whole"), Some(&file)).await;
    assert!(matches!(refused, Err(StoreError::Damaged { .. })));
    assert_eq!(store.find(&key("a")).expect("looks"), None);
    assert_eq!(fs::read_dir(store.folder()).expect("lists").count(), 0, "nothing is left behind");
}

#[tokio::test]
async fn damage_is_found() {
    let root = tempfile::tempdir().expect("folder");
    let store = store(root.path(), &["a", "b"]).await;
    let mut bytes = [b'x'; 100];
    bytes[57] ^= 1;
    fs::write(LayerStore::file(store.folder(), &key("b")), bytes).expect("writes");
    let findings = store.verify(&[]).await.expect("reads");
    let bad: Vec<_> = findings.iter().filter(|finding| finding.trouble.is_some()).map(|finding| finding.key).collect();
    assert_eq!(bad, [key("b")]);
    let missing = store.verify(&[key("c")]).await.expect("reads");
    assert!(matches!(missing.first().and_then(|finding| finding.trouble.as_ref()), Some(StoreError::Missing(_))));
}

#[tokio::test]
async fn the_least_recently_used_goes_but_never_what_is_in_use() {
    let root = tempfile::tempdir().expect("folder");
    let store = store(root.path(), &["a", "b", "c"]).await;
    let guard = store.use_layer(&key("a")).await.expect("reads").expect("is there");
    // Using it made it the most recent; age it again to see the lock alone protect it.
    let file = LayerStore::file(store.folder(), &key("a"));
    File::open(&file).and_then(|file| file.set_modified(SystemTime::UNIX_EPOCH)).expect("sets");
    let pruned = store.prune(Bound::Bytes(150), &BTreeSet::new()).expect("prunes");
    assert_eq!((pruned.removed, pruned.in_use, pruned.freed), (vec![key("b"), key("c")], vec![key("a")], 200));
    assert!(guard.path().is_some_and(Path::exists));
    drop(guard);
    assert_eq!(store.prune(Bound::UsedSince(SystemTime::now()), &BTreeSet::new()).expect("prunes").removed, [key("a")]);
    assert_eq!(
        fs::read_dir(store.folder())
            .expect("lists")
            .filter(|entry| { entry.as_ref().is_ok_and(|entry| !entry.file_name().to_string_lossy().starts_with('.')) })
            .count(),
        0
    );
}

#[tokio::test]
async fn a_copy_is_made_on_local_disk_once_and_checked() {
    let root = tempfile::tempdir().expect("folder");
    let shared = store(root.path(), &["a", "b"]).await;
    let local = root.path().join("local");
    let store = LayerStore::open(shared.folder(), Some(&local)).expect("opens");
    let guard = store.use_layer(&key("a")).await.expect("reads").expect("is there");
    assert_eq!(guard.path(), Some(LayerStore::file(&local, &key("a")).as_path()));
    fs::write(LayerStore::file(shared.folder(), &key("b")), [b'y'; 100]).expect("writes");
    assert!(matches!(store.use_layer(&key("b")).await, Err(StoreError::Damaged { .. })));
    assert!(!LayerStore::file(&local, &key("b")).exists());
    assert!(store.use_layer(&key("c")).await.expect("reads").is_none());
    assert!(!shared.remove(&key("a")).expect("looks"), "the shared one is in use too");
}

#[tokio::test]
async fn what_differs_is_named() {
    let root = tempfile::tempdir().expect("folder");
    let store = store(root.path(), &["a"]).await;
    let want = [
        LayerInput { label: "hook".into(), value: "z".into() },
        LayerInput { label: "net".into(), value: "yes".into() },
    ];
    let (nearest, differing) = store.why(LayerKind::Install, "thing_env", &want).expect("reads").expect("is one");
    assert_eq!(nearest.key, key("a"));
    assert_eq!(differing, ["hook: a -> z", "net: new"]);
    assert!(store.why(LayerKind::Configure, "thing_env", &want).expect("reads").is_none());
}

#[test]
fn what_a_killed_writer_left_goes_in_the_end() {
    let root = tempfile::tempdir().expect("folder");
    let (old, young) = (fresh_name(root.path(), &key("a")), fresh_name(root.path(), &key("a")));
    assert_ne!(old, young);
    for path in [&old, &young] {
        fs::write(path, "half").expect("writes");
    }
    File::open(&old).and_then(|file| file.set_modified(SystemTime::UNIX_EPOCH)).expect("sets");
    prune(root.path(), Bound::Bytes(0), &BTreeSet::new()).expect("prunes");
    assert!(!old.exists() && young.exists());
}

#[test]
fn a_manifest_of_another_format_is_refused() {
    let root = tempfile::tempdir().expect("folder");
    let store = LayerStore::open(root.path(), None).expect("opens");
    let other = LayerManifest { format: "longhaul-layer-0".into(), ..manifest("a", b"x") };
    write_manifest(root.path(), &other).expect("writes");
    assert!(matches!(store.find(&key("a")), Err(StoreError::Manifest { .. })));
    // Yet it is in nobody's way: it is listed, and goes like any other.
    fs::write(LayerStore::file(root.path(), &key("a")), b"x").expect("writes");
    assert_eq!(store.list().expect("lists").len(), 1);
    assert_eq!(store.prune(Bound::Bytes(0), &BTreeSet::new()).expect("prunes").removed, [key("a")]);
}

#[tokio::test]
async fn what_is_cited_stays_however_full_the_folder_is() {
    let root = tempfile::tempdir().expect("folder");
    let store = store(root.path(), &["a", "b", "c"]).await;
    let cited = BTreeSet::from([key("a"), key("gone")]);
    let pruned = store.prune(Bound::Bytes(0), &cited).expect("prunes");
    assert_eq!((pruned.removed, pruned.cited), (vec![key("b"), key("c")], vec![key("a")]));
    assert!(store.find(&key("a")).expect("looks").is_some());
    assert_eq!(store.prune(Bound::Bytes(0), &BTreeSet::new()).expect("prunes").removed, [key("a")]);
}
