//! Snapshots of an episode's sandbox: taking them as its plan says, and beginning at the last one.
//!
//! A snapshot is two logs of its attempt, and goes the way of all logs: the packed top, and after it
//! what says of which step it is and over which layers it stands. One that cannot be used for any
//! reason costs nothing but the try: the record is replayed from its start then.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use longhaul_core::digest::Digest;
use longhaul_core::money::Money;
use longhaul_core::outcome::{Fault, FaultClass};
use longhaul_core::snapshot::{Snapshot, SnapshotPolicy, restores, snapshot_log, top_log};
use longhaul_core::time::Millis;

use super::hooks::{self, Hook};
use super::layers::Layers;
use super::record::{Recorder, disk};
use super::scoring::Scored;
use super::stopping::stop_all;
use super::{Attempt, Ending, Inside, Known, Plans, fault, sandboxed, wait_for_lease};
use crate::moment::millis;
use crate::sandbox::{Sandbox, SandboxError};

/// The most bytes of a packed top: a blob of the store holds 64 MiB.
const MOST_TOP: u64 = 60 * 1024 * 1024;

/// A snapshot to begin at, with its tops on the node's disk.
#[derive(Debug)]
pub(super) struct Restoring {
    pub(super) snapshot: Snapshot,
    pub(super) tops: Vec<PathBuf>,
}

/// The snapshot that this attempt begins at, if it is its turn and there is one that can be used.
pub(super) async fn find(attempt: &Attempt, known: &Known, plans: &Plans, scratch: &Path) -> Option<Restoring> {
    let past = plans.past.as_ref()?;
    let policy = plans.episode.snapshots;
    let number = attempt.lease.attempt.number;
    if policy.is_off() || plans.task.restart.is_none() || !restores(policy, past.parent(), number) {
        return None;
    }
    let (step, log) = past.last_snapshot()?;
    match fetch(attempt, known, log, scratch).await {
        Ok(restoring) => Some(restoring),
        Err(why) => {
            known.note(|notes| notes.warnings.push(format!("the snapshot of step {step} is not used: {why}")));
            None
        }
    }
}

async fn fetch(attempt: &Attempt, known: &Known, log: Digest, scratch: &Path) -> Result<Restoring, String> {
    let blobs = &attempt.shared.blobs;
    let snapshot: Snapshot = blobs.get_json(log, "a snapshot").await.map_err(|error| crate::chain(&error))?;
    if snapshot.layers != layers(known) {
        return Err("it stands on other layers than there are now".to_owned());
    }
    let folder = scratch.join("tops");
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    tokio::fs::create_dir_all(&folder).await.map_err(failed)?;
    let mut tops = Vec::with_capacity(snapshot.tops.len());
    for (index, top) in snapshot.tops.iter().enumerate() {
        let bytes = blobs.get(*top).await.map_err(|error| crate::chain(&error))?;
        let file = folder.join(format!("{index}.sqsh"));
        tokio::fs::write(&file, bytes).await.map_err(failed)?;
        tops.push(file);
    }
    Ok(Restoring { snapshot, tops })
}

/// The contents of what the sandbox stands on, base first.
fn layers(known: &Known) -> Vec<Digest> {
    let notes = known.notes.lock().unwrap_or_else(PoisonError::into_inner);
    notes.layers.iter().map(|layer| layer.content).collect()
}

/// The phases of an attempt's sandbox over a snapshot; from the start, if that does not come up as it
/// was.
pub(super) async fn restored(
    attempt: &Attempt,
    known: &Known,
    scratch: &Path,
    plans: &Plans,
    layers: &Layers,
    restoring: &Restoring,
) -> Result<Scored, Ending> {
    let own = scratch.join("restored");
    match Box::pin(sandboxed(attempt, known, &own, plans, layers, Some(restoring))).await {
        Err(Ending::NotRestored(why)) => {
            let step = restoring.snapshot.step;
            tracing::info!(attempt = %attempt.lease.attempt, step, why, "a snapshot was of no use");
            known.note(|notes| {
                notes.warnings.push(format!("the snapshot of step {step} was of no use, and was given up: {why}"));
            });
            stop_all(known).await;
            wait_for_lease(attempt).await?;
            Box::pin(sandboxed(attempt, known, scratch, plans, layers, None)).await
        }
        other => other,
    }
}

impl Inside<'_> {
    /// The hook that opens programs again over the files of a snapshot.
    pub(super) async fn reopen(&self, recorder: &Recorder) -> Result<(), Ending> {
        let task = &self.plans.task;
        let Some(command) = &task.restart else { return Ok(()) };
        let hook = Hook { name: "restart", command, log: "/home/ga/task_restart.log", limit: task.hook_time };
        let end = hooks::run(&hook, &self.hook_env(), self.sandbox, recorder, self.scratch).await?;
        if end.result.timed_out || end.result.code != 0 {
            let how = if end.result.timed_out { "ran over its time limit" } else { "failed" };
            return Err(Ending::NotRestored(format!("the restart hook {how}: {}", crate::tail(&end.log_tail, 5))));
        }
        Ok(())
    }
}

/// Takes the snapshots of an attempt.
pub(super) struct Saver<'a> {
    attempt: &'a Attempt,
    known: &'a Known,
    sandbox: &'a dyn Sandbox,
    policy: SnapshotPolicy,
    /// Where the packed top comes to lie.
    file: PathBuf,
    layers: Vec<Digest>,
    /// The tops that the sandbox began with.
    below: Vec<Digest>,
    last: Mutex<Last>,
}

/// The last snapshot.
#[derive(Clone, Copy, Debug)]
struct Last {
    step: u32,
    spent: Money,
    /// None can be taken of this sandbox.
    over: bool,
}

impl<'a> Saver<'a> {
    /// For an attempt that lives from a step on, if its plan asks for snapshots and they could be used:
    /// what is read between rounds is in none.
    pub(super) fn new(
        attempt: &'a Attempt,
        known: &'a Known,
        plans: &Plans,
        sandbox: &'a dyn Sandbox,
        scratch: &Path,
        restored: Option<&Restoring>,
    ) -> Option<Self> {
        let policy = plans.episode.snapshots;
        let is_private = |mount: &longhaul_core::plan::MountPlan| mount.writable;
        if policy.is_off()
            || plans.task.restart.is_none()
            || plans.task.rounds.is_some()
            // Copies of mounts lie beside the top.
            || plans.env.mounts.iter().any(is_private)
        {
            return None;
        }
        let from = plans.past.as_ref().map_or(0, |past| past.live_from().saturating_sub(1));
        Some(Self {
            attempt,
            known,
            sandbox,
            policy,
            file: scratch.join("snapshot.sqsh"),
            layers: layers(known),
            below: restored.map(|restored| restored.snapshot.tops.clone()).unwrap_or_default(),
            last: Mutex::new(Last { step: from, spent: Money::ZERO, over: false }),
        })
    }

    /// Takes one after a step, if it is due; `spent` is what calls have cost so far.
    ///
    /// # Errors
    ///
    /// The sandbox does not go on, or the node's disk is full.
    pub(super) async fn after(&self, step: u32, spent: Money, recorder: &Recorder) -> Result<(), Ending> {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let since = (step.saturating_sub(last.step), spent.saturating_sub(last.spent));
        if last.over || !self.policy.is_due(since.0, since.1) {
            return Ok(());
        }
        let over = match self.sandbox.save_top(&self.file, MOST_TOP).await {
            Ok(stopped) => {
                self.keep(step, millis(stopped), recorder).await?;
                false
            }
            // Processes that stay stopped.
            Err(error @ SandboxError::Gone(_)) => return Err(error.fault().into()),
            Err(error) => {
                self.known
                    .note(|notes| notes.warnings.push(format!("no snapshot was taken after step {step}: {error}")));
                true
            }
        };
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Last { step, spent, over };
        Ok(())
    }

    async fn keep(&self, step: u32, stopped: Millis, recorder: &Recorder) -> Result<(), Fault> {
        let top = tokio::fs::read(&self.file).await.map_err(|error| disk(&self.file, &error))?;
        tokio::fs::remove_file(&self.file).await.map_err(|error| disk(&self.file, &error))?;
        let mut tops = self.below.clone();
        tops.push(Digest::of(&top));
        let bytes = u64::try_from(top.len()).unwrap_or(u64::MAX);
        let snapshot = Snapshot { step, layers: self.layers.clone(), tops, bytes, stopped };
        let json = serde_json::to_vec(&snapshot).map_err(|error| fault(FaultClass::Store, error.to_string()))?;
        recorder.whole(&top_log(step), &top)?;
        recorder.whole(&snapshot_log(step), &json)?;
        tracing::info!(attempt = %self.attempt.lease.attempt, step, bytes, %stopped, "a snapshot was taken");
        Ok(())
    }
}
