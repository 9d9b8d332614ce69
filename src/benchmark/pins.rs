//! Layers of an earlier run that a new run stands on again.
//!
//! What a hook installs differs from day to day, so a layer that is built again is another
//! one, under the same key. A run that is to be compared with an earlier one names the layers of
//! that one, and gets those or none.

use std::collections::BTreeMap;

use longhaul_core::digest::Digest;
use longhaul_core::plan::{EnvPlan, LayerKind, LayerPin, layer_key};

/// What an earlier run stood on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayersFrom {
    /// That run, for people.
    pub run: String,
    /// Its envs, by name.
    pub envs: BTreeMap<String, EnvLayers>,
}

/// What an env of an earlier run stood on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvLayers {
    /// The env as it was then.
    pub plan: EnvPlan,
    /// Its layers, base first.
    pub layers: Vec<LayerPin>,
}

/// The layers of the earlier run do not fit the new one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PinError {
    /// That run had no such env.
    #[error("run {run} had no env `{env}`, whose layers could be used again")]
    NoEnv {
        /// The earlier run.
        run: String,
        /// The env.
        env: String,
    },
    /// No attempt of that run had this layer.
    #[error("no attempt of run {run} got so far as to have the {} layer of `{env}`", kind.name())]
    NoLayer {
        /// The earlier run.
        run: String,
        /// The env.
        env: String,
        /// Which layer.
        kind: LayerKind,
    },
    /// The env is not what it was.
    #[error(
        "the {} layer of `{env}` cannot be that of run {run}: what it is built from (its hook, mounts, accounts, \
         screen, network or policy) has changed since",
        kind.name()
    )]
    Changed {
        /// The earlier run.
        run: String,
        /// The env.
        env: String,
        /// Which layer.
        kind: LayerKind,
    },
}

impl LayersFrom {
    /// The layers that an env of the new run has to stand on, base first: pure.
    ///
    /// # Errors
    ///
    /// The earlier run had none for it, or the env has changed since.
    pub fn pins(&self, env: &EnvPlan) -> Result<Vec<LayerPin>, PinError> {
        let run = || self.run.clone();
        let name = || env.name.clone();
        let then = self.envs.get(&env.name).ok_or_else(|| PinError::NoEnv { run: run(), env: name() })?;
        let wanted = [
            (LayerKind::Base, true),
            (LayerKind::Install, env.pre_start.is_some()),
            (LayerKind::Configure, env.post_start.is_some()),
        ];
        let mut pins = Vec::new();
        for (kind, _) in wanted.into_iter().filter(|(_, wanted)| *wanted) {
            // Parent, architecture and stacking filesystem are those of the worker, and are
            // compared there; all else of a key is in the plan.
            let key = |plan: &EnvPlan| layer_key(kind, &Digest::of(b""), "", "", plan);
            if kind != LayerKind::Base && key(env) != key(&then.plan) {
                return Err(PinError::Changed { run: run(), env: name(), kind });
            }
            let pin = then.layers.iter().find(|pin| pin.kind == kind);
            pins.push(*pin.ok_or_else(|| PinError::NoLayer { run: run(), env: name(), kind })?);
        }
        Ok(pins)
    }
}

#[cfg(test)]
mod tests {
    use longhaul_core::plan::{HookPolicy, Resources};

    use super::*;

    fn env() -> EnvPlan {
        EnvPlan {
            name: "calc_env".to_owned(),
            id: "calc".to_owned(),
            resources: Resources { cpu_millis: 1000, memory_mib: 1024, gpus: 0 },
            width: 800,
            height: 600,
            net: true,
            mounts: Vec::new(),
            tasks_target: None,
            accounts: Vec::new(),
            pre_start: Some("install".to_owned()),
            post_start: None,
            reset: None,
            files: Digest::of(b"files"),
            hook_policy: HookPolicy::Strict,
            pins: Vec::new(),
        }
    }

    fn pin(kind: LayerKind) -> LayerPin {
        LayerPin { kind, key: Digest::of(kind.name().as_bytes()), content: Digest::of(b"content") }
    }

    fn from(layers: Vec<LayerPin>) -> LayersFrom {
        let envs = [("calc_env".to_owned(), EnvLayers { plan: env(), layers })].into();
        LayersFrom { run: "0abc".to_owned(), envs }
    }

    #[test]
    fn an_env_that_is_what_it_was_gets_the_layers_that_it_had() {
        let pins = [LayerKind::Base, LayerKind::Install].map(pin).to_vec();
        assert_eq!(from(pins.clone()).pins(&env()), Ok(pins.clone()));
        // What no layer depends on may change: another task setup, other files for verifiers.
        let other = EnvPlan { reset: Some("reset".to_owned()), files: Digest::of(b"more"), ..env() };
        assert_eq!(from(pins.clone()).pins(&other), Ok(pins));
    }

    #[test]
    fn an_env_that_has_changed_or_never_had_a_layer_is_refused_by_name() {
        let whole = from([LayerKind::Base, LayerKind::Install].map(pin).to_vec());
        let changed = EnvPlan { pre_start: Some("install more".to_owned()), ..env() };
        let error = whole.pins(&changed).unwrap_err();
        assert!(matches!(error, PinError::Changed { kind: LayerKind::Install, .. }));
        assert!(error.to_string().contains("the install layer of `calc_env` cannot be that of run 0abc"), "{error}");
        let more = EnvPlan { post_start: Some("configure".to_owned()), ..env() };
        assert!(matches!(whole.pins(&more), Err(PinError::Changed { kind: LayerKind::Configure, .. })));
        let half = from(vec![pin(LayerKind::Base)]);
        assert!(matches!(half.pins(&env()), Err(PinError::NoLayer { kind: LayerKind::Install, .. })));
        let other = EnvPlan { name: "draw_env".to_owned(), ..env() };
        assert!(matches!(whole.pins(&other), Err(PinError::NoEnv { .. })));
    }
}
