//! Connections that somebody else makes for this node, as the HTTP client takes them.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use longhaul_core::endpoint::Destination;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tower::Service;

use crate::http::client::BoxError;
use crate::ports::{Later, Pipe, Relay};

/// Connects through whoever relays.
#[derive(Clone, Debug)]
pub(super) struct Through {
    pub(super) relay: Arc<dyn Relay>,
    /// How long a connection may take to come about.
    pub(super) limit: Duration,
}

impl Service<Uri> for Through {
    type Response = TokioIo<Passage>;
    type Error = BoxError;
    type Future = Later<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let to = Destination::of(&uri.to_string());
        let (relay, limit) = (Arc::clone(&self.relay), self.limit);
        Box::pin(async move {
            let to = to.ok_or_else(|| format!("nothing can be relayed to {uri}"))?;
            let late = |_| format!("the relay made no connection to {to} within {} seconds", limit.as_secs());
            let pipe = tokio::time::timeout(limit, relay.connect(to.clone())).await.map_err(late)??;
            Ok(TokioIo::new(Passage(pipe)))
        })
    }
}

/// A connection through a relay.
pub(super) struct Passage(Box<dyn Pipe>);

impl Connection for Passage {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Passage {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, into)
    }
}

impl AsyncWrite for Passage {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
