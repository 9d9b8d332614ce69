//! Whether there is room to record more ahead of the coordinator: what holds an agent back
//! before a disk is full.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::guard::Node;
use crate::session::Link;

/// How often the disk is looked at while it is waited for.
const LOOK: Duration = Duration::from_secs(1);

/// With a session, what waits is on its way, however slowly; a log, of which nobody says that it has
/// arrived, waits for the step after it. So an agent is slowed down then, and never stopped.
const SLOWED_DOWN: Duration = Duration::from_secs(30);

/// How many bytes wait, over all attempts of a worker.
#[derive(Clone, Debug)]
pub struct Meter(Arc<watch::Sender<u64>>);

impl Default for Meter {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }
}

impl Meter {
    /// The bytes that wait now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        *self.0.borrow()
    }

    pub(super) fn add(&self, bytes: u64) {
        self.0.send_modify(|now| *now = now.saturating_add(bytes));
    }

    pub(super) fn take(&self, bytes: u64) {
        // Saturating: an estimate must never wrap to "full for ever".
        self.0.send_modify(|now| *now = now.saturating_sub(bytes));
    }
}

/// The room that attempts of a worker have for what waits.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    meter: Meter,
    limit: u64,
    node: Node,
    link: Link,
}

impl Room {
    pub(crate) const fn new(meter: Meter, limit: u64, node: Node, link: Link) -> Self {
        Self { meter, limit, node, link }
    }

    /// Whether more may be recorded now: less waits than may, and the disk is not about to be
    /// full. With a session, what is recorded leaves the disk again, and the disk's own guard is
    /// enough.
    pub(crate) fn is_there(&self) -> bool {
        let connected = self.link.borrow().is_some();
        self.meter.bytes() < self.limit && (connected || self.node.disk_trouble().is_none())
    }

    /// Resolves when there is room, or when there was a session and none for as long as an agent may be
    /// slowed down.
    pub(crate) async fn freed(&self) {
        let (mut bytes, mut link) = (self.meter.0.subscribe(), self.link.clone());
        let mut since = Instant::now();
        loop {
            bytes.borrow_and_update();
            let connected = link.borrow_and_update().is_some();
            if self.is_there() || (connected && since.elapsed() >= SLOWED_DOWN) {
                return;
            }
            if !connected {
                since = Instant::now();
            }
            tokio::select! {
                // The meter's sender is ours; the session's outlives every attempt, or ends it.
                _ = bytes.changed() => {}
                Ok(()) = link.changed() => {}
                // Nobody tells of the disk.
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NodeLimits;

    fn room(floor_mib: u64) -> (Room, watch::Sender<Option<crate::session::Uplink>>, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let limits = NodeLimits {
            cpu_millis: Some(1000),
            memory_mib: Some(64),
            disk_floor_mib: floor_mib,
            ..NodeLimits::default()
        };
        let node = Node::look(&limits, None, folder.path()).unwrap();
        let (sender, link) = watch::channel(None);
        (Room::new(Meter::default(), 100, node, link), sender, folder)
    }

    #[tokio::test]
    async fn room_is_waited_for_until_something_was_delivered() {
        let (room, _link, _folder) = room(0);
        room.freed().await;
        room.meter.add(100);
        assert!(!room.is_there());
        let waits = tokio::spawn({
            let room = room.clone();
            async move { room.freed().await }
        });
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        room.meter.take(1);
        waits.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn with_a_session_an_agent_is_slowed_down_and_never_stopped() {
        let (room, link, _folder) = room(0);
        room.meter.add(100);
        let waits = tokio::time::timeout(SLOWED_DOWN * 100, room.freed());
        assert!(waits.await.is_err(), "what waits goes nowhere");
        let (bulk, _held) = tokio::sync::mpsc::channel(1);
        link.send_replace(Some(crate::session::Uplink { generation: 1, bulk }));
        tokio::time::timeout(SLOWED_DOWN * 2, room.freed()).await.unwrap();
    }

    #[tokio::test]
    async fn on_a_disk_that_is_nearly_full_nothing_runs_ahead() {
        let (room, link, _folder) = room(u64::MAX);
        assert!(!room.is_there(), "what is recorded would stay there");
        let (bulk, _held) = tokio::sync::mpsc::channel(1);
        link.send_replace(Some(crate::session::Uplink { generation: 1, bulk }));
        assert!(room.is_there(), "what is recorded leaves it again");
    }
}
