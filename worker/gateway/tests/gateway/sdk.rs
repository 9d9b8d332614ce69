//! The vendors' own Python SDKs, given nothing but a base address and the attempt's token.
//! They live in an environment of their own, which `scripts/prepare-tests` makes.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use longhaul_core::call::Certainty;
use longhaul_gateway::GatewayConfig;
use serde_json::{Value, json};
use tokio::net::{TcpListener, UnixStream};

use crate::common::{KEY, Setup, TOKEN, World};
use crate::standin::{Fault, Standin};

/// What every answer of the stand-in says.
const TEXT: &str = "I see a screen: 请点击 ✅";

/// Where the SDKs are.
fn python() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").expect("a home")).join(".cache"));
    let python = cache.join("longhaul/sdk-venv/bin/python");
    assert!(python.exists(), "{} is missing: run scripts/prepare-tests sdk", python.display());
    python
}

/// A socket of an account as a TCP port, as the helper forwards it inside a sandbox.
async fn port(world: &World, folder: &Path, name: &str) -> String {
    let socket = folder.join(name);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let account = Arc::clone(&world.account);
    let path = socket.clone();
    tokio::spawn(async move { account.listen(&path).await.unwrap() });
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let socket = socket.clone();
            tokio::spawn(async move {
                let mut server = UnixStream::connect(&socket).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    url
}

/// Runs a script whose first call is long in coming, and whose call `fails_at` fails twice in passing;
/// what it saw.
async fn run(script: &str, fails_at: usize) -> (Value, World, Standin) {
    let vendor = Standin::start().await;
    {
        let mut state = vendor.state.lock().unwrap();
        KEY.clone_into(&mut state.key);
        state.cached = 8;
        state.faults.push_back(Fault::Slow(Duration::from_millis(700)));
        state.faults.extend(std::iter::repeat_n(Fault::None, fails_at - 2));
        for status in [503, 429] {
            let headers = vec![("retry-after", "0".to_owned())];
            state.faults.push_back(Fault::Status(status, headers, r#"{"error":{"message":"later"}}"#.to_owned()));
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let quiet = |config: &mut GatewayConfig| config.quiet = Duration::from_millis(300);
    let world = Setup { config: Box::new(quiet), ..Setup::at(&[vendor.url()]) }.open();
    let broke = Setup { cap: 0, ..Setup::at(&[vendor.url()]) }.open();
    let image = base64::engine::general_purpose::STANDARD
        .encode([b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x04\0\0\0\x03\0".as_slice(), &[7; 30_000]].concat());
    let output = tokio::process::Command::new(python())
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdk").join(script))
        .env_clear()
        .env("GATEWAY", port(&world, folder.path(), "gateway").await)
        .env("BROKE", port(&broke, folder.path(), "broke").await)
        .env("TOKEN", TOKEN)
        .env("IMAGE", image)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    let seen = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(broke.account.calls(), 0, "who has no money makes no call");
    assert!(broke.account.spent().is_some());
    (seen, world, vendor)
}

/// What an error says, by its parts.
fn error(seen: &Value, kind: &str, status: u16, code: &str, words: &str) {
    assert_eq!((&seen[0], &seen[1], &seen[2]), (&json!(kind), &json!(status), &json!(code)), "{seen}");
    assert!(seen[3].as_str().unwrap().contains(words), "{seen}");
}

/// Every call was settled by the vendor's word, and the sum is the vendor's own.
fn sums(world: &World, vendor: &Standin, calls: usize) {
    let records = world.journal.records();
    assert_eq!(records.len(), calls + 2, "two of them were tried again");
    assert_eq!(records.iter().filter(|record| record.certainty == Certainty::Released).count(), 2);
    assert!(records.iter().all(|record| record.certainty != Certainty::Unconfirmed));
    assert!(records.iter().all(|record| record.settled <= record.reserved));
    assert_eq!(world.account.totals().settled.nanos(), vendor.billed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openais_sdk_works_and_shows_our_words() {
    let (seen, world, vendor) = run("openai_sdk.py", 8).await;
    assert_eq!(seen["plain"], json!([TEXT, 8]));
    assert_eq!(seen["stream"], json!([TEXT, []]), "usage that it did not ask for is not there");
    assert_eq!(seen["stream_usage"], 40);
    assert_eq!(seen["tools"], "click");
    assert_eq!(seen["responses"], json!([TEXT, "click", 8]));
    assert_eq!(seen["responses_stream"], json!([TEXT, "response.completed", 40]));
    assert_eq!((&seen["responses_image"], &seen["retried"]), (&json!("completed"), &json!("stop")));
    for name in ["budget", "budget_stream"] {
        error(&seen[name], "APIStatusError", 402, "budget_spent", "the budget is spent: run:");
    }
    error(&seen["state"], "BadRequestError", 400, "invalid_request", "send the whole conversation");
    error(&seen["search"], "BadRequestError", 400, "invalid_request", "`web_search` runs at the vendor");
    error(&seen["remote_image"], "BadRequestError", 400, "invalid_request", "base64");
    error(&seen["token"], "AuthenticationError", 401, "invalid_api_key", "not the token");
    assert_eq!(seen["models"], json!(["model"]));
    sums(&world, &vendor, 8);
    for call in vendor.calls().iter().filter(|call| call.path.contains("responses")) {
        assert_eq!(call.json()["store"], false, "nothing is kept at the vendor");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anthropics_sdk_works_and_shows_our_words() {
    let (seen, world, vendor) = run("anthropic_sdk.py", 5).await;
    assert_eq!(seen["plain"], json!([TEXT, 8]));
    assert_eq!(seen["stream"], json!([TEXT, 40]));
    assert_eq!(seen["tools"], json!(["click", 11, 7]));
    assert_eq!((&seen["beta"], &seen["retried"]), (&json!("tool_use"), &json!("end_turn")));
    for name in ["budget", "budget_stream"] {
        error(&seen[name], "PaymentRequiredError", 402, "billing_error", "the budget is spent: run:");
    }
    error(&seen["search"], "BadRequestError", 400, "invalid_request_error", "runs at the vendor");
    error(&seen["file"], "BadRequestError", 400, "invalid_request_error", "pages as images");
    error(&seen["token"], "AuthenticationError", 401, "authentication_error", "not the token");
    assert_eq!(seen["models"], json!(["model"]));
    sums(&world, &vendor, 5);
    let calls = vendor.calls();
    let betas: Vec<_> = calls.iter().filter_map(|call| call.headers.get("anthropic-beta")).collect();
    assert_eq!(betas, ["computer-use-2025-01-24"], "betas pass");
    let cached =
        world.journal.records().into_iter().find(|record| record.usage.is_some_and(|usage| usage.cache_write > 0));
    let usage = cached.unwrap().usage.unwrap();
    assert_eq!((usage.cache_write, usage.cache_write_long, usage.cache_read), (11, 7, 8));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn googles_sdk_works_and_shows_our_words() {
    let (seen, world, vendor) = run("google_sdk.py", 4).await;
    assert_eq!(seen["plain"], json!([TEXT, 8, 15]));
    assert_eq!(seen["stream"], json!([TEXT, 25]));
    assert_eq!(seen["tools"], "click");
    assert!(seen["retried"].as_str().unwrap().contains("STOP"), "{seen}");
    for name in ["budget", "budget_stream"] {
        error(&seen[name], "ClientError", 402, "FAILED_PRECONDITION", "the budget is spent: run:");
    }
    error(&seen["search"], "ClientError", 400, "INVALID_ARGUMENT", "runs at the vendor");
    error(&seen["file"], "ClientError", 400, "INVALID_ARGUMENT", "`fileData`");
    error(&seen["cached"], "ClientError", 400, "INVALID_ARGUMENT", "`cachedContent`");
    error(&seen["token"], "ClientError", 401, "UNAUTHENTICATED", "not the token");
    sums(&world, &vendor, 4);
}
