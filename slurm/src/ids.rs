//! Job ids, and what names a job or an element of an array to Slurm.

use std::fmt;

/// A number that Slurm gave to a job; it may give it out again (see [`crate::Token`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub u32);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A job, or one element of an array, as `scancel` and `sacct` take it: `10` or `10_3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobRef {
    /// The job; for an element, the id of the whole array.
    pub id: JobId,
    /// The index in the array.
    pub element: Option<u32>,
}

impl JobRef {
    /// A whole job: all elements, if it is an array.
    #[must_use]
    pub fn whole(id: JobId) -> Self {
        Self { id, element: None }
    }

    /// One element of an array.
    #[must_use]
    pub fn element(id: JobId, index: u32) -> Self {
        Self { id, element: Some(index) }
    }
}

impl fmt::Display for JobRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.element {
            Some(index) => write!(f, "{}_{index}", self.id),
            None => self.id.fmt(f),
        }
    }
}

/// `None` where Slurm writes that there is none, or something else stands there.
pub(crate) fn job_id(text: &str) -> Option<JobId> {
    text.parse().ok().filter(|id| *id > 0).map(JobId)
}
