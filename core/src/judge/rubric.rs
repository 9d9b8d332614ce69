//! A checklist as a judge is given it: every item with an id of its own, and points.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::digest::Digest;
use crate::spec::{Checklist, ChecklistItem, Refused, parse_checklist};

/// The most items of a checklist: more would not fit into an answer, or a verdict into a message.
const MOST_ITEMS: usize = 200;

/// The most bytes of an item's id.
const MOST_ID: usize = 120;

/// One thing to look for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RubricItem {
    /// Its name, which no other item has.
    pub id: String,
    /// What it is worth; none for integrity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub points: Option<f64>,
    /// What is looked for.
    pub description: String,
    /// How it shows on a screenshot.
    pub visual_evidence: String,
}

/// A checklist that can be judged by.
#[derive(Clone, Debug, PartialEq)]
pub struct Rubric {
    /// What makes the task complete; at least one item, with points that come to more than zero.
    pub completion: Vec<RubricItem>,
    /// What must not have been done.
    pub integrity: Vec<RubricItem>,
    /// What the judge may know and the agent must not.
    pub privileged_info: Option<String>,
    /// The digest of the file.
    pub digest: Digest,
}

/// A checklist that cannot be judged by.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RubricError {
    /// It is no checklist, or one in another schema.
    #[error("the checklist is refused: {0}")]
    Refused(#[from] Refused),
    /// Points that no score can be made of.
    #[error("the checklist's points cannot be scored: {reason}")]
    Points {
        /// What is wrong with them.
        reason: String,
    },
    /// There are too many items.
    #[error("the checklist has {items} items, and {MOST_ITEMS} are the most")]
    TooMany {
        /// How many there are.
        items: usize,
    },
}

impl Rubric {
    /// Reads a checklist file.
    ///
    /// # Errors
    ///
    /// It is in another schema, or no score can be made of it.
    pub fn parse(bytes: &[u8]) -> Result<Self, RubricError> {
        let checklist = parse_checklist(bytes, &mut Vec::new())?;
        Self::of(&checklist, Digest::of(bytes))
    }

    fn of(checklist: &Checklist, digest: Digest) -> Result<Self, RubricError> {
        let items = checklist.completion.len() + checklist.integrity.len();
        if items > MOST_ITEMS {
            return Err(RubricError::TooMany { items });
        }
        #[expect(clippy::cast_precision_loss, reason = "at most 200 items")]
        let each = 100.0 / checklist.completion.len().max(1) as f64;
        let mut taken = BTreeSet::new();
        let mut completion = Vec::new();
        for item in &checklist.completion {
            let points = item.points.unwrap_or(each);
            completion.push(rubric_item(item, Some(points), &mut taken));
        }
        let sum: f64 = completion.iter().filter_map(|item| item.points).sum();
        if sum <= 0.0 || !sum.is_finite() {
            return Err(RubricError::Points { reason: format!("they come to {sum}") });
        }
        let integrity = checklist.integrity.iter().map(|item| rubric_item(item, None, &mut taken)).collect();
        Ok(Self { completion, integrity, privileged_info: checklist.privileged_info.clone(), digest })
    }

    /// All items: completion first.
    pub fn items(&self) -> impl Iterator<Item = &RubricItem> {
        self.completion.iter().chain(&self.integrity)
    }
}

/// Two items of one id could not be told apart in an answer: later ones get a number.
fn rubric_item(item: &ChecklistItem, points: Option<f64>, taken: &mut BTreeSet<String>) -> RubricItem {
    let base = super::cut(item.id.trim(), MOST_ID).to_owned();
    let mut id = base.clone();
    let mut number = 2;
    while !taken.insert(id.clone()) {
        id = format!("{base}#{number}");
        number += 1;
    }
    RubricItem { id, points, description: item.description.clone(), visual_evidence: item.visual_evidence.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Rubric, RubricError> {
        Rubric::parse(text.as_bytes())
    }

    #[test]
    fn items_have_ids_of_their_own_and_points_where_the_file_has_none() {
        let rubric =
            parse(r#"{"task_completion": [{"id": "a"}, {"id": "a"}, {"item": "b"}, {}], "integrity": [{"id": "a"}]}"#)
                .unwrap();
        let ids: Vec<&str> = rubric.items().map(|item| item.id.as_str()).collect();
        assert_eq!(ids, ["a", "a#2", "b", "task_completion_4", "a#3"]);
        assert!(rubric.completion.iter().all(|item| item.points == Some(25.0)));
        assert_eq!(rubric.integrity[0].points, None);
    }

    #[test]
    fn what_cannot_be_scored_is_refused_by_name() {
        for (text, said) in [
            (
                r#"{"checklist": [{"id": "a"}], "integrity_checks": []}"#,
                "no item in `task_completion` (keys: checklist",
            ),
            ("not JSON", "the checklist is refused"),
            (r#"{"task_completion": [{"id": "a", "points": 0}]}"#, "they come to 0"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
        let many: Vec<String> = (0..300).map(|number| format!("{{\"id\": \"{number}\"}}")).collect();
        let text = format!("{{\"task_completion\": [{}]}}", many.join(","));
        assert_eq!(parse(&text), Err(RubricError::TooMany { items: 300 }));
    }
}
