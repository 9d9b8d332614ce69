//! Apptainer's and its companions' command lines, as values: pure.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use longhaul_core::helper::{HELPER_PROGRAM, HELPER_SOCKETS};

use crate::gpus::Maker;

/// What `apptainer exec` is told for one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecPlan {
    /// The base image.
    pub image: PathBuf,
    /// The writable top, if there is one: a folder that holds `upper` and `work`.
    pub top: Option<PathBuf>,
    /// Read-only layers, the lowest first.
    pub layers: Vec<PathBuf>,
    /// Files and folders of the host that are seen inside.
    pub binds: Vec<BindPlan>,
    /// The name server that is written into resolv.conf.
    pub dns: Option<String>,
    /// Whose driver for graphics processors it gets, if it gets one.
    pub gpus: Option<Maker>,
    /// Whether to ask for a user namespace in so many words, as root has to.
    pub userns: bool,
    /// The program inside and its arguments.
    pub argv: Vec<String>,
}

/// One file or folder of the host that is seen inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindPlan {
    /// The path on the host.
    pub source: PathBuf,
    /// The path inside.
    pub target: PathBuf,
    /// Whether it may be written to.
    pub writable: bool,
}

/// Why a container cannot be described to Apptainer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Apptainer's `--mount` takes comma-separated values and has no way to quote these.
    #[error("`{0}` holds a character that Apptainer cannot take in a path (a quote, a comma or a line break)")]
    Path(PathBuf),
}

/// The name of the network namespace's interface that a way out is attached to.
pub const TAP: &str = "tap0";

/// The name server that slirp4netns answers as.
pub const SLIRP_DNS: &str = "10.0.2.3";

/// The arguments of `apptainer` for a container.
///
/// The host is kept out (`--containall --cleanenv --no-home`), except what is bound; /tmp
/// is part of the top and not a RAM disk of the job's; the helper is process 1 of the
/// container (`--no-init`), which has a network namespace of its own in every case.
pub fn exec(plan: &ExecPlan) -> Result<Vec<OsString>, PlanError> {
    let mut args: Vec<OsString> = [
        "--silent",
        "exec",
        "--fakeroot",
        "--containall",
        "--cleanenv",
        "--no-home",
        "--no-init",
        "--no-eval",
        "--no-mount",
        "tmp,hostfs,cwd,bind-paths",
        "--hostname",
        "sandbox",
        "--net",
        "--network",
        "none",
    ]
    .map(OsString::from)
    .into();
    if plan.userns {
        args.push("--userns".into());
    }
    if let Some(maker) = plan.gpus {
        args.push(maker.option().into());
    }
    if let Some(dns) = &plan.dns {
        args.extend(["--dns".into(), OsString::from(dns)]);
    }
    if let Some(top) = &plan.top {
        args.extend(["--overlay".into(), overlay(top, "")?]);
    }
    // Apptainer stacks in the order given, each further one above those before it.
    for layer in &plan.layers {
        args.extend(["--overlay".into(), overlay(layer, ":ro")?]);
    }
    for bind in &plan.binds {
        args.extend(["--mount".into(), mount(bind)?]);
    }
    args.push(plan.image.clone().into());
    args.extend(plan.argv.iter().map(OsString::from));
    Ok(args)
}

/// The program of a sandbox: the helper, serving.
#[must_use]
pub fn helper_argv() -> Vec<String> {
    vec![HELPER_PROGRAM.to_owned(), "serve".to_owned()]
}

/// What a sandbox needs bound beside what its env asks for.
#[must_use]
pub fn helper_binds(helper: &Path, sockets: &Path, x_sockets: &Path) -> Vec<BindPlan> {
    let bind = |source: &Path, target: &str, writable| BindPlan {
        source: source.to_owned(),
        target: PathBuf::from(target),
        writable,
    };
    vec![
        bind(helper, HELPER_PROGRAM, false),
        bind(sockets, HELPER_SOCKETS, true),
        bind(x_sockets, "/tmp/.X11-unix", true),
    ]
}

/// The arguments of `apptainer build` for an image out of a definition file.
#[must_use]
pub fn build(image: &Path, definition: &Path) -> Vec<OsString> {
    vec![
        "--silent".into(),
        "build".into(),
        "--force".into(),
        "--fakeroot".into(),
        "--mksquashfs-args".into(),
        "-comp zstd -Xcompression-level 3".into(),
        image.into(),
        definition.into(),
    ]
}

/// The arguments of `slirp4netns` for a way out of the container whose first process is
/// `pid` outside. It ends when its standard input is closed and says on its standard
/// output when it is ready; the host's own loopback is not reached.
#[must_use]
pub fn slirp(pid: i32) -> Vec<OsString> {
    let mut args: Vec<OsString> =
        ["--configure", "--mtu=65520", "--disable-host-loopback", "--exit-fd=0", "--ready-fd=1", "--netns-type=path"]
            .map(OsString::from)
            .into();
    args.push(format!("--userns-path=/proc/{pid}/ns/user").into());
    args.push(format!("/proc/{pid}/ns/net").into());
    args.push(TAP.into());
    args
}

/// The arguments of `mksquashfs`, inside a container, that packs the folder `from`.
///
/// Left out is what apt can fetch again and what only a running sandbox has a use for.
#[must_use]
pub fn pack(from: &str, to: &str) -> Vec<String> {
    let mut args: Vec<String> = [
        "mksquashfs",
        from,
        to,
        "-comp",
        "zstd",
        "-Xcompression-level",
        "3",
        "-noappend",
        "-no-progress",
        "-quiet",
        // A socket belongs to a process that is over; and what binds it again fails, since an
        // overlay through FUSE does not let the lower one be removed.
        "-action",
        "exclude @ type(s)",
        "-wildcards",
        "-e",
    ]
    .map(str::to_owned)
    .into();
    args.extend(LEFT_OUT.map(str::to_owned));
    args
}

/// What a layer leaves out, as patterns below its root.
pub const LEFT_OUT: [&str; 10] = [
    "var/cache/apt/archives/*.deb",
    "var/cache/apt/archives/partial/*",
    "var/cache/apt/*.bin",
    "var/lib/apt/lists/*",
    "run/longhaul*",
    "run/user/*",
    "tmp/.X*-lock",
    "tmp/.X11-unix/*",
    "tmp/runtime-*/*",
    "opt/longhaul/*",
];

fn overlay(path: &Path, suffix: &str) -> Result<OsString, PlanError> {
    // A colon starts the overlay's options, whatever else the path says.
    if path.as_os_str().to_string_lossy().contains(':') {
        return Err(PlanError::Path(path.to_owned()));
    }
    let mut value = path.as_os_str().to_owned();
    value.push(suffix);
    Ok(value)
}

fn mount(bind: &BindPlan) -> Result<OsString, PlanError> {
    for path in [&bind.source, &bind.target] {
        if path.as_os_str().to_string_lossy().contains([',', '"', '\n', '\r']) {
            return Err(PlanError::Path(path.clone()));
        }
    }
    let mut value = OsString::from("type=bind,source=");
    value.push(&bind.source);
    value.push(",destination=");
    value.push(&bind.target);
    if !bind.writable {
        value.push(",ro");
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(args: &[OsString]) -> String {
        args.iter().map(|arg| arg.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_sandbox_is_described_in_one_line() {
        let plan = ExecPlan {
            image: "/b/base.sif".into(),
            top: Some("/s/top".into()),
            layers: vec!["/l/install.sqsh".into(), "/l/configure.sqsh".into()],
            binds: vec![BindPlan { source: "/src dir".into(), target: "/workspace/x".into(), writable: false }],
            dns: Some(SLIRP_DNS.into()),
            gpus: None,
            userns: false,
            argv: helper_argv(),
        };
        assert_eq!(
            line(&exec(&plan).expect("fits")),
            "--silent exec --fakeroot --containall --cleanenv --no-home --no-init --no-eval --no-mount \
             tmp,hostfs,cwd,bind-paths --hostname sandbox --net --network none --dns 10.0.2.3 --overlay /s/top \
             --overlay /l/install.sqsh:ro --overlay /l/configure.sqsh:ro --mount type=bind,source=/src \
             dir,destination=/workspace/x,ro /b/base.sif /opt/longhaul/bin/helper serve"
        );
    }

    #[test]
    fn root_asks_for_its_user_namespace() {
        let plan = ExecPlan { userns: true, ..ExecPlan::default() };
        assert!(line(&exec(&plan).expect("fits")).contains(" --userns "));
    }

    #[test]
    fn the_driver_is_brought_by_its_makers_option() {
        for (maker, option) in [(Maker::Nvidia, " --nv "), (Maker::Amd, " --rocm ")] {
            let plan = ExecPlan { gpus: Some(maker), ..ExecPlan::default() };
            assert!(line(&exec(&plan).expect("fits")).contains(option));
        }
    }

    #[test]
    fn paths_that_would_be_misread_are_refused() {
        let bind = |path: &str| ExecPlan {
            binds: vec![BindPlan { source: path.into(), target: "/x".into(), writable: true }],
            ..ExecPlan::default()
        };
        assert_eq!(exec(&bind("/a,b")), Err(PlanError::Path("/a,b".into())));
        assert!(exec(&bind("/a b:c")).is_ok());
        let top = ExecPlan { top: Some("/a:ro".into()), ..ExecPlan::default() };
        assert_eq!(exec(&top), Err(PlanError::Path("/a:ro".into())));
    }

    #[test]
    fn the_way_out_belongs_to_one_process() {
        let args = line(&slirp(42));
        assert!(args.ends_with("--userns-path=/proc/42/ns/user /proc/42/ns/net tap0"), "{args}");
        assert!(args.contains("--disable-host-loopback"));
    }

    #[test]
    fn package_caches_are_left_out_of_layers() {
        let args = pack("/from", "/to").join(" ");
        assert!(args.starts_with("mksquashfs /from /to -comp zstd"), "{args}");
        assert!(args.contains(" -action exclude @ type(s) -wildcards -e var/cache/apt/archives/*.deb "), "{args}");
    }
}
