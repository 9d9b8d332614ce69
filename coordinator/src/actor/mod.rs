//! The actor: one task that owns the engine, and connects it with the store, the workers
//! and whoever follows.
//!
//! The order is always the same. Messages that wait are decided and applied in memory, one
//! after the other; what they changed is appended to the journal and synced, once; only
//! then effects are carried out and answers are given. An append that fails stops the
//! process: the memory is ahead of the disk, and nobody was told anything of it.

mod money;
mod outgoing;
mod pools;
mod restored;
mod views;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use longhaul_core::call::PurseKind;
use longhaul_core::ids::{AttemptId, EpisodeId, RunId, WorkerId};
use longhaul_core::outcome::{AttemptEnd, FaultClass};
use longhaul_core::purse::PurseState;
use longhaul_core::text::chain;
use longhaul_core::time::Millis;
use longhaul_engine::state::RunSummary;
use longhaul_engine::{Command, Engine, Event, LeaseRef, Notice, Rejection};
use longhaul_proto::access::Secret;
use longhaul_proto::v1;
use longhaul_proto::v1::to_worker::Message as Down;
use longhaul_store::{AppendError, Change, PruneError, Store};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::allocator::Order;
use crate::message::{Ask, BATCH_LIMIT, Message, Outgoing, Report, now};
use crate::project::{EndDetails, Projector};
use crate::relay::Routes;
use crate::replicas::{Files, Known};
use crate::session::wire;
use crate::shares::Shares;
use crate::trajectory::Holder;

/// After so many events the state is saved and the journal before it deleted, so that a
/// start never replays more.
const SNAPSHOT_EVERY: u64 = 5_000;

/// The longest that the actor sleeps: the engine must see time pass to tell a clock that
/// was set from time that went by.
const LONGEST_SLEEP: Duration = Duration::from_secs(2);

/// Why the actor stopped other than in order. The process has to stop with it.
#[derive(Debug, thiserror::Error)]
pub enum ActorError {
    /// The journal cannot be written.
    #[error("the journal cannot be written: the coordinator stops, and goes on from its last event when started again")]
    Append(#[source] AppendError),
    /// The state cannot be saved.
    #[error("the engine's state cannot be saved")]
    Snapshot(#[source] PruneError),
    /// Its task panicked.
    #[error("the coordinator panicked")]
    Panicked(#[source] tokio::task::JoinError),
    /// An event or the state cannot be expressed as JSON.
    #[error("what the engine decided cannot be written down")]
    Encode(#[source] serde_json::Error),
}

/// What the actor tells workers when they say hello.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) lease_ttl: Millis,
    pub(crate) heartbeat: Millis,
    pub(crate) incarnation: String,
    /// The incarnation, if it began with a backup.
    pub(crate) restored: Option<u64>,
}

/// A worker's open session.
#[derive(Debug)]
struct Session {
    number: u64,
    outgoing: Outgoing,
    close: CancellationToken,
    heard: Instant,
}

/// Who follows a run, and what there is to see.
#[derive(Debug)]
struct Followed {
    version: watch::Sender<u64>,
    settled: Vec<EpisodeId>,
}

/// What is done once the batch is durable.
enum Deferred {
    Send { worker: WorkerId, number: u64, outgoing: Outgoing, message: Down },
    Close(CancellationToken),
    Publish(Notice),
    Order(Order),
    Answer(Box<dyn FnOnce() + Send>),
}

pub(crate) use pools::Allocations;

/// The coordinator's one actor.
pub(crate) struct Actor {
    engine: Engine,
    store: Arc<Store>,
    projector: Projector,
    terms: Terms,
    mailbox: mpsc::Receiver<Message>,
    sessions: BTreeMap<WorkerId, Session>,
    progress: HashMap<AttemptId, (v1::AttemptPhase, u32)>,
    followed: BTreeMap<RunId, Followed>,
    events: Vec<Vec<u8>>,
    changes: Vec<Change>,
    deferred: Vec<Deferred>,
    settled_runs: Vec<RunId>,
    unsaved: u64,
    allocations: Option<Allocations>,
    /// Keys of model vendors, by name: here, at workers, and nowhere else.
    secrets: BTreeMap<String, Secret>,
    shares: Shares,
    /// Where connections may be relayed to.
    routes: Routes,
    /// The files of addresses that runs name, and what they say.
    files: Files,
    replicas: BTreeMap<String, Known>,
    /// Workers have said by which shares they act since these were divided.
    shares_due: bool,
    draining: Option<String>,
    /// How much of each worker's spool is still to come, as its last heartbeat said.
    spooled: BTreeMap<WorkerId, u64>,
    /// Cancelled once a drain has left nothing live.
    drained: CancellationToken,
}

impl Actor {
    pub(crate) fn new(
        engine: Engine,
        store: Arc<Store>,
        projector: Projector,
        terms: Terms,
        mailbox: mpsc::Receiver<Message>,
        unsaved: u64,
        allocations: Option<Allocations>,
    ) -> Self {
        let settled_runs =
            engine.state().runs.iter().filter(|(_, run)| run.settled_at.is_some()).map(|(id, _)| *id).collect();
        let shares = Shares::new(engine.settings().grace(), terms.heartbeat);
        Self {
            engine,
            store,
            projector,
            mailbox,
            sessions: BTreeMap::new(),
            progress: HashMap::new(),
            followed: BTreeMap::new(),
            events: Vec::new(),
            changes: Vec::new(),
            deferred: Vec::new(),
            settled_runs,
            unsaved,
            allocations,
            secrets: BTreeMap::new(),
            shares,
            routes: Routes::default(),
            files: Files::default(),
            replicas: BTreeMap::new(),
            shares_due: false,
            terms,
            draining: None,
            spooled: BTreeMap::new(),
            drained: CancellationToken::new(),
        }
    }

    pub(crate) fn drained(&self) -> CancellationToken {
        self.drained.clone()
    }

    pub(crate) fn routes(&self) -> Routes {
        self.routes.clone()
    }

    pub(crate) fn files(&self) -> Files {
        self.files.clone()
    }

    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<(), ActorError> {
        self.internal(Command::CoordinatorRestarted)?;
        self.look_for_restore()?;
        self.set_pools()?;
        self.revoke_what_is_over();
        self.recall_endpoints();
        self.commit().await?;
        loop {
            let sleep = self.sleep();
            let message = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                message = self.mailbox.recv() => match message {
                    Some(message) => Some(message),
                    None => return Ok(()),
                },
                () = tokio::time::sleep(sleep) => None,
            };
            if let Some(message) = message {
                self.handle(message)?;
            }
            for _ in 1..BATCH_LIMIT {
                let Ok(message) = self.mailbox.try_recv() else { break };
                self.handle(message)?;
            }
            self.divide_shares()?;
            if self.engine.next_deadline().is_some_and(|deadline| deadline <= now()) {
                self.internal(Command::Tick)?;
            }
            self.commit().await?;
            self.tidy().await?;
        }
    }

    fn sleep(&self) -> Duration {
        let until = self.engine.next_deadline().map_or(LONGEST_SLEEP, |deadline| deadline.since(now()).to_std());
        until.min(LONGEST_SLEEP)
    }

    /// Steps the engine, and queues what came of it.
    fn command(&mut self, command: Command) -> Result<Result<(), Rejection>, ActorError> {
        self.command_with(command, None)
    }

    /// A command of the actor's own. Nobody waits for an answer: a refusal is noted.
    fn internal(&mut self, command: Command) -> Result<(), ActorError> {
        if let Err(rejection) = self.command(command)? {
            tracing::warn!(%rejection, "a command of the coordinator's own was refused");
        }
        Ok(())
    }

    fn command_with(
        &mut self,
        command: Command,
        details: Option<&EndDetails>,
    ) -> Result<Result<(), Rejection>, ActorError> {
        let events = match self.engine.step(now(), command) {
            Ok(events) => events,
            Err(rejection) => return Ok(Err(rejection)),
        };
        for event in &events {
            self.events.push(serde_json::to_vec(event).map_err(ActorError::Encode)?);
            match event {
                Event::RunSettled { run, .. } => self.settled_runs.push(*run),
                Event::EpisodeSettled { episode, .. } => {
                    if let Some(followed) = self.followed.get_mut(&episode.run) {
                        followed.settled.push(*episode);
                    }
                }
                Event::AttemptEnded { lease, .. } | Event::AttemptLost { lease, .. } => {
                    self.progress.remove(&lease.attempt);
                }
                _ => {}
            }
        }
        self.revoke(&events);
        self.changes.extend(self.projector.changes(&self.engine, &events, details));
        self.late_money(&events);
        for effect in self.engine.effects(&events) {
            self.queue(effect);
        }
        Ok(Ok(()))
    }

    /// Makes the batch durable, then does what waits for that.
    async fn commit(&mut self) -> Result<(), ActorError> {
        if !self.events.is_empty() || !self.changes.is_empty() {
            self.unsaved += u64::try_from(self.events.len()).unwrap_or(u64::MAX);
            let ticket = self.store.append(std::mem::take(&mut self.events), std::mem::take(&mut self.changes));
            ticket.await.map_err(ActorError::Append)?;
        }
        for deferred in std::mem::take(&mut self.deferred) {
            match deferred {
                Deferred::Send { worker, number, outgoing, message } => self.send(worker, number, &outgoing, message),
                Deferred::Close(close) => close.cancel(),
                Deferred::Publish(notice) => self.publish(&notice),
                Deferred::Order(order) => self.order(order),
                Deferred::Answer(answer) => answer(),
            }
        }
        if self.draining.is_some() && self.engine.state().leases().next().is_none() {
            self.drained.cancel();
        }
        Ok(())
    }

    /// What is done now and then: settled runs leave the engine, the journal is cut.
    async fn tidy(&mut self) -> Result<(), ActorError> {
        if !self.settled_runs.is_empty() {
            for run in std::mem::take(&mut self.settled_runs) {
                self.internal(Command::ForgetRun { run })?;
            }
            self.forget_endpoints();
            self.commit().await?;
            self.followed.retain(|_, followed| followed.version.receiver_count() > 0);
        }
        if self.unsaved >= SNAPSHOT_EVERY {
            let through = self
                .store
                .last_sequence()
                .map_err(|error| ActorError::Append(AppendError::Unwritable { reason: chain(&error) }))?;
            let state = serde_json::to_vec(&self.engine.snapshot()).map_err(ActorError::Encode)?;
            self.store.put_snapshot(through, state).await.map_err(ActorError::Snapshot)?;
            self.store.prune_journal(through).await.map_err(ActorError::Snapshot)?;
            self.unsaved = 0;
        }
        Ok(())
    }

    fn handle(&mut self, message: Message) -> Result<(), ActorError> {
        match message {
            Message::Hello { worker, session, profile, readiness, live, outgoing, close, reply } => {
                let opened = Session { number: session, outgoing, close, heard: Instant::now() };
                self.spooled.remove(&worker);
                // The earlier session of this worker is over, whatever its stream looks like.
                let earlier = self.sessions.insert(worker, opened);
                let hello = Command::WorkerConnected { worker, session, profile, readiness, live };
                let outcome = self.command(hello)?;
                match &outcome {
                    Ok(()) => {
                        if let Some(earlier) = earlier {
                            self.deferred.push(Deferred::Close(earlier.close));
                        }
                        if let Some(reason) = self.draining.clone() {
                            self.internal(Command::DrainWorker { worker, reason })?;
                        }
                    }
                    Err(_) => {
                        self.sessions.remove(&worker);
                        if let Some(earlier) = earlier {
                            self.sessions.insert(worker, earlier);
                        }
                    }
                }
                self.answer(reply, outcome);
            }
            Message::Goodbye { worker, session } => {
                if self.sessions.get(&worker).is_some_and(|open| open.number == session) {
                    self.sessions.remove(&worker);
                    self.shares.left(worker, now());
                }
                if let Err(rejection) = self.command(Command::WorkerDisconnected { worker, session })? {
                    tracing::debug!(%worker, session, %rejection, "a session ended that did not count");
                }
            }
            Message::Report { worker, session, report } => self.report(worker, session, *report)?,
            Message::Ask(ask) => self.ask(ask)?,
            Message::Slurm(command) => self.internal(*command)?,
            Message::NodesDrained { nodes } => self.nodes_drained(&nodes)?,
            Message::Replicas(files) => self.keep_replicas(files),
            Message::EndAllocations { done } => self.end_allocations(done)?,
            Message::Brief { reply } => {
                let brief = self.brief();
                self.answer(reply, brief);
            }
            Message::Drain { reason } => {
                self.draining = Some(reason.clone());
                let workers: Vec<WorkerId> = self.engine.state().workers.keys().copied().collect();
                for worker in workers {
                    self.internal(Command::DrainWorker { worker, reason: reason.clone() })?;
                }
            }
        }
        Ok(())
    }

    fn report(&mut self, worker: WorkerId, session: u64, report: Report) -> Result<(), ActorError> {
        if let Some(open) = self.sessions.get_mut(&worker)
            && open.number == session
        {
            open.heard = Instant::now();
        }
        self.hear_of(worker, &report)?;
        let outcome = match report {
            Report::Heartbeat { sequence, live, unfit, shares, undelivered } => {
                self.spooled.insert(worker, undelivered);
                self.heartbeat(worker, sequence, &live);
                self.share_heartbeat(worker, session, shares);
                return self.fitness(worker, unfit);
            }
            Report::Progress { lease, phase, steps } => {
                if self.engine.state().holder(lease) == Some(worker) {
                    if is_past_start(phase) {
                        self.engine.observe_started(lease);
                    }
                    if phase == v1::AttemptPhase::Acting {
                        self.engine.observe_steps(lease, steps);
                    }
                    self.progress.insert(lease.attempt, (phase, steps));
                    self.deferred.push(Deferred::Publish(Notice::RunChanged(lease.attempt.episode.run)));
                }
                return Ok(());
            }
            Report::Ended { lease, end, steps, purses, details } => {
                return self.ended(worker, lease, (end, steps, purses), &details);
            }
            Report::MoneyWanted { .. } | Report::Purse { .. } => return self.money(worker, report),
            Report::Unknown { lease } => {
                self.unknown(worker, session, lease);
                return Ok(());
            }
            Report::Endpoint(word) => return self.endpoint_word(worker, &word),
            Report::ClaimLayer { key, kind, env } => self.command(Command::ClaimLayer { worker, key, kind, env })?,
            Report::Layer { key, kind, env, outcome } => {
                self.command(Command::ReportLayer { worker, key, kind, env, outcome })?
            }
            Report::Leaving { reason } => {
                tracing::info!(%worker, reason, "a worker leaves");
                self.command(Command::WorkerLeaving { worker, reason })?
            }
        };
        if let Err(rejection) = outcome {
            tracing::warn!(%worker, session, %rejection, "a worker's report was refused");
            self.end_session(worker);
        }
        Ok(())
    }

    fn heartbeat(&mut self, worker: WorkerId, sequence: u64, live: &[LeaseRef]) {
        let reply = self.engine.observe_heartbeat(now(), worker, live);
        if !reply.known {
            self.end_session(worker);
            return;
        }
        let renewed = reply.renewed.into_iter().map(wire).collect();
        let remaining_millis = reply.remaining.map(|remaining| remaining.0);
        self.tell(worker, Down::HeartbeatAck(v1::HeartbeatAck { sequence, renewed, remaining_millis }));
        for lease in reply.stale {
            let reason = v1::RevokeReason::Stale.into();
            self.tell(worker, Down::Revoke(v1::Revoke { attempt: Some(wire(lease)), reason }));
        }
    }

    /// Takes note of a worker that takes no leases, or takes them again.
    fn fitness(&mut self, worker: WorkerId, unfit: Option<String>) -> Result<(), ActorError> {
        let Some(known) = self.engine.state().workers.get(&worker) else { return Ok(()) };
        // The words may change with every heartbeat (so many MiB free); the fact is stored.
        if known.unfit.is_some() == unfit.is_some() {
            return Ok(());
        }
        self.internal(Command::WorkerUnfit { worker, reason: unfit })
    }

    fn ended(
        &mut self,
        worker: WorkerId,
        lease: LeaseRef,
        (end, steps, purses): (AttemptEnd, u32, Vec<(PurseKind, PurseState)>),
        details: &EndDetails,
    ) -> Result<(), ActorError> {
        let held = self.engine.state().workers.get(&worker).and_then(|worker| worker.leases.get(&lease.attempt));
        if is_given_back(&end) && held.is_some_and(|held| held.epoch == lease.epoch) {
            // A worker that gives a lease back has to stop, and gets none in its place; but not one that
            // only delivers what a dead worker had left on its node.
            let reason = "it gives its leases back".to_owned();
            self.internal(Command::DrainWorker { worker, reason })?;
        }
        let command = Command::AttemptEnded { lease, end: end.clone(), steps, purses: purses.clone() };
        if let Err(rejection) = self.command_with(command, Some(details))? {
            tracing::warn!(%worker, attempt = %lease.attempt, %rejection, "an end settles nothing");
            self.late_end(lease, end, steps, details);
            self.close_purses(lease, purses)?;
        }
        // Accepted in any case: the worker has nothing more to do about it.
        let ack = v1::EndAck { attempt: Some(wire(lease)), accepted: true, resend_from: 0, resend_calls_from: 0 };
        self.tell(worker, Down::EndAck(ack));
        Ok(())
    }

    /// What a superseded attempt says about its end is kept under it, flagged.
    fn late_end(&mut self, lease: LeaseRef, end: longhaul_core::outcome::AttemptEnd, steps: u32, details: &EndDetails) {
        let record = match self.store.attempt(lease.attempt) {
            Ok(Some(record)) if record.epoch == lease.epoch => record,
            Ok(_) => return,
            Err(error) => {
                tracing::error!(attempt = %lease.attempt, error = chain(&error), "an attempt cannot be read");
                return;
            }
        };
        let mut record = record;
        match &record.finish {
            Some(finish) if finish.late || finish.end == end => return,
            _ => {}
        }
        record.finish = Some(longhaul_store::AttemptFinish {
            at: now(),
            end,
            steps,
            last_step: details.last_step,
            notes: details.notes.clone(),
            late: true,
        });
        self.changes.push(Change::Attempt(Box::new(record)));
    }

    fn ask(&mut self, ask: Ask) -> Result<(), ActorError> {
        match ask {
            Ask::Submit { run, plan, digest, gateway, terms, reply } => {
                let state = self.engine.state();
                let existed = state.runs.contains_key(&run) || state.forgotten.contains_key(&run);
                if let Some(gateway) = gateway.filter(|_| !existed) {
                    // Before any lease of it: a worker that was told nothing uses a limit whole.
                    self.learn_endpoints(run, &gateway);
                }
                let outcome = self.command(Command::SubmitRun { run, plan: *plan, digest, terms })?;
                if outcome.is_err() {
                    self.forget_endpoints();
                }
                self.answer(reply, outcome.map(|()| existed));
            }
            Ask::Resume { run, by, kinds, back, reply } => {
                let open = |engine: &Engine| engine.state().runs.get(&run).map_or(0, |run| run.open);
                let before = open(&self.engine);
                let (revived, gateway) = back.map_or((None, None), |back| (Some(back.run), back.gateway));
                if let Some(gateway) = gateway.filter(|_| self.engine.state().forgotten.contains_key(&run)) {
                    self.learn_endpoints(run, &gateway);
                }
                let outcome = self.command(Command::ResumeRun { run, by, kinds, revived })?;
                self.forget_endpoints();
                let after = open(&self.engine);
                self.answer(reply, outcome.map(|()| (after.saturating_sub(before), after)));
            }
            Ask::Cancel { run, by, reply } => {
                let open = self.engine.state().runs.get(&run).map_or(0, |run| run.open);
                let outcome = self.command(Command::CancelRun { run, by })?;
                self.answer(reply, outcome.map(|()| open));
            }
            Ask::Runs { reply } => {
                let state = self.engine.state();
                let mut runs: Vec<RunSummary> = state.forgotten.values().map(|run| run.summary.clone()).collect();
                runs.extend(state.runs.iter().map(|(id, run)| run.summary(*id)));
                runs.sort_by_key(|run| run.run);
                self.answer(reply, runs);
            }
            Ask::Workers { reply } => {
                let rows = self.workers();
                self.answer(reply, rows);
            }
            Ask::View { run, seen, reply } => {
                let view = self.view(run, seen);
                self.answer(reply, view);
            }
            Ask::Follow { run, reply } => {
                let receiver = self.follow(run);
                self.answer(reply, receiver);
            }
            Ask::Budget { run, reply } => {
                let scopes = self.engine.budget(run);
                self.answer(reply, scopes);
            }
            Ask::RaiseBudget { run, scope, cap, by, reply } => {
                let outcome = self.command(Command::RaiseBudget { run, scope, cap, by })?;
                self.answer(reply, outcome);
            }
            Ask::PutSecrets { secrets, reply } => {
                self.keep_secrets(secrets);
                self.answer(reply, ());
            }
            Ask::Secrets { reply } => {
                let secrets = self.secrets.clone().into_iter().collect();
                self.answer(reply, secrets);
            }
            Ask::Replicas { reply } => {
                let rows = self.replicas.iter().map(|(path, known)| v1::ReplicasRow {
                    path: path.clone(),
                    urls: known.urls.clone(),
                    problem: known.problem.clone().unwrap_or_default(),
                });
                let rows = rows.collect();
                self.answer(reply, rows);
            }
            Ask::Pools { reply } => {
                let pools = self.pools();
                self.answer(reply, pools);
            }
            Ask::ResumePool { pool, reply } => {
                let outcome = self.command(Command::ResumePool { pool })?;
                self.answer(reply, outcome);
            }
            Ask::Restore { reply } => {
                let stands = self.restore();
                self.answer(reply, stands);
            }
            Ask::AcceptRestore { by, unheard, reply } => {
                let outcome = self.accept_restore(by, unheard)?;
                self.answer(reply, outcome);
            }
            Ask::Holder { lease, reply } => {
                let state = self.engine.state();
                let worker = state.holder(lease).and_then(|worker| state.workers.get(&worker));
                let holder = worker.map(|worker| Holder {
                    allocation: worker.profile.allocation.as_ref().map(longhaul_engine::WorkerAllocation::id),
                });
                self.answer(reply, holder);
            }
            Ask::Live { episode, reply } => {
                let live = self.live(episode);
                self.answer(reply, live);
            }
        }
        Ok(())
    }

    /// Answers once the batch is durable. Whoever has gone away needs none.
    fn answer<T: Send + 'static>(&mut self, reply: tokio::sync::oneshot::Sender<T>, value: T) {
        self.deferred.push(Deferred::Answer(Box::new(move || drop(reply.send(value)))));
    }
}

/// The sandbox is up and the setup done: what makes a start heavy is over.
const fn is_past_start(phase: v1::AttemptPhase) -> bool {
    use v1::AttemptPhase::{Acting, Export, Replaying, Verifying};
    matches!(phase, Acting | Export | Replaying | Verifying)
}

fn is_given_back(end: &AttemptEnd) -> bool {
    matches!(end, AttemptEnd::Fault(fault) if fault.class == FaultClass::Preempted)
}
