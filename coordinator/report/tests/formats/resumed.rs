//! An episode of two rounds that was cut off in the second and went on in another attempt: each of
//! its steps is exported once, with whoever took it, and its rounds' goals where they were told.

use std::path::Path;

use longhaul_core::ids::{AttemptId, EpisodeId, Epoch, WorkerId};
use longhaul_core::time::Timestamp;
use longhaul_report::{Attempts, ChatOptions, Coordinates, Format, Rows};
use longhaul_store::{Change, Store};
use serde_json::{Value, json};

use crate::run::{self, exported, from, plan, put_step, run_id};

fn add(store: &Store) {
    let id = EpisodeId { run: run_id(), index: 9 };
    let rounds = ["Open it.", "Then close it."].map(|goal| json!({"kind": "open", "goal": goal, "assertions": []}));
    let plan = plan(store, "desk_env/two", 0, &json!({"rounds": {"rounds": rounds}}));
    let change = |number: u32, epoch: u64, resumes| {
        let attempt = AttemptId { episode: id, number };
        let record = from(json!({
            "id": attempt, "epoch": epoch, "worker": WorkerId::new(Timestamp(1), 5), "hostname": "node1",
            "started": 1_700_000_001_000_u64,
        }));
        let lease = Change::Lease { attempt, epoch: Epoch(epoch), resumes };
        store.append(vec![], vec![Change::Attempt(Box::new(record)), lease]).wait().unwrap();
        attempt
    };
    let answer = |text: &str, round: u32| {
        json!({"answer": {"text": text, "actions": [{"mouse": {"left_click": [1, 2]}}], "done": true},
               "outcomes": ["done"], "round": round})
    };
    let first = change(1, 901, false);
    put_step(store, first, Epoch(901), 0, &json!({"round": 1}));
    put_step(store, first, Epoch(901), 1, &answer("opened", 1));
    put_step(store, first, Epoch(901), 2, &json!({"round": 2, "told": "Then close it."}));
    let body = run::blob(store, b"{}".to_vec());
    let call = |attempt, epoch, number: u32, more: &Value| {
        let mut call = json!({
            "number": number, "step": 3, "at": 1_700_000_002_000_u64, "took": 900, "endpoint": "vendor", "model": "big-1",
            "status": 200, "reserved": 7, "settled": 7, "certainty": "reported", "request": body,
            "response": body, "usage": {"input": 10, "output": 5},
        });
        call.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        store.put_call(attempt, Epoch(epoch), number, call.to_string().into_bytes()).wait().unwrap();
    };
    // In flight when it was cut off: paid for, and made again.
    let cut_off =
        json!({"status": null, "response": null, "usage": null, "certainty": "unconfirmed", "error": "no answer"});
    call(first, 901, 0, &cut_off);
    store.append(vec![], vec![Change::LeaseOver { episode: id }]).wait().unwrap();
    let second = change(2, 902, true);
    let kept = store.reader().line(second).unwrap().unwrap().kept;
    assert_eq!(kept.steps, 3);
    let resumed = from(json!({"way": "replay", "kept": kept, "at": 1, "took": 1}));
    store.put_resumed(second, Epoch(902), resumed).wait().unwrap();
    call(second, 902, 0, &json!({}));
    put_step(store, second, Epoch(902), 3, &answer("closed", 2));
    let verdict =
        json!({"verdict": {"passed": true, "score": 100.0, "feedback": "", "details": {}, "ended_by": "agent"}});
    let settled = json!({"settled": {"settlement": verdict, "at": 1_700_000_900_000_u64, "attempt": second}});
    let episode = from(json!({
        "id": id, "task": "desk_env/two", "agent": "other", "sample": 0, "plan": plan, "attempts": 2, "state": settled,
    }));
    store.append(vec![], vec![Change::Episode(Box::new(episode))]).wait().unwrap();
}

fn lines(path: &Path) -> Vec<Value> {
    std::fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn steps_that_a_later_attempt_keeps_are_there_once_and_goals_where_they_were_told() {
    let folder = tempfile::tempdir().unwrap();
    let store = run::store(&folder.path().join("store"));
    add(&store);
    let episode = format!("{}/9", run_id());
    for (attempts, name) in [(Attempts::Settling, "settling"), (Attempts::All, "all")] {
        let out = folder.path().join(name);
        exported(&store, &Format::Jsonl(attempts), &out).unwrap();
        let steps = lines(&out.join("steps.jsonl"));
        let own: Vec<(&str, u64)> = steps
            .iter()
            .filter(|step| step["episode"] == *episode)
            .map(|step| (step["attempt"].as_str().unwrap().rsplit('/').next().unwrap(), step["step"].as_u64().unwrap()))
            .collect();
        assert_eq!(own, [("1", 0), ("1", 1), ("1", 2), ("2", 3)], "{name}");
    }

    let out = folder.path().join("atif");
    exported(&store, &Format::Atif, &out).unwrap();
    let path = out.join(format!("{}/desk_env/two/other/0/trajectory.json", run_id()));
    let trajectory: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let steps = trajectory["steps"].as_array().unwrap();
    let sources: Vec<&str> = steps.iter().map(|step| step["source"].as_str().unwrap()).collect();
    assert_eq!(sources, ["user", "agent", "user", "agent"]);
    assert!(steps[0]["message"][0]["text"].as_str().unwrap().ends_with("\n\nOpen it."));
    assert_eq!(steps[2]["message"][0]["text"], "Then close it.");
    assert_eq!(steps[2]["message"][1]["type"], "image");
    assert_eq!((&steps[3]["llm_call_count"], &steps[3]["metrics"]["prompt_tokens"]), (&json!(1), &json!(10)));
    assert_eq!(trajectory["final_metrics"]["extra"]["cost_nanos"], 14);

    let out = folder.path().join("chat");
    let options = ChatOptions {
        max_steps: None,
        first_success: false,
        failures: false,
        rows: Rows::Episodes,
        coordinates: Coordinates::Pixels,
    };
    exported(&store, &Format::Chat(options), &out).unwrap();
    let rows = lines(&out.join("train.jsonl"));
    let row = rows.iter().find(|row| row["episode"] == *episode).unwrap();
    assert_eq!(row["messages"][3]["content"], json!([{"type": "text", "text": "Then close it."}, {"type": "image"}]));
    assert_eq!(row["messages"].as_array().unwrap().len(), 5);
}
