//! How many requests for money are decided in a second: printed, and asserted by nobody.

use std::time::Instant;

use longhaul_core::call::{Certainty, PurseKind};
use longhaul_core::money::Money;
use longhaul_core::purse::Purse;
use longhaul_engine::Command;

use crate::bench::{Bench, capacity};
use crate::ledger::{capped, priced};

const ATTEMPTS: usize = 500;
const ROUNDS: u32 = 20;

/// 500 live attempts under one cap; each asks, calls and reports in turn. Every decision, all
/// that follows from it, its effects and its events as JSON are counted; the sync is not.
#[test]
#[expect(clippy::disallowed_methods, reason = "it measures, and decides nothing")]
fn requests_for_money_are_decided_quickly_enough_to_be_no_bottleneck() {
    let bound = Money::from_nanos(1_000_000);
    for (name, cap) in [("plenty", Money::from_dollars(1_000)), ("near the cap", bound.saturating_mul(700))] {
        let mut bench = Bench::new();
        bench.submit(1, priced(ATTEMPTS, capped(cap)));
        bench.connect(1, capacity(1_000_000, 1_000_000, 0));
        while bench.held_by(1).len() < ATTEMPTS {
            bench.held_by(1).into_iter().for_each(|lease| bench.engine.observe_started(lease));
            bench.step(Command::Tick);
        }
        let mut purses: Vec<_> = bench.held_by(1).into_iter().map(|lease| (lease, Purse::default())).collect();
        let (mut requests, mut commands) = (0_u32, 0_u32);
        let started = Instant::now();
        for round in 0..ROUNDS {
            for (lease, own) in &mut purses {
                own.grant(
                    bench
                        .engine
                        .state()
                        .purse(lease.attempt, PurseKind::Episode)
                        .map_or(Money::ZERO, |known| known.state.granted),
                );
                let (lease, purse) = (*lease, PurseKind::Episode);
                let command = match own.reserve(round, bound) {
                    Ok(()) => {
                        own.settle(round, Money::from_nanos(bound.nanos() / 4), Certainty::Reported);
                        own.give_back(Money::ZERO);
                        Command::EscrowReported { lease, purse, state: own.state() }
                    }
                    Err(short) => {
                        requests += 1;
                        let state = own.state();
                        let bound = state.settled.saturating_add(bound);
                        Command::EscrowRequested { lease, purse, state, wanted: short.wanted, bound }
                    }
                };
                commands += 1;
                let events = bench.engine.step(bench.now, command).expect("it is accepted");
                let stored: usize =
                    events.iter().map(|event| serde_json::to_vec(event).expect("events are JSON").len()).sum();
                assert!(bench.engine.effects(&events).len() <= ATTEMPTS * 2 && stored < 1 << 20);
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        bench.engine.check_invariants().expect("the invariants hold");
        println!(
            "{name}: {:.0} requests and {:.0} commands about money in a second",
            f64::from(requests) / seconds,
            f64::from(commands) / seconds
        );
    }
}
