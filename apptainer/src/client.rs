//! Speaking to the helper inside a sandbox.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longhaul_core::helper::{
    FRAME_DATA, FRAME_HEADER, FRAME_JSON, HelperAnswer, HelperFailure, HelperRequest, frame_header, parse_frame_header,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// How much of a file goes into one frame.
const PIECE: usize = 256 * 1024;

/// How long a copy may stand still.
const STALLED: Duration = Duration::from_secs(120);

/// Why the helper did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// It said no.
    #[error("{message}")]
    Refused {
        /// Which kind of failure.
        kind: HelperFailure,
        /// What happened.
        message: String,
    },
    /// It is not there any more.
    #[error("the sandbox's helper does not answer")]
    Gone(#[source] io::Error),
    /// What is read or written out here failed.
    #[error("the caller's side of a copy failed")]
    Caller(#[source] io::Error),
    /// A copy stands still.
    #[error("the sandbox's helper neither gave nor took anything for {} s", STALLED.as_secs())]
    Stalled,
    /// It does not speak as agreed.
    #[error("the sandbox's helper answered with {0}")]
    Protocol(String),
}

/// One conversation with a helper.
#[derive(Debug)]
pub struct Client(UnixStream);

impl Client {
    /// Connects to the helper's socket. The path has to be short (see
    /// [`crate::Sandbox`], which goes through a descriptor of the folder).
    pub async fn connect(socket: &Path) -> Result<Self, ClientError> {
        UnixStream::connect(socket).await.map(Self).map_err(ClientError::Gone)
    }

    /// Asks, and returns the answer; a refusal is an error.
    pub async fn ask(&mut self, request: &HelperRequest) -> Result<HelperAnswer, ClientError> {
        self.send(request).await?;
        self.answer().await
    }

    /// Sends a request only.
    async fn send(&mut self, request: &HelperRequest) -> Result<(), ClientError> {
        let bytes = serde_json::to_vec(request).map_err(|error| ClientError::Protocol(error.to_string()))?;
        self.frame(FRAME_JSON, &bytes).await
    }

    async fn frame(&mut self, kind: u8, bytes: &[u8]) -> Result<(), ClientError> {
        let header = frame_header(kind, bytes.len())
            .ok_or_else(|| ClientError::Protocol("no answer: the request is too long".to_owned()))?;
        self.0.write_all(&header).await.map_err(ClientError::Gone)?;
        self.0.write_all(bytes).await.map_err(ClientError::Gone)
    }

    async fn answer(&mut self) -> Result<HelperAnswer, ClientError> {
        let (kind, bytes) = self.read().await?;
        if kind != FRAME_JSON {
            return Err(ClientError::Protocol("data where an answer was expected".to_owned()));
        }
        match serde_json::from_slice(&bytes).map_err(|error| ClientError::Protocol(error.to_string()))? {
            HelperAnswer::Failed { kind, message } => Err(ClientError::Refused { kind, message }),
            answer => Ok(answer),
        }
    }

    async fn read(&mut self) -> Result<(u8, Vec<u8>), ClientError> {
        let mut header = [0; FRAME_HEADER];
        self.0.read_exact(&mut header).await.map_err(ClientError::Gone)?;
        let (kind, length) =
            parse_frame_header(header).ok_or_else(|| ClientError::Protocol("something that is no frame".to_owned()))?;
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes).await.map_err(ClientError::Gone)?;
        Ok((kind, bytes))
    }

    /// Asks for something that is followed by data, and writes the data to `sink`.
    /// Returns how many bytes there were.
    pub async fn fetch(
        &mut self,
        request: &HelperRequest,
        sink: &mut (impl AsyncWrite + Unpin),
    ) -> Result<u64, ClientError> {
        match moving(self.ask(request)).await? {
            HelperAnswer::File { .. } => {}
            other => return Err(ClientError::Protocol(format!("{other:?}"))),
        }
        let mut count = 0_u64;
        loop {
            match moving(self.read()).await? {
                (FRAME_DATA, bytes) if bytes.is_empty() => break,
                (FRAME_DATA, bytes) => {
                    sink.write_all(&bytes).await.map_err(ClientError::Caller)?;
                    count = count.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
                }
                (_, bytes) => {
                    return Err(match serde_json::from_slice(&bytes) {
                        Ok(HelperAnswer::Failed { kind, message }) => ClientError::Refused { kind, message },
                        _ => ClientError::Protocol("an answer in the middle of data".to_owned()),
                    });
                }
            }
        }
        sink.flush().await.map_err(ClientError::Caller)?;
        Ok(count)
    }

    /// Sends what `source` holds after a request, and waits for the answer.
    pub async fn put(
        &mut self,
        request: &HelperRequest,
        source: &mut (impl AsyncRead + Unpin),
    ) -> Result<HelperAnswer, ClientError> {
        moving(self.send(request)).await?;
        let mut piece = vec![0; PIECE];
        loop {
            let count = source.read(&mut piece).await.map_err(ClientError::Caller)?;
            moving(self.frame(FRAME_DATA, piece.get(..count).unwrap_or_default())).await?;
            if count == 0 {
                return moving(self.answer()).await;
            }
        }
    }
}

/// A part of a copy, which is over soon or never.
async fn moving<T>(part: impl Future<Output = Result<T, ClientError>>) -> Result<T, ClientError> {
    timeout(STALLED, part).await.unwrap_or(Err(ClientError::Stalled))
}

/// The path of `name` in the folder behind an open descriptor: short, however long the
/// folder's own path is (a socket's path holds 107 bytes).
#[must_use]
pub fn through(folder: &impl std::os::fd::AsRawFd, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", folder.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who hangs in the middle of a copy: it takes what is sent, and says no more than its first word.
    async fn hangs(first: Option<HelperAnswer>) -> Client {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        if let Some(first) = first {
            let bytes = serde_json::to_vec(&first).expect("writes");
            let header = frame_header(FRAME_JSON, bytes.len()).expect("fits");
            theirs.write_all(&header).await.expect("takes it");
            theirs.write_all(&bytes).await.expect("takes it");
        }
        tokio::spawn(async move {
            let mut nothing = [0; 1024];
            while matches!(theirs.read(&mut nothing).await, Ok(count) if count > 0) {}
        });
        Client(ours)
    }

    #[tokio::test(start_paused = true)]
    async fn a_copy_that_stands_still_is_given_up_whoever_is_to_speak() {
        let request = HelperRequest::ReadFile { path: "/x".to_owned(), end: None };
        for first in [None, Some(HelperAnswer::File { size: 7 })] {
            let fetched = hangs(first).await.fetch(&request, &mut Vec::new()).await;
            assert!(matches!(fetched, Err(ClientError::Stalled)), "{fetched:?}");
        }
        let request = HelperRequest::WriteFile { path: "/x".to_owned() };
        let put = hangs(None).await.put(&request, &mut &b"some"[..]).await;
        assert!(matches!(put, Err(ClientError::Stalled)), "{put:?}");
    }
}
