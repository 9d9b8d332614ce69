//! What tests and benches of the gateway stand on: a bank and a journal in memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use longhaul_core::call::{CallRecord, Purpose, PurseKind};
use longhaul_core::digest::Digest;
use longhaul_core::endpoint::{EndpointPlan, GatewayPlan, Protocol, RateLimits};
use longhaul_core::money::Money;
use longhaul_core::price::{ImageRule, ModelPrice, Rate, Tier};
use longhaul_core::purse::PurseState;
use longhaul_core::time::Millis;
use longhaul_gateway::ports::{
    Bank, Blob, Journal, JournalError, Later, Refused, Reservation, ReserveError, Secret, Secrets, SystemClock,
};
use longhaul_gateway::{Account, CallError, Gateway, GatewayConfig, ModelAnswer, ModelCall, Opening, Surface, join};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::standin::PRICES;

/// What HTTP clients show.
pub(crate) const TOKEN: &str = "token-of-the-attempt";

/// Money up to a cap, granted in chunks; it counts how often it is asked.
#[derive(Debug)]
pub(crate) struct CappedBank {
    /// The cap, in billionths of a dollar.
    pub(crate) cap: Mutex<u64>,
    /// What is granted beyond what is asked for.
    pub(crate) chunk: u64,
    /// How often it was asked.
    pub(crate) asked: Mutex<u32>,
    /// What was reported last.
    pub(crate) reported: Mutex<HashMap<PurseKind, PurseState>>,
    /// Wakes those that wait.
    pub(crate) raised: Notify,
}

impl CappedBank {
    /// A bank with a cap.
    pub(crate) fn new(cap: u64, chunk: u64) -> Arc<Self> {
        Arc::new(Self {
            cap: Mutex::new(cap),
            chunk,
            asked: Mutex::new(0),
            reported: Mutex::default(),
            raised: Notify::new(),
        })
    }
}

impl Bank for CappedBank {
    fn more(&self, _: PurseKind, state: PurseState, wanted: Money, bound: Money) -> Later<'_, Result<Money, Refused>> {
        *self.asked.lock().unwrap() += 1;
        Box::pin(async move {
            loop {
                let raised = self.raised.notified();
                let cap = *self.cap.lock().unwrap();
                if state.settled.saturating_add(bound).nanos() > cap {
                    let scope = format!("run: {} of {} are spent", state.settled, Money::from_nanos(cap));
                    return Err(Refused { scope });
                }
                let most = Money::from_nanos(cap).saturating_add(state.returned);
                let grant = wanted.saturating_add(Money::from_nanos(self.chunk)).min(most);
                if grant > state.granted {
                    return Ok(grant);
                }
                raised.await;
            }
        })
    }

    fn report(&self, purse: PurseKind, state: PurseState) {
        self.reported.lock().unwrap().insert(purse, state);
    }

    fn recalled(&self, _: PurseKind) -> Later<'_, ()> {
        Box::pin(std::future::pending())
    }
}

/// A journal in memory.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// What was written before calls.
    pub(crate) reserved: Mutex<Vec<Reservation>>,
    /// What was written after them.
    pub(crate) settled: Mutex<Vec<CallRecord>>,
    /// Every blob, and how often it was written.
    pub(crate) blobs: Mutex<HashMap<Digest, (Vec<u8>, u32)>>,
    /// Whether nothing can be written.
    pub(crate) full: Mutex<bool>,
    /// Whether no call may be made now.
    pub(crate) shut: watch::Sender<bool>,
}

impl Memory {
    fn keep(&self, blobs: Vec<Blob>) -> Result<(), JournalError> {
        if *self.full.lock().unwrap() {
            return Err(JournalError { message: "no space left".to_owned(), disk: true });
        }
        let mut kept = self.blobs.lock().unwrap();
        for blob in blobs {
            assert_eq!(Digest::of(&blob.bytes), blob.digest);
            kept.entry(blob.digest).or_insert_with(|| (blob.bytes.to_vec(), 0)).1 += 1;
        }
        Ok(())
    }

    /// The records, in the order of their numbers.
    pub(crate) fn records(&self) -> Vec<CallRecord> {
        let mut records = self.settled.lock().unwrap().clone();
        records.sort_by_key(|record| record.number);
        records
    }

    /// A body out of its blobs.
    pub(crate) fn body(&self, skeleton: Digest) -> Vec<u8> {
        let blobs = self.blobs.lock().unwrap();
        join(&blobs[&skeleton].0, |digest| blobs.get(digest).map(|(bytes, _)| bytes.clone())).unwrap()
    }
}

impl Journal for Memory {
    fn ready(&self) -> Later<'_, ()> {
        Box::pin(async {
            self.shut.subscribe().wait_for(|shut| !shut).await.unwrap();
        })
    }

    fn reserved(&self, reservation: &Reservation, blobs: Vec<Blob>) -> Result<(), ReserveError> {
        if *self.shut.borrow() {
            return Err(ReserveError::NotNow);
        }
        self.keep(blobs)?;
        self.reserved.lock().unwrap().push(reservation.clone());
        Ok(())
    }

    fn settled(&self, record: &CallRecord, blobs: Vec<Blob>) -> Result<(), JournalError> {
        self.keep(blobs)?;
        self.settled.lock().unwrap().push(record.clone());
        Ok(())
    }
}

/// Keys by name.
#[derive(Default)]
pub(crate) struct Keys(pub(crate) Mutex<HashMap<String, String>>);

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys(..)")
    }
}

impl Secrets for Keys {
    fn get(&self, name: &str) -> Option<Secret> {
        self.0.lock().unwrap().get(name).cloned().map(Secret::new)
    }
}

/// The key that the stand-ins may ask for.
pub(crate) const KEY: &str = "sk-the-vendors-key";

/// The stand-in's price list as a row.
pub(crate) fn price() -> ModelPrice {
    let [input, cache_write, cache_write_long, cache_read, output] =
        PRICES.map(|nanos| Money::from_nanos(nanos * 1_000_000));
    ModelPrice {
        vendor: "standin".to_owned(),
        model: "model*".to_owned(),
        rate: Rate::Tokens { tiers: vec![Tier { above: 0, input, cache_write, cache_write_long, cache_read, output }] },
        image: ImageRule::Area { pixels: 750, most: 1600 },
        context: 200_000,
        max_output: 1_000,
        services: Vec::new(),
    }
}

/// An endpoint of a protocol, named after it.
pub(crate) fn endpoint(protocol: Protocol, urls: &[String]) -> EndpointPlan {
    EndpointPlan {
        name: protocol.name().to_owned(),
        protocol,
        vendor: "standin".to_owned(),
        urls: urls.to_vec(),
        secret: Some("key".to_owned()),
        limits: RateLimits::default(),
        model_limits: Vec::new(),
        call_limit: Millis::from_secs(20),
        retries: 2,
        relay: false,
        replicas_file: None,
    }
}

/// A plan with an endpoint of each protocol.
pub(crate) fn plan(urls: &[String]) -> GatewayPlan {
    GatewayPlan {
        endpoints: Protocol::ALL.iter().map(|protocol| endpoint(*protocol, urls)).collect(),
        prices: vec![price()],
        prices_of: "2026-01-01".to_owned(),
        shorten: false,
    }
}

/// A gateway with an account, and what they stand on.
pub(crate) struct World {
    /// The gateway.
    pub(crate) gateway: Gateway,
    /// The account.
    pub(crate) account: Arc<Account>,
    /// Its bank.
    pub(crate) bank: Arc<CappedBank>,
    /// Its journal.
    pub(crate) journal: Arc<Memory>,
    /// The keys.
    pub(crate) keys: Arc<Keys>,
}

impl World {
    /// A small call, made meanwhile.
    pub(crate) fn calling(&self, surface: Surface) -> JoinHandle<Result<ModelAnswer, CallError>> {
        let account = Arc::clone(&self.account);
        tokio::spawn(async move { account.call(call(surface)).await })
    }
}

/// How a world differs from the usual one.
pub(crate) struct Setup {
    /// The plan.
    pub(crate) plan: GatewayPlan,
    /// The cap, in billionths of a dollar.
    pub(crate) cap: u64,
    /// What is granted beyond what is asked for.
    pub(crate) chunk: u64,
    /// Whether a cap holds.
    pub(crate) capped: bool,
    /// The most tokens.
    pub(crate) max_tokens: Option<u64>,
    /// Changes the configuration.
    pub(crate) config: Box<dyn FnOnce(&mut GatewayConfig)>,
}

impl Setup {
    /// An account with ten dollars at these addresses.
    pub(crate) fn at(urls: &[String]) -> Self {
        Self {
            plan: plan(urls),
            cap: 10_000_000_000,
            chunk: 1_000_000_000,
            capped: true,
            max_tokens: None,
            config: Box::new(|_| {}),
        }
    }

    /// Opens it.
    pub(crate) fn open(self) -> World {
        let mut config = GatewayConfig::new(Arc::new(SystemClock), 7);
        config.backoff = Duration::from_millis(20);
        config.backoff_most = Duration::from_millis(200);
        (self.config)(&mut config);
        let keys = Arc::new(Keys::default());
        keys.0.lock().unwrap().insert("key".to_owned(), KEY.to_owned());
        let gateway = Gateway::new(config, Arc::<Keys>::clone(&keys)).unwrap();
        let (bank, journal) = (CappedBank::new(self.cap, self.chunk), Arc::new(Memory::default()));
        let account = gateway.open(Opening {
            allowed: self.plan.endpoints.iter().map(|endpoint| endpoint.name.clone()).collect(),
            plan: Arc::new(self.plan),
            capped: self.capped,
            bank: Arc::<CappedBank>::clone(&bank),
            journal: Arc::<Memory>::clone(&journal),
            max_tokens: self.max_tokens,
            token: TOKEN.to_owned(),
        });
        World { gateway, account: Arc::new(account), bank, journal, keys }
    }
}

/// A small call.
pub(crate) fn call(surface: Surface) -> ModelCall {
    let text = "What do you see?";
    let (endpoint, body) = match surface {
        Surface::ChatCompletions => {
            ("openai", json!({ "messages": [{ "role": "user", "content": text }], "max_completion_tokens": 200 }))
        }
        Surface::Responses => ("openai", json!({ "input": text, "max_output_tokens": 200 })),
        Surface::Messages => {
            ("anthropic", json!({ "messages": [{ "role": "user", "content": text }], "max_tokens": 200 }))
        }
        Surface::GenerateContent => (
            "gemini",
            json!({ "contents": [{ "role": "user", "parts": [{ "text": text }] }],
                "generationConfig": { "maxOutputTokens": 200 } }),
        ),
    };
    with_body(endpoint, surface, body)
}

/// A call with that body.
pub(crate) fn with_body(endpoint: &str, surface: Surface, body: Value) -> ModelCall {
    ModelCall {
        endpoint: endpoint.to_owned(),
        surface,
        purpose: Purpose::Agent,
        model: "model-a".to_owned(),
        body,
        headers: Vec::new(),
    }
}

/// Waits for what has to come.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..3_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}
