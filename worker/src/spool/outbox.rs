//! What of an attempt's spool is sent when, and what is dropped.
//!
//! Records are sent in order over one session; after a lost session, everything that was not
//! acknowledged is sent again. Logs have no acknowledgement of their own: one is settled by
//! that of a step after it, or of the end, since the stream keeps its order.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use longhaul_core::digest::Digest;
use longhaul_core::notes::AttemptNotes;
use longhaul_core::outcome::AttemptEnd;
use longhaul_core::step::StepRecord;
use longhaul_proto::convert::LeaseRef;
use tokio::sync::watch;

use super::{AttemptSpool, Record, SpoolError};

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
        let mut state =
            State { spool, entries: Vec::new(), cursor: 0, closed: false, finished: false, steps: 0, last_step: None };
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
        self.append(Record::Step { number: step.number, png: step.screen.png, json }, Some(png))
    }

    /// Records a log.
    ///
    /// # Errors
    ///
    /// The disk is full or fails.
    pub fn log(&self, name: &str, text: &[u8]) -> Result<(), SpoolError> {
        self.append(Record::Log { name: name.to_owned(), blob: Digest::of(text) }, Some(text))
    }

    /// Records the end; nothing is recorded after it.
    ///
    /// # Errors
    ///
    /// The disk is full or fails.
    pub fn end(&self, end: AttemptEnd, notes: AttemptNotes) -> Result<(), SpoolError> {
        let (steps, last_step) = {
            let state = self.state();
            (state.steps, state.last_step)
        };
        self.append(Record::End { end, notes, steps, last_step }, None)
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
        self.state().entries.last().is_some_and(|entry| matches!(entry.record, Record::End { .. }))
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
        if state.finished || state.cursor >= state.entries.len() {
            return Ok(None);
        }
        let mut outgoing = Outgoing { from: state.cursor, ..Outgoing::default() };
        let mut bytes = 0;
        for entry in state.entries.iter().skip(state.cursor).take(AT_ONCE) {
            if bytes >= BYTES_AT_ONCE {
                break;
            }
            if let Some(digest) = entry.record.blob()
                && let Some(blob) = state.spool.blob(&digest)?
            {
                bytes += blob.len();
                outgoing.blobs.insert(digest, blob);
            }
            outgoing.records.push(entry.record.clone());
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
        let mut state = self.state();
        for entry in &mut state.entries {
            if matches!(&entry.record, Record::Step { number: this, .. } if *this == number) {
                entry.acknowledged = true;
            }
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

    /// The end was refused, since the store lacks the steps from `number` on.
    pub fn resend_from(&self, number: u32) {
        let mut state = self.state();
        let at = state.entries.iter().position(|entry| match &entry.record {
            Record::Step { number: this, .. } => *this >= number,
            Record::Log { .. } => false,
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

    fn append(&self, record: Record, blob: Option<&[u8]>) -> Result<(), SpoolError> {
        let mut state = self.state();
        state.spool.append(&record, blob)?;
        state.push(record);
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

impl State {
    fn push(&mut self, record: Record) {
        if let Record::Step { number, json, .. } = &record {
            self.steps = number + 1;
            self.last_step = Some(Digest::of(json.as_bytes()));
        }
        self.entries.push(Entry { record, acknowledged: false });
    }

    /// How many entries from the start need not be sent again: all up to the last step before
    /// which every step is acknowledged.
    fn settled(&self) -> usize {
        let mut settled = 0;
        for (index, entry) in self.entries.iter().enumerate() {
            match entry.record {
                Record::Step { .. } if entry.acknowledged => settled = index + 1,
                Record::Log { .. } => {}
                Record::Step { .. } | Record::End { .. } => break,
            }
        }
        settled
    }

    /// Drops the blobs that only settled entries name; finishes a closed spool without open steps.
    fn settle(&mut self) {
        let settled = self.settled();
        let needed: Vec<Digest> = self.entries.iter().skip(settled).filter_map(|entry| entry.record.blob()).collect();
        let done: Vec<Digest> = self.spool.blobs.keys().copied().filter(|digest| !needed.contains(digest)).collect();
        for digest in done {
            self.spool.drop_blob(&digest);
        }
        let open = self.entries.iter().skip(settled).any(|entry| !matches!(entry.record, Record::Log { .. }));
        if self.closed && !open {
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
mod tests {
    use longhaul_core::step::{Screenshot, StepTiming};
    use longhaul_core::time::Timestamp;

    use super::super::Meter;
    use super::super::tests::lease;
    use super::*;

    struct World {
        _root: tempfile::TempDir,
        outbox: Outbox,
        meter: Meter,
        folder: std::path::PathBuf,
    }

    fn world() -> World {
        let root = tempfile::tempdir().unwrap();
        let meter = Meter::default();
        let spool = AttemptSpool::create(root.path(), lease(), meter.clone()).unwrap();
        let folder = spool.folder.clone();
        World { outbox: Outbox::new(spool, Vec::new()), _root: root, meter, folder }
    }

    fn step(number: u32, png: &[u8]) -> StepRecord {
        StepRecord {
            number,
            at: Timestamp(0),
            answer: None,
            outcomes: Vec::new(),
            screen: Screenshot { png: Digest::of(png), width: 1, height: 1 },
            rested: true,
            timing: StepTiming::default(),
        }
    }

    fn names(outgoing: Option<Outgoing>) -> Vec<String> {
        outgoing.map_or_else(Vec::new, |outgoing| {
            outgoing
                .records
                .iter()
                .map(|record| match record {
                    Record::Step { number, .. } => number.to_string(),
                    Record::Log { name, .. } => name.clone(),
                    Record::End { .. } => "end".to_owned(),
                })
                .collect()
        })
    }

    fn send(outbox: &Outbox) -> Vec<String> {
        let outgoing = outbox.next().unwrap();
        if let Some(outgoing) = &outgoing {
            outbox.sent(outgoing);
        }
        names(outgoing)
    }

    #[test]
    fn records_go_once_in_order_and_again_only_after_a_lost_session() {
        let world = world();
        world.outbox.log("setup", b"log").unwrap();
        world.outbox.step(&step(0, b"a"), b"a").unwrap();
        world.outbox.step(&step(1, b"b"), b"b").unwrap();
        assert_eq!(send(&world.outbox), ["setup", "0", "1"]);
        assert!(send(&world.outbox).is_empty());
        world.outbox.step_acknowledged(0);
        world.outbox.rewind();
        assert_eq!(send(&world.outbox), ["1"]);
        world.outbox.log("export", b"log").unwrap();
        assert_eq!(send(&world.outbox), ["export"]);
        world.outbox.rewind();
        assert_eq!(send(&world.outbox), ["1", "export"], "a log is settled by what follows it only");
    }

    #[test]
    fn an_acknowledged_screenshot_leaves_the_disk_unless_a_later_step_shows_it_too() {
        let world = world();
        world.outbox.step(&step(0, b"aaaa"), b"aaaa").unwrap();
        world.outbox.step(&step(1, b"aaaa"), b"aaaa").unwrap();
        world.outbox.step(&step(2, b"bb"), b"bb").unwrap();
        assert_eq!(world.meter.bytes(), 6);
        world.outbox.step_acknowledged(0);
        assert_eq!(world.meter.bytes(), 6);
        world.outbox.step_acknowledged(1);
        assert_eq!(world.meter.bytes(), 2);
    }

    #[test]
    fn the_end_stays_until_it_is_accepted_and_steps_are_sent_again_on_demand() {
        let world = world();
        world.outbox.step(&step(0, b"a"), b"a").unwrap();
        world.outbox.step(&step(1, b"b"), b"b").unwrap();
        world.outbox.end(AttemptEnd::Cancelled, AttemptNotes::default()).unwrap();
        assert_eq!(send(&world.outbox), ["0", "1", "end"]);
        world.outbox.step_acknowledged(0);
        world.outbox.resend_from(1);
        assert_eq!(send(&world.outbox), ["1", "end"]);
        assert!(!world.outbox.is_finished());
        world.outbox.end_accepted();
        assert!(world.outbox.is_finished());
        assert!(!world.folder.exists());
        assert_eq!(world.meter.bytes(), 0);
        assert!(send(&world.outbox).is_empty());
    }

    #[test]
    fn a_closed_spool_is_finished_when_its_steps_are_delivered() {
        let world = world();
        world.outbox.step(&step(0, b"a"), b"a").unwrap();
        world.outbox.log("tail", b"log").unwrap();
        world.outbox.close();
        assert!(!world.outbox.is_finished());
        world.outbox.step_acknowledged(0);
        assert!(world.outbox.is_finished());
    }

    #[test]
    fn what_was_offered_and_not_sent_is_offered_again() {
        let world = world();
        world.outbox.step(&step(0, b"a"), b"a").unwrap();
        let offered = world.outbox.next().unwrap();
        assert_eq!(names(offered), ["0"]);
        assert_eq!(send(&world.outbox), ["0"]);
    }

    #[test]
    fn a_delivery_that_crosses_a_new_session_does_not_skip_anything() {
        let world = world();
        world.outbox.step(&step(0, b"a"), b"a").unwrap();
        send(&world.outbox);
        world.outbox.step(&step(1, b"b"), b"b").unwrap();
        let crossing = world.outbox.next().unwrap().unwrap();
        world.outbox.rewind();
        world.outbox.sent(&crossing);
        assert_eq!(send(&world.outbox), ["0", "1"]);
    }
}
