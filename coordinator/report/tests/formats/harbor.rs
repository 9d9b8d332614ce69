//! Trajectories in ATIF, and Harbor's folders, read with Harbor's own models.

use std::path::{Path, PathBuf};

use longhaul_report::{Exported, Format};
use serde_json::{Value, json};

use crate::python;
use crate::run::{self, HOSTILE, SECRET, exported, run_id};

fn written(format: &Format) -> (tempfile::TempDir, PathBuf, Exported) {
    let folder = tempfile::tempdir().unwrap();
    let store = run::store(&folder.path().join("store"));
    let out = folder.path().join("out");
    let done = exported(&store, format, &out).unwrap();
    (folder, out, done)
}

/// Every file of text below a folder, one after the other.
pub(crate) fn all_text(folder: &Path) -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            text.push_str(&all_text(&path));
        } else if path.extension().is_none_or(|kind| kind != "png") {
            text.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
    text
}

#[test]
fn harbors_validator_takes_every_trajectory_and_finds_what_was_played() {
    let (_folder, out, done) = written(&Format::Atif);
    assert_eq!((done.episodes, done.steps), (9, 7 + 3 + 61 + 4 + 5 + 2 + 2 + 3));
    let found = python::read("check_harbor.py", &out);
    let all = found["trajectories"].as_array().unwrap();
    assert_eq!(all.len(), 9);
    let path = |path: &str| format!("{}/{path}", run_id());
    let of = |name: &str| all.iter().find(|found| found["path"] == path(name)).unwrap();
    let first = of("draw_env/circle/teacher/0/trajectory.json");
    assert_eq!(first["version"], "ATIF-v1.7");
    assert_eq!(first["first_text"], format!("Draw draw_env/circle. {HOSTILE}"));
    // What the agent was told before its last step is a step of its own.
    assert_eq!(first["sources"], json!(["user", "agent", "agent", "agent", "agent", "agent", "user", "agent"]));
    assert_eq!(first["calls"][4], json!([{"mouse": {"scroll": -3}}, {"keyboard": {"text": HOSTILE}}]));
    assert_eq!(first["results"][2][0], "error: unknown key `fly`");
    assert_eq!(first["results"][3][1], "error: beyond the screen");
    assert_eq!(first["results"][3][2][0]["type"], "image");
    // The try that the vendor refused is no inference; the judge's calls are not the agent's.
    assert_eq!(first["inferences"], json!([null, 1, 1, 1, 1, 1, null, 1]));
    assert_eq!(first["cost"], 1.234_567_906);
    assert_eq!(first["prompt_tokens"], 6 * 123);
    assert_eq!(first["usage"]["big-1"]["n_output_tokens"], 6 * 7);
    // An episode that faulted before its first step has a trajectory, with the task alone.
    let faulted = of("calc_env/sum/teacher/1/trajectory.json");
    assert_eq!(faulted["sources"], json!(["user"]));
    let text = all_text(&out);
    assert!(!text.contains(SECRET) && !text.contains("sk-secret"), "what only a verifier may know");
}

#[test]
fn harbor_reads_its_folders_and_counts_the_same() {
    let (_folder, out, done) = written(&Format::Harbor);
    assert_eq!(done.episodes, 9);
    let found = python::read("check_harbor.py", &out);
    let job = &found["jobs"][run_id().to_string()];
    assert_eq!((&job["total"], &job["running"], &job["errored"]), (&json!(9), &json!(1), &json!(2)));
    let trial = |name: &str| -> Value { job["trials"][name].clone() };
    let passed = trial("circle__00000");
    assert_eq!(passed["task"], "draw_env/circle");
    assert_eq!(passed["rewards"], json!({"reward": 1.0, "score": 100.0}));
    assert_eq!((&passed["valid"], &passed["model"], &passed["set_up"]), (&json!(true), &json!("big-1"), &json!(true)));
    assert_eq!(trial("sum__00004")["rewards"], json!({"reward": 0.0, "score": 40.5}));
    // Neither our fault nor a missing verifier is the agent's failure.
    for (index, exception) in [("00005", "Fault.display"), ("00006", "Unverified")] {
        let name = find(job, index);
        let trial = trial(&name);
        assert_eq!((&trial["rewards"], &trial["valid"]), (&Value::Null, &json!(false)), "{name}");
        assert_eq!(trial["exception"], exception);
    }
    assert_eq!(job["trials"].as_object().unwrap().len(), 8, "one goes on");
    assert_eq!(found["trajectories"].as_array().unwrap().len(), 9);
}

/// The trial of an episode by its index, whatever its task's name was made to.
fn find(job: &Value, index: &str) -> String {
    job["trials"].as_object().unwrap().keys().find(|name| name.ends_with(index)).unwrap().clone()
}
