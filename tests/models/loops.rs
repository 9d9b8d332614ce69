//! Each of our loops does a real task with a real program, as its vendor's model would ask for it.

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use longhaul_tests::leftovers;
use longhaul_tests::place::Place;
use serde_json::{Value, json};

use crate::forms::{FLIP, Form, Model};
use crate::vendor::{Vendor, calls_of, endpoint, episode_of, expect_ends, run, said, settings};

/// The sizes of the pictures in a request, wherever its protocol has them.
fn pictures(value: &Value, found: &mut Vec<(u32, u32)>) {
    match value {
        Value::String(text) => {
            let text = text.strip_prefix("data:image/png;base64,").unwrap_or(text);
            let head = text.get(..64).filter(|_| text.starts_with("iVBOR"));
            let head = head.and_then(|head| BASE64_STANDARD.decode(head).ok());
            let side = |bytes: &[u8]| bytes.iter().fold(0, |side, byte| side << 8 | u32::from(*byte));
            found.extend(head.map(|head| (side(&head[16..20]), side(&head[20..24]))));
        }
        Value::Array(items) => items.iter().for_each(|item| pictures(item, found)),
        Value::Object(members) => members.values().for_each(|member| pictures(member, found)),
        _ => {}
    }
}

#[test]
fn every_loop_does_a_real_task_in_the_pictures_own_coordinates() -> Result<()> {
    let place = Place::new("loops")?;
    let small = (640, 360);
    let models = [
        ("claude", "anthropic", "anthropic-computer", Form::Anthropic, small),
        ("gem", "gemini", "gemini-computer", Form::Gemini, (1280, 720)),
        ("gpt", "openai", "openai-computer", Form::OpenAi, small),
        ("qwen", "openai", "tools", Form::Tools, small),
    ];
    let (mut vendors, mut endpoints, mut agents) = (Vec::new(), Vec::new(), Vec::new());
    for (name, protocol, harness, form, picture) in models {
        let mut answers = Model { form, picture }.script(&FLIP);
        if form == Form::Tools {
            // Somebody updates what is served there, in the middle of an episode.
            answers[2]["system_fingerprint"] = json!("fp_2");
        }
        let vendor = Vendor::with(answers)?;
        endpoints.push(endpoint(name, protocol, &vendor));
        let (width, height) = picture;
        agents.push(format!("--agent={name}={harness}@{name}:model-a?max_output=300&image={width}x{height}"));
        vendors.push((name, picture, vendor));
    }
    let settings = settings(&place, &endpoints)?;
    let mut arguments = vec!["--task", "mtpaint_env/flip_sign"];
    arguments.extend(agents.iter().map(String::as_str));
    run(&place, &settings, &arguments).end()?.expect_code(0)?;

    let ended = ["claude", "gem", "gpt", "qwen"].map(|name| format!("{name} 0: passed by agent"));
    expect_ends(&place, &ended.each_ref().map(String::as_str))?;
    for (name, picture, vendor) in &vendors {
        let calls = vendor.calls();
        ensure!(calls.len() == 4, "{name} was asked {} times", calls.len());
        let mut sizes = Vec::new();
        calls.iter().for_each(|call| pictures(&call.json(), &mut sizes));
        ensure!(sizes.len() == 1 + 2 + 3 + 4, "{name} was shown {} pictures", sizes.len());
        ensure!(sizes.iter().all(|size| size == picture), "{name} was shown {sizes:?}");
        // The step has the place on the screen, whatever the model has called it.
        let episode = episode_of(&place, name)?;
        let steps = place.steps(&episode)?;
        let click = &steps.get(1).context("no step")?["answer"]["actions"][0]["mouse"]["left_click"];
        let near = |index: usize, at: i64| click[index].as_i64().is_some_and(|found| (found - at).abs() <= 1);
        ensure!(near(0, 158) && near(1, 32), "{name}: {click}");
    }
    let qwen = episode_of(&place, "qwen")?;
    let fingerprints: Vec<Value> = calls_of(&place, &qwen)?.iter().map(|call| call["fingerprint"].clone()).collect();
    ensure!(fingerprints == ["fp_1", "fp_1", "fp_2", "fp_1"], "{fingerprints:?}");
    let shown = said(&place, &["show", &qwen])?;
    let warning = shown.lines().find(|line| line.contains("warning")).context("no warning")?;
    ensure!(warning.contains("fp_1") && warning.contains("fp_2"), "{shown}");
    leftovers::expect_nothing(place.root(), &place.scratch())
}
