//! The life of a call: wait until it may be made, make it, and make it again if that helps.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method};
use longhaul_core::call::{Purpose, PurseKind};
use longhaul_core::endpoint::EndpointPlan;
use rand::Rng as _;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::Inner;
use super::money::{Hold, NoMoney};
use super::prepare::Prepared;
use super::send::{Failed, Try, TryEnd, hand_out};
use crate::aside::aside;
use crate::call::CallError;
use crate::endpoint::{Endpoint, Load, Turn};
use crate::http::headers;
use crate::pause::Served;
use crate::ports::Refused;
use crate::protocol::route::{self, CallRoute};
use crate::retry::{Meaning, backoff};

/// How long an endpoint may take to show that it is there.
const PROBE_LIMIT: Duration = Duration::from_secs(20);

/// A call to make, from whichever side it came.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) plan: EndpointPlan,
    pub(crate) route: CallRoute,
    pub(crate) stream: bool,
    pub(crate) model: String,
    pub(crate) purpose: Purpose,
    pub(crate) body: Bytes,
    pub(crate) headers: HeaderMap,
    pub(crate) query: String,
}

impl Request {
    /// The name of the limits that its model has beside those of its endpoint.
    pub(crate) fn limited(&self) -> Option<&str> {
        self.plan.limits_of(&self.model).map(|limits| limits.model.as_str())
    }
}

/// An answer, or a vendor's refusal: its body comes in pieces, which end with why it broke off
/// if it did.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) number: u32,
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) chunks: mpsc::UnboundedReceiver<Result<Bytes, String>>,
    pub(crate) shortened_to: Option<u64>,
}

/// Why there is no answer, with the vendor's last words if there are any.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: CallError,
    pub(crate) said: Option<Box<Said>>,
}

/// A vendor's own words.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        Self { error, said: None }
    }
}

/// To whom the answer goes.
pub(super) type Caller = oneshot::Sender<Result<Reply, Failure>>;

impl Inner {
    /// Makes a call in a task of its own: whoever waits for it may go away, and what was sent is
    /// read to its end. `value` is the request's body as it was read.
    pub(crate) async fn start(self: &Arc<Self>, request: Request, value: Value) -> Result<Reply, Failure> {
        let (caller, answer) = oneshot::channel();
        let flight = Flight::new(self);
        let inner = Arc::clone(self);
        let request = Arc::new(request);
        tokio::spawn(async move {
            let mut caller = Some(caller);
            let ended = inner.drive(&request, value, &mut caller).await;
            if let (Err(failure), Some(caller)) = (ended, caller) {
                // Nobody may be there any more.
                let _ = caller.send(Err(failure));
            }
            drop(flight);
        });
        answer.await.unwrap_or_else(|_| Err(CallError::Closed.into()))
    }

    async fn drive(
        self: &Arc<Self>,
        request: &Arc<Request>,
        value: Value,
        caller: &mut Option<Caller>,
    ) -> Result<(), Failure> {
        let served = self.pauses.begin();
        let prepare = {
            let (inner, request) = (Arc::clone(self), Arc::clone(request));
            // The value ends here: it may be megabytes, and the call may wait for hours.
            move || Prepared::new(&inner, &request, &value)
        };
        let mut prepared = aside(request.body.len(), prepare).await?;
        if let Some(reply) = self.recorded_reply(request, &prepared, &served, caller).await? {
            hand_out(caller, reply);
            return Ok(());
        }
        let began = Instant::now();
        // Tries since the endpoint was last seen to be up, and tries that may have been billed.
        let (mut tries, mut billed) = (0, 0);
        let mut retry_of = None;
        loop {
            self.tokens_left(request.purpose)?;
            self.counted(&served, caller, self.journal.ready()).await?;
            let turn = self.waits(caller, self.until_up(request, &served)).await??;
            let hold = self.money(request, &mut prepared, &served, caller).await?;
            let load = Load {
                account: self.id,
                tokens: prepared.guess(),
                model: request.limited().map(Into::into),
                probe: turn.is_some(),
            };
            let place = self.counted(&served, caller, request.endpoint.enter(load)).await?;
            // The endpoint went down meanwhile: the money is free until it is up again.
            let Some(place) = place else { continue };
            let next = Try { request, prepared: &prepared, hold, place, retry_of };
            let (number, failed) = match self.send(next, caller).await? {
                TryEnd::Answered => return Ok(()),
                TryEnd::Failed { number, failed } => (number, failed),
                // What was waited for took longer than the right to call: both are waited for anew.
                TryEnd::NotNow => continue,
            };
            retry_of = number.or(retry_of);
            tries = if turn.is_some() { 0 } else { tries + 1 };
            billed += u32::from(failed.billed);
            let last = tries > request.plan.retries || billed > request.plan.retries;
            let wait = self.after(request, &failed, tries, last, began);
            drop(turn);
            let down = request.endpoint.down().is_some();
            if billed > request.plan.retries || (last && !down) {
                return Err(failed.into_failure(&request.plan.name));
            }
            if down {
                tries = 0;
            } else {
                let _waits = served.wait();
                self.waits(caller, tokio::time::sleep(wait)).await?;
            }
        }
    }

    /// What an earlier attempt was answered; not without the right to call, though nothing is called.
    async fn recorded_reply(
        &self,
        request: &Request,
        prepared: &Prepared,
        served: &Served,
        caller: &mut Option<Caller>,
    ) -> Result<Option<Reply>, Failure> {
        if !self.follows() {
            return Ok(None);
        }
        self.tokens_left(request.purpose)?;
        self.counted(served, caller, self.journal.ready()).await?;
        self.recorded(request, prepared)
    }

    /// What a failed try says of its endpoint, and how long to wait before the next one.
    fn after(&self, request: &Request, failed: &Failed, tries: u32, last: bool, began: Instant) -> Duration {
        let config = &self.shared.config;
        let chance = self.shared.chance().random::<f64>();
        let own = backoff(config.backoff, config.backoff_most, tries.max(1), chance);
        let wait = failed.wait.map_or(own, |asked| asked.max(own.min(asked + config.backoff)));
        match failed.meaning {
            Meaning::Busy => {
                request.endpoint.answered();
                request.endpoint.hold(wait, request.limited());
            }
            Meaning::Barred => request.endpoint.barred(&failed.message),
            Meaning::Failing => request.endpoint.failed(&failed.message, last, began),
            Meaning::Success | Meaning::Refused => {}
        }
        wait
    }

    /// An episode's tokens are its agent's: a judge comes after it, and has a budget of its own.
    fn tokens_left(&self, purpose: Purpose) -> Result<(), CallError> {
        if purpose.purse() == PurseKind::Judge {
            return Ok(());
        }
        let used = self.tokens();
        match self.max_tokens {
            Some(most) if used >= most => Err(CallError::Tokens { used, most }),
            _ => Ok(()),
        }
    }

    /// Waits for something before the call is made; not longer than anybody wants the answer.
    async fn waits<T>(&self, caller: &mut Option<Caller>, what: impl Future<Output = T>) -> Result<T, CallError> {
        if !self.is_open() {
            return Err(CallError::Closed);
        }
        let gone = async {
            match caller {
                Some(caller) => caller.closed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            result = what => Ok(result),
            () = gone => Err(CallError::Closed),
            () = self.closing() => Err(CallError::Closed),
        }
    }

    /// Waits so for what is there at once in the common case: then nothing is counted as a wait.
    async fn counted<T>(
        &self,
        served: &Served,
        caller: &mut Option<Caller>,
        what: impl Future<Output = T>,
    ) -> Result<T, CallError> {
        tokio::pin!(what);
        if let std::task::Poll::Ready(result) = poll_once(what.as_mut()).await {
            return Ok(result);
        }
        let _waits = served.wait();
        self.waits(caller, what).await
    }

    /// Waits until the endpoint is up, or until it is our turn to try it and it shows itself.
    async fn until_up(&self, request: &Request, served: &Served) -> Result<Option<Turn>, CallError> {
        let endpoint = &request.endpoint;
        if endpoint.down().is_none() {
            return Ok(None);
        }
        let _waits = served.wait();
        loop {
            let Some((since, why)) = endpoint.down() else { return Ok(None) };
            let left = self.shared.config.down_limit.saturating_sub(since);
            let Ok(turn) = tokio::time::timeout(left, endpoint.ready()).await else {
                return Err(CallError::Endpoint { endpoint: request.plan.name.clone(), message: why, down: true });
            };
            let Some(turn) = turn else { return Ok(None) };
            match self.probe(request).await {
                Ok(()) => return Ok(Some(turn)),
                Err(why) => endpoint.failed(&why, false, Instant::now()),
            }
        }
    }

    /// Asks for what costs nothing: whether the endpoint is there and takes our key.
    async fn probe(&self, request: &Request) -> Result<(), String> {
        let plan = &request.plan;
        let headers = self.headers(request)?;
        let urls = self.shared.urls(plan)?;
        let mut address = request.endpoint.address(&urls, None).ok_or("it has no address")?;
        let url = route::probe(&address.url, plan.protocol);
        let sent = self.shared.client.send(plan.relay, Method::GET, &url, headers, Bytes::new());
        let answer = match tokio::time::timeout(PROBE_LIMIT, sent).await {
            Err(_) => Err(format!("no answer within {} seconds", PROBE_LIMIT.as_secs())),
            Ok(Err(error)) => Err(error.message),
            Ok(Ok(answer)) => match answer.status().as_u16() {
                401 => Err("the vendor refuses the key (401)".to_owned()),
                status @ 500.. => Err(format!("status {status}")),
                _ => Ok(()),
            },
        };
        address.failed(answer.is_err());
        answer
    }

    /// The headers of a call, with the vendor's key.
    pub(super) fn headers(&self, request: &Request) -> Result<HeaderMap, String> {
        let secret = match &request.plan.secret {
            None => None,
            Some(name) => {
                let secret = self.shared.secrets.get(name);
                Some(secret.ok_or_else(|| format!("its key `{name}` is not known to this worker"))?)
            }
        };
        headers::outgoing(&request.headers, request.plan.protocol, secret.as_ref())
    }

    /// Reserves the bound of the next try, of a shorter answer if that is allowed and needed.
    async fn money(
        &self,
        request: &Request,
        prepared: &mut Prepared,
        served: &Served,
        caller: &mut Option<Caller>,
    ) -> Result<Hold, CallError> {
        let till = self.till(request.purpose.purse());
        let bound = prepared.bound(request);
        if let Some(hold) = till.reserve_now(bound) {
            return Ok(hold);
        }
        let _waits = served.wait();
        loop {
            let bound = prepared.bound(request);
            match self.waits(caller, till.reserve(bound)).await? {
                Ok(hold) => return Ok(hold),
                Err(none) => match prepared.half().filter(|_| self.plan.shorten && self.capped) {
                    Some(half) if prepared.price.is_some() => prepared.shorten(half)?,
                    _ => return Err(self.refused(none)),
                },
            }
        }
    }

    /// A call is refused for want of money.
    fn refused(&self, none: NoMoney) -> CallError {
        match none {
            NoMoney::Refused(Refused { scope }) => {
                self.book().spent = Some(scope.clone());
                CallError::Budget { scope }
            }
            NoMoney::Round { scope } => {
                self.book().round_spent = true;
                CallError::Round { scope }
            }
        }
    }
}

/// Polls a future once.
async fn poll_once<F: Future>(mut future: std::pin::Pin<&mut F>) -> std::task::Poll<F::Output> {
    std::future::poll_fn(|context| std::task::Poll::Ready(future.as_mut().poll(context))).await
}

/// Counts a call from its start to its end, however it ends.
struct Flight(Arc<Inner>);

impl Flight {
    fn new(inner: &Arc<Inner>) -> Self {
        inner.book().flying += 1;
        Self(Arc::clone(inner))
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.0.book().flying -= 1;
        self.0.landed.notify_waiters();
    }
}
