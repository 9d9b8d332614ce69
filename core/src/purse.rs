//! A purse: what one attempt was granted, what of it is reserved for calls in flight, and what
//! they have cost. Escrow at the coordinator is the durable side of it.
//!
//! All that leaves a purse are sums since the attempt began, which only grow
//! ([`PurseState`]): a message about them that comes twice, late or out of order changes
//! nothing. While a purse obeys its own rules, `settled + reserved <= granted - returned`, and
//! only a vendor that bills more than the bound of a call breaks it; that is its overshoot.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::call::Certainty;
use crate::money::Money;

/// A purse in sums that only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PurseState {
    /// What was granted.
    pub granted: Money,
    /// What calls have cost.
    pub settled: Money,
    /// What was given back of what was granted.
    pub returned: Money,
    /// Of what calls have cost, what no vendor has confirmed.
    pub unconfirmed: Money,
    /// Of what calls have cost, what went beyond their bounds.
    pub overshoot: Money,
}

impl PurseState {
    /// What the attempt may still spend, or has reserved.
    #[must_use]
    pub const fn held(&self) -> Money {
        self.granted.saturating_sub(self.returned).saturating_sub(self.settled)
    }

    /// What it has cost beyond what it was granted: vendors exceeded their bounds, and nothing else in the
    /// purse was free to pay for it.
    #[must_use]
    pub const fn overspent(&self) -> Money {
        self.settled.saturating_sub(self.granted.saturating_sub(self.returned))
    }

    /// The later of two reports, sum by sum.
    #[must_use]
    pub fn max(&self, other: &Self) -> Self {
        Self {
            granted: self.granted.max(other.granted),
            settled: self.settled.max(other.settled),
            returned: self.returned.max(other.returned),
            unconfirmed: self.unconfirmed.max(other.unconfirmed),
            overshoot: self.overshoot.max(other.overshoot),
        }
    }
}

/// A call that does not fit into what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the purse has {free} free, and the call may cost {bound}")]
pub struct Short {
    /// What is free.
    pub free: Money,
    /// The most that the call can cost.
    pub bound: Money,
    /// What the sum of grants has to reach for the call.
    pub wanted: Money,
}

/// A purse in its worker's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Purse {
    state: PurseState,
    reserved: BTreeMap<u32, Money>,
}

impl Purse {
    /// A purse as it was left: with what is reserved for calls whose fate is not known.
    #[must_use]
    pub const fn restore(state: PurseState, reserved: BTreeMap<u32, Money>) -> Self {
        Self { state, reserved }
    }

    /// Its sums.
    #[must_use]
    pub const fn state(&self) -> PurseState {
        self.state
    }

    /// What is reserved for calls in flight.
    #[must_use]
    pub fn reserved(&self) -> Money {
        self.reserved.values().copied().sum()
    }

    /// What is neither spent nor reserved nor given back.
    #[must_use]
    pub fn free(&self) -> Money {
        self.state.held().saturating_sub(self.reserved())
    }

    /// The coordinator says what the sum of grants is now.
    pub fn grant(&mut self, granted: Money) {
        self.state.granted = self.state.granted.max(granted);
    }

    /// Reserves the bound of call `number`.
    ///
    /// # Errors
    ///
    /// It does not fit; nothing is reserved.
    pub fn reserve(&mut self, number: u32, bound: Money) -> Result<(), Short> {
        let free = self.free();
        if bound > free {
            let taken = self.state.returned.saturating_add(self.state.settled).saturating_add(self.reserved());
            return Err(Short { free, bound, wanted: taken.saturating_add(bound) });
        }
        self.reserved.insert(number, bound);
        Ok(())
    }

    /// Settles call `number`: what it cost, and how sure that is. What was reserved beyond it is
    /// free again. A call that is not reserved (any more) changes nothing.
    pub fn settle(&mut self, number: u32, cost: Money, certainty: Certainty) {
        let Some(bound) = self.reserved.remove(&number) else { return };
        self.state.overshoot = self.state.overshoot.saturating_add(cost.saturating_sub(bound));
        self.state.settled = self.state.settled.saturating_add(cost);
        if certainty == Certainty::Unconfirmed {
            self.state.unconfirmed = self.state.unconfirmed.saturating_add(cost);
        }
    }

    /// Settles every call whose fate is not known whole, as unconfirmed: its worker has died, or
    /// the attempt is over.
    pub fn settle_all(&mut self) {
        while let Some((number, bound)) = self.reserved.first_key_value().map(|(number, bound)| (*number, *bound)) {
            self.settle(number, bound, Certainty::Unconfirmed);
        }
    }

    /// Gives back what is free beyond `keep`; how much that was.
    pub fn give_back(&mut self, keep: Money) -> Money {
        let back = self.free().saturating_sub(keep);
        self.state.returned = self.state.returned.saturating_add(back);
        back
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn nanos(amount: u64) -> Money {
        Money::from_nanos(amount)
    }

    #[test]
    fn a_call_that_does_not_fit_says_what_it_takes() {
        let mut purse = Purse::default();
        assert_eq!(purse.reserve(0, nanos(10)), Err(Short { free: nanos(0), bound: nanos(10), wanted: nanos(10) }));
        purse.grant(nanos(15));
        purse.reserve(0, nanos(10)).unwrap();
        let short = purse.reserve(1, nanos(10)).unwrap_err();
        assert_eq!(short, Short { free: nanos(5), bound: nanos(10), wanted: nanos(20) });
        purse.settle(0, nanos(4), Certainty::Reported);
        purse.reserve(1, nanos(10)).unwrap();
    }

    #[test]
    fn what_is_free_is_given_back_and_what_is_reserved_is_not() {
        let mut purse = Purse::default();
        purse.grant(nanos(100));
        purse.reserve(0, nanos(30)).unwrap();
        assert_eq!(purse.give_back(nanos(20)), nanos(50));
        assert_eq!(purse.free(), nanos(20));
        purse.settle_all();
        let state = purse.state();
        assert_eq!((state.settled, state.unconfirmed, state.returned), (nanos(30), nanos(30), nanos(50)));
        assert_eq!(purse.give_back(Money::ZERO), nanos(20));
        assert_eq!(purse.state().held(), Money::ZERO);
    }

    #[test]
    fn a_bill_beyond_the_bound_shows_whether_the_purse_can_pay_for_it_or_not() {
        let mut purse = Purse::default();
        purse.grant(nanos(12));
        purse.reserve(0, nanos(10)).unwrap();
        purse.settle(0, nanos(13), Certainty::Reported);
        assert_eq!(
            (purse.state().overshoot, purse.state().overspent(), purse.free()),
            (nanos(3), nanos(1), Money::ZERO)
        );
        purse.settle(0, nanos(13), Certainty::Reported);
        assert_eq!(purse.state().settled, nanos(13), "a settlement that comes twice counts once");
    }

    #[derive(Clone, Copy, Debug)]
    enum Move {
        Grant(u64),
        Reserve(u32, u64),
        Settle(u32, u64),
        Release(u32),
        GiveBack(u64),
        SettleAll,
    }

    fn moves() -> impl Strategy<Value = Vec<Move>> {
        let one = prop_oneof![
            (0_u64..1000).prop_map(Move::Grant),
            (0_u32..8, 0_u64..200).prop_map(|(number, bound)| Move::Reserve(number, bound)),
            (0_u32..8, 0_u64..200).prop_map(|(number, share)| Move::Settle(number, share)),
            (0_u32..8).prop_map(Move::Release),
            (0_u64..300).prop_map(Move::GiveBack),
            Just(Move::SettleAll),
        ];
        proptest::collection::vec(one, 0..60)
    }

    proptest! {
        /// Whatever happens in whatever order: settled + reserved + free = granted - returned.
        #[test]
        fn nothing_is_lost_and_nothing_is_made(moves in moves()) {
            let mut purse = Purse::default();
            let mut last = purse.state();
            for step in moves {
                match step {
                    Move::Grant(total) => purse.grant(nanos(total)),
                    Move::Reserve(number, bound) => {
                        if !purse.reserved.contains_key(&number) {
                            let fits = nanos(bound) <= purse.free();
                            prop_assert_eq!(purse.reserve(number, nanos(bound)).is_ok(), fits);
                        }
                    }
                    Move::Settle(number, share) => {
                        let bound = purse.reserved.get(&number).copied().unwrap_or_default();
                        purse.settle(number, nanos(bound.nanos() * share / 200), Certainty::Reported);
                    }
                    Move::Release(number) => purse.settle(number, Money::ZERO, Certainty::Released),
                    Move::GiveBack(keep) => {
                        purse.give_back(nanos(keep));
                    }
                    Move::SettleAll => purse.settle_all(),
                }
                let state = purse.state();
                let all = state.settled.saturating_add(purse.reserved()).saturating_add(purse.free());
                prop_assert_eq!(all.saturating_add(state.returned), state.granted);
                prop_assert_eq!((state.overspent(), state.overshoot), (Money::ZERO, Money::ZERO));
                prop_assert_eq!(state.max(&last), state, "every sum only grows");
                last = state;
            }
        }
    }
}
