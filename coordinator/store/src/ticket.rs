//! Tickets: answers of the writer thread, to be awaited or waited for.
//!
//! A ticket is a future of the standard library, so that the store needs no runtime and
//! any runtime can await it; code without one calls [`Ticket::wait`].

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::error::WriteError;

enum Slot<T, E> {
    Waiting(Option<Waker>),
    Done(Result<T, E>),
    Taken,
}

struct Shared<T, E> {
    slot: Mutex<Slot<T, E>>,
    done: Condvar,
}

impl<T, E> Shared<T, E> {
    /// A thread that panicked while it held the lock has left a whole slot behind: every
    /// critical section is one assignment.
    fn lock(&self) -> MutexGuard<'_, Slot<T, E>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The answer to a write, there once the write is durable or refused. A ticket that is
/// dropped does not undo its write.
#[must_use = "a write is durable only once its ticket says so"]
pub struct Ticket<T, E>(Arc<Shared<T, E>>);

/// The writer's end of a ticket.
pub(crate) struct Completer<T, E: From<WriteError>>(Option<Arc<Shared<T, E>>>);

/// A ticket and its completer.
pub(crate) fn ticket<T, E: From<WriteError>>() -> (Completer<T, E>, Ticket<T, E>) {
    let shared = Arc::new(Shared { slot: Mutex::new(Slot::Waiting(None)), done: Condvar::new() });
    (Completer(Some(Arc::clone(&shared))), Ticket(shared))
}

/// A ticket that is answered already.
pub(crate) fn answered<T, E>(answer: Result<T, E>) -> Ticket<T, E> {
    Ticket(Arc::new(Shared { slot: Mutex::new(Slot::Done(answer)), done: Condvar::new() }))
}

impl<T, E> Ticket<T, E> {
    /// Blocks until the answer is there. Not for async code: await the ticket there.
    ///
    /// # Errors
    ///
    /// The write was refused or failed.
    pub fn wait(self) -> Result<T, E> {
        let mut slot = self.0.lock();
        loop {
            match std::mem::replace(&mut *slot, Slot::Taken) {
                Slot::Done(answer) => return answer,
                waiting @ Slot::Waiting(_) => {
                    *slot = waiting;
                    slot = self.0.done.wait(slot).unwrap_or_else(PoisonError::into_inner);
                }
                Slot::Taken => unreachable!("the answer is taken by value, once"),
            }
        }
    }
}

impl<T, E> Future for Ticket<T, E> {
    type Output = Result<T, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = self.0.lock();
        match std::mem::replace(&mut *slot, Slot::Taken) {
            Slot::Done(answer) => Poll::Ready(answer),
            Slot::Waiting(_) => {
                *slot = Slot::Waiting(Some(context.waker().clone()));
                Poll::Pending
            }
            Slot::Taken => unreachable!("a future is not polled after it was ready"),
        }
    }
}

impl<T, E> std::fmt::Debug for Ticket<T, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = match &*self.0.lock() {
            Slot::Waiting(_) => "waiting",
            Slot::Done(_) => "done",
            Slot::Taken => "taken",
        };
        f.debug_tuple("Ticket").field(&state).finish()
    }
}

impl<T, E: From<WriteError>> Completer<T, E> {
    /// Gives the answer and wakes who waits for it.
    pub(crate) fn complete(mut self, answer: Result<T, E>) {
        if let Some(shared) = self.0.take() {
            give(&shared, answer);
        }
    }
}

/// A writer that goes away leaves nobody waiting.
impl<T, E: From<WriteError>> Drop for Completer<T, E> {
    fn drop(&mut self) {
        if let Some(shared) = self.0.take() {
            give(&shared, Err(WriteError::Closed.into()));
        }
    }
}

fn give<T, E>(shared: &Shared<T, E>, answer: Result<T, E>) {
    let before = std::mem::replace(&mut *shared.lock(), Slot::Done(answer));
    shared.done.notify_all();
    // The waker runs code of the runtime: outside the lock.
    if let Slot::Waiting(Some(waker)) = before {
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_answered_across_threads_and_when_the_writer_goes_away() {
        let (completer, first) = ticket::<u32, WriteError>();
        let thread = std::thread::spawn(move || first.wait());
        completer.complete(Ok(7));
        assert_eq!(thread.join().unwrap(), Ok(7));

        let (completer, second) = ticket::<u32, WriteError>();
        drop(completer);
        assert_eq!(second.wait(), Err(WriteError::Closed));
    }

    #[test]
    fn a_polled_ticket_wakes_its_task() {
        struct Flag(std::sync::atomic::AtomicBool);
        impl std::task::Wake for Flag {
            fn wake(self: Arc<Self>) {
                self.0.store(true, std::sync::atomic::Ordering::SeqCst);
            }
        }
        let flag = Arc::new(Flag(std::sync::atomic::AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&flag));
        let mut context = Context::from_waker(&waker);
        let (completer, mut ticket) = ticket::<u32, WriteError>();
        assert!(Pin::new(&mut ticket).poll(&mut context).is_pending());
        completer.complete(Ok(1));
        assert!(flag.0.load(std::sync::atomic::Ordering::SeqCst), "the task was not woken");
        assert_eq!(Pin::new(&mut ticket).poll(&mut context), Poll::Ready(Ok(1)));
    }
}
