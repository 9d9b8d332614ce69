//! The layers that an env needs, in order, with the key of each.

use longhaul_core::digest::Digest;
use longhaul_core::plan::{EnvPlan, LayerKind, layer_key};
use longhaul_worker::sandbox::LayerBasis;

/// A layer that an env needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Needed {
    pub(super) kind: LayerKind,
    pub(super) key: Digest,
    pub(super) parent: Digest,
}

/// What an env needs over the base image: pure.
pub(super) fn needed(env: &EnvPlan, basis: &LayerBasis) -> Vec<Needed> {
    let mut parent = basis.base;
    let mut needed = Vec::new();
    for (kind, hook) in [(LayerKind::Install, &env.pre_start), (LayerKind::Configure, &env.post_start)] {
        if hook.is_some() {
            let key = layer_key(kind, &parent, &basis.arch, &basis.overlay_driver, env);
            needed.push(Needed { kind, key, parent });
            parent = key;
        }
    }
    needed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env() -> EnvPlan {
        EnvPlan {
            name: "calc_env".to_owned(),
            id: "calc".to_owned(),
            resources: longhaul_core::plan::Resources { cpu_millis: 1000, memory_mib: 1024, gpus: 0 },
            width: 800,
            height: 600,
            net: true,
            mounts: Vec::new(),
            tasks_target: None,
            accounts: Vec::new(),
            pre_start: Some("install".to_owned()),
            post_start: Some("configure".to_owned()),
            reset: None,
            files: Digest::of(b"files"),
            hook_policy: longhaul_core::plan::HookPolicy::Strict,
            pins: Vec::new(),
        }
    }

    fn basis() -> LayerBasis {
        LayerBasis { base: Digest::of(b"base"), arch: "x86_64".to_owned(), overlay_driver: "fuse".to_owned() }
    }

    #[test]
    fn a_changed_install_hook_changes_what_stands_on_it() {
        let one = needed(&env(), &basis());
        let other = needed(&EnvPlan { pre_start: Some("install more".to_owned()), ..env() }, &basis());
        assert_eq!(one.len(), 2);
        assert_eq!(one[1].parent, one[0].key);
        assert_ne!(one[0].key, other[0].key);
        assert_ne!(one[1].key, other[1].key);
    }

    #[test]
    fn a_hook_that_is_not_there_makes_no_layer() {
        let configure_alone = needed(&EnvPlan { pre_start: None, ..env() }, &basis());
        assert_eq!(configure_alone.len(), 1);
        assert_eq!(configure_alone[0].parent, basis().base);
        assert_eq!(needed(&EnvPlan { pre_start: None, post_start: None, ..env() }, &basis()), []);
    }
}
