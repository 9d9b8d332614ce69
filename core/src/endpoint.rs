//! Endpoints: where models are served, as a run froze it.
//!
//! No key is here: an endpoint names its secret, and whoever calls the model gets the secret's
//! value by another way, which is never stored.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::money::Money;
use crate::price::{ModelPrice, Service};
use crate::time::Millis;

/// The HTTP protocol that an endpoint speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// OpenAI: chat completions and responses; vLLM and other compatible servers too.
    OpenAi,
    /// Anthropic: messages.
    Anthropic,
    /// Google: Gemini's `generateContent`.
    Gemini,
}

impl Protocol {
    /// Every protocol.
    pub const ALL: [Self; 3] = [Self::OpenAi, Self::Anthropic, Self::Gemini];

    /// The name in settings, run files and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What an endpoint bears, over all workers together; no limit where absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RateLimits {
    /// Calls in flight.
    pub concurrent: Option<u32>,
    /// Calls a minute.
    pub requests_per_minute: Option<u32>,
    /// Tokens a minute, input and output together.
    pub tokens_per_minute: Option<u64>,
}

/// What some models of an endpoint bear together, beside what the endpoint itself bears.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelLimits {
    /// The model as requests name it; a trailing `*` stands for any rest, and all that fit share the
    /// limits.
    pub model: String,
    /// What they bear.
    #[serde(flatten)]
    pub limits: RateLimits,
}

/// An endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointPlan {
    /// Its name in the run.
    pub name: String,
    /// What it speaks.
    pub protocol: Protocol,
    /// The vendor whose prices hold; the protocol's name, or the name of a table's own.
    pub vendor: String,
    /// Where it is: one address, or several replicas that serve the same model. The part of an
    /// address before the version: `https://api.anthropic.com`. None if a file names them.
    pub urls: Vec<String>,
    /// The name of the secret with its key; none is sent if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// What it bears, all models together.
    #[serde(default)]
    pub limits: RateLimits,
    /// What its models bear; the first that fits counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub model_limits: Vec<ModelLimits>,
    /// When a call is given up.
    pub call_limit: Millis,
    /// How often a call that failed in passing is tried again.
    pub retries: u32,
    /// Whether the coordinator connects for workers, which have no way there of their own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub relay: bool,
    /// The file whose lines are its addresses, where they come and go while runs live: the absolute
    /// path, as the coordinator sees it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas_file: Option<String>,
}

impl EndpointPlan {
    /// The limits that a model has beside those of the endpoint, if it has any.
    #[must_use]
    pub fn limits_of(&self, model: &str) -> Option<&ModelLimits> {
        self.model_limits.iter().find(|limits| is_named(&limits.model, model))
    }
}

/// Whether a name in a table stands for a model: it is that one, or its beginning with a `*`.
#[must_use]
pub fn is_named(name: &str, model: &str) -> bool {
    name.strip_suffix('*').map_or(name == model, |start| model.starts_with(start))
}

/// Where a connection goes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Destination {
    /// The host, in lower case and without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Destination {
    /// Where an address of an endpoint is served; none if it is no such address.
    #[must_use]
    pub fn of(url: &str) -> Option<Self> {
        let (rest, usual) = match url.split_once("://")? {
            ("https", rest) => (rest, 443),
            ("http", rest) => (rest, 80),
            _ => return None,
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => rest.split_once(']')?,
            None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
        };
        let port = match port.strip_prefix(':') {
            Some(port) => port.parse().ok()?,
            None if port.is_empty() => usual,
            None => return None,
        };
        (!host.is_empty() && !host.contains('@')).then(|| Self { host: host.to_ascii_lowercase(), port })
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// What the gateway of a run's workers needs: a blob that run and episode plans name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GatewayPlan {
    /// The endpoints, by name.
    pub endpoints: Vec<EndpointPlan>,
    /// The rows of the price table that the run's models need; the first that fits counts.
    pub prices: Vec<ModelPrice>,
    /// The date of that table, for people.
    pub prices_of: String,
    /// Whether a call may be given less output than it asks for, so that it fits the budget.
    pub shorten: bool,
}

impl GatewayPlan {
    /// The endpoint of that name.
    #[must_use]
    pub fn endpoint(&self, name: &str) -> Option<&EndpointPlan> {
        self.endpoints.iter().find(|endpoint| endpoint.name == name)
    }

    /// The price of a model at a vendor.
    #[must_use]
    pub fn price(&self, vendor: &str, model: &str) -> Option<&ModelPrice> {
        self.prices.iter().find(|price| price.is_of(vendor, model))
    }

    /// The most that one call of a model at an endpoint can cost, if it has a price: with a full
    /// context, and as much output as is asked for.
    #[must_use]
    pub fn dearest(&self, endpoint: &str, model: &str, output: u32) -> Option<Money> {
        self.dearest_as(None, endpoint, model, output)
    }

    /// The same of a call that asks for a tier of service. One without a price is refused where that
    /// matters, or is cheaper than the usual one.
    #[must_use]
    pub fn dearest_as(&self, service: Option<Service>, endpoint: &str, model: &str, output: u32) -> Option<Money> {
        let endpoint = self.endpoint(endpoint)?;
        let price = self.price(&endpoint.vendor, model)?;
        let service = service.filter(|service| price.serves(*service));
        Some(price.bound_as(service, price.context, u64::from(output), endpoint.call_limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_says_where_connections_go() {
        for (url, expected) in [
            ("https://api.anthropic.com", Some(("api.anthropic.com", 443))),
            ("https://API.Example.com/", Some(("api.example.com", 443))),
            ("http://node7:8000/deep/path", Some(("node7", 8000))),
            ("http://node7", Some(("node7", 80))),
            ("https://[::1]:8443/v", Some(("::1", 8443))),
            ("https://[::1]", Some(("::1", 443))),
            ("https://host?query", Some(("host", 443))),
            ("ftp://host", None),
            ("host:80", None),
            ("https://", None),
            ("https://host:port", None),
            ("https://host:70000", None),
            ("https://[::1]x", None),
            ("https://user@host", None),
        ] {
            let found = Destination::of(url);
            let expected = expected.map(|(host, port)| Destination { host: host.to_owned(), port });
            assert_eq!(found, expected, "{url}");
        }
    }

    #[test]
    fn a_model_has_the_limits_of_the_first_name_that_fits() {
        let limits = |model: &str, concurrent| ModelLimits {
            model: model.to_owned(),
            limits: RateLimits { concurrent: Some(concurrent), ..RateLimits::default() },
        };
        let stored =
            r#"{"name":"a","protocol":"anthropic","vendor":"a","urls":["https://a"],"call_limit":1000,"retries":2}"#;
        let mut plan: EndpointPlan = serde_json::from_str(stored).expect("an endpoint");
        plan.model_limits = vec![limits("sonnet-4-6", 1), limits("sonnet-4*", 2)];
        let found = |model| plan.limits_of(model).and_then(|found| found.limits.concurrent);
        assert_eq!((found("sonnet-4-6"), found("sonnet-4-6-1"), found("opus")), (Some(1), Some(2), None));
        let read: EndpointPlan =
            serde_json::from_str(&serde_json::to_string(&plan).expect("JSON")).expect("an endpoint");
        assert_eq!(read, plan);
    }

    #[test]
    fn what_was_stored_before_there_were_relays_reads_as_it_was_and_looks_the_same() {
        let stored = r#"{"name":"a","protocol":"anthropic","vendor":"a","urls":["https://a"],"limits":{"concurrent":null,"requests_per_minute":null,"tokens_per_minute":null},"call_limit":1000,"retries":2}"#;
        let plan: EndpointPlan = serde_json::from_str(stored).expect("an endpoint");
        assert!(!plan.relay && plan.model_limits.is_empty());
        assert_eq!(serde_json::to_string(&plan).expect("JSON"), stored);
    }
}
