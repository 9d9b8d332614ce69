//! A folder of an agent, as Gym-Anything's agents leave it: `EXPERIMENT/MODEL/TASK/run_N`, with the
//! observations, the answers and what the runner was told at the end.
//!
//! Which files are there depends on the agent. Pickles are named and never read: whoever reads one
//! runs what is in it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use longhaul_core::imported::Form;
use longhaul_core::outcome::EndedBy;
use serde_json::Value;

use super::files::{Place, actions, id, run_number, text};
use super::scored::{self, Outcome};
use super::{Found, FoundStep};

/// Reads a run of an agent; the error is why it cannot be used.
pub(super) fn read(place: &Place) -> Result<Found, String> {
    let mut notes = Vec::new();
    let parts = place.parts();
    // The folder `run_N` and its task's are the last two.
    let (agent, task) = match parts.as_slice() {
        [agent @ .., task, _] => (agent.join("/"), Some((*task).to_owned())),
        _ => (String::new(), of_parent(place)),
    };
    let Some(info) = place.json("info.json")? else {
        if place.file("info.pkl").is_some() {
            return Err("what came of it is in info.pkl, a Python pickle, which is not read: load it with Python, \
                        and write it beside it as info.json"
                .to_owned());
        }
        let outcome = Outcome::none(EndedBy::Unknown, "there is no info.json: it did not come to its end");
        return found(place, agent, task, &Value::Null, outcome, notes);
    };
    let ended_by = scored::ended_by(info["reason"].as_str());
    let outcome = scored::outcome(&info["verifier"], ended_by)?;
    if outcome.ended_by() == EndedBy::Unknown {
        notes.push("it is not recorded what ended it".to_owned());
    }
    found(place, agent, task, &info, outcome, notes)
}

fn found(
    place: &Place,
    agent: String,
    task: Option<String>,
    info: &Value,
    outcome: Outcome,
    mut notes: Vec<String>,
) -> Result<Found, String> {
    let mut screens = place.pictures("observation_")?;
    if place.file("observations.delta").is_some() {
        notes.push("screens in observations.delta are not read".to_owned());
    }
    let answers = answers(place, &mut notes)?;
    // Each observation is what an answer was given to.
    let observed = screens.last_key_value().map_or(0, |(last, _)| last.saturating_add(1));
    let count = answers.as_ref().map_or(observed, |answers| u32::try_from(answers.len()).unwrap_or(u32::MAX));
    if count == 0 && answers.is_none() && place.file("observations.delta").is_some() {
        return Err("nothing in it that is read says how many steps it took".to_owned());
    }
    let first = screens.remove(&0);
    let mut steps: Vec<FoundStep> = answers.unwrap_or_else(|| vec![FoundStep::default(); count as usize]);
    for (number, step) in (1..).zip(&mut steps) {
        step.screen = screens.remove(&number);
    }
    if let Some(last) = steps.last_mut() {
        last.done = outcome.ended_by() == EndedBy::Agent;
    }
    Ok(Found {
        place: place.name.clone(),
        form: Form::GymRuns,
        env_id: id(&info["env"]),
        task_id: id(&info["task"]),
        task,
        named: None,
        agent: Some(agent).filter(|agent| !agent.is_empty()),
        sample: run_number(&place.name),
        seed: None,
        count,
        started: info["start_ts"].as_f64(),
        ended: info["end_ts"].as_f64(),
        outcome,
        first,
        steps,
        logs: place.file("info.json").map(|path| ("info.json".to_owned(), path)).into_iter().collect(),
        notes,
    })
}

/// The name of the folder above, where the folder `run_N` itself was named.
fn of_parent(place: &Place) -> Option<String> {
    let whole: PathBuf = std::fs::canonicalize(&place.path).ok()?;
    Some(whole.parent()?.file_name()?.to_string_lossy().into_owned())
}

/// The agent's answers, where they are in a form that is read.
fn answers(place: &Place, notes: &mut Vec<String>) -> Result<Option<Vec<FoundStep>>, String> {
    if let Some(responses) = place.json("responses.json")? {
        let said = responses["model_responses"].as_array().map(Vec::as_slice).unwrap_or_default();
        let parsed = responses["parsed_responses"].as_array().map(Vec::as_slice).unwrap_or_default();
        let step = |index: usize| FoundStep {
            text: said.get(index).and_then(text),
            actions: parsed.get(index).map(|parsed| actions(&parsed["actions"])).unwrap_or_default(),
            ..FoundStep::default()
        };
        return Ok(Some((0..said.len().max(parsed.len())).map(step).collect()));
    }
    let (metadata, history) = (place.json("responses_metadata.json")?, place.json("action_history.json")?);
    if metadata.is_some() || history.is_some() {
        let said = metadata.as_ref().and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let mut acted: BTreeMap<u64, Vec<Value>> = BTreeMap::new();
        for entry in history.as_ref().and_then(Value::as_array).into_iter().flatten() {
            let step = entry["step"].as_u64().ok_or("an entry of action_history.json has no step")?;
            acted.insert(step, actions(&entry["gpt_actions"]));
        }
        // There may be more answers than steps: some ask for a screenshot alone.
        let count = acted.last_key_value().map_or(said.len() as u64, |(last, _)| last + 1);
        let step = |index: u64| FoundStep {
            text: usize::try_from(index).ok().and_then(|index| text(&said.get(index)?["text_output"])),
            actions: acted.remove(&index).unwrap_or_default(),
            ..FoundStep::default()
        };
        return Ok(Some((0..count).map(step).collect()));
    }
    if place.file("messages.pkl").is_some() {
        notes.push("the answers are in messages.pkl, a Python pickle, which is not read".to_owned());
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    fn place(name: &str, files: &[(&str, String)]) -> (tempfile::TempDir, Place) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        fs::create_dir_all(&path).unwrap();
        for (name, text) in files {
            fs::write(path.join(name), text).unwrap();
        }
        (folder, Place { name: name.to_owned(), path })
    }

    #[test]
    fn answers_stand_beside_the_screen_that_came_of_them() {
        let responses = json!({
            "model_responses": ["first", {"content": "second"}],
            "parsed_responses": [{"actions": [{"mouse": {}}], "metadata": {}}, {"actions": []}],
        });
        let info = json!({"step": 2, "reason": "Agent Completed", "verifier": {"passed": false, "score": 40}});
        let (_folder, place) = place(
            "exp/Qwen/Qwen3-VL-4B/sum/run_3",
            &[
                ("responses.json", responses.to_string()),
                ("info.json", info.to_string()),
                ("observation_0.png", String::new()),
                ("observation_1.png", String::new()),
            ],
        );
        let found = read(&place).unwrap();
        assert_eq!((found.agent.as_deref(), found.task.as_deref()), (Some("exp/Qwen/Qwen3-VL-4B"), Some("sum")));
        assert_eq!((found.sample, found.count, found.steps.len()), (Some(3), 2, 2));
        assert_eq!(found.first, Some(place.path.join("observation_0.png")));
        assert_eq!(found.steps[0].screen, Some(place.path.join("observation_1.png")));
        assert_eq!(found.steps[1].screen, None, "the screen after the last answer is not kept there");
        assert_eq!(found.steps[1].text.as_deref(), Some(r#"{"content":"second"}"#));
        assert!(found.steps[1].done);
    }

    #[test]
    fn a_pickle_is_named_and_not_read() {
        let pickle = ("info.pkl", "cos\nsystem\n(S'true'\ntR.".to_owned());
        let (_folder, alone) = place("exp/model/sum/run_0", std::slice::from_ref(&pickle));
        assert!(read(&alone).unwrap_err().contains("a Python pickle, which is not read"));
        let info = json!({"reason": "max_steps", "verifier": {"passed": true, "score": 100}}).to_string();
        let files =
            [pickle, ("info.json", info), ("messages.pkl", String::new()), ("observation_0.png", String::new())];
        let (_folder, beside) = place("exp/model/sum/run_0", &files);
        let found = read(&beside).unwrap();
        assert_eq!((found.count, found.outcome.ended_by()), (1, EndedBy::Steps));
        assert!(found.notes.iter().any(|note| note.contains("messages.pkl")), "{:?}", found.notes);
    }

    #[test]
    fn answers_of_the_other_form_are_read_by_step() {
        let files = [
            ("responses_metadata.json", json!([{"text_output": "a"}, {"text_output": ""}, {}]).to_string()),
            ("action_history.json", json!([{"step": 1, "gpt_actions": ["click"]}]).to_string()),
        ];
        let (_folder, place) = place("exp/gpt/sum/run_0", &files);
        let found = read(&place).unwrap();
        assert_eq!(found.count, 2);
        assert_eq!((found.steps[0].text.as_deref(), found.steps[1].text.as_deref()), (Some("a"), None));
        assert_eq!(found.steps[1].actions, [json!("click")]);
        assert!(matches!(found.outcome, Outcome::Unverified { .. }), "nothing says what came of it");
    }
}
