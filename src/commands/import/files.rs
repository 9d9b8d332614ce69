//! Finding results below a folder, and reading their files.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use walkdir::WalkDir;

use super::ImportError;

/// The deepest that results are looked for.
const DEEPEST: usize = 12;

/// The largest file of JSON that is read. Links are not followed, whatever they lead to: results may
/// come from anywhere, and what is read is kept and handed on.
const MAX_JSON: u64 = 256 * 1024 * 1024;

/// Files by one of which a folder `run_N` is known for an agent's.
const OF_AGENTS: [&str; 6] =
    ["info.json", "info.pkl", "responses.json", "responses_metadata.json", "messages.pkl", "parsed_responses.json"];

/// A folder with the results of an episode.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// Its name below the folder of the results, with `/` between its parts.
    pub(super) name: String,
    /// The folder.
    pub(super) path: PathBuf,
}

/// Where results are, sorted.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Folders of episodes.
    pub(super) episodes: Vec<Place>,
    /// Folders `run_N` of agents.
    pub(super) runs: Vec<Place>,
}

/// Looks for results below a folder, that one included. Links are not followed.
pub(super) fn places(folder: &Path) -> Result<Places, ImportError> {
    let mut places = Places::default();
    let list = |source| ImportError::List { folder: folder.to_owned(), source };
    for entry in WalkDir::new(folder).max_depth(DEEPEST).sort_by_file_name() {
        let entry = entry.map_err(list)?;
        if !entry.file_type().is_dir() {
            continue;
        }
        let path = entry.path();
        let below = path.strip_prefix(folder).unwrap_or(path);
        let parts: Vec<String> = below.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        let name = if parts.is_empty() { ".".to_owned() } else { parts.join("/") };
        let place = Place { name, path: path.to_owned() };
        let has = |file: &str| path.join(file).is_file();
        if has("traj.jsonl") || has("summary.json") {
            places.episodes.push(place);
        } else if run_number(&place.name).is_some() && OF_AGENTS.iter().any(|file| has(file)) {
            places.runs.push(place);
        }
    }
    Ok(places)
}

/// The number of a folder `run_N`.
pub(super) fn run_number(place: &str) -> Option<u32> {
    let digits = place.rsplit('/').next()?.strip_prefix("run_")?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

impl Place {
    /// The parts of its name.
    pub(super) fn parts(&self) -> Vec<&str> {
        self.name.split('/').filter(|part| *part != ".").collect()
    }

    /// A file of it, if it is there.
    pub(super) fn file(&self, name: &str) -> Option<PathBuf> {
        Some(self.path.join(name)).filter(|path| path.is_file())
    }

    /// A file of it that is no link, if it is there.
    pub(super) fn own_file(&self, name: &str) -> Option<PathBuf> {
        self.file(name).filter(|path| !path.is_symlink())
    }

    /// A file of JSON, if it is there; why it cannot be read, if so.
    pub(super) fn json(&self, name: &str) -> Result<Option<Value>, String> {
        let Some(path) = self.file(name) else { return Ok(None) };
        let bytes = read(&path).map_err(|reason| format!("{name} {reason}"))?;
        // Python writes what is no number as NaN, which JSON does not know.
        serde_json::from_slice(&bytes).map(Some).map_err(|error| format!("{name} is no JSON: {error}"))
    }

    /// The lines of a file of JSON, if it is there. A last one that is cut off is left out, and told.
    pub(super) fn lines(&self, name: &str, notes: &mut Vec<String>) -> Result<Option<Vec<Value>>, String> {
        let Some(path) = self.file(name) else { return Ok(None) };
        let bytes = read(&path).map_err(|reason| format!("{name} {reason}"))?;
        let mut lines = Vec::new();
        let all: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
        for (number, line) in (1_usize..).zip(&all) {
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            match serde_json::from_slice(line) {
                Ok(value) => lines.push(value),
                // There is no newline after it.
                Err(_) if number == all.len() => notes.push(format!("the last line of {name} is cut off")),
                Err(error) => return Err(format!("line {number} of {name} is no JSON: {error}")),
            }
        }
        Ok(Some(lines))
    }

    /// Its pictures whose names are `PREFIX`, a number, `.png`; by number.
    pub(super) fn pictures(&self, prefix: &str) -> Result<std::collections::BTreeMap<u32, PathBuf>, String> {
        let mut found = std::collections::BTreeMap::new();
        let entries = fs::read_dir(&self.path).map_err(|error| format!("it cannot be listed: {error}"))?;
        for entry in entries {
            let entry = entry.map_err(|error| format!("it cannot be listed: {error}"))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let digits = name.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(".png"));
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            if let Some(number) = digits.and_then(|digits| digits.parse().ok()).filter(|_| is_file) {
                found.insert(number, entry.path());
            }
        }
        Ok(found)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let metadata = fs::symlink_metadata(path).map_err(|error| format!("cannot be read: {error}"))?;
    if metadata.is_symlink() {
        return Err("is a link, and links are not followed".to_owned());
    }
    let size = metadata.len();
    if size > MAX_JSON {
        return Err(format!("has {size} bytes, more than are read"));
    }
    fs::read(path).map_err(|error| format!("cannot be read: {error}"))
}

/// A text of a value that may be something else; nothing of what is null or empty.
pub(super) fn text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()).filter(|text| !text.is_empty()),
        other => Some(other.to_string()),
    }
}

/// The id of an env, a task or an agent, if it is one.
pub(super) fn id(value: &Value) -> Option<String> {
    value.as_str().filter(|id| !id.is_empty()).map(str::to_owned)
}

/// The actions of a step: a list of them, or one.
pub(super) fn actions(value: &Value) -> Vec<Value> {
    match value {
        Value::Null => Vec::new(),
        Value::Array(actions) => actions.clone(),
        one => vec![one.clone()],
    }
}
