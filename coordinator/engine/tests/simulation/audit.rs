//! What must be true of the history, beside the state: checked event by event.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, EpisodeId, Epoch, WorkerId};
use longhaul_core::outcome::{AttemptEnd, Settlement};
use longhaul_engine::Event;

use crate::plans;
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
    /// The env of each episode.
    envs: BTreeMap<EpisodeId, String>,
    /// Workers that were left without an attempt on an env, or without any, since their claim.
    done: BTreeSet<(WorkerId, Option<String>)>,
    /// How often a layer of an env whose hook always fails was started to be built.
    pub(crate) broken_builds: u32,
}

fn must(holds: bool, invariant: &str, event: &Event) -> Outcome {
    if holds { Ok(()) } else { Err(format!("{invariant}: {event:?}")) }
}

impl Audit {
    pub(crate) fn observe(&mut self, events: &[Event]) -> Outcome {
        events.iter().try_for_each(|event| self.event(event, events))
    }

    fn event(&mut self, event: &Event, batch: &[Event]) -> Outcome {
        match event {
            Event::RunSubmitted { run, plan, .. } => {
                for (index, entry) in (0..).zip(&plan.episodes) {
                    let name = plan.envs[entry.env as usize].name.clone();
                    self.envs.insert(EpisodeId { run: *run, index }, name);
                }
            }
            Event::LeaseGranted { lease, worker, .. } => {
                let episode = lease.attempt.episode;
                must(lease.epoch > self.last_epoch, "epochs increase over the whole store", event)?;
                must(!self.live.contains_key(&episode), "one live attempt per episode", event)?;
                must(!self.settled.contains_key(&episode), "nothing settled is attempted", event)?;
                must(!self.scored.contains(&episode), "a verdict is never tried again", event)?;
                must(!self.ended.contains(&lease.attempt), "attempts are numbered once", event)?;
                self.last_epoch = lease.epoch;
                self.live.insert(episode, (lease.attempt, lease.epoch, *worker));
            }
            Event::AttemptEnded { lease, worker, end, .. } => {
                self.end(lease.attempt, lease.epoch, *worker, event)?;
                if matches!(end, AttemptEnd::Verdict(_) | AttemptEnd::Unverified { .. }) {
                    self.scored.insert(lease.attempt.episode);
                }
            }
            Event::AttemptLost { lease, worker, .. } => self.end(lease.attempt, lease.epoch, *worker, event)?,
            Event::EpisodeSettled { episode, settlement, .. } => {
                must(!self.live.contains_key(episode), "an episode is settled after its attempt", event)?;
                must(!self.settled.contains_key(episode), "an episode is settled once", event)?;
                let scored = matches!(settlement, Settlement::Verdict(_) | Settlement::Unverified { .. });
                must(
                    scored == self.scored.contains(episode),
                    "a verdict settles its episode, nothing else does",
                    event,
                )?;
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
