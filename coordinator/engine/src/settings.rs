//! What a person may set, and the engine takes as given.

use longhaul_core::time::Millis;

/// The engine's settings. They are no part of its state: a journal may be replayed
/// under other settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How long a lease holds after its last renewal, on the worker's own clock.
    pub lease_ttl: Millis,
    /// How much longer the coordinator waits before it gives the episode to another
    /// worker. Also the largest jump of its own clock that it takes for passing time:
    /// beyond that, it was away itself, and every lease gets its full time again. So it has
    /// to be well above the time for which the shell may be kept from running.
    pub skew: Millis,
    /// How many workers an episode may take down with it before it is set aside.
    pub max_lost_workers: u32,
    /// The longest wait between two attempts of an episode.
    pub max_backoff: Millis,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            lease_ttl: Millis::from_secs(60),
            skew: Millis::from_secs(15),
            max_lost_workers: 3,
            max_backoff: Millis::from_secs(600),
        }
    }
}

impl Settings {
    /// How long after its last renewal a lease is over for the coordinator. Never no time
    /// at all: a lease that is over when it is granted would be granted for ever.
    #[must_use]
    pub const fn grace(&self) -> Millis {
        match self.lease_ttl.0.saturating_add(self.skew.0) {
            0 => Millis(1),
            sum => Millis(sum),
        }
    }
}
