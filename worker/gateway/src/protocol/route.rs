//! Which path is which request: on the way in from a client, and on the way out to a vendor.

use std::fmt::Write as _;

use longhaul_core::endpoint::Protocol;

use super::Surface;

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// A call of a model.
    Call(CallRoute),
    /// Which models there are; one of them, if it is named.
    Models(Option<String>),
}

/// A call of a model, as far as a path tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallRoute {
    /// Which request.
    pub(crate) surface: Surface,
    /// The model, where the path names it.
    pub(crate) model: Option<String>,
    /// Whether a stream is asked for, where the path says it.
    pub(crate) stream: Option<bool>,
    /// The version that the path names.
    pub(crate) version: String,
}

/// Reads the path behind the endpoint's name; none if nothing is there.
pub(crate) fn read(protocol: Protocol, post: bool, path: &str) -> Option<Route> {
    let (version, rest) = version(path);
    let call = |surface| {
        Some(Route::Call(CallRoute { surface, model: None, stream: None, version: version.unwrap_or("v1").to_owned() }))
    };
    if !post {
        let name = rest.strip_prefix("/models")?;
        let name = name.strip_prefix('/').map(str::to_owned);
        return Some(Route::Models(name.filter(|name| !name.is_empty())));
    }
    match (protocol, rest) {
        (Protocol::OpenAi, "/chat/completions") => call(Surface::ChatCompletions),
        (Protocol::OpenAi, "/responses") => call(Surface::Responses),
        (Protocol::Anthropic, "/messages") => call(Surface::Messages),
        (Protocol::Gemini, rest) => {
            let (model, method) = rest.strip_prefix("/models/")?.split_once(':')?;
            let stream = match method {
                "generateContent" => false,
                "streamGenerateContent" => true,
                _ => return None,
            };
            // Part of a path on the way out: nothing that could lead to another one.
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
            if model.is_empty() || model.starts_with('.') || !model.bytes().all(plain) {
                return None;
            }
            Some(Route::Call(CallRoute {
                surface: Surface::GenerateContent,
                model: Some(model.to_owned()),
                stream: Some(stream),
                version: version.unwrap_or("v1beta").to_owned(),
            }))
        }
        _ => None,
    }
}

/// A version at the start of a path, if there is one; a base address may lack it.
fn version(path: &str) -> (Option<&str>, &str) {
    for name in ["v1beta", "v1alpha", "v1"] {
        if let Some(rest) = path.strip_prefix('/').and_then(|path| path.strip_prefix(name))
            && rest.starts_with('/')
        {
            return (Some(name), rest);
        }
    }
    (None, path)
}

/// The address of a request at a vendor.
pub(crate) fn address(base: &str, call: &CallRoute, model: &str, stream: bool, query: &str) -> String {
    let base = trimmed(base);
    let version = &call.version;
    let mut address = match call.surface {
        Surface::ChatCompletions => format!("{base}/{version}/chat/completions"),
        Surface::Responses => format!("{base}/{version}/responses"),
        Surface::Messages => format!("{base}/{version}/messages"),
        Surface::GenerateContent if stream => format!("{base}/{version}/models/{model}:streamGenerateContent"),
        Surface::GenerateContent => format!("{base}/{version}/models/{model}:generateContent"),
    };
    if !query.is_empty() {
        // Writing to a string does not fail.
        let _ = write!(address, "?{query}");
    }
    address
}

/// The address that costs nothing, by which an endpoint shows that it is there.
pub(crate) fn probe(base: &str, protocol: Protocol) -> String {
    let version = if protocol == Protocol::Gemini { "v1beta" } else { "v1" };
    format!("{}/{version}/models", trimmed(base))
}

/// A base address may end with a slash, or with the version that it should not have.
fn trimmed(base: &str) -> &str {
    let base = base.trim_end_matches('/');
    base.strip_suffix("/v1").unwrap_or(base)
}

/// A query without what a client must not send on: its key.
pub(crate) fn query(query: &str, stream: bool, surface: Surface) -> String {
    let kept = |pair: &&str| matches!(*pair, "beta=true" | "alt=sse");
    let mut pairs: Vec<_> = query.split('&').filter(kept).collect();
    // Gemini streams an array of JSON unless it is asked for events, which are what is read here.
    if stream && surface == Surface::GenerateContent && !pairs.contains(&"alt=sse") {
        pairs.push("alt=sse");
    }
    pairs.join("&")
}

/// The token of a query, as Gemini's clients may send it.
pub(crate) fn token(query: &str) -> Option<&str> {
    query.split('&').find_map(|pair| pair.strip_prefix("key="))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(protocol: Protocol, path: &str) -> Option<CallRoute> {
        match read(protocol, true, path) {
            Some(Route::Call(call)) => Some(call),
            _ => None,
        }
    }

    #[test]
    fn each_protocol_has_its_own_paths_and_no_others() {
        for (protocol, path, surface) in [
            (Protocol::OpenAi, "/v1/chat/completions", Surface::ChatCompletions),
            (Protocol::OpenAi, "/chat/completions", Surface::ChatCompletions),
            (Protocol::OpenAi, "/v1/responses", Surface::Responses),
            (Protocol::Anthropic, "/v1/messages", Surface::Messages),
            (Protocol::Gemini, "/v1beta/models/g-3:generateContent", Surface::GenerateContent),
        ] {
            assert_eq!(call(protocol, path).map(|call| call.surface), Some(surface), "{path}");
        }
        for (protocol, path) in [
            (Protocol::OpenAi, "/v1/messages"),
            (Protocol::OpenAi, "/v1/files"),
            (Protocol::OpenAi, "/v1/responses/resp_1/cancel"),
            (Protocol::OpenAi, "/v1/../v1/files"),
            (Protocol::Anthropic, "/v1/messages/count_tokens"),
            (Protocol::Anthropic, "/v1/messages/batches"),
            (Protocol::Gemini, "/v1beta/models/../files:generateContent"),
            (Protocol::Gemini, "/v1beta/models/a%2Fb:generateContent"),
            (Protocol::Gemini, "/v1beta/models/g:batchGenerateContent"),
            (Protocol::Gemini, "/v1beta/cachedContents"),
        ] {
            assert_eq!(call(protocol, path), None, "{path}");
        }
        assert_eq!(read(Protocol::OpenAi, false, "/v1/models/m"), Some(Route::Models(Some("m".to_owned()))));
        assert_eq!(read(Protocol::OpenAi, false, "/v1/files"), None);
    }

    #[test]
    fn addresses_keep_the_version_and_lose_the_key() {
        let route = call(Protocol::Gemini, "/v1alpha/models/g-3:streamGenerateContent").unwrap();
        let query = query("key=secret&x=1", true, route.surface);
        assert_eq!(
            address("http://host/", &route, "g-3", true, &query),
            "http://host/v1alpha/models/g-3:streamGenerateContent?alt=sse"
        );
        let route = call(Protocol::OpenAi, "/chat/completions").unwrap();
        assert_eq!(address("http://host/v1", &route, "m", false, ""), "http://host/v1/chat/completions");
        assert_eq!(token("a=b&key=t"), Some("t"));
        assert_eq!(probe("https://host/v1/", Protocol::OpenAi), "https://host/v1/models");
    }
}
