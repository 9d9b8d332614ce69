//! Anthropic's messages.

use serde_json::{Map, Value};

use super::{Reader, Shape, count, is_nothing, kind, known, objects};

/// What the vendor says to a model about tools in general (it publishes 313 to 530 tokens).
const TOOLS: u64 = 1024;

/// What it says about computer use and screens (it publishes 466 to 499, and 735 for the tool).
const COMPUTER: u64 = 2048;

/// What it says about an editor, a shell or a memory (it publishes 245 to 700).
const OWN_TOOL: u64 = 1024;

/// Reads a request.
pub(super) fn read(reader: &mut Reader<'_>, body: &Map<String, Value>) -> Shape {
    reader.refuse(
        body,
        &[
            ("container", "what is kept at the vendor is not seen from here"),
            ("mcp_servers", "tools that the vendor calls are not seen from here"),
            ("inference_geo", "a place of its own has prices of its own"),
        ],
    );
    if body.get("speed").is_some_and(|speed| !is_nothing(speed) && speed != "standard") {
        reader.unbounded("`speed` has prices of its own, which no cap knows");
    }
    let edits = body.get("context_management").and_then(|management| management.get("edits"));
    // What is cleared is not paid for; everything else is made of it by a further call.
    if objects(edits).any(|edit| !kind(edit).starts_with("clear_")) {
        reader.unbounded("a compaction at the vendor is a further call, which cannot be bounded");
    }
    reader.messages_tier(body);
    reader.strangers(body, |name| known::MESSAGES.contains(&name));
    reader.members(body, &["messages", "model", "system", "tools", "stream", "metadata"]);
    content(reader, body.get("system"));
    tools(reader, body);
    for message in objects(body.get("messages")) {
        reader.add(count::MESSAGE);
        reader.members(message, &["content"]);
        content(reader, message.get("content"));
    }
    let output = reader.whole(body, "max_tokens");
    // Thinking is output too, and has to leave room for an answer.
    let thinking = body.get("thinking").and_then(|thinking| thinking.get("budget_tokens")).and_then(Value::as_u64);
    let least = thinking.map_or(0, |budget| budget.saturating_add(64));
    Shape { output, choices: 1, limit: &["max_tokens"], least, usage_for_us: false }
}

fn tools(reader: &mut Reader<'_>, body: &Map<String, Value>) {
    let tools = body.get("tools").filter(|tools| !is_nothing(tools));
    if tools.is_some() {
        reader.add(TOOLS);
    }
    for tool in objects(tools) {
        reader.add(count::TOOL);
        reader.members(tool, &["cache_control"]);
        match kind(tool) {
            "" | "custom" => {}
            kind if kind.starts_with("computer_") => reader.add(COMPUTER),
            kind if ["bash_", "text_editor_", "memory_"].iter().any(|start| kind.starts_with(start)) => {
                reader.add(OWN_TOOL);
            }
            other => {
                reader.unbounded(format!("the tool `{other}` runs at the vendor, and what it costs cannot be bounded"));
            }
        }
    }
}

fn content(reader: &mut Reader<'_>, content_of: Option<&Value>) {
    if let Some(Value::String(text)) = content_of {
        reader.text(text);
        return;
    }
    reader.strays(content_of);
    for block in objects(content_of) {
        reader.add(count::PART);
        match kind(block) {
            "text" | "thinking" | "redacted_thinking" | "tool_use" => reader.members(block, &["cache_control", "type"]),
            "image" => image(reader, block.get("source")),
            "tool_result" => {
                reader.members(block, &["content", "cache_control", "type"]);
                content(reader, block.get("content"));
            }
            "document" => document(reader, block),
            other => reader.unbounded(format!("a block of type `{other}` cannot be bounded under a dollar cap")),
        }
    }
}

fn image(reader: &mut Reader<'_>, source: Option<&Value>) {
    let source = source.and_then(Value::as_object);
    match source.and_then(|source| source.get("data")).and_then(Value::as_str) {
        Some(data) if source.is_some_and(|source| kind(source) == "base64") => {
            reader.add(count::image(reader.rule, data));
        }
        _ => reader.unbounded("an image by address or file id cannot be bounded under a dollar cap: send it as base64"),
    }
}

fn document(reader: &mut Reader<'_>, block: &Map<String, Value>) {
    let source = block.get("source").and_then(Value::as_object);
    match source.map(kind) {
        Some("text") => reader.members(block, &["cache_control"]),
        Some("content") => {
            reader.members(block, &["cache_control", "source"]);
            content(reader, source.and_then(|source| source.get("content")));
        }
        _ => reader
            .unbounded("a document that is no text cannot be bounded under a dollar cap: send its pages as images"),
    }
}
