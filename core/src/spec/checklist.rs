//! vlm_checklist.json: what a judge looks for on the screenshots.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::Value;

use super::Format;
use super::diagnostic::{Code, Diagnostic, Refused};
use super::fields::Fields;
use super::json::Document;

/// One thing to look for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChecklistItem {
    /// Its name.
    pub id: String,
    /// What is looked for.
    pub description: String,
    /// What it is worth; none where the file does not say, and for integrity.
    pub points: Option<f64>,
    /// How it shows on a screenshot.
    pub visual_evidence: String,
}

/// A checklist.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Checklist {
    /// What makes the task complete.
    pub completion: Vec<ChecklistItem>,
    /// What must not have been done.
    pub integrity: Vec<ChecklistItem>,
    /// What the judge may know and the agent must not.
    pub privileged_info: Option<String>,
}

/// Reads a checklist.
///
/// # Errors
///
/// It is not JSON, or has no item that could be scored.
pub fn parse_checklist(bytes: &[u8], out: &mut Vec<Diagnostic>) -> Result<Checklist, Refused> {
    let document = Document::parse(bytes, Format::Json, Code::ChecklistSyntax, out)?;
    let Some(map) = document.value().as_object() else {
        return Err(Diagnostic::new(Code::ChecklistSchema, "a checklist is an object").into());
    };
    let fields = Fields::new(Some(map), Vec::new(), &document);
    let mut seen = BTreeSet::new();
    let completion = read_items(&fields, "task_completion", &mut seen, out);
    let integrity = read_items(&fields, "integrity", &mut seen, out);
    if completion.is_empty() {
        let keys = fields.keys().map(String::as_str).take(8).collect::<Vec<_>>().join(", ");
        let message = format!("no item in `task_completion` (keys: {keys})");
        return Err(Diagnostic::new(Code::ChecklistSchema, message).at(document.place(&[])).into());
    }
    let points: f64 = completion.iter().filter_map(|item| item.points).sum();
    if completion.iter().all(|item| item.points.is_some()) && (points - 100.0).abs() > 1e-6 {
        let message = format!("the points add up to {points}");
        out.push(fields.diagnostic(Code::ChecklistPoints, "task_completion", message));
    }
    let privileged_info = match fields.get("privileged_info_for_vlm") {
        Some(Value::String(text)) if !text.trim().is_empty() => Some(text.clone()),
        Some(other) if !other.is_string() => Some(other.to_string()),
        _ => {
            out.push(Diagnostic::new(Code::ChecklistNoPrivileged, "no `privileged_info_for_vlm`"));
            None
        }
    };
    Ok(Checklist { completion, integrity, privileged_info })
}

fn read_items(
    fields: &Fields<'_>,
    key: &str,
    seen: &mut BTreeSet<String>,
    out: &mut Vec<Diagnostic>,
) -> Vec<ChecklistItem> {
    let mut items = Vec::new();
    for (index, item) in fields.objects(key, out).into_iter().enumerate() {
        let id = match (item.filled("id", out), item.get("item").and_then(Value::as_str)) {
            (Some(id), _) => id,
            (None, Some(other)) => {
                out.push(item.diagnostic(
                    Code::ChecklistItemId,
                    "item",
                    "an item has `item` in place of `id`".to_owned(),
                ));
                other.to_owned()
            }
            (None, None) => {
                out.push(item.diagnostic(Code::ChecklistItemId, "id", "an item has no `id`".to_owned()));
                format!("{key}_{}", index + 1)
            }
        };
        if !seen.insert(id.clone()) {
            let shown: String = id.chars().take(80).collect();
            out.push(item.diagnostic(Code::ChecklistDuplicateId, "id", format!("two items have the id `{shown}`")));
        }
        items.push(ChecklistItem {
            id,
            description: item.text("description", out).unwrap_or_default(),
            points: item.number("points", out),
            visual_evidence: item.text("visual_evidence", out).unwrap_or_default(),
        });
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(text: &str) -> (Result<Checklist, Refused>, Vec<Code>) {
        let mut out = Vec::new();
        let checklist = parse_checklist(text.as_bytes(), &mut out);
        (checklist, out.into_iter().map(|found| found.code).collect())
    }

    #[test]
    fn a_whole_checklist_has_no_diagnostics() {
        let (checklist, codes) = codes(
            r#"{"task_id": "t", "task_completion": [{"id": "a", "description": "d", "points": 60},
                {"id": "b", "points": 40.0}], "integrity": [{"id": "c"}], "privileged_info_for_vlm": "p"}"#,
        );
        assert_eq!(codes, []);
        assert_eq!(checklist.unwrap().completion.len(), 2);
    }

    #[test]
    fn oddities_are_named() {
        let (checklist, codes) = codes(
            r#"{"task_completion": [{"item": "a", "points": 10}, {"id": "a", "points": 10}, {"points": 10}, "x"]}"#,
        );
        assert_eq!(checklist.unwrap().completion[2].id, "task_completion_3");
        assert_eq!(
            codes,
            [
                Code::WrongType,
                Code::ChecklistItemId,
                Code::ChecklistDuplicateId,
                Code::ChecklistItemId,
                Code::ChecklistPoints,
                Code::ChecklistNoPrivileged,
            ]
        );
    }

    #[test]
    fn another_schema_is_refused() {
        let (refused, _) = codes(r#"{"checklist": [], "integrity_checks": [], "pass_threshold": 70}"#);
        assert_eq!(refused.unwrap_err().0.code, Code::ChecklistSchema);
        assert_eq!(codes("{\"a\": ").0.unwrap_err().0.code, Code::ChecklistSyntax);
        assert_eq!(codes("7").0.unwrap_err().0.code, Code::ChecklistSchema);
    }
}
