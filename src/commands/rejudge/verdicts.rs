//! Reading what a rejudgement came to, for comparisons and reports.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use longhaul_core::ids::{EpisodeId, RunId};
use longhaul_core::judge::{JudgePlan, Judgement};
use longhaul_report::Rejudgement;
use serde::Deserialize;

use crate::error::CliError;

/// The file that makes a folder one of a rejudgement.
const HEAD: &str = "rejudge.json";

/// What was asked for.
#[derive(Deserialize)]
struct Head {
    run: RunId,
    judge: JudgePlan,
}

/// What came of an episode.
#[derive(Deserialize)]
struct Line {
    episode: EpisodeId,
    #[serde(default)]
    judgement: Option<Judgement>,
    #[serde(default)]
    error: Option<String>,
}

/// The folder of a rejudgement that a text names, if it does.
pub(crate) fn folder_of(text: &str) -> Option<PathBuf> {
    Some(PathBuf::from(text)).filter(|path| path.join(HEAD).is_file())
}

/// Reads a folder of a rejudgement, also while it is written.
///
/// # Errors
///
/// A file cannot be read, or is not what it should be.
pub(crate) fn verdicts_of(folder: &Path) -> Result<Rejudgement, CliError> {
    let head: Head = json(&folder.join(HEAD), &bytes(&folder.join(HEAD))?)?;
    let path = folder.join("verdicts.jsonl");
    let text = bytes(&path)?;
    // A last line that is cut off is being written, or was never promised.
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let mut verdicts = BTreeMap::new();
    for line in text[..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let line: Line = json(&path, line)?;
        let verdict = line.judgement.ok_or_else(|| line.error.unwrap_or_else(|| "no reason is recorded".to_owned()));
        // Of what could not be judged and was tried again, the last word counts.
        verdicts.insert(line.episode, verdict);
    }
    let resolved = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let name = resolved.file_name().unwrap_or(resolved.as_os_str()).to_string_lossy().into_owned();
    Ok(Rejudgement { name, run: head.run, judge: head.judge, verdicts })
}

fn bytes(path: &Path) -> Result<Vec<u8>, CliError> {
    fs::read(path).map_err(|source| CliError::File { path: path.to_owned(), doing: "read", source })
}

fn json<T: for<'de> Deserialize<'de>>(path: &Path, text: &[u8]) -> Result<T, CliError> {
    serde_json::from_slice(text).map_err(|source| CliError::Record { what: path.display().to_string(), source })
}
