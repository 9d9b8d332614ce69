//! Captures, and when the screen is at rest.

use std::io::Cursor;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use longhaul_apptainer::identity;
use longhaul_worker::screen::{Frame, RestRule};
use serde_json::json;

use crate::server::{HEIGHT, Server, WIDTH, eventually};
use crate::window::{Seen, Window};

/// The pixels of a frame's PNG.
fn pixels(frame: &Frame) -> impl Fn(usize, usize) -> [u8; 3] + use<> {
    let mut reader = png::Decoder::new(Cursor::new(frame.png.to_vec())).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!((info.width, info.height), (WIDTH.into(), HEIGHT.into()));
    move |x, y| {
        let start = (y * usize::from(WIDTH) + x) * 3;
        pixels[start..start + 3].try_into().unwrap()
    }
}

/// Both ways to get at the pixels must show the same.
#[test]
fn a_capture_shows_what_was_drawn() {
    for arguments in [&[][..], &["-extension", "MIT-SHM"]] {
        let server = Server::with(arguments);
        let window = Window::open(&server);
        let mut screen = server.screen();
        screen.perform(&[json!({"mouse": {"move": [1000, 700]}})]).unwrap();
        window.paint(0xFF_8000, 100, 50, 30, 20);
        window.paint(0x01_02FE, WIDTH as i16 - 1, HEIGHT as i16 - 1, 1, 1);
        let frame = screen.capture().unwrap();
        let at = pixels(&frame);
        for (x, y, color) in [
            (0, 0, [0x20, 0x40, 0x60]),
            (99, 50, [0x20, 0x40, 0x60]),
            (100, 50, [0xFF, 0x80, 0]),
            (129, 69, [0xFF, 0x80, 0]),
            (130, 69, [0x20, 0x40, 0x60]),
            (1279, 799, [1, 2, 0xFE]),
        ] {
            assert_eq!(at(x, y), color, "{x}, {y}");
        }
    }
}

#[test]
fn a_capture_shows_the_pointer() {
    let server = Server::start();
    let window = Window::open(&server);
    window.paint(0xFF_FFFF, 0, 0, WIDTH, HEIGHT);
    let mut screen = server.screen();
    screen.perform(&[json!({"mouse": {"move": [400, 300]}})]).unwrap();
    let at = pixels(&screen.capture().unwrap());
    let dark = (390..420).flat_map(|x| (290..320).map(move |y| (x, y))).filter(|(x, y)| at(*x, *y) == [0; 3]).count();
    assert!(dark > 10, "{dark} dark pixels where the pointer should be");
    screen.perform(&[json!({"mouse": {"move": [800, 300]}})]).unwrap();
    let at = pixels(&screen.capture().unwrap());
    assert_eq!(at(400, 300), [0xFF; 3]);
}

#[test]
fn an_unchanged_frame_is_not_encoded_again_and_has_the_same_digest() {
    let server = Server::start();
    let window = Window::open(&server);
    let mut screen = server.screen();
    let first = screen.capture().unwrap();
    assert!(!first.unchanged);
    let second = screen.capture().unwrap();
    assert!(second.unchanged);
    assert_eq!(second.screenshot, first.screenshot);
    window.paint(0xFF_0000, 5, 5, 1, 1);
    let third = screen.capture().unwrap();
    assert!(!third.unchanged && third.screenshot != first.screenshot);
    window.paint(0x20_4060, 5, 5, 1, 1);
    let fourth = screen.capture().unwrap();
    assert_eq!((fourth.unchanged, fourth.screenshot), (false, first.screenshot));
}

#[test]
fn a_still_screen_rests_and_one_that_moves_does_not() {
    for arguments in [&[][..], &["-extension", "DAMAGE"]] {
        let server = Server::with(arguments);
        let window = Window::open(&server);
        let mut screen = server.screen();
        // Long enough that a painter who is held up does not look like one who has stopped.
        let quiet = Duration::from_millis(400);
        let rule = RestRule { quiet, first_change: quiet, limit: 4 * quiet, ..RestRule::STEP };
        screen.capture().unwrap();
        assert!(screen.rest(rule).unwrap().rested);
        // The same picture again and again is no change, whatever the server reports.
        let paint = |colors: &[u32], check: &mut dyn FnMut()| {
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for color in colors.iter().cycle() {
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                        window.paint(*color, 200, 200, 40, 40);
                        std::thread::sleep(Duration::from_millis(5));
                    }
                });
                std::thread::sleep(Duration::from_millis(50));
                check();
                stop.store(true, Ordering::Relaxed);
            });
        };
        paint(&[0xAA_BBCC], &mut || assert!(screen.rest(rule).unwrap().rested));
        paint(&[1, 2, 3, 4, 5, 6, 7], &mut || {
            let rest = screen.rest(rule).unwrap();
            assert!(!rest.rested && rest.waited >= rule.limit, "{rest:?}");
        });
        assert!(screen.rest(RestRule::STEP).unwrap().rested);
    }
}

#[test]
fn a_pointer_that_moves_does_not_keep_the_screen_from_resting() {
    let server = Server::start();
    let _window = Window::open(&server);
    let mut screen = server.screen();
    let mut other = server.screen();
    screen.capture().unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for x in (0..1000).cycle().step_by(3) {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                other.perform(&[json!({"mouse": {"move": [x, 200]}})]).unwrap();
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let rest = screen.rest(RestRule::STEP).unwrap();
        stop.store(true, Ordering::Relaxed);
        assert!(rest.rested, "{rest:?}");
    });
}

#[test]
fn a_step_waits_for_what_its_action_causes() {
    let server = Server::start();
    let window = Window::open(&server);
    let mut screen = server.screen();
    screen.capture().unwrap();
    let stepped = std::thread::scope(|scope| {
        scope.spawn(|| {
            eventually("the click", || window.seen().iter().any(|seen| matches!(seen, Seen::Press(..))).then_some(()));
            window.paint(0x00_FF00, 0, 0, 50, 50);
        });
        let rule = RestRule { first_change: Duration::from_millis(1500), ..RestRule::STEP };
        screen.step(&[json!({"mouse": {"left_click": [600, 600]}})], rule).unwrap()
    });
    assert!(stepped.rest.rested && stepped.performed.injected);
    assert_eq!(pixels(&stepped.frame)(10, 10), [0, 0xFF, 0]);
}

/// A program that computes before it draws: the screen is still all the while.
#[test]
fn a_still_screen_is_not_at_rest_while_something_behind_it_works() {
    let server = Server::start();
    let mut screen = server.screen();
    screen.capture().unwrap();
    let compute = "i=0; while [ $i -lt 2000000 ]; do i=$((i+1)); done; exec xsetroot -solid '#00ff00'";
    let program = server.spawn("sh", &["-c", compute]);
    let pid = program.pid();
    screen.watch_work(Box::new(move || identity::works(pid)));
    let limit = Duration::from_secs(60);
    let rest = screen.rest(RestRule { working: limit, limit, ..RestRule::BETWEEN }).unwrap();
    assert!(rest.rested, "{rest:?}");
    assert_eq!(pixels(&screen.capture().unwrap())(10, 10), [0, 0xFF, 0]);
}
