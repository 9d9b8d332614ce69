//! What is odd between files: ids used twice, splits that name what is not there.

use std::collections::{BTreeMap, BTreeSet};

use super::finding::Finding;
use crate::ids::TaskName;
use crate::spec::{Code, Diagnostic, Place, SplitFile, VERIFIED_SPLIT, VerifiedSplit};

/// What is known of an env when all files have been read.
#[derive(Clone, Debug)]
pub struct EnvFacts {
    /// Its folder's name.
    pub folder: String,
    /// Its file, relative to the benchmark.
    pub file: String,
    /// Its id, if it could be read.
    pub id: Option<String>,
    /// Its tasks.
    pub tasks: Vec<TaskFacts>,
    /// Whether they are those of another env, through a link.
    pub linked_tasks: bool,
}

/// What is known of a task when all files have been read.
#[derive(Clone, Debug)]
pub struct TaskFacts {
    /// Its folder's name.
    pub folder: String,
    /// Its file, relative to the benchmark.
    pub file: String,
    /// Its ids, if it could be read.
    pub ids: Option<TaskIds>,
}

/// The ids that a task's file gives.
#[derive(Clone, Debug)]
pub struct TaskIds {
    /// The task's own.
    pub id: String,
    /// The env's.
    pub env_id: Option<String>,
}

/// The splits of a benchmark: which tasks each one names, there or not.
pub type Splits = BTreeMap<String, BTreeSet<TaskName>>;

/// Joins the split files: every list of every file, and the verified tasks.
#[must_use]
pub fn join_splits(files: &[(String, SplitFile)], verified: Option<&VerifiedSplit>) -> Splits {
    let mut splits = Splits::new();
    for (_, file) in files {
        for (split, tasks) in &file.splits {
            let names = tasks.iter().map(|(task, _)| TaskName { env: file.env.clone(), task: task.clone() });
            splits.entry(split.clone()).or_default().extend(names);
        }
    }
    if let Some(verified) = verified {
        let names = verified
            .by_env
            .iter()
            .flat_map(|(env, tasks)| tasks.iter().map(|task| TaskName { env: env.clone(), task: task.clone() }));
        splits.entry(VERIFIED_SPLIT.to_owned()).or_default().extend(names);
    }
    splits
}

/// Judges envs, tasks and splits together. `verified` is the file of the verified split,
/// with its name.
#[must_use]
pub fn judge_corpus(
    envs: &[EnvFacts],
    files: &[(String, SplitFile)],
    verified: Option<(&str, &VerifiedSplit)>,
) -> Vec<Finding> {
    let mut out = Vec::new();
    judge_env_ids(envs, &mut out);
    judge_tasks(envs, &mut out);
    let known: BTreeMap<&str, &EnvFacts> = envs.iter().map(|env| (env.folder.as_str(), env)).collect();
    let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
    for (name, file) in files {
        if let Some(first) = seen.insert(&file.env, name) {
            let message = format!("`{first}` is for the env `{}` too", file.env);
            out.push(Finding::new(name, Diagnostic::new(Code::SplitFilesForOneEnv, message)));
        }
        judge_split(name, file, known.get(file.env.as_str()).copied(), &mut out);
    }
    if let Some((name, verified)) = verified {
        judge_verified(name, verified, &known, &mut out);
    }
    let splits = join_splits(files, verified.map(|(_, verified)| verified));
    judge_unlisted(envs, &splits, &mut out);
    out
}

fn judge_env_ids(envs: &[EnvFacts], out: &mut Vec<Finding>) {
    let mut by_id: BTreeMap<&str, Vec<&EnvFacts>> = BTreeMap::new();
    for env in envs {
        if let Some(id) = &env.id {
            by_id.entry(id).or_default().push(env);
        }
    }
    for (id, group) in by_id.into_iter().filter(|(_, group)| group.len() > 1) {
        let names: Vec<_> = group.iter().map(|env| env.folder.as_str()).collect();
        for env in &group {
            let message = format!("the id `{id}` is used by {} envs: {}", names.len(), names.join(", "));
            out.push(Finding::new(&env.file, Diagnostic::new(Code::DuplicateEnvId, message)));
        }
    }
}

fn judge_tasks(envs: &[EnvFacts], out: &mut Vec<Finding>) {
    let mut by_name: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for env in envs.iter().filter(|env| !env.linked_tasks) {
        let mut by_id: BTreeMap<&str, &str> = BTreeMap::new();
        for task in &env.tasks {
            by_name.entry(&task.folder).or_default().push(&env.folder);
            let Some(ids) = &task.ids else { continue };
            if let Some(other) = by_id.insert(&ids.id, &task.folder) {
                let message = format!("the id `{}` is that of the task `{other}` too", ids.id);
                out.push(Finding::new(&task.file, Diagnostic::new(Code::DuplicateTaskId, message)));
            }
            if let (Some(named), Some(id)) = (&ids.env_id, &env.id)
                && named != id
            {
                let message = format!("the task is for the env `{named}`, and stands in `{id}`");
                out.push(Finding::new(&task.file, Diagnostic::new(Code::TaskEnvMismatch, message)));
            }
        }
    }
    for (task, group) in by_name.into_iter().filter(|(_, group)| group.len() > 1) {
        let message = format!("{} envs have a task `{task}`: {}", group.len(), group.join(", "));
        out.push(Finding::new("environments", Diagnostic::new(Code::TaskNameShared, message)));
    }
}

fn judge_split(name: &str, file: &SplitFile, env: Option<&EnvFacts>, out: &mut Vec<Finding>) {
    let Some(env) = env else {
        let message = format!("there is no env `{}`", file.env);
        out.push(Finding::new(name, Diagnostic::new(Code::SplitEnvMissing, message)));
        return;
    };
    let mut reported = BTreeSet::new();
    for (split, tasks) in &file.splits {
        for (task, place) in tasks {
            let diagnostic = match env.tasks.iter().find(|known| known.folder == *task) {
                Some(TaskFacts { ids: Some(_), .. }) => continue,
                Some(_) => {
                    Diagnostic::new(Code::SplitTaskRefused, format!("`{task}` of the split `{split}` is refused"))
                }
                None => Diagnostic::new(Code::SplitTaskMissing, format!("`{task}` of the split `{split}` is no task")),
            };
            // One task in several lists is reported where it stands first.
            if reported.insert(task) {
                out.push(Finding::new(name, diagnostic.at(*place)));
            }
        }
    }
    judge_leaks(name, file, out);
}

/// Tasks to train on that are tested too.
fn judge_leaks(name: &str, file: &SplitFile, out: &mut Vec<Finding>) {
    let Some(train) = file.splits.get("train") else { return };
    let train: BTreeMap<&str, Option<Place>> = train.iter().map(|(task, place)| (task.as_str(), *place)).collect();
    for (split, tasks) in file.splits.iter().filter(|(split, _)| split.as_str() != "train") {
        for (task, place) in tasks.iter().filter(|(task, _)| train.contains_key(task.as_str())) {
            let message = format!("`{task}` is in the splits `train` and `{split}`");
            out.push(Finding::new(name, Diagnostic::new(Code::SplitLeak, message).at(*place)));
        }
    }
}

/// One finding for each env of the verified split: it names thousands of tasks.
fn judge_verified(name: &str, verified: &VerifiedSplit, known: &BTreeMap<&str, &EnvFacts>, out: &mut Vec<Finding>) {
    for (env, tasks) in &verified.by_env {
        let Some(facts) = known.get(env.as_str()) else {
            let message = format!("there is no env `{env}` ({} tasks)", tasks.len());
            out.push(Finding::new(name, Diagnostic::new(Code::SplitEnvMissing, message)));
            continue;
        };
        let there: BTreeSet<&str> = facts.tasks.iter().map(|task| task.folder.as_str()).collect();
        let missing: Vec<&str> = tasks.iter().map(String::as_str).filter(|task| !there.contains(task)).collect();
        if let Some(first) = missing.first() {
            let message =
                format!("{} of {} tasks of `{env}` are not there, `{first}` first", missing.len(), tasks.len());
            out.push(Finding::new(name, Diagnostic::new(Code::SplitTaskMissing, message)));
        }
    }
}

/// One finding for each env with tasks that no split names.
fn judge_unlisted(envs: &[EnvFacts], splits: &Splits, out: &mut Vec<Finding>) {
    if splits.is_empty() {
        return;
    }
    let listed: BTreeSet<&TaskName> = splits.values().flatten().collect();
    for env in envs.iter().filter(|env| !env.linked_tasks) {
        let unlisted: Vec<&str> = env
            .tasks
            .iter()
            .map(|task| task.folder.as_str())
            .filter(|task| !listed.contains(&TaskName { env: env.folder.clone(), task: (*task).to_owned() }))
            .collect();
        if let Some(first) = unlisted.first() {
            let message = format!("{} of {} tasks are in no split, `{first}` first", unlisted.len(), env.tasks.len());
            out.push(Finding::new(&env.file, Diagnostic::new(Code::InNoSplit, message)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{parse_split, parse_verified};

    fn env(folder: &str, id: &str, tasks: &[(&str, Option<(&str, &str)>)]) -> EnvFacts {
        let task = |(folder, ids): &(&str, Option<(&str, &str)>)| TaskFacts {
            folder: (*folder).to_owned(),
            file: format!("{folder}/task.json"),
            ids: ids.map(|(id, env_id)| TaskIds { id: id.to_owned(), env_id: Some(env_id.to_owned()) }),
        };
        EnvFacts {
            folder: folder.to_owned(),
            file: format!("{folder}/env.json"),
            id: Some(id.to_owned()),
            tasks: tasks.iter().map(task).collect(),
            linked_tasks: false,
        }
    }

    fn split(name: &str, text: &str) -> (String, SplitFile) {
        (name.to_owned(), parse_split(text.as_bytes(), &mut Vec::new()).unwrap())
    }

    fn codes(findings: &[Finding]) -> Vec<Code> {
        findings.iter().map(|finding| finding.code).collect()
    }

    #[test]
    fn ids_used_twice_are_named_at_each_use() {
        let envs = [
            env("a", "same", &[("x", Some(("x@1", "same"))), ("y", Some(("x@1", "other")))]),
            env("b", "same", &[("x", Some(("x@1", "same")))]),
        ];
        let found = judge_corpus(&envs, &[], None);
        assert_eq!(
            codes(&found),
            [
                Code::DuplicateEnvId,
                Code::DuplicateEnvId,
                Code::DuplicateTaskId,
                Code::TaskEnvMismatch,
                Code::TaskNameShared,
            ]
        );
        assert!(found[0].message.ends_with("2 envs: a, b"), "{}", found[0].message);
    }

    #[test]
    fn a_split_that_names_what_is_not_there_says_where() {
        let envs = [env("a", "a", &[("x", Some(("x", "a"))), ("broken", None), ("z", Some(("z", "a")))])];
        let files = [
            split(
                "one.json",
                "{\"env_folder\": \"e/a\",\n \"train_tasks\": [\"x\", \"gone\"],\n \"test_tasks\": [\"x\", \"broken\"]}",
            ),
            split("two.json", r#"{"env_folder": "a", "hard_tasks": []}"#),
            split("three.json", r#"{"env_folder": "nowhere", "test_tasks": ["q"]}"#),
        ];
        let found = judge_corpus(&envs, &files, None);
        assert_eq!(
            codes(&found),
            [
                Code::SplitTaskRefused,
                Code::SplitTaskMissing,
                Code::SplitLeak,
                Code::SplitFilesForOneEnv,
                Code::SplitEnvMissing,
                Code::InNoSplit,
            ]
        );
        assert_eq!((found[1].line, found[1].column), (Some(2), Some(23)));
        let splits = join_splits(&files, None);
        let sizes: Vec<_> = splits.iter().map(|(name, tasks)| (name.as_str(), tasks.len())).collect();
        assert_eq!(sizes, [("hard", 0), ("test", 3), ("train", 2)]);
    }

    #[test]
    fn the_verified_split_is_judged_env_by_env() {
        let envs = [env("a", "a", &[("x", Some(("x", "a")))])];
        let verified = parse_verified(br#"{"tasks": ["a/x", "a/gone", "b/y"]}"#, &mut Vec::new()).unwrap();
        let found = judge_corpus(&envs, &[], Some(("verified.json", &verified)));
        assert_eq!(codes(&found), [Code::SplitTaskMissing, Code::SplitEnvMissing]);
        assert!(found[0].message.starts_with("1 of 2 tasks of `a`"), "{}", found[0].message);
    }
}
