//! OpenAI's chat completions, which vLLM and many others speak too.

use serde_json::{Map, Value};

use super::{Reader, Shape, count, is_nothing, kind, known, objects};

/// What a template says about tools in general.
const TOOLS: u64 = 512;

/// Reads a request.
pub(super) fn read(reader: &mut Reader<'_>, body: &Map<String, Value>, stream: bool) -> Shape {
    reader.refuse(
        body,
        &[
            ("web_search_options", "the vendor's own search is paid apart"),
            ("audio", "audio has prices of its own"),
            ("prediction", "rejected predictions are paid as output"),
        ],
    );
    if objects(body.get("modalities")).next().is_some() || body.get("modalities").is_some_and(names_more_than_text) {
        reader.unbounded("`modalities` beyond text have prices of their own");
    }
    reader.openai_tier(body);
    reader.strangers(body, |name| known::CHAT.contains(&name));
    reader.members(body, &["messages", "model", "tools", "stream", "stream_options", "metadata", "user"]);
    tools(reader, body);
    for message in objects(body.get("messages")) {
        reader.add(count::MESSAGE);
        reader.members(message, &["content"]);
        content(reader, message.get("content"));
    }
    if body.get("store").is_some_and(|store| !is_nothing(store)) && reader.terms.capped {
        reader.edits.push((&["store"], "false".to_owned()));
    }
    let asked = body.get("stream_options").and_then(|options| options.get("include_usage")) == Some(&Value::Bool(true));
    if stream && !asked {
        reader.edits.push((&["stream_options", "include_usage"], "true".to_owned()));
    }
    let new = reader.whole(body, "max_completion_tokens");
    let old = reader.whole(body, "max_tokens");
    let choices = reader.whole(body, "n").unwrap_or(1).max(reader.whole(body, "best_of").unwrap_or(1));
    // OpenAI's own models no longer take the old name; other servers may know only that one.
    let limit: super::Path = match (new, old) {
        (Some(_), _) => &["max_completion_tokens"],
        (None, Some(_)) => &["max_tokens"],
        (None, None) if reader.terms.vendor == "openai" => &["max_completion_tokens"],
        (None, None) => &["max_tokens"],
    };
    if new.is_some() && old.is_some() {
        reader.unbounded("`max_tokens` and `max_completion_tokens` together leave open which one counts");
    }
    Shape { output: new.max(old), choices, limit, least: 0, usage_for_us: stream && !asked }
}

fn names_more_than_text(value: &Value) -> bool {
    match value {
        Value::Array(list) => list.iter().any(|modality| modality != "text"),
        Value::Null => false,
        _ => true,
    }
}

fn tools(reader: &mut Reader<'_>, body: &Map<String, Value>) {
    let tools = body.get("tools").filter(|tools| !is_nothing(tools));
    if tools.is_some() || body.contains_key("functions") {
        reader.add(TOOLS);
    }
    for tool in objects(tools) {
        reader.add(count::TOOL);
        reader.members(tool, &[]);
        if !matches!(kind(tool), "function" | "custom" | "") {
            reader.unbounded(format!(
                "the tool `{}` runs at the vendor, and what it costs cannot be bounded",
                kind(tool)
            ));
        }
    }
}

fn content(reader: &mut Reader<'_>, content: Option<&Value>) {
    if let Some(Value::String(text)) = content {
        reader.text(text);
        return;
    }
    reader.strays(content);
    for part in objects(content) {
        reader.add(count::PART);
        match kind(part) {
            "text" | "refusal" | "thinking" => reader.members(part, &["type"]),
            "image_url" => {
                let image = part.get("image_url");
                reader.image_url(image.and_then(|image| image.get("url")).or(image));
            }
            other => reader.unbounded(format!("a part of type `{other}` cannot be bounded under a dollar cap")),
        }
    }
    // Whatever else stands there.
    if !matches!(content, Some(Value::Array(_) | Value::Null | Value::Object(_)) | None) {
        reader.unbounded("`content` is text or a list of parts");
    }
}
