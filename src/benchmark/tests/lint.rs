//! One case for each kind of oddity that lint finds on disk.

use std::fs;
use std::os::unix::fs::symlink;

use longhaul_core::lint::{Code, Finding, TaskCounts, human};
use serde_json::json;

use super::Small;
use crate::benchmark::Depth;

fn findings(small: &Small) -> Vec<Finding> {
    small.read(Depth::Checks).findings
}

/// The codes found, without the one that says that nothing is needed.
fn codes(small: &Small) -> Vec<Code> {
    findings(small).into_iter().map(|found| found.code).filter(|code| *code != Code::NeedsContainer).collect()
}

#[test]
fn a_benchmark_in_order_has_no_findings() {
    assert_eq!(codes(&Small::new()), []);
}

#[test]
fn one_broken_task_is_refused_and_no_other() {
    let small = Small::new();
    small.add_task("paint_env", "good");
    small.write(
        "environments/paint_env/tasks/draw_line/task.json",
        "{\n  \"id\": \"draw_line@1\",\n  \"a\": \"\\d\"\n}",
    );
    let benchmark = small.read(Depth::Checks);
    assert_eq!(benchmark.counts, TaskCounts { files: 2, loaded: 1, refused: 1, ..TaskCounts::default() });
    let broken = benchmark.findings.iter().find(|found| found.code == Code::JsonSyntax).unwrap();
    assert_eq!(broken.location(), "environments/paint_env/tasks/draw_line/task.json:3:10");
    assert!(broken.hint.contains("backslash"), "{}", broken.hint);
}

#[test]
fn rounds_are_counted_and_their_hooks_looked_for() {
    let small = Small::new();
    small.write_task("paint_env", "draw_line", |spec| {
        spec["longhaul"] = json!({"rounds": [
            {"kind": "open", "goal": "g", "read": "rounds/read.sh",
             "assertions": [{"id": "a", "aspect": "visible", "says": "s", "at": "/x", "equals": 1}]},
            {"kind": "return", "goal": "g", "before": "rounds/reopen.sh", "assertions": [
             {"id": "a", "aspect": "visible", "ask": "Is it there?"}]},
        ]});
        // What only a verifier would need is not asked for.
        spec.as_object_mut().unwrap().remove("success");
    });
    small.write("environments/paint_env/tasks/draw_line/rounds/read.sh", "echo '{}'\n");
    let found = findings(&small).into_iter().find(|found| found.code == Code::RoundsFileMissing).unwrap();
    assert!(found.message.contains("`rounds/reopen.sh`"), "{}", found.message);
    small.write("environments/paint_env/tasks/draw_line/rounds/reopen.sh", "true\n");
    let large = small.task_dir("paint_env", "draw_line").join("rounds/data.bin");
    std::fs::File::create(&large).unwrap().set_len(20 * 1024 * 1024).unwrap();
    let found = findings(&small).into_iter().find(|found| found.code == Code::RoundsFilesLarge).unwrap();
    assert!(found.message.contains("16777216 are the most"), "{}", found.message);
    std::fs::remove_file(large).unwrap();
    assert_eq!(codes(&small), []);
    let counts = small.read(Depth::Checks).counts;
    assert_eq!((counts.with_rounds, counts.rounds, counts.assertions), (1, 2, 2));
    let text = human(&small.read(Depth::Checks).into_report(), false);
    assert!(text.contains("1 tasks in rounds: 2 rounds, 2 assertions\n"), "{text}");
    small.write_task("paint_env", "draw_line", |spec| spec["longhaul"] = json!({"rounds": [{"goal": "g"}]}));
    assert_eq!(small.read(Depth::Checks).counts.refused, 1, "it is refused, and no other");
}

#[test]
fn text_after_the_end_of_a_task_is_refused_where_it_starts() {
    let small = Small::new();
    let path = small.task_dir("paint_env", "draw_line").join("task.json");
    let mut text = fs::read_to_string(&path).unwrap();
    text.push_str("\n\n<system-reminder>\nleaked\n");
    fs::write(&path, text).unwrap();
    let found = findings(&small).into_iter().find(|found| found.code == Code::JsonSyntax).unwrap();
    assert_eq!((found.line, found.column), (Some(3), Some(1)));
}

#[test]
fn folders_and_files_that_are_no_tasks_are_named() {
    let small = Small::new();
    fs::create_dir_all(small.task_dir("paint_env", "empty")).unwrap();
    fs::create_dir_all(small.task_dir("paint_env", "__pycache__")).unwrap();
    small.write("environments/paint_env/tasks/.triage_done", "");
    fs::create_dir_all(small.env_dir("no_env_at_all")).unwrap();
    assert_eq!(codes(&small), [Code::EnvSpecMissing, Code::TaskSpecMissing, Code::StrayFile, Code::StrayFile]);
}

#[test]
fn a_refused_env_refuses_no_other() {
    let small = Small::new();
    small.add_env("broken_env");
    small.add_task("broken_env", "any");
    small.write("environments/broken_env/env.json", "{\"id\": 1,}");
    let benchmark = small.read(Depth::Specs);
    assert!(benchmark.env("broken_env").unwrap().spec.is_err());
    assert!(benchmark.env("paint_env").unwrap().spec.is_ok());
    assert_eq!(benchmark.counts.loaded, 2);
}

#[test]
fn verifiers_are_judged() {
    let cases = [
        ("", Code::VerifierFunctionMissing),
        ("def verify(x):\n    return look(x)\n", Code::VerifierSignature),
        ("def verify(a, b, c):\n    return {'passed': True, 'score': 100}\n", Code::StubVerifier),
        ("def verify(a, b, c):\n    return {'passed': False, 'score': 0}\n", Code::StubVerifierFails),
        ("def verify(a, b, c):\n    return look(b['exec_in_env'])\n", Code::VerifierUnknownHelper),
        ("def verify(a, b, c):\n    return look((a)\n", Code::VerifierSyntax),
    ];
    for (text, code) in cases {
        let small = Small::new();
        small.write("environments/paint_env/tasks/draw_line/verifier.py", text);
        assert_eq!(codes(&small), [code], "{text}");
    }
    let small = Small::new();
    fs::remove_file(small.task_dir("paint_env", "draw_line").join("verifier.py")).unwrap();
    assert_eq!(codes(&small), [Code::VerifierMissing]);
}

#[test]
fn hooks_that_name_what_is_not_there_are_found_through_mounts() {
    let small = Small::new();
    small.write_env("paint_env", |spec| {
        spec["hooks"]["post_start"] =
            json!("chmod +x /workspace/scripts/gone.sh && bash -l /workspace/scripts/install.sh");
        spec["hooks"]["pre_start"] = json!("/workspace/unmounted/install.sh; /usr/bin/true");
    });
    small.write_task("paint_env", "draw_line", |spec| {
        spec["hooks"]["post_task"] = json!("powershell -File C:\\Workspace\\tasks\\draw_line\\export.ps1");
        spec["hooks"]["pre_task"] = json!("powershell -File \"C:\\workspace\\tasks\\draw_line\\setup_task.sh\"");
    });
    let said: Vec<_> = findings(&small)
        .into_iter()
        .filter(|found| found.code == Code::HookFileMissing)
        .map(|found| found.message)
        .collect();
    assert_eq!(
        said,
        [
            "`/workspace/scripts/gone.sh` of the hook `post_start` is not there",
            "`/workspace/unmounted/install.sh` of the hook `pre_start` is not there",
            "`C:\\Workspace\\tasks\\draw_line\\export.ps1` of the hook `post_task` is not there",
        ]
    );
}

#[test]
fn mounts_are_checked() {
    let small = Small::new();
    small.add_env("other_env");
    small.write_env("paint_env", |spec| {
        let mounts = spec["mounts"].as_array_mut().unwrap();
        mounts.push(json!({"source": "benchmarks/small/environments/paint_env/assets", "target": "/workspace/assets"}));
        mounts.push(json!({"source": "../../../../../etc", "target": "/workspace/etc"}));
        mounts.push(json!({"source": "benchmarks/small/environments/other_env/scripts", "target": "/workspace/other"}));
        mounts.push(json!({"target": "/workspace/none"}));
    });
    assert_eq!(
        codes(&small),
        [
            Code::MountIncomplete,
            // The other env mounts the tasks that it does not have.
            Code::MountSourceMissing,
            Code::MountSourceMissing,
            Code::MountOutside,
            Code::MountOfAnotherEnv,
            Code::EnvWithoutTasks,
        ]
    );
}

#[test]
fn linked_tasks_are_counted_once_and_belong_to_both_envs() {
    let small = Small::new();
    small.add_env("fast_env");
    symlink("../paint_env/tasks", small.env_dir("fast_env").join("tasks")).unwrap();
    small.write("environments/paint_env/tasks/draw_line/verifier.py", "");
    let benchmark = small.read(Depth::Checks);
    assert_eq!(benchmark.counts.files, 1);
    assert_eq!(benchmark.env("fast_env").unwrap().tasks.len(), 1);
    assert_eq!(codes(&small), [Code::LinkedTasks, Code::VerifierFunctionMissing]);
}

#[test]
fn ids_used_twice_are_found() {
    let small = Small::new();
    small.add_env("copy_env");
    small.add_task("copy_env", "draw_line");
    small.write_env("copy_env", |spec| spec["id"] = json!("paint_env@1"));
    small.write_task("copy_env", "draw_line", |spec| spec["env_id"] = json!("paint_env@1"));
    assert_eq!(codes(&small), [Code::DuplicateEnvId, Code::DuplicateEnvId, Code::TaskNameShared]);
}

#[test]
fn where_no_script_was_copied_their_absence_is_one_finding() {
    let small = Small::new();
    fs::remove_dir_all(small.env_dir("paint_env").join("scripts")).unwrap();
    for name in ["setup_task.sh", "verifier.py", "vlm_checklist.json"] {
        fs::remove_file(small.task_dir("paint_env", "draw_line").join(name)).unwrap();
    }
    assert_eq!(findings(&small).into_iter().map(|found| found.code).collect::<Vec<_>>(), [Code::NoScripts]);
}

#[test]
fn checklists_and_audits_are_read() {
    let small = Small::new();
    small.add_task("paint_env", "second");
    small.write("environments/paint_env/tasks/draw_line/vlm_checklist.json", "{\"checklist\": []}");
    small.write(
        "environments/paint_env/tasks/draw_line/validated_pi.json",
        "{\"pi_items\": [{\"status\": \"contradicted\"}]}",
    );
    small.write(
        "environments/paint_env/tasks/second/vlm_checklist.json",
        "{\"task_completion\": [{\"id\": \"a\" \"b\"}]}",
    );
    small.write("environments/paint_env/tasks/second/validated_pi.json", "{");
    assert_eq!(
        codes(&small),
        [Code::ChecklistSyntax, Code::ChecklistSchema, Code::AuditSyntax, Code::AuditContradicted]
    );
}

#[test]
fn what_an_env_needs_is_said_with_where_it_is_seen() {
    let small = Small::new();
    small.write("environments/paint_env/scripts/configure.sh", "systemctl start nginx\n\ndocker compose up -d\n");
    let needs: Vec<_> = findings(&small).into_iter().map(|found| (found.code, found.location())).collect();
    let script = "environments/paint_env/scripts/configure.sh";
    assert_eq!(needs, [(Code::NeedsServices, format!("{script}:1:1")), (Code::NeedsDocker, format!("{script}:3:1"))]);
}

#[test]
fn splits_are_judged_and_counted() {
    let small = Small::new();
    small.add_task("paint_env", "second");
    small.write(
        "splits/paint_split.json",
        r#"{"env_folder": "examples/paint_env", "train_tasks": ["draw_line", "__pycache__"],
        "test_tasks": ["draw_line"], "additional_splits": {"long_horizon": ["draw_line"]}}"#,
    );
    small.write("splits/again_split.json", r#"{"env_folder": "paint_env", "hard_tasks": ["second"]}"#);
    small.write("splits/broken_split.json", "[");
    small.write("splits/verified.json", r#"{"tasks": ["paint_env/draw_line", "paint_env/gone", "gone_env/x"]}"#);
    let benchmark = small.read(Depth::Checks);
    let splits: Vec<_> = benchmark.splits.iter().map(|(name, tasks)| (name.as_str(), tasks.len())).collect();
    assert_eq!(splits, [("hard", 1), ("long_horizon", 1), ("test", 1), ("train", 2), ("verified", 3)]);
    assert_eq!(
        codes(&small),
        [
            Code::SplitSyntax,
            Code::SplitEnvMissing,
            Code::SplitTaskMissing,
            Code::SplitTaskMissing,
            Code::SplitFilesForOneEnv,
            Code::SplitLeak,
            Code::SplitLeak,
        ]
    );
}

#[test]
fn yaml_specs_come_first() {
    let small = Small::new();
    small.write("environments/paint_env/env.yaml", "id: from_yaml@1\nbase: x11-lite\n");
    small.write("environments/paint_env/tasks/draw_line/task.yml", "id: draw_line@9\ninit: {max_steps: 9}\n");
    let benchmark = small.read(Depth::Specs);
    let env = benchmark.env("paint_env").unwrap();
    assert_eq!(env.spec.as_ref().unwrap().id, "from_yaml@1");
    assert_eq!(env.task("draw_line").unwrap().state.as_ref().unwrap().max_steps, Some(9));
}

#[test]
fn the_report_is_the_documented_object() {
    let small = Small::new();
    small.write("splits/paint_split.json", r#"{"env_folder": "paint_env", "test_tasks": ["draw_line"]}"#);
    let report = small.read(Depth::Checks).into_report();
    assert_eq!(
        serde_json::to_value(&report).unwrap(),
        json!({
            "envs": 1,
            "tasks": {"files": 1, "loaded": 1, "refused": 0, "with_rounds": 0, "rounds": 0, "assertions": 0},
            "splits": {"test": 1},
            "findings": [{
                "code": "needs-container", "severity": "note", "file": "environments/paint_env/env.json",
                "line": null, "column": null, "message": "the env runs in a plain container",
                "hint": "nothing more is needed",
            }],
        })
    );
    assert!(human(&report, false).starts_with("1 envs, 1 tasks: 1 loaded, 0 refused\nsplits: test 1\n"));
}
