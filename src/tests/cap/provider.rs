//! A stand-in for a provider of models: it speaks OpenAI's chat completions, and counts by itself
//! what it bills.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use longhaul_core::money::Money;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// What a token costs, in billionths of a dollar: $0.01 and $10 a million.
pub(crate) const INPUT_NANOS: u64 = 10;
pub(crate) const OUTPUT_NANOS: u64 = 10_000;

/// What its clients show.
pub(crate) const KEY: &str = "sk-of-the-stand-in";

/// How it misbehaves: of all calls, how many.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manners {
    /// Are billed and never answered.
    pub(crate) hangs: f64,
    /// Are billed, and their answer breaks off.
    pub(crate) breaks: f64,
    /// Are refused for now, and not billed.
    pub(crate) refuses: f64,
    /// Fail, and are not billed.
    pub(crate) fails: f64,
    /// Are billed with more output than was allowed.
    pub(crate) exceeds: f64,
    /// How much more, in percent of what was allowed.
    pub(crate) beyond: u64,
}

impl Default for Manners {
    fn default() -> Self {
        Self { hangs: 0.005, breaks: 0.003, refuses: 0.02, fails: 0.02, exceeds: 0.0, beyond: 100 }
    }
}

#[derive(Debug, Default)]
struct Books {
    billed: AtomicU64,
    excess: AtomicU64,
    calls: AtomicU64,
}

/// A provider that listens on this machine.
#[derive(Debug)]
pub(crate) struct Provider {
    pub(crate) url: String,
    books: Arc<Books>,
}

impl Provider {
    pub(crate) async fn start(manners: Manners, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let books = Arc::new(Books::default());
        let chance = Arc::new(Mutex::new(StdRng::seed_from_u64(seed)));
        let shared = Arc::clone(&books);
        tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                let (books, chance) = (Arc::clone(&shared), Arc::clone(&chance));
                tokio::spawn(async move {
                    // A client that goes away is no news.
                    let _ = serve(stream, manners, &books, &chance).await;
                });
            }
        });
        Self { url, books }
    }

    pub(crate) fn billed(&self) -> Money {
        Money::from_nanos(self.books.billed.load(Ordering::SeqCst))
    }

    pub(crate) fn excess(&self) -> Money {
        Money::from_nanos(self.books.excess.load(Ordering::SeqCst))
    }

    pub(crate) fn calls(&self) -> u64 {
        self.books.calls.load(Ordering::SeqCst)
    }
}

enum Fate {
    Answer,
    Hang,
    Break,
    Refuse,
    Fail,
}

fn fate(manners: Manners, chance: &mut StdRng) -> Fate {
    let mut point: f64 = chance.random();
    for (share, fate) in [
        (manners.hangs, Fate::Hang),
        (manners.breaks, Fate::Break),
        (manners.refuses, Fate::Refuse),
        (manners.fails, Fate::Fail),
    ] {
        if point < share {
            return fate;
        }
        point -= share;
    }
    Fate::Answer
}

async fn serve(stream: TcpStream, manners: Manners, books: &Books, chance: &Mutex<StdRng>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    loop {
        let Some(body) = request(&mut stream).await? else { return Ok(()) };
        let body = match body {
            Ok(body) => body,
            Err(status) => {
                respond(&mut stream, status, "", &json!({"error": {"message": "no"}})).await?;
                continue;
            }
        };
        let asked: Value = serde_json::from_slice(&body)?;
        let most = ["max_completion_tokens", "max_tokens"].iter().find_map(|name| asked[*name].as_u64()).unwrap();
        let (fate, output, wait, exceeds) = {
            let mut chance = chance.lock().unwrap();
            let output = chance.random_range(most * 8 / 10..=most);
            (fate(manners, &mut chance), output, chance.random_range(10..60), chance.random_bool(manners.exceeds))
        };
        match fate {
            Fate::Refuse => {
                respond(&mut stream, 429, "retry-after: 0\r\n", &json!({"error": {"message": "slow down"}})).await?;
                continue;
            }
            Fate::Fail => {
                respond(&mut stream, 500, "", &json!({"error": {"message": "an internal error"}})).await?;
                continue;
            }
            Fate::Answer | Fate::Hang | Fate::Break => {}
        }
        // Fewer tokens than bytes, as with every tokenizer.
        let input = body.len() as u64 / 8;
        // An answer that never comes tells nobody that it was billed beyond its limit.
        let exceeds = exceeds && matches!(fate, Fate::Answer);
        let excess = if exceeds { most * manners.beyond / 100 } else { 0 };
        // Beyond the limit, and not only beyond what was used.
        let output = if exceeds { most + excess } else { output };
        // Billed when it was asked, whatever becomes of the answer or of whoever asked.
        books.calls.fetch_add(1, Ordering::SeqCst);
        books.billed.fetch_add(input * INPUT_NANOS + output * OUTPUT_NANOS, Ordering::SeqCst);
        books.excess.fetch_add(excess * OUTPUT_NANOS, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(wait)).await;
        let answer = json!({
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "stand-in-1-2026-01-01",
            "system_fingerprint": "fp_1",
            "choices": [{
                "index": 0,
                "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "content": null,
                    "tool_calls": [{
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "click", "arguments": "{\"x\": 1, \"y\": 1}"},
                    }],
                },
            }],
            "usage": {"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output},
        });
        match fate {
            Fate::Hang => std::future::pending::<()>().await,
            Fate::Break => {
                stream
                    .get_mut()
                    .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 4000\r\n\r\n{")
                    .await?;
                return Ok(());
            }
            _ => respond(&mut stream, 200, "", &answer).await?,
        }
    }
}

/// A request's body, or the status that it is refused with; nothing at the end.
async fn request(stream: &mut BufReader<TcpStream>) -> std::io::Result<Option<Result<Vec<u8>, u16>>> {
    let mut line = String::new();
    if stream.read_line(&mut line).await? == 0 {
        return Ok(None);
    }
    let is_ours = line.starts_with("POST /v1/chat/completions ");
    let (mut length, mut authorized) = (0, false);
    loop {
        line.clear();
        stream.read_line(&mut line).await?;
        let Some((name, value)) = line.split_once(':') else { break };
        match name.to_lowercase().as_str() {
            "content-length" => length = value.trim().parse().unwrap(),
            "authorization" => authorized = value.trim() == format!("Bearer {KEY}"),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(Some(match (is_ours, authorized) {
        (true, true) => Ok(body),
        (false, _) => Err(404),
        (true, false) => Err(401),
    }))
}

async fn respond(stream: &mut BufReader<TcpStream>, status: u16, headers: &str, body: &Value) -> std::io::Result<()> {
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    stream.get_mut().write_all(head.as_bytes()).await?;
    stream.get_mut().write_all(body.as_bytes()).await
}
