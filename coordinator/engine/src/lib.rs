//! The coordinator's state machine: commands, events, effects. Pure and sans-io.
//!
//! The engine decides which worker has which attempt, and how episodes are settled. It
//! opens nothing, waits for nothing and asks no clock; what that costs its caller, the
//! shell, is this order, for every command:
//!
//! 1. [`Engine::step`] with the time and the command: refused, or a batch of events that
//!    is already applied in memory. (It is [`Engine::advance`], [`Engine::decide`] and
//!    [`Engine::apply`], and then [`Command::Tick`] until nothing more is to be decided.)
//! 2. Append the batch to the journal, whole, and sync it. If that fails, stop the
//!    process: the memory is ahead of the disk.
//! 3. Only now carry out [`Engine::effects`] of the batch, and answer whoever asked.
//! 4. Sleep until [`Engine::next_deadline`] or the next command, and step with
//!    [`Command::Tick`] if the deadline came first.
//!
//! Heartbeats are no commands and are not stored: [`Engine::observe_heartbeat`]. Nor is the
//! word of a worker that an attempt is past its start: [`Engine::observe_started`]; or how many
//! steps it has: [`Engine::observe_steps`], which is stored if it is lost.
//!
//! Recovery is [`Engine::from_snapshot`] (or [`Engine::new`]), [`Engine::apply`] of every
//! event after it, and a step with [`Command::CoordinatorRestarted`].
//!
//! # What a worker must do for this to be safe
//!
//! * It counts a lease's time from when it *sent* the last heartbeat that was
//!   acknowledged: for a renewal the one that renewed it, for a new lease the last one
//!   before the lease arrived. When `lease_ttl` has passed, it stops spending.
//! * It ignores a lease whose attempt and epoch it has seen before: leases are sent
//!   again after a reconnect.
//! * Its hello and its heartbeats name every attempt that it holds: running, parked, or
//!   ended without an acknowledgement of that end.
//! * It stops its agents before it says that it leaves.
//! * Told to build a layer, it looks in the layer folder once more, and reports, whatever
//!   happens, before it reports the end of the attempt that wanted the layer. After every
//!   hello it repeats its open claims, and its reports of layers that it was told to build.
//!
//! # Placement
//!
//! Leases are granted one by one. Runs of the highest priority come first; runs of one
//! priority share fairly: the run with the fewest live attempts is next, and of those the
//! one that was submitted first. Within a run, episodes start in the order of the plan, or
//! long ones first where that is known ([`state::RunTerms::limits`], or what scored attempts
//! of the env took), so that none is left running alone at the end. Over all this goes one
//! preference: episodes whose env is warm, or has no live attempt yet, so that slots do not
//! all wait for one layer to be built: it is built on one worker while the others run
//! something else.
//!
//! Of the workers with room, the best one: no graphics processor idle; few attempts of the
//! same env (one node's disk is not the bottleneck), where a worker that holds the env's
//! layer may have two more; enough time left for twice what the episode will take; little to
//! do. Memory and graphics processors are never given out twice and never cut. Processors
//! are time-shared anyway: an env that asks for more of them than any connected worker has
//! gets a whole worker that runs nothing else. What fits nowhere waits, and
//! [`Engine::why_waiting`] says why.
//!
//! Starts on one node are paced: at most [`Settings::max_starting`] attempts are between
//! their lease and [`Engine::observe_started`], which is no command, is not stored, and is
//! assumed after [`Settings::start_limit`].
//!
//! A worker takes no lease while it says that it is unfit ([`Command::WorkerUnfit`]: its disk
//! is full). That is stored, on a change only: after a restart of the coordinator the
//! worker's next word may come after the first lease, and cost an attempt.
//!
//! # How soon a lost worker is noticed
//!
//! A node that dies says nothing. Its last heartbeat renewed its leases; they are over
//! `lease_ttl + skew` later (40 s + 10 s by default), the engine's deadline is that very
//! moment, and its episodes are granted to others in the same step: 50 s after its last
//! heartbeat, and less after its death. The shell adds one sync, and sleeps until
//! [`Engine::next_deadline`]. For episodes to run elsewhere within 60 s, `lease_ttl + skew`
//! has to stay below that, and `lease_ttl` at or above three heartbeats (5 s each).
//!
//! # Allocations
//!
//! A [`Pool`] is a pattern that allocations are asked with, set from settings at every start
//! ([`Command::SetPool`]) and journalled with all that follows. What the shell does:
//!
//! | effect | the shell | answers with |
//! |---|---|---|
//! | [`Effect::SubmitAllocations`] | `sbatch`, the token as the job's name; an array of `count`, or one job | [`Command::SubmissionAccepted`], [`Command::SubmissionRefused`] (no job came of it; `transient` for limits and a busy controller), [`Command::SubmissionUnknown`] (timed out, killed, unreadable) |
//! | [`Effect::FindAllocations`] | asks the queue now, the accounting too | [`Command::QueueSeen`], [`Command::AccountingSeen`] |
//! | [`Effect::CancelAllocations`] | `scancel` by id and name | nothing: the queue shows it |
//!
//! and, by itself: one `squeue` for everything every so often, given as
//! [`Command::QueueSeen`] with the [`Engine::queue_mark`] and the time from *before* it was
//! started, or
//! [`Command::QueueUnreachable`]. Answers are given in the order in which they were asked
//! for. Of an array that waits, one [`JobSeen`] names all tasks. A worker's hello names its
//! allocation ([`WorkerAllocation`]), its heartbeats are answered with what is left of its time
//! ([`HeartbeatReply::remaining`]).
//!
//! ## How many
//!
//! What is due and finds no room on workers that are there (with a session or not) or on
//! their way fills new workers of the pool, in thought; so many are asked for, bounded by
//! `max_workers`, `max_queued`, `max_node_time` (what is asked for counts whole until it
//! ended, so the bound holds whatever happens), the partition
//! ([`Command::PartitionSeen`]) and its largest array. What one pool may not take in is left
//! to the next. One submission of a pool is under way at a time. [`Engine::plan`] is the same
//! computation, with what holds it back; [`Engine::why`] adds each allocation.
//!
//! Allocations that wait for nothing are cancelled: those in the queue when no episode waits
//! that they could take, or when the pool has more than it may; a worker that had no lease
//! for `idle`, or whose time is nearly over and who has nothing to do; one that runs for
//! [`Settings::hello_limit`] without a word from its worker. The worker of an allocation that
//! is ended so is told to drain as well: a controller that forgot the job cannot end it. A
//! worker in an allocation that drains and has nothing left has to end its script.
//!
//! ## Nothing is submitted twice
//!
//! A submission is journalled with its token before it is made. Whenever its fate is not
//! known (no answer, or the coordinator died meanwhile) it is *doubtful*: the pool asks for
//! nothing, and the token is looked for. Only when a whole answer of the queue, asked for
//! after the doubt began ([`state::State::queue_mark`]) and at least
//! [`Settings::doubt_grace`] into it, lacks the token, it is submitted again, with the same
//! token; or dropped, if nothing waits for it any more. If two jobs carry one token all the
//! same, the first known is kept and the other is cancelled. A job id counts only beside the
//! token, so one that is handed out twice is two things. While the queue does not answer, or
//! was not looked at since the start, nothing is asked for.
//!
//! A refusal leaves the pool alone for [`Settings::submit_backoff`], doubled each time up to
//! [`Settings::max_submit_backoff`]. One that is not transient is a failure, and so is an
//! allocation that ends before its worker said hello, unless we ended it, it was preempted or
//! its node failed. After `max_failures` in a row the pool is paused until
//! [`Command::ResumePool`]; a hello sets the count back.
//!
//! ## What is true of an allocation
//!
//! Queue, accounting and session are three witnesses, and the absence of one says nothing:
//!
//! * The queue or the accounting says that it ended: it ended. COMPLETED, FAILED and
//!   `OUT_OF_MEMORY` only its node can have said, so no process of it is left and the
//!   episodes of its worker are free at once. Every other end is an order of the controller,
//!   which a node that was cut off has not heard of and acts on: there, the leases run out.
//! * The queue lacks it, and its worker has a session and is heard of: it runs. (A
//!   controller that was killed forgets jobs that run on.)
//! * The queue lacks it, no worker speaks from it, and a later answer says the same
//!   [`Settings::vanish_grace`] after both began: it is over.
//! * The queue does not answer: nothing is concluded. Episodes go on.
//! * A worker says hello from it: it runs, whatever the queue says, unless it had ended.
//! * It turns up again after it had vanished: it is what it was. One that was over otherwise
//!   stays over, until Slurm starts it anew.
//!
//! A higher restart count is another incarnation, with another worker. The earlier worker
//! may still act, cut off: its leases run out as those of every lost worker, and it gets no
//! new ones. Of two workers from one incarnation the last to say hello counts.
//!
//! ## What a loss costs an episode
//!
//! A worker that leaves (a warning signal, a preemption, the end of its time) gives its
//! attempts back as `Preempted`; a worker that is lost costs `WorkerLost`; a full disk is
//! `NodeDisk`, after which the node gets no lease for [`Settings::disk_rest`]. None of these
//! uses up the retries. An episode that meets [`Settings::max_full_disks`] full disks is set
//! aside: since each time another node (or the same, later) has to be full, that is at least a
//! quarter of an hour with one node, and says that all are. One that loses [`Settings::max_lost_workers`] workers is set aside and
//! names them, but not counting losses that Slurm explains, then or later: preempted, timed
//! out, cancelled, its node failed, started anew.
//!
//! ## Walltime
//!
//! A worker whose allocation ends within [`Settings::min_remaining`] gets no lease. An
//! episode goes only to a worker with as much time left as it was seen to need: the mean of
//! scored attempts of its env, or the time after which it was cut off itself; but never more
//! than three quarters of the longest that any pool offers, or it would wait for ever.
//!
//! An attempt that its worker gave back within [`Settings::min_remaining`] of the end of its
//! allocation, or that Slurm ended by TIMEOUT, was *cut off*: the event says how much time its
//! worker had left when it began, and the next attempt wants twice that. Only cut-offs with at
//! least half of the longest walltime on offer count (of one that began late nothing is known),
//! as a number of their own; after `max_cut_offs` of them, which its run says, the episode is set
//! aside. It ends: each cut-off either counts or doubles what is wanted next. What was set aside is
//! remembered beyond its run ([`state::State::set_aside`]).
//!
//! ## What a worker turns out to be
//!
//! A hello says whether the worker takes leases ([`state::Readiness`]). One that prepares itself
//! (it makes the base image) holds its place in the plan, is not idle for
//! [`Settings::prepare_limit`], and proves nothing of its pool until it is ready. What workers
//! report bounds what their pool promises ([`allocation::PoolRecord::offer`]), so that what fits
//! the promise alone is not asked for again and again.
//!
//! # Money
//!
//! A [`ledger`] keeps what a run may spend: one account for each scope (the run, each agent,
//! the judge, each episode with a cap of its own), and one purse for each attempt and kind of
//! calls. Single calls are never seen here; a worker reserves them out of what its purse was
//! granted, and a grant is durable before it is answered.
//!
//! ## What counts
//!
//! A purse is four sums that only grow, and reports of it are merged sum by sum: one that is
//! repeated, late or out of order changes nothing. An account's `settled + escrow` never exceeds
//! its cap, whatever is lost and whoever dies, but for what vendors bill beyond the bounds of
//! calls, which is counted beside it ([`Invariant::MoneyWithinCap`]).
//!
//! | the attempt | its purse counts as settled | and in escrow |
//! |---|---|---|
//! | lives | what its calls cost | what it was granted, and has neither spent nor given back |
//! | ended, and said what its purses came to | what its calls cost | nothing |
//! | was lost, or ended without a word about the purse | all that it was granted and is not known to have given back | nothing |
//!
//! So a lost attempt counts whole, marked unconfirmed, until somebody who has its spool says what
//! became of the money: [`Command::EscrowReported`] frees what that gives back in so many words,
//! [`Command::PursesClosed`] also what the attempt was granted and never heard of. Either way it
//! happens exactly once, and also after the run was forgotten: of that the sums are kept, and the
//! purses that were lost. What is then said of other attempts is dropped: their last word had
//! been heard.
//!
//! ## Who gets how much
//!
//! A request gets what its call needs, and some to spare: half of what its attempt has spent so
//! far, at least one bound of the call and at most eight, and no more than half of what is left in
//! any scope divided by the purses that live there. So chunks shrink to what one call needs
//! as the end comes near, and where somebody waits there is nothing to spare. Without any cap it
//! is 32 bounds. What a worker that dies can waste is therefore, for each attempt on it and
//! beside the calls in flight, at most nine bounds of a call; near the cap, one.
//!
//! A request that does not fit waits its turn. Whoever is short in a scope keeps all that come
//! later from that scope, so that small calls do not starve a large one; scopes that are not
//! short go on. While somebody waits, what is free elsewhere in that scope is asked back
//! ([`Effect::RecallEscrow`]), from each purse once until it has spent or was granted more: also
//! from those that wait themselves, or they would wait for each other. Just what a call needs is
//! not asked back before the call was made, or the same purse asks for still more. A request is refused only when what is *settled* and
//! its own bound exceed a cap, since all else may come back; waiting ones are looked at after
//! every command. Who waits is journalled, as with layers: a restart changes no turn, and a
//! worker repeats what it asked in any case.
//!
//! Episodes that wait and were never granted anything are settled as not started as soon as
//! their run or agent has less left unsettled than the smallest call that the agent ever asked
//! for (or is stopped): no money in flight could change that, only a person who raises the cap
//! before, or a spool found later. Those that were granted money once get their next attempt all
//! the same, and end in order when its first call is refused; agents without endpoints need no
//! money, and start.
//!
//! A vendor that bills more than the bound is paid what it says; the difference shows as the
//! overshoot of every account above. If it is more than a hundredth of an account's cap, bounds
//! are not to be trusted there: that scope is stopped, until a person raises its cap. Where it
//! leaves more committed than the cap, money is asked back as if somebody waited.
//!
//! ## Endpoints
//!
//! While an endpoint is down ([`Command::EndpointSeen`]), episodes whose agent needs it get no
//! lease, as long as a live attempt needs it too and will notice its return; where there is
//! none, one is let go ahead.

pub mod allocation;
mod apply;
mod command;
mod decide;
mod effect;
mod effects;
mod engine;
mod event;
mod invariants;
mod lease;
pub mod ledger;
mod plan;
mod query;
mod restored;
mod settings;
pub mod snapshot;
mod standing;
pub mod state;
mod volatile;

pub use allocation::{
    AllocationId, JobEnd, JobId, JobPhase, JobSeen, PartitionOffer, Pool, PoolId, Token, WorkerAllocation,
};
pub use command::{Command, LayerOutcome, PlanProblem, PoolProblem, Rejection};
pub use effect::{Effect, EscrowRest, LayerAnswer, Notice, RevokeReason};
pub use engine::{Engine, HeartbeatReply};
pub use event::{Departure, Event};
pub use invariants::{Invariant, Violation};
pub use lease::LeaseRef;
pub use ledger::{ScopeName, ScopeNameError, ScopeView};
pub use plan::{AllocationView, Hold, PoolPlan, PoolWhy};
pub use query::{Away, LiveAttempt, WaitReason, WorkerView};
pub use restored::{Restored, Spent};
pub use settings::Settings;
pub use snapshot::{Snapshot, SnapshotError};
