//! Whether an episode is tried again: only after a fault, by its class, and within bounds.

use longhaul_core::ids::{EpisodeId, WorkerId};
use longhaul_core::outcome::{AttemptEnd, Fault, FaultClass, Settlement};
use longhaul_core::resume::ResumePolicy;
use longhaul_core::time::Millis;

use super::resume;
use crate::engine::Engine;
use crate::settings::Settings;
use crate::state::{Episode, LayerState, PastAttempt, PastEnd, Run, State, cut_off_counts};

/// How an attempt ended, reported or not.
pub(super) enum Ending {
    /// As its worker says.
    Reported(AttemptEnd),
    /// Without a report: of the class `WorkerLost` or `Preempted`.
    Lost(Fault),
}

/// An attempt that is over.
pub(super) struct Over<'a> {
    /// The worker that held it.
    pub(super) worker: WorkerId,
    /// How it ended.
    pub(super) ending: &'a Ending,
    /// How many steps its trajectory has, as its worker reported.
    pub(super) steps: u32,
    /// Whether it was to go on where the one before it was cut off.
    pub(super) resumes: bool,
    /// How much time its worker had left when it began, if the end of that time cut it off.
    pub(super) cut_off: Option<Millis>,
    /// Whether a person had asked for its end.
    pub(super) stopped: bool,
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
            fault: Some(FaultClass::Verifier),
            parts: verdict.parts,
        },
        end => end,
    }
}

/// What becomes of an episode whose live attempt ended. One that is only verified again is at
/// worst settled as it was.
pub(super) fn next(engine: &Engine, id: EpisodeId, over: &Over<'_>) -> Next {
    let next = next_of_any(engine, id, over);
    let again = engine.state.episode(id).filter(|episode| episode.verifies().is_some());
    match (next, again) {
        (Next::Settle(Settlement::Faulted(fault)), Some(episode)) => Next::Settle(as_before(episode.stopped(), &fault)),
        (Next::Settle(Settlement::Cancelled), Some(episode)) => Next::Settle(episode.stopped()),
        (next, _) => next,
    }
}

/// A settlement without a verdict, which another verification did not change.
fn as_before(settlement: Settlement, fault: &Fault) -> Settlement {
    match settlement {
        Settlement::Unverified { ended_by, reason, fault: class, parts } => {
            let again = format!("{reason}; it could not be verified again: {}: {}", fault.class, fault.message);
            Settlement::Unverified { ended_by, reason: again, fault: class, parts }
        }
        other => other,
    }
}

fn next_of_any(engine: &Engine, id: EpisodeId, over: &Over<'_>) -> Next {
    let state = &engine.state;
    let Some(run) = state.runs.get(&id.run) else { return Next::Requeue(Millis(0)) };
    let Some((episode, _)) = run.episode(id.index) else { return Next::Requeue(Millis(0)) };
    match over.ending {
        Ending::Reported(AttemptEnd::Verdict(verdict)) => Next::Settle(Settlement::Verdict(verdict.clone())),
        Ending::Reported(AttemptEnd::Unverified { ended_by, reason, fault, parts }) => {
            Next::Settle(Settlement::Unverified {
                ended_by: *ended_by,
                reason: reason.clone(),
                fault: *fault,
                parts: parts.clone(),
            })
        }
        // Whatever else ends after a cancel had no verdict before it.
        _ if run.cancelled.is_some() => Next::Settle(Settlement::Cancelled),
        // Stopped as a person had wanted it, who then had the run go on.
        Ending::Reported(AttemptEnd::Cancelled) if over.stopped => Next::Requeue(Millis(0)),
        Ending::Reported(end @ AttemptEnd::Cancelled) => {
            let message = "the worker stopped the attempt as cancelled, which nobody had asked for".to_owned();
            let fault = Fault { class: FaultClass::Preempted, message, log_tail: None };
            after_fault(engine, id, (run, episode), over, PastEnd::of(end), &fault)
        }
        Ending::Reported(end @ AttemptEnd::Fault(fault)) => {
            after_fault(engine, id, (run, episode), over, PastEnd::of(end), fault)
        }
        Ending::Lost(fault) => after_fault(engine, id, (run, episode), over, PastEnd::Lost(fault.class), fault),
    }
}

fn after_fault(
    engine: &Engine,
    id: EpisodeId,
    (run, episode): (&Run, &Episode),
    over: &Over<'_>,
    end: PastEnd,
    fault: &Fault,
) -> Next {
    let settings = &engine.settings;
    if fault.class == FaultClass::LayerBuild && layer_has_failed(&engine.state, id) {
        return Next::Settle(Settlement::Faulted(fault.clone()));
    }
    if over.resumes && end.diverged() {
        // It starts again unless it may not; how, the next placement decides.
        let tries = resume::diverged(episode).saturating_add(1);
        let stays = run.plan.retry.resume == ResumePolicy::Replay || episode.verifies().is_some();
        let enough = stays && tries >= settings.max_replays.max(1);
        return if enough { Next::Settle(Settlement::Faulted(fault.clone())) } else { Next::Requeue(Millis(0)) };
    }
    if !end.counts_where(over.resumes) {
        // Nobody's fault but the node's: another worker may start it at once, but not for ever.
        return match set_aside(engine, (run, episode), over, end, fault) {
            Some(message) => Next::Settle(Settlement::Faulted(Fault { message, ..fault.clone() })),
            None => Next::Requeue(Millis(0)),
        };
    }
    let used = episode.counted_attempts().saturating_add(1);
    if used >= run.plan.retry.max_attempts {
        return Next::Settle(Settlement::Faulted(fault.clone()));
    }
    Next::Requeue(backoff(settings, run.plan.retry.backoff, used))
}

/// Why an episode is not tried again after what was no fault of its own, if it was enough.
fn set_aside(
    engine: &Engine,
    (run, episode): (&Run, &Episode),
    over: &Over<'_>,
    end: PastEnd,
    fault: &Fault,
) -> Option<String> {
    let (settings, worker) = (&engine.settings, over.worker);
    let enough = |count: usize, limit: u32| count >= usize::try_from(limit.max(1)).unwrap_or(usize::MAX);
    if end.took_worker() && engine.explained_loss(worker).is_none() {
        let lost = with_this_one(engine, episode, worker, PastAttempt::took_worker);
        return enough(lost.len(), settings.max_lost_workers).then(|| {
            let (times, lost) = (lost.len(), lost.join(", "));
            let last = &fault.message;
            format!("set aside: workers were lost {times} times while they ran it ({lost}); the last time: {last}")
        });
    }
    if end.met_full_disk() {
        let full = with_this_one(engine, episode, worker, |past| past.end.met_full_disk());
        return enough(full.len(), settings.max_full_disks).then(|| {
            let (times, full, last) = (full.len(), full.join(", "), &fault.message);
            format!(
                "set aside: {times} of its attempts ended on a full disk ({full}): make room there, or name another \
                 folder for scratch (`paths.scratch` in the settings); the last time: {last}"
            )
        });
    }
    let longest = engine.longest_offer();
    let (had, longest) = (over.cut_off?, longest?);
    if run.gains(episode, over.steps) || !cut_off_counts(had, longest) {
        return None;
    }
    let times = episode.cut_offs(Some(longest)).saturating_add(1);
    (times >= run.plan.retry.max_cut_offs.max(1)).then(|| {
        format!(
            "set aside: {times} of its attempts were cut off by the end of their allocation, the last one with {had} \
             before it, and the longest walltime on offer is {longest}: give a pool a longer `time` \
             (`[slurm.pools.NAME]` in the settings), or the run a shorter --time, and run the task again"
        )
    })
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

/// The workers of an episode's attempts that ended so, `worker` being the last of them: node
/// and id, for people.
fn with_this_one(
    engine: &Engine,
    episode: &Episode,
    worker: WorkerId,
    so: impl Fn(&PastAttempt) -> bool,
) -> Vec<String> {
    let before = episode.recent().iter().filter(|past| so(past));
    let mut workers: Vec<_> = before.map(|past| format!("{} on {}", past.worker, past.hostname)).collect();
    workers.push(match engine.state.workers.get(&worker) {
        Some(record) => format!("{worker} on {}", record.profile.hostname),
        None => worker.to_string(),
    });
    workers
}
