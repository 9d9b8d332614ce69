//! What an answer reports of itself: usage, model, fingerprint; whole, or out of a stream.

use http::HeaderMap;
use longhaul_core::price::{ModelPrice, Service, Usage};
use serde_json::Value;

use super::Surface;

/// The longest name that is kept of what a vendor says.
const LONGEST: usize = 200;

/// What an answer says of itself, as far as it came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// What it used.
    pub(crate) usage: Option<Usage>,
    /// Whether that is the last word on it.
    pub(crate) complete: bool,
    /// Whether the answer said that it is at its end.
    pub(crate) finished: bool,
    /// The model that answered.
    pub(crate) model: Option<String>,
    /// The fingerprint of what answered.
    pub(crate) fingerprint: Option<String>,
    /// The answer's id.
    pub(crate) id: Option<String>,
    /// What the stream says went wrong; hostile until escaped.
    pub(crate) failed: Option<String>,
    /// The tier of service that served it, if the vendor names another than the usual one; hostile
    /// until escaped.
    pub(crate) tier: Option<String>,
    /// Whether that is a tier of messages, whose priority Anthropic sells in advance and not by the token.
    prepaid: bool,
    /// What was heard of Anthropic's usage so far, which comes in two parts.
    heard: Value,
}

/// Which tier of service served a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// The one whose prices are the table's.
    Usual,
    /// One that has prices of its own.
    As(Service),
    /// One that nobody here knows.
    Unknown,
}

impl Served {
    /// The tier of that name, in the words of any vendor.
    pub(crate) fn named(tier: &str) -> Self {
        // `scale` is paid in advance.
        const USUAL: [&str; 7] = ["auto", "default", "standard", "standard_only", "scale", "on_demand", "unspecified"];
        let plain = tier.strip_prefix("SERVICE_TIER_").unwrap_or(tier);
        match Service::named(tier) {
            Some(service) => Self::As(service),
            None if USUAL.iter().any(|usual| plain.eq_ignore_ascii_case(usual)) => Self::Usual,
            None => Self::Unknown,
        }
    }
}

impl Report {
    /// Which tier of service served it, as the vendor says. The priority of messages is paid in
    /// advance, unless its vendor has a price for it.
    pub(crate) fn served(&self, price: &ModelPrice) -> Served {
        match self.tier.as_deref().map(Served::named) {
            None => Served::Usual,
            Some(Served::As(Service::Priority)) if self.prepaid && !price.serves(Service::Priority) => Served::Usual,
            Some(served) => served,
        }
    }

    /// Reads what the head of an answer says of it.
    pub(crate) fn head(&mut self, headers: &HeaderMap) {
        if let Some(tier) = headers.get("x-gemini-service-tier").and_then(|tier| tier.to_str().ok()) {
            self.tier(Some(tier));
        }
    }

    /// Takes note of a tier of service; the last word counts.
    fn tier(&mut self, said: Option<&str>) {
        if let Some(tier) = said.filter(|tier| !tier.is_empty()) {
            let usual = Served::named(tier) == Served::Usual;
            self.tier = (!usual).then(|| tier.chars().take(LONGEST).collect());
        }
    }

    /// Reads a whole body.
    pub(crate) fn body(surface: Surface, body: &Value) -> Self {
        let mut report = Self::default();
        report.identity(body);
        report.usage = match surface {
            Surface::ChatCompletions => chat(&body["usage"]),
            Surface::Responses => responses(&body["usage"]),
            Surface::Messages => messages(&body["usage"]),
            Surface::GenerateContent => gemini(&body["usageMetadata"]),
        };
        report.tier(body["service_tier"].as_str());
        // Elsewhere the word `priority` has a price, whoever writes it beside the usage.
        if surface == Surface::Messages {
            report.usage_tier(&body["usage"]);
        }
        report.tier(body["usageMetadata"]["serviceTier"].as_str());
        report.complete = report.usage.is_some();
        report.finished = true;
        report
    }

    /// Reads the data of the next event. Whether it is there for its usage alone.
    pub(crate) fn event(&mut self, surface: Surface, data: &[u8]) -> bool {
        if data == b"[DONE]" {
            self.finished = true;
            return false;
        }
        let Ok(event) = serde_json::from_slice::<Value>(data) else { return false };
        if let Some(message) = event["error"]["message"].as_str() {
            self.failed = Some(message.to_owned());
        }
        match surface {
            Surface::ChatCompletions => return self.chat_event(&event),
            Surface::Responses => self.responses_event(&event),
            Surface::Messages => self.messages_event(&event),
            Surface::GenerateContent => {
                self.identity(&event);
                self.usage = gemini(&event["usageMetadata"]).or(self.usage);
                self.tier(event["usageMetadata"]["serviceTier"].as_str());
                let ended = |candidate: &Value| candidate["finishReason"].is_string();
                let blocked = event["promptFeedback"]["blockReason"].is_string();
                if blocked || event["candidates"].as_array().is_some_and(|list| list.iter().any(ended)) {
                    self.complete = self.usage.is_some();
                }
            }
        }
        false
    }

    /// Anthropic says it beside the usage.
    fn usage_tier(&mut self, usage: &Value) {
        if let Some(tier) = usage["service_tier"].as_str() {
            self.tier(Some(tier));
            self.prepaid = true;
        }
    }

    fn chat_event(&mut self, event: &Value) -> bool {
        self.identity(event);
        self.tier(event["service_tier"].as_str());
        let Some(usage) = chat(&event["usage"]) else { return false };
        self.usage = Some(usage);
        let choices = event["choices"].as_array();
        let alone = choices.is_none_or(Vec::is_empty);
        let ended = |choice: &Value| choice["finish_reason"].is_string();
        self.complete |= alone || choices.is_some_and(|list| list.iter().any(ended));
        alone
    }

    fn responses_event(&mut self, event: &Value) {
        self.identity(&event["response"]);
        self.tier(event["response"]["service_tier"].as_str());
        match event["type"].as_str() {
            Some("response.completed" | "response.incomplete" | "response.failed") => {
                self.usage = responses(&event["response"]["usage"]);
                self.complete = self.usage.is_some();
                self.finished = true;
                if let Some(message) = event["response"]["error"]["message"].as_str() {
                    self.failed = Some(message.to_owned());
                }
            }
            Some("error") => {
                self.failed = Some(event["message"].as_str().unwrap_or("the vendor reports an error").to_owned());
            }
            _ => {}
        }
    }

    fn messages_event(&mut self, event: &Value) {
        match event["type"].as_str() {
            Some("message_start") => {
                self.identity(&event["message"]);
                self.heard = event["message"]["usage"].clone();
                self.usage = messages(&self.heard);
                self.usage_tier(&event["message"]["usage"]);
            }
            Some("message_delta") => {
                // Sums since the beginning; what is not said again holds.
                if let (Value::Object(heard), Value::Object(now)) = (&mut self.heard, &event["usage"]) {
                    heard.extend(
                        now.iter()
                            .filter(|(_, value)| !value.is_null())
                            .map(|(key, value)| (key.clone(), value.clone())),
                    );
                } else {
                    self.heard = event["usage"].clone();
                }
                self.usage = messages(&self.heard);
                self.usage_tier(&event["usage"]);
                self.complete = self.usage.is_some() && event["usage"]["output_tokens"].is_u64();
            }
            Some("message_stop") => self.finished = true,
            _ => {}
        }
    }

    fn identity(&mut self, body: &Value) {
        let text = |names: [&str; 2]| {
            let found = names.iter().find_map(|name| body[*name].as_str()).filter(|text| !text.is_empty())?;
            Some(found.chars().take(LONGEST).collect())
        };
        self.model = text(["model", "modelVersion"]).or_else(|| self.model.take());
        self.fingerprint = text(["system_fingerprint", "systemFingerprint"]).or_else(|| self.fingerprint.take());
        self.id = text(["id", "responseId"]).or_else(|| self.id.take());
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

/// Input that includes what came from a cache, and what was written into one.
fn within(input: u64, details: &Value, output: u64) -> Usage {
    let cache_read = number(&details["cached_tokens"]).min(input);
    let cache_write = number(&details["cache_write_tokens"]).min(input - cache_read);
    Usage { input: input - cache_read - cache_write, cache_write, cache_read, output, ..Usage::default() }
}

/// Reasoning is part of `completion_tokens`.
fn chat(usage: &Value) -> Option<Usage> {
    let (input, output) = (usage["prompt_tokens"].as_u64()?, usage["completion_tokens"].as_u64()?);
    Some(within(input, &usage["prompt_tokens_details"], output))
}

/// Reasoning is part of `output_tokens`.
fn responses(usage: &Value) -> Option<Usage> {
    let (input, output) = (usage["input_tokens"].as_u64()?, usage["output_tokens"].as_u64()?);
    Some(within(input, &usage["input_tokens_details"], output))
}

/// `input_tokens` are without any cache; what was written is told as a sum, and by kind.
fn messages(usage: &Value) -> Option<Usage> {
    let (input, output) = (usage["input_tokens"].as_u64()?, usage["output_tokens"].as_u64()?);
    let written = number(&usage["cache_creation_input_tokens"]);
    let long = number(&usage["cache_creation"]["ephemeral_1h_input_tokens"]);
    let short = number(&usage["cache_creation"]["ephemeral_5m_input_tokens"]);
    Some(Usage {
        input,
        // A sum without kinds is of the shorter one.
        cache_write: short.max(written.saturating_sub(long)),
        cache_write_long: long,
        cache_read: number(&usage["cache_read_input_tokens"]),
        output,
    })
}

/// What came from a cache is part of `promptTokenCount`; thoughts are no part of the candidates,
/// and what tools put into the prompt is no part of the prompt.
fn gemini(usage: &Value) -> Option<Usage> {
    let prompt = usage["promptTokenCount"].as_u64()?;
    let cache_read = number(&usage["cachedContentTokenCount"]).min(prompt);
    Some(Usage {
        input: (prompt - cache_read).saturating_add(number(&usage["toolUsePromptTokenCount"])),
        cache_read,
        output: number(&usage["candidatesTokenCount"]).saturating_add(number(&usage["thoughtsTokenCount"])),
        ..Usage::default()
    })
}
