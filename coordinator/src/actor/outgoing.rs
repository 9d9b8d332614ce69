//! What goes out once its events are durable: messages to workers, wake-ups of followers.

use longhaul_core::ids::{RunId, WorkerId};
use longhaul_engine::{Effect, EscrowRest, LayerAnswer, Notice, RevokeReason};
use longhaul_proto::convert::{digest_bytes, wire_purse};
use longhaul_proto::v1;
use longhaul_proto::v1::to_worker::Message as Down;
use tokio::sync::mpsc;

use super::{Actor, Deferred};
use crate::allocator::Order;
use crate::message::Outgoing;
use crate::session::wire;

impl Actor {
    pub(super) fn queue(&mut self, effect: Effect) {
        match effect {
            Effect::Welcome { worker, session, stale } => {
                let welcome = v1::Welcome {
                    coordinator_version: env!("CARGO_PKG_VERSION").to_owned(),
                    incarnation: self.terms.incarnation.clone(),
                    lease_ttl_millis: self.terms.lease_ttl.0,
                    heartbeat_millis: self.terms.heartbeat.0,
                    stale: stale.into_iter().map(wire).collect(),
                };
                if self.sessions.get(&worker).is_some_and(|open| open.number == session) {
                    self.tell(worker, Down::Welcome(welcome));
                    // Before any lease: what it may use, and the keys to use it with.
                    self.greet(worker);
                }
            }
            Effect::SendLease { worker, lease, plan, resumes, verifies } => {
                let plan = digest_bytes(&plan).into();
                let uncapped = self.is_uncapped(lease.attempt.episode);
                let verifies = verifies.map(|ended_by| ended_by.to_string()).unwrap_or_default();
                self.tell(
                    worker,
                    Down::Lease(v1::Lease { attempt: Some(wire(lease)), plan, uncapped, resumes, verifies }),
                );
            }
            Effect::SendRevoke { worker, lease, reason } => {
                let reason = match reason {
                    RevokeReason::Cancelled => v1::RevokeReason::Cancelled,
                    RevokeReason::Stale => v1::RevokeReason::Stale,
                };
                self.tell(worker, Down::Revoke(v1::Revoke { attempt: Some(wire(lease)), reason: reason.into() }));
            }
            Effect::SendDrain { worker, reason } => self.tell(worker, Down::Drain(v1::Drain { reason })),
            Effect::SendLayerAnswer { worker, key, answer } => {
                use v1::layer_answer::Answer;
                let answer = match answer {
                    LayerAnswer::Build => Answer::Build(v1::Empty {}),
                    LayerAnswer::Wait => Answer::Wait(v1::Empty {}),
                    LayerAnswer::Ready(info) => {
                        Answer::Ready(v1::LayerInfo { content: digest_bytes(&info.content).into(), bytes: info.bytes })
                    }
                    LayerAnswer::Failed(fault) => match serde_json::to_vec(&fault) {
                        Ok(json) => Answer::FailedFaultJson(json.into()),
                        Err(error) => {
                            tracing::error!(%error, "a fault cannot be sent");
                            return;
                        }
                    },
                };
                let key = digest_bytes(&key).into();
                self.tell(worker, Down::LayerAnswer(v1::LayerAnswer { key, answer: Some(answer) }));
            }
            Effect::AnswerEscrow { worker, lease, purse, granted, rest } => {
                use v1::escrow_answer::Rest;
                let rest = match rest {
                    EscrowRest::Enough => None,
                    EscrowRest::Wait => Some(Rest::Wait(v1::Empty {})),
                    EscrowRest::Refused { reason } => Some(Rest::Refused(reason)),
                };
                let (attempt, purse, granted_nanos) = (Some(wire(lease)), wire_purse(purse).into(), granted.nanos());
                self.tell(worker, Down::EscrowAnswer(v1::EscrowAnswer { attempt, purse, granted_nanos, rest }));
            }
            Effect::RecallEscrow { worker, lease, purse } => {
                let (attempt, purse) = (Some(wire(lease)), wire_purse(purse).into());
                self.tell(worker, Down::EscrowRecall(v1::EscrowRecall { attempt, purse }));
            }
            Effect::CloseSession { worker } => self.end_session(worker),
            Effect::SubmitAllocations { pool, token, count, walltime } => {
                self.deferred.push(Deferred::Order(Order::Submit { pool, token, count, walltime }));
            }
            Effect::FindAllocations { token, .. } => self.deferred.push(Deferred::Order(Order::Find { token })),
            Effect::CancelAllocations { token, job, tasks, reason } => {
                tracing::info!(%token, %job, ?tasks, reason, "allocations are ended");
                // A job of one task is ended by its own name, which it has whether an array or not.
                let whole = self.engine.state().submissions.get(&token).is_some_and(|known| known.count == 1);
                let tasks = if whole { Vec::new() } else { tasks };
                self.deferred.push(Deferred::Order(Order::Cancel { token, job, tasks }));
            }
            Effect::Publish(notice) => self.deferred.push(Deferred::Publish(notice)),
        }
    }

    /// Queues a message for the session that the worker has now; dropped if it has none:
    /// what is owed is sent when it says hello.
    pub(super) fn tell(&mut self, worker: WorkerId, message: Down) {
        if let Some(session) = self.sessions.get(&worker) {
            let outgoing = session.outgoing.clone();
            self.deferred.push(Deferred::Send { worker, number: session.number, outgoing, message });
        }
    }

    pub(super) fn end_session(&mut self, worker: WorkerId) {
        if let Some(session) = self.sessions.get(&worker) {
            self.deferred.push(Deferred::Close(session.close.clone()));
        }
    }

    pub(super) fn send(&self, worker: WorkerId, number: u64, outgoing: &Outgoing, message: Down) {
        if let Err(error) = outgoing.try_send(Ok(v1::ToWorker { message: Some(message) })) {
            let full = matches!(error, mpsc::error::TrySendError::Full(_));
            if full {
                tracing::warn!(%worker, session = number, "a worker does not read what it is sent; its session ends");
            }
            if let Some(session) = self.sessions.get(&worker).filter(|session| session.number == number) {
                session.close.cancel();
            }
        }
    }

    pub(super) fn publish(&self, notice: &Notice) {
        let wake = |run: &RunId| {
            if let Some(followed) = self.followed.get(run) {
                followed.version.send_modify(|version| *version += 1);
            }
        };
        match notice {
            Notice::RunChanged(run) | Notice::RunSettled(run) => wake(run),
            Notice::EpisodeSettled { episode, .. } => wake(&episode.run),
            Notice::BudgetNearlySpent { run, scope, percent } => {
                tracing::warn!(%run, %scope, percent, "a budget is nearly spent");
                wake(run);
            }
            Notice::WorkerChanged(_)
            | Notice::LayerChanged(_)
            | Notice::PoolChanged(_)
            | Notice::EndpointChanged { .. } => self.followed.keys().for_each(wake),
        }
    }
}
