//! Merging stores: runs that are over are copied, with all that they name, into another store.
//!
//! A run's rows have its id in their keys and are copied as they are, byte for byte; its blobs are
//! those that its records name, and those that these name. The journal is not copied, and no lease:
//! to the coordinator of the other store such a run is one that is over.
//!
//! A copy begins with a mark and ends with the run's own row, which is written with the end of the
//! mark in one batch. Until then nobody is shown the run; a copy that was cut short is found by
//! [`verify`](crate::verify), and gone on with by the same merge. Nothing that is there is ever
//! written over with something else.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use longhaul_core::digest::{Digest, DigestBuilder};
use longhaul_core::ids::RunId;
use longhaul_core::money::Money;
use longhaul_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{BlobError, OpenError, ReadError, WriteError};
use crate::family::Family;
use crate::format;
use crate::keys::{self, Kind};
use crate::lock::SharedLock;
use crate::open::{self, OpenOptions};
use crate::reader::{Reader, damaged, decode};
use crate::records::{CallProgress, EpisodeRecord, EpisodeState, RunRecord};
use crate::rocks::Row;
use crate::store::{Blob, Store};

/// So many bytes of blobs or of rows are written at once.
const BATCH_BYTES: usize = 8 * 1024 * 1024;

/// So many rows are written at once.
const BATCH_ROWS: usize = 1000;

/// The rows of a run but its own, which is written last, in the order in which they are copied:
/// what a row needs is there before it.
const KINDS: [(Family, Kind); 9] = [
    // First, since records after it may name what was dropped.
    (Family::Runs, Kind::Dropped),
    (Family::Episodes, Kind::Episode),
    (Family::Attempts, Kind::Attempt),
    (Family::Attempts, Kind::Log),
    (Family::Steps, Kind::Step),
    (Family::Steps, Kind::Progress),
    (Family::Attempts, Kind::Line),
    (Family::Ledger, Kind::Call),
    (Family::Ledger, Kind::CallProgress),
];

/// The mark of a run that was copied from another store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// The folder of that store; hostile until escaped.
    pub from: String,
    /// When the copy was begun.
    pub at: Timestamp,
    /// A digest of the run's rows.
    pub content: Digest,
    /// Whether all of it is there.
    pub whole: bool,
}

/// What a run comes to: the same before and after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Episodes.
    pub episodes: u64,
    /// Attempts.
    pub attempts: u64,
    /// Steps.
    pub steps: u64,
    /// Model calls.
    pub calls: u64,
    /// What those cost.
    pub settled: Money,
}

/// What became of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merged {
    /// The run.
    pub run: RunId,
    /// Its name; hostile until escaped.
    pub name: String,
    /// The store that it came from.
    pub from: PathBuf,
    /// The same run was there before; nothing was written.
    pub existed: bool,
    /// What it comes to.
    pub tally: Tally,
}

/// Why stores were not merged. Of what is refused nothing was written; after a failure the same
/// merge goes on.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// A store cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A store cannot be merged into itself.
    #[error("{} is both where runs come from and where they go", path.display())]
    Same {
        /// The store.
        path: PathBuf,
    },
    /// A run that was asked for is in none of the stores.
    #[error("there is no run {run} in the stores that are merged")]
    NoRun {
        /// The run.
        run: RunId,
    },
    /// A run goes on.
    #[error("run {run} of {} is not over", path.display())]
    NotOver {
        /// The run.
        run: RunId,
        /// Its store.
        path: PathBuf,
    },
    /// Another run has the same id.
    #[error("run {run} of {} is in {} too, and not the same: {difference}", path.display(), other.display())]
    Differs {
        /// The run.
        run: RunId,
        /// The store that it is copied from.
        path: PathBuf,
        /// The store that has another one.
        other: PathBuf,
        /// What differs first.
        difference: String,
    },
    /// A copy of that run was begun, and of another one.
    #[error("a copy of run {run} from {from} was cut short, and it was another one: merge that store first")]
    Begun {
        /// The run.
        run: RunId,
        /// Where it came from, escaped.
        from: String,
    },
    /// A record names a blob that is not there.
    #[error("run {run} of {} names blob {digest}, which is not there", path.display())]
    MissingBlob {
        /// The run.
        run: RunId,
        /// Its store.
        path: PathBuf,
        /// The blob.
        digest: Digest,
    },
    /// What is there after the copy is not what there was before.
    #[error("run {run} of {} came to {before:?}, and its copy comes to {after:?}", path.display())]
    Lost {
        /// The run.
        run: RunId,
        /// Its store.
        path: PathBuf,
        /// What it is.
        before: Tally,
        /// What the copy is.
        after: Tally,
    },
    /// A store cannot be read.
    #[error("the store {} cannot be read", path.display())]
    Read {
        /// The store.
        path: PathBuf,
        /// Why.
        #[source]
        source: ReadError,
    },
    /// Something cannot be written.
    #[error("the store {} cannot be written", path.display())]
    Write {
        /// The store.
        path: PathBuf,
        /// Why.
        #[source]
        source: WriteError,
    },
}

/// What runs are copied, where to and when.
#[derive(Clone, Copy, Debug)]
pub struct Merge<'a> {
    /// The stores that they come from.
    pub from: &'a [PathBuf],
    /// Which runs; all if empty.
    pub runs: &'a [RunId],
    /// The store that they go to; made if it is not there.
    pub into: &'a Path,
    /// How that one is opened.
    pub options: &'a OpenOptions,
    /// What time it is.
    pub at: Timestamp,
}

/// A store that runs come from; nobody writes to it meanwhile.
struct Origin {
    path: PathBuf,
    reader: Reader,
    _lock: SharedLock,
}

/// A run that is to be copied.
struct Planned<'a> {
    origin: &'a Origin,
    record: RunRecord,
}

impl Merge<'_> {
    /// Copies runs; `written` is told after each write, with the run.
    ///
    /// # Errors
    ///
    /// A store is in use, a run is not there, not over, or another one of the same id is there, a
    /// blob is missing, or something cannot be read or written.
    pub fn run(&self, mut written: impl FnMut(RunId)) -> Result<Vec<Merged>, MergeError> {
        let origins = self.from.iter().map(|path| self.origin(path)).collect::<Result<Vec<_>, _>>()?;
        let planned = self.planned(&origins)?;
        let target = Store::open(self.into, self.options)?;
        // All is refused before anything is written.
        let mut there = Vec::new();
        for plan in &planned {
            there.push(is_there(plan, &target, self.into)?);
        }
        let mut merged = Vec::new();
        for (plan, existed) in planned.iter().zip(there) {
            let tally = tally(&plan.origin.reader, plan.record.id).map_err(unreadable(&plan.origin.path))?;
            if !existed {
                let dropped = plan.origin.reader.dropped(plan.record.id).map_err(unreadable(&plan.origin.path))?;
                let (seen, is_pruned) = (HashSet::new(), dropped.is_some());
                let (into, written) = (self.into, &mut written);
                Copying { plan, target: &target, into, seen, is_pruned, written }.run(self.at)?;
                let after = self::tally(&target, plan.record.id).map_err(unreadable(self.into))?;
                if after != tally {
                    let (run, path) = (plan.record.id, plan.origin.path.clone());
                    return Err(MergeError::Lost { run, path, before: tally, after });
                }
            }
            let (run, name) = (plan.record.id, plan.record.name.clone());
            merged.push(Merged { run, name, from: plan.origin.path.clone(), existed, tally });
        }
        Ok(merged)
    }

    fn origin(&self, path: &Path) -> Result<Origin, MergeError> {
        open::check_format(path)?;
        let same = std::fs::canonicalize(path).ok().zip(std::fs::canonicalize(self.into).ok());
        if same.is_some_and(|(one, other)| one == other) {
            return Err(MergeError::Same { path: path.to_owned() });
        }
        let lock = SharedLock::take(path)?;
        Ok(Origin { path: path.to_owned(), reader: Reader::open(path)?, _lock: lock })
    }

    /// The runs that are meant, each once, the oldest first.
    fn planned<'o>(&self, origins: &'o [Origin]) -> Result<Vec<Planned<'o>>, MergeError> {
        let mut planned: Vec<Planned<'o>> = Vec::new();
        for origin in origins {
            for record in origin.reader.runs().map_err(unreadable(&origin.path))? {
                if !self.runs.is_empty() && !self.runs.contains(&record.id) {
                    continue;
                }
                if !is_over(&origin.reader, &record).map_err(unreadable(&origin.path))? {
                    return Err(MergeError::NotOver { run: record.id, path: origin.path.clone() });
                }
                match planned.iter().find(|plan| plan.record.id == record.id) {
                    Some(known) => same(origin, &known.origin.reader, &known.origin.path, record.id)?,
                    None => planned.push(Planned { origin, record }),
                }
            }
        }
        if let Some(run) = self.runs.iter().find(|run| planned.iter().all(|plan| plan.record.id != **run)) {
            return Err(MergeError::NoRun { run: *run });
        }
        planned.sort_by_key(|plan| plan.record.id);
        Ok(planned)
    }
}

fn unreadable(path: &Path) -> impl Fn(ReadError) -> MergeError + use<> {
    let path = path.to_owned();
    move |source| MergeError::Read { path: path.clone(), source }
}

pub(crate) fn is_over(reader: &Reader, run: &RunRecord) -> Result<bool, ReadError> {
    let settled = |episode: &EpisodeRecord| matches!(episode.state, EpisodeState::Settled { .. });
    Ok(run.settled_at.is_some() && reader.episodes(run.id)?.iter().all(settled))
}

/// Whether the run is in the target, whole and the same.
fn is_there(plan: &Planned<'_>, target: &Store, into: &Path) -> Result<bool, MergeError> {
    let run = plan.record.id;
    if target.run(run).map_err(unreadable(into))?.is_some() {
        return same(plan.origin, target, into, run).map(|()| true);
    }
    match target.arrival(run).map_err(unreadable(into))? {
        Some(begun) if begun.content != content(&plan.origin.reader, run).map_err(unreadable(&plan.origin.path))? => {
            Err(MergeError::Begun { run, from: begun.from.escape_debug().to_string() })
        }
        Some(_) | None => Ok(false),
    }
}

/// The kinds of all rows that make a run what it is: with its pictures or without them, it is the same.
fn all_kinds() -> impl Iterator<Item = (Family, Kind)> {
    std::iter::once((Family::Runs, Kind::Run)).chain(KINDS).filter(|(_, kind)| *kind != Kind::Dropped)
}

/// The rows of a run of one kind, in order.
pub(crate) fn rows(
    reader: &Reader,
    family: Family,
    kind: Kind,
    run: RunId,
) -> impl Iterator<Item = Result<Row, ReadError>> + '_ {
    reader.rocks.rows(family, keys::run(kind, run))
}

/// That another store has the same run, row for row.
fn same(origin: &Origin, other: &Reader, other_path: &Path, run: RunId) -> Result<(), MergeError> {
    let difference = |key: &[u8]| {
        let place = KINDS.iter().find(|(_, kind)| key.first() == Some(&(*kind as u8)));
        let family = place.map_or(Family::Runs, |(family, _)| *family);
        MergeError::Differs {
            run,
            path: origin.path.clone(),
            other: other_path.to_owned(),
            difference: damaged(family, key, "they differ".to_owned()).to_string(),
        }
    };
    for (family, kind) in all_kinds() {
        let mut ours = rows(&origin.reader, family, kind, run);
        let mut theirs = rows(other, family, kind, run);
        loop {
            let one = ours.next().transpose().map_err(unreadable(&origin.path))?;
            let two = theirs.next().transpose().map_err(unreadable(other_path))?;
            match (one, two) {
                (None, None) => break,
                (one, two) if one == two => {}
                (one, two) => return Err(difference(&one.or(two).map(|(key, _)| key).unwrap_or_default())),
            }
        }
    }
    Ok(())
}

/// A digest of a run's rows.
fn content(reader: &Reader, run: RunId) -> Result<Digest, ReadError> {
    let mut digest = DigestBuilder::new("longhaul-run-1");
    for (family, kind) in all_kinds() {
        for row in rows(reader, family, kind, run) {
            let (key, value) = row?;
            digest = digest.field("key", key).field("value", value);
        }
    }
    Ok(digest.finish())
}

/// What a run comes to.
fn tally(reader: &Reader, run: RunId) -> Result<Tally, ReadError> {
    let count = |family, kind| -> Result<u64, ReadError> {
        rows(reader, family, kind, run).try_fold(0, |count, row| row.map(|_| count + 1))
    };
    let mut settled = Money::ZERO;
    for row in rows(reader, Family::Ledger, Kind::CallProgress, run) {
        let (key, value) = row?;
        let progress: CallProgress = decode(Family::Ledger, &key, &value)?;
        settled = settled.saturating_add(progress.totals.settled);
    }
    Ok(Tally {
        episodes: count(Family::Episodes, Kind::Episode)?,
        attempts: count(Family::Attempts, Kind::Attempt)?,
        steps: count(Family::Steps, Kind::Step)?,
        calls: count(Family::Ledger, Kind::Call)?,
        settled,
    })
}

/// A row as it is written.
pub(crate) type RawRow = (Family, Vec<u8>, Vec<u8>);

/// A run on its way.
struct Copying<'a> {
    plan: &'a Planned<'a>,
    target: &'a Store,
    into: &'a Path,
    /// The blobs that were looked at.
    seen: HashSet<Digest>,
    /// Whether pictures of it were dropped.
    is_pruned: bool,
    written: &'a mut dyn FnMut(RunId),
}

impl Copying<'_> {
    fn run(mut self, at: Timestamp) -> Result<(), MergeError> {
        let (run, reader) = (self.plan.record.id, &self.plan.origin.reader);
        let from = self.plan.origin.path.display().to_string();
        let content = content(reader, run).map_err(self.unreadable())?;
        let mark = Arrival { from, at, content, whole: false };
        self.write(vec![self.mark(&mark)?])?;
        for (family, kind) in KINDS {
            let (mut batch, mut bytes) = (Vec::new(), 0);
            for row in rows(reader, family, kind, run) {
                let (key, value) = row.map_err(self.unreadable())?;
                bytes += value.len();
                batch.push((family, key.into_vec(), value.into_vec()));
                if bytes >= BATCH_BYTES || batch.len() >= BATCH_ROWS {
                    self.rows(std::mem::take(&mut batch))?;
                    bytes = 0;
                }
            }
            self.rows(batch)?;
        }
        let key = keys::run(Kind::Run, run);
        let value = reader.rocks.get(Family::Runs, &key).map_err(self.unreadable())?.unwrap_or_default();
        let own = (Family::Runs, key, value);
        self.blobs(std::slice::from_ref(&own))?;
        self.write(vec![own, self.mark(&Arrival { whole: true, ..mark })?])
    }

    fn unreadable(&self) -> impl Fn(ReadError) -> MergeError + use<> {
        unreadable(&self.plan.origin.path)
    }

    fn mark(&self, arrival: &Arrival) -> Result<RawRow, MergeError> {
        let value = format::encode_json(arrival).map_err(|error| MergeError::Write {
            path: self.into.to_owned(),
            source: WriteError::Read { reason: error.to_string().into() },
        })?;
        Ok((Family::Runs, keys::run(Kind::Arrival, self.plan.record.id), value))
    }

    /// Rows, after the blobs that they name.
    fn rows(&mut self, rows: Vec<RawRow>) -> Result<(), MergeError> {
        if rows.is_empty() {
            return Ok(());
        }
        self.blobs(&rows)?;
        self.write(rows)
    }

    fn write(&mut self, rows: Vec<RawRow>) -> Result<(), MergeError> {
        let failed = |source| MergeError::Write { path: self.into.to_owned(), source };
        self.target.put_rows(rows).wait().map_err(failed)?;
        (self.written)(self.plan.record.id);
        Ok(())
    }

    /// The blobs that rows name, and those that these name.
    fn blobs(&mut self, rows: &[RawRow]) -> Result<(), MergeError> {
        let mut needed = Vec::new();
        let mut named = Vec::new();
        for (family, key, value) in rows {
            let record = format::json_of(value)
                .and_then(|json| serde_json::from_slice::<Value>(json).map_err(|error| error.to_string()))
                .map_err(|reason| self.unreadable()(damaged(*family, key, reason)))?;
            named_by(&record, &mut named);
            needed.extend(needed_by(*family, key, &record));
        }
        let mut batch = Vec::new();
        let mut bytes = 0;
        while let Some(digest) = named.pop() {
            if !self.seen.insert(digest) {
                continue;
            }
            let Some(content) = self.plan.origin.reader.blob(&digest).map_err(self.unreadable())? else { continue };
            if matches!(content.first(), Some(b'{' | b'['))
                && let Ok(value) = serde_json::from_slice::<Value>(&content)
            {
                named_by(&value, &mut named);
            }
            bytes += content.len();
            batch.push(Blob::new(content));
            if bytes >= BATCH_BYTES {
                self.put(std::mem::take(&mut batch))?;
                bytes = 0;
            }
        }
        self.put(batch)?;
        if self.is_pruned {
            // What its records name may have been dropped; what they cannot be without was not.
            needed.retain(|digest| !matches!(self.plan.origin.reader.blob_len(digest), Ok(None)));
        }
        let missing = self.target.missing_blobs(&needed).map_err(unreadable(self.into))?;
        missing.first().map_or(Ok(()), |digest| {
            let (run, path) = (self.plan.record.id, self.plan.origin.path.clone());
            Err(MergeError::MissingBlob { run, path, digest: *digest })
        })
    }

    fn put(&mut self, blobs: Vec<Blob>) -> Result<(), MergeError> {
        if blobs.is_empty() {
            return Ok(());
        }
        let put = self.target.put_blobs(blobs).wait();
        put.map_err(|error| match error {
            BlobError::Write(source) => MergeError::Write { path: self.into.to_owned(), source },
            // Their digests were compared when they were read.
            other => MergeError::Write {
                path: self.into.to_owned(),
                source: WriteError::Read { reason: other.to_string().into() },
            },
        })?;
        (self.written)(self.plan.record.id);
        Ok(())
    }
}

/// Every text of a record that is a digest: whether it names a blob, the store knows.
pub(crate) fn named_by(value: &Value, found: &mut Vec<Digest>) {
    match value {
        Value::String(text) if text.len() == 64 => found.extend(text.parse::<Digest>()),
        Value::Array(values) => values.iter().for_each(|value| named_by(value, found)),
        Value::Object(fields) => fields.values().for_each(|value| named_by(value, found)),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The blobs without which a record is damaged: those that a check of the store looks for.
fn needed_by(family: Family, key: &[u8], record: &Value) -> Vec<Digest> {
    let digest = |value: &Value| value.as_str().and_then(|text| text.parse().ok());
    let is = |kind: Kind| keys::ids(kind, key).is_some();
    match family {
        Family::Runs | Family::Episodes => digest(&record["plan"]).into_iter().collect(),
        Family::Attempts if is(Kind::Log) => digest(record).into_iter().collect(),
        Family::Steps if is(Kind::Step) => digest(&record["screen"]["png"]).into_iter().collect(),
        Family::Ledger if is(Kind::Call) => {
            let parts = record["parts"].as_array().into_iter().flatten();
            [&record["request"], &record["response"]].into_iter().chain(parts).filter_map(digest).collect()
        }
        _ => Vec::new(),
    }
}
