//! How an episode is scored once its agent's part is over: by the task's program, while the
//! sandbox still lives; by a judge, who needs nothing but the pictures and may have to be waited
//! for, when it is gone.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use longhaul_core::agent::ImageSize;
use longhaul_core::digest::Digest;
use longhaul_core::judge::{Judgement, Rubric};
use longhaul_core::outcome::{AttemptEnd, EndedBy, FaultClass};
use longhaul_core::plan::Scoring;

use super::agent::Access;
use super::record::Recorder;
use super::{Attempt, Ending, Inside, Plans};
use crate::agents::caller::fault_of;
use crate::judge::{Judge, JudgeError, Oracle, Program, end};
use crate::verify;

/// How far the phases inside the sandbox came with the score.
pub(crate) enum Scored {
    /// To the end.
    Ended(AttemptEnd),
    /// A judge has to look.
    ToJudge(Box<ToJudge>),
}

/// What a judge has to look at.
pub(crate) struct ToJudge {
    ended_by: EndedBy,
    /// What the task's program found, if it was asked.
    program: Option<Program>,
    /// The file with the checklist, in the task's folder.
    checklist: String,
    recorder: Recorder,
    access: Option<Access>,
    /// When the export began.
    pub(super) start: Duration,
}

/// What the agent's part has left.
pub(crate) struct Acted {
    pub(super) ended_by: EndedBy,
    pub(super) recorder: Recorder,
    pub(super) access: Option<Access>,
    /// Why what the export hook would have written is not there, if it is not.
    pub(super) not_exported: Option<String>,
    pub(super) start: Duration,
}

impl Inside<'_> {
    /// What is to be done inside of the sandbox for the score.
    pub(super) async fn score(&self, acted: Acted) -> Result<Scored, Ending> {
        let ended_by = acted.ended_by;
        if let Some(access) = &acted.access {
            access.caller.set_step(acted.recorder.answers() + 1);
        }
        match &self.plans.task.scoring {
            Scoring::None { reason } => {
                let reason = reason.clone();
                Ok(Scored::Ended(AttemptEnd::Unverified { ended_by, reason, fault: None, parts: None }))
            }
            Scoring::Program { file, function } => self.program(&acted, file, function).await.map(Scored::Ended),
            Scoring::Checklist { checklist } => {
                // The pictures are there all the same.
                self.known.note(|notes| notes.warnings.extend(acted.not_exported.clone()));
                Ok(to_judge(acted, None, checklist))
            }
            Scoring::Both { file, function, checklist } => {
                let program = Program::of(self.program(&acted, file, function).await?);
                Ok(to_judge(acted, Some(program), checklist))
            }
        }
    }

    /// What the task's own program says.
    async fn program(&self, acted: &Acted, file: &str, function: &str) -> Result<AttemptEnd, Ending> {
        let Acted { ended_by, recorder, access, not_exported, .. } = acted;
        let ended_by = *ended_by;
        if let Some(reason) = not_exported.clone() {
            return Ok(AttemptEnd::Unverified { ended_by, reason, fault: Some(FaultClass::Verifier), parts: None });
        }
        let Plans { episode, task, env, task_files, env_files } = self.plans;
        let shared = &self.attempt.shared;
        let oracle = match (&episode.judge, access) {
            (Some(plan), Some(access)) => match Oracle::new(&access.caller, plan, &access.plan) {
                Ok(oracle) => Some(oracle),
                Err(error) => {
                    self.known.note(|notes| notes.warnings.push(error.to_string()));
                    None
                }
            },
            _ => None,
        };
        let job = verify::Job {
            id: self.attempt.name(),
            task,
            env,
            task_files: task_files.clone(),
            env_files: env_files.clone(),
            program: (file, function),
            episode: recorder.folder(),
            frames: recorder.frames().to_vec(),
            steps: recorder.steps().to_vec(),
            ended_by,
            limit: shared.config.verify_limit,
            oracle,
            scratch: &self.scratch.join("verify"),
        };
        let verification = tokio::select! {
            verification = verify::verify(job, shared.driver.as_ref(), &shared.starts, self.sandbox) => verification,
            ending = self.attempt.parked_too_long() => return Err(ending),
        };
        if !verification.log.is_empty() {
            recorder.log("verifier", verification.log.as_bytes())?;
        }
        self.known.note(|notes| notes.warnings.extend(verification.notes));
        Ok(verification.end)
    }
}

impl ToJudge {
    /// The end of the attempt where its worker has to stop before the judge has answered: what the
    /// agent did stays done, and is not paid for again.
    pub(super) fn undecided(&self) -> AttemptEnd {
        let reason = "the worker had to stop before the judge answered".to_owned();
        end(self.ended_by, self.program.clone(), Err(reason))
    }
}

fn to_judge(acted: Acted, program: Option<Program>, checklist: &str) -> Scored {
    let Acted { ended_by, recorder, access, start, .. } = acted;
    let checklist = checklist.to_owned();
    Scored::ToJudge(Box::new(ToJudge { ended_by, program, checklist, recorder, access, start }))
}

/// The end of an attempt that a judge has to look at.
pub(super) async fn judged(attempt: &Attempt, plans: &Plans, case: ToJudge) -> Result<AttemptEnd, Ending> {
    let judged = tokio::select! {
        judged = judge(plans, &case) => judged,
        ending = attempt.parked_too_long() => return Err(ending),
    };
    match judged {
        Ok(judgement) => Ok(end(case.ended_by, case.program, Ok(judgement))),
        Err(JudgeError::Over(error)) => Err(Ending::Fault(fault_of(&error))),
        Err(error) => Ok(end(case.ended_by, case.program, Err(error.to_string()))),
    }
}

async fn judge(plans: &Plans, case: &ToJudge) -> Result<Judgement, JudgeError> {
    let (Some(plan), Some(access)) = (&plans.episode.judge, &case.access) else {
        return Err(JudgeError::Checklist { reason: "the episode's plan names no judge".to_owned() });
    };
    let rubric = checklist(plans.task_files.path(), &case.checklist)?;
    let screens = case.recorder.screens();
    let digests: Vec<Digest> = screens.iter().map(|(screen, _)| screen.png).collect();
    let (width, height) = screens.first().map_or((0, 0), |(screen, _)| (screen.width, screen.height));
    let judge = Judge::new(&access.caller, plan, &access.plan, ImageSize { width, height })?;
    let load = |index: usize| {
        let path: PathBuf = screens.get(index).map(|(_, path)| path.clone()).unwrap_or_default();
        async move {
            let bytes = tokio::fs::read(&path).await;
            bytes.map(Arc::from).map_err(|error| format!("{}: {error}", path.display()))
        }
    };
    judge.judge(&plans.task.description, &rubric, &digests, load).await
}

/// Reads the checklist of a task's folder. A link out of it is not followed: what it names would
/// go to a vendor.
fn checklist(folder: &Path, name: &str) -> Result<Rubric, JudgeError> {
    let refuse = |reason: String| JudgeError::Checklist { reason: format!("{name}: {reason}") };
    let canonical = |path: &Path| path.canonicalize().map_err(|error| refuse(error.to_string()));
    let path = canonical(&folder.join(name))?;
    if !path.starts_with(canonical(folder)?) {
        return Err(refuse("it leads out of the task's folder".to_owned()));
    }
    let bytes = std::fs::read(&path).map_err(|error| refuse(error.to_string()))?;
    Rubric::parse(&bytes).map_err(|error| refuse(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checklist_is_read_from_the_tasks_folder_alone() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("task");
        std::fs::create_dir(&folder).unwrap();
        let text = r#"{"task_completion": [{"id": "a"}]}"#;
        std::fs::write(folder.join("list.json"), text).unwrap();
        std::fs::write(root.path().join("outside.json"), text).unwrap();
        std::os::unix::fs::symlink("../outside.json", folder.join("link.json")).unwrap();
        std::fs::write(folder.join("odd.json"), "{\"checklist\": []}").unwrap();
        assert_eq!(checklist(&folder, "list.json").unwrap().completion.len(), 1);
        for (name, said) in [
            ("../outside.json", "leads out"),
            ("link.json", "leads out"),
            ("odd.json", "no item in `task_completion`"),
            ("none.json", "none.json: "),
        ] {
            let error = checklist(&folder, name).unwrap_err().to_string();
            assert!(error.contains(said), "{name}: {error}");
        }
    }
}
