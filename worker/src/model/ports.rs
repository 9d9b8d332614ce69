//! What the gateway is given of the worker: the bank is the session, the journal the spool, and
//! secrets are what the coordinator sent.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use longhaul_core::call::{CallRecord, PurseKind};
use longhaul_core::money::Money;
use longhaul_core::purse::PurseState;
use longhaul_gateway::ports::{Bank, Blob, Journal, JournalError, Later, Refused, Reservation, Secret, Secrets};
use longhaul_proto::convert::LeaseRef;

use crate::lease::Moment;
use crate::moment;
use crate::session::escrow::EscrowDesk;
use crate::spool::{OpenCall, Outbox, SpoolError};

/// Until when an attempt's lease holds, by the worker's own clock: asked before each call.
#[derive(Debug, Default)]
pub(crate) struct LeaseGate(AtomicU64);

impl LeaseGate {
    /// The lease holds until then; not at all, if there is no such moment.
    pub(crate) fn set(&self, until: Option<Moment>) {
        let nanos = until.map_or(0, |until| u64::try_from(until.as_nanos()).unwrap_or(u64::MAX));
        self.0.store(nanos, Ordering::SeqCst);
    }

    /// Whether it holds now.
    pub(crate) fn holds(&self) -> bool {
        moment::now().as_nanos() < u128::from(self.0.load(Ordering::SeqCst))
    }
}

/// An attempt's way to money.
#[derive(Debug)]
pub(crate) struct AttemptBank {
    pub(crate) desk: EscrowDesk,
    pub(crate) lease: LeaseRef,
}

impl Bank for AttemptBank {
    fn more(
        &self,
        purse: PurseKind,
        state: PurseState,
        wanted: Money,
        bound: Money,
    ) -> Later<'_, Result<Money, Refused>> {
        Box::pin(self.desk.more(self.lease, purse, state, wanted, bound))
    }

    fn report(&self, purse: PurseKind, state: PurseState) {
        self.desk.report(self.lease, purse, state);
    }

    fn recalled(&self, purse: PurseKind) -> Later<'_, ()> {
        Box::pin(self.desk.recalled(self.lease, purse))
    }
}

/// Where an attempt's calls are written down.
#[derive(Debug)]
pub(crate) struct AttemptJournal {
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) gate: Arc<LeaseGate>,
}

impl Journal for AttemptJournal {
    fn reserved(&self, reservation: &Reservation, blobs: Vec<Blob>) -> Result<(), JournalError> {
        if !self.gate.holds() {
            let message = "the lease is over: no call is made until it is renewed".to_owned();
            return Err(JournalError { message, disk: false });
        }
        self.outbox.reserve(OpenCall::of(reservation), &blobs).map_err(|error| refused(&error))
    }

    fn settled(&self, record: &CallRecord, blobs: Vec<Blob>) -> Result<(), JournalError> {
        self.outbox.settle_call(record, &blobs).map_err(|error| refused(&error))
    }
}

fn refused(error: &SpoolError) -> JournalError {
    JournalError { message: crate::chain(error), disk: error.is_disk() }
}

/// The keys that the coordinator has sent.
#[derive(Debug, Default)]
pub(crate) struct KnownSecrets(RwLock<BTreeMap<String, Secret>>);

impl KnownSecrets {
    pub(crate) fn replace(&self, secrets: impl Iterator<Item = (String, String)>) {
        let known = secrets.map(|(name, value)| (name, Secret::new(value))).collect();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = known;
    }
}

impl Secrets for KnownSecrets {
    fn get(&self, name: &str) -> Option<Secret> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_gate_is_shut_until_a_lease_is_known_and_after_it_ran_out() {
        let gate = LeaseGate::default();
        assert!(!gate.holds());
        gate.set(Some(moment::now() + Duration::from_secs(600)));
        assert!(gate.holds());
        gate.set(Some(moment::now()));
        assert!(!gate.holds());
        gate.set(None);
        assert!(!gate.holds());
    }

    #[test]
    fn secrets_are_those_that_were_sent_last_and_never_shown() {
        let secrets = KnownSecrets::default();
        secrets.replace([("one".to_owned(), "sk-1".to_owned())].into_iter());
        assert_eq!(secrets.get("one").unwrap().reveal(), "sk-1");
        assert!(!format!("{secrets:?}").contains("sk-1"));
        secrets.replace([("two".to_owned(), "sk-2".to_owned())].into_iter());
        assert_eq!(secrets.get("one"), None);
    }
}
