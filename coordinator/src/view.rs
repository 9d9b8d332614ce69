//! What the store holds, as clients see it: the same whether a coordinator is asked or a
//! store is read without one.

use std::collections::BTreeMap;

use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, EpisodeId, RunId};
use longhaul_core::money::Money;
use longhaul_core::outcome::SettlementKind;
use longhaul_core::plan::LayerKind;
use longhaul_proto::convert::digest_bytes;
use longhaul_proto::v1;
use longhaul_store::{
    EpisodeRecord, EpisodeState, LayerRecord, LayerState, ReadError, Reader, RunRecord, ScopeRecord, StoredCall,
    StoredStep,
};

/// Why a view cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// The store cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A record cannot be expressed.
    #[error("a record cannot be written as JSON")]
    Encode(#[source] serde_json::Error),
}

/// A run in one row.
///
/// # Errors
///
/// The store cannot be read.
pub fn run_summary(reader: &Reader, run: &RunRecord) -> Result<v1::RunSummary, ViewError> {
    let mut summary = v1::RunSummary {
        run_id: run.id.to_string(),
        name: run.name.clone(),
        benchmark: run.benchmark.clone(),
        submitted_at_millis: run.submitted_at.0,
        episodes: run.episodes,
        settled_at_millis: run.settled_at.map_or(0, |at| at.0),
        cap_nanos: cap_of(run).map(Money::nanos),
        spent_nanos: spent_of(run).nanos(),
        file: run.file.clone().unwrap_or_default(),
        plan: digest_bytes(&run.plan).into(),
        dropped_at_millis: reader.dropped(run.id)?.map_or(0, |dropped| dropped.at.0),
        ..v1::RunSummary::default()
    };
    for episode in reader.episodes(run.id)? {
        *match &episode.state {
            EpisodeState::Queued => &mut summary.queued,
            EpisodeState::Active { .. } => &mut summary.active,
            EpisodeState::Settled { settlement, .. } => match settlement.kind() {
                SettlementKind::Passed => &mut summary.passed,
                SettlementKind::Failed => &mut summary.failed,
                SettlementKind::Unverified => &mut summary.unverified,
                SettlementKind::Cancelled => &mut summary.cancelled,
                SettlementKind::Faulted => &mut summary.faulted,
                SettlementKind::NotStarted => &mut summary.not_started,
            },
        } += 1;
    }
    Ok(summary)
}

/// The cap of a run, if it has one.
#[must_use]
pub fn cap_of(run: &RunRecord) -> Option<Money> {
    run.scopes.first()?.cap
}

/// What a run has spent, its judge aside.
#[must_use]
pub fn spent_of(run: &RunRecord) -> Money {
    run.scopes.first().map_or(Money::ZERO, |scope| scope.settled)
}

/// The budgets of a run, as its record has them.
#[must_use]
pub fn budget(run: &RunRecord) -> v1::ShowBudgetResponse {
    v1::ShowBudgetResponse { scopes: run.scopes.iter().map(budget_row).collect() }
}

pub(crate) fn budget_row(scope: &ScopeRecord) -> v1::BudgetRow {
    v1::BudgetRow {
        scope: scope.name.clone(),
        cap_nanos: scope.cap.map(Money::nanos),
        settled_nanos: scope.settled.nanos(),
        escrow_nanos: scope.escrow.nanos(),
        unconfirmed_nanos: scope.unconfirmed.nanos(),
        largest_exposure_nanos: scope.largest_exposure.nanos(),
        overshoot_nanos: scope.overshoot.nanos(),
        waiting: scope.waiting,
        warned_percent: scope.warned.into(),
        stopped: scope.stopped.clone().unwrap_or_default(),
    }
}

/// The model calls of an attempt, in order.
pub fn calls(reader: &Reader, attempt: AttemptId) -> impl Iterator<Item = Result<v1::CallRow, ViewError>> + '_ {
    let row =
        |call: StoredCall| v1::CallRow { number: call.number, record_json: call.record_json.into(), late: call.late };
    reader.calls(attempt, 0).map(move |call| Ok(row(call?)))
}

/// All runs of a store, the oldest first.
///
/// # Errors
///
/// The store cannot be read.
pub fn runs(reader: &Reader) -> Result<Vec<v1::RunSummary>, ViewError> {
    reader.runs()?.iter().map(|run| run_summary(reader, run)).collect()
}

/// The episodes of a run, in order.
///
/// # Errors
///
/// The store cannot be read.
pub fn episodes(reader: &Reader, run: RunId) -> Result<Vec<v1::EpisodeRow>, ViewError> {
    reader.episodes(run)?.iter().map(|record| episode_row(reader, record)).collect()
}

/// An episode in one row.
///
/// # Errors
///
/// The store cannot be read.
pub fn episode_row(reader: &Reader, record: &EpisodeRecord) -> Result<v1::EpisodeRow, ViewError> {
    let (attempt, settlement, settled_at) = match &record.state {
        EpisodeState::Queued => (None, None, 0),
        EpisodeState::Active { attempt } => (Some(*attempt), None, 0),
        EpisodeState::Settled { settlement, at, attempt } => (*attempt, Some(settlement), at.0),
    };
    let settlement_json =
        settlement.map(serde_json::to_vec).transpose().map_err(ViewError::Encode)?.unwrap_or_default().into();
    // The first observation is stored as step 0 and is no step of the agent.
    let steps = attempt.map(|attempt| reader.progress(attempt)).transpose()?.map_or(0, |stored| stored.next);
    Ok(v1::EpisodeRow {
        episode_id: record.id.to_string(),
        task: record.task.to_string(),
        agent: record.agent.clone(),
        sample: record.sample,
        state: record.state.name().to_owned(),
        settlement_json,
        attempts: record.attempts,
        steps: steps.saturating_sub(1),
        settled_at_millis: settled_at,
        plan: digest_bytes(&record.plan).into(),
        attempt: attempt.map(|attempt| attempt.to_string()).unwrap_or_default(),
        spent_nanos: reader.episode_spent(record.id)?.nanos(),
        // What is live waits, and only its coordinator knows for what.
        waiting: String::new(),
        waiting_since_millis: 0,
    })
}

/// An episode with its attempts and their logs; none if there is no such episode.
///
/// # Errors
///
/// The store cannot be read.
pub fn episode(reader: &Reader, id: EpisodeId) -> Result<Option<v1::GetEpisodeResponse>, ViewError> {
    let Some(record) = reader.episode(id)? else { return Ok(None) };
    let attempts = reader.attempts(id)?;
    let mut logs = Vec::new();
    let mut lines = Vec::new();
    for attempt in &attempts {
        if let Some(line) = reader.line(attempt.id)? {
            let line_json = serde_json::to_vec(&line).map_err(ViewError::Encode)?.into();
            lines.push(v1::LineRow { attempt: attempt.id.to_string(), line_json });
        }
        let named = reader.logs(attempt.id)?.into_iter();
        logs.extend(named.map(|(name, blob)| v1::LogRow {
            attempt: attempt.id.to_string(),
            name,
            blob: digest_bytes(&blob).into(),
        }));
    }
    let attempts_json = attempts
        .iter()
        .map(|attempt| serde_json::to_vec(attempt).map(Into::into))
        .collect::<Result<_, _>>()
        .map_err(ViewError::Encode)?;
    Ok(Some(v1::GetEpisodeResponse { row: Some(episode_row(reader, &record)?), attempts_json, logs, lines }))
}

/// The steps of the trajectory that ends with an attempt's, in order.
pub fn steps(reader: &Reader, attempt: AttemptId) -> impl Iterator<Item = Result<v1::StepRow, ViewError>> + '_ {
    let (steps, broken) = match reader.trajectory(attempt) {
        Ok(steps) => (Some(steps), None),
        Err(error) => (None, Some(Err(error.into()))),
    };
    let steps = steps.into_iter().flatten().map(|step| step.map(|(by, step)| step_row(by, step)).map_err(Into::into));
    broken.into_iter().chain(steps)
}

/// The steps that an attempt took itself, in order.
pub fn own_steps(reader: &Reader, attempt: AttemptId) -> impl Iterator<Item = Result<v1::StepRow, ViewError>> + '_ {
    reader.steps(attempt, 0).map(move |step| Ok(step_row(attempt, step?)))
}

fn step_row(attempt: AttemptId, step: StoredStep) -> v1::StepRow {
    v1::StepRow { number: step.number, record_json: step.record_json.into(), attempt: attempt.to_string() }
}

/// The layers that a coordinator knows; with a run, those that its attempts rested on.
///
/// # Errors
///
/// The store cannot be read.
pub fn layers_of(reader: &Reader, run: Option<RunId>) -> Result<Vec<v1::LayerRow>, ViewError> {
    let known = reader.layers()?;
    let Some(run) = run else { return Ok(known.iter().map(layer_row).collect()) };
    // A layer that was built again while the run went on has a row for each of its contents.
    let mut rows: BTreeMap<(String, LayerKind, Digest, Digest), v1::LayerRow> = BTreeMap::new();
    for episode in reader.episodes(run)? {
        for attempt in reader.attempts(episode.id)? {
            let Some(finish) = attempt.finish else { continue };
            for used in &finish.notes.layers {
                let env = episode.task.env.clone();
                let row = rows.entry((env.clone(), used.kind, used.key, used.content)).or_insert_with(|| {
                    let row = known.iter().find(|layer| layer.key == used.key).map(layer_row).unwrap_or_else(|| {
                        v1::LayerRow {
                            key: digest_bytes(&used.key).into(),
                            kind: used.kind.name().to_owned(),
                            env,
                            state: "ready".to_owned(),
                            ..v1::LayerRow::default()
                        }
                    });
                    v1::LayerRow { content: digest_bytes(&used.content).into(), ..row }
                });
                row.run_uses += 1;
                row.run_builds += u32::from(used.built);
                if used.kind == LayerKind::Configure
                    && let Some(reason) = &finish.notes.configure_ran
                {
                    row.reran_because.clone_from(reason);
                }
            }
        }
    }
    Ok(rows.into_values().collect())
}

fn layer_row(layer: &LayerRecord) -> v1::LayerRow {
    let (bytes, content) = match &layer.state {
        LayerState::Ready { bytes, content } => (*bytes, digest_bytes(content).into()),
        LayerState::Building { .. } | LayerState::Failed { .. } => (0, Vec::new().into()),
    };
    v1::LayerRow {
        content,
        key: digest_bytes(&layer.key).into(),
        kind: layer.kind.name().to_owned(),
        env: layer.env.clone(),
        state: layer.state.name().to_owned(),
        bytes,
        build_millis: layer.build_millis.0,
        builds: layer.builds,
        uses: layer.uses,
        ..v1::LayerRow::default()
    }
}
