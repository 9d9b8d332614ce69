//! Files of layers, whole, broken and hostile, with small files in place of packed filesystems.

use std::fs;
use std::path::{Path, PathBuf};

use longhaul_core::plan::LAYER_FORMAT;
use longhaul_core::time::Timestamp;
use tar::{Builder, EntryType, Header};

use super::*;
use crate::base::{self, ARCH};
use crate::layers::{LayerContent, LayerStore};

fn key(name: &str) -> Digest {
    Digest::of(name.as_bytes())
}

fn manifest(name: &str, content: LayerContent) -> LayerManifest {
    LayerManifest {
        format: LAYER_FORMAT.to_owned(),
        key: key(name),
        kind: LayerKind::Install,
        env: format!("{name}_env"),
        content,
        parents: Vec::new(),
        arch: ARCH.to_owned(),
        overlay_driver: "fuse-overlayfs".to_owned(),
        tolerated: None,
        units: vec!["nap.service".into()],
        inputs: Vec::new(),
        hook_millis: 5,
        created: Timestamp(1),
    }
}

fn content_of(name: &str) -> Vec<u8> {
    name.bytes().cycle().take(3000).collect()
}

fn file_of(bytes: &[u8]) -> LayerContent {
    LayerContent::File { digest: Digest::of(bytes), bytes: u64::try_from(bytes.len()).expect("small") }
}

struct World {
    root: tempfile::TempDir,
    from: LayerStore,
    to: LayerStore,
    base: (PathBuf, Digest),
}

impl World {
    /// Two layers, one that runs again, and a base image under its definition's key.
    async fn new() -> Self {
        let root = tempfile::tempdir().expect("folder");
        let from = LayerStore::open(&root.path().join("from"), None).expect("opens");
        let to = LayerStore::open(&root.path().join("to"), None).expect("opens");
        for name in ["one", "two"] {
            let made = root.path().join("made");
            fs::write(&made, content_of(name)).expect("writes");
            let manifest = manifest(name, file_of(&content_of(name)));
            from.publish(&manifest, Some(&made)).await.expect("publishes");
        }
        let rerun = manifest("again", LayerContent::Rerun { reason: "an app".into() });
        from.publish(&rerun, None).await.expect("publishes");
        let base = image(from.folder(), "definition", b"the base");
        Self { root, from, to, base }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    async fn exported(&self, name: &str) -> PathBuf {
        let file = self.file(name);
        let layers: Vec<_> = ["one", "two", "again"]
            .iter()
            .map(|name| self.from.find(&key(name)).expect("looks").expect("is there"))
            .collect();
        let (path, content) = self.base.clone();
        let base = BaseToCarry { path, content, key: Some(key("definition")) };
        export(&self.from, Some(base), &layers, &file, Stop::default()).await.expect("exports");
        file
    }

    async fn import(&self, file: &Path) -> Result<Imported, CarryError> {
        import(&self.to, file, Stop::default()).await
    }

    /// What is in the target folder besides locks, and nothing of it is half.
    async fn sound(&self) -> Vec<String> {
        assert!(self.to.verify(&[]).await.expect("reads").iter().all(|finding| finding.trouble.is_none()));
        let mut names = Vec::new();
        for folder in [self.to.folder().to_owned(), self.to.folder().join("images")] {
            for entry in fs::read_dir(folder).into_iter().flatten() {
                let name = entry.expect("lists").file_name().into_string().expect("text");
                assert!(!name.ends_with(".new"), "{name} is left");
                names.push(name);
            }
        }
        names.retain(|name| !name.ends_with(".lock") && name != "images");
        names.sort();
        names
    }
}

/// An image in the folder of images, as if it had been made there.
fn image(layers: &Path, name: &str, bytes: &[u8]) -> (PathBuf, Digest) {
    let images = layers.join("images");
    fs::create_dir_all(&images).expect("makes");
    let fresh = images.join("made");
    fs::write(&fresh, bytes).expect("writes");
    (base::adopt(&images, &key(name), Digest::of(bytes), &fresh).expect("keeps"), Digest::of(bytes))
}

#[tokio::test]
async fn what_is_exported_is_imported_and_what_is_there_is_kept() {
    let world = World::new().await;
    let file = world.exported("carried.tar").await;
    let again = world.exported("again.tar").await;
    assert_eq!(fs::read(&file).expect("reads"), fs::read(again).expect("reads"), "one content is one file");
    let imported = world.import(&file).await.expect("imports");
    assert!(imported.layers.iter().all(|layer| layer.outcome == LayerOutcome::Taken));
    let base = imported.base.expect("is carried");
    assert_eq!((base.outcome, base.key), (BaseOutcome::Taken, Some(key("definition"))));
    assert_eq!(fs::read(&base.path).expect("reads"), b"the base");
    for name in ["one", "two", "again"] {
        let (here, there) = (world.to.find(&key(name)).expect("looks"), world.from.find(&key(name)).expect("looks"));
        assert!(here.is_some() && here == there, "{name}");
    }
    assert_eq!(world.sound().await.len(), 2 * 2 + 1 + 2);
    let path = LayerStore::file(world.to.folder(), &key("one"));
    let before = fs::metadata(&path).and_then(|data| data.modified()).expect("reads");
    let imported = world.import(&file).await.expect("imports");
    assert!(imported.layers.iter().all(|layer| layer.outcome == LayerOutcome::Kept));
    assert_eq!(imported.base.expect("is carried").outcome, BaseOutcome::Kept);
    assert_eq!(fs::metadata(&path).and_then(|data| data.modified()).expect("reads"), before);
}

#[tokio::test]
async fn what_is_there_under_the_same_key_stays_and_another_base_lies_beside() {
    let world = World::new().await;
    let file = world.exported("carried.tar").await;
    let made = world.file("made");
    fs::write(&made, "other").expect("writes");
    world.to.publish(&manifest("one", file_of(b"other")), Some(&made)).await.expect("publishes");
    let (own, _) = image(world.to.folder(), "definition", b"another base");
    let imported = world.import(&file).await.expect("imports");
    let outcomes: Vec<_> = imported.layers.iter().map(|layer| layer.outcome).collect();
    assert_eq!(outcomes, [LayerOutcome::KeptOther, LayerOutcome::Taken, LayerOutcome::Taken]);
    let base = imported.base.expect("is carried");
    assert_eq!((base.key, base.outcome), (None, BaseOutcome::Taken));
    assert_eq!(fs::read(own).expect("reads"), b"another base");
    assert_eq!(fs::read(&base.path).expect("reads"), b"the base");
    world.sound().await;
    let again = world.import(&file).await.expect("imports").base.expect("is carried");
    assert_eq!((again.path, again.key, again.outcome), (base.path, None, BaseOutcome::Kept));
}

#[tokio::test]
async fn a_file_that_is_cut_off_leaves_whole_layers_and_the_rest_comes_with_the_whole_file() {
    let world = World::new().await;
    let whole = fs::read(world.exported("carried.tar").await).expect("reads");
    let cut = world.file("cut.tar");
    // The last two blocks say that nothing follows; all parts are there without them.
    for length in (0..whole.len() - 1024).step_by(419) {
        fs::write(&cut, &whole[..length]).expect("writes");
        let refused = world.import(&cut).await;
        assert!(matches!(refused, Err(CarryError::Refused { .. })), "{length}: {refused:?}");
        world.sound().await;
    }
    assert!(world.to.find(&key("one")).expect("looks").is_some(), "what was whole stays");
    world.import(&world.file("carried.tar")).await.expect("imports");
    assert_eq!(world.sound().await.len(), 7);
}

#[tokio::test]
async fn a_flipped_bit_is_found_or_changes_nothing() {
    let world = World::new().await;
    let whole = fs::read(world.exported("carried.tar").await).expect("reads");
    let flipped = world.file("flipped.tar");
    let mut refused = 0;
    for place in (0..whole.len()).step_by(61) {
        let mut bytes = whole.clone();
        bytes[place] ^= 0x20;
        fs::write(&flipped, bytes).expect("writes");
        let target = LayerStore::open(&world.file(&format!("to-{place}")), None).expect("opens");
        match import(&target, &flipped, Stop::default()).await {
            Err(error) => {
                assert!(matches!(error, CarryError::Refused { .. }), "{place}: {error:?}");
                refused += 1;
            }
            Ok(_) => {
                for name in ["one", "two", "again"] {
                    let (here, there) = (target.find(&key(name)), world.from.find(&key(name)));
                    assert_eq!(here.expect("looks"), there.expect("looks"), "{place}");
                }
            }
        }
        assert!(target.verify(&[]).await.expect("reads").iter().all(|finding| finding.trouble.is_none()), "{place}");
    }
    assert!(refused > whole.len() / 61 / 2, "{refused}");
}

/// An entry: type, name, bytes.
type Raw<'a> = (EntryType, &'a str, &'a [u8]);

fn archive(file: &Path, entries: &[Raw<'_>]) {
    let mut builder = Builder::new(Vec::new());
    for (kind, name, bytes) in entries {
        let mut header = Header::new_ustar();
        header.set_entry_type(*kind);
        header.set_size(u64::try_from(bytes.len()).expect("small"));
        // By hand: the library refuses names that lead out of a folder.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        builder.append(&header, *bytes).expect("writes");
    }
    fs::write(file, builder.into_inner().expect("writes")).expect("writes");
}

fn index(layers: Vec<LayerManifest>) -> (String, Vec<u8>) {
    let index = Index { format: FORMAT.into(), arch: ARCH.into(), base: None, layers };
    let bytes = serde_json::to_vec(&index).expect("JSON");
    (Index::name(&bytes), bytes)
}

#[tokio::test]
async fn a_hostile_file_is_refused_and_writes_nothing() {
    let world = World::new().await;
    let bytes = content_of("one");
    let (name, text) = index(vec![manifest("one", file_of(&bytes))]);
    let part = format!("{FORMAT}/layer-{}.sqsh", key("one"));
    let head = (EntryType::Regular, name.as_str(), text.as_slice());
    let good = (EntryType::Regular, part.as_str(), bytes.as_slice());
    let (twice_name, twice) = index(vec![manifest("one", file_of(&bytes)), manifest("one", file_of(&bytes))]);
    let other_arch = LayerManifest { arch: "vax".into(), ..manifest("one", file_of(&bytes)) };
    let (other_name, other) = index(vec![other_arch]);
    let (huge_name, huge) =
        index(vec![manifest("one", LayerContent::File { digest: Digest::of(&bytes), bytes: u64::MAX / 4 })]);
    let wrong = content_of("two");
    let mut cases: Vec<(&str, Vec<Raw<'_>>, &str)> = vec![
        ("nothing", vec![], "no file of"),
        ("no index", vec![good], "no file of"),
        ("index of another name", vec![(EntryType::Regular, "longhaul-layers-1/index-0.json", &text), good], "damaged"),
        ("a layer twice", vec![(EntryType::Regular, &twice_name, &twice), good, good], "twice"),
        ("another architecture", vec![(EntryType::Regular, &other_name, &other), good], "architecture"),
        ("nothing after the index", vec![head], "cut off"),
        ("a path outside", vec![head, (EntryType::Regular, "../../outside", &bytes)], "has to be"),
        ("an absolute path", vec![head, (EntryType::Regular, "/tmp/outside", &bytes)], "has to be"),
        ("wrong bytes", vec![head, (EntryType::Regular, &part, &wrong)], "damaged"),
        ("wrong length", vec![head, (EntryType::Regular, &part, &bytes[1..])], "2999 bytes"),
        ("more than it names", vec![head, good, (EntryType::Regular, "more", b"x")], "does not name"),
        ("not an index", vec![(EntryType::Regular, "longhaul-layers-1/index.json", b"{}"), good], "no file of"),
    ];
    for (what, kind) in [
        ("a link", EntryType::Symlink),
        ("a hard link", EntryType::Link),
        ("a device", EntryType::Char),
        ("a block device", EntryType::Block),
        ("a pipe", EntryType::Fifo),
        ("a folder", EntryType::Directory),
        ("a long name", EntryType::GNULongName),
        ("a header that changes others", EntryType::XHeader),
        ("a sparse file", EntryType::GNUSparse),
    ] {
        cases.push((what, vec![head, (kind, &part, &[])], "no plain file"));
    }
    for (what, entries, reason) in cases {
        let file = world.file("hostile.tar");
        archive(&file, &entries);
        match world.import(&file).await {
            Err(CarryError::Refused { reason: said, .. }) => assert!(said.contains(reason), "{what}: {said}"),
            other => panic!("{what}: {other:?}"),
        }
        let left = world.sound().await;
        // What came before an entry too many was whole, and is the layer that it says.
        assert!(left.is_empty() || what == "more than it names", "{what}: {left:?}");
        for name in left {
            fs::remove_file(world.to.folder().join(name)).expect("removes");
        }
        assert!(!world.file("outside").exists() && !Path::new("/tmp/outside").exists(), "{what}");
    }
    let file = world.file("huge.tar");
    archive(&file, &[(EntryType::Regular, &huge_name, &huge)]);
    assert!(matches!(world.import(&file).await, Err(CarryError::NoRoom { .. })));
}

#[tokio::test]
async fn what_a_killed_import_left_goes_with_the_next_and_one_that_is_stopped_leaves_nothing() {
    let world = World::new().await;
    let file = world.exported("carried.tar").await;
    let images = world.to.folder().join("images");
    fs::create_dir_all(&images).expect("makes");
    for folder in [world.to.folder(), &images] {
        fs::write(folder.join(format!("{}.import.new", key("x"))), "half").expect("writes");
    }
    let stop = Stop::default();
    stop.stop();
    let stopped = import(&world.to, &file, stop).await;
    assert!(matches!(stopped, Err(CarryError::Stopped)), "{stopped:?}");
    assert_eq!(world.sound().await, Vec::<String>::new());
    world.import(&file).await.expect("imports");
    world.sound().await;
}

#[tokio::test]
async fn two_imports_into_one_folder_do_not_run_at_once() {
    let world = World::new().await;
    let file = world.exported("carried.tar").await;
    let held = fs::File::create(world.to.folder().join(".import.lock")).expect("makes");
    held.lock().expect("locks");
    assert!(matches!(world.import(&file).await, Err(CarryError::Busy(_))));
    drop(held);
    world.import(&file).await.expect("imports");
}

#[tokio::test]
async fn a_damaged_layer_or_base_is_not_exported_and_no_file_is_left() {
    let world = World::new().await;
    let path = LayerStore::file(world.from.folder(), &key("two"));
    let mut bytes = content_of("two");
    bytes[1234] ^= 1;
    fs::write(&path, &bytes).expect("writes");
    let two = world.from.find(&key("two")).expect("looks").expect("is there");
    let file = world.file("none.tar");
    let refused = export(&world.from, None, std::slice::from_ref(&two), &file, Stop::default()).await;
    assert!(matches!(&refused, Err(CarryError::Damaged { part, .. }) if part.contains(&key("two").to_string())));
    fs::write(&path, &bytes[..9]).expect("writes");
    let refused = export(&world.from, None, std::slice::from_ref(&two), &file, Stop::default()).await;
    assert!(matches!(refused, Err(CarryError::Damaged { .. })), "one that became shorter too");
    let gone = manifest("gone", file_of(b"x"));
    let refused = export(&world.from, None, &[gone], &file, Stop::default()).await;
    assert!(matches!(refused, Err(CarryError::Missing { .. })), "{refused:?}");
    let left: Vec<_> = fs::read_dir(world.root.path())
        .expect("lists")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.contains("layers") || name.contains("none"))
        .collect();
    assert_eq!(left, Vec::<String>::new());
}
