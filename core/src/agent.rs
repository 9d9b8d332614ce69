//! Agents: what is evaluated, and what one answer of it is.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::digest::Digest;

/// An agent as a run names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum AgentSpec {
    /// Answers with the lines of a script, one line a step, and is done at its end.
    Scripted {
        /// The name shown in tables.
        name: String,
    },
    /// Says at once that it is done: the floor of every comparison.
    Idle,
}

impl AgentSpec {
    /// The name shown in tables.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Scripted { name } => name,
            Self::Idle => "idle",
        }
    }
}

impl fmt::Display for AgentSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How an agent is started for one episode: the agent with what it needs for that task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum AgentPlan {
    /// The blob with the lines of the script.
    Scripted {
        /// The digest of the script's text.
        script: Digest,
    },
    /// Done at once.
    Idle,
}

/// One answer of an agent: a model turn, with all actions that it asks for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// What the agent said, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The actions asked for, in order, as the agent wrote them.
    #[serde(default)]
    pub actions: Vec<Value>,
    /// Whether the agent says that it is done.
    #[serde(default)]
    pub done: bool,
}

/// A line of a script that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// The line is not JSON.
    #[error("line {line}: not JSON: {message}")]
    NotJson {
        /// The line, from 1.
        line: usize,
        /// What the parser said.
        message: String,
    },
    /// The line is JSON of another shape.
    #[error(
        "line {line}: expected an action, a list of actions, or {{\"actions\": [...], \"text\": ..., \"done\": ...}}"
    )]
    Shape {
        /// The line, from 1.
        line: usize,
    },
}

/// Reads a script: JSON lines, each one step. A line is an action, a list of actions,
/// or an answer `{"actions": [...], "text": "...", "done": true}`; empty lines and
/// lines that start with `#` are skipped.
///
/// # Errors
///
/// The first line that is not JSON, or JSON of another shape.
pub fn parse_script(text: &str) -> Result<Vec<Answer>, ScriptError> {
    let mut answers = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            continue;
        }
        let value: Value = serde_json::from_str(trimmed)
            .map_err(|error| ScriptError::NotJson { line: line_number, message: error.to_string() })?;
        answers.push(parse_line(value).ok_or(ScriptError::Shape { line: line_number })?);
    }
    Ok(answers)
}

fn parse_line(value: Value) -> Option<Answer> {
    match value {
        Value::Array(actions) if actions.iter().all(Value::is_object) => Some(Answer { actions, ..Answer::default() }),
        Value::Object(object) if ["actions", "done", "text"].iter().any(|key| object.contains_key(*key)) => {
            if object.keys().any(|key| !matches!(key.as_str(), "actions" | "done" | "text")) {
                return None;
            }
            serde_json::from_value(Value::Object(object)).ok()
        }
        Value::Object(object) => Some(Answer { actions: vec![Value::Object(object)], ..Answer::default() }),
        _ => None,
    }
}
