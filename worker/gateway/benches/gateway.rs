//! What the gateway adds to a call that needs no new escrow, and how many calls a second go
//! through one of it.
//!
//! `cargo bench -p longhaul-gateway --bench gateway --profile dev` prints rows of
//! docs/performance.md. The vendor is a stand-in in the same process, the journal a file; both
//! sides keep their connections. Small: one short message. With screenshots: 20 messages and
//! three images of 200 kB.

#![expect(clippy::unwrap_used, reason = "what cannot go on ends the measurement")]
#![expect(clippy::print_stdout, reason = "the rows are what it is for")]

#[path = "../tests/common/mod.rs"]
#[expect(dead_code, reason = "the tests use the rest of it")]
mod common;
#[path = "../tests/standin/mod.rs"]
#[expect(dead_code, reason = "the tests use the rest of it")]
mod standin;

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use common::{CappedBank, KEY, Keys, TOKEN, plan};
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use longhaul_core::call::CallRecord;
use longhaul_gateway::ports::{Blob, Journal, JournalError, Reservation, ReserveError, SystemClock};
use longhaul_gateway::{Account, Gateway, GatewayConfig, Opening};
use serde_json::{Value, json};
use standin::{Fault, Standin};
use tokio::net::{TcpStream, UnixStream};

const WARM_UP: usize = 100;
const CALLS: usize = 1_500;
const CLIENTS: usize = 32;
const LOAD: Duration = Duration::from_secs(5);

/// A journal that appends to a file, as a worker's spool does.
#[derive(Debug)]
struct Spool(Mutex<File>);

impl Spool {
    fn append(&self, record: &impl std::fmt::Debug, blobs: &[Blob]) -> Result<(), JournalError> {
        let failed = |error: std::io::Error| JournalError { message: error.to_string(), disk: true };
        let mut text = format!("{record:?}\n").into_bytes();
        blobs.iter().for_each(|blob| text.extend_from_slice(&blob.bytes));
        self.0.lock().expect("no writer panics").write_all(&text).map_err(failed)
    }
}

impl Journal for Spool {
    fn reserved(&self, reservation: &Reservation, blobs: Vec<Blob>) -> Result<(), ReserveError> {
        Ok(self.append(reservation, &blobs)?)
    }

    fn settled(&self, record: &CallRecord, blobs: Vec<Blob>) -> Result<(), JournalError> {
        self.append(record, &blobs)
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let vendor = Standin::start().await;
    vendor.always(Some(Fault::None));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let account = open(&vendor, folder.path());
    let socket = folder.path().join("gateway");
    let serving = tokio::spawn({
        let (account, socket) = (Arc::clone(&account), socket.clone());
        async move { account.listen(&socket).await }
    });
    while !socket.exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for (name, body) in [("small", small()), ("with screenshots", screenshots())] {
        for stream in [false, true] {
            compare(&vendor, &socket, name, &body, stream).await;
        }
    }
    load(&socket).await;
    serving.abort();
}

fn open(vendor: &Standin, folder: &Path) -> Arc<Account> {
    let keys = Arc::new(Keys::default());
    keys.0.lock().expect("no holder panics").insert("key".to_owned(), KEY.to_owned());
    let gateway = Gateway::new(GatewayConfig::new(Arc::new(SystemClock), 1), keys).expect("a gateway");
    let plan = plan(&[vendor.url()]);
    let spool = File::create(folder.join("spool")).expect("a spool");
    Arc::new(gateway.open(Opening {
        allowed: plan.endpoints.iter().map(|endpoint| endpoint.name.clone()).collect(),
        plan: Arc::new(plan),
        capped: true,
        bank: CappedBank::new(u64::MAX / 4, u64::MAX / 8),
        journal: Arc::new(Spool(Mutex::new(spool))),
        max_tokens: None,
        token: TOKEN.to_owned(),
    }))
}

fn small() -> Value {
    json!({ "model": "model-a", "max_tokens": 100, "messages": [{ "role": "user", "content": "What do you see?" }] })
}

fn screenshots() -> Value {
    let image = |index: usize| {
        let data = format!("iVBORw0KGgo{index}").repeat(17_000);
        json!({ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": data } })
    };
    let message = |index: usize| {
        let text =
            json!({ "type": "text", "text": format!("Step {index}. {}", "The window has changed. ".repeat(10)) });
        let content = if index >= 17 { json!([text, image(index)]) } else { json!([text]) };
        json!({ "role": if index.is_multiple_of(2) { "user" } else { "assistant" }, "content": content })
    };
    json!({ "model": "model-a", "max_tokens": 100, "messages": (0..20).map(message).collect::<Vec<_>>() })
}

type Sender = SendRequest<Full<Bytes>>;

async fn direct(vendor: &Standin) -> Sender {
    let stream = TcpStream::connect(vendor.address).await.expect("the stand-in listens");
    stream.set_nodelay(true).expect("a TCP socket");
    let (sender, connection) = handshake(TokioIo::new(stream)).await.expect("HTTP");
    tokio::spawn(connection);
    sender
}

async fn through(socket: &Path) -> Sender {
    let stream = UnixStream::connect(socket).await.expect("the gateway listens");
    let (sender, connection) = handshake(TokioIo::new(stream)).await.expect("HTTP");
    tokio::spawn(connection);
    sender
}

async fn call(sender: &mut Sender, path: &str, body: Bytes) -> Duration {
    let began = Instant::now();
    let request = Request::builder()
        .method(Method::POST)
        .uri(path)
        .header("host", "gateway")
        .header("x-api-key", TOKEN)
        .header("content-type", "application/json")
        .body(Full::new(body))
        .expect("a request");
    sender.ready().await.expect("a connection that is kept");
    let response = sender.send_request(request).await.expect("an answer");
    assert_eq!(response.status(), 200);
    response.into_body().collect().await.expect("a whole answer");
    began.elapsed()
}

async fn compare(vendor: &Standin, socket: &Path, name: &str, body: &Value, stream: bool) {
    let mut body = body.clone();
    body["stream"] = json!(stream);
    let body = Bytes::from(body.to_string());
    let (mut straight, mut gateway) = (direct(vendor).await, through(socket).await);
    let (mut without, mut with) = (Vec::new(), Vec::new());
    // In turn, so that whatever else the machine does meets both alike.
    for round in 0..WARM_UP + CALLS {
        let one = call(&mut straight, "/v1/messages", body.clone()).await;
        let other = call(&mut gateway, "/anthropic/v1/messages", body.clone()).await;
        if round >= WARM_UP {
            without.push(one);
            with.push(other);
        }
        vendor.state.lock().expect("no holder panics").calls.clear();
    }
    let at = |list: &mut Vec<Duration>, share: f64| {
        list.sort();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "an index"
        )]
        let index = ((list.len() - 1) as f64 * share) as usize;
        list[index].as_secs_f64() * 1000.0
    };
    let kind = if stream { "streaming" } else { "whole" };
    for (label, share) in [("p50", 0.5), ("p99", 0.99)] {
        let (plain, ours) = (at(&mut without, share), at(&mut with, share));
        println!(
            "| a model call through the gateway, {name}, {kind}: added at {label} | {:.2} ms | {ours:.2} ms beside {plain:.2} ms direct: {:.1} times; {CALLS} calls in turn |",
            ours - plain,
            ours / plain
        );
    }
}

async fn load(socket: &Path) {
    let body = Bytes::from(small().to_string());
    let until = Instant::now() + LOAD;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (socket, body) = (socket.to_owned(), body.clone());
            tokio::spawn(async move {
                let mut sender = through(&socket).await;
                let mut calls = 0_u32;
                while Instant::now() < until {
                    call(&mut sender, "/anthropic/v1/messages", body.clone()).await;
                    calls += 1;
                }
                calls
            })
        })
        .collect();
    let mut calls = 0;
    for client in clients {
        calls += client.await.expect("a client that does not panic");
    }
    println!(
        "| model calls a second through one worker | {:.0} | {CLIENTS} clients for {} s, with the stand-in vendor on the same 2 cores |",
        f64::from(calls) / LOAD.as_secs_f64(),
        LOAD.as_secs()
    );
}
