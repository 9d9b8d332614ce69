//! Whether an episode is tried again: only after a fault, by its class, and within bounds.

use longhaul_core::ids::{EpisodeId, WorkerId};
use longhaul_core::outcome::{AttemptEnd, Fault, FaultClass, Settlement};
use longhaul_core::time::Millis;

use crate::engine::Engine;
use crate::settings::Settings;
use crate::state::{Episode, LayerState, PastEnd, Run, State};

/// How an attempt ended, reported or not.
pub(super) enum Ending {
    /// As its worker says.
    Reported(AttemptEnd),
    /// Without a report: of the class `WorkerLost` or `Preempted`.
    Lost(Fault),
}

/// What becomes of an episode.
pub(super) enum Next {
    /// It is over.
    Settle(Settlement),
    /// It is tried again after a while.
    Requeue(Millis),
}

/// An end as it is recorded. A score that is not a finite number has no place in a
/// journal or a table, and whatever gives one is not to be trusted.
pub(super) fn recordable(end: AttemptEnd) -> AttemptEnd {
    match end {
        AttemptEnd::Verdict(verdict) if !verdict.score.is_finite() => AttemptEnd::Unverified {
            ended_by: verdict.ended_by,
            reason: format!("the verifier's score is not a finite number: {}", verdict.score),
        },
        end => end,
    }
}

/// What becomes of an episode whose live attempt, held by `worker`, ended.
pub(super) fn next(engine: &Engine, id: EpisodeId, worker: WorkerId, ending: &Ending) -> Next {
    let state = &engine.state;
    let Some(run) = state.runs.get(&id.run) else { return Next::Requeue(Millis(0)) };
    let Some((episode, _)) = run.episode(id.index) else { return Next::Requeue(Millis(0)) };
    match ending {
        Ending::Reported(AttemptEnd::Verdict(verdict)) => Next::Settle(Settlement::Verdict(verdict.clone())),
        Ending::Reported(AttemptEnd::Unverified { ended_by, reason }) => {
            Next::Settle(Settlement::Unverified { ended_by: *ended_by, reason: reason.clone() })
        }
        // Whatever else ends after a cancel had no verdict before it.
        _ if run.cancelled.is_some() => Next::Settle(Settlement::Cancelled),
        Ending::Reported(end @ AttemptEnd::Cancelled) => {
            let message = "the worker stopped the attempt as cancelled, which nobody had asked for".to_owned();
            let fault = Fault { class: FaultClass::Preempted, message, log_tail: None };
            after_fault(engine, id, run, episode, worker, PastEnd::of(end), &fault)
        }
        Ending::Reported(end @ AttemptEnd::Fault(fault)) => {
            after_fault(engine, id, run, episode, worker, PastEnd::of(end), fault)
        }
        Ending::Lost(fault) => after_fault(engine, id, run, episode, worker, PastEnd::Lost(fault.class), fault),
    }
}

fn after_fault(
    engine: &Engine,
    id: EpisodeId,
    run: &Run,
    episode: &Episode,
    worker: WorkerId,
    end: PastEnd,
    fault: &Fault,
) -> Next {
    let settings = &engine.settings;
    if fault.class == FaultClass::LayerBuild && layer_has_failed(&engine.state, id) {
        return Next::Settle(Settlement::Faulted(fault.clone()));
    }
    if end.took_worker() && engine.explained_loss(worker).is_none() {
        let lost = workers_lost(&engine.state, episode, worker);
        if lost.len() >= usize::try_from(settings.max_lost_workers.max(1)).unwrap_or(usize::MAX) {
            let message = format!(
                "set aside: workers were lost {} times while they ran it ({}); the last time: {}",
                lost.len(),
                lost.join(", "),
                fault.message
            );
            return Next::Settle(Settlement::Faulted(Fault { message, ..fault.clone() }));
        }
    }
    if !end.counts() {
        // Nobody's fault but the node's: another worker may start it at once.
        return Next::Requeue(Millis(0));
    }
    let used = episode.counted_attempts().saturating_add(1);
    if used >= run.plan.retry.max_attempts {
        return Next::Settle(Settlement::Faulted(fault.clone()));
    }
    Next::Requeue(backoff(settings, run.plan.retry.backoff, used))
}

/// The wait before another attempt when `used` of them are used up: doubled each time.
fn backoff(settings: &Settings, first: Millis, used: u32) -> Millis {
    let factor = 1_u64.checked_shl(used.saturating_sub(1)).unwrap_or(u64::MAX);
    Millis(first.0.saturating_mul(factor)).min(settings.max_backoff)
}

/// Whether a layer of the episode's env is known to fail for its run.
fn layer_has_failed(state: &State, id: EpisodeId) -> bool {
    let Some(env) = state.env_of(id) else { return false };
    state.layers.values().any(|layer| match &layer.state {
        LayerState::Failed { runs, .. } => layer.env == env.name && runs.contains(&id.run),
        LayerState::Building { .. } | LayerState::Ready { .. } => false,
    })
}

/// The workers that were lost with the episode, `worker` being the last of them: node
/// and id, for people.
fn workers_lost(state: &State, episode: &Episode, worker: WorkerId) -> Vec<String> {
    let before = episode.past.iter().filter(|past| past.took_worker());
    let mut lost: Vec<_> = before.map(|past| format!("{} on {}", past.worker, past.hostname)).collect();
    lost.push(match state.workers.get(&worker) {
        Some(record) => format!("{worker} on {}", record.profile.hostname),
        None => worker.to_string(),
    });
    lost
}
