//! How far a job is.

use std::fmt;

/// A job's state. Slurm adds words of its own from version to version: an unknown one is
/// kept, and is neither an end nor a run.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum JobState {
    /// It waits.
    Pending,
    /// It has nodes, which are being made ready (powered up, booted).
    Configuring,
    /// It runs.
    Running,
    /// It has nodes and stands still.
    Suspended,
    /// It ends: its processes are told to, or cleared away.
    Completing,
    /// It is put back into the queue.
    Requeued,
    /// It was put back into the queue and is held there.
    RequeueHeld,
    /// It ended by itself, with success.
    Completed,
    /// It ended by itself, with an exit code or by a signal.
    Failed,
    /// Somebody ended it.
    Cancelled,
    /// It reached its time limit.
    Timeout,
    /// A job of higher rank took its place.
    Preempted,
    /// Its node was lost.
    NodeFail,
    /// Its node did not boot.
    BootFail,
    /// It could not end before its deadline.
    Deadline,
    /// It used more memory than it was given.
    OutOfMemory,
    /// A copy of it on another cluster of a federation took its place: this one says nothing of it.
    Revoked,
    /// What this version of Longhaul does not know.
    Other(String),
}

impl JobState {
    /// Reads Slurm's word for it.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        // `sacct` says who cancelled: "CANCELLED by 1001".
        match text.split(' ').next().unwrap_or_default() {
            "PENDING" => Self::Pending,
            "CONFIGURING" | "POWER_UP_NODE" => Self::Configuring,
            "RUNNING" | "RESIZING" | "SIGNALING" | "STAGE_OUT" => Self::Running,
            "SUSPENDED" | "STOPPED" => Self::Suspended,
            "COMPLETING" => Self::Completing,
            "REQUEUED" | "REQUEUE_FED" => Self::Requeued,
            "REQUEUE_HOLD" | "SPECIAL_EXIT" => Self::RequeueHeld,
            "COMPLETED" => Self::Completed,
            "FAILED" => Self::Failed,
            "CANCELLED" => Self::Cancelled,
            "TIMEOUT" => Self::Timeout,
            "PREEMPTED" => Self::Preempted,
            "NODE_FAIL" => Self::NodeFail,
            "BOOT_FAIL" => Self::BootFail,
            "DEADLINE" => Self::Deadline,
            "OUT_OF_MEMORY" => Self::OutOfMemory,
            "REVOKED" => Self::Revoked,
            _ => Self::Other(text.to_owned()),
        }
    }

    /// Whether it waits for nodes, however it came to.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        matches!(self, Self::Pending | Self::Requeued | Self::RequeueHeld)
    }

    /// Whether it has nodes.
    #[must_use]
    pub fn is_active(&self) -> bool {
        matches!(self, Self::Configuring | Self::Running | Self::Suspended | Self::Completing)
    }

    /// Whether this life of it is over. Its processes are gone then, but for those of a node
    /// that Slurm has lost sight of.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        matches!(
            self,
            Self::Completed
                | Self::Failed
                | Self::Cancelled
                | Self::Timeout
                | Self::Preempted
                | Self::NodeFail
                | Self::BootFail
                | Self::Deadline
                | Self::OutOfMemory
        )
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pending => "PENDING",
            Self::Configuring => "CONFIGURING",
            Self::Running => "RUNNING",
            Self::Suspended => "SUSPENDED",
            Self::Completing => "COMPLETING",
            Self::Requeued => "REQUEUED",
            Self::RequeueHeld => "REQUEUE_HOLD",
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
            Self::Cancelled => "CANCELLED",
            Self::Timeout => "TIMEOUT",
            Self::Preempted => "PREEMPTED",
            Self::NodeFail => "NODE_FAIL",
            Self::BootFail => "BOOT_FAIL",
            Self::Deadline => "DEADLINE",
            Self::OutOfMemory => "OUT_OF_MEMORY",
            Self::Revoked => "REVOKED",
            Self::Other(word) => word,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_reads_back_as_it_is_shown_and_is_in_one_class() {
        for word in [
            "PENDING",
            "CONFIGURING",
            "RUNNING",
            "SUSPENDED",
            "COMPLETING",
            "REQUEUED",
            "REQUEUE_HOLD",
            "COMPLETED",
            "FAILED",
            "CANCELLED",
            "TIMEOUT",
            "PREEMPTED",
            "NODE_FAIL",
            "BOOT_FAIL",
            "DEADLINE",
            "OUT_OF_MEMORY",
        ] {
            let state = JobState::parse(word);
            assert_eq!(state.to_string(), word);
            let classes = [state.is_waiting(), state.is_active(), state.is_ended()];
            assert_eq!(classes.iter().filter(|class| **class).count(), 1, "{word}");
        }
        assert_eq!(JobState::parse("CANCELLED by 1001"), JobState::Cancelled);
    }

    #[test]
    fn an_unknown_word_is_kept_and_is_in_no_class() {
        let state = JobState::parse("TELEPORTED now");
        assert_eq!(state, JobState::Other("TELEPORTED now".to_owned()));
        for state in [state, JobState::parse("REVOKED")] {
            assert!(!state.is_waiting() && !state.is_active() && !state.is_ended(), "{state}");
        }
    }
}
