//! How an env's own file is laid over the preset that its `base` names.

use serde_json::{Map, Value};

/// Lays an env over its preset: objects are merged key by key, the lists `observation`
/// and `action` by the `type` of their items, and everything else is replaced.
#[must_use]
pub fn merge_env(preset: &Map<String, Value>, env: &Map<String, Value>) -> Map<String, Value> {
    let mut merged = preset.clone();
    for (key, value) in env {
        let value = match (merged.get(key), value) {
            (Some(Value::Array(under)), Value::Array(over)) if matches!(key.as_str(), "observation" | "action") => {
                Value::Array(merge_by_type(under, over))
            }
            (Some(Value::Object(under)), Value::Object(over)) => Value::Object(merge_env(under, over)),
            _ => value.clone(),
        };
        merged.insert(key.clone(), value);
    }
    merged
}

/// An item whose `type` the preset has is laid over it key by key, one level deep;
/// others are appended. Two new items of one type are both kept, as upstream keeps them.
fn merge_by_type(under: &[Value], over: &[Value]) -> Vec<Value> {
    let mut merged = under.to_vec();
    for item in over {
        let same = item.get("type").and_then(|kind| under.iter().rposition(|known| known.get("type") == Some(kind)));
        match (same.and_then(|index| merged.get_mut(index)), item) {
            (Some(Value::Object(known)), Value::Object(item)) => {
                known.extend(item.iter().map(|(key, value)| (key.clone(), value.clone())));
            }
            _ => merged.push(item.clone()),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn merged(preset: &Value, env: &Value) -> Value {
        Value::Object(merge_env(preset.as_object().unwrap(), env.as_object().unwrap()))
    }

    #[test]
    fn objects_are_merged_and_lists_replaced() {
        let preset = json!({"resources": {"cpu": 2, "net": true}, "tags": ["a"], "hooks": {"pre_start": "/p"}});
        let env = json!({"resources": {"cpu": 4}, "tags": ["b", "c"], "hooks": {"post_start": "/q"}});
        assert_eq!(
            merged(&preset, &env),
            json!({
                "resources": {"cpu": 4, "net": true}, "tags": ["b", "c"],
                "hooks": {"pre_start": "/p", "post_start": "/q"}
            })
        );
    }

    #[test]
    fn observations_are_merged_by_type_one_level_deep() {
        let preset = json!({"observation": [{"type": "rgb_screen", "fps": 10, "resolution": [1920, 1080]}]});
        let env =
            json!({"observation": [{"type": "rgb_screen", "resolution": [800, 600]}, {"type": "audio_waveform"}]});
        assert_eq!(
            merged(&preset, &env),
            json!({"observation": [
                {"type": "rgb_screen", "fps": 10, "resolution": [800, 600]}, {"type": "audio_waveform"}
            ]})
        );
    }

    #[test]
    fn items_of_a_new_type_and_odd_items_are_appended() {
        let preset = json!({"action": [{"type": "mouse"}]});
        let env = json!({"action": [{"type": "voice"}, {"type": "voice", "encoding": "x"}, "odd", {"no": "type"}]});
        assert_eq!(merged(&preset, &env)["action"].as_array().unwrap().len(), 5);
    }

    #[test]
    fn another_type_replaces_what_the_preset_says() {
        let preset = json!({"resources": {"cpu": 2}, "observation": [{"type": "rgb_screen"}]});
        assert_eq!(
            merged(&preset, &json!({"resources": null, "observation": "none"})),
            json!({"resources": null, "observation": "none"})
        );
    }
}
