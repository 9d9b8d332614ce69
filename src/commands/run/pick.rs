//! What a command line asks to be run, read and checked before anything starts.

use std::fs::File;
use std::path::{Path, PathBuf};

use longhaul_core::agent::AuditPlan;
use longhaul_core::ids::TaskName;
use longhaul_core::judge::{JudgePlan, Verify};
use longhaul_core::plan::{RetryPolicy, Until};

use super::asked;
use super::secrets::{self, Keys, MissingKey};
use crate::benchmark::{
    Agent, Benchmark, Caps, Depth, EarlierRun, Extent, HookPolicies, LayersFrom, Limits, ModelError, ModelTerms,
    OnRefusal, PolicyError, Preset, Quarantine, SelectError, Selected, Selection, calls_models, gateway, no_endpoint,
    parse_quarantine, select,
};
use crate::cli::{PickArgs, Unfit, VenueArgs};
use crate::commands::prices;
use crate::error::CliError;
use crate::output;
use crate::prices::PriceTable;
use crate::runfile::{self, JudgeTerms, RunFile};
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

/// The most graphics processors that one worker of a run may have; nothing if another coordinator knows.
pub(crate) fn most_gpus(venue: &VenueArgs, settings: &Settings) -> Option<u32> {
    if venue.coordinator.is_some() {
        return None;
    }
    let of_pools = || settings.slurm.pools.values().map(|pool| pool.gpus).max().unwrap_or_default();
    Some(if venue.slurm { of_pools() } else { settings.worker.gpus })
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
    /// The most graphics processors that one of its workers may have; nothing if that is not known.
    pub(crate) gpus: Option<u32>,
    pub(crate) extent: Extent,
    pub(crate) layers_from: Option<LayersFrom>,
    /// The earlier run whose tasks these are.
    pub(crate) earlier: Option<EarlierRun>,
    /// How it stands beside other runs of its coordinator.
    pub(crate) priority: i32,
    /// The run file that it comes from, by its whole path: the same file again means the same run.
    pub(crate) file: Option<String>,
    /// Its turn with that file, until it is submitted.
    pub(crate) turn: Option<File>,
    pub(crate) name: String,
    pub(crate) preset: Option<Preset>,
    pub(crate) models: ModelTerms,
    /// The keys of model vendors that it needs.
    pub(crate) keys: Keys,
    /// Those of them that this process does not have.
    pub(crate) missing_keys: Vec<MissingKey>,
}

impl Wanted {
    /// Reads what is asked for, and checks all that can be checked without starting anything.
    ///
    /// # Errors
    ///
    /// An input is missing or wrong, or a budget cannot hold.
    pub(crate) fn read(run: &RunFile, venue: &VenueArgs, settings: &Settings) -> Result<Self, CliError> {
        if run.agents.is_empty() {
            let message =
                "no agent is named: use --agent (`longhaul run --help` shows how), or [[agent]] in a run file";
            return Err(CliError::Usage(message.to_owned()));
        }
        let pick_args = asked::pick_args(run)?;
        let agents =
            Agent::read_all(&run.agents, &settings.endpoint).map_err(|error| CliError::Plan(Box::new(error)))?;
        let hook_policies = hook_policies(&run.hook_policy, settings)?;
        let limits = Limits::of(run.limits(), settings.run.steps, settings.run.time);
        let samples = run.samples.unwrap_or(1);
        let models = model_terms(run, &agents, samples, &limits, settings)?;
        let (keys, missing_keys) = secrets::of_run(models.gateway.as_ref());
        let picked = pick(&pick_args)?;
        let retry = RetryPolicy {
            max_attempts: run.max_attempts.unwrap_or(settings.run.max_attempts),
            max_cut_offs: run.max_cut_offs.unwrap_or(settings.run.max_cut_offs),
            backoff: settings.run.backoff,
            resume: run.resume.unwrap_or(settings.run.resume),
            snapshots: run.snapshots.unwrap_or(settings.run.snapshots),
        };
        Ok(Self {
            picked,
            agents,
            samples,
            limits,
            retry,
            hook_policies,
            on_refusal: on_refusal(run.unfit.unwrap_or_default()),
            gpus: most_gpus(venue, settings),
            extent: Extent::Whole,
            // Read from a store or a coordinator, which takes longer than reading a command line.
            layers_from: None,
            earlier: None,
            name: run.name.clone().unwrap_or_else(|| default_name(&pick_args.benchmark)),
            preset: run.preset,
            priority: 0,
            file: None,
            turn: None,
            models,
            keys,
            missing_keys,
        })
    }

    /// How many episodes it has, if nothing is left out.
    pub(crate) fn episodes(&self) -> usize {
        self.picked.tasks.len() * self.agents.len() * self.samples as usize
    }
}

/// What it says of models and money, with the endpoints and prices that it needs.
fn model_terms(
    run: &RunFile,
    agents: &[Agent],
    samples: u32,
    limits: &Limits,
    settings: &Settings,
) -> Result<ModelTerms, CliError> {
    let refuse = |error: ModelError| CliError::Plan(Box::new(error));
    if let Some(successes) = run.until_success.filter(|successes| *successes > samples) {
        return Err(CliError::Usage(format!(
            "{successes} samples of a task are to pass, and there are at most {samples}: use --max-samples"
        )));
    }
    let caps = Caps {
        run: run.budget.run.flatten(),
        each_agent: run.budget.agent.flatten(),
        agents: run.budget.agents.clone(),
        judge: run.budget.judge.flatten(),
    };
    let mut terms = ModelTerms {
        budgets: caps.of(agents).map_err(refuse)?,
        gateway: None,
        audit: run.audit.as_ref().map(|audit| AuditPlan {
            endpoint: audit.endpoint.clone(),
            model: audit.model.clone(),
            most: audit.most,
            max_output: audit.max_output,
            images: audit.images,
        }),
        stall: run.stall.unwrap_or_default(),
        verify: run.verify.unwrap_or(settings.run.verify),
        judge: judge(run, settings)?,
        until: run.until_success.map(|successes| Until { successes }),
    };
    // A table that cannot be read is in nobody's way who pays nothing.
    let priced = run.prices.is_some() || calls_models(agents, &terms);
    let prices = if priced { prices::table(run.prices.as_deref(), settings)? } else { PriceTable::default() };
    let shorten = run.budget.shorten.unwrap_or(false);
    let (plan, warnings) = gateway(agents, &terms, limits, &settings.endpoint, &prices, shorten).map_err(refuse)?;
    for warning in warnings {
        output::note(&output::escape(&format!("warning: {warning}")));
    }
    terms.gateway = plan;
    Ok(terms)
}

/// Who judges, if somebody does.
fn judge(run: &RunFile, settings: &Settings) -> Result<Option<JudgePlan>, CliError> {
    let verify: Verify = run.verify.unwrap_or(settings.run.verify);
    let named = run.judge.clone().map_or_else(|| usual_judge(settings), Ok)?;
    if named.is_none() && verify.needs_judge() {
        return Err(CliError::Usage(format!(
            "--verify {verify} needs a judge: use --judge ENDPOINT:MODEL, or `run.judge` in the settings"
        )));
    }
    named.map(|terms| judge_plan(&terms, settings)).transpose()
}

/// Who judges where nothing else is said.
pub(crate) fn usual_judge(settings: &Settings) -> Result<Option<JudgeTerms>, CliError> {
    let Some(text) = settings.run.judge.as_deref() else { return Ok(None) };
    runfile::judge(text).map_err(|error| CliError::Usage(format!("`run.judge` in the settings: {error}")))
}

/// A judge as a run freezes it.
///
/// # Errors
///
/// There is no such endpoint.
pub(crate) fn judge_plan(terms: &JudgeTerms, settings: &Settings) -> Result<JudgePlan, CliError> {
    let endpoint = settings
        .endpoint
        .get(&terms.endpoint)
        .ok_or_else(|| CliError::Plan(Box::new(no_endpoint("the judge", &terms.endpoint, &settings.endpoint))))?;
    Ok(terms.plan(endpoint.protocol, endpoint.vendor(&terms.endpoint)))
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
