//! `squeue` with a format of ours. For versions whose JSON is no use: that of 22.05 ignores
//! every filter, so it has all jobs of all users.

use super::{Indices, JobState, JobView, Member, text, token_of};
use crate::ids::job_id;
use crate::records::{self, Malformed};
use crate::time;

const PROGRAM: &str = "squeue";

/// In the order of the destructuring in [`view`].
const FIELDS: [&str; 14] = [
    "JobID",
    "ArrayJobID",
    "ArrayTaskID",
    "State",
    "Reason",
    "Partition",
    "NodeList",
    "SubmitTime",
    "StartTime",
    "EndTime",
    "TimeLimit",
    "RestartCnt",
    "Name",
    "Comment",
];

/// What `squeue` is asked, filters aside.
pub(crate) fn arguments(separator: &str) -> Vec<String> {
    vec!["--noheader".to_owned(), format!("--Format={}", records::format_argument(&FIELDS, separator))]
}

/// Reads the answer.
pub(crate) fn parse(answer: &str, separator: &str) -> Result<Vec<JobView>, Malformed> {
    records::split::<{ FIELDS.len() }>(PROGRAM, answer, separator)?
        .into_iter()
        .map(|record| {
            view(record).ok_or_else(|| Malformed {
                program: PROGRAM,
                reason: format!("{:?}, {:?}, {:?} names no job", record[0], record[1], record[2]),
            })
        })
        .collect()
}

/// `None` if what must be a number is none: a job whose record cannot be read must not look
/// like one that is gone.
fn view(record: [&str; FIELDS.len()]) -> Option<JobView> {
    let [raw, array, task, state, reason, partition, nodes, submitted, start, end, limit, restarts, name, comment] =
        record;
    let member = match task {
        "N/A" | "" => Member::Whole,
        _ => match task.parse() {
            Ok(index) => Member::Element(index),
            Err(_) => Member::Rest(Indices::parse(task)?),
        },
    };
    Some(JobView {
        id: job_id(array).or_else(|| job_id(raw))?,
        member,
        raw_id: job_id(raw)?,
        token: token_of(name, comment),
        partition: partition.to_owned(),
        state: JobState::parse(state),
        reason: text(reason),
        nodes: text(nodes),
        submitted: time::instant(submitted),
        start: time::instant(start),
        end: time::instant(end),
        time_limit: time::duration(limit),
        restarts: restarts.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::ids::JobId;

    /// The separator that the answers were asked with.
    const SEPARATOR: &str = "~0000000000000007~";

    #[test]
    fn the_answer_of_22_05_is_read() {
        let jobs = parse(include_str!("../../tests/fixtures/22.05/squeue.txt"), SEPARATOR).unwrap();
        insta::assert_snapshot!(super::super::tests::listing(&jobs));
    }

    #[test]
    fn names_and_comments_are_only_data() {
        let record = |name: &str, comment: &str| {
            ["9", "9", "N/A", "RUNNING", "None", "p", "n1", "5", "6", "7", "1:00:00", "0", name, comment]
                .map(|field| format!("{field}{SEPARATOR}"))
                .concat()
                + "\n"
        };
        let hostile = "8~~8~N/A~\n1|2|3\u{1b}[31m";
        let ours = "longhaul.a.0000000000000001";
        let answer = record(hostile, ours) + &record(ours, hostile) + &record(hostile, hostile);
        let jobs = parse(&answer, SEPARATOR).unwrap();
        assert_eq!(jobs.len(), 3);
        assert_eq!(jobs[0].token, ours.parse().ok());
        assert_eq!(jobs[1].token, ours.parse().ok());
        assert_eq!(jobs[2].token, None);
        assert!(jobs.iter().all(|job| job.id == JobId(9) && job.time_limit == Some(Duration::from_secs(3600))));
    }

    #[test]
    fn a_record_that_names_no_job_is_an_error_and_not_a_missing_job() {
        for (at, value) in [(0, "x"), (2, "some"), (11, "")] {
            let mut fields = ["9", "9", "N/A", "RUNNING", "", "", "", "", "", "", "", "0", "", ""];
            fields[at] = value;
            let answer = fields.map(|field| format!("{field}{SEPARATOR}")).concat() + "\n";
            assert!(parse(&answer, SEPARATOR).is_err(), "{at}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = parse(&String::from_utf8_lossy(&bytes), SEPARATOR);
        }

        #[test]
        fn any_fields_are_read_or_refused(fields in proptest::collection::vec("[-0-9A-Z/%,a\n~]{0,12}", FIELDS.len())) {
            let answer = fields.iter().map(|field| format!("{field}{SEPARATOR}")).collect::<String>() + "\n";
            let _ = parse(&answer, SEPARATOR);
        }
    }
}
