//! Before a worker is ready: it says hello all the same, so that nobody takes its silence for
//! its death, and takes no leases.

use std::time::Duration;

use longhaul_proto::v1;
use longhaul_proto::v1::from_worker::Message as Up;
use longhaul_proto::v1::to_worker::Message as Down;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::dial::{self, LinkEvent};
use super::{GOODBYE_LIMIT, HEARTBEAT, Introduction, REDIAL, transport, up};
use crate::backoff::Backoff;
use crate::config::{Endpoint, WorkerConfig};
use crate::error::WorkerError;
use crate::guard::Node;
use crate::shutdown::{Shutdown, Urgency};

/// What became of the time before a worker is ready.
#[derive(Debug)]
pub enum Prepared<T> {
    /// It is ready.
    Ready(T),
    /// It was told to go before it was, and has said goodbye.
    Dismissed,
}

/// Gets ready, while the coordinator is told that it does.
///
/// # Errors
///
/// The coordinator refuses this worker, or the endpoint is none.
pub async fn prepare<T>(
    config: &WorkerConfig,
    endpoint: &Endpoint,
    mut shutdown: Shutdown,
    what: &str,
    preparation: impl Future<Output = T>,
) -> Result<Prepared<T>, WorkerError> {
    let capacity = Node::look(&config.limits, config.gpus.as_ref(), &config.scratch)?.capacity();
    let hello = Introduction { config, capacity, live: Vec::new(), unfit: what.to_owned(), preparing: true }.hello();
    let mut session = Session::new(transport(endpoint)?, hello);
    tokio::pin!(preparation);
    loop {
        tokio::select! {
            value = &mut preparation => {
                // The next hello is of the same worker, and takes this session's place.
                session.hang_up();
                return Ok(Prepared::Ready(value));
            }
            () = shutdown.reached(Urgency::Orderly) => {
                session.say_goodbye("told to stop before it was ready").await;
                return Ok(Prepared::Dismissed);
            }
            event = session.event() => match event {
                Event::Dismissed(reason) => {
                    session.say_goodbye(&reason).await;
                    return Ok(Prepared::Dismissed);
                }
                Event::Refused(reason) => {
                    return Err(WorkerError::Refused { endpoint: endpoint.to_string(), reason });
                }
                Event::Nothing => {}
            },
        }
    }
}

enum Event {
    Nothing,
    Dismissed(String),
    Refused(String),
}

/// One session after the other, each of which says only that the worker is there.
struct Session {
    transport: super::Transport,
    hello: v1::Hello,
    generation: u64,
    events: mpsc::Sender<(u64, LinkEvent)>,
    queue: mpsc::Receiver<(u64, LinkEvent)>,
    task: Option<JoinHandle<()>>,
    /// The way up, with all that keeps the session open.
    open: Option<Box<dial::Welcomed>>,
    wake_at: Instant,
    redial_waits: Backoff,
    heartbeat: Duration,
    sequence: u64,
}

impl Session {
    fn new(transport: super::Transport, hello: v1::Hello) -> Self {
        let (events, queue) = mpsc::channel(64);
        Self {
            transport,
            hello,
            generation: 0,
            events,
            queue,
            task: None,
            open: None,
            wake_at: Instant::now(),
            redial_waits: REDIAL,
            heartbeat: HEARTBEAT,
            sequence: 0,
        }
    }

    /// What happens next. Nothing is lost if it is dropped while it waits.
    async fn event(&mut self) -> Event {
        tokio::select! {
            Some((generation, event)) = self.queue.recv() => {
                if generation == self.generation { self.take(event) } else { Event::Nothing }
            }
            () = sleep_until(self.wake_at) => {
                match &self.open {
                    Some(open) => {
                        self.sequence += 1;
                        let unfit = self.hello.unfit.clone();
                        let beat = v1::Heartbeat { sequence: self.sequence, unfit, ..v1::Heartbeat::default() };
                        // Full only if the session hangs, which its keepalive notices.
                        let _ = open.urgent.try_send(up(Up::Heartbeat(beat)));
                        self.wake_at = Instant::now() + self.heartbeat;
                    }
                    None => self.dial(),
                }
                Event::Nothing
            }
        }
    }

    fn dial(&mut self) {
        self.hang_up();
        self.generation += 1;
        let dialling = dial::run(self.transport.clone(), self.hello.clone(), self.generation, self.events.clone());
        self.task = Some(tokio::spawn(dialling));
        // It ends by itself, with a word, long before.
        self.wake_at = Instant::now() + Duration::from_secs(120);
    }

    fn take(&mut self, event: LinkEvent) -> Event {
        match event {
            LinkEvent::Welcomed(welcomed) => {
                tracing::info!(
                    reason = self.hello.unfit,
                    "the coordinator knows of this worker, which is not ready yet"
                );
                if welcomed.welcome.heartbeat_millis > 0 {
                    self.heartbeat = Duration::from_millis(welcomed.welcome.heartbeat_millis);
                }
                self.redial_waits.reset();
                self.wake_at = Instant::now() + self.heartbeat;
                self.open = Some(welcomed);
                Event::Nothing
            }
            LinkEvent::Message(message) => match *message {
                Down::Drain(drain) => Event::Dismissed(drain.reason),
                // Nothing else concerns a worker without leases.
                _ => Event::Nothing,
            },
            LinkEvent::Lost(reason) => {
                tracing::warn!(reason, "no session with the coordinator");
                self.hang_up();
                self.wake_at = Instant::now() + self.redial_waits.next_wait();
                Event::Nothing
            }
            LinkEvent::Refused(reason) => Event::Refused(reason),
        }
    }

    fn hang_up(&mut self) {
        self.open = None;
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }

    async fn say_goodbye(&mut self, reason: &str) {
        if let Some(open) = self.open.take() {
            let leaving = v1::Leaving { reason: reason.to_owned() };
            let _ = open.urgent.try_send(up(Up::Leaving(leaving)));
            drop(open);
            if let Some(task) = self.task.take() {
                // It ends when the coordinator, which has heard the goodbye, closes the session.
                let _ = tokio::time::timeout(GOODBYE_LIMIT, task).await;
            }
        }
        self.hang_up();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.hang_up();
    }
}
