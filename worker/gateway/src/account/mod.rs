//! An attempt's account: its money, its calls, its clock.

mod book;
mod drive;
pub(crate) mod money;
mod pass;
mod prepare;
mod replay;
mod send;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use longhaul_core::call::{CallTotals, PurseKind};
use longhaul_core::endpoint::{EndpointPlan, GatewayPlan};
use longhaul_core::money::Money;
use longhaul_core::purse::PurseState;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::call::{CallError, ModelAnswer, ModelCall};
use crate::config::GatewayError;
use crate::gateway::Shared;
use crate::http::server;
use crate::pause::Pauses;
use crate::ports::{Bank, Journal};
use crate::protocol::route::CallRoute;
use crate::protocol::{Surface, error_message};
use book::Book;
pub(crate) use drive::{Failure, Reply, Request, Said};
use money::Till;
use replay::Record;
pub use replay::{PastCall, Replayed};

/// What an attempt's account is opened with.
#[derive(Debug)]
pub struct Opening {
    /// The endpoints and prices.
    pub plan: Arc<GatewayPlan>,
    /// The endpoints, by name, that may be called over HTTP; our own calls may use every one.
    pub allowed: Vec<String>,
    /// Whether some cap on dollars holds: then what cannot be priced and bounded is refused.
    /// Where that is not known, it does.
    pub capped: bool,
    /// Where money comes from.
    pub bank: Arc<dyn Bank>,
    /// Where calls are written down.
    pub journal: Arc<dyn Journal>,
    /// The most tokens of all its calls.
    pub max_tokens: Option<u64>,
    /// What an HTTP client shows as its key.
    pub token: String,
}

/// The account of one attempt. Dropping it revokes its token.
#[derive(Debug)]
pub struct Account {
    inner: Arc<Inner>,
    keepers: Vec<JoinHandle<()>>,
}

/// How far the attempt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Calls are made.
    Open,
    /// No further call; those in flight come to their end.
    Closing,
    /// What is in flight is given up.
    Over,
}

/// What the account, its server and its calls share.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
    /// Tells accounts apart where they share an endpoint.
    pub(crate) id: u64,
    pub(crate) plan: Arc<GatewayPlan>,
    pub(crate) allowed: Vec<String>,
    capped: bool,
    journal: Arc<dyn Journal>,
    max_tokens: Option<u64>,
    /// The digest of the token: comparing digests takes the same time whatever is shown.
    token: Option<blake3::Hash>,
    tills: [Arc<Till>; 2],
    book: Mutex<Book>,
    /// What earlier attempts of the episode have asked, while it is followed.
    record: Mutex<Record>,
    pauses: Pauses,
    phase: watch::Sender<Phase>,
    /// A call has come to its end.
    landed: Notify,
}

impl Account {
    pub(crate) fn new(shared: Arc<Shared>, id: u64, opening: Opening) -> Self {
        let till = |kind: PurseKind| Arc::new(Till::new(kind, Arc::clone(&opening.bank)));
        let tills = [till(PurseKind::Episode), till(PurseKind::Judge)];
        let idle_after = shared.config.idle_after;
        let keepers = tills.iter().map(|till| {
            let till = Arc::clone(till);
            tokio::spawn(async move { till.keep(idle_after).await })
        });
        let keepers = keepers.collect();
        let inner = Inner {
            shared,
            id,
            capped: opening.capped,
            journal: opening.journal,
            max_tokens: opening.max_tokens,
            token: (!opening.token.is_empty()).then(|| blake3::hash(opening.token.as_bytes())),
            tills,
            book: Mutex::default(),
            record: Mutex::default(),
            pauses: Pauses::default(),
            phase: watch::Sender::new(Phase::Open),
            landed: Notify::new(),
            plan: opening.plan,
            allowed: opening.allowed,
        };
        Self { inner: Arc::new(inner), keepers }
    }

    /// Makes a call, and waits for money, shares and endpoints as long as that takes. Dropping
    /// the future does not undo a call that was sent: it is read to its end and settled.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn call(&self, call: ModelCall) -> Result<ModelAnswer, CallError> {
        let (request, value) = self.inner.own_request(call)?;
        let endpoint = request.plan.name.clone();
        let Reply { number, status, mut chunks, shortened_to, .. } =
            self.inner.start(request, value).await.map_err(|failure| failure.error)?;
        let mut body = Vec::new();
        while let Some(chunk) = chunks.recv().await {
            let broken = |message| CallError::Endpoint { endpoint: endpoint.clone(), message, down: false };
            body.extend_from_slice(&chunk.map_err(broken)?);
        }
        if !(200..300).contains(&status) {
            return Err(CallError::Rejected { status, body: error_message(&body) });
        }
        let body = serde_json::from_slice(&body).map_err(|error| CallError::Endpoint {
            endpoint,
            message: format!("the answer is no JSON: {error}"),
            down: false,
        })?;
        Ok(ModelAnswer { number, body, shortened_to })
    }

    /// Serves the vendors' HTTP protocols on a unix socket, until the account is closed or the
    /// future is dropped. `http://HOST/ENDPOINT` is the base address of an endpoint.
    ///
    /// # Errors
    ///
    /// The socket cannot be listened on.
    pub async fn listen(&self, socket: &Path) -> Result<(), GatewayError> {
        server::listen(&self.inner, socket).await
    }

    /// The number that the next step will have: calls from now on are part of it.
    pub fn set_step(&self, step: u32) {
        self.inner.book().step = step;
    }

    /// A round of the task begins: the calls that are begun in it may cost no more than this together,
    /// if anything is said, those of a judge aside.
    pub fn begin_round(&self, most: Option<Money>) {
        let mut book = self.inner.book();
        book.round_spent = false;
        book.round_after = book.step;
        drop(book);
        self.inner.till(PurseKind::Episode).begin_round(most);
    }

    /// Whether a call of the round was refused, since the round has spent what it may.
    #[must_use]
    pub fn round_spent(&self) -> bool {
        self.inner.book().round_spent
    }

    /// Answers what the agent asks before step `live_from` from the calls that earlier attempts
    /// have made, all of them, in their order. Said before any call is made.
    pub fn follow(&self, calls: Vec<PastCall>, live_from: u32) {
        *self.inner.record() = Record::new(calls, live_from);
    }

    /// What became of that so far.
    #[must_use]
    pub fn replayed(&self) -> Replayed {
        self.inner.record().replayed()
    }

    /// The record is at its end: whatever of it nobody asked for again counts as used, too, and in the
    /// dollars of the round that it is of.
    pub fn is_live(&self) {
        let since = self.inner.book().round_after;
        let mut record = self.inner.record();
        record.all_is_used();
        let left = record.left_after(since);
        drop(record);
        self.inner.till(PurseKind::Episode).was_spent(left);
    }

    /// The tokens of the episode: those of its own calls, and of the record as far as it is used.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.inner.tokens()
    }

    /// How many calls the attempt has.
    #[must_use]
    pub fn calls(&self) -> u32 {
        self.inner.book().next
    }

    /// The numbers of the calls since this was last asked.
    #[must_use]
    pub fn take_numbers(&self) -> Vec<u32> {
        std::mem::take(&mut self.inner.book().numbers)
    }

    /// The sums over its calls, those of a judge aside.
    #[must_use]
    pub fn totals(&self) -> CallTotals {
        self.inner.book().totals
    }

    /// The sums over the calls of a judge.
    #[must_use]
    pub fn judging(&self) -> CallTotals {
        self.inner.book().judging
    }

    /// How long calls waited for money, rate limits, or an endpoint that is down, with no other
    /// call served meanwhile: not the episode's time. A wait that lasts is counted up to now.
    #[must_use]
    pub fn paused(&self) -> Duration {
        self.inner.pauses.total()
    }

    /// Which budget is spent, once a call was refused for want of money: the episode ends `budget`.
    #[must_use]
    pub fn spent(&self) -> Option<String> {
        self.inner.book().spent.clone()
    }

    /// What a person should know of its calls (a model that changed, a bound that was exceeded);
    /// hostile until escaped.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        self.inner.book().warnings.clone()
    }

    /// No further call. What is in flight is awaited within a limit, else settled whole; the
    /// rest of the money is given back, and the purses are as they end.
    pub async fn close(&self) -> Vec<(PurseKind, PurseState)> {
        let inner = &self.inner;
        inner.phase.send_replace(Phase::Closing);
        let landed = tokio::time::timeout(inner.shared.config.close_limit, inner.all_landed()).await;
        inner.phase.send_replace(Phase::Over);
        if landed.is_err() {
            // Each of them settles itself whole, at once.
            inner.all_landed().await;
        }
        for keeper in &self.keepers {
            keeper.abort();
        }
        inner.tills.iter().map(|till| (till.kind(), till.close())).collect()
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        // What was sent is read to its end and settled; the token is worth nothing from here on.
        self.inner.phase.send_if_modified(|phase| {
            let open = *phase == Phase::Open;
            if open {
                *phase = Phase::Closing;
            }
            open
        });
        for keeper in &self.keepers {
            keeper.abort();
        }
    }
}

impl Inner {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tokens(&self) -> u64 {
        let own = self.book().totals.usage.tokens();
        own.saturating_add(self.record().tokens())
    }

    pub(crate) fn till(&self, kind: PurseKind) -> &Arc<Till> {
        let [episode, judge] = &self.tills;
        match kind {
            PurseKind::Episode => episode,
            PurseKind::Judge => judge,
        }
    }

    /// Whether a client may call as this attempt.
    pub(crate) fn is_token(&self, shown: &str) -> bool {
        self.token.is_some_and(|token| token == blake3::hash(shown.as_bytes())) && self.is_open()
    }

    pub(crate) fn is_open(&self) -> bool {
        *self.phase.borrow() == Phase::Open
    }

    /// Resolves when no further call is made.
    pub(crate) async fn closing(&self) {
        // The sender is ours, so that it does not go away.
        let _ = self.phase.subscribe().wait_for(|phase| *phase != Phase::Open).await;
    }

    /// Resolves when calls in flight are given up.
    async fn over(&self) {
        let _ = self.phase.subscribe().wait_for(|phase| *phase == Phase::Over).await;
    }

    async fn all_landed(&self) {
        loop {
            let landed = self.landed.notified();
            if self.book().flying == 0 {
                return;
            }
            landed.await;
        }
    }

    /// An endpoint of the plan, by name.
    pub(crate) fn endpoint(&self, name: &str) -> Option<&EndpointPlan> {
        self.plan.endpoint(name)
    }

    /// A call of our own loops in the form that all calls have, and its body.
    fn own_request(&self, call: ModelCall) -> Result<(Request, Value), CallError> {
        let unbounded = |reason: String| CallError::Unbounded { reason };
        let plan = self
            .endpoint(&call.endpoint)
            .ok_or_else(|| unbounded(format!("the run has no endpoint named `{}`", call.endpoint)))?;
        if plan.protocol != call.surface.protocol() {
            return Err(unbounded(format!("endpoint {} speaks {}, and not that", plan.name, plan.protocol)));
        }
        let Value::Object(mut body) = call.body else {
            return Err(unbounded("the body of a request is a JSON object".to_owned()));
        };
        if call.surface != Surface::GenerateContent {
            body.insert("model".to_owned(), json!(call.model));
            body.insert("stream".to_owned(), json!(false));
        }
        let mut headers = HeaderMap::new();
        for (name, value) in &call.headers {
            match (name.parse::<HeaderName>(), HeaderValue::from_str(value)) {
                (Ok(name), Ok(value)) => headers.append(name, value),
                _ => return Err(unbounded(format!("`{name}` cannot be a header"))),
            };
        }
        let value = Value::Object(body);
        let written = serde_json::to_vec(&value).map_err(|error| unbounded(format!("the body is no JSON: {error}")))?;
        let version = if call.surface == Surface::GenerateContent { "v1beta" } else { "v1" };
        let route = CallRoute { surface: call.surface, model: None, stream: Some(false), version: version.to_owned() };
        let request = Request {
            endpoint: self.shared.endpoint(plan),
            plan: plan.clone(),
            route,
            stream: false,
            model: call.model,
            purpose: call.purpose,
            body: Bytes::from(written),
            headers,
            query: String::new(),
        };
        Ok((request, value))
    }
}
