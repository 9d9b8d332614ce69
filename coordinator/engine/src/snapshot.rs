//! Snapshots: the whole durable state as one value, so that the journal before it can go.

use serde::{Deserialize, Serialize};

use crate::engine::Engine;
use crate::settings::Settings;
use crate::state::State;

/// The format of the state and of events. Bumped when an old program would misread them.
///
/// 2: pools, submissions and allocations. A program of format 1 would drop them from a
/// snapshot in silence, and ask for everything once more.
/// 3: ledgers. A program of format 2 would spend every budget once more.
/// 4: attempts that resume, and episodes that are done again. A program of format 3 would start
/// them from the beginning, and count what they had used up before.
/// 5: stores that were restored from a backup. A program of format 4 would spend at once.
pub const FORMAT: u32 = 5;

/// The oldest format that is read: what came later has a default.
const OLDEST: u32 = 1;

/// The durable state at one point of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The format.
    pub format: u32,
    /// The state.
    pub state: State,
}

/// A snapshot that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// It was written by another version.
    #[error("the snapshot has format {found}, this program reads formats {OLDEST} to {FORMAT}")]
    UnknownFormat {
        /// The format that it has.
        found: u32,
    },
}

impl Engine {
    /// The durable state, to be stored in place of the journal up to here.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { format: FORMAT, state: self.state.clone() }
    }

    /// An engine that goes on where a snapshot was taken. Apply what the journal has
    /// after it, then step with [`Command::CoordinatorRestarted`](crate::Command).
    ///
    /// # Errors
    ///
    /// The snapshot has a format that this program does not know.
    pub fn from_snapshot(settings: Settings, snapshot: Snapshot) -> Result<Self, SnapshotError> {
        if !(OLDEST..=FORMAT).contains(&snapshot.format) {
            return Err(SnapshotError::UnknownFormat { found: snapshot.format });
        }
        Ok(Self::with_state(settings, snapshot.state))
    }
}
