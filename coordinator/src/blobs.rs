//! Blobs: content-addressed bytes, in pieces, beside the sessions' streams.

use std::pin::Pin;
use std::sync::Arc;

use longhaul_core::digest::Digest;
use longhaul_core::text::chain;
use longhaul_proto::convert::{self, ConvertError};
use longhaul_proto::v1;
use longhaul_proto::v1::blob_service_server::BlobService;
use longhaul_store::{Blob, BlobError, Store};
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

/// The size of the pieces that a blob is sent in.
const PIECE_BYTES: usize = 1024 * 1024;

/// Blobs are stored together up to this many bytes, then synced.
const GROUP_BYTES: usize = 32 * 1024 * 1024;

/// The largest blob that is taken.
const MAX_BLOB_BYTES: u64 = 64 * 1024 * 1024;

/// The most digests that one request may name.
const MAX_DIGESTS: usize = 100_000;

/// The service for blobs.
#[derive(Clone, Debug)]
pub(crate) struct Blobs {
    pub(crate) store: Arc<Store>,
}

#[tonic::async_trait]
impl BlobService for Blobs {
    type GetStream = Pin<Box<dyn Stream<Item = Result<v1::BlobChunk, Status>> + Send>>;

    async fn missing(&self, request: Request<v1::MissingRequest>) -> Result<Response<v1::MissingResponse>, Status> {
        let digests = request.into_inner().digests;
        if digests.len() > MAX_DIGESTS {
            return Err(Status::invalid_argument(format!("more than {MAX_DIGESTS} digests in one request")));
        }
        let digests: Vec<Digest> =
            digests.iter().map(|bytes| convert::digest("digests", bytes)).collect::<Result<_, _>>().map_err(invalid)?;
        let missing = blocking(&self.store, move |store| store.missing_blobs(&digests)).await?;
        let digests = missing.iter().map(|digest| convert::digest_bytes(digest).into()).collect();
        Ok(Response::new(v1::MissingResponse { digests }))
    }

    async fn put(
        &self,
        request: Request<Streaming<v1::PutBlobChunk>>,
    ) -> Result<Response<v1::PutBlobsResponse>, Status> {
        let mut stream = request.into_inner();
        let mut stored = 0;
        let mut group = Vec::new();
        let mut group_bytes = 0;
        let mut open: Option<Incoming> = None;
        while let Some(chunk) = stream.message().await? {
            if !chunk.digest.is_empty() {
                if let Some(before) = open.take() {
                    let blob = before.close()?;
                    group_bytes += blob.bytes().len();
                    group.push(blob);
                }
                open = Some(Incoming::open(&chunk)?);
            }
            let incoming =
                open.as_mut().ok_or_else(|| Status::invalid_argument("the first piece of a blob names its digest"))?;
            incoming.add(&chunk.data)?;
            if group_bytes >= GROUP_BYTES {
                stored += self.store.put_blobs(std::mem::take(&mut group)).await.map_err(refused)?;
                group_bytes = 0;
            }
        }
        if let Some(last) = open.take() {
            group.push(last.close()?);
        }
        if !group.is_empty() {
            stored += self.store.put_blobs(group).await.map_err(refused)?;
        }
        Ok(Response::new(v1::PutBlobsResponse { stored }))
    }

    async fn get(&self, request: Request<v1::GetBlobRequest>) -> Result<Response<Self::GetStream>, Status> {
        let digest = convert::digest("digest", &request.into_inner().digest).map_err(invalid)?;
        let bytes = blocking(&self.store, move |store| store.blob(&digest))
            .await?
            .ok_or_else(|| Status::not_found(format!("there is no blob {digest}")))?;
        // Pieces share the one allocation.
        let bytes = prost::bytes::Bytes::from(bytes);
        let count = bytes.len().div_ceil(PIECE_BYTES).max(1);
        let pieces = (0..count).map(move |index| {
            let end = bytes.len().min((index + 1) * PIECE_BYTES);
            Ok(v1::BlobChunk { data: bytes.slice(index * PIECE_BYTES..end) })
        });
        Ok(Response::new(Box::pin(tokio_stream::iter(pieces))))
    }
}

/// A blob on its way in.
struct Incoming {
    digest: Digest,
    size: u64,
    bytes: Vec<u8>,
}

impl Incoming {
    fn open(chunk: &v1::PutBlobChunk) -> Result<Self, Status> {
        let digest = convert::digest("digest", &chunk.digest).map_err(invalid)?;
        if chunk.size > MAX_BLOB_BYTES {
            return Err(Status::invalid_argument(format!("blob {digest} is larger than {MAX_BLOB_BYTES} bytes")));
        }
        // What a client claims is not allocated before it comes.
        Ok(Self { digest, size: chunk.size, bytes: Vec::new() })
    }

    fn add(&mut self, data: &[u8]) -> Result<(), Status> {
        if (self.bytes.len() + data.len()) as u64 > self.size {
            return Err(Status::invalid_argument(format!("blob {} is longer than was said", self.digest)));
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }

    fn close(self) -> Result<Blob, Status> {
        if self.bytes.len() as u64 != self.size {
            return Err(Status::invalid_argument(format!("blob {} is shorter than was said", self.digest)));
        }
        Blob::checked(self.digest, self.bytes).map_err(refused)
    }
}

/// Reads from the store where waiting for the disk holds nobody up.
pub(crate) async fn blocking<T: Send + 'static, E: std::error::Error + Send + 'static>(
    store: &Arc<Store>,
    read: impl FnOnce(&Store) -> Result<T, E> + Send + 'static,
) -> Result<T, Status> {
    let store = Arc::clone(store);
    tokio::task::spawn_blocking(move || read(&store))
        .await
        .map_err(|error| Status::internal(format!("reading the store failed: {error}")))?
        .map_err(|error| Status::internal(chain(&error)))
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn refused(error: BlobError) -> Status {
    let text = chain(&error);
    match error {
        BlobError::WrongDigest { .. } | BlobError::TooLarge { .. } => Status::invalid_argument(text),
        BlobError::Write(longhaul_store::WriteError::DiskFull { .. }) => Status::resource_exhausted(text),
        BlobError::Write(_) => Status::unavailable(text),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn invalid(error: ConvertError) -> Status {
    Status::invalid_argument(error.to_string())
}
