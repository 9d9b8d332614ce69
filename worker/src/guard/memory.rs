//! The memory guard: a sandbox that takes more than its env may is ended, as a fault of its
//! own, before the node runs out and the kernel picks a victim.
//!
//! What is measured is the proportional set size of the sandbox's processes, so shared pages
//! count once. The env's memory plus a headroom (the display and the helper are not the env's)
//! is the limit. It is looked at twice a second: what allocates faster than that can pass the
//! limit for a moment, and then the sandbox's raised `oom_score_adj` makes it the kernel's
//! first choice as well.

use std::time::Duration;

use tokio::time::MissedTickBehavior;

use crate::sandbox::Sandbox;

const INTERVAL: Duration = Duration::from_millis(500);

/// What the display, the window manager and the helper take, in MiB.
const HEADROOM_MIB: u64 = 256;

/// What one look at the memory says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryVerdict {
    /// Within what the env may take.
    Within,
    /// More than that.
    Over {
        /// What is allowed, in MiB.
        limit_mib: u64,
    },
}

/// Whether a use of memory is within an env's limit. An env that names no memory is not limited.
#[must_use]
pub const fn judge_memory(used_mib: u64, env_mib: u32) -> MemoryVerdict {
    let limit_mib = env_mib as u64 + HEADROOM_MIB;
    if env_mib == 0 || used_mib <= limit_mib { MemoryVerdict::Within } else { MemoryVerdict::Over { limit_mib } }
}

/// Watches until the limit is passed, and resolves with what happened; `seen` is told each use.
/// A look that fails is no proof of anything and is repeated.
pub async fn watch_memory(sandbox: &dyn Sandbox, env_mib: u32, seen: impl Fn(u64) + Send) -> String {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        match sandbox.memory_mib().await {
            Ok(used) => {
                seen(used);
                if let MemoryVerdict::Over { limit_mib } = judge_memory(used, env_mib) {
                    return format!("the sandbox used {used} MiB of memory, and {limit_mib} MiB are allowed");
                }
            }
            Err(error) => tracing::debug!(%error, "a sandbox's memory could not be looked at"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_the_envs_memory_and_a_headroom() {
        assert_eq!(judge_memory(1024 + 256, 1024), MemoryVerdict::Within);
        assert_eq!(judge_memory(1024 + 257, 1024), MemoryVerdict::Over { limit_mib: 1280 });
        assert_eq!(judge_memory(u64::MAX, 0), MemoryVerdict::Within);
    }
}
