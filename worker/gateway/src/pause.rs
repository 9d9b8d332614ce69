//! How long an attempt stood still for no fault of its own.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Counts time in which calls wait and none is served.
#[derive(Debug, Default)]
struct State {
    waiting: u32,
    served: u32,
    total: Duration,
    since: Option<Instant>,
}

impl State {
    /// Changes the counts, and stops or starts the count of time accordingly.
    fn change(&mut self, now: Instant, waiting: i32, served: i32) {
        self.waiting = self.waiting.saturating_add_signed(waiting);
        self.served = self.served.saturating_add_signed(served);
        let stands = self.waiting > 0 && self.served == 0;
        match (stands, self.since) {
            (true, None) => self.since = Some(now),
            (false, Some(since)) => {
                self.total += now.saturating_duration_since(since);
                self.since = None;
            }
            _ => {}
        }
    }
}

/// The clock of an attempt's pauses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pauses(Arc<Mutex<State>>);

impl Pauses {
    fn change(&self, waiting: i32, served: i32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).change(Instant::now(), waiting, served);
    }

    /// How long it stood still, up to now.
    pub(crate) fn total(&self) -> Duration {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.total + state.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// A call begins: it is served until it says that it waits.
    pub(crate) fn begin(&self) -> Served {
        self.change(0, 1);
        Served(self.clone())
    }
}

/// A call that is served; it may wait in between.
#[derive(Debug)]
pub(crate) struct Served(Pauses);

impl Served {
    /// The call waits until the answer is dropped.
    pub(crate) fn wait(&self) -> Waits<'_> {
        self.0.change(1, -1);
        Waits(self)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.0.change(0, -1);
    }
}

/// A call that waits.
#[derive(Debug)]
pub(crate) struct Waits<'a>(&'a Served);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.0.change(-1, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn time_is_paused_only_while_all_calls_wait() {
        let pauses = Pauses::default();
        let second = Duration::from_secs(1);
        let one = pauses.begin();
        tokio::time::sleep(second).await;
        let waits = one.wait();
        tokio::time::sleep(second).await;
        assert_eq!(pauses.total(), second, "a wait that lasts counts");
        let two = pauses.begin();
        tokio::time::sleep(second).await;
        drop(two);
        tokio::time::sleep(second).await;
        drop(waits);
        tokio::time::sleep(second).await;
        drop(one);
        tokio::time::sleep(second).await;
        assert_eq!(pauses.total(), 2 * second);
    }
}
