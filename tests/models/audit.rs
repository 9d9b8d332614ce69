//! An auditor looks when the agent says that it is done: at the screen and the task, and at no
//! word of the agent's.

use anyhow::{Result, ensure};
use longhaul_tests::place::Place;

use crate::forms::{Do, FLIP, Form, Model, SAVE, says};
use crate::vendor::{Vendor, calls_of, endpoint, expect_ends, run, said, settings};

const OBJECTION: &str = "the picture has not been saved under its name";

#[test]
fn an_auditor_sees_no_word_of_the_agent_and_the_agent_goes_on_after_its_objection() -> Result<()> {
    let place = Place::new("audit")?;
    let claude = Model { form: Form::Anthropic, picture: (1280, 720) };
    let agent = Vendor::with(vec![
        claude.does("Firstly-I-open-the-menu.", FLIP[0]),
        claude.does("Secondly-I-turn-it.", FLIP[1]),
        claude.ends("It-points-to-the-right."),
        claude.does("So-I-save-it.", SAVE),
        claude.ends("Now-it-is-saved."),
        claude.does("I-only-look.", &[Do::Look]),
        claude.ends("I-am-sure."),
    ])?;
    let finding = format!("{{\"complete\": false, \"missing\": \"{OBJECTION}\"}}");
    let auditor = Vendor::with(vec![says(&finding)])?;
    let endpoints = [endpoint("claude", "anthropic", &agent), endpoint("watch", "openai", &auditor)];
    let settings = settings(&place, &endpoints)?;
    let audit = ["--audit", "watch:model-w?most=2&max_output=200", "--budget", "1"];
    let arguments = ["--task", "mtpaint_env/flip_sign", "--agent=claude:model-a?max_output=300"];
    run(&place, &settings, &[&arguments[..], &audit].concat()).end()?.expect_code(0)?;

    // After two audits its word stands, whatever a third one would have said.
    expect_ends(&place, &["model-a 0: passed by agent"])?;
    let shown = place.show("latest/0")?;
    ensure!(shown["attempts"][0]["finish"]["notes"]["audits"] == 2, "{shown:#}");
    ensure!(auditor.calls().len() == 2 && agent.calls().len() == 7, "{shown:#}");
    let after = &agent.calls()[3].body;
    ensure!(String::from_utf8_lossy(after).contains(OBJECTION), "the agent was not told what is missing");

    // What is recorded is what was sent, byte by byte; and of the agent's words, of its calls and
    // of what it was told nothing is in it.
    let calls = calls_of(&place, "latest/0")?;
    let numbers: Vec<String> =
        calls.iter().filter(|call| call["purpose"] == "audit").map(|call| call["number"].to_string()).collect();
    ensure!(numbers.len() == 2, "{calls:#?}");
    for (number, seen) in numbers.iter().zip(auditor.calls()) {
        let recorded = said(&place, &["show", "latest/0", "--request", number])?;
        ensure!(recorded.as_bytes() == &*seen.body, "what is recorded of call {number} is not what was sent");
        let words = ["-I-", "It-points", "Now-it", OBJECTION, "tool", "click", "ctrl", "saved."];
        let (text, pictures) = without_pictures(&recorded);
        let found: Vec<_> = words.iter().filter(|word| text.contains(*word)).collect();
        ensure!(found.is_empty(), "the auditor was told {found:?}: {text}");
        ensure!(text.contains("its arrow points to the left") && pictures >= 3, "{pictures} pictures: {text}");
    }
    // The episode pays for both.
    let spent = agent.billed() + auditor.billed();
    ensure!(crate::vendor::settled(&calls) == spent, "{spent} were billed: {calls:#?}");
    let answer = said(&place, &["show", "latest/0", "--response", &numbers[0]])?;
    ensure!(answer.contains(OBJECTION), "{answer}");
    Ok(())
}

/// A body's text without its pictures, and how many those were.
fn without_pictures(body: &str) -> (String, usize) {
    let (mut text, mut pictures, mut rest) = (String::new(), 0, body);
    while let Some((before, picture)) = rest.split_once("data:image/png;base64,") {
        text.push_str(before);
        pictures += 1;
        rest = picture.find('"').and_then(|end| picture.get(end..)).unwrap_or_default();
    }
    text.push_str(rest);
    (text, pictures)
}
