//! Blobs over the wire: asked for before they are sent, sent in pieces on a call of their
//! own, checked when they arrive.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use longhaul_core::digest::Digest;
use longhaul_core::plan::{Tree, TreeNode};
use longhaul_proto::convert;
use longhaul_proto::v1;
use longhaul_proto::v1::blob_service_client::BlobServiceClient;
use serde::de::DeserializeOwned;
use tokio_stream::StreamExt;
use tonic::Code;

use super::cache::{BlobCache, HeldTree};
use super::materialise::make_entry;
use super::{BlobError, MAX_BLOB};
use crate::backoff::Backoff;
use crate::session::Transport;

/// The size of a piece on the wire: well below what a message may hold.
const PIECE: usize = 1024 * 1024;

/// The most digests that one question asks about.
const ASK_AT_ONCE: usize = 1000;

/// Fetches and puts blobs, through the node's cache.
#[derive(Clone, Debug)]
pub struct BlobClient {
    remote: BlobServiceClient<Transport>,
    cache: BlobCache,
    /// One maker at a time for each tree.
    making: Arc<Mutex<HashMap<Digest, Arc<tokio::sync::Mutex<()>>>>>,
}

impl BlobClient {
    /// A client over a transport.
    #[must_use]
    pub fn new(transport: Transport, cache: BlobCache) -> Self {
        let remote = BlobServiceClient::new(transport);
        Self { remote, cache, making: Arc::default() }
    }

    /// The blob, from the cache or the coordinator. While the coordinator cannot be reached it
    /// is asked again and again: the caller decides how long that may take.
    ///
    /// # Errors
    ///
    /// The coordinator does not have it, or the cache fails.
    pub async fn get(&self, digest: Digest) -> Result<Vec<u8>, BlobError> {
        let cache = self.cache.clone();
        if let Some(bytes) = blocking(move || cache.read(&digest)).await? {
            return Ok(bytes);
        }
        let mut backoff = Backoff::default();
        let bytes = loop {
            match self.fetch(digest).await {
                Ok(bytes) => break bytes,
                Err(error) if error.is_passing() => {
                    tracing::debug!(%digest, %error, "a blob is asked for again");
                    backoff.wait().await;
                }
                Err(error) => return Err(error),
            }
        };
        let cache = self.cache.clone();
        blocking(move || cache.write(&digest, &bytes).map(|()| bytes)).await
    }

    /// A plan, a tree: a blob of JSON.
    ///
    /// # Errors
    ///
    /// As [`Self::get`], and it is not of that shape.
    pub async fn get_json<T: DeserializeOwned>(&self, digest: Digest, what: &'static str) -> Result<T, BlobError> {
        let bytes = self.get(digest).await?;
        serde_json::from_slice(&bytes).map_err(|error| BlobError::Unreadable {
            digest,
            what,
            reason: error.to_string(),
        })
    }

    /// The folder of a tree, made now if it is not there, and held.
    ///
    /// # Errors
    ///
    /// As [`Self::get`], and a tree that must not be made.
    pub async fn folder(&self, digest: Digest) -> Result<HeldTree, BlobError> {
        let turn = {
            let mut making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
            making.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(making.entry(digest).or_default())
        };
        let _turn = turn.lock().await;
        let cache = self.cache.clone();
        if let Some(held) = blocking(move || cache.hold_tree(&digest)).await? {
            return Ok(held);
        }
        let tree: Tree = self.get_json(digest, "a tree").await?;
        let cache = self.cache.clone();
        let staged = blocking(move || cache.stage_tree()).await?;
        let mut made = BTreeMap::new();
        let mut bytes = 0;
        for entry in tree.entries {
            let mut pieces = HashMap::new();
            if let TreeNode::File { chunks, .. } = &entry.node {
                for chunk in chunks {
                    pieces.insert(*chunk, self.get(*chunk).await?);
                }
            }
            let root = staged.clone();
            let (back, written) = blocking(move || {
                let piece = |chunk: &Digest| pieces.get(chunk).cloned().ok_or(BlobError::Missing { digest: *chunk });
                let written = make_entry(&root, &digest, &entry, &mut made, piece)?;
                Ok((made, written))
            })
            .await?;
            made = back;
            bytes += written;
        }
        let cache = self.cache.clone();
        blocking(move || cache.publish_tree(&digest, &staged, bytes)).await
    }

    /// Puts blobs that the coordinator lacks. One try.
    ///
    /// # Errors
    ///
    /// The coordinator cannot be reached or refuses.
    pub async fn put(&self, blobs: BTreeMap<Digest, Vec<u8>>) -> Result<(), BlobError> {
        let digests: Vec<Digest> = blobs.keys().copied().collect();
        let mut missing = BTreeSet::new();
        for some in digests.chunks(ASK_AT_ONCE) {
            let request = v1::MissingRequest { digests: some.iter().map(wire).collect() };
            let answer = self.remote.clone().missing(request).await.map_err(unreachable)?.into_inner();
            for bytes in &answer.digests {
                missing.insert(convert::digest("digests", bytes).map_err(malformed)?);
            }
        }
        let pieces: Vec<v1::PutBlobChunk> = blobs
            .into_iter()
            .filter(|(digest, _)| missing.contains(digest))
            .flat_map(|(digest, bytes)| pieces(&digest, &bytes))
            .collect();
        if pieces.is_empty() {
            return Ok(());
        }
        self.remote.clone().put(tokio_stream::iter(pieces)).await.map_err(unreachable)?;
        Ok(())
    }

    async fn fetch(&self, digest: Digest) -> Result<Vec<u8>, BlobError> {
        let request = v1::GetBlobRequest { digest: wire(&digest) };
        let absent = |status: tonic::Status| match status.code() {
            Code::NotFound => BlobError::Missing { digest },
            _ => unreachable(status),
        };
        let mut stream = self.remote.clone().get(request).await.map_err(absent)?.into_inner();
        let mut bytes = Vec::new();
        while let Some(piece) = stream.next().await {
            let piece = piece.map_err(absent)?;
            if (bytes.len() + piece.data.len()) as u64 > MAX_BLOB {
                return Err(BlobError::TooLarge { digest });
            }
            bytes.extend_from_slice(&piece.data);
        }
        if Digest::of(&bytes) == digest { Ok(bytes) } else { Err(BlobError::Corrupt { digest }) }
    }
}

fn pieces(digest: &Digest, bytes: &[u8]) -> Vec<v1::PutBlobChunk> {
    let first =
        |data: &[u8]| v1::PutBlobChunk { digest: wire(digest), size: bytes.len() as u64, data: data.to_vec().into() };
    let mut pieces: Vec<v1::PutBlobChunk> = bytes
        .chunks(PIECE)
        .enumerate()
        .map(|(index, data)| match index {
            0 => first(data),
            _ => v1::PutBlobChunk { data: data.to_vec().into(), ..v1::PutBlobChunk::default() },
        })
        .collect();
    if pieces.is_empty() {
        pieces.push(first(&[]));
    }
    pieces
}

fn wire<T: From<Vec<u8>>>(digest: &Digest) -> T {
    convert::digest_bytes(digest).into()
}

fn unreachable(status: tonic::Status) -> BlobError {
    BlobError::Unreachable { message: format!("{:?}: {}", status.code(), status.message()) }
}

fn malformed(error: convert::ConvertError) -> BlobError {
    BlobError::Unreachable { message: error.to_string() }
}

/// Runs file work off the threads that serve sockets.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BlobError> + Send + 'static,
) -> Result<T, BlobError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| BlobError::GivenUp)?
}
