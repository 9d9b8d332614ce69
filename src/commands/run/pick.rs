//! What a command line asks to be run, read and checked before anything starts.

use std::path::{Path, PathBuf};

use longhaul_core::ids::TaskName;
use longhaul_core::plan::RetryPolicy;

use crate::benchmark::{
    Agent, Benchmark, Depth, Extent, HookPolicies, LayersFrom, Limits, OnRefusal, PolicyError, Quarantine, SelectError,
    Selected, Selection, parse_quarantine, select,
};
use crate::cli::{PickArgs, RunArgs, Unfit};
use crate::error::CliError;
use crate::output;
use crate::settings::Settings;

/// How many refused tasks are named one by one.
const REFUSED_SHOWN: usize = 5;

/// Tasks of a benchmark.
#[derive(Debug)]
pub(crate) struct Picked {
    /// The benchmark.
    pub(crate) benchmark: Benchmark,
    /// The tasks, in order.
    pub(crate) tasks: Vec<TaskName>,
    /// What was asked for and cannot be read, with the reason.
    pub(crate) refused: Vec<(TaskName, String)>,
    /// What was asked for and is in quarantine.
    pub(crate) quarantined: Vec<TaskName>,
}

/// Reads the benchmark and picks tasks of it.
///
/// # Errors
///
/// It is no benchmark, or nothing is left.
pub(crate) fn pick(args: &PickArgs) -> Result<Picked, CliError> {
    let benchmark = Benchmark::read(&args.benchmark, Depth::Specs).map_err(|error| CliError::Plan(Box::new(error)))?;
    let selection = Selection {
        split: args.split.clone(),
        tasks: args.tasks.clone(),
        envs: args.envs.clone(),
        difficulties: args.difficulties.clone(),
        tags: args.tags.clone(),
        quarantine: quarantine(&args.quarantine)?,
        shuffle: args.shuffle,
        limit: args.limit,
    };
    let selected = select(&benchmark, &selection).map_err(|error| CliError::Plan(Box::new(error)))?;
    for (task, reason) in selected.refused.iter().take(REFUSED_SHOWN) {
        output::note(&output::escape(&format!("warning: {task} is left out: {reason}")));
    }
    if selected.refused.len() > REFUSED_SHOWN {
        let more = selected.refused.len() - REFUSED_SHOWN;
        output::note(&format!("warning: {more} more tasks are left out; `longhaul lint` shows why"));
    }
    for (task, hint) in &selected.unknown {
        output::note(&output::escape(&format!("warning: in quarantine, and not in the benchmark: {task}{hint}")));
    }
    if !selected.quarantined.is_empty() {
        let names: Vec<String> =
            selected.quarantined.iter().map(|task| output::escape_line(&task.to_string())).collect();
        output::note(&format!("left out, since they are in quarantine ({}): {}", names.len(), names.join(", ")));
    }
    if selected.tasks.is_empty() {
        let reason = "every task that was asked for is refused".to_owned();
        return Err(CliError::Plan(Box::new(SelectError::Nothing { reason })));
    }
    let Selected { tasks, refused, quarantined, .. } = selected;
    Ok(Picked { benchmark, tasks, refused, quarantined })
}

/// Reads lists of tasks that are to be left out.
fn quarantine(files: &[PathBuf]) -> Result<Quarantine, CliError> {
    let mut tasks = Quarantine::new();
    for path in files {
        let text = std::fs::read_to_string(path).map_err(|source| CliError::File {
            path: path.clone(),
            doing: "read",
            source,
        })?;
        let listed = parse_quarantine(&text).map_err(|error| CliError::File {
            path: path.clone(),
            doing: "used as a list of tasks",
            source: std::io::Error::new(std::io::ErrorKind::InvalidData, error),
        })?;
        tasks.extend(listed);
    }
    Ok(tasks)
}

/// Reads hook policies over the setting.
pub(crate) fn hook_policies(texts: &[String], settings: &Settings) -> Result<HookPolicies, CliError> {
    let texts = texts.iter().map(String::as_str);
    HookPolicies::parse(settings.run.hook_policy, texts)
        .map_err(|error: PolicyError| CliError::Usage(error.to_string()))
}

/// A run that was asked for.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) picked: Picked,
    pub(crate) agents: Vec<Agent>,
    pub(crate) samples: u32,
    pub(crate) limits: Limits,
    pub(crate) retry: RetryPolicy,
    pub(crate) hook_policies: HookPolicies,
    pub(crate) on_refusal: OnRefusal,
    pub(crate) extent: Extent,
    pub(crate) layers_from: Option<LayersFrom>,
    pub(crate) name: String,
}

impl Wanted {
    pub(crate) fn read(args: &RunArgs, settings: &Settings) -> Result<Self, CliError> {
        let agents = Agent::parse_all(args.agents.iter().map(String::as_str))
            .map_err(|error| CliError::Plan(Box::new(error)))?;
        let hook_policies = hook_policies(&args.hook_policy, settings)?;
        let picked = pick(&args.pick)?;
        let limits = Limits {
            steps: args.steps,
            default_steps: settings.run.steps,
            time: args.time.unwrap_or(settings.run.time),
        };
        let retry = RetryPolicy {
            max_attempts: args.max_attempts.unwrap_or(settings.run.max_attempts),
            backoff: settings.run.backoff,
        };
        let on_refusal = on_refusal(args.unfit);
        let name = args.name.clone().unwrap_or_else(|| default_name(&args.pick.benchmark));
        let (samples, extent) = (args.samples, Extent::Whole);
        // Read from a store or a coordinator, which takes longer than reading a command line.
        let layers_from = None;
        Ok(Self { picked, agents, samples, limits, retry, hook_policies, on_refusal, extent, layers_from, name })
    }

    /// How many episodes it has, if nothing is left out.
    pub(crate) fn episodes(&self) -> usize {
        self.picked.tasks.len() * self.agents.len() * self.samples as usize
    }
}

/// What the command line says of envs that cannot be run here.
pub(crate) const fn on_refusal(unfit: Unfit) -> OnRefusal {
    match unfit {
        Unfit::Refuse => OnRefusal::Fail,
        Unfit::Skip => OnRefusal::PassOver,
        Unfit::Run => OnRefusal::RunAnyway,
    }
}

/// A run without a name is called after its benchmark's folder.
pub(crate) fn default_name(benchmark: &Path) -> String {
    let resolved = std::fs::canonicalize(benchmark).unwrap_or_else(|_| benchmark.to_owned());
    resolved.file_name().map_or_else(|| "run".to_owned(), |name| name.to_string_lossy().into_owned())
}
