//! Reading a store: beside the process that writes to it, in it, or without one.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, EpisodeId, RunId};
use longhaul_core::money::Money;
use longhaul_core::plan::RunPlan;
use serde::de::DeserializeOwned;

use crate::error::{OpenError, ReadError};
use crate::family::Family;
use crate::keys::{self, Kind};
use crate::merge::Arrival;
use crate::records::{
    AttemptRecord, CallProgress, EpisodeRecord, JournalEntry, LayerRecord, RunRecord, Snapshot, StepProgress,
    StoredCall, StoredStep,
};
use crate::rocks::Rocks;
use crate::{format, open};

/// Reads a store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Reader {
    pub(crate) rocks: Arc<Rocks>,
    path: PathBuf,
    incarnation: u64,
}

impl Reader {
    /// Opens the store in `path` for reading only, whether or not a process writes to
    /// it. Sees what was durable then, and nothing that follows: open again for that.
    ///
    /// # Errors
    ///
    /// There is no store, it has a format that is not known, or it cannot be read.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        open::check_format(path)?;
        let database = path.join(open::DATABASE);
        open::check_logs(&database)?;
        let rocks =
            Rocks::open_read_only(&database).map_err(|reason| OpenError::Rocks { path: path.to_owned(), reason })?;
        Self::new(Arc::new(rocks), path)
    }

    pub(crate) fn new(rocks: Arc<Rocks>, path: &Path) -> Result<Self, OpenError> {
        let incarnation = open::read_incarnation(&rocks, path)?;
        Ok(Self { rocks, path: path.to_owned(), incarnation })
    }

    /// The store's folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The store's incarnation: epochs are compared within one only. A store that was
    /// restored from a checkpoint has another one.
    #[must_use]
    pub const fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Whether this incarnation began with a backup: what came after that is not known to it.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub fn is_restored(&self) -> Result<bool, ReadError> {
        open::is_restored(&self.rocks, self.incarnation)
    }

    /// The newest snapshot of the engine.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub fn snapshot(&self) -> Result<Option<Snapshot>, ReadError> {
        let until = keys::sequence(Kind::Snapshot, u64::MAX);
        let Some((key, value)) = self.rocks.last(Family::Journal, &[Kind::Snapshot as u8], &until)? else {
            return Ok(None);
        };
        let through = keys::read_sequence(Kind::Snapshot, &key)
            .ok_or_else(|| damaged(Family::Journal, &key, "its key is not a snapshot's".to_owned()))?;
        let state = raw(Family::Journal, &key, &value)?;
        Ok(Some(Snapshot { through, state }))
    }

    /// The events after sequence number `after`, in order.
    ///
    /// # Errors
    ///
    /// The store cannot be read, or an event is missing.
    pub fn journal(&self, after: u64) -> Result<Vec<JournalEntry>, ReadError> {
        let mut entries = Vec::new();
        let Some(first) = after.checked_add(1) else { return Ok(entries) };
        let from = keys::sequence(Kind::Event, first);
        for row in self.rocks.scan(Family::Journal, vec![Kind::Event as u8], &from) {
            let (key, value) = row?;
            let sequence = keys::read_sequence(Kind::Event, &key)
                .ok_or_else(|| damaged(Family::Journal, &key, "its key is not an event's".to_owned()))?;
            let expected = first + entries.len() as u64;
            if sequence != expected {
                return Err(ReadError::Gap { expected, found: sequence });
            }
            entries.push(JournalEntry { sequence, event: raw(Family::Journal, &key, &value)? });
        }
        Ok(entries)
    }

    /// The sequence number of the last event; 0 before the first.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub fn last_sequence(&self) -> Result<u64, ReadError> {
        let mut last = 0;
        // Pruning may have left a snapshot and no event.
        for kind in [Kind::Event, Kind::Snapshot] {
            if let Some((key, _)) = self.rocks.last(Family::Journal, &[kind as u8], &keys::sequence(kind, u64::MAX))? {
                let sequence = keys::read_sequence(kind, &key)
                    .ok_or_else(|| damaged(Family::Journal, &key, "its key has no sequence number".to_owned()))?;
                last = last.max(sequence);
            }
        }
        Ok(last)
    }

    /// A run.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub fn run(&self, id: RunId) -> Result<Option<RunRecord>, ReadError> {
        self.record(Family::Runs, &keys::run(Kind::Run, id))
    }

    /// All runs, the oldest first.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub fn runs(&self) -> Result<Vec<RunRecord>, ReadError> {
        self.records(Family::Runs, vec![Kind::Run as u8]).collect()
    }

    /// The mark of a run that was copied from another store, or is on its way.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub fn arrival(&self, id: RunId) -> Result<Option<Arrival>, ReadError> {
        self.record(Family::Runs, &keys::run(Kind::Arrival, id))
    }

    /// What a run was asked to do; none if the run or its plan is not there.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub fn run_plan(&self, id: RunId) -> Result<Option<RunPlan>, ReadError> {
        let Some(run) = self.run(id)? else { return Ok(None) };
        let Some(bytes) = self.blob(&run.plan)? else { return Ok(None) };
        serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            damaged(Family::Blobs, &keys::digest(Kind::Blob, &run.plan), format!("it is no run's plan: {error}"))
        })
    }

    /// An episode.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub fn episode(&self, id: EpisodeId) -> Result<Option<EpisodeRecord>, ReadError> {
        self.record(Family::Episodes, &keys::episode(Kind::Episode, id))
    }

    /// The episodes of a run, in order.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub fn episodes(&self, run: RunId) -> Result<Vec<EpisodeRecord>, ReadError> {
        self.records(Family::Episodes, keys::run(Kind::Episode, run)).collect()
    }

    /// The ids of the episodes of a run, in order: of a run that is too large to be held whole.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub fn episode_ids(&self, run: RunId) -> Result<Vec<EpisodeId>, ReadError> {
        self.rocks
            .rows(Family::Episodes, keys::run(Kind::Episode, run))
            .map(|row| {
                let (key, _) = row?;
                keys::read_episode(Kind::Episode, &key)
                    .ok_or_else(|| damaged(Family::Episodes, &key, "its key is not an episode's".to_owned()))
            })
            .collect()
    }

    /// An attempt.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub fn attempt(&self, id: AttemptId) -> Result<Option<AttemptRecord>, ReadError> {
        self.record(Family::Attempts, &keys::attempt(Kind::Attempt, id))
    }

    /// The attempts of an episode, in order.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub fn attempts(&self, episode: EpisodeId) -> Result<Vec<AttemptRecord>, ReadError> {
        self.records(Family::Attempts, keys::episode(Kind::Attempt, episode)).collect()
    }

    /// The logs of an attempt: name and blob.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub fn logs(&self, id: AttemptId) -> Result<BTreeMap<String, Digest>, ReadError> {
        self.rocks
            .rows(Family::Attempts, keys::attempt(Kind::Log, id))
            .map(|row| {
                let (key, value) = row?;
                let (_, name) = keys::read_log(&key)
                    .ok_or_else(|| damaged(Family::Attempts, &key, "its key is not a log's".to_owned()))?;
                let digest = decode(Family::Attempts, &key, &value)?;
                Ok((name.to_owned(), digest))
            })
            .collect()
    }

    /// The steps of an attempt from number `from` on, in order; late ones too, flagged.
    ///
    /// # Errors
    ///
    /// An item is an error if the store cannot be read.
    pub fn steps(&self, id: AttemptId, from: u32) -> impl Iterator<Item = Result<StoredStep, ReadError>> + '_ {
        self.rocks.scan(Family::Steps, keys::attempt(Kind::Step, id), &keys::step(id, from)).map(|row| {
            let (key, value) = row?;
            let (_, number) = keys::read_step(&key)
                .ok_or_else(|| damaged(Family::Steps, &key, "its key is not a step's".to_owned()))?;
            format::decode_step(number, &value).map_err(|reason| damaged(Family::Steps, &key, reason))
        })
    }

    /// How far the steps of an attempt are stored without a gap.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub fn progress(&self, id: AttemptId) -> Result<StepProgress, ReadError> {
        Ok(self.record(Family::Steps, &keys::attempt(Kind::Progress, id))?.unwrap_or_default())
    }

    /// The model calls of an attempt from number `from` on, in order; late ones too, flagged.
    ///
    /// # Errors
    ///
    /// An item is an error if the store cannot be read.
    pub fn calls(&self, id: AttemptId, from: u32) -> impl Iterator<Item = Result<StoredCall, ReadError>> + '_ {
        self.rocks.scan(Family::Ledger, keys::attempt(Kind::Call, id), &keys::call(id, from)).map(|row| {
            let (key, value) = row?;
            let (_, number) = keys::read_call(&key)
                .ok_or_else(|| damaged(Family::Ledger, &key, "its key is not a call's".to_owned()))?;
            format::decode_call(number, &value).map_err(|reason| damaged(Family::Ledger, &key, reason))
        })
    }

    /// How far the model calls of an attempt are stored without a gap, and their sums.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub fn call_progress(&self, id: AttemptId) -> Result<CallProgress, ReadError> {
        Ok(self.record(Family::Ledger, &keys::attempt(Kind::CallProgress, id))?.unwrap_or_default())
    }

    /// What the stored model calls of all attempts of an episode have cost.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub fn episode_spent(&self, id: EpisodeId) -> Result<Money, ReadError> {
        let sums = self.records::<CallProgress>(Family::Ledger, keys::episode(Kind::CallProgress, id));
        sums.map(|progress| progress.map(|progress| progress.totals.settled)).sum()
    }

    /// A layer.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub fn layer(&self, key: &Digest) -> Result<Option<LayerRecord>, ReadError> {
        self.record(Family::Layers, &keys::digest(Kind::Layer, key))
    }

    /// All layers.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub fn layers(&self) -> Result<Vec<LayerRecord>, ReadError> {
        self.records(Family::Layers, vec![Kind::Layer as u8]).collect()
    }

    /// The bytes of a blob, checked against its digest.
    ///
    /// # Errors
    ///
    /// The store cannot be read, or holds other bytes under the digest.
    pub fn blob(&self, digest: &Digest) -> Result<Option<Vec<u8>>, ReadError> {
        let key = keys::digest(Kind::Blob, digest);
        let Some(mut value) = self.rocks.get(Family::Blobs, &key)? else { return Ok(None) };
        let len = format::decode_raw(&value).map_err(|reason| damaged(Family::Blobs, &key, reason))?.len();
        value.drain(..value.len() - len);
        let found = Digest::of(&value);
        if found != *digest {
            return Err(damaged(Family::Blobs, &key, format!("its bytes have digest {found}")));
        }
        Ok(Some(value))
    }

    /// The size of a blob; none if it is not there.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub fn blob_len(&self, digest: &Digest) -> Result<Option<u64>, ReadError> {
        self.record(Family::Blobs, &keys::digest(Kind::BlobInfo, digest))
    }

    /// Those of the blobs that are not there, each once.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub fn missing_blobs(&self, digests: &[Digest]) -> Result<Vec<Digest>, ReadError> {
        let mut seen = HashSet::new();
        let mut missing = Vec::new();
        for digest in digests {
            if seen.insert(digest) && !self.rocks.exists(Family::Blobs, &keys::digest(Kind::BlobInfo, digest))? {
                missing.push(*digest);
            }
        }
        Ok(missing)
    }

    pub(crate) fn record<T: DeserializeOwned>(&self, family: Family, key: &[u8]) -> Result<Option<T>, ReadError> {
        self.rocks.get(family, key)?.map(|value| decode(family, key, &value)).transpose()
    }

    fn records<T: DeserializeOwned>(
        &self,
        family: Family,
        prefix: Vec<u8>,
    ) -> impl Iterator<Item = Result<T, ReadError>> + '_ {
        self.rocks.rows(family, prefix).map(move |row| {
            let (key, value) = row?;
            decode(family, &key, &value)
        })
    }
}

pub(crate) fn decode<T: DeserializeOwned>(family: Family, key: &[u8], value: &[u8]) -> Result<T, ReadError> {
    format::decode_json(value).map_err(|reason| damaged(family, key, reason))
}

fn raw(family: Family, key: &[u8], value: &[u8]) -> Result<Vec<u8>, ReadError> {
    format::decode_raw(value).map(<[u8]>::to_vec).map_err(|reason| damaged(family, key, reason))
}

/// A damaged record; the key is shown as its kind and the hex digits of its ids.
pub(crate) fn damaged(family: Family, key: &[u8], reason: String) -> ReadError {
    use std::fmt::Write as _;
    let mut shown = String::new();
    if let Some((kind, ids)) = key.split_first() {
        shown.extend(std::ascii::escape_default(*kind).map(char::from));
        for byte in ids {
            // Writing to a string cannot fail.
            let _ = write!(shown, "{byte:02x}");
        }
    }
    ReadError::Damaged { family: family.name(), key: shown, reason }
}
