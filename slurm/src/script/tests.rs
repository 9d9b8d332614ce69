//! The text of scripts, pinned, and what no setting can do to it.

use std::process::{Command, Stdio};

use proptest::prelude::*;

use super::*;
use crate::token::Owner;

fn number(value: u32) -> NonZeroU32 {
    NonZeroU32::new(value).unwrap()
}

fn request(shape: Shape) -> AllocationRequest {
    AllocationRequest {
        token: Token::new(Owner::new("c0ffee").unwrap(), 0x1f),
        shape,
        worker: WorkerCommand {
            program: PathBuf::from("/home/user/it's here/longhaul"),
            args: ["worker", "--coordinator", "/home/user/$(id)/access.json"].map(str::to_owned).to_vec(),
        },
    }
}

fn array() -> AllocationRequest {
    request(Shape::Array { tasks: number(16), at_once: Some(number(4)) })
}

#[test]
fn a_script_with_nothing_set() {
    insta::assert_snapshot!(script(&Template::default(), &request(Shape::Single)).unwrap());
}

#[test]
fn a_script_with_everything_set() {
    let template = Template {
        partition: Some("batch,long".to_owned()),
        account: Some("proj-1".to_owned()),
        qos: Some("normal".to_owned()),
        constraint: Some("[rack1|rack2]&avx".to_owned()),
        gres: Some("gpu:2".to_owned()),
        cpus: Some(number(16)),
        memory: Some(Memory::Mib(64_000)),
        exclusive: true,
        time_limit_minutes: 240,
        warning_seconds: 90,
        warning_signal: WarningSignal::Term,
        requeue: true,
        output_folder: PathBuf::from("/home/user/100%/out/"),
        options: ["--nice=100 --mail-type=FAIL", "-x node3"].map(str::to_owned).to_vec(),
        prologue: [". /etc/profile", "module load apptainer"].map(str::to_owned).to_vec(),
    };
    insta::assert_snapshot!(script(&template, &array()).unwrap());
}

#[test]
fn a_program_that_asks_for_it_tells_its_time_limit_from_a_cancellation() {
    let template = Template { warning_signal: WarningSignal::Usr1, ..Template::default() };
    assert!(script(&template, &array()).unwrap().contains("\n#SBATCH --signal=B:USR1@120\n"));
}

#[test]
fn what_it_waits_for_can_be_among_the_options() {
    let options = vec!["--dependency=afterany:12?after:12+30".to_owned()];
    let text = script(&Template { options, ..Template::default() }, &array()).unwrap();
    assert!(text.contains("\n#SBATCH --dependency=afterany:12?after:12+30\n"), "{text}");
}

#[test]
fn memory_can_be_that_of_the_whole_node() {
    let template = Template { memory: Some(Memory::Node), ..Template::default() };
    assert!(script(&template, &array()).unwrap().contains("\n#SBATCH --mem=0\n"));
}

#[test]
fn options_that_longhaul_or_a_setting_sets_are_refused_however_they_are_written() {
    for line in [
        "--job-name=x",
        "--job-n x",
        "-J x",
        "-Jx",
        "--comment=x",
        "--export=ALL",
        "--exp=ALL",
        "--array 1-1000",
        "-a1-1000",
        "--nice --array=1",
        "-Qa1",
        "-vvJx",
        "--partition=x",
        "-p x",
        "-N 2",
        "--signal=KILL",
        "--wrap=id",
        "--wait",
        "-M other",
        "--time=1",
        "--no-req",
    ] {
        let template = Template { options: vec![line.to_owned()], ..Template::default() };
        let result = script(&template, &array());
        assert!(matches!(result, Err(ScriptError::Owned { .. })), "{line:?}: {result:?}");
    }
}

#[test]
fn options_that_only_look_like_ours_are_taken() {
    for line in
        ["--nodelist=node1", "--nice=5", "--exclude=node2", "-x node2", "--reservation=r", "-w nodeJ", "-k", "-L a:1"]
    {
        let template = Template { options: vec![line.to_owned()], ..Template::default() };
        assert!(script(&template, &array()).unwrap().contains(&format!("\n#SBATCH {line}\n")), "{line:?}");
    }
}

#[test]
fn an_option_line_begins_with_an_option() {
    for line in ["", "nice", "hetjob", " --nice"] {
        let template = Template { options: vec![line.to_owned()], ..Template::default() };
        assert!(matches!(script(&template, &array()), Err(ScriptError::NoOption { .. })), "{line:?}");
    }
}

#[test]
fn a_limit_that_leaves_no_time_to_work_is_refused() {
    let with = |time_limit_minutes, warning_seconds| {
        script(&Template { time_limit_minutes, warning_seconds, ..Template::default() }, &array()).is_ok()
    };
    assert!(with(3, 119));
    assert!(!with(3, 120));
    assert!(!with(0, 0));
}

#[test]
fn paths_are_absolute() {
    let template = Template { output_folder: PathBuf::from("out"), ..Template::default() };
    assert!(matches!(script(&template, &array()), Err(ScriptError::Relative { setting: "output folder", .. })));
    let mut request = array();
    request.worker.program = PathBuf::from("longhaul");
    let result = script(&Template::default(), &request);
    assert!(matches!(result, Err(ScriptError::Relative { setting: "worker program", .. })));
}

/// Runs a script as a node does, with an environment that has next to nothing; the worker is a
/// shell that shows what it got.
fn run(template: &Template, args: &[&str], env: &[(&str, &str)]) -> String {
    let mut request = array();
    request.worker.program = PathBuf::from("/bin/sh");
    request.worker.args = args.iter().map(|arg| (*arg).to_owned()).collect();
    let child = Command::new("/bin/bash")
        .arg("-s")
        .env_clear()
        .envs(env.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.as_ref().unwrap(), script(template, &request).unwrap().as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_worker_gets_its_arguments_as_they_are_and_an_environment_to_live_in() {
    let hostile = "a'b $(id) `id` \"c\" \\ # é";
    let show = r#"printf '%s|' "$1" "${HOME:+home}" "${USER:+user}" "$LONGHAUL_ALLOCATION"; umask; command -v id"#;
    let said = run(&Template::default(), &["-c", show, "worker", hostile], &[]);
    assert_eq!(said, format!("{hostile}|home|user|longhaul.c0ffee.000000000000001f|0077\n/usr/bin/id\n"));
}

#[test]
fn the_prologue_comes_first_and_what_it_exports_stays() {
    let template = Template { prologue: vec!["export TMPDIR=/local/$SLURM_JOB_ID".to_owned()], ..Template::default() };
    assert_eq!(run(&template, &["-c", "echo $TMPDIR"], &[("SLURM_JOB_ID", "7")]), "/local/7\n");
}

#[test]
fn the_shell_becomes_the_worker() {
    // Had it a shell above it, that would be the parent, not this test.
    let said = run(&Template::default(), &["-c", "cut -d' ' -f4 /proc/$$/stat"], &[]);
    assert_eq!(said.trim(), std::process::id().to_string());
}

proptest! {
    #[test]
    fn no_setting_begins_a_line(values in proptest::collection::vec("\\PC{0,8}|[\n\r\t #\"'\\\\$`a-z=-]{0,12}", 8)) {
        let some = |at: usize| Some(values[at].clone());
        let template = Template {
            partition: some(0),
            account: some(1),
            qos: some(2),
            constraint: some(3),
            gres: some(4),
            options: vec![values[5].clone()],
            prologue: vec![values[6].clone()],
            ..Template::default()
        };
        let mut request = array();
        request.worker.args = vec![values[7].clone()];
        if let Ok(text) = script(&template, &request) {
            let plain = Template {
                partition: Some("p".to_owned()),
                account: Some("a".to_owned()),
                qos: Some("q".to_owned()),
                constraint: Some("c".to_owned()),
                gres: Some("g".to_owned()),
                options: vec!["-k".to_owned()],
                prologue: vec![String::new()],
                ..Template::default()
            };
            let expected = script(&plain, &array()).unwrap();
            prop_assert_eq!(text.split('\n').count(), expected.split('\n').count());
            // A value without a space in it is one argument.
            prop_assert!(text.lines().filter(|line| line.starts_with("#SBATCH")).take(5).all(|line| line.split(' ').count() == 2));
        }
    }

    #[test]
    fn a_quoted_argument_is_one_word_of_the_shell(arg in "[ -~]{0,40}") {
        let said = run(&Template::default(), &["-c", "printf '%s' \"$1\"; echo \".$#\"", "worker", &arg], &[]);
        prop_assert_eq!(said, format!("{arg}.1\n"));
    }
}
