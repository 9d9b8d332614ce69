//! Reading what a rejudgement came to, for comparisons and reports.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use longhaul_core::ids::{EpisodeId, RunId};
use longhaul_core::judge::{JudgePlan, Judgement};
use longhaul_core::rounds::RoundResult;
use longhaul_report::{Opinion, Rejudgement};
use serde::Deserialize;

use super::case::file;
use super::folder::{HEAD, VERDICTS, parsed};
use crate::error::CliError;

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
    rounds: Option<Vec<RoundResult>>,
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
    let path = folder.join(HEAD);
    let head: Head = serde_json::from_slice(&file(&path)?)
        .map_err(|source| CliError::Record { what: path.display().to_string(), source })?;
    let path = folder.join(VERDICTS);
    let mut verdicts = BTreeMap::new();
    for line in parsed::<Line>(&file(&path)?, &path)? {
        let Line { episode, judgement, rounds, error } = line;
        // They are null in a line of an episode without any.
        let rounds = rounds.unwrap_or_default();
        let verdict = if judgement.is_none() && rounds.is_empty() {
            Err(error.unwrap_or_else(|| "no reason is recorded".to_owned()))
        } else {
            Ok(Opinion { judgement, rounds })
        };
        // Of what could not be judged and was tried again, the last word counts.
        verdicts.insert(episode, verdict);
    }
    let resolved = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let name = resolved.file_name().unwrap_or(resolved.as_os_str()).to_string_lossy().into_owned();
    Ok(Rejudgement { name, run: head.run, judge: head.judge, verdicts })
}
