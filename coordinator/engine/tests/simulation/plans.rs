//! Runs to be had: a few envs of different sizes, one of which has a broken hook.

use longhaul_core::agent::AgentSpec;
use longhaul_core::digest::Digest;
use longhaul_core::ids::{RunId, TaskName};
use longhaul_core::plan::{EnvEntry, EpisodeEntry, LayerKind, Resources, RetryPolicy, RunPlan};
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
    });
    RunPlan {
        name: "simulated".to_owned(),
        benchmark: "nowhere".to_owned(),
        agents: vec![AgentSpec::Idle],
        episodes: entries.collect(),
        envs,
        retry: RetryPolicy { max_attempts, backoff: Millis(4_000) },
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
    plan(envs, &episodes, u32::from(shape % 3) + 1)
}

/// The keys of an env's layers, install first.
pub(crate) fn layer_keys(env: &str) -> [(LayerKind, Digest); 2] {
    let key = |kind: LayerKind| (kind, Digest::of(format!("{} of {env}", kind.name()).as_bytes()));
    [key(LayerKind::Install), key(LayerKind::Configure)]
}
