//! Which headers pass.

use http::header::{self, HeaderName};
use http::{HeaderMap, HeaderValue};
use longhaul_core::endpoint::Protocol;

use crate::ports::Secret;

/// What a client may say to a vendor; everything else (keys above all) stays here.
fn passes_out(name: &HeaderName) -> bool {
    let name = name.as_str();
    matches!(name, "user-agent" | "openai-beta") || name.starts_with("anthropic-")
}

/// What a vendor may not say to a client: what is between it and us alone, and what we say anew.
fn stays_here(name: &HeaderName) -> bool {
    const OURS: [HeaderName; 11] = [
        header::CONNECTION,
        header::CONTENT_LENGTH,
        header::TRANSFER_ENCODING,
        header::TRAILER,
        header::UPGRADE,
        header::TE,
        header::PROXY_AUTHENTICATE,
        header::PROXY_AUTHORIZATION,
        header::SET_COOKIE,
        header::ALT_SVC,
        header::STRICT_TRANSPORT_SECURITY,
    ];
    OURS.contains(name) || name.as_str() == "keep-alive"
}

/// The headers of a request on its way to a vendor.
pub(crate) fn outgoing(from: &HeaderMap, protocol: Protocol, secret: Option<&Secret>) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in from {
        if passes_out(name) {
            headers.append(name, value.clone());
        }
    }
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    // Usage is read out of the answer.
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if protocol == Protocol::Anthropic && !headers.contains_key("anthropic-version") {
        headers.insert("anthropic-version", HeaderValue::from_static("2023-06-01"));
    }
    let Some(secret) = secret else { return Ok(headers) };
    let (name, value) = match protocol {
        Protocol::OpenAi => (header::AUTHORIZATION, format!("Bearer {}", secret.reveal())),
        Protocol::Anthropic => (HeaderName::from_static("x-api-key"), secret.reveal().to_owned()),
        Protocol::Gemini => (HeaderName::from_static("x-goog-api-key"), secret.reveal().to_owned()),
    };
    let mut value =
        HeaderValue::from_str(&value).map_err(|_| "the key has bytes that no header can have".to_owned())?;
    value.set_sensitive(true);
    headers.insert(name, value);
    Ok(headers)
}

/// The headers of an answer on its way to a client.
pub(crate) fn incoming(from: &HeaderMap) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in from {
        if !stays_here(name) {
            headers.append(name, value.clone());
        }
    }
    headers
}

/// The vendor's id of a call, for a question to it.
pub(crate) fn request_id(headers: &HeaderMap) -> Option<String> {
    const LONGEST: usize = 200;
    ["request-id", "x-request-id", "x-goog-request-id"]
        .iter()
        .find_map(|name| headers.get(*name)?.to_str().ok())
        .map(|id| id.chars().take(LONGEST).collect())
}

/// The token that a client shows, wherever its SDK puts the key.
pub(crate) fn shown_token<'a>(headers: &'a HeaderMap, query: &'a str) -> Option<&'a str> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    text("authorization")
        .and_then(|value| value.strip_prefix("Bearer ").or_else(|| value.strip_prefix("bearer ")))
        .or_else(|| text("x-api-key"))
        .or_else(|| text("x-goog-api-key"))
        .or_else(|| crate::protocol::route::token(query))
        .map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(names: &[&'static str]) -> HeaderMap {
        names.iter().map(|name| (HeaderName::from_static(name), HeaderValue::from_static("v"))).collect()
    }

    #[test]
    fn no_key_of_a_client_goes_out_and_ours_does() {
        let from = headers(&[
            "authorization",
            "x-api-key",
            "x-goog-api-key",
            "cookie",
            "connection",
            "host",
            "proxy-authorization",
            "openai-organization",
            "anthropic-beta",
            "user-agent",
        ]);
        let secret = Secret::new("sesame".to_owned());
        for (protocol, name, value) in [
            (Protocol::OpenAi, "authorization", "Bearer sesame"),
            (Protocol::Anthropic, "x-api-key", "sesame"),
            (Protocol::Gemini, "x-goog-api-key", "sesame"),
        ] {
            let out = outgoing(&from, protocol, Some(&secret)).unwrap();
            assert_eq!(out.get(name).unwrap(), value);
            let mut names: Vec<_> = out.keys().map(HeaderName::as_str).collect();
            names.sort_unstable();
            let mut expected = vec!["accept-encoding", "anthropic-beta", "content-type", "user-agent", name];
            if protocol == Protocol::Anthropic {
                expected.push("anthropic-version");
            }
            expected.sort_unstable();
            assert_eq!(names, expected);
            assert!(!format!("{out:?}").contains("sesame"), "no debug output shows the key");
        }
        assert!(outgoing(&from, Protocol::OpenAi, None).unwrap().get("authorization").is_none());
        assert!(outgoing(&from, Protocol::OpenAi, Some(&Secret::new("a\nb".to_owned()))).is_err());
    }

    #[test]
    fn what_is_between_the_vendor_and_us_stays_here() {
        let from = headers(&["connection", "set-cookie", "content-length", "content-type", "request-id", "keep-alive"]);
        let passed = incoming(&from);
        let mut names: Vec<_> = passed.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["content-type", "request-id"]);
    }

    #[test]
    fn a_token_is_found_wherever_an_sdk_puts_it() {
        let with = |name: &'static str, value: &'static str| {
            let headers = HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static(value))]);
            shown_token(&headers, "").map(str::to_owned)
        };
        assert_eq!(with("authorization", "Bearer t").as_deref(), Some("t"));
        assert_eq!(with("x-api-key", "t").as_deref(), Some("t"));
        assert_eq!(with("x-goog-api-key", "t").as_deref(), Some("t"));
        assert_eq!(with("authorization", "Basic t"), None);
        assert_eq!(shown_token(&HeaderMap::new(), "alt=sse&key=t"), Some("t"));
    }
}
