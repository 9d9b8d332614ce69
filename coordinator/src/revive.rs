//! Runs that have settled, read back from the store: the engine keeps a line of each, and a run that
//! goes on is to have all that it knew.

use longhaul_core::endpoint::GatewayPlan;
use longhaul_core::ids::{EpisodeId, Epoch, RunId};
use longhaul_core::outcome::{AttemptEnd, FaultClass};
use longhaul_engine::state::{Episode, EpisodeState, PastAttempt, PastEnd, Revived};
use longhaul_store::{AttemptFinish, AttemptRecord, ReadError, Reader};

/// Why a run cannot be read back.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReviveError {
    /// The store cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The plan of its endpoints is not there, or is none.
    #[error("the plan of the endpoints of run {run} cannot be read: {reason}")]
    Gateway {
        /// The run.
        run: RunId,
        /// What is wrong with it.
        reason: String,
    },
}

/// A run with its endpoints.
#[derive(Debug)]
pub(crate) struct Back {
    pub(crate) run: Box<Revived>,
    pub(crate) gateway: Option<Box<GatewayPlan>>,
}

/// A settled run as the engine had it; none if it is not there, or not settled.
pub(crate) fn read(reader: &Reader, id: RunId) -> Result<Option<Back>, ReviveError> {
    let Some(record) = reader.run(id)?.filter(|record| record.settled_at.is_some()) else { return Ok(None) };
    let Some(plan) = reader.run_plan(id)? else { return Ok(None) };
    let mut episodes = Vec::new();
    for record in reader.episodes(id)? {
        let longhaul_store::EpisodeState::Settled { settlement, at, .. } = record.state else { return Ok(None) };
        episodes.push(Episode {
            state: EpisodeState::Settled { at, settlement },
            past: past(reader, record.id)?,
            earlier: record.earlier,
        });
    }
    let gateway = match plan.gateway {
        None => None,
        Some(digest) => {
            let failed = |reason| ReviveError::Gateway { run: id, reason };
            let bytes = reader.blob(&digest)?.ok_or_else(|| failed(format!("blob {digest} is not there")))?;
            Some(serde_json::from_slice(&bytes).map_err(|error| failed(error.to_string()))?)
        }
    };
    let run = Box::new(Revived { plan, submitted_at: record.submitted_at, episodes });
    Ok(Some(Back { run, gateway }))
}

fn past(reader: &Reader, id: EpisodeId) -> Result<Vec<PastAttempt>, ReadError> {
    let mut all: Vec<PastAttempt> = Vec::new();
    for AttemptRecord { id, epoch, worker, hostname, started, finish } in reader.attempts(id)? {
        let ended_at = finish.as_ref().map_or(started, |finish| finish.at);
        let steps = finish.as_ref().map_or(0, |finish| finish.steps);
        let resumes = reader.line(id)?.is_some();
        let (granted_at, end) = (started, end(finish.as_ref()));
        let past = PastAttempt {
            epoch,
            worker,
            hostname,
            granted_at,
            ended_at,
            end,
            explained: None,
            cut_off: None,
            resumes,
            steps,
            gained: false,
            stopped: false,
        };
        // Those that were begun after a backup and not heard of have no record, and keep their numbers.
        while u32::try_from(all.len()).is_ok_and(|known| known < id.number.saturating_sub(1)) {
            let end = PastEnd::Lost(FaultClass::Preempted);
            all.push(PastAttempt { epoch: Epoch::default(), end, resumes: false, steps: 0, ..past.clone() });
        }
        all.push(past);
    }
    Ok(all)
}

fn end(finish: Option<&AttemptFinish>) -> PastEnd {
    match finish {
        // What it said came when it had been given up already.
        None | Some(AttemptFinish { late: true, .. }) => PastEnd::Lost(FaultClass::WorkerLost),
        // Every worker says where it ran: nobody reported this end.
        Some(AttemptFinish { end: AttemptEnd::Fault(fault), notes, .. }) if notes.hostname.is_empty() => {
            PastEnd::Lost(fault.class)
        }
        Some(finish) => PastEnd::of(&finish.end),
    }
}
