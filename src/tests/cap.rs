//! A cap on dollars against everything at once: episodes that want twice the money there is, a
//! provider that bills calls whose answer never comes, and workers and a coordinator that are
//! killed at random. What the provider itself has counted is never more than the cap, to the last
//! unit, and nearly all of it.
//!
//! All of it is real but for the sandboxes and the provider: processes, sockets, the store, spools,
//! sessions, the gateway, and one of our loops as the agent.

#![expect(clippy::unwrap_used, reason = "what cannot go on fails the test")]
#![expect(clippy::print_stdout, reason = "the figures of docs/performance.md")]

#[path = "cap/cluster.rs"]
mod cluster;
#[path = "cap/plan.rs"]
mod plan;
#[path = "cap/provider.rs"]
mod provider;
#[path = "cap/sandbox.rs"]
mod sandbox;

use std::time::{Duration, Instant};

use longhaul_core::money::Money;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use cluster::Cluster;
use provider::{Manners, Provider};

/// How a test is set up.
struct Setup {
    episodes: u32,
    steps: u32,
    workers: usize,
    slots: u32,
    cap: Money,
    manners: Manners,
    /// How often something is killed, once calls are made.
    kill_every: Duration,
    kills: u32,
    seed: u64,
}

/// What came of it.
#[derive(Debug)]
struct Outcome {
    cap: Money,
    /// By the provider's own count.
    billed: Money,
    /// Of that, what went beyond the limits of requests.
    excess: Money,
    calls: u64,
    budget: cluster::Budget,
    /// What the calls in the store come to.
    stored: Money,
    worker_kills: u32,
    coordinator_kills: u32,
    seconds: u64,
    /// What `longhaul budget show` says in its last line.
    shown: String,
    /// How many questions about money the coordinator answered, as far as its journal goes back.
    answers: u64,
}

/// The process of a worker, when this program is started as one; nothing in a test run.
#[test]
fn worker_role() {
    cluster::worker_role();
}

async fn run(setup: Setup) -> Outcome {
    let provider = Provider::start(setup.manners, setup.seed).await;
    let mut cluster = Cluster::start(setup.slots).await;
    let run = plan::submit(&cluster, &provider, setup.episodes, setup.steps, setup.cap).await;
    for _ in 0..setup.workers {
        cluster.start_worker();
    }
    let mut rng = StdRng::seed_from_u64(setup.seed);
    let (mut worker_kills, mut coordinator_kills) = (0, 0);
    let start = Instant::now();
    let mut next = Duration::ZERO;
    loop {
        assert!(start.elapsed() < Duration::from_secs(3000), "it does not come to an end");
        if cluster.is_settled(&run).await {
            break;
        }
        if provider.calls() == 0 {
            next = start.elapsed() + setup.kill_every;
        } else if worker_kills + coordinator_kills < setup.kills && start.elapsed() >= next {
            next = start.elapsed() + setup.kill_every.mul_f64(rng.random_range(0.5..1.5));
            // At least the last one, where chance has spared it.
            let last = worker_kills + 1 == setup.kills;
            if rng.random_ratio(1, 4) || last {
                cluster.kill_coordinator().await;
                coordinator_kills += 1;
            } else {
                cluster.kill_worker(rng.random_range(0..setup.workers));
                worker_kills += 1;
            }
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // One more, so that what dead ones have left is found.
    cluster.start_worker();
    let seconds = start.elapsed().as_secs();
    let budget = cluster.until_nothing_is_in_flight(&run).await;
    let stored = cluster.stored_calls(&run, setup.episodes).await;
    let shown = cluster.shown_budget(&run).await;
    let answers = cluster.stop().await;
    Outcome {
        cap: setup.cap,
        billed: provider.billed(),
        excess: provider.excess(),
        calls: provider.calls(),
        budget,
        stored,
        worker_kills,
        coordinator_kills,
        seconds,
        shown,
        answers,
    }
}

impl Outcome {
    /// For people, and for docs/performance.md.
    fn print(&self) {
        let Self { cap, billed, excess, calls, budget, stored, seconds, .. } = self;
        let Self { worker_kills, coordinator_kills, shown, answers, .. } = self;
        println!(
            "cap {cap}, billed by the provider {billed} ({excess} beyond limits) for {calls} calls in {seconds} s"
        );
        println!(
            "settled {} ({} unconfirmed), calls in the store {stored}, most in flight {}, overshoot {}",
            budget.settled, budget.unconfirmed, budget.largest_exposure, budget.overshoot
        );
        println!("{worker_kills} workers and {coordinator_kills} coordinators were killed");
        println!("{answers} answers about money in the journal");
        println!("{shown}");
    }
}

/// A percentage of an amount.
fn percent(of: Money, percent: u64) -> Money {
    of.scaled_up(percent, 100).unwrap()
}

/// The cap held to the last unit, and at least so many percent of it were spent.
fn expect_the_cap_held(outcome: &Outcome, least: u64) {
    let Outcome { cap, billed, budget, stored, .. } = outcome;
    assert!(billed <= cap, "{billed} were billed, and {cap} is the cap: {outcome:?}");
    assert!(*billed >= percent(*cap, least), "only {billed} of {cap} were spent: {outcome:?}");
    assert!(budget.settled >= *billed, "{billed} were billed and {} are known of: {outcome:?}", budget.settled);
    assert!(budget.settled <= *cap, "{outcome:?}");
    assert_eq!(budget.overshoot, Money::ZERO, "{outcome:?}");
    // Every spool was found: each amount is that of a call that is in the store.
    assert_eq!(*stored, budget.settled, "{outcome:?}");
    assert!(outcome.worker_kills > 0 && outcome.coordinator_kills > 0, "nothing was killed: {outcome:?}");
}

/// A step of an episode comes to about 0.18 cents: twice what there is.
fn cap_for(episodes: u32, steps: u32) -> Money {
    Money::from_nanos(u64::from(episodes) * u64::from(steps) * 900_000)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

#[test]
fn sixty_episodes_spend_one_cap_nearly_whole_and_never_more_whatever_is_killed() {
    let outcome = runtime().block_on(run(Setup {
        episodes: 60,
        steps: 10,
        workers: 3,
        slots: 8,
        cap: cap_for(60, 10),
        manners: Manners::default(),
        kill_every: Duration::from_millis(1500),
        kills: 8,
        seed: 11,
    }));
    outcome.print();
    // What one call may cost is itself near a percent of so small a cap.
    expect_the_cap_held(&outcome, 98);
}

/// With `make test-all`: its figures are in docs/performance.md.
#[test]
fn five_hundred_episodes_spend_one_cap_nearly_whole_and_never_more_whatever_is_killed() {
    let outcome = runtime().block_on(run(Setup {
        episodes: 500,
        steps: 20,
        workers: 5,
        slots: 16,
        cap: cap_for(500, 20),
        manners: Manners::default(),
        kill_every: Duration::from_millis(1200),
        kills: 16,
        seed: 12,
    }));
    outcome.print();
    expect_the_cap_held(&outcome, 99);
}

/// The most that a call may cost: all of its output, and what its text and pictures are at most.
const CALL_BOUND: Money = Money::from_nanos(2_100_000);

#[test]
fn a_provider_that_bills_beyond_the_bound_now_and_then_moves_the_end_of_spending_by_that_alone() {
    let outcome = runtime().block_on(run(Setup {
        episodes: 60,
        steps: 10,
        workers: 3,
        slots: 8,
        cap: cap_for(60, 10),
        manners: Manners { exceeds: 0.02, beyond: 15, ..Manners::default() },
        kill_every: Duration::from_millis(700),
        kills: 8,
        seed: 14,
    }));
    outcome.print();
    let Outcome { cap, billed, excess, budget, stored, shown, .. } = &outcome;
    assert!(!excess.is_zero() && !budget.overshoot.is_zero(), "{outcome:?}");
    assert!(budget.overshoot <= *excess, "{outcome:?}");
    // So little of the cap is no reason to stop: it ends since no call fits any more.
    assert!(*excess < percent(*cap, 1) && !budget.stopped.contains("is stopped"), "{outcome:?}");
    // What was billed within the bounds is within the cap; and all of it ends near the cap, by one
    // call and a hundredth, on either side.
    let near = CALL_BOUND.saturating_add(percent(*cap, 1));
    assert!(billed.saturating_sub(*excess) <= *cap, "{outcome:?}");
    assert!(*billed >= cap.saturating_sub(near) && *billed <= cap.saturating_add(near), "{outcome:?}");
    // Whose worker was killed before its answer is settled at its bound, whatever was billed.
    assert!(budget.settled.saturating_add(*excess) >= *billed && *stored == budget.settled, "{outcome:?}");
    assert!(shown.contains(&format!("overshoot {}", budget.overshoot)), "{shown}");
    assert!(outcome.worker_kills > 0 && outcome.coordinator_kills > 0, "nothing was killed: {outcome:?}");
}

/// What an attempt is granted grows with what it has spent: where money is plenty, most calls find theirs
/// in their worker's purse.
#[test]
fn where_money_is_plenty_few_calls_wait_for_the_coordinator() {
    let outcome = runtime().block_on(run(Setup {
        episodes: 8,
        steps: 60,
        workers: 1,
        slots: 8,
        cap: Money::from_dollars(20),
        manners: Manners { hangs: 0.0, breaks: 0.0, ..Manners::default() },
        kill_every: Duration::from_secs(1),
        kills: 0,
        seed: 15,
    }));
    outcome.print();
    assert!(outcome.calls >= 480 && outcome.answers * 4 <= outcome.calls, "{outcome:?}");
    assert_eq!((outcome.billed, outcome.stored), (outcome.budget.settled, outcome.budget.settled), "{outcome:?}");
}

#[test]
fn a_provider_that_bills_beyond_the_bound_is_found_out_shown_and_stopped() {
    let outcome = runtime().block_on(run(Setup {
        episodes: 20,
        steps: 8,
        workers: 1,
        slots: 8,
        cap: cap_for(20, 8),
        manners: Manners { exceeds: 0.1, ..Manners::default() },
        kill_every: Duration::from_secs(1),
        kills: 0,
        seed: 13,
    }));
    outcome.print();
    assert!(!outcome.excess.is_zero());
    assert!(!outcome.budget.overshoot.is_zero(), "{outcome:?}");
    // What is beyond the cap, if anything, is what the provider billed beyond the bounds of calls.
    assert!(outcome.billed.saturating_sub(outcome.excess) <= outcome.cap, "{outcome:?}");
    assert!(outcome.budget.settled >= outcome.billed, "{outcome:?}");
    assert!(!outcome.budget.stopped.is_empty(), "{outcome:?}");
}
