//! What of an attempt's spool is sent when, and what is dropped.
//!
//! Records are sent in order over one session; after a lost session, everything that was not
//! acknowledged is sent again. Logs have no acknowledgement of their own: one is settled by
//! that of a step after it, or of the end, since the stream keeps its order. Model calls go before
//! the step that names them. What an attempt goes on from is acknowledged before anything after it
//! is sent: the coordinator takes no step of its own before. Reservations stay here: one that is
//! not settled when nobody is left who could settle it is settled whole.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use longhaul_core::call::{CallRecord, PurseKind};
use longhaul_core::digest::Digest;
use longhaul_core::money::Money;
use longhaul_core::notes::AttemptNotes;
use longhaul_core::outcome::AttemptEnd;
use longhaul_core::purse::PurseState;
use longhaul_core::resume::Resumed;
use longhaul_core::step::StepRecord;
use longhaul_gateway::ports::Blob;
use longhaul_proto::convert::LeaseRef;
use tokio::sync::watch;

use super::calls::Sums;
use super::{AttemptSpool, OpenCall, Record, SettledCall, SpoolError};

/// The most records of one delivery.
const AT_ONCE: usize = 16;

/// The most bytes of blobs of one delivery; a single larger one goes alone.
const BYTES_AT_ONCE: usize = 16 * 1024 * 1024;

/// The spool of one attempt, shared by who fills it and who delivers it.
#[derive(Debug)]
pub struct Outbox {
    lease: LeaseRef,
    state: Mutex<State>,
    /// Counts changes: something to send, or something acknowledged.
    changed: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    spool: AttemptSpool,
    entries: Vec<Entry>,
    /// The next entry to be sent in this session.
    cursor: usize,
    /// Nothing more comes; it is finished without an end.
    closed: bool,
    finished: bool,
    steps: u32,
    last_step: Option<Digest>,
    calls: u32,
    /// Calls that are reserved and not settled.
    open: BTreeMap<u32, OpenCall>,
    sums: Sums,
    /// The last word on its purses is not known to have been heard.
    owes_report: bool,
}

#[derive(Debug)]
struct Entry {
    record: Record,
    acknowledged: bool,
}

/// What is to be sent next.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// The records, in order.
    pub records: Vec<Record>,
    /// The blobs that go before them.
    pub blobs: BTreeMap<Digest, Vec<u8>>,
    /// Where in the spool the records start.
    from: usize,
}

impl Outbox {
    /// Over a spool and what is in it.
    #[must_use]
    pub fn new(spool: AttemptSpool, records: Vec<Record>) -> Self {
        let lease = spool.lease();
        let mut state = State {
            spool,
            entries: Vec::new(),
            cursor: 0,
            closed: false,
            finished: false,
            steps: 0,
            last_step: None,
            calls: 0,
            open: BTreeMap::new(),
            sums: Sums::default(),
            owes_report: false,
        };
        for record in records {
            state.push(record);
        }
        Self { lease, state: Mutex::new(state), changed: watch::Sender::new(0) }
    }

    /// The attempt.
    #[must_use]
    pub const fn lease(&self) -> LeaseRef {
        self.lease
    }

    /// Told of every change.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Records a step with its screenshot.
    ///
    /// # Errors
    ///
    /// The disk is full or fails.
    pub fn step(&self, step: &StepRecord, png: &[u8]) -> Result<(), SpoolError> {
        let json = serde_json::to_string(step).map_err(SpoolError::Json)?;
        self.append(Record::Step { number: step.number, png: step.screen.png, json }, &[(step.screen.png, png)])
    }

    /// Records that the attempt stands where the ones before it were cut off: its own steps are
    /// numbered from there.
    ///
    /// # Errors
    ///
    /// The disk is full or fails.
    pub fn resumed(&self, record: &Resumed) -> Result<(), SpoolError> {
        self.append(Record::Resumed { record: record.clone() }, &[])
    }

    /// Whether the coordinator knows that, and takes the attempt's own steps.
    #[must_use]
    pub fn has_resumed(&self) -> bool {
        self.state().entries.iter().any(|entry| entry.acknowledged && matches!(entry.record, Record::Resumed { .. }))
    }

    /// The coordinator knows it.
    pub fn resumed_acknowledged(&self) {
        self.acknowledged(|record| matches!(record, Record::Resumed { .. }));
    }

    /// Records a log.
    ///
    /// # Errors
    ///
    /// The disk is full or fails.
    pub fn log(&self, name: &str, text: &[u8]) -> Result<(), SpoolError> {
        let blob = Digest::of(text);
        self.append(Record::Log { name: name.to_owned(), blob }, &[(blob, text)])
    }

    /// Records that a call is about to be made, with the blobs of its request that are new.
    ///
    /// # Errors
    ///
    /// The disk is full or fails, or the attempt is over: the call must not be made.
    pub fn reserve(&self, call: OpenCall, blobs: &[Blob]) -> Result<(), SpoolError> {
        let mut state = self.state();
        if state.closed || state.has_end() {
            return Err(SpoolError::Closed);
        }
        state.append(Record::Reserved(call), &borrowed(blobs))
    }

    /// Records what became of a reserved call, with the blobs of its response. One that was
    /// settled whole meanwhile, since nobody waited for it any more, stays so.
    ///
    /// # Errors
    ///
    /// The disk is full or fails.
    pub fn settle_call(&self, record: &CallRecord, blobs: &[Blob]) -> Result<(), SpoolError> {
        let call = SettledCall::of(record)?;
        let mut state = self.state();
        if !state.open.contains_key(&call.number) {
            tracing::warn!(attempt = %self.lease.attempt, call = call.number, "a call is settled that was not open");
            return Ok(());
        }
        state.append(Record::Call(call), &borrowed(blobs))?;
        drop(state);
        self.bump();
        Ok(())
    }

    /// Settles every call whose fate is not known whole: nobody is left who could learn it.
    ///
    /// # Errors
    ///
    /// The disk is full or fails.
    pub fn settle_open_calls(&self) -> Result<(), SpoolError> {
        let mut state = self.state();
        let open: Vec<OpenCall> = state.open.values().cloned().collect();
        for call in &open {
            let settled = SettledCall::of(&call.settled_whole())?;
            state.append(Record::Call(settled), &[])?;
        }
        drop(state);
        if !open.is_empty() {
            self.bump();
        }
        Ok(())
    }

    /// Records the sum of a purse's grants.
    ///
    /// # Errors
    ///
    /// The disk is full or fails.
    pub fn granted(&self, purse: PurseKind, granted: Money) -> Result<(), SpoolError> {
        let mut state = self.state();
        if state.closed || state.has_end() {
            return Ok(());
        }
        state.append(Record::Granted { purse, granted }, &[])
    }

    /// What the purses come to once no further call is made, as the records say.
    #[must_use]
    pub fn closed_purses(&self) -> Vec<(PurseKind, PurseState)> {
        self.state().sums.closed()
    }

    /// How many calls were settled.
    #[must_use]
    pub fn calls(&self) -> u32 {
        self.state().calls
    }

    /// The spool stays until [`Self::report_heard`] says that the coordinator knows what the
    /// purses came to.
    pub fn owe_report(&self) {
        self.state().owes_report = true;
    }

    /// The coordinator knows what the purses came to.
    pub fn report_heard(&self) {
        let mut state = self.state();
        state.owes_report = false;
        state.settle();
        drop(state);
        self.bump();
    }

    /// Records the end; nothing is recorded after it.
    ///
    /// # Errors
    ///
    /// The disk is full or fails.
    pub fn end(
        &self,
        end: AttemptEnd,
        notes: AttemptNotes,
        purses: Vec<(PurseKind, PurseState)>,
    ) -> Result<(), SpoolError> {
        let (steps, last_step, calls) = {
            let state = self.state();
            (state.steps, state.last_step, state.calls)
        };
        self.append(Record::End { end, notes, steps, last_step, calls, purses }, &[])
    }

    /// The attempt is over without an end that anybody waits for: what was recorded is still
    /// delivered, and nothing more comes.
    pub fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.settle();
        drop(state);
        self.bump();
    }

    /// How many steps were recorded.
    #[must_use]
    pub fn steps(&self) -> u32 {
        self.state().steps
    }

    /// How many steps wait for their acknowledgement.
    #[must_use]
    pub fn waiting_steps(&self) -> usize {
        let state = self.state();
        state.entries.iter().filter(|entry| !entry.acknowledged && matches!(entry.record, Record::Step { .. })).count()
    }

    /// Whether this step waits for its acknowledgement.
    #[must_use]
    pub fn is_waiting(&self, number: u32) -> bool {
        self.state().entries.iter().rev().any(|entry| {
            !entry.acknowledged && matches!(entry.record, Record::Step { number: this, .. } if this == number)
        })
    }

    /// Whether everything was delivered and the spool removed.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.state().finished
    }

    /// Whether the end was recorded.
    #[must_use]
    pub fn has_end(&self) -> bool {
        self.state().has_end()
    }

    /// A new session: what was not acknowledged is sent again.
    pub fn rewind(&self) {
        let mut state = self.state();
        state.cursor = state.settled();
        drop(state);
        self.bump();
    }

    /// What is to be sent next, if anything. It is offered again until [`Self::sent`] says that it went.
    ///
    /// # Errors
    ///
    /// A blob cannot be read.
    pub fn next(&self) -> Result<Option<Outgoing>, SpoolError> {
        let state = self.state();
        if state.finished || state.cursor >= state.entries.len() || state.waits_for_resumed() {
            return Ok(None);
        }
        let mut outgoing = Outgoing { from: state.cursor, ..Outgoing::default() };
        let mut bytes = 0;
        for entry in state.entries.iter().skip(state.cursor).take(AT_ONCE) {
            if bytes >= BYTES_AT_ONCE {
                break;
            }
            for digest in entry.record.blobs() {
                if let Some(blob) = state.spool.blob(digest)? {
                    bytes += blob.len();
                    outgoing.blobs.insert(*digest, blob);
                }
            }
            outgoing.records.push(entry.record.clone());
            if !entry.acknowledged && matches!(entry.record, Record::Resumed { .. }) {
                break;
            }
        }
        Ok(Some(outgoing))
    }

    /// These went out on the session; unless it was rewound meanwhile, the next ones follow.
    pub fn sent(&self, outgoing: &Outgoing) {
        let mut state = self.state();
        if state.cursor == outgoing.from {
            state.cursor += outgoing.records.len();
        }
    }

    /// A step is durable at the coordinator.
    pub fn step_acknowledged(&self, number: u32) {
        self.acknowledged(|record| matches!(record, Record::Step { number: this, .. } if *this == number));
    }

    /// A call is durable at the coordinator.
    pub fn call_acknowledged(&self, number: u32) {
        self.acknowledged(|record| matches!(record, Record::Call(call) if call.number == number));
    }

    fn acknowledged(&self, is_it: impl Fn(&Record) -> bool) {
        let mut state = self.state();
        for entry in &mut state.entries {
            entry.acknowledged |= is_it(&entry.record);
        }
        state.settle();
        drop(state);
        self.bump();
    }

    /// The end was accepted: nothing of it is needed any more.
    pub fn end_accepted(&self) {
        let mut state = self.state();
        state.finish();
        drop(state);
        self.bump();
    }

    /// The end was refused, since the store lacks the steps and calls from these numbers on.
    pub fn resend_from(&self, step: u32, call: u32) {
        let mut state = self.state();
        let at = state.entries.iter().position(|entry| match &entry.record {
            Record::Step { number, .. } => *number >= step,
            Record::Call(settled) => settled.number >= call,
            Record::Log { .. } | Record::Reserved(_) | Record::Granted { .. } | Record::Resumed { .. } => false,
            Record::End { .. } => true,
        });
        if let Some(at) = at {
            for entry in state.entries.iter_mut().skip(at) {
                entry.acknowledged = false;
            }
            state.cursor = at;
        }
        drop(state);
        self.bump();
    }

    fn append(&self, record: Record, blobs: &[(Digest, &[u8])]) -> Result<(), SpoolError> {
        let mut state = self.state();
        state.append(record, blobs)?;
        drop(state);
        self.bump();
        Ok(())
    }

    fn bump(&self) {
        self.changed.send_modify(|count| *count = count.wrapping_add(1));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn borrowed(blobs: &[Blob]) -> Vec<(Digest, &[u8])> {
    blobs.iter().map(|blob| (blob.digest, &*blob.bytes)).collect()
}

impl State {
    fn append(&mut self, record: Record, blobs: &[(Digest, &[u8])]) -> Result<(), SpoolError> {
        self.spool.append(&record, blobs)?;
        self.push(record);
        Ok(())
    }

    fn has_end(&self) -> bool {
        self.entries.last().is_some_and(|entry| matches!(entry.record, Record::End { .. }))
    }

    fn push(&mut self, record: Record) {
        match &record {
            Record::Step { number, json, .. } => {
                self.steps = number + 1;
                self.last_step = Some(Digest::of(json.as_bytes()));
            }
            Record::Resumed { record } => {
                self.steps = record.kept.steps;
                self.last_step = Some(record.kept.last);
            }
            Record::Reserved(call) => {
                self.open.insert(call.number, call.clone());
                return;
            }
            Record::Call(call) => {
                self.open.remove(&call.number);
                self.calls += 1;
                self.sums.settled(call);
            }
            Record::Granted { purse, granted } => {
                self.sums.granted(*purse, *granted);
                return;
            }
            Record::Log { .. } | Record::End { .. } => {}
        }
        self.entries.push(Entry { record, acknowledged: false });
    }

    /// Whether what the attempt goes on from was sent, and is not acknowledged: nothing goes after it.
    fn waits_for_resumed(&self) -> bool {
        self.entries
            .iter()
            .take(self.cursor)
            .any(|entry| !entry.acknowledged && matches!(entry.record, Record::Resumed { .. }))
    }

    /// How many entries from the start need not be sent again: all up to the last step or call
    /// before which every one is acknowledged.
    fn settled(&self) -> usize {
        let mut settled = 0;
        for (index, entry) in self.entries.iter().enumerate() {
            match entry.record {
                Record::Step { .. } | Record::Call(_) | Record::Resumed { .. } if entry.acknowledged => {
                    settled = index + 1;
                }
                Record::Log { .. } | Record::Reserved(_) | Record::Granted { .. } => {}
                Record::Step { .. } | Record::Call(_) | Record::Resumed { .. } | Record::End { .. } => break,
            }
        }
        settled
    }

    /// Drops the blobs that only settled entries name; finishes a closed spool of which everything
    /// was heard.
    fn settle(&mut self) {
        let settled = self.settled();
        let waiting = self.entries.iter().skip(settled).flat_map(|entry| entry.record.blobs());
        let needed: BTreeSet<Digest> =
            waiting.chain(self.open.values().flat_map(|call| &call.blobs)).copied().collect();
        let done: Vec<Digest> = self.spool.blobs.keys().copied().filter(|digest| !needed.contains(digest)).collect();
        for digest in done {
            self.spool.drop_blob(&digest);
        }
        let open = self.entries.iter().skip(settled).any(|entry| !matches!(entry.record, Record::Log { .. }));
        if self.closed && !open && !self.owes_report {
            self.finish();
        }
    }

    fn finish(&mut self) {
        self.finished = true;
        if let Err(error) = self.spool.remove() {
            tracing::warn!(%error, "a delivered spool stays on disk");
        }
    }
}

#[cfg(test)]
mod tests;
