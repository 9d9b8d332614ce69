//! How an episode is scored once its agent's part is over: by the task's program, while the
//! sandbox still lives; by a judge, who needs nothing but the pictures and may have to be waited
//! for, when it is gone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use longhaul_core::agent::ImageSize;
use longhaul_core::digest::Digest;
use longhaul_core::judge::{Judgement, Rubric};
use longhaul_core::outcome::{AttemptEnd, EndedBy, FaultClass};
use longhaul_core::plan::Scoring;
use longhaul_core::rounds::{self, Played, RoundPlan, RoundResult};

use super::agent::Access;
use super::record::Recorder;
use super::{Attempt, Ending, Inside, Plans};
use crate::agents::caller::fault_of;
use crate::judge::{Judge, JudgeError, Oracle, Program, beside, by_rounds, end};
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
    /// The file with the checklist, in the task's folder; none where the task's rounds decide.
    checklist: Option<String>,
    /// The task's rounds as they were played.
    rounds: Vec<Played>,
    recorder: Recorder,
    access: Option<Access>,
    /// When the export began.
    pub(super) start: Duration,
}

/// What the agent's part has left.
pub(crate) struct Acted {
    pub(super) ended_by: EndedBy,
    /// The task's rounds as they were played, if it has any.
    pub(super) rounds: Vec<Played>,
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
            access.caller.set_step(acted.recorder.next());
        }
        match &self.plans.task.scoring {
            Scoring::None { reason } => {
                let reason = reason.clone();
                Ok(Scored::Ended(AttemptEnd::Unverified { ended_by, reason, fault: None, parts: None }))
            }
            Scoring::Program { file, function } => self.program(&acted, file, function).await.map(Scored::Ended),
            Scoring::Rounds => {
                // What they go by was read before.
                self.known.note(|notes| notes.warnings.extend(acted.not_exported.clone()));
                if asks_judge(self.plans, &acted.rounds) {
                    return Ok(to_judge(acted, None, None));
                }
                let results = results(self.plans, &acted.rounds, &BTreeMap::new());
                Ok(Scored::Ended(by_rounds(ended_by, results, None)))
            }
            Scoring::Checklist { checklist } => {
                // The pictures are there all the same.
                self.known.note(|notes| notes.warnings.extend(acted.not_exported.clone()));
                Ok(to_judge(acted, None, Some(checklist)))
            }
            Scoring::Both { file, function, checklist } => {
                let program = Program::of(self.program(&acted, file, function).await?);
                Ok(to_judge(acted, Some(program), Some(checklist)))
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
        let Plans { episode, task, env, task_files, env_files, .. } = self.plans;
        let shared = &self.attempt.shared;
        let oracle = match (&episode.judge, access) {
            (Some(plan), Some(access)) => Oracle::new(&access.caller, plan, &access.plan).map_err(|error| {
                self.known.note(|notes| notes.warnings.push(error.to_string()));
                error.to_string()
            }),
            (Some(plan), None) => Err(without_endpoints(&plan.model).to_string()),
            (None, _) => Err("no judge is configured".to_owned()),
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
    pub(super) fn undecided(&self, plans: &Plans) -> AttemptEnd {
        let reason = "the worker had to stop before the judge answered".to_owned();
        let rounds = results(plans, &self.rounds, &BTreeMap::new());
        if self.checklist.is_none() {
            return by_rounds(self.ended_by, rounds, Some(reason));
        }
        beside(end(self.ended_by, self.program.clone(), Err(reason)), rounds)
    }
}

fn to_judge(acted: Acted, program: Option<Program>, checklist: Option<&String>) -> Scored {
    let Acted { ended_by, rounds, recorder, access, start, .. } = acted;
    let checklist = checklist.cloned();
    Scored::ToJudge(Box::new(ToJudge { ended_by, program, checklist, rounds, recorder, access, start }))
}

/// What the rounds of the task came to; none if it has none.
fn results(plans: &Plans, played: &[Played], judged: &BTreeMap<u32, Judgement>) -> Vec<RoundResult> {
    plans.task.rounds.as_ref().map(|plan| rounds::results(plan, played, judged)).unwrap_or_default()
}

/// The rounds of which a judge is asked something, by their numbers. What broke fails without one.
fn asked<'a>(plans: &'a Plans, played: &'a [Played]) -> impl Iterator<Item = (u32, &'a RoundPlan, &'a Played, Rubric)> {
    let rounds = plans.task.rounds.iter().flat_map(|plan| &plan.rounds);
    let played = (1_u32..).zip(rounds.zip(played)).filter(|(_, (_, played))| played.broke.is_none());
    played.filter_map(|(number, (round, played))| Some((number, round, played, rounds::rubric(round)?)))
}

fn asks_judge(plans: &Plans, played: &[Played]) -> bool {
    asked(plans, played).next().is_some()
}

/// The end of an attempt that a judge has to look at.
pub(super) async fn judged(attempt: &Attempt, plans: &Plans, case: ToJudge) -> Result<AttemptEnd, Ending> {
    let judged = tokio::select! {
        judged = judge(plans, &case) => judged,
        ending = attempt.parked_too_long() => return Err(ending),
    };
    let (rounds, judgement) = match judged {
        Ok(judged) => judged,
        Err(JudgeError::Over(error)) => return Err(Ending::Fault(fault_of(&error))),
        Err(error) => (BTreeMap::new(), Err(error.to_string())),
    };
    let rounds = results(plans, &case.rounds, &rounds);
    Ok(match judgement {
        Ok(Some(judgement)) => beside(end(case.ended_by, case.program, Ok(judgement)), rounds),
        Ok(None) => by_rounds(case.ended_by, rounds, None),
        Err(reason) if case.checklist.is_none() => by_rounds(case.ended_by, rounds, Some(reason)),
        Err(reason) => beside(end(case.ended_by, case.program, Err(reason)), rounds),
    })
}

/// What the judge says of rounds, by their numbers, and of the checklist, if that decides; the
/// inner error is why it does not decide.
type Judged = (BTreeMap<u32, Judgement>, Result<Option<Judgement>, String>);

async fn judge(plans: &Plans, case: &ToJudge) -> Result<Judged, JudgeError> {
    let Some(plan) = &plans.episode.judge else {
        return Err(JudgeError::Checklist { reason: "the episode's plan names no judge".to_owned() });
    };
    let Some(access) = &case.access else { return Err(without_endpoints(&plan.model)) };
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
    let description = &plans.task.description;
    let mut rounds = BTreeMap::new();
    for (number, round, played, rubric) in asked(plans, &case.rounds) {
        let description = format!("{description}\n\n{}", round.goal);
        let last = usize::try_from(played.last_screen).unwrap_or(usize::MAX);
        let screen = digests.get(last..=last).unwrap_or_default();
        match judge.judge(&description, &rubric, screen, |_| load(last)).await {
            Ok(judgement) => {
                rounds.insert(number, Judgement { shown: vec![played.last_screen], ..judgement });
            }
            Err(error @ JudgeError::Over(_)) => return Err(error),
            // Where the checklist decides, rounds are beside it.
            Err(error) if case.checklist.is_none() => return Ok((rounds, Err(format!("round {number}: {error}")))),
            Err(error) => tracing::warn!(%error, number, "a judge does not say what it was asked of a round"),
        }
    }
    let judgement = match &case.checklist {
        None => Ok(None),
        Some(checklist) => {
            let rubric = self::checklist(plans.task_files.path(), checklist)?;
            let rounds = plans.task.rounds.as_ref();
            let asked = rounds.map_or_else(|| description.clone(), |plan| rounds::whole(description, plan));
            match judge.judge(&asked, &rubric, &digests, load).await {
                Ok(judgement) => Ok(Some(judgement)),
                Err(error @ JudgeError::Over(_)) => return Err(error),
                Err(error) => Err(error.to_string()),
            }
        }
    };
    Ok((rounds, judgement))
}

fn without_endpoints(model: &str) -> JudgeError {
    let reason = "the episode's plan names no endpoints to call it at".to_owned();
    JudgeError::Unaskable { model: model.to_owned(), reason }
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
