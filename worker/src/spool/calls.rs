//! Model calls in the spool: reserved before they are made, settled after.

use longhaul_core::call::{CallRecord, Certainty, Purpose, PurseKind};
use longhaul_core::digest::Digest;
use longhaul_core::money::Money;
use longhaul_core::purse::PurseState;
use longhaul_core::time::{Millis, Timestamp};
use longhaul_gateway::ports::Reservation;
use serde::{Deserialize, Serialize};

use super::SpoolError;

/// What is said of a call whose worker died before its answer came.
const NOBODY_KNOWS: &str = "whoever made the call ended before an answer was recorded";

/// A call that is reserved and not settled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenCall {
    /// The number of the call in its attempt.
    pub number: u32,
    /// The step that it is part of.
    pub step: u32,
    /// When it was reserved.
    pub at: Timestamp,
    /// What it is for.
    pub purpose: Purpose,
    /// The endpoint.
    pub endpoint: String,
    /// The model as it is asked for.
    pub model: String,
    /// The most that it can cost.
    pub bound: Money,
    /// The call that this one tries again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<u32>,
    /// The blob of the request's skeleton, and the blobs that it names.
    pub blobs: Vec<Digest>,
}

impl OpenCall {
    /// What is written down of a reservation.
    #[must_use]
    pub fn of(reservation: &Reservation) -> Self {
        Self {
            number: reservation.number,
            step: reservation.step,
            at: reservation.at,
            purpose: reservation.purpose,
            endpoint: reservation.endpoint.clone(),
            model: reservation.model.clone(),
            bound: reservation.bound,
            retry_of: reservation.retry_of,
            blobs: std::iter::once(reservation.request).chain(reservation.parts.iter().copied()).collect(),
        }
    }

    /// The call settled whole: it may have reached the vendor, and the vendor may bill it. Made
    /// of the reservation alone, so that whoever makes it comes to the same bytes.
    #[must_use]
    pub fn settled_whole(&self) -> CallRecord {
        let (request, parts) = self.blobs.split_first().map_or_else(
            // A reservation always names its request.
            || (Digest::of(b""), Vec::new()),
            |(request, parts)| (*request, parts.to_vec()),
        );
        CallRecord {
            number: self.number,
            step: self.step,
            at: self.at,
            took: Millis(0),
            purpose: self.purpose,
            endpoint: self.endpoint.clone(),
            model: self.model.clone(),
            model_reported: None,
            fingerprint: None,
            request_id: None,
            retry_of: self.retry_of,
            status: None,
            error: Some(NOBODY_KNOWS.to_owned()),
            reserved: self.bound,
            settled: self.bound,
            certainty: Certainty::Unconfirmed,
            usage: None,
            shortened_to: None,
            request,
            response: None,
            parts,
            service: None,
        }
    }
}

/// A call that is settled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettledCall {
    /// The number of the call in its attempt.
    pub number: u32,
    /// Whose money paid.
    pub purse: PurseKind,
    /// What it cost.
    pub settled: Money,
    /// Of that, what no vendor has confirmed.
    pub unconfirmed: Money,
    /// Of that, what went beyond what was reserved.
    #[serde(default)]
    pub overshoot: Money,
    /// The blobs that the record names.
    pub blobs: Vec<Digest>,
    /// The core CallRecord, as the JSON whose digest is the call's.
    pub json: String,
}

impl SettledCall {
    /// What is written down of a settled call.
    ///
    /// # Errors
    ///
    /// It cannot be expressed as JSON.
    pub fn of(record: &CallRecord) -> Result<Self, SpoolError> {
        let whole = record.certainty == Certainty::Unconfirmed;
        Ok(Self {
            number: record.number,
            purse: record.purpose.purse(),
            settled: record.settled,
            unconfirmed: if whole { record.settled } else { Money::ZERO },
            overshoot: record.overshoot(),
            blobs: record.blobs().collect(),
            json: serde_json::to_string(record).map_err(SpoolError::Json)?,
        })
    }
}

/// The purses of an attempt, as its records say.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums(std::collections::BTreeMap<PurseKind, PurseState>);

impl Sums {
    pub(super) fn granted(&mut self, purse: PurseKind, granted: Money) {
        let state = self.0.entry(purse).or_default();
        state.granted = state.granted.max(granted);
    }

    pub(super) fn settled(&mut self, call: &SettledCall) {
        let state = self.0.entry(call.purse).or_default();
        state.settled = state.settled.saturating_add(call.settled);
        state.unconfirmed = state.unconfirmed.saturating_add(call.unconfirmed);
        state.overshoot = state.overshoot.saturating_add(call.overshoot);
    }

    /// The purses of an attempt that makes no further call: what was not spent is given back.
    pub(super) fn closed(&self) -> Vec<(PurseKind, PurseState)> {
        let close = |(kind, state): (&PurseKind, &PurseState)| {
            let returned = state.granted.saturating_sub(state.settled);
            (*kind, PurseState { returned, ..*state })
        };
        self.0.iter().map(close).collect()
    }
}

#[cfg(test)]
mod tests {
    use longhaul_core::outcome::AttemptEnd;
    use longhaul_gateway::ports::Blob;

    use super::super::tests::lease;
    use super::super::{AttemptSpool, Meter, Outbox};
    use super::*;

    fn blob(text: &str) -> Blob {
        Blob { digest: Digest::of(text.as_bytes()), bytes: text.to_owned().into() }
    }

    fn open(number: u32, bound: u64) -> OpenCall {
        OpenCall {
            number,
            step: 1,
            at: Timestamp(5),
            purpose: Purpose::Agent,
            endpoint: "stand-in".to_owned(),
            model: "some-model".to_owned(),
            bound: Money::from_nanos(bound),
            retry_of: None,
            blobs: vec![blob(&format!("request {number}")).digest],
        }
    }

    fn settled(number: u32, cost: u64) -> CallRecord {
        let response = Some(blob(&format!("response {number}")).digest);
        let whole = open(number, 100).settled_whole();
        let settled = Money::from_nanos(cost);
        CallRecord { settled, certainty: Certainty::Reported, error: None, response, ..whole }
    }

    fn reserve(outbox: &Outbox, number: u32) {
        outbox.reserve(open(number, 100), &[blob(&format!("request {number}"))]).unwrap();
    }

    fn settle(outbox: &Outbox, number: u32, cost: u64) {
        outbox.settle_call(&settled(number, cost), &[blob(&format!("response {number}"))]).unwrap();
    }

    fn purse(granted: u64, settled: u64, returned: u64, unconfirmed: u64) -> (PurseKind, PurseState) {
        let [granted, settled, returned, unconfirmed] =
            [granted, settled, returned, unconfirmed].map(Money::from_nanos);
        (PurseKind::Episode, PurseState { granted, settled, returned, unconfirmed, overshoot: Money::ZERO })
    }

    /// The calls that are sent, with what they cost, and whether nobody has confirmed it.
    fn sent(outbox: &Outbox) -> Vec<(u32, u64, bool)> {
        let mut calls = Vec::new();
        while let Some(outgoing) = outbox.next().unwrap() {
            for record in &outgoing.records {
                let super::super::Record::Call(call) = record else { continue };
                for digest in &call.blobs {
                    assert!(outgoing.blobs.contains_key(digest), "a blob of call {} is not sent", call.number);
                }
                let record: CallRecord = serde_json::from_str(&call.json).unwrap();
                calls.push((call.number, record.settled.nanos(), record.certainty == Certainty::Unconfirmed));
            }
            outbox.sent(&outgoing);
        }
        calls
    }

    #[test]
    fn a_call_that_a_dead_worker_reserved_is_settled_whole_by_the_next_one() {
        let root = tempfile::tempdir().unwrap();
        let spool = AttemptSpool::create(root.path(), lease(), Meter::default()).unwrap();
        let outbox = Outbox::new(spool, Vec::new());
        outbox.granted(PurseKind::Episode, Money::from_nanos(500)).unwrap();
        reserve(&outbox, 0);
        settle(&outbox, 0, 40);
        reserve(&outbox, 1);
        assert_eq!(sent(&outbox), [(0, 40, false)], "what is reserved stays here");
        drop(outbox);

        let folder = std::fs::read_dir(root.path()).unwrap().next().unwrap().unwrap().path();
        for _ in 0..2 {
            // The second time everything is in the records.
            let recovered = AttemptSpool::recover(&folder, Meter::default()).unwrap();
            let outbox = Outbox::new(recovered.spool, recovered.records);
            outbox.settle_open_calls().unwrap();
            assert_eq!(sent(&outbox), [(0, 40, false), (1, 100, true)]);
            assert_eq!(outbox.calls(), 2);
            assert_eq!(outbox.closed_purses(), [purse(500, 140, 360, 100)]);
        }
    }

    #[test]
    fn blobs_of_a_call_stay_until_it_is_acknowledged_and_those_of_a_reservation_too() {
        let root = tempfile::tempdir().unwrap();
        let meter = Meter::default();
        let spool = AttemptSpool::create(root.path(), lease(), meter.clone()).unwrap();
        let outbox = Outbox::new(spool, Vec::new());
        reserve(&outbox, 0);
        settle(&outbox, 0, 40);
        reserve(&outbox, 1);
        sent(&outbox);
        let before = meter.bytes();
        outbox.call_acknowledged(0);
        assert!(meter.bytes() < before, "the response of call 0, and what was recorded up to it");
        assert!(outbox.next().unwrap().is_none());
        settle(&outbox, 1, 30);
        assert_eq!(sent(&outbox), [(1, 30, false)]);
        outbox.call_acknowledged(1);
        assert_eq!(meter.bytes(), 0);
    }

    #[test]
    fn a_closed_spool_stays_until_the_last_word_on_money_was_heard() {
        let root = tempfile::tempdir().unwrap();
        let spool = AttemptSpool::create(root.path(), lease(), Meter::default()).unwrap();
        let outbox = Outbox::new(spool, Vec::new());
        reserve(&outbox, 0);
        outbox.settle_open_calls().unwrap();
        // An answer that comes after all changes nothing, and is no failure.
        settle(&outbox, 0, 40);
        outbox.owe_report();
        outbox.close();
        assert!(outbox.reserve(open(1, 100), &[]).is_err(), "a call after the end");
        assert_eq!(sent(&outbox), [(0, 100, true)]);
        outbox.call_acknowledged(0);
        assert!(!outbox.is_finished());
        outbox.report_heard();
        assert!(outbox.is_finished());
    }

    #[test]
    fn an_end_counts_its_calls_and_they_are_sent_again_on_demand() {
        let root = tempfile::tempdir().unwrap();
        let spool = AttemptSpool::create(root.path(), lease(), Meter::default()).unwrap();
        let outbox = Outbox::new(spool, Vec::new());
        for number in 0..3 {
            reserve(&outbox, number);
            settle(&outbox, number, 10);
        }
        let purses = vec![purse(30, 30, 0, 0)];
        outbox.end(AttemptEnd::Cancelled, longhaul_core::notes::AttemptNotes::default(), purses.clone()).unwrap();
        let outgoing = outbox.next().unwrap().unwrap();
        let end = outgoing.records.last().unwrap();
        assert!(matches!(end, super::super::Record::End { calls: 3, purses: said, .. } if *said == purses));
        outbox.sent(&outgoing);
        outbox.resend_from(0, 1);
        assert_eq!(sent(&outbox), [(1, 10, false), (2, 10, false)]);
    }
}
