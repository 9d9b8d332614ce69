//! The way out: connections to vendors, kept for the next call; through a proxy where there is one,
//! and through whoever relays for this node where an endpoint says so.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, Uri};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tokio::net::TcpStream;
use tower::Service;

use crate::config::{GatewayConfig, GatewayError};
use crate::http::relayed::Through;
use crate::ports::Later;

/// How long a connection that nobody uses is kept. Servers close theirs after some 60 seconds
/// and more: one that was closed at the moment of sending cannot be told from one that broke.
const KEPT: Duration = Duration::from_secs(30);

/// What goes wrong below HTTP.
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A client of all vendors. What goes one way never takes a connection of the other.
#[derive(Clone)]
pub(crate) struct Client {
    direct: legacy::Client<HttpsConnector<Connect>, Full<Bytes>>,
    relayed: Option<legacy::Client<HttpsConnector<Through>, Full<Bytes>>>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client")
    }
}

/// Why no answer came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SendError {
    /// Whether nothing was sent: no connection was made.
    pub(crate) unsent: bool,
    /// What went wrong.
    pub(crate) message: String,
}

impl Client {
    /// Reads the certificate authorities, and sets up TLS.
    pub(crate) fn new(config: &GatewayConfig) -> Result<Self, GatewayError> {
        let mut roots = RootCertStore::empty();
        // A system without any may still reach endpoints without TLS.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        for path in &config.extra_roots {
            let failed = |message: String| GatewayError::Roots { path: path.display().to_string(), message };
            let certificates = CertificateDer::pem_file_iter(path).map_err(|error| failed(error.to_string()))?;
            let certificates: Vec<_> =
                certificates.collect::<Result<_, _>>().map_err(|error| failed(error.to_string()))?;
            // A bundle may have some of a kind that TLS no longer takes; the others hold.
            let (taken, left_out) = roots.add_parsable_certificates(certificates);
            if taken == 0 {
                let message = if left_out == 0 { "there is no certificate in it" } else { "none in it can be used" };
                return Err(failed(message.to_owned()));
            }
            if left_out > 0 {
                tracing::warn!(path = %path.display(), left_out, "certificates that cannot be used are left out");
            }
        }
        let tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| GatewayError::Tls { message: error.to_string() })?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut direct = HttpConnector::new();
        direct.enforce_http(false);
        direct.set_nodelay(true);
        direct.set_connect_timeout(Some(config.connect_limit));
        direct.set_keepalive(Some(KEPT));
        let proxies = &config.proxies;
        let matcher =
            Matcher::builder().http(proxies.http.clone()).https(proxies.https.clone()).no(proxies.none.clone()).build();
        // One call on each connection: a connection that dies takes no other call with it.
        let secure = || HttpsConnectorBuilder::new().with_tls_config(tls.clone()).https_or_http().enable_http1();
        let mut builder = legacy::Client::builder(TokioExecutor::new());
        builder.pool_idle_timeout(KEPT).pool_timer(TokioTimer::new());
        let direct = builder.build(secure().wrap_connector(Connect { direct, matcher: Arc::new(matcher) }));
        let relayed = config.relay.as_ref().map(|relay| {
            let through = Through { relay: Arc::clone(relay), limit: config.connect_limit };
            builder.build(secure().wrap_connector(through))
        });
        Ok(Self { direct, relayed })
    }

    /// Sends a request, on the way that its endpoint takes; the answer's head.
    pub(crate) async fn send(
        &self,
        relayed: bool,
        method: Method,
        url: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, SendError> {
        let unsent = |message: String| SendError { unsent: true, message };
        let uri: Uri = url.parse().map_err(|error| unsent(format!("the address {url} is none: {error}")))?;
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        let sent = match (&self.relayed, relayed) {
            (_, false) => self.direct.request(request),
            (Some(client), true) => client.request(request),
            (None, true) => return Err(unsent("the endpoint is relayed, and nobody relays here".to_owned())),
        };
        sent.await.map_err(|error| SendError { unsent: error.is_connect(), message: with_causes(&error) })
    }
}

/// An error with all that caused it.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        source = cause.source();
    }
    text
}

/// Connects directly, or through a tunnel of the proxy that holds for the address.
#[derive(Clone, Debug)]
struct Connect {
    direct: HttpConnector,
    matcher: Arc<Matcher>,
}

impl Service<Uri> for Connect {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = Later<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Service::poll_ready(&mut self.direct, context).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let mut direct = self.direct.clone();
        let Some(proxy) = self.matcher.intercept(&uri) else {
            return Box::pin(async move { direct.call(uri).await.map_err(Into::into) });
        };
        let mut tunnel = Tunnel::new(proxy.uri().clone(), direct);
        if let Some(auth) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(auth.clone());
        }
        Box::pin(async move { tunnel.call(uri).await.map_err(Into::into) })
    }
}
