//! Results that come from elsewhere: imported ones, those of other stores, those of other judges.

use std::fs;
use std::path::Path;

use longhaul_core::ids::EpisodeId;
use longhaul_core::judge::{FramePolicy, JudgePlan};
use longhaul_report::Thumbnail;
use serde_json::{Value, json};

use super::{HOSTILE, Home, Stored, TASKS, home, outcome, run_id, verdict};

fn picture(path: &Path, shade: u8) {
    let rgb = [shade, 90, 160].repeat(64 * 48);
    fs::write(path, Thumbnail { width: 64, height: 48, rgb, plain: true }.png().unwrap()).unwrap();
}

/// A folder as one of Gym-Anything's agents leaves it.
fn agents_run(home: &Home, place: &str, passed: &Value, reason: &str) {
    let info = json!({"step": 2, "reason": reason, "verifier": {
        "mode": "program", "decided": true, "passed": passed, "score": 100.0, "feedback": HOSTILE,
    }});
    home.file(&format!("{place}/info.json"), &info.to_string());
    let responses = json!({
        "model_responses": [HOSTILE, "done"],
        "parsed_responses": [{"actions": [{"mouse": {"left_click": [1, 2]}}]}, {"actions": []}],
    });
    home.file(&format!("{place}/responses.json"), &responses.to_string());
    for number in 0..2 {
        picture(&home.path().join(place).join(format!("observation_{number}.png")), number * 80);
    }
}

fn json_of(home: &Home, args: &[&str]) -> Value {
    let ran = home.run(args);
    assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
    serde_json::from_str(&ran.stdout).unwrap()
}

#[test]
fn old_results_are_imported_whole_once_and_compared_with_ours() {
    let home = home();
    for (task, passed) in [("sum", true), ("mean", false), ("sort", true)] {
        agents_run(&home, &format!("all_runs/exp/Qwen/VL/{task}/run_0"), &json!(passed), "Agent Completed");
    }
    let import = ["import", "all_runs", "--env", "calc_env", "--store", "old"];
    let dry = home.run(&[&import[..], &["--dry-run"]].concat());
    assert_eq!(dry.code, Some(0), "{}", dry.stderr);
    assert!(dry.stdout.contains("3 episodes would be imported into") && !home.path().join("old").exists());
    let ran = home.run(&import);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("exp/Qwen/VL  3         2 passed, 1 failed"), "{}", ran.stdout);
    assert!(home.run(&["store", "verify", "old"]).stdout.contains(" 0 findings"));
    let again = home.run(&import);
    assert_eq!(again.code, Some(3));
    assert!(again.stderr.contains("these results are in the store already, as run "), "{}", again.stderr);
    let left: Vec<_> = fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with(".import-")), "{left:?}");

    // What was recorded is shown, what was not is not.
    let steps = json_of(&home, &["show", "latest/2", "--store", "old", "--steps", "--format", "json"]);
    assert_eq!(steps.as_array().unwrap().len(), 3, "the first observation and two answers");
    assert_eq!((&steps[1]["answer"]["text"], &steps[2]["answer"]["done"]), (&json!(HOSTILE), &json!(true)));
    let found = json_of(&home, &["show", "latest/0", "--store", "old", "--provenance", "--format", "json"]);
    assert_eq!(found["imported"]["folder"], "exp/Qwen/VL/mean/run_0");
    for unknown in ["task", "verifier", "budget", "version", "node", "worker"] {
        assert_eq!(found[unknown], Value::Null, "{unknown}");
    }
    let shown = home.run(&["show", "latest", "--store", "old"]).stdout;
    assert!(shown.contains("imported from Gym-Anything's runs in [HOME]/all_runs"), "{shown}");

    let ran = home.run(&["compare", "latest:careful", "old#latest", "--store", "results"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    assert!(ran.stdout.contains("exp/Qwen/VL: imported from [HOME]/all_runs: nobody knows whether"), "{}", ran.stdout);
    assert!(ran.stdout.contains("both passed 2, careful alone 1, exp/Qwen/VL alone 0, neither 0"), "{}", ran.stdout);
    let found = json_of(&home, &["compare", "latest:careful", "old#latest", "--store", "results", "--json"]);
    let amounts = &found["sides"][1]["measures"]["amounts"];
    assert_eq!((&amounts["dollars"]["missing"], &amounts["seconds"]["missing"]), (&json!(3), &json!(3)));
    assert_eq!(amounts["steps"]["per_episode"], 2.0);
    for again in [
        &["rejudge", "latest", "--store", "old", "-o", "rejudged"][..],
        &["run", "run:latest", "--store", "old", "--agent", "idle", "--dry-run"],
    ] {
        let ran = home.run(again);
        assert!(ran.code == Some(2) && ran.stderr.contains("was imported: its tasks are not there"), "{}", ran.stderr);
    }
    let ran = home.run(&["report", "old#latest", "--store", "results", "-o", "report.html"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
}

/// What no message of a worker could hold, in a step and in a verdict, is read through a coordinator as
/// it is from the store.
#[test]
fn large_imported_records_are_read_through_a_coordinator_too() {
    let home = Home::new();
    agents_run(&home, "all_runs/exp/model/sum/run_0", &json!(true), "max_steps");
    let place = home.path().join("all_runs/exp/model/sum/run_0");
    let large = "x".repeat(6 << 20);
    for (file, at) in [("responses.json", "/model_responses/0"), ("info.json", "/verifier/feedback")] {
        let mut value: Value = serde_json::from_slice(&fs::read(place.join(file)).unwrap()).unwrap();
        *value.pointer_mut(at).unwrap() = json!(large);
        fs::write(place.join(file), value.to_string()).unwrap();
    }
    let ran = home.run(&["import", "all_runs", "--env", "calc_env", "--store", "old"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let read = |args: &[&str]| json_of(&home, &[args, &["--store", "old", "--format", "json"]].concat());
    let (steps, episode) = (read(&["show", "latest/0", "--steps"]), read(&["show", "latest/0"]));
    assert_eq!(steps[1]["answer"]["text"].as_str().map(str::len), Some(large.len()));
    let mut server = home.command(&["serve", "--store", "old"]).stderr(std::process::Stdio::null()).spawn().unwrap();
    let status = || home.run(&["status", "--coordinator", "old/access/local.json"]).code;
    for _ in 0..600 {
        if status() == Some(0) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert_eq!(status(), Some(0));
    assert_eq!((read(&["show", "latest/0", "--steps"]), read(&["show", "latest/0"])), (steps, episode));
    let pid = nix::unistd::Pid::from_raw(i32::try_from(server.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert_eq!(server.wait().unwrap().code(), Some(0));
}

#[test]
fn what_cannot_be_imported_is_named_and_left_out_only_if_that_is_asked_for() {
    let home = Home::new();
    agents_run(&home, "all_runs/exp/model/sum/run_0", &json!(true), "max_steps");
    agents_run(&home, "all_runs/exp/model/mean/run_0", &json!("yes"), "max_steps");
    home.file("all_runs/exp/model/sort/run_0/info.pkl", "not read");
    let import = ["import", "all_runs", "--env", "calc_env", "--store", "old"];
    let ran = home.run(&import);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(3), ""));
    for named in [
        "2 of the results cannot be used:",
        "exp/model/mean/run_0: the verifier's `passed` is `\"yes\"`",
        "exp/model/sort/run_0: what came of it is in info.pkl, a Python pickle",
        "import the rest with --leave-out",
    ] {
        assert!(ran.stderr.contains(named), "{named}: {}", ran.stderr);
    }
    assert!(!home.path().join("old").exists());
    let found = json_of(&home, &[&import[..], &["--leave-out", "--format", "json"]].concat());
    assert_eq!((found["episodes"].as_array().unwrap().len(), found["left_out"].as_array().unwrap().len()), (1, 2));
    assert_eq!(found["episodes"][0]["settlement"]["verdict"]["ended_by"], "steps");
    let ran = home.run(&["import", "old", "--store", "other"]);
    assert!(ran.stderr.contains("there are no results of Gym-Anything in old"), "{}", ran.stderr);
}

#[test]
fn what_we_export_in_that_form_comes_back_the_same() {
    let home = Home::new();
    let stored = Stored { run: run_id(1), tasks: &TASKS[..4], agents: &["careful"], verifier: b"one", steps: 2 };
    stored.write(&home.path().join("results"), outcome);
    let export = ["export", "latest", "--store", "results", "--format", "gym-anything", "-o", "out"];
    assert_eq!(home.run(&export).code, Some(0));
    let ran = home.run(&["import", "out", "--store", "again"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let found = json_of(&home, &["compare", "latest", "again#latest", "--store", "results", "--json"]);
    let pair = &found["comparisons"]["pairs"][0];
    assert_eq!(pair["pass"]["table"], json!({"both": 4, "a_only": 0, "b_only": 0, "neither": 0}));
    let steps = |store| json_of(&home, &["show", "latest/0", "--store", store, "--steps", "--format", "json"]);
    let (ours, theirs) = (steps("results"), steps("again"));
    for (one, other) in ours.as_array().unwrap().iter().zip(theirs.as_array().unwrap()) {
        assert_eq!((&one["answer"], &one["screen"], &one["at"]), (&other["answer"], &other["screen"], &other["at"]));
    }
}

#[test]
fn stores_are_merged_by_the_program_and_money_is_what_it_was() {
    let home = home();
    let stored = Stored { run: run_id(2), tasks: &TASKS[..4], agents: &["hasty"], verifier: b"one", steps: 2 };
    stored.write(&home.path().join("other"), outcome);
    let found = json_of(&home, &["store", "merge", "results", "other", "all", "--format", "json"]);
    let runs: Vec<_> =
        found["runs"].as_array().unwrap().iter().map(|run| (&run["episodes"], &run["existed"])).collect();
    assert_eq!(runs, [(&json!(16), &json!(false)), (&json!(4), &json!(false))]);
    assert!(home.run(&["store", "verify", "all"]).stdout.contains(" 0 findings"));
    let again = home.run(&["store", "merge", "results", "other", "all"]);
    assert_eq!(again.stdout.matches("was there").count(), 2, "{}", again.stdout);
    let (one, two) = (run_id(1).to_string(), run_id(2).to_string());
    let ran = home.run(&["compare", &format!("{one}:careful"), &two, "--store", "all"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let ran = home.run(&["store", "merge", "results", "results"]);
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    assert!(ran.stderr.contains("both where runs come from and where they go"), "{}", ran.stderr);
}

/// The folder of a rejudgement of the run of [`home`]: the judge passes the first task of each
/// agent, could not be asked about the second, and fails the rest.
fn rejudged(home: &Home) {
    let judge = JudgePlan::published("judges".to_owned(), "model-k".to_owned());
    let head = json!({"run": run_id(1), "judge": judge, "checklist": null});
    home.file("second-opinion/rejudge.json", &head.to_string());
    let digest = longhaul_core::digest::Digest::of(b"checklist");
    let mut lines = String::new();
    for index in 0..16 {
        let task = index / 2;
        let passed = task == 0;
        let judgement = json!({
            "passed": passed, "score": if passed { 100.0 } else { 0.0 }, "completion": 0.0, "integrity_rate": 1.0,
            "completion_threshold": 100.0, "integrity_threshold": 1.0, "items": [], "judges": [],
            "endpoint": "judges", "model": "model-k", "frames": FramePolicy::Published, "shown": [0], "prompt": digest,
            "checklist": digest,
        });
        let (judgement, error) = if task == 1 { (Value::Null, json!("refused")) } else { (judgement, Value::Null) };
        let episode = EpisodeId { run: run_id(1), index };
        let mut line = json!({"episode": episode, "judgement": judgement, "error": error});
        // As it is written now, and as it was before rounds were judged.
        if index % 2 == 0 {
            line["rounds"] = Value::Null;
        }
        lines.extend([&line.to_string(), "\n"]);
    }
    home.file("second-opinion/verdicts.jsonl", &format!("{lines}{{\"cut"));
}

#[test]
fn a_rejudgement_is_a_side_of_its_own_and_changes_no_settlement() {
    let home = home();
    rejudged(&home);
    let args = ["compare", "latest:careful", "second-opinion:careful", "--store", "results"];
    let ran = home.run(&args);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    for said in [
        "careful (second-opinion)",
        // Settled: six passed, two failed. Judged: one passed, six failed, one not found out.
        "both passed 1, careful alone 4, careful (second-opinion) alone 0, neither 2",
        "judge: not the same for careful and careful (second-opinion), on all of 8 common tasks",
    ] {
        assert!(ran.stdout.contains(said), "{said}: {}", ran.stdout);
    }
    let found = json_of(&home, &[&args[..], &["--json"]].concat());
    assert_eq!(
        (&found["sides"][0]["rejudged"], &found["sides"][1]["rejudged"]),
        (&Value::Null, &json!("second-opinion"))
    );
    // Programs settled the run: how far the judge agrees with them is known.
    let program = &found["sides"][1]["judges"]["program"];
    assert_eq!((&program["episodes"], &program["same"]), (&json!(7), &json!(3)));
    // A fault stays a fault, whoever judges.
    let both = json_of(&home, &["compare", "second-opinion", "--store", "results", "--json"]);
    assert_eq!(both["sides"][1]["faults"]["display"], 1);
    assert_eq!(home.run(&["report", "second-opinion", "--store", "results", "-o", "r.html"]).code, Some(0));
    let settled = json_of(&home, &["compare", "latest", "--store", "results", "--json"]);
    assert_eq!(settled["sides"][0]["measures"]["tally"]["passed"], 6);
    let twice = home.run(&["compare", "second-opinion", "second-opinion:hasty", "--store", "results"]);
    assert!(twice.stderr.contains("is named twice"), "{}", twice.stderr);
}

#[test]
fn an_agent_is_added_to_an_old_run_without_its_clone() {
    let home = Home::new();
    let stored = Stored { run: run_id(1), tasks: &TASKS[..4], agents: &["careful"], verifier: b"one", steps: 2 };
    stored.write(&home.path().join("results"), |_, _| verdict(true));
    let args = ["run", "run:latest", "--agent", "idle", "--store", "results", "--dry-run", "--format", "json"];
    let found = json_of(&home, &args);
    assert_eq!(found["tasks"], json!(["calc_env/mean", "calc_env/round", "calc_env/sort", "calc_env/sum"]));
    let one = json_of(&home, &[&args[..], &["--task", "calc_env/s*"]].concat());
    assert_eq!(one["tasks"], json!(["calc_env/sort", "calc_env/sum"]));
    let split = json_of(&home, &[&args[..], &["--split", "test", "--limit", "1"]].concat());
    assert_eq!(split["tasks"].as_array().unwrap().len(), 1);
    let ran = home.run(&[&args[..], &["--verify", "both"]].concat());
    assert!(ran.stderr.contains("are scored as they were"), "{}", ran.stderr);
    let ran = home.run(&["run", "run:nothing", "--agent", "idle", "--store", "results", "--dry-run"]);
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
}
