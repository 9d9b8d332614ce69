//! Who a process is, so that nobody else is ever taken for it.
//!
//! A pid alone is reused. A process is known by its pid, its start time, the boot and the
//! pid namespace that both were read in.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// The identity of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// Its id.
    pub pid: i32,
    /// When it started, in clock ticks since the boot.
    pub start_ticks: u64,
    /// The boot that it started in.
    pub boot_id: String,
    /// The pid namespace that `pid` is meant in, by inode number.
    pub pid_namespace: u64,
}

impl ProcessIdentity {
    /// The identity of the process that has this id now; nothing if there is none.
    pub fn of(pid: i32) -> io::Result<Option<Self>> {
        let Some(stat) = Stat::read(pid) else { return Ok(None) };
        Ok(Some(Self { pid, start_ticks: stat.start_ticks, boot_id: boot_id()?, pid_namespace: pid_namespace()? }))
    }

    /// The identity of this process.
    pub fn own() -> io::Result<Self> {
        let pid = i32::try_from(std::process::id()).map_err(io::Error::other)?;
        Self::of(pid)?.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "/proc does not show this process"))
    }

    /// Whether this identity can be looked for from here: same boot, same pid namespace.
    pub fn is_visible(&self) -> io::Result<bool> {
        Ok(self.boot_id == boot_id()? && self.pid_namespace == pid_namespace()?)
    }

    /// Whether the process still runs (one that ended and was not reaped does not).
    pub fn is_alive(&self) -> io::Result<bool> {
        Ok(self.is_visible()? && Stat::read(self.pid).is_some_and(|stat| stat.start_ticks == self.start_ticks))
    }

    /// Sends it a signal, if it is still the same process. The check and the signal are
    /// two calls; the few microseconds between them are what a pid would have to be
    /// reused in.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        if self.is_alive()? {
            match kill(Pid::from_raw(self.pid), signal) {
                Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// The running boot's id.
pub fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// The inode of this process's pid namespace.
pub fn pid_namespace() -> io::Result<u64> {
    Ok(fs::metadata("/proc/self/ns/pid")?.ino())
}

/// What is used of `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    parent: i32,
    session: i32,
    start_ticks: u64,
}

impl Stat {
    /// Reads it; nothing for a process that ended, reaped or not.
    fn read(pid: i32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        // The name stands in brackets and may itself hold brackets and blanks.
        let (_, fields) = text.rsplit_once(") ")?;
        let mut fields = fields.split_ascii_whitespace();
        if matches!(fields.next()?, "Z" | "X") {
            return None;
        }
        let parent = fields.next()?.parse().ok()?;
        let session = fields.nth(1)?.parse().ok()?;
        let start_ticks = fields.nth(15)?.parse().ok()?;
        Some(Self { parent, session, start_ticks })
    }
}

fn all_pids() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc").into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// A process and all that descend from it, parents first; empty if it is gone.
#[must_use]
pub fn tree(root: i32) -> Vec<i32> {
    let parents: HashMap<i32, i32> = all_pids().filter_map(|pid| Some((pid, Stat::read(pid)?.parent))).collect();
    if !parents.contains_key(&root) {
        return Vec::new();
    }
    let mut found = vec![root];
    let mut known = HashSet::from([root]);
    let mut at = 0;
    while let Some(&parent) = found.get(at) {
        at += 1;
        for (&pid, &its_parent) in &parents {
            if its_parent == parent && known.insert(pid) {
                found.push(pid);
            }
        }
    }
    found
}

/// As [`tree`], found by looking at these processes alone: what is looked at often has to cost the
/// same, however many others a node has. A process that begins or ends meanwhile may be missed.
#[must_use]
pub fn descendants(root: i32) -> Vec<i32> {
    let mut found = vec![root];
    let mut at = 0;
    while let Some(&pid) = found.get(at) {
        at += 1;
        for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            found.extend(children.split_ascii_whitespace().filter_map(|child| child.parse::<i32>().ok()));
        }
    }
    found
}

/// Whether any thread of a process or of one that descends from it runs, waits for a
/// processor, or waits for a disk. Only these processes are looked at, so it costs a
/// fraction of a millisecond; it is a look at one moment.
#[must_use]
pub fn works(root: i32) -> bool {
    let mut open = vec![root];
    while let Some(pid) = open.pop() {
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for task in tasks.flatten() {
            let folder = task.path();
            if fs::read_to_string(folder.join("stat")).is_ok_and(|stat| matches!(state(&stat), Some('R' | 'D'))) {
                return true;
            }
            let children = fs::read_to_string(folder.join("children")).unwrap_or_default();
            open.extend(children.split_ascii_whitespace().filter_map(|child| child.parse::<i32>().ok()));
        }
    }
    false
}

/// The state's letter in a line of `/proc/PID/stat`; the name before it may hold anything.
fn state(stat: &str) -> Option<char> {
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Every process that carries `NAME=value` in the environment it was started with. One
/// that may not be looked at is not ours.
#[must_use]
pub fn with_variable(name: &str, value: &str) -> Vec<ProcessIdentity> {
    let wanted = format!("{name}={value}");
    all_pids()
        .filter(|pid| {
            fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes()))
        })
        .filter_map(|pid| ProcessIdentity::of(pid).ok().flatten())
        .collect()
}

/// Every process of the session that `leader` began, the leader itself aside. The number of a session
/// is not given to another process as long as one of the session lives. It may be another's all the
/// same, once all of the session are gone: so only those count that are of this account, are younger
/// than the leader was and, where the leader is gone, see another file system than this process does,
/// as all do that Apptainer has started.
#[must_use]
pub fn of_session(leader: &ProcessIdentity) -> Vec<ProcessIdentity> {
    if !leader.is_visible().unwrap_or(false) {
        return Vec::new();
    }
    let now = Stat::read(leader.pid);
    if now.is_some_and(|stat| stat.start_ticks != leader.start_ticks) {
        return Vec::new();
    }
    let (own, account) = (mount_namespace("self"), nix::unistd::geteuid().as_raw());
    let is_of_it = |pid: i32| {
        let Some(stat) = Stat::read(pid) else { return false };
        stat.session == leader.pid
            && pid != leader.pid
            && stat.start_ticks >= leader.start_ticks
            && fs::metadata(format!("/proc/{pid}")).is_ok_and(|data| data.uid() == account)
            && (now.is_some() || mount_namespace(&pid.to_string()) != own)
    };
    all_pids().filter(|pid| is_of_it(*pid)).filter_map(|pid| ProcessIdentity::of(pid).ok().flatten()).collect()
}

/// The mount namespace of a process, by inode; none if it may not be looked at.
fn mount_namespace(process: &str) -> Option<u64> {
    fs::metadata(format!("/proc/{process}/ns/mnt")).ok().map(|data| data.ino())
}

/// The name of a process's program; empty if it is gone.
#[must_use]
pub fn program_name(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// Every process in whose view of the file system a folder of this name is mounted, or one
/// above it that ends so. Apptainer's FUSE processes carry nothing else that names the
/// container they serve: their environment is empty and their command lines are all alike.
#[must_use]
pub fn with_mount(name: &str) -> Vec<ProcessIdentity> {
    let ending = format!("/{name}");
    let is_it = |root: &str| root.ends_with(&ending) || root.contains(&format!("{ending}/"));
    all_pids()
        .filter(|pid| {
            fs::read_to_string(format!("/proc/{pid}/mountinfo"))
                .is_ok_and(|mounts| mounts.lines().filter_map(|line| line.split(' ').nth(3)).any(is_it))
        })
        .filter_map(|pid| ProcessIdentity::of(pid).ok().flatten())
        .collect()
}

/// The id, out here, of the first process of a pid namespace among `pids`.
#[must_use]
pub fn first_of_namespace(pids: &[i32]) -> Option<i32> {
    pids.iter().copied().find(|pid| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status
            .lines()
            .find_map(|line| line.strip_prefix("NSpid:"))
            .is_some_and(|ids| ids.split_whitespace().count() > 1 && ids.split_whitespace().last() == Some("1"))
    })
}

/// The proportional memory of these processes in MiB: pages that several share count in
/// parts, so that sums over sandboxes are right.
#[must_use]
pub fn memory_mib(pids: &[i32]) -> u64 {
    let kib: u64 = pids
        .iter()
        .filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok())
        .filter_map(|text| pss_kib(&text))
        .sum();
    kib / 1024
}

fn pss_kib(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("Pss:"))?.trim().strip_suffix(" kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_stat_line_is_read_whatever_the_name() {
        let tail = "S 7 2 3 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2";
        let stat = Stat::parse(&format!("42 (a) b (c)) {tail}")).expect("reads");
        assert_eq!((stat.parent, stat.session, stat.start_ticks), (7, 3, 987_654));
        assert_eq!(Stat::parse(&format!("42 (x) {}", tail.replacen('S', "Z", 1))), None, "a zombie is gone");
        assert_eq!(Stat::parse("nonsense"), None);
    }

    #[test]
    fn a_process_works_or_sleeps_and_so_do_its_children() {
        let own = |child: &std::process::Child| i32::try_from(child.id()).expect("a pid");
        let state_of = |pid: i32| state(&fs::read_to_string(format!("/proc/{pid}/stat")).expect("reads"));
        let mut busy = Command::new("sh").args(["-c", "sh -c 'while :; do :; done' & wait"]).spawn().expect("starts");
        while tree(own(&busy)).len() < 2 || state_of(own(&busy)) != Some('S') {}
        // Now the shell in between only waits.
        while !works(own(&busy)) {}
        let children = tree(own(&busy));
        for pid in children.iter().rev() {
            if let Some(process) = ProcessIdentity::of(*pid).expect("reads") {
                process.signal(Signal::SIGKILL).expect("signals");
            }
        }
        busy.wait().expect("ends");
        assert!(!works(own(&busy)), "what is gone does nothing");
        let mut idle = Command::new("sleep").arg("600").spawn().expect("starts");
        while works(own(&idle)) {}
        idle.kill().expect("ends");
        idle.wait().expect("ends");
        assert_eq!(state("7 (a) R (b) S 1 7"), Some('S'));
    }

    #[test]
    fn a_process_is_itself_only_while_it_runs() {
        let mut child = Command::new("sleep").arg("600").env("LONGHAUL_TEST_MARK", "m1").spawn().expect("starts");
        let pid = i32::try_from(child.id()).expect("a pid");
        let identity = ProcessIdentity::of(pid).expect("reads").expect("runs");
        assert!(identity.is_alive().expect("reads"));
        let other = ProcessIdentity { start_ticks: identity.start_ticks + 1, ..identity.clone() };
        assert!(!other.is_alive().expect("reads"), "a reused pid is someone else");
        let elsewhere = ProcessIdentity { boot_id: "another boot".into(), ..other };
        assert!(!elsewhere.is_alive().expect("reads"));
        other.signal(Signal::SIGKILL).expect("does nothing");
        let own = i32::try_from(std::process::id()).expect("a pid");
        assert!(tree(own).contains(&pid));
        assert!(descendants(own).contains(&pid));
        while !with_variable("LONGHAUL_TEST_MARK", "m1").contains(&identity) {}
        assert!(memory_mib(&[own]) > 0);
        identity.signal(Signal::SIGKILL).expect("signals");
        child.wait().expect("ends");
        assert!(!identity.is_alive().expect("reads"));
    }

    #[test]
    fn a_session_is_known_by_its_leader_also_when_that_is_gone_and_nobody_elses_is_taken_for_it() {
        // The leader starts one child, says its number, and waits.
        let mut leader = Command::new("setsid")
            .args(["sh", "-c", "sleep 600 & echo $!; wait"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("starts");
        let mut said = String::new();
        let mut lines = std::io::BufReader::new(leader.stdout.take().expect("is piped"));
        std::io::BufRead::read_line(&mut lines, &mut said).expect("says it");
        let child: i32 = said.trim().parse().expect("a pid");
        let known = ProcessIdentity::of(i32::try_from(leader.id()).expect("a pid")).expect("reads").expect("runs");
        let pids = |leader: &ProcessIdentity| of_session(leader).iter().map(|process| process.pid).collect::<Vec<_>>();
        assert_eq!(pids(&known), [child]);
        let reused = ProcessIdentity { start_ticks: known.start_ticks - 1, ..known.clone() };
        assert!(pids(&reused).is_empty(), "the number is somebody else's now");
        let elsewhere = ProcessIdentity { boot_id: "another boot".into(), ..known };
        assert!(pids(&elsewhere).is_empty());
        leader.kill().expect("ends");
        leader.wait().expect("ends");
        assert!(pids(&known).is_empty(), "of those that are left, only those count that see another file system");
        let left = ProcessIdentity::of(child).expect("reads").expect("runs");
        left.signal(Signal::SIGKILL).expect("signals");
    }
}
