//! Trajectories as they are stored, ready to be judged.

use std::fs;
use std::path::{Path, PathBuf};

use longhaul_core::agent::ImageSize;
use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, EpisodeId};
use longhaul_core::judge::{CHECKLIST_FILE, JudgePlan, Rubric};
use longhaul_core::outcome::Settlement;
use longhaul_core::plan::{EpisodePlan, Scoring, TaskPlan, Tree};
use longhaul_core::rounds::{self, RoundResult, RoundsPlan};
use longhaul_core::step::StepRecord;
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
    /// The checklist to go by; none where the rounds of the task decide.
    pub(super) rubric: Option<Rubric>,
    /// What rounds of the task ask.
    pub(super) asked: Vec<Asked>,
    /// Those rounds, and what they came to.
    pub(super) rounds: Option<(RoundsPlan, Vec<RoundResult>)>,
    pub(super) screens: Vec<Digest>,
    pub(super) size: ImageSize,
}

/// What a round asks of its last screenshot.
#[derive(Debug)]
pub(super) struct Asked {
    /// The round's number.
    pub(super) number: u32,
    pub(super) description: String,
    pub(super) rubric: Rubric,
    /// The index of the screenshot.
    pub(super) screen: usize,
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
    // Another checklist is another question than what rounds ask.
    let asking = task.rounds.clone().filter(|plan| plan.asks_judge() && matches!(checklists, Checklists::OfTheRun));
    let rubric = if asking.is_some() && task.scoring == Scoring::Rounds {
        None
    } else {
        match rubric(source, &task, checklists).await? {
            Ok(rubric) => Some(rubric),
            Err(reason) => return Ok(Err(reason)),
        }
    };
    let steps = reading::steps(source, attempt).await?;
    let mut screens: Vec<Digest> = steps.iter().map(|step| step.screen.png).collect();
    let size = steps.first().map(|step| ImageSize { width: step.screen.width, height: step.screen.height });
    let Some(size) = size else { return Ok(Err("it has no screenshots".to_owned())) };
    let rounds = asking.map(|plan| (plan, came_to(settlement)));
    let asked = rounds.as_ref().map(|(plan, results)| asked(&task.description, plan, results, &steps));
    let asked = asked.unwrap_or_default();
    if rubric.is_none() && asked.is_empty() {
        return Ok(Err("no round that asks a judge came to its end".to_owned()));
    }
    let logs = source.episode(id).await?.logs;
    let after = logs.iter().find(|log| log.attempt == row.attempt && log.name == AFTER_EXPORT);
    if let Some(log) = after {
        screens.push(convert::digest("blob", &log.blob).map_err(CliError::Answer)?);
    }
    let description = match &task.rounds {
        Some(plan) => rounds::whole(&task.description, plan),
        None => task.description,
    };
    Ok(Ok(Case { description, rubric, asked, rounds, screens, size }))
}

/// What rounds came to, as far as that is recorded.
fn came_to(settlement: Settlement) -> Vec<RoundResult> {
    let parts = match settlement {
        Settlement::Verdict(verdict) => verdict.parts,
        Settlement::Unverified { parts, .. } => parts,
        Settlement::Faulted(_) | Settlement::Cancelled | Settlement::NotStarted { .. } => None,
    };
    parts.map(|parts| parts.rounds).unwrap_or_default()
}

/// What rounds ask, as the judge of the run was asked. What broke fails without one.
fn asked(description: &str, plan: &RoundsPlan, results: &[RoundResult], steps: &[StepRecord]) -> Vec<Asked> {
    let whole = plan.rounds.iter().zip(results).filter(|(_, result)| result.error.is_none());
    let asked = whole.filter_map(|(round, result)| {
        let screen = steps.iter().rposition(|step| step.round == Some(result.number))?;
        let description = format!("{description}\n\n{}", round.goal);
        Some(Asked { number: result.number, description, rubric: rounds::rubric(round)?, screen })
    });
    asked.collect()
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
