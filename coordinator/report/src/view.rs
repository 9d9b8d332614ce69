//! Runs and episodes as measures and exports see them, wherever they are read.

use std::collections::BTreeMap;
use std::error::Error;

use longhaul_core::call::CallRecord;
use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, EpisodeId, RunId, TaskName};
use longhaul_core::outcome::Settlement;
use longhaul_core::resume::Way;
use longhaul_core::step::StepRecord;
use longhaul_core::time::Timestamp;
use longhaul_store::{AttemptRecord, EpisodeRecord, EpisodeState, Line, ReadError, Reader};

/// A run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunView {
    /// Its id.
    pub id: RunId,
    /// A name for people; hostile until escaped.
    pub name: String,
    /// Where the benchmark was, for people.
    pub benchmark: String,
    /// When it was submitted.
    pub submitted_at: Timestamp,
    /// When its last episode settled.
    pub settled_at: Option<Timestamp>,
    /// When its pictures were dropped, if they were: its records name what is not there any more.
    pub pictures_dropped_at: Option<Timestamp>,
}

/// An episode with its attempts.
#[derive(Clone, Debug, PartialEq)]
pub struct EpisodeView {
    /// Its id.
    pub id: EpisodeId,
    /// The task.
    pub task: TaskName,
    /// The agent's name.
    pub agent: String,
    /// Which repetition this is, from 0.
    pub sample: u32,
    /// The blob of the episode's plan.
    pub plan: Digest,
    /// How it was settled, once it is.
    pub settlement: Option<Settlement>,
    /// When.
    pub settled_at: Option<Timestamp>,
    /// The attempt whose trajectory is the episode's: the one that settled it, or the
    /// live one.
    pub attempt: Option<AttemptId>,
    /// All attempts, in order.
    pub attempts: Vec<AttemptRecord>,
    /// The logs of each attempt: name and blob.
    pub logs: BTreeMap<AttemptId, BTreeMap<String, Digest>>,
    /// What attempts keep of those before them, of those that were to go on from there.
    pub lines: BTreeMap<AttemptId, Line>,
}

impl EpisodeView {
    /// The record of an attempt.
    #[must_use]
    pub fn record(&self, id: AttemptId) -> Option<&AttemptRecord> {
        self.attempts.iter().find(|attempt| attempt.id == id)
    }

    /// The attempts that took the steps of the trajectory that ends with this attempt's, oldest
    /// first: itself, and before it those that it keeps steps of.
    #[must_use]
    pub fn chain(&self, id: AttemptId) -> Vec<AttemptId> {
        let before = |id: &AttemptId| {
            let parent = self.lines.get(id)?.kept.parent;
            // What was stored never names a later one; what is asked of others might.
            (parent < id.number).then_some(AttemptId { number: parent, ..*id })
        };
        let mut chain: Vec<_> = std::iter::successors(Some(id), before).collect();
        chain.reverse();
        chain
    }

    /// Whether the trajectory that ends with this attempt's was cut off and went on.
    #[must_use]
    pub fn resumed(&self, id: AttemptId) -> bool {
        let went_on = |id: &AttemptId| self.lines.get(id).is_some_and(|line| line.resumed.is_some());
        self.chain(id).iter().any(went_on)
    }

    /// How the attempts of that trajectory came to stand where the ones before them were cut off.
    #[must_use]
    pub fn ways(&self, id: AttemptId) -> Vec<Way> {
        let way = |id: &AttemptId| Some(self.lines.get(id)?.resumed.as_ref()?.way);
        self.chain(id).iter().filter_map(way).collect()
    }

    /// The state in one word: `queued`, `active`, or how it was settled.
    #[must_use]
    pub const fn state(&self) -> &'static str {
        match (&self.settlement, self.attempt) {
            (Some(settlement), _) => settlement.kind().name(),
            (None, Some(_)) => "active",
            (None, None) => "queued",
        }
    }
}

/// Where runs are read.
pub trait Trajectories {
    /// Why something cannot be read.
    type Error: Error + Send + Sync + 'static;

    /// A run; none if it is not there.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    fn run(&self, id: RunId) -> Result<Option<RunView>, Self::Error>;

    /// The episodes of a run, in order.
    ///
    /// # Errors
    ///
    /// They cannot be read.
    fn episodes(&self, run: RunId) -> Result<Vec<EpisodeView>, Self::Error>;

    /// The ids of the episodes of a run, in order: of a run that is too large to be held whole.
    ///
    /// # Errors
    ///
    /// They cannot be read.
    fn episode_ids(&self, run: RunId) -> Result<Vec<EpisodeId>, Self::Error>;

    /// An episode; none if it is not there.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    fn episode(&self, id: EpisodeId) -> Result<Option<EpisodeView>, Self::Error>;

    /// The steps of the trajectory that ends with an attempt's, in order: those that it keeps of
    /// the attempts before it, then its own.
    ///
    /// # Errors
    ///
    /// They cannot be read.
    fn steps(&self, attempt: AttemptId) -> Result<Vec<StepRecord>, Self::Error>;

    /// The model calls of an attempt, in order, each with whether it came late.
    ///
    /// # Errors
    ///
    /// They cannot be read.
    fn calls(&self, attempt: AttemptId) -> Result<Vec<(CallRecord, bool)>, Self::Error>;

    /// The bytes of a blob; none if it is not there.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    fn blob(&self, digest: &Digest) -> Result<Option<Vec<u8>>, Self::Error>;
}

impl Trajectories for Reader {
    type Error = ReadError;

    fn run(&self, id: RunId) -> Result<Option<RunView>, ReadError> {
        let run = Self::run(self, id)?;
        let dropped = self.dropped(id)?;
        Ok(run.map(|run| RunView {
            id: run.id,
            name: run.name,
            benchmark: run.benchmark,
            submitted_at: run.submitted_at,
            settled_at: run.settled_at,
            pictures_dropped_at: dropped.map(|dropped| dropped.at),
        }))
    }

    fn episodes(&self, run: RunId) -> Result<Vec<EpisodeView>, ReadError> {
        Self::episodes(self, run)?.into_iter().map(|record| view(self, record)).collect()
    }

    fn episode_ids(&self, run: RunId) -> Result<Vec<EpisodeId>, ReadError> {
        Self::episode_ids(self, run)
    }

    fn episode(&self, id: EpisodeId) -> Result<Option<EpisodeView>, ReadError> {
        Self::episode(self, id)?.map(|record| view(self, record)).transpose()
    }

    fn steps(&self, attempt: AttemptId) -> Result<Vec<StepRecord>, ReadError> {
        Self::trajectory(self, attempt)?
            .map(|step| {
                let (attempt, step) = step?;
                step.record().map_err(|error| ReadError::Damaged {
                    family: "steps",
                    key: format!("{attempt} step {}", step.number),
                    reason: error.to_string(),
                })
            })
            .collect()
    }

    fn calls(&self, attempt: AttemptId) -> Result<Vec<(CallRecord, bool)>, ReadError> {
        Self::calls(self, attempt, 0)
            .map(|call| {
                let call = call?;
                let record = call.record().map_err(|error| ReadError::Damaged {
                    family: "ledger",
                    key: format!("{attempt} call {}", call.number),
                    reason: error.to_string(),
                })?;
                Ok((record, call.late))
            })
            .collect()
    }

    fn blob(&self, digest: &Digest) -> Result<Option<Vec<u8>>, ReadError> {
        Self::blob(self, digest)
    }
}

fn view(reader: &Reader, record: EpisodeRecord) -> Result<EpisodeView, ReadError> {
    let attempts = reader.attempts(record.id)?;
    let (mut logs, mut lines) = (BTreeMap::new(), BTreeMap::new());
    for attempt in &attempts {
        logs.insert(attempt.id, reader.logs(attempt.id)?);
        if let Some(line) = reader.line(attempt.id)? {
            lines.insert(attempt.id, line);
        }
    }
    let (settlement, settled_at, attempt) = match record.state {
        EpisodeState::Queued => (None, None, None),
        EpisodeState::Active { attempt } => (None, None, Some(attempt)),
        EpisodeState::Settled { settlement, at, attempt } => (Some(settlement), Some(at), attempt),
    };
    Ok(EpisodeView {
        id: record.id,
        task: record.task,
        agent: record.agent,
        sample: record.sample,
        plan: record.plan,
        settlement,
        settled_at,
        attempt,
        attempts,
        logs,
        lines,
    })
}
