//! A judge looks at the screenshots: on its own money, with what only it may know.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use longhaul_tests::place::Place;
use serde_json::{Value, json};

use crate::forms::says;
use crate::vendor::{KEY, KEY_NAME, Vendor, calls_of, dollars, endpoint, expect_ends, run, said, settings, settled};

const TASK: [&str; 2] = ["--task", "mtpaint_env/flip_sign"];

/// An answer about the task's checklist, with a word for whether the picture is saved.
fn answer(saved: &str) -> Value {
    let item = |id: &str, word: &str| json!({"id": id, "verdict": word, "confidence": 0.9, "evidence": "it is seen"});
    let verdicts = json!({
        "task_completion": [item("flipped", "pass"), item("saved", saved)],
        "integrity": [item("through_the_program", "pass"), item("same_picture", "pass")],
        "overall_reasoning": "The arrow points to the right.",
    });
    says(&format!("```json\n{verdicts}\n```"))
}

/// What only the judge may know of the task.
fn privileged(place: &Place) -> Result<String> {
    let file = place.benchmark().join("environments/mtpaint_env/tasks/flip_sign/vlm_checklist.json");
    let checklist: Value = serde_json::from_slice(&fs::read(file)?)?;
    Ok(checklist["privileged_info_for_vlm"].as_str().context("nothing is privileged")?.to_owned())
}

fn judge_row(place: &Place) -> Result<Value> {
    let budget: Value = serde_json::from_str(&said(place, &["budget", "show", "latest", "--format", "json"])?)?;
    let scopes = budget["scopes"].as_array().context("no scopes")?;
    scopes.iter().find(|row| row["scope"] == "judge").cloned().with_context(|| format!("no judge: {budget:#}"))
}

#[test]
fn a_judge_decides_by_the_checklist_and_the_agents_sandbox_has_no_word_of_it() -> Result<()> {
    let place = Place::new("judge")?;
    let secret = privileged(&place)?;
    // The export hook runs where the agent acted, as root: what it does not find is not there.
    let hook = place.benchmark().join("environments/mtpaint_env/tasks/flip_sign/export_result.sh");
    // The hook itself is there, and must not find its own words.
    let (first, rest) = secret.split_at_checked(1).context("nothing is privileged")?;
    let search = format!(
        "\necho \"checklists: $(find / /workspace /workspace/*/ -xdev \
         -name '*checklist*' -not -path '/proc/*' -not -path '/usr/*' | wc -l)\"\n\
         echo \"privileged: $(grep -rls '[{first}]{rest}' /workspace /home /tmp /root | wc -l)\"\n\
         echo \"of the task: $(grep -rls 'flip_sign' /workspace | wc -l)\"\n"
    );
    fs::write(&hook, format!("{}{search}", fs::read_to_string(&hook)?))?;
    let vendor = Vendor::with(vec![answer("partial")])?;
    let settings = settings(&place, &[endpoint("watch", "openai", &vendor)])?;
    let judge = ["--judge", "watch:model-j?max_output=900&frames=changed", "--judge-budget", "1", "--verify", "both"];
    let solver = place.agent("solver");
    run(&place, &settings, &[&TASK[..], &judge, &[&*solver]].concat()).end()?.expect_code(0)?;

    // 70 points and half of 30; the program alone would have passed it.
    expect_ends(&place, &["solver 0: failed by agent"])?;
    let shown = place.show("latest/0")?;
    let verdict = &shown["episode"]["settlement"]["verdict"];
    ensure!(verdict["score"] == 85.0 && verdict["parts"]["decided_by"] == "checklist", "{shown:#}");
    ensure!(verdict["parts"]["program"]["passed"] == true, "{shown:#}");
    ensure!(verdict["parts"]["checklist"]["judges"][0]["verdicts"][1]["mark"] == "partial", "{shown:#}");
    let text = said(&place, &["show", "latest/0"])?;
    ensure!(text.contains("program and checklist do not agree") && text.contains("saved (30) partial"), "{text}");
    let table = said(&place, &["show", "latest"])?;
    ensure!(table.contains("program and checklist agree on 0 of 1 episodes"), "{table}");

    // It saw pictures, the task, and what only it may know.
    let asked = vendor.calls();
    ensure!(asked.len() == 1, "{} calls", asked.len());
    let parts = asked[0].json()["messages"][0]["content"].as_array().cloned().context("no parts")?;
    let pictures = parts.iter().filter(|part| part["type"] == "image_url").count();
    let shown_to_it = verdict["parts"]["checklist"]["shown"].as_array().map_or(0, Vec::len);
    ensure!(pictures == shown_to_it && pictures > 2 && pictures + 1 == parts.len(), "{pictures} of {}", parts.len());
    let words = parts.last().and_then(|part| part["text"].as_str()).context("no words")?;
    ensure!(words.contains(&secret) && words.contains("same_picture"), "{words}");
    let log = said(&place, &["show", "latest/0", "--log", "post_task"])?;
    ensure!(log.contains("checklists: 0") && log.contains("privileged: 0"), "{log}");
    ensure!(!log.contains("of the task: 0"), "nothing would be found at all: {log}");

    // Every cent is the judge's, and recorded.
    let calls = calls_of(&place, "latest/0")?;
    ensure!(calls.len() == 1 && calls[0]["purpose"] == "judge", "{calls:#?}");
    ensure!(settled(&calls) == vendor.billed() && vendor.billed() > 0, "{calls:#?}");
    let row = judge_row(&place)?;
    let spent = row["spent_dollars"].as_str().map(|amount| format!("${amount}")).context("no amount")?;
    ensure!(spent == dollars(vendor.billed()), "{row:#} and not {}", dollars(vendor.billed()));
    place.expect_sound()
}

#[test]
fn a_judge_that_says_nothing_of_use_leaves_the_episode_unverified_and_another_one_judges_it_later() -> Result<()> {
    let place = Place::new("judge-silent")?;
    let vendor = Vendor::with(vec![says("I would rather not say.")])?;
    let second = Vendor::with(vec![answer("pass")])?;
    let settings = settings(&place, &[endpoint("watch", "openai", &vendor), endpoint("second", "openai", &second)])?;
    let judge = ["--judge", "watch:model-j?max_output=900&asks=2", "--judge-budget", "1", "--agent=idle"];
    run(&place, &settings, &[&TASK[..], &judge].concat()).end()?.expect_code(0)?;
    expect_ends(&place, &["idle 0: unverified by nothing"])?;
    let unverified = || -> Result<Value> {
        let shown = place.show("latest/0")?;
        Ok(shown["episode"]["settlement"]["unverified"].clone())
    };
    let before = unverified()?;
    ensure!(before["fault"] == "judge", "{before:#}");
    ensure!(before["reason"].as_str().is_some_and(|reason| reason.contains("rather not say")), "{before:#}");
    ensure!(vendor.calls().len() == 2, "it is asked again, and not for ever");

    // Another judge, later, without anything being run.
    let (out, store) = (place.path("rejudged").display().to_string(), place.store().display().to_string());
    let again = || -> Result<Value> {
        let words = ["rejudge", "latest", "--judge", "second:model-k?max_output=900", "--max-cost", "1", "-o", &out];
        let rest = ["--store", &store, "--settings", &settings, "--format", "json"];
        place.longhaul(words.iter().chain(&rest)).env(KEY_NAME, KEY).end()?.expect_code(0)?.json()
    };
    let judged = again()?;
    let episode = &judged["episodes"][0];
    ensure!(judged["judged"] == 1 && episode["judgement"]["score"] == 100.0, "{judged:#}");
    ensure!(episode["settled_as"]["unverified"]["fault"] == "judge", "{judged:#}");
    let spent = judged["spent_dollars"].as_str().map(|amount| format!("${amount}")).context("no amount")?;
    ensure!(spent == dollars(second.billed()), "{spent}, and not {}", dollars(second.billed()));
    let kept = fs::read_to_string(place.path("rejudged/verdicts.jsonl"))?;
    ensure!(kept.lines().count() == 1 && kept.contains("\"passed\":true"), "{kept}");
    // What was settled stays, and nothing is paid for twice.
    ensure!(unverified()? == before, "a settlement has changed");
    let nothing = again()?;
    ensure!(nothing["judged"] == 0 && second.calls().len() == 1, "{nothing:#}");
    Ok(())
}
