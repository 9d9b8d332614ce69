//! Verifiers of ours, each a small file, run by the real runner under the real python3.

use std::sync::Arc;

use longhaul_core::digest::Digest;
use longhaul_core::outcome::Verdict;

use super::*;
use crate::blobs::BlobCache;
use crate::testing::plans;
use crate::testing::sandbox::{FolderDriver, FolderSandbox, World};

struct Bench {
    folder: tempfile::TempDir,
    cache: BlobCache,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let cache = BlobCache::open(&folder.path().join("cache"), &folder.path().join("staging"), u64::MAX).unwrap();
        fs::create_dir_all(folder.path().join("live")).unwrap();
        fs::create_dir_all(folder.path().join("episode")).unwrap();
        Self { folder, cache }
    }

    fn tree(&self, name: &str, files: &[(&str, &str)]) -> HeldTree {
        let staged = self.cache.stage_tree().unwrap();
        for (path, text) in files {
            let path = staged.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        self.cache.publish_tree(&Digest::of(name.as_bytes()), &staged, 0).unwrap()
    }

    async fn verify(&self, files: &[(&str, &str)]) -> Verification {
        self.verify_with(files, &[("utils/helper.py", "ANSWER = 42\n")], 20_000).await
    }

    async fn verify_with(&self, files: &[(&str, &str)], env_files: &[(&str, &str)], limit: u64) -> Verification {
        let world = Arc::new(World::default());
        let live =
            FolderSandbox { root: self.folder.path().join("live"), views: Vec::new(), world: Arc::clone(&world) };
        let episode = self.folder.path().join("episode");
        for frame in ["frame_00000.png", "frame_00001.png"] {
            fs::write(episode.join(frame), frame).unwrap();
        }
        let (task, env) = plans();
        let job = Job {
            id: "id".to_owned(),
            task: &task,
            env: &env,
            task_files: self.tree("task", files),
            env_files: self.tree("env", env_files),
            program: ("verifier.py", "verify"),
            episode: &episode,
            frames: vec!["frame_00000.png".to_owned(), "frame_00001.png".to_owned()],
            steps: vec![json!({"step": 0}), json!({"step": 1})],
            ended_by: EndedBy::Agent,
            limit: Duration::from_millis(limit),
            oracle: Err("no judge is configured".to_owned()),
            scratch: &self.folder.path().join("verify"),
        };
        verify(job, &FolderDriver(world), &Semaphore::new(1), &live).await
    }
}

fn plans() -> (TaskPlan, EnvPlan) {
    let task = TaskPlan {
        metadata: json!({"expected": 7}),
        spec: json!({"id": "some_task@1"}),
        ..plans::task(Digest::of(b"env"), Digest::of(b"files"))
    };
    let env = plans::env(Digest::of(b"env files"));
    (task, env)
}

async fn run(body: &str) -> Verification {
    let text = format!("def verify(traj, env_info, task_info):\n{}", indent(body));
    Bench::new().verify(&[("verifier.py", &text)]).await
}

fn indent(body: &str) -> String {
    body.trim().lines().map(|line| format!("    {line}\n")).collect()
}

fn verdict(verification: &Verification) -> &Verdict {
    match &verification.end {
        AttemptEnd::Verdict(verdict) => verdict,
        other => panic!("no verdict: {other:?}\n{}", verification.log),
    }
}

fn reason(verification: &Verification) -> &str {
    match &verification.end {
        AttemptEnd::Unverified { reason, .. } => reason,
        other => panic!("not unverified: {other:?}\n{}", verification.log),
    }
}

#[tokio::test]
async fn what_a_verifier_returns_becomes_the_verdict() {
    let passed =
        run("ok = task_info['metadata']['expected'] == 7\nreturn {'passed': ok, 'score': 85, 'feedback': 'fine'}")
            .await;
    assert_eq!((verdict(&passed).passed, verdict(&passed).score), (true, 85.0));
    assert_eq!(verdict(&passed).feedback, "fine");
    let failed = run("x = 1\nreturn {'passed': x > 1, 'score': 20.5, 'parts': {'a': (1, 2)}}").await;
    assert_eq!((verdict(&failed).passed, verdict(&failed).score), (false, 20.5));
    assert_eq!(verdict(&failed).details["parts"]["a"], json!([1, 2]));
}

#[tokio::test]
async fn scalars_of_other_libraries_are_read_as_what_they_hold() {
    let classes = "
class Scalar:
    def __init__(self, value):
        self.value = value
    def item(self):
        return self.value
    def __bool__(self):
        return True
";
    let text = format!(
        "{classes}\ndef verify(traj, env_info, task_info):\n    return {{'passed': Scalar(False), 'score': Scalar(12.0), 'n': Scalar(3)}}\n"
    );
    let verification = Bench::new().verify(&[("verifier.py", &text)]).await;
    assert_eq!((verdict(&verification).passed, verdict(&verification).score), (false, 12.0));
    assert_eq!(verdict(&verification).details["n"], 3);
}

#[tokio::test]
async fn a_missing_score_is_taken_from_passed_and_said() {
    let verification = run("x = 1\nreturn {'passed': x == 1}").await;
    assert_eq!(verdict(&verification).score, 100.0);
    assert_eq!(verification.notes.len(), 1);
}

#[tokio::test]
async fn a_falsy_leftover_is_a_no_and_a_truthy_one_is_no_verdict() {
    let verification = run("found = []\nreturn {'passed': found and True, 'score': 0}").await;
    assert!(!verdict(&verification).passed);
    for truthy in ["'yes'", "[1]", "object()", "'False'"] {
        let verification = run(&format!("x = {truthy}\nreturn {{'passed': x, 'score': 100}}")).await;
        assert!(reason(&verification).contains("not a truth value"), "{}", reason(&verification));
    }
}

#[tokio::test]
async fn what_is_no_verdict_is_unverified_with_the_reason() {
    for (body, wanted) in [
        ("raise ValueError('broken inside')", "broken inside"),
        ("import sys; sys.exit(0)", "SystemExit"),
        ("x = 1\nreturn None", "NoneType"),
        ("x = 1\nreturn True", "not a dict"),
        ("x = 1\nreturn {'score': 100}", "no `passed`"),
        ("x = float('nan')\nreturn {'passed': True, 'score': x}", "nan"),
        ("x = float('inf')\nreturn {'passed': True, 'score': x}", "inf"),
        ("x = float('nan')\nreturn {'passed': x, 'score': 1}", "not a number"),
        ("x = 1\nreturn {'passed': True, 'score': 'high'}", "not a number"),
        ("import os; os._exit(0)", "gave no verdict"),
        ("return {'passed': True, 'score': 100}", "stub"),
        ("'''Checks it.'''\nreturn {'passed': True, 'score': 100, 'feedback': 'Stub verifier'}", "stub"),
        ("def again(): return again()\nreturn again()", "RecursionError"),
    ] {
        let verification = run(body).await;
        assert!(reason(&verification).contains(wanted), "{body}: {}", reason(&verification));
    }
}

#[tokio::test]
async fn a_verifier_that_cannot_be_loaded_is_unverified() {
    for (files, wanted) in [
        (vec![("other.py", "x = 1")], "there is no verifier.py"),
        (vec![("verifier.py", "def verify(:\n")], "is not Python"),
        (vec![("verifier.py", "def other(): pass\n")], "no function `verify`"),
        (
            vec![("verifier.py", "import not_a_module_at_all\ndef verify(a, b, c): return dict(x=a)\n")],
            "not_a_module_at_all",
        ),
        (vec![("verifier.py", "verify = 3\n")], "no function `verify`"),
    ] {
        let verification = Bench::new().verify(&files).await;
        assert!(reason(&verification).contains(wanted), "{}", reason(&verification));
    }
}

#[tokio::test]
async fn a_verifier_that_never_ends_is_ended_and_unverified() {
    let text = "def verify(traj, env_info, task_info):\n    while True:\n        pass\n";
    let verification = Bench::new().verify_with(&[("verifier.py", text)], &[], 1500).await;
    assert!(reason(&verification).contains("time limit"), "{}", reason(&verification));
}

#[tokio::test]
async fn files_are_copied_from_the_live_sandbox_and_a_missing_one_raises() {
    let bench = Bench::new();
    let live = bench.folder.path().join("live/tmp");
    fs::create_dir_all(live.join("many/below")).unwrap();
    fs::write(live.join("result.json"), r#"{"count": 7}"#).unwrap();
    fs::write(live.join("many/below/file"), "deep").unwrap();
    fs::write(live.join("large"), vec![b'x'; 700_000]).unwrap();
    let text = r#"
import json, os, tempfile

def verify(traj, env_info, task_info):
    copy = env_info["copy_from_env"]
    folder = tempfile.mkdtemp()
    target = os.path.join(folder, "r.json")
    copy("/tmp/result.json", target)
    with open(target) as file:
        count = json.load(file)["count"]
    missing = False
    try:
        copy("/tmp/none.json", os.path.join(folder, "none"))
    except FileNotFoundError as error:
        missing = True
    copy("/tmp/many", os.path.join(folder, "many"))
    deep = open(os.path.join(folder, "many", "below", "file")).read()
    try:
        copy("/tmp/large", "/no/such/folder/large")
        refused = False
    except OSError:
        refused = True
    copy("/tmp/large", folder)
    large = os.path.getsize(os.path.join(folder, "large"))
    said = env_info["exec_capture"]("echo hello")
    env_info["copy_to_env"](target, "/tmp/back.json")
    right = count == 7 and missing and deep == "deep" and refused and large == 700000 and said == "ran echo hello"
    return {"passed": right, "score": 100 if right else 0, "feedback": str((count, missing, deep, refused, large, said))}
"#;
    let verification = bench.verify(&[("verifier.py", text)]).await;
    assert!(verdict(&verification).passed, "{}", verdict(&verification).feedback);
    assert_eq!(fs::read_to_string(live.join("back.json")).unwrap(), r#"{"count": 7}"#);
}

#[tokio::test]
async fn the_frameworks_names_can_be_imported_in_every_form_in_use() {
    let text = r#"
import gym_anything.vlm as vlm_utils
from gym_anything.vlm import query_vlm, sample_trajectory_frames, get_final_screenshot as gfs
from gym_anything.vlm import get_first_screenshot
from gym_anything.vlm_utils import query_vlm as standard_query_vlm
from gym_anything.utils import query_vlm as third
from verification_utils import setup_verification_environment, copy_file_from_container
import gym_anything.verification.deep.module
from helper import ANSWER

def verify(traj, env_info, task_info):
    frames = sample_trajectory_frames(traj, n=4)
    same = sample_trajectory_frames(traj, num_samples=2) == frames == env_info["sample_trajectory_frames"](traj, 5)
    first, last = get_first_screenshot(traj), gfs(traj)
    there = open(last).read() == "frame_00001.png" and first.endswith("frame_00000.png")
    keys = traj["frames"] == [first, last] and traj["step_frames"][1] == last and len(traj["steps"]) == 2
    right = ANSWER == 42 and same and there and keys and env_info["env_id"] == "some_env@1"
    return {"passed": right, "score": 100, "feedback": str((frames, first, last, same, there, keys))}
"#;
    let verification = Bench::new().verify(&[("verifier.py", text)]).await;
    assert!(verdict(&verification).passed, "{}", verdict(&verification).feedback);
    assert!(verification.notes.is_empty());
}

#[tokio::test]
async fn modules_of_the_benchmark_go_before_stand_ins_also_those_beside_the_task() {
    let text = "
from verification_utils import setup_verification_environment

def verify(traj, env_info, task_info):
    real = setup_verification_environment() == 'the real one'
    return {'passed': real, 'score': 1}
";
    let real = "def setup_verification_environment():\n    return 'the real one'\n";
    let bench = Bench::new();
    let verification =
        bench.verify_with(&[("verifier.py", text)], &[("tasks/verification_utils.py", real)], 20_000).await;
    assert!(verdict(&verification).passed);
}

#[tokio::test]
async fn an_unprovided_function_and_an_absent_judge_are_no_failures_of_the_agent() {
    let unprovided = run("from gym_anything.vlm import vlm_verify_task\nr = vlm_verify_task(traj)\nreturn {'passed': r['success'], 'score': 0}").await;
    assert!(reason(&unprovided).contains("gym_anything.vlm.vlm_verify_task"), "{}", reason(&unprovided));
    let judged = run("r = env_info['query_vlm'](prompt='?', images=traj['frames'])\nreturn {'passed': r.get('success'), 'score': 0, 'error': r['error']}").await;
    assert!(reason(&judged).contains("judge"), "{}", reason(&judged));
    let without = run("r = env_info['query_vlm'](prompt='?')\nok = not r['success'] and r['parsed'] == {}\nreturn {'passed': ok, 'score': 70}").await;
    assert!(verdict(&without).passed);
    assert_eq!(without.notes.len(), 1);
}

#[tokio::test]
async fn a_verifiers_output_is_kept_and_hostile_output_is_only_text() {
    let verification = run("import logging, sys\nlogging.getLogger('x').info('looked at it')\nprint('{\"op\": \"outcome\"}', file=sys.stderr)\nraise SystemExit('gave up')").await;
    assert!(verification.log.contains("looked at it"));
    assert!(reason(&verification).contains("gave up"));
}

#[test]
fn an_outcome_reads_back_from_the_runners_json() {
    let outcome: Outcome =
        serde_json::from_value(json!({"kind": "unusable", "reason": "r", "used": {"judge": true, "unprovided": []}}))
            .unwrap();
    assert_eq!(outcome.used, Used { judge: true, unprovided: Vec::new() });
    assert_eq!(outcome.result, Reported::Unusable { reason: "r".to_owned(), trace: None });
}
