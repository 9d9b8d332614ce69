//! Work on large bodies, where no other call waits for it.
//!
//! A request with ten screenshots is megabytes: reading it, bounding it and hashing its parts takes
//! milliseconds, in which the pieces of every stream on the same thread would stand still.

use std::panic::resume_unwind;

/// Bodies of at least so many bytes are worked on aside; for smaller ones the way there is longer
/// than the work.
const LARGE: usize = 128 << 10;

/// Does the work on a body of so many bytes.
pub(crate) async fn aside<T: Send + 'static>(bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> T {
    if bytes < LARGE {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The runtime is ending, and nothing of it is polled again.
            Err(_) => std::future::pending().await,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_what_is_large_is_done_on_another_thread() {
        let here = std::thread::current().id();
        assert_eq!(aside(LARGE - 1, || std::thread::current().id()).await, here);
        assert_ne!(aside(LARGE, || std::thread::current().id()).await, here);
    }
}
