//! Endpoints: where models are served, as a run froze it.
//!
//! No key is here: an endpoint names its secret, and whoever calls the model gets the secret's
//! value by another way, which is never stored.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::price::ModelPrice;
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
    /// address before the version: `https://api.anthropic.com`.
    pub urls: Vec<String>,
    /// The name of the secret with its key; none is sent if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// What it bears.
    #[serde(default)]
    pub limits: RateLimits,
    /// When a call is given up.
    pub call_limit: Millis,
    /// How often a call that failed in passing is tried again.
    pub retries: u32,
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
}
