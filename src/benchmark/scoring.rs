//! How a task is scored: by its rounds, by its program, by a judge, by both, or by nothing that can
//! be trusted.

use std::path::Path;

use longhaul_core::judge::{CHECKLIST_FILE, Rubric, Verify, named_checklist};
use longhaul_core::plan::Scoring;
use longhaul_core::spec::{Success, TaskSpec};

use super::check;

/// How a task is scored, with what a person should know of its checklist.
pub(super) fn scoring(task: &TaskSpec, dir: &Path, verify: Verify, has_judge: bool) -> (Scoring, Option<String>) {
    let program = || program(task, dir);
    let by_program = |program: Result<(String, String), String>| match program {
        Ok((file, function)) => Scoring::Program { file, function },
        Err(reason) => Scoring::None { reason },
    };
    let by_checklist = |checklist| Scoring::Checklist { checklist };
    if task.rounds.is_some() {
        // They take the program's place, and are kept beside a judge that was asked for.
        return match verify {
            Verify::Auto | Verify::Program => (Scoring::Rounds, None),
            Verify::Checklist | Verify::Both => match checklist(task, dir) {
                Ok(file) => (by_checklist(file), None),
                Err(missing) => (Scoring::Rounds, Some(missing.reason)),
            },
        };
    }
    match verify {
        Verify::Auto if has_judge => match checklist(task, dir) {
            Ok(file) => (by_checklist(file), None),
            Err(missing) => (by_program(program()), missing.told()),
        },
        Verify::Program | Verify::Auto => (by_program(program()), None),
        Verify::Checklist => match checklist(task, dir) {
            Ok(file) => (by_checklist(file), None),
            Err(missing) => (Scoring::None { reason: missing.reason.clone() }, Some(missing.reason)),
        },
        Verify::Both => match (program(), checklist(task, dir)) {
            (Ok((file, function)), Ok(checklist)) => (Scoring::Both { file, function, checklist }, None),
            (Err(_), Ok(checklist)) => (by_checklist(checklist), None),
            (Ok(program), Err(missing)) => (by_program(Ok(program)), Some(missing.reason)),
            (Err(reason), Err(missing)) => {
                let reason = format!("{reason}; and {}", missing.reason);
                (Scoring::None { reason }, Some(missing.reason))
            }
        },
    }
}

/// The program that scores a task, if one can be trusted to.
fn program(task: &TaskSpec, dir: &Path) -> Result<(String, String), String> {
    match &task.success {
        Success::Other { reason } => Err(reason.clone()),
        Success::Program { file, function } => match check::judge(&dir.join(file), function, &mut Vec::new()) {
            Err(diagnostic) => Err(diagnostic.message),
            Ok(verdict) => match verdict.distrust() {
                Some(reason) => Err(reason.to_owned()),
                None => Ok((file.clone(), function.clone())),
            },
        },
    }
}

/// Why nothing can be judged by.
struct NoChecklist {
    reason: String,
    /// There is one, and it is refused.
    refused: bool,
}

impl NoChecklist {
    /// That a task has none is common; that one cannot be used is a surprise.
    fn told(self) -> Option<String> {
        self.refused.then_some(self.reason)
    }
}

/// The file of a task's checklist, if it can be judged by.
fn checklist(task: &TaskSpec, dir: &Path) -> Result<String, NoChecklist> {
    let file = named_checklist(&task.raw).unwrap_or(CHECKLIST_FILE);
    let refuse = |reason: String| NoChecklist { reason: format!("{file}: {reason}"), refused: true };
    let inside = !file.starts_with('/') && file.split('/').all(|part| !part.is_empty() && part != "..");
    if !inside {
        return Err(refuse("it is no file of the task's folder".to_owned()));
    }
    let bytes = match std::fs::read(dir.join(file)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(NoChecklist { reason: format!("the task has no {file}"), refused: false });
        }
        Err(error) => return Err(refuse(error.to_string())),
    };
    Rubric::parse(&bytes).map(|_| file.to_owned()).map_err(|error| refuse(error.to_string()))
}
