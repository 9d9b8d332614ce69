//! What the gateway needs of its surroundings: money, a journal, secrets, a way out.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use longhaul_core::call::{CallRecord, Purpose, PurseKind};
use longhaul_core::digest::Digest;
use longhaul_core::endpoint::Destination;
use longhaul_core::money::Money;
use longhaul_core::purse::PurseState;
use longhaul_core::time::Timestamp;
use tokio::io::{AsyncRead, AsyncWrite};

/// An answer that takes a while.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// No money will come for this call: in which scope, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{scope}")]
pub struct Refused {
    /// The scope whose budget is spent, with its figures.
    pub scope: String,
}

/// Where an attempt's money comes from: the escrow of the coordinator.
pub trait Bank: fmt::Debug + Send + Sync {
    /// Asks for more. Resolves when the sum of grants has grown beyond `state.granted`, with the
    /// new sum (it may still be less than `wanted`: money in flight is waited for by asking
    /// again), or when the call will never fit. While money in flight may come back, or there is
    /// no session, it waits. Dropping the future withdraws the question; a grant that came
    /// all the same is told by the next question at once.
    fn more(
        &self,
        purse: PurseKind,
        state: PurseState,
        wanted: Money,
        bound: Money,
    ) -> Later<'_, Result<Money, Refused>>;

    /// Tells what has become of a purse; at once, and delivered when there is a session.
    fn report(&self, purse: PurseKind, state: PurseState);

    /// Resolves when others wait for money, and what is free is to be given back.
    fn recalled(&self, purse: PurseKind) -> Later<'_, ()>;
}

/// A call that is about to be made: written down before it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The number of the call in its attempt.
    pub number: u32,
    /// The step that it is part of.
    pub step: u32,
    /// When.
    pub at: Timestamp,
    /// What it is for.
    pub purpose: Purpose,
    /// The endpoint.
    pub endpoint: String,
    /// The model as it is asked for.
    pub model: String,
    /// The most that it can cost.
    pub bound: Money,
    /// The call that this one tries again.
    pub retry_of: Option<u32>,
    /// The blob of the request's skeleton.
    pub request: Digest,
    /// The blobs that the skeleton names and that no earlier call of the attempt has named.
    pub parts: Vec<Digest>,
}

/// The time of day.
pub trait Clock: fmt::Debug + Send + Sync {
    /// Now.
    fn now(&self) -> Timestamp;
}

/// The system's own clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

/// Content with its digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    /// The digest of the bytes.
    pub digest: Digest,
    /// The bytes.
    pub bytes: Bytes,
}

/// What could not be written down: the call is not made, or its answer not handed out.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct JournalError {
    /// What failed, with the path.
    pub message: String,
    /// Whether the node's disk is at fault.
    pub disk: bool,
}

/// Why a call was not written down before it: it must not be made.
#[derive(Debug, thiserror::Error)]
pub enum ReserveError {
    /// No call may be made now: it is asked again when [`Journal::ready`] resolves.
    #[error("no call may be made now")]
    NotNow,
    /// It cannot be written.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Where calls are written down: the worker's spool. It survives the worker's death.
pub trait Journal: fmt::Debug + Send + Sync {
    /// Resolves when calls may be made: at once, unless the right to make them has run out and
    /// may be renewed. What is waited for here is not the attempt's time.
    fn ready(&self) -> Later<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Before the call is made, with the blobs of its request that are new to the attempt.
    ///
    /// # Errors
    ///
    /// It could not be written, or no call may be made now: it must not be made.
    fn reserved(&self, reservation: &Reservation, blobs: Vec<Blob>) -> Result<(), ReserveError>;

    /// After the call, before its answer is handed out, with the blobs of its response.
    ///
    /// # Errors
    ///
    /// It could not be written: the attempt cannot go on.
    fn settled(&self, record: &CallRecord, blobs: Vec<Blob>) -> Result<(), JournalError>;
}

/// A key of a vendor, which no log ever shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// A key.
    #[must_use]
    pub const fn new(value: String) -> Self {
        Self(value)
    }

    /// The key itself, for the header of a request to its vendor and for nothing else.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The keys that the coordinator has handed to this worker, in memory only.
pub trait Secrets: fmt::Debug + Send + Sync {
    /// The key of that name, if it is known now.
    fn get(&self, name: &str) -> Option<Secret>;
}

/// A connection that stands.
pub trait Pipe: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Pipe for T {}

/// The way to endpoints that this node does not reach by itself: somebody who does connects for it.
pub trait Relay: fmt::Debug + Send + Sync {
    /// A connection to there. TLS is spoken inside of it, so that whoever passes it on sees no key.
    fn connect(&self, to: Destination) -> Later<'static, std::io::Result<Box<dyn Pipe>>>;
}
