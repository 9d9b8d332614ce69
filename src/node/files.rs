//! Open files: a worker has some for each of its sandboxes, and most systems let a program begin with
//! few, which it may raise by itself.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// No more than this is asked for: programs that close whatever they might have inherited, of which
/// sandboxes have some, take their time with millions.
const MOST: u64 = 65_536;

/// What a sandbox takes while it starts, its connections to models among it; then it is half of that.
const OF_A_SANDBOX: u64 = 24;

/// What a worker has beside its sandboxes.
const OWN: u64 = 128;

/// Lets this process have as many open files as the system allows, within reason.
pub(crate) fn raise() {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    let wanted = hard.min(MOST);
    // Raising it within the hard limit is allowed to everybody; where it is not, fewer have to do.
    if soft < wanted
        && let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard)
    {
        tracing::warn!(%error, soft, hard, "the limit of open files is as it was");
    }
}

/// How many attempts at once a worker takes that may take `slots`, with 0 for no such limit: no more than
/// this process can have files for.
pub(crate) fn bound(slots: u32) -> u32 {
    let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
    let bounded = within(slots, files);
    if bounded != slots {
        tracing::info!(files, bounded, "the limit of open files (`ulimit -Hn`) bounds the attempts at one time");
    }
    bounded
}

/// So many files are for so many attempts; for as many as anybody wants, where there are [`MOST`].
fn within(slots: u32, files: u64) -> u32 {
    let bears = u32::try_from(files.saturating_sub(OWN) / OF_A_SANDBOX).unwrap_or(u32::MAX).max(1);
    match slots {
        0 if files >= MOST => 0,
        0 => bears,
        slots => slots.min(bears),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_takes_no_more_attempts_than_it_has_files_for() {
        assert_eq!((within(0, 1024), within(16, 1024), within(200, 1024)), (37, 16, 37));
        assert_eq!((within(0, 300), within(0, 20)), (7, 1));
        assert_eq!((within(0, MOST), within(200, 1 << 30), within(0, u64::MAX)), (0, 200, 0));
    }

    #[test]
    fn as_many_files_as_may_be_are_asked_for() {
        raise();
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert!(soft >= hard.min(MOST), "{soft} of {hard}");
    }
}
