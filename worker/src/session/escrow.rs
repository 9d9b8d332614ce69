//! Money between attempts and the coordinator: questions that are repeated until they are
//! answered, reports of which the last one counts, and recalls.
//!
//! Every message carries sums since the attempt began, so that one that comes twice, late or not
//! at all does no harm. A question is repeated in every session until it is answered. A report
//! is kept until it was heard ([`super::hearing`]). Reports of what calls have cost wait for the
//! next heartbeat; money that is given back is told at once, since others may wait for it.
//!
//! A question that was withdrawn may be answered all the same. What is granted so, and not asked
//! for again soon, is given back from here: the purse of the attempt never hears of it, and its
//! sums of grants and returns are both lower by that much than those on the wire.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use longhaul_core::call::PurseKind;
use longhaul_core::money::Money;
use longhaul_core::purse::PurseState;
use longhaul_gateway::ports::Refused;
use longhaul_proto::convert::{self, ConvertError, LeaseRef};
use longhaul_proto::v1;
use longhaul_proto::v1::from_worker::Message;
use tokio::sync::{Notify, watch};

use super::hearing::Hearing;
use super::{Link, up};
use crate::spool::Outbox;

/// For how long a grant that nobody waits for is kept for a question that may follow.
const UNASKED_WAIT: Duration = Duration::from_secs(2);

type Key = (LeaseRef, PurseKind);

/// One purse, as its attempt and the coordinator see it.
#[derive(Debug)]
struct Entry {
    /// The sum of grants that the coordinator has told of.
    granted: Money,
    /// Of that, what was given back from here.
    bounced: Money,
    /// Since when a grant is here that the purse does not know.
    unasked_since: Option<Instant>,
    /// The newest sums of the purse itself.
    state: PurseState,
    question: Option<Question>,
    report: Option<Report>,
    /// The spool that waits until the report is heard: no other follows.
    last_word: Option<Arc<Outbox>>,
    /// Counts answers.
    answers: watch::Sender<u64>,
    recalls: Arc<Notify>,
    /// Held by the call that asks.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// An open question.
#[derive(Debug)]
struct Question {
    wanted: Money,
    /// The most that the call can cost.
    bound: Money,
    /// The session that it was asked in.
    asked: Option<u64>,
    refused: Option<String>,
}

/// A report on its way.
#[derive(Debug, Default)]
struct Report {
    /// Whether it is told before the next heartbeat.
    urgent: bool,
    hearing: Hearing,
}

impl Default for Entry {
    fn default() -> Self {
        Self {
            granted: Money::ZERO,
            bounced: Money::ZERO,
            unasked_since: None,
            state: PurseState::default(),
            question: None,
            report: None,
            last_word: None,
            answers: watch::Sender::new(0),
            recalls: Arc::default(),
            turn: Arc::default(),
        }
    }
}

impl Entry {
    /// The sum of grants that the purse may know of.
    const fn for_purse(&self) -> Money {
        self.granted.saturating_sub(self.bounced)
    }

    /// The purse's sums as the coordinator counts.
    fn on_the_wire(&self, state: &PurseState) -> PurseState {
        PurseState {
            granted: state.granted.saturating_add(self.bounced),
            returned: state.returned.saturating_add(self.bounced),
            ..*state
        }
    }

    /// The sum of grants, if it is more than this purse knew; now it does.
    fn news(&mut self, known: &PurseState) -> Option<Money> {
        let granted = self.for_purse();
        (granted > known.granted).then(|| {
            self.unasked_since = None;
            self.state.granted = self.state.granted.max(granted);
            granted
        })
    }

    /// Gives back what was granted and nobody waits for.
    fn bounce(&mut self) {
        let unknown = self.for_purse().saturating_sub(self.state.granted);
        self.unasked_since = None;
        if !unknown.is_zero() && self.question.is_none() {
            self.bounced = self.bounced.saturating_add(unknown);
            self.report = Some(Report { urgent: true, ..Report::default() });
        }
    }

    fn tell(&mut self, state: PurseState) {
        let before = self.state;
        self.state = before.max(&state);
        let urgent = self.state.returned > before.returned
            || self.state.overshoot > before.overshoot
            || self.report.as_ref().is_some_and(|report| report.urgent && report.hearing.is_new());
        self.report = Some(Report { urgent, ..Report::default() });
    }
}

/// The purses of a worker's attempts.
#[derive(Clone, Debug)]
pub(crate) struct EscrowDesk {
    entries: Arc<Mutex<BTreeMap<Key, Entry>>>,
    link: Link,
}

impl EscrowDesk {
    pub(crate) fn new(link: Link) -> Self {
        Self { entries: Arc::default(), link }
    }

    /// Asks for money until the sum of grants is above what the purse knows, or none will come.
    pub(crate) async fn more(
        &self,
        lease: LeaseRef,
        purse: PurseKind,
        state: PurseState,
        wanted: Money,
        bound: Money,
    ) -> Result<Money, Refused> {
        let key = (lease, purse);
        let turn = Arc::clone(&self.entries().entry(key).or_default().turn);
        let _turn = turn.lock().await;
        let mut answers = {
            let mut entries = self.entries();
            let entry = entries.entry(key).or_default();
            entry.state = entry.state.max(&state);
            if let Some(granted) = entry.news(&state) {
                return Ok(granted);
            }
            entry.question = Some(Question { wanted, bound, asked: None, refused: None });
            entry.answers.subscribe()
        };
        let _withdraw = Withdraw { desk: self, key };
        self.hand_over();
        loop {
            {
                let mut entries = self.entries();
                let entry = entries.entry(key).or_default();
                if let Some(granted) = entry.news(&state) {
                    return Ok(granted);
                }
                if let Some(scope) = entry.question.as_mut().and_then(|question| question.refused.take()) {
                    return Err(Refused { scope });
                }
            }
            if answers.changed().await.is_err() {
                // Forgotten: the attempt is over.
                return Err(Refused { scope: "the attempt is over".to_owned() });
            }
        }
    }

    /// Takes note of what a purse has come to.
    pub(crate) fn report(&self, lease: LeaseRef, purse: PurseKind, state: PurseState) {
        let urgent = {
            let mut entries = self.entries();
            let entry = entries.entry((lease, purse)).or_default();
            entry.tell(state);
            entry.report.as_ref().is_some_and(|report| report.urgent)
        };
        if urgent {
            self.hand_over();
        }
    }

    /// Resolves when what is free is to be given back.
    pub(crate) async fn recalled(&self, lease: LeaseRef, purse: PurseKind) {
        let recalls = Arc::clone(&self.entries().entry((lease, purse)).or_default().recalls);
        recalls.notified().await;
    }

    /// The purses of an attempt as they end, in the coordinator's count.
    pub(crate) fn closed(&self, lease: LeaseRef, purses: &[(PurseKind, PurseState)]) -> Vec<(PurseKind, PurseState)> {
        let mut entries = self.entries();
        let closed = purses.iter().map(|(kind, state)| {
            let entry = entries.entry((lease, *kind)).or_default();
            entry.state = entry.state.max(state);
            entry.question = None;
            // What came for a question that nobody waits for any more goes back too.
            let unknown = entry.for_purse().saturating_sub(entry.state.granted);
            entry.bounced = entry.bounced.saturating_add(unknown);
            (*kind, entry.on_the_wire(&entry.state))
        });
        closed.collect()
    }

    /// The purses of an attempt whose account is gone, as its records say, in the purses' own count. One
    /// of which they say nothing was granted what its worker did not live to write down: nothing was
    /// spent of it, since a call is written down before it is made.
    pub(crate) fn recorded(&self, outbox: &Outbox) -> Vec<(PurseKind, PurseState)> {
        let entries = self.entries();
        let own = |(kind, state): (PurseKind, PurseState)| {
            let bounced = entries.get(&(outbox.lease(), kind)).map_or(Money::ZERO, |entry| entry.bounced);
            let granted = state.granted.saturating_sub(bounced);
            let returned = granted.saturating_sub(state.settled);
            (kind, PurseState { granted, returned, ..state })
        };
        let mut purses =
            BTreeMap::from([PurseKind::Episode, PurseKind::Judge].map(|kind| (kind, PurseState::default())));
        purses.extend(outbox.closed_purses().into_iter().map(own));
        purses.into_iter().collect()
    }

    /// The last word on the purses of an attempt that has no end of its own: its spool stays
    /// until it was heard.
    pub(crate) fn last_word(&self, outbox: &Arc<Outbox>, purses: &[(PurseKind, PurseState)]) {
        if purses.is_empty() {
            return;
        }
        self.closed(outbox.lease(), purses);
        outbox.owe_report();
        {
            let mut entries = self.entries();
            for (kind, _) in purses {
                let entry = entries.entry((outbox.lease(), *kind)).or_default();
                entry.report = Some(Report { urgent: true, ..Report::default() });
                entry.last_word = Some(Arc::clone(outbox));
            }
        }
        self.hand_over();
    }

    /// The last word on the purses of an attempt as its own end says, if that does not get through.
    pub(crate) fn ended(&self, outbox: &Arc<Outbox>) {
        let purses: Vec<(PurseKind, PurseState)> = {
            let entries = self.entries();
            let own = |(kind, state): (PurseKind, PurseState)| {
                let bounced = entries.get(&(outbox.lease(), kind)).map_or(Money::ZERO, |entry| entry.bounced);
                let (granted, returned) =
                    (state.granted.saturating_sub(bounced), state.returned.saturating_sub(bounced));
                (kind, PurseState { granted, returned, ..state })
            };
            outbox.ended_purses().into_iter().map(own).collect()
        };
        self.last_word(outbox, &purses);
    }

    /// Whether a last word waits to be heard.
    pub(crate) fn owes(&self) -> bool {
        self.entries().values().any(|entry| entry.last_word.is_some())
    }

    /// Nothing more is said of an attempt.
    pub(crate) fn forget(&self, lease: &LeaseRef) {
        self.entries().retain(|(known, _), _| known != lease);
    }

    /// Tells the session that there is now what it was not told: questions, and reports that
    /// cannot wait. What it has no room for waits for the next time.
    pub(crate) fn hand_over(&self) {
        self.hand(false);
    }

    fn hand(&self, all: bool) {
        let Some(uplink) = self.link.borrow().clone() else { return };
        let session = Some(uplink.generation);
        for ((lease, kind), entry) in self.entries().iter_mut() {
            let attempt = Some(v1::AttemptRef::from(*lease));
            let state = entry.on_the_wire(&entry.state);
            let bounced = entry.bounced;
            if let Some(question) = &mut entry.question
                && question.asked != session
            {
                let request = v1::EscrowRequest {
                    attempt: attempt.clone(),
                    state: Some(convert::purse(*kind, &state)),
                    wanted_nanos: question.wanted.saturating_add(bounced).nanos(),
                    // With what is spent: so it stays true whatever the coordinator knows of that.
                    bound_nanos: state.settled.saturating_add(question.bound).nanos(),
                };
                if uplink.bulk.try_send(up(Message::EscrowRequest(request))).is_ok() {
                    question.asked = session;
                }
            }
            if let Some(report) = &mut entry.report
                && report.hearing.is_due(&uplink)
                && (all || report.urgent)
            {
                let closed = entry.last_word.is_some();
                let message = v1::EscrowReport { attempt, state: Some(convert::purse(*kind, &state)), closed };
                if uplink.bulk.try_send(up(Message::EscrowReport(message))).is_ok() {
                    report.hearing.handed(&uplink);
                }
            }
        }
    }

    /// A heartbeat of this number is about to be sent: it follows whatever has left the queue.
    pub(crate) fn before_heartbeat(&self, sequence: u64) {
        let now = Instant::now();
        for entry in self.entries().values_mut() {
            if entry.unasked_since.is_some_and(|since| now.duration_since(since) >= UNASKED_WAIT) {
                entry.bounce();
            }
        }
        self.hand(true);
        let Some(uplink) = self.link.borrow().clone() else { return };
        if !uplink.is_drained() {
            return;
        }
        for report in self.entries().values_mut().filter_map(|entry| entry.report.as_mut()) {
            report.hearing.before_heartbeat(&uplink, sequence);
        }
    }

    /// The session's heartbeat of this number was answered.
    pub(crate) fn heartbeat_answered(&self, sequence: u64) {
        let Some(uplink) = self.link.borrow().clone() else { return };
        let mut heard = Vec::new();
        {
            let mut entries = self.entries();
            for ((lease, _), entry) in entries.iter_mut() {
                if entry.report.as_ref().is_some_and(|report| report.hearing.is_heard(&uplink, sequence)) {
                    entry.report = None;
                    if let Some(outbox) = entry.last_word.take() {
                        heard.push((*lease, outbox));
                    }
                }
            }
            // An attempt has two purses: its spool goes when both were heard.
            heard.retain(|(lease, _)| {
                !entries.iter().any(|((known, _), entry)| known == lease && entry.last_word.is_some())
            });
        }
        for (_, outbox) in heard {
            outbox.report_heard();
        }
    }

    /// The coordinator answered a question, or granted what was asked for long ago.
    pub(crate) fn answered(&self, wire: &v1::EscrowAnswer) -> Result<Option<Granted>, ConvertError> {
        use v1::escrow_answer::Rest;
        let lease = convert::lease(wire.attempt.as_ref())?;
        let kind = convert::purse_kind(wire.purse())?;
        let mut entries = self.entries();
        let Some(entry) = entries.get_mut(&(lease, kind)) else { return Ok(None) };
        let granted = Money::from_nanos(wire.granted_nanos);
        let grew = granted > entry.granted;
        if grew {
            entry.granted = granted;
            if entry.question.is_none() {
                entry.unasked_since = Some(Instant::now());
            }
        }
        if let (Some(Rest::Refused(scope)), Some(question)) = (&wire.rest, &mut entry.question) {
            question.refused = Some(scope.clone());
        }
        entry.answers.send_modify(|count| *count = count.wrapping_add(1));
        Ok(grew.then_some(Granted { lease, purse: kind, granted }))
    }

    /// Others wait for money.
    pub(crate) fn recall(&self, wire: &v1::EscrowRecall) -> Result<(), ConvertError> {
        let key = (convert::lease(wire.attempt.as_ref())?, convert::purse_kind(wire.purse())?);
        if let Some(entry) = self.entries().get_mut(&key) {
            entry.recalls.notify_one();
            entry.bounce();
        }
        self.hand_over();
        Ok(())
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<Key, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A purse was granted more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Granted {
    pub(crate) lease: LeaseRef,
    pub(crate) purse: PurseKind,
    /// The sum, as the coordinator counts.
    pub(crate) granted: Money,
}

/// Withdraws a question that nobody waits for any more.
struct Withdraw<'a> {
    desk: &'a EscrowDesk,
    key: Key,
}

impl Drop for Withdraw<'_> {
    fn drop(&mut self) {
        if let Some(entry) = self.desk.entries().get_mut(&self.key) {
            entry.question = None;
            if entry.for_purse() > entry.state.granted {
                entry.unasked_since = Some(Instant::now());
            }
        }
    }
}

#[cfg(test)]
mod tests;
