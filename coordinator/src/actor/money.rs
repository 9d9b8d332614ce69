//! Money, keys and endpoints in the actor's hands.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_core::call::PurseKind;
use longhaul_core::endpoint::GatewayPlan;
use longhaul_core::ids::{EpisodeId, RunId, WorkerId};
use longhaul_core::purse::PurseState;
use longhaul_core::text::chain;
use longhaul_engine::{Command, Event, LeaseRef};
use longhaul_proto::access::Secret;
use longhaul_proto::v1;
use longhaul_proto::v1::to_worker::Message as Down;
use longhaul_store::Change;

use super::{Actor, ActorError};
use crate::message::{Report, now};
use crate::project;
use crate::replicas::{self, Known};

impl Actor {
    /// What a worker says of a purse. One whose lease is over asks in vain, and hears that by
    /// its next heartbeat; that is no reason to end its session.
    pub(super) fn money(&mut self, worker: WorkerId, report: Report) -> Result<(), ActorError> {
        let (lease, outcome) = match report {
            Report::MoneyWanted { lease, purse, state, wanted, bound } => {
                (lease, self.command(Command::EscrowRequested { lease, purse, state, wanted, bound })?)
            }
            Report::Purse { lease, purse, state, closed: true } => {
                return self.close_purses(lease, vec![(purse, state)]);
            }
            Report::Purse { lease, purse, state, closed: false } => {
                (lease, self.command(Command::EscrowReported { lease, purse, state })?)
            }
            _ => return Ok(()),
        };
        if let Err(rejection) = outcome {
            tracing::warn!(%worker, attempt = %lease.attempt, %rejection, "what was said of a purse was refused");
        }
        Ok(())
    }

    /// What the purses of an attempt came to whose lease is over.
    pub(super) fn close_purses(
        &mut self,
        lease: LeaseRef,
        purses: Vec<(PurseKind, PurseState)>,
    ) -> Result<(), ActorError> {
        if purses.is_empty() {
            return Ok(());
        }
        if let Err(rejection) = self.command(Command::PursesClosed { lease, purses })? {
            tracing::warn!(attempt = %lease.attempt, %rejection, "the last word on purses was refused");
        }
        Ok(())
    }

    /// Money of runs that the engine has forgotten may still turn up: their records say so.
    pub(super) fn late_money(&mut self, events: &[Event]) {
        let runs: BTreeSet<RunId> = events.iter().filter_map(project::run_with_other_money).collect();
        for run in runs {
            if self.engine.state().runs.contains_key(&run) {
                continue;
            }
            match self.store.run(run) {
                Ok(Some(mut record)) => {
                    record.scopes = project::scopes(&self.engine, run);
                    self.changes.push(Change::Run(Box::new(record)));
                }
                Ok(None) => {}
                Err(error) => tracing::error!(%run, error = chain(&error), "a run's record cannot be read"),
            }
        }
    }

    /// Whether no cap on dollars holds for an episode: caps are raised, and never made later.
    pub(super) fn is_uncapped(&self, id: EpisodeId) -> bool {
        let run = self.engine.state().runs.get(&id.run);
        run.is_some_and(|run| {
            let entry = run.episode(id.index).map(|(_, entry)| entry);
            run.plan.budgets.is_default() && entry.is_some_and(|entry| entry.max_cost.is_none())
        })
    }

    /// Takes keys, and tells every worker.
    pub(super) fn keep_secrets(&mut self, secrets: Vec<(String, Secret)>) {
        self.secrets.extend(secrets);
        let workers: Vec<WorkerId> = self.sessions.keys().copied().collect();
        for worker in workers {
            self.tell_secrets(worker);
        }
    }

    fn tell_secrets(&mut self, worker: WorkerId) {
        let secret =
            |(name, value): (&String, &Secret)| v1::Secret { name: name.clone(), value: value.expose().to_owned() };
        let secrets = self.secrets.iter().map(secret).collect();
        self.tell(worker, Down::Secrets(v1::Secrets { secrets }));
    }

    /// A worker was welcomed.
    pub(super) fn greet(&mut self, worker: WorkerId) {
        if !self.secrets.is_empty() {
            self.tell_secrets(worker);
        }
        if !self.replicas.is_empty() {
            self.tell_replicas(worker);
        }
        self.shares.joined(worker);
        self.tell_shares();
    }

    /// Takes what files of addresses name now, and tells every worker.
    pub(super) fn keep_replicas(&mut self, files: BTreeMap<String, Known>) {
        self.routes.moved(&files);
        self.replicas = files;
        let workers: Vec<WorkerId> = self.sessions.keys().copied().collect();
        for worker in workers {
            self.tell_replicas(worker);
        }
    }

    fn tell_replicas(&mut self, worker: WorkerId) {
        for message in replicas::messages(&self.replicas) {
            self.tell(worker, Down::ReplicaFiles(message));
        }
    }

    /// Runs that were submitted before this process began.
    pub(super) fn recall_endpoints(&mut self) {
        let runs: Vec<_> =
            self.engine.state().runs.iter().filter_map(|(id, run)| Some((*id, run.plan.gateway?))).collect();
        for (run, digest) in runs {
            let plan = match self.store.blob(&digest) {
                Ok(Some(bytes)) => serde_json::from_slice::<GatewayPlan>(&bytes).map_err(|error| error.to_string()),
                Ok(None) => Err("it is not there".to_owned()),
                Err(error) => Err(chain(&error)),
            };
            match plan {
                Ok(plan) => self.learn_endpoints(run, &plan),
                Err(error) => tracing::error!(%run, error, "the endpoints of a run cannot be read"),
            }
        }
    }

    /// A run may call these endpoints.
    pub(super) fn learn_endpoints(&mut self, run: RunId, plan: &GatewayPlan) {
        self.shares.learn(run, &plan.endpoints);
        self.routes.learn(run, plan);
        self.files.learn(run, plan);
        self.tell_shares();
    }

    /// Runs that are over call nothing any more.
    pub(super) fn forget_endpoints(&self) {
        let runs = &self.engine.state().runs;
        self.routes.forget(|run| runs.contains_key(&run));
        self.files.forget(|run| runs.contains_key(&run));
    }

    /// A worker is there, and says by which shares it acts.
    pub(super) fn share_heartbeat(&mut self, worker: WorkerId, session: u64, number: u64) {
        if self.sessions.get(&worker).is_some_and(|open| open.number == session) {
            self.shares.acted_by(worker, number);
            self.shares_due = true;
        }
    }

    /// Divides the shares again if heartbeats came: once for all those of a batch.
    pub(super) fn divide_shares(&mut self) -> Result<(), ActorError> {
        if !std::mem::take(&mut self.shares_due) {
            return Ok(());
        }
        self.endpoint_news()?;
        let runs = &self.engine.state().runs;
        self.shares.forget(|run| runs.contains_key(&run));
        self.tell_shares();
        Ok(())
    }

    /// What a worker has seen of an endpoint.
    pub(super) fn endpoint_word(&mut self, worker: WorkerId, word: &v1::EndpointWord) -> Result<(), ActorError> {
        self.shares.word(worker, word, now());
        self.endpoint_news()
    }

    fn endpoint_news(&mut self) -> Result<(), ActorError> {
        for (endpoint, down) in self.shares.news(now()) {
            self.internal(Command::EndpointSeen { endpoint, down })?;
        }
        Ok(())
    }

    fn tell_shares(&mut self) {
        for (worker, shares) in self.shares.divide(now()) {
            self.tell(worker, Down::EndpointShares(shares));
        }
    }
}
