//! What an account knows of its calls: numbers, sums, what has been stored, which models answered.

use std::collections::{BTreeMap, HashSet};

use longhaul_core::call::{CallRecord, CallTotals, PurseKind};
use longhaul_core::digest::Digest;

use crate::ports::Blob;

/// More warnings than that say nothing new.
const MOST_WARNINGS: usize = 20;

/// What answers to a model's name, as the vendor says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity {
    model: Option<String>,
    fingerprint: Option<String>,
}

/// The book of an account.
#[derive(Debug, Default)]
pub(crate) struct Book {
    /// The number of the next call.
    pub(crate) next: u32,
    /// The number that the next step will have.
    pub(crate) step: u32,
    /// Calls since they were last asked for.
    pub(crate) numbers: Vec<u32>,
    /// The sums over calls of the agent and its audits.
    pub(crate) totals: CallTotals,
    /// The sums over calls of the judge.
    pub(crate) judging: CallTotals,
    /// The scope that is spent.
    pub(crate) spent: Option<String>,
    /// A call of the round was refused, since the round has spent what it may.
    pub(crate) round_spent: bool,
    /// The last step before the round.
    pub(crate) round_after: u32,
    /// What a person should know.
    pub(crate) warnings: Vec<String>,
    /// Calls that have begun and not ended.
    pub(crate) flying: u32,
    /// The address that last answered, by endpoint.
    pub(crate) addresses: BTreeMap<String, String>,
    stored: HashSet<Digest>,
    models: BTreeMap<(String, String), Identity>,
}

impl Book {
    /// Those of the blobs that no earlier call has stored.
    pub(crate) fn new_of<'a>(&self, blobs: impl IntoIterator<Item = &'a Blob>) -> Vec<Blob> {
        blobs.into_iter().filter(|blob| !self.stored.contains(&blob.digest)).cloned().collect()
    }

    /// They are stored now.
    pub(crate) fn stored(&mut self, digests: impl IntoIterator<Item = Digest>) {
        self.stored.extend(digests);
    }

    /// Counts a settled call; names what changed with it.
    pub(crate) fn settled(&mut self, record: &CallRecord) {
        match record.purpose.purse() {
            PurseKind::Episode => self.totals.add(record),
            PurseKind::Judge => self.judging.add(record),
        }
        let overshoot = record.overshoot();
        if !overshoot.is_zero() {
            self.warn(format!(
                "call {} of {} cost {}, which is {overshoot} more than its bound: the price table or the vendor is wrong",
                record.number, record.model, record.settled
            ));
        }
        self.identity(record);
    }

    fn identity(&mut self, record: &CallRecord) {
        if record.model_reported.is_none() && record.fingerprint.is_none() {
            return;
        }
        let now = Identity { model: record.model_reported.clone(), fingerprint: record.fingerprint.clone() };
        let key = (record.endpoint.clone(), record.model.clone());
        let Some(before) = self.models.insert(key, now.clone()) else { return };
        for (what, before, now) in
            [("model", before.model, now.model), ("fingerprint", before.fingerprint, now.fingerprint)]
        {
            if let (Some(before), Some(now)) = (before, now)
                && before != now
            {
                self.warn(format!(
                    "the {what} behind `{}` at {} changed from `{before}` to `{now}` with call {}",
                    record.model, record.endpoint, record.number
                ));
            }
        }
    }

    fn warn(&mut self, warning: String) {
        if self.warnings.len() < MOST_WARNINGS && !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }
}
