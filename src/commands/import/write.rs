//! Writing what was read: into a store of its own, which is then merged into the one that is meant.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use longhaul_core::agent::Answer;
use longhaul_core::digest::{Digest, DigestBuilder};
use longhaul_core::ids::{AttemptId, EpisodeId, Epoch, RunId, WorkerId};
use longhaul_core::imported::{ImportedEpisode, ImportedRun};
use longhaul_core::notes::AttemptNotes;
use longhaul_core::step::{Screenshot, StepRecord, StepTiming};
use longhaul_core::time::Timestamp;
use longhaul_store::{
    AttemptFinish, AttemptRecord, Blob, Change, EpisodeRecord, EpisodeState, MAX_BLOB_BYTES, OpenOptions, RunRecord,
    Store, Ticket,
};
use serde::Serialize;

use super::{Found, ImportError, Named};
use crate::commands::preflight::not_recorded;
use crate::commands::store;
use crate::error::CliError;

/// The screen of a step whose screen is not recorded, in an episode that has none at all.
const NO_SCREEN: (u16, u16) = (640, 360);

/// So many writes are given to the store before their answers are waited for.
const AT_ONCE: usize = 64;

/// Who had it: nobody of ours.
const NOBODY: WorkerId = WorkerId::from_u64(0);

/// The only lease that an imported attempt ever had.
const EPOCH: Epoch = Epoch(1);

/// A digest of all that was read, whichever way the folder was named.
pub(super) fn content(named: &[Named]) -> Digest {
    let mut digest = DigestBuilder::new("longhaul-imported-1");
    for one in named {
        let name = |path: &PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned());
        let steps = one.found.steps.iter();
        let steps: Vec<_> = steps
            .map(|step| (step.at, &step.text, &step.actions, step.done, step.screen.as_ref().and_then(name)))
            .collect();
        let told = format!("{:?}", (&one.found.outcome, steps, one.found.count, one.found.started));
        digest = digest
            .field("task", one.task.to_string())
            .field("agent", &one.agent)
            .field("sample", one.sample.to_be_bytes())
            .field("place", &one.found.place)
            .field("told", told);
    }
    digest.finish()
}

/// Seconds since 1970 as a point in time.
fn at(seconds: f64) -> Option<Timestamp> {
    let millis = (seconds * 1000.0).round();
    (millis.is_finite() && millis >= 0.0).then_some(Timestamp(millis as u64))
}

/// Writes a run.
pub(super) fn write(into: &Path, run: RunId, name: &str, head: &ImportedRun, named: &[Named]) -> Result<(), CliError> {
    let file = |path: &Path, doing| {
        let path = path.to_owned();
        move |source| CliError::File { path, doing, source }
    };
    let parent = into.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    fs::create_dir_all(parent).map_err(file(parent, "made"))?;
    // Beside the store: screens are many, and there is where space is meant to be.
    let folder = tempfile::Builder::new().prefix(".import-").tempdir_in(parent).map_err(file(parent, "written"))?;
    let own = folder.path().join("store");
    {
        let target = Store::open(&own, &OpenOptions::new(0)).map_err(CliError::Store)?;
        let writing = Writing { store: &target, head, run, waiting: RefCell::default() };
        writing.all(name, named)?;
    }
    match store::merged(std::slice::from_ref(&own), into, &[]) {
        Ok(_) => folder.close().map_err(file(parent, "removed")),
        // A copy that was begun is gone on with from there, and from nowhere else.
        Err(CliError::Merge(source)) => {
            let _kept = folder.keep();
            Err(ImportError::Cut { kept: own, into: into.to_owned(), source }.into())
        }
        Err(error) => Err(error),
    }
}

/// A file that the store takes; none if it is larger.
fn read(path: &Path) -> Result<Option<Vec<u8>>, CliError> {
    let failed = |source| CliError::File { path: path.to_owned(), doing: "read", source };
    let size = fs::metadata(path).map_err(failed)?.len();
    if size > MAX_BLOB_BYTES as u64 {
        return Ok(None);
    }
    fs::read(path).map(Some).map_err(failed)
}

/// A write whose answer is waited for later.
type Waiting = Box<dyn FnOnce() -> Result<(), CliError>>;

/// A store that is written.
struct Writing<'a> {
    store: &'a Store,
    head: &'a ImportedRun,
    run: RunId,
    /// What was given to the store and not answered yet: it writes in the order in which it gets.
    waiting: RefCell<Vec<Waiting>>,
}

/// For `map_err`: a store of our own that does not take what it is given.
fn failed<E: std::error::Error + Send + Sync + 'static>(error: E) -> CliError {
    CliError::Machine(Box::new(error))
}

impl Writing<'_> {
    fn all(&self, name: &str, named: &[Named]) -> Result<(), CliError> {
        let run = RunRecord {
            id: self.run,
            name: name.to_owned(),
            benchmark: self.head.folder.clone(),
            plan: self.put_json(self.head)?,
            episodes: u32::try_from(named.len()).unwrap_or(u32::MAX),
            submitted_at: self.head.at,
            cancelled: None,
            settled_at: Some(self.head.at),
            scopes: Vec::new(),
            file: None,
        };
        self.append(vec![Change::Run(Box::new(run))])?;
        for (index, one) in (0..).zip(named) {
            self.episode(EpisodeId { run: self.run, index }, one)?;
        }
        self.settle()
    }

    /// Takes note of a write; waits for all once there are many.
    fn later<T: 'static, E: std::error::Error + Send + Sync + 'static>(
        &self,
        ticket: Ticket<T, E>,
    ) -> Result<(), CliError> {
        self.waiting.borrow_mut().push(Box::new(move || ticket.wait().map(|_| ()).map_err(failed)));
        if self.waiting.borrow().len() < AT_ONCE { Ok(()) } else { self.settle() }
    }

    fn settle(&self) -> Result<(), CliError> {
        self.waiting.take().into_iter().try_for_each(|wait| wait())
    }

    fn episode(&self, id: EpisodeId, one: &Named) -> Result<(), CliError> {
        let found = &one.found;
        let attempt = AttemptId { episode: id, number: 1 };
        let mut record = AttemptRecord {
            id: attempt,
            epoch: EPOCH,
            worker: NOBODY,
            hostname: String::new(),
            started: found.started.and_then(at).unwrap_or_default(),
            finish: None,
        };
        let lease = Change::Lease { attempt, epoch: EPOCH, resumes: false };
        self.append(vec![Change::Attempt(Box::new(record.clone())), lease])?;
        let mut notes = found.notes.clone();
        let (steps, last_step) = self.steps(attempt, found, &mut notes)?;
        for (name, path) in &found.logs {
            if let Some(bytes) = read(path)? {
                let blob = self.put(bytes)?;
                self.later(self.store.put_log(attempt, EPOCH, name.clone(), blob))?;
            }
        }
        // It is settled in this store from now on, where it is not known since when it is.
        let ended = found.ended.and_then(at).filter(|at| at.0 > 0);
        record.finish = Some(AttemptFinish {
            at: ended.unwrap_or(self.head.at),
            end: found.outcome.end(),
            steps,
            last_step,
            notes: AttemptNotes { warnings: notes.clone(), ..AttemptNotes::default() },
            late: false,
        });
        let plan = ImportedEpisode {
            imported: found.form,
            folder: found.place.clone(),
            env_id: found.env_id.clone(),
            task_id: found.task_id.clone(),
            seed: found.seed,
            steps: found.count,
            started: found.started.and_then(at),
            ended,
            scored_by: match &found.outcome {
                super::Outcome::Verdict(verdict) => super::scored::scored_by(&verdict.details),
                super::Outcome::Unverified { .. } => None,
            },
            notes,
        };
        let episode = EpisodeRecord {
            id,
            task: one.task.clone(),
            agent: one.agent.clone(),
            sample: one.sample,
            plan: self.put_json(&plan)?,
            attempts: 1,
            state: EpisodeState::Settled {
                settlement: found.outcome.settlement(),
                at: ended.unwrap_or(self.head.at),
                attempt: Some(attempt),
            },
            earlier: Vec::new(),
        };
        self.append(vec![
            Change::Attempt(Box::new(record)),
            Change::LeaseOver { episode: id },
            Change::Episode(Box::new(episode)),
        ])
    }

    /// The steps of an episode, its first observation before them: how many, and the last one's
    /// digest. A screen that is not recorded is a picture that says so.
    fn steps(
        &self,
        attempt: AttemptId,
        found: &Found,
        notes: &mut Vec<String>,
    ) -> Result<(u32, Option<Digest>), CliError> {
        if found.steps.is_empty() && found.first.is_none() {
            return Ok((0, None));
        }
        let paths: Vec<_> = std::iter::once(&found.first).chain(found.steps.iter().map(|step| &step.screen)).collect();
        let mut screens: BTreeMap<usize, Screenshot> = BTreeMap::new();
        let mut broken = 0;
        for (number, path) in paths.iter().enumerate() {
            let Some(path) = path else { continue };
            match read(path)?.and_then(|bytes| Some((size(&bytes)?, bytes))) {
                Some(((width, height), bytes)) => {
                    screens.insert(number, Screenshot { png: self.put(bytes)?, width, height });
                }
                None => broken += 1,
            }
        }
        if broken > 0 {
            notes.push(format!("screens that are no PNG that can be read: {broken}"));
        }
        let absent = paths.len() - screens.len();
        let mut blank = None;
        if absent > 0 {
            notes.push(format!("screens that are not recorded: {absent}; a grey picture that says so stands for each"));
            let (width, height) = screens.values().next().map_or(NO_SCREEN, |one| (one.width, one.height));
            let png = not_recorded(width, height).map_err(failed)?;
            blank = Some(Screenshot { png: self.put(png)?, width, height });
        }
        let mut last = None;
        for (number, index) in (0_u32..).zip(0..paths.len()) {
            let Some(screen) = screens.get(&index).copied().or(blank) else { continue };
            let step = index.checked_sub(1).and_then(|index| found.steps.get(index));
            let record = StepRecord {
                number,
                at: step.map_or(found.started, |step| step.at).and_then(at).unwrap_or_default(),
                answer: step.map(|step| Answer {
                    text: step.text.clone(),
                    actions: step.actions.clone(),
                    done: step.done,
                }),
                // What became of each action is not recorded.
                outcomes: Vec::new(),
                screen,
                rested: false,
                timing: StepTiming::default(),
                calls: Vec::new(),
                told: None,
                unreadable: Vec::new(),
                round: None,
                stirred: Vec::new(),
            };
            let json = serde_json::to_vec(&record).map_err(failed)?;
            last = Some(Digest::of(&json));
            self.later(self.store.put_step(attempt, EPOCH, number, json))?;
        }
        Ok((u32::try_from(paths.len()).unwrap_or(u32::MAX), last))
    }

    fn append(&self, changes: Vec<Change>) -> Result<(), CliError> {
        self.later(self.store.append(Vec::new(), changes))
    }

    fn put(&self, bytes: Vec<u8>) -> Result<Digest, CliError> {
        let blob = Blob::new(bytes);
        let digest = *blob.digest();
        self.later(self.store.put_blobs(vec![blob]))?;
        Ok(digest)
    }

    fn put_json<T: Serialize>(&self, value: &T) -> Result<Digest, CliError> {
        self.put(serde_json::to_vec(value).map_err(failed)?)
    }
}

/// The size of a picture, if it is a PNG that can be read.
fn size(png: &[u8]) -> Option<(u16, u16)> {
    let reader = png::Decoder::new(std::io::Cursor::new(png)).read_info().ok()?;
    let (width, height) = reader.info().size();
    Some((u16::try_from(width).ok()?, u16::try_from(height).ok()?)).filter(|(width, height)| *width > 0 && *height > 0)
}
