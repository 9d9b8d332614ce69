//! The pointer.

use longhaul_core::step::ActionOutcome;
use serde_json::json;

use crate::server::{HEIGHT, Server, WIDTH};
use crate::window::{Seen, Window};

#[test]
fn clicks_are_counted_and_come_where_they_should() {
    let server = Server::start();
    let window = Window::open(&server);
    let mut screen = server.screen();
    for (name, button, count) in [
        ("left_click", 1, 1),
        ("middle_click", 2, 1),
        ("right_click", 3, 1),
        ("double_click", 1, 2),
        ("triple_click", 1, 3),
    ] {
        let outcomes = screen.perform(&[json!({"mouse": {name: [640, 400]}})]).unwrap().outcomes;
        assert_eq!(outcomes, [ActionOutcome::Done]);
        let click = [Seen::Press(button, 640, 400), Seen::Release(button, 640, 400)];
        assert_eq!(window.seen_but_moves(), click.repeat(count), "{name}");
    }
}

/// The server's times of the presses.
fn presses(window: &Window) -> Vec<u32> {
    let presses = |(seen, time)| matches!(seen, Seen::Press(..)).then_some(time);
    window.seen_with_times().into_iter().filter_map(presses).collect()
}

#[test]
fn the_clicks_of_a_double_click_are_close_and_those_of_two_actions_are_not() {
    let server = Server::start();
    let window = Window::open(&server);
    let mut screen = server.screen();
    screen.perform(&[json!({"mouse": {"double_click": [10, 10]}})]).unwrap();
    let times = presses(&window);
    assert!(times[1] - times[0] < 400, "{times:?}");
    let click = json!({"mouse": {"left_click": [500, 500]}});
    screen.perform(&[click.clone(), click]).unwrap();
    let times = presses(&window);
    assert!(times[1] - times[0] > 500, "{times:?}");
}

#[test]
fn a_drag_moves_between_press_and_release() {
    let server = Server::start();
    let window = Window::open(&server);
    let mut screen = server.screen();
    screen.perform(&[json!({"mouse": {"left_click_drag": [[100, 100], [700, 400]]}})]).unwrap();
    let seen = window.seen();
    let pressed = seen.iter().position(|seen| *seen == Seen::Press(1, 100, 100)).unwrap();
    let released = seen.iter().position(|seen| *seen == Seen::Release(1, 700, 400)).unwrap();
    let moves = &seen[pressed + 1..released];
    assert!(moves.len() >= 10 && moves.iter().all(|seen| matches!(seen, Seen::Move(..))), "{seen:?}");
    assert_eq!(moves.last(), Some(&Seen::Move(700, 400)));
    assert_eq!(released, seen.len() - 1);
}

#[test]
fn the_wheel_turns_as_often_as_asked() {
    let server = Server::start();
    let window = Window::open(&server);
    let mut screen = server.screen();
    screen.perform(&[json!({"mouse": {"move": [50, 60]}}), json!({"mouse": {"scroll": 3}})]).unwrap();
    screen.perform(&[json!({"mouse": {"scroll": -2}})]).unwrap();
    let turn = |button| [Seen::Press(button, 50, 60), Seen::Release(button, 50, 60)];
    assert_eq!(window.seen_but_moves(), [turn(5), turn(5), turn(5), turn(4), turn(4)].concat());
    let outcomes = screen.perform(&[json!({"mouse": {"scroll": 50_000}})]).unwrap().outcomes;
    assert!(matches!(outcomes.as_slice(), [ActionOutcome::Error(_)]));
    assert_eq!(window.seen(), []);
}

#[test]
fn buttons_are_held_until_they_are_released() {
    let server = Server::start();
    let window = Window::open(&server);
    let mut screen = server.screen();
    let outcomes = screen
        .perform(&[
            json!({"mouse": {"move": [10, 10]}}),
            json!({"mouse": {"buttons": {"left_down": true}}}),
            json!({"mouse": {"move": [20, 20]}}),
            json!({"mouse": {"buttons": {"left_up": true}}}),
            json!({"mouse": {"buttons": {"right_down": true}}}),
        ])
        .unwrap()
        .outcomes;
    assert_eq!(outcomes, vec![ActionOutcome::Done; 5]);
    assert_eq!(window.seen_but_moves(), [Seen::Press(1, 10, 10), Seen::Release(1, 20, 20), Seen::Press(3, 20, 20)]);
    screen.release_all().unwrap();
    assert_eq!(window.seen(), [Seen::Release(3, 20, 20)]);
}

#[test]
fn a_point_beyond_the_screen_is_an_error_and_the_next_action_is_done() {
    let server = Server::start();
    let window = Window::open(&server);
    let mut screen = server.screen();
    let actions = [
        json!({"mouse": {"left_click": [WIDTH, 5]}}),
        json!({"mouse": {"left_click": [5, -1]}}),
        json!({"mouse": {"left_click_drag": [[5, 5], [5, HEIGHT]]}}),
        json!({"mouse": {"wheel": 1}}),
        json!({"mouse": {"left_click": [WIDTH - 1, HEIGHT - 1]}}),
    ];
    let outcomes = screen.perform(&actions).unwrap().outcomes;
    assert_eq!(outcomes[0], ActionOutcome::Error("[1280, 5] is beyond the screen of 1280x800".to_owned()));
    assert!(outcomes[..4].iter().all(|outcome| matches!(outcome, ActionOutcome::Error(_))), "{outcomes:?}");
    assert_eq!(outcomes[4], ActionOutcome::Done);
    assert_eq!(window.seen_but_moves(), [Seen::Press(1, 1279, 799), Seen::Release(1, 1279, 799)]);
}

#[test]
fn the_mouse_of_an_action_goes_before_its_keyboard() {
    let server = Server::start();
    let window = Window::open(&server);
    let mut screen = server.screen();
    screen.perform(&[json!({"keyboard": {"keys": "x"}, "mouse": {"left_click": [9, 9]}})]).unwrap();
    let wanted = [Seen::Press(1, 9, 9), Seen::Release(1, 9, 9), Seen::Down(0x78, 0), Seen::Up(0x78)];
    assert_eq!(window.seen_but_moves(), wanted);
}
