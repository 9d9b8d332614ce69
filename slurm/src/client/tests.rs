//! What cannot be had from a cluster at will: other versions, noisy plugins, lost answers. The
//! rest is asked of a real one, in the whole-system tests.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use super::*;
use crate::failure::Rejection;
use crate::token::Owner;

/// Gives one answer after the other, and remembers what was asked.
#[derive(Debug, Default)]
struct Answers {
    answers: Mutex<VecDeque<Result<Output, RunError>>>,
    asked: Mutex<Vec<String>>,
}

impl Commands for &Answers {
    async fn run(&self, invocation: Invocation) -> Result<Output, RunError> {
        let asked = format!("{} {}", invocation.program, invocation.args.join(" "));
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(asked);
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).pop_front().expect("an answer for each question")
    }
}

impl Answers {
    fn to_come(answers: impl IntoIterator<Item = Result<Output, RunError>>) -> Self {
        Self { answers: Mutex::new(answers.into_iter().collect()), asked: Mutex::default() }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn said(code: Option<i32>, stdout: &str, stderr: &str) -> Result<Output, RunError> {
    Ok(Output { code, stdout: stdout.to_owned(), stderr: stderr.to_owned() })
}

fn version(text: &str) -> Result<Output, RunError> {
    said(Some(0), &format!("slurm {text}\n"), "")
}

/// What becomes of a submission that is answered like this.
async fn submitted(answer: Result<Output, RunError>) -> Result<JobId, SubmitError> {
    let answers = Answers::to_come([version("22.05.8"), answer]);
    Client::connect(&answers, 7, Limits::default()).await.unwrap().submit("#!/bin/bash\n").await
}

#[tokio::test]
async fn an_id_is_found_among_what_plugins_say() {
    for stdout in ["7\n", "7;cluster\n", "Welcome!\nYou have 3 hours left\n7\n", "7\n\n"] {
        assert_eq!(submitted(said(Some(0), stdout, "")).await.unwrap(), JobId(7), "{stdout:?}");
    }
}

#[tokio::test]
async fn a_submission_that_may_have_arrived_is_told_from_one_that_has_not() {
    let limit = Duration::from_secs(1);
    for unsure in [
        Err(RunError::TimedOut { program: SBATCH, limit }),
        said(None, "", ""),
        said(Some(0), "", ""),
        said(Some(0), "no id\n", ""),
        said(Some(1), "", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"),
        said(
            Some(1),
            "",
            "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)\n",
        ),
    ] {
        let what = format!("{unsure:?}");
        assert!(matches!(submitted(unsure).await, Err(SubmitError::Unsure(_))), "{what}");
    }
    for no in [
        Err(RunError::NotFound { program: SBATCH }),
        said(Some(1), "", "sbatch: error: Batch job submission failed: Invalid qos specification\n"),
        said(
            Some(1),
            "",
            "sbatch: error: Batch job submission failed: Rate limit exceeded, please retry momentarily\n",
        ),
        said(Some(1), "", "sbatch: fatal: Could not establish a configuration source\n"),
    ] {
        let what = format!("{no:?}");
        assert!(matches!(submitted(no).await, Err(SubmitError::No(_))), "{what}");
    }
}

#[tokio::test]
async fn each_version_is_asked_in_the_way_that_it_answers_best() {
    for (is, json) in [("22.05.8", false), ("23.11.10", false), ("24.11.5", true), ("26.05.5", true)] {
        let answer = if json { r#"{"jobs":[],"errors":[]}"# } else { "" };
        let answers = Answers::to_come([version(is), said(Some(0), answer, "")]);
        let client = Client::connect(&answers, 7, Limits::default()).await.unwrap();
        assert_eq!(client.queue().await.unwrap(), Queue::default());
        let asked = answers.asked().pop().unwrap();
        assert_eq!(asked.contains("--json"), json, "{asked}");
        assert!(asked.starts_with("squeue ") && asked.ends_with(" --all --me --states=all"), "{asked}");
    }
}

#[tokio::test]
async fn every_cancellation_is_bound_to_the_submission() {
    let token = Token::new(Owner::new("a").unwrap(), 1);
    let jobs: Vec<JobRef> = (0..501).map(|index| JobRef::element(JobId(9), index)).collect();
    let done = || said(Some(0), "", "");
    let answers = Answers::to_come([version("22.05.8"), done(), done(), done(), done()]);
    let client = Client::connect(&answers, 7, Limits::default()).await.unwrap();
    client.cancel(&token, Which::All).await.unwrap();
    client.cancel(&token, Which::Waiting).await.unwrap();
    client.cancel(&token, Which::These(&jobs)).await.unwrap();
    client.cancel(&token, Which::These(&[])).await.unwrap();
    let asked = answers.asked();
    assert_eq!(asked.len(), 5);
    assert!(asked[1..].iter().all(|asked| asked.starts_with(&format!("scancel --name={token}"))), "{asked:?}");
    assert!(asked[4].ends_with(" 9_500"), "{}", asked[4]);
}

#[tokio::test]
async fn what_is_gone_need_not_be_cancelled_and_what_fails_is_said() {
    let token = Token::new(Owner::new("a").unwrap(), 1);
    let cancelled = async |answer| {
        let answers = Answers::to_come([version("22.05.8"), answer]);
        let client = Client::connect(&answers, 7, Limits::default()).await.unwrap();
        client.cancel(&token, Which::These(&[JobRef::whole(JobId(9))])).await
    };
    cancelled(said(Some(1), "", "")).await.unwrap();
    cancelled(said(Some(1), "", "scancel: error: Kill job error on job id 9: Invalid job id specified\n"))
        .await
        .unwrap();
    let denied =
        cancelled(said(Some(1), "", "scancel: error: Kill job error on job id 9: Access/permission denied\n")).await;
    assert!(matches!(denied, Err(Failure::Rejected { rejection: Rejection::Permission, .. })), "{denied:?}");
    assert!(cancelled(said(None, "", "")).await.is_err());
}
