//! A vendor of a model on a host of a cluster whose hosts have networks of their own: whoever is on the
//! same host reaches it, whatever becomes of the cable.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::world::now;

/// Its port, on its host's own loopback.
pub const PORT: u16 = 8000;

/// What a call of it costs, in billionths of a dollar: ten tokens read and five written.
pub const CALL_NANOS: u64 = 10 * 1_000 + 5 * 5_000;

/// Its prices.
pub const PRICES: &str = "\
date = \"2026-11-01\"

[[price]]
vendor = \"standin\"
model = \"m\"
date = \"2026-11-01\"
source = \"its own list\"
input = \"1\"
cache_write = \"1\"
cache_write_long = \"1\"
cache_read = \"1\"
output = \"5\"
context = 200000
max_output = 1000
image = { rule = \"fixed\", tokens = 800 }
";

/// What its model says to a call, by its number; nothing if that is never answered.
pub type Says = fn(usize) -> Option<Value>;

/// A server of chat completions.
#[derive(Clone, Debug)]
pub struct Vendor {
    says: Says,
    /// How long an answer takes.
    takes: Duration,
    /// When each call came, by the machine's clock.
    calls: Arc<Mutex<Vec<u64>>>,
    /// Connections that hang, kept open.
    hanging: Arc<Mutex<Vec<TcpStream>>>,
}

impl Vendor {
    /// Serves those who come to `listener`, for as long as this process lives.
    #[must_use]
    pub fn start(listener: TcpListener, says: Says, takes: Duration) -> Self {
        let vendor = Self { says, takes, calls: Arc::default(), hanging: Arc::default() };
        let serving = vendor.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let vendor = serving.clone();
                std::thread::spawn(move || vendor.serve(stream));
            }
        });
        vendor
    }

    /// When each call came, in milliseconds, in order.
    #[must_use]
    pub fn calls(&self) -> Vec<u64> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn serve(&self, stream: TcpStream) -> Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        loop {
            let (mut first, mut length) = (String::new(), 0);
            if reader.read_line(&mut first)? == 0 {
                return Ok(());
            }
            loop {
                let mut line = String::new();
                reader.read_line(&mut line)?;
                let Some((name, value)) = line.split_once(':') else { break };
                if name.eq_ignore_ascii_case("content-length") {
                    length = value.trim().parse()?;
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body)?;
            let answer = if first.starts_with("POST ") {
                let call = {
                    let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
                    calls.push(now());
                    calls.len() - 1
                };
                let Some(answer) = (self.says)(call) else {
                    self.hanging.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
                    return Ok(());
                };
                std::thread::sleep(self.takes);
                answer
            } else {
                json!({"object": "list", "data": []})
            }
            .to_string();
            let length = answer.len();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n");
            (&stream).write_all(head.as_bytes())?;
            (&stream).write_all(answer.as_bytes())?;
        }
    }
}

/// An answer that calls a function.
#[must_use]
pub fn calls(name: &str, arguments: &Value) -> Value {
    let function = json!({"name": name, "arguments": arguments.to_string()});
    json!({
        "id": "c", "object": "chat.completion", "model": "m",
        "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant", "content": null,
            "tool_calls": [{"id": "a", "type": "function", "function": function}]}}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    })
}

/// An endpoint of the settings for whoever is on the vendor's host; `more` goes into its table.
#[must_use]
pub fn endpoint(name: &str, more: &str) -> String {
    format!(
        "\n[endpoint.{name}]\nprotocol = \"openai\"\nvendor = \"standin\"\nurls = [\"http://127.0.0.1:{PORT}\"]\n{more}"
    )
}
