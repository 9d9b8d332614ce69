//! A store that was restored from a backup: closed until somebody accepts what it does not know.

use longhaul_core::ids::{AttemptId, Epoch};
use longhaul_core::money::Money;
use longhaul_engine::state::EpisodeState;
use longhaul_engine::{Command, Effect, Event, LeaseRef, Rejection, Snapshot, WaitReason};

use crate::bench::{Bench, capacity, episode, run_id, settings, small, worker_id};
use crate::ledger::{Wallet, capped, cents, of_run, priced};

const RESTORED: Command = Command::StoreRestored { incarnation: 7 };

fn accept(bench: &mut Bench) -> Vec<Event> {
    bench.step(Command::AcceptRestore { by: "somebody".to_owned() })
}

/// The lease that the lost store had given out after its backup.
fn after(index: u32, number: u32) -> LeaseRef {
    let attempt = AttemptId { episode: episode(1, index), number };
    LeaseRef { attempt, epoch: Epoch(100 + 10 * u64::from(index) + u64::from(number)) }
}

#[test]
fn what_was_live_is_over_and_nothing_is_begun_or_paid_before_it_is_accepted() {
    let mut bench = Bench::new();
    let refused = bench.try_step(Command::AcceptRestore { by: "somebody".to_owned() });
    assert_eq!(refused, Err(Rejection::NotRestored));
    bench.submit(1, priced(2, capped(cents(1_000))));
    bench.connect(1, capacity(1_000, 100_000, 1));
    let mut wallet = Wallet::of(&bench, 0);
    wallet.call(&mut bench, cents(10), cents(4));
    let lease = wallet.lease;
    bench.step(Command::CoordinatorRestarted);
    assert!(matches!(bench.step(RESTORED)[..], [Event::StoreRestored { .. }, Event::AttemptLost { .. }, _]));
    assert!(bench.step(RESTORED).is_empty(), "it is known");

    assert!(!bench.is_active(1, 0), "what was live is over");
    assert_eq!(of_run(&bench).escrow, Money::ZERO);
    let whole = of_run(&bench).settled;
    assert!(whole > cents(4), "and what it had in flight counts whole: {whole}");
    bench.connect(2, capacity(100_000, 100_000, 0));
    assert!(bench.held_by(2).is_empty() && !bench.is_active(1, 1));
    assert_eq!(bench.engine.why_waiting(episode(1, 1)), Some(WaitReason::NotAccepted));
    let events = bench.connect_with(1, capacity(1_000, 100_000, 1), vec![lease]);
    let stale = bench.engine.effects(&events).into_iter().find_map(|effect| match effect {
        Effect::Welcome { stale, .. } => Some(stale),
        _ => None,
    });
    assert_eq!(stale, Some(vec![lease]), "its worker stops it");
    let purses = wallet.closed();
    bench.step(Command::PursesClosed { lease, purses });
    assert_eq!(of_run(&bench).settled, cents(4), "and says what it was");
    bench.pass(10_000_000);
    assert_eq!(bench.engine.state().workers.len(), 2, "nobody is given up");
    let deadline = bench.engine.next_deadline().expect("time passes");
    assert!(deadline > bench.now, "and nobody is woken for it");

    let text = serde_json::to_string(&bench.engine.snapshot()).expect("snapshots are JSON");
    let snapshot: Snapshot = serde_json::from_str(&text).expect("it reads back");
    let again = longhaul_engine::Engine::from_snapshot(settings(), snapshot).expect("the format is known");
    assert!(again.state().is_closed(), "also after a restart");

    accept(&mut bench);
    assert!(bench.is_active(1, 0) && bench.is_active(1, 1));
    assert!(bench.lease(1, 1).epoch > Epoch(1 << 39), "above all that the lost store can have given out");
    assert_eq!(bench.lease(1, 0).attempt.number, 2);
    let mut again = Wallet::of(&bench, 0);
    again.call(&mut bench, cents(10), cents(1));
    assert_eq!(of_run(&bench).settled, cents(5), "what was spent before counts");
    assert!(accept(&mut bench).is_empty(), "once is enough");
    bench.engine.check_invariants().expect("the invariants hold");
}

#[test]
fn what_began_after_the_backup_is_over_and_its_money_counts() {
    let mut bench = Bench::new();
    bench.submit(1, priced(2, capped(cents(1_000))));
    bench.connect(1, capacity(1_000, 100_000, 1));
    let held = bench.lease(1, 0);
    let (beyond, beside) = (after(0, 3), after(1, 1));
    bench.step(RESTORED);
    // A later attempt of an episode whose attempt in the backup was live, and one of another.
    bench.connect_with(2, capacity(1_000, 100_000, 1), vec![beyond, beside]);
    let state = &bench.engine.episode(episode(1, 0)).expect("it is there").state;
    assert!(matches!(state, EpisodeState::Queued { .. }), "{state:?}");
    assert_eq!(bench.engine.state().holder(held), None);
    let mut wallet = Wallet::of_lease(beyond);
    wallet.purse.grant(cents(50));
    let number = wallet.reserve(cents(20));
    wallet.purse.settle(number, cents(15), longhaul_core::call::Certainty::Reported);
    let (lease, purses) = (wallet.lease, wallet.closed());
    bench.step(Command::PursesClosed { lease, purses: purses.clone() });
    bench.step(Command::PursesClosed { lease, purses });
    assert_eq!(of_run(&bench).settled, cents(15), "once");
    // The one between, which was lost, and of which a spool is found.
    let between = after(0, 2);
    bench.step(Command::AttemptHeard { worker: worker_id(2), lease: between });
    assert!(bench.step(Command::AttemptHeard { worker: worker_id(2), lease: between }).is_empty());
    bench.engine.check_invariants().expect("the invariants hold");
    let after: Vec<AttemptId> = bench.engine.state().restored.as_ref().expect("it is").after.iter().copied().collect();
    assert_eq!(after, [between.attempt, beyond.attempt, beside.attempt]);
    accept(&mut bench);
    bench.pass_with(1_000, &[1, 2]);
    let numbers = [0, 1].map(|index| bench.lease(1, index).attempt.number);
    assert_eq!(numbers, [4, 2], "they are numbered on");
    bench.engine.check_invariants().expect("the invariants hold");
}

#[test]
fn an_attempt_that_nobody_knows_is_taken_in_after_a_restore_alone() {
    let mut bench = Bench::new();
    bench.submit(1, small(1));
    bench.connect(1, capacity(1_000, 8_000, 1));
    let unknown = after(0, 2);
    assert!(bench.step(Command::AttemptHeard { worker: worker_id(1), lease: unknown }).is_empty());
    bench.step(RESTORED);
    let too_far = after(0, 2_000_000);
    assert!(bench.step(Command::AttemptHeard { worker: worker_id(1), lease: too_far }).is_empty());
    let elsewhere = LeaseRef { attempt: AttemptId { episode: episode(9, 0), number: 1 }, epoch: Epoch(5) };
    assert!(bench.step(Command::AttemptHeard { worker: worker_id(1), lease: elsewhere }).is_empty());
    accept(&mut bench);
    assert!(bench.step(Command::AttemptHeard { worker: worker_id(1), lease: unknown }).is_empty());
    assert_eq!(bench.engine.state().runs[&run_id(1)].open, 1);
}
