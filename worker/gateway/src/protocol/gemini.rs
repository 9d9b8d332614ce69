//! Gemini's `generateContent`. Its JSON takes each name in two spellings, `maxOutputTokens` and
//! `max_output_tokens`; so does this.

use serde_json::{Map, Value};

use super::{Reader, Shape, count, is_nothing, known, objects};

/// What the vendor says to a model about tools in general.
const TOOLS: u64 = 512;

/// What it says about computer use: a function for each action.
const COMPUTER: u64 = 8192;

/// Reads a request.
pub(super) fn read(reader: &mut Reader<'_>, body: &Map<String, Value>) -> Shape {
    if get(reader, body, "cachedContent").is_some_and(|value| !is_nothing(value)) {
        reader.unbounded("`cachedContent` cannot be bounded under a dollar cap: send the content itself");
    }
    reader.service_tier(body, "serviceTier");
    reader.service_tier(body, "service_tier");
    reader.strangers(body, |name| is_one_of(known::GENERATE, name));
    reader.members(body, &["contents", "systemInstruction", "system_instruction", "tools", "labels", "model"]);
    let system = get(reader, body, "systemInstruction");
    for content in objects(system).chain(objects(body.get("contents"))) {
        reader.add(count::MESSAGE);
        parts(reader, content);
    }
    // Texts that stand alone are contents too.
    for text in [system, body.get("contents")].into_iter().flatten() {
        texts(reader, text);
    }
    tools(reader, body);
    let none = Map::new();
    let written = get(reader, body, "generationConfig");
    let config = written.and_then(Value::as_object).unwrap_or(&none);
    let camel = body.contains_key("generationConfig") || written.is_none();
    reader.strangers(config, |name| is_one_of(known::GENERATION, name));
    let modalities = get(reader, config, "responseModalities");
    let text_alone = |list: &Vec<Value>| {
        list.iter().all(|modality| modality.as_str().is_some_and(|name| name.eq_ignore_ascii_case("text")))
    };
    if modalities.is_some_and(|value| !is_nothing(value) && !value.as_array().is_some_and(text_alone)) {
        reader.unbounded("`responseModalities` beyond text have prices of their own");
    }
    let output = number(reader, config, "maxOutputTokens");
    let choices = number(reader, config, "candidateCount").unwrap_or(1);
    let limit: super::Path = match (camel, config.contains_key("max_output_tokens")) {
        (true, false) => &["generationConfig", "maxOutputTokens"],
        (true, true) => &["generationConfig", "max_output_tokens"],
        (false, false) => &["generation_config", "maxOutputTokens"],
        (false, true) => &["generation_config", "max_output_tokens"],
    };
    Shape { output, choices, limit, least: 0, usage_for_us: false }
}

/// A member by its name in either spelling; both at once leave open which one counts.
fn get<'a>(reader: &mut Reader<'_>, object: &'a Map<String, Value>, camel: &str) -> Option<&'a Value> {
    let snake = snake(camel);
    match (object.get(camel), object.get(&snake)) {
        (Some(_), Some(_)) if snake != camel => {
            reader.unbounded(format!("`{camel}` and `{snake}` together leave open which one counts"));
            None
        }
        (one, other) => one.or(other),
    }
}

/// Whether it is one of these names, in either spelling.
fn is_one_of(names: &[&str], name: &str) -> bool {
    names.iter().any(|known| *known == name || snake(known) == name)
}

fn snake(camel: &str) -> String {
    let mut snake = String::new();
    for char in camel.chars() {
        if char.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(char.to_ascii_lowercase());
    }
    snake
}

/// A whole number, which may be written as text.
fn number(reader: &mut Reader<'_>, config: &Map<String, Value>, name: &str) -> Option<u64> {
    let value = get(reader, config, name).filter(|value| !value.is_null())?;
    let number = value.as_u64().or_else(|| value.as_str().and_then(|text| text.parse().ok()));
    if number.is_none() {
        reader.unbounded(format!("`{name}` has to be a whole number, and is {value}"));
    }
    number
}

fn texts(reader: &mut Reader<'_>, value: &Value) {
    if let Value::String(text) = value {
        reader.text(text);
    }
    reader.strays(Some(value));
}

fn parts(reader: &mut Reader<'_>, content: &Map<String, Value>) {
    reader.members(content, &["parts"]);
    if let Some(parts) = content.get("parts") {
        texts(reader, parts);
    }
    for part in objects(content.get("parts")) {
        reader.add(count::PART);
        reader.members(part, &["inlineData", "inline_data", "functionResponse", "function_response"]);
        if let Some(data) = get(reader, part, "inlineData") {
            inline(reader, data);
        }
        if let Some(Value::Object(response)) = get(reader, part, "functionResponse") {
            // A response may bring images in parts of its own.
            parts(reader, response);
        }
        for name in ["fileData", "executableCode", "codeExecutionResult", "toolCall", "toolResponse", "videoMetadata"] {
            if get(reader, part, name).is_some_and(|value| !is_nothing(value)) {
                reader.unbounded(format!("`{name}` cannot be bounded under a dollar cap: send images as `inlineData`"));
            }
        }
    }
}

fn inline(reader: &mut Reader<'_>, data: &Value) {
    let Value::Object(data) = data else {
        reader.unbounded("`inlineData` has to be an object");
        return;
    };
    let image = get(reader, data, "mimeType").and_then(Value::as_str).is_some_and(|kind| kind.starts_with("image/"));
    match data.get("data").and_then(Value::as_str).filter(|_| image) {
        Some(data) => reader.add(count::image(reader.rule, data)),
        None => reader.unbounded("`inlineData` that is no image cannot be bounded under a dollar cap"),
    }
}

fn tools(reader: &mut Reader<'_>, body: &Map<String, Value>) {
    let tools = body.get("tools").filter(|tools| !is_nothing(tools));
    if tools.is_some() {
        reader.add(TOOLS);
    }
    for tool in objects(tools) {
        reader.members(tool, &[]);
        for (name, value) in tool {
            match name.as_str() {
                "functionDeclarations" | "function_declarations" => {
                    reader.add(count::TOOL * objects(Some(value)).count() as u64);
                }
                "computerUse" | "computer_use" => reader.add(COMPUTER),
                _ => reader
                    .unbounded(format!("the tool `{name}` runs at the vendor, and what it costs cannot be bounded")),
            }
        }
    }
}
