//! What of an attempt's spool is sent when, and what is dropped.
//!
//! Records are sent in order over one session; after a lost session, everything that was not
//! acknowledged is sent again. Logs have no acknowledgement of their own: one is settled by
//! that of a step after it, or of the end, since the stream keeps its order. Model calls go before
//! the step that names them. What an attempt goes on from is acknowledged before anything after it
//! is sent: the coordinator takes no step of its own before. Reservations stay here: one that is
//! not settled when nobody is left who could settle it is settled whole. Where a blob turns out to be
//! damaged, the record that names it cannot be sent: what was recorded from there on is cut off, and the
//! attempt ends with a fault of the node's disk.

mod damaged;
mod gather;

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

use self::damaged::disk_fault;
use super::calls::Sums;
use super::{AttemptSpool, Damage, OpenCall, Record, SettledCall, SpoolError};

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
    /// What of it was damaged, if something was: nothing is recorded any more but an end.
    broken: Option<String>,
    /// The coordinator can keep nothing more of it: nothing is sent any more.
    refused: bool,
}

#[derive(Debug)]
struct Entry {
    record: Record,
    /// Which record of the spool it is.
    index: usize,
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
            broken: None,
            refused: false,
        };
        for (index, record) in records.into_iter().enumerate() {
            state.push(record, index);
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
        let record = Record::Step { number: step.number, png: step.screen.png, json };
        let mut state = self.state();
        state.whole()?;
        state.append(record, &[(step.screen.png, png)])?;
        drop(state);
        self.bump();
        Ok(())
    }

    /// Fails if what was recorded is not whole any more.
    ///
    /// # Errors
    ///
    /// Something of it was damaged on the disk.
    pub fn whole(&self) -> Result<(), SpoolError> {
        self.state().whole()
    }

    /// Says with the attempt that its spool was damaged, before anything else of it is sent.
    ///
    /// # Errors
    ///
    /// The disk is full or fails.
    pub fn tell_damage(&self, damage: Damage) -> Result<(), SpoolError> {
        let text = format!(
            "{damage}; what came after them was not delivered, and the money that it may have said something of \
             counts as spent"
        );
        let mut state = self.state();
        state.tell(&text)?;
        drop(state);
        self.bump();
        Ok(())
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
        state.whole()?;
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

    /// What the purses came to, as its end says, if it has one.
    #[must_use]
    pub fn ended_purses(&self) -> Vec<(PurseKind, PurseState)> {
        match self.state().entries.last() {
            Some(Entry { record: Record::End { purses, .. }, .. }) => purses.clone(),
            _ => Vec::new(),
        }
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
        let (steps, last_step, calls, broken) = {
            let state = self.state();
            (state.steps, state.last_step, state.calls, state.broken.clone())
        };
        // Whatever it came to, not all of it is there.
        let end = match broken {
            Some(message) if !matches!(end, AttemptEnd::Fault(_)) => disk_fault(message),
            _ => end,
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

    /// The coordinator can keep nothing more of it. What it has not is not sent again, and stays on
    /// this disk for people; the last word on its purses is still told.
    pub fn refused(&self) {
        let mut state = self.state();
        state.refused = true;
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

    /// How many steps, calls and ends wait for their acknowledgement.
    #[must_use]
    pub fn undelivered(&self) -> u64 {
        let counts = |record: &Record| matches!(record, Record::Step { .. } | Record::Call(_) | Record::End { .. });
        let state = self.state();
        let waits = |entry: &&Entry| !state.refused && !entry.acknowledged && counts(&entry.record);
        let waiting = state.entries.iter().filter(waits).count();
        u64::try_from(waiting).unwrap_or(u64::MAX)
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
    /// A record whose blob is damaged ends what there is to be sent.
    ///
    /// # Errors
    ///
    /// A blob cannot be read, or the records not be cut.
    pub fn next(&self) -> Result<Option<Outgoing>, SpoolError> {
        let mut state = self.state();
        loop {
            let over = state.finished || state.refused;
            if over || state.cursor >= state.entries.len() || state.waits_for_resumed() {
                return Ok(None);
            }
            match state.gather() {
                Ok(outgoing) => return Ok(Some(outgoing)),
                Err((at, error @ SpoolError::Changed { .. })) => {
                    tracing::error!(attempt = %self.lease.attempt, %error, "a spool is damaged");
                    state.break_off(at, &error)?;
                    self.bump();
                }
                Err((_, error)) => return Err(error),
            }
        }
    }

    /// These went out on the session; unless it was rewound meanwhile, the next ones follow.
    pub fn sent(&self, outgoing: &Outgoing) {
        let mut state = self.state();
        if state.cursor == outgoing.from {
            // Fewer are there now if the spool broke off meanwhile.
            state.cursor = (state.cursor + outgoing.records.len()).min(state.entries.len());
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
        // What was refused stays, whatever is answered to an end that was on its way.
        if !state.refused {
            state.finish();
        }
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
        if state.refused {
            state.settle();
        }
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
        let index = self.spool.count();
        self.spool.append(&record, blobs)?;
        self.push(record, index);
        Ok(())
    }

    fn has_end(&self) -> bool {
        self.entries.last().is_some_and(|entry| matches!(entry.record, Record::End { .. }))
    }

    fn push(&mut self, record: Record, index: usize) {
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
        self.entries.push(Entry { record, index, acknowledged: false });
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
        if self.refused {
            let over = self.closed || self.has_end();
            if over && !self.owes_report && !self.finished {
                self.finished = true;
                let folder = self.spool.leave();
                tracing::warn!(folder = %folder.display(), "what the coordinator does not keep of an attempt stays here");
            }
            return;
        }
        let settled = self.settled();
        let waiting = self.entries.iter().skip(settled).flat_map(|entry| entry.record.blobs());
        let needed: BTreeSet<Digest> =
            waiting.chain(self.open.values().flat_map(|call| &call.blobs)).copied().collect();
        let done: Vec<Digest> = self.spool.blobs.keys().copied().filter(|digest| !needed.contains(digest)).collect();
        for digest in done {
            self.spool.drop_blob(&digest);
        }
        let first = self.entries.get(settled).map_or_else(|| self.spool.count(), |entry| entry.index);
        self.spool.wait_from(first);
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
