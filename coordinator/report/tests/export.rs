//! Exports and summaries of runs in real stores.

#![expect(clippy::unwrap_used, reason = "what cannot go on fails the test")]

use std::collections::BTreeSet;
use std::path::Path;

use longhaul_core::agent::{AgentPlan, Answer};
use longhaul_core::budget::{EpisodeBudget, StallPolicy};
use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, EpisodeId, Epoch, RunId, TaskName, WorkerId};
use longhaul_core::notes::{AttemptNotes, LayerUse};
use longhaul_core::outcome::{AttemptEnd, EndedBy, Fault, FaultClass, Settlement, Verdict};
use longhaul_core::plan::{EpisodePlan, LayerKind};
use longhaul_core::step::{ActionOutcome, Screenshot, StepRecord, StepTiming};
use longhaul_core::time::{Millis, Timestamp};
use longhaul_report::{Attempts, Chosen, ExportError, Exported, Format, Trajectories, summarize};
use longhaul_store::{
    AttemptFinish, AttemptRecord, Blob, Change, EpisodeRecord, EpisodeState, OpenOptions, Pruning, Reader, RunRecord,
    Store,
};
use serde_json::{Value, json};

fn run_id() -> RunId {
    RunId::new(Timestamp(1_700_000_000_000), 1)
}

fn blob(store: &Store, bytes: &[u8]) -> Digest {
    let blob = Blob::new(bytes.to_vec());
    let digest = *blob.digest();
    store.put_blobs(vec![blob]).wait().unwrap();
    digest
}

fn verdict(passed: bool, score: f64) -> Verdict {
    Verdict {
        passed,
        score,
        feedback: "as <b>asked</b>\u{1b}[2J".to_owned(),
        details: json!({ "passed": passed }),
        ended_by: EndedBy::Agent,
        parts: None,
    }
}

/// Adds an episode with one attempt for each end; the last one settles it.
fn add_episode(store: &Store, index: u32, task: &str, ends: &[AttemptEnd], screens: &[&[u8]]) {
    let id = EpisodeId { run: run_id(), index };
    let plan = EpisodePlan {
        task: Digest::of(b"no such task"),
        agent: AgentPlan::Idle,
        sample: 0,
        budget: EpisodeBudget::of(5, Millis(1000)),
        seed: 77,
        gateway: None,
        audit: None,
        stall: StallPolicy::default(),
        judge: None,
        snapshots: longhaul_core::snapshot::SnapshotPolicy::OFF,
    };
    let plan = blob(store, &serde_json::to_vec(&plan).unwrap());
    let (env, name) = task.split_once('/').unwrap();
    for (number, end) in (1..).zip(ends) {
        let attempt = AttemptId { episode: id, number };
        let epoch = Epoch(u64::from(index) * 100 + u64::from(number));
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
        for (number, screen) in (0..).zip(screens) {
            let step = StepRecord {
                number,
                at: Timestamp(1_700_000_002_500 + u64::from(number)),
                answer: (number > 0).then(|| Answer {
                    text: Some("clicking".to_owned()),
                    actions: vec![json!({ "mouse": { "left_click": [1, 2] } })],
                    done: false,
                }),
                outcomes: if number > 0 { vec![ActionOutcome::Done] } else { Vec::new() },
                screen: Screenshot { png: blob(store, screen), width: 640, height: 480 },
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
        let log = blob(store, b"+ setup\n");
        store.put_log(attempt, epoch, "pre_task".to_owned(), log).wait().unwrap();
        let layer = LayerUse {
            kind: LayerKind::Install,
            key: Digest::of(env.as_bytes()),
            content: Digest::of(b"content"),
            built: number == 1 && index == 0,
            tolerated_exit: None,
        };
        record.finish = Some(AttemptFinish {
            at: Timestamp(1_700_000_009_000),
            end: end.clone(),
            steps: screens.len() as u32,
            last_step: None,
            notes: AttemptNotes { layers: vec![layer], ..AttemptNotes::default() },
            late: false,
        });
        let settlement = match end {
            AttemptEnd::Verdict(verdict) => Settlement::Verdict(verdict.clone()),
            AttemptEnd::Unverified { ended_by, reason, .. } => {
                Settlement::Unverified { ended_by: *ended_by, reason: reason.clone(), fault: None, parts: None }
            }
            AttemptEnd::Cancelled => Settlement::Cancelled,
            AttemptEnd::Fault(fault) => Settlement::Faulted(fault.clone()),
        };
        let episode = EpisodeRecord {
            id,
            task: TaskName { env: env.to_owned(), task: name.to_owned() },
            agent: "scripted".to_owned(),
            sample: 0,
            plan,
            attempts: number,
            state: EpisodeState::Settled { settlement, at: Timestamp(1_700_000_009_000), attempt: Some(attempt) },
            earlier: Vec::new(),
        };
        let changes = vec![Change::Attempt(Box::new(record)), Change::Episode(Box::new(episode))];
        store.append(vec![], changes).wait().unwrap();
    }
}

fn fault() -> AttemptEnd {
    AttemptEnd::Fault(Fault { class: FaultClass::Display, message: "no display".to_owned(), log_tail: None })
}

/// A run with an episode that passed at its second attempt, one that faulted, and one
/// whose task has the same name in another env.
fn store_with_run(folder: &Path) -> Store {
    let mut options = OpenOptions::new(1);
    options.floor.bulk = 0;
    options.floor.journal = 0;
    let store = Store::open(folder, &options).unwrap();
    let run = RunRecord {
        id: run_id(),
        name: "a run".to_owned(),
        benchmark: "examples".to_owned(),
        plan: blob(&store, b"{}"),
        episodes: 3,
        submitted_at: Timestamp(1_700_000_000_000),
        cancelled: None,
        settled_at: None,
        scopes: Vec::new(),
        file: None,
    };
    store.append(vec![], vec![Change::Run(Box::new(run))]).wait().unwrap();
    let passed = AttemptEnd::Verdict(verdict(true, 100.0));
    add_episode(&store, 0, "draw_env/circle", &[fault(), passed], &[b"first", b"second", b"second"]);
    add_episode(&store, 1, "draw_env/..", &[fault()], &[]);
    add_episode(&store, 2, "calc_env/circle", &[AttemptEnd::Verdict(verdict(false, 40.0))], &[b"first", b"other"]);
    store
}

fn export<T: Trajectories>(from: &T, run: RunId, format: Format, out: &Path) -> Result<Exported, ExportError> {
    longhaul_report::export(&[Chosen { from, run, agents: Vec::new() }], &format, out)
}

fn lines(path: &Path) -> Vec<Value> {
    std::fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn files_below(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                found.insert(path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found
}

#[test]
fn jsonl_has_a_step_a_line_and_each_screenshot_once() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_with_run(&folder.path().join("store"));
    let out = folder.path().join("out");
    let done = export(store.reader(), run_id(), Format::Jsonl(Attempts::Settling), &out).unwrap();
    assert_eq!(done, Exported { episodes: 3, steps: 5, screenshots: 3, ..Exported::default() });
    let steps = lines(&out.join("steps.jsonl"));
    assert_eq!(steps.len(), 5);
    assert_eq!(steps[1]["attempt"], format!("{}/0/2", run_id()));
    assert_eq!(steps[1]["answer"]["actions"][0]["mouse"]["left_click"], json!([1, 2]));
    assert_eq!(steps[1]["outcomes"], json!(["done"]));
    for step in &steps {
        let png = std::fs::read(out.join(step["screenshot"].as_str().unwrap())).unwrap();
        assert_eq!(step["screenshot"], format!("screenshots/{}.png", Digest::of(&png)));
    }
    assert_eq!(std::fs::read_dir(out.join("screenshots")).unwrap().count(), 3);

    let episodes = lines(&out.join("episodes.jsonl"));
    assert_eq!(episodes.len(), 3);
    assert_eq!(episodes[0]["state"], "passed");
    assert_eq!(episodes[0]["seed"], 77);
    assert_eq!(episodes[0]["attempts"][0]["finish"]["end"]["fault"]["class"], "display");
    let log = episodes[0]["attempts"][1]["logs"]["pre_task"].as_str().unwrap();
    assert_eq!(std::fs::read(out.join(log)).unwrap(), b"+ setup\n");
    assert_eq!(episodes[1]["state"], "faulted");
    let run: Value = serde_json::from_slice(&std::fs::read(out.join("run.json")).unwrap()).unwrap();
    assert_eq!(run["benchmark"], "examples");
}

#[test]
fn all_attempts_are_exported_on_demand() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_with_run(&folder.path().join("store"));
    let out = folder.path().join("out");
    export(store.reader(), run_id(), Format::Jsonl(Attempts::All), &out).unwrap();
    assert_eq!(lines(&out.join("steps.jsonl")).len(), 8, "three more of the attempt that faulted");
    let gym = folder.path().join("gym");
    export(store.reader(), run_id(), Format::GymAnything(Attempts::All), &gym).unwrap();
    assert!(gym.join("draw_env/circle/scripted/run_0-attempt_1/traj.jsonl").exists());
    assert!(gym.join("draw_env/circle/scripted/run_0-attempt_2/traj.jsonl").exists());
}

#[test]
fn gym_anything_s_layout_keeps_the_first_observation_and_apart_tasks_of_one_name() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_with_run(&folder.path().join("store"));
    let out = folder.path().join("out");
    export(store.reader(), run_id(), Format::GymAnything(Attempts::Settling), &out).unwrap();
    let episode = out.join("draw_env/circle/scripted/run_0");
    assert_eq!(
        files_below(&episode).iter().map(String::as_str).collect::<Vec<_>>(),
        [
            "final.png",
            "frame_00000.png",
            "frame_00001.png",
            "frame_00002.png",
            "pre_task.log",
            "summary.json",
            "traj.jsonl"
        ]
    );
    assert_eq!(std::fs::read(episode.join("frame_00000.png")).unwrap(), b"first");
    assert_eq!(std::fs::read(episode.join("final.png")).unwrap(), b"second");
    let events = lines(&episode.join("traj.jsonl"));
    let named: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(named, ["reset", "session", "step", "step", "finalize"]);
    assert_eq!(events[0]["seed"], 77);
    assert_eq!(events[0]["cache_level"], "pre_start");
    assert_eq!(events[1]["resolution"], json!([640, 480]));
    assert!(events[1].as_object().unwrap().keys().all(|key| !key.contains("password")));
    assert_eq!(events[2]["idx"], 0);
    assert_eq!(events[2]["ts"], 1_700_000_002.501);
    assert_eq!(events[2]["action"], json!([{ "mouse": { "left_click": [1, 2] } }]));
    let summary: Value = serde_json::from_slice(&std::fs::read(episode.join("summary.json")).unwrap()).unwrap();
    assert_eq!(summary["steps"], 2);
    assert_eq!(summary["verifier"]["decided"], true);
    assert_eq!(summary["verifier"]["score"], 100.0);
    assert_eq!(std::fs::read(out.join("calc_env/circle/scripted/run_0/frame_00001.png")).unwrap(), b"other");

    // The task whose name is a way out stays in the folder; its fault is no failure.
    let all = files_below(&out);
    let faulted = all.iter().find(|file| !file.contains("circle") && file.ends_with("summary.json")).unwrap();
    assert!(faulted.starts_with("draw_env/_-"), "{faulted}");
    let summary: Value = serde_json::from_slice(&std::fs::read(out.join(faulted)).unwrap()).unwrap();
    assert_eq!(summary["verifier"]["decided"], false);
    assert_eq!(summary["verifier"]["passed"], Value::Null);
    assert_eq!(summary["verifier"]["feedback"], "display: no display");
}

#[test]
fn nothing_is_overwritten_and_nothing_is_left_of_an_export_that_failed() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_with_run(&folder.path().join("store"));
    let out = folder.path().join("out");
    std::fs::create_dir(&out).unwrap();
    std::fs::write(out.join("mine"), "").unwrap();
    let error = export(store.reader(), run_id(), Format::Jsonl(Attempts::Settling), &out).unwrap_err();
    assert!(matches!(error, ExportError::NotEmpty { .. }));
    assert_eq!(files_below(&out).len(), 1);
    let none = RunId::new(Timestamp(1), 1);
    let fresh = folder.path().join("fresh");
    let error = export(store.reader(), none, Format::Jsonl(Attempts::Settling), &fresh).unwrap_err();
    assert!(matches!(error, ExportError::NoRun { .. }));
    assert!(!fresh.exists());
}

#[test]
fn a_run_whose_pictures_were_dropped_is_exported_without_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let store = store_with_run(&path);
    let settled_at = Some(Timestamp(1_700_000_010_000));
    let over = RunRecord { settled_at, ..store.reader().run(run_id()).unwrap().unwrap() };
    store.append(vec![], vec![Change::Run(Box::new(over))]).wait().unwrap();
    drop(store);
    let (runs, options, at) = ([run_id()], OpenOptions::new(1), Timestamp(1_700_000_020_000));
    let pruning = Pruning { path: &path, runs: &runs, before: None, dry_run: false, options: &options, at };
    assert_eq!(pruning.run().unwrap()[0].blobs, 3);
    let reader = Reader::open(&path).unwrap();
    let out = folder.path().join("out");
    let done = export(&reader, run_id(), Format::Jsonl(Attempts::Settling), &out).unwrap();
    assert_eq!(done, Exported { episodes: 3, steps: 5, screenshots: 0, ..Exported::default() });
    let episodes = lines(&out.join("episodes.jsonl"));
    assert_eq!(episodes[0]["state"], "passed");
    assert!(episodes[0]["attempts"][1]["logs"]["pre_task"].is_string(), "a log is no picture");
    let gym = folder.path().join("gym");
    export(&reader, run_id(), Format::GymAnything(Attempts::Settling), &gym).unwrap();
    let episode = gym.join("draw_env/circle/scripted/run_0");
    assert!(episode.join("traj.jsonl").exists() && !episode.join("frame_00000.png").exists());
}

#[test]
fn a_run_is_exported_beside_the_process_that_writes_to_its_store() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let store = store_with_run(&path);
    let reader = Reader::open(&path).unwrap();
    let out = folder.path().join("out");
    let done = export(&reader, run_id(), Format::Jsonl(Attempts::Settling), &out).unwrap();
    assert_eq!(done.steps, 5);
    drop(store);
}

#[test]
fn a_summary_counts_verdicts_and_layers_and_takes_no_fault_for_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    let store = store_with_run(&folder.path().join("store"));
    let summary = summarize(&Trajectories::episodes(store.reader(), run_id()).unwrap());
    let [agent] = summary.agents.as_slice() else { panic!("{summary:?}") };
    assert_eq!((agent.counts.passed, agent.counts.failed, agent.counts.faulted), (1, 1, 1));
    let rate = agent.passed.unwrap();
    assert_eq!((rate.point, rate.low, rate.high), (0.5, 1.0 / 3.0, 2.0 / 3.0));
    assert_eq!(agent.mean_score, Some(70.0));
    let draw = summary.layers.iter().find(|layer| layer.envs == ["draw_env"]).unwrap();
    assert_eq!((draw.built, draw.reused), (1, 2));
}
