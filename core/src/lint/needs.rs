//! What an env needs of the machine that it runs on, as its spec and scripts show.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::shell::{Command, commands};
use crate::spec::{Code, Diagnostic, EnvSpec, Os, Place};

/// Something that an env needs beyond a plain container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    /// Services; the stand-in for `systemctl` gives them.
    Services,
    /// systemd itself.
    Systemd,
    /// Docker, or another engine that runs containers.
    Docker,
    /// snap.
    Snap,
    /// The host's kernel: modules, loop devices, virtualisation.
    Kernel,
    /// Windows.
    Windows,
    /// Android.
    Android,
    /// A graphics processor.
    Gpu,
}

impl Need {
    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::Systemd => "systemd",
            Self::Docker => "docker",
            Self::Snap => "snap",
            Self::Kernel => "kernel modules or devices",
            Self::Windows => "Windows",
            Self::Android => "Android",
            Self::Gpu => "a GPU",
        }
    }

    /// Whether a container cannot give it, whatever machine it is on.
    #[must_use]
    pub const fn is_beyond_a_container(self) -> bool {
        !matches!(self, Self::Services | Self::Gpu)
    }

    /// The code that lint reports it with.
    #[must_use]
    pub const fn code(self) -> Code {
        match self {
            Self::Services => Code::NeedsServices,
            Self::Systemd => Code::NeedsSystemd,
            Self::Docker => Code::NeedsDocker,
            Self::Snap => Code::NeedsSnap,
            Self::Kernel => Code::NeedsKernel,
            Self::Windows => Code::NeedsWindows,
            Self::Android => Code::NeedsAndroid,
            Self::Gpu => Code::NeedsGpu,
        }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Where a need was first seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// The file, as the reader names it.
    pub file: String,
    /// Where in it, if it is in a text.
    pub place: Option<Place>,
    /// What stands there.
    pub text: String,
}

/// The needs of one env, each with where it was first seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs(BTreeMap<Need, Evidence>);

impl Needs {
    /// What the spec itself shows; `file` is how the reader names its file.
    #[must_use]
    pub fn of_spec(spec: &EnvSpec, file: &str) -> Self {
        let mut needs = Self::default();
        let mut add = |need, text: String| needs.add(need, Evidence { file: file.to_owned(), place: None, text });
        match &spec.os {
            Os::Linux => {}
            Os::Windows => add(Need::Windows, "the system inside is Windows".to_owned()),
            Os::Android => add(Need::Android, "the system inside is Android".to_owned()),
            Os::Other(name) => {
                let name: String = name.chars().take(40).collect();
                add(Need::Kernel, format!("the system inside is `{name}`"));
            }
        }
        if spec.resources.gpus > 0 {
            add(Need::Gpu, format!("`resources.gpu` is {}", spec.resources.gpus));
        }
        needs
    }

    /// Adds what a script of the env's hooks shows.
    pub fn add_script(&mut self, file: &str, text: &str) {
        for command in commands(text) {
            if let Some(need) = need_of(&command) {
                let place = Place { line: command.line, column: 1 };
                let text: String = command.words.join(" ").chars().take(80).collect();
                self.add(need, Evidence { file: file.to_owned(), place: Some(place), text });
            }
        }
    }

    fn add(&mut self, need: Need, evidence: Evidence) {
        self.0.entry(need).or_insert(evidence);
    }

    /// The needs and where they were seen.
    pub fn iter(&self) -> impl Iterator<Item = (Need, &Evidence)> {
        self.0.iter().map(|(need, evidence)| (*need, evidence))
    }

    /// Those that a container cannot give.
    #[must_use]
    pub fn beyond_a_container(&self) -> Vec<Need> {
        self.0.keys().copied().filter(|need| need.is_beyond_a_container()).collect()
    }

    /// One diagnostic for each need, with the file that it is in; one that says so where
    /// there is none.
    #[must_use]
    pub fn diagnostics(&self, file: &str) -> Vec<(String, Diagnostic)> {
        let diagnostic = |(need, evidence): (Need, &Evidence)| {
            let message = format!("the env needs {need}: {}", evidence.text);
            (evidence.file.clone(), Diagnostic::new(need.code(), message).at(evidence.place))
        };
        if self.0.is_empty() {
            let message = "the env runs in a plain container";
            return vec![(file.to_owned(), Diagnostic::new(Code::NeedsContainer, message))];
        }
        self.iter().map(diagnostic).collect()
    }
}

/// What a command needs. One that the script can do without shows no need, but for
/// docker: where it is used at all, the env's program lives in it.
fn need_of(command: &Command) -> Option<Need> {
    let mut words = command.words.iter().map(String::as_str);
    let program = words.next()?;
    let verb = words.clone().find(|word| !word.starts_with('-')).unwrap_or_default();
    if words.clone().any(|word| matches!(word, "--version" | "--help")) {
        return None;
    }
    // A script that asks first has another way.
    let asks = command.optional || command.conditions.contains(program);
    match program {
        "docker" | "podman" => {
            const USES: &[&str] = &[
                "run", "compose", "pull", "build", "buildx", "exec", "start", "load", "create", "network", "volume",
                "swarm",
            ];
            USES.contains(&verb).then_some(Need::Docker)
        }
        "docker-compose" | "dockerd" | "podman-compose" | "containerd" => Some(Need::Docker),
        "systemctl" if words.clone().any(|word| word == "--user") => (!asks).then_some(Need::Systemd),
        "systemctl" | "service" => (!verb.is_empty()).then_some(Need::Services),
        "systemd-run" | "systemd-nspawn" | "machinectl" => (!asks).then_some(Need::Systemd),
        "snap" => (matches!(verb, "install" | "run" | "refresh" | "connect") && !asks).then_some(Need::Snap),
        "modprobe" | "insmod" | "losetup" => (!asks).then_some(Need::Kernel),
        "mount" => {
            let loops = words.clone().any(|word| word.contains("loop") || word.starts_with("/dev/"));
            (loops && !asks).then_some(Need::Kernel)
        }
        _ if program.starts_with("qemu-system-") || program == "virsh" => (!asks).then_some(Need::Kernel),
        "apt-get" | "apt" | "install_packages" => {
            let installs = words.clone().any(|word| word == "install");
            let engine = words.clone().any(|word| matches!(word, "docker.io" | "docker-ce" | "docker-compose-plugin"));
            (installs && engine).then_some(Need::Docker)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(script: &str) -> Vec<Need> {
        let mut needs = Needs::default();
        needs.add_script("s.sh", script);
        needs.iter().map(|(need, _)| need).collect()
    }

    #[test]
    fn needs_are_seen_in_what_runs_and_not_in_what_is_said() {
        let cases: &[(&str, &[Need])] = &[
            ("# docker run x\necho \"docker run x\"\nif command -v docker; then echo; fi", &[]),
            ("sudo docker compose -f x up -d", &[Need::Docker]),
            ("cd /x && docker-compose up -d || true", &[Need::Docker]),
            ("apt-get install -y curl docker.io", &[Need::Docker]),
            ("docker --version", &[]),
            ("systemctl enable --now nginx || service nginx start", &[Need::Services]),
            ("systemctl --user start x", &[Need::Systemd]),
            ("systemctl --user start x || true", &[]),
            ("snap install x --classic", &[Need::Snap]),
            ("snap install x || apt-get install x", &[]),
            ("snap list | grep x; snap remove firefox", &[]),
            ("if command -v snap; then\n  snap install x\nelse\n  apt-get install x\nfi", &[]),
            ("qemu-system-x86_64 --version", &[]),
            ("modprobe loop\nmount -o loop a.iso /mnt", &[Need::Kernel]),
            ("mount | grep x; modprobe y || true", &[]),
        ];
        for (script, expected) in cases {
            assert_eq!(needs(script), *expected, "{script}");
        }
    }

    #[test]
    fn a_need_says_where_it_was_seen_first() {
        let mut needs = Needs::default();
        needs.add_script("install.sh", "true\n  docker pull a\ndocker run b\n");
        let found = needs.diagnostics("env.json");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, "install.sh");
        assert_eq!(found[0].1.place, Some(Place { line: 2, column: 1 }));
        assert!(found[0].1.message.contains("docker pull a"));
        assert_eq!(needs.beyond_a_container(), [Need::Docker]);
        assert_eq!(Needs::default().diagnostics("env.json")[0].1.code, Code::NeedsContainer);
    }
}
