//! Retention: the pictures of runs that are over are dropped, and what they came to stays.
//!
//! Dropped are the screenshots of steps, the large parts of model calls (pictures that a model was
//! shown, most of all), logs that are pictures and the tops that snapshots saved. Records, scores,
//! verdicts, what calls cost, and plans with all that they name stay; and so does every blob that
//! anything else names: another run, or another record of the same one. What is to be dropped is
//! found by marking, while nobody else has the store, so that nothing is put at the same time.
//!
//! A run is marked first, so that a record whose picture is gone is not taken for damage; after a
//! cut the same command goes on. RocksDB gives space back only when it compacts: that is done last.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use longhaul_core::call::CallRecord;
use longhaul_core::digest::Digest;
use longhaul_core::ids::RunId;
use longhaul_core::plan::Tree;
use longhaul_core::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{OpenError, ReadError, WriteError};
use crate::family::Family;
use crate::format;
use crate::keys::{self, Kind};
use crate::merge::{is_over, named_by, rows};
use crate::open::{self, OpenOptions};
use crate::reader::{Reader, damaged, decode};
use crate::records::RunRecord;
use crate::store::Store;

/// Parts of calls from this size on are dropped: a message of text is smaller, a picture is not.
const LARGE_PART: u64 = 16 * 1024;

/// So many blobs are dropped at once.
const BATCH: usize = 1_000;

/// What was dropped of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// When.
    pub at: Timestamp,
    /// How many blobs.
    pub blobs: u64,
    /// How many bytes they were.
    pub bytes: u64,
    /// Whether all of it is done.
    pub whole: bool,
}

/// Which runs' pictures are dropped.
#[derive(Clone, Copy, Debug)]
pub struct Pruning<'a> {
    /// The store; nobody else has it open.
    pub path: &'a Path,
    /// These runs.
    pub runs: &'a [RunId],
    /// And those that were over by then.
    pub before: Option<Timestamp>,
    /// Only says what would be dropped.
    pub dry_run: bool,
    /// How the store is opened.
    pub options: &'a OpenOptions,
    /// What time it is.
    pub at: Timestamp,
}

/// What became of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pruned {
    /// The run.
    pub run: RunId,
    /// Its name; hostile until escaped.
    pub name: String,
    /// How many blobs were dropped that no run before it in the list had dropped.
    pub blobs: u64,
    /// How many bytes they were.
    pub bytes: u64,
}

/// Why nothing, or not all, was dropped. What was is marked, and the same command goes on.
#[derive(Debug, thiserror::Error)]
pub enum PruningError {
    /// The store cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A run that was named is not there.
    #[error("there is no run {run} in {}", path.display())]
    NoRun {
        /// The run.
        run: RunId,
        /// The store.
        path: PathBuf,
    },
    /// A run goes on.
    #[error("run {run} is not over")]
    NotOver {
        /// The run.
        run: RunId,
    },
    /// The store cannot be read.
    #[error("the store {} cannot be read", path.display())]
    Read {
        /// The store.
        path: PathBuf,
        /// Why.
        #[source]
        source: ReadError,
    },
    /// The store cannot be written.
    #[error("the store {} cannot be written", path.display())]
    Write {
        /// The store.
        path: PathBuf,
        /// Why.
        #[source]
        source: WriteError,
    },
    /// The space cannot be given back.
    #[error("what was dropped from {} still takes its space: {reason}", path.display())]
    Space {
        /// The store.
        path: PathBuf,
        /// What RocksDB says.
        reason: String,
    },
}

impl Pruning<'_> {
    /// Drops the pictures of the runs that are meant.
    ///
    /// # Errors
    ///
    /// The store is in use, a run that is named is not there or not over, or something cannot be
    /// read or written.
    pub fn run(&self) -> Result<Vec<Pruned>, PruningError> {
        open::check_format(self.path)?;
        let store = Store::open(self.path, self.options)?;
        let read = |source| PruningError::Read { path: self.path.to_owned(), source };
        let chosen = self.chosen(&store)?;
        let mut droppable: HashMap<Digest, RunId> = HashMap::new();
        for run in &chosen {
            pictures(&store, run.id, |digest| {
                droppable.entry(digest).or_insert(run.id);
            })
            .map_err(read)?;
        }
        let ids: HashSet<RunId> = chosen.iter().map(|run| run.id).collect();
        Keeping { reader: &store, seen: HashSet::new(), droppable: &mut droppable }.all(&ids).map_err(read)?;
        let mut pruned: Vec<Pruned> = Vec::new();
        let mut gone: Vec<Digest> = Vec::new();
        for run in chosen {
            let (mut blobs, mut bytes) = (0, 0);
            for digest in droppable.iter().filter(|(_, of)| **of == run.id).map(|(digest, _)| digest) {
                if let Some(len) = store.blob_len(digest).map_err(read)? {
                    blobs += 1;
                    bytes += len;
                    gone.push(*digest);
                }
            }
            pruned.push(Pruned { run: run.id, name: run.name, blobs, bytes });
        }
        if !self.dry_run {
            self.drop_all(&store, &pruned, &gone)?;
        }
        Ok(pruned)
    }

    /// The runs that are meant, the oldest first.
    fn chosen(&self, reader: &Reader) -> Result<Vec<RunRecord>, PruningError> {
        let read = |source| PruningError::Read { path: self.path.to_owned(), source };
        let all = reader.runs().map_err(read)?;
        if let Some(run) = self.runs.iter().find(|run| all.iter().all(|known| known.id != **run)) {
            return Err(PruningError::NoRun { run: *run, path: self.path.to_owned() });
        }
        let mut chosen = Vec::new();
        for run in all {
            let named = self.runs.contains(&run.id);
            let old = self.before.is_some_and(|before| run.settled_at.is_some_and(|at| at < before));
            if !named && !old {
                continue;
            }
            if !is_over(reader, &run).map_err(read)? {
                if named {
                    return Err(PruningError::NotOver { run: run.id });
                }
                continue;
            }
            let done = reader.dropped(run.id).map_err(read)?.is_some_and(|dropped| dropped.whole);
            if named || !done {
                chosen.push(run);
            }
        }
        Ok(chosen)
    }

    fn drop_all(&self, store: &Store, pruned: &[Pruned], gone: &[Digest]) -> Result<(), PruningError> {
        self.mark(store, pruned, false)?;
        let failed = |source| PruningError::Write { path: self.path.to_owned(), source };
        for batch in gone.chunks(BATCH) {
            store.drop_blobs(batch.to_vec()).wait().map_err(failed)?;
        }
        let space = |reason| PruningError::Space { path: self.path.to_owned(), reason };
        store.rocks.give_space_back(Family::Blobs).map_err(space)?;
        self.mark(store, pruned, true)
    }

    fn mark(&self, store: &Store, pruned: &[Pruned], whole: bool) -> Result<(), PruningError> {
        let path = || self.path.to_owned();
        let mut marks = Vec::new();
        for Pruned { run, blobs, bytes, .. } in pruned {
            let before = store.dropped(*run).map_err(|source| PruningError::Read { path: path(), source })?;
            // What an earlier cut or an earlier command dropped counts too.
            let (known_blobs, known_bytes) =
                before.filter(|known| known.whole).map_or((0, 0), |known| (known.blobs, known.bytes));
            let (blobs, bytes) = (known_blobs + blobs, known_bytes + bytes);
            let (blobs, bytes) = match before.filter(|known| !known.whole) {
                Some(begun) if whole => (begun.blobs, begun.bytes),
                Some(begun) => (begun.blobs.max(blobs), begun.bytes.max(bytes)),
                None => (blobs, bytes),
            };
            let value = format::encode_json(&Dropped { at: self.at, blobs, bytes, whole }).map_err(|error| {
                PruningError::Write { path: path(), source: WriteError::Read { reason: error.to_string().into() } }
            })?;
            marks.push((Family::Runs, keys::run(Kind::Dropped, *run), value));
        }
        store.put_rows(marks).wait().map_err(|source| PruningError::Write { path: path(), source })
    }
}

impl Reader {
    /// What was dropped of a run, if anything was.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub fn dropped(&self, run: RunId) -> Result<Option<Dropped>, ReadError> {
        self.record(Family::Runs, &keys::run(Kind::Dropped, run))
    }
}

impl Reader {
    /// The runs of which something was dropped. A mark that cannot be read is damage, and is found as such.
    pub(crate) fn all_dropped(&self) -> HashSet<RunId> {
        let marks = self.rocks.rows(Family::Runs, vec![Kind::Dropped as u8]);
        marks.filter_map(|row| keys::read_run(Kind::Dropped, &row.ok()?.0)).collect()
    }
}

/// The JSON of a record.
fn json(family: Family, key: &[u8], value: &[u8]) -> Result<Value, ReadError> {
    format::json_of(value)
        .and_then(|json| serde_json::from_slice(json).map_err(|error| error.to_string()))
        .map_err(|reason| damaged(family, key, reason))
}

fn digest(value: &Value) -> Option<Digest> {
    value.as_str()?.parse().ok()
}

/// Whether a log is a picture, or what a snapshot saved.
pub(crate) fn is_droppable(key: &[u8]) -> bool {
    let kind = keys::read_log(key).and_then(|(_, name)| Path::new(name).extension());
    kind.is_some_and(|kind| kind == "png" || kind == "sqsh")
}

/// Every blob of a run that may be dropped as far as the run itself is concerned.
fn pictures(reader: &Reader, run: RunId, mut found: impl FnMut(Digest)) -> Result<(), ReadError> {
    for row in rows(reader, Family::Steps, Kind::Step, run) {
        let (key, value) = row?;
        digest(&json(Family::Steps, &key, &value)?["screen"]["png"]).into_iter().for_each(&mut found);
    }
    for row in rows(reader, Family::Ledger, Kind::Call, run) {
        let (key, value) = row?;
        let call: CallRecord = serde_json::from_value(json(Family::Ledger, &key, &value)?)
            .map_err(|error| damaged(Family::Ledger, &key, error.to_string()))?;
        for part in call.parts {
            if reader.blob_len(&part)?.is_some_and(|len| len >= LARGE_PART) {
                found(part);
            }
        }
    }
    for row in rows(reader, Family::Attempts, Kind::Log, run) {
        let (key, value) = row?;
        if is_droppable(&key) {
            found(decode(Family::Attempts, &key, &value)?);
        }
    }
    Ok(())
}

/// Takes out of what may be dropped whatever is named by what stays.
struct Keeping<'a> {
    reader: &'a Reader,
    seen: HashSet<Digest>,
    droppable: &'a mut HashMap<Digest, RunId>,
}

impl Keeping<'_> {
    fn all(mut self, chosen: &HashSet<RunId>) -> Result<(), ReadError> {
        for run in self.reader.runs()? {
            // One that goes on since has new pictures, and needs them.
            let is_bare = self.reader.dropped(run.id)?.is_some() && is_over(self.reader, &run)?;
            self.run(&run, chosen.contains(&run.id) || is_bare)?;
        }
        Ok(())
    }

    fn run(&mut self, run: &RunRecord, is_pruned: bool) -> Result<(), ReadError> {
        self.plan(run.plan)?;
        for episode in self.reader.episodes(run.id)? {
            self.plan(episode.plan)?;
        }
        for row in rows(self.reader, Family::Attempts, Kind::Log, run.id) {
            let (key, value) = row?;
            if !(is_pruned && is_droppable(&key)) {
                let log: Digest = decode(Family::Attempts, &key, &value)?;
                self.droppable.remove(&log);
            }
        }
        for row in rows(self.reader, Family::Ledger, Kind::Call, run.id) {
            let (key, value) = row?;
            let call = json(Family::Ledger, &key, &value)?;
            let bodies = [&call["request"], &call["response"]].into_iter().filter_map(digest);
            self.keep(bodies);
            if !is_pruned {
                let parts = call["parts"].as_array().into_iter().flatten().filter_map(digest);
                self.keep(parts);
            }
        }
        if !is_pruned {
            for row in rows(self.reader, Family::Steps, Kind::Step, run.id) {
                let (key, value) = row?;
                let screen = digest(&json(Family::Steps, &key, &value)?["screen"]["png"]);
                self.keep(screen);
            }
        }
        Ok(())
    }

    fn keep(&mut self, named: impl IntoIterator<Item = Digest>) {
        for digest in named {
            self.droppable.remove(&digest);
        }
    }

    /// A plan, and all that it names.
    fn plan(&mut self, plan: Digest) -> Result<(), ReadError> {
        let mut named = vec![plan];
        while let Some(digest) = named.pop() {
            self.droppable.remove(&digest);
            if !self.seen.insert(digest) {
                continue;
            }
            let Some(bytes) = self.reader.blob(&digest)?.filter(|bytes| bytes.first() == Some(&b'{')) else { continue };
            let Ok(record) = serde_json::from_slice::<Value>(&bytes) else { continue };
            let mut within = Vec::new();
            named_by(&record, &mut within);
            if serde_json::from_value::<Tree>(record).is_ok_and(|tree| !tree.entries.is_empty()) {
                // What a tree names are files: nothing is named by those.
                self.keep(within);
            } else {
                named.extend(within);
            }
        }
        Ok(())
    }
}
