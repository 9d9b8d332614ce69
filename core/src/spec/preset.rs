//! The presets that an env's `base` names: what Longhaul reads of them.

use std::sync::OnceLock;

use serde_json::{Map, Value};

/// The presets of Gym-Anything by name, with the keys that mean something here.
const PRESETS: &str = include_str!("presets.json");

/// The preset of this name.
#[must_use]
pub fn preset(base: &str) -> Option<&'static Map<String, Value>> {
    static PARSED: OnceLock<Map<String, Value>> = OnceLock::new();
    PARSED
        .get_or_init(|| serde_json::from_str(PRESETS).expect("invariant: the presets in the program are a JSON object"))
        .get(base)?
        .as_object()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{Format, parse_env};

    #[test]
    fn every_preset_is_an_env_but_for_its_id() {
        let all: Map<String, Value> = serde_json::from_str(PRESETS).unwrap();
        assert_eq!(all.len(), 10);
        for base in all.keys() {
            let text = format!("{{\"id\": \"x\", \"base\": \"{base}\"}}");
            let mut out = Vec::new();
            let env = parse_env(text.as_bytes(), Format::Json, "x", &mut out).unwrap();
            assert_eq!(out, [], "{base}");
            assert!(env.screen.width >= 1080, "{base}");
        }
        assert!(preset("ubuntu-gnome-systemd_highres").is_some());
        assert!(preset("no-such-base").is_none());
    }
}
