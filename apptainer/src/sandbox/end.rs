//! The end of what was started: by its tree, by its mark, by its session.

use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep};

use super::END_TIME;
use crate::identity::{self, ProcessIdentity};
use crate::scratch::{MARK, top_name};

/// Signals a container's process and all that descend from it; nobody, if its id is another one's now.
pub fn signal_tree(root: &ProcessIdentity, signal: Signal) {
    if !root.is_alive().unwrap_or(false) {
        return;
    }
    for pid in identity::tree(root.pid) {
        if let Ok(Some(process)) = ProcessIdentity::of(pid)
            && let Err(error) = process.signal(signal)
        {
            tracing::debug!(pid, %error, "a process was not signalled");
        }
    }
}

/// Every process that carries a sandbox's mark, or works in its top.
#[must_use]
pub fn survivors(mark: &str) -> Vec<ProcessIdentity> {
    let mut left = identity::with_variable(MARK, mark);
    left.extend(identity::with_mount(&top_name(mark)));
    left
}

/// Ends every process that carries a sandbox's mark or is of a session of its calls, its FUSE
/// processes above all. Those end by themselves when nothing uses their mount any more, and are given
/// time for that. Returns who is left.
pub(crate) async fn end_marked(mark: &str, leaders: &[ProcessIdentity]) -> Vec<i32> {
    let deadline = Instant::now() + END_TIME;
    let mut patience = 40;
    loop {
        let mut left = survivors(mark);
        left.extend(leaders.iter().flat_map(identity::of_session));
        if left.is_empty() {
            return Vec::new();
        }
        if Instant::now() >= deadline {
            return left.iter().map(|process| process.pid).collect();
        }
        if patience == 0 {
            for process in &left {
                signal_tree(process, Signal::SIGKILL);
            }
        } else {
            patience -= 1;
        }
        sleep(Duration::from_millis(25)).await;
    }
}

/// Ends a call that does not end by itself, with all that it has started.
pub(crate) async fn end_session(mark: &str, leader: &ProcessIdentity) {
    signal_tree(leader, Signal::SIGKILL);
    let left = end_marked(mark, std::slice::from_ref(leader)).await;
    if !left.is_empty() {
        tracing::warn!(?left, "processes of a call that was ended are left");
    }
}
