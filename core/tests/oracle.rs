//! Statistics and measures against an oracle that shares nothing with them: scipy, statsmodels,
//! and plain Python over raw rows (`oracle/oracle.py`), on seeded random cases.
//!
//! They live in an environment of their own, which `scripts/prepare-tests oracle` makes.
#![expect(clippy::unwrap_used, reason = "what cannot go on fails the test")]

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use longhaul_core::measure::{
    Aspect, AssertionRow, Options, RoundError, RoundKind, RoundRow, Row, Side, State, compare, workflow,
};
use longhaul_core::outcome::{EndedBy, FaultClass};
use longhaul_core::stats::{
    PairedTable, Power, Random, Resampling, benjamini_hochberg, cohen_h, cohen_kappa, detectable_difference, holm,
    krippendorff_alpha, mcnemar, newcombe, normal_quantile, pass_at, pass_hat, resample, sign_flip,
    standardized_mean_difference, wilson,
};
use serde_json::{Value, json};

/// Where scipy and statsmodels are.
fn python() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").expect("a home")).join(".cache"));
    let python = cache.join("longhaul/oracle-venv/bin/python");
    assert!(python.exists(), "{} is missing: run scripts/prepare-tests oracle", python.display());
    python
}

/// The oracle's answers, in the order of the cases.
fn ask(cases: &[Value]) -> Vec<Value> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle/oracle.py");
    let mut oracle = Command::new(python())
        .arg(script)
        // One thread is enough, and the tests beside this one need theirs.
        .env("OPENBLAS_NUM_THREADS", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = oracle.stdin.take().unwrap();
    stdin.write_all(serde_json::to_string(cases).unwrap().as_bytes()).unwrap();
    drop(stdin);
    let output = oracle.wait_with_output().unwrap();
    assert!(output.status.success(), "the oracle failed");
    let answers: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answers.len(), cases.len());
    answers
}

/// Whether numbers, however deep in lists and objects, are the same up to `tolerance`, relative
/// to their size where that is above 1; all else has to be equal.
fn alike(found: &Value, expected: &Value, tolerance: f64) -> bool {
    match (found, expected) {
        (Value::Number(found), Value::Number(expected)) => {
            let (found, expected) = (found.as_f64().unwrap(), expected.as_f64().unwrap());
            (found - expected).abs() <= tolerance * expected.abs().max(1.0)
        }
        (Value::Array(found), Value::Array(expected)) => {
            found.len() == expected.len() && found.iter().zip(expected).all(|(f, e)| alike(f, e, tolerance))
        }
        (Value::Object(found), Value::Object(expected)) => {
            found.len() == expected.len()
                && found.iter().all(|(key, value)| expected.get(key).is_some_and(|e| alike(value, e, tolerance)))
        }
        (found, expected) => found == expected,
    }
}

/// Asks about all cases at once, and compares with what was found here.
fn check(cases: Vec<(Value, Value)>, tolerance: f64) {
    let (cases, found): (Vec<_>, Vec<_>) = cases.into_iter().unzip();
    for ((case, found), expected) in cases.iter().zip(&found).zip(ask(&cases)) {
        assert!(alike(found, &expected, tolerance), "of {case}\nfound    {found}\nexpected {expected}");
    }
}

/// A number from 0 up to 1.
fn unit(random: &mut Random) -> f64 {
    (random.bits() >> 11) as f64 / (1_u64 << 53) as f64
}

#[test]
fn formulas_agree_with_scipy_and_statsmodels() {
    let mut random = Random::new(2_026);
    let mut cases = Vec::new();
    for index in 0..100 {
        let p = match index % 3 {
            0 => unit(&mut random),
            1 => unit(&mut random).powi(40),
            _ => 1.0 - unit(&mut random).powi(5),
        };
        cases.push((json!({"kind": "normal", "p": p}), json!(normal_quantile(p))));

        let of = 1 + random.below(3_000);
        let hits = match index % 5 {
            0 => 0,
            1 => of,
            _ => random.below(of + 1),
        };
        let confidence = [0.8, 0.9, 0.95, 0.99][index % 4];
        let found = wilson(hits, of, confidence).unwrap();
        cases.push((
            json!({"kind": "wilson", "hits": hits, "of": of, "confidence": confidence}),
            json!([found.low, found.high]),
        ));

        let most = [5, 40, 900, 20_000][index % 4];
        let (a_only, b_only) = (random.below(most), random.below(most));
        let found = mcnemar(a_only, b_only);
        cases.push((
            json!({"kind": "mcnemar", "a_only": a_only, "b_only": b_only}),
            json!({"p": found.p, "mid_p": found.mid_p}),
        ));

        let count = random.below(9);
        let differences: Vec<i64> = (0..count).map(|_| random.below(9) as i64 - 4).collect();
        cases.push((json!({"kind": "sign_flip", "differences": differences}), json!(sign_flip(&differences).p)));

        let mut cell = || random.below([3, 30, 400][index % 3]);
        let mut table = PairedTable { both: cell(), a_only: cell(), b_only: cell(), neither: cell() };
        table.both += u64::from(table.pairs() == 0);
        let found = newcombe(&table, confidence).unwrap();
        let mut case = serde_json::to_value(table).unwrap();
        case["kind"] = json!("newcombe");
        case["confidence"] = json!(confidence);
        cases.push((case, json!([found.low.max(-1.0), found.high.min(1.0)])));

        let p: Vec<f64> = (0..=random.below(20)).map(|_| unit(&mut random).powi(3)).collect();
        cases.push((json!({"kind": "correction", "p": p}), json!({"holm": holm(&p), "bh": benjamini_hochberg(&p)})));

        let samples = 1 + random.below(60) as u32;
        let (passed, k) = (random.below(u64::from(samples) + 1) as u32, 1 + random.below(u64::from(samples)) as u32);
        cases.push((
            json!({"kind": "passk", "samples": samples, "passed": passed, "k": k}),
            json!([pass_at(samples, passed, k), pass_hat(samples, passed, k)]),
        ));

        let (a, b) = (unit(&mut random), unit(&mut random));
        let differences: Vec<f64> = (0..2 + random.below(40)).map(|_| unit(&mut random) * 100.0 - 40.0).collect();
        cases.push((
            json!({"kind": "effect", "a": a, "b": b, "differences": differences}),
            json!({"h": cohen_h(a, b), "d": standardized_mean_difference(&differences)}),
        ));

        let (pairs, discordant) = (10 + random.below(2_000), 0.02 + 0.98 * unit(&mut random));
        let how = Power { level: 1.0 - confidence, power: [0.7, 0.8, 0.9][index % 3] };
        cases.push((
            json!({"kind": "power", "pairs": pairs, "discordant": discordant, "level": how.level, "power": how.power}),
            json!(detectable_difference(pairs, discordant, &how)),
        ));
    }
    check(cases, 1e-9);
}

#[test]
fn agreement_agrees_with_statsmodels_and_the_definition() {
    let mut random = Random::new(5);
    let mut cases = Vec::new();
    for _ in 0..60 {
        // Judges that agree more often than chance, with three answers.
        let pairs: Vec<(u64, u64)> = (0..10 + random.below(60))
            .map(|_| {
                let one = random.below(3);
                (one, if random.below(3) > 0 { one } else { random.below(3) })
            })
            .collect();
        cases.push((json!({"kind": "kappa", "pairs": pairs}), json!(cohen_kappa(&pairs).unwrap())));
        let judges = 2 + random.below(4);
        let mut unit = || -> Vec<Option<u64>> {
            let truth = random.below(3);
            (0..judges)
                .map(|_| match random.below(6) {
                    0 => None,
                    1 => Some(random.below(3)),
                    _ => Some(truth),
                })
                .collect()
        };
        let units: Vec<Vec<Option<u64>>> = (0..25).map(|_| unit()).collect();
        cases.push((json!({"kind": "alpha", "units": units}), json!(krippendorff_alpha(&units).unwrap())));
    }
    check(cases, 1e-9);
}

#[test]
fn resampling_agrees_draw_by_draw_and_with_scipy() {
    let mut random = Random::new(77);
    let mut cases = Vec::new();
    let mut found = Vec::new();
    for seed in 0..12 {
        let values: Vec<f64> = (0..20 + random.below(30)).map(|_| unit(&mut random).powi(2) * 100.0).collect();
        let how = Resampling { confidence: 0.9, resamples: 1_500, seed };
        let mean = |drawn: &[usize]| Some(drawn.iter().map(|index| values[*index]).sum::<f64>() / drawn.len() as f64);
        found.push(resample(values.len(), &how, mean).unwrap());
        cases.push(json!({
            "kind": "bootstrap", "values": values, "seed": seed, "resamples": how.resamples, "confidence": how.confidence,
        }));
    }
    for ((case, found), answer) in cases.iter().zip(found).zip(ask(&cases)) {
        // The same draws: nothing but rounding lies between.
        assert!(alike(&json!([found.low, found.high]), &answer["same_draws"], 1e-9), "{case}: {found:?} {answer}");
        // Draws of its own: a quantile at 5 % of 1,500 has a standard error of
        // sqrt(0.05 * 0.95 / 1500) = 0.0056 of probability, where the density of the normal is
        // 0.103: 0.055 standard deviations, for an interval of 3.29 of them 1.7 % of its width,
        // 2.4 % for the difference of two such. Five of these are 12 %.
        let scipy = [answer["scipy"][0].as_f64().unwrap(), answer["scipy"][1].as_f64().unwrap()];
        let near = 0.12 * (found.high - found.low);
        assert!((found.low - scipy[0]).abs() < near && (found.high - scipy[1]).abs() < near, "{found:?} {scipy:?}");
    }
}

fn pick<T: Copy>(random: &mut Random, from: &[T]) -> T {
    from[random.below(from.len() as u64) as usize]
}

/// An episode: its state, rounds and course at random.
fn episode(random: &mut Random, agent: &str, task: &str, sample: u32) -> Row {
    let ended_by = pick(random, &[EndedBy::Agent, EndedBy::Agent, EndedBy::Steps, EndedBy::Budget, EndedBy::Stall]);
    let rounds: Vec<RoundRow> = (1..=1 + random.below(4) as u32).map(|number| any_round(random, number)).collect();
    let state = match random.below(12) {
        0 => json!({"kind": "faulted", "class": FaultClass::Display}),
        1 => json!({"kind": "unverified", "ended_by": ended_by}),
        2 => json!({"kind": "cancelled"}),
        _ => {
            let score = if random.below(10) == 0 { None } else { Some(1.5 + 98.0 * unit(random)) };
            json!({"kind": "verdict", "passed": random.below(2) == 0, "score": score, "ended_by": ended_by})
        }
    };
    let row = json!({
        "run": "r", "episode": format!("{agent}/{task}/{sample}"), "task": task, "agent": agent, "sample": sample,
        "state": state, "steps": 1 + random.below(60), "rounds": rounds,
    });
    serde_json::from_value(row).unwrap()
}

fn any_round(random: &mut Random, number: u32) -> RoundRow {
    let kinds = [RoundKind::Open, RoundKind::Submit, RoundKind::Revise, RoundKind::Return, RoundKind::FollowUp];
    let aspects = [Aspect::Visible, Aspect::Business, Aspect::Retention, Aspect::Operations];
    let error = match random.below(10) {
        0 => Some(RoundError::Generation),
        1 => Some(RoundError::Round),
        _ => None,
    };
    let assertions = (0..1 + random.below(5)).map(|id| AssertionRow {
        id: id.to_string(),
        aspect: pick(random, &aspects),
        passed: error.is_none() && random.below(8) > 0,
    });
    let assertions = assertions.collect();
    RoundRow { number, kind: pick(random, &kinds), error, last_step: None, assertions }
}

#[test]
fn measures_of_rounds_agree_with_plain_python() {
    let mut random = Random::new(11);
    let options = Options { resamples: 10, ..Options::default() };
    let mut cases = Vec::new();
    for _ in 0..30 {
        let rows: Vec<Row> = (0..10 + random.below(80))
            .map(|index| episode(&mut random, "a", &format!("env{}/t{index}", index % 6), 0))
            .collect();
        let found = workflow(&rows.iter().collect::<Vec<_>>(), &options).unwrap();
        let [full, assertions, open] = [Some(found.full), found.assertions, found.open]
            .map(|rate| rate.map_or_else(|| json!([0, 0]), |rate| json!([rate.hits, rate.of])));
        cases.push((
            json!({"kind": "rounds", "rows": rows}),
            json!({
                "full": full, "assertions": assertions, "open": open, "joint": found.joint,
                "classes": found.classes, "stages": found.stages,
            }),
        ));
    }
    check(cases, 0.0);
}

#[test]
fn comparisons_agree_with_plain_python() {
    let mut random = Random::new(404);
    let mut cases = Vec::new();
    for seed in 0..10 {
        let mut side = |agent: &str| -> Vec<Row> {
            let mut rows = Vec::new();
            for env in 0..12 {
                // Twelve tasks: the oracle tries all of their signs.
                let task = format!("env{env:02}/t");
                for sample in 0..1 + random.below(3) as u32 {
                    rows.push(episode(&mut random, agent, &task, sample));
                }
            }
            rows
        };
        let (a, b) = (side("a"), side("b"));
        let steps = vec![5, 20, 40, 60];
        let options = Options { seed, resamples: 400, steps: steps.clone(), ..Options::default() };
        let found = compare(&Side { name: "a", rows: &a }, &Side { name: "b", rows: &b }, &options);
        let pass = found.pass.unwrap();
        let cells = |table: &PairedTable| json!([table.both, table.a_only, table.b_only, table.neither]);
        let score = found.score.unwrap();
        let interval = pass.clustered.unwrap().interval;
        let curve: Vec<_> =
            found.steps.iter().map(|point| json!([point.a.passed, point.a.failed, point.a.unknown])).collect();
        cases.push((
            json!({
                "kind": "compare", "a": a, "b": b, "seed": seed, "resamples": options.resamples,
                "confidence": options.confidence, "steps": steps,
            }),
            json!({
                "table": cells(&pass.table), "p": pass.test.p, "clustered": [interval.low, interval.high],
                "bounds": [pass.bounds.low, pass.bounds.high], "left_out": cells(&found.stopped.unwrap().left_out.table),
                "score": [score.a.value, score.b.value], "curve": curve,
            }),
        ));
    }
    check(cases, 1e-9);
}

#[test]
fn the_rows_of_the_cases_hold_every_kind_of_state() {
    // What the cases above say is worth no more than the rows that they are made of.
    let mut random = Random::new(404);
    let rows: Vec<Row> = (0..200).map(|index| episode(&mut random, "a", &format!("e/{index}"), 0)).collect();
    let count = |wanted: fn(&State) -> bool| rows.iter().filter(|row| wanted(&row.state)).count();
    assert!(count(|state| matches!(state, State::Faulted { .. })) > 5);
    assert!(count(|state| matches!(state, State::Verdict { passed: true, .. })) > 40);
    assert!(count(|state| matches!(state, State::Verdict { score: None, .. })) > 5);
    assert!(rows.iter().filter(|row| row.rounds_hold()).count() > 5);
}
