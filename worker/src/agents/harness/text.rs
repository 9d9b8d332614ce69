//! Calls in a model's text: what Qwen-VL and Kimi write where a server has no parser for it.
//!
//! ```text
//! <tool_call>{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [5, 6]}}</tool_call>
//! ```
//!
//! The same JSON in a fenced block, or bare, counts too; so does one with `action` at its top.

use serde_json::{Map, Value};

/// How much of a text is looked through, in bytes.
const MOST_TEXT: usize = 256 * 1024;

/// How many braces are tried.
const MOST_TRIES: usize = 200;

/// A call that was found: its name and arguments.
pub(super) type Found = (String, Map<String, Value>);

/// What a model thinks aloud is not asked for.
pub(super) fn without_thoughts(text: &str) -> &str {
    text.rfind("</think>").map_or(text, |at| text[at + "</think>".len()..].trim_start())
}

/// The text without its calls.
pub(super) fn words(text: &str) -> &str {
    let text = without_thoughts(text);
    let end = ["<tool_call>", "```"].iter().filter_map(|mark| text.find(mark)).min();
    text[..end.unwrap_or(text.len())].trim()
}

/// The calls in a text, in order. An opened `<tool_call>` without JSON that can be read is an error.
pub(super) fn calls(text: &str) -> Result<Vec<Found>, String> {
    let text = without_thoughts(text);
    let text = text.get(..text.floor_char_boundary(MOST_TEXT)).unwrap_or(text);
    let mut found = Vec::new();
    let (mut at, mut tries) = (0, 0);
    let mut trouble = None;
    while let Some(offset) = text[at..].find('{') {
        let start = at + offset;
        tries += 1;
        if tries > MOST_TRIES {
            break;
        }
        let mut values = serde_json::Deserializer::from_str(&text[start..]).into_iter::<Value>();
        match values.next() {
            Some(Ok(value)) => {
                at = start + values.byte_offset().max(1);
                found.extend(call(value));
            }
            Some(Err(error)) => {
                trouble.get_or_insert_with(|| error.to_string());
                at = start + 1;
            }
            None => at = start + 1,
        }
    }
    let opened = text.contains("<tool_call>");
    match trouble {
        Some(error) if found.is_empty() && opened => Err(format!("the call is not JSON that can be read: {error}")),
        None if found.is_empty() && opened => Err("the call has no JSON in it".to_owned()),
        _ => Ok(found),
    }
}

/// An object as a call, if it is one.
fn call(value: Value) -> Option<Found> {
    let Value::Object(mut object) = value else { return None };
    if let Some(Value::Object(function)) = object.remove("function") {
        object = function;
    }
    if object.get("name").is_some_and(Value::is_string) {
        let arguments = object.remove("arguments").or_else(|| object.remove("parameters"));
        let name = object.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        return match arguments {
            Some(Value::Object(arguments)) => Some((name, arguments)),
            Some(Value::String(text)) => Some((name, serde_json::from_str(&text).ok()?)),
            _ => None,
        };
    }
    object.get("action").is_some_and(Value::is_string).then(|| ("computer_use".to_owned(), object))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        calls(text).unwrap().into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn calls_are_found_in_every_form() {
        let tagged = "Action: click it\n<tool_call>\n{\"name\": \"click\", \"arguments\": {\"x\": 1}}\n</tool_call>";
        assert_eq!(names(tagged), ["click"]);
        assert_eq!(words(tagged), "Action: click it");
        assert_eq!(names("```json\n{\"action\": \"wait\", \"time\": 2}\n```"), ["computer_use"]);
        assert_eq!(
            names("{\"name\":\"a\",\"arguments\":\"{\\\"x\\\":1}\"} and {\"name\":\"b\",\"parameters\":{}}"),
            ["a", "b"]
        );
        assert_eq!(names("<think>{\"action\": \"click\"}</think> nothing"), Vec::<String>::new());
        assert_eq!(names("{not json} {\"function\": {\"name\": \"c\", \"arguments\": {}}}"), ["c"]);
        assert_eq!(names("no call at all"), Vec::<String>::new());
    }

    #[test]
    fn garbage_is_said_and_never_looped_over() {
        assert!(calls("<tool_call>{\"name\": \"click\", </tool_call>").is_err());
        assert!(calls("<tool_call>click it</tool_call>").is_err());
        assert_eq!(names(&"{".repeat(100_000)), Vec::<String>::new());
        assert_eq!(names(&"{\"a\":".repeat(50_000)), Vec::<String>::new());
        assert_eq!(names(&"ü{".repeat(300_000)), Vec::<String>::new());
    }
}
