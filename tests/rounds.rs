//! Tasks of ordered rounds: whole runs in real containers, over programs that store what they are told.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use longhaul_tests::leftovers;
use longhaul_tests::place::Place;
use serde_json::{Value, json};

/// Writes down every line that it gets; in its first two rounds it looks, in the window with the
/// keyboard, for what it is not to see.
const WITNESS: &str = r#"
import json, sys

LOOK = ("(ls -aR /workspace/tasks; cat /workspace/tasks/*/*; find / -xdev '(' -name morning.sql -o -name read.sh -o -name reopen.sh "
        "-o -name '*.reading*' -o -path '*longhaul-rounds/*' ')') >>/tmp/found 2>/dev/null; date >>/tmp/found")
WATCH = ("(while sleep 0.05; do find /var/lib /workspace/tasks /tmp /opt/desk -name 're*.sh' -o -name board.py; "
         "done >>/tmp/found 2>/dev/null &)")
TYPES = {1: [LOOK, WATCH], 2: [LOOK]}

current, typed = 1, 0
for line in sys.stdin:
    print("GOT " + line.strip(), file=sys.stderr, flush=True)
    message = json.loads(line)
    if message["type"] == "done":
        break
    if message["type"] != "observe":
        continue
    if message.get("goal"):
        current, typed = current + 1, 0
    left = TYPES.get(current, [])[typed:]
    typed += 1
    actions = [{"keyboard": {"text": left[0]}}, {"keyboard": {"keys": ["Return"]}}] if left else []
    answer = {"type": "act", "actions": actions + [{"action": "wait", "time": 1}], "done": not left}
    print(json.dumps(answer), flush=True)
"#;

/// The folder of a task of this place's copy of the examples.
fn task_folder(place: &Place, task: &str) -> PathBuf {
    place.benchmark().join("environments/desk_env/tasks").join(task)
}

/// Changes a task's file.
fn change(place: &Place, task: &str, how: impl FnOnce(&mut Value)) -> Result<()> {
    let file = task_folder(place, task).join("task.json");
    let mut spec = serde_json::from_slice(&std::fs::read(&file)?)?;
    how(&mut spec);
    Ok(std::fs::write(&file, spec.to_string())?)
}

/// A scripted agent for any task.
fn script(place: &Place, name: &str, lines: &[Value]) -> Result<String> {
    let file = place.path(&format!("{name}.jsonl"));
    let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
    std::fs::write(&file, lines.join("\n"))?;
    Ok(format!("--agent={name}=scripted:{}", file.display()))
}

/// What `longhaul show` says of the episode of an agent at a task.
fn episode(place: &Place, agent: &str, task: &str) -> Result<(String, Value)> {
    let shown = place.show("latest")?;
    let named = |episode: &Value| episode["agent"] == agent && episode["task"] == task;
    let index = shown["episodes"].as_array().and_then(|all| all.iter().position(named));
    let name = format!("latest/{}", index.with_context(|| format!("no {agent} at {task}: {shown:#}"))?);
    let episode = place.show(&name)?;
    Ok((name, episode))
}

fn verdict(episode: &Value) -> &Value {
    &episode["episode"]["settlement"]["verdict"]
}

/// The rounds of an episode's verdict.
fn rounds(episode: &Value) -> Result<&Vec<Value>> {
    verdict(episode)["parts"]["rounds"].as_array().with_context(|| format!("no rounds: {episode:#}"))
}

/// The assertions that do not hold, as `round: id`.
fn fallen(episode: &Value) -> Result<Vec<String>> {
    let mut fallen = Vec::new();
    for round in rounds(episode)? {
        for assertion in round["assertions"].as_array().context("assertions")? {
            if assertion["held"] != true {
                fallen.push(format!("{}: {}", round["number"], assertion["id"].as_str().unwrap_or("?")));
            }
        }
    }
    Ok(fallen)
}

/// What the hook of a round read.
fn reading(place: &Place, episode: &str, round: u32) -> Result<Value> {
    let store = place.store().display().to_string();
    let log = format!("round-{round}-reading.json");
    place.longhaul(["show", episode, "--log", &log, "--store", &store]).end()?.expect_code(0)?.json()
}

/// What a command says of this place's store, as text.
fn said(place: &Place, arguments: &[&str]) -> Result<String> {
    let store = place.store().display().to_string();
    let ended = place.longhaul(arguments.iter().copied().chain(["--store", &store])).end()?.expect_code(0)?;
    Ok(ended.stdout())
}

/// What `longhaul compare` finds of the rounds of an agent of the latest run.
fn workflow(place: &Place, agent: &str) -> Result<Value> {
    let found: Value = serde_json::from_str(&said(place, &["compare", "latest", "--json"])?)?;
    let side = found["sides"].as_array().and_then(|sides| sides.iter().find(|side| side["agent"] == agent));
    Ok(side.with_context(|| format!("no side of {agent}: {found:#}"))?["measures"]["workflow"].clone())
}

#[test]
fn every_round_runs_and_a_careless_step_fails_only_what_it_touched() -> Result<()> {
    let place = Place::new("rounds")?;
    let agents = [place.agent("solver"), place.agent("careless"), "--agent=idle".to_owned()];
    let run = ["--split", "rounds", "--fail-on-fault"];
    place.run(run.iter().copied().chain(agents.iter().map(String::as_str))).end()?.expect_code(0)?;

    let tasks = ["desk_env/heater_request", "desk_env/medium_priority", "desk_env/two_programs"];
    for task in tasks {
        let (_, solved) = episode(&place, "solver", task)?;
        ensure!(verdict(&solved)["passed"] == true && verdict(&solved)["score"] == 100.0, "{solved:#}");
        ensure!(fallen(&solved)?.is_empty(), "{solved:#}");
        ensure!(rounds(&solved)?.iter().all(|round| round["ended_by"] == "agent"), "{solved:#}");
        let (_, idle) = episode(&place, "idle", task)?;
        ensure!(verdict(&idle)["passed"] == false && !fallen(&idle)?.is_empty(), "{idle:#}");
    }

    // All five rounds; in the third one two changes too many, which the last one counts as well. What
    // was changed by mistake is as it was, and what was asked for is done.
    let (heater, careless) = episode(&place, "careless", tasks[0])?;
    let kinds: Vec<&Value> = rounds(&careless)?.iter().map(|round| &round["kind"]).collect();
    ensure!(kinds == ["open", "submit", "revise", "return", "follow_up"], "{careless:#}");
    ensure!(fallen(&careless)? == ["3: one-change", "5: two-changes"], "{careless:#}");
    let read = reading(&place, &heater, 3)?;
    let changed = read["operations"]["changed"].as_array().context("changes")?;
    let records: Vec<&Value> = changed.iter().map(|change| &change["record"]).collect();
    ensure!(records == [16, 16, 17] && read["records"]["17"]["priority"] == "high", "{read:#}");
    let text = said(&place, &["show", &heater])?;
    for word in ["revise", "one-change", "follow_up", "not at most 1"] {
        ensure!(text.contains(word), "`show` does not say {word}:\n{text}");
    }

    // In the shared world an open round fails late, and what comes after it holds.
    let (_, stale) = episode(&place, "careless", tasks[2])?;
    ensure!(fallen(&stale)? == ["3: board-entry"], "{stale:#}");

    let found = workflow(&place, "careless")?;
    ensure!(found["full"]["hits"] == 0 && found["full"]["of"] == 3, "{found:#}");
    ensure!(found["open"]["hits"] == 2 && found["open"]["of"] == 3, "{found:#}");
    ensure!(found["stages"] == json!({"revise": 1, "submit": 1, "open": 1}), "{found:#}");
    ensure!(found["classes"] == json!({"business_only": 1, "visible_only": 1, "rest": 1}), "{found:#}");
    let found: Value = serde_json::from_str(&said(&place, &["compare", "latest", "--json"])?)?;
    let families = found["families"].as_array().context("no families")?;
    let solved = |family: &str| {
        let group = families.iter().find(|group| group["key"] == json!([family, "solver"]));
        group.map(|group| group["measures"]["workflow"]["full"]["hits"].clone())
    };
    ensure!(solved("single_app") == Some(json!(2)) && solved("shared_world") == Some(json!(1)), "{families:#?}");
    leftovers::expect_nothing(place.root(), &place.scratch())
}

/// Medium is asked for, the screen confirms "Normal", and an independent read finds low, before and
/// after the return.
#[test]
fn a_screen_that_confirms_what_was_not_stored_fails_the_business_check_alone() -> Result<()> {
    let place = Place::new("rounds-priority")?;
    let (solver, careless) = (place.agent("solver"), place.agent("careless"));
    let task = "desk_env/medium_priority";
    place.run(["--task", task, "--fail-on-fault", &*solver, &*careless]).end()?.expect_code(0)?;

    let (name, believed) = episode(&place, "careless", task)?;
    ensure!(verdict(&believed)["passed"] == false && verdict(&believed)["score"] == 75.0, "{believed:#}");
    ensure!(fallen(&believed)? == ["2: priority"], "{believed:#}");
    let aspects: Vec<(&Value, &Value)> = rounds(&believed)?
        .iter()
        .flat_map(|round| round["assertions"].as_array().into_iter().flatten())
        .map(|assertion| (&assertion["aspect"], &assertion["held"]))
        .collect();
    let (yes, no) = (json!(true), json!(false));
    let expected = [("visible", &yes), ("visible", &yes), ("business", &no), ("retention", &yes)];
    ensure!(aspects.iter().zip(expected).all(|(found, told)| *found.0 == told.0 && found.1 == told.1), "{aspects:?}");
    let (submit, back) = (reading(&place, &name, 2)?, reading(&place, &name, 3)?);
    let message = submit["screen"]["message"].as_str().unwrap_or_default();
    ensure!(message.contains("with priority Normal"), "{submit:#}");
    for read in [submit, back] {
        ensure!(read["records"]["17"]["priority"] == "low", "{read:#}");
    }
    // Who looked at what was stored has put it right.
    let (name, solved) = episode(&place, "solver", task)?;
    ensure!(verdict(&solved)["passed"] == true, "{solved:#}");
    ensure!(reading(&place, &name, 2)?["records"]["17"]["priority"] == "medium", "{solved:#}");

    let found = workflow(&place, "careless")?;
    ensure!(found["full"]["hits"] == 0 && found["full"]["of"] == 1, "{found:#}");
    ensure!(found["assertions"]["hits"] == 3 && found["assertions"]["of"] == 4, "{found:#}");
    ensure!(found["open"]["hits"] == 1, "{found:#}");
    ensure!(found["stages"] == json!({"submit": 1}) && found["numbers"] == json!({"2": 1}), "{found:#}");
    ensure!(found["classes"] == json!({"business_only": 1}), "{found:#}");
    ensure!(found["joint"]["visible_only"] == 1 && found["joint"]["both"] == 0, "{found:#}");

    let report = place.path("report.md");
    said(&place, &["report", "latest", "-o", &report.display().to_string()])?;
    let report = std::fs::read_to_string(&report)?;
    for line in ["submit 1", "business only 1", "both 0, business only 0, visible only 1, neither 0"] {
        ensure!(report.contains(line), "the report does not say `{line}`:\n{report}");
    }
    Ok(())
}

#[test]
fn a_goal_is_told_when_its_turn_comes_and_hooks_of_rounds_are_nowhere_to_be_seen() -> Result<()> {
    let place = Place::new("rounds-witness")?;
    let folder = task_folder(&place, "medium_priority");
    // A shell in front, and what was found with it in every reading.
    let setup = folder.join("setup_task.sh");
    let text = std::fs::read_to_string(&setup)?;
    std::fs::write(&setup, format!("{text}open_window Shell \"xterm -T Shell\"\n"))?;
    let hook = "#!/bin/bash\nset -eu\nsleep 1\njq -n --arg found \"$(sort -u /tmp/found || true)\" '{$found}'\n";
    std::fs::write(folder.join("rounds/read.sh"), hook)?;
    let outside = place.path("witness");
    place.account().make_dir(&outside)?;
    std::fs::write(outside.join("agent.py"), WITNESS)?;
    std::fs::write(outside.join("agent.toml"), "command = [\"python3\", \"agent.py\"]\nanswer_limit = \"5m\"\n")?;
    let agent = format!("--agent=witness=external:{}", outside.join("agent.toml").display());
    place.run(["--task", "desk_env/medium_priority", "--fail-on-fault", &*agent]).end()?.expect_code(0)?;

    let (name, shown) = episode(&place, "witness", "desk_env/medium_priority")?;
    let log = said(&place, &["show", &name, "--log", "agent"])?;
    let got: Vec<Value> =
        log.lines().filter_map(|line| line.strip_prefix("GOT ")).map(serde_json::from_str).collect::<Result<_, _>>()?;
    let spec: Value = serde_json::from_slice(&std::fs::read(folder.join("task.json"))?)?;
    let goals: Vec<&str> = (0..3).filter_map(|round| spec["longhaul"]["rounds"][round]["goal"].as_str()).collect();
    let first = |goal: &str| got.iter().position(|message| message.to_string().contains(&goal.replace('"', "\\\"")));
    let told: Vec<usize> = goals
        .iter()
        .map(|goal| first(goal).with_context(|| format!("`{goal}` was not told:\n{log}")))
        .collect::<Result<_>>()?;
    // The first with the task, each further one in the first observation of its round.
    ensure!(told[0] == 0 && got[0]["type"] == "reset", "{log}");
    for (goal, message) in goals[1..].iter().zip(&told[1..]) {
        ensure!(got[*message]["goal"] == **goal && got[*message]["type"] == "observe", "{log}");
    }
    ensure!(told.windows(2).all(|pair| pair[0] < pair[1]), "{told:?}\n{log}");
    ensure!(rounds(&shown)?.iter().map(|round| &round["steps"]).eq([3, 2, 1].iter()), "{shown:#}");
    for word in ["assertions", "same_as", "rounds/"] {
        ensure!(!log.contains(word), "it was told `{word}`:\n{log}");
    }

    // Its look found what it may see, and no more: neither between the hooks nor while they ran.
    let read = reading(&place, &name, 3)?;
    let found = read["found"].as_str().context("nothing was found")?;
    for shown in ["setup_task.sh", "/opt/desk/morning.sql", "/opt/desk/board.py", "UTC"] {
        ensure!(found.contains(shown), "it did not look for {shown}:\n{found}");
    }
    for hidden in ["read.sh", "reopen.sh", "longhaul-rounds", "task.json", "same_as", "/records/17"] {
        ensure!(!found.contains(hidden), "it saw {hidden}:\n{found}");
    }
    Ok(())
}

#[test]
fn a_rounds_budget_ends_the_round_and_the_episodes_ends_all() -> Result<()> {
    let place = Place::new("rounds-budgets")?;
    change(&place, "medium_priority", |spec| spec["longhaul"]["rounds"][1]["budget"] = json!({"steps": 3}))?;
    let wait = json!({"action": "wait", "time": 0.1});
    let show = json!({"keyboard": {"keys": ["Return"]}});
    let never_done = [vec![show, json!({"done": true})], vec![wait; 20]].concat();
    let slow = script(&place, "slow", &never_done)?;
    let task = "desk_env/medium_priority";
    place.run(["--task", task, "--fail-on-fault", &*slow]).end()?.expect_code(0)?;
    let (name, shown) = episode(&place, "slow", task)?;
    let ends: Vec<(&Value, &Value)> =
        rounds(&shown)?.iter().map(|round| (&round["ended_by"], &round["steps"])).collect();
    let expected = [("agent", 2), ("steps", 3), ("steps", 15)];
    ensure!(ends.iter().zip(expected).all(|(found, told)| *found.0 == told.0 && *found.1 == told.1), "{ends:?}");
    // The round after the one that was cut off was set up, told and read as any other.
    let read = reading(&place, &name, 3)?;
    ensure!(read["screen"]["title"] == "FRONT DESK - Welcome", "{read:#}");
    let steps = place.steps(&name)?;
    let told: Vec<&str> = steps.iter().filter_map(|step| step["told"].as_str()).collect();
    ensure!(told.iter().any(|told| told.contains("That is over for now")), "{told:?}");

    // Five steps in all: the second round is cut off by them, the third one never begins.
    place.run(["--task", task, "--fail-on-fault", "--steps", "4", &*slow]).end()?.expect_code(0)?;
    let (_, shown) = episode(&place, "slow", task)?;
    ensure!(verdict(&shown)["ended_by"] == "steps" && shown["episode"]["steps"] == 4, "{shown:#}");
    let errors: Vec<&Value> = rounds(&shown)?.iter().map(|round| &round["error"]).collect();
    ensure!(errors == [&Value::Null, &Value::Null, &json!("round")], "{shown:#}");
    ensure!(rounds(&shown)?[0]["assertions"][0]["held"] == true, "{shown:#}");
    Ok(())
}

#[test]
fn a_reading_that_fails_breaks_its_round_and_a_before_that_fails_is_our_fault() -> Result<()> {
    let place = Place::new("rounds-hooks")?;
    let settings = place.settings("[run]\nmax_attempts = 1\n")?;
    let folder = task_folder(&place, "heater_request");
    let read = std::fs::read_to_string(folder.join("rounds/read.sh"))?;
    let broken = read.replace(
        "set -euo pipefail\n",
        "set -euo pipefail\n[ \"$LONGHAUL_ROUND\" != 2 ] || { echo no sight; exit 4; }\n",
    );
    std::fs::write(folder.join("rounds/read.sh"), broken)?;
    let reopen = task_folder(&place, "medium_priority").join("rounds/reopen.sh");
    std::fs::write(&reopen, "#!/bin/sh\necho the door is stuck >&2\nexit 3\n")?;
    let solver = place.agent("solver");
    let tasks = ["--task", "desk_env/heater_request", "--task", "desk_env/medium_priority"];
    place.run(tasks.iter().copied().chain(["--settings", &settings, &*solver])).end()?.expect_code(0)?;

    let (name, shown) = episode(&place, "solver", "desk_env/heater_request")?;
    ensure!(verdict(&shown)["passed"] == false, "{shown:#}");
    let errors: Vec<&Value> = rounds(&shown)?.iter().map(|round| &round["error"]).collect();
    ensure!(errors == [&Value::Null, &json!("round"), &Value::Null, &Value::Null, &Value::Null], "{shown:#}");
    // What the broken round was to find counts as failed; all else holds.
    ensure!(fallen(&shown)?.iter().all(|assertion| assertion.starts_with("2: ")), "{shown:#}");
    let text = said(&place, &["show", &name])?;
    ensure!(text.contains("round error: the hook `rounds/read.sh` gave no reading"), "{text}");

    let (_, shown) = episode(&place, "solver", "desk_env/medium_priority")?;
    let fault = &shown["episode"]["settlement"]["faulted"];
    ensure!(fault["class"] == "setup_hook", "{shown:#}");
    ensure!(fault["log_tail"].as_str().is_some_and(|tail| tail.contains("the door is stuck")), "{shown:#}");
    leftovers::expect_nothing(place.root(), &place.scratch())
}
