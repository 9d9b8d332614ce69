//! Connections that somebody else makes for this node, as the HTTP client takes them.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use longhaul_core::endpoint::Destination;
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
    type Response = TokioIo<Box<dyn Pipe>>;
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
            Ok(TokioIo::new(pipe))
        })
    }
}

impl Connection for Box<dyn Pipe> {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}
