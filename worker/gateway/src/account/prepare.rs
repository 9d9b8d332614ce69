//! A request as it will be sent, with its bound.

use bytes::Bytes;
use longhaul_core::money::Money;
use longhaul_core::price::ModelPrice;
use serde_json::Value;

use super::Inner;
use super::drive::Request;
use crate::call::CallError;
use crate::json;
use crate::protocol::{Asked, Terms, read};
use crate::skeleton::{Split, split};

/// A request that is bounded.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) price: Option<ModelPrice>,
    pub(crate) asked: Asked,
    /// The body as it is sent.
    pub(crate) body: Bytes,
    /// The body as it is stored.
    pub(crate) split: Split,
    /// What it was cut to.
    pub(crate) shortened_to: Option<u64>,
}

impl Prepared {
    /// Reads a request, whose body as it was read is `value`, bounds it, and sets what has to be set.
    pub(super) fn new(inner: &Inner, request: &Request, value: &Value) -> Result<Self, CallError> {
        let price = inner.plan.price(&request.plan.vendor, &request.model);
        let terms = Terms { price, capped: inner.capped, vendor: &request.plan.vendor };
        let asked = read(request.route.surface, value, request.stream, terms)
            .map_err(|reason| CallError::Unbounded { reason })?;
        let mut body = request.body.clone();
        for (path, value) in &asked.edits {
            body = set(&body, path, value)?;
        }
        let split = split(&body);
        Ok(Self { price: price.cloned(), asked, body, split, shortened_to: None })
    }

    /// The most that one try of it costs.
    pub(super) fn bound(&self, request: &Request) -> Money {
        let output = self.shortened_to.unwrap_or(self.asked.output).saturating_mul(self.asked.choices);
        self.price.as_ref().map_or(Money::ZERO, |price| {
            price.bound_as(self.asked.service, self.asked.input, output, request.plan.call_limit)
        })
    }

    /// Half of the output that it asks for now; none if that is too little to be of use.
    pub(super) fn half(&self) -> Option<u64> {
        let half = self.shortened_to.unwrap_or(self.asked.output) / 2;
        (half >= self.asked.least).then_some(half)
    }

    /// Asks for so much output from now on.
    pub(super) fn shorten(&mut self, output: u64) -> Result<(), CallError> {
        self.body = set(&self.body, self.asked.limit, &output.to_string())?;
        self.split = split(&self.body);
        self.shortened_to = Some(output);
        Ok(())
    }

    /// How many tokens it will be, for rate limits; corrected when it is known.
    pub(super) fn guess(&self) -> u64 {
        // Four bytes of text are a token, as a rule; most answers are far below their limit.
        (self.asked.input / 4).saturating_add(self.asked.output.min(1024))
    }
}

fn set(body: &Bytes, path: &[&str], value: &str) -> Result<Bytes, CallError> {
    let changed = json::set(body, path, value).map(Bytes::from);
    changed.ok_or_else(|| CallError::Unbounded { reason: format!("`{}` cannot be set in the request", path.join(".")) })
}
