//! What `sacct` remembers, where a site has accounting.

use crate::commands::Output;
use crate::ids::{JobId, JobRef, job_id};
use crate::queue::{Indices, JobState, Member, text, token_of};
use crate::records::{self, Malformed};
use crate::time;
use crate::token::Token;

const PROGRAM: &str = "sacct";

/// In the order of the destructuring in [`life`].
const FIELDS: [&str; 11] =
    ["JobID", "JobIDRaw", "State", "ExitCode", "Reason", "NodeList", "Submit", "Start", "End", "JobName", "Comment"];

/// What accounting says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accounting {
    /// This cluster keeps no accounts.
    Off,
    /// One record for each life of each job asked for that it knows. It may lag behind.
    Lives(Vec<Life>),
}

/// One life of a job or of an element: each restart begins another.
///
/// Points in time are seconds since the Unix epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    /// The job; for an element, the id of the whole array.
    pub id: JobId,
    /// Which part of it.
    pub member: Member,
    /// The id of its own that Slurm gave to the element.
    pub raw_id: JobId,
    /// The submission, if it is one of Longhaul's.
    pub token: Option<Token>,
    /// How far it came. `REQUEUED` ended a life that was followed by another.
    pub state: JobState,
    /// The exit code of the script.
    pub exit_code: u32,
    /// The signal that ended the script; 0 for none.
    pub signal: u32,
    /// Why it waited or ended so, in Slurm's words.
    pub reason: Option<String>,
    /// Its node, as Slurm names it.
    pub nodes: Option<String>,
    /// When it was submitted, or put back into the queue.
    pub submitted: Option<u64>,
    /// When it began.
    pub start: Option<u64>,
    /// When it ended.
    pub end: Option<u64>,
}

/// What `sacct` is asked.
pub(crate) fn arguments(jobs: &[JobRef], separator: &str) -> Vec<String> {
    let jobs = jobs.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    vec![
        "--noheader".to_owned(),
        "--allocations".to_owned(),
        "--duplicates".to_owned(),
        "--parsable".to_owned(),
        format!("--delimiter={separator}"),
        format!("--format={}", FIELDS.join(",")),
        format!("--jobs={jobs}"),
    ]
}

/// Whether an answer says that there is no accounting.
pub(crate) fn is_off(output: &Output) -> bool {
    [&output.stderr, &output.stdout].iter().any(|said| said.contains("accounting storage is disabled"))
}

/// Reads the answer.
pub(crate) fn parse(answer: &str, separator: &str) -> Result<Vec<Life>, Malformed> {
    records::split::<{ FIELDS.len() }>(PROGRAM, answer, separator)?
        .into_iter()
        .map(|record| {
            life(record).ok_or_else(|| Malformed {
                program: PROGRAM,
                reason: format!("{:?} and {:?} name no job", record[0], record[1]),
            })
        })
        .collect()
}

fn life(record: [&str; FIELDS.len()]) -> Option<Life> {
    let [id, raw, state, exit, reason, nodes, submitted, start, end, name, comment] = record;
    let (id, member) = match id.split_once('_') {
        None => (id, Member::Whole),
        Some((id, element)) => match element.parse() {
            Ok(index) => (id, Member::Element(index)),
            Err(_) => (id, Member::Rest(Indices::parse(element)?)),
        },
    };
    let (exit_code, signal) = exit.split_once(':')?;
    Some(Life {
        id: job_id(id)?,
        member,
        raw_id: job_id(raw)?,
        token: token_of(name, comment),
        state: JobState::parse(state),
        exit_code: exit_code.parse().ok()?,
        signal: signal.parse().ok()?,
        reason: text(reason),
        nodes: text(nodes).filter(|nodes| nodes != "None assigned"),
        submitted: time::instant(submitted),
        start: time::instant(start),
        end: time::instant(end),
    })
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use proptest::prelude::*;

    use super::*;

    const SEPARATOR: &str = "~0000000000000007~";

    #[test]
    fn the_answer_of_22_05_is_read() {
        let lives = parse(include_str!("../tests/fixtures/22.05/sacct.txt"), SEPARATOR).unwrap();
        let mut listing = String::new();
        for life in lives {
            writeln!(
                listing,
                "{} {:?} raw {}: {} exit {} signal {} {:?} on {:?}, {:?} {:?} {:?}, token {:?}",
                life.id,
                life.member,
                life.raw_id,
                life.state,
                life.exit_code,
                life.signal,
                life.reason,
                life.nodes,
                life.submitted,
                life.start,
                life.end,
                life.token.map(|token| token.to_string()),
            )
            .unwrap();
        }
        insta::assert_snapshot!(listing);
    }

    #[test]
    fn a_cluster_without_accounting_says_so() {
        let said = |stderr: &str| Output { code: Some(1), stdout: String::new(), stderr: stderr.to_owned() };
        assert!(is_off(&said("Slurm accounting storage is disabled\n")));
        assert!(!is_off(&said("sacct: error: Problem talking to the database: Connection refused\n")));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = parse(&String::from_utf8_lossy(&bytes), SEPARATOR);
        }

        #[test]
        fn any_fields_are_read_or_refused(fields in proptest::collection::vec("[-0-9A-Z:_%,\\[\\]]{0,12}", FIELDS.len())) {
            let answer = fields.iter().map(|field| format!("{field}{SEPARATOR}")).collect::<String>() + "\n";
            let _ = parse(&answer, SEPARATOR);
        }
    }
}
