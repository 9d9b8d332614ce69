//! Layers: one worker builds, the others wait, and nobody waits for nobody.

use std::collections::BTreeSet;

use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, RunId, WorkerId};
use longhaul_core::outcome::FaultClass;
use longhaul_core::plan::LayerKind;

use super::draft::Draft;
use crate::command::{LayerOutcome, Rejection};
use crate::event::Event;
use crate::state::{Layer, LayerState};

impl Draft<'_> {
    pub(super) fn claim_layer(
        &mut self,
        worker: WorkerId,
        key: Digest,
        kind: LayerKind,
        env: String,
    ) -> Result<(), Rejection> {
        let Some(record) = self.state().workers.get(&worker) else {
            return Err(Rejection::UnknownWorker { worker });
        };
        let wants = |attempt: &AttemptId| self.state().env_of(attempt.episode).is_some_and(|known| known.name == env);
        if !record.leases.keys().any(wants) {
            // The attempt that wanted it is over, and the worker hears of that in a moment:
            // told to build, it would not, and nobody else would be.
            return Ok(());
        }
        let at = self.at;
        let claimed = |env| Event::LayerClaimed { at, key, kind, env, worker };
        let answer = match self.state().layers.get(&key).map(|layer| &layer.state) {
            None => claimed(env),
            Some(LayerState::Building { worker: builder, .. }) if *builder == worker => claimed(env),
            Some(LayerState::Building { .. }) => Event::LayerAwaited { at, key, worker },
            // It was told that the layer is there, and lacks it all the same: the folder
            // is not shared, or was pruned.
            Some(LayerState::Ready { told, .. }) if told.contains(&worker) => claimed(env),
            Some(LayerState::Ready { .. }) => Event::LayerAnswered { at, key, worker },
            Some(LayerState::Failed { runs, .. }) => {
                let wanting = self.runs_wanting(&env, [worker]);
                let tried = !wanting.is_empty() && wanting.is_subset(runs);
                if tried { Event::LayerAnswered { at, key, worker } } else { claimed(env) }
            }
        };
        self.push(answer);
        Ok(())
    }

    pub(super) fn report_layer(
        &mut self,
        worker: WorkerId,
        key: Digest,
        kind: LayerKind,
        env: String,
        outcome: LayerOutcome,
    ) {
        let at = self.at;
        let known = self.state().layers.get(&key);
        let (builder, waiters) = match known {
            Some(Layer { state: LayerState::Building { worker, waiters, .. }, .. }) => (Some(*worker), waiters.clone()),
            _ => (None, Vec::new()),
        };
        match outcome {
            // Content is content, whoever has it; only repeating it is no news.
            LayerOutcome::Ready { info, built, took } => {
                let repeated = matches!(
                    known,
                    Some(Layer { state: LayerState::Ready { info: old, told, .. }, .. })
                        if *old == info && told.contains(&worker)
                );
                if !repeated {
                    let mut waiters = waiters;
                    waiters.extend(builder.filter(|builder| *builder != worker));
                    self.push(Event::LayerReady { at, key, kind, env, info, worker, built, took, waiters });
                }
            }
            // Only the one that was told to build speaks for all.
            LayerOutcome::Failed(_) if builder != Some(worker) => {}
            LayerOutcome::Failed(fault) if fault.class == FaultClass::LayerBuild => {
                let wanting = self.runs_wanting(&env, waiters.iter().copied().chain([worker]));
                let runs = wanting.into_iter().collect();
                self.push(Event::LayerFailed { at, key, kind, env, fault, worker, waiters, runs });
            }
            LayerOutcome::Failed(_) => self.pass_on(key),
        }
    }

    /// Takes a layer from the worker that builds it, and tells the next one to build it:
    /// one that still has an attempt, rather one that is connected.
    pub(super) fn pass_on(&mut self, key: Digest) {
        let Some(layer) = self.state().layers.get(&key) else { return };
        let LayerState::Building { waiters, .. } = &layer.state else { return };
        let connected =
            |worker: &WorkerId| self.state().workers.get(worker).is_some_and(|worker| worker.session.is_some());
        let wanting: Vec<_> = waiters.iter().copied().filter(|waiter| self.left_to(*waiter).next().is_some()).collect();
        let next = wanting.iter().copied().find(connected).or_else(|| wanting.first().copied());
        let at = self.at;
        self.push(match next {
            Some(worker) => Event::LayerClaimed { at, key, kind: layer.kind, env: layer.env.clone(), worker },
            None => Event::LayerReleased { at, key },
        });
    }

    /// The runs for whose sake these workers want a layer of an env: those of their live
    /// attempts on it, or of all their attempts where the name tells nothing.
    fn runs_wanting(&self, env: &str, workers: impl IntoIterator<Item = WorkerId>) -> BTreeSet<RunId> {
        let state = self.state();
        let mut runs = BTreeSet::new();
        for worker in workers {
            let of_env = |name: Option<&str>| {
                let live = state.workers.get(&worker).into_iter().flat_map(|worker| worker.leases.keys());
                let wanted = live.filter(|attempt| {
                    name.is_none_or(|name| state.env_of(attempt.episode).is_some_and(|env| env.name == name))
                });
                wanted.map(|attempt| attempt.episode.run).collect::<BTreeSet<_>>()
            };
            let named = of_env(Some(env));
            runs.extend(if named.is_empty() { of_env(None) } else { named });
        }
        runs
    }
}
