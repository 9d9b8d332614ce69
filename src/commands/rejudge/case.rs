//! Trajectories as they are stored, ready to be judged.

use std::fs;
use std::path::{Path, PathBuf};

use longhaul_core::agent::ImageSize;
use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, EpisodeId};
use longhaul_core::judge::{CHECKLIST_FILE, JudgePlan, Rubric};
use longhaul_core::outcome::Settlement;
use longhaul_core::plan::{EpisodePlan, Scoring, TaskPlan, Tree};
use longhaul_core::rounds;
use longhaul_proto::{convert, v1};

use crate::client::Source;
use crate::error::CliError;
use crate::{reading, show};

/// The log that holds the screen after the export hook.
const AFTER_EXPORT: &str = "post_verification.png";

/// Where checklists come from.
#[derive(Clone, Debug)]
pub(super) enum Checklists {
    /// From the run's own snapshot of the benchmark.
    OfTheRun,
    /// The same file for every task.
    File(PathBuf),
    /// A folder with ENV/TASK.json.
    Folder(PathBuf),
}

impl Checklists {
    /// What a person named.
    pub(super) fn of(named: Option<&Path>) -> Self {
        match named {
            None => Self::OfTheRun,
            Some(path) if path.is_dir() => Self::Folder(path.to_owned()),
            Some(path) => Self::File(path.to_owned()),
        }
    }
}

/// A trajectory to be judged.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) description: String,
    pub(super) rubric: Rubric,
    pub(super) screens: Vec<Digest>,
    pub(super) size: ImageSize,
}

/// The plan of an episode.
pub(super) async fn plan(source: &Source, row: &v1::EpisodeRow) -> Result<EpisodePlan, CliError> {
    let digest = convert::digest("plan", &row.plan).map_err(CliError::Answer)?;
    reading::record(source, &digest, &format!("episode {}", row.episode_id)).await
}

/// Who judged the run, if somebody did.
pub(super) async fn judge_of(source: &Source, rows: &[v1::EpisodeRow]) -> Result<Option<JudgePlan>, CliError> {
    match rows.first() {
        Some(row) => Ok(plan(source, row).await?.judge),
        None => Ok(None),
    }
}

/// Reads an episode. The inner error is why there is nothing to judge.
pub(super) async fn read(
    source: &Source,
    row: &v1::EpisodeRow,
    checklists: &Checklists,
) -> Result<Result<Case, String>, CliError> {
    let id: EpisodeId = convert::parsed("episode_id", &row.episode_id).map_err(CliError::Answer)?;
    let Some(settlement) = show::settlement(row)? else { return Ok(Err("it is not settled".to_owned())) };
    if !matches!(settlement, Settlement::Verdict(_) | Settlement::Unverified { .. }) || row.attempt.is_empty() {
        return Ok(Err(format!("its agent did not come to an end: {}", settlement.kind())));
    }
    let attempt: AttemptId = convert::parsed("attempt", &row.attempt).map_err(CliError::Answer)?;
    let plan = plan(source, row).await?;
    let what = format!("the task of episode {id}");
    let task: TaskPlan = reading::record(source, &plan.task, &what).await?;
    let rubric = match rubric(source, &task, checklists).await? {
        Ok(rubric) => rubric,
        Err(reason) => return Ok(Err(reason)),
    };
    let (mut screens, mut size) = (Vec::new(), None);
    for step in reading::steps(source, attempt).await? {
        size.get_or_insert(ImageSize { width: step.screen.width, height: step.screen.height });
        screens.push(step.screen.png);
    }
    let Some(size) = size else { return Ok(Err("it has no screenshots".to_owned())) };
    let logs = source.episode(id).await?.logs;
    let after = logs.iter().find(|log| log.attempt == row.attempt && log.name == AFTER_EXPORT);
    if let Some(log) = after {
        screens.push(convert::digest("blob", &log.blob).map_err(CliError::Answer)?);
    }
    let description = match &task.rounds {
        Some(plan) => rounds::whole(&task.description, plan),
        None => task.description,
    };
    Ok(Ok(Case { description, rubric, screens, size }))
}

async fn rubric(source: &Source, task: &TaskPlan, checklists: &Checklists) -> Result<Result<Rubric, String>, CliError> {
    let (place, bytes) = match checklists {
        Checklists::OfTheRun => {
            let name = match &task.scoring {
                Scoring::Checklist { checklist } | Scoring::Both { checklist, .. } => checklist.as_str(),
                Scoring::Program { .. } | Scoring::Rounds | Scoring::None { .. } => CHECKLIST_FILE,
            };
            let tree: Tree = reading::record(source, &task.files, &format!("the files of {}", task.name)).await?;
            // As specs write it: `./mine.json` is `mine.json`.
            let name = name.trim_start_matches("./");
            match reading::file(source, &tree, name, &format!("{name} of {}", task.name)).await? {
                Some(bytes) => (name.to_owned(), bytes),
                None => return Ok(Err(format!("it has no {name}"))),
            }
        }
        Checklists::File(path) => (path.display().to_string(), file(path)?),
        Checklists::Folder(folder) => {
            let path = folder.join(&task.name.env).join(format!("{}.json", task.name.task));
            if !path.exists() {
                return Ok(Err(format!("there is no {}", path.display())));
            }
            (path.display().to_string(), file(&path)?)
        }
    };
    match (Rubric::parse(&bytes).map_err(|error| format!("{place}: {error}")), checklists) {
        // Who named it can mend it; one of the benchmark's that is refused judged nothing in the run, either.
        (Err(reason), Checklists::File(_) | Checklists::Folder(_)) => Err(CliError::Usage(reason)),
        (parsed, _) => Ok(parsed),
    }
}

/// A file that a person named.
pub(super) fn file(path: &Path) -> Result<Vec<u8>, CliError> {
    fs::read(path).map_err(|source| CliError::File { path: path.to_owned(), doing: "read", source })
}
