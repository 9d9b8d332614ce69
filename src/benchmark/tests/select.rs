//! Picking tasks.

use serde_json::json;

use super::Small;
use crate::benchmark::{Depth, Selected, Selection, select};

fn small() -> Small {
    let small = Small::new();
    for task in ["fill_shape", "erase_all", "zoom_in"] {
        small.add_task("paint_env", task);
    }
    small.add_env("calc_env");
    small.add_task("calc_env", "draw_line");
    small.add_task("calc_env", "sum_up");
    small.write_env("calc_env", |spec| spec["tags"] = json!(["office"]));
    small.write_task("calc_env", "sum_up", |spec| {
        spec["difficulty"] = json!("Very Hard");
        spec["tags"] = json!(["money"]);
    });
    small.write(
        "splits/a_split.json",
        r#"{"env_folder": "paint_env", "test_tasks": ["zoom_in", "gone"], "train_tasks": ["fill_shape"]}"#,
    );
    small.write("splits/b_split.json", r#"{"env_folder": "calc_env", "test_tasks": ["sum_up"]}"#);
    small.write("environments/paint_env/tasks/erase_all/task.json", "{");
    small
}

fn pick(selection: &Selection) -> Result<Selected, String> {
    select(&small().read(Depth::Specs), selection).map_err(|error| error.to_string())
}

fn names(selection: &Selection) -> Vec<String> {
    pick(selection).unwrap().tasks.iter().map(ToString::to_string).collect()
}

fn all(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn everything_is_picked_where_nothing_is_asked_and_refused_tasks_are_named() {
    let selected = pick(&Selection::default()).unwrap();
    assert_eq!(selected.tasks.len(), 5);
    assert_eq!(selected.refused.len(), 1);
    assert!(selected.refused[0].1.contains("tasks/erase_all/task.json:1:"), "{}", selected.refused[0].1);
}

#[test]
fn filters_narrow_together() {
    let test = Selection { split: Some("test".to_owned()), ..Selection::default() };
    assert_eq!(names(&test), ["calc_env/sum_up", "paint_env/zoom_in"]);
    assert_eq!(pick(&test).unwrap().refused[0].0.to_string(), "paint_env/gone");
    assert_eq!(names(&Selection { envs: all(&["paint*"]), ..test.clone() }), ["paint_env/zoom_in"]);
    assert_eq!(names(&Selection { tags: all(&["drawing"]), ..test.clone() }), ["paint_env/zoom_in"]);
    assert_eq!(names(&Selection { tags: all(&["Money"]), ..Selection::default() }), ["calc_env/sum_up"]);
    assert_eq!(names(&Selection { difficulties: all(&["very_hard"]), ..test }), ["calc_env/sum_up"]);
    let tasks = Selection { tasks: all(&["*/draw_line", "paint_env/z*"]), ..Selection::default() };
    assert_eq!(names(&tasks), ["calc_env/draw_line", "paint_env/draw_line", "paint_env/zoom_in"]);
}

#[test]
fn a_shuffled_order_is_the_same_everywhere_and_for_any_subset() {
    let order =
        |seed, envs: &[&str]| names(&Selection { shuffle: Some(seed), envs: all(envs), ..Selection::default() });
    let whole = order(1, &[]);
    assert_eq!(whole, order(1, &[]));
    assert_ne!(whole, order(2, &[]));
    let part: Vec<_> = whole.iter().filter(|name| name.starts_with("paint")).cloned().collect();
    assert_eq!(order(1, &["paint_env"]), part);
    let limited = names(&Selection { shuffle: Some(1), limit: Some(2), ..Selection::default() });
    assert_eq!(limited, whole[..2]);
}

#[test]
fn what_picks_nothing_says_why() {
    let cases = [
        (Selection { split: Some("tset".to_owned()), ..Selection::default() }, "there are: test (3), train (1)"),
        (Selection { tasks: all(&["paint_env/zoom_im"]), ..Selection::default() }, "did you mean `paint_env/zoom_in`?"),
        (
            Selection { tasks: all(&["draw_line"]), ..Selection::default() },
            "`calc_env/draw_line`, `paint_env/draw_line`",
        ),
        (Selection { tasks: all(&["[/x"]), ..Selection::default() }, "is no pattern of task"),
        (Selection { envs: all(&["pain_env"]), ..Selection::default() }, "did you mean `paint_env`?"),
        (Selection { difficulties: all(&["mad"]), ..Selection::default() }, "has the difficulty `mad`"),
        (Selection { tags: all(&["mad"]), ..Selection::default() }, "has the tag `mad`"),
        (
            Selection { split: Some("train".to_owned()), envs: all(&["calc_env"]), ..Selection::default() },
            "no task is in all of the split",
        ),
    ];
    for (selection, words) in cases {
        let said = pick(&selection).unwrap_err();
        assert!(said.contains(words), "{said}");
    }
}
