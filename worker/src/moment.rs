//! The worker's clocks.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use longhaul_core::time::{Millis, Timestamp};
use nix::time::{ClockId, clock_gettime};

use crate::lease::Moment;

/// Where the fallback clock starts.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The time since the node booted, suspended time included: a node that slept must not
/// believe that its leases still hold.
pub(crate) fn now() -> Moment {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or_else(|_| START.elapsed(), Moment::from)
}

/// The wall clock, for people.
pub(crate) fn wall() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// How long ago `earlier` was.
pub(crate) fn since(earlier: Moment) -> Millis {
    millis(now().saturating_sub(earlier))
}

/// A length as whole milliseconds.
pub(crate) fn millis(length: Duration) -> Millis {
    Millis(u64::try_from(length.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time since the boot as the kernel writes it, in hundredths of a second.
    fn uptime() -> Duration {
        let text = std::fs::read_to_string("/proc/uptime").unwrap();
        Duration::from_secs_f64(text.split(' ').next().unwrap().parse().unwrap())
    }

    #[test]
    fn moments_are_counted_from_the_boot_which_no_clock_that_is_set_moves() {
        const HUNDREDTH: Duration = Duration::from_millis(10);
        let (before, now, after) = (uptime(), now(), uptime());
        assert!(before <= now && now <= after + 2 * HUNDREDTH, "{before:?} {now:?} {after:?}");
    }
}
