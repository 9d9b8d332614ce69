//! A simulated worker: a lease clock of its own, attempts that end when told to, layers
//! that it asks for, builds and reports, and everything resent until it is answered.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use longhaul_core::call::PurseKind;
use longhaul_core::digest::Digest;
use longhaul_core::ids::WorkerId;
use longhaul_core::money::Money;
use longhaul_core::outcome::{AttemptEnd, EndedBy, Fault, FaultClass, Verdict};
use longhaul_core::plan::LayerKind;
use longhaul_core::purse::PurseState;
use longhaul_core::time::{Millis, Timestamp};
use longhaul_engine::state::{Capacity, LayerInfo, Readiness, WorkerProfile};
use longhaul_engine::{EscrowRest, LayerAnswer, LayerOutcome, LeaseRef, RevokeReason, WorkerAllocation};

use crate::money::Spool;
use crate::plans;
use crate::slurm;
use crate::world::{HEARTBEAT, World, settings};

/// A message to the coordinator.
#[derive(Clone, Debug)]
pub(crate) enum Up {
    Hello { session: u64, profile: WorkerProfile, readiness: Readiness, live: Vec<LeaseRef> },
    Heartbeat { sequence: u64, live: Vec<LeaseRef> },
    Ended { lease: LeaseRef, end: AttemptEnd, steps: u32, purses: Vec<(PurseKind, PurseState)> },
    Claim { key: Digest, kind: LayerKind, env: String },
    Report { key: Digest, kind: LayerKind, env: String, outcome: LayerOutcome },
    Leaving,
    Escrow { lease: LeaseRef, kind: PurseKind, state: PurseState, wanted: Money, bound: Money },
    EscrowReport { lease: LeaseRef, kind: PurseKind, state: PurseState },
    Closed { lease: LeaseRef, purses: Vec<(PurseKind, PurseState)> },
}

/// A message to a worker.
#[derive(Clone, Debug)]
pub(crate) enum Down {
    Welcome { session: u64, stale: Vec<LeaseRef> },
    HeartbeatAck { sequence: u64, renewed: Vec<LeaseRef> },
    Lease { lease: LeaseRef, env: String },
    Revoke { lease: LeaseRef, reason: RevokeReason },
    EndAck { lease: LeaseRef },
    Layer { key: Digest, answer: LayerAnswer },
    Drain,
    Escrow { lease: LeaseRef, kind: PurseKind, granted: Money, rest: EscrowRest },
    Recall { lease: LeaseRef, kind: PurseKind },
}

/// An attempt on a worker.
#[derive(Debug)]
struct Job {
    /// When its lease ends, by the worker's clock.
    until: u64,
    env: String,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Layers,
    Acting,
    Ended(AttemptEnd),
}

/// A layer that a worker asked for.
#[derive(Debug, PartialEq, Eq)]
enum Claim {
    /// By an attempt, which waits for the answer.
    Asked(LeaseRef),
    Building,
}

/// A worker's process.
#[derive(Debug)]
pub(crate) struct SimWorker {
    profile: WorkerProfile,
    pub(crate) session: Option<u64>,
    pub(crate) up: VecDeque<Up>,
    pub(crate) down: VecDeque<Down>,
    pub(crate) suspended: bool,
    leaving: bool,
    /// Told to take nothing more, in an allocation, which ends with it.
    drained: bool,
    jobs: BTreeMap<LeaseRef, Job>,
    known: BTreeSet<LeaseRef>,
    /// When the message was sent that was answered last, and those without an answer.
    heard: u64,
    hello_sent: u64,
    sent: BTreeMap<u64, u64>,
    sequence: u64,
    next_beat: u64,
    claims: BTreeMap<Digest, (LayerKind, String, Claim)>,
    results: BTreeMap<Digest, Up>,
    /// Its layers, where no folder is shared.
    layers: BTreeSet<Digest>,
    /// When it has all that it needs, and whether it said in its last hello that it lacks some.
    ready_at: u64,
    preparing: bool,
    /// Its purses.
    pub(crate) wallets: Spool,
}

impl SimWorker {
    fn new(profile: WorkerProfile) -> Self {
        Self {
            profile,
            session: None,
            up: VecDeque::new(),
            down: VecDeque::new(),
            suspended: false,
            leaving: false,
            drained: false,
            jobs: BTreeMap::new(),
            known: BTreeSet::new(),
            heard: 0,
            hello_sent: 0,
            sent: BTreeMap::new(),
            sequence: 0,
            next_beat: 0,
            claims: BTreeMap::new(),
            results: BTreeMap::new(),
            layers: BTreeSet::new(),
            ready_at: 0,
            preparing: false,
            wallets: Spool::new(),
        }
    }

    /// The leases under which it may act now.
    pub(crate) fn acting(&self, time: u64) -> impl Iterator<Item = LeaseRef> {
        let jobs = self.jobs.iter().filter(move |(_, job)| !self.suspended && job.until > time);
        jobs.filter(|(_, job)| !matches!(job.stage, Stage::Ended(_))).map(|(lease, _)| *lease)
    }

    /// One of its attempts, if it acts.
    pub(crate) fn acting_job(&self, time: u64, job: u8) -> Option<LeaseRef> {
        let index = usize::from(job).checked_rem(self.jobs.len())?;
        let (lease, job) = self.jobs.iter().nth(index)?;
        (!self.suspended && job.until > time && matches!(job.stage, Stage::Acting)).then_some(*lease)
    }

    fn live(&self) -> Vec<LeaseRef> {
        self.jobs.keys().copied().collect()
    }

    pub(crate) fn say(&mut self, message: Up) {
        if self.session.is_some() {
            self.up.push_back(message);
        }
    }

    /// The session is over, with all that was under way.
    pub(crate) fn hang_up(&mut self) {
        self.session = None;
        self.up.clear();
        self.down.clear();
        self.sent.clear();
    }

    /// Loses the next message, as far as the worker may miss it within a session: what is
    /// sent again only after a hello is lost with the session.
    pub(crate) fn lose_down(&mut self) {
        if !matches!(self.down.front(), Some(Down::Layer { .. })) {
            self.down.pop_front();
        }
    }

    /// Lets messages change places, but no lease fall behind an answered heartbeat: the
    /// lease clock rests on that order, which a stream keeps.
    pub(crate) fn reorder(&mut self, from: u8, to: u8) {
        let swap = |length: usize| Some((usize::from(from).checked_rem(length)?, usize::from(to).checked_rem(length)?));
        if let Some((from, to)) = swap(self.up.len()) {
            self.up.swap(from, to);
        }
        if let Some((from, _)) = swap(self.down.len().saturating_sub(1)) {
            let is_lease = matches!(self.down[from], Down::Lease { .. });
            let renews = matches!(self.down[from + 1], Down::HeartbeatAck { .. } | Down::Welcome { .. });
            if !(is_lease && renews) {
                self.down.swap(from, from + 1);
            }
        }
    }

    /// Takes in one message.
    pub(crate) fn hear(&mut self, time: u64, message: Down, shared: Option<&mut BTreeSet<Digest>>) {
        let ttl = settings().lease_ttl.0;
        match message {
            Down::Welcome { session, stale } => {
                if self.session == Some(session) {
                    stale.iter().for_each(|lease| drop(self.jobs.remove(lease)));
                    self.heard = self.heard.max(self.hello_sent);
                }
            }
            Down::HeartbeatAck { sequence, renewed } => {
                let Some(sent) = self.sent.remove(&sequence) else { return };
                self.heard = self.heard.max(sent);
                for lease in renewed {
                    if let Some(job) = self.jobs.get_mut(&lease) {
                        job.until = job.until.max(sent + ttl);
                    }
                }
            }
            Down::Lease { lease, env } => {
                if self.known.insert(lease) && !self.leaving {
                    self.jobs.insert(lease, Job { until: self.heard + ttl, env, stage: Stage::Layers });
                }
            }
            Down::Revoke { lease, reason: RevokeReason::Stale } => drop(self.jobs.remove(&lease)),
            Down::Revoke { lease, reason: RevokeReason::Cancelled } => {
                if let Some(job) = self.jobs.get_mut(&lease)
                    && !matches!(job.stage, Stage::Ended(_))
                {
                    job.stage = Stage::Ended(AttemptEnd::Cancelled);
                }
            }
            Down::EndAck { lease } => {
                self.jobs.remove(&lease);
                self.wallets.retain(|(of, _), _| *of != lease);
            }
            Down::Escrow { .. } | Down::Recall { .. } => {}
            Down::Layer { key, answer } => self.hear_of_layer(time, key, answer, shared),
            Down::Drain => self.drained = self.profile.allocation.is_some(),
        }
    }

    /// Forgets the questions of attempts that are over: nobody waits for the answers, and
    /// another attempt that wants the same asks itself.
    fn forget_questions(&mut self) {
        let jobs = &self.jobs;
        self.claims.retain(|_, (_, _, claim)| match claim {
            Claim::Asked(by) => jobs.get(by).is_some_and(|job| matches!(job.stage, Stage::Layers)),
            Claim::Building => true,
        });
    }

    fn hear_of_layer(&mut self, time: u64, key: Digest, answer: LayerAnswer, shared: Option<&mut BTreeSet<Digest>>) {
        let found = shared.map_or(&self.layers, |folder| folder).contains(&key);
        let Some((kind, env, claim)) = self.claims.get_mut(&key) else { return };
        match answer {
            LayerAnswer::Build if found => {
                let info = info(key);
                let outcome = LayerOutcome::Ready { info, built: false, took: Millis(0) };
                let report = Up::Report { key, kind: *kind, env: env.clone(), outcome };
                self.claims.remove(&key);
                self.results.insert(key, report.clone());
                self.say(report);
            }
            LayerAnswer::Build => *claim = Claim::Building,
            LayerAnswer::Wait => {}
            LayerAnswer::Ready(_) if found => drop(self.claims.remove(&key)),
            LayerAnswer::Ready(_) if matches!(claim, Claim::Asked(_)) => {
                let again = Up::Claim { key, kind: *kind, env: env.clone() };
                self.say(again);
            }
            LayerAnswer::Ready(_) => {}
            LayerAnswer::Failed(fault) => {
                self.claims.remove(&key);
                self.fail_waiting(time, key, &fault);
            }
        }
    }

    /// Ends the attempts that wait for a layer.
    fn fail_waiting(&mut self, time: u64, key: Digest, fault: &Fault) {
        for job in self.jobs.values_mut() {
            let wants = plans::layer_keys(&job.env).iter().any(|(_, wanted)| *wanted == key);
            if wants && matches!(job.stage, Stage::Layers) && job.until > time {
                job.stage = Stage::Ended(AttemptEnd::Fault(fault.clone()));
            }
        }
    }
}

fn info(key: Digest) -> LayerInfo {
    LayerInfo { content: Digest::of(key.as_bytes()), bytes: 1_000 }
}

fn fault(class: FaultClass) -> Fault {
    Fault { class, message: format!("simulated: {class}"), log_tail: None }
}

/// How an attempt ends.
fn ending(choice: u8) -> AttemptEnd {
    let verdict = |passed: bool, score: f64| {
        let details = serde_json::json!({ "checked": passed });
        AttemptEnd::Verdict(Verdict {
            passed,
            score,
            feedback: "said so".to_owned(),
            details,
            ended_by: EndedBy::Agent,
            parts: None,
        })
    };
    match choice % 24 {
        0..=5 => verdict(true, 87.654_321),
        6..=8 => verdict(false, 12.5),
        9 => verdict(true, f64::INFINITY),
        10 | 11 => AttemptEnd::Unverified {
            ended_by: EndedBy::Steps,
            reason: "no verifier".to_owned(),
            fault: None,
            parts: None,
        },
        12 => AttemptEnd::Cancelled,
        13 | 14 => AttemptEnd::Fault(fault(FaultClass::Preempted)),
        other => AttemptEnd::Fault(fault(FaultClass::ALL[usize::from(other) % FaultClass::ALL.len()])),
    }
}

impl World {
    pub(crate) fn start_worker(&mut self, size: u8) {
        if self.workers.len() >= 6 && size != u8::MAX {
            return;
        }
        let (cpu_millis, memory_mib, max_slots) = match size % 4 {
            0 => (1_000, 2_000, 0),
            1 => (4_000, 8_000, 2),
            2 => (2_500, 4_000, 0),
            _ => (8_000, 32_000, 6),
        };
        let number = u32::try_from(self.next_session).unwrap_or_default();
        self.next_session += 1;
        let capacity = Capacity { cpu_millis, memory_mib, gpus: 0, max_slots };
        let profile =
            WorkerProfile { hostname: format!("node{number}"), slurm_job_id: None, capacity, allocation: None };
        let id = WorkerId::new(Timestamp(2_000_000_000), number);
        self.workers.insert(id, SimWorker::new(profile));
    }

    /// The worker of an allocation.
    pub(crate) fn start_worker_in(&mut self, allocation: WorkerAllocation) -> WorkerId {
        let number = u32::try_from(self.next_session).unwrap_or_default();
        self.next_session += 1;
        let profile = WorkerProfile {
            hostname: format!("node{number}"),
            slurm_job_id: Some(allocation.job.0.clone()),
            capacity: slurm::pool(false).offer,
            allocation: Some(allocation),
        };
        let id = WorkerId::new(Timestamp(2_000_000_000), number);
        let mut worker = SimWorker::new(profile);
        if number.is_multiple_of(3) {
            worker.ready_at = self.time + 45_000;
        }
        self.workers.insert(id, worker);
        id
    }

    /// Opens a session if there is none.
    pub(crate) fn dial(&mut self, id: WorkerId) {
        let time = self.time;
        if self.coordinator.is_none() {
            return;
        }
        let session = self.next_session;
        let Some(worker) = self.workers.get_mut(&id) else { return };
        if worker.session.is_some() || worker.suspended || worker.leaving || self.slurm.is_cut(id) {
            return;
        }
        self.next_session += 1;
        worker.forget_questions();
        worker.session = Some(session);
        worker.hello_sent = time;
        worker.next_beat = time + HEARTBEAT;
        let readiness = match time < worker.ready_at {
            true => Readiness::Preparing("making the base image".to_owned()),
            false => Readiness::Fit,
        };
        worker.preparing = !readiness.is_fit();
        let hello = Up::Hello { session, profile: worker.profile.clone(), readiness, live: worker.live() };
        worker.say(hello);
        let claims: Vec<_> = worker
            .claims
            .iter()
            .map(|(key, (kind, env, _))| Up::Claim { key: *key, kind: *kind, env: env.clone() })
            .collect();
        let results: Vec<_> = worker.results.values().cloned().collect();
        results.into_iter().chain(claims).for_each(|message| worker.say(message));
        worker.repeat_money();
    }

    /// Sends a heartbeat if one is due, and what was not answered yet.
    pub(crate) fn beat(&mut self, id: WorkerId) {
        let time = self.time;
        if self.workers.get(&id).is_some_and(|worker| worker.preparing && time >= worker.ready_at) {
            // It says hello again, now that it is ready.
            self.break_session(id);
        }
        let Some(worker) = self.workers.get_mut(&id) else { return };
        if worker.leaving && worker.up.is_empty() {
            let wallets = std::mem::take(&mut worker.wallets);
            self.workers.remove(&id);
            self.spools.push(wallets);
            return;
        }
        if worker.drained && worker.jobs.is_empty() && worker.session.is_some() && !worker.leaving {
            self.leave(id);
            return;
        }
        if worker.session.is_none() || worker.suspended || worker.leaving || time < worker.next_beat {
            return;
        }
        worker.next_beat = time + HEARTBEAT;
        worker.sequence += 1;
        worker.sent.insert(worker.sequence, time);
        let beat = Up::Heartbeat { sequence: worker.sequence, live: worker.live() };
        worker.say(beat);
        let ended: Vec<_> = worker
            .jobs
            .iter()
            .filter_map(|(lease, job)| match &job.stage {
                Stage::Ended(end) => Some((*lease, end.clone())),
                Stage::Layers | Stage::Acting => None,
            })
            .collect();
        for (lease, end) in ended {
            let purses = worker.close_purses(lease);
            worker.say(Up::Ended { lease, end, steps: 3, purses });
        }
        let held = worker.live();
        worker.tidy_wallets(&held);
    }

    /// One of a worker's attempts goes on by one stage.
    pub(crate) fn work(&mut self, id: WorkerId, job: u8, choice: u8) {
        let time = self.time;
        let Some(worker) = self.workers.get_mut(&id) else { return };
        let Some(index) = usize::from(job).checked_rem(worker.jobs.len()) else { return };
        if worker.suspended {
            return;
        }
        worker.forget_questions();
        let folder = self.folder.as_ref().unwrap_or(&worker.layers);
        let Some((lease, job)) = worker.jobs.iter_mut().nth(index) else { return };
        if job.until <= time {
            return;
        }
        match job.stage {
            Stage::Layers => {
                let missing = plans::layer_keys(&job.env).into_iter().find(|(_, key)| !folder.contains(key));
                let Some((kind, key)) = missing else {
                    job.stage = Stage::Acting;
                    let lease = *lease;
                    if let Some(coordinator) = &mut self.coordinator {
                        coordinator.engine.observe_started(lease);
                    }
                    return;
                };
                let env = job.env.clone();
                let lease = *lease;
                if let Entry::Vacant(entry) = worker.claims.entry(key) {
                    entry.insert((kind, env.clone(), Claim::Asked(lease)));
                    worker.say(Up::Claim { key, kind, env });
                }
            }
            Stage::Acting => {
                let end = ending(choice);
                let lease = *lease;
                job.stage = Stage::Ended(end.clone());
                let purses = worker.close_purses(lease);
                worker.say(Up::Ended { lease, end, steps: 3, purses });
            }
            Stage::Ended(_) => {}
        }
    }

    /// One of a worker's layer builds ends.
    pub(crate) fn build(&mut self, id: WorkerId, choice: u8) {
        let time = self.time;
        let Some(worker) = self.workers.get_mut(&id).filter(|worker| !worker.suspended) else { return };
        let building = worker.claims.iter().find(|(_, (_, _, claim))| *claim == Claim::Building);
        let Some((key, (kind, env, _))) = building.map(|(key, (kind, env, _))| (*key, (*kind, env.clone(), ()))) else {
            return;
        };
        worker.claims.remove(&key);
        let failure = match choice % 8 {
            _ if env == plans::BROKEN => Some(FaultClass::LayerBuild),
            6 => Some(FaultClass::LayerBuild),
            7 => Some(FaultClass::NodeDisk),
            _ => None,
        };
        let outcome = match failure {
            Some(class) => {
                worker.fail_waiting(time, key, &fault(class));
                LayerOutcome::Failed(fault(class))
            }
            None => {
                self.folder.as_mut().unwrap_or(&mut worker.layers).insert(key);
                LayerOutcome::Ready { info: info(key), built: true, took: Millis(5_000) }
            }
        };
        let report = Up::Report { key, kind, env, outcome };
        worker.results.insert(key, report.clone());
        worker.say(report);
    }

    pub(crate) fn leave(&mut self, id: WorkerId) {
        if let Some(worker) = self.workers.get_mut(&id) {
            worker.jobs.clear();
            worker.claims.clear();
            worker.leaving = true;
            worker.tidy_wallets(&[]);
            worker.say(Up::Leaving);
        }
    }

    /// Ends a session on both sides; the coordinator notices at its next delivery.
    pub(crate) fn break_session(&mut self, id: WorkerId) {
        if let Some(worker) = self.workers.get_mut(&id)
            && let Some(session) = worker.session
        {
            worker.hang_up();
            self.goodbyes.push_back((id, session));
        }
    }
}
