//! Who serves a store: one file in its folder, by which the generations of a coordinator that runs
//! in allocations follow one another, and what each of them does next.
//!
//! The store's own lock lets one process write. Where the disk is shared, a lock holds as far as
//! the site makes it; so a generation begins only when the one before has said that it has closed the
//! store, or Slurm that its job is over, and one that finds a later one in the file stops. Of two
//! jobs of one generation only the first begins.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The file's name in the store's folder.
const FILE: &str = "coordinator.json";

/// The generation that serves a store, or did last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Counts up.
    pub(crate) generation: u64,
    /// The name of its job.
    pub(crate) token: String,
    /// Slurm's id of that job, for people.
    pub(crate) job: String,
    /// Whether it has closed the store, and does nothing any more.
    pub(crate) ended: bool,
    /// Whether no other one is to follow it: it was cancelled, or nobody needed it.
    #[serde(default)]
    pub(crate) closed: bool,
}

impl Record {
    /// Reads it; none where no coordinator ever ran in an allocation.
    pub(crate) fn read(store: &Path) -> io::Result<Option<Self>> {
        match fs::read(store.join(FILE)) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes it, so that a reader sees the whole of it or the one before.
    pub(crate) fn write(&self, store: &Path) -> io::Result<()> {
        let beside = store.join(format!("{FILE}.{}", self.generation));
        let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        file.sync_all()?;
        fs::rename(&beside, store.join(FILE))?;
        File::open(store)?.sync_all()
    }
}

/// Whether an allocation serves a store, as far as its file says.
pub(crate) fn is_served(store: &Path) -> bool {
    Record::read(store).ok().flatten().is_some_and(|record| !record.ended)
}

/// A job of a generation that is not over, as Slurm lists it. A generation may have more than one:
/// an answer of sbatch's was lost, and the job was there all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    /// The generation.
    pub(crate) generation: u64,
    /// Slurm's id of the job. Slurm counts up.
    pub(crate) job: u32,
    /// Whether it is being cleared away, and takes no turn any more.
    pub(crate) ending: bool,
}

/// What a generation does next to get the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// A later one serves or served, or another job has its turn: nothing is left to do.
    GiveUp,
    /// It is not known yet whose turn it is.
    Wait,
    /// It is its turn.
    Begin,
    /// The one before has the store: it is asked for it.
    Ask,
}

impl Next {
    /// For the job `own`, when the file says that and Slurm lists those; none if Slurm does not answer.
    pub(crate) fn of(own: Turn, record: Option<&Record>, live: Option<&[Turn]>) -> Self {
        let written = record.and_then(|record| record.job.parse::<u32>().ok());
        if let Some(record) = record {
            let is_own = record.generation == own.generation && written == Some(own.job);
            if record.generation > own.generation || record.closed && !is_own {
                return Self::GiveUp;
            }
            // Slurm has started it again.
            if is_own {
                return Self::Begin;
            }
        }
        // Who does not know waits, and lets the one before serve: an allocation that is cut off may still
        // write, and so may another job of this generation.
        let Some(live) = live else { return Self::Wait };
        let before = record.filter(|record| record.generation < own.generation);
        let is_rival = |other: &&Turn| {
            other.generation == own.generation
                && other.job != own.job
                && (other.job < own.job || before.is_none() && written == Some(other.job))
        };
        let mut rivals = live.iter().filter(is_rival).peekable();
        if rivals.peek().is_some() {
            return if rivals.all(|rival| rival.ending) { Self::Wait } else { Self::GiveUp };
        }
        match before {
            Some(before) if !before.ended && live.iter().any(|job| job.generation == before.generation) => Self::Ask,
            _ => Self::Begin,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(generation: u64, job: u32) -> Turn {
        Turn { generation, job, ending: false }
    }

    fn record(generation: u64, ended: bool) -> Record {
        Record { generation, token: "longhaul.serve.1".to_owned(), job: "7".to_owned(), ended, closed: false }
    }

    #[test]
    fn a_generation_begins_only_when_the_one_before_is_known_to_be_over() {
        let (own, before) = (turn(5, 8), turn(4, 7));
        for (found, live, next) in [
            (None, Some(vec![own]), Next::Begin),
            (Some(record(4, true)), Some(vec![before, own]), Next::Begin),
            (Some(record(4, false)), Some(vec![own]), Next::Begin),
            (Some(record(4, false)), Some(vec![before, own]), Next::Ask),
            (Some(record(4, false)), None, Next::Wait),
            (Some(record(6, false)), Some(vec![own]), Next::GiveUp),
            (Some(record(6, true)), None, Next::GiveUp),
        ] {
            assert_eq!(Next::of(own, found.as_ref(), live.as_deref()), next, "{found:?} {live:?}");
        }
        // One that was still in the queue when the last one was cancelled.
        let closed = Record { closed: true, ..record(4, true) };
        assert_eq!(Next::of(own, Some(&closed), Some(&[own])), Next::GiveUp);
    }

    #[test]
    fn of_two_jobs_of_one_generation_only_the_first_begins() {
        let (own, first, late) = (turn(5, 8), turn(5, 7), turn(5, 9));
        let ending = Turn { ending: true, ..first };
        let begun = |job: &str| Some(Record { job: job.to_owned(), ..record(5, false) });
        for (found, live, next) in [
            (None, Some(vec![own, late]), Next::Begin),
            (None, Some(vec![first, own]), Next::GiveUp),
            (Some(record(4, true)), Some(vec![first, own]), Next::GiveUp),
            (None, Some(vec![ending, own]), Next::Wait),
            (None, None, Next::Wait),
            // The other one serves, or did.
            (begun("7"), Some(vec![first, own]), Next::GiveUp),
            (begun("9"), Some(vec![own, late]), Next::GiveUp),
            (begun("7"), None, Next::Wait),
            (begun("7"), Some(vec![own]), Next::Begin),
            // Slurm has started this one again.
            (begun("8"), None, Next::Begin),
        ] {
            assert_eq!(Next::of(own, found.as_ref(), live.as_deref()), next, "{found:?} {live:?}");
        }
    }

    #[test]
    fn a_record_reads_back_and_what_is_none_is_no_record() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(Record::read(folder.path()).expect("readable").is_none() && !is_served(folder.path()));
        record(1, false).write(folder.path()).expect("written");
        assert!(is_served(folder.path()));
        record(2, true).write(folder.path()).expect("written");
        assert_eq!(Record::read(folder.path()).expect("readable"), Some(record(2, true)));
        assert!(!is_served(folder.path()));
        fs::write(folder.path().join(FILE), "nothing").expect("written");
        assert!(Record::read(folder.path()).is_err());
    }
}
