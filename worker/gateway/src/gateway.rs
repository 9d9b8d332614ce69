//! The gateway of a process: what its accounts share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use longhaul_core::endpoint::EndpointPlan;
use longhaul_core::replicas::FileReplicas;
use rand::SeedableRng as _;
use rand::rngs::SmallRng;

use crate::account::{Account, Opening};
use crate::config::{GatewayConfig, GatewayError};
use crate::endpoint::{Endpoint, EndpointShare, EndpointWord, Waits};
use crate::http::client::Client;
use crate::ports::Secrets;

/// The gateway of a process.
#[derive(Debug)]
pub struct Gateway {
    shared: Arc<Shared>,
    accounts: AtomicU64,
}

/// What all accounts share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: GatewayConfig,
    pub(crate) secrets: Arc<dyn Secrets>,
    pub(crate) client: Client,
    endpoints: Mutex<Endpoints>,
    /// The addresses that files name, as they were said last.
    replicas: RwLock<BTreeMap<String, Leads>>,
    chance: Mutex<SmallRng>,
}

/// Where a file of addresses leads.
#[derive(Debug, PartialEq, Eq)]
struct Leads {
    urls: Arc<[String]>,
    /// Whether a key may be sent there.
    keyed: bool,
}

#[derive(Debug, Default)]
struct Endpoints {
    known: BTreeMap<String, Arc<Endpoint>>,
    /// What the coordinator said last, if it has said anything.
    shares: Option<Vec<EndpointShare>>,
}

impl Gateway {
    /// Sets up connections to vendors.
    ///
    /// # Errors
    ///
    /// Certificate authorities cannot be read.
    pub fn new(config: GatewayConfig, secrets: Arc<dyn Secrets>) -> Result<Self, GatewayError> {
        let client = Client::new(&config)?;
        let chance = Mutex::new(SmallRng::seed_from_u64(config.seed));
        let (endpoints, replicas) = (Mutex::default(), RwLock::default());
        let shared = Shared { config, secrets, client, endpoints, replicas, chance };
        Ok(Self { shared: Arc::new(shared), accounts: AtomicU64::new(0) })
    }

    /// What this worker may use of endpoints from now on, in place of what was said before. An
    /// endpoint that is not named has no limit; until this is called for the first time, the
    /// limits of its plan hold.
    pub fn set_shares(&self, shares: Vec<EndpointShare>) {
        let mut endpoints = self.shared.endpoints();
        endpoints.known.values().for_each(|endpoint| endpoint.share(&shares));
        endpoints.shares = Some(shares);
    }

    /// Whether no more calls are in flight than the shares allow: of one that became smaller, the rest
    /// is free for others only then.
    #[must_use]
    pub fn is_within_shares(&self) -> bool {
        self.shared.endpoints().known.values().all(|endpoint| endpoint.is_within())
    }

    /// The addresses that files of replicas name from now on, by file, in place of what was said
    /// before. What is in flight ends where it is; a new call goes to one of these.
    pub fn set_replicas(&self, files: BTreeMap<String, FileReplicas>) {
        let leads = |found: FileReplicas| Leads { urls: found.urls.into(), keyed: found.keyed };
        let files: BTreeMap<String, Leads> = files.into_iter().map(|(file, found)| (file, leads(found))).collect();
        let mut known = self.shared.replicas.write().unwrap_or_else(PoisonError::into_inner);
        if *known == files {
            return;
        }
        *known = files;
        drop(known);
        for endpoint in self.shared.endpoints().known.values() {
            endpoint.moved();
        }
    }

    /// What is known of each endpoint that an account uses or used, since this was last asked.
    #[must_use]
    pub fn words(&self) -> Vec<EndpointWord> {
        self.shared.endpoints().known.values().map(|endpoint| endpoint.word()).collect()
    }

    /// Opens an attempt's account. It has to be called within a tokio runtime.
    #[must_use]
    pub fn open(&self, opening: Opening) -> Account {
        let id = self.accounts.fetch_add(1, Ordering::Relaxed);
        Account::new(Arc::clone(&self.shared), id, opening)
    }
}

impl Shared {
    fn endpoints(&self) -> MutexGuard<'_, Endpoints> {
        self.endpoints.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn chance(&self) -> MutexGuard<'_, SmallRng> {
        self.chance.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The addresses of an endpoint now: its plan's, or those of the file that it names.
    ///
    /// # Errors
    ///
    /// There is none now, in words for people.
    pub(crate) fn urls(&self, plan: &EndpointPlan) -> Result<Arc<[String]>, String> {
        let Some(file) = &plan.replicas_file else {
            return if plan.urls.is_empty() {
                Err("it has no address".to_owned())
            } else {
                Ok(plan.urls.clone().into())
            };
        };
        let known = self.replicas.read().unwrap_or_else(PoisonError::into_inner);
        match known.get(file) {
            None => Err(format!("this worker was not told yet what {file} names")),
            Some(leads) if leads.urls.is_empty() => Err(format!("{file} names no address now")),
            // It was read for an endpoint without a key, and may be anybody's.
            Some(leads) if plan.secret.is_some() && !leads.keyed => Err(format!(
                "{file} is not known to be one that only its owner can write: it says nowhere to send a key"
            )),
            Some(leads) => Ok(Arc::clone(&leads.urls)),
        }
    }

    /// The endpoint of that plan, as all accounts share it.
    pub(crate) fn endpoint(&self, plan: &EndpointPlan) -> Arc<Endpoint> {
        let mut endpoints = self.endpoints();
        if let Some(known) = endpoints.known.get(&plan.name) {
            if endpoints.shares.is_none() {
                known.plan(plan);
            }
            return Arc::clone(known);
        }
        let waits = Waits { first: self.config.backoff, most: self.config.backoff_most };
        let endpoint = Arc::new(Endpoint::new(plan.name.clone(), waits));
        match &endpoints.shares {
            Some(shares) => endpoint.share(shares),
            None => endpoint.plan(plan),
        }
        endpoints.known.insert(plan.name.clone(), Arc::clone(&endpoint));
        endpoint
    }
}
