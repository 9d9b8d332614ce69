//! The pools of allocations: what the actor tells the allocator's task, and people.

use std::collections::BTreeMap;

use longhaul_engine::allocation::{Allocation, AllocationState, Queue, Submission};
use longhaul_engine::{Command, Pool, PoolId, PoolWhy};
use longhaul_proto::v1;
use tokio::sync::{mpsc, oneshot};

use super::{Actor, ActorError, Deferred};
use crate::allocator::{Brief, Known, Order};
use crate::message::now;

/// The pools that are set, and the way to the task that speaks to Slurm.
#[derive(Debug)]
pub(crate) struct Allocations {
    pub(crate) pools: Vec<Pool>,
    pub(crate) orders: mpsc::UnboundedSender<Order>,
}

impl Actor {
    /// The pools are as they are set now, whatever they were before.
    pub(super) fn set_pools(&mut self) -> Result<(), ActorError> {
        let Some(allocations) = &self.allocations else { return Ok(()) };
        let pools = allocations.pools.clone();
        let gone: Vec<PoolId> = self
            .engine
            .state()
            .pools
            .iter()
            .filter(|(id, record)| !record.removed && pools.iter().all(|pool| pool.id != **id))
            .map(|(id, _)| id.clone())
            .collect();
        for pool in gone {
            self.internal(Command::RemovePool { pool })?;
        }
        for pool in pools {
            self.internal(Command::SetPool { pool })?;
        }
        Ok(())
    }

    /// Hands an order to the task that speaks to Slurm.
    pub(super) fn order(&self, order: Order) {
        match &self.allocations {
            // A task that has ended does so with the coordinator: the next one goes on.
            Some(allocations) => drop(allocations.orders.send(order)),
            None => tracing::warn!(
                ?order,
                "this coordinator was started without --slurm, and leaves allocations of an earlier one alone"
            ),
        }
    }

    /// No pool asks any more, and what is there is ended.
    pub(super) fn end_allocations(&mut self, done: oneshot::Sender<()>) -> Result<(), ActorError> {
        if self.allocations.is_none() {
            return Ok(());
        }
        let pools: Vec<PoolId> = self.engine.state().pools.keys().cloned().collect();
        for pool in pools {
            self.internal(Command::RemovePool { pool })?;
        }
        let state = self.engine.state();
        let lives = |submission: &Submission| submission.tasks.values().any(Allocation::is_live);
        let tokens =
            state.submissions.iter().filter(|(_, submission)| lives(submission)).map(|(token, _)| token.clone());
        let order = Order::CancelAll { tokens: tokens.collect(), done };
        self.deferred.push(Deferred::Order(order));
        Ok(())
    }

    pub(super) fn brief(&self) -> Brief {
        let state = self.engine.state();
        let mut submissions = BTreeMap::new();
        for (token, submission) in &state.submissions {
            let live: BTreeMap<u32, u32> = submission
                .tasks
                .iter()
                .filter(|(_, allocation)| allocation.is_live())
                .map(|(task, allocation)| (*task, allocation.restarts))
                .collect();
            let (job, count) = (submission.job().cloned(), submission.count);
            submissions.insert(token.0.clone(), Known { job, count, live });
        }
        Brief { mark: self.engine.queue_mark(), submissions }
    }

    pub(super) fn pools(&self) -> v1::ListPoolsResponse {
        let state = self.engine.state();
        let whys = state.pools.keys().filter_map(|pool| self.engine.why(now(), pool));
        let queue_problem = match &state.queue {
            Queue::Reachable { .. } => String::new(),
            Queue::Unknown => "it was not looked at yet".to_owned(),
            Queue::Unreachable { reason, .. } => reason.clone(),
        };
        v1::ListPoolsResponse { pools: whys.map(row).collect(), slurm: self.allocations.is_some(), queue_problem }
    }
}

fn row(why: PoolWhy) -> v1::PoolRow {
    let PoolWhy { record, plan, allocations, .. } = why;
    v1::PoolRow {
        pool: plan.pool.0,
        episodes: plan.episodes,
        wanted: plan.wanted,
        count: plan.count,
        walltime_millis: plan.walltime.0,
        live: plan.live,
        queued: plan.queued,
        used_millis: record.used.0,
        committed_millis: plan.committed.0,
        holds: plan.holds.iter().map(ToString::to_string).collect(),
        paused: record.paused.is_some(),
        allocations: allocations
            .into_iter()
            .map(|view| {
                let (state, node, ends_at) = match &view.allocation.state {
                    AllocationState::Requested => ("requested", None, None),
                    AllocationState::Submitted => ("submitted", None, None),
                    AllocationState::Queued { .. } => ("queued", None, None),
                    AllocationState::Running { node, ends_at, .. } => ("running", node.clone(), *ends_at),
                    AllocationState::Ended { .. } => ("ended", None, None),
                };
                v1::AllocationRow {
                    allocation: view.id.to_string(),
                    job: view.job.as_ref().map(|job| job.0.clone()).unwrap_or_default(),
                    state: state.to_owned(),
                    node: node.unwrap_or_default(),
                    ends_at_millis: ends_at.map_or(0, |at| at.0),
                    restarts: view.allocation.restarts,
                    reason: view.reason(),
                }
            })
            .collect(),
    }
}
