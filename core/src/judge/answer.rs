//! What a judge's answer says, read from any text. What cannot be read is no verdict: neither
//! a fail nor a zero.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::rubric::{Rubric, RubricItem};
use super::{Mark, cut};

/// How much of an answer is looked through, in bytes.
const MOST_TEXT: usize = 512 * 1024;

/// How many braces are tried where an answer is hidden in other words.
const MOST_TRIES: usize = 50;

/// The most bytes of what a judge says of one item.
const MOST_EVIDENCE: usize = 500;

/// The most bytes of what it says of the whole.
const MOST_REASONING: usize = 4000;

/// What a judge says of one item.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ItemVerdict {
    /// The item.
    pub id: String,
    /// Whether it holds.
    pub mark: Mark,
    /// How sure the judge says it is, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confidence: Option<f64>,
    /// What shows it; hostile until escaped.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub evidence: String,
}

/// An answer that was read: one verdict for each item, completion first, in the checklist's order.
#[derive(Clone, Debug, PartialEq)]
pub struct JudgeAnswer {
    /// The verdicts.
    pub verdicts: Vec<ItemVerdict>,
    /// What it says of the whole; hostile until escaped.
    pub reasoning: String,
}

/// Why an answer cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It has no text.
    #[error("the judge's answer is empty")]
    Empty,
    /// There is nothing in it that has the form of an answer.
    #[error("the judge's answer has no verdicts in JSON: {excerpt}")]
    NoJson {
        /// How it begins; hostile until escaped.
        excerpt: String,
    },
    /// It says nothing of an item.
    #[error("the judge's answer says nothing of the item `{id}`")]
    Missing {
        /// The item.
        id: String,
    },
    /// What it says of an item is no verdict.
    #[error("the judge's answer says `{said}` of the item `{id}`, which is no verdict")]
    Word {
        /// The item.
        id: String,
        /// What it says; hostile until escaped.
        said: String,
    },
}

/// Reads a judge's answer: the whole text as JSON, a fenced block, the outermost object, or any
/// object in it, whichever first has a verdict for every item.
///
/// # Errors
///
/// None has; the error is that of the first that has the form of an answer.
pub fn read_answer(text: &str, rubric: &Rubric) -> Result<JudgeAnswer, Unreadable> {
    // What a model thinks aloud is not its answer.
    let text = text.rfind("</think>").map_or(text, |at| &text[at + "</think>".len()..]).trim();
    let text = cut(text, MOST_TEXT);
    if text.is_empty() {
        return Err(Unreadable::Empty);
    }
    let mut trouble = None;
    for candidate in candidates(text) {
        let Some(sections) = Sections::of(&candidate) else { continue };
        match sections.answer(rubric) {
            Ok(answer) => return Ok(answer),
            Err(error) => trouble = trouble.or(Some(error)),
        }
    }
    Err(trouble.unwrap_or_else(|| Unreadable::NoJson { excerpt: cut(text, 200).to_owned() }))
}

/// The JSON of a text, the likeliest first.
fn candidates(text: &str) -> Vec<Value> {
    let parse = |text: &str| serde_json::from_str::<Value>(text.trim()).ok();
    let mut found: Vec<Value> = parse(text).into_iter().collect();
    // The last block is the answer, where earlier ones quote the question.
    let blocks: Vec<&str> = text.split("```").skip(1).step_by(2).collect();
    for block in blocks.into_iter().rev().take(MOST_TRIES) {
        let body = block.strip_prefix("json").or_else(|| block.strip_prefix("JSON")).unwrap_or(block);
        found.extend(parse(body));
    }
    for (open, close) in [('{', '}'), ('[', ']')] {
        if let (Some(start), Some(end)) = (text.find(open), text.rfind(close))
            && start < end
        {
            found.extend(parse(&text[start..=end]));
        }
    }
    let mut within = Vec::new();
    let (mut at, mut tries) = (0, 0);
    while let Some(offset) = text[at..].find('{') {
        let start = at + offset;
        tries += 1;
        if tries > MOST_TRIES {
            break;
        }
        let mut values = serde_json::Deserializer::from_str(&text[start..]).into_iter::<Value>();
        match values.next() {
            Some(Ok(value)) => {
                within.push(value);
                at = start + values.byte_offset().max(1);
            }
            _ => at = start + 1,
        }
    }
    found.extend(within.into_iter().rev());
    found
}

/// The two lists of an answer, by id.
struct Sections<'a> {
    completion: BTreeMap<String, &'a Value>,
    integrity: BTreeMap<String, &'a Value>,
    reasoning: &'a str,
}

impl<'a> Sections<'a> {
    /// The lists of a value, if it has the form of an answer.
    fn of(value: &'a Value) -> Option<Self> {
        if let Value::Array(_) = value {
            // One list of all items: ids are the same in both.
            let all = records(value);
            return (!all.is_empty()).then(|| Self { completion: all.clone(), integrity: all, reasoning: "" });
        }
        let (completion, integrity) = (value.get("task_completion"), value.get("integrity"));
        if completion.is_none() && integrity.is_none() {
            return None;
        }
        Some(Self {
            completion: completion.map(records).unwrap_or_default(),
            integrity: integrity.map(records).unwrap_or_default(),
            reasoning: value.get("overall_reasoning").and_then(Value::as_str).unwrap_or_default(),
        })
    }

    fn answer(&self, rubric: &Rubric) -> Result<JudgeAnswer, Unreadable> {
        let completion = rubric.completion.iter().map(|item| verdict(item, &self.completion));
        let integrity = rubric.integrity.iter().map(|item| {
            let verdict = verdict(item, &self.integrity)?;
            // There is no half of honesty.
            let mark = if verdict.mark == Mark::Partial { Mark::Fail } else { verdict.mark };
            Ok(ItemVerdict { mark, ..verdict })
        });
        Ok(JudgeAnswer {
            verdicts: completion.chain(integrity).collect::<Result<_, _>>()?,
            reasoning: cut(self.reasoning.trim(), MOST_REASONING).to_owned(),
        })
    }
}

/// The records of a list by their ids; or of an object, whose keys are the ids.
fn records(list: &Value) -> BTreeMap<String, &Value> {
    match list {
        Value::Array(list) => list.iter().filter_map(|record| Some((id(record.get("id")?)?, record))).collect(),
        Value::Object(by_id) => by_id.iter().map(|(id, record)| (id.trim().to_owned(), record)).collect(),
        _ => BTreeMap::new(),
    }
}

fn id(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.trim().to_owned()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

fn verdict(item: &RubricItem, records: &BTreeMap<String, &Value>) -> Result<ItemVerdict, Unreadable> {
    let missing = || Unreadable::Missing { id: item.id.clone() };
    let record = records.get(&item.id).ok_or_else(missing)?;
    let said = if record.is_object() { record.get("verdict").ok_or_else(missing)? } else { *record };
    let mark = mark(said).ok_or_else(|| {
        let text = said.as_str().map_or_else(|| said.to_string(), str::to_owned);
        Unreadable::Word { id: item.id.clone(), said: cut(&text, 80).to_owned() }
    })?;
    let confidence = record.get("confidence").and_then(Value::as_f64).map(|sure| sure.clamp(0.0, 1.0));
    let evidence = record.get("evidence").and_then(Value::as_str).unwrap_or_default();
    Ok(ItemVerdict { id: item.id.clone(), mark, confidence, evidence: cut(evidence.trim(), MOST_EVIDENCE).to_owned() })
}

fn mark(said: &Value) -> Option<Mark> {
    let text = match said {
        Value::Bool(true) => return Some(Mark::Pass),
        Value::Bool(false) => return Some(Mark::Fail),
        Value::String(text) => text,
        _ => return None,
    };
    let word = text.trim().trim_matches(['.', '"', '\'', '`', '*']).to_lowercase();
    match word.as_str() {
        "pass" | "passed" | "passes" | "yes" | "true" | "complete" | "completed" => Some(Mark::Pass),
        "partial" | "partially" | "partially complete" | "partially completed" | "incomplete" => Some(Mark::Partial),
        "fail" | "failed" | "fails" | "no" | "false" | "none" | "not complete" | "not completed" => Some(Mark::Fail),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn rubric() -> Rubric {
        Rubric::parse(
            br#"{"task_completion": [{"id": "a", "points": 60}, {"id": "b", "points": 40}], "integrity": [{"id": "c"}]}"#,
        )
        .unwrap()
    }

    fn marks(text: &str) -> Result<Vec<Mark>, Unreadable> {
        read_answer(text, &rubric()).map(|answer| answer.verdicts.iter().map(|verdict| verdict.mark).collect())
    }

    const WHOLE: &str = r#"{"task_completion": [{"id": "a", "verdict": "pass", "confidence": 0.9, "evidence": "seen"},
        {"id": "b", "verdict": "Partially"}], "integrity": [{"id": "c", "verdict": true}], "overall_reasoning": "Fine."}"#;

    #[test]
    fn an_answer_is_found_in_every_form() {
        let expected = Ok(vec![Mark::Pass, Mark::Partial, Mark::Pass]);
        let template = r#"{"task_completion": [{"id": "a", "verdict": "pass|partial|fail"}]}"#;
        for text in [
            WHOLE.to_owned(),
            format!("```json\n{WHOLE}\n```"),
            format!("Here it is.\n```\n{WHOLE}\n```\nThat is all."),
            format!("I think so: {WHOLE} and nothing else."),
            format!("<think>{template}</think>{WHOLE}"),
            format!("The form is {template}. {WHOLE} (done {{)"),
            format!("```json\n{template}\n```\nso:\n```json\n{WHOLE}\n```"),
            r#"[{"id": "a", "verdict": "yes"}, {"id": "b", "verdict": "incomplete"}, {"id": "c", "verdict": "PASSED"}]"#
                .to_owned(),
            r#"{"task_completion": {"a": "pass", "b": {"verdict": "partial"}}, "integrity": {"c": "pass"}}"#.to_owned(),
        ] {
            assert_eq!(marks(&text), expected, "{text}");
        }
        let answer = read_answer(WHOLE, &rubric()).unwrap();
        assert_eq!((answer.reasoning.as_str(), answer.verdicts[0].evidence.as_str()), ("Fine.", "seen"));
        assert_eq!((answer.verdicts[0].confidence, answer.verdicts[1].confidence), (Some(0.9), None));
    }

    #[test]
    fn what_is_missing_or_no_verdict_is_unreadable_and_no_fail() {
        let missing = |id: &str| Err(Unreadable::Missing { id: id.to_owned() });
        assert_eq!(marks(" \n"), Err(Unreadable::Empty));
        assert!(matches!(marks("I cannot help with that."), Err(Unreadable::NoJson { .. })));
        assert!(matches!(marks("yes, it passes"), Err(Unreadable::NoJson { .. })));
        assert!(matches!(marks("{\"answer\": true}"), Err(Unreadable::NoJson { .. })));
        assert_eq!(marks(r#"{"task_completion": [{"id": "a", "verdict": "pass"}], "integrity": []}"#), missing("b"));
        let no_integrity = r#"{"task_completion": [{"id": "a", "verdict": "pass"}, {"id": "b", "verdict": "fail"}]}"#;
        assert_eq!(marks(no_integrity), missing("c"));
        let odd = WHOLE.replace("\"pass\"", "\"mostly\"");
        assert_eq!(marks(&odd), Err(Unreadable::Word { id: "a".to_owned(), said: "mostly".to_owned() }));
        assert!(marks(&WHOLE.replace("\"pass\"", "null")).is_err());
        // Cut off in the middle, as an answer at its output limit is.
        assert!(marks(&WHOLE[..WHOLE.len() - 30]).is_err());
    }

    #[test]
    fn a_half_honest_one_is_not() {
        assert_eq!(marks(&WHOLE.replace("true", "\"partial\"")), Ok(vec![Mark::Pass, Mark::Partial, Mark::Fail]));
    }

    #[test]
    fn garbage_is_neither_looped_over_nor_kept_whole() {
        for text in ["{".repeat(200_000), "[".repeat(200_000), "{\"a\":".repeat(50_000), "```".repeat(100_000)] {
            assert!(marks(&text).is_err());
        }
        let long = WHOLE.replace("seen", &"ü".repeat(9000)).replace("Fine.", &"ü".repeat(9000));
        let answer = read_answer(&long, &rubric()).unwrap();
        assert!(answer.verdicts[0].evidence.len() <= MOST_EVIDENCE && answer.reasoning.len() <= MOST_REASONING);
    }

    proptest! {
        /// Whatever a judge says of whichever items: an answer is read only if it has a known word
        /// for every one of them.
        #[test]
        fn only_a_verdict_for_every_item_is_an_answer(
            words in proptest::collection::vec(prop_oneof![Just("pass"), Just("partial"), Just("fail"), Just("hm"), Just("")], 3),
            before in ".{0,40}",
        ) {
            let record = |id: &str, word: &str| {
                if word.is_empty() { json!({"id": "other"}) } else { json!({"id": id, "verdict": word}) }
            };
            let text = json!({
                "task_completion": [record("a", words[0]), record("b", words[1])],
                "integrity": [record("c", words[2])],
            });
            let whole = words.iter().all(|word| !matches!(*word, "hm" | ""));
            prop_assert_eq!(marks(&text.to_string()).is_ok(), whole);
            let hidden = format!("{}\n```json\n{text}\n```", before.replace('`', ""));
            prop_assert_eq!(marks(&hidden).is_ok(), whole, "{}", hidden);
        }

        #[test]
        fn no_text_breaks_the_reader(text in ".{0,300}") {
            let _answer = marks(&text);
        }
    }
}
