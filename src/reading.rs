//! Records as they were stored, of a live coordinator and a store folder alike; and runs for code
//! that may block: exports, measures and reports.

use std::collections::BTreeMap;

use longhaul_core::call::CallRecord;
use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, EpisodeId, RunId};
use longhaul_core::imported::{Form, ImportedEpisode};
use longhaul_core::plan::{Tree, TreeNode};
use longhaul_core::step::StepRecord;
use longhaul_core::time::Timestamp;
use longhaul_node::error::NodeError;
use longhaul_proto::{convert, v1};
use longhaul_report::{EpisodeView, RunView, Trajectories};
use longhaul_store::{AttemptRecord, Line};
use serde::de::DeserializeOwned;
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
    blocking_all(vec![source], move |all| act(&all[0])).await
}

/// The same with several.
///
/// # Errors
///
/// What is done panics.
pub async fn blocking_all<R: Send + 'static>(
    sources: Vec<Source>,
    act: impl FnOnce(&[Reading]) -> R + Send + 'static,
) -> Result<R, CliError> {
    let handle = Handle::current();
    let all: Vec<Reading> = sources.into_iter().map(|source| Reading { source, handle: handle.clone() }).collect();
    let done = tokio::task::spawn_blocking(move || act(&all)).await;
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
            pictures_dropped_at: Some(Timestamp(summary.dropped_at_millis)).filter(|at| at.0 > 0),
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

    fn episode_ids(&self, run: RunId) -> Result<Vec<EpisodeId>, CliError> {
        if let Source::Stored(reader) = &self.source {
            return Ok(Trajectories::episode_ids(reader, run)?);
        }
        let rows = self.handle.block_on(self.source.episodes(run))?;
        rows.iter().map(|row| convert::parsed("episode_id", &row.episode_id).map_err(CliError::Answer)).collect()
    }

    fn episode(&self, id: EpisodeId) -> Result<Option<EpisodeView>, CliError> {
        match &self.source {
            Source::Stored(reader) => Ok(Trajectories::episode(reader, id)?),
            Source::Live(_) => view(id, &self.handle.block_on(self.source.episode(id))?).map(Some),
        }
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

/// The steps of the trajectory that ends with an attempt's, in order.
///
/// # Errors
///
/// They cannot be read, or one cannot be understood.
pub async fn steps(source: &Source, attempt: AttemptId) -> Result<Vec<StepRecord>, CliError> {
    Ok(taken(source, attempt, false).await?.into_iter().map(|(_, step)| step).collect())
}

/// The same, each with the attempt that took it; or that attempt's own alone.
///
/// # Errors
///
/// They cannot be read, or one cannot be understood.
pub async fn taken(source: &Source, attempt: AttemptId, own: bool) -> Result<Vec<(AttemptId, StepRecord)>, CliError> {
    let unreadable = |source| CliError::Record { what: format!("a step of attempt {attempt}"), source };
    let step = |row: &v1::StepRow| {
        let by = convert::parsed("attempt", &row.attempt).map_err(CliError::Answer)?;
        Ok((by, serde_json::from_slice(&row.record_json).map_err(unreadable)?))
    };
    source.steps(attempt, own).await?.iter().map(step).collect()
}

/// The form of the results that a run was imported from, if it was: its episodes say so.
///
/// # Errors
///
/// The first of them cannot be read.
pub async fn imported(source: &Source, first: Option<&v1::EpisodeRow>) -> Result<Option<Form>, CliError> {
    let Some(row) = first else { return Ok(None) };
    let plan = convert::digest("plan", &row.plan).map_err(CliError::Answer)?;
    let bytes = source.blob(&plan).await?;
    let imported = bytes.and_then(|bytes| serde_json::from_slice::<ImportedEpisode>(&bytes).ok());
    Ok(imported.map(|imported| imported.imported))
}

/// The bytes of a blob that has to be there; `what` it is of is said if it is not.
///
/// # Errors
///
/// It is not there, or cannot be read.
pub async fn blob(source: &Source, digest: &Digest, what: &str) -> Result<Vec<u8>, CliError> {
    source.blob(digest).await?.ok_or_else(|| CliError::NoSuchPart {
        whole: what.to_owned(),
        part: format!("blob {}", digest.short()),
        have: Vec::new(),
    })
}

/// The record in a blob that has to be there.
///
/// # Errors
///
/// As [`blob`], or it cannot be understood.
pub async fn record<T: DeserializeOwned>(source: &Source, digest: &Digest, what: &str) -> Result<T, CliError> {
    serde_json::from_slice(&blob(source, digest, what).await?)
        .map_err(|source| CliError::Record { what: what.to_owned(), source })
}

/// A file of a tree; nothing if there is none of that path.
///
/// # Errors
///
/// As [`blob`], of a part of it.
pub async fn file(source: &Source, tree: &Tree, path: &str, what: &str) -> Result<Option<Vec<u8>>, CliError> {
    let entry = tree.entries.iter().find(|entry| entry.path == path).map(|entry| &entry.node);
    let Some(TreeNode::File { chunks, .. }) = entry else { return Ok(None) };
    let mut bytes = Vec::new();
    for chunk in chunks {
        bytes.extend(blob(source, chunk, what).await?);
    }
    Ok(Some(bytes))
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

/// What attempts of an episode keep of those before them.
///
/// # Errors
///
/// One cannot be understood.
pub fn lines(id: EpisodeId, answer: &v1::GetEpisodeResponse) -> Result<BTreeMap<AttemptId, Line>, CliError> {
    let line = |row: &v1::LineRow| {
        let attempt = convert::parsed("attempt", &row.attempt).map_err(CliError::Answer)?;
        let what = || format!("what attempt {attempt} of episode {id} keeps");
        let line = serde_json::from_slice(&row.line_json);
        Ok((attempt, line.map_err(|source| CliError::Record { what: what(), source })?))
    };
    answer.lines.iter().map(line).collect()
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
    let lines = lines(id, answer)?;
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
        lines,
    })
}
