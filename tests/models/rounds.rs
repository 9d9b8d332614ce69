//! Goals that models are told one after the other, what a round may cost, and what a judge is asked of one,
//! and another judge later.

use anyhow::{Context as _, Result, ensure};
use longhaul_tests::place::Place;
use serde_json::{Value, json};

use crate::forms::{Do, Form, Model, says};
use crate::vendor::{KEY, KEY_NAME, Vendor, calls_of, endpoint, episode_of, run, said, settings, settled};

/// Texts of a JSON value, whatever its form, one after the other.
fn texts(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{text}\n"),
        Value::Array(items) => items.iter().map(texts).collect(),
        Value::Object(members) => members.values().map(texts).collect(),
        _ => String::new(),
    }
}

#[test]
fn every_loop_is_told_a_goal_in_its_turn_and_a_judge_sees_the_round_that_it_is_asked_of() -> Result<()> {
    let place = Place::new("rounds-models")?;
    let file = place.benchmark().join("environments/desk_env/tasks/medium_priority/task.json");
    let mut spec: Value = serde_json::from_slice(&std::fs::read(&file)?)?;
    let asks = json!([{"id": "welcome", "aspect": "visible", "ask": "Is the program's first screen shown?"}]);
    spec["longhaul"]["rounds"][1]["assertions"] = asks;
    // A third round in which no call fits, and a fourth one after it.
    let mut last = spec["longhaul"]["rounds"][2].clone();
    last["goal"] = json!("Look at it once more.");
    spec["longhaul"]["rounds"][2]["budget"] = json!({"dollars": "0.000001"});
    spec["longhaul"]["rounds"].as_array_mut().context("no rounds")?.push(last);
    std::fs::write(&file, spec.to_string())?;
    let goals: Vec<&str> = (0..4).filter_map(|round| spec["longhaul"]["rounds"][round]["goal"].as_str()).collect();

    let judged = |word: &str| {
        json!({"task_completion": [{"id": "welcome", "verdict": word, "confidence": 0.9, "evidence": "seen"}],
            "integrity": [], "overall_reasoning": "It is."})
    };
    let judge = Vendor::with(vec![says(&judged("pass").to_string())])?;
    let second = Vendor::with(vec![says(&judged("fail").to_string())])?;
    let picture = (1280, 720);
    let models = [
        ("claude", "anthropic", "anthropic-computer", Form::Anthropic),
        ("gem", "gemini", "gemini-computer", Form::Gemini),
        ("gpt", "openai", "openai-computer", Form::OpenAi),
        ("qwen", "openai", "tools", Form::Tools),
    ];
    let mut endpoints = vec![endpoint("watch", "openai", &judge), endpoint("second", "openai", &second)];
    let (mut vendors, mut agents) = (Vec::new(), Vec::new());
    for (name, protocol, harness, form) in models {
        let model = Model { form, picture };
        let (look, done) = (|| model.does("I look.", &[Do::Wait]), || model.ends("It is done."));
        let vendor = Vendor::with(vec![look(), done(), look(), done(), done()])?;
        endpoints.push(endpoint(name, protocol, &vendor));
        agents.push(format!("--agent={name}={harness}@{name}:model-a?max_output=300&image=1280x720"));
        vendors.push((name, vendor));
    }
    let settings = settings(&place, &endpoints)?;
    let mut arguments = vec!["--task", "desk_env/medium_priority", "--judge", "watch:model-j?max_output=900"];
    arguments.extend(agents.iter().map(String::as_str));
    run(&place, &settings, &arguments).end()?.expect_code(0)?;

    for (name, vendor) in &vendors {
        let asked: Vec<String> = vendor.calls().iter().map(|call| texts(&call.json())).collect();
        ensure!(asked.len() == 5, "{name} was asked {} times", asked.len());
        // Once its turn has come a goal stays in the conversation; before that nothing tells it.
        for (call, text) in asked.iter().enumerate() {
            let told: Vec<bool> = goals.iter().map(|goal| text.contains(goal)).collect();
            ensure!(told == [true, call >= 2, call >= 4, call >= 4], "{name} in call {call}: {told:?}\n{text}");
            let cut_off = text.matches("That is over for now").count();
            ensure!(cut_off == usize::from(call >= 4), "{name} in call {call}:\n{text}");
            ensure!(!text.contains("/records/17") && !text.contains("first screen"), "{name} in call {call}:\n{text}");
        }
        let episode = episode_of(&place, name)?;
        let shown = place.show(&episode)?;
        let rounds = &shown["episode"]["settlement"]["verdict"]["parts"]["rounds"];
        ensure!(rounds[1]["assertions"][0]["held"] == true, "{shown:#}");
        ensure!(rounds[0]["assertions"][0]["held"] == false, "{shown:#}");
        // What the third round was refused is no end of the episode, and nothing was paid for it.
        let ends: Vec<&Value> = (0..4).map(|round| &rounds[round]["ended_by"]).collect();
        ensure!(ends == ["agent", "agent", "budget", "agent"], "{shown:#}");
        ensure!(rounds[2]["error"] == "generation" && rounds[2]["steps"] == 0 && rounds[3]["steps"] == 1, "{shown:#}");
        ensure!(shown["episode"]["settlement"]["verdict"]["ended_by"] == "agent", "{shown:#}");
        let (of_judge, own): (Vec<Value>, Vec<Value>) =
            calls_of(&place, &episode)?.into_iter().partition(|call| call["purpose"] == "judge");
        ensure!((of_judge.len(), own.len()) == (1, 5), "{of_judge:?} {own:?}");
        ensure!(settled(&own) == vendor.billed() && vendor.billed() > 0, "{own:?}");
    }
    // One picture and one question each, and of the round alone that asks.
    let asked = judge.calls();
    ensure!(asked.len() == vendors.len(), "the judge was asked {} times", asked.len());
    for call in asked {
        let body = call.json();
        let parts = body["messages"][0]["content"].as_array().context("no parts")?;
        let pictures = parts.iter().filter(|part| part["type"] == "image_url").count();
        let words = texts(&body);
        ensure!(pictures == 1 && words.contains("first screen") && !words.contains("/records/17"), "{words}");
    }

    // Another judge later, without anything being run: it is shown the same, and all else stays.
    let out = place.path("second-opinion").display().to_string();
    let store = place.store().display().to_string();
    let words = ["rejudge", "latest", "--judge", "second:model-k?max_output=900", "--max-cost", "1", "-o", &out];
    let rest = ["--store", &store, "--settings", &settings, "--format", "json"];
    let again = place.longhaul(words.iter().chain(&rest)).env(KEY_NAME, KEY).end()?.expect_code(0)?.json()?;
    ensure!(again["judged"] == 4 && second.calls().len() == 4, "{again:#}");
    let (first, other) = (&judge.calls()[0].json()["messages"], &second.calls()[0].json()["messages"]);
    ensure!(first[0]["content"][1] == other[0]["content"][1], "it is asked something else: {other:#}");
    for one in again["episodes"].as_array().context("no episodes")? {
        let before = &one["settled_as"]["verdict"]["parts"]["rounds"];
        let asked = &one["rounds"][1]["assertions"][0];
        ensure!(asked["held"] == false && asked["why"] == "the judge says fail: seen", "{one:#}");
        ensure!(one["rounds"][1]["judged"]["shown"] == before[1]["judged"]["shown"], "{one:#}");
        ensure!(
            one["rounds"][0] == before[0] && one["rounds"][3] == before[3] && one["judgement"].is_null(),
            "{one:#}"
        );
        let score = |rounds: &Value| {
            let rounds = rounds.as_array().into_iter().flatten();
            let held = rounds.flat_map(|round| round["assertions"].as_array().into_iter().flatten());
            held.filter(|assertion| assertion["held"] == true).count()
        };
        ensure!(score(&one["rounds"]) + 1 == score(before) && one["passed"] == false, "{one:#}");
    }
    let compared = said(&place, &["compare", "latest:claude", &format!("{out}:claude"), "--json"])?;
    let compared: Value = serde_json::from_str(&compared)?;
    let held: Vec<&Value> =
        (0..2).map(|side| &compared["sides"][side]["measures"]["workflow"]["assertions"]["hits"]).collect();
    let held: Vec<u64> = held.iter().filter_map(|hits| hits.as_u64()).collect();
    ensure!(held.len() == 2 && held[0] == held[1] + 1, "{compared:#}");
    Ok(())
}
