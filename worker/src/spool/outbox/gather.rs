//! What goes into one delivery.

use super::{Outgoing, State};
use crate::spool::{Record, SpoolError};

/// The most records of one delivery.
const AT_ONCE: usize = 16;

/// The most bytes of blobs of one delivery; a single larger one goes alone.
const BYTES_AT_ONCE: usize = 16 * 1024 * 1024;

impl State {
    /// The next records with their blobs; or the first of them whose blob cannot be had, and why.
    pub(super) fn gather(&self) -> Result<Outgoing, (usize, SpoolError)> {
        let mut outgoing = Outgoing { from: self.cursor, ..Outgoing::default() };
        let mut bytes = 0;
        for (at, entry) in self.entries.iter().enumerate().skip(self.cursor).take(AT_ONCE) {
            if bytes >= BYTES_AT_ONCE {
                break;
            }
            for digest in entry.record.blobs() {
                match self.spool.blob(digest) {
                    Ok(Some(blob)) => {
                        bytes += blob.len();
                        outgoing.blobs.insert(*digest, blob);
                    }
                    Ok(None) => {}
                    // What stands before it is sent first.
                    Err(_) if !outgoing.records.is_empty() => return Ok(outgoing),
                    Err(error) => return Err((at, error)),
                }
            }
            outgoing.records.push(entry.record.clone());
            if !entry.acknowledged && matches!(entry.record, Record::Resumed { .. }) {
                break;
            }
        }
        Ok(outgoing)
    }
}
