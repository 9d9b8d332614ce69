//! `squeue --json`, as 24.11 and later write it: filters are obeyed, numbers say whether they
//! are set. The plain numbers of earlier versions are read as well.

use std::time::Duration;

use serde::Deserialize;

use super::{Indices, JobState, JobView, Member, text, token_of};
use crate::ids::JobId;
use crate::records::Malformed;

const PROGRAM: &str = "squeue";

/// Words that say more than the state that they accompany.
const TELLING: [&str; 6] = ["COMPLETING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "STOPPED"];

/// What `squeue` is asked, filters aside.
pub(crate) fn arguments() -> Vec<String> {
    vec!["--json".to_owned()]
}

/// Reads the answer.
pub(crate) fn parse(answer: &str) -> Result<Vec<JobView>, Malformed> {
    let malformed = |reason: String| Malformed { program: PROGRAM, reason };
    let answer: Answer = serde_json::from_str(answer).map_err(|error| malformed(error.to_string()))?;
    // With errors, what is there may not be all: missing jobs would look like ended ones.
    if let Some(error) = answer.errors.first() {
        return Err(malformed(format!("it reports {error}")));
    }
    answer.jobs.into_iter().map(|job| view(job).map_err(malformed)).collect()
}

fn view(job: Job) -> Result<JobView, String> {
    let array = job.array_job_id.number().filter(|id| *id > 0);
    let member = match (array, job.array_task_id.number(), job.array_task_string.as_str()) {
        (None, ..) | (Some(_), None, "") => Member::Whole,
        (Some(_), Some(index), _) => Member::Element(narrow(index)?),
        (Some(_), None, rest) => {
            Member::Rest(Indices::parse(rest).ok_or_else(|| format!("job {} has the elements {rest:?}", job.job_id))?)
        }
    };
    Ok(JobView {
        id: array.map_or(Ok(job.job_id), narrow).map(JobId)?,
        member,
        raw_id: JobId(job.job_id),
        token: token_of(&job.name, &job.comment),
        partition: job.partition,
        state: job.job_state.state(),
        reason: text(&job.state_reason),
        nodes: text(&job.nodes),
        submitted: job.submit_time.instant(),
        start: job.start_time.instant(),
        end: job.end_time.instant(),
        time_limit: job.time_limit.number().map(|minutes| Duration::from_secs(minutes.saturating_mul(60))),
        restarts: job.restart_cnt,
    })
}

fn narrow(number: u64) -> Result<u32, String> {
    u32::try_from(number).map_err(|_| format!("{number} is no id or index of a job"))
}

#[derive(Deserialize)]
struct Answer {
    jobs: Vec<Job>,
    #[serde(default)]
    errors: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct Job {
    job_id: u32,
    #[serde(default)]
    array_job_id: Number,
    #[serde(default)]
    array_task_id: Number,
    #[serde(default)]
    array_task_string: String,
    job_state: States,
    #[serde(default)]
    state_reason: String,
    #[serde(default)]
    partition: String,
    #[serde(default)]
    nodes: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    comment: String,
    #[serde(default)]
    submit_time: Number,
    #[serde(default)]
    start_time: Number,
    #[serde(default)]
    end_time: Number,
    #[serde(default)]
    time_limit: Number,
    restart_cnt: u32,
}

/// A number, or that there is none, in the forms of all versions.
#[derive(Default, Deserialize)]
#[serde(untagged)]
enum Number {
    Plain(u64),
    Said {
        set: bool,
        infinite: bool,
        number: u64,
    },
    #[default]
    Null,
}

impl Number {
    fn number(&self) -> Option<u64> {
        match self {
            Self::Plain(number) | Self::Said { set: true, infinite: false, number } => Some(*number),
            Self::Said { .. } | Self::Null => None,
        }
    }

    /// A point in time; 0 stands for none.
    fn instant(&self) -> Option<u64> {
        self.number().filter(|seconds| *seconds > 0)
    }
}

/// A state, and since 23.11 words beside it.
#[derive(Deserialize)]
#[serde(untagged)]
enum States {
    One(String),
    Several(Vec<String>),
}

impl States {
    fn state(&self) -> JobState {
        let words = match self {
            Self::One(word) => std::slice::from_ref(word),
            Self::Several(words) => words,
        };
        let telling = words.iter().find(|word| TELLING.contains(&word.as_str()));
        JobState::parse(telling.or_else(|| words.first()).map_or("", String::as_str))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_answers_of_24_11_and_26_05_say_the_same() {
        let jobs = parse(include_str!("../../tests/fixtures/24.11/squeue.json")).unwrap();
        insta::assert_snapshot!("squeue-24.11", super::super::tests::listing(&jobs));
        let jobs = parse(include_str!("../../tests/fixtures/26.05/squeue.json")).unwrap();
        insta::assert_snapshot!("squeue-26.05", super::super::tests::listing(&jobs));
    }

    #[test]
    fn plain_numbers_and_single_states_are_read() {
        let jobs = parse(include_str!("../../tests/fixtures/22.05/squeue.json")).unwrap();
        insta::assert_snapshot!("squeue-22.05", super::super::tests::listing(&jobs));
    }

    #[test]
    fn a_word_beside_the_state_tells_more() {
        let state = |words: &str| {
            let text = format!(r#"{{"jobs":[{{"job_id":1,"job_state":{words},"restart_cnt":0}}]}}"#);
            parse(&text).unwrap()[0].state.clone()
        };
        assert_eq!(state(r#"["RUNNING","COMPLETING"]"#), JobState::Completing);
        assert_eq!(state(r#"["PENDING","REQUEUED"]"#), JobState::Requeued);
        assert_eq!(state(r#"["RUNNING","UPDATE_DB"]"#), JobState::Running);
        assert_eq!(state("[]"), JobState::Other(String::new()));
    }

    #[test]
    fn an_answer_that_is_not_whole_is_an_error_and_not_a_shorter_answer() {
        for answer in [
            "",
            "{}",
            r#"{"jobs":[{"job_id":1}]}"#,
            r#"{"jobs":[],"errors":[{"error":"Unable to contact slurm controller"}]}"#,
            r#"{"jobs":[{"job_id":1,"job_state":["RUNNING"],"restart_cnt":0}"#,
            r#"{"jobs":[{"job_id":1,"array_job_id":5000000000,"job_state":"RUNNING","restart_cnt":0}]}"#,
            r#"{"jobs":[{"job_id":1,"array_job_id":1,"array_task_string":"?","job_state":"PENDING","restart_cnt":0}]}"#,
        ] {
            assert!(parse(answer).is_err(), "{answer}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = parse(&String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn a_changed_byte_is_read_or_refused(at: usize, byte: u8) {
            let mut answer = include_bytes!("../../tests/fixtures/24.11/squeue.json").to_vec();
            let at = at % answer.len();
            answer[at] = byte;
            let _ = parse(&String::from_utf8_lossy(&answer));
        }
    }
}
