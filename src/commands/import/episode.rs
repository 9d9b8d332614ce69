//! A folder of an episode, as Gym-Anything's envs leave it: `traj.jsonl`, frames, `summary.json`.
//!
//! There the screen after the first step is written over the first observation, so that this one
//! is not known; and the step by which the runner says that the agent is done is none of the
//! agent's. `longhaul export --format gym-anything` writes both otherwise, and says so.

use std::path::PathBuf;

use longhaul_core::imported::Form;
use longhaul_core::outcome::EndedBy;
use serde_json::Value;

use super::files::{Place, actions, id, run_number, text};
use super::scored::{self, Outcome};
use super::{Found, FoundStep};

/// Reads an episode; the error is why it cannot be used.
pub(super) fn read(place: &Place) -> Result<Found, String> {
    let mut notes = Vec::new();
    let summary = place.json("summary.json")?;
    let events = place.lines("traj.jsonl", &mut notes)?;
    let is = |event: &&Value, name: &str| event["event"] == name;
    let all = || events.iter().flatten();
    let reset = all().find(|event| is(event, "reset")).cloned().unwrap_or_default();
    let session = all().find(|event| is(event, "session")).cloned().unwrap_or_default();
    let finished = all().any(|event| is(&event, "finalize"));
    let summary = summary.unwrap_or_default();
    let ours = &summary["longhaul"];
    let own = ours.is_object();

    let mut frames = place.pictures("frame_")?;
    let mut steps: Vec<FoundStep> = Vec::new();
    let (mut next, mut opened) = (0_u32, 0_u32);
    for event in all().filter(|event| is(event, "step")) {
        let index = event["idx"].as_u64().and_then(|index| u32::try_from(index).ok());
        let index = index.ok_or_else(|| format!("step {} of traj.jsonl has no number", steps.len()))?;
        // In ours a number without a step is the screen that opened a further round.
        if index < next || (index > next && !own) {
            return Err(format!("traj.jsonl goes from step {next} to step {index}"));
        }
        opened = opened.saturating_add(index - next);
        next = index.saturating_add(1);
        steps.push(FoundStep {
            at: event["ts"].as_f64(),
            text: text(&event["text"]),
            actions: actions(&event["action"]),
            done: false,
            screen: frames.remove(&if own { next } else { index }),
        });
    }
    if opened > 0 {
        notes.push(format!("screens that opened further rounds are not kept: {opened}"));
    }
    // What the runner itself says, and no answer of the agent.
    let said_done = !own && finished && steps.last().is_some_and(|step| step.actions.is_empty());
    if said_done && let Some(mark) = steps.pop() {
        match steps.last_mut() {
            Some(last) => last.done = true,
            None => notes.push("the agent was done before it did anything".to_owned()),
        }
        // The screen after it is the last one.
        frames.extend(mark.screen.map(|screen| (u32::MAX, screen)));
    }
    let first = if own { frames.remove(&0) } else { None };
    if !own && events.is_some() {
        notes.push("Gym-Anything wrote the screen after the first step over the first observation".to_owned());
    }
    let count = match &events {
        Some(_) => u32::try_from(steps.len()).unwrap_or(u32::MAX),
        None => {
            notes.push("there is no traj.jsonl: steps are counted as summary.json has them".to_owned());
            let steps = summary["steps"].as_u64().and_then(|steps| u32::try_from(steps).ok());
            steps.ok_or("nothing in it says how many steps it took")?
        }
    };
    let ended_by = if said_done { EndedBy::Agent } else { EndedBy::Unknown };
    let outcome = match summary.get("verifier") {
        _ if summary.is_null() => Outcome::none(ended_by, "there is no summary.json: it did not come to its end"),
        report => scored::outcome(report.unwrap_or(&Value::Null), ended_by)?,
    };
    if outcome.ended_by() == EndedBy::Unknown {
        notes.push("it is not recorded what ended it".to_owned());
    }
    let env_id = id(&reset["env"]).or_else(|| id(&summary["env"])).or_else(|| id(&session["env_id"]));
    let task_id = id(&reset["task"]).or_else(|| id(&summary["task"])).or_else(|| id(&session["task_id"]));
    Ok(Found {
        place: place.name.clone(),
        form: Form::GymEpisodes,
        env_id,
        task_id,
        task: None,
        named: if own { of_export(place) } else { None },
        agent: id(&ours["agent"]),
        sample: run_number(&place.name).filter(|_| own),
        seed: reset["seed"].as_i64(),
        count,
        started: reset["ts"].as_f64().or_else(|| summary["start_ts"].as_f64()),
        ended: summary["end_ts"].as_f64(),
        outcome,
        first,
        steps,
        logs: logs(place),
        notes,
    })
}

/// Env and task, as the folders of our own exports say them: `ENV/TASK/AGENT/run_N`.
fn of_export(place: &Place) -> Option<(String, String)> {
    let whole = std::fs::canonicalize(&place.path).ok()?;
    let mut parts = whole.iter().rev().skip(2).map(|part| part.to_string_lossy().into_owned());
    let task = parts.next()?;
    Some((parts.next()?, task))
}

fn logs(place: &Place) -> Vec<(String, PathBuf)> {
    let names = ["summary.json", "final.png", "post_verification.png"];
    names.iter().filter_map(|name| Some(((*name).to_owned(), place.own_file(name)?))).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    fn place(files: &[(&str, &str)]) -> (tempfile::TempDir, Place) {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let place = Place { name: "episode_1".to_owned(), path: folder.path().to_owned() };
        (folder, place)
    }

    fn lines(events: &[Value]) -> String {
        events.iter().map(|event| format!("{event}\n")).collect()
    }

    fn step(index: u32, action: Value) -> Value {
        json!({"event": "step", "ts": 10.5 + f64::from(index), "idx": index, "action": action})
    }

    #[test]
    fn the_step_that_says_done_is_none_of_the_agents_and_each_screen_is_after_its_step() {
        let events = lines(&[
            json!({"event": "reset", "ts": 1.25, "seed": 42, "env": "example.calc_env@0.1", "task": "sum@1"}),
            json!({"event": "session", "vnc_password": "secret"}),
            step(0, json!([{"mouse": {"left_click": [1, 2]}}])),
            step(1, json!({"keyboard": {"text": "7"}})),
            step(2, json!([])),
            json!({"event": "finalize", "ts": 20.0}),
        ]);
        let summary = json!({"env": "example.calc_env@0.1", "task": "sum@1", "end_ts": 20.5, "steps": 3,
                             "verifier": {"mode": "program", "passed": true, "score": 100, "feedback": "right"}});
        let (_folder, place) = place(&[
            ("traj.jsonl", &events),
            ("summary.json", &summary.to_string()),
            ("frame_00000.png", "0"),
            ("frame_00001.png", "1"),
            ("frame_00002.png", "2"),
        ]);
        let found = read(&place).unwrap();
        assert_eq!((found.count, found.steps.len(), found.seed), (2, 2, Some(42)));
        assert_eq!((found.env_id.as_deref(), found.task_id.as_deref()), (Some("example.calc_env@0.1"), Some("sum@1")));
        assert_eq!(found.steps[0].screen, Some(place.path.join("frame_00000.png")));
        assert_eq!(found.steps[1].actions, [json!({"keyboard": {"text": "7"}})]);
        assert!(found.steps[1].done && !found.steps[0].done);
        assert_eq!((found.first, found.started, found.ended), (None, Some(1.25), Some(20.5)));
        assert_eq!(found.outcome.ended_by(), EndedBy::Agent);
        assert!(found.notes[0].contains("over the first observation"), "{:?}", found.notes);
    }

    #[test]
    fn an_episode_that_did_not_come_to_its_end_has_no_verdict() {
        let mut events = lines(&[json!({"event": "reset", "ts": 1.0, "task": "sum@1"}), step(0, json!([{}]))]);
        events.push_str(r#"{"event": "step", "idx": 1, "act"#);
        let (_folder, place) = place(&[("traj.jsonl", &events)]);
        let found = read(&place).unwrap();
        assert_eq!((found.count, found.outcome.ended_by()), (1, EndedBy::Unknown));
        assert!(matches!(found.outcome, Outcome::Unverified { .. }));
        assert!(found.notes.iter().any(|note| note == "the last line of traj.jsonl is cut off"), "{:?}", found.notes);
    }

    #[test]
    fn what_opened_a_round_of_ours_is_no_step() {
        let events = lines(&[step(0, json!([])), step(2, json!([{}]))]);
        let summary = json!({"longhaul": {"agent": "a"}, "verifier": {"passed": true, "score": 1}}).to_string();
        let (_folder, ours) = place(&[
            ("traj.jsonl", &events),
            ("summary.json", &summary),
            ("frame_00001.png", "1"),
            ("frame_00003.png", "3"),
        ]);
        let found = read(&ours).unwrap();
        assert_eq!(found.count, 2);
        assert_eq!(found.steps[1].screen, Some(ours.path.join("frame_00003.png")));
        assert!(found.notes.iter().any(|note| note.ends_with("are not kept: 1")), "{:?}", found.notes);
        let (_folder, theirs) = place(&[("traj.jsonl", &events)]);
        assert_eq!(read(&theirs).unwrap_err(), "traj.jsonl goes from step 1 to step 2");
    }

    #[test]
    fn what_a_link_leads_to_is_not_read() {
        let verdict = r#"{"steps": 1, "verifier": {"passed": true, "score": 1}}"#;
        let (folder, place) = place(&[("summary.json", verdict), ("elsewhere", "a secret")]);
        for name in ["final.png", "frame_00000.png"] {
            std::os::unix::fs::symlink("elsewhere", folder.path().join(name)).unwrap();
        }
        let found = read(&place).unwrap();
        assert_eq!(found.logs.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["summary.json"]);
        assert!(place.pictures("frame_").unwrap().is_empty());
        std::os::unix::fs::symlink("elsewhere", folder.path().join("traj.jsonl")).unwrap();
        assert_eq!(read(&place).unwrap_err(), "traj.jsonl is a link, and links are not followed");
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        let verdict = r#"{"steps": 3, "verifier": {"passed": true, "score": 1}}"#;
        for (files, reason) in [
            (vec![("summary.json", "{")], "summary.json is no JSON"),
            (vec![("summary.json", verdict), ("traj.jsonl", "{}\nnonsense\n{}\n")], "line 2 of traj.jsonl is no JSON"),
            (vec![("traj.jsonl", r#"{"event": "step", "idx": 4}"#)], "traj.jsonl goes from step 0 to step 4"),
            (vec![("summary.json", r#"{"verifier": null}"#)], "nothing in it says how many steps it took"),
            (vec![("summary.json", r#"{"steps": 1, "verifier": {"passed": 1}}"#)], "the verifier's `passed` is `1`"),
        ] {
            let (_folder, place) = place(&files);
            let error = read(&place).unwrap_err();
            assert!(error.starts_with(reason), "{error}");
        }
        let (_folder, place) = place(&[("summary.json", verdict)]);
        assert_eq!(read(&place).unwrap().count, 3);
    }
}
