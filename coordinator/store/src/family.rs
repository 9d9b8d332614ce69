//! The column families.

/// A column family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Family {
    /// The engine's events and snapshots.
    Journal,
    /// Runs.
    Runs,
    /// Episodes, and who has the lease of each.
    Episodes,
    /// Attempts, and the names of their logs.
    Attempts,
    /// Steps, and how far each attempt's are whole.
    Steps,
    /// Content-addressed bytes.
    Blobs,
    /// Settled model calls, and how far each attempt's are whole.
    Ledger,
    /// Layers.
    Layers,
    /// What the store knows of itself.
    Meta,
}

impl Family {
    /// Every family.
    pub(crate) const ALL: [Self; 9] = [
        Self::Journal,
        Self::Runs,
        Self::Episodes,
        Self::Attempts,
        Self::Steps,
        Self::Blobs,
        Self::Ledger,
        Self::Layers,
        Self::Meta,
    ];

    /// The name in RocksDB and in messages.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Journal => "journal",
            Self::Runs => "runs",
            Self::Episodes => "episodes",
            Self::Attempts => "attempts",
            Self::Steps => "steps",
            Self::Blobs => "blobs",
            Self::Ledger => "ledger",
            Self::Layers => "layers",
            Self::Meta => "meta",
        }
    }
}
