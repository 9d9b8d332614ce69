//! One question to a model, in the form of each vendor: parts in, words out.

use longhaul_core::call::Purpose;
use longhaul_core::endpoint::Protocol;
use longhaul_gateway::{ModelCall, Surface};
use serde_json::{Map, Value, json};

/// The most characters of a vendor's reason that go into an attempt's end.
const LONGEST_REASON: usize = 2_000;

/// The most characters of a model's name.
const LONGEST_NAME: usize = 200;

/// A question.
#[derive(Clone, Debug)]
pub(crate) struct Question<'a> {
    pub(crate) endpoint: &'a str,
    pub(crate) protocol: Protocol,
    pub(crate) model: &'a str,
    pub(crate) purpose: Purpose,
    /// What is said before it, if anything.
    pub(crate) system: Option<&'a str>,
    /// Texts and pictures, in order, in the form of the protocol.
    pub(crate) parts: Vec<Value>,
    /// The most output tokens of the answer.
    pub(crate) max_output: u32,
    pub(crate) temperature: Option<f64>,
    pub(crate) top_p: Option<f64>,
}

impl Question<'_> {
    /// The call that asks it.
    pub(crate) fn call(self) -> ModelCall {
        let Self { endpoint, protocol, model, purpose, system, parts, max_output, temperature, top_p } = self;
        let mut body = Map::new();
        let surface = match protocol {
            Protocol::Anthropic => {
                body.insert("model".to_owned(), json!(model));
                body.insert("max_tokens".to_owned(), json!(max_output));
                body.extend(system.map(|system| ("system".to_owned(), json!(system))));
                body.insert("messages".to_owned(), json!([{"role": "user", "content": parts}]));
                sampling(&mut body, temperature, "top_p", top_p);
                Surface::Messages
            }
            Protocol::OpenAi => {
                let system = system.map(|system| json!({"role": "system", "content": system}));
                let user = json!({"role": "user", "content": parts});
                let messages: Vec<Value> = system.into_iter().chain([user]).collect();
                body.insert("model".to_owned(), json!(model));
                body.insert("max_completion_tokens".to_owned(), json!(max_output));
                body.insert("messages".to_owned(), json!(messages));
                sampling(&mut body, temperature, "top_p", top_p);
                Surface::ChatCompletions
            }
            Protocol::Gemini => {
                let mut config = Map::new();
                config.insert("maxOutputTokens".to_owned(), json!(max_output));
                sampling(&mut config, temperature, "topP", top_p);
                body.extend(
                    system.map(|system| ("systemInstruction".to_owned(), json!({"parts": [{"text": system}]}))),
                );
                body.insert("contents".to_owned(), json!([{"role": "user", "parts": parts}]));
                body.insert("generationConfig".to_owned(), Value::Object(config));
                Surface::GenerateContent
            }
        };
        ModelCall {
            endpoint: endpoint.to_owned(),
            surface,
            purpose,
            model: model.to_owned(),
            body: Value::Object(body),
            headers: Vec::new(),
        }
    }
}

fn sampling(into: &mut Map<String, Value>, temperature: Option<f64>, share: &str, top_p: Option<f64>) {
    into.extend(temperature.map(|value| ("temperature".to_owned(), json!(value))));
    into.extend(top_p.map(|value| (share.to_owned(), json!(value))));
}

/// The words of an answer; what the model thinks aloud is none of them.
pub(crate) fn words(protocol: Protocol, body: &Value) -> String {
    let texts = |parts: Option<&Value>| {
        let parts = parts.and_then(Value::as_array).into_iter().flatten();
        let said = parts.filter(|part| part.get("thought") != Some(&Value::Bool(true)));
        said.filter_map(|part| part.get("text")?.as_str()).collect::<Vec<_>>().join("\n")
    };
    match protocol {
        Protocol::Anthropic => texts(body.get("content")),
        Protocol::Gemini => texts(body.pointer("/candidates/0/content/parts")),
        Protocol::OpenAi => match body.pointer("/choices/0/message/content") {
            Some(Value::String(text)) => text.clone(),
            other => texts(other),
        },
    }
}

/// Why the model or its vendor will not answer, if that is what the response says.
pub(crate) fn refusal(protocol: Protocol, body: &Value) -> Option<String> {
    let word = |pointer: &str| Some(start(body.pointer(pointer)?.as_str()?, LONGEST_REASON));
    match protocol {
        Protocol::Anthropic => {
            (word("/stop_reason") == Some("refusal")).then(|| "the model refuses (stop_reason `refusal`)".to_owned())
        }
        Protocol::OpenAi => {
            let refused = word("/choices/0/message/refusal").map(|why| format!("the model refuses: {why}"));
            let filtered = word("/choices/0/finish_reason") == Some("content_filter");
            refused.or_else(|| filtered.then(|| "the vendor filtered the answer".to_owned()))
        }
        Protocol::Gemini => {
            let blocked =
                word("/promptFeedback/blockReason").map(|why| format!("the vendor blocks the question: {why}"));
            let ended = word("/candidates/0/finishReason");
            let unwilling = ended.filter(|why| !matches!(*why, "STOP" | "MAX_TOKENS" | "FINISH_REASON_UNSPECIFIED"));
            blocked.or_else(|| unwilling.map(|why| format!("the model stopped for {why}")))
        }
    }
}

/// The model, as the vendor says that it answered.
pub(crate) fn model_reported(body: &Value) -> Option<&str> {
    let model = body.get("model").or_else(|| body.get("modelVersion")).and_then(Value::as_str);
    model.map(|model| start(model, LONGEST_NAME))
}

/// The first characters of a text: a vendor says as much as it likes.
fn start(text: &str, characters: usize) -> &str {
    let end = text.char_indices().nth(characters).map_or(text.len(), |(end, _)| end);
    text.get(..end).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(protocol: Protocol) -> Question<'static> {
        Question {
            endpoint: "e",
            protocol,
            model: "m",
            purpose: Purpose::Judge,
            system: None,
            parts: vec![json!({"text": "?"})],
            max_output: 7,
            temperature: Some(0.1),
            top_p: None,
        }
    }

    #[test]
    fn what_is_not_asked_for_is_not_sent() {
        for protocol in Protocol::ALL {
            let body = question(protocol).call().body;
            let fields = if protocol == Protocol::Gemini { body["generationConfig"].clone() } else { body.clone() };
            assert_eq!(fields["temperature"], 0.1, "{protocol}");
            assert!(!body.to_string().contains("top_p") && !body.to_string().contains("topP"), "{protocol}");
            assert!(!body.to_string().contains("ystem"), "{body}");
            let shared = Question { top_p: Some(0.95), ..question(protocol) }.call().body.to_string();
            assert!(shared.contains("0.95"), "{shared}");
        }
    }

    #[test]
    fn refusals_are_told_from_answers() {
        for (protocol, body) in [
            (Protocol::Anthropic, json!({"content": [], "stop_reason": "refusal"})),
            (Protocol::OpenAi, json!({"choices": [{"message": {"content": null, "refusal": "I cannot"}}]})),
            (Protocol::OpenAi, json!({"choices": [{"finish_reason": "content_filter", "message": {"content": ""}}]})),
            (Protocol::Gemini, json!({"promptFeedback": {"blockReason": "SAFETY"}})),
            (Protocol::Gemini, json!({"candidates": [{"finishReason": "PROHIBITED_CONTENT"}]})),
        ] {
            assert!(refusal(protocol, &body).is_some(), "{body}");
        }
        for (protocol, body) in [
            (Protocol::Anthropic, json!({"content": [{"type": "text", "text": "w"}], "stop_reason": "end_turn"})),
            (Protocol::OpenAi, json!({"choices": [{"finish_reason": "stop", "message": {"content": "w"}}]})),
            (
                Protocol::Gemini,
                json!({"candidates": [{"finishReason": "STOP", "content": {"parts": [
                    {"text": "aloud", "thought": true}, {"text": "w"}]}}]}),
            ),
        ] {
            assert_eq!((refusal(protocol, &body), words(protocol, &body).as_str()), (None, "w"), "{body}");
        }
    }

    #[test]
    fn of_what_a_vendor_says_at_length_the_start_is_kept() {
        let long = "\u{20ac}".repeat(5 << 20);
        for (protocol, body) in [
            (Protocol::OpenAi, json!({"model": &long, "choices": [{"message": {"refusal": &long}}]})),
            (Protocol::Gemini, json!({"modelVersion": &long, "promptFeedback": {"blockReason": &long}})),
            (Protocol::Gemini, json!({"modelVersion": &long, "candidates": [{"finishReason": &long}]})),
        ] {
            let reason = refusal(protocol, &body).unwrap();
            assert_eq!(reason.matches('\u{20ac}').count(), LONGEST_REASON, "{protocol}");
            assert_eq!(model_reported(&body).unwrap().chars().count(), LONGEST_NAME, "{protocol}");
        }
    }
}
