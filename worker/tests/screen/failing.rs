//! Displays that are not there, or go away.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use longhaul_core::outcome::FaultClass;
use longhaul_worker::screen::{RestRule, Screen, ScreenError, ScreenHandle};
use nix::sys::signal::{Signal, kill};
use serde_json::json;

use crate::server::{HEIGHT, Server, WIDTH, eventually};
use crate::window::{Seen, Window};

#[test]
fn a_socket_that_is_not_there_is_named() {
    let error = Screen::connect(Path::new("/nonexistent/X1"), 10, 10).unwrap_err();
    assert!(matches!(&error, ScreenError::Connect { path, .. } if path == Path::new("/nonexistent/X1")), "{error:?}");
    let fault = error.to_fault();
    assert_eq!(fault.class, FaultClass::Display);
    assert!(fault.message.starts_with("cannot connect to the display at /nonexistent/X1: "), "{}", fault.message);
}

#[test]
fn a_path_longer_than_an_address_is_connected_to() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let deep = folder.path().join("a-folder-with-a-long-name".repeat(8)).join("another".repeat(12));
    std::fs::create_dir_all(&deep).unwrap();
    symlink(server.socket(), deep.join("X1")).unwrap();
    assert!(deep.as_os_str().len() > 200);
    Screen::connect(&deep.join("X1"), WIDTH, HEIGHT).unwrap().capture().unwrap();
}

#[test]
fn a_screen_of_another_size_is_refused() {
    let server = Server::start();
    let error = Screen::connect(&server.socket(), 1920, 1080).unwrap_err();
    assert!(matches!(error, ScreenError::Size { found_width: WIDTH, found_height: HEIGHT, .. }), "{error:?}");
}

#[test]
fn what_is_no_x_server_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("X1");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        use std::io::Write as _;
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    });
    let error = Screen::connect(&socket, WIDTH, HEIGHT).unwrap_err();
    assert!(matches!(error, ScreenError::Refused { .. }), "{error:?}");
}

#[tokio::test]
async fn the_death_of_the_server_is_an_error_of_its_own_in_every_call() {
    let mut server = Server::start();
    let screen = ScreenHandle::connect(&server.socket(), WIDTH, HEIGHT, None).await.unwrap();
    screen.capture().await.unwrap();
    server.kill();
    let error = screen.capture().await.unwrap_err();
    assert!(matches!(error, ScreenError::Lost { .. }), "{error:?}");
    assert_eq!(error.to_fault().class, FaultClass::Display);
    let error = screen.perform(vec![json!({"keyboard": {"text": "x"}})]).await.unwrap_err();
    assert!(matches!(error, ScreenError::Closed), "{error:?}");
}

#[tokio::test]
async fn the_death_of_the_server_ends_a_wait_for_rest() {
    let mut server = Server::start();
    let screen = ScreenHandle::connect(&server.socket(), WIDTH, HEIGHT, None).await.unwrap();
    let forever = Duration::from_secs(3600);
    let rule = RestRule { first_change: forever, limit: forever, ..RestRule::STEP };
    let (rest, ()) = tokio::join!(screen.rest(rule), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        server.kill();
    });
    assert!(matches!(rest, Err(ScreenError::Lost { .. })), "{rest:?}");
}

#[tokio::test]
async fn a_server_that_hangs_is_given_up() {
    let server = Server::start();
    let screen = ScreenHandle::connect(&server.socket(), WIDTH, HEIGHT, None).await.unwrap();
    kill(server.pid(), Signal::SIGSTOP).unwrap();
    let error = screen.capture().await.unwrap_err();
    assert!(matches!(error, ScreenError::Silent { .. }), "{error:?}");
    kill(server.pid(), Signal::SIGCONT).unwrap();
}

#[tokio::test]
async fn a_handle_that_is_dropped_ends_a_wait_that_was_asked_for() {
    let server = Server::start();
    let screen = ScreenHandle::connect(&server.socket(), WIDTH, HEIGHT, None).await.unwrap();
    let actions = vec![json!({"keyboard": {"keys_down": ["shift"]}}), json!({"action": "wait", "time": 60})];
    let window = Window::open(&server);
    let cut = tokio::time::timeout(Duration::from_millis(500), screen.perform(actions)).await;
    assert!(cut.is_err());
    drop(screen);
    let mut seen = Vec::new();
    let released = tokio::task::spawn_blocking(move || {
        eventually("the release of the held key", || {
            seen.extend(window.seen());
            (seen == [Seen::Down(0xffe1, 0), Seen::Up(0xffe1)]).then_some(())
        });
    });
    released.await.unwrap();
}
