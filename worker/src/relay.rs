//! Connections that the coordinator makes for this node: bytes through the same authenticated
//! channel as everything else, on a connection of their own, so that what a vendor is slow to take
//! never holds up a heartbeat.
//!
//! HTTP/2's own windows hold back whoever is too fast. What breaks on the way is an error to whoever
//! reads, never an end.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use longhaul_core::endpoint::Destination;
use longhaul_gateway::ports::{Later, Pipe, Relay};
use longhaul_proto::v1;
use longhaul_proto::v1::relay_service_client::RelayServiceClient;
use longhaul_proto::v1::relay_up::Message as Up;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::PollSender;
use tonic::{Status, Streaming};

use crate::session::Transport;

/// The most that one message carries.
const PIECE: usize = 64 * 1024;

/// Pieces that wait to be sent.
const AHEAD: usize = 4;

/// The coordinator as the way out.
#[derive(Clone)]
pub(crate) struct ThroughCoordinator(RelayServiceClient<Transport>);

impl ThroughCoordinator {
    /// Over a channel that nothing else uses.
    pub(crate) fn new(transport: Transport) -> Self {
        Self(RelayServiceClient::new(transport))
    }
}

impl fmt::Debug for ThroughCoordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ThroughCoordinator")
    }
}

impl Relay for ThroughCoordinator {
    fn connect(&self, to: Destination) -> Later<'static, io::Result<Box<dyn Pipe>>> {
        let mut remote = self.0.clone();
        Box::pin(async move {
            let (up, pieces) = mpsc::channel(AHEAD);
            let first = v1::RelayTo { host: to.host, port: u32::from(to.port) };
            up.send(v1::RelayUp { message: Some(Up::To(first)) }).await.map_err(|_| gone())?;
            let down = remote.open(ReceiverStream::new(pieces)).await.map_err(|status| broken(&status))?.into_inner();
            let tunnel: Box<dyn Pipe> =
                Box::new(Tunnel { up: PollSender::new(up), down, rest: v1::RelayDown::default() });
            Ok(tunnel)
        })
    }
}

/// A connection that the coordinator made. Dropped, it is closed at both ends.
struct Tunnel {
    up: PollSender<v1::RelayUp>,
    down: Streaming<v1::RelayDown>,
    /// What came and was not read yet.
    rest: v1::RelayDown,
}

impl AsyncRead for Tunnel {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while self.rest.data.is_empty() {
            match ready!(Pin::new(&mut self.down).poll_next(context)) {
                Some(Ok(piece)) => self.rest = piece,
                Some(Err(status)) => return Poll::Ready(Err(broken(&status))),
                None => return Poll::Ready(Ok(())),
            }
        }
        let room = into.remaining().min(self.rest.data.len());
        into.put_slice(&self.rest.data.split_to(room));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if ready!(self.up.poll_reserve(context)).is_err() {
            return Poll::Ready(Err(gone()));
        }
        let piece = &bytes[..bytes.len().min(PIECE)];
        let message = v1::RelayUp { message: Some(Up::Data(piece.to_vec().into())) };
        Poll::Ready(self.up.send_item(message).map(|()| piece.len()).map_err(|_| gone()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.up.close();
        Poll::Ready(Ok(()))
    }
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the coordinator relays it no longer")
}

fn broken(status: &Status) -> io::Error {
    io::Error::other(format!("through the coordinator: {:?}: {}", status.code(), status.message()))
}
