//! What a run freezes of tasks of rounds, asks for them, and shows of them.

use std::os::unix::fs::symlink;

use longhaul_core::endpoint::GatewayPlan;
use longhaul_core::judge::{JudgePlan, Verify};
use longhaul_core::money::Money;
use longhaul_core::plan::Scoring;
use longhaul_core::price::{ImageRule, ModelPrice, Rate};
use serde_json::{Value, json};

use super::Small;
use super::plan::{freeze, freeze_models, freeze_with};
use crate::benchmark::{Agent, Extent, ModelTerms, Request};

#[test]
fn rounds_decide_are_frozen_with_their_hooks_and_need_a_judge_where_they_ask_one() {
    let small = Small::new();
    let write = |asks: bool| {
        small.write_task("paint_env", "draw_line", |spec| {
            let mut assertions = vec![json!({"id": "a", "aspect": "visible", "says": "s", "at": "/x", "equals": 1})];
            if asks {
                assertions.push(json!({"id": "b", "aspect": "visible", "ask": "Is it there?"}));
            }
            let round = json!({"kind": "open", "goal": "Open it.", "read": "rounds/read.sh", "assertions": assertions});
            spec["longhaul"] = json!({"family": "single_app", "rounds": [round]});
        });
    };
    write(false);
    let missing = freeze_with(&small, &["paint_env/draw_line"], &[Agent::Idle], |_| ()).err().unwrap();
    assert!(missing.to_string().contains("`rounds/read.sh` of a round is not there"), "{missing}");
    small.write("environments/paint_env/tasks/draw_line/rounds/read.sh", "echo '{}'\n");
    let judge = || Some(JudgePlan::published("gemini".to_owned(), "m".to_owned()));
    let scored = |verify: Verify, judge: Option<JudgePlan>| {
        let models = ModelTerms { verify, judge, ..ModelTerms::default() };
        freeze_models(&small, &["paint_env/draw_line"], &[Agent::Idle], &models, |_| ())
    };
    for verify in [Verify::Auto, Verify::Program] {
        let frozen = scored(verify, judge()).unwrap();
        let task = frozen.task(0);
        assert_eq!(task.scoring, Scoring::Rounds);
        assert_eq!(task.rounds.as_ref().unwrap().rounds[0].goal, "Open it.");
        assert!(frozen.paths(task.files).contains(&"rounds/read.sh".to_owned()));
    }
    // They take the program's place beside a judge.
    for verify in [Verify::Checklist, Verify::Both] {
        let task = scored(verify, judge()).unwrap().task(0);
        let checklist = Scoring::Checklist { checklist: "vlm_checklist.json".to_owned() };
        assert_eq!((task.scoring, task.rounds.is_some()), (checklist, true));
    }
    let start = |request: &mut Request<'_>| request.extent = Extent::Start;
    let task = freeze_with(&small, &["paint_env/draw_line"], &[Agent::Idle], start).unwrap().task(0);
    assert_eq!((task.rounds, matches!(task.scoring, Scoring::None { .. })), (None, true), "it is only started");
    write(true);
    let refused = scored(Verify::Auto, None).err().unwrap().to_string();
    assert_eq!(refused, "no judge is named (`--judge`), and rounds of these tasks ask one: paint_env/draw_line");
    assert_eq!(scored(Verify::Auto, judge()).unwrap().task(0).scoring, Scoring::Rounds);
}

#[test]
fn rounds_that_cap_dollars_need_the_price_of_every_model_that_is_called() {
    let small = Small::new();
    small.write("environments/paint_env/tasks/draw_line/rounds/read.sh", "echo '{}'\n");
    let write = |budget: Value| {
        small.write_task("paint_env", "draw_line", |spec| {
            let assertions = json!([{"id": "a", "aspect": "visible", "says": "s", "at": "/x", "equals": 1}]);
            let round = json!({"kind": "open", "goal": "Open it.", "read": "rounds/read.sh", "budget": budget,
                "assertions": assertions});
            spec["longhaul"] = json!({"rounds": [round]});
        });
    };
    let endpoint = json!({
        "name": "own", "protocol": "open-ai", "vendor": "standin", "urls": [], "call_limit": 1000, "retries": 0,
    });
    let audit = json!({"endpoint": "own", "model": "m", "most": 1, "max_output": 100, "images": 1});
    let price = ModelPrice {
        vendor: "standin".to_owned(),
        model: "m".to_owned(),
        rate: Rate::Time { hour: Money::ZERO },
        image: ImageRule::Fixed { tokens: 1 },
        context: 1,
        max_output: 1,
        services: Vec::new(),
    };
    let models = |priced: bool| ModelTerms {
        audit: Some(serde_json::from_value(audit.clone()).unwrap()),
        gateway: Some(GatewayPlan {
            endpoints: vec![serde_json::from_value(endpoint.clone()).unwrap()],
            prices: if priced { vec![price.clone()] } else { Vec::new() },
            ..GatewayPlan::default()
        }),
        ..ModelTerms::default()
    };
    let frozen = |priced| freeze_models(&small, &["paint_env/draw_line"], &[Agent::Idle], &models(priced), |_| ());
    write(json!({"steps": 3}));
    assert!(frozen(false).is_ok());
    write(json!({"dollars": 0.5}));
    let refused = frozen(false).err().unwrap().to_string();
    let said =
        "the audit calls `standin:m`, which has no price, and rounds of these tasks cap dollars: paint_env/draw_line";
    assert_eq!(refused, said);
    let judge = Some(JudgePlan::published("own".to_owned(), "other".to_owned()));
    let judged = ModelTerms { judge, ..models(true) };
    let refused = freeze_models(&small, &["paint_env/draw_line"], &[Agent::Idle], &judged, |_| ()).err().unwrap();
    assert!(refused.to_string().starts_with("the judge calls `standin:other`, which has no price"), "{refused}");
    let rounds = frozen(true).unwrap().task(0).rounds.unwrap();
    assert_eq!(rounds.rounds[0].budget.dollars, Some("0.5".parse().unwrap()));
}

#[test]
fn a_mount_of_a_task_hides_what_its_spec_names_wherever_that_is() {
    let small = Small::new();
    small.write_env("paint_env", |spec| {
        spec["mounts"] = json!([
            {"source": "environments/paint_env", "target": "/workspace/"},
            {"source": "environments/paint_env/tasks/draw_line", "target": "/task"},
            {"source": "environments/paint_env/tasks/draw_line/hooks", "target": "/hooks"},
        ]);
    });
    small.write_task("paint_env", "draw_line", |spec| {
        spec["success"] = json!({"mode": "program", "spec": {"program": "./judge/check.py::verify"}});
        let round = json!({"kind": "open", "goal": "Open it.", "read": "hooks/read.sh", "before": "hooks/link.sh",
            "assertions": [{"id": "a", "aspect": "visible", "says": "s", "at": "/x", "equals": 1}]});
        spec["longhaul"] = json!({"rounds": [round]});
    });
    let folder = "environments/paint_env/tasks/draw_line";
    for file in
        ["hooks/read.sh", "hooks/help.sh", "lib/reopen.sh", "judge/check.py", "judge/notes.txt", "rounds/lib.py"]
    {
        small.write(format!("{folder}/{file}"), "true\n");
    }
    let task = small.task_dir("paint_env", "draw_line");
    symlink("../lib/reopen.sh", task.join("hooks/link.sh")).unwrap();
    // What they lead to is not in the one mount, and would be brought into the other.
    for (link, target) in [("library", "../rounds/lib.py"), ("spec", "../task.json")] {
        symlink(target, task.join("hooks").join(link)).unwrap();
    }
    let frozen = freeze(&small);
    let seen = |mount: usize| frozen.paths(frozen.env(0).mounts[mount].tree);
    let expected =
        ["hooks", "hooks/help.sh", "hooks/library", "hooks/spec", "judge", "judge/notes.txt", "lib", "setup_task.sh"];
    assert_eq!(seen(1), expected);
    assert_eq!(seen(2), ["help.sh"]);
    // The task's own files, which its hooks are brought in from, are whole.
    let whole = frozen.paths(frozen.task(0).files);
    assert!(
        ["hooks/read.sh", "lib/reopen.sh", "task.json"].iter().all(|file| whole.contains(&(*file).to_owned())),
        "{whole:?}"
    );
}
