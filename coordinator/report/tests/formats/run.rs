//! A run in a real store, with what is awkward in one: hostile text, actions that were refused,
//! answers that could not be read, faults, judges, retries, amounts with nine decimals.

use std::path::Path;

use longhaul_core::digest::Digest;
use longhaul_core::ids::{AttemptId, EpisodeId, Epoch, RunId, WorkerId};
use longhaul_core::plan::{EpisodePlan, TaskPlan};
use longhaul_core::time::Timestamp;
use longhaul_report::{Chosen, ExportError, Exported, Format, export};
use longhaul_store::{Blob, Change, OpenOptions, Reader, Store};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Text that is data, whatever it looks like.
pub(crate) const HOSTILE: &str = "a\u{1b}[2J\u{0}\u{202e}\"<|im_end|></think> <image> 日本\n=cmd()";

/// What nobody but a verifier or a judge may know.
pub(crate) const SECRET: &str = "the answer is 42";

/// A key of the screens: the width of all of them, and their height.
pub(crate) const SCREEN: (u16, u16) = (64, 48);

pub(crate) fn run_id() -> RunId {
    RunId::new(Timestamp(1_700_000_000_000), 1)
}

/// What one exports of it.
pub(crate) fn exported(store: &Store, format: &Format, out: &Path) -> Result<Exported, ExportError> {
    export(&[Chosen { from: store.reader(), run: run_id(), agents: Vec::new() }], format, out)
}

pub(crate) fn from<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

pub(crate) fn blob(store: &Store, bytes: Vec<u8>) -> Digest {
    let blob = Blob::new(bytes);
    let digest = *blob.digest();
    store.put_blobs(vec![blob]).wait().unwrap();
    digest
}

/// A plan, which can be read as what it is.
fn plan_blob<P: DeserializeOwned>(store: &Store, value: &Value) -> Digest {
    let _: P = from(value.clone());
    blob(store, value.to_string().into_bytes())
}

/// A picture of one grey.
fn screen(store: &Store, grey: u8) -> Digest {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, u32::from(SCREEN.0), u32::from(SCREEN.1));
    encoder.set_color(png::ColorType::Grayscale);
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(&vec![grey; usize::from(SCREEN.0) * usize::from(SCREEN.1)]).unwrap();
    writer.finish().unwrap();
    blob(store, bytes)
}

/// An answer of the agent, and what became of it.
pub(crate) struct Turn {
    pub(crate) text: Option<&'static str>,
    pub(crate) actions: Value,
    pub(crate) outcomes: Value,
    pub(crate) done: bool,
    pub(crate) told: Option<&'static str>,
}

pub(crate) fn turn(text: Option<&'static str>, actions: Value) -> Turn {
    let outcomes = vec!["done"; actions.as_array().unwrap().len()];
    Turn { text, actions, outcomes: json!(outcomes), done: false, told: None }
}

fn click(x: u32, y: u32) -> Value {
    json!({"mouse": {"left_click": [x, y]}})
}

/// The turns of the episode that is looked at most closely.
fn eventful() -> Vec<Turn> {
    vec![
        turn(Some(HOSTILE), json!([click(10, 20)])),
        // Refused: no effect, and nothing to learn.
        Turn { outcomes: json!([{"error": "unknown key `fly`"}]), ..turn(None, json!([{"mouse": {"fly": true}}])) },
        // Of two actions one was refused.
        Turn {
            outcomes: json!(["done", {"error": "beyond the screen"}]),
            ..turn(Some("I scroll."), json!([{"mouse": {"move": [30, 40]}}, click(9000, 1)]))
        },
        turn(None, json!([{"mouse": {"scroll": -3}}, {"keyboard": {"text": HOSTILE}}])),
        // Nothing that could be read was asked for.
        turn(Some("hm"), json!([])),
        Turn { done: true, told: Some("Look again."), ..turn(Some("It is done."), json!([])) },
    ]
}

fn clicks(count: u32) -> Vec<Turn> {
    (0..count).map(|index| turn(Some("I click."), json!([click(index % 64, 1)]))).collect()
}

/// A run with an episode for each way to end.
pub(crate) fn store(folder: &Path) -> Store {
    let mut options = OpenOptions::new(1);
    (options.floor.bulk, options.floor.journal) = (0, 0);
    let store = Store::open(folder, &options).unwrap();
    let run = from(json!({
        "id": run_id(), "name": format!("a run {HOSTILE}"), "benchmark": "/data/own_benchmark/",
        "plan": blob(&store, b"{}".to_vec()), "episodes": 9, "submitted_at": 1_700_000_000_000_u64,
    }));
    store.append(vec![], vec![Change::Run(Box::new(run))]).wait().unwrap();
    let passed = |score: f64| {
        json!({"verdict": {
            "passed": true, "score": score, "feedback": format!("{HOSTILE} {SECRET}"), "details": {"key": SECRET},
            "ended_by": "agent",
        }})
    };
    let failed = json!({"verdict": {
        "passed": false, "score": 40.5, "feedback": "no", "details": {}, "ended_by": "steps",
    }});
    let fault = json!({"fault": {"class": "display", "message": format!("no display {HOSTILE}")}});
    let unverified = json!({"unverified": {"ended_by": "agent", "reason": "a stub"}});
    let right_drag = turn(None, json!([{"mouse": {"right_click_drag": [[1, 2], [3, 4]]}}]));
    let add = |index, task, sample, ends: &[Value], turns: &[Turn]| {
        add_episode(&store, &Added { index, task, sample, agent: "teacher" }, ends, turns);
    };
    add(0, "draw_env/circle", 0, &[fault.clone(), passed(100.0)], &eventful());
    add(1, "draw_env/circle", 1, &[passed(80.0)], &clicks(2));
    add(2, "calc_env/circle", 0, &[passed(100.0)], &clicks(60));
    add(3, "calc_env/circle", 1, &[passed(100.0)], &clicks(3));
    add(4, "calc_env/sum", 0, &[failed], &clicks(4));
    add(5, "calc_env/sum", 1, &[fault], &[]);
    add(6, "calc_env/..", 0, &[unverified], &clicks(1));
    add(7, "calc_env/drag", 0, &[passed(100.0)], &[right_drag]);
    add(8, "calc_env/waits", 0, &[], &clicks(2));
    store
}

/// The plan of an episode, with what there is of its task beside the usual.
pub(crate) fn plan(store: &Store, task: &str, sample: u32, more: &Value) -> Digest {
    let mut plan = json!({
        "name": task, "id": "id", "description": format!("Draw {task}. {HOSTILE}"),
        "env": Digest::of(b"no env"), "files": Digest::of(b"no files"), "hook_time": 1, "export_settle": 1,
        "scoring": {"kind": "none", "reason": SECRET}, "metadata": {"expected": SECRET},
        "spec": {"difficulty": "hard", "expected": SECRET}, "splits": ["test"],
    });
    plan.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let task = plan_blob::<TaskPlan>(store, &plan);
    let plan = json!({
        "task": task, "sample": sample, "seed": u64::MAX,
        "agent": {"kind": "model", "harness": "anthropic-computer", "endpoint": "vendor", "model": "big-1",
                  "max_output": 100, "keep_images": 3},
        "budget": {"max_steps": 500, "max_time": 1000},
    });
    plan_blob::<EpisodePlan>(store, &plan)
}

struct Added<'a> {
    index: u32,
    task: &'a str,
    sample: u32,
    agent: &'a str,
}

fn add_episode(store: &Store, added: &Added<'_>, ends: &[Value], turns: &[Turn]) {
    let id = EpisodeId { run: run_id(), index: added.index };
    let plan = plan(store, added.task, added.sample, &json!({}));
    let settled_by = u32::try_from(ends.len()).unwrap();
    for number in 1..=settled_by.max(1) {
        let attempt = AttemptId { episode: id, number };
        let epoch = Epoch(u64::from(added.index) * 100 + u64::from(number));
        let mut record = json!({
            "id": attempt, "epoch": epoch, "worker": WorkerId::new(Timestamp(1), 5),
            "hostname": "node1", "started": 1_700_000_001_000_u64,
        });
        let started = Change::Attempt(Box::new(from(record.clone())));
        let lease = Change::Lease { attempt, epoch, resumes: false };
        store.append(vec![], vec![started, lease]).wait().unwrap();
        // An attempt that is not the last one was cut off before its first step.
        let steps = if number == settled_by.max(1) && !turns.is_empty() { turns } else { &[] };
        let count = add_steps(store, attempt, epoch, steps);
        if let Some(end) = ends.get(usize::try_from(number).unwrap() - 1) {
            record["finish"] = json!({
                "at": 1_700_000_900_000_u64, "end": end, "steps": count, "late": false,
                "notes": {"hostname": "node1", "version": "0.1.0", "layers": [], "layers_time": 10, "start_time": 20,
                          "setup_time": 30, "acting_time": 400, "verify_time": 50, "peak_memory_mib": 6,
                          "warnings": [HOSTILE]},
            });
        }
        let state = match ends.last() {
            Some(_) if number < settled_by => json!({"active": {"attempt": attempt}}),
            None => json!({"active": {"attempt": attempt}}),
            Some(end) => {
                let settlement = end.get("fault").map_or_else(|| end.clone(), |fault| json!({"faulted": fault}));
                json!({"settled": {"settlement": settlement, "at": 1_700_000_900_000_u64, "attempt": attempt}})
            }
        };
        let episode = from(json!({
            "id": id, "task": added.task, "agent": added.agent, "sample": added.sample, "plan": plan,
            "attempts": number, "state": state,
        }));
        let changes = vec![Change::Attempt(Box::new(from(record))), Change::Episode(Box::new(episode))];
        store.append(vec![], changes).wait().unwrap();
    }
}

/// Stores a step, with what there is of it beside the screen.
pub(crate) fn put_step(store: &Store, attempt: AttemptId, epoch: Epoch, number: u32, more: &Value) {
    let mut step = json!({
        "number": number, "at": 1_700_000_002_500_u64 + u64::from(number), "rested": number.is_multiple_of(2),
        "screen": {"png": screen(store, u8::try_from(number % 200).unwrap()), "width": SCREEN.0, "height": SCREEN.1},
        "timing": {"agent": 1000, "inject": 20, "rest": 300, "capture": 4}, "outcomes": [],
    });
    step.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    store.put_step(attempt, epoch, number, step.to_string().into_bytes()).wait().unwrap();
}

/// Stores a first observation and a step for each turn, each with its model calls.
fn add_steps(store: &Store, attempt: AttemptId, epoch: Epoch, turns: &[Turn]) -> u32 {
    if turns.is_empty() {
        return 0;
    }
    let step = |number, more| put_step(store, attempt, epoch, number, &more);
    step(0, json!({}));
    let body = blob(store, b"{\"key\": \"sk-secret\"}".to_vec());
    let mut calls = 0;
    let mut call = |more: Value| {
        let mut call = json!({
            "number": calls, "at": 1_700_000_002_000_u64, "took": 900, "endpoint": "vendor", "model": "big-1",
            "status": 200, "reserved": 2_000_000_001_u64, "settled": 0, "certainty": "reported", "request": body,
        });
        call.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        store.put_call(attempt, epoch, calls, call.to_string().into_bytes()).wait().unwrap();
        calls += 1;
    };
    let used = json!({"input": 100, "cache_read": 20, "cache_write": 3, "output": 7});
    for (number, turn) in (1..).zip(turns) {
        if number == 1 {
            // The vendor refused the first try, and bills no refusals.
            call(json!({"step": 1, "status": 529, "error": HOSTILE, "certainty": "released"}));
            call(json!({"step": 1, "settled": 1_234_567_891_u64, "retry_of": 0, "usage": used, "response": body}));
        } else {
            call(json!({"step": number, "settled": 3, "usage": used, "response": body}));
        }
        let mut more = json!({
            "answer": {"text": turn.text, "actions": turn.actions, "done": turn.done}, "outcomes": turn.outcomes,
            "told": turn.told,
        });
        if turn.actions == json!([]) && !turn.done {
            more["unreadable"] = json!(["fly: there is no such function"]);
        }
        step(number, more);
    }
    let last = u32::try_from(turns.len()).unwrap() + 1;
    call(json!({"step": last, "settled": 500_000_000, "purpose": "judge", "certainty": "unconfirmed"}));
    last
}

/// The reader of a store, for what a test compares with.
pub(crate) fn reader(store: &Store) -> &Reader {
    store.reader()
}
