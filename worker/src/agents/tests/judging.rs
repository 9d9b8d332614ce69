//! Episodes that a judge decides, from a lease to the end that the coordinator is told.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use longhaul_core::agent::AgentPlan;
use longhaul_core::call::Purpose;
use longhaul_core::endpoint::Protocol;
use longhaul_core::judge::{JudgePlan, ProgramPart};
use longhaul_core::outcome::{AttemptEnd, FaultClass, Verdict};
use longhaul_core::plan::{CHUNK_BYTES, Scoring, Tree, TreeEntry, TreeNode};
use serde_json::{Value, json};

use super::scene::{Came, Scene, Vendor};

const CHECKLIST: &str = r#"{"task_completion": [{"id": "a", "points": 60}, {"id": "b", "points": 40}],
    "integrity": [{"id": "c"}], "privileged_info_for_vlm": "the secret is 42"}"#;

fn words(text: &str) -> Value {
    json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": "judge-1", "stop_reason": "end_turn",
        "content": [{"type": "text", "text": text}], "usage": {"input_tokens": 10, "output_tokens": 5},
    })
}

/// An answer with a word for the second item.
fn answer(word: &str) -> Value {
    words(&format!(
        "```json\n{{\"task_completion\": [{{\"id\": \"a\", \"verdict\": \"pass\"}}, {{\"id\": \"b\", \"verdict\": \"{word}\"}}], \
         \"integrity\": [{{\"id\": \"c\", \"verdict\": \"pass\"}}], \"overall_reasoning\": \"It is so.\"}}\n```"
    ))
}

fn judge() -> JudgePlan {
    JudgePlan::published("vendor".to_owned(), "m".to_owned())
}

/// Runs an episode that is over at once, of a task with these files.
async fn run(scene: &Scene, vendor: &Vendor, scoring: Scoring, files: &[(&str, &str)]) -> Came {
    let mut files: Vec<_> = files.to_vec();
    files.sort_unstable();
    let entries = files.iter().map(|(path, text)| {
        let chunks = text.as_bytes().chunks(CHUNK_BYTES).map(|chunk| scene.coordinator.put(chunk)).collect();
        let node = TreeNode::File { executable: false, size: text.len() as u64, chunks };
        TreeEntry { path: (*path).to_owned(), node }
    });
    let files = scene.coordinator.put_json(&Tree { entries: entries.collect() });
    let endpoints = vec![vendor.plan("vendor", Protocol::Anthropic)];
    let change = |task: &mut longhaul_core::plan::TaskPlan| {
        task.files = files;
        task.scoring = scoring;
    };
    scene.run_task(AgentPlan::Idle, endpoints, change, |episode| episode.judge = Some(judge())).await
}

fn by_checklist() -> Scoring {
    Scoring::Checklist { checklist: "vlm_checklist.json".to_owned() }
}

fn verdict(came: &Came) -> &Verdict {
    match &came.end {
        AttemptEnd::Verdict(verdict) => verdict,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_judge_decides_by_the_checklist_when_the_sandbox_is_gone() {
    let scene = Scene::start();
    let live = Arc::new(AtomicU32::new(99));
    let (world, seen) = (Arc::clone(&scene.world), Arc::clone(&live));
    let vendor = Vendor::start(move |_| {
        seen.store(world.live.load(Ordering::SeqCst), Ordering::SeqCst);
        (200, answer("partial"))
    });
    let came = run(&scene, &vendor, by_checklist(), &[("vlm_checklist.json", CHECKLIST)]).await;
    let verdict = verdict(&came);
    assert_eq!((verdict.passed, verdict.score, verdict.feedback.as_str()), (false, 80.0, "It is so."));
    let parts = verdict.parts.as_ref().unwrap();
    let judgement = parts.checklist.as_ref().unwrap();
    // Two observations, and the screen after the export hook.
    assert_eq!((judgement.shown.as_slice(), judgement.judges.len()), (&[0, 1, 2][..], 1));
    assert_eq!((judgement.model.as_str(), judgement.judges[0].model.as_str()), ("m", "judge-1"));
    assert!(parts.program.is_none());
    let purposes: Vec<Purpose> = came.calls.iter().map(|call| call.purpose).collect();
    assert_eq!(purposes, [Purpose::Judge], "its call is recorded as every call is");
    assert_eq!((came.calls[0].number, came.calls[0].step), (judgement.judges[0].call, 2));
    assert_eq!((came.notes.calls.calls, came.notes.judging.calls), (0, 1), "and is none of the agent's");
    assert_eq!(live.load(Ordering::SeqCst), 0, "no sandbox waits for a judge");
    let requests = vendor.requests.lock().unwrap();
    let text = requests[0].1.to_string();
    assert!(text.contains("the secret is 42") && text.contains("Make the list."), "{text}");
    // No sandbox was given the checklist.
    let sandboxes = scene.world.requests.lock().unwrap();
    assert_eq!(sandboxes.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_cannot_be_read_is_no_zero_and_keeps_the_trajectory() {
    let scene = Scene::start();
    let vendor = Vendor::with(vec![words("I would rather not say.")]);
    let came = run(&scene, &vendor, by_checklist(), &[("vlm_checklist.json", CHECKLIST)]).await;
    let AttemptEnd::Unverified { reason, fault, .. } = &came.end else { panic!("{:?}", came.end) };
    assert_eq!(*fault, Some(FaultClass::Judge));
    assert!(reason.contains("was asked 3 times") && reason.contains("I would rather not say."), "{reason}");
    assert_eq!((came.calls.len(), came.steps.len(), came.notes.judging.calls), (3, 2, 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_is_waited_for() {
    let scene = Scene::start();
    let mut left = 4;
    let vendor = Vendor::start(move |body| {
        left -= 1;
        if left > 0 {
            (503, json!({"error": {"message": "away"}}))
        } else if body.is_null() {
            (200, json!({}))
        } else {
            (200, answer("pass"))
        }
    });
    let came = run(&scene, &vendor, by_checklist(), &[("vlm_checklist.json", CHECKLIST)]).await;
    assert_eq!((verdict(&came).passed, verdict(&came).score), (true, 100.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_keep_what_the_program_says_beside_the_judges_verdict() {
    let scene = Scene::start();
    let vendor = Vendor::with(vec![answer("fail")]);
    let files = [
        ("vlm_checklist.json", CHECKLIST),
        ("verifier.py", "def verify(t, e, i):\n    n = len(t['frames'])\n    return {'passed': n == 2, 'score': 90}\n"),
    ];
    let both = || Scoring::Both {
        file: "verifier.py".to_owned(),
        function: "verify".to_owned(),
        checklist: "vlm_checklist.json".to_owned(),
    };
    let came = run(&scene, &vendor, both(), &files).await;
    let verdict = verdict(&came);
    assert_eq!((verdict.passed, verdict.score), (false, 60.0));
    assert_eq!(verdict.details["score"], 90, "all that the program returned");
    let parts = verdict.parts.as_ref().unwrap();
    assert!(matches!(parts.program, Some(ProgramPart::Scored { passed: true, .. })), "{parts:?}");
    assert_eq!(parts.agree(), Some(false));
    // A judge without an answer leaves no verdict, and what the program said is kept.
    let silent = Vendor::with(vec![words("")]);
    let came = run(&scene, &silent, both(), &files).await;
    let AttemptEnd::Unverified { fault, parts, .. } = &came.end else { panic!("{:?}", came.end) };
    assert_eq!(*fault, Some(FaultClass::Judge));
    let program = parts.as_ref().and_then(|parts| parts.program.clone());
    assert!(matches!(program, Some(ProgramPart::Scored { passed: true, .. })), "{program:?}");
}

const ASKING: &str = r#"
from gym_anything.vlm import query_vlm
PNG = b"\x89PNG\r\n\x1a\n and the rest"

def verify(traj, env_info, task_info):
    answer = env_info["query_vlm"]("Is it so?", images=[PNG, traj["frames"][0], "/no/such/file"], max_tokens=300)
    again = query_vlm(prompt="And now?", image=PNG)
    ok = answer["success"] and answer["parsed"] == {"so": True} and again["response"] == answer["response"]
    return {"passed": ok, "score": 100 if ok else 0, "feedback": str((answer, again))}
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_verifier_that_asks_a_model_has_its_answer_on_the_judges_money() {
    let scene = Scene::start();
    let program = || Scoring::Program { file: "verifier.py".to_owned(), function: "verify".to_owned() };
    let vendor = Vendor::with(vec![words("It is: ```json\n{\"so\": true}\n```")]);
    let came = run(&scene, &vendor, program(), &[("verifier.py", ASKING)]).await;
    assert!(verdict(&came).passed, "{}", verdict(&came).feedback);
    assert!(came.calls.iter().all(|call| call.purpose == Purpose::Judge));
    assert_eq!(came.notes.judging.calls, 2);
    assert!(
        came.notes.warnings.iter().any(|note| note.contains("asked the judge 2 times")),
        "{:?}",
        came.notes.warnings
    );
    {
        let requests = vendor.requests.lock().unwrap();
        let content = requests[0].1["messages"][0]["content"].as_array().unwrap();
        assert_eq!(content.len(), 2, "what is no picture is left out: {content:?}");
        assert_eq!((&content[1]["text"], &requests[0].1["max_tokens"]), (&json!("Is it so?"), &json!(300)));
    }
    // Without an answer its "failed" says nothing of the agent.
    let silent = Vendor::with(vec![words("")]);
    let came = run(&scene, &silent, program(), &[("verifier.py", ASKING)]).await;
    let AttemptEnd::Unverified { reason, fault, .. } = &came.end else { panic!("{:?}", came.end) };
    assert_eq!(*fault, Some(FaultClass::Judge));
    assert!(reason.contains("the answer is empty"), "{reason}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_judge_without_an_endpoint_is_named_and_not_denied() {
    let scene = Scene::start();
    let change = |task: &mut longhaul_core::plan::TaskPlan| task.scoring = by_checklist();
    let came = scene
        .run_task(AgentPlan::Idle, Vec::new(), change, |episode| {
            episode.judge = Some(judge());
            episode.gateway = None;
        })
        .await;
    let AttemptEnd::Unverified { reason, .. } = &came.end else { panic!("{:?}", came.end) };
    assert!(reason.contains("the judge m cannot be asked: the episode's plan names no endpoints"), "{reason}");
}
