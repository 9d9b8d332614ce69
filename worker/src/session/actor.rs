//! The worker's one loop: sessions, leases, attempts and the way out.

mod attempts;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use longhaul_core::notes::AttemptNotes;
use longhaul_core::outcome::EndedBy;
use longhaul_proto::convert::{self, ConvertError, LeaseRef};
use longhaul_proto::v1;
use longhaul_proto::v1::from_worker::Message as Up;
use longhaul_proto::v1::to_worker::Message as Down;
use longhaul_proto::v1::trajectory_service_client::TrajectoryServiceClient;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::desk::LayerDesk;
use super::dial::{self, LinkEvent, Welcomed};
use super::escrow::EscrowDesk;
use super::{GOODBYE_LIMIT, HEARTBEAT, Introduction, REDIAL, Transport, Uplink, transport, up};
use crate::backoff::Backoff;
use crate::blobs::{BlobCache, BlobClient};
use crate::carry::Carrier;
use crate::config::{Endpoint, WorkerConfig};
use crate::episode::{Order, StopReason};
use crate::error::WorkerError;
use crate::guard::{CpuShares, GpuShares, Node};
use crate::home::Home;
use crate::lease::{LeaseClock, Standing};
use crate::model::{LeaseGate, Models};
use crate::moment;
use crate::relay::ThroughCoordinator;
use crate::sandbox::Driver;
use crate::shutdown::{Shutdown, Urgency};
use crate::spool::{Meter, Outbox, Room};

/// How soon a heartbeat follows the last word on an attempt's money when the worker leaves.
const LAST_WORD_WAIT: Duration = Duration::from_millis(200);

/// An attempt with a lease.
struct Live {
    control: watch::Sender<Order>,
    outbox: Arc<Outbox>,
    /// Shut when the lease ends: no model is called then.
    gate: Arc<LeaseGate>,
    refusals: u32,
}

/// What a lease says beside its attempt and plan.
#[derive(Clone, Copy, Debug)]
struct LeaseKind {
    /// No cap on dollars holds for the attempt.
    uncapped: bool,
    /// It is to go on where an earlier one was cut off.
    resumes: bool,
    /// What had ended the agent's part, where only the verification is done again.
    verifies: Option<EndedBy>,
}

/// What attempts share.
pub(crate) struct Shared {
    pub(crate) config: WorkerConfig,
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) blobs: BlobClient,
    /// What is kept of attempts that were cut off.
    pub(crate) trajectories: TrajectoryServiceClient<Transport>,
    /// Carries layers through the coordinator, where nodes have no layer folder in common.
    pub(crate) carrier: Option<Carrier>,
    pub(crate) desk: LayerDesk,
    pub(crate) escrow: EscrowDesk,
    pub(crate) models: Models,
    pub(crate) link: super::Link,
    pub(crate) meter: Meter,
    /// Whether more may be recorded ahead of the coordinator.
    pub(crate) room: Room,
    pub(crate) node: Node,
    pub(crate) cpus: CpuShares,
    pub(crate) gpus: GpuShares,
    /// How many sandboxes may be on their way up at once: all attempts that waited for one layer
    /// would start together, and more at once than a node bears fail at random.
    pub(crate) starts: Semaphore,
    pub(crate) shutdown: Shutdown,
    pub(crate) attempts: std::path::PathBuf,
    /// Layer builds, which outlive the attempt that began them, but not the worker.
    pub(crate) builds: TaskTracker,
    pub(crate) ending: CancellationToken,
}

impl Shared {
    /// Why no attempt is to come here now, if so.
    fn trouble(&self) -> Option<String> {
        self.node.disk_trouble().or_else(|| self.gpus.trouble())
    }

    /// What is noted of every attempt here, also of one that does not begin.
    pub(crate) fn bare_notes(&self) -> AttemptNotes {
        AttemptNotes {
            hostname: self.config.hostname.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            node_cpu_millis: self.node.capacity().cpu_millis,
            ..AttemptNotes::default()
        }
    }
}

/// The session as the actor sees it.
struct Session {
    urgent: mpsc::Sender<v1::FromWorker>,
    heartbeat: Duration,
    next_heartbeat: Instant,
    sequence: u64,
    /// No answer to a heartbeat until then, and the session is given up.
    silent_at: Instant,
    patience: Duration,
}

struct Actor {
    shared: Arc<Shared>,
    endpoint: Endpoint,
    transport: Transport,
    clock: LeaseClock,
    live: BTreeMap<LeaseRef, Live>,
    /// Outboxes without a lease: what is still delivered of superseded attempts and dead workers.
    late: BTreeMap<LeaseRef, Arc<Outbox>>,
    link: watch::Sender<Option<Uplink>>,
    session: Option<Session>,
    generation: u64,
    dialling: Option<AbortHandle>,
    redial_at: Option<Instant>,
    redial_waits: Backoff,
    events: mpsc::Sender<(u64, LinkEvent)>,
    delivered: mpsc::Sender<LeaseRef>,
    episodes: JoinSet<LeaseRef>,
    tasks: JoinSet<()>,
    draining: Option<String>,
    /// Told to stop: no lease is taken any more, and no attempt has an end of its own.
    leaving: bool,
    spool: std::path::PathBuf,
}

/// Runs the worker to its end.
pub(crate) async fn run(
    config: WorkerConfig,
    endpoint: Endpoint,
    shutdown: Shutdown,
    driver: Arc<dyn Driver>,
) -> Result<(), WorkerError> {
    let relay = ThroughCoordinator::new(transport(&endpoint)?);
    let transport = transport(&endpoint)?;
    let node = Node::look(&config.limits, config.gpus.as_ref(), &config.scratch)?;
    let home = Home::open(&config.scratch, config.id, driver.as_ref()).await?;
    let cache = BlobCache::open(&home.cache, &home.staging, config.limits.cache_bytes).map_err(WorkerError::Cache)?;
    let (events, mut event_queue) = mpsc::channel(256);
    let (delivered, mut delivered_queue) = mpsc::channel(64);
    let (link, link_receiver) = watch::channel(None);
    let grace = config.grace;
    let meter = Meter::default();
    let shared = Shared {
        blobs: BlobClient::new(transport.clone(), cache),
        trajectories: TrajectoryServiceClient::new(transport.clone()),
        carrier: config.carry_layers.then(|| Carrier::new(transport.clone())),
        desk: LayerDesk::new(link_receiver.clone()),
        escrow: EscrowDesk::new(link_receiver.clone()),
        models: Models::new(&config, Arc::new(relay)).map_err(WorkerError::Gateway)?,
        room: Room::new(meter.clone(), config.limits.spool_bytes, node.clone(), link_receiver.clone()),
        link: link_receiver,
        meter,
        node,
        cpus: CpuShares::own(),
        gpus: GpuShares::new(config.gpus.as_ref()),
        starts: Semaphore::new(config.limits.starts.max(1)),
        shutdown: shutdown.clone(),
        attempts: home.attempts.clone(),
        builds: TaskTracker::new(),
        ending: CancellationToken::new(),
        driver,
        config,
    };
    let mut actor = Actor {
        shared: Arc::new(shared),
        endpoint,
        transport,
        clock: LeaseClock::new(),
        live: BTreeMap::new(),
        late: BTreeMap::new(),
        link,
        session: None,
        generation: 0,
        dialling: None,
        redial_at: Some(Instant::now()),
        redial_waits: REDIAL,
        events,
        delivered,
        episodes: JoinSet::new(),
        tasks: JoinSet::new(),
        draining: None,
        leaving: false,
        spool: home.spool.clone(),
    };
    for folder in home.left_spools()? {
        actor.adopt_spool(&folder);
    }
    let mut leave_by = None;
    let (mut told_to_leave, mut told_to_end) = (shutdown.clone(), shutdown);
    let end = loop {
        if actor.may_leave() {
            break Ok(());
        }
        let wake = actor.next_wake(leave_by);
        tokio::select! {
            Some((generation, event)) = event_queue.recv() => {
                if generation == actor.generation && let Err(error) = actor.on_link(event) {
                    break Err(error);
                }
            }
            Some(ended) = actor.episodes.join_next() => actor.on_episode_over(ended),
            Some(lease) = delivered_queue.recv() => actor.on_delivered(&lease),
            () = told_to_leave.reached(Urgency::Orderly), if !actor.leaving => {
                tracing::info!(grace_secs = grace.as_secs(), "told to stop; leases are given back");
                leave_by = Some(Instant::now() + grace);
                actor.leaving = true;
                actor.stop_all(StopReason::Preempted);
            }
            () = told_to_end.reached(Urgency::Now) => break Ok(()),
            () = sleep_until(wake) => {}
        }
        if leave_by.is_some_and(|at| Instant::now() >= at) {
            tracing::warn!("the grace is over");
            break Ok(());
        }
        actor.on_time();
    };
    actor.leave().await;
    let shared = Arc::clone(&actor.shared);
    drop(actor);
    home.close(shared.driver.as_ref()).await;
    end
}

impl Actor {
    /// Whether there is nothing left to wait for.
    fn may_leave(&self) -> bool {
        (self.leaving && self.live.is_empty() && self.episodes.is_empty())
            || (self.draining.is_some() && self.live.is_empty() && self.episodes.is_empty() && self.late.is_empty())
    }

    fn next_wake(&self, leave_by: Option<Instant>) -> Instant {
        let now = Instant::now();
        let moment = moment::now();
        let lease_end = self.clock.next_end(moment).map(|end| now + (end - moment) + Duration::from_millis(1));
        let session = self.session.as_ref().map(|session| session.next_heartbeat.min(session.silent_at));
        [lease_end, session, self.redial_at, leave_by]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(now + HEARTBEAT)
            .min(now + HEARTBEAT)
    }

    /// Whatever is due.
    fn on_time(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        let now = Instant::now();
        if self.leaving
            && self.shared.escrow.owes()
            && let Some(session) = &mut self.session
        {
            // The last word on money is known to be heard by the answer to a heartbeat.
            session.next_heartbeat = session.next_heartbeat.min(now + LAST_WORD_WAIT);
        }
        if self.live.is_empty() && self.session.is_some() {
            // What was recorded is delivered, and nothing is left to be renewed: the leases go back
            // now, sandboxes are ended meanwhile.
            if self.leaving {
                self.say_goodbye("told to stop");
            }
        }
        if self.redial_at.is_some_and(|at| now >= at) {
            self.redial();
        }
        if self.session.as_ref().is_some_and(|session| now >= session.silent_at) {
            self.lost("the coordinator answered no heartbeat");
        }
        if self.session.as_ref().is_some_and(|session| now >= session.next_heartbeat) {
            self.heartbeat();
        }
        self.enforce();
    }

    /// Parks what may not act and wakes what may again.
    fn enforce(&self) {
        let now = moment::now();
        for (lease, live) in &self.live {
            let (wanted, until) = match self.clock.standing(lease, now) {
                Standing::Held { until } => (Order::Go, Some(until)),
                Standing::Over | Standing::Unknown => (Order::Park, None),
            };
            live.gate.set(until.filter(|_| !matches!(*live.control.borrow(), Order::Stop(_))));
            live.control.send_if_modified(|order| {
                let change = !matches!(order, Order::Stop(_)) && *order != wanted;
                if change {
                    tracing::info!(attempt = %lease.attempt, ?wanted, "the lease's standing changed");
                    *order = wanted;
                }
                change
            });
        }
    }

    fn redial(&mut self) {
        self.redial_at = None;
        if !(self.live.is_empty() && self.leaving) {
            self.dial();
        }
    }

    /// Gives back what is held and ends the session: the coordinator counts no lease after it.
    fn say_goodbye(&mut self, reason: &str) {
        if let Some(session) = &self.session {
            let leaving = v1::Leaving { reason: reason.to_owned() };
            // Full only if the session hangs; then the leases run out.
            let _ = session.urgent.try_send(up(Up::Leaving(leaving)));
        }
        tracing::info!(reason, "the coordinator is told that this worker leaves");
        self.session = None;
        self.link.send_replace(None);
        // The dialling task sends what is queued and ends when the coordinator closes the session.
        self.generation += 1;
        self.redial_at = None;
    }

    fn dial(&mut self) {
        self.generation += 1;
        let capacity = self.shared.node.capacity();
        let config = &self.shared.config;
        // From a node without room nothing is offered, and that is said.
        let unfit = self.shared.trouble().unwrap_or_default();
        let hello = Introduction { config, capacity, live: self.refs(), unfit, preparing: false }.hello();
        let task = dial::run(self.transport.clone(), hello, self.generation, self.events.clone());
        self.dialling = Some(self.tasks.spawn(task));
    }

    fn refs(&self) -> Vec<v1::AttemptRef> {
        self.live.keys().map(|lease| v1::AttemptRef::from(*lease)).collect()
    }

    fn on_link(&mut self, event: LinkEvent) -> Result<(), WorkerError> {
        match event {
            LinkEvent::Welcomed(welcomed) => self.on_welcome(*welcomed),
            LinkEvent::Message(message) => {
                if let Err(error) = self.on_message(*message) {
                    tracing::warn!(%error, "a message of the coordinator cannot be read");
                }
            }
            LinkEvent::Lost(reason) => self.lost(&reason),
            LinkEvent::Refused(reason) => {
                if self.live.is_empty() {
                    return Err(WorkerError::Refused { endpoint: self.endpoint.to_string(), reason });
                }
                self.lost(&reason);
            }
        }
        Ok(())
    }

    fn lost(&mut self, reason: &str) {
        tracing::warn!(endpoint = %self.endpoint, reason, "no session with the coordinator");
        if let Some(task) = self.dialling.take() {
            task.abort();
        }
        // Whatever that session still has queued is of a generation that is over.
        self.generation += 1;
        self.session = None;
        self.link.send_replace(None);
        self.redial_at = Some(Instant::now() + self.redial_waits.next_wait());
    }

    fn on_welcome(&mut self, welcomed: Welcomed) {
        let Welcomed { welcome, hello_sent, uplink, urgent } = welcomed;
        tracing::info!(endpoint = %self.endpoint, version = welcome.coordinator_version, "session stands");
        self.redial_waits.reset();
        let ttl = Duration::from_millis(welcome.lease_ttl_millis);
        let heartbeat = match welcome.heartbeat_millis {
            0 => HEARTBEAT,
            millis => Duration::from_millis(millis),
        };
        let stale: BTreeSet<LeaseRef> = welcome.stale.iter().filter_map(|wire| LeaseRef::try_from(wire).ok()).collect();
        for lease in &stale {
            self.stop(lease, StopReason::Stale);
        }
        let kept = self.live.keys().copied().collect();
        self.clock.welcomed(hello_sent, ttl, &kept);
        // Well before the leases end: a connection that died without a word is dialled anew in time, and
        // steps run ahead meanwhile.
        let patience = (ttl / 2).max(heartbeat * 3);
        let now = Instant::now();
        self.session =
            Some(Session { urgent, heartbeat, next_heartbeat: now, sequence: 0, silent_at: now + patience, patience });
        self.shared.models.new_session();
        self.link.send_replace(Some(uplink));
        self.shared.desk.hand_over();
        self.shared.escrow.hand_over();
        self.enforce();
    }

    fn heartbeat(&mut self) {
        let live = self.refs();
        let node = &self.shared.node;
        let (load, memory, disk) =
            (node.load_hundredths(), node.memory_free_mib(), node.disk_free_mib().unwrap_or_default());
        let outboxes = self.live.values().map(|live| &live.outbox).chain(self.late.values());
        let undelivered =
            outboxes.map(|outbox| outbox.undelivered()).sum::<u64>() + u64::from(self.shared.escrow.owes());
        let Some(session) = &mut self.session else { return };
        session.sequence += 1;
        self.shared.desk.before_heartbeat(session.sequence);
        self.shared.escrow.before_heartbeat(session.sequence);
        for word in self.shared.models.words() {
            // Full only if the session hangs; the next word says more.
            let _ = session.urgent.try_send(up(Up::EndpointWord(word)));
        }
        session.next_heartbeat = Instant::now() + session.heartbeat;
        let message = v1::Heartbeat {
            sequence: session.sequence,
            live,
            load_hundredths: load,
            memory_free_mib: memory,
            disk_free_mib: disk,
            unfit: self.shared.trouble().unwrap_or_default(),
            undelivered,
            shares: self.shared.models.shares(),
        };
        let now = moment::now();
        // Full only if the session hangs; then the silence ends it.
        if session.urgent.try_send(up(Up::Heartbeat(message))).is_ok() {
            self.clock.heartbeat_sent(session.sequence, now);
        }
    }

    fn on_message(&mut self, message: Down) -> Result<(), ConvertError> {
        match message {
            Down::Welcome(_) => tracing::warn!("a second welcome is ignored"),
            Down::HeartbeatAck(ack) => {
                let renewed = ack.renewed.iter().filter_map(|wire| LeaseRef::try_from(wire).ok());
                self.clock.heartbeat_answered(ack.sequence, renewed);
                self.shared.desk.heartbeat_answered(ack.sequence);
                self.shared.escrow.heartbeat_answered(ack.sequence);
                if let Some(session) = &mut self.session {
                    session.silent_at = Instant::now() + session.patience;
                }
                self.enforce();
            }
            Down::Lease(lease) => {
                let plan = convert::digest("plan", &lease.plan)?;
                let verifies = match lease.verifies.as_str() {
                    "" => None,
                    word => Some(convert::from_json("verifies", format!("\"{word}\"").as_bytes())?),
                };
                let kind = LeaseKind { uncapped: lease.uncapped, resumes: lease.resumes, verifies };
                self.on_lease(convert::lease(lease.attempt.as_ref())?, plan, kind);
            }
            Down::Revoke(revoke) => {
                let lease = convert::lease(revoke.attempt.as_ref())?;
                match revoke.reason() {
                    v1::RevokeReason::Cancelled => self.stop(&lease, StopReason::Cancelled),
                    v1::RevokeReason::Stale | v1::RevokeReason::Unspecified => self.stop(&lease, StopReason::Stale),
                    v1::RevokeReason::Refused => self.refused(&lease),
                }
            }
            Down::StepAck(ack) => {
                let lease = convert::lease(ack.attempt.as_ref())?;
                if let Some(outbox) = self.outbox(&lease) {
                    tracing::debug!(attempt = %lease.attempt, number = ack.number, "a step is acknowledged");
                    outbox.step_acknowledged(ack.number);
                }
            }
            Down::EndAck(ack) => {
                let lease = convert::lease(ack.attempt.as_ref())?;
                self.on_end_ack(&lease, ack.accepted, (ack.resend_from, ack.resend_calls_from));
            }
            Down::CallAck(ack) => {
                let lease = convert::lease(ack.attempt.as_ref())?;
                if let Some(outbox) = self.outbox(&lease) {
                    outbox.call_acknowledged(ack.number);
                }
            }
            Down::EscrowAnswer(answer) => {
                if let Some(granted) = self.shared.escrow.answered(&answer)?
                    && let Some(outbox) = self.outbox(&granted.lease)
                    && let Err(error) = outbox.granted(granted.purse, granted.granted)
                {
                    // Escrow at the coordinator is what counts; this only says it sooner after a crash.
                    tracing::warn!(error = %crate::chain(&error), "a grant was not written down");
                }
            }
            Down::EscrowRecall(recall) => self.shared.escrow.recall(&recall)?,
            Down::Secrets(secrets) => self.shared.models.keep_secrets(secrets),
            Down::EndpointShares(shares) => self.shared.models.keep_shares(shares),
            Down::ReplicaFiles(files) => self.shared.models.keep_replicas(files),
            Down::LayerAnswer(answer) => self.shared.desk.answered(&answer)?,
            Down::ResumedAck(ack) => {
                let lease = convert::lease(ack.attempt.as_ref())?;
                if let Some(outbox) = self.outbox(&lease) {
                    outbox.resumed_acknowledged();
                }
            }
            Down::Drain(drain) => {
                tracing::info!(reason = drain.reason, "told to take no more leases");
                self.draining = Some(drain.reason);
            }
        }
        Ok(())
    }

    /// Says goodbye, and ends what still runs.
    async fn leave(&mut self) {
        if self.session.is_some() {
            let reason = self.draining.clone().unwrap_or_else(|| "told to stop".to_owned());
            self.say_goodbye(&reason);
        }
        // The coordinator closes the session when it has heard the goodbye.
        let give_up = Instant::now() + GOODBYE_LIMIT;
        while self.dialling.as_ref().is_some_and(|task| !task.is_finished()) && Instant::now() < give_up {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.shared.ending.cancel();
        self.shared.builds.close();
        // Dropping an attempt ends its sandbox.
        self.episodes.shutdown().await;
        self.tasks.shutdown().await;
        self.shared.builds.wait().await;
    }
}
