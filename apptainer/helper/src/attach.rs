//! A program whose standard input and output are a socket of the worker's.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::os;

/// What a shell says of a program that cannot be started.
const NOT_STARTED: i32 = 127;

/// Becomes the program. Returns only if it cannot.
pub(crate) fn attach(socket: &Path, program: &OsString, args: &[OsString]) -> i32 {
    match streams(socket) {
        Ok((input, output)) => {
            let error = Command::new(program).args(args).stdin(input).stdout(output).exec();
            os::complain(&format!("{}: {error}", Path::new(program).display()));
        }
        Err(error) => os::complain(&format!("helper: {}: {error}", socket.display())),
    }
    NOT_STARTED
}

fn streams(socket: &Path) -> io::Result<(Stdio, Stdio)> {
    let stream = UnixStream::connect(socket)?;
    let output = OwnedFd::from(stream.try_clone()?);
    Ok((Stdio::from(OwnedFd::from(stream)), Stdio::from(output)))
}
