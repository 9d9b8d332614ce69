//! The loop around a model: what it is shown, what it asks for, what it is told.
//!
//! The state is a [`History`], and a pure function of the plan, the observations and the
//! responses. The loop's own rules, the same for every vendor:
//!
//! * One response is one turn, and one step, however many calls it holds.
//! * A call that cannot be read is answered with an error, and what the same response asks for
//!   after it is not carried out: it may have been meant for what did not happen.
//! * An answer in words alone says that the task is done (but with functions of our own, which
//!   have one for that). An empty one does not at first: the model is asked to go on.
//! * A refusal ends the agent's part, as its own doing.
//! * After [`MOST_BLANK`] answers in a row with nothing that can be carried out, it is over.

use std::sync::Arc;

use longhaul_core::action::{self, Input};
use longhaul_core::agent::{Answer, ImageSize, ModelAgent};
use longhaul_core::call::Purpose;
use longhaul_core::step::ActionOutcome;
use longhaul_gateway::ModelCall;
use serde_json::Value;

use super::harness::{self, Ask, Asked, Harness, Reading, Stop};
use super::history::{CallResult, Exchange, History, Reply};
use super::picture::{Pictures, Wish};
use super::place::{self, Region};

/// Answers in a row without anything that can be carried out, after which it is over.
pub(crate) const MOST_BLANK: u32 = 5;

/// Empty answers in a row that say that the task is done.
const EMPTY_IS_DONE: u32 = 2;

/// The most actions of one answer.
pub(crate) const MOST_ACTIONS: usize = 100;

/// The longest text of one message about what could not be read.
const MOST_MESSAGE: usize = 500;

const NOT_CARRIED_OUT: &str = "not carried out, since an earlier call of the same answer could not be read";
const EMPTY: &str = "Your answer was empty. Go on with the task, or say that it is done.";
const NO_CALL: &str = "Your answer had no call that could be read. Call a function, or `done` if the task is done.";
const CUT: &str = "Your answer was cut off at the limit of its length. Be shorter.";
const GO_ON: &str = "Go on.";

/// One turn of an agent, and what its loop made of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Turn {
    /// The answer.
    pub(crate) answer: Answer,
    /// What could not be read, and what the agent is told about it.
    pub(crate) unreadable: Vec<String>,
    /// Whether it is over since the model refused, or gave nothing that can be used.
    pub(crate) given_up: bool,
}

/// What an agent sees after its actions.
#[derive(Debug)]
pub(crate) struct Seen<'a> {
    /// The pictures that it [wished for](Conversation::wish).
    pub(crate) pictures: Pictures,
    /// What became of its actions.
    pub(crate) outcomes: &'a [ActionOutcome],
    /// What somebody else says to it.
    pub(crate) told: Option<&'a str>,
}

/// A call of the last answer, until it is known what became of it.
#[derive(Debug)]
struct Pending {
    result: CallResult,
    part: Option<Region>,
    /// Its actions, among those of the answer.
    actions: std::ops::Range<usize>,
}

/// A conversation with a model.
#[derive(Debug)]
pub(crate) struct Conversation {
    agent: ModelAgent,
    harness: Box<dyn Harness>,
    /// The size of its pictures; none where they are the screen's own.
    size: Option<ImageSize>,
    history: History,
    pending: Vec<Pending>,
    /// What the loop itself tells the model next.
    own_words: Vec<String>,
    blank: u32,
    empty: u32,
    /// Where the pointer was put last.
    pointer: Option<[i32; 2]>,
    /// Above how many tokens of context a summary is made.
    summarize_above: Option<u64>,
    summary_is_due: bool,
}

impl Conversation {
    /// Before the first observation.
    ///
    /// # Errors
    ///
    /// The agent's options hold something that is no option.
    pub(crate) fn new(agent: &ModelAgent, task: &str, screen: ImageSize) -> Result<Self, String> {
        let image = place::fit(screen, agent.image);
        Ok(Self {
            harness: harness::of(agent, task, screen)?,
            size: (image != screen).then_some(image),
            history: History::default(),
            pending: Vec::new(),
            own_words: Vec::new(),
            blank: 0,
            empty: 0,
            pointer: None,
            summarize_above: agent.summarize_above,
            summary_is_due: false,
            agent: agent.clone(),
        })
    }

    /// The pictures that it wants of the next screenshot.
    pub(crate) fn wish(&self) -> Wish {
        Wish { size: self.size, parts: self.pending.iter().filter_map(|pending| pending.part).collect() }
    }

    /// The safety checks of vendors that the next request acknowledges, in words.
    pub(crate) fn acknowledged(&self) -> Option<String> {
        let checks = self.pending.iter().flat_map(|pending| &pending.result.safety);
        let checks: Vec<String> = checks.map(safety_text).collect();
        (!checks.is_empty()).then(|| format!("acknowledged safety checks: {}", checks.join("; ")))
    }

    /// Takes note of what there is to see.
    pub(crate) fn observe(&mut self, seen: Seen<'_>) {
        let mut parts = seen.pictures.parts.into_iter();
        let mut results = Vec::new();
        for mut pending in self.pending.drain(..) {
            let outcomes = seen.outcomes.get(pending.actions).unwrap_or_default();
            let failed = outcomes.iter().find_map(|outcome| match outcome {
                ActionOutcome::Error(error) => Some(error.clone()),
                ActionOutcome::Done => None,
            });
            pending.result.error = pending.result.error.or(failed);
            if pending.part.is_some() {
                match parts.next().flatten() {
                    Some(part) => pending.result.part = Some(Some(part)),
                    None => pending.result.error = Some("that part of the screen cannot be shown".to_owned()),
                }
            }
            results.push(pending.result);
        }
        let mut told = std::mem::take(&mut self.own_words);
        told.extend(seen.told.map(str::to_owned));
        // What was not replied to, since no call was made, is said with what there is to see now.
        if let Some(mut last) = self.history.exchanges.pop_if(|last| last.reply.is_none()) {
            results.splice(0..0, last.results);
            last.told.append(&mut told);
            told = last.told;
        }
        let picture = Some(seen.pictures.whole);
        self.history.exchanges.push(Exchange { results, told, picture, reply: None });
        self.history.keep_pictures(self.agent.keep_images);
    }

    /// Asks for something else from the next observation on.
    pub(crate) fn ask_for(&mut self, goal: &str) {
        self.own_words.clear();
        self.own_words.push(goal.to_owned());
        self.history.goal = Some(goal.to_owned());
        (self.blank, self.empty) = (0, 0);
    }

    /// The call for a summary, if the conversation has become long. Its answer goes to
    /// [`Self::summarized`].
    pub(crate) fn summary_call(&self) -> Option<ModelCall> {
        self.summary_is_due.then(|| self.call(Ask::Summary))
    }

    /// Goes on from the summary that came; without a text in it, as before.
    pub(crate) fn summarized(&mut self, body: &Value) {
        self.summary_is_due = false;
        let reading = self.harness.read(body);
        match reading.text {
            Some(text) => self.history.go_on_from(text),
            // It is not asked again at every step.
            None => self.summarize_above = Some(reading.tokens.saturating_add(reading.tokens / 4)),
        }
    }

    /// The call for the next turn. Its answer goes to [`Self::take`].
    pub(crate) fn turn_call(&self) -> ModelCall {
        self.call(Ask::Turn)
    }

    fn call(&self, ask: Ask) -> ModelCall {
        ModelCall {
            endpoint: self.agent.endpoint.clone(),
            surface: self.harness.surface(),
            purpose: Purpose::Agent,
            model: self.agent.model.clone(),
            body: self.harness.body(&self.history, ask),
            headers: self.harness.headers(),
        }
    }

    /// Reads the model's turn out of a response.
    pub(crate) fn take(&mut self, body: &Value) -> Turn {
        let reading = self.harness.read(body);
        self.summary_is_due = self.summarize_above.is_some_and(|above| reading.tokens > above);
        let mut turn = Turn { answer: Answer { text: reading.text.clone(), ..Answer::default() }, ..Turn::default() };
        let has_calls = !reading.calls.is_empty();
        let (kept, stop) = (reading.kept.clone(), reading.stop.clone());
        self.take_calls(reading, &mut turn);
        if !turn.answer.done {
            self.take_words(&stop, has_calls, &mut turn);
        }
        let readable = !turn.answer.actions.is_empty();
        self.blank = if readable || turn.answer.done { 0 } else { self.blank + 1 };
        if self.blank >= MOST_BLANK {
            turn.answer.done = true;
            turn.given_up = true;
            turn.unreadable.push(format!("over: {MOST_BLANK} answers in a row asked for nothing that can be done"));
        }
        if let Some(last) = self.history.exchanges.last_mut() {
            last.reply = Some(Arc::new(Reply { kept, gist: gist(&turn.answer) }));
        }
        turn
    }

    fn take_calls(&mut self, reading: Reading, turn: &mut Turn) {
        let mut broken = false;
        for call in reading.calls {
            let start = turn.answer.actions.len();
            let mut result = CallResult { id: call.id, name: call.name, safety: call.safety, ..CallResult::default() };
            let mut part = None;
            match call.asked {
                _ if broken => result.error = Some(NOT_CARRIED_OUT.to_owned()),
                Ok(asked) if start + asked.actions.len() > MOST_ACTIONS => {
                    broken = true;
                    let error = format!("an answer has {MOST_ACTIONS} actions at most");
                    turn.unreadable.push(format!("{}: {error}", short(&result.name)));
                    result.error = Some(error);
                }
                Ok(asked) => {
                    part = asked.part;
                    self.take_asked(asked, &mut result, turn);
                }
                Err(error) => {
                    broken = true;
                    let error = short(&error);
                    turn.unreadable.push(format!("{}: {error}", short(&result.name)));
                    result.error = Some(error);
                }
            }
            self.pending.push(Pending { result, part, actions: start..turn.answer.actions.len() });
        }
    }

    fn take_asked(&mut self, asked: Asked, result: &mut CallResult, turn: &mut Turn) {
        for action in &asked.actions {
            self.pointer = target(action).or(self.pointer);
        }
        if asked.pointer {
            result.text = Some(match self.pointer {
                Some(point) => {
                    let [x, y] = self.harness.grid().place(point);
                    format!("X={x},Y={y}")
                }
                None => "the pointer was not moved yet".to_owned(),
            });
        }
        turn.answer.actions.extend(asked.actions);
        turn.answer.done |= asked.done;
        if let Some(said) = asked.said {
            let text = turn.answer.text.take().map_or_else(|| said.clone(), |text| format!("{text}\n{said}"));
            turn.answer.text = Some(text);
        }
    }

    /// What an answer means whose calls did not end it.
    fn take_words(&mut self, stop: &Stop, has_calls: bool, turn: &mut Turn) {
        let mut tell = |words: &str, turn: &mut Turn| {
            self.own_words.push(words.to_owned());
            turn.unreadable.push(words.to_owned());
        };
        let says_something = turn.answer.text.is_some();
        self.empty = if has_calls || says_something { 0 } else { self.empty + 1 };
        match stop {
            Stop::Refused(reason) => {
                turn.answer.done = true;
                turn.given_up = true;
                turn.unreadable.push(format!("refused: {}", short(reason)));
            }
            Stop::Cut => tell(CUT, turn),
            _ if has_calls => {}
            Stop::Paused => self.own_words.push(GO_ON.to_owned()),
            Stop::Whole if !self.harness.words_are_done() => tell(NO_CALL, turn),
            Stop::Whole if says_something || self.empty >= EMPTY_IS_DONE => {
                turn.answer.done = true;
                turn.given_up = !says_something;
            }
            Stop::Whole => tell(EMPTY, turn),
        }
    }
}

/// Where an action leaves the pointer, if it moves it.
fn target(action: &Value) -> Option<[i32; 2]> {
    let inputs = action::parse(action).ok()?;
    inputs.iter().rev().find_map(|input| match input {
        Input::Move(at) | Input::Click { at, .. } | Input::Drag { to: at, .. } => Some([at.x, at.y]),
        _ => None,
    })
}

/// An answer in short.
fn gist(answer: &Answer) -> String {
    let actions: Vec<String> = answer.actions.iter().map(Value::to_string).collect();
    let mut gist = answer.text.clone().unwrap_or_default();
    if !actions.is_empty() {
        gist = format!("{gist}\n[done here: {}]", actions.join(", "));
    }
    let gist = gist.trim();
    if gist.is_empty() { "[nothing]".to_owned() } else { gist.to_owned() }
}

fn safety_text(check: &Value) -> String {
    let texts = ["code", "message", "decision", "explanation"];
    let texts: Vec<&str> = texts.iter().filter_map(|name| check.get(*name)?.as_str()).collect();
    short(&if texts.is_empty() { check.to_string() } else { texts.join(": ") })
}

/// A text of somebody else's, cut.
fn short(text: &str) -> String {
    if text.len() <= MOST_MESSAGE {
        return text.to_owned();
    }
    format!("{}...", &text[..text.floor_char_boundary(MOST_MESSAGE)])
}

#[cfg(test)]
mod tests;
