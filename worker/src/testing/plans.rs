//! Plans as small as they can be; a test says what of them differs.

use longhaul_core::agent::AgentPlan;
use longhaul_core::budget::{EpisodeBudget, StallPolicy};
use longhaul_core::digest::Digest;
use longhaul_core::endpoint::{EndpointPlan, Protocol, RateLimits};
use longhaul_core::plan::{EnvPlan, EpisodePlan, HookPolicy, Resources, Scoring, TaskPlan};
use longhaul_core::time::Millis;
use serde_json::json;

/// An endpoint without a key, nowhere yet.
pub(crate) fn endpoint(name: &str, protocol: Protocol) -> EndpointPlan {
    EndpointPlan {
        name: name.to_owned(),
        protocol,
        vendor: protocol.name().to_owned(),
        urls: Vec::new(),
        secret: None,
        limits: RateLimits::default(),
        model_limits: Vec::new(),
        call_limit: Millis(20_000),
        retries: 0,
        relay: false,
        replicas_file: None,
    }
}

/// An env without hooks, over a tree of files.
pub(crate) fn env(files: Digest) -> EnvPlan {
    EnvPlan {
        name: "some_env".to_owned(),
        id: "some_env@1".to_owned(),
        resources: Resources { cpu_millis: 1000, memory_mib: 1000, gpus: 0 },
        width: 4,
        height: 3,
        net: false,
        mounts: Vec::new(),
        tasks_target: None,
        accounts: Vec::new(),
        pre_start: None,
        post_start: None,
        reset: None,
        files,
        hook_policy: HookPolicy::Strict,
        pins: Vec::new(),
    }
}

/// A task of an env, without hooks and without a verifier.
pub(crate) fn task(env: Digest, files: Digest) -> TaskPlan {
    TaskPlan {
        name: "some_env/some_task".parse().unwrap(),
        id: "some_task@1".to_owned(),
        description: "do it".to_owned(),
        env,
        files,
        pre_task: None,
        init_script: None,
        post_task: None,
        hook_time: Millis(10_000),
        export_settle: Millis(0),
        scoring: Scoring::None { reason: "a test".to_owned() },
        metadata: json!({}),
        spec: json!({}),
        splits: Vec::new(),
        rounds: None,
        restart: None,
    }
}

/// An episode of a task, without models.
pub(crate) fn episode(task: Digest, agent: AgentPlan) -> EpisodePlan {
    EpisodePlan {
        task,
        agent,
        sample: 0,
        budget: EpisodeBudget::of(1000, Millis(3_600_000)),
        seed: 5,
        gateway: None,
        audit: None,
        stall: StallPolicy::default(),
        judge: None,
        snapshots: longhaul_core::snapshot::SnapshotPolicy::OFF,
    }
}
