//! Somebody else's programs: in a sandbox of their own, with a base address and nothing else.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use longhaul_tests::leftovers;
use longhaul_tests::place::Place;
use serde_json::{Value, json};

use crate::forms::says;
use crate::vendor::{KEY, Vendor, calls_of, dollars, endpoint, episode_of, expect_ends, run, said, settings, settled};

/// Asks its model what to do, over plain HTTP; and looks around before it begins.
const CURIOUS: &str = r#"
import glob, json, os, socket, urllib.error, urllib.request
from longhaul_agent import Agent, run

def ask(content, most):
    body = {"model": "model-a", "max_tokens": most, "messages": [{"role": "user", "content": content}]}
    headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=300) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]

def refused(content, most):
    try:
        return ask(content, most)
    except urllib.error.HTTPError as error:
        return "%d %s" % (error.code, error.read().decode())

def reached(host, port):
    try:
        socket.create_connection((host, int(port)), 2).close()
        return True
    except OSError:
        return False

# What it does first of all is a call.
first = refused("I am here", 10**9)

class Curious(Agent):
    def reset(self, task):
        secrets = ["verifier.py", "task.json", "vlm_checklist.json", "validated_pi.json", "export_result.sh"]
        found = [os.path.join(folder, name) for folder, _, names in os.walk("/") for name in names if name in secrets]
        processes = []
        for path in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
            try:
                processes.append(open(path, "rb").read().decode("utf-8", "replace"))
            except OSError:
                pass
        print("FOUND " + json.dumps({
            "secrets": found,
            "workspace": os.path.exists("/workspace/tasks"),
            "environment": dict(os.environ),
            "processes": processes,
            "task": task,
            "vendor": reached(*os.environ["VENDOR"].split(":")),
            "elsewhere": reached("192.0.2.1", 80),
            "first": first,
            "greedy": refused("all of it", 10**9),
        }))

    def act(self, seen):
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + seen.base64()}}
        try:
            return json.loads(ask([{"type": "text", "text": "What next?"}, picture], 300))
        except urllib.error.HTTPError as error:
            # And ends with it, as most programs do.
            print("REFUSED %d %s" % (error.code, error.read().decode()))
            raise

run(Curious())
"#;

/// An agent in the form of Gym-Anything's, written for this test, with a client of a local model.
const GYM: &str = r#"
import json, os, urllib.request

class PlannedAgent:
    def __init__(self, agent_args, verbose=False, debug=False):
        self.model = agent_args["model"]
        self.done = False

    def init(self, task_description, display_resolution, save_path):
        assert "mirror image" in task_description and display_resolution == (1280, 720)
        self.notes = os.path.join(save_path, "notes.txt")

    def step(self, obs, action_outputs):
        screen = open(obs["screen"]["path"], "rb").read()
        assert screen.startswith(b"\x89PNG")
        with open(self.notes, "a") as notes:
            notes.write(json.dumps(action_outputs))
        body = {"model": self.model, "max_tokens": 300, "messages": [{"role": "user", "content": "What next?"}]}
        headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["LONGHAUL_TOKEN"]}
        request = urllib.request.Request(os.environ["VLM_BASE_URL"] + "/chat/completions",
                                         json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=300) as answer:
            plan = json.loads(json.load(answer)["choices"][0]["message"]["content"])
        self.done = plan["done"]
        return [{"tool_id": str(index), "actions": [action]} for index, action in enumerate(plan["actions"])]

    def finish(self, info=None):
        print("the reason is", info["reason"])
"#;

/// Starts processes until it cannot, or has far too many; and does not end when its episode does.
const FORKS: &str = r#"
import os, signal, time
from longhaul_agent import Agent, run

class Forks(Agent):
    def act(self, seen):
        started = 0
        while started < 6000:
            try:
                child = os.fork()
            except OSError as error:
                return {"text": "%d, then: %s" % (started, error), "done": True}
            if child == 0:
                signal.pause()
            started += 1
        return {"text": "%d, and no end" % started, "done": True}

    def finish(self, ended_by):
        print("I stay, though it is over by", ended_by)
        time.sleep(600)

run(Forks())
"#;

/// A folder with a program and its description; the argument that names it.
fn agent(place: &Place, name: &str, program: &str, description: &str) -> Result<String> {
    let folder: PathBuf = place.path("outside").join(name);
    place.account().make_dir(&folder)?;
    std::fs::write(folder.join("agent.py"), program)?;
    let file = folder.join("agent.toml");
    std::fs::write(&file, format!("answer_limit = \"5m\"\n{description}"))?;
    Ok(format!("--agent={name}=external:{}", file.display()))
}

/// What a program's model tells it to do: the arrow of the sign turned.
fn plans() -> Vec<Value> {
    let save = json!([{"keyboard": {"keys": ["ctrl", "s"]}}, {"action": "wait", "time": 1}]);
    let steps = [json!([{"mouse": {"left_click": [158, 32]}}]), json!([{"mouse": {"left_click": [210, 209]}}]), save];
    steps.iter().map(|actions| says(&json!({"actions": actions, "done": false}).to_string())).collect()
}

#[test]
fn programs_with_a_base_address_alone_are_capped_know_no_secret_and_hurt_nobody() -> Result<()> {
    let place = Place::new("outside")?;
    let waits = says(&json!({"actions": [{"action": "wait", "time": 0.1}], "done": false}).to_string());
    let done = says(&json!({"actions": [], "done": true}).to_string());
    let curious = Vendor::with([plans(), vec![waits]].concat())?;
    let planned = Vendor::with([plans(), vec![done]].concat())?;
    let endpoints = [endpoint("curious", "openai", &curious), endpoint("planned", "openai", &planned)];
    let settings = settings(&place, &endpoints)?;
    let cap = 60_000_000;
    let described = format!(
        "command = [\"python3\", \"agent.py\"]\nmodels = [\"curious:model-a\"]\n\
         [variables]\nVENDOR = \"{}\"\n",
        curious.address()
    );
    let gym = "command = [\"python3\", \"-m\", \"longhaul_gym\", \"agent:PlannedAgent\", '{\"model\": \"model-a\"}']\n\
               models = [\"planned:model-a\"]\n";
    let agents = [
        agent(&place, "curious", CURIOUS, &described)?,
        agent(&place, "gym", GYM, gym)?,
        agent(&place, "forks", FORKS, "command = [\"python3\", \"agent.py\"]\n")?,
    ];
    let budget = ["--agent-budget".to_owned(), format!("curious={}", dollars(cap)), "--run-budget=1".to_owned()];
    let task = ["--task".to_owned(), "mtpaint_env/flip_sign".to_owned()];
    let arguments = [&task[..], &agents, &budget].concat();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    run(&place, &settings, &arguments).end()?.expect_code(0)?;

    expect_ends(&place, &["curious 0: passed by budget", "forks 0: failed by agent", "gym 0: passed by agent"])?;
    saw_nothing(&place, &curious)?;
    for (name, vendor) in [("curious", &curious), ("gym", &planned)] {
        let calls = calls_of(&place, &episode_of(&place, name)?)?;
        ensure!(settled(&calls) == vendor.billed(), "{} were billed: {calls:#?}", vendor.billed());
    }
    ensure!(curious.billed() <= cap, "{} were billed", curious.billed());
    let log = said(&place, &["show", &episode_of(&place, "gym")?, "--log", "agent"])?;
    ensure!(log.contains("the reason is agent"), "{log}");

    // So many processes are an agent's own affair: there is an end to them.
    let forks = episode_of(&place, "forks")?;
    let steps = place.steps(&forks)?;
    let text = steps.get(1).context("no step")?["answer"]["text"].as_str().context("no answer")?;
    let started: u32 = text.split_once(", then: ").with_context(|| text.to_owned())?.0.parse()?;
    ensure!((200..2048).contains(&started), "{text}");
    let log = said(&place, &["show", &forks, "--log", "agent"])?;
    ensure!(log.contains("I stay, though it is over by agent") && log.contains("went on after the end"), "{log}");
    leftovers::expect_nothing(place.root(), &place.scratch())
}

/// What the curious program found of what it must not know.
fn saw_nothing(place: &Place, vendor: &Vendor) -> Result<()> {
    let log = said(place, &["show", &episode_of(place, "curious")?, "--log", "agent"])?;
    let line = |mark: &str| log.lines().find_map(|line| line.strip_prefix(mark)).with_context(|| log.clone());
    let found: Value = serde_json::from_str(line("FOUND ")?)?;
    ensure!(found["secrets"] == json!([]) && found["workspace"] == false, "{:#}", found["secrets"]);
    ensure!(found["vendor"] == false && found["elsewhere"] == false, "it has a way out: {found:#}");
    ensure!(!log.contains(KEY), "it knows the key: {log}");
    let token = found["environment"]["OPENAI_API_KEY"].as_str().context("no token")?;
    ensure!(token == found["environment"]["LONGHAUL_TOKEN"] && token.len() > 16, "{token}");
    let words = ["mirror image", "turn", "copy_from_env", "metadata"];
    let told = found["task"].to_string();
    ensure!(told.contains(words[0]) && !words[2..].iter().any(|word| told.contains(word)), "{told}");
    // A thousand million tokens are refused here, and the vendor is not asked.
    for asked in ["first", "greedy"] {
        let refused = found[asked].as_str().unwrap_or_default();
        ensure!(refused.starts_with("400 "), "{asked}: {refused}");
    }
    let asked = vendor.calls();
    ensure!(asked.iter().all(|call| call.json()["max_tokens"] == 300), "the vendor was asked for too much");
    let refused = line("REFUSED ")?;
    ensure!(refused.starts_with("402 ") && refused.contains("budget_spent"), "{refused}");
    Ok(())
}
