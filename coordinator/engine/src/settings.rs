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
    /// How many attempts of an episode may end on a full disk before it is set aside.
    pub max_full_disks: u32,
    /// For how long a node gets no lease after an attempt ended there on a full disk.
    pub disk_rest: Millis,
    /// How many attempts of an episode in a row may fail to get where they were to go on from,
    /// before it starts again or, where it may not, is set aside.
    pub max_replays: u32,
    /// The longest wait between two attempts of an episode.
    pub max_backoff: Millis,
    /// A worker whose allocation ends sooner than this gets no lease any more.
    pub min_remaining: Millis,
    /// How many attempts may be starting on one node at once.
    pub max_starting: u32,
    /// After this long an attempt does not count as starting any more, whatever its
    /// worker says about it.
    pub start_limit: Millis,
    /// How long an allocation may run without a word from its worker before it is ended.
    pub hello_limit: Millis,
    /// How long a worker may get itself ready after its hello before its allocation is ended.
    pub prepare_limit: Millis,
    /// How long an allocation has to be missing from the queue, with no worker that speaks
    /// from it, before it counts as over.
    pub vanish_grace: Millis,
    /// How long the queue has to be without a submission of unknown fate before it is
    /// submitted again: a controller may still be busy with the first request.
    pub doubt_grace: Millis,
    /// An allocation that was to be ended and is still there is told so again after this.
    pub cancel_again: Millis,
    /// The first wait after a submission that was refused or failed; doubled each time.
    pub submit_backoff: Millis,
    /// The longest such wait.
    pub max_submit_backoff: Millis,
    /// For how long allocations that are over are remembered, so that one which turns up
    /// again is known.
    pub remember: Millis,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            lease_ttl: Millis::from_secs(40),
            skew: Millis::from_secs(10),
            max_lost_workers: 3,
            max_full_disks: 6,
            disk_rest: Millis::from_secs(120),
            max_replays: 2,
            max_backoff: Millis::from_secs(600),
            min_remaining: Millis::from_secs(120),
            max_starting: 16,
            start_limit: Millis::from_secs(120),
            hello_limit: Millis::from_secs(300),
            prepare_limit: Millis::from_secs(1800),
            vanish_grace: Millis::from_secs(60),
            doubt_grace: Millis::from_secs(60),
            cancel_again: Millis::from_secs(60),
            submit_backoff: Millis::from_secs(15),
            max_submit_backoff: Millis::from_secs(900),
            remember: Millis::from_secs(3600),
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

    /// The wait before another submission after `times` in a row that came to nothing.
    pub(crate) fn submit_wait(&self, times: u32) -> Millis {
        let factor = 1_u64.checked_shl(times.saturating_sub(1)).unwrap_or(u64::MAX);
        Millis(self.submit_backoff.0.saturating_mul(factor)).min(self.max_submit_backoff)
    }
}
