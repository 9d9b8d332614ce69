//! Brings blobs to a coordinator: asked for first, sent only where they are missing.

use std::collections::HashSet;

use longhaul_core::digest::Digest;
use longhaul_proto::convert;
use longhaul_proto::v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::client::Client;
use crate::error::CliError;

/// How many blobs wait for the coordinator before whoever makes them has to.
const AHEAD: usize = 8;

/// Blobs are asked for and sent together up to this many bytes,
const GROUP_BYTES: usize = 16 * 1024 * 1024;

/// or this many blobs.
const GROUP_BLOBS: usize = 1024;

/// The size of the pieces that a blob is sent in.
const PIECE_BYTES: usize = 1024 * 1024;

/// A blob on its way.
type Blob = (Digest, Vec<u8>);

/// Takes blobs on a thread that may wait.
#[derive(Debug)]
pub struct Sink {
    sender: mpsc::Sender<Blob>,
    seen: HashSet<Digest>,
}

/// The coordinator went away, or refused: the uploader says why.
#[derive(Debug, thiserror::Error)]
#[error("the coordinator takes no more blobs")]
pub struct SinkClosed;

impl Sink {
    /// Hands a blob over; one that was handed over before is not sent again.
    ///
    /// # Errors
    ///
    /// The uploader has stopped.
    pub fn put(&mut self, digest: Digest, bytes: &[u8]) -> Result<(), SinkClosed> {
        if !self.seen.insert(digest) {
            return Ok(());
        }
        self.sender.blocking_send((digest, bytes.to_vec())).map_err(|_| SinkClosed)
    }
}

/// A sink for blobs, and what it is emptied by.
#[must_use]
pub fn channel() -> (Sink, Uploader) {
    let (sender, receiver) = mpsc::channel(AHEAD);
    (Sink { sender, seen: HashSet::new() }, Uploader(receiver))
}

/// Sends what a [`Sink`] takes.
#[derive(Debug)]
pub struct Uploader(mpsc::Receiver<Blob>);

/// What was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uploaded {
    /// How many blobs the coordinator lacked.
    pub blobs: u64,
    /// How many bytes they have.
    pub bytes: u64,
}

impl Uploader {
    /// Sends blobs until the sink is dropped.
    ///
    /// # Errors
    ///
    /// The coordinator refuses, or goes away.
    pub async fn run(mut self, client: &Client) -> Result<Uploaded, CliError> {
        let mut uploaded = Uploaded::default();
        let mut group = Vec::new();
        let mut bytes = 0;
        while let Some(blob) = self.0.recv().await {
            bytes += blob.1.len();
            group.push(blob);
            if bytes >= GROUP_BYTES || group.len() >= GROUP_BLOBS {
                send(client, std::mem::take(&mut group), &mut uploaded).await?;
                bytes = 0;
            }
        }
        if !group.is_empty() {
            send(client, group, &mut uploaded).await?;
        }
        Ok(uploaded)
    }
}

async fn send(client: &Client, group: Vec<Blob>, uploaded: &mut Uploaded) -> Result<(), CliError> {
    let digests = group.iter().map(|(digest, _)| convert::digest_bytes(digest).into()).collect();
    let answer = client.blobs.clone().missing(v1::MissingRequest { digests }).await;
    let missing: HashSet<Digest> = answer
        .map_err(client.refused("say which blobs it lacks"))?
        .into_inner()
        .digests
        .iter()
        .map(|digest| convert::digest("digests", digest))
        .collect::<Result<_, _>>()
        .map_err(CliError::Answer)?;
    let group: Vec<Blob> = group.into_iter().filter(|(digest, _)| missing.contains(digest)).collect();
    if group.is_empty() {
        return Ok(());
    }
    uploaded.blobs += group.len() as u64;
    uploaded.bytes += group.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>();
    let (chunks, receiver) = mpsc::channel(AHEAD);
    let feed = async move {
        for (digest, bytes) in group {
            let size = bytes.len() as u64;
            let bytes = prost::bytes::Bytes::from(bytes);
            for index in 0..bytes.len().div_ceil(PIECE_BYTES).max(1) {
                let end = bytes.len().min((index + 1) * PIECE_BYTES);
                let digest =
                    if index == 0 { convert::digest_bytes(&digest).into() } else { prost::bytes::Bytes::new() };
                let chunk = v1::PutBlobChunk { digest, size, data: bytes.slice(index * PIECE_BYTES..end) };
                if chunks.send(chunk).await.is_err() {
                    // The call has ended, and says why.
                    return;
                }
            }
        }
    };
    let mut blobs = client.blobs.clone();
    let put = blobs.put(ReceiverStream::new(receiver));
    let ((), answer) = tokio::join!(feed, put);
    answer.map_err(client.refused("take blobs"))?;
    Ok(())
}
