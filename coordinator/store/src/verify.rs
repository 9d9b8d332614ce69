//! Checking a store: every record can be read and is what it should be, every blob has
//! its digest, and what one record names is there.
//!
//! Reading everything makes RocksDB check its own checksums of every block and blob that
//! is live; its logs and its manifest, which it reads more leniently, are checked here.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs;
use std::path::Path;

use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, RunId};

use crate::chain::Line;
use crate::commit::LeaseRow;
use crate::error::{OpenError, ReadError};
use crate::family::Family;
use crate::keys::{self, Kind};
use crate::lock::SharedLock;
use crate::merge::Arrival;
use crate::reader::{Reader, damaged, decode};
use crate::records::{AttemptRecord, CallProgress, EpisodeRecord, EpisodeState, LayerRecord, RunRecord, StepProgress};
use crate::retention::{self, Dropped};
use crate::{format, logfile, open};

/// More findings than this are counted, not kept: a store that lost a file has thousands.
const MAX_FINDINGS: usize = 1000;

/// What a check of a store found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verification {
    /// How many records each family holds.
    pub records: BTreeMap<&'static str, u64>,
    /// The bytes of all blobs.
    pub blob_bytes: u64,
    /// What is wrong; empty if all is well.
    pub findings: Vec<Finding>,
    /// How many further findings there were.
    pub more: u64,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The family or file.
    pub place: String,
    /// What is wrong.
    pub problem: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.problem)
    }
}

impl Verification {
    fn add(&mut self, place: &str, problem: String) {
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(Finding { place: place.to_owned(), problem });
        } else {
            self.more += 1;
        }
    }

    /// Whether nothing is wrong.
    #[must_use]
    pub const fn is_sound(&self) -> bool {
        self.findings.is_empty()
    }
}

impl Reader {
    /// Checks the whole store. Reads all of it: minutes for a large one. Whoever writes
    /// to it meanwhile is not in the way.
    #[must_use]
    pub fn verify(&self) -> Verification {
        let (found, blobs) = (Verification::default(), HashSet::new());
        let mut check = Check { reader: self, found, blobs, dropped: self.all_dropped() };
        check.files();
        // Blobs first: the others name them.
        check.family(Family::Blobs, Check::blob);
        check.family(Family::Journal, Check::journal);
        check.family(Family::Runs, Check::run);
        check.family(Family::Episodes, Check::episode);
        check.family(Family::Attempts, Check::attempt);
        check.family(Family::Steps, Check::step);
        check.family(Family::Layers, Check::layer);
        check.family(Family::Meta, Check::meta);
        check.family(Family::Ledger, Check::ledger);
        if let Err(error) = self.journal(self.snapshot().map_or(0, |found| found.map_or(0, |found| found.through))) {
            check.found.add(Family::Journal.name(), error.to_string());
        }
        check.found
    }
}

/// Checks the whole store in the folder `path` while no process writes to it, and keeps
/// writers away meanwhile. Nothing in it is changed.
///
/// # Errors
///
/// A process has it open for writing, it is no store, or it is so damaged that it cannot be
/// opened.
pub fn verify(path: &Path) -> Result<Verification, OpenError> {
    open::check_format(path)?;
    let _lock = SharedLock::take(path)?;
    Ok(Reader::open(path)?.verify())
}

struct Check<'a> {
    reader: &'a Reader,
    found: Verification,
    /// The blobs that are there.
    blobs: HashSet<Digest>,
    /// The runs whose pictures were dropped: their records may name what is not there.
    dropped: HashSet<RunId>,
}

type Row<'r> = (&'r [u8], &'r [u8]);

impl Check<'_> {
    /// Every row of a family; `check` says what is wrong with one.
    fn family(&mut self, family: Family, check: impl Fn(&mut Self, Family, Row<'_>) -> Result<(), String>) {
        let mut count = 0;
        let reader = self.reader;
        for row in reader.rocks.rows(family, Vec::new()) {
            match row {
                Ok((key, value)) => {
                    count += 1;
                    let checked = check(self, family, (&key, &value));
                    if let Err(reason) = checked.and_then(|()| self.is_found_by_key(family, &key)) {
                        self.found.add(family.name(), damaged(family, &key, reason).to_string());
                    }
                }
                Err(error) => self.found.add(family.name(), error.to_string()),
            }
        }
        self.found.records.insert(family.name(), count);
    }

    /// That a read of its own finds the row too: it goes through a table's index and
    /// filter, which a scan of everything may not.
    fn is_found_by_key(&self, family: Family, key: &[u8]) -> Result<(), String> {
        match self.reader.rocks.exists(family, key) {
            Ok(true) => Ok(()),
            // Pruned since the scan began.
            Ok(false) if family == Family::Journal => Ok(()),
            Ok(false) => Err("it is there and is not found by its key".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn files(&mut self) {
        let database = self.reader.path().join(open::DATABASE);
        match log_files(&database) {
            Ok(files) => {
                for (path, is_manifest) in files {
                    let place = path.display().to_string();
                    match logfile::scan(&path) {
                        Ok(found) => {
                            // The writer appends meanwhile: a record that is cut off now
                            // may be whole in a moment.
                            if let Some(broken) = found.broken.filter(|broken| broken.damage) {
                                self.found.add(&place, format!("it is broken at byte {}", broken.offset));
                            }
                            if is_manifest && found.records == 0 {
                                self.found.add(&place, "it has no whole record".to_owned());
                            }
                        }
                        // The writer deletes a log once what is in it is elsewhere.
                        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                        Err(error) => self.found.add(&place, format!("cannot read it: {error}")),
                    }
                }
            }
            Err(error) => self.found.add(&database.display().to_string(), format!("cannot list it: {error}")),
        }
    }

    fn blob(&mut self, family: Family, (key, value): Row<'_>) -> Result<(), String> {
        if let Some(digest) = keys::read_digest(Kind::Blob, key) {
            let bytes = format::decode_raw(value)?;
            self.found.blob_bytes += bytes.len() as u64;
            let found = Digest::of(bytes);
            if found != digest {
                return Err(format!("its bytes have digest {found}"));
            }
            let len = self.reader.blob_len(&digest).map_err(|error| error.to_string())?;
            if len != Some(bytes.len() as u64) {
                return Err(format!("it has {} bytes, and {len:?} are noted", bytes.len()));
            }
            self.blobs.insert(digest);
            return Ok(());
        }
        let digest = keys::read_digest(Kind::BlobInfo, key).ok_or("its key is no blob's")?;
        decode::<u64>(family, key, value).map_err(|error| error.to_string())?;
        // Keys of bytes sort before those of their counts.
        self.needs_blob(&digest)
    }

    fn needs_blob(&self, digest: &Digest) -> Result<(), String> {
        // A blob that was put since the scan is not in the set.
        if self.blobs.contains(digest) || self.reader.blob(digest).is_ok_and(|blob| blob.is_some()) {
            Ok(())
        } else {
            Err(format!("it names blob {digest}, which is not there"))
        }
    }

    fn journal(&mut self, _: Family, (key, value): Row<'_>) -> Result<(), String> {
        keys::read_sequence(Kind::Event, key)
            .or_else(|| keys::read_sequence(Kind::Snapshot, key))
            .ok_or("its key is neither an event's nor a snapshot's")?;
        format::decode_raw(value).map(|_| ())
    }

    fn run(&mut self, family: Family, (key, value): Row<'_>) -> Result<(), String> {
        if let Some(run) = keys::read_run(Kind::Dropped, key) {
            decode::<Dropped>(family, key, value).map_err(|error| error.to_string())?;
            return if self.is_arriving(run) { Ok(()) } else { there(self.reader.run(run), "its run") };
        }
        if let Some(run) = keys::read_run(Kind::Arrival, key) {
            let arrival: Arrival = decode(family, key, value).map_err(|error| error.to_string())?;
            if arrival.whole {
                return there(self.reader.run(run), "its run");
            }
            return Err(format!(
                "its copy from {} was cut short and is shown to nobody: merge that store again",
                arrival.from.escape_debug()
            ));
        }
        let run: RunRecord = decode(family, key, value).map_err(|error| error.to_string())?;
        if keys::read_run(Kind::Run, key) != Some(run.id) {
            return Err(format!("it is run {}", run.id));
        }
        self.needs_blob(&run.plan)
    }

    fn episode(&mut self, family: Family, (key, value): Row<'_>) -> Result<(), String> {
        if let Some(id) = keys::read_episode(Kind::Lease, key) {
            let lease: LeaseRow = decode(family, key, value).map_err(|error| error.to_string())?;
            let mut named = lease.attempt.into_iter().chain(lease.head.map(|head| head.parent));
            return named.try_for_each(|number| self.needs_attempt(AttemptId { episode: id, number }));
        }
        let episode: EpisodeRecord = decode(family, key, value).map_err(|error| error.to_string())?;
        if keys::read_episode(Kind::Episode, key) != Some(episode.id) {
            return Err(format!("it is episode {}", episode.id));
        }
        if self.is_arriving(episode.id.run) {
            return self.needs_blob(&episode.plan);
        }
        there(self.reader.run(episode.id.run), "its run")?;
        match episode.state {
            EpisodeState::Active { attempt } | EpisodeState::Settled { attempt: Some(attempt), .. } => {
                self.needs_attempt(attempt)?;
            }
            EpisodeState::Queued | EpisodeState::Settled { attempt: None, .. } => {}
        }
        self.needs_blob(&episode.plan)
    }

    /// Whether the copy of a run was cut short: which of its rows are there says nothing then, and
    /// that is said once.
    fn is_arriving(&self, run: RunId) -> bool {
        self.reader.arrival(run).is_ok_and(|arrival| arrival.is_some_and(|arrival| !arrival.whole))
    }

    fn needs_attempt(&self, id: AttemptId) -> Result<(), String> {
        there(self.reader.attempt(id), &format!("attempt {id}"))
    }

    fn attempt(&mut self, family: Family, (key, value): Row<'_>) -> Result<(), String> {
        if let Some((id, _)) = keys::read_log(key) {
            let digest: Digest = decode(family, key, value).map_err(|error| error.to_string())?;
            self.needs_attempt(id)?;
            if retention::is_droppable(key) && self.may_lack(id.episode.run) {
                return Ok(());
            }
            return self.needs_blob(&digest);
        }
        if let Some(id) = keys::read_attempt(Kind::Line, key) {
            let line: Line = decode(family, key, value).map_err(|error| error.to_string())?;
            return self.line(id, &line);
        }
        let attempt: AttemptRecord = decode(family, key, value).map_err(|error| error.to_string())?;
        if keys::read_attempt(Kind::Attempt, key) != Some(attempt.id) {
            return Err(format!("it is attempt {}", attempt.id));
        }
        there(self.reader.episode(attempt.id.episode), "its episode")?;
        if self.is_arriving(attempt.id.episode.run) {
            return Ok(());
        }
        let Some(finish) = attempt.finish.filter(|finish| !finish.late) else { return Ok(()) };
        let progress = self.reader.progress(attempt.id).map_err(|error| error.to_string())?;
        if progress.next < finish.steps {
            return Err(format!("it ended with {} steps, of which step {} is not there", finish.steps, progress.next));
        }
        Ok(())
    }

    /// What an attempt keeps: steps that came in time, without a gap, and the last of them as said.
    fn line(&self, id: AttemptId, line: &Line) -> Result<(), String> {
        self.needs_attempt(id)?;
        let mut next = 0;
        for link in self.reader.kept(id).map_err(|error| error.to_string())? {
            if link.first != next {
                return Err(format!(
                    "it keeps steps of attempt {} from {} on, not from {next} on",
                    link.attempt, link.first
                ));
            }
            let steps = self.reader.steps(link.attempt, link.first);
            for (number, step) in (link.first..link.end).zip(steps) {
                let step = step.map_err(|error| error.to_string())?;
                let is_last = number + 1 == line.kept.steps;
                if step.number != number || step.late || (is_last && step.digest != line.kept.last) {
                    return Err(format!("it keeps step {number} of attempt {}, which is not there so", link.attempt));
                }
                next = number + 1;
            }
        }
        if next == line.kept.steps {
            Ok(())
        } else {
            Err(format!("it keeps {} steps, of which {next} are there", line.kept.steps))
        }
    }

    fn step(&mut self, family: Family, (key, value): Row<'_>) -> Result<(), String> {
        if let Some(id) = keys::read_attempt(Kind::Progress, key) {
            let progress: StepProgress = decode(family, key, value).map_err(|error| error.to_string())?;
            let kept = self.reader.line(id).map_err(|error| error.to_string())?.map(|line| line.kept);
            let mut found = StepProgress { next: kept.map_or(0, |kept| kept.steps), last: kept.map(|kept| kept.last) };
            for (number, step) in (found.next..progress.next).zip(self.reader.steps(id, 0)) {
                let step = step.map_err(|error| error.to_string())?;
                if step.number != number {
                    return Err(format!("step {number} is not there"));
                }
                found = StepProgress { next: number + 1, last: Some(step.digest) };
            }
            if found != progress {
                return Err(format!("{} steps are said to be there, and are not", progress.next));
            }
            return Ok(());
        }
        let (id, number) = keys::read_step(key).ok_or("its key is no step's")?;
        let step = format::decode_step(number, value)?;
        let found = Digest::of(&step.record_json);
        if found != step.digest {
            return Err(format!("its record has digest {found}"));
        }
        let record = step.record().map_err(|error| error.to_string())?;
        self.needs_attempt(id)?;
        if self.may_lack(id.episode.run) {
            return Ok(());
        }
        self.needs_blob(&record.screen.png)
    }

    fn may_lack(&self, run: RunId) -> bool {
        self.dropped.contains(&run)
    }

    fn ledger(&mut self, family: Family, (key, value): Row<'_>) -> Result<(), String> {
        if let Some(id) = keys::read_attempt(Kind::CallProgress, key) {
            let said: CallProgress = decode(family, key, value).map_err(|error| error.to_string())?;
            let mut found = CallProgress::default();
            for call in self.reader.calls(id, 0) {
                let call = call.map_err(|error| error.to_string())?;
                found.next += u32::from(call.number == found.next);
                found.totals.add(&call.record().map_err(|error| error.to_string())?);
            }
            // A call that was put since this row was read is counted in neither.
            if found != said && self.reader.call_progress(id).ok() == Some(said) {
                return Err(format!("it says {said:?}, and the calls come to {found:?}"));
            }
            return Ok(());
        }
        let (id, number) = keys::read_call(key).ok_or("its key is no call's")?;
        let call = format::decode_call(number, value)?;
        let found = Digest::of(&call.record_json);
        if found != call.digest {
            return Err(format!("its record has digest {found}"));
        }
        let record = call.record().map_err(|error| error.to_string())?;
        if record.number != number {
            return Err(format!("it is call {}", record.number));
        }
        self.needs_attempt(id)?;
        let parts = if self.may_lack(id.episode.run) { &[] } else { record.parts.as_slice() };
        let bodies = [Some(record.request), record.response].into_iter().flatten();
        bodies.chain(parts.iter().copied()).try_for_each(|blob| self.needs_blob(&blob))
    }

    fn layer(&mut self, family: Family, (key, value): Row<'_>) -> Result<(), String> {
        let layer: LayerRecord = decode(family, key, value).map_err(|error| error.to_string())?;
        if keys::read_digest(Kind::Layer, key) == Some(layer.key) {
            Ok(())
        } else {
            Err(format!("it is layer {}", layer.key))
        }
    }

    fn meta(&mut self, family: Family, (key, value): Row<'_>) -> Result<(), String> {
        let known = [Kind::Format, Kind::Incarnation, Kind::Restored].iter().any(|kind| keys::meta(*kind) == key);
        if !known {
            return Err("its key is not known".to_owned());
        }
        decode::<u64>(family, key, value).map(|_| ()).map_err(|error| error.to_string())
    }
}

fn there<T>(found: Result<Option<T>, ReadError>, what: &str) -> Result<(), String> {
    match found {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err(format!("{what} is not there")),
        Err(error) => Err(error.to_string()),
    }
}

/// RocksDB's files that are logs: those of writes, and the manifests.
pub(crate) fn log_files(database: &Path) -> std::io::Result<Vec<(std::path::PathBuf, bool)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(database)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_manifest = name.to_string_lossy().starts_with("MANIFEST-");
        if is_manifest || Path::new(&name).extension().is_some_and(|extension| extension == "log") {
            files.push((entry.path(), is_manifest));
        }
    }
    files.sort();
    Ok(files)
}
