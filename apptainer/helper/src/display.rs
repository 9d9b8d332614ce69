//! The display: Xvfb `:1`, a session bus and a window manager.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use longhaul_core::helper::DisplayState;

use crate::accounts::{Account, Accounts};
use crate::exec;
use crate::reaper::{Reaper, Watched};

/// Where X servers listen; bound from a private folder of the host.
const SOCKETS: &str = "/tmp/.X11-unix";
const SOCKET: &str = "/tmp/.X11-unix/X1";
const LOCK: &str = "/tmp/.X1-lock";

/// Logs of what the helper itself starts.
const LOGS: &str = "/run/longhaul";

/// The account of the desktop.
pub(crate) const DESKTOP_ACCOUNT: &str = "ga";

/// How long the server, and then the window manager, may take to come up. Many sandboxes
/// that start together on few processors need far more than one alone.
const START_TIME: Duration = Duration::from_secs(60);

/// The size of what is shown of a log.
const LOG_TAIL: u64 = 4096;

/// Why the display is not there.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DisplayError {
    #[error("`{program}` could not be started")]
    Start { program: &'static str, source: io::Error },
    #[error("no account `{DESKTOP_ACCOUNT}`")]
    NoAccount,
    #[error("the display server ended at once with code {code}: {log}")]
    Ended { code: i32, log: String },
    #[error("no client could connect to the display within {} s: {log}", START_TIME.as_secs())]
    Silent { log: String },
    #[error("the window manager did not come up: {log}")]
    NoWindowManager { log: String },
    #[error("a display of {} x {} runs already", .0.0, .0.1)]
    OtherSize((u16, u16)),
    #[error("{path}")]
    Folder { path: &'static str, source: io::Error },
}

/// The display of a sandbox; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Display(Arc<Mutex<State>>);

#[derive(Debug, Default)]
enum State {
    #[default]
    Off,
    Up {
        size: (u16, u16),
        pids: HashSet<i32>,
    },
    Died {
        log: String,
    },
}

impl Display {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is whole after any panic: each change to it is one assignment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The processes that are the display and not a program's.
    pub(crate) fn pids(&self) -> HashSet<i32> {
        match &*self.lock() {
            State::Up { pids, .. } => pids.clone(),
            State::Off | State::Died { .. } => HashSet::new(),
        }
    }

    /// How it is.
    pub(crate) fn state(&self) -> DisplayState {
        match &*self.lock() {
            State::Off => DisplayState::Off,
            State::Up { .. } => DisplayState::Up,
            State::Died { log } => DisplayState::Died { log: log.clone() },
        }
    }

    /// Notes that it is being ended on purpose.
    pub(crate) fn forget(&self) {
        *self.lock() = State::Off;
    }

    /// Starts it, and returns when a client can connect and windows are managed. One that
    /// runs already in this size is left alone.
    pub(crate) fn start(&self, reaper: &Reaper, size: (u16, u16)) -> Result<(), DisplayError> {
        // Held to the end: of two callers, the second finds the first one's display.
        let mut state = self.lock();
        if let State::Up { size: running, .. } = &*state {
            return if *running == size { Ok(()) } else { Err(DisplayError::OtherSize(*running)) };
        }
        let accounts =
            Accounts::read(Path::new("/")).map_err(|source| DisplayError::Folder { path: "/etc/passwd", source })?;
        let root = accounts.by_uid(0).ok_or(DisplayError::NoAccount)?;
        let desktop = accounts.find(DESKTOP_ACCOUNT).ok_or(DisplayError::NoAccount)?;
        let mut pids = HashSet::new();
        let mut server = start_server(reaper, &root, size)?;
        pids.insert(server.pid());
        wait_for_server(&mut server)?;
        if let Some(bus) = start_bus(reaper, &desktop)? {
            pids.insert(bus);
        }
        pids.insert(start_window_manager(reaper, &desktop)?);
        *state = State::Up { size, pids };
        drop(state);
        let display = self.clone();
        thread::spawn(move || {
            let code = server.wait();
            let mut state = display.lock();
            if matches!(*state, State::Up { .. }) {
                *state = State::Died { log: format!("ended with code {code}\n{}", log_tail("Xvfb")) };
            }
        });
        Ok(())
    }
}

fn start_server(reaper: &Reaper, root: &Account, (width, height): (u16, u16)) -> Result<Watched, DisplayError> {
    let folder = |source| DisplayError::Folder { path: SOCKETS, source };
    fs::create_dir_all(SOCKETS).map_err(folder)?;
    fs::set_permissions(SOCKETS, fs::Permissions::from_mode(0o1777)).map_err(folder)?;
    for stale in [SOCKET, LOCK] {
        match fs::remove_file(stale) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(folder(error)),
            _ => {}
        }
    }
    let screen = format!("{width}x{height}x24");
    // No TCP and no abstract socket: displays of other sandboxes are called `:1` too.
    let argv = [
        "Xvfb",
        ":1",
        "-screen",
        "0",
        &screen,
        "-nolisten",
        "tcp",
        "-nolisten",
        "local",
        "-ac",
        "-s",
        "0",
        "+extension",
        "GLX",
        "+render",
        "-noreset",
    ];
    // As root, so that a program of the desktop cannot end the display that it is seen on.
    spawn(reaper, root, &argv, "Xvfb").map(|(watched, _)| watched)
}

/// Waits until the server answers a client's first words.
fn wait_for_server(server: &mut Watched) -> Result<(), DisplayError> {
    let end = Instant::now() + START_TIME;
    loop {
        if greet(Path::new(SOCKET)) {
            return Ok(());
        }
        if ended(server) {
            return Err(DisplayError::Ended { code: server.wait(), log: log_tail("Xvfb") });
        }
        if Instant::now() >= end {
            return Err(DisplayError::Silent { log: log_tail("Xvfb") });
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn ended(server: &Watched) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut watched = [PollFd::new(server.exit_fd(), PollFlags::POLLIN)];
    poll(&mut watched, PollTimeout::ZERO).is_ok_and(|count| count > 0)
}

/// Whether an X server accepts a client on this socket.
fn greet(socket: &Path) -> bool {
    /// Little-endian, protocol 11.0, no authorisation.
    const HELLO: [u8; 12] = [b'l', 0, 11, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let accepted = || -> io::Result<bool> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(&HELLO)?;
        let mut answer = [0; 8];
        stream.read_exact(&mut answer)?;
        Ok(answer.first() == Some(&1))
    };
    accepted().unwrap_or(false)
}

/// Starts the desktop's session bus, if there is a program for it and a place.
fn start_bus(reaper: &Reaper, desktop: &Account) -> Result<Option<i32>, DisplayError> {
    let runtime = format!("/run/user/{}", desktop.uid);
    if !Path::new("/usr/bin/dbus-daemon").exists() || !Path::new(&runtime).is_dir() {
        return Ok(None);
    }
    let bus = format!("{runtime}/bus");
    let address = format!("--address=unix:path={bus}");
    let argv = ["dbus-daemon", "--session", &address, "--nofork", "--nopidfile", "--nosyslog"];
    let (watched, _) = spawn(reaper, desktop, &argv, "dbus-daemon")?;
    let end = Instant::now() + START_TIME;
    while !Path::new(&bus).exists() && !ended(&watched) && Instant::now() < end {
        thread::sleep(Duration::from_millis(5));
    }
    Ok(Some(watched.pid()))
}

/// Starts the window manager, and waits until it manages windows.
///
/// openbox runs the startup command as the last thing before its main loop. The sign that
/// other programs look for (`_NET_SUPPORTING_WM_CHECK`) comes earlier, and a window that is
/// opened between the two is left unmanaged until something else happens on the screen.
fn start_window_manager(reaper: &Reaper, desktop: &Account) -> Result<i32, DisplayError> {
    // The pointer is an arrow and the screen has a colour from the first picture on.
    let argv = ["xsetroot", "-solid", "#3b5166", "-cursor_name", "left_ptr"];
    let (mut painter, _) = spawn(reaper, desktop, &argv, "xsetroot")?;
    painter.wait();
    let ready = format!("/run/user/{}/window-manager-ready", desktop.uid);
    let _ = fs::remove_file(&ready);
    let (watched, _) = spawn(reaper, desktop, &["openbox", "--startup", &format!("touch {ready}")], "openbox")?;
    let end = Instant::now() + START_TIME;
    while !Path::new(&ready).exists() {
        if ended(&watched) || Instant::now() >= end {
            return Err(DisplayError::NoWindowManager { log: log_tail("openbox") });
        }
        thread::sleep(Duration::from_millis(5));
    }
    // It has told what it had to tell.
    let _ = fs::remove_file(&ready);
    Ok(watched.pid())
}

fn spawn(
    reaper: &Reaper,
    account: &Account,
    argv: &[&str],
    program: &'static str,
) -> Result<(Watched, std::process::Child), DisplayError> {
    let start = || {
        let argv: Vec<String> = argv.iter().map(|word| (*word).to_owned()).collect();
        let env: BTreeMap<String, String> = exec::environment(account);
        let mut command: Command = exec::command(account, &argv, &env, None)?;
        let log = open_log(program)?;
        command.stdout(log.try_clone()?).stderr(log);
        reaper.spawn(&mut command)
    };
    start().map_err(|source| DisplayError::Start { program, source })
}

fn log_path(program: &str) -> String {
    format!("{LOGS}/{program}.log")
}

fn open_log(program: &str) -> io::Result<File> {
    fs::create_dir_all(LOGS)?;
    OpenOptions::new().create(true).append(true).mode(0o644).open(log_path(program))
}

/// The end of a program's log, for people.
fn log_tail(program: &str) -> String {
    let read = || -> io::Result<Vec<u8>> {
        use std::io::{Seek, SeekFrom};
        let mut file = File::open(log_path(program))?;
        let size = file.metadata()?.len();
        file.seek(SeekFrom::Start(size.saturating_sub(LOG_TAIL)))?;
        let mut bytes = Vec::new();
        file.take(LOG_TAIL).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().map_or_else(|error| format!("(no log: {error})"), |bytes| String::from_utf8_lossy(&bytes).trim().to_owned())
}
