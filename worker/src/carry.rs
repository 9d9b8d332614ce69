//! Layers carried through the coordinator: for workers whose layer folder no other node sees.
//!
//! Whoever has a layer offers it before it says that it is ready; whoever is told that it is
//! ready, and lacks it, fetches it. What goes wrong on the way costs time only: the layer is
//! built once more.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use longhaul_core::digest::Digest;
use longhaul_proto::convert;
use longhaul_proto::v1;
use longhaul_proto::v1::layer_service_client::LayerServiceClient;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

use crate::session::Transport;

/// The size of a piece on the wire.
const PIECE: usize = 1024 * 1024;

/// Pieces that are read ahead.
const AHEAD: usize = 4;

/// A layer as it is carried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CarriedLayer {
    /// Its key.
    pub key: Digest,
    /// The digest of its file; its key, for one without.
    pub content: Digest,
    /// Its manifest, as JSON.
    pub manifest_json: Vec<u8>,
    /// Its file and the size of it; none for a layer without content.
    pub file: Option<(PathBuf, u64)>,
}

/// Why a layer was not carried.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CarryError {
    /// The coordinator cannot be reached, or refuses.
    #[error("the coordinator: {:?}: {}", .0.code(), .0.message())]
    Remote(Box<Status>),
    /// A file of this node.
    #[error("cannot {what} {}", path.display())]
    File {
        /// What was to be done.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// It ended in the middle.
    #[error("layer {0} came in part only")]
    Torn(Digest),
}

impl From<Status> for CarryError {
    fn from(status: Status) -> Self {
        Self::Remote(Box::new(status))
    }
}

/// Carries layers to the coordinator and from it.
#[derive(Clone, Debug)]
pub(crate) struct Carrier {
    remote: LayerServiceClient<Transport>,
}

impl Carrier {
    pub(crate) fn new(transport: Transport) -> Self {
        Self { remote: LayerServiceClient::new(transport) }
    }

    /// Puts a layer that the coordinator lacks. Whether it was put now.
    pub(crate) async fn offer(&self, layer: CarriedLayer) -> Result<bool, CarryError> {
        let named = named(layer.key, layer.content);
        if self.remote.clone().has(named.clone()).await?.into_inner().there {
            return Ok(false);
        }
        let (pieces, receiver) = mpsc::channel(AHEAD);
        let reading = tokio::task::spawn_blocking(move || read_pieces(&layer, named, &pieces));
        let put = self.remote.clone().put(ReceiverStream::new(receiver)).await;
        // A file that could not be read says more than the stream that ended early.
        if let Ok(Err(error)) = reading.await {
            return Err(error);
        }
        Ok(put?.into_inner().taken)
    }

    /// Fetches a layer to files below `scratch`; none if the coordinator has none.
    pub(crate) async fn fetch(
        &self,
        key: Digest,
        content: Digest,
        scratch: &Path,
    ) -> Result<Option<CarriedLayer>, CarryError> {
        let mut stream = match self.remote.clone().get(named(key, content)).await {
            Ok(stream) => stream.into_inner(),
            Err(status) if status.code() == Code::NotFound => return Ok(None),
            Err(status) => return Err(status.into()),
        };
        let first = match stream.next().await {
            Some(Ok(first)) => first,
            Some(Err(status)) if status.code() == Code::NotFound => return Ok(None),
            Some(Err(status)) => return Err(status.into()),
            None => return Err(CarryError::Torn(key)),
        };
        let manifest_json = first.manifest_json.to_vec();
        if key == content {
            return Ok(Some(CarriedLayer { key, content, manifest_json, file: None }));
        }
        let path = scratch.join(format!("{key}.fetched"));
        let failed = |what, source| CarryError::File { what, path: path.clone(), source };
        tokio::fs::create_dir_all(scratch).await.map_err(|error| failed("make the folder of", error))?;
        let mut file = tokio::fs::File::create(&path).await.map_err(|error| failed("create", error))?;
        let (mut piece, mut written) = (first.data, 0_u64);
        loop {
            written = written.saturating_add(piece.len() as u64);
            file.write_all(&piece).await.map_err(|error| failed("write", error))?;
            match stream.next().await {
                Some(next) => piece = next?.data,
                None => break,
            }
        }
        // Only now is the last piece in the file, and its error known.
        file.flush().await.map_err(|error| failed("write", error))?;
        if written != first.size {
            return Err(CarryError::Torn(key));
        }
        Ok(Some(CarriedLayer { key, content, manifest_json, file: Some((path, written)) }))
    }
}

/// Reads a layer's file piece by piece, as fast as they are taken.
fn read_pieces(
    layer: &CarriedLayer,
    named: v1::LayerRef,
    pieces: &mpsc::Sender<v1::PutLayerPiece>,
) -> Result<(), CarryError> {
    let mut first = v1::PutLayerPiece {
        layer: Some(named),
        manifest_json: layer.manifest_json.clone().into(),
        size: layer.file.as_ref().map_or(0, |(_, size)| *size),
        data: Vec::new().into(),
    };
    let Some((path, _)) = &layer.file else {
        // Nobody takes it where the coordinator has refused; its answer says why.
        let _ = pieces.blocking_send(first);
        return Ok(());
    };
    let failed = |what| {
        let path = path.clone();
        move |source| CarryError::File { what, path, source }
    };
    let mut file = File::open(path).map_err(failed("open"))?;
    loop {
        let mut data = Vec::with_capacity(PIECE);
        let read = Read::by_ref(&mut file).take(PIECE as u64).read_to_end(&mut data).map_err(failed("read"))?;
        if read == 0 && first.layer.is_none() {
            return Ok(());
        }
        first.data = data.into();
        if pieces.blocking_send(std::mem::take(&mut first)).is_err() {
            return Ok(());
        }
    }
}

fn named(key: Digest, content: Digest) -> v1::LayerRef {
    v1::LayerRef { key: convert::digest_bytes(&key).into(), content: convert::digest_bytes(&content).into() }
}
