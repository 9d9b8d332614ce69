//! Reads a whole benchmark, its envs in parallel.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use longhaul_core::ids::TaskName;
use longhaul_core::lint::{
    EnvFacts, Finding, LintReport, Splits, TaskCounts, TaskFacts, TaskIds, join_splits, judge_corpus,
};
use longhaul_core::spec::{
    Code, Diagnostic, EnvSpec, Format, Refused, SplitFile, TaskSpec, VerifiedSplit, parse_env, parse_split, parse_task,
    parse_verified,
};

use super::check;
use super::layout::{Layout, LayoutError};

/// How much is read of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Specs and splits: what picking tasks needs.
    Specs,
    /// Also hooks, verifiers, checklists and audits: what lint judges.
    Checks,
}

/// A benchmark that cannot be read at all.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It is no benchmark.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Its folder of envs cannot be listed.
    #[error("cannot list {}", path.display())]
    List {
        /// The folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// What is known of a task without keeping its whole spec.
#[derive(Clone, Debug)]
pub struct TaskInfo {
    /// Its id.
    pub id: String,
    /// The env id that it names.
    pub env_id: Option<String>,
    /// How hard it is said to be.
    pub difficulty: Option<String>,
    /// Its tags.
    pub tags: Vec<String>,
    /// The most steps that it asks for.
    pub max_steps: Option<u32>,
    /// Its rounds, if it is a sequence of them.
    pub rounds: Option<RoundsInfo>,
}

/// What is known of a task's rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundsInfo {
    /// How many there are.
    pub rounds: usize,
    /// How many assertions they have.
    pub assertions: usize,
    /// Whether some of those ask a judge.
    pub asks_judge: bool,
    /// Whether the dollars of some are capped.
    pub caps_dollars: bool,
}

/// A task folder.
#[derive(Clone, Debug)]
pub struct Task {
    /// The folder's name.
    pub folder: String,
    /// What is known of it, or why it is refused.
    pub state: Result<TaskInfo, Box<Finding>>,
}

/// An env folder.
#[derive(Clone, Debug)]
pub struct Env {
    /// The folder's name.
    pub folder: String,
    /// Its spec, or why it is refused.
    pub spec: Result<Box<EnvSpec>, Box<Finding>>,
    /// Its file, relative to the benchmark.
    pub file: String,
    /// Its tasks, sorted by name.
    pub tasks: Vec<Task>,
    /// Whether they are those of another env, through a link.
    pub linked_tasks: bool,
}

impl Env {
    /// The task of this name.
    #[must_use]
    pub fn task(&self, folder: &str) -> Option<&Task> {
        self.tasks.iter().find(|task| task.folder == folder)
    }
}

/// A benchmark that was read.
#[derive(Clone, Debug)]
pub struct Benchmark {
    /// Where it is.
    pub layout: Layout,
    /// Its envs, sorted by name; refused ones are among them.
    pub envs: Vec<Env>,
    /// Its splits: every task that they name, there or not.
    pub splits: Splits,
    /// How many task files there are.
    pub counts: TaskCounts,
    /// What is odd in it, sorted.
    pub findings: Vec<Finding>,
}

impl Benchmark {
    /// Reads the benchmark in a folder.
    ///
    /// # Errors
    ///
    /// The folder is no benchmark, or cannot be listed. What is wrong in single files is
    /// no error: it is among the findings.
    pub fn read(path: &Path, depth: Depth) -> Result<Self, ReadError> {
        let layout = Layout::find(path)?;
        let folders = env_folders(&layout)?;
        let read = parallel(&folders, |folder| read_env(&layout, folder, depth));
        let mut benchmark = Self {
            layout,
            envs: Vec::new(),
            splits: Splits::new(),
            counts: TaskCounts::default(),
            findings: Vec::new(),
        };
        for EnvRead { env, counts, findings } in read {
            benchmark.findings.extend(findings);
            benchmark.envs.extend(env);
            benchmark.counts.files += counts.files;
            benchmark.counts.loaded += counts.loaded;
            benchmark.counts.refused += counts.refused;
            benchmark.counts.with_rounds += counts.with_rounds;
            benchmark.counts.rounds += counts.rounds;
            benchmark.counts.assertions += counts.assertions;
        }
        let (files, verified) = read_splits(&benchmark.layout, &mut benchmark.findings);
        let named = verified.as_ref().map(|(name, verified)| (name.as_str(), verified));
        if depth == Depth::Checks {
            let facts: Vec<_> = benchmark.envs.iter().map(facts).collect();
            benchmark.findings.extend(judge_corpus(&facts, &files, named));
        }
        benchmark.splits = join_splits(&files, named.map(|(_, verified)| verified));
        benchmark.findings.sort();
        Ok(benchmark)
    }

    /// The env of this folder name.
    #[must_use]
    pub fn env(&self, folder: &str) -> Option<&Env> {
        self.envs.iter().find(|env| env.folder == folder)
    }

    /// The task of this name, with its env.
    #[must_use]
    pub fn task(&self, name: &TaskName) -> Option<(&Env, &Task)> {
        let env = self.env(&name.env)?;
        Some((env, env.task(&name.task)?))
    }

    /// The folder of an env.
    #[must_use]
    pub fn env_dir(&self, env: &Env) -> PathBuf {
        self.layout.environments().join(&env.folder)
    }

    /// Reads the whole spec of a task again.
    ///
    /// # Errors
    ///
    /// The file is not what it was: it is gone, or is refused now.
    pub fn task_spec(&self, env: &Env, task: &str) -> Result<TaskSpec, Box<Finding>> {
        let dir = self.env_dir(env).join("tasks").join(task);
        read_task_spec(&self.layout, &dir, &names_in(&dir), task, &mut Vec::new())
    }

    /// What lint says of it.
    #[must_use]
    pub fn into_report(self) -> LintReport {
        LintReport {
            envs: self.envs.len(),
            tasks: self.counts,
            splits: self.splits.into_iter().map(|(name, tasks)| (name, tasks.len())).collect(),
            findings: self.findings,
        }
    }
}

fn facts(env: &Env) -> EnvFacts {
    let folder = format!("environments/{}/tasks", env.folder);
    let task = |task: &Task| TaskFacts {
        folder: task.folder.clone(),
        file: format!("{folder}/{}/task.json", task.folder),
        ids: task.state.as_ref().ok().map(|info| TaskIds { id: info.id.clone(), env_id: info.env_id.clone() }),
    };
    EnvFacts {
        folder: env.folder.clone(),
        file: env.file.clone(),
        id: env.spec.as_ref().ok().map(|spec| spec.id.clone()),
        tasks: env.tasks.iter().map(task).collect(),
        linked_tasks: env.linked_tasks,
    }
}

/// Runs `work` over all items on as many threads as there are processors, and gives the
/// results in the order of the items.
pub(super) fn parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(items.len()).max(1);
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::with_capacity(items.len()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { return };
                    let result = work(item);
                    results.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

fn env_folders(layout: &Layout) -> Result<Vec<String>, ReadError> {
    let path = layout.environments();
    let list = |source| ReadError::List { path: path.clone(), source };
    let mut folders = Vec::new();
    for entry in fs::read_dir(&path).map_err(list)? {
        let entry = entry.map_err(list)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_dir() && !is_hidden(&name) {
            folders.push(name);
        }
    }
    folders.sort();
    Ok(folders)
}

/// Names that no env or task has: hidden ones, and Python's caches.
fn is_hidden(name: &str) -> bool {
    name.starts_with('.') || name.starts_with("__")
}

struct EnvRead {
    env: Option<Env>,
    counts: TaskCounts,
    findings: Vec<Finding>,
}

fn read_env(layout: &Layout, folder: &str, depth: Depth) -> EnvRead {
    let dir = layout.environments().join(folder);
    let mut findings = Vec::new();
    let Some((path, format)) = spec_file(&dir, &names_in(&dir), "env") else {
        let diagnostic = Diagnostic::new(Code::EnvSpecMissing, "the folder has no env.json and no env.yaml");
        findings.push(Finding::new(layout.name(&dir), diagnostic));
        return EnvRead { env: None, counts: TaskCounts::default(), findings };
    };
    let file = layout.name(&path);
    let mut out = Vec::new();
    let spec = read_file(&path).and_then(|bytes| parse_env(&bytes, format, folder, &mut out));
    findings.extend(out.into_iter().map(|diagnostic| Finding::new(&file, diagnostic)));
    let spec = spec.map(Box::new).map_err(|refused| {
        let finding = Finding::new(&file, *refused.0);
        findings.push(finding.clone());
        Box::new(finding)
    });
    let tasks_dir = dir.join("tasks");
    let linked_tasks = fs::symlink_metadata(&tasks_dir).is_ok_and(|metadata| metadata.is_symlink());
    let mut env = Env { folder: folder.to_owned(), spec, file, tasks: Vec::new(), linked_tasks };
    let mut counts = TaskCounts::default();
    let mut reader = TasksReader { layout, env: &env, depth, counts: &mut counts, findings: &mut findings };
    let (tasks, specs) = reader.read(&tasks_dir);
    if depth == Depth::Checks {
        check::check_env(layout, &env, &tasks_dir, &specs, &mut findings);
    }
    env.tasks = tasks;
    if linked_tasks {
        // They are counted, and reported on, where they really are.
        counts = TaskCounts::default();
        let own = layout.name(&tasks_dir);
        findings.retain(|finding| !finding.file.starts_with(&own));
        let target = fs::read_link(&tasks_dir).map(|target| target.to_string_lossy().into_owned()).unwrap_or_default();
        let diagnostic = Diagnostic::new(Code::LinkedTasks, format!("the tasks are a link to `{target}`"));
        findings.push(Finding::new(own, diagnostic));
    }
    EnvRead { env: Some(env), counts, findings }
}

/// A task while its env is checked.
pub(super) struct ReadTask {
    /// Its folder's name.
    pub(super) folder: String,
    /// Its whole spec, if it is not refused.
    pub(super) spec: Option<TaskSpec>,
    /// What is in its folder.
    pub(super) names: BTreeSet<String>,
}

/// The names of what is in a folder; none if it cannot be listed.
pub(super) fn names_in(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

struct TasksReader<'a> {
    layout: &'a Layout,
    env: &'a Env,
    depth: Depth,
    counts: &'a mut TaskCounts,
    findings: &'a mut Vec<Finding>,
}

impl TasksReader<'_> {
    fn read(&mut self, dir: &Path) -> (Vec<Task>, Vec<ReadTask>) {
        let (mut tasks, mut specs) = (Vec::new(), Vec::new());
        let folders = match self.folders(dir) {
            Ok(folders) => folders,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    let diagnostic = Diagnostic::new(Code::Unreadable, format!("the folder cannot be listed: {error}"));
                    self.findings.push(Finding::new(self.layout.name(dir), diagnostic));
                }
                BTreeSet::new()
            }
        };
        for folder in folders {
            let path = dir.join(&folder);
            let mut out = Vec::new();
            let names = names_in(&path);
            let spec = read_task_spec(self.layout, &path, &names, &folder, &mut out);
            self.findings.extend(out);
            let has_file = !matches!(&spec, Err(finding) if finding.code == Code::TaskSpecMissing);
            self.counts.files += usize::from(has_file);
            self.counts.loaded += usize::from(spec.is_ok());
            self.counts.refused += usize::from(has_file && spec.is_err());
            let state = match &spec {
                Ok(spec) => Ok(self.count(info(spec))),
                Err(finding) => {
                    self.findings.push((**finding).clone());
                    Err(finding.clone())
                }
            };
            tasks.push(Task { folder: folder.clone(), state });
            if self.depth == Depth::Checks {
                specs.push(ReadTask { folder, spec: spec.ok(), names });
            }
        }
        if tasks.is_empty() {
            let diagnostic = Diagnostic::new(Code::EnvWithoutTasks, "the env has no tasks");
            self.findings.push(Finding::new(&self.env.file, diagnostic));
        }
        (tasks, specs)
    }

    fn count(&mut self, info: TaskInfo) -> TaskInfo {
        if let Some(rounds) = info.rounds {
            self.counts.with_rounds += 1;
            self.counts.rounds += rounds.rounds;
            self.counts.assertions += rounds.assertions;
        }
        info
    }

    /// The task folders; whatever else stands there is reported.
    fn folders(&mut self, dir: &Path) -> io::Result<BTreeSet<String>> {
        let mut folders = BTreeSet::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // A link to a folder is a folder here.
            let is_dir = match entry.file_type() {
                Ok(kind) if kind.is_symlink() => entry.path().is_dir(),
                Ok(kind) => kind.is_dir(),
                Err(_) => false,
            };
            if is_dir && !is_hidden(&name) {
                folders.insert(name);
            } else if is_dir || name != ".gitkeep" {
                let diagnostic = Diagnostic::new(Code::StrayFile, "this stands among task folders and is none");
                self.findings.push(Finding::new(self.layout.name(&entry.path()), diagnostic));
            }
        }
        Ok(folders)
    }
}

fn info(spec: &TaskSpec) -> TaskInfo {
    TaskInfo {
        id: spec.id.clone(),
        env_id: spec.env_id.clone(),
        difficulty: spec.difficulty.clone(),
        tags: spec.tags.clone(),
        max_steps: spec.init.max_steps,
        rounds: spec.rounds.as_ref().map(|plan| RoundsInfo {
            rounds: plan.rounds.len(),
            assertions: plan.assertions().count(),
            asks_judge: plan.asks_judge(),
            caps_dollars: plan.caps_dollars(),
        }),
    }
}

/// Reads the spec of the task in a folder; what is odd in it is added to `findings`.
fn read_task_spec(
    layout: &Layout,
    dir: &Path,
    names: &BTreeSet<String>,
    folder: &str,
    findings: &mut Vec<Finding>,
) -> Result<TaskSpec, Box<Finding>> {
    let Some((path, format)) = spec_file(dir, names, "task") else {
        let diagnostic = Diagnostic::new(Code::TaskSpecMissing, "the task's folder has no task.json");
        return Err(Box::new(Finding::new(layout.name(dir), diagnostic)));
    };
    let file = layout.name(&path);
    let mut out = Vec::new();
    let spec = read_file(&path).and_then(|bytes| parse_task(&bytes, format, folder, &mut out));
    findings.extend(out.into_iter().map(|diagnostic| Finding::new(&file, diagnostic)));
    spec.map_err(|refused| Box::new(Finding::new(&file, *refused.0)))
}

/// The spec file of a folder: YAML comes before JSON, as upstream has it.
fn spec_file(dir: &Path, names: &BTreeSet<String>, stem: &str) -> Option<(PathBuf, Format)> {
    [("yaml", Format::Yaml), ("yml", Format::Yaml), ("json", Format::Json)]
        .into_iter()
        .map(|(extension, format)| (format!("{stem}.{extension}"), format))
        .find(|(name, _)| names.contains(name))
        .map(|(name, format)| (dir.join(name), format))
}

/// The largest spec that is read; larger ones are no specs.
const MAX_SPEC_BYTES: u64 = 32 * 1024 * 1024;

/// Reads a file whole, as the refusal of what is in it.
pub(super) fn read_file(path: &Path) -> Result<Vec<u8>, Refused> {
    let read = || {
        let mut bytes = Vec::with_capacity(16 * 1024);
        File::open(path)?.take(MAX_SPEC_BYTES + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_SPEC_BYTES {
            return Err(io::Error::other(format!("it has more than {MAX_SPEC_BYTES} bytes")));
        }
        Ok(bytes)
    };
    read().map_err(|error| Diagnostic::new(Code::Unreadable, format!("cannot be read: {error}")).into())
}

type SplitFiles = (Vec<(String, SplitFile)>, Option<(String, VerifiedSplit)>);

fn read_splits(layout: &Layout, findings: &mut Vec<Finding>) -> SplitFiles {
    let mut paths: Vec<PathBuf> = fs::read_dir(layout.splits())
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    paths.sort();
    let (mut files, mut verified) = (Vec::new(), None);
    for path in paths {
        let name = layout.name(&path);
        let mut out = Vec::new();
        let refused = if path.ends_with("verified.json") {
            let split = read_file(&path).and_then(|bytes| parse_verified(&bytes, &mut out));
            split.map(|split| verified = Some((name.clone(), split))).err()
        } else {
            let split = read_file(&path).and_then(|bytes| parse_split(&bytes, &mut out));
            split.map(|split| files.push((name.clone(), split))).err()
        };
        let refused = refused.map(|refused| *refused.0);
        findings.extend(out.into_iter().chain(refused).map(|diagnostic| Finding::new(&name, diagnostic)));
    }
    (files, verified)
}
