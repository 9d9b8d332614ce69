//! Model calls: the record of each one, reserved before it is made and settled after it.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::money::Money;
use crate::price::Usage;
use crate::time::{Millis, Timestamp};

/// What a call is for, and so whose money pays it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// The agent's own; the episode pays.
    #[default]
    Agent,
    /// An audit of the agent's word that it is done; the episode pays.
    Audit,
    /// The judge's; the run's budget for judging pays.
    Judge,
}

/// The purse that pays: each attempt has one of each kind, and escrow is granted to a purse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PurseKind {
    /// What the episode may spend.
    #[default]
    Episode,
    /// What judging may spend.
    Judge,
}

impl Purpose {
    /// Which purse pays for it.
    #[must_use]
    pub const fn purse(self) -> PurseKind {
        match self {
            Self::Agent | Self::Audit => PurseKind::Episode,
            Self::Judge => PurseKind::Judge,
        }
    }
}

/// How sure the amount of a settlement is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Certainty {
    /// By the usage that the vendor reported.
    Reported,
    /// Whole: no usage came (a time limit, a stream that broke, a client or a worker that
    /// died), and the vendor may have billed it.
    Unconfirmed,
    /// Nothing: the vendor refused the call, and bills no refusals.
    Released,
}

/// One model call; a try that is made again is a call of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallRecord {
    /// The number of the call in its attempt, from 0, in the order of reservation.
    pub number: u32,
    /// The step that it is part of: the number that the next step to be recorded will have.
    pub step: u32,
    /// When it was reserved.
    pub at: Timestamp,
    /// How long it took.
    pub took: Millis,
    /// What it is for.
    #[serde(default)]
    pub purpose: Purpose,
    /// The endpoint, as the run names it.
    pub endpoint: String,
    /// The model as it was asked for.
    pub model: String,
    /// The model as the vendor says that it answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_reported: Option<String>,
    /// The vendor's fingerprint of what answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// The vendor's id of the call, for a question to the vendor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The call that this one tries again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<u32>,
    /// The status of the HTTP answer; none if none came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// What went wrong, if anything did; hostile until escaped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// What was reserved: the most that the call could cost.
    pub reserved: Money,
    /// What it cost; above `reserved` only if the vendor exceeded the bound.
    pub settled: Money,
    /// How sure that is.
    pub certainty: Certainty,
    /// What the vendor says that it used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// The output limit that the request was cut to so that it fits the budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shortened_to: Option<u64>,
    /// The request: the blob of a skeleton whose long parts are blobs of their own.
    pub request: Digest,
    /// The response, as far as it came: the blob of a skeleton likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<Digest>,
    /// The blobs that the two skeletons name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Digest>,
    /// The tier of service that the vendor says served it, if that is not the usual one; hostile until
    /// escaped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
}

impl CallRecord {
    /// Every blob that has to be stored before the record.
    pub fn blobs(&self) -> impl Iterator<Item = Digest> {
        std::iter::once(self.request).chain(self.response).chain(self.parts.iter().copied())
    }

    /// By how much the vendor exceeded the bound.
    #[must_use]
    pub const fn overshoot(&self) -> Money {
        self.settled.saturating_sub(self.reserved)
    }
}

/// The sums over calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallTotals {
    /// How many.
    pub calls: u32,
    /// What they cost.
    pub settled: Money,
    /// Of that, what no vendor has confirmed.
    pub unconfirmed: Money,
    /// By how much vendors exceeded the bounds.
    pub overshoot: Money,
    /// What they used.
    pub usage: Usage,
}

impl CallTotals {
    /// Counts a call.
    pub fn add(&mut self, call: &CallRecord) {
        self.calls = self.calls.saturating_add(1);
        self.settled = self.settled.saturating_add(call.settled);
        if call.certainty == Certainty::Unconfirmed {
            self.unconfirmed = self.unconfirmed.saturating_add(call.settled);
        }
        self.overshoot = self.overshoot.saturating_add(call.overshoot());
        if let Some(usage) = &call.usage {
            self.usage = self.usage.plus(usage);
        }
    }
}
