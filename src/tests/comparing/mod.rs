//! Comparisons and reports of a stored run, through the program.

#![expect(clippy::unwrap_used, reason = "what cannot go on fails the test")]

mod foreign;

use std::path::Path;

use longhaul_core::agent::{AgentPlan, Answer};
use longhaul_core::budget::{EpisodeBudget, StallPolicy};
use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, EpisodeId, Epoch, RunId, TaskName, WorkerId};
use longhaul_core::notes::AttemptNotes;
use longhaul_core::outcome::{AttemptEnd, EndedBy, Fault, FaultClass, Settlement, Verdict};
use longhaul_core::plan::{EnvPlan, EpisodePlan, HookPolicy, Resources, Scoring, TaskPlan, Tree, TreeEntry, TreeNode};
use longhaul_core::step::{ActionOutcome, Screenshot, StepRecord, StepTiming};
use longhaul_core::time::{Millis, Timestamp};
use longhaul_report::Thumbnail;
use longhaul_store::{
    AttemptFinish, AttemptRecord, Blob, Change, EpisodeRecord, EpisodeState, OpenOptions, RunRecord, Store,
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::common::Home;

const ENV: &[u8] = br#"{"id": "calc", "observation": [{"type": "rgb_screen", "resolution": [640, 480]}],
    "action": [{"type": "mouse"}]}"#;

const TASK: &[u8] = br#"{"id": "sum@1", "description": "Add.", "difficulty": "easy",
    "success": {"mode": "program", "spec": {"program": "verifier.py::verify"}}}"#;

const HOSTILE: &str = "<script>alert(1)</script>\u{202e}\u{1b}[2J & \"more\"";

fn put(store: &Store, bytes: &[u8]) -> Digest {
    let blob = Blob::new(bytes.to_vec());
    let digest = *blob.digest();
    store.put_blobs(vec![blob]).wait().unwrap();
    digest
}

fn put_json<T: Serialize>(store: &Store, value: &T) -> Digest {
    put(store, &serde_json::to_vec(value).unwrap())
}

/// A store with one run, in which `agents` did each of `tasks`; `passes` says who solves what.
struct Stored<'a> {
    run: RunId,
    tasks: &'a [&'a str],
    agents: &'a [&'a str],
    verifier: &'a [u8],
    steps: u32,
}

impl Stored<'_> {
    fn write(&self, folder: &Path, end: impl Fn(&str, usize) -> AttemptEnd) {
        let mut options = OpenOptions::new(1);
        options.floor.bulk = 0;
        options.floor.journal = 0;
        let store = Store::open(folder, &options).unwrap();
        let episodes = (self.tasks.len() * self.agents.len()).try_into().unwrap();
        let run = RunRecord {
            id: self.run,
            name: "a run".to_owned(),
            benchmark: "examples".to_owned(),
            plan: put(&store, b"{}"),
            episodes,
            submitted_at: Timestamp(1_700_000_000_000),
            cancelled: None,
            settled_at: Some(Timestamp(1_700_000_900_000)),
            scopes: Vec::new(),
            file: None,
        };
        store.append(vec![], vec![Change::Run(Box::new(run))]).wait().unwrap();
        let mut index = 0;
        for (number, task) in self.tasks.iter().enumerate() {
            let plan = self.task(&store, task);
            for agent in self.agents {
                self.episode(&store, index, plan, task, agent, end(agent, number));
                index += 1;
            }
        }
    }

    fn task(&self, store: &Store, task: &str) -> Digest {
        let file = |path: &str, bytes: &[u8]| TreeEntry {
            path: path.to_owned(),
            node: TreeNode::File { executable: false, size: bytes.len() as u64, chunks: vec![put(store, bytes)] },
        };
        let entries = vec![file("setup.sh", b"true"), file("task.json", TASK), file("verifier.py", self.verifier)];
        let env_files = put_json(store, &Tree { entries: vec![file("env.json", ENV)] });
        let (env, name) = task.split_once('/').unwrap();
        let env_plan = EnvPlan {
            name: env.to_owned(),
            id: env.to_owned(),
            resources: Resources { cpu_millis: 1000, memory_mib: 1024, gpus: 0 },
            width: 640,
            height: 480,
            net: false,
            mounts: Vec::new(),
            tasks_target: None,
            accounts: Vec::new(),
            pre_start: None,
            post_start: None,
            reset: None,
            files: env_files,
            hook_policy: HookPolicy::Strict,
            pins: Vec::new(),
        };
        let plan = TaskPlan {
            name: TaskName { env: env.to_owned(), task: name.to_owned() },
            id: name.to_owned(),
            description: HOSTILE.to_owned(),
            env: put_json(store, &env_plan),
            files: put_json(store, &Tree { entries }),
            pre_task: None,
            init_script: None,
            post_task: None,
            hook_time: Millis(1000),
            export_settle: Millis(0),
            scoring: Scoring::Program { file: "verifier.py".to_owned(), function: "verify".to_owned() },
            metadata: json!({}),
            spec: json!({ "difficulty": "easy" }),
            splits: vec!["test".to_owned()],
            rounds: None,
            restart: None,
        };
        put_json(store, &plan)
    }

    fn episode(&self, store: &Store, index: u32, task_plan: Digest, task: &str, agent: &str, end: AttemptEnd) {
        let id = EpisodeId { run: self.run, index };
        let plan = EpisodePlan {
            task: task_plan,
            agent: AgentPlan::Idle,
            sample: 0,
            budget: EpisodeBudget::of(self.steps, Millis(60_000)),
            seed: 7,
            gateway: None,
            audit: None,
            stall: StallPolicy::default(),
            judge: None,
            snapshots: longhaul_core::snapshot::SnapshotPolicy::OFF,
        };
        let plan = put_json(store, &plan);
        let attempt = AttemptId { episode: id, number: 1 };
        let epoch = Epoch(u64::from(index) + 1);
        let mut record = AttemptRecord {
            id: attempt,
            epoch,
            worker: WorkerId::new(Timestamp(1_700_000_000_000), 5),
            hostname: "node1".to_owned(),
            started: Timestamp(1_700_000_001_000),
            finish: None,
        };
        let lease = Change::Lease { attempt, epoch, resumes: false };
        store.append(vec![], vec![Change::Attempt(Box::new(record.clone())), lease]).wait().unwrap();
        for number in 0..3 {
            let rgb = [40 * (number as u8), 90, 160].repeat(640 * 480);
            let png = Thumbnail { width: 640, height: 480, rgb, plain: true }.png().unwrap();
            let step = StepRecord {
                number,
                at: Timestamp(1_700_000_002_500 + u64::from(number)),
                answer: (number > 0).then(|| Answer {
                    text: None,
                    actions: vec![json!({ "mouse": { "left_click": [1, 2] } })],
                    done: false,
                }),
                outcomes: if number > 0 { vec![ActionOutcome::Done] } else { Vec::new() },
                screen: Screenshot { png: put(store, &png), width: 640, height: 480 },
                rested: true,
                timing: StepTiming::default(),
                calls: Vec::new(),
                told: None,
                unreadable: Vec::new(),
                round: None,
                stirred: Vec::new(),
            };
            store.put_step(attempt, epoch, number, serde_json::to_vec(&step).unwrap()).wait().unwrap();
        }
        record.finish = Some(AttemptFinish {
            at: Timestamp(1_700_000_061_000),
            end: end.clone(),
            steps: 3,
            last_step: None,
            notes: AttemptNotes {
                hostname: "node1".to_owned(),
                acting_time: Millis(30_000),
                version: "0.1.0".to_owned(),
                node_cpu_millis: 2000,
                ..AttemptNotes::default()
            },
            late: false,
        });
        let settlement = match end {
            AttemptEnd::Verdict(verdict) => Settlement::Verdict(verdict),
            AttemptEnd::Fault(fault) => Settlement::Faulted(fault),
            other => panic!("no test of this file ends an attempt so: {other:?}"),
        };
        let (env, name) = task.split_once('/').unwrap();
        let episode = EpisodeRecord {
            id,
            task: TaskName { env: env.to_owned(), task: name.to_owned() },
            agent: agent.to_owned(),
            sample: 0,
            plan,
            attempts: 1,
            state: EpisodeState::Settled { settlement, at: Timestamp(1_700_000_061_000), attempt: Some(attempt) },
            earlier: Vec::new(),
        };
        let changes = vec![Change::Attempt(Box::new(record)), Change::Episode(Box::new(episode))];
        store.append(vec![], changes).wait().unwrap();
    }
}

fn verdict(passed: bool) -> AttemptEnd {
    AttemptEnd::Verdict(Verdict {
        passed,
        score: if passed { 100.0 } else { 40.0 },
        feedback: HOSTILE.to_owned(),
        details: json!({}),
        ended_by: if passed { EndedBy::Agent } else { EndedBy::Steps },
        parts: None,
    })
}

fn fault() -> AttemptEnd {
    AttemptEnd::Fault(Fault { class: FaultClass::Display, message: "no display".to_owned(), log_tail: None })
}

const TASKS: [&str; 8] = [
    "calc_env/sum",
    "calc_env/mean",
    "calc_env/sort",
    "calc_env/round",
    "paint_env/circle",
    "paint_env/fill",
    "paint_env/flip",
    "paint_env/<b>crop",
];

/// Of the eight tasks `careful` solves the first six, `hasty` the second and third; the last one
/// of `hasty` faulted.
fn outcome(agent: &str, task: usize) -> AttemptEnd {
    match (agent, task) {
        ("careful", task) => verdict(task < 6),
        (_, 7) => fault(),
        (_, task) => verdict((1..3).contains(&task)),
    }
}

fn run_id(random: u32) -> RunId {
    RunId::new(Timestamp(1_700_000_000_000), random)
}

fn home() -> Home {
    let home = Home::new();
    let stored = Stored { run: run_id(1), tasks: &TASKS, agents: &["careful", "hasty"], verifier: b"one", steps: 2 };
    stored.write(&home.path().join("results"), outcome);
    home
}

#[test]
fn agents_of_a_run_are_compared_on_what_both_have() {
    let home = home();
    let ran = home.run(&["compare", "latest", "--store", "results"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    insta::assert_snapshot!(ran.stdout);
    let json = home.run(&["compare", "latest", "--store", "results", "--json"]);
    let found: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(found["sides"][0]["label"], "careful");
    let csv = home.run(&["compare", "latest", "--store", "results", "--csv"]).stdout;
    assert_eq!(csv.lines().count(), 3, "{csv}");
}

#[test]
fn runs_of_two_stores_are_compared_and_what_changed_between_them_is_named() {
    let home = home();
    let stored = Stored { run: run_id(2), tasks: &TASKS[..4], agents: &["careful"], verifier: b"another", steps: 50 };
    stored.write(&home.path().join("old"), |_, task| verdict(task == 0));
    let ran = home.run(&["compare", "latest:careful", "old#latest", "--store", "results"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    insta::assert_snapshot!(ran.stdout);
}

#[test]
fn what_cannot_be_compared_is_named() {
    let home = home();
    insta::assert_snapshot!(home.fails(&["compare", "latest:careful", "--store", "results"]));
    insta::assert_snapshot!(home.fails(&["compare", "latest:nobody", "--store", "results"]));
    insta::assert_snapshot!(home.fails(&["compare", "latest", "latest:hasty", "--store", "results"]));
    insta::assert_snapshot!(home.fails(&["report", "latest", "--store", "results", "-o", "report"]));
    let empty = Stored { run: run_id(3), tasks: &[], agents: &[], verifier: b"", steps: 1 };
    empty.write(&home.path().join("empty"), outcome);
    insta::assert_snapshot!(home.fails(&["compare", "latest", "--store", "empty"]));
    let ran = home.run(&["compare", ":hasty", "--store", "results"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
}

#[test]
fn a_report_is_one_page_that_needs_nothing_else() {
    let home = home();
    let ran = home.run(&["report", "latest", "--store", "results", "-o", "report.html"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let page = std::fs::read_to_string(home.path().join("report.html")).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;\\u{202e}\\u{1b}[2J &amp; &quot;more&quot;"));
    for foreign in ["<script", "http:", "https:", "<b>crop", "\u{202e}", "\u{1b}", "src=\"/", "@import", "url("] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    assert_eq!(page.matches("<img").count(), 7, "one for each failure");
    assert_eq!(page.matches("src=\"data:image/png;base64,").count(), page.matches("src=").count());
    let ran = home.run(&["report", "latest", "--store", "results", "-o", "report.md"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let document = std::fs::read_to_string(home.path().join("report.md")).unwrap();
    assert!(document.starts_with("# ") && document.contains("| careful |"), "{document}");
}

#[test]
fn what_a_verdict_rests_on_is_shown() {
    let home = home();
    let ran = home.run(&["show", "latest/0", "--store", "results", "--provenance", "--format", "json"]);
    let found: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(found["verifier"], Digest::of(b"one").to_string());
    assert_eq!((&found["seed"], &found["version"], &found["node"]), (&json!(7), &json!("0.1.0"), &json!("node1")));
    assert_eq!(found["budget"]["max_steps"], 2);
    let ran = home.run(&["show", "latest/0", "--store", "results", "--provenance"]);
    assert!(ran.stdout.contains(&format!("verifier        {}", Digest::of(b"one"))), "{}", ran.stdout);
}
