//! One call as our own loops make it, and what comes of it.

use longhaul_core::call::Purpose;
use serde_json::Value;

use crate::ports::JournalError;
use crate::protocol::Surface;

/// A call to make: one answer, no stream.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelCall {
    /// The endpoint, by its name in the run.
    pub endpoint: String,
    /// Which request it is.
    pub surface: Surface,
    /// What it is for.
    pub purpose: Purpose,
    /// The model. It is written into the body where the protocol has it there.
    pub model: String,
    /// The body as the vendor defines it, without `stream`.
    pub body: Value,
    /// Further headers that the vendor defines (`anthropic-beta`); names in lower case.
    pub headers: Vec<(String, String)>,
}

/// A model's answer.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelAnswer {
    /// The number of the call in its attempt.
    pub number: u32,
    /// The body as the vendor defines it.
    pub body: Value,
    /// The output limit that the request was cut to so that it fits the budget.
    pub shortened_to: Option<u64>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The next call does not fit into a budget of dollars: the episode ends `budget`.
    #[error("the budget is spent: {scope}")]
    Budget {
        /// The scope, with its figures.
        scope: String,
    },
    /// The next call does not fit into what the round of the task may spend: the round ends.
    #[error("the budget is spent: {scope}")]
    Round {
        /// What that is, with its figures.
        scope: String,
    },
    /// The tokens of the episode are used up: it ends `tokens`.
    #[error("the token budget is spent: {used} of {most} tokens are used")]
    Tokens {
        /// What was used.
        used: u64,
        /// What may be used.
        most: u64,
    },
    /// The endpoint did not answer, after all retries.
    #[error("endpoint {endpoint}: {message}")]
    Endpoint {
        /// The endpoint.
        endpoint: String,
        /// What went wrong; hostile until escaped.
        message: String,
        /// Whether it was down for as long as calls wait.
        down: bool,
    },
    /// The vendor refused the request itself.
    #[error("the vendor refused the call with status {status}: {body}")]
    Rejected {
        /// The HTTP status.
        status: u16,
        /// The body, as far as it is of use; hostile until escaped.
        body: String,
    },
    /// The request cannot be bounded, or is none.
    #[error("{reason}")]
    Unbounded {
        /// What of it cannot be bounded.
        reason: String,
    },
    /// The call could not be written down.
    #[error("the call could not be written down: {0}")]
    Journal(#[from] JournalError),
    /// An earlier attempt is followed, and it had made no such call.
    #[error("the record of step {step} holds no such call")]
    NotRecorded {
        /// The step.
        step: u32,
    },
    /// The attempt is over.
    #[error("the attempt is over: no further call is made")]
    Closed,
}
