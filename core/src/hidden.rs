//! What of a task's folder an agent must not see: what scores it, and what says how.

use serde_json::Value;

use crate::judge::named_checklist;
use crate::rounds::{ROUNDS_FOLDER, RoundsPlan};

/// Names of what is nobody's business in a sandbox, in whatever folder of a task.
pub const HIDDEN: [&str; 7] =
    ["verifier.py", "vlm_checklist.json", "validated_pi.json", "task.json", "task.yaml", "task.yml", "__pycache__"];

/// What a task's spec names beside these, as paths below the task's folder: its program and its
/// checklist, whether they decide or not, and the hooks of its rounds with the folder that is
/// theirs.
#[must_use]
pub fn named(spec: &Value, rounds: Option<&RoundsPlan>) -> Vec<String> {
    let program = |key: &&str| spec.pointer("/success/spec")?.get(*key)?.as_str();
    let programs = ["program", "target"].iter().filter_map(program);
    let programs = programs.map(|program| program.split("::").next().unwrap_or_default());
    // Where a task has no rounds, a folder of that name is its own.
    let rounds = rounds.into_iter().flat_map(|rounds| rounds.hook_files().into_iter().chain([ROUNDS_FOLDER]));
    let named = programs.chain(named_checklist(spec)).chain(rounds).map(plain);
    named.filter(|path| !path.is_empty()).collect()
}

/// A path below a folder as it is without what says nothing: `./check.py`, as specs write it, is
/// `check.py`, and so is ` check.py `. What climbs is not followed.
#[must_use]
pub fn plain(path: &str) -> String {
    let parts = path.trim().split('/').filter(|part| !matches!(*part, "" | "." | ".."));
    parts.collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_spec_names_is_found_however_it_is_written() {
        let rounds = json!({"rounds": [
            {"kind": "open", "goal": "g", "before": "rounds/open.sh", "read": "hooks/read.sh", "assertions": []}]});
        let rounds: RoundsPlan = serde_json::from_value(rounds).unwrap();
        let spec = json!({"success": {"mode": "multi", "spec": {"program": "", "target": " ./other.py ::verify"}}});
        assert_eq!(named(&spec, None), ["other.py"]);
        assert_eq!(named(&spec, Some(&rounds)), ["other.py", "hooks/read.sh", "rounds/open.sh", "rounds"]);
        let spec =
            json!({"success": {"mode": "vlm_checklist", "spec": {"vlm_checklist": {"checklist": "./a//b.json"}}}});
        assert_eq!(named(&spec, None), ["a/b.json"]);
    }
}
