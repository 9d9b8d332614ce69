//! A store that was restored from a backup.
//!
//! What happened after the backup is not known to it: attempts were begun, money was spent. So it is
//! closed at first: what was live is over, no lease and no money is granted, and no worker is given up.
//! Workers that live come back and deliver what they have; what they say of attempts and money from after
//! the backup is taken in. Then a person accepts what is still not known, and it opens.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_core::ids::{AttemptId, Epoch, RunId, WorkerId};
use longhaul_core::money::Money;
use longhaul_core::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::engine::Engine;
use crate::ledger::Ledger;
use crate::state::{Cancellation, State};

/// Bits of an epoch that count the leases of one incarnation.
const COUNTED: u32 = 24;

/// Bits above those that tell incarnations apart which began with copies of one backup.
const TOLD_APART: u32 = 16;

/// What is known of the backup that the store was restored from, and of what came after it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restored {
    /// The incarnation that began with it.
    pub incarnation: u64,
    /// When a coordinator opened it first.
    pub at: Timestamp,
    /// The runs that were open in the backup, with their money by then.
    pub runs: BTreeMap<RunId, Spent>,
    /// The workers that held something in the backup, with their nodes.
    pub workers: BTreeMap<WorkerId, String>,
    /// Attempts that were begun after the backup and heard of.
    #[serde(default)]
    pub after: BTreeSet<AttemptId>,
    /// Who accepted it; nobody yet if absent.
    #[serde(default)]
    pub accepted: Option<Cancellation>,
}

/// What a run had spent, judging included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    /// What calls had cost.
    pub settled: Money,
    /// What attempts had been granted and not spent.
    pub escrow: Money,
}

impl Spent {
    /// As a ledger has it.
    #[must_use]
    pub fn of(ledger: &Ledger) -> Self {
        let (run, judge) = (&ledger.run, &ledger.judge);
        Self { settled: run.settled.saturating_add(judge.settled), escrow: run.escrow.saturating_add(judge.escrow) }
    }
}

impl State {
    /// Whether the store was restored from a backup, and nobody has accepted that yet.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.restored.as_ref().is_some_and(|restored| restored.accepted.is_none())
    }
}

impl Engine {
    /// What a run has spent by now.
    #[must_use]
    pub fn spent(&self, run: RunId) -> Spent {
        self.state.ledgers.get(&run).map(Spent::of).unwrap_or_default()
    }
}

/// An epoch above all that the lost store may have given out, and apart from those of another store
/// that was restored from the same backup.
pub(crate) const fn epoch_of(incarnation: u64, last: Epoch) -> Epoch {
    let generation = (last.0 >> (COUNTED + TOLD_APART)) + 1;
    let apart = incarnation & ((1 << TOLD_APART) - 1);
    Epoch((generation << (COUNTED + TOLD_APART)) | (apart << COUNTED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_of_an_incarnation_are_above_those_before_and_apart_from_those_beside_it() {
        let (one, other) = (epoch_of(0xab_cdef, Epoch(7)), epoch_of(0xab_cdee, Epoch(7)));
        assert!(one > Epoch(1 << 39) && other > Epoch(1 << 39) && one != other);
        assert!(epoch_of(1, one) > Epoch(one.0 + 1_000_000));
    }
}
