//! The vendors' forms: how a conversation becomes a request, and a response actions.
//!
//! A harness is pure and keeps no state. What all of them share (results, what is told, which
//! screenshots stay, when it is over) is the [conversation](super::conversation)'s.

mod anthropic;
mod gemini;
mod openai;
mod text;
mod tools;

use std::fmt;

use longhaul_core::agent::{Harness as Kind, ImageSize, ModelAgent};
use longhaul_core::endpoint::Protocol;
use longhaul_gateway::Surface;
use serde_json::{Map, Value};

use super::history::{CallResult, Exchange, History};
use super::options::{self, Options};
use super::place::{Grid, Region};

/// What a harness knows of its episode.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    /// The model.
    pub(crate) model: String,
    /// The most output tokens of one answer.
    pub(crate) max_output: u32,
    /// What is said before the task; the loop's own words if absent.
    pub(crate) system: Option<String>,
    /// What the agent is asked to do.
    pub(crate) task: String,
    /// The size of the pictures that the model is sent.
    pub(crate) image: ImageSize,
    /// The size of the screen.
    pub(crate) screen: ImageSize,
    /// The loop's options.
    pub(crate) options: Options,
    /// Further fields of each request.
    pub(crate) parameters: Map<String, Value>,
}

/// What the model is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// Its next turn.
    Turn,
    /// A summary of what was said, and nothing else.
    Summary,
}

/// What the loop asks for when the conversation has become long.
pub(crate) const SUMMARIZE: &str = "The conversation has become long and will go on from your notes alone. Do not act \
     now. Write down what you need to go on with the task: what has been done and what it led to, what you have read \
     off the screen that matters (names, numbers, places), what does not work, and what remains to be done, in order.";

/// What comes before a summary, where the conversation goes on from it.
const FROM_NOTES: &str = "Your own notes of what was done so far:";

/// What comes before what is asked for now.
const GOAL: &str = "What came first of that is over. You are asked for this now:";

/// What is said before the task to models that like to have things confirmed.
const UNATTENDED: &str = "You operate a Linux desktop to do a task. After each of your turns you see the screen as it \
     is then. Go on until the task is done and check the result on the screen; then answer in words, without a call. \
     Nobody answers questions, and nothing needs to be confirmed.";

/// A form.
pub(crate) trait Harness: fmt::Debug + Send + Sync {
    /// Which request it is.
    fn surface(&self) -> Surface;

    /// Headers of each request beside the usual.
    fn headers(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// The grid of the model's coordinates.
    fn grid(&self) -> Grid;

    /// The body of a request.
    fn body(&self, history: &History, ask: Ask) -> Value;

    /// Reads the body of a response, whatever it is.
    fn read(&self, body: &Value) -> Reading;

    /// Whether an answer in words alone says that the task is done.
    fn words_are_done(&self) -> bool {
        true
    }
}

/// A response, read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    /// The reply as it is sent back.
    pub(crate) kept: Value,
    /// What the model said.
    pub(crate) text: Option<String>,
    /// What it asked for.
    pub(crate) calls: Vec<Call>,
    /// The tokens of the conversation with this reply.
    pub(crate) tokens: u64,
    /// How it ended.
    pub(crate) stop: Stop,
}

/// How a response ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stop {
    /// By itself.
    #[default]
    Whole,
    /// At the limit of its output.
    Cut,
    /// The vendor wants to be called again.
    Paused,
    /// The model or its vendor will not answer: why.
    Refused(String),
}

/// One call of a response.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// Its id, where the vendor has one.
    pub(crate) id: Option<String>,
    /// Its name.
    pub(crate) name: String,
    /// What it asks for, or what is wrong with it.
    pub(crate) asked: Result<Asked, String>,
    /// The vendor's safety checks of it.
    pub(crate) safety: Vec<Value>,
}

/// What a call asks for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Asked {
    /// Actions, in the benchmark's form.
    pub(crate) actions: Vec<Value>,
    /// A part of the screen to be seen at full size.
    pub(crate) part: Option<Region>,
    /// Whether it asks where the pointer is.
    pub(crate) pointer: bool,
    /// Whether it says that the task is done.
    pub(crate) done: bool,
    /// What it says.
    pub(crate) said: Option<String>,
}

impl From<Vec<Value>> for Asked {
    fn from(actions: Vec<Value>) -> Self {
        Self { actions, ..Self::default() }
    }
}

impl From<Value> for Asked {
    fn from(action: Value) -> Self {
        vec![action].into()
    }
}

/// The harness of an agent.
///
/// # Errors
///
/// Its options hold something that is no option.
pub(crate) fn of(agent: &ModelAgent, task: &str, screen: ImageSize) -> Result<Box<dyn Harness>, String> {
    let mut parameters = agent.parameters.clone();
    let setting = Setting {
        model: agent.model.clone(),
        max_output: agent.max_output,
        system: agent.system.clone(),
        task: task.to_owned(),
        image: super::place::fit(screen, agent.image),
        screen,
        options: Options::take(&mut parameters)?,
        parameters,
    };
    Ok(match agent.harness {
        Kind::AnthropicComputer => Box::new(anthropic::Anthropic::new(setting)?),
        Kind::OpenaiComputer => Box::new(openai::OpenAi::new(setting)?),
        Kind::GeminiComputer => Box::new(gemini::Gemini::new(setting)),
        Kind::Tools => Box::new(tools::Tools::new(setting)),
    })
}

impl Setting {
    /// What is said before the task.
    fn system(&self, own: &str) -> String {
        self.system.clone().unwrap_or_else(|| own.to_owned())
    }

    /// What opens the conversation.
    fn opening(&self, history: &History) -> String {
        match &history.summary {
            None => self.task.clone(),
            Some(summary) => {
                // What was asked for on the way is gone with what was said.
                let goal = history.goal.iter().map(|goal| format!("\n\n{GOAL}\n\n{goal}"));
                format!("{}{}\n\n{FROM_NOTES}\n\n{summary}", self.task, goal.collect::<String>())
            }
        }
    }

    /// A body with the parameters' fields.
    fn with_parameters(&self, mut body: Value) -> Value {
        if let Value::Object(fields) = &mut body {
            options::merge(fields, &self.parameters);
        }
        body
    }
}

/// A text as a part of what a model is shown: over messages, chat completions, or contents.
pub(crate) fn text_part(protocol: Protocol, text: &str) -> Value {
    match protocol {
        Protocol::Anthropic => anthropic::text(text),
        Protocol::OpenAi => tools::text_part(text),
        Protocol::Gemini => gemini::text(text),
    }
}

/// A picture of some kind, as base64, as such a part.
pub(crate) fn image_part(protocol: Protocol, media: &str, data: &str) -> Value {
    match protocol {
        Protocol::Anthropic => anthropic::image(media, data),
        Protocol::OpenAi => tools::image_part(media, data),
        Protocol::Gemini => gemini::image(media, data),
    }
}

/// What the model is told in words in an exchange, beside results that have a place of their own.
fn words(exchange: &Exchange, ask: Ask, is_last: bool) -> Vec<String> {
    let summarize = (is_last && ask == Ask::Summary).then(|| SUMMARIZE.to_owned());
    exchange.told.iter().cloned().chain(summarize).collect()
}

/// A result in words.
fn result_text(result: &CallResult) -> String {
    match (&result.error, &result.text) {
        (Some(error), _) => format!("error: {error}"),
        (None, Some(text)) => text.clone(),
        (None, None) => "done".to_owned(),
    }
}

/// A token count of a response's usage; hostile ones are none.
fn tokens(usage: &Value, names: &[&str]) -> u64 {
    names.iter().filter_map(|name| usage.get(*name)?.as_u64()).fold(0, u64::saturating_add)
}

/// Texts as one, if there is any.
fn joined(texts: Vec<&str>) -> Option<String> {
    let text = texts.into_iter().map(str::trim).filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n");
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
pub(crate) mod testing;
