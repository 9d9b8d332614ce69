//! What a step costs beside the agent and the wait for rest: injecting, capturing,
//! encoding, at 1920x1080 on Xvfb with a terminal full of colored text.
//!
//! `cargo bench -p longhaul-worker --bench step_overhead --profile dev` prints a table of
//! medians. It needs Xvfb and xterm.

#![expect(clippy::print_stdout, reason = "the table is what it is for")]

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use longhaul_worker::screen::{RestRule, Screen, ScreenError};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde_json::{Value, json};

const WIDTH: u16 = 1920;
const HEIGHT: u16 = 1080;
const ROUNDS: u32 = 40;

/// A program that ends with the value.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // `cargo test --benches` and nextest list tests by running this with arguments.
    if std::env::args().any(|argument| argument == "--list") {
        return Ok(());
    }
    let number = 60_000 + std::process::id() % 5000;
    let socket = PathBuf::from(format!("/tmp/.X11-unix/X{number}"));
    let _server = Program(
        Command::new("Xvfb")
            .args([&format!(":{number}"), "-screen", "0", &format!("{WIDTH}x{HEIGHT}x24")])
            .args(["-nolisten", "tcp", "-nolisten", "local", "-ac", "-noreset"])
            .stderr(Stdio::null())
            .spawn()?,
    );
    wait_until("the server", || UnixStream::connect(&socket).is_ok())?;
    let fill = "for i in $(seq 400); do printf '\\033[3%dm%s ' $((i % 8)) \"$(echo $i | md5sum)\"; done; exec cat";
    let terminal = terminal_with(number, fill)?;
    let mut screen = Screen::connect(&socket, WIDTH, HEIGHT)?;
    let empty = screen.capture()?.png.len();
    wait_until("the terminal", || screen.capture().is_ok_and(|frame| frame.png.len() > 4 * empty))?;
    screen.rest(RestRule::STEP)?;

    println!("{WIDTH}x{HEIGHT}, medians of {ROUNDS}, in milliseconds\n");
    println!("| step | inject | capture and encode | together | of it our processor time | PNG |");
    println!("|---|---|---|---|---|---|");
    let mut side = 0;
    let mut moved = || {
        side = 700 - side;
        json!({"mouse": {"move": [300 + side, 500]}})
    };
    row(&mut screen, "move", &mut moved)?;
    let mut x = 300;
    let mut clicked = || {
        // Apart, so that no click waits to be told from the one before.
        x = 300 + (x + 50) % 900;
        json!({"mouse": {"left_click": [x, 400]}})
    };
    row(&mut screen, "click", &mut clicked)?;
    row(&mut screen, "key", &mut || json!({"keyboard": {"keys": "a"}}))?;
    row(&mut screen, "text, 10 characters", &mut || json!({"keyboard": {"text": "Good day. "}}))?;
    row(&mut screen, "none, nothing changed", &mut || json!({"action": "screenshot"}))?;

    println!("\n| waiting 2 s for rest | processor time of the worker |");
    println!("|---|---|");
    watch(&mut screen, "a still screen")?;
    drop(terminal);
    let _scrolling = terminal_with(number, "while :; do date; done")?;
    wait_until("the scrolling", || screen.rest(RestRule::BETWEEN).is_ok_and(|rest| !rest.rested))?;
    watch(&mut screen, "a full screen of text that scrolls without end")?;
    Ok(())
}

/// Measures one kind of step.
fn row(screen: &mut Screen, name: &str, action: &mut dyn FnMut() -> Value) -> Result<(), ScreenError> {
    let mut times = [const { Vec::new() }; 4];
    let mut bytes = 0;
    for _ in 0..ROUNDS {
        screen.rest(RestRule::STEP)?;
        let actions = [action()];
        let before = processor_time();
        let performed = screen.perform(&actions)?;
        let injecting = processor_time() - before;
        screen.rest(RestRule::STEP)?;
        let (before, start) = (processor_time(), Instant::now());
        let frame = screen.capture()?;
        let captured = start.elapsed();
        bytes = frame.png.len();
        let processor = injecting + (processor_time() - before);
        for (all, one) in times.iter_mut().zip([performed.took, captured, performed.took + captured, processor]) {
            all.push(one);
        }
    }
    let [inject, capture, together, processor] = times.map(|all| median(all).as_secs_f64() * 1e3);
    let size = bytes / 1000;
    println!("| {name} | {inject:.2} | {capture:.2} | {together:.2} | {processor:.2} | {size} KB |");
    Ok(())
}

/// Starts a terminal over the whole screen in which a shell command runs.
fn terminal_with(number: u32, command: &str) -> std::io::Result<Program> {
    Command::new("xterm")
        .args(["-geometry", "320x84+0+0", "-e", "sh", "-c", command])
        .env("DISPLAY", format!(":{number}"))
        .stderr(Stdio::null())
        .spawn()
        .map(Program)
}

/// Measures what it costs to wait for rest.
fn watch(screen: &mut Screen, name: &str) -> Result<(), ScreenError> {
    let long = Duration::from_secs(2);
    let rule = RestRule { quiet: long, first_change: long, limit: long, ..RestRule::STEP };
    let before = processor_time();
    screen.rest(rule)?;
    println!("| {name} | {:.1} ms |", (processor_time() - before).as_secs_f64() * 1e3);
    Ok(())
}

/// The processor time of this thread up to now.
fn processor_time() -> Duration {
    getrusage(UsageWho::RUSAGE_THREAD)
        .map(|usage| (usage.user_time() + usage.system_time()).num_microseconds())
        .map_or(Duration::ZERO, |micros| Duration::from_micros(micros.unsigned_abs()))
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) -> Result<(), String> {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        if Instant::now() > deadline {
            return Err(format!("{what} did not come up"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
