//! Somebody else's programs: written in Python, run as processes of this machine.

use longhaul_core::agent::{AgentPlan, AuditPlan, ExternalAgent};
use longhaul_core::endpoint::Protocol;
use longhaul_core::outcome::{EndedBy, FaultClass};
use longhaul_core::plan::{Tree, TreeEntry, TreeNode};
use longhaul_core::time::Millis;
use serde_json::json;

use super::scene::{Came, Scene, Vendor};

/// Runs a program of this text.
async fn run(scene: &Scene, text: &str, arguments: &[&str], answer_limit: u64) -> Came {
    let agent = plan(scene, text, arguments, answer_limit, &[]);
    scene.run(agent, Vec::new(), |episode| episode.budget.max_steps = 4).await
}

fn plan(scene: &Scene, text: &str, arguments: &[&str], answer_limit: u64, endpoints: &[&str]) -> AgentPlan {
    let chunks = vec![scene.coordinator.put(text.as_bytes())];
    let node = TreeNode::File { executable: false, size: text.len() as u64, chunks };
    let entries = vec![TreeEntry { path: "mine.py".to_owned(), node }];
    let command = ["python3", "-B"].into_iter().chain(arguments.iter().copied()).map(str::to_owned).collect();
    AgentPlan::External(Box::new(ExternalAgent {
        command,
        files: Some(scene.coordinator.put_json(&Tree { entries })),
        image: None,
        // A folder sandbox shows its views elsewhere, and says where in variables.
        variables: [("MINE", "yes"), ("SCREENS", "/longhaul/screens")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        endpoints: endpoints.iter().map(|name| (*name).to_owned()).collect(),
        answer_limit: Millis(answer_limit),
    }))
}

const HELPED: &str = r#"
import os
from longhaul_agent import Agent, run

class Mine(Agent):
    def reset(self, task):
        assert task["description"] == "Make the list." and task["task"] == "some_env/some_task", task
        assert task["screen"] == {"width": 4, "height": 3} and task["limits"]["steps"] == 4, task
        assert os.environ["MINE"] == "yes"
        print("this is no message")

    def act(self, seen):
        assert seen.path == "/longhaul/screens/frame_%05d.png" % seen.step
        seen.path = seen.path.replace("/longhaul/screens", os.environ["SCREENS"])
        text = seen.png().decode()
        assert seen.base64() and seen.left["steps"] == 4 - seen.step
        if seen.step == 0:
            return [{"keyboard": {"text": "a"}}]
        assert seen.errors == [None], seen.errors
        return {"text": text, "done": True}

    def finish(self, ended_by):
        print("ended by", ended_by)

run(Mine())
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_with_the_python_helper_sees_acts_and_is_done() {
    let scene = Scene::start();
    let came = run(&scene, HELPED, &["mine.py"], 20_000).await;
    assert_eq!((came.ended_by(), came.steps.len()), (EndedBy::Agent, 3));
    assert_eq!(came.steps[1].answer.as_ref().unwrap().actions, [json!({"keyboard": {"text": "a"}})]);
    assert_eq!(came.steps[2].answer.as_ref().unwrap().text.as_deref(), Some("picture 1"));
    let logs = scene.coordinator.desk.logs.lock().unwrap().clone();
    let log = logs.iter().find(|(name, _)| name == "agent").expect("its standard error is kept").1;
    let log = String::from_utf8(scene.coordinator.desk.blobs.lock().unwrap()[&log].clone()).unwrap();
    assert!(log.contains("this is no message") && log.contains("ended by agent"), "{log}");
    // Its sandbox has no network, and sees nothing of the task or the env.
    let requests = scene.world.requests.lock().unwrap();
    let request = requests.iter().find(|request| request.id.ends_with("-agent")).unwrap();
    assert!(!request.net && request.layers.is_empty() && request.accounts.is_empty());
    let targets: Vec<&str> = request.views.iter().map(|view| view.target.as_str()).collect();
    assert_eq!(targets, ["/agent", "/longhaul/talk", "/longhaul/screens", "/longhaul/python"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_answer_is_told_and_recorded_and_too_much_of_it_is_a_crash() {
    let scene = Scene::start();
    let text = r#"
import json, sys
bad = iter(["nonsense", "[1]", '{"type": "jump"}', '{"type": "act", "actions": 5}', '{"type": "act", "step": 77}'])
for line in sys.stdin:
    message = json.loads(line)
    if message["type"] in ("observe", "error"):
        print(next(bad, '{"type": "act", "done": true}'), flush=True)
"#;
    let came = run(&scene, text, &["mine.py"], 20_000).await;
    assert_eq!(came.ended_by(), EndedBy::Agent);
    assert_eq!(came.steps[1].unreadable.len(), 5, "{:?}", came.steps[1].unreadable);
    let text = "import sys\nprint('x', file=sys.stderr)\nwhile True: print('garbage')";
    let came = run(&scene, text, &["mine.py"], 20_000).await;
    assert_eq!(came.fault().class, FaultClass::AgentCrashed);
    assert!(came.fault().message.contains("no answer"), "{:?}", came.end);
    let text = "while True: print('x' * 1000000, end='')";
    let came = run(&scene, text, &["mine.py"], 20_000).await;
    assert!(came.fault().message.contains("floods"), "{:?}", came.end);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_crashes_and_early_ends_are_faults_with_its_last_words() {
    let scene = Scene::start();
    let came = run(&scene, "import time\ntime.sleep(600)", &["mine.py"], 500).await;
    assert_eq!(came.fault().class, FaultClass::AgentCrashed);
    assert!(came.fault().message.contains("silent for 0.5 s"), "{:?}", came.end);
    let came = run(&scene, "raise ValueError('oh no')", &["mine.py"], 20_000).await;
    assert_eq!(came.fault().class, FaultClass::AgentCrashed);
    assert!(came.fault().log_tail.as_deref().unwrap().contains("oh no"), "{:?}", came.end);
    assert_eq!(scene.world.live.load(std::sync::atomic::Ordering::SeqCst), 0, "its sandbox is gone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_never_ends_is_ended_by_the_episodes_limits() {
    let scene = Scene::start();
    let text = r#"
import json, sys
for line in sys.stdin:
    if json.loads(line)["type"] == "observe":
        print(json.dumps({"type": "act", "actions": [{"action": "wait", "time": 0}], "done": False}), flush=True)
"#;
    let came = run(&scene, text, &["mine.py"], 20_000).await;
    assert_eq!((came.ended_by(), came.steps.len()), (EndedBy::Steps, 5));
}

/// In the form of Gym-Anything's agents, written for this test.
const GYM: &str = r#"
import os

class ListAgent:
    def __init__(self, *args, **kwargs):
        self.agent_args = kwargs["agent_args"]
        self.done = False
        self.step_idx = -1

    def init(self, task_description, display_resolution, save_path):
        self.task_description = task_description
        assert display_resolution == (4, 3), display_resolution

    def step(self, obs, action_outputs):
        self.step_idx += 1
        open(obs["screen"]["path"].replace("/longhaul/screens", os.environ["SCREENS"]), "rb").read()
        if self.step_idx == 0:
            assert action_outputs == []
            return [
                {"tool_id": "a", "actions": [{"mouse": {"left_click": [1, 2]}}]},
                {"tool_id": "b", "actions": [{"action": "screenshot"}]},
            ]
        if self.step_idx == 1:
            ids = [output["tool_id"] for output in action_outputs]
            assert ids == ["a", "b"] and action_outputs[1]["action"] == "screenshot", action_outputs
            self.done = True
            return [{"tool_id": "c", "actions": []}]
        assert "the third line" in self.task_description, self.task_description
        self.done = True
        return []

    def finish(self, *args, **kwargs):
        print("finished", kwargs)
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_of_gym_anything_runs_unchanged_and_hears_of_audits() {
    let scene = Scene::start();
    let arguments = ["-m", "longhaul_gym", "mine:ListAgent", "{\"model\": \"m\"}"];
    let came = run(&scene, GYM, &arguments, 20_000).await;
    assert_eq!((came.ended_by(), came.steps.len()), (EndedBy::Agent, 3), "{:?}", came.end);
    assert_eq!(came.steps[1].answer.as_ref().unwrap().actions.len(), 2);
    let finding = |text: &str| {
        json!({"choices": [{"message": {"role": "assistant", "content": text}, "index": 0,
        "finish_reason": "stop"}], "model": "m", "usage": {"prompt_tokens": 1, "completion_tokens": 1}})
    };
    let auditor = Vendor::with(vec![
        finding("{\"complete\": false, \"missing\": \"the third line\"}"),
        finding("{\"complete\": true}"),
    ]);
    let audit = AuditPlan { endpoint: "a".to_owned(), model: "m".to_owned(), most: 3, max_output: 9, images: 1 };
    let agent = plan(&scene, GYM, &arguments, 20_000, &[]);
    let endpoints = vec![auditor.plan("a", Protocol::OpenAi)];
    let came = scene.run(agent, endpoints, |episode| episode.audit = Some(audit)).await;
    assert_eq!((came.ended_by(), came.notes.audits, came.steps.len()), (EndedBy::Agent, 2, 4), "{:?}", came.end);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_the_plan_does_not_have_is_a_fault_of_the_agent() {
    let scene = Scene::start();
    let agent = plan(&scene, HELPED, &["mine.py"], 20_000, &["nowhere"]);
    let came = scene.run(agent, Vec::new(), |_| {}).await;
    assert_eq!(came.fault().class, FaultClass::AgentCrashed);
    assert!(came.fault().message.contains("nowhere"), "{:?}", came.end);
    drop(scene.folder);
}
