//! What requests are read as, and what answers report.

use longhaul_core::money::Money;
use longhaul_core::price::{ImageRule, ModelPrice, Rate, Tier, Usage};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn price() -> ModelPrice {
    let dollar = Money::from_dollars(1);
    let tier = Tier {
        above: 0,
        input: dollar,
        cache_write: dollar,
        cache_write_long: dollar,
        cache_read: dollar,
        output: dollar,
    };
    ModelPrice {
        vendor: "v".to_owned(),
        model: "m".to_owned(),
        rate: Rate::Tokens { tiers: vec![tier] },
        image: ImageRule::Fixed { tokens: 1000 },
        context: 100_000,
        max_output: 4_096,
        services: Vec::new(),
    }
}

fn asked(surface: Surface, body: &Value, capped: bool) -> Result<Asked, String> {
    let price = price();
    read(surface, body, false, Terms { price: Some(&price), capped, vendor: "v" })
}

fn image(surface: Surface, data: &str) -> Value {
    let url = format!("data:image/png;base64,{data}");
    match surface {
        Surface::ChatCompletions => {
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url", "image_url": { "url": url } }] }] })
        }
        Surface::Responses => json!({ "input": [
            { "type": "computer_call_output", "call_id": "c", "output": { "type": "computer_screenshot", "image_url": url } }] }),
        Surface::Messages => {
            json!({ "messages": [{ "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "t",
            "content": [{ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": data } }] }] }] })
        }
        Surface::GenerateContent => {
            json!({ "contents": [{ "parts": [{ "functionResponse": { "name": "f", "response": {},
            "parts": [{ "inlineData": { "mimeType": "image/png", "data": data } }] } }] }] })
        }
    }
}

#[test]
fn images_are_counted_by_their_rule_wherever_they_may_stand() {
    for surface in Surface::ALL {
        let one = asked(surface, &image(surface, &"A".repeat(50_000)), true).unwrap();
        assert!((1_000..1_400).contains(&one.input), "{surface:?}: {}", one.input);
    }
}

#[test]
fn what_looks_like_an_image_where_none_is_read_counts_as_text() {
    let data = "A".repeat(50_000);
    let source = json!({ "type": "image", "source": { "type": "base64", "data": data } });
    let body = json!({ "messages": [{ "role": "assistant", "content": [
        { "type": "tool_use", "id": "t", "name": "n", "input": source } ] }], "max_tokens": 5 });
    assert!(asked(Surface::Messages, &body, true).unwrap().input > 50_000);
    let body = json!({ "contents": [{ "parts": [{ "functionCall": { "name": "n",
        "args": { "inlineData": { "mimeType": "image/png", "data": data } } } }] }] });
    assert!(asked(Surface::GenerateContent, &body, true).unwrap().input > 50_000);
}

#[test]
fn each_protocol_names_its_output_limit_and_gets_one_if_it_lacks_it() {
    for (surface, body, output, choices, limit) in [
        (Surface::ChatCompletions, json!({ "max_completion_tokens": 7, "n": 3 }), 7, 3, "max_completion_tokens"),
        (Surface::ChatCompletions, json!({ "max_tokens": 7, "best_of": 4 }), 7, 4, "max_tokens"),
        (Surface::ChatCompletions, json!({}), 4_096, 1, "max_tokens"),
        (Surface::Responses, json!({ "max_output_tokens": 7, "store": false }), 7, 1, "max_output_tokens"),
        (Surface::Messages, json!({ "max_tokens": 7 }), 7, 1, "max_tokens"),
        (
            Surface::GenerateContent,
            json!({ "generationConfig": { "maxOutputTokens": 7, "candidateCount": 2 } }),
            7,
            2,
            "generationConfig.maxOutputTokens",
        ),
        (
            Surface::GenerateContent,
            json!({ "generation_config": { "max_output_tokens": "7" } }),
            7,
            1,
            "generation_config.max_output_tokens",
        ),
        (Surface::GenerateContent, json!({}), 4_096, 1, "generationConfig.maxOutputTokens"),
    ] {
        let asked = asked(surface, &body, true).unwrap();
        assert_eq!((asked.output, asked.choices, asked.limit.join(".").as_str()), (output, choices, limit), "{body}");
        assert_eq!(asked.edits.len(), usize::from(output == 4_096), "{body}");
    }
    // OpenAI's own models take only the newer name.
    let price = price();
    let asked = read(
        Surface::ChatCompletions,
        &json!({}),
        false,
        Terms { price: Some(&price), capped: true, vendor: "openai" },
    );
    assert_eq!(asked.unwrap().limit, ["max_completion_tokens"]);
}

#[test]
fn what_cannot_be_bounded_is_refused_under_a_cap_and_passes_without_one() {
    let part = |part: Value| json!({ "messages": [{ "role": "user", "content": [part] }] });
    let item = |item: Value| json!({ "input": [item] });
    let tools = |tool: Value| json!({ "tools": [tool] });
    let gemini = |part: Value| json!({ "contents": [{ "parts": [part] }] });
    for (surface, body) in [
        (Surface::ChatCompletions, json!({ "web_search_options": {"x": 1} })),
        (Surface::ChatCompletions, json!({ "modalities": ["text", "audio"] })),
        (Surface::ChatCompletions, json!({ "prediction": { "type": "content", "content": "x" } })),
        (Surface::ChatCompletions, json!({ "service_tier": "priority" })),
        (Surface::ChatCompletions, json!({ "max_tokens": 1, "max_completion_tokens": 1 })),
        (Surface::ChatCompletions, json!({ "max_tokens": -1 })),
        (Surface::ChatCompletions, json!({ "max_tokens": 1.5 })),
        (Surface::ChatCompletions, json!({ "n": "2" })),
        (Surface::ChatCompletions, part(json!({ "type": "input_audio", "input_audio": {} }))),
        (Surface::ChatCompletions, part(json!({ "type": "file", "file": { "file_id": "f" } }))),
        (Surface::ChatCompletions, part(json!({ "type": "image_url", "image_url": { "url": "https://h/i.png" } }))),
        (Surface::Responses, json!({ "previous_response_id": "r" })),
        (Surface::Responses, json!({ "conversation": "c" })),
        (Surface::Responses, json!({ "prompt": { "id": "p" } })),
        (Surface::Responses, json!({ "background": true })),
        (Surface::Responses, tools(json!({ "type": "web_search_preview" }))),
        (Surface::Responses, tools(json!({ "type": "code_interpreter" }))),
        (Surface::Responses, tools(json!({ "type": "mcp" }))),
        (Surface::Responses, tools(json!({ "type": "shell", "environment": { "type": "container_auto" } }))),
        (Surface::Responses, item(json!({ "type": "item_reference", "id": "i" }))),
        (Surface::Responses, item(json!({ "type": "compaction", "encrypted_content": "x" }))),
        (Surface::Responses, item(json!({ "role": "user", "content": [{ "type": "input_file", "file_id": "f" }] }))),
        (Surface::Responses, item(json!({ "role": "user", "content": [{ "type": "input_image", "file_id": "f" }] }))),
        (Surface::Messages, tools(json!({ "type": "web_fetch_20250910", "name": "web_fetch" }))),
        (Surface::Messages, tools(json!({ "type": "code_execution_20250825", "name": "c" }))),
        (Surface::Messages, json!({ "mcp_servers": [{ "url": "u" }] })),
        (Surface::Messages, json!({ "container": "c" })),
        (Surface::Messages, json!({ "speed": "fast" })),
        (Surface::Messages, json!({ "context_management": { "edits": [{ "type": "compact_20260112" }] } })),
        (Surface::Messages, part(json!({ "type": "image", "source": { "type": "url", "url": "https://h" } }))),
        (Surface::Messages, part(json!({ "type": "document", "source": { "type": "base64", "data": "x" } }))),
        (Surface::GenerateContent, json!({ "cachedContent": "c" })),
        (Surface::GenerateContent, json!({ "cached_content": "c" })),
        (Surface::GenerateContent, tools(json!({ "googleSearch": {} }))),
        (Surface::GenerateContent, tools(json!({ "code_execution": {} }))),
        (Surface::GenerateContent, tools(json!({ "urlContext": {} }))),
        (Surface::GenerateContent, json!({ "generationConfig": { "responseModalities": ["IMAGE"] } })),
        (Surface::GenerateContent, json!({ "generationConfig": { "maxOutputTokens": 1, "max_output_tokens": 9 } })),
        (Surface::GenerateContent, gemini(json!({ "fileData": { "fileUri": "gs://b/f" } }))),
        (Surface::GenerateContent, gemini(json!({ "inlineData": { "mimeType": "video/mp4", "data": "x" } }))),
    ] {
        let Err(reason) = asked(surface, &body, true) else { panic!("it passes: {body}") };
        assert!(reason.len() > 20, "{reason}");
        let passed = asked(surface, &body, false).unwrap();
        assert_eq!(passed.input, 100_000, "without a cap the whole context is counted: {body}");
    }
}

#[test]
fn a_field_that_nobody_here_knows_is_refused_under_a_cap_unless_it_says_nothing() {
    for (surface, body) in [
        (Surface::ChatCompletions, json!({ "search_parameters": { "mode": "on" } })),
        (Surface::ChatCompletions, json!({ "plugins": [{ "id": "web" }] })),
        (Surface::ChatCompletions, json!({ "models": ["dearer"] })),
        (Surface::ChatCompletions, json!({ "chat_template": "{{ 'x' * 100000 }}" })),
        (Surface::ChatCompletions, json!({ "new_switch": 0 })),
        (Surface::ChatCompletions, json!({ "enable_thinking": true })),
        (Surface::Responses, json!({ "context_management": [{ "type": "compaction" }] })),
        (Surface::Responses, json!({ "new_switch": true })),
        (Surface::Messages, json!({ "new_switch": "on" })),
        (Surface::Messages, json!({ "context_management": { "edits": [{ "type": "summarize_20270101" }] } })),
        (Surface::GenerateContent, json!({ "newSwitch": {"x": 1} })),
        (Surface::GenerateContent, json!({ "generationConfig": { "imageConfig": { "count": 9 } } })),
        (Surface::GenerateContent, json!({ "generation_config": { "speech_config": { "voice": "x" } } })),
    ] {
        let Err(reason) = asked(surface, &body, true) else { panic!("it passes: {body}") };
        assert!(reason.contains("bounded"), "{reason}");
        asked(surface, &body, false).unwrap();
    }
    for (surface, body) in [
        (
            Surface::ChatCompletions,
            json!({ "new_switch": null, "enable_thinking": false, "third": [], "temperature": 0.5, "top_k": 3,
            "reasoning_effort": "low", "chat_template_kwargs": { "enable_thinking": false }, "web_search_options": null }),
        ),
        (Surface::Responses, json!({ "reasoning": { "effort": "high" }, "truncation": "auto", "conversation": null })),
        (Surface::Messages, json!({ "thinking": { "type": "adaptive" }, "output_config": { "effort": "low" } })),
        (
            Surface::GenerateContent,
            json!({ "generation_config": { "top_p": 0.5, "thinkingConfig": { "thinkingLevel": "low" } },
            "safety_settings": [{ "category": "x" }], "toolConfig": { "functionCallingConfig": { "mode": "ANY" } } }),
        ),
    ] {
        asked(surface, &body, true).unwrap();
    }
    // By the hour a call costs what its time costs, whatever it asks for.
    let price = ModelPrice { rate: Rate::Time { hour: Money::from_dollars(2) }, ..price() };
    let terms = Terms { price: Some(&price), capped: true, vendor: "v" };
    read(Surface::ChatCompletions, &json!({ "new_switch": 1 }), false, terms).unwrap();
    let long = json!({ "x".repeat(5_000): 1 });
    assert!(asked(Surface::Messages, &long, true).unwrap_err().len() < 300, "a name is not repeated at any length");
}

#[test]
fn what_the_vendors_agents_send_is_bounded() {
    for (surface, body) in [
        (
            Surface::Responses,
            json!({ "tools": [{ "type": "computer_use_preview", "environment": "linux" }, { "type": "computer" }] }),
        ),
        (
            Surface::Responses,
            json!({ "input": [{ "type": "reasoning", "summary": [], "encrypted_content": "abc" },
            { "type": "computer_call", "call_id": "c", "action": {} },
            { "type": "function_call_output", "call_id": "c", "output": "done" }] }),
        ),
        (
            Surface::Messages,
            json!({ "tools": [{ "type": "computer_20251124", "name": "computer" },
            { "type": "bash_20250124", "name": "bash" }, { "name": "own", "input_schema": {} }], "max_tokens": 5,
            "context_management": { "edits": [{ "type": "clear_tool_uses_20250919" }] },
            "system": [{ "type": "text", "text": "x", "cache_control": { "type": "ephemeral" } }] }),
        ),
        (
            Surface::GenerateContent,
            json!({ "tools": [{ "computerUse": { "environment": "ENVIRONMENT_BROWSER" } },
            { "functionDeclarations": [{ "name": "f" }] }], "systemInstruction": { "parts": [{ "text": "x" }] } }),
        ),
        (
            Surface::ChatCompletions,
            json!({ "tools": [{ "type": "function", "function": { "name": "f" } }],
            "messages": [{ "role": "assistant", "content": null, "tool_calls": [] }, { "role": "tool", "content": "ok" }] }),
        ),
    ] {
        asked(surface, &body, true).unwrap();
    }
}

#[test]
fn a_billion_tokens_are_refused_and_nothing_is_kept_at_the_vendor() {
    let reason = asked(Surface::Messages, &json!({ "max_tokens": 1_000_000_000 }), true).unwrap_err();
    assert!(reason.contains("whole context"), "{reason}");
    let stored = asked(Surface::Responses, &json!({ "input": "x", "max_output_tokens": 5 }), true).unwrap();
    assert_eq!(stored.edits, [(["store"].as_slice(), "false".to_owned())]);
    let stored = asked(Surface::ChatCompletions, &json!({ "store": true, "max_tokens": 5 }), true).unwrap();
    assert_eq!(stored.edits, [(["store"].as_slice(), "false".to_owned())]);
}

#[test]
fn usage_is_told_apart_without_counting_twice() {
    let usage = |surface, body: Value| Report::body(surface, &body).usage;
    let expected = Some(Usage { input: 60, cache_read: 40, output: 30, ..Usage::default() });
    assert_eq!(
        usage(
            Surface::ChatCompletions,
            json!({ "usage": { "prompt_tokens": 100, "completion_tokens": 30,
            "prompt_tokens_details": { "cached_tokens": 40 }, "completion_tokens_details": { "reasoning_tokens": 20 } } })
        ),
        expected
    );
    assert_eq!(
        usage(
            Surface::Responses,
            json!({ "usage": { "input_tokens": 100, "output_tokens": 30,
            "input_tokens_details": { "cached_tokens": 40 }, "output_tokens_details": { "reasoning_tokens": 20 } } })
        ),
        expected
    );
    assert_eq!(
        usage(
            Surface::GenerateContent,
            json!({ "usageMetadata": { "promptTokenCount": 100, "cachedContentTokenCount": 40,
            "candidatesTokenCount": 10, "thoughtsTokenCount": 20 } })
        ),
        expected
    );
    let kinds = json!({ "input_tokens": 60, "cache_read_input_tokens": 40, "output_tokens": 30,
        "cache_creation_input_tokens": 9, "cache_creation": { "ephemeral_5m_input_tokens": 2, "ephemeral_1h_input_tokens": 7 } });
    assert_eq!(
        usage(Surface::Messages, json!({ "usage": kinds })),
        Some(Usage { input: 60, cache_read: 40, cache_write: 2, cache_write_long: 7, output: 30 })
    );
    let sum = json!({ "input_tokens": 1, "output_tokens": 2, "cache_creation_input_tokens": 9 });
    assert_eq!(
        usage(Surface::Messages, json!({ "usage": sum })),
        Some(Usage { input: 1, cache_write: 9, output: 2, ..Usage::default() })
    );
    for surface in Surface::ALL {
        for body in [json!(null), json!({ "usage": {} }), json!({ "usage": { "prompt_tokens": -1 } }), json!([])] {
            assert_eq!(usage(surface, body), None);
        }
    }
}

#[test]
fn a_stream_is_certain_only_once_its_usage_is_final() {
    let mut report = Report::default();
    report.event(
        Surface::Messages,
        br#"{"type":"message_start","message":{"model":"m","usage":{"input_tokens":9,"output_tokens":1}}}"#,
    );
    assert!(report.usage.is_some() && !report.complete);
    report.event(Surface::Messages, br#"{"type":"message_delta","usage":{"output_tokens":20}}"#);
    assert!(report.complete && !report.finished);
    assert_eq!(report.usage, Some(Usage { input: 9, output: 20, ..Usage::default() }));
    report.event(Surface::Messages, br#"{"type":"message_stop"}"#);
    assert!(report.finished);
    let mut report = Report::default();
    let growing = br#"{"candidates":[{}],"usageMetadata":{"promptTokenCount":5,"candidatesTokenCount":1}}"#;
    report.event(Surface::GenerateContent, growing);
    assert!(!report.complete);
    let last =
        br#"{"candidates":[{"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":5,"candidatesTokenCount":8}}"#;
    report.event(Surface::GenerateContent, last);
    assert!(report.complete && report.usage.unwrap().output == 8);
}

#[test]
fn errors_are_said_in_each_vendors_form() {
    let said = |protocol| ErrorKind::Spent.body(protocol, "the budget is spent");
    assert_eq!(said(Protocol::OpenAi)["error"]["code"], "budget_spent");
    assert_eq!(said(Protocol::Anthropic)["error"]["type"], "billing_error");
    assert_eq!(said(Protocol::Gemini)["error"]["status"], "FAILED_PRECONDITION");
    for protocol in Protocol::ALL {
        assert_eq!(error_message(said(protocol).to_string().as_bytes()), "the budget is spent");
    }
    assert_eq!(error_message(b"<html>"), "<html>");
    assert_eq!(error_message(br#"[{"error":{"message":"in a list"}}]"#), "in a list");
}

proptest! {
    /// The bound of a request is at least its texts.
    #[test]
    fn no_text_is_overlooked(text in "\\PC{1,60}", at in 0_usize..7) {
        let text = text.repeat(40);
        let body = [
            json!({ "messages": [{ "role": "user", "content": text }] }),
            json!({ "messages": [{ "role": "user", "content": [{ "type": "text", "text": text }] }] }),
            json!({ "messages": [{ "role": "assistant", "tool_calls": [{ "function": { "arguments": text } }] }] }),
            json!({ "tools": [{ "type": "function", "function": { "description": text } }] }),
            json!({ "response_format": { "schema": { "description": text } } }),
            json!({ "messages": [{ "content": [text] }] }),
            json!({ "chat_template_kwargs": { "x": [text] } }),
        ];
        let asked = asked(Surface::ChatCompletions, &body[at], true).unwrap();
        prop_assert!(asked.input >= text.len() as u64);
    }

    /// Whatever stands in a request, reading it ends in a bound or a reason.
    #[test]
    fn any_request_is_read_without_a_panic(keys in proptest::collection::vec("[a-z_]{1,12}", 0..4), number: i64) {
        let odd = json!({ "messages": number, "input": [keys, number], "contents": { "parts": number },
            "tools": { "type": number }, "generationConfig": [number], "max_tokens": number, "n": number });
        for surface in Surface::ALL {
            let _ = (asked(surface, &odd, true), asked(surface, &odd, false));
        }
    }
}

#[test]
fn openais_own_models_are_told_the_tier_that_is_reserved_for() {
    let price = price();
    let told = |tier: Value, capped, vendor| {
        let body = json!({ "service_tier": tier });
        let terms = Terms { price: Some(&price), capped, vendor };
        let asked = read(Surface::ChatCompletions, &body, false, terms).unwrap();
        asked.edits.iter().any(|(path, value)| *path == ["service_tier"] && value == "\"default\"")
    };
    for tier in [Value::Null, json!("auto"), json!("")] {
        assert!(told(tier.clone(), true, "openai"), "{tier}: the project's own setting may be another one");
        assert!(!told(tier.clone(), true, "my-vllm"), "a server that only speaks the protocol may not know it");
        assert!(!told(tier, false, "openai"));
    }
    for tier in ["default", "flex"] {
        assert!(!told(json!(tier), true, "openai"), "{tier}");
    }
}

#[test]
fn tiers_of_service_are_known_in_every_vendors_words() {
    use longhaul_core::price::Service;
    for (tier, served) in [
        ("default", Served::Usual),
        ("auto", Served::Usual),
        ("standard_only", Served::Usual),
        ("SERVICE_TIER_STANDARD", Served::Usual),
        ("on_demand", Served::Usual),
        ("scale", Served::Usual),
        ("flex", Served::As(Service::Flex)),
        ("SERVICE_TIER_FLEX", Served::As(Service::Flex)),
        ("PRIORITY", Served::As(Service::Priority)),
        ("fast", Served::As(Service::Priority)),
        ("batch", Served::As(Service::Batch)),
        ("ultrafast", Served::Unknown),
        ("", Served::Unknown),
    ] {
        assert_eq!(Served::named(tier), served, "{tier}");
    }
}
