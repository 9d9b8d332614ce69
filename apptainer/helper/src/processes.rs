//! What runs in the sandbox, read from /proc, and ending it.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::{Duration, Instant};

use longhaul_core::helper::ProcessInfo;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::units::UNIT_VARIABLE;

/// One process as /proc shows it.
#[derive(Debug)]
struct Seen {
    pid: i32,
    parent: i32,
    session: i32,
    start: u64,
    uid: u32,
    command: String,
    unit: Option<String>,
}

/// What runs, without the helper and the processes in `ours`, in the order of ids. `noted`
/// are processes by id and start time whose unit is known.
pub(crate) fn list(ours: &HashSet<i32>, noted: &HashMap<(i32, u64), String>) -> Vec<ProcessInfo> {
    let mut all = scan();
    for seen in &mut all {
        if let Some(unit) = noted.get(&(seen.pid, seen.start)) {
            seen.unit = Some(unit.clone());
        }
    }
    let by_pid: HashMap<i32, &Seen> = all.iter().map(|seen| (seen.pid, seen)).collect();
    all.iter()
        .filter(|seen| seen.pid != 1 && !ours.contains(&seen.pid))
        .map(|seen| ProcessInfo {
            pid: seen.pid,
            uid: seen.uid,
            command: seen.command.clone(),
            unit: unit_of(seen, &by_pid),
        })
        .collect()
}

/// The unit of a process: its own, or that of its parents, or of its session's leader,
/// for those that were started since.
fn unit_of(seen: &Seen, by_pid: &HashMap<i32, &Seen>) -> Option<String> {
    let mut at = seen;
    for _ in 0..64 {
        let leader = by_pid.get(&at.session).and_then(|leader| leader.unit.clone());
        if let Some(unit) = at.unit.clone().or(leader) {
            return Some(unit);
        }
        at = by_pid.get(&at.parent).filter(|parent| parent.pid > 1)?;
    }
    None
}

fn scan() -> Vec<Seen> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let mut all: Vec<Seen> =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).filter_map(look).collect();
    all.sort_by_key(|seen| seen.pid);
    all
}

/// Looks at one process; nothing for one that ended, reaped or not.
fn look(pid: i32) -> Option<Seen> {
    let folder = format!("/proc/{pid}");
    let stat = fs::read_to_string(format!("{folder}/stat")).ok()?;
    // The name stands in brackets and may hold brackets and blanks itself.
    let (head, tail) = stat.rsplit_once(") ")?;
    let name = head.split_once('(').map_or("?", |(_, name)| name);
    let mut fields = tail.split(' ');
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    let parent = fields.next()?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    let start = fields.nth(15)?.parse().ok()?;
    let uid = fs::metadata(&folder).ok()?.uid();
    let words = fs::read(format!("{folder}/cmdline")).unwrap_or_default();
    let command = if words.is_empty() {
        format!("[{name}]")
    } else {
        let words = words.strip_suffix(b"\0").unwrap_or(&words);
        String::from_utf8_lossy(words).replace('\0', " ")
    };
    let unit = fs::read(format!("{folder}/environ")).ok().and_then(|environ| {
        let prefix = format!("{UNIT_VARIABLE}=");
        environ
            .split(|byte| *byte == 0)
            .find_map(|entry| entry.strip_prefix(prefix.as_bytes()))
            .map(|unit| String::from_utf8_lossy(unit).into_owned())
    });
    Some(Seen { pid, parent, session, start, uid, command, unit })
}

/// Ends every process of the sandbox but this one: TERM, `grace`, KILL.
///
/// Only ever called by process 1 of a pid namespace, where "every process" is the
/// sandbox and nothing else ([`crate::serve`] refuses to serve as anything else).
pub(crate) fn kill_all(grace: Duration) {
    const EVERYONE: Pid = Pid::from_raw(-1);
    if nix::unistd::getpid().as_raw() != 1 {
        return;
    }
    let none_left = || scan().iter().all(|seen| seen.pid == 1);
    let _ = kill(EVERYONE, Signal::SIGTERM);
    // A stopped process would sleep through its TERM.
    let _ = kill(EVERYONE, Signal::SIGCONT);
    let end = Instant::now() + grace;
    while Instant::now() < end {
        if none_left() {
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
    // Bounded: what the kernel does not let go of ends with the namespace.
    for _ in 0..100 {
        let _ = kill(EVERYONE, Signal::SIGKILL);
        if none_left() {
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn processes_are_listed_with_their_units() {
        let mut child = Command::new("/bin/sh")
            .args(["-c", "env -i sleep 600; true"])
            .env(UNIT_VARIABLE, "thing.service")
            .spawn()
            .expect("starts");
        let own = i32::try_from(child.id()).expect("a pid");
        let ours = HashSet::from([own]);
        let sleeper = loop {
            let found = list(&ours, &HashMap::new())
                .into_iter()
                .find(|process| process.command == "sleep 600" && process.unit.as_deref() == Some("thing.service"));
            if let Some(found) = found {
                break found;
            }
        };
        assert!(list(&ours, &HashMap::new()).iter().all(|process| process.pid != own));
        kill(Pid::from_raw(sleeper.pid), Signal::SIGKILL).expect("it runs");
        child.wait().expect("ends");
        assert!(list(&ours, &HashMap::new()).iter().all(|process| process.pid != sleeper.pid));
    }
}
