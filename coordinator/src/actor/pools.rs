//! The pools of allocations: what the actor tells the allocator's task, and people.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_core::ids::WorkerId;
use longhaul_engine::allocation::{Allocation, AllocationEnd, AllocationState, Queue, Submission};
use longhaul_engine::state::State;
use longhaul_engine::{Command, Event, JobEnd, Pool, PoolId, PoolWhy, Token};
use longhaul_proto::v1;
use longhaul_slurm::DrainedNode;
use tokio::sync::{mpsc, oneshot};

use super::{Actor, ActorError, Deferred};
use crate::allocator::{Brief, Known, Order};
use crate::message::now;
use crate::passes::Passes;

/// The pools that are set, and the way to the task that speaks to Slurm.
#[derive(Debug)]
pub(crate) struct Allocations {
    pub(crate) pools: Vec<Pool>,
    pub(crate) orders: mpsc::UnboundedSender<Order>,
    pub(crate) passes: Passes,
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

    /// What came to its end while no coordinator ran keeps no pass.
    pub(super) fn revoke_what_is_over(&mut self) {
        let Some(allocations) = &self.allocations else { return };
        let submissions = allocations.passes.submissions();
        self.revoke_of(submissions);
    }

    /// The passes of allocations that came to their end with these events are revoked.
    pub(super) fn revoke(&mut self, events: &[Event]) {
        if self.allocations.is_none() {
            return;
        }
        let state = self.engine.state();
        let mut submissions = BTreeSet::new();
        for event in events {
            match event {
                Event::AllocationEnded { token, .. }
                | Event::SubmissionRefused { token, .. }
                | Event::SubmissionDropped { token, .. }
                | Event::SubmissionForgotten { token, .. } => {
                    submissions.insert(token.clone());
                }
                Event::WorkerGone { worker, .. } => {
                    let of_worker = |submission: &Submission| {
                        submission.tasks.values().any(|allocation| allocation.worker == Some(*worker))
                    };
                    let all = state.submissions.iter().filter(|(_, submission)| of_worker(submission));
                    submissions.extend(all.map(|(token, _)| token.clone()));
                }
                _ => {}
            }
        }
        self.revoke_of(submissions);
    }

    fn revoke_of(&mut self, submissions: BTreeSet<Token>) {
        for token in submissions {
            let keep = passes_kept(self.engine.state(), &token);
            self.deferred.push(Deferred::Order(Order::Revoke { token, keep }));
        }
    }

    /// Workers of ours on drained nodes take nothing new. They finish what they have, and then their
    /// allocation ends, sooner than its time would.
    pub(super) fn nodes_drained(&mut self, nodes: &[DrainedNode]) -> Result<(), ActorError> {
        let workers = self.engine.state().workers.iter();
        let told: Vec<(WorkerId, String)> = workers
            .filter(|(_, worker)| worker.profile.allocation.is_some() && worker.draining.is_none())
            .filter_map(|(id, worker)| {
                let node = nodes.iter().find(|node| node.name == worker.profile.hostname)?;
                let reason = node.reason.as_deref().unwrap_or("no reason was given");
                Some((*id, format!("the node {} was drained: {reason}", node.name)))
            })
            .collect();
        for (worker, reason) in told {
            tracing::info!(%worker, reason, "a worker takes nothing new");
            self.internal(Command::DrainWorker { worker, reason })?;
        }
        Ok(())
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
        let set_aside = state.set_aside.iter().map(|aside| v1::SetAsideRow {
            episode_id: aside.episode.to_string(),
            task: aside.task.to_string(),
            reason: aside.reason.clone(),
            at_millis: aside.at.0,
        });
        v1::ListPoolsResponse {
            pools: whys.map(row).collect(),
            slurm: self.allocations.is_some(),
            queue_problem,
            set_aside: set_aside.collect(),
        }
    }
}

/// The tasks of a submission whose workers may still have something to say: they are not over;
/// or Slurm may start them anew, or it may turn out that they run; or their worker was not given
/// up yet, and delivers.
fn passes_kept(state: &State, token: &Token) -> BTreeSet<u32> {
    let Some(submission) = state.submissions.get(token) else { return BTreeSet::new() };
    let kept = submission.tasks.iter().filter(|(_, allocation)| {
        let may_be_back = match allocation.state {
            AllocationState::Ended { why, .. } => {
                matches!(why, AllocationEnd::Vanished | AllocationEnd::Job(JobEnd::Preempted | JobEnd::NodeFailed))
            }
            _ => true,
        };
        may_be_back || allocation.worker.is_some_and(|worker| state.workers.contains_key(&worker))
    });
    kept.map(|(task, _)| *task).collect()
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

#[cfg(test)]
mod tests {
    use longhaul_core::time::{Millis, Timestamp};
    use longhaul_engine::JobId;
    use longhaul_engine::allocation::Stage;
    use longhaul_engine::state::{Capacity, Worker, WorkerProfile};

    use super::*;

    fn ended(why: AllocationEnd) -> AllocationState {
        AllocationState::Ended { at: Timestamp(9), why }
    }

    #[test]
    fn a_pass_lasts_as_long_as_its_allocation_or_its_worker_may_have_something_to_say() {
        let (known, gone) = (WorkerId::new(Timestamp(1), 1), WorkerId::new(Timestamp(1), 2));
        let job = |end| ended(AllocationEnd::Job(end));
        let tasks = [
            (AllocationState::Submitted, None),
            (AllocationState::Running { since: Timestamp(1), node: None, ends_at: None }, Some(gone)),
            (job(JobEnd::Cancelled), Some(known)),
            (job(JobEnd::Cancelled), Some(gone)),
            (job(JobEnd::Completed), None),
            (job(JobEnd::TimedOut), Some(gone)),
            (job(JobEnd::Preempted), Some(gone)),
            (job(JobEnd::NodeFailed), Some(gone)),
            (ended(AllocationEnd::Vanished), None),
            (ended(AllocationEnd::NeverSubmitted), None),
        ];
        let allocation = |(state, worker)| Allocation {
            state,
            restarts: 0,
            worker,
            said_hello: true,
            used: Millis(0),
            missing_since: None,
            unmanned_since: None,
            release: None,
        };
        let submission = Submission {
            pool: PoolId("p".to_owned()),
            count: 10,
            walltime: Millis(1),
            requested_at: Timestamp(1),
            tries: 1,
            stage: Stage::Accepted { job: JobId("7".to_owned()) },
            mark: 1,
            tasks: (0..).zip(tasks).map(|(task, of)| (task, allocation(of))).collect(),
        };
        let capacity = Capacity { cpu_millis: 1, memory_mib: 1, gpus: 0, max_slots: 0 };
        let profile = WorkerProfile { hostname: "n".to_owned(), slurm_job_id: None, capacity, allocation: None };
        let token = Token("t".to_owned());
        let state = State {
            submissions: BTreeMap::from([(token.clone(), submission)]),
            workers: BTreeMap::from([(known, Worker::new(profile, Timestamp(1)))]),
            ..State::default()
        };
        let kept: Vec<u32> = passes_kept(&state, &token).into_iter().collect();
        assert_eq!(kept, [0, 1, 2, 6, 7, 8]);
        assert!(passes_kept(&State::default(), &token).is_empty(), "what is forgotten keeps none");
    }
}
