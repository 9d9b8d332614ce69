//! The fields of requests that are known to leave a bound as it is: they are read by the rules of
//! their protocol, or change how a model samples and what it answers in, within the limits that are
//! reserved for. Everything else may make a vendor do paid work or keep something, today or from
//! its next version on, so that under a dollar cap it is refused until it stands here.

use longhaul_core::price::{ModelPrice, Rate};
use serde_json::{Map, Value};

use super::{Reader, is_nothing};

/// Of OpenAI's chat completions; and of the servers that speak them, whose own fields follow. Not
/// there on purpose: `models` and `route` (another model's prices), `plugins`, `search_parameters`
/// (paid apart), `chat_template` and `mm_processor_kwargs` (they say how long a prompt is),
/// `thinking_budget` and `enable_thinking` (what is thought may be output beyond the limit).
pub(super) const CHAT: &[&str] = &[
    "messages",
    "model",
    "tools",
    "functions",
    "stream",
    "stream_options",
    "metadata",
    "user",
    "store",
    "max_tokens",
    "max_completion_tokens",
    "n",
    "best_of",
    "service_tier",
    "modalities",
    "function_call",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "temperature",
    "top_p",
    "stop",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "reasoning_effort",
    "verbosity",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "top_k",
    "min_p",
    "repetition_penalty",
    "length_penalty",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "min_tokens",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "prompt_logprobs",
    "allowed_token_ids",
    "bad_words",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template_kwargs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_whitespace_pattern",
    "guided_decoding_backend",
    "structured_outputs",
    "regex",
    "ebnf",
    "json_schema",
    "priority",
    "request_id",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "cache_salt",
    "thinking",
    "reasoning",
    "include_reasoning",
    "separate_reasoning",
    "stream_reasoning",
    "do_sample",
];

/// Of OpenAI's responses, and of servers that speak them.
pub(super) const RESPONSES: &[&str] = &[
    "input",
    "instructions",
    "model",
    "tools",
    "stream",
    "stream_options",
    "metadata",
    "user",
    "include",
    "store",
    "max_output_tokens",
    "service_tier",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "tool_choice",
    "parallel_tool_calls",
    "max_tool_calls",
    "reasoning",
    "text",
    "truncation",
    "top_logprobs",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "repetition_penalty",
    "stop",
    "ignore_eos",
    "min_tokens",
    "priority",
    "request_id",
    "cache_salt",
];

/// Of Anthropic's messages.
pub(super) const MESSAGES: &[&str] = &[
    "messages",
    "model",
    "max_tokens",
    "system",
    "tools",
    "stream",
    "metadata",
    "thinking",
    "service_tier",
    "speed",
    "context_management",
    "stop_sequences",
    "temperature",
    "top_k",
    "top_p",
    "tool_choice",
    "output_config",
    "output_format",
    "cache_control",
];

/// Of Gemini's `generateContent`.
pub(super) const GENERATE: &[&str] = &[
    "contents",
    "systemInstruction",
    "tools",
    "toolConfig",
    "safetySettings",
    "generationConfig",
    "serviceTier",
    "labels",
    "model",
];

/// Of Gemini's `generationConfig`.
pub(super) const GENERATION: &[&str] = &[
    "maxOutputTokens",
    "candidateCount",
    "responseModalities",
    "stopSequences",
    "responseMimeType",
    "responseSchema",
    "responseJsonSchema",
    "temperature",
    "topP",
    "topK",
    "seed",
    "presencePenalty",
    "frequencyPenalty",
    "responseLogprobs",
    "logprobs",
    "enableEnhancedCivicAnswers",
    "thinkingConfig",
    "mediaResolution",
];

/// The longest name that is repeated to whoever wrote it.
const LONGEST: usize = 60;

impl Reader<'_> {
    /// Members that are not known here stand against the request, unless they say nothing. Where
    /// a call is priced by its time, its bound does not depend on what it asks for.
    pub(super) fn strangers(&mut self, object: &Map<String, Value>, is_known: impl Fn(&str) -> bool) {
        let by_time = |price: &ModelPrice| matches!(price.rate, Rate::Time { .. });
        if !self.terms.capped || self.terms.price.is_some_and(by_time) {
            return;
        }
        if let Some((name, _)) = object.iter().find(|(name, value)| !is_known(name) && !is_nothing(value)) {
            let name: String = name.chars().take(LONGEST).collect();
            self.unbounded(format!(
                "`{name}` is not known here, and what it makes a vendor do cannot be bounded under a dollar cap: leave it out"
            ));
        }
    }
}
