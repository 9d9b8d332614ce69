//! Whether an assertion holds of a reading, and what was found in its place.

use std::cmp::Ordering;

use serde_json::{Number, Value};

use super::plan::Test;
use crate::text::cut;

/// How much of a value a reason shows, in characters.
const SHOWN: usize = 120;

/// Whether an assertion holds, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Whether it does.
    pub held: bool,
    /// What was found, and what was expected; hostile until escaped.
    pub why: String,
}

impl Held {
    const fn of(held: bool, why: String) -> Self {
        Self { held, why }
    }
}

/// Whether a test holds at a place of a reading. `earlier` gives the readings of the rounds before
/// by their numbers, as far as there are any.
///
/// Where nothing is, only [`Test::Absent`] holds: a place that was misspelled passes nothing.
#[must_use]
pub fn check<'r>(at: &str, test: &Test, reading: &Value, earlier: impl Fn(u32) -> Option<&'r Value>) -> Held {
    let found = reading.pointer(at);
    let is = found.map(shown).unwrap_or_default();
    match (test, found) {
        (Test::Absent, None) => Held::of(true, format!("nothing is at `{at}`")),
        (Test::Absent, Some(_)) => Held::of(false, format!("{is} is at `{at}`, and nothing was to be")),
        (_, None) => Held::of(false, format!("nothing is at `{at}`")),
        (Test::Equals(value), Some(found)) if same(found, value) => Held::of(true, format!("it is {is}")),
        (Test::Equals(value), Some(_)) => Held::of(false, format!("it is {is}, not {}", shown(value))),
        (Test::Differs(value), Some(found)) if same(found, value) => Held::of(false, format!("it is still {is}")),
        (Test::Differs(_), Some(_)) => Held::of(true, format!("it is {is}")),
        (Test::Contains(value), Some(found)) => contains(found, value, &is),
        (Test::AtLeast(bound), Some(found)) => bounded(found, bound, Ordering::Less, &is),
        (Test::AtMost(bound), Some(found)) => bounded(found, bound, Ordering::Greater, &is),
        (Test::SameAs { round, at }, Some(found)) => match earlier(*round).map(|reading| reading.pointer(at)) {
            None => Held::of(false, format!("it is {is}, and there is no reading of round {round}")),
            Some(None) => Held::of(false, format!("it is {is}, and nothing was at `{at}` in round {round}")),
            Some(Some(before)) if same(found, before) => Held::of(true, format!("it is {is}, as in round {round}")),
            Some(Some(before)) => Held::of(false, format!("it is {is}, and was {} in round {round}", shown(before))),
        },
    }
}

fn contains(found: &Value, value: &Value, is: &str) -> Held {
    let held = match (found, value) {
        (Value::String(text), Value::String(part)) => text.contains(part.as_str()),
        (Value::Array(items), value) => items.iter().any(|item| same(item, value)),
        _ => {
            let why = format!("it is {is}, which can contain no {}", shown(value));
            return Held::of(false, why);
        }
    };
    let word = if held { "contains" } else { "does not contain" };
    Held::of(held, format!("it is {is}, which {word} {}", shown(value)))
}

/// Whether what was found is on the right side of a bound: `beyond` is how it may not compare.
fn bounded(found: &Value, bound: &Number, beyond: Ordering, is: &str) -> Held {
    let counted;
    let (number, is) = match found {
        Value::Number(number) => (number, is.to_owned()),
        Value::Array(items) => {
            counted = Number::from(items.len());
            (&counted, format!("a list of {counted}"))
        }
        _ => return Held::of(false, format!("it is {is}, which is neither a number nor a list")),
    };
    let word = if beyond == Ordering::Less { "at least" } else { "at most" };
    let held = compare(number, bound).is_some_and(|order| order != beyond);
    let link = if held { ":" } else { ", and not" };
    Held::of(held, format!("it is {is}{link} {word} {bound}"))
}

/// Whether two values are the same: numbers by what they are worth, not by how they are written.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => compare(one, other) == Some(Ordering::Equal),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(key, value)| other.get(key).is_some_and(|other| same(value, other)))
        }
        _ => one == other,
    }
}

fn compare(one: &Number, other: &Number) -> Option<Ordering> {
    let whole = |number: &Number| number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
    match (whole(one), whole(other)) {
        (Some(one), Some(other)) => Some(one.cmp(&other)),
        _ => one.as_f64()?.partial_cmp(&other.as_f64()?),
    }
}

fn shown(value: &Value) -> String {
    cut(&value.to_string(), SHOWN)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn held(test: &Test, at: &str, reading: &Value) -> bool {
        check(at, test, reading, |_| None).held
    }

    #[test]
    fn each_operator_says_what_it_found_and_what_it_expected() {
        let reading = json!({"priority": "low", "list": [1, "two", {"n": 3.0}], "count": 2, "a/b": null, "": 7});
        let cases = [
            ("/priority", Test::Equals(json!("medium")), false, "it is \"low\", not \"medium\""),
            ("/priority", Test::Equals(json!("low")), true, "it is \"low\""),
            ("/count", Test::Equals(json!(2.0)), true, "it is 2"),
            ("/list/2", Test::Equals(json!({"n": 3})), true, "it is {\"n\":3.0}"),
            ("/a~1b", Test::Equals(Value::Null), true, "it is null"),
            ("/", Test::Equals(json!(7)), true, "it is 7"),
            ("/priority", Test::Differs(json!("low")), false, "it is still \"low\""),
            ("/priorty", Test::Differs(json!("low")), false, "nothing is at `/priorty`"),
            ("/priority", Test::Contains(json!("ow")), true, "it is \"low\", which contains \"ow\""),
            ("/list", Test::Contains(json!(1.0)), true, "it is [1,\"two\",{\"n\":3.0}], which contains 1.0"),
            (
                "/list",
                Test::Contains(json!("tw")),
                false,
                "it is [1,\"two\",{\"n\":3.0}], which does not contain \"tw\"",
            ),
            ("/count", Test::Contains(json!(2)), false, "it is 2, which can contain no 2"),
            ("/count", Test::AtMost(1.into()), false, "it is 2, and not at most 1"),
            ("/count", Test::AtLeast(2.into()), true, "it is 2: at least 2"),
            ("/list", Test::AtLeast(3.into()), true, "it is a list of 3: at least 3"),
            ("/priority", Test::AtMost(1.into()), false, "it is \"low\", which is neither a number nor a list"),
            ("/nothing", Test::AtMost(1.into()), false, "nothing is at `/nothing`"),
            ("/nothing", Test::Absent, true, "nothing is at `/nothing`"),
            ("/a~1b", Test::Absent, false, "null is at `/a~1b`, and nothing was to be"),
        ];
        for (at, test, held, why) in cases {
            assert_eq!(check(at, &test, &reading, |_| None), Held::of(held, why.to_owned()), "{at} {test:?}");
        }
    }

    #[test]
    fn what_stays_is_compared_with_an_earlier_reading() {
        let (now, before) = (json!({"x": [1]}), json!({"y": [1.0], "z": 2}));
        let test = |round, at: &str| Test::SameAs { round, at: at.to_owned() };
        let told = |test: &Test| check("/x", test, &now, |round| (round == 1).then_some(&before));
        assert_eq!(told(&test(1, "/y")), Held::of(true, "it is [1], as in round 1".to_owned()));
        assert_eq!(told(&test(1, "/z")).why, "it is [1], and was 2 in round 1");
        assert_eq!(told(&test(1, "/q")).why, "it is [1], and nothing was at `/q` in round 1");
        assert_eq!(told(&test(2, "/y")).why, "it is [1], and there is no reading of round 2");
        assert!(![test(1, "/z"), test(1, "/q"), test(2, "/y")].iter().any(|test| told(test).held));
    }

    #[test]
    fn whole_numbers_are_compared_exactly_and_reasons_are_short() {
        let big = json!({"n": u64::MAX, "text": "x".repeat(100_000)});
        assert!(!held(&Test::Equals(json!(u64::MAX - 1)), "/n", &big));
        assert!(held(&Test::AtMost(u64::MAX.into()), "/n", &big));
        assert!(!held(&Test::AtMost((u64::MAX - 1).into()), "/n", &big));
        assert!(check("/text", &Test::Equals(json!("x")), &big, |_| None).why.chars().count() < 200);
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(|number| Number::from_f64(number).map_or(Value::Null, Value::Number)),
            "[a-c]{0,3}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 12, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-c]{0,2}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    fn pointer() -> impl Strategy<Value = String> {
        prop_oneof!["(/[a-c0-3]{0,2}){0,3}", ".{0,8}"]
    }

    proptest! {
        #[test]
        fn a_value_equals_or_differs_and_where_nothing_is_only_absence_holds(
            reading in value(), other in value(), at in pointer(), bound in any::<i64>(),
        ) {
            let holds = |test| held(&test, &at, &reading);
            let (equals, differs) = (holds(Test::Equals(other.clone())), holds(Test::Differs(other.clone())));
            let others = [
                equals, differs, holds(Test::Contains(other)), holds(Test::AtLeast(bound.into())),
                holds(Test::AtMost(bound.into())), holds(Test::SameAs { round: 1, at: String::new() }),
            ];
            if holds(Test::Absent) {
                prop_assert!(!others.contains(&true));
            } else {
                prop_assert!(equals != differs);
            }
        }

        #[test]
        fn what_is_there_equals_itself_and_stays_the_same(reading in value(), at in pointer()) {
            if let Some(found) = reading.pointer(&at) {
                prop_assert!(held(&Test::Equals(found.clone()), &at, &reading));
                let same = Test::SameAs { round: 3, at: at.clone() };
                prop_assert!(check(&at, &same, &reading, |_| Some(&reading)).held);
                let exactly = [Test::AtLeast as fn(Number) -> Test, Test::AtMost];
                let number = match found {
                    Value::Number(number) => Some(number.clone()),
                    Value::Array(items) => Some(items.len().into()),
                    _ => None,
                };
                for test in exactly {
                    let holds = number.clone().is_some_and(|number| held(&test(number), &at, &reading));
                    prop_assert_eq!(holds, number.is_some());
                }
            }
        }
    }
}
