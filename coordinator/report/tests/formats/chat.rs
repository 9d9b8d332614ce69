//! Training sets, loaded as trainers load them.

use longhaul_report::{ChatOptions, Coordinates, Format, Rows};
use serde_json::{Value, json};

use crate::harbor::all_text;
use crate::python;
use crate::run::{self, SCREEN, SECRET, exported, run_id};

const STEPS: ChatOptions = ChatOptions {
    max_steps: None,
    first_success: false,
    failures: false,
    rows: Rows::Steps { keep_images: 2 },
    coordinates: Coordinates::Pixels,
};

/// What is found in a training set with these options.
fn found(options: &ChatOptions) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let store = run::store(&folder.path().join("store"));
    let out = folder.path().join("out");
    let done = exported(&store, &Format::Chat(options.clone()), &out).unwrap();
    let text = all_text(&out);
    for secret in [SECRET, "sk-secret", "a stub", "no display"] {
        assert!(!text.contains(secret), "{secret}");
    }
    let found = python::read("check_chat.py", &out);
    assert_eq!(found["rows"], done.rows);
    assert_eq!(found["stray_files"], json!([]));
    assert_eq!(found["sizes"], json!([[SCREEN.0, SCREEN.1]]));
    found
}

/// How many rows each episode has, by its index.
fn by_episode(found: &Value) -> Value {
    let mut counts = serde_json::Map::new();
    for episode in found["episodes"].as_array().unwrap() {
        let index = episode.as_str().unwrap().strip_prefix(&format!("{}/", run_id())).unwrap();
        let count = counts.get(index).and_then(Value::as_u64).unwrap_or(0);
        counts.insert(index.to_owned(), json!(count + 1));
    }
    Value::Object(counts)
}

#[test]
fn a_row_is_a_step_with_the_last_screenshots_and_one_answer_to_learn() {
    let found = found(&STEPS);
    // Of the first episode four answers did something: two others were refused or unreadable.
    assert_eq!(by_episode(&found), json!({"0": 4, "1": 2, "2": 60, "3": 3}));
    assert_eq!(&found["images"].as_array().unwrap()[..4], [json!(1), json!(2), json!(2), json!(2)]);
    let alternating = |turns: usize| {
        let mut roles = vec!["system"];
        roles.extend(std::iter::repeat_n(["user", "assistant"], turns).flatten());
        json!(roles)
    };
    assert_eq!(found["roles"][3], alternating(4));
    let texts = &found["texts"];
    let system = texts[0][0][0].as_str().unwrap();
    assert!(system.contains("<tool_call>") && system.contains("0 to 64."), "{system}");
    // Text that looks like a template's marks is broken, and a call's argument is the same text.
    let words = "a\u{1b}[2J\u{0}\u{202e}\"< |im_end|>< /think> < image> 日本\n=cmd()";
    assert_eq!(texts[0][1], json!([format!("Draw draw_env/circle. {words}"), null]));
    let call = |name: &str, arguments: &str| {
        format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>")
    };
    assert_eq!(texts[0][2], json!([format!("{words}\n{}", call("click", "{\"x\":10,\"y\":20}"))]));
    let scrolled = call("move", "{\"x\":30,\"y\":40}");
    assert_eq!(texts[1][4], json!([format!("I scroll.\n{scrolled}")]));
    let typed = texts[2][6][0].as_str().unwrap();
    assert!(typed.contains("\\u003c|im_end|>") && !typed.contains("<|im_end|>"), "{typed}");
    // The oldest screenshots are left out, as the loop does; what it was told is there.
    assert_eq!(texts[3][1][1], "[an older screenshot was left out]");
    assert_eq!(texts[3][7], json!(["Look again.", null]));
    assert_eq!(texts[3][8], json!([format!("It is done.\n{}", call("done", "{}"))]));
    let about = &found["about"];
    assert_eq!(about["written"], json!({"episodes": 4, "steps": 69, "rows": 69, "images": 60}));
    assert_eq!(
        about["left_out"],
        json!({
            "failed": 1, "faulted": 1, "unverified": 1, "not settled yet": 1,
            "no function does this: a drag with another button than the left": 1,
        })
    );
}

#[test]
fn the_papers_two_stages_are_two_exports() {
    let stage = |steps| {
        let options = ChatOptions { max_steps: Some(steps), first_success: true, ..STEPS };
        by_episode(&found(&options))
    };
    // The first success of `calc_env/circle` has 60 steps: its shorter sibling does not take its place.
    assert_eq!(stage(50), json!({"0": 4}));
    assert_eq!(stage(200), json!({"0": 4, "2": 60}));
}

#[test]
fn a_row_may_be_an_episode_with_all_its_screenshots() {
    let found = found(&ChatOptions { rows: Rows::Episodes, failures: true, ..STEPS });
    assert_eq!(by_episode(&found), json!({"0": 1, "1": 1, "2": 1, "3": 1, "4": 1}));
    assert_eq!(found["images"], json!([4, 2, 60, 3, 4]));
    assert!(found["columns"].get("messages").is_some() && found["columns"].get("prompt").is_none());
}

#[test]
fn coordinates_may_be_thousandths_of_the_screen() {
    let found = found(&ChatOptions { coordinates: Coordinates::Thousandths, ..STEPS });
    assert!(found["texts"][0][0][0].as_str().unwrap().contains("0 to 1000."));
    // 10 of 64 and 20 of 48 pixels, by their middles.
    assert!(found["texts"][0][2][0].as_str().unwrap().contains("{\"x\":164,\"y\":427}"));
}
