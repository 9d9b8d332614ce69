//! The gateway of a process: what its accounts share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use longhaul_core::endpoint::EndpointPlan;
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
    chance: Mutex<SmallRng>,
}

#[derive(Debug, Default)]
struct Endpoints {
    known: BTreeMap<String, Arc<Endpoint>>,
    /// What the coordinator said last, if it has said anything.
    shares: Option<Vec<EndpointShare>>,
}

impl Endpoints {
    fn share(&self, name: &str) -> Option<&EndpointShare> {
        self.shares.iter().flatten().find(|share| share.endpoint == name)
    }
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
        let shared = Shared { config, secrets, client, endpoints: Mutex::default(), chance };
        Ok(Self { shared: Arc::new(shared), accounts: AtomicU64::new(0) })
    }

    /// What this worker may use of endpoints from now on, in place of what was said before. An
    /// endpoint that is not named has no limit; until this is called for the first time, the
    /// limits of its plan hold.
    pub fn set_shares(&self, shares: Vec<EndpointShare>) {
        let mut endpoints = self.shared.endpoints();
        endpoints.shares = Some(shares);
        for (name, endpoint) in &endpoints.known {
            endpoint.share(endpoints.share(name));
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

    /// The endpoint of that plan, as all accounts share it.
    pub(crate) fn endpoint(&self, plan: &EndpointPlan) -> Arc<Endpoint> {
        let mut endpoints = self.endpoints();
        if let Some(known) = endpoints.known.get(&plan.name) {
            if endpoints.shares.is_none() {
                known.plan(plan.limits);
            }
            return Arc::clone(known);
        }
        let waits = Waits { first: self.config.backoff, most: self.config.backoff_most };
        let endpoint = Arc::new(Endpoint::new(plan.name.clone(), waits));
        if endpoints.shares.is_some() {
            endpoint.share(endpoints.share(&plan.name));
        } else {
            endpoint.plan(plan.limits);
        }
        endpoints.known.insert(plan.name.clone(), Arc::clone(&endpoint));
        endpoint
    }
}
