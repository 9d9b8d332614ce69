//! A stand-in of the model vendors: a server that speaks their real protocols, bills by its own
//! price list, and fails on demand. What it billed is the truth that the gateway is held to.

mod answers;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use answers::Kind;

/// Nanodollars of one token in the stand-in's price list: input, cache write, cache write of the
/// longer kind, cache read, output.
pub(crate) const PRICES: [u64; 5] = [3_000, 3_750, 6_000, 300, 15_000];

/// What goes wrong with the next call.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// An error with that status, headers and body; nothing is billed.
    Status(u16, Vec<(&'static str, String)>, String),
    /// No answer ever; billed whole.
    Hang,
    /// The connection is closed before the answer; billed.
    Close,
    /// The answer breaks off in the middle; billed.
    Break,
    /// The answer comes whole, but says nothing of its usage; billed.
    NoUsage,
    /// So many times the output that was allowed; billed.
    Exceed(u64),
    /// Nothing: as if there were none.
    None,
    /// An answer after a while.
    Slow(Duration),
}

/// A request that came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// Method and path with its query.
    pub(crate) path: String,
    /// Its headers.
    pub(crate) headers: HeaderMap,
    /// Its body.
    pub(crate) body: Bytes,
    /// When.
    pub(crate) at: std::time::Instant,
}

impl Seen {
    /// The body as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// How it is set up, and what came.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// What goes wrong with the next calls, one each.
    pub(crate) faults: VecDeque<Fault>,
    /// What goes wrong with every call after those.
    pub(crate) always: Option<Fault>,
    /// What the next answers hold in place of the usual words: members of their bodies, one
    /// answer each; the last one is given again and again. Not of streams.
    pub(crate) answers: VecDeque<Value>,
    /// Answers wait as long as this holds.
    pub(crate) held: bool,
    /// Calls that came, probes not among them.
    pub(crate) calls: Vec<Seen>,
    /// Requests for the list of models.
    pub(crate) probes: u32,
    /// Calls that are being answered.
    pub(crate) in_flight: u32,
    /// The most that were at one time.
    pub(crate) most_in_flight: u32,
    /// What was billed, in billionths of a dollar.
    pub(crate) billed: u64,
    /// The key that is asked for; any if empty.
    pub(crate) key: String,
    /// How long the pieces of a stream take.
    pub(crate) pace: Duration,
    /// How much of the input comes from a cache.
    pub(crate) cached: u64,
    /// The fingerprint that is reported.
    pub(crate) fingerprint: String,
    /// Headers of every answer.
    pub(crate) headers: Vec<(&'static str, String)>,
}

/// A server that runs.
#[derive(Debug)]
pub(crate) struct Standin {
    /// Where it is.
    pub(crate) address: SocketAddr,
    /// Its state.
    pub(crate) state: Arc<Mutex<State>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Standin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Standin {
    /// Starts one.
    pub(crate) async fn start() -> Self {
        Self::at("127.0.0.1:0".parse().unwrap()).await
    }

    /// Starts one at an address.
    pub(crate) async fn at(address: SocketAddr) -> Self {
        let open = || -> std::io::Result<TcpListener> {
            let socket = tokio::net::TcpSocket::new_v4()?;
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            socket.listen(1024)
        };
        // One that was here a moment ago may not be gone yet.
        let mut tries = 0;
        let listener = loop {
            match open() {
                Ok(listener) => break listener,
                Err(error) => assert!(tries < 300, "{address}: {error}"),
            }
            tries += 1;
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State::default()));
        let task = tokio::spawn(accept(listener, Arc::clone(&state)));
        Self { address, state, task }
    }

    /// Its base address.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What goes wrong next.
    pub(crate) fn fault(&self, fault: Fault) {
        self.state.lock().unwrap().faults.push_back(fault);
    }

    /// What goes wrong from now on; nothing if none.
    pub(crate) fn always(&self, fault: Option<Fault>) {
        self.state.lock().unwrap().always = fault;
    }

    /// What it billed, in billionths of a dollar.
    pub(crate) fn billed(&self) -> u64 {
        self.state.lock().unwrap().billed
    }

    /// The calls that came.
    pub(crate) fn calls(&self) -> Vec<Seen> {
        self.state.lock().unwrap().calls.clone()
    }
}

async fn accept(listener: TcpListener, state: Arc<Mutex<State>>) {
    // Dropped with the task: a server that is gone answers nothing more.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let _ = stream.set_nodelay(true);
        let state = Arc::clone(&state);
        connections.spawn(async move {
            let service = service_fn(move |request| {
                let state = Arc::clone(&state);
                async move { answer(&state, request).await }
            });
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

type Body = BoxBody<Bytes, Broken>;

/// Closes the connection.
#[derive(Debug, thiserror::Error)]
#[error("broken on purpose")]
pub(crate) struct Broken;

fn whole(status: u16, body: &[u8]) -> Response<Body> {
    let body = Full::new(Bytes::copy_from_slice(body)).map_err(|never: Infallible| match never {}).boxed();
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/json"));
    response
}

/// Counts a call while it is answered.
struct InFlight(Arc<Mutex<State>>);

impl InFlight {
    fn new(state: &Arc<Mutex<State>>) -> Self {
        let mut locked = state.lock().unwrap();
        locked.in_flight += 1;
        locked.most_in_flight = locked.most_in_flight.max(locked.in_flight);
        drop(locked);
        Self(Arc::clone(state))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.lock().unwrap().in_flight -= 1;
    }
}

async fn answer(state: &Arc<Mutex<State>>, request: Request<Incoming>) -> Result<Response<Body>, Broken> {
    let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Broken)?.to_bytes();
    let key = shown_key(&parts.headers);
    if parts.method == Method::GET {
        let mut state = state.lock().unwrap();
        state.probes += 1;
        return Ok(match (&state.always, state.key.is_empty() || state.key == key) {
            (Some(Fault::Status(status, ..)), _) => whole(*status, b"{}"),
            (_, false) => whole(401, b"{}"),
            _ => whole(200, br#"{"data":[]}"#),
        });
    }
    let in_flight = InFlight::new(state);
    let Some(kind) = Kind::of(&path) else { return Ok(whole(404, br#"{"error":{"message":"no such path"}}"#)) };
    let seen = Seen { path: path.clone(), headers: parts.headers, body: body.clone(), at: std::time::Instant::now() };
    let (fault, refused, pace, cached, fingerprint, headers) = {
        let mut state = state.lock().unwrap();
        state.calls.push(seen);
        let fault = state.faults.pop_front().or_else(|| state.always.clone());
        let refused = !state.key.is_empty() && state.key != key;
        (fault, refused, state.pace, state.cached, state.fingerprint.clone(), state.headers.clone())
    };
    if refused {
        return Ok(whole(401, json!({ "error": { "message": "wrong key" } }).to_string().as_bytes()));
    }
    let Ok(asked) = serde_json::from_slice::<Value>(&body) else {
        return Ok(whole(400, br#"{"error":{"message":"no JSON"}}"#));
    };
    if let Some(Fault::Status(status, headers, body)) = &fault {
        let mut response = whole(*status, body.as_bytes());
        add(&mut response, headers);
        return Ok(response);
    }
    let mut used = kind.used(&asked, cached);
    if let Some(Fault::Exceed(times)) = fault {
        used.output = kind.limit(&asked).unwrap_or(1000) * times;
    }
    let given = {
        let mut state = state.lock().unwrap();
        state.billed += used.bill();
        if state.answers.len() > 1 { state.answers.pop_front() } else { state.answers.front().cloned() }
    };
    while state.lock().unwrap().held {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    match fault {
        Some(Fault::Hang) => std::future::pending().await,
        Some(Fault::Close) => return Err(Broken),
        Some(Fault::Slow(wait)) => tokio::time::sleep(wait).await,
        _ => {}
    }
    let says_usage = !matches!(fault, Some(Fault::NoUsage));
    let breaks = matches!(fault, Some(Fault::Break));
    let model = kind.model(&path, &asked);
    let mut response = if kind.streams(&path, &asked) {
        let events = kind.events(&model, &asked, says_usage.then_some(&used), &fingerprint);
        streamed(events, breaks, pace, in_flight)
    } else {
        let mut answer = kind.body(&model, &asked, says_usage.then_some(&used), &fingerprint);
        if let (Value::Object(members), Some(Value::Object(given))) = (&mut answer, given) {
            members.extend(given);
        }
        let text = answer.to_string();
        if breaks { half(text) } else { whole(200, text.as_bytes()) }
    };
    add(&mut response, &headers);
    response.headers_mut().insert("x-request-id", HeaderValue::from_static("req_standin"));
    Ok(response)
}

fn add(response: &mut Response<Body>, headers: &[(&'static str, String)]) {
    for (name, value) in headers {
        response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
    }
}

fn shown_key(headers: &HeaderMap) -> String {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    text("authorization")
        .map(|value| value.trim_start_matches("Bearer ").to_owned())
        .or_else(|| text("x-api-key"))
        .or_else(|| text("x-goog-api-key"))
        .unwrap_or_default()
}

/// A body in pieces out of a channel.
struct Pieces(mpsc::Receiver<Result<Bytes, Broken>>);

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Broken>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

fn streamed(events: Vec<String>, breaks: bool, pace: Duration, in_flight: InFlight) -> Response<Body> {
    let (sender, pieces) = mpsc::channel(1);
    tokio::spawn(async move {
        let half = events.len() / 2;
        for (index, event) in events.into_iter().enumerate() {
            if breaks && index == half {
                let _ = sender.send(Err(Broken)).await;
                return;
            }
            // Cut where no event ends, as networks do.
            let (start, end) = event.split_at(event.len() / 3);
            for piece in [start, end] {
                // The vendor goes on whoever listens.
                let _ = sender.send(Ok(Bytes::copy_from_slice(piece.as_bytes()))).await;
            }
            if !pace.is_zero() {
                tokio::time::sleep(pace).await;
            }
        }
        drop(in_flight);
    });
    let mut response = Response::new(Pieces(pieces).boxed());
    response.headers_mut().insert("content-type", HeaderValue::from_static("text/event-stream; charset=utf-8"));
    response
}

fn half(text: String) -> Response<Body> {
    let (sender, pieces) = mpsc::channel(2);
    tokio::spawn(async move {
        let _ = sender.send(Ok(Bytes::copy_from_slice(&text.as_bytes()[..text.len() / 2]))).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        let _ = sender.send(Err(Broken)).await;
    });
    Response::new(Pieces(pieces).boxed())
}
