//! Models as attempts call them: one gateway for the worker, and for each attempt an account
//! whose money comes over the session and whose calls are written to the attempt's spool.

mod ports;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use longhaul_core::agent::AgentPlan;
use longhaul_core::call::{CallTotals, PurseKind};
use longhaul_core::endpoint::GatewayPlan;
use longhaul_core::plan::{EpisodePlan, TaskPlan};
use longhaul_core::purse::PurseState;
use longhaul_core::replicas::FileReplicas;
use longhaul_core::rounds::RoundsPlan;
use longhaul_gateway::ports::{Relay, SystemClock};
use longhaul_gateway::{Account, EndpointShare, EndpointWord, Gateway, GatewayConfig, GatewayError, Opening, Proxies};
use longhaul_proto::v1;
use rand::TryRngCore;

pub(crate) use self::ports::LeaseGate;
use self::ports::{AttemptBank, AttemptJournal, KnownSecrets};
use crate::config::WorkerConfig;
use crate::episode::Attempt;
use crate::moment::millis;

/// How long the account of an attempt that nobody waits for may take to close.
const ABANDONED_LIMIT: Duration = Duration::from_secs(3);

/// The gateway of a worker, with what the coordinator has told it.
#[derive(Debug)]
pub(crate) struct Models {
    gateway: Gateway,
    secrets: Arc<KnownSecrets>,
    /// The number of the shares that are acted by.
    shares: AtomicU64,
    /// The number of those that came last.
    told: AtomicU64,
    /// What files of replicas name, as far as it has come.
    replicas: Mutex<BTreeMap<String, FileReplicas>>,
}

impl Models {
    pub(crate) fn new(config: &WorkerConfig, relay: Arc<dyn Relay>) -> Result<Self, GatewayError> {
        let secrets = Arc::new(KnownSecrets::default());
        // Backoff needs no better chance than this.
        let seed = rand::rngs::OsRng.try_next_u64().unwrap_or(config.id.as_u64());
        let proxy = |name: &str| {
            let found = config.hook_env.get(name).or_else(|| config.hook_env.get(&name.to_lowercase()));
            found.cloned().unwrap_or_default()
        };
        let proxies = Proxies { https: proxy("HTTPS_PROXY"), http: proxy("HTTP_PROXY"), none: proxy("NO_PROXY") };
        let settings = GatewayConfig {
            extra_roots: config.certificates.clone(),
            proxies,
            relay: Some(relay),
            ..GatewayConfig::new(Arc::new(SystemClock), seed)
        };
        let gateway = Gateway::new(settings, Arc::clone(&secrets) as _)?;
        Ok(Self { gateway, secrets, shares: AtomicU64::new(0), told: AtomicU64::new(0), replicas: Mutex::default() })
    }

    /// The keys of vendors, in place of those that were known.
    pub(crate) fn keep_secrets(&self, secrets: v1::Secrets) {
        self.secrets.replace(secrets.secrets.into_iter().map(|secret| (secret.name, secret.value)));
    }

    /// What this worker may use of endpoints from now on.
    pub(crate) fn keep_shares(&self, wire: v1::EndpointShares) {
        let share = |share: v1::EndpointShare| EndpointShare {
            endpoint: share.endpoint,
            model: Some(share.model).filter(|model| !model.is_empty()),
            concurrent: share.concurrent,
            requests_per_minute: share.requests_per_minute,
            tokens_per_minute: share.tokens_per_minute,
            down: share.down,
        };
        self.gateway.set_shares(wire.shares.into_iter().map(share).collect());
        self.told.store(wire.number, Ordering::SeqCst);
    }

    /// The addresses that files of replicas name from now on, once the last of them has come.
    pub(crate) fn keep_replicas(&self, wire: v1::ReplicaFiles) {
        let leads = |file: v1::ReplicaFile| (file.path, FileReplicas { urls: file.urls, keyed: file.keyed });
        let mut coming = self.replicas.lock().unwrap_or_else(PoisonError::into_inner);
        coming.extend(wire.files.into_iter().map(leads));
        if !wire.more {
            self.gateway.set_replicas(std::mem::take(&mut *coming));
        }
    }

    /// The number of the shares that are acted by: the last ones, once what is in flight is no more
    /// than they allow.
    pub(crate) fn shares(&self) -> u64 {
        let told = self.told.load(Ordering::SeqCst);
        if self.gateway.is_within_shares() {
            self.shares.store(told, Ordering::SeqCst);
        }
        self.shares.load(Ordering::SeqCst)
    }

    /// A new session numbers its shares anew, and says anew what files name.
    pub(crate) fn new_session(&self) {
        self.shares.store(0, Ordering::SeqCst);
        self.told.store(0, Ordering::SeqCst);
        self.replicas.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// What was seen of endpoints since this was last asked.
    pub(crate) fn words(&self) -> Vec<v1::EndpointWord> {
        let word = |word: EndpointWord| v1::EndpointWord {
            endpoint: word.endpoint,
            demand: word.demand,
            models: word.models.into_iter().map(|(model, demand)| v1::ModelDemand { model, demand }).collect(),
            down_millis: word.down.as_ref().map_or(0, |down| millis(down.lasts).0),
            down: word.down.map(|down| down.why).unwrap_or_default(),
            answered: word.answered,
        };
        self.gateway.words().into_iter().map(word).collect()
    }
}

/// The account of an attempt, once it is open.
#[derive(Debug, Default)]
pub(crate) struct Till(Mutex<Option<Arc<Account>>>);

impl Till {
    fn put(&self, account: Arc<Account>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(account);
    }

    fn take(&self) -> Option<Arc<Account>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Opens the account of an attempt, and says what a client inside shows as its key. It is closed
/// before the attempt's end is written, whoever ends it.
pub(crate) fn open_account(
    attempt: &Attempt,
    episode: &EpisodePlan,
    task: &TaskPlan,
    gateway_plan: Arc<GatewayPlan>,
) -> (Arc<Account>, String) {
    let token = token();
    let allowed = match &episode.agent {
        AgentPlan::External(agent) => agent.endpoints.clone(),
        AgentPlan::Model(_) | AgentPlan::Scripted { .. } | AgentPlan::Idle => Vec::new(),
    };
    let shared = &attempt.shared;
    let account = Arc::new(shared.models.gateway.open(Opening {
        plan: gateway_plan,
        allowed,
        capped: !attempt.uncapped || task.rounds.as_ref().is_some_and(RoundsPlan::caps_dollars),
        bank: Arc::new(AttemptBank { desk: shared.escrow.clone(), lease: attempt.lease }),
        journal: Arc::new(AttemptJournal {
            outbox: Arc::clone(&attempt.outbox),
            gate: Arc::clone(&attempt.gate),
            room: shared.room.clone(),
        }),
        max_tokens: episode.budget.max_tokens,
        token: token.clone(),
    }));
    attempt.till.put(Arc::clone(&account));
    (account, token)
}

/// What a client inside shows as its key: for one attempt, and worth nothing elsewhere.
fn token() -> String {
    let mut bytes = [0; 24];
    if rand::rngs::OsRng.try_fill_bytes(&mut bytes).is_err() {
        // Nobody can know it then, so nobody can call over HTTP; our own loops need none.
        return String::new();
    }
    bytes.iter().fold("lh-".to_owned(), |mut text, byte| {
        use std::fmt::Write as _;
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// What an account has come to.
#[derive(Debug, Default)]
pub(crate) struct Closed {
    /// Its purses, in the coordinator's count.
    pub(crate) purses: Vec<(PurseKind, PurseState)>,
    /// The sums over its calls, those of a judge aside.
    pub(crate) calls: CallTotals,
    /// The sums over the calls of a judge.
    pub(crate) judging: CallTotals,
    /// What a person should know of them.
    pub(crate) warnings: Vec<String>,
}

/// Closes the account of an attempt, if it has one. Afterwards every call is settled, and none
/// is made.
///
/// With `hurry`, what is in flight is hardly waited for: nobody reads its answer any more.
pub(crate) async fn close_account(attempt: &Attempt, hurry: bool) -> Closed {
    let Some(account) = attempt.till.take() else { return Closed::default() };
    let desk = &attempt.shared.escrow;
    let closed = if hurry {
        tokio::time::timeout(ABANDONED_LIMIT, account.close()).await.ok()
    } else {
        Some(account.close().await)
    };
    let (calls, judging, warnings) = (account.totals(), account.judging(), account.warnings());
    drop(account);
    if let Err(error) = attempt.outbox.settle_open_calls() {
        // They are settled so when the spool is read again.
        tracing::error!(attempt = %attempt.lease.attempt, error = %crate::chain(&error), "calls cannot be settled");
    }
    Closed { purses: closed.unwrap_or_else(|| desk.recorded(&attempt.outbox)), calls, judging, warnings }
}
