//! An episode as a conversation of the generic loop.

use longhaul_core::action::{self, Input, Point};
use longhaul_core::functions::{FunctionCall, Grid, Inexpressible, LEFT_OUT, calls, harmless};
use longhaul_core::step::{ActionOutcome, StepRecord};
use serde_json::{Value, json};

use super::super::source::Played;
use super::{Coordinates, IMAGES, Rows, system};

/// A conversation.
pub(super) struct Talk<'a> {
    system: String,
    /// What the agent is asked.
    task: String,
    /// What it saw, was told and answered, in order. The screen after the last answer, which
    /// nobody answered, is no part of it.
    turns: Vec<Turn<'a>>,
}

/// What was there to see, and the answer.
struct Turn<'a> {
    seen: &'a StepRecord,
    told: Option<String>,
    answer: String,
    /// The number of the step that the answer is.
    step: u32,
}

impl<'a> Talk<'a> {
    /// The conversation of an episode. Of its answers those count that did something, or said that
    /// it was done: actions that were refused had no effect, and are not to be learned.
    pub(super) fn of(played: &'a Played, coordinates: Coordinates) -> Result<Self, Inexpressible> {
        let screen = played.steps.first().map(|step| (step.screen.width, step.screen.height)).unwrap_or_default();
        let (width, height) = screen;
        let grid = match coordinates {
            Coordinates::Pixels => Grid::pixels(width, height),
            Coordinates::Thousandths => Grid::thousandths(width, height),
        };
        let mut turns = Vec::new();
        let mut pointer = None;
        let mut seen: Option<&StepRecord> = None;
        let mut told = Vec::new();
        for step in &played.steps {
            told.extend(step.told.as_deref().map(harmless));
            if let (Some(before), Some(answer)) = (seen, &step.answer) {
                let mut written = written(step, &mut pointer, &grid)?;
                if answer.done {
                    written.push(FunctionCall { name: "done", arguments: serde_json::Map::new() });
                }
                if !written.is_empty() {
                    let words = answer.text.as_deref().map(|text| harmless(text.trim())).unwrap_or_default();
                    let calls = written.iter().map(FunctionCall::as_text);
                    let parts = Some(words).filter(|words| !words.is_empty()).into_iter().chain(calls);
                    turns.push(Turn {
                        seen: before,
                        told: (!told.is_empty()).then(|| told.join("\n")),
                        answer: parts.collect::<Vec<_>>().join("\n"),
                        step: step.number,
                    });
                    told.clear();
                }
            }
            seen = Some(step);
        }
        Ok(Self { system: system(coordinates, width, height), task: harmless(&played.description()), turns })
    }
}

/// What a step did, as calls.
fn written(step: &StepRecord, pointer: &mut Option<Point>, grid: &Grid) -> Result<Vec<FunctionCall>, Inexpressible> {
    let actions = step.answer.iter().flat_map(|answer| &answer.actions);
    let done = actions.zip(&step.outcomes).filter(|(_, outcome)| matches!(outcome, ActionOutcome::Done));
    // What cannot be read was not carried out either.
    let inputs: Vec<Input> = done.filter_map(|(action, _)| action::parse(action).ok()).flatten().collect();
    calls(&inputs, pointer, grid)
}

impl Talk<'_> {
    /// How many answers there are.
    pub(super) fn turns(&self) -> usize {
        self.turns.len()
    }

    /// The steps whose screens are shown.
    pub(super) fn seen(&self) -> impl Iterator<Item = &StepRecord> {
        self.turns.iter().map(|turn| turn.seen)
    }

    /// The rows, one at a time: those of long episodes are long.
    pub(super) fn rows(&self, rows: Rows) -> impl Iterator<Item = Value> {
        let count = match rows {
            Rows::Steps { .. } => self.turns.len(),
            Rows::Episodes => 1,
        };
        (0..count).map(move |index| match rows {
            Rows::Steps { keep_images } => self.step_row(index, keep_images),
            Rows::Episodes => self.episode_row(),
        })
    }

    /// What comes before the answer of a turn, and the answer.
    fn step_row(&self, index: usize, keep_images: u32) -> Value {
        let keep = usize::try_from(keep_images).unwrap_or(usize::MAX).max(1);
        let first_shown = (index + 1).saturating_sub(keep);
        let mut prompt = vec![message("system", vec![text(&self.system)])];
        for (at, turn) in self.turns[..=index].iter().enumerate() {
            prompt.push(self.observation(at, turn, at >= first_shown));
            if at < index {
                prompt.push(message("assistant", vec![text(&turn.answer)]));
            }
        }
        let turn = &self.turns[index];
        json!({
            "prompt": prompt,
            "completion": [message("assistant", vec![text(&turn.answer)])],
            "images": self.turns[first_shown..=index].iter().map(|turn| path(turn.seen)).collect::<Vec<_>>(),
            "step": turn.step,
        })
    }

    fn episode_row(&self) -> Value {
        let mut messages = vec![message("system", vec![text(&self.system)])];
        for (at, turn) in self.turns.iter().enumerate() {
            messages.push(self.observation(at, turn, true));
            messages.push(message("assistant", vec![text(&turn.answer)]));
        }
        json!({
            "messages": messages,
            "images": self.turns.iter().map(|turn| path(turn.seen)).collect::<Vec<_>>(),
            "steps": self.turns.len(),
        })
    }

    fn observation(&self, at: usize, turn: &Turn<'_>, shown: bool) -> Value {
        let mut parts = Vec::new();
        if at == 0 {
            parts.push(text(&self.task));
        }
        parts.extend(turn.told.as_deref().map(text));
        parts.push(if shown { json!({ "type": "image" }) } else { text(LEFT_OUT) });
        message("user", parts)
    }
}

fn message(role: &str, content: Vec<Value>) -> Value {
    json!({ "role": role, "content": content })
}

fn text(text: &str) -> Value {
    json!({ "type": "text", "text": text })
}

fn path(step: &StepRecord) -> String {
    format!("{IMAGES}/{}.png", step.screen.png)
}
