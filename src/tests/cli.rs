//! The program as a person meets it: help, errors, exit codes. Each test runs the real one.

mod common;
mod comparing;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use common::Home;

#[test]
fn every_command_explains_itself() {
    let home = Home::new();
    let commands = [
        "",
        "run",
        "preflight",
        "serve",
        "worker",
        "worker clean",
        "status",
        "watch",
        "show",
        "compare",
        "report",
        "export",
        "import",
        "rejudge",
        "cancel",
        "resume",
        "layers",
        "layers ls",
        "layers build",
        "layers verify",
        "layers prune",
        "layers why",
        "layers export",
        "layers import",
        "base",
        "store",
        "store verify",
        "store backup",
        "store restore",
        "store accept",
        "store prune",
        "store merge",
        "prices",
        "plan",
        "plan diff",
        "plan print",
        "slurm",
        "slurm script",
        "slurm plan",
        "slurm why",
        "slurm resume",
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
        "run",
        "preflight",
        "serve",
        "worker",
        "status",
        "watch",
        "show",
        "compare",
        "report",
        "export",
        "import",
        "rejudge",
        "cancel",
        "resume",
        "layers",
        "base",
        "store",
        "prices",
        "plan",
        "slurm",
        "lint",
        "doctor",
        "settings",
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
        &["export", "-o", "x", "--max-steps", "50"],
        &["export", "-o", "x", "--format", "atif", "--screenshots"],
        &["export", "-o", "x", "--format", "harbor", "--all-attempts"],
        &["export", "-o", "x", "--format", "chat", "--rows", "episodes", "--keep-images", "2"],
        &["run", "bench", "--agent", "idle", "--time", "soon"],
        &["run", "bench", "--agent", "idle", "--budget", "-1"],
        &["run", "bench", "--agent", "idle", "--budget", "NaN"],
        &["run", "bench", "--agent", "idle", "--run-budget", "1e999"],
        &["run", "bench", "--agent", "idle", "--agent-budget", "x="],
        &["run", "bench", "--agent", "idle", "--max-tokens", "0"],
        &["run", "bench", "--agent", "idle", "--preset", "cua-world"],
        &["run", "bench", "--agent", "idle", "--stall", "nudge"],
        &["run", "bench", "--agent", "idle", "--audit", "gemini"],
        &["run", "bench", "--agent", "idle", "--max-samples", "4"],
        &["run", "bench", "--agent", "idle", "--until-success", "2"],
        &["run", "bench", "--agent", "idle", "--store", "s", "--coordinator", "a"],
        &["preflight"],
        &["preflight", "bench", "--slurm", "--coordinator", "a"],
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
fn tasks_in_quarantine_are_left_out_and_named() {
    let home = Home::new();
    home.benchmark();
    home.file(
        "bench/environments/calc_env/tasks/mean/task.json",
        r#"{"id": "mean", "env_id": "calc", "description": "Find the mean.", "difficulty": "easy",
            "success": {"mode": "program", "spec": {"program": "verifier.py::verify"}}}"#,
    );
    home.file("list.txt", "# by hand\ncalc_env/mean  # too slow\ncalc_env/gone\n");
    let run = ["run", "bench", "--agent", "idle", "--dry-run", "--format", "json", "--quarantine"];
    let with = |file: &str| home.run(&run.iter().copied().chain([file]).collect::<Vec<_>>());
    let ran = with("list.txt");
    let plan: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(
        (&plan["tasks"], &plan["quarantined"]),
        (&serde_json::json!(["calc_env/sum"]), &serde_json::json!(["calc_env/mean"]))
    );
    assert_eq!(
        ran.stderr,
        "warning: in quarantine, and not in the benchmark: calc_env/gone\n\
         left out, since they are in quarantine (1): calc_env/mean\n"
    );
    home.file("all.txt", "calc_env/mean\ncalc_env/sum\n");
    home.file("wrong.txt", "calc_env/mean\n\nsum\n");
    for (file, said) in [
        ("all.txt", "all that can be run of what was asked for (2) is in quarantine"),
        ("wrong.txt", "line 3: `sum` is no task: write ENV/TASK"),
        ("nowhere.txt", "nowhere.txt cannot be read"),
    ] {
        let ran = with(file);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(3), ""), "{file}");
        assert!(ran.stderr.contains(said), "{}", ran.stderr);
    }
}

#[test]
fn a_preflight_that_finds_nothing_leaves_nothing_and_writes_over_nothing() {
    let home = Home::new();
    home.benchmark();
    let preflight = |output: &str| {
        let mut command = home.command(&["preflight", "bench", "--output", output]);
        command.env("PATH", "/nonexistent").output().unwrap()
    };
    assert_eq!(preflight("found").status.code(), Some(4), "there is no Apptainer");
    assert!(!home.path().join("found").exists());
    home.file("before/sheet-1.png", "");
    let refused = preflight("before");
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(3), "{said}");
    assert!(said.contains("before cannot be used\n  because: it is not empty: name another one"), "{said}");
}

/// A program that was unpacked with its image builds none, and takes no other's.
#[test]
fn the_base_image_beside_the_program_is_found_if_it_is_of_this_version() {
    let home = Home::new();
    let key = longhaul_apptainer::BaseSource::Debian12.key().unwrap();
    let (program, mine) = (home.path().join("longhaul"), format!("base-{}.sif", key.short()));
    std::fs::copy(env!("CARGO_BIN_EXE_longhaul"), &program).unwrap();
    // Apptainer has to be found; what makes an image must not.
    let apptainer = std::env::split_paths(&std::env::var_os("PATH").unwrap())
        .map(|folder| folder.join("apptainer"))
        .find(|program| program.is_file())
        .expect("Apptainer is installed");
    std::fs::create_dir(home.path().join("bin")).unwrap();
    std::os::unix::fs::symlink(apptainer, home.path().join("bin/apptainer")).unwrap();
    let base = |more: &[&str]| {
        let mut command = Command::new(&program);
        let place = ["base", "--layers", "layers", "--scratch", "scratch"];
        command.args(place.iter().chain(more)).current_dir(home.path()).env_clear().env("HOME", home.path());
        command.env("PATH", home.path().join("bin")).output().unwrap()
    };
    home.file("base-000000000000.sif", "of another version");
    assert_eq!(base(&[]).status.code(), Some(4), "nothing makes an image here");
    home.file(&mine, "an image");
    let found = base(&[]);
    let said = String::from_utf8(found.stdout).unwrap();
    assert!(said.ends_with(&format!("/{mine}\n")), "{said}{}", String::from_utf8_lossy(&found.stderr));
    let copied = base(&["--beside", "elsewhere"]);
    assert_eq!(String::from_utf8(copied.stdout).unwrap(), format!("{mine}\n"));
    let other = base(&["--base", "docker://x/y", "--beside", "elsewhere"]);
    assert_eq!(other.status.code(), Some(2), "{}", String::from_utf8_lossy(&other.stderr));
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
    for args in [&["store", "verify", "results"] as &[&str], &["store", "prune", "results", "--older-than", "1d"]] {
        let refused = home.run(args);
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(5), ""), "{}", refused.stderr);
        let holder = format!("is in use by process {}", server.id());
        assert!(refused.stderr.contains(&holder) && refused.stderr.contains("hint: stop that"), "{}", refused.stderr);
    }
    // A copy it makes itself.
    let copied = home.run(&["store", "backup", "results", "copy"]);
    assert_eq!(copied.code, Some(0), "{}", copied.stderr);

    let pid = nix::unistd::Pid::from_raw(i32::try_from(server.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    let status = server.wait().unwrap();
    assert_eq!(status.code(), Some(0));
    // What it leaves is read without it.
    let ran = home.run(&["status", "--store", "results", "--format", "json"]);
    let status: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(status["live"], false);
}

#[test]
fn a_store_is_checked_and_copied_and_damage_is_code_5() {
    let home = Home::new();
    assert_eq!(home.run(&["store", "verify", "results"]).code, Some(5), "there is none");
    let mut server = home.command(&["serve", "--store", "results"]).stderr(Stdio::null()).spawn().unwrap();
    wait_for(&home.path().join("results/access/local.json"));
    let pid = nix::unistd::Pid::from_raw(i32::try_from(server.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert_eq!(server.wait().unwrap().code(), Some(0));

    let ran = home.run(&["store", "verify", "results"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.ends_with(" 0 findings\n"), "{}", ran.stdout);
    assert_eq!(home.run(&["store", "backup", "results", "copy"]).code, Some(0));
    let again = home.run(&["store", "backup", "results", "copy"]);
    assert_eq!(again.code, Some(5), "{}", again.stderr);
    assert!(again.stderr.contains("hint: name a folder that is not there yet"), "{}", again.stderr);
    let ran = home.run(&["store", "verify", "copy", "--format", "json"]);
    let said: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((ran.code, &said["sound"], &said["records"]["meta"]), (Some(0), &true.into(), &2.into()), "{said}");

    // A manifest whose first record is broken, with whole ones after it.
    let manifest = std::fs::read_dir(home.path().join("results/db"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.file_name().unwrap().to_string_lossy().starts_with("MANIFEST-"))
        .unwrap();
    let mut bytes = std::fs::read(&manifest).unwrap();
    bytes[8] ^= 0x40;
    std::fs::write(&manifest, bytes).unwrap();
    let ran = home.run(&["store", "verify", "results"]);
    assert_eq!(ran.code, Some(5), "{}{}", ran.stdout, ran.stderr);
}

#[test]
fn what_a_verdict_rests_on_is_of_one_attempt_and_no_other_can_be_asked_for() {
    let ran = Home::new().run(&["show", "latest/0", "--provenance", "--attempt", "1"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("--attempt"), "{}", ran.stderr);
}

#[test]
fn layers_are_carried_only_as_whole_files_of_layers() {
    let home = Home::new();
    assert_eq!(home.run(&["layers", "export", "-o", "x"]).code, Some(2), "a benchmark or a run");
    assert_eq!(home.run(&["layers", "export", "bench", "--run", "latest", "-o", "x"]).code, Some(2));
    let missing = home.run(&["layers", "import", "nothing", "--layers", "layers"]);
    assert_eq!((missing.code, missing.stdout.as_str()), (Some(3), ""), "{}", missing.stderr);
    home.file("notes.txt", "these are no layers\n");
    insta::assert_snapshot!(home.fails(&["layers", "import", "notes.txt", "--layers", "layers"]));
    let left = |folder: &str| std::fs::read_dir(home.path().join(folder)).unwrap().count();
    assert_eq!((left("layers"), left("layers/images")), (2, 0), "a lock and the folder of images");
    let ran = home.run(&["layers", "ls", "--layers", "layers", "--format", "json"]);
    assert!(ran.stdout.contains("\"layers\": []"), "{}", ran.stdout);
}

#[test]
fn layers_of_a_run_that_is_not_there_are_code_3_and_of_no_store_code_5() {
    let home = Home::new();
    home.benchmark();
    let from = ["run", "bench", "--agent", "idle", "--dry-run", "--layers-from", "latest", "--store", "results"];
    let ran = home.run(&from);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(5), ""), "{}", ran.stderr);
    let mut server = home.command(&["serve", "--store", "results"]).stderr(Stdio::null()).spawn().unwrap();
    wait_for(&home.path().join("results/access/local.json"));
    let ran = home.run(&from);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(3), ""), "{}", ran.stderr);
    assert!(ran.stderr.contains("there is no run `latest`"), "{}", ran.stderr);
    // A store that is named has to be there: else what its runs stand on would be removed.
    let prune = ["layers", "prune", "--to", "1B", "--layers", "layers", "--store"];
    assert_eq!(home.run(&[&prune[..], &["nowhere"]].concat()).code, Some(5));
    assert_eq!(home.run(&[&prune[..], &["results"]].concat()).code, Some(0));
    let pid = nix::unistd::Pid::from_raw(i32::try_from(server.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert_eq!(server.wait().unwrap().code(), Some(0));
}

/// The script is shown whole, with the pool's own settings and no secret; what cannot be a
/// script is said at once.
#[test]
fn a_batch_script_is_shown_and_a_pool_that_gives_none_is_refused() {
    let home = Home::new();
    let settings = |pool: &str| {
        home.file("slurm.toml", &format!("[slurm.pools.short]\ncpus = 3\n{pool}\n"));
        home.path().join("slurm.toml").display().to_string()
    };
    let shown = home.run(&["slurm", "script", "--settings", &settings("partition = \"fast\""), "--store", "/shared/s"]);
    assert_eq!((shown.code, shown.stderr.as_str()), (Some(0), ""));
    for line in [
        "#SBATCH --partition=fast",
        "#SBATCH --cpus-per-task=3",
        "#SBATCH --mem=16384M",
        "#SBATCH --time=240",
        "#SBATCH --array=0-7",
        "#SBATCH --signal=B:TERM@120",
        "#SBATCH --output=/shared/s/logs/allocation-%A_%a.out",
    ] {
        assert!(shown.stdout.lines().any(|shown| shown == line), "no {line} in\n{}", shown.stdout);
    }
    let passes = "'--coordinator' '/shared/s/access/allocations/longhaul.0000000000000000.";
    assert!(shown.stdout.contains(passes), "each allocation has an access file of its own: {}", shown.stdout);
    assert!(!shown.stdout.contains("access.json"), "{}", shown.stdout);

    let wrong = settings("partition = \"a\\n#SBATCH --uid=0\"");
    let refused = home.run(&["slurm", "script", "--settings", &wrong, "--store", "/shared/s"]);
    assert_eq!(refused.code, Some(3), "{}", refused.stderr);
    assert!(refused.stderr.contains("the pool short") && refused.stderr.contains("hint:"), "{}", refused.stderr);
    assert_eq!(refused.stdout, "");
    let unknown = home.run(&["slurm", "script", "--settings", &settings("partitions = \"x\""), "--store", "/s"]);
    assert_eq!(unknown.code, Some(3), "{}", unknown.stderr);
    assert!(unknown.stderr.contains("did you mean `slurm.pools.short.partition`?"), "{}", unknown.stderr);
}

/// Minutes for a base image are not spent before it is known whether there is a Slurm at all.
#[test]
fn without_slurms_programs_nothing_is_made_before_that_is_said() {
    let home = Home::new();
    home.benchmark();
    home.file("bin/nothing", "");
    let refused = |why: &str| {
        for args in [
            &["serve", "--slurm", "--store", "results"] as &[&str],
            &["run", "bench", "--agent", "idle", "--slurm", "--store", "results"],
            &["preflight", "bench", "--slurm", "--store", "results", "--output", "before"],
        ] {
            let output = home.command(args).env("PATH", home.path().join("bin")).output().expect("the program runs");
            let said = String::from_utf8(output.stderr).expect("text");
            assert_eq!(output.status.code(), Some(4), "{args:?}: {said}");
            assert!(said.contains(why) && said.contains("a login node"), "{said}");
            assert!(!said.contains("base image"), "{said}");
            assert!(!home.path().join("results/access").exists(), "nothing was stored");
        }
    };
    refused("Slurm cannot be asked for workers");
    // They are there, and find no settings: the one says its version all the same, the other does not.
    let lost = "echo 'sinfo: fatal: Unable to process configuration file' >&2; exit 1";
    for version in [lost, "if [ \"$1\" = --version ]; then echo slurm 23.11.4; exit; fi; "] {
        for program in ["sinfo", "scontrol"] {
            let name = format!("bin/{program}");
            home.file(&name, &format!("#!/bin/sh\n{version}\n{lost}\n"));
            let runs = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(home.path().join(name), runs).expect("it is a program");
        }
        refused("finds no cluster");
    }
}
