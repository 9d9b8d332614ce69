//! Somebody else's programs: written in Python, run as processes of this machine.

use std::sync::atomic::Ordering;
use std::time::Duration;

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
        variables: [("MINE", "yes"), ("SCREENS", "/longhaul/screens"), ("GATEWAY", "/longhaul/talk/gateway")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        endpoints: endpoints.iter().map(|name| (*name).to_owned()).collect(),
        answer_limit: Millis(answer_limit),
        memory_mib: 1024,
        net: false,
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
    // It has the processors of its attempt, and no others.
    let bound = scene.world.bound.lock().unwrap().clone();
    assert!(bound.len() == 2 && bound[0] == bound[1] && !bound[0].is_empty(), "{bound:?}");
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

/// Makes many calls in one turn, for far longer than a lease holds, over the gateway's own socket.
const CALLER: &str = r#"
import http.client, json, os, socket, sys, time

class Gateway(http.client.HTTPConnection):
    def connect(self):
        os.chdir(os.path.dirname(os.environ["GATEWAY"]))
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect("gateway")

for line in sys.stdin:
    if json.loads(line)["type"] != "observe":
        continue
    for _ in range(120):
        gateway = Gateway("gateway")
        body = json.dumps({"model": "m", "max_tokens": 5, "messages": []})
        key = {"authorization": "Bearer " + os.environ["LONGHAUL_TOKEN"]}
        gateway.request("POST", "/a/v1/chat/completions", body, key)
        answer = gateway.getresponse()
        text = answer.read().decode()
        if answer.status != 200:
            sys.exit(f"{answer.status}: {text}")
        time.sleep(0.05)
    print(json.dumps({"type": "act", "done": True}), flush=True)
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_a_program_wait_while_the_lease_does_not_hold_and_go_on_when_it_does() {
    let scene = Scene::with(Duration::from_millis(1_500), |_| {});
    let vendor = Vendor::with(vec![json!({"model": "m", "usage": {"prompt_tokens": 1, "completion_tokens": 1},
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "x"}}]})]);
    let calls = || vendor.requests.lock().unwrap().len();
    let outage = async {
        scene.coordinator.until("some calls", |_| calls() > 3).await;
        scene.coordinator.cut();
        // Nothing is called for longer than the program leaves between its calls.
        let mut before = usize::MAX;
        while before != calls() {
            before = calls();
            tokio::time::sleep(Duration::from_millis(700)).await;
        }
        scene.coordinator.desk.open.store(true, Ordering::SeqCst);
        before
    };
    let agent = plan(&scene, CALLER, &["mine.py"], 120_000, &["a"]);
    let (came, stood_at) = tokio::join!(scene.run(agent, vec![vendor.plan("a", Protocol::OpenAi)], |_| {}), outage);
    assert!(stood_at < 120, "no call was made without a lease");
    assert_eq!(came.ended_by(), EndedBy::Agent, "{:?}", came.end);
    assert_eq!((came.calls.len(), came.notes.calls.calls), (120, 120));
    assert!(came.calls.iter().all(|call| call.error.is_none()), "{:?}", came.calls);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn its_sandbox_starts_in_turn_with_the_others() {
    let scene = Scene::with(Duration::from_secs(600), |config| config.limits.starts = 1);
    scene.world.start_millis.store(150, Ordering::SeqCst);
    let done = "import sys\nfor line in sys.stdin: print('{\"type\": \"act\", \"done\": true}', flush=True)";
    let run = || run(&scene, done, &["mine.py"], 20_000);
    let (one, two, three) = tokio::join!(run(), run(), run());
    for came in [one, two, three] {
        assert_eq!(came.ended_by(), EndedBy::Agent, "{:?}", came.end);
    }
    assert_eq!(scene.world.most_starting.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_memory_than_it_may_use_is_a_fault_and_a_network_is_there_if_it_is_wanted() {
    let scene = Scene::start();
    let agent = |memory_mib, net| {
        let AgentPlan::External(mut agent) = plan(&scene, "import time\ntime.sleep(600)", &["mine.py"], 3_000, &[])
        else {
            unreachable!()
        };
        (agent.memory_mib, agent.net) = (memory_mib, net);
        AgentPlan::External(agent)
    };
    // What the env may use; every sandbox of this world says the same.
    scene.world.memory_mib.store(1_000, Ordering::SeqCst);
    let came = scene.run(agent(700, true), Vec::new(), |_| {}).await;
    assert_eq!(came.fault().class, FaultClass::Memory, "{:?}", came.end);
    assert!(came.fault().message.contains("of the agent") && came.fault().message.contains("956"), "{:?}", came.end);
    let came = scene.run(agent(900, false), Vec::new(), |_| {}).await;
    assert!(came.fault().message.contains("silent"), "{:?}", came.end);
    let requests = scene.world.requests.lock().unwrap();
    let nets: Vec<_> = requests.iter().filter(|request| request.id.ends_with("-agent")).map(|it| it.net).collect();
    assert_eq!(nets, [true, false]);
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
