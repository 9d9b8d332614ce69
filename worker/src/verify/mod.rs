//! Verification: the task's own verifier, in a sandbox of its own.
//!
//! That sandbox stands on the base image alone, has no network, and sees, read-only, the
//! task's files, the env's files and the trajectory's frames. In it, `runner.py` (written for
//! Longhaul, part of the program) loads the verifier and gives it the callables that
//! Gym-Anything's verifiers expect; those that reach the episode's sandbox are answered here.

mod decide;
mod serve;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longhaul_core::helper::CommandSpec;
use longhaul_core::outcome::{AttemptEnd, EndedBy, Fault, FaultClass};
use longhaul_core::plan::{EnvPlan, TaskPlan};
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio::sync::Semaphore;

pub use decide::{Outcome, ProcessEnd, Questions, Reported, Used, decide};

use crate::agents::caller::fault_of;
use crate::blobs::{BlobError, HeldTree, link_view};
use crate::guard::watch_memory;
use crate::judge::Oracle;
use crate::moment::millis;
use crate::sandbox::{Driver, Sandbox, SandboxError, SandboxRequest, View};
use crate::shortpath::ShortFolder;

/// The runner's text.
pub const RUNNER: &str = include_str!("runner.py");

/// Where the verifier's sandbox sees what.
const ROOT: &str = "/verify";

/// The most of the verifier's own output that is kept.
const LOG_LIMIT: usize = 256 * 1024;

/// The most memory that a verifier may use, in MiB.
const MEMORY_MIB: u32 = 4096;

/// How much longer a verifier may run where it can ask a judge, which may be slow or away.
const FOR_ANSWERS: Duration = Duration::from_secs(15 * 60);

/// How long what a verifier said last is waited for after its end.
const LAST_LINE: Duration = Duration::from_secs(3);

/// What is verified.
pub(crate) struct Job<'a> {
    pub(crate) id: String,
    pub(crate) task: &'a TaskPlan,
    pub(crate) env: &'a EnvPlan,
    pub(crate) task_files: HeldTree,
    pub(crate) env_files: HeldTree,
    /// The file of the verifier and the function in it.
    pub(crate) program: (&'a str, &'a str),
    /// The folder with the frames.
    pub(crate) episode: &'a Path,
    /// The names of the frames in it, by step.
    pub(crate) frames: Vec<String>,
    /// The records of the steps.
    pub(crate) steps: Vec<Value>,
    pub(crate) ended_by: EndedBy,
    pub(crate) limit: Duration,
    /// What answers it when it asks a model, or why nothing does.
    pub(crate) oracle: Result<Oracle<'a>, String>,
    /// A folder of its own.
    pub(crate) scratch: &'a Path,
}

/// What came of a verification.
pub(crate) struct Verification {
    pub(crate) end: AttemptEnd,
    pub(crate) notes: Vec<String>,
    pub(crate) log: String,
}

/// The names that a verification folder has on the node.
struct Folders {
    benchmark: PathBuf,
    runner: PathBuf,
    socket: PathBuf,
    on_the_way: PathBuf,
}

/// Verifies. What fails on our side is `unverified`, unless the live sandbox is gone: then
/// there is nothing left to verify, and the attempt ends with a fault.
pub(crate) async fn verify(job: Job<'_>, driver: &dyn Driver, starts: &Semaphore, live: &dyn Sandbox) -> Verification {
    let ended_by = job.ended_by;
    match try_verify(job, driver, starts, live).await {
        Ok(verification) => verification,
        Err(reason) => Verification {
            end: AttemptEnd::Unverified {
                ended_by,
                reason: format!("the verifier could not be run: {reason}"),
                fault: Some(FaultClass::Verifier),
                parts: None,
            },
            notes: Vec::new(),
            log: String::new(),
        },
    }
}

async fn try_verify(
    job: Job<'_>,
    driver: &dyn Driver,
    starts: &Semaphore,
    live: &dyn Sandbox,
) -> Result<Verification, String> {
    let folders = prepare(&job).map_err(|error| crate::chain(&error))?;
    let short = ShortFolder::open(&folders.socket).map_err(|error| error.to_string())?;
    let socket = short.path("worker");
    let listener =
        UnixListener::bind(&socket).map_err(|error| format!("cannot listen on {}: {error}", socket.display()))?;
    fs::set_permissions(folders.socket.join("worker"), fs::Permissions::from_mode(0o666))
        .map_err(|error| format!("cannot open the socket to the verifier's account: {error}"))?;
    // Among those on their way up, as the attempts' own.
    let starting = starts.acquire().await.ok();
    let apart = driver
        .start(SandboxRequest {
            id: format!("{}-verify", job.id),
            env: None,
            layers: Vec::new(),
            tops: Vec::new(),
            views: views(&folders, job.episode),
            accounts: Vec::new(),
            net: false,
            gpus: None,
        })
        .await
        .map_err(|error| crate::chain(&error))?;
    drop(starting);
    let limit = job.limit + if job.oracle.is_ok() { FOR_ANSWERS } else { Duration::ZERO };
    let command = CommandSpec {
        argv: ["python3", "-I", "-B", "/verify/runner/runner.py", "/verify/runner/job.json"]
            .map(str::to_owned)
            .to_vec(),
        user: "ga".to_owned(),
        cwd: Some("/tmp".to_owned()),
        limit_millis: millis(limit).0,
        output_limit: LOG_LIMIT,
        ..CommandSpec::default()
    };
    let mut served = serve::Served::default();
    let ran = {
        let run = apart.run(command);
        let answer = async {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let oracle = job.oracle.as_ref().map_err(String::as_str);
                    serve::serve(stream, live, &folders.on_the_way, oracle, &mut served).await
                }
                Err(error) => Err(error),
            }
        };
        tokio::pin!(run, answer);
        let mut answering = true;
        let ran = loop {
            tokio::select! {
                ran = &mut run => break ran,
                answered = &mut answer, if answering => {
                    answering = false;
                    if let Err(error) = answered {
                        tracing::warn!(%error, "the conversation with a verifier broke off");
                    }
                }
                used = watch_memory(apart.as_ref(), MEMORY_MIB, |_| {}) => {
                    apart.kill().await;
                    break Err(SandboxError::Failed(used));
                }
                () = tokio::time::sleep(limit + Duration::from_secs(30)) => {
                    break Err(SandboxError::Gone("it did not end at its time limit".to_owned()));
                }
            }
        };
        // The last line may still be in the socket.
        if answering && tokio::time::timeout(LAST_LINE, answer).await.is_err() {
            tracing::warn!("a verifier ended in the middle of a conversation, or without one");
        }
        ran
    };
    if let Err(error) = apart.stop().await {
        tracing::warn!(%error, "a verifier's sandbox did not stop in order");
    }
    if let Some(error) = served.broken {
        let fault = Fault {
            class: FaultClass::SandboxStart,
            message: format!("the sandbox was lost before it was verified: {error}"),
            log_tail: None,
        };
        return Ok(Verification { end: AttemptEnd::Fault(fault), notes: Vec::new(), log: String::new() });
    }
    if let Some(error) = served.over {
        return Ok(Verification { end: AttemptEnd::Fault(fault_of(&error)), notes: Vec::new(), log: String::new() });
    }
    let ran = ran.map_err(|error| crate::chain(&error))?;
    let process = ProcessEnd { code: ran.code, timed_out: ran.timed_out };
    let (mut end, notes) = decide(served.outcome, process, &served.questions, job.ended_by);
    if let AttemptEnd::Unverified { reason, .. } = &mut end
        && !ran.output.trim().is_empty()
    {
        reason.push_str("\nlast output:\n");
        reason.push_str(&crate::tail(&ran.output, 20));
    }
    Ok(Verification { end, notes, log: ran.output })
}

fn prepare(job: &Job<'_>) -> Result<Folders, BlobError> {
    let root = job.scratch;
    let folders = Folders {
        benchmark: root.join("benchmark"),
        runner: root.join("runner"),
        socket: root.join("socket"),
        on_the_way: root.join("on-the-way"),
    };
    for folder in [&folders.runner, &folders.socket, &folders.on_the_way] {
        fs::create_dir_all(folder).map_err(BlobError::file("create", folder))?;
    }
    for folder in [&folders.runner, &folders.socket] {
        open_to_all(folder, 0o755)?;
    }
    let env_root = folders.benchmark.join(&job.env.name);
    link_view(job.env_files.path(), &env_root, false, &[])?;
    let task_root = env_root.join("tasks").join(&job.task.name.task);
    link_view(job.task_files.path(), &task_root, false, &[])?;
    for folder in [&folders.benchmark, &env_root.join("tasks")] {
        open_to_all(folder, 0o755)?;
    }
    let runner = folders.runner.join("runner.py");
    fs::write(&runner, RUNNER).map_err(BlobError::file("write", &runner))?;
    let file = folders.runner.join("job.json");
    fs::write(&file, job_json(job).to_string()).map_err(BlobError::file("write", &file))?;
    for file in [&runner, &file] {
        open_to_all(file, 0o644)?;
    }
    Ok(folders)
}

fn open_to_all(path: &Path, mode: u32) -> Result<(), BlobError> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(BlobError::file("set the mode of", path))
}

fn views(folders: &Folders, episode: &Path) -> Vec<View> {
    let view = |source: &Path, name: &str| View {
        source: source.to_owned(),
        target: format!("{ROOT}/{name}"),
        writable: false,
    };
    vec![
        view(&folders.benchmark, "environments"),
        view(&folders.runner, "runner"),
        view(&folders.socket, "socket"),
        view(episode, "episode"),
    ]
}

/// What the runner is told, with paths as its sandbox sees them.
fn job_json(job: &Job<'_>) -> Value {
    let episode = format!("{ROOT}/episode");
    let path = |name: &str| format!("{episode}/{name}");
    let frames: Vec<String> = job.frames.iter().map(|name| path(name)).collect();
    let step_frames: serde_json::Map<String, Value> =
        frames.iter().enumerate().map(|(step, frame)| (step.to_string(), json!(frame))).collect();
    let post = job.episode.join("post_verification.png").exists().then(|| path("post_verification.png"));
    let env_root = format!("{ROOT}/environments/{}", job.env.name);
    json!({
        "socket": format!("{ROOT}/socket/worker"),
        "task_root": format!("{env_root}/tasks/{}", job.task.name.task),
        "env_root": env_root,
        "file": job.program.0,
        "function": job.program.1,
        "traj": {
            "steps": job.steps,
            "episode_dir": episode,
            "final_screenshot": frames.last(),
            "post_verification_screenshot": post,
            "first_frame": frames.first(),
            "last_frame": frames.last(),
            "frames": frames,
            "step_frames": step_frames,
        },
        "env_info": {"env_id": job.env.id, "episode_dir": episode},
        "task_info": {
            "task_id": job.task.id,
            "metadata": job.task.metadata,
            "task_spec": job.task.spec,
        },
    })
}

#[cfg(test)]
mod tests;
