//! OpenAI's responses.

use serde_json::{Map, Value};

use super::{Reader, Shape, count, is_nothing, kind, known, objects};

/// What the vendor says to a model about tools in general.
const TOOLS: u64 = 512;

/// What it says about computer use.
const COMPUTER: u64 = 2048;

/// Reads a request.
pub(super) fn read(reader: &mut Reader<'_>, body: &Map<String, Value>) -> Shape {
    reader.refuse(
        body,
        &[
            ("previous_response_id", "send the whole conversation as `input`"),
            ("conversation", "send the whole conversation as `input`"),
            ("prompt", "send the text of the stored prompt as `instructions` and `input`"),
            ("background", "an answer in the background is not seen from here"),
            ("context_management", "a compaction at the vendor is a further call"),
        ],
    );
    reader.openai_tier(body);
    reader.strangers(body, |name| known::RESPONSES.contains(&name));
    reader
        .members(body, &["input", "model", "tools", "stream", "metadata", "user", "include", "store", "instructions"]);
    match body.get("instructions") {
        Some(Value::String(text)) => reader.text(text),
        // A list of items, as `input` is one.
        other => items(reader, other),
    }
    tools(reader, body);
    match body.get("input") {
        Some(Value::String(text)) => reader.text(text),
        other => items(reader, other),
    }
    // Nothing is kept at the vendor: what a call costs is in its own body.
    if reader.terms.capped && body.get("store") != Some(&Value::Bool(false)) {
        reader.edits.push((&["store"], "false".to_owned()));
    }
    let output = reader.whole(body, "max_output_tokens");
    Shape { output, choices: 1, limit: &["max_output_tokens"], least: 0, usage_for_us: false }
}

fn tools(reader: &mut Reader<'_>, body: &Map<String, Value>) {
    let tools = body.get("tools").filter(|tools| !is_nothing(tools));
    if tools.is_some() {
        reader.add(TOOLS);
    }
    for tool in objects(tools) {
        reader.add(count::TOOL);
        reader.members(tool, &[]);
        match kind(tool) {
            "function" | "custom" | "local_shell" | "apply_patch" => {}
            kind if kind.starts_with("computer") => reader.add(COMPUTER),
            "shell" if tool.get("environment").is_some_and(|place| place["type"] == "local") => {}
            other => {
                reader.unbounded(format!("the tool `{other}` runs at the vendor, and what it costs cannot be bounded"));
            }
        }
    }
}

fn items(reader: &mut Reader<'_>, items: Option<&Value>) {
    for item in objects(items) {
        reader.add(count::MESSAGE);
        match kind(item) {
            "item_reference" => {
                reader.unbounded("an `item_reference` cannot be bounded under a dollar cap: send the item itself");
            }
            // Where an image may be.
            "message" | "" => {
                reader.members(item, &["content", "type"]);
                content(reader, item.get("content"));
            }
            "computer_call_output" | "function_call_output" | "custom_tool_call_output" => {
                reader.members(item, &["output", "type"]);
                content(reader, item.get("output"));
            }
            "reasoning"
            | "function_call"
            | "custom_tool_call"
            | "computer_call"
            | "local_shell_call"
            | "local_shell_call_output"
            | "shell_call"
            | "shell_call_output"
            | "apply_patch_call"
            | "apply_patch_call_output" => reader.members(item, &[]),
            other => reader.unbounded(format!("an item of type `{other}` cannot be bounded under a dollar cap")),
        }
    }
}

fn content(reader: &mut Reader<'_>, content: Option<&Value>) {
    if let Some(Value::String(text)) = content {
        // An output may be shown as JSON.
        reader.structured(&Value::from(text.as_str()));
        return;
    }
    reader.strays(content);
    for part in objects(content) {
        reader.add(count::PART);
        match kind(part) {
            "input_image" | "computer_screenshot" => {
                if part.get("file_id").is_some_and(|file| !is_nothing(file)) {
                    reader.unbounded("a `file_id` cannot be bounded under a dollar cap: send the image itself");
                }
                let image = part.get("image_url");
                reader.image_url(image.and_then(|image| image.get("url")).or(image));
            }
            "input_text" | "output_text" | "refusal" | "summary_text" | "reasoning_text" | "text" => {
                reader.members(part, &["type"]);
            }
            other => reader.unbounded(format!("a part of type `{other}` cannot be bounded under a dollar cap")),
        }
    }
}
