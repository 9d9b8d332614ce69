//! Looking at this machine.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use longhaul_apptainer::filesystem::{FileSystem, space};
use longhaul_apptainer::{Apptainer, Gpus};

use super::facts::{Disk, Facts, Range, User};
use crate::worker::present_gpus;

/// Programs that are looked for.
const PROGRAMS: [&str; 5] = ["slirp4netns", "mmdebstrap", "fuse-overlayfs", "squashfuse", "mksquashfs"];

/// Looks at what sandboxes need.
pub async fn look(store: &Path, layers: &Path, scratch: &Path) -> Facts {
    let user = user();
    let apptainer = match Apptainer::detect().await {
        Ok(found) => Ok((found.program().to_owned(), found.version())),
        Err(error) => Err(error.to_string()),
    };
    Facts {
        subuids: ranges("/etc/subuid", &user),
        subgids: ranges("/etc/subgid", &user),
        user,
        apptainer,
        newidmap: on_path("newuidmap") && on_path("newgidmap"),
        userns_refused: userns_refused(),
        fuse: opens("/dev/fuse"),
        tun: opens("/dev/net/tun"),
        gpus: gpus(),
        absent: PROGRAMS.into_iter().filter(|program| !on_path(program)).collect(),
        disks: vec![disk("scratch", scratch), disk("layers", layers), disk("store", store)],
    }
}

/// What a worker here would find, and the first line of what the driver says.
fn gpus() -> Option<(Gpus, Option<String>)> {
    let gpus = present_gpus().ok()??;
    let driver = fs::read_to_string(gpus.maker().driver()).ok();
    let driver = driver.and_then(|text| text.lines().next().map(str::to_owned));
    Some((gpus, driver))
}

/// The account's name, out of the file or, where its accounts come from elsewhere, the
/// environment: a static program has no other way to ask.
fn user() -> User {
    let uid = nix::unistd::getuid();
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let known = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid.to_string()).then(|| name.to_owned())
    });
    let name = known.or_else(|| std::env::var("USER").ok()).unwrap_or_else(|| uid.to_string());
    User { name, root: uid.is_root() }
}

fn ranges(file: &str, user: &User) -> Vec<Range> {
    let text = fs::read_to_string(file).unwrap_or_default();
    parse_ranges(&text, &user.name, &nix::unistd::getuid().to_string())
}

/// The ranges of an account, which may be named by its number.
fn parse_ranges(text: &str, name: &str, uid: &str) -> Vec<Range> {
    text.lines()
        .filter_map(|line| {
            let mut fields = line.trim().split(':');
            let whose = fields.next()?;
            let range = Range { first: fields.next()?.parse().ok()?, count: fields.next()?.parse().ok()? };
            (whose == name || whose == uid).then_some(range)
        })
        .collect()
}

/// Settings of the kernel that forbid user namespaces, by what they would have to be.
fn userns_refused() -> Option<String> {
    let value = |path: &str| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let refusals = [
        ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces is 0"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone is 0"),
        (
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "kernel.apparmor_restrict_unprivileged_userns is 1 (an AppArmor profile of Apptainer's may still allow it)",
        ),
    ];
    if !Path::new("/proc/self/ns/user").exists() {
        return Some("this kernel has no user namespaces".to_owned());
    }
    refusals
        .into_iter()
        .find(|(path, refused, _)| value(path).as_deref() == Some(*refused))
        .map(|(_, _, why)| why.to_owned())
}

fn opens(device: &str) -> Result<(), String> {
    fs::OpenOptions::new().read(true).write(true).open(device).map(|_| ()).map_err(|error| error.to_string())
}

fn on_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .any(|file| fs::metadata(file).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0))
}

/// A folder, or what there is of the way to it.
fn disk(what: &'static str, path: &Path) -> Disk {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let there = nearest(&absolute);
    let fails = |error: &dyn std::fmt::Display| Disk {
        what,
        path: path.to_owned(),
        filesystem: Err(error.to_string()),
        free: 0,
        files: None,
    };
    if let Err(error) = nix::unistd::access(&there, nix::unistd::AccessFlags::W_OK) {
        return fails(&format_args!("{} cannot be written to: {}", there.display(), io::Error::from(error)));
    }
    match (FileSystem::of(&there), space(&there)) {
        (Ok(found), Ok(room)) => {
            Disk { what, path: path.to_owned(), filesystem: Ok(found), free: room.bytes, files: room.files }
        }
        (Err(error), _) | (_, Err(error)) => fails(&error),
    }
}

/// The nearest folder above a path, or the path itself, that is there.
fn nearest(path: &Path) -> PathBuf {
    path.ancestors().find(|folder| folder.exists()).map_or_else(|| PathBuf::from("/"), Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_the_account() {
        let text = "root:1:2\nmary:100000:65536\n\n1001:200000:65536\nmary:x:1\nmarylou:5:6\n";
        let ranges = parse_ranges(text, "mary", "1001");
        assert_eq!(ranges, [Range { first: 100_000, count: 65_536 }, Range { first: 200_000, count: 65_536 }]);
    }

    #[tokio::test]
    async fn this_machine_is_looked_at() {
        let folder = tempfile::tempdir().expect("folder");
        let facts = look(&folder.path().join("not/there/yet"), folder.path(), Path::new("/proc/nowhere")).await;
        let store = facts.disks.iter().find(|disk| disk.what == "store").expect("is looked at");
        assert!(store.filesystem.is_ok() && store.free > 0, "{store:?}");
        assert!(!facts.user.name.is_empty());
    }
}
