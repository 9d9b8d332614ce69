//! What a command line and a run file together ask for.

use std::path::Path;

use crate::benchmark::AskedAgent;
use crate::cli::{PickArgs, RunArgs};
use crate::error::CliError;
use crate::runfile::{BudgetTerms, RunFile, TaskTerms};

/// What is asked for: the words of the command line over those of the run file, if one is named.
///
/// # Errors
///
/// The run file cannot be read, or makes no sense.
pub(super) fn asked(args: &RunArgs) -> Result<RunFile, CliError> {
    let given = &args.pick.benchmark;
    let line = of_line(args);
    if !is_run_file(given) {
        let benchmark = args.other_benchmark.clone().unwrap_or_else(|| given.clone());
        return Ok(RunFile { benchmark: Some(benchmark), ..line });
    }
    let file = RunFile::read(given).map_err(CliError::Strict)?;
    Ok(RunFile { benchmark: args.other_benchmark.clone(), ..line }.over(file))
}

/// A benchmark is a folder, whatever its name.
pub(super) fn is_run_file(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "toml") && !path.is_dir()
}

fn of_line(args: &RunArgs) -> RunFile {
    let (pick, budget) = (&args.pick, &args.budget);
    let mut agents = std::collections::BTreeMap::new();
    let mut each = None;
    for cap in &budget.agent_budget {
        match &cap.agent {
            Some(name) => drop(agents.insert(name.clone(), cap.cap)),
            None => each = Some(cap.cap),
        }
    }
    RunFile {
        name: args.name.clone(),
        benchmark: None,
        preset: args.preset,
        tasks: TaskTerms {
            split: pick.split.clone(),
            tasks: pick.tasks.clone(),
            envs: pick.envs.clone(),
            difficulties: pick.difficulties.clone(),
            tags: pick.tags.clone(),
            quarantine: pick.quarantine.clone(),
            shuffle: pick.shuffle,
            limit: pick.limit,
        },
        agents: args.agents.iter().map(|text| AskedAgent::of(text)).collect(),
        samples: args.max_samples.or(args.samples),
        until_success: args.until_success,
        budget: BudgetTerms {
            episode: crate::benchmark::LimitTerms {
                steps: budget.steps,
                time: budget.time,
                cost: budget.episode.map(|cap| cap.0),
                tokens: budget.max_tokens.map(|cap| cap.0),
            },
            run: budget.run_budget.map(|cap| cap.0),
            agent: each,
            agents,
            judge: budget.judge_budget.map(|cap| cap.0),
            shorten: budget.shorten.then_some(true),
        },
        audit: args.audit.clone(),
        stall: args.stall,
        verify: args.verify,
        judge: args.judge.clone().map(|judge| judge.0),
        hook_policy: args.hook_policy.clone(),
        max_attempts: args.max_attempts,
        max_cut_offs: args.max_cut_offs,
        resume: args.resume,
        snapshots: args.snapshots,
        unfit: args.unfit,
        prices: budget.prices.clone(),
    }
}

/// The tasks that are asked for, as other commands are asked for them.
pub(super) fn pick_args(run: &RunFile) -> Result<PickArgs, CliError> {
    let benchmark = run.benchmark.clone().ok_or_else(|| {
        CliError::Usage(
            "no benchmark is named: the run file needs `benchmark = \"FOLDER\"`, or use --benchmark".to_owned(),
        )
    })?;
    let tasks = run.tasks.clone();
    Ok(PickArgs {
        benchmark,
        tasks: tasks.tasks,
        split: run.split(),
        envs: tasks.envs,
        difficulties: tasks.difficulties,
        tags: tasks.tags,
        quarantine: tasks.quarantine,
        shuffle: tasks.shuffle,
        limit: tasks.limit,
    })
}
