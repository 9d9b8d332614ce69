//! Picks tasks of a benchmark.

use std::collections::BTreeSet;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use longhaul_core::digest::DigestBuilder;
use longhaul_core::ids::TaskName;

use super::quarantine::Quarantine;
use super::read::{Benchmark, Env, Task};
use crate::nearest::distance;

/// Which tasks are wanted; what is empty does not narrow.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// The tasks of this split.
    pub split: Option<String>,
    /// Patterns `ENV/TASK`; a task that any of them matches.
    pub tasks: Vec<String>,
    /// Patterns of env folders.
    pub envs: Vec<String>,
    /// Words of difficulty; case, `_`, `-` and blanks do not matter.
    pub difficulties: Vec<String>,
    /// Tags of the task or of its env.
    pub tags: Vec<String>,
    /// Tasks that are left out all the same.
    pub quarantine: Quarantine,
    /// Orders the tasks by this number; without it they are sorted by name.
    pub shuffle: Option<u64>,
    /// At most so many, after everything else.
    pub limit: Option<usize>,
}

/// The tasks that were picked.
#[derive(Clone, Debug, Default)]
pub struct Selected {
    /// Those that can be read, in order.
    pub tasks: Vec<TaskName>,
    /// Those that were asked for and are refused, or are not there, with the reason.
    pub refused: Vec<(TaskName, String)>,
    /// Those that were picked and are in quarantine.
    pub quarantined: Vec<TaskName>,
    /// Names in quarantine that the benchmark does not have, with what was probably meant.
    pub unknown: Vec<(TaskName, String)>,
}

/// A selection that picks nothing, or that makes no sense.
#[derive(Debug, thiserror::Error)]
pub enum SelectError {
    /// There is no such split.
    #[error("there is no split `{name}`; {known}")]
    UnknownSplit {
        /// The name.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// A pattern is no pattern.
    #[error("`{pattern}` is no pattern of {what}: {reason}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What it should match.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A pattern matches nothing.
    #[error("no {what} matches `{pattern}`{hint}")]
    NoMatch {
        /// The pattern.
        pattern: String,
        /// What it should match.
        what: &'static str,
        /// What was probably meant.
        hint: String,
    },
    /// Nothing is left.
    #[error("no task is left: {reason}")]
    Nothing {
        /// Which filter took the last ones.
        reason: String,
    },
}

/// Picks tasks.
///
/// # Errors
///
/// A split or pattern that is not there, or nothing left at the end.
pub fn select(benchmark: &Benchmark, selection: &Selection) -> Result<Selected, SelectError> {
    let split = match &selection.split {
        None => None,
        Some(name) => Some(benchmark.splits.get(name).ok_or_else(|| unknown_split(benchmark, name))?),
    };
    let envs = patterns(&selection.envs, "envs")?;
    let tasks = task_patterns(benchmark, &selection.tasks)?;
    must_match(
        &selection.envs,
        "env",
        |glob| benchmark.envs.iter().any(|env| glob.is_match(&env.folder)),
        |pattern| {
            let envs = || benchmark.envs.iter().map(|env| env.folder.as_str());
            let meant = near(pattern, envs());
            if meant.is_empty() { format!("; the benchmark has {}", listed("env", envs())) } else { meant }
        },
    )?;
    let mut selected = Selected::default();
    let mut filters = Filters::default();
    for env in benchmark.envs.iter().filter(|env| envs.as_ref().is_none_or(|envs| envs.is_match(&env.folder))) {
        for task in &env.tasks {
            let name = TaskName { env: env.folder.clone(), task: task.folder.clone() };
            let listed = split.is_none_or(|split| split.contains(&name));
            if !listed || tasks.as_ref().is_some_and(|tasks| !tasks.is_match(name.to_string())) {
                continue;
            }
            filters.seen += 1;
            if filters.pass(selection, env, task) {
                match (&env.spec, &task.state) {
                    (Ok(_), Ok(_)) => selected.tasks.push(name),
                    (Err(finding), _) | (_, Err(finding)) => {
                        selected.refused.push((name, format!("{}: {}", finding.location(), finding.message)));
                    }
                }
            }
        }
    }
    // What a split names and is not there is said, not passed over in silence.
    if let Some(split) = split {
        for name in split.iter().filter(|name| benchmark.task(name).is_none()) {
            let wanted = envs.as_ref().is_none_or(|envs| envs.is_match(&name.env))
                && tasks.as_ref().is_none_or(|tasks| tasks.is_match(name.to_string()));
            if wanted {
                selected.refused.push((name.clone(), "the split names it, and it is not there".to_owned()));
            }
        }
    }
    if selected.tasks.is_empty() && selected.refused.is_empty() {
        return Err(SelectError::Nothing { reason: filters.reason(benchmark, selection) });
    }
    quarantine(benchmark, &selection.quarantine, &mut selected)?;
    if let Some(seed) = selection.shuffle {
        selected.tasks.sort_by_key(|name| order(seed, name));
    }
    if let Some(limit) = selection.limit {
        selected.tasks.truncate(limit);
    }
    Ok(selected)
}

/// Takes out what is in quarantine: before the limit, so that others take its place.
fn quarantine(benchmark: &Benchmark, tasks: &Quarantine, selected: &mut Selected) -> Result<(), SelectError> {
    let names =
        || benchmark.envs.iter().flat_map(|env| env.tasks.iter().map(|task| format!("{}/{}", env.folder, task.folder)));
    for name in tasks.keys().filter(|name| benchmark.task(name).is_none()) {
        let known: Vec<String> = names().collect();
        selected.unknown.push((name.clone(), near(&name.to_string(), known.iter().map(String::as_str))));
    }
    let picked = std::mem::take(&mut selected.tasks);
    (selected.quarantined, selected.tasks) = picked.into_iter().partition(|name| tasks.contains_key(name));
    if selected.tasks.is_empty() && !selected.quarantined.is_empty() {
        let count = selected.quarantined.len();
        return Err(SelectError::Nothing {
            reason: format!("all that can be run of what was asked for ({count}) is in quarantine"),
        });
    }
    Ok(())
}

/// The place of a task in a shuffled order: by a digest of seed and name, so that it is
/// the same on every machine and among whatever other tasks.
fn order(seed: u64, name: &TaskName) -> longhaul_core::digest::Digest {
    DigestBuilder::new("longhaul-shuffle-1").field("seed", seed.to_be_bytes()).field("task", name.to_string()).finish()
}

#[derive(Default)]
struct Filters {
    seen: usize,
    hard_enough: usize,
}

impl Filters {
    fn pass(&mut self, selection: &Selection, env: &Env, task: &Task) -> bool {
        // What is refused has no difficulty and no tags: it is shown unless it is filtered by them.
        let info = task.state.as_ref().ok();
        let difficulty = selection.difficulties.is_empty()
            || info.and_then(|info| info.difficulty.as_deref()).is_some_and(|difficulty| {
                selection.difficulties.iter().any(|wanted| plain(wanted) == plain(difficulty))
            });
        self.hard_enough += usize::from(difficulty);
        let env_tags = env.spec.as_ref().map(|spec| spec.tags.as_slice()).unwrap_or_default();
        let has = |wanted: &String| {
            let task_tags = info.map(|info| info.tags.as_slice()).unwrap_or_default();
            env_tags.iter().chain(task_tags).any(|tag| plain(tag) == plain(wanted))
        };
        difficulty && (selection.tags.is_empty() || selection.tags.iter().any(has))
    }

    fn reason(&self, benchmark: &Benchmark, selection: &Selection) -> String {
        if self.seen == 0 {
            let splits = splits(benchmark);
            format!("no task is in all of the split, the envs and the patterns that were asked for; splits: {splits}")
        } else if self.hard_enough == 0 {
            format!("none of {} tasks has the difficulty {}", self.seen, quoted(&selection.difficulties))
        } else {
            format!("none of {} tasks has the tag {}", self.hard_enough, quoted(&selection.tags))
        }
    }
}

fn quoted(words: &[String]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" or ")
}

fn plain(word: &str) -> String {
    word.trim().to_lowercase().replace(['-', ' '], "_")
}

fn unknown_split(benchmark: &Benchmark, name: &str) -> SelectError {
    let known = if benchmark.splits.is_empty() {
        "the benchmark has none".to_owned()
    } else {
        format!("there are: {}", splits(benchmark))
    };
    SelectError::UnknownSplit { name: name.to_owned(), known }
}

fn glob(pattern: &str, what: &'static str) -> Result<globset::Glob, SelectError> {
    GlobBuilder::new(pattern).literal_separator(true).build().map_err(|error| SelectError::Pattern {
        pattern: pattern.to_owned(),
        what,
        reason: error.kind().to_string(),
    })
}

fn patterns(texts: &[String], what: &'static str) -> Result<Option<GlobSet>, SelectError> {
    if texts.is_empty() {
        return Ok(None);
    }
    let mut set = GlobSetBuilder::new();
    for text in texts {
        set.add(glob(text, what)?);
    }
    let error = |error: globset::Error| SelectError::Pattern {
        pattern: texts.join(" "),
        what,
        reason: error.kind().to_string(),
    };
    set.build().map(Some).map_err(error)
}

fn task_patterns(benchmark: &Benchmark, texts: &[String]) -> Result<Option<GlobSet>, SelectError> {
    for text in texts {
        if text.matches('/').count() != 1 || text.starts_with('/') || text.ends_with('/') {
            let owners: Vec<_> = benchmark
                .envs
                .iter()
                .filter(|env| env.task(text).is_some())
                .map(|env| format!("`{}/{text}`", env.folder))
                .take(3)
                .collect();
            let reason = if owners.is_empty() {
                "write ENV/TASK".to_owned()
            } else {
                format!("write ENV/TASK: {}", owners.join(", "))
            };
            return Err(SelectError::Pattern { pattern: text.clone(), what: "tasks", reason });
        }
    }
    let names: Vec<String> = benchmark
        .envs
        .iter()
        .flat_map(|env| env.tasks.iter().map(|task| format!("{}/{}", env.folder, task.folder)))
        .collect();
    must_match(
        texts,
        "task",
        |glob| names.iter().any(|name| glob.is_match(name)),
        |pattern| instead(benchmark, pattern, &names),
    )?;
    patterns(texts, "tasks")
}

fn must_match(
    texts: &[String],
    what: &'static str,
    matches: impl Fn(&globset::GlobMatcher) -> bool,
    hint: impl Fn(&str) -> String,
) -> Result<(), SelectError> {
    for text in texts {
        let matcher = glob(text, what)?.compile_matcher();
        if !matches(&matcher) {
            return Err(SelectError::NoMatch { pattern: text.clone(), what, hint: hint(text) });
        }
    }
    Ok(())
}

/// How many names a hint gives.
const NAMES_SHOWN: usize = 3;

/// What is there in place of a pattern of tasks that matches nothing.
fn instead(benchmark: &Benchmark, pattern: &str, names: &[String]) -> String {
    let meant = near(pattern, names.iter().map(String::as_str));
    if !meant.is_empty() {
        return meant;
    }
    let (wanted, _) = pattern.split_once('/').unwrap_or((pattern, ""));
    let matcher = glob(wanted, "envs").ok().map(|glob| glob.compile_matcher());
    let there = benchmark.envs.iter().find(|env| matcher.as_ref().is_some_and(|glob| glob.is_match(&env.folder)));
    let have = match there {
        Some(env) => {
            format!("; `{}` has {}", env.folder, listed("task", env.tasks.iter().map(|task| task.folder.as_str())))
        }
        None => {
            let envs = || benchmark.envs.iter().map(|env| env.folder.as_str());
            let meant = near(wanted, envs());
            if meant.is_empty() {
                format!("; the benchmark has {}", listed("env", envs()))
            } else {
                format!("; there is no env `{wanted}`{meant}")
            }
        }
    };
    format!("{have}; splits: {}", splits(benchmark))
}

/// Names, the first few of them, with their number.
fn listed<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.collect();
    let plural = if names.len() == 1 { "" } else { "s" };
    let more = if names.len() > NAMES_SHOWN { ", ..." } else { "" };
    let shown: Vec<_> = names.iter().take(NAMES_SHOWN).map(|name| format!("`{name}`")).collect();
    format!("{} {what}{plural}: {}{more}", names.len(), shown.join(", "))
}

/// The splits with the number of their tasks.
fn splits(benchmark: &Benchmark) -> String {
    let known: Vec<_> = benchmark.splits.iter().map(|(name, tasks)| format!("{name} ({})", tasks.len())).collect();
    if known.is_empty() { "none".to_owned() } else { known.join(", ") }
}

/// The known names that are nearest to a mistyped one, if any is near.
fn near<'a>(wanted: &str, known: impl Iterator<Item = &'a str>) -> String {
    let letters = wanted.chars().count();
    let candidates: BTreeSet<(usize, &str)> = known
        .filter(|name| name.len().abs_diff(letters) <= 4)
        .map(|name| (distance(wanted, name), name))
        .filter(|(distance, _)| *distance <= 1 + letters / 5)
        .collect();
    let names: Vec<_> = candidates.iter().take(NAMES_SHOWN).map(|(_, name)| format!("`{name}`")).collect();
    if names.is_empty() { String::new() } else { format!("; did you mean {}?", names.join(" or ")) }
}
