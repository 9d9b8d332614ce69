//! How a worker is told to stop: first in order, then now.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// How urgent it is to stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Not at all.
    #[default]
    None,
    /// Leases are given back and what was recorded is delivered, within the grace.
    Orderly,
    /// Everything is ended at once.
    Now,
}

#[derive(Clone, Copy, Debug, Default)]
struct Told {
    urgency: Urgency,
    at: Option<Instant>,
}

/// Heard by the worker.
#[derive(Clone, Debug)]
pub struct Shutdown(watch::Receiver<Told>);

/// Tells a worker to stop.
#[derive(Clone, Debug)]
pub struct ShutdownTrigger(Arc<watch::Sender<Told>>);

impl ShutdownTrigger {
    /// Once is in order; once more is now.
    pub fn signal(&self) {
        self.0.send_modify(|told| {
            told.urgency = if told.urgency == Urgency::None { Urgency::Orderly } else { Urgency::Now };
            told.at.get_or_insert_with(Instant::now);
        });
    }
}

impl Shutdown {
    /// A pair of who tells and who hears.
    #[must_use]
    pub fn new() -> (ShutdownTrigger, Self) {
        let (sender, receiver) = watch::channel(Told::default());
        (ShutdownTrigger(Arc::new(sender)), Self(receiver))
    }

    /// Told by TERM and INT: the first in order, the second now.
    ///
    /// # Errors
    ///
    /// The handlers cannot be installed.
    pub fn on_signals() -> io::Result<Self> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let (trigger, shutdown) = Self::new();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                trigger.signal();
            }
        });
        Ok(shutdown)
    }

    /// How urgent it is now.
    #[must_use]
    pub fn urgency(&self) -> Urgency {
        self.0.borrow().urgency
    }

    /// Resolves when it is at least this urgent; never, if nobody can tell any more.
    pub async fn reached(&mut self, urgency: Urgency) {
        if self.0.wait_for(|told| told.urgency >= urgency).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Whether the stop was told, or is told within `wait`. A batch system signals every process
    /// of a job at once, so a sandbox may be seen to die just before the signal is heard: what
    /// happened then is no fault of the sandbox.
    pub async fn told_within(&self, wait: Duration) -> bool {
        let mut this = self.clone();
        tokio::time::timeout(wait, this.reached(Urgency::Orderly)).await.is_ok()
    }
}
