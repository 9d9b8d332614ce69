//! task.json.

use serde::Serialize;
use serde_json::Value;

use super::Format;
use super::diagnostic::{Code, Diagnostic, Refused};
use super::fields::Fields;
use super::json::Document;
use super::rounds::{Section, read_section};
use crate::rounds::RoundsPlan;

/// The limits and preparations of a task.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TaskInit {
    /// A script that runs after the pre_task hook.
    pub init_script: Option<String>,
    /// The most steps, if the task says.
    pub max_steps: Option<u32>,
    /// The longest an episode may take, if the task says.
    pub timeout_sec: Option<u32>,
}

/// The hooks of a task, as strings for `bash -lc`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TaskHooks {
    /// Prepares the task.
    pub pre_task: Option<String>,
    /// Exports what the verifier reads.
    pub post_task: Option<String>,
    /// How long the preparation may take.
    pub timeout_sec: Option<u32>,
}

impl TaskHooks {
    /// Those that there are, with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        [("pre_task", &self.pre_task), ("post_task", &self.post_task)]
            .into_iter()
            .filter_map(|(name, hook)| Some((name, hook.as_deref()?)))
    }
}

/// How a task says that it is scored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "mode")]
pub enum Success {
    /// By a Python function in a file of the task's folder.
    Program {
        /// The file.
        file: String,
        /// The function.
        function: String,
    },
    /// In another way, or in none that can be understood.
    Other {
        /// Why no program scores it.
        reason: String,
    },
}

/// A task.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskSpec {
    /// Its id.
    pub id: String,
    /// The id of the env that it was written for.
    pub env_id: Option<String>,
    /// What the agent is asked to do.
    pub description: String,
    /// How hard it is said to be: a free word.
    pub difficulty: Option<String>,
    /// Its tags.
    pub tags: Vec<String>,
    /// Its limits and preparations.
    pub init: TaskInit,
    /// Its hooks.
    pub hooks: TaskHooks,
    /// How it is scored.
    pub success: Success,
    /// How long its screen is left alone after the export hook, in seconds, if it says.
    pub settle_sec: Option<f64>,
    /// Its metadata, for the verifier.
    pub metadata: Value,
    /// The family of tasks that it says it belongs to.
    pub family: Option<String>,
    /// Its rounds, if it is a sequence of them.
    pub rounds: Option<RoundsPlan>,
    /// Its hook that opens programs again over files that were saved; the env's if it has none.
    pub restart: Option<String>,
    /// All of it, for the verifier.
    pub raw: Value,
}

/// The rewards that Gym-Anything knows.
const REWARDS: &[&str] = &["sparse", "dense", "partial", "rubric", "continuous"];

/// Fewer steps than these, or a shorter time, is hardly meant.
const FEW_STEPS: u32 = 5;
const SHORT_SECS: u32 = 60;

/// Reads a task from the bytes of its file. `folder` is the name of the task's folder.
///
/// # Errors
///
/// The file is not readable as JSON or YAML, not an object, or of another schema; or its rounds
/// are not to be understood.
pub fn parse_task(bytes: &[u8], format: Format, folder: &str, out: &mut Vec<Diagnostic>) -> Result<TaskSpec, Refused> {
    let syntax = if format == Format::Json { Code::JsonSyntax } else { Code::YamlSyntax };
    let document = Document::parse(bytes, format, syntax, out)?;
    let Some(map) = document.value().as_object() else {
        return Err(Diagnostic::new(Code::NotAnObject, "a task is an object, not a list or a single value").into());
    };
    let fields = Fields::new(Some(map), Vec::new(), &document);
    if ["init", "hooks", "success"].iter().all(|key| fields.get(key).is_none()) {
        let keys = fields.keys().map(String::as_str).take(8).collect::<Vec<_>>().join(", ");
        let message = format!("none of `init`, `hooks` and `success`: another schema (keys: {keys})");
        return Err(Diagnostic::new(Code::NotATask, message).at(document.place(&[])).into());
    }
    let id = read_id(&fields, folder, out);
    let description = read_description(&fields, folder, out);
    let init = read_init(&fields, out);
    let hooks = read_hooks(&fields, out);
    let Section { family, rounds, restart } = read_section(&fields, &document, init.max_steps, out)?;
    // Rounds score by themselves.
    let unheard = &mut Vec::new();
    let success = read_success(&fields, if rounds.is_some() { unheard } else { &mut *out });
    let env_id = fields.filled("env_id", out);
    if env_id.is_none() {
        out.push(Diagnostic::new(Code::TaskEnvMissing, "the task has no `env_id`"));
    }
    let metadata = fields.object("metadata", out);
    let settle_sec =
        fields.number("post_task_settle_sec", out).or_else(|| metadata.number("post_task_settle_sec", out));
    let difficulty = fields.filled("difficulty", out);
    let tags = fields.texts("tags", out);
    let metadata = map.get("metadata").filter(|value| value.is_object()).cloned();
    Ok(TaskSpec {
        id,
        env_id,
        description,
        difficulty,
        tags,
        init,
        hooks,
        success,
        settle_sec,
        metadata: metadata.unwrap_or_else(|| Value::Object(serde_json::Map::new())),
        family,
        rounds,
        restart,
        raw: document.into_value(),
    })
}

fn read_id(fields: &Fields<'_>, folder: &str, out: &mut Vec<Diagnostic>) -> String {
    let Some(id) = fields.filled("id", out) else {
        out.push(Diagnostic::new(Code::TaskIdMissing, "the task has no id"));
        return folder.to_owned();
    };
    let name = id.split('@').next().unwrap_or_default();
    if name != folder {
        let message = format!("the id `{id}` is not that of the folder `{folder}`");
        out.push(fields.diagnostic(Code::TaskIdMismatch, "id", message));
    }
    id
}

/// The prompt: `description`, else what other keys of the benchmark hold in its place.
fn read_description(fields: &Fields<'_>, folder: &str, out: &mut Vec<Diagnostic>) -> String {
    if let Some(description) = fields.filled("description", out) {
        return description;
    }
    let spoken = match fields.get("natural_language") {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Object(map)) => {
            ["prompt", "instruction", "description"].iter().find_map(|key| map.get(*key)?.as_str().map(str::to_owned))
        }
        _ => None,
    };
    let other = spoken.or_else(|| fields.filled("instruction", out)).filter(|text| !text.trim().is_empty());
    other.unwrap_or_else(|| {
        out.push(Diagnostic::new(Code::DescriptionMissing, "the task has no description"));
        fields.filled("name", out).unwrap_or_else(|| folder.replace('_', " "))
    })
}

fn read_init(fields: &Fields<'_>, out: &mut Vec<Diagnostic>) -> TaskInit {
    if fields.get("init").is_none() {
        out.push(Diagnostic::new(Code::InitMissing, "the task has no `init`"));
    }
    let init = fields.object("init", out);
    if init.get("init_pyautogui").is_some_and(|value| value.as_array().is_none_or(|actions| !actions.is_empty())) {
        let message = "`init_pyautogui` asks for input before the task".to_owned();
        out.push(init.diagnostic(Code::InitInputIgnored, "init_pyautogui", message));
    }
    if let Some(reward) = init.text("reward_type", out)
        && !REWARDS.contains(&reward.as_str())
    {
        let message = format!("the reward `{reward}` is not known");
        out.push(init.diagnostic(Code::RewardTypeUnknown, "reward_type", message));
    }
    let max_steps = init.whole("max_steps", 1, out);
    let timeout_sec = init.whole("timeout_sec", 1, out);
    if let Some(steps) = max_steps.filter(|steps| *steps < FEW_STEPS) {
        out.push(init.diagnostic(Code::OddLimit, "max_steps", format!("`max_steps` is {steps}")));
    }
    if let Some(seconds) = timeout_sec.filter(|seconds| *seconds < SHORT_SECS) {
        out.push(init.diagnostic(Code::OddLimit, "timeout_sec", format!("`timeout_sec` is {seconds}")));
    }
    TaskInit { init_script: init.filled("init_script", out), max_steps, timeout_sec }
}

fn read_hooks(fields: &Fields<'_>, out: &mut Vec<Diagnostic>) -> TaskHooks {
    if fields.get("hooks").is_none() {
        out.push(Diagnostic::new(Code::HooksMissing, "the task has no `hooks`"));
    }
    let hooks = fields.object("hooks", out);
    TaskHooks {
        pre_task: hooks.filled("pre_task", out),
        post_task: hooks.filled("post_task", out),
        timeout_sec: hooks.whole("pre_task_timeout", 1, out),
    }
}

fn read_success(fields: &Fields<'_>, out: &mut Vec<Diagnostic>) -> Success {
    let other = |reason: &str| Success::Other { reason: reason.to_owned() };
    if fields.get("success").is_none() {
        out.push(Diagnostic::new(Code::SuccessMissing, "the task has no `success`"));
        return other("the task does not say how it is scored");
    }
    let success = fields.object("success", out);
    match success.filled("mode", out).as_deref() {
        Some("program") => {}
        None => out.push(success.diagnostic(Code::SuccessModeMissing, "mode", "`success` has no `mode`".to_owned())),
        Some(mode @ ("image_match" | "multi" | "vlm_checklist")) => {
            return other(&format!("the success mode `{mode}` is not scored by a program"));
        }
        Some(mode) => {
            let message = format!("the success mode `{mode}` is not known");
            out.push(success.diagnostic(Code::SuccessModeUnknown, "mode", message.clone()));
            return other(&message);
        }
    }
    let spec = success.object("spec", out);
    let Some(program) = spec.filled("program", out).or_else(|| spec.filled("target", out)) else {
        out.push(success.diagnostic(Code::SuccessMissing, "spec", "`success` names no program".to_owned()));
        return other("the task names no verifier");
    };
    match program.split_once("::") {
        Some((file, function)) if is_inside(file) && !function.trim().is_empty() => {
            Success::Program { file: file.trim().to_owned(), function: function.trim().to_owned() }
        }
        _ => {
            let message = format!("the verifier `{program}` is not a `FILE::FUNCTION` of the task's folder");
            out.push(spec.diagnostic(Code::SuccessModeUnknown, "program", message.clone()));
            other(&message)
        }
    }
}

/// Whether a path is relative and stays below where it starts.
fn is_inside(path: &str) -> bool {
    let path = path.trim();
    !path.is_empty() && !path.starts_with('/') && path.split('/').all(|part| !part.is_empty() && part != "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(text: &str) -> (Result<TaskSpec, Refused>, Vec<Code>) {
        let mut out = Vec::new();
        let task = parse_task(text.as_bytes(), Format::Json, "draw_line", &mut out);
        (task, out.into_iter().map(|found| found.code).collect())
    }

    #[test]
    fn a_whole_task_has_no_diagnostics() {
        let (task, codes) = task(
            r#"{"id": "draw_line@1", "env_id": "paint@0.1", "description": "Draw a line.", "difficulty": "very_hard",
                "tags": ["a"], "init": {"max_steps": 60.0, "timeout_sec": 300, "reward_type": "sparse"},
                "hooks": {"pre_task": "/workspace/tasks/draw_line/setup_task.sh", "pre_task_timeout": 90},
                "success": {"mode": "program", "spec": {"program": "verifier.py::verify"}},
                "metadata": {"post_task_settle_sec": 2.5}, "unheard_of": 1}"#,
        );
        let task = task.unwrap();
        assert_eq!(codes, []);
        assert_eq!((task.init.max_steps, task.hooks.timeout_sec, task.settle_sec), (Some(60), Some(90), Some(2.5)));
        assert_eq!(task.success, Success::Program { file: "verifier.py".to_owned(), function: "verify".to_owned() });
        assert_eq!(task.raw["unheard_of"], 1);
    }

    #[test]
    fn another_schema_is_refused() {
        let (refused, _) = task(r#"{"id": "draw_line@1", "author": "x", "starts_from": "y", "tasks": {}}"#);
        let refused = refused.unwrap_err();
        assert_eq!(refused.0.code, Code::NotATask);
        assert!(refused.0.message.contains("starts_from"), "{refused}");
        assert_eq!(task("[]").0.unwrap_err().0.code, Code::NotAnObject);
    }

    #[test]
    fn what_is_missing_is_a_warning_and_has_a_default() {
        let (task, codes) = task(r#"{"init": {"max_steps": 3, "timeout_sec": 30}}"#);
        let task = task.unwrap();
        assert_eq!(
            codes,
            [
                Code::TaskIdMissing,
                Code::DescriptionMissing,
                Code::OddLimit,
                Code::OddLimit,
                Code::HooksMissing,
                Code::SuccessMissing,
                Code::TaskEnvMissing,
            ]
        );
        assert_eq!((task.id.as_str(), task.description.as_str()), ("draw_line", "draw line"));
        assert!(matches!(task.success, Success::Other { .. }));
    }

    #[test]
    fn a_prompt_is_found_under_its_other_names() {
        for odd in [
            r#""natural_language": {"prompt": "Do it"}"#,
            r#""natural_language": "Do it""#,
            r#""instruction": "Do it", "description": "  ""#,
        ] {
            let (task, codes) = task(&format!(r#"{{"id": "draw_line@2", "env_id": "e", "init": {{}}, {odd}}}"#));
            assert_eq!(task.unwrap().description, "Do it");
            assert_eq!(codes, [Code::HooksMissing, Code::SuccessMissing]);
        }
    }

    #[test]
    fn odd_values_are_named() {
        let (task, codes) = task(
            r#"{"id": "draw_curve@1", "env_id": "e", "description": 7, "init": {"max_steps": "many",
                "reward_type": "weighted", "init_pyautogui": [{"type": "wait"}]}, "hooks": [],
                "success": {"mode": "oracle"}}"#,
        );
        assert!(task.is_ok());
        assert_eq!(
            codes,
            [
                Code::TaskIdMismatch,
                Code::WrongType,
                Code::DescriptionMissing,
                Code::InitInputIgnored,
                Code::RewardTypeUnknown,
                Code::WrongType,
                Code::WrongType,
                Code::SuccessModeUnknown,
            ]
        );
    }

    #[test]
    fn a_verifier_outside_the_tasks_folder_is_no_program() {
        for program in
            ["../other/verifier.py::verify", "/etc/x.py::f", "package.module:f", "verifier.py::", "verifier.py"]
        {
            let (task, codes) = task(&format!(
                r#"{{"id": "draw_line", "env_id": "e", "description": "d", "init": {{}}, "hooks": {{}},
                    "success": {{"spec": {{"program": "{program}"}}}}}}"#
            ));
            assert!(matches!(task.unwrap().success, Success::Other { .. }), "{program}");
            assert_eq!(codes, [Code::SuccessModeMissing, Code::SuccessModeUnknown], "{program}");
        }
    }
}
