//! Runs to be had: a few envs of different sizes, one of which has a broken hook.

use longhaul_core::agent::{AgentSpec, Harness};
use longhaul_core::budget::RunBudgets;
use longhaul_core::digest::Digest;
use longhaul_core::ids::{RunId, TaskName};
use longhaul_core::money::Money;
use longhaul_core::plan::{EnvEntry, EpisodeEntry, LayerKind, Resources, RetryPolicy, RunPlan, Until};
use longhaul_core::resume::ResumePolicy;
use longhaul_core::time::{Millis, Timestamp};

/// An env whose install hook always fails.
pub(crate) const BROKEN: &str = "broken_env";

/// A run id with a number in it.
pub(crate) fn run_id(number: u32) -> RunId {
    RunId::new(Timestamp(1_000_000_000), number)
}

/// An env of a size.
pub(crate) fn env(name: &str, cpu_millis: u32, memory_mib: u32) -> EnvEntry {
    EnvEntry {
        name: name.to_owned(),
        plan: Digest::of(name.as_bytes()),
        resources: Resources { cpu_millis, memory_mib, gpus: 0 },
    }
}

/// A run with an episode for each of the env indices given.
pub(crate) fn plan(envs: Vec<EnvEntry>, episodes: &[u32], max_attempts: u32) -> RunPlan {
    let entries = (0_u32..).zip(episodes).map(|(index, env)| EpisodeEntry {
        task: TaskName { env: envs[*env as usize].name.clone(), task: format!("task_{index}") },
        agent: 0,
        sample: 0,
        plan: Digest::of(format!("plan {index}").as_bytes()),
        env: *env,
        max_cost: None,
    });
    RunPlan {
        name: "simulated".to_owned(),
        benchmark: "nowhere".to_owned(),
        agents: vec![AgentSpec::Idle],
        episodes: entries.collect(),
        envs,
        retry: RetryPolicy {
            max_attempts,
            max_cut_offs: 3,
            backoff: Millis(4_000),
            resume: ResumePolicy::Restart,
            snapshots: longhaul_core::snapshot::SnapshotPolicy::OFF,
        },
        budgets: RunBudgets::default(),
        gateway: None,
        until: None,
    }
}

/// A run of some shape.
pub(crate) fn shaped(shape: u8) -> RunPlan {
    let envs = vec![
        env("calc_env", 1_000, 1_000),
        env("draw_env", 2_000, 3_000),
        env("large_env", 16_000, 2_000),
        env(BROKEN, 500, 500),
    ];
    let count = u32::from(shape % 9) + 1;
    let episodes: Vec<_> = (0..count).map(|index| (index + u32::from(shape / 9)) % 4).collect();
    let mut plan = plan(envs, &episodes, u32::from(shape % 3) + 1);
    plan.agents = vec![model(0), model(1), AgentSpec::Idle];
    plan.retry.resume = ResumePolicy::ALL[usize::from(shape) % ResumePolicy::ALL.len()];
    for (index, entry) in (0_u32..).zip(&mut plan.episodes) {
        entry.agent = (index + u32::from(shape)) % 3;
        entry.max_cost = (index % 3 == 1).then(|| UNIT.saturating_mul(30));
    }
    if !shape.is_multiple_of(4) {
        let units = |units: u64| Some(UNIT.saturating_mul(units));
        let run = units(u64::from(shape % 5) * 20);
        plan.budgets = RunBudgets { run, agents: vec![units(60)], judge: units(25) };
    }
    if shape % 8 == 5 {
        sampled(&mut plan, shape);
    }
    plan
}

/// Makes a run one of samples: of one task by two agents, until one or two have passed.
fn sampled(plan: &mut RunPlan, shape: u8) {
    let first = plan.episodes[0].clone();
    let task = TaskName { env: plan.envs[0].name.clone(), task: "sampled".to_owned() };
    let entry = |index: u32| EpisodeEntry {
        task: task.clone(),
        agent: index % 2,
        sample: index / 2,
        env: 0,
        max_cost: None,
        ..first.clone()
    };
    plan.episodes = (0..6 + 2 * u32::from(shape % 3)).map(entry).collect();
    plan.budgets = RunBudgets::default();
    plan.until = Some(Until { successes: 1 + u32::from(shape / 8 % 2) });
}

/// The smallest bound of a call.
pub(crate) const UNIT: Money = Money::from_nanos(1_000);

/// What the thirsty run may spend: half of what its episodes would.
pub(crate) const THIRST: u64 = 1_000;

/// Many small episodes of one model under one cap.
pub(crate) fn thirsty() -> RunPlan {
    let mut plan = plan(vec![env("calc_env", 500, 500)], &[0; 48], 200);
    plan.agents = vec![model(0)];
    plan.budgets.run = Some(UNIT.saturating_mul(THIRST));
    plan
}

fn model(number: u8) -> AgentSpec {
    let (name, model) = (format!("model-{number}"), format!("model {number}"));
    AgentSpec::Model { name, harness: Harness::Tools, endpoint: endpoint(number), model }
}

/// The endpoint of one of the models.
pub(crate) fn endpoint(number: u8) -> String {
    format!("endpoint-{}", number % 2)
}

/// The keys of an env's layers, install first.
pub(crate) fn layer_keys(env: &str) -> [(LayerKind, Digest); 2] {
    let key = |kind: LayerKind| (kind, Digest::of(format!("{} of {env}", kind.name()).as_bytes()));
    [key(LayerKind::Install), key(LayerKind::Configure)]
}
