//! What the stand-in answers, in each vendor's own form.

use serde_json::{Value, json};

use super::PRICES;

/// Which of the vendors' requests it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// OpenAI's chat completions.
    Chat,
    /// OpenAI's responses.
    Responses,
    /// Anthropic's messages.
    Messages,
    /// Gemini's `generateContent`.
    Gemini,
}

/// What a call used, by the stand-in's own count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Used {
    /// Input read anew.
    pub(crate) input: u64,
    /// Written into the cache: the shorter kind, the longer kind.
    pub(crate) written: [u64; 2],
    /// Read from the cache.
    pub(crate) cached: u64,
    /// Output, thoughts included.
    pub(crate) output: u64,
    /// Of it, thoughts.
    pub(crate) thoughts: u64,
}

impl Used {
    /// What it is billed, in billionths of a dollar.
    pub(crate) fn bill(&self) -> u64 {
        let tokens = [self.input, self.written[0], self.written[1], self.cached, self.output];
        tokens.iter().zip(PRICES).map(|(tokens, price)| tokens * price).sum()
    }
}

/// The words of an answer.
const WORDS: [&str; 6] = ["I ", "see ", "a ", "screen: ", "请点击", " ✅"];

impl Kind {
    /// The request of a path.
    pub(crate) fn of(path: &str) -> Option<Self> {
        let path = path.split('?').next().unwrap_or_default();
        match path {
            "/v1/chat/completions" => Some(Self::Chat),
            "/v1/responses" => Some(Self::Responses),
            "/v1/messages" => Some(Self::Messages),
            path if path.contains(":generateContent") || path.contains(":streamGenerateContent") => Some(Self::Gemini),
            _ => None,
        }
    }

    /// The model that is asked for.
    pub(crate) fn model(self, path: &str, asked: &Value) -> String {
        match self {
            Self::Gemini => path.split("/models/").nth(1).unwrap().split(':').next().unwrap().to_owned(),
            _ => asked["model"].as_str().unwrap_or("?").to_owned(),
        }
    }

    /// Whether a stream is asked for.
    pub(crate) fn streams(self, path: &str, asked: &Value) -> bool {
        match self {
            Self::Gemini => path.contains(":streamGenerateContent"),
            _ => asked["stream"] == true,
        }
    }

    /// The output that is allowed.
    pub(crate) fn limit(self, asked: &Value) -> Option<u64> {
        match self {
            Self::Chat => asked["max_completion_tokens"].as_u64().or_else(|| asked["max_tokens"].as_u64()),
            Self::Responses => asked["max_output_tokens"].as_u64(),
            Self::Messages => asked["max_tokens"].as_u64(),
            Self::Gemini => asked["generationConfig"]["maxOutputTokens"].as_u64(),
        }
    }

    /// What a request uses: four letters are a token, and an image of any size is 800.
    pub(crate) fn used(self, asked: &Value, cached: u64) -> Used {
        let (letters, images) = letters(asked);
        let input = letters / 4 + images * 800 + 20;
        let output = self.limit(asked).unwrap_or(u64::MAX).min(40);
        let cached = cached.min(input / 2);
        let written = match self {
            Self::Messages if asked.to_string().contains("cache_control") => {
                let long = if asked.to_string().contains("1h") { 7 } else { 0 };
                [11, long]
            }
            _ => [0, 0],
        };
        let thoughts = if self == Self::Gemini { 15.min(output) } else { 5.min(output) };
        Used { input: input - cached, written, cached, output, thoughts }
    }

    fn usage(self, used: Option<&Used>) -> Value {
        let Some(used) = used else { return Value::Null };
        let all = used.input + used.cached;
        match self {
            Self::Chat => json!({
                "prompt_tokens": all, "completion_tokens": used.output, "total_tokens": all + used.output,
                "prompt_tokens_details": { "cached_tokens": used.cached, "audio_tokens": 0 },
                "completion_tokens_details": { "reasoning_tokens": used.thoughts },
            }),
            Self::Responses => json!({
                "input_tokens": all, "input_tokens_details": { "cached_tokens": used.cached },
                "output_tokens": used.output, "output_tokens_details": { "reasoning_tokens": used.thoughts },
                "total_tokens": all + used.output,
            }),
            Self::Messages => json!({
                "input_tokens": used.input, "cache_creation_input_tokens": used.written[0] + used.written[1],
                "cache_creation": {
                    "ephemeral_5m_input_tokens": used.written[0], "ephemeral_1h_input_tokens": used.written[1],
                },
                "cache_read_input_tokens": used.cached, "output_tokens": used.output,
            }),
            Self::Gemini => json!({
                "promptTokenCount": all, "cachedContentTokenCount": used.cached,
                "candidatesTokenCount": used.output - used.thoughts, "thoughtsTokenCount": used.thoughts,
                "totalTokenCount": all + used.output,
            }),
        }
    }

    /// The first tool that is offered, which the answer then calls.
    fn tool(self, asked: &Value) -> Option<String> {
        let tool = match self {
            Self::Chat => &asked["tools"][0]["function"]["name"],
            Self::Responses | Self::Messages => &asked["tools"][0]["name"],
            Self::Gemini => &asked["tools"][0]["functionDeclarations"][0]["name"],
        };
        tool.as_str().map(str::to_owned)
    }

    /// An answer that comes whole.
    pub(crate) fn body(self, model: &str, asked: &Value, used: Option<&Used>, fingerprint: &str) -> Value {
        let text = WORDS.concat();
        let tool = self.tool(asked);
        let mut body = match self {
            Self::Chat => {
                let mut message = json!({ "role": "assistant", "content": text, "refusal": null });
                if let Some(name) = &tool {
                    message["tool_calls"] = json!([{ "id": "call_1", "type": "function",
                        "function": { "name": name, "arguments": "{\"x\": 1}" } }]);
                }
                let finish = if tool.is_some() { "tool_calls" } else { "stop" };
                json!({ "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": format!("{model}-2026"),
                    "choices": [{ "index": 0, "message": message, "finish_reason": finish, "logprobs": null }],
                    "system_fingerprint": fingerprint })
            }
            Self::Responses => response(model, "completed", &text, tool.as_deref()),
            Self::Messages => {
                let mut content = vec![json!({ "type": "text", "text": text })];
                if let Some(name) = &tool {
                    content.push(json!({ "type": "tool_use", "id": "toolu_1", "name": name, "input": { "x": 1 } }));
                }
                let stop = if tool.is_some() { "tool_use" } else { "end_turn" };
                json!({ "id": "msg_1", "type": "message", "role": "assistant", "model": format!("{model}-2026"),
                    "content": content, "stop_reason": stop, "stop_sequence": null })
            }
            Self::Gemini => {
                let mut parts = vec![json!({ "text": text })];
                if let Some(name) = &tool {
                    parts.push(json!({ "functionCall": { "name": name, "args": { "x": 1 } } }));
                }
                json!({ "candidates": [{ "content": { "role": "model", "parts": parts }, "finishReason": "STOP",
                    "index": 0 }], "modelVersion": format!("{model}-2026"), "responseId": "resp_1" })
            }
        };
        if used.is_some() {
            let name = if self == Self::Gemini { "usageMetadata" } else { "usage" };
            body[name] = self.usage(used);
        }
        body
    }

    /// An answer that comes in events.
    pub(crate) fn events(self, model: &str, asked: &Value, used: Option<&Used>, fingerprint: &str) -> Vec<String> {
        match self {
            Self::Chat => self.chat_events(model, asked, used, fingerprint),
            Self::Responses => self.responses_events(model, used),
            Self::Messages => self.messages_events(model, used),
            Self::Gemini => {
                let last = WORDS.len() - 1;
                let event = |(index, word): (usize, &&str)| {
                    let mut candidate =
                        json!({ "content": { "role": "model", "parts": [{ "text": word }] }, "index": 0 });
                    if index == last {
                        candidate["finishReason"] = json!("STOP");
                    }
                    let mut body = json!({ "candidates": [candidate], "modelVersion": format!("{model}-2026"),
                        "responseId": "resp_1" });
                    if let Some(used) = used {
                        // Sums that grow.
                        let so_far = Used {
                            output: used.thoughts
                                + (used.output - used.thoughts) * (index as u64 + 1) / (last as u64 + 1),
                            ..*used
                        };
                        body["usageMetadata"] = self.usage(Some(&so_far));
                    }
                    format!("data: {body}\r\n\r\n")
                };
                WORDS.iter().enumerate().map(event).collect()
            }
        }
    }

    fn chat_events(self, model: &str, asked: &Value, used: Option<&Used>, fingerprint: &str) -> Vec<String> {
        let wanted = asked["stream_options"]["include_usage"] == true;
        let chunk = |delta: Value, finish: Value| {
            let mut chunk = json!({ "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1,
                "model": format!("{model}-2026"), "system_fingerprint": fingerprint,
                "choices": [{ "index": 0, "delta": delta, "finish_reason": finish, "logprobs": null }] });
            if wanted {
                chunk["usage"] = Value::Null;
            }
            format!("data: {chunk}\n\n")
        };
        let mut events = vec![chunk(json!({ "role": "assistant", "content": "" }), Value::Null)];
        events.extend(WORDS.iter().map(|word| chunk(json!({ "content": word }), Value::Null)));
        if let Some(name) = self.tool(asked) {
            events.push(chunk(
                json!({ "tool_calls": [{ "index": 0, "id": "call_1", "type": "function",
                    "function": { "name": name, "arguments": "{\"x\": 1}" } }] }),
                Value::Null,
            ));
        }
        events.push(chunk(json!({}), json!("stop")));
        if wanted && used.is_some() {
            let usage = json!({ "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1,
                "model": format!("{model}-2026"), "choices": [], "usage": self.usage(used) });
            events.push(format!("data: {usage}\n\n"));
        }
        events.push("data: [DONE]\n\n".to_owned());
        events
    }

    fn responses_events(self, model: &str, used: Option<&Used>) -> Vec<String> {
        let mut number = 0;
        let mut event = |kind: &str, mut body: Value| {
            body["type"] = json!(kind);
            body["sequence_number"] = json!(number);
            number += 1;
            format!("event: {kind}\ndata: {body}\n\n")
        };
        let part = json!({ "type": "output_text", "text": "", "annotations": [] });
        let item =
            json!({ "type": "message", "id": "msg_1", "role": "assistant", "status": "in_progress", "content": [] });
        let mut events = vec![
            event("response.created", json!({ "response": response(model, "in_progress", "", None) })),
            event("response.output_item.added", json!({ "output_index": 0, "item": item })),
            event(
                "response.content_part.added",
                json!({ "item_id": "msg_1", "output_index": 0, "content_index": 0, "part": part }),
            ),
        ];
        for word in WORDS {
            events.push(event(
                "response.output_text.delta",
                json!({ "item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": word, "logprobs": [] }),
            ));
        }
        let mut done = response(model, "completed", &WORDS.concat(), None);
        done["usage"] = self.usage(used);
        events.push(event("response.completed", json!({ "response": done })));
        events
    }

    fn messages_events(self, model: &str, used: Option<&Used>) -> Vec<String> {
        let event = |kind: &str, mut body: Value| {
            body["type"] = json!(kind);
            format!("event: {kind}\ndata: {body}\n\n")
        };
        let mut first = self.usage(used);
        if used.is_some() {
            first["output_tokens"] = json!(1);
        }
        let mut message = json!({ "id": "msg_1", "type": "message", "role": "assistant", "model": format!("{model}-2026"),
            "content": [], "stop_reason": null, "stop_sequence": null });
        message["usage"] = if used.is_some() { first } else { json!({}) };
        let mut events = vec![
            event("message_start", json!({ "message": message })),
            event("content_block_start", json!({ "index": 0, "content_block": { "type": "text", "text": "" } })),
            event("ping", json!({})),
        ];
        for word in WORDS {
            events.push(event(
                "content_block_delta",
                json!({ "index": 0, "delta": { "type": "text_delta", "text": word } }),
            ));
        }
        events.push(event("content_block_stop", json!({ "index": 0 })));
        let mut delta = json!({ "delta": { "stop_reason": "end_turn", "stop_sequence": null }, "usage": {} });
        if let Some(used) = used {
            delta["usage"]["output_tokens"] = json!(used.output);
        }
        events.push(event("message_delta", delta));
        events.push(event("message_stop", json!({})));
        events
    }
}

fn response(model: &str, status: &str, text: &str, tool: Option<&str>) -> Value {
    let mut output = Vec::new();
    if status == "completed" {
        output.push(json!({ "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
            "content": [{ "type": "output_text", "text": text, "annotations": [], "logprobs": [] }] }));
    }
    if let Some(name) = tool {
        output.push(json!({ "type": "function_call", "id": "fc_1", "call_id": "call_1", "name": name,
            "arguments": "{\"x\": 1}", "status": "completed" }));
    }
    json!({ "id": "resp_1", "object": "response", "created_at": 1, "status": status, "model": format!("{model}-2026"),
        "output": output, "parallel_tool_calls": true, "tool_choice": "auto", "tools": [], "error": null,
        "incomplete_details": null, "instructions": null, "metadata": {}, "temperature": 1.0, "top_p": 1.0,
        "usage": null })
}

/// All letters of a request but those of images, and how many images there are.
fn letters(value: &Value) -> (u64, u64) {
    match value {
        Value::String(text) if text.starts_with("data:image/") || text.len() > 10_000 => (0, 1),
        Value::String(text) => (text.chars().count() as u64, 0),
        Value::Array(list) => sum(list.iter()),
        Value::Object(object) if object.get("media_type").is_some() || object.get("mimeType").is_some() => (0, 1),
        Value::Object(object) => sum(object.values()),
        _ => (1, 0),
    }
}

fn sum<'a>(values: impl Iterator<Item = &'a Value>) -> (u64, u64) {
    values.map(letters).fold((0, 0), |(letters, images), (more, one)| (letters + more, images + one))
}
