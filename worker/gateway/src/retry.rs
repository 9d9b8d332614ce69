//! What a failed try means: whether it is made again, when, and what it says of the endpoint. Pure.

use std::time::Duration;

use http::HeaderMap;
use jiff::fmt::rfc2822;
use longhaul_core::time::Timestamp;
use serde_json::Value;

/// The longest wait that a vendor can ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// What an answer with a status means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// An answer.
    Success,
    /// The endpoint is well, and wants fewer calls.
    Busy,
    /// The endpoint fails in passing.
    Failing,
    /// The endpoint takes no call of ours until a person has done something: a key that is
    /// wrong, an account without credit.
    Barred,
    /// The request is wrong: no other answer will come.
    Refused,
}

/// What a status means, with the body that came with it.
pub(crate) fn meaning(status: u16, body: &[u8]) -> Meaning {
    match status {
        200..=299 => Meaning::Success,
        401 => Meaning::Barred,
        429 if no_credit(body) => Meaning::Barred,
        429 => Meaning::Busy,
        408 | 409 | 500..=599 => Meaning::Failing,
        400 | 402 | 403 if no_credit(body) => Meaning::Barred,
        _ => Meaning::Refused,
    }
}

/// Whether a vendor says that our account has no money there: waiting alone will not help.
fn no_credit(body: &[u8]) -> bool {
    let value = serde_json::from_slice::<Value>(body).unwrap_or_default();
    let error = &value["error"];
    let code = |name: &str| error[name].as_str().unwrap_or_default();
    matches!(code("code"), "insufficient_quota" | "billing_hard_limit_reached")
        || matches!(code("type"), "insufficient_quota" | "billing_error")
        || code("message").contains("credit balance is too low")
}

/// The wait before try `tries` + 1, in its jitter `chance` from 0 to 1.
pub(crate) fn backoff(first: Duration, most: Duration, tries: u32, chance: f64) -> Duration {
    let doubled = first.saturating_mul(1_u32.checked_shl(tries.saturating_sub(1).min(31)).unwrap_or(u32::MAX));
    // From half of it on: never at once, never all together.
    doubled.min(most).mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0)
}

/// How long the vendor asks to wait.
pub(crate) fn asked_wait(headers: &HeaderMap, body: &[u8], now: Timestamp) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let wait = text("retry-after-ms")
        .and_then(|millis| millis.parse().ok())
        .and_then(|millis: f64| Duration::try_from_secs_f64(millis / 1000.0).ok())
        .or_else(|| text("retry-after").and_then(|value| seconds(value).or_else(|| date(value, now))))
        .or_else(|| retry_info(body));
    wait.map(|wait| wait.min(LONGEST_WAIT))
}

/// For how long the vendor's headers say that nothing is left of a limit.
pub(crate) fn nothing_left(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = |name: String| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let mut longest = None;
    for what in ["requests", "tokens", "input-tokens", "output-tokens"] {
        for (left, reset) in [
            (format!("x-ratelimit-remaining-{what}"), format!("x-ratelimit-reset-{what}")),
            (format!("anthropic-ratelimit-{what}-remaining"), format!("anthropic-ratelimit-{what}-reset")),
        ] {
            if text(left).is_some_and(|left| left == "0") {
                let wait = text(reset).and_then(|reset| units(reset).or_else(|| instant(reset, now)));
                longest = longest.max(wait.map(|wait| wait.min(LONGEST_WAIT)));
            }
        }
    }
    longest
}

fn seconds(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.parse().ok()?).ok()
}

/// `Sun, 06 Nov 1994 08:49:37 GMT`
fn date(text: &str, now: Timestamp) -> Option<Duration> {
    until(rfc2822::parse(text).ok()?.timestamp(), now)
}

/// `2026-01-27T12:00:30Z`
fn instant(text: &str, now: Timestamp) -> Option<Duration> {
    until(text.parse().ok()?, now)
}

fn until(then: jiff::Timestamp, now: Timestamp) -> Option<Duration> {
    let then = u64::try_from(then.as_millisecond()).ok()?;
    Some(Timestamp(then).since(now).to_std())
}

/// `6m0s`, `1.5s`, `120ms`
fn units(text: &str) -> Option<Duration> {
    let mut sum = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|char: char| !char.is_ascii_digit() && char != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let (unit, after) = rest.split_at(rest.find(|char: char| char.is_ascii_digit()).unwrap_or(rest.len()));
        let unit = match unit {
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return None,
        };
        sum = sum.saturating_add(Duration::try_from_secs_f64(number * unit).ok()?);
        rest = after;
    }
    (!text.is_empty()).then_some(sum)
}

/// Gemini says it in the body: `{"error": {"details": [{"retryDelay": "34s"}]}}`.
fn retry_info(body: &[u8]) -> Option<Duration> {
    if !body.windows(12).any(|window| window == b"\"retryDelay\"") {
        return None;
    }
    let value = serde_json::from_slice::<Value>(body).ok()?;
    value["error"]["details"].as_array()?.iter().find_map(|detail| units(detail["retryDelay"].as_str()?))
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};
    use proptest::prelude::*;

    use super::*;

    /// 1994-11-06 08:49:00 UTC.
    const NOW: Timestamp = Timestamp(784_111_740_000);

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let pair =
            |(name, value): &(&str, &str)| (name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap());
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn waits_are_read_in_every_form() {
        for (pairs, body, expected) in [
            (vec![("retry-after", "7")], "", Some(7_000)),
            (vec![("retry-after", "0.25")], "", Some(250)),
            (vec![("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT")], "", Some(37_000)),
            (vec![("retry-after", "Sun, 06 Nov 1994 08:48:37 GMT")], "", Some(0)),
            (vec![("retry-after-ms", "120"), ("retry-after", "7")], "", Some(120)),
            (vec![("retry-after", "99999999")], "", Some(3_600_000)),
            (vec![("retry-after", "-3")], "", None),
            (vec![("retry-after", "soon")], "", None),
            (vec![], r#"{"error":{"details":[{"@type":"x"},{"retryDelay":"34s"}]}}"#, Some(34_000)),
            (vec![], "", None),
        ] {
            let wait = asked_wait(&headers(&pairs), body.as_bytes(), NOW);
            assert_eq!(wait, expected.map(Duration::from_millis), "{pairs:?} {body}");
        }
    }

    #[test]
    fn hints_hold_calls_back_only_when_nothing_is_left() {
        let left = |pairs: &[(&str, &str)]| nothing_left(&headers(pairs), NOW);
        assert_eq!(left(&[("x-ratelimit-remaining-requests", "3"), ("x-ratelimit-reset-requests", "9s")]), None);
        assert_eq!(
            left(&[("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", "1m0.5s")]),
            Some(Duration::from_millis(60_500))
        );
        assert_eq!(
            left(&[
                ("anthropic-ratelimit-requests-remaining", "0"),
                ("anthropic-ratelimit-requests-reset", "1994-11-06T08:49:30Z")
            ]),
            Some(Duration::from_secs(30))
        );
    }

    #[test]
    fn a_status_means_what_can_be_done_about_it() {
        for (status, body, expected) in [
            (200, "", Meaning::Success),
            (400, "", Meaning::Refused),
            (401, "", Meaning::Barred),
            (404, "", Meaning::Refused),
            (408, "", Meaning::Failing),
            (429, "", Meaning::Busy),
            (429, r#"{"error":{"code":"insufficient_quota"}}"#, Meaning::Barred),
            (400, r#"{"error":{"message":"Your credit balance is too low"}}"#, Meaning::Barred),
            (500, "", Meaning::Failing),
            (529, "", Meaning::Failing),
            (301, "", Meaning::Refused),
        ] {
            assert_eq!(meaning(status, body.as_bytes()), expected, "{status} {body}");
        }
    }

    proptest! {
        #[test]
        fn waits_grow_and_stay_within_their_bounds(tries in 1_u32..200, chance in 0.0_f64..1.0) {
            let (first, most) = (Duration::from_millis(500), Duration::from_secs(60));
            let wait = backoff(first, most, tries, chance);
            prop_assert!(wait >= first / 2 && wait <= most);
            prop_assert!(backoff(first, most, tries + 1, chance) >= wait);
        }

        #[test]
        fn any_header_is_read_without_a_panic(text in "[ -~]{0,30}") {
            let _ = (units(&text), seconds(&text), date(&text, NOW), instant(&text, NOW));
        }
    }
}
