//! Records as they were stored, of a live coordinator and a store folder alike; and runs for code
//! that may block: exports, measures and reports.

use std::collections::BTreeMap;

use longhaul_core::call::CallRecord;
use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, EpisodeId, RunId};
use longhaul_core::step::StepRecord;
use longhaul_core::time::Timestamp;
use longhaul_node::error::NodeError;
use longhaul_proto::{convert, v1};
use longhaul_report::{EpisodeView, RunView, Trajectories};
use longhaul_store::AttemptRecord;
use tokio::runtime::Handle;

use crate::client::Source;
use crate::error::CliError;
use crate::show;

/// A source that is read from a thread which may block.
#[derive(Debug)]
pub struct Reading {
    source: Source,
    handle: Handle,
}

/// Does something with a source for as long as it takes, away from the runtime's threads.
///
/// # Errors
///
/// What is done panics.
pub async fn blocking<R: Send + 'static>(
    source: Source,
    act: impl FnOnce(&Reading) -> R + Send + 'static,
) -> Result<R, CliError> {
    let reading = Reading { source, handle: Handle::current() };
    let done = tokio::task::spawn_blocking(move || act(&reading)).await;
    Ok(done.map_err(|error| NodeError::Machine(Box::new(error)))?)
}

impl Trajectories for Reading {
    type Error = CliError;

    fn run(&self, id: RunId) -> Result<Option<RunView>, CliError> {
        let summary = match &self.source {
            Source::Stored(reader) => return Ok(Trajectories::run(reader, id)?),
            Source::Live(_) => self.handle.block_on(self.source.run(&id.to_string()))?,
        };
        Ok(Some(RunView {
            id,
            name: summary.name,
            benchmark: summary.benchmark,
            submitted_at: Timestamp(summary.submitted_at_millis),
            settled_at: Some(Timestamp(summary.settled_at_millis)).filter(|at| at.0 > 0),
        }))
    }

    fn episodes(&self, run: RunId) -> Result<Vec<EpisodeView>, CliError> {
        if let Source::Stored(reader) = &self.source {
            return Ok(Trajectories::episodes(reader, run)?);
        }
        let rows = self.handle.block_on(self.source.episodes(run))?;
        rows.iter()
            .map(|row| {
                let id: EpisodeId = convert::parsed("episode_id", &row.episode_id).map_err(CliError::Answer)?;
                view(id, &self.handle.block_on(self.source.episode(id))?)
            })
            .collect()
    }

    fn steps(&self, attempt: AttemptId) -> Result<Vec<StepRecord>, CliError> {
        self.handle.block_on(steps(&self.source, attempt))
    }

    fn calls(&self, attempt: AttemptId) -> Result<Vec<(CallRecord, bool)>, CliError> {
        self.handle.block_on(calls(&self.source, attempt))
    }

    fn blob(&self, digest: &Digest) -> Result<Option<Vec<u8>>, CliError> {
        self.handle.block_on(self.source.blob(digest))
    }
}

/// The steps of an attempt, in order.
///
/// # Errors
///
/// They cannot be read, or one cannot be understood.
pub async fn steps(source: &Source, attempt: AttemptId) -> Result<Vec<StepRecord>, CliError> {
    let rows = source.steps(attempt).await?;
    rows.iter()
        .map(|row| serde_json::from_slice(&row.record_json))
        .collect::<Result<_, _>>()
        .map_err(|source| CliError::Record { what: format!("a step of attempt {attempt}"), source })
}

/// The model calls of an attempt, in order, and which of them came too late.
///
/// # Errors
///
/// They cannot be read, or one cannot be understood.
pub async fn calls(source: &Source, attempt: AttemptId) -> Result<Vec<(CallRecord, bool)>, CliError> {
    let rows = source.calls(attempt).await?;
    rows.iter()
        .map(|row| serde_json::from_slice(&row.record_json).map(|call| (call, row.late)))
        .collect::<Result<_, _>>()
        .map_err(|source| CliError::Record { what: format!("a model call of attempt {attempt}"), source })
}

/// The attempts of an episode, in order.
///
/// # Errors
///
/// One cannot be understood.
pub fn attempts(id: EpisodeId, answer: &v1::GetEpisodeResponse) -> Result<Vec<AttemptRecord>, CliError> {
    let attempts = answer.attempts_json.iter().map(|json| serde_json::from_slice(json));
    attempts
        .collect::<Result<_, _>>()
        .map_err(|source| CliError::Record { what: format!("an attempt of episode {id}"), source })
}

/// An episode as a coordinator or a store shows it.
///
/// # Errors
///
/// What is shown of it cannot be understood.
pub fn view(id: EpisodeId, answer: &v1::GetEpisodeResponse) -> Result<EpisodeView, CliError> {
    let row = convert::required("row", answer.row.as_ref()).map_err(CliError::Answer)?;
    let mut logs: BTreeMap<AttemptId, BTreeMap<String, Digest>> = BTreeMap::new();
    for log in &answer.logs {
        let attempt = convert::parsed("attempt", &log.attempt).map_err(CliError::Answer)?;
        let blob = convert::digest("blob", &log.blob).map_err(CliError::Answer)?;
        logs.entry(attempt).or_default().insert(log.name.clone(), blob);
    }
    let attempt = (!row.attempt.is_empty())
        .then(|| convert::parsed("attempt", &row.attempt))
        .transpose()
        .map_err(CliError::Answer)?;
    Ok(EpisodeView {
        id,
        task: convert::parsed("task", &row.task).map_err(CliError::Answer)?,
        agent: row.agent.clone(),
        sample: row.sample,
        plan: convert::digest("plan", &row.plan).map_err(CliError::Answer)?,
        settlement: show::settlement(row)?,
        settled_at: Some(Timestamp(row.settled_at_millis)).filter(|at| at.0 > 0),
        attempt,
        attempts: attempts(id, answer)?,
        logs,
    })
}
