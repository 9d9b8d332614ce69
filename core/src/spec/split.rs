//! Split files: which tasks are for what.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Format;
use super::diagnostic::{Code, Diagnostic, Place, Refused};
use super::fields::excerpt;
use super::json::{At, Document};
use crate::ids::TaskName;

/// The split with the long tasks.
pub const LONG_SPLIT: &str = "long_horizon";

/// The split whose tasks were checked by people; it has a file of its own.
pub const VERIFIED_SPLIT: &str = "verified";

/// One split file: the lists of one env.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitFile {
    /// The env's folder name: the last part of `env_folder`.
    pub env: String,
    /// The tasks of each split by name, each with its place in the file.
    pub splits: BTreeMap<String, Vec<(String, Option<Place>)>>,
}

/// Reads a split file. Lists are the keys that end in `_tasks` (`all_tasks`, which only
/// names what is there, aside), and those within `additional_splits`.
///
/// # Errors
///
/// It is not JSON, not an object, or does not say for which env it is.
pub fn parse_split(bytes: &[u8], out: &mut Vec<Diagnostic>) -> Result<SplitFile, Refused> {
    let document = Document::parse(bytes, Format::Json, Code::SplitSyntax, out)?;
    let Some(map) = document.value().as_object() else {
        return Err(Diagnostic::new(Code::SplitSyntax, "a split file is an object").into());
    };
    let folder = map.get("env_folder").and_then(Value::as_str).unwrap_or_default();
    let env = folder.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    if env.is_empty() || env == ".." || env == "." {
        let place = document.place(&[At::from("env_folder")]).or_else(|| document.place(&[]));
        return Err(Diagnostic::new(Code::SplitSyntax, "`env_folder` names no env").at(place).into());
    }
    let mut file = SplitFile { env: env.to_owned(), splits: BTreeMap::new() };
    for (key, value) in map {
        let path = vec![At::from(key.as_str())];
        match (key.as_str(), key.strip_suffix("_tasks"), value) {
            ("all_tasks", ..) => {}
            (_, Some(name), _) if !name.is_empty() => file.add(name, value, path, &document, out),
            ("additional_splits", _, Value::Object(more)) => {
                for (name, value) in more {
                    let path = vec![At::from(key.as_str()), At::from(name.as_str())];
                    file.add(name, value, path, &document, out);
                }
            }
            ("additional_splits", _, other) => out.push(odd(&document, &path, "an object", other)),
            _ => {}
        }
    }
    Ok(file)
}

impl SplitFile {
    fn add(&mut self, name: &str, value: &Value, path: Vec<At>, document: &Document<'_>, out: &mut Vec<Diagnostic>) {
        let Some(items) = value.as_array() else {
            out.push(odd(document, &path, "a list of task names", value));
            return;
        };
        let list = self.splits.entry(name.to_owned()).or_default();
        for (index, item) in items.iter().enumerate() {
            let mut path = path.clone();
            path.push(At::Item(index));
            match item.as_str() {
                // Some lists write env/task; the task is what counts.
                Some(task) if !task.trim().is_empty() => {
                    let task = task.trim().rsplit('/').next().unwrap_or_default();
                    if list.iter().any(|(known, _)| known == task) {
                        let message = format!("the split `{name}` names `{task}` twice");
                        out.push(Diagnostic::new(Code::SplitRepeats, message).at(document.place(&path)));
                    } else {
                        list.push((task.to_owned(), document.place(&path)));
                    }
                }
                _ => out.push(odd(document, &path, "the name of a task", item)),
            }
        }
    }
}

fn odd(document: &Document<'_>, path: &[At], expected: &str, value: &Value) -> Diagnostic {
    let message = format!("a split takes {expected} here, not {}", excerpt(value));
    Diagnostic::new(Code::WrongType, message).at(document.place(path))
}

/// The verified split: tasks of many envs in one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifiedSplit {
    /// The tasks by env.
    pub by_env: BTreeMap<String, Vec<String>>,
}

/// Reads verified.json: `tasks` with names `ENV/TASK`, or `by_environment` with lists.
///
/// # Errors
///
/// It is not JSON, or has neither list.
pub fn parse_verified(bytes: &[u8], out: &mut Vec<Diagnostic>) -> Result<VerifiedSplit, Refused> {
    let document = Document::parse(bytes, Format::Json, Code::SplitSyntax, out)?;
    let mut verified = VerifiedSplit::default();
    let mut found = false;
    if let Some(Value::Object(by_env)) = document.value().get("by_environment") {
        found = true;
        for (env, tasks) in by_env {
            let path = [At::from("by_environment"), At::from(env.as_str())];
            let Some(tasks) = tasks.as_array() else {
                out.push(odd(&document, &path, "a list of task names", tasks));
                continue;
            };
            for task in tasks {
                match task.as_str() {
                    Some(task) => verified.add(env, task),
                    None => out.push(odd(&document, &path, "the name of a task", task)),
                }
            }
        }
    }
    if let Some(Value::Array(tasks)) = document.value().get("tasks") {
        found = true;
        for (index, task) in tasks.iter().enumerate() {
            match task.as_str().and_then(|name| name.parse::<TaskName>().ok()) {
                Some(name) => verified.add(&name.env, &name.task),
                None => out.push(odd(&document, &[At::from("tasks"), At::Item(index)], "ENV/TASK", task)),
            }
        }
    }
    for tasks in verified.by_env.values_mut() {
        tasks.sort_unstable();
        tasks.dedup();
    }
    if found {
        Ok(verified)
    } else {
        let message = "neither `tasks` nor `by_environment`";
        Err(Diagnostic::new(Code::SplitSyntax, message).at(document.place(&[])).into())
    }
}

impl VerifiedSplit {
    fn add(&mut self, env: &str, task: &str) {
        self.by_env.entry(env.to_owned()).or_default().push(task.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_list_of_tasks_is_a_split() {
        let mut out = Vec::new();
        let file = parse_split(
            br#"{"env_folder": "examples/paint_env/", "train_ratio": 0.8, "all_tasks": ["a", "b", "c"],
                 "train_tasks": ["a", "paint_env/b", "a", 7], "test_tasks": ["c"], "hard_tasks": "c", "_tasks": [],
                 "additional_splits": {"long_horizon": ["c"], "odd": null}}"#,
            &mut out,
        )
        .unwrap();
        assert_eq!(file.env, "paint_env");
        let names: Vec<_> = file
            .splits
            .iter()
            .map(|(name, tasks)| (name.as_str(), tasks.iter().map(|(task, _)| task.as_str()).collect::<Vec<_>>()))
            .collect();
        assert_eq!(names, [("long_horizon", vec!["c"]), ("test", vec!["c"]), ("train", vec!["a", "b"])]);
        let codes: Vec<_> = out.iter().map(|found| found.code).collect();
        assert_eq!(codes, [Code::WrongType, Code::WrongType, Code::SplitRepeats, Code::WrongType]);
        assert!(out.iter().all(|found| found.place.is_some()));
    }

    #[test]
    fn a_file_for_no_env_is_refused() {
        for text in ["{}", r#"{"env_folder": ""}"#, r#"{"env_folder": "a/.."}"#, "[]", "{"] {
            let refused = parse_split(text.as_bytes(), &mut Vec::new()).unwrap_err();
            assert_eq!(refused.0.code, Code::SplitSyntax, "{text}");
        }
    }

    #[test]
    fn the_verified_split_joins_both_of_its_lists() {
        let mut out = Vec::new();
        let text = br#"{"tasks": ["a/x", "a/y", "odd"], "by_environment": {"a": ["x"], "b": ["z", 1], "c": 3}}"#;
        let verified = parse_verified(text, &mut out).unwrap();
        assert_eq!(verified.by_env["a"], ["x", "y"]);
        assert_eq!(verified.by_env["b"], ["z"]);
        assert_eq!(out.len(), 3);
        assert!(parse_verified(b"{}", &mut out).is_err());
    }
}
