//! The vendors' protocols over the socket, as raw HTTP.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use longhaul_core::call::Certainty;
use longhaul_core::money::Money;
use longhaul_gateway::{EndpointShare, GatewayConfig};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::common::{KEY, Setup, TOKEN, World, until};
use crate::standin::{Fault, Standin};

pub(super) struct Served {
    pub(super) world: World,
    socket: PathBuf,
    _folder: tempfile::TempDir,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(super) async fn serve(setup: Setup) -> Served {
    let world = setup.open();
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("gateway");
    let task = tokio::spawn({
        let (account, socket) = (Arc::clone(&world.account), socket.clone());
        async move { account.listen(&socket).await.unwrap() }
    });
    until("the socket is there", || socket.exists()).await;
    Served { world, socket, _folder: folder, task }
}

impl Served {
    async fn send(&self, method: Method, path: &str, headers: &[(&str, &str)], body: Bytes) -> Response<Incoming> {
        let stream = UnixStream::connect(&self.socket).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header("host", "gateway");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        sender.send_request(request.body(Full::new(body)).unwrap()).await.unwrap()
    }

    /// A request with the attempt's token.
    async fn ask(&self, method: Method, path: &str, body: Bytes) -> Response<Incoming> {
        let bearer = format!("Bearer {TOKEN}");
        let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
        self.send(method, path, &headers, body).await
    }

    /// A call, as far as the head of its answer.
    pub(super) async fn begin(&self, path: &str, body: &Value) -> Response<Incoming> {
        self.ask(Method::POST, path, Bytes::from(body.to_string())).await
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> (u16, Bytes) {
        let response = self.begin(path, body).await;
        let status = response.status().as_u16();
        (status, response.into_body().collect().await.unwrap().to_bytes())
    }
}

pub(super) fn messages(stream: bool) -> Value {
    json!({ "model": "model-a", "max_tokens": 100, "stream": stream, "messages": [{ "role": "user", "content": "hi" }] })
}

/// Each streamed request with its path.
pub(super) fn streams() -> [(&'static str, Value); 4] {
    [
        (
            "/openai/v1/chat/completions",
            json!({ "model": "model-a", "stream": true, "max_completion_tokens": 100,
            "messages": [{ "role": "user", "content": "hi" }] }),
        ),
        ("/openai/v1/responses", json!({ "model": "model-a", "stream": true, "input": "hi" })),
        ("/anthropic/v1/messages", messages(true)),
        (
            "/gemini/v1beta/models/model-a:streamGenerateContent?alt=sse&key=x",
            json!({ "contents": [{ "parts": [{ "text": "hi" }] }] }),
        ),
    ]
}

#[tokio::test]
async fn the_token_of_the_attempt_opens_and_nothing_else_does() {
    let vendor = Standin::start().await;
    KEY.clone_into(&mut vendor.state.lock().unwrap().key);
    let served = serve(Setup::at(&[vendor.url()])).await;
    let body = || Bytes::from(messages(false).to_string());
    let path = "/anthropic/v1/messages";
    let bearer = format!("Bearer {TOKEN}");
    for (name, value) in [("authorization", bearer.as_str()), ("x-api-key", TOKEN), ("x-goog-api-key", TOKEN)] {
        assert_eq!(served.send(Method::POST, path, &[(name, value)], body()).await.status(), 200, "{name}");
    }
    assert_eq!(served.send(Method::POST, &format!("{path}?key={TOKEN}"), &[], body()).await.status(), 200);
    for headers in [vec![], vec![("x-api-key", "")], vec![("x-api-key", KEY)], vec![("authorization", "Basic x")]] {
        let response = served.send(Method::POST, path, &headers, body()).await;
        assert_eq!(response.status(), 401);
        let said: Value = serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap();
        assert_eq!(said["error"]["type"], "authentication_error");
    }
    for seen in vendor.calls() {
        assert!(!format!("{:?}", seen.headers).contains(TOKEN), "the token stays here");
        assert!(!seen.path.contains("key="), "{}", seen.path);
        assert_eq!(seen.headers["x-api-key"], KEY);
    }
    served.world.account.close().await;
    assert!(UnixStream::connect(&served.socket).await.is_err() || served.task.is_finished());
}

#[tokio::test]
async fn who_is_refused_is_heard_out_and_sees_why() {
    let vendor = Standin::start().await;
    let served =
        serve(Setup { config: Box::new(|config| config.max_request = 10_000), ..Setup::at(&[vendor.url()]) }).await;
    let large = format!("authorization: Bearer {TOKEN}\r\n");
    for (name, size, status) in [("x-api-key: wrong\r\n", 5_000, 401), (large.as_str(), 15_000, 413)] {
        let mut stream = UnixStream::connect(&served.socket).await.unwrap();
        let head =
            format!("POST /anthropic/v1/messages HTTP/1.1\r\nhost: gateway\r\n{name}content-length: {size}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        // As SDKs do it: the body follows in pieces, whatever was answered meanwhile.
        for _ in 0..size / 1_000 {
            tokio::time::sleep(Duration::from_millis(20)).await;
            stream.write_all(&[b' '; 1_000]).await.unwrap();
        }
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(answer, *format!("HTTP/1.1 {status}").as_bytes());
    }
}

#[tokio::test]
async fn only_what_is_known_is_reached() {
    let vendor = Standin::start().await;
    let mut setup = Setup::at(&[vendor.url()]);
    setup.plan.endpoints[2].name = "hidden".to_owned();
    let served = serve(setup).await;
    for path in ["/nowhere/v1/messages", "/openai/v1/files", "/anthropic/v1/messages/batches", "/", "/openai", "//"] {
        let (status, _) = served.post(path, &messages(false)).await;
        assert_eq!(status, 404, "{path}");
    }
    for (path, status) in [("/openai/v1/models", 200), ("/openai/v1/models/model-a", 200), ("/openai/v1/models/x", 404)]
    {
        let response = served.ask(Method::GET, path, Bytes::new()).await;
        assert_eq!(response.status(), status, "{path}");
    }
    assert_eq!(served.ask(Method::DELETE, "/openai/v1/models/model-a", Bytes::new()).await.status(), 404);
    assert_eq!(vendor.calls().len() + vendor.state.lock().unwrap().probes as usize, 0);
}

#[tokio::test]
async fn what_cannot_be_read_or_bounded_is_refused_in_the_vendors_form() {
    let vendor = Standin::start().await;
    let served =
        serve(Setup { config: Box::new(|config| config.max_request = 10_000), ..Setup::at(&[vendor.url()]) }).await;
    let text = |body: &str| Bytes::from(body.to_owned());
    let large = format!(r#"{{"model":"model-a","x":"{}"}}"#, "y".repeat(20_000));
    for (body, status, words) in [
        ("no json", 400, "no JSON"),
        (r#"{"messages":[]}"#, 400, "`model` is missing"),
        (r#"{"model":"model-a","max_tokens":5,"max_tokens":500000}"#, 400, "comes twice"),
        (r#"{"model":"model-a","messages":[],"max_completion_tokens":1000000000}"#, 400, "whole context"),
        (r#"{"model":"unpriced","messages":[]}"#, 400, "no row of this model"),
        (large.as_str(), 413, "10000 bytes"),
    ] {
        let response = served.ask(Method::POST, "/openai/v1/chat/completions", text(body)).await;
        assert_eq!(response.status(), status, "{body:.80}");
        assert_eq!(response.headers()["x-should-retry"], "false");
        let said: Value = serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap();
        let message = said["error"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{message}");
    }
    assert_eq!(vendor.calls().len(), 0);
}

#[tokio::test]
async fn a_stream_passes_unchanged_and_is_settled_by_its_usage() {
    let vendor = Standin::start().await;
    let served = serve(Setup::at(&[vendor.url()])).await;
    for (path, body) in streams() {
        let (status, text) = served.post(path, &body).await;
        assert_eq!(status, 200, "{path}");
        let text = String::from_utf8(text.to_vec()).unwrap();
        assert!(text.contains("请点击"), "{path}: {text}");
    }
    for record in served.world.journal.records() {
        assert_eq!((record.certainty, record.error.as_deref()), (Certainty::Reported, None), "{record:?}");
    }
    assert_eq!(served.world.account.totals().settled.nanos(), vendor.billed());
    // Nothing was asked for that the client had not asked for but the usage of the first.
    let sent = vendor.calls();
    assert_eq!(sent[0].json()["stream_options"]["include_usage"], true);
    assert!(!sent[3].path.contains("key="), "{}", sent[3].path);
}

#[tokio::test]
async fn usage_that_only_we_asked_for_is_kept_from_the_client() {
    let vendor = Standin::start().await;
    let served = serve(Setup::at(&[vendor.url()])).await;
    let (path, mut body) = streams()[0].clone();
    let (_, without) = served.post(path, &body).await;
    body["stream_options"] = json!({ "include_usage": true });
    let (_, with) = served.post(path, &body).await;
    let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
    assert!(!text(&without).contains("\"prompt_tokens\"") && text(&without).ends_with("data: [DONE]\n\n"));
    assert!(text(&with).contains("\"prompt_tokens\""));
    assert_eq!(served.world.account.totals().settled.nanos(), vendor.billed());
}

#[tokio::test]
async fn a_stream_that_breaks_off_breaks_off_for_the_client_and_is_settled_whole() {
    let vendor = Standin::start().await;
    let served = serve(Setup::at(&[vendor.url()])).await;
    for (path, body) in streams() {
        vendor.fault(Fault::Break);
        let response = served.begin(path, &body).await;
        assert_eq!(response.status(), 200);
        assert!(response.into_body().collect().await.is_err(), "{path}: an end that is none is not hidden");
    }
    for record in served.world.journal.records() {
        assert_eq!((record.certainty, record.settled), (Certainty::Unconfirmed, record.reserved));
        assert!(record.error.as_ref().unwrap().contains("broke off"), "{record:?}");
        assert!(!served.world.journal.body(record.response.unwrap()).is_empty(), "what came is kept");
    }
}

#[tokio::test]
async fn a_stream_that_cannot_be_written_down_breaks_off_for_the_client() {
    let vendor = Standin::start().await;
    vendor.state.lock().unwrap().pace = Duration::from_millis(40);
    let served = serve(Setup::at(&[vendor.url()])).await;
    for (path, body) in streams() {
        *served.world.journal.full.lock().unwrap() = false;
        let mut response = served.begin(path, &body).await;
        response.body_mut().frame().await.unwrap().unwrap();
        *served.world.journal.full.lock().unwrap() = true;
        assert!(response.into_body().collect().await.is_err(), "{path}: what is not settled has no clean end");
    }
    // They are paid all the same, and by as much as whoever finds them open in the journal says.
    let settled = served.world.account.close().await[0].1.settled;
    let reserved: Money = served.world.journal.reserved.lock().unwrap().iter().map(|reserved| reserved.bound).sum();
    assert!(settled == reserved && settled.nanos() >= vendor.billed(), "{settled} of {reserved}");
}

#[tokio::test]
async fn a_call_over_http_waits_for_the_right_to_be_made() {
    let vendor = Standin::start().await;
    let served = serve(Setup::at(&[vendor.url()])).await;
    served.world.journal.shut.send_replace(true);
    let (path, body) = ("/anthropic/v1/messages", messages(false));
    let asked = served.post(path, &body);
    tokio::pin!(asked);
    for _ in 0..300 {
        let early = tokio::time::timeout(Duration::from_millis(100), asked.as_mut()).await;
        assert!(early.is_err(), "{early:?}");
        if served.world.account.paused() > Duration::ZERO {
            break;
        }
    }
    assert!(served.world.account.paused() > Duration::ZERO, "its wait is no time of the agent's");
    assert_eq!(vendor.calls().len(), 0);
    served.world.journal.shut.send_replace(false);
    assert_eq!(asked.await.0, 200);
    assert_eq!(served.world.account.totals().settled.nanos(), vendor.billed());
}

#[tokio::test]
async fn a_client_that_hangs_up_pays_what_the_vendor_bills() {
    let vendor = Standin::start().await;
    vendor.state.lock().unwrap().pace = Duration::from_millis(40);
    let served = serve(Setup::at(&[vendor.url()])).await;
    for (path, body) in streams() {
        let mut response = served.begin(path, &body).await;
        response.body_mut().frame().await.unwrap().unwrap();
        drop(response);
    }
    until("all are settled", || served.world.journal.records().len() == 4).await;
    let records = served.world.journal.records();
    assert_eq!(records.len(), 4);
    assert!(records.iter().all(|record| record.certainty == Certainty::Reported), "{records:?}");
    assert_eq!(served.world.account.totals().settled.nanos(), vendor.billed());
}

#[tokio::test]
async fn a_stream_is_passed_on_as_it_comes_and_ends_when_it_is_settled() {
    let vendor = Standin::start().await;
    vendor.state.lock().unwrap().pace = Duration::from_millis(100);
    let served = serve(Setup::at(&[vendor.url()])).await;
    for (path, body) in streams() {
        let before = served.world.journal.records().len();
        let mut response = served.begin(path, &body).await;
        response.body_mut().frame().await.unwrap().unwrap();
        assert_eq!(served.world.journal.records().len(), before, "{path}: the first piece comes long before the end");
        response.into_body().collect().await.unwrap();
        assert_eq!(served.world.journal.records().len(), before + 1, "{path}: the end comes after the settlement");
    }
}

/// An SDK gives up after ten minutes, though a vendor may be away for hours.
#[tokio::test]
async fn a_client_whose_answer_is_long_in_coming_is_kept_waiting() {
    let vendor = Standin::start().await;
    let quiet = |config: &mut GatewayConfig| config.quiet = Duration::from_millis(50);
    let served = serve(Setup { config: Box::new(quiet), ..Setup::at(&[vendor.url()]) }).await;
    for stream in [false, true] {
        vendor.fault(Fault::Slow(Duration::from_millis(400)));
        let (status, body) = served.post("/anthropic/v1/messages", &messages(stream)).await;
        let text = std::str::from_utf8(&body).unwrap();
        let blank = text.len() - text.trim_start_matches('\n').len();
        assert!(status == 200 && (2..20).contains(&blank), "{text:?}");
        if stream {
            assert!(text.contains("message_start") && text.contains("message_stop"), "{text}");
        } else {
            let answer: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(answer["type"], "message");
        }
    }
    assert_eq!(served.world.account.totals().settled.nanos(), vendor.billed());
    // What fails after that cannot say so by its status: it breaks off, and whoever asks again hears it.
    let share = |concurrent| EndpointShare { endpoint: "anthropic".to_owned(), concurrent, ..EndpointShare::default() };
    served.world.gateway.set_shares(vec![share(Some(0))]);
    let response = served.begin("/anthropic/v1/messages", &messages(false)).await;
    assert_eq!(response.status(), 200);
    let refuses = r#"{"type":"error","error":{"type":"invalid_request_error","message":"no"}}"#;
    vendor.fault(Fault::Status(400, Vec::new(), refuses.to_owned()));
    served.world.gateway.set_shares(vec![share(None)]);
    assert!(response.into_body().collect().await.is_err());
    vendor.fault(Fault::Status(400, Vec::new(), refuses.to_owned()));
    assert_eq!(served.post("/anthropic/v1/messages", &messages(false)).await.0, 400);
}
