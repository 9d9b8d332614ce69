//! Projections: what a batch of the engine's events changes in the records that people
//! read. Written in the same batch as the events, so that the two never disagree.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, EpisodeId, RunId};
use longhaul_core::notes::AttemptNotes;
use longhaul_core::outcome::AttemptEnd;
use longhaul_core::time::{Millis, Timestamp};
use longhaul_engine::state::{self, State};
use longhaul_engine::{Engine, Event, ScopeView};
use longhaul_store::{
    AttemptFinish, AttemptRecord, Cancellation, Change, EpisodeRecord, EpisodeState, LayerRecord, LayerState,
    RunRecord, ScopeRecord,
};

/// What a report of an attempt's end says beside what the engine needs.
#[derive(Clone, Debug, Default)]
pub(crate) struct EndDetails {
    /// The digest of the last step's record.
    pub(crate) last_step: Option<Digest>,
    /// What is noted of the attempt.
    pub(crate) notes: AttemptNotes,
}

/// Turns events into changes of records. It holds those records that later events add to.
#[derive(Debug, Default)]
pub(crate) struct Projector {
    live: BTreeMap<AttemptId, AttemptRecord>,
    layers: BTreeMap<Digest, LayerRecord>,
}

impl Projector {
    /// A projector that goes on from what the store has.
    pub(crate) fn new(
        live: impl IntoIterator<Item = AttemptRecord>,
        layers: impl IntoIterator<Item = LayerRecord>,
    ) -> Self {
        Self {
            live: live.into_iter().map(|record| (record.id, record)).collect(),
            layers: layers.into_iter().map(|record| (record.key, record)).collect(),
        }
    }

    /// The changes of one batch. `engine` is as it is after it.
    pub(crate) fn changes(&mut self, engine: &Engine, events: &[Event], details: Option<&EndDetails>) -> Vec<Change> {
        let state = engine.state();
        let mut changes = Vec::new();
        let mut runs = BTreeSet::new();
        let mut episodes = BTreeSet::new();
        for event in events {
            runs.extend(run_with_other_money(event));
            match event {
                Event::RunSubmitted { run, plan, .. } => {
                    runs.insert(*run);
                    let count = u32::try_from(plan.episodes.len()).unwrap_or(u32::MAX);
                    episodes.extend((0..count).map(|index| EpisodeId { run: *run, index }));
                }
                Event::RunCancelled { run, .. } | Event::RunSettled { run, .. } => {
                    runs.insert(*run);
                }
                Event::RunResumed { run, episodes: again, .. } => {
                    runs.insert(*run);
                    episodes.extend(again.iter().map(|index| EpisodeId { run: *run, index: *index }));
                }
                Event::LeaseGranted { at, lease, worker, resumes, .. } => {
                    let hostname =
                        state.workers.get(worker).map(|record| record.profile.hostname.clone()).unwrap_or_default();
                    let record = AttemptRecord {
                        id: lease.attempt,
                        epoch: lease.epoch,
                        worker: *worker,
                        hostname,
                        started: *at,
                        finish: None,
                    };
                    self.live.insert(lease.attempt, record.clone());
                    changes.push(Change::Attempt(Box::new(record)));
                    changes.push(Change::Lease {
                        attempt: lease.attempt,
                        epoch: lease.epoch,
                        resumes: *resumes,
                    });
                    episodes.insert(lease.attempt.episode);
                }
                Event::AttemptEnded { at, lease, end, steps, .. } => {
                    let details = details.cloned().unwrap_or_default();
                    for used in &details.notes.layers {
                        if let Some(record) = self.layers.get_mut(&used.key) {
                            record.uses += 1;
                            changes.push(Change::Layer(Box::new(record.clone())));
                        }
                    }
                    self.finish(&mut changes, lease.attempt, *at, end.clone(), *steps, details);
                    episodes.insert(lease.attempt.episode);
                }
                Event::AttemptLost { at, lease, fault, .. } => {
                    let end = AttemptEnd::Fault(fault.clone());
                    self.finish(&mut changes, lease.attempt, *at, end, 0, EndDetails::default());
                    episodes.insert(lease.attempt.episode);
                }
                Event::AttemptAdopted { at, lease, worker, hostname } => {
                    changes.push(Change::Attempt(Box::new(AttemptRecord {
                        id: lease.attempt,
                        epoch: lease.epoch,
                        worker: *worker,
                        hostname: hostname.clone(),
                        started: *at,
                        finish: None,
                    })));
                    episodes.insert(lease.attempt.episode);
                }
                Event::EpisodeRequeued { episode, .. } | Event::EpisodeSettled { episode, .. } => {
                    episodes.insert(*episode);
                }
                Event::LayerClaimed { at, key, kind, env, worker } => {
                    let record = self.layer(*key, *kind, env);
                    record.state = LayerState::Building { worker: *worker, since: *at };
                    changes.push(Change::Layer(Box::new(record.clone())));
                }
                Event::LayerReady { key, kind, env, info, built, took, .. } => {
                    let record = self.layer(*key, *kind, env);
                    record.state = LayerState::Ready { content: info.content, bytes: info.bytes };
                    if *built {
                        record.builds += 1;
                        record.build_millis = *took;
                    }
                    changes.push(Change::Layer(Box::new(record.clone())));
                }
                Event::LayerFailed { key, kind, env, fault, .. } => {
                    let record = self.layer(*key, *kind, env);
                    record.state = LayerState::Failed { fault: fault.clone() };
                    changes.push(Change::Layer(Box::new(record.clone())));
                }
                Event::CoordinatorRestarted { .. }
                | Event::StoreRestored { .. }
                | Event::RestoreAccepted { .. }
                | Event::RunForgotten { .. }
                | Event::WorkerConnected { .. }
                | Event::WorkerDisconnected { .. }
                | Event::WorkerDraining { .. }
                | Event::WorkerGone { .. }
                | Event::LayerAwaited { .. }
                | Event::LayerAnswered { .. }
                | Event::LayerReleased { .. }
                // Allocations are the engine's alone: the journal has them.
                | Event::WorkerUnfit { .. }
                | Event::PoolSet { .. }
                | Event::PoolRemoved { .. }
                | Event::PartitionSeen { .. }
                | Event::PoolFailed { .. }
                | Event::PoolPaused { .. }
                | Event::PoolResumed { .. }
                | Event::AllocationsRequested { .. }
                | Event::SubmissionAccepted { .. }
                | Event::SubmissionRefused { .. }
                | Event::SubmissionDoubted { .. }
                | Event::SubmissionRetried { .. }
                | Event::SubmissionDropped { .. }
                | Event::SubmissionForgotten { .. }
                | Event::QueueAnswered { .. }
                | Event::QueueUnreachable { .. }
                | Event::AllocationsSeen { .. }
                | Event::AllocationMissing { .. }
                | Event::AllocationEnded { .. }
                | Event::AllocationReleased { .. }
                | Event::StrayFound { .. }
                // Money is the engine's; what it comes to is in the run's record.
                | Event::EscrowRequested { .. }
                | Event::EscrowGranted { .. }
                | Event::EscrowRefused { .. }
                | Event::EscrowRecalled { .. }
                | Event::EscrowReported { .. }
                | Event::PursesClosed { .. }
                | Event::BudgetRaised { .. }
                | Event::BudgetNearlySpent { .. }
                | Event::EndpointSeen { .. } => {}
            }
        }
        changes.extend(runs.into_iter().filter_map(|run| run_record(engine, run)).map(|r| Change::Run(Box::new(r))));
        let records = episodes.into_iter().filter_map(|episode| episode_record(state, episode));
        changes.extend(records.map(|record| Change::Episode(Box::new(record))));
        changes
    }

    fn finish(
        &mut self,
        changes: &mut Vec<Change>,
        attempt: AttemptId,
        at: Timestamp,
        end: AttemptEnd,
        steps: u32,
        details: EndDetails,
    ) {
        if let Some(mut record) = self.live.remove(&attempt) {
            let EndDetails { last_step, notes } = details;
            record.finish = Some(AttemptFinish { at, end, steps, last_step, notes, late: false });
            changes.push(Change::Attempt(Box::new(record)));
        }
        changes.push(Change::LeaseOver { episode: attempt.episode });
    }

    fn layer(&mut self, key: Digest, kind: longhaul_core::plan::LayerKind, env: &str) -> &mut LayerRecord {
        self.layers.entry(key).or_insert_with(|| LayerRecord {
            key,
            kind,
            env: env.to_owned(),
            // Replaced at once by the caller, who knows better.
            state: LayerState::Ready { content: key, bytes: 0 },
            build_millis: Millis(0),
            builds: 0,
            uses: 0,
        })
    }
}

/// The run whose money an event changes, if it does.
pub(crate) const fn run_with_other_money(event: &Event) -> Option<RunId> {
    match event {
        Event::EscrowRequested { lease, .. }
        | Event::EscrowGranted { lease, .. }
        | Event::EscrowRefused { lease, .. }
        | Event::EscrowReported { lease, .. }
        | Event::PursesClosed { lease, .. }
        | Event::AttemptEnded { lease, .. }
        | Event::AttemptLost { lease, .. } => Some(lease.attempt.episode.run),
        Event::BudgetRaised { run, .. } => Some(*run),
        _ => None,
    }
}

/// What a run may spend and has spent; episodes aside, which come and go.
pub(crate) fn scopes(engine: &Engine, run: RunId) -> Vec<ScopeRecord> {
    engine.shared_budget(run).into_iter().map(scope_record).collect()
}

pub(crate) fn scope_record(view: ScopeView) -> ScopeRecord {
    ScopeRecord {
        name: view.scope.to_string(),
        cap: view.cap,
        settled: view.settled,
        escrow: view.escrow,
        unconfirmed: view.unconfirmed,
        largest_exposure: view.largest_exposure,
        overshoot: view.overshoot,
        waiting: view.waiting,
        warned: view.warned,
        stopped: view.stopped,
    }
}

fn run_record(engine: &Engine, id: RunId) -> Option<RunRecord> {
    let run = engine.state().runs.get(&id)?;
    Some(RunRecord {
        id,
        name: run.plan.name.clone(),
        benchmark: run.plan.benchmark.clone(),
        plan: run.digest,
        episodes: u32::try_from(run.episodes.len()).unwrap_or(u32::MAX),
        submitted_at: run.submitted_at,
        cancelled: run.cancelled.as_ref().map(|order| Cancellation { at: order.at, by: order.by.clone() }),
        settled_at: run.settled_at,
        scopes: scopes(engine, id),
        file: run.terms.file.clone(),
    })
}

pub(crate) fn episode_record(state: &State, id: EpisodeId) -> Option<EpisodeRecord> {
    let run = state.runs.get(&id.run)?;
    let (episode, entry) = run.episode(id.index)?;
    let attempt = |number| AttemptId { episode: id, number };
    let state = match &episode.state {
        state::EpisodeState::Queued { .. } => EpisodeState::Queued,
        state::EpisodeState::Active { number, .. } => EpisodeState::Active { attempt: attempt(*number) },
        state::EpisodeState::Settled { at, settlement } => EpisodeState::Settled {
            settlement: settlement.clone(),
            at: *at,
            attempt: Some(episode.attempts()).filter(|number| *number > 0).map(attempt),
        },
    };
    Some(EpisodeRecord {
        id,
        task: entry.task.clone(),
        agent: run.agent(entry.agent).map(|agent| agent.name().to_owned()).unwrap_or_default(),
        sample: entry.sample,
        plan: entry.plan,
        attempts: episode.attempts(),
        state,
        earlier: episode.earlier.clone(),
    })
}
