//! The run: many episodes of one task that nothing scores, and one agent, a loop of ours around
//! the provider's model.

use longhaul_core::agent::{AgentPlan, AgentSpec, Harness, ModelAgent};
use longhaul_core::budget::{EpisodeBudget, RunBudgets, StallPolicy};
use longhaul_core::digest::Digest;
use longhaul_core::endpoint::{EndpointPlan, GatewayPlan, Protocol, RateLimits};
use longhaul_core::ids::RunId;
use longhaul_core::money::Money;
use longhaul_core::plan::{
    EnvEntry, EnvPlan, EpisodeEntry, EpisodePlan, HookPolicy, Resources, RetryPolicy, RunPlan, Scoring, TaskPlan, Tree,
};
use longhaul_core::price::{ImageRule, ModelPrice, Rate, Tier};
use longhaul_core::time::{Millis, Timestamp};
use longhaul_proto::{convert, v1};
use serde_json::{Map, json};

use crate::cluster::{Cluster, KEY_VARIABLE};
use crate::provider::{INPUT_NANOS, OUTPUT_NANOS, Provider};
use crate::sandbox::{HEIGHT, WIDTH};

/// Blobs on their way.
#[derive(Default)]
struct Blobs(Vec<Vec<u8>>);

impl Blobs {
    fn put(&mut self, value: &impl serde::Serialize) -> Digest {
        let bytes = serde_json::to_vec(value).unwrap();
        let digest = Digest::of(&bytes);
        self.0.push(bytes);
        digest
    }
}

/// Submits it; the run's id.
pub(crate) async fn submit(cluster: &Cluster, provider: &Provider, episodes: u32, steps: u32, cap: Money) -> String {
    let mut blobs = Blobs::default();
    let resources = Resources { cpu_millis: 10, memory_mib: 1, gpus: 0 };
    let files = blobs.put(&Tree::default());
    let env = blobs.put(&EnvPlan {
        name: "some_env".to_owned(),
        id: "some_env@1".to_owned(),
        resources,
        width: WIDTH,
        height: HEIGHT,
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
    });
    let task = blobs.put(&TaskPlan {
        name: "some_env/some_task".parse().unwrap(),
        id: "some_task@1".to_owned(),
        description: "Click, and click again.".to_owned(),
        env,
        files,
        pre_task: None,
        init_script: None,
        post_task: None,
        hook_time: Millis(10_000),
        export_settle: Millis(0),
        scoring: Scoring::None { reason: "only money is looked at".to_owned() },
        metadata: json!({}),
        spec: json!({}),
        splits: Vec::new(),
        rounds: None,
        restart: None,
    });
    let tier = Tier {
        above: 0,
        input: Money::from_nanos(INPUT_NANOS * 1_000_000),
        cache_write: Money::from_nanos(INPUT_NANOS * 1_000_000),
        cache_write_long: Money::from_nanos(INPUT_NANOS * 1_000_000),
        cache_read: Money::from_nanos(INPUT_NANOS * 1_000_000),
        output: Money::from_nanos(OUTPUT_NANOS * 1_000_000),
    };
    let gateway = blobs.put(&GatewayPlan {
        endpoints: vec![EndpointPlan {
            name: "stand-in".to_owned(),
            protocol: Protocol::OpenAi,
            vendor: "stand-in".to_owned(),
            urls: vec![provider.url.clone()],
            secret: Some(KEY_VARIABLE.to_owned()),
            limits: RateLimits { concurrent: Some(100), ..RateLimits::default() },
            model_limits: Vec::new(),
            call_limit: Millis(3000),
            retries: 3,
            relay: false,
            replicas_file: None,
        }],
        prices: vec![ModelPrice {
            vendor: "stand-in".to_owned(),
            model: "stand-in-1*".to_owned(),
            rate: Rate::Tokens { tiers: vec![tier] },
            image: ImageRule::Fixed { tokens: 100 },
            context: 128_000,
            max_output: 4096,
            services: Vec::new(),
        }],
        prices_of: "2026-01-01".to_owned(),
        shorten: false,
    });
    let agent = AgentPlan::Model(Box::new(ModelAgent {
        harness: Harness::Tools,
        endpoint: "stand-in".to_owned(),
        model: "stand-in-1".to_owned(),
        max_output: 200,
        image: None,
        keep_images: 1,
        summarize_above: None,
        system: None,
        parameters: Map::new(),
    }));
    let entries = (0..episodes)
        .map(|sample| EpisodeEntry {
            task: "some_env/some_task".parse().unwrap(),
            agent: 0,
            sample,
            plan: blobs.put(&EpisodePlan {
                task,
                agent: agent.clone(),
                sample,
                budget: EpisodeBudget::of(steps, Millis(600_000)),
                seed: u64::from(sample),
                gateway: Some(gateway),
                audit: None,
                stall: StallPolicy::default(),
                judge: None,
                snapshots: longhaul_core::snapshot::SnapshotPolicy::OFF,
            }),
            env: 0,
            max_cost: None,
        })
        .collect();
    let run_plan = blobs.put(&RunPlan {
        name: "one cap".to_owned(),
        benchmark: "none".to_owned(),
        agents: vec![AgentSpec::Model {
            name: "clicker".to_owned(),
            harness: Harness::Tools,
            endpoint: "stand-in".to_owned(),
            model: "stand-in-1".to_owned(),
        }],
        envs: vec![EnvEntry { name: "some_env".to_owned(), plan: env, resources }],
        episodes: entries,
        retry: RetryPolicy {
            max_attempts: 5,
            max_cut_offs: 3,
            backoff: Millis(200),
            resume: longhaul_core::resume::ResumePolicy::Restart,
            snapshots: longhaul_core::snapshot::SnapshotPolicy::OFF,
        },
        budgets: RunBudgets { run: Some(cap), ..RunBudgets::default() },
        gateway: Some(gateway),
        until: None,
    });
    let pieces: Vec<v1::PutBlobChunk> = blobs
        .0
        .into_iter()
        .map(|bytes| v1::PutBlobChunk {
            digest: convert::digest_bytes(&Digest::of(&bytes)).into(),
            size: bytes.len() as u64,
            data: bytes.into(),
        })
        .collect();
    let client = cluster.client().await;
    client.blobs.clone().put(tokio_stream::iter(pieces)).await.unwrap();
    let run = RunId::new(Timestamp(1_700_000_000_000), 1).to_string();
    let request = v1::SubmitRequest {
        run_id: run.clone(),
        plan: convert::digest_bytes(&run_plan).into(),
        ..v1::SubmitRequest::default()
    };
    client.control.clone().submit(request).await.unwrap();
    run
}
