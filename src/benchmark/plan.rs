//! Freezes what a run needs: plans of its envs, tasks and episodes, and all of their
//! files, so that nothing that happens to the benchmark afterwards changes the run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use longhaul_core::digest::{Digest, DigestBuilder};
use longhaul_core::hidden;
use longhaul_core::ids::TaskName;
use longhaul_core::lint::{Finding, Need};
use longhaul_core::plan::{
    EnvEntry, EnvPlan, EpisodeEntry, EpisodePlan, MountPlan, Resources, RetryPolicy, RunPlan, Scoring, TaskPlan,
};
use longhaul_core::spec::{EnvSpec, TaskSpec};
use longhaul_core::text::named;
use longhaul_core::time::Millis;

use super::agents::{Agent, AgentError, AgentPlanner};
use super::check;
use super::earlier::{EarlierRun, EarlierTask};
use super::layout::MountSource;
use super::limits::Limits;
use super::models::ModelTerms;
use super::pins::{LayersFrom, PinError};
use super::policy::HookPolicies;
use super::read::{Benchmark, Env};
use super::rounds;
use super::scoring;
use super::tree::{Blobs, Hide, TreeBuilder, TreeError};

/// How long a task's hooks may run where the task does not say.
const HOOK_SECS: u64 = 600;

/// How long the screen is left alone after an export hook where the task does not say.
const EXPORT_SETTLE_SECS: f64 = 15.0;

/// What an episode takes at most beside its agent's time: layers, setup, export, verification.
/// The same for all, so that it says nothing of which of them are long.
const AROUND: Millis = Millis::from_secs(3600);

/// Why an episode that was only to start has no verdict.
const START_ONLY: &str = "it has started, which is all that was asked for";

/// The longest that a task may ask for the screen to be left alone, in seconds.
const MAX_EXPORT_SETTLE_SECS: f64 = 600.0;

/// What becomes of envs that cannot be run here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnRefusal {
    /// Nothing is run.
    #[default]
    Fail,
    /// They are passed over, and named.
    PassOver,
    /// They are run all the same: what their scripts show may be wrong.
    RunAnyway,
}

/// How far the episodes of a run go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extent {
    /// To a verdict.
    #[default]
    Whole,
    /// To the first observation and the agent's end: nothing is exported or verified.
    Start,
}

/// What a run is to be.
#[derive(Debug)]
pub struct Request<'a> {
    /// A name for people.
    pub name: String,
    /// The tasks, in order.
    pub tasks: &'a [TaskName],
    /// The agents.
    pub agents: &'a [Agent],
    /// How often each task is run by each agent.
    pub samples: u32,
    /// What an episode may use.
    pub limits: Limits,
    /// How faults are tried again.
    pub retry: RetryPolicy,
    /// What becomes of layers whose hooks fail.
    pub hook_policies: &'a HookPolicies,
    /// A number that whatever is random in the run comes from.
    pub seed: u64,
    /// What becomes of envs that cannot be run here.
    pub on_refusal: OnRefusal,
    /// The most graphics processors that one of its workers may have; nothing if that is not known.
    pub gpus: Option<u32>,
    /// The earlier run whose layers are used again, if there is one.
    pub layers_from: Option<&'a LayersFrom>,
    /// The earlier run whose tasks these are, as it froze them, if there is one.
    pub earlier: Option<&'a EarlierRun>,
    /// How far episodes go.
    pub extent: Extent,
    /// What it says of models and of money.
    pub models: &'a ModelTerms,
}

/// Something that was asked for and is not part of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedOver {
    /// The env.
    pub env: String,
    /// How many of the tasks asked for are in it.
    pub tasks: usize,
    /// Why it cannot be run.
    pub reason: String,
}

/// What a run would need of an env, without freezing it.
#[derive(Clone, Debug)]
pub struct EnvPreview {
    /// The env's folder name.
    pub env: String,
    /// How many of the tasks asked for are in it.
    pub tasks: usize,
    /// What it asks of a node.
    pub resources: Resources,
    /// Whether it reaches the network.
    pub net: bool,
    /// What it needs beyond a plain container.
    pub needs: Vec<Need>,
    /// Why it cannot be run, if so.
    pub refused: Option<String>,
}

/// A run, ready to be submitted.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The run.
    pub run: RunPlan,
    /// The blob that it is in.
    pub digest: Digest,
    /// The longest that each of its episodes may take in all, in their order.
    pub limits: Vec<Millis>,
    /// What was asked for and is not part of it.
    pub passed_over: Vec<PassedOver>,
    /// Files that could not be frozen, relative to the benchmark: links out of the clone
    /// and the like.
    pub left_out: Vec<String>,
    /// Tasks whose checklist was asked for and cannot be judged by, with the reason.
    pub checklists: Vec<(TaskName, String)>,
}

/// A run that cannot be planned.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// Envs need what a container cannot give.
    #[error("{}", refusal(.0))]
    Refused(Vec<PassedOver>),
    /// Nothing is left to be run.
    #[error("nothing is left to be run")]
    Nothing,
    /// There is no such task.
    #[error("there is no task {0}")]
    NoTask(TaskName),
    /// A spec was changed while the run was planned, or is refused.
    #[error("{}: {}", .0.location(), .0.message)]
    Spec(Box<Finding>),
    /// Rounds ask a judge, and there is none.
    #[error("no judge is named (`--judge`), and rounds of these tasks ask one: {}", named(.0, 10))]
    NoJudge(Vec<TaskName>),
    /// Rounds cap dollars, and nothing says what a model costs.
    #[error("{user} calls `{vendor}:{model}`, which has no price, and rounds of these tasks cap dollars: {}", named(.tasks, 10))]
    NoPrice {
        /// Who calls it.
        user: String,
        /// The vendor.
        vendor: String,
        /// The model.
        model: String,
        /// The tasks.
        tasks: Vec<TaskName>,
    },
    /// A mount cannot be made.
    #[error("the env `{env}` cannot be run: its mount of `{source_text}` {reason}")]
    Mount {
        /// The env.
        env: String,
        /// The mount's source, as the spec has it.
        source_text: String,
        /// Why.
        reason: &'static str,
    },
    /// There are more episodes than a run can have.
    #[error("{0} episodes are more than a run can have")]
    TooMany(u128),
    /// An agent cannot be used.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// A folder cannot be frozen.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// The layers of an earlier run cannot be used again.
    #[error(transparent)]
    Pins(#[from] PinError),
}

fn refusal(envs: &[PassedOver]) -> String {
    let mut text = format!("{} of the envs asked for cannot be run here:", envs.len());
    for env in envs.iter().take(10) {
        text.push_str("\n  ");
        text.push_str(&env.env);
        text.push_str(": ");
        text.push_str(&env.reason);
    }
    if envs.len() > 10 {
        text.push_str("\n  and more (`--dry-run` lists them)");
    }
    text
}

/// What a run of these tasks would need, env by env, where a worker has at most so many graphics
/// processors.
#[must_use]
pub fn preview(benchmark: &Benchmark, tasks: &[TaskName], gpus: Option<u32>) -> Vec<EnvPreview> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for task in tasks {
        *counts.entry(task.env.as_str()).or_default() += 1;
    }
    let envs = counts.into_iter().filter_map(|(name, count)| Some((benchmark.env(name)?, count)));
    envs.filter_map(|(env, tasks)| {
        let spec = env.spec.as_ref().ok()?;
        let needs = check::needs(&benchmark.layout, &benchmark.env_dir(env), spec, &env.file);
        let beyond: Vec<String> = needs
            .iter()
            .filter_map(|(need, evidence)| {
                let place = evidence.place.map(|place| format!(":{}", place.line)).unwrap_or_default();
                let shown = format!("{need} ({}{place}: {})", evidence.file, evidence.text);
                match need {
                    Need::Gpu => gpus
                        .filter(|most| spec.resources.gpus > *most)
                        .map(|most| format!("{shown}, and workers have {most} (`worker.gpus`, or `gpus` of a pool)")),
                    need => need.is_beyond_a_container().then_some(shown),
                }
            })
            .collect();
        Some(EnvPreview {
            env: env.folder.clone(),
            tasks,
            resources: spec.resources,
            net: spec.net,
            needs: needs.iter().map(|(need, _)| need).collect(),
            refused: (!beyond.is_empty()).then(|| format!("it needs {}", beyond.join(", "))),
        })
    })
    .collect()
}

/// Plans a run, and gives every blob of it to `blobs`.
///
/// # Errors
///
/// An env that cannot be run here (unless those are passed over), a task or script that
/// is not there, a file that cannot be read, or a blob that was not taken.
pub fn plan(benchmark: &Benchmark, request: &Request<'_>, blobs: &mut dyn Blobs) -> Result<Planned, PlanError> {
    if request.extent == Extent::Whole {
        rounds::ready(benchmark, request.tasks, request.agents, request.models)?;
    }
    let passed_over = refused_envs(benchmark, request)?;
    let tasks = request.tasks.iter().filter(|task| passed_over.iter().all(|env| env.env != task.env));
    let mut planner = Planner {
        benchmark,
        request,
        builder: TreeBuilder::new(&benchmark.layout, blobs),
        envs: BTreeMap::new(),
        entries: Vec::new(),
        checklists: Vec::new(),
    };
    let mut planned = Vec::new();
    for task in tasks {
        planned.push(planner.task(task)?);
    }
    if planned.is_empty() || request.agents.is_empty() || request.samples == 0 {
        return Err(PlanError::Nothing);
    }
    let wanted = planned.len() as u128 * request.agents.len() as u128 * u128::from(request.samples);
    if wanted > u128::from(u32::MAX) {
        return Err(PlanError::TooMany(wanted));
    }
    let models = request.models;
    let gateway = models.gateway.as_ref();
    let gateway = gateway.map(|plan| planner.builder.put_json(Path::new("the gateway"), plan)).transpose()?;
    let (episodes, limits) = planner.episodes(&planned, gateway)?;
    let run = RunPlan {
        name: request.name.clone(),
        benchmark: match request.earlier {
            Some(earlier) => earlier.benchmark.clone(),
            None => benchmark.layout.root().to_string_lossy().into_owned(),
        },
        agents: request.agents.iter().map(Agent::spec).collect(),
        envs: planner.entries,
        episodes,
        retry: request.retry,
        budgets: models.budgets.clone(),
        gateway,
        until: models.until,
    };
    let digest = planner.builder.put_json(Path::new("the run"), &run)?;
    let left_out = planner.builder.into_left_out();
    let left_out = left_out.iter().map(|path| benchmark.layout.name(path)).collect();
    Ok(Planned { run, digest, limits, passed_over, left_out, checklists: planner.checklists })
}

/// The memory, in MiB, of the largest agent with a sandbox of its own beside the env's.
fn agents_memory(agents: &[Agent]) -> u32 {
    let of = |agent: &Agent| match agent {
        Agent::External { external, .. } => external.memory_mib,
        Agent::Idle | Agent::Scripted { .. } | Agent::Model { .. } => 0,
    };
    agents.iter().map(of).max().unwrap_or_default()
}

fn refused_envs(benchmark: &Benchmark, request: &Request<'_>) -> Result<Vec<PassedOver>, PlanError> {
    if request.on_refusal == OnRefusal::RunAnyway {
        return Ok(Vec::new());
    }
    let refused: Vec<PassedOver> = preview(benchmark, request.tasks, request.gpus)
        .into_iter()
        .filter_map(|env| Some(PassedOver { env: env.env, tasks: env.tasks, reason: env.refused? }))
        .collect();
    if request.on_refusal == OnRefusal::Fail && !refused.is_empty() {
        return Err(PlanError::Refused(refused));
    }
    Ok(refused)
}

struct PlannedTask {
    name: TaskName,
    plan: Digest,
    env: u32,
    steps: Option<u32>,
}

struct Planner<'a> {
    benchmark: &'a Benchmark,
    request: &'a Request<'a>,
    builder: TreeBuilder<'a>,
    /// Index into the entries, by name.
    envs: BTreeMap<&'a str, u32>,
    entries: Vec<EnvEntry>,
    /// Tasks whose checklist was asked for and cannot be used, with the reason.
    checklists: Vec<(TaskName, String)>,
}

impl<'a> Planner<'a> {
    fn task(&mut self, name: &TaskName) -> Result<PlannedTask, PlanError> {
        if let Some(task) = self.request.earlier.and_then(|earlier| earlier.tasks.get(name)) {
            return self.again(name, task);
        }
        let (env, _) = self.benchmark.task(name).ok_or_else(|| PlanError::NoTask(name.clone()))?;
        let task = self.benchmark.task_spec(env, &name.task).map_err(PlanError::Spec)?;
        let spec = env.spec.as_ref().map_err(|finding| PlanError::Spec(finding.clone()))?;
        let index = self.env(env, spec)?;
        let dir = self.benchmark.env_dir(env).join("tasks").join(&name.task);
        let dir = self.inside(env, &dir)?;
        if let Some(odd) = check::round_hooks(&dir, &task) {
            let file = self.benchmark.layout.name(&dir.join("task.json"));
            return Err(PlanError::Spec(Box::new(Finding::new(file, odd))));
        }
        let whole = self.request.extent == Extent::Whole;
        let scoring = if whole {
            let models = self.request.models;
            let (scoring, told) = scoring::scoring(&task, &dir, models.verify, models.judge.is_some());
            self.checklists.extend(told.map(|reason| (name.clone(), reason)));
            scoring
        } else {
            Scoring::None { reason: START_ONLY.to_owned() }
        };
        let plan = TaskPlan {
            name: name.clone(),
            id: task.id.clone(),
            description: task.description.clone(),
            env: self.entries[index as usize].plan,
            files: self.builder.tree(&dir, Hide::Nothing)?,
            pre_task: task.hooks.pre_task.clone(),
            init_script: task.init.init_script.clone(),
            post_task: task.hooks.post_task.clone().filter(|_| whole),
            hook_time: Millis::from_secs(task.hooks.timeout_sec.map_or(HOOK_SECS, u64::from)),
            export_settle: if whole { export_settle(&task) } else { Millis(0) },
            scoring,
            metadata: task.metadata,
            spec: task.raw,
            splits: self.splits_of(name),
            rounds: task.rounds.filter(|_| whole),
            restart: task.restart.or_else(|| spec.restart.clone()),
        };
        let steps = task.init.max_steps;
        let plan = self.builder.put_json(&dir, &plan)?;
        Ok(PlannedTask { name: name.clone(), plan, env: index, steps })
    }

    /// A task as an earlier run froze it, on its env as that was.
    fn again(&mut self, name: &TaskName, task: &'a EarlierTask) -> Result<PlannedTask, PlanError> {
        let env = match self.envs.get(name.env.as_str()) {
            Some(index) => *index,
            None => self.entry(&task.env.name, Path::new("an env"), task.env.clone())?,
        };
        let plan = TaskPlan { env: self.entries[env as usize].plan, ..task.plan.clone() };
        let plan = self.builder.put_json(Path::new("a task"), &plan)?;
        Ok(PlannedTask { name: name.clone(), plan, env, steps: Some(task.steps) })
    }

    fn splits_of(&self, name: &TaskName) -> Vec<String> {
        let listing = self.benchmark.splits.iter().filter(|(_, tasks)| tasks.contains(name));
        listing.map(|(split, _)| split.clone()).collect()
    }

    fn env(&mut self, env: &'a Env, spec: &EnvSpec) -> Result<u32, PlanError> {
        if let Some(index) = self.envs.get(env.folder.as_str()) {
            return Ok(*index);
        }
        let dir = self.benchmark.env_dir(env);
        let (mounts, tasks_target) = self.mounts(env, &dir, spec)?;
        let dir = self.inside(env, &dir)?;
        let plan = EnvPlan {
            name: env.folder.clone(),
            id: spec.id.clone(),
            resources: spec.resources,
            width: spec.screen.width,
            height: spec.screen.height,
            net: spec.net,
            mounts,
            tasks_target,
            accounts: spec.accounts.clone(),
            pre_start: spec.hooks.pre_start.clone(),
            post_start: spec.hooks.post_start.clone(),
            reset: spec.hooks.reset.clone(),
            files: self.builder.tree(&dir, Hide::TaskFolders)?,
            hook_policy: self.request.hook_policies.of(&env.folder),
            pins: Vec::new(),
        };
        self.entry(&env.folder, &dir, plan)
    }

    fn entry(&mut self, name: &'a str, dir: &Path, mut plan: EnvPlan) -> Result<u32, PlanError> {
        if let Some(earlier) = self.request.layers_from {
            plan.pins = earlier.pins(&plan)?;
        }
        let asked = plan.resources;
        let plan = self.builder.put_json(dir, &plan)?;
        let index = u32::try_from(self.entries.len()).map_err(|_| PlanError::TooMany(self.entries.len() as u128))?;
        let memory_mib = asked.memory_mib.saturating_add(agents_memory(self.request.agents));
        let resources = Resources { memory_mib, ..asked };
        self.entries.push(EnvEntry { name: name.to_owned(), plan, resources });
        self.envs.insert(name, index);
        Ok(index)
    }

    /// The mounts of an env, its tasks apart: those are hidden from the env's own hooks,
    /// and each task sees a view of its own folder.
    fn mounts(&mut self, env: &Env, dir: &Path, spec: &EnvSpec) -> Result<(Vec<MountPlan>, Option<String>), PlanError> {
        let layout = &self.benchmark.layout;
        let environments = layout.environments();
        let (mut mounts, mut tasks_target) = (Vec::new(), None);
        for mount in &spec.mounts {
            let refuse =
                |reason| PlanError::Mount { env: env.folder.clone(), source_text: mount.source.clone(), reason };
            let target =
                clean_target(&mount.target).ok_or_else(|| refuse("has a target that is no plain absolute path"))?;
            let tree = match layout.mount_source(dir, &mount.source) {
                MountSource::Outside => return Err(refuse("leads out of the benchmark's clone")),
                // Version control keeps no empty folders, and scripts look for them.
                MountSource::Missing => self.builder.empty()?,
                MountSource::Found(path) => match place_of(&environments, &path) {
                    Place::AboveEnvs => return Err(refuse("would show more than one env")),
                    Place::Tasks => {
                        tasks_target.get_or_insert(target);
                        continue;
                    }
                    Place::Env => {
                        tasks_target.get_or_insert_with(|| format!("{target}/tasks"));
                        self.builder.tree(&path, Hide::Tasks)?
                    }
                    _ if path.is_file() => return Err(refuse("is a single file: mount the folder that it is in")),
                    Place::WithinTasks => {
                        self.builder.hide(self.secrets_of(&environments, &path));
                        self.builder.tree(&path, Hide::Secrets)?
                    }
                    Place::Elsewhere => self.builder.tree(&path, Hide::Nothing)?,
                },
            };
            mounts.push(MountPlan { target, tree, writable: mount.writable });
        }
        Ok((mounts, tasks_target))
    }

    /// What the spec of the task that a path is of names as what scores it. One that cannot be read
    /// names nothing, and is not run.
    fn secrets_of(&self, environments: &Path, path: &Path) -> Vec<PathBuf> {
        let named = || {
            let mut parts = path.strip_prefix(environments).ok()?.iter();
            let (env, task) = (parts.next()?.to_str()?, parts.nth(1)?.to_str()?);
            let spec = self.benchmark.task_spec(self.benchmark.env(env)?, task).ok()?;
            let folder = environments.join(env).join("tasks").join(task);
            let named = hidden::named(&spec.raw, spec.rounds.as_ref());
            Some(named.into_iter().map(|file| folder.join(file)).collect())
        };
        named().unwrap_or_default()
    }

    /// A folder with its links resolved, if it is inside of the clone.
    fn inside(&self, env: &Env, dir: &Path) -> Result<PathBuf, PlanError> {
        let resolved = dir.canonicalize().map_err(|source| TreeError::Read { path: dir.to_owned(), source })?;
        if self.benchmark.layout.contains(&resolved) {
            return Ok(resolved);
        }
        Err(PlanError::Mount {
            env: env.folder.clone(),
            source_text: self.benchmark.layout.name(dir),
            reason: "leads out of the benchmark's clone",
        })
    }

    /// Samples come last, so that every task is begun before any is repeated.
    fn episodes(
        &mut self,
        tasks: &[PlannedTask],
        gateway: Option<Digest>,
    ) -> Result<(Vec<EpisodeEntry>, Vec<Millis>), PlanError> {
        let models = self.request.models;
        let (mut episodes, mut limits) = (Vec::new(), Vec::new());
        let mut planners: Vec<_> = self.request.agents.iter().map(AgentPlanner::new).collect();
        for sample in 0..self.request.samples {
            for task in tasks {
                for (agent, planner) in planners.iter_mut().enumerate() {
                    let budget = self.request.limits.budget(task.steps);
                    let plan = EpisodePlan {
                        task: task.plan,
                        agent: planner.plan(&task.name, &mut self.builder)?,
                        sample,
                        budget,
                        seed: self.seed(&task.name, agent, sample),
                        gateway,
                        audit: models.audit.clone(),
                        stall: models.stall,
                        judge: models.judge.clone().filter(|_| self.request.extent == Extent::Whole),
                        snapshots: self.request.retry.snapshots,
                    };
                    let plan = self.builder.put_json(Path::new("an episode"), &plan)?;
                    let agent = u32::try_from(agent).map_err(|_| PlanError::TooMany(agent as u128))?;
                    let (task, env, max_cost) = (task.name.clone(), task.env, budget.max_cost);
                    episodes.push(EpisodeEntry { task, agent, sample, plan, env, max_cost });
                    limits.push(Millis(budget.max_time.0.saturating_add(AROUND.0)));
                }
            }
        }
        Ok((episodes, limits))
    }

    /// A seed for one episode: the same whatever else is in the run.
    fn seed(&self, task: &TaskName, agent: usize, sample: u32) -> u64 {
        let agent = self.request.agents.get(agent).map(Agent::name).unwrap_or_default();
        let digest = DigestBuilder::new("longhaul-seed-1")
            .field("seed", self.request.seed.to_be_bytes())
            .field("task", task.to_string())
            .field("agent", agent)
            .field("sample", sample.to_be_bytes())
            .finish();
        digest.as_bytes().iter().take(8).fold(0, |seed, byte| (seed << 8) | u64::from(*byte))
    }
}

/// Where a mount's source lies among the envs.
enum Place {
    /// It is an env's folder of tasks.
    Tasks,
    /// It is within one.
    WithinTasks,
    /// It is an env's whole folder.
    Env,
    /// It holds all envs.
    AboveEnvs,
    /// Anywhere else: an env's scripts, shared data.
    Elsewhere,
}

fn place_of(environments: &Path, path: &Path) -> Place {
    if environments.starts_with(path) {
        return Place::AboveEnvs;
    }
    let Ok(inside) = path.strip_prefix(environments) else { return Place::Elsewhere };
    let mut parts = inside.iter().skip(1);
    match (parts.next(), parts.next()) {
        (None, _) => Place::Env,
        (Some(first), None) if first == "tasks" => Place::Tasks,
        (Some(first), Some(_)) if first == "tasks" => Place::WithinTasks,
        _ => Place::Elsewhere,
    }
}

/// An absolute path of plain parts, without a slash at its end.
fn clean_target(target: &str) -> Option<String> {
    let rest = target.strip_prefix('/')?;
    let parts: Vec<&str> = rest.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let plain = !parts.is_empty() && parts.iter().all(|part| *part != ".." && !part.contains(['\0', '\n', ':', ',']));
    plain.then(|| format!("/{}", parts.join("/")))
}

fn export_settle(task: &TaskSpec) -> Millis {
    let default = if task.hooks.post_task.is_some() { EXPORT_SETTLE_SECS } else { 0.0 };
    let seconds = task.settle_sec.unwrap_or(default).clamp(0.0, MAX_EXPORT_SETTLE_SECS);
    Millis((seconds * 1000.0).round() as u64)
}
