//! The program as a person meets it: help, errors, exit codes. Each test runs the real one.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// The program in a home of its own.
struct Home(tempfile::TempDir);

/// What a call of the program did.
struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn command(&self, args: &[&str]) -> Command {
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

    fn run(&self, args: &[&str]) -> Ran {
        let output = self.command(args).output().expect("the program runs");
        // Where the test runs is no part of what is shown.
        let text = |bytes| String::from_utf8(bytes).expect("text").replace(&*self.path().to_string_lossy(), "[HOME]");
        Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    /// The exit code and what is said on stderr, for a snapshot; stdout has no data then.
    fn fails(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!(ran.stdout, "", "an error is no data");
        format!("$ longhaul {}\n{}exit code {}\n", args.join(" "), ran.stderr, ran.code.expect("an exit"))
    }

    fn file(&self, name: &str, text: &str) {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, text).expect("written");
    }

    /// A benchmark of one env with one task.
    fn benchmark(&self) {
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

#[test]
fn every_command_explains_itself() {
    let home = Home::new();
    let commands = [
        "",
        "run",
        "serve",
        "worker",
        "worker clean",
        "status",
        "watch",
        "show",
        "export",
        "cancel",
        "layers",
        "layers ls",
        "layers build",
        "layers verify",
        "layers prune",
        "layers why",
        "lint",
        "doctor",
        "settings",
    ];
    for command in commands {
        let args: Vec<&str> = command.split_whitespace().chain(["--help"]).collect();
        let ran = home.run(&args);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{command}");
        let name = if command.is_empty() { "longhaul".to_owned() } else { command.replace(' ', "-") };
        insta::assert_snapshot!(format!("help-{name}"), ran.stdout);
    }
}

#[test]
fn every_top_level_command_has_an_example() {
    let home = Home::new();
    for command in [
        "run", "serve", "worker", "status", "watch", "show", "export", "cancel", "layers", "lint", "doctor", "settings",
    ] {
        let help = home.run(&[command, "--help"]).stdout;
        assert!(help.contains("Examples:\n  longhaul "), "{command} has no example:\n{help}");
    }
}

#[test]
fn wrong_command_lines_are_code_2() {
    let home = Home::new();
    for args in [
        &["runn"] as &[&str],
        &["run"],
        &["run", "bench"],
        &["run", "bench", "--agent", "idle", "--samples", "0"],
        &["run", "bench", "--agent", "idle", "--time", "soon"],
        &["run", "bench", "--agent", "idle", "--store", "s", "--coordinator", "a"],
        &["worker"],
        &["serve", "--host", "x"],
    ] {
        let ran = home.run(args);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.starts_with("error: "), "{args:?}: {}", ran.stderr);
    }
}

#[test]
fn what_is_missing_is_named_with_what_to_do() {
    let home = Home::new();
    home.file("not-a-store/file", "");
    home.file("access.json", "{}");
    home.file("gone.json", r#"{"version": 1, "address": {"kind": "unix", "path": "/nonexistent/coordinator.sock"}}"#);
    insta::assert_snapshot!(home.fails(&["status"]));
    insta::assert_snapshot!(home.fails(&["show", "latest", "--store", "not-a-store"]));
    insta::assert_snapshot!(home.fails(&["status", "--coordinator", "nowhere.json"]));
    insta::assert_snapshot!(home.fails(&["status", "--coordinator", "access.json"]));
    insta::assert_snapshot!(home.fails(&["status", "--coordinator", "gone.json"]));
}

#[test]
fn bad_input_of_a_run_is_code_3_and_makes_no_store() {
    let home = Home::new();
    home.benchmark();
    home.file("wrong.jsonl", "{\"mouse\": {}}\nnonsense\n");
    insta::assert_snapshot!(home.fails(&["run", "nowhere", "--agent", "idle"]));
    insta::assert_snapshot!(home.fails(&["run", "bench", "--agent", "genius"]));
    insta::assert_snapshot!(home.fails(&["run", "bench", "--agent", "scripted:nowhere.jsonl"]));
    insta::assert_snapshot!(home.fails(&["run", "bench", "--agent", "idle", "--task", "calc_env/sun"]));
    insta::assert_snapshot!(home.fails(&["run", "bench", "--agent", "idle", "--split", "tset"]));
    insta::assert_snapshot!(home.fails(&["run", "bench", "--agent", "idle", "--difficulty", "hard"]));
    insta::assert_snapshot!(home.fails(&["run", "bench", "--agent", "idle", "--hook-policy", "lenient"]));
    assert!(!home.path().join(".local").exists());
}

#[test]
fn a_machine_without_apptainer_is_code_4_and_makes_no_store() {
    let home = Home::new();
    home.benchmark();
    let output = home.command(&["run", "bench", "--agent", "idle"]).env("PATH", "/nonexistent").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(4), "{stderr}");
    assert!(stderr.contains("hint: `longhaul doctor`"), "{stderr}");
    assert!(!home.path().join(".local").exists());
}

#[test]
fn a_dry_run_says_what_would_run_and_makes_nothing() {
    let home = Home::new();
    home.benchmark();
    let ran = home.run(&["run", "bench", "--agent", "idle", "--samples", "2", "--dry-run"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    insta::assert_snapshot!(ran.stdout);
    let ran = home.run(&["run", "bench", "--agent", "idle", "--dry-run", "--format", "json"]);
    let plan: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(plan["tasks"], serde_json::json!(["calc_env/sum"]));
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 1, "only the benchmark is there");
}

#[test]
fn settings_are_printed_checked_and_strict() {
    let home = Home::new();
    let defaults = home.run(&["settings"]);
    assert_eq!(defaults.code, Some(0));
    home.file("all.toml", &defaults.stdout);
    assert_eq!(home.run(&["settings", "--check", "all.toml"]).code, Some(0));
    home.file("typo.toml", "[worker]\nslot = 3\n");
    insta::assert_snapshot!(home.fails(&["settings", "--check", "typo.toml"]));
    insta::assert_snapshot!(home.fails(&["status", "--settings", "typo.toml"]));
    home.file("unit.toml", "[run]\ntime = \"2 hours\"\n");
    insta::assert_snapshot!(home.fails(&["status", "--settings", "unit.toml"]));
    // The file in its usual place is read, and so is the one that a variable names.
    home.file(".config/longhaul/settings.toml", "nonsense = 1\n");
    assert_eq!(home.run(&["status"]).code, Some(3));
    let output = home.command(&["status"]).env("LONGHAUL_SETTINGS", "all.toml").output().unwrap();
    assert_eq!(output.status.code(), Some(5), "there is no store, and the settings are right");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let home = Home::new();
    let mut child = home.command(&["settings"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

/// Waits until a file is there.
fn wait_for(path: &Path) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !path.exists() && std::time::Instant::now() < deadline {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(path.exists(), "{} is not there", path.display());
}

/// Somebody who has got hold of the socket is told nothing: the kernel says who it is.
#[test]
fn another_user_is_refused_at_the_socket() {
    if !nix::unistd::geteuid().is_root() {
        // Only root can be somebody else; as any other user the folders' modes are all there is.
        return;
    }
    let home = Home::new();
    let program = home.path().join("longhaul");
    std::fs::copy(env!("CARGO_BIN_EXE_longhaul"), &program).unwrap();
    let mut server = home.command(&["serve", "--store", "results"]).stderr(Stdio::null()).spawn().unwrap();
    let access = home.path().join("results/access/local.json");
    wait_for(&access);
    let socket = home.path().join("results/run/coordinator.sock");
    let folders = ["", "results", "results/access", "results/run"].map(|folder| home.path().join(folder));
    for path in folders.iter().chain([&socket, &access, &program]) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let status = |uid: u32| {
        use std::os::unix::process::CommandExt;
        let output = Command::new(&program)
            .env_clear()
            .env("HOME", home.path())
            .args(["status", "--coordinator"])
            .arg(&access)
            .current_dir(home.path())
            .uid(uid)
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(status(0).0, Some(0));
    let (code, stderr) = status(65_534);
    assert_eq!(code, Some(6), "{stderr}");
    assert!(stderr.contains("the coordinator belongs to another user"), "{stderr}");
    let pid = nix::unistd::Pid::from_raw(i32::try_from(server.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert_eq!(server.wait().unwrap().code(), Some(0));
}

#[test]
fn a_coordinator_serves_a_store_and_stops_in_order() {
    let home = Home::new();
    let mut server = home
        .command(&["serve", "--store", "results", "--listen", "127.0.0.1:0", "--host", "127.0.0.1"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let access = home.path().join("results/access/access.json");
    wait_for(&access);
    assert_eq!(std::fs::metadata(&access).unwrap().permissions().mode() & 0o777, 0o600);
    // Both ways in answer.
    for args in
        [&["status", "--store", "results"] as &[&str], &["status", "--coordinator", "results/access/access.json"]]
    {
        let ran = home.run(&[args, &["--format", "json"]].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let status: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!((&status["live"], status["runs"].as_array().map(Vec::len)), (&true.into(), Some(0)));
    }
    // Its store is its own, and its port too.
    let second = home.run(&["serve", "--store", "results"]);
    assert_eq!(second.code, Some(5), "{}", second.stderr);
    assert!(second.stderr.contains("is in use by"), "{}", second.stderr);
    let text = std::fs::read_to_string(&access).unwrap();
    let port = serde_json::from_str::<serde_json::Value>(&text).unwrap()["address"]["port"].as_u64().unwrap();
    let taken = home.run(&["serve", "--store", "others", "--listen", &format!("127.0.0.1:{port}")]);
    assert_eq!(taken.code, Some(4), "{}", taken.stderr);
    assert!(taken.stderr.contains("hint: another program listens there"), "{}", taken.stderr);
    assert_eq!(home.run(&["show", "latest", "--store", "results"]).code, Some(3), "there is no run yet");

    let pid = nix::unistd::Pid::from_raw(i32::try_from(server.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    let status = server.wait().unwrap();
    assert_eq!(status.code(), Some(0));
    // What it leaves is read without it.
    let ran = home.run(&["status", "--store", "results", "--format", "json"]);
    let status: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(status["live"], false);
}
