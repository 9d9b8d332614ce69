//! Freezing what a run needs.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use longhaul_core::agent::AgentPlan;
use longhaul_core::budget::{EpisodeBudget, StallPolicy};
use longhaul_core::digest::Digest;
use longhaul_core::endpoint::GatewayPlan;
use longhaul_core::ids::TaskName;
use longhaul_core::judge::{JudgePlan, Verify};
use longhaul_core::money::Money;
use longhaul_core::plan::{EnvPlan, EpisodePlan, HookPolicy, RetryPolicy, Scoring, TaskPlan, Tree, TreeNode, Until};
use longhaul_core::time::Millis;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::Small;
use crate::benchmark::{
    Agent, AgentError, AskedAgent, Depth, EarlierRun, EarlierTask, Extent, HookPolicies, Limits, MemoryBlobs,
    ModelTerms, OnRefusal, PlanError, Planned, Preset, Request, gateway, plan, preview,
};

pub(super) struct Frozen {
    planned: Planned,
    blobs: HashMap<Digest, Vec<u8>>,
}

impl Frozen {
    pub(super) fn read<T: DeserializeOwned>(&self, digest: Digest) -> T {
        serde_json::from_slice(&self.blobs[&digest]).unwrap()
    }

    pub(super) fn env(&self, index: usize) -> EnvPlan {
        self.read(self.planned.run.envs[index].plan)
    }

    pub(super) fn episode(&self, index: usize) -> EpisodePlan {
        self.read(self.planned.run.episodes[index].plan)
    }

    pub(super) fn task(&self, index: usize) -> TaskPlan {
        self.read(self.episode(index).task)
    }

    pub(super) fn paths(&self, tree: Digest) -> Vec<String> {
        self.read::<Tree>(tree).entries.into_iter().map(|entry| entry.path).collect()
    }
}

fn names(texts: &[&str]) -> Vec<TaskName> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn read_all(texts: &[&str]) -> Result<Vec<Agent>, AgentError> {
    let asked: Vec<AskedAgent> = texts.iter().map(|text| AskedAgent::of(text)).collect();
    Agent::read_all(&asked, &crate::settings::parse("", Path::new("s.toml")).unwrap().endpoint)
}

pub(super) fn freeze_with(
    small: &Small,
    tasks: &[&str],
    agents: &[Agent],
    change: impl FnOnce(&mut Request<'_>),
) -> Result<Frozen, PlanError> {
    freeze_models(small, tasks, agents, &ModelTerms::default(), change)
}

pub(super) fn freeze_models(
    small: &Small,
    tasks: &[&str],
    agents: &[Agent],
    models: &ModelTerms,
    change: impl FnOnce(&mut Request<'_>),
) -> Result<Frozen, PlanError> {
    let benchmark = small.read(Depth::Specs);
    let tasks = names(tasks);
    let policies = HookPolicies::default();
    let mut request = Request {
        name: "test".to_owned(),
        tasks: &tasks,
        agents,
        samples: 1,
        limits: Limits::default(),
        retry: RetryPolicy {
            max_attempts: 3,
            max_cut_offs: 3,
            backoff: Millis(1000),
            resume: longhaul_core::resume::ResumePolicy::Restart,
            snapshots: longhaul_core::snapshot::SnapshotPolicy::OFF,
        },
        hook_policies: &policies,
        seed: 7,
        on_refusal: OnRefusal::Fail,
        gpus: Some(0),
        layers_from: None,
        earlier: None,
        extent: Extent::Whole,
        models,
    };
    change(&mut request);
    let mut blobs = MemoryBlobs::default();
    let planned = plan(&benchmark, &request, &mut blobs)?;
    Ok(Frozen { planned, blobs: blobs.0 })
}

pub(super) fn freeze(small: &Small) -> Frozen {
    freeze_with(small, &["paint_env/draw_line"], &[Agent::Idle], |_| ()).unwrap()
}

#[test]
fn a_plan_holds_all_that_a_worker_needs() {
    let frozen = freeze(&Small::new());
    let run = &frozen.planned.run;
    assert_eq!((run.envs.len(), run.episodes.len(), run.agents[0].name()), (1, 1, "idle"));
    assert_eq!(serde_json::to_vec(run).unwrap(), frozen.blobs[&frozen.planned.digest]);
    let env = frozen.env(0);
    assert_eq!(
        (env.name.as_str(), env.id.as_str(), env.width, env.height, env.net),
        ("paint_env", "paint_env@1", 1920, 1080, true)
    );
    assert_eq!(env.pre_start.as_deref(), Some("/workspace/scripts/install.sh"));
    assert_eq!((env.mounts.len(), env.mounts[0].target.as_str()), (1, "/workspace/scripts"));
    assert_eq!(env.tasks_target.as_deref(), Some("/workspace/tasks"));
    assert_eq!(frozen.paths(env.mounts[0].tree), ["configure.sh", "install.sh"]);
    assert_eq!(frozen.paths(env.files), ["env.json", "scripts", "scripts/configure.sh", "scripts/install.sh"]);
    assert_eq!(env.hook_policy, HookPolicy::Strict);
    let task = frozen.task(0);
    assert_eq!(task.scoring, Scoring::Program { file: "verifier.py".to_owned(), function: "verify".to_owned() });
    assert_eq!((task.hook_time, task.export_settle), (Millis(600_000), Millis(0)));
    assert_eq!(task.metadata, json!({"length": 7}));
    assert_eq!(frozen.paths(task.files), ["setup_task.sh", "task.json", "verifier.py", "vlm_checklist.json"]);
    assert_eq!(task.env, frozen.planned.run.envs[0].plan);
}

#[test]
fn files_keep_their_bytes_their_mode_and_their_links() {
    let small = Small::new();
    let long = vec![7_u8; 5 * 1024 * 1024];
    small.write("environments/paint_env/scripts/data.bin", &long);
    let scripts = small.env_dir("paint_env").join("scripts");
    symlink("install.sh", scripts.join("inner")).unwrap();
    symlink("../../paint_env/env.json", scripts.join("of_the_clone")).unwrap();
    symlink("/etc/hostname", scripts.join("outside")).unwrap();
    symlink("nowhere", scripts.join("dangling")).unwrap();
    symlink("..", scripts.join("circle")).unwrap();
    let frozen = freeze(&small);
    let tree: Tree = frozen.read(frozen.env(0).mounts[0].tree);
    let node = |path: &str| tree.entries.iter().find(|entry| entry.path == path).map(|entry| &entry.node);
    let Some(TreeNode::File { executable: false, size, chunks }) = node("data.bin") else { panic!("{tree:?}") };
    assert_eq!((*size, chunks.len()), (long.len() as u64, 3));
    let joined: Vec<u8> = chunks.iter().flat_map(|chunk| frozen.blobs[chunk].clone()).collect();
    assert_eq!(joined, long);
    assert!(matches!(node("install.sh"), Some(TreeNode::File { executable: true, .. })));
    assert_eq!(node("inner"), Some(&TreeNode::Link { target: "install.sh".to_owned() }));
    assert!(matches!(node("of_the_clone"), Some(TreeNode::File { .. })));
    assert_eq!(node("dangling"), Some(&TreeNode::Link { target: "nowhere".to_owned() }));
    assert_eq!((node("outside"), node("circle")), (None, None));
    let left_out: Vec<_> = frozen.planned.left_out.iter().map(|path| path.rsplit('/').next().unwrap()).collect();
    assert_eq!(left_out, ["circle", "outside"]);
}

#[test]
fn an_edited_verifier_changes_the_task_and_not_the_env() {
    let small = Small::new();
    let before = freeze(&small);
    assert_eq!(before.planned.digest, freeze(&small).planned.digest, "the same files, the same plan");
    small.write("environments/paint_env/tasks/draw_line/verifier.py", "def verify(a, b, c):\n    return other(a)\n");
    let after = freeze(&small);
    assert_ne!(before.planned.digest, after.planned.digest);
    assert_eq!(before.planned.run.envs, after.planned.run.envs);
    small.write("environments/paint_env/scripts/install.sh", "#!/bin/bash\ntrue\n");
    assert_ne!(after.planned.run.envs, freeze(&small).planned.run.envs);
}

#[test]
fn verifiers_get_the_modules_that_lie_among_the_tasks_and_no_other_task() {
    let small = Small::new();
    small.write("environments/paint_env/tasks/verification_utils.py", "SHARED = 1\n");
    let frozen = freeze(&small);
    let paths = frozen.paths(frozen.env(0).files);
    let among: Vec<_> = paths.iter().filter(|path| path.starts_with("tasks")).collect();
    assert_eq!(among, ["tasks", "tasks/verification_utils.py"]);
}

#[test]
fn no_mount_shows_the_tasks_or_what_is_secret_in_them() {
    let small = Small::new();
    small.write_env("paint_env", |spec| {
        spec["mounts"] = json!([
            {"source": "environments/paint_env", "target": "/workspace/"},
            {"source": "environments/paint_env/tasks/draw_line", "target": "/task"},
        ]);
    });
    let frozen = freeze(&small);
    let env = frozen.env(0);
    assert_eq!(env.tasks_target.as_deref(), Some("/workspace/tasks"));
    assert!(frozen.paths(env.mounts[0].tree).iter().all(|path| !path.starts_with("tasks")));
    assert_eq!(frozen.paths(env.mounts[1].tree), ["setup_task.sh"]);
}

#[test]
fn a_missing_mount_is_an_empty_folder_and_others_are_refused() {
    let small = Small::new();
    let mount = |source: &str, target: &str| {
        small.write_env("paint_env", |spec| {
            spec["mounts"] = json!([{"source": source, "target": target, "mode": "rw"}])
        });
        freeze_with(&small, &["paint_env/draw_line"], &[Agent::Idle], |_| ())
    };
    let frozen = mount("environments/paint_env/assets", "/workspace/assets").unwrap();
    assert!(frozen.env(0).mounts[0].writable);
    assert_eq!(frozen.paths(frozen.env(0).mounts[0].tree), Vec::<String>::new());
    for (source, target, words) in [
        ("/etc", "/workspace/etc", "leads out of the benchmark's clone"),
        ("benchmarks/small", "/workspace", "would show more than one env"),
        ("environments/paint_env/env.json", "/workspace/env.json", "is a single file"),
        ("scripts", "../up", "no plain absolute path"),
        ("scripts", "/a/../../b", "no plain absolute path"),
    ] {
        let said = mount(source, target).err().unwrap().to_string();
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn a_verifier_that_cannot_be_trusted_scores_nothing() {
    let small = Small::new();
    let stub = "def verify(a, b, c):\n    return {'passed': True, 'score': 100}\n";
    for (text, words) in
        [(stub, "a stub"), ("", "no such function"), ("def verify(a):\n    return a\n", "other arguments")]
    {
        small.write("environments/paint_env/tasks/draw_line/verifier.py", text);
        let Scoring::None { reason } = freeze(&small).task(0).scoring else { panic!("{text}") };
        assert!(reason.contains(words), "{reason}");
    }
    fs::remove_file(small.task_dir("paint_env", "draw_line").join("verifier.py")).unwrap();
    assert!(matches!(freeze(&small).task(0).scoring, Scoring::None { .. }));
}

#[test]
fn the_command_line_comes_before_the_task_and_the_task_before_the_default() {
    let limits = |steps| Limits { steps, default_steps: 50, time: Millis(9), ..Limits::default() };
    let max = |limits: Limits, task| limits.budget(task).max_steps;
    assert_eq!((max(limits(Some(3)), Some(40)), max(limits(None), Some(40)), max(limits(None), None)), (3, 40, 50));
    let frozen = freeze(&Small::new());
    assert_eq!(frozen.episode(0).budget, EpisodeBudget::of(40, Limits::DEFAULT_TIME));
}

/// The task asks for 40 steps; the paper's protocol of long tasks says 500 steps or $5.
#[test]
fn a_preset_comes_before_the_task() {
    let terms = Preset::Long500.terms();
    let frozen = freeze_with(&Small::new(), &["paint_env/draw_line"], &[Agent::Idle], |request| {
        request.limits = Limits::of(terms, 50, Limits::DEFAULT_TIME);
    });
    let frozen = frozen.unwrap();
    let five = Some(Money::from_dollars(5));
    let budget = frozen.episode(0).budget;
    assert_eq!((budget.max_steps, budget.max_cost, frozen.planned.run.episodes[0].max_cost), (500, five, five));
}

#[test]
fn models_are_frozen_with_their_endpoints_prices_and_policies() {
    let settings = crate::settings::parse("", Path::new("s.toml")).unwrap();
    let agents = read_all(&["sonnet=anthropic:claude-sonnet-4-6?keep_images=3"]).unwrap();
    let prices = crate::prices::PriceTable::load(None).unwrap();
    let mut models = ModelTerms { stall: StallPolicy::Stop { after: 9 }, ..ModelTerms::default() };
    models.budgets.run = Some(Money::from_dollars(100));
    models.until = Some(Until { successes: 1 });
    let limits = Limits::default();
    models.gateway = gateway(&agents, &models, &limits, &settings.endpoint, &prices, false).unwrap().0;
    let frozen = freeze_models(&Small::new(), &["paint_env/draw_line"], &agents, &models, |_| ()).unwrap();
    let (run, episode) = (&frozen.planned.run, frozen.episode(0));
    assert_eq!((&run.budgets, run.until), (&models.budgets, models.until));
    assert_eq!((run.agents[0].name(), run.agents[0].endpoints()), ("sonnet", &["anthropic".to_owned()][..]));
    let AgentPlan::Model(agent) = &episode.agent else { panic!("{episode:?}") };
    assert_eq!((agent.model.as_str(), agent.keep_images), ("claude-sonnet-4-6", 3));
    assert_eq!((episode.gateway, episode.stall), (run.gateway, models.stall));
    let plan: GatewayPlan = frozen.read(run.gateway.unwrap());
    assert_eq!(plan.endpoint("anthropic").unwrap().secret.as_deref(), Some("ANTHROPIC_API_KEY"));
    assert!(plan.price("anthropic", "claude-sonnet-4-6").is_some());
    // No key is anywhere in what is stored: endpoints name a variable, and that is all.
    assert!(frozen.blobs.values().all(|blob| !String::from_utf8_lossy(blob).contains("sk-")));
}

#[test]
fn a_program_is_frozen_with_its_files() {
    let small = Small::new();
    let folder = small.outside().join("mine");
    fs::create_dir_all(folder.join("lib")).unwrap();
    fs::write(folder.join("agent.toml"), "command = ['python3', 'agent.py']\n").unwrap();
    fs::write(folder.join("agent.py"), "print()\n").unwrap();
    fs::write(folder.join("lib/more.py"), "").unwrap();
    let agents = read_all(&[&format!("external:{}", folder.join("agent.toml").display())]).unwrap();
    let frozen = freeze_with(&small, &["paint_env/draw_line"], &agents, |_| ()).unwrap();
    assert_eq!(frozen.planned.run.agents[0].name(), "mine");
    let AgentPlan::External(agent) = frozen.episode(0).agent else { panic!() };
    assert_eq!(agent.command, ["python3", "agent.py"]);
    assert_eq!(frozen.paths(agent.files.unwrap()), ["agent.py", "agent.toml", "lib", "lib/more.py"]);
}

#[test]
fn every_task_is_begun_before_any_is_repeated() {
    let small = Small::new();
    small.add_task("paint_env", "second");
    let script = small.outside().join("walk.jsonl");
    fs::write(&script, "{\"mouse\": {\"move\": [1, 2]}}\n").unwrap();
    let agents = read_all(&[&format!("scripted:{}", script.display()), "idle"]).unwrap();
    let frozen =
        freeze_with(&small, &["paint_env/second", "paint_env/draw_line"], &agents, |request| request.samples = 2);
    let frozen = frozen.unwrap();
    let order: Vec<_> =
        frozen.planned.run.episodes.iter().map(|entry| (entry.task.task.as_str(), entry.agent, entry.sample)).collect();
    assert_eq!(
        order,
        [
            ("second", 0, 0),
            ("second", 1, 0),
            ("draw_line", 0, 0),
            ("draw_line", 1, 0),
            ("second", 0, 1),
            ("second", 1, 1),
            ("draw_line", 0, 1),
            ("draw_line", 1, 1),
        ]
    );
    let seeds: std::collections::BTreeSet<_> = (0..8).map(|index| frozen.episode(index).seed).collect();
    assert_eq!(seeds.len(), 8);
    let AgentPlan::Scripted { script: blob } = frozen.episode(0).agent else { panic!() };
    assert_eq!(frozen.blobs[&blob], fs::read(&script).unwrap());
    assert_eq!(frozen.episode(1).agent, AgentPlan::Idle);
}

#[test]
fn a_folder_of_scripts_must_have_one_for_each_task() {
    let small = Small::new();
    small.add_task("paint_env", "second");
    let folder = small.outside().join("answers");
    fs::create_dir_all(folder.join("paint_env")).unwrap();
    fs::write(folder.join("paint_env/draw_line.jsonl"), "[]\n").unwrap();
    let agents = read_all(&[&format!("scripted:{}", folder.display())]).unwrap();
    assert_eq!(agents[0].name(), "answers");
    assert!(freeze_with(&small, &["paint_env/draw_line"], &agents, |_| ()).is_ok());
    let said = freeze_with(&small, &["paint_env/second"], &agents, |_| ()).err().unwrap().to_string();
    assert!(said.contains("no script for the task paint_env/second"), "{said}");
    fs::write(folder.join("paint_env/second.jsonl"), "{}\nnot json\n").unwrap();
    let error = freeze_with(&small, &["paint_env/second"], &agents, |_| ()).err().unwrap();
    let PlanError::Agent(agent) = &error else { panic!("{error}") };
    let source = std::error::Error::source(agent).unwrap().to_string();
    assert!(source.starts_with("line 2"), "{source}");
}

#[test]
fn agents_are_told_apart() {
    for bad in ["", "claude", "scripted:", "=scripted:x"] {
        assert!(read_all(&[bad]).is_err(), "{bad}");
    }
    let missing = read_all(&["scripted:/nowhere/at/all.jsonl"]).unwrap_err().to_string();
    assert!(missing.contains("/nowhere/at/all.jsonl"), "{missing}");
    let small = Small::new();
    let script = small.outside().join("walk.jsonl");
    fs::write(&script, "").unwrap();
    let text = format!("scripted:{}", script.display());
    let said = read_all(&[&text, &text]).unwrap_err().to_string();
    assert!(said.contains("two agents are called `walk`"), "{said}");
    assert_eq!(read_all(&[&text, &format!("again={text}")]).unwrap()[1].name(), "again");
}

#[test]
fn the_memory_of_a_program_counts_beside_that_of_the_env() {
    let small = Small::new();
    let memory = |agents: &[Agent]| {
        let frozen = freeze_with(&small, &["paint_env/draw_line"], agents, |_| ()).unwrap();
        frozen.planned.run.envs[0].resources.memory_mib
    };
    let of_env = memory(&[Agent::Idle]);
    let folder = small.outside().join("program");
    fs::create_dir_all(&folder).unwrap();
    let program = |file: &str, text: &str| {
        fs::write(folder.join(file), text).unwrap();
        format!("external:{}", folder.join(file).display())
    };
    let small_one = program("small.toml", "name = 'small'\ncommand = 'x'\nmemory = '512MiB'\n");
    let usual_one = program("usual.toml", "name = 'usual'\ncommand = 'x'\n");
    assert_eq!(memory(&read_all(&[&small_one]).unwrap()), of_env + 512);
    assert_eq!(memory(&read_all(&["idle", &small_one, &usual_one]).unwrap()), of_env + 4096, "the largest of them");
}

#[test]
fn envs_beyond_a_container_are_refused_by_name_before_anything_runs() {
    let small = Small::new();
    for env in ["docker_env", "windows_env"] {
        small.add_env(env);
        small.add_task(env, "any");
    }
    small.write("environments/docker_env/scripts/install.sh", "docker pull x\nsystemctl start y\n");
    small.write_env("windows_env", |spec| spec["base"] = json!("windows-11"));
    let tasks = ["docker_env/any", "paint_env/draw_line", "windows_env/any"];
    let said = freeze_with(&small, &tasks, &[Agent::Idle], |_| ()).err().unwrap().to_string();
    assert!(said.starts_with("2 of the envs asked for cannot be run here:"), "{said}");
    assert!(
        said.contains("docker_env: it needs docker (environments/docker_env/scripts/install.sh:1: docker pull x)"),
        "{said}"
    );
    assert!(said.contains("windows_env: it needs Windows"), "{said}");
    let passed =
        freeze_with(&small, &tasks, &[Agent::Idle], |request| request.on_refusal = OnRefusal::PassOver).unwrap();
    assert_eq!(passed.planned.run.episodes.len(), 1);
    assert_eq!(
        passed.planned.passed_over.iter().map(|env| env.env.as_str()).collect::<Vec<_>>(),
        ["docker_env", "windows_env"]
    );
    let anyway =
        freeze_with(&small, &tasks, &[Agent::Idle], |request| request.on_refusal = OnRefusal::RunAnyway).unwrap();
    assert_eq!(anyway.planned.run.episodes.len(), 3);
    let shown = preview(&small.read(Depth::Specs), &names(&tasks), Some(0));
    assert_eq!(
        shown.iter().map(|env| (env.tasks, env.refused.is_some())).collect::<Vec<_>>(),
        [(1, true), (1, false), (1, true)]
    );
}

#[test]
fn an_env_with_gpus_is_refused_only_where_no_worker_has_as_many() {
    let small = Small::new();
    small.add_env("drawing_env");
    small.add_task("drawing_env", "any");
    small.write_env("drawing_env", |spec| spec["resources"]["gpu"] = json!(2));
    let frozen = |gpus| freeze_with(&small, &["drawing_env/any"], &[Agent::Idle], |request| request.gpus = gpus);
    let said = frozen(Some(1)).err().unwrap().to_string();
    assert!(
        said.contains("drawing_env: it needs a GPU (") && said.contains("and workers have 1 (`worker.gpus`"),
        "{said}"
    );
    for enough in [Some(2), None] {
        assert_eq!(frozen(enough).unwrap().planned.run.envs[0].resources.gpus, 2, "{enough:?}");
    }
}

#[test]
fn an_episode_that_is_only_to_start_exports_and_verifies_nothing_and_starts_the_same() {
    let small = Small::new();
    small.write_task("paint_env", "draw_line", |spec| {
        spec["hooks"]["post_task"] = json!("/workspace/tasks/draw_line/export.sh");
        spec["post_task_settle_sec"] = json!(9);
    });
    let whole = freeze(&small).task(0);
    assert_eq!((whole.post_task.is_some(), whole.export_settle), (true, Millis(9000)));
    let start = freeze_with(&small, &["paint_env/draw_line"], &[Agent::Idle], |request| request.extent = Extent::Start);
    let start = start.unwrap().task(0);
    assert_eq!((&start.post_task, start.export_settle), (&None, Millis(0)));
    assert!(matches!(start.scoring, Scoring::None { .. }));
    let same = TaskPlan {
        post_task: start.post_task.clone(),
        export_settle: start.export_settle,
        scoring: start.scoring.clone(),
        ..whole
    };
    assert_eq!(start, same);
}

#[test]
fn the_splits_that_list_a_task_are_frozen_with_it() {
    let small = Small::new();
    assert!(freeze(&small).task(0).splits.iter().all(|split| split != "test"));
    small.write("splits/paint_split.json", r#"{"env_folder": "paint_env", "test_tasks": ["draw_line"]}"#);
    assert!(freeze(&small).task(0).splits.contains(&"test".to_owned()));
}

#[test]
fn nothing_and_what_is_not_there_are_no_runs() {
    let small = Small::new();
    assert!(matches!(freeze_with(&small, &[], &[Agent::Idle], |_| ()), Err(PlanError::Nothing)));
    assert!(matches!(freeze_with(&small, &["paint_env/gone"], &[Agent::Idle], |_| ()), Err(PlanError::NoTask(_))));
    small.write("environments/paint_env/tasks/draw_line/task.json", "{");
    let said = freeze_with(&small, &["paint_env/draw_line"], &[Agent::Idle], |_| ()).err().unwrap().to_string();
    assert!(said.starts_with("environments/paint_env/tasks/draw_line/task.json:1:1: not JSON"), "{said}");
}

#[test]
fn what_decides_is_what_was_asked_for_as_far_as_the_task_has_it() {
    let small = Small::new();
    let program = || Scoring::Program { file: "verifier.py".to_owned(), function: "verify".to_owned() };
    let checklist = || Scoring::Checklist { checklist: "vlm_checklist.json".to_owned() };
    let judge = || Some(JudgePlan::published("gemini".to_owned(), "m".to_owned()));
    let scored = |verify: Verify, judge: Option<JudgePlan>| {
        let models = ModelTerms { verify, judge, ..ModelTerms::default() };
        let frozen = freeze_models(&small, &["paint_env/draw_line"], &[Agent::Idle], &models, |_| ()).unwrap();
        assert_eq!(frozen.episode(0).judge, models.judge, "verifiers may ask it, whatever decides");
        (frozen.task(0).scoring, frozen.planned.checklists.len())
    };
    assert_eq!(scored(Verify::Auto, None), (program(), 0));
    assert_eq!(scored(Verify::Auto, judge()), (checklist(), 0));
    assert_eq!(scored(Verify::Program, judge()), (program(), 0));
    assert_eq!(scored(Verify::Checklist, judge()), (checklist(), 0));
    let (both, _) = scored(Verify::Both, judge());
    assert!(matches!(both, Scoring::Both { .. }), "{both:?}");

    // One that is refused is told by name; what is left decides, unless the checklist alone was meant.
    let file = "environments/paint_env/tasks/draw_line/vlm_checklist.json";
    small.write(file, "{\"checklist\": [], \"pass_threshold\": 70}");
    assert_eq!(scored(Verify::Auto, judge()), (program(), 1));
    assert_eq!(scored(Verify::Both, judge()), (program(), 1));
    let (none, told) = scored(Verify::Checklist, judge());
    let Scoring::None { reason } = none else { panic!("{none:?}") };
    assert!(reason.contains("vlm_checklist.json") && reason.contains("no item in `task_completion`"), "{reason}");
    assert_eq!(told, 1);
    // That there is none is no news under `auto`.
    fs::remove_file(small.root().join(file)).unwrap();
    assert_eq!(scored(Verify::Auto, judge()), (program(), 0));

    // A stub decides nothing, and stands in no judge's way.
    small.write(file, "{\"task_completion\": [{\"id\": \"line\"}]}");
    small.write(
        "environments/paint_env/tasks/draw_line/verifier.py",
        "def verify(t, e, i):\n    return {'passed': True, 'score': 100}\n",
    );
    assert_eq!(scored(Verify::Both, judge()).0, checklist());
    assert!(matches!(scored(Verify::Program, judge()).0, Scoring::None { .. }));
    // A task may name its checklist.
    small.write_task("paint_env", "draw_line", |spec| {
        spec["success"] = json!({"mode": "vlm_checklist", "spec": {"vlm_checklist": {"checklist_path": "mine.json"}}});
    });
    small.write("environments/paint_env/tasks/draw_line/mine.json", "{\"task_completion\": [{\"id\": \"x\"}]}");
    assert_eq!(scored(Verify::Auto, judge()).0, Scoring::Checklist { checklist: "mine.json".to_owned() });
}

#[test]
fn tasks_of_an_earlier_run_are_what_they_were_whatever_became_of_the_benchmark() {
    let small = Small::new();
    let before = freeze(&small);
    let task = EarlierTask { plan: before.task(0), env: before.env(0), steps: 33 };
    let tasks = [("paint_env/draw_line".parse().unwrap(), task)].into();
    let earlier = EarlierRun { benchmark: "/gone".to_owned(), tasks };
    small.write("environments/paint_env/scripts/install.sh", "#!/bin/bash\napt-get install -y other\n");
    small.write("environments/paint_env/tasks/draw_line/verifier.py", "def verify(*a):\n    return other(a)\n");
    let edited = freeze(&small);
    assert_ne!(edited.episode(0).task, before.episode(0).task);
    // As long as any request.
    let earlier: &'static EarlierRun = Box::leak(Box::new(earlier));
    let again = freeze_with(&small, &["paint_env/draw_line"], &[Agent::Idle], |request| {
        request.earlier = Some(earlier);
    })
    .unwrap();
    assert_eq!(again.episode(0).task, before.episode(0).task);
    assert_eq!(again.planned.run.envs, before.planned.run.envs);
    assert_eq!((again.planned.run.benchmark.as_str(), again.episode(0).budget.max_steps), ("/gone", 33));
}
