//! Comparisons worked by hand, and what holds of any.

use proptest::prelude::*;

use super::testing::{broken, failed, faulted, passed, round, row, scored, verdict, with_rounds};
use super::{
    Aspect, At, ClusterBy, Comparison, Conclusion, Finding, Options, RoundError, RoundKind, Row, Side, State, compare,
    compare_all,
};
use crate::money::Money;
use crate::outcome::{EndedBy, SettlementKind};
use crate::stats::{Interval, OddsRatio, PairedTable};

fn compared(a: &[Row], b: &[Row]) -> Comparison {
    compared_with(a, b, &Options { resamples: 500, ..Options::default() })
}

fn compared_with(a: &[Row], b: &[Row], options: &Options) -> Comparison {
    compare(&Side { name: "A", rows: a }, &Side { name: "B", rows: b }, options)
}

/// Episodes on tasks of one env each, by whether they passed.
fn outcomes(agent: &str, passes: &[bool]) -> Vec<Row> {
    let named = passes.iter().enumerate().map(|(index, pass)| (format!("env{index}/t"), *pass));
    named.map(|(task, pass)| if pass { passed(agent, &task) } else { failed(agent, &task) }).collect()
}

fn close(found: f64, expected: f64) -> bool {
    (found - expected).abs() < 1e-12
}

#[test]
fn six_against_none_decide_and_five_do_not() {
    // Ten tasks of ten envs. Both pass 1, A alone 6, neither 3: 7/10 against 1/10.
    // p = 2 * (1/2)^6 = 1/32, mid-p 1/64. h = 2 asin(sqrt 0.7) - 2 asin(sqrt 0.1) = 1.3387.
    let of_a = |alone: usize| outcomes("a", &(0..10).map(|index| index <= alone).collect::<Vec<_>>());
    let of_b = outcomes("b", &(0..10).map(|index| index == 0).collect::<Vec<_>>());
    let found = compared(&of_a(6), &of_b);
    let pass = found.pass.as_ref().unwrap();
    assert_eq!(pass.table, PairedTable { both: 1, a_only: 6, b_only: 0, neither: 3 });
    assert_eq!((pass.a.hits, pass.b.hits, pass.a.of), (7, 1, 10));
    assert_eq!((pass.test.p, pass.test.mid_p), (1.0 / 32.0, 1.0 / 64.0));
    assert!(close(pass.difference, 0.6) && (pass.cohen_h - 1.338_7).abs() < 1e-3, "{}", pass.cohen_h);
    assert_eq!((pass.odds_ratio, pass.unknown), (OddsRatio::Infinite, 0));
    assert_eq!(found.conclusion, Conclusion::A);
    // Ten envs are enough to resample them, and no draw of them has a difference of 0 within 95 %.
    assert_eq!(pass.clustered.unwrap().by, ClusterBy::Env);
    assert_eq!(found.over_envs, Some(true));
    assert!(found.findings.is_empty(), "{:?}", found.findings);

    let found = compared(&of_a(5), &of_b);
    assert_eq!(found.pass.as_ref().unwrap().test.p, 1.0 / 16.0);
    assert_eq!(found.conclusion, Conclusion::NotEnough);
    // Five discordant of ten: reckoned with 6/12; at least six are needed to decide anything.
    let reach = found.reach;
    assert_eq!((reach.pairs, reach.discordant, reach.decisive, reach.share), (10, 5, 6, 0.5));
    // sqrt(0.5) * (1.959964 * 3.162278 + 0.841621 * sqrt(10 + 0.708326 - 3.841459)) / 10.708326
    // = 0.707107 * (6.197951 + 2.205448) / 10.708326 = 0.554909 > 0.5: nothing could be seen.
    assert_eq!(reach.detectable, None);
    assert_eq!(compared(&of_b, &of_a(6)).conclusion, Conclusion::B);
}

#[test]
fn sides_without_a_difference_are_alike_only_with_episodes_enough() {
    let half: Vec<bool> = (0..400).map(|index| index % 2 == 0).collect();
    assert_eq!(compared(&outcomes("a", &half), &outcomes("b", &half)).conclusion, Conclusion::Alike);
    let few = &half[..20];
    let found = compared(&outcomes("a", few), &outcomes("b", few));
    assert_eq!(found.conclusion, Conclusion::NotEnough);
    // Though every resample has a difference of exactly 0.
    assert_eq!(found.pass.unwrap().clustered.unwrap().interval, Interval { low: 0.0, high: 0.0 });
}

#[test]
fn what_we_did_not_find_out_is_kept_apart_and_bounded() {
    // Four pairs of verdicts, 2 against 1. In a fifth A faulted and B passed, in a sixth A failed
    // and B is unverified; in a seventh B was never begun, which says nothing of either.
    let mut of_a = outcomes("a", &[true, true, false, false, false, false, true]);
    let mut of_b = outcomes("b", &[true, false, false, false, true, false, false]);
    of_a[4] = faulted("a", "env4/t");
    of_b[5].state = State::Unverified { ended_by: EndedBy::Agent };
    of_b[6].state = State::NotStarted;
    let found = compared(&of_a, &of_b);
    let pass = found.pass.unwrap();
    assert_eq!((pass.a.hits, pass.b.hits, pass.a.of, pass.unknown), (2, 1, 4, 2));
    // Of six, A passed 2 and perhaps a third; B passed 2 and perhaps a third.
    let third = Interval { low: 2.0 / 6.0, high: 3.0 / 6.0 };
    assert_eq!((pass.bounds_a, pass.bounds_b), (third, third));
    assert_eq!(pass.bounds, Interval { low: -1.0 / 6.0, high: 1.0 / 6.0 });
    let kinds: Vec<_> = found
        .findings
        .iter()
        .filter_map(|finding| match finding {
            Finding::WithoutVerdict { agent, kind, episodes } => Some((agent.as_str(), *kind, episodes.len())),
            _ => None,
        })
        .collect();
    let expected =
        [("a", SettlementKind::Faulted, 1), ("b", SettlementKind::Unverified, 1), ("b", SettlementKind::NotStarted, 1)];
    assert_eq!(kinds, expected);
}

#[test]
fn what_only_one_side_has_is_named_and_not_compared() {
    let mut of_a = outcomes("a", &[true, false]);
    of_a.push(passed("a", "only/a"));
    of_a.push(Row { sample: 1, episode: "a/lone".to_owned(), ..passed("a", "env0/t") });
    let mut of_b = outcomes("b", &[false, false]);
    of_b.push(passed("b", "only/b"));
    let found = compared(&of_a, &of_b);
    assert_eq!((found.common_tasks, found.pass.as_ref().unwrap().a.of), (2, 2));
    let one_sided =
        |side: &str, task: &str| Finding::OneSided { side: side.to_owned(), tasks: vec![task.parse().unwrap()] };
    for expected in [
        one_sided("A", "only/a"),
        one_sided("B", "only/b"),
        Finding::Unpaired { side: "A".to_owned(), episodes: vec!["a/lone".to_owned()] },
        Finding::FewEnvs { envs: 2 },
    ] {
        assert!(found.findings.contains(&expected), "{expected:?} in {:?}", found.findings);
    }
    let nothing = compared(&[passed("a", "x/1")], &[passed("b", "y/1")]);
    assert!(nothing.findings.contains(&Finding::NoCommonTask));
    assert_eq!((nothing.pass, nothing.conclusion, nothing.reach.pairs), (None, Conclusion::NotEnough, 0));
    let no_verdict = compared(&[faulted("a", "x/1")], &[passed("b", "x/1")]);
    assert!(no_verdict.findings.contains(&Finding::NoCommonVerdict));
    assert_eq!(compared(&[], &[]).findings, [Finding::NoCommonTask]);
    let mixed = compared(&[passed("a", "x/1"), passed("c", "x/2")], &[]);
    let agents = vec!["a".to_owned(), "c".to_owned()];
    assert!(mixed.findings.contains(&Finding::SeveralAgents { side: "A".to_owned(), agents }));
}

#[test]
fn samples_of_a_task_are_one_coin_and_not_many() {
    // One task, eight samples, all A's: as single pairs p would be 2/256; as a task it is one
    // coin, and p = 1.
    let sample = |row: Row, sample: u32| Row { sample, ..row };
    let of_a: Vec<Row> = (0..8).map(|index| sample(passed("a", "e/1"), index)).collect();
    let of_b: Vec<Row> = (0..8).map(|index| sample(failed("b", "e/1"), index)).collect();
    let pass = compared(&of_a, &of_b).pass.unwrap();
    assert_eq!((pass.table.a_only, pass.test.p), (8, 1.0));
    assert_eq!(pass.clustered, None);
}

#[test]
fn runs_of_one_agent_add_samples() {
    let again = |row: Row| Row { run: "later".to_owned(), ..row };
    let of_a = [passed("a", "e/1"), again(failed("a", "e/1"))];
    let of_b = [failed("b", "e/1"), again(failed("b", "e/1"))];
    let pass = compared(&of_a, &of_b).pass.unwrap();
    assert_eq!(pass.table, PairedTable { both: 0, a_only: 1, b_only: 0, neither: 1 });
}

#[test]
fn scores_by_hand() {
    // Differences 20, 0 and 40: mean 20, standard deviation 20, so that d is 1; a fourth pair has
    // no score on one side.
    let of_a = [scored("a", "e/1", 50.0), scored("a", "e/2", 10.0), scored("a", "e/3", 60.0), scored("a", "e/4", 70.0)];
    let of_b =
        [scored("b", "e/1", 30.0), scored("b", "e/2", 10.0), scored("b", "e/3", 20.0), scored("b", "e/4", f64::NAN)];
    let found = compared(&of_a, &of_b);
    let score = found.score.unwrap();
    assert_eq!((score.a.value, score.b.value, score.a.of, score.a.left_out), (40.0, 20.0, 3, 1));
    assert_eq!((score.difference, score.standardized), (20.0, Some(1.0)));
    assert!(score.clustered.unwrap().interval.contains(20.0));
    assert!(found.findings.iter().any(|finding| matches!(finding, Finding::ScoreNotANumber { .. })));
    // A score that looks like a fraction on one side: no comparison of scores at all.
    let mut fraction = of_b.to_vec();
    fraction[0] = scored("b", "e/1", 0.3);
    let found = compared(&of_a, &fraction);
    assert_eq!(found.score, None);
    assert!(found.findings.iter().any(|finding| matches!(finding, Finding::ScoresLikeFractions { .. })));
}

#[test]
fn episodes_that_a_budget_stopped_in_three_ways() {
    // A: pass, pass, stopped, fail. B: pass, stopped, fail, stopped.
    let stopped = |agent: &str, task: &str, by: EndedBy| verdict(agent, task, false, 0.0, by);
    let of_a = [
        passed("a", "e/1"),
        passed("a", "e/2"),
        stopped("a", "e/3", EndedBy::Steps),
        failed("a", "e/4"),
        // Stopped, but it had passed: a pass in each of the ways.
        verdict("a", "e/5", true, 100.0, EndedBy::Budget),
    ];
    let of_b = [
        passed("b", "e/1"),
        stopped("b", "e/2", EndedBy::Budget),
        failed("b", "e/3"),
        stopped("b", "e/4", EndedBy::Time),
        failed("b", "e/5"),
    ];
    let found = compared(&of_a, &of_b).stopped.unwrap();
    assert_eq!((found.a, found.b), (1, 2));
    // As failed: 3/5 against 1/5. Left out: tasks 1 and 5 remain, 2/2 against 1/2.
    assert_eq!((found.as_failed.a, found.as_failed.b), (Some(0.6), Some(0.2)));
    assert_eq!(found.as_failed.table, PairedTable { both: 1, a_only: 2, b_only: 0, neither: 2 });
    assert_eq!((found.left_out.a, found.left_out.b), (Some(1.0), Some(0.5)));
    assert_eq!(found.left_out.table.pairs(), 2);
    // Unknown: A 3/5 to 4/5, B 1/5 to 3/5, the difference 3 - 1 - 2 = 0 to 3 + 1 - 1 = 3 of 5.
    assert_eq!(found.censored_a, Interval { low: 0.6, high: 0.8 });
    assert_eq!(found.censored_b, Interval { low: 0.2, high: 0.6 });
    assert_eq!(found.censored_difference, Interval { low: 0.0, high: 0.6 });
}

#[test]
fn the_same_dollars_for_both_sides() {
    // A spends 1 and 3 dollars, B 1 and 1: B is cheaper with 1 on the average. Within a dollar A
    // has passed one task and nothing is known of the other; B has failed one and passed one.
    let with = |row: Row, dollars: u64| Row { dollars: Some(Money::from_dollars(dollars)), ..row };
    let of_a = [with(passed("a", "e/1"), 1), with(passed("a", "e/2"), 3)];
    let of_b = [with(failed("b", "e/1"), 1), with(passed("b", "e/2"), 1)];
    let options = Options { dollars: vec![Money::from_dollars(2), Money::from_dollars(3)], ..Options::default() };
    let found = compared_with(&of_a, &of_b, &options);
    let equal = found.equal_dollars.unwrap();
    assert_eq!(equal.a.at, At::Dollars(Money::from_dollars(1)));
    assert_eq!((equal.a.passed, equal.a.unknown, equal.a.low, equal.a.high), (1, 1, 0.5, 1.0));
    assert_eq!((equal.b.passed, equal.b.failed, equal.b.unknown), (1, 1, 0));
    assert_eq!(equal.difference, Interval { low: 0.0, high: 0.5 });
    assert_eq!(equal.table, PairedTable { both: 0, a_only: 1, b_only: 0, neither: 0 });
    let score = equal.score.unwrap();
    assert_eq!((score.a.value, score.b.value, score.a.of, score.a.left_out), (100.0, 0.0, 1, 1));
    // At the budgets that were asked for.
    let known: Vec<_> = found.dollars.iter().map(|point| (point.a.passed, point.a.unknown)).collect();
    assert_eq!(known, [(1, 1), (2, 0)]);
    // Without a price on one side, nothing is said of equal dollars, and all is unknown.
    let unpriced = [Row { dollars: None, ..of_a[0].clone() }, of_a[1].clone()];
    let found = compared_with(&unpriced, &of_b, &options);
    assert_eq!(found.equal_dollars, None);
    assert_eq!(found.dollars[1].a.unknown, 1);
    assert!(found.findings.iter().any(|finding| matches!(finding, Finding::NoDollars { .. })));
}

#[test]
fn an_agent_with_more_checks_and_fewer_tasks() {
    // Two tasks of ten checks. A holds nine of each: APR 18/20, FWR 0/2. B holds all of one and,
    // after an error, none of the other: APR 10/20, FWR 1/2.
    let ten = |held: usize| {
        let checks: Vec<_> = (0..10).map(|index| (Aspect::Visible, index < held)).collect();
        vec![round(RoundKind::Open, &checks)]
    };
    let of_a = [with_rounds("a", "e/1", ten(9)), with_rounds("a", "e/2", ten(9))];
    let of_b = [
        with_rounds("b", "e/1", ten(10)),
        with_rounds("b", "e/2", vec![broken(RoundKind::Open, RoundError::Round, &[Aspect::Visible; 10])]),
    ];
    let found = compared(&of_a, &of_b).workflow.unwrap();
    assert_eq!((found.a.full.hits, found.b.full.hits), (0, 1));
    assert_eq!((found.a.assertions.unwrap().hits, found.b.assertions.unwrap().hits), (18, 10));
    assert!(found.order_differs);
    // Two tasks to draw from: the difference of APR is -1/10, 8/20 or 9/10.
    let interval = found.assertions.unwrap().interval;
    assert!(close(interval.low, -0.1) && close(interval.high, 0.9), "{interval:?}");
}

#[test]
fn several_agents_are_corrected_for_and_stand_on_a_front() {
    // c passes 8 of 12, d 1 of 12 (7 alone against none: p = 2/128), b 7 of 12, 6 alone against
    // d (p = 2/64), one against c (p = 1). Holm: 3/64, 2/32 = 1/16, 1.
    let first = |agent: &str, passes: usize| outcomes(agent, &(0..12).map(|index| index < passes).collect::<Vec<_>>());
    let priced = |rows: Vec<Row>, dollars: u64| -> Vec<Row> {
        rows.into_iter().map(|row| Row { dollars: Some(Money::from_dollars(dollars)), ..row }).collect()
    };
    let (b, c, d) = (priced(first("b", 7), 2), priced(first("c", 8), 3), priced(first("d", 1), 2));
    let sides = [Side { name: "b", rows: &b }, Side { name: "c", rows: &c }, Side { name: "d", rows: &d }];
    let found = compare_all(&sides, &Options { resamples: 200, ..Options::default() });
    let p_values: Vec<_> = found
        .pairs
        .iter()
        .map(|pair| (pair.a.as_str(), pair.b.as_str(), pair.adjusted.unwrap().holm, pair.conclusion))
        .collect();
    assert_eq!(
        p_values,
        [
            ("b", "c", 1.0, Conclusion::NotEnough),
            ("b", "d", 1.0 / 16.0, Conclusion::NotEnough),
            ("c", "d", 3.0 / 64.0, Conclusion::A),
        ]
    );
    // Benjamini and Hochberg: 2/64 * 3/2 = 3/64 for both.
    assert_eq!(found.pairs[1].adjusted.unwrap().benjamini_hochberg, 3.0 / 64.0);
    // b is cheaper than c, c better than b; d costs what b does and passes less.
    let front: Vec<_> = found.agents.iter().map(|agent| agent.best_rate_for_money).collect();
    assert_eq!(front, [Some(true), Some(true), Some(false)]);
    assert_eq!(found.agents[1].dollars, Some(Money::from_dollars(3)));
    assert_eq!((found.common_tasks, found.coverage.union, found.coverage.nobody.len()), (12, 8, 4));
    // Two agents alone need no correction, and one nothing at all.
    assert_eq!(compare_all(&sides[..2], &Options::default()).pairs[0].adjusted, None);
    assert!(compare_all(&sides[..1], &Options::default()).pairs.is_empty());
    assert!(compare_all(&[], &Options::default()).agents.is_empty());
}

/// Rows of one agent: any state, score, sample, and course.
fn any_rows(agent: &'static str) -> impl Strategy<Value = Vec<Row>> {
    let ended = prop::sample::select(vec![EndedBy::Agent, EndedBy::Steps, EndedBy::Budget, EndedBy::Stall]);
    let state = prop_oneof![
        6 => (any::<bool>(), prop::option::weighted(0.9, 1.5..100.0_f64), ended)
            .prop_map(|(passed, score, ended_by)| State::Verdict { passed, score, ended_by }),
        1 => Just(State::Cancelled),
        1 => Just(State::Unverified { ended_by: EndedBy::Agent }),
        1 => Just(State::Unsettled),
    ];
    let one = (0..4_u32, 0..5_u32, 0..2_u32, state, 1..40_u32, prop::option::weighted(0.9, 1..900_u64));
    prop::collection::vec(one, 0..25).prop_map(move |rows| {
        rows.into_iter()
            .zip(0..)
            .map(|((env, task, sample, state, steps, cents), index)| Row {
                state,
                sample,
                steps,
                episode: format!("{agent}/{index}"),
                dollars: cents.map(|cents| Money::from_nanos(cents * 10_000_000)),
                ..row(agent, &format!("e{env}/t{task}"))
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn the_order_of_rows_and_of_sides_changes_nothing(a in any_rows("a"), b in any_rows("b")) {
        let options = Options { resamples: 50, least_envs: 3, ..Options::default() };
        let found = compared_with(&a, &b, &options);
        let turned = |rows: &[Row]| rows.iter().rev().cloned().collect::<Vec<_>>();
        prop_assert_eq!(&compared_with(&turned(&a), &turned(&b), &options), &found);

        let exchanged = compared_with(&b, &a, &options);
        prop_assert_eq!(exchanged.pass.is_some(), found.pass.is_some());
        if let (Some(one), Some(other)) = (&found.pass, &exchanged.pass) {
            prop_assert_eq!(one.test, other.test);
            prop_assert_eq!(one.difference, -other.difference);
            prop_assert_eq!((one.table.a_only, one.table.b_only), (other.table.b_only, other.table.a_only));
            prop_assert!((one.newcombe.low + other.newcombe.high).abs() < 1e-12);
            prop_assert!((one.bounds.low + other.bounds.high).abs() < 1e-12);
            let turned = match found.conclusion {
                Conclusion::A => Conclusion::B,
                Conclusion::B => Conclusion::A,
                other => other,
            };
            prop_assert_eq!(exchanged.conclusion, turned);
        }
        // What is stored reads back as it was, up to the last bit of its floats.
        let text = serde_json::to_string(&found).unwrap();
        prop_assert_eq!(serde_json::from_str::<Comparison>(&text).unwrap(), found);
    }

    #[test]
    fn intervals_hold_what_they_are_of(a in any_rows("a"), b in any_rows("b")) {
        let options = Options { resamples: 50, ..Options::default() };
        let found = compared_with(&a, &b, &options);
        if let Some(pass) = &found.pass {
            for (rate, bounds) in [(pass.a, pass.bounds_a), (pass.b, pass.bounds_b)] {
                prop_assert!(rate.wilson.unwrap().contains(rate.value));
                prop_assert!(0.0 <= bounds.low && bounds.low <= bounds.high && bounds.high <= 1.0);
                if pass.unknown == 0 {
                    prop_assert!(close(bounds.low, rate.value) && close(bounds.high, rate.value));
                }
            }
            prop_assert!(pass.newcombe.contains(pass.difference));
            prop_assert!(pass.bounds.low <= pass.bounds.high);
            let stopped = found.stopped.unwrap();
            prop_assert!(stopped.censored_a.contains(stopped.as_failed.a.unwrap()));
            prop_assert!(stopped.censored_difference.low <= pass.difference + 1e-12);
            prop_assert!(pass.difference <= stopped.censored_difference.high + 1e-12);
        }
        for point in found.dollars.iter().chain(&found.steps) {
            prop_assert!(0.0 <= point.a.low && point.a.low <= point.a.high && point.a.high <= 1.0);
            prop_assert!(point.difference.low <= point.difference.high);
            prop_assert!(point.table.pairs() <= found.reach.pairs);
        }
    }
}
