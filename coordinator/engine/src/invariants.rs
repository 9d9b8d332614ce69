//! What must be true of the state after every batch, by name.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use longhaul_core::ids::{AttemptId, EpisodeId, Epoch, RunId};

use crate::allocation::{Allocation, AllocationState};
use crate::engine::Engine;
use crate::lease::LeaseRef;
use crate::ledger::{AccountKey, Charge, Ledger};
use crate::state::{Episode, EpisodeState, LayerState, Lease, Run};

/// The invariants of the state.
///
/// Those that speak of more than one state (an episode is settled once, a stale epoch
/// changes nothing, a replay gives the same state, everything settles in the end) are
/// checked where there is a history: in the tests of the simulated world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Invariant {
    /// An episode has at most one live attempt, and its worker knows of it.
    OneLiveAttempt,
    /// Every lease belongs to a known worker and to an active episode.
    LeaseHasWorker,
    /// No epoch is given out twice, and later attempts have larger ones.
    EpochsIncrease,
    /// What is reserved on a worker never exceeds what it has.
    NotOversubscribed,
    /// A run is settled exactly when all its episodes are.
    RunSettledWithItsEpisodes,
    /// Nothing of a cancelled run waits to be started.
    CancelledRunStartsNothing,
    /// A layer is built by one known worker, which does not wait for it itself.
    OneBuilder,
    /// Exactly the live leases and known workers can run out.
    DeadlinesMatch,
    /// A pool has at most one submission whose fate is not known, and every submission a pool.
    OneOpenSubmission,
    /// An allocation stands where its submission does.
    AllocationMatchesSubmission,
    /// What is settled and in escrow never exceeds a cap by more than vendors exceeded bounds.
    MoneyWithinCap,
    /// Every account is the sum of its purses; what is over holds no escrow and waits for none.
    MoneyAddsUp,
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::OneLiveAttempt => "one live attempt",
            Self::LeaseHasWorker => "lease has worker",
            Self::EpochsIncrease => "epochs increase",
            Self::NotOversubscribed => "not oversubscribed",
            Self::RunSettledWithItsEpisodes => "run settled with its episodes",
            Self::CancelledRunStartsNothing => "cancelled run starts nothing",
            Self::OneBuilder => "one builder",
            Self::DeadlinesMatch => "deadlines match",
            Self::OneOpenSubmission => "one open submission",
            Self::AllocationMatchesSubmission => "allocation matches submission",
            Self::MoneyWithinCap => "money within cap",
            Self::MoneyAddsUp => "money adds up",
        })
    }
}

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invariant `{invariant}` is violated: {what}")]
pub struct Violation {
    /// Which one.
    pub invariant: Invariant,
    /// By what.
    pub what: String,
}

fn check(holds: bool, invariant: Invariant, what: impl FnOnce() -> String) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation { invariant, what: what() }) }
}

impl Engine {
    /// Checks all invariants of the state. For tests, and for a look at a store.
    ///
    /// # Errors
    ///
    /// The first invariant that does not hold.
    pub fn check_invariants(&self) -> Result<(), Violation> {
        self.check_workers()?;
        let mut epochs = BTreeMap::new();
        for (id, run) in &self.state.runs {
            self.check_run(*id, run)?;
            for (index, episode) in (0..).zip(&run.episodes) {
                self.check_episode(EpisodeId { run: *id, index }, episode, &mut epochs)?;
            }
        }
        self.check_layers()?;
        self.check_submissions()?;
        self.state.ledgers.iter().try_for_each(|(run, ledger)| self.check_ledger(*run, ledger))?;
        self.check_deadlines()
    }

    fn check_workers(&self) -> Result<(), Violation> {
        for (id, worker) in &self.state.workers {
            let capacity = worker.profile.capacity;
            let sum = |of: fn(&Lease) -> u64| worker.leases.values().map(of).sum::<u64>();
            let fits = sum(|lease| u64::from(lease.reserved.cpu_millis)) <= u64::from(capacity.cpu_millis)
                && sum(|lease| u64::from(lease.reserved.memory_mib)) <= capacity.memory_mib
                && sum(|lease| u64::from(lease.reserved.gpus)) <= u64::from(capacity.gpus)
                && (capacity.max_slots == 0 || sum(|_| 1) <= u64::from(capacity.max_slots));
            check(fits, Invariant::NotOversubscribed, || format!("worker {id}: {:?} of {capacity:?}", worker.leases))?;
        }
        for (worker, lease, _) in self.state.leases() {
            check(self.state.holder(lease) == Some(worker), Invariant::LeaseHasWorker, || {
                format!("worker {worker} has a lease on {lease}, which is not active there")
            })?;
        }
        Ok(())
    }

    fn check_run(&self, id: RunId, run: &Run) -> Result<(), Violation> {
        let counts = run.counts();
        let open = counts.queued + counts.active;
        let consistent = open == run.open && (open == 0) == run.settled_at.is_some();
        check(consistent, Invariant::RunSettledWithItsEpisodes, || {
            format!("run {id}: {open} open, counted as {}, settled at {:?}", run.open, run.settled_at)
        })?;
        check(run.cancelled.is_none() || counts.queued == 0, Invariant::CancelledRunStartsNothing, || {
            format!("run {id}: {} queued", counts.queued)
        })
    }

    fn check_episode(
        &self,
        id: EpisodeId,
        episode: &Episode,
        epochs: &mut BTreeMap<Epoch, AttemptId>,
    ) -> Result<(), Violation> {
        let live: BTreeSet<_> = self
            .state
            .leases()
            .filter(|(_, lease, _)| lease.attempt.episode == id)
            .map(|(worker, lease, _)| (lease, worker))
            .collect();
        let expected: BTreeSet<_> = match episode.state {
            EpisodeState::Active { number, epoch, worker, .. } => {
                [(LeaseRef { attempt: AttemptId { episode: id, number }, epoch }, worker)].into()
            }
            EpisodeState::Queued { .. } | EpisodeState::Settled { .. } => BTreeSet::new(),
        };
        check(live == expected, Invariant::OneLiveAttempt, || {
            format!("episode {id}: {live:?} are live, {expected:?} expected")
        })?;
        // What was begun after a backup and not heard of has no epoch.
        let heard_of = |(_, epoch): &(u32, Epoch)| *epoch > Epoch::default();
        let past = (1..).zip(&episode.past).map(|(number, past)| (number, past.epoch)).filter(heard_of);
        let current = expected.iter().map(|(lease, _)| (lease.attempt.number, lease.epoch));
        let mut last = None;
        for (number, epoch) in past.chain(current) {
            let attempt = AttemptId { episode: id, number };
            let other = epochs.insert(epoch, attempt);
            let increases = last.is_none_or(|last| last < epoch) && epoch <= self.state.last_epoch;
            let numbered = number <= episode.attempts();
            check(other.is_none() && increases && numbered, Invariant::EpochsIncrease, || {
                format!("{attempt} has epoch {epoch}, after {last:?}, of {}; {other:?}", self.state.last_epoch)
            })?;
            last = Some(epoch);
        }
        Ok(())
    }

    fn check_layers(&self) -> Result<(), Violation> {
        for (key, layer) in &self.state.layers {
            if let LayerState::Building { worker, waiters, .. } = &layer.state {
                let known = |worker| self.state.workers.contains_key(worker);
                let distinct: BTreeSet<_> = waiters.iter().collect();
                let sound = known(worker)
                    && waiters.iter().all(known)
                    && !distinct.contains(worker)
                    && distinct.len() == waiters.len();
                check(sound, Invariant::OneBuilder, || format!("layer {key}: {:?}", layer.state))?;
            }
        }
        Ok(())
    }

    fn check_submissions(&self) -> Result<(), Violation> {
        let mut open = BTreeSet::new();
        for (token, submission) in &self.state.submissions {
            let known = self.state.pools.contains_key(&submission.pool);
            let alone = !submission.is_open() || open.insert(&submission.pool);
            check(known && alone, Invariant::OneOpenSubmission, || format!("{token}: {submission:?}"))?;
            let requested = |task: &Allocation| matches!(task.state, AllocationState::Requested);
            let all = submission.tasks.values().all(requested);
            let sound = submission.is_open() == all
                && submission.tasks.keys().copied().eq(0..submission.count)
                && submission.mark <= self.state.queue_mark;
            check(sound, Invariant::AllocationMatchesSubmission, || format!("{token}: {submission:?}"))?;
        }
        Ok(())
    }

    fn check_ledger(&self, id: RunId, ledger: &Ledger) -> Result<(), Violation> {
        let mut sums: BTreeMap<AccountKey, Charge> = BTreeMap::new();
        let mut waiting = BTreeSet::new();
        for (lease, agent, kind, purse) in ledger.all_purses() {
            let charge = purse.charge();
            let live = self.state.holder(lease).is_some();
            // A live attempt may close a purse early; one that is over has none that is live.
            check(live || !charge.live, Invariant::MoneyAddsUp, || format!("{lease} is over, its purse {purse:?}"))?;
            waiting.extend(purse.waiting().map(|waiting| (waiting.turn, (lease.attempt, kind))));
            for key in Ledger::payers(lease.attempt, agent, kind) {
                sums.entry(key).or_default().add(charge);
            }
        }
        check(ledger.queue.iter().map(|(turn, who)| (*turn, *who)).eq(waiting), Invariant::MoneyAddsUp, || {
            format!("run {id}: the queue is {:?}", ledger.queue)
        })?;
        for (key, account) in ledger.accounts() {
            let sum = sums.remove(&key).unwrap_or_default();
            // Purses that can change no more are dropped with the run.
            let adds_up = (account.settled, account.escrow, account.unconfirmed)
                == (sum.settled, sum.escrow, sum.unconfirmed)
                || (ledger.was_forgotten() && account.escrow == sum.escrow && account.settled >= sum.settled);
            check(adds_up, Invariant::MoneyAddsUp, || format!("run {id}, {key:?}: {account:?}, but {sum:?}"))?;
            let most = account.cap.map(|cap| cap.saturating_add(account.overspent));
            check(most.is_none_or(|most| account.committed() <= most), Invariant::MoneyWithinCap, || {
                format!("run {id}, {key:?}: {} of {account:?}", account.committed())
            })?;
        }
        Ok(())
    }

    fn check_deadlines(&self) -> Result<(), Violation> {
        let leases = self.state.leases().map(|(_, lease, _)| lease.attempt);
        let sound = leases.collect::<BTreeSet<_>>() == self.volatile.renewed.keys().copied().collect()
            && self.state.workers.keys().eq(self.volatile.seen.keys());
        check(sound, Invariant::DeadlinesMatch, || format!("{:?}", self.volatile))
    }
}
