//! Calls that an earlier attempt of the episode has made: answered from its record, in their
//! order, without a vendor and without money.
//!
//! A request is answered by the recorded call that asked the very same; where there is none (a
//! date in a prompt), by the next one of the same step, purpose, endpoint and model, which is
//! counted. What the client saw is what it sees again: a call that was tried several times is one,
//! with the end that it came to. A call whose answer the client had not seen when its attempt was
//! cut off, because none had come, is not among them: it is made.

use std::collections::VecDeque;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use longhaul_core::call::{CallRecord, Purpose, PurseKind};
use longhaul_core::digest::Digest;
use longhaul_core::money::Money;
use tokio::sync::mpsc;

use super::Inner;
use super::drive::{Failure, Reply, Request, Said};
use super::pass::Passing;
use super::prepare::Prepared;
use super::send::{Came, is_broken_off};
use crate::call::CallError;
use crate::retry::{Meaning, meaning};

/// A call of an earlier attempt.
#[derive(Clone, Debug)]
pub struct PastCall {
    /// Which attempt made it, in the order of the attempts.
    pub attempt: u32,
    /// The number after that of the last step that is kept of that attempt.
    pub end: u32,
    /// Its record.
    pub record: CallRecord,
    /// Its response, as far as it came.
    pub body: Bytes,
}

/// What became of calls while they were answered from the record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// How many were answered so.
    pub answered: u32,
    /// How many of those had been asked in other words.
    pub differing: u32,
    /// What was asked for that the record does not hold, if anything was.
    pub missing: Option<String>,
}

/// A recorded call, as its client saw it.
#[derive(Clone, Debug)]
struct Answer {
    record: CallRecord,
    body: Bytes,
    /// What all its tries used.
    tokens: u64,
    /// What they cost.
    cost: Money,
}

/// The calls that are still to be answered.
#[derive(Debug, Default)]
pub(super) struct Record {
    waiting: VecDeque<Answer>,
    /// The steps and the costs of those that nobody had an answer of, and that are made again.
    unseen: Vec<(u32, Money)>,
    /// The number of the first step that is not recorded.
    live_from: u32,
    /// The tokens of all recorded calls, and of those that were answered.
    all: u64,
    used: u64,
    replayed: Replayed,
}

/// What a request is looked for by.
#[derive(Clone, Copy, Debug)]
struct Asked<'a> {
    step: u32,
    purpose: Purpose,
    endpoint: &'a str,
    model: &'a str,
    request: Digest,
}

impl Record {
    /// Of the calls of all earlier attempts, in their order.
    pub(super) fn new(calls: Vec<PastCall>, live_from: u32) -> Self {
        let tokens = |record: &CallRecord| match record.purpose {
            Purpose::Agent | Purpose::Audit => record.usage.map_or(0, |usage| usage.tokens()),
            Purpose::Judge => 0,
        };
        let all = calls.iter().map(|call| tokens(&call.record)).sum();
        let mut tries: Vec<(PastCall, u64, Money)> = Vec::with_capacity(calls.len());
        for call in calls.into_iter().filter(|call| call.record.purpose != Purpose::Judge) {
            let (own, cost) = (tokens(&call.record), call.record.settled);
            let before = call.record.retry_of.and_then(|of| {
                tries.iter().rposition(|(other, ..)| other.attempt == call.attempt && other.record.number == of)
            });
            // A try that was made again was not seen by whoever waited for the answer.
            let (tokens, paid) = before.map_or((0, Money::ZERO), |at| {
                let (_, tokens, paid) = tries.remove(at);
                (tokens, paid)
            });
            tries.push((call, own + tokens, cost.saturating_add(paid)));
        }
        let (answered, unseen): (Vec<_>, Vec<_>) = tries.into_iter().partition(|(call, ..)| was_seen(call));
        let waiting = answered
            .into_iter()
            .map(|(call, tokens, cost)| Answer { record: call.record, body: call.body, tokens, cost })
            .collect();
        let unseen = unseen.into_iter().map(|(call, _, cost)| (call.record.step, cost)).collect();
        Self { waiting, unseen, live_from, all, used: 0, replayed: Replayed::default() }
    }

    /// The answer to a request: none, if it is to be made.
    fn take(&mut self, asked: Asked<'_>) -> Result<Option<Answer>, CallError> {
        if asked.step > self.live_from {
            self.waiting.clear();
        }
        if asked.purpose == Purpose::Judge || (self.waiting.is_empty() && asked.step >= self.live_from) {
            return Ok(None);
        }
        let alike = |record: &CallRecord| {
            record.purpose == asked.purpose && record.endpoint == asked.endpoint && record.model == asked.model
        };
        let same =
            self.waiting.iter().position(|answer| answer.record.request == asked.request && alike(&answer.record));
        let next = || self.waiting.iter().position(|answer| answer.record.step == asked.step && alike(&answer.record));
        let Some(answer) = same.or_else(next).and_then(|at| self.waiting.remove(at)) else {
            if asked.step >= self.live_from {
                return Ok(None);
            }
            let Asked { step, model, endpoint, .. } = asked;
            let missing = format!("a call of {model} at {endpoint} for step {step}, where the record has no such call");
            self.replayed.missing.get_or_insert(missing);
            return Err(CallError::NotRecorded { step });
        };
        self.replayed.answered += 1;
        self.replayed.differing += u32::from(same.is_none());
        self.used += answer.tokens;
        Ok(Some(answer))
    }

    /// The tokens of what was answered from the record.
    pub(super) const fn tokens(&self) -> u64 {
        self.used
    }

    /// From here on all of it is used, also what nobody asked for again.
    pub(super) const fn all_is_used(&mut self) {
        self.used = self.all;
    }

    /// What was paid in the steps after this one for what nobody has asked for again, each once.
    pub(super) fn left_after(&mut self, step: u32) -> Money {
        let waiting = self.waiting.iter_mut().filter(|answer| answer.record.step > step);
        let unseen = self.unseen.iter_mut().filter(|(of, _)| *of > step);
        let costs = waiting.map(|answer| &mut answer.cost).chain(unseen.map(|(_, cost)| cost));
        costs.map(std::mem::take).fold(Money::ZERO, Money::saturating_add)
    }

    pub(super) fn replayed(&self) -> Replayed {
        self.replayed.clone()
    }
}

/// Whether somebody saw how the call ended, or can be told now: what was cut off with its attempt
/// before an answer was there is made again.
fn was_seen(call: &PastCall) -> bool {
    let record = &call.record;
    if record.step < call.end {
        return true;
    }
    let ended = record.status.map(|status| meaning(status, &call.body));
    matches!(ended, Some(Meaning::Success | Meaning::Refused))
        && record.response.is_some()
        && !record.error.as_deref().is_some_and(is_broken_off)
}

impl Inner {
    /// Whether there is a record to be followed.
    pub(super) fn follows(&self) -> bool {
        self.record().live_from > 0
    }

    /// The answer to a request out of the record, if it is one of an earlier attempt.
    pub(super) fn recorded(&self, request: &Request, prepared: &Prepared) -> Result<Option<Reply>, Failure> {
        let step = self.book().step;
        let asked = Asked {
            step,
            purpose: request.purpose,
            endpoint: &request.plan.name,
            model: &request.model,
            request: prepared.split.skeleton.digest,
        };
        let Some(answer) = self.record().take(asked)? else { return Ok(None) };
        tracing::debug!(call = answer.record.number, step, "model call answered from the record");
        // A round has spent what is gone on from.
        self.till(PurseKind::Episode).was_spent(answer.cost);
        again(request, prepared, answer).map(Some)
    }
}

/// What the client saw of it.
fn again(request: &Request, prepared: &Prepared, answer: Answer) -> Result<Reply, Failure> {
    let Answer { record, body, .. } = answer;
    let message = || record.error.clone().unwrap_or_else(|| "no answer came".to_owned());
    let broken = record.error.as_deref().filter(|error| is_broken_off(error));
    let meaning = record.status.map(|status| (status, meaning(status, &body)));
    let (status, streamed) = match meaning {
        Some((status, Meaning::Success)) => (status, request.stream && is_stream(&body)),
        Some((status, Meaning::Refused)) => (status, false),
        _ => (record.status.unwrap_or_default(), false),
    };
    let seen = matches!(meaning, Some((_, Meaning::Success | Meaning::Refused)));
    if !seen || (broken.is_some() && !streamed) {
        let error = CallError::Endpoint { endpoint: request.plan.name.clone(), message: message(), down: false };
        let said = record.status.filter(|_| !seen).map(|status| Said { status, headers: kind(false), body });
        return Err(Failure { error, said: said.map(Box::new) });
    }
    let (sender, chunks) = mpsc::unbounded_channel();
    // The receiver is in the reply: nothing of this can fail.
    if streamed {
        let mut passing = Passing::new(request.route.surface, prepared.asked.usage_for_us, Came::default());
        let seen = passing.push(&body);
        let rest = passing.rest();
        for piece in [seen, rest].into_iter().filter(|piece| !piece.is_empty()) {
            let _ = sender.send(Ok(piece));
        }
    } else {
        let _ = sender.send(Ok(body));
    }
    if let Some(message) = broken {
        let _ = sender.send(Err(message.to_owned()));
    }
    let (number, shortened_to) = (record.number, record.shortened_to);
    Ok(Reply { number, status, headers: kind(streamed), chunks, shortened_to })
}

/// A recorded body does not say how it was framed: events are no JSON.
fn is_stream(body: &Bytes) -> bool {
    let first = body.iter().find(|byte| !byte.is_ascii_whitespace());
    first.is_none_or(|first| !matches!(first, b'{' | b'['))
}

fn kind(streamed: bool) -> HeaderMap {
    let kind = if streamed { "text/event-stream" } else { "application/json" };
    HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(kind))])
}

#[cfg(test)]
mod tests {
    use longhaul_core::call::Certainty;
    use longhaul_core::money::Money;
    use longhaul_core::price::Usage;
    use longhaul_core::time::{Millis, Timestamp};

    use super::*;

    fn digest(name: &str) -> Digest {
        Digest::of(name.as_bytes())
    }

    /// A call of the first attempt, which has ten steps.
    fn call(number: u32, step: u32, request: &str) -> PastCall {
        let record = CallRecord {
            number,
            step,
            at: Timestamp(1),
            took: Millis(1),
            purpose: Purpose::Agent,
            endpoint: "e".to_owned(),
            model: "m".to_owned(),
            model_reported: None,
            fingerprint: None,
            request_id: None,
            retry_of: None,
            status: Some(200),
            error: None,
            reserved: Money::ZERO,
            settled: Money::ZERO,
            certainty: Certainty::Reported,
            usage: Some(Usage { input: 10, output: 1, ..Usage::default() }),
            shortened_to: None,
            request: digest(request),
            response: Some(digest("answer")),
            parts: Vec::new(),
            service: None,
        };
        PastCall { attempt: 0, end: 10, record, body: Bytes::from_static(b"{}") }
    }

    fn failed(mut call: PastCall, status: Option<u16>, error: &str) -> PastCall {
        call.record.status = status;
        call.record.error = Some(error.to_owned());
        call.record.usage = None;
        call.body = Bytes::new();
        call.record.response = None;
        call
    }

    fn ask(record: &mut Record, step: u32, request: &str) -> Result<Option<u32>, CallError> {
        let asked = Asked { step, purpose: Purpose::Agent, endpoint: "e", model: "m", request: digest(request) };
        record.take(asked).map(|answer| answer.map(|answer| answer.record.number))
    }

    #[test]
    fn requests_find_their_own_answers_in_whatever_order_they_are_made() {
        let mut record = Record::new(vec![call(0, 1, "a"), call(1, 1, "b"), call(2, 2, "a")], 3);
        assert_eq!(ask(&mut record, 1, "b").unwrap(), Some(1));
        assert_eq!(ask(&mut record, 1, "a").unwrap(), Some(0));
        assert_eq!(ask(&mut record, 2, "a").unwrap(), Some(2));
        assert_eq!(ask(&mut record, 3, "a").unwrap(), None, "life");
        assert_eq!(record.replayed(), Replayed { answered: 3, differing: 0, missing: None });
        assert_eq!(record.tokens(), 33);
    }

    #[test]
    fn a_request_in_other_words_is_answered_in_its_step_alone_and_counted() {
        let mut record = Record::new(vec![call(0, 1, "monday"), call(1, 2, "x")], 3);
        assert_eq!(ask(&mut record, 1, "tuesday").unwrap(), Some(0));
        assert!(ask(&mut record, 1, "once more").is_err(), "what follows was not asked in this step");
        let replayed = record.replayed();
        assert_eq!((replayed.answered, replayed.differing), (1, 1));
        assert!(replayed.missing.unwrap().contains("step 1"));
    }

    #[test]
    fn tries_of_one_call_are_one_answer_and_count_whole() {
        let mut again = call(1, 1, "a");
        again.record.retry_of = Some(0);
        let mut record = Record::new(vec![failed(call(0, 1, "a"), Some(503), "status 503"), again], 2);
        assert_eq!(ask(&mut record, 1, "a").unwrap(), Some(1));
        assert!(ask(&mut record, 1, "a").is_err());
    }

    #[test]
    fn what_was_in_flight_at_the_kill_is_made_and_what_was_answered_is_not() {
        let nobody = || failed(call(2, 10, "c"), None, "whoever made the call ended before an answer was recorded");
        let mut record = Record::new(vec![call(0, 9, "a"), call(1, 10, "b"), nobody()], 10);
        assert_eq!(ask(&mut record, 9, "a").unwrap(), Some(0));
        assert_eq!(ask(&mut record, 10, "b").unwrap(), Some(1), "paid and recorded, though its step is not");
        assert_eq!(ask(&mut record, 10, "c").unwrap(), None);
        // The same of an attempt in the middle of the chain: the one after it has made it.
        let second = |call: PastCall| PastCall { attempt: 1, end: 20, ..call };
        let mut record = Record::new(vec![nobody(), second(call(0, 10, "c"))], 20);
        assert_eq!(ask(&mut record, 10, "c").unwrap(), Some(0));
        assert!(ask(&mut record, 10, "c").is_err());
        // A failure that its client saw is seen again.
        let mut record = Record::new(vec![failed(call(0, 4, "a"), None, "connection refused")], 10);
        assert_eq!(ask(&mut record, 4, "a").unwrap(), Some(0));
    }

    #[test]
    fn what_was_paid_in_a_round_and_is_not_asked_for_again_is_known_once() {
        let paid = |mut call: PastCall, nanos: u64| {
            call.record.settled = Money::from_nanos(nanos);
            call
        };
        let nobody = failed(call(3, 10, "c"), None, "no answer came");
        let calls = [(call(0, 2, "a"), 1), (call(1, 9, "b"), 20), (call(2, 10, "d"), 300), (nobody, 4_000)];
        let mut record = Record::new(calls.map(|(call, nanos)| paid(call, nanos)).into(), 10);
        assert_eq!(ask(&mut record, 9, "b").unwrap(), Some(1));
        assert_eq!(record.left_after(2), Money::from_nanos(4_300));
        assert_eq!(record.left_after(0), Money::from_nanos(1));
        let asked = Asked { step: 10, purpose: Purpose::Agent, endpoint: "e", model: "m", request: digest("d") };
        let answer = record.take(asked).unwrap().unwrap();
        assert_eq!((answer.record.number, answer.cost), (2, Money::ZERO));
    }

    #[test]
    fn in_life_nothing_is_answered_from_what_was_left_over() {
        let mut record = Record::new(vec![call(0, 1, "a"), call(1, 2, "b")], 2);
        assert_eq!(ask(&mut record, 2, "other").unwrap(), Some(1));
        assert_eq!(ask(&mut record, 2, "other").unwrap(), None);
        assert_eq!(ask(&mut record, 3, "a").unwrap(), None);
        record.all_is_used();
        assert_eq!(record.tokens(), 22);
        let mut judged = call(0, 1, "j");
        judged.record.purpose = Purpose::Judge;
        let mut record = Record::new(vec![judged], 2);
        let asked = Asked { step: 1, purpose: Purpose::Judge, endpoint: "e", model: "m", request: digest("j") };
        assert!(record.take(asked).unwrap().is_none(), "a judge looks again");
        record.all_is_used();
        assert_eq!(record.tokens(), 0);
    }
}
