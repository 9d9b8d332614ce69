//! Findings, and the report that they make up.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::spec::{Code, Diagnostic, Severity};
use crate::text::turns_direction;

/// Something that was found in a file of a benchmark.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    /// What kind of thing it is.
    pub code: Code,
    /// How much it matters.
    pub severity: Severity,
    /// The file or folder, relative to the benchmark.
    pub file: String,
    /// The line, from 1; none for what is not at a place of a text.
    pub line: Option<u32>,
    /// The column, from 1; none for what is not at a place of a text.
    pub column: Option<u32>,
    /// What was found.
    pub message: String,
    /// What to do about it.
    pub hint: String,
}

impl Finding {
    /// The finding that a diagnostic is in a file.
    #[must_use]
    pub fn new(file: impl Into<String>, diagnostic: Diagnostic) -> Self {
        let hint = diagnostic.hint_text().to_owned();
        Self {
            code: diagnostic.code,
            severity: diagnostic.code.severity(),
            file: file.into(),
            line: diagnostic.place.map(|place| place.line),
            column: diagnostic.place.map(|place| place.column),
            message: diagnostic.message,
            hint,
        }
    }

    /// `file:line:column`, or as much of it as there is.
    #[must_use]
    pub fn location(&self) -> String {
        match (self.line, self.column) {
            (Some(line), Some(column)) => format!("{}:{line}:{column}", self.file),
            (Some(line), None) => format!("{}:{line}", self.file),
            _ => self.file.clone(),
        }
    }
}

/// How many task files there are, and what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TaskCounts {
    /// Files on disk; one that is reached through a link too is counted once.
    pub files: usize,
    /// Those that can be run.
    pub loaded: usize,
    /// Those that cannot.
    pub refused: usize,
    /// Those of the loaded that are sequences of rounds.
    pub with_rounds: usize,
    /// Their rounds.
    pub rounds: usize,
    /// The assertions of those.
    pub assertions: usize,
}

/// What was found in a benchmark.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LintReport {
    /// How many envs there are.
    pub envs: usize,
    /// How many tasks there are.
    pub tasks: TaskCounts,
    /// How many tasks each split names.
    pub splits: BTreeMap<String, usize>,
    /// The findings, sorted by code, file and place.
    pub findings: Vec<Finding>,
}

/// A text from a file, safe to show on a terminal: control characters and marks that
/// turn the direction of writing are written out.
#[must_use]
pub fn shown(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() || turns_direction(character) {
            safe.extend(character.escape_default());
        } else {
            safe.push(character);
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Place;

    #[test]
    fn a_finding_is_one_object_with_the_documented_keys() {
        let diagnostic = Diagnostic::new(Code::JsonSyntax, "bad").at(Place { line: 3, column: 9 });
        let finding = Finding::new("environments/a/env.json", diagnostic);
        assert_eq!(finding.location(), "environments/a/env.json:3:9");
        let value = serde_json::to_value(&finding).unwrap();
        let keys: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
        assert_eq!(keys, ["code", "column", "file", "hint", "line", "message", "severity"]);
        assert_eq!((value["code"].as_str(), value["severity"].as_str()), (Some("json-syntax"), Some("error")));
    }

    #[test]
    fn what_a_file_says_cannot_move_the_cursor() {
        assert_eq!(shown("a\u{1b}[2Jb\u{202e}c\u{61c}"), "a\\u{1b}[2Jb\\u{202e}c\\u{61c}");
    }
}
