//! One batch in the making: commands are checked and staged in the order in which they
//! came, each seeing what those before it will have written.
//!
//! The epoch check of a step is here: in commit order with the changes of leases, so
//! that a step is late exactly if the lease was over before it.

use std::collections::HashMap;
use std::ops::Range;

use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, EpisodeId, Epoch};
use longhaul_core::resume::Kept;
use rocksdb::WriteBatch;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{AppendError, BlobError, LogError, PruneError, ReadError, ReportError, ReportKind, WriteError};
use crate::family::Family;
use crate::format::{self, Reported};
use crate::keys::{self, Kind};
use crate::merge::RawRow;
use crate::reader::decode;
use crate::records::{AttemptRecord, CallProgress, Change, Receipt, StepProgress, StoredCall};
use crate::rocks::Rocks;
use crate::store::{Blob, CallWrite, StepWrite};

/// Who has the lease of an episode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeaseRow {
    /// The attempt's number; none if nobody has it.
    pub(crate) attempt: Option<u32>,
    /// The epoch of the lease, or of the last one.
    pub(crate) epoch: Epoch,
    /// What the next attempt may keep, where the attempt that has the lease adds nothing to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) head: Option<Kept>,
}

/// Where the journal ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JournalEnd {
    /// The sequence number of the last event; 0 before the first.
    pub(crate) last: u64,
    /// The last event in the newest snapshot; 0 if there is none.
    pub(crate) snapshot: u64,
}

type Puts = HashMap<(Family, Vec<u8>), Vec<u8>>;

/// A batch in the making.
pub(crate) struct Commit<'a> {
    rocks: &'a Rocks,
    batch: WriteBatch,
    /// What the batch puts, but for blobs' bytes and events, which nothing here reads.
    staged: Puts,
    pub(crate) journal: JournalEnd,
}

/// The puts of one command: all of them are staged, or none.
pub(crate) struct Draft<'a, 'b> {
    commit: &'a Commit<'b>,
    puts: Puts,
}

impl Draft<'_, '_> {
    pub(crate) fn get<T: DeserializeOwned>(&self, family: Family, key: Vec<u8>) -> Result<Option<T>, WriteError> {
        let at = (family, key);
        if let Some(value) = self.puts.get(&at) {
            return decode(family, &at.1, value).map(Some).map_err(unreadable);
        }
        self.commit.get(family, at.1)
    }

    fn put(&mut self, family: Family, key: Vec<u8>, value: Vec<u8>) {
        self.puts.insert((family, key), value);
    }

    pub(crate) fn put_json<T: Serialize>(
        &mut self,
        family: Family,
        key: Vec<u8>,
        record: &T,
    ) -> Result<(), AppendError> {
        let value =
            format::encode_json(record).map_err(|error| AppendError::Unwritable { reason: error.to_string() })?;
        self.put(family, key, value);
        Ok(())
    }

    fn change(&mut self, change: &Change) -> Result<(), AppendError> {
        match change {
            Change::Run(run) => self.put_json(Family::Runs, keys::run(Kind::Run, run.id), run),
            Change::Episode(episode) => {
                self.put_json(Family::Episodes, keys::episode(Kind::Episode, episode.id), episode)
            }
            Change::Attempt(attempt) => {
                self.put_json(Family::Attempts, keys::attempt(Kind::Attempt, attempt.id), attempt)
            }
            Change::Layer(layer) => self.put_json(Family::Layers, keys::digest(Kind::Layer, &layer.key), layer),
            Change::Lease { attempt, epoch, resumes } => self.lease(*attempt, *epoch, *resumes),
            Change::LeaseOver { episode } => self.lease_over(*episode),
        }
    }
}

impl<'a> Commit<'a> {
    pub(crate) fn new(rocks: &'a Rocks, journal: JournalEnd) -> Self {
        Self { rocks, batch: WriteBatch::default(), staged: Puts::new(), journal }
    }

    /// The batch, for RocksDB.
    pub(crate) fn into_batch(self) -> WriteBatch {
        self.batch
    }

    pub(crate) fn get<T: DeserializeOwned>(&self, family: Family, key: Vec<u8>) -> Result<Option<T>, WriteError> {
        let at = (family, key);
        let value = match self.staged.get(&at) {
            Some(value) => Some(decode(family, &at.1, value)),
            None => self.rocks.get(family, &at.1).map_err(unreadable)?.map(|value| decode(family, &at.1, &value)),
        };
        value.transpose().map_err(unreadable)
    }

    fn value(&self, family: Family, key: Vec<u8>) -> Result<Option<Vec<u8>>, WriteError> {
        let at = (family, key);
        match self.staged.get(&at) {
            Some(value) => Ok(Some(value.clone())),
            None => self.rocks.get(family, &at.1).map_err(unreadable),
        }
    }

    fn has_blob(&self, digest: &Digest) -> Result<bool, WriteError> {
        self.value(Family::Blobs, keys::digest(Kind::BlobInfo, digest)).map(|value| value.is_some())
    }

    pub(crate) fn stage(&mut self, puts: impl IntoIterator<Item = ((Family, Vec<u8>), Vec<u8>)>) {
        for ((family, key), value) in puts {
            self.rocks.put(&mut self.batch, family, &key, &value);
            self.staged.insert((family, key), value);
        }
    }

    /// Events and the changes that they make; the sequence numbers given.
    pub(crate) fn append(&mut self, events: &[Vec<u8>], changes: &[Change]) -> Result<Range<u64>, AppendError> {
        let mut draft = Draft { commit: self, puts: Puts::new() };
        for change in changes {
            draft.change(change)?;
        }
        let puts = draft.puts;
        self.stage(puts);
        let first = self.journal.last + 1;
        for event in events {
            self.journal.last += 1;
            let key = keys::sequence(Kind::Event, self.journal.last);
            self.rocks.put(&mut self.batch, Family::Journal, &key, &format::encode_raw(event));
        }
        Ok(first..self.journal.last + 1)
    }

    /// Blobs whose digests were checked; how many of them were new.
    pub(crate) fn blobs(&mut self, blobs: &[Blob]) -> Result<u32, BlobError> {
        let mut stored = 0;
        for blob in blobs {
            if self.has_blob(blob.digest())? {
                continue;
            }
            let value = format::encode_raw(blob.bytes());
            self.rocks.put(&mut self.batch, Family::Blobs, &keys::digest(Kind::Blob, blob.digest()), &value);
            let len = format::encode_json(&(blob.bytes().len() as u64))
                .map_err(|error| WriteError::Read { reason: error.to_string().into() })?;
            self.stage(Puts::from([((Family::Blobs, keys::digest(Kind::BlobInfo, blob.digest())), len)]));
            stored += 1;
        }
        Ok(stored)
    }

    /// Blobs that nothing needs any more. Whoever drops them has the store for itself: nothing that
    /// would name them is in the same batch.
    pub(crate) fn drop_blobs(&mut self, blobs: &[Digest]) {
        for digest in blobs {
            for kind in [Kind::Blob, Kind::BlobInfo] {
                self.rocks.delete(&mut self.batch, Family::Blobs, &keys::digest(kind, digest));
            }
        }
    }

    /// A step whose record was checked.
    pub(crate) fn step(&mut self, step: &StepWrite) -> Result<Receipt, ReportError> {
        let what = ReportKind::Step;
        let StepWrite { attempt, epoch, number, digest, screenshot, record_json } = step;
        let (attempt, epoch, number) = (*attempt, *epoch, *number);
        let late = self.is_late(attempt, epoch)?;
        let key = keys::step(attempt, number);
        if let Some(value) = self.value(Family::Steps, key.clone())? {
            let stored = format::decode_step(number, &value)
                .map_err(|reason| unreadable(crate::reader::damaged(Family::Steps, &key, reason)))?;
            if stored.digest != *digest {
                return Err(ReportError::Conflict { what, attempt, number, stored: stored.digest, reported: *digest });
            }
            return Ok(Receipt { repeated: true, late: stored.late });
        }
        if !self.has_blob(screenshot)? {
            return Err(ReportError::MissingBlob { what, attempt, number, digest: *screenshot });
        }
        let mut puts = Puts::new();
        let reported = Reported { epoch, late, digest: *digest, record_json };
        puts.insert((Family::Steps, key), format::encode_step(&reported));
        let progress_key = keys::attempt(Kind::Progress, attempt);
        let known: Option<StepProgress> = self.get(Family::Steps, progress_key.clone())?;
        self.may_have(attempt, number, known)?;
        let mut progress = known.unwrap_or_default();
        if progress.next == number {
            progress = self.progress_past(attempt, number, *digest)?;
            let value = format::encode_json(&progress)
                .map_err(|error| WriteError::Read { reason: error.to_string().into() })?;
            puts.insert((Family::Steps, progress_key), value);
        }
        self.stage(puts);
        Ok(Receipt { repeated: false, late })
    }

    /// How far the steps are whole once step `number`, of `digest`, is there too: steps
    /// may have come before those that precede them.
    fn progress_past(&self, attempt: AttemptId, number: u32, digest: Digest) -> Result<StepProgress, WriteError> {
        let mut progress = StepProgress { next: number.saturating_add(1), last: Some(digest) };
        loop {
            let key = keys::step(attempt, progress.next);
            let Some(value) = self.value(Family::Steps, key.clone())? else { return Ok(progress) };
            let stored = format::decode_step(progress.next, &value)
                .map_err(|reason| unreadable(crate::reader::damaged(Family::Steps, &key, reason)))?;
            progress = StepProgress { next: progress.next.saturating_add(1), last: Some(stored.digest) };
        }
    }

    /// A model call whose record was checked.
    pub(crate) fn call(&mut self, call: &CallWrite) -> Result<Receipt, ReportError> {
        let what = ReportKind::Call;
        let CallWrite { attempt, epoch, record, digest, record_json } = call;
        let (attempt, epoch, number) = (*attempt, *epoch, record.number);
        let late = self.is_late(attempt, epoch)?;
        let key = keys::call(attempt, number);
        if let Some(stored) = self.stored_call(attempt, number)? {
            if stored.digest != *digest {
                return Err(ReportError::Conflict { what, attempt, number, stored: stored.digest, reported: *digest });
            }
            return Ok(Receipt { repeated: true, late: stored.late });
        }
        for blob in record.blobs() {
            if !self.has_blob(&blob)? {
                return Err(ReportError::MissingBlob { what, attempt, number, digest: blob });
            }
        }
        let progress_key = keys::attempt(Kind::CallProgress, attempt);
        let mut progress: CallProgress = self.get(Family::Ledger, progress_key.clone())?.unwrap_or_default();
        progress.totals.add(record);
        if progress.next == number {
            progress.next = number.saturating_add(1);
            // Calls may have come before those that precede them.
            while self.stored_call(attempt, progress.next)?.is_some() {
                progress.next = progress.next.saturating_add(1);
            }
        }
        let sums =
            format::encode_json(&progress).map_err(|error| WriteError::Read { reason: error.to_string().into() })?;
        let reported = Reported { epoch, late, digest: *digest, record_json };
        self.stage(Puts::from([
            ((Family::Ledger, key), format::encode_call(&reported)),
            ((Family::Ledger, progress_key), sums),
        ]));
        Ok(Receipt { repeated: false, late })
    }

    fn stored_call(&self, attempt: AttemptId, number: u32) -> Result<Option<StoredCall>, WriteError> {
        let key = keys::call(attempt, number);
        let Some(value) = self.value(Family::Ledger, key.clone())? else { return Ok(None) };
        format::decode_call(number, &value)
            .map(Some)
            .map_err(|reason| unreadable(crate::reader::damaged(Family::Ledger, &key, reason)))
    }

    pub(crate) fn is_late(&self, attempt: AttemptId, epoch: Epoch) -> Result<bool, ReportError> {
        let lease = self.current_lease(attempt.episode)?;
        if lease.is_some_and(|row| row.attempt == Some(attempt.number) && row.epoch == epoch) {
            return Ok(false);
        }
        match self.get::<AttemptRecord>(Family::Attempts, keys::attempt(Kind::Attempt, attempt))? {
            None => Err(ReportError::UnknownAttempt { attempt }),
            Some(record) if record.epoch != epoch => {
                Err(ReportError::WrongEpoch { attempt, epoch, expected: record.epoch })
            }
            Some(_) => Ok(true),
        }
    }

    fn current_lease(&self, episode: EpisodeId) -> Result<Option<LeaseRow>, WriteError> {
        self.get(Family::Episodes, keys::episode(Kind::Lease, episode))
    }

    /// The name of a log of an attempt and the blob that holds it; the last one counts.
    pub(crate) fn log(
        &mut self,
        attempt: AttemptId,
        epoch: Epoch,
        name: &str,
        digest: &Digest,
    ) -> Result<(), LogError> {
        let record: Option<AttemptRecord> = self.get(Family::Attempts, keys::attempt(Kind::Attempt, attempt))?;
        if record.is_none_or(|record| record.epoch != epoch) {
            return Err(LogError::UnknownAttempt { attempt, epoch });
        }
        if !self.has_blob(digest)? {
            return Err(LogError::MissingBlob { attempt, name: name.to_owned(), digest: *digest });
        }
        let value =
            format::encode_json(digest).map_err(|error| WriteError::Read { reason: error.to_string().into() })?;
        self.stage(Puts::from([((Family::Attempts, keys::log(attempt, name)), value)]));
        Ok(())
    }

    /// A snapshot of the engine after event `through`.
    pub(crate) fn snapshot(&mut self, through: u64, state: &[u8]) -> Result<(), PruneError> {
        if through > self.journal.last {
            return Err(PruneError::BeyondJournal { through, last: self.journal.last });
        }
        let key = keys::sequence(Kind::Snapshot, through);
        self.rocks.put(&mut self.batch, Family::Journal, &key, &format::encode_raw(state));
        self.journal.snapshot = self.journal.snapshot.max(through);
        Ok(())
    }

    /// Rows of a run of another store, as they are there.
    pub(crate) fn rows(&mut self, rows: Vec<RawRow>) {
        self.stage(rows.into_iter().map(|(family, key, value)| ((family, key), value)));
    }

    /// Deletes the events through `through`, and all snapshots but the newest.
    pub(crate) fn prune(&mut self, through: u64) -> Result<(), PruneError> {
        let snapshot = self.journal.snapshot;
        if through > snapshot {
            return Err(PruneError::NoSnapshot { through, snapshot });
        }
        for (kind, end) in [(Kind::Event, through + 1), (Kind::Snapshot, snapshot)] {
            self.rocks.delete_range(
                &mut self.batch,
                Family::Journal,
                &keys::sequence(kind, 0),
                &keys::sequence(kind, end),
            );
        }
        Ok(())
    }
}

fn unreadable(error: ReadError) -> WriteError {
    WriteError::Read { reason: error.to_string().into() }
}
