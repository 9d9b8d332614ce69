//! The same run file again, and a backup in the place of a lost store, as a person does it. Each test
//! runs the real program, with a coordinator and no worker: nothing is begun.

mod common;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Home, Ran};
use serde_json::Value;

/// A run file for the little benchmark.
const FILE: &str = "benchmark = \"bench\"\n[tasks]\ntask = \"calc_env/sum\"\n[[agent]]\nuse = \"idle\"\n";

/// A coordinator, until it is dropped.
struct Serving(Child);

impl Serving {
    fn over(home: &Home, store: &str) -> Self {
        let child = home.command(&["serve", "--store", store]).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let serving = Self(child.expect("the program runs"));
        let began = Instant::now();
        while !status(home, store).is_some_and(|status| status["live"] == true) {
            assert!(began.elapsed() < Duration::from_secs(60), "the coordinator does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        serving
    }

    /// In order, as at the end of a day.
    fn stop(mut self) {
        let pid = self.0.id().to_string();
        for _ in 0..2 {
            let told = Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs");
            assert!(told.success());
            std::thread::sleep(Duration::from_millis(100));
        }
        self.0.wait().expect("it ends");
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

fn status(home: &Home, store: &str) -> Option<Value> {
    let ran = home.run(&["status", "--store", store, "--format", "json"]);
    serde_json::from_str(&ran.stdout).ok()
}

fn runs(home: &Home, store: &str) -> usize {
    status(home, store).map_or(0, |status| status["runs"].as_array().map_or(0, Vec::len))
}

/// Submits, and says which run it is.
fn submit(home: &Home, args: &[&str]) -> Ran {
    let access = ["--coordinator", "st/access/local.json", "--detach"];
    let ran = home.run(&["run"].iter().chain(args).chain(&access).copied().collect::<Vec<_>>());
    assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
    ran
}

#[test]
fn the_same_run_file_is_the_same_run_until_what_it_freezes_has_changed() {
    let home = Home::new();
    home.benchmark();
    home.file("run.toml", FILE);
    let serving = Serving::over(&home, "st");
    let second = home.fails(&["serve", "--store", "st"]);
    assert!(second.contains("in use by process") && second.ends_with("exit code 5\n"), "{second}");

    let first = submit(&home, &["run.toml"]);
    let again = submit(&home, &["run.toml"]);
    assert_eq!(first.stdout, again.stdout, "the same run");
    assert!(again.stderr.contains("nothing has changed since") && again.stderr.contains("goes on"), "{}", again.stderr);
    // Said otherwise, and the same: the default.
    home.file("run.toml", &format!("samples = 1\n# A remark.\n{FILE}"));
    assert_eq!(submit(&home, &["run.toml"]).stdout, first.stdout);
    assert_eq!(runs(&home, "st"), 1);

    // What is run again by a command line alone is asked for again.
    let line = ["bench", "--agent", "idle"];
    assert_ne!(submit(&home, &line).stdout, submit(&home, &line).stdout);
    assert_eq!(runs(&home, "st"), 3);

    let verifier = "bench/environments/calc_env/tasks/sum/verifier.py";
    home.file(verifier, "def verify(traj, env_info, task_info): return {\"passed\": True, \"score\": 1}\n");
    home.file("bench/environments/calc_env/scripts/install.sh", "false\n");
    home.file("run.toml", &FILE.replace("[tasks]", "max_attempts = 9\n[budget]\nsteps = 3\n[tasks]"));
    let access = ["run", "run.toml", "--coordinator", "st/access/local.json", "--detach"];
    let changed = home.run(&access);
    assert_eq!((changed.code, changed.stdout.as_str()), (Some(3), ""), "{}", changed.stderr);
    for said in [
        "calc_env: /workspace/scripts.install.sh: changed",
        "calc_env/sum: verifier.py: changed",
        "calc_env/sum: budget.max_steps: 50 -> 3",
        "retry.max_attempts: 3 -> 9",
        "--new starts a new run",
    ] {
        assert!(changed.stderr.contains(said), "`{said}` is not in {}", changed.stderr);
    }
    assert_eq!(runs(&home, "st"), 3, "nothing was begun");
    let new = submit(&home, &["run.toml", "--new"]);
    assert_ne!(new.stdout, first.stdout);
    assert_eq!(submit(&home, &["run.toml"]).stdout, new.stdout, "from now on it is that one");

    // A run that was stopped goes on; one that is over is shown.
    let run = new.stdout.trim();
    assert_eq!(home.run(&["cancel", run, "--store", "st"]).code, Some(0));
    let again = submit(&home, &["run.toml"]);
    assert!(again.stderr.contains("1 of them done again"), "{}", again.stderr);
    serving.stop();
    // Without a coordinator the store itself says so.
    let changed = home.run(&["run", "run.toml", "--store", "st", "--samples", "2"]);
    assert_eq!(changed.code, Some(3), "{}", changed.stderr);
    assert!(changed.stderr.contains("calc_env/sum, sample 2: new"), "{}", changed.stderr);
}

#[test]
fn a_run_file_that_is_given_twice_at_once_is_one_run() {
    let home = Home::new();
    home.benchmark();
    home.file("run.toml", FILE);
    let serving = Serving::over(&home, "st");
    let told = std::thread::scope(|scope| {
        let given: Vec<_> = (0..4).map(|_| scope.spawn(|| submit(&home, &["run.toml"]).stdout)).collect();
        given.into_iter().map(|one| one.join().expect("it ends")).collect::<Vec<_>>()
    });
    assert!(told.iter().all(|run| *run == told[0]), "{told:?}");
    assert_eq!(runs(&home, "st"), 1);
    serving.stop();
}

#[test]
fn a_backup_of_a_store_in_use_takes_its_place_and_spends_nothing_before_that_is_accepted() {
    let home = Home::new();
    home.benchmark();
    let serving = Serving::over(&home, "st");
    let run = submit(&home, &["bench", "--agent", "idle"]).stdout;
    let copied = home.run(&["store", "backup", "st", "copies/monday"]);
    assert_eq!(copied.code, Some(0), "{}", copied.stderr);
    let again = home.run(&["store", "backup", "st", "copies/monday"]);
    assert_eq!(again.code, Some(6), "it is there already: {}", again.stderr);
    assert_eq!(home.run(&["store", "verify", "copies/monday"]).code, Some(0));
    let not_restored = home.run(&["store", "accept", "st"]);
    assert_eq!(not_restored.code, Some(2), "{}", not_restored.stderr);
    serving.stop();

    let onto = home.fails(&["store", "restore", "copies/monday", "st"]);
    assert!(onto.contains("name a folder that is not there yet") && onto.ends_with("exit code 5\n"), "{onto}");
    std::fs::rename(home.path().join("st"), home.path().join("lost")).expect("moved away");
    let restored = home.run(&["store", "restore", "copies/monday", "st"]);
    assert_eq!(restored.code, Some(0), "{}", restored.stderr);
    let serving = Serving::over(&home, "st");
    let closed = home.run(&["store", "accept", "st"]);
    assert_eq!(closed.code, Some(5), "{}", closed.stderr);
    assert!(closed.stdout.contains(run.trim()) && closed.stdout.contains("1 runs were open"), "{}", closed.stdout);
    assert!(closed.stderr.contains("longhaul store accept"), "{}", closed.stderr);
    serving.stop();
    // By whoever opens it: no coordinator has to be there.
    let opened = home.run(&["store", "accept", "st", "--yes", "--format", "json"]);
    assert_eq!(opened.code, Some(0), "{}", opened.stderr);
    let stands: Value = serde_json::from_str(&opened.stdout).expect("JSON");
    assert_eq!((&stands["runs"][0]["open"], stands["accepted_by"].is_string()), (&Value::from(1), true), "{stands}");
    assert_eq!(home.run(&["store", "accept", "st"]).code, Some(0), "it is open");
    assert_eq!(runs(&home, "st"), 1);
    // The backup is as it was, and may be used again.
    assert!(home.path().join("copies/monday/restored").exists());
    let other = home.run(&["store", "restore", "copies/monday", "other"]);
    assert_eq!(other.code, Some(0), "{}", other.stderr);
    assert_eq!(home.run(&["store", "verify", "other"]).code, Some(0));
    assert!(!Path::new("other").exists());
}
