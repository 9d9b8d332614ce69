//! The chain: which attempt's steps are the episode's, and from which number on.
//!
//! When the lease of an attempt is over, the steps that came in time and without a gap are its
//! part of the chain, and that is what the next attempt may keep. It is fixed here, in the writer
//! thread, in commit order with leases and steps: a step that comes later is late, stays under its
//! attempt, and is no part of any chain.

use longhaul_core::ids::{AttemptId, EpisodeId, Epoch};
use longhaul_core::resume::{Kept, Resumed};
use serde::{Deserialize, Serialize};

use crate::commit::{Commit, Draft, LeaseRow};
use crate::error::{AppendError, ReadError, ReportError, WriteError};
use crate::family::Family;
use crate::format;
use crate::keys::{self, Kind};
use crate::reader::{Reader, damaged};
use crate::records::{AttemptRecord, Receipt, StepProgress, StoredStep};

/// What an attempt that was to resume keeps, and how it came there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// What it keeps: fixed with its lease.
    pub kept: Kept,
    /// How it came to stand there; none if it did not, or not yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed: Option<Resumed>,
}

/// An attempt's part of a chain: its own steps from `first` to before `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The attempt.
    pub attempt: AttemptId,
    /// The number of the first of its steps that is the chain's.
    pub first: u32,
    /// The number after the last one.
    pub end: u32,
}

const fn sibling(attempt: AttemptId, number: u32) -> AttemptId {
    AttemptId { episode: attempt.episode, number }
}

impl Draft<'_, '_> {
    /// Gives the episode's lease to an attempt, and fixes what it keeps.
    pub(crate) fn lease(&mut self, attempt: AttemptId, epoch: Epoch, resumes: bool) -> Result<(), AppendError> {
        if self.get::<AttemptRecord>(Family::Attempts, keys::attempt(Kind::Attempt, attempt))?.is_none() {
            return Err(AppendError::UnknownAttempt { attempt });
        }
        let episode = attempt.episode;
        let key = keys::episode(Kind::Lease, episode);
        let before = self.get::<LeaseRow>(Family::Episodes, key.clone())?;
        if let Some(row) = before
            && epoch <= row.epoch
        {
            return Err(AppendError::StaleEpoch { episode, epoch, current: row.epoch });
        }
        let head = match before {
            Some(row) if resumes => self.head(episode, row)?,
            // What was before is given up: it is not gone back to.
            Some(_) | None => None,
        };
        if let Some(kept) = head {
            let line = Line { kept, resumed: None };
            self.put_json(Family::Attempts, keys::attempt(Kind::Line, attempt), &line)?;
        }
        self.put_json(Family::Episodes, key, &LeaseRow { attempt: Some(attempt.number), epoch, head })
    }

    /// Takes the lease of an episode back.
    pub(crate) fn lease_over(&mut self, episode: EpisodeId) -> Result<(), AppendError> {
        let key = keys::episode(Kind::Lease, episode);
        let Some(row) = self.get::<LeaseRow>(Family::Episodes, key.clone())? else { return Ok(()) };
        let head = self.head(episode, row)?;
        self.put_json(Family::Episodes, key, &LeaseRow { attempt: None, head, ..row })
    }

    /// Where the episode's chain ends if the lease is over now.
    fn head(&self, episode: EpisodeId, row: LeaseRow) -> Result<Option<Kept>, WriteError> {
        let Some(number) = row.attempt else { return Ok(row.head) };
        let key = keys::attempt(Kind::Progress, AttemptId { episode, number });
        // As long as an attempt holds the lease, none of its steps is late.
        let progress: StepProgress = self.get(Family::Steps, key)?.unwrap_or_default();
        let own = progress.last.map(|last| Kept { parent: number, steps: progress.next, last });
        // One that was cut off before a step of its own leaves what it was to keep.
        Ok(own.or(row.head))
    }
}

impl Commit<'_> {
    /// An attempt stands where the chain ends that it was to keep.
    pub(crate) fn resumed(
        &mut self,
        attempt: AttemptId,
        epoch: Epoch,
        resumed: &Resumed,
    ) -> Result<Receipt, ReportError> {
        let refused = |reason: &'static str| ReportError::NotKept { attempt, reason };
        // Whatever comes late is kept under its attempt: what the next one keeps is fixed by then.
        let late = self.is_late(attempt, epoch)?;
        let key = keys::attempt(Kind::Line, attempt);
        let line: Line =
            self.get(Family::Attempts, key.clone())?.ok_or_else(|| refused("it was not to keep anything"))?;
        if line.kept != resumed.kept {
            return Err(refused("it says that it keeps something else than it was told"));
        }
        if line.resumed.is_some() {
            return Ok(Receipt { repeated: true, late });
        }
        let progress = StepProgress { next: line.kept.steps, last: Some(line.kept.last) };
        let json = |error: serde_json::Error| WriteError::Read { reason: error.to_string().into() };
        let line = format::encode_json(&Line { resumed: Some(resumed.clone()), ..line }).map_err(json)?;
        let progress = format::encode_json(&progress).map_err(json)?;
        self.stage([
            ((Family::Attempts, key), line),
            ((Family::Steps, keys::attempt(Kind::Progress, attempt)), progress),
        ]);
        Ok(Receipt { repeated: false, late })
    }

    /// That a step which is not there yet may be: an attempt that is to resume has none before it
    /// says that it has, and none of those that it keeps.
    pub(crate) fn may_have(
        &self,
        attempt: AttemptId,
        number: u32,
        progress: Option<StepProgress>,
    ) -> Result<(), ReportError> {
        let reason = match progress {
            Some(progress) if number < progress.next => "the step is one of those that it keeps",
            Some(_) => return Ok(()),
            None if self.get::<Line>(Family::Attempts, keys::attempt(Kind::Line, attempt))?.is_none() => return Ok(()),
            None => "it did not say that it stands where it is to go on from",
        };
        Err(ReportError::NotKept { attempt, reason })
    }
}

impl Reader {
    /// What an attempt was to keep, and how it came there; none if it starts at step 0.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub fn line(&self, id: AttemptId) -> Result<Option<Line>, ReadError> {
        self.record(Family::Attempts, &keys::attempt(Kind::Line, id))
    }

    /// The attempts of the chain that an attempt was to keep, oldest first; empty if there is none.
    ///
    /// # Errors
    ///
    /// The store cannot be read, or its chain is broken.
    pub fn kept(&self, id: AttemptId) -> Result<Vec<Link>, ReadError> {
        let mut links = Vec::new();
        let mut kept = self.line(id)?.map(|line| line.kept);
        let mut below = id.number;
        while let Some(Kept { parent, steps: end, .. }) = kept {
            let attempt = sibling(id, parent);
            let key = keys::attempt(Kind::Line, attempt);
            if parent >= below {
                return Err(damaged(Family::Attempts, &key, format!("it is kept by attempt {below}")));
            }
            below = parent;
            // Whoever has steps has resumed, where it was to.
            let line = self.line(attempt)?;
            let first = line.as_ref().map_or(0, |line| line.kept.steps);
            if first > end {
                let reason = format!("it begins at step {first}, and {end} steps are kept of it");
                return Err(damaged(Family::Attempts, &key, reason));
            }
            links.push(Link { attempt, first, end });
            kept = line.map(|line| line.kept);
        }
        links.reverse();
        Ok(links)
    }

    /// The attempts whose steps are the trajectory that ends with this attempt's, oldest first:
    /// those that it was to keep, and itself.
    ///
    /// # Errors
    ///
    /// The store cannot be read, or its chain is broken.
    pub fn chain(&self, id: AttemptId) -> Result<Vec<Link>, ReadError> {
        let mut links = self.kept(id)?;
        let first = links.last().map_or(0, |link| link.end);
        links.push(Link { attempt: id, first, end: u32::MAX });
        Ok(links)
    }

    /// The trajectory that ends with an attempt's steps: those that it keeps, each with the
    /// attempt that took it, then its own; late ones of its own too, flagged.
    ///
    /// # Errors
    ///
    /// The chain cannot be read; an item is an error if a step cannot be.
    pub fn trajectory(
        &self,
        id: AttemptId,
    ) -> Result<impl Iterator<Item = Result<(AttemptId, StoredStep), ReadError>> + '_, ReadError> {
        let links = self.chain(id)?;
        Ok(links.into_iter().flat_map(move |link| {
            let within = move |step: &Result<StoredStep, ReadError>| match step {
                Ok(step) => step.number < link.end,
                Err(_) => true,
            };
            let steps = self.steps(link.attempt, link.first).take_while(within);
            steps.map(move |step| step.map(|step| (link.attempt, step)))
        }))
    }
}
