//! Attempts in the actor's hands: leases taken, stopped, delivered, given up.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use longhaul_core::digest::Digest;
use longhaul_core::outcome::{AttemptEnd, Fault, FaultClass};
use longhaul_proto::convert::{self, LeaseRef};
use longhaul_proto::v1;
use longhaul_proto::v1::from_worker::Message as Up;
use tokio::sync::watch;

use super::{Actor, LeaseKind, Live};
use crate::episode::{self, Control, Order, StopReason};
use crate::model::{LeaseGate, Till};
use crate::session::delivery::{self, Progress};
use crate::session::up;
use crate::spool::{AttemptSpool, Outbox, Recovered, SpoolError};

/// An end that is refused so often, with nothing missing here, is given up.
const MAX_REFUSALS: u32 = 50;

impl Actor {
    pub(super) fn outbox(&self, lease: &LeaseRef) -> Option<&Arc<Outbox>> {
        self.live.get(lease).map(|live| &live.outbox).or_else(|| self.late.get(lease))
    }

    pub(super) fn on_end_ack(&mut self, lease: &LeaseRef, accepted: bool, resend: (u32, u32)) {
        let Some(outbox) = self.outbox(lease).cloned() else { return };
        if accepted {
            outbox.end_accepted();
            return;
        }
        let refusals = self.live.get_mut(lease).map_or(MAX_REFUSALS, |live| {
            live.refusals += 1;
            live.refusals
        });
        if refusals >= MAX_REFUSALS {
            tracing::warn!(attempt = %lease.attempt, "the coordinator does not accept the end of this attempt");
            self.refused(lease);
            return;
        }
        self.tasks.spawn(async move {
            // Steps may still be on their way to the disk there.
            tokio::time::sleep(Duration::from_millis(100) * refusals).await;
            outbox.resend_from(resend.0, resend.1);
        });
    }

    pub(super) fn on_lease(&mut self, lease: LeaseRef, plan: Digest, kind: LeaseKind) {
        // A lease that crosses the goodbye is given back by it.
        if self.leaving || self.live.contains_key(&lease) {
            return;
        }
        let superseded: Vec<LeaseRef> =
            self.live.keys().filter(|other| other.attempt == lease.attempt).copied().collect();
        for other in superseded {
            self.stop(&other, StopReason::Stale);
        }
        let spool = match AttemptSpool::create(&self.spool, lease, self.shared.meter.clone()) {
            Ok(spool) => spool,
            Err(error) => {
                self.refuse_without_spool(lease, &crate::chain(&error));
                return;
            }
        };
        tracing::info!(attempt = %lease.attempt, epoch = %lease.epoch, "lease taken");
        self.clock.granted(lease);
        let outbox = Arc::new(Outbox::new(spool, Vec::new()));
        let (control, order) = watch::channel(Order::Go);
        let (progress, progress_receiver) = watch::channel(Progress { phase: v1::AttemptPhase::Layers, steps: 0 });
        self.deliver(Arc::clone(&outbox), Some(progress_receiver));
        let refusal = self.refusal();
        let gate = Arc::new(LeaseGate::default());
        let live = Live { control, outbox: Arc::clone(&outbox), gate: Arc::clone(&gate), refusals: 0 };
        self.live.insert(lease, live);
        self.enforce();
        if let Some((class, message)) = refusal {
            self.end_with_fault(&outbox, class, message);
            return;
        }
        let control = Control::new(order);
        let attempt = episode::Attempt {
            lease,
            plan,
            uncapped: kind.uncapped,
            resumes: kind.resumes,
            verifies: kind.verifies,
            outbox,
            control,
            gate,
            till: Till::default(),
            progress,
            shared: Arc::clone(&self.shared),
        };
        self.episodes.spawn(async move {
            Box::pin(episode::run(attempt)).await;
            lease
        });
    }

    /// Why no attempt may start now, if so.
    fn refusal(&self) -> Option<(FaultClass, String)> {
        if let Some(reason) = &self.draining {
            return Some((FaultClass::Preempted, format!("the worker takes no more leases: {reason}")));
        }
        self.shared.node.disk_trouble().map(|message| (FaultClass::NodeDisk, message))
    }

    fn end_with_fault(&self, outbox: &Outbox, class: FaultClass, message: String) {
        let notes = self.shared.bare_notes();
        let end = AttemptEnd::Fault(Fault { class, message, log_tail: None });
        if let Err(error) = outbox.end(end, notes, Vec::new()) {
            tracing::error!(attempt = %outbox.lease().attempt, error = %crate::chain(&error), "an end cannot be recorded");
            outbox.close();
        }
    }

    /// Nothing can be written here, so the end goes out as it is, once; if it is lost, the
    /// lease runs out at the coordinator.
    fn refuse_without_spool(&self, lease: LeaseRef, message: &str) {
        tracing::error!(attempt = %lease.attempt, message, "an attempt cannot be started");
        let end = AttemptEnd::Fault(Fault {
            class: FaultClass::NodeDisk,
            message: format!("the worker cannot write its spool: {message}"),
            log_tail: None,
        });
        let notes = self.shared.bare_notes();
        let (Ok(end), Ok(notes)) = (convert::to_json("end_json", &end), convert::to_json("notes_json", &notes)) else {
            return;
        };
        let ended = v1::AttemptEnded {
            attempt: Some(lease.into()),
            end_json: end.into(),
            notes_json: notes.into(),
            ..v1::AttemptEnded::default()
        };
        if let Some(session) = &self.session {
            let _ = session.urgent.try_send(up(Up::Ended(ended)));
        }
    }

    fn deliver(&mut self, outbox: Arc<Outbox>, progress: Option<watch::Receiver<Progress>>) {
        let lease = outbox.lease();
        let task = delivery::run(outbox, self.shared.blobs.clone(), self.shared.link.clone(), progress);
        let delivered = self.delivered.clone();
        self.tasks.spawn(async move {
            task.await;
            // The actor may be ending.
            let _ = delivered.send(lease).await;
        });
    }

    /// What a dead worker left is delivered as it is; the coordinator knows by the epoch what it is
    /// worth. Where some of it was damaged, what was spent is not known: no word on money is the word
    /// that all of it was.
    pub(super) fn adopt_spool(&mut self, folder: &Path) {
        match AttemptSpool::recover(folder, self.shared.meter.clone()) {
            Ok(Recovered { spool, records, damage }) => {
                let outbox = Arc::new(Outbox::new(spool, records));
                let attempt = outbox.lease().attempt;
                tracing::info!(%attempt, steps = outbox.steps(), "delivering what a dead worker left");
                let told = damage.map_or(Ok(()), |damage| {
                    tracing::error!(%attempt, folder = %folder.display(), "a spool was damaged on the disk: {damage}");
                    outbox.tell_damage(damage)
                });
                if let Err(error) = told.and_then(|()| settle_unless_ended(&outbox)) {
                    tracing::warn!(error = %crate::chain(&error), "a spool cannot be written and is left alone");
                    return;
                }
                if !outbox.has_end() {
                    if damage.is_none() {
                        let purses = self.shared.escrow.recorded(&outbox);
                        self.shared.escrow.last_word(&outbox, &purses);
                    }
                    outbox.close();
                }
                self.late.insert(outbox.lease(), Arc::clone(&outbox));
                self.deliver(outbox, None);
            }
            Err(error) => tracing::warn!(error = %crate::chain(&error), "a spool cannot be read and is left alone"),
        }
    }

    /// The store can keep nothing more of an attempt, be it live or left by a dead worker.
    pub(super) fn refused(&mut self, lease: &LeaseRef) {
        tracing::error!(attempt = %lease.attempt, "the coordinator can keep nothing more of this attempt");
        if let Some(outbox) = self.outbox(lease) {
            // Its end, which says what was spent, may not get through.
            self.shared.escrow.ended(outbox);
            outbox.refused();
        }
        self.stop(lease, StopReason::Stale);
    }

    pub(super) fn stop(&mut self, lease: &LeaseRef, reason: StopReason) {
        let Some(live) = self.live.get(lease) else { return };
        tracing::info!(attempt = %lease.attempt, ?reason, "attempt is stopped");
        live.gate.set(None);
        live.control.send_if_modified(|order| {
            let first = !matches!(order, Order::Stop(_));
            if first {
                *order = Order::Stop(reason);
            }
            first
        });
        if reason == StopReason::Stale {
            // Not ours any more: neither renewed nor named again. What it recorded is still delivered.
            self.clock.dropped(lease);
            if let Some(live) = self.live.remove(lease) {
                // Without an end, it is closed by its episode, when its calls are settled.
                if !live.outbox.is_finished() {
                    self.late.insert(*lease, live.outbox);
                }
            }
        }
    }

    pub(super) fn stop_all(&mut self, reason: StopReason) {
        let leases: Vec<LeaseRef> = self.live.keys().copied().collect();
        for lease in leases {
            self.stop(&lease, reason);
        }
    }

    pub(super) fn on_episode_over(&self, ended: Result<LeaseRef, tokio::task::JoinError>) {
        match ended {
            Ok(lease) => tracing::debug!(attempt = %lease.attempt, "attempt is over"),
            Err(error) => {
                tracing::error!(%error, "an attempt's task failed");
                // Which one is known by what it did not do: all others run or have an end.
                for live in self.live.values() {
                    if live.control.is_closed() && !live.outbox.has_end() && !live.outbox.is_finished() {
                        let message = format!("the worker failed: {error}");
                        self.end_with_fault(&live.outbox, FaultClass::WorkerLost, message);
                    }
                }
            }
        }
    }

    pub(super) fn on_delivered(&mut self, lease: &LeaseRef) {
        if self.live.remove(lease).is_some() {
            self.clock.dropped(lease);
        }
        self.late.remove(lease);
        self.shared.escrow.forget(lease);
    }
}

/// Nobody is left who could say more of calls that are open.
fn settle_unless_ended(outbox: &Outbox) -> Result<(), SpoolError> {
    if outbox.has_end() { Ok(()) } else { outbox.settle_open_calls() }
}
