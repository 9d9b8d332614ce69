//! What must be true of the history, beside the state: checked event by event.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, EpisodeId, Epoch, WorkerId};
use longhaul_core::outcome::{AttemptEnd, Fault, FaultClass, Settlement};
use longhaul_core::resume::ResumePolicy;
use longhaul_engine::allocation::Queue;
use longhaul_engine::{Engine, Event, Token};

use crate::plans;
use crate::samples::Samples;
use crate::world::Outcome;

/// What the journal said so far.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    last_epoch: Epoch,
    live: BTreeMap<EpisodeId, (AttemptId, Epoch, WorkerId)>,
    ended: BTreeSet<AttemptId>,
    scored: BTreeSet<EpisodeId>,
    settled: BTreeMap<EpisodeId, Settlement>,
    builders: BTreeMap<Digest, WorkerId>,
    /// How many attempts each episode may have, and has used up.
    retries: BTreeMap<EpisodeId, (u32, u32)>,
    /// What each episode may resume, how often in a row it did not get there, and whether its live
    /// attempt is to.
    resumes: BTreeMap<EpisodeId, (ResumePolicy, u32, bool)>,
    /// Episodes that are only verified again.
    verifying: BTreeSet<EpisodeId>,
    /// How many workers were lost with each episode.
    lost: BTreeMap<EpisodeId, u32>,
    /// How many attempts of each episode met a full disk, and the end of an allocation.
    full_disks: BTreeMap<EpisodeId, u32>,
    cut_off: BTreeMap<EpisodeId, u32>,
    /// The tokens that were ever given out.
    tokens: BTreeSet<Token>,
    /// The env of each episode.
    envs: BTreeMap<EpisodeId, String>,
    /// Workers that were left without an attempt on an env, or without any, since their claim.
    done: BTreeSet<(WorkerId, Option<String>)>,
    /// Of runs that sample until enough have passed.
    pub(crate) samples: Samples,
    /// How often a layer of an env whose hook always fails was started to be built.
    pub(crate) broken_builds: u32,
}

fn must(holds: bool, invariant: &str, event: &Event) -> Outcome {
    if holds { Ok(()) } else { Err(format!("{invariant}: {event:?}")) }
}

impl Audit {
    /// Checks a batch, after which the engine is as given.
    pub(crate) fn observe(&mut self, events: &[Event], engine: &Engine) -> Outcome {
        for event in events {
            self.event(event, events)?;
            self.samples.event(event)?;
            self.allocations(event, engine)?;
        }
        self.samples.after()
    }

    fn event(&mut self, event: &Event, batch: &[Event]) -> Outcome {
        match event {
            Event::RunSubmitted { run, plan, .. } => {
                for (index, entry) in (0..).zip(&plan.episodes) {
                    let name = plan.envs[entry.env as usize].name.clone();
                    self.envs.insert(EpisodeId { run: *run, index }, name);
                    self.retries.insert(EpisodeId { run: *run, index }, (plan.retry.max_attempts, 0));
                    self.resumes.insert(EpisodeId { run: *run, index }, (plan.retry.resume, 0, false));
                }
            }
            Event::RunResumed { run, episodes, .. } => {
                for index in episodes {
                    self.reopened(EpisodeId { run: *run, index: *index }, event)?;
                }
            }
            Event::LeaseGranted { lease, worker, resumes, .. } => {
                let episode = lease.attempt.episode;
                self.may_resume(lease.attempt, *resumes, event)?;
                must(lease.epoch > self.last_epoch, "epochs increase over the whole store", event)?;
                must(!self.live.contains_key(&episode), "one live attempt per episode", event)?;
                must(!self.settled.contains_key(&episode), "nothing settled is attempted", event)?;
                must(!self.scored.contains(&episode), "a verdict is never tried again", event)?;
                must(!self.ended.contains(&lease.attempt), "attempts are numbered once", event)?;
                self.last_epoch = lease.epoch;
                self.live.insert(episode, (lease.attempt, lease.epoch, *worker));
            }
            Event::AttemptEnded { lease, worker, end, steps, cut_off, .. } => {
                self.end(lease.attempt, lease.epoch, *worker, event)?;
                *self.cut_off.entry(lease.attempt.episode).or_default() += u32::from(cut_off.is_some());
                if matches!(end, AttemptEnd::Fault(fault) if fault.class == FaultClass::NodeDisk) {
                    let full = self.full_disks.entry(lease.attempt.episode).or_default();
                    *full += 1;
                    must(*full <= 6, "full disks end an episode at last", event)?;
                }
                let diverged = self.resumed(lease.attempt.episode, end, *steps);
                let spares = |fault: &Fault| {
                    diverged
                        || matches!(fault.class, FaultClass::WorkerLost | FaultClass::Preempted | FaultClass::NodeDisk)
                };
                if !matches!(end, AttemptEnd::Fault(fault) if spares(fault))
                    && let Some((_, used)) = self.retries.get_mut(&lease.attempt.episode)
                {
                    *used += 1;
                }
                if matches!(end, AttemptEnd::Fault(fault) if fault.class == FaultClass::WorkerLost) {
                    *self.lost.entry(lease.attempt.episode).or_default() += 1;
                }
                if matches!(end, AttemptEnd::Verdict(_) | AttemptEnd::Unverified { .. }) {
                    self.scored.insert(lease.attempt.episode);
                }
            }
            Event::AttemptLost { lease, worker, fault, cut_off, steps, .. } => {
                self.end(lease.attempt, lease.epoch, *worker, event)?;
                self.resumed(lease.attempt.episode, &AttemptEnd::Fault(fault.clone()), *steps);
                *self.cut_off.entry(lease.attempt.episode).or_default() += u32::from(cut_off.is_some());
                if fault.class == FaultClass::WorkerLost {
                    *self.lost.entry(lease.attempt.episode).or_default() += 1;
                }
            }
            Event::EpisodeSettled { episode, settlement, .. } => {
                must(!self.live.contains_key(episode), "an episode is settled after its attempt", event)?;
                must(!self.settled.contains_key(episode), "an episode is settled once", event)?;
                let scored = matches!(settlement, Settlement::Verdict(_) | Settlement::Unverified { .. });
                // One that was only verified again is settled as it was, if nothing came of it.
                let as_before = self.verifying.contains(episode) && matches!(settlement, Settlement::Unverified { .. });
                must(
                    scored == self.scored.contains(episode) || as_before,
                    "a verdict settles its episode, nothing else does",
                    event,
                )?;
                if let Settlement::Faulted(fault) = settlement {
                    let (allowed, used) = self.retries.get(episode).copied().unwrap_or_default();
                    let lost = self.lost.get(episode).copied().unwrap_or(0) >= 3;
                    let many = |counts: &BTreeMap<EpisodeId, u32>, limit: u32| {
                        counts.get(episode).is_some_and(|count| *count >= limit)
                    };
                    let gave_up = matches!(self.resumes.get(episode), Some((ResumePolicy::Replay, 2.., _)));
                    let befell = many(&self.full_disks, 6) || many(&self.cut_off, 3) || gave_up;
                    let spent = used >= allowed || fault.class == FaultClass::LayerBuild || lost || befell;
                    must(spent, "no retry is used by a preemption", event)?;
                }
                self.settled.insert(*episode, settlement.clone());
            }
            Event::LayerClaimed { key, worker, env, .. } => {
                if let Some(before) = self.builders.insert(*key, *worker)
                    && before != *worker
                {
                    let done = [Some(env.clone()), None].map(|env| self.done.contains(&(before, env)));
                    let over = done.contains(&true) || reports(batch, *key) || gone(batch, before);
                    must(over, "one builder per layer", event)?;
                }
                self.done.remove(&(*worker, Some(env.clone())));
                self.done.remove(&(*worker, None));
                self.broken_builds += u32::from(env == plans::BROKEN);
            }
            Event::LayerReleased { key, .. } | Event::LayerReady { key, .. } | Event::LayerFailed { key, .. } => {
                self.builders.remove(key);
            }
            _ => {}
        }
        Ok(())
    }

    /// A person takes a settlement back, which is no verdict.
    fn reopened(&mut self, episode: EpisodeId, event: &Event) -> Outcome {
        let before = self.settled.remove(&episode);
        let no_verdict = before.as_ref().is_some_and(|before| !matches!(before, Settlement::Verdict(_)));
        must(no_verdict, "only what was settled without a verdict is done again", event)?;
        if matches!(before, Some(Settlement::Unverified { .. })) {
            self.verifying.insert(episode);
        } else {
            self.verifying.remove(&episode);
        }
        self.scored.remove(&episode);
        if let Some((_, used)) = self.retries.get_mut(&episode) {
            *used = 0;
        }
        if let Some((_, row, _)) = self.resumes.get_mut(&episode) {
            *row = 0;
        }
        for counts in [&mut self.lost, &mut self.full_disks, &mut self.cut_off] {
            counts.remove(&episode);
        }
        Ok(())
    }

    /// An attempt goes on from an earlier one only where its run lets it, and not for ever.
    fn may_resume(&mut self, attempt: AttemptId, resumes: bool, event: &Event) -> Outcome {
        let verifies = self.verifying.contains(&attempt.episode);
        let Some((policy, row, live)) = self.resumes.get_mut(&attempt.episode) else { return Ok(()) };
        *live = resumes;
        let allowed = verifies || *policy == ResumePolicy::Replay || (*policy == ResumePolicy::Auto && *row < 2);
        must(!resumes || allowed, "what may not resume starts again", event)?;
        must(!resumes || attempt.number > 1, "the first attempt resumes nothing", event)?;
        must(!verifies || resumes, "what ran to its end is not run again", event)
    }

    /// Whether an attempt that ends did not get where it was to go on from. One that has steps did.
    fn resumed(&mut self, episode: EpisodeId, end: &AttemptEnd, steps: u32) -> bool {
        let Some((_, row, live)) = self.resumes.get_mut(&episode) else { return false };
        let diverged = *live && matches!(end, AttemptEnd::Fault(fault) if fault.class == FaultClass::ReplayDiverged);
        let arrived = !diverged && steps > 0;
        *row = if *live && !arrived { *row + u32::from(diverged) } else { 0 };
        diverged
    }

    /// What is asked of Slurm stays within what may be.
    fn allocations(&mut self, event: &Event, engine: &Engine) -> Outcome {
        let state = engine.state();
        match event {
            Event::AllocationsRequested { at, pool, token, count, .. } => {
                must(self.tokens.insert(token.clone()), "a token is given out once", event)?;
                must(*count > 0, "nothing is asked for in vain", event)?;
                let limits = &state.pools[pool].pool;
                let live: Vec<_> = state.allocations_of(pool).filter(|(_, _, task)| task.is_live()).collect();
                let fits = |count: usize, limit: u32| u32::try_from(count).is_ok_and(|count| count <= limit);
                let waiting = live.iter().filter(|(_, _, task)| task.is_waiting()).count();
                must(fits(live.len(), limits.max_workers), "never more workers than may be", event)?;
                must(fits(waiting, limits.max_queued), "never more in the queue than may be", event)?;
                let plan = engine.plan(*at).into_iter().find(|plan| plan.pool == *pool);
                let committed = plan.map(|plan| plan.committed);
                let within = limits.max_node_time.is_none_or(|limit| committed.is_some_and(|sum| sum <= limit));
                must(within, "never more time of nodes than may be", event)?;
                must(matches!(state.queue, Queue::Reachable { .. }), "nothing is asked of a queue unseen", event)?;
            }
            Event::SubmissionRetried { token, .. } => {
                let answered = state.submissions[token].job().is_none();
                must(answered && self.tokens.contains(token), "what Slurm has is not asked again", event)?;
            }
            Event::LeaseGranted { worker, .. } => {
                let view = engine.workers().find(|view| view.worker == *worker);
                let Some(view) = view else { return Ok(()) };
                let least = engine.settings().min_remaining;
                must(view.remaining.is_none_or(|left| left >= least), "no lease near the end of a walltime", event)?;
                must(view.unfit.is_none(), "no lease to a worker that is unfit", event)?;
                if let Some(from) = view.profile.allocation
                    && let Some((_, task)) = state.allocation(&from.id())
                {
                    let current = task.worker == Some(*worker) && task.is_live() && task.release.is_none();
                    must(current, "no lease where another incarnation runs", event)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self, attempt: AttemptId, epoch: Epoch, worker: WorkerId, event: &Event) -> Outcome {
        let live = self.live.remove(&attempt.episode);
        must(live == Some((attempt, epoch, worker)), "a stale epoch changes nothing", event)?;
        must(self.ended.insert(attempt), "an attempt ends once", event)?;
        let env = self.envs.get(&attempt.episode);
        let mut left = self.live.iter().filter(|(_, (_, _, other))| *other == worker).peekable();
        if left.peek().is_none() {
            self.done.insert((worker, None));
        }
        if left.all(|(episode, _)| self.envs.get(episode) != env) {
            self.done.insert((worker, env.cloned()));
        }
        Ok(())
    }
}

/// A transient failure leaves no event of its own: the claim just passes on.
fn reports(batch: &[Event], key: Digest) -> bool {
    batch.len() == 1 && matches!(&batch[0], Event::LayerClaimed { key: claimed, .. } if *claimed == key)
}

fn gone(batch: &[Event], worker: WorkerId) -> bool {
    batch.iter().any(|event| matches!(event, Event::WorkerGone { worker: gone, .. } if *gone == worker))
}
