//! An account: one scope's cap, and what its purses add up to.

use longhaul_core::money::Money;
use serde::{Deserialize, Serialize};

/// Of a cap, how much vendors may bill beyond what was reserved before the scope is stopped:
/// one part in so many. Below that it is an annoyance, which the rest of the cap absorbs; above
/// it the bounds of calls are not to be trusted, and no cap can be held with them.
const OVERSHOOT_BORNE: u64 = 100;

/// The percentages of a cap at which people are warned.
const WARNINGS: [u8; 2] = [80, 95];

/// One scope: its cap, and what its purses add up to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Account {
    /// The cap; none if absent.
    pub cap: Option<Money>,
    /// What counts as spent: calls, and all that lost attempts were granted.
    pub settled: Money,
    /// What live attempts hold: granted, and neither spent nor given back.
    pub escrow: Money,
    /// Of what is settled, what no vendor has confirmed.
    pub unconfirmed: Money,
    /// The most that was ever in escrow.
    pub largest_exposure: Money,
    /// By how much vendors billed more than was reserved.
    pub overshoot: Money,
    /// By how much that was more than the purses had been granted.
    pub overspent: Money,
    /// How much of that a person has seen, who raised the cap all the same.
    pub accepted: Money,
    /// The highest percentage of the cap that was warned of.
    pub warned: u8,
    /// How many purses of it are live.
    pub live: u32,
    /// The smallest bound of a call that was ever asked for.
    pub smallest: Option<Money>,
}

/// By how much more than before a purse's calls cost more than they could.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Beyond {
    /// Than their bounds.
    pub(crate) bounds: Money,
    /// Than all that it was granted.
    pub(crate) grants: Money,
}

/// What one purse adds to its accounts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) settled: Money,
    pub(crate) escrow: Money,
    pub(crate) unconfirmed: Money,
    pub(crate) live: bool,
}

impl Charge {
    /// Counts another purse.
    pub(crate) fn add(&mut self, other: Self) {
        self.settled = self.settled.saturating_add(other.settled);
        self.escrow = self.escrow.saturating_add(other.escrow);
        self.unconfirmed = self.unconfirmed.saturating_add(other.unconfirmed);
    }
}

impl Account {
    /// An account with a cap, or without one.
    #[must_use]
    pub fn new(cap: Option<Money>) -> Self {
        Self { cap, ..Self::default() }
    }

    /// What is spent or may be by what was granted: never more than the cap, but for what purses cost
    /// beyond their grants.
    #[must_use]
    pub const fn committed(&self) -> Money {
        self.settled.saturating_add(self.escrow)
    }

    /// What may still be granted; nothing if there is no cap.
    #[must_use]
    pub fn available(&self) -> Option<Money> {
        Some(self.cap?.saturating_sub(self.committed()))
    }

    /// Whether more is committed than may be: vendors exceeded their bounds.
    #[must_use]
    pub fn is_in_debt(&self) -> bool {
        self.cap.is_some_and(|cap| self.committed() > cap)
    }

    /// By how much vendors exceeded bounds since a person saw it last, if that is so much that
    /// nothing more is granted.
    #[must_use]
    pub fn stopped_by(&self) -> Option<Money> {
        let fresh = self.overshoot.saturating_sub(self.accepted);
        let borne = Money::from_nanos(self.cap?.nanos() / OVERSHOOT_BORNE);
        (fresh > borne).then_some(fresh)
    }

    /// Whether a call of that bound can never be made here: what is settled stays settled.
    #[must_use]
    pub fn is_too_poor_for(&self, bound: Money) -> bool {
        self.cap.is_some_and(|cap| self.settled.saturating_add(bound) > cap)
    }

    /// The highest percentage of the cap that was reached and not warned of yet.
    pub(crate) fn warning(&self) -> Option<u8> {
        let cap = self.cap?;
        let reached = |percent: &u8| {
            *percent > self.warned && !cap.is_zero() && cap.scaled_up(u64::from(*percent), 100) <= Some(self.settled)
        };
        WARNINGS.into_iter().rev().find(reached)
    }

    /// Takes one purse's part out and puts another in.
    pub(crate) fn replace(&mut self, before: Charge, after: Charge, beyond: Beyond) {
        let exchange = |sum: Money, out: Money, put: Money| sum.saturating_sub(out).saturating_add(put);
        self.settled = exchange(self.settled, before.settled, after.settled);
        self.escrow = exchange(self.escrow, before.escrow, after.escrow);
        self.unconfirmed = exchange(self.unconfirmed, before.unconfirmed, after.unconfirmed);
        self.live = self.live.saturating_sub(u32::from(before.live)).saturating_add(u32::from(after.live));
        self.overshoot = self.overshoot.saturating_add(beyond.bounds);
        self.overspent = self.overspent.saturating_add(beyond.grants);
        self.largest_exposure = self.largest_exposure.max(self.escrow);
    }

    /// A person gives more: what was billed too much until now is known to them.
    pub(crate) fn raise(&mut self, cap: Money) {
        self.cap = Some(cap);
        self.accepted = self.overshoot;
        self.warned = 0;
        // What was passed of the new cap too was warned of already.
        self.warned = self.warning().unwrap_or(0);
    }
}
