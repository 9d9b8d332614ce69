//! The worker's one loop: sessions, leases, attempts and the way out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use longhaul_core::digest::Digest;
use longhaul_core::notes::AttemptNotes;
use longhaul_core::outcome::{AttemptEnd, Fault, FaultClass};
use longhaul_proto::convert::{self, ConvertError, LeaseRef};
use longhaul_proto::v1::from_worker::Message as Up;
use longhaul_proto::v1::to_worker::Message as Down;
use longhaul_proto::{PROTOCOL_VERSION, v1};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::delivery::{self, Progress};
use super::desk::LayerDesk;
use super::dial::{self, LinkEvent, Welcomed};
use super::{Transport, Uplink, transport, up};
use crate::backoff;
use crate::blobs::{BlobCache, BlobClient};
use crate::config::{Endpoint, WorkerConfig};
use crate::episode::{self, Control, Order, StopReason};
use crate::error::WorkerError;
use crate::guard::{CpuShares, Node};
use crate::home::Home;
use crate::lease::{LeaseClock, Standing};
use crate::moment;
use crate::sandbox::Driver;
use crate::shutdown::{Shutdown, Urgency};
use crate::spool::{AttemptSpool, Meter, Outbox};

/// Until the coordinator says otherwise.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// An end that is refused so often, with nothing missing here, is given up.
const MAX_REFUSALS: u32 = 50;

/// The first and the longest wait before the coordinator is dialled again.
const REDIAL: (Duration, Duration) = (Duration::from_millis(300), Duration::from_secs(10));

/// How long what was written last gets to leave through the socket.
const FLUSH: Duration = Duration::from_millis(500);

/// An attempt with a lease.
struct Live {
    control: watch::Sender<Order>,
    outbox: Arc<Outbox>,
    refusals: u32,
}

/// What attempts share.
pub(crate) struct Shared {
    pub(crate) config: WorkerConfig,
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) blobs: BlobClient,
    pub(crate) desk: LayerDesk,
    pub(crate) link: super::Link,
    pub(crate) meter: Meter,
    pub(crate) node: Node,
    pub(crate) cpus: CpuShares,
    pub(crate) shutdown: Shutdown,
    pub(crate) attempts: std::path::PathBuf,
    /// Layer builds, which outlive the attempt that began them, but not the worker.
    pub(crate) builds: TaskTracker,
    pub(crate) ending: CancellationToken,
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
    redial_wait: Duration,
    events: mpsc::Sender<(u64, LinkEvent)>,
    delivered: mpsc::Sender<LeaseRef>,
    episodes: JoinSet<LeaseRef>,
    tasks: JoinSet<()>,
    draining: Option<String>,
    spool: std::path::PathBuf,
}

/// Runs the worker to its end.
pub(crate) async fn run(
    config: WorkerConfig,
    endpoint: Endpoint,
    shutdown: Shutdown,
    driver: Arc<dyn Driver>,
) -> Result<(), WorkerError> {
    let transport = transport(&endpoint)?;
    let node = Node::look(&config.limits, &config.scratch)?;
    let home = Home::open(&config.scratch, config.id, driver.as_ref()).await?;
    let cache = BlobCache::open(&home.cache, &home.staging, config.limits.cache_bytes).map_err(WorkerError::Cache)?;
    let (events, mut event_queue) = mpsc::channel(256);
    let (delivered, mut delivered_queue) = mpsc::channel(64);
    let (link, link_receiver) = watch::channel(None);
    let grace = config.grace;
    let shared = Shared {
        blobs: BlobClient::new(transport.clone(), cache),
        desk: LayerDesk::new(link_receiver.clone()),
        link: link_receiver,
        meter: Meter::default(),
        node,
        cpus: CpuShares::own(),
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
        redial_wait: REDIAL.0,
        events,
        delivered,
        episodes: JoinSet::new(),
        tasks: JoinSet::new(),
        draining: None,
        spool: home.spool.clone(),
    };
    for folder in home.left_spools()? {
        actor.adopt_spool(&folder);
    }
    let mut leave_by = None;
    let (mut told_to_leave, mut told_to_end) = (shutdown.clone(), shutdown);
    let end = loop {
        if actor.may_leave(leave_by.is_some()) {
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
            () = told_to_leave.reached(Urgency::Orderly), if leave_by.is_none() => {
                tracing::info!(grace_secs = grace.as_secs(), "told to stop; leases are given back");
                leave_by = Some(Instant::now() + grace);
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
    fn may_leave(&self, stopping: bool) -> bool {
        (stopping && self.live.is_empty() && self.episodes.is_empty())
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
        if self.redial_at.is_some_and(|at| now >= at) {
            self.redial_at = None;
            self.dial();
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
            let wanted = match self.clock.standing(lease, now) {
                Standing::Held { .. } => Order::Go,
                Standing::Over | Standing::Unknown => Order::Park,
            };
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

    fn dial(&mut self) {
        self.generation += 1;
        let capacity = self.shared.node.capacity();
        let config = &self.shared.config;
        let hello = v1::Hello {
            protocol_version: PROTOCOL_VERSION,
            worker_id: config.id.to_string(),
            hostname: config.hostname.clone(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            cpu_millis: capacity.cpu_millis,
            memory_mib: capacity.memory_mib,
            gpus: capacity.gpus,
            max_slots: capacity.max_slots,
            live: self.refs(),
            slurm_job_id: config.slurm_job_id.clone().unwrap_or_default(),
        };
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
        self.redial_at = Some(Instant::now() + self.redial_wait.mul_f64(0.5 + backoff::chance() / 2.0));
        self.redial_wait = (self.redial_wait * 2).min(REDIAL.1);
    }

    fn on_welcome(&mut self, welcomed: Welcomed) {
        let Welcomed { welcome, hello_sent, uplink, urgent } = welcomed;
        tracing::info!(endpoint = %self.endpoint, version = welcome.coordinator_version, "session stands");
        self.redial_wait = REDIAL.0;
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
        let patience = ttl.max(heartbeat * 3);
        let now = Instant::now();
        self.session =
            Some(Session { urgent, heartbeat, next_heartbeat: now, sequence: 0, silent_at: now + patience, patience });
        self.link.send_replace(Some(uplink));
        self.enforce();
    }

    fn heartbeat(&mut self) {
        let live = self.refs();
        let node = &self.shared.node;
        let (load, memory, disk) =
            (node.load_hundredths(), node.memory_free_mib(), node.disk_free_mib().unwrap_or_default());
        let Some(session) = &mut self.session else { return };
        session.sequence += 1;
        session.next_heartbeat = Instant::now() + session.heartbeat;
        let message = v1::Heartbeat {
            sequence: session.sequence,
            live,
            load_hundredths: load,
            memory_free_mib: memory,
            disk_free_mib: disk,
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
                if let Some(session) = &mut self.session {
                    session.silent_at = Instant::now() + session.patience;
                }
                self.enforce();
            }
            Down::Lease(lease) => {
                let plan = convert::digest("plan", &lease.plan)?;
                self.on_lease(convert::lease(lease.attempt.as_ref())?, plan);
            }
            Down::Revoke(revoke) => {
                let lease = convert::lease(revoke.attempt.as_ref())?;
                let reason = match revoke.reason() {
                    v1::RevokeReason::Cancelled => StopReason::Cancelled,
                    v1::RevokeReason::Stale | v1::RevokeReason::Unspecified => StopReason::Stale,
                };
                self.stop(&lease, reason);
            }
            Down::StepAck(ack) => {
                let lease = convert::lease(ack.attempt.as_ref())?;
                if let Some(outbox) = self.outbox(&lease) {
                    outbox.step_acknowledged(ack.number);
                }
            }
            Down::EndAck(ack) => {
                let lease = convert::lease(ack.attempt.as_ref())?;
                self.on_end_ack(&lease, ack.accepted, ack.resend_from);
            }
            Down::LayerAnswer(answer) => self.shared.desk.answered(&answer)?,
            Down::Drain(drain) => {
                tracing::info!(reason = drain.reason, "told to take no more leases");
                self.draining = Some(drain.reason);
            }
        }
        Ok(())
    }

    fn outbox(&self, lease: &LeaseRef) -> Option<&Arc<Outbox>> {
        self.live.get(lease).map(|live| &live.outbox).or_else(|| self.late.get(lease))
    }

    fn on_end_ack(&mut self, lease: &LeaseRef, accepted: bool, resend_from: u32) {
        let Some(outbox) = self.outbox(lease).cloned() else { return };
        if accepted {
            outbox.end_accepted();
            return;
        }
        let refusals = self.live.get_mut(lease).map_or(MAX_REFUSALS, |live| {
            live.refusals += 1;
            live.refusals
        });
        if refusals >= MAX_REFUSALS {
            tracing::warn!(attempt = %lease.attempt, "the coordinator does not accept the end of this attempt");
            outbox.end_accepted();
            return;
        }
        self.tasks.spawn(async move {
            // Steps may still be on their way to the disk there.
            tokio::time::sleep(Duration::from_millis(100) * refusals).await;
            outbox.resend_from(resend_from);
        });
    }

    fn on_lease(&mut self, lease: LeaseRef, plan: Digest) {
        if self.live.contains_key(&lease) {
            return;
        }
        let superseded: Vec<LeaseRef> =
            self.live.keys().filter(|other| other.attempt == lease.attempt).copied().collect();
        for other in superseded {
            self.stop(&other, StopReason::Stale);
        }
        let spool = match AttemptSpool::create(&self.spool, lease, self.shared.meter.clone()) {
            Ok(spool) => spool,
            Err(error) => {
                self.refuse_without_spool(lease, &crate::chain(&error));
                return;
            }
        };
        tracing::info!(attempt = %lease.attempt, epoch = %lease.epoch, "lease taken");
        self.clock.granted(lease);
        let outbox = Arc::new(Outbox::new(spool, Vec::new()));
        let (control, order) = watch::channel(Order::Go);
        let (progress, progress_receiver) = watch::channel(Progress { phase: v1::AttemptPhase::Layers, steps: 0 });
        self.deliver(Arc::clone(&outbox), Some(progress_receiver));
        let refusal = self.refusal();
        self.live.insert(lease, Live { control, outbox: Arc::clone(&outbox), refusals: 0 });
        if let Some((class, message)) = refusal {
            self.end_with_fault(&outbox, class, message);
            return;
        }
        let control = Control::new(order);
        let attempt = episode::Attempt { lease, plan, outbox, control, progress, shared: Arc::clone(&self.shared) };
        self.episodes.spawn(async move {
            Box::pin(episode::run(attempt)).await;
            lease
        });
    }

    /// Why no attempt may start now, if so.
    fn refusal(&self) -> Option<(FaultClass, String)> {
        if self.shared.shutdown.urgency() > Urgency::None {
            return Some((FaultClass::Preempted, "the worker was told to stop".to_owned()));
        }
        if let Some(reason) = &self.draining {
            return Some((FaultClass::Preempted, format!("the worker takes no more leases: {reason}")));
        }
        self.shared.node.disk_trouble().map(|message| (FaultClass::NodeDisk, message))
    }

    fn end_with_fault(&self, outbox: &Outbox, class: FaultClass, message: String) {
        let notes = AttemptNotes { hostname: self.shared.config.hostname.clone(), ..AttemptNotes::default() };
        let end = AttemptEnd::Fault(Fault { class, message, log_tail: None });
        if let Err(error) = outbox.end(end, notes) {
            tracing::error!(attempt = %outbox.lease().attempt, error = %crate::chain(&error), "an end cannot be recorded");
            outbox.close();
        }
    }

    /// Nothing can be written here, so the end goes out as it is, once; if it is lost, the
    /// lease runs out at the coordinator.
    fn refuse_without_spool(&self, lease: LeaseRef, message: &str) {
        tracing::error!(attempt = %lease.attempt, message, "an attempt cannot be started");
        let end = AttemptEnd::Fault(Fault {
            class: FaultClass::NodeDisk,
            message: format!("the worker cannot write its spool: {message}"),
            log_tail: None,
        });
        let notes = AttemptNotes { hostname: self.shared.config.hostname.clone(), ..AttemptNotes::default() };
        let (Ok(end), Ok(notes)) = (convert::to_json("end_json", &end), convert::to_json("notes_json", &notes)) else {
            return;
        };
        let ended = v1::AttemptEnded {
            attempt: Some(lease.into()),
            end_json: end.into(),
            notes_json: notes.into(),
            ..v1::AttemptEnded::default()
        };
        if let Some(session) = &self.session {
            let _ = session.urgent.try_send(up(Up::Ended(ended)));
        }
    }

    fn deliver(&mut self, outbox: Arc<Outbox>, progress: Option<watch::Receiver<Progress>>) {
        let lease = outbox.lease();
        let task = delivery::run(outbox, self.shared.blobs.clone(), self.shared.link.clone(), progress);
        let delivered = self.delivered.clone();
        self.tasks.spawn(async move {
            task.await;
            // The actor may be ending.
            let _ = delivered.send(lease).await;
        });
    }

    /// What a dead worker left is delivered as it is; the coordinator knows by the epoch what it is worth.
    fn adopt_spool(&mut self, folder: &std::path::Path) {
        match AttemptSpool::recover(folder, self.shared.meter.clone()) {
            Ok((spool, records)) => {
                let outbox = Arc::new(Outbox::new(spool, records));
                tracing::info!(attempt = %outbox.lease().attempt, steps = outbox.steps(), "delivering what a dead worker left");
                if !outbox.has_end() {
                    outbox.close();
                }
                self.late.insert(outbox.lease(), Arc::clone(&outbox));
                self.deliver(outbox, None);
            }
            Err(error) => tracing::warn!(error = %crate::chain(&error), "a spool cannot be read and is left alone"),
        }
    }

    fn stop(&mut self, lease: &LeaseRef, reason: StopReason) {
        let Some(live) = self.live.get(lease) else { return };
        tracing::info!(attempt = %lease.attempt, ?reason, "attempt is stopped");
        live.control.send_if_modified(|order| {
            let first = !matches!(order, Order::Stop(_));
            if first {
                *order = Order::Stop(reason);
            }
            first
        });
        if reason == StopReason::Stale {
            // Not ours any more: neither renewed nor named again. What it recorded is still delivered.
            self.clock.dropped(lease);
            if let Some(live) = self.live.remove(lease) {
                if !live.outbox.has_end() {
                    live.outbox.close();
                }
                if !live.outbox.is_finished() {
                    self.late.insert(*lease, live.outbox);
                }
            }
        }
    }

    fn stop_all(&mut self, reason: StopReason) {
        let leases: Vec<LeaseRef> = self.live.keys().copied().collect();
        for lease in leases {
            self.stop(&lease, reason);
        }
    }

    fn on_episode_over(&self, ended: Result<LeaseRef, tokio::task::JoinError>) {
        match ended {
            Ok(lease) => tracing::debug!(attempt = %lease.attempt, "attempt is over"),
            Err(error) => {
                tracing::error!(%error, "an attempt's task failed");
                // Which one is known by what it did not do: all others run or have an end.
                for live in self.live.values() {
                    if live.control.is_closed() && !live.outbox.has_end() && !live.outbox.is_finished() {
                        let message = format!("the worker failed: {error}");
                        self.end_with_fault(&live.outbox, FaultClass::WorkerLost, message);
                    }
                }
            }
        }
    }

    fn on_delivered(&mut self, lease: &LeaseRef) {
        if self.live.remove(lease).is_some() {
            self.clock.dropped(lease);
        }
        self.late.remove(lease);
    }

    /// Says goodbye, and ends what still runs.
    async fn leave(&mut self) {
        if let Some(session) = &self.session {
            let reason = self.draining.clone().unwrap_or_else(|| "told to stop".to_owned());
            if session.urgent.try_send(up(Up::Leaving(v1::Leaving { reason }))).is_ok() {
                tokio::time::sleep(FLUSH).await;
            }
        }
        self.link.send_replace(None);
        self.shared.ending.cancel();
        self.shared.builds.close();
        // Dropping an attempt ends its sandbox.
        self.episodes.shutdown().await;
        self.tasks.shutdown().await;
        self.shared.builds.wait().await;
    }
}
