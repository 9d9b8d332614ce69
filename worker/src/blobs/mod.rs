//! Blobs: content-addressed bytes, fetched from and put to the coordinator, and the
//! folders that are made of them.

mod cache;
mod client;
mod materialise;

use std::io;
use std::path::PathBuf;

use longhaul_core::digest::Digest;

pub use cache::{BlobCache, HeldTree};
pub use client::BlobClient;
pub use materialise::{check_entry, link_view};

/// The largest blob that is fetched or put: plans and trees are the largest there are.
pub const MAX_BLOB: u64 = 256 * 1024 * 1024;

/// A failure with blobs.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// A file of the cache.
    #[error("cannot {what} {}", path.display())]
    File {
        /// What was to be done.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The coordinator has no such blob.
    #[error("the coordinator has no blob {digest}")]
    Missing {
        /// Its digest.
        digest: Digest,
    },
    /// What came is not what was asked for.
    #[error("what came as blob {digest} is something else")]
    Corrupt {
        /// The digest asked for.
        digest: Digest,
    },
    /// It is larger than any blob may be.
    #[error("blob {digest} is larger than {MAX_BLOB} bytes")]
    TooLarge {
        /// Its digest.
        digest: Digest,
    },
    /// A tree, plan or script that is not one.
    #[error("blob {digest} is not {what}: {reason}")]
    Unreadable {
        /// Its digest.
        digest: Digest,
        /// What it should be.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A tree with an entry that must not be made.
    #[error("the tree {digest} holds `{path}`, which must not be made: {reason}")]
    Hostile {
        /// The tree.
        digest: Digest,
        /// The entry's path, escaped.
        path: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The coordinator cannot be asked now.
    #[error("the coordinator did not answer about blobs: {message}")]
    Unreachable {
        /// What the transport said.
        message: String,
    },
    /// The work was given up half-way.
    #[error("the work was given up")]
    GivenUp,
}

impl BlobError {
    /// For `map_err` on file operations.
    pub(crate) fn file(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { what, path, source }
    }

    /// Whether it is nowhere any more.
    pub(crate) const fn is_missing(&self) -> bool {
        matches!(self, Self::Missing { .. })
    }

    /// Whether it may go well later without anything being done.
    #[must_use]
    pub const fn is_passing(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }
}
