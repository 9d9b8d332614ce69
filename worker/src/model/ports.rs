//! What the gateway is given of the worker: the bank is the session, the journal the spool, and
//! secrets are what the coordinator sent.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use longhaul_core::call::{CallRecord, PurseKind};
use longhaul_core::money::Money;
use longhaul_core::purse::PurseState;
use longhaul_gateway::ports::{
    Bank, Blob, Journal, JournalError, Later, Refused, Reservation, ReserveError, Secret, Secrets,
};
use longhaul_proto::convert::LeaseRef;
use tokio::sync::watch;

use crate::lease::Moment;
use crate::moment;
use crate::session::escrow::EscrowDesk;
use crate::spool::{OpenCall, Outbox, Room, SpoolError};

/// Until when an attempt's lease holds, by the worker's own clock: asked before each call.
#[derive(Debug, Default)]
pub(crate) struct LeaseGate(watch::Sender<Moment>);

impl LeaseGate {
    /// The lease holds until then; not at all, if there is no such moment.
    pub(crate) fn set(&self, until: Option<Moment>) {
        let until = until.unwrap_or_default();
        self.0.send_if_modified(|known| std::mem::replace(known, until) != until);
    }

    /// Whether it holds now.
    pub(crate) fn holds(&self) -> bool {
        moment::now() < *self.0.borrow()
    }

    /// Resolves when it holds, however long that takes.
    pub(crate) async fn held(&self) {
        // The sender is ours, so that it does not go away.
        let _ = self.0.subscribe().wait_for(|until| moment::now() < *until).await;
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
    pub(crate) room: Room,
}

impl Journal for AttemptJournal {
    /// An attempt that is parked spends nothing, and loses nothing by it; nor does one that could
    /// not write down what it spends.
    fn ready(&self) -> Later<'_, ()> {
        Box::pin(async {
            self.room.freed().await;
            self.gate.held().await;
        })
    }

    fn reserved(&self, reservation: &Reservation, blobs: Vec<Blob>) -> Result<(), ReserveError> {
        if !self.gate.holds() {
            return Err(ReserveError::NotNow);
        }
        Ok(self.outbox.reserve(OpenCall::of(reservation), &blobs).map_err(|error| refused(&error))?)
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

    #[tokio::test]
    async fn a_gate_is_shut_until_a_lease_is_known_and_after_it_ran_out() {
        let gate = Arc::new(LeaseGate::default());
        assert!(!gate.holds());
        let waits = tokio::spawn({
            let gate = Arc::clone(&gate);
            async move { gate.held().await }
        });
        gate.set(Some(moment::now() + Duration::from_secs(600)));
        assert!(gate.holds());
        waits.await.unwrap();
        gate.held().await;
        gate.set(Some(moment::now()));
        assert!(!gate.holds());
        gate.set(None);
        assert!(!gate.holds());
    }

    #[tokio::test]
    async fn a_call_waits_until_there_is_room_to_write_it_down() {
        let folder = tempfile::tempdir().unwrap();
        let limits = crate::config::NodeLimits { disk_floor_mib: 0, ..crate::config::NodeLimits::default() };
        let node = crate::guard::Node::look(&limits, None, folder.path()).unwrap();
        let meter = crate::spool::Meter::default();
        let spool =
            crate::spool::AttemptSpool::create(folder.path(), crate::spool::tests::lease(), meter.clone()).unwrap();
        let outbox = Arc::new(Outbox::new(spool, Vec::new()));
        let gate = Arc::new(LeaseGate::default());
        gate.set(Some(moment::now() + Duration::from_secs(600)));
        let (_link, link) = watch::channel(None);
        let room = Room::new(meter, 1, node, link);
        let journal = AttemptJournal { outbox: Arc::clone(&outbox), gate, room };
        journal.ready().await;
        outbox.log("some", b"text").unwrap();
        let ready = journal.ready();
        tokio::pin!(ready);
        let early = tokio::time::timeout(Duration::from_millis(50), ready.as_mut()).await;
        assert!(early.is_err(), "what waits takes all the room");
        outbox.end_accepted();
        ready.await;
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
