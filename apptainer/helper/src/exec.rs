//! Running a command as an account, to its end or to its time limit.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use longhaul_core::helper::CommandSpec;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, pipe2};

use crate::accounts::Account;
use crate::os::{Identity, become_identity};
use crate::reaper::{Reaper, Watched};

/// Where programs are looked for, as root and as anyone else: Debian's own values.
const ROOT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const USER_PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games";

/// What TERM is given before KILL.
const TERM_GRACE: Duration = Duration::from_secs(2);

/// How long a child's output is read on after its end. What it wrote before is there at
/// once; whoever still holds the pipe is a background process that is not waited for.
const DRAIN: Duration = Duration::from_millis(100);

/// Variables of the helper's own environment that every command gets: the way out of a
/// cluster whose nodes have no other.
pub(crate) const PASSED: [&str; 8] =
    ["http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY", "NO_PROXY"];

/// Where the variables of the env's accounts are, one file each; a login shell reads them too.
const VARIABLES: &str = "/etc/longhaul/environment";

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) timed_out: bool,
    pub(crate) output: Vec<u8>,
    pub(crate) truncated: bool,
}

/// The environment that `account` has to begin with.
pub(crate) fn environment(account: &Account) -> BTreeMap<String, String> {
    let path = if account.uid == 0 { ROOT_PATH } else { USER_PATH };
    let mut env: BTreeMap<String, String> = [
        ("HOME", account.home.as_str()),
        ("USER", &account.name),
        ("LOGNAME", &account.name),
        ("SHELL", &account.shell),
        ("PATH", path),
        ("DISPLAY", ":1"),
        ("LANG", "en_US.UTF-8"),
        ("TERM", "xterm-256color"),
        // Nobody answers questions.
        ("DEBIAN_FRONTEND", "noninteractive"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    for name in PASSED {
        if let Ok(value) = std::env::var(name) {
            env.insert(name.to_owned(), value);
        }
    }
    // Only its owner: what root leaves in another's runtime folder locks the owner out.
    let runtime = format!("/run/user/{}", account.uid);
    if account.uid != 0 && Path::new(&runtime).is_dir() {
        let bus = format!("{runtime}/bus");
        if Path::new(&bus).exists() {
            env.insert("DBUS_SESSION_BUS_ADDRESS".into(), format!("unix:path={bus}"));
        }
        env.insert("XDG_RUNTIME_DIR".into(), runtime);
    }
    env.extend(variables(Path::new(VARIABLES), &account.name));
    env
}

/// What the env says of an account's environment: a file a name, `NAME=VALUE` a line.
fn variables(folder: &Path, account: &str) -> BTreeMap<String, String> {
    // Most accounts have none; and a name is one part of a path.
    let text = if account.contains('/') { None } else { std::fs::read(folder.join(account)).ok() };
    let text = String::from_utf8_lossy(text.as_deref().unwrap_or_default()).into_owned();
    text.lines().filter_map(|line| line.split_once('=')).map(|(name, value)| (name.into(), value.into())).collect()
}

/// A command that runs as `account`, in a session of its own, with nothing inherited.
pub(crate) fn command(
    account: &Account,
    argv: &[String],
    env: &BTreeMap<String, String>,
    cwd: Option<&str>,
) -> io::Result<Command> {
    let program = argv.first().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "an empty command"))?;
    let mut command = Command::new(program);
    let cwd = cwd.filter(|cwd| !cwd.is_empty()).unwrap_or(&account.home);
    let cwd = if Path::new(cwd).is_dir() { cwd } else { "/" };
    command.args(argv.get(1..).unwrap_or_default()).env_clear().envs(env).current_dir(cwd).stdin(Stdio::null());
    let identity = Identity { uid: account.uid, gid: account.gid, groups: account.groups.clone(), own_session: true };
    become_identity(&mut command, identity);
    Ok(command)
}

/// Runs `spec` as `account`. `caller` is the connection of whoever asked: when it is
/// hung up, nobody waits for the command any more and it is ended.
pub(crate) fn run(reaper: &Reaper, spec: &CommandSpec, account: &Account, caller: BorrowedFd<'_>) -> io::Result<Ended> {
    let mut env = environment(account);
    env.extend(spec.env.clone());
    let mut command = command(account, &spec.argv, &env, spec.cwd.as_deref())?;
    let mut output = match &spec.log_file {
        Some(path) => {
            let log = open_log(Path::new(path))?;
            command.stdout(log.try_clone()?).stderr(log);
            None
        }
        None => {
            let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
            let write = File::from(write);
            command.stdout(write.try_clone()?).stderr(write);
            Some(Tail::new(File::from(read), spec.output_limit))
        }
    };
    let (mut child, _) = reaper.spawn(&mut command)?;
    // The command holds our ends of its pipe: without them gone, its end is never seen.
    drop(command);
    let limit = (spec.limit_millis > 0).then(|| Instant::now() + Duration::from_millis(spec.limit_millis));
    let timed_out = supervise(&mut child, output.as_mut(), limit, caller)?;
    let code = child.wait();
    if let Some(output) = output.as_mut() {
        output.drain(DRAIN)?;
    }
    let (output, truncated) = output.map(Tail::finish).unwrap_or_default();
    Ok(Ended { code, timed_out, output, truncated })
}

fn open_log(path: &Path) -> io::Result<File> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    OpenOptions::new().create(true).write(true).truncate(true).mode(0o644).open(path)
}

/// Waits until the child has ended, ending it when its time is over or its caller gone.
/// Returns whether its time was over.
fn supervise(
    child: &mut Watched,
    mut output: Option<&mut Tail>,
    limit: Option<Instant>,
    caller: BorrowedFd<'_>,
) -> io::Result<bool> {
    let mut kill_at = None;
    let mut timed_out = false;
    let mut hung_up = false;
    loop {
        let now = Instant::now();
        let due = kill_at.or(if hung_up { None } else { limit });
        if due.is_some_and(|due| now >= due) {
            if kill_at.is_some() {
                signal(child.pid(), Signal::SIGKILL);
                return Ok(timed_out);
            }
            timed_out = true;
            signal(child.pid(), Signal::SIGTERM);
            kill_at = Some(now + TERM_GRACE);
            continue;
        }
        let wait = due.map_or(Duration::from_secs(3600), |due| due - now);
        let mut watched = vec![PollFd::new(child.exit_fd(), PollFlags::POLLIN)];
        // A connection that is hung up stays so: it is looked at once.
        if !hung_up {
            watched.push(PollFd::new(caller, PollFlags::empty()));
        }
        let source = output.as_ref().filter(|tail| !tail.ended).map(|tail| tail.source.as_fd());
        if let Some(source) = source {
            watched.push(PollFd::new(source, PollFlags::POLLIN));
        }
        let timeout = PollTimeout::try_from(wait + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
        match poll(&mut watched, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready =
            |index: usize| watched.get(index).and_then(PollFd::revents).is_some_and(|events| !events.is_empty());
        let (ended, caller_gone) = (ready(0), !hung_up && ready(1));
        let readable = source.is_some() && ready(watched.len() - 1);
        drop(watched);
        if readable && let Some(tail) = output.as_deref_mut() {
            tail.read_some()?;
        }
        if ended {
            return Ok(timed_out);
        }
        if caller_gone {
            hung_up = true;
            signal(child.pid(), Signal::SIGTERM);
            kill_at = kill_at.or_else(|| Some(Instant::now() + TERM_GRACE));
        }
    }
}

/// Signals the process group of a child; one that is gone is as good as ended.
pub(crate) fn signal(pid: i32, signal: Signal) {
    let _ = killpg(Pid::from_raw(pid), signal);
}

/// The end of what comes out of a pipe.
#[derive(Debug)]
struct Tail {
    source: File,
    kept: VecDeque<u8>,
    limit: usize,
    truncated: bool,
    ended: bool,
}

impl Tail {
    fn new(source: File, limit: usize) -> Self {
        Self { source, kept: VecDeque::new(), limit, truncated: false, ended: false }
    }

    fn read_some(&mut self) -> io::Result<()> {
        let mut piece = [0; 16 * 1024];
        let count = match self.source.read(&mut piece) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error),
        };
        self.ended = count == 0;
        self.kept.extend(piece.iter().take(count));
        let over = self.kept.len().saturating_sub(self.limit);
        self.truncated |= over > 0;
        self.kept.drain(..over);
        Ok(())
    }

    /// Reads on until the pipe is empty, at most for `time`.
    fn drain(&mut self, time: Duration) -> io::Result<()> {
        let end = Instant::now() + time;
        while !self.ended && Instant::now() < end {
            let mut watched = [PollFd::new(self.source.as_fd(), PollFlags::POLLIN)];
            match poll(&mut watched, PollTimeout::ZERO) {
                Ok(0) => return Ok(()),
                Ok(_) => self.read_some()?,
                Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn finish(self) -> (Vec<u8>, bool) {
        (self.kept.into(), self.truncated)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    /// The account that runs this test: changing to another needs root, staying does not
    /// where groups may not be set, so these tests run as root (as CI does) or skip that.
    fn myself() -> Account {
        Account {
            name: "tester".into(),
            uid: nix::unistd::getuid().as_raw(),
            gid: nix::unistd::getgid().as_raw(),
            groups: vec![nix::unistd::getgid().as_raw()],
            home: "/".into(),
            shell: "/bin/sh".into(),
        }
    }

    fn shell(script: &str) -> CommandSpec {
        CommandSpec {
            argv: ["/bin/sh", "-c", script].map(str::to_owned).into(),
            output_limit: 1000,
            limit_millis: 60_000,
            ..CommandSpec::default()
        }
    }

    fn ended(spec: &CommandSpec) -> Ended {
        let (caller, _other) = UnixStream::pair().expect("pair");
        run(&Reaper::start(), spec, &myself(), caller.as_fd()).expect("runs")
    }

    #[test]
    fn output_and_code_come_back() {
        let ended = ended(&shell("echo out; echo err >&2; echo $HOME $DISPLAY; exit 4"));
        assert_eq!(ended.code, 4);
        assert_eq!(String::from_utf8_lossy(&ended.output), "out\nerr\n/ :1\n");
        assert!(!ended.truncated && !ended.timed_out);
    }

    #[test]
    fn an_accounts_variables_are_read_from_its_file() {
        let folder = tempfile::tempdir().expect("folder");
        std::fs::write(folder.path().join("ga"), "DISPLAY=:1\nTWO=a = 'b'\n\nno variable\n").expect("writes");
        let read: Vec<_> = variables(folder.path(), "ga").into_iter().collect();
        assert_eq!(read, [("DISPLAY".into(), ":1".into()), ("TWO".to_owned(), "a = 'b'".to_owned())]);
        assert!(variables(folder.path(), "clerk").is_empty());
        assert!(variables(&folder.path().join("x"), "../ga").is_empty());
    }

    #[test]
    fn only_the_end_of_much_output_is_kept() {
        let ended = ended(&shell("seq 1 100000"));
        assert!(ended.truncated);
        assert_eq!(ended.output.len(), 1000);
        assert!(ended.output.ends_with(b"99999\n100000\n"));
    }

    #[test]
    fn a_daemon_that_keeps_the_output_open_is_not_waited_for() {
        let ended = ended(&shell("sleep 600 & echo $!"));
        assert_eq!(ended.code, 0);
        let pid: i32 = String::from_utf8_lossy(&ended.output).trim().parse().expect("a pid");
        nix::sys::signal::kill(Pid::from_raw(pid), Signal::SIGKILL).expect("it lives on");
    }

    #[test]
    fn a_time_limit_ends_the_whole_group_even_against_its_will() {
        let folder = tempfile::tempdir().expect("folder");
        let pid_file = folder.path().join("pid");
        let script =
            format!("trap '' TERM; sh -c 'trap \"\" TERM; echo $$ >{}; sleep 600; sleep 600'", pid_file.display());
        let ended = ended(&CommandSpec { limit_millis: 300, ..shell(&script) });
        assert!(ended.timed_out);
        assert_eq!(ended.code, 137);
        let child: i32 = std::fs::read_to_string(pid_file).expect("started").trim().parse().expect("a pid");
        let gone = |pid| nix::sys::signal::kill(Pid::from_raw(pid), None).is_err();
        while !gone(child) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_caller_that_hangs_up_ends_the_command() {
        let (caller, other) = UnixStream::pair().expect("pair");
        drop(other);
        let ended = run(&Reaper::start(), &shell("sleep 600"), &myself(), caller.as_fd()).expect("runs");
        assert_eq!(ended.code, 143);
        assert!(!ended.timed_out);
    }

    #[test]
    fn output_goes_to_a_log_file_if_asked() {
        let folder = tempfile::tempdir().expect("folder");
        let log = folder.path().join("new/hook.log");
        let spec = CommandSpec { log_file: Some(log.display().to_string()), ..shell("echo hello") };
        let ended = ended(&spec);
        assert!(ended.output.is_empty());
        assert_eq!(std::fs::read_to_string(log).expect("written"), "hello\n");
    }
}
