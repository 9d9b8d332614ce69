//! Serving the worker: the helper's main loop.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use longhaul_core::helper::{
    CONTROL_SOCKET, CommandSpec, HELPER_PROTOCOL, HELPER_SOCKETS, HelperAnswer, HelperFailure, HelperRequest,
};
use longhaul_core::text::chain;

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

use crate::accounts::Accounts;
use crate::display::{DESKTOP_ACCOUNT, Display};
use crate::frames::{DataReader, DataWriter, read_request, write_answer};
use crate::reaper::Reaper;
use crate::units::{SYSTEMCTL, UNITS_FOLDER};
use crate::{exec, files, os, processes, sudo, units};

/// How long a unit may take to start when a sandbox starts.
const UNIT_START: Duration = Duration::from_secs(90);

/// What TERM is given when the sandbox is told to end, or its worker is gone.
const END_GRACE: Duration = Duration::from_millis(500);

/// What every connection works with.
#[derive(Clone, Debug)]
struct Helper {
    reaper: Reaper,
    display: Display,
}

/// Serves until told to end, or until the worker's end of standard input is closed.
pub(crate) fn serve() -> i32 {
    if nix::unistd::getpid().as_raw() != 1 {
        os::complain("helper: it serves only as the first process of a sandbox");
        return 2;
    }
    let reaper = Reaper::start();
    let helper = Helper { reaper: reaper.clone(), display: Display::default() };
    if let Err(error) = prepare(&reaper) {
        os::complain(&format!("helper: the sandbox could not be prepared: {error}"));
        return 1;
    }
    let socket = Path::new(HELPER_SOCKETS).join(CONTROL_SOCKET);
    let listener = match listen(&socket) {
        Ok(listener) => listener,
        Err(error) => {
            os::complain(&format!("helper: {}: {error}", socket.display()));
            return 1;
        }
    };
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let helper = helper.clone();
            thread::spawn(move || helper.converse(stream));
        }
    });
    // The worker holds the other end: when it dies, however it dies, this ends too.
    let mut lifeline = io::stdin().lock();
    let mut byte = [0];
    loop {
        match lifeline.read(&mut byte) {
            Ok(0) => break,
            Err(error) if error.kind() != io::ErrorKind::Interrupted => break,
            _ => {}
        }
    }
    processes::kill_all(END_GRACE);
    0
}

/// Binds the control socket: for root of this sandbox only, which is the worker's account
/// outside.
fn listen(socket: &Path) -> io::Result<UnixListener> {
    match fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // Made under another name first: a worker that waits for it never meets a socket
    // that is not ready or open to others.
    let fresh = socket.with_extension("new");
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&fresh)?;
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o600))?;
    fs::rename(&fresh, socket)?;
    Ok(listener)
}

/// Makes the root look as after a boot: nothing runs, so nothing may say that it does.
fn prepare(reaper: &Reaper) -> io::Result<()> {
    // Apptainer puts the base image's own files over these as soon as there is a read-only
    // layer, and hides the accounts that a layer's hook made.
    for hidden in ["/etc/passwd", "/etc/group", "/root"] {
        match umount2(hidden, MntFlags::MNT_DETACH) {
            // Nothing was mounted there.
            Ok(()) | Err(Errno::EINVAL) => {}
            Err(error) => return Err(io::Error::new(io::Error::from(error).kind(), format!("{hidden}: {error}"))),
        }
    }
    let accounts = Accounts::read(Path::new("/"))?;
    clean_run(Path::new("/run"), 0);
    let _ = fs::remove_dir_all(UNITS_FOLDER);
    // Open to every account: units of the desktop's own are noted there too.
    fs::create_dir_all(UNITS_FOLDER)?;
    fs::set_permissions(UNITS_FOLDER, fs::Permissions::from_mode(0o777))?;
    for file in units::LISTS {
        let path = Path::new(UNITS_FOLDER).join(file);
        fs::write(&path, "")?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
    }
    for folder in ["/tmp", "/var/tmp", "/tmp/.X11-unix"] {
        fs::create_dir_all(folder)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o1777))?;
    }
    if let Some(desktop) = accounts.find(DESKTOP_ACCOUNT) {
        for folder in [format!("/run/user/{}", desktop.uid), format!("/tmp/runtime-{DESKTOP_ACCOUNT}")] {
            fs::create_dir_all(&folder)?;
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o700))?;
            chown(&folder, Some(desktop.uid), Some(desktop.gid))?;
        }
    }
    // Programs that talk to themselves need a loopback that is up, with a network or not.
    let mut loopback = Command::new("/usr/sbin/ip");
    loopback.args(["link", "set", "lo", "up"]).stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    if let Ok((mut child, _)) = reaper.spawn(&mut loopback) {
        child.wait();
    }
    sudo::serve(reaper)
}

/// Removes pid files and sockets that a layer carries.
fn clean_run(folder: &Path, depth: u32) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        let path = entry.path();
        if kind.is_dir() && depth < 4 {
            clean_run(&path, depth + 1);
        } else if kind.is_socket() || (kind.is_file() && path.extension().is_some_and(|ending| ending == "pid")) {
            // One that stays says something untrue to one program: no reason to fail.
            let _ = fs::remove_file(path);
        }
    }
}

impl Helper {
    /// Answers one connection until it is closed.
    fn converse(&self, mut stream: UnixStream) {
        // A connection that breaks is its caller's matter.
        while let Ok(Some(request)) = read_request(&mut stream) {
            let done = match request {
                Ok(request) => self.answer(request, &mut stream),
                Err(error) => write_answer(&mut stream, &failed(HelperFailure::BadRequest, error)),
            };
            if done.is_err() {
                return;
            }
        }
    }

    fn answer(&self, request: HelperRequest, stream: &mut UnixStream) -> io::Result<()> {
        let answer = match request {
            HelperRequest::Hello => HelperAnswer::Ready { protocol: HELPER_PROTOCOL },
            HelperRequest::StartDisplay { width, height } => match self.display.start(&self.reaper, (width, height)) {
                Ok(()) => HelperAnswer::Done,
                Err(error) => failed(HelperFailure::Display, chain(&error)),
            },
            HelperRequest::Display => HelperAnswer::Display(self.display.state()),
            HelperRequest::Run(spec) => self.run(&spec, stream),
            HelperRequest::ReadFile { path, end } => return send_file(Path::new(&path), end, stream),
            HelperRequest::WriteFile { path } => {
                let mut data = DataReader::new(stream);
                let written = files::write(Path::new(&path), &mut data);
                data.drain()?;
                written.map_or_else(|error| io_failed(&path, &error), |()| HelperAnswer::Done)
            }
            HelperRequest::ReadTree { path } => return send_tree(Path::new(&path), stream),
            HelperRequest::Processes => HelperAnswer::Processes {
                processes: processes::list(&self.display.pids(), &units::processes(Path::new(UNITS_FOLDER))),
            },
            HelperRequest::Units => HelperAnswer::Units { units: units::started(Path::new(UNITS_FOLDER)) },
            HelperRequest::StartUnits { units } => self.start_units(&units, stream),
            HelperRequest::KillAll { grace_millis } => {
                self.display.forget();
                processes::kill_all(Duration::from_millis(grace_millis));
                HelperAnswer::Done
            }
            HelperRequest::Shutdown => {
                self.display.forget();
                processes::kill_all(END_GRACE);
                // The answer may find nobody; the sandbox ends either way.
                let _ = write_answer(stream, &HelperAnswer::Done);
                end();
            }
        };
        write_answer(stream, &answer)
    }

    fn run(&self, spec: &CommandSpec, stream: &UnixStream) -> HelperAnswer {
        let account = match Accounts::read(Path::new("/")) {
            Ok(accounts) => accounts.find(&spec.user),
            Err(error) => return io_failed("/etc/passwd", &error),
        };
        let Some(account) = account else {
            return failed(HelperFailure::NoSuchUser, format!("no account `{}`", spec.user));
        };
        match exec::run(&self.reaper, spec, &account, stream.as_fd()) {
            Ok(ended) => HelperAnswer::Exited {
                code: ended.code,
                timed_out: ended.timed_out,
                output: String::from_utf8_lossy(&ended.output).into_owned(),
                truncated: ended.truncated,
            },
            Err(error) => io_failed(spec.argv.first().map_or("", String::as_str), &error),
        }
    }

    /// Starts units as a boot would: in order, and each whatever became of the one before.
    fn start_units(&self, units: &[String], stream: &UnixStream) -> HelperAnswer {
        let mut troubles = Vec::new();
        for unit in units {
            let spec = CommandSpec {
                argv: [SYSTEMCTL, "start", unit].map(str::to_owned).into(),
                user: "root".to_owned(),
                limit_millis: u64::try_from(UNIT_START.as_millis()).unwrap_or(u64::MAX),
                output_limit: 2000,
                ..CommandSpec::default()
            };
            match self.run(&spec, stream) {
                HelperAnswer::Exited { code: 0, .. } => {}
                HelperAnswer::Exited { code, output, .. } => {
                    troubles.push(format!("{unit}: exit code {code}: {}", output.trim()));
                }
                HelperAnswer::Failed { message, .. } => troubles.push(format!("{unit}: {message}")),
                _ => {}
            }
        }
        if troubles.is_empty() { HelperAnswer::Done } else { failed(HelperFailure::Other, troubles.join("; ")) }
    }
}

#[expect(clippy::exit, reason = "the first process ends the sandbox, from whichever thread is told to")]
fn end() -> ! {
    std::process::exit(0)
}

fn send_file(path: &Path, end: Option<u64>, stream: &mut UnixStream) -> io::Result<()> {
    let opened = files::open(path).and_then(|(mut file, size)| match end.filter(|end| *end < size) {
        Some(end) => file.seek(SeekFrom::Start(size - end)).map(|_| (file.take(end), end)),
        // Whoever asks for all of it has what is added meanwhile, too.
        None => Ok((file.take(end.unwrap_or(u64::MAX)), size)),
    });
    match opened {
        Ok((mut file, size)) => {
            write_answer(stream, &HelperAnswer::File { size })?;
            let mut data = DataWriter::new(stream);
            match io::copy(&mut file, &mut data) {
                Ok(_) => data.end(),
                Err(error) => write_answer(stream, &io_failed(path.display(), &error)),
            }
        }
        Err(error) => write_answer(stream, &io_failed(path.display(), &error)),
    }
}

fn send_tree(path: &Path, stream: &mut UnixStream) -> io::Result<()> {
    if let Err(error) = fs::metadata(path) {
        return write_answer(stream, &io_failed(path.display(), &error));
    }
    write_answer(stream, &HelperAnswer::File { size: 0 })?;
    let mut data = io::BufWriter::with_capacity(crate::frames::PIECE, DataWriter::new(stream));
    match files::pack(path, &mut data).and_then(|()| data.into_inner().map_err(io::IntoInnerError::into_error)) {
        Ok(data) => data.end(),
        Err(error) => write_answer(stream, &io_failed(path.display(), &error)),
    }
}

fn failed(kind: HelperFailure, message: impl Into<String>) -> HelperAnswer {
    HelperAnswer::Failed { kind, message: message.into() }
}

fn io_failed(what: impl std::fmt::Display, error: &io::Error) -> HelperAnswer {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => HelperFailure::NotFound,
        _ => HelperFailure::Other,
    };
    failed(kind, format!("{what}: {error}"))
}
