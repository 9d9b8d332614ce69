//! `run:RUN` in place of a benchmark: the tasks of an earlier run, as that run froze them.
//!
//! Specs are written into a folder of their own, from which tasks are picked as from any benchmark;
//! what is frozen for the new run are the plans of the earlier one, by their digests. No clone is
//! read. Its limits hold where nobody says otherwise, and how it scored holds in any case.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use longhaul_core::digest::Digest;
use longhaul_core::ids::{RunId, TaskName};
use longhaul_core::plan::{EnvPlan, EpisodePlan, Scoring, TaskPlan, Tree};
use longhaul_proto::{convert, v1};
use serde_json::json;

use super::pick::Wanted;
use crate::benchmark::{EarlierRun, EarlierTask, OnRefusal};
use crate::cli::{SourceArgs, VenueArgs};
use crate::client::Source;
use crate::error::CliError;
use crate::reading;
use crate::runfile::RunFile;
use crate::settings::Settings;

/// What a benchmark's name begins with that is a run.
const PREFIX: &str = "run:";

/// The names that a spec may have, as benchmarks are read.
const SPECS: [&str; 3] = ["yaml", "yml", "json"];

/// An earlier run, ready to be used again.
#[derive(Debug)]
pub(super) struct Like {
    run: String,
    name: String,
    earlier: EarlierRun,
    /// One of its episodes: in what is read of it all are alike.
    first: EpisodePlan,
    /// The specs, laid out as a benchmark.
    folder: tempfile::TempDir,
}

impl Like {
    /// The run that is named in place of a benchmark, read from where the new run is to be; none if
    /// it is a benchmark that is named.
    ///
    /// # Errors
    ///
    /// The run is not there, or cannot be read.
    pub(super) async fn named(
        asked: &RunFile,
        venue: &VenueArgs,
        settings: &Settings,
    ) -> Result<Option<Self>, CliError> {
        let named = asked.benchmark.as_deref().filter(|path| !path.exists()).and_then(Path::to_str);
        let Some(given) = named.and_then(|named| named.strip_prefix(PREFIX)) else { return Ok(None) };
        let args = SourceArgs { coordinator: venue.coordinator.clone(), store: venue.store.clone() };
        let source = Source::open(&args, settings).await?;
        let summary = source.run(given).await?;
        Self::read(&source, summary).await.map(Some)
    }

    async fn read(source: &Source, summary: v1::RunSummary) -> Result<Self, CliError> {
        let run = convert::parsed::<RunId>("run_id", &summary.run_id).map_err(CliError::Answer)?;
        let failed = |source| CliError::File { path: std::env::temp_dir(), doing: "written", source };
        let folder = tempfile::Builder::new().prefix("longhaul-like-").tempdir().map_err(failed)?;
        let mut tasks: BTreeMap<TaskName, EarlierTask> = BTreeMap::new();
        let mut first = None;
        let rows = source.episodes(run).await?;
        if reading::imported(source, rows.first()).await?.is_some() {
            return Err(CliError::Usage(format!("run {run} was imported: its tasks are not there")));
        }
        for row in rows {
            let name: TaskName = convert::parsed("task", &row.task).map_err(CliError::Answer)?;
            if tasks.contains_key(&name) {
                continue;
            }
            let plan = convert::digest("plan", &row.plan).map_err(CliError::Answer)?;
            let what = format!("the plan of episode {}", row.episode_id);
            let episode: EpisodePlan = reading::record(source, &plan, &what).await?;
            let plan: TaskPlan = reading::record(source, &episode.task, &what).await?;
            let env: EnvPlan = reading::record(source, &plan.env, &what).await?;
            let home = folder.path().join("environments").join(&name.env);
            if !home.exists() {
                spec(source, &env.files, "env", &home).await?;
            }
            spec(source, &plan.files, "task", &home.join("tasks").join(&name.task)).await?;
            let steps = episode.budget.max_steps;
            first.get_or_insert(episode);
            tasks.insert(name, EarlierTask { plan, env, steps });
        }
        let Some(first) = first else {
            let part = "episodes (any more)".to_owned();
            return Err(CliError::NoSuchPart { whole: format!("run {}", summary.run_id), part, have: Vec::new() });
        };
        splits(&tasks, &folder.path().join("splits"))?;
        let earlier = EarlierRun { benchmark: summary.benchmark, tasks };
        Ok(Self { run: summary.run_id, name: summary.name, earlier, first, folder })
    }

    /// Fills in what is not said and was said of the earlier run.
    ///
    /// # Errors
    ///
    /// Something is said that the earlier run has decided.
    pub(super) fn fill(&self, asked: &mut RunFile) -> Result<(), CliError> {
        if asked.verify.is_some() {
            return Err(CliError::Usage(format!(
                "the tasks of run {} are scored as they were: leave --verify out",
                self.run
            )));
        }
        let said = asked.limits();
        let (own, budget) = (&mut asked.budget.episode, self.first.budget);
        // The most steps are each task's own.
        own.time = own.time.or_else(|| said.time.is_none().then_some(budget.max_time));
        own.cost = own.cost.or_else(|| said.cost.is_none().then_some(budget.max_cost));
        own.tokens = own.tokens.or_else(|| said.tokens.is_none().then_some(budget.max_tokens));
        asked.stall = asked.stall.or(Some(self.first.stall));
        asked.name.get_or_insert_with(|| self.name.clone());
        asked.benchmark = Some(self.folder.path().to_owned());
        Ok(())
    }

    /// Has the earlier run's tasks used.
    ///
    /// # Errors
    ///
    /// A judge scored them, and none is named.
    pub(super) fn apply(self, wanted: &mut Wanted) -> Result<(), CliError> {
        let judged = |task: &EarlierTask| matches!(task.plan.scoring, Scoring::Checklist { .. } | Scoring::Both { .. });
        if wanted.models.judge.is_none() && self.earlier.tasks.values().any(judged) {
            let judge = self.first.judge.map(|judge| format!(": it was {}:{}", judge.endpoint, judge.model));
            return Err(CliError::Usage(format!(
                "a judge scored the tasks of run {}: name one with --judge ENDPOINT:MODEL{}",
                self.run,
                judge.unwrap_or_default()
            )));
        }
        // That they can be run is known.
        wanted.on_refusal = OnRefusal::RunAnyway;
        wanted.earlier = Some(self.earlier);
        Ok(())
    }
}

/// Writes the spec that is at the root of a tree into a folder.
async fn spec(source: &Source, files: &Digest, stem: &str, folder: &Path) -> Result<(), CliError> {
    let what = format!("the {stem} that is to be used again");
    let tree: Tree = reading::record(source, files, &what).await?;
    let failed = |source| CliError::File { path: folder.to_owned(), doing: "written", source };
    fs::create_dir_all(folder).map_err(failed)?;
    for name in SPECS.map(|extension| format!("{stem}.{extension}")) {
        if let Some(bytes) = reading::file(source, &tree, &name, &what).await? {
            fs::write(folder.join(&name), bytes).map_err(failed)?;
        }
    }
    Ok(())
}

/// Writes the splits that tasks were of, as benchmarks have them.
fn splits(tasks: &BTreeMap<TaskName, EarlierTask>, folder: &Path) -> Result<(), CliError> {
    let failed = |source| CliError::File { path: folder.to_owned(), doing: "written", source };
    fs::create_dir_all(folder).map_err(failed)?;
    let envs: BTreeSet<&String> = tasks.keys().map(|name| &name.env).collect();
    for env in envs {
        let mut named: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (name, task) in tasks.iter().filter(|(name, _)| name.env == *env) {
            for split in &task.plan.splits {
                named.entry(split).or_default().push(&name.task);
            }
        }
        let of = |split: &str| named.get(split).cloned().unwrap_or_default();
        let others: BTreeMap<_, _> =
            named.iter().filter(|(split, _)| !matches!(**split, "train" | "test" | "all")).collect();
        let split = json!({
            "env_folder": env, "train_tasks": of("train"), "test_tasks": of("test"), "additional_splits": others,
        });
        fs::write(folder.join(format!("{env}_split.json")), format!("{split:#}\n")).map_err(failed)?;
    }
    Ok(())
}
