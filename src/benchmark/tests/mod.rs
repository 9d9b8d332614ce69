//! Small benchmarks of the project's own, one for each thing that can be odd.

mod corpus;
mod lint;
mod plan;
mod rounds;
mod select;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{Benchmark, Depth};

/// A benchmark in a folder of its own, at `clone/benchmarks/small`.
pub(super) struct Small {
    folder: tempfile::TempDir,
}

impl Small {
    /// One env with one task that is all right: lint says nothing but that it needs
    /// nothing.
    pub(super) fn new() -> Self {
        let small = Self { folder: tempfile::tempdir().unwrap() };
        small.add_env("paint_env");
        small.add_task("paint_env", "draw_line");
        small
    }

    pub(super) fn root(&self) -> PathBuf {
        self.folder.path().join("clone/benchmarks/small")
    }

    pub(super) fn outside(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn env_dir(&self, env: &str) -> PathBuf {
        self.root().join("environments").join(env)
    }

    pub(super) fn task_dir(&self, env: &str, task: &str) -> PathBuf {
        self.env_dir(env).join("tasks").join(task)
    }

    /// Writes a file of the benchmark; scripts become executable.
    pub(super) fn write(&self, path: impl AsRef<Path>, text: impl AsRef<[u8]>) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        let mode = if path.extension().is_some_and(|extension| extension == "sh") { 0o755 } else { 0o644 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }

    pub(super) fn add_env(&self, env: &str) {
        self.write_env(env, |_| ());
        let scripts = format!("environments/{env}/scripts");
        self.write(format!("{scripts}/install.sh"), "#!/bin/bash\napt-get install -y mtpaint\n");
        self.write(format!("{scripts}/configure.sh"), "#!/bin/bash\nmkdir -p /home/ga/Pictures\n");
    }

    /// Writes the env's env.json with a change.
    pub(super) fn write_env(&self, env: &str, change: impl FnOnce(&mut Value)) {
        let mount = |name: &str| {
            json!({"source": format!("benchmarks/small/environments/{env}/{name}"),
                "target": format!("/workspace/{name}"), "mode": "ro"})
        };
        let mut spec = json!({
            "id": format!("{env}@1"), "base": "ubuntu-gnome-systemd_highres", "tags": ["drawing"],
            "mounts": [mount("scripts"), mount("tasks")],
            "hooks": {"pre_start": "/workspace/scripts/install.sh", "post_start": "/workspace/scripts/configure.sh"},
            "user_accounts": [{"name": "ga", "permissions": {"sudo": true}}],
        });
        change(&mut spec);
        self.write(format!("environments/{env}/env.json"), spec.to_string());
    }

    pub(super) fn add_task(&self, env: &str, task: &str) {
        self.write_task(env, task, |_| ());
        let dir = format!("environments/{env}/tasks/{task}");
        self.write(format!("{dir}/setup_task.sh"), "#!/bin/bash\nmtpaint &\n");
        self.write(format!("{dir}/verifier.py"), "def verify(traj, env_info, task_info):\n    return look(traj)\n");
        let checklist = json!({"task_completion": [{"id": "line", "points": 100}], "privileged_info_for_vlm": "none"});
        self.write(format!("{dir}/vlm_checklist.json"), checklist.to_string());
    }

    /// Writes the task's task.json with a change.
    pub(super) fn write_task(&self, env: &str, task: &str, change: impl FnOnce(&mut Value)) {
        let mut spec = json!({
            "id": format!("{task}@1"), "env_id": format!("{env}@1"), "description": "Draw a line.",
            "difficulty": "easy", "init": {"max_steps": 40, "timeout_sec": 300},
            "hooks": {"pre_task": format!("/workspace/tasks/{task}/setup_task.sh")},
            "success": {"mode": "program", "spec": {"program": "verifier.py::verify"}},
            "metadata": {"length": 7},
        });
        change(&mut spec);
        self.write(format!("environments/{env}/tasks/{task}/task.json"), spec.to_string());
    }

    pub(super) fn read(&self, depth: Depth) -> Benchmark {
        Benchmark::read(&self.root(), depth).unwrap()
    }
}
