//! The name of a lease: an attempt together with its fencing number.

use std::fmt;

use longhaul_core::ids::{AttemptId, Epoch};
use serde::{Deserialize, Serialize};

/// An attempt with the epoch of its lease. Whatever a worker says about an attempt it
/// says under one of these; it counts only if both parts are current.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LeaseRef {
    /// The attempt.
    pub attempt: AttemptId,
    /// The fencing number that was given out with it.
    pub epoch: Epoch,
}

impl fmt::Display for LeaseRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (epoch {})", self.attempt, self.epoch)
    }
}
