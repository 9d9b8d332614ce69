//! Layers that workers carry to each other through the coordinator.

mod common;

use common::World;
use longhaul_core::digest::Digest;
use longhaul_proto::convert;
use longhaul_proto::v1;
use longhaul_proto::v1::layer_service_client::LayerServiceClient;
use serde_json::json;
use tonic::{Code, Status};

/// A layer as a worker has it.
struct Layer {
    key: Digest,
    content: Digest,
    manifest: Vec<u8>,
    file: Vec<u8>,
}

impl Layer {
    fn of(key: &[u8], file: &[u8]) -> Self {
        let (key, content) = (Digest::of(key), Digest::of(file));
        let manifest = json!({
            "format": "some", "key": key, "kind": "install", "content": "file", "digest": content,
            "bytes": file.len(), "what else": "is kept",
        });
        Self { key, content, manifest: manifest.to_string().into_bytes(), file: file.to_vec() }
    }

    fn without_a_file(key: &[u8]) -> Self {
        let key = Digest::of(key);
        let manifest = json!({ "key": key, "kind": "configure", "content": "rerun", "reason": "a server" });
        Self { key, content: key, manifest: manifest.to_string().into_bytes(), file: Vec::new() }
    }

    fn named(&self) -> v1::LayerRef {
        v1::LayerRef {
            key: convert::digest_bytes(&self.key).into(),
            content: convert::digest_bytes(&self.content).into(),
        }
    }

    async fn put(&self, world: &World, said: usize) -> Result<bool, Status> {
        let mut pieces: Vec<_> = self
            .file
            .chunks(1000)
            .map(|data| v1::PutLayerPiece { data: data.to_vec().into(), ..v1::PutLayerPiece::default() })
            .collect();
        let first = v1::PutLayerPiece {
            layer: Some(self.named()),
            manifest_json: self.manifest.clone().into(),
            size: said as u64,
            ..v1::PutLayerPiece::default()
        };
        pieces.insert(0, first);
        let answer = client(world).await.put(tokio_stream::iter(pieces)).await?;
        Ok(answer.into_inner().taken)
    }

    async fn is_there(&self, world: &World) -> bool {
        client(world).await.has(self.named()).await.expect("an answer").into_inner().there
    }

    async fn get(&self, world: &World) -> Result<(Vec<u8>, Vec<u8>), Status> {
        let mut stream = client(world).await.get(self.named()).await?.into_inner();
        let (mut manifest, mut file) = (Vec::new(), Vec::new());
        while let Some(piece) = stream.message().await? {
            manifest.extend_from_slice(&piece.manifest_json);
            file.extend_from_slice(&piece.data);
        }
        Ok((manifest, file))
    }
}

async fn client(world: &World) -> LayerServiceClient<longhaul_proto::access::Connection> {
    LayerServiceClient::new(world.access().connect().await.expect("reachable"))
}

/// More than a piece, and no whole number of them.
fn bytes() -> Vec<u8> {
    (0..3_000_007_u32).map(|index| u8::try_from(index % 251).expect("small")).collect()
}

#[tokio::test]
async fn a_layer_comes_back_as_it_was_put_and_outlives_the_coordinator() {
    let world = World::start().await;
    let layer = Layer::of(b"key", &bytes());
    assert!(!layer.is_there(&world).await);
    assert_eq!(layer.get(&world).await.unwrap_err().code(), Code::NotFound);
    assert!(layer.put(&world, layer.file.len()).await.unwrap());
    let world = world.restart().await;
    assert!(layer.is_there(&world).await);
    assert_eq!(layer.get(&world).await.unwrap(), (layer.manifest.clone(), layer.file.clone()));
    let empty = Layer::without_a_file(b"another");
    assert!(empty.put(&world, 0).await.unwrap());
    assert_eq!(empty.get(&world).await.unwrap(), (empty.manifest.clone(), Vec::new()));
    world.stop().await;
}

#[tokio::test]
async fn of_two_layers_of_one_key_the_first_stays_and_the_other_is_not_found() {
    let world = World::start().await;
    let (first, second) = (Layer::of(b"key", b"built today"), Layer::of(b"key", b"built on another day"));
    assert!(first.put(&world, first.file.len()).await.unwrap());
    assert!(!first.put(&world, first.file.len()).await.unwrap(), "a second time changes nothing");
    assert!(!second.put(&world, second.file.len()).await.unwrap());
    assert!(!second.is_there(&world).await);
    assert_eq!(second.get(&world).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(first.get(&world).await.unwrap().1, first.file);
    world.stop().await;
}

#[tokio::test]
async fn what_came_damaged_short_or_under_another_name_is_refused_and_leaves_nothing() {
    let world = World::start().await;
    let whole = Layer::of(b"key", &bytes());
    let size = whole.file.len();
    let mut flipped = Layer::of(b"key", &bytes());
    flipped.file[1_234_567] ^= 1;
    let mut short = Layer::of(b"key", &bytes());
    short.file.truncate(size - 1);
    let mut long = Layer::of(b"key", &bytes());
    long.file.push(0);
    let mut other = Layer::of(b"key", &bytes());
    other.manifest = Layer::of(b"of another", &bytes()).manifest;
    let mut garbage = Layer::of(b"key", &bytes());
    garbage.manifest = b"no manifest".to_vec();
    for (layer, what) in
        [(flipped, "flipped"), (short, "short"), (long, "long"), (other, "other"), (garbage, "garbage")]
    {
        assert_eq!(layer.put(&world, size).await.unwrap_err().code(), Code::InvalidArgument, "{what}");
    }
    assert!(!whole.is_there(&world).await);
    let left = std::fs::read_dir(world.store().join("layers")).unwrap().count();
    assert_eq!(left, 0, "what was refused is still on disk");
    assert!(whole.put(&world, size).await.unwrap());
    world.stop().await;
}
