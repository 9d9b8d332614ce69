//! Workers that are killed in the middle of an episode: another one goes on, and no call is paid twice.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use longhaul_tests::command::{Running, wait_for};
use longhaul_tests::leftovers;
use longhaul_tests::place::{Place, SHORT_LEASES};
use longhaul_tests::programs::PROGRAMS;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::forms::{Do, FLIP, Form, Model, says};
use crate::vendor::{KEY, KEY_NAME, Vendor, calls_of, endpoint, expect_ends, said, settings, settled};

/// Keeps notes of what it has seen, and asks its model with them: what it asks depends on all that was before.
const NOTES: &str = r#"
import hashlib, json, os, urllib.request
from longhaul_agent import Agent, run

class Notes(Agent):
    def reset(self, task):
        self.notes = []

    def act(self, seen):
        self.notes.append(hashlib.sha256(seen.png()).hexdigest())
        body = {"model": "model-a", "max_tokens": 300, "messages": [{"role": "user", "content": " ".join(self.notes)}]}
        headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
        url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=300) as answer:
            said = json.load(answer)["choices"][0]["message"]["content"]
        self.notes.append(said)
        return json.loads(said)

run(Notes())
"#;

/// A coordinator with one worker after the other.
struct Scene {
    place: Place,
    settings: String,
    serving: Running,
}

impl Scene {
    fn new(test: &str, endpoints: &[String]) -> Result<Self> {
        let place = Place::new(test)?;
        let more = [endpoints, &[SHORT_LEASES.to_owned()]].concat();
        let settings = settings(&place, &more)?;
        let serving = place.serve(&["--settings", &settings])?;
        Ok(Self { place, settings, serving })
    }

    fn worker(&self) -> Result<Running> {
        let access = self.place.access().display().to_string();
        let scratch = self.place.scratch().display().to_string();
        let settings = &self.settings;
        let worker =
            ["worker", "--coordinator", &access, "--scratch", &scratch, "--slots", "1", "--settings", settings];
        self.place.longhaul(worker).start()
    }

    fn submit(&self, arguments: &[&str]) -> Result<()> {
        let benchmark = self.place.benchmark().display().to_string();
        let access = self.place.access().display().to_string();
        let usual = ["run", &benchmark, "--coordinator", &access, "--detach", "--settings", &self.settings];
        let submit = self.place.longhaul(usual.iter().chain(arguments)).env(KEY_NAME, KEY);
        submit.end()?.expect_code(0)?;
        Ok(())
    }

    fn watch(&self) -> Result<()> {
        let access = self.place.access().display().to_string();
        self.place.longhaul(["watch", "latest", "--coordinator", &access]).end()?.expect_code(0)?;
        Ok(())
    }

    /// Waits until more than so many steps of the first attempt are recorded.
    fn wait_for_steps(&self, worker: &mut Running, more: usize) -> Result<()> {
        let store = self.place.store().display().to_string();
        let show =
            ["show", "latest/0", "--steps", "--attempt", "1", "--format", "json", "--store", &store].map(str::to_owned);
        wait_for("some steps", Duration::from_secs(300), || {
            ensure!(worker.runs()?, "it ended too early");
            let steps = self.place.longhaul(&show).end()?.json().ok();
            let steps = steps.and_then(|steps| steps.as_array().map(Vec::len)).unwrap_or_default();
            Ok((steps > more).then_some(()))
        })
    }

    fn end(self, worker: Running) -> Result<()> {
        worker.stop()?;
        self.serving.stop()?;
        self.place.expect_sound()?;
        leftovers::expect_nothing(self.place.root(), &self.place.scratch())
    }
}

/// Kills the worker while a call of it is in flight, after so many have been made. What the vendor
/// would have said is said to whoever asks again.
fn kill_in_flight(worker: Running, vendor: &Vendor, calls: usize, script: &[Value], killed: usize) -> Result<usize> {
    let mut worker = worker;
    vendor.wait_for_calls(calls, &mut worker)?;
    vendor.hold(true)?;
    wait_for("a call in flight", Duration::from_secs(120), || {
        ensure!(worker.runs()?, "it ended too early");
        Ok((vendor.state(|state| state.in_flight)? == 1).then_some(()))
    })?;
    let made = vendor.calls().len();
    worker.signal(Signal::SIGKILL)?;
    worker.end()?;
    let lost = script.get(made - 1 - killed).context("a call beyond the script")?.clone();
    vendor.state(|state| state.answers.push_front(lost))?;
    vendor.hold(false)?;
    Ok(made)
}

/// The task with a look around between its steps, so that there is a middle of it.
fn long(model: Model) -> Vec<Value> {
    let look = || model.does("I look.", &[Do::Look]);
    let wait = || model.does("I wait.", &[Do::Wait]);
    let steps = FLIP.iter().flat_map(|step| [wait(), model.does("I go on.", step), look()]);
    steps.chain([model.ends("It is done.")]).collect()
}

/// The same as a program's plans.
fn plans() -> Vec<Value> {
    let wait = || json!([{"action": "wait", "time": 0.2}]);
    let save = json!([{"keyboard": {"keys": ["ctrl", "s"]}}, {"action": "wait", "time": 1}]);
    let does = [json!([{"mouse": {"left_click": [158, 32]}}]), json!([{"mouse": {"left_click": [210, 209]}}]), save];
    let steps = does.into_iter().flat_map(|step| [wait(), step, wait()]);
    let plans = steps.map(|actions| json!({"actions": actions, "done": false}));
    plans.chain([json!({"actions": [], "done": true})]).map(|plan| says(&plan.to_string())).collect()
}

/// Kills two workers in the middle of an episode; the third one brings it to its end.
fn killed_twice(scene: &Scene, vendor: &Vendor, name: &str, agent: &str, script: &[Value]) -> Result<Running> {
    scene.submit(&["--task", "mtpaint_env/flip_sign", "--budget", "1", agent])?;
    let made = kill_in_flight(scene.worker()?, vendor, 3, script, 0)?;
    let made = kill_in_flight(scene.worker()?, vendor, made + 3, script, 1)?;
    ensure!(made < script.len(), "it was not in the middle any more");
    let last = scene.worker()?;
    scene.watch()?;
    expect_ends(&scene.place, &[&format!("{name} 0: passed by agent")])?;

    // As often asked as without any kill, and once more for each.
    let calls = vendor.calls();
    ensure!(calls.len() == script.len() + 2, "{} calls for {} answers", calls.len(), script.len());
    let steps = scene.place.steps("latest/0")?;
    let numbers: Vec<u64> = steps.iter().filter_map(|step| step["number"].as_u64()).collect();
    ensure!(numbers == (0..=script.len() as u64).collect::<Vec<_>>(), "a gap or a double: {numbers:?}");
    let shown = scene.place.show("latest/0")?;
    ensure!(shown["episode"]["attempts"] == 3, "{shown:#}");
    let text = said(&scene.place, &["show", "latest/0"])?;
    ensure!(text.contains("replay"), "it is marked as resumed: {text}");
    ensure!(!shown.to_string().contains("replay_diverged"), "{shown:#}");
    Ok(last)
}

#[test]
fn an_episode_of_a_loop_goes_on_after_two_kills_and_no_call_is_paid_twice() -> Result<()> {
    let script = long(Model { form: Form::Tools, picture: (1280, 720) });
    let vendor = Vendor::with(script.clone())?;
    let scene = Scene::new("resumed-loop", &[endpoint("gpt", "openai", &vendor)])?;
    let agent = "--agent=loop=gpt:model-a?max_output=300";
    let last = killed_twice(&scene, &vendor, "loop", agent, &script)?;
    let all = calls_of(&scene.place, "latest/0")?;
    ensure!(settled(&all) >= vendor.billed() || all.len() < script.len(), "{} were billed: {all:#?}", vendor.billed());
    scene.end(last)
}

#[test]
fn an_episode_of_somebody_elses_program_goes_on_after_two_kills() -> Result<()> {
    let script = plans();
    let vendor = Vendor::with(script.clone())?;
    let scene = Scene::new("resumed-program", &[endpoint("notes", "openai", &vendor)])?;
    let folder = scene.place.path("outside/notes");
    scene.place.account().make_dir(&folder)?;
    std::fs::write(folder.join("agent.py"), NOTES)?;
    let described = "answer_limit = \"5m\"\ncommand = [\"python3\", \"agent.py\"]\nmodels = [\"notes:model-a\"]\n";
    std::fs::write(folder.join("agent.toml"), described)?;
    let agent = format!("--agent=notes=external:{}", folder.join("agent.toml").display());
    let last = killed_twice(&scene, &vendor, "notes", &agent, &script)?;
    // Its notes came back with what it was shown: each request is one that would have been.
    let sizes: Vec<usize> =
        vendor.calls().iter().map(|call| call.json()["messages"][0]["content"].to_string().len()).collect();
    ensure!(sizes.is_sorted(), "its notes grow: {sizes:?}");
    scene.end(last)
}

#[test]
fn a_screen_that_comes_out_otherwise_is_never_taken_for_the_recorded_one() -> Result<()> {
    let scene = Scene::new("diverged", &[])?;
    // Each sandbox shows something else.
    let setup = scene.place.benchmark().join("environments/mousepad_env/tasks/change_setting/setup_task.sh");
    let text = std::fs::read_to_string(&setup)?;
    let (before, after) = text.split_once("touch /tmp/task_began").context("another setup")?;
    let random = "sed -i \"1i # $RANDOM $RANDOM $RANDOM\" /home/ga/Documents/catalogue.conf\ntouch /tmp/task_began";
    std::fs::write(&setup, format!("{before}{random}{after}"))?;
    let waits = scene.place.path("waits.jsonl");
    std::fs::write(&waits, "{\"action\": \"wait\", \"time\": 1}\n".repeat(20))?;
    let mut worker = scene.worker()?;
    let agent = format!("--agent=waits=scripted:{}", waits.display());
    scene.submit(&["--task", "mousepad_env/change_setting", &agent])?;
    scene.wait_for_steps(&mut worker, 4)?;
    worker.signal(Signal::SIGKILL)?;
    worker.end()?;
    let last = scene.worker()?;
    scene.watch()?;
    let shown = scene.place.show("latest/0")?;
    let attempts = shown["attempts"].as_array().context("no attempts")?;
    let faults: Vec<String> = attempts.iter().map(|attempt| attempt["finish"]["end"].to_string()).collect();
    let diverged: Vec<&String> = faults.iter().filter(|fault| fault.contains("replay_diverged")).collect();
    ensure!(!diverged.is_empty() && diverged.iter().all(|fault| fault.contains("at step 0")), "{faults:#?}");
    ensure!(faults.last().is_some_and(|last| last.contains("verdict")), "begun anew: {faults:#?}");
    let numbers: Vec<u64> = scene.place.steps("latest/0")?.iter().filter_map(|step| step["number"].as_u64()).collect();
    ensure!(numbers == (0..=20).collect::<Vec<u64>>(), "{numbers:?}");
    scene.end(last)
}

#[test]
fn an_episode_goes_on_from_a_snapshot_of_its_files_without_doing_again_what_made_them() -> Result<()> {
    const LINES: u32 = 16;
    let scene = Scene::new("restored", &[])?;
    let shell = PROGRAMS.into_iter().find(|program| program.task == "quality_shell").context("no shell")?;
    shell.write(&scene.place.benchmark())?;
    // After each step the shell shows what a new one shows; what was done is in its files alone. A file of
    // a layer is removed before the snapshot, and has to be gone after it.
    let step = |number: u32| {
        let more = match number {
            2 => "test -e ~/.bash_logout && rm ~/.bash_logout && ln -s /etc/passwd link; ",
            LINES => "test ! -e ~/.bash_logout && readlink link >gone.txt; ",
            _ => "",
        };
        let line = format!("{more}echo line {number} >>notes.txt; clear");
        json!([{"keyboard": {"text": line}}, {"keyboard": {"keys": ["Return"]}}]).to_string()
    };
    let script = scene.place.path("typist.jsonl");
    std::fs::write(&script, (1..=LINES).map(step).collect::<Vec<_>>().join("\n"))?;
    let agent = format!("--agent=typist=scripted:{}", script.display());
    let mut worker = scene.worker()?;
    scene.submit(&["--task", &shell.name_of_task(), "--snapshots", "3 steps, first", &agent])?;
    scene.wait_for_steps(&mut worker, 8)?;
    worker.signal(Signal::SIGKILL)?;
    worker.end()?;
    let last = scene.worker()?;
    scene.watch()?;

    let shown = scene.place.show("latest/0")?;
    let lines: Vec<&Value> = shown["kept"].as_object().context("nothing is kept")?.values().collect();
    ensure!(lines.len() == 1 && lines[0]["resumed"]["way"] == "restore", "{shown:#}");
    let text = said(&scene.place, &["show", "latest/0"])?;
    ensure!(text.contains("by restore") && text.contains("snapshot of step"), "{text}");
    // Every line once: what is in the snapshot was not typed again, and nothing of it is lost.
    let typed = (1..=LINES).map(|number| format!("line {number}\n")).collect::<Vec<_>>().concat();
    let saved = &shown["episode"]["settlement"]["verdict"]["feedback"];
    let files: Value = serde_json::from_str(saved.as_str().context("no verdict")?)?;
    for (name, text) in [("./notes.txt", &*typed), ("./gone.txt", "/etc/passwd\n")] {
        let file = scene.place.path("expected");
        std::fs::write(&file, text)?;
        let digest = String::from_utf8(std::process::Command::new("sha256sum").arg(&file).output()?.stdout)?;
        ensure!(files[name].as_str() == digest.split(' ').next(), "{name} is not as it was typed: {files:#}");
    }
    let numbers: Vec<u64> = scene.place.steps("latest/0")?.iter().filter_map(|step| step["number"].as_u64()).collect();
    ensure!(numbers == (0..=u64::from(LINES)).collect::<Vec<u64>>(), "{numbers:?}");
    scene.end(last)
}
