//! Graphics processors: which of a node's may be given to sandboxes, and how one gets some of them.
//!
//! Apptainer brings the driver's devices and libraries into a container (`--nv`, `--rocm`), those of all
//! processors at once. Which of them a program uses is said to it by a variable: a program that does not
//! heed that reaches its neighbour's, as long as the site does not confine jobs to their devices.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use longhaul_core::helper::CommandSpec;

use crate::accounts::PROFILE;
use crate::sandbox::{Sandbox, SandboxError};

/// Whose driver serves them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// NVIDIA: CUDA and what stands on it.
    Nvidia,
    /// AMD: `ROCm`.
    Amd,
}

impl Maker {
    /// The option of Apptainer's that brings the driver into a container.
    #[must_use]
    pub const fn option(self) -> &'static str {
        match self {
            Self::Nvidia => "--nv",
            Self::Amd => "--rocm",
        }
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nvidia => "NVIDIA",
            Self::Amd => "AMD",
        }
    }

    /// The file that says which driver is loaded.
    #[must_use]
    pub const fn driver(self) -> &'static str {
        match self {
            Self::Nvidia => "/proc/driver/nvidia/version",
            Self::Amd => "/sys/module/amdgpu/version",
        }
    }

    /// Variables that say which processors a program may use. Of AMD's several only the lowest one, or
    /// the others would count within what that one leaves.
    const fn variables(self) -> &'static [&'static str] {
        match self {
            Self::Nvidia => &["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"],
            Self::Amd => &["ROCR_VISIBLE_DEVICES"],
        }
    }

    /// Where Slurm, or a person, says which processors this process may use; the first that is set counts.
    /// Where a site confines jobs to their devices, the runtime's own variable counts within those, and
    /// Slurm's do not.
    const fn said_by(self) -> &'static [&'static str] {
        match self {
            Self::Nvidia => &["CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"],
            Self::Amd => &["ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"],
        }
    }
}

/// Graphics processors of one maker; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpus {
    maker: Maker,
    ids: Vec<String>,
}

impl Gpus {
    /// These, as the maker's runtime names them; none if there are none.
    #[must_use]
    pub fn new(maker: Maker, ids: Vec<String>) -> Option<Self> {
        (!ids.is_empty()).then_some(Self { maker, ids })
    }

    /// Those that this process may give out: what `var` says of the environment, else, outside of an
    /// allocation, all that a node has whose folder of devices holds `devices`. In an allocation that says
    /// nothing of them it was given none. Pure.
    #[must_use]
    pub fn granted<'a>(
        devices: impl IntoIterator<Item = &'a str>,
        var: impl Fn(&str) -> Option<String>,
    ) -> Option<Self> {
        let devices: BTreeSet<&str> = devices.into_iter().collect();
        let numbered = |prefix: &str| {
            let numbers = devices.iter().filter_map(|name| name.strip_prefix(prefix)?.parse::<u32>().ok());
            numbers.collect::<BTreeSet<u32>>()
        };
        let (nvidia, rendering) = (numbered("nvidia"), numbered("dri/renderD"));
        let (maker, all) = if !nvidia.is_empty() {
            (Maker::Nvidia, nvidia.iter().map(ToString::to_string).collect())
        } else if devices.contains("kfd") && !rendering.is_empty() {
            (Maker::Amd, (0..rendering.len()).map(|index| index.to_string()).collect())
        } else {
            return None;
        };
        let said = maker.said_by().iter().find_map(|name| var(name));
        let ids = match said {
            Some(said) => parse(&said),
            None if var("SLURM_JOB_ID").is_some_and(|job| !job.is_empty()) => Vec::new(),
            None => all,
        };
        Self::new(maker, ids)
    }

    /// As [`Gpus::granted`], of the devices in `folder`: `/dev`.
    ///
    /// # Errors
    ///
    /// The folder cannot be read.
    pub fn look(folder: &Path, var: impl Fn(&str) -> Option<String>) -> io::Result<Option<Self>> {
        let mut names = Vec::new();
        for (below, prefix) in [("", ""), ("dri", "dri/")] {
            let entries = match fs::read_dir(folder.join(below)) {
                Err(error) if !below.is_empty() && error.kind() == io::ErrorKind::NotFound => continue,
                entries => entries?,
            };
            for entry in entries {
                names.push(format!("{prefix}{}", entry?.file_name().to_string_lossy()));
            }
        }
        Ok(Self::granted(names.iter().map(String::as_str), var))
    }

    /// Whose they are.
    #[must_use]
    pub const fn maker(&self) -> Maker {
        self.maker
    }

    /// What the maker's runtime calls them.
    #[must_use]
    pub fn ids(&self) -> &[String] {
        &self.ids
    }

    /// The first of them that no other worker of this node has, and the locks in `folder` by which others
    /// know that these are taken now: for as long as the locks are held. Where `job` shares processors
    /// out, only its own workers count: the same name may be another processor in another job.
    ///
    /// # Errors
    ///
    /// A lock cannot be made.
    pub fn claim(self, most: usize, job: Option<&str>, folder: &Path) -> Result<(Option<Self>, Vec<File>), ClaimError> {
        let (mut ids, mut locks) = (Vec::new(), Vec::new());
        for id in self.ids {
            if locks.len() == most {
                break;
            }
            if let Some(lock) = lock(&folder.join(lock_name(self.maker, job, &id)))? {
                ids.push(id);
                locks.push(lock);
            }
        }
        Ok((Self::new(self.maker, ids), locks))
    }

    /// What says to a program that these are its own, as `NAME=VALUE`.
    fn variables(&self) -> Vec<String> {
        let ids = self.ids.join(",");
        self.maker.variables().iter().map(|name| format!("{name}={ids}")).collect()
    }
}

/// A lock of a graphics processor cannot be made.
#[derive(Debug, thiserror::Error)]
#[error("{path} cannot be made or locked")]
pub struct ClaimError {
    path: PathBuf,
    source: io::Error,
}

/// The name of a processor's lock; `/` is in the names of parts of processors.
fn lock_name(maker: Maker, job: Option<&str>, id: &str) -> String {
    let of_job = job.map(|job| format!("job{job}-")).unwrap_or_default();
    format!("longhaul-gpu-{of_job}{}-{id}.lock", maker.name()).replace('/', "_")
}

/// Locks a file, which anybody may do and nobody writes to; nothing if somebody has.
fn lock(path: &Path) -> Result<Option<File>, ClaimError> {
    let failed = |source| ClaimError { path: path.to_owned(), source };
    // Never through a link of somebody else's, in a folder that all may write to, nor waiting for who might
    // write to a pipe of theirs.
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
    let open = || OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = match open() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            match OpenOptions::new().read(true).write(true).create_new(true).mode(0o644).open(path) {
                // Another worker was faster.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => open(),
                made => made,
            }
        }
        opened => opened,
    };
    let file = file.map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(source)) => Err(failed(source)),
    }
}

/// A list as the runtimes read it: numbers, ranges of them, and names; it ends with the first entry that is
/// neither (`-1`, `NoDevFiles`), and an entry that comes twice is one.
fn parse(list: &str) -> Vec<String> {
    /// More than any node has: a range is text from outside.
    const MOST: u32 = 256;
    let mut ids: Vec<String> = Vec::new();
    for entry in list.split(',').map(str::trim) {
        let is_name = entry.starts_with("GPU-") || entry.starts_with("MIG-");
        let named = is_name && entry.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'/'));
        let (first, last) = entry.split_once('-').unwrap_or((entry, entry));
        let found: Vec<String> = match (first.parse::<u32>(), last.parse::<u32>()) {
            (Ok(first), Ok(last)) if last < MOST => (first..=last).map(|id| id.to_string()).collect(),
            _ if named => vec![entry.to_owned()],
            _ => break,
        };
        ids.extend(found);
    }
    let mut seen = BTreeSet::new();
    ids.retain(|id| seen.insert(id.clone()));
    ids
}

/// Says to every program of a sandbox which processors are its own, and where the driver's libraries are:
/// hooks, login shells and desktops have no environment in common, so it is written where each of them looks.
pub(crate) async fn equip(sandbox: &Sandbox, gpus: &Gpus) -> Result<(), SandboxError> {
    let ended = sandbox
        .run(CommandSpec {
            argv: command(gpus),
            user: "root".to_owned(),
            env: [("LONGHAUL_PROFILE".to_owned(), PROFILE.to_owned())].into(),
            limit_millis: 60_000,
            output_limit: 2000,
            ..CommandSpec::default()
        })
        .await?;
    if ended.code == 0 { Ok(()) } else { Err(SandboxError::Gpus { code: ended.code, output: ended.output }) }
}

/// The command that does so; what varies is its arguments.
fn command(gpus: &Gpus) -> Vec<String> {
    const SCRIPT: &str = r#"
set -e
# Where Apptainer binds what it found of the driver.
libs=/.singularity.d/libs
if [ -n "$(ls -A "$libs" 2>/dev/null)" ]; then
  printf '%s\n' "$libs" >/etc/ld.so.conf.d/00-longhaul-gpus.conf
  ldconfig
fi
folder=/etc/longhaul/environment
install -d -m 0755 "$folder"
while IFS=: read -r name _ uid gid _; do
  case $name in ''|*/*) continue ;; esac
  if [ "$uid" -eq 0 ] || { [ "$uid" -ge 1000 ] && [ "$uid" -lt 60000 ]; }; then
    printf '%s\n' "$@" >>"$folder/$name"
    chgrp -- "$gid" "$folder/$name"
    chmod 0640 -- "$folder/$name"
  fi
done </etc/passwd
printf '%s' "$LONGHAUL_PROFILE" >/etc/profile.d/longhaul-accounts.sh
"#;
    let mut argv: Vec<String> = ["/bin/bash", "-c", SCRIPT, "gpus"].map(str::to_owned).into();
    argv.extend(gpus.variables());
    argv
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is given out of these devices and variables.
    fn granted(devices: &[&str], variables: &[(&str, &str)]) -> Option<(Maker, String)> {
        let var = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        let gpus = Gpus::granted(devices.iter().copied(), var)?;
        Some((gpus.maker(), gpus.ids().join(" ")))
    }

    const NVIDIA: [&str; 6] = ["null", "nvidia10", "nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"];
    const AMD: [&str; 4] = ["kfd", "dri/card0", "dri/renderD128", "dri/renderD129"];

    #[test]
    fn outside_of_an_allocation_all_of_the_nodes_are_given_out() {
        assert_eq!(granted(&NVIDIA, &[]), Some((Maker::Nvidia, "0 1 10".to_owned())));
        assert_eq!(granted(&AMD, &[]), Some((Maker::Amd, "0 1".to_owned())));
        assert_eq!(granted(&["null", "nvidiactl", "dri/renderD128"], &[]), None, "there is no device that computes");
    }

    #[test]
    fn an_allocation_gives_out_what_it_was_given_and_nothing_else() {
        let job = ("SLURM_JOB_ID", "7");
        let nvidia = |variables: &[_]| granted(&NVIDIA, &[&[job], variables].concat()).map(|(_, ids)| ids);
        assert_eq!(nvidia(&[]), None, "nothing says that any is ours");
        assert_eq!(nvidia(&[("SLURM_JOB_GPUS", "2,3")]), Some("2 3".to_owned()));
        // Within a job that is confined to its devices, these are counted from 0.
        assert_eq!(nvidia(&[("SLURM_JOB_GPUS", "2,3"), ("CUDA_VISIBLE_DEVICES", "0,1")]), Some("0 1".to_owned()));
        assert_eq!(nvidia(&[("SLURM_JOB_GPUS", "2"), ("CUDA_VISIBLE_DEVICES", "")]), None);
        assert_eq!(granted(&AMD, &[job, ("SLURM_JOB_GPUS", "1")]), Some((Maker::Amd, "1".to_owned())));
        assert_eq!(granted(&AMD, &[job, ("ROCR_VISIBLE_DEVICES", "0"), ("SLURM_JOB_GPUS", "1")]).unwrap().1, "0");
    }

    #[test]
    fn lists_are_read_as_the_runtimes_read_them() {
        for (list, ids) in [
            ("0,2", "0 2"),
            ("0-2, 5", "0 1 2 5"),
            ("1,1", "1"),
            ("0,-1,1", "0"),
            ("NoDevFiles", ""),
            ("", ""),
            ("GPU-5ebe9f43-ac33420d4628,MIG-GPU-5ebe/1/0", "GPU-5ebe9f43-ac33420d4628 MIG-GPU-5ebe/1/0"),
            ("GPU-$(reboot)", ""),
            ("0-4294967295", ""),
        ] {
            assert_eq!(parse(list).join(" "), ids, "{list:?}");
        }
    }

    #[test]
    fn devices_are_looked_for_in_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let look = || Gpus::look(folder.path(), |_| None).unwrap();
        assert_eq!(look(), None);
        fs::create_dir(folder.path().join("dri")).unwrap();
        for name in ["kfd", "dri/renderD128"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(look(), Gpus::new(Maker::Amd, vec!["0".to_owned()]));
        fs::write(folder.path().join("nvidia0"), "").unwrap();
        assert_eq!(look().map(|gpus| gpus.maker()), Some(Maker::Nvidia));
        assert!(Gpus::look(&folder.path().join("nowhere"), |_| None).is_err());
    }

    #[test]
    fn a_sandbox_is_told_its_own_as_arguments_of_one_script() {
        let gpus = |maker, ids: &[&str]| Gpus::new(maker, ids.iter().map(|id| (*id).to_owned()).collect()).unwrap();
        let told = |gpus: &Gpus| command(gpus).split_off(4);
        assert_eq!(told(&gpus(Maker::Nvidia, &["1", "3"])), ["CUDA_VISIBLE_DEVICES=1,3", "NVIDIA_VISIBLE_DEVICES=1,3"]);
        assert_eq!(told(&gpus(Maker::Amd, &["0"])), ["ROCR_VISIBLE_DEVICES=0"]);
    }

    #[test]
    fn two_workers_of_one_node_have_none_in_common() {
        let folder = tempfile::tempdir().unwrap();
        let claim = |most, job: Option<&str>| {
            let gpus = Gpus::new(Maker::Nvidia, ["0", "MIG-GPU-5ebe/1/0", "2"].map(str::to_owned).into()).unwrap();
            let (gpus, locks) = gpus.claim(most, job, folder.path()).unwrap();
            (gpus.map(|gpus| gpus.ids().join(" ")).unwrap_or_default(), locks)
        };
        let (one, locks) = claim(1, None);
        assert_eq!((one.as_str(), locks.len()), ("0", 1));
        let (two, _held) = claim(9, None);
        assert_eq!(two, "MIG-GPU-5ebe/1/0 2");
        assert_eq!(claim(9, None).0, "", "all are taken");
        assert_eq!(claim(9, Some("7")).0, "0 MIG-GPU-5ebe/1/0 2", "within a job, names are its own");
        assert_eq!(claim(0, Some("7")).0, "");
        drop(locks);
        assert_eq!(claim(9, None).0, "0", "its worker is gone");
    }

    #[test]
    fn a_link_of_somebody_elses_is_no_lock() {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join(lock_name(Maker::Amd, None, "0"));
        std::os::unix::fs::symlink(folder.path().join("elsewhere"), name).unwrap();
        let gpus = Gpus::new(Maker::Amd, vec!["0".to_owned()]).unwrap();
        assert!(gpus.claim(1, None, folder.path()).is_err());
        assert!(!folder.path().join("elsewhere").exists());
    }

    #[test]
    fn a_pipe_of_somebody_elses_holds_up_no_worker() {
        let folder = tempfile::tempdir().unwrap();
        let name = folder.path().join(lock_name(Maker::Amd, None, "0"));
        assert!(std::process::Command::new("mkfifo").arg(name).status().unwrap().success());
        let gpus = Gpus::new(Maker::Amd, vec!["0".to_owned()]).unwrap();
        assert_eq!(gpus.claim(1, None, folder.path()).unwrap().1.len(), 1);
    }
}
