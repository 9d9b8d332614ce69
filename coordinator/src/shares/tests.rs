//! Shares as they move, and that they never add up to more than there is.

use longhaul_core::endpoint::{ModelLimits, Protocol};
use proptest::prelude::*;

use super::*;

fn worker(number: u32) -> WorkerId {
    WorkerId::new(Timestamp(1), number)
}

fn run() -> RunId {
    RunId::new(Timestamp(1), 1)
}

fn endpoint(limits: RateLimits) -> EndpointPlan {
    EndpointPlan {
        name: "model".to_owned(),
        protocol: Protocol::OpenAi,
        vendor: "some".to_owned(),
        urls: vec!["http://a".to_owned()],
        secret: None,
        limits,
        model_limits: Vec::new(),
        call_limit: Millis(1),
        retries: 0,
        relay: false,
        replicas_file: None,
    }
}

fn shares(concurrent: u32) -> Shares {
    let mut shares = Shares::new(Millis::from_secs(90), Millis::from_secs(5));
    let limits = RateLimits { concurrent: Some(concurrent), requests_per_minute: Some(600), tokens_per_minute: None };
    shares.learn(run(), &[endpoint(limits)]);
    shares
}

fn word(demand: u32, down: &str, answered: bool) -> v1::EndpointWord {
    v1::EndpointWord {
        endpoint: "model".to_owned(),
        demand,
        down: down.to_owned(),
        answered,
        down_millis: 3_000,
        models: Vec::new(),
    }
}

fn told(all: &[(WorkerId, v1::EndpointShares)], who: u32) -> Option<(u32, u64)> {
    let (_, shares) = all.iter().find(|(id, _)| *id == worker(who))?;
    Some((shares.shares[0].concurrent.unwrap(), shares.number))
}

const AT: Timestamp = Timestamp(1_000_000);

#[test]
fn a_share_is_taken_before_it_is_given() {
    let mut shares = shares(10);
    shares.joined(worker(1));
    assert_eq!(told(&shares.divide(AT), 1), Some((10, 1)), "whoever is alone has all of it");
    shares.acted_by(worker(1), 1);
    shares.joined(worker(2));
    let first = shares.divide(AT);
    assert_eq!(told(&first, 1), Some((5, 2)), "half of it is taken");
    assert_eq!(told(&first, 2), Some((0, 1)), "and not given yet");
    assert_eq!(told(&shares.divide(AT), 2), None);
    shares.acted_by(worker(1), 2);
    assert_eq!(told(&shares.divide(AT), 2), Some((5, 2)));
}

#[test]
fn the_first_limit_of_an_endpoint_in_use_is_given_to_others_only_when_it_is_kept() {
    let mut shares = Shares::new(Millis::from_secs(90), Millis::from_secs(5));
    shares.learn(run(), &[endpoint(RateLimits::default())]);
    shares.joined(worker(1));
    let first = shares.divide(AT);
    assert_eq!(first[0].1.shares[0].concurrent, None, "there is no limit yet");
    shares.acted_by(worker(1), 1);
    // Another run brings one, and the worker comes back before it has said that it acts by it.
    let limits = RateLimits { concurrent: Some(4), ..RateLimits::default() };
    shares.learn(RunId::new(Timestamp(1), 2), &[endpoint(limits)]);
    shares.joined(worker(2));
    assert_eq!(told(&shares.divide(AT), 2), Some((0, 1)), "the first one may be using all of it");
    shares.left(worker(1), AT);
    shares.joined(worker(1));
    assert_eq!(told(&shares.divide(AT), 1), Some((2, 1)));
    assert_eq!(told(&shares.divide(AT), 2), None);
    shares.acted_by(worker(1), 1);
    assert_eq!(told(&shares.divide(AT), 2), Some((2, 2)));
}

#[test]
fn who_could_use_more_gets_more_and_what_is_too_small_for_all_goes_round() {
    assert_eq!(by_demand(10, &[8, 1, 0], 0), [8, 1, 1]);
    assert_eq!(by_demand(10, &[20, 20, 1], 0), [5, 4, 1]);
    assert_eq!(by_demand(9, &[0, 0, 0], 0), [3, 3, 3]);
    assert_eq!(by_demand(4, &[], 0), [0_u64; 0]);
    let turns: Vec<Vec<u64>> = (0..3).map(|turn| by_demand(1, &[5, 5, 5], turn)).collect();
    assert_eq!(turns, [[1, 0, 0], [0, 1, 0], [0, 0, 1]]);
    assert_eq!(by_weight(600, &[9, 0, 0], 0), [500, 50, 50]);
}

#[test]
fn a_models_limits_are_divided_by_the_demand_for_it_beside_those_of_its_endpoint() {
    let mut shares = shares(10);
    let limits = RateLimits { concurrent: Some(4), ..RateLimits::default() };
    let model_limits = vec![ModelLimits { model: "a*".to_owned(), limits }];
    let other = RunId::new(Timestamp(1), 2);
    shares.learn(other, &[EndpointPlan { model_limits, ..endpoint(RateLimits::default()) }]);
    for who in [1, 2] {
        shares.joined(worker(who));
    }
    let of = |models: &[(&str, u32)]| {
        let models =
            models.iter().map(|(model, demand)| v1::ModelDemand { model: (*model).to_owned(), demand: *demand });
        v1::EndpointWord { models: models.collect(), ..word(5, "", false) }
    };
    shares.word(worker(1), &of(&[("a*", 5)]), AT);
    shares.word(worker(2), &of(&[]), AT);
    let told = shares.divide(AT);
    let amounts = |who: u32| {
        let (_, shares) = told.iter().find(|(id, _)| *id == worker(who)).unwrap();
        shares.shares.iter().map(|share| (share.model.clone(), share.concurrent.unwrap())).collect::<Vec<_>>()
    };
    let expected = |model| [(String::new(), 5), ("a*".to_owned(), model)];
    assert_eq!((amounts(1), amounts(2)), (expected(4).to_vec(), expected(0).to_vec()));
    shares.forget(|run| run != other);
    assert_eq!(shares.divide(AT)[0].1.shares.len(), 1, "no open run gives it limits");
}

/// One place for two workers that both want it, and say every five seconds that they are there: each
/// has it in its turn, and never both.
#[test]
fn what_is_too_small_for_all_comes_to_each_in_its_turn() {
    for offset in 0..5 {
        let mut shares = shares(1);
        let mut acts: BTreeMap<u32, (u32, u64)> = BTreeMap::new();
        let mut had: BTreeMap<u32, u64> = BTreeMap::new();
        for who in [1, 2] {
            shares.joined(worker(who));
        }
        for second in 0..240 {
            let now = AT.plus(Millis::from_secs(second));
            for who in [1, 2] {
                if (second + u64::from(who) * offset) % 5 == 0 {
                    shares.word(worker(who), &word(9, "", false), now);
                    shares.acted_by(worker(who), acts.get(&who).map_or(0, |(_, number)| *number));
                }
            }
            for (id, message) in shares.divide(now) {
                let who = if id == worker(1) { 1 } else { 2 };
                acts.insert(who, (message.shares[0].concurrent.unwrap(), message.number));
            }
            assert!(acts.values().map(|(amount, _)| amount).sum::<u32>() <= 1);
            for (who, (amount, _)) in &acts {
                *had.entry(*who).or_default() += u64::from(*amount);
            }
        }
        assert!(had.values().all(|seconds| *seconds >= 60) && had.len() == 2, "{had:?} at offset {offset}");
    }
}

#[test]
fn the_share_of_a_worker_that_is_cut_off_is_free_when_its_leases_are_over() {
    let mut shares = shares(10);
    shares.joined(worker(1));
    shares.divide(AT);
    shares.acted_by(worker(1), 1);
    shares.left(worker(1), AT);
    shares.joined(worker(2));
    assert_eq!(told(&shares.divide(AT), 2), Some((0, 1)), "the other may still be calling");
    assert_eq!(told(&shares.divide(AT.plus(Millis::from_secs(80))), 2), None);
    assert_eq!(told(&shares.divide(AT.plus(Millis::from_secs(91))), 2), Some((10, 2)));
}

#[test]
fn an_endpoint_is_down_when_all_who_call_it_say_so_and_up_when_one_is_answered() {
    let mut shares = shares(10);
    shares.joined(worker(1));
    shares.joined(worker(2));
    shares.word(worker(1), &word(3, "connection refused", false), AT);
    shares.word(worker(2), &word(2, "", false), AT);
    assert_eq!(shares.news(AT), [], "one of them says nothing of the kind");
    shares.word(worker(2), &word(2, "no route", false), AT);
    assert_eq!(shares.news(AT), [("model".to_owned(), Some("connection refused".to_owned()))]);
    assert_eq!(shares.news(AT), []);
    assert!(shares.divide(AT).iter().all(|(_, shares)| shares.shares[0].down));
    shares.word(worker(2), &word(2, "", true), AT);
    assert_eq!(shares.news(AT), [("model".to_owned(), None)]);
    assert!(shares.divide(AT).iter().all(|(_, shares)| !shares.shares[0].down));
}

#[test]
fn an_endpoint_of_which_nobody_says_anything_is_tried_again() {
    let mut shares = shares(10);
    shares.joined(worker(1));
    shares.word(worker(1), &word(1, "gone", false), AT);
    assert_eq!(shares.news(AT).len(), 1);
    assert_eq!(shares.news(AT.plus(Millis::from_secs(59))), []);
    assert_eq!(shares.news(AT.plus(Millis::from_secs(61))), [("model".to_owned(), None)]);
}

/// What may happen, and in which order messages arrive.
#[derive(Clone, Copy, Debug)]
enum Move {
    Join(u32),
    Leave(u32),
    Demand(u32, u32),
    /// The worker takes in one message that is on its way.
    Hear(u32),
    /// Its heartbeat arrives.
    Beat(u32),
    Wait(u64),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let who = || 1_u32..5;
    let one = prop_oneof![
        who().prop_map(Move::Join),
        who().prop_map(Move::Leave),
        (who(), 0_u32..30).prop_map(|(who, demand)| Move::Demand(who, demand)),
        who().prop_map(Move::Hear),
        who().prop_map(Move::Hear),
        who().prop_map(Move::Beat),
        (1_u64..60_000).prop_map(Move::Wait),
    ];
    proptest::collection::vec(one, 0..120)
}

/// A worker as it is in truth.
#[derive(Default)]
struct Truth {
    acts_by: Option<(u64, u32)>,
    on_the_way: VecDeque<(u64, u32)>,
    connected: bool,
    leases_over: u64,
}

proptest! {
    /// However messages are delayed and sessions come and go, what workers act by adds up to no
    /// more than the limit. A cut-off worker calls until its leases are over; a worker that was
    /// told nothing has no lease yet.
    #[test]
    fn workers_never_act_by_more_than_the_limit(limit in 0_u32..12, moves in moves()) {
        let mut shares = shares(limit);
        let mut truth: BTreeMap<u32, Truth> = BTreeMap::new();
        let mut now = AT;
        for step in moves {
            match step {
                Move::Join(who) => {
                    let known = truth.entry(who).or_default();
                    known.on_the_way.clear();
                    known.connected = true;
                    if let Some(acts) = &mut known.acts_by {
                        acts.0 = 0;
                    }
                    shares.joined(worker(who));
                }
                Move::Leave(who) => {
                    if let Some(known) = truth.get_mut(&who).filter(|known| known.connected) {
                        known.connected = false;
                        known.on_the_way.clear();
                        known.leases_over = now.0 + 60_000;
                        shares.left(worker(who), now);
                    }
                }
                Move::Demand(who, demand) => {
                    if truth.get(&who).is_some_and(|known| known.connected) {
                        shares.word(worker(who), &word(demand, "", false), now);
                    }
                }
                Move::Hear(who) => {
                    if let Some(known) = truth.get_mut(&who)
                        && let Some(message) = known.on_the_way.pop_front()
                    {
                        known.acts_by = Some(message);
                    }
                }
                Move::Beat(who) => {
                    if let Some(known) = truth.get(&who).filter(|known| known.connected) {
                        shares.acted_by(worker(who), known.acts_by.map_or(0, |acts| acts.0));
                    }
                }
                Move::Wait(millis) => now = now.plus(Millis(millis)),
            }
            for (id, message) in shares.divide(now) {
                let known = truth.iter_mut().find(|(who, _)| worker(**who) == id).unwrap().1;
                prop_assert!(known.connected);
                known.on_the_way.push_back((message.number, message.shares[0].concurrent.unwrap()));
            }
            for known in truth.values_mut() {
                // Its leases ran out, and with them all that it did; it begins anew.
                if !known.connected && now.0 >= known.leases_over {
                    known.acts_by = None;
                }
            }
            let sum: u32 = truth.values().filter_map(|known| Some(known.acts_by?.1)).sum();
            prop_assert!(sum <= limit, "{sum} of {limit}");
        }
    }

    #[test]
    fn a_division_gives_out_exactly_the_limit(limit in 0_u64..1000, demands in proptest::collection::vec(0_u64..50, 1..20), turn: u64) {
        prop_assert_eq!(by_demand(limit, &demands, turn).iter().sum::<u64>(), limit);
        prop_assert_eq!(by_weight(limit, &demands, turn).iter().sum::<u64>(), limit);
    }
}
