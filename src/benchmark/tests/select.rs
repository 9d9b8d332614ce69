//! Picking tasks.

use serde_json::json;

use super::Small;
use crate::benchmark::{Depth, Selected, Selection, parse_quarantine, select};

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
fn what_is_in_quarantine_is_left_out_before_the_limit_and_a_name_that_is_nowhere_is_told() {
    let quarantine = parse_quarantine("calc_env/sum_up  # slow\npaint_env/draw_lime\n").unwrap();
    let selection = Selection { envs: all(&["calc_env"]), limit: Some(1), quarantine, ..Selection::default() };
    let mut selected = pick(&selection).unwrap();
    assert_eq!(selected.tasks.remove(0).to_string(), "calc_env/draw_line");
    assert_eq!(selected.quarantined.iter().map(ToString::to_string).collect::<Vec<_>>(), ["calc_env/sum_up"]);
    let selection = Selection { limit: Some(1), shuffle: Some(1), tasks: all(&["calc_env/*"]), ..selection };
    assert_eq!(names(&selection), ["calc_env/draw_line"]);
    let [(name, hint)] = selected.unknown.as_slice() else { panic!("{:?}", selected.unknown) };
    assert_eq!(
        (name.to_string().as_str(), hint.as_str()),
        ("paint_env/draw_lime", "; did you mean `paint_env/draw_line`?")
    );
    let said = pick(&Selection { tasks: all(&["calc_env/sum_up"]), ..selection }).unwrap_err();
    assert!(said.contains("no task is left: all that can be run of what was asked for (1) is in quarantine"), "{said}");
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
        (
            Selection { tasks: all(&["paint_env/sing"]), ..Selection::default() },
            "no task matches `paint_env/sing`; `paint_env` has 4 tasks: `draw_line`, `erase_all`, `fill_shape`, ...; \
             splits: test (3), train (1)",
        ),
        (
            Selection { tasks: all(&["film_env/cut"]), ..Selection::default() },
            "`film_env/cut`; the benchmark has 2 envs: `calc_env`, `paint_env`; splits: test (3), train (1)",
        ),
        (
            Selection { tasks: all(&["cals_env/everything_at_once"]), ..Selection::default() },
            "; there is no env `cals_env`; did you mean `calc_env`?; splits: ",
        ),
        (Selection { envs: all(&["film*"]), ..Selection::default() }, "; the benchmark has 2 envs: `calc_env`"),
        (Selection { tasks: all(&["[/x"]), ..Selection::default() }, "is no pattern of task"),
        (Selection { envs: all(&["pain_env"]), ..Selection::default() }, "did you mean `paint_env`?"),
        (Selection { difficulties: all(&["mad"]), ..Selection::default() }, "has the difficulty `mad`"),
        (Selection { tags: all(&["mad"]), ..Selection::default() }, "has the tag `mad`"),
        (
            Selection { split: Some("train".to_owned()), envs: all(&["calc_env"]), ..Selection::default() },
            "no task is in all of the split, the envs and the patterns that were asked for; splits: test (3), train (1)",
        ),
    ];
    for (selection, words) in cases {
        let said = pick(&selection).unwrap_err();
        assert!(said.contains(words), "{said}");
    }
}
