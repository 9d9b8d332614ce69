//! The text of a batch script.
//!
//! Slurm keeps a script, and shows it to others: no secret is in it, nor in the environment
//! that it asks for. The worker finds the coordinator, and its token of access, in a file that
//! is named on its command line and that the user alone may read.

mod checks;

use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::path::PathBuf;

pub use checks::ScriptError;

use crate::token::Token;

/// The variable in which a worker finds the [`Token`] of its submission.
pub(crate) const TOKEN_VARIABLE: &str = "LONGHAUL_ALLOCATION";

/// Memory of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// That of the whole node.
    Node,
    /// So many MiB.
    Mib(u64),
}

/// The signal that comes before the end of an allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WarningSignal {
    /// TERM: what is done about it is the same as when somebody cancels the allocation.
    #[default]
    Term,
    /// USR1: the program tells its time limit from a cancellation.
    Usr1,
}

/// What a person sets for all allocations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// The partition, or several with commas between them; the cluster's default if none.
    pub partition: Option<String>,
    /// The account that is charged.
    pub account: Option<String>,
    /// The quality of service.
    pub qos: Option<String>,
    /// Features that the node must have, as `--constraint` takes them.
    pub constraint: Option<String>,
    /// Devices, as `--gres` takes them (`gpu:2`).
    pub gres: Option<String>,
    /// Processors of each allocation; what the site gives if none.
    pub cpus: Option<NonZeroU32>,
    /// Memory of each allocation; what the site gives if none.
    pub memory: Option<Memory>,
    /// Whether each allocation has its node for itself.
    pub exclusive: bool,
    /// How long an allocation may run.
    pub time_limit_minutes: u32,
    /// How long before that end the worker is told, so that it can park what runs. Slurm looks
    /// every 30 s, and may be up to a minute early.
    pub warning_seconds: u16,
    /// What it is told with.
    pub warning_signal: WarningSignal,
    /// Whether Slurm starts an allocation again after the loss of its node or a preemption.
    pub requeue: bool,
    /// The folder for what allocations print; it must be there, on a disk that nodes share.
    /// `/dev/null` keeps none of it.
    pub output_folder: PathBuf,
    /// More options of `sbatch`, a line each: `--mail-type=FAIL`, `--nice=100`.
    pub options: Vec<String>,
    /// Lines of shell before the worker starts: `. /etc/profile`, `module load apptainer`,
    /// `export TMPDIR=/local/$SLURM_JOB_ID`.
    pub prologue: Vec<String>,
}

impl Default for Template {
    fn default() -> Self {
        Self {
            partition: None,
            account: None,
            qos: None,
            constraint: None,
            gres: None,
            cpus: None,
            memory: None,
            exclusive: false,
            time_limit_minutes: 60,
            warning_seconds: 120,
            warning_signal: WarningSignal::Term,
            requeue: false,
            output_folder: PathBuf::from("/dev/null"),
            options: Vec::new(),
            prologue: Vec::new(),
        }
    }
}

/// How many allocations a submission asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One, in a job of its own.
    Single,
    /// Several, as an array.
    Array {
        /// How many.
        tasks: NonZeroU32,
        /// How many of them may run at once, if not all.
        at_once: Option<NonZeroU32>,
    },
}

impl Shape {
    /// How many allocations that is.
    #[must_use]
    pub fn count(self) -> u32 {
        match self {
            Self::Single => 1,
            Self::Array { tasks, .. } => tasks.get(),
        }
    }
}

/// What runs in an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerCommand {
    /// The program, by its whole path.
    pub program: PathBuf,
    /// Its arguments. Secrets are in files that they name.
    pub args: Vec<String>,
}

/// One submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocationRequest {
    /// Its identity.
    pub token: Token,
    /// How many allocations.
    pub shape: Shape,
    /// What runs in each.
    pub worker: WorkerCommand,
}

/// The batch script for a submission.
///
/// Its shell becomes the worker (`exec`), so the warning signal, which `--signal=B:` sends to
/// the shell alone, is the worker's, and the worker's exit code is the job's. The
/// environment is Slurm's own (`--export=NIL`): nothing of the coordinator's goes with it.
/// A worker knows itself by `LONGHAUL_ALLOCATION`, and by the index and the restarts that Slurm
/// tells it: see [`crate::Allocation`].
///
/// # Errors
///
/// A value cannot be written so that it stays one value, or sets what is Longhaul's to set.
pub fn script(template: &Template, request: &AllocationRequest) -> Result<String, ScriptError> {
    let mut text = String::from("#!/bin/bash\n");
    for directive in directives(template, request)? {
        // Writing to a string does not fail.
        let _ = writeln!(text, "#SBATCH {directive}");
    }
    text.push_str(PREAMBLE);
    let _ = writeln!(text, "export {TOKEN_VARIABLE}={}", request.token);
    if !template.prologue.is_empty() {
        text.push_str("\n# Prologue, as set.\n");
        for line in &template.prologue {
            let _ = writeln!(text, "{}", checks::shell_line("prologue", line)?);
        }
    }
    let program = checks::program(&request.worker.program)?;
    let mut words = vec![checks::quoted("worker program", program)?];
    for arg in &request.worker.args {
        words.push(checks::quoted("worker arguments", arg)?);
    }
    let _ = write!(
        text,
        "\n# The shell becomes the program: its signals are the program's, and so is its end.\nexec {}\n",
        words.join(" ")
    );
    Ok(text)
}

/// What the worker needs of an environment that may hold nothing but Slurm's variables.
const PREAMBLE: &str = "
umask 077
[ -n \"${HOME:-}\" ] || HOME=~
: \"${USER:=$(id -un)}\"
: \"${LOGNAME:=$USER}\"
PATH=${PATH:+$PATH:}/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin
export HOME USER LOGNAME PATH
";

/// Ours come after those of the template, so that they hold.
fn directives(template: &Template, request: &AllocationRequest) -> Result<Vec<String>, ScriptError> {
    let mut lines = Vec::new();
    for (setting, option, value) in [
        ("partition", "partition", &template.partition),
        ("account", "account", &template.account),
        ("qos", "qos", &template.qos),
        ("constraint", "constraint", &template.constraint),
        ("gres", "gres", &template.gres),
    ] {
        if let Some(value) = value {
            lines.push(format!("--{option}={}", checks::word(setting, value)?));
        }
    }
    for line in &template.options {
        lines.push(checks::options(line)?.to_owned());
    }
    lines.push("--nodes=1".to_owned());
    lines.push("--ntasks=1".to_owned());
    lines.extend(template.cpus.map(|cpus| format!("--cpus-per-task={cpus}")));
    lines.extend(template.memory.map(|memory| match memory {
        // Slurm's way to say it.
        Memory::Node => "--mem=0".to_owned(),
        Memory::Mib(mib) => format!("--mem={mib}M"),
    }));
    if template.exclusive {
        lines.push("--exclusive".to_owned());
    }
    lines.push(format!("--time={}", checks::time_limit(template)?));
    if let Shape::Array { tasks, at_once } = request.shape {
        let at_once = at_once.map(|at_once| format!("%{at_once}")).unwrap_or_default();
        lines.push(format!("--array=0-{}{at_once}", tasks.get() - 1));
    }
    let signal = match template.warning_signal {
        WarningSignal::Term => "TERM",
        WarningSignal::Usr1 => "USR1",
    };
    lines.push(format!("--signal=B:{signal}@{}", template.warning_seconds));
    lines.push(if template.requeue { "--requeue" } else { "--no-requeue" }.to_owned());
    lines.push(format!("--output={}", output(template, request)?));
    // An allocation that is started again goes on in the same file.
    lines.push("--open-mode=append".to_owned());
    lines.push("--export=NIL".to_owned());
    // Where the coordinator was started may not be there on a node.
    lines.push("--chdir=/".to_owned());
    lines.push(format!("--job-name={}", request.token));
    lines.push(format!("--comment={}", request.token));
    Ok(lines)
}

fn output(template: &Template, request: &AllocationRequest) -> Result<String, ScriptError> {
    let folder = checks::output_folder(&template.output_folder)?;
    if folder == "/dev/null" {
        return Ok(folder);
    }
    // For a job that is no array %a is a number that means nothing.
    let id = match request.shape {
        Shape::Single => "%j",
        Shape::Array { .. } => "%A_%a",
    };
    Ok(format!("{folder}/allocation-{id}.out"))
}

#[cfg(test)]
mod tests;
