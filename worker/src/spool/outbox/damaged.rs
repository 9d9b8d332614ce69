//! What becomes of an attempt when something of its spool turns out to be damaged: what stands
//! before it is delivered, the rest is not, and both are said.

use longhaul_core::digest::Digest;
use longhaul_core::outcome::{AttemptEnd, Fault, FaultClass};

use super::{Entry, State};
use crate::spool::{Record, SpoolError};

/// The log that says what of an attempt's spool was damaged.
const DAMAGE_LOG: &str = "spool";

/// How an attempt ends whose record is not whole.
pub(super) fn disk_fault(message: String) -> AttemptEnd {
    AttemptEnd::Fault(Fault { class: FaultClass::NodeDisk, message, log_tail: None })
}

impl State {
    /// Fails once something was found to be damaged.
    pub(super) fn whole(&self) -> Result<(), SpoolError> {
        self.broken.as_ref().map_or(Ok(()), |broken| Err(SpoolError::Broken(broken.clone())))
    }

    /// A log before all that is sent next, so that it goes out before the spool is finished with.
    pub(super) fn tell(&mut self, text: &str) -> Result<(), SpoolError> {
        let blob = Digest::of(text.as_bytes());
        let record = Record::Log { name: DAMAGE_LOG.to_owned(), blob };
        self.append(record, &[(blob, text.as_bytes())])?;
        if let Some(entry) = self.entries.pop() {
            let index = self.entries.get(self.cursor).map_or(entry.index, |next| next.index);
            self.entries.insert(self.cursor, Entry { index, ..entry });
        }
        Ok(())
    }

    /// Drops what was recorded from an entry on: it names what is not there any more. A log goes
    /// alone. An attempt that had ended has a fault for an end now.
    pub(super) fn break_off(&mut self, at: usize, error: &SpoolError) -> Result<(), SpoolError> {
        let Some(entry) = self.entries.get(at) else { return Ok(()) };
        if matches!(entry.record, Record::Log { .. }) {
            self.entries.remove(at);
            return Ok(());
        }
        self.spool.cut(entry.index)?;
        let mut gone = self.entries.split_off(at);
        let lost = gone.iter().filter(|entry| !matches!(entry.record, Record::Log { .. } | Record::End { .. })).count();
        let message = format!("{error}; {lost} records of steps and model calls are lost");
        self.broken = Some(message.clone());
        (self.steps, self.last_step) = (0, None);
        self.calls = 0;
        for entry in &self.entries {
            match &entry.record {
                Record::Step { number, json, .. } => {
                    (self.steps, self.last_step) = (number + 1, Some(Digest::of(json.as_bytes())));
                }
                Record::Resumed { record } => {
                    (self.steps, self.last_step) = (record.kept.steps, Some(record.kept.last));
                }
                Record::Call(_) => self.calls += 1,
                Record::Log { .. } | Record::Reserved(_) | Record::Granted { .. } | Record::End { .. } => {}
            }
        }
        if let Some(Entry { record: Record::End { notes, purses, .. }, .. }) = gone.pop() {
            let (steps, last_step, calls) = (self.steps, self.last_step, self.calls);
            let end = disk_fault(message);
            return self.append(Record::End { end, notes, steps, last_step, calls, purses }, &[]);
        }
        self.tell(&message)?;
        self.settle();
        Ok(())
    }
}
