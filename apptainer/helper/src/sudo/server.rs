//! The side of the helper: checks who asks, plans the command and runs it with the
//! caller's own standard streams.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, getsockopt, recvmsg, sockopt};
use serde::{Deserialize, Serialize};

use super::SOCKET;
use super::args::{Invocation, Keep, Shell};
use crate::accounts::{Account, Accounts};
use crate::exec;
use crate::os::adopt;
use crate::reaper::{Reaper, Watched};

/// The longest request: a command line and an environment have to fit an exec anyway.
const MAX_REQUEST: usize = 4 * 1024 * 1024;

/// Variables that a command keeps of its caller's without being asked to, as Debian's
/// sudo does, and the way out of the network.
const KEPT: [&str; 14] = [
    "DISPLAY",
    "XAUTHORITY",
    "XDG_CURRENT_DESKTOP",
    "COLORS",
    "LS_COLORS",
    "PS1",
    "PS2",
    "TERM",
    "TZ",
    "LANG",
    "LANGUAGE",
    "LC_ALL",
    "LC_CTYPE",
    "DEBIAN_FRONTEND",
];

/// Groups whose members may use sudo.
const ADMINISTRATORS: [&str; 4] = ["sudo", "admin", "wheel", "root"];

/// What the caller sends.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Request {
    pub(super) invocation: Invocation,
    pub(super) env: BTreeMap<String, String>,
    pub(super) cwd: String,
}

/// A command as it is going to be run.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Planned {
    pub(super) account: Account,
    pub(super) argv: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) cwd: String,
}

/// Works out what a request of the account `caller` comes to.
pub(super) fn plan(request: &Request, accounts: &Accounts, caller: u32) -> Result<Planned, String> {
    let Request { invocation, env: theirs, cwd } = request;
    let account = accounts.find(&invocation.user).ok_or_else(|| format!("unknown user {}", invocation.user))?;
    let mut env = exec::environment(&account);
    let login = invocation.shell == Shell::Login;
    let kept = |name: &str| {
        KEPT.contains(&name)
            || exec::PASSED.contains(&name)
            || match &invocation.keep {
                Keep::None => false,
                Keep::These(names) => names.iter().any(|kept| kept == name),
                // The path stays a safe one, as Debian's own settings say.
                Keep::All => name != "PATH",
            }
    };
    if !login {
        let own_home = invocation.set_home || invocation.keep != Keep::All;
        env.extend(
            theirs
                .iter()
                .filter(|(name, _)| kept(name) && !(own_home && *name == "HOME"))
                .map(|(name, value)| (name.clone(), value.clone())),
        );
        for name in ["USER", "LOGNAME"] {
            env.insert(name.to_owned(), account.name.clone());
        }
    }
    if let Some(who) = accounts.by_uid(caller) {
        env.insert("SUDO_USER".into(), who.name);
        env.insert("SUDO_UID".into(), who.uid.to_string());
        env.insert("SUDO_GID".into(), who.gid.to_string());
    }
    env.insert("SUDO_COMMAND".into(), invocation.command.join(" "));
    env.extend(invocation.assign.clone());
    let argv = match (invocation.shell, invocation.command.is_empty()) {
        (Shell::No, _) => invocation.command.clone(),
        (Shell::Plain, true) => vec![account.shell.clone()],
        (Shell::Login, true) => vec![account.shell.clone(), "-l".into()],
        (shell, false) => {
            let line = invocation.command.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
            let mut argv = vec![account.shell.clone()];
            argv.extend((shell == Shell::Login).then(|| "-l".to_owned()));
            argv.extend(["-c".to_owned(), line]);
            argv
        }
    };
    let cwd = invocation.chdir.clone().unwrap_or_else(|| if login { account.home.clone() } else { cwd.clone() });
    Ok(Planned { account, argv, env, cwd })
}

/// Quotes a word for a shell as sudo does: whatever is not plain gets a backslash.
fn quoted(word: &str) -> String {
    let mut quoted = String::with_capacity(word.len());
    for letter in word.chars() {
        if !(letter.is_alphanumeric() || matches!(letter, '_' | '-' | '$')) {
            quoted.push('\\');
        }
        quoted.push(letter);
    }
    quoted
}

/// Whether the account may use sudo: root, a member of an administrators' group, or one
/// that a line of the sudoers files names.
fn may(accounts: &Accounts, caller: u32, root: &Path) -> bool {
    let Some(account) = accounts.by_uid(caller) else { return false };
    if caller == 0 || ADMINISTRATORS.iter().any(|group| accounts.is_member(&account, group)) {
        return true;
    }
    let mut files = vec![root.join("etc/sudoers")];
    files.extend(fs::read_dir(root.join("etc/sudoers.d")).into_iter().flatten().flatten().map(|entry| entry.path()));
    files.iter().filter_map(|file| fs::read_to_string(file).ok()).any(|text| {
        text.lines().filter_map(|line| line.split_whitespace().next()).any(|who| who == account.name || who == "ALL")
    })
}

/// Starts to listen; each caller is served by a thread of its own.
pub(crate) fn serve(reaper: &Reaper) -> io::Result<()> {
    match fs::remove_file(SOCKET) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(SOCKET)?;
    fs::set_permissions(SOCKET, fs::Permissions::from_mode(0o666))?;
    let reaper = reaper.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let reaper = reaper.clone();
            thread::spawn(move || answer(&reaper, stream));
        }
    });
    Ok(())
}

fn answer(reaper: &Reaper, mut stream: UnixStream) {
    let (code, message) = match handle(reaper, &mut stream) {
        Ok(code) => (code, String::new()),
        Err(error) => (if error.kind() == io::ErrorKind::NotFound { 127 } else { 1 }, error.to_string()),
    };
    // A caller that is gone needs no answer.
    let _ = stream.write_all(&code.to_le_bytes()).and_then(|()| stream.write_all(message.as_bytes()));
}

fn handle(reaper: &Reaper, stream: &mut UnixStream) -> io::Result<i32> {
    let caller = getsockopt(stream, sockopt::PeerCredentials)?.uid();
    let (request, streams) = receive(stream)?;
    let accounts = Accounts::read(Path::new("/"))?;
    if !may(&accounts, caller, Path::new("/")) {
        return Err(io::Error::other("this account is not in the sudoers file"));
    }
    let planned = plan(&request, &accounts, caller).map_err(io::Error::other)?;
    let mut command = exec::command(&planned.account, &planned.argv, &planned.env, Some(&planned.cwd))?;
    let [stdin, stdout, stderr] = streams;
    command.stdin(stdin).stdout(stdout).stderr(stderr);
    let (mut child, _) = reaper.spawn(&mut command).map_err(|error| {
        io::Error::new(error.kind(), format!("{}: {error}", planned.argv.first().map_or("", String::as_str)))
    })?;
    drop(command);
    if request.invocation.background {
        return Ok(0);
    }
    forward(&mut child, stream)?;
    Ok(child.wait())
}

/// Reads a request and the caller's three standard streams.
fn receive(stream: &mut UnixStream) -> io::Result<(Request, [OwnedFd; 3])> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut head = [0; 4];
    let mut space = nix::cmsg_space!([i32; 3]);
    let (count, descriptors) = {
        let mut pieces = [IoSliceMut::new(&mut head)];
        let message = recvmsg::<()>(stream.as_raw_fd(), &mut pieces, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
        let mut descriptors = Vec::new();
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(received) = control {
                descriptors.extend(adopt(&received));
            }
        }
        (message.bytes, descriptors)
    };
    let streams = <[OwnedFd; 3]>::try_from(descriptors)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "three streams were expected"))?;
    stream.read_exact(head.get_mut(count..).unwrap_or_default())?;
    let length = usize::try_from(u32::from_be_bytes(head)).unwrap_or(usize::MAX);
    if length > MAX_REQUEST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a request is too long"));
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok((serde_json::from_slice(&body)?, streams))
}

/// Passes on the caller's signals until the command has ended. A caller that is killed
/// takes its command with it, as the kill of its process group would have.
fn forward(child: &mut Watched, stream: &mut UnixStream) -> io::Result<()> {
    let mut gone = false;
    loop {
        let mut watched = vec![PollFd::new(child.exit_fd(), PollFlags::POLLIN)];
        if !gone {
            watched.push(PollFd::new(stream.as_fd(), PollFlags::POLLIN));
        }
        let timeout = if gone { PollTimeout::from(2000_u16) } else { PollTimeout::NONE };
        let count = match poll(&mut watched, timeout) {
            Err(nix::errno::Errno::EINTR) => continue,
            other => other?,
        };
        let ready = |index: usize| watched.get(index).and_then(PollFd::any).unwrap_or(false);
        let (ended, spoken) = (ready(0), ready(1));
        drop(watched);
        if ended {
            return Ok(());
        }
        if gone && count == 0 {
            exec::signal(child.pid(), Signal::SIGKILL);
            return Ok(());
        }
        if spoken {
            let mut number = [0];
            let signal = match stream.read(&mut number) {
                Ok(1) => Signal::try_from(i32::from(number[0])).unwrap_or(Signal::SIGTERM),
                _ => {
                    gone = true;
                    Signal::SIGTERM
                }
            };
            exec::signal(child.pid(), signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world() -> (tempfile::TempDir, Accounts) {
        let root = tempfile::tempdir().expect("folder");
        fs::create_dir_all(root.path().join("etc/sudoers.d")).expect("makes");
        let passwd =
            "root:x:0:0::/root:/bin/bash\nga:x:1000:1000::/home/ga:/bin/bash\nguest:x:1001:1001::/home/guest:/bin/sh\n";
        fs::write(root.path().join("etc/passwd"), passwd).expect("writes");
        fs::write(root.path().join("etc/group"), "sudo:x:27:ga\n").expect("writes");
        let accounts = Accounts::read(root.path()).expect("reads");
        (root, accounts)
    }

    fn request(invocation: Invocation) -> Request {
        let env = [("HOME", "/home/ga"), ("PATH", "/odd"), ("DISPLAY", ":1"), ("SECRET", "x"), ("USER", "ga")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        Request { invocation, env: env.into(), cwd: "/home/ga/x".into() }
    }

    fn invocation(user: &str, command: &[&str]) -> Invocation {
        Invocation {
            user: user.into(),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            ..Invocation::default()
        }
    }

    #[test]
    fn the_environment_is_the_accounts_own() {
        let (_root, accounts) = world();
        let planned = plan(&request(invocation("root", &["id"])), &accounts, 1000).expect("plans");
        let get = |name: &str| planned.env.get(name).map(String::as_str);
        assert_eq!((get("HOME"), get("USER"), get("DISPLAY")), (Some("/root"), Some("root"), Some(":1")));
        assert_eq!((get("SECRET"), get("SUDO_USER")), (None, Some("ga")));
        assert!(get("PATH").is_some_and(|path| path.contains("/usr/sbin")));
        assert_eq!(planned.cwd, "/home/ga/x");
    }

    #[test]
    fn the_callers_environment_is_kept_when_asked_for() {
        let (_root, accounts) = world();
        let all = Invocation { keep: Keep::All, ..invocation("root", &["id"]) };
        let planned = plan(&request(all.clone()), &accounts, 1000).expect("plans");
        assert_eq!(planned.env.get("SECRET").map(String::as_str), Some("x"));
        assert_eq!(planned.env.get("HOME").map(String::as_str), Some("/home/ga"));
        assert_ne!(planned.env.get("PATH").map(String::as_str), Some("/odd"));
        let home = plan(&request(Invocation { set_home: true, ..all }), &accounts, 1000).expect("plans");
        assert_eq!(home.env.get("HOME").map(String::as_str), Some("/root"));
    }

    #[test]
    fn shells_get_their_command_quoted() {
        let (_root, accounts) = world();
        let login = Invocation { shell: Shell::Login, ..invocation("ga", &["echo", "a b", "$HOME"]) };
        let planned = plan(&request(login), &accounts, 0).expect("plans");
        assert_eq!(planned.argv, ["/bin/bash", "-l", "-c", "echo a\\ b $HOME"]);
        assert_eq!(planned.cwd, "/home/ga");
        assert!(plan(&request(invocation("nobody-here", &["id"])), &accounts, 0).is_err());
    }

    #[test]
    fn only_administrators_may() {
        let (root, accounts) = world();
        assert!(may(&accounts, 0, root.path()));
        assert!(may(&accounts, 1000, root.path()), "a member of the group");
        assert!(!may(&accounts, 1001, root.path()));
        assert!(!may(&accounts, 4711, root.path()), "no account at all");
        fs::write(root.path().join("etc/sudoers.d/guest"), "guest ALL=(ALL) NOPASSWD:ALL\n").expect("writes");
        assert!(may(&accounts, 1001, root.path()), "named by a file");
    }
}
