//! Asking for runs with models and money, as a person does it: agents, budgets, run files, prices.
//! Each test runs the real program; nothing is started, and no model is called.

mod common;

use common::Home;
use serde_json::{Value, json};

/// What a dry run says, for programs.
fn dry(home: &Home, args: &[&str]) -> Value {
    let run = ["run"].iter().chain(args).chain(&["--dry-run", "--format", "json"]).copied().collect::<Vec<_>>();
    let ran = home.run(&run);
    assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.stderr);
    serde_json::from_str(&ran.stdout).expect("JSON")
}

/// What is refused, with code 3.
fn refused(home: &Home, args: &[&str]) -> String {
    let run = ["run"].iter().chain(args).chain(&["--dry-run"]).copied().collect::<Vec<_>>();
    let ran = home.run(&run);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(3), ""), "{args:?}: {}", ran.stderr);
    ran.stderr
}

/// A run file for the little benchmark.
const FILE: &str = r#"
benchmark = "bench"
preset = "cua-world-long-500"
samples = 4
until_success = 1

[tasks]
task = "calc_env/sum"

[budget]
run = "$100"

[[agent]]
name = "sonnet"
use = "anthropic:claude-sonnet-4-6"
max_output = 4096
"#;

/// The command line over the run file, that over the preset, that over the task, that over the
/// settings: one step budget for each voice that may be the first to speak.
#[test]
fn the_nearer_voice_decides_what_limits_an_episode() {
    let home = Home::new();
    home.benchmark();
    home.file("file.toml", &FILE.replace("[budget]", "[budget]\nsteps = 300"));
    home.file("preset.toml", FILE);
    let steps = |args: &[&str]| dry(&home, args)["budget"]["steps"].clone();
    assert_eq!(steps(&["file.toml", "--steps", "7"]), json!(7));
    assert_eq!(steps(&["file.toml"]), json!(300));
    assert_eq!(steps(&["preset.toml"]), json!(500));
    assert_eq!(steps(&["preset.toml", "--preset", "cua-world-test"]), json!(200));
    assert_eq!(steps(&["bench", "--agent", "idle"]), Value::Null, "then the task decides, and then the settings");
    let cap = |args: &[&str]| dry(&home, args)["budget"]["episode_dollars"].clone();
    assert_eq!(cap(&["preset.toml"]), json!("5.00"));
    assert_eq!(cap(&["preset.toml", "--budget", "$0.50"]), json!("0.50"));
    assert_eq!(cap(&["preset.toml", "--budget", "none"]), Value::Null);
    assert_eq!(cap(&["preset.toml", "--preset", "cua-world-long-2000"]), Value::Null);
}

#[test]
fn a_dry_run_says_what_a_run_costs_at_most() {
    let home = Home::new();
    home.benchmark();
    home.file("run.toml", FILE);
    let ran = home.run(&["run", "run.toml", "--dry-run"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    insta::assert_snapshot!(ran.stdout);
    assert!(ran.stderr.contains("the variable ANTHROPIC_API_KEY is not set"), "{}", ran.stderr);
    let most = |args: &[&str]| dry(&home, args)["cost"]["most"].clone();
    assert_eq!(most(&["run.toml"]), json!({"kind": "capped", "dollars": "20.00"}), "4 samples of $5");
    assert_eq!(most(&["run.toml", "--run-budget", "12"]), json!({"kind": "capped", "dollars": "12.00"}));
    assert_eq!(most(&["run.toml", "--agent-budget", "sonnet=7"]), json!({"kind": "capped", "dollars": "7.00"}));
    // 500 steps of a whole context at its dearest (1M at $6, 4,096 of output at $15), 4 samples.
    let uncapped = most(&["run.toml", "--budget", "none", "--run-budget", "none"]);
    assert_eq!(uncapped, json!({"kind": "steps", "dollars": "12122.88"}));
    assert_eq!(most(&["bench", "--agent", "idle"]), json!({"kind": "nothing"}));
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 2, "nothing was made");
}

#[test]
fn what_cannot_be_paid_for_is_refused_before_anything_starts() {
    let home = Home::new();
    home.benchmark();
    let sonnet = ["bench", "--agent", "anthropic:claude-sonnet-4-6"];
    let with = |more: &[&str]| refused(&home, &sonnet.iter().chain(more).copied().collect::<Vec<_>>());
    for (more, scope) in [
        (&["--budget", "0.01"] as &[&str], "the budget of an episode, $0.01"),
        (&["--budget", "0"], "the budget of an episode, $0.00"),
        (&["--run-budget", "0.01"], "the budget of the run, $0.01"),
        (&["--agent-budget", "0.01"], "the budget of the agent `claude-sonnet-4-6`, $0.01"),
    ] {
        let said = with(more);
        assert!(said.contains(scope) && said.contains("that one call of the agent"), "{said}");
    }
    assert!(with(&["--agent-budget", "sonnet=5"]).contains("no agent of the run is called that"));
    let unknown = |spec: &str| refused(&home, &["bench", "--agent", spec, "--budget", "5"]);
    let said = unknown("anthropic:claude-sonnet-4.6");
    assert!(said.contains("has no price; the nearest that have one: `anthropic:claude-sonnet-4-6`"), "{said}");
    assert!(unknown("antropic:m").contains("did you mean `anthropic`?"));
    // Without a cap it is a warning: what it spends is not counted.
    let ran = home.run(&["run", "bench", "--agent", "openai:gpt-99", "--dry-run"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("what it spends will not be counted"), "{}", ran.stderr);
    assert!(ran.stdout.contains("not capped, and nothing bounds it"), "{}", ran.stdout);
}

#[test]
fn prices_of_ones_own_come_first_and_are_read_strictly() {
    let home = Home::new();
    home.benchmark();
    let row = "[[price]]\nvendor = \"openai\"\nmodel = \"gpt-99\"\ndate = \"2026-11-30\"\nsource = \"a letter\"\n\
               input = \"1\"\ncache_write = \"1\"\ncache_write_long = \"1\"\ncache_read = \"1\"\noutput = \"2\"\n\
               context = 1000\nmax_output = 100\nimage = { rule = \"fixed\", tokens = 10 }\n";
    home.file("mine.toml", row);
    let args = ["bench", "--agent", "openai:gpt-99?max_output=100", "--budget", "5", "--prices", "mine.toml"];
    assert_eq!(dry(&home, &args)["cost"]["most"], json!({"kind": "capped", "dollars": "5.00"}));
    let uncapped = [args[0], args[1], args[2], args[5], args[6]];
    // 50 steps of 1,000 tokens of input and 100 of output.
    assert_eq!(dry(&home, &uncapped)["cost"]["most"], json!({"kind": "steps", "dollars": "0.06"}));
    let shown = home.run(&["prices", "gpt-99", "--prices", "mine.toml"]);
    assert!(shown.stdout.contains("yours"), "{}", shown.stdout);
    // By the settings, too.
    home.file("settings.toml", &format!("[prices]\nfile = \"{}\"\n", home.path().join("mine.toml").display()));
    let shown = home.run(&["prices", "gpt-99", "--settings", "settings.toml", "--format", "json"]);
    let rows: Value = serde_json::from_str(&shown.stdout).expect("JSON");
    assert_eq!((&rows[0]["own"], &rows[0]["source"]), (&json!(true), &json!("a letter")));
    for (from, to, said) in [
        ("input = \"1\"\n", "", "mine.toml:1:1: `input` is missing"),
        ("input = \"1\"", "input = \"-3\"", "mine.toml:6:9: `input`: `-3` is negative"),
        ("input = \"1\"", "input = nan", "mine.toml:6:9: `input`: expected dollars as a text"),
        ("input = \"1\"", "input = \"1e999\"", "`1e999` is no amount of dollars"),
        ("\noutput", "\noutptu", "there is no key `outptu` here; did you mean `output`?"),
    ] {
        home.file("mine.toml", &row.replace(from, to));
        let said_ = refused(&home, &args);
        assert!(said_.contains(said), "{to:?} gave {said_}");
        assert_eq!(home.run(&["prices", "--prices", "mine.toml"]).code, Some(3));
    }
}

#[test]
fn what_is_wrong_with_settings_is_in_nobodys_way_who_does_not_need_them() {
    let home = Home::new();
    home.benchmark();
    home.file("run.toml", FILE);
    home.file("prices.toml", "[[price]]\nvendor = 7\n");
    home.file("settings.toml", "[prices]\nfile = \"prices.toml\"\n");
    let settings = ["--settings", "settings.toml"];
    dry(&home, &[&["bench", "--agent", "idle"], &settings[..]].concat());
    let said = refused(&home, &[&["run.toml"], &settings[..]].concat());
    assert!(said.contains("prices.toml"), "who pays is told: {said}");
    home.file("settings.toml", "nonsense = 1\n");
    assert_eq!(home.run(&["--settings", "settings.toml", "plan", "print", "run.toml"]).code, Some(0));
}

#[test]
fn an_agent_that_calls_no_model_costs_what_its_audits_cost() {
    let home = Home::new();
    home.benchmark();
    home.file("mine/agent.toml", "command = [\"true\"]\n");
    let most = |args: &[&str]| dry(&home, args)["cost"]["most"].clone();
    let mine = ["bench", "--agent", "external:mine/agent.toml"];
    assert_eq!(most(&mine), json!({"kind": "nothing"}));
    let audited = [&mine[..], &["--audit", "anthropic:claude-sonnet-4-6?most=1"]].concat();
    // As dear as the audits of an agent that does nothing at all.
    let idle = most(&["bench", "--agent", "idle", "--audit", "anthropic:claude-sonnet-4-6?most=1"]);
    assert_eq!((most(&audited), idle["kind"].as_str()), (idle.clone(), Some("steps")));
}

#[test]
fn the_price_table_is_printed_as_it_holds() {
    let home = Home::new();
    insta::assert_snapshot!(home.run(&["prices", "claude-sonnet-4"]).stdout);
    let unknown = home.run(&["prices", "claude-sonet-4-6"]);
    assert_eq!(unknown.code, Some(3));
    assert!(unknown.stderr.contains("hint: it has claude-sonnet-4-6"), "{}", unknown.stderr);
}

#[test]
fn a_run_file_is_checked_printed_and_compared() {
    let home = Home::new();
    home.benchmark();
    home.file("run.toml", FILE);
    let checked = home.run(&["run", "run.toml", "--check"]);
    assert_eq!(checked.stdout, "checked: 4 episodes: 1 tasks x 1 agents x 4 samples\n", "{}", checked.stderr);
    // What is printed means the same, and is printed the same again.
    let printed = home.run(&["run", "run.toml", "--print-run-file"]).stdout;
    home.file("printed.toml", &printed);
    let same = home.run(&["plan", "diff", "run.toml", "printed.toml"]);
    assert_eq!((same.code, same.stdout.as_str(), same.stderr.as_str()), (Some(0), "", "they mean the same\n"));
    assert_eq!(home.run(&["plan", "print", "printed.toml"]).stdout, printed);
    // A command line becomes a file.
    let line = ["run", "bench", "--task", "calc_env/sum", "--preset", "cua-world-long-500", "--agent", "idle"];
    let args: Vec<&str> =
        line.iter().chain(&["--stall", "stop:20", "--max-tokens", "9", "--print-run-file"]).copied().collect();
    let of_line = home.run(&args);
    insta::assert_snapshot!(of_line.stdout);
    home.file("line.toml", &of_line.stdout);
    assert_eq!(home.run(&["run", "line.toml", "--check"]).code, Some(0));
    let differs = home.run(&["plan", "diff", "run.toml", "line.toml"]);
    insta::assert_snapshot!(differs.stdout);
    assert!(!home.path().join(".local").exists(), "no store was made");
}

#[test]
fn a_run_file_that_is_wrong_names_the_place_and_what_was_meant() {
    let home = Home::new();
    home.benchmark();
    for (from, to, said) in [
        ("samples = 4", "sampels = 4", "run.toml:4:1: there is no key `sampels` here; did you mean `samples`?"),
        ("run = \"$100\"", "run = -100", "run.toml:11:7: `run`: expected dollars as a text"),
        ("run = \"$100\"", "run = \"-100\"", "run.toml:11:7: `run`: `-100` is negative"),
        ("run = \"$100\"", "run = \"1e999\"", "`1e999` is no amount of dollars"),
        ("max_output", "max_outputs", "did you mean `max_output`?"),
        ("cua-world-long-500", "cua-world-long-50", "did you mean `cua-world-long-500`?"),
        ("benchmark = \"bench\"", "benchmark = \"nowhere\"", "nowhere"),
        ("use = \"anthropic:", "use = \"antropic:", "did you mean `anthropic`?"),
    ] {
        home.file("run.toml", &FILE.replace(from, to));
        let error = refused(&home, &["run.toml"]);
        assert!(error.contains(said), "{to:?} gave {error}");
    }
    home.file("run.toml", &FILE.replace("benchmark = \"bench\"\n", ""));
    let ran = home.run(&["run", "run.toml", "--check"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("--benchmark"), "{}", ran.stderr);
    assert_eq!(home.run(&["run", "run.toml", "--check", "--benchmark", "bench"]).code, Some(0));
}

/// A run that needs a key says so before anything is made, and never shows one.
#[test]
fn a_key_that_is_missing_is_named_and_makes_no_store() {
    let home = Home::new();
    home.benchmark();
    insta::assert_snapshot!(home.fails(&["run", "bench", "--agent", "anthropic:claude-haiku-4-5", "--budget", "1"]));
    assert!(!home.path().join(".local").exists());
    let mut run = home.command(&["run", "bench", "--agent", "anthropic:claude-haiku-4-5", "--dry-run", "-vv"]);
    let output = run.env("ANTHROPIC_API_KEY", "sk-very-secret").output().unwrap();
    let all = [output.stdout, output.stderr].concat();
    assert!(output.status.success() && !String::from_utf8_lossy(&all).contains("sk-very-secret"));
}
