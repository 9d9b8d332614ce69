//! Layers that an earlier run stood on: used again to the byte, or not at all.

use longhaul_core::digest::Digest;
use longhaul_core::outcome::{Fault, FaultClass};
use longhaul_core::plan::{EnvPlan, LayerKind, LayerPin};

use super::fault;

/// Why a layer is not the one that the env is held to, if so: pure. `content` is that of the layer
/// which is there under `key`, if one is.
pub(super) fn check(env: &EnvPlan, kind: LayerKind, key: Digest, content: Option<Digest>) -> Result<(), Fault> {
    if env.pins.is_empty() {
        return Ok(());
    }
    let wrong = |message: String| {
        let message = format!("the {} layer of {} has to be that of an earlier run: {message}", kind.name(), env.name);
        Err(fault(FaultClass::LayerBuild, message))
    };
    let Some(pin) = env.pins.iter().find(|pin| pin.kind == kind) else {
        return wrong("that run had none".to_owned());
    };
    let LayerPin { key: wanted, content: bytes, .. } = pin;
    match (kind, content) {
        _ if *wanted == key && content == Some(*bytes) => Ok(()),
        (LayerKind::Base, _) => {
            wrong(format!("its image is {bytes}, this worker's is {key}: name that image with --base or base.envs"))
        }
        _ if *wanted != key => wrong(format!(
            "its key was {wanted}, here it is {key}: another base image, architecture or stacking file system"
        )),
        (_, None) => wrong(format!("{key} is not in the layer folder: bring it with `longhaul layers import`")),
        (_, Some(other)) => wrong(format!("the content of {key} is {other} now, it was {bytes} then")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::plans;

    fn env(pins: Vec<LayerPin>) -> EnvPlan {
        EnvPlan { pins, ..plans::env(Digest::of(b"files")) }
    }

    fn says(kind: LayerKind, key: Digest, content: Option<Digest>) -> String {
        let pin = |kind, key, content| LayerPin { kind, key, content };
        let (base, key_then, then) = (Digest::of(b"base"), Digest::of(b"key"), Digest::of(b"then"));
        let env = env(vec![pin(LayerKind::Base, base, base), pin(LayerKind::Install, key_then, then)]);
        check(&env, kind, key, content).map_or_else(
            |fault| {
                assert_eq!(fault.class, FaultClass::LayerBuild);
                fault.message
            },
            |()| String::new(),
        )
    }

    #[test]
    fn only_the_same_bytes_under_the_same_key_will_do() {
        let (base, key, then, other) =
            (Digest::of(b"base"), Digest::of(b"key"), Digest::of(b"then"), Digest::of(b"other"));
        assert_eq!(says(LayerKind::Base, base, Some(base)), "");
        assert_eq!(says(LayerKind::Install, key, Some(then)), "");
        assert!(says(LayerKind::Base, other, Some(other)).contains("--base"));
        assert!(says(LayerKind::Install, other, Some(then)).contains("its key was"));
        assert!(says(LayerKind::Install, key, None).contains("is not in the layer folder"));
        assert!(says(LayerKind::Install, key, Some(other)).contains("it was"));
        assert!(says(LayerKind::Configure, key, Some(then)).contains("that run had none"));
        assert_eq!(check(&env(Vec::new()), LayerKind::Install, other, None), Ok(()), "nothing is pinned");
    }
}
