//! The program in a home of its own, with a little benchmark.

use std::path::Path;
use std::process::{Command, Stdio};

/// The program in a home of its own.
pub(crate) struct Home(tempfile::TempDir);

/// What a call of the program did.
pub(crate) struct Ran {
    /// The exit code.
    pub(crate) code: Option<i32>,
    /// What it said as data.
    pub(crate) stdout: String,
    /// What else it said.
    pub(crate) stderr: String,
}

impl Home {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
        command
            .args(args)
            .current_dir(self.path())
            .env_clear()
            .env("HOME", self.path())
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        let output = self.command(args).output().expect("the program runs");
        // Where the test runs is no part of what is shown.
        let text = |bytes| String::from_utf8(bytes).expect("text").replace(&*self.path().to_string_lossy(), "[HOME]");
        Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// The exit code and what is said on stderr, for a snapshot; stdout has no data then.
    pub(crate) fn fails(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!(ran.stdout, "", "an error is no data");
        format!("$ longhaul {}\n{}exit code {}\n", args.join(" "), ran.stderr, ran.code.expect("an exit"))
    }

    pub(crate) fn file(&self, name: &str, text: &str) {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, text).expect("written");
    }

    /// A benchmark of one env with one task.
    pub(crate) fn benchmark(&self) {
        self.file(
            "bench/environments/calc_env/env.json",
            r#"{"id": "calc", "observation": [{"type": "rgb_screen", "resolution": [800, 600]}],
                "action": [{"type": "mouse"}, {"type": "keyboard"}], "resources": {"cpu": 1, "mem_gb": 1, "net": false},
                "hooks": {"pre_start": "/workspace/scripts/install.sh"},
                "mounts": [{"source": "scripts", "target": "/workspace/scripts", "mode": "ro"}]}"#,
        );
        self.file("bench/environments/calc_env/scripts/install.sh", "true\n");
        self.file(
            "bench/environments/calc_env/tasks/sum/task.json",
            r#"{"id": "sum", "env_id": "calc", "description": "Add 2 and 3.", "difficulty": "easy",
                "success": {"mode": "program", "spec": {"program": "verifier.py::verify"}}}"#,
        );
        self.file("bench/environments/calc_env/tasks/sum/verifier.py", "def verify(traj, env_info, task_info): pass\n");
        self.file(
            "bench/splits/calc_env_split.json",
            r#"{"env_folder": "bench/environments/calc_env", "train_tasks": [], "test_tasks": ["sum"]}"#,
        );
    }
}
