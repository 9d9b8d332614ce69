//! A stand-in for a provider of models: it speaks OpenAI's chat completions, counts by itself what it
//! bills, call by call, and misbehaves: a little always, and a lot when it is told to.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::schedule::Mood;

/// What its clients show.
pub(crate) const KEY: &str = "the-key-of-the-stand-in-5e1f09";

/// The variable that holds it.
pub(crate) const KEY_NAME: &str = "LONGHAUL_CHAOS_KEY";

/// What a token costs, in billionths of a dollar: $0.01 and $10 a million.
const INPUT_NANOS: u64 = 10;
const OUTPUT_NANOS: u64 = 10_000;

/// Its price list for the settings, with bounds that hold for it.
pub(crate) const PRICES: &str = "\
date = \"2026-11-01\"

[[price]]
vendor = \"standin\"
model = \"model-*\"
date = \"2026-11-01\"
source = \"its own list\"
input = \"0.01\"
cache_write = \"0.01\"
cache_write_long = \"0.01\"
cache_read = \"0.01\"
output = \"10\"
context = 200000
max_output = 1000
image = { rule = \"fixed\", tokens = 100 }
";

/// After so many answers a model says that the task is done.
const LENGTHS: [(&str, usize); 3] = [("model-alpha", 12), ("model-beta", 18), ("model-gamma", 8)];

/// A call that was billed.
#[derive(Clone, Debug)]
pub(crate) struct Billed {
    /// The model that was asked.
    pub(crate) model: String,
    /// What it cost, in billionths of a dollar.
    pub(crate) nanos: u64,
}

#[derive(Debug)]
struct State {
    mood: Option<Mood>,
    chance: StdRng,
    /// By request id.
    billed: BTreeMap<String, Billed>,
    /// All calls that came, those too that were refused.
    calls: u64,
}

/// A provider that listens on this machine.
#[derive(Clone, Debug)]
pub(crate) struct Provider {
    /// Where.
    pub(crate) url: String,
    state: Arc<Mutex<State>>,
}

impl Provider {
    /// Starts one.
    pub(crate) async fn start(seed: u64) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let chance = StdRng::seed_from_u64(seed);
        let state = State { mood: None, chance, billed: BTreeMap::new(), calls: 0 };
        let provider = Self { url, state: Arc::new(Mutex::new(state)) };
        let serving = provider.clone();
        tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                if serving.state().mood == Some(Mood::Away) {
                    continue;
                }
                let provider = serving.clone();
                // A client that goes away is no news.
                tokio::spawn(async move { provider.serve(stream).await });
            }
        });
        Ok(provider)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How it is from now on.
    pub(crate) fn set(&self, mood: Option<Mood>) {
        self.state().mood = mood;
    }

    /// How many calls came.
    pub(crate) fn calls(&self) -> u64 {
        self.state().calls
    }

    /// What it billed.
    pub(crate) fn billed(&self) -> BTreeMap<String, Billed> {
        self.state().billed.clone()
    }

    async fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        let mut stream = BufReader::new(stream);
        while let Some((is_call, body)) = request(&mut stream).await? {
            if !is_call {
                respond(&mut stream, 200, "", &json!({"object": "list", "data": []})).await?;
                continue;
            }
            let asked: Value = serde_json::from_slice(&body)?;
            let (fate, wait) = self.fate();
            match fate {
                Fate::Refuse(status, headers) => {
                    respond(&mut stream, status, headers, &json!({"error": {"message": "not now"}})).await?;
                    continue;
                }
                Fate::Leave => return Ok(()),
                Fate::Answer | Fate::Hang | Fate::Break => {}
            }
            let (id, answer) = self.bill(&asked);
            tokio::time::sleep(wait).await;
            let headers = format!("x-request-id: {id}\r\n");
            match fate {
                Fate::Hang => std::future::pending::<()>().await,
                Fate::Break => {
                    let half = answer.to_string();
                    let half = half.get(..half.len() / 2).unwrap_or_default();
                    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n";
                    let text = format!("{head}{headers}\r\n{:x}\r\n{half}\r\n", half.len());
                    return stream.get_mut().write_all(text.as_bytes()).await;
                }
                _ => respond(&mut stream, 200, &headers, &answer).await?,
            }
        }
        Ok(())
    }

    /// What becomes of a call, and how long it takes.
    fn fate(&self) -> (Fate, Duration) {
        let mut state = self.state();
        state.calls += 1;
        let point: f64 = state.chance.random();
        let wait = Duration::from_millis(state.chance.random_range(20..80));
        let fate = match state.mood {
            Some(Mood::Overloaded) => Fate::Refuse(503, ""),
            Some(Mood::Hangs) => Fate::Hang,
            Some(Mood::Breaks) => Fate::Break,
            Some(Mood::Away) => Fate::Leave,
            Some(Mood::Slow) => return (Fate::Answer, wait * 20),
            None if point < 0.002 => Fate::Hang,
            None if point < 0.004 => Fate::Break,
            None if point < 0.02 => Fate::Refuse(429, "retry-after: 0\r\n"),
            None if point < 0.03 => Fate::Refuse(500, ""),
            None => Fate::Answer,
        };
        (fate, wait)
    }

    /// Bills a call when it was asked, whatever becomes of its answer or of whoever asked: its id, and
    /// what is said.
    fn bill(&self, asked: &Value) -> (String, Value) {
        let model = asked["model"].as_str().unwrap_or_default().to_owned();
        let most = ["max_completion_tokens", "max_tokens"].iter().find_map(|name| asked[*name].as_u64()).unwrap_or(0);
        let messages = asked["messages"].as_array().map(Vec::as_slice).unwrap_or_default();
        let answers = messages.iter().filter(|message| message["role"] == "assistant").count();
        // Fewer tokens than bytes, as with every tokenizer.
        let input = 50 + 10 * u64::try_from(messages.len()).unwrap_or(u64::MAX);
        let mut state = self.state();
        let output = state.chance.random_range(most * 8 / 10..=most);
        let id = format!("req-{}", state.billed.len());
        let nanos = input * INPUT_NANOS + output * OUTPUT_NANOS;
        state.billed.insert(id.clone(), Billed { model: model.clone(), nanos });
        drop(state);
        let length = LENGTHS.iter().find(|(name, _)| model == *name).map_or(1, |(_, length)| *length);
        let function = json!({"name": "click", "arguments": "{\"x\": 1, \"y\": 1}"});
        let (message, reason) = if answers < length {
            let call = json!([{"id": "call_1", "type": "function", "function": function}]);
            (json!({"role": "assistant", "content": null, "tool_calls": call}), "tool_calls")
        } else {
            (json!({"role": "assistant", "content": "It is done."}), "stop")
        };
        let usage = json!({"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output});
        let choices = json!([{"index": 0, "finish_reason": reason, "message": message}]);
        let answer = json!({
            "id": id, "object": "chat.completion", "created": 1, "model": model,
            "system_fingerprint": "fp_1", "choices": choices, "usage": usage,
        });
        (id, answer)
    }
}

#[derive(Clone, Copy)]
enum Fate {
    Answer,
    Hang,
    Break,
    Refuse(u16, &'static str),
    Leave,
}

/// Whether a request is a call, and its body; nothing at the end.
async fn request(stream: &mut BufReader<TcpStream>) -> std::io::Result<Option<(bool, Vec<u8>)>> {
    let mut line = String::new();
    if stream.read_line(&mut line).await? == 0 {
        return Ok(None);
    }
    let is_call = line.starts_with("POST /v1/chat/completions ");
    let (mut length, mut authorized) = (0, false);
    loop {
        line.clear();
        stream.read_line(&mut line).await?;
        let Some((name, value)) = line.split_once(':') else { break };
        match name.to_lowercase().as_str() {
            "content-length" => length = value.trim().parse().map_err(std::io::Error::other)?,
            "authorization" => authorized = value.trim() == format!("Bearer {KEY}"),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(Some((is_call && authorized, body)))
}

async fn respond(stream: &mut BufReader<TcpStream>, status: u16, headers: &str, body: &Value) -> std::io::Result<()> {
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    stream.get_mut().write_all((head + &body).as_bytes()).await
}
