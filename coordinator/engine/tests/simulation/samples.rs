//! What must be true of samples that are run until enough of them have passed: checked event by event,
//! with a count of its own.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_core::ids::{EpisodeId, RunId, TaskName};
use longhaul_core::outcome::Settlement;
use longhaul_core::plan::RunPlan;
use longhaul_engine::Event;

use crate::world::Outcome;

/// The samples of a task by an agent.
type Key = (RunId, TaskName, u32);

#[derive(Debug, Default)]
struct Group {
    wanted: u32,
    /// Those that nobody has begun.
    fresh: BTreeSet<EpisodeId>,
    /// Those that a fault sent back.
    begun: BTreeSet<EpisodeId>,
    live: BTreeSet<EpisodeId>,
    passed: u32,
}

/// All runs of samples.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    groups: BTreeMap<Key, Group>,
    of: BTreeMap<EpisodeId, Key>,
    cancelled: BTreeSet<RunId>,
    /// Those that ever had an attempt.
    ever: BTreeSet<EpisodeId>,
    /// How many samples were settled without a beginning, since others were enough.
    pub(crate) spared: u32,
    /// How many were stopped that a fault had sent back.
    pub(crate) stopped: u32,
}

fn must(holds: bool, invariant: &str, group: &Group, event: &Event) -> Outcome {
    if holds { Ok(()) } else { Err(format!("{invariant}: {event:?}, of {group:?}")) }
}

impl Samples {
    fn submitted(&mut self, run: RunId, plan: &RunPlan) {
        let Some(until) = plan.until else { return };
        for (index, entry) in (0..).zip(&plan.episodes) {
            let (episode, key) = (EpisodeId { run, index }, (run, entry.task.clone(), entry.agent));
            let group = self.groups.entry(key.clone()).or_default();
            group.wanted = until.successes;
            group.fresh.insert(episode);
            self.of.insert(episode, key);
        }
    }

    fn group(&mut self, episode: EpisodeId) -> Option<&mut Group> {
        self.groups.get_mut(self.of.get(&episode)?)
    }

    /// Checks an event.
    pub(crate) fn event(&mut self, event: &Event) -> Outcome {
        match event {
            Event::RunSubmitted { run, plan, .. } => self.submitted(*run, plan),
            Event::RunCancelled { run, .. } => drop(self.cancelled.insert(*run)),
            Event::RunResumed { run, episodes, .. } => {
                self.cancelled.remove(run);
                for index in episodes {
                    let episode = EpisodeId { run: *run, index: *index };
                    let had_begun = self.ever.contains(&episode);
                    if let Some(group) = self.group(episode) {
                        let waiting = if had_begun { &mut group.begun } else { &mut group.fresh };
                        waiting.insert(episode);
                    }
                }
            }
            Event::LeaseGranted { lease, .. } => {
                let episode = lease.attempt.episode;
                self.ever.insert(episode);
                let Some(group) = self.group(episode) else { return Ok(()) };
                must(group.passed < group.wanted, "no sample begins after enough have passed", group, event)?;
                group.fresh.remove(&episode);
                group.begun.remove(&episode);
                group.live.insert(episode);
                let needed = u32::try_from(group.live.len()).unwrap_or(u32::MAX) + group.passed <= group.wanted;
                must(needed, "no more samples live than may still be needed", group, event)?;
            }
            Event::AttemptEnded { lease, .. } | Event::AttemptLost { lease, .. } => {
                let episode = lease.attempt.episode;
                let Some(group) = self.group(episode) else { return Ok(()) };
                if group.live.remove(&episode) {
                    group.begun.insert(episode);
                }
            }
            Event::EpisodeSettled { episode, settlement, .. } => return self.settled(*episode, settlement, event),
            _ => {}
        }
        Ok(())
    }

    fn settled(&mut self, episode: EpisodeId, settlement: &Settlement, event: &Event) -> Outcome {
        let cancelled = self.cancelled.contains(&episode.run);
        let Some(group) = self.group(episode) else { return Ok(()) };
        let fresh = group.fresh.remove(&episode);
        group.begun.remove(&episode);
        let enough = group.passed >= group.wanted;
        match settlement {
            Settlement::Verdict(verdict) if verdict.passed => group.passed += 1,
            Settlement::NotStarted { .. } => {
                must(fresh && enough, "only samples that nobody needs are not started", group, event)?;
                self.spared += 1;
            }
            Settlement::Cancelled if !cancelled => {
                must(!fresh, "a sample that nobody began is not started, and not cancelled", group, event)?;
                self.stopped += u32::from(enough);
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks what is left after a batch.
    pub(crate) fn after(&self) -> Outcome {
        for ((run, task, agent), group) in &self.groups {
            let waits = !group.fresh.is_empty() || !group.begun.is_empty();
            if group.passed >= group.wanted && waits && !self.cancelled.contains(run) {
                return Err(format!("no sample waits once enough have passed: {run} {task} {agent}: {group:?}"));
            }
        }
        Ok(())
    }
}
