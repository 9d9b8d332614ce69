//! Waiting longer after each failure, with chance in it so that many workers that lost one
//! coordinator do not all come back at once.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const FIRST: Duration = Duration::from_millis(200);
const LAST: Duration = Duration::from_secs(15);

/// The next wait.
#[derive(Debug)]
pub(crate) struct Backoff {
    first: Duration,
    last: Duration,
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::between(FIRST, LAST)
    }
}

impl Backoff {
    /// Waits of `first` up to `last`.
    pub(crate) const fn between(first: Duration, last: Duration) -> Self {
        Self { first, last, next: first }
    }

    /// The wait after one more failure: `chance` of 0 to 1 picks between half and the whole of it.
    fn step(&mut self, chance: f64) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(self.last);
        whole.mul_f64(0.5 + chance.clamp(0.0, 1.0) / 2.0)
    }

    /// How long to wait after one more failure.
    pub(crate) fn next_wait(&mut self) -> Duration {
        self.step(SmallRng::from_os_rng().random())
    }

    /// Waits.
    pub(crate) async fn wait(&mut self) {
        tokio::time::sleep(self.next_wait()).await;
    }

    /// The next failure is a first one again.
    pub(crate) const fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_bound_and_start_over() {
        let mut backoff = Backoff::default();
        let waits: Vec<Duration> = (0..12).map(|_| backoff.step(1.0)).collect();
        assert_eq!(waits[0], FIRST);
        assert!(waits.windows(2).all(|pair| pair[0] <= pair[1]));
        assert_eq!(waits[11], LAST);
        assert_eq!(backoff.step(0.0), LAST / 2);
        backoff.reset();
        assert_eq!(backoff.step(1.0), FIRST);
    }
}
