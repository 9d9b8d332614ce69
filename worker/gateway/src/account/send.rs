//! One try: written down, sent, read, settled, written down again.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use longhaul_core::call::{CallRecord, Certainty};
use longhaul_core::digest::Digest;
use longhaul_core::money::Money;
use longhaul_core::price::{Rate, Service, Usage};
use longhaul_core::time::Millis;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Inner;
use super::drive::{Caller, Failure, Reply, Request, Said};
use super::money::Hold;
use super::pass::Passing;
use super::prepare::Prepared;
use crate::call::CallError;
use crate::endpoint::Place;
use crate::http::client::with_causes;
use crate::http::headers;
use crate::ports::{Reservation, ReserveError};
use crate::protocol::route;
use crate::protocol::{Report, Served, error_message};
use crate::retry::{Meaning, asked_wait, meaning, nothing_left};
use crate::skeleton::{Split, split};

/// A try that may be made.
#[derive(Debug)]
pub(super) struct Try<'a> {
    pub(super) request: &'a Request,
    pub(super) prepared: &'a Prepared,
    pub(super) hold: Hold,
    pub(super) place: Place,
    pub(super) retry_of: Option<u32>,
}

/// What became of a try.
#[derive(Debug)]
pub(super) enum TryEnd {
    /// Its answer was handed out.
    Answered,
    /// It may be made again.
    Failed {
        /// Its number, if it was written down.
        number: Option<u32>,
        failed: Failed,
    },
    /// No call may be made now, so it was not: it is still to be made.
    NotNow,
}

/// A failure in passing.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) meaning: Meaning,
    pub(super) message: String,
    /// How long the vendor asks to wait.
    pub(super) wait: Option<Duration>,
    /// Whether the vendor may have billed it.
    pub(super) billed: bool,
    pub(super) said: Option<Said>,
}

impl Failed {
    /// The end of it: nothing is tried any more.
    pub(super) fn into_failure(self, endpoint: &str) -> Failure {
        let error = CallError::Endpoint { endpoint: endpoint.to_owned(), message: self.message, down: false };
        Failure { error, said: self.said.map(Box::new) }
    }
}

/// A try that is under way.
#[derive(Debug)]
pub(super) struct Flying<'a> {
    pub(super) request: &'a Request,
    prepared: &'a Prepared,
    hold: Hold,
    place: Place,
    reservation: Reservation,
    started: Instant,
}

/// What came of a try, for its record.
#[derive(Debug, Default)]
pub(super) struct Came {
    pub(super) status: Option<u16>,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) report: Report,
    pub(super) error: Option<String>,
    /// Nothing was sent, or the vendor refused: nothing is billed.
    pub(super) free: bool,
}

impl Inner {
    /// Makes one try.
    pub(super) async fn send(&self, next: Try<'_>, caller: &mut Option<Caller>) -> Result<TryEnd, CallError> {
        let Try { request, prepared, hold, place, retry_of } = next;
        let plan = &request.plan;
        let last_address = self.book().addresses.get(&plan.name).cloned();
        let ready = self.headers(request).and_then(|headers| {
            let urls = self.shared.urls(plan)?;
            let address = request.endpoint.address(&urls, last_address.as_deref()).ok_or("it has no address")?;
            Ok((headers, address))
        });
        let (headers, mut address) = match ready {
            Ok(ready) => ready,
            // A person has to give us the key first, or a server has to come; then it goes on.
            Err(message) => {
                let failed = Failed { meaning: Meaning::Barred, message, wait: None, billed: false, said: None };
                return Ok(TryEnd::Failed { number: None, failed });
            }
        };
        let reservation = match self.reserve(request, prepared, hold.bound(), retry_of) {
            Ok(reservation) => reservation,
            Err(ReserveError::NotNow) => return Ok(TryEnd::NotNow),
            Err(ReserveError::Journal(error)) => return Err(error.into()),
        };
        let flying = Flying { request, prepared, hold, place, reservation, started: Instant::now() };
        let deadline = flying.started + plan.call_limit.to_std();
        let url = route::address(&address.url, &request.route, &request.model, request.stream, &request.query);
        let sent = self.shared.client.send(plan.relay, Method::POST, &url, headers, prepared.body.clone());
        let response = match self.within(deadline, sent).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                address.failed(true);
                let came = Came { error: Some(error.message), free: error.unsent, ..Came::default() };
                return self.no_answer(flying, came);
            }
            Err(cut) => return self.cut_off(flying, Came::default(), cut),
        };
        // One that answers, and cannot serve, would have the fewest calls in flight of all.
        let sick = response.status().is_server_error();
        address.failed(sick);
        if !sick {
            self.book().addresses.insert(plan.name.clone(), address.url.clone());
        }
        let streamed = request.stream && response.status().is_success() && is_stream(&response);
        if streamed {
            return self.pass(flying, response, deadline, caller).await;
        }
        self.whole(flying, response, deadline, caller).await
    }

    /// Gives a try its number and writes it down; from here on it counts.
    fn reserve(
        &self,
        request: &Request,
        prepared: &Prepared,
        bound: Money,
        retry_of: Option<u32>,
    ) -> Result<Reservation, ReserveError> {
        let Split { skeleton, parts } = &prepared.split;
        let mut book = self.book();
        let new_parts = book.new_of(parts);
        let reservation = Reservation {
            number: book.next,
            step: book.step,
            at: self.shared.config.clock.now(),
            purpose: request.purpose,
            endpoint: request.plan.name.clone(),
            model: request.model.clone(),
            bound,
            retry_of,
            request: skeleton.digest,
            parts: new_parts.iter().map(|blob| blob.digest).collect(),
        };
        let mut blobs = new_parts;
        blobs.extend(book.new_of([skeleton]));
        self.journal.reserved(&reservation, blobs)?;
        book.next += 1;
        book.numbers.push(reservation.number);
        book.stored(reservation.parts.iter().copied().chain([skeleton.digest]));
        Ok(reservation)
    }

    /// Waits for a vendor: not beyond the call's limit, and not beyond the attempt's end.
    pub(super) async fn within<T>(&self, deadline: Instant, what: impl Future<Output = T>) -> Result<T, Cut> {
        tokio::select! {
            biased;
            result = what => Ok(result),
            () = tokio::time::sleep_until(deadline) => Err(Cut::Late),
            () = self.over() => Err(Cut::Over),
        }
    }

    /// Reads an answer that comes whole, and hands it out.
    async fn whole(
        &self,
        flying: Flying<'_>,
        response: Response<Incoming>,
        deadline: Instant,
        caller: &mut Option<Caller>,
    ) -> Result<TryEnd, CallError> {
        let status = response.status().as_u16();
        let (parts, body) = response.into_parts();
        let mut came = Came { status: Some(status), headers: parts.headers, ..Came::default() };
        let mut whole = Vec::new();
        let read = self.within(deadline, self.read(body, &mut whole)).await;
        came.body = Bytes::from(whole);
        match read {
            Ok(Ok(())) => {}
            Ok(Err(message)) => {
                came.error = Some(format!("{BROKE_OFF}: {message}"));
                return self.no_answer(flying, came);
            }
            Err(cut) => return self.cut_off(flying, came, cut),
        }
        let value = serde_json::from_slice(&came.body).unwrap_or_default();
        came.report = Report::body(flying.request.route.surface, &value);
        came.report.head(&came.headers);
        let now = self.shared.config.clock.now();
        let meaning = meaning(status, &came.body);
        if meaning != Meaning::Success {
            came.free = true;
            came.error = Some(format!("status {status}: {}", error_message(&came.body)));
        }
        if let Some(wait) = nothing_left(&came.headers, now) {
            flying.request.endpoint.hold(wait, flying.request.limited());
        }
        let number = flying.reservation.number;
        let said = Said { status, headers: headers::incoming(&came.headers), body: came.body.clone() };
        match meaning {
            Meaning::Success | Meaning::Refused => {
                flying.request.endpoint.answered();
                let shortened_to = flying.prepared.shortened_to;
                self.settle(flying, came)?;
                let (sender, chunks) = mpsc::unbounded_channel();
                // The receiver is in the reply.
                let _ = sender.send(Ok(said.body));
                hand_out(caller, Reply { number, status, headers: said.headers, chunks, shortened_to });
                Ok(TryEnd::Answered)
            }
            Meaning::Busy | Meaning::Failing | Meaning::Barred => {
                let wait = asked_wait(&came.headers, &came.body, now);
                let message = came.error.clone().unwrap_or_default();
                self.settle(flying, came)?;
                let failed = Failed { meaning, message, wait, billed: false, said: Some(said) };
                Ok(TryEnd::Failed { number: Some(number), failed })
            }
        }
    }

    /// Reads a body to its end.
    async fn read(&self, mut body: Incoming, into: &mut Vec<u8>) -> Result<(), String> {
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| with_causes(&error))?;
            if let Some(data) = frame.data_ref() {
                if into.len() + data.len() > self.shared.config.max_response {
                    return Err(format!("it is larger than {} bytes", self.shared.config.max_response));
                }
                into.extend_from_slice(data);
            }
        }
        Ok(())
    }

    /// Passes an answer on as it comes.
    async fn pass(
        &self,
        flying: Flying<'_>,
        response: Response<Incoming>,
        deadline: Instant,
        caller: &mut Option<Caller>,
    ) -> Result<TryEnd, CallError> {
        flying.request.endpoint.answered();
        let number = flying.reservation.number;
        let (parts, mut body) = response.into_parts();
        let (sender, chunks) = mpsc::unbounded_channel();
        let reply = Reply {
            number,
            status: parts.status.as_u16(),
            headers: headers::incoming(&parts.headers),
            chunks,
            shortened_to: flying.prepared.shortened_to,
        };
        if let Some(wait) = nothing_left(&parts.headers, self.shared.config.clock.now()) {
            flying.request.endpoint.hold(wait, flying.request.limited());
        }
        let came = Came { status: Some(reply.status), headers: parts.headers, ..Came::default() };
        let hides_usage = flying.prepared.asked.usage_for_us;
        let mut passing = Passing::new(flying.request.route.surface, hides_usage, came);
        let mut flying = Some(flying);
        hand_out(caller, reply);
        // Whoever reads may go away at any time; we read on to the end.
        let ended = loop {
            let frame = match self.within(deadline, body.frame()).await {
                Ok(Some(Ok(frame))) => frame,
                Ok(Some(Err(error))) => break Err(format!("{BROKE_OFF}: {}", with_causes(&error))),
                Ok(None) => break Ok(()),
                Err(cut) => break Err(cut.message().to_owned()),
            };
            let Ok(data) = frame.into_data() else { continue };
            if passing.received() + data.len() > self.shared.config.max_response {
                break Err(format!("{BROKE_OFF}: it is larger than {} bytes", self.shared.config.max_response));
            }
            let out = passing.push(&data);
            // The end of an answer is handed out only when the call is settled.
            if passing.finished()
                && let Some(flying) = flying.take()
            {
                self.settle_streamed(flying, passing.came(), &sender)?;
            }
            if !out.is_empty() {
                let _ = sender.send(Ok(out));
            }
        };
        let rest = passing.rest();
        if let Some(flying) = flying.take() {
            let mut came = passing.came();
            came.error = ended.as_ref().err().cloned().or(came.error);
            self.settle_streamed(flying, came, &sender)?;
        }
        if !rest.is_empty() {
            let _ = sender.send(Ok(rest));
        }
        if let Err(message) = ended {
            let _ = sender.send(Err(message));
        }
        Ok(TryEnd::Answered)
    }

    /// Settles a try whose answer is on its way to the client: if that fails, the client must
    /// not take what it has for the whole answer.
    fn settle_streamed(
        &self,
        flying: Flying<'_>,
        came: Came,
        client: &mpsc::UnboundedSender<Result<Bytes, String>>,
    ) -> Result<(), CallError> {
        let settled = self.settle(flying, came);
        if let Err(error) = &settled {
            let _ = client.send(Err(error.to_string()));
        }
        settled
    }

    /// No answer came, or not all of it.
    fn no_answer(&self, flying: Flying<'_>, came: Came) -> Result<TryEnd, CallError> {
        let number = flying.reservation.number;
        let message = came.error.clone().unwrap_or_default();
        let billed = !came.free;
        self.settle(flying, came)?;
        let failed = Failed { meaning: Meaning::Failing, message, wait: None, billed, said: None };
        Ok(TryEnd::Failed { number: Some(number), failed })
    }

    /// We do not wait any longer.
    fn cut_off(&self, flying: Flying<'_>, mut came: Came, cut: Cut) -> Result<TryEnd, CallError> {
        came.error = Some(match cut {
            Cut::Late => format!("{} of {}", cut.message(), flying.request.plan.call_limit),
            Cut::Over => cut.message().to_owned(),
        });
        let end = self.no_answer(flying, came)?;
        match cut {
            Cut::Late => Ok(end),
            Cut::Over => Err(CallError::Closed),
        }
    }

    /// Settles a try by what came of it, and writes that down; only then is anything handed out.
    fn settle(&self, flying: Flying<'_>, came: Came) -> Result<(), CallError> {
        let Flying { request, prepared, hold, mut place, reservation, started } = flying;
        let took = Millis(u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX));
        let usage = came.report.usage.filter(|_| came.report.complete);
        let Priced { settled, certainty, unknown } = price_of(prepared, &came, usage, took, hold.bound());
        place.used(usage.map_or_else(|| prepared.guess(), |usage| usage.tokens()));
        let mut error = came.error.or_else(|| came.report.failed.clone()).or(unknown);
        if error.is_none() && certainty == Certainty::Unconfirmed {
            error = Some("the answer reports no usage".to_owned());
        }
        let response = (!came.body.is_empty()).then(|| split(&came.body));
        let mut book = self.book();
        let new_parts = response.as_ref().map(|split| book.new_of(&split.parts)).unwrap_or_default();
        let mut parts = reservation.parts;
        parts.extend(new_parts.iter().map(|blob| blob.digest));
        let record = CallRecord {
            number: reservation.number,
            step: reservation.step,
            at: reservation.at,
            took,
            purpose: reservation.purpose,
            endpoint: reservation.endpoint,
            model: reservation.model,
            model_reported: came.report.model.clone(),
            fingerprint: came.report.fingerprint.clone(),
            request_id: headers::request_id(&came.headers).or_else(|| came.report.id.clone()),
            retry_of: reservation.retry_of,
            status: came.status,
            error,
            reserved: hold.bound(),
            settled,
            certainty,
            usage,
            shortened_to: prepared.shortened_to,
            request: reservation.request,
            response: response.as_ref().map(|split| split.skeleton.digest),
            parts,
            service: came.report.tier.clone(),
        };
        let stored: Vec<Digest> = new_parts.iter().map(|blob| blob.digest).chain(record.response).collect();
        let mut blobs = new_parts;
        blobs.extend(response.as_ref().map(|split| book.new_of([&split.skeleton])).unwrap_or_default());
        let written = self.journal.settled(&record, blobs);
        // The money is spent whether that could be written down or not. A call whose end is not written down
        // is open there, and whoever finds it so settles it whole: here it comes to the same.
        let record = match &written {
            Ok(()) => record,
            Err(_) => CallRecord { settled: settled.max(hold.bound()), certainty: Certainty::Unconfirmed, ..record },
        };
        hold.settle(record.settled, record.certainty);
        book.settled(&record);
        written?;
        book.stored(stored);
        drop(book);
        tracing::debug!(
            call = record.number, endpoint = record.endpoint, model = record.model, status = record.status,
            settled = %record.settled, request = %request.route.version, "model call settled"
        );
        Ok(())
    }
}

/// Why we do not wait for a vendor any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// The call's limit is reached.
    Late,
    /// The attempt is over.
    Over,
}

impl Cut {
    const fn message(self) -> &'static str {
        match self {
            Self::Late => "the answer did not end within the call's limit",
            Self::Over => "the attempt ended before the answer",
        }
    }
}

/// How the error of an answer begins that came in part.
const BROKE_OFF: &str = "the answer broke off";

/// Whether an answer came in part, by the error in its record.
pub(super) fn is_broken_off(error: &str) -> bool {
    [BROKE_OFF, Cut::Late.message(), Cut::Over.message()].iter().any(|start| error.starts_with(start))
}

/// What a try cost.
#[derive(Debug)]
struct Priced {
    settled: Money,
    /// How sure that is.
    certainty: Certainty,
    /// What makes it unsure though its usage is known.
    unknown: Option<String>,
}

/// What a try cost, and how sure that is.
fn price_of(prepared: &Prepared, came: &Came, usage: Option<Usage>, took: Millis, bound: Money) -> Priced {
    let by_time = prepared.price.as_ref().is_some_and(|price| matches!(price.rate, Rate::Time { .. }));
    let whole = came.status.is_some() && came.error.is_none();
    match usage {
        Some(usage) => served(prepared, came, &usage, took, bound),
        // Time is known without the vendor's word, once the answer is there.
        None if by_time && whole => served(prepared, came, &Usage::default(), took, bound),
        None if came.free => Priced { settled: Money::ZERO, certainty: Certainty::Released, unknown: None },
        None => Priced { settled: bound, certainty: Certainty::Unconfirmed, unknown: None },
    }
}

/// What usage cost in the tier of service that the vendor names. Where the table does not know that
/// one, the usual price is the most of those that are cheaper; of one that is dearer, or of which
/// nobody here has heard, no less than what was reserved.
fn served(prepared: &Prepared, came: &Came, usage: &Usage, took: Millis, bound: Money) -> Priced {
    let Some(price) = &prepared.price else {
        return Priced { settled: Money::ZERO, certainty: Certainty::Reported, unknown: None };
    };
    let usual = price.cost(usage, took);
    let served = came.report.served(price);
    let (settled, sure) = match served {
        Served::Usual => (usual, true),
        Served::As(service) => match price.cost_as(Some(service), usage, took) {
            Some(cost) => (cost, true),
            None if service == Service::Priority => (usual.max(bound), false),
            None => (usual, true),
        },
        Served::Unknown if matches!(price.rate, Rate::Time { .. }) => (usual, true),
        Served::Unknown => (usual.max(bound), false),
    };
    let unknown = (!sure).then(|| {
        let tier = came.report.tier.as_deref().unwrap_or_default();
        format!("it was served as `{tier}`, for which the price table has no price")
    });
    let certainty = if sure { Certainty::Reported } else { Certainty::Unconfirmed };
    Priced { settled, certainty, unknown }
}

fn is_stream(response: &Response<Incoming>) -> bool {
    let kind = response.headers().get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    kind.is_none_or(|kind| kind.starts_with("text/event-stream"))
}

pub(super) fn hand_out(caller: &mut Option<Caller>, reply: Reply) {
    if let Some(caller) = caller.take() {
        // Nobody may be there any more.
        let _ = caller.send(Ok(reply));
    }
}
