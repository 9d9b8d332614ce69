//! What is said for given facts: pure.

use longhaul_apptainer::filesystem::Kind;

use super::facts::{Disk, Facts, Range};
use super::{Check, Fix, Outcome, Who};

/// The further ids that a container with ordinary accounts needs.
const IDS: u64 = 65_536;

/// The room that a first run needs: a base image while it is built, and some layers.
const ROOM: u64 = 10 * GIB;

const GIB: u64 = 1024 * 1024 * 1024;

/// The files that a first run makes: caches, views and tops of some sandboxes.
const FILES: u64 = 200_000;

/// Judges what was seen.
#[must_use]
pub fn judge(facts: &Facts) -> Vec<Check> {
    let mut checks = vec![
        apptainer(facts),
        user(facts),
        ids(facts, "/etc/subuid", &facts.subuids),
        ids(facts, "/etc/subgid", &facts.subgids),
        newidmap(facts),
        userns(facts),
        fuse(facts),
        fuse_programs(facts),
        tun(facts),
        slirp(facts),
        builder(facts),
        gpus(facts),
    ];
    checks.extend(facts.disks.iter().map(disk));
    checks.push(good("on the host", "neither X, python3 nor a window manager is needed: they are in the base image"));
    checks
}

fn good(name: &'static str, found: impl Into<String>) -> Check {
    Check { name, outcome: Outcome::Good, found: found.into(), fix: None, without: None }
}

fn bad(name: &'static str, outcome: Outcome, found: impl Into<String>, who: Who, fix: impl Into<String>) -> Check {
    Check { name, outcome, found: found.into(), fix: Some(Fix { who, text: fix.into() }), without: None }
}

fn apptainer(facts: &Facts) -> Check {
    const FIX: &str = "On a cluster, look for a module: `module load apptainer`.\n\
        Else install it from your distribution or from https://apptainer.org, version 1.1 or later;\n\
        no set-user-id part is needed.";
    match &facts.apptainer {
        Ok((path, version)) => good("Apptainer", format!("{version}, {}", path.display())),
        Err(why) => bad("Apptainer", Outcome::Missing, why.as_str(), Who::You, FIX),
    }
}

fn user(facts: &Facts) -> Check {
    if !facts.user.root {
        return good("account", facts.user.name.as_str());
    }
    bad(
        "account",
        Outcome::Warning,
        "root",
        Who::You,
        "Run as an ordinary account: sandboxes are made for one, and for root some machines refuse parts of them.",
    )
}

fn ids(facts: &Facts, file: &'static str, ranges: &[Range]) -> Check {
    let count: u64 = ranges.iter().map(|range| range.count).fold(0, u64::saturating_add);
    let Some(first) = ranges.iter().find(|range| range.count >= IDS) else {
        let option = if file == "/etc/subuid" { "--add-subuids" } else { "--add-subgids" };
        let name = &facts.user.name;
        return bad(
            file,
            Outcome::Missing,
            format!("{count} ids for {name}; {IDS} in one range are needed"),
            Who::Administrator,
            format!(
                "Please give the account {name} a range of {IDS} subordinate ids in {file} on every node,\n\
                 one that no other account has; for example:\n\
                 \x20   usermod {option} 100000-165535 {name}\n\
                 Rootless containers need it to have more than one account inside."
            ),
        );
    };
    good(file, format!("{} ids from {}", first.count, first.first))
}

fn newidmap(facts: &Facts) -> Check {
    if facts.newidmap {
        return good("newuidmap", "newuidmap and newgidmap are there");
    }
    bad(
        "newuidmap",
        Outcome::Missing,
        "newuidmap or newgidmap is not on the PATH",
        Who::Administrator,
        "Please install newuidmap and newgidmap on every node (package `uidmap` on Debian and Ubuntu,\n\
         `shadow-utils` on Fedora and its kin), set-user-id root as packaged.",
    )
}

fn userns(facts: &Facts) -> Check {
    match &facts.userns_refused {
        None => good("user namespaces", "allowed for ordinary accounts"),
        Some(why) => bad(
            "user namespaces",
            Outcome::Missing,
            why.as_str(),
            Who::Administrator,
            "Please allow unprivileged user namespaces on every node:\n\
             \x20   sysctl -w user.max_user_namespaces=15000\n\
             and, where these settings exist,\n\
             \x20   sysctl -w kernel.unprivileged_userns_clone=1\n\
             \x20   sysctl -w kernel.apparmor_restrict_unprivileged_userns=0\n\
             Rootless containers are made of them.",
        ),
    }
}

fn fuse(facts: &Facts) -> Check {
    match &facts.fuse {
        Ok(()) => good("/dev/fuse", "can be opened"),
        Err(why) => bad(
            "/dev/fuse",
            Outcome::Missing,
            why.as_str(),
            Who::Administrator,
            "Please let every account open /dev/fuse (mode 0666, module `fuse` loaded) on every node:\n\
             rootless containers mount their images through it.",
        ),
    }
}

fn fuse_programs(facts: &Facts) -> Check {
    let absent: Vec<&str> =
        ["fuse-overlayfs", "squashfuse", "mksquashfs"].into_iter().filter(|program| !facts.has(program)).collect();
    if absent.is_empty() {
        return good("image tools", "fuse-overlayfs, squashfuse and mksquashfs are there");
    }
    Check {
        without: Some("Apptainer may bring its own copies; where a sandbox starts, nothing is missing"),
        ..bad(
            "image tools",
            Outcome::Warning,
            format!("not on the PATH: {}", absent.join(", ")),
            Who::Administrator,
            "Please install `fuse-overlayfs`, `squashfuse` and `squashfs-tools` on every node.",
        )
    }
}

/// What works without a way out to the network.
const NO_NET: &str = "envs that need no network run; those that do are refused, and layers that install \
    packages have to be built elsewhere and carried over (`longhaul layers build` there)";

fn tun(facts: &Facts) -> Check {
    match &facts.tun {
        Ok(()) => good("/dev/net/tun", "can be opened"),
        Err(why) => Check {
            without: Some(NO_NET),
            ..bad(
                "/dev/net/tun",
                Outcome::Warning,
                why.as_str(),
                Who::Administrator,
                "Please let every account open /dev/net/tun (mode 0666, module `tun` loaded) on every node:\n\
                 sandboxes reach the network through it.",
            )
        },
    }
}

fn slirp(facts: &Facts) -> Check {
    if facts.has("slirp4netns") {
        return good("slirp4netns", "is there");
    }
    Check {
        without: Some(NO_NET),
        ..bad(
            "slirp4netns",
            Outcome::Warning,
            "not on the PATH",
            Who::Administrator,
            "Please install `slirp4netns` on every node: sandboxes reach the network through it.\n\
             (It is one static program and needs no privileges: a copy in your own PATH does as well.)",
        )
    }
}

fn builder(facts: &Facts) -> Check {
    if facts.has("mmdebstrap") {
        return good("mmdebstrap", "is there: the built-in base image can be made here");
    }
    Check {
        without: Some("a base image that was made elsewhere is used: name its file with `--base`"),
        ..bad(
            "mmdebstrap",
            Outcome::Warning,
            "not on the PATH",
            Who::You,
            "Install `mmdebstrap` where the base image is made (any Debian or Ubuntu machine), or copy the\n\
             finished image from there.",
        )
    }
}

fn gpus(facts: &Facts) -> Check {
    const NAME: &str = "graphics processors";
    let Some((gpus, driver)) = &facts.gpus else {
        return good(NAME, "none; envs that ask for one run on other machines");
    };
    let (maker, ids) = (gpus.maker(), gpus.ids());
    let found = format!("{} of {} for this process: {}", ids.len(), maker.name(), ids.join(", "));
    match driver {
        Some(driver) => good(NAME, format!("{found} (`{}`; {driver})", maker.option())),
        None => bad(
            NAME,
            Outcome::Warning,
            format!("{found}, and no driver: there is no {}", maker.driver()),
            Who::Administrator,
            format!("Please load the driver of {} for the devices that are there.", maker.name()),
        ),
    }
}

fn disk(disk: &Disk) -> Check {
    let found = match &disk.filesystem {
        Ok(found) => found,
        Err(why) => {
            return bad(
                disk.what,
                Outcome::Missing,
                format!("{}: {why}", disk.path.display()),
                Who::You,
                "Name a folder that you can write to (options `--store`, `--layers`, `--scratch`, or the settings file).",
            );
        }
    };
    let (kind, networked) = (found.kind, found.kind == Kind::Shared);
    let files = disk.files.map(|files| format!(", room for {files} files")).unwrap_or_default();
    let mounted = found.mounted_at.as_ref().filter(|_| networked);
    let mounted = mounted.map(|place| format!(" (mounted at {})", place.display())).unwrap_or_default();
    let found = format!("{}: {}{mounted}, {:.1} GiB free{files}", disk.path.display(), found.name, tenths(disk.free));
    match disk.what {
        "scratch" if networked => bad(
            disk.what,
            Outcome::Missing,
            found,
            Who::You,
            "Name a folder on this node's own disk (`--scratch`, or TMPDIR): the writable part of a sandbox\n\
             cannot lie on a network file system.",
        ),
        "scratch" if kind == Kind::Memory => bad(
            disk.what,
            Outcome::Warning,
            found,
            Who::You,
            "Name a folder on a disk (`--scratch`, or TMPDIR): what sandboxes write here is taken from memory.",
        ),
        "store" if networked => bad(
            disk.what,
            Outcome::Warning,
            found,
            Who::You,
            "Name a folder on a local disk for the store (`--store`): a network file system may lose what it\n\
             said was written, and its locks may not hold.",
        ),
        _ if disk.free < ROOM => bad(
            disk.what,
            Outcome::Warning,
            found,
            Who::You,
            format!("Free some space, or name another folder: a first run writes up to {} GiB.", ROOM / GIB),
        ),
        _ if disk.files.is_some_and(|files| files < FILES) => bad(
            disk.what,
            Outcome::Warning,
            found,
            Who::You,
            format!("Remove files, or name another folder: a first run makes up to {FILES} files (inodes)."),
        ),
        _ => good(disk.what, found),
    }
}

/// Bytes in GiB, to a tenth; shown and nothing more.
#[expect(clippy::cast_precision_loss, reason = "a figure for people, to one decimal")]
fn tenths(bytes: u64) -> f64 {
    bytes as f64 / GIB as f64
}

#[cfg(test)]
mod tests {
    use longhaul_apptainer::filesystem::FileSystem;
    use longhaul_apptainer::{Gpus, Maker, Version};

    use super::super::facts::User;
    use super::super::render;
    use super::*;

    fn whole() -> Facts {
        let disk = |what, path: &str| Disk {
            what,
            path: path.into(),
            filesystem: Ok(FileSystem::named("ext4")),
            free: 100 * GIB,
            files: Some(10 * FILES),
        };
        Facts {
            user: User { name: "mary".into(), root: false },
            apptainer: Ok(("/usr/bin/apptainer".into(), Version { major: 1, minor: 4, patch: 5 })),
            subuids: vec![Range { first: 100_000, count: IDS }],
            subgids: vec![Range { first: 100_000, count: IDS }],
            newidmap: true,
            userns_refused: None,
            fuse: Ok(()),
            tun: Ok(()),
            gpus: None,
            absent: Vec::new(),
            disks: vec![disk("scratch", "/local"), disk("layers", "/shared"), disk("store", "/home/mary/store")],
        }
    }

    fn outcome(facts: &Facts, name: &str) -> Outcome {
        judge(facts).iter().find(|check| check.name == name).expect("is looked at").outcome
    }

    #[test]
    fn a_whole_machine_has_no_trouble() {
        let checks = judge(&whole());
        assert!(checks.iter().all(|check| check.outcome == Outcome::Good), "{checks:?}");
        assert!(render(&checks, false).ends_with("\nThis machine can run sandboxes.\n"));
    }

    #[test]
    fn what_only_an_administrator_can_mend_is_a_text_to_send() {
        let facts = Facts { subuids: vec![Range { first: 1, count: 1000 }], ..whole() };
        let checks = judge(&facts);
        let check = checks.iter().find(|check| check.name == "/etc/subuid").expect("is looked at");
        assert_eq!(check.outcome, Outcome::Missing);
        let fix = check.fix.as_ref().expect("says how");
        assert_eq!(fix.who, Who::Administrator);
        assert!(fix.text.contains("usermod --add-subuids 100000-165535 mary"), "{}", fix.text);
        assert!(render(&checks, false).contains("cannot run sandboxes yet: 1 of"));
    }

    #[test]
    fn what_works_less_well_is_a_warning_and_says_what_still_works() {
        let facts =
            Facts { tun: Err("permission denied".into()), absent: vec!["slirp4netns", "mmdebstrap"], ..whole() };
        for name in ["/dev/net/tun", "slirp4netns", "mmdebstrap"] {
            let checks = judge(&facts);
            let check = checks.iter().find(|check| check.name == name).expect("is looked at");
            assert!(check.outcome == Outcome::Warning && check.without.is_some(), "{check:?}");
        }
    }

    #[test]
    fn graphics_processors_are_named_with_their_driver_and_missed_by_nobody() {
        let gpus = |driver: Option<&str>| {
            let found = Gpus::new(Maker::Nvidia, vec!["2".into(), "3".into()]).expect("there are some");
            Facts { gpus: Some((found, driver.map(str::to_owned))), ..whole() }
        };
        let check = |facts: &Facts| {
            judge(facts).into_iter().find(|check| check.name == "graphics processors").expect("is looked at")
        };
        let found = check(&gpus(Some("NVRM version: 550.1")));
        assert_eq!(
            (found.outcome, found.found.as_str()),
            (Outcome::Good, "2 of NVIDIA for this process: 2, 3 (`--nv`; NVRM version: 550.1)",)
        );
        assert_eq!(check(&gpus(None)).outcome, Outcome::Warning);
        assert_eq!(check(&whole()).outcome, Outcome::Good);
    }

    #[test]
    fn file_systems_are_judged_by_their_use() {
        let mut facts = whole();
        for disk in &mut facts.disks {
            disk.filesystem = Ok(FileSystem::named("nfs4"));
        }
        assert_eq!(outcome(&facts, "scratch"), Outcome::Missing);
        assert_eq!(outcome(&facts, "store"), Outcome::Warning);
        assert_eq!(outcome(&facts, "layers"), Outcome::Good, "layers are made to be shared");
        facts.disks.iter_mut().for_each(|disk| disk.filesystem = Ok(FileSystem::named("xfs")));
        facts.disks.iter_mut().for_each(|disk| disk.free = GIB);
        assert_eq!(outcome(&facts, "layers"), Outcome::Warning);
        facts.disks.iter_mut().for_each(|disk| disk.free = 100 * GIB);
        assert_eq!(outcome(&facts, "scratch"), Outcome::Good);
        facts.disks.iter_mut().for_each(|disk| disk.files = Some(FILES - 1));
        assert_eq!(outcome(&facts, "scratch"), Outcome::Warning, "a disk can run out of files");
        facts.disks.iter_mut().for_each(|disk| disk.filesystem = Ok(FileSystem::named("fuse.sshfs")));
        assert_eq!(outcome(&facts, "scratch"), Outcome::Missing);
    }

    #[test]
    fn text_from_outside_cannot_command_the_terminal() {
        let mut facts = whole();
        facts.apptainer = Err("\u{1b}[2Jgone".into());
        assert!(!render(&judge(&facts), false).contains('\u{1b}'));
    }
}
