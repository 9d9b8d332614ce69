//! Goals that models are told one after the other, and what a judge is asked of a round.

use anyhow::{Context as _, Result, ensure};
use longhaul_tests::place::Place;
use serde_json::{Value, json};

use crate::forms::{Do, Form, Model, says};
use crate::vendor::{Vendor, calls_of, endpoint, episode_of, run, settings};

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
    std::fs::write(&file, spec.to_string())?;
    let goals: Vec<&str> = (0..3).filter_map(|round| spec["longhaul"]["rounds"][round]["goal"].as_str()).collect();

    let judged = json!({"task_completion": [{"id": "welcome", "verdict": "pass", "confidence": 0.9, "evidence": "seen"}],
        "integrity": [], "overall_reasoning": "It is."});
    let judge = Vendor::with(vec![says(&judged.to_string())])?;
    let picture = (1280, 720);
    let models = [
        ("claude", "anthropic", "anthropic-computer", Form::Anthropic),
        ("gem", "gemini", "gemini-computer", Form::Gemini),
        ("gpt", "openai", "openai-computer", Form::OpenAi),
        ("qwen", "openai", "tools", Form::Tools),
    ];
    let mut endpoints = vec![endpoint("watch", "openai", &judge)];
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
            ensure!(told == [true, call >= 2, call >= 4], "{name} in call {call}: {told:?}\n{text}");
            ensure!(!text.contains("/records/17") && !text.contains("first screen"), "{name} in call {call}:\n{text}");
        }
        let episode = episode_of(&place, name)?;
        let shown = place.show(&episode)?;
        let rounds = &shown["episode"]["settlement"]["verdict"]["parts"]["rounds"];
        ensure!(rounds[1]["assertions"][0]["held"] == true, "{shown:#}");
        ensure!(rounds[0]["assertions"][0]["held"] == false, "{shown:#}");
        let purposes: Vec<Value> = calls_of(&place, &episode)?.iter().map(|call| call["purpose"].clone()).collect();
        ensure!(purposes.iter().filter(|purpose| **purpose == "judge").count() == 1, "{purposes:?}");
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
    Ok(())
}
