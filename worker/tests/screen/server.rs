//! An X server for one test, and programs on it.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use longhaul_worker::screen::Screen;

pub(crate) const WIDTH: u16 = 1280;
pub(crate) const HEIGHT: u16 = 800;

/// A running Xvfb; it ends with the value.
pub(crate) struct Server {
    process: Child,
    number: u32,
}

impl Server {
    /// Starts a server on a free display number.
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// As [`Server::start`], with more arguments.
    pub(crate) fn with(arguments: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        for _ in 0..50 {
            // Numbers are taken by lock files, which the server does not look at when it
            // is asked to find a number itself (-displayfd): two would share a display.
            let number = 1000 + (std::process::id() * 7 + COUNT.fetch_add(1, Ordering::Relaxed)) % 50_000;
            if let Some(server) = Self::at(number, arguments) {
                return server;
            }
        }
        panic!("no server would start")
    }

    fn at(number: u32, arguments: &[&str]) -> Option<Self> {
        let process = Command::new("Xvfb")
            .args([&format!(":{number}"), "-screen", "0", &format!("{WIDTH}x{HEIGHT}x24")])
            .args(["-nolisten", "tcp", "-nolisten", "local", "-ac", "-noreset"])
            .args(arguments)
            .stderr(Stdio::null())
            .spawn()
            .expect("these tests need Xvfb (Debian: xvfb)");
        let mut server = Self { process, number };
        eventually("the server's start", || {
            if server.process.try_wait().unwrap().is_some() {
                return Some(false);
            }
            UnixStream::connect(server.socket()).is_ok().then_some(true)
        })
        .then_some(server)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        Path::new("/tmp/.X11-unix").join(format!("X{}", self.number))
    }

    pub(crate) fn display(&self) -> String {
        format!(":{}", self.number)
    }

    pub(crate) fn screen(&self) -> Screen {
        Screen::connect(&self.socket(), WIDTH, HEIGHT).unwrap()
    }

    pub(crate) fn pid(&self) -> nix::unistd::Pid {
        nix::unistd::Pid::from_raw(self.process.id().try_into().unwrap())
    }

    /// Runs a program on the display to its end.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) {
        let status = Command::new(program).args(arguments).env("DISPLAY", self.display()).status();
        assert!(status.unwrap_or_else(|error| panic!("{program}: {error}")).success(), "{program} {arguments:?}");
    }

    /// Loads a keyboard layout.
    pub(crate) fn layout(&self, arguments: &[&str]) {
        self.run("setxkbmap", arguments);
    }

    /// Starts a program on the display; it ends with the value.
    pub(crate) fn spawn(&self, program: &str, arguments: &[&str]) -> Program {
        let mut command = Command::new(program);
        command.args(arguments).env("DISPLAY", self.display()).env("LC_ALL", "C.UTF-8").stderr(Stdio::null());
        Program(command.spawn().unwrap_or_else(|error| panic!("{program}: {error}")))
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// A running program.
pub(crate) struct Program(Child);

impl Program {
    pub(crate) fn pid(&self) -> i32 {
        self.0.id().try_into().unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Waits until `found` finds something; fails the test after ten seconds without it.
pub(crate) fn eventually<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(value) = found() {
            return value;
        }
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(20));
    }
}
