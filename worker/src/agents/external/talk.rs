//! The conversation with a program: what it is told, and what it says.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use longhaul_core::agent::Answer;
use longhaul_core::budget::EpisodeBudget;
use longhaul_core::outcome::{EndedBy, Fault};
use longhaul_core::step::{ActionOutcome, Screenshot};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader, WriteHalf};

use super::lines::{Line, Lines, MOST_LINE};
use crate::agents::conversation::{MOST_ACTIONS, Turn};
use crate::agents::crashed;
use crate::episode::Sight;

/// The version of the protocol.
pub(crate) const PROTOCOL: u32 = 1;

/// Lines that mean nothing, while one answer is due, after which the program is given up.
const MOST_BAD: u32 = 10;

/// The longest text of an answer.
const MOST_TEXT: usize = 256 * 1024;

/// How long the program may leave what it is told unread.
const WRITE_LIMIT: Duration = Duration::from_secs(60);

/// The task, as the program is told it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Task {
    pub(crate) task: String,
    pub(crate) description: String,
    pub(crate) screen: Value,
    pub(crate) seed: u64,
    pub(crate) limits: Value,
    /// The endpoints that it may call, by name.
    pub(crate) endpoints: BTreeMap<String, Value>,
}

impl Task {
    /// The limits of an episode.
    pub(crate) fn limits(budget: &EpisodeBudget, answer_limit: Duration) -> Value {
        json!({
            "steps": budget.max_steps,
            "seconds": budget.max_time.0 / 1000,
            "tokens": budget.max_tokens,
            "cost": budget.max_cost.map(|cost| cost.to_string()),
            "answer_seconds": answer_limit.as_secs(),
        })
    }
}

/// What is left of an episode's limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Left {
    pub(crate) steps: u32,
    pub(crate) seconds: u64,
}

/// What the program is shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown<'a> {
    /// Where the picture is, as the program sees it.
    pub(crate) path: &'a str,
    pub(crate) sight: Sight<'a>,
}

/// A program that is spoken to.
pub(crate) struct Talk<S> {
    lines: Lines<BufReader<tokio::io::ReadHalf<S>>>,
    writer: WriteHalf<S>,
}

impl<S> fmt::Debug for Talk<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Talk").finish_non_exhaustive()
    }
}

impl<S: AsyncRead + AsyncWrite> Talk<S> {
    /// Over a stream.
    pub(crate) fn new(stream: S) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        Self { lines: Lines::new(BufReader::with_capacity(64 * 1024, reader)), writer }
    }

    /// Tells the task.
    ///
    /// # Errors
    ///
    /// The program is gone, or does not read.
    pub(crate) async fn reset(&mut self, task: &Task) -> Result<(), Fault> {
        let mut message = json!(task);
        message["type"] = json!("reset");
        message["protocol"] = json!(PROTOCOL);
        self.say(&message).await
    }

    /// Shows the screen.
    ///
    /// # Errors
    ///
    /// As [`Self::reset`].
    pub(crate) async fn observe(&mut self, shown: Shown<'_>) -> Result<(), Fault> {
        let Sight { step, frame, outcomes, told, left, round, goal } = shown.sight;
        let Screenshot { width, height, .. } = frame.screenshot;
        let outcomes: Vec<Value> = outcomes
            .iter()
            .map(|outcome| match outcome {
                ActionOutcome::Done => json!("done"),
                ActionOutcome::Error(error) => json!({"error": error}),
            })
            .collect();
        self.say(&json!({
            "type": "observe",
            "step": step,
            "screen": {"path": shown.path, "width": width, "height": height},
            "outcomes": outcomes,
            "told": told,
            "left": left,
            "round": round,
            "goal": goal,
        }))
        .await
    }

    /// Says that the episode is over. A program that is gone need not know.
    pub(crate) async fn done(&mut self, ended_by: Option<EndedBy>) {
        let ended_by = ended_by.map(|ended_by| ended_by.to_string());
        if let Err(fault) = self.say(&json!({"type": "done", "ended_by": ended_by})).await {
            tracing::debug!(message = fault.message, "an agent was not told that its episode is over");
        }
    }

    /// Waits for the answer to observation `step`.
    ///
    /// # Errors
    ///
    /// The program ended, or said too much that means nothing.
    pub(crate) async fn answer(&mut self, step: u32) -> Result<Turn, Fault> {
        let mut unreadable = Vec::new();
        loop {
            let said = match self
                .lines
                .next()
                .await
                .map_err(|error| crashed(format!("the agent cannot be heard: {error}")))?
            {
                Line::End => return Err(crashed("the agent ended without saying that it is done".to_owned())),
                Line::Flood => {
                    return Err(crashed("the agent floods its output with a line that has no end".to_owned()));
                }
                Line::TooLong(bytes) => Err(format!("a line of {bytes} bytes is too long: {MOST_LINE} are the most")),
                Line::Whole(line) if line.iter().all(u8::is_ascii_whitespace) => continue,
                Line::Whole(line) => read(&line, step),
            };
            match said {
                Ok(answer) => return Ok(Turn { answer, unreadable, given_up: false }),
                Err(error) => {
                    self.say(&json!({"type": "error", "message": error})).await?;
                    unreadable.push(error);
                }
            }
            if unreadable.len() >= MOST_BAD as usize {
                let last = unreadable.pop().unwrap_or_default();
                return Err(crashed(format!("the agent said {MOST_BAD} things that are no answer; the last: {last}")));
            }
        }
    }

    async fn say(&mut self, message: &Value) -> Result<(), Fault> {
        let mut line = message.to_string();
        line.push('\n');
        let written = async {
            self.writer.write_all(line.as_bytes()).await?;
            self.writer.flush().await
        };
        match tokio::time::timeout(WRITE_LIMIT, written).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(crashed(format!("the agent cannot be told anything: {error}"))),
            Err(_) => Err(crashed("the agent does not read what it is told".to_owned())),
        }
    }
}

/// A line as an answer, or what is wrong with it.
fn read(line: &[u8], step: u32) -> Result<Answer, String> {
    let value: Value = serde_json::from_slice(line).map_err(|error| format!("a line is one JSON object: {error}"))?;
    let Value::Object(object) = value else { return Err("a line is one JSON object".to_owned()) };
    match object.get("type").and_then(Value::as_str) {
        Some("act") => {}
        Some(other) => return Err(format!("a message of type `{}` is not known", excerpt(other))),
        None => return Err("a message has a `type`".to_owned()),
    }
    if let Some(key) = object.keys().find(|key| !matches!(key.as_str(), "type" | "actions" | "text" | "done" | "step"))
    {
        return Err(format!("`{}` is no part of an answer", excerpt(key)));
    }
    if let Some(named) = object.get("step").filter(|named| **named != json!(step)) {
        return Err(format!("the answer is to step {}, and step {step} is due", excerpt(&named.to_string())));
    }
    let actions = match object.get("actions") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(actions)) if actions.iter().all(Value::is_object) => actions.clone(),
        Some(_) => return Err("`actions` is a list of objects".to_owned()),
    };
    if actions.len() > MOST_ACTIONS {
        return Err(format!("an answer has {MOST_ACTIONS} actions at most, not {}", actions.len()));
    }
    let text = match object.get("text") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text[..text.floor_char_boundary(MOST_TEXT)].to_owned()),
        Some(_) => return Err("`text` is a string".to_owned()),
    };
    let done = match object.get("done") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(done)) => *done,
        Some(_) => return Err("`done` is true or false".to_owned()),
    };
    Ok(Answer { text, actions, done })
}

fn excerpt(text: &str) -> String {
    text.chars().take(60).collect::<String>().escape_debug().to_string()
}
