//! Agents: what is evaluated, and what one answer of it is.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::digest::Digest;
use crate::price::Service;
use crate::time::Millis;

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
    /// One of our loops around a model.
    Model {
        /// The name shown in tables.
        name: String,
        /// The loop.
        harness: Harness,
        /// The endpoint that serves the model, as the run names it.
        endpoint: String,
        /// The model.
        model: String,
    },
    /// A program of somebody else's.
    External {
        /// The name shown in tables.
        name: String,
        /// The endpoints that it may call through the gateway.
        endpoints: Vec<String>,
    },
}

impl AgentSpec {
    /// The name shown in tables.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Scripted { name } | Self::Model { name, .. } | Self::External { name, .. } => name,
            Self::Idle => "idle",
        }
    }

    /// The endpoints without which it cannot act.
    #[must_use]
    pub fn endpoints(&self) -> &[String] {
        match self {
            Self::Scripted { .. } | Self::Idle => &[],
            Self::Model { endpoint, .. } => std::slice::from_ref(endpoint),
            Self::External { endpoints, .. } => endpoints,
        }
    }
}

impl fmt::Display for AgentSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Which of our loops drives a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Harness {
    /// Anthropic's computer-use tool, over messages.
    AnthropicComputer,
    /// OpenAI's computer use, over responses.
    OpenaiComputer,
    /// Gemini's computer use, over `generateContent`.
    GeminiComputer,
    /// Functions of our own for models behind chat completions (Qwen-VL, Kimi, on vLLM).
    Tools,
}

impl Harness {
    /// Every loop.
    pub const ALL: [Self; 4] = [Self::AnthropicComputer, Self::OpenaiComputer, Self::GeminiComputer, Self::Tools];

    /// The name in agents' specs and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AnthropicComputer => "anthropic-computer",
            Self::OpenaiComputer => "openai-computer",
            Self::GeminiComputer => "gemini-computer",
            Self::Tools => "tools",
        }
    }
}

/// A loop around a model, with its parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelAgent {
    /// The loop.
    pub harness: Harness,
    /// The endpoint that serves the model, as the run names it.
    pub endpoint: String,
    /// The model.
    pub model: String,
    /// The most output tokens of one answer.
    pub max_output: u32,
    /// The longest sides of the screenshots that the model is sent; its coordinates are in
    /// them, and scaled back. The screen's own size if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageSize>,
    /// How many of the last screenshots stay in the context; older ones are left out.
    pub keep_images: u32,
    /// After how many tokens of context what is old is replaced by a summary of the model's own;
    /// never if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summarize_above: Option<u64>,
    /// What is said before the task, in place of the loop's own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// Further fields of each request, as the vendor names them (temperature, thinking, ...).
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub parameters: Map<String, Value>,
}

impl ModelAgent {
    /// The tier of service that its calls ask for, if that is not the usual one.
    #[must_use]
    pub fn service(&self) -> Option<Service> {
        let asked = ["service_tier", "serviceTier"].iter().find_map(|name| self.parameters.get(*name)?.as_str());
        asked.and_then(Service::named)
    }
}

/// A size in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageSize {
    /// Across.
    pub width: u16,
    /// Down.
    pub height: u16,
}

/// A program that answers over its standard streams.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExternalAgent {
    /// The program and its arguments, as they are found inside its sandbox.
    pub command: Vec<String>,
    /// The tree of the agent's own files, seen at `/agent`; its working folder is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<Digest>,
    /// The image that its sandbox stands on, as the settings name images; the base if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Variables of its environment; no secret belongs here.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub variables: std::collections::BTreeMap<String, String>,
    /// The endpoints that it may call through the gateway.
    pub endpoints: Vec<String>,
    /// How long it may be silent when an answer is due.
    pub answer_limit: Millis,
    /// The most memory that its sandbox may use, in MiB; an episode of it asks for so much more
    /// of a node.
    #[serde(default = "usual_memory")]
    pub memory_mib: u32,
    /// Whether its sandbox has a way out to the network beside the gateway.
    #[serde(default)]
    pub net: bool,
}

impl ExternalAgent {
    /// The most memory that a program may use, in MiB, if nobody says.
    pub const USUAL_MEMORY_MIB: u32 = 4096;
}

const fn usual_memory() -> u32 {
    ExternalAgent::USUAL_MEMORY_MIB
}

/// When the agent says that it is done, another model looks at the screenshots and names what
/// is missing, and the agent goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditPlan {
    /// The endpoint that serves the auditor.
    pub endpoint: String,
    /// The auditor.
    pub model: String,
    /// The most audits of an episode; of each round, if its task has rounds.
    pub most: u32,
    /// The most output tokens of one audit.
    pub max_output: u32,
    /// How many of the last screenshots it sees at most.
    pub images: u32,
}

/// How an agent is started for one episode: the agent with what it needs for that task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum AgentPlan {
    /// The blob with the lines of the script.
    Scripted {
        /// The digest of the script's text.
        script: Digest,
    },
    /// Done at once.
    Idle,
    /// A loop around a model.
    Model(Box<ModelAgent>),
    /// Somebody else's program.
    External(Box<ExternalAgent>),
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
