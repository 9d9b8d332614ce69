//! What `squeue` says of this user's jobs, whichever way this version of Slurm says it best.

mod fixed;
mod indices;
mod json;
mod state;

use std::time::Duration;

pub use indices::Indices;
pub use state::JobState;

pub(crate) use fixed::{arguments as fixed_arguments, parse as parse_fixed};
pub(crate) use json::{arguments as json_arguments, parse as parse_json};

use crate::ids::{JobId, JobRef};
use crate::token::{Owner, Token};

/// Which part of a submission a record of `squeue` is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Member {
    /// All of it: a job that is no array, or the rest of an array of which Slurm no longer
    /// says which elements (those that were cancelled before they began).
    Whole,
    /// One element of an array.
    Element(u32),
    /// The elements that have not begun; Slurm has one record for all of them.
    Rest(Indices),
}

/// A job, an element of an array, or the elements of an array that have not begun.
///
/// Points in time are seconds since the Unix epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobView {
    /// The job; for an element, the id of the whole array.
    pub id: JobId,
    /// Which part of it.
    pub member: Member,
    /// The id of its own that Slurm gives to an element when it begins: `SLURM_JOB_ID` in it.
    /// One element has the id of the whole array.
    pub raw_id: JobId,
    /// The submission, if it is one of Longhaul's.
    pub token: Option<Token>,
    /// Its partition, or several with commas between them.
    pub partition: String,
    /// How far it is.
    pub state: JobState,
    /// Why it waits or ended so, in Slurm's words; none if Slurm gives no reason.
    pub reason: Option<String>,
    /// Its node, as Slurm names it; none before it begins.
    pub nodes: Option<String>,
    /// When it was submitted.
    pub submitted: Option<u64>,
    /// When it began; for one that waits, when the scheduler expects it to.
    pub start: Option<u64>,
    /// When it ended, or will be ended.
    pub end: Option<u64>,
    /// How long it may run; none without a limit.
    pub time_limit: Option<Duration>,
    /// How often Slurm started it again.
    pub restarts: u32,
}

impl JobView {
    /// What names it to Slurm. For the rest of an array that is the whole array: Slurm has no
    /// shorter name for it.
    #[must_use]
    pub fn reference(&self) -> JobRef {
        match self.member {
            Member::Element(index) => JobRef::element(self.id, index),
            Member::Whole | Member::Rest(_) => JobRef::whole(self.id),
        }
    }

    /// How many allocations it stands for: more than one for the rest of an array.
    #[must_use]
    pub fn count(&self) -> u64 {
        match &self.member {
            Member::Rest(indices) => indices.count(),
            Member::Whole | Member::Element(_) => 1,
        }
    }
}

/// All jobs of this user that Slurm knows: those that wait and run, and those that ended a
/// short while ago (`MinJobAge`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// In the order of the answer.
    pub jobs: Vec<JobView>,
}

impl Queue {
    /// Those of one submission.
    pub fn of(&self, token: &Token) -> impl Iterator<Item = &JobView> {
        self.jobs.iter().filter(move |job| job.token.as_ref() == Some(token))
    }

    /// Those of one coordinator.
    pub fn owned_by(&self, owner: &Owner) -> impl Iterator<Item = &JobView> {
        self.jobs.iter().filter(move |job| job.token.as_ref().is_some_and(|token| token.owner() == owner))
    }
}

/// The name comes first: a site's submit filter may write comments of its own.
pub(crate) fn token_of(name: &str, comment: &str) -> Option<Token> {
    name.parse().or_else(|_| comment.parse()).ok()
}

/// Slurm's several ways to say that there is no text.
pub(crate) fn text(value: &str) -> Option<String> {
    (!matches!(value, "" | "None" | "N/A" | "(null)" | "none")).then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One line for each job, for snapshots.
    pub(super) fn listing(jobs: &[JobView]) -> String {
        let line = |job: &JobView| {
            let member = match &job.member {
                Member::Whole => "whole".to_owned(),
                Member::Element(index) => format!("element {index}"),
                Member::Rest(indices) => format!("rest {indices} of {} at once {:?}", job.count(), indices.at_once()),
            };
            format!(
                "{} ({member}, raw {}) {} {:?} {:?} on {:?}, submitted {:?}, {:?} to {:?}, limit {:?}, restarts {}, in {}\n",
                job.reference(),
                job.raw_id,
                job.state,
                job.token.as_ref().map(ToString::to_string),
                job.reason,
                job.nodes,
                job.submitted,
                job.start,
                job.end,
                job.time_limit,
                job.restarts,
                job.partition,
            )
        };
        jobs.iter().map(line).collect()
    }

    #[test]
    fn jobs_are_found_by_submission_and_by_coordinator() {
        let mut job =
            parse_fixed(include_str!("../../tests/fixtures/22.05/squeue.txt"), "~0000000000000007~").unwrap().remove(0);
        let token = |owner, serial| Token::new(Owner::new(owner).unwrap(), serial);
        let mut jobs = Vec::new();
        for known in [None, Some(token("a", 1)), Some(token("a", 2)), Some(token("b", 1))] {
            job.token = known;
            jobs.push(job.clone());
        }
        let queue = Queue { jobs };
        assert_eq!(queue.of(&token("a", 2)).count(), 1);
        assert_eq!(queue.of(&token("b", 2)).count(), 0);
        assert_eq!(queue.owned_by(&Owner::new("a").unwrap()).count(), 2);
    }
}
