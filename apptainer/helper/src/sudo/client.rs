//! The side of the caller: become the account at once if that is allowed, else ask the
//! helper and end as the command ends.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

use super::SOCKET;
use super::args::Invocation;
use super::server::{Request, plan};
use crate::accounts::Accounts;
use crate::os::{Identity, become_identity, complain};

/// Signals that are passed on to the command.
const FORWARDED: [Signal; 6] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// Runs the command and returns its exit code.
pub(super) fn run(invocation: Invocation) -> i32 {
    let env: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let cwd = std::env::current_dir().map_or_else(|_| "/".to_owned(), |cwd| cwd.to_string_lossy().into_owned());
    let request = Request { invocation, env, cwd };
    let uid = nix::unistd::getuid().as_raw();
    let result = if uid == 0 { become_it(&request, uid) } else { ask(&request) };
    result.unwrap_or_else(|error| {
        complain(&format!("sudo: {error}"));
        1
    })
}

/// Goes on as the command, in place of this process: its terminal, its process group and
/// its children stay what they are. Only root can.
fn become_it(request: &Request, uid: u32) -> io::Result<i32> {
    let accounts = Accounts::read(Path::new("/"))?;
    let planned = plan(request, &accounts, uid).map_err(io::Error::other)?;
    let mut command = Command::new(planned.argv.first().ok_or_else(|| io::Error::other("an empty command"))?);
    command.args(planned.argv.get(1..).unwrap_or_default()).env_clear().envs(&planned.env);
    if Path::new(&planned.cwd).is_dir() {
        command.current_dir(&planned.cwd);
    }
    let account = planned.account;
    become_identity(
        &mut command,
        Identity { uid: account.uid, gid: account.gid, groups: account.groups, own_session: false },
    );
    if request.invocation.background {
        command.spawn()?;
        return Ok(0);
    }
    let error = command.exec();
    complain(&format!("sudo: {}: {error}", planned.argv.first().map_or("", String::as_str)));
    Ok(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
}

/// Asks the helper, passing on what signals come meanwhile.
fn ask(request: &Request) -> io::Result<i32> {
    let mut stream = UnixStream::connect(SOCKET)
        .map_err(|error| io::Error::new(error.kind(), format!("the sandbox's helper does not answer: {error}")))?;
    // Blocked before the request goes out and before the thread starts, which inherits it.
    let signals: SigSet = FORWARDED.into_iter().collect();
    signals.thread_block()?;
    let body = serde_json::to_vec(request)?;
    let length = u32::try_from(body.len()).map_err(io::Error::other)?.to_be_bytes();
    let streams: [RawFd; 3] = [io::stdin().as_raw_fd(), io::stdout().as_raw_fd(), io::stderr().as_raw_fd()];
    // The descriptors travel with the first byte.
    let sent = sendmsg::<()>(
        stream.as_raw_fd(),
        &[IoSlice::new(&length)],
        &[ControlMessage::ScmRights(&streams)],
        MsgFlags::MSG_NOSIGNAL,
        None,
    )?;
    stream.write_all(length.get(sent..).unwrap_or_default())?;
    stream.write_all(&body)?;
    let mut forward = stream.try_clone()?;
    thread::spawn(move || {
        while let Ok(signal) = signals.wait() {
            let number = u8::try_from(signal as i32).unwrap_or(15);
            if forward.write_all(&[number]).is_err() {
                return;
            }
        }
    });
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let (code, message) =
        answer.split_at_checked(4).ok_or_else(|| io::Error::other("the sandbox's helper went away"))?;
    if !message.is_empty() {
        complain(&format!("sudo: {}", String::from_utf8_lossy(message)));
    }
    let mut bytes = [0; 4];
    bytes.copy_from_slice(code);
    Ok(i32::from_le_bytes(bytes))
}
