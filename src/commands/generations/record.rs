//! Who serves a store: one file in its folder, by which the generations of a coordinator that runs
//! in allocations follow one another, and what each of them does next.
//!
//! The store's own lock lets one process write. Where the disk is shared, a lock holds as far as
//! the site makes it; so a generation begins only when the one before has said that it has closed the
//! store, or Slurm that its job is over, and one that finds a later one in the file stops.

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

/// What Slurm says of the job of the generation before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Job {
    /// It waits, runs or ends.
    There,
    /// It is over, or not known any more.
    Over,
    /// Nothing: Slurm does not answer.
    Unknown,
}

/// What a generation does next to get the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// A later one serves or served: nothing is left to do.
    GiveUp,
    /// It is its turn.
    Begin,
    /// The one before has the store: it is asked for it.
    Ask,
}

impl Next {
    /// For the generation `own`, when the file says that; `job` is that of the file's generation.
    pub(crate) fn of(own: u64, record: Option<&Record>, job: Job) -> Self {
        match record {
            Some(record) if record.generation > own || record.generation < own && record.closed => Self::GiveUp,
            Some(record) if record.generation < own && !record.ended && job != Job::Over => Self::Ask,
            _ => Self::Begin,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(generation: u64, ended: bool) -> Record {
        Record { generation, token: "longhaul.serve.1".to_owned(), job: "7".to_owned(), ended, closed: false }
    }

    #[test]
    fn a_generation_begins_only_when_the_one_before_is_known_to_be_over() {
        for (found, job, next) in [
            (None, Job::Unknown, Next::Begin),
            (Some(record(4, true)), Job::There, Next::Begin),
            (Some(record(4, false)), Job::Over, Next::Begin),
            (Some(record(4, false)), Job::There, Next::Ask),
            // Who does not know waits: an allocation that is cut off may still write.
            (Some(record(4, false)), Job::Unknown, Next::Ask),
            // Slurm has started this one again.
            (Some(record(5, false)), Job::There, Next::Begin),
            (Some(record(6, false)), Job::Over, Next::GiveUp),
            (Some(record(6, true)), Job::Over, Next::GiveUp),
        ] {
            assert_eq!(Next::of(5, found.as_ref(), job), next, "{found:?} {job:?}");
        }
        // One that was still in the queue when the last one was cancelled.
        let closed = Record { closed: true, ..record(4, true) };
        assert_eq!(Next::of(5, Some(&closed), Job::Over), Next::GiveUp);
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
