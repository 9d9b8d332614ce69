//! Files that were damaged in any way: every reader answers, and none panics.

use longhaul_core::lint::{Needs, judge_verifier, shown};
use longhaul_core::spec::{
    Diagnostic, Format, parse_audit, parse_checklist, parse_env, parse_split, parse_task, parse_verified,
};
use proptest::prelude::*;

const ENV: &str = r#"{"id": "a@1", "base": "x11-lite", "resources": {"cpu": 2, "mem_gb": 4}, "tags": ["é"],
  "observation": [{"type": "rgb_screen", "resolution": [800, 600]}], "action": [{"type": "mouse"}],
  "mounts": [{"source": "a", "target": "/b", "mode": "ro"}], "hooks": {"pre_start": "/x"},
  "user_accounts": [{"name": "ga", "permissions": {"sudo": true, "env_vars": {"A": "b"}}}]}"#;

const YAML: &str = "id: a@1\nbase: &b x11-lite\nobservation:\n  - {type: rgb_screen, resolution: [800, 600]}\n\
  action: [{type: mouse}]\nhooks:\n  pre_start: |\n    /x\ntags: [*b, \"q\"]\n";

const TASK: &str = r#"{"id": "t@1", "env_id": "a@1", "description": "Do — it.", "init": {"max_steps": 5, "timeout_sec": 60},
  "hooks": {"pre_task": "/s.sh"}, "success": {"mode": "program", "spec": {"program": "verifier.py::f"}},
  "metadata": {"n": [1, 2.5, null, true]}, "longhaul": {"family": "single_app", "rounds": [{"kind": "open", "goal": "g",
  "read": "r.sh", "budget": {"steps": 3}, "assertions": [{"id": "a", "aspect": "business", "says": "s", "at": "/x", "equals": 1},
  {"id": "b", "aspect": "visible", "ask": "q"}]}, {"kind": "return", "goal": "g", "read": "r.sh", "assertions": [
  {"id": "a", "aspect": "retention", "says": "s", "at": "/x", "same_as": {"round": 1, "at": "/x"}}]}]}}"#;

const SPLIT: &str = r#"{"env_folder": "x/a", "train_tasks": ["a", "b"], "additional_splits": {"long_horizon": ["b"]},
  "tasks": ["a/b"], "by_environment": {"a": ["b"]}}"#;

const CHECKLIST: &str = r#"{"task_completion": [{"id": "a", "points": 50, "description": "d"}, {"item": "b"}],
  "integrity": [{"id": "c"}], "privileged_info_for_vlm": "p", "pi_items": [{"status": "verified"}]}"#;

const VERIFIER: &str = "import os\n\ndef f(traj, env_info, task_info):\n    '''doc'''\n    if traj:\n        \
  return {'passed': True, 'score': 100, \"x\": f\"{traj}\"}\n    return {'passed': True}\n";

const SCRIPT: &str = "#!/bin/bash\nset -e\nif ! command -v x; then\n  apt-get install -y x || { echo no; exit 1; }\nfi\n\
  cat > /f <<'EOF'\n$(docker run \"x\")\nEOF\nsu - ga -c \"systemctl start $(y) `z`\" && snap install q\n";

/// Replaces, inserts, removes and repeats bytes at random places.
fn damage(text: &str, cuts: &[(prop::sample::Index, u8, u8)]) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    for (place, kind, byte) in cuts {
        if bytes.is_empty() {
            bytes.push(*byte);
        }
        let at = place.index(bytes.len());
        match kind % 6 {
            0 => bytes[at] = *byte,
            1 => bytes.insert(at, *byte),
            2 => drop(bytes.remove(at)),
            3 => bytes.truncate(at),
            4 => {
                let tail = bytes[at..].to_vec();
                bytes.extend(tail);
            }
            // What grammars care about is far likelier to go wrong than any byte.
            _ => bytes[at] = b"{}[]\"\\:,\n'`$(#&*|<"[usize::from(*byte) % 18],
        }
    }
    bytes
}

fn cuts() -> impl Strategy<Value = Vec<(prop::sample::Index, u8, u8)>> {
    prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<u8>()), 0..12)
}

/// A place is never before the first character, and never beyond the text.
fn check(bytes: &[u8], out: &[Diagnostic]) -> Result<(), TestCaseError> {
    let lines = bytes.split(|byte| *byte == b'\n').count();
    for place in out.iter().filter_map(|diagnostic| diagnostic.place) {
        prop_assert!(place.line >= 1 && place.column >= 1);
        prop_assert!(place.line as usize <= lines + 1, "line {} of {lines}", place.line);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_damaged_spec_panics(cuts in cuts()) {
        for (text, format) in [(ENV, Format::Json), (YAML, Format::Yaml)] {
            let bytes = damage(text, &cuts);
            let mut out = Vec::new();
            if let Err(refused) = parse_env(&bytes, format, "folder", &mut out) {
                out.push(*refused.0);
            }
            check(&bytes, &out)?;
        }
        let bytes = damage(TASK, &cuts);
        let mut out = Vec::new();
        if let Err(refused) = parse_task(&bytes, Format::Json, "t", &mut out) {
            out.push(*refused.0);
        }
        check(&bytes, &out)?;
    }

    #[test]
    fn no_damaged_list_panics(cuts in cuts()) {
        let bytes = damage(SPLIT, &cuts);
        let mut out = Vec::new();
        out.extend(parse_split(&bytes, &mut Vec::new()).err().map(|refused| *refused.0));
        out.extend(parse_verified(&bytes, &mut Vec::new()).err().map(|refused| *refused.0));
        check(&bytes, &out)?;
        let bytes = damage(CHECKLIST, &cuts);
        out.clear();
        out.extend(parse_checklist(&bytes, &mut Vec::new()).err().map(|refused| *refused.0));
        out.extend(parse_audit(&bytes, &mut Vec::new()).err().map(|refused| *refused.0));
        check(&bytes, &out)?;
    }

    #[test]
    fn no_damaged_script_panics(cuts in cuts()) {
        let bytes = damage(VERIFIER, &cuts);
        let mut out = Vec::new();
        let _verdict = judge_verifier(&String::from_utf8_lossy(&bytes), "f", &mut out);
        check(&bytes, &out)?;
        let mut needs = Needs::default();
        let text = String::from_utf8_lossy(&damage(SCRIPT, &cuts)).into_owned();
        needs.add_script("script", &text);
        prop_assert!(!shown(&text).chars().any(char::is_control));
    }
}
