//! A program whose standard input and output are a socket of the worker's.
//!
//! It is somebody else's, and may start more and more processes, by mistake or not: without a
//! limit that would take the process ids of the whole node, and end its neighbours.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::os;

/// The most processes and threads that the program's account may have in its sandbox at once.
const MOST_PROCESSES: u64 = 2048;

/// From this kernel on, an account's processes are counted in each user namespace apart. Before it,
/// one count is kept for all sandboxes of the node, and such a limit would be everybody's.
const COUNTED_APART: (u32, u32) = (5, 14);

/// How long the port that a program needs is waited for, and how often it is looked for.
const PORT_LIMIT: Duration = Duration::from_secs(30);
const PORT_LOOK: Duration = Duration::from_millis(10);

/// What a shell says of a program that cannot be started.
const NOT_STARTED: i32 = 127;

/// Becomes the program, once something listens at a port of the sandbox's own, if it needs one: what it
/// does first may be a call. Returns only if it cannot.
pub(crate) fn attach(socket: &Path, after: Option<u16>, program: &OsString, args: &[OsString]) -> i32 {
    if let Some(port) = after
        && let Err(error) = wait_for(port)
    {
        os::complain(&format!("helper: nothing listens at port {port} within {} s: {error}", PORT_LIMIT.as_secs()));
        return NOT_STARTED;
    }
    match streams(socket) {
        Ok((input, output)) => {
            if let Err(error) = limit_processes() {
                os::complain(&format!("helper: the agent's processes are not limited: {error}"));
            }
            let error = Command::new(program).args(args).stdin(input).stdout(output).exec();
            os::complain(&format!("{}: {error}", Path::new(program).display()));
        }
        Err(error) => os::complain(&format!("helper: {}: {error}", socket.display())),
    }
    NOT_STARTED
}

fn wait_for(port: u16) -> io::Result<()> {
    let start = Instant::now();
    loop {
        match TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
            Ok(_) => return Ok(()),
            Err(error) if start.elapsed() >= PORT_LIMIT => return Err(error),
            Err(_) => std::thread::sleep(PORT_LOOK),
        }
    }
}

fn limit_processes() -> io::Result<()> {
    if !counts_apart(&fs::read_to_string("/proc/sys/kernel/osrelease")?) {
        return Ok(());
    }
    let (_, most) = getrlimit(Resource::RLIMIT_NPROC)?;
    let limit = MOST_PROCESSES.min(most);
    Ok(setrlimit(Resource::RLIMIT_NPROC, limit, limit)?)
}

/// Whether a kernel of this release counts an account's processes in each user namespace apart.
fn counts_apart(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse::<u32>().ok());
    numbers.next().zip(numbers.next()).is_some_and(|version| version >= COUNTED_APART)
}

fn streams(socket: &Path) -> io::Result<(Stdio, Stdio)> {
    let stream = UnixStream::connect(socket)?;
    let output = OwnedFd::from(stream.try_clone()?);
    Ok((Stdio::from(OwnedFd::from(stream)), Stdio::from(output)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_set_only_where_it_is_the_sandboxs_own() {
        for release in ["5.14.0-427.el9.x86_64", "5.15.0", "6.1.0-13-amd64\n", "10.0"] {
            assert!(counts_apart(release), "{release}");
        }
        for release in ["4.18.0-553.el8", "5.13.19", "5.9", "5", "", "linux"] {
            assert!(!counts_apart(release), "{release}");
        }
    }
}
