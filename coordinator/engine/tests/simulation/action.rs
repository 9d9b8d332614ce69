//! What may happen, and how often.

use proptest::prelude::*;

use crate::slurm::SlurmAction;

/// One happening. Numbers are selectors: they are resolved against what is there.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Time passes.
    Advance(u64),
    /// Time passes while the coordinator does not get to run.
    Stall(u64),
    /// Messages arrive.
    Deliver(u8),
    /// A worker's attempt goes on: worker, attempt, how it ends.
    Work(u8, u8, u8),
    /// A worker's layer build ends: worker, how.
    Build(u8, u8),
    /// A worker of some size starts.
    StartWorker(u8),
    /// A worker is gone without a word.
    CrashWorker(u8),
    /// A worker gives back what it has and ends.
    LeaveWorker(u8),
    /// A worker stops hearing and beating, or goes on.
    SuspendWorker(u8),
    /// A session breaks, with what was under way on it.
    BreakSession(u8),
    /// A message to the coordinator is lost.
    LoseUp(u8),
    /// A message to a worker is lost.
    LoseDown(u8),
    /// Two messages change places.
    Reorder(u8, u8, u8),
    /// A message from the past arrives once more.
    Repeat(u16),
    /// The coordinator dies: between commands, before or after its next append.
    CrashCoordinator(Option<bool>),
    /// The coordinator starts again.
    StartCoordinator,
    /// The journal is cut.
    Snapshot,
    /// The coordinator's clock is set, by many seconds.
    JumpClock(i16),
    /// The coordinator's clock is off by less than the skew.
    Jitter(i16),
    /// A run is submitted.
    Submit(u8),
    /// A run is cancelled.
    Cancel(u8),
    /// A run is to go on: which, and what of it is done again.
    Resume(u8, u8),
    /// A worker is told to drain.
    Drain(u8),
    /// A settled run is forgotten.
    Forget(u8),
    /// A worker says that its disk is full, or that it is not any more.
    Unfit(u8, bool),
    /// An attempt makes a model call: worker, attempt, how large, how much of it is billed.
    Call(u8, u8, u8, u8),
    /// A model call comes back: worker, which, how.
    Land(u8, u8, u8),
    /// A spool that outlived its worker is found.
    FindSpool(u8),
    /// A cap is raised: run, scope and by how much.
    Raise(u8, u8),
    /// An endpoint goes down, or comes back.
    Endpoint(u8, bool),
    /// Something happens at Slurm.
    Slurm(SlurmAction),
}

/// Actions in the mix that finds most: much ordinary work, and every fault often enough
/// that several meet.
pub(crate) fn actions(length: usize, slurm: bool) -> BoxedStrategy<Vec<Action>> {
    if slurm {
        return prop::collection::vec(prop_oneof![3 => ordinary(), 2 => at_slurm().prop_map(Action::Slurm)], length)
            .boxed();
    }
    prop::collection::vec(ordinary(), length).boxed()
}

fn ordinary() -> impl Strategy<Value = Action> {
    prop_oneof![
        16 => (500_u64..9_000).prop_map(Action::Advance),
        2 => (9_000_u64..60_000).prop_map(Action::Advance),
        1 => (1_000_u64..90_000).prop_map(Action::Stall),
        24 => (1_u8..6).prop_map(Action::Deliver),
        32 => any::<(u8, u8, u8)>().prop_map(|(who, job, choice)| Action::Work(who, job, choice)),
        8 => any::<(u8, u8)>().prop_map(|(who, choice)| Action::Build(who, choice)),
        3 => any::<u8>().prop_map(Action::StartWorker),
        1 => any::<u8>().prop_map(Action::CrashWorker),
        1 => any::<u8>().prop_map(Action::LeaveWorker),
        3 => any::<u8>().prop_map(Action::SuspendWorker),
        4 => any::<u8>().prop_map(Action::BreakSession),
        2 => any::<u8>().prop_map(Action::LoseUp),
        2 => any::<u8>().prop_map(Action::LoseDown),
        4 => any::<(u8, u8, u8)>().prop_map(|(who, from, to)| Action::Reorder(who, from, to)),
        6 => any::<u16>().prop_map(Action::Repeat),
        2 => any::<Option<bool>>().prop_map(Action::CrashCoordinator),
        4 => Just(Action::StartCoordinator),
        2 => Just(Action::Snapshot),
        1 => prop_oneof![-4_000_i16..-60, 60_i16..4_000].prop_map(Action::JumpClock),
        2 => (-2_000_i16..2_000).prop_map(Action::Jitter),
        2 => any::<u8>().prop_map(Action::Submit),
        1 => any::<u8>().prop_map(Action::Cancel),
        2 => any::<(u8, u8)>().prop_map(|(which, kinds)| Action::Resume(which, kinds)),
        1 => any::<u8>().prop_map(Action::Drain),
        2 => any::<u8>().prop_map(Action::Forget),
        2 => any::<(u8, bool)>().prop_map(|(who, full)| Action::Unfit(who, full)),
        16 => any::<(u8, u8, u8, u8)>().prop_map(|(who, job, size, share)| Action::Call(who, job, size, share)),
        12 => any::<(u8, u8, u8)>().prop_map(|(who, which, how)| Action::Land(who, which, how)),
        2 => any::<u8>().prop_map(Action::FindSpool),
        1 => any::<(u8, u8)>().prop_map(|(which, amount)| Action::Raise(which, amount)),
        1 => any::<(u8, bool)>().prop_map(|(which, down)| Action::Endpoint(which, down)),
    ]
}

fn at_slurm() -> impl Strategy<Value = SlurmAction> {
    prop_oneof![
        24 => any::<u8>().prop_map(SlurmAction::Submit),
        24 => any::<bool>().prop_map(SlurmAction::Ask),
        8 => Just(SlurmAction::Answer),
        2 => Just(SlurmAction::Account),
        24 => (any::<u8>(), prop::bool::weighted(0.85)).prop_map(|(which, up)| SlurmAction::Start(which, up)),
        4 => any::<(u8, u8)>().prop_map(|(which, how)| SlurmAction::End(which, how)),
        3 => any::<(u8, bool)>().prop_map(|(which, cut)| SlurmAction::Requeue(which, cut)),
        3 => any::<u8>().prop_map(SlurmAction::Heal),
        1 => Just(SlurmAction::Toggle),
        2 => any::<bool>().prop_map(SlurmAction::Forget),
        8 => Just(SlurmAction::Resume),
    ]
}
