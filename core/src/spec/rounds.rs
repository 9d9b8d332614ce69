//! The `longhaul` section of task.json: ordered rounds, in a form of our own that others ignore.
//!
//! What is not understood here would not be checked when the task runs, so that a task would pass
//! for less than its author asked: every oddity refuses the task.

use std::collections::BTreeSet;

use serde_json::{Map, Number, Value};

use super::diagnostic::{Code, Diagnostic, Refused, Severity};
use super::fields::{Fields, excerpt};
use super::json::{At, Document};
use crate::measure::{Aspect, RoundKind};
use crate::money::Money;
use crate::rounds::{Assertion, Check, RoundBudget, RoundPlan, RoundsPlan, Test};

/// The families of tasks: one app, several tools, several apps over one world.
const FAMILIES: [&str; 3] = ["single_app", "multi_tool", "shared_world"];

const KINDS: [RoundKind; 5] =
    [RoundKind::Open, RoundKind::Submit, RoundKind::Revise, RoundKind::Return, RoundKind::FollowUp];

const ASPECTS: [Aspect; 5] = [Aspect::Visible, Aspect::Business, Aspect::Retention, Aspect::Operations, Aspect::Other];

/// The ways in which an assertion can be found out, one of which it has.
const TESTS: [&str; 8] = ["equals", "differs", "contains", "at_least", "at_most", "absent", "same_as", "ask"];

/// The most rounds of a task, and the most assertions of all of them: a verdict goes in a message.
const MOST_ROUNDS: usize = 50;
const MOST_ASSERTIONS: usize = 500;

/// The longest texts, in characters.
const MOST_GOAL: usize = 20_000;
const MOST_SAYS: usize = 1000;
const MOST_ID: usize = 80;

/// The section, if the task has one.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Section {
    pub(super) family: Option<String>,
    pub(super) rounds: Option<RoundsPlan>,
    pub(super) restart: Option<String>,
}

/// Reads the section of a task whose fields these are; `max_steps` is the most steps of an
/// episode, if the task says.
///
/// # Errors
///
/// The first thing that is wrong with it; whatever else is, is among the diagnostics.
pub(super) fn read_section(
    task: &Fields<'_>,
    document: &Document<'_>,
    max_steps: Option<u32>,
    out: &mut Vec<Diagnostic>,
) -> Result<Section, Refused> {
    let Some(value) = task.get("longhaul") else { return Ok(Section::default()) };
    let mut reader = Reader { document, found: Vec::new(), steps: max_steps };
    let section = reader.section(value);
    let wrong = reader.found.iter().position(|found| found.code.severity() == Severity::Error);
    let refused = wrong.map(|index| reader.found.remove(index));
    out.append(&mut reader.found);
    refused.map_or(Ok(section), |refused| Err(refused.into()))
}

/// An object of the section, and the way to it.
#[derive(Clone, Copy)]
struct Here<'a, 'p> {
    map: &'a Map<String, Value>,
    path: &'p [At],
}

struct Reader<'a> {
    document: &'a Document<'a>,
    found: Vec<Diagnostic>,
    /// The most steps of an episode, if the task says.
    steps: Option<u32>,
}

impl Reader<'_> {
    fn say(&mut self, code: Code, path: &[At], key: Option<&str>, message: String) {
        let mut whole = path.to_vec();
        whole.extend(key.map(At::from));
        let place = self.document.place(&whole).or_else(|| self.document.place(path));
        self.found.push(Diagnostic::new(code, message).at(place));
    }

    fn odd(&mut self, here: Here<'_, '_>, key: &str, message: String) {
        self.say(Code::RoundsShape, here.path, Some(key), message);
    }

    /// An object that has these keys alone.
    fn object<'a, 'p>(&mut self, value: &'a Value, path: &'p [At], what: &str, keys: &[&str]) -> Option<Here<'a, 'p>> {
        let Some(map) = value.as_object() else {
            self.say(Code::RoundsShape, path, None, format!("{what} is an object, not {}", excerpt(value)));
            return None;
        };
        for key in map.keys().filter(|key| !keys.contains(&key.as_str())) {
            let shown: String = key.chars().take(60).collect();
            let message = format!("`{shown}` means nothing in {what}; it has {}", keys.join(", "));
            self.say(Code::RoundsUnknownKey, path, Some(key), message);
        }
        Some(Here { map, path })
    }

    fn section(&mut self, value: &Value) -> Section {
        let path = [At::from("longhaul")];
        let Some(here) = self.object(value, &path, "`longhaul`", &["family", "rounds", "restart"]) else {
            return Section::default();
        };
        let family = here.map.get("family").and_then(|_| {
            let word = self.word(here, "family", &FAMILIES.map(|family| (family, family)));
            word.map(str::to_owned)
        });
        let rounds = here.map.get("rounds").and_then(|rounds| self.rounds(here, rounds));
        let restart = here.map.get("restart").and_then(|_| self.text(here, "restart", MOST_GOAL));
        Section { family, rounds, restart }
    }

    fn rounds(&mut self, here: Here<'_, '_>, value: &Value) -> Option<RoundsPlan> {
        let Some(items) = value.as_array().filter(|items| (1..=MOST_ROUNDS).contains(&items.len())) else {
            self.odd(here, "rounds", format!("`rounds` is a list of 1 to {MOST_ROUNDS} rounds"));
            return None;
        };
        let mut rounds = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let mut path = here.path.to_vec();
            path.extend([At::from("rounds"), At::Item(index)]);
            rounds.extend(self.round(item, &path, &rounds));
        }
        // What refers to another round is only judged where all of them could be read.
        if rounds.len() != items.len() {
            return None;
        }
        let plan = RoundsPlan { rounds };
        let count = plan.assertions().count();
        if !(1..=MOST_ASSERTIONS).contains(&count) {
            self.odd(
                here,
                "rounds",
                format!("the rounds have {count} assertions, and 1 to {MOST_ASSERTIONS} are to be"),
            );
        }
        let asked: u64 = plan.rounds.iter().filter_map(|round| round.budget.steps).map(u64::from).sum();
        if let Some(most) = self.steps.filter(|most| asked > u64::from(*most)) {
            let message = format!("the rounds may take {asked} steps, and the episode {most}");
            self.say(Code::RoundsBudget, here.path, Some("rounds"), message);
        }
        Some(plan)
    }

    fn round(&mut self, value: &Value, path: &[At], earlier: &[RoundPlan]) -> Option<RoundPlan> {
        const KEYS: [&str; 6] = ["kind", "goal", "before", "read", "budget", "assertions"];
        let here = self.object(value, path, "a round", &KEYS)?;
        let kind = self.word(here, "kind", &KINDS.map(|kind| (kind.name(), kind)));
        let goal = self.text(here, "goal", MOST_GOAL);
        let before = here.map.get("before").and_then(|_| self.file(here, "before"));
        let read = here.map.get("read").and_then(|_| self.file(here, "read"));
        let budget = here.map.get("budget").map(|budget| self.budget(here, budget)).unwrap_or_default();
        let assertions = self.assertions(here, earlier);
        Some(RoundPlan { kind: kind?, goal: goal?, before, read, budget, assertions })
    }

    fn budget(&mut self, here: Here<'_, '_>, value: &Value) -> RoundBudget {
        let mut path = here.path.to_vec();
        path.push(At::from("budget"));
        let Some(here) = self.object(value, &path, "a round's budget", &["steps", "seconds", "dollars"]) else {
            return RoundBudget::default();
        };
        let mut whole = |key: &str| {
            let value = here.map.get(key)?;
            let number = value.as_f64().filter(|number| number.fract() == 0.0 && (1.0..=1e9).contains(number));
            if number.is_none() {
                self.odd(here, key, format!("`{key}` is a whole number from 1 on, not {}", excerpt(value)));
            }
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole, from 1 to 1e9")]
            number.map(|number| number as u32)
        };
        let (steps, seconds) = (whole("steps"), whole("seconds"));
        RoundBudget { steps, seconds, dollars: self.dollars(here) }
    }

    /// An amount of dollars: exactly, by its digits.
    fn dollars(&mut self, here: Here<'_, '_>) -> Option<Money> {
        let value = here.map.get("dollars")?;
        let digits = match value {
            Value::Number(number) => Some(number.to_string()),
            Value::String(text) => Some(text.clone()),
            _ => None,
        };
        let amount = digits.and_then(|digits| digits.parse::<Money>().ok()).filter(|amount| !amount.is_zero());
        if amount.is_none() {
            let message = format!("`dollars` is an amount, such as 0.5 or \"0.50\", not {}", excerpt(value));
            self.odd(here, "dollars", message);
        }
        amount
    }

    fn assertions(&mut self, here: Here<'_, '_>, earlier: &[RoundPlan]) -> Vec<Assertion> {
        let items = match here.map.get("assertions") {
            None => &[],
            Some(Value::Array(items)) => items.as_slice(),
            Some(other) => {
                self.odd(here, "assertions", format!("`assertions` is a list, not {}", excerpt(other)));
                return Vec::new();
            }
        };
        if items.is_empty() {
            let message = "nothing is asserted of this round".to_owned();
            self.say(Code::RoundsUnchecked, here.path, None, message);
        }
        let mut taken = BTreeSet::new();
        let mut assertions = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let mut path = here.path.to_vec();
            path.extend([At::from("assertions"), At::Item(index)]);
            let Some(assertion) = self.assertion(item, &path, here, earlier) else { continue };
            if !taken.insert(assertion.id.clone()) {
                let message = format!("two assertions of one round are called `{}`", assertion.id);
                self.say(Code::RoundsDuplicateId, &path, Some("id"), message);
            }
            assertions.push(assertion);
        }
        assertions
    }

    fn assertion(
        &mut self,
        value: &Value,
        path: &[At],
        round: Here<'_, '_>,
        earlier: &[RoundPlan],
    ) -> Option<Assertion> {
        let keys: Vec<&str> = ["id", "aspect", "says", "at"].into_iter().chain(TESTS).collect();
        let here = self.object(value, path, "an assertion", &keys)?;
        let id = self.text(here, "id", MOST_ID).filter(|id| {
            let plain = id.chars().all(|letter| letter.is_ascii_alphanumeric() || "._-".contains(letter));
            if !plain {
                self.odd(here, "id", format!("`{id}` is no id: it has letters, digits, `.`, `_` and `-`"));
            }
            plain
        });
        let aspect = self.word(here, "aspect", &ASPECTS.map(|aspect| (aspect.name(), aspect)));
        let named: Vec<&str> = TESTS.into_iter().filter(|test| here.map.contains_key(*test)).collect();
        let [name] = named.as_slice() else {
            let has = if named.is_empty() { "none".to_owned() } else { named.join(" and ") };
            let message = format!("an assertion has one of {}; this one has {has}", TESTS.join(", "));
            self.say(Code::RoundsAssertion, path, None, message);
            return None;
        };
        let (check, says) = if *name == "ask" {
            if here.map.contains_key("at") {
                let message = "`at` is a place in a reading, and `ask` looks at the screen".to_owned();
                self.say(Code::RoundsAssertion, path, Some("at"), message);
            }
            let asks = self.text(here, "ask", MOST_SAYS);
            let says = if here.map.contains_key("says") { self.text(here, "says", MOST_SAYS) } else { asks.clone() };
            (asks.map(|asks| Check::Judge { asks }), says)
        } else {
            let at = self.pointer(here, "at");
            if !round.map.contains_key("read") {
                let message = "an assertion over a reading needs the round's `read`".to_owned();
                self.say(Code::RoundsNoRead, path, Some(name), message);
            }
            let test = self.test(here, name, earlier);
            let says = self.text(here, "says", MOST_SAYS);
            (at.zip(test).map(|(at, test)| Check::Reading { at, test }), says)
        };
        Some(Assertion { id: id?, aspect: aspect?, says: says?, check: check? })
    }

    fn test(&mut self, here: Here<'_, '_>, name: &str, earlier: &[RoundPlan]) -> Option<Test> {
        let value = here.map.get(name)?;
        let wrong = |reader: &mut Self, takes: &str| {
            let message = format!("`{name}` takes {takes}, not {}", excerpt(value));
            reader.say(Code::RoundsAssertion, here.path, Some(name), message);
        };
        let bound = |reader: &mut Self, test: fn(Number) -> Test| match value {
            Value::Number(number) => Some(test(number.clone())),
            _ => {
                wrong(reader, "a number");
                None
            }
        };
        match name {
            "equals" => Some(Test::Equals(value.clone())),
            "differs" => Some(Test::Differs(value.clone())),
            "contains" => Some(Test::Contains(value.clone())),
            "at_least" => bound(self, Test::AtLeast),
            "at_most" => bound(self, Test::AtMost),
            "absent" if *value == Value::Bool(true) => Some(Test::Absent),
            "absent" => {
                wrong(self, "true");
                None
            }
            _ => self.same_as(here, value, earlier),
        }
    }

    fn same_as(&mut self, here: Here<'_, '_>, value: &Value, earlier: &[RoundPlan]) -> Option<Test> {
        let mut path = here.path.to_vec();
        path.push(At::from("same_as"));
        let here = self.object(value, &path, "`same_as`", &["round", "at"])?;
        let number = here.map.get("round").and_then(Value::as_u64).and_then(|number| u32::try_from(number).ok());
        let before = number.and_then(|number| earlier.get((number as usize).checked_sub(1)?));
        if before.is_none_or(|before| before.read.is_none()) {
            let message = "`same_as` names the number, from 1, of an earlier round that has a `read`".to_owned();
            self.say(Code::RoundsNoRead, &path, Some("round"), message);
        }
        let at = self.pointer(here, "at")?;
        Some(Test::SameAs { round: number?, at })
    }

    /// A text that is not blank, nor too long.
    fn text(&mut self, here: Here<'_, '_>, key: &str, most: usize) -> Option<String> {
        let text = here.map.get(key).and_then(Value::as_str).map(str::trim);
        let text = text.filter(|text| !text.is_empty() && text.chars().count() <= most);
        if text.is_none() {
            self.odd(here, key, format!("`{key}` is a text of 1 to {most} characters"));
        }
        text.map(str::to_owned)
    }

    /// One of some words.
    fn word<T: Copy>(&mut self, here: Here<'_, '_>, key: &str, words: &[(&str, T)]) -> Option<T> {
        let value = here.map.get(key);
        let found = value.and_then(Value::as_str).and_then(|word| words.iter().find(|(known, _)| *known == word));
        if found.is_none() {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            let said = value.map_or_else(|| "nothing".to_owned(), excerpt);
            let message = format!("`{key}` is one of {}, not {said}", words.join(", "));
            self.say(Code::RoundsUnknownWord, here.path, Some(key), message);
        }
        found.map(|(_, word)| *word)
    }

    /// A file of the task's folder.
    fn file(&mut self, here: Here<'_, '_>, key: &str) -> Option<String> {
        let file = here.map.get(key).and_then(Value::as_str).map(|file| file.trim().trim_start_matches("./"));
        let plain = |file: &&str| {
            !file.is_empty()
                && file.len() <= 200
                && !file.starts_with('/')
                && !file.contains(|letter: char| letter.is_control())
                && file.split('/').all(|part| !matches!(part, "" | "." | ".."))
        };
        let found = file.filter(plain);
        if found.is_none() {
            self.odd(here, key, format!("`{key}` is the path of a file below the task's folder"));
        }
        found.map(str::to_owned)
    }

    /// A JSON pointer.
    fn pointer(&mut self, here: Here<'_, '_>, key: &str) -> Option<String> {
        let at = here.map.get(key).and_then(Value::as_str).filter(|at| at.len() <= 1000 && is_pointer(at));
        if at.is_none() {
            let message = format!("`{key}` is a JSON pointer: `/records/17/priority`, with ~1 for / and ~0 for ~");
            self.say(Code::RoundsAssertion, here.path, Some(key), message);
        }
        at.map(str::to_owned)
    }
}

/// Whether a text is a JSON pointer (RFC 6901).
fn is_pointer(text: &str) -> bool {
    let escapes = || text.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
    text.is_empty() || (text.starts_with('/') && escapes())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{Format, parse_task};
    use super::*;

    fn read(longhaul: Value) -> (Result<super::super::TaskSpec, Refused>, Vec<Code>) {
        let task = json!({"id": "t", "env_id": "e", "description": "d", "init": {"max_steps": 30}, "hooks": {},
            "longhaul": longhaul});
        let mut out = Vec::new();
        let read = parse_task(task.to_string().as_bytes(), Format::Json, "t", &mut out);
        (read, out.into_iter().map(|found| found.code).collect())
    }

    fn whole() -> Value {
        json!({"family": "shared_world", "rounds": [
            {"kind": "open", "goal": "Open it.", "read": "./rounds/read.sh", "budget": {"steps": 10.0},
             "assertions": [{"id": "there", "aspect": "visible", "says": "s", "at": "", "differs": null}]},
            {"kind": "follow_up", "goal": "Go on.", "before": "rounds/reopen.sh", "read": "rounds/read.sh",
             "budget": {"steps": 5, "seconds": 60, "dollars": 0.25},
             "assertions": [
                {"id": "kept", "aspect": "retention", "says": "s", "at": "/a~1b", "same_as": {"round": 1, "at": "/x"}},
                {"id": "few", "aspect": "operations", "says": "s", "at": "/updates", "at_most": 1},
                {"id": "gone", "aspect": "business", "says": "s", "at": "/y", "absent": true},
                {"id": "mark", "aspect": "other", "ask": "Is there a red mark?"},
             ]},
        ]})
    }

    #[test]
    fn a_whole_section_is_read_and_needs_no_verifier() {
        let (task, codes) = read(whole());
        let task = task.unwrap();
        assert_eq!(codes, []);
        assert_eq!(task.family.as_deref(), Some("shared_world"));
        let rounds = task.rounds.unwrap();
        assert_eq!(rounds.hook_files().into_iter().collect::<Vec<_>>(), ["rounds/read.sh", "rounds/reopen.sh"]);
        assert_eq!(rounds.rounds[0].budget, RoundBudget { steps: Some(10), ..RoundBudget::default() });
        assert_eq!(rounds.rounds[1].budget.dollars, Some(Money::from_nanos(250_000_000)));
        assert_eq!((rounds.rounds[1].kind, rounds.rounds[1].before.is_some()), (RoundKind::FollowUp, true));
        let last = rounds.assertions().last().unwrap();
        assert_eq!(last.says, "Is there a red mark?");
        assert!(rounds.asks_judge());
    }

    #[test]
    fn a_section_without_rounds_is_none_and_a_family_is_a_known_word() {
        let (task, codes) = read(json!({"family": "single_app"}));
        assert!(task.unwrap().rounds.is_none());
        assert_eq!(codes, [Code::SuccessMissing]);
        assert_eq!(read(json!({"family": "app"})).0.unwrap_err().0.code, Code::RoundsUnknownWord);
    }

    #[test]
    fn each_oddity_refuses_the_task_by_its_code() {
        let with = |pointer: &str, value: Value| {
            let mut section = whole();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            section.pointer_mut(parent).unwrap().as_object_mut().unwrap().insert(key.to_owned(), value);
            section
        };
        let (one, two) = ("/rounds/0", "/rounds/1");
        let cases = [
            (with("/round", json!([])), Code::RoundsUnknownKey),
            (with("/rounds", json!({})), Code::RoundsShape),
            (with("/rounds", json!([])), Code::RoundsShape),
            (with("/rounds", json!([{"kind": "open", "goal": "g"}])), Code::RoundsShape),
            (with("/rounds", json!(["open"])), Code::RoundsShape),
            (with(&format!("{one}/goals"), json!("x")), Code::RoundsUnknownKey),
            (with(&format!("{one}/kind"), json!("opening")), Code::RoundsUnknownWord),
            (with(&format!("{one}/kind"), json!("other")), Code::RoundsUnknownWord),
            (with(&format!("{one}/goal"), json!(" ")), Code::RoundsShape),
            (with(&format!("{one}/read"), json!("../read.sh")), Code::RoundsShape),
            (with(&format!("{one}/read"), json!("/read.sh")), Code::RoundsShape),
            (with(&format!("{one}/budget"), json!({"tokens": 1})), Code::RoundsUnknownKey),
            (with(&format!("{one}/budget"), json!({"dollars": "a lot"})), Code::RoundsShape),
            (with(&format!("{one}/budget"), json!({"dollars": 0})), Code::RoundsShape),
            (with(&format!("{one}/budget"), json!({"dollars": -1})), Code::RoundsShape),
            (with(&format!("{one}/budget"), json!({"dollars": []})), Code::RoundsShape),
            (with(&format!("{one}/budget"), json!({"steps": 0})), Code::RoundsShape),
            (with(&format!("{one}/budget"), json!({"steps": 1.5})), Code::RoundsShape),
            (with(&format!("{one}/assertions"), json!({})), Code::RoundsShape),
            (with(&format!("{one}/assertions/0/id"), json!("a b")), Code::RoundsShape),
            (with(&format!("{one}/assertions/0/aspect"), json!("state")), Code::RoundsUnknownWord),
            (with(&format!("{one}/assertions/0/at"), json!("x")), Code::RoundsAssertion),
            (with(&format!("{one}/assertions/0/at"), json!("/a~2")), Code::RoundsAssertion),
            (with(&format!("{one}/assertions/0/equal"), json!(1)), Code::RoundsUnknownKey),
            (with(&format!("{one}/assertions/0/equals"), json!(1)), Code::RoundsAssertion),
            (with(&format!("{one}/assertions/0/says"), json!(null)), Code::RoundsShape),
            (with(&format!("{two}/assertions/0/same_as"), json!({"round": 2, "at": "/x"})), Code::RoundsNoRead),
            (with(&format!("{two}/assertions/0/same_as"), json!({"round": 0, "at": "/x"})), Code::RoundsNoRead),
            (with(&format!("{two}/assertions/1/at_most"), json!("1")), Code::RoundsAssertion),
            (with(&format!("{two}/assertions/1/id"), json!("kept")), Code::RoundsDuplicateId),
            (with(&format!("{two}/assertions/2/absent"), json!(false)), Code::RoundsAssertion),
            (with(&format!("{two}/assertions/3/at"), json!("/x")), Code::RoundsAssertion),
        ];
        for (section, code) in cases {
            let (task, _) = read(section.clone());
            let refused = task.expect_err(&section.to_string());
            assert_eq!(refused.0.code, code, "{section}: {refused}");
            assert!(refused.0.place.is_some(), "{section}");
        }
        let mut unread = whole();
        unread["rounds"][0].as_object_mut().unwrap().remove("read");
        let (task, others) = read(unread);
        assert_eq!((task.unwrap_err().0.code, others), (Code::RoundsNoRead, vec![Code::RoundsNoRead]));
    }

    #[test]
    fn what_may_never_be_reached_or_checked_is_a_warning() {
        let mut section = whole();
        section["rounds"][1]["assertions"] = json!([]);
        section["rounds"][1]["budget"]["steps"] = json!(21);
        let (task, codes) = read(section);
        assert!(task.is_ok());
        assert_eq!(codes, [Code::RoundsUnchecked, Code::RoundsBudget]);
    }
}
