//! Layers that workers carry to each other through the coordinator, where they have no layer
//! folder in common: files beside the store, `KEY.sqsh` and `KEY.json`, as in every layer folder.
//!
//! A layer is written beside its place, checked against its digest, synced and renamed, its
//! manifest last: what has a manifest is whole. Of two that are put under one key the first
//! stays. Of a manifest only what is needed here is read; the rest is the workers' business.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use longhaul_core::digest::Digest;
use longhaul_proto::convert::{self, ConvertError};
use longhaul_proto::v1;
use longhaul_proto::v1::layer_service_server::LayerService;
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// The size of the pieces that a layer is sent in.
const PIECE_BYTES: usize = 1024 * 1024;

/// Pieces that are read ahead of a receiver.
const PIECES_AHEAD: usize = 4;

/// The largest manifest that is taken.
const MAX_MANIFEST: usize = 1024 * 1024;

/// What stays free on the store's disk whatever is put: the store comes first.
const FLOOR_BYTES: u64 = 2 << 30;

/// The service for layers.
#[derive(Clone, Debug)]
pub(crate) struct Layers {
    folder: Arc<PathBuf>,
    /// One publisher at a time.
    publishing: Arc<Mutex<()>>,
    made: Arc<AtomicU64>,
}

/// What is read of a manifest here.
#[derive(Debug, Deserialize)]
struct Manifest {
    key: Digest,
    /// Of the layer's file; absent for a layer without one.
    #[serde(default)]
    digest: Option<Digest>,
    #[serde(default)]
    bytes: u64,
}

impl Manifest {
    fn read(json: &[u8]) -> Result<Self, Status> {
        serde_json::from_slice(json)
            .map_err(|error| Status::invalid_argument(format!("the manifest of a layer cannot be read: {error}")))
    }

    fn content(&self) -> Digest {
        self.digest.unwrap_or(self.key)
    }
}

impl Layers {
    /// The layers below `folder`; what an earlier coordinator had not finished is removed.
    pub(crate) fn open(folder: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "part") {
                fs::remove_file(&path)?;
            }
        }
        Ok(Self { folder: Arc::new(folder), publishing: Arc::default(), made: Arc::default() })
    }

    fn file(&self, key: &Digest) -> PathBuf {
        self.folder.join(format!("{key}.sqsh"))
    }

    fn manifest(&self, key: &Digest) -> PathBuf {
        self.folder.join(format!("{key}.json"))
    }

    fn part(&self, key: &Digest) -> PathBuf {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        self.folder.join(format!("{key}.{number}.part"))
    }

    /// The manifest of the layer, if it is there with that content.
    fn find(&self, key: &Digest, content: &Digest) -> Result<Option<(Vec<u8>, Manifest)>, Status> {
        let path = self.manifest(key);
        let json = match fs::read(&path) {
            Ok(json) => json,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreadable(&path, &error)),
        };
        let manifest = Manifest::read(&json)?;
        Ok((manifest.key == *key && manifest.content() == *content).then_some((json, manifest)))
    }

    fn publish(&self, incoming: Incoming) -> Result<bool, Status> {
        let Incoming { manifest, json, part, .. } = incoming;
        let _alone = self.publishing.lock().unwrap_or_else(PoisonError::into_inner);
        if self.manifest(&manifest.key).exists() {
            return Ok(false);
        }
        let publish = || -> io::Result<()> {
            if manifest.digest.is_some() {
                fs::rename(&part.path, self.file(&manifest.key))?;
            }
            let beside = self.part(&manifest.key);
            let mut file = File::create(&beside)?;
            file.write_all(&json)?;
            file.sync_all()?;
            fs::rename(&beside, self.manifest(&manifest.key))?;
            File::open(self.folder.as_path())?.sync_all()
        };
        publish().map_err(|error| unwritable(&self.folder, &error))?;
        Ok(true)
    }

    async fn take(&self, mut stream: Streaming<v1::PutLayerPiece>) -> Result<bool, Status> {
        let first = stream
            .message()
            .await?
            .ok_or_else(|| Status::invalid_argument("the first piece of a layer names it, and there is none"))?;
        let (key, content) = named(first.layer.as_ref())?;
        let layers = self.clone();
        let opened = blocking(move || layers.open_incoming(key, content, &first)).await?;
        let Some(mut incoming) = opened else { return Ok(false) };
        while let Some(piece) = stream.message().await? {
            incoming = blocking(move || incoming.add(&piece.data)).await?;
        }
        let layers = self.clone();
        blocking(move || layers.publish(incoming.close()?)).await
    }

    /// Gets ready for a layer; none if it is there.
    fn open_incoming(
        &self,
        key: Digest,
        content: Digest,
        first: &v1::PutLayerPiece,
    ) -> Result<Option<Incoming>, Status> {
        if first.manifest_json.len() > MAX_MANIFEST {
            return Err(Status::invalid_argument("the manifest of the layer is too long"));
        }
        let manifest = Manifest::read(&first.manifest_json)?;
        let size = if manifest.digest.is_some() { manifest.bytes } else { 0 };
        if manifest.key != key || manifest.content() != content || size != first.size {
            return Err(Status::invalid_argument(format!("the manifest of layer {key} is of another one")));
        }
        if self.find(&key, &content)?.is_some() {
            return Ok(None);
        }
        let free = longhaul_store::free_bytes(&self.folder).map_err(|error| unwritable(&self.folder, &error))?;
        if free.saturating_sub(FLOOR_BYTES) < size {
            return Err(Status::resource_exhausted(format!(
                "{} has no room for layer {key}: {size} bytes are needed, {free} are free",
                self.folder.display()
            )));
        }
        let part = Part { path: self.part(&key) };
        let file = File::create(&part.path).map_err(|error| unwritable(&part.path, &error))?;
        let json = first.manifest_json.to_vec();
        let incoming = Incoming { manifest, json, part, file, size, written: 0, hasher: blake3::Hasher::new() };
        incoming.add(&first.data).map(Some)
    }

    fn send(
        &self,
        key: Digest,
        content: Digest,
        pieces: &mpsc::Sender<Result<v1::LayerPiece, Status>>,
    ) -> Result<(), Status> {
        let (json, manifest) = self
            .find(&key, &content)?
            .ok_or_else(|| Status::not_found(format!("there is no layer {key} of content {content}")))?;
        let size = if manifest.digest.is_some() { manifest.bytes } else { 0 };
        let mut piece = v1::LayerPiece { manifest_json: json.into(), size, data: Vec::new().into() };
        if manifest.digest.is_none() {
            // A receiver that went away wants nothing more.
            let _ = pieces.blocking_send(Ok(piece));
            return Ok(());
        }
        let path = self.file(&key);
        let mut file = File::open(&path).map_err(|error| unreadable(&path, &error))?;
        loop {
            let mut data = Vec::with_capacity(PIECE_BYTES);
            let read = Read::by_ref(&mut file).take(PIECE_BYTES as u64).read_to_end(&mut data);
            let read = read.map_err(|error| unreadable(&path, &error))?;
            let first = !piece.manifest_json.is_empty();
            if read == 0 && !first {
                return Ok(());
            }
            piece.data = data.into();
            if pieces.blocking_send(Ok(std::mem::take(&mut piece))).is_err() {
                return Ok(());
            }
        }
    }
}

#[tonic::async_trait]
impl LayerService for Layers {
    type GetStream = Pin<Box<dyn Stream<Item = Result<v1::LayerPiece, Status>> + Send>>;

    async fn has(&self, request: Request<v1::LayerRef>) -> Result<Response<v1::HasLayerResponse>, Status> {
        let (key, content) = named(Some(request.get_ref()))?;
        let layers = self.clone();
        let there = blocking(move || layers.find(&key, &content)).await?.is_some();
        Ok(Response::new(v1::HasLayerResponse { there }))
    }

    async fn put(
        &self,
        request: Request<Streaming<v1::PutLayerPiece>>,
    ) -> Result<Response<v1::PutLayerResponse>, Status> {
        let taken = self.take(request.into_inner()).await?;
        Ok(Response::new(v1::PutLayerResponse { taken }))
    }

    async fn get(&self, request: Request<v1::LayerRef>) -> Result<Response<Self::GetStream>, Status> {
        let (key, content) = named(Some(request.get_ref()))?;
        let (pieces, receiver) = mpsc::channel(PIECES_AHEAD);
        let layers = self.clone();
        // It is over when the layer was read, or nobody takes its pieces any more.
        tokio::task::spawn_blocking(move || {
            if let Err(status) = layers.send(key, content, &pieces) {
                let _ = pieces.blocking_send(Err(status));
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

/// A file that is removed unless it was renamed away.
#[derive(Debug)]
struct Part {
    path: PathBuf,
}

impl Drop for Part {
    fn drop(&mut self) {
        // Renamed away where all went well.
        let _ = fs::remove_file(&self.path);
    }
}

/// A layer on its way in.
#[derive(Debug)]
struct Incoming {
    manifest: Manifest,
    json: Vec<u8>,
    part: Part,
    file: File,
    size: u64,
    written: u64,
    hasher: blake3::Hasher,
}

impl Incoming {
    fn add(mut self, data: &[u8]) -> Result<Self, Status> {
        self.written = self.written.saturating_add(data.len() as u64);
        if self.written > self.size {
            return Err(Status::invalid_argument(format!("layer {} is longer than was said", self.manifest.key)));
        }
        self.file.write_all(data).map_err(|error| unwritable(&self.part.path, &error))?;
        self.hasher.update(data);
        Ok(self)
    }

    fn close(self) -> Result<Self, Status> {
        let found = Digest::from_bytes(*self.hasher.finalize().as_bytes());
        if self.written != self.size || self.manifest.digest.is_some_and(|digest| digest != found) {
            return Err(Status::invalid_argument(format!("layer {} came damaged", self.manifest.key)));
        }
        self.file.sync_all().map_err(|error| unwritable(&self.part.path, &error))?;
        Ok(self)
    }
}

fn named(layer: Option<&v1::LayerRef>) -> Result<(Digest, Digest), Status> {
    let read = || -> Result<_, ConvertError> {
        let layer = convert::required("layer", layer)?;
        Ok((convert::digest("key", &layer.key)?, convert::digest("content", &layer.content)?))
    };
    read().map_err(|error| Status::invalid_argument(error.to_string()))
}

fn unreadable(path: &Path, error: &io::Error) -> Status {
    Status::internal(format!("cannot read {}: {error}", path.display()))
}

fn unwritable(path: &Path, error: &io::Error) -> Status {
    let text = format!("cannot write {}: {error}", path.display());
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Status::resource_exhausted(text),
        _ => Status::internal(text),
    }
}

/// Does file work off the threads that serve sockets.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Status> + Send + 'static) -> Result<T, Status> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Status::internal(format!("carrying failed: {error}")))?
}
